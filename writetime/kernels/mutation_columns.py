"""Mutations as Arrow: five flat tables that refer to each other by ordinal. Schemas and the readable
conversion both ways.

    UPDATES            a partition update each: frame, place in its mutation, table, partition key, partition deletion
    ROWS               a row or static row each, of an update: clustering, liveness, row deletion
    CELLS              a cell each, of a row: column, timestamp, ttl, local deletion time, path, value
    COMPLEX_DELETIONS  deletions of whole collections and user types, of a row
    RANGES             range tombstones, of an update

Strategy: frames are decoded in chunks of a limited size, each a `Decoded`. Ordinals (`update`, `row`) count
from 0 in a chunk. Entries are in log order, cells in wire order. Chunk boundaries depend on frame sizes only,
so both engines return equal batches: the Python one by `mutation.decode_mutation` and `flatten`, the compiled
one (`writetime.kernels.mutation_kernel`) directly from the bytes. `unflatten` restores exactly equal
mutations.

Values stay raw bytes. Column names are the bytes of the wire, because Thrift could write names that are not
UTF-8. A ttl of 0 means no ttl; a null local deletion time or expiry means none. This module does not know the
encoding of bodies or segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.cassandra.commitlog.mutation import column_name
from writetime.cassandra.commitlog.segment import Frame
from writetime.cassandra.model import (
    NO_DELETION_TIME,
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
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema
from writetime.errors import CorruptFrame, WritetimeError

CHUNK_BYTES: Final = 2 << 20
"""Bytes of bodies in a chunk; a larger mutation is a chunk of its own. Larger chunks do not fit the CPU
cache."""

MOST_BYTES: Final = (1 << 31) - 1
"""Maximum bytes of bodies in a chunk: offsets in its batches have 32 bits. No frame is larger."""

TABLE_ID: Final = pa.dictionary(pa.int32(), pa.binary(16))
COLUMN: Final = pa.dictionary(pa.int32(), pa.binary())
CLUSTERING: Final = pa.list_(pa.binary())


def _fields(**types: Any) -> Any:
    """A schema; a type in a list may be null."""
    return pa.schema([pa.field(name, t[0], True) if isinstance(t, list) else pa.field(name, t, False) for name, t in types.items()])


_DELETION: Final = {"deletion_timestamp": pa.int64(), "deletion_time": [pa.int64()]}
_MAYBE_DELETION: Final = {"deletion_timestamp": [pa.int64()], "deletion_time": [pa.int64()]}

UPDATES: Final = _fields(
    position=pa.int64(),
    ordinal=pa.int32(),
    flags=[pa.uint8()],
    table=TABLE_ID,
    epoch=[pa.int64()],
    key=pa.binary(),
    **_MAYBE_DELETION,
)
"""`position`: of the frame; `ordinal`: index in the mutation; `flags`: of the mutation; `table`: the 16 bytes of
its id; `epoch`: as in `PartitionUpdate`; `flags` and `epoch` are null before version 9. Without a deletion its
timestamp is null; its time in s may also be null with a deletion, from version 8 on."""

ROWS: Final = _fields(
    update=pa.int32(),
    static=pa.bool_(),
    clustering=[CLUSTERING],
    liveness_timestamp=[pa.int64()],
    liveness_ttl=pa.int32(),
    liveness_expires_at=[pa.int64()],
    **_MAYBE_DELETION,
    shadowable=pa.bool_(),
)
"""`clustering` is null only for the static row; a null element is a null clustering value."""

CELLS: Final = _fields(
    row=pa.int32(),
    column=COLUMN,
    timestamp=pa.int64(),
    ttl=pa.int32(),
    local_deletion_time=[pa.int64()],
    path=[pa.binary()],
    value=pa.binary(),
)
"""A tombstone has a local deletion time and no ttl, an expiring cell has both. `path` is null for simple
columns."""

COMPLEX_DELETIONS: Final = _fields(row=pa.int32(), column=COLUMN, **_DELETION)

RANGES: Final = _fields(
    update=pa.int32(), start=CLUSTERING, start_inclusive=pa.bool_(), end=CLUSTERING, end_inclusive=pa.bool_(), **_DELETION
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A frame that could not be decoded. The batches contain nothing of it."""

    frame: Frame
    error: WritetimeError


