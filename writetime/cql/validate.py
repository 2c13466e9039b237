"""Which values are none of their type, a column at a time: what `CqlType.decode` would refuse, without decoding.

Strategy: a check over lengths and bytes for each simple type, with numpy over Arrow's buffers; types made of others are decoded, value by
value, in Python. No bytes at all are a value of every type. This module knows no schema and no cells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from writetime.commitlog.vint import _EXTRA
from writetime.cql.native import NATIVE, CqlType, NativeType
from writetime.cql.types import CustomType, VectorType
from writetime.errors import DecodeError


class _Values(NamedTuple):
    """Where each value begins and ends in `data`."""

    start: Any
    end: Any
    data: Any

    @property
    def length(self) -> Any:
        return self.end - self.start


def malformed(kind: CqlType, values: Any) -> Any:
    """A numpy array of bool: True where a value of a pa.Array of binary is none of this type; nulls are values of all.

    Raises SchemaError for a user type that is not known.
    """
    found = _values(values)
    check = _check(kind)
    bad = check(found) if check is not None else _decoded(kind, values)
    bad &= found.length > 0
    return bad


def _values(array: Any) -> _Values:
    if array.type != pa.binary():
        array = array.cast(pa.binary())
    valid, offsets, data = array.buffers()
    size = len(array)
    if offsets is None or offsets.size == 0:
        return _Values(np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(0, np.uint8))
    ends = np.frombuffer(offsets, np.int32, array.offset + size + 1)[array.offset :].astype(np.int64)
    start, end = ends[:-1], ends[1:]
    if valid is not None and array.null_count:
        bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=array.offset + size, bitorder="little")[array.offset :]
        end = np.where(bits != 0, end, start)
    return _Values(start, end, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8))


def _check(kind: CqlType) -> Callable[[_Values], Any] | None:
    """The check of a type that need not be decoded."""
    if isinstance(kind, CustomType):
        return _nothing
    if isinstance(kind, NativeType):
        return _CHECKS[kind.name]
    if isinstance(kind, VectorType) and isinstance(kind.element, NativeType) and kind.element.name in _ANY_BITS:
        return _exactly(kind.fixed_length)
    return None


def _decoded(kind: CqlType, values: Any) -> Any:
    return np.array([value is not None and not _decodes(kind, value) for value in values.to_pylist()], bool)


def _decodes(kind: CqlType, value: bytes) -> bool:
    try:
        kind.decode(value)
    except DecodeError:
        return False
    return True


# --- simple types ------------------------------------------------------------------------------------------------------------------


def _nothing(values: _Values) -> Any:
    return np.zeros(len(values.start), bool)


def _anything(values: _Values) -> Any:
    return np.ones(len(values.start), bool)


def _exactly(*lengths: Any) -> Callable[[_Values], Any]:
    def check(values: _Values) -> Any:
        return ~np.isin(values.length, lengths)

    return check


def _decimal(values: _Values) -> Any:
    return values.length < 4


def _beyond_ascii(values: _Values) -> Any:
    """Values with a byte above 127."""
    high = values.data >= 0x80
    if not high.any():
        return _nothing(values)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(high)))
    return before[values.end] > before[values.start]


def _text(values: _Values) -> Any:
    bad = _beyond_ascii(values)
    for i in np.flatnonzero(bad):
        try:
            values.data[values.start[i] : values.end[i]].tobytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        bad[i] = False
    return bad


def _duration(values: _Values) -> Any:
    """Three vints, and nothing behind them."""
    at = values.start.copy()
    bad = _nothing(values)
    for _ in range(3):
        bad |= at >= values.end
        at = np.where(bad, values.start, at)
        at += 1 + _FURTHER[_at(values, at)]
    return bad | (at != values.end)


def _counter(values: _Values) -> Any:
    bad = values.length < 2
    first = np.where(bad, 0, values.start)
    entries = (_at(values, first).astype(np.int16) << 8) | _at(values, np.where(bad, 0, values.start + 1))
    start = 2 + 2 * np.abs(entries.astype(np.int64))
    return bad | (start > values.length) | ((values.length - start) % 32 != 0)


def _at(values: _Values, positions: Any) -> Any:
    """A byte each; 0 where there are none."""
    if not len(values.data):
        return np.zeros(len(positions), np.uint8)
    return values.data[np.minimum(positions, len(values.data) - 1)]


_FURTHER: Final = np.array(_EXTRA, np.int64)

_CHECKS: Final[dict[str, Callable[[_Values], Any]]] = {
    "ascii": _beyond_ascii,
    "text": _text,
    "varchar": _text,
    "blob": _nothing,
    "varint": _nothing,
    "decimal": _decimal,
    "duration": _duration,
    "inet": _exactly(4, 16),
    "counter": _counter,
    "empty": _anything,
    "boolean": _exactly(1),
    "tinyint": _exactly(1),
    "smallint": _exactly(2),
    "int": _exactly(4),
    "float": _exactly(4),
    "date": _exactly(4),
    "bigint": _exactly(8),
    "timestamp": _exactly(8),
    "double": _exactly(8),
    "time": _exactly(8),
    "uuid": _exactly(16),
    "timeuuid": _exactly(16),
}

_ANY_BITS: Final = frozenset(name for name, kind in NATIVE.items() if kind.fixed_length)
"""Types of fixed length, any bits of which are a value."""
