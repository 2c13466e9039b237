"""Sections of a segment (Cassandra 3.0-5.0, db/commitlog/CommitLogSegment.writeSyncMarker, CommitLogSegmentReader).

A segment is a chain of sections; each begins with a sync marker at position P:

    u32   next    where the next marker is = where this section ends
    u32   CRC-32 of: low half of the segment id, high half of it, P as i32

The CRC binds a marker to its segment and place but does not cover `next`. So a valid marker can be found again by its own CRC when the
chain is broken, and `next` is believed only as far as what stands there bears it out. Zeros instead of a marker end the chain: the file
is preallocated. This module knows nothing of what is inside a section:
frames in a plain segment, packed bytes in a compressed or encrypted one (`writetime.cassandra.commitlog.unpack`).
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
    """Between two sections: where that is in the file, and where in the unpacked segment. Of a plain one both are the same."""

    position: int
    logical: int


def id_crc(segment_id: int) -> int:
    """CRC over the segment id, low half first: what every marker's CRC of that segment begins with."""
    return zlib.crc32(struct.pack(">II", segment_id & 0xFFFFFFFF, (segment_id >> 32) & 0xFFFFFFFF))


def marker_crc(seed: int, pos: int) -> int:
    """The CRC of a marker at `pos`; `seed` is `id_crc` of the segment."""
    return zlib.crc32(pos.to_bytes(4, "big"), seed)


def parse_marker(buf: bytes, pos: int) -> tuple[int, int]:
    """(next, crc) of the marker at `pos`, unchecked. The caller has made sure that eight bytes are there."""
    next_pos, crc = _MARKER.unpack_from(buf, pos)
    return next_pos, crc


def encode_marker(seed: int, pos: int, next_pos: int) -> bytes:
    return _MARKER.pack(next_pos, marker_crc(seed, pos))


def is_marker(buf: bytes, length: int, seed: int, pos: int) -> bool:
    """Whether a sync marker of this segment stands at `pos` and points to somewhere behind itself within `length`."""
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
    """The byte that any pointer into the file begins with: few places of a packed file need a closer look."""
    return re.compile(b"[\\x00-\\x%02x]" % min(most, 0xFF), re.DOTALL)
