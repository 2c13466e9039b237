"""The query for a table, and rows of its answer as rows of the commit log.

Strategy: values are taken as raw bytes, which in an answer are those of a cell; only unfrozen collections
and user types are split into a cell per element. Each value comes with its WRITETIME and TTL, and each row
with the coordinator's clock, by which a TTL becomes an expiry. An expiry is never later than the true one:
of two otherwise equal cells the one that expires later wins, and that should be the log's.

Versions: Cassandra 5.0 reports writetimes and TTLs of elements. Earlier versions report them for whole
values only, so elements of unfrozen values get the time of the reading and do not expire (`of_elements`).

Source: Cassandra 4.0-5.0, cql3/selection/{Selectable.WritetimeOrTTL, WritetimeOrTTLSelector};
native_protocol_v4.spec §6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from writetime.cassandra.merge.counters import statement
from writetime.cassandra.merge.unknown_marker import UNKNOWN_TTL, list_path
from writetime.cassandra.model import NO_DELETION_TIME, NO_TTL, Cell
from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.canonical import ElementPaths
from writetime.cassandra.types.types import CollectionType, CqlType, UdtType, parse_type
from writetime.errors import MalformedMutation

T = TypeVar("T")
Answer = Sequence[bytes | None]
"""A row of an answer, raw."""

MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """When rows were read: `as_of` (µs): writes up to then are visible; `now` (s): at most the time from
    which TTLs count; `until` (µs): writes after it are not visible."""

    as_of: int
    now: int
    until: int = 0


@dataclass(frozen=True, slots=True)
class RingRow:
    """A row of the cluster. `clustering` is None if a partition has static cells and no row. `cells` by
    column in the table's order, elements in the cluster's. Counters are statements of
    their total."""

    key: bytes
    clustering: tuple[bytes | None, ...] | None
    cells: tuple[Cell, ...]
    static_cells: tuple[Cell, ...]


class Selection:
    """The query for one table, and how to read its answer. `of_elements`: the cluster reports writetimes of
    elements (from 5.0 on)."""

    def __init__(self, table: Table, types: Mapping[tuple[str, str], UserType], *, of_elements: bool) -> None:
        self.table = table
        self.selected = table.cql_columns
        """The columns that are asked for, without those of compact tables that CQL does not show."""
        self._values = [column for column in self.selected if column.kind in ("static", "regular")]
        self._kinds = [parse_type(column.type, table.keyspace, types) for column in self._values]
        self._paths = ElementPaths(table, types)
        self._timed = [of_elements or not kind.multicell for kind in self._kinds]
        self._keys = len(table.partition_key)
        self._clustering = 0 if table.is_static_compact else len(table.clustering)

    @property
    def columns(self) -> str:
        """The columns between SELECT and FROM; the coordinator's clock (ms) is last."""
        keys = [quoted(column.name) for column in self.selected if column.kind in ("partition_key", "clustering")]
        values = []
        for column, timed in zip(self._values, self._timed, strict=True):
            name = quoted(column.name)
            values += [name, f"WRITETIME({name})", f"TTL({name})"] if timed else [name]
        return ", ".join([*keys, *values, "toUnixTimestamp(now())"])

    @property
    def full_name(self) -> str:
        return f"{quoted(self.table.keyspace)}.{quoted(self.table.name)}"

    def of_range(self) -> str:
        """Rows with token > ? and <= ?."""
        token = f"token({', '.join(quoted(column.name) for column in self.table.partition_key)})"
        return f"SELECT {self.columns} FROM {self.full_name} WHERE {token} > ? AND {token} <= ?"  # noqa: S608

    def of_row(self) -> str:
        """The row of a primary key."""
        named = (*self.table.partition_key, *self.table.clustering)
        return f"SELECT {self.columns} FROM {self.full_name} WHERE {' AND '.join(f'{quoted(c.name)} = ?' for c in named)}"  # noqa: S608

    def of_statics(self) -> str:
        """Any row of a partition: each has the static cells."""
        where = " AND ".join(f"{quoted(column.name)} = ?" for column in self.table.partition_key)
        return f"SELECT {self.columns} FROM {self.full_name} WHERE {where} LIMIT 1"  # noqa: S608

    def row(self, answer: Answer, reading: Reading) -> RingRow:
        """Convert a row of the answer. MalformedMutation if a value does not fit its type."""
        fields = iter(answer)
        parts = [next(fields) or b"" for _ in range(self._keys)]
        key = parts[0] if len(parts) == 1 else b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in parts)
        clustering = tuple(next(fields) for _ in range(self._clustering))
        cells: dict[bool, list[Cell]] = {True: [], False: []}
        for column, kind, timed in zip(self._values, self._kinds, self._timed, strict=True):
            value = next(fields)
            written, left = (next(fields), next(fields)) if timed else (None, None)
            if value is not None:
                cells[column.kind == "static"] += self._cells(column, kind, value, _Facts(written, left, reading))
        # Only a partition without rows answers with a row without clustering.
        alone = self.table.is_static_compact or (self._clustering > 0 and all(value is None for value in clustering))
        return RingRow(key, None if alone else clustering, tuple(cells[False]), tuple(cells[True]))

    def _cells(self, column: Column, kind: CqlType, value: bytes, facts: _Facts) -> Iterator[Cell]:
        if column.type == "counter":
            timestamp = _number(facts.written)
            context = statement(int.from_bytes(value, "big", signed=True), facts.reading.as_of, facts.reading.until)
            yield Cell(column.name, facts.reading.as_of if timestamp is None else timestamp, context)
        elif not kind.multicell:
            yield facts.cell(column.name, value, None, facts.whole())
        elif isinstance(kind, UdtType):
            for place, (element, about) in enumerate(facts.each(list(_fields(value)))):
                if element is not None:
                    yield facts.cell(column.name, element, place.to_bytes(2, "big"), about)
        elif isinstance(kind, CollectionType):
            yield from self._elements(column.name, kind.kind, value, facts)

    def _elements(self, name: str, kind: str, value: bytes, facts: _Facts) -> Iterator[Cell]:
        found = [element or b"" for element in _listed(value, pairs=kind == "map")]
        if kind == "map":
            pairs = list(zip(found[::2], found[1::2], strict=True))
        elif kind == "set":
            pairs = [(element, b"") for element in found]
        else:
            pairs = [(b"", element) for element in found]
        for place, ((path, element), about) in enumerate(facts.each(pairs)):
            own = list_path(place, facts.reading.as_of) if kind == "list" else self._paths.path(name, path)
            yield facts.cell(name, element, own, about)


