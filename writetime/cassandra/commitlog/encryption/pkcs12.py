"""PKCS#12 keystores (RFC 7292), secret keys only, as Java's keytool writes them (JDK 8-24,
sun.security.pkcs12.PKCS12KeyStore).

    PFX            authenticated safe, and a MAC over it with a key derived from the password
    safe           parts, each plain or encrypted; a part is a list of bags
    secret bag     an EncryptedPrivateKeyInfo in an OCTET STRING; its friendlyName is the alias
      decrypted    a PrivateKeyInfo with the key as its octets

Supported encryption: PBES2 (PBKDF2, AES; default since Java 16) and the older
pbeWithSHAAnd3-KeyTripleDES-CBC. Parts encrypted with RC2, which old keystores use for certificates, are
skipped; they do not contain secret keys. pyasn1 parses the DER, cryptography decrypts.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from writetime.errors import ConfigError

_DATA, _ENCRYPTED_DATA = "1.2.840.113549.1.7.1", "1.2.840.113549.1.7.6"
_SECRET_BAG, _FRIENDLY_NAME = "1.2.840.113549.1.12.10.1.5", "1.2.840.113549.1.9.20"
_PBES2, _TRIPLE_DES_PBE, _PBKDF2 = "1.2.840.113549.1.5.13", "1.2.840.113549.1.12.1.3", "1.2.840.113549.1.5.12"
_TRIPLE_DES_CBC = "1.2.840.113549.3.7"
_AES_CBC = {"2.16.840.1.101.3.4.1.2": 16, "2.16.840.1.101.3.4.1.22": 24, "2.16.840.1.101.3.4.1.42": 32}
_DIGESTS = {
    "1.3.14.3.2.26": "sha1",
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
_HMACS = {
    "1.2.840.113549.2.7": "sha1",
    "1.2.840.113549.2.9": "sha256",
    "1.2.840.113549.2.10": "sha384",
    "1.2.840.113549.2.11": "sha512",
}
_FOR_KEY, _FOR_VECTOR, _FOR_MAC = 1, 2, 3
_MOST_ITERATIONS = 5_000_000
"""Java's limit."""


class _Unreadable(Exception):
    """An unsupported algorithm. Not raised outside this module."""


def entries(content: bytes, path: str, password: str, key_password: str) -> dict[str, Callable[[], bytes]]:
    """Functions that decrypt each secret key, by alias. Raises ConfigError: wrong password, damage or
    unsupported algorithm."""
    from pyasn1.error import PyAsn1Error
    from pyasn1_modules import rfc7292

    try:
        pfx = _decode(content, rfc7292.PFX())
        safe = _octets(pfx["authSafe"]["content"])
        _check_mac(pfx, safe, password, path)
        return {
            alias: partial(_open, encrypted, path, alias, key_password)
            for part in _decode(safe, rfc7292.AuthenticatedSafe())
            for alias, encrypted in _secret_bags(part, password)
        }
    except _Unreadable as error:
        raise ConfigError(f"the keystore uses an unsupported algorithm: {error}", operation="open a keystore", obj=path) from error
    except (PyAsn1Error, ValueError, LookupError) as error:
        raise ConfigError("the keystore is truncated, damaged or not PKCS12", operation="open a keystore", obj=path) from error


def _check_mac(pfx: Any, safe: bytes, password: str, path: str) -> None:
    if not pfx["macData"].isValue:
        raise ConfigError("the keystore has no MAC, so the password cannot be checked", operation="open a keystore", obj=path)
    mac = pfx["macData"]
    digest = _DIGESTS.get(str(mac["mac"]["digestAlgorithm"]["algorithm"]))
    if digest is None:
        raise _Unreadable(f"MAC {mac['mac']['digestAlgorithm']['algorithm']}")
    size = hashlib.new(digest).digest_size
    key = _derive(digest, password, bytes(mac["macSalt"]), _iterations(mac["iterations"]), _FOR_MAC, size)
    if not hmac.compare_digest(hmac.digest(key, safe, digest), bytes(mac["mac"]["digest"])):
        raise ConfigError("the keystore password is wrong, or the keystore is damaged", operation="open a keystore", obj=path)


def _secret_bags(part: Any, password: str) -> Iterator[tuple[str, bytes]]:
    """(alias, EncryptedPrivateKeyInfo) of each secret bag in a part of the safe."""
    from pyasn1_modules import rfc5652, rfc7292

    kind = str(part["contentType"])
    if kind == _ENCRYPTED_DATA:
        encrypted = _decode(bytes(part["content"]), rfc5652.EncryptedData())["encryptedContentInfo"]
        try:
            content = _decrypt(encrypted["contentEncryptionAlgorithm"], bytes(encrypted["encryptedContent"]), password)
        except _Unreadable:
            return
    elif kind == _DATA:
        content = _octets(part["content"])
    else:
        return
    for bag in _decode(content, rfc7292.SafeContents()):
        if str(bag["bagId"]) == _SECRET_BAG:
            yield _alias(bag), _octets(_decode(bytes(bag["bagValue"]), rfc7292.SecretBag())["secretValue"])


