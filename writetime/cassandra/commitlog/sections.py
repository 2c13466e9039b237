"""Sections of a segment (Cassandra 3.0-5.0, db/commitlog/CommitLogSegment.writeSyncMarker,
CommitLogSegmentReader).

A segment is a chain of sections; each begins with a sync marker at position P:

    u32   next    position of the next marker, which is the end of this section
    u32   CRC-32 of: low half of the segment id, high half of it, P as i32

The CRC covers the segment id and the position, but not `next`. If the chain is broken, a valid marker can be
found by its CRC, and `next` is trusted only if the bytes at that position confirm it. Zeros instead of a
marker end the chain, because the file is preallocated. This module does not know the contents of a section:
frames in a plain segment, packed bytes in a compressed or encrypted one
(`writetime.cassandra.commitlog.unpack`).
"""

from __future__ import annotations

import re
import struct
import zlib
from functools import cache
from typing import Final, NamedTuple

MARKER_SIZE: Final = 8
_MARKER = struct.Struct(">II")


class Place(NamedTuple):
    """A position between two sections: in the file and in the unpacked segment. For a plain segment both are
    equal."""

    position: int
    logical: int


def id_crc(segment_id: int) -> int:
    """CRC over the segment id, low half first: the seed of every marker's CRC in that segment."""
    return zlib.crc32(struct.pack(">II", segment_id & 0xFFFFFFFF, (segment_id >> 32) & 0xFFFFFFFF))


def marker_crc(seed: int, pos: int) -> int:
    """The CRC of a marker at `pos`; `seed` is `id_crc` of the segment."""
    return zlib.crc32(pos.to_bytes(4, "big"), seed)


def parse_marker(buf: bytes, pos: int) -> tuple[int, int]:
    """(next, crc) of the marker at `pos`, unchecked. The caller ensures that eight bytes are available."""
    next_pos, crc = _MARKER.unpack_from(buf, pos)
    return next_pos, crc


def encode_marker(seed: int, pos: int, next_pos: int) -> bytes:
    return _MARKER.pack(next_pos, marker_crc(seed, pos))


def is_marker(buf: bytes, length: int, seed: int, pos: int) -> bool:
    """Whether `pos` holds a sync marker of this segment that points to a later position within `length`."""
    if pos > length - MARKER_SIZE:
        return False
    next_pos, crc = parse_marker(buf, pos)
    return pos + MARKER_SIZE <= next_pos <= length and crc == marker_crc(seed, pos)


def find_marker(buf: bytes, start: int, data_end: int, length: int, seed: int) -> int:
    """Position of the first sync marker at or after `start` and before `data_end`, or -1."""
    for match in _high_byte(length >> 24).finditer(buf, start, max(start, min(data_end, length - MARKER_SIZE + 1))):
        if is_marker(buf, length, seed, match.start()):
            return match.start()
    return -1


@cache
def _high_byte(most: int) -> re.Pattern[bytes]:
    """Matches the first byte of any pointer into the file, so that few positions of a packed file need a CRC
    check."""
    return re.compile(b"[\\x00-\\x%02x]" % min(most, 0xFF), re.DOTALL)
