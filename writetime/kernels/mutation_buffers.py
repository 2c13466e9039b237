"""Input and output of the compiled decoder: the schema as arrays, output buffers, and Arrow batches built
without a copy.

Strategy: buffers for bytes are as large as the bodies of the chunk. The size of all others is estimated; if
one is too small, the chunk is decoded again with twice the size. A frame that the compiled decoder rejects is
passed to the Python decoder, whose error explains the problem. If that one accepts it, the two disagree,
which is a bug and raises RuntimeError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from writetime.cassandra.commitlog import mutation
from writetime.cassandra.commitlog.frames import BODY_OFFSET
from writetime.cassandra.commitlog.mutation import TableShape, decode_mutation, table_shape
from writetime.cassandra.commitlog.segment import Frame
from writetime.cassandra.model import NO_DELETION_TIME
from writetime.cassandra.schema.model import Schema, Table
from writetime.errors import SchemaError, WritetimeError
from writetime.kernels import mutation_kernel as kernel
from writetime.kernels.compiled import Bytes, Int32s, Ints
from writetime.kernels.mutation_columns import (
    CELLS,
    CLUSTERING,
    COMPLEX_DELETIONS,
    MOST_BYTES,
    RANGES,
    ROWS,
    UPDATES,
    Decoded,
    Dictionaries,
    Failure,
    name_bytes,
    outside,
    too_large,
)
from writetime.kernels.mutation_columns import chunks as chunks_of
from writetime.kernels.mutation_kernel import (
    Cells,
    ComplexDeletions,
    Lists,
    Output,
    Ranges,
    Rows,
    Scratch,
    Tables,
    Updates,
)
from writetime.kernels.pointers import words
from writetime.kernels.segment_walk import Frames

# --- the schema as arrays


def tables_of(schema: Schema, dictionaries: Dictionaries) -> Tables:
    """The tables as arrays. Tables with types that cannot be parsed are omitted; the Python decoder reports
    their frames."""
    shapes = sorted(filter(None, map(_shape, schema.tables.values())), key=lambda shape: shape.table.id.bytes)
    parts = [columns for shape in shapes for columns in (_wire_order(shape, static=True), _wire_order(shape, static=False))]
    columns = [column for part in parts for column in part]
    names = [raw for raw, _ in columns]
    ids = np.array([shape.table.id.bytes for shape in shapes], "S16").view(">u8").astype(np.uint64).reshape(-1, 2)
    return Tables(
        len(shapes),
        np.ascontiguousarray(ids[:, 0]),
        np.ascontiguousarray(ids[:, 1]),
        np.array([dictionaries.table_codes[shape.table.id] for shape in shapes], np.int32),
        _starts([len(shape.clustering) for shape in shapes]),
        _lengths(length for shape in shapes for length in shape.clustering),
        _starts([len(part) for part in parts]),
        np.array([dictionaries.column_codes[column.name] for _, column in columns], np.int32),
        _lengths(column.fixed_length for _, column in columns),
        np.array([column.complex for _, column in columns], np.uint8),
        _lengths(column.length_before for _, column in columns),
        np.array([column.dropped_at for _, column in columns], np.int64),
        np.array([column.dropped_epoch for _, column in columns], np.int64),
        _starts([len(raw) for raw in names]),
        np.frombuffer(bytearray(b"".join(names)), np.uint8),
    )


def _shape(table: Table) -> TableShape | None:
    try:
        return table_shape(table)
    except SchemaError:
        return None


def _wire_order(shape: TableShape, *, static: bool) -> list[tuple[bytes, mutation.ColumnShape]]:
    """Columns with their names' bytes: simple ones by name, then complex ones."""
    columns = [(raw, column) for (kind, name), column in shape.columns.items() if kind == static and (raw := name_bytes(name)) is not None]
    return sorted(columns, key=lambda item: (item[1].complex, item[0]))


def _lengths(lengths: Iterable[int | None]) -> Int32s:
    """Lengths limited to int32, since a body is not larger. A negative length would move the compiled decoder
    backwards."""
    return np.array([kernel.VARIABLE if length is None else min(max(length, 0), MOST_BYTES) for length in lengths], np.int32)


