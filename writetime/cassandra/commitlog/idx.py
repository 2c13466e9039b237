"""`CommitLog-<version>-<id>_cdc.idx`: how far a segment in cdc_raw is synced (Cassandra 4.0-5.0, CommitLogSegment.writeCDCIndexFile).

ASCII: the decimal position of the last synced section's end, in positions of the uncompressed segment; once the segment is finished, a
newline and `COMPLETED`. Beside a compressed or encrypted segment, which is far shorter, the number counts unpacked bytes all the same.

Cassandra rewrites the file in place, so it can be read empty or half-written: then there is no answer yet. Half a number is a smaller
number, and nothing that is synced is left unread for good by it. After a crash and a replay the number of a completed segment is off,
either way; its sections are right, so a completed segment is read to where they end (`stop_at`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_INDEX = re.compile(rb"(\d{1,18})(\nCOMPLETED)?\n?")


@dataclass(frozen=True, slots=True)
class CdcIndex:
    """`synced`: bytes of the segment that are durable; `completed`: the node will write nothing more into it."""

    synced: int
    completed: bool


def parse(content: bytes) -> CdcIndex | None:
    """The index, or None while the file is empty or half-written: read it again later."""
    match = _INDEX.fullmatch(content)
    return None if match is None else CdcIndex(int(match[1]), match[2] is not None)


class State(StrEnum):
    """What the index says of its segment."""

    ABSENT = "none"
    """Nothing of CDC has been synced yet; before 4.0 there never is one."""
    EMPTY = "empty"
    """Being rewritten: read it again later."""
    CUT = "half-written"
    """Being rewritten: read it again later."""
    GROWING = "growing"
    COMPLETED = "completed"
    OFF = "completed, but off"
    """Not where the sections end: written anew after a crash. The sections count."""


def state(content: bytes | None, end: int) -> State:
    """The state of a segment whose sections end at `end` (`Scan.end`); content None = there is no index."""
    if content is None:
        return State.ABSENT
    index = parse(content)
    if index is None:
        return State.CUT if content else State.EMPTY
    if not index.completed:
        return State.GROWING
    return State.COMPLETED if index.synced == end else State.OFF


def stop_at(content: bytes | None) -> int | None:
    """Where a segment that its node still writes is to be read to; None = to its end, for a finished one and while there is no answer."""
    index = parse(content or b"")
    return None if index is None or index.completed else index.synced
