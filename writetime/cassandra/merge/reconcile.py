"""Last write wins exactly as in Cassandra 3.11-5.0: cells, liveness, deletions, rows, partitions.

A reading of the cluster writes stand-ins for what CQL does not report; they yield to what a log knows
(`stand_ins`).

Every merge is associative, commutative and idempotent on *settled* values, that is values without anything
that their own deletions shadow (`settle_row`). Every merge settles
its result. Copies of replicas, replays and late arrivals can therefore be merged in any order. Three features
of Cassandra do not follow these laws, there or here: a counter that is deleted and used again, local counter
shards (`counters`), and the shadowable row deletions of 3.x materialized views.

No function uses a clock: an expired cell is merged like any other and hides older ones (`liveness` decides
what is visible). Types are not needed; from the schema only whether it is a counter table (`counter`).

For cells with equal timestamps the release of the nodes decides (`Policy`). The policy "4.0" applies to 4.0
and later. In 3.11 a cell that has expired by the node's clock wins against a live one, so the result depends
on when two cells meet in a read or compaction. The policy "3.11" replaces this by a rule without a clock:
cells with different expiries are assumed to meet while both are alive, and the greater value wins. The winner
is marked (`Cell.tied`); this is the only case in which a 3.11 cluster may return another result.

Sources: Cassandra 3.11, db/Conflicts; 4.0, db/rows/Cells.reconcile, db/LivenessInfo.supersedes,
db/rows/Row.Merger, db/rows/RangeTombstoneList.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal

from writetime.cassandra.merge.counters import merge_contexts
from writetime.cassandra.merge.stand_ins import without_replaced, yields
from writetime.cassandra.merge.unknown_marker import is_unknown_liveness
from writetime.cassandra.model import (
    EXPIRED_LIVENESS_TTL,
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    NO_TTL,
    Cell,
    DeletionTime,
    Liveness,
    PartitionUpdate,
    Row,
)

Policy = Literal["4.0", "3.11"]
POLICY: Final[Policy] = "4.0"
"""The default rules for cells with equal timestamps."""

_SIGNED: Final = bytes(byte ^ 0x80 for byte in range(256))
"""Maps bytes so that unsigned comparison orders them as signed bytes."""

CellKey = tuple[bool, str, bytes]
"""Order of cells in a settled row: simple columns, then complex ones; by name; by path. Code point order is
UTF-8 byte order."""


def reconcile_cells(a: Cell, b: Cell, *, counter: bool = False, policy: Policy = POLICY) -> Cell:
    """The winner of two cells of the same column and path; for counters, the merged cell.

    The greater timestamp wins. On a tie, in this order: a tombstone or expiring cell over a plain one, a
    tombstone over an expiring one, the later deletion or expiry, the smaller ttl (both expiring), the greater
    value by unsigned bytes. With policy "3.11": a tombstone, the greater value by signed bytes, the later
    deletion or expiry; and where 3.11 keeps either, the smaller ttl.
    """
    if counter and not (a.is_tombstone and b.is_tombstone):
        return _reconcile_counters(a, b)
    if a.timestamp != b.timestamp:
        return a if a.timestamp > b.timestamp else b
    legacy = policy == "3.11"
    rank = _legacy_rank if legacy else _tie_rank
    winner = a if rank(a) >= rank(b) else b
    # A tombstone wins against any live cell at any time, so the result is certain.
    tied = not winner.is_tombstone and (a.tied or b.tied or (legacy and a.local_deletion_time != b.local_deletion_time))
    return winner if winner.tied == tied else replace(winner, tied=tied)


def policy_of(releases: Iterable[str]) -> Policy:
    """The policy of a cluster whose nodes have these release versions: "3.11" as long as one node runs it.

    The data was merged by that rule until then, and coordinators of both releases answer during an
    upgrade."""
    return "3.11" if any(release.startswith("3.") for release in releases) else "4.0"


def _tie_rank(cell: Cell) -> tuple[bool, bool, int, int, bytes]:
    dies = cell.local_deletion_time != NO_DELETION_TIME
    return dies, dies and cell.ttl == NO_TTL, cell.local_deletion_time, -cell.ttl, cell.value


def _legacy_rank(cell: Cell) -> tuple[bool, bytes, int, int]:
    """Sort key by signed bytes, as Java's ByteBuffer.compareTo compares values."""
    return cell.is_tombstone, cell.value.translate(_SIGNED), cell.local_deletion_time, -cell.ttl


