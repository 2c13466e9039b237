"""One spelling for equal values: the identity of a set's element and of a map's key.

Cassandra compares elements by their type, and several types write one value in several ways: decimals 1.0 and
1.00, padded varints, booleans 01 and 02, NaNs, tuples and user types that end before their last fields, and
everything made of these. State, merge and events compare bytes. Therefore an element's path gets the one
spelling of its value wherever it comes in, from a log or from a reading, and nothing behind that has to know
types.

Strategy: two values have the same spelling exactly if `byte_comparable.encoder` encodes them alike, and the
spelling is itself a value of the type:

    decimal            no zeros at the end of a fraction; whole numbers of up to `_PLAIN` digits are written out
    varint             as few bytes as possible
    boolean, floats    true is 01; one NaN. -0.0 is not 0.0
    tuples, UDTs       up to the last field that is not null, at least one field; so it stays when a type gets fields
    others             part by part

Fields that the schema does not have yet are kept as they are. A value without bytes is none of these and stays.
What the spelling loses, and why: docs/adr/0053. This module does not know rows in state, Arrow or numba.

Source: Cassandra 3.11-6.0, db/marshal/*Type.compareCustom; db/rows/CellPath.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from writetime.cassandra.model import PartitionUpdate, Row
from writetime.cassandra.schema.model import Table, UserType
from writetime.cassandra.types.compound import read_value, write_value
from writetime.cassandra.types.integers import EXACT, to_decimal, to_integer
from writetime.cassandra.types.marshal import Component, CompositeType, DynamicCompositeType, ReversedType, class_name
from writetime.cassandra.types.native import CqlType, NativeType
from writetime.cassandra.types.types import CollectionType, TupleType, UdtType, VectorType, parse_type, read_values
from writetime.cassandra.types.vint import write_unsigned
from writetime.errors import MalformedMutation

Spell = Callable[[bytes], bytes]

_PLAIN: Final = 38
"""Whole decimals of up to that many digits are written out: 100, not 1E+2. So it is in published keys
(`writetime.events.key_spelling`)."""
_LEAST_SCALE: Final = -(2**31)
_INVALID: Final = (struct.error, IndexError, ValueError, ArithmeticError, MalformedMutation)


class ElementPaths:
    """The spelling of elements in one table's unfrozen sets and maps. `columns`: those whose elements have several.

    Raises SchemaError if a column's type cannot be parsed or, when an element is spelled, if its user type is not
    known. Bytes that are not a value of the type stay as they are: they identify only themselves."""

    def __init__(self, table: Table, types: Mapping[tuple[str, str], UserType]) -> None:
        self.columns: dict[str, Spell] = {}
        self._sizes: dict[str, int] = {}
        for column in (*table.static_columns, *table.regular_columns):
            kind = parse_type(column.type, table.keyspace, types)
            if isinstance(kind, CollectionType) and kind.multicell and kind.kind != "list":
                spell = canonical(kind.elements[0])
                if spell is not None:
                    self.columns[column.name] = _or_itself(spell)
                    self._sizes[column.name] = len(kind.elements)

    def path(self, column: str, path: bytes) -> bytes:
        spell = self.columns.get(column)
        return path if spell is None else spell(path)

    def whole(self, column: str, value: bytes) -> bytes:
        """A set or map as SELECT returns it, in one piece."""
        if column not in self.columns:
            return value
        pairs = self._sizes[column]
        try:
            parts = read_values(value, pairs)
        except _INVALID:
            return value
        spelled = (part if part is None or at % pairs else self.path(column, part) for at, part in enumerate(parts))
        return value[:4] + b"".join(map(write_value, spelled))

    def update(self, update: PartitionUpdate) -> PartitionUpdate:
        if not self.columns:
            return update
        static = update.static_row
        return replace(update, static_row=None if static is None else self._row(static), rows=tuple(self._row(row) for row in update.rows))

    def _row(self, row: Row) -> Row:
        return replace(
            row,
            cells=tuple(cell if cell.path is None else replace(cell, path=self.path(cell.column, cell.path)) for cell in row.cells),
        )


def _or_itself(spell: Spell) -> Spell:
    def path(data: bytes) -> bytes:
        try:
            return spell(data)
        except _INVALID:
            return data

    return path


def canonical(kind: CqlType) -> Spell | None:
    """The function from a type's values to their one spelling; None if each value has only one anyway.

    It raises the standard library's errors for bytes that are not a valid value of the type."""
    if isinstance(kind, NativeType):
        return _NATIVE.get(kind.name)
    if isinstance(kind, ReversedType):
        return canonical(kind.base)
    make = _MADE_OF_OTHERS.get(type(kind))
    return None if make is None else make(kind)


# --- simple types


