"""What has to be merged into a row of the state so that it becomes the ring's: no more, so that a second reading adds nothing.

Strategy: cell by cell, by the rules of the join. What the ring has and the state does not, comes in as it is. What the state has and the
ring does not, though it is older than the reading (`as_of`), was deleted while nobody captured it: a *phantom*. It gets a tombstone of
exactly its own timestamp, which takes it and nothing else. What is younger than the reading is the log's to tell. A list is compared
element by element, as values and writetimes, because paths are not known: elements that the state has too many are taken by their paths,
those that it lacks come in under paths of our own. A counter gets an opaque shard that makes up for what the known ones do not sum up to.

A reading that is not at ALL may miss what is there: then nothing is a phantom (`complete=False`). Pure; knows rows of one table only.
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
"""Seconds within which two expiries are one: the ring's answer says how many are left, not when."""

Key = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How rows of one table are compared. `lists`: names of its columns that are unfrozen lists. `untold`: those of elements
    of which the ring does not tell writetimes. `counter`: it counts. `first`: no reading of the table has come to its end yet, so that an
    INSERT may be unknown of any row. `policy`: by which batches merge."""

    lists: frozenset[str] = field(default_factory=frozenset)
    untold: frozenset[str] = field(default_factory=frozenset)
    counter: bool = False
    complete: bool = True
    first: bool = False
    policy: Policy = POLICY

    def row(self, state: Row | None, ring: Row | None, reading: Reading) -> Row | None:
        """What to merge into a regular row; `ring` None: the ring shows no such row. None: nothing."""
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
        """What to merge into a static row."""
        old = state or Row(None)
        return self._news(old, Row(None, cells=self._cells(old, ring, reading)))

    # --- a row that is not there -------------------------------------------------------------------------------------------------------

    def _gone(self, old: Row, reading: Reading) -> Row | None:
        """A tombstone of exactly the timestamp of the youngest that the reading should have shown."""
        if not self.complete:
            return None
        shown = [cell.timestamp for cell in live_cells(old, now=reading.now)]
        if old.liveness is not None and is_live(old.liveness, reading.now):
            shown.append(old.liveness.timestamp)
        phantoms = [timestamp for timestamp in shown if timestamp <= reading.as_of]
        if not phantoms:
            return None
        return Row(old.clustering, deletion=DeletionTime(max(phantoms), reading.now))

    # --- cells -------------------------------------------------------------------------------------------------------------------------

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
        """A count that was deleted stays deleted: in the ring as well, a counter that is used again is no counter any more."""
        known = b"" if held is None else held.value
        if held is not None and (held.is_tombstone or total(known) == total(cell.value)):
            return None
        return replace(cell, value=unknown_marker.counter(total(cell.value), known, reading.as_of))

    def _phantom(self, cell: Cell, reading: Reading) -> Iterable[Cell]:
        """The tombstone of a cell that the reading should have shown. What is about to expire may be gone by the ring's clock."""
        if not self.complete or cell.timestamp > reading.as_of or not is_live_cell(cell, reading.now + CLOCKS):
            return
        yield Cell(cell.column, cell.timestamp, b"", cell.path, NO_TTL, reading.now)

    def _list(self, known: Sequence[Cell], ring: Sequence[Cell], reading: Reading) -> Iterable[Cell]:
        """`known` are all cells of the column, dead ones too; `ring` stands in the list's order."""
        held = sorted((cell for cell in known if is_live_cell(cell, reading.now)), key=_place)
        if held and all(cell.timestamp > reading.as_of for cell in held):
            # All written since: nothing of it can be compared with what was read.
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
    """Which elements of the ring are which ones held, in order on both sides; of copies, those with real paths."""
    real = [at for at, cell in enumerate(held) if not unknown_marker.is_list_path(cell.path or b"")]
    for some in (real, list(range(len(held)))):
        ours, theirs = ([_element(cell, timed) for cell in cells] for cells in ([held[at] for at in some], ring))
        matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
        kept = {some[block.a + i]: block.b + i for block in matcher.get_matching_blocks() for i in range(block.size)}
        if len(kept) == len(ring) or some is not real:
            return kept
    return {}


def _fits(held: Sequence[Cell], places: Sequence[int], ring: Sequence[Cell], taken: Collection[bytes | None]) -> bool:
    """Whether the elements that are held, and the others of the ring under the paths that they have, come in the ring's order."""
    there = dict(zip(places, held, strict=True))
    if any(cell.path in taken for at, cell in enumerate(ring) if at not in there):
        return False
    return all(_place(a) < _place(b) for a, b in pairwise(there.get(at, cell) for at, cell in enumerate(ring)))


def _elsewhere(ring: Sequence[Cell], taken: Collection[bytes | None]) -> list[Cell]:
    """The elements under other paths of ours, none of which is taken."""
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
    """The same value of the same writetime, which expires at the same time as far as can be told."""
    if (held.timestamp, held.value, held.is_expiring) != (cell.timestamp, cell.value, cell.is_expiring):
        return False
    return abs(held.local_deletion_time - cell.local_deletion_time) <= CLOCKS
