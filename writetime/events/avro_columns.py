"""Whole columns of values as Avro data: what `converters` and fastavro make of each value, byte for byte.

Strategy: the data of a row has *parts*, columns and constants, which a kernel writes side by side (`kernels.avro_data`),
in the order of the schema of `writetime.events.avro`. Lists of lists or structs are written from the inside out. Numbers
of any size that are not text are converted value by value, as `converters` does. Must not know an envelope. Requires
numba.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from writetime.cassandra.types.types import CollectionType, CqlType, CustomType, NativeType, TupleType, UdtType, VectorType
from writetime.errors import DecodeError
from writetime.events.arrow import plain_values
from writetime.events.converters import NUMBERS, AvroForm
from writetime.events.json_columns import whole_millis
from writetime.events.values import fields_of, has_text_keys
from writetime.kernels.row_parts import BOOL, INT, LIST, OPTIONAL, RAW, REAL32, REAL64, TEXT, Column, Part, elements, merged

Data = Any
"""An Arrow array of bytes without nulls."""
Parts = list[Part]
NULL: Final = b"\0"
VALUE: Final = b"\2"
"""What comes before a value where null is allowed."""
_FORMS: Final = {"string": TEXT, "int": INT, "long": INT, "boolean": BOOL}
_ARROW: Final = {"string": pa.string(), "int": pa.int64(), "long": pa.int64(), "boolean": pa.bool_()}
_KINDS: Final = {
    **dict.fromkeys(("ascii", "text", "varchar", "inet", "uuid", "timeuuid", "varint", "decimal", "blob", "empty"), TEXT),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "counter", "time", "timestamp", "date"), INT),
    "boolean": BOOL,
    "float": REAL32,
    "double": REAL64,
}
"""What a value of a simple type is for the kernel, except durations."""


def joined(parts: Iterable[Part], rows: int) -> Data:
    """The data of so many rows, of parts side by side. DecodeError if it is more than 2 GB."""
    try:
        offsets, content = _kernel().written(merged(parts), rows)
    except OverflowError as error:
        raise DecodeError(str(error), operation="encode events as Avro", hint="They are encoded one by one.") from error
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, content])


def plain(kind: str, values: Any) -> Part:
    """A field of a simple Avro type, `?` nullable, `*` a list: an array, or what it is in all rows. DecodeError for null
    where it is not allowed."""
    name = kind.rstrip("?*")
    if kind.endswith("*"):
        (inside,) = elements(values)
        return Column(LIST, _required(values), [_field(name, inside, nullable=False)], nullable=False)
    if not isinstance(values, pa.Array):
        return _same(kind, values)
    column, first = _field(name, values, nullable=kind.endswith("?")), values[0]
    alike = pc.equal(values, first) if first.is_valid else values.is_null()
    if not pc.all(alike, skip_nulls=False).as_py():
        return column
    found: bytes = joined([column._replace(array=column.array[:1])], 1)[0].as_py()
    return found


@lru_cache(maxsize=4096)
def _same(kind: str, value: Any) -> bytes:
    """A field of a simple type that all rows have."""
    name = kind.rstrip("?")
    found: bytes = joined([_field(name, pa.array([value], _ARROW[name]), nullable=kind.endswith("?"))], 1)[0].as_py()
    return found


def _field(name: str, values: Any, *, nullable: bool) -> Column:
    return Column(_FORMS[name], (values if nullable else _required(values)).cast(_ARROW[name]), nullable=nullable)


def _required(values: Any) -> Any:
    if values.null_count:
        raise DecodeError("a field is null that must not be", operation="encode events as Avro", hint="They are encoded one by one.")
    return values


class Columns:
    """The data of columns in a form of values. Each value is a union with null, unless said otherwise."""

    null: Final = NULL

    def __init__(self, form: AvroForm) -> None:
        self.form = form

    def values(self, kind: CqlType, column: Any) -> Data:
        """The column's values of that type as Avro. DecodeError as by the form's converters."""
        return joined(self.parts(kind, column), len(column))

    @staticmethod
    def as_it_is(data: Data) -> Part:
        """Data that is Avro already."""
        return Column(RAW, data, nullable=False)

    @staticmethod
    def record(fields: Mapping[str, Parts]) -> Parts:
        """The parts of a record whose schema has these fields, in that order."""
        return [part for parts in fields.values() for part in parts]

    @staticmethod
    def or_null(parts: Parts, rows: Any) -> Parts:
        """The parts, or null in rows that are null."""
        return [Column(OPTIONAL, rows, merged(parts))] if rows.null_count else [VALUE, *parts]

    def parts(self, kind: CqlType, column: Any, *, nullable: bool = True) -> Parts:
        """What `values` is joined from. Without `nullable` there is no null among them."""
        if nullable and column.null_count == len(column):
            return [NULL]
        if isinstance(kind, NativeType):
            return self._native(kind, column, nullable)
        if isinstance(kind, CustomType):
            return [Column(TEXT, column, nullable=nullable)]
        if isinstance(kind, CollectionType | VectorType):
            return [Column(LIST, column, self._inside(kind, column), nullable=nullable)]
        assert isinstance(kind, TupleType | UdtType)
        fields = self.fields(fields_of(kind), column)
        return self.or_null(fields, column) if nullable else fields

    def fields(self, kinds: Mapping[str, CqlType], struct: Any, required: Collection[str] = ()) -> Parts:
        """The parts of records with these fields, which the struct has in that order; it may lack the last ones."""
        parts: Parts = []
        for at, (name, kind) in enumerate(kinds.items()):
            parts += self.parts(kind, struct.field(at), nullable=name not in required) if at < struct.type.num_fields else [NULL]
        return parts

    def _inside(self, kind: CollectionType | VectorType, column: Any) -> Parts:
        if isinstance(kind, CollectionType) and kind.kind == "map":
            (keys, items), (of_key, of_item) = elements(column), kind.elements
            key = [Column(TEXT, keys, nullable=False)] if has_text_keys(kind) else self._element(of_key, keys)
            return [*key, *self._element(of_item, items)]
        (values,) = elements(column)
        return self._element(kind.element if isinstance(kind, VectorType) else kind.elements[0], values)

    def _element(self, kind: CqlType, column: Any) -> Parts:
        """As `parts`, of elements: those that are lists or records are joined, which is what a list may hold."""
        parts = self.parts(kind, column)
        is_flat = all(not isinstance(part, Column) or part.kind not in (LIST, OPTIONAL) for part in parts)
        return parts if is_flat else [self.as_it_is(joined(parts, len(column)))]

    def _native(self, kind: NativeType, column: Any, nullable: bool) -> Parts:
        if kind.name == "duration":
            fields = [Column(INT, pc.fill_null(column.field(at), 0).cast(pa.int64()), nullable=False) for at in range(3)]
            return self.or_null([*fields], column) if nullable else [*fields]
        if kind.name in NUMBERS and (mode := self.form.number_mode(kind.name)) != "string":
            return self._numbers(kind, mode, column, nullable)
        if kind.name in ("uuid", "timeuuid"):
            # Avro's logical type says what its text is: there is no place for no bytes.
            column = pc.if_else(pc.equal(column, ""), None, column)
        elif kind.name == "timestamp":
            column = whole_millis(column.view(pa.int64()))
        elif kind.name == "date":
            column = column.view(pa.int32())
        return [Column(_KINDS[kind.name], column.cast(pa.int64()) if _KINDS[kind.name] == INT else column, nullable=nullable)]

    def _numbers(self, kind: NativeType, mode: str, column: Any, nullable: bool) -> Parts:
        """Numbers of any size as longs, doubles, or records of a scale and the unscaled number."""
        convert = self.form.converter(kind)
        assert convert is not None
        values = [None if value is None else convert(value) for value in plain_values(column)]
        if mode != "precise":
            form, stored = (INT, pa.int64()) if mode == "long" else (REAL64, pa.float64())
            return [Column(form, pa.array(values, stored), nullable=nullable)]
        found = pa.array(values, pa.struct([("scale", pa.int64()), ("value", pa.binary())]))
        fields: Parts = [
            Column(INT, pc.fill_null(found.field(0), 0), nullable=False),
            Column(TEXT, pc.fill_null(found.field(1), b""), nullable=False),
        ]
        return self.or_null(fields, found) if nullable else fields


@cache
def _kernel() -> Any:
    return importlib.import_module("writetime.kernels.avro_data")
