"""The order of schema changes where the cluster numbers them (Cassandra 6.0, tcm/).

From 6.0 on, every change of the cluster's metadata has an epoch, and each node logs, as it enacts one:

    system.local_metadata_log     key: the epoch; kind 4 is a schema change, with its CQL and its time
    system_schema.*               the change, stamped with the node's own clock
    system.local                  schema_version: the epoch of the last schema change, as a uuid

So nodes stamp one change differently, and a node that was down stamps it when it is back. At its start a node
also writes the schema of all keyspaces anew, as it was when it stopped, stamped now; `schema_version` follows
it. By these stamps, what was dropped meanwhile would come back.

Strategy: the learner (`history`) orders facts by timestamp. Timestamps of nodes' clocks are replaced by *stamps*
that are computed from the epoch: equal for all copies of a change, later than any clock's (a cluster that was
upgraded has changes of both kinds), in the order of the epochs. There are two kinds: those of the change
itself, and those of what a node knew *as of* an epoch, which repeats earlier changes and says nothing new unless
they are lost. Does not know how the facts are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from writetime.cassandra.model import Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, RangeTombstone, Row
from writetime.cassandra.schema.system_tables import BUILT_IN, LOCAL, LOCAL_TABLES, SCHEMA_TABLES, system_table_id
from writetime.cassandra.types.vint import read_signed, read_unsigned
from writetime.errors import DecodeError

METADATA_LOG: Final = LOCAL_TABLES[system_table_id("system", "local_metadata_log")]
FOLLOWED: Final = {**SCHEMA_TABLES, METADATA_LOG.id: METADATA_LOG, LOCAL.id: LOCAL}
"""The tables whose mutations are needed to order schema changes."""

_FIRST: Final = 1 << 62
"""Stamp of epoch 0 (µs): no clock shows the year 148,000."""
_BITS: Final = 20
_AS_OF: Final = 1
"""Added to the stamp of an epoch: what was known after its change. Changes have even stamps, or, when they
delete just before they write, those just below."""
MOST: Final = 1 << 33
"""Above any epoch."""
_SCHEMA_CHANGE: Final = 4
_HAS_TIME: Final = 5
SINCE_6_0: Final = "fast_path"
"""A column that every row of system_schema.keyspaces has from 6.0 on."""
_KEYSPACES, _TABLES, _VIEWS = (system_table_id("system_schema", name) for name in ("keyspaces", "tables", "views"))


def stamp(epoch: int) -> int:
    """The timestamp of the change of an epoch. ValueError for a number that is no epoch."""
    if not 0 <= epoch < MOST:
        raise ValueError(f"{epoch} is no epoch")
    return _FIRST + (epoch << _BITS)


def stamp_as_of(epoch: int) -> int:
    """The timestamp of what was known after the change of an epoch, and before the next."""
    return stamp(epoch) + _AS_OF


def is_as_of(timestamp: int) -> bool:
    """Whether a timestamp is one of `stamp_as_of`."""
    return timestamp >= _FIRST and timestamp & ((1 << _BITS) - 1) == _AS_OF


def epoch_of(timestamp: int) -> int | None:
    """The epoch of a stamp, or of one some microseconds before it; None for a clock's timestamp, and for one above all stamps."""
    epoch = (timestamp - _FIRST + (1 << _BITS - 1)) >> _BITS
    return epoch if 0 <= epoch < MOST else None


def epoch_of_version(version: UUID) -> int | None:
    """The epoch in a `schema_version`; None if it is a digest, as before 6.0 and until an upgrade is complete."""
    return version.int if version.int < MOST else None


# --- stamping


def changed_at(mutation: Mutation, epoch: int) -> Mutation:
    """A schema mutation as the change of an epoch."""
    last, at = last_timestamp(mutation), stamp(epoch)
    return _restamped(mutation, lambda timestamp: max(at + timestamp - last, at - (1 << _BITS - 2)))


