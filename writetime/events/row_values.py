"""Changed rows as typed values, for one table.

A `TableView` compiles a table's columns once and then turns raw rows into Python values (the types of
`writetime.cassandra.types.types`), writetimes and expiries. It determines the operation (created, updated,
deleted) and the changed columns. Earlier stages handle raw bytes, later ones typed values only. Must not know
a sink: no JSON, no Arrow, no Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from writetime.cassandra.merge.clustering import Clustering, ClusteringOrder
from writetime.cassandra.merge.counters import total
from writetime.cassandra.merge.liveness import ByColumn, ShownCell, VisibleRow, by_column
from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.native import NATIVE
from writetime.cassandra.types.types import CollectionType, CqlType, assemble, parse_type
from writetime.errors import MalformedMutation
from writetime.events.key_spelling import clustering_spelling

Op = Literal["c", "u", "d"]
Cells = tuple[ByColumn, ByColumn]
"""Static and regular cells of a row that shows."""
Shown = tuple[Clustering | None, Cells]
"""A row that shows: its clustering (None: static content that stands alone), and its cells."""
Fact = tuple[int, int | None]
"""Writetime (µs) and second of expiry (None: never) of a column's value."""


@dataclass(frozen=True, slots=True)
class _Typed:
    name: str
    type: CqlType
    counter: bool

    def key_value(self, part: bytes) -> Any:
        """The value of a clustering column."""
        value, spell = self.type.decode(part), clustering_spelling(self.type)
        return value if spell is None else self.type.decode(spell(part))

    def value(self, cells: Sequence[ShownCell]) -> Any:
        if self.counter:
            return total(cells[0].value) if cells else None
        return assemble(self.type, cells)


class TableView:
    """One table's columns, compiled. `order` is the clustering order for the partition fold. SchemaError if a
    column's type cannot be parsed."""

    def __init__(self, table: Table, types: Mapping[tuple[str, str], UserType]) -> None:
        def typed(columns: Sequence[Column]) -> tuple[_Typed, ...]:
            return tuple(_Typed(c.name, parse_type(c.type, table.keyspace, types), c.type == "counter") for c in columns)

        self.order = ClusteringOrder(table, types)
        self._table = table
        self._partition_key = typed(table.partition_key)
        self._clustering = typed(table.clustering)
        self._statics = typed(table.static_columns)
        self._regulars = typed(table.regular_columns)
        self._columns = self._statics + self._regulars

    def event_of(
        self, partition_key: bytes, before: Shown | None, after: Shown | None, *, ts_micro: int, reason: str | None
    ) -> dict[str, Any]:
        """The change of a row, with at least one of `before` and `after`, as plain values: `key`, `before`,
        `after` (rows by column name, or None), `op`, `changed` (column names), `writetime` (µs) and
        `expires_at` (s) of what is in `after`, by column, `ts_micro`, `reason`."""
        last = after or before
        assert last is not None
        key = self.key_values(partition_key, last[0])
        old, new = self._cells(before), self._cells(after)
        facts = self._facts(new)
        return {
            "key": key,
            "before": None if before is None else key | self._values(old),
            "after": None if after is None else key | self._values(new),
            "op": operation(before, after),
            "changed": self._changed(old, new),
            "writetime": {name: timestamp for name, (timestamp, _) in facts.items()},
            "expires_at": {name: expiry for name, (_, expiry) in facts.items() if expiry is not None},
            "ts_micro": ts_micro,
            "reason": reason,
        }

    def row_values(self, partition_key: bytes, row: VisibleRow) -> dict[str, Any]:
        """All columns by name, keys first, then static, then regular ones; None if there is no value;
        counters as sums."""
        key = self.key_values(partition_key, row.clustering)
        return key | self._values(self._cells(_shown(row)))

    def key_values(self, partition_key: bytes, clustering: Clustering | None) -> dict[str, Any]:
        """The primary key's columns by name; the clustering ones are None for static content without a
        row. Equal clusterings have one spelling, whichever write was the last (`key_spelling`)."""
        parts = split_partition_key(partition_key, len(self._partition_key))
        values = {column.name: column.type.decode(part) for column, part in zip(self._partition_key, parts, strict=True)}
        for at, column in enumerate(self._clustering):
            part = clustering[at] if clustering is not None else None
            values[column.name] = None if part is None else column.key_value(part)
        return values

    def changed(self, before: VisibleRow | None, after: VisibleRow | None) -> tuple[str, ...]:
        """Names of the static and regular columns whose value differs, in the order of `row_values`. A value
        that was rewritten is not changed, nor is a list that was replaced by an equal one."""
        return tuple(self._changed(self._cells(_shown(before)), self._cells(_shown(after))))

    def _cells(self, row: Shown | None) -> list[Sequence[ShownCell]]:
        """A row's cells by static and regular column, in the order of `_columns`."""
        statics, regulars = ({}, {}) if row is None else row[1]
        groups = (self._statics, statics), (self._regulars, regulars)
        return [by_name.get(column.name, ()) for columns, by_name in groups for column in columns]

    def _values(self, cells: list[Sequence[ShownCell]]) -> dict[str, Any]:
        return {column.name: column.value(mine) if mine else None for column, mine in zip(self._columns, cells, strict=True)}

    def _facts(self, cells: list[Sequence[ShownCell]]) -> dict[str, Fact]:
        return {column.name: _fact(mine) for column, mine in zip(self._columns, cells, strict=True) if mine}

    def _changed(self, before: list[Sequence[ShownCell]], after: list[Sequence[ShownCell]]) -> list[str]:
        each = zip(self._columns, before, after, strict=True)
        return [column.name for column, old, new in each if (old or new) and _differ(column, old, new)]


