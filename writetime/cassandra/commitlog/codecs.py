"""Cassandra's compressors of a commit log section, the other way round (Cassandra 3.0-5.0, io/compress).

    LZ4Compressor      i32 little-endian length, then one raw LZ4 block
    SnappyCompressor   a raw Snappy block: a varint length, then its elements
    DeflateCompressor  a zlib stream, with its Adler-32
    ZstdCompressor     a Zstandard frame, with its checksum (4.0 and later)
    NoopCompressor     the bytes as they are (4.0 and later)

Strategy: a block says its own length; that is checked against what its codec can make of so few bytes at most before anything is
allocated, and what comes out must have exactly that length and use up the block. pyarrow does the work, imported when a packed segment is
read; of LZ4 and Snappy it does not tell how much it has written, so that is made sure of here. Knows nothing of sections.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

from writetime.errors import CorruptSection, UnsupportedSegment

Unpack = Callable[[bytes, int], bytes]
"""(block, bytes that there is room for) -> content. Raises CorruptSection, or UnsupportedSegment where only room is lacking."""

HOW_TO_RAISE: Final = "Set WRITETIME_IMAGE_LIMIT_MIB higher, where the segment is read, if such segments are meant"

_EXPANSION: Final = {"LZ4Compressor": 255, "SnappyCompressor": 22, "DeflateCompressor": 1032, "ZstdCompressor": 32768, "NoopCompressor": 1}
"""Bytes that one byte of a block can stand for at most: an LZ4 length byte adds 255, three bytes of Snappy copy 64, Deflate's shortest
code for 258 bytes takes two bits, and four bytes of Zstandard repeat one 131072 times."""
_SMALL: Final = 64
"""Room for a block's fixed parts, so that very short blocks are not judged by the ratio."""


def unpacker(codec: str) -> Unpack | None:
    """The function for a compressor's bare class name, or None if it is not known."""
    return _UNPACKERS.get(codec)


def most_of(codec: str, size: int) -> int:
    """Upper bound of what a block of `size` bytes can hold."""
    return _EXPANSION[codec] * size + (0 if codec == "NoopCompressor" else _SMALL)


def unpack_lz4(block: bytes, most: int) -> bytes:
    if len(block) < 4:
        raise CorruptSection(f"an LZ4 block of {len(block)} bytes has no room for its length")
    (size,) = struct.unpack_from("<i", block)
    _check_size("LZ4Compressor", size, block, most)
    codec, packed = _arrow_codec("lz4_raw"), memoryview(block)[4:]
    content = _decompress(codec, packed, size, "LZ4")
    # The codec fills what it can and does not say how much that was: only if one byte less is too little was it all.
    if size and _fits(codec, packed, size - 1):
        raise CorruptSection(f"the LZ4 block holds less than the {size} bytes it claims")
    return content


def pack_lz4(content: bytes) -> bytes:
    """Inverse of `unpack_lz4`."""
    return struct.pack("<i", len(content)) + bytes(_arrow_codec("lz4_raw").compress(content, asbytes=True))


def unpack_snappy(block: bytes, most: int) -> bytes:
    size = _snappy_size(block)
    _check_size("SnappyCompressor", size, block, most)
    # Snappy itself holds a block to its length.
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
        raise CorruptSection("the Deflate stream does not end where its section does")
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
        raise CorruptSection(f"{codec}: {len(block)} bytes cannot hold the {size} they claim")
    if size > most:
        raise _too_large(str(size), most)


def _too_large(size: str, most: int) -> UnsupportedSegment:
    return UnsupportedSegment(f"it unpacks to {size} bytes, and there is room for {most}", retriable=True, hint=HOW_TO_RAISE)


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
    """The varint of 32 bits, seven a byte and the lowest first, that a Snappy block begins with."""
    size = 0
    for i, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return size
    raise CorruptSection("the Snappy block does not begin with a length")


def _zstd_size(block: bytes) -> int:
    """Content size in a Zstandard frame's header (RFC 8878, 3.1.1.1); Cassandra's writer always gives it."""
    if len(block) < 5 or block[:4] != b"\x28\xb5\x2f\xfd":
        raise CorruptSection("no Zstandard frame")
    single_segment, size_flag = block[4] >> 5 & 1, block[4] >> 6
    width = (single_segment, 2, 4, 8)[size_flag]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[block[4] & 3]
    if not width or len(block) < start + width:
        raise CorruptSection("the Zstandard frame does not say its length")
    return int.from_bytes(block[start : start + width], "little") + (256 if width == 2 else 0)
