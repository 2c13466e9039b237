"""Writes packed segments like Cassandra, with every compressor and encrypted: the inverse of `codecs`,
`encryption` and `unpack`."""

from __future__ import annotations

import struct
import subprocess
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.cassandra.commitlog.examples import SCHEMA, delete_range, insert
from writetime.cassandra.commitlog import frames, sections
from writetime.cassandra.commitlog.descriptor import Descriptor, parse
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.commitlog.encryption.keystore import Keystore

ID = 0x1_0000_0007
ALIAS = "writetime_test"
KEY = bytes(range(16))
IV = bytes(range(100, 116))
KEYS = Keystore("a test's", {ALIAS: lambda: KEY})
ENCRYPTION = {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": ALIAS, "encIV": IV.hex()}


def lz4(content: bytes) -> bytes:
    return struct.pack("<i", len(content)) + bytes(pa.Codec("lz4_raw").compress(content, asbytes=True))


def snappy(content: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(content, asbytes=True))


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


def deflate(content: bytes) -> bytes:
    return zlib.compress(content) if content else b""


def noop(content: bytes) -> bytes:
    return content


def encrypted(content: bytes, *, chunk: int = 100, key: bytes = KEY) -> bytes:
    """Blocks of at most `chunk` bytes, so that frames cross them."""
    return b"".join(encrypted_block(content[i : i + chunk], key=key) for i in range(0, len(content), chunk))


def encrypted_block(content: bytes, *, key: bytes = KEY, claim: int | None = None) -> bytes:
    plain = struct.pack(">I", len(content) if claim is None else claim) + lz4(content)
    padder = padding.PKCS7(128).padder()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(IV)).encryptor()
    ciphertext = encryptor.update(padder.update(plain) + padder.finalize()) + encryptor.finalize()
    return struct.pack(">II", len(ciphertext), len(plain)) + ciphertext


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "LZ4Compressor": lz4,
    "SnappyCompressor": snappy,
    "DeflateCompressor": deflate,
    "ZstdCompressor": zstd,
    "NoopCompressor": noop,
}
PACKINGS = [*COMPRESSORS, "encrypted"]


@dataclass(frozen=True)
class Packed:
    """A packed segment, its plain image, and the start of each section in both."""

    file: bytes
    plain: bytes
    markers: list[int]
    logical: list[int]


def make_keystore(folder: Path, password: str, alias: str = ALIAS) -> tuple[Path, bytes]:
    """Add a 256-bit key with the alias to a keystore, with Java's keytool, and return its path
    and the key. Existing keys stay."""
    path = folder / "keys.p12"
    command = [
        "keytool",
        "-genseckey",
        "-alias",
        alias,
        "-keyalg",
        "AES",
        "-keysize",
        "256",
        "-storetype",
        "PKCS12",
        "-storepass",
        password,
    ]
    subprocess.run([*command, "-keystore", str(path)], check=True, capture_output=True, timeout=300)
    return path, Keystore.open(path, password).secret(alias)


def pack(
    contents: Sequence[bytes],
    packing: str,
    *,
    version: int = 7,
    segment_id: int = ID,
    chunk: int = 100,
    key: bytes = KEY,
    alias: str = ALIAS,
) -> Packed:
    """A segment with these section contents. `packing` is a compressor's class name, with or without package,
    or `encrypted`."""
    params = {**ENCRYPTION, "encKeyAlias": alias} if packing == "encrypted" else {"compressionClass": packing}
    header = Descriptor(version, segment_id, params).encode()
    seed = sections.id_crc(segment_id)
    file, plain, markers, logical = header, header, [], []
    for content in contents:
        block = encrypted(content, chunk=chunk, key=key) if packing == "encrypted" else COMPRESSORS[packing.rsplit(".", 1)[-1]](content)
        markers.append(len(file))
        logical.append(len(plain))
        file += sections.encode_marker(seed, len(file), len(file) + 12 + len(block)) + struct.pack(">I", len(content)) + block
        plain += sections.encode_marker(seed, len(plain), len(plain) + 8 + len(content)) + content
    return Packed(file, plain, markers, logical)


def repack(plain: bytes, packing: str, *, key: bytes = KEY, alias: str = ALIAS) -> bytes:
    """A plain segment's sections, packed."""
    descriptor, pos = parse(plain)
    seed, contents = sections.id_crc(descriptor.id), []
    while sections.is_marker(plain, len(plain), seed, pos):
        end, _ = sections.parse_marker(plain, pos)
        contents.append(plain[pos + 8 : end])
        pos = end
    return pack(contents, packing, version=descriptor.version, segment_id=descriptor.id, chunk=65_536, key=key, alias=alias).file


def small_packed(packing: str, *, version: int = 7) -> Packed:
    """Three sections of two frames, with an empty section between them and one at the end, as a node writes
    it."""
    bodies = [encode_mutation(insert(i, "some text " * 4) if i % 2 else delete_range(i), SCHEMA) for i in range(6)]
    entries = [frames.encode_frame(body) for body in bodies]
    return pack([entries[0] + entries[1], b"", entries[2] + entries[3], entries[4] + entries[5], b""], packing, version=version)
