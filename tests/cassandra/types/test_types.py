"""Types: texts, bytes, values, order."""

from __future__ import annotations

import ipaddress
import math
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.types.typed import NATIVE_VALUES, kind_of, typed_values
from tests.examples import examples
from writetime.cassandra.model import Cell
from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.byte_comparable import encoder
from writetime.cassandra.types.native import reason
from writetime.cassandra.types.types import (
    EMPTY,
    NATIVE,
    CollectionType,
    CqlType,
    CustomType,
    Duration,
    TupleType,
    UdtType,
    VectorType,
    assemble,
    parse_type,
    quoted,
    wire_shape,
)
from writetime.errors import DecodeError, MalformedMutation, SchemaError

TYPES = {
    ("k", "addr"): UserType("k", "addr", ("street", "zip", "tags"), ("text", "int", "frozen<set<text>>")),
    ("k", "person"): UserType("k", "person", ("name", "a"), ("text", "frozen<addr>")),
    ("k", "Odd Name"): UserType("k", "Odd Name", ("x",), ("int",)),
}
UUID_1 = UUID("82866bc0-e583-11f1-b7bd-2316534838fc")
UUID_4 = UUID("3a86dbd7-386d-4afb-a1e2-e4fa98f6294e")


def type_of(text: str) -> CqlType:
    return parse_type(text, "k", TYPES)


# --- texts

SHAPES: list[tuple[str, int | None, bool]] = [
    ("int", 4, False),
    ("float", 4, False),
    ("bigint", 8, False),
    ("double", 8, False),
    ("timestamp", 8, False),
    ("uuid", 16, False),
    ("timeuuid", 16, False),
    ("boolean", 1, False),
    ("empty", 0, False),
    ("tinyint", None, False),
    ("smallint", None, False),
    ("date", None, False),
    ("time", None, False),
    ("inet", None, False),
    ("duration", None, False),
    ("counter", None, False),
    ("varint", None, False),
    ("decimal", None, False),
    ("text", None, False),
    ("varchar", None, False),
    ("ascii", None, False),
    ("blob", None, False),
    ("list<int>", None, True),
    ("frozen<list<int>>", None, False),
    ("set<text>", None, True),
    ("map<text, frozen<list<int>>>", None, True),
    ("tuple<int, text>", None, False),
    ("frozen<tuple<int, text>>", None, False),
    ("addr", None, True),
    ("frozen<addr>", None, False),
    ('"Odd Name"', None, True),
    ("unheard_of", None, True),
    ("vector<float, 3>", 12, False),
    ("vector<vector<int, 2>, 2>", 16, False),
    ("vector<text, 2>", None, False),
    ("vector<smallint, 4>", None, False),
    ("'org.apache.cassandra.db.marshal.EmptyType'", 0, False),
    ("'org.apache.cassandra.db.marshal.DateType'", 8, False),
    ("'org.apache.cassandra.db.marshal.LexicalUUIDType'", 16, False),
    ("'org.apache.cassandra.db.marshal.DynamicCompositeType(a=>org.apache.cassandra.db.marshal.AsciiType)'", None, False),
]


@pytest.mark.parametrize(("text", "fixed_length", "multicell"), SHAPES)
def test_shapes(text: str, fixed_length: int | None, multicell: bool) -> None:
    kind = type_of(text)
    assert (kind.fixed_length, kind.multicell) == (fixed_length, multicell)
    assert wire_shape(text) == (fixed_length, multicell)


@pytest.mark.parametrize("text", [shape[0] for shape in SHAPES])
def test_texts_come_back(text: str) -> None:
    again = type_of(str(type_of(text)))
    assert str(again) == str(type_of(text))
    assert again.multicell == type_of(text).multicell


