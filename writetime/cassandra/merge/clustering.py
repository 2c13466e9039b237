"""Clustering order: keys of clusterings and of range ends that compare as Cassandra compares them.

Every clustering and every end of a range becomes a flat tuple, a *position*, so that `<`, `sorted` and `bisect` do the rest. Column by
column a position holds a code and, for a value, its sort key; a final code says what the position is:

    clustering (v1, v2)              (VALUE, k1, VALUE, k2, VALUE)
    just before all of prefix (v1)   (VALUE, k1, BEFORE)           start of an inclusive range, end of an exclusive one
    just after all of prefix (v1)    (VALUE, k1, AFTER)            start of an exclusive range, end of an inclusive one
    a null value                     NULL, 0 in place of VALUE, k  (first in its column, in either direction)

Codes stand at the same places in all positions of a table, so a code never meets a sort key. The position of a range end lies between
those of clusterings and equals none. This module knows no rows and no deletions; value order is `writetime.cassandra.types.types`'.

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
"""Compare positions of one table only. Opaque otherwise."""

BEFORE: Final = 0
NULL: Final = 1
VALUE: Final = 2
AFTER: Final = 3

EQUAL_ONLY_TO_ITSELF: Final = frozenset(
    ["ascii", "bigint", "blob", "date", "inet", "int", "smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varchar"]
)
"""Types in which values that compare as equal have equal bytes. Not so decimal (1.0 and 1.00), varint, boolean and floats."""

ALWAYS: Final = 2**63
"""Later than any timestamp."""


class ClusteringOrder:
    """The order of one table's clusterings, and the few other facts of the table that its partitions' join needs.

    `counter`: its cells are counters. `has_statics`: it has static columns. `dropped`: column name -> cells up to this timestamp (µs) are
    not to be seen. `exact`: clusterings that compare as equal have equal bytes. SchemaError if a clustering type cannot be parsed.
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
        """Where a range with this start begins: every row with a greater position is past it."""
        return (*self._prefix(bound.values), BEFORE if bound.inclusive or not bound.values else AFTER)

    def end(self, bound: Bound) -> Position:
        """Where a range with this end stops: every row with a smaller position is before it."""
        return (*self._prefix(bound.values), AFTER if bound.inclusive or not bound.values else BEFORE)

    def identity(self, clustering: Clustering) -> Hashable:
        """Equal for clusterings that name the same row; the bytes themselves wherever the types allow it."""
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
    """By name, up to which timestamp (µs) cells of dropped columns are gone: up to the drop if the column is back, else all."""
    return {name: gone.dropped_at if name in table.columns else ALWAYS for name, gone in table.dropped_columns.items()}
