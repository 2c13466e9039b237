"""Columns of Parquet files by their field ids in an Iceberg table.

Strategy: a table knows its columns by ids, which stay when they are renamed, moved or made wider; a file has
the ids of its own time. So what is written carries the ids of the table's columns (`with_ids`), and what is
read is found by them (`columns_by_id`). Source: the Iceberg table specification (column projection, Parquet
field ids). Must not know which tables there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_jobs.stages.event_pages import around

FIELD_ID: Final = b"PARQUET:field_id"


def with_ids(columns: pa.Schema, struct: Mapping[str, Any]) -> pa.Schema:
    """The columns with the field ids of an Iceberg schema (its JSON format) that has them, and perhaps others, under the
    same names."""
    return pa.schema(_fields_with_ids(columns, struct))


def _fields_with_ids(columns: Iterable[pa.Field], struct: Mapping[str, Any]) -> list[pa.Field]:
    named = {each["name"]: each for each in struct["fields"]}
    return [_with_id(column, named[column.name]["id"], named[column.name]["type"]) for column in columns]


def _with_id(column: pa.Field, number: int, kind: Any) -> pa.Field:
    return pa.field(column.name, _type_with_ids(column.type, kind), column.nullable, {FIELD_ID: str(number).encode()})


def _type_with_ids(column: pa.DataType, kind: Any) -> pa.DataType:
    if pa.types.is_struct(column):
        return pa.struct(_fields_with_ids(column, kind))
    if pa.types.is_map(column):
        return pa.map_(
            _with_id(column.key_field, kind["key-id"], kind["key"]), _with_id(column.item_field, kind["value-id"], kind["value"])
        )
    if pa.types.is_list(column):
        return pa.list_(_with_id(column.value_field, kind["element-id"], kind["element"]))
    return column


def columns_of(held: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """The columns of a file that have the ids of the wanted ones."""
    ids = {id_of(each) for each in wanted}
    return pa.schema([each for each in held if id_of(each) in ids])


def columns_by_id(batch: pa.RecordBatch, held: pa.Schema, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of a file (`held`: its schema) that have the ids of the wanted ones, as the table has them
    now: with its names and types, fields of structs likewise. Columns that the file lacks are null."""
    columns = [_column(batch.columns, held, each) for each in wanted]
    return pa.RecordBatch.from_arrays(columns, names=wanted.names)


def _column(columns: Sequence[pa.Array], held: pa.Schema | pa.DataType, wanted: pa.Field) -> pa.Array:
    """The column of a file with the wanted field's id, as the table has it; nulls if the file is older than
    it."""
    at = next((at for at, each in enumerate(held) if id_of(each) == id_of(wanted)), None)
    if at is None:
        return pa.nulls(len(columns[0]), _plain(wanted.type))
    return _as(columns[at], held[at] if isinstance(held, pa.Schema) else held.field(at), wanted)


def id_of(column: pa.Field) -> bytes | None:
    return None if column.metadata is None else column.metadata.get(FIELD_ID)


def _as(column: pa.Array, held: pa.Field, wanted: pa.Field) -> pa.Array:
    if _same(held, wanted):
        return column.cast(_plain(wanted.type))
    if pa.types.is_struct(wanted.type):
        inner = [column.field(at) for at in range(column.type.num_fields)]
        found = [_column(inner, held.type, each) for each in wanted.type]
        return pa.StructArray.from_arrays(found, fields=[*_plain(wanted.type)], mask=column.is_null())
    if pa.types.is_map(wanted.type):
        fields = (held.type.key_field, wanted.type.key_field), (held.type.item_field, wanted.type.item_field)
        parts = [_as(part, *pair) for part, pair in zip((column.keys, column.items), fields, strict=True)]
        plain = _plain(wanted.type)
        return around(column, plain, pa.StructArray.from_arrays(parts, fields=[plain.key_field, plain.item_field]))
    if pa.types.is_list(wanted.type):
        values = _as(column.values, held.type.value_field, wanted.type.value_field)
        return around(column, _plain(wanted.type), values)
    return column.cast(wanted.type)


def _same(held: pa.Field, wanted: pa.Field) -> bool:
    """Whether both have the same fields all the way down."""
    mine, theirs = _inner(held.type), _inner(wanted.type)
    return len(mine) == len(theirs) and all(
        id_of(a) == id_of(b) and a.name == b.name and _same(a, b) for a, b in zip(mine, theirs, strict=True)
    )


def _inner(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(at) for at in range(kind.num_fields)]


def without_ids(columns: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(each.name, _plain(each.type), each.nullable) for each in columns])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without field ids."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type), each.nullable) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), pa.field("value", _plain(kind.item_type), kind.item_field.nullable))
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain(kind.value_type), kind.value_field.nullable))
    return kind
