"""Integers of any size: equal to Python's own conversions, and fast where these are not."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from writetime.cassandra.types.byte_comparable import _NATIVE as ORDERED
from writetime.cassandra.types.integers import integer_text, to_decimal, to_integer, unscaled
from writetime.cassandra.types.literal import literal, parse_literal
from writetime.cassandra.types.native import NATIVE
from writetime.events.arrow import from_arrow_value, to_arrow_value
from writetime.events.converters import JsonForm
from writetime.events.json import from_json_value, to_json_value

LONG: Final = st.binary(min_size=0, max_size=5000).map(lambda data: int.from_bytes(data, "big", signed=True))


@given(LONG)
@example(-(2**4096))
@example(2**4096 - 1)
@example(2**8192)
@example(10**3000)
def test_an_integer_is_the_same_decimal_and_back(value: int) -> None:
    number = to_decimal(value)
    assert number == Decimal(value)
    assert number.as_tuple() == Decimal(value).as_tuple()
    assert to_integer(number) == value
    assert integer_text(value) == f"{Decimal(value):f}"


@given(LONG, st.integers(-(2**31), 2**31 - 1))
@example(0, 7)
@example(-1, -(2**31))
def test_a_decimal_has_the_digits_and_the_scale_of_its_bytes(value: int, scale: int) -> None:
    data = struct.pack(">i", scale) + NATIVE["varint"].encode(value)
    number = NATIVE["decimal"].decode(data)
    sign, digits, _ = Decimal(value).as_tuple()
    assert number.as_tuple() == Decimal((sign, digits, -scale)).as_tuple()
    assert unscaled(number) == value
    assert NATIVE["decimal"].encode(number) == data


@pytest.mark.parametrize("number", ["1.9", "-1.9", "1E+3", "0E+2147483647", "-0"])
def test_what_is_after_the_point_is_cut(number: str) -> None:
    assert to_integer(Decimal(number)) == (0 if "0E" in number else int(Decimal(number)))


VARINT: Final = NATIVE["varint"].encode(int.from_bytes(b"\x7f" + bytes(range(256)) * 800, "big"))
"""200 kB: Python needs more than four seconds of CPU to convert it once."""
DECIMAL: Final = struct.pack(">i", 5) + VARINT
USES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "json": lambda kind, value: from_json_value(kind, to_json_value(kind, value)),
    "arrow": lambda kind, value: from_arrow_value(kind, to_arrow_value(kind, value)),
    "literal": lambda kind, value: parse_literal(kind, literal(kind, value)),
    "bytes": lambda kind, value: kind.decode(kind.encode(value)),
    "order": lambda kind, value: ORDERED[str(kind)](kind.encode(value)) and value,
    "precise": lambda kind, value: _converted(kind, to_arrow_value(kind, value)) and value,
}


def _converted(kind: Any, text: str) -> Any:
    convert = JsonForm("precise").converter(kind)
    return convert and convert(text)


@pytest.mark.parametrize("data", [VARINT, DECIMAL], ids=["varint", "decimal"])
@pytest.mark.parametrize("use", USES)
def test_a_long_number_takes_no_time_that_grows_with_its_square(use: str, data: bytes) -> None:
    kind = NATIVE["varint" if data is VARINT else "decimal"]
    begun = time.process_time()
    value = kind.decode(data)
    assert USES[use](kind, value) == value
    assert time.process_time() - begun < 3
