"""The join of one partition, written plainly, as an oracle for `partition_fold` and the kernels: folds a
batch's updates into its state and returns the changes that SELECT sees.

The state of a partition is itself an update: a *head* (partition deletion, range tombstones, static row) and
one row per clustering, tombstones included, so that a late older write loses against them. Folding applies
updates one by one in writetime order. Each step replaces the rows it affects and compares their visible
content before and after. The final state does not depend on the order, repetition or batching of updates; the
steps do, because of late arrivals.

For a wide partition `PartitionState.rows` may be limited to `rows_needed`. This module does not know the
store, types or event formats, and takes the time as an argument.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from writetime.cassandra.merge.clustering import Clustering, ClusteringOrder, Position
from writetime.cassandra.merge.liveness import VisibleRow, live_cells, statics_alone, visible, with_statics
from writetime.cassandra.merge.partition_fold import Reason
from writetime.cassandra.merge.range_tombstones import PartitionDeletions
from writetime.cassandra.merge.reconcile import POLICY, Policy, max_timestamp, merge_deletions, merge_rows, merge_static_rows, settle_row
from writetime.cassandra.model import MICROSECONDS, Cell, PartitionUpdate, RangeTombstone, Row


@dataclass(frozen=True, slots=True)
class SourcedUpdate:
    """An update and its source; `source` is passed through to the changes that the update makes."""

    update: PartitionUpdate
    source: object = None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Head and rows of one partition, settled. `head` has no `rows`; it is None without deletions and static
    content."""

    head: PartitionUpdate | None = None
    rows: Mapping[Clustering, Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowChange:
    """A visible change of one row. `clustering` None: static content without a clustered row.

    `before` and `after` include the partition's static cells and are never equal. `ts_micro` is the greatest
    timestamp of the update, or the moment of expiry. `reason` is None if the row's own cells or liveness were
    written.
    """

    clustering: Clustering | None
    before: VisibleRow | None
    after: VisibleRow | None
    source: object
    ts_micro: int
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one update: `applied` if it changed the state, else it was superseded or a duplicate."""

    source: object
    applied: bool


@dataclass(frozen=True, slots=True)
class FoldResult:
    """`changed_rows` maps clusterings to rows to upsert, None for a row removed from the state. `outcomes`
    are in input order."""

    state: PartitionState
    head_changed: bool
    changed_rows: dict[Clustering, Row | None]
    outcomes: tuple[Outcome, ...]
    changes: tuple[RowChange, ...]

    @property
    def applied(self) -> int:
        """The number of updates that changed the state."""
        return sum(outcome.applied for outcome in self.outcomes)

    @property
    def superseded(self) -> int:
        """The number of updates that did not change the state."""
        return len(self.outcomes) - self.applied

    @property
    def changed(self) -> tuple[Clustering | None, ...]:
        """The keys to upsert: the clusterings of `changed_rows`, and None for the head if it changed."""
        return (*((None,) if self.head_changed else ()), *self.changed_rows)


def rows_needed(updates: Iterable[PartitionUpdate], order: ClusteringOrder) -> frozenset[Clustering] | None:
    """The clusterings of the rows that `PartitionState` needs to fold these updates; None: all rows of the
    partition.

    All are needed if a deletion covers many rows, if static cells change, or if bytes do not identify a row.
    """
    if order.has_statics or not order.exact:
        return None
    needed: set[Clustering] = set()
    for update in updates:
        if update.deletion is not None or update.range_tombstones or update.static_row is not None:
            return None
        needed.update(row.clustering for row in update.rows if row.clustering is not None)
    return frozenset(needed)


def fold(
    state: PartitionState,
    updates: Sequence[SourcedUpdate],
    *,
    order: ClusteringOrder,
    now: int,
    since: int | None = None,
    policy: Policy = POLICY,
) -> FoldResult:
    """Apply the updates in writetime order; `now` (s) decides what is visible, both before and after.

    `since` (s), if given, is the `now` of the fold that made the state: expiries in between become changes
    with the reason "expiry" before all others, so that each `before` equals the last `after` across batches.
    The arguments are not modified.
    """
    folding = _Folding(state, order, now, policy)
    if since is not None and since < now:
        folding.expire(since)
    applied = [False] * len(updates)
    for number in _writetime_order(updates):
        applied[number] = folding.apply(updates[number])
    return folding.result(tuple(Outcome(sourced.source, done) for sourced, done in zip(updates, applied, strict=True)))


def _writetime_order(updates: Sequence[SourcedUpdate]) -> list[int]:
    """Indexes of the updates by greatest timestamp, then by content, so that reruns and other replicas'
    copies have the same order."""
    timestamps = [max_timestamp(sourced.update) for sourced in updates]
    frequency = Counter(timestamps)

    def rank(number: int) -> tuple[int, str]:
        timestamp = timestamps[number]
        return timestamp, repr(updates[number].update) if frequency[timestamp] > 1 else ""

    return sorted(range(len(updates)), key=rank)


@dataclass(slots=True)
class _Before:
    """The visible content before a step: the changed rows (without statics), the static cells, the number of
    visible clustered rows."""

    static_cells: tuple[Cell, ...]
    shown: int
    rows: dict[Hashable, VisibleRow | None] = field(default_factory=dict)


class _Folding:
    """The working copy of a state. Rows are keyed by identity (see ClusteringOrder); a step reads only the
    rows it changes."""

    def __init__(self, state: PartitionState, order: ClusteringOrder, now: int, policy: Policy) -> None:
        self._order = order
        self._policy = policy
        self._now = now
        self._start = state
        self._head = state.head
        self._deletions = PartitionDeletions(order)
        self._static: Row | None = None
        if state.head is not None:
            self._deletions.delete_partition(state.head.deletion)
            for tombstone in state.head.range_tombstones:
                self._deletions.delete_range(tombstone)
            self._static = state.head.static_row
        self._rows: dict[Hashable, Row] = {order.identity(clustering): row for clustering, row in state.rows.items()}
        self._index = _Index(order, self._rows)
        self._changed: dict[Hashable, Clustering] = {}
        self._static_cells = self._live_statics(now)
        # Only static content that may stand alone needs to know how many rows show.
        self._shown = sum(self._visible(identity) is not None for identity in self._rows) if order.has_statics else 0
        self._changes: list[RowChange] = []

    # --- steps

    def apply(self, sourced: SourcedUpdate) -> bool:
        """Merge one update and record the visible changes. Returns False if the state did not change."""
        update = sourced.update
        before = _Before(self._static_cells, self._shown)
        if self._head is None:
            self._head = PartitionUpdate(update.table_id, update.key)
        # Every part must be applied whatever the others did: no short circuit.
        changed = [
            self._delete_partition(update, before),
            *(self._delete_range(tombstone, before) for tombstone in update.range_tombstones),
            # Also what the partition deletion leaves of the one that is there.
            self._merge_static(update.static_row),
            *(self._merge_row(row, before) for row in update.rows),
        ]
        if not any(changed):
            return False
        explain = _Explanation(update, self._order)
        self._compare(before, sourced.source, lambda _, clustering, after: (max_timestamp(update), explain.reason(clustering, after)))
        return True

    def expire(self, since: int) -> None:
        """Record the rows that were visible differently at `since`, without a write in between."""
        now, self._now = self._now, since
        before = _Before(self._live_statics(since), 0)
        before.rows = {identity: self._visible(identity) for identity in self._rows}
        before.shown = sum(row is not None for row in before.rows.values())
        self._now = now
        self._compare(
            before, None, lambda row, _clustering, _after: (_last_expiry((row, self._static), since, now) * MICROSECONDS, "expiry")
        )

    def result(self, outcomes: tuple[Outcome, ...]) -> FoldResult:
        rows = {row.clustering: row for row in self._rows.values() if row.clustering is not None}
        changed = {clustering: rows.get(clustering) for clustering in self._changed.values()}
        head = self._settled_head()
        return FoldResult(
            state=PartitionState(head, rows),
            head_changed=head != self._start.head,
            changed_rows={clustering: row for clustering, row in changed.items() if row != self._start.rows.get(clustering)},
            outcomes=outcomes,
            changes=tuple(self._changes),
        )

    # --- the parts of an update

    def _delete_partition(self, update: PartitionUpdate, before: _Before) -> bool:
        if not self._deletions.delete_partition(update.deletion):
            return False
        for identity in list(self._rows):
            self._settle(identity, before)
        return True

    def _delete_range(self, tombstone: RangeTombstone, before: _Before) -> bool:
        if not self._deletions.delete_range(tombstone):
            return False
        for identity in self._index.between(self._order.start(tombstone.start), self._order.end(tombstone.end)):
            self._settle(identity, before)
        return True

    def _merge_static(self, row: Row | None) -> bool:
        active, counter = self._deletions.partition, self._order.counter
        merged = merge_static_rows(self._static, row, active=active, counter=counter, policy=self._policy)
        if merged == self._static:
            return False
        self._static = merged
        self._static_cells = self._live_statics(self._now)
        return True

    def _merge_row(self, row: Row, before: _Before) -> bool:
        clustering = row.clustering or ()
        identity = self._order.identity(clustering)
        active = self._deletions.covering(self._index.position(identity, clustering))
        mine = self._rows.get(identity) or Row(clustering)
        merged = merge_rows(mine, row, active=active, counter=self._order.counter, policy=self._policy)
        return self._replace(identity, merged, before)

    def _settle(self, identity: Hashable, before: _Before) -> None:
        row = self._rows.get(identity)
        if row is not None:
            active = self._deletions.covering(self._index.position(identity, row.clustering or ()))
            self._replace(identity, settle_row(row, active=active, counter=self._order.counter), before)

    def _replace(self, identity: Hashable, row: Row, before: _Before) -> bool:
        """Replace the stored row; an empty row removes it. Returns whether the state changed."""
        old = self._rows.get(identity)
        if old == row or (old is None and row.is_empty):
            return False
        shown = self._visible(identity)
        before.rows.setdefault(identity, shown)
        self._changed[identity] = row.clustering or ()
        if row.is_empty:
            del self._rows[identity]
        else:
            self._rows[identity] = row
        self._shown += (self._visible(identity) is not None) - (shown is not None)
        return True

    # --- what shows

    def _visible(self, identity: Hashable) -> VisibleRow | None:
        row = self._rows.get(identity)
        return None if row is None else visible(row, now=self._now, dropped=self._order.dropped)

    def _live_statics(self, now: int) -> tuple[Cell, ...]:
        return live_cells(self._static, now=now, dropped=self._order.dropped)

    def _compare(
        self, before: _Before, source: object, say: Callable[[Row | None, Clustering | None, VisibleRow | None], tuple[int, Reason | None]]
    ) -> None:
        """Append the changes since `before`: rows in clustering order; static content without a clustered row
        comes first if it disappears, last if it appears."""
        if before.static_cells != self._static_cells:
            for identity in self._rows:
                before.rows.setdefault(identity, self._visible(identity))

        def note(row: Row | None, clustering: Clustering | None, was: VisibleRow | None, becomes: VisibleRow | None) -> None:
            if was != becomes:
                timestamp, reason = say(row, clustering, becomes)
                self._changes.append(RowChange(clustering, was, becomes, source, timestamp, reason))

        alone_before = None if before.shown else statics_alone(before.static_cells)
        alone_after = None if self._shown else statics_alone(self._static_cells)
        if alone_after is None:
            note(self._static, None, alone_before, None)
        for identity in self._index.ordered(before.rows):
            was = with_statics(before.rows[identity], before.static_cells)
            becomes = with_statics(self._visible(identity), self._static_cells)
            note(self._rows.get(identity), self._index.clustering(identity), was, becomes)
        if alone_after is not None:
            note(self._static, None, alone_before, alone_after)

    def _settled_head(self) -> PartitionUpdate | None:
        partition, tombstones = self._deletions.partition, self._deletions.tombstones()
        if self._head is None or (partition is None and not tombstones and self._static is None):
            return None
        return replace(self._head, deletion=partition, static_row=self._static, rows=(), range_tombstones=tombstones)


class _Index:
    """Positions of rows. Each is computed once, and sorted when a range needs them. Removed rows keep their
    identity."""

    def __init__(self, order: ClusteringOrder, rows: Mapping[Hashable, Row]) -> None:
        self._order = order
        self._rows = rows
        self._known: dict[Hashable, tuple[Position, Clustering]] = {}
        self._sorted: list[tuple[Position, Hashable]] | None = None

    def position(self, identity: Hashable, clustering: Clustering) -> Position:
        known = self._known.get(identity)
        if known is None:
            known = self._known[identity] = self._order.key(clustering), clustering
            if self._sorted is not None:
                insort(self._sorted, (known[0], identity), key=_position)
        return known[0]

    def clustering(self, identity: Hashable) -> Clustering:
        row = self._rows.get(identity)
        return self._known[identity][1] if row is None or row.clustering is None else row.clustering

    def between(self, start: Position, end: Position) -> list[Hashable]:
        """The rows known so far between two ends of a range."""
        if self._sorted is None:
            self._know(self._rows)
            self._sorted = sorted(((position, identity) for identity, (position, _) in self._known.items()), key=_position)
        low = bisect_left(self._sorted, start, key=_position)
        return [identity for _, identity in self._sorted[low : bisect_right(self._sorted, end, key=_position)]]

    def ordered(self, identities: Iterable[Hashable]) -> list[Hashable]:
        listed = list(identities)
        self._know(listed)
        return sorted(listed, key=lambda identity: self._known[identity][0])

    def _know(self, identities: Iterable[Hashable]) -> None:
        for identity in identities:
            row = self._rows.get(identity)
            if row is not None:
                self.position(identity, row.clustering or ())


def _position(entry: tuple[Position, Hashable]) -> Position:
    return entry[0]


class _Explanation:
    """Why an update changes a visible row: its part that concerns the row most directly."""

    def __init__(self, update: PartitionUpdate, order: ClusteringOrder) -> None:
        self._update = update
        self._order = order
        self._rows = {order.identity(row.clustering or ()): row for row in update.rows}

    def reason(self, clustering: Clustering | None, after: VisibleRow | None) -> Reason | None:
        if clustering is None:
            return "static" if self._update.static_row is not None or self._update.deletion is None else "partition_delete"
        row = self._rows.get(self._order.identity(clustering))
        written = row is not None and (row.liveness is not None or bool(row.cells or row.complex_deletions))
        if written and after is not None:
            return None
        if row is not None and row.deletion is not None:
            return "row_delete"
        if self._in_range(clustering):
            return "range_delete"
        if self._update.deletion is not None:
            return "partition_delete"
        return None if written else "static"

    def _in_range(self, clustering: Clustering) -> bool:
        position = self._order.key(clustering)
        return any(
            self._order.start(tombstone.start) < position < self._order.end(tombstone.end) for tombstone in self._update.range_tombstones
        )


def _last_expiry(rows: Iterable[Row | None], since: int, now: int) -> int:
    """The latest second in (since, now] at which something in the rows expired; `now` if nothing did."""
    ends: list[int] = []
    for row in rows:
        if row is not None:
            ends += (cell.local_deletion_time for cell in row.cells if cell.is_expiring)
            ends += () if row.liveness is None else (row.liveness.expires_at,)
    return max((end for end in ends if since < end <= now), default=now)


def merge_updates(a: PartitionUpdate, b: PartitionUpdate, order: ClusteringOrder, *, policy: Policy = POLICY) -> PartitionUpdate:
    """The settled merge of two updates of the same partition: deletions united, rows merged, shadowed content
    removed, rows in clustering order.

    Only the partition deletion shadows the static row, ranges do not. If equal clusterings have different
    bytes (decimal 1.0 and 1.00 compare as equal), those of `a` are kept.
    """
    deletions = PartitionDeletions(order)
    deletions.delete_partition(merge_deletions(a.deletion, b.deletion))
    for tombstone in (*a.range_tombstones, *b.range_tombstones):
        deletions.delete_range(tombstone)
    return replace(
        a,
        deletion=deletions.partition,
        static_row=merge_static_rows(a.static_row, b.static_row, active=deletions.partition, counter=order.counter, policy=policy),
        rows=_merge_clustered((*a.rows, *b.rows), deletions, order, policy),
        range_tombstones=deletions.tombstones(),
    )


def _merge_clustered(rows: Iterable[Row], deletions: PartitionDeletions, order: ClusteringOrder, policy: Policy) -> tuple[Row, ...]:
    merged: dict[Hashable, Row] = {}
    for row in rows:
        identity = order.identity(row.clustering or ())
        active = deletions.covering(order.key(row.clustering or ()))
        known = merged.get(identity) or Row(row.clustering)
        merged[identity] = merge_rows(known, row, active=active, counter=order.counter, policy=policy)
    kept = [row for row in merged.values() if not row.is_empty]
    return tuple(sorted(kept, key=lambda row: order.key(row.clustering or ())))
