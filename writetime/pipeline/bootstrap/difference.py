"""The row to merge into a row of the state so that it equals the cluster's: no more, so that a second
reading adds nothing.

Strategy: cell by cell, by the reconciliation rules. Cells that only the cluster has are added. A cell that
only the state has, although it is older than the reading (`as_of`), was deleted while the table was not
captured: a *phantom*. It gets a tombstone with exactly its own timestamp, which deletes nothing else.
Younger cells are left to the log. A list that differs is added as a whole, under generated paths, and a counter
as its sum: these stand-ins meet the log's elements and shards where the row is merged.

The state is that of some moment before the reading, and the row is merged into a later one. So it must be right
in any state: what it adds are cells of the cluster with their own writetimes, and statements as of the reading
(`writetime.cassandra.merge.stand_ins`), never a difference.

A reading below consistency level ALL may miss data: then nothing is a phantom (`complete=False`). Pure;
knows rows of one table only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from writetime.cassandra.merge import stand_ins, unknown_marker
from writetime.cassandra.merge.counters import is_uncertain, total
from writetime.cassandra.merge.liveness import is_live, is_live_cell, live_cells
from writetime.cassandra.merge.reconcile import POLICY, Policy, merge_rows, reconcile_cells
from writetime.cassandra.merge.unknown_marker import is_list_path
from writetime.cassandra.model import NO_TTL, Cell, DeletionTime, Row
from writetime.pipeline.bootstrap.rows import Reading

CLOCKS: Final = 5
"""Seconds by which two equal expiries may differ: the cluster reports the remaining time, not the moment."""

Key = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How rows of one table are compared. `lists`: columns that are unfrozen lists. `untold`: columns
    without writetimes per element. `counter`: the table has counters. `first`: no reading of the table is
    complete yet, so an INSERT of any row may be unknown. `policy`: the merge rule of batches."""

    lists: frozenset[str] = field(default_factory=frozenset)
    untold: frozenset[str] = field(default_factory=frozenset)
    counter: bool = False
    complete: bool = True
    first: bool = False
    policy: Policy = POLICY

    def row(self, state: Row | None, ring: Row | None, reading: Reading) -> Row | None:
        """The row to merge into a regular row; None if there is nothing to merge. `ring` None: the cluster
        has no such row."""
        some = state or ring
        if some is None:
            return None
        old = state or Row(some.clustering)
        if ring is None:
            return self._gone(old, reading)
        cells = self._cells(old, ring.cells, reading)
        fix = Row(old.clustering, cells=cells)
        if not self.counter and self._lacks_liveness(old, ring, cells, reading):
            fix = replace(fix, liveness=unknown_marker.liveness(reading.as_of, alone=not ring.cells))
        return self._news(old, fix)

    def _lacks_liveness(self, old: Row, ring: Row, cells: Sequence[Cell], reading: Reading) -> bool:
        if is_live(old.liveness, reading.now):
            # It was read with cells, which have gone: now it is certain that it exists without any.
            return old.liveness is not None and old.liveness.ttl == unknown_marker.WITH_CELLS and not ring.cells
        return self.first or bool(cells) or not live_cells(old, now=reading.now)

    def statics(self, state: Row | None, ring: Sequence[Cell], reading: Reading) -> Row | None:
        """The row to merge into a static row."""
        old = state or Row(None)
        return self._news(old, Row(None, cells=self._cells(old, ring, reading)))

    # --- a row that is not there

    def _gone(self, old: Row, reading: Reading) -> Row | None:
        """A tombstone with the timestamp of the youngest data that the reading should have returned."""
        if not self.complete:
            return None
        shown = [cell.timestamp for cell in live_cells(old, now=reading.now)]
        if old.liveness is not None and is_live(old.liveness, reading.now):
            shown.append(old.liveness.timestamp)
        phantoms = [timestamp for timestamp in shown if timestamp <= reading.as_of]
        if not phantoms:
            return None
        return Row(old.clustering, deletion=DeletionTime(max(phantoms), reading.now))

    # --- cells

    def _cells(self, old: Row, ring: Sequence[Cell], reading: Reading) -> tuple[Cell, ...]:
        held = {(cell.column, cell.path): cell for cell in old.cells}
        simple = {(cell.column, cell.path): cell for cell in ring if cell.column not in self.lists}
        found = [new for key, cell in simple.items() if (new := self._cell(held.get(key), cell, reading)) is not None]
        for key, cell in held.items():
            if cell.column not in self.lists and key not in simple:
                found += self._phantom(cell, reading)
        for name in sorted(self.lists):
            found += self._list(old, name, [cell for cell in ring if cell.column == name], reading)
        return tuple(sorted(found, key=lambda cell: (cell.path is not None, cell.column, cell.path or b"")))

    def _cell(self, held: Cell | None, cell: Cell, reading: Reading) -> Cell | None:
        if self.counter:
            return self._counter(held, cell)
        if held is None:
            return cell
        if cell.column in self.untold and held.value == cell.value and is_live_cell(held, reading.now):
            return None
        if _alike(held, cell) or reconcile_cells(held, cell, policy=self.policy) == held:
            return None
        return cell

    @staticmethod
    def _counter(held: Cell | None, cell: Cell) -> Cell | None:
        """A deleted counter stays deleted: Cassandra does not support using it again."""
        if held is None:
            return cell
        if held.is_tombstone or (total(held.value) == total(cell.value) and not (held.value and is_uncertain(held.value))):
            return None
        return cell

    def _phantom(self, cell: Cell, reading: Reading) -> Iterable[Cell]:
        """The tombstone of a phantom cell. A cell about to expire may have expired by the cluster's clock."""
        if not self.complete or cell.timestamp > reading.as_of or not is_live_cell(cell, reading.now + CLOCKS):
            return
        yield Cell(cell.column, cell.timestamp, b"", cell.path, NO_TTL, reading.now)

    def _list(self, old: Row, name: str, ring: Sequence[Cell], reading: Reading) -> Iterable[Cell]:
        """The whole list of the cluster, unless the state has the same. `ring`: in the list's order."""
        held, timed = _held(old, name, reading), name not in self.untold
        if self._agrees(held, ring, reading):
            return
        kept = _matched(held, ring, timed=timed)
        superfluous = [cell for at, cell in enumerate(held) if not kept[at]]
        added = [*ring, *self._phantoms(superfluous, reading)]
        merged = merge_rows(old, Row(old.clustering, cells=tuple(added)), policy=self.policy)
        yield from added
        # Real elements may not be where the cluster has them, or without their writetimes others than it seems.
        if (superfluous and not timed) or not self._agrees(_held(merged, name, reading), ring, reading):
            yield from self._phantoms([cell for at, cell in enumerate(held) if kept[at] and not is_list_path(cell.path)], reading)

    def _phantoms(self, cells: Iterable[Cell], reading: Reading) -> Iterable[Cell]:
        return [tombstone for cell in cells for tombstone in self._phantom(cell, reading)]

    def _agrees(self, held: Sequence[Cell], ring: Sequence[Cell], reading: Reading) -> bool:
        """Whether the held elements, apart from younger ones that were not read, are those of the cluster in its order."""
        timed = not ring or ring[0].column not in self.untold
        kept = _matched(held, ring, timed=timed)
        ours = [_element(cell, timed) for at, cell in enumerate(held) if kept[at] or cell.timestamp <= reading.as_of]
        return ours == [_element(cell, timed) for cell in ring]

    def _news(self, old: Row, fix: Row) -> Row | None:
        """The fix, if it changes anything."""
        if fix.is_empty:
            return None
        settled = merge_rows(Row(old.clustering), old, counter=self.counter, policy=self.policy)
        return None if merge_rows(settled, fix, counter=self.counter, policy=self.policy) == settled else fix


def _held(row: Row, name: str, reading: Reading) -> list[Cell]:
    """The live elements of a list, in its order."""
    return sorted((cell for cell in row.cells if cell.column == name and is_live_cell(cell, reading.now)), key=stand_ins.place)


def _matched(held: Sequence[Cell], ring: Sequence[Cell], *, timed: bool) -> list[bool]:
    """Which of the held elements the cluster has, too; of copies those with real paths first."""
    left = Counter(_element(cell, timed) for cell in ring)
    kept = [False] * len(held)
    for at in sorted(range(len(held)), key=lambda at: is_list_path(held[at].path)):
        kept[at] = left[_element(held[at], timed)] > 0
        left[_element(held[at], timed)] -= kept[at]
    return kept


def _element(cell: Cell, timed: bool) -> tuple[bytes, int]:
    return cell.value, cell.timestamp if timed else 0


def _alike(held: Cell, cell: Cell) -> bool:
    """The same value and writetime, and the same expiry within `CLOCKS`."""
    if (held.timestamp, held.value, held.is_expiring) != (cell.timestamp, cell.value, cell.is_expiring):
        return False
    return abs(held.local_deletion_time - cell.local_deletion_time) <= CLOCKS
