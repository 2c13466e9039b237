"""Checks of whole columns say what decoding says, value by value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cql.typed import CUSTOM, NATIVE_VALUES, TYPES
from writetime.cql.native import NATIVE
from writetime.cql.types import CqlType, parse_type
from writetime.cql.validate import malformed
from writetime.errors import DecodeError, SchemaError

NESTED = (
    "vector<float, 2>", "vector<boolean, 3>", "vector<text, 2>", "vector<tinyint, 2>", "vector<vector<int, 1>, 2>", "frozen<list<int>>",
    "frozen<map<text, int>>", "tuple<int, text>", "frozen<addr>", CUSTOM,
)  # fmt: skip
BYTES = st.binary(max_size=18) | st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0xC3, 0xA9, 0xED, 0xA0, 0xFF]), max_size=9).map(bytes)
CONTEXTS = st.builds(
    lambda h, rest: h.to_bytes(2, "big", signed=True) + bytes(rest), st.integers(-2, 2), st.sampled_from([0, 2, 4, 34, 36])
)


def refuses(kind: CqlType, value: bytes | None) -> bool:
    if value is None:
        return False
    try:
        kind.decode(value)
    except DecodeError:
        return True
    return False


def told(kind: CqlType, values: list[bytes | None]) -> None:
    array: Any = pa.array(values, pa.binary())
    expected = [refuses(kind, value) for value in values]
    assert malformed(kind, array).tolist() == expected
    assert malformed(kind, array.slice(1)).tolist() == expected[1:]


@pytest.mark.parametrize("text", [*NATIVE, *NESTED])
@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.none() | BYTES | CONTEXTS, max_size=12))
def test_any_bytes(text: str, values: list[bytes | None]) -> None:
    told(parse_type(text, "k", TYPES), values)


@pytest.mark.parametrize("text", NATIVE_VALUES)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_values_and_what_is_nearly_one(text: str, data: st.DataObject) -> None:
    kind = NATIVE[text]
    values = [kind.encode(value) for value in data.draw(st.lists(NATIVE_VALUES[text], max_size=8))]
    told(kind, [*values, *(value[:-1] for value in values), *(value + b"\0" for value in values)])
    assert not any(malformed(kind, pa.array(values, pa.binary())))


def test_a_user_type_that_nobody_has_told_of() -> None:
    with pytest.raises(SchemaError):
        malformed(parse_type("frozen<stranger>", "k", TYPES), pa.array([b"x"], pa.binary()))