def known_as_of(mutation: Mutation, epoch: int) -> Mutation:
    """A schema mutation as what was known as of an epoch: rows only, for it deletes nothing that is older."""
    at = stamp_as_of(epoch)
    updates = (replace(each, deletion=None, range_tombstones=()) for each in _restamped(mutation, lambda _: at).updates)
    return Mutation(tuple(replace(each, rows=tuple(replace(row, deletion=None) for row in each.rows if row.cells)) for each in updates))


def last_timestamp(mutation: Mutation) -> int:
    """The latest timestamp in a schema change; 0 if there is none."""
    return max(_timestamps(mutation), default=0)


def _timestamps(mutation: Mutation) -> Iterator[int]:
    for update in mutation.updates:
        yield from (each.marked_for_delete_at for each in (update.deletion,) if each is not None)
        yield from (each.deletion.marked_for_delete_at for each in update.range_tombstones)
        for row in update.rows:
            yield from (cell.timestamp for cell in row.cells)
            yield from (each.timestamp for each in (row.liveness,) if each is not None)
            yield from (each.marked_for_delete_at for each in (row.deletion,) if each is not None)


def _restamped(mutation: Mutation, new: Callable[[int], int]) -> Mutation:
    """With other timestamps. Local deletion times, which are of the node's clock as well, become 0."""

    def deletion(old: DeletionTime | None) -> DeletionTime | None:
        return None if old is None else DeletionTime(new(old.marked_for_delete_at), 0)

    def cell(old: Cell) -> Cell:
        return replace(old, timestamp=new(old.timestamp), local_deletion_time=0 if old.is_tombstone else old.local_deletion_time)

    def row(old: Row) -> Row:
        liveness = None if old.liveness is None else Liveness(new(old.liveness.timestamp))
        return replace(old, liveness=liveness, deletion=deletion(old.deletion), cells=tuple(map(cell, old.cells)))

    def tombstone(old: RangeTombstone) -> RangeTombstone:
        return replace(old, deletion=DeletionTime(new(old.deletion.marked_for_delete_at), 0))

    def update(old: PartitionUpdate) -> PartitionUpdate:
        ranges = tuple(map(tombstone, old.range_tombstones))
        return replace(old, deletion=deletion(old.deletion), rows=tuple(map(row, old.rows)), range_tombstones=ranges)

    return Mutation(tuple(map(update, mutation.updates)))


# --- the metadata log


class Entry(NamedTuple):
    """An entry of the metadata log. `is_change`: whether it changes the schema; `executed`: when, by the clock
    of the node that was asked to (µs), the same in all logs; None if it is not there."""

    epoch: int
    is_change: bool
    executed: int | None


def entry_of(update: PartitionUpdate) -> Entry | None:
    """The entry in an update of the metadata log; None if it is none, or one that cannot be understood."""
    if update.table_id != METADATA_LOG.id or len(update.key) != 8:
        return None
    epoch = int.from_bytes(update.key, "big", signed=True)
    cells = {cell.column: cell.value for row in update.rows for cell in row.cells}
    if not 0 <= epoch < MOST or len(cells.get("kind", b"")) != 4:
        return None
    is_change = int.from_bytes(cells["kind"], "big") == _SCHEMA_CHANGE
    return Entry(epoch, is_change, _executed(cells.get("transformation", b"")) if is_change else None)


def _executed(transformation: bytes) -> int | None:
    """The time in a schema change: behind its version, the session's keyspace if there is one, and its CQL."""
    try:
        version, pos = read_unsigned(transformation, 0)
        strings = 1 + transformation[pos]
        pos += 1
        for _ in range(strings):
            pos += 2 + int.from_bytes(transformation[pos : pos + 2], "big")
        return read_signed(transformation, pos)[0] if version >= _HAS_TIME else None
    except (DecodeError, IndexError):
        return None


