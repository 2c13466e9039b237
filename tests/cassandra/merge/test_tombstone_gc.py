"""Purging: nothing that shows changes, now or after any newer write; and only what is old enough goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import (
    COUNTERS,
    KEY,
    NOW,
    TABLE_ID,
    WITH_STATICS,
    counter_updates,
    i32,
    update,
    updates,
)
from tests.cassandra.merge.partition import PartitionState, SourcedUpdate, fold
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.liveness import VisibleRow, visible_rows
from writetime.cassandra.merge.tombstone_gc import (
    MARGIN,
    RowPurger,
    may_purge,
    newer_than,
    newest_purged,
    purge_before,
    purge_head,
)
from writetime.cassandra.model import (
    MICROSECONDS,
    NO_TIMESTAMP,
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Table

ORDER = ClusteringOrder(WITH_STATICS, {})
NEWER = 10


def state_of(found: Sequence[PartitionUpdate], table: Table = WITH_STATICS, start: PartitionState | None = None) -> PartitionState:
    order = ClusteringOrder(table, {})
    return fold(start or PartitionState(), [SourcedUpdate(each) for each in found], order=order, now=NOW).state


def purged(state: PartitionState, before: int, table: Table = WITH_STATICS) -> PartitionState:
    purger = RowPurger(state.head, ClusteringOrder(table, {}), before)
    rows = {clustering: row for clustering, each in state.rows.items() if (row := purger.purge(each)) is not None}
    return PartitionState(None if state.head is None else purge_head(state.head, before), rows)


def shown(state: PartitionState, now: int) -> list[VisibleRow]:
    static = state.head.static_row if state.head else None
    found = visible_rows(static, [state.rows[clustering] for clustering in sorted(state.rows)], now=now)
    return [replace(row, cells=tuple(sorted(row.cells, key=repr))) for row in found]


def younger(update: PartitionUpdate) -> PartitionUpdate:
    """The same, later than anything that the strategies make."""

    def deletion(of: DeletionTime | None) -> DeletionTime | None:
        return None if of is None else replace(of, marked_for_delete_at=of.marked_for_delete_at + NEWER)

    def row(of: Row | None) -> Row | None:
        return of and replace(
            of,
            liveness=of.liveness and replace(of.liveness, timestamp=of.liveness.timestamp + NEWER),
            deletion=deletion(of.deletion),
            cells=tuple(replace(cell, timestamp=cell.timestamp + NEWER) for cell in of.cells),
            complex_deletions={column: made for column, by in of.complex_deletions.items() if (made := deletion(by))},
        )

    ranges = [(each, deletion(each.deletion)) for each in update.range_tombstones]
    return replace(
        update,
        deletion=deletion(update.deletion),
        static_row=row(update.static_row),
        rows=tuple(made for each in update.rows if (made := row(each))),
        range_tombstones=tuple(replace(each, deletion=later) for each, later in ranges if later),
    )


befores = st.integers(100, 103)
times = st.integers(0, 3)


@given(st.lists(updates, max_size=5), befores, times)
def test_nothing_that_shows_changes(found: list[PartitionUpdate], before: int, later: int) -> None:
    state = state_of(found)
    assert shown(purged(state, before), before + later) == shown(state, before + later)


@given(st.lists(updates, max_size=4), st.lists(updates.map(younger), max_size=3), befores, times)
def test_nor_does_it_after_newer_writes(old: list[PartitionUpdate], new: list[PartitionUpdate], before: int, later: int) -> None:
    state = state_of(old)
    expected = state_of(new, start=state)
    assert shown(state_of(new, start=purged(state, before)), before + later) == shown(expected, before + later)


@given(st.lists(updates, max_size=5), befores, befores)
def test_once_is_enough_and_the_later_purge_is_the_greater(found: list[PartitionUpdate], a: int, b: int) -> None:
    state = state_of(found)
    assert purged(purged(state, a), b) == purged(state, max(a, b))
    assert purged(state, 0) == state, "nothing was deleted before the epoch"


@given(st.lists(counter_updates, max_size=4), befores)
def test_counters_show_the_same(found: list[PartitionUpdate], before: int) -> None:
    state = state_of(found, COUNTERS)
    assert shown(purged(state, before, COUNTERS), before) == shown(state, before)


def test_everything_that_can_die_goes_in_its_second_and_not_before() -> None:
    dead = DeletionTime(5, 100)
    row = Row(
        (i32(1), i32(1)),
        liveness=Liveness(7, 2, 100),
        deletion=dead,
        cells=(Cell("a", 7, b"", None, 0, 100), Cell("b", 7, b"x", None, 2, 100), Cell("m", 7, b"", i32(1), 0, 100)),
        complex_deletions={"m": DeletionTime(6, 100)},
    )
    everything = RangeTombstone(Bound((), True), Bound((), True), DeletionTime(4, 100))
    static = Row(None, cells=(Cell("s", 7, b"", None, 0, 100),))
    state = state_of([update(deletion=DeletionTime(3, 100), range_tombstones=(everything,), static_row=static, rows=(row,))])
    assert state.head is not None
    assert state.head.deletion
    assert state.head.range_tombstones
    assert state.head.static_row
    assert state.rows[row.clustering or ()] == row
    assert purged(state, 100) == state
    assert purged(state, 101) == PartitionState(None, {})


def test_the_newest_writetime_that_went_is_known() -> None:
    """Not that of what stays, nor of what nothing could beat any more."""
    dead, alive = DeletionTime(6, 50), DeletionTime(8, 500)
    row = Row((i32(1), i32(1)), deletion=dead, cells=(Cell("a", 7, b"", None, 0, 50), Cell("b", 9, i32(1))), complex_deletions={"m": alive})
    left = RowPurger(None, ORDER, 100).purge(row)
    assert newest_purged(row, left) == 7
    assert newest_purged(row, None) == 9
    assert newest_purged(row, row) == NO_TIMESTAMP
    head = PartitionUpdate(TABLE_ID, KEY, deletion=DeletionTime(5, 50), static_row=Row(None, cells=(Cell("s", 4, i32(3)),)))
    assert newest_purged(head, purge_head(head, 100)) == 5


@given(st.lists(updates, max_size=5), befores)
def test_what_a_replay_takes_in_after_a_purge_changes_nothing(found: list[PartitionUpdate], before: int) -> None:
    state = state_of(found)
    left = purged(state, before)
    gone = [newest_purged(state.head, left.head), *(newest_purged(row, left.rows.get(place)) for place, row in state.rows.items())]
    again = [newer_than(max(gone), each, counter=False) for each in found]
    assert state_of(again, start=left) == left


def test_what_lives_stays() -> None:
    row = Row((i32(1), i32(1)), liveness=Liveness(7), cells=(Cell("a", 7, i32(1)), Cell("b", 7, b"x", None, 50, 10**6)))
    state = state_of([update(static_row=Row(None, cells=(Cell("s", 7, i32(3)),)), rows=(row,))])
    assert purged(state, 10**5) == state


def test_what_the_head_shadows_does_not_come_to_light_with_it() -> None:
    """A row that was not settled against its head, as none ought to be."""
    head = PartitionUpdate(TABLE_ID, KEY, deletion=DeletionTime(9, 50))
    row = Row((i32(1), i32(1)), liveness=Liveness(7), cells=(Cell("a", 9, i32(1)),))
    assert purged(PartitionState(head, {row.clustering or (): row}), 100) == PartitionState(None, {})


def test_gc_grace_and_no_less_than_the_margin() -> None:
    assert purge_before(10**9, 864_000) == 10**9 - 864_000
    assert purge_before(10**9, 0) == 10**9 - MARGIN
    assert purge_before(10**9, 60, margin=30) == 10**9 - 60


FUTURE = [100 * MICROSECONDS, 2**63 - 2, 2**63 - 1]
"""Writetimes at and above the clock of a purge before the second 100."""


@pytest.mark.parametrize(
    ("writetime", "dead_since", "expected"),
    [
        (100 * MICROSECONDS - 1, 99, True),
        (100 * MICROSECONDS - 1, 100, False),
        (100 * MICROSECONDS, 99, False),
        (2**63 - 1, 99, False),
        (-(2**63) + 1, 99, True),
        (-(2**63) + 1, -1, True),
        (0, 2**63 - 1, False),
    ],
)
def test_nothing_is_purged_that_was_written_above_the_purge_clock(writetime: int, dead_since: int, expected: bool) -> None:
    assert may_purge(writetime, dead_since, 100) is expected


@pytest.mark.parametrize("future", FUTURE)
def test_tombstones_of_the_future_stay_and_still_win(future: int) -> None:
    dead = DeletionTime(future, 50)
    everywhere = RangeTombstone(Bound((), True), Bound((), True), dead)
    row = Row((i32(1), i32(1)), deletion=dead, shadowable=False)
    parts = Row(
        (i32(1), i32(2)),
        liveness=Liveness(future, 2, 50),
        cells=(Cell("a", future, b"", None, 0, 50), Cell("b", future, b"x", None, 2, 50)),
        complex_deletions={"m": dead},
    )
    static = Row(None, cells=(Cell("s", future, b"", None, 0, 50),))
    for each in (update(deletion=dead), update(range_tombstones=(everywhere,)), update(rows=(row, parts)), update(static_row=static)):
        state = state_of([each])
        assert purged(state, 100) == state
    late = Row(row.clustering, liveness=Liveness(future - 1))
    assert shown(state_of([update(rows=(late,))], start=purged(state_of([update(rows=(row,))]), 100)), NOW) == []


def test_a_purge_beside_a_tombstone_of_the_future_leaves_replays_open() -> None:
    """What was written at or after the purge clock comes in again, whatever writetimes the table has seen."""
    future, old = DeletionTime(2**63 - 1, 50), DeletionTime(5, 50)
    rows = tuple(Row((i32(1), i32(number)), deletion=by) for number, by in enumerate((future, old)))
    state = state_of([update(rows=rows)])
    left = purged(state, 100)
    assert set(left.rows) == {rows[0].clustering}
    assert max(newest_purged(row, left.rows.get(place)) for place, row in state.rows.items()) == 5


times = st.one_of(st.integers(-(2**63) + 1, 2**63 - 1), st.integers(99 * MICROSECONDS, 101 * MICROSECONDS))


@given(st.lists(st.tuples(times, st.integers(0, 2**32 - 3)), min_size=1, max_size=4), st.integers(0, 2**32))
def test_what_was_purged_is_older_than_the_purge_clock(deletions: list[tuple[int, int]], before: int) -> None:
    rows = tuple(Row((i32(1), i32(number)), deletion=DeletionTime(*each)) for number, each in enumerate(deletions))
    state = state_of([update(rows=rows)])
    left = purged(state, before)
    gone = [newest_purged(row, left.rows.get(place)) for place, row in state.rows.items()]
    assert max(gone) < before * MICROSECONDS or max(gone) == NO_TIMESTAMP
