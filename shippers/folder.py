"""Classifies the files of a cdc_raw folder.

Strategy: `look` reads the folder; `classify` is a pure function of that listing.

From Cassandra 4.0 a segment is hard-linked into the folder when it is created, empty and at full size.
`<segment>_cdc.idx` appears at the first sync after a CDC write and contains the synced offset in decimal;
when the segment is closed, the word COMPLETED follows on a second line (CommitLogSegment.writeCDCIndexFile).
It is rewritten in place, so an empty or truncated idx can be read: it means "not completed yet". The consumer
owns a completed segment and deletes both files.

A node that is killed leaves segments without that word. When it restarts, it replays them and writes idx
files for those with captured writes, with the file's length as offset
(CommitLogReplayer.handleCDCReplayCompletion). Segments that it need not replay stay as they are, and so do
all if the node is gone. The caller finds out whether a file is still open for writing.

Cassandra 3.11 moves a segment into the folder when it is discarded, and has no idx
(CommitLogSegmentManagerCDC.discard).
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from writetime.cassandra.commitlog.idx import MOST_BYTES, parse
from writetime.errors import NotASegment, ShipError
from writetime.storage.layout import SegmentName

_IDX = re.compile(r"(CommitLog-\d+-\d+)_cdc\.idx")
_FILE = re.compile(r"(CommitLog-\d+-\d+)(?:\.log|_cdc\.idx)")
_COMPLETED = re.compile(rb"(\d+)\r?\nCOMPLETED\s*")
_FIRST_VERSION_WITH_IDX = 7
_VERSION_OF_3_11 = 6


class State(Enum):
    """What a file is to the shipper."""

    PREALLOCATED = "preallocated"
    """No idx yet: no CDC write has been synced."""
    GROWING = "growing"
    """Cassandra still writes to it, or the idx is being rewritten."""
    COMPLETED = "completed"
    """Completed by Cassandra: to ship and delete."""
    MOVED_IN = "moved in"
    """A segment of 3.11, complete on arrival. To ship and delete once no process has it open for writing."""
    AFTER_CRASH = "after a crash"
    """Not completed and no longer open for writing: to ship and delete. Determined by
    `shippers.after_crash`."""
    LEFTOVER_IDX = "leftover idx"
    """The idx of a completed segment whose log is gone: an earlier deletion was interrupted."""
    UNREADABLE = "unreadable"
    """A segment whose idx cannot be read, so whether it is completed is unknown. An operator must repair
    it."""
    FOREIGN = "foreign"
    """A file that the shipper does not recognize. Never changed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory entry. `idx` is the content of an idx file, otherwise None.

    `trouble` says why it could not be read; `size` is in bytes, `mtime` in s since the epoch.
    """

    name: str
    regular: bool = True
    idx: bytes | None = None
    trouble: str = ""
    size: int = field(default=0, compare=False)
    mtime: float = field(default=0.0, compare=False)
    dated: bool = field(default=True, compare=False)
    """False: the file has an impossible mtime, and `mtime` is when it was first seen (`write_times`)."""


@dataclass(frozen=True, slots=True)
class Found:
    """A classified file. `segment` is None if foreign; `reason` says why a file is foreign or unreadable.

    `synced` is the idx's offset of a completed segment; `size` and `mtime` are the log's. `reached` is the
    idx's offset of a growing segment and when it was written (s since the epoch); None while the idx is being
    rewritten.
    """

    name: str
    state: State
    segment: SegmentName | None = None
    reason: str = ""
    synced: int | None = None
    size: int = 0
    mtime: float = 0.0
    reached: tuple[int, float] | None = None
    written: float = 0.0
    """The last write to the log or its idx: the mtime of a memory-mapped log may lag."""
    dated: bool = True
    """As in `Entry`, of the log."""

    @property
    def replayed(self) -> bool:
        """Whether the node completed the segment by a replay after a crash, which sets the offset to the
        file's length.

        The offset of a segment that is closed normally is smaller: CommitLogSegment.allocate never uses the
        last byte.
        """
        return self.synced is not None and self.synced == self.size


def look(folder: Path) -> list[Entry]:
    """The folder's entries. ShipError if it cannot be read; a file that vanishes meanwhile is skipped."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise listing_failed(folder, error) from error
    return [made for path in paths if (made := entry(path)) is not None]


