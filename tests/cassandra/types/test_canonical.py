"""One spelling for equal values: elements of sets, keys of maps."""

from __future__ import annotations

import struct
from dataclasses import replace
from time import process_time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cassandra.types.test_byte_comparable import FEW, PACKAGE, RAW, fields
from tests.cassandra.types.typed import TYPES, kind_of, typed_values, values_of
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import EQUAL_ONLY_TO_ITSELF
from writetime.cassandra.model import Cell, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Table, UserType
from writetime.cassandra.types.byte_comparable import encoder
from writetime.cassandra.types.canonical import ElementPaths, canonical
from writetime.cassandra.types.compound import read_value
from writetime.cassandra.types.native import NATIVE, CqlType, NativeType
from writetime.cassandra.types.types import CollectionType, TupleType, UdtType, VectorType, read_values
from writetime.cassandra.types.vint import write_unsigned


def spell(kind: CqlType, data: bytes) -> bytes:
    made = canonical(kind)
    return data if made is None else made(data)


def decimal(unscaled: str, scale: int) -> bytes:
    return struct.pack(">i", scale) + bytes.fromhex(unscaled)


def real(fmt: str, value: float) -> bytes:
    return struct.pack(fmt, value)


def listed(*parts: bytes) -> bytes:
    return struct.pack(">i", len(parts)) + fields(*parts)


def sized(*parts: bytes) -> bytes:
    return b"".join(write_unsigned(len(part)) + part for part in parts)


I1, X = struct.pack(">i", 1), b"x"
SPELLINGS: dict[str, list[list[bytes]]] = {
    "decimal": [
        [decimal("01", 0), decimal("0a", 1), decimal("64", 2), decimal("000a", 1)],
        [decimal("64", 0), decimal("01", -2), decimal("0a", -1), decimal("03e8", 1)],
        [decimal("00", 0), decimal("00", 7), decimal("0000", -7)],
        [decimal("ff", 0), decimal("f6", 1), decimal("fff6", 1)],
        [decimal("01", -(2**31))],
        [decimal("0a", -(2**31)), decimal("64", 1 - 2**31)],
        [decimal("01", 2**31 - 1)],
        [decimal("01", -101), decimal("0a", -100)],
        [b""],
    ],
    "varint": [
        [b"\1", b"\0\1", b"\0\0\0\1"],
        [b"\0", b"\0\0"],
        [b"\xff", b"\xff\xff"],
        [b"\0\x80", b"\0\0\x80"],
        [b"\x80", b"\xff\x80"],
        [b""],
    ],
    "boolean": [[b"\1", b"\2", b"\xff"], [b"\0"], [b""]],
    "float": [
        [bytes.fromhex("7fc00000"), bytes.fromhex("ffc00001"), bytes.fromhex("7f800001")],
        [real(">f", 0.0)],
        [real(">f", -0.0)],
        [b""],
    ],
    "double": [
        [bytes.fromhex("7ff8000000000000"), b"\xff" * 8, bytes.fromhex("7ff0000000000001")],
        [real(">d", 0.0)],
        [real(">d", -0.0)],
        [b""],
    ],
    "inet": [[bytes([1, 2, 3, 4])], [bytes.fromhex("00000000000000000000ffff01020304")]],
    "tuple<int, text>": [
        [fields(I1), fields(I1, None), fields(I1) + struct.pack(">i", -7)],
        [fields(I1, b"")],
        [fields(None), fields(None, None)],
        [fields(b""), fields(b"", None)],
        [b""],
    ],
    "frozen<addr>": [
        [fields(X), fields(X, None), fields(X, None, None)],
        [fields(X, b"")],
        [fields(None, None, None), fields(None)],
        [b""],
    ],
    "frozen<person>": [
        [fields(X, fields(X)), fields(X, fields(X, None), None)],
        [fields(X, b"")],
        [fields(X, fields(None)), fields(X, fields(None, None))],
    ],
    "tuple<decimal, frozen<set<boolean>>>": [
        [fields(decimal("01", 0), listed(b"\1")), fields(decimal("0a", 1), listed(b"\2"))],
        [fields(decimal("01", 0), listed())],
        [fields(decimal("01", 0), b"")],
        [fields(decimal("01", 0)), fields(decimal("64", 2), None)],
    ],
    "frozen<list<varint>>": [[listed(b"\1", b"\2"), listed(b"\0\1", b"\0\2")], [listed(b"\2", b"\1")], [listed()], [b""]],
    "frozen<map<decimal, double>>": [
        [
            b"\0\0\0\1" + fields(decimal("01", 0), b"\xff" * 8),
            b"\0\0\0\1" + fields(decimal("0a", 1), bytes.fromhex("7ff8000000000000")),
        ],
    ],
    "vector<float, 2>": [[b"\x7f\xc0\0\0" * 2, b"\xff\xc0\0\1" * 2], [real(">f", 0.0) * 2], [real(">f", -0.0) * 2]],
    "vector<varint, 2>": [[sized(b"\1", b"\1"), sized(b"\0\1", b"\1"), b"\x80\1\1\1\1"], [sized(b"\1", b"\2")]],
    f"'{PACKAGE}CompositeType({PACKAGE}IntegerType,{PACKAGE}UTF8Type)'": [
        [b"\0\1\1\0\0\1x\0", b"\0\2\0\1\0\0\1x\0"],
        [b"\0\1\1\0\0\1x\1"],
        [b"\0\1\1\0"],
    ],
    f"'{PACKAGE}DynamicCompositeType(i=>{PACKAGE}IntegerType)'": [
        [b"\x80i\0\1\1\0", b"\x80i\0\2\0\1\0", b"\0\x0bIntegerType\0\1\1\0"],
        [b"\x80i\0\1\2\0"],
    ],
    f"'{PACKAGE}ReversedType({PACKAGE}BooleanType)'": [[b"\1", b"\2"], [b"\0"]],
}
"""By type: values, each in all its spellings."""