def _starts(lengths: Sequence[int]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))))


# --- frames to chunks


class Places(NamedTuple):
    """Positions of frames, and offsets and lengths of their bodies."""

    position: Ints
    offset: Ints
    length: Ints


def places(frames: Sequence[Frame]) -> Places:
    if isinstance(frames, Frames):
        columns = (frames.position, frames.body_offset, frames.body_length)
        return Places(*(np.ascontiguousarray(column, np.int64) for column in columns))
    found = np.array(frames, np.int64).reshape(-1, 4)
    return Places(*(np.ascontiguousarray(found[:, i]) for i in (0, 2, 3)))


_COUNTED = (kernel.UPDATES, kernel.ROWS, kernel.CELLS, kernel.COMPLEX, kernel.RANGES, kernel.CLUSTERING, kernel.START, kernel.END)
_LEAST_ROOM = 64
"""Initial room for entries of each kind."""


def decode(image: bytes, frames: Places, schema: Schema, *, version: int, chunk_bytes: int) -> Iterator[Decoded]:
    """As `mutation_decoder.decode`."""
    decoder = _Decoder(image, frames, schema, version)
    for first, last in chunks_of(frames.length, chunk_bytes):
        yield decoder.chunk(first, last)


class _Decoder:
    """Decodes chunks of one segment; remembers how much room the last one needed."""

    def __init__(self, image: bytes, frames: Places, schema: Schema, version: int) -> None:
        self.image, self.frames, self.schema, self.version = image, frames, schema, version
        self.buf: Bytes = np.frombuffer(image, np.uint8)
        self._check_places()
        self.dictionaries = Dictionaries.of(schema)
        self.tables = tables_of(schema, self.dictionaries)
        self.scratch = _scratch(self.tables, version)
        # The first part of a `Chunk`, the same for all of them.
        self.words = words((self.tables, self.scratch, self.buf))
        self.room = dict.fromkeys(_COUNTED, _LEAST_ROOM)

    def chunk(self, first: int, last: int) -> Decoded:
        place = Places(*(column[first:last] for column in self.frames))
        size = int(place.length.sum())
        self._expect(len(place.length), size)
        failed = np.zeros(last - first, np.uint8)
        while True:
            out = _output(self.room, size)
            n = np.zeros(kernel.COUNTERS, np.int64)
            n[kernel.LACKING] = -1
            self.scratch.last_seen[:] = 0
            kernel.decode(np.concatenate((self.words, words((last - first, *place, failed, n, out)))))
            if n[kernel.LACKING] < 0:
                break
            self._make_room(int(n[kernel.LACKING]))
        failures = [self._failure(*(int(column[i]) for column in place)) for i in np.flatnonzero(failed)]
        updates, rows, cells, complex_deletions, ranges = _batches(out, n.tolist(), self.dictionaries, self.version)
        return Decoded(updates, rows, cells, complex_deletions, ranges, tuple(failures))

    def _check_places(self) -> None:
        """Check offsets and lengths, because compiled code does not."""
        position, offset, length = self.frames
        if not len(position) == len(offset) == len(length):
            raise ValueError(f"{len(position)} positions, {len(offset)} offsets and {len(length)} lengths of frames")
        beyond = np.flatnonzero((offset < 0) | (length < 0) | (offset > len(self.buf) - length))
        if beyond.size:
            raise outside(int(position[beyond[0]]), len(self.buf))

    def _expect(self, frames: int, size: int) -> None:
        """Make room for the usual content of a chunk."""
        usual = {
            kernel.UPDATES: frames + 16,
            kernel.ROWS: frames + size // 256,
            kernel.CELLS: size // 32,
            kernel.CLUSTERING: size // 64,
            kernel.COMPLEX: size // 128,
        }
        for counter, entries in usual.items():
            self.room[counter] = max(self.room[counter], entries)

    def _make_room(self, counter: int) -> None:
        if self.room[counter] == MOST_BYTES:
            raise too_large(f"a chunk has more than {MOST_BYTES} entries of one kind")
        self.room[counter] = min(2 * self.room[counter], MOST_BYTES)

    def _failure(self, position: int, offset: int, length: int) -> Failure:
        try:
            decode_mutation(self.image[offset : offset + length], self.schema, version=self.version)
        except WritetimeError as error:
            # Its traceback would hold the decoder's frames: all frames of a hot table may fail.
            return Failure(Frame(position, offset - BODY_OFFSET, offset, length), error.with_traceback(None))
        raise RuntimeError(f"the compiled decoder rejects the mutation that ends at {position}, the Python decoder does not")


