"""Keys and values as bytes, and what readers with another schema make of them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.cassandra.types.typed import kind_of, typed_values
from tests.events.test_envelope import ABOUT, BOUNDS, CHANGE, CHANGES, kinds
from tests.events.test_round_trips import IN_ARROW
from tests.examples import examples
from writetime.cassandra.types.types import CqlType
from writetime.events.arrow import arrow_type, to_arrow_value
from writetime.events.avro import without_calendar
from writetime.events.envelope import Shape, rows_of
from writetime.events.serialization import (
    AvroCodec,
    Json,
    JsonSchema,
    avro_schemas,
    codec_of,
    form_of,
    schema_text,
)

KEYS = kinds(id="int")


def stored(columns: Mapping[str, CqlType], clustering: bool = False) -> pa.Schema:
    row = pa.struct([(name, arrow_type(kind)) for name, kind in columns.items()])
    fields = [field.with_type(row) if field.name in ("before", "after") else field for field in CHANGES if field.name != "bounds"]
    return pa.schema([*fields, *([pa.field("bounds", BOUNDS)] if clustering else [])])


def changed(schema: pa.Schema, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    (row,) = rows_of(pa.RecordBatch.from_pylist([{**CHANGE, "before": before, "after": after, **more}], schema=schema))
    return row


def read(data: bytes, writer: Any, reader: Any = None) -> Any:
    """What a consumer reads who has the writer's schema from the registry, and perhaps one of its own;
    moments, days and ids as they are on the wire."""
    writer, reader = (
        json.loads(json.dumps(without_calendar(each)).replace('"logicalType": "uuid"', '"x": 1')) for each in (writer, reader)
    )
    return fastavro.schemaless_reader(io.BytesIO(data[5:]), writer, reader)


def test_plain_json() -> None:
    assert (Json().key({"a": 1}), Json().key(None), Json().value({"b": "ü"})) == (b'{"a":1}', None, '{"b":"ü"}'.encode())


def check(value: Any, schema: Mapping[str, Any]) -> None:
    """As Connect's JsonConverter reads it: every value of its schema's type, every field there."""
    if value is None:
        assert schema["optional"], schema
        return
    kind = schema["type"]
    if kind == "struct":
        assert {name for name, part in value.items() if part is not None} <= {field["field"] for field in schema["fields"]}
        for field in schema["fields"]:
            check(value.get(field["field"]), field)
    elif kind == "array":
        for item in value:
            check(item, schema["items"])
    elif kind == "map":
        assert schema["keys"]["type"] == "string"
        for item in value.values():
            check(item, schema["values"])
    elif kind == "bytes":
        base64.b64decode(value, validate=True)
    elif kind in ("float", "double"):
        assert isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
    else:
        assert type(value) is {"string": str, "int32": int, "int64": int, "boolean": bool}[kind], (value, schema)


@settings(max_examples=examples(100))
@given(typed_values(limits=IN_ARROW, empty_keys=False))
@pytest.mark.parametrize("numbers", ["string", "precise", "double"])
@pytest.mark.parametrize("cells", [False, True])
def test_json_with_its_schema(numbers: Any, cells: bool, typed: tuple[str, Any]) -> None:
    text, value = typed
    columns = {**KEYS, "v": kind_of(text)}
    schema = stored(columns)
    shape = Shape(KEYS, columns, schema, form=form_of("json-schema", numbers), cells=cells)
    row = changed(schema, None, {"id": 1, "v": to_arrow_value(columns["v"], value)})
    codec = JsonSchema(shape, "cdc.shop.orders", wide=False)
    record, key = json.loads(codec.value(shape.value(row, ABOUT))), json.loads(codec.key(shape.key(row)) or b"")
    assert (record["schema"]["name"], key["schema"]["name"]) == ("cdc.shop.orders.Envelope", "cdc.shop.orders.Key")
    check(record["payload"], record["schema"])
    check(key["payload"], key["schema"])
    assert json.loads(record["payload"]["changed_elements"]) == {"tags": {"added": ["x"], "removed": []}}
    assert codec.key(None) is None


@settings(max_examples=examples(100))
@given(typed_values(limits=IN_ARROW, empty_keys=False))
@pytest.mark.parametrize("cells", [False, True])
def test_avro_comes_back(cells: bool, typed: tuple[str, Any]) -> None:
    text, value = typed
    columns = {**KEYS, "v": kind_of(text)}
    schema = stored(columns)
    shape = Shape(KEYS, columns, schema, form=form_of("avro", "string"), cells=cells)
    row = changed(schema, None, {"id": 1, "v": to_arrow_value(columns["v"], value)})
    schemas = avro_schemas(shape, ABOUT, wide=False)
    codec = codec_of("avro", shape, "t", {False: (schemas, (7, 2**31))}, wide=False)
    told, key = codec.value(shape.value(row, ABOUT)), codec.key(shape.key(row))
    assert key is not None
    assert (key[:5], told[:5]) == (b"\0\0\0\0\x07", b"\0\x80\0\0\0")
    found = read(told, schemas.value)
    expected = json.loads(json.dumps(shape.value(row, ABOUT), default=repr))
    assert repr(found["after"]) == repr(shape.value(row, ABOUT)["after"]) or "float" in text
    assert {**found, "after": None} == {**expected, "after": None, "claim": None, "changed_elements": found["changed_elements"]} | {
        "source": {name: part for name, part in expected["source"].items() if name != "bounds"}
    }
    assert read(key, schemas.key) == {"id": 1}


def test_a_reader_with_the_first_schema_goes_on_through_add_drop_and_add() -> None:
    first, text = {**KEYS, **kinds(a="text")}, kinds(b="text")
    versions = [first, {**first, **text}, {**KEYS, **text}, {**KEYS, **text, **kinds(a="text")}]
    everything = stored({**first, **text})
    form = form_of("avro", "string")
    shapes = [Shape(KEYS, columns, everything, form=form, history=versions) for columns in versions]
    plain = [avro_schemas(shape, ABOUT, wide=False) for shape in shapes]
    row = changed(everything, {"id": 1, "a": "x", "b": None}, {"id": 1, "a": None, "b": "y"})
    for at, shape in enumerate(shapes):
        wide = shape.is_wide(row)
        assert wide == (at in (0, 2))
        schemas = avro_schemas(shape, ABOUT, wide=wide)
        told = AvroCodec(schemas, (1, 2)).value(shape.value(row, ABOUT))
        read_as_first = read(told, schemas.value, plain[0].value)
        assert (read_as_first["before"], read_as_first["after"]) == ({"id": 1, "a": "x"}, {"id": 1, "a": None})
        # And one with the last schema reads all.
        assert read(told, schemas.value, plain[3].value)["after"] == {"id": 1, "b": "y", "a": None}
        json.loads(schema_text(schemas.value))


def test_names_that_are_not_plain_and_bounds() -> None:
    keys = {"Id": kind_of("int"), "line": kind_of("int"), "day": kind_of("date")}
    row_type = {**keys, "a.b": kind_of("map<frozen<list<int>>, text>")}
    schema = stored({"__x4e_": kind_of("int")}, clustering=True)
    struct = pa.struct([("id", pa.int32()), ("line", pa.int32()), ("day", pa.date32()), ("_a_x2e_b", arrow_type(row_type["a.b"]))])
    schema = pa.schema([field.with_type(struct) if field.name in ("before", "after") else field for field in schema])
    bounds = {"start": {"line": 1, "day": 0}, "start_inclusive": False, "end": None, "end_inclusive": True}
    row = changed(schema, None, {"id": 1, "line": 2, "day": 3, "_a_x2e_b": [([1, 2], "x")]}, bounds=bounds)
    for format in ("avro", "json-schema"):
        shape = Shape(keys, row_type, schema, form=form_of(format, "string"))  # type: ignore[arg-type]
        if format == "avro":
            schemas = avro_schemas(shape, ABOUT, wide=False)
            found = read(AvroCodec(schemas, (1, 2)).value(shape.value(row, ABOUT)), schemas.value)
            assert found["after"] == {"Id": 1, "line": 2, "day": 3, "_a_x2e_b": [{"key": [1, 2], "value": "x"}]}
            assert found["source"]["bounds"] == bounds
        else:
            record = json.loads(JsonSchema(shape, "t", wide=False).value(shape.value(row, ABOUT)))
            check(record["payload"], record["schema"])
            assert record["payload"]["after"]["a.b"] == [{"key": [1, 2], "value": "x"}]
            assert record["payload"]["source"]["bounds"]["start"] == {"line": 1, "day": "1970-01-01"}


def test_a_claim_stands_for_an_event_that_is_too_large() -> None:
    columns = {**KEYS, **kinds(v="text")}
    schema = stored(columns)
    row = changed(schema, None, {"id": 1, "v": "x" * 100})
    claim = {"url": "gs://b/claims/t/3-9", "size": 5, "crc32c": 2**32 - 1}
    for format in ("json", "json-schema", "avro"):
        shape = Shape(KEYS, columns, schema, form=form_of(format, "string"))  # type: ignore[arg-type]
        value = shape.claim(row, ABOUT, **claim)  # type: ignore[arg-type]
        schemas = avro_schemas(shape, ABOUT, wide=False) if format == "avro" else None
        codec = codec_of(format, shape, "t", {False: (schemas, (1, 2))} if schemas else {}, wide=False)  # type: ignore[arg-type]
        told = codec.value(value)
        found = read(told, schemas.value) if schemas else json.loads(told)
        found = found.get("payload", found)
        assert (found["claim"], found["before"], found["after"], found["op"]) == (claim, None, None, "u")