def test_structure() -> None:
    kind = type_of('map<text, frozen<tuple<"Odd Name", vector<float, 3>>>>')
    assert isinstance(kind, CollectionType)
    inner = kind.elements[1]
    assert isinstance(inner, TupleType)
    udt, vector = inner.fields
    assert isinstance(udt, UdtType)
    assert (udt.name, udt.multicell, list(udt.known_fields)) == ("Odd Name", False, ["x"])
    assert isinstance(vector, VectorType)
    assert vector.dimension == 3
    assert isinstance(type_of("'a.b.C'"), CustomType)
    assert type_of("INT") is NATIVE["int"]
    assert str(parse_type("k.addr", "other", TYPES)) == "addr"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "list<",
        "list<int",
        "list<>",
        "map<int>",
        "list<int, int>",
        "tuple<>",
        "vector<int>",
        "vector<int, x>",
        "int int",
        "<",
        "a b",
        "[]",
    ],
)
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(SchemaError):
        type_of(text)


@pytest.mark.parametrize(("name", "text"), [("addr", "addr"), ("Addr", '"Addr"'), ("a b", '"a b"'), ('a"b', '"a""b"'), ("int", '"int"')])
def test_quoted_names(name: str, text: str) -> None:
    assert quoted(name) == text
    kind = type_of(text)
    assert isinstance(kind, UdtType)
    assert kind.name == name


# --- values

VALUES: list[tuple[str, str, Any]] = [
    ("int", "fffffffe", -2),
    ("tinyint", "80", -128),
    ("smallint", "7fff", 32_767),
    ("bigint", "8000000000000000", -(2**63)),
    ("timestamp", "000001a1fd2ac1d3", 1_795_248_800_211),
    ("timestamp", "8000000000000000", -(2**63)),
    ("date", "80000001", 1),
    ("date", "00000000", -(2**31)),
    ("time", "0000000000000001", 1),
    ("boolean", "01", True),
    ("boolean", "00", False),
    ("float", "3f000000", 0.5),
    ("double", "c000000000000000", -2.0),
    ("varint", "00", 0),
    ("varint", "7f", 127),
    ("varint", "0080", 128),
    ("varint", "80", -128),
    ("varint", "ff7f", -129),
    ("decimal", "0000000204d2", Decimal("12.34")),
    ("decimal", "fffffffd01", Decimal("1E+3")),
    ("decimal", "00000000ff", Decimal(-1)),
    ("text", "c3a9", "é"),
    ("text", "", ""),
    ("ascii", "61", "a"),
    ("blob", "00ff", b"\x00\xff"),
    ("blob", "", b""),
    ("inet", "0a010203", "10.1.2.3"),
    ("inet", "00000000000000000000000000000001", "::1"),
    ("uuid", UUID_4.hex, UUID_4),
    ("timeuuid", UUID_1.hex, UUID_1),
    ("duration", "020406", Duration(1, 2, 3)),
    ("duration", "010305", Duration(-1, -2, -3)),
    ("int", "", EMPTY),
    ("empty", "", EMPTY),
    ("timestamp", "", EMPTY),
    ("uuid", "", EMPTY),
    ("frozen<list<int>>", "", EMPTY),
    ("tuple<int, text>", "", EMPTY),
    ("frozen<addr>", "", EMPTY),
    ("vector<float, 3>", "", EMPTY),
    ("frozen<list<int>>", "0000000300000000ffffffff0000000400000001", [EMPTY, None, 1]),
    ("tuple<int, text>", "0000000000000000", (EMPTY, "")),
    ("frozen<list<int>>", "0000000200000004000000010000000400000002", [1, 2]),
    ("frozen<list<int>>", "00000000", []),
    ("frozen<list<int>>", "00000001ffffffff", [None]),
    ("frozen<set<text>>", "00000001000000026869", ["hi"]),
    ("frozen<map<text, int>>", "0000000100000001610000000400000007", [("a", 7)]),
    ("tuple<int, text>", "0000000400000001ffffffff", (1, None)),
    ("frozen<addr>", "0000000173000000040000000affffffff", {"street": "s", "zip": 10, "tags": None}),
    ("vector<float, 3>", "3f0000003f80000040000000", [0.5, 1.0, 2.0]),
    ("vector<text, 2>", "0002c3a9", ["", "é"]),
    ("vector<vector<int, 2>, 2>", "00000001000000000000000300000004", [[1, 0], [3, 4]]),
    ("'some.Custom'", "abcd", b"\xab\xcd"),
]


