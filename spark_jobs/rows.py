"""Rows of a table as Arrow takes them: the columns of a CQL table by name, with their types, and their values converted.

One mapping (writetime.cql.arrow) says what a CQL type becomes; fold, warehouse and outbox share it here. Knows neither Spark nor Iceberg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from writetime.cql.arrow import arrow_type, to_arrow_value
from writetime.cql.types import CqlType, parse_type
from writetime.errors import SchemaError
from writetime.join.event import TableView
from writetime.schema.model import Column, Schema, Table

WRITETIME = "_writetime"
EXPIRES_AT = "_expires_at"
OP = "_op"
"""Columns beside the table's own: writetime (µs) and expiry (s) of its columns by name, and while rows are merged, what to do."""


@dataclass(frozen=True)
class RowShape:
    """A table's columns by name, keys first, then static, then regular ones, with their CQL types."""

    table: Table
    keys: dict[str, CqlType]
    columns: dict[str, CqlType]

    @classmethod
    def of(cls, table: Table, schema: Schema) -> RowShape:
        def types(*columns: Column) -> dict[str, CqlType]:
            return {c.name: parse_type(c.type, table.keyspace, schema.types) for c in columns}

        keys = types(*table.partition_key, *table.clustering)
        return cls(table, keys, keys | types(*table.static_columns, *table.regular_columns))

    @property
    def key_type(self) -> pa.StructType:
        return pa.struct([(name, arrow_type(kind)) for name, kind in self.keys.items()])

    @property
    def row_type(self) -> pa.StructType:
        return pa.struct([(name, arrow_type(kind)) for name, kind in self.columns.items()])

    def values(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """The row's Python values as Arrow takes them. Raises DecodeError for a value that Arrow cannot hold."""
        return None if row is None else {name: to_arrow_value(self.columns[name], value) for name, value in row.items()}


def why_not(table: Table, schema: Schema) -> str | None:
    """Why the table's rows cannot be shown as things stand (a type that nobody knows, a column named as one of ours), or None."""
    try:
        TableView(table, schema.types)
        names = RowShape.of(table, schema).row_type.names
    except SchemaError as error:
        return str(error)
    taken = [name for name in (WRITETIME, EXPIRES_AT, OP) if name in names]
    return f"its column {taken[0]!r} bears a name that the warehouse needs for itself" if taken else None