def _reconcile_counters(a: Cell, b: Cell) -> Cell:
    """A tombstone wins whatever the timestamps, then an empty value wins; otherwise the contexts are
    merged."""
    if a.is_tombstone or b.is_tombstone:
        return a if a.is_tombstone else b
    timestamp = max(a.timestamp, b.timestamp)
    if not a.value or not b.value:
        return max(a, b, key=lambda cell: (not cell.value, cell.timestamp))
    return Cell(a.column, timestamp, merge_contexts(a.value, b.value), a.path)


def merge_liveness(a: Liveness | None, b: Liveness | None) -> Liveness | None:
    """The winner of two liveness infos: the greater timestamp; on a tie an expired view marker, then an
    expiring one, the later expiry, the smaller ttl. A stand-in may yield to one that is older.

    (3.11 does not have the last rule and keeps either.)
    """
    if a is None or b is None:
        return a or b
    if is_unknown_liveness(a) != is_unknown_liveness(b):
        stand_in, real = (a, b) if is_unknown_liveness(a) else (b, a)
        return real if yields(stand_in, real) else stand_in
    if a.timestamp != b.timestamp:
        return a if a.timestamp > b.timestamp else b
    return a if _liveness_rank(a) >= _liveness_rank(b) else b


def _liveness_rank(liveness: Liveness) -> tuple[bool, bool, int, int]:
    return liveness.ttl == EXPIRED_LIVENESS_TTL, liveness.ttl != NO_TTL, liveness.expires_at, -liveness.ttl


def _merge_undeleted(a: Liveness | None, b: Liveness | None, *deletions: DeletionTime | None) -> Liveness | None:
    """As `merge_liveness`. A stand-in does not yield to what is deleted."""
    if is_unknown_liveness(a) != is_unknown_liveness(b):
        a, b = (None if each and any(by and by.deletes(each.timestamp) for by in deletions) else each for each in (a, b))
    return merge_liveness(a, b)


def merge_deletions(a: DeletionTime | None, b: DeletionTime | None) -> DeletionTime | None:
    """The superseding deletion. A deletion at NO_TIMESTAMP deletes nothing and counts as None."""
    if b is None or b.marked_for_delete_at == NO_TIMESTAMP:
        return None if a is None or a.marked_for_delete_at == NO_TIMESTAMP else a
    return b if b.supersedes(a) else a


def merge_rows(
    a: Row,
    b: Row,
    *,
    active: DeletionTime | None = None,
    counter: bool = False,
    policy: Policy = POLICY,
) -> Row:
    """The settled merge of two rows with the same clustering (or two static rows).

    `active` is the strongest deletion that covers the row: the partition deletion or a range tombstone.
    Neither it nor anything it shadows is kept in the row. `counter`: the table's cells are counters; `policy`
    as in `reconcile_cells`.
    """
    deletion = merge_deletions(a.deletion, b.deletion)
    # Of two equal deletions the plain one is kept: it is stronger, and the result must not depend on the
    # order.
    shadowable = deletion is not None and not any(row.deletion == deletion and not row.shadowable for row in (a, b))
    complex_deletions = dict(a.complex_deletions)
    for column, complex_deletion in b.complex_deletions.items():
        winner = merge_deletions(complex_deletions.get(column), complex_deletion)
        if winner is not None:
            complex_deletions[column] = winner
    return _settle(
        Row(
            clustering=a.clustering,
            liveness=_merge_undeleted(a.liveness, b.liveness, None if shadowable else deletion, active),
            deletion=deletion,
            shadowable=shadowable,
            cells=_merge_cells(*without_replaced(a.cells, b.cells), counter=counter, policy=policy),
            complex_deletions=complex_deletions,
        ),
        active,
    )


