"""Decides by column which values are certainly valid for their type and for the sinks, without building them.

Strategy: a column's values are positions in one array of bytes. `sound` answers yes only if decoding the
value and passing it to Arrow (`writetime.events.arrow.to_arrow_value`) must succeed; a no means that the
caller has to try, which also gives the reason. It may answer no to unusual but valid values (without bytes,
for example), and never yes to invalid ones. Composite types are checked part by part, all values at once.
Types that are rare as columns are checked here value by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from spark_jobs.stages.arrow_runs import Ints
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.counters import total
from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
)
from writetime.errors import DecodeError
from writetime.events.arrow import to_arrow_value
from writetime.events.arrow_columns import INJECTIVE, WIDTHS, column
from writetime.events.key_spelling import has_spellings, is_distinct

Mask = Any
"""An array of numpy's booleans."""

_LENGTHS: Final = {**WIDTHS, "uuid": 16, "timeuuid": 16}
_BETWEEN: Final = {"varint": (1, 256), "decimal": (5, 256)}
_MAX_MS: Final = (2**63 - 1) // 1000
_MOST_PARTS: Final = 256
"""Collections of more elements are gone through one by one."""


@dataclass(frozen=True, slots=True)
class Values:
    """Values in `data` (uint8), by start and length in bytes."""

    data: Any
    start: Ints
    length: Ints

    def some(self, which: Ints | Mask) -> Values:
        return Values(self.data, self.start[which], self.length[which])

    @property
    def size(self) -> int:
        return len(self.start)

    def slices(self) -> list[bytes]:
        view = memoryview(self.data)
        ends = self.start + self.length
        return [bytes(view[start:end]) for start, end in zip(self.start.tolist(), ends.tolist(), strict=True)]

    def number(self, size: int, start: Ints | None = None) -> Ints:
        """The first `size` bytes of each value (or those at `start`) as a signed big-endian integer; the
        bytes must exist."""
        start = self.start if start is None else start
        number: Ints = self.data[start].astype(np.int64)
        if size > 1:
            number = np.where(number >= 0x80, number - 0x100, number)
        for i in range(1, size):
            number = (number << 8) | self.data[start + i]
        return number

    @classmethod
    def of(cls, array: Any) -> Self:
        """The values of a binary array; nulls have no bytes."""
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32, array.offset + len(array) + 1)[array.offset :].astype(np.int64)
        bytes_ = np.zeros(1, np.uint8) if data is None or data.size == 0 else np.frombuffer(data, np.uint8)
        return cls(bytes_, ends[:-1], np.diff(ends))


def sound(kind: CqlType, values: Values) -> Mask:
    """Which values can certainly be decoded and projected; `kind` must not be multi-cell."""
    if values.size == 0:
        return np.zeros(0, bool)
    if isinstance(kind, NativeType):
        return _native(kind, values)
    if isinstance(kind, CollectionType):
        return _collection(kind, values)
    if isinstance(kind, UdtType | TupleType):
        if isinstance(kind, UdtType) and kind.fields is None:
            return np.zeros(values.size, bool)
        fields = list(kind.known_fields.values() if isinstance(kind, UdtType) else kind.fields)
        return _fields(fields, values, exact=isinstance(kind, TupleType))
    if isinstance(kind, VectorType) and isinstance(kind.element, NativeType) and kind.element.name in ("float", "double", "int", "bigint"):
        return values.length == kind.fixed_length
    return _tried(kind, values)


def sound_elements(kind: CqlType, paths: Values, values: Values) -> Mask:
    """Which cells are certainly valid elements of a value of the multi-cell type."""
    if isinstance(kind, UdtType):
        return _udt_elements(kind, paths, values)
    if not isinstance(kind, CollectionType):
        return np.zeros(paths.size, bool)
    first, last = kind.elements[0], kind.elements[-1]
    if kind.kind == "list":
        return (paths.length == 16) & sound(first, values)
    if kind.kind == "set":
        return sound(first, paths)
    return sound(first, paths) & sound(last, values) if _may_be_key(first) else np.zeros(paths.size, bool)


def sound_contexts(values: Values) -> Mask:
    """Which values are counters that can be merged, whatever their column."""
    return np.fromiter((_merges(value) for value in values.slices()), bool, values.size)


def _merges(value: bytes) -> bool:
    try:
        total(value)
    except DecodeError:
        return False
    return True


def _udt_elements(kind: UdtType, paths: Values, values: Values) -> Mask:
    found = np.zeros(paths.size, bool)
    indexed = np.flatnonzero(paths.length == 2)
    index = paths.some(indexed).number(2)
    for number, field in enumerate((kind.fields or {}).values()):
        mine = indexed[index == number]
        found[mine] = sound(field, values.some(mine))
    return found


# --- simple types


def _native(kind: NativeType, values: Values) -> Mask:
    name, length = kind.name, values.length
    if name == "timestamp":
        found = length == 8
        milliseconds = values.some(found).number(8)
        found[found] = (milliseconds <= _MAX_MS) & (milliseconds >= -_MAX_MS)
        return found
    if name in _LENGTHS:
        return length == _LENGTHS[name]
    if name in _BETWEEN:
        least, most = _BETWEEN[name]
        return (length >= least) & (length <= most)
    if name == "inet":
        return (length == 4) | (length == 16)
    if name == "blob":
        return np.ones(values.size, bool)
    return _text(kind, values) if name in ("ascii", "text", "varchar") else _tried(kind, values)


