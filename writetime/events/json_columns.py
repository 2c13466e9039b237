"""Whole columns of values as JSON texts: what `converters` and `envelope.encode` make of each value, byte for byte.

Strategy: the text of a row has *parts*, columns and strings, which a kernel writes side by side (`kernels.json_text`):
text, whole numbers, booleans, times, bytes, lists of them, and structs become JSON where they are written. Real numbers
become texts by Arrow. Lists of lists or structs are written from the inside out. Types without a compiled form, and
times whose years do not have four digits, are converted value by value, as `converters` does. Must not know an
envelope. Requires numba.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from writetime.cassandra.types.types import CollectionType, CqlType, NativeType, TupleType, UdtType, VectorType
from writetime.errors import DecodeError
from writetime.events.arrow import plain_values
from writetime.events.converters import NUMBERS, JsonForm
from writetime.events.values import TEXT_KEYS, fields_of
from writetime.kernels import row_parts
from writetime.kernels.row_parts import Column, Part, elements, merged

Texts = Any
"""An Arrow array of strings without nulls."""
Parts = list[Part]
NULL: Final = "null"
_AS_NUMBER: Final = frozenset({"tinyint", "smallint", "int", "bigint", "counter", "time"})
_FROM_MS, _TO_MS = -30_610_224_000_000, 253_402_300_800_000
"""The years 1000 to 9999, ms since the epoch."""
_DAY_MS: Final = 86_400_000


def joined(parts: Iterable[Part], rows: int) -> Texts:
    """Texts of so many rows, of parts side by side. DecodeError if they have more than 2 GB."""
    try:
        offsets, content = _kernel().written(merged(parts), rows)
    except OverflowError as error:
        raise DecodeError(str(error), operation="encode events as JSON", hint="They are encoded one by one.") from error
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, content])


def listed(values: Sequence[str]) -> Texts:
    return pa.array(values, pa.string())


def as_they_are(texts: Texts) -> Part:
    """Texts that are JSON already; null is `null`."""
    return Column(row_parts.RAW, texts)


def object_of(fields: Mapping[str, str | Part | Parts]) -> Parts:
    """The parts of a JSON object with these fields."""
    parts: Parts = []
    for name, value in fields.items():
        parts += [f"{',' if parts else '{'}{quoted(name)}:", *(value if isinstance(value, list) else [value])]
    return [*parts, "}"] if parts else ["{}"]


def array_of(lists: Any, *inside: Part, brackets: str = "[]") -> Part:
    """JSON arrays of lists, or objects of maps, whose flat elements (`elements`) have these parts: no lists, and none
    that are optional."""
    return Column(row_parts.LIST, lists, inside, brackets)


def or_null(parts: Parts, rows: Any) -> Parts:
    """The parts, or `null` in rows that are null."""
    return [Column(row_parts.OPTIONAL, rows, merged(parts))] if rows.null_count else parts


class Columns:
    """The texts of columns in a form of values."""

    null: Final = NULL
    as_it_is = staticmethod(as_they_are)
    record = staticmethod(object_of)
    or_null = staticmethod(or_null)

    def __init__(self, form: JsonForm) -> None:
        self.form = form

    def values(self, kind: CqlType, column: Any) -> Texts:
        """The column's values of that type as JSON. DecodeError as by the form's converters."""
        return joined(self.parts(kind, column), len(column))

    def parts(self, kind: CqlType, column: Any) -> Parts:
        """What `values` is joined from."""
        if column.null_count == len(column):
            return [NULL]
        if isinstance(kind, NativeType):
            return [self._native(kind, column)]
        if isinstance(kind, CollectionType) and kind.kind == "map":
            return [self._map(kind, column)]
        if isinstance(kind, CollectionType | VectorType):
            element = kind.element if isinstance(kind, VectorType) else kind.elements[0]
            (values,) = elements(column)
            return [array_of(column, *self._inner(element, values))]
        if isinstance(kind, TupleType | UdtType):
            return or_null(self.fields(fields_of(kind), column), column)
        return [self._one_by_one(kind, column)]

    def fields(self, kinds: Mapping[str, CqlType], struct: Any) -> Parts:
        """The parts of objects with these fields, which the struct has in that order."""
        held = zip(kinds.items(), range(struct.type.num_fields), strict=False)
        return object_of({self.form.name(name): self.parts(kind, struct.field(at)) for (name, kind), at in held})

    def _inner(self, kind: CqlType, column: Any) -> Parts:
        """As `parts`, of elements: those that are lists or structs are joined, which is what a list may hold."""
        if not isinstance(kind, NativeType) and column.null_count < len(column):
            return [as_they_are(self.values(kind, column))]
        return self.parts(kind, column)

    def _is_quoted(self, kind: NativeType) -> bool:
        return kind.name in TEXT_KEYS or (kind.name in NUMBERS and self.form.number_mode(kind.name) == "string")

    def _native(self, kind: NativeType, column: Any) -> Part:
        if self._is_quoted(kind):
            return quotes(column)
        if kind.name in _AS_NUMBER:
            return numbers(column)
        if kind.name == "boolean":
            return booleans(column)
        if kind.name in ("timestamp", "date"):
            return self._times(kind, column)
        if kind.name in ("float", "double"):
            # Zero would be one of the numbers that Arrow writes in another way.
            values = pc.fill_null(column, 0.5).to_numpy()
            texts = _reals(_shortest(values) if kind.name == "float" else values)
            return as_they_are(pc.if_else(column.is_valid(), texts, NULL) if column.null_count else texts)
        if kind.name in ("blob", "empty"):
            return Column(row_parts.BASE64, column)
        return self._one_by_one(kind, column)

    def _times(self, kind: NativeType, column: Any) -> Part:
        is_timestamp = kind.name == "timestamp"
        values = column.view(pa.int64()) if is_timestamp else column.view(pa.int32()).cast(pa.int64())
        if self.form.times != "isostring":
            return numbers(whole_millis(values) if is_timestamp and self.form.times != "microseconds" else values)
        found = pc.min_max(values)
        millis = [value // 1000 if is_timestamp else value * _DAY_MS for value in (found["min"].as_py(), found["max"].as_py())]
        if millis[0] < _FROM_MS or millis[1] >= _TO_MS:
            return self._one_by_one(kind, column)
        return Column(row_parts.TIMESTAMP if is_timestamp else row_parts.DATE, values)

    def _map(self, kind: CollectionType, column: Any) -> Part:
        of_key, of_value = kind.elements
        keys, values = elements(column)
        if str(of_key) not in TEXT_KEYS | NUMBERS:
            return array_of(column, *object_of({"key": self._inner(of_key, keys), "value": self._inner(of_value, values)}))
        return array_of(column, quotes(keys), ":", *self._inner(of_value, values), brackets="{}")

    def _one_by_one(self, kind: CqlType, column: Any) -> Part:
        convert = self.form.converter(kind)
        values = plain_values(column)
        return as_they_are(listed([NULL if value is None else quoted(value if convert is None else convert(value)) for value in values]))


def plain(values: Any) -> Part:
    """Numbers, booleans, strings or lists of them as JSON, where null is `null`: an array, or what it is in all rows."""
    if not isinstance(values, pa.Array):
        return quoted(values)
    if pa.types.is_list(values.type):
        (inside,) = elements(values)
        return array_of(values, _plain(inside))
    column, first = _plain(values), values[0]
    alike = pc.equal(values, first) if first.is_valid else values.is_null()
    if not pc.all(alike, skip_nulls=False).as_py():
        return column
    found: str = joined([column._replace(array=column.array[:1])], 1)[0].as_py()
    return found


def _plain(column: Any) -> Column:
    if pa.types.is_boolean(column.type):
        return booleans(column)
    return numbers(column) if pa.types.is_integer(column.type) else quotes(column)


def numbers(column: Any) -> Column:
    """Whole numbers as JSON; null stays `null`."""
    return Column(row_parts.INT, column.cast(pa.int64()))


def booleans(column: Any) -> Column:
    """Booleans as JSON; null stays `null`."""
    return Column(row_parts.BOOL, column)


def quotes(column: Any) -> Column:
    """Strings as JSON; null stays `null`."""
    return Column(row_parts.TEXT, column)


def quoted(value: Any) -> str:
    """A value as JSON."""
    from writetime.events.envelope import encode

    return encode(value).decode()


@cache
def _kernel() -> Any:
    return importlib.import_module("writetime.kernels.json_text")


def whole_millis(micros: Any) -> Any:
    """Whole milliseconds of microseconds, rounded down as Python does."""
    found = pc.fill_null(micros, 0).to_numpy() // 1000
    return pa.array(found, mask=micros.is_null().to_numpy(zero_copy_only=False)) if micros.null_count else pa.array(found)


def _reals(values: Reals) -> Texts:
    """Numbers as `json_real` and `encode` write them."""
    texts = pc.cast(pa.array(values), pa.string())
    with np.errstate(invalid="ignore"):
        size = np.abs(values)
        # Arrow writes the same digits, but no fraction of a whole number, and exponents in another way.
        odd = ~((size >= _PLAIN_FROM) & (size < _PLAIN_TO)) | (np.floor(values) == values)
    if not odd.any():
        return texts
    others = [_NOT_FINITE.get(text, text) for text in map(repr, values[odd].tolist())]
    return pc.replace_with_mask(texts, pa.array(odd), listed(others))


def _shortest(values: npt.NDArray[np.float32]) -> Reals:
    """32-bit floats as the numbers that `json_float` writes: of the fewest digits, six at least, that are the float."""
    with np.errstate(invalid="ignore"):  # a NaN may be a signalling one
        found = values.astype(np.float64)
        size = np.abs(found)
        # There, six digits are fewer than a float has, and the fewest that Arrow writes are as good.
        normal = np.flatnonzero((size >= _NORMAL_FROM) & (size <= _NORMAL_TO))
    found[normal] = pc.cast(pc.cast(pa.array(values[normal]), pa.string()), pa.float64()).to_numpy()
    left = np.setdiff1d(np.flatnonzero(np.isfinite(values)), normal, assume_unique=True)
    for digits in range(6, 10):
        form = f"%.{digits}g"
        found[left] = [float(form % value) for value in values[left].tolist()]
        left = left[found[left].astype(np.float32) != values[left]]
    return found


Reals = npt.NDArray[np.float64]
_PLAIN_FROM: Final = 1e-4
_PLAIN_TO: Final = 1e10
"""Sizes that are written without an exponent by Arrow, and by Python."""
_NORMAL_FROM: Final = 1e-30
_NORMAL_TO: Final = 1e30
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
