"""The body of a frame: a mutation (Cassandra 3.0-6.0, db/Mutation.MutationSerializer and what it calls).

    mutation         [u8 flags], uv count, count x partition update
    partition update 16 bytes table id; [uv epoch]; blob key; u8 flags; unless empty: header, [deletion], [static row], [uv row estimate],
                     { row | marker }*, u8 end of partition
    header           uv base timestamp, uv base deletion time, uv base ttl, [static columns], regular columns: names only
    row              u8 flags, [u8 more flags], [clustering], [liveness], [deletion], [column subset], cells column by column
    marker           u8 flags, u8 kind, u16 size, clustering prefix, deletion(s)          of a range tombstone
    cell             u8 flags, [uv timestamp], [uv deletion time], [uv ttl], [blob path], [value]

uv is a variable-length integer (`vint`); blob is a uv length followed by that many bytes. Types are not on
the wire: the schema in force says which columns have a cell per element and which values have no length.
Numbers are differences to the header's bases and may wrap. The mutation's flags and the epochs are there from
version 9 on (Cassandra 6.0).

This module does not reconcile: cells older than a column's drop, or than a deletion in the same update, are
kept for the merge.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

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
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table
from writetime.cassandra.types.types import wire_shape
from writetime.cassandra.types.vint import MASK32, as_int32, as_int64, read_unsigned
from writetime.errors import DecodeError, MalformedMutation, SchemaError, UnknownColumn, UnknownTable

IS_EMPTY: Final = 0x01
IS_REVERSED: Final = 0x02
HAS_PARTITION_DELETION: Final = 0x04
HAS_STATIC_ROW: Final = 0x08
HAS_ROW_ESTIMATE: Final = 0x10

END_OF_PARTITION: Final = 0x01
IS_MARKER: Final = 0x02
HAS_TIMESTAMP: Final = 0x04
HAS_TTL: Final = 0x08
HAS_DELETION: Final = 0x10
HAS_ALL_COLUMNS: Final = 0x20
HAS_COMPLEX_DELETION: Final = 0x40
EXTENSION_FLAG: Final = 0x80
IS_STATIC: Final = 0x01
HAS_SHADOWABLE_DELETION: Final = 0x02

IS_DELETED: Final = 0x01
IS_EXPIRING: Final = 0x02
HAS_EMPTY_VALUE: Final = 0x04
USE_ROW_TIMESTAMP: Final = 0x08
USE_ROW_TTL: Final = 0x10

EPOCH_SECONDS: Final = 1_442_880_000
"""2015-09-22T00:00:00Z, the origin of all bases (Cassandra: EncodingStats.TIMESTAMP_EPOCH)."""
EPOCH_MICROS: Final = EPOCH_SECONDS * 1_000_000
INVALID_DELETION_TIME: Final = 0xFFFFFFFE
"""The value of an overflowed expiry or deletion time (Cassandra 5.0: Cell.INVALID_DELETION_TIME)."""
UNSIGNED_NO_DELETION_TIME: Final = 0xFFFFFFFF
UNSIGNED_TIMES_VERSION: Final = 8
"""From this descriptor version on, deletion times are unsigned and reach to 2106."""
EPOCHS_VERSION: Final = 9
"""From this descriptor version on, a mutation begins with a byte of flags, and each update has an epoch."""
BY_THE_NODE: Final = 0x01
"""Flag of a mutation that nobody has to ask Accord about: of the node's own tables, of Paxos, and of read repair of
a table that is not written to through the log."""
NO_EPOCH: Final = -1
STATE_VERSION: Final = 8
"""The version in which partition updates are stored in the state: without epochs, which mean nothing there."""
CLUSTERING_BATCH: Final = 32
LARGE_SUBSET: Final = 64
_ID_SIZE: Final = 16

MARKER_KINDS: Final[dict[int, tuple[bool | None, bool | None]]] = {
    # kind: (end of a range is inclusive, start of a range is inclusive); None = does not close, does not open
    0: (False, None),
    1: (None, True),
    2: (False, True),
    5: (True, False),
    6: (True, None),
    7: (None, False),
}


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """The properties of a column that decoding needs. A column that was dropped and added again may have had
    values of another length, `length_before`: those in updates of an epoch before `dropped_epoch` (`NO_EPOCH`:
    unknown); without epochs, those with a timestamp up to `dropped_at` (µs), if that is not contradicted by the rest
    of the mutation (`Layout`)."""

    name: str
    fixed_length: int | None
    complex: bool
    length_before: int | None = None
    dropped_at: int = NO_TIMESTAMP
    dropped_epoch: int = NO_EPOCH

    def is_doubtful(self, epoch: int | None) -> bool:
        """Whether values may have either length, and no epoch says which."""
        return self.length_before != self.fixed_length and (epoch is None or self.dropped_epoch == NO_EPOCH)

    def length(self, timestamp: int, epoch: int | None) -> int | None:
        """The length in bytes of a simple cell's value with that timestamp, in an update of that epoch (None: it
        has none); None if the length is on the wire."""
        by_epoch = epoch is not None and self.dropped_epoch != NO_EPOCH
        is_before = epoch < self.dropped_epoch if by_epoch and epoch is not None else timestamp <= self.dropped_at
        return self.length_before if is_before else self.fixed_length


@dataclass(frozen=True, slots=True)
class TableShape:
    """The properties of a table that decoding needs: lengths of clustering values; columns, also dropped, by
    (static, name)."""

    table: Table
    clustering: tuple[int | None, ...]
    columns: dict[tuple[bool, str], ColumnShape]


@dataclass(slots=True)
class Layout:
    """Which lengths the values of doubtful columns have: `is_former` None: by timestamp; else those of before, or of
    after their return, all alike. `is_doubtful`: whether there were any."""

    is_former: bool | None = None
    is_doubtful: bool = False


@dataclass(slots=True)
class Bases:
    """The bases of the numbers of one partition update."""

    timestamp: int
    deletion_time: int
    ttl: int
    unsigned_times: bool


_SHAPES: dict[UUID, TableShape] = {}


def table_shape(table: Table) -> TableShape:
    """The shape of a table. Raises SchemaError if a column's type cannot be parsed, for whatever reason: decoders read
    frames of all tables."""
    shape = _SHAPES.get(table.id)
    if shape is None or shape.table is not table:
        try:
            shape = _SHAPES[table.id] = _shape_of(table)
        except SchemaError:
            raise
        except Exception as error:
            raise SchemaError(
                f"a type cannot be read: {type(error).__name__}: {error}", operation="read a table", obj=table.label
            ) from error
    return shape


def _shape_of(table: Table) -> TableShape:
    columns: dict[tuple[bool, str], ColumnShape] = {}
    known: tuple[Column | DroppedColumn, ...] = (*table.dropped_columns.values(), *table.columns.values())
    for column in known:
        if column.kind in ("static", "regular"):
            place = column.kind == "static", column.name
            columns[place] = _column_shape(column, columns.get(place), table)
    return TableShape(table, tuple(wire_shape(column.type)[0] for column in table.clustering), columns)


def _column_shape(column: Column | DroppedColumn, before: ColumnShape | None, table: Table) -> ColumnShape:
    """`before`: the dropped column of that name."""
    length, is_complex = wire_shape(column.type)
    if before is None or before.complex or is_complex:
        return ColumnShape(column.name, length, is_complex, length)
    dropped = table.dropped_columns[column.name]
    said_at = dropped.dropped_at if dropped.said_at is None else dropped.said_at
    said_epoch = NO_EPOCH if dropped.said_epoch is None else dropped.said_epoch
    return ColumnShape(column.name, length, is_complex, before.fixed_length, said_at, said_epoch)


def column_name(raw: bytes) -> str:
    """A column's name as text. Names that are not UTF-8, which Thrift allowed, become surrogates."""
    return raw.decode("utf-8", "surrogateescape")


