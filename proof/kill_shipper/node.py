"""A node as the shipper sees it: segments that grow in a commit log folder, hard-linked into cdc_raw (Cassandra 4.0 and later).

Strategy: recorded mutations are laid into segments of the node's own ids, so that each is a whole and valid one; a segment is preallocated
and linked first, then written section by section with its idx rewritten in place, then completed. Files are held open as long as the
node lives. A crash leaves a part of a section behind; a restart replays: it links what has an idx anew and completes it with the file's
length, or leaves it as an orphan. Steps are taken by the caller; everything follows from the seed.
"""

from __future__ import annotations

import os
import random
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
    """A segment that the node writes to. `whole` is what it will be, `ends` where its sections do."""

    number: int
    file: BinaryIO
    whole: bytes
    ends: list[int]
    written: int = 0


@dataclass
class Written:
    """A segment that the node will write no more of: its bytes, its file in the commit log folder, whether its idx says completed."""

    number: int
    data: bytes
    log: Path
    completed: bool


@dataclass
class Node:
    """Writes below `folder`: commitlog and cdc_raw. `mutations` are bodies of frames, used over and over."""

    folder: Path
    mutations: Sequence[bytes]
    chance: random.Random
    written: dict[int, Written] = field(default_factory=dict)
    growing: list[Growing] = field(default_factory=list)
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
        """Something that a node does next."""
        if self.chance.random() < 0.02:
            self.crash_and_restart()
        elif len(self.growing) < 2:
            self._prepare()
        else:
            self._grow(self.growing[0])
        if self.chance.random() < 0.3:
            self._discard_one()

    def synced(self, number: int) -> bytes:
        """What the node has synced of a segment, or all of one that it will write no more of."""
        if number in self.written:
            return self.written[number].data
        return next((segment.whole[: segment.written] for segment in self.growing if segment.number == number), b"")

    def crash_and_restart(self) -> None:
        """All that is open is left as it is; the replay completes what has an idx, or leaves it as it is where it need not be replayed."""
        self.crashes += 1
        for segment in self.growing:
            self._tear(segment)
            segment.file.close()
            raw, idx = self._raw(segment.number), self._idx(segment.number)
            if not idx.exists():
                # Deleted at the start: nothing of CDC was synced (CommitLogSegmentManagerCDC.handleReplayedSegment).
                raw.unlink()
                self._log(segment.number).unlink()
                continue
            data = raw.read_bytes()
            replayed = self.chance.random() < 0.5
            # Times tell the shipper how long it is left alone: let it be long ago.
            then = raw.stat().st_mtime - _AGO
            os.utime(raw, (then, then))
            if replayed:
                idx.write_bytes(b"%d\nCOMPLETED" % len(data))
            self.orphans += not replayed
            self.written[segment.number] = Written(segment.number, data, self._log(segment.number), replayed)
        self.growing.clear()
        self._replay_again()

    def close_in_child(self) -> None:
        """A process that was forked holds no file of the node's."""
        for segment in self.growing:
            os.close(segment.file.fileno())

    def stop(self) -> None:
        """Shut down in order: what was written into is completed, what is merely prepared stays."""
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
        if segment.ends:
            self._write_idx(segment, completed=False)
            return
        self.growing.remove(segment)
        data = segment.whole + bytes(_PADDING)
        self.written[segment.number] = Written(segment.number, data, self._log(segment.number), True)
        self._write_idx(segment, completed=True)
        segment.file.close()

    def _tear(self, segment: Growing) -> None:
        """Frames that no sync marker covers."""
        if segment.ends and segment.written:
            more = segment.whole[segment.written + 8 : segment.ends[0]]
            segment.file.seek(segment.written + 8)
            segment.file.write(more[: self.chance.randint(0, len(more))])

    def _write_idx(self, segment: Growing, *, completed: bool) -> None:
        """In place, as Cassandra does: it can be read empty, or cut."""
        with self._idx(segment.number).open("wb", buffering=0) as idx:
            idx.write(b"%d" % segment.written)
            if completed:
                idx.write(b"\nCOMPLETED")

    def _discard_one(self) -> None:
        """The commit log folder lets go of a segment whose memtables are flushed."""
        candidates = [item for item in self.written.values() if item.log.exists()]
        if len(candidates) > 3:
            self.chance.choice(candidates).log.unlink()

    def _replay_again(self) -> None:
        """Segments that are still in the commit log folder are replayed at a start: linked anew, whether they were shipped or not."""
        for item in self.written.values():
            if item.log.exists() and not self._raw(item.number).exists():
                # First the link, then the idx, as CommitLogReplayer.handleCDCReplayCompletion does.
                os.link(item.log, self._raw(item.number))
                self._idx(item.number).write_bytes(b"%d\nCOMPLETED" % len(item.data))

    def _log(self, number: int) -> Path:
        return self.commitlog / f"CommitLog-7-{number}.log"

    def _raw(self, number: int) -> Path:
        return self.cdc_raw / f"CommitLog-7-{number}.log"

    def _idx(self, number: int) -> Path:
        return self.cdc_raw / f"CommitLog-7-{number}_cdc.idx"
