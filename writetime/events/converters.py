"""Values of warehouse columns as event values: one form for JSON, one for Avro, compiled from the CQL type.

Input: plain values from `arrow.plain_values` (timestamps in µs, dates in days, structs as dicts ordered by
position, maps as lists of pairs). Output: values for `json.dumps` or fastavro. The forms are those of
`writetime.events.json` and `writetime.events.avro`, with two differences in JSON: a zero-length value is what
the warehouse holds for it, and maps whose keys are numbers of any size are objects, for these keys are text.
`Numbers` selects the form of varint and decimal, except in the keys of such a map:

    string     their digits, exact
    precise    {"scale", "value"}: the unscaled number in two's complement, big-endian (Debezium's VariableScaleDecimal), exact
    double     the nearest double

`Varints` may be another form for varint (Debezium's `varint.handling.mode`): one of these, or `long`, a number
of 64 bits; a larger one is a DecodeError.

`Times` selects the JSON form of timestamp and date (Debezium's `time.precision.mode`). A time of day is a number
of nanoseconds in each:

    isostring      texts: 2026-11-22T08:13:55.551Z, 2026-11-22
    adaptive       milliseconds and days since the epoch
    microseconds   microseconds and days since the epoch

Must not know an envelope or a sink.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, Literal

from writetime.cassandra.types.integers import exponent_of, unscaled
from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    CustomType,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
)
from writetime.errors import DecodeError
from writetime.events.naming import to_avro
from writetime.events.values import (
    TEXT_KEYS,
    fields_of,
    iso_date,
    iso_timestamp,
    json_float,
    json_real,
    parts_of,
    to_base64,
)

Numbers = Literal["string", "precise", "double"]
Varints = Literal["string", "precise", "double", "long"]
Times = Literal["isostring", "adaptive", "microseconds"]
Convert = Callable[[Any], Any]
_LONG_DIGITS: Final = len(str(-(2**63)))
NUMBERS: Final = frozenset({"varint", "decimal"})
"""Types of numbers of any size."""


class Form:
    """A form of values. Subclasses define simple values, maps and field names."""

    bytes_of: Convert | None = None
    """The conversion of bytes; None: unchanged."""

    def __init__(self, numbers: Numbers = "string", varints: Varints | None = None) -> None:
        self._modes: dict[str, Varints] = {"decimal": numbers, "varint": varints or numbers}

    def number_mode(self, name: str) -> Varints:
        """The form of varint or decimal."""
        return self._modes[name]

    def name(self, cql: str) -> str:
        return cql

    def converter(self, kind: CqlType) -> Convert | None:
        """The conversion of a non-null value of the type; None: unchanged."""
        if isinstance(kind, NativeType):
            mode = self.number_mode(kind.name) if kind.name in NUMBERS else "string"
            return self.native(kind) if mode == "string" else self._number(mode)
        if isinstance(kind, CustomType):
            return self.bytes_of
        if isinstance(kind, CollectionType) and kind.kind == "map":
            return self.map(*kind.elements)
        if isinstance(kind, CollectionType | VectorType):
            return _each(self.converter(kind.element if isinstance(kind, VectorType) else kind.elements[0]))
        assert isinstance(kind, TupleType | UdtType)
        return self.fields(fields_of(kind))

    def fields(self, kinds: Mapping[str, CqlType]) -> Convert:
        """The fields by name, of a struct ordered by position."""
        fields = [(self.name(name), self.converter(kind)) for name, kind in kinds.items()]

        def convert(value: Mapping[str, Any]) -> dict[str, Any]:
            parts = zip(fields, value.values(), strict=False)
            return {name: part if part is None or change is None else change(part) for (name, change), part in parts}

        return convert

    def native(self, kind: NativeType) -> Convert | None:
        raise NotImplementedError

    def map(self, key: CqlType, value: CqlType) -> Convert:
        raise NotImplementedError

    def _number(self, mode: Varints) -> Convert:
        if mode == "double":
            return self.double_of
        if mode == "long":
            return _long
        return lambda text: None if text == "" else _scaled(text, self.bytes_of)

    def double_of(self, text: str) -> Any:
        return None if text == "" else float(Decimal(text))

    def _pairs(self, key: CqlType, value: CqlType, text_keys: bool) -> Convert:
        """A map: an object if its keys are text, else a list of {"key", "value"}."""
        of_key, of_value = _or_null(None if text_keys else self.converter(key)), _or_null(self.converter(value))
        if text_keys:
            return lambda pairs: {each: of_value(item) for each, item in pairs}
        return lambda pairs: [{"key": of_key(each), "value": of_value(item)} for each, item in pairs]


class JsonForm(Form):
    """Values for `json.dumps`."""

    bytes_of = staticmethod(to_base64)

    def __init__(self, numbers: Numbers = "string", times: Times = "isostring", varints: Varints | None = None) -> None:
        super().__init__(numbers, varints)
        self.times = times

    def native(self, kind: NativeType) -> Convert | None:
        return _TIMES_IN_JSON[self.times].get(kind.name) or _IN_JSON.get(kind.name)

    def map(self, key: CqlType, value: CqlType) -> Convert:
        return self._pairs(key, value, str(key) in TEXT_KEYS | NUMBERS)

    def double_of(self, text: str) -> Any:
        return None if text == "" else json_real(float(Decimal(text)))


class AvroForm(Form):
    """Values for fastavro and the schemas of `writetime.events.avro`."""

    def name(self, cql: str) -> str:
        return to_avro(cql)

    def native(self, kind: NativeType) -> Convert | None:
        return _IN_AVRO.get(kind.name)

    def map(self, key: CqlType, value: CqlType) -> Convert:
        return self._pairs(key, value, str(key) in TEXT_KEYS)


JSON: Final = JsonForm()


class _KeyForm(JsonForm):
    """Values in the key of a record: user types and tuples as lists of their fields, without nulls at the end. So neither
    a field that is added to a type nor a field's new name changes them."""

    def fields(self, kinds: Mapping[str, CqlType]) -> Convert:
        fields = [self.converter(kind) for kind in kinds.values()]

        def convert(value: Mapping[str, Any]) -> list[Any]:
            parts = zip(fields, value.values(), strict=False)
            found = [part if part is None or change is None else change(part) for change, part in parts]
            while found and found[-1] is None:
                found.pop()
            return found

        return convert


