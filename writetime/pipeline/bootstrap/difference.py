"""The row to merge into a row of the state so that it equals the cluster's: no more, so that a second
reading adds nothing.

Strategy: cell by cell, by the reconciliation rules. Cells that only the cluster has are added. A cell that
only the state has, although it is older than the reading (`as_of`), was deleted while the table was not
captured: a *phantom*. It gets a tombstone with exactly its own timestamp, which deletes nothing else.
Younger cells are left to the log. Lists are compared element by element, by values and writetimes, because
paths are unknown: superfluous elements are deleted by their paths, missing ones are added under generated
paths. A counter gets a shard of unknown origin with the difference to the known sum.

A reading below consistency level ALL may miss data: then nothing is a phantom (`complete=False`). Pure;
knows rows of one table only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import count, pairwise
from typing import Final
from uuid import UUID

from writetime.cassandra.merge.counters import total
from writetime.cassandra.merge.liveness import is_live, is_live_cell, live_cells
from writetime.cassandra.merge.reconcile import POLICY, Policy, merge_rows, reconcile_cells
from writetime.cassandra.model import NO_TTL, Cell, DeletionTime, Row
from writetime.pipeline.bootstrap import unknown_marker
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
        if not self.counter and not is_live(old.liveness, reading.now) and (self.first or cells or not live_cells(old, now=reading.now)):
            fix = replace(fix, liveness=unknown_marker.liveness(reading.as_of))
        return self._news(old, fix)

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
            mine = [cell for cell in old.cells if cell.column == name]
            found += self._list(mine, [cell for cell in ring if cell.column == name], reading)
        return tuple(sorted(found, key=lambda cell: (cell.path is not None, cell.column, cell.path or b"")))

    def _cell(self, held: Cell | None, cell: Cell, reading: Reading) -> Cell | None:
        if self.counter:
            return self._counter(held, cell, reading)
        if held is None:
            return cell
        if cell.column in self.untold and held.value == cell.value and is_live_cell(held, reading.now):
            return None
        if _alike(held, cell) or reconcile_cells(held, cell, policy=self.policy) == held:
            return None
        return cell

    @staticmethod
    def _counter(held: Cell | None, cell: Cell, reading: Reading) -> Cell | None:
        """A deleted counter stays deleted: Cassandra does not support using it again."""
        known = b"" if held is None else held.value
        if held is not None and (held.is_tombstone or total(known) == total(cell.value)):
            return None
        return replace(cell, value=unknown_marker.counter(total(cell.value), known, reading.as_of))

    def _phantom(self, cell: Cell, reading: Reading) -> Iterable[Cell]:
        """The tombstone of a phantom cell. A cell about to expire may have expired by the cluster's clock."""
        if not self.complete or cell.timestamp > reading.as_of or not is_live_cell(cell, reading.now + CLOCKS):
            return
        yield Cell(cell.column, cell.timestamp, b"", cell.path, NO_TTL, reading.now)

    def _list(self, known: Sequence[Cell], ring: Sequence[Cell], reading: Reading) -> Iterable[Cell]:
        """`known`: all cells of the column, including dead ones; `ring`: in the list's order."""
        held = sorted((cell for cell in known if is_live_cell(cell, reading.now)), key=_place)
        if held and all(cell.timestamp > reading.as_of for cell in held):
            # All written after the reading: nothing to compare.
            return
        timed = not ring or ring[0].column not in self.untold
        kept = _matched(held, ring, timed=timed)
        taken = {cell.path for cell in known}
        if not _fits([held[at] for at in kept], list(kept.values()), ring, taken):
            kept = {at: place for at, place in kept.items() if held[at].timestamp > reading.as_of}
            ring = _elsewhere(ring, taken)
        for at, cell in enumerate(held):
            if at not in kept:
                yield from self._phantom(cell, reading)
        matched = set(kept.values())
        yield from (cell for at, cell in enumerate(ring) if at not in matched)

    def _news(self, old: Row, fix: Row) -> Row | None:
        """The fix, if it changes anything."""
        if fix.is_empty:
            return None
        settled = merge_rows(Row(old.clustering), old, counter=self.counter, policy=self.policy)
        return None if merge_rows(settled, fix, counter=self.counter, policy=self.policy) == settled else fix


def _matched(held: Sequence[Cell], ring: Sequence[Cell], *, timed: bool) -> dict[int, int]:
    """Which elements of the cluster match which held ones, in order on both sides; of copies, those with
    real paths first."""
    real = [at for at, cell in enumerate(held) if not unknown_marker.is_list_path(cell.path or b"")]
    for some in (real, list(range(len(held)))):
        ours, theirs = ([_element(cell, timed) for cell in cells] for cells in ([held[at] for at in some], ring))
        matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
        kept = {some[block.a + i]: block.b + i for block in matcher.get_matching_blocks() for i in range(block.size)}
        if len(kept) == len(ring) or some is not real:
            return kept
    return {}


def _fits(held: Sequence[Cell], places: Sequence[int], ring: Sequence[Cell], taken: Collection[bytes | None]) -> bool:
    """Whether the held elements, and the other elements of the cluster under their paths, are in the
    cluster's order."""
    there = dict(zip(places, held, strict=True))
    if any(cell.path in taken for at, cell in enumerate(ring) if at not in there):
        return False
    return all(_place(a) < _place(b) for a, b in pairwise(there.get(at, cell) for at, cell in enumerate(ring)))


def _elsewhere(ring: Sequence[Cell], taken: Collection[bytes | None]) -> list[Cell]:
    """The elements under other generated paths, none of which is taken."""
    for start in count(0, unknown_marker.PLACES):
        moved = [replace(cell, path=unknown_marker.list_path(start + at, cell.value, cell.timestamp)) for at, cell in enumerate(ring)]
        if not any(cell.path in taken for cell in moved):
            break
    return moved


def _place(cell: Cell) -> tuple[int, bytes]:
    path = cell.path or b""
    return (UUID(bytes=path).time if len(path) == 16 else 0), path


def _element(cell: Cell, timed: bool) -> tuple[bytes, int]:
    return cell.value, cell.timestamp if timed else 0


def _alike(held: Cell, cell: Cell) -> bool:
    """The same value and writetime, and the same expiry within `CLOCKS`."""
    if (held.timestamp, held.value, held.is_expiring) != (cell.timestamp, cell.value, cell.is_expiring):
        return False
    return abs(held.local_deletion_time - cell.local_deletion_time) <= CLOCKS