def _shown(row: VisibleRow | None) -> Shown | None:
    return None if row is None else (row.clustering, (by_column(row.static_cells), by_column(row.cells)))


def _fact(cells: Sequence[ShownCell]) -> Fact:
    if len(cells) == 1:
        return cells[0].timestamp, cells[0].expires_at
    expiries = [cell.expires_at for cell in cells if cell.expires_at is not None]
    return max(cell.timestamp for cell in cells), min(expiries, default=None)


def operation(before: object | None, after: object | None) -> Op:
    """Created, updated or deleted, by what shows before and after."""
    if before is None:
        return "c"
    return "u" if after is not None else "d"


def split_partition_key(key: bytes, columns: int) -> list[bytes]:
    """The raw values of a partition key: itself for one column; for several, each behind its u16 length and
    before a zero byte (Cassandra 3.0-5.0, db/marshal/CompositeType). MalformedMutation if the bytes are not
    that many values."""
    if columns == 1:
        return [key]
    parts: list[bytes] = []
    at = 0
    while at < len(key):
        end = at + 2 + int.from_bytes(key[at : at + 2], "big")
        parts.append(key[at + 2 : end])
        at = end + 1
    if at != len(key) or len(parts) != columns:
        raise MalformedMutation(
            f"{len(key)} bytes are no partition key of {columns} columns",
            operation="split a partition key",
            hint="The current schema may be that of another table.",
        )
    return parts


def _differ(column: _Typed, old: Sequence[ShownCell], new: Sequence[ShownCell]) -> bool:
    """By bytes: to Python 0.0 is -0.0, and 1.0 is 1.00."""
    if column.counter:
        # Its bytes hold the shards, of which many make one sum.
        return bool(column.value(old) != column.value(new))
    if column.type.multicell:
        return content(column.type, old) != content(column.type, new)
    return not (old and new) or old[0].value != new[0].value


def content(kind: CqlType, cells: Sequence[ShownCell]) -> list[Any]:
    """The value of a collection or user type as bytes. The paths of a list are ids of its elements: only their order
    (`assemble`) counts, which is not that of their bytes."""
    if isinstance(kind, CollectionType) and kind.kind == "list":
        return [cell.value for cell in sorted(cells, key=lambda cell: NATIVE["timeuuid"].sort_key(cell.path or b""))]
    return [(cell.path, cell.value) for cell in cells]
