"""Spark's `xxhash64` of key columns, of Arrow arrays: which publisher a key has must be the same whoever
reads the row.

Strategy: Spark hashes the columns of a row one after the other, each with the hash before it as its seed, and
skips nulls; a value is hashed as its bytes (numbers in four or eight bytes, little-endian). The library
`xxhash` does the rest. Source: Spark's XxHash64Function and HashExpression. Property-tested against Spark.
Must not know what the columns are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

_SEED: Final = 42
"""Of the first column (`XxHash64`)."""


def is_hashable(kind: pa.DataType) -> bool:
    """Whether values of that type are hashed here."""
    return _bytes_of(kind) is not None


def hashes(columns: Iterable[pa.Array], rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """`xxhash64` of these columns of as many rows, as signed numbers. TypeError for a type that `is_hashable`
    denies."""
    found = [_SEED] * rows
    for column in columns:
        if (as_bytes := _bytes_of(column.type)) is None:
            raise TypeError(f"xxhash64 of {column.type}")
        values = as_bytes(column)
        if column.null_count:
            present = column.is_valid().to_pylist()
            found = [xxh64_intdigest(value, seed) if valid else seed for value, seed, valid in zip(values, found, present, strict=True)]
        else:
            found = [*map(xxh64_intdigest, values, found)]
    return np.array(found, np.uint64).view(np.int64)


_ToBytes = Callable[[pa.Array], Iterable[Any]]


def _bytes_of(kind: pa.DataType) -> _ToBytes | None:
    """How values of a type become the bytes that Spark hashes; None: not here."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return lambda column: column.cast(pa.binary()).to_pylist()
    if pa.types.is_boolean(kind) or pa.types.is_date32(kind) or kind in (pa.int8(), pa.int16(), pa.int32()):
        return lambda column: _slices(column.cast(pa.int32()), "<i4")
    if pa.types.is_timestamp(kind) or kind == pa.int64():
        return lambda column: _slices(column.cast(pa.int64()), "<i8")
    return None


def _slices(numbers: pa.Array, layout: str) -> Iterable[bytes]:
    array = numbers.fill_null(0).to_numpy().astype(layout)
    whole, width = array.tobytes(), array.itemsize
    return (whole[at : at + width] for at in range(0, len(whole), width))