@pytest.mark.parametrize("text", SPELLINGS)
def test_every_spelling_of_a_value_becomes_one(text: str) -> None:
    kind, found = kind_of(text), []
    for spellings in SPELLINGS[text]:
        assert len({spell(kind, data) for data in spellings}) == 1
        found.append(spell(kind, spellings[0]))
        # It is a value of the type, the same by Cassandra's order.
        assert {encoder(kind)(data) for data in (*spellings, found[-1])} == {encoder(kind)(found[-1])}
        kind.decode(found[-1])
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("text", [text for text in RAW if "DynamicComposite" not in text])
def test_unusual_values_are_spelled_alike_exactly_if_they_are_equal(text: str) -> None:
    kind = kind_of(text)
    for one in RAW[text]:
        for other in RAW[text]:
            assert (spell(kind, one) == spell(kind, other)) == (encoder(kind)(one) == encoder(kind)(other)), (one, other)


@pytest.mark.parametrize(
    ("unscaled", "scale", "shown"),
    [
        (1050, 2, "10.5"),
        (100, 0, "100"),
        (1, -2, "100"),
        (-2000, 3, "-2"),
        (1, -37, "1" + "0" * 37),
        (1, -38, "1E+38"),
        (12, -37, "1.2E+38"),
        (0, 5, "0"),
    ],
)
def test_a_decimal_reads_as_people_write_it(unscaled: int, scale: int, shown: str) -> None:
    data = struct.pack(">i", scale) + unscaled.to_bytes(4, "big", signed=True)
    assert str(NATIVE["decimal"].decode(spell(NATIVE["decimal"], data))) == shown


