"""CQL values by column: from byte offsets to an Arrow array, without a Python object per value.

Strategy: compiled code (`kernel`) decodes simple values and returns the offsets of nested ones, which are
columns again. Equivalent to `arrow.arrow_converter` on `CqlType.decode`. Returns None for unsupported types
and invalid values; the caller then converts row by row, which reports the error. Requires numba.
"""

from __future__ import annotations

import importlib
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from writetime.cassandra.types.native import NATIVE
from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
)
from writetime.events.arrow import _MAX_ARROW_MS
from writetime.events.arrow import arrow_type as _arrow_type

Ints = npt.NDArray[np.int64]
Data = npt.NDArray[np.uint8]

WIDTHS: Final = {
    "boolean": 1,
    "tinyint": 1,
    "smallint": 2,
    "int": 4,
    "bigint": 8,
    "float": 4,
    "double": 8,
    "timestamp": 8,
    "date": 4,
    "time": 8,
}
"""Size in bytes of numeric values; zero-length values are null."""
BYTES: Final = frozenset({"ascii", "text", "varchar", "blob"})
TEXTS: Final = ("uuid", "timeuuid", "inet", "decimal")
INJECTIVE: Final = frozenset({*BYTES, "tinyint", "smallint", "int", "bigint", "timestamp", "date", "time", "uuid", "timeuuid"})
"""Types whose values stay distinct in every output format, except zero-length ones: safe as map keys."""


arrow_type: Final = lru_cache(maxsize=4096)(_arrow_type)
"""Cached: few types are requested often."""


@cache
def _kernel() -> Any:
    return importlib.import_module("writetime.kernels.values")


def column(kind: CqlType, data: Data, at: Ints, length: Ints) -> Any:
    """The array of the values at offsets `at` of `data` with `length` bytes, -1 for null; or None."""
    if isinstance(kind, NativeType):
        if kind.name == "varint":
            return _integers(data, at, length)
        if kind.name in WIDTHS:
            return _numbers(kind, data, at, length)
        return _texts(kind, data, at, length) if kind.name in BYTES or kind.name in TEXTS else None
    if isinstance(kind, UdtType | TupleType):
        return _structs(kind, data, at, length)
    if isinstance(kind, CollectionType):
        return _collections(kind, data, at, length)
    if isinstance(kind, VectorType):
        return _vectors(kind, data, at, length)
    return _texts(NATIVE["blob"], data, at, length)


def numbers(width: int, data: Data, at: Ints, length: Ints) -> tuple[Ints, Data] | None:
    """Signed integers of `width` bytes (0: up to eight), and 1 for each non-null one."""
    kernel = _kernel()
    out, valid, n = np.empty(len(at), np.int64), np.empty(len(at), np.uint8), np.zeros(2, np.int64)
    nothing = np.empty(1, np.int32)
    kernel.call(kernel.run, kernel.Reading(kernel.NUMBERS, len(at), *_places(at, length), data, width, out, valid, nothing, valid, n))
    return None if n[kernel.OTHERS] else (out, valid)


def _places(at: Ints, length: Ints) -> tuple[Ints, Ints]:
    return np.ascontiguousarray(at), np.ascontiguousarray(length)


def _numbers(kind: NativeType, data: Data, at: Ints, length: Ints) -> Any:
    found = numbers(WIDTHS[kind.name], data, at, length)
    return None if found is None else _of_numbers(kind, *found)


def _integers(data: Data, at: Ints, length: Ints) -> Any:
    """varint, as text."""
    kernel, rows = _kernel(), len(at)
    out, valid, n = np.empty(2 * rows, np.int64), np.empty(rows, np.uint8), np.zeros(2, np.int64)
    nothing = np.empty(1, np.int32)
    kernel.call(kernel.run, kernel.Reading(kernel.WIDE, rows, *_places(at, length), data, 0, out, valid, nothing, valid, n))
    if n[kernel.OTHERS]:
        return None
    narrow = np.array_equal(out[1::2], out[::2] >> 63)
    text = (_array(pa.int64(), out[::2], valid) if narrow else _array(pa.decimal128(38, 0), out, valid)).cast(pa.string())
    return pc.if_else(pa.array(length == 0), pa.scalar(""), text) if np.any(length == 0) else text


def _of_numbers(kind: NativeType, out: Ints, valid: Data) -> Any:
    made = arrow_type(kind)
    if kind.name == "boolean":
        return _array(made, np.packbits(out != 0, bitorder="little"), valid)
    if kind.name == "float":
        bits = out.astype(np.uint32)
        # A Python float turns signaling NaNs into quiet ones.
        return _array(made, np.where(np.isnan(bits.view(np.float32)), bits | np.uint32(0x00400000), bits), valid)
    if kind.name == "timestamp":
        return _array(made, out * 1000, valid) if np.all(np.abs(out) <= _MAX_ARROW_MS) and np.all(out != -(2**63)) else None
    if kind.name == "date":
        return _array(made, ((out & 0xFFFFFFFF) - (1 << 31)).astype(np.int32), valid)
    return _array(made, out if made.bit_width == 64 else out.astype(np.int32), valid)