def _text(kind: NativeType, values: Values) -> Mask:
    if row_codec.compiled("auto") is not None and column(kind, values.data, values.start, values.length) is not None:
        return np.ones(values.size, bool)
    return _tried(kind, values)


def _tried(kind: CqlType, values: Values) -> Mask:
    return np.fromiter((_fits(kind, value) for value in values.slices()), bool, values.size)


def _fits(kind: CqlType, value: bytes) -> bool:
    try:
        to_arrow_value(kind, kind.decode(value))
    except DecodeError:
        return False
    return True


# --- composite types


class _Parts:
    """Iterates over values that consist of parts with i32 lengths. `good` is cleared where errors are found;
    `at` is the position in each value."""

    def __init__(self, values: Values, start: Ints) -> None:
        self.values, self.at, self.end = values, start.copy(), values.start + values.length
        self.good: Mask = np.ones(values.size, bool)

    def next(self, which: Ints) -> tuple[Ints, Values, Ints]:
        """The next part of the given values: the values (by number) that have one, with their parts, and the
        values whose part is null."""
        here = which[self.at[which] + 4 <= self.end[which]]
        self._lose(which, here)
        length = self.values.number(4, self.at[here])
        self.at[here] += 4
        null, some = here[length < 0], here[length >= 0]
        length = length[length >= 0]
        whole = self.at[some] + length <= self.end[some]
        self._lose(some, some[whole])
        some, length = some[whole], length[whole]
        parts = Values(self.values.data, self.at[some], length)
        self.at[some] += length
        return some, parts, null

    def _lose(self, of: Ints, but: Ints) -> None:
        if len(but) < len(of):
            self.good[np.setdiff1d(of, but)] = False

    def check(self, kind: CqlType, numbers: Ints, parts: Values) -> None:
        self.good[numbers[~sound(kind, parts)]] = False


def _fields(kinds: Sequence[CqlType], values: Values, *, exact: bool) -> Mask:
    """Validate consecutive fields; trailing ones may be missing."""
    parts = _Parts(values, values.start)
    for kind in kinds:
        numbers, found, _ = parts.next(np.flatnonzero(parts.good & (parts.at < parts.end)))
        parts.check(kind, numbers, found)
    good = parts.good & (values.length > 0)
    return good & (parts.at == parts.end) if exact else good


def _collection(kind: CollectionType, values: Values) -> Mask:
    if kind.kind == "map" and not _may_be_key(kind.elements[0]):
        return _tried(kind, values)
    counted = np.flatnonzero(values.length >= 4)
    counts = np.full(values.size, -1, np.int64)
    counts[counted] = values.some(counted).number(4)
    parts = _Parts(values, values.start + 4)
    parts.good = (counts >= 0) & (counts <= _MOST_PARTS)
    for at in range(int(counts[parts.good].max(initial=0))):
        for place, element in enumerate(kind.elements):
            numbers, found, null = parts.next(np.flatnonzero(parts.good & (counts > at)))
            parts.check(element, numbers, found)
            if kind.kind == "map" and place == 0:
                parts.good[null] = False
    return parts.good & (parts.at == parts.end)


def _may_be_key(kind: CqlType) -> bool:
    return isinstance(kind, NativeType) and kind.name in INJECTIVE


# --- keys


def sound_keys(kinds: Sequence[CqlType], keys: Values) -> Mask:
    """Which partition keys can certainly be split (`writetime.events.row_values.split_partition_key`),
    projected and told apart from all others (`writetime.events.key_spelling`)."""
    if len(kinds) == 1:
        return _sound_part(kinds[0], keys) & (keys.length > 0)
    at, end = keys.start.copy(), keys.start + keys.length
    good = np.ones(keys.size, bool)
    for kind in kinds:
        good &= at + 2 <= end
        here = np.flatnonzero(good)
        length: Ints = keys.number(2, at[here]) & 0xFFFF
        whole = at[here] + 3 + length <= end[here]
        good[here[~whole]] = False
        here, length = here[whole], length[whole]
        good[here[~_sound_part(kind, Values(keys.data, at[here] + 2, length))]] = False
        at[here] += 3 + length
    return good & (at == end)


def _sound_part(kind: CqlType, values: Values) -> Mask:
    good = sound(kind, values)
    if has_spellings(kind) and good.any():
        at = np.flatnonzero(good)
        good[at] = _distinct(kind, values.some(at))
    return good


def _distinct(kind: CqlType, values: Values) -> Mask:
    """Which valid values are in the spelling that their published form stands for."""
    name = str(kind)
    if name in _EXPONENTS:
        return (values.number(WIDTHS[name]) & _EXPONENTS[name]) != _EXPONENTS[name]
    if name not in ("boolean", "varint", "decimal"):
        return np.fromiter((is_distinct(kind, value, by_type=False) for value in values.slices()), bool, values.size)
    first = values.start + (4 if name == "decimal" else 0)
    sign = values.data[first]
    if name == "boolean":
        return sign <= 1
    # No byte of a number only repeats its sign.
    second = values.data[np.minimum(first + 1, len(values.data) - 1)]
    return (first + 1 == values.start + values.length) | (sign != np.where(second & 0x80, 0xFF, 0))


_EXPONENTS: Final = {"float": 0x7F80_0000, "double": 0x7FF0_0000_0000_0000}
"""Of NaN, and of infinities."""
