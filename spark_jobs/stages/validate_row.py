"""Validates one update against ordering, state and sinks, before any of them receives an invalid value.

The checks use the sinks' own conversions, and give the reason of a failure. `validate_batch` clears whole
columns of values beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from spark_jobs.stages.table_rows import RowShape
from writetime.cassandra.merge.counters import total
from writetime.cassandra.merge.liveness import VisibleRow
from writetime.cassandra.merge.stand_ins import holds_any
from writetime.cassandra.model import Bound, Cell, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.types.byte_comparable import Clustering, RowKeys
from writetime.errors import MalformedMutation
from writetime.events.key_spelling import has_spellings, is_distinct
from writetime.events.row_values import TableView, split_partition_key


class Checks:
    """Checks for updates of one table. `keys` encodes the keys of rows and of range ends."""

    def __init__(self, schema: Schema, table_id: UUID) -> None:
        self.table = schema.tables[table_id]
        self.keys = RowKeys(self.table, schema.types)
        self.shape = RowShape.of(self.table, schema)
        self._view = TableView(self.table, schema.types)
        self._has_spellings = any(map(has_spellings, self.shape.keys.values()))

    def update(self, update: PartitionUpdate) -> None:
        """Raise DecodeError for the first invalid part of the update."""
        self.shape.values(self._view.key_values(update.key, None))
        self._partition_key(update.key)
        for tombstone in update.range_tombstones:
            self._bound(update.key, tombstone.start, self.keys.start)
            self._bound(update.key, tombstone.end, self.keys.end)
        if update.static_row is not None:
            self._row(update.key, VisibleRow(None, (), _values(update.static_row)))
        for row in update.rows:
            self._row(update.key, VisibleRow(row.clustering, _values(row)))
            self._clustering(row.clustering or ())

    def _partition_key(self, key: bytes) -> None:
        """Refuse a partition whose published key would be that of another one."""
        if not key:
            raise _indistinct("partition key", "has no bytes", "No client of Cassandra can write such a key.")
        if self._has_spellings:
            for column, part in zip(self.table.partition_key, split_partition_key(key, len(self.table.partition_key)), strict=True):
                if not is_distinct(self.shape.keys[column.name], part, by_type=False):
                    why = f"column {column.name} of the partition key is not in the one spelling of its value"
                    raise _indistinct(f"key {key.hex()}", why, "Write the partition again with a key that a driver encodes.")

    def _clustering(self, clustering: Clustering) -> None:
        """Refuse a row whose published key would be that of another one of its partition."""
        for column, part in zip(self.table.clustering, clustering, strict=False) if self._has_spellings else ():
            if part is not None and not is_distinct(self.shape.keys[column.name], part, by_type=True):
                why = f"clustering column {column.name} holds a part of no bytes, which reads as null"
                raise _indistinct(f"clustering {part.hex()}", why, "Write the row again with a value that a driver encodes.")

    def of_node(self, update: PartitionUpdate) -> None:
        """Raise MalformedMutation if an update that a node has logged says what only a reading of the cluster says."""
        for row in update.rows if update.static_row is None else (update.static_row, *update.rows):
            if holds_any(row, counter=self.table.is_counter):
                raise MalformedMutation(
                    "a ttl, a counter id or a path of a list that no node writes",
                    operation="check an update",
                    obj=self.table.label,
                    hint="The node, or its copy of the log, is not to be trusted.",
                )

    def _row(self, key: bytes, row: VisibleRow) -> None:
        if self.table.is_counter:
            # Cells of dropped columns are merged, although they are not projected.
            for cell in row.cells + row.static_cells:
                total(cell.value)
        self.shape.values(self._view.row_values(key, row))

    def _bound(self, key: bytes, bound: Bound, place: Callable[[Bound], bytes]) -> None:
        place(bound)
        # Positions of range tombstones in the head are typed.
        self._view.order.start(bound)
        rest = (None,) * (len(self.table.clustering) - len(bound.values))
        self.shape.values(self._view.key_values(key, (*bound.values, *rest)))


def _indistinct(what: str, why: str, hint: str) -> MalformedMutation:
    return MalformedMutation(f"{why}: its events would be those of another key", operation="tell keys apart", obj=what, hint=hint)


def _values(row: Row) -> tuple[Cell, ...]:
    return tuple(cell for cell in row.cells if not cell.is_tombstone)
