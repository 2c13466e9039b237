"""Keystores from Java's keytool: valid, invalid, damaged, and with a wrong password."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from writetime.cassandra.commitlog.encryption import jceks, pkcs12
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.errors import ConfigError

PASSWORD = "store-Pass1"
KEY_PASSWORD = "key-Pass2"


@dataclass(frozen=True)
class Made:
    """A keystore from keytool: a private key with its certificate, and one AES key of each size."""

    path: Path
    key_password: str | None
    sizes: tuple[int, ...]


KINDS: dict[str, tuple[str, list[str], str | None, tuple[int, ...]]] = {
    "PKCS12": ("PKCS12", [], None, (128, 192, 256)),
    "PKCS12 as before Java 16": ("PKCS12", ["-J-Dkeystore.pkcs12.legacy"], None, (128,)),
    "JCEKS": ("JCEKS", [], None, (128, 256)),
    "JCEKS with passwords of keys": ("JCEKS", [], KEY_PASSWORD, (128,)),
}


def keytool(*arguments: str) -> None:
    done = subprocess.run(["keytool", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def make(path: Path, store_type: str, options: list[str], key_password: str | None, sizes: tuple[int, ...]) -> Made:
    common = [*options, "-keystore", str(path), "-storetype", store_type, "-storepass", PASSWORD]
    own = ["-keypass", key_password] if key_password else []
    keytool("-genkeypair", "-alias", "node", "-keyalg", "EC", "-dname", "CN=node", *common, *own)
    for bits in sizes:
        keytool("-genseckey", "-alias", f"Commit_Log_{bits}", "-keyalg", "AES", "-keysize", str(bits), *common, *own)
    return Made(path, key_password, sizes)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    assert shutil.which("keytool"), "keytool comes with the JDK that the tests need anyhow"
    folder = tmp_path_factory.mktemp("keystores")
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda item: make(folder / f"{item[0]}.store", *item[1]), KINDS.items())
        return dict(zip(KINDS, made, strict=True))


@pytest.fixture(scope="module")
def exported(stores: dict[str, Made], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The same keys as read by Java, one line `kind alias hex` each."""
    source = tmp_path_factory.mktemp("java") / "Keys.java"
    source.write_text(
        "import java.io.*; import java.security.*; import java.util.*;\n"
        "public class Keys { public static void main(String[] a) throws Exception {\n"
        "  for (int i = 0; i < a.length; i += 4) {\n"
        "    KeyStore s = KeyStore.getInstance(a[i + 1]);\n"
        "    s.load(new FileInputStream(a[i]), a[i + 2].toCharArray());\n"
        "    for (String alias : Collections.list(s.aliases())) { Key k = s.getKey(alias, a[i + 3].toCharArray());\n"
        "      if (k instanceof javax.crypto.SecretKey)\n"
        '        System.out.println(a[i] + "|" + alias + "|" + HexFormat.of().formatHex(k.getEncoded()));\n'
        "  } } } }\n"
    )
    arguments = []
    for kind, made in stores.items():
        arguments += [str(made.path), KINDS[kind][0], PASSWORD, made.key_password or PASSWORD]
    done = subprocess.run(["java", str(source), *arguments], capture_output=True, text=True, timeout=300, check=True)
    lines = (line.split("|") for line in done.stdout.splitlines())
    return {f"{path}|{alias}": bytes.fromhex(key) for path, alias, key in lines}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_those_that_java_reads(kind: str, stores: dict[str, Made], exported: dict[str, bytes]) -> None:
    made = stores[kind]
    keys = Keystore.open(made.path, PASSWORD, made.key_password)
    for bits in made.sizes:
        expected = exported[f"{made.path}|commit_log_{bits}"]
        assert len(expected) == bits // 8
        assert keys.secret(f"commit_log_{bits}") == expected
        assert keys.secret(f"COMMIT_log_{bits}") == expected


@pytest.mark.parametrize("kind", KINDS)
def test_another_password(kind: str, stores: dict[str, Made]) -> None:
    with pytest.raises(ConfigError, match="password") as raised:
        Keystore.open(stores[kind].path, "store-Pass2")
    assert raised.value.obj == str(stores[kind].path)
    assert "store-Pass" not in str(raised.value)


def test_another_password_of_the_key(stores: dict[str, Made]) -> None:
    keys = Keystore.open(stores["JCEKS with passwords of keys"].path, PASSWORD)
    with pytest.raises(ConfigError, match="`commit_log_128` cannot be opened: the key's password is wrong") as raised:
        keys.secret("Commit_Log_128")
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_another_alias(kind: str, stores: dict[str, Made]) -> None:
    keys = Keystore.open(stores[kind].path, PASSWORD, stores[kind].key_password)
    with pytest.raises(ConfigError, match=r"no secret key `other`.*`commit_log_128`"):
        keys.secret("Other")
    with pytest.raises(ConfigError, match="no secret key `node`"):
        keys.secret("node")


