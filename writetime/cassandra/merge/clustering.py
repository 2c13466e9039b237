"""Clustering order: sort keys of clusterings and range bounds that compare as in Cassandra.

Every clustering and every range bound becomes a flat tuple, a *position*, that works with `<`, `sorted` and
`bisect`. For each column a position has a code and, for a value, its sort key; a final code gives the kind of
the position:

    clustering (v1, v2)              (VALUE, k1, VALUE, k2, VALUE)
    just before all of prefix (v1)   (VALUE, k1, BEFORE)           start of an inclusive range, end of an exclusive one
    just after all of prefix (v1)    (VALUE, k1, AFTER)            start of an exclusive range, end of an inclusive one
    a null value                     NULL, 0 in place of VALUE, k  (first in its column, in either direction)

Codes are at the same indexes in all positions of a table, so a code is never compared with a sort key. The
position of a range bound is between those of clusterings and equals none. This module does not know rows or
deletions; value order is defined in `writetime.cassandra.types.types`.

Source: Cassandra 4.0-5.0, db/ClusteringComparator, db/ClusteringPrefix.Kind, db/marshal/ReversedType.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from writetime.cassandra.model import Bound
from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.marshal import Descending
from writetime.cassandra.types.types import parse_type

Clustering = tuple[bytes | None, ...]
Position = tuple[Any, ...]
"""Only positions of the same table can be compared. The content is private."""

BEFORE: Final = 0
NULL: Final = 1
VALUE: Final = 2
AFTER: Final = 3

EQUAL_ONLY_TO_ITSELF: Final = frozenset(
    ["ascii", "bigint", "blob", "date", "inet", "int", "smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varchar"]
)
"""Types whose equal values have equal bytes, unlike decimal (1.0 and 1.00), varint, boolean and floats."""

ALWAYS: Final = 2**63
"""Later than any timestamp."""


class ClusteringOrder:
    """The clustering order of one table, and the other facts of the table that merging needs.

    `counter`: its cells are counters. `has_statics`: it has static columns. `dropped`: column name -> cells
    up to this timestamp (µs) are hidden. `exact`: equal clusterings have equal bytes. Raises SchemaError if a
    clustering type cannot be parsed.
    """

    def __init__(self, table: Table, types: Mapping[tuple[str, str], UserType]) -> None:
        self.table = table
        self.counter = table.is_counter
        self.has_statics = any(column.kind == "static" for column in table.columns.values())
        self.dropped = dropped_columns(table)
        self.exact = all(column.type in EQUAL_ONLY_TO_ITSELF for column in table.clustering)
        self._sort_keys = tuple(_sort_key(column, table.keyspace, types) for column in table.clustering)

    def key(self, clustering: Clustering) -> Position:
        """The position of a row."""
        return (*self._prefix(clustering), VALUE)

    def start(self, bound: Bound) -> Position:
        """The position of a range start: every row with a greater position is after it."""
        return (*self._prefix(bound.values), BEFORE if bound.inclusive or not bound.values else AFTER)

    def end(self, bound: Bound) -> Position:
        """The position of a range end: every row with a smaller position is before it."""
        return (*self._prefix(bound.values), AFTER if bound.inclusive or not bound.values else BEFORE)

    def identity(self, clustering: Clustering) -> Hashable:
        """Equal for clusterings of the same row; the bytes themselves if the types allow it."""
        return clustering if self.exact else self.key(clustering)

    def _prefix(self, values: Clustering) -> list[Any]:
        position: list[Any] = []
        for sort_key, value in zip(self._sort_keys, values, strict=False):
            position += (NULL, 0) if value is None else (VALUE, sort_key(value))
        return position


def _sort_key(column: Column, keyspace: str, types: Mapping[tuple[str, str], UserType]) -> Callable[[bytes], Any]:
    ascending = parse_type(column.type, keyspace, types).sort_key
    return (lambda value: Descending(ascending(value))) if column.descending else ascending


def dropped_columns(table: Table) -> dict[str, int]:
    """Dropped columns: name -> timestamp (µs) up to which cells are discarded: the drop if the column was
    added again, else all."""
    return {name: gone.dropped_at if name in table.columns else ALWAYS for name, gone in table.dropped_columns.items()}
