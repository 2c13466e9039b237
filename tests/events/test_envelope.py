"""Change events as consumers see them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import writetime
from tests.cassandra.types.typed import kind_of
from writetime.cassandra.types.types import CollectionType, CqlType, UdtType
from writetime.events.envelope import (
    About,
    Shape,
    encode,
    rows_of,
    topic,
)
from writetime.events.naming import progress_topic

UTC_MICROS = pa.timestamp("us", "UTC")


def kinds(**columns: str) -> dict[str, CqlType]:
    return {name: kind_of(kind) for name, kind in columns.items()}


ROW = pa.struct([("id", pa.int32()), ("__x4e_ame", pa.string()), ("added", pa.int32())])
PREFIX = pa.struct([("line", pa.int32()), ("day", pa.date32())])
BOUNDS = pa.struct([("start", PREFIX), ("start_inclusive", pa.bool_()), ("end", PREFIX), ("end_inclusive", pa.bool_())])
CHANGES = pa.schema(
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
STORED = pa.schema([field.with_type(STORED_ROW) if field.name in ("before", "after") else field for field in CHANGES])
KEYS = kinds(id="int")
COLUMNS = {**KEYS, **kinds(Name="text", added="int")}
SHAPE = Shape(KEYS, COLUMNS, STORED, history=[kinds(id="int", gone="text")])
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
    assert SHAPE.key(row) == {"id": 1}
    assert json.loads(encode(SHAPE.value(row, ABOUT))) == {
        "before": {"id": 1, "Name": "old", "added": None, "gone": "g"},
        "after": {"id": 1, "Name": "new", "added": None},
        "op": "u",
        "ts_ms": 1_700_000_000_000,
        "ts_us": 1_700_000_000_000_000,
        "ts_ns": 1_700_000_000_000_000_000,
        "changed": ["Name"],
        "changed_elements": {"tags": {"added": ["x"], "removed": []}},
        "source": {
            "version": writetime.__version__,
            "connector": "writetime",
            "name": "",
            "ts_ms": (2**63 - 1) // 1000,
            "snapshot": "false",
            "db": "shop",
            "sequence": '["3","9"]',
            "ts_us": 2**63 - 1,
            "ts_ns": 2**63 - 1,
            "cluster": "ring",
            "file": "CommitLog-7-9.log",
            "pos": 77,
            "keyspace": "shop",
            "table": "orders",
            "table_id": "00000000-0000-0000-0000-000000000001",
            "hostname": "10.0.0.1",
            "nodes": ["10.0.0.1", "host-b"],
            "replicas_seen": 2,
            "replicas_expected": 3,
            "reason": None,
            "schema_version": "0123456789abcdef",
            "late": False,
            "bounds": None,
        },
    }


def test_an_event_shows_as_its_own_version_of_the_schema_has_it() -> None:
    """Whatever has become of the table since: a key and a field renamed, columns dropped, made anew, and
    under the name of another."""
    place, renamed = (
        UdtType("shop", "place", kinds(x="int", y="int"), False),
        pa.struct([("z", pa.int32()), ("y", pa.int32()), ("new", pa.int32())]),
    )
    asides = [("_was_1_v", pa.string()), ("_was_2_v", pa.int64()), ("v", pa.binary()), ("_was_1_name", pa.string())]
    stored = pa.struct(
        [
            ("id", pa.int32()),
            ("name", pa.int32()),
            *asides,
            ("at", pa.list_(renamed)),
            ("gone", pa.date32()),
            ("_was_1_gone", pa.int32()),
            ("line", pa.int32()),
        ]
    )
    key = pa.struct([("id", pa.int32()), ("name", pa.int32())])
    keys = kinds(id="int", line="int")
    columns = {**keys, **kinds(v="text", name="text"), "at": CollectionType("list", (place,), False)}
    shape = Shape(
        keys,
        columns,
        pa.schema([("key", key), ("before", stored), ("after", stored)]),
        history=[kinds(gone="int", id="int"), kinds(gone="date")],
    )
    nothing = dict.fromkeys(field.name for field in stored)
    before = {**nothing, "id": 1, "name": 7, "_was_1_v": "old", "_was_1_name": "n", "at": [{"z": 1, "y": 2, "new": None}], "gone": 0}
    after = {**nothing, "id": 1, "name": 7}
    row = {**CHANGE, "key": {"id": 1, "name": 7}, "before": before, "after": after}
    assert shape.key(row) == {"id": 1, "line": 7}
    value = json.loads(encode(shape.value(row, ABOUT)))
    assert value["before"] == {"id": 1, "line": 7, "v": "old", "name": "n", "at": [{"x": 1, "y": 2}], "gone": "1970-01-01"}
    assert value["after"] == {"id": 1, "line": 7, "v": None, "name": None, "at": None}
    assert (shape.is_wide(row), shape.is_wide({**row, "before": after})) == (True, False)
    assert shape.dropped_fields(stored) == ["gone", "_was_1_gone"]
    older = {**row, "before": {**after, "_was_1_gone": 7}}
    assert shape.value(older, ABOUT)["before"]["gone"] == 7


def test_cells_tell_what_was_written_from_what_was_there() -> None:
    shape = Shape(KEYS, COLUMNS, STORED, cells=True)
    facts = {"writetime": [("Name", 2**63 - 1), ("added", 5)], "expires_at": [("Name", 60)]}
    (row,) = rows_of(pa.RecordBatch.from_pylist([{**CHANGE, "after": {"id": 1, "__x4e_ame": "new", "gone": None}}], schema=STORED))
    value = shape.value({**row, **facts}, ABOUT)
    key = {"value": 1, "deletion_ts": None, "set": True, "writetime": None}
    assert value["after"] == {
        "id": key,
        "Name": {"value": "new", "deletion_ts": 60_000_000, "set": True, "writetime": 2**63 - 1},
        "added": {"value": None, "deletion_ts": None, "set": False, "writetime": 5},
    }
    assert value["before"]["Name"] == {"value": "old", "deletion_ts": None, "set": False, "writetime": None}
    # Set to null is told from left alone; without facts of cells, too.
    gone = shape.value({**row, "after": {"id": 1, "__x4e_ame": None, "gone": None}}, ABOUT)["after"]
    assert (gone["Name"]["set"], gone["added"]["set"]) == (True, False)


def test_an_event_of_nobody_has_no_host() -> None:
    change = {**CHANGE, "nodes": [], "file": None, "pos": None, "after": None, "op": "d", "reason": "expiry"}
    (row,) = rows_of(pa.RecordBatch.from_pylist([change], schema=STORED))
    value = SHAPE.value(row, ABOUT)
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
    assert SHAPE.key(row) is None
    value = SHAPE.value(row, ABOUT)
    assert [value[part] for part in ("op", "before", "after", "changed_elements")] == ["t", None, None, {}]
    assert value["source"]["reason"] == "truncate"


def test_a_range_delete_as_one_event_says_where_it_begins_and_ends() -> None:
    bounds = {"start": {"line": 1, "day": 0}, "start_inclusive": False, "end": {"line": 1, "day": None}, "end_inclusive": True}
    change = {**CHANGE, "op": "d", "reason": "range_delete", "before": None, "after": None, "bounds": bounds}
    (row,) = rows_of(pa.RecordBatch.from_pylist([change], schema=STORED))
    keys = kinds(id="int", line="int", day="date")
    told = Shape(keys, keys, STORED).value(row, ABOUT)["source"]["bounds"]
    assert told == {**bounds, "start": {"line": 1, "day": "1970-01-01"}}


@pytest.mark.parametrize(
    ("name", "expected"), [("orders", "cdc.shop.orders"), ("Orders_1", "cdc.shop.Orders_1"), ("ü b", "cdc.shop.__xfc__x20_b")]
)
def test_topics_have_names_that_kafka_allows(name: str, expected: str) -> None:
    assert topic("cdc", "shop", name) == expected
    assert progress_topic("cdc") == "cdc.__progress"


def test_json_is_compact_utf8_in_the_given_order() -> None:
    assert encode({"b": "ü", "a": [1, None]}) == '{"b":"ü","a":[1,null]}'.encode()
