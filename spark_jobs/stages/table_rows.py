"""Rows of a table for Arrow: the columns of a CQL table by name, with their types and converted values.

`writetime.events.type_mapping` defines the type of a column, `writetime.events.naming` its name; merge,
warehouse and outbox share both through this module. Knows neither Spark nor Iceberg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.types.types import CqlType, parse_type
from writetime.events.arrow import arrow_converter, arrow_type
from writetime.events.naming import to_column

WRITETIME = "_writetime"
EXPIRES_AT = "_expires_at"
OP = "_op"
"""Columns beside the table's own: writetime (µs) and expiry (s) of its columns by CQL name, and while rows
are merged, what to do. No column of a table is called so: `to_column` puts `_` before names that are not
plain only, and these are plain without it."""


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
        return _struct(self.keys)

    @property
    def row_type(self) -> pa.StructType:
        return _struct(self.columns)

    def values(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """The row's values for Arrow, by column of the warehouse. DecodeError for a value that Arrow cannot
        hold."""
        if row is None:
            return None
        named = self._converters
        return {
            column: None if value is None else convert(value)
            for (column, convert), value in zip(map(named.__getitem__, row), row.values(), strict=True)
        }

    @cached_property
    def _converters(self) -> dict[str, tuple[str, Callable[[Any], Any]]]:
        return {name: (to_column(name), arrow_converter(kind)) for name, kind in self.columns.items()}


def changes_schema(shape: RowShape) -> pa.Schema:
    """The schema of change events in the outbox."""
    row = shape.row_type
    prefix = pa.struct([shape.key_type.field(to_column(column.name)) for column in shape.table.clustering])
    bounds = [("start", prefix), ("start_inclusive", pa.bool_()), ("end", prefix), ("end_inclusive", pa.bool_())]
    return pa.schema(
        [
            ("batch", pa.int64()),
            ("ordinal", pa.int64()),
            ("op", pa.string()),
            ("reason", pa.string()),
            ("changed_at", pa.timestamp("us", "UTC")),
            ("ts_micro", pa.int64()),
            ("processed_at", pa.timestamp("us", "UTC")),
            ("key", shape.key_type),
            ("before", row),
            ("after", row),
            ("changed", pa.list_(pa.string())),
            ("changed_elements", pa.string()),  # JSON, see telling.changed_elements
            ("nodes", pa.list_(pa.string())),
            ("replicas_expected", pa.int32()),
            ("file", pa.string()),
            ("pos", pa.int64()),
            ("table_id", pa.string()),
            ("schema_version", pa.string()),
            # By column of `after`, in µs and s; null unless events have facts of cells.
            ("writetime", pa.map_(pa.string(), pa.int64())),
            ("expires_at", pa.map_(pa.string(), pa.int64())),
            *([("bounds", pa.struct(bounds))] if shape.table.clustering else []),
        ]
    )


def _struct(columns: dict[str, CqlType]) -> pa.StructType:
    return pa.struct([(to_column(name), arrow_type(kind)) for name, kind in columns.items()])
