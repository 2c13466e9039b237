"""Values of events, from what the warehouse holds: the forms of `writetime.events.json` and
`writetime.events.avro`."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from tests.cassandra.types.typed import kind_of, typed_values
from tests.events.test_round_trips import IN_ARROW
from tests.examples import examples
from writetime.cassandra.types.types import CqlType
from writetime.errors import DecodeError
from writetime.events.arrow import arrow_type, from_arrow_value, to_arrow_value
from writetime.events.avro import Names, to_avro_value, without_calendar
from writetime.events.converters import AvroForm, Form, JsonForm
from writetime.events.envelope import encode, rows_of
from writetime.events.json import to_json_value


def shown(kind: CqlType, held: Any, form: Form) -> Any:
    """A value as Arrow takes it in the form."""
    (row,) = rows_of(pa.RecordBatch.from_arrays([pa.array([held], arrow_type(kind))], ["v"]))
    convert = form.converter(kind)
    return row["v"] if convert is None or row["v"] is None else convert(row["v"])


@pytest.mark.parametrize(
    ("kind", "held", "expected"),
    [
        ("text", "é", "é"),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("blob", b"\0\xff", "AP8="),
        ("boolean", True, True),
        ("double", 0.1, 0.1),
        ("float", 0.1, 0.1),
        ("double", math.nan, "NaN"),
        ("list<float>", [-math.inf, None], ["-Infinity", None]),
        ("timestamp", 1_795_248_835_551_000, "2026-11-21T08:13:55.551Z"),
        ("timestamp", -1000, "1969-12-31T23:59:59.999Z"),
        ("date", 2**31 - 1, "+5881580-07-11"),
        ("tuple<int, timestamp>", {"field_1": 1, "field_2": 0}, {"field_1": 1, "field_2": "1970-01-01T00:00:00.000Z"}),
        ("map<text, int>", [("a", 1), ("b", None)], {"a": 1, "b": None}),
        ("map<int, text>", [(7, "x")], [{"key": 7, "value": "x"}]),
        ("map<varint, date>", [("7", 0)], {"7": "1970-01-01"}),
        ("map<timestamp, int>", [(10**15, 1)], [{"key": "2001-09-09T01:46:40.000Z", "value": 1}]),
    ],
)
def test_values_in_json(kind: str, held: Any, expected: Any) -> None:
    assert json.loads(encode(shown(kind_of(kind), held, JsonForm()))) == expected


@pytest.mark.parametrize(
    ("times", "timestamp", "date"),
    [("isostring", "2001-09-09T01:46:40.123Z", "2001-09-09"), ("adaptive", 10**12 + 123, 11574), ("microseconds", 10**15 + 123_000, 11574)],
)
def test_times_in_json(times: Any, timestamp: Any, date: Any) -> None:
    form = JsonForm(times=times)
    assert shown(kind_of("timestamp"), 10**15 + 123_000, form) == timestamp
    assert shown(kind_of("list<date>"), [11574], form) == [date]
    assert shown(kind_of("map<timestamp, time>"), [(10**15 + 123_000, 5)], form) == [{"key": timestamp, "value": 5}]


@settings(max_examples=examples(200))
@given(typed_values(limits=IN_ARROW, empty_keys=False))
def test_json_is_as_the_table_of_types_says(typed: tuple[str, Any]) -> None:
    """But for zero-length values, which are what the warehouse made of them, and for maps with numbers of any
    size as keys."""
    text, value = typed
    assume(not any(f"map<{name}," in text for name in ("varint", "decimal")))
    kind = kind_of(text)
    held = to_arrow_value(kind, value)
    expected = to_json_value(kind, from_arrow_value(kind, held))
    assert json.dumps(shown(kind, held, JsonForm()), sort_keys=True) == json.dumps(expected, sort_keys=True)


@settings(max_examples=examples(200))
@given(typed_values(limits=IN_ARROW, empty_keys=False))
def test_avro_is_as_the_table_of_types_says(typed: tuple[str, Any]) -> None:
    text, value = typed
    kind = kind_of(text)
    held = to_arrow_value(kind, value)
    datum = shown(kind, held, AvroForm())
    try:
        expected = to_avro_value(kind, from_arrow_value(kind, held))
    except DecodeError:
        reject()  # a key that holds a null for a zero-length value, which has no bytes to compare by
    assert repr(datum) == repr(expected)


@settings(max_examples=examples(100))
@given(typed_values(limits=IN_ARROW, empty_keys=False), st.sampled_from(["precise", "double"]))
def test_other_numbers_fit_their_schema(typed: tuple[str, Any], numbers: Any) -> None:
    text, value = typed
    kind = kind_of(text)
    schema = fastavro.parse_schema(without_calendar(Names(lambda _: numbers).nullable(kind)))
    datum = shown(kind, to_arrow_value(kind, value), AvroForm(numbers))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, datum)
    out.seek(0)
    found = re.sub(r"UUID\(('[^']*')\)", r"\1", repr(fastavro.schemaless_reader(out, schema, None)))
    assert found == repr(datum) or "float" in text
    json.dumps(shown(kind, to_arrow_value(kind, value), JsonForm(numbers)))


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_precise_numbers_are_exact(value: Decimal) -> None:
    found = shown(kind_of("decimal"), str(value), AvroForm("precise"))
    unscaled = Decimal(int.from_bytes(found["value"], "big", signed=True)).as_tuple().digits
    assert (unscaled, found["value"][0] >= 0x80, found["scale"]) == (
        tuple(value.as_tuple().digits),
        value < 0,
        -int(value.as_tuple().exponent),
    )
    in_json = shown(kind_of("decimal"), str(value), JsonForm("precise"))
    assert (base64.b64decode(in_json["value"]), in_json["scale"]) == (found["value"], found["scale"])


@pytest.mark.parametrize("form", [JsonForm(varints="long"), AvroForm(varints="long")], ids=["json", "avro"])
def test_varints_as_longs_or_an_error(form: Form) -> None:
    for number in (0, -(2**63), 2**63 - 1):
        assert shown(kind_of("varint"), str(number), form) == number
    assert shown(kind_of("varint"), "", form) is None
    assert shown(kind_of("decimal"), "1.50", form) == "1.50"
    for text in (str(2**63), str(-(2**63) - 1), "9" * 10_000):
        with pytest.raises(DecodeError, match=r"larger than 64 bits"):
            shown(kind_of("varint"), text, form)


def test_doubles_are_the_nearest_and_huge_ones_say_so() -> None:
    form = JsonForm("double")
    assert [shown(kind_of("varint"), text, form) for text in ("12", "-1" + 400 * "0", "")] == [12.0, "-Infinity", None]
    assert shown(kind_of("decimal"), "1E+999", AvroForm("double")) == math.inf
