"""Iceberg tables: current rows `<keyspace>.<table>`, changes `<keyspace>__changes.<table>` (names by writetime.cql.names); made, evolved
and written here only.

Strategy: table shapes follow from the CQL schema (spark_jobs.rows) and only grow: a column that the ring dropped stays, so that history
stays readable, and rows are written in the shape that the table has by then. Every write carries its batch number and is idempotent:
changes overwrite what the batch wrote before, current rows are merged to what the batch ended with. Knows Spark SQL; does not know where
rows come from.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_jobs.frames import Batches
from spark_jobs.rows import EXPIRES_AT, OP, WRITETIME, RowShape
from writetime.cql.names import to_changes_namespace, to_column, to_namespace
from writetime.errors import BatchError
from writetime.schema.model import Schema, Table

_FACTS = [(WRITETIME, pa.map_(pa.string(), pa.int64())), (EXPIRES_AT, pa.map_(pa.string(), pa.int64()))]
_BATCH_PROPERTY = "writetime.batch"
_ID_PROPERTY = "writetime.table-id"
_PROPERTIES = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "commit.retry.num-retries": "20",
}
_CHUNK = 1000
_FIRST_MICROS = -62_135_596_800_000_000
_LAST_MICROS = 253_402_300_799_999_999
"""The years 1 to 9999: what all readers of a timestamp understand."""


def current_schema(shape: RowShape) -> pa.Schema:
    """Current rows: the table's columns, then writetime (µs) and expiry (s since the epoch) of each, as maps by column name."""
    return pa.schema([*shape.row_type, *(pa.field(name, kind) for name, kind in _FACTS)])


def changes_schema(shape: RowShape) -> pa.Schema:
    """Change events as the outbox keeps them."""
    row = shape.row_type
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
            ("nodes", pa.list_(pa.string())),
            ("replicas_expected", pa.int32()),
            ("file", pa.string()),
            ("pos", pa.int64()),
            ("table_id", pa.string()),
        ]
    )


