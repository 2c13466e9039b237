"""Clustering order: positions of rows and range ends, one case a fact of Cassandra's comparator."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.cassandra.merge.join_oracle import KEYS, i32, make_table, update
from tests.cassandra.merge.partition import merge_updates, rows_needed
from writetime.cassandra.merge.clustering import Clustering, ClusteringOrder
from writetime.cassandra.model import Bound, Cell, DeletionTime, Row
from writetime.cassandra.schema.model import Column, DroppedColumn


def order_of(*types: str, descending: bool = False) -> ClusteringOrder:
    return ClusteringOrder(make_table(KEYS[0], *(Column(f"c{n}", "clustering", kind, n, descending) for n, kind in enumerate(types))), {})


ASCENDING = {
    "int": (order_of("int"), [None, b"", i32(-1), i32(0), i32(1)]),
    "text": (order_of("text"), [None, b"", b"a", b"ab", b"\xc3\xa9"]),
    "int descending: empty turns round too, null does not": (order_of("int", descending=True), [None, i32(1), i32(0), i32(-1), b""]),
}


@pytest.mark.parametrize(("order", "values"), ASCENDING.values(), ids=ASCENDING)
def test_values(order: ClusteringOrder, values: list[bytes | None]) -> None:
    keys = [order.key((value,)) for value in values]
    assert all(left < right and left != right for left, right in pairwise(keys))


def test_range_ends_stand_around_the_rows_of_their_prefix() -> None:
    order = order_of("int", "int", descending=True)
    one = (i32(1),)
    line = [
        order.start(Bound((), True)),
        order.key((i32(2), i32(0))),
        order.start(Bound(one, True)),
        order.key((*one, None)),
        order.start(Bound((*one, i32(5)), True)),
        order.key((*one, i32(5))),
        order.start(Bound((*one, i32(5)), False)),
        order.key((*one, i32(4))),
        order.start(Bound(one, False)),
        order.key((i32(0), i32(9))),
        order.end(Bound((), True)),
    ]
    assert all(left < right for left, right in pairwise(line))
    assert order.end(Bound(one, True)) == order.start(Bound(one, False))
    assert order.end(Bound(one, False)) == order.start(Bound(one, True))
    assert order.start(Bound((), False)) == line[0]


def test_a_table_without_clustering_has_one_row_in_every_range() -> None:
    order = order_of()
    assert order.start(Bound((), True)) < order.key(()) < order.end(Bound((), True))


SAME_ROW = {
    "decimal": (b"\0\0\0\x01\x0a", b"\0\0\0\x02\x64"),
    "boolean": (b"\x01", b"\x02"),
    "varint": (b"\x01", b"\x00\x01"),
}


@pytest.mark.parametrize(("kind", "spellings"), SAME_ROW.items(), ids=SAME_ROW)
def test_clusterings_that_compare_as_equal_name_one_row(kind: str, spellings: tuple[bytes, bytes]) -> None:
    order = order_of(kind)
    older, newer = (update(rows=(Row((spelling,), cells=(Cell("a", at, b""),)),)) for at, spelling in enumerate(spellings))
    assert merge_updates(older, newer, order).rows == (Row((spellings[0],), cells=(Cell("a", 1, b""),)),)
    assert rows_needed([newer], order) is None


def test_rows_needed_are_those_named_unless_many_are_meant() -> None:
    order = order_of("int")
    clustering: Clustering = (i32(1),)
    assert rows_needed([update(rows=(Row(clustering),))], order) == {clustering}
    assert rows_needed([update(deletion=DeletionTime(1, 1))], order) is None
    with_statics = ClusteringOrder(make_table(*KEYS, Column("s", "static", "int")), {})
    assert rows_needed([update(rows=(Row(clustering),))], with_statics) is None


def test_cells_of_a_column_that_came_back_are_gone_up_to_its_drop() -> None:
    gone = {name: DroppedColumn(name, "regular", "int", dropped_at=5) for name in ("a", "z")}
    order = ClusteringOrder(make_table(*KEYS, Column("a", "regular", "int"), dropped_columns=gone), {})
    assert order.dropped["a"] == 5
    assert order.dropped["z"] > 2**62