def decode_mutation(body: bytes, schema: Schema, *, version: int = 7) -> Mutation:
    """The mutation of a frame's body. `version` is that of the segment's descriptor.

    Raises UnknownTable or UnknownColumn (the whole mutation is lost, because updates have no length), or
    MalformedMutation. The position in the error refers to `body`.
    """
    body = bytes(body)
    updates = tuple(placed.update for placed in decode_placed(body, schema, version=version))
    return Mutation(updates, body[0] if version >= EPOCHS_VERSION else None)


class Head(NamedTuple):
    """The beginning of a mutation: number of updates, table id of the first, its partition key as offset and
    length in the body."""

    updates: int
    table_id: UUID
    key_offset: int
    key_length: int


def read_head(body: bytes, *, version: int) -> Head:
    """The head of a mutation, without decoding the rest. Raises MalformedMutation."""
    count, table = read_unsigned(body, count_offset(version))
    after = table + _ID_SIZE
    if version >= EPOCHS_VERSION:
        _, after = read_unsigned(body, after)
    length, key = read_unsigned(body, after)
    if key + length > len(body):
        raise MalformedMutation("the partition key reaches past the end of the mutation", operation="peek into a mutation", position=key)
    return Head(count, UUID(bytes=bytes(body[table : table + _ID_SIZE])), key, length)