@dataclass(frozen=True, slots=True)
class Decoded:
    """One chunk: record batches of UPDATES, ROWS, CELLS, COMPLEX_DELETIONS and RANGES, and the frames that
    failed."""

    updates: Any
    rows: Any
    cells: Any
    complex_deletions: Any
    ranges: Any
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Dictionaries:
    """The values of the codes in `table` and `column`: all tables and column names of a schema, sorted by
    bytes."""

    tables: Any
    columns: Any
    table_codes: Mapping[UUID, int] = field(repr=False)
    column_codes: Mapping[str, int] = field(repr=False)

    @classmethod
    def of(cls, schema: Schema) -> Dictionaries:
        ids = sorted(schema.tables, key=lambda table_id: table_id.bytes)
        columns: Iterator[Column | DroppedColumn] = chain.from_iterable(
            (*table.columns.values(), *table.dropped_columns.values()) for table in schema.tables.values()
        )
        names = {column.name for column in columns if column.kind in ("static", "regular")}
        raw = sorted((encoded, name) for name in names if (encoded := name_bytes(name)) is not None)
        return cls(
            pa.Array.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(b"".join(table_id.bytes for table_id in ids))]),
            _binaries([encoded for encoded, _ in raw]),
            {table_id: code for code, table_id in enumerate(ids)},
            {name: code for code, (_, name) in enumerate(raw)},
        )


def _binaries(values: Sequence[bytes]) -> Any:
    """An array of bytes. pa.array() is avoided, because it imports pandas, which takes a second in a new
    process."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])


def name_bytes(name: str) -> bytes | None:
    """A column name as on the wire; None if it has no encoding. The inverse of `mutation.column_name`."""
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    return raw if column_name(raw) == name else None


def chunks(lengths: Sequence[int] | Any, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of frames with bodies of at most `chunk_bytes` in total, or of a single frame. Raises
    CorruptFrame if a frame is larger than a log allows."""
    sizes = np.asarray(lengths, np.int64)
    if sizes.max(initial=0) > MOST_BYTES:
        raise too_large(f"a mutation of {sizes.max()} bytes")
    chunk_bytes = min(chunk_bytes, MOST_BYTES)
    ends = np.cumsum(sizes)
    first = before = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, before + chunk_bytes, side="right")))
        yield first, last
        first, before = last, int(ends[last - 1])


def outside(position: int, size: int) -> CorruptFrame:
    return CorruptFrame(f"the frame reaches out of the {size} bytes that are there", operation="decode frames", position=position)


def too_large(message: str) -> CorruptFrame:
    return CorruptFrame(f"{message}: the offsets of Arrow's batches cannot count it", operation="decode frames")


# --- mutations to batches


def flatten(mutations: Iterable[tuple[int, Mutation]], dictionaries: Dictionaries, failures: Iterable[Failure] = ()) -> Decoded:
    """(frame position, mutation) pairs as one chunk."""
    flat = _Flattener(dictionaries)
    for position, mutation in mutations:
        for ordinal, update in enumerate(mutation.updates):
            flat.update(position, ordinal, mutation.flags, update)
    tables = (flat.updates, flat.rows, flat.cells, flat.complex_deletions, flat.ranges)
    updates, rows, cells, complex_deletions, ranges = (_batch(*table, dictionaries) for table in zip(SCHEMAS, tables, strict=True))
    return Decoded(updates, rows, cells, complex_deletions, ranges, tuple(failures))


SCHEMAS: Final = (UPDATES, ROWS, CELLS, COMPLEX_DELETIONS, RANGES)


class _Flattener:
    """Collects the rows of the five tables as tuples in the order of the schema's fields."""

    def __init__(self, dictionaries: Dictionaries) -> None:
        self.codes = dictionaries
        self.updates: list[tuple[Any, ...]] = []
        self.rows: list[tuple[Any, ...]] = []
        self.cells: list[tuple[Any, ...]] = []
        self.complex_deletions: list[tuple[Any, ...]] = []
        self.ranges: list[tuple[Any, ...]] = []

    def update(self, position: int, ordinal: int, flags: int | None, update: PartitionUpdate) -> None:
        at, table = len(self.updates), self.codes.table_codes[update.table_id]
        self.updates.append((position, ordinal, flags, table, update.epoch, update.key, *_deletion(update.deletion)))
        for row in (update.static_row, *update.rows):
            if row is not None:
                self.row(at, row)
        for tombstone in update.range_tombstones:
            start, end = tombstone.start, tombstone.end
            self.ranges.append((at, start.values, start.inclusive, end.values, end.inclusive, *_deletion(tombstone.deletion)))

    def row(self, update: int, row: Row) -> None:
        at = len(self.rows)
        live = row.liveness
        liveness = (None, NO_TTL, None) if live is None else (live.timestamp, live.ttl, _time(live.expires_at))
        self.rows.append((update, row.is_static, row.clustering, *liveness, *_deletion(row.deletion), row.shadowable))
        for cell in row.cells:
            column, time = self.codes.column_codes[cell.column], _time(cell.local_deletion_time)
            self.cells.append((at, column, cell.timestamp, cell.ttl, time, cell.path, cell.value))
        for name, deletion in row.complex_deletions.items():
            self.complex_deletions.append((at, self.codes.column_codes[name], *_deletion(deletion)))


