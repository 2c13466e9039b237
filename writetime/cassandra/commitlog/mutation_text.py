"""Mutations as blocks of text with CQL literals and times in UTC. Also writes lines of JSON to stdout.

    2026-03-04 11:22:33.444555Z  CommitLog-7-1.log:4711  (412 bytes)
    shop.orders  customer = 7
      row placed = '2026-03-04 11:22:33.000Z': written, TTL 3600 to 2026-03-04 12:22:33Z
        note     'x'
        tags     all before deleted @ 2026-03-04 11:22:33.444554Z
        tags[…]  'new'

The time in the first line is the latest timestamp of the mutation; other timestamps follow an `@`. Values
that cannot be decoded are shown in hex. Long values are truncated and marked.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from writetime.cassandra.commitlog.mutation_json import Lines
from writetime.cassandra.commitlog.segment import Frame, Scan
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table
from writetime.cassandra.types.literal import literal_of, micros_text, printable
from writetime.cassandra.types.types import CollectionType, CqlType, UdtType, parse_type, quoted
from writetime.errors import SchemaError

if TYPE_CHECKING:
    from rich.console import Console

Span = tuple[str, str]
"""Text and its style (of rich); "" = none."""
_CHUNK = 1 << 18
_LONGEST = 4000
"""Maximum number of characters shown of a value."""
_TIME, _TABLE, _KEY, _COLUMN, _VALUE, _DELETED, _DIM = "bold", "bold cyan", "yellow", "green", "", "red", "dim"


class MutationWriter(Protocol):
    """Writes mutations to stdout in the given order. `name` is the segment's."""

    def __call__(self, name: str, found: Scan, frame: Frame, mutation: Mutation) -> None: ...

    def flush(self) -> None:
        """Write buffered output."""