def settle_row(row: Row, *, active: DeletionTime | None = None, counter: bool = False, policy: Policy = POLICY) -> Row:
    """The row without everything that its own deletions and `active` shadow; cells sorted, one per column and
    path."""
    return merge_rows(Row(row.clustering), row, active=active, counter=counter, policy=policy)


def merge_static_rows(a: Row | None, b: Row | None, *, active: DeletionTime | None, counter: bool, policy: Policy = POLICY) -> Row | None:
    """The settled merge of two static rows, None if nothing is left. `active` is the partition deletion."""
    if a is None and b is None:
        return None
    nothing = Row(None)
    merged = merge_rows(a or nothing, b or nothing, active=active, counter=counter, policy=policy)
    return None if merged.is_empty else merged


def _merge_cells(a: Iterable[Cell], b: Iterable[Cell], *, counter: bool, policy: Policy) -> tuple[Cell, ...]:
    """The reconciled cells of both, ordered by `CellKey`."""
    cells: dict[CellKey, Cell] = {}
    for source in (a, b):
        for cell in source:
            key = (cell.path is not None, cell.column, cell.path or b"")
            other = cells.get(key)
            cells[key] = cell if other is None else reconcile_cells(other, cell, counter=counter, policy=policy)
    return tuple(cells[key] for key in sorted(cells))


def _settle(row: Row, active: DeletionTime | None) -> Row:
    """Remove shadowed content (Cassandra 4.0, Row.Merger.merge): by `active`, by the row deletion, and in a
    column by its complex deletion."""
    deletion, liveness = row.deletion, row.liveness
    if deletion is not None and row.shadowable and liveness is not None and liveness.timestamp > deletion.marked_for_delete_at:
        deletion = None
    if deletion is not None and not deletion.supersedes(active):
        deletion = None
    strongest = deletion or active
    if liveness is not None and (liveness.timestamp == NO_TIMESTAMP or (strongest is not None and strongest.deletes(liveness.timestamp))):
        liveness = None
    complex_deletions = {
        column: by
        for column, by in sorted(row.complex_deletions.items())
        if by.marked_for_delete_at != NO_TIMESTAMP and by.supersedes(strongest)
    }
    return Row(
        clustering=row.clustering,
        liveness=liveness,
        deletion=deletion,
        shadowable=row.shadowable and deletion is not None,
        cells=_alive(row.cells, strongest, complex_deletions),
        complex_deletions=complex_deletions,
    )


def _alive(cells: tuple[Cell, ...], strongest: DeletionTime | None, complex_deletions: dict[str, DeletionTime]) -> tuple[Cell, ...]:
    if strongest is None and not complex_deletions:
        return cells
    floor = NO_TIMESTAMP - 1 if strongest is None else strongest.marked_for_delete_at
    floors = {column: by.marked_for_delete_at for column, by in complex_deletions.items()}
    return tuple(cell for cell in cells if cell.timestamp > floors.get(cell.column, floor))


def max_timestamp(update: PartitionUpdate) -> int:
    """The greatest timestamp in the update, µs; NO_TIMESTAMP if it holds none."""
    latest = NO_TIMESTAMP if update.deletion is None else update.deletion.marked_for_delete_at
    for tombstone in update.range_tombstones:
        latest = max(latest, tombstone.deletion.marked_for_delete_at)
    for row in update.rows if update.static_row is None else (update.static_row, *update.rows):
        latest = max(latest, *_timestamps(row))
    return latest


def _timestamps(row: Row) -> Iterable[int]:
    yield NO_TIMESTAMP if row.liveness is None else row.liveness.timestamp
    yield NO_TIMESTAMP if row.deletion is None else row.deletion.marked_for_delete_at
    for deletion in row.complex_deletions.values():
        yield deletion.marked_for_delete_at
    for cell in row.cells:
        yield cell.timestamp
