"""The deletions that cover many rows: one partition deletion and the range tombstones, kept in the one form that equal sets share.

Range tombstones become *pieces*: disjoint, ascending, each with the strongest deletion of its stretch, and neighbours that touch differ
in their deletion. A piece is there only if it supersedes the partition deletion. That form depends on what was added alone, not on the
order of adding, which is what makes merged partitions comparable. Adding splices one stretch of the sorted list, found by bisection.
This module knows no rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from writetime.cassandra.merge.clustering import AFTER, BEFORE, Clustering, ClusteringOrder, Position
from writetime.cassandra.model import NO_TIMESTAMP, Bound, DeletionTime, RangeTombstone


class Cut(NamedTuple):
    """A place between rows, with the clustering prefix that it stands before or after."""

    position: Position
    values: Clustering


class Piece(NamedTuple):
    start: Cut
    end: Cut
    deletion: DeletionTime


class PartitionDeletions:
    """Mutable. `partition` is the partition deletion, if any; ranges come and go through the methods."""

    def __init__(self, order: ClusteringOrder) -> None:
        self.partition: DeletionTime | None = None
        self._order = order
        self._pieces: list[Piece] = []

    def delete_partition(self, deletion: DeletionTime | None) -> bool:
        """Delete the whole partition; False if that changes nothing."""
        if deletion is None or deletion.marked_for_delete_at == NO_TIMESTAMP or not deletion.supersedes(self.partition):
            return False
        self.partition = deletion
        self._pieces = [piece for piece in self._pieces if piece.deletion.supersedes(deletion)]
        return True

    def delete_range(self, tombstone: RangeTombstone) -> bool:
        """Delete a range; False if that changes nothing: all of it is covered by something as strong, or it holds no row."""
        if tombstone.deletion.marked_for_delete_at == NO_TIMESTAMP or not tombstone.deletion.supersedes(self.partition):
            return False
        new = self._piece(tombstone)
        if not new.start.position < new.end.position:
            return False
        low = bisect_left(self._pieces, new.start.position, key=_end)
        high = bisect_right(self._pieces, new.end.position, key=_start)
        before = self._pieces[low:high]
        after = _overlay(before, new)
        self._pieces[low:high] = after
        return [_shape(piece) for piece in before] != [_shape(piece) for piece in after]

    def covering(self, position: Position) -> DeletionTime | None:
        """The strongest deletion from outside of the row at this position."""
        at = bisect_right(self._pieces, position, key=_start) - 1
        if at >= 0 and position < self._pieces[at].end.position:
            return self._pieces[at].deletion
        return self.partition

    def tombstones(self) -> tuple[RangeTombstone, ...]:
        """The range tombstones, ascending and disjoint."""
        return tuple(
            RangeTombstone(
                Bound(start.values, start.position[-1] == BEFORE),
                Bound(end.values, end.position[-1] == AFTER),
                deletion,
            )
            for start, end, deletion in self._pieces
        )

    def _piece(self, tombstone: RangeTombstone) -> Piece:
        start, end = tombstone.start, tombstone.end
        return Piece(Cut(self._order.start(start), start.values), Cut(self._order.end(end), end.values), tombstone.deletion)


def _start(piece: Piece) -> Position:
    return piece.start.position


def _end(piece: Piece) -> Position:
    return piece.end.position


def _shape(piece: Piece) -> tuple[Position, Position, DeletionTime]:
    return piece.start.position, piece.end.position, piece.deletion


def _overlay(pieces: Iterable[Piece], new: Piece) -> list[Piece]:
    """Lay `new` over pieces that overlap or touch it: the stronger deletion holds in each stretch, like neighbours join."""
    stretches: list[Piece] = []
    reached = new.start
    for piece in pieces:
        stretches.append(Piece(piece.start, _lesser(piece.end, new.start), piece.deletion))
        stretches.append(Piece(reached, _lesser(piece.start, new.end), new.deletion))
        stronger = piece.deletion if piece.deletion.supersedes(new.deletion) else new.deletion
        stretches.append(Piece(_greater(piece.start, new.start), _lesser(piece.end, new.end), stronger))
        stretches.append(Piece(_greater(piece.start, new.end), piece.end, piece.deletion))
        reached = _greater(reached, piece.end)
    # What lies past the last piece; a piece that outlasts `new` has left its own rest, and none of this.
    rest = Piece(reached, new.end, new.deletion)
    return _join(sorted((*stretches, rest), key=_start))


def _join(stretches: Iterable[Piece]) -> list[Piece]:
    """Without the empty stretches, and with neighbours of equal deletion made one."""
    joined: list[Piece] = []
    for stretch in stretches:
        if not stretch.start.position < stretch.end.position:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.end.position == stretch.start.position and last.deletion == stretch.deletion:
            joined[-1] = Piece(last.start, stretch.end, last.deletion)
        else:
            joined.append(stretch)
    return joined


def _lesser(a: Cut, b: Cut) -> Cut:
    return a if a.position < b.position else b


def _greater(a: Cut, b: Cut) -> Cut:
    return b if a.position < b.position else a
