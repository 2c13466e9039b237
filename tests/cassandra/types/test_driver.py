"""Compares bytes and values with the DataStax driver, for all its types, also nested."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from cassandra import cqltypes
from cassandra.cqltypes import lookup_casstype
from cassandra.util import Date, Time
from cassandra.util import Duration as DriverDuration
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.types.typed import NATIVE_VALUES, exact
from tests.examples import examples
from writetime.cassandra.types.marshal import NATIVE_CLASSES, class_type
from writetime.cassandra.types.types import (
    EMPTY,
    CollectionType,
    CqlType,
    Duration,
    NativeType,
    TupleType,
    UdtType,
    VectorType,
)

PROTOCOL = 5
CLASS_OF = {cql: java for java, cql in NATIVE_CLASSES.items()}
# The driver's datetime ends with the year 9999, and decimals have limits of their own.
VALUES = {
    **{name: NATIVE_VALUES[name] for name in CLASS_OF.keys() & NATIVE_VALUES.keys() - {"empty"}},
    "timestamp": st.integers(-62_135_596_800_000, 253_402_300_799_999),
    "time": st.integers(0, 86_399_999_999_999),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=None),
}


def ours(kind: CqlType, value: Any) -> Any:
    """A driver's value in our representation."""
    if value is None:
        return None
    if isinstance(kind, NativeType):
        return _OURS.get(kind.name, lambda same: same)(value)
    if isinstance(kind, CollectionType) and kind.kind == "map":
        return [(ours(kind.elements[0], k), ours(kind.elements[1], v)) for k, v in value.items()]
    if isinstance(kind, CollectionType):
        return [ours(kind.elements[0], one) for one in value]
    if isinstance(kind, VectorType):
        return [ours(kind.element, one) for one in value]
    if isinstance(kind, UdtType):
        return {name: ours(field, part) for (name, field), part in zip(kind.known_fields.items(), value, strict=True)}
    assert isinstance(kind, TupleType)
    return tuple(ours(field, part) for field, part in zip(kind.fields, value, strict=True))


_OURS: dict[str, Callable[[Any], Any]] = {
    "timestamp": lambda moment: round((moment - datetime(1970, 1, 1)).total_seconds() * 1000),
    "date": lambda day: day.days_from_epoch,
    # The driver writes the last half of IPv4 in IPv6 with dots.
    "inet": lambda text: str(ipaddress.ip_address(text)),
    "time": lambda moment: moment.nanosecond_time,
    "duration": lambda parts: Duration(parts.months, parts.days, parts.nanoseconds),
}
_THEIRS: dict[str, Callable[[Any], Any]] = {
    "date": Date,
    "time": Time,
    "duration": lambda parts: DriverDuration(*parts),
}


def in_theirs(kind: CqlType, value: Any) -> Any:
    """Our value in the driver's representation."""
    if value is None:
        return None
    if isinstance(kind, NativeType):
        return _THEIRS.get(kind.name, lambda same: same)(value)
    if isinstance(kind, CollectionType) and kind.kind == "map":
        return {in_theirs(kind.elements[0], k): in_theirs(kind.elements[1], v) for k, v in value}
    if isinstance(kind, CollectionType | VectorType):
        element = kind.element if isinstance(kind, VectorType) else kind.elements[0]
        return [in_theirs(element, one) for one in value]
    fields = kind.known_fields if isinstance(kind, UdtType) else dict(enumerate(kind.fields))  # type: ignore[attr-defined]
    parts = value.values() if isinstance(value, dict) else value
    return tuple(in_theirs(field, part) for field, part in zip(fields.values(), parts, strict=True))


def theirs(name: str, value: Any) -> bytes:
    return lookup_casstype(CLASS_OF[name]).serialize(_THEIRS.get(name, lambda same: same)(value), PROTOCOL)


def test_all_but_two_types_are_compared() -> None:
    assert NATIVE_CLASSES.keys() - {CLASS_OF[name] for name in VALUES} == {"CounterColumnType", "EmptyType"}


