"""Converts the decoder's columns to flat rows, compiled: the twin of `row_batches.pack`.

Strategy: as `rows`. The cells of a row are sorted into the order of flat rows, which they usually have
already, and written. If room lacks, the kernel stops, and the caller makes room and continues from there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from writetime.cassandra.merge import row_codec
from writetime.cassandra.model import NO_TIMESTAMP, NO_TTL
from writetime.kernels.compiled import Bytes, Int32s, Ints, compiled
from writetime.kernels.mutation_kernel import _copy
from writetime.kernels.pointers import reader
from writetime.kernels.rows import (
    ENTRY,
    LACKING,
    LAST,
    NAME,
    begin,
    blob,
    compare,
    put,
    stamp,
)

_LIVENESS, _DELETION, _SHADOWABLE, _SIMPLE_CELL, _COMPLEX_DELETION, _ELEMENT = (int(kind) for kind in row_codec.Kind)
_VERSION, _NO_TIMESTAMP, _NO_TTL = row_codec.VERSION, NO_TIMESTAMP, NO_TTL

_i64: Any = np.int64
_u64: Any = np.uint64


class Blobs(NamedTuple):
    """A column of bytes to read: start and length of each value."""

    at: Ints
    length: Ints
    data: Bytes


class Growing(NamedTuple):
    """A column of bytes to write: the total room, and the end of each value."""

    room: int
    end: Int32s
    data: Bytes


class Packing(NamedTuple):
    """Arguments of `row_batches.pack`: the columns of ROWS, CELLS and COMPLEX_DELETIONS, null times filled
    with NO_DELETION_TIME; names by code, which is their order; two sort buffers for the cells of a row. `n`:
    the finished rows."""

    task: int
    rows: int
    static: Bytes
    list_end: Int32s
    value_there: Bytes
    values: Blobs
    live: Bytes
    live_timestamp: Ints
    live_ttl: Int32s
    live_time: Ints
    deleted: Bytes
    deletion_timestamp: Ints
    deletion_time: Ints
    shadowable: Bytes
    cells: int
    cell_row: Int32s
    cell_column: Int32s
    cell_timestamp: Ints
    cell_ttl: Int32s
    cell_time: Ints
    has_path: Bytes
    path: Blobs
    value: Blobs
    complexes: int
    complex_row: Int32s
    complex_column: Int32s
    complex_timestamp: Ints
    complex_time: Ints
    names: Blobs
    order: Ints
    other_order: Ints
    complex_order: Ints
    cur: Ints
    out: Growing
    latest: Ints
    n: Ints


_packing = reader(Packing)


@compiled
def pack_rows(arguments: Ints) -> None:
    """Pack rows from n[0] on, whose first cell and complex deletion are n[1] and n[2], as far as there is
    room."""
    this = _packing(arguments)
    n = this.n
    while n[0] < this.rows:
        row, cell, deletion = n[0], n[1], n[2]
        while cell < this.cells and this.cell_row[cell] == row:
            cell += 1
        while deletion < this.complexes and this.complex_row[deletion] == row:
            deletion += 1
        end = _pack_row(this, row, n[1], cell, n[2], deletion)
        if end < 0:
            return
        this.out.end[row + 1] = end
        n[0], n[1], n[2] = row + 1, cell, deletion


@compiled
def _pack_row(this: Packing, row: int, cell: int, cell_end: int, deletion: int, deletion_end: int) -> int:
    """Append one row to the output; its end or LACKING."""
    out, cur = this.out.data, this.cur
    pos, room = this.out.end[row], this.out.room
    first, last = this.list_end[row], this.list_end[row + 1]
    need = 4 * ENTRY
    for i in range(first, last):
        need += 10 + this.values.length[i]
    if need > room - pos:
        return LACKING
    pos = _pack_clustering(out, pos, this.static[row] != 0, first, last, this.value_there, this.values)
    begin(cur)
    latest = _NO_TIMESTAMP
    if this.live[row]:
        latest = this.live_timestamp[row]
        pos = stamp(out, pos, cur, _LIVENESS, False, latest, _i64(this.live_ttl[row]), this.live_time[row])
    if this.deleted[row]:
        latest = max(latest, this.deletion_timestamp[row])
        kind = _SHADOWABLE if this.shadowable[row] else _DELETION
        pos = stamp(out, pos, cur, kind, False, this.deletion_timestamp[row], _NO_TTL, this.deletion_time[row])
    _sort_cells(this.order, this.other_order, cell, cell_end, this.has_path, this.cell_column, this.path)
    _sort_deletions(this.complex_order, deletion, deletion_end, this.complex_column)
    at, size = 0, cell_end - cell
    while at < size or deletion < deletion_end:
        c, x = this.order[at] if at < size else -1, -1
        if deletion < deletion_end:
            x = this.complex_order[deletion]
            if c < 0 or (this.has_path[c] and this.complex_column[x] <= this.cell_column[c]):
                c = -1
        column = _i64(this.cell_column[c]) if c >= 0 else _i64(this.complex_column[x])
        need = ENTRY + this.names.length[column]
        if c >= 0:
            need += this.value.length[c] + this.path.length[c]
        if need > room - pos:
            return LACKING
        same = cur[LAST + NAME] == column
        if c < 0:
            timestamp = this.complex_timestamp[x]
            pos = stamp(out, pos, cur, _COMPLEX_DELETION, same, timestamp, _NO_TTL, this.complex_time[x])
            deletion += 1
        else:
            timestamp = this.cell_timestamp[c]
            kind = _ELEMENT if this.has_path[c] else _SIMPLE_CELL
            pos = stamp(out, pos, cur, kind, same, timestamp, _i64(this.cell_ttl[c]), this.cell_time[c])
            at += 1
        latest = max(latest, timestamp)
        if not same:
            pos = blob(out, pos, this.names.data, this.names.at[column], this.names.length[column])
            cur[LAST + NAME] = column
        if c >= 0:
            if this.has_path[c]:
                pos = blob(out, pos, this.path.data, this.path.at[c], this.path.length[c])
            pos = blob(out, pos, this.value.data, this.value.at[c], this.value.length[c])
    this.latest[row] = latest
    return pos


@compiled
def _pack_clustering(out: Bytes, pos: int, static: bool, first: int, last: int, there: Bytes, values: Blobs) -> int:
    out[pos] = _VERSION
    if static:
        out[pos + 1] = 0
        return pos + 2
    pos = put(out, pos + 1, _u64(1 + last - first))
    for i in range(first, last):
        if there[i]:
            pos = put(out, pos, _u64(1 + values.length[i]))
            pos = _copy(values.data, values.at[i], values.length[i], out, pos)
        else:
            out[pos] = 0
            pos += 1
    return pos


@compiled
def _in_order(x: int, y: int, has_path: Bytes, column: Int32s, path: Blobs) -> bool:
    """Whether cell x may stand before cell y."""
    if has_path[x] != has_path[y]:
        return has_path[y] != 0  # type: ignore[no-any-return]
    if column[x] != column[y]:
        return column[x] < column[y]  # type: ignore[no-any-return]
    return not has_path[x] or compare(path.data, path.at[x], path.length[x], path.at[y], path.length[y]) <= 0


@compiled
def _sort_cells(order: Ints, other: Ints, first: int, last: int, has_path: Bytes, column: Int32s, path: Blobs) -> None:
    """Write the indexes of cells first:last in flat-row order to the start of `order`. A stable merge sort,
    if needed."""
    size = last - first
    sorted_already = True
    for i in range(size):
        order[i] = first + i
        if i > 0 and not _in_order(first + i - 1, first + i, has_path, column, path):
            sorted_already = False
    if sorted_already:
        return
    width = 1
    while width < size:
        for start in range(0, size, 2 * width):
            middle, end = min(start + width, size), min(start + 2 * width, size)
            i, j = start, middle
            for k in range(start, end):
                left = j >= end or (i < middle and _in_order(order[i], order[j], has_path, column, path))
                other[k] = order[i] if left else order[j]
                if left:
                    i += 1
                else:
                    j += 1
        for k in range(size):
            order[k] = other[k]
        width *= 2


@compiled
def _sort_deletions(order: Ints, first: int, last: int, column: Int32s) -> None:
    """Sort the indexes of complex deletions first:last by column, in place. They are few and rarely out of
    order."""
    for i in range(first, last):
        j = i
        while j > first and column[order[j - 1]] > column[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
