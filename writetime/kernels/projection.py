"""Projection of visible rows: the cells of many flat rows (from `row_codec.live`) by column, without an
object per cell.

Strategy: compiled code (`projection_kernel`) returns the positions of values, numpy does the rest. There is
no readable engine here: the code that builds events one by one (`event.TableView`, with `row_codec.shown`) is
the twin. Does not know types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from writetime.cassandra.merge.liveness import ShownCell
from writetime.cassandra.merge.row_codec import encoded_name
from writetime.kernels.row_batches import _blobs

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Places = tuple[Ints, Ints]
"""Start and length of values; length -1 for null or missing ones."""

_NO_RULES: Final = (0,) * 7


@dataclass(frozen=True)
class ShownRows:
    """The content of rows; `there` flags the visible ones. By clustering column and row: `part_at`,
    `part_length`. By column and row: `first` cell (-1: none), `count` of cells, `latest` writetime (µs),
    `soonest` expiry (s, `projection_kernel.NEVER`). Cells: `value_at`, `value_length`, `path_at`,
    `path_length` in `data`."""

    kernel: ModuleType
    data: npt.NDArray[np.uint8]
    there: Flags
    part_at: Ints
    part_length: Ints
    first: Ints
    count: Ints
    latest: Ints
    soonest: Ints
    cells: Any

    def only(self, kept: Flags) -> ShownRows:
        """Without the content of other rows. Clusterings stay."""
        if kept.all():
            return self
        first, count = np.where(kept, self.first, -1), np.where(kept, self.count, 0)
        return replace(self, there=self.there & kept, first=first, count=count)

    def part(self, clustering: int) -> Places:
        return self.part_at[clustering], self.part_length[clustering]

    def values(self, column: int) -> Places:
        """The values of a column's first cells."""
        first = self.first[column]
        there = first >= 0
        return self.cells.value_at[first], np.where(there, self.cells.value_length[first], -1)

    def of_column(self, column: int) -> Ints:
        """The indexes of all cells of a column, by row."""
        count = self.count[column]
        ends = np.cumsum(count)
        return np.repeat(self.first[column] - (ends - count), count) + np.arange(ends[-1] if len(ends) else 0)

    def of_cells(self, cells: Ints) -> Iterator[tuple[bytes, bytes | None]]:
        """Values and paths of cells."""
        found, buf = self.cells, memoryview(self.data)  # type: ignore[arg-type]
        places = (each[cells].tolist() for each in (found.value_at, found.value_length, found.path_at, found.path_length))
        for begin, length, path_begin, path_length in zip(*places, strict=True):
            path = None if path_length < 0 else bytes(buf[path_begin : path_begin + path_length])
            yield bytes(buf[begin : begin + length]), path

    def of_row(self, column: int, row: int) -> list[ShownCell]:
        """The cells of a column in a row, with values and paths only."""
        first = self.first[column, row]
        cells = np.arange(first, first + self.count[column, row])
        return [ShownCell(value, path, 0, None) for value, path in self.of_cells(cells)]


def shown_rows(kernel: ModuleType, flats: Any, columns: Sequence[str], clusterings: int, among: Flags | None = None) -> ShownRows | None:
    """Project flat rows (binary; null and b"": no row) to the named columns. `among`: the rows to read. None
    if a row is damaged, has entries other than live cells, or another number of clustering values."""
    at, length, data = _blobs(flats)
    if among is not None:
        length = np.where(among, length, 0)
    rows, n = len(at), np.zeros(2, np.int64)
    # A cell has at least its flags and a length.
    room = int(length.sum()) // 2 + 1
    cells = kernel.Cells(*(np.empty(room, np.int64) for _ in kernel.Cells._fields))
    first = np.full((len(columns), rows), -1, np.int64)
    count, latest = np.zeros((len(columns), rows), np.int64), np.empty((len(columns), rows), np.int64)
    soonest = np.full((len(columns), rows), kernel.NEVER, np.int64)
    part_at, part_length = np.zeros((clusterings, rows), np.int64), np.full((clusterings, rows), kernel.ABSENT, np.int64)
    arguments = kernel.Showing(
        kernel.SHOW,
        rows,
        kernel.Blobs(at, length, data),
        len(columns),
        _names(kernel, columns),
        clusterings,
        part_at,
        part_length,
        np.zeros(rows, np.uint8),
        first,
        count,
        latest,
        soonest,
        cells,
        kernel.Rules(*_NO_RULES),
        np.zeros(kernel.CURSORS, np.int64),
        n,
    )
    kernel.call(kernel.run, arguments)
    if n[kernel.IS_ODD]:
        return None
    return ShownRows(kernel, data, length > 0, part_at, part_length, first, count, latest, soonest, cells)


def _names(kernel: ModuleType, columns: Sequence[str]) -> Any:
    names = [encoded_name(column) for column in columns]
    lengths = np.array([len(name) for name in names], np.int64)
    return kernel.Blobs(np.cumsum(lengths) - lengths, lengths, np.frombuffer(b"".join(names) or b"\0", np.uint8))


def split_keys(kernel: ModuleType, keys: Any, columns: int) -> tuple[npt.NDArray[np.uint8], list[Places]] | None:
    """Positions of the values in partition keys (binary) by column, and the bytes; None if a key has another
    number of columns."""
    at, length, data = _blobs(keys)
    if columns == 1:
        return data, [(at, length)]
    part_at, part_length = (np.empty((columns, len(at)), np.int64) for _ in range(2))
    n = np.zeros(2, np.int64)
    kernel.call(kernel.run, kernel.Splitting(kernel.SPLIT, len(at), kernel.Blobs(at, length, data), columns, part_at, part_length, n))
    return None if n[kernel.IS_ODD] else (data, list(zip(part_at, part_length, strict=True)))


def differing(before: ShownRows, after: ShownRows, column: int, *, whole: bool) -> Flags:
    """For each row whether the cells of a column differ. `whole`: compare all cells with their paths, otherwise only
    the first value."""
    kernel = before.kernel
    out = np.zeros(len(before.there), np.uint8)
    held = (kernel.Held(side.data, side.cells, side.first[column], side.count[column]) for side in (before, after))
    kernel.call(kernel.run, kernel.Differing(kernel.DIFFER, len(out), int(whole), *held, out))
    return out.view(np.bool_)
