"""Frames: the entries of a section (Cassandra 3.0-5.0, db/commitlog/CommitLog.add,
CommitLogReader.readSection).

    i32   size of the body
    u32   CRC-32 of the four size bytes
    ...   body (one mutation)
    u32   CRC-32 of size bytes and body

A size of 0 is zero fill and ends the frames of the section. If the CRC of the size is wrong, the start of the
next frame is unknown and the rest of the section is lost. If only the second CRC is wrong, the next frame can
be read.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

OVERHEAD: Final = 12
SIZE_BYTES: Final = 4
BODY_OFFSET: Final = 8
SMALLEST_BODY: Final = 10
"""The shortest mutation (Cassandra: CommitLogReader rejects smaller sizes)."""

_U32 = struct.Struct(">I")


class FrameCheck(IntEnum):
    """Result of `check_frame`: a frame, the end of the section's frames, or damage."""

    OK = 0
    END = 1
    BAD_SIZE = 2
    OVERRUN = 3
    BAD_BODY = 4


def check_frame(buf: bytes, pos: int, end: int) -> tuple[FrameCheck, int]:
    """Check the frame at `pos` of a section that ends at `end`. The size of the body is known for OK,
    OVERRUN, BAD_BODY."""
    if end - pos < SIZE_BYTES:
        return FrameCheck.END, 0
    (size,) = _U32.unpack_from(buf, pos)
    if size == 0:
        return (FrameCheck.END if is_zero(buf, pos, end) else FrameCheck.BAD_SIZE), 0
    if end - pos < BODY_OFFSET:
        return FrameCheck.OVERRUN, size
    if not SMALLEST_BODY <= size < 1 << 31 or _U32.unpack_from(buf, pos + SIZE_BYTES)[0] != zlib.crc32(buf[pos : pos + SIZE_BYTES]):
        return FrameCheck.BAD_SIZE, 0
    if end - pos < size + OVERHEAD:
        return FrameCheck.OVERRUN, size
    body_end = pos + BODY_OFFSET + size
    crc = zlib.crc32(memoryview(buf)[pos + BODY_OFFSET : body_end], zlib.crc32(buf[pos : pos + SIZE_BYTES]))
    return (FrameCheck.OK if _U32.unpack_from(buf, body_end)[0] == crc else FrameCheck.BAD_BODY), size


def is_zero(buf: bytes, start: int, end: int) -> bool:
    """Whether buf[start:end] is all zeros. Stops soon after the first other byte, because it is called
    often."""
    step = 64
    while start < end:
        if buf[start : min(start + step, end)].strip(b"\0"):
            return False
        start, step = start + step, 2 * step
    return True


def encode_frame(body: bytes) -> bytes:
    size = _U32.pack(len(body))
    size_crc = zlib.crc32(size)
    return b"".join((size, _U32.pack(size_crc), body, _U32.pack(zlib.crc32(body, size_crc))))
