"""CQL values on their way out: to Arrow (for Spark and Iceberg) and to JSON (for events and people).

One visible table says which Arrow type a CQL type becomes; values are those of `writetime.cql.types`.

    tinyint, smallint   int32              Iceberg has no smaller integers
    timestamp       timestamp[us, UTC]     Iceberg has microseconds; CQL's milliseconds fit up to the year 294246
    date            date32
    time            int64                  nanoseconds since midnight; Iceberg's time has microseconds only
    varint, decimal string                 lossless: CQL bounds neither digits nor scale, Arrow and Iceberg do
    inet, uuids     string
    duration        struct<months, days, nanoseconds>
    list, set, vector -> list;  map -> map;  user type -> struct of its fields;  tuple -> struct<field_1, field_2, …>

JSON: what JSON numbers or text cannot hold exactly is text. Decimals and varints are text, blobs base64, timestamps and dates ISO-8601
(years beyond four digits with a sign), NaN and infinities their names, a map with text keys an object, any other map a list of
{"key", "value"}. This module knows no schema; pyarrow is imported when a type is asked for.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from writetime.cql.types import CollectionType, CqlType, CustomType, NativeType, TupleType, UdtType, VectorType
from writetime.errors import DecodeError

if TYPE_CHECKING:
    import pyarrow as pa

ARROW: Final[dict[str, str]] = {
    "ascii": "string",
    "text": "string",
    "varchar": "string",
    "blob": "binary",
    "boolean": "bool",
    "tinyint": "int32",
    "smallint": "int32",
    "int": "int32",
    "bigint": "int64",
    "counter": "int64",
    "float": "float32",
    "double": "float64",
    "timestamp": "timestamp",
    "date": "date32",
    "time": "int64",
    "varint": "string",
    "decimal": "string",
    "inet": "string",
    "uuid": "string",
    "timeuuid": "string",
    "duration": "duration",
    "empty": "binary",
}
"""Arrow type by CQL type."""

DURATION_FIELDS: Final = ("months", "days", "nanoseconds")
_TEXT_KEYS: Final = frozenset({"ascii", "text", "varchar", "uuid", "timeuuid", "inet"})
_MAX_ARROW_MS: Final = (2**63 - 1) // 1000
_DAY_MS: Final = 86_400_000


def arrow_type(kind: CqlType) -> pa.DataType:
    """The Arrow type of a CQL type. Raises SchemaError for a user type that nobody has defined."""
    import pyarrow as pa

    if isinstance(kind, NativeType):
        return _native_arrow_type(ARROW[kind.name])
    if isinstance(kind, CollectionType):
        elements = [arrow_type(element) for element in kind.elements]
        return pa.map_(*elements) if kind.kind == "map" else pa.list_(*elements)
    if isinstance(kind, VectorType):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, TupleType | UdtType):
        return pa.struct([pa.field(name, arrow_type(field)) for name, field in _fields(kind).items()])
    return pa.binary()


def _native_arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    if name == "timestamp":
        return pa.timestamp("us", tz="UTC")
    if name == "duration":
        return pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])
    return pa.type_for_alias(name)


def to_arrow_value(kind: CqlType, value: Any) -> Any:
    """The value as pyarrow takes it for `arrow_type(kind)`: timestamps as int µs, dates as int days, maps as pairs, structs as dicts.

    Raises DecodeError for what Arrow cannot hold: a timestamp beyond 64 bits of microseconds, a duration beyond its fields, a map with an
    empty key (an int of no bytes, say). Whatever is returned, pyarrow takes.
    """
    if value is None:
        return None
    if isinstance(kind, NativeType):
        convert = _TO_ARROW.get(kind.name)
        return value if convert is None else convert(value)
    if isinstance(kind, CollectionType) and kind.kind == "map" and any(key is None for key, _ in value):
        raise DecodeError(f"an empty key in a {kind}", operation="convert a value to Arrow")
    return _inside(kind, value, to_arrow_value)


def to_json_value(kind: CqlType, value: Any) -> Any:
    """The value as `json.dumps` takes it, exact."""
    if value is None:
        return None
    if isinstance(kind, NativeType):
        convert = _TO_JSON.get(kind.name)
        return value if convert is None else convert(value)
    if isinstance(kind, CustomType):
        return _base64(value)
    out = _inside(kind, value, to_json_value)
    if not isinstance(kind, CollectionType) or kind.kind != "map":
        return out
    if isinstance(kind.elements[0], NativeType) and kind.elements[0].name in _TEXT_KEYS:
        return dict(out)
    return [{"key": key, "value": element} for key, element in out]


def integer_text(value: int) -> str:
    """All digits of an integer of any size; int's own conversion refuses beyond some thousand."""
    return f"{Decimal(value):f}"


