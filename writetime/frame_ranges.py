"""Many frames of one segment as one piece of quarantine: the mutations of a table that is unknown or refused, one after the other.

    u32 big-endian   bytes of the mutation
    …                the mutation
    and so on

A hot table may have a million frames in a batch. Each as an object of its own would take hours to put, and each as a problem of its own
makes ledger and seal grow with them; so of a table that has many, those of a segment are kept together, `LARGEST` bytes at most in a piece.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

LARGEST: Final = 4 << 20
"""Bytes of a piece that holds more than one frame."""
NAMED: Final = 100
"""Frames of a kind of problem and a table that are pieces of their own: of a segment where there are more, and of a batch."""
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
