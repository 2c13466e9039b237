"""Flat rows: a row or static row of a partition as one byte string, which compiled code can merge.

A flat row is the lattice element: the effect of an update on a row, or the stored state of a row, tombstones
included. The encoding is canonical: equal content has equal bytes, so rows are compared, sorted and stored as
bytes. Entries are in merge order, so a merge is one pass over both rows. `b""` is the empty row: an unknown
row, a row fully deleted by the head, or a row that SELECT does not return.

    version      1 byte       1
    clustering   vint         0 for the static row, else 1 + number of values; then per value: vint, 0 for null, else 1 + length; its bytes
    entries      to the end   liveness; row deletion; simple cells by name; per complex column, by name, its deletion, then elements by path

    entry        flags        1 byte: kind (3 bits, `Kind`) and what is left out
                 timestamp    signed vint, the difference to the entry before (to 0 in the first); not if SAME_TIMESTAMP
                 ttl, time    vints, if MORTAL: ttl (0 for what is a deletion) and deletion time or expiry in s. SAME_MORTAL: those of
                              the last entry that had any. Neither: ttl 0 and NO_DELETION_TIME. TIED (of cells) is `Cell.tied`
                 name         vint length, bytes (complex deletions and cells); not if SAME_COLUMN, as the entry before
                 path         vint length, bytes (elements)
                 value        vint length, bytes (cells)

vints are those of the commit log (`writetime.cassandra.types.vint`). Repeated fields are omitted: cells
written together need two bytes more than their name and value. Names are the bytes of the wire. Functions
take `engine=`: "python" uses `writetime.cassandra.model.Row` and `reconcile`, the reference; "numba" is its
compiled twin, `writetime.kernels.merge`; "auto" uses the latter if numba is installed. For many rows at once
see `writetime.kernels.row_batches`. This module does not know types, the schema or the store."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal

from writetime.cassandra.commitlog.mutation import column_name
from writetime.cassandra.merge.liveness import ByColumn, ShownCell, is_live, live_cells
from writetime.cassandra.merge.reconcile import POLICY, Policy, merge_rows
from writetime.cassandra.model import (
    EXPIRED_LIVENESS_TTL,
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    NO_TTL,
    Cell,
    DeletionTime,
    Liveness,
    Row,
)
from writetime.cassandra.types.vint import as_int64, read_signed, read_unsigned, write_signed, write_unsigned
from writetime.errors import MalformedMutation

Engine = Literal["auto", "python", "numba"]

VERSION: Final = 1
NOTHING: Final = b""
STATIC: Final = bytes((VERSION, 0))
"""An empty static row."""


class Kind(IntEnum):
    """The kind of an entry, in the order of entries in a row."""

    LIVENESS = 0
    DELETION = 1
    SHADOWABLE = 2
    SIMPLE = 3
    COMPLEX_DELETION = 4
    ELEMENT = 5


KIND: Final = 7
SAME_COLUMN: Final = 8
SAME_TIMESTAMP: Final = 16
MORTAL: Final = 32
SAME_MORTAL: Final = 64
TIED: Final = 128

_NO_DROPS: Final[Mapping[str, int]] = MappingProxyType({})
_IMMORTAL: Final = NO_TTL, NO_DELETION_TIME
_LIVENESS, _DELETION, _SHADOWABLE, _SIMPLE, _COMPLEX_DELETION, _ELEMENT = map(int, Kind)
_column: Final = cache(column_name)
"""Cached: there are few column names, and every cell has one."""


# --- to and fro


def encode(row: Row) -> bytes:
    """The flat row with sorted cells. Not settled: duplicate cells are not merged, and shadowed ones not
    removed."""
    writer = _Writer(row.clustering)
    if row.liveness is not None:
        writer.entry(Kind.LIVENESS, row.liveness.timestamp, row.liveness.ttl, row.liveness.expires_at)
    if row.deletion is not None:
        writer.deletion(Kind.SHADOWABLE if row.shadowable else Kind.DELETION, row.deletion)
    simple = [(encoded_name(cell.column), cell) for cell in row.cells if cell.path is None]
    for name, cell in sorted(simple, key=lambda item: item[0]):
        writer.cell(Kind.SIMPLE, name, cell)
    elements: dict[bytes, list[Cell]] = {encoded_name(column): [] for column in row.complex_deletions}
    for cell in row.cells:
        if cell.path is not None:
            elements.setdefault(encoded_name(cell.column), []).append(cell)
    for name in sorted(elements):
        deletion = row.complex_deletions.get(column_name(name))
        if deletion is not None:
            writer.deletion(Kind.COMPLEX_DELETION, deletion, name)
        for cell in sorted(elements[name], key=lambda cell: cell.path or b""):
            writer.cell(Kind.ELEMENT, name, cell)
    return bytes(writer.out)


def decode(flat: bytes) -> Row:
    """The row of a flat row that is not `b""`. Raises MalformedMutation."""
    return _Reader(flat).row()


def shown(flat: bytes) -> tuple[tuple[bytes | None, ...] | None, ByColumn]:
    """Clustering and cells by column of a flat row that has only live cells, as `live` returns it, and is not
    `b""`. Faster than `decode`. Raises MalformedMutation."""
    reader = _Reader(flat)
    clustering = reader.clustering()
    columns: dict[str, list[ShownCell]] = {}
    cells: list[ShownCell] = []
    timestamp, mortal = 0, None
    buf, end = reader.buf, len(reader.buf)
    while reader.pos < end:
        flags = buf[reader.pos]
        reader.pos += 1
        if flags & KIND not in (_SIMPLE, _ELEMENT):
            raise reader.malformed("unexpected entry, only live cells are allowed")
        if not flags & SAME_TIMESTAMP:
            difference, reader.pos = read_signed(buf, reader.pos)
            timestamp = as_int64(timestamp + difference)
        if flags & MORTAL:
            ttl, time = reader.number(), reader.number()
            mortal = None if ttl == NO_TTL else time
        if not flags & SAME_COLUMN:
            cells = columns.setdefault(_column(reader.blob()), [])
        path = reader.blob() if flags & KIND == _ELEMENT else None
        cells.append(ShownCell(reader.blob(), path, timestamp, mortal if flags & (MORTAL | SAME_MORTAL) else None))
    return clustering, columns


def encoded_name(column: str) -> bytes:
    return column.encode("utf-8", "surrogateescape")


class _Writer:
    """Appends entries; remembers the fields of the previous one."""

    def __init__(self, clustering: tuple[bytes | None, ...] | None) -> None:
        self.out = bytearray((VERSION,))
        self.out += write_unsigned(0 if clustering is None else 1 + len(clustering))
        for value in clustering or ():
            self.out += b"\0" if value is None else write_unsigned(1 + len(value)) + value
        self.timestamp = 0
        self.mortal = _IMMORTAL
        self.column: bytes | None = None

    def deletion(self, kind: Kind, deletion: DeletionTime, name: bytes | None = None) -> None:
        self.entry(kind, deletion.marked_for_delete_at, NO_TTL, deletion.local_deletion_time, name)

    def cell(self, kind: Kind, name: bytes, cell: Cell) -> None:
        self.entry(kind | TIED if cell.tied else kind, cell.timestamp, cell.ttl, cell.local_deletion_time, name)
        if cell.path is not None:
            self._blob(cell.path)
        self._blob(cell.value)

    def entry(self, kind: int, timestamp: int, ttl: int, time: int, name: bytes | None = None) -> None:
        same_column = name is not None and name == self.column
        flags = kind | (SAME_COLUMN if same_column else 0) | (SAME_TIMESTAMP if timestamp == self.timestamp else 0)
        mortal = (ttl, time)
        if mortal != _IMMORTAL:
            flags |= SAME_MORTAL if mortal == self.mortal else MORTAL
            self.mortal = mortal
        self.out.append(flags)
        if not flags & SAME_TIMESTAMP:
            self.out += write_signed(as_int64(timestamp - self.timestamp))
        if flags & MORTAL:
            self.out += write_unsigned(ttl) + write_unsigned(time)
        if name is not None and not same_column:
            self._blob(name)
        self.timestamp, self.column = timestamp, name

    def _blob(self, data: bytes) -> None:
        self.out += write_unsigned(len(data)) + data


class _Reader:
    """Reads a flat row from beginning to end."""

    def __init__(self, flat: bytes) -> None:
        self.buf = bytes(flat)
        self.pos = 1
        if not self.buf or self.buf[0] != VERSION:
            raise self.malformed("unknown version")

    def row(self) -> Row:
        clustering = self.clustering()
        liveness: Liveness | None = None
        deletion: DeletionTime | None = None
        shadowable = False
        cells: list[Cell] = []
        complex_deletions = {}
        timestamp, mortal, column = 0, _IMMORTAL, ""
        buf, end = self.buf, len(self.buf)
        while self.pos < end:
            flags = buf[self.pos]
            self.pos += 1
            kind = flags & KIND
            if not flags & SAME_TIMESTAMP:
                difference, self.pos = read_signed(buf, self.pos)
                timestamp = as_int64(timestamp + difference)
            if flags & MORTAL:
                mortal = self.number(), self.number()
            ttl, time = mortal if flags & (MORTAL | SAME_MORTAL) else _IMMORTAL
            if kind >= _SIMPLE and not flags & SAME_COLUMN:
                column = _column(self.blob())
            if kind == _SIMPLE:
                cells.append(Cell(column, timestamp, self.blob(), None, ttl, time, bool(flags & TIED)))
            elif kind == _ELEMENT:
                path = self.blob()
                cells.append(Cell(column, timestamp, self.blob(), path, ttl, time, bool(flags & TIED)))
            elif kind == _LIVENESS:
                liveness = Liveness(timestamp, ttl, time)
            elif kind in (_DELETION, _SHADOWABLE):
                deletion, shadowable = DeletionTime(timestamp, time), kind == _SHADOWABLE
            elif kind == _COMPLEX_DELETION:
                complex_deletions[column] = DeletionTime(timestamp, time)
            else:
                raise self.malformed(f"unknown entry kind {kind}")
        return Row(clustering, liveness, deletion, shadowable, tuple(cells), complex_deletions)

    def clustering(self) -> tuple[bytes | None, ...] | None:
        count = self.number()
        if count == 0:
            return None
        if not 0 < count <= len(self.buf):
            raise self.malformed(f"invalid clustering size {count - 1}")
        return tuple(self.nullable() for _ in range(count - 1))

    def nullable(self) -> bytes | None:
        length = self.number()
        return None if length == 0 else self.take(length - 1)

    def blob(self) -> bytes:
        buf, pos = self.buf, self.pos
        # Most are short: their length is one byte.
        if pos < len(buf) and (length := buf[pos]) < 0x80 and (end := pos + 1 + length) <= len(buf):
            self.pos = end
            return buf[pos + 1 : end]
        return self.take(self.number())

    def number(self) -> int:
        pattern, self.pos = read_unsigned(self.buf, self.pos)
        return as_int64(pattern)

    def take(self, length: int) -> bytes:
        end = self.pos + length
        if length < 0 or end > len(self.buf):
            raise self.malformed(f"truncated, {length} bytes expected")
        taken = self.buf[self.pos : end]
        self.pos = end
        return taken

    def malformed(self, what: str) -> MalformedMutation:
        return MalformedMutation(f"a flat row of {len(self.buf)} bytes: {what}", operation="read a flat row", position=self.pos)


# --- what can be done with them


def merge(
    a: bytes,
    b: bytes,
    *,
    active: DeletionTime | None = None,
    counter: bool = False,
    policy: Policy = POLICY,
    engine: Engine = "auto",
) -> bytes:
    """The settled merge of two flat rows with the same clustering; `b""` if nothing is left. Either or both
    may be `b""`.

    As `reconcile.merge_rows`. If equal clusterings have different bytes, those of `a` are kept. Raises
    MalformedMutation if a row is damaged or has an invalid counter that must be merged.
    """
    if not a and not b:
        return NOTHING
    if (kernel := compiled(engine)) is not None:
        found: bytes | None = kernel.merge(a, b, active=active, counter=counter, policy=policy)
        if found is not None:
            return found
    left, right = (decode(flat) if flat else None for flat in (a, b))
    some = left or right
    assert some is not None
    nothing = Row(some.clustering)
    merged = merge_rows(left or nothing, right or nothing, active=active, counter=counter, policy=policy)
    return NOTHING if merged.is_empty else encode(merged)


def settle(
    flat: bytes, *, active: DeletionTime | None = None, counter: bool = False, policy: Policy = POLICY, engine: Engine = "auto"
) -> bytes:
    """The flat row without everything that its own deletions and `active` shadow; `b""` if nothing is
    left."""
    return merge(NOTHING, flat, active=active, counter=counter, policy=policy, engine=engine)


def live(flat: bytes, now: int, dropped: Mapping[str, int] = _NO_DROPS, *, engine: Engine = "auto") -> bytes:
    """What SELECT returns for a row at `now` (s): a flat row of its live cells; `b""` if the row is not
    visible.

    Two results are equal exactly if `liveness.visible` returns equal rows. `dropped` maps a dropped column to
    the timestamp (µs) up to which its cells are discarded. A static row is visible if any of its cells is.
    """
    if not flat:
        return NOTHING
    if (kernel := compiled(engine)) is not None:
        shown: bytes | None = kernel.live(flat, now, drops(dropped))
        if shown is not None:
            return shown
    row = decode(flat)
    cells = live_cells(row, now=now, dropped=dropped)
    return encode(Row(row.clustering, cells=cells)) if cells or is_live(row.liveness, now) else NOTHING


def shows(flat: bytes, now: int, dropped: Mapping[str, int] = _NO_DROPS, *, engine: Engine = "auto") -> bool:
    """Whether SELECT returns the row at `now` (s)."""
    return live(flat, now, dropped, engine=engine) != NOTHING


def next_expiry(flat: bytes, after: int, *, engine: Engine = "auto") -> int | None:
    """The first second after `after` at which a cell or the liveness of the row expires; None if none
    does."""
    if not flat:
        return None
    if (kernel := compiled(engine)) is not None:
        found: int | None = kernel.next_expiry(flat, after)
        if found is not None:
            return None if found == NO_DELETION_TIME else found
    row = decode(flat)
    ends = [cell.local_deletion_time for cell in row.cells if cell.is_expiring]
    if row.liveness is not None and row.liveness.ttl not in (NO_TTL, EXPIRED_LIVENESS_TTL):
        ends.append(row.liveness.expires_at)
    return min((end for end in ends if after < end < NO_DELETION_TIME), default=None)


def max_timestamp(flat: bytes, *, engine: Engine = "auto") -> int:
    """The greatest timestamp in the row, µs; NO_TIMESTAMP if it holds none."""
    if not flat:
        return NO_TIMESTAMP
    if (kernel := compiled(engine)) is not None:
        latest: int | None = kernel.max_timestamp(flat)
        if latest is not None:
            return latest
    row = decode(flat)
    found = [cell.timestamp for cell in row.cells]
    found += [deletion.marked_for_delete_at for deletion in row.complex_deletions.values()]
    found += [] if row.liveness is None else [row.liveness.timestamp]
    found += [] if row.deletion is None else [row.deletion.marked_for_delete_at]
    return max(found, default=NO_TIMESTAMP)


def min_deletion_time(flat: bytes, *, engine: Engine = "auto") -> int:
    """The earliest second of a deletion or an expiry in the row, past ones included; NO_DELETION_TIME if it holds
    none. Before that second there is nothing to purge."""
    if not flat:
        return NO_DELETION_TIME
    if (kernel := compiled(engine)) is not None:
        earliest: int | None = kernel.min_deletion_time(flat)
        if earliest is not None:
            return earliest
    row = decode(flat)
    found = [cell.local_deletion_time for cell in row.cells]
    found += [deletion.local_deletion_time for deletion in row.complex_deletions.values()]
    found += [] if row.liveness is None or row.liveness.ttl == NO_TTL else [row.liveness.expires_at]
    found += [] if row.deletion is None else [row.deletion.local_deletion_time]
    return min([*found, NO_DELETION_TIME])


def ties(flat: bytes, *, engine: Engine = "auto") -> int:
    """The number of cells that won a tie which a 3.11 cluster may decide differently (`Cell.tied`)."""
    if not flat:
        return 0
    if (kernel := compiled(engine)) is not None:
        found: int | None = kernel.ties(flat)
        if found is not None:
            return found
    return sum(cell.tied for cell in decode(flat).cells)


def writes(flat: bytes, *, engine: Engine = "auto") -> tuple[bool, bool]:
    """Whether the row has cells, liveness or deletions of collections, and whether it has a row deletion."""
    if flat and (kernel := compiled(engine)) is not None:
        found: int | None = kernel.kinds(flat)
        if found is not None:
            deletions = 1 << _DELETION | 1 << _SHADOWABLE
            return bool(found & ~deletions), bool(found & deletions)
    row = decode(flat) if flat else Row(None)
    return row.liveness is not None or bool(row.cells or row.complex_deletions), row.deletion is not None


def drops(dropped: Mapping[str, int]) -> bytes:
    """Dropped columns as input of the kernel: for each the name as a blob and the timestamp (µs) as a signed
    vint."""
    parts = []
    for column, timestamp in sorted(dropped.items()):
        name = encoded_name(column)
        parts.append(write_unsigned(len(name)) + name + write_signed(min(timestamp, NO_DELETION_TIME)))
    return b"".join(parts)


def compiled(engine: Engine) -> Any:
    """The module with the compiled twins, or None."""
    return None if engine == "python" or (engine == "auto" and not _kernel_there()) else _kernel()


@cache
def _kernel() -> Any:
    return importlib.import_module("writetime.kernels.merge")


@cache
def _kernel_there() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "writetime.kernels.merge"))
