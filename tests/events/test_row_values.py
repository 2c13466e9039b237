"""Typed values of changed rows."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from tests.cassandra.merge.join_oracle import (
    COUNTERS,
    KEY,
    KEYS,
    NOW,
    WITH_STATICS,
    i32,
    make_table,
    update,
)
from tests.cassandra.merge.partition import PartitionState, RowChange, SourcedUpdate, fold
from writetime.cassandra.merge.counters import Shard, encode_context
from writetime.cassandra.merge.liveness import VisibleRow
from writetime.cassandra.model import Cell, DeletionTime, Liveness, Row
from writetime.cassandra.schema.model import Column
from writetime.errors import MalformedMutation
from writetime.events.row_values import TableView, _shown, operation, split_partition_key

VIEW = TableView(WITH_STATICS, {})
PLACE = (i32(1), i32(2))
ROW = VisibleRow(
    PLACE,
    (
        Cell("a", 10, i32(5), ttl=7, local_deletion_time=200),
        Cell("b", 11, b""),
        Cell("m", 12, i32(-1), path=i32(2)),
        Cell("m", 15, i32(1), path=i32(-2), ttl=9, local_deletion_time=300),
    ),
    (Cell("t", 3, path=i32(4)),),
)


def test_a_row_has_all_its_columns_keys_first() -> None:
    values = VIEW.row_values(KEY, ROW)
    assert list(values.items()) == [
        ("p", 7),
        ("c", 1),
        ("d", 2),
        ("s", None),
        ("t", [4]),
        ("a", 5),
        ("b", ""),
        ("m", [(-2, 1), (2, -1)]),
    ]


def test_facts_are_those_of_the_columns_that_have_a_value() -> None:
    created = event_of(RowChange(PLACE, None, ROW, None, 15, None))
    assert created["writetime"] == {"t": 3, "a": 10, "b": 11, "m": 15}
    assert created["expires_at"] == {"a": 200, "m": 300}
    deleted = event_of(RowChange(PLACE, ROW, None, None, 16, None))
    assert deleted["writetime"] == deleted["expires_at"] == {}


def test_static_content_alone_has_no_clustering() -> None:
    alone = VisibleRow(None, (), (Cell("s", 1, i32(3)),))
    assert VIEW.row_values(KEY, alone) == {"p": 7, "c": None, "d": None, "s": 3, "t": None, "a": None, "b": None, "m": None}


def test_changed_names_what_differs_in_value() -> None:
    assert VIEW.changed(None, ROW) == ("t", "a", "b", "m") == VIEW.changed(ROW, None)
    rewritten = VisibleRow(PLACE, (Cell("a", 99, i32(5)), *ROW.cells[1:]), ROW.static_cells)
    assert VIEW.changed(ROW, rewritten) == ()
    other = VisibleRow(PLACE, (Cell("a", 99, i32(6)), ROW.cells[2]))
    assert VIEW.changed(ROW, other) == ("t", "a", "b", "m")


def test_an_equal_list_with_new_elements_has_not_changed() -> None:
    view = TableView(make_table(*KEYS, Column("l", "regular", "list<int>")), {})

    def lists(time: int) -> VisibleRow:
        path = UUID(fields=(time, 0, 0x1000, 0x80, 0, 0)).bytes
        return VisibleRow(PLACE, (Cell("l", time, i32(1), path=path),))

    assert view.changed(lists(1), lists(2)) == ()
    assert view.changed(lists(1), VisibleRow(PLACE, ())) == ("l",)


def test_a_list_in_another_order_has_changed_although_the_bytes_of_its_ids_are_in_the_same() -> None:
    """A timeuuid begins with the low half of its time: the order of bytes is not that of time."""
    view = TableView(make_table(*KEYS, Column("l", "regular", "list<int>")), {})

    def row(*times: int) -> VisibleRow:
        paths = [UUID(fields=(time & 0xFFFFFFFF, time >> 32, 0x1000, 0x80, 0, 0)).bytes for time in times]
        return VisibleRow(PLACE, tuple(Cell("l", 1, i32(at), path=path) for at, path in enumerate(paths)))

    assert view.changed(row(1, 2), row(1 << 32 | 1, 2)) == ("l",)
    assert view.changed(row(1, 2), row(1 << 32 | 1, 1 << 32 | 2)) == ()


@pytest.mark.parametrize("kind", ["list<double>", "set<double>", "map<int, double>", "map<double, int>", "double", "frozen<list<double>>"])
def test_a_zero_that_changes_its_sign_has_changed(kind: str) -> None:
    """To Python the two are equal; to Cassandra, and to who reads them, they are not."""
    view = TableView(make_table(*KEYS, Column("z", "regular", kind)), {})

    def row(zero: float) -> VisibleRow:
        double = struct.pack(">d", zero)
        path = {"set<double>": double, "map<double, int>": double, "map<int, double>": i32(1)}.get(kind, bytes(16))
        value = {"set<double>": b"", "map<double, int>": i32(1), "frozen<list<double>>": i32(1) + i32(8) + double}.get(kind, double)
        return VisibleRow(PLACE, (Cell("z", 1, value, path=path if "<" in kind and "frozen" not in kind else None),))

    assert view.changed(row(0.0), row(-0.0)) == ("z",)
    assert view.changed(row(-0.0), row(-0.0)) == ()


def test_counters_are_sums() -> None:
    context = encode_context((Shard(b"\x01" * 16, 1, 5), Shard(b"\x02" * 16, 3, -2)))
    row = VisibleRow(PLACE, (Cell("n", 1, context),))
    assert TableView(COUNTERS, {}).row_values(KEY, row) == {"p": 7, "c": 1, "d": 2, "sn": None, "n": 3}


def event_of(change: RowChange) -> dict[str, Any]:
    before, after = (_shown(row) for row in (change.before, change.after))
    return VIEW.event_of(KEY, before, after, ts_micro=change.ts_micro, reason=change.reason)


def test_events_tell_created_updated_and_deleted() -> None:
    steps = [
        update(rows=(Row(PLACE, liveness=Liveness(1), cells=(Cell("a", 1, i32(1)),)),)),
        update(rows=(Row(PLACE, cells=(Cell("a", 2, i32(2), ttl=9, local_deletion_time=500),)),)),
        update(rows=(Row(PLACE, deletion=DeletionTime(3, 1)),)),
    ]
    changes = fold(PartitionState(), [SourcedUpdate(step) for step in steps], order=VIEW.order, now=NOW).changes
    created, updated, deleted = (event_of(change) for change in changes)
    nothing = {"s": None, "t": None, "b": None, "m": None}
    first, second = ({"p": 7, "c": 1, "d": 2, "a": value, **nothing} for value in (1, 2))
    key = {"p": 7, "c": 1, "d": 2}
    assert created == {
        "key": key, "before": None, "after": first, "op": "c", "changed": ["a"],
        "writetime": {"a": 1}, "expires_at": {}, "ts_micro": 1, "reason": None,
    }  # fmt: skip
    assert updated == {
        "key": key, "before": first, "after": second, "op": "u", "changed": ["a"],
        "writetime": {"a": 2}, "expires_at": {"a": 500}, "ts_micro": 2, "reason": None,
    }  # fmt: skip
    assert deleted == {
        "key": key, "before": second, "after": None, "op": "d", "changed": ["a"],
        "writetime": {}, "expires_at": {}, "ts_micro": 3, "reason": "row_delete",
    }  # fmt: skip
    assert [operation(change.before, change.after) for change in changes] == ["c", "u", "d"]


def test_a_composite_key_is_split() -> None:
    """Bytes as Cassandra 4.1 wrote them for the key ('y', 1)."""
    key = bytes.fromhex("0001 79 00 0004 00000001 00")
    table = make_table(Column("q", "partition_key", "int", 1), Column("p", "partition_key", "text", 0), Column("v", "regular", "int"))
    assert split_partition_key(key, 2) == [b"y", i32(1)]
    assert TableView(table, {}).key_values(key, ()) == {"p": "y", "q": 1}
    assert split_partition_key(key, 1) == [key]


@pytest.mark.parametrize("key", ["", "00017900", "000179000004000000010000", "0001790000ff00"])
def test_bytes_that_are_no_composite_key_are_refused(key: str) -> None:
    with pytest.raises(MalformedMutation, match="partition key"):
        split_partition_key(bytes.fromhex(key), 2)
