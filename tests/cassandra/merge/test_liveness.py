"""What SELECT shows: life and death of cells and rows, statics, dropped columns."""

from __future__ import annotations

import pytest

from tests.cassandra.merge.join_oracle import i32
from writetime.cassandra.merge.liveness import VisibleRow, is_live, is_live_cell, visible, visible_rows
from writetime.cassandra.model import EXPIRED_LIVENESS_TTL, Cell, DeletionTime, Liveness, Row

KEY = (i32(1), i32(1))
LIVE = Cell("a", 1, b"x")
DEAD = Cell("b", 1, local_deletion_time=50)

CELLS = {
    "plain": (LIVE, True),
    "empty is not deleted": (Cell("a", 1, b""), True),
    "tombstone": (DEAD, False),
    "tombstone with a deletion time to come": (Cell("a", 1, local_deletion_time=900), False),
    "expires a second later": (Cell("a", 1, b"", ttl=5, local_deletion_time=101), True),
    "expires in this second": (Cell("a", 1, b"", ttl=5, local_deletion_time=100), False),
}


@pytest.mark.parametrize(("cell", "live"), CELLS.values(), ids=CELLS)
def test_cells(cell: Cell, live: bool) -> None:
    assert is_live_cell(cell, 100) is live


LIVENESS = {
    "none": (None, False),
    "lasting": (Liveness(1), True),
    "expires a second later": (Liveness(1, 5, 101), True),
    "expires in this second": (Liveness(1, 5, 100), False),
    "a view's mark": (Liveness(1, EXPIRED_LIVENESS_TTL, 900), False),
}


@pytest.mark.parametrize(("liveness", "live"), LIVENESS.values(), ids=LIVENESS)
def test_liveness(liveness: Liveness | None, live: bool) -> None:
    assert is_live(liveness, 100) is live


ROWS = {
    "an INSERT with nothing but its key": (Row(KEY, liveness=Liveness(1)), VisibleRow(KEY, ())),
    "an INSERT whose cells died": (Row(KEY, liveness=Liveness(1), cells=(DEAD,)), VisibleRow(KEY, ())),
    "an UPDATE": (Row(KEY, cells=(LIVE, DEAD)), VisibleRow(KEY, (LIVE,))),
    "an UPDATE whose last cell died": (Row(KEY, cells=(DEAD,)), None),
    "nothing but deletions": (Row(KEY, deletion=DeletionTime(1, 1), complex_deletions={"m": DeletionTime(2, 1)}), None),
}


@pytest.mark.parametrize(("row", "shown"), ROWS.values(), ids=ROWS)
def test_rows(row: Row, shown: VisibleRow | None) -> None:
    assert visible(row, now=100) == shown


def test_statics_stand_on_every_row_that_shows_and_alone_only_if_none_does() -> None:
    static = Row(None, cells=(Cell("s", 1, b"s"),))
    alive, gone = Row(KEY, cells=(LIVE,)), Row((i32(2), i32(1)), cells=(DEAD,))
    assert visible_rows(static, [alive, gone], now=100) == [VisibleRow(KEY, (LIVE,), static.cells)]
    assert visible_rows(static, [gone], now=100) == [VisibleRow(None, (), static.cells)]
    assert visible_rows(Row(None, cells=(DEAD,)), [gone], now=100) == visible_rows(None, [], now=100) == []


def test_cells_of_a_dropped_column_neither_show_nor_keep_a_row() -> None:
    assert visible(Row(KEY, cells=(LIVE,)), now=100, dropped={"a": 1}) is None
    assert visible(Row(KEY, cells=(LIVE,)), now=100, dropped={"a": 0, "z": 9}) == VisibleRow(KEY, (LIVE,))