def listing_failed(folder: Path, error: OSError) -> ShipError:
    return ShipError(
        f"failed to list the folder: {error.strerror}", operation="scan cdc_raw", obj=str(folder), hint="Check node.cdc_raw and its mode."
    )


def classify(entries: Iterable[Entry]) -> list[Found]:
    """Classify all files: segments in the order of their ids (oldest first), then foreign files."""
    logs: dict[str, Entry] = {}
    idxs: dict[str, Entry] = {}
    foreign: list[Found] = []
    for entry in entries:
        stem, kind = _kind(entry)
        if stem is None:
            foreign.append(Found(entry.name, State.FOREIGN, reason=kind))
        else:
            (logs if kind == "log" else idxs)[stem] = entry
    found = [_judge(stem, logs.get(stem), idxs.get(stem)) for stem in logs.keys() | idxs.keys()]
    known = sorted((f for f in found if f.segment), key=lambda f: (f.segment or SegmentName(0, 0), f.name))
    return known + sorted([*foreign, *(f for f in found if not f.segment)], key=lambda f: f.name)


def stem_of(name: str) -> str | None:
    """The stem of a segment's log or idx by its name; None for other names."""
    return match[1] if (match := _FILE.fullmatch(name)) else None


def entry(path: Path) -> Entry | None:
    """The directory entry; None if it vanished."""
    idx, trouble, regular, size, mtime = None, "", True, 0, 0.0
    try:
        found = path.lstat()
        regular, size, mtime = stat.S_ISREG(found.st_mode), found.st_size, found.st_mtime
        if regular and _IDX.fullmatch(path.name):
            idx = read_idx(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        trouble = f"failed to read the file: {error.strerror}"
    return Entry(path.name, regular, idx, trouble, size, mtime)


def read_idx(path: Path) -> bytes:
    """The content of an idx, or the beginning of what cannot be one. OSError."""
    with path.open("rb", buffering=0) as file:
        return file.read(MOST_BYTES)


def _kind(entry: Entry) -> tuple[str | None, str]:
    """(stem, "log" or "idx"), or (None, why it is foreign)."""
    if not entry.regular:
        return None, "not a regular file"
    if match := _IDX.fullmatch(entry.name):
        return match[1], "idx"
    if entry.trouble:
        return None, entry.trouble
    try:
        segment = SegmentName.parse(entry.name)
    except NotASegment as error:
        return None, error.message
    if segment.version < _VERSION_OF_3_11:
        return None, f"commit log version {segment.version} (Cassandra before 3.0) does not support CDC"
    return segment.stem, "log"


def _judge(stem: str, log: Entry | None, idx: Entry | None) -> Found:
    segment = SegmentName.parse(f"{stem}.log")
    if log is None:
        return _without_log(segment, idx)
    written = max(log.mtime, idx.mtime) if idx is not None else log.mtime
    found = Found(segment.filename, State.GROWING, segment, size=log.size, mtime=log.mtime, written=written, dated=log.dated)
    if idx is not None and idx.trouble:
        return replace(found, state=State.UNREADABLE, reason=f"idx: {idx.trouble}")
    completed = _COMPLETED.fullmatch(idx.idx or b"") if idx is not None else None
    if completed:
        return replace(found, state=State.COMPLETED, synced=int(completed[1]))
    if segment.version < _FIRST_VERSION_WITH_IDX:
        return replace(found, state=State.MOVED_IN)
    if idx is None:
        return replace(found, state=State.PREALLOCATED)
    growing = parse(idx.idx or b"")
    return found if growing is None else replace(found, reached=(growing.synced, idx.mtime))


def _without_log(segment: SegmentName, idx: Entry | None) -> Found:
    assert idx is not None
    if idx.trouble:
        return Found(segment.idx_filename, State.FOREIGN, reason=idx.trouble)
    if _COMPLETED.fullmatch(idx.idx or b""):
        return Found(segment.idx_filename, State.LEFTOVER_IDX, segment)
    return Found(segment.idx_filename, State.FOREIGN, reason="an incomplete idx without its log")
