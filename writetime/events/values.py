"""Shared by `arrow`, `avro` and `json`: conversion of nested values, and exact texts of numbers, dates and
timestamps.

Must not know an output format; callers supply field names.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

from writetime.cassandra.types.integers import integer_text, to_decimal
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

Convert = Callable[[CqlType, Any], Any]
Named = Callable[[str], str]

TEXT_KEYS: Final = frozenset({"ascii", "text", "varchar", "uuid", "timeuuid", "inet"})
"""Types that are text wherever keys of maps have to be."""
_DAY_MS: Final = 86_400_000
_ISO_DATE = re.compile(r"([+-]?)(\d{4,})-(\d\d)-(\d\d)")
_ISO_TIMESTAMP = re.compile(r"(.+)T(\d\d):(\d\d):(\d\d)\.(\d{3})Z")


def has_text_keys(kind: CqlType) -> bool:
    """Whether it is a map whose keys are text."""
    return isinstance(kind, CollectionType) and kind.kind == "map" and str(kind.elements[0]) in TEXT_KEYS


def fields_of(kind: TupleType | UdtType) -> dict[str, CqlType]:
    """Fields by name; those of a tuple are field_1, field_2, …"""
    if isinstance(kind, UdtType):
        return kind.known_fields
    return {f"field_{i}": field for i, field in enumerate(kind.fields, start=1)}


def parts_of(kind: CqlType) -> tuple[CqlType, ...]:
    """The types that a type is made of."""
    if isinstance(kind, CollectionType):
        return kind.elements
    if isinstance(kind, VectorType):
        return (kind.element,)
    return tuple(fields_of(kind).values()) if isinstance(kind, TupleType | UdtType) else ()


def taken_apart(kind: CqlType, value: Any, convert: Convert, named: Named = str) -> Any:
    """The value of a type made of others, with `convert` applied to its parts; structs become dicts, maps
    lists of pairs."""
    if isinstance(kind, CollectionType) and kind.kind == "map":
        key, element = kind.elements
        return [(convert(key, k), convert(element, v)) for k, v in value]
    if isinstance(kind, CollectionType):
        return [convert(kind.elements[0], element) for element in value]
    if isinstance(kind, VectorType):
        return [convert(kind.element, element) for element in value]
    if isinstance(kind, UdtType):
        return {named(name): convert(field, value.get(name)) for name, field in kind.known_fields.items()}
    if isinstance(kind, TupleType):
        return {named(name): convert(field, part) for (name, field), part in zip(fields_of(kind).items(), value, strict=True)}
    return value


def put_together(kind: CqlType, value: Any, convert: Convert, named: Named = str) -> Any:
    """Inverse of `taken_apart`; a field that is not there is null."""
    if isinstance(kind, TupleType | UdtType):
        fields = {name: convert(field, value.get(named(name))) for name, field in fields_of(kind).items()}
        return fields if isinstance(kind, UdtType) else tuple(fields.values())
    return taken_apart(kind, value, convert)


def text_keyed(kind: CqlType, value: Any, out: list[tuple[Any, Any]], operation: str) -> dict[str, Any]:
    """A map with text keys as a dict: `out` is its `value`, converted; a zero-length key is "". DecodeError
    for a key twice or null."""
    if any(key is None for key, _ in value):
        raise DecodeError(f"null key in a {kind}", operation=operation)
    entries = {"" if key is None else key: element for key, element in out}
    if len(entries) < len(out):
        raise DecodeError(f"duplicate key in a {kind}", operation=operation)
    return entries


def refuse_merged_keys(kind: CollectionType, value: Any, out: list[tuple[Any, Any]], operation: str) -> None:
    """DecodeError if different keys of `value` are equal in `out`, its converted form: for example (null) and
    (empty)."""
    before = {None if key is None else kind.elements[0].encode(key) for key, _ in value}
    if len({repr(key) for key, _ in out}) < len(before):
        raise DecodeError(f"different keys of a {kind} would become equal", operation=operation)


# --- numbers


def to_text(kind: NativeType, value: Any) -> str:
    """Text of a value of a type that is text everywhere (varint, decimal, inet, uuid, timeuuid); "" for
    EMPTY."""
    if value is EMPTY:
        return ""
    return integer_text(value) if kind.name == "varint" else str(value)


def to_digits(value: int | Decimal, precision: int, scale: int, what: str) -> Decimal:
    """The number with exactly that scale. DecodeError if it has more digits, before or after the point."""
    context = Context(prec=precision, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, InvalidOperation])
    try:
        return (to_decimal(value) if isinstance(value, int) else value).quantize(Decimal((0, (1,), -scale)), context=context)
    except (Inexact, InvalidOperation) as error:
        raise DecodeError(f"{what} does not fit ({precision}, {scale})", operation="convert a value") from error


def checked_duration(value: Duration) -> Duration:
    """DecodeError if months or days exceed 32 bits, which Cassandra does not accept."""
    if any(not -(2**31) <= part < 2**31 for part in (value.months, value.days)):
        raise DecodeError("duration has more months or days than 32 bits hold", operation="convert a value")
    return value


def json_real(value: float) -> float | str:
    """A float as JSON has it: NaN and infinities by their names."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def json_float(value: float) -> float | str:
    """As `json_real`, with the shortest decimal that is this 32-bit float: 0.1, not 0.10000000149011612."""
    if not math.isfinite(value):
        return json_real(value)
    packed = struct.pack(">f", value)
    return next(short for digits in range(6, 18) if struct.pack(">f", short := float(f"{value:.{digits}g}")) == packed)


def to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


# --- days and moments


def iso_date(days: int) -> str:
    """A day (since 1970-01-01) in the proleptic Gregorian calendar, of any year: 2026-11-22, -0001-03-04,
    +12345-06-07."""
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


def days_of(text: str) -> int:
    """Inverse of `iso_date`. ValueError for other texts."""
    match = _ISO_DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    month, day = int(match[3]), int(match[4])
    year = int(match[2]) * (-1 if match[1] == "-" else 1) - (month <= 2)
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
    if iso_date(days) != text:
        raise ValueError(f"{text!r} is not a date")
    return days


def iso_timestamp(milliseconds: int) -> str:
    """Milliseconds since the epoch as ISO-8601 in UTC: 2026-11-22T08:13:55.551Z."""
    days, rest = divmod(milliseconds, _DAY_MS)
    seconds, millis = divmod(rest, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{iso_date(days)}T{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}Z"


def milliseconds_of(text: str) -> int:
    """Inverse of `iso_timestamp`. ValueError for other texts."""
    match = _ISO_TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a timestamp")
    hour, minute, second, millis = (int(match[i]) for i in range(2, 6))
    return days_of(match[1]) * _DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + millis