def console_of_stdout(width: int | None = None) -> Console:
    """The console for text output. A closed pipe stays an error, so that the command ends."""
    from rich.console import Console

    class Stdout(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Stdout(file=sys.stdout, highlight=False, markup=False, width=width)


def mutation_writer(schema: Schema, cdc_ever: Collection[UUID], *, as_json: bool) -> MutationWriter:
    """Writes lines of JSON or blocks of text."""
    return _JsonWriter(schema, cdc_ever) if as_json else _TextWriter(schema, cdc_ever)


class _JsonWriter:
    def __init__(self, schema: Schema, cdc_ever: Collection[UUID]) -> None:
        self._lines = Lines(schema, cdc_ever)
        self._held: list[str] = []
        self._size = 0

    def __call__(self, name: str, found: Scan, frame: Frame, mutation: Mutation) -> None:
        line = self._lines.line(found, frame, mutation)
        self._held.append(line)
        self._size += len(line)
        if self._size > _CHUNK:
            self.flush()

    def flush(self) -> None:
        if self._held:
            sys.stdout.write("\n".join([*self._held, ""]))
            self._held.clear()
            self._size = 0


class _TextWriter:
    def __init__(self, schema: Schema, cdc_ever: Collection[UUID]) -> None:
        self._blocks = Blocks(schema, cdc_ever)
        self._console = console_of_stdout()

    def __call__(self, name: str, found: Scan, frame: Frame, mutation: Mutation) -> None:
        lines = self._blocks.lines(name, frame, mutation)
        if self._console.is_terminal:
            from rich.text import Text

            for line in lines:
                self._console.print(Text.assemble(*line), soft_wrap=True)
        else:
            sys.stdout.write("".join(f"{''.join(text for text, _ in line)}\n" for line in lines))

    def flush(self) -> None:
        """Nothing is buffered."""


class Blocks:
    """Makes blocks, given the schema and the ids of the tables that ever had cdc."""

    def __init__(self, schema: Schema, cdc_ever: Collection[UUID]) -> None:
        self.schema = schema
        self._names = Lines(schema, cdc_ever)
        self._types: dict[tuple[UUID, str], CqlType | None] = {}

    def lines(self, name: str, frame: Frame, mutation: Mutation) -> Iterator[list[Span]]:
        """The lines of one mutation's block, an empty one at the end."""
        time = _latest(mutation)
        when = "no time" if time is None else micros_text(time)
        yield [(when, _TIME), (f"  {printable(name)}:{frame.position}  ", _DIM), (f"({frame.body_length} bytes)", _DIM)]
        for update in mutation.updates:
            yield from self._update(update, time)
        yield []

    def _update(self, update: PartitionUpdate, time: int | None) -> Iterator[list[Span]]:
        table = self.schema.tables[update.table_id]
        yield [(f"{_name(table.keyspace)}.{_name(self._names.table_name(table))}", _TABLE), ("  ", ""), *self._key(table, update.key)]
        if update.deletion is not None:
            yield [("  partition deleted", _DELETED), *_at(update.deletion.marked_for_delete_at, time)]
        for tombstone in update.range_tombstones:
            yield [("  rows ", ""), *self._range(table, tombstone), (" deleted", _DELETED), *_at(_marked(tombstone.deletion), time)]
        if update.static_row is not None and not update.static_row.is_empty:
            yield [("  static row", "")]
            yield from self._cells(table, update.static_row, time)
        for row in update.rows:
            yield [("  row", ""), *self._clustering(table, row.clustering or ()), *_row_changes(row, time)]
            yield from self._cells(table, row, time)

    # --- keys

    def _key(self, table: Table, key: bytes) -> list[Span]:
        columns = table.partition_key
        parts = [key] if len(columns) == 1 else _composite(key, len(columns))
        if parts is None:
            return [(_cut(f"0x{key.hex()}", len(key)), _KEY)]
        return self._named(table, columns, tuple(parts))

    def _clustering(self, table: Table, values: tuple[bytes | None, ...]) -> list[Span]:
        return [(" ", ""), *self._named(table, table.clustering, values)] if values else []

    def _named(self, table: Table, columns: tuple[Column, ...], values: tuple[bytes | None, ...]) -> list[Span]:
        parts: list[Span] = []
        for column, value in zip(columns, values, strict=False):
            parts += [(", " if parts else "", ""), (f"{_name(column.name)} = ", ""), (self._value(table, column, value), _KEY)]
        return parts

    def _range(self, table: Table, tombstone: RangeTombstone) -> list[Span]:
        start, end = self._bound(table, tombstone.start, "the first"), self._bound(table, tombstone.end, "the last")
        return [("from ", ""), *start, (" to ", ""), *end]

    def _bound(self, table: Table, bound: Bound, open_end: str) -> list[Span]:
        if not bound.values:
            return [(open_end, "")]
        return [*self._named(table, table.clustering, bound.values), (" (included)" if bound.inclusive else " (excluded)", "")]

    # --- cells

    def _cells(self, table: Table, row: Row, time: int | None) -> Iterator[list[Span]]:
        by_column: dict[str, list[tuple[str, list[Span]]]] = {}
        for column, deletion in row.complex_deletions.items():
            name = _cell_name(table, column, "", self._type(table, column))
            by_column[column] = [(name, [("all before deleted", _DELETED), *_at(_marked(deletion), time)])]
        for cell in row.cells:
            by_column.setdefault(cell.column, []).append(self._cell(table, cell, row.liveness, time))
        found = [named for column in sorted(by_column) for named in by_column[column]]
        width = min(max((len(name) for name, _ in found), default=0), 40)
        for name, parts in found:
            yield [("    ", ""), (f"{name:<{width}}  ", _COLUMN), *parts]

    def _cell(self, table: Table, cell: Cell, liveness: Liveness | None, time: int | None) -> tuple[str, list[Span]]:
        kind = self._type(table, cell.column)
        name = _cell_name(table, cell.column, _path(kind, cell.path), kind)
        if cell.is_tombstone:
            return name, [("deleted", _DELETED), *_at(cell.timestamp, time)]
        parts: list[Span] = [(_cut(_cell_value(kind, cell), len(cell.value)), _VALUE)]
        same = liveness is not None and (liveness.ttl, liveness.expires_at) == (cell.ttl, cell.local_deletion_time)
        if cell.is_expiring and not same:
            parts.append((f"  {_expiry(cell.ttl, cell.local_deletion_time)}", _DIM))
        return name, [*parts, *_at(cell.timestamp, time)]

    def _value(self, table: Table, column: Column, value: bytes | None) -> str:
        kind = self._type(table, column.name)
        return _cut(_hex(value) if kind is None else literal_of(kind, value), len(value or b""))

    def _type(self, table: Table, name: str) -> CqlType | None:
        """The type of a column, also of a dropped one; None if it is unknown."""
        known = (table.id, name)
        if known not in self._types:
            column: Column | DroppedColumn | None = table.columns.get(name) or table.dropped_columns.get(name)
            try:
                self._types[known] = None if column is None else parse_type(column.type, table.keyspace, self.schema.types)
            except SchemaError:
                self._types[known] = None
        return self._types[known]


@lru_cache(maxsize=4096)
def _name(name: str) -> str:
    return printable(quoted(name))


def _latest(mutation: Mutation) -> int | None:
    """The latest timestamp in a mutation, deletions included."""
    times = [time for update in mutation.updates for time in _times(update)]
    return max(times, default=None)


def _times(update: PartitionUpdate) -> Iterator[int]:
    if update.deletion is not None:
        yield update.deletion.marked_for_delete_at
    yield from (tombstone.deletion.marked_for_delete_at for tombstone in update.range_tombstones)
    for row in (*update.rows, *([update.static_row] if update.static_row is not None else [])):
        if row.liveness is not None:
            yield row.liveness.timestamp
        if row.deletion is not None:
            yield row.deletion.marked_for_delete_at
        yield from (cell.timestamp for cell in row.cells)
        yield from (deletion.marked_for_delete_at for deletion in row.complex_deletions.values())


def _marked(deletion: DeletionTime) -> int:
    return deletion.marked_for_delete_at


def _at(timestamp: int, time: int | None) -> list[Span]:
    return [] if timestamp == time else [(f"  @ {micros_text(timestamp)}", _DIM)]


def _row_changes(row: Row, time: int | None) -> list[Span]:
    """The row's own changes: liveness info and deletion."""
    parts: list[Span] = []
    if row.deletion is not None:
        parts += [(" deleted", _DELETED), *_at(row.deletion.marked_for_delete_at, time)]
    if row.liveness is not None:
        expiry = f", {_expiry(row.liveness.ttl, row.liveness.expires_at)}" if row.liveness.ttl else ""
        parts += [(" written" + expiry, ""), *_at(row.liveness.timestamp, time)]
    return [(":", ""), *parts] if parts else []


def _expiry(ttl: int, expires_at: int) -> str:
    try:
        return f"TTL {ttl} to {datetime.fromtimestamp(expires_at, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"TTL {ttl} to {expires_at}"


def _cell_name(table: Table, name: str, path: str, kind: CqlType | None) -> str:
    dropped = "" if name in table.columns or kind is None else " (dropped)"
    return f"{_name(name)}{path}{dropped}"


def _path(kind: CqlType | None, path: bytes | None) -> str:
    """The collection element or user type field of a cell."""
    if path is None:
        return ""
    if isinstance(kind, UdtType) and kind.fields is not None and int.from_bytes(path, "big") < len(kind.fields):
        return f".{_name(list(kind.fields)[int.from_bytes(path, 'big')])}"
    if isinstance(kind, CollectionType) and kind.kind != "list":
        return f"[{_cut(literal_of(kind.elements[0], path), len(path))}]"
    return f"[{UUID(bytes=path) if len(path) == 16 else _hex(path)}]"


def _cell_value(kind: CqlType | None, cell: Cell) -> str:
    if cell.path is None:
        return _hex(cell.value) if kind is None else literal_of(kind, cell.value)
    if isinstance(kind, CollectionType):
        return "in the set" if kind.kind == "set" else literal_of(kind.elements[-1], cell.value)
    if isinstance(kind, UdtType) and kind.fields is not None:
        fields = list(kind.fields.values())
        index = int.from_bytes(cell.path, "big")
        return literal_of(fields[index], cell.value) if index < len(fields) else _hex(cell.value)
    return _hex(cell.value)


def _cut(text: str, size: int) -> str:
    """The text of a value of `size` bytes, truncated if it is too long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({size} bytes; --json has them all)"


def _composite(key: bytes, count: int) -> list[bytes] | None:
    """The parts of a composite key (each: u16 length, bytes, zero), or None if it does not have `count`
    parts."""
    parts, pos = [], 0
    while pos + 2 <= len(key):
        length = int.from_bytes(key[pos : pos + 2], "big")
        parts.append(key[pos + 2 : pos + 2 + length])
        pos += 3 + length
    return parts if len(parts) == count and pos == len(key) else None


def _hex(value: bytes | None) -> str:
    return "null" if value is None else f"0x{value.hex()}"