def _texts(kind: NativeType, data: Data, at: Ints, length: Ints) -> Any:
    kernel = _kernel()
    longest = {"uuid": kernel.UUID_TEXT, "timeuuid": kernel.UUID_TEXT, "inet": kernel.INET_TEXT, "decimal": kernel.DECIMAL_TEXT}
    tasks = {"uuid": kernel.UUIDS, "timeuuid": kernel.UUIDS, "inet": kernel.INETS, "decimal": kernel.DECIMALS}
    there = length > 0
    room = int(length[there].sum()) if kind.name in BYTES else int(there.sum()) * longest[kind.name]
    if room >= 1 << 31:
        return None
    end, text, n = np.zeros(len(at) + 1, np.int32), np.empty(room + 1, np.uint8), np.zeros(2, np.int64)
    valid, nothing = np.empty(len(at), np.uint8), np.empty(1, np.int64)
    task = tasks.get(kind.name, kernel.BYTES)
    kernel.call(kernel.run, kernel.Reading(task, len(at), *_places(at, length), data, 0, nothing, valid, end, text, n))
    if n[kernel.OTHERS] or (kind.name == "ascii" and n[kernel.HIGHEST] >= 0x80):
        return None
    made = pa.Array.from_buffers(arrow_type(kind), len(at), [_bitmap(valid), pa.py_buffer(end), pa.py_buffer(text[: end[-1]])])
    if n[kernel.HIGHEST] >= 0x80 and pa.types.is_string(made.type):
        try:
            made.validate(full=True)
        except pa.ArrowInvalid:
            return None
    return made


def _structs(kind: UdtType | TupleType, data: Data, at: Ints, length: Ints) -> Any:
    kernel, rows = _kernel(), len(at)
    kinds = list(kind.known_fields.values()) if isinstance(kind, UdtType) else list(kind.fields)
    part_at, part_length = (np.empty((len(kinds), rows), np.int64) for _ in range(2))
    nothing, n = np.empty(1, np.int32), np.zeros(2, np.int64)
    exact = int(isinstance(kind, TupleType))
    places = *_places(at, length), data
    kernel.call(kernel.run, kernel.Taking(kernel.FIELDS, rows, *places, len(kinds), exact, part_at, part_length, nothing, n))
    if n[kernel.OTHERS]:
        return None
    return structs(kind, data, part_at, part_length, length > 0)


def structs(kind: UdtType | TupleType, data: Data, at: Ints, length: Ints, there: npt.NDArray[np.bool_]) -> Any:
    """The array of user types or tuples of which it is known, by field and row, where the fields stand; or
    None."""
    kinds = list(kind.known_fields.values()) if isinstance(kind, UdtType) else list(kind.fields)
    parts = [column(part, data, *places) for part, *places in zip(kinds, at, length, strict=True)]
    if any(part is None for part in parts):
        return None
    return pa.StructArray.from_arrays(parts, fields=list(arrow_type(kind)), mask=None if there.all() else pa.array(~there))


def _collections(kind: CollectionType, data: Data, at: Ints, length: Ints) -> Any:
    kernel, rows, per = _kernel(), len(at), len(kind.elements)
    room = int(np.maximum(length, 0).sum()) // 4 + 1
    part_at, part_length = (np.empty(room, np.int64) for _ in range(2))
    end, n = np.zeros(rows + 1, np.int32), np.zeros(2, np.int64)
    places = *_places(at, length), data
    kernel.call(kernel.run, kernel.Taking(kernel.ELEMENTS, rows, *places, per, 0, part_at, part_length, end, n))
    if n[kernel.OTHERS]:
        return None
    total = per * int(end[-1])
    parts = [(part_at[i:total:per], part_length[i:total:per]) for i in range(per)]
    return collections(kind, data, parts, end, length > 0)


def collections(kind: CollectionType, data: Data, places: list[tuple[Ints, Ints]], end: Any, there: npt.NDArray[np.bool_]) -> Any:
    """The array of lists, sets or maps of which it is known where their elements (or keys, and values) stand,
    one after the other, and how many there are up to the `end` of each row; or None. Of keys that could
    become one, one by one tells."""
    if kind.kind == "map" and str(kind.elements[0]) not in INJECTIVE:
        return None
    parts = [column(element, data, *at) for element, at in zip(kind.elements, places, strict=True)]
    if any(part is None for part in parts) or (kind.kind == "map" and parts[0].null_count):
        return None
    made = arrow_type(kind)
    entries = parts[0] if kind.kind != "map" else pa.StructArray.from_arrays(parts, fields=[made.key_field, made.item_field])
    return pa.Array.from_buffers(made, len(there), [_bitmap(there), pa.py_buffer(end)], children=[entries])


def _vectors(kind: VectorType, data: Data, at: Ints, length: Ints) -> Any:
    width, there = kind.element.fixed_length, length > 0
    if not width or np.any(length[there] != width * kind.dimension):
        return None
    places = (at[there][:, None] + width * np.arange(kind.dimension)).ravel()
    end = np.concatenate((np.zeros(1, np.int32), np.cumsum(there * kind.dimension, dtype=np.int32)))
    elements = column(kind.element, data, places, np.full(len(places), width))
    if elements is None:
        return None
    return pa.Array.from_buffers(arrow_type(kind), len(at), [_bitmap(there), pa.py_buffer(end)], children=[elements])


def _array(kind: pa.DataType, values: Any, valid: Data) -> Any:
    return pa.Array.from_buffers(kind, len(valid), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(values))])


def _bitmap(valid: Any) -> Any:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