def test_a_long_decimal_is_spelled_within_seconds() -> None:
    """Converting a megabyte at once takes a minute and a half."""
    number = 7**700_000 << 1_000_000
    data = struct.pack(">i", 0) + (number * 10).to_bytes(number.bit_length() // 8 + 2, "big", signed=True)
    started = process_time()
    found = spell(NATIVE["decimal"], data)
    assert process_time() - started < 8
    assert struct.unpack_from(">i", found) == (-1,)
    assert int.from_bytes(found[4:], "big") == number


def test_types_of_one_spelling_cost_nothing() -> None:
    assert {name for name, kind in NATIVE.items() if canonical(kind) is not None} == {"boolean", "float", "double", "varint", "decimal"}
    assert not any(canonical(NATIVE[name]) for name in EQUAL_ONLY_TO_ITSELF)
    table = replace(TABLE, columns={name: column for name, column in TABLE.columns.items() if name in ("id", "plain")})
    assert not ElementPaths(table, TYPES).columns


# --- any type, any spelling


@st.composite
def respelled(draw: st.DrawFn, kind: CqlType, data: bytes) -> bytes:
    """Another spelling of a value."""
    return _Respelling(draw).of(kind, data)


class _Respelling:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def of(self, kind: CqlType, data: bytes) -> bytes:
        if not data:
            return data
        if isinstance(kind, NativeType):
            return self._native(kind.name, data)
        if isinstance(kind, CollectionType):
            size = len(kind.elements)
            return data[:4] + fields(*(self._part(kind.elements[at % size], part) for at, part in enumerate(read_values(data, size))))
        if isinstance(kind, UdtType | TupleType):
            return self._fields(tuple(kind.known_fields.values()) if isinstance(kind, UdtType) else kind.fields, data)
        if isinstance(kind, VectorType):
            parts = [self.of(kind.element, part) for part in kind.parts(data)]
            return sized(*parts) if kind.element.fixed_length is None else b"".join(parts)
        return data

    def _part(self, kind: CqlType, part: bytes | None) -> bytes | None:
        return None if part is None else self.of(kind, part)

    def _fields(self, kinds: tuple[CqlType, ...], data: bytes) -> bytes:
        parts: list[bytes | None] = []
        pos = 0
        while pos < len(data):
            part, pos = read_value(data, pos)
            parts.append(self._part(kinds[len(parts)], part))
        while len(parts) > 1 and parts[-1] is None and self.draw(st.booleans()):
            parts.pop()
        return fields(*parts)

    def _native(self, name: str, data: bytes) -> bytes:
        padding = self.draw(st.integers(0, 2))
        if name == "boolean":
            return bytes([self.draw(st.integers(1, 255))]) if data != b"\0" else data
        if name == "varint":
            return (b"\xff" if data[0] & 0x80 else b"\0") * padding + data
        if name == "decimal":
            (scale,) = struct.unpack_from(">i", data)
            number = int.from_bytes(data[4:], "big", signed=True)
            if not number:
                return struct.pack(">i", self.draw(st.integers(-(2**31), 2**31 - 1))) + b"\0" * (1 + padding)
            if scale + padding < 2**31:
                scale, number = scale + padding, number * 10**padding
            return struct.pack(">i", scale) + number.to_bytes(number.bit_length() // 8 + 2, "big", signed=True)
        return self._nan(name, data) if name in ("float", "double") else data

    def _nan(self, name: str, data: bytes) -> bytes:
        fmt = ">f" if name == "float" else ">d"
        (value,) = struct.unpack(fmt, data)
        if value == value:
            return data
        return data[:2] + self.draw(st.binary(min_size=len(data) - 3, max_size=len(data) - 3)) + b"\1"


@st.composite
def spelled_values(draw: st.DrawFn) -> tuple[str, bytes, bytes, bytes]:
    """A type, a value in two spellings, and another value, which may be equal."""
    text, one = draw(typed_values(depth=3, limits=FEW))
    kind = kind_of(text)
    data = kind.encode(one)
    return text, data, draw(respelled(kind, data)), draw(respelled(kind, kind.encode(draw(values_of(text, FEW)))))


@given(spelled_values())
def test_values_of_any_type_are_spelled_alike_exactly_if_cassandra_orders_them_alike(drawn: tuple[str, bytes, bytes, bytes]) -> None:
    text, one, again, other = drawn
    kind, encode = kind_of(text), encoder(kind_of(text))
    found = spell(kind, one)
    assert encode(one) == encode(again) == encode(found)
    assert found == spell(kind, again) == spell(kind, found)
    assert (found == spell(kind, other)) == (encode(one) == encode(other))


# --- elements of a row

TABLE = Table(
    "k",
    "t",
    UUID(int=1),
    {
        "id": Column("id", "partition_key", "int", 0),
        "plain": Column("plain", "regular", "set<text>"),
        "numbers": Column("numbers", "regular", "set<decimal>"),
        "homes": Column("homes", "static", "map<frozen<addr>, int>"),
        "log": Column("log", "regular", "list<decimal>"),
        "frozen_numbers": Column("frozen_numbers", "regular", "frozen<set<decimal>>"),
        "address": Column("address", "regular", "addr"),
    },
)
PATHS = ElementPaths(TABLE, TYPES)


def test_paths_of_sets_and_maps_are_spelled_and_nothing_else() -> None:
    assert set(PATHS.columns) == {"numbers", "homes"}
    long = fields(X, None, None)
    cells = [
        Cell("numbers", 1, b"", decimal("0a", 1)),
        Cell("log", 1, decimal("0a", 1), UUID(int=1).bytes),
        Cell("address", 1, long, b"\0\0"),
        Cell("frozen_numbers", 1, listed(decimal("0a", 1))),
    ]
    update = PATHS.update(
        PartitionUpdate(TABLE.id, b"k", static_row=Row(None, cells=(Cell("homes", 1, long, long),)), rows=(Row((), cells=tuple(cells)),))
    )
    assert update.static_row == Row(None, cells=(Cell("homes", 1, long, fields(X)),))
    assert update.rows == (Row((), cells=(Cell("numbers", 1, b"", decimal("01", 0)), *cells[1:])),)


def test_what_is_no_value_identifies_only_itself() -> None:
    assert [PATHS.path("numbers", data) for data in (b"\1", b"\0\0\0")] == [b"\1", b"\0\0\0"]
    assert PATHS.path("homes", b"\0\0\0\x09x") == b"\0\0\0\x09x"
    assert PATHS.whole("numbers", b"\0\0\0\1") == b"\0\0\0\1"


def test_a_set_and_a_map_in_one_piece() -> None:
    assert PATHS.whole("numbers", listed(decimal("0a", 1), b"\1")) == listed(decimal("01", 0), b"\1")
    long = fields(X, None)
    assert PATHS.whole("homes", b"\0\0\0\1" + fields(long, long)) == b"\0\0\0\1" + fields(fields(X), long)
    assert PATHS.whole("plain", b"anything") == b"anything"


def test_an_element_stays_when_its_type_gets_a_field() -> None:
    """And what has a field that the schema does not have yet is another element, before and after."""
    old, new = (
        ElementPaths(TABLE, {**TYPES, ("k", "addr"): UserType("k", "addr", names, kinds)})
        for names, kinds in ((("a",), ("int",)), (("a", "b"), ("int", "text")))
    )
    for data in (fields(I1), fields(I1, None), fields(I1, X), fields(None), b""):
        assert old.path("homes", data) == new.path("homes", data)
    assert old.path("homes", fields(I1, X)) != old.path("homes", fields(I1))


def test_a_set_that_cassandra_has_cleared_is_empty() -> None:
    """Bytes of a 5.0.6 node: an element of before `ALTER TYPE ... ADD`, and its removal after it."""
    was, removed = fields(I1, X), fields(I1, X, None)
    assert merged(Cell("homes", 1, b"", was), Cell("homes", 2, b"", removed, local_deletion_time=9)) == [
        Cell("homes", 2, b"", was, local_deletion_time=9)
    ]


def merged(*cells: Cell, engine: row_codec.Engine = "python") -> list[Cell]:
    found = row_codec.NOTHING
    for cell in cells:
        (row,) = PATHS.update(PartitionUpdate(TABLE.id, b"k", rows=(Row((), cells=(cell,)),))).rows
        found = row_codec.merge(found, row_codec.encode(row), engine=engine)
    return list(row_codec.decode(found).cells)


@st.composite
def written(draw: st.DrawFn) -> list[Cell]:
    """Writes and removals of few elements, in many spellings."""
    cells = []
    for _ in range(draw(st.integers(1, 5))):
        data = draw(st.sampled_from([spellings[0] for spellings in SPELLINGS["frozen<addr>"]]))
        path, ts = draw(respelled(kind_of("frozen<addr>"), data)), draw(st.integers(1, 3))
        cells.append(Cell("homes", ts, b"", path, local_deletion_time=9) if draw(st.booleans()) else Cell("homes", ts, I1, path))
    return cells


@given(written(), st.randoms(use_true_random=False))
def test_elements_merge_alike_in_any_order_and_by_both_engines(cells: list[Cell], random: Any) -> None:
    expected = merged(*cells)
    encode = encoder(kind_of("frozen<addr>"))
    assert len({encode(cell.path or b"") for cell in expected}) == len(expected) == len({encode(cell.path or b"") for cell in cells})
    random.shuffle(cells)
    assert merged(*cells) == merged(*cells, engine="auto") == expected
