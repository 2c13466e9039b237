"""Purges tombstones and expired cells from the state once gc_grace has passed.

A tombstone is kept so that older writes lose when they arrive late. After gc_grace, Cassandra assumes that
every replica has it, and compaction drops it. The state may drop it too: settled rows contain nothing that
their deletions shadow, so the result of SELECT does not change, now or after any newer write. An older write
that arrives after gc_grace does reappear, as in a cluster that was not repaired in time. Therefore only table
maintenance purges; it keeps a margin for late logs and records how far it went, in seconds and in writetimes
(`newest_purged`), and a replay skips the writes that purged tombstones may have shadowed.

Time is counted from the local deletion time, for expiring cells from the expiry; Cassandra may purge those
earlier by the ttl. Pure functions.

Source: Cassandra 3.11-5.0, db/DeletionPurger, db/rows/BTreeRow.purge, db/rows/AbstractCell.purge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.range_tombstones import PartitionDeletions
from writetime.cassandra.merge.reconcile import settle_row
from writetime.cassandra.model import (
    MICROSECONDS,
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    NO_TTL,
    DeletionTime,
    PartitionUpdate,
    Row,
)

MARGIN: Final = 86_400
"""Minimum time in seconds that a tombstone is kept, whatever gc_grace is: logs of other nodes may be that
late."""


def purge_before(now: int, gc_grace: int, margin: int = MARGIN) -> int:
    """The second (since the epoch) before which tombstones may be purged, for a table with that
    gc_grace_seconds."""
    return now - max(gc_grace, margin)


def may_purge(writetime: int, dead_since: int, before: int) -> bool:
    """Whether something written at `writetime` (µs) that was deleted or expired at the second `dead_since`
    may be purged: both times must be earlier than the second `before`."""
    return dead_since < before and writetime < before * MICROSECONDS


def purge_head(head: PartitionUpdate, before: int) -> PartitionUpdate | None:
    """The head without tombstones from before that second; None if nothing is left. Purge the rows with the
    unpurged head."""
    static = None if head.static_row is None else _purged(head.static_row, before)
    purged = replace(
        head,
        deletion=None if _is_over(head.deletion, before) else head.deletion,
        range_tombstones=tuple(each for each in head.range_tombstones if not _is_over(each.deletion, before)),
        static_row=None if static is None or static.is_empty else static,
    )
    return purged if purged.deletion or purged.range_tombstones or purged.static_row else None


class RowPurger:
    """Purges the rows of one partition. `head` is the unpurged head: everything it shadows is removed first,
    so that nothing shadowed reappears."""

    def __init__(self, head: PartitionUpdate | None, order: ClusteringOrder, before: int) -> None:
        self._order = order
        self._before = before
        self._deletions = PartitionDeletions(order)
        if head is not None:
            self._deletions.delete_partition(head.deletion)
            for tombstone in head.range_tombstones:
                self._deletions.delete_range(tombstone)

    def purge(self, row: Row) -> Row | None:
        """The row without tombstones and expired cells from before that second; None if nothing is left."""
        active = self._deletions.covering(self._order.key(row.clustering or ()))
        purged = _purged(settle_row(row, active=active, counter=self._order.counter), self._before)
        return None if purged.is_empty else purged


def newest_purged(old: PartitionUpdate | Row | None, left: PartitionUpdate | Row | None) -> int:
    """The greatest writetime (µs) of everything purged from a head or row; NO_TIMESTAMP if nothing was.

    For settled records it is before the purge time, see `may_purge`."""
    return max(set(_writetimes(old)) - set(_writetimes(left)), default=(NO_TIMESTAMP, ""))[0]


def newer_than(purged: int, update: PartitionUpdate, *, counter: bool) -> PartitionUpdate:
    """The part of an update that a replay applies: writes newer than `purged` (µs), because purged tombstones
    may have shadowed the older ones. The whole update was folded before, so skipped deletions have already
    taken effect."""
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
    """Writetime and name of everything that can supersede other writes."""
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
        # Only tombstones and expired cells have such a time.
        cells=tuple(cell for cell in row.cells if not may_purge(cell.timestamp, cell.local_deletion_time, before)),
        complex_deletions={column: by for column, by in row.complex_deletions.items() if not _is_over(by, before)},
    )


def _is_over(deletion: DeletionTime | None, before: int) -> bool:
    return deletion is not None and may_purge(deletion.marked_for_delete_at, deletion.local_deletion_time, before)
