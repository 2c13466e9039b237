"""How the stand-ins that a reading of the cluster writes (`unknown_marker`) yield to what a log knows.

A reading is a statement: at its time the row was this. It is merged like any other update, before or after the log
of the time that it covers, once or several times. So a stand-in gives way where it meets the real thing:

    liveness    any INSERT of the log takes its place. If the row was read without cells, only one that can explain
                it: younger than the reading, or alive at its time.
    lists       a real element of the same value and writetime takes the place of its stand-in. A later reading
                replaces all stand-ins of an earlier one.

Counters: see `counters`. The rest follows from Cassandra's rules.

Not everything can be decided: a log may change an element by a path that only Cassandra knows, add to a counter in the
seconds around the reading, or take the last cell of a row. Such rows are read from the cluster again (`is_unknown`).
A superfluous reading changes nothing. Pure; knows one row.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from writetime.cassandra.merge.counters import is_stated, is_uncertain
from writetime.cassandra.merge.liveness import is_live, is_live_cell, live_cells
from writetime.cassandra.merge.unknown_marker import REFERENCE, STATED, WITH_CELLS, is_list_path, is_unknown_liveness, read_at
from writetime.cassandra.model import EXPIRED_LIVENESS_TTL, MICROSECONDS, NO_TTL, Cell, Liveness, Row

_EPOCH: Final = 12_219_292_800_000
"""ms from the epoch of UUIDs to that of Unix."""
_ABOUT: Final = 60_000
"""ms: an element that was added up to then after a reading may be one of those that were read."""


# --- liveness


def yields(stand_in: Liveness, real: Liveness) -> bool:
    """Whether a row's INSERT takes the place of its stand-in."""
    if stand_in.ttl == WITH_CELLS or real.timestamp > stand_in.timestamp or real.ttl == NO_TTL:
        return True
    return real.ttl != EXPIRED_LIVENESS_TTL and real.expires_at > stand_in.timestamp // MICROSECONDS


# --- lists


def place(cell: Cell) -> tuple[int, bytes]:
    """The order of elements in a list."""
    path = cell.path or b""
    return _time(path), path


def _time(path: bytes) -> int:
    """100 ns since the epoch of UUIDs."""
    if len(path) != 16:
        return 0
    return (int.from_bytes(path[6:8], "big") & 0x0FFF) << 48 | int.from_bytes(path[4:6], "big") << 32 | int.from_bytes(path[:4], "big")


def _added_at(cell: Cell) -> int:
    """When a real element was added to its list (ms)."""
    time = _time(cell.path or b"")
    return (2 * REFERENCE - time if time < REFERENCE else time) // 10_000 - _EPOCH


def without_replaced(a: Iterable[Cell], b: Iterable[Cell]) -> tuple[Iterable[Cell], Iterable[Cell]]:
    """The cells of two rows that are merged, without stand-ins for elements of lists that yield to something in the
    other row."""
    sides = list(a), list(b)
    marked = [[cell for cell in cells if is_list_path(cell.path)] for cells in sides]
    if not any(marked):
        return sides
    left = [_List.by_column(cells) for cells in sides]
    gone: list[set[tuple[str, bytes | None]]] = [set(), set()]
    for column in {cell.column for cells in marked for cell in cells}:
        mine, its = (lists.get(column, _List()) for lists in left)
        newest = max(read_at(cell.path) for cell in (*mine.stand_ins.values(), *its.stand_ins.values()))
        for side, one, other in ((0, mine, its), (1, its, mine)):
            gone[side] |= {(column, path) for path in one.replaced(other, newest)}
    return tuple([cell for cell in cells if (cell.column, cell.path) not in paths] for cells, paths in zip(sides, gone, strict=True))  # type: ignore[return-value]


class _List:
    """The elements of one list in a row, by path."""

    def __init__(self) -> None:
        self.stand_ins: dict[bytes | None, Cell] = {}
        self.real: dict[bytes | None, Cell] = {}

    @classmethod
    def by_column(cls, cells: Iterable[Cell]) -> dict[str, _List]:
        found: dict[str, _List] = defaultdict(cls)
        for cell in cells:
            if cell.path is not None:
                (found[cell.column].stand_ins if is_list_path(cell.path) else found[cell.column].real)[cell.path] = cell
        return found

    def replaced(self, other: _List, newest: int) -> Iterator[bytes | None]:
        """Paths of the stand-ins that are of an earlier reading, or yield to real elements that are news to this row.
        Those that it has had met its stand-ins before."""
        yield from (path for path, cell in self.stand_ins.items() if read_at(cell.path) != newest)
        waiting: dict[tuple[bytes, int | None], deque[bytes | None]] = defaultdict(deque)
        for cell in sorted(self.stand_ins.values(), key=place):
            if read_at(cell.path) == newest and not cell.is_tombstone and cell.path not in other.stand_ins:
                # A reading that does not report writetimes of elements gives them its own.
                waiting[cell.value, None if cell.timestamp // 1000 == newest else cell.timestamp].append(cell.path)
        if waiting:
            for cell in _outermost_first(each for each in other.real.values() if self._is_news(each)):
                timed, untimed = waiting.get((cell.value, cell.timestamp)), waiting.get((cell.value, None))
                found = timed or (untimed if cell.timestamp // 1000 <= newest else None)
                if found:
                    yield found.pop() if _is_appended(cell) else found.popleft()

    def _is_news(self, cell: Cell) -> bool:
        """Whether a real element is not known here. One with a tombstone of its own timestamp was found not to fit; one that
        is older than what is known may have met its stand-in before, since any replica's log may bring it once more."""
        known = self.real.get(cell.path)
        return not cell.is_tombstone and (known is None or known.timestamp < cell.timestamp)


def _is_appended(cell: Cell) -> bool:
    return _time(cell.path or b"") >= REFERENCE


def _outermost_first(cells: Iterable[Cell]) -> list[Cell]:
    """Elements of a list, those that were appended from its end, those that were prepended from its beginning."""
    ordered = sorted(cells, key=place)
    return [*(cell for cell in ordered if not _is_appended(cell)), *(cell for cell in reversed(ordered) if _is_appended(cell))]


def _is_unknown_list(cells: Sequence[Cell], now: int) -> bool:
    """Whether some elements are stand-ins, and the log has changed one that may be among them, or tells the place of
    another."""
    newest = max((read_at(cell.path) for cell in cells if is_list_path(cell.path) and is_live_cell(cell, now)), default=None)
    return newest is not None and any(not is_list_path(cell.path) and _added_at(cell) <= newest + _ABOUT for cell in cells)


# --- rows to read again


def is_unknown(row: Row, now: int, *, counter: bool = False) -> bool:
    """Whether a row has a stand-in that the log has contradicted, or has left as the only reason (at `now`, s) why the
    row exists although it was read with cells: the cluster has to be asked. `counter`: its cells are counters."""
    if counter:
        return any(STATED in cell.value and is_uncertain(cell.value) for cell in row.cells)
    if any(_is_unknown_list([cell for cell in row.cells if cell.column == name], now) for name in _lists(row)):
        return True
    found = row.liveness
    return found is not None and found.ttl == WITH_CELLS and is_live(found, now) and not live_cells(row, now=now)


def holds_any(row: Row, *, counter: bool) -> bool:
    """Whether there is a stand-in in a row, which no node's log has."""
    if is_unknown_liveness(row.liveness):
        return True
    return any(is_list_path(cell.path) or (counter and is_stated(cell.value)) for cell in row.cells)


def _lists(row: Row) -> set[str]:
    return {cell.column for cell in row.cells if is_list_path(cell.path)}
