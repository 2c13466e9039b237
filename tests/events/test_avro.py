"""Avro schemas and rows: names, named types, evolution. Values of all types are in
test_round_trips."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import fastavro
import pytest

from tests.cassandra.types.typed import TYPES, exact, kind_of
from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.types import NATIVE, Duration
from writetime.errors import DecodeError, SchemaError
from writetime.events.avro import (
    Avro,
    AvroTable,
    avro_type,
    to_avro_value,
    without_calendar,
)

ORDERS = Table(
    "k",
    "Orders",
    UUID(int=1),
    {
        column.name: column
        for column in (
            Column("id", "partition_key", "uuid", 0),
            Column("at", "clustering", "timestamp", 0, descending=True),
            Column("note", "static", "text"),
            Column("home", "regular", "frozen<addr>"),
            Column("größe", "regular", "varint"),
            Column("Größe", "regular", "duration"),
            Column("people", "regular", "map<int, frozen<person>>"),
            Column("pair", "regular", "tuple<frozen<addr>, duration>"),
        )
    },
)
IN_CQL = {("cql", name): replace(kind, keyspace="cql") for (_, name), kind in TYPES.items()}
HOME = {"street": "s", "zip": 1, "tags": ["a"]}
ROW = {
    "id": UUID(int=7),
    "at": 2**62,
    "note": None,
    "home": HOME,
    "größe": 10**40,
    "Größe": Duration(1, 2, 3),
    "people": [(5, {"name": "n", "home": HOME, "work": None})],
    "pair": (HOME, Duration(0, 0, -1)),
}


def written(schema: Avro, datum: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), datum)
    return buffer.getvalue()


def read(data: bytes, writer: Avro, reader: Avro | None = None) -> Any:
    schemas = [None if schema is None else fastavro.parse_schema(without_calendar(schema)) for schema in (writer, reader)]
    return fastavro.schemaless_reader(io.BytesIO(data), *schemas)


def names_in(schema: Avro) -> list[str]:
    """Full names of all records that a schema defines."""
    if isinstance(schema, list):
        return [name for branch in schema for name in names_in(branch)]
    if not isinstance(schema, dict):
        return []
    own = [f"{schema['namespace']}.{schema['name']}"] if schema["type"] == "record" else []
    parts = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", ()))]
    return own + [name for part in parts for name in names_in(part)]


def test_a_tables_records() -> None:
    table = AvroTable.of(ORDERS, TYPES)
    assert json.loads(json.dumps(table.key_schema)) == {
        "type": "record",
        "name": "Key",
        "namespace": "k.Orders",
        "fields": [
            {"name": "id", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": None},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        ],
    }
    fields = {field["name"]: field for field in table.row_schema["fields"]}
    assert list(fields) == ["id", "at", "note", "_Gr_xf6__xdf_e", "_gr_xf6__xdf_e", "home", "pair", "people"]
    assert fields["_gr_xf6__xdf_e"] == {
        "name": "_gr_xf6__xdf_e",
        "type": ["null", {"type": "string", "cqlType": "varint"}],
        "default": None,
        "cqlName": "größe",
    }


def test_each_named_type_is_defined_once_and_named_afterwards() -> None:
    defined = names_in(AvroTable.of(ORDERS, TYPES).row_schema)
    assert len(defined) == len(set(defined))
    assert {"k.Orders.Row", "k._types.addr", "k._types.person", "cql.duration"} < set(defined)
    assert len([name for name in defined if name.startswith(("cql.tuple_", "cql.map_"))]) == 2


def test_names_of_unlike_types_never_meet() -> None:
    twins = {("k", "a_b"): UserType("k", "a_b", ("x",), ("int",)), ("k", "a.b"): UserType("k", "a.b", ("x",), ("text",))}
    columns = {
        "id": Column("id", "partition_key", "int", 0),
        "one": Column("one", "regular", "frozen<a_b>"),
        "two": Column("two", "regular", 'frozen<"a.b">'),
        "three": Column("three", "regular", "tuple<int, text>"),
        "four": Column("four", "regular", "tuple<text, int>"),
    }
    table = AvroTable.of(Table("k", "t", UUID(int=2), columns), twins)
    row = {"id": 1, "one": {"x": 1}, "two": {"x": "t"}, "three": (1, "a"), "four": ("a", 1)}
    assert table.row(read(written(table.row_schema, table.row_datum(row)), table.row_schema)) == row


def test_rows_come_back() -> None:
    table = AvroTable.of(ORDERS, TYPES)
    assert exact(table.row(read(written(table.row_schema, table.row_datum(ROW)), table.row_schema))) == exact(ROW)
    assert read(written(table.key_schema, table.key_datum(ROW)), table.key_schema) == {"id": ROW["id"], "at": ROW["at"]}
    alone = table.row_datum({"id": UUID(int=7), "note": "static content that stands alone"})
    assert table.row(read(written(table.row_schema, alone), table.row_schema))["at"] is None


def test_schemas_before_and_after_an_alter_understand_each_other() -> None:
    grown_types = {
        **TYPES,
        ("k", "addr"): UserType("k", "addr", (*TYPES["k", "addr"].field_names, "city"), ("text", "int", "frozen<set<text>>", "text")),
    }
    grown = replace(ORDERS, columns={**ORDERS.columns, "aged": Column("aged", "regular", "duration")})
    old, new = AvroTable.of(ORDERS, TYPES), AvroTable.of(grown, grown_types)
    forward = new.row(read(written(old.row_schema, old.row_datum(ROW)), old.row_schema, new.row_schema))
    later = {"street": "s", "zip": 1, "tags": ["a"], "city": None}
    assert (forward["aged"], forward["home"], forward["pair"]) == (None, later, (later, Duration(0, 0, -1)))
    told = {**ROW, "aged": Duration(9, 9, 9), "home": {**HOME, "city": "c"}}
    assert old.row(read(written(new.row_schema, new.row_datum(told)), new.row_schema, old.row_schema)) == ROW
    # A column that was dropped.
    less = AvroTable.of(replace(ORDERS, columns={n: c for n, c in ORDERS.columns.items() if n != "note"}), TYPES)
    assert old.row(read(written(less.row_schema, less.row_datum(ROW)), less.row_schema, old.row_schema))["note"] is None


def test_a_table_of_three_hundred_columns() -> None:
    """Of all types in turn, named as nobody should: fastavro takes it, and it reads what it wrote when it had
    half of them."""
    kinds = ["frozen<person>", 'frozen<"Odd Name">', "map<int, frozen<addr>>", "tuple<int, duration>", *sorted(NATIVE.keys() - {"counter"})]
    columns = {"id": Column("id", "partition_key", "int", 0)}
    columns |= {name: Column(name, "regular", kinds[i % len(kinds)]) for i, name in enumerate(f"Col.{n} _x{n}_" for n in range(300))}
    half = {name: column for i, (name, column) in enumerate(columns.items()) if i < 150}
    wide, narrow = (AvroTable.of(Table("cql", "_types", UUID(int=3), some), TYPES | IN_CQL) for some in (columns, half))
    defined = names_in(wide.row_schema)
    assert len(wide.row_schema["fields"]) == 301 == len({field["name"] for field in wide.row_schema["fields"]})
    assert len(defined) == len(set(defined))
    row = {"id": 7, "Col.0 _x0_": {"name": "n", "home": HOME, "work": None}, "Col.3 _x3_": (1, Duration(1, 2, 3))}
    grown = wide.row(read(written(narrow.row_schema, narrow.row_datum(row)), narrow.row_schema, wide.row_schema))
    assert grown == dict.fromkeys(wide.columns) | row
    assert narrow.row(read(written(wide.row_schema, wide.row_datum(row)), wide.row_schema, narrow.row_schema)).items() <= grown.items()


def test_a_duration_beyond_its_fields_is_refused() -> None:
    with pytest.raises(DecodeError):
        to_avro_value(NATIVE["duration"], Duration(2**31, 0, 0))


def test_an_unknown_user_type_has_no_schema() -> None:
    with pytest.raises(SchemaError):
        avro_type(kind_of("frozen<nowhere>"))
