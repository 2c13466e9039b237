"""Keys of many rows at once, compiled: the twin of `byte_comparable.RowKeys.key` for clusterings of simple types.

Strategy: one pass over the values of each row. Types whose order needs more than their bytes' signs, versions or
escapes have no code here (`row_keys` returns None), and a value that is not valid for its type gives no key (null): the
twin then says why. Source of the encodings: `writetime.cassandra.types.byte_comparable`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.native import NativeType
from writetime.cassandra.types.types import parse_type
from writetime.kernels.compiled import Bytes, Int32s, Ints, compiled, compiled_and_kept
from writetime.kernels.pack import Blobs
from writetime.kernels.pointers import call, reader
from writetime.kernels.row_batches import _blobs, _valid

SOURCES: Final = ("kernels/clustering_keys.py", "kernels/pack.py", "kernels/rows.py", "cassandra/merge/row_codec.py")

kept: Callable[[Any], Any] = partial(compiled_and_kept, further=SOURCES)

_SIGNED, _ESCAPED, _UUID, _TIMEUUID = range(4)
_SIZES: Final = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "timestamp": 8}
_CODES: Final = {
    **dict.fromkeys(_SIZES, _SIGNED),
    **dict.fromkeys(("ascii", "text", "varchar", "blob", "date", "time", "inet"), _ESCAPED),
    "uuid": _UUID,
    "timeuuid": _TIMEUUID,
}
_MOST_BYTES: Final = (1 << 31) - 1
_u8: Any = np.uint8
_u64: Any = np.uint64


def row_keys(table: Table, types: Mapping[tuple[str, str], UserType], clusterings: Any) -> Any:
    """The keys (binary) of rows with these clusterings (lists of binary, all as long as the table's clustering); null
    where a value is not valid. None if the table has a type without a code, or the keys are too long for one array."""
    found = [_code(column, table, types) for column in table.clustering]
    codes = [code for code in found if code is not None]
    if len(codes) < len(found):
        return None
    rows, columns = len(clusterings), len(codes)
    values = clusterings.flatten()
    at, length, data = _blobs(values)
    room = 2 * rows + 4 * len(values) + 2 * int(length.sum())
    if room > _MOST_BYTES:
        return None
    if len(values) != rows * columns:
        raise ValueError(f"{len(values)} values are not {columns} for each of {rows} rows")
    code, size, descending = (np.array(each, np.int64) for each in zip(*codes, (0, 0, 0), strict=True))
    end, out, good = np.zeros(rows + 1, np.int32), np.empty(room + 1, np.uint8), np.zeros(rows, np.uint8)
    call(run, Keying(rows, columns, Blobs(at, length, data), _valid(values), code, size, descending, end, out, good))
    bitmap = None if good.all() else pa.py_buffer(np.packbits(good, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), rows, [bitmap, pa.py_buffer(end), pa.py_buffer(out[: end[-1]])])


def _code(column: Column, table: Table, types: Mapping[tuple[str, str], UserType]) -> tuple[int, int, int] | None:
    kind = parse_type(column.type, table.keyspace, types)
    if not isinstance(kind, NativeType) or kind.name not in _CODES:
        return None
    return _CODES[kind.name], _SIZES.get(kind.name, 0), int(column.descending)


class Keying(NamedTuple):
    """Arguments of `run`: values row by row, `columns` each; by column its code, its size and whether it descends; room for
    the keys, and for whether there is one (`good`)."""

    rows: int
    columns: int
    values: Blobs
    there: Bytes
    code: Ints
    size: Ints
    descending: Ints
    end: Int32s
    out: Bytes
    good: Bytes


_keying = reader(Keying)


@kept
def run(arguments: Ints) -> None:
    this = _keying(arguments)
    for row in range(this.rows):
        start = this.end[row]
        end = _key(this, row, start)
        this.good[row] = end >= 0
        this.end[row + 1] = end if end >= 0 else start


@compiled
def _key(this: Keying, row: int, pos: int) -> int:
    """Write the key of a row; its end, or -1 if a value is not valid."""
    out, values = this.out, this.values
    out[pos] = 1
    pos += 1
    for column in range(this.columns):
        value = row * this.columns + column
        if not this.there[value]:
            out[pos] = 1
            pos += 1
            continue
        out[pos] = 2
        start = pos + 1
        pos = _value(out, start, values.data, values.at[value], values.length[value], this.code[column], this.size[column])
        if pos < 0:
            return pos
        if this.descending[column]:
            for i in range(start, pos):
                out[i] ^= 0xFF
    out[pos] = 2
    return pos + 1


@compiled
def _value(out: Bytes, pos: int, data: Bytes, at: int, length: int, code: int, size: int) -> int:
    if code == _ESCAPED:
        return _escaped(out, pos, data, at, length)
    if length == 0:
        out[pos] = 0
        return pos + 1
    out[pos] = 1
    pos += 1
    if code == _SIGNED:
        if length != size:
            return -1
        for i in range(length):
            out[pos + i] = data[at + i]
        out[pos] ^= 0x80
        return pos + length
    if length != 16:
        return -1
    return _uuid(out, pos, data, at, code)


@compiled
def _escaped(out: Bytes, pos: int, data: Bytes, at: int, length: int) -> int:
    for i in range(length):
        out[pos] = data[at + i]
        pos += 1
        if data[at + i] == 0:
            out[pos] = 0xFF
            pos += 1
    out[pos] = 0
    out[pos + 1] = 0
    return pos + 2


@compiled
def _uuid(out: Bytes, pos: int, data: Bytes, at: int, code: int) -> int:
    high = _u64(0)
    for i in range(8):
        high = high << _u64(8) | _u64(data[at + i])
    version = _u64(data[at + 6]) & _u64(0xF0)
    if code == _TIMEUUID or version == _u64(0x10):
        first = (high & _u64(0x0FFF)) << _u64(48) | (high >> _u64(16) & _u64(0xFFFF)) << _u64(32) | high >> _u64(32)
    else:
        first = (high >> _u64(16)) << _u64(12) | high & _u64(0x0FFF)
    turned = _u8(0)
    if code == _TIMEUUID:
        turned = _u8(0x80)
    else:
        first |= version << _u64(56)
    for i in range(8):
        out[pos + i] = _u8(first >> _u64(8 * (7 - i)) & _u64(0xFF))
        out[pos + 8 + i] = data[at + 8 + i] ^ turned
    return pos + 16


def compile_ahead() -> float:
    """Compile everything into the cache, or load it from there; the seconds it took."""
    started = perf_counter()
    nothing, flags = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    blobs = Blobs(nothing, nothing, flags)
    call(run, Keying(0, 0, blobs, flags, nothing, nothing, nothing, np.zeros(1, np.int32), flags, flags))
    return perf_counter() - started


if __name__ == "__main__":
    print(f"clustering keys kernel ready in {compile_ahead():.1f} s")  # noqa: T201 - a command's answer
