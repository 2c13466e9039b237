"""Answers of the ring as rows of the commit log, in the bytes that real ones have."""

from __future__ import annotations

from uuid import UUID

import pytest

from writetime.cassandra.merge import unknown_marker
from writetime.cassandra.merge.counters import total
from writetime.cassandra.model import NO_DELETION_TIME, Cell
from writetime.cassandra.schema.model import Column, ColumnKind, Table, UserType
from writetime.errors import MalformedMutation
from writetime.pipeline.bootstrap.rows import Reading, Selection

READING = Reading(as_of=77, now=1_000)
TYPES = {("k", "u"): UserType("k", "u", ("a", "b"), ("int", "text"))}


def table(*columns: tuple[str, ColumnKind, str]) -> Table:
    made = {}
    for place, (name, kind, cql) in enumerate(columns):
        made[name] = Column(name, kind, cql, position=place if kind in ("partition_key", "clustering") else -1)
    return Table("k", "T", UUID(int=1), made)


WIDE = table(
    ("p", "partition_key", "int"),
    ("q", "partition_key", "text"),
    ("c", "clustering", "int"),
    ("st", "static", "int"),
    ("order", "regular", "text"),
)


def i32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def i64(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def listed(*elements: bytes | None, count: int | None = None) -> bytes:
    return i32(len(elements) if count is None else count) + fields(*elements)


def fields(*elements: bytes | None) -> bytes:
    return b"".join(i32(-1) if each is None else i32(len(each)) + each for each in elements)


def cells(kind: str, value: bytes, written: bytes | None, left: bytes | None, *, of_elements: bool = True) -> tuple[Cell, ...]:
    about = Selection(table(("p", "partition_key", "int"), ("v", "regular", kind)), TYPES, of_elements=of_elements)
    facts = [written, left] if "WRITETIME" in about.columns else []
    return about.row([i32(1), value, *facts, i64(0)], READING).cells


def test_names_stand_in_quotes() -> None:
    asked = Selection(WIDE, TYPES, of_elements=True)
    assert asked.of_range().startswith('SELECT "p", "q", "c", "st", WRITETIME("st"), TTL("st"), "order", WRITETIME("order"), TTL("order")')
    assert asked.of_range().endswith('FROM "k"."T" WHERE token("p", "q") > ? AND token("p", "q") <= ?')
    assert asked.of_row().endswith('WHERE "p" = ? AND "q" = ? AND "c" = ?')
    assert asked.of_statics().endswith('WHERE "p" = ? AND "q" = ? LIMIT 1')


def test_a_row_with_its_writetimes_and_expiries() -> None:
    row = Selection(WIDE, TYPES, of_elements=True).row(
        [i32(1), b"x", i32(5), i32(9), i64(11), None, b"text", i64(12), i32(30), i64(0)], READING
    )
    assert row.key == b"\0\4" + i32(1) + b"\0" + b"\0\1x\0"
    assert row.clustering == (i32(5),)
    assert row.static_cells == (Cell("st", 11, i32(9)),)
    assert row.cells == (Cell("order", 12, b"text", None, unknown_marker.UNKNOWN_TTL, 1_030),)


def test_a_partition_with_statics_alone_has_no_row() -> None:
    row = Selection(WIDE, TYPES, of_elements=True).row([i32(1), b"x", None, i32(9), i64(11), None, None, None, None, i64(0)], READING)
    assert row.clustering is None
    assert row.static_cells
    assert row.cells == ()


def test_a_value_of_no_bytes_is_a_value() -> None:
    assert cells("text", b"", i64(3), None) == (Cell("v", 3, b""),)


def test_elements_have_writetimes_and_expiries_of_their_own() -> None:
    found = cells("map<text, int>", listed(b"x", i32(1), b"y", i32(2), count=2), listed(i64(3), i64(4)), listed(None, i32(10)))
    assert found == (Cell("v", 3, i32(1), b"x"), Cell("v", 4, i32(2), b"y", unknown_marker.UNKNOWN_TTL, 1_010))
    assert cells("set<text>", listed(b"a"), listed(i64(3)), listed(None)) == (Cell("v", 3, b"", b"a"),)
    udt = cells("u", fields(i32(1), None), listed(i64(3), None), listed(None, None))
    assert udt == (Cell("v", 3, i32(1), b"\0\0"),)


def test_elements_have_the_spelling_that_they_have_in_the_state() -> None:
    one = b"\0\0\0\2\0\0\x64"
    assert cells("set<decimal>", listed(one), listed(i64(3)), listed(None)) == (Cell("v", 3, b"", b"\0\0\0\0\1"),)
    found = cells("map<frozen<list<varint>>, decimal>", listed(listed(b"\0\1"), one, count=1), listed(i64(3)), listed(None))
    assert found == (Cell("v", 3, one, listed(b"\1")),)


def test_elements_of_lists_get_paths_in_their_order() -> None:
    first, second = cells("list<int>", listed(i32(7), i32(7)), listed(i64(3), i64(3)), listed(None, None))
    assert first.path == unknown_marker.list_path(0, READING.as_of)
    assert UUID(bytes=first.path).time < UUID(bytes=second.path or b"").time


def test_what_is_frozen_is_one_value() -> None:
    value = listed(i32(1))
    assert cells("frozen<list<int>>", value, i64(3), None) == (Cell("v", 3, value),)


def test_where_the_ring_does_not_tell_of_elements_they_go_by_the_reading() -> None:
    assert cells("set<text>", listed(b"a"), None, None, of_elements=False) == (Cell("v", 77, b"", b"a", 0, NO_DELETION_TIME),)


def test_a_counter_is_one_shard_of_its_sum() -> None:
    (cell,) = cells("counter", i64(-5), i64(3), None)
    assert (cell.timestamp, total(cell.value)) == (3, -5)


def test_a_collection_that_is_none_is_refused() -> None:
    with pytest.raises(MalformedMutation):
        cells("set<text>", i32(3) + fields(b"a"), listed(i64(3)), listed(None))
    with pytest.raises(MalformedMutation):
        cells("set<text>", i32(1) + i32(9) + b"a", listed(i64(3)), listed(None))