def without_epochs(body: bytes, schema: Schema, *, version: int) -> bytes:
    """The mutation as version 8 has it, for comparisons: replicas may have written its flags and epochs
    differently, everything else is the coordinator's. Raises the errors of `decode_mutation` for a mutation of
    several updates."""
    if version < EPOCHS_VERSION:
        return body
    start = count_offset(version)
    count, pos = read_unsigned(body, start)
    places = [pos] if count == 1 else [placed.start for placed in decode_placed(body, schema, version=version)]
    parts, done = [], start
    for place in places:
        parts.append(body[done : place + _ID_SIZE])
        _, done = read_unsigned(body, place + _ID_SIZE)
    return b"".join((*parts, body[done:]))


def count_offset(version: int) -> int:
    """Where the number of updates stands in a mutation: after the flags, if there are any."""
    return 1 if version >= EPOCHS_VERSION else 0


class Placed(NamedTuple):
    """An update and its range of bytes [start, end) in the mutation."""

    update: PartitionUpdate
    start: int
    end: int


def decode_placed(body: bytes, schema: Schema, *, version: int = 7) -> list[Placed]:
    """The updates of a frame's body with their positions. Raises the errors of `decode_mutation`.

    Where no epoch says how long the values are of a column that has come back as another type, timestamps say, as
    a rule. A client may set them to any time, and then they can be wrong. A node writes a mutation with one schema: if
    it cannot be decoded by timestamps, it is as if all of it had been written after the columns' return, else before.
    """
    layout = Layout()
    try:
        return _placed(body, schema, version, layout)
    except DecodeError:
        for is_former in (False, True) if layout.is_doubtful else ():
            with suppress(DecodeError):
                return _placed(body, schema, version, Layout(is_former))
        raise


def _placed(body: bytes, schema: Schema, version: int, layout: Layout) -> list[Placed]:
    start = count_offset(version)
    count, pos = read_unsigned(body, start)
    if not 0 < count <= len(body):
        raise _malformed(f"a mutation of {count} partition updates", start)
    updates = []
    for _ in range(count):
        start, table = pos, _known_table(body, pos, schema)
        update, pos = _Reader(body, table_shape(table), version, layout).partition_update(pos)
        updates.append(Placed(update, start, pos))
    if pos != len(body):
        raise _malformed(f"{len(body) - pos} bytes are left over", pos)
    return updates


