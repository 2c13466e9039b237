"""The difference of two schemas as CQL: DDL of captured tables and of the user types in their keyspaces.

The log contains rows of the schema, not statements. The statements made here have the same effect and come in
an order that a cluster accepts. Options that readers of mutations do not need (compaction, comments) have
their defaults in a CREATE, and a change of them produces no DDL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple
from uuid import UUID

from writetime.cassandra.schema.create_statements import create_cql, identifier, in_order, type_cql
from writetime.cassandra.schema.model import Column, Schema, Table, UserType
from writetime.cassandra.schema.timeline import renamed


class Ddl(NamedTuple):
    """A statement. `table` is None for user types."""

    keyspace: str
    table: Table | None
    text: str


def ddl(before: Schema, after: Schema, captured: Collection[UUID]) -> Iterator[Ddl]:
    """The statements: new and altered types, then tables, then dropped types."""
    tables = [table for table_id, table in after.tables.items() if table_id in captured and table.view is None]
    keyspaces = {table.keyspace for table in tables}
    old, new = ({name: each for name, each in of.types.items() if name[0] in keyspaces and not each.dropped} for of in (before, after))
    for keyspace in sorted(keyspaces):
        for each in in_order([each for name, each in new.items() if name[0] == keyspace]):
            yield from (Ddl(keyspace, None, text) for text in _type(old.get((keyspace, each.name)), each))
    # The DROP of an incarnation comes before the CREATE of the next one with its name.
    for table in sorted(tables, key=lambda each: (each.full_name, not each.dropped, each.dropped_at or 0, str(each.id))):
        yield from (Ddl(table.keyspace, table, text) for text in _table(before.tables.get(table.id), table))
    for name in sorted(old.keys() - new.keys()):
        yield Ddl(name[0], None, f"DROP TYPE {identifier(name[0])}.{identifier(name[1])};")


def _type(before: UserType | None, after: UserType) -> Iterator[str]:
    if before is None:
        yield type_cql(after)
        return
    alter = f"ALTER TYPE {identifier(after.keyspace)}.{identifier(after.name)}"
    for old, new in zip(before.field_names, after.field_names, strict=False):
        if old != new:
            yield f"{alter} RENAME {identifier(old)} TO {identifier(new)};"
    known = len(before.field_names)
    for name, kind in zip(after.field_names[known:], after.field_types[known:], strict=True):
        yield f"{alter} ADD {identifier(name)} {kind};"


def _table(before: Table | None, after: Table) -> Iterator[str]:
    name = f"{identifier(after.keyspace)}.{identifier(after.name)}"
    if before is None:
        yield create_cql(after)
    elif before != after:
        yield from (f"ALTER TABLE {name} {change};" for change in _changes(before, after))
    if after.dropped and (before is None or not before.dropped):
        yield f"DROP TABLE {name};"


def _changes(before: Table, after: Table) -> Iterator[str]:
    new_names = dict(renamed(before, after))
    for old, new in new_names.items():
        yield f"RENAME {identifier(old)} TO {identifier(new)}"
    again = {n for n, c in after.columns.items() if n in before.columns and _dropped_between(before, after, n) and c.kind != "clustering"}
    for name in sorted((before.columns.keys() - after.columns.keys() - new_names.keys()) | again):
        yield f"DROP {identifier(name)}"
    for name in sorted((after.columns.keys() - before.columns.keys() - set(new_names.values())) | again):
        yield f"ADD {identifier(name)} {_kind(after.columns[name])}"
    for name in sorted(before.columns.keys() & after.columns.keys() - again):
        # The columns of a dropped table may have the definitions of its time instead of names.
        if before.columns[name].type != after.columns[name].type and not after.dropped:
            yield f"ALTER {identifier(name)} TYPE {after.columns[name].type}"
    options = {"cdc": str(after.cdc).lower()} if before.cdc != after.cdc else {}
    options |= {o: str(getattr(after, o)) for o in ("default_time_to_live", "gc_grace_seconds") if getattr(before, o) != getattr(after, o)}
    if options:
        yield "WITH " + " AND ".join(f"{option} = {value}" for option, value in options.items())


def _dropped_between(before: Table, after: Table, name: str) -> bool:
    old, new = (table.dropped_columns.get(name) for table in (before, after))
    return new is not None and (old is None or old.dropped_at < new.dropped_at)


def _kind(column: Column) -> str:
    return f"{column.type}{' static' if column.kind == 'static' else ''}"
