"""Encodes partition updates, mutations and segments, which the other modules of this package decode.

State is stored as partition updates, so this module is the exact inverse of `mutation`:
`decode_update(encode_update(u, t), t) == u` for every update whose cells are in wire order or sorted by name.
Cassandra can read the output: columns sorted, bases at their minimum, row timestamps shared, markers between
rows in clustering order, adjacent range tombstones joined at a boundary.

Deletion times are written as unsigned (descriptor version 8). Up to 2038 this is the same in all versions.
Flags and epochs are written for version 9 only; those that a mutation lacks are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

from writetime.cassandra.commitlog import frames, sections
from writetime.cassandra.commitlog import mutation as wire
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.cassandra.commitlog.mutation import Bases, ColumnShape, TableShape, table_shape
from writetime.cassandra.model import (
    EXPIRED_LIVENESS_TTL,
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    NO_TTL,
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Schema, Table, UserType
from writetime.cassandra.types.types import parse_type
from writetime.cassandra.types.vint import as_int32, write_unsigned
from writetime.errors import MalformedMutation, UnknownColumn, UnknownTable

_NOTHING = DeletionTime(NO_TIMESTAMP, NO_DELETION_TIME)
_KIND_OF_MARKER = {sides: kind for kind, sides in wire.MARKER_KINDS.items()}


def encode_mutation(mutation: Mutation, schema: Schema, *, version: int = wire.STATE_VERSION) -> bytes:
    """The body of a frame in a segment of that version. Raises UnknownTable, UnknownColumn or
    MalformedMutation (a value that cannot be encoded)."""
    parts = [mutation_head(len(mutation.updates), mutation.flags or 0, version=version)]
    for update in mutation.updates:
        table = schema.tables.get(update.table_id)
        if table is None:
            raise UnknownTable(
                f"no schema is known for table id {update.table_id}", table_id=str(update.table_id), operation="encode a mutation"
            )
        parts.append(encode_update(update, table, schema.types, version=version))
    return b"".join(parts)


def mutation_head(updates: int, flags: int, *, version: int) -> bytes:
    """The bytes before the updates of a mutation: its flags, if the version has them, and their number."""
    return (bytes((flags,)) if version >= wire.EPOCHS_VERSION else b"") + write_unsigned(updates)


def encode_update(
    update: PartitionUpdate,
    table: Table,
    types: Mapping[tuple[str, str], UserType] | None = None,
    *,
    version: int = wire.STATE_VERSION,
) -> bytes:
    """One partition update. `types` is needed only if the update has rows and range tombstones and a
    clustering column has a user type."""
    return _Writer(update, table, types or {}, version).partition_update()


def encode_segment(
    segment_id: int,
    version: int,
    mutations: Sequence[bytes],
    *,
    per_section: int = 0,
    size: int = 0,
    params: Mapping[str, Any] | None = None,
) -> bytes:
    """A plain, closed segment of these bodies, `per_section` in each section (0 = one section), zero-padded
    to `size` bytes."""
    step = per_section or max(1, len(mutations))
    out = bytearray(Descriptor(version, segment_id, dict(params or {})).encode())
    seed = sections.id_crc(segment_id)
    for first in range(0, len(mutations), step):
        payload = b"".join(map(frames.encode_frame, mutations[first : first + step]))
        start = len(out)
        out += sections.encode_marker(seed, start, start + sections.MARKER_SIZE + len(payload)) + payload
    return bytes(out.ljust(size, b"\0"))


def clustering_order(table: Table, types: Mapping[tuple[str, str], UserType]) -> Any:
    """A key function for the table's order of clusterings (tuples of raw values, full or prefixes of equal
    length).

    Null comes first."""
    kinds = [(parse_type(column.type, table.keyspace, types), column.descending) for column in table.clustering]

    def compare(a: tuple[bytes | None, ...], b: tuple[bytes | None, ...]) -> int:
        for (kind, descending), left, right in zip(kinds, a, b, strict=False):
            if left == right:
                continue
            left_key = (0,) if left is None else (1, kind.sort_key(left))
            right_key = (0,) if right is None else (1, kind.sort_key(right))
            if left_key != right_key:
                return -1 if (left_key < right_key) != descending else 1
        return 0

    return cmp_to_key(compare)


@dataclass(frozen=True, slots=True)
class _Marker:
    """A marker to write: its prefix, whether it precedes the rows of that prefix, its kind and deletions."""

    values: tuple[bytes | None, ...]
    before: bool
    kind: int
    deletions: tuple[DeletionTime, ...]


class _Writer:
    """Writes one partition update; methods return bytes."""

    def __init__(self, update: PartitionUpdate, table: Table, types: Mapping[tuple[str, str], UserType], version: int) -> None:
        self.update = update
        self.epoch = (update.epoch or 0) if version >= wire.EPOCHS_VERSION else None
        self.table = table
        self.types = types
        self.shape: TableShape = table_shape(table)
        self.bases = _bases(update)

    def partition_update(self) -> bytes:
        update = self.update
        head = update.table_id.bytes + (b"" if self.epoch is None else write_unsigned(self.epoch)) + _blob(update.key)
        if update.is_empty:
            return head + bytes((wire.IS_EMPTY,))
        flags = wire.HAS_ROW_ESTIMATE
        flags |= wire.HAS_PARTITION_DELETION if update.deletion is not None else 0
        flags |= wire.HAS_STATIC_ROW if update.static_row is not None else 0
        statics = self._columns([update.static_row] if update.static_row else [], static=True)
        regulars = self._columns(update.rows, static=False)
        parts = [head, bytes((flags,)), self._header_bases()]
        if update.static_row is not None:
            parts.append(_column_names(statics))
        parts.append(_column_names(regulars))
        if update.deletion is not None:
            parts.append(self._deletion(update.deletion))
        if update.static_row is not None:
            parts.append(self._row(update.static_row, statics))
        parts.append(write_unsigned(len(update.rows)))
        parts += self._unfiltereds(regulars)
        parts.append(bytes((wire.END_OF_PARTITION,)))
        return b"".join(parts)

    def _header_bases(self) -> bytes:
        return b"".join(
            (
                write_unsigned(self.bases.timestamp - wire.EPOCH_MICROS),
                write_unsigned(as_int32(self.bases.deletion_time - wire.EPOCH_SECONDS)),
                write_unsigned(self.bases.ttl),
            )
        )

    def _columns(self, rows: Sequence[Row], *, static: bool) -> list[ColumnShape]:
        """The columns with cells in these rows, in wire order: simple columns by name, then complex columns
        by name."""
        names: set[str] = set()
        for row in rows:
            names.update(cell.column for cell in row.cells)
            names.update(row.complex_deletions)
        columns = []
        for name in names:
            column = self.shape.columns.get((static, name))
            if column is None:
                raise UnknownColumn(f"the table has no column {name!r}", operation="encode a mutation", obj=self.table.full_name)
            columns.append(column)
        names_first = sorted(columns, key=lambda column: (column.complex, _name_bytes(column.name)))
        as_cassandra = sorted(columns, key=lambda column: (column.complex, column_order(column.name)))
        return as_cassandra if _keeps_cell_order(as_cassandra, rows) else names_first

    # --- rows and markers

    def _unfiltereds(self, columns: list[ColumnShape]) -> list[bytes]:
        rows, markers = list(self.update.rows), _markers(self.update.range_tombstones)
        if not rows or not markers:
            return [self._row(row, columns) for row in rows] + [self._marker(marker) for marker in markers]
        key = clustering_order(self.table, self.types)
        out = []
        for marker in markers:
            while rows and _row_is_before(rows[0], marker, key):
                out.append(self._row(rows.pop(0), columns))
            out.append(self._marker(marker))
        return out + [self._row(row, columns) for row in rows]

    def _marker(self, marker: _Marker) -> bytes:
        size = len(marker.values).to_bytes(2, "big")
        head = bytes((wire.IS_MARKER, marker.kind)) + size + self._clustering(marker.values)
        return head + b"".join(map(self._deletion, marker.deletions))

    def _row(self, row: Row, header: list[ColumnShape]) -> bytes:
        changed = {cell.column for cell in row.cells} | set(row.complex_deletions)
        present = [column for column in header if column.name in changed]
        flags = wire.HAS_ALL_COLUMNS if len(present) == len(header) else 0
        flags |= wire.HAS_COMPLEX_DELETION if row.complex_deletions else 0
        flags |= wire.HAS_DELETION if row.deletion is not None else 0
        if row.liveness is not None:
            flags |= wire.HAS_TIMESTAMP | (wire.HAS_TTL if row.liveness.ttl != NO_TTL else 0)
        more = (wire.IS_STATIC if row.is_static else 0) | (wire.HAS_SHADOWABLE_DELETION if row.shadowable else 0)
        parts = [bytes((flags | wire.EXTENSION_FLAG, more) if more else (flags,))]
        if row.clustering is not None:
            parts.append(self._clustering(row.clustering))
        if row.liveness is not None:
            parts.append(self._liveness(row.liveness))
        if row.deletion is not None:
            parts.append(self._deletion(row.deletion))
        if not flags & wire.HAS_ALL_COLUMNS:
            parts.append(_subset(present, header))
        for column in present:
            parts.append(self._column(row, column))
        return b"".join(parts)

    def _column(self, row: Row, column: ColumnShape) -> bytes:
        cells = [self._cell(cell, column, row.liveness) for cell in row.cells if cell.column == column.name]
        if not column.complex:
            if len(cells) != 1:
                raise self._inexpressible(f"{len(cells)} cells of the simple column {column.name!r} in one row")
            return cells[0]
        deletion = self._deletion(row.complex_deletions.get(column.name, _NOTHING)) if row.complex_deletions else b""
        return deletion + write_unsigned(len(cells)) + b"".join(cells)

    def _liveness(self, liveness: Liveness) -> bytes:
        timestamp = self._timestamp(liveness.timestamp)
        if liveness.ttl == NO_TTL:
            if liveness.expires_at != NO_DELETION_TIME:
                raise self._inexpressible("liveness info that expires without a ttl")
            return timestamp
        return timestamp + self._ttl(liveness.ttl) + self._deletion_time(liveness.expires_at, liveness.ttl)

    def _clustering(self, values: Sequence[bytes | None]) -> bytes:
        parts = []
        for first in range(0, len(values), wire.CLUSTERING_BATCH):
            batch = values[first : first + wire.CLUSTERING_BATCH]
            header = 0
            for i, value in enumerate(batch):
                header |= (0b10 if value is None else 0b01 if not value else 0) << 2 * i
            parts.append(write_unsigned(header))
            parts += [self._value(value, self.shape.clustering[first + i]) for i, value in enumerate(batch) if value]
        return b"".join(parts)

    def _cell(self, cell: Cell, column: ColumnShape, liveness: Liveness | None) -> bytes:
        if column.complex != (cell.path is not None):
            raise self._inexpressible(f"a cell of {column.name!r} {'without' if column.complex else 'with'} a path")
        flags = wire.IS_EXPIRING if cell.is_expiring else wire.IS_DELETED if cell.is_tombstone else 0
        flags |= 0 if cell.value else wire.HAS_EMPTY_VALUE
        if liveness is not None and cell.timestamp == liveness.timestamp:
            flags |= wire.USE_ROW_TIMESTAMP
        if liveness is not None and cell.is_expiring and (cell.ttl, cell.local_deletion_time) == (liveness.ttl, liveness.expires_at):
            flags |= wire.USE_ROW_TTL
        parts = [bytes((flags,))]
        if not flags & wire.USE_ROW_TIMESTAMP:
            parts.append(self._timestamp(cell.timestamp))
        if flags & (wire.IS_DELETED | wire.IS_EXPIRING) and not flags & wire.USE_ROW_TTL:
            parts.append(self._deletion_time(cell.local_deletion_time, cell.ttl))
            parts.append(self._ttl(cell.ttl) if flags & wire.IS_EXPIRING else b"")
        if cell.path is not None:
            parts.append(_blob(cell.path))
        if cell.value:
            parts.append(self._value(cell.value, None if column.complex else column.length(cell.timestamp, self.epoch)))
        return b"".join(parts)

    # --- numbers and bytes

    def _timestamp(self, timestamp: int) -> bytes:
        if not -(2**63) <= timestamp < 2**63:
            raise self._inexpressible(f"timestamp {timestamp}")
        return write_unsigned(timestamp - self.bases.timestamp)

    def _ttl(self, ttl: int) -> bytes:
        if not 0 < ttl < 2**31:
            raise self._inexpressible(f"ttl {ttl}")
        return write_unsigned(ttl - self.bases.ttl)

    def _deletion(self, deletion: DeletionTime) -> bytes:
        return self._timestamp(deletion.marked_for_delete_at) + self._deletion_time(deletion.local_deletion_time, NO_TTL)

    def _deletion_time(self, time: int, ttl: int) -> bytes:
        unsigned = wire.UNSIGNED_NO_DELETION_TIME if time == NO_DELETION_TIME else time
        if not 0 <= unsigned <= wire.UNSIGNED_NO_DELETION_TIME or (time == wire.UNSIGNED_NO_DELETION_TIME):
            raise self._inexpressible(f"deletion time {time}")
        if time < ttl != EXPIRED_LIVENESS_TTL:
            raise self._inexpressible(f"an expiry at {time} s with a ttl of {ttl} s")
        return write_unsigned(as_int32(unsigned - self.bases.deletion_time))

    def _value(self, value: bytes, fixed_length: int | None) -> bytes:
        if fixed_length is None:
            return _blob(value)
        if len(value) != fixed_length:
            raise self._inexpressible(f"a value of {len(value)} bytes where the type has {fixed_length}")
        return value

    def _inexpressible(self, what: str) -> MalformedMutation:
        return MalformedMutation(f"cannot encode {what}", operation="encode a mutation", obj=self.table.full_name)


def _name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def column_order(name: str) -> tuple[int, bytes]:
    """Order of names: by bytes with the first byte's sign bit inverted, so that é comes before a.

    Source: Cassandra 3.0-5.0, ColumnMetadata.comparisonOrder, which shifts a signed prefix as if it were
    unsigned.
    """
    raw = _name_bytes(name)
    return (raw[0] if raw else 0) ^ 0x80, raw


def _keeps_cell_order(columns: Sequence[ColumnShape], rows: Iterable[Row]) -> bool:
    """Whether this order of columns preserves the order of the cells."""
    place = {column.name: i for i, column in enumerate(columns)}
    return all(place[a.column] <= place[b.column] for row in rows for a, b in pairwise(row.cells))


def _blob(data: bytes) -> bytes:
    return write_unsigned(len(data)) + data


def _column_names(columns: Sequence[ColumnShape]) -> bytes:
    return write_unsigned(len(columns)) + b"".join(_blob(_name_bytes(column.name)) for column in columns)


def _subset(present: Sequence[ColumnShape], header: Sequence[ColumnShape]) -> bytes:
    names = {column.name for column in present}
    here = [i for i, column in enumerate(header) if column.name in names]
    missing = [i for i, column in enumerate(header) if column.name not in names]
    if len(header) < wire.LARGE_SUBSET:
        return write_unsigned(sum(1 << i for i in missing))
    listed = here if len(here) < len(header) // 2 else missing
    return write_unsigned(len(missing)) + b"".join(map(write_unsigned, listed))


def _bases(update: PartitionUpdate) -> Bases:
    """The minima of all numbers in the update; the epoch if there are none (Cassandra: EncodingStats)."""
    timestamps: list[int] = []
    times: list[int] = []
    ttls: list[int] = []
    rows = (update.static_row, *update.rows) if update.static_row is not None else update.rows
    deletions = [update.deletion, *(tombstone.deletion for tombstone in update.range_tombstones)]
    for row in rows:
        deletions += [row.deletion, *row.complex_deletions.values()]
        living = [(row.liveness.timestamp, row.liveness.ttl, row.liveness.expires_at)] if row.liveness is not None else []
        for timestamp, ttl, time in living + [(cell.timestamp, cell.ttl, cell.local_deletion_time) for cell in row.cells]:
            timestamps.append(timestamp)
            ttls += [ttl] if ttl != NO_TTL else []
            times += [time] if time != NO_DELETION_TIME else []
    for deletion in deletions:
        if deletion is not None:
            timestamps.append(deletion.marked_for_delete_at)
            times += [deletion.local_deletion_time] if deletion.local_deletion_time != NO_DELETION_TIME else []
    least = min(timestamps, default=NO_TIMESTAMP)
    return Bases(
        timestamp=wire.EPOCH_MICROS if least == NO_TIMESTAMP else least,
        deletion_time=as_int32(min(times, default=wire.EPOCH_SECONDS)),
        ttl=min(ttls, default=NO_TTL),
        unsigned_times=True,
    )


def _markers(tombstones: Sequence[RangeTombstone]) -> list[_Marker]:
    """Open and close markers in order; where one range ends just where the next begins, one boundary."""
    markers: list[_Marker] = []
    for i, tombstone in enumerate(tombstones):
        joined = i > 0 and _adjoin(tombstones[i - 1].end, tombstone.start)
        if not joined:
            markers.append(_opening(tombstone))
        following = tombstones[i + 1] if i + 1 < len(tombstones) else None
        if following is not None and _adjoin(tombstone.end, following.start):
            kind = _KIND_OF_MARKER[tombstone.end.inclusive, following.start.inclusive]
            deletions = (tombstone.deletion, following.deletion)
            markers.append(_Marker(tombstone.end.values, not tombstone.end.inclusive, kind, deletions))
        else:
            kind = _KIND_OF_MARKER[tombstone.end.inclusive, None]
            markers.append(_Marker(tombstone.end.values, not tombstone.end.inclusive, kind, (tombstone.deletion,)))
    return markers


def _opening(tombstone: RangeTombstone) -> _Marker:
    kind = _KIND_OF_MARKER[None, tombstone.start.inclusive]
    return _Marker(tombstone.start.values, tombstone.start.inclusive, kind, (tombstone.deletion,))


def _adjoin(end: Bound, start: Bound) -> bool:
    return bool(end.values) and end.values == start.values and end.inclusive != start.inclusive


def _row_is_before(row: Row, marker: _Marker, key: Any) -> bool:
    prefix = (row.clustering or ())[: len(marker.values)]
    if key(prefix) != key(marker.values):
        return bool(key(prefix) < key(marker.values))
    return not marker.before