class Warehouse:
    """The tables of one catalog."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self.spark = spark
        self.catalog = catalog

    def changes_of(self, table: Table) -> str | None:
        """Name of the table that holds this life's changes, or None if there is none yet."""
        plain = to_column(table.name)
        names = [self._name(to_changes_namespace(table.keyspace), called) for called in (plain, _life_name(plain, table.id))]
        return next((name for name in names if self._life(name) == str(table.id)), None)

    def write_changes(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> None:
        """Put a batch's events in; what an earlier attempt of the same batch left is replaced."""
        name = self._ready(to_changes_namespace(table.keyspace), table, changes_schema(RowShape.of(table, schema)), "days(changed_at)")
        stored = self.spark.table(name).schema
        typed = events.mapInArrow(_event_rows(to_arrow_schema(stored), batch, str(table.id)), schema=stored)
        writer = typed.writeTo(name).option(f"snapshot-property.{_BATCH_PROPERTY}", str(batch))
        writer.overwrite(F.col("batch") == batch)

    def merge_current(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> None:
        """Bring the current rows to where the batch's last event of each row leaves them."""
        shape = RowShape.of(table, schema)
        columns = current_schema(shape)
        name = self._ready(to_namespace(table.keyspace), table, columns, None)
        if self._has_batch(name, batch):
            return
        stored = self.spark.table(name).schema
        rows = StructType([stored[column] for column in columns.names]).add(OP, "string")
        source = events.filter("last").mapInArrow(_current_rows(to_arrow_schema(rows)), schema=rows)
        view = f"merge_source_{table.id.hex}"
        source.createOrReplaceTempView(view)
        self.spark.conf.set(f"spark.sql.iceberg.snapshot-property.{_BATCH_PROPERTY}", str(batch))
        try:
            self.spark.sql(_merge_statement(name, view, shape, columns))
        finally:
            self.spark.conf.unset(f"spark.sql.iceberg.snapshot-property.{_BATCH_PROPERTY}")
            self.spark.catalog.dropTempView(view)

    def _name(self, namespace: str, table: str) -> str:
        return ".".join(_quoted(piece) for piece in (self.catalog, namespace, table))

    def _ready(self, namespace: str, table: Table, shape: pa.Schema, partitioning: str | None) -> str:
        """Name of the table for this life, with all columns it needs.

        The plain name belongs to the life that goes on. When a table was created anew, what the plain name held so far moves to a name
        with the old id: its columns may have other types, and its history stays readable.
        """
        called = to_column(table.name)
        plain = self._name(namespace, called)
        life = self._life(plain)
        if life != str(table.id) and table.dropped:
            plain = self._name(namespace, _life_name(called, table.id))
            life = self._life(plain)
        elif life not in (None, str(table.id)):
            # The new name stands without its catalog: Spark would take that for a namespace.
            aside = f"{_quoted(namespace)}.{_quoted(_life_name(called, UUID(life)))}"
            self.spark.sql(f"ALTER TABLE {plain} RENAME TO {aside}")
            life = None
        if life is None:
            self._create(plain, table, from_arrow_schema(shape), partitioning)
        else:
            self._evolve(plain, from_arrow_schema(shape))
        return plain

    def _life(self, name: str) -> str | None:
        """Id of the Cassandra table whose rows the table holds; None if there is no such table."""
        if not self.spark.catalog.tableExists(name):
            return None
        properties = {row["key"]: row["value"] for row in self.spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        if _ID_PROPERTY not in properties:
            raise BatchError(
                f"it has no property {_ID_PROPERTY}: somebody else made it",
                operation="open a warehouse table",
                obj=name,
                hint="Rename it; writetime makes its own.",
            )
        return str(properties[_ID_PROPERTY])

    def _create(self, name: str, table: Table, columns: StructType, partitioning: str | None) -> None:
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rsplit('.', 1)[0]}")
        listed = ", ".join(f"{_quoted(field.name)} {_type_ddl(field.dataType)}" for field in columns)
        properties = {**_PROPERTIES, _ID_PROPERTY: str(table.id)}
        told = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        partitions = f"PARTITIONED BY ({partitioning})" if partitioning else ""
        self.spark.sql(f"CREATE TABLE {name} ({listed}) USING iceberg {partitions} TBLPROPERTIES ({told})")

    def _evolve(self, name: str, columns: StructType) -> None:
        """Add the columns that the table lacks."""
        for path, kind in _missing(columns, self.spark.table(name).schema):
            column = ".".join(_quoted(piece) for piece in path)
            self.spark.sql(f"ALTER TABLE {name} ADD COLUMN {column} {_type_ddl(kind)}")

    def _has_batch(self, name: str, batch: int) -> bool:
        snapshots = self.spark.table(f"{name}.snapshots")
        return bool(snapshots.filter(F.col("summary")[_BATCH_PROPERTY] == str(batch)).head(1))


def _life_name(name: str, life: UUID) -> str:
    return f"{name}__{str(life)[:8]}"


def _merge_statement(name: str, view: str, shape: RowShape, stored: pa.Schema) -> str:
    # A row of static content alone has null clusterings: hence the null-safe comparison.
    same = " AND ".join(f"t.{key} <=> s.{key}" for key in map(_quoted, map(to_column, shape.keys)))
    columns = [_quoted(column) for column in stored.names]
    updates = ", ".join(f"t.{column} = s.{column}" for column in columns)
    values = ", ".join(f"s.{column}" for column in columns)
    return (
        f"MERGE INTO {name} t USING {view} s ON {same} "
        f"WHEN MATCHED AND s.{OP} = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )


def _event_rows(columns: pa.Schema, batch: int, table_id: str) -> Callable[[Batches], Batches]:
    def rows(batches: Batches) -> Batches:
        for record_batch in batches:
            found = record_batch.select(["ordinal", "payload"]).to_pylist()
            yield from _slices([_event_row(row, batch, table_id) for row in found], columns)

    return rows


def _event_row(row: dict[str, Any], batch: int, table_id: str) -> dict[str, Any]:
    event: dict[str, Any] = pickle.loads(row["payload"])  # noqa: S301 - written by this very job, between its own stages
    return {
        **event,
        "batch": batch,
        "ordinal": row["ordinal"],
        # USING TIMESTAMP takes any 64 bits; ts_micro keeps them, a calendar does not.
        "changed_at": max(_FIRST_MICROS, min(event["ts_micro"], _LAST_MICROS)),
        "processed_at": event["now"] * 1_000_000,
        "table_id": table_id,
    }


def _current_rows(columns: pa.Schema) -> Callable[[Batches], Batches]:
    def rows(batches: Batches) -> Batches:
        for record_batch in batches:
            yield from _slices([_current_row(payload) for payload in record_batch["payload"].to_pylist()], columns)

    return rows


def _current_row(payload: bytes) -> dict[str, Any]:
    event: dict[str, Any] = pickle.loads(payload)  # noqa: S301 - as above
    row = event["key"] if event["after"] is None else event["after"]
    facts = {WRITETIME: list(event["writetime"].items()), EXPIRES_AT: list(event["expires_at"].items())}
    return {**row, **facts, OP: event["op"]}


def _slices(rows: list[dict[str, Any]], shape: pa.Schema) -> Batches:
    for start in range(0, len(rows), _CHUNK):
        yield pa.RecordBatch.from_pylist(rows[start : start + _CHUNK], schema=shape)


def _missing(wanted: DataType, present: DataType, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], DataType]]:
    """Columns, nested ones too, that `present` lacks; the elements of arrays and the values of maps are named as Iceberg names them."""
    if isinstance(wanted, ArrayType) and isinstance(present, ArrayType):
        return _missing(wanted.elementType, present.elementType, (*path, "element"))
    if isinstance(wanted, MapType) and isinstance(present, MapType):
        return _missing(wanted.valueType, present.valueType, (*path, "value"))
    if not isinstance(wanted, StructType) or not isinstance(present, StructType):
        return []
    found: list[tuple[tuple[str, ...], DataType]] = []
    held = {field.name: field.dataType for field in present}
    for field in wanted:
        below = (*path, field.name)
        found += _missing(field.dataType, held[field.name], below) if field.name in held else [(below, field.dataType)]
    return found


def _type_ddl(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return "STRUCT<" + ", ".join(f"{_quoted(field.name)}: {_type_ddl(field.dataType)}" for field in kind) + ">"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type_ddl(kind.keyType)}, {_type_ddl(kind.valueType)}>"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
