"""Decodes values of CQL types, compiled: many values of one column to numbers, text, or positions of their
parts.

Strategy: one outermost function, `run`, for all tasks. A value is a start and a length, -1 for null. Values
that a task cannot decode (for example a number of more than 64 bits) or that are invalid set `n[OTHERS]` to
1, and the caller decodes the column value by value with `writetime.cassandra.types.native`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from writetime.kernels.compiled import Bytes, Int32s, Ints, compiled, compiled_and_kept
from writetime.kernels.pointers import call, reader

__all__ = ["Reading", "Taking", "call", "run"]

SOURCES: Final = ("kernels/values.py",)
"""The sources of this module's machine code in addition to those of the decoder."""

kept: Callable[[Any], Any] = partial(compiled_and_kept, further=SOURCES)

NUMBERS, WIDE, BYTES, UUIDS, INETS, DECIMALS, FIELDS, ELEMENTS = range(8)
OTHERS, HIGHEST = range(2)
"""`n`: whether there are other values, and the union of the bits of all bytes of BYTES."""
UUID_TEXT: Final = 36
INET_TEXT: Final = 15
DECIMAL_TEXT: Final = 32
"""The length in bytes of the longest text."""

_MOST_SCALE = 6
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_i64: Any = np.int64
_u64: Any = np.uint64
_u8: Any = np.uint8


class Reading(NamedTuple):
    """Values and room for the results: numbers in `out` (two words each if WIDE), or bytes in `text` with
    their ends in `end`. `width`: bytes of a number, 0 for any. `valid`: 0 for null and for empty numbers."""

    task: int
    rows: int
    at: Ints
    length: Ints
    data: Bytes
    width: int
    out: Ints
    valid: Bytes
    end: Int32s
    text: Bytes
    n: Ints


_reading = reader(Reading)


@compiled
def _number(data: Bytes, at: int, length: int) -> int:
    """A signed number of up to 8 bytes."""
    if length == 0:
        return 0
    value = _i64(data[at])
    if value >= 0x80:
        value -= 0x100
    for i in range(1, length):
        value = _i64((_u64(value) << _u64(8)) | _u64(data[at + i]))
    return value  # type: ignore[no-any-return]


@compiled
def _numbers(this: Reading) -> None:
    for i in range(this.rows):
        length = this.length[i]
        this.out[i], this.valid[i] = 0, length > 0
        if length > 0:
            if length > 8 or (this.width and length != this.width):
                this.n[OTHERS] = 1
                return
            this.out[i] = _number(this.data, this.at[i], length)


@compiled
def _wide(this: Reading) -> None:
    """Numbers of up to 15 bytes, as 128 bits, low word first."""
    for i in range(this.rows):
        at, length = this.at[i], this.length[i]
        this.out[2 * i], this.out[2 * i + 1], this.valid[i] = 0, 0, length > 0
        if length > 15:
            this.n[OTHERS] = 1
            return
        if length > 8:
            this.out[2 * i] = _number(this.data, at + length - 8, 8)
            this.out[2 * i + 1] = _number(this.data, at, length - 8)
        elif length > 0:
            this.out[2 * i] = _number(this.data, at, length)
            this.out[2 * i + 1] = -1 if this.out[2 * i] < 0 else 0


@compiled
def _bytes(this: Reading) -> None:
    pos, seen = 0, _u8(0)
    for i in range(this.rows):
        length = this.length[i]
        this.valid[i] = length >= 0
        for j in range(length):
            byte = this.data[this.at[i] + j]
            this.text[pos + j] = byte
            seen |= byte
        pos += max(length, 0)
        this.end[i + 1] = pos
    this.n[HIGHEST] = _i64(seen)


@compiled
def _texts(this: Reading) -> None:
    """The texts of uuid, inet and decimal values; "" for empty ones."""
    pos = _i64(0)
    for i in range(this.rows):
        length = this.length[i]
        this.valid[i] = length >= 0
        if length > 0:
            if this.task == UUIDS:
                after = _uuid(this.data, this.at[i], length, this.text, pos)
            elif this.task == INETS:
                after = _inet(this.data, this.at[i], length, this.text, pos)
            else:
                after = _decimal(this.data, this.at[i], length, this.text, pos)
            if after < 0:
                this.n[OTHERS] = 1
                return
            pos = after
        this.end[i + 1] = pos


@compiled
def _uuid(data: Bytes, at: int, length: int, out: Bytes, pos: int) -> int:
    if length != 16:
        return -1
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[pos] = 45
            pos += 1
        byte = _i64(data[at + i])
        out[pos], out[pos + 1] = _HEX[byte >> 4], _HEX[byte & 15]
        pos += 2
    return pos


