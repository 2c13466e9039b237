"""Schema changes as Cassandra logs them: mutations of system_schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import (
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    Row,
)
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES, system_table_id
from writetime.cassandra.types.types import parse_type

Cells = Mapping[str, Any]


def schema_row(table: str, clustering: Iterable[str], timestamp: int, cells: Cells) -> Row:
    """A row of system_schema.<table>; a value of None is a tombstone."""
    columns = SCHEMA_TABLES[system_table_id("system_schema", table)].columns
    made = []
    for name, value in sorted(cells.items()):
        if value is None:
            made.append(Cell(name, timestamp, b"", None, 0, timestamp // 1_000_000))
        else:
            made.append(Cell(name, timestamp, parse_type(columns[name].type, "system_schema", {}).encode(value)))
    return Row(tuple(part.encode() for part in clustering), Liveness(timestamp), cells=tuple(made))


def deleted_row(clustering: Iterable[str], timestamp: int) -> Row:
    return Row(tuple(part.encode() for part in clustering), deletion=DeletionTime(timestamp, timestamp // 1_000_000))


def change(keyspace: str, **tables: list[Row]) -> Mutation:
    """One schema change of a keyspace: rows by table of system_schema."""
    updates = []
    for table, rows in sorted(tables.items()):
        ordered = tuple(sorted(rows, key=lambda row: row.clustering or ()))
        updates.append(PartitionUpdate(system_table_id("system_schema", table), keyspace.encode(), rows=ordered))
    return Mutation(tuple(updates))


def drop_keyspace(keyspace: str, timestamp: int) -> Mutation:
    deletion = DeletionTime(timestamp, timestamp // 1_000_000)
    return Mutation(tuple(PartitionUpdate(table_id, keyspace.encode(), deletion) for table_id in SCHEMA_TABLES))


def column_row(table: str, name: str, timestamp: int, kind: str, type_text: str, position: int = -1, order: str = "none") -> Row:
    cells = {"kind": kind, "type": type_text, "position": position, "clustering_order": order, "column_name_bytes": name.encode()}
    return schema_row("columns", (table, name), timestamp, cells)


def dropped_row(table: str, name: str, timestamp: int, kind: str | None, type_text: str, dropped_ms: int) -> Row:
    cells = {"type": type_text, "dropped_time": dropped_ms, **({"kind": kind} if kind else {})}
    return schema_row("dropped_columns", (table, name), timestamp, cells)


def table_rows(table: str, table_id: UUID, timestamp: int, *, cdc: bool | None = None, flags: Iterable[str] = ("compound",)) -> list[Row]:
    """The row of system_schema.tables, with the deletion just before it that 4.0 and later write."""
    cells = {"id": table_id, "flags": sorted(flags), "comment": "", "gc_grace_seconds": 864_000, "default_time_to_live": 0, "cdc": cdc}
    row = schema_row("tables", (table,), timestamp, {name: value for name, value in cells.items() if value is not None})
    return [Row(row.clustering, row.liveness, DeletionTime(timestamp - 1, timestamp // 1_000_000), cells=row.cells)]


def create_keyspace(keyspace: str, timestamp: int) -> Mutation:
    replication = [("class", "org.apache.cassandra.locator.SimpleStrategy"), ("replication_factor", "3")]
    return change(keyspace, keyspaces=[schema_row("keyspaces", (), timestamp, {"durable_writes": True, "replication": replication})])


def create_table(table: Table, timestamp: int) -> Mutation:
    columns = []
    for column in table.columns.values():
        order = "none" if column.kind != "clustering" else "desc" if column.descending else "asc"
        columns.append(column_row(table.name, column.name, timestamp, column.kind, column.type, column.position, order))
    dropped = [dropped_row(table.name, d.name, timestamp, d.kind, d.type, d.dropped_at // 1000) for d in table.dropped_columns.values()]
    tables = table_rows(table.name, table.id, timestamp, cdc=True if table.cdc else None, flags=table.flags)
    return change(table.keyspace, tables=tables, columns=columns, dropped_columns=dropped)


def add_columns(table: Table, names: Iterable[str], timestamp: int) -> Mutation:
    """The ALTER that adds these columns of the table: it writes no others, as a CREATE would."""
    columns = [column_row(table.name, name, timestamp, table.columns[name].kind, table.columns[name].type) for name in names]
    tables = table_rows(table.name, table.id, timestamp, cdc=True if table.cdc else None, flags=table.flags)
    return change(table.keyspace, tables=tables, columns=columns)


def ddl_bodies(schema: Schema) -> list[bytes]:
    """The frames' bodies that create all tables of a schema."""
    system = Schema(tables=dict(SCHEMA_TABLES))
    return [encode_mutation(create_table(table, 1_700_000_000_000_000), system) for table in schema.tables.values()]
