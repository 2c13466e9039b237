"""How many bytes the next batch may take in, so that it takes about as long as it should.

Strategy: a batch takes a fixed time and a time for each byte. Both are estimated from the last batches that were about
as large as they were allowed to be; small ones say nothing about large ones. The slope is the median over pairs of
batches (Theil-Sen), so that one batch that hung, or was lucky, changes nothing. What is measured is the run that sealed
the batch: time in which nothing ran, or an attempt that died, does not count. A step is at most a factor of two. If the
fixed time alone is beyond the target, smaller batches would only waste more of it: then half of a batch's time is work.

The measures are one small document that only hints: without it, batches begin at `FIRST` again. Planning pins a batch's
segments in its manifest, so the limit never changes a batch that is planned. Does not know Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final

from pydantic import Field

from writetime.pipeline.documents import Document, Manifest
from writetime.storage import layout
from writetime.storage.store import Store

FIRST: Final = 8 << 30
"""Bytes of a batch before any is measured: 256 segments of 32 MiB."""
LEAST: Final = 128 << 20
"""A batch may always take so many."""
KEPT: Final = 5
"""Batches that the estimate is made from: two of them may be outliers."""
_STEP: Final = 2.0
_COUNTS: Final = 0.25
"""Share of the limit from which on a batch's time says something about the limit."""
_APART: Final = 0.25
"""Relative difference of two batches' sizes from which on their times say what a byte costs."""
_LEAST_SHARE: Final = 0.25
"""Share of the time that is put down to the bytes at least: times that do not grow with the size are noise."""


class Measure(Document):
    """A batch: its segments and their bytes, and the seconds of the run that sealed it."""

    batch: int
    segments: int
    bytes: int = Field(gt=0)
    seconds: float = Field(gt=0)


class Pace(Document):
    """The last measures, the newest last. `target`: how many seconds batches should take, as of the last one."""

    measures: list[Measure] = Field(default=[])
    target: float = Field(default=0.0)

    def limit(self, target: float) -> int:
        """Bytes that a batch may take in to take `target` seconds."""
        if not self.measures:
            return FIRST
        fixed, each = fitted(self.measures)
        wanted = max(target - fixed, fixed) / each
        least, most = self.measures[-1].bytes / _STEP, _STEP * max(measure.bytes for measure in self.measures)
        return max(LEAST, int(min(max(wanted, least), most)))


def fitted(measures: Sequence[Measure]) -> tuple[float, float]:
    """The seconds that a batch takes without any bytes, and those of a byte, the latter above 0."""
    proportional = median(measure.seconds / measure.bytes for measure in measures)
    pairs = combinations(measures, 2)
    slopes = [
        (one.seconds - other.seconds) / (one.bytes - other.bytes)
        for one, other in pairs
        if abs(one.bytes - other.bytes) >= _APART * max(one.bytes, other.bytes)
    ]
    slope = median(slopes) if slopes else proportional
    # Neither a negative time without bytes, nor none for them.
    each = min(max(slope, _LEAST_SHARE * proportional), proportional)
    return max(0.0, median(measure.seconds - each * measure.bytes for measure in measures)), each


def read_pace(store: Store, cluster: str) -> Pace:
    """What was measured so far."""
    return Pace.read(store, layout.pace(cluster)) or Pace()


def note(store: Store, manifest: Manifest, seconds: float, target: float | None) -> None:
    """Note how long the run that sealed the batch took, if that says something about the limit."""
    total = sum(segment.size for segment in manifest.segments)
    if target is None or manifest.kind != "ingest" or manifest.namespace is not None or not total or seconds <= 0:
        return
    found = Measure(batch=manifest.number, segments=len(manifest.segments), bytes=total, seconds=round(seconds, 3) or 0.001)

    def change(before: Pace | None) -> Pace | None:
        known = before or Pace()
        if total < _COUNTS * known.limit(target):
            return None
        others = [measure for measure in known.measures if measure.batch < found.batch]
        return Pace(measures=[*others, found][-KEPT:], target=target)

    Pace.update(store, layout.pace(manifest.cluster), change)
