"""CRC32C (Castagnoli), the checksum of every object, of bytes and of files in bounded memory.

Values are unsigned 32-bit ints; Google Cloud Storage encodes them as base64 of four big-endian bytes. Must
not know a store.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

CHUNK = 1 << 20


def crc32c(data: bytes, crc: int = 0) -> int:
    """Checksum of `data`, continuing from `crc`."""
    return int(google_crc32c.extend(crc, data))


def chunks(source: BinaryIO) -> Iterator[bytes]:
    """The rest of an open file in chunks."""
    while chunk := source.read(CHUNK):
        yield chunk


def crc32c_of_stream(source: BinaryIO) -> tuple[int, int]:
    """Checksum and size in bytes of the rest of an open file."""
    crc = size = 0
    for chunk in chunks(source):
        crc, size = crc32c(chunk, crc), size + len(chunk)
    return crc, size


def crc32c_of(data: bytes | Path) -> tuple[int, int]:
    """Checksum and size in bytes of an argument of `Store.put`. OSError if a file cannot be read."""
    if isinstance(data, bytes):
        return crc32c(data), len(data)
    with data.open("rb", buffering=0) as source:
        return crc32c_of_stream(source)


def to_base64(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode("ascii")


def from_base64(text: str) -> int:
    """ValueError if the text is not a CRC32C."""
    value = base64.b64decode(text, validate=True)
    if len(value) != 4:
        raise ValueError(f"not a CRC32C: {text[:20]!r}")
    return int.from_bytes(value, "big")
