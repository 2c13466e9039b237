"""Writes JSON texts of many rows from columns, compiled: each byte of a text is written once.

Strategy: what a row's text is made of is a list of *parts*, which are written one after the other: strings that are
the same in all rows, values of a column in one of a few forms, lists of such values, and groups of parts that are
`null` where something is missing. Each part is a few words (`_Part`), with the addresses of its Arrow buffers. If
room lacks, the kernel stops before the row, and `written` makes room and continues from there.

The readable twin is `writetime.events.envelope.Shape` with `serialization`, which makes the same of one row. Buffers
are Arrow's own, so offsets are in order and within their data; times have to be of the years 1000 to 9999.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numba.core import cgutils

from writetime.kernels.compiled import Bytes, Int32s, Ints, compiled, compiled_and_kept, intrinsic, types
from writetime.kernels.pointers import call, reader

SOURCES: Final = ("kernels/json_text.py",)
"""The sources of this module's machine code in addition to those of the decoder."""

kept: Callable[[Any], Any] = partial(compiled_and_kept, further=SOURCES)

SAME, RAW, PLAIN, TEXT, INT, BOOL, TIMESTAMP, DATE, BASE64, LIST, OPTIONAL = range(11)
"""What a part is: a string of all rows; text as it is, in quotation marks, or in those and escaped; a number, a boolean;
µs and days since the epoch as ISO 8601; bytes; a list of what the next parts are, and those next parts, if the row has
them. Null is `null` in all of them."""
_FORMS: Final = {
    **dict.fromkeys((RAW, PLAIN, TEXT, BASE64), (pa.string(), pa.binary())),
    **dict.fromkeys((INT, TIMESTAMP, DATE), (pa.int64(),)),
    BOOL: (pa.bool_(),),
}
"""The types of Arrow that a kind is of; a LIST is a list or a map."""
_KIND, _DATA, _ENDS, _VALID, _FIRST, _COUNT, _INSIDE, _BASE = range(8)
_WORDS: Final = 8
"""Of a part: its kind; the addresses of data, ends (offsets of the first value on), and bits of valid values; the place of
the first value's bit; the number of values, or bytes if it is the same; how many next parts are inside; of a part in a
list, the list's first value that it has."""
_LACKING: Final = -1
_MOST: Final = (1 << 31) - 1
"""Bytes of all texts together: Arrow's offsets have 32 bits."""

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAIRS = np.frombuffer(b"".join(b"%02d" % pair for pair in range(100)), np.uint8)
_i64: Any = np.int64
_u64: Any = np.uint64
_u8: Any = np.uint8


class Column(NamedTuple):
    """A part that differs by row: an Arrow array, in one of the forms above. INT, TIMESTAMP and DATE are of 64 bits.
    `inside`: parts of the elements of a LIST, or of an OPTIONAL row. Those of a LIST start with its first element, and
    are neither lists nor optional; `brackets` are around them."""

    kind: int
    array: Any
    inside: Sequence[Part] = ()
    brackets: str = "[]"


Part = str | Column


class Rows(NamedTuple):
    """Arguments: the words of the parts, and room for the texts, with the end of each after the first. `n`: the
    finished rows."""

    rows: int
    parts: int
    words: Ints
    room: int
    end: Int32s
    out: Bytes
    n: Ints


_rows = reader(Rows)


