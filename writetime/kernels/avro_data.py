"""Writes Avro data of many rows from columns, compiled: each byte is written once.

Strategy: the parts of `row_parts`, one after the other. Where null is allowed, the schema is a union of null with the
type: 0 is null, and 2 comes before a value. RAW is Avro already, TEXT is of the types string and bytes, and INT of int
and long. A LIST is one block, as fastavro writes it.

The readable twin is fastavro behind `writetime.events.envelope.Shape` with `serialization`, which makes the same of one
row. Source of the format: Apache Avro 1.12 specification, "Binary encoding".
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
    NULLABLE,
    OPTIONAL,
    RAW,
    REAL32,
    SAME,
    TEXT,
    WORDS,
    Part,
    Rows,
)

SOURCES: Final = ("kernels/avro_data.py", *part_access.SOURCES)
"""The sources of this module's machine code in addition to those of the decoder."""

kept: Callable[[Any], Any] = partial(compiled_and_kept, further=SOURCES)

_i64: Any = np.int64
_u64: Any = np.uint64
_NULL: Final = 0
_VALUE: Final = 2
"""The places in a union of null with a type, 0 and 1, as Avro writes them."""
_SPARE: Final = 24
"""Bytes that a number and what is around it need at most, and more."""


def written(parts: Sequence[Part], rows: int) -> tuple[Any, Any]:
    """The data of so many rows, as buffers of Arrow: offsets and content. OverflowError if they have more than 2 GB."""
    return row_parts.written(lambda arguments: call(run, arguments), parts, rows)


# --- compiled


@compiled
def _long(value: int, out: Bytes, pos: int) -> int:
    """A number in zigzag, seven bits a byte, the lowest ones first."""
    rest = _u64((value << 1) ^ (value >> 63))
    while rest >= _u64(128):
        out[pos] = _i64(rest & _u64(127)) | 128
        rest >>= _u64(7)
        pos += 1
    out[pos] = _i64(rest)
    return pos + 1


@compiled
def _value(words: Ints, w: int, i: int, out: Bytes, pos: int, room: int) -> int:
    """Write value i of the part at word w; the position after it, or LACKING. Afterwards there is room for eight bytes
    more, so that what is around values needs no look."""
    kind = words[w + KIND]
    if kind == SAME:
        size = words[w + COUNT]
        return LACKING if size + 8 > room - pos else copy(out, _i64(pos), as_bytes(words[w + DATA]), _i64(0), _i64(size))
    if room - pos < _SPARE:
        return LACKING
    if words[w + NULLABLE]:
        if is_null(words, w, i):
            out[pos] = _NULL
            return pos + 1
        out[pos] = _VALUE
        pos += 1
    if kind in (RAW, TEXT):
        ends = as_int32s(words[w + ENDS])
        at = _i64(ends[i])
        size = _i64(ends[i + 1]) - at
        if size + _SPARE > room - pos:
            return LACKING
        if kind == TEXT:
            pos = _long(size, out, pos)
        return copy(out, _i64(pos), as_bytes(words[w + DATA]), at, size)  # type: ignore[no-any-return]
    if kind == INT:
        return _long(as_int64s(words[w + DATA])[i], out, pos)
    if kind == BOOL:
        out[pos] = 1 if bit(as_bytes(words[w + DATA]), words[w + FIRST] + i) else 0
        return pos + 1
    width = 4 if kind == REAL32 else 8
    return copy(out, _i64(pos), as_bytes(words[w + DATA]), _i64(i * width), _i64(width))  # type: ignore[no-any-return]


@compiled
def _list(words: Ints, w: int, i: int, out: Bytes, pos: int, room: int) -> int:
    """As `_value`, of a list that is not null."""
    ends, last = as_int32s(words[w + ENDS]), w + (1 + words[w + INSIDE]) * WORDS
    begin, end = _i64(ends[i]), _i64(ends[i + 1])
    if end > begin:
        pos = _long(end - begin, out, pos)
    for j in range(begin, end):
        inner = w + WORDS
        while inner < last:
            pos = _value(words, inner, j - words[inner + BASE], out, pos, room)
            if pos < 0:
                return pos
            inner += WORDS
    out[pos] = 0
    return pos + 1


@compiled
def _row(this: Rows, i: int, pos: int) -> int:
    """Write row i; the position after it, or LACKING."""
    words, w, last = this.words, 0, this.parts * WORDS
    while w < last:
        kind = words[w + KIND]
        after = w + WORDS
        if kind not in (LIST, OPTIONAL):
            pos = _value(words, w, i, this.out, pos, this.room)
        else:
            if this.room - pos < _SPARE:
                return LACKING
            after += words[w + INSIDE] * WORDS
            has_it = not is_null(words, w, i)
            if words[w + NULLABLE]:
                this.out[pos] = _VALUE if has_it else _NULL
                pos += 1
            if has_it and kind == LIST:
                pos = _list(words, w, i, this.out, pos, this.room)
            elif has_it:
                after = w + WORDS
        if pos < 0:
            return pos
        w = after
    return pos


@kept
def run(arguments: Ints) -> None:
    """Write the rows from n[0] on, as far as there is room. `arguments`: the words of a `Rows`."""
    this = read_rows(arguments)
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
    written([b""], 1)
    return perf_counter() - started


if __name__ == "__main__":
    print(f"Avro kernel ready in {compile_ahead():.1f} s")  # noqa: T201 - a command's answer
