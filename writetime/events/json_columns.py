"""Whole columns of values as JSON texts, by Arrow's compute functions: what `converters` and `envelope.encode`
make of each value, byte for byte.

Strategy: the text of a row is joined from the texts of its columns, so no row becomes a Python object, and all
at once as far as possible: a text is copied whenever it is joined. Simple types are cast; text is quoted, and
only what holds a character that JSON escapes goes through `encode`. Lists, maps and structs are joined from the
texts of their elements. Types without a compiled form, and times whose years do not have four digits, are
converted value by value, as `converters` does. Must not know an envelope.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from writetime.cassandra.types.types import CollectionType, CqlType, NativeType, TupleType, UdtType, VectorType
from writetime.events.arrow import plain_values
from writetime.events.converters import NUMBERS, JsonForm
from writetime.events.values import TEXT_KEYS, fields_of

Texts = Any
"""An Arrow array of strings without nulls."""
Parts = list[Any]
"""What the text of each row is joined from: texts, and plain strings that are the same in all rows."""
NULL: Final = "null"
_AS_NUMBER: Final = frozenset({"tinyint", "smallint", "int", "bigint", "counter", "time"})
_ESCAPED: Final = r'["\\\x00-\x1f]'
_FROM_MS, _TO_MS = -30_610_224_000_000, 253_402_300_800_000
"""The years 1000 to 9999, ms since the epoch."""
_DAY_MS: Final = 86_400_000


def joined(parts: Iterable[Any], rows: int) -> Texts:
    """Texts of so many rows and plain strings, side by side."""
    few: Parts = []
    for part in parts:
        if few and isinstance(part, str) and isinstance(few[-1], str):
            few[-1] += part
        else:
            few.append(part)
    if len(few) == 1:
        return listed(few * rows) if isinstance(few[0], str) else few[0]
    return pc.binary_join_element_wise(*few, "")


def listed(values: Sequence[str]) -> Texts:
    return pa.array(values, pa.string())


def or_null(texts: Texts, present: Any) -> Texts:
    """The texts of what is present, else `null`."""
    return pc.if_else(present, texts, NULL)


def object_of(fields: Mapping[str, Any]) -> Parts:
    """The parts of a JSON object with these fields; a field is texts, parts, or one text for all rows."""
    parts: Parts = []
    for name, value in fields.items():
        parts += [f"{',' if parts else '{'}{quoted(name)}:", *(value if isinstance(value, list) else [value])]
    return [*parts, "}"] if parts else ["{}"]


def array_of(lists: Any, elements: Texts, brackets: str = "[]") -> Texts:
    """JSON arrays of lists whose flat elements have these texts; `null` for a null list."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    held = pa.ListArray.from_arrays(pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32()), elements)
    return or_null(joined([brackets[0], pc.binary_join(held, ","), brackets[1]], len(lists)), lists.is_valid())