def written(parts: Sequence[Part], rows: int) -> tuple[Any, Any]:
    """The texts of so many rows, as buffers of Arrow: offsets and content. OverflowError if they have more than 2 GB."""
    flat: list[list[int]] = []
    held: list[Any] = []
    size = _lay_out(parts, rows, flat, held, 0)
    words = np.array(flat, np.int64).reshape(-1)
    room = min(size + size // 16 + 1024, _MOST)
    out, end, n = np.empty(room, np.uint8), np.zeros(rows + 1, np.int32), np.zeros(1, np.int64)
    while True:
        call(run, Rows(rows, len(flat), words, room, end, out, n))
        if n[0] == rows:
            return pa.py_buffer(end), pa.py_buffer(out)[: int(end[rows])]
        if room == _MOST:
            raise OverflowError("texts of more than 2 GB")
        room = min(2 * room, _MOST)
        more = np.empty(room, np.uint8)
        more[: end[n[0]]] = out[: end[n[0]]]
        out = more


def _lay_out(parts: Sequence[Part], rows: int, flat: list[list[int]], held: list[Any], base: int) -> int:
    """Append the words of the parts; what they point to is in `held`. Returns how many bytes the texts have, about."""
    size = 0
    for part in parts:
        if isinstance(part, str):
            content = np.frombuffer(part.encode(), np.uint8)
            held.append(content)
            flat.append([SAME, _address(content), 0, 0, 0, len(content), 0, base])
            size += len(content) * rows
            continue
        array = part.array
        _check(part)
        held.append(array)
        buffers = array.buffers()
        valid = buffers[0].address if array.null_count else 0
        at, found = len(flat), [part.kind, 0, 0, valid, array.offset, len(array), 0, base]
        flat.append(found)
        size += 4 * array.null_count
        # An empty array may have no buffers.
        if not len(array):
            _lay_out(part.inside, 0, flat, held, 0)
        elif part.kind in (RAW, PLAIN, TEXT, BASE64):
            found[_ENDS] = buffers[1].address + 4 * array.offset
            found[_DATA] = buffers[2].address if buffers[2] is not None else 0
            begin, end = _bounds(array)
            size += (end - begin) * (4 if part.kind == BASE64 else 3) // 3 + 4 * len(array)
        elif part.kind == LIST:
            found[_ENDS] = buffers[1].address + 4 * array.offset
            # Text is written before and after the elements, too.
            found[_DATA] = ord(part.brackets[0]) << 8 | ord(part.brackets[1])
            begin, end = _bounds(array)
            size += 2 * len(array) + _lay_out(part.inside, end - begin, flat, held, begin) + end - begin
        elif part.kind == OPTIONAL:
            size += _lay_out(part.inside, rows, flat, held, base)
        else:
            found[_DATA] = buffers[1].address + (8 * array.offset if part.kind != BOOL else 0)
            size += 26 * len(array)
        found[_INSIDE] = len(flat) - 1 - at
    return size


def _check(part: Column) -> None:
    """TypeError if an array is not laid out as the kernel reads it."""
    kind = part.array.type
    is_nested = part.kind == OPTIONAL or pa.types.is_list(kind) or pa.types.is_map(kind)
    if kind not in _FORMS[part.kind] if part.kind in _FORMS else not is_nested:
        raise TypeError(f"part of kind {part.kind}: {kind}")


def _bounds(array: Any) -> tuple[int, int]:
    """The first and the last offset of an array of strings or lists."""
    ends = np.frombuffer(array.buffers()[1], np.int32)
    return int(ends[array.offset]), int(ends[array.offset + len(array)])


def elements(lists: Any) -> tuple[Any, ...]:
    """What the LIST of an array of lists or maps has inside: their values, or keys and values."""
    begin, end = _bounds(lists)
    children = (lists.keys, lists.items) if pa.types.is_map(lists.type) else (lists.values,)
    return tuple(child.slice(begin, end - begin) for child in children)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


# --- compiled


def _pointer(kind: Any) -> Any:
    """A function for compiled code from an address to a pointer to such items."""

    @intrinsic
    def pointer(_typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return pointer


_bytes, _int32s, _int64s = _pointer(types.uint8), _pointer(types.int32), _pointer(types.int64)


@intrinsic
def _copy(_typing: Any, out: Any, pos: Any, data: Any, at: Any, length: Any) -> Any:
    """Copy data[at:at + length] to out[pos:], which does not overlap. Returns the position after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out_, pos_, data_, at_, length_ = arguments
        memcpy: Any = cgutils.raw_memcpy
        memcpy(builder, builder.gep(out_, [pos_]), builder.gep(data_, [at_]), length_, 1)
        return builder.add(pos_, length_)

    return types.int64(out, types.int64, data, types.int64, types.int64), generate


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
    pos = _escaped(data, at, end, out, pos + 1) if escapes else _copy(out, _i64(pos + 1), data, _i64(at), _i64(end - at))
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
def _bit(bits: Bytes, at: int) -> bool:
    return (bits[at >> 3] >> (at & 7)) & 1 != 0  # type: ignore[no-any-return]


@compiled
def _is_null(words: Ints, w: int, i: int) -> bool:
    return words[w + _VALID] != 0 and not _bit(_bytes(words[w + _VALID]), words[w + _FIRST] + i)


@compiled
def _value(words: Ints, w: int, i: int, out: Bytes, pos: int, room: int) -> int:
    """Write value i of the part at word w; the position after it, or LACKING. Afterwards there is room for eight bytes
    more, so that what is around values needs no look."""
    kind = words[w + _KIND]
    if kind == SAME:
        size = words[w + _COUNT]
        return _LACKING if size + 8 > room - pos else _copy(out, _i64(pos), _bytes(words[w + _DATA]), _i64(0), _i64(size))
    if room - pos < 40:
        return _LACKING
    if _is_null(words, w, i):
        return _null(out, pos)
    if kind in (RAW, PLAIN, TEXT, BASE64):
        ends, data = _int32s(words[w + _ENDS]), _bytes(words[w + _DATA])
        at, end = _i64(ends[i]), _i64(ends[i + 1])
        size = end - at
        escapes = kind == TEXT and _any_special(data, at, end)
        if (6 * size if escapes else 2 * size if kind == BASE64 else size) + 16 > room - pos:
            return _LACKING
        if kind == RAW:
            return _copy(out, _i64(pos), data, at, size)  # type: ignore[no-any-return]
        if kind == BASE64:
            out[pos] = 34
            pos = _base64(data, at, end, out, pos + 1)
            out[pos] = 34
            return pos + 1
        return _text(data, at, end, out, pos, escapes)
    if kind == BOOL:
        if _bit(_bytes(words[w + _DATA]), words[w + _FIRST] + i):
            out[pos], out[pos + 1], out[pos + 2], out[pos + 3] = 116, 114, 117, 101
            return pos + 4
        out[pos], out[pos + 1], out[pos + 2], out[pos + 3], out[pos + 4] = 102, 97, 108, 115, 101
        return pos + 5
    value = _int64s(words[w + _DATA])[i]
    if kind == INT:
        return _int(value, out, pos)
    out[pos] = 34
    pos = _timestamp(value, out, pos + 1) if kind == TIMESTAMP else _date(value, out, pos + 1)
    out[pos] = 34
    return pos + 1


@compiled
def _list(words: Ints, w: int, i: int, out: Bytes, pos: int, room: int) -> int:
    """As `_value`, of a list that is not null."""
    ends, last = _int32s(words[w + _ENDS]), w + (1 + words[w + _INSIDE]) * _WORDS
    out[pos] = words[w + _DATA] >> 8
    pos += 1
    begin, end = _i64(ends[i]), _i64(ends[i + 1])
    for j in range(begin, end):
        if j > begin:
            out[pos] = 44
            pos += 1
        inner = w + _WORDS
        while inner < last:
            pos = _value(words, inner, j - words[inner + _BASE], out, pos, room)
            if pos < 0:
                return pos
            inner += _WORDS
    out[pos] = words[w + _DATA] & 255
    return pos + 1


@compiled
def _row(this: Rows, i: int, pos: int) -> int:
    """Write row i; the position after it, or LACKING."""
    words, w, last = this.words, 0, this.parts * _WORDS
    while w < last:
        kind = words[w + _KIND]
        after = w + _WORDS
        if kind in (LIST, OPTIONAL):
            if this.room - pos < 16:
                return _LACKING
            after += words[w + _INSIDE] * _WORDS
            if _is_null(words, w, i):
                pos = _null(this.out, pos)
            elif kind == LIST:
                pos = _list(words, w, i, this.out, pos, this.room)
            else:
                after = w + _WORDS
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
        w = part * _WORDS
        if this.words[w + _KIND] == TEXT and this.words[w + _COUNT]:
            ends = _int32s(this.words[w + _ENDS])
            if not _any_special(_bytes(this.words[w + _DATA]), _i64(ends[0]), _i64(ends[this.words[w + _COUNT]])):
                this.words[w + _KIND] = PLAIN


@kept
def run(arguments: Ints) -> None:
    """Write the rows from n[0] on, as far as there is room. `arguments`: the words of a `Rows`."""
    this = _rows(arguments)
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
