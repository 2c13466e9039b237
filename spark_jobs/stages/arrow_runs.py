"""Runs of equal values in sorted record batches, and concatenation of binary columns: the Arrow and numpy
helpers that the stages share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Shard = tuple[bytes | None, int | None]


def starts(batch: Any, columns: Sequence[str]) -> Ints:
    """The rows that differ from the row before in any of the columns."""
    size = batch.num_rows
    changes = np.zeros(size, bool)
    changes[:1] = True
    for name in columns:
        column = batch.column(name)
        filled = column.fill_null(b"" if pa.types.is_binary(column.type) else -1) if column.null_count else column
        if size > 1:
            changes[1:] |= pc.not_equal(filled.slice(1), filled.slice(0, size - 1)).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changes)


def by_shard(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Shard, Iterator[pa.RecordBatch]]]:
    """The rows of each (table_id, bucket), from batches that are sorted by it."""
    yield from _runs(batches, ("table_id", "bucket"))


def by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, Iterator[pa.RecordBatch]]]:
    """The rows of each table_id, from batches that are sorted by it."""
    for (table_id,), run in _runs(batches, ("table_id",)):
        yield table_id, run


def _runs(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[tuple[Any, Iterator[pa.RecordBatch]]]:
    def parts() -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        for batch in batches:
            begins = starts(batch, columns).tolist()
            for start, end in zip(begins, [*begins[1:], batch.num_rows], strict=True):
                piece = batch.slice(start, end - start)
                yield tuple(piece[name][0].as_py() for name in columns), piece

    for run, group in groupby(parts(), key=lambda pair: pair[0]):
        yield run, (piece for _, piece in group)


def whole(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def fixed(values: npt.NDArray[np.uint8]) -> Any:
    """A binary array from rows of bytes of equal length."""
    size, width = values.shape
    ends = np.arange(size + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), size, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values))])


def lengths(array: Any) -> Ints:
    """Bytes of each value of a binary array; 0 for null."""
    return pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def record_keys(keys: Any) -> Any:
    """Record keys of the heads of partitions, as `writetime.cassandra.types.byte_comparable.record_key`."""
    prefix = fixed(lengths(keys).astype(">u4").view(np.uint8).reshape(-1, 4))
    return joined(prefix, keys)


def joined(left: Any, right: Any) -> Any:
    """The concatenated values of two binary arrays."""
    return pc.binary_join_element_wise(left, right, pa.scalar(b"", pa.binary()))


def without_prefix(array: Any, size: int) -> Any:
    """A binary array (no nulls) without the first `size` bytes of each value. pyarrow's binary_slice fails on
    arrays with an offset."""
    sizes = lengths(array) - size
    offsets, data = array.buffers()[1:]
    starts_ = np.frombuffer(offsets, np.int32, array.offset + len(array) + 1)[array.offset : -1].astype(np.int64) + size
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    places = np.arange(ends[-1]) + np.repeat(starts_ - ends[:-1], sizes)
    kept = np.frombuffer(data, np.uint8)[places] if len(places) else np.zeros(0, np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(array), [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(kept)])