_About = tuple[int, int | None]
"""Writetime (µs) and remaining TTL (s)."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """The answers to WRITETIME and TTL for a value; None if not queried."""

    written: bytes | None
    left: bytes | None
    reading: Reading

    def whole(self) -> _About:
        timestamp = _number(self.written)
        return self.reading.as_of if timestamp is None else timestamp, _number(self.left)

    def each(self, elements: Sequence[T]) -> Iterator[tuple[T, _About]]:
        """The elements with writetime and TTL of each."""
        nothing = [None] * len(elements)
        timestamps = nothing if self.written is None else [_number(raw) for raw in _listed(self.written)]
        left = nothing if self.left is None else [_number(raw) for raw in _listed(self.left)]
        for at, element in enumerate(elements):
            timestamp = timestamps[at] if at < len(timestamps) else None
            yield element, (self.reading.as_of if timestamp is None else timestamp, left[at] if at < len(left) else None)

    def cell(self, column: str, value: bytes, path: bytes | None, about: _About) -> Cell:
        timestamp, left = about
        if left is None:
            return Cell(column, timestamp, value, path, NO_TTL, NO_DELETION_TIME)
        return Cell(column, timestamp, value, path, UNKNOWN_TTL, self.reading.now + left)


def quoted(name: str) -> str:
    """A quoted identifier: a column's name may be a reserved word."""
    return '"' + name.replace('"', '""') + '"'


def _number(raw: bytes | None) -> int | None:
    return None if raw is None else int.from_bytes(raw, "big", signed=True)


def _listed(value: bytes, *, pairs: bool = False) -> list[bytes | None]:
    """Elements of a list or set, keys and values of a map in turn."""
    count = int.from_bytes(value[:4], "big", signed=True) * (2 if pairs else 1)
    found = list(_fields(value[4:]))
    if len(found) != count:
        raise MalformedMutation(f"a collection has {len(found)} values instead of {count}", operation="read an answer of the cluster")
    return found


def _fields(value: bytes) -> Iterator[bytes | None]:
    at = 0
    while at < len(value):
        length = int.from_bytes(value[at : at + 4], "big", signed=True)
        end = at + 4 + max(0, length)
        if end > len(value):
            raise MalformedMutation(
                f"the value is truncated, {length} bytes expected", operation="read an answer of the cluster", position=at
            )
        yield None if length < 0 else value[at + 4 : end]
        at = end
