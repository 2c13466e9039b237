"""Values as CQL literals, and parsing of key literals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.literal import literal, literal_of, micros_text, parse_literal, text_literal
from writetime.cassandra.types.types import parse_type
from writetime.errors import DecodeError

TYPES = {("k", "addr"): UserType("k", "addr", ("street", "Zip"), ("text", "int"))}

CASES = [
    ("int", "fffffffe", "-2"),
    ("varint", "0080", "128"),
    ("counter", "00018000" + "00" * 24 + "000000000000005c", "92"),
    ("decimal", "000000027b", "1.23"),
    ("decimal", "fffffffe7b", "1.23E+4"),
    ("double", "3ff8000000000000", "1.5"),
    ("double", "7ff8000000000000", "NaN"),
    ("float", "ff800000", "-Infinity"),
    ("boolean", "01", "true"),
    ("text", "", "''"),
    ("text", "69742773", "'it''s'"),
    ("ascii", "610a1b62", r"'a\n\u001bb'"),
    ("blob", "", "0x"),
    ("blob", "00ff", "0x00ff"),
    ("uuid", "3a86dbd7386d4afba1e2e4fa98f6294e", "3a86dbd7-386d-4afb-a1e2-e4fa98f6294e"),
    ("inet", "7f000001", "'127.0.0.1'"),
    ("inet", "00000000000000000000000000000001", "'::1'"),
    ("date", "80000001", "'1970-01-02'"),
    ("date", "00000000", "0"),
    ("time", "00004e94914f0000", "'24:00:00.000000000'"),
    ("timestamp", "0000000000000001", "'1970-01-01 00:00:00.001Z'"),
    ("timestamp", "7fffffffffffffff", "9223372036854775807"),
    ("duration", "020406", "1mo2d3ns"),
    ("duration", "010305", "-1mo2d3ns"),
    ("duration", "000000", "0ns"),
    ("int", "", "<empty>"),
    ("list<int>", "0000000200000004000000010000000400000002", "[1, 2]"),
    ("frozen<set<text>>", "00000001" + "0000000161", "{'a'}"),
    ("map<text, int>", "00000001" + "0000000161" + "0000000400000005", "{'a': 5}"),
    ("tuple<int, text>", "0000000400000001" + "ffffffff", "(1, null)"),
    ("frozen<addr>", "0000000161" + "0000000400000007", "{street: 'a', \"Zip\": 7}"),
    ("vector<float, 2>", "3f8000003f000000", "[1.0, 0.5]"),
    ("'org.example.Shape'", "beef", "0xbeef"),
    ("int", "0102", "<0x0102: no int (MalformedMutation)>"),
    ("frozen<unheard_of>", "01", "<0x01: no frozen<unheard_of> (SchemaError)>"),
]


@pytest.mark.parametrize(("type_text", "raw", "expected"), CASES)
def test_a_value_as_people_read_it(type_text: str, raw: str, expected: str) -> None:
    assert literal_of(parse_type(type_text, "k", TYPES), bytes.fromhex(raw)) == expected


def test_null_and_far_times() -> None:
    assert literal_of(parse_type("int", "k", {}), None) == "null"
    assert literal(parse_type("list<int>", "k", {}), None) == "null"
    assert micros_text(-(2**63)) == str(-(2**63))
    assert micros_text(-1) == "1969-12-31 23:59:59.999999Z"


@given(st.text())
def test_text_never_reaches_the_terminal_raw(text: str) -> None:
    shown = text_literal(text)
    assert shown.isprintable()
    assert shown.isascii() or not text.isascii()
    if text.isprintable():
        assert parse_literal(parse_type("text", "k", {}), shown) == text


@pytest.mark.parametrize(
    ("type_text", "text", "raw"),
    [
        ("text", "plain", "706c61696e"),
        ("text", "'a''b'", "612762"),
        ("text", "''", ""),
        ("int", "-1", "ffffffff"),
        ("bigint", "5", "0000000000000005"),
        ("varint", "128", "0080"),
        ("decimal", "1.23", "000000027b"),
        ("double", "1.5", "3ff8000000000000"),
        ("boolean", "True", "01"),
        ("blob", "0x00ff", "00ff"),
        ("uuid", "3a86dbd7-386d-4afb-a1e2-e4fa98f6294e", "3a86dbd7386d4afba1e2e4fa98f6294e"),
        ("inet", "::1", "00000000000000000000000000000001"),
        ("date", "1970-01-02", "80000001"),
        ("time", "00:00:00.5", "000000001dcd6500"),
        ("timestamp", "'1970-01-01T00:00:00.001Z'", "0000000000000001"),
        ("timestamp", "1970-01-01", "0000000000000000"),
        ("timestamp", "-1", "ffffffffffffffff"),
    ],
)
def test_a_key_as_people_write_it(type_text: str, text: str, raw: str) -> None:
    kind = parse_type(type_text, "k", {})
    assert kind.encode(parse_literal(kind, text)).hex() == raw


@pytest.mark.parametrize(
    ("type_text", "text"),
    [
        ("int", "one"),
        ("boolean", "yes"),
        ("blob", "ff"),
        ("uuid", "42"),
        ("timestamp", "soon"),
        ("inet", "1.2.3"),
        ("decimal", "x"),
        ("frozen<list<int>>", "[1]"),
        ("date", "1"),
    ],
)
def test_what_is_no_literal_of_the_type(type_text: str, text: str) -> None:
    with pytest.raises(DecodeError):
        parse_literal(parse_type(type_text, "k", {}), text)


@given(st.datetimes())
def test_what_is_shown_of_a_timestamp_can_be_given_back(moment: object) -> None:
    kind = parse_type("timestamp", "k", {})
    raw = kind.encode(parse_literal(kind, str(moment)))
    assert kind.encode(parse_literal(kind, literal_of(kind, raw))) == raw


@given(st.sampled_from([type_text for type_text, _, _ in CASES]), st.binary(max_size=40))
def test_whatever_is_in_a_cell_can_be_shown(type_text: str, raw: bytes) -> None:
    assert literal_of(parse_type(type_text, "k", TYPES), raw).isprintable()
