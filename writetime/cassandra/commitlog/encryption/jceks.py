"""JCEKS keystores (JDK 8-24, com.sun.crypto.provider.JceKeyStore): secret keys only; other entries are
skipped.

    u32   ce ce ce ce
    u32   version, 1 or 2
    u32   number of entries
    ...   entries: u32 kind (1 private key, 2 certificate, 3 secret key), UTF alias, i64 date, then data that depends on kind
    ...   SHA-1 of: the password as UTF-16, "Mighty Aphrodite", everything above

A secret key is a serialised Java SealedObject: bytes encrypted by PBEWithMD5AndTripleDES, with salt and
iterations. The plaintext is another serialised object, which has the key in a field. This module reads only
the part of Java's serialisation that plain objects with fields need (Java Object Serialization Specification,
6.4). Java's modified UTF-8 is decoded as UTF-8 with replacement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from writetime.errors import ConfigError

MAGIC: Final = b"\xce\xce\xce\xce"
_PRIVATE_KEY, _CERTIFICATE, _SECRET_KEY = 1, 2, 3
_DIGEST_SIZE = 20
_WHITENER = b"Mighty Aphrodite"
_MOST_ITERATIONS = 5_000_000
"""Java's limit."""

_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING, _ARRAY, _BLOCK_END, _ENUM = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x78, 0x7E
_FIRST_HANDLE = 0x7E0000
_SERIALIZABLE_AS_IT_IS = 2
_PRIMITIVES = {"B": 1, "C": 2, "D": 8, "F": 4, "I": 4, "J": 8, "S": 2, "Z": 1}


class _Malformed(Exception):
    """The bytes do not follow the grammar. Not raised outside this module."""


def entries(content: bytes, path: str, password: str, key_password: str) -> dict[str, Callable[[], bytes]]:
    """Functions that decrypt each secret key, by alias. Raises ConfigError for a wrong password or damage."""
    body, digest = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
    if hashlib.sha1(password.encode("utf-16-be") + _WHITENER + body, usedforsecurity=False).digest() != digest:
        raise ConfigError("the keystore is truncated or damaged, or the password is wrong", operation="open a keystore", obj=path)
    try:
        sealed = dict(_secret_keys(_Reader(body, len(MAGIC))))
    except (_Malformed, RecursionError) as error:
        raise ConfigError(f"cannot read the keystore: {error}", operation="open a keystore", obj=path) from error
    return {alias: partial(_open, item, path, alias, key_password) for alias, item in sealed.items()}


class _Reader:
    """Bytes with a position."""

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self.data = data
        self.pos = pos

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.pos:
            raise _Malformed(f"{size} bytes are missing at {self.pos}")
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def utf(self) -> str:
        return self.take(self.number(2)).decode(errors="replace")


def _secret_keys(reader: _Reader) -> list[tuple[str, dict[str, Any]]]:
    version, count = reader.number(4), reader.number(4)
    if version not in (1, 2):
        raise _Malformed(f"unknown version {version}")
    found = []
    for _ in range(count):
        kind, alias, _date = reader.number(4), reader.utf(), reader.take(8)
        if kind == _SECRET_KEY:
            found.append((alias, _Deserializer(reader).read()))
        elif kind == _PRIVATE_KEY:
            reader.take(reader.number(4))
            for _ in range(reader.number(4)):
                _step_over_certificate(reader, version)
        elif kind == _CERTIFICATE:
            _step_over_certificate(reader, version)
        else:
            raise _Malformed(f"unknown entry kind {kind}")
    return found


def _step_over_certificate(reader: _Reader, version: int) -> None:
    if version == 2:
        reader.utf()
    reader.take(reader.number(4))


def _open(sealed: dict[str, Any], path: str, alias: str, password: str) -> bytes:
    def fail(message: str) -> NoReturn:
        raise ConfigError(f"the key `{alias}` cannot be opened: {message}", operation="open a key", obj=path)

    if sealed.get("sealAlg") != "PBEWithMD5AndTripleDES":
        fail(f"unsupported algorithm {sealed.get('sealAlg')}")
    try:
        salt, iterations = _parameters(sealed["encodedParams"])
        plain = _decrypt(sealed["encryptedContent"], password, salt, iterations)
    except (_Malformed, KeyError, TypeError, ValueError):
        fail("the key's password is wrong, or its bytes are damaged")
    try:
        key = _Deserializer(_Reader(plain)).read()
    except (_Malformed, RecursionError):
        fail("the key's password is wrong, or its bytes are damaged")
    raw = key.get("key", key.get("encoded"))
    if not isinstance(raw, bytes):
        fail("the sealed object is not a secret key")
    return raw


