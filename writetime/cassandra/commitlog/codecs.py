"""Decompression of commit log sections (Cassandra 3.0-5.0, io/compress).

    LZ4Compressor      i32 little-endian length, then one raw LZ4 block
    SnappyCompressor   a raw Snappy block: a varint length, then its elements
    DeflateCompressor  a zlib stream, with its Adler-32
    ZstdCompressor     a Zstandard frame, with its checksum (4.0 and later)
    NoopCompressor     the bytes as they are (4.0 and later)

Strategy: a block declares its length. Before anything is allocated, the length is checked against the codec's
maximum expansion; the output must have exactly that length and consume the whole block. pyarrow decompresses
and is imported only when a packed segment is read. It does not report how many bytes LZ4 wrote, so that is
checked here. This module does not know sections.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

from writetime.errors import CorruptSection, UnsupportedSegment

Unpack = Callable[[bytes, int], bytes]
"""(block, limit in bytes) -> content. Raises CorruptSection, or UnsupportedSegment if only the limit is
exceeded."""

HOW_TO_RAISE: Final = "Raise WRITETIME_IMAGE_LIMIT_MIB where segments are read, if segments of this size are expected"

_EXPANSION: Final = {"LZ4Compressor": 255, "SnappyCompressor": 22, "DeflateCompressor": 1032, "ZstdCompressor": 32768, "NoopCompressor": 1}
"""Maximum expansion per byte of a block: an LZ4 length byte adds 255, three bytes of Snappy copy 64,
Deflate's shortest code for 258 bytes takes two bits, and four bytes of Zstandard repeat one 131072 times."""
_SMALL: Final = 64
"""Allowance for a block's fixed parts, so that the ratio does not reject very short blocks."""


def unpacker(codec: str) -> Unpack | None:
    """The function for a compressor's simple class name, or None if it is not supported."""
    return _UNPACKERS.get(codec)


def most_of(codec: str, size: int) -> int:
    """Upper bound of what a block of `size` bytes can hold."""
    return _EXPANSION[codec] * size + (0 if codec == "NoopCompressor" else _SMALL)


def unpack_lz4(block: bytes, most: int) -> bytes:
    if len(block) < 4:
        raise CorruptSection(f"the LZ4 block of {len(block)} bytes is too short for its length field")
    (size,) = struct.unpack_from("<i", block)
    _check_size("LZ4Compressor", size, block, most)
    codec, packed = _arrow_codec("lz4_raw"), memoryview(block)[4:]
    content = _decompress(codec, packed, size, "LZ4")
    # pyarrow does not report how much it wrote: the block holds `size` bytes only if one byte less does not
    # fit.
    if size and _fits(codec, packed, size - 1):
        raise CorruptSection(f"the LZ4 block holds less than the {size} bytes that it declares")
    return content


def pack_lz4(content: bytes) -> bytes:
    """Inverse of `unpack_lz4`."""
    return struct.pack("<i", len(content)) + bytes(_arrow_codec("lz4_raw").compress(content, asbytes=True))


def unpack_snappy(block: bytes, most: int) -> bytes:
    size = _snappy_size(block)
    _check_size("SnappyCompressor", size, block, most)
    # Snappy itself checks the length.
    return _decompress(_arrow_codec("snappy"), block, size, "Snappy")


def unpack_deflate(block: bytes, most: int) -> bytes:
    if not block:
        return b""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(block, most + 1)
    except zlib.error as error:
        raise CorruptSection(f"Deflate: {error}") from error
    if len(content) > most:
        raise _too_large(f"more than {most}", most)
    if not stream.eof or stream.unused_data:
        raise CorruptSection("the Deflate stream does not end with its section")
    return content


def unpack_zstd(block: bytes, most: int) -> bytes:
    if not block:
        return b""
    size = _zstd_size(block)
    _check_size("ZstdCompressor", size, block, most)
    return _decompress(_arrow_codec("zstd"), block, size, "Zstandard")


def unpack_noop(block: bytes, most: int) -> bytes:
    _check_size("NoopCompressor", len(block), block, most)
    return bytes(block)


_UNPACKERS: Final[dict[str, Unpack]] = {
    "LZ4Compressor": unpack_lz4,
    "SnappyCompressor": unpack_snappy,
    "DeflateCompressor": unpack_deflate,
    "ZstdCompressor": unpack_zstd,
    "NoopCompressor": unpack_noop,
}


def _check_size(codec: str, size: int, block: bytes, most: int) -> None:
    if not 0 <= size <= most_of(codec, len(block)):
        raise CorruptSection(f"{codec}: a block of {len(block)} bytes cannot hold the declared {size} bytes")
    if size > most:
        raise _too_large(str(size), most)


def _too_large(size: str, most: int) -> UnsupportedSegment:
    return UnsupportedSegment(f"the section unpacks to {size} bytes, but the limit leaves {most}", retriable=True, hint=HOW_TO_RAISE)


def _arrow_codec(name: str) -> Any:
    import pyarrow as pa

    return pa.Codec(name)


def _decompress(codec: Any, block: bytes | memoryview, size: int, name: str) -> bytes:
    try:
        content: bytes = codec.decompress(block, size, asbytes=True)
    except (OSError, ValueError) as error:
        raise CorruptSection(f"{name}: {error}") from error
    return content


def _fits(codec: Any, block: bytes | memoryview, size: int) -> bool:
    try:
        codec.decompress(block, size)
    except (OSError, ValueError):
        return False
    return True


def _snappy_size(block: bytes) -> int:
    """The 32-bit varint at the start of a Snappy block: seven bits per byte, lowest first."""
    size = 0
    for i, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return size
    raise CorruptSection("the Snappy block does not begin with a length")


def _zstd_size(block: bytes) -> int:
    """Content size in a Zstandard frame's header (RFC 8878, 3.1.1.1); Cassandra always writes it."""
    if len(block) < 5 or block[:4] != b"\x28\xb5\x2f\xfd":
        raise CorruptSection("the block is not a Zstandard frame")
    single_segment, size_flag = block[4] >> 5 & 1, block[4] >> 6
    width = (single_segment, 2, 4, 8)[size_flag]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[block[4] & 3]
    if not width or len(block) < start + width:
        raise CorruptSection("the Zstandard frame does not declare its content size")
    return int.from_bytes(block[start : start + width], "little") + (256 if width == 2 else 0)