# --- following a log


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a node's log has been followed: the segment, the last entry's epoch in it or before, and whether
    the schema change of that entry is still to come."""

    segment: int
    epoch: int
    is_open: bool


class SchemaMutation(NamedTuple):
    """A mutation of a log with the learner's timestamps: stamps, or the node's clock if epochs do not order it.
    `at`: when the node wrote it (µs)."""

    position: int
    mutation: Mutation
    at: int


def follow(
    segment: int, mutations: Iterable[tuple[int, Mutation]], last: Followed | None = None, *, has_epochs: bool = False
) -> tuple[list[SchemaMutation], Followed | None]:
    """Order the schema changes of a segment, given its number and its mutations of the tables in `FOLLOWED`,
    with their positions, in the order of the log. Returns the schema changes and entries of the metadata log,
    and how far the log has been followed; `last` is what an earlier segment, or part of this one, returned.
    `has_epochs`: whether only a node of 6.0 can have written the segment.
    """
    if last is not None and segment < last.segment:
        last = None
    follower = _Follower(last, last is not None and segment <= last.segment + 1, has_epochs)
    for position, mutation in mutations:
        follower.take(position, mutation)
    follower.settle(None)
    if follower.epoch is None:
        return follower.found, last
    return follower.found, Followed(segment, follower.epoch, follower.is_open)


class _Follower:
    """Mutations of system_schema wait for the version that the node writes behind them."""

    def __init__(self, last: Followed | None, adjoins: bool, has_epochs: bool) -> None:
        self.epoch = None if last is None else last.epoch
        self.is_open = adjoins and last is not None and last.is_open
        self.has_epochs = has_epochs
        self.found: list[SchemaMutation] = []
        self._waiting: list[tuple[int, Mutation, int | None]] = []

    def take(self, position: int, mutation: Mutation) -> None:
        entry = next(filter(None, map(entry_of, mutation.updates)), None)
        if entry is not None:
            self.settle(None)
            self.epoch, self.is_open = entry.epoch, entry.is_change
            self.found.append(SchemaMutation(position, mutation, last_timestamp(mutation)))
        elif (version := _schema_version(mutation)) is not None:
            self.settle(version)
        elif any(update.table_id in SCHEMA_TABLES and update.key.decode("utf-8", "replace") not in BUILT_IN for update in mutation.updates):
            self._waiting.append((position, mutation, self.epoch if self.is_open else None))
            self.is_open = False

    def settle(self, version: UUID | None) -> None:
        """Stamp what waits: the node's schema has that version now, or its version is not known."""
        known = None if version is None else epoch_of_version(version)
        for position, mutation, change_of in self._waiting:
            self.found.append(SchemaMutation(position, self._stamped(mutation, change_of, known), last_timestamp(mutation)))
        self._waiting.clear()
        if known is not None:
            self.epoch, self.is_open = max(known, self.epoch or 0), False

    def _stamped(self, mutation: Mutation, change_of: int | None, known: int | None) -> Mutation:
        if change_of is not None and known in (None, change_of):
            return changed_at(mutation, change_of)
        if known is not None:
            # Its entry may be in a segment that was not kept. At a start, several keyspaces precede the version.
            alone = len(self._waiting) == 1 and _is_of_one_table(mutation)
            return changed_at(mutation, known) if alone else known_as_of(mutation, known)
        if self.epoch is not None or self.has_epochs or _is_of_6_0(mutation):
            return known_as_of(mutation, self.epoch or 0)
        return mutation


def _schema_version(mutation: Mutation) -> UUID | None:
    for update in mutation.updates:
        if update.table_id == LOCAL.id:
            values = (cell.value for row in update.rows for cell in row.cells if cell.column == "schema_version")
            return next((UUID(bytes=value) for value in values if len(value) == 16), None)
    return None


def _is_of_one_table(mutation: Mutation) -> bool:
    return sum(len(update.rows) for update in mutation.updates if update.table_id in (_TABLES, _VIEWS)) <= 1


def _is_of_6_0(mutation: Mutation) -> bool:
    rows = (row for update in mutation.updates if update.table_id == _KEYSPACES for row in update.rows)
    return any(cell.column == SINCE_6_0 for row in rows for cell in row.cells)
