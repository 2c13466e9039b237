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
from writetime.cassandra.model import Bound, Cell, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.types.byte_comparable import RowKeys
from writetime.events.row_values import TableView


class Checks:
    """Checks for updates of one table. `keys` encodes the keys of rows and of range ends."""

    def __init__(self, schema: Schema, table_id: UUID) -> None:
        self.table = schema.tables[table_id]
        self.keys = RowKeys(self.table, schema.types)
        self.shape = RowShape.of(self.table, schema)
        self._view = TableView(self.table, schema.types)

    def update(self, update: PartitionUpdate) -> None:
        """Raise DecodeError for the first invalid part of the update."""
        self.shape.values(self._view.key_values(update.key, None))
        for tombstone in update.range_tombstones:
            self._bound(update.key, tombstone.start, self.keys.start)
            self._bound(update.key, tombstone.end, self.keys.end)
        if update.static_row is not None:
            self._row(update.key, VisibleRow(None, (), _values(update.static_row)))
        for row in update.rows:
            self._row(update.key, VisibleRow(row.clustering, _values(row)))

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


def _values(row: Row) -> tuple[Cell, ...]:
    return tuple(cell for cell in row.cells if not cell.is_tombstone)
