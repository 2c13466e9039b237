"""The data model of mutations: decoders return it, the merge combines it, the state stores it.

Values are the raw bytes that Cassandra wrote: reconciliation compares bytes, and only output needs types
(`writetime.cassandra.types`). Timestamps are int microseconds (a cell's *writetime*), deletion and expiry
times are int seconds since the Unix epoch. This module does not know encodings, the schema or I/O.

Source of the shapes: Cassandra 3.0-6.0, db/partitions/PartitionUpdate,
db/rows/{Row,Cell,RangeTombstoneMarker}, db/DeletionTime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

NO_DELETION_TIME: Final = 2**63 - 1
"""Local deletion time of a cell that is neither a tombstone nor expiring (Cassandra:
Cell.NO_DELETION_TIME)."""

MICROSECONDS: Final = 1_000_000
"""µs per second."""
NO_TIMESTAMP: Final = -(2**63)
"""Timestamp of absent liveness and of a deletion that deletes nothing."""

NO_TTL: Final = 0
EXPIRED_LIVENESS_TTL: Final = 0x7FFFFFFF
"""TTL with which a materialized view marks a row as expired (Cassandra:
LivenessInfo.EXPIRED_LIVENESS_TTL)."""


@dataclass(frozen=True, slots=True)
class DeletionTime:
    """Deletes everything with a timestamp <= `marked_for_delete_at` (µs); `local_deletion_time` in s."""

    marked_for_delete_at: int
    local_deletion_time: int

    def deletes(self, timestamp: int) -> bool:
        return timestamp <= self.marked_for_delete_at

    def supersedes(self, other: DeletionTime | None) -> bool:
        """Greater timestamp; on a tie the greater local deletion time (Cassandra:
        DeletionTime.supersedes)."""
        return other is None or (self.marked_for_delete_at, self.local_deletion_time) > (
            other.marked_for_delete_at,
            other.local_deletion_time,
        )


@dataclass(frozen=True, slots=True)
class Liveness:
    """Primary key liveness info of a row, written by INSERT. `ttl` 0 = does not expire; `expires_at` in s."""

    timestamp: int
    ttl: int = NO_TTL
    expires_at: int = NO_DELETION_TIME


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. A tombstone has ttl 0 and a local deletion time; an expiring cell has both; a plain one
    neither.

    `path` is None for simple columns, else the raw element key: list timeuuid, set element, map key, UDT
    field index (2 bytes). `value` is b"" for tombstones, set elements and empty values (which are not
    deleted). `tied`: by the rule of 3.11, the cell won over a live cell with the same timestamp and another
    expiry (`writetime.cassandra.merge.reconcile`); only cells of the state have it."""

    column: str
    timestamp: int
    value: bytes = b""
    path: bytes | None = None
    ttl: int = NO_TTL
    local_deletion_time: int = NO_DELETION_TIME
    tied: bool = False

    @property
    def is_tombstone(self) -> bool:
        return self.ttl == NO_TTL and self.local_deletion_time != NO_DELETION_TIME

    @property
    def is_expiring(self) -> bool:
        return self.ttl != NO_TTL


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a partition update. `clustering` is one raw value per clustering column (None = null); None
    for the static row.

    `cells` are in wire order: simple columns by name, then complex columns, elements by path.
    `complex_deletions` maps a non-frozen collection or UDT column to the deletion of all its earlier
    elements.
    """

    clustering: tuple[bytes | None, ...] | None
    liveness: Liveness | None = None
    deletion: DeletionTime | None = None
    shadowable: bool = False
    cells: tuple[Cell, ...] = ()
    complex_deletions: dict[str, DeletionTime] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        return self.clustering is None

    @property
    def is_empty(self) -> bool:
        return self.liveness is None and self.deletion is None and not self.cells and not self.complex_deletions


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range tombstone: a clustering prefix (empty = unbounded) in comparator order."""

    values: tuple[bytes | None, ...]
    inclusive: bool


@dataclass(frozen=True, slots=True)
class RangeTombstone:
    """Deletes the rows between two bounds. Boundary markers on the wire, which close one range and open the
    next, are split."""

    start: Bound
    end: Bound
    deletion: DeletionTime


@dataclass(frozen=True, slots=True)
class PartitionUpdate:
    """The changes of one mutation to one partition of one table: the unit of accounting.

    The state uses the same class for a partition's *head* (partition deletion, range tombstones, static row)
    and for a row (one entry in `rows`), because merging two partition updates gives a partition update.

    `epoch`: of the cluster metadata at which the table was last changed, as the coordinator knew it. None
    before Cassandra 6.0, and in the state.
    """

    table_id: UUID
    key: bytes
    deletion: DeletionTime | None = None
    static_row: Row | None = None
    rows: tuple[Row, ...] = ()
    range_tombstones: tuple[RangeTombstone, ...] = ()
    epoch: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the update changes nothing."""
        return self.deletion is None and self.static_row is None and not self.rows and not self.range_tombstones


@dataclass(frozen=True, slots=True)
class Mutation:
    """All partition updates of one frame; they share keyspace and partition key.

    `flags`: the mutation's first byte; None before Cassandra 6.0. Bit 0: nobody checks whether Accord owns
    the key."""

    updates: tuple[PartitionUpdate, ...]
    flags: int | None = None
