"""Many frames of one segment as one quarantine record: the mutations of an unknown or rejected table in
sequence.

    u32 big-endian   bytes of the mutation
    …                the mutation
    and so on

A hot table may have a million such frames in a batch. One object per frame would take hours to upload, and
one problem per frame would inflate ledger and seal. So the frames of such a table in a segment are kept
together, at most `LARGEST` bytes per record.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

LARGEST: Final = 4 << 20
"""Maximum bytes of a record with more than one frame."""
NAMED: Final = 100
"""Maximum number of frames per kind of problem and table, in a segment and in a batch, that are separate
records.
"""
MOST_TABLES: Final = 10_000
"""Maximum number of tables in one segment. Each is an entry in the accounting, and a forged file may name a
million.
"""
BROUGHT: Final = 4 << 10
"""Maximum bytes of a frame or damaged range that goes through Spark to the driver; workers upload longer
ones.
"""
_LENGTH: Final = struct.Struct(">I")


def pack(bodies: Iterable[bytes]) -> bytes:
    """The mutations as one record."""
    return b"".join(part for body in bodies for part in (_LENGTH.pack(len(body)), body))


def unpack(data: bytes) -> Iterator[bytes]:
    """Inverse of `pack`. ValueError if the record is truncated."""
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError("the record is truncated")
        start = at + _LENGTH.size
        at = start + int(_LENGTH.unpack_from(data, at)[0])
        if at > len(data):
            raise ValueError("the record is truncated")
        yield data[start:at]


def runs(sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The frames that go into one record, by size: [start, end) of each record."""
    start = end = total = 0
    for end, size in enumerate(sizes, 1):
        if total and total + size > LARGEST:
            yield start, end - 1
            start, total = end - 1, 0
        total += size + _LENGTH.size
    if end > start:
        yield start, end


def places(positions: Iterable[int]) -> bytes:
    """Ascending frame positions as compressed differences, about two bytes per frame."""
    distances, before = array("q"), 0
    for position in positions:
        distances.append(position - before)
        before = position
    return zlib.compress(distances.tobytes(), 1)


def placed(data: bytes) -> list[int]:
    """Inverse of `places`, on a machine of the same byte order."""
    distances, position, found = array("q", zlib.decompress(data)), 0, []
    for distance in distances:
        position += distance
        found.append(position)
    return found


def message(messages: Iterable[str]) -> str:
    """Why frames of one record cannot be used: the first message. The messages usually differ only in the
    position."""
    reasons = list(dict.fromkeys(messages))
    return reasons[0] if len(reasons) == 1 else f"{reasons[0]} (the first of {len(reasons)} messages)"
