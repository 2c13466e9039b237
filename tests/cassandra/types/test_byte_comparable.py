"""Keys of rows: bytes in clustering order, for all types."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import zip_longest
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import KEYS, i32, make_table
from tests.cassandra.types.typed import NATIVE_VALUES, TYPES, kind_of, typed_values, values_of
from writetime.cassandra.merge.clustering import Clustering, ClusteringOrder
from writetime.cassandra.model import Bound
from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.byte_comparable import HEAD, RowKeys, encoder, record_key, split_record_key
from writetime.cassandra.types.native import CqlType
from writetime.cassandra.types.types import EMPTY, TupleType, UdtType, parse_type
from writetime.errors import MalformedMutation, SchemaError

PACKAGE = "org.apache.cassandra.db.marshal."
COMPOSITE = f"'{PACKAGE}CompositeType({PACKAGE}Int32Type,{PACKAGE}ReversedType({PACKAGE}UTF8Type))'"
DYNAMIC = f"'{PACKAGE}DynamicCompositeType(i=>{PACKAGE}Int32Type,r=>{PACKAGE}ReversedType({PACKAGE}UTF8Type),s=>{PACKAGE}UTF8Type)'"


def table_of(*columns: tuple[str, bool]) -> Table:
    clustering = (Column(f"c{n}", "clustering", kind, n, descending) for n, (kind, descending) in enumerate(columns))
    return replace(make_table(KEYS[0], *clustering), keyspace="k")


# --- one value

# Values of few bits, so that two of them are often equal or differ only in the last part.
FEW: dict[str, st.SearchStrategy[Any]] = {
    **NATIVE_VALUES,
    "bigint": st.integers(-3, 3) | NATIVE_VALUES["bigint"],
    "blob": st.binary(max_size=2) | st.text("\0\1\xfe\xff", max_size=3).map(lambda text: text.encode("latin-1")),
    "double": st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -1.5]) | st.floats(),
    "float": st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -1.5]) | st.floats(width=32),
    "int": st.integers(-3, 3) | NATIVE_VALUES["int"],
    "text": st.text("\0\1aé", max_size=3),
    "varint": st.integers(-300, 300) | NATIVE_VALUES["varint"],
}


@st.composite
def two_values(draw: st.DrawFn) -> tuple[str, bytes, bytes]:
    """A type and two values of it."""
    text, one = draw(typed_values(depth=3, limits=FEW))
    kind = kind_of(text)
    return text, kind.encode(one), kind.encode(draw(values_of(text, FEW)))


def assert_as_positions(text: str, one: bytes, other: bytes) -> None:
    """Types and bytes order the two values alike, in both directions, and neither encoding is a prefix of the
    other."""
    kind, encode = kind_of(text), encoder(kind_of(text))
    left, right = kind.sort_key(one), kind.sort_key(other)
    first, second = encode(one), encode(other)
    assert (first < second, first == second) == (left < right, left == right)
    assert first == second or not (first.startswith(second) or second.startswith(first))
    for descending in (False, True):
        table = table_of((text, descending))
        order, keys = ClusteringOrder(table, TYPES), RowKeys(table, TYPES)
        assert (keys.key((one,)) < keys.key((other,))) == (order.key((one,)) < order.key((other,)))
        assert (keys.key((one,)) == keys.key((other,))) == (order.identity((one,)) == order.identity((other,)))


@given(two_values())
def test_values_of_all_types_are_ordered_as_their_type_orders_them(drawn: tuple[str, bytes, bytes]) -> None:
    assert_as_positions(*drawn)


def real(fmt: str, *values: float) -> list[bytes]:
    return [struct.pack(fmt, value) for value in values]


def decimal(unscaled: int, scale: int) -> bytes:
    return struct.pack(">i", scale) + unscaled.to_bytes(8, "big", signed=True)


def uuids(*texts: str) -> list[bytes]:
    return [UUID(text).bytes for text in texts]


V1 = ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "ffffffff-9dad-11d1-80b4-00c04fd430c8", "00000000-9dae-11d1-00b4-00c04fd430c8")
V4 = ("6ba7b810-9dad-41d1-80b4-00c04fd430c8", "ffffffff-0000-4fff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000")
RAW = {
    "boolean": [b"", b"\0", b"\1", b"\2", b"\xff"],
    "varint": [b"", b"\0", b"\0\0", b"\1", b"\0\1", b"\xff", b"\xff\xff", b"\x7f", b"\0\x80", b"\x80", b"\xff\x7f", b"\1\0", b"\xfe\xff"]
    + [head + b"\x55" * size for size in (125, 126, 127, 128, 300) for head in (b"\x01", b"\x81")],
    "decimal": [b"", *(decimal(unscaled, scale) for unscaled in (0, 1, 10, 100, 11, -1, -10, 9, 99) for scale in (-1, 0, 1, 2))]
    + [decimal(unscaled, scale) for unscaled in (1, -1) for scale in (2**31 - 1, -(2**31))],
    "float": [b"", *real(">f", 0.0, -0.0, 1.5, -1.5, 1e-45, -1e-45), bytes.fromhex("7fc00000"), bytes.fromhex("ffc00001"), b"\x7f\x80\0\0"],
    "double": [b"", *real(">d", 0.0, -0.0, 1.5, -1.5, 5e-324, -5e-324, float("inf"), -float("inf")), b"\x7f\xf8" + b"\0" * 6, b"\xff" * 8],
    "uuid": [b"", *uuids(*V1, *V4)],
    "timeuuid": [b"", *uuids(*V1)],
    "blob": [b"", b"\0", b"\0\0", b"\0\1", b"\1", b"\0\xff", b"\xff", b"\xff\0", b"a", b"a\0", b"ab"],
    "tuple<int, text>": [
        b"",
        b"\xff\xff\xff\xff",
        b"\xff" * 8,
        b"\0\0\0\0",
        b"\0\0\0\4\0\0\0\1",
        b"\0\0\0\4\0\0\0\1\0\0\0\0",
        b"\xff" * 4 + b"\0" * 4,
    ],
    "frozen<list<int>>": [
        b"",
        b"\0" * 4,
        b"\0\0\0\1" + b"\xff" * 4,
        b"\0\0\0\1" + b"\0" * 4,
        b"\0\0\0\1\0\0\0\4\0\0\0\1",
        b"\0\0\0\2" + b"\xff" * 8,
    ],
    f"'{PACKAGE}LexicalUUIDType'": [b"", *uuids(*V1, *V4)],
    COMPOSITE: [
        b"",
        b"\xff\xff\0\4\0\0\0\1\0",
        b"\0\4\0\0\0\1\0",
        b"\0\4\0\0\0\1\1",
        b"\0\4\0\0\0\1\xff",
        b"\0\4\0\0\0\1\0\0\1a\0",
        b"\0\4\0\0\0\1\0\0\2ab\0",
    ],
    DYNAMIC: [
        b"",
        b"\x80i\0\4\0\0\0\1\0",
        b"\x80s\0\1a\0",
        b"\x80s\0\1a\1",
        b"\x80s\0\1a\0\x80s\0\1a\0",
        b"\x80s\0\1b\0",
        b"\x80r\0\1a\0",
        b"\x80r\0\1b\0",
        b"\0\x08LongType\0\x08\0\0\0\0\0\0\0\1\0",
    ],
}
"""Unusual values: several encodings of one value, empty values, limits."""


@pytest.mark.parametrize("text", RAW)
def test_values_in_all_their_encodings(text: str) -> None:
    for one in RAW[text]:
        for other in RAW[text]:
            assert_as_positions(text, one, other)


@given(st.sampled_from(sorted(NATIVE_VALUES)), st.binary(max_size=17), st.binary(max_size=17))
def test_any_bytes_are_ordered_or_refused(text: str, one: bytes, other: bytes) -> None:
    keys = RowKeys(table_of((text, False)), {})
    try:
        for data in (one, other):
            kind_of(text).sort_key(data)
            kind_of(text).decode(data)
    except MalformedMutation:
        return
    assert_as_positions(text, one, other)
    assert keys.key((one,)) != keys.key((None,))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("int", b"\1"),
        ("uuid", b"\1" * 15),
        ("timeuuid", b"\1" * 17),
        ("boolean", b"\1\1"),
        ("double", b"\0"),
        ("frozen<list<int>>", b"\0\0\0\1"),
        (COMPOSITE, b"\0"),
    ],
)
def test_bytes_that_are_no_value_have_no_key(text: str, data: bytes) -> None:
    with pytest.raises(MalformedMutation):
        RowKeys(table_of((text, False)), {}).key((data,))


def test_a_user_type_that_nobody_told_is_missed_with_its_first_value() -> None:
    keys = RowKeys(table_of(("frozen<addr>", False)), {})
    assert keys.key((None,)) == RowKeys(table_of(("frozen<addr>", False)), TYPES).key((None,))
    with pytest.raises(SchemaError, match="not known"):
        keys.key((b"",))


def test_keys_are_stored_and_stay() -> None:
    keys = RowKeys(table_of(("int", False), ("text", True), ("decimal", False)), {})
    assert keys.key((i32(-2), b"a\0", decimal(-150, 1))).hex() == "0102017ffffffe029eff00ffff0201007ffffffffffffffdefff02"
    assert keys.key((i32(1), None, b"")).hex() == "0102018000000101020002"
    assert keys.start(Bound((i32(1),), True)).hex() == "0102018000000100"
    assert keys.end(Bound((i32(1),), True)).hex() == "0102018000000103"


# --- tuples and user types


def fields(*parts: bytes | None) -> bytes:
    return b"".join(struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part for part in parts)


def compare(kind: CqlType, one: bytes, other: bytes) -> int:
    """Below, at or above 0 as Cassandra 5.0 compares the values, field by field (TupleType.compareCustom)."""
    if not isinstance(kind, TupleType | UdtType):
        left, right = kind.sort_key(one), kind.sort_key(other)
        return (left > right) - (left < right)
    if not one or not other:
        return bool(one) - bool(other)
    kinds = kind.fields if isinstance(kind, TupleType) else tuple(kind.known_fields.values())
    for field, left, right in zip_longest(kinds, split(one), split(other)):
        # A missing field is null.
        if left is None or right is None:
            if left is not right:
                return -1 if left is None else 1
        elif difference := compare(field, left, right):
            return difference
    return 0


def split(data: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    while data:
        size = struct.unpack_from(">i", data)[0]
        found.append(None if size < 0 else data[4 : 4 + size])
        data = data[4 + max(size, 0) :]
    return found


@st.composite
def spelled(draw: st.DrawFn, kind: CqlType) -> bytes:
    """A value as stored by a node: empty, with fewer fields than the type, with nulls."""
    if not isinstance(kind, TupleType | UdtType):
        return draw(st.sampled_from([b"", i32(-1), i32(1)] if str(kind) == "int" else [b"", b"\0", b"a", b"a\0"]))
    kinds = kind.fields if isinstance(kind, TupleType) else tuple(kind.known_fields.values())
    there = kinds[: draw(st.integers(0, len(kinds)))]
    return fields(*(draw(st.none() | spelled(field)) for field in there))


NESTED = ["tuple<int, text>", "tuple<tuple<int, text>, tuple<text, int>>", "frozen<pair>", "tuple<frozen<pair>, int, frozen<pair>>"]
PAIRS = {("k", "pair"): UserType("k", "pair", ("a", "b"), ("text", "tuple<int, text>"))}


@given(st.data(), st.sampled_from(NESTED), st.booleans())
def test_tuples_and_user_types_are_ordered_as_cassandra_compares_them(data: st.DataObject, text: str, descending: bool) -> None:
    kind = parse_type(text, "k", PAIRS)
    one, other = data.draw(spelled(kind)), data.draw(spelled(kind))
    expected = compare(kind, one, other) * (-1 if descending else 1)
    table = table_of((text, descending), ("int", False))
    order, keys = ClusteringOrder(table, PAIRS), RowKeys(table, PAIRS)
    left, right = (one, i32(1)), (other, i32(1))
    assert (keys.key(left) > keys.key(right)) - (keys.key(left) < keys.key(right)) == expected
    assert (order.key(left) > order.key(right)) - (order.key(left) < order.key(right)) == expected
    assert (order.identity(left) == order.identity(right)) == (expected == 0)
    # The rows of a value are between the bounds of that value's range.
    within = keys.start(Bound((one,), True)) < keys.key(right) < keys.end(Bound((one,), True))
    assert within == (expected == 0)


@pytest.mark.parametrize(
    ("text", "same", "different"),
    [
        ("tuple<int, int>", [fields(None, None), fields(None)], [b"", fields(b""), fields(None, b"")]),
        ("tuple<text, text>", [fields(b"x"), fields(b"x", None)], [fields(b"x", b""), fields(b"", b"x"), fields(None, b"x")]),
        ("frozen<pair>", [fields(b"x"), fields(b"x", None)], [fields(b"x", b""), fields(b"x", fields(None)), b""]),
    ],
)
def test_which_bytes_of_a_tuple_name_one_row(text: str, same: list[bytes], different: list[bytes]) -> None:
    keys = RowKeys(table_of((text, False)), PAIRS)
    assert len({keys.key((value,)) for value in same}) == 1
    assert len({keys.key((value,)) for value in (same[0], *different)}) == 1 + len(different)


GOLDEN = {
    ("tuple<int, text>", fields(i32(1), b"a")): ("0102020180000001026100000002", "0102fdfe7ffffffefd9effffff02"),
    ("tuple<int, text>", fields(i32(1), None)): ("01020201800000010002", "0102fdfe7ffffffeff02"),
    ("tuple<int, text>", fields(i32(1), b"")): ("01020201800000010200000002", "0102fdfe7ffffffefdffffff02"),
    ("tuple<int, text>", fields(None, b"a")): ("010201026100000002", "0102fefd9effffff02"),
    ("tuple<int, text>", fields(b"")): ("010202000002", "0102fdffff02"),
    ("tuple<int, text>", b""): ("01020002", "0102ff02"),
    ("frozen<person>", fields(b"n")): ("0102026e00000002", "0102fd91ffffff02"),
    ("frozen<person>", fields(b"n", fields(b"s", i32(1), None), fields(b"w"))): (
        "0102026e00000202730000020180000001000202770000000002",
        "0102fd91fffffdfd8cfffffdfe7ffffffefffdfd88ffffffff02",
    ),
}
"""Keys stored by earlier versions, ascending and descending."""


@pytest.mark.parametrize(("text", "value"), GOLDEN)
def test_keys_of_tuples_are_stored_and_stay(text: str, value: bytes) -> None:
    found = tuple(RowKeys(table_of((text, descending)), TYPES).key((value,)).hex() for descending in (False, True))
    assert found == GOLDEN[text, value]


def test_a_tuple_of_nulls_alone_has_a_key_of_its_own() -> None:
    """Its key used to be that of the empty value, which comes before it."""
    keys = RowKeys(table_of(("tuple<int, text>", False)), {})
    assert keys.key((fields(None, None),)).hex() == "0102010002"
    assert keys.key((b"",)) < keys.key((fields(None, None),)) < keys.key((fields(None, b""),))


# --- clusterings and ranges

COLUMNS = st.lists(
    st.tuples(st.sampled_from(["int", "text", "decimal", "boolean", "timeuuid", "frozen<list<text>>", "frozen<addr>"]), st.booleans()),
    max_size=3,
)


@st.composite
def lines(draw: st.DrawFn) -> tuple[Table, list[Clustering], list[Bound]]:
    """A table, some clusterings and some range bounds."""
    columns = draw(COLUMNS)

    def value(text: str) -> bytes | None:
        return None if draw(st.integers(0, 5)) == 5 else kind_of(text).encode(draw(values_of(text, FEW)))

    clusterings = [tuple(value(text) for text, _ in columns) for _ in range(draw(st.integers(1, 4)))]
    bounds = [
        Bound(draw(st.sampled_from(clusterings))[: draw(st.integers(0, len(columns)))], draw(st.booleans()))
        for _ in range(draw(st.integers(0, 4)))
    ]
    return table_of(*columns), clusterings, bounds


@given(lines())
@example((table_of(), [()], [Bound((), True), Bound((), False)]))
def test_rows_and_ends_of_ranges_stand_in_one_order(drawn: tuple[Table, list[Clustering], list[Bound]]) -> None:
    table, clusterings, bounds = drawn
    order, keys = ClusteringOrder(table, TYPES), RowKeys(table, TYPES)
    line = [(order.key(clustering), keys.key(clustering)) for clustering in clusterings]
    line += [(order.start(bound), keys.start(bound)) for bound in bounds] + [(order.end(bound), keys.end(bound)) for bound in bounds]
    for position, key in line:
        for other_position, other_key in line:
            assert (key < other_key, key == other_key) == (position < other_position, position == other_position)


@given(st.binary(max_size=3), st.binary(max_size=3), st.binary(max_size=2), st.binary(max_size=2))
def test_records_of_a_partition_stand_together_behind_their_head(pk: bytes, other: bytes, row: bytes, another: bytes) -> None:
    key = record_key(pk, b"\1" + row)
    assert split_record_key(key) == (pk, b"\1" + row)
    assert split_record_key(record_key(pk)) == (pk, HEAD)
    assert record_key(pk) < key
    assert (key < record_key(pk, b"\1" + another)) == (row < another)
    if pk != other:
        assert (record_key(pk) < record_key(other)) == (key < record_key(other, b"\1" + another))


def test_an_empty_value_is_not_a_value_that_is_missing() -> None:
    kind = kind_of("int")
    keys = RowKeys(table_of(("int", False)), {})
    assert keys.key((None,)) < keys.key((kind.encode(EMPTY),)) < keys.key((i32(-(2**31)),))