class Columns:
    """The texts of columns in a form of values."""

    def __init__(self, form: JsonForm) -> None:
        self.form = form

    def parts(self, kind: CqlType, column: Any) -> Parts:
        """As `texts`, of which most are not joined yet."""
        if column.null_count == len(column):
            return [NULL]
        if not column.null_count and isinstance(kind, NativeType) and self._is_quoted(kind):
            return quote_parts(column)
        if not column.null_count and isinstance(kind, TupleType | UdtType):
            return self.fields(fields_of(kind), column)
        return [self.texts(kind, column)]

    def texts(self, kind: CqlType, column: Any) -> Texts:
        """The column's values of that type as JSON. DecodeError as by the form's converters."""
        if column.null_count == len(column):
            return listed([NULL] * len(column))
        if isinstance(kind, NativeType):
            return self._native(kind, column)
        if isinstance(kind, CollectionType) and kind.kind == "map":
            return self._map(kind, column)
        if isinstance(kind, CollectionType | VectorType):
            element = kind.element if isinstance(kind, VectorType) else kind.elements[0]
            return array_of(column, self.texts(element, column.flatten()))
        if isinstance(kind, TupleType | UdtType):
            return or_null(joined(self.fields(fields_of(kind), column), len(column)), column.is_valid())
        return self._one_by_one(kind, column)

    def fields(self, kinds: Mapping[str, CqlType], struct: Any) -> Parts:
        """The parts of objects with these fields, which the struct has in that order."""
        held = zip(kinds.items(), range(struct.type.num_fields), strict=False)
        return object_of({self.form.name(name): self.parts(kind, struct.field(at)) for (name, kind), at in held})

    def _is_quoted(self, kind: NativeType) -> bool:
        return kind.name in TEXT_KEYS or (kind.name in NUMBERS and self.form.number_mode(kind.name) == "string")

    def _native(self, kind: NativeType, column: Any) -> Texts:
        if self._is_quoted(kind):
            return quotes(column)
        if kind.name in _AS_NUMBER:
            return numbers(column)
        if kind.name == "boolean":
            return booleans(column)
        if kind.name in ("timestamp", "date"):
            return self._times(kind, column)
        if kind.name in ("float", "double"):
            values = pc.fill_null(column, 0).to_numpy()
            return or_null(_reals(_shortest(values) if kind.name == "float" else values), column.is_valid())
        if kind.name in ("blob", "empty"):
            values = column.to_pylist()
            return listed([NULL if value is None else f'"{b2a_base64(value, newline=False).decode()}"' for value in values])
        return self._one_by_one(kind, column)

    def _times(self, kind: NativeType, column: Any) -> Texts:
        if kind.name == "timestamp":
            micros = pc.fill_null(column.view(pa.int64()), 0).to_numpy()
            millis = micros // 1000 if self.form.times != "microseconds" else micros
        else:
            millis = pc.fill_null(column.view(pa.int32()), 0).to_numpy().astype(np.int64) * _DAY_MS
        if self.form.times != "isostring":
            return or_null(numbers(pa.array(millis if kind.name == "timestamp" else millis // _DAY_MS)), column.is_valid())
        if ((millis < _FROM_MS) | (millis >= _TO_MS)).any():
            return self._one_by_one(kind, column)
        # 2026-11-22 08:13:55.551
        texts = pc.cast(pa.array(millis, pa.timestamp("ms")), pa.string())
        day = pc.utf8_slice_codeunits(texts, 0, 10)
        parts = [day, "T", pc.utf8_slice_codeunits(texts, 11, 23), "Z"] if kind.name == "timestamp" else [day]
        return or_null(joined(['"', *parts, '"'], len(column)), column.is_valid())

    def _map(self, kind: CollectionType, column: Any) -> Texts:
        of_key, of_value = kind.elements
        stored = column.type
        lists = column.cast(pa.list_(pa.struct([stored.key_field, stored.item_field])))
        entries = lists.flatten()
        keys, values = entries.field(0), self.texts(of_value, entries.field(1))
        if str(of_key) not in TEXT_KEYS | NUMBERS:
            return array_of(lists, joined(object_of({"key": self.texts(of_key, keys), "value": values}), len(keys)))
        return array_of(lists, joined([*quote_parts(keys), ":", values], len(keys)), "{}")

    def _one_by_one(self, kind: CqlType, column: Any) -> Texts:
        convert = self.form.converter(kind)
        values = plain_values(column)
        return listed([NULL if value is None else quoted(value if convert is None else convert(value)) for value in values])


def numbers(column: Any) -> Texts:
    """Whole numbers as JSON; null stays `null`."""
    return pc.fill_null(pc.cast(column, pa.string()), NULL)


def booleans(column: Any) -> Texts:
    """Booleans as JSON; null stays `null`."""
    return pc.fill_null(pc.if_else(column, "true", "false"), NULL)


def same_or(texts: Callable[[Any], Texts], column: Any) -> Any:
    """The texts of a column; one text if all its values are the same."""
    one = texts(column[:1])[0].as_py()
    alike = pc.equal(column, column[0]) if column[0].is_valid else column.is_null()
    return one if pc.all(alike, skip_nulls=False).as_py() else texts(column)


def quotes(column: Any) -> Texts:
    """Strings as JSON; null stays `null`."""
    return pc.fill_null(joined(quote_parts(column), len(column)), NULL)


def quote_parts(column: Any) -> Parts:
    """As `quotes`, but a null stays null."""
    if not _may_be_escaped(column):
        return ['"', column, '"']
    special = pc.fill_null(pc.match_substring_regex(column, _ESCAPED), False)
    if not pc.any(special).as_py():
        return ['"', column, '"']
    # Without the quotation marks, which are joined with what is around them.
    escaped = [quoted(text)[1:-1] for text in column.filter(special).to_pylist()]
    return ['"', pc.replace_with_mask(column, special, listed(escaped)), '"']


def _may_be_escaped(column: Any) -> bool:
    """Whether any string may hold a character that JSON escapes."""
    _, offsets, content = column.buffers()
    if not len(column) or content is None:
        return False
    begin, end = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]].tolist()
    found = content.slice(begin, end - begin).to_pybytes()
    return b'"' in found or b"\\" in found or bool((np.frombuffer(found, np.uint8) < ord(" ")).any())


def quoted(value: Any) -> str:
    """A value as JSON."""
    from writetime.events.envelope import encode

    return encode(value).decode()


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
