"""Change events as consumers see them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings

import writetime
from tests.cql.test_round_trips import IN_ARROW
from tests.cql.typed import kind_of, typed_values
from writetime.cql.arrow import arrow_type, from_arrow_value, to_arrow_value
from writetime.cql.json import to_json_value
from writetime.envelope import About, Shape, encode, json_value, progress_topic, rows_of, topic

UTC_MICROS = pa.timestamp("us", "UTC")
PLACE = pa.struct([("x", pa.int32()), ("at", UTC_MICROS)])


def through(value: Any, kind: pa.DataType) -> Any:
    """The value from Arrow to JSON and back."""
    batch = pa.RecordBatch.from_arrays([pa.array([value, None], kind)], ["v"])
    row, empty = rows_of(batch)
    assert json_value(empty["v"], kind) is None
    return json.loads(encode(json_value(row["v"], kind)))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("é", pa.string(), "é"),
        (2**63 - 1, pa.int64(), 2**63 - 1),
        (b"\0\xff", pa.binary(), "AP8="),
        (True, pa.bool_(), True),
        (0.1, pa.float64(), 0.1),
        (0.1, pa.float32(), 0.1),
        (float("nan"), pa.float64(), "NaN"),
        (float("inf"), pa.float32(), "Infinity"),
        ([float("-inf")], pa.list_(pa.float32()), ["-Infinity"]),
        (1_795_248_835_551_000, UTC_MICROS, "2026-11-21T08:13:55.551Z"),
        (-1000, UTC_MICROS, "1969-12-31T23:59:59.999Z"),
        ((2**63 - 1) // 1000 * 1000, UTC_MICROS, "+294247-01-10T04:00:54.775Z"),
        (20_778, pa.date32(), "2026-11-21"),
        (2**31 - 1, pa.date32(), "+5881580-07-11"),
        ({"x": 1, "at": 0}, PLACE, {"x": 1, "at": "1970-01-01T00:00:00.000Z"}),
        ([{"x": 1, "at": None}, None], pa.list_(PLACE), [{"x": 1, "at": None}, None]),
        ([("a", 1), ("b", None)], pa.map_(pa.string(), pa.int32()), {"a": 1, "b": None}),
        ([(7, "x")], pa.map_(pa.int32(), pa.string()), [{"key": 7, "value": "x"}]),
        ([(10**15, 1)], pa.map_(UTC_MICROS, pa.int32()), [{"key": "2001-09-09T01:46:40.000Z", "value": 1}]),
        ([({"x": 1, "at": 0}, 5)], pa.map_(PLACE, pa.int32()), [{"key": {"x": 1, "at": "1970-01-01T00:00:00.000Z"}, "value": 5}]),
    ],
    ids=str,
)
def test_values(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert through(value, kind) == expected


@settings(max_examples=200, deadline=None)
@given(typed_values(limits=IN_ARROW, empty_keys=False))
def test_events_show_values_as_the_table_of_types_says(typed: tuple[str, Any]) -> None:
    """But for zero-length values, which are what the warehouse made of them, and for maps with numbers of any size as keys."""
    text, value = typed
    assume(not any(f"map<{name}," in text for name in ("varint", "decimal")))
    kind = kind_of(text)
    held = from_arrow_value(kind, to_arrow_value(kind, value))
    batch = pa.RecordBatch.from_arrays([pa.array([to_arrow_value(kind, value)], arrow_type(kind))], ["v"])
    shown = json_value(rows_of(batch)[0]["v"], batch.schema.field("v").type)
    assert json.dumps(shown, sort_keys=True) == json.dumps(to_json_value(kind, held), sort_keys=True)


def test_a_sliced_batch_keeps_its_rows() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([[1, 2], None, [3]], pa.list_(UTC_MICROS))], ["v"])
    assert [row["v"] for row in rows_of(batch.slice(1))] == [None, [3]]


ROW = pa.struct([("id", pa.int32()), ("__x4e_ame", pa.string()), ("added", pa.int32())])
PREFIX = pa.struct([("line", pa.int32()), ("day", pa.date32())])
BOUNDS = pa.struct([("start", PREFIX), ("start_inclusive", pa.bool_()), ("end", PREFIX), ("end_inclusive", pa.bool_())])
SHAPE = pa.schema(
    [
        ("batch", pa.int64()),
        ("ordinal", pa.int64()),
        ("op", pa.string()),
        ("reason", pa.string()),
        ("ts_micro", pa.int64()),
        ("processed_at", UTC_MICROS),
        ("key", pa.struct([("id", pa.int32())])),
        ("before", ROW),
        ("after", ROW),
        ("changed", pa.list_(pa.string())),
        ("nodes", pa.list_(pa.string())),
        ("replicas_expected", pa.int32()),
        ("file", pa.string()),
        ("pos", pa.int64()),
        ("changed_elements", pa.string()),
        ("schema_version", pa.string()),
        ("bounds", BOUNDS),
        ("table_id", pa.string()),
    ]
)
STORED_ROW = pa.struct([("id", pa.int32()), ("gone", pa.string()), ("__x4e_ame", pa.string())])
"""The warehouse keeps a column that the ring dropped, and lacks one that no row has needed yet."""
STORED = pa.schema([field.with_type(STORED_ROW) if field.name in ("before", "after") else field for field in SHAPE])
ABOUT = About("ring", "shop", "orders", {"host-a": "10.0.0.1", "host-b": ""})
CHANGE = {
    "batch": 3,
    "ordinal": 9,
    "op": "u",
    "reason": None,
    "ts_micro": 2**63 - 1,
    "processed_at": 1_700_000_000_000_000,
    "key": {"id": 1},
    "before": {"id": 1, "gone": "g", "__x4e_ame": "old"},
    "after": {"id": 1, "gone": None, "__x4e_ame": "new"},
    "changed": ["Name"],
    "nodes": ["host-a", "host-b"],
    "replicas_expected": 3,
    "file": "CommitLog-7-9.log",
    "pos": 77,
    "changed_elements": '{"tags":{"added":["x"],"removed":[]}}',
    "schema_version": "0123456789abcdef",
    "bounds": None,
    "table_id": "00000000-0000-0000-0000-000000000001",
}


def test_the_envelope() -> None:
    (row,) = rows_of(pa.RecordBatch.from_pylist([CHANGE], schema=STORED))
    assert Shape(SHAPE, STORED).key(row) == {"id": 1}
    assert json.loads(encode(Shape(SHAPE, STORED).value(row, ABOUT))) == {
        "before": {"id": 1, "Name": "old", "added": None, "gone": "g"},
        "after": {"id": 1, "Name": "new", "added": None},
        "op": "u",
        "ts_ms": 1_700_000_000_000,
        "changed": ["Name"],
        "changed_elements": {"tags": {"added": ["x"], "removed": []}},
        "source": {
            "version": writetime.__version__,
            "connector": "writetime",
            "cluster": "ring",
            "keyspace": "shop",
            "table": "orders",
            "table_id": "00000000-0000-0000-0000-000000000001",
            "hostname": "10.0.0.1",
            "nodes": ["10.0.0.1", "host-b"],
            "replicas_seen": 2,
            "replicas_expected": 3,
            "file": "CommitLog-7-9.log",
            "pos": 77,
            "ts_micro": 2**63 - 1,
            "sequence": [3, 9],
            "snapshot": False,
            "reason": None,
            "schema_version": "0123456789abcdef",
            "bounds": None,
        },
    }


def test_an_event_shows_as_its_own_version_of_the_schema_has_it() -> None:
    """Whatever has become of the table since: a key and a field renamed, columns dropped, made anew, and under the name of another."""
    place, renamed = (
        pa.struct([("x", pa.int32()), ("y", pa.int32())]),
        pa.struct([("z", pa.int32()), ("y", pa.int32()), ("new", pa.int32())]),
    )
    told = pa.struct([("id", pa.int32()), ("line", pa.int32()), ("v", pa.string()), ("name", pa.string()), ("at", pa.list_(place))])
    asides = [("_was_1_v", pa.string()), ("_was_2_v", pa.int64()), ("v", pa.binary()), ("_was_1_name", pa.string())]
    stored = pa.struct(
        [("id", pa.int32()), ("name", pa.int32()), *asides, ("at", pa.list_(renamed)), ("gone", pa.date32()), ("line", pa.int32())]
    )
    keys = pa.struct([("id", pa.int32()), ("line", pa.int32())]), pa.struct([("id", pa.int32()), ("name", pa.int32())])
    shape = Shape(
        pa.schema([("key", keys[0]), ("before", told), ("after", told)]),
        pa.schema([("key", keys[1]), ("before", stored), ("after", stored)]),
    )
    nothing = dict.fromkeys(field.name for field in stored)
    before = {**nothing, "id": 1, "name": 7, "_was_1_v": "old", "_was_1_name": "n", "at": [{"z": 1, "y": 2, "new": None}], "gone": 0}
    after = {**nothing, "id": 1, "name": 7}
    row = {**CHANGE, "key": {"id": 1, "name": 7}, "before": before, "after": after}
    assert shape.key(row) == {"id": 1, "line": 7}
    value = json.loads(encode(shape.value(row, ABOUT)))
    assert value["before"] == {"id": 1, "line": 7, "v": "old", "name": "n", "at": [{"x": 1, "y": 2}], "gone": "1970-01-01"}
    assert value["after"] == {"id": 1, "line": 7, "v": None, "name": None, "at": None}


def test_an_event_of_nobody_has_no_host() -> None:
    change = {**CHANGE, "nodes": [], "file": None, "pos": None, "after": None, "op": "d", "reason": "expiry"}
    (row,) = rows_of(pa.RecordBatch.from_pylist([change], schema=STORED))
    value = Shape(SHAPE, STORED).value(row, ABOUT)
    assert value["after"] is None
    assert (value["source"]["hostname"], value["source"]["replicas_seen"], value["source"]["reason"]) == (None, 0, "expiry")


def test_a_truncate_has_no_key_and_no_rows() -> None:
    change = {
        **CHANGE,
        "op": "t",
        "reason": "truncate",
        "key": None,
        "before": None,
        "after": None,
        "changed": [],
        "changed_elements": None,
    }
    (row,) = rows_of(pa.RecordBatch.from_pylist([change], schema=STORED))
    assert Shape(SHAPE, STORED).key(row) is None
    value = Shape(SHAPE, STORED).value(row, ABOUT)
    assert [value[part] for part in ("op", "before", "after", "changed_elements")] == ["t", None, None, {}]
    assert value["source"]["reason"] == "truncate"


def test_a_range_delete_as_one_event_says_where_it_begins_and_ends() -> None:
    bounds = {"start": {"line": 1, "day": 0}, "start_inclusive": False, "end": {"line": 1, "day": None}, "end_inclusive": True}
    change = {**CHANGE, "op": "d", "reason": "range_delete", "before": None, "after": None, "bounds": bounds}
    (row,) = rows_of(pa.RecordBatch.from_pylist([change], schema=STORED))
    told = Shape(SHAPE, STORED).value(row, ABOUT)["source"]["bounds"]
    assert told == {**bounds, "start": {"line": 1, "day": "1970-01-01"}}


@pytest.mark.parametrize(
    ("name", "expected"), [("orders", "cdc.shop.orders"), ("Orders_1", "cdc.shop.Orders_1"), ("ü b", "cdc.shop.__xfc__x20_b")]
)
def test_topics_have_names_that_kafka_allows(name: str, expected: str) -> None:
    assert topic("cdc", "shop", name) == expected
    assert progress_topic("cdc") == "cdc.__progress"


def test_json_is_compact_utf8_in_the_given_order() -> None:
    assert encode({"b": "ü", "a": [1, None]}) == '{"b":"ü","a":[1,null]}'.encode()
