"""Many frames of one segment as one piece of quarantine: the mutations of a table that is unknown or refused, one after the other.

    u32 big-endian   bytes of the mutation
    …                the mutation
    and so on

A hot table may have a million frames in a batch. Each as an object of its own would take hours to put, and each as a problem of its own
makes ledger and seal grow with them; so of a table that has many, those of a segment are kept together, `LARGEST` bytes at most in a piece.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

LARGEST: Final = 4 << 20
"""Bytes of a piece that holds more than one frame."""
NAMED: Final = 100
"""Frames of a kind of problem and a table that are pieces of their own: of a segment where there are more, and of a batch."""
MOST_TABLES: Final = 10_000
"""Tables that one segment may have frames of. Each is an entry in what its batch counts; a file that somebody has made up
can name a million."""
BROUGHT: Final = 4 << 10
"""Bytes of a frame, or of a damaged range, that go through Spark to the driver. Longer ones are put by workers."""
_LENGTH: Final = struct.Struct(">I")


def pack(bodies: Iterable[bytes]) -> bytes:
    """The mutations as one piece."""
    return b"".join(part for body in bodies for part in (_LENGTH.pack(len(body)), body))


def unpack(data: bytes) -> Iterator[bytes]:
    """Inverse of `pack`. ValueError if the piece is cut short."""
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError("it is cut short")
        start = at + _LENGTH.size
        at = start + int(_LENGTH.unpack_from(data, at)[0])
        if at > len(data):
            raise ValueError("it is cut short")
        yield data[start:at]


def runs(sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Which frames of these sizes go into one piece: [start, end) of each."""
    start = end = total = 0
    for end, size in enumerate(sizes, 1):
        if total and total + size > LARGEST:
            yield start, end - 1
            start, total = end - 1, 0
        total += size + _LENGTH.size
    if end > start:
        yield start, end


def places(positions: Iterable[int]) -> bytes:
    """Positions of frames, ascending, in little room: their distances, compressed. Two bytes a frame or so."""
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
    """Why frames that are kept together cannot be used: what is said of the first of them. Where in a frame differs mostly."""
    reasons = list(dict.fromkeys(messages))
    return reasons[0] if len(reasons) == 1 else f"{reasons[0]} (the first of {len(reasons)} messages)"
