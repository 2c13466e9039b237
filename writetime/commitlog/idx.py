"""`CommitLog-<version>-<id>_cdc.idx`: how far a segment in cdc_raw is synced (Cassandra 4.0-5.0, CommitLogSegment.writeCDCIndexFile).

ASCII: the decimal position of the last synced section's end, in positions of the uncompressed segment; once the segment is finished, a
newline and `COMPLETED`. Cassandra rewrites the file in place, so it can be read empty or half-written: then there is no answer yet.
After a crash and replay the number of a completed segment may be off: go by its sections then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def stop_at(content: bytes | None) -> int | None:
    """Where a segment that its node still writes is to be read to; None = to its end, for a finished one and while there is no answer."""
    index = parse(content or b"")
    return None if index is None or index.completed else index.synced
