"""CQL values as JSON, for people and events, and back. The column JSON of `writetime.events.type_mapping`;
only payloads of NaN are lost.

Values that JSON cannot represent exactly are text: decimals and varints their digits, blobs base64,
timestamps and dates ISO-8601 (years beyond four digits with a sign), NaN and infinities their names. A map
with text keys is an object, any other map a list of {"key", "value"}. A zero-length value is "". Names of
fields are CQL's. Must not know a schema.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from writetime.cassandra.types.integers import integer_text, to_integer
from writetime.cassandra.types.native import EMPTY, Duration
from writetime.cassandra.types.types import CollectionType, CqlType, CustomType, NativeType
from writetime.errors import DecodeError
from writetime.events.values import (
    days_of,
    has_text_keys,
    iso_date,
    iso_timestamp,
    json_float,
    json_real,
    milliseconds_of,
    put_together,
    taken_apart,
    text_keyed,
    to_base64,
)


def to_json_value(kind: CqlType, value: Any) -> Any:
    """The value as `json.dumps` takes it, exact. DecodeError for a map that has a text key twice, or null."""
    if value is None:
        return None
    if value is EMPTY:
        return ""
    if isinstance(kind, NativeType):
        convert = _TO_JSON.get(kind.name)
        return value if convert is None else convert(value)
    if isinstance(kind, CustomType):
        return to_base64(value)
    out = taken_apart(kind, value, to_json_value)
    if not isinstance(kind, CollectionType) or kind.kind != "map":
        return out
    if not has_text_keys(kind):
        return [{"key": key, "value": element} for key, element in out]
    return text_keyed(kind, value, out, "convert a value to JSON")


def from_json_value(kind: CqlType, value: Any) -> Any:
    """Inverse of `to_json_value`, on what `json.loads` gives. DecodeError if it is no value of the type."""
    try:
        return _from_json(kind, value)
    except (ValueError, TypeError, ArithmeticError, AttributeError, KeyError) as error:
        raise DecodeError(f"not a {kind} in JSON: {type(error).__name__}: {error}", operation="convert a value from JSON") from error


def _from_json(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, NativeType):
        if value == "" and not kind.has_empty:
            return EMPTY
        convert = _FROM_JSON.get(kind.name)
        return value if convert is None else convert(value)
    if isinstance(kind, CustomType):
        return base64.b64decode(value, validate=True)
    if value == "":
        return EMPTY
    if isinstance(kind, CollectionType) and kind.kind == "map":
        value = list(value.items()) if has_text_keys(kind) else [(entry["key"], entry["value"]) for entry in value]
    return put_together(kind, value, _from_json)


def _from_float32(value: float | str) -> float:
    single: float = struct.unpack(">f", struct.pack(">f", float(value)))[0]
    return single


_TO_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "blob": to_base64,
    "float": json_float,
    "double": json_real,
    "timestamp": iso_timestamp,
    "date": iso_date,
    "varint": integer_text,
    "decimal": str,
    "uuid": str,
    "timeuuid": str,
    "duration": Duration._asdict,
}
_FROM_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "blob": lambda text: base64.b64decode(text, validate=True),
    "float": _from_float32,
    "double": float,
    "timestamp": milliseconds_of,
    "date": days_of,
    "varint": lambda text: to_integer(Decimal(text)),
    "decimal": Decimal,
    "uuid": UUID,
    "timeuuid": UUID,
    "duration": lambda parts: Duration(**parts),
}