def _empty(size: int, kind: Any) -> Any:
    return np.empty(size, kind)


def _scratch(tables: Tables, version: int) -> Scratch:
    columns = len(tables.column_code)
    widest = int(np.diff(tables.bounds).max(initial=0))
    values = int(np.diff(tables.clusterings).max(initial=0))
    bases = np.zeros(kernel.BASES, np.int64)
    bases[kernel.UNSIGNED_TIMES] = version >= mutation.UNSIGNED_TIMES_VERSION
    bases[kernel.HAS_EPOCHS] = version >= mutation.EPOCHS_VERSION
    return Scratch(
        _empty(widest, np.int64),
        _empty(widest, np.int64),
        _empty(widest, np.uint8),
        _empty(columns, np.int64),
        _empty(values, np.int64),
        _empty(values, np.int64),
        bases,
    )


def _output(room: dict[int, int], size: int) -> Output:
    """Arrays for `room` entries of each kind, and `size` bytes for each column of bytes."""

    def i64(counter: int) -> Any:
        return _empty(room[counter], np.int64)

    def i32(counter: int) -> Any:
        return _empty(room[counter], np.int32)

    def u8(counter: int) -> Any:
        return _empty(room[counter], np.uint8)

    def ends(counter: int) -> Int32s:
        array: Int32s = _empty(room[counter] + 1, np.int32)
        array[0] = 0
        return array

    def data() -> Any:
        return _empty(size, np.uint8)

    def lists(of: int, counter: int) -> Lists:
        return Lists(room[counter], ends(of), u8(counter), ends(counter), data())

    u, r, c, x, g = kernel.UPDATES, kernel.ROWS, kernel.CELLS, kernel.COMPLEX, kernel.RANGES
    return Output(
        Updates(room[u], i64(u), i32(u), u8(u), i32(u), i64(u), ends(u), data(), u8(u), i64(u), i64(u)),
        Rows(room[r], i32(r), u8(r), lists(r, kernel.CLUSTERING), i64(r), i32(r), i64(r), i64(r), i64(r)),
        Cells(room[c], i32(c), i32(c), i64(c), i32(c), i64(c), u8(c), ends(c), data(), ends(c), data()),
        ComplexDeletions(room[x], i32(x), i32(x), i64(x), i64(x)),
        Ranges(room[g], i32(g), u8(g), lists(g, kernel.START), lists(g, kernel.END), i64(g), i64(g)),
    )


# --- arrays to Arrow


