"""The streaming fold: same states and events as other implementations, at the right seconds, with minimal
reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import (
    COUNTERS,
    KEYS,
    NOW,
    REGULARS,
    STATICS,
    WITH_STATICS,
    WITHOUT_STATICS,
    Fact,
    answer,
    as_answer,
    counter_updates,
    i32,
    make_table,
    update,
    updates,
)
from tests.cassandra.merge.partition import PartitionState, SourcedUpdate, fold, merge_updates
from tests.cassandra.merge.streaming import (
    Change,
    Result,
    Store,
    replay,
    run,
    visible,
)
from tests.examples import examples
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import Clustering, ClusteringOrder
from writetime.cassandra.merge.liveness import VisibleRow, visible_rows
from writetime.cassandra.merge.partition_fold import (
    Deleted,
    Deletes,
    Event,
    Head,
    Item,
    RowRecord,
    Settings,
)
from writetime.cassandra.merge.partition_fold import fold as stream_fold
from writetime.cassandra.merge.reconcile import Policy, max_timestamp
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import DroppedColumn
from writetime.cassandra.types.byte_comparable import RowKeys

ORDER = ClusteringOrder(WITH_STATICS, {})
BARE_ORDER = ClusteringOrder(WITHOUT_STATICS, {})
COUNTER_ORDER = ClusteringOrder(COUNTERS, {})
SECOND = 1_000_000
Shown = dict[Clustering | None, VisibleRow]
often = settings(max_examples=examples(60))
history_of_updates = st.lists(updates, max_size=6)


def named(history: Iterable[PartitionUpdate]) -> list[tuple[object, PartitionUpdate]]:
    return list(enumerate(history))


def merged(history: Iterable[PartitionUpdate], order: ClusteringOrder = ORDER, *, policy: Policy = "4.0") -> PartitionUpdate:
    state = update()
    for each in history:
        state = merge_updates(state, each, order, policy=policy)
    return state


def shown_by(store: Store, now: int, order: ClusteringOrder = ORDER) -> Shown:
    static = store.head.update.static_row if store.head.update else None
    rows = (row_codec.decode(row) for row in store.rows.values())
    return {row.clustering: row for row in visible_rows(static, rows, now=now, dropped=order.dropped)}


def expect_true_records(store: Store, now: int, order: ClusteringOrder = ORDER) -> None:
    """The stored metadata is correct: the next expiry of records and the number of visible rows."""
    static = store.head.update.static_row if store.head.update else None
    rows = {**store.rows, **({b"": row_codec.encode(static)} if static else {})}
    expiries = {key: second for key, row in rows.items() if (second := row_codec.next_expiry(row, now, engine="python")) is not None}
    assert store.expiries == expiries
    if static is not None:
        assert store.head.shown in (None, sum(row_codec.shows(row, now, order.dropped, engine="python") for row in store.rows.values()))
    assert all(store.rows.values())


def by_row(changes: Iterable[Change]) -> dict[Clustering | None, list[Change]]:
    rows: dict[Clustering | None, list[Change]] = defaultdict(list)
    for change in changes:
        rows[change[0]].append(change)
    return rows


@pytest.mark.parametrize("engine", ["python", "numba"])
@pytest.mark.parametrize("policy", ["4.0", "3.11"])
@often
@given(history_of_updates)
def test_one_batch_at_a_standing_clock_is_the_fold_of_whole_partitions(
    policy: Policy, engine: row_codec.Engine, history: list[PartitionUpdate]
) -> None:
    store = Store()
    result = run(store, named(history), ORDER, now=NOW, since=NOW, policy=policy, engine=engine)
    sourced = [SourcedUpdate(u, number) for number, u in enumerate(history)]
    whole = fold(PartitionState(), sourced, order=ORDER, now=NOW, policy=policy)
    assert store.as_update(update()) == merged(history, policy=policy)
    assert by_row(result.changes) == by_row((c.clustering, c.before, c.after, c.source, c.ts_micro) for c in whole.changes)
    assert set(result.applied) == {outcome.source for outcome in whole.outcomes if outcome.applied}
    expect_true_records(store, NOW)


def without(shown: Shown, deleted: Deleted, order: ClusteringOrder) -> Shown:
    """What a deletion of many rows leaves of them."""
    if deleted.tombstone is None:
        return {}
    start, end = order.start(deleted.tombstone.start), order.end(deleted.tombstone.end)
    return {row: what for row, what in shown.items() if row is None or not start < order.key(row) < end}


def followed(result: Result, shown: Shown, order: ClusteringOrder = ORDER) -> Shown:
    """The table of a consumer that applies deletions of many rows first, and then the published events."""
    view = dict(shown)
    for deleted in result.deleted:
        view = without(view, deleted, order)
    told = [change for event, change in zip(result.events, result.changes, strict=True) if not event.taken]
    return replay(told, view)


def followed_in_order(result: Result, shown: Shown, order: ClusteringOrder = ORDER) -> Shown:
    """The table of a consumer that applies published events by writetime, expiries before others of their time;
    each of a row must start from what the consumer has."""
    view = dict(shown)
    told: list[tuple[tuple[int, bool], Deleted | Change]] = [((each.ts_micro, True), each) for each in result.deleted]
    for event, change in zip(result.events, result.changes, strict=True):
        if not event.taken:
            told.append(((event.ts_micro, event.reason != "expiry"), change))
    # Of equal times, deletions are first, as they have been added first.
    for _, each in sorted(told, key=itemgetter(0)):
        view = without(view, each, order) if isinstance(each, Deleted) else replay([each], view)
    return view


@often
@given(history_of_updates, history_of_updates, st.integers(0, 3), st.booleans())
def test_deletions_at_their_place_and_the_events_by_writetime_lead_from_what_was_to_what_is(
    first: list[PartitionUpdate], second: list[PartitionUpdate], passed: int, moves: bool
) -> None:
    """Each event begins with what its row was by then. The clock stands at each write, or meets the expiries of 100
    to 102 and late writes in the second batch."""
    store, since = Store(), NOW if moves else 99
    first = first if moves else later(first)
    second = later(second) if moves else [*second[:2], *later(second[2:])]
    begun = run(store, named(first), ORDER, now=since, since=since, deletes="placed")
    shown = followed_in_order(begun, {})
    assert shown == shown_by(store, since) == replay(begun.changes, {})
    now = since + passed
    result = run(store, named(second), ORDER, now=now, since=since, deletes="placed")
    assert followed_in_order(result, shown) == replay(result.changes, shown) == shown_by(store, now)
    assert store.as_update(update()) == merged([*first, *second])
    expect_true_records(store, now)


def test_a_deletion_at_its_place_takes_a_row_that_was_gone_by_then() -> None:
    """What is written again is created."""
    row, store = (i32(1), i32(2)), Store()
    shown = followed_in_order(run(store, named([insert(row, 1, 1)]), ORDER, now=NOW, since=NOW, deletes="placed"), {})
    history = [no_row(row, 5), update(deletion=DeletionTime(6, 1)), insert(row, 7, 2)]
    result = run(store, named(history), ORDER, now=NOW, since=NOW, deletes="placed")
    assert followed_in_order(result, shown) == shown_by(store, NOW)
    assert not result.events[-1].before.row


@pytest.mark.parametrize("deletes", ["rows", "one", "placed"])
def test_static_content_that_a_late_delete_of_the_partition_leaves_alone(deletes: Deletes) -> None:
    store = Store()
    run(store, named([static(40, 1), insert((i32(1), i32(2)), 10, 1)]), ORDER, now=NOW, since=NOW, deletes=deletes)
    late = run(store, named([update(deletion=DeletionTime(30, 1))]), ORDER, now=NOW, since=NOW, deletes=deletes)
    (alone,) = late.of(None)
    assert (alone.before.row, alone.reason) == (b"", "partition_delete")


@often
@given(history_of_updates, history_of_updates, st.booleans())
def test_deletions_as_one_event_and_the_others_lead_from_what_was_to_what_is(
    first: list[PartitionUpdate], second: list[PartitionUpdate], moves: bool
) -> None:
    """Each event begins with what its row was by then, over two batches; what the table holds follows all of
    them, taken ones too."""
    store, now = Store(), NOW + 1 if moves else NOW
    begun = run(store, named(first), ORDER, now=NOW, since=NOW, deletes="one")
    shown = followed(begun, {})
    assert shown == shown_by(store, NOW)
    result = run(store, named(second), ORDER, now=now, since=NOW, deletes="one")
    assert followed(result, shown) == replay(result.changes, shown) == shown_by(store, now)


@often
@given(st.lists(counter_updates, max_size=6))
def test_counters_fold_to_where_merging_ends(history: list[PartitionUpdate]) -> None:
    store = Store()
    result = run(store, named(history), COUNTER_ORDER, now=NOW, since=NOW)
    assert store.as_update(update()) == merged(history, COUNTER_ORDER)
    assert replay(result.changes, {}) == shown_by(store, NOW)


def later(history: Iterable[PartitionUpdate]) -> list[PartitionUpdate]:
    """The same with writetimes from second 98 on, so that the writes meet the expiries of 100 to 102."""

    def moved(value: Any) -> Any:
        if isinstance(value, DeletionTime):
            return replace(value, marked_for_delete_at=(98 + value.marked_for_delete_at) * SECOND)
        if isinstance(value, (Liveness, Cell)):
            return replace(value, timestamp=(98 + value.timestamp) * SECOND)
        if isinstance(value, tuple):
            return tuple(moved(each) for each in value)
        if isinstance(value, dict):
            return {name: moved(each) for name, each in value.items()}
        if isinstance(value, RangeTombstone):
            return replace(value, deletion=moved(value.deletion))
        if isinstance(value, Row):
            parts = {name: moved(getattr(value, name)) for name in ("liveness", "deletion", "cells", "complex_deletions")}
            return replace(value, **parts)
        return value

    return [
        replace(u, **{name: moved(getattr(u, name)) for name in ("deletion", "static_row", "rows", "range_tombstones")}) for u in history
    ]


def naive_chain(
    history: list[PartitionUpdate], *, before: list[PartitionUpdate], since: int | None, now: int
) -> dict[Any, list[tuple[set[Fact] | None, set[Fact] | None, int]]]:
    """Per row what shows before and after, and when (µs), by asking at every second and after every update
    what the whole would answer."""
    clock, seen = (0 if since is None else since), list(before)
    answers = [answer(seen, clock)]
    times: list[int] = []

    def ask(ts: int) -> None:
        answers.append(answer(seen, clock))
        times.append(ts)

    for each in sorted(history, key=lambda u: (max_timestamp(u), repr(u))):
        second = min(max_timestamp(each) // SECOND, now)
        while clock < second:
            clock += 1
            ask(clock * SECOND)
        seen.append(each)
        ask(max_timestamp(each))
    while clock < now:
        clock += 1
        ask(clock * SECOND)
    chain: dict[Any, list[tuple[set[Fact] | None, set[Fact] | None, int]]] = defaultdict(list)
    for ts, old, new in zip(times, answers, answers[1:], strict=False):
        for row in {*old, *new}:
            if old.get(row) != new.get(row):
                chain[row].append((old.get(row), new.get(row), ts))
    return chain


def facts(row: VisibleRow | None) -> set[Fact] | None:
    return None if row is None else next(iter(as_answer([(row.clustering, (*row.cells, *row.static_cells))]).values()))


def as_chain(result: Result) -> dict[Any, list[tuple[set[Fact] | None, set[Fact] | None, int]]]:
    chain: dict[Any, list[tuple[set[Fact] | None, set[Fact] | None, int]]] = defaultdict(list)
    for clustering, before, after, _, ts in result.changes:
        place = next(iter(as_answer([(clustering, ())])))
        chain[place].append((facts(before), facts(after), ts))
    return chain


@often
@given(history_of_updates, st.integers(99, 103))
def test_the_clock_stops_at_every_write_and_expiry(history: list[PartitionUpdate], now: int) -> None:
    history = later(history)
    store = Store()
    result = run(store, named(history), ORDER, now=now)
    assert as_chain(result) == naive_chain(history, before=[], since=None, now=now)
    expect_true_records(store, now)


@often
@given(st.lists(st.tuples(st.lists(updates, max_size=2), st.integers(0, 2)), max_size=4))
def test_batch_after_batch_the_clock_goes_on(batches: list[tuple[list[PartitionUpdate], int]]) -> None:
    store, since, now = Store(), None, 98
    seen: list[PartitionUpdate] = []
    for batch, passed in batches:
        now += passed
        history = later(batch)
        result = run(store, named(history), ORDER, now=now, since=since)
        assert as_chain(result) == naive_chain(history, before=seen, since=since, now=now)
        seen += history
        since = now
        assert store.as_update(update()) == merged(seen)
        expect_true_records(store, now)


@often
@given(history_of_updates, st.randoms(use_true_random=False))
def test_any_order_repetition_and_batching_ends_the_same(history: list[PartitionUpdate], random: Random) -> None:
    again = [*history, *random.sample(history, len(history) // 2)]
    random.shuffle(again)
    store, shown, since, now = Store(), Shown(), None, 98
    while again:
        size = random.randint(1, len(again))
        batch, again = again[:size], again[size:]
        result = run(store, named(later(batch)), ORDER, now=now, since=since)
        shown = replay(result.changes, shown)
        assert shown == shown_by(store, now)
        since, now = now, now + random.randint(0, 2)
    assert store.as_update(update()) == merged(later(history))


@often
@given(history_of_updates, st.integers(99, 103))
def test_both_engines_fold_alike(history: list[PartitionUpdate], now: int) -> None:
    one, other = Store(), Store()
    assert run(one, named(later(history)), ORDER, now=now) == run(other, named(later(history)), ORDER, now=now, engine="numba")
    assert (one.head, one.rows, one.expiries) == (other.head, other.rows, other.expiries)


# --- single steps


def at(c: int, d: int = 0) -> Clustering:
    return i32(c), i32(d)


def key(c: int, d: int = 0) -> bytes:
    return RowKeys(WITH_STATICS, {}).key(at(c, d))


def insert(clustering: Clustering, timestamp: int, value: int) -> PartitionUpdate:
    return update(rows=(Row(clustering, liveness=Liveness(timestamp), cells=(Cell("a", timestamp, i32(value)),)),))


def static(timestamp: int, value: int) -> PartitionUpdate:
    return update(static_row=Row(None, cells=(Cell("s", timestamp, i32(value)),)))


def no_row(clustering: Clustering, timestamp: int) -> PartitionUpdate:
    return update(rows=(Row(clustering, deletion=DeletionTime(timestamp, 1)),))


def a_range(start: tuple[bytes, ...], timestamp: int) -> PartitionUpdate:
    """From a clustering prefix, exclusive, to the end."""
    return update(range_tombstones=(RangeTombstone(Bound(start, False), Bound((), True), DeletionTime(timestamp, 1)),))


def after(*history: PartitionUpdate, order: ClusteringOrder = BARE_ORDER) -> Store:
    store = Store()
    run(store, named(history), order, now=NOW, since=NOW)
    store.read.clear()
    return store


def fold_one(store: Store, *history: PartitionUpdate, order: ClusteringOrder = BARE_ORDER) -> Result:
    return run(store, named(history), order, now=NOW, since=NOW)


THREE = [insert(at(1), 1, 1), insert(at(2), 1, 2), insert(at(3), 1, 3)]

EXPANDED = {
    "a row deletion": (no_row(at(2), 5), [at(2)], "row_delete"),
    "a range over two": (a_range((i32(1),), 5), [at(2), at(3)], "range_delete"),
    "the partition": (update(deletion=DeletionTime(5, 1)), [at(1), at(2), at(3)], "partition_delete"),
    "a cell tombstone leaves an INSERTed row": (update(rows=(Row(at(1), cells=(Cell("a", 5, local_deletion_time=1),)),)), [at(1)], None),
}


@pytest.mark.parametrize(("delete", "touched", "reason"), EXPANDED.values(), ids=EXPANDED)
def test_a_deletion_becomes_one_event_per_row_that_showed(delete: PartitionUpdate, touched: list[Clustering], reason: str | None) -> None:
    store = after(*THREE)
    result = fold_one(store, delete)
    assert [change[0] for change in result.changes] == touched
    assert {event.reason for event in result.events} == {reason}
    assert all((not event.after.row) == (reason is not None) for event in result.events)
    assert fold_one(store, *THREE).events == []


def test_a_deletion_in_the_same_update_as_a_newer_write_is_no_delete() -> None:
    both = replace(a_range((), 5), rows=insert(at(1), 6, 9).rows)
    result = fold_one(after(*THREE), both)
    assert [(change[0], event.reason, bool(event.after.row)) for change, event in zip(result.changes, result.events, strict=True)] == [
        (at(1), None, True),
        (at(2), "range_delete", False),
        (at(3), "range_delete", False),
    ]


def test_static_content_stands_alone_until_a_row_comes_and_again_when_the_last_one_goes() -> None:
    steps = [static(1, 7), insert(at(1), 2, 1), static(3, 8), no_row(at(1), 4), static(5, 9)]
    result = fold_one(Store(), *steps, order=ORDER)
    seen = [(e.ts_micro, e.key, bool(e.before.row), bool(e.after.row), e.reason) for e in result.events]
    assert sorted(seen, key=lambda event: event[1]) == [
        (1, b"", False, True, "static"),
        (2, b"", True, False, "static"),
        (4, b"", False, True, "static"),
        (5, b"", True, True, "static"),
        (2, key(1), False, True, None),
        (3, key(1), True, True, "static"),
        (4, key(1), True, False, "row_delete"),
    ]


def test_a_row_that_lived_for_two_seconds_shows_for_two_seconds() -> None:
    row = Row(at(1), Liveness(50 * SECOND, 2, 52), cells=(Cell("a", 50 * SECOND, i32(1), ttl=2, local_deletion_time=52),))
    store = Store()
    result = run(store, named([update(rows=(row,))]), BARE_ORDER, now=NOW)
    assert [(e.ts_micro, e.reason, e.source, bool(e.after.row)) for e in result.events] == [
        (50 * SECOND, None, 0, True),
        (52 * SECOND, "expiry", None, False),
    ]
    # For consumers of events of a later second, it was never visible.
    assert run(Store(), named([update(rows=(row,))]), BARE_ORDER, now=NOW, since=60).events == []


# --- what is read, and what is held


def test_no_more_is_read_than_a_batch_touches() -> None:
    many = [insert(at(c, d), 1, c) for c in range(3) for d in range(3)]
    store = after(*many)
    fold_one(store, insert(at(1, 1), 2, 5))
    assert store.read == [key(1, 1)]
    store.read.clear()
    fold_one(store, a_range((i32(1),), 3))
    assert store.read == [key(2, 2), key(2, 1), key(2, 0)]
    store.read.clear()
    # Of no effect any more, so there is nothing to look at.
    fold_one(store, a_range((i32(1),), 3), a_range((i32(1),), 2))
    assert store.read == []


def test_with_static_content_a_row_is_still_one_row() -> None:
    store = after(static(1, 7), *THREE, order=ORDER)
    assert store.head.shown == 3
    result = fold_one(store, insert(at(1), 2, 5), no_row(at(2), 2), order=ORDER)
    assert store.read == [key(1), key(2)]
    assert (store.head.shown, len(result.events)) == (2, 2)
    store.read.clear()
    assert len(fold_one(store, static(3, 8), order=ORDER).events) == 2
    assert set(store.read) == {key(1), key(2), key(3)}
    assert [e.key for e in fold_one(store, no_row(at(1), 4), no_row(at(3), 4), order=ORDER).events] == [key(1), key(3), b""]


def test_static_content_does_not_stand_alone_beside_rows_that_a_batch_does_not_touch() -> None:
    store = after(static(1, 7), *THREE, order=ORDER)
    result = fold_one(store, no_row(at(2), 2), order=ORDER)
    assert ([event.key for event in result.events], store.read, store.head.shown) == ([key(2)], [key(2)], 2)


def test_rows_that_nobody_has_counted_are_counted_when_it_matters() -> None:
    store = after(static(1, 7), *THREE, order=ORDER)
    store.head = Head(store.head.update, None)
    assert [e.key for e in fold_one(store, no_row(at(1), 2), order=ORDER).events] == [key(1)]
    assert store.head.shown == 2


class Endless:
    """An endless state, of which a fold may have read only slightly more than it has returned."""

    def __init__(self) -> None:
        self.given = 0

    def get(self, key: bytes) -> bytes:
        return b""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            self.given += 1
            yield key(self.given), row_codec.encode(insert(at(self.given), 1, 1).rows[0])


def test_a_deletion_of_more_rows_than_fit_is_a_stream() -> None:
    state = Endless()
    head = Item(5, b"", 0, "node", update(deletion=DeletionTime(5, 1)))
    outputs = stream_fold(Settings(BARE_ORDER, RowKeys(WITHOUT_STATICS, {}), NOW, NOW), Head(), [head], (), state)
    for _ in range(300):
        next(outputs)
        assert state.given <= 151
    event, record = next(outputs), next(outputs)
    assert isinstance(event, Event)
    assert isinstance(record, RowRecord)
    assert (event.key, event.reason, record.key, record.row) == (key(150), "partition_delete", key(150), b"")


def test_a_row_of_more_versions_than_fit_is_a_stream() -> None:
    given = 0

    def versions() -> Iterator[Item]:
        nonlocal given
        while True:
            given += 1
            yield Item(given, b"", given, "node", row_codec.encode(insert(at(1), given, given).rows[0]))

    settings_ = Settings(BARE_ORDER, RowKeys(WITHOUT_STATICS, {}), NOW, NOW)
    outputs = stream_fold(settings_, Head(), (), [(key(1), versions())], Store())
    events = 0
    while events < 200:
        events += isinstance(next(outputs), Event)
        assert given <= events + 2


def test_what_a_dropped_column_held_is_not_to_be_seen() -> None:
    table = make_table(*KEYS, *STATICS, *REGULARS, dropped_columns={"a": DroppedColumn("a", "regular", "int", 5)})
    order = ClusteringOrder(table, {})
    only_dropped = update(rows=(Row(at(1), cells=(Cell("a", 5, i32(1)),)),))
    assert fold_one(Store(), only_dropped, order=order).events == []
    (event,) = fold_one(Store(), update(rows=(Row(at(1), cells=(Cell("a", 6, i32(1)),)),)), order=order).events
    shown = visible(event.after)
    assert shown is not None
    assert [cell.timestamp for cell in shown.cells] == [6]


def dropping(**dropped: int) -> ClusteringOrder:
    """The table after columns were dropped, at these times, and added again."""
    columns = {name: DroppedColumn(name, "static" if name == "s" else "regular", "int", at) for name, at in dropped.items()}
    return ClusteringOrder(replace(WITH_STATICS, dropped_columns=columns), {})


drops = st.fixed_dictionaries({}, optional={"a": st.integers(0, 6), "s": st.integers(0, 6)})


@often
@given(history_of_updates, drops, drops, st.lists(updates, max_size=3))
def test_columns_that_are_dropped_or_come_back_show_in_rows_that_nobody_touches(
    history: list[PartitionUpdate], first: dict[str, int], then: dict[str, int], more: list[PartitionUpdate]
) -> None:
    before, order = dropping(**first), dropping(**then)
    store = Store()
    run(store, named(history), before, now=NOW, since=NOW)
    shown = shown_by(store, NOW, before)
    # As `head.decode_head` has it: what was counted under other columns is not known.
    store.head = Head(store.head.update, None)
    result = run(store, named(more), order, now=NOW, since=NOW, dropped_before=before.dropped)
    assert replay(result.changes, shown) == shown_by(store, NOW, order)
    expect_true_records(store, NOW, order)
    if not more:
        assert {event.reason for event in result.events} <= {"alter"}


@often
@given(history_of_updates, st.lists(updates, max_size=3), drops)
def test_all_that_shows_is_told_again(history: list[PartitionUpdate], more: list[PartitionUpdate], gone: dict[str, int]) -> None:
    order, store, other = dropping(**gone), Store(), Store()
    for each in (store, other):
        run(each, named(history), order, now=NOW, since=NOW)
    result = run(store, named(more), order, now=NOW, since=NOW, again=True)
    assert replay(result.changes, {}) == shown_by(store, NOW, order)
    # The state is that of a batch that tells nothing again.
    run(other, named(more), order, now=NOW, since=NOW)
    assert (store.rows, store.head.update) == (other.rows, other.head.update)
    if not more:
        assert {event.reason for event in result.events} <= {"again"}
        assert all(event.ts_micro == NOW * 1_000_000 for event in result.events)


def test_a_row_of_a_dropped_column_alone_goes_with_it() -> None:
    store = Store()
    only = update(rows=(Row(at(1), cells=(Cell("a", 5, i32(1)),)), insert(at(2), 5, 5).rows[0]))
    run(store, [(0, only)], dropping(), now=NOW, since=NOW)
    events = run(store, [], dropping(a=5), now=NOW, since=NOW, dropped_before={}).events
    assert [(event.key, bool(event.after.row), event.reason, event.ts_micro) for event in events] == [
        (key(1), False, "alter", 5),
        (key(2), True, "alter", 5),
    ]
    assert run(store, [], dropping(a=5), now=NOW, since=NOW, dropped_before={"a": 5}).events == []


@pytest.mark.parametrize("dropped_at", [-5, 0])
def test_a_drop_that_the_ring_dates_to_the_epoch_or_before_is_told_too(dropped_at: int) -> None:
    store = Store()
    run(store, [(0, update(rows=(Row(at(1), cells=(Cell("a", -7, i32(1)),)),)))], dropping(), now=NOW, since=NOW)
    events = run(store, [], dropping(a=dropped_at), now=NOW, since=NOW, dropped_before={}).events
    assert [(event.key, bool(event.after.row), event.reason) for event in events] == [(key(1), False, "alter")]
