"""Damage to real segments, as disks and hands do it, for tests of what happens then."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from writetime.cassandra.commitlog.segment import peek, scan
from writetime.cassandra.schema.system_tables import TABLES


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file as it is now, the one byte that was changed, and what it was."""

    path: Path
    position: int
    bytes: bytes
    original: bytes


def flip_a_byte_of_a_captured_frame(folder: Path) -> Damaged:
    """Flip a byte in the middle of a frame of a user's table, in the folder's fullest segment. The file's
    times stay."""
    path = max(folder.glob("CommitLog-*.log"), key=lambda log: len(user_frames(log.read_bytes())))
    original = path.read_bytes()
    frame = user_frames(original)[-1]
    position = frame[0] + frame[1] // 2
    changed = bytearray(original)
    changed[position] ^= 0x10
    rewrite(path, bytes(changed))
    return Damaged(path, position, bytes(changed), original)


def user_frames(buffer: bytes) -> list[tuple[int, int]]:
    """(offset, length) of the bodies of all frames of one update that is not to one of Cassandra's own
    tables."""
    found = scan(buffer)
    bodies = ((f.body_offset, f.body_length) for f in found.frames)
    peeked = ((offset, length, *peek(buffer[offset : offset + length], version=found.descriptor.version)) for offset, length in bodies)
    return [(offset, length) for offset, length, count, table_id, _ in peeked if count == 1 and table_id not in TABLES]


def rewrite(path: Path, data: bytes) -> None:
    """Other bytes, the same times: as far as anybody can see from outside, the node wrote them."""
    times = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