def _batches(out: Output, n: list[int], codes: Dictionaries, version: int) -> tuple[Any, ...]:
    """The five record batches, which share memory with the arrays."""
    u, r, c, x, g = out
    n_u, n_r, n_c, n_x, n_g = n[:5]
    deleted = u.deleted[:n_u]
    has_epochs = version >= mutation.EPOCHS_VERSION
    updates = (
        _numbers(pa.int64(), u.position, n_u),
        _numbers(pa.int32(), u.ordinal, n_u),
        _numbers(pa.uint8(), u.flags, n_u) if has_epochs else pa.nulls(n_u, pa.uint8()),
        _codes(u.table, n_u, codes.tables),
        _numbers(pa.int64(), u.epoch, n_u) if has_epochs else pa.nulls(n_u, pa.int64()),
        _binary(u.key_end, u.key, n_u, n[kernel.KEY_BYTES]),
        _numbers(pa.int64(), u.deletion_timestamp, n_u, deleted),
        _times(u.deletion_time, n_u),
    )
    flags = r.flags[:n_r]
    rows = (
        _numbers(pa.int32(), r.update, n_r),
        _booleans(flags & kernel.ROW_STATIC),
        _lists(r.clustering, n_r, n[kernel.CLUSTERING], n[kernel.CLUSTERING_BYTES], (flags & kernel.ROW_STATIC) == 0),
        _numbers(pa.int64(), r.liveness_timestamp, n_r, flags & kernel.ROW_LIVE),
        _numbers(pa.int32(), r.liveness_ttl, n_r),
        _times(r.liveness_expires_at, n_r),
        _numbers(pa.int64(), r.deletion_timestamp, n_r, flags & kernel.ROW_DELETED),
        _times(r.deletion_time, n_r),
        _booleans(flags & kernel.ROW_SHADOWABLE),
    )
    cells = (
        _numbers(pa.int32(), c.row, n_c),
        _codes(c.column, n_c, codes.columns),
        _numbers(pa.int64(), c.timestamp, n_c),
        _numbers(pa.int32(), c.ttl, n_c),
        _times(c.time, n_c),
        _binary(c.path_end, c.path, n_c, n[kernel.PATH_BYTES], c.has_path[:n_c]),
        _binary(c.value_end, c.value, n_c, n[kernel.VALUE_BYTES]),
    )
    complex_deletions = (
        _numbers(pa.int32(), x.row, n_x),
        _codes(x.column, n_x, codes.columns),
        _numbers(pa.int64(), x.timestamp, n_x),
        _times(x.time, n_x),
    )
    ranges = (
        _NO_RANGES
        if n_g == 0
        else (
            _numbers(pa.int32(), g.update, n_g),
            _lists(g.start, n_g, n[kernel.START], n[kernel.START_BYTES]),
            _booleans(g.flags[:n_g] & kernel.START_INCLUSIVE),
            _lists(g.end, n_g, n[kernel.END], n[kernel.END_BYTES]),
            _booleans(g.flags[:n_g] & kernel.END_INCLUSIVE),
            _numbers(pa.int64(), g.timestamp, n_g),
            _times(g.time, n_g),
        )
    )
    found = ((UPDATES, updates), (ROWS, rows), (CELLS, cells), (COMPLEX_DELETIONS, complex_deletions), (RANGES, ranges))
    return tuple(pa.RecordBatch.from_arrays(list(arrays), schema=schema) for schema, arrays in found)


# Not pa.array(): that would import pandas, a second of a fresh process.
_NO_RANGES = tuple(pa.nulls(0, field.type) for field in RANGES)


def _bits(flags: Any) -> Any:
    """A bitmap of the nonzero flags; None if all are 0."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _valid(flags: Any) -> Any:
    """A validity bitmap; None if all are valid."""
    return None if flags is None or flags.all() else _bits(flags)


def _numbers(kind: Any, array: Any, size: int, valid: Any = None) -> Any:
    return pa.Array.from_buffers(kind, size, [_valid(valid), pa.py_buffer(array[:size])])


def _times(array: Ints, size: int) -> Any:
    return _numbers(pa.int64(), array, size, array[:size] != NO_DELETION_TIME)


def _booleans(flags: Any) -> Any:
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, _bits(flags)])


def _codes(array: Int32s, size: int, dictionary: Any) -> Any:
    return pa.DictionaryArray.from_arrays(_numbers(pa.int32(), array, size), dictionary, safe=False)


def _binary(ends: Int32s, data: Bytes, size: int, filled: int, valid: Any = None) -> Any:
    return pa.Array.from_buffers(pa.binary(), size, [_valid(valid), pa.py_buffer(ends[: size + 1]), pa.py_buffer(data[:filled])])


def _lists(lists: Lists, size: int, values: int, filled: int, valid: Any = None) -> Any:
    items = _binary(lists.end, lists.data, values, filled, lists.valid[:values])
    return pa.Array.from_buffers(CLUSTERING, size, [_valid(valid), pa.py_buffer(lists.list_end[: size + 1])], children=[items])


# --- ahead of time


def compile_ahead() -> float:
    """Compile everything into the cache, or load it from there; the seconds it took."""
    started = time.perf_counter()
    nothing = Places(*(np.zeros(0, np.int64) for _ in range(3)))
    _Decoder(b"\0", nothing, Schema(), 7).chunk(0, 0)
    return time.perf_counter() - started


if __name__ == "__main__":
    print(f"cells kernel ready in {compile_ahead():.1f} s")  # noqa: T201 - a command's answer
