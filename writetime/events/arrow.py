"""CQL values as Arrow values, for Spark and Iceberg, and back: the Arrow column of
`writetime.events.type_mapping`.

Struct fields have the names that columns have in Spark and Iceberg (`naming.to_column`). Must not know a
schema; pyarrow is imported when a type is requested.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from writetime.cassandra.types.integers import to_integer
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
from writetime.events.type_mapping import TABLE
from writetime.events.values import (
    checked_duration,
    fields_of,
    has_text_keys,
    put_together,
    refuse_merged_keys,
    taken_apart,
    to_text,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ARROW_MS: Final = (2**63 - 1) // 1000


def arrow_type(kind: CqlType) -> pa.DataType:
    """The Arrow type of a CQL type. Raises SchemaError for an undefined user type."""
    import pyarrow as pa

    if isinstance(kind, NativeType):
        return _native_type(kind.name)
    if isinstance(kind, CollectionType):
        elements = [arrow_type(element) for element in kind.elements]
        return pa.map_(*elements) if kind.kind == "map" else pa.list_(*elements)
    if isinstance(kind, VectorType):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, TupleType | UdtType):
        return pa.struct([pa.field(to_column(name), arrow_type(field)) for name, field in fields_of(kind).items()])
    return pa.binary()


def _native_type(name: str) -> pa.DataType:
    import pyarrow as pa

    special = {
        "timestamp": pa.timestamp("us", tz="UTC"),
        "duration": pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())]),
    }
    return special[name] if name in special else pa.type_for_alias(TABLE[name].arrow.removesuffix("[day]"))


def to_arrow_value(kind: CqlType, value: Any) -> Any:
    """The value for `arrow_type(kind)` in pyarrow: timestamps as int µs, dates as int days, maps as pairs,
    structs as dicts.

    A zero-length value is "" where that is text or bytes, else null. Raises DecodeError for values that Arrow
    cannot hold: a timestamp beyond 64 bits of microseconds, a duration beyond its fields, a number with too
    many digits, a map with a key that would be null, or with keys that would become equal. pyarrow accepts
    every value that is returned.
    """
    return None if value is None else arrow_converter(kind)(value)


@lru_cache(maxsize=4096)
def arrow_converter(kind: CqlType) -> Callable[[Any], Any]:
    """`to_arrow_value` of one type, for values that are not None."""
    if isinstance(kind, NativeType):
        return _native_converter(kind)
    of_parts: dict[CqlType, Callable[[Any], Any]] = {}

    def inner(part: CqlType, value: Any) -> Any:
        if part not in of_parts:
            of_parts[part] = arrow_converter(part)
        return None if value is None else of_parts[part](value)

    def convert(value: Any) -> Any:
        if value is EMPTY:
            return None
        out = taken_apart(kind, value, inner, to_column)
        if isinstance(kind, CollectionType) and kind.kind == "map":
            _check_keys(kind, value, out)
        return out

    return convert


def _native_converter(kind: NativeType) -> Callable[[Any], Any]:
    change = _TO_ARROW.get(kind.name)
    if change is None:
        return lambda value: None if value is EMPTY else value
    if kind.name in _EMPTY_OF:
        return lambda value: change(kind, value)
    return lambda value: None if value is EMPTY else change(kind, value)


def _check_keys(kind: CollectionType, value: Any, out: list[tuple[Any, Any]]) -> None:
    if any(key is None for key, _ in out):
        raise DecodeError(f"empty key in a {kind}", operation="convert a value to Arrow")
    if not has_text_keys(kind):
        refuse_merged_keys(kind, value, out, "convert a value to Arrow")


def from_arrow_value(kind: CqlType, value: Any) -> Any:
    """Inverse of `to_arrow_value`, on values as `plain_values` gives them; null stays null."""
    if value is None:
        return None
    if not isinstance(kind, NativeType):
        return put_together(kind, value, from_arrow_value, to_column)
    if kind.name in _EMPTY_OF and value == _EMPTY_OF[kind.name]:
        return EMPTY
    convert = _FROM_ARROW.get(kind.name)
    return value if convert is None else convert(value)


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


def _timestamp(_: NativeType, milliseconds: int) -> int:
    if abs(milliseconds) > _MAX_ARROW_MS:
        raise DecodeError("timestamp is beyond the year 294246", operation="convert a value to Arrow")
    return milliseconds * 1000


def _duration(_: NativeType, value: Duration) -> dict[str, int]:
    return checked_duration(value)._asdict()


_EMPTY_OF: Final[dict[str, Any]] = {"varint": "", "decimal": "", "inet": "", "uuid": "", "timeuuid": "", "empty": b""}
"""The zero-length value of types that can represent it."""
_TO_ARROW: Final[dict[str, Callable[[NativeType, Any], Any]]] = {
    "timestamp": _timestamp,
    "varint": to_text,
    "decimal": to_text,
    "inet": to_text,
    "uuid": to_text,
    "timeuuid": to_text,
    "duration": _duration,
    "empty": lambda *_: b"",
}
_FROM_ARROW: Final[dict[str, Callable[[Any], Any]]] = {
    "timestamp": lambda value: value // 1000,
    "varint": lambda value: to_integer(Decimal(value)),
    "decimal": Decimal,
    "uuid": UUID,
    "timeuuid": UUID,
    "duration": lambda value: Duration(**value),
}
