"""Variable-length integers, compared with bytes written by Cassandra."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.cassandra.types.vint import (
    as_int32,
    as_int64,
    read_signed,
    read_unsigned,
    write_signed,
    write_unsigned,
)
from writetime.errors import MalformedMutation

UNSIGNED = [
    ("00", 0),
    ("2a", 42),
    ("7f", 127),
    ("8080", 128),
    ("c15180", 86_400),
    ("f01500b8a7", 0x1500B8A7),
    ("fd407a41a8978d", 0x1407A41A8978D),
    ("feffffffffffffff", 2**56 - 1),
    ("ff0100000000000000", 2**56),
    ("ffffffffffffffffff", 2**64 - 1),
]


@pytest.mark.parametrize(("text", "value"), UNSIGNED)
def test_unsigned(text: str, value: int) -> None:
    raw = bytes.fromhex(text)
    assert read_unsigned(b"\xee" + raw + b"\xee", 1) == (value, 1 + len(raw))
    assert write_unsigned(value) == raw


@pytest.mark.parametrize(("text", "value"), [("00", 0), ("01", -1), ("02", 1), ("8f9f", -2000), ("ffffffffffffffffff", -(2**63))])
def test_signed(text: str, value: int) -> None:
    raw = bytes.fromhex(text)
    assert read_signed(raw, 0) == (value, len(raw))
    assert write_signed(value) == raw


def test_a_negative_difference_takes_nine_bytes() -> None:
    assert write_unsigned(-1) == b"\xff" * 9
    assert as_int64(read_unsigned(b"\xff" * 9, 0)[0]) == -1


@pytest.mark.parametrize(("pattern", "expected"), [(0x7FFFFFFF, 0x7FFFFFFF), (0x80000000, -(2**31)), (0x1_0000_0001, 1), (-1, -1)])
def test_as_int32(pattern: int, expected: int) -> None:
    assert as_int32(pattern) == expected


@given(st.integers(0, 2**64 - 1))
def test_unsigned_comes_back(value: int) -> None:
    raw = write_unsigned(value)
    assert read_unsigned(raw, 0) == (value, len(raw))
    for cut in range(len(raw)):
        with pytest.raises(MalformedMutation):
            read_unsigned(raw[:cut], 0)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_comes_back(value: int) -> None:
    assert read_signed(write_signed(value), 0)[0] == value
