"""Damages segments in the bucket so that batches hold them; they are repaired or released later.

Each marked value is in one frame of each replica's log. Two kinds of damage:

* `flip`: one byte is changed, so the frame's CRC is wrong. Its table is unknown: the logs of all tables are retained;
* `garble`: the CRC is valid, and so are table and key, but not the rest. Only that table's logs are retained.

Knows the bytes of segments; no cluster, no store.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

from writetime.cassandra.commitlog.descriptor import parse
from writetime.cassandra.commitlog.mutation import read_head
from writetime.cassandra.commitlog.segment import Frame, scan

Damage = Callable[[bytes, Frame], bytes]


def damaged(data: bytes, marker: bytes, how: Damage) -> bytes | None:
    """The segment with every frame that contains the marker damaged; None if there is none. For uncompressed
    segments.
    """
    found = scan(data)
    frames = [frame for frame in found.frames if marker in found.body(frame)]
    for frame in frames:
        data = how(data, frame)
    return data if frames else None


def flip(data: bytes, frame: Frame) -> bytes:
    """Change one byte in the middle of the body."""
    at = frame.body_offset + frame.body_length // 2
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def garble(data: bytes, frame: Frame) -> bytes:
    """Replace everything after the key by 0xFF, with a valid CRC."""
    start, end = frame.body_offset, frame.body_offset + frame.body_length
    body, version = data[start:end], parse(data)[0].version
    head = read_head(body, version=version)
    kept = head.key_offset + head.key_length
    body = body[:kept] + b"\xff" * (len(body) - kept)
    size_crc = zlib.crc32(data[start - 8 : start - 4])
    return data[:start] + body + struct.pack(">I", zlib.crc32(body, size_crc)) + data[end + 4 :]
