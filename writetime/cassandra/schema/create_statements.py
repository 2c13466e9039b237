"""A schema as CQL statements that create it: keyspaces, user types in dependency order, tables, views.

Comments hold what CQL cannot express: ids, dropped columns and types, dropped incarnations of tables. Types
are printed as Cassandra wrote them, which is CQL already. Names are quoted where CQL requires it or might.
Omitted is what readers of mutations do not need: indexes, functions, triggers, masks, and options such as
compaction. Does not know the commit log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from typing import Final

from writetime.cassandra.schema.model import Column, DroppedColumn, Keyspace, Schema, Table, UserType
from writetime.cassandra.schema.system_tables import SYSTEM_KEYSPACES
from writetime.cassandra.types.literal import printable
from writetime.cassandra.types.types import parse_type
from writetime.errors import SchemaError

_BARE: Final = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED: Final = frozenset(
    re.findall(
        r"\w+",
        """
        add allow alter and any apply asc authorize batch begin by columnfamily create default delete desc describe drop each_quorum
        entries execute from full grant if in index inet infinity insert into is json keyspace keyspaces limit local_one local_quorum
        materialized mbean mbeans modify nan norecursive not null of on one or order partition password per primary quorum rename
        replace revoke schema select set table three to token truncate two unlogged unset update use using view where with
        """,
    )
)
"""Words that some version reserves (Cassandra: ReservedKeywords), and a few more."""
_WORD: Final = re.compile(r'"((?:[^"]|"")*)"|([A-Za-z_]\w*)')
_CLASS: Final = re.compile(r"'[^']*'")


def identifier(name: str) -> str:
    """A name as a CQL identifier, quoted if necessary."""
    return name if _BARE.fullmatch(name) and name not in _RESERVED else '"' + name.replace('"', '""') + '"'


def schema_cql(schema: Schema, *, system: bool = False) -> Iterator[str]:
    """Statements and comments, each of one or more lines. `system`: include system keyspaces, which nobody
    can create."""
    names = {table.keyspace for table in schema.tables.values()} | set(schema.keyspaces) | {keyspace for keyspace, _ in schema.types}
    for name in sorted(names if system else names - SYSTEM_KEYSPACES):
        yield from _keyspace_with_all(schema, name)


def _keyspace_with_all(schema: Schema, name: str) -> Iterator[str]:
    known = schema.keyspaces.get(name)
    yield keyspace_cql(known) if known else comment(f"keyspace {identifier(name)}: its CREATE KEYSPACE is unknown, or it was dropped")
    types = [each for (keyspace, _), each in schema.types.items() if keyspace == name]
    yield from (type_cql(each) for each in in_order([each for each in types if not each.dropped]))
    tables = sorted((table for table in schema.tables.values() if table.keyspace == name), key=lambda t: (t.view is not None, t.name, t.id))
    yield from (table_cql(table) for table in tables if not table.dropped)
    for gone in in_order([each for each in types if each.dropped]):
        yield "\n".join([comment(f"dropped: type {gone.keyspace}.{gone.name}"), *_commented(type_cql(gone))])
    yield from ("\n".join([comment(f"dropped: {table.label}"), *_commented(table_cql(table))]) for table in tables if table.dropped)


def keyspace_cql(keyspace: Keyspace) -> str:
    """CREATE KEYSPACE."""
    durable = "true" if keyspace.durable_writes else "false"
    return f"CREATE KEYSPACE {identifier(keyspace.name)} WITH replication = {_map(keyspace.replication)} AND durable_writes = {durable};"


def type_cql(user_type: UserType) -> str:
    """CREATE TYPE."""
    fields = zip(user_type.field_names, user_type.field_types, strict=True)
    lines = ",\n".join(f"    {identifier(name)} {type_text}" for name, type_text in fields)
    return f"CREATE TYPE {identifier(user_type.keyspace)}.{identifier(user_type.name)} (\n{lines}\n);"


def in_order(types: Collection[UserType]) -> list[UserType]:
    """User types of one keyspace, each after the types that its fields use, otherwise by name."""
    by_name = {each.name: each for each in types}
    graph = {name: sorted(_named_in(by_name[name].field_types, by_name)) for name in sorted(by_name)}
    try:
        return [by_name[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError:
        # Cassandra forbids cycles, but incomplete facts can contain one. Print the types anyway.
        return [by_name[name] for name in sorted(by_name)]


def _named_in(texts: Iterable[str], names: Collection[str]) -> set[str]:
    words = (match for text in texts for match in _WORD.finditer(_CLASS.sub("", text)))
    return {match[2].lower() if match[2] else match[1].replace('""', '"') for match in words} & set(names)


def table_cql(table: Table) -> str:
    """CREATE TABLE or CREATE MATERIALIZED VIEW, preceded by comments."""
    notes = (f"{table.full_name} id {table.id}", *_notes(table))
    return "\n".join([*map(comment, notes), _view(table) if table.view else create_cql(table)])


def _notes(table: Table) -> Iterator[str]:
    for column in sorted(table.dropped_columns.values(), key=lambda column: column.dropped_at):
        again = ", added again since" if column.name in table.columns else ""
        kind = f"{_type_shown(table, column)} ({column.kind})"
        yield f"dropped column {identifier(column.name)} {kind} at {_moment(column.dropped_at)}{again}"
    if "super" in table.flags:
        yield "a Thrift super column family: CQL cannot create it"
    elif table.is_compact:
        yield "requires enable_compact_storage in 4.0 and later"


def _type_shown(table: Table, column: DroppedColumn) -> str:
    """The type in CQL, which names user types instead of defining them."""
    try:
        return str(parse_type(column.type, table.keyspace, {}))
    except SchemaError:
        return column.type


def create_cql(table: Table) -> str:
    """CREATE TABLE without comments."""
    columns = [f"    {identifier(column.name)} {column.type}{_static(table, column)}" for column in table.cql_columns]
    body = ",\n".join([*columns, f"    {_primary_key(table)}"])
    options = [*(["COMPACT STORAGE"] if table.is_compact else []), *_order(table), *_options(table)]
    return f"CREATE TABLE {_name(table)} (\n{body}\n) WITH {_joined(options)};"


def _view(table: Table) -> str:
    view = table.view
    assert view is not None
    columns = "*" if view.all_columns else ", ".join(identifier(column.name) for column in table.cql_columns)
    source = f"{identifier(table.keyspace)}.{identifier(view.base_table)}"
    options = [*_order(table), *(["cdc = true"] if table.cdc else []), f"gc_grace_seconds = {table.gc_grace_seconds}"]
    lines = [f"SELECT {columns}", f"FROM {source}", f"WHERE {view.where_clause}", _primary_key(table), f"WITH {_joined(options)};"]
    return "\n    ".join([f"CREATE MATERIALIZED VIEW {_name(table)} AS", *lines])


def _name(table: Table) -> str:
    return f"{identifier(table.keyspace)}.{identifier(table.name)}"


def _static(table: Table, column: Column) -> str:
    return " static" if column.kind == "static" and not table.is_static_compact else ""


def _primary_key(table: Table) -> str:
    partition = ", ".join(identifier(column.name) for column in table.partition_key)
    clustering = [] if table.is_static_compact else [identifier(column.name) for column in table.clustering]
    return f"PRIMARY KEY ({', '.join([f'({partition})', *clustering])})"


def _order(table: Table) -> list[str]:
    if table.is_static_compact or not table.clustering:
        return []
    columns = ", ".join(f"{identifier(column.name)} {'DESC' if column.descending else 'ASC'}" for column in table.clustering)
    return [f"CLUSTERING ORDER BY ({columns})"]


def _options(table: Table) -> Iterator[str]:
    if table.cdc:
        yield "cdc = true"
    yield f"default_time_to_live = {table.default_time_to_live}"
    yield f"gc_grace_seconds = {table.gc_grace_seconds}"


def _joined(options: Iterable[str]) -> str:
    return "\n    AND ".join(options)


def _map(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_quoted(key)}: {_quoted(value)}" for key, value in values.items()) + "}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def comment(text: str) -> str:
    """A one-line CQL comment, whatever characters the text contains."""
    return f"-- {printable(text)}"


def _commented(text: str) -> Iterator[str]:
    # Some parsers end a comment at any Unicode line break.
    return (line if line.startswith("--") else comment(line) for line in text.split("\n"))


def _moment(microseconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(microseconds // 1_000_000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        # Cassandra records drops of its own columns at the maximum timestamp.
        return f"{microseconds} µs"
