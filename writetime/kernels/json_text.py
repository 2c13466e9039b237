"""Writes JSON texts of many rows from columns, compiled: each byte of a text is written once.

Strategy: the parts of `row_parts`, one after the other. Null is `null` in all of them; RAW is JSON already, and texts,
times and bytes are in quotation marks. Of columns in which nothing is escaped, values are copied.

The readable twin is `writetime.events.envelope.Shape` with `serialization`, which makes the same of one row. Times have
to be of the years 1000 to 9999.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final

import numpy as np

from writetime.kernels import part_access, row_parts
from writetime.kernels.compiled import Bytes, Ints, compiled, compiled_and_kept
from writetime.kernels.part_access import as_bytes, as_int32s, as_int64s, bit, copy, is_null, read_rows
from writetime.kernels.pointers import call
from writetime.kernels.row_parts import (
    BASE,
    BASE64,
    BOOL,
    COUNT,
    DATA,
    ENDS,
    FIRST,
    INSIDE,
    INT,
    KIND,
    LACKING,
    LIST,
    OPTIONAL,
    PLAIN,
    RAW,
    SAME,
    TEXT,
    TIMESTAMP,
    WORDS,
    Part,
    Rows,
)

SOURCES: Final = ("kernels/json_text.py", *part_access.SOURCES)
"""The sources of this module's machine code in addition to those of the decoder."""

kept: Callable[[Any], Any] = partial(compiled_and_kept, further=SOURCES)

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAIRS = np.frombuffer(b"".join(b"%02d" % pair for pair in range(100)), np.uint8)
_i64: Any = np.int64
_u64: Any = np.uint64
_u8: Any = np.uint8


def written(parts: Sequence[Part], rows: int) -> tuple[Any, Any]:
    """The texts of so many rows, as buffers of Arrow: offsets and content. OverflowError if they have more than 2 GB."""
    return row_parts.written(lambda arguments: call(run, arguments), parts, rows)


# --- compiled


@compiled
def _is_special(byte: Any) -> Any:
    """1 if JSON escapes it."""
    return _u8(byte < 32) | _u8(byte == 34) | _u8(byte == 92)


@compiled
def _any_special(data: Bytes, at: int, end: int) -> bool:
    found = _u8(0)
    for i in range(at, end):
        found |= _is_special(data[i])
    return found != 0  # type: ignore[no-any-return]


