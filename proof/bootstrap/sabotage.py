"""Breaks one rule of the product at a time, in the jobs' processes: a run must notice that.

pinned-state   a reading writes the difference to the state that was pinned when its job began, as if the log had
               written it: of tables that are captured from their first write on, so that the difference is wrong
               only if a log batch comes between the reading and the batch of its frames
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from proof.bootstrap.workload import EARLY
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.counters import Shard, decode_context, encode_context, total
from writetime.cassandra.model import Row

VARIABLE: Final = "WRITETIME_PROOF_SABOTAGE"
_PINNED: Final = b"of pinned state\x01"
"""Counter id of a difference: no node's, and no reading's."""
_STATED: Final = b"writetime"
"""How the counter ids of a reading begin."""
_STAND_IN, _NO_STAND_IN = b"\x80\x77", b"\x80\x78"
"""In the path of an element that was read, and in one that gives way to nothing."""


def apply(name: str) -> None:
    """Break a rule in this process, permanently. KeyError if it is unknown."""
    RULES[name]()


def apply_of_environment() -> None:
    if name := os.environ.get(VARIABLE):
        apply(name)


def _pinned_state() -> None:
    from spark_jobs.bootstrap import TableReader

    row, statics, put = TableReader._row, TableReader._statics, TableReader._put
    pinned: dict[int, Any] = {}

    def of_row(self: Any, key: bytes, state: bytes, *rest: Any) -> None:
        pinned[id(self)] = row_codec.decode(state) if state else None
        row(self, key, state, *rest)

    def of_statics(self: Any, key: bytes, state: bytes, *rest: Any) -> None:
        pinned[id(self)] = self._static(state)
        statics(self, key, state, *rest)

    def put_difference(self: Any, key: bytes, fix: Any) -> None:
        if fix is not None and self.plan.table.name in EARLY:
            found = difference(pinned.get(id(self)), fix)
            fix = None if found.is_empty else found
        put(self, key, fix)

    TableReader._row, TableReader._statics, TableReader._put = of_row, of_statics, put_difference  # type: ignore[method-assign]


def difference(state: Row | None, fix: Row) -> Row:
    """The row with counts and elements of lists that the state lacks, under ids and paths that give way to nothing."""
    held = () if state is None else state.cells
    counters = {cell.column: cell.value for cell in held if cell.path is None}
    there = Counter((cell.column, cell.value, cell.timestamp) for cell in held if cell.path is not None and not cell.is_tombstone)
    cells = []
    for cell in fix.cells:
        if cell.path is None and _STATED in cell.value:
            known = sum(shard.count for shard in decode_context(counters.get(cell.column) or b"\0\0") if shard.counter_id != _PINNED)
            cells.append(replace(cell, value=encode_context((Shard(_PINNED, cell.timestamp, total(cell.value) - known),))))
        elif cell.path is not None and cell.path[8:10] == _STAND_IN and not cell.is_tombstone:
            if there[cell.column, cell.value, cell.timestamp] > 0:
                there[cell.column, cell.value, cell.timestamp] -= 1
            else:
                cells.append(replace(cell, path=cell.path[:8] + _NO_STAND_IN + cell.path[10:]))
        else:
            cells.append(cell)
    ordered = sorted(cells, key=lambda cell: (cell.path is not None, cell.column, cell.path or b""))
    return replace(fix, cells=tuple(ordered))


RULES: Final[dict[str, Callable[[], None]]] = {"pinned-state": _pinned_state}
