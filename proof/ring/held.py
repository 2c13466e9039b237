"""Segments that a batch cannot use whole: damaged in the bucket, held, and let in whole or released later.

Each marked value stands in one frame of each replica's log. Two kinds of damage:

* `flip`: a byte differs, so that the frame's CRC is wrong. Nobody can say of which table the frame was: all tables' logs are kept;
* `garble`: the frame is whole, and what it says of its table and key as well, but not the rest. Only that table's logs are kept.

Knows bytes of segments; no ring, no store.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

from writetime.cassandra.commitlog.segment import Frame, peek, scan

Damage = Callable[[bytes, Frame], bytes]


def damaged(data: bytes, marker: bytes, how: Damage) -> bytes | None:
    """The segment with every frame that contains the marker damaged; None if there is none. Of segments that are plain files."""
    found = scan(data)
    frames = [frame for frame in found.frames if marker in found.body(frame)]
    for frame in frames:
        data = how(data, frame)
    return data if frames else None


def flip(data: bytes, frame: Frame) -> bytes:
    """A byte in the middle of the body is another one."""
    at = frame.body_offset + frame.body_length // 2
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def garble(data: bytes, frame: Frame) -> bytes:
    """All that follows the key is 0xFF, and the CRC is right."""
    start, end = frame.body_offset, frame.body_offset + frame.body_length
    body = data[start:end]
    _, _, key = peek(body)
    # Behind the number of updates and the table.
    kept = body.index(key, 18) + len(key)
    body = body[:kept] + b"\xff" * (len(body) - kept)
    size_crc = zlib.crc32(data[start - 8 : start - 4])
    return data[:start] + body + struct.pack(">I", zlib.crc32(body, size_crc)) + data[end + 4 :]