@pytest.mark.parametrize(("text", "raw", "value"), VALUES)
def test_values(text: str, raw: str, value: Any) -> None:
    kind = type_of(text)
    assert kind.decode(bytes.fromhex(raw)) == value
    assert kind.encode(value) == bytes.fromhex(raw)


def test_fields_that_are_not_there_are_null() -> None:
    one = struct.pack(">ii", 4, 7)
    assert type_of("tuple<int, text, int>").decode(one) == (7, None, None)
    assert type_of("frozen<person>").decode(b"") is EMPTY
    street = b"\0\0\0\1s"
    assert type_of("frozen<addr>").decode(street) == {"street": "s", "zip": None, "tags": None}


def test_fields_that_a_later_alter_added_are_passed_over() -> None:
    raw = type_of("frozen<addr>").encode({"street": "s", "zip": 1, "tags": []}) + b"\0\0\0\1x"
    assert type_of("frozen<addr>").decode(raw) == {"street": "s", "zip": 1, "tags": []}


def test_counters_are_sums_and_cannot_be_written() -> None:
    shards = UUID_4.bytes + struct.pack(">qq", 1, 92) + UUID_1.bytes + struct.pack(">qq", 1, -2)
    assert NATIVE["counter"].decode(b"\0\2\x80\0\x80\1" + shards) == 90
    assert NATIVE["counter"].decode(b"\0\0" + shards) == 90
    most = b"\0" * 24 + b"\x7f" + b"\xff" * 7
    assert NATIVE["counter"].decode(b"\0\0" + most + most) == -2, "as Java's long"
    with pytest.raises(DecodeError, match="a shard that does not exist"):
        NATIVE["counter"].decode(b"\0\1\x80\2" + shards)
    with pytest.raises(MalformedMutation):
        NATIVE["counter"].encode(90)


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("int", "00"),
        ("int", "0000000000"),
        ("boolean", "0000"),
        ("text", "ff"),
        ("ascii", "c3a9"),
        ("uuid", "00"),
        ("inet", "0a0102"),
        ("decimal", "0000"),
        ("duration", "02"),
        ("duration", "02040600"),
        ("date", "00"),
        ("empty", "00"),
        ("counter", "00018000ff"),
        ("counter", "000580000000"),
        ("frozen<list<int>>", "00000002000000040000"),
        ("frozen<list<int>>", "7fffffff"),
        ("frozen<list<int>>", "ffffffff"),
        ("frozen<list<int>>", "0000000000"),
        ("frozen<list<int>>", "00"),
        ("tuple<int>", "000000040000000100000000"),
        ("vector<int, 2>", "00000001"),
        ("vector<text, 1>", "0500"),
        ("vector<text, 1>", "0000"),
    ],
)
def test_bytes_that_are_no_value(text: str, raw: str) -> None:
    with pytest.raises(DecodeError):
        type_of(text).decode(bytes.fromhex(raw))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("int", "x"),
        ("int", 2**31),
        ("int", 10**5000),
        ("text", 5),
        ("uuid", "no"),
        ("inet", "x"),
        ("decimal", Decimal("NaN")),
        ("empty", 1),
        ("date", 2**31),
        ("vector<int, 2>", [1]),
        ("vector<int, 2>", [1, EMPTY]),
        ("vector<text, 1>", [None]),
        ("text", None),
        ("text", EMPTY),
        ("int", None),
        ("inet", "fe80::1%eth0"),
        ("boolean", 1),
        ("frozen<addr>", {"stret": "s"}),
        ("tuple<int>", (1, 2)),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_values_that_have_no_bytes(text: str, value: Any) -> None:
    with pytest.raises(DecodeError):
        type_of(text).encode(value)


def test_an_unknown_user_type_has_a_shape_but_no_values() -> None:
    kind = parse_type("frozen<nowhere>", "k", {})
    assert (kind.fixed_length, kind.multicell) == (None, False)
    with pytest.raises(SchemaError, match=r"k\.nowhere"):
        kind.decode(b"\0\0\0\0")


def test_every_native_type_is_tried() -> None:
    assert NATIVE.keys() == NATIVE_VALUES.keys() | {"counter"}