def _alias(bag: Any) -> str:
    from pyasn1.type.char import BMPString

    for attribute in bag["bagAttributes"]:
        if str(attribute["attrType"]) == _FRIENDLY_NAME:
            return str(_decode(bytes(attribute["attrValues"][0]), BMPString()))
    return ""


def _open(encrypted: bytes, path: str, alias: str, password: str) -> bytes:
    from pyasn1.error import PyAsn1Error
    from pyasn1_modules import rfc5958

    try:
        info = _decode(encrypted, rfc5958.EncryptedPrivateKeyInfo())
        plain = _decrypt(info["encryptionAlgorithm"], bytes(info["encryptedData"]), password)
        return bytes(_decode(plain, rfc5958.PrivateKeyInfo())["privateKey"])
    except _Unreadable as error:
        message = f"unsupported algorithm: {error}"
    except (PyAsn1Error, ValueError, LookupError):
        message = "the key's password is wrong, or its bytes are damaged"
    raise ConfigError(f"the key `{alias}` cannot be opened: {message}", operation="open a key", obj=path)


def _decrypt(algorithm: Any, ciphertext: bytes, password: str) -> bytes:
    """Raises ValueError for wrong padding, the result of a wrong password."""
    from cryptography.hazmat.primitives.ciphers import Cipher, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    kind, parameters = str(algorithm["algorithm"]), bytes(algorithm["parameters"])
    if kind == _PBES2:
        cipher, vector = _pbes2(parameters, password)
    elif kind == _TRIPLE_DES_PBE:
        cipher, vector = _triple_des_pbe(parameters, password)
    else:
        raise _Unreadable(kind)
    decryptor = Cipher(cipher, modes.CBC(vector)).decryptor()
    unpadder = PKCS7(8 * len(vector)).unpadder()
    return bytes(unpadder.update(decryptor.update(ciphertext) + decryptor.finalize()) + unpadder.finalize())


def _pbes2(parameters: bytes, password: str) -> tuple[Any, bytes]:
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from pyasn1.type.univ import OctetString
    from pyasn1_modules import rfc8018

    decoded = _decode(parameters, rfc8018.PBES2_params())
    derivation, scheme = decoded["keyDerivationFunc"], decoded["encryptionScheme"]
    cipher = str(scheme["algorithm"])
    if str(derivation["algorithm"]) != _PBKDF2 or cipher not in (*_AES_CBC, _TRIPLE_DES_CBC):
        raise _Unreadable(f"PBES2 with {derivation['algorithm']} and {cipher}")
    pbkdf2 = _decode(bytes(derivation["parameters"]), rfc8018.PBKDF2_params())
    digest = _HMACS.get(str(pbkdf2["prf"]["algorithm"]))
    if digest is None:
        raise _Unreadable(f"PBKDF2 with {pbkdf2['prf']['algorithm']}")
    salt, size = bytes(pbkdf2["salt"]["specified"]), _AES_CBC.get(cipher, 24)
    key = hashlib.pbkdf2_hmac(digest, password.encode(), salt, _iterations(pbkdf2["iterationCount"]), size)
    vector = bytes(_decode(bytes(scheme["parameters"]), OctetString()))
    return (TripleDES(key) if cipher == _TRIPLE_DES_CBC else AES(key)), vector


def _triple_des_pbe(parameters: bytes, password: str) -> tuple[Any, bytes]:
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from pyasn1_modules import rfc7292

    decoded = _decode(parameters, rfc7292.Pkcs_12PbeParams())
    salt, iterations = bytes(decoded["salt"]), _iterations(decoded["iterations"])
    key = _derive("sha1", password, salt, iterations, _FOR_KEY, 24)
    return TripleDES(key), _derive("sha1", password, salt, iterations, _FOR_VECTOR, 8)


def _derive(digest: str, password: str, salt: bytes, iterations: int, purpose: int, size: int) -> bytes:
    """Key material from a password (RFC 7292, appendix B.2)."""
    block = hashlib.new(digest).block_size
    text = password.encode("utf-16-be") + b"\0\0"
    pool = _stretched(salt, block) + _stretched(text, block)
    made = b""
    while len(made) < size:
        value = bytes([purpose]) * block + pool
        for _ in range(iterations):
            value = hashlib.new(digest, value, usedforsecurity=False).digest()
        made += value
        addend = int.from_bytes(_stretched(value, block)[:block], "big") + 1
        blocks = (int.from_bytes(pool[i : i + block], "big") + addend for i in range(0, len(pool), block))
        pool = b"".join((number % (1 << 8 * block)).to_bytes(block, "big") for number in blocks)
    return made[:size]


def _stretched(data: bytes, block: int) -> bytes:
    """The data repeated to a whole number of blocks."""
    size = block * -(-len(data) // block)
    return (data * (size // len(data) + 1))[:size] if data else b""


def _iterations(value: Any) -> int:
    count = int(value)
    if not 0 < count <= _MOST_ITERATIONS:
        raise _Unreadable(f"iteration count {count} is out of range")
    return count


def _octets(der: Any) -> bytes:
    from pyasn1.type.univ import OctetString

    return bytes(_decode(bytes(der), OctetString()))


def _decode(der: bytes, spec: Any) -> Any:
    from pyasn1.codec.der import decoder

    value, _ = decoder.decode(der, asn1Spec=spec)
    return value