def _parameters(der: bytes) -> tuple[bytes, int]:
    """Salt and iterations: SEQUENCE { OCTET STRING of 8 bytes, INTEGER }."""
    if len(der) < 14 or der[0] != 0x30 or der[1] != len(der) - 2 or der[2:4] != b"\x04\x08" or der[12] != 2 or der[13] != len(der) - 14:
        raise _Malformed("the encryption parameters are malformed")
    iterations = int.from_bytes(der[14:], "big")
    if not 0 < iterations <= _MOST_ITERATIONS:
        raise _Malformed(f"iteration count {iterations} is out of range")
    return der[4:12], iterations


def _decrypt(ciphertext: bytes, password: str, salt: bytes, iterations: int) -> bytes:
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from cryptography.hazmat.primitives.ciphers import Cipher, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    derived = b"".join(_digest(half, password.encode(), iterations) for half in _halves(salt))
    decryptor = Cipher(TripleDES(derived[:24]), modes.CBC(derived[24:])).decryptor()
    unpadder = PKCS7(64).unpadder()
    return bytes(unpadder.update(decryptor.update(ciphertext) + decryptor.finalize()) + unpadder.finalize())


def _halves(salt: bytes) -> tuple[bytes, bytes]:
    """Equal halves would give equal halves of the key, so Java reverses the first one."""
    first, second = salt[:4], salt[4:]
    return (first[::-1] if first == second else first), second


def _digest(salt: bytes, password: bytes, iterations: int) -> bytes:
    value = salt
    for _ in range(iterations):
        value = hashlib.md5(value + password, usedforsecurity=False).digest()
    return value


class _ClassDescription:
    def __init__(self, name: str) -> None:
        self.name = name
        self.flags = 0
        self.fields: list[tuple[str, str]] = []
        self.parent: _ClassDescription | None = None


class _Deserializer:
    """One object of a Java serialisation stream: its fields as a dict, byte arrays as bytes, strings as
    str."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader
        self.handles: list[Any] = []

    def read(self) -> dict[str, Any]:
        if self.reader.take(4) != b"\xac\xed\x00\x05":
            raise _Malformed("not a serialised Java object")
        value = self._value()
        if not isinstance(value, dict):
            raise _Malformed("not a Java object with fields")
        return value

    def _value(self) -> Any:
        code = self.reader.number(1)
        if code == _NULL:
            return None
        if code == _REFERENCE:
            return self._referenced()
        if code == _STRING:
            return self._keep(self.reader.utf())
        readers = {_OBJECT: self._object, _ARRAY: self._array, _ENUM: self._enum}
        if code not in readers:
            raise _Malformed(f"unsupported Java value type {code:#x}")
        return readers[code]()

    def _object(self) -> dict[str, Any]:
        description = self._class()
        fields: dict[str, Any] = self._keep({})
        lineage = []
        while description is not None:
            lineage.append(description)
            description = description.parent
        for each in reversed(lineage):
            if each.flags != _SERIALIZABLE_AS_IT_IS:
                raise _Malformed(f"{each.name} uses custom serialisation")
            for kind, name in each.fields:
                fields[name] = self._value() if kind in "[L" else self.reader.take(_PRIMITIVES[kind])
        return fields

    def _array(self) -> bytes:
        description = self._class()
        if description is None or description.name != "[B":
            raise _Malformed("an array that is not a byte array")
        place = len(self.handles)
        self._keep(None)
        self.handles[place] = self.reader.take(self.reader.number(4))
        return bytes(self.handles[place])

    def _enum(self) -> Any:
        self._class()
        place = len(self.handles)
        self._keep(None)
        self.handles[place] = self._value()
        return self.handles[place]

    def _class(self) -> _ClassDescription | None:
        code = self.reader.number(1)
        if code == _NULL:
            return None
        if code == _REFERENCE:
            referenced = self._referenced()
            if not isinstance(referenced, _ClassDescription):
                raise _Malformed("a class reference does not point to a class")
            return referenced
        if code != _CLASS:
            raise _Malformed(f"unsupported Java class type {code:#x}")
        description = _ClassDescription(self.reader.utf())
        self.reader.take(8)
        self._keep(description)
        description.flags = self.reader.number(1)
        for _ in range(self.reader.number(2)):
            kind, name = chr(self.reader.number(1)), self.reader.utf()
            if kind in "[L":
                self._value()
            elif kind not in _PRIMITIVES:
                raise _Malformed(f"unknown field type {kind!r}")
            description.fields.append((kind, name))
        if self.reader.number(1) != _BLOCK_END:
            raise _Malformed(f"class {description.name} has unsupported annotations")
        description.parent = self._class()
        return description

    def _referenced(self) -> Any:
        handle = self.reader.number(4) - _FIRST_HANDLE
        if not 0 <= handle < len(self.handles):
            raise _Malformed("a reference points to no object")
        return self.handles[handle]

    def _keep(self, value: Any) -> Any:
        self.handles.append(value)
        return value
