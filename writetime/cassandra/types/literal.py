"""Formats values as CQL literals and parses literals of simple types.

`literal` formats the Python values of `writetime.cassandra.types.types` as valid CQL, like cqlsh: times in
UTC, uuids without quotes, text in single quotes. Values without a CQL literal, such as an empty int, are
shown in angle brackets. `parse_literal` supports the types used in keys; other values can be given as raw
bytes. This module does not know schemas or serialized values."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from writetime.cassandra.types.integers import integer_text, to_integer
from writetime.cassandra.types.native import NativeType
from writetime.cassandra.types.types import (
    EMPTY,
    CollectionType,
    CqlType,
    CustomType,
    Duration,
    TupleType,
    UdtType,
    VectorType,
    quoted,
)
from writetime.errors import DecodeError, MalformedMutation, SchemaError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()


def literal(kind: CqlType, value: Any) -> str:
    """The value as CQL text; `null` for None."""
    if value is None:
        return "null"
    if value is EMPTY:
        return "<empty>"
    if type(kind) is NativeType:
        # Checked first, because nearly all values are native.
        return _NATIVE.get(kind.name, str)(value)
    if isinstance(kind, CollectionType):
        return _collection(kind, value)
    if isinstance(kind, VectorType):
        return f"[{', '.join(literal(kind.element, item) for item in value)}]"
    if isinstance(kind, TupleType):
        return f"({', '.join(literal(part, item) for part, item in zip(kind.fields, value, strict=True))})"
    if isinstance(kind, UdtType):
        return "{" + ", ".join(f"{quoted(name)}: {literal(part, value[name])}" for name, part in kind.known_fields.items()) + "}"
    if isinstance(kind, CustomType):
        return f"0x{value.hex()}"
    return _NATIVE.get(str(kind), str)(value)


def literal_of(kind: CqlType, data: bytes | None) -> str:
    """The literal of a serialized value. Invalid bytes are shown in hex with the error."""
    if data is None:
        return "null"
    try:
        return literal(kind, kind.decode(data))
    except (DecodeError, SchemaError) as error:
        return f"<0x{data.hex()}: no {kind} ({type(error).__name__})>"


def text_literal(text: str) -> str:
    """Text in single quotes. Control characters are escaped as in JSON to protect the terminal; CQL does not
    accept that."""
    return "'" + printable(text).replace("'", "''") + "'"


def printable(text: str) -> str:
    """Text without control characters: characters that cannot be printed are escaped as in JSON."""
    return text if text.isprintable() else "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def timestamp_text(milliseconds: int) -> str:
    """ISO 8601 in UTC, or the number of ms if the year is out of range."""
    try:
        return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(milliseconds)


def micros_text(microseconds: int) -> str:
    """A writetime (µs) as ISO 8601 in UTC, or the number if the year is out of range."""
    try:
        return (EPOCH + timedelta(microseconds=microseconds)).isoformat(sep=" ", timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(microseconds)


def _collection(kind: CollectionType, value: Any) -> str:
    if kind.kind == "map":
        key, element = kind.elements
        return "{" + ", ".join(f"{literal(key, k)}: {literal(element, v)}" for k, v in value) + "}"
    items = ", ".join(literal(kind.elements[0], item) for item in value)
    return f"[{items}]" if kind.kind == "list" else f"{{{items}}}"


def _real(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def _date(days: int) -> str:
    try:
        return f"'{date.fromordinal(days + _EPOCH_ORDINAL).isoformat()}'"
    except (ValueError, OverflowError):
        return str(days + (1 << 31))


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"'{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:09d}'"


def _timestamp(milliseconds: int) -> str:
    text = timestamp_text(milliseconds)
    return f"'{text}'" if text.endswith("Z") else text


def _duration(value: Duration) -> str:
    if not any(value):
        return "0ns"
    sign = "-" if min(value) < 0 else ""
    return sign + "".join(f"{abs(part)}{unit}" for part, unit in zip(value, ("mo", "d", "ns"), strict=True) if part)


_NATIVE: Final[dict[str, Callable[[Any], str]]] = {
    "ascii": text_literal,
    "text": text_literal,
    "varchar": text_literal,
    "blob": lambda value: f"0x{value.hex()}",
    "boolean": lambda value: str(value).lower(),
    "float": _real,
    "double": _real,
    "decimal": str,
    "varint": integer_text,
    "timestamp": _timestamp,
    "date": _date,
    "time": _time,
    "duration": _duration,
    "inet": lambda value: f"'{value}'",
}


# --- parsing


def parse_literal(kind: CqlType, text: str) -> Any:
    """The Python value of a simple type's literal; quotes are optional. Raises DecodeError if the literal is
    invalid."""
    parse = _PARSERS.get(str(kind))
    bare = text[1:-1].replace("''", "'") if len(text) > 1 and text[0] == text[-1] == "'" else text
    try:
        if parse is None:
            raise ValueError("values of this type must be given as 0x and the raw bytes")
        return parse(bare)
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise MalformedMutation(f"{text!r} is not a valid {kind}: {error}", operation="read a literal") from error


def _parse_boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _refuse("true or false")


def _refuse(expected: str) -> Any:
    raise ValueError(f"expected {expected}")


def _parse_blob(text: str) -> bytes:
    return bytes.fromhex(text[2:]) if text.startswith("0x") else _refuse("0x and hex digits")


def _parse_timestamp(text: str) -> int:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)


def _parse_time(text: str) -> int:
    match = re.fullmatch(r"(\d{1,2}):(\d\d):(\d\d)(?:\.(\d{1,9}))?", text)
    if match is None:
        return int(text)
    hours, minutes, seconds = (int(part) for part in match.groups()[:3])
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + int((match[4] or "").ljust(9, "0"))


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("ascii", "text", "varchar"), str),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("uuid", "timeuuid"), UUID),
    "blob": _parse_blob,
    "boolean": _parse_boolean,
    "decimal": Decimal,
    "varint": lambda text: to_integer(Decimal(text)) if text.lstrip("+-").isdecimal() else int(text),
    "timestamp": _parse_timestamp,
    "date": lambda text: date.fromisoformat(text).toordinal() - _EPOCH_ORDINAL,
    "time": _parse_time,
    "inet": lambda text: str(ipaddress.ip_address(text)),
}
