"""What every CQL type becomes in Arrow, Spark, Iceberg, Avro and JSON: one table, which the code reads and
docs/types.md shows.

`writetime.events.arrow` and `writetime.events.avro` build their types from the columns `arrow` and `avro`.
Spark and Iceberg derive theirs from Arrow's; tests compare these columns with the result. Numbers of current
rows may have another type (`writetime.events.number_rules`).

A value comes back exactly unless `note` says otherwise. A zero-length value (`EMPTY`) comes back where
`empty` is "", and is null where it is "null". Must not know a library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_PRECISION: Final = 38
"""Digits of a decimal in Arrow's decimal128, Spark and Iceberg."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """One row: a CQL type and what becomes of it. Avro: type, then the logical type in parentheses."""

    cql: str
    arrow: str
    spark: str
    iceberg: str
    avro: str
    json: str
    empty: str = "null"
    note: str = ""


_DURATION = "struct<months: int32, days: int32, nanoseconds: int64>"
_ICEBERG_DURATION = "struct<months: int, days: int, nanoseconds: long>"
_TEXT = ("string", "STRING", "string", "string", "text")
_INT = ("int32", "INT", "int", "int", "number")
_LONG = ("int64", "BIGINT", "long", "long", "number")
_DIGITS = "Text, for CQL bounds neither digits nor scale; DECIMAL in current rows by rule."
_NAN = "NaN stays NaN; its payload is lost in JSON."

NATIVES: Final = (
    Mapped("ascii", *_TEXT, '""'),
    Mapped("text", *_TEXT, '""'),
    Mapped("varchar", *_TEXT, '""'),
    Mapped("blob", "binary", "BINARY", "binary", "bytes", "base64", '""'),
    Mapped("boolean", "bool", "BOOLEAN", "boolean", "boolean", "true, false"),
    Mapped("tinyint", *_INT, note="Iceberg and Avro have no smaller integers."),
    Mapped("smallint", *_INT, note="As tinyint."),
    Mapped("int", *_INT),
    Mapped("bigint", *_LONG),
    Mapped("counter", *_LONG, note="The sum of its shards, as a 64-bit number of Java's; the shards stay in the log."),
    Mapped("float", "float", "FLOAT", "float", "float", 'number, "NaN", "Infinity", "-Infinity"', note=_NAN),
    Mapped("double", "double", "DOUBLE", "double", "double", 'number, "NaN", "Infinity", "-Infinity"', note=_NAN),
    Mapped("varint", *_TEXT, '""', note=_DIGITS),
    Mapped("decimal", *_TEXT, '""', note=_DIGITS),
    Mapped(
        "timestamp",
        "timestamp[us, tz=UTC]",
        "TIMESTAMP",
        "timestamptz",
        "long (timestamp-millis)",
        "ISO-8601, ms, UTC",
        note="Refused by Arrow beyond the years ±292 thousand.",
    ),
    Mapped(
        "date",
        "date32[day]",
        "DATE",
        "date",
        "int (date)",
        "ISO-8601",
        note="All 2³² days; many readers know the years 1 to 9999 only.",
    ),
    Mapped("time", *_LONG, note="Nanoseconds since midnight; Iceberg and Avro have microseconds."),
    Mapped(
        "duration",
        _DURATION,
        "STRUCT<months: INT, days: INT, nanoseconds: BIGINT>",
        _ICEBERG_DURATION,
        "record cql.duration",
        '{"months", "days", "nanoseconds"}',
    ),
    Mapped("inet", *_TEXT, '""'),
    Mapped("uuid", "string", "STRING", "string", "string (uuid)", "text", '"", null in Avro'),
    Mapped("timeuuid", "string", "STRING", "string", "string (uuid)", "text", '"", null in Avro'),
    Mapped("empty", "binary", "BINARY", "binary", "bytes", "base64", '""'),
)

SHAPES: Final = (
    Mapped("list<T>", "list<item: T>", "ARRAY<T>", "list<T>", "array of T", "[T, …]"),
    Mapped("set<T>", "list<item: T>", "ARRAY<T>", "list<T>", "array of T", "[T, …]", note="In the type's order."),
    Mapped("vector<T, n>", "list<item: T>", "ARRAY<T>", "list<T>", "array of T", "[T, …]"),
    Mapped(
        "map<K, V>, K as text", "map<K, V>", "MAP<K, V>", "map<K, V>", "map of V", "{K: V, …}", note="K: text, ascii, uuid, timeuuid, inet."
    ),
    Mapped(
        "map<K, V>, other K",
        "map<K, V>",
        "MAP<K, V>",
        "map<K, V>",
        "array of record cql.map_…",
        '[{"key": K, "value": V}, …]',
        note="Arrow refuses a key that is null there; Arrow and Avro, keys that would become one.",
    ),
    Mapped(
        "tuple<A, B>",
        "struct<field_1: A, field_2: B>",
        "STRUCT<field_1: A, field_2: B>",
        "struct<field_1: A, field_2: B>",
        "record cql.tuple_…",
        '{"field_1": A, "field_2": B}',
        note="Fields left out at the end are null.",
    ),
    Mapped(
        "user type (a A, b B)",
        "struct<a: A, b: B>",
        "STRUCT<a: A, b: B>",
        "struct<a: A, b: B>",
        "record <keyspace>._types.<name>",
        '{"a": A, "b": B}',
        note="Fields that were never set are null.",
    ),
    Mapped("custom type", "binary", "BINARY", "binary", "bytes", "base64", '""', note="Composites too. Avro's `cqlType` names the class."),
)

TABLE: Final = {row.cql: row for row in NATIVES}
"""The rows of the simple types by name."""

_HEAD = ("CQL", "Arrow", "Spark", "Iceberg", "Avro", "JSON", "zero-length", "note")


def markdown() -> list[str]:
    """The tables as docs/types.md holds them: simple types, types made of others."""
    return ["\n".join(_lines(rows)) for rows in (NATIVES, SHAPES)]


def _lines(rows: tuple[Mapped, ...]) -> Iterator[str]:
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    for row in rows:
        cells = (row.cql, row.arrow, row.spark, row.iceberg, row.avro, row.json)
        shown = [f"`{cell}`" for cell in cells]
        yield f"| {' | '.join((*shown, row.empty, row.note))} |"