def _deletion(deletion: DeletionTime | None) -> tuple[int | None, int | None]:
    return (None, None) if deletion is None else (deletion.marked_for_delete_at, _time(deletion.local_deletion_time))


def _time(time: int) -> int | None:
    return None if time == NO_DELETION_TIME else time


def _batch(schema: Any, rows: list[tuple[Any, ...]], dictionaries: Dictionaries) -> Any:
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = []
    for kind, values in zip(schema.types, columns, strict=True):
        codes = {TABLE_ID: dictionaries.tables, COLUMN: dictionaries.columns}.get(kind)
        if codes is None:
            arrays.append(pa.array(values, kind))
        else:
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), codes))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- and back


def unflatten(decoded: Decoded) -> list[tuple[int, Mutation]]:
    """The (frame position, mutation) pairs of a chunk: `flatten`'s inverse."""
    cells = _grouped(decoded.cells, "row", decoded.rows.num_rows)
    complex_deletions = _grouped(decoded.complex_deletions, "row", decoded.rows.num_rows)
    rows: list[list[Row]] = [[] for _ in range(decoded.updates.num_rows)]
    for at, record in enumerate(decoded.rows.to_pylist()):
        rows[record["update"]].append(_row(record, cells[at], complex_deletions[at]))
    ranges = _grouped(decoded.ranges, "update", decoded.updates.num_rows)
    found: list[tuple[int, int | None, list[PartitionUpdate]]] = []
    for at, record in enumerate(decoded.updates.to_pylist()):
        if record["ordinal"] == 0:
            found.append((record["position"], record["flags"], []))
        static = next((row for row in rows[at] if row.is_static), None)
        others = tuple(row for row in rows[at] if not row.is_static)
        tombstones = tuple(map(_tombstone, ranges[at]))
        table_id, deletion = UUID(bytes=record["table"]), _deletion_of(record)
        found[-1][2].append(PartitionUpdate(table_id, record["key"], deletion, static, others, tombstones, record["epoch"]))
    return [(position, Mutation(tuple(updates), flags)) for position, flags, updates in found]


def _grouped(batch: Any, by: str, size: int) -> list[list[dict[str, Any]]]:
    groups: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    for record in batch.to_pylist():
        groups[record[by]].append(record)
    return groups


def _row(record: dict[str, Any], cells: list[dict[str, Any]], complex_deletions: list[dict[str, Any]]) -> Row:
    liveness = None
    if record["liveness_timestamp"] is not None:
        liveness = Liveness(record["liveness_timestamp"], record["liveness_ttl"], _time_of(record["liveness_expires_at"]))
    deletions = {column_name(item["column"]): item for item in complex_deletions}
    return Row(
        None if record["static"] else tuple(record["clustering"]),
        liveness,
        _deletion_of(record),
        record["shadowable"],
        tuple(map(_cell, cells)),
        {name: deletion for name, item in deletions.items() if (deletion := _deletion_of(item)) is not None},
    )


def _cell(record: dict[str, Any]) -> Cell:
    time = _time_of(record["local_deletion_time"])
    return Cell(column_name(record["column"]), record["timestamp"], record["value"], record["path"], record["ttl"], time)


def _tombstone(record: dict[str, Any]) -> RangeTombstone:
    start = Bound(tuple(record["start"]), record["start_inclusive"])
    end = Bound(tuple(record["end"]), record["end_inclusive"])
    return RangeTombstone(start, end, DeletionTime(record["deletion_timestamp"], _time_of(record["deletion_time"])))


def _deletion_of(record: dict[str, Any]) -> DeletionTime | None:
    timestamp = record["deletion_timestamp"]
    return None if timestamp is None else DeletionTime(timestamp, _time_of(record["deletion_time"]))


def _time_of(time: int | None) -> int:
    return NO_DELETION_TIME if time is None else time
