"""Every type, nested at will: to bytes, Arrow, Avro and JSON, and back."""

from __future__ import annotations

import io
import json
import math
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cassandra.types.typed import NATIVE_VALUES, exact, kind_of, shown, typed_values
from tests.examples import examples
from writetime.cassandra.types.types import EMPTY, NATIVE, CqlType
from writetime.errors import DecodeError
from writetime.events.arrow import arrow_type, from_arrow_value, plain_values, to_arrow_value
from writetime.events.avro import avro_type, from_avro_value, to_avro_value, without_calendar
from writetime.events.json import from_json_value, to_json_value
from writetime.events.type_mapping import TABLE

SETTINGS = settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
IN_ARROW = {"timestamp": st.integers(-((2**63 - 1) // 1000), (2**63 - 1) // 1000)}
KEPT_BY_ARROW = frozenset(name for name, row in TABLE.items() if row.empty.startswith('""'))
KEPT_BY_AVRO = frozenset(name for name, row in TABLE.items() if row.empty == '""')


def through_arrow(kind: CqlType, value: Any) -> Any:
    array = pa.array([to_arrow_value(kind, value), None], arrow_type(kind))
    back, nothing = plain_values(array)
    assert nothing is None
    return from_arrow_value(kind, back)


def through_avro(kind: CqlType, value: Any, *, calendar: bool = False) -> Any:
    schema = ["null", avro_type(kind)]
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), to_avro_value(kind, value))
    buffer.seek(0)
    reading = fastavro.parse_schema(schema if calendar else without_calendar(schema))
    return from_avro_value(kind, fastavro.schemaless_reader(buffer, reading, None))


def through_json(kind: CqlType, value: Any) -> Any:
    return from_json_value(kind, json.loads(json.dumps(to_json_value(kind, value), allow_nan=False)))


@SETTINGS
@given(typed_values())
def test_bytes(typed: tuple[str, Any]) -> None:
    kind, value = kind_of(typed[0]), typed[1]
    raw = kind.encode(value)
    again = kind.decode(raw)
    assert exact(again) == exact(value)
    assert kind.encode(again) == raw
    assert value is EMPTY or kind.fixed_length in (None, len(raw))
    kind.sort_key(raw)


@SETTINGS
@given(typed_values(limits=IN_ARROW, empty_keys=False))
def test_arrow(typed: tuple[str, Any]) -> None:
    kind, value = kind_of(typed[0]), typed[1]
    assert exact(through_arrow(kind, value)) == exact(shown(kind, value, KEPT_BY_ARROW))


@SETTINGS
@given(typed_values())
def test_avro(typed: tuple[str, Any]) -> None:
    kind, value = kind_of(typed[0]), typed[1]
    assert exact(through_avro(kind, value)) == exact(shown(kind, value, KEPT_BY_AVRO))


@SETTINGS
@given(typed_values())
def test_json(typed: tuple[str, Any]) -> None:
    kind, value = kind_of(typed[0]), typed[1]
    assert exact(through_json(kind, value)) == exact(value)


@pytest.mark.parametrize("name", sorted(NATIVE_VALUES))
@settings(max_examples=examples(60))
@given(st.data())
def test_each_native_type(name: str, data: st.DataObject) -> None:
    kind = NATIVE[name]
    value = data.draw({**NATIVE_VALUES, **IN_ARROW}[name])
    for way in (through_arrow, through_avro, through_json):
        assert exact(way(kind, value)) == exact(value)


@pytest.mark.parametrize("name", sorted(NATIVE))
def test_zero_length_values_are_as_the_table_says(name: str) -> None:
    kind = NATIVE[name]
    value = kind.decode(b"") if name != "counter" else EMPTY
    assert kind.encode(value) == b""
    assert value is not None
    assert exact(through_arrow(kind, value)) == exact(value if name in KEPT_BY_ARROW else None)
    assert exact(through_avro(kind, value)) == exact(value if name in KEPT_BY_AVRO else None)
    assert through_json(kind, value) is value or through_json(kind, value) == value


def test_counters_are_numbers_on_their_way_out() -> None:
    for way in (through_arrow, through_avro, through_json):
        assert way(NATIVE["counter"], -(2**63)) == -(2**63)


@pytest.mark.parametrize(
    ("name", "raw"), [("float", "7fc12345"), ("float", "ffc00001"), ("double", "7ff8000000012345"), ("double", "fff8000000000001")]
)
def test_nan_keeps_its_payload_but_in_json(name: str, raw: str) -> None:
    kind = NATIVE[name]
    value = kind.decode(bytes.fromhex(raw))
    for way in (through_arrow, through_avro):
        assert kind.encode(way(kind, value)).hex() == raw
    assert math.isnan(through_json(kind, value))


def test_the_signalling_bit_of_a_float_is_lost_and_nothing_else() -> None:
    signalling = struct.pack(">I", 0x7FA00001)
    assert NATIVE["float"].encode(NATIVE["float"].decode(signalling)) in (signalling, struct.pack(">I", 0x7FE00001))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("timestamp", 0),
        ("timestamp", 253_402_300_799_999),
        ("timestamp", -62_135_596_800_000),
        ("date", 0),
        ("date", 2_932_896),
        ("date", -719_162),
    ],
)
def test_moments_and_days_of_four_digits_come_back_from_pythons_calendar(text: str, value: int) -> None:
    assert through_avro(NATIVE[text], value, calendar=True) == value


def test_a_text_key_twice_is_refused_not_lost() -> None:
    kind = kind_of("map<text, int>")
    for way in (to_avro_value, to_json_value):
        with pytest.raises(DecodeError, match="duplicate key"):
            way(kind, [("a", 1), ("a", 2)])
    assert through_arrow(kind, [("a", 1), ("a", 2)]) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("int", "1"),
        ("blob", "%"),
        ("blob", 5),
        ("uuid", "no"),
        ("date", "2026-02-30"),
        ("date", "26-02-03"),
        ("timestamp", "2026-11-21"),
        ("decimal", "one"),
        ("duration", {"months": 1}),
        ("frozen<map<int, int>>", [{"key": 1}]),
        ("frozen<list<int>>", 5),
    ],
)
def test_json_that_is_no_value(name: str, document: Any) -> None:
    kind = kind_of(name)
    with pytest.raises(DecodeError):
        kind.encode(from_json_value(kind, document))


@pytest.mark.parametrize("text", ["map<text, int>", "map<uuid, int>"])
def test_a_null_key_is_refused_where_keys_are_text(text: str) -> None:
    for way in (to_arrow_value, to_avro_value, to_json_value):
        with pytest.raises(DecodeError, match="key"):
            way(kind_of(text), [(None, 1)])


def test_keys_that_would_become_one_are_refused() -> None:
    """As a tuple's part, a zero-length int is null in Arrow and Avro; JSON tells the two apart."""
    kind = kind_of("frozen<map<frozen<tuple<int, varint>>, int>>")
    keys = [((None, 10**5000), 1), ((EMPTY, 10**5000), 2)]
    for way in (to_arrow_value, to_avro_value):
        with pytest.raises(DecodeError, match="would become equal"):
            way(kind, keys)
        way(kind, keys[:1] * 2)
    assert through_json(kind, keys) == keys
    scaled = [(Decimal("1.0"), 1), (Decimal("1.00"), 2)]
    assert through_avro(kind_of("map<decimal, int>"), scaled) == scaled
