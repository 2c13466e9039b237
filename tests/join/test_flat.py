"""Flat rows: one form for one content, and the readable twin and the compiled one alike on whatever can be merged."""

from __future__ import annotations

from hypothesis import given

from tests.join.join_oracle import rows, static_rows
from writetime.join import flat
from writetime.join.reconcile import settle_row
from writetime.model import Row

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