@compiled
def _inet(data: Bytes, at: int, length: int, out: Bytes, pos: int) -> int:
    if length != 4:
        return -1
    for i in range(4):
        if i:
            out[pos] = 46
            pos += 1
        byte = _i64(data[at + i])
        if byte >= 100:
            out[pos] = 48 + byte // 100
            pos += 1
        if byte >= 10:
            out[pos] = 48 + byte // 10 % 10
            pos += 1
        out[pos] = 48 + byte % 10
        pos += 1
    return pos


@compiled
def _decimal(data: Bytes, at: int, length: int, out: Bytes, pos: int) -> int:
    """The text of a decimal as Python prints it, if that has no exponent."""
    if length < 4 or length > 12:
        return -1
    scale = _number(data, at, 4)
    value = _number(data, at + 4, length - 4)
    # Of the least number of 64 bits, the magnitude is none.
    if scale < 0 or value == _i64(-(2**63)):
        return -1
    rest, digits = abs(value), 1
    while rest >= 10:
        rest //= 10
        digits += 1
    if digits - 1 - scale < -_MOST_SCALE:
        return -1
    if value < 0:
        out[pos] = 45
        pos += 1
    shown = max(digits, scale + 1)
    end = pos + shown + (1 if scale else 0)
    rest, at_ = abs(value), end
    for i in range(shown):
        if i == scale and scale:
            at_ -= 1
            out[at_] = 46
        at_ -= 1
        out[at_] = 48 + rest % 10
        rest //= 10
    return end


# --- values made of others


class Taking(NamedTuple):
    """Values and room for the positions of their parts. FIELDS: `per` parts, by field and row. ELEMENTS:
    consecutive, `per` parts for each element, with the number of elements up to each row in `end`. `exact`:
    no bytes follow the fields."""

    task: int
    rows: int
    at: Ints
    length: Ints
    data: Bytes
    per: int
    exact: int
    part_at: Ints
    part_length: Ints
    end: Int32s
    n: Ints


_taking = reader(Taking)


@compiled
def _fields(this: Taking) -> None:
    """As `types._read_fields`: missing fields are null, and all fields of null and empty values."""
    for row in range(this.rows):
        pos = this.at[row]
        end = pos + max(this.length[row], 0)
        for field in range(this.per):
            at, length = pos, _i64(-1)
            if pos < end:
                if end - pos < 4:
                    this.n[OTHERS] = 1
                    return
                length = max(_number(this.data, pos, 4), -1)
                at = pos + 4
                pos = at + max(length, 0)
            if pos > end:
                this.n[OTHERS] = 1
                return
            this.part_at[field * this.rows + row], this.part_length[field * this.rows + row] = at, length
        if this.exact and pos != end:
            this.n[OTHERS] = 1
            return


@compiled
def _elements(this: Taking) -> None:
    """As `types.read_values`: null and empty values have no elements."""
    found, elements = 0, 0
    for row in range(this.rows):
        pos = this.at[row]
        end = pos + max(this.length[row], 0)
        size = _i64(0)
        if pos < end:
            size = _number(this.data, pos, 4) if end - pos >= 4 else _i64(-1)
            pos += 4
            if size < 0 or size * this.per * 4 > end - pos:
                this.n[OTHERS] = 1
                return
        for _ in range(size * this.per):
            length = max(_number(this.data, pos, 4), -1) if end - pos >= 4 else end
            if length > end - pos - 4:
                this.n[OTHERS] = 1
                return
            this.part_at[found], this.part_length[found] = pos + 4, length
            found += 1
            pos += 4 + max(length, 0)
        if pos != end:
            this.n[OTHERS] = 1
            return
        elements += size
        this.end[row + 1] = elements


@compiled
def _read(this: Reading) -> None:
    if this.task == NUMBERS:
        _numbers(this)
    elif this.task == WIDE:
        _wide(this)
    elif this.task == BYTES:
        _bytes(this)
    else:
        _texts(this)


@kept
def run(arguments: Ints) -> None:
    """Run the task in the first word. `arguments`: the words of a `Reading` or `Taking`."""
    task = arguments[0]
    if task == FIELDS:
        _fields(_taking(arguments))
    elif task == ELEMENTS:
        _elements(_taking(arguments))
    else:
        _read(_reading(arguments))


def compile_ahead() -> float:
    """Compile everything into the cache, or load it from there; the seconds it took."""
    started = perf_counter()
    nothing, flags = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    call(run, Reading(NUMBERS, 0, nothing, nothing, flags, 0, nothing, flags, np.zeros(1, np.int32), flags, np.zeros(2, np.int64)))
    return perf_counter() - started


if __name__ == "__main__":
    print(f"values kernel ready in {compile_ahead():.1f} s")  # noqa: T201 - a command's answer
