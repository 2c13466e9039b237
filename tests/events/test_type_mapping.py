"""The table of types: what it says is what is made, by us, by Spark and by Iceberg, and what the page
shows."""

from __future__ import annotations

import re
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow
from pyspark.sql.pandas.types import from_arrow_type

from proof.recording import shop
from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.types import NATIVE, CqlType, parse_type
from writetime.events.arrow import arrow_type
from writetime.events.avro import Avro, avro_type
from writetime.events.json import to_json_value
from writetime.events.type_mapping import (
    NATIVES,
    SHAPES,
    TABLE,
    Mapped,
    markdown,
)

PAGE = Path(__file__).parents[2] / "docs" / "types.md"
TYPES = {("k", "ab"): UserType("k", "ab", ("a", "b"), ("int", "text"))}
A, B = TABLE["int"], TABLE["text"]
EXAMPLES = {
    "list<T>": ("list<int>", {"T": A}),
    "set<T>": ("frozen<set<int>>", {"T": A}),
    "vector<T, n>": ("vector<int, 3>", {"T": A}),
    "map<K, V>, K as text": ("map<text, int>", {"K": B, "V": A}),
    "map<K, V>, other K": ("map<int, text>", {"K": A, "V": B}),
    "tuple<A, B>": ("tuple<int, text>", {"A": A, "B": B}),
    "user type (a A, b B)": ("ab", {"A": A, "B": B}),
    "custom type": ("'org.example.Custom'", {}),
}


def kind_of(text: str) -> CqlType:
    return parse_type(text, "k", TYPES)


def spark_name(kind: pa.DataType) -> str:
    return _told(from_arrow_type(kind).simpleString().upper())


def _told(text: str) -> str:
    return text.replace(" ", "")


def iceberg_name(kind: pa.DataType) -> str:
    text = str(visit_pyarrow(pa.schema([("x", kind)]), _ConvertToIcebergWithoutIDs()).as_struct().fields[0].field_type)
    return _told(re.sub(r"(?<![a-z_])-?\d+: |optional |required ", "", text))


def avro_name(schema: Avro) -> str:
    """As the table says it."""
    if isinstance(schema, str):
        return schema
    if schema["type"] == "record":
        return f"record {schema['namespace']}.{schema['name']}"
    if schema["type"] == "array":
        items = schema["items"]
        return f"array of {avro_name(items[1] if isinstance(items, list) else items)}"
    if schema["type"] == "map":
        return f"map of {avro_name(schema['values'][1])}"
    return f"{schema['type']} ({schema['logicalType']})" if "logicalType" in schema else str(schema["type"])


def test_every_simple_type_is_there() -> None:
    assert list(TABLE) == [row.cql for row in NATIVES]
    assert TABLE.keys() == NATIVE.keys()


@pytest.mark.parametrize("row", NATIVES, ids=lambda row: row.cql)
def test_simple_types(row: Mapped) -> None:
    arrow, avro = arrow_type(NATIVE[row.cql]), avro_type(NATIVE[row.cql])
    assert (str(arrow), spark_name(arrow), iceberg_name(arrow)) == (row.arrow, _told(row.spark.upper()), _told(row.iceberg))
    assert avro_name(avro) == row.avro
    fastavro.parse_schema(avro)


@pytest.mark.parametrize("row", SHAPES, ids=lambda row: row.cql)
def test_types_made_of_others(row: Mapped) -> None:
    text, parts = EXAMPLES[row.cql]
    arrow, avro = arrow_type(kind_of(text)), avro_type(kind_of(text))
    assert str(arrow) == _filled(row.arrow, parts, "arrow")
    assert spark_name(arrow) == _told(_filled(row.spark, parts, "spark").upper())
    assert iceberg_name(arrow) == _told(_filled(row.iceberg, parts, "iceberg"))
    named = _filled(row.avro, parts, "avro").replace("<keyspace>", "k").replace("<name>", "ab")
    assert avro_name(avro).startswith(named.removesuffix("…"))
    fastavro.parse_schema(avro)


def _filled(text: str, parts: dict[str, Mapped], house: str) -> str:
    for letter, part in parts.items():
        for before in "< ":
            for after in ">,":
                text = text.replace(f"{before}{letter}{after}", f"{before}{getattr(part, house)}{after}")
        text = text.replace(f"of {letter}", f"of {getattr(part, house)}")
    return text


JSON_EXAMPLES = {
    "text": ("text", "x", str),
    "base64": ("blob", b"x", str),
    "true, false": ("boolean", True, bool),
    "number": ("int", 1, int),
    'number, "NaN", "Infinity", "-Infinity"': ("double", 0.5, float),
    "ISO-8601, ms, UTC": ("timestamp", 0, str),
    "ISO-8601": ("date", 0, str),
}


def test_json_is_of_the_kind_that_the_table_says() -> None:
    assert {row.json for row in NATIVES} == JSON_EXAMPLES.keys() | {'{"months", "days", "nanoseconds"}'}
    for name, value, form in JSON_EXAMPLES.values():
        assert type(to_json_value(NATIVE[name], value)) is form


def test_the_page_shows_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in markdown():
        assert table in page, f"docs/types.md lacks:\n\n{table}"


def test_every_type_of_the_rings_workload_has_its_row() -> None:
    found = {
        word for statement in (*shop.CREATE, shop.ALTER) for word in statement.replace("<", " ").replace(">", " ").replace(",", " ").split()
    }
    used = found & NATIVE.keys()
    assert {"uuid", "timestamp", "decimal", "varint", "inet", "date", "blob", "float"} <= used <= TABLE.keys()
