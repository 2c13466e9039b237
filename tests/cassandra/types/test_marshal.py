"""Types named by Java classes: parsing, and components and order of composites."""

from __future__ import annotations

import random
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.cassandra.types.compound import MAX_DEPTH
from writetime.cassandra.types.marshal import (
    NATIVE_CLASSES,
    PACKAGE,
    Component,
    CompositeType,
    DynamicCompositeType,
    ReversedType,
    class_type,
)
from writetime.cassandra.types.types import NATIVE, CqlType, CustomType, parse_type
from writetime.errors import DecodeError, SchemaError

COMPOSITE = "CompositeType(UTF8Type,ReversedType(Int32Type))"
DYNAMIC = f"{PACKAGE}DynamicCompositeType(a=>{PACKAGE}AsciiType,i=>Int32Type,r=>ReversedType(Int32Type))"


def composite() -> CompositeType:
    kind = parse_type(f"'{COMPOSITE}'", "k", {})
    assert isinstance(kind, CompositeType)
    return kind


def dynamic() -> DynamicCompositeType:
    kind = parse_type(f"'{DYNAMIC}'", "k", {})
    assert isinstance(kind, DynamicCompositeType)
    return kind


def int_bytes(value: int) -> bytes:
    return struct.pack(">i", value)


def alias(letter: str) -> bytes:
    return struct.pack(">H", 0x8000 | ord(letter))


def named(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("text", "cql"),
    [
        *((PACKAGE + name, cql) for name, cql in NATIVE_CLASSES.items()),
        ("Int32Type", "int"),
        (f"{PACKAGE}ListType({PACKAGE}Int32Type)", "list<int>"),
        ("FrozenType(ListType(Int32Type))", "frozen<list<int>>"),
        ("MapType(UTF8Type,FrozenType(SetType(UUIDType)))", "map<text, frozen<set<uuid>>>"),
        ("TupleType(Int32Type, UTF8Type)", "tuple<int, text>"),
        ("VectorType(FloatType , 3)", "vector<float, 3>"),
        ("UserType(ks,61646472,73:UTF8Type,7a:ListType(Int32Type))", "addr"),
        ("FrozenType(UserType(ks,4f2044,73:UTF8Type))", 'frozen<"O D">'),
    ],
)
def test_classes_that_cql_has_a_word_for(text: str, cql: str) -> None:
    assert str(class_type(text)) == cql
    assert str(parse_type(f"'{text}'", "k", {})) == cql


def test_fields_of_a_user_type() -> None:
    kind = class_type("UserType(ks,61646472,73:UTF8Type,7a:ListType(Int32Type))")
    assert kind.decode(b"\0\0\0\1x") == {"s": "x", "z": None}


@pytest.mark.parametrize(
    "text",
    [
        "org.example.Custom",
        "org.example.Custom(a, b(c=>d), e:f)",
        "DateType",
        "LexicalUUIDType",
        COMPOSITE,
        DYNAMIC,
        "org.example.Int32Type",
    ],
)
def test_classes_that_stay_bytes_keep_their_name(text: str) -> None:
    kind = class_type(text)
    assert isinstance(kind, CustomType)
    assert str(kind) == f"'{text}'"
    assert kind.decode(kind.encode(b"\1\2")) == b"\1\2"


def test_a_reversed_type_has_values_of_its_base_in_the_other_order() -> None:
    kind = class_type("ReversedType(Int32Type)")
    assert isinstance(kind, ReversedType)
    assert (kind.decode(int_bytes(5)), kind.encode(5), kind.fixed_length) == (5, int_bytes(5), 4)
    assert sorted([int_bytes(n) for n in (-1, 3, 2)], key=kind.sort_key) == [int_bytes(n) for n in (3, 2, -1)]


@pytest.mark.parametrize(
    "text",
    [
        *("", "ListType", "ListType(", "MapType(Int32Type)", "Int32Type)", "ReversedType(Int32Type,Int32Type)", "=>"),
        *("VectorType(FloatType)", "VectorType(FloatType , -1)", "VectorType(FloatType , 0)", f"VectorType(FloatType , {1 << 31})"),
    ],
)
def test_what_is_no_class_is_bytes_under_its_text(text: str) -> None:
    with pytest.raises(SchemaError):
        class_type(text)
    if text:
        assert type(parse_type(f"'{text}'", "k", {})) is CustomType