def decode_update(data: bytes, table: Table, *, version: int = STATE_VERSION) -> PartitionUpdate:
    """One partition update as written by `encode.encode_update`, the format of stored state."""
    data = bytes(data)
    update, pos = _Reader(data, table_shape(table), version, Layout()).partition_update(0)
    if pos != len(data):
        raise _malformed(f"{len(data) - pos} bytes are left over", pos)
    return update


def _known_table(body: bytes, pos: int, schema: Schema) -> Table:
    if pos + _ID_SIZE > len(body):
        raise _malformed("the table id is cut short", pos)
    table_id = UUID(bytes=body[pos : pos + _ID_SIZE])
    table = schema.tables.get(table_id)
    if table is None:
        raise UnknownTable(
            f"no schema is known for table id {table_id}",
            table_id=str(table_id),
            operation="decode a mutation",
            position=pos,
            retriable=True,
            hint="It can be decoded once its CREATE TABLE or a schema snapshot has been read",
        )
    return table


def _malformed(message: str, pos: int, table: Table | None = None) -> MalformedMutation:
    return MalformedMutation(message, operation="decode a mutation", obj=table.full_name if table else None, position=pos)


class _Reader:
    """Readers over one body: each takes a position and returns (value, next position)."""

    def __init__(self, body: bytes, shape: TableShape, version: int, layout: Layout) -> None:
        self.body = body
        self.shape = shape
        self.layout = layout
        self.has_epoch = version >= EPOCHS_VERSION
        self.epoch: int | None = None
        self.bases = Bases(EPOCH_MICROS, EPOCH_SECONDS, NO_TTL, version >= UNSIGNED_TIMES_VERSION)

    # --- partition update

    def partition_update(self, pos: int) -> tuple[PartitionUpdate, int]:
        table_id = UUID(bytes=self.take(pos, _ID_SIZE)[0])
        pos += _ID_SIZE
        if self.has_epoch:
            pattern, pos = read_unsigned(self.body, pos)
            self.epoch = as_int64(pattern)
        key, pos = self.blob(pos)
        flags, pos = self.byte(pos)
        if flags & IS_EMPTY:
            return PartitionUpdate(table_id, key, epoch=self.epoch), pos
        if flags & IS_REVERSED:
            raise self.malformed("reversed partition updates are not supported", pos - 1)
        pos = self._bases(pos)
        statics: list[ColumnShape] = []
        if flags & HAS_STATIC_ROW:
            statics, pos = self._columns(pos, static=True)
        regulars, pos = self._columns(pos, static=False)
        deletion: DeletionTime | None = None
        if flags & HAS_PARTITION_DELETION:
            deletion, pos = self._deletion(pos)
        static_row: Row | None = None
        if flags & HAS_STATIC_ROW:
            static_row, pos = self._static_row(pos, statics)
        if flags & HAS_ROW_ESTIMATE:
            _, pos = read_unsigned(self.body, pos)
        rows, tombstones, pos = self._unfiltereds(pos, regulars)
        return PartitionUpdate(table_id, key, deletion, static_row, rows, tombstones, self.epoch), pos

    def _bases(self, pos: int) -> int:
        timestamp, pos = read_unsigned(self.body, pos)
        deletion_time, pos = read_unsigned(self.body, pos)
        ttl, pos = read_unsigned(self.body, pos)
        base = as_int64(timestamp + EPOCH_MICROS)
        self.bases.timestamp = EPOCH_MICROS if base == NO_TIMESTAMP else base  # (Cassandra: EncodingStats' constructor)
        self.bases.deletion_time = as_int32(deletion_time + EPOCH_SECONDS)
        self.bases.ttl = as_int32(ttl)
        return pos

    def _columns(self, pos: int, *, static: bool) -> tuple[list[ColumnShape], int]:
        count, pos = self.count(pos)
        columns = []
        for _ in range(count):
            start = pos
            raw, pos = self.blob(pos)
            name = column_name(raw)
            column = self.shape.columns.get((static, name))
            if column is None:
                raise UnknownColumn(
                    f"the schema in force has no {'static' if static else 'regular'} column {name!r}",
                    column=name,
                    static=static,
                    operation="decode a mutation",
                    obj=self.shape.table.full_name,
                    position=start,
                    retriable=True,
                    hint="It can be decoded once the ALTER TABLE or a newer schema snapshot has been read",
                )
            columns.append(column)
        if len(set(map(id, columns))) != len(columns):
            raise self.malformed("a column is named twice", pos)
        return columns, pos

    def _unfiltereds(self, pos: int, columns: list[ColumnShape]) -> tuple[tuple[Row, ...], tuple[RangeTombstone, ...], int]:
        rows: list[Row] = []
        tombstones: list[RangeTombstone] = []
        start: tuple[Bound, DeletionTime] | None = None
        while True:
            at = pos
            flags, pos = self.byte(pos)
            if flags & END_OF_PARTITION:
                break
            if flags & IS_MARKER:
                start, pos = self._marker(pos, start, tombstones)
                continue
            more, pos = self.byte(pos) if flags & EXTENSION_FLAG else (0, pos)
            if more & IS_STATIC:
                raise self.malformed("a static row stands among the regular rows", at)
            clustering, pos = self._clustering(pos, len(self.shape.clustering))
            row, pos = self._row(pos, flags, more, clustering, columns)
            rows.append(row)
        if start is not None:
            raise self.malformed("a range tombstone is not closed", at)
        return tuple(rows), tuple(tombstones), pos

    # --- range tombstones

    def _marker(
        self, pos: int, opened: tuple[Bound, DeletionTime] | None, tombstones: list[RangeTombstone]
    ) -> tuple[tuple[Bound, DeletionTime] | None, int]:
        """Read a marker and return the range that it leaves open. A closed range is added to `tombstones`."""
        at = pos
        kind, pos = self.byte(pos)
        closes, opens = MARKER_KINDS.get(kind, (None, None))
        if closes is None and opens is None:
            raise self.malformed(f"unknown range tombstone marker kind {kind}", at)
        if (closes is None) == (opened is not None):
            raise self.malformed("range tombstone markers do not pair up", at)
        size = int.from_bytes(self.take(pos, 2)[0], "big")
        pos += 2
        if size > len(self.shape.clustering):
            raise self.malformed(f"a bound of {size} values is longer than the clustering", at)
        values, pos = self._clustering(pos, size)
        if closes is not None and opened is not None:
            deletion, pos = self._deletion(pos)
            if deletion != opened[1]:
                raise self.malformed("the two markers of a range tombstone have different deletion times", at)
            tombstones.append(RangeTombstone(opened[0], Bound(values, closes), deletion))
        if opens is None:
            return None, pos
        deletion, pos = self._deletion(pos)
        return (Bound(values, opens), deletion), pos

    # --- rows

    def _static_row(self, pos: int, columns: list[ColumnShape]) -> tuple[Row, int]:
        flags, pos = self.byte(pos)
        more, pos = self.byte(pos) if flags & EXTENSION_FLAG else (0, pos)
        if not more & IS_STATIC:
            raise self.malformed("the static row is not marked as static", pos)
        return self._row(pos, flags, more, None, columns)

    def _row(
        self, pos: int, flags: int, more: int, clustering: tuple[bytes | None, ...] | None, columns: list[ColumnShape]
    ) -> tuple[Row, int]:
        liveness: Liveness | None = None
        if flags & HAS_TIMESTAMP:
            liveness, pos = self._liveness(pos, expiring=bool(flags & HAS_TTL))
        deletion: DeletionTime | None = None
        if flags & HAS_DELETION:
            deletion, pos = self._deletion(pos)
        if not flags & HAS_ALL_COLUMNS:
            columns, pos = self._subset(pos, columns)
        cells: list[Cell] = []
        complex_deletions: dict[str, DeletionTime] = {}
        for column in columns:
            if not column.complex:
                cell, pos = self._cell(pos, column, liveness)
                cells.append(cell)
                continue
            if flags & HAS_COMPLEX_DELETION:
                complex_deletion, pos = self._deletion(pos)
                if complex_deletion.marked_for_delete_at != NO_TIMESTAMP:
                    complex_deletions[column.name] = complex_deletion
            count, pos = self.count(pos)
            for _ in range(count):
                cell, pos = self._cell(pos, column, liveness)
                cells.append(cell)
        shadowable = bool(more & HAS_SHADOWABLE_DELETION)
        return Row(clustering, liveness, deletion, shadowable, tuple(cells), complex_deletions), pos

    def _liveness(self, pos: int, *, expiring: bool) -> tuple[Liveness, int]:
        timestamp, pos = self._timestamp(pos)
        if not expiring:
            return Liveness(timestamp), pos
        ttl, pos = self._ttl(pos)
        expires_at, pos = self._deletion_time(pos, ttl)
        return Liveness(timestamp, ttl, expires_at), pos

    def _clustering(self, pos: int, size: int) -> tuple[tuple[bytes | None, ...], int]:
        """`size` values in batches of 32: a header with two bits per value (empty, null), then all other
        values."""
        values: list[bytes | None] = []
        header = 0
        for i in range(size):
            bit = 2 * (i % CLUSTERING_BATCH)
            if bit == 0:
                header, pos = read_unsigned(self.body, pos)
            if header >> bit & 0b10:
                values.append(None)
            elif header >> bit & 0b01:
                values.append(b"")
            else:
                value, pos = self.value(pos, self.shape.clustering[i])
                values.append(value)
        return tuple(values), pos

    def _subset(self, pos: int, columns: list[ColumnShape]) -> tuple[list[ColumnShape], int]:
        """The columns of a row: below 64 a bitmap of missing columns, else their number and the indexes of
        the smaller set."""
        at = pos
        encoded, pos = read_unsigned(self.body, pos)
        if encoded == 0:
            return columns, pos
        total = len(columns)
        if total < LARGE_SUBSET:
            if encoded >> total:
                raise self.malformed("the column subset names columns outside the header", at)
            return [column for i, column in enumerate(columns) if not encoded >> i & 1], pos
        present = total - encoded
        if present < 0:
            raise self.malformed(f"the column subset omits {encoded} of {total} columns", at)
        listed = set()
        for _ in range(present if present < total // 2 else encoded):
            index, pos = read_unsigned(self.body, pos)
            if index >= total:
                raise self.malformed(f"column index {index} is out of range for {total} columns", at)
            listed.add(index)
        wanted = present < total // 2
        return [column for i, column in enumerate(columns) if (i in listed) == wanted], pos

    def _cell(self, pos: int, column: ColumnShape, liveness: Liveness | None) -> tuple[Cell, int]:
        at = pos
        flags, pos = self.byte(pos)
        if flags & (USE_ROW_TIMESTAMP | USE_ROW_TTL) and liveness is None:
            raise self.malformed("a cell refers to liveness info that its row does not have", at)
        if flags & USE_ROW_TIMESTAMP and liveness is not None:
            timestamp = liveness.timestamp
        else:
            timestamp, pos = self._timestamp(pos)
        ttl, deletion_time = NO_TTL, NO_DELETION_TIME
        if flags & USE_ROW_TTL and liveness is not None:
            ttl, deletion_time = liveness.ttl, liveness.expires_at
        elif flags & (IS_DELETED | IS_EXPIRING):
            # The deletion time depends on the ttl, which follows it.
            raw, pos = read_unsigned(self.body, pos)
            if flags & IS_EXPIRING:
                ttl, pos = self._ttl(pos)
            deletion_time = self.deletion_time(raw, ttl)
        path: bytes | None = None
        if column.complex:
            path, pos = self.blob(pos)
        value = b""
        if not flags & HAS_EMPTY_VALUE:
            # The type of a complex column is the collection, so the values of its cells always have a length.
            value, pos = self.value(pos, None if column.complex else self.length(column, timestamp))
        return Cell(column.name, timestamp, value, path, ttl, deletion_time), pos

    def length(self, column: ColumnShape, timestamp: int) -> int | None:
        if not column.is_doubtful(self.epoch):
            return column.length(timestamp, self.epoch)
        self.layout.is_doubtful = True
        if self.layout.is_former is None:
            return column.length(timestamp, self.epoch)
        return column.length_before if self.layout.is_former else column.fixed_length

    # --- numbers and bytes

    def _timestamp(self, pos: int) -> tuple[int, int]:
        delta, pos = read_unsigned(self.body, pos)
        return as_int64(self.bases.timestamp + delta), pos

    def _ttl(self, pos: int) -> tuple[int, int]:
        delta, pos = read_unsigned(self.body, pos)
        return as_int32(self.bases.ttl + delta), pos

    def _deletion(self, pos: int) -> tuple[DeletionTime, int]:
        marked, pos = self._timestamp(pos)
        local, pos = self._deletion_time(pos, NO_TTL)
        return DeletionTime(marked, local), pos

    def _deletion_time(self, pos: int, ttl: int) -> tuple[int, int]:
        raw, pos = read_unsigned(self.body, pos)
        return self.deletion_time(raw, ttl), pos

    def deletion_time(self, raw: int, ttl: int) -> int:
        """A local deletion time or expiry in seconds from its difference to the base.

        Version 8 is unsigned: the sum is taken modulo 2^32. Before, a negative sum is an expiry after 2038
        that overflowed. An expiry less than its ttl is invalid too (Cassandra 5.0,
        Cell.decodeLocalDeletionTime).
        """
        time = self.bases.deletion_time + as_int32(raw)
        if time < 0 and self.bases.unsigned_times:
            time &= MASK32
        if time < 0:
            return INVALID_DELETION_TIME
        if time == UNSIGNED_NO_DELETION_TIME and self.bases.unsigned_times:
            return NO_DELETION_TIME
        return INVALID_DELETION_TIME if time < ttl != EXPIRED_LIVENESS_TTL else time

    def value(self, pos: int, fixed_length: int | None) -> tuple[bytes, int]:
        return self.blob(pos) if fixed_length is None else self.take(pos, fixed_length)

    def blob(self, pos: int) -> tuple[bytes, int]:
        body = self.body
        if pos < len(body) and body[pos] < 0x80:
            # Fast path: nearly every length takes one byte, and most of a mutation is blobs.
            end = pos + 1 + body[pos]
            if end <= len(body):
                return body[pos + 1 : end], end
        length, pos = read_unsigned(body, pos)
        return self.take(pos, length)

    def take(self, pos: int, length: int) -> tuple[bytes, int]:
        end = pos + length
        if end > len(self.body):
            raise self.malformed(f"the mutation ends within the next {length} bytes", pos)
        return self.body[pos:end], end

    def byte(self, pos: int) -> tuple[int, int]:
        if pos >= len(self.body):
            raise self.malformed("the mutation ends early", pos)
        return self.body[pos], pos + 1

    def count(self, pos: int) -> tuple[int, int]:
        """The number of items that follow, each of at least one byte."""
        count, after = read_unsigned(self.body, pos)
        if count > len(self.body) - after:
            raise self.malformed(f"a count of {count} exceeds the bytes left", pos)
        return count, after

    def malformed(self, message: str, pos: int) -> MalformedMutation:
        return _malformed(message, pos, self.shape.table)
