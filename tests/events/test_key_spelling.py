"""What is published as one key is one row of Cassandra."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.cassandra.types.typed import kind_of, values_of
from tests.examples import examples
from tests.spark_jobs.examples import table
from writetime.cassandra.types.byte_comparable import encoder
from writetime.errors import DecodeError
from writetime.events.arrow import arrow_type, to_arrow_value
from writetime.events.json import to_json_value
from writetime.events.key_spelling import clustering_spelling, is_distinct, like_alone

TEN = b"\0\0\0\1\x0a"
HUNDRED = b"\0\0\0\2\x64"
INT = struct.pack(">ii", 4, 7)
NULL = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("kind", "data", "distinct", "distinct_by_type"),
    [
        ("int", b"\0\0\0\1", True, True),
        ("varint", b"\1", True, True),
        ("varint", b"\0\1", False, True),
        ("varint", b"\xff\xff", False, True),
        ("varint", b"\0\xff", True, True),
        ("boolean", b"\1", True, True),
        ("boolean", b"\2", False, True),
        ("decimal", TEN, True, True),
        ("decimal", HUNDRED, True, True),
        ("decimal", b"\0\0\0\1\0\x0a", False, True),
        ("double", struct.pack(">d", float("nan")), True, True),
        ("double", bytes.fromhex("7ff8000000000001"), False, True),
        ("double", struct.pack(">d", float("-inf")), True, True),
        ("float", struct.pack(">f", -0.0), True, True),
        ("tuple<int, int>", INT, False, True),
        ("tuple<int, int>", INT + NULL, True, True),
        ("tuple<int, int>", INT + bytes(4), False, False),
        ("tuple<text, int>", bytes(4) + INT, True, True),
        ("frozen<list<varint>>", struct.pack(">iii", 1, 2, 0x00010000)[:10], False, True),
        ("frozen<addr>", b"", True, True),
    ],
)
def test_what_is_told_apart(kind: str, data: bytes, distinct: bool, distinct_by_type: bool) -> None:
    assert is_distinct(kind_of(kind), data, by_type=False) == distinct
    assert is_distinct(kind_of(kind), data, by_type=True) == distinct_by_type


KINDS = ["decimal", "varint", "double", "boolean", "tuple<decimal, int>", "frozen<list<decimal>>", "frozen<map<int, tuple<float, text>>>",
         'frozen<addr>', "tuple<frozen<set<int>>, varint>", "vector<decimal, 2>", "frozen<list<tuple<int, int>>>"]  # fmt: skip


def respelled(draw: Any, kind: str, data: bytes) -> bytes:
    """Other bytes, mostly of an equal value."""
    how = draw(st.integers(0, 3))
    if kind == "decimal" and len(data) > 4 and how:
        zeros, (scale,) = draw(st.integers(0, 3)), struct.unpack(">i", data[:4])
        number = int.from_bytes(data[4:], "big", signed=True) * 10**zeros
        if scale + zeros < 2**31:
            return struct.pack(">i", scale + zeros) + number.to_bytes(number.bit_length() // 8 + 1 + how % 2, "big", signed=True)
    if kind == "varint" and data and how:
        return bytes([0xFF if data[0] & 0x80 else 0]) * how + data
    if kind == "boolean" and data == b"\1":
        return bytes([1 + how])
    if kind.startswith("tuple") and data.endswith(NULL) and len(data) > 8 and how:
        return data[:-4]
    if kind.startswith("tuple") and how == 3:
        return data.removesuffix(NULL) + bytes(4) if data.endswith(NULL) else data
    return data


@settings(max_examples=examples(150))
@given(data=st.data())
def test_one_published_value_is_one_key(data: st.DataObject) -> None:
    """By type for a clustering, by bytes for a partition key; in Arrow and in JSON."""
    text = data.draw(st.sampled_from(KINDS))
    kind = kind_of(text)
    limits = {
        "decimal": st.decimals(-20, 20, places=1),
        "varint": st.integers(-2, 2),
        "int": st.integers(0, 1),
        "text": st.sampled_from("a"),
    }
    first = kind.encode(data.draw(values_of(text, {**limits, "float": st.floats(width=32), "double": st.floats()})))
    second = respelled(data.draw, text, first if data.draw(st.booleans()) else kind.encode(data.draw(values_of(text, limits))))
    assume(first and second)
    spell, order = clustering_spelling(kind) or bytes, encoder(kind)

    def shown(value: Any) -> tuple[str, str]:
        return repr(pa.array([to_arrow_value(kind, value)], arrow_type(kind)).to_pylist()), json.dumps(to_json_value(kind, value))

    try:
        for each in (first, second):
            shown(kind.decode(each))
    except DecodeError:
        # Arrow has no map with such a key: it is refused before.
        return
    clusterings = [shown(kind.decode(spell(each))) for each in (first, second)]
    if order(first) == order(second):
        assert clusterings[0] == clusterings[1]
    elif all(is_distinct(kind, each, by_type=True) for each in (first, second)):
        assert clusterings[0][0] != clusterings[1][0]
    keys = [shown(kind.decode(each)) for each in (first, second)]
    if first != second and all(is_distinct(kind, each, by_type=False) for each in (first, second)):
        assert keys[0][0] != keys[1][0]
        assert keys[0][1] != keys[1][1]


@pytest.mark.parametrize(
    ("columns", "clustering", "there"),
    [
        ({"id": "int", "c": "int", "s": "static text"}, 1, True),
        ({"id": "int", "c": "int", "d": "uuid", "s": "static text"}, 2, True),
        ({"id": "int", "c": "int", "d": "text", "s": "static text"}, 2, False),
        ({"id": "int", "c": "int", "v": "text"}, 1, False),
        ({"id": "int", "v": "text"}, 0, False),
    ],
)
def test_which_row_is_published_as_static_content_alone_is(columns: dict[str, str], clustering: int, there: bool) -> None:
    assert (like_alone(table("t", 1, columns, clustering=clustering), {}) is not None) == there
