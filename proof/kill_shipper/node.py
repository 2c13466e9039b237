"""A simulated node: segments that grow in a commit log folder, hard-linked into cdc_raw (Cassandra 4.0 and
later).

Strategy: recorded mutations are encoded into valid segments with the node's own ids. A segment is
preallocated and linked, then written section by section with its idx rewritten in place, then completed.
Files stay open while the node runs. A crash leaves an incomplete section; a restart replays: it links
segments with an idx again and completes them with the file's length, or leaves them as orphans. The caller
triggers each step; everything depends on the seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from writetime.cassandra.commitlog.encode import encode_segment

FIRST_ID = 1_700_000_000_000
_PADDING = 4096
_AGO = 3600.0


@dataclass
class Growing:
    """A growing segment. `whole` is its final content, `ends` the ends of its sections."""

    number: int
    file: BinaryIO
    whole: bytes
    ends: list[int]
    written: int = 0


@dataclass
class Written:
    """A segment that the node no longer writes to: its bytes, its file in the commit log folder, whether its
    idx says completed.
    """

    number: int
    data: bytes
    log: Path
    completed: bool


@dataclass
class Node:
    """Writes below `folder`: commitlog and cdc_raw. `mutations` are bodies of frames, reused repeatedly. `ahead`: by how many
    seconds its clock is ahead of the machine's, by which files are stamped."""

    folder: Path
    mutations: Sequence[bytes]
    chance: random.Random
    written: dict[int, Written] = field(default_factory=dict)
    growing: list[Growing] = field(default_factory=list)
    ahead: float = 0.0
    crashes: int = 0
    orphans: int = 0
    _next: int = FIRST_ID

    def __post_init__(self) -> None:
        for folder in (self.cdc_raw, self.commitlog):
            folder.mkdir(parents=True)

    @property
    def cdc_raw(self) -> Path:
        return self.folder / "cdc_raw"

    @property
    def commitlog(self) -> Path:
        return self.folder / "commitlog"

    def step(self) -> None:
        """Do one random action of a node."""
        if self.chance.random() < 0.02:
            self.crash_and_restart()
        elif len(self.growing) < 2:
            self._prepare()
        else:
            self._grow(self.growing[0])
        if self.chance.random() < 0.3:
            self._discard_one()

    def synced(self, number: int) -> bytes:
        """The synced bytes of a segment, or all bytes if it no longer grows."""
        if number in self.written:
            return self.written[number].data
        return next((segment.whole[: segment.written] for segment in self.growing if segment.number == number), b"")

    def crash_and_restart(self) -> None:
        """Leave open segments as they are; the replay completes segments with an idx, unless they need no
        replay.
        """
        self.crashes += 1
        for segment in self.growing:
            self._tear(segment)
            segment.file.close()
            raw, idx = self._raw(segment.number), self._idx(segment.number)
            if not idx.exists():
                # Deleted at the start: no CDC write was synced
                # (CommitLogSegmentManagerCDC.handleReplayedSegment).
                raw.unlink()
                self._log(segment.number).unlink()
                continue
            data = raw.read_bytes()
            replayed = self.chance.random() < 0.5
            # The shipper waits by file times: set them to long ago.
            then = raw.stat().st_mtime - _AGO
            os.utime(raw, (then, then))
            if replayed:
                idx.write_bytes(b"%d\nCOMPLETED" % len(data))
            self.orphans += not replayed
            self.written[segment.number] = Written(segment.number, data, self._log(segment.number), replayed)
        self.growing.clear()
        self._replay_again()

    def close_in_child(self) -> None:
        """Close the node's files in a forked process."""
        for segment in self.growing:
            os.close(segment.file.fileno())

    def stop(self) -> None:
        """Clean shutdown: segments with data are completed, preallocated ones stay."""
        for segment in self.growing:
            if segment.written:
                segment.file.close()
                data = self._raw(segment.number).read_bytes()
                self._write_idx(segment, completed=True)
                self.written[segment.number] = Written(segment.number, data, self._log(segment.number), True)
            else:
                segment.file.close()
        self.growing.clear()

    def _prepare(self) -> None:
        number, self._next = self._next, self._next + 1
        count = self.chance.randint(5, 60)
        bodies = self.chance.choices(self.mutations, k=count)
        per_section = self.chance.randint(1, min(count, 6))
        whole = encode_segment(number, 7, bodies, per_section=per_section)
        ends = [
            len(encode_segment(number, 7, bodies[:stop], per_section=per_section))
            for stop in [*range(per_section, count, per_section), count]
        ]
        log = self._log(number)
        log.write_bytes(bytes(len(whole) + _PADDING))
        self._raw(number).hardlink_to(log)
        self.growing.append(Growing(number, log.open("r+b", buffering=0), whole, ends))

    def _grow(self, segment: Growing) -> None:
        """Sync one more section; the last one completes the segment."""
        stop = segment.ends.pop(0)
        segment.file.seek(segment.written)
        segment.file.write(segment.whole[segment.written : stop])
        segment.written = stop
        if self.ahead:
            now = time.time() + self.ahead
            os.utime(self._raw(segment.number), (now, now))
        if segment.ends:
            self._write_idx(segment, completed=False)
            return
        self.growing.remove(segment)
        data = segment.whole + bytes(_PADDING)
        self.written[segment.number] = Written(segment.number, data, self._log(segment.number), True)
        self._write_idx(segment, completed=True)
        segment.file.close()

    def _tear(self, segment: Growing) -> None:
        """Write frames without a sync marker."""
        if segment.ends and segment.written:
            more = segment.whole[segment.written + 8 : segment.ends[0]]
            segment.file.seek(segment.written + 8)
            segment.file.write(more[: self.chance.randint(0, len(more))])

    def _write_idx(self, segment: Growing, *, completed: bool) -> None:
        """Write in place, as Cassandra does: a reader may see it empty or truncated."""
        with self._idx(segment.number).open("wb", buffering=0) as idx:
            idx.write(b"%d" % segment.written)
            if completed:
                idx.write(b"\nCOMPLETED")

    def _discard_one(self) -> None:
        """Delete a segment whose memtables are flushed from the commit log folder."""
        candidates = [item for item in self.written.values() if item.log.exists()]
        if len(candidates) > 3:
            self.chance.choice(candidates).log.unlink()

    def _replay_again(self) -> None:
        """Segments in the commit log folder are replayed at a start: linked again, whether they were shipped
        or not.
        """
        for item in self.written.values():
            if item.log.exists() and not self._raw(item.number).exists():
                # The link first, then the idx, as in CommitLogReplayer.handleCDCReplayCompletion.
                os.link(item.log, self._raw(item.number))
                self._idx(item.number).write_bytes(b"%d\nCOMPLETED" % len(item.data))

    def _log(self, number: int) -> Path:
        return self.commitlog / f"CommitLog-7-{number}.log"

    def _raw(self, number: int) -> Path:
        return self.cdc_raw / f"CommitLog-7-{number}.log"

    def _idx(self, number: int) -> Path:
        return self.cdc_raw / f"CommitLog-7-{number}_cdc.idx"
