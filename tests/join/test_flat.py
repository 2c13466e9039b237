"""Flat rows: one form for one content, and the readable twin and the compiled one alike on whatever can be merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.join.join_oracle import KEY, TABLE_ID, deletions, rows, static_rows
from writetime.join import flat, kernel
from writetime.join.flat import Engine
from writetime.join.partition import max_timestamp
from writetime.join.reconcile import merge_rows, settle_row
from writetime.join.view import visible
from writetime.model import DeletionTime, PartitionUpdate, Row


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Not on the clock of the first example."""
    kernel.compile_ahead()


ANY_ROW = rows | static_rows


@given(ANY_ROW)
def test_a_row_comes_back_sorted(row: Row) -> None:
    back = flat.decode(flat.encode(row))
    assert flat.encode(back) == flat.encode(row)
    assert flat.decode(flat.encode(settle_row(row))) == settle_row(row)
    assert sorted(map(repr, back.cells)) == sorted(map(repr, row.cells))
    assert (back.clustering, back.liveness, back.deletion, back.complex_deletions) == (
        row.clustering,
        row.liveness,
        row.deletion,
        row.complex_deletions,
    )


@given(ANY_ROW, ANY_ROW)
def test_settled_rows_are_equal_if_their_bytes_are(a: Row, b: Row) -> None:
    a, b = settle_row(a), settle_row(b)
    assert (a == b) == (flat.encode(a) == flat.encode(b))


ENGINES: tuple[Engine, ...] = ("python", "numba")
TAGGED = {"a": 2, "m": 1, "gone": 2**63}


def flat_or_nothing(row: Row | None) -> bytes:
    return flat.NOTHING if row is None else flat.encode(row)


pairs = st.tuples(rows, rows) | st.tuples(static_rows, static_rows)
actives = st.none() | deletions


@pytest.mark.parametrize("engine", ENGINES)
@given(pairs, actives)
def test_merging(engine: Engine, pair: tuple[Row, Row], active: DeletionTime | None) -> None:
    a, b = pair
    merged = merge_rows(a, b, active=active)
    expected = flat.NOTHING if merged.is_empty else flat.encode(merged)
    assert flat.merge(flat.encode(a), flat.encode(b), active=active, engine=engine) == expected
    alone = settle_row(b, active=active)
    assert flat.settle(flat.encode(b), active=active, engine=engine) == (flat.NOTHING if alone.is_empty else flat.encode(alone))


@pytest.mark.parametrize("engine", ENGINES)
@given(ANY_ROW, st.sampled_from([{}, TAGGED]), st.integers(99, 103))
def test_what_is_there_to_be_asked(engine: Engine, row: Row, dropped: dict[str, int], now: int) -> None:
    whole = flat.encode(row)
    back = flat.decode(whole)
    shows = visible(back, now=now, dropped=dropped)
    assert flat.live(whole, now, dropped, engine=engine) == flat_or_nothing(shows and Row(shows.clustering, cells=shows.cells))
    ends = [cell.local_deletion_time for cell in row.cells if cell.is_expiring]
    ends += [row.liveness.expires_at] if row.liveness and row.liveness.ttl in (1, 2) else []
    assert flat.next_expiry(whole, now, engine=engine) == min((end for end in ends if end > now), default=None)
    update = PartitionUpdate(TABLE_ID, KEY, rows=(row,))
    assert flat.max_timestamp(whole, engine=engine) == max_timestamp(update)