_KEY: Final = _KeyForm()


def key_text(kind: CqlType) -> Convert:
    """The conversion of a non-null value to its text in the key of a record."""
    convert = _KEY.converter(kind)
    return lambda value: json.dumps(value if convert is None else convert(value), ensure_ascii=False, separators=(",", ":"))


def has_user_type(kind: CqlType) -> bool:
    """Whether a type is a user type or contains one."""
    return isinstance(kind, UdtType) or any(map(has_user_type, parts_of(kind)))


def has_doubles(form: Form, kind: CqlType) -> bool:
    """Whether the form rounds numbers in values of the type."""
    if isinstance(kind, NativeType):
        return kind.name in NUMBERS and form.number_mode(kind.name) == "double"
    return any(has_doubles(form, part) for part in parts_of(kind))


def _or_null(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _long(text: str) -> int | None:
    if text == "":
        return None
    # A text of any length is a varint; int() would refuse long ones by an error of its own.
    if len(text) > _LONG_DIGITS or not -(2**63) <= (value := int(text)) < 2**63:
        raise DecodeError(
            "a varint is larger than 64 bits",
            operation="convert a value",
            hint="Set kafka.varint.handling.mode to string, precise or double; its table's events wait.",
        )
    return value


def _scaled(text: str, bytes_of: Convert | None) -> dict[str, Any]:
    number = Decimal(text)
    whole = unscaled(number)
    value = whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True)
    return {"scale": -exponent_of(number), "value": value if bytes_of is None else bytes_of(value)}


_IN_JSON: Final[dict[str, Convert]] = {
    "blob": to_base64,
    "empty": to_base64,
    "float": json_float,
    "double": json_real,
}
_TIMES_IN_JSON: Final[dict[Times, dict[str, Convert]]] = {
    "isostring": {"timestamp": lambda micros: iso_timestamp(micros // 1000), "date": iso_date},
    "adaptive": {"timestamp": lambda micros: micros // 1000},
    "microseconds": {},
}
_IN_AVRO: Final[dict[str, Convert]] = {
    "timestamp": lambda micros: micros // 1000,
    # Avro's logical type says what its text is: there is no place for no bytes.
    "uuid": lambda text: text or None,
    "timeuuid": lambda text: text or None,
}
