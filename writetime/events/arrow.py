"""CQL values as Arrow values, for Spark and Iceberg, and back: the Arrow column of
`writetime.events.type_mapping`.

Struct fields have the names that columns have in Spark and Iceberg (`naming.to_column`). Must not know a
schema; pyarrow is imported when a type is requested.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from writetime.cassandra.types.native import EMPTY, Duration
from writetime.cassandra.types.types import (
    CollectionType,
    CqlType,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
)
from writetime.errors import DecodeError
from writetime.events.naming import to_column
from writetime.events.type_mapping import LOSSLESS, TABLE, Options
from writetime.events.values import (
    checked_duration,
    fields_of,
    has_text_keys,
    put_together,
    refuse_merged_keys,
    taken_apart,
    to_digits,
    to_text,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ARROW_MS: Final = (2**63 - 1) // 1000


def arrow_type(kind: CqlType, options: Options = LOSSLESS) -> pa.DataType:
    """The Arrow type of a CQL type. Raises SchemaError for an undefined user type."""
    import pyarrow as pa

    inner = partial(arrow_type, options=options)
    if isinstance(kind, NativeType):
        return _native_type(kind.name, options)
    if isinstance(kind, CollectionType):
        elements = [inner(element) for element in kind.elements]
        return pa.map_(*elements) if kind.kind == "map" else pa.list_(*elements)
    if isinstance(kind, VectorType):
        return pa.list_(inner(kind.element))
    if isinstance(kind, TupleType | UdtType):
        return pa.struct([pa.field(to_column(name), inner(field)) for name, field in fields_of(kind).items()])
    return pa.binary()


def _native_type(name: str, options: Options) -> pa.DataType:
    import pyarrow as pa

    if name == "decimal" and options.decimal is not None:
        return pa.decimal128(*options.decimal)
    if name == "varint" and options.varint is not None:
        return pa.decimal128(options.varint, 0)
    if name == "timestamp" and options.timestamp == "millis":
        return pa.int64()
    special = {
        "timestamp": pa.timestamp("us", tz="UTC"),
        "duration": pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())]),
    }
    return special[name] if name in special else pa.type_for_alias(TABLE[name].arrow.removesuffix("[day]"))


def to_arrow_value(kind: CqlType, value: Any, options: Options = LOSSLESS) -> Any:
    """The value for `arrow_type(kind)` in pyarrow: timestamps as int µs, dates as int days, maps as pairs,
    structs as dicts.

    A zero-length value is "" where that is text or bytes, else null. Raises DecodeError for values that Arrow
    cannot hold: a timestamp beyond 64 bits of microseconds, a duration beyond its fields, a number with too
    many digits, a map with a key that would be null, or with keys that would become equal. pyarrow accepts
    every value that is returned.
    """
    return None if value is None else arrow_converter(kind, options)(value)


@lru_cache(maxsize=4096)
def arrow_converter(kind: CqlType, options: Options = LOSSLESS) -> Callable[[Any], Any]:
    """`to_arrow_value` of one type, for values that are not None."""
    if isinstance(kind, NativeType):
        return _native_converter(kind, options)
    of_parts: dict[CqlType, Callable[[Any], Any]] = {}

    def inner(part: CqlType, value: Any) -> Any:
        if part not in of_parts:
            of_parts[part] = arrow_converter(part, options)
        return None if value is None else of_parts[part](value)

    def convert(value: Any) -> Any:
        if value is EMPTY:
            return None
        out = taken_apart(kind, value, inner, to_column)
        if isinstance(kind, CollectionType) and kind.kind == "map":
            _check_keys(kind, value, out)
        return out

    return convert


def _native_converter(kind: NativeType, options: Options) -> Callable[[Any], Any]:
    change = _TO_ARROW.get(kind.name)
    if change is None:
        return lambda value: None if value is EMPTY else value
    if kind.name in _EMPTY_OF:
        return lambda value: change(kind, value, options)
    return lambda value: None if value is EMPTY else change(kind, value, options)


def _check_keys(kind: CollectionType, value: Any, out: list[tuple[Any, Any]]) -> None:
    if any(key is None for key, _ in out):
        raise DecodeError(f"empty key in a {kind}", operation="convert a value to Arrow")
    if not has_text_keys(kind):
        refuse_merged_keys(kind, value, out, "convert a value to Arrow")


def from_arrow_value(kind: CqlType, value: Any, options: Options = LOSSLESS) -> Any:
    """Inverse of `to_arrow_value`, on values as `plain_values` gives them; null stays null."""
    if value is None:
        return None
    if not isinstance(kind, NativeType):
        return put_together(kind, value, partial(from_arrow_value, options=options), to_column)
    if kind.name in _EMPTY_OF and value == _EMPTY_OF[kind.name]:
        return EMPTY
    convert = _FROM_ARROW.get(kind.name)
    return value if convert is None else convert(value, options)


def plain_values(array: pa.Array) -> list[Any]:
    """The array's values with timestamps as µs and dates as days since the epoch: Python's types end with the
    year 9999."""
    values: list[Any] = array.view(_plain_type(array.type)).to_pylist()
    return values


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with the same layout in which timestamps and dates are integers."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type), field.nullable) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), kind.item_field.with_type(_plain_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def _timestamp(_: NativeType, milliseconds: int, options: Options) -> int:
    if options.timestamp == "millis":
        return milliseconds
    if abs(milliseconds) > _MAX_ARROW_MS:
        raise DecodeError("timestamp is beyond the year 294246", operation="convert a value to Arrow")
    return milliseconds * 1000


def _varint(kind: NativeType, value: Any, options: Options) -> Any:
    return to_text(kind, value) if options.varint is None else _digits(value, options.varint, 0, "varint")


def _decimal(kind: NativeType, value: Any, options: Options) -> Any:
    return to_text(kind, value) if options.decimal is None else _digits(value, *options.decimal, "decimal")


def _digits(value: Any, precision: int, scale: int, what: str) -> Decimal | None:
    return None if value is EMPTY else to_digits(value, precision, scale, what)


def _text(kind: NativeType, value: Any, _: Options) -> str:
    return to_text(kind, value)


def _duration(_: NativeType, value: Duration, __: Options) -> dict[str, int]:
    return checked_duration(value)._asdict()


_EMPTY_OF: Final[dict[str, Any]] = {"varint": "", "decimal": "", "inet": "", "uuid": "", "timeuuid": "", "empty": b""}
"""The zero-length value of types that can represent it."""
_TO_ARROW: Final[dict[str, Callable[[NativeType, Any, Options], Any]]] = {
    "timestamp": _timestamp,
    "varint": _varint,
    "decimal": _decimal,
    "inet": _text,
    "uuid": _text,
    "timeuuid": _text,
    "duration": _duration,
    "empty": lambda *_: b"",
}
_FROM_ARROW: Final[dict[str, Callable[[Any, Options], Any]]] = {
    "timestamp": lambda value, options: value if options.timestamp == "millis" else value // 1000,
    "varint": lambda value, _: int(Decimal(value)),
    "decimal": lambda value, _: Decimal(value),
    "uuid": lambda value, _: UUID(value),
    "timeuuid": lambda value, _: UUID(value),
    "duration": lambda value, _: Duration(**value),
}
