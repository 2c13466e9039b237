"""Merging whole partitions: the laws of a semilattice, and agreement with the oracle."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import (
    COUNTERS,
    NOW,
    WITH_STATICS,
    answer,
    as_answer,
    counter_updates,
    i32,
    update,
    updates,
)
from tests.cassandra.merge.partition import merge_updates
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.counters import decode_context, total
from writetime.cassandra.merge.liveness import visible_rows
from writetime.cassandra.merge.reconcile import Policy
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    PartitionUpdate,
    RangeTombstone,
    Row,
)

ORDER = ClusteringOrder(WITH_STATICS, {})
COUNTER_ORDER = ClusteringOrder(COUNTERS, {})


def merged(history: list[PartitionUpdate], order: ClusteringOrder = ORDER) -> PartitionUpdate:
    return reduce(lambda a, b: merge_updates(a, b, order), history, update())


@pytest.mark.parametrize("policy", ["4.0", "3.11"])
@given(updates, updates, updates)
def test_merging_is_associative_commutative_and_idempotent(
    policy: Policy, a: PartitionUpdate, b: PartitionUpdate, c: PartitionUpdate
) -> None:
    def merge(x: PartitionUpdate, y: PartitionUpdate) -> PartitionUpdate:
        return merge_updates(x, y, ORDER, policy=policy)

    ab = merge(a, b)
    assert ab == merge(b, a)
    assert merge(ab, c) == merge(a, merge(b, c))
    assert merge(ab, b) == ab
    assert merge(a, a) == merge(a, update())


@given(counter_updates, counter_updates, counter_updates)
def test_counters_with_global_shards_merge_by_the_same_laws(a: PartitionUpdate, b: PartitionUpdate, c: PartitionUpdate) -> None:
    ab = merge_updates(a, b, COUNTER_ORDER)
    assert ab == merge_updates(b, a, COUNTER_ORDER)
    assert merge_updates(ab, c, COUNTER_ORDER) == merge_updates(a, merge_updates(b, c, COUNTER_ORDER), COUNTER_ORDER)
    assert merge_updates(ab, b, COUNTER_ORDER) == ab


@given(st.lists(updates, max_size=6), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(history: list[PartitionUpdate], random: Random) -> None:
    again = [*history, *random.sample(history, len(history) // 2)]
    random.shuffle(again)
    assert merged(again) == merged(history)


@given(st.lists(updates, max_size=6))
def test_what_shows_is_what_the_oracle_says(history: list[PartitionUpdate]) -> None:
    state = merged(history)
    shown = visible_rows(state.static_row, state.rows, now=NOW)
    assert as_answer((row.clustering, (*row.cells, *row.static_cells)) for row in shown) == answer(history, NOW)


@given(st.lists(updates, max_size=6))
def test_range_tombstones_are_disjoint_ascending_and_joined(history: list[PartitionUpdate]) -> None:
    state = merged(history)
    pieces = [(ORDER.start(t.start), ORDER.end(t.end), t.deletion) for t in state.range_tombstones]
    assert all(start < end for start, end, _ in pieces)
    for (_, end, left), (start, _, right) in pairwise(pieces):
        assert end < start or (end == start and left != right)
    assert all(deletion.supersedes(state.deletion) for _, _, deletion in pieces)


def test_a_range_splits_a_weaker_one_and_rejoins_when_overtaken() -> None:
    weak = RangeTombstone(Bound((), True), Bound((), True), DeletionTime(1, 1))
    strong = RangeTombstone(Bound((i32(1),), True), Bound((i32(1),), True), DeletionTime(2, 1))
    split = merge_updates(update(range_tombstones=(weak,)), update(range_tombstones=(strong,)), ORDER)
    assert split.range_tombstones == (
        RangeTombstone(Bound((), True), Bound((i32(1),), False), weak.deletion),
        strong,
        RangeTombstone(Bound((i32(1),), False), Bound((), True), weak.deletion),
    )
    overtaken = RangeTombstone(weak.start, weak.end, DeletionTime(2, 1))
    assert merge_updates(split, update(range_tombstones=(overtaken,)), ORDER).range_tombstones == (overtaken,)


def test_ranges_that_touch_join_if_their_deletions_are_equal_from_either_side() -> None:
    left = RangeTombstone(Bound((), True), Bound((i32(1),), False), DeletionTime(1, 1))
    right = RangeTombstone(Bound((i32(1),), True), Bound((i32(1), i32(2)), True), DeletionTime(1, 1))
    joined = (RangeTombstone(left.start, right.end, DeletionTime(1, 1)),)
    assert merged([update(range_tombstones=(left,)), update(range_tombstones=(right,))]).range_tombstones == joined
    assert merged([update(range_tombstones=(right,)), update(range_tombstones=(left,))]).range_tombstones == joined


def test_the_static_row_fears_the_partition_deletion_only() -> None:
    static = Row(None, cells=(Cell("s", 1, i32(5)),))
    everything = RangeTombstone(Bound((), True), Bound((), True), DeletionTime(9, 1))
    assert merge_updates(update(static_row=static), update(range_tombstones=(everything,)), ORDER).static_row == static
    assert merge_updates(update(static_row=static), update(deletion=DeletionTime(1, 1)), ORDER).static_row is None


@given(st.lists(counter_updates, min_size=1, max_size=6))
def test_a_counter_is_the_sum_of_the_newest_shards_unless_it_was_deleted(history: list[PartitionUpdate]) -> None:
    state = merged(history, COUNTER_ORDER)
    for row in state.rows:
        written = [cell for u in history for r in u.rows if r.clustering == row.clustering for cell in r.cells]
        (cell,) = row.cells
        if any(c.is_tombstone for c in written):
            assert cell.is_tombstone
        elif any(not c.value for c in written):
            assert cell.value == b""
        else:
            newest: dict[bytes, tuple[int, int]] = {}
            for shard in (shard for c in written for shard in decode_context(c.value)):
                known = newest.get(shard.counter_id, (shard.clock, shard.count))
                newest[shard.counter_id] = max(known, (shard.clock, shard.count))
            assert total(cell.value) == sum(count for _, count in newest.values())
            assert cell.timestamp == max(c.timestamp for c in written)
