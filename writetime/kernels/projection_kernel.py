"""Projection of flat rows, compiled: positions of cells by column, and comparison of visible rows.

Strategy: nothing is copied. A value is a start and a length in the input; `writetime.cassandra.types`
interprets it. Damage and entries other than live cells make the result odd, and the caller uses the readable
twin (`row_codec.shown`). Numbers by column and row are at `column * rows + row`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from writetime.cassandra.merge import row_codec
from writetime.cassandra.model import NO_TTL
from writetime.kernels.compiled import Bytes, Ints, compiled
from writetime.kernels.mutation_kernel import _vint
from writetime.kernels.pack import Blobs
from writetime.kernels.pointers import reader
from writetime.kernels.rows import (
    _DONE,
    BAD,
    KIND,
    NAME,
    NAME_LENGTH,
    PATH,
    PATH_LENGTH,
    RANK,
    TIME,
    TIMESTAMP,
    TTL,
    VALUE,
    VALUE_LENGTH,
    A,
    Rules,
    _next,
    _open,
    equal,
)

CELLS, IS_ODD = range(2)
"""`n`: the number of cells, and whether the result is odd."""
ABSENT: Final = -1
"""The length of a missing value."""
NEVER: Final = (1 << 63) - 1
"""The expiry of cells that do not expire."""

_SIMPLE_CELL, _ELEMENT = int(row_codec.Kind.SIMPLE), int(row_codec.Kind.ELEMENT)
_NO_TTL = NO_TTL
_i64: Any = np.int64


class Cells(NamedTuple):
    """Positions of values and paths of cells. The path of a simple cell is ABSENT."""

    value_at: Ints
    value_length: Ints
    path_at: Ints
    path_length: Ints


class Showing(NamedTuple):
    """Rows and room for their content. `names`: of the projected columns. By clustering column and row: the
    position of a value, ABSENT for null. By column and row: the first cell (-1: none) and the number of
    consecutive cells, the latest writetime and the earliest expiry. `alone`: rows without a clustering."""

    task: int
    rows: int
    flats: Blobs
    columns: int
    names: Blobs
    clusterings: int
    part_at: Ints
    part_length: Ints
    alone: Bytes
    first: Ints
    counts: Ints
    latest: Ints
    soonest: Ints
    cells: Cells
    rules: Rules
    cur: Ints
    n: Ints


_showing = reader(Showing)


@compiled
def show_rows(arguments: Ints) -> None:
    this = _showing(arguments)
    for row in range(this.rows):
        if this.flats.length[row] and not (_show_clustering(this, row) and _show_cells(this, row)):
            this.n[IS_ODD] = 1
            return


@compiled
def _show_clustering(this: Showing, row: int) -> bool:
    buf, pos = this.flats.data, this.flats.at[row]
    end = pos + this.flats.length[row]
    count, pos = _vint(buf, pos + 1, end)
    if pos > end or (count and count != this.clusterings + 1):
        return False
    this.alone[row] = count == 0
    for i in range(count - 1):
        length, pos = _vint(buf, pos, end)
        if length < 0 or length - 1 > end - pos:
            return False
        this.part_at[i * this.rows + row], this.part_length[i * this.rows + row] = pos, length - 1
        pos += max(length - 1, 0)
    return True


@compiled
def _show_cells(this: Showing, row: int) -> bool:
    buf, cur, cells, n = this.flats.data, this.cur, this.cells, this.n
    begin = this.flats.at[row]
    _open(buf, cur, A, begin, begin + this.flats.length[row], this.rules)
    column, name = 0, _i64(-1)
    while cur[A + RANK] != _DONE:
        kind = cur[A + KIND]
        if kind != _SIMPLE_CELL and kind != _ELEMENT:
            return False
        if cur[A + NAME] != name:
            name = cur[A + NAME]
            column = _column(this, name, cur[A + NAME_LENGTH], column)
        if column < this.columns:
            cell, slot = n[CELLS], column * this.rows + row
            cells.value_at[cell], cells.value_length[cell] = cur[A + VALUE], cur[A + VALUE_LENGTH]
            cells.path_at[cell] = cur[A + PATH] if kind == _ELEMENT else 0
            cells.path_length[cell] = cur[A + PATH_LENGTH] if kind == _ELEMENT else _i64(-1)
            if this.counts[slot] == 0:
                this.first[slot] = cell
                this.latest[slot] = cur[A + TIMESTAMP]
            elif this.first[slot] + this.counts[slot] != cell:
                # Simple cells, and elsewhere elements: the column had another type once.
                return False
            this.counts[slot] += 1
            this.latest[slot] = max(this.latest[slot], cur[A + TIMESTAMP])
            if cur[A + TTL] != _NO_TTL:
                this.soonest[slot] = min(this.soonest[slot], cur[A + TIME])
            n[CELLS] = cell + 1
        _next(buf, cur, A, this.rules)
    return cur[A + BAD] == 0  # type: ignore[no-any-return]


@compiled
def _column(this: Showing, name: int, length: int, likely: int) -> int:
    """The index of the column with that name; `columns` if there is none. The search starts at `likely`:
    cells are mostly in name order."""
    for i in range(this.columns):
        column = likely + i
        if column >= this.columns:
            column -= this.columns
        if equal(this.flats.data, name, length, this.names.data, this.names.at[column], this.names.length[column]):
            return column
    return this.columns


# --- keys of partitions


class Splitting(NamedTuple):
    """Keys of several columns, and the positions of their values by column and key."""

    task: int
    rows: int
    keys: Blobs
    columns: int
    part_at: Ints
    part_length: Ints
    n: Ints


_splitting = reader(Splitting)


@compiled
def split_keys(arguments: Ints) -> None:
    """As `event.split_partition_key`."""
    this = _splitting(arguments)
    buf = this.keys.data
    for row in range(this.rows):
        pos = this.keys.at[row]
        end = pos + this.keys.length[row]
        for i in range(this.columns):
            length = (_i64(buf[pos]) << 8) | _i64(buf[pos + 1]) if end - pos >= 2 else end
            if length + 3 > end - pos:
                this.n[IS_ODD] = 1
                return
            this.part_at[i * this.rows + row], this.part_length[i * this.rows + row] = pos + 2, length
            pos += length + 3
        if pos != end:
            this.n[IS_ODD] = 1
            return


# --- what differs


class Held(NamedTuple):
    """One column of rows: its first cell and number of cells, by row."""

    data: Bytes
    cells: Cells
    first: Ints
    counts: Ints


class Differing(NamedTuple):
    """`whole`: compare all cells with their paths, not only the first value."""

    task: int
    rows: int
    whole: int
    before: Held
    after: Held
    out: Bytes


_differing = reader(Differing)


@compiled
def differ(arguments: Ints) -> None:
    """As `event._differ`, by bytes."""
    this = _differing(arguments)
    a, b = this.before, this.after
    for row in range(this.rows):
        size = a.counts[row]
        same = size == b.counts[row] if this.whole else (size != 0) == (b.counts[row] != 0)
        if not this.whole:
            size = min(size, 1)
        for i in range(size):
            if not same:
                break
            x, y = a.first[row] + i, b.first[row] + i
            same = equal(a.data, a.cells.value_at[x], a.cells.value_length[x], b.data, b.cells.value_at[y], b.cells.value_length[y])
            if same and this.whole:
                same = equal(a.data, a.cells.path_at[x], a.cells.path_length[x], b.data, b.cells.path_at[y], b.cells.path_length[y])
        this.out[row] = not same
