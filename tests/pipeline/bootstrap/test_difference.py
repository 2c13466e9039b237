"""What is merged into a row of the state makes it the ring's, and a second time nothing is."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.cassandra.merge import row_codec, unknown_marker
from writetime.cassandra.merge.counters import Shard, encode_context, statement, total
from writetime.cassandra.merge.liveness import is_live, live_cells
from writetime.cassandra.merge.reconcile import merge_rows
from writetime.cassandra.merge.stand_ins import is_unknown
from writetime.cassandra.model import Cell, Liveness, Row
from writetime.pipeline.bootstrap.difference import Comparison
from writetime.pipeline.bootstrap.rows import Reading

NOW = 1_700_000_000
AS_OF = NOW * 1_000_000
READING = Reading(AS_OF, NOW)
KEY = (b"\0\0\0\1",)
OLD, NEW = AS_OF - 50, AS_OF + 50


def merged(comparison: Comparison, state: Row | None, ring: Row | None) -> Row:
    """The state after the reading; asks again, and expects nothing."""
    old = state or Row(KEY)
    fix = comparison.row(state, ring, READING)
    after = merge_rows(old, fix or Row(KEY), counter=comparison.counter)
    assert comparison.row(after, ring, READING) is None, "a second reading adds something"
    return after


def shown(row: Row) -> dict[tuple[str, bytes | None], tuple[bytes, int]]:
    return {(cell.column, cell.path): (cell.value, cell.timestamp) for cell in live_cells(row, now=NOW)}


def test_what_is_new_comes_with_its_writetimes_and_a_liveness_as_of_the_reading() -> None:
    ring = Row(KEY, cells=(Cell("a", 5, b"x"), Cell("b", 7, b"y")))
    after = merged(Comparison(), None, ring)
    assert after.cells == ring.cells
    assert unknown_marker.is_unknown_liveness(after.liveness)
    assert row_codec.decode(row_codec.encode(after)) == after


def test_a_row_that_the_ring_does_not_show_gets_a_tombstone_of_its_own_timestamp() -> None:
    state = Row(KEY, Liveness(OLD), cells=(Cell("a", OLD - 1, b"x"),))
    fix = Comparison().row(state, None, READING)
    assert fix is not None
    assert fix.deletion is not None
    assert fix.deletion.marked_for_delete_at == OLD
    assert merged(Comparison(), state, None).liveness is None


@pytest.mark.parametrize("complete", [True, False])
def test_what_is_younger_than_the_reading_is_left_to_the_log(complete: bool) -> None:
    state = Row(KEY, Liveness(NEW), cells=(Cell("a", NEW, b"x"), Cell("b", OLD, b"y")))
    after = merged(Comparison(complete=complete), state, None)
    assert after.liveness == Liveness(NEW)
    assert shown(after).keys() == ({("a", None)} if complete else {("a", None), ("b", None)})


def test_cells_and_elements_that_are_gone_go_alone() -> None:
    state = Row(
        KEY, Liveness(OLD), cells=(Cell("a", OLD, b"x"), Cell("b", OLD, b"y"), Cell("m", OLD, b"1", b"k"), Cell("m", OLD, b"2", b"l"))
    )
    ring = Row(KEY, cells=(Cell("b", OLD, b"y"), Cell("m", OLD, b"2", b"l")))
    assert shown(merged(Comparison(), state, ring)) == shown(ring)


def test_an_expiry_that_is_told_less_exactly_changes_nothing() -> None:
    state = Row(KEY, Liveness(OLD), cells=(Cell("a", OLD, b"x", None, 600, NOW + 300),))
    ring = Row(KEY, cells=(Cell("a", OLD, b"x", None, unknown_marker.UNKNOWN_TTL, NOW + 299),))
    assert Comparison().row(state, ring, READING) is None


def test_the_log_wins_over_what_was_read_of_the_same_cell() -> None:
    logged = Cell("a", OLD, b"x", None, 600, NOW + 300)
    read = replace(logged, ttl=unknown_marker.UNKNOWN_TTL)
    assert merge_rows(Row(KEY, cells=(read,)), Row(KEY, cells=(logged,))).cells == (logged,)


# --- liveness


def test_a_row_that_only_the_opaque_liveness_shows_is_to_be_read_again() -> None:
    row = merged(Comparison(), None, Row(KEY, cells=(Cell("a", OLD, b"x"),)))
    assert not is_unknown(row, NOW)
    gone = merge_rows(row, Row(KEY, cells=(Cell("a", NEW, b"", None, 0, NOW),)))
    assert is_live(gone.liveness, NOW)
    assert is_unknown(gone, NOW)
    later = Reading(AS_OF + 10_000_000, NOW + 10)
    fix = Comparison().row(gone, None, later)
    assert fix is not None
    assert not is_live(merge_rows(gone, fix).liveness, NOW)


def test_a_later_reading_does_not_doubt_what_the_log_knows_in_full() -> None:
    state = Row(KEY, cells=(Cell("a", OLD, b"x"),))
    ring = Row(KEY, cells=(Cell("a", OLD, b"x"),))
    assert Comparison().row(state, ring, READING) is None
    assert Comparison(first=True).row(state, ring, READING) == Row(KEY, unknown_marker.liveness(AS_OF))


# --- lists

LISTS = Comparison(lists=frozenset({"l"}))


def ours(*elements: tuple[bytes, int]) -> tuple[Cell, ...]:
    return tuple(Cell("l", at, value, unknown_marker.list_path(place, AS_OF)) for place, (value, at) in enumerate(elements))


def listed(row: Row) -> list[tuple[bytes, int]]:
    cells = [cell for cell in live_cells(row, now=NOW) if cell.column == "l"]
    return [(cell.value, cell.timestamp) for cell in sorted(cells, key=lambda cell: UUID(bytes=cell.path).time)]


def test_our_paths_are_between_those_of_prepends_and_of_appends() -> None:
    path = UUID(bytes=unknown_marker.list_path(3, 5))
    assert path.version == 1
    assert UUID(bytes=unknown_marker.list_path(2, 5)).time < path.time < uuid1().time
    assert unknown_marker.is_list_path(path.bytes)
    assert not unknown_marker.is_list_path(uuid1().bytes)


def test_copies_under_real_paths_stay_and_ours_go() -> None:
    real = tuple(Cell("l", OLD, value, uuid1().bytes) for value in (b"1", b"2"))
    ring = ours((b"1", OLD), (b"2", OLD))
    state = merge_rows(Row(KEY, Liveness(1), cells=real), Row(KEY, cells=ring))
    after = merged(LISTS, state, Row(KEY, cells=ring))
    assert listed(after) == [(b"1", OLD), (b"2", OLD)]
    assert not any(unknown_marker.is_list_path(cell.path or b"") for cell in live_cells(after, now=NOW))


@given(
    held=st.lists(st.tuples(st.sampled_from([b"1", b"2"]), st.integers(1, 3), st.booleans()), max_size=6),
    there=st.lists(st.tuples(st.sampled_from([b"1", b"2"]), st.integers(1, 3)), max_size=6),
)
def test_whatever_a_list_was_its_elements_become_the_rings(held: list[tuple[bytes, int, bool]], there: list[tuple[bytes, int]]) -> None:
    cells = tuple(
        Cell("l", at, value, uuid1().bytes if real else unknown_marker.list_path(place, AS_OF - 9_000))
        for place, (value, at, real) in enumerate(held)
    )
    state = merge_rows(Row(KEY), Row(KEY, Liveness(1), cells=cells))
    fix = LISTS.row(state, Row(KEY, cells=ours(*there)), READING)
    after = merge_rows(state, fix or Row(KEY))
    assert listed(after) == there
    assert LISTS.row(after, Row(KEY, cells=ours(*there)), READING) is None


# --- counters

COUNTS = Comparison(counter=True)
LEADER = Shard(b"a" * 16, 3, 10)


def count(total_: int, since: int = AS_OF, until: int = NEW) -> Cell:
    return Cell("c", OLD, statement(total_, since, until))


def logged(*shards: Shard) -> Row:
    return Row(KEY, cells=(Cell("c", NEW, encode_context(shards)),))


def summed(row: Row) -> int:
    return total(row.cells[0].value)


def test_a_counter_that_sums_up_is_left_alone() -> None:
    assert COUNTS.row(logged(LEADER), Row(KEY, cells=(count(10),)), READING) is None


def test_a_counter_that_is_uncertain_is_stated_again_even_if_it_sums_up() -> None:
    state = merge_rows(logged(replace(LEADER, clock=NEW + 9)), Row(KEY, cells=(count(10),)), counter=True)
    assert is_unknown(state, NOW, counter=True)
    fix = COUNTS.row(state, Row(KEY, cells=(count(10, NEW + 10, NEW + 20),)), READING)
    assert fix is not None
    assert not is_unknown(merge_rows(state, fix, counter=True), NOW, counter=True)
