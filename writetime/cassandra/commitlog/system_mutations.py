"""Mutations of Cassandra's own tables, also of versions of Cassandra that this release does not know.

Strategy: a later version has columns and tables that `schema.system_tables` does not know. Updates have no
length, so an unknown column makes the rest of the mutation unreadable. But a column has one of a few wire
shapes, and usually only one shape decodes the mutation to its end with valid values. All shapes are tried;
unknown columns and tables are skipped and reported, the rest is returned. If two shapes decode equally well
to different results, the first error is raised.

A new table of system_schema has an id computed from its name (UUIDv3) and clustering columns of type text,
like all tables there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from uuid import UUID

from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION, decode_mutation, read_head
from writetime.cassandra.model import Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.epochs import METADATA_LOG, SINCE_6_0
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES, TABLES
from writetime.cassandra.types.types import parse_type
from writetime.errors import DecodeError, SchemaError, UnknownColumn, UnknownTable, WritetimeError

_OWN: Final = Schema(tables=TABLES)
_SHAPES: Final = ("text", "int", "boolean", "bigint", "uuid", "map<text, text>")
"""One type per wire shape: with a length, of 4, 1, 8 and 16 bytes, multi-cell."""
_CLUSTERINGS: Final = 4
_TRIES: Final = 2_000
COMPUTED: Final = 3
"""The UUID version of ids computed from names."""
_IDS: Final = tuple(table_id.bytes for table_id in SCHEMA_TABLES)


@dataclass(frozen=True, slots=True)
class Own:
    """A mutation of Cassandra's own tables: its known part, the table ids of all updates in order, and the
    skipped names."""

    mutation: Mutation
    tables: tuple[UUID, ...]
    unknown: tuple[str, ...] = ()


def decode_own(body: bytes, *, version: int = 7) -> Own:
    """Decode a mutation, skipping unknown columns and tables. Raises the errors of `decode_mutation` if that
    fails."""
    try:
        mutation = decode_mutation(body, _OWN, version=version)
    except (UnknownColumn, UnknownTable) as error:
        return _read_past(bytes(body), version, error)
    return Own(mutation, tuple(update.table_id for update in mutation.updates))


def is_schema_change(body: bytes, *, version: int) -> bool:
    """Whether the body is a mutation of system_schema, even if its first table is unknown. Raises
    MalformedMutation."""
    count, first, *_ = read_head(body, version=version)
    return first in SCHEMA_TABLES or (count > 1 and first not in TABLES and may_be_own(first) and any(each in body for each in _IDS))


def may_have_epochs(body: bytes, *, version: int) -> bool:
    """Whether a node that numbers its schema changes (6.0) may have written a mutation of one of the tables in
    `epochs.FOLLOWED`."""
    return version >= EPOCHS_VERSION or METADATA_LOG.id.bytes in body or SINCE_6_0.encode() in body


def may_be_own(table_id: UUID) -> bool:
    """Whether the id can be that of one of Cassandra's own tables, known or not."""
    return table_id.version == COMPUTED


def _read_past(body: bytes, version: int, error: UnknownColumn | UnknownTable) -> Own:
    found: list[Own] = []
    for schema in _guesses(body, version):
        own = _known_part(decode_mutation(body, schema, version=version), schema)
        if own is not None and all(own.mutation != other.mutation for other in found):
            found.append(own)
    found.sort(key=lambda own: _at_once(own.mutation), reverse=True)
    if not found or (len(found) > 1 and _at_once(found[0].mutation) == _at_once(found[1].mutation)):
        raise error
    return found[0]


def _at_once(mutation: Mutation) -> int:
    """The number of cells with the timestamp of their row. With a correct guess nearly all cells have it,
    else hardly any."""
    rows = [row for update in mutation.updates for row in update.rows if row.liveness is not None]
    return sum(cell.timestamp == row.liveness.timestamp for row in rows for cell in row.cells if row.liveness is not None)


def _guesses(body: bytes, version: int) -> Iterator[Schema]:
    """Schemas that decode the body: Cassandra's own tables with a guess for each unknown table and column."""
    waiting, tries = [_OWN], 0
    while waiting and tries < _TRIES:
        schema = waiting.pop()
        tries += 1
        try:
            decode_mutation(body, schema, version=version)
        except UnknownColumn as error:
            waiting += (_with_column(schema, error, shape) for shape in reversed(_SHAPES))
        except UnknownTable as error:
            table_id = UUID(error.table_id)
            if may_be_own(table_id):
                waiting += (_with_table(schema, table_id, size) for size in reversed(range(_CLUSTERINGS)))
        except (DecodeError, SchemaError):
            continue
        else:
            yield schema


def _with_column(schema: Schema, error: UnknownColumn, shape: str) -> Schema:
    table = next(table for table in schema.tables.values() if table.full_name == error.obj)
    column = Column(error.column, "static" if error.static else "regular", shape)
    return Schema(tables={**schema.tables, table.id: replace(table, columns={**table.columns, column.name: column})})


def _with_table(schema: Schema, table_id: UUID, size: int) -> Schema:
    keys = {"key": Column("key", "partition_key", "text", 0)}
    keys |= {f"clustering {place}": Column(f"clustering {place}", "clustering", "text", place) for place in range(size)}
    return Schema(tables={**schema.tables, table_id: Table("system_schema", str(table_id), table_id, keys)})


def _known_part(mutation: Mutation, schema: Schema) -> Own | None:
    """The mutation without its unknown parts; None if a known value is invalid, because the guess is
    wrong."""
    updates, unknown = [], set()
    for update in mutation.updates:
        known, guessed = TABLES.get(update.table_id), schema.tables[update.table_id]
        if not all(
            _is_of(column.type, value)
            for row in update.rows
            for column, value in zip(guessed.clustering, row.clustering or (), strict=True)
        ):
            return None
        if known is None:
            unknown.add(f"table {update.table_id}")
            continue
        unknown |= {f"{known.full_name}.{name}" for name in guessed.columns.keys() - known.columns.keys()}
        part = replace(update, rows=tuple(_known_row(row, known) for row in update.rows))
        if not _is_sound(part, known):
            return None
        updates.append(part)
    return Own(Mutation(tuple(updates), mutation.flags), tuple(update.table_id for update in mutation.updates), tuple(sorted(unknown)))


def _known_row(row: Row, table: Table) -> Row:
    return replace(
        row,
        cells=tuple(cell for cell in row.cells if cell.column in table.columns),
        complex_deletions={name: deletion for name, deletion in row.complex_deletions.items() if name in table.columns},
    )


def _is_sound(update: PartitionUpdate, table: Table) -> bool:
    for row in update.rows:
        for cell in row.cells:
            if cell.is_expiring or (cell.is_tombstone and cell.value):
                return False
            if cell.path is None and not _is_of(table.columns[cell.column].type, cell.value):
                return False
    return True


@lru_cache(maxsize=4096)
def _is_of(type_text: str, value: bytes | None) -> bool:
    try:
        return not value or parse_type(type_text, "system_schema", {}).decode(value) is not None
    except (WritetimeError, ValueError, OverflowError):
        return False
