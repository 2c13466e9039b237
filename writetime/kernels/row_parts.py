"""What the bytes of each row are written from: columns and constants side by side, laid out for compiled code.

Strategy: what a row is made of is a list of *parts*, which are written one after the other: strings that are the same
in all rows, values of a column in one of a few forms, lists of such values, and groups of parts that a row may lack.
Each part is a few words (`WORDS`), with the addresses of its Arrow buffers. If room lacks, a kernel stops before the
row, and `written` makes room and continues from there. How a form is written is for the kernels: `json_text`,
`avro_data`. Must not import numba, which takes a second.

Buffers are Arrow's own, so offsets are in order and within their data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SAME, RAW, PLAIN, TEXT, INT, BOOL, TIMESTAMP, DATE, BASE64, REAL32, REAL64, LIST, OPTIONAL = range(13)
"""What a part is: bytes of all rows; bytes as they are, text without and with characters that JSON escapes; a whole
number, a boolean; µs and days since the epoch; bytes; real numbers; a list of what the next parts are, and those next
parts, if the row has them."""
_FORMS: Final = {
    **dict.fromkeys((RAW, PLAIN, TEXT, BASE64), (pa.string(), pa.binary())),
    **dict.fromkeys((INT, TIMESTAMP, DATE), (pa.int64(),)),
    BOOL: (pa.bool_(),),
    REAL32: (pa.float32(),),
    REAL64: (pa.float64(),),
}
"""The types of Arrow that a kind is of; a LIST is a list or a map."""
KIND, DATA, ENDS, VALID, FIRST, COUNT, INSIDE, BASE, NULLABLE = range(9)
WORDS: Final = 9
"""Of a part: its kind; the addresses of data, ends (offsets of the first value on), and bits of valid values; the place of
the first value's bit; the number of values, or bytes if it is the same; how many next parts are inside; of a part in a
list, the list's first value that it has; whether its schema allows null."""
LACKING: Final = -1
"""Instead of a position: there is no room."""
_MOST: Final = (1 << 31) - 1
"""Bytes of all rows together: Arrow's offsets have 32 bits."""


class Column(NamedTuple):
    """A part that differs by row: an Arrow array, in one of the forms above. INT, TIMESTAMP and DATE are of 64 bits.
    `inside`: parts of the elements of a LIST, or of an OPTIONAL row. Those of a LIST start with its first element, and
    are neither lists nor optional; `brackets` are around them in JSON. `nullable`: null may be written; Avro marks each
    value of such a part."""

    kind: int
    array: Any
    inside: Sequence[Part] = ()
    brackets: str = "[]"
    nullable: bool = True


Part = str | bytes | Column


class Rows(NamedTuple):
    """Arguments of a kernel: the words of the parts, and room for the bytes, with the end of each row after the first.
    `n`: the finished rows."""

    rows: int
    parts: int
    words: npt.NDArray[np.int64]
    room: int
    end: npt.NDArray[np.int32]
    out: npt.NDArray[np.uint8]
    n: npt.NDArray[np.int64]


def written(write: Callable[[Rows], None], parts: Sequence[Part], rows: int) -> tuple[Any, Any]:
    """So many rows by a kernel, as buffers of Arrow: offsets and content. OverflowError if they have more than 2 GB."""
    flat: list[list[int]] = []
    held: list[Any] = []
    size = _lay_out(parts, rows, flat, held, 0)
    words = np.array(flat, np.int64).reshape(-1)
    room = min(size + size // 16 + 1024, _MOST)
    out, end, n = np.empty(room, np.uint8), np.zeros(rows + 1, np.int32), np.zeros(1, np.int64)
    while True:
        write(Rows(rows, len(flat), words, room, end, out, n))
        if n[0] == rows:
            return pa.py_buffer(end), pa.py_buffer(out)[: int(end[rows])]
        if room == _MOST:
            raise OverflowError("rows of more than 2 GB")
        room = min(2 * room, _MOST)
        more = np.empty(room, np.uint8)
        more[: end[n[0]]] = out[: end[n[0]]]
        out = more


def merged(parts: Iterable[Part]) -> list[Part]:
    """The parts, neighbouring constants as one."""
    few: list[Any] = []
    for part in parts:
        if few and not isinstance(part, Column) and not isinstance(few[-1], Column):
            few[-1] += part
        else:
            few.append(part)
    return few


def elements(lists: Any) -> tuple[Any, ...]:
    """What the LIST of an array of lists or maps has inside: their values, or keys and values."""
    begin, end = _bounds(lists)
    children = (lists.keys, lists.items) if pa.types.is_map(lists.type) else (lists.values,)
    return tuple(child.slice(begin, end - begin) for child in children)


def _lay_out(parts: Sequence[Part], rows: int, flat: list[list[int]], held: list[Any], base: int) -> int:
    """Append the words of the parts; what they point to is in `held`. Returns how many bytes the rows have, about."""
    size = 0
    for part in parts:
        if not isinstance(part, Column):
            content = np.frombuffer(part.encode() if isinstance(part, str) else part, np.uint8)
            held.append(content)
            flat.append([SAME, _address(content), 0, 0, 0, len(content), 0, base, 0])
            size += len(content) * rows
            continue
        array = part.array
        _check(part)
        held.append(array)
        buffers = array.buffers()
        valid = buffers[0].address if array.null_count else 0
        at, found = len(flat), [part.kind, 0, 0, valid, array.offset, len(array), 0, base, int(part.nullable)]
        flat.append(found)
        size += len(array) * part.nullable + 4 * array.null_count
        # An empty array may have no buffers.
        if not len(array):
            _lay_out(part.inside, 0, flat, held, 0)
        elif part.kind in (RAW, PLAIN, TEXT, BASE64):
            found[ENDS] = buffers[1].address + 4 * array.offset
            found[DATA] = buffers[2].address if buffers[2] is not None else 0
            begin, end = _bounds(array)
            size += (end - begin) * (4 if part.kind == BASE64 else 3) // 3 + 4 * len(array)
        elif part.kind == LIST:
            found[ENDS] = buffers[1].address + 4 * array.offset
            # What is written before and after the elements, too.
            found[DATA] = ord(part.brackets[0]) << 8 | ord(part.brackets[1])
            begin, end = _bounds(array)
            size += 4 * len(array) + _lay_out(part.inside, end - begin, flat, held, begin) + end - begin
        elif part.kind == OPTIONAL:
            size += _lay_out(part.inside, rows, flat, held, base)
        else:
            width = 0 if part.kind == BOOL else array.type.bit_width // 8
            found[DATA] = buffers[1].address + width * array.offset
            size += (26 if width == 8 else 8) * len(array)
        found[INSIDE] = len(flat) - 1 - at
    return size


def _check(part: Column) -> None:
    """TypeError if an array is not laid out as the kernels read it."""
    kind = part.array.type
    is_nested = part.kind == OPTIONAL or pa.types.is_list(kind) or pa.types.is_map(kind)
    if kind not in _FORMS[part.kind] if part.kind in _FORMS else not is_nested:
        raise TypeError(f"part of kind {part.kind}: {kind}")


def _bounds(array: Any) -> tuple[int, int]:
    """The first and the last offset of an array of strings or lists."""
    ends = np.frombuffer(array.buffers()[1], np.int32)
    return int(ends[array.offset]), int(ends[array.offset + len(array)])


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