@pytest.mark.parametrize("name", sorted(VALUES))
@settings(max_examples=examples(80))
@given(st.data())
def test_simple_types(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name])
    kind, driver = class_type(CLASS_OF[name]), lookup_casstype(CLASS_OF[name])
    raw = kind.encode(value)
    assert raw == theirs(name, value)
    assert exact(ours(kind, driver.deserialize(raw, PROTOCOL))) == exact(kind.decode(raw))


def driver_of(kind: CqlType) -> Any:
    """The driver's type. Its parser takes a user type's name in hex for a number."""
    if isinstance(kind, NativeType):
        return lookup_casstype(CLASS_OF[kind.name])
    if isinstance(kind, VectorType):
        return cqltypes.VectorType.apply_parameters((driver_of(kind.element), kind.dimension), None)
    if isinstance(kind, UdtType):
        fields = tuple(map(driver_of, kind.known_fields.values()))
        return cqltypes.UserType.make_udt_class(kind.keyspace, kind.name, tuple(kind.known_fields), fields)
    if isinstance(kind, TupleType):
        return cqltypes.TupleType.apply_parameters(tuple(map(driver_of, kind.fields)))
    assert isinstance(kind, CollectionType)
    return lookup_casstype(kind.kind.capitalize() + "Type").apply_parameters(tuple(map(driver_of, kind.elements)))


NESTED = [
    ("ListType(Int32Type)", [1, -1]),
    ("ListType(FrozenType(ListType(UTF8Type)))", [["a", ""], []]),
    ("SetType(UUIDType)", [UUID(int=1)]),
    ("MapType(UTF8Type,IntegerType)", [("a", 10**30), ("b", -1)]),
    ("MapType(Int32Type,FrozenType(MapType(UTF8Type,DecimalType)))", [(1, [("x", Decimal("1.10"))])]),
    ("TupleType(Int32Type,UTF8Type,DoubleType)", (1, None, -0.0)),
    ("UserType(k,61646472,737472656574:UTF8Type,7a6970:Int32Type)", {"street": None, "zip": 5}),
    ("ListType(UserType(k,61,78:ListType(Int32Type)))", [{"x": [1, 2]}, {"x": None}]),
    ("VectorType(FloatType, 3)", [0.5, -1.5, 0.0]),
    ("VectorType(UTF8Type, 2)", ["", "é"]),
    ("VectorType(ShortType, 2)", [1, -2]),
    ("VectorType(VectorType(Int32Type, 2), 2)", [[1, 2], [3, 4]]),
    ("VectorType(ListType(Int32Type), 2)", [[1], []]),
    ("TupleType(DurationType,SimpleDateType,TimeType)", (Duration(1, 2, 3), -5, 7)),
]


@pytest.mark.parametrize(("text", "value"), NESTED, ids=[text for text, _ in NESTED])
def test_types_made_of_others(text: str, value: Any) -> None:
    kind = class_type(text)
    driver = driver_of(kind)
    raw = kind.encode(value)
    assert raw == driver.serialize(in_theirs(kind, value), PROTOCOL)
    assert exact(kind.decode(raw)) == exact(value)
    assert exact(ours(kind, driver.deserialize(raw, PROTOCOL))) == exact(value)


@pytest.mark.parametrize("text", ["Int32Type", "UUIDType", "TimestampType", "DecimalType", "BooleanType"])
def test_the_driver_too_tells_no_bytes_from_null(text: str) -> None:
    driver = type("Empties", (lookup_casstype(text),), {"support_empty_values": True})
    assert driver.from_binary(b"", PROTOCOL) is not None
    assert class_type(text).decode(b"") is EMPTY


def test_a_day_beyond_every_calendar() -> None:
    kind = class_type("SimpleDateType")
    for days in (-(2**31), 2**31 - 1):
        raw = kind.encode(days)
        assert raw == struct.pack(">I", days + 2**31)
        assert lookup_casstype("SimpleDateType").deserialize(raw, PROTOCOL).days_from_epoch == days
