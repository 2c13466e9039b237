"""What sinks take of pages: columns in the shape that a table keeps, and what becomes of current rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.sinks.iceberg import Facts, current_schema
from spark_jobs.stages.event_pages import (
    PAGES,
    aligned,
    change_rows,
    last_rows,
    one_of_each_key,
    page_of,
    page_row,
    pages,
)
from spark_jobs.stages.table_rows import EXPIRES_AT, OP, WRITETIME, RowShape, changes_schema
from tests.spark_jobs.examples import NOW, ORDERS, SCHEMA, THEN

SHAPE = RowShape.of(ORDERS, SCHEMA)
STORED = pa.struct(
    [("b", pa.int64()), ("gone", pa.map_(pa.string(), pa.int32())), ("a", pa.list_(pa.struct([("y", pa.int64()), ("x", pa.string())])))]
)


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([1, None, 3], pa.int32(), pa.int64()),
        ([{"a": [{"x": "u", "y": 1}, None], "b": 2}, None, {"a": None, "b": None}, {"a": [], "b": 4}],
            pa.struct([("a", pa.list_(pa.struct([("x", pa.string()), ("y", pa.int32())]))), ("b", pa.int32())]), STORED),
        ([[("k", {"x": 1})], None, [], [("l", None), ("m", {"x": None})]], pa.map_(pa.string(), pa.struct([("x", pa.int32())])),
            pa.map_(pa.string(), pa.struct([("y", pa.string()), ("x", pa.int64())]))),
    ],
)  # fmt: skip
def test_values_in_the_shape_that_a_table_keeps(values: list[Any], kind: pa.DataType, wanted: pa.DataType) -> None:
    array = pa.array(values, kind)
    for start in range(len(values)):
        found = aligned(array.slice(start), wanted)
        found.validate(full=True)
        assert found.type == wanted
        assert found.equals(pa.array(values[start:], wanted))


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        aligned(pa.array([2**40], pa.int64()), pa.int32())


def event(line: int, before: str | None, after: str | None, **facts: Any) -> dict[str, Any]:
    key = {"id": 1, "line": line}
    rows = [None if name is None else {**key, "note": None, "name": name, "at": None} for name in (before, after)]
    about = {"op": "u" if before and after else "c" if after else "d", "reason": None, "changed": ["name"], "ts_micro": 2**62, "now": NOW}
    source = {"nodes": ["a"], "replicas_expected": 3, "file": None, "pos": None}
    return {"key": key, "before": rows[0], "after": rows[1], **about, **source, "writetime": {}, "expires_at": {}, **facts}


EVENTS = [
    (1, False, event(1, None, "x", writetime={"name": THEN})),
    (2, True, event(1, "x", "y", writetime={"name": THEN + 1}, expires_at={"name": NOW})),
    (None, True, event(2, "z", None)),
    (3, True, event(3, None, None)),
]


def given() -> Any:
    return pages(iter([pa.RecordBatch.from_pylist([page_row(ORDERS.id.bytes, page_of(SHAPE, EVENTS))], schema=PAGES)]))


@pytest.mark.parametrize("facts", ["map", "none"])
def test_what_becomes_of_current_rows(facts: Facts) -> None:
    columns = pa.schema([*current_schema(SHAPE, facts), (OP, pa.string())])
    found = [row for batch in last_rows(columns)(given()) for row in batch.to_pylist(maps_as_pydicts="strict")]
    kept = {"id": 1, "line": 1, "note": None, "name": "y", "at": None, OP: "u"}
    gone = [{"id": 1, "line": line, "note": None, "name": None, "at": None, OP: "d"} for line in (2, 3)]
    if facts == "map":
        kept |= {WRITETIME: {"name": THEN + 1}, EXPIRES_AT: {"name": NOW}}
        gone = [row | {WRITETIME: {}, EXPIRES_AT: {}} for row in gone]
    assert sorted(found, key=lambda row: row["line"]) == [kept, *gone]


@pytest.mark.parametrize("cells", [False, True])
def test_what_changes_tell(cells: bool) -> None:
    columns = changes_schema(SHAPE).append(pa.field("of_later", pa.int32()))
    (batch,) = change_rows(columns, {"batch": 9, "table_id": "t", "schema_version": "v"}, cells=cells)(given())
    assert batch.schema == columns
    rows = batch.to_pylist(maps_as_pydicts="strict")
    assert [(row["batch"], row["ordinal"], row["table_id"], row["schema_version"]) for row in rows] == [
        (9, at, "t", "v") for at in (1, 2, 3)
    ]
    assert [row["writetime"] for row in rows] == ([{"name": THEN}, {"name": THEN + 1}, {}] if cells else [None] * 3)
    assert (rows[0]["ts_micro"], rows[0]["changed_at"].year, rows[0]["of_later"]) == (2**62, 9999, None)
    assert rows[1]["before"] == {"id": 1, "line": 1, "note": None, "name": "x", "at": None}


def test_what_is_told_and_last_is_counted() -> None:
    row = page_row(ORDERS.id.bytes, page_of(SHAPE, EVENTS))
    assert (row["told"], row["last"]) == (3, 3)
    assert page_row(ORDERS.id.bytes, page_of(SHAPE, []))["last"] == 0


# --- one of each key


LACKING = pa.schema([("p", pa.string()), ("a", pa.int32()), ("b", pa.int32()), ("v", pa.int32()), (OP, pa.string())])
Lacking = tuple[str, int | None, int | None, int, str]


def one_of_each(*batches: list[Lacking]) -> list[Lacking]:
    made = one_of_each_key(lambda given: given, ["p"], ["a", "b"])
    given = (pa.RecordBatch.from_pylist([dict(zip(LACKING.names, row, strict=True)) for row in rows], schema=LACKING) for rows in batches)
    found = [tuple(row.values()) for batch in made(given) for row in batch.to_pylist()]
    return sorted(found, key=repr)


@pytest.mark.parametrize("cut", range(8))
def test_of_static_content_and_a_row_without_clustering_one_stays(cut: int) -> None:
    rows: list[Lacking] = [
        ("one", None, None, 1, "d"),
        ("one", None, None, 2, "u"),
        ("one", 1, 1, 3, "d"),
        ("one", None, 1, 4, "c"),
        ("two", None, None, 5, "c"),
        ("two", None, None, 6, "d"),
        ("two", 1, 1, 7, "u"),
        ("two", None, None, 8, "d"),
    ]
    kept = [rows[at] for at in (1, 2, 3, 4, 6)]
    assert one_of_each(rows[:cut], rows[cut:]) == sorted(kept, key=repr)
    assert one_of_each(*([row] for row in rows)) == sorted(kept, key=repr)


def test_of_two_deletions_one_stays() -> None:
    assert one_of_each([("one", None, None, 1, "d"), ("one", None, None, 2, "d")]) in (
        [("one", None, None, 1, "d")],
        [("one", None, None, 2, "d")],
    )
