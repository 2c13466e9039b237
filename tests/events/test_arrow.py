"""Values on their way out."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.types import EMPTY, NATIVE, Duration, parse_type
from writetime.errors import DecodeError, SchemaError
from writetime.events.arrow import arrow_type, to_arrow_value
from writetime.events.json import to_json_value
from writetime.events.type_mapping import TABLE
from writetime.events.values import iso_date, iso_timestamp

TYPES = {("k", "addr"): UserType("k", "addr", ("street", "since"), ("text", "timestamp"))}
ID = UUID("3a86dbd7-386d-4afb-a1e2-e4fa98f6294e")
UTC_MICROS = pa.timestamp("us", tz="UTC")
DURATION = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])

CASES: list[tuple[str, Any, pa.DataType, Any, Any]] = [
    # CQL type, value, Arrow type, what Arrow gives back, JSON
    ("text", "é", pa.string(), "é", "é"),
    ("ascii", "a", pa.string(), "a", "a"),
    ("blob", b"\0\xff", pa.binary(), b"\0\xff", "AP8="),
    ("boolean", True, pa.bool_(), True, True),
    ("tinyint", -1, pa.int32(), -1, -1),
    ("smallint", -1, pa.int32(), -1, -1),
    ("int", -1, pa.int32(), -1, -1),
    ("bigint", 2**63 - 1, pa.int64(), 2**63 - 1, 2**63 - 1),
    ("counter", 5, pa.int64(), 5, 5),
    ("float", 0.5, pa.float32(), 0.5, 0.5),
    ("float", NATIVE["float"].decode(NATIVE["float"].encode(0.1)), pa.float32(), 0.10000000149011612, 0.1),
    ("double", 0.1, pa.float64(), 0.1, 0.1),
    ("double", float("inf"), pa.float64(), float("inf"), "Infinity"),
    ("float", float("-inf"), pa.float32(), float("-inf"), "-Infinity"),
    ("timestamp", 1_795_248_835_551, UTC_MICROS, datetime(2026, 11, 21, 8, 13, 55, 551_000, UTC), "2026-11-21T08:13:55.551Z"),
    ("timestamp", -1, UTC_MICROS, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), "1969-12-31T23:59:59.999Z"),
    ("date", 20_778, pa.date32(), date(2026, 11, 21), "2026-11-21"),
    ("time", 86_399_999_999_999, pa.int64(), 86_399_999_999_999, 86_399_999_999_999),
    ("varint", -(10**30), pa.string(), "-1" + "0" * 30, "-1" + "0" * 30),
    ("decimal", Decimal("1.10"), pa.string(), "1.10", "1.10"),
    ("decimal", Decimal("1E+3"), pa.string(), "1E+3", "1E+3"),
    ("inet", "10.1.2.3", pa.string(), "10.1.2.3", "10.1.2.3"),
    ("uuid", ID, pa.string(), str(ID), str(ID)),
    ("timeuuid", ID, pa.string(), str(ID), str(ID)),
    ("duration", Duration(1, 2, 3), DURATION, {"months": 1, "days": 2, "nanoseconds": 3}, {"months": 1, "days": 2, "nanoseconds": 3}),
    ("list<int>", [1, None], pa.list_(pa.int32()), [1, None], [1, None]),
    ("set<blob>", [b"a"], pa.list_(pa.binary()), [b"a"], ["YQ=="]),
    ("map<text, uuid>", [("a", ID)], pa.map_(pa.string(), pa.string()), [("a", str(ID))], {"a": str(ID)}),
    ("map<uuid, int>", [(ID, 1)], pa.map_(pa.string(), pa.int32()), [(str(ID), 1)], {str(ID): 1}),
    ("map<int, text>", [(1, "a")], pa.map_(pa.int32(), pa.string()), [(1, "a")], [{"key": 1, "value": "a"}]),
    (
        "frozen<addr>",
        {"street": "s", "since": 0},
        pa.struct([("street", pa.string()), ("since", UTC_MICROS)]),
        {"street": "s", "since": datetime(1970, 1, 1, tzinfo=UTC)},
        {"street": "s", "since": "1970-01-01T00:00:00.000Z"},
    ),
    (
        "tuple<int, varint>",
        (1, 2),
        pa.struct([("field_1", pa.int32()), ("field_2", pa.string())]),
        {"field_1": 1, "field_2": "2"},
        {"field_1": 1, "field_2": "2"},
    ),
    ("vector<float, 2>", [0.5, 1.0], pa.list_(pa.float32()), [0.5, 1.0], [0.5, 1.0]),
    ("'some.Custom'", b"\1", pa.binary(), b"\1", "AQ=="),
    (
        "map<text, frozen<list<frozen<addr>>>>",
        [("x", [{"street": None, "since": 1}])],
        pa.map_(pa.string(), pa.list_(pa.struct([("street", pa.string()), ("since", UTC_MICROS)]))),
        [("x", [{"street": None, "since": datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)}])],
        {"x": [{"street": None, "since": "1970-01-01T00:00:00.001Z"}]},
    ),
]


@pytest.mark.parametrize(
    ("text", "value", "expected_type", "arrow", "as_json"), CASES, ids=[f"{case[0]}={case[1]!r}"[:40] for case in CASES]
)
def test_values(text: str, value: Any, expected_type: pa.DataType, arrow: Any, as_json: Any) -> None:
    kind = parse_type(text, "k", TYPES)
    assert arrow_type(kind) == expected_type
    array = pa.array([to_arrow_value(kind, value), None], expected_type)
    assert array.to_pylist() == [arrow, None]
    assert json.loads(json.dumps(to_json_value(kind, value), allow_nan=False)) == as_json
    assert to_arrow_value(kind, None) is None
    assert to_json_value(kind, None) is None


def test_every_native_type_has_an_arrow_type() -> None:
    assert TABLE.keys() == NATIVE.keys()
    for kind in NATIVE.values():
        assert isinstance(arrow_type(kind), pa.DataType)


def test_nan_in_json() -> None:
    assert to_json_value(NATIVE["float"], float("nan")) == "NaN"
    assert to_json_value(NATIVE["double"], float("nan")) == "NaN"


def test_timestamps_beyond_what_arrow_holds_are_refused_not_bent() -> None:
    limit = (2**63 - 1) // 1000
    assert to_arrow_value(NATIVE["timestamp"], limit) == limit * 1000
    for beyond in (limit + 1, -limit - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(DecodeError):
            to_arrow_value(NATIVE["timestamp"], beyond)


@pytest.mark.parametrize(
    ("text", "value"), [("duration", Duration(2**31, 0, 0)), ("duration", Duration(0, -(2**31) - 1, 0)), ("map<int, int>", [(EMPTY, 1)])]
)
def test_what_arrow_cannot_hold_is_refused(text: str, value: Any) -> None:
    with pytest.raises(DecodeError):
        to_arrow_value(parse_type(text, "k", {}), value)


def test_an_unknown_user_type_has_no_arrow_type() -> None:
    with pytest.raises(SchemaError):
        arrow_type(parse_type("nowhere", "k", {}))


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (-719_528, "0000-01-01"),
        (-719_529, "-0001-12-31"),
        (2**31 - 1, "+5881580-07-11"),
        (-(2**31), "-5877641-06-23"),
        (2_932_896, "9999-12-31"),
        (2_932_897, "+10000-01-01"),
    ],
)
def test_days_of_any_year(days: int, text: str) -> None:
    assert iso_date(days) == text


@given(st.dates())
def test_days_agree_with_the_calendar(day: date) -> None:
    assert iso_date((day - date(1970, 1, 1)).days) == day.isoformat()


@given(st.datetimes(timezones=st.just(UTC)))
def test_timestamps_agree_with_the_calendar(moment: datetime) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    milliseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // (
        datetime(1970, 1, 1, 0, 0, 0, 1000, UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    )
    assert iso_timestamp(milliseconds) == moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_in_json_are_the_same_floats(value: float) -> None:
    kind = NATIVE["float"]
    assert kind.encode(to_json_value(kind, value)) == kind.encode(value)