@pytest.mark.parametrize("kind", KINDS)
def test_cut_short_or_damaged(kind: str, stores: dict[str, Made], tmp_path: Path) -> None:
    content = stores[kind].path.read_bytes()
    path = tmp_path / "damaged"
    for cut in (5, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(ConfigError):
            Keystore.open(path, PASSWORD)
    for place in range(30, len(content) - 1, len(content) // 12):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            keys = Keystore.open(path, PASSWORD, stores[kind].key_password)
        except ConfigError:
            continue
        # PKCS12 does not protect bytes outside its safe, such as algorithm names. Keys are correct or not
        # returned.
        assert keys.secret("commit_log_128") == Keystore.open(stores[kind].path, PASSWORD, stores[kind].key_password).secret(
            "commit_log_128"
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a JCEKS or PKCS12 keystore"),
        (b"-----BEGIN CERTIFICATE-----\n", "not a JCEKS or PKCS12 keystore"),
        (b"\xfe\xed\xfe\xed\0\0\0\2\0\0\0\0", "JKS, which cannot hold secret keys"),
        (b"\x30\x03\x02\x01\x01", "not PKCS12"),
        (b"\xce\xce\xce\xce\0\0\0\2\0\0\0\0", "truncated or damaged"),
    ],
)
def test_what_is_no_keystore(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "keystore"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Keystore.open(path, PASSWORD)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Keystore.open(tmp_path / "nowhere", PASSWORD)


def test_passwords_come_from_the_environment(stores: dict[str, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    path = stores["JCEKS with passwords of keys"].path
    monkeypatch.delenv("WRITETIME_KEYSTORE_PASSWORD", raising=False)
    with pytest.raises(ConfigError, match="WRITETIME_KEYSTORE_PASSWORD"):
        Keystore.from_environment(path)
    monkeypatch.setenv("WRITETIME_KEYSTORE_PASSWORD", PASSWORD)
    monkeypatch.setenv("WRITETIME_KEYSTORE_KEY_PASSWORD", KEY_PASSWORD)
    assert len(Keystore.from_environment(path).secret("commit_log_128")) == 16


@pytest.mark.parametrize("kind", ["PKCS12", "JCEKS"])
@pytest.mark.parametrize("variable", ["WRITETIME_KEYSTORE_PASSWORD", "WRITETIME_KEYSTORE_KEY_PASSWORD"])
def test_a_password_that_is_no_text(variable: str, kind: str, stores: dict[str, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of another encoding in the environment. No part of them is shown, not even in a chained error."""
    monkeypatch.setenv("WRITETIME_KEYSTORE_PASSWORD", PASSWORD)
    monkeypatch.setenv(variable, os.fsdecode(b"p\xe4ssw\xf6rd"))
    with pytest.raises(ConfigError, match="not valid UTF-8") as raised:
        Keystore.from_environment(stores[kind].path).secret("commit_log_128")
    assert raised.value.__context__ is None


def test_an_empty_password(tmp_path: Path) -> None:
    """keytool requires six characters; the Java API does not."""
    source = tmp_path / "Empty.java"
    source.write_text(
        "import java.io.*; import java.security.*; import javax.crypto.spec.*;\n"
        "public class Empty { public static void main(String[] a) throws Exception {\n"
        '  char[] none = {}; for (String type : new String[] {"PKCS12", "JCEKS"}) {\n'
        "    KeyStore s = KeyStore.getInstance(type); s.load(null, none);\n"
        '    s.setKeyEntry("k", new SecretKeySpec(new byte[16], "AES"), none, null);\n'
        '    s.store(new FileOutputStream(a[0] + "/" + type), none);\n'
        "  } } }\n"
    )
    subprocess.run(["java", str(source), str(tmp_path)], capture_output=True, timeout=300, check=True)
    for kind in ("PKCS12", "JCEKS"):
        assert Keystore.open(tmp_path / kind, "").secret("K") == bytes(16)


@pytest.mark.parametrize(("kind", "library"), [("PKCS12", "pyasn1"), ("PKCS12", "cryptography"), ("JCEKS", "cryptography")])
def test_a_library_that_is_not_installed(kind: str, library: str, stores: dict[str, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"package {library}.*pip install"):
        Keystore.open(stores[kind].path, PASSWORD).secret("commit_log_128")


def test_nothing_secret_shows(stores: dict[str, Made]) -> None:
    keys = Keystore.open(stores["PKCS12"].path, PASSWORD)
    secret = keys.secret("commit_log_128")
    shown = repr(keys) + str(keys)
    assert "3 keys" in shown
    assert secret.hex() not in shown
    assert repr(secret)[2:-1] not in shown
    assert PASSWORD not in shown


@pytest.mark.parametrize(
    ("salt", "sealed"),
    [
        ("0102030401020304", "0df07fd42ed412d883dd78e5c8c0442136a9e1d6f80a6fda"),
        ("a1a2a3a4b1b2b3b4", "a2547e733fa2acbe3fbb6ac43f1a5a2da5cab8bb0cd167cd"),
    ],
    ids=["equal halves", "others"],
)
def test_salts_of_equal_halves(salt: str, sealed: str) -> None:
    """Bytes from Java's PBEWithMD5AndTripleDES, password `secret1`, 20 rounds. keytool uses a random salt."""
    assert jceks._decrypt(bytes.fromhex(sealed), "secret1", bytes.fromhex(salt), 20) == b"some text of a key"


def test_an_absurd_number_of_iterations_is_refused() -> None:
    with pytest.raises(jceks._Malformed):
        jceks._parameters(b"\x30\x10\x04\x08" + bytes(8) + b"\x02\x04\x7f\xff\xff\xff")
    with pytest.raises(pkcs12._Unreadable):
        pkcs12._iterations(0x7FFFFFFF)


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_any_bytes_for_a_serialised_object(content: bytes) -> None:
    reader = jceks._Reader(b"\xac\xed\x00\x05" + content)
    try:
        assert isinstance(jceks._Deserializer(reader).read(), dict)
    except jceks._Malformed:
        assert reader.pos <= len(reader.data)


def test_a_length_that_is_too_large_takes_no_memory() -> None:
    entry = (
        struct.pack(">IH", 3, 1)
        + b"a"
        + bytes(8)
        + b"\xac\xed\x00\x05\x75\x72\x00\x02[B"
        + bytes(8)
        + b"\x02\x00\x00\x78\x70\x7f\xff\xff\xff"
    )
    with pytest.raises(jceks._Malformed, match="missing"):
        jceks._secret_keys(jceks._Reader(struct.pack(">II", 2, 1) + entry))
