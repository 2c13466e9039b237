"""The deletions that cover many rows: the partition deletion and the range tombstones, in canonical form.

Range tombstones become *intervals*: disjoint, ascending, each with its strongest deletion; adjacent intervals
have different deletions, and each supersedes the partition deletion. This form does not depend on the order
of additions, so merged partitions can be compared. An addition replaces one part of the sorted list, found by
bisection. This module does not know rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from writetime.cassandra.merge.clustering import AFTER, BEFORE, Clustering, ClusteringOrder, Position
from writetime.cassandra.model import NO_TIMESTAMP, Bound, DeletionTime, RangeTombstone


class Cut(NamedTuple):
    """A position between rows, with the clustering prefix before or after which it is."""

    position: Position
    values: Clustering


class Interval(NamedTuple):
    start: Cut
    end: Cut
    deletion: DeletionTime


class PartitionDeletions:
    """Mutable. `partition` is the partition deletion, if any; ranges are added by `delete_range`."""

    def __init__(self, order: ClusteringOrder) -> None:
        self.partition: DeletionTime | None = None
        self._order = order
        self._intervals: list[Interval] = []

    def delete_partition(self, deletion: DeletionTime | None) -> bool:
        """Delete the whole partition; False if that changes nothing."""
        if deletion is None or deletion.marked_for_delete_at == NO_TIMESTAMP or not deletion.supersedes(self.partition):
            return False
        self.partition = deletion
        self._intervals = [interval for interval in self._intervals if interval.deletion.supersedes(deletion)]
        return True

    def delete_range(self, tombstone: RangeTombstone) -> bool:
        """Delete a range; False if that changes nothing: equal or stronger deletions cover it, or the range
        is empty."""
        if tombstone.deletion.marked_for_delete_at == NO_TIMESTAMP or not tombstone.deletion.supersedes(self.partition):
            return False
        new = self._interval(tombstone)
        if not new.start.position < new.end.position:
            return False
        low = bisect_left(self._intervals, new.start.position, key=_end)
        high = bisect_right(self._intervals, new.end.position, key=_start)
        before = self._intervals[low:high]
        after = _overlay(before, new)
        self._intervals[low:high] = after
        return [_shape(interval) for interval in before] != [_shape(interval) for interval in after]

    def covering(self, position: Position) -> DeletionTime | None:
        """The strongest partition or range deletion that covers the row at this position."""
        at = bisect_right(self._intervals, position, key=_start) - 1
        if at >= 0 and position < self._intervals[at].end.position:
            return self._intervals[at].deletion
        return self.partition

    def tombstones(self) -> tuple[RangeTombstone, ...]:
        """The range tombstones, ascending and disjoint."""
        return tuple(
            RangeTombstone(
                Bound(start.values, start.position[-1] == BEFORE),
                Bound(end.values, end.position[-1] == AFTER),
                deletion,
            )
            for start, end, deletion in self._intervals
        )

    def _interval(self, tombstone: RangeTombstone) -> Interval:
        start, end = tombstone.start, tombstone.end
        return Interval(Cut(self._order.start(start), start.values), Cut(self._order.end(end), end.values), tombstone.deletion)


def _start(interval: Interval) -> Position:
    return interval.start.position


def _end(interval: Interval) -> Position:
    return interval.end.position


def _shape(interval: Interval) -> tuple[Position, Position, DeletionTime]:
    return interval.start.position, interval.end.position, interval.deletion


def _overlay(intervals: Iterable[Interval], new: Interval) -> list[Interval]:
    """Add `new` to the intervals that overlap or adjoin it. The stronger deletion wins in each part; adjacent
    parts with equal deletions are joined."""
    stretches: list[Interval] = []
    reached = new.start
    for interval in intervals:
        stretches.append(Interval(interval.start, _lesser(interval.end, new.start), interval.deletion))
        stretches.append(Interval(reached, _lesser(interval.start, new.end), new.deletion))
        stronger = interval.deletion if interval.deletion.supersedes(new.deletion) else new.deletion
        stretches.append(Interval(_greater(interval.start, new.start), _lesser(interval.end, new.end), stronger))
        stretches.append(Interval(_greater(interval.start, new.end), interval.end, interval.deletion))
        reached = _greater(reached, interval.end)
    # The part of `new` after the last interval; empty if an interval extends beyond `new`.
    rest = Interval(reached, new.end, new.deletion)
    return _join(sorted((*stretches, rest), key=_start))


def _join(stretches: Iterable[Interval]) -> list[Interval]:
    """Remove empty intervals and join adjacent ones with equal deletions."""
    joined: list[Interval] = []
    for stretch in stretches:
        if not stretch.start.position < stretch.end.position:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.end.position == stretch.start.position and last.deletion == stretch.deletion:
            joined[-1] = Interval(last.start, stretch.end, last.deletion)
        else:
            joined.append(stretch)
    return joined


def _lesser(a: Cut, b: Cut) -> Cut:
    return a if a.position < b.position else b


def _greater(a: Cut, b: Cut) -> Cut:
    return b if a.position < b.position else a
