"""Folding batches into a partition: the state's laws, the chain of changes, and what becomes of each
update."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import (
    COUNTERS,
    NOW,
    WITH_STATICS,
    WITHOUT_STATICS,
    answer,
    as_answer,
    counter_updates,
    i32,
    update,
    updates,
    updates_of,
)
from tests.cassandra.merge.partition import FoldResult, PartitionState, RowChange, SourcedUpdate, fold, merge_updates, rows_needed
from writetime.cassandra.merge.clustering import Clustering, ClusteringOrder
from writetime.cassandra.merge.liveness import VisibleRow, visible_rows
from writetime.cassandra.merge.reconcile import max_timestamp
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    PartitionUpdate,
    RangeTombstone,
    Row,
)

ORDER = ClusteringOrder(WITH_STATICS, {})
BARE_ORDER = ClusteringOrder(WITHOUT_STATICS, {})
COUNTER_ORDER = ClusteringOrder(COUNTERS, {})
Shown = dict[Clustering | None, VisibleRow]


def sourced(history: Iterable[PartitionUpdate]) -> list[SourcedUpdate]:
    return [SourcedUpdate(u, number) for number, u in enumerate(history)]


def merged(history: list[PartitionUpdate], order: ClusteringOrder) -> PartitionUpdate:
    state = update()
    for u in history:
        state = merge_updates(state, u, order)
    return state


def as_update(state: PartitionState, order: ClusteringOrder) -> PartitionUpdate:
    """Head and rows in one, to compare with what merging whole updates gives."""
    head = state.head or update()
    rows = tuple(sorted(state.rows.values(), key=lambda row: order.key(row.clustering or ())))
    return PartitionUpdate(head.table_id, head.key, head.deletion, head.static_row, rows, head.range_tombstones)


def shown_by(state: PartitionState, now: int) -> Shown:
    static = state.head.static_row if state.head else None
    return {row.clustering: row for row in visible_rows(static, state.rows.values(), now=now)}


def replay(changes: Iterable[RowChange], shown: Shown | None = None) -> Shown:
    """Follow the changes; each must start from where the last one of its row ended."""
    rows = dict(shown or {})
    for change in changes:
        assert change.before != change.after
        assert rows.pop(change.clustering, None) == change.before
        if change.after is not None:
            assert change.after.clustering == change.clustering
            rows[change.clustering] = change.after
    return rows


def stored(result: FoldResult, before: PartitionState) -> PartitionState:
    """What a store holds after the upserts that the result asks for."""
    rows: dict[Clustering, Row] = dict(before.rows)
    for clustering, row in result.changed_rows.items():
        rows.pop(clustering, None)
        if row is not None:
            rows[clustering] = row
    return PartitionState(result.state.head if result.head_changed else before.head, rows)


@given(st.lists(updates, max_size=6))
def test_one_batch_ends_where_merging_ends_and_shows_what_the_oracle_says(history: list[PartitionUpdate]) -> None:
    result = fold(PartitionState(), sourced(history), order=ORDER, now=NOW)
    assert as_update(result.state, ORDER) == merged(history, ORDER)
    shown = replay(result.changes)
    assert shown == shown_by(result.state, NOW)
    assert as_answer((row.clustering, (*row.cells, *row.static_cells)) for row in shown.values()) == answer(history, NOW)


@given(st.lists(updates, max_size=6), st.randoms(use_true_random=False))
def test_any_order_repetition_and_batching_ends_the_same(history: list[PartitionUpdate], random: Random) -> None:
    again = [*history, *random.sample(history, len(history) // 2)]
    random.shuffle(again)
    state, shown = PartitionState(), Shown()
    while again:
        size = random.randint(1, len(again))
        batch, again = again[:size], again[size:]
        result = fold(state, sourced(batch), order=ORDER, now=NOW)
        state = stored(result, state)
        assert state == result.state
        shown = replay(result.changes, shown)
        assert shown == shown_by(state, NOW)
    assert state == fold(PartitionState(), sourced(history), order=ORDER, now=NOW).state


@given(st.lists(updates, max_size=6))
def test_a_second_fold_of_the_same_changes_nothing(history: list[PartitionUpdate]) -> None:
    first = fold(PartitionState(), sourced(history), order=ORDER, now=NOW)
    second = fold(first.state, sourced(history), order=ORDER, now=NOW)
    assert (second.state, second.changed, second.changes, second.applied) == (first.state, (), (), 0)
    assert second.superseded == len(history)


@given(st.lists(updates, max_size=6))
def test_changes_come_in_writetime_order_and_only_from_applied_updates(history: list[PartitionUpdate]) -> None:
    result = fold(PartitionState(), sourced(history), order=ORDER, now=NOW)
    times = [change.ts_micro for change in result.changes]
    assert times == sorted(times)
    assert [outcome.source for outcome in result.outcomes] == list(range(len(history)))
    applied = {outcome.source for outcome in result.outcomes if outcome.applied}
    for change in result.changes:
        assert change.source in applied
        assert change.ts_micro == max_timestamp(history[change.source])  # type: ignore[call-overload]


@given(st.lists(updates, max_size=6), st.randoms(use_true_random=False))
def test_the_changes_do_not_depend_on_the_order_within_a_batch(history: list[PartitionUpdate], random: Random) -> None:
    shuffled = random.sample(history, len(history))
    one = fold(PartitionState(), [SourcedUpdate(u) for u in history], order=ORDER, now=NOW)
    other = fold(PartitionState(), [SourcedUpdate(u) for u in shuffled], order=ORDER, now=NOW)
    assert one.changes == other.changes


@given(st.lists(st.tuples(st.lists(updates, max_size=2), st.integers(0, 2)), max_size=4))
def test_with_since_the_chain_holds_while_time_goes_on(batches: list[tuple[list[PartitionUpdate], int]]) -> None:
    state, shown, now = PartitionState(), Shown(), 99
    for batch, passed in batches:
        result = fold(state, sourced(batch), order=ORDER, now=now + passed, since=now)
        now += passed
        state, shown = result.state, replay(result.changes, shown)
        assert shown == shown_by(state, now)


@given(st.lists(updates_of(statics=False), max_size=5), st.lists(updates_of(statics=False), max_size=2))
def test_a_fold_needs_no_more_rows_than_it_asks_for(history: list[PartitionUpdate], batch: list[PartitionUpdate]) -> None:
    whole = fold(PartitionState(), sourced(history), order=BARE_ORDER, now=NOW).state
    needed = rows_needed(batch, BARE_ORDER)
    part = PartitionState(whole.head, {c: row for c, row in whole.rows.items() if needed is None or c in needed})
    of_whole, of_part = (fold(state, sourced(batch), order=BARE_ORDER, now=NOW) for state in (whole, part))
    assert (of_part.changes, of_part.outcomes, of_part.changed_rows) == (of_whole.changes, of_whole.outcomes, of_whole.changed_rows)
    assert (of_part.state.head, of_part.head_changed) == (of_whole.state.head, of_whole.head_changed)


@given(st.lists(counter_updates, max_size=6))
def test_counters_fold_to_where_merging_ends(history: list[PartitionUpdate]) -> None:
    result = fold(PartitionState(), sourced(history), order=COUNTER_ORDER, now=NOW)
    assert as_update(result.state, COUNTER_ORDER) == merged(history, COUNTER_ORDER)
    assert replay(result.changes) == shown_by(result.state, NOW)


# --- single steps


def at(c: int, d: int = 0) -> Clustering:
    return i32(c), i32(d)


def insert(clustering: Clustering, timestamp: int, value: int) -> PartitionUpdate:
    return update(rows=(Row(clustering, liveness=Liveness(timestamp), cells=(Cell("a", timestamp, i32(value)),)),))


def static(timestamp: int, value: int) -> PartitionUpdate:
    return update(static_row=Row(None, cells=(Cell("s", timestamp, i32(value)),)))


THREE = [insert(at(1), 1, 1), insert(at(2), 1, 2), insert(at(3), 1, 3)]

EXPANDED = {
    "a row deletion": (update(rows=(Row(at(2), deletion=DeletionTime(5, 1)),)), [at(2)], "row_delete"),
    "a range over two": (
        update(range_tombstones=(RangeTombstone(Bound((i32(1),), False), Bound((), True), DeletionTime(5, 1)),)),
        [at(2), at(3)],
        "range_delete",
    ),
    "the partition": (update(deletion=DeletionTime(5, 1)), [at(1), at(2), at(3)], "partition_delete"),
    "a cell tombstone leaves an INSERTed row": (update(rows=(Row(at(1), cells=(Cell("a", 5, local_deletion_time=1),)),)), [at(1)], None),
}


@pytest.mark.parametrize(("delete", "touched", "reason"), EXPANDED.values(), ids=EXPANDED)
def test_a_deletion_becomes_one_change_per_row_that_showed(delete: PartitionUpdate, touched: list[Clustering], reason: str | None) -> None:
    state = fold(PartitionState(), sourced(THREE), order=BARE_ORDER, now=NOW).state
    result = fold(state, sourced([delete]), order=BARE_ORDER, now=NOW)
    assert [change.clustering for change in result.changes] == touched
    assert {change.reason for change in result.changes} == {reason}
    assert all((change.after is None) == (reason is not None) for change in result.changes)
    assert fold(result.state, sourced(THREE), order=BARE_ORDER, now=NOW).changes == ()


def test_a_deletion_in_the_same_update_as_a_newer_write_is_no_delete() -> None:
    both = update(
        rows=(Row(at(1), liveness=Liveness(6), cells=(Cell("a", 6, i32(9)),)),),
        range_tombstones=(RangeTombstone(Bound((), True), Bound((), True), DeletionTime(5, 1)),),
    )
    state = fold(PartitionState(), sourced(THREE), order=BARE_ORDER, now=NOW).state
    changes = fold(state, sourced([both]), order=BARE_ORDER, now=NOW).changes
    assert [(change.clustering, change.reason, change.after is None) for change in changes] == [
        (at(1), None, False),
        (at(2), "range_delete", True),
        (at(3), "range_delete", True),
    ]


def test_a_deletion_of_nothing_is_applied_and_seen_by_nobody_and_beats_what_comes_late() -> None:
    gone = fold(PartitionState(), sourced([update(rows=(Row(at(1), deletion=DeletionTime(5, 1)),))]), order=BARE_ORDER, now=NOW)
    assert (gone.applied, gone.changes) == (1, ())
    late = fold(gone.state, sourced([insert(at(1), 4, 1)]), order=BARE_ORDER, now=NOW)
    assert (late.applied, late.superseded, late.changed, late.changes) == (0, 1, (), ())


def test_a_row_that_a_partition_deletion_covers_leaves_the_state() -> None:
    state = fold(PartitionState(), sourced(THREE), order=BARE_ORDER, now=NOW).state
    result = fold(state, sourced([update(deletion=DeletionTime(5, 1))]), order=BARE_ORDER, now=NOW)
    assert result.state.rows == {}
    assert result.changed_rows == {at(1): None, at(2): None, at(3): None}
    assert result.changed == (None, at(1), at(2), at(3))
    assert result.state.head == update(deletion=DeletionTime(5, 1))


def test_rewriting_the_same_value_is_a_change_for_its_writetime_is_seen() -> None:
    state = fold(PartitionState(), sourced(THREE[:1]), order=BARE_ORDER, now=NOW).state
    (change,) = fold(state, sourced([insert(at(1), 2, 1)]), order=BARE_ORDER, now=NOW).changes
    assert change.before is not None
    assert change.after is not None
    assert [cell.timestamp for cell in (*change.before.cells, *change.after.cells)] == [1, 2]
    only_liveness = update(rows=(Row(at(1), liveness=Liveness(3)),))
    quiet = fold(state, sourced([only_liveness]), order=BARE_ORDER, now=NOW)
    assert (quiet.applied, quiet.changes) == (1, ())


def test_static_content_stands_alone_until_a_row_comes_and_again_when_the_last_one_goes() -> None:
    steps = [static(1, 7), insert(at(1), 2, 1), static(3, 8), update(rows=(Row(at(1), deletion=DeletionTime(4, 1)),)), static(5, 9)]
    result = fold(PartitionState(), sourced(steps), order=ORDER, now=NOW)
    seen = [(change.ts_micro, change.clustering, change.before is None, change.after is None, change.reason) for change in result.changes]
    assert seen == [
        (1, None, True, False, "static"),
        (2, None, False, True, "static"),
        (2, at(1), True, False, None),
        (3, at(1), False, False, "static"),
        (4, at(1), False, True, "row_delete"),
        (4, None, True, False, "static"),
        (5, None, False, False, "static"),
    ]


def test_an_expiry_is_told_at_the_second_it_fell_due() -> None:
    expiring = update(rows=(Row(at(1), cells=(Cell("a", 1, i32(1), ttl=10, local_deletion_time=100),)),))
    state = fold(PartitionState(), sourced([expiring]), order=BARE_ORDER, now=99).state
    (change,) = fold(state, (), order=BARE_ORDER, now=105, since=99).changes
    assert (change.after, change.ts_micro, change.reason, change.source) == (None, 100_000_000, "expiry", None)
    assert fold(state, (), order=BARE_ORDER, now=105, since=100).changes == ()


def test_inputs_are_left_as_they_were() -> None:
    state = fold(PartitionState(), sourced(THREE), order=BARE_ORDER, now=NOW).state
    copy = PartitionState(state.head, dict(state.rows))
    fold(state, sourced([update(deletion=DeletionTime(5, 1))]), order=BARE_ORDER, now=NOW)
    assert state == copy
