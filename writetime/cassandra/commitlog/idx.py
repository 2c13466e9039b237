"""`CommitLog-<version>-<id>_cdc.idx`: how far a segment in cdc_raw is synced (Cassandra 4.0-5.0,
CommitLogSegment.writeCDCIndexFile).

ASCII: the decimal position of the end of the last synced section, as a position in the uncompressed segment,
also if the file is compressed or encrypted. When the segment is completed, a newline and `COMPLETED` follow.

Cassandra rewrites the file in place, so a reader can see it empty or half-written and must read it again. A
truncated number is smaller than the real one, which only delays reading. After a crash and a commit log
replay, the number of a completed segment can be too low or too high. Its sections are correct, so a completed
segment is read to the end of its last section (`stop_at`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

MOST_BYTES = 64
"""What is read of a file: the longest number and the word take half of it."""
_INDEX = re.compile(rb"(\d{1,18})(\nCOMPLETED)?\n?")


@dataclass(frozen=True, slots=True)
class CdcIndex:
    """`synced`: bytes of the segment that are durable; `completed`: the node no longer writes to it."""

    synced: int
    completed: bool


def parse(content: bytes) -> CdcIndex | None:
    """The index, or None while the file is empty or half-written: read it again later."""
    match = _INDEX.fullmatch(content)
    return None if match is None else CdcIndex(int(match[1]), match[2] is not None)


class State(StrEnum):
    """State of a segment according to its index."""

    ABSENT = "none"
    """No CDC data has been synced yet, or Cassandra is older than 4.0."""
    EMPTY = "empty"
    """Being rewritten: read it again later."""
    CUT = "half-written"
    """Being rewritten: read it again later."""
    GROWING = "growing"
    COMPLETED = "completed"
    OFF = "completed, but off"
    """Differs from the end of the sections: rewritten after a crash. The sections are authoritative."""


def state(content: bytes | None, end: int) -> State:
    """The state of a segment whose sections end at `end` (`Scan.end`). `content` is None if there is no
    index."""
    if content is None:
        return State.ABSENT
    index = parse(content)
    if index is None:
        return State.CUT if content else State.EMPTY
    if not index.completed:
        return State.GROWING
    return State.COMPLETED if index.synced == end else State.OFF


def stop_at(content: bytes | None) -> int | None:
    """The position up to which a growing segment is read; None for a completed segment or an unreadable
    index."""
    index = parse(content or b"")
    return None if index is None or index.completed else index.synced
