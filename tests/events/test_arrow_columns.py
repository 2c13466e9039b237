"""Values by the column: as one by one, or not at all."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cassandra.types.typed import CUSTOM, TYPES, kind_of, typed_values
from tests.events.test_round_trips import IN_ARROW
from tests.examples import examples
from writetime.cassandra.types.native import NATIVE
from writetime.cassandra.types.types import CqlType
from writetime.errors import DecodeError
from writetime.events.arrow import arrow_converter, arrow_type, plain_values
from writetime.events.arrow_columns import WIDTHS, column

NATIVES = sorted(NATIVE.keys() - {"counter"})


def by_column(kind: CqlType, values: list[bytes | None]) -> Any:
    """Through the column, its values one behind the other, and some bytes around them."""
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    starts = 3 + np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
    data = np.frombuffer(b"\xff\xff\xff" + b"".join(value or b"" for value in values) + b"\xff", np.uint8)
    return column(kind, data, starts, lengths)


def one_by_one(kind: CqlType, values: list[bytes | None]) -> Any:
    convert = arrow_converter(kind)
    return pa.array([None if value is None else convert(kind.decode(value)) for value in values], arrow_type(kind))


def same(kind: CqlType, values: list[bytes | None]) -> bool:
    """Whether there is a column; it holds what it should."""
    found = by_column(kind, values)
    if found is None:
        return False
    found.validate(full=True)
    expected = one_by_one(kind, values)
    assert found.type == expected.type
    assert repr(plain_values(found)) == repr(plain_values(expected))
    return True


@settings(max_examples=examples(200))
@given(st.lists(typed_values(3, IN_ARROW, empty_keys=False), min_size=1, max_size=1), st.data())
def test_values_of_any_type(drawn: list[tuple[str, Any]], data: st.DataObject) -> None:
    ((text, value),) = drawn
    kind = kind_of(text)
    raw = kind.encode(value)
    same(kind, [None, raw, b"", raw] if data.draw(st.booleans()) else [raw])


@pytest.mark.parametrize("name", NATIVES)
@settings(max_examples=examples(60))
@given(raws=st.lists(st.none() | st.binary(max_size=17), max_size=4), width=st.booleans())
@example(raws=[b"\x80\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\1", b"\0\0\0\0"], width=False)
@example(raws=[b"\xed\xa0\x80"], width=False)
@example(raws=[b"\x80"], width=True)
def test_bytes_that_may_be_no_value(name: str, raws: list[bytes | None], width: bool) -> None:
    kind = kind_of(name)
    if width:
        raws = [raw and raw[: WIDTHS.get(name, 17)] for raw in raws]
    try:
        one_by_one(kind, raws)
    except DecodeError:
        assert by_column(kind, raws) is None
    else:
        same(kind, raws)


@pytest.mark.parametrize("text", ["frozen<addr>", "tuple<int, text>", "frozen<list<int>>", "frozen<map<int, text>>", "vector<int, 2>"])
@settings(max_examples=examples(100))
@given(raw=st.binary(max_size=30) | st.lists(st.sampled_from([b"\0\0\0\4", b"\0\0\0\1", b"\xff\xff\xff\xff", b"\0", b"a"])).map(b"".join))
def test_bytes_that_may_be_no_value_made_of_others(text: str, raw: bytes) -> None:
    kind = kind_of(text)
    try:
        one_by_one(kind, [raw])
    except DecodeError:
        assert by_column(kind, [raw]) is None
    else:
        same(kind, [raw])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("int", [b"\0\0\0\1", b"", None, b"\xff\xff\xff\xff"]),
        ("text", [b"", None, "größe".encode()]),
        ("uuid", [b"", None, bytes(range(16))]),
        ("inet", [b"\1\2\3\4", b"\xff\0\xc8\x64", b"", None]),
        ("varint", [b"\0\1", b"", None, b"\x80" + bytes(8), b"\x7f" * 15, b"\xff" * 15, b"\xfe" + b"\xff" * 8]),
        ("decimal", [struct.pack(">i", scale) + value for scale in (0, 1, 5, 6) for value in (b"", b"\0", b"\x0a", b"\xf6", b"\x7f" * 8)]),
        ("boolean", [b"\0", b"\2", b"", None]),
        ("date", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x80\0\0\0"]),
        ("frozen<addr>", [b"", None, b"\0\0\0\1a", b"\0\0\0\0\0\0\0\4\0\0\0\1\xff\xff\xff\xff\0\0\0\7"]),
        ("vector<float, 2>", [bytes(8), b"", None]),
        (CUSTOM, [b"", b"any", None]),
    ],
)
def test_what_is_read_by_the_column(text: str, values: list[bytes | None]) -> None:
    assert same(kind_of(text), values)


@pytest.mark.parametrize(("text", "size"), [("float", 4), ("double", 8)])
def test_nan_keeps_its_payload_but_for_the_signal_of_a_float(text: str, size: int) -> None:
    raws: list[bytes | None] = [
        bytes.fromhex(raw) for raw in (("7fa00001", "ffc00003") if size == 4 else ("7ff4000000000001", "fff8000000000003"))
    ]
    found, expected = by_column(kind_of(text), raws), one_by_one(kind_of(text), raws)
    assert found.buffers()[1].to_pybytes()[: 2 * size] == expected.buffers()[1].to_pybytes()[: 2 * size]


def test_a_timestamp_that_arrow_cannot_hold_is_for_others_to_refuse() -> None:
    assert by_column(kind_of("timestamp"), [(2**62).to_bytes(8, "big")]) is None
    assert by_column(kind_of("timestamp"), [b"\x80" + bytes(7)]) is None


def test_keys_that_could_become_one_are_for_others_to_look_at() -> None:
    assert TYPES
    kind = kind_of("frozen<map<boolean, int>>")
    assert by_column(kind, [kind.encode([(True, 1)])]) is None


def test_maps_of_many_keys() -> None:
    """Keys stand among values: where they stand is an array of its own, which nobody but the call keeps."""
    kind = kind_of("map<text, int>")
    assert same(kind, [kind.encode([(f"{row} {number:05}", number) for number in range(50_000)]) for row in range(3)])