@pytest.mark.parametrize("opening", ["FrozenType(", "TupleType(Int32Type,"])
def test_texts_of_any_depth_end(opening: str) -> None:
    with pytest.raises(SchemaError, match="deep"):
        class_type(opening * 5000 + "Int32Type" + ")" * 5000)
    with pytest.raises(SchemaError, match="deep"):
        parse_type("frozen<" * (MAX_DEPTH + 1) + "int" + ">" * (MAX_DEPTH + 1), "k", {})


PARTS = st.lists(st.builds(Component, st.just(b""), st.binary(max_size=5), st.sampled_from([-1, 0, 1])), max_size=4)
HEADERS = st.sampled_from([alias("a"), alias("i"), named("Int32Type"), named(f"{PACKAGE}UTF8Type")])
TYPED_PARTS = st.lists(st.builds(Component, HEADERS, st.binary(max_size=5), st.sampled_from([-1, 0, 1])), max_size=4)


@given(PARTS, st.booleans(), TYPED_PARTS)
def test_composites_come_apart_and_together(parts: list[Component], static: bool, typed: list[Component]) -> None:
    assert composite().split(composite().join(parts, static=static)) == (static, parts)
    assert dynamic().split(dynamic().join(typed)) == typed


@given(st.binary(max_size=30))
def test_any_bytes_are_a_composite_or_an_error_of_ours(raw: bytes) -> None:
    for kind in (composite(), dynamic()):
        for call in (kind.split, kind.sort_key):
            try:
                call(raw)
            except DecodeError as error:
                assert error.operation in ("read a composite", "order a value")  # noqa: PT017 - any outcome but another error is fine


def test_parts_of_real_bytes() -> None:
    raw = bytes.fromhex("0002 6869 00 0004 00000007 01".replace(" ", ""))
    assert composite().split(raw) == (False, [Component(b"", b"hi", 0), Component(b"", int_bytes(7), 1)])
    raw = bytes.fromhex("8061 0002 6869 00 0009 496e743332547970 65 0004 00000007 ff".replace(" ", ""))
    first, second = dynamic().split(raw)
    assert (first.value, str(dynamic().kind_of(first))) == (b"hi", "ascii")
    assert (second.value, second.end, str(dynamic().kind_of(second))) == (int_bytes(7), -1, "int")


def ordered(kind: CqlType, values: list[bytes]) -> bool:
    shuffled = random.Random(7).sample(values, len(values))
    keys = [kind.sort_key(value) for value in values]
    return sorted(shuffled, key=kind.sort_key) == values and all(a < b for i, a in enumerate(keys) for b in keys[i + 1 :])


def test_order_of_composites() -> None:
    """By component, each by its type, then by its end; shorter values first, static ones before all
    others."""
    join = composite().join
    text, low, high = (Component(b"", value, 0) for value in (b"b", int_bytes(-1), int_bytes(5)))
    values = [
        b"",
        join([text, low], static=True),
        join([text._replace(end=-1)]),
        join([text]),
        join([text, high]),
        join([text, low]),
        join([text, low._replace(end=1)]),
        join([text._replace(end=1)]),
        join([text._replace(value=b"c")]),
    ]
    assert ordered(composite(), values)


def test_order_of_dynamic_composites() -> None:
    """Components of one type in its order; of different types by class name."""

    def one(header: bytes, value: bytes, *more: Component) -> bytes:
        return dynamic().join([Component(header, value, 0), *more])

    values = [
        b"",
        one(alias("a"), b"z"),
        one(alias("i"), int_bytes(-1)),
        one(named("Int32Type"), int_bytes(3)),
        one(alias("i"), int_bytes(3), Component(alias("a"), b"", 0)),
        one(alias("i"), int_bytes(4)),
        one(alias("r"), int_bytes(9)),
        one(alias("r"), int_bytes(1)),
        one(named("UTF8Type"), b"a"),
    ]
    assert ordered(dynamic(), values)


def test_an_alias_that_the_class_does_not_have() -> None:
    with pytest.raises(DecodeError, match="unknown type"):
        dynamic().sort_key(dynamic().join([Component(alias("z"), b"", 0)]))


def test_order_of_old_uuids_and_dates() -> None:
    uuids = [b"", *(UUID(text).bytes for text in ("80000000-0000-4000-8000-000000000000", "00000000-0000-1000-8000-000000000000"))]
    assert ordered(class_type("LexicalUUIDType"), uuids)
    assert ordered(class_type("DateType"), [b"", *(struct.pack(">q", n) for n in (0, 1, -1))])
    assert NATIVE["uuid"].sort_key(uuids[1]) > NATIVE["uuid"].sort_key(uuids[2])