def _fields(kind: TupleType | UdtType) -> dict[str, CqlType]:
    if isinstance(kind, UdtType):
        return kind.known_fields
    return {f"field_{i}": field for i, field in enumerate(kind.fields, start=1)}


def _inside(kind: CqlType, value: Any, convert: Callable[[CqlType, Any], Any]) -> Any:
    """The value of a type made of others, with `convert` applied to its parts; structs become dicts, maps lists of pairs."""
    if isinstance(kind, CollectionType) and kind.kind == "map":
        key, element = kind.elements
        return [(convert(key, k), convert(element, v)) for k, v in value]
    if isinstance(kind, CollectionType):
        return [convert(kind.elements[0], element) for element in value]
    if isinstance(kind, VectorType):
        return [convert(kind.element, element) for element in value]
    if isinstance(kind, UdtType):
        return {name: convert(field, value.get(name)) for name, field in kind.known_fields.items()}
    if isinstance(kind, TupleType):
        return {name: convert(field, part) for (name, field), part in zip(_fields(kind).items(), value, strict=True)}
    return value


def _arrow_timestamp(milliseconds: int) -> int:
    if abs(milliseconds) > _MAX_ARROW_MS:
        raise DecodeError(f"timestamp {milliseconds} ms is beyond the year 294246", operation="convert a value to Arrow")
    return milliseconds * 1000


def _duration(value: Any) -> dict[str, int]:
    return dict(zip(DURATION_FIELDS, value, strict=True))


def _arrow_duration(value: Any) -> dict[str, int]:
    if any(not -(2**31) <= part < 2**31 for part in (value.months, value.days)):
        raise DecodeError(f"a duration of {value.months} months and {value.days} days", operation="convert a value to Arrow")
    return _duration(value)


def _real(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _float32(value: float) -> float | str:
    """The shortest decimal that is this 32-bit float: 0.1, not 0.10000000149011612."""
    if not math.isfinite(value):
        return _real(value)
    packed = struct.pack(">f", value)
    return next(short for digits in range(6, 18) if struct.pack(">f", short := float(f"{value:.{digits}g}")) == packed)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _uuid(value: UUID) -> str:
    return str(value)


def iso_date(days: int) -> str:
    """A day (since 1970-01-01) in the proleptic Gregorian calendar, of any year: 2026-11-22, -0001-03-04, +12345-06-07."""
    # Days to civil date by whole eras of 400 years, with years that begin in March.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (month <= 2)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def iso_timestamp(milliseconds: int) -> str:
    """Milliseconds since the epoch as ISO-8601 in UTC: 2026-11-22T08:13:55.551Z."""
    days, rest = divmod(milliseconds, _DAY_MS)
    seconds, millis = divmod(rest, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{iso_date(days)}T{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}Z"


_TO_ARROW: Final[dict[str, Callable[[Any], Any]]] = {
    "timestamp": _arrow_timestamp,
    "varint": integer_text,
    "decimal": str,
    "uuid": _uuid,
    "timeuuid": _uuid,
    "duration": _arrow_duration,
}
_TO_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "blob": _base64,
    "float": _float32,
    "double": _real,
    "timestamp": iso_timestamp,
    "date": iso_date,
    "varint": integer_text,
    "decimal": str,
    "uuid": _uuid,
    "timeuuid": _uuid,
    "duration": _duration,
}