@settings(max_examples=examples(300))
@given(typed_values(), st.binary(max_size=40))
def test_any_bytes_are_a_value_or_an_error_of_ours(typed: tuple[str, Any], raw: bytes) -> None:
    kind = kind_of(typed[0])
    for call in (kind.decode, kind.sort_key):
        try:
            call(raw)
        except DecodeError as error:
            assert error.operation in ("decode a value", "order a value", "read a vint")  # noqa: PT017 - any outcome but another error is fine


# --- order


def encoded(text: str, *values: Any) -> list[bytes]:
    return [type_of(text).encode(value) for value in values]


NAN = struct.pack(">d", math.nan)
ORDERED: list[tuple[str, list[bytes]]] = [
    ("int", [b"", *(struct.pack(">i", n) for n in (-(2**31), -1, 0, 1, 2**31 - 1))]),
    ("timestamp", [struct.pack(">q", n) for n in (-5, 0, 5)]),
    ("date", [struct.pack(">I", n) for n in (0, 2**31 - 1, 2**31, 2**32 - 1)]),
    ("time", [struct.pack(">q", n) for n in (0, 1, 255, 256)]),
    ("boolean", [b"", b"\0", b"\1"]),
    ("text", [b"", b"A", b"a", b"aa", b"b", "é".encode()]),
    ("blob", [b"", b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\0"]),
    ("double", [b"", *(struct.pack(">d", x) for x in (-math.inf, -1.5, -0.0, 0.0, 1e-300, 1.5, math.inf)), NAN]),
    ("float", [struct.pack(">f", x) for x in (-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan)]),
    ("varint", [NATIVE["varint"].encode(n) for n in (-(10**30), -129, -1, 0, 127, 128, 10**30)]),
    ("decimal", [NATIVE["decimal"].encode(Decimal(n)) for n in ("-1E+9", "-1.01", "-1.0", "0.999", "1", "1E+100")]),
    ("inet", [ipaddress.ip_address(a).packed for a in ("::1", "1.2.3.4", "10.0.0.0", "255.0.0.0")]),
    (
        "timeuuid",
        [
            UUID("ffffffff-0000-1000-8080-808080808080").bytes,
            UUID("00000000-0001-1000-8080-808080808080").bytes,
            UUID("00000000-0001-1000-8080-80808080807f").bytes,
            UUID("00000000-0001-1000-bfff-7f7f7f7f7f7f").bytes,
            UUID("00000000-0000-1001-8080-808080808080").bytes,
        ],
    ),
    (
        "uuid",
        [
            UUID("ffffffff-0000-1000-8000-000000000000").bytes,
            UUID("00000000-0001-1000-8000-000000000000").bytes,
            UUID("00000000-0001-1000-bfff-000000000000").bytes,
            UUID("00000000-0000-4000-8000-000000000000").bytes,
            UUID("00000001-0000-4000-8000-000000000000").bytes,
            UUID("ffffffff-0000-4000-8000-000000000000").bytes,
        ],
    ),
    ("frozen<list<int>>", [b"", *encoded("frozen<list<int>>", [], [-1], [1], [1, -5], [1, 2], [2])]),
    ("frozen<map<text, int>>", encoded("frozen<map<text, int>>", [], [("a", 1)], [("a", 1), ("b", 0)], [("a", 2)], [("b", 0)])),
    ("tuple<int, text>", encoded("tuple<int, text>", (None, "z"), (1, None), (1, ""), (1, "a"), (2, None))),
    ("frozen<addr>", encoded("frozen<addr>", {"street": "a"}, {"street": "a", "zip": -1}, {"street": "a", "zip": 3}, {"street": "b"})),
    ("vector<int, 2>", encoded("vector<int, 2>", [-1, 5], [0, -5], [0, 5], [1, 0])),
]


@pytest.mark.parametrize(("text", "ordered"), ORDERED, ids=[case[0] for case in ORDERED])
def test_order(text: str, ordered: list[bytes]) -> None:
    kind = type_of(text)
    shuffled = random.Random(7).sample(ordered, len(ordered))
    assert sorted(shuffled, key=kind.sort_key) == ordered
    assert all(kind.sort_key(a) < kind.sort_key(b) for i, a in enumerate(ordered) for b in ordered[i + 1 :])


def test_equal_in_order_though_not_in_bytes() -> None:
    decimal, pair = NATIVE["decimal"], type_of("tuple<int, int>")
    assert decimal.sort_key(decimal.encode(Decimal("1.0"))) == decimal.sort_key(decimal.encode(Decimal("1.00")))
    assert pair.sort_key(pair.encode((1, None))) == pair.sort_key(pair.encode((1, None))[:8])


@settings(max_examples=examples(200))
@given(st.data(), st.sampled_from(["tinyint", "int", "bigint", "varint", "decimal", "double", "float", "date", "boolean"]))
def test_numbers_order_as_numbers(data: st.DataObject, name: str) -> None:
    a, b = data.draw(NATIVE_VALUES[name]), data.draw(NATIVE_VALUES[name])
    kind = NATIVE[name]
    if a < b:
        assert kind.sort_key(kind.encode(a)) < kind.sort_key(kind.encode(b))


# --- cells to values


def cells(*elements: tuple[bytes, bytes]) -> list[Cell]:
    return [Cell("x", 1, value, path) for path, value in elements]


def test_assemble_lists_by_time() -> None:
    early, late = UUID("ffffffff-0000-1000-8080-808080808080").bytes, UUID("00000000-0001-1000-8080-808080808080").bytes
    kind = type_of("list<int>")
    assert assemble(kind, cells((late, b"\0\0\0\2"), (early, b"\0\0\0\1"))) == [1, 2]


def test_assemble_sets_and_maps_by_element() -> None:
    minus, one = struct.pack(">i", -1), struct.pack(">i", 1)
    assert assemble(type_of("set<int>"), cells((one, b""), (minus, b""))) == [-1, 1]
    assert assemble(type_of("map<int, text>"), cells((one, b"a"), (minus, b""))) == [(-1, ""), (1, "a")]


def test_assemble_user_types_with_all_fields() -> None:
    kind = type_of("addr")
    assert assemble(kind, cells((b"\0\1", struct.pack(">i", 7)))) == {"street": None, "zip": 7, "tags": None}


def test_assemble_simple_and_nothing() -> None:
    assert assemble(type_of("int"), [Cell("x", 1, b"\0\0\0\5")]) == 5
    assert assemble(type_of("frozen<list<int>>"), [Cell("x", 1, bytes(4))]) == []
    for text in ("int", "list<int>", "map<int, int>", "addr"):
        assert assemble(type_of(text), []) is None


@pytest.mark.parametrize("dimension", ["0", "-1", str(1 << 31), "9" * 5000])
def test_a_vector_has_one_to_2_31_elements(dimension: str) -> None:
    assert str(parse_type(f"vector<float, {(1 << 31) - 1}>", "k", {})).endswith("2147483647>")
    with pytest.raises(SchemaError):
        parse_type(f"vector<float, {dimension}>", "k", {})


OTHERS_SECRET = b"\xffhunter2 is what they hold"
READ_FROM_IT = ("hunter2", OTHERS_SECRET.hex(), "\\xff", "0xff", str(int.from_bytes(OTHERS_SECRET[:4], "big", signed=True)))
KINDS = [*NATIVE, "frozen<list<text>>", "frozen<map<inet, int>>", "frozen<addr>", "frozen<tuple<text, inet>>", "vector<inet, 2>"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 5, 17, len(OTHERS_SECRET)])
def test_what_is_refused_is_told_without_its_bytes(kind: str, size: int) -> None:
    """The value may belong to another column or table, and the reason is written to ledgers, logs and
    topics."""
    told = [_told(read, OTHERS_SECRET[:size]) for read in (type_of(kind).decode, type_of(kind).sort_key, encoder(type_of(kind)))]
    assert [(secret, text) for secret in READ_FROM_IT for text in told if secret in text] == []


def _told(read: Callable[[bytes], Any], data: bytes) -> str:
    try:
        read(data)
    except DecodeError as error:
        return str(error)
    except (struct.error, IndexError, ValueError, ArithmeticError) as error:
        return reason(error)
    return ""