def _boolean(data: bytes) -> bytes:
    if len(data) > 1:
        raise ValueError("a boolean is one byte")
    return data if data in (b"", b"\x00") else b"\x01"


def _real(fmt: str) -> Spell:
    nan = struct.pack(fmt, math.nan)
    return lambda data: nan if data and math.isnan(struct.unpack(fmt, data)[0]) else data


def _varint(data: bytes) -> bytes:
    padding = data[:1]
    if padding not in (b"\x00", b"\xff"):
        return data
    rest = data.lstrip(padding)
    return rest if rest and (rest[0] ^ padding[0]) < 0x80 else padding + rest


def _decimal(data: bytes) -> bytes:
    if not data:
        return data
    (scale,) = struct.unpack_from(">i", data)
    number = int.from_bytes(data[4:], "big", signed=True)
    if scale >= 0 and number % 10:
        return data[:4] + _varint(data[4:])
    number, zeros = _without_zeros(number, scale - _LEAST_SCALE)
    scale = scale - zeros if number else 0
    if -_PLAIN <= scale < 0 and abs(number) < 10 ** (_PLAIN + scale):
        number, scale = number * 10**-scale, 0
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return struct.pack(">i", scale) + number.to_bytes(size, "big", signed=True)


def _without_zeros(number: int, most: int) -> tuple[int, int]:
    """A number without the zeros at its decimal end, and how many these were; `most` of them are taken."""
    if number % 10 or not number:
        return number, 0
    decimal = to_decimal(number)
    digits = bytes(decimal.as_tuple().digits)
    zeros = min(most, len(digits) - len(digits.rstrip(b"\x00")))
    return to_integer(decimal.scaleb(-zeros, EXACT)), zeros


_NATIVE: Final[dict[str, Spell]] = {
    "boolean": _boolean,
    "float": _real(">f"),
    "double": _real(">d"),
    "varint": _varint,
    "decimal": _decimal,
}


# --- compound types


def _part(spell: Spell | None, part: bytes | None) -> bytes:
    return write_value(part if part is None or spell is None else spell(part))


def _collection(kind: CollectionType) -> Spell:
    spells = [canonical(element) for element in kind.elements]

    def spell(data: bytes) -> bytes:
        if not data:
            return data
        parts = read_values(data, len(spells))
        return data[:4] + b"".join(_part(spells[at % len(spells)], part) for at, part in enumerate(parts))

    return spell


def _fields(kinds: Iterable[CqlType]) -> Spell:
    spells = [canonical(kind) for kind in kinds]

    def spell(data: bytes) -> bytes:
        fields: list[bytes | None] = []
        pos = 0
        while pos < len(data):
            field, pos = read_value(data, pos)
            fields.append(field)
        while len(fields) > 1 and fields[-1] is None:
            fields.pop()
        return b"".join(_part(spell, field) for spell, field in zip_longest(spells[: len(fields)], fields))

    return spell


def _user_type(kind: UdtType) -> Spell:
    if kind.fields is None:
        # Fails only when a value is spelled.
        return lambda data: _fields(kind.known_fields.values())(data)
    return _fields(kind.fields.values())


def _vector(kind: VectorType) -> Spell | None:
    element, is_fixed = canonical(kind.element), kind.element.fixed_length is not None
    if element is None and is_fixed:
        return None

    def spell(data: bytes) -> bytes:
        parts = [part if element is None else element(part) for part in kind.parts(data)] if data else ()
        return b"".join(part if is_fixed else write_unsigned(len(part)) + part for part in parts)

    return spell


def _composite(kind: CompositeType) -> Spell:
    spells = [canonical(component) for component in kind.kinds]

    def spell(data: bytes) -> bytes:
        static, parts = kind.split(data)
        spelled = [
            part if each is None else part._replace(value=each(part.value)) for each, part in zip_longest(spells[: len(parts)], parts)
        ]
        return kind.join(spelled, static=static)

    return spell


def _dynamic_composite(kind: DynamicCompositeType) -> Spell:
    def component(part: Component) -> Component:
        of = kind.kind_of(part)
        spell = canonical(of)
        # An alias and the class that it stands for are one type.
        name = class_name(of).encode()
        header = struct.pack(">H", len(name)) + name if isinstance(of, NativeType) else part.header
        return part._replace(header=header, value=part.value if spell is None else spell(part.value))

    return lambda data: kind.join([component(part) for part in kind.split(data)])


_MADE_OF_OTHERS: Final[dict[type, Callable[..., Spell | None]]] = {
    CollectionType: _collection,
    TupleType: lambda kind: _fields(kind.fields),
    UdtType: _user_type,
    VectorType: _vector,
    CompositeType: _composite,
    DynamicCompositeType: _dynamic_composite,
}
