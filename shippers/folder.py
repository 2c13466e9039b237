"""What lies in a cdc_raw folder, and what it means. Decisions are pure functions of a listing; only `look` touches the disk.

From Cassandra 4.0 a segment is hard-linked into the folder when it is created, empty and at full size. `<segment>_cdc.idx` appears
at the first sync after a CDC write and holds the synced offset in decimal; when the segment is closed, the word COMPLETED
follows on a second line (CommitLogSegment.writeCDCIndexFile). It is rewritten in place, so an empty or cut idx can be read: it
means no more than "not yet". The consumer owns a completed segment and deletes both files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from writetime.errors import NotASegment, ShipError
from writetime.names import SegmentName

_IDX = re.compile(r"(CommitLog-\d+-\d+)_cdc\.idx")
_COMPLETED = re.compile(rb"\d+\r?\nCOMPLETED\s*")
_FIRST_VERSION_WITH_IDX = 7


class State(Enum):
    """What a file is to the shipper."""

    PREALLOCATED = "preallocated"
    """No idx yet: nothing of CDC has been synced."""
    GROWING = "growing"
    """Cassandra still writes to it, or the idx is just being rewritten."""
    COMPLETED = "completed"
    """Sealed: ours to ship and delete."""
    LEFTOVER_IDX = "leftover idx"
    """The idx of a completed segment whose log is gone: an earlier deletion was cut short."""
    FOREIGN = "foreign"
    """Nothing the shipper knows. Never touched."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory entry. `idx` holds the content of a regular file named like an idx, else None."""

    name: str
    regular: bool = True
    idx: bytes | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in the folder. `segment` is None if foreign; `reason` says why something is foreign."""

    name: str
    state: State
    segment: SegmentName | None = None
    reason: str = ""


def look(folder: Path) -> list[Entry]:
    """The folder's entries. ShipError if it cannot be read; an idx that vanishes meanwhile is left out."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise ShipError(
            f"cannot be listed: {error.strerror}", operation="look into cdc_raw", obj=str(folder), hint="Check node.cdc_raw and its mode."
        ) from error
    return [entry for path in paths if (entry := _entry(path)) is not None]


def classify(entries: Iterable[Entry]) -> list[Found]:
    """What each segment and each other file is; segments in order of their ids (oldest first), then the foreign ones."""
    logs: dict[str, Entry] = {}
    idxs: dict[str, Entry] = {}
    foreign: list[Found] = []
    for entry in entries:
        stem, kind = _kind(entry)
        if stem is None:
            foreign.append(Found(entry.name, State.FOREIGN, reason=kind))
        else:
            (logs if kind == "log" else idxs)[stem] = entry
    found = [_judge(stem, stem in logs, idxs.get(stem)) for stem in logs.keys() | idxs.keys()]
    known = sorted((f for f in found if f.segment), key=lambda f: (f.segment or SegmentName(0, 0), f.name))
    return known + sorted([*foreign, *(f for f in found if not f.segment)], key=lambda f: f.name)


def _entry(path: Path) -> Entry | None:
    regular = path.is_file() and not path.is_symlink()
    if not (regular and _IDX.fullmatch(path.name)):
        return Entry(path.name, regular)
    try:
        return Entry(path.name, regular, path.read_bytes())
    except FileNotFoundError:
        return None


def _kind(entry: Entry) -> tuple[str | None, str]:
    """(stem, "log" or "idx"), or (None, why it is foreign)."""
    if not entry.regular:
        return None, "is no regular file"
    if match := _IDX.fullmatch(entry.name):
        return match[1], "idx"
    try:
        segment = SegmentName.parse(entry.name)
    except NotASegment as error:
        return None, error.message
    if segment.version < _FIRST_VERSION_WITH_IDX:
        return None, f"commit log version {segment.version} (Cassandra before 4.0) is not shipped"
    return segment.stem, "log"


def _judge(stem: str, has_log: bool, idx: Entry | None) -> Found:
    segment = SegmentName.parse(f"{stem}.log")
    completed = idx is not None and _COMPLETED.fullmatch(idx.idx or b"") is not None
    if not has_log:
        if completed:
            return Found(segment.idx_filename, State.LEFTOVER_IDX, segment)
        return Found(segment.idx_filename, State.FOREIGN, reason="is an idx that is not completed, without its log")
    if idx is None:
        return Found(segment.filename, State.PREALLOCATED, segment)
    return Found(segment.filename, State.COMPLETED if completed else State.GROWING, segment)