@compiled
def _escaped(data: Bytes, at: int, end: int, out: Bytes, pos: int) -> int:
    for i in range(at, end):
        byte = data[i]
        if not _is_special(byte):
            out[pos] = byte
            pos += 1
            continue
        out[pos] = 92
        short = _i64(byte)
        if byte == 10:
            short = 110
        elif byte == 13:
            short = 114
        elif byte == 9:
            short = 116
        elif byte == 8:
            short = 98
        elif byte == 12:
            short = 102
        elif byte < 32:
            out[pos + 1], out[pos + 2], out[pos + 3] = 117, 48, 48
            out[pos + 4], out[pos + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            pos += 6
            continue
        out[pos + 1] = short
        pos += 2
    return pos


@compiled
def _text(data: Bytes, at: int, end: int, out: Bytes, pos: int, escapes: bool) -> int:
    out[pos] = 34
    pos = _escaped(data, at, end, out, pos + 1) if escapes else copy(out, _i64(pos + 1), data, _i64(at), _i64(end - at))
    out[pos] = 34
    return pos + 1


@compiled
def _pair(value: int, out: Bytes, pos: int) -> int:
    out[pos], out[pos + 1] = _PAIRS[2 * value], _PAIRS[2 * value + 1]
    return pos + 2


@compiled
def _int(value: int, out: Bytes, pos: int) -> int:
    rest = _u64(value)
    if value < 0:
        out[pos] = 45
        pos += 1
        rest = _u64(0) - rest
    digits, bound = 1, _u64(10)
    while digits < 20 and rest >= bound:
        digits += 1
        bound *= _u64(10) if digits < 20 else _u64(1)
    at = pos + digits
    while rest >= _u64(100):
        two = _i64(rest % _u64(100))
        rest //= _u64(100)
        at -= 2
        _pair(two, out, at)
    if rest >= _u64(10):
        _pair(_i64(rest), out, at - 2)
    else:
        out[at - 1] = 48 + _i64(rest)
    return pos + digits


@compiled
def _date(days: int, out: Bytes, pos: int) -> int:
    """As `iso_date`. Source: Hinnant, chrono-compatible low-level date algorithms, civil_from_days."""
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    of_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * of_month + 2) // 5 + 1
    month = of_month + 3 if of_month < 10 else of_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    pos = _pair(year // 100, out, pos)
    pos = _pair(year % 100, out, pos)
    out[pos] = 45
    pos = _pair(month, out, pos + 1)
    out[pos] = 45
    return _pair(day, out, pos + 1)


@compiled
def _timestamp(micros: int, out: Bytes, pos: int) -> int:
    """As `iso_timestamp`."""
    millis = micros // 1000
    days = millis // 86_400_000
    rest = millis - days * 86_400_000
    pos = _date(days, out, pos)
    out[pos] = 84
    pos = _pair(rest // 3_600_000, out, pos + 1)
    out[pos] = 58
    pos = _pair(rest // 60_000 % 60, out, pos + 1)
    out[pos] = 58
    pos = _pair(rest // 1000 % 60, out, pos + 1)
    out[pos], out[pos + 1] = 46, 48 + rest % 1000 // 100
    pos = _pair(rest % 100, out, pos + 2)
    out[pos] = 90
    return pos + 1


@compiled
def _base64(data: Bytes, at: int, end: int, out: Bytes, pos: int) -> int:
    while end - at >= 3:
        word = _i64(data[at]) << 16 | _i64(data[at + 1]) << 8 | _i64(data[at + 2])
        out[pos], out[pos + 1] = _BASE64[word >> 18], _BASE64[(word >> 12) & 63]
        out[pos + 2], out[pos + 3] = _BASE64[(word >> 6) & 63], _BASE64[word & 63]
        at, pos = at + 3, pos + 4
    if end > at:
        two = end - at == 2
        word = _i64(data[at]) << 16 | (_i64(data[at + 1]) << 8 if two else 0)
        out[pos], out[pos + 1] = _BASE64[word >> 18], _BASE64[(word >> 12) & 63]
        out[pos + 2], out[pos + 3] = _BASE64[(word >> 6) & 63] if two else 61, 61
        pos += 4
    return pos


@compiled
def _null(out: Bytes, pos: int) -> int:
    out[pos], out[pos + 1], out[pos + 2], out[pos + 3] = 110, 117, 108, 108
    return pos + 4


@compiled
def _value(words: Ints, w: int, i: int, out: Bytes, pos: int, room: int) -> int:
    """Write value i of the part at word w; the position after it, or LACKING. Afterwards there is room for eight bytes
    more, so that what is around values needs no look."""
    kind = words[w + KIND]
    if kind == SAME:
        size = words[w + COUNT]
        return LACKING if size + 8 > room - pos else copy(out, _i64(pos), as_bytes(words[w + DATA]), _i64(0), _i64(size))
    if room - pos < 40:
        return LACKING
    if is_null(words, w, i):
        return _null(out, pos)
    if kind in (RAW, PLAIN, TEXT, BASE64):
        ends, data = as_int32s(words[w + ENDS]), as_bytes(words[w + DATA])
        at, end = _i64(ends[i]), _i64(ends[i + 1])
        size = end - at
        escapes = kind == TEXT and _any_special(data, at, end)
        if (6 * size if escapes else 2 * size if kind == BASE64 else size) + 16 > room - pos:
            return LACKING
        if kind == RAW:
            return copy(out, _i64(pos), data, at, size)  # type: ignore[no-any-return]
        if kind == BASE64:
            out[pos] = 34
            pos = _base64(data, at, end, out, pos + 1)
            out[pos] = 34
            return pos + 1
        return _text(data, at, end, out, pos, escapes)
    if kind == BOOL:
        if bit(as_bytes(words[w + DATA]), words[w + FIRST] + i):
            out[pos], out[pos + 1], out[pos + 2], out[pos + 3] = 116, 114, 117, 101
            return pos + 4
        out[pos], out[pos + 1], out[pos + 2], out[pos + 3], out[pos + 4] = 102, 97, 108, 115, 101
        return pos + 5
    value = as_int64s(words[w + DATA])[i]
    if kind == INT:
        return _int(value, out, pos)
    out[pos] = 34
    pos = _timestamp(value, out, pos + 1) if kind == TIMESTAMP else _date(value, out, pos + 1)
    out[pos] = 34
    return pos + 1


@compiled
def _list(words: Ints, w: int, i: int, out: Bytes, pos: int, room: int) -> int:
    """As `_value`, of a list that is not null."""
    ends, last = as_int32s(words[w + ENDS]), w + (1 + words[w + INSIDE]) * WORDS
    out[pos] = words[w + DATA] >> 8
    pos += 1
    begin, end = _i64(ends[i]), _i64(ends[i + 1])
    for j in range(begin, end):
        if j > begin:
            out[pos] = 44
            pos += 1
        inner = w + WORDS
        while inner < last:
            pos = _value(words, inner, j - words[inner + BASE], out, pos, room)
            if pos < 0:
                return pos
            inner += WORDS
    out[pos] = words[w + DATA] & 255
    return pos + 1


@compiled
def _row(this: Rows, i: int, pos: int) -> int:
    """Write row i; the position after it, or LACKING."""
    words, w, last = this.words, 0, this.parts * WORDS
    while w < last:
        kind = words[w + KIND]
        after = w + WORDS
        if kind in (LIST, OPTIONAL):
            if this.room - pos < 16:
                return LACKING
            after += words[w + INSIDE] * WORDS
            if is_null(words, w, i):
                pos = _null(this.out, pos)
            elif kind == LIST:
                pos = _list(words, w, i, this.out, pos, this.room)
            else:
                after = w + WORDS
        else:
            pos = _value(words, w, i, this.out, pos, this.room)
        if pos < 0:
            return pos
        w = after
    return pos


@compiled
def _find_plain(this: Rows) -> None:
    """Texts of columns in which nothing is escaped are not looked at one by one."""
    for part in range(this.parts):
        w = part * WORDS
        if this.words[w + KIND] == TEXT and this.words[w + COUNT]:
            ends = as_int32s(this.words[w + ENDS])
            if not _any_special(as_bytes(this.words[w + DATA]), _i64(ends[0]), _i64(ends[this.words[w + COUNT]])):
                this.words[w + KIND] = PLAIN


@kept
def run(arguments: Ints) -> None:
    """Write the rows from n[0] on, as far as there is room. `arguments`: the words of a `Rows`."""
    this = read_rows(arguments)
    if this.n[0] == 0:
        _find_plain(this)
    while this.n[0] < this.rows:
        i = this.n[0]
        pos = _row(this, i, _i64(this.end[i]))
        if pos < 0:
            return
        this.end[i + 1] = pos
        this.n[0] = i + 1


def compile_ahead() -> float:
    """Compile everything into the cache, or load it from there; the seconds it took."""
    started = perf_counter()
    written(["{}"], 1)
    return perf_counter() - started


if __name__ == "__main__":
    print(f"JSON kernel ready in {compile_ahead():.1f} s")  # noqa: T201 - a command's answer
