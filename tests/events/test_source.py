"""`source`, the times and the required keys of events: as Debezium's connectors have them, for what they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.cassandra.types.typed import kind_of
from tests.events.test_envelope import kinds
from tests.events.test_serialization import changed, check, read, stored
from writetime.events.arrow import arrow_type
from writetime.events.envelope import About, Shape
from writetime.events.naming import to_column
from writetime.events.serialization import avro_schemas, codec_of, form_of

KEYS = kinds(id="int", line="int", day="date")
COLUMNS = {**KEYS, **kinds(v="text", at="timestamp", n="varint", ok="boolean"), "m": kind_of("map<int, text>")}
KEY = pa.struct([(name, arrow_type(kind)) for name, kind in KEYS.items()])
SCHEMA = pa.schema(
    [
        field.with_type(KEY) if field.name == "key" else field
        for field in stored({to_column(name): kind for name, kind in COLUMNS.items()}, clustering=True)
    ]
)
ROW = {"id": 7, "line": 1, "day": 20_000, "v": "é", "at": 1_700_000_000_123_000, "n": "12", "ok": True}
ROW |= {"m": [(1, "one")]}


def rows() -> Iterator[dict[str, Any]]:
    about = {"ts_micro": 1_777_894_199_123_456, "key": {name: ROW[name] for name in KEYS}}
    yield changed(SCHEMA, None, ROW, op="c", **about)
    yield changed(SCHEMA, ROW, None, op="d", reason="row_delete", **about)
    yield changed(SCHEMA, None, ROW, op="c", reason="snapshot", **about)
    yield changed(SCHEMA, None, None, op="t", reason="truncate", **about | {"key": None})


FORMATS = ("json", "json-schema", "avro")
NAMED = About("ring", "shop", "orders", {}, "cdc", {3: 1_777_894_199_123_457})
"""Batch 3 came after its table had been said to be complete up to 1 µs after the writetime of `rows`."""
DEBEZIUM = ("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns")
"""Fields that each connector of Debezium has in `source`."""


def value(row: dict[str, Any], about: About = NAMED) -> dict[str, Any]:
    return Shape(KEYS, COLUMNS, SCHEMA).value(row, about)


def test_source_is_that_of_debezium() -> None:
    row, *_ = rows()
    found = value({**row, "batch": 3, "ordinal": 9})
    assert (found["ts_ms"], found["ts_us"], found["ts_ns"]) == (found["ts_us"] // 1000, row["processed_at"], row["processed_at"] * 1000)
    assert {name: found["source"][name] for name in DEBEZIUM[1:]} == {
        "connector": "writetime",
        "name": "cdc",
        "ts_ms": 1_777_894_199_123,
        "snapshot": "false",
        "db": "shop",
        "sequence": '["3","9"]',
        "ts_us": 1_777_894_199_123_456,
        "ts_ns": 1_777_894_199_123_456_000,
    }
    assert tuple(found["source"])[: len(DEBEZIUM)] == DEBEZIUM
    assert "ts_micro" not in found["source"]


def test_what_was_written_before_its_table_was_complete_is_late() -> None:
    changed_row, _, read_row, _ = (row | {"batch": 3} for row in rows())
    assert value(changed_row)["source"]["late"]
    assert not value({**changed_row, "ts_micro": NAMED.complete[3]})["source"]["late"]
    # Nothing had been said before batch 4, and what a bootstrap reads was written long ago.
    assert not value({**changed_row, "batch": 4})["source"]["late"]
    assert not value(read_row)["source"]["late"]
    assert value(read_row)["source"]["snapshot"] == "true"


def test_nanoseconds_of_a_writetime_that_no_clock_has_saturate() -> None:
    row, *_ = rows()
    assert value({**row, "ts_micro": 2**63 - 1})["source"]["ts_ns"] == 2**63 - 1
    assert value({**row, "ts_micro": -(2**63)})["source"]["ts_ns"] == -(2**63)


@pytest.mark.parametrize("format", FORMATS)
def test_formats_read_back_and_keys_are_required(format: Any) -> None:
    required = ["id", "line"]
    shape = Shape(KEYS, COLUMNS, SCHEMA, form=form_of(format, "string"), required=required)
    schemas = avro_schemas(shape, NAMED, wide=False)
    codec = codec_of(format, shape, "cdc.shop.orders", {False: (schemas, (7, 8))}, wide=False)
    nullable = {field["name"]: isinstance(field["type"], list) for field in schemas.key["fields"]}
    assert nullable == {"id": False, "line": False, "day": True}
    for row in rows():
        told, key = codec.value(shape.value(row, NAMED)), codec.key(shape.key(row))
        if format == "avro":
            found = read(told, schemas.value)
            assert key is None or read(key, schemas.key)["line"] == 1
        else:
            found = json.loads(told)
            if format == "json-schema":
                check(found["payload"], found["schema"])
                schema = json.loads(key)["schema"] if key else {}
                assert not schema or not schema["optional"]
                assert [field["field"] for field in schema.get("fields", ()) if field["optional"]] == (["day"] if schema else [])
                found = found["payload"]
        assert {**found["source"], "bounds": None} == {**shape.value(row, NAMED)["source"], "bounds": None}


@pytest.mark.parametrize("times", ["isostring", "adaptive", "microseconds"])
def test_times_have_the_type_that_their_schema_says(times: Any) -> None:
    shape = Shape(KEYS, COLUMNS, SCHEMA, form=form_of("json-schema", "string", times), required=KEYS)
    codec = codec_of("json-schema", shape, "cdc.shop.orders", {}, wide=False)
    for row in rows():
        told = json.loads(codec.value(shape.value(row, NAMED)))
        check(told["payload"], told["schema"])
        if (key := codec.key(shape.key(row))) is not None:
            check(json.loads(key)["payload"], json.loads(key)["schema"])
