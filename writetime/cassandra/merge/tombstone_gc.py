"""What the state may forget: tombstones, and what has expired, once gc_grace is over.

A dead thing is kept so that what it has beaten loses again when it comes late. After gc_grace every replica has it, says Cassandra, and
compaction drops it; so may the state, for nothing in it is older: settled rows hold nothing that their deletions shadow. What SELECT
shows does not change, now or after any newer write. What is older and comes later than gc_grace does come back, as in a ring that was
not repaired in time: therefore only maintenance purges, keeps a margin for logs that are late, and notes how far it went, in seconds and
in writetimes (`newest_purged`): a replay leaves out what the purged may have beaten.

Seconds are counted from the local deletion time, which for what expires is its expiry; Cassandra may be earlier there by the ttl. Pure.

Source: Cassandra 3.11-5.0, db/DeletionPurger, db/rows/BTreeRow.purge, db/rows/AbstractCell.purge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition import MICROSECONDS
from writetime.cassandra.merge.range_tombstones import PartitionDeletions
from writetime.cassandra.merge.reconcile import settle_row
from writetime.cassandra.model import (
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    NO_TTL,
    DeletionTime,
    PartitionUpdate,
    Row,
)

MARGIN: Final = 86_400
"""Seconds that a tombstone is kept at least, whatever the table's gc_grace: logs of other nodes may be late by that much."""


def purge_before(now: int, gc_grace: int, margin: int = MARGIN) -> int:
    """What died before this second (since the epoch) may be forgotten, of a table with that gc_grace_seconds."""
    return now - max(gc_grace, margin)


def may_purge(writetime: int, dead_since: int, before: int) -> bool:
    """Whether something that was written at `writetime` (µs) and died, or expired, at the second `dead_since` may be
    forgotten, if all may be that died before the second `before`: only if it was written before that, too."""
    return dead_since < before and writetime < before * MICROSECONDS


def purge_head(head: PartitionUpdate, before: int) -> PartitionUpdate | None:
    """The head without what died before that second; None if nothing is left. Its rows have to be purged by the head as it was."""
    static = None if head.static_row is None else _purged(head.static_row, before)
    purged = replace(
        head,
        deletion=None if _is_over(head.deletion, before) else head.deletion,
        range_tombstones=tuple(each for each in head.range_tombstones if not _is_over(each.deletion, before)),
        static_row=None if static is None or static.is_empty else static,
    )
    return purged if purged.deletion or purged.range_tombstones or purged.static_row else None


class RowPurger:
    """Purges the rows of one partition. `head` is the partition's as it was: what it shadows goes first, and cannot come to light."""

    def __init__(self, head: PartitionUpdate | None, order: ClusteringOrder, before: int) -> None:
        self._order = order
        self._before = before
        self._deletions = PartitionDeletions(order)
        if head is not None:
            self._deletions.delete_partition(head.deletion)
            for tombstone in head.range_tombstones:
                self._deletions.delete_range(tombstone)

    def purge(self, row: Row) -> Row | None:
        """The row without what died before that second; None if nothing is left."""
        active = self._deletions.covering(self._order.key(row.clustering or ()))
        purged = _purged(settle_row(row, active=active, counter=self._order.counter), self._before)
        return None if purged.is_empty else purged


def newest_purged(old: PartitionUpdate | Row | None, left: PartitionUpdate | Row | None) -> int:
    """The greatest writetime (µs) of what is in a head or row and no more in what is left of it; NO_TIMESTAMP if all is.

    Of a purge of settled records it is below the purge clock, by `may_purge`."""
    return max(set(_writetimes(old)) - set(_writetimes(left)), default=(NO_TIMESTAMP, ""))[0]


def newer_than(purged: int, update: PartitionUpdate, *, counter: bool) -> PartitionUpdate:
    """What a replay takes in of an update: only what is younger than that writetime (µs), up to which all may have been beaten by what is
    purged. All of the update has been folded before, so that a deletion which is left out has not lost its effect."""
    active = DeletionTime(purged, NO_DELETION_TIME)

    def left(row: Row) -> Row | None:
        settled = settle_row(row, active=active, counter=counter)
        return None if settled.is_empty else settled

    return replace(
        update,
        deletion=update.deletion if update.deletion is not None and not active.deletes(update.deletion.marked_for_delete_at) else None,
        static_row=None if update.static_row is None else left(update.static_row),
        rows=tuple(row for each in update.rows if (row := left(each)) is not None),
        range_tombstones=tuple(each for each in update.range_tombstones if not active.deletes(each.deletion.marked_for_delete_at)),
    )


def _writetimes(of: PartitionUpdate | Row | None) -> Iterator[tuple[int, str]]:
    """Writetime and name of everything that can beat anything."""
    if isinstance(of, PartitionUpdate):
        if of.deletion is not None:
            yield of.deletion.marked_for_delete_at, "partition"
        for each in of.range_tombstones:
            yield each.deletion.marked_for_delete_at, f"range {each.start} {each.end}"
        yield from _writetimes(of.static_row)
    elif of is not None:
        if of.liveness is not None:
            yield of.liveness.timestamp, "liveness"
        if of.deletion is not None:
            yield of.deletion.marked_for_delete_at, "row"
        for cell in of.cells:
            yield cell.timestamp, f"cell {cell.column!r} {cell.path!r}"
        for column, by in of.complex_deletions.items():
            yield by.marked_for_delete_at, f"column {column!r}"


def _purged(row: Row, before: int) -> Row:
    liveness = row.liveness
    if liveness is not None and liveness.ttl != NO_TTL and may_purge(liveness.timestamp, liveness.expires_at, before):
        liveness = None
    deletion = None if _is_over(row.deletion, before) else row.deletion
    return Row(
        clustering=row.clustering,
        liveness=liveness,
        deletion=deletion,
        shadowable=row.shadowable and deletion is not None,
        # Only what is dead or has expired has such a time at all.
        cells=tuple(cell for cell in row.cells if not may_purge(cell.timestamp, cell.local_deletion_time, before)),
        complex_deletions={column: by for column, by in row.complex_deletions.items() if not _is_over(by, before)},
    )


def _is_over(deletion: DeletionTime | None, before: int) -> bool:
    return deletion is not None and may_purge(deletion.marked_for_delete_at, deletion.local_deletion_time, before)
