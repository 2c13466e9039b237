"""Flat rows by the batch: Arrow arrays in and out, one call for many rows.

    pack   what `writetime.commitlog.cells` decoded → a flat row per row of an update, and its greatest timestamp
    join   many small folds at once: items, sorted by row and writetime, into the states of their rows; what showed before and after

`join` does the plain rows: those on which no deletion or static content of the head changes, and in which nothing expires, within the
batch. It finds the latter itself and leaves them (`Joined.left`) to a fold that keeps time, together with what is damaged, for whose error
one row at a time has the words. Both functions have two engines, as all of `flat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from writetime.commitlog.cells import Decoded, unflatten
from writetime.errors import MalformedMutation
from writetime.join import flat
from writetime.join.flat import NOTHING, Engine
from writetime.model import DeletionTime, Row

_NO_DROPS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Packed:
    """One entry per row of ROWS: `rows` (binary) the flat row, not settled; `max_timestamps` (int64) as `flat.max_timestamp`."""

    rows: Any
    max_timestamps: Any


@dataclass(frozen=True, slots=True)
class Joined:
    """What became of states, items, and of what SELECT shows.

    Per group: `states` (binary) after the batch, b"" if nothing is left; `changed` (bool) whether it is another than before; `left` (bool):
    nothing was done, and neither state nor items nor events of the group mean anything.
    Per item: `applied` (bool) whether it changed the state of its group, else it was superseded.
    Per change of what SELECT shows, in the order of the items: `event_item` (int32) the number of the item that made it; `event_before`,
    `event_after` (int32) what shows, as numbers in `versions`; `event_deleted` (bool) a row deletion is the reason.
    `versions` (binary): what SELECT shows, as `flat.live`, b"" where nothing does.
    """

    states: Any
    changed: Any
    left: Any
    applied: Any
    versions: Any
    event_item: Any
    event_before: Any
    event_after: Any
    event_deleted: Any


def pack(decoded: Decoded, *, engine: Engine = "auto") -> Packed:
    """The rows of a chunk, static ones included, as flat rows: equal to `flat.encode` of those that `unflatten` gives."""
    rows = [flat.encode(row) for row in _rows(decoded)]
    return Packed(pa.array(rows, pa.binary()), pa.array([flat.max_timestamp(row) for row in rows], pa.int64()))


def join(
    groups: Any,
    items: Any,
    states: Any,
    *,
    now: int,
    since: int | None = None,
    counter: bool = False,
    dropped: Mapping[str, int] = _NO_DROPS,
    active_timestamps: Any = None,
    active_times: Any = None,
    engine: Engine = "auto",
) -> Joined:
    """Merge each item into the state of its group, one by one.

    `groups` (int32): per item the number of its state, ascending; `items` (binary): flat rows, those of a group in the order in which they
    are to be applied; `states` (binary): settled flat rows, null or b"" for none. `active_timestamps`, `active_times` (int64, null for
    none): the deletion of the head that covers the row, as `merge`'s `active`, under which the states are settled already. `now` and
    `since` (s): the clock runs from `since` (None: from ever) to `now`; a group in which something expires at a second in (since, now] is
    left. `counter` and `dropped` as in `flat`.
    """
    actives = _actives(active_timestamps, active_times, len(states))
    folding = _Folding(now, since, counter, dropped)
    numbers = np.asarray(groups)
    ends = np.searchsorted(numbers, np.arange(len(states)), side="right").tolist()
    first = 0
    for state, last, active in zip(states.to_pylist(), ends, actives, strict=True):
        folding.group(state or NOTHING, [(i, items[i].as_py()) for i in range(first, last)], active)
        first = last
    return folding.joined()


def _rows(decoded: Decoded) -> list[Row]:
    updates = (update for _, mutation in unflatten(decoded) for update in mutation.updates)
    return [row for update in updates for row in (update.static_row, *update.rows) if row is not None]


def _actives(timestamps: Any, times: Any, size: int) -> list[DeletionTime | None]:
    if timestamps is None:
        return [None] * size
    pairs = zip(timestamps.to_pylist(), times.to_pylist(), strict=True)
    return [None if timestamp is None else DeletionTime(timestamp, time) for timestamp, time in pairs]


class _Folding:
    """The readable engine of `join`: group by group, gathering columns."""

    def __init__(self, now: int, since: int | None, counter: bool, dropped: Mapping[str, int]) -> None:
        self.now, self.since, self.counter, self.dropped = now, since, counter, dropped
        self.states: list[bytes] = []
        self.changed: list[bool] = []
        self.left: list[bool] = []
        self.applied: list[bool] = []
        self.versions: list[bytes] = []
        self.events: list[tuple[int, int, int, bool]] = []

    def group(self, state: bytes, items: list[tuple[int, bytes]], active: DeletionTime | None) -> None:
        kept = len(self.versions), len(self.events), len(self.applied)
        try:
            left = any(self._expires(row) for row in (state, *(item for _, item in items)))
            after = state if left else self._fold(state, items, active)
        except MalformedMutation:
            left, after = True, state
        if left:
            del self.versions[kept[0] :], self.events[kept[1] :], self.applied[kept[2] :]
            self.applied += [False] * len(items)
        self.states.append(after)
        self.changed.append(after != state)
        self.left.append(left)

    def _fold(self, state: bytes, items: list[tuple[int, bytes]], active: DeletionTime | None) -> bytes:
        self.versions.append(self._live(state))
        for number, item in items:
            merged = flat.merge(state, item, active=active, counter=self.counter, engine="python")
            self.applied.append(merged != state)
            if merged == state:
                continue
            state, shows = merged, self._live(merged)
            if shows != self.versions[-1]:
                self.versions.append(shows)
                self.events.append((number, len(self.versions) - 2, len(self.versions) - 1, _is_deletion(item, shows)))
        return state

    def _live(self, row: bytes) -> bytes:
        return flat.live(row, self.now, self.dropped, engine="python")

    def _expires(self, row: bytes) -> bool:
        """Whether anything expires at a second that the clock passes."""
        soonest = flat.next_expiry(row, -(2**63) if self.since is None else self.since, engine="python")
        return soonest is not None and soonest <= self.now

    def joined(self) -> Joined:
        items, befores, afters, deleted = zip(*self.events, strict=True) if self.events else ((), (), (), ())
        return Joined(
            states=pa.array(self.states, pa.binary()),
            changed=pa.array(self.changed, pa.bool_()),
            left=pa.array(self.left, pa.bool_()),
            applied=pa.array(self.applied, pa.bool_()),
            versions=pa.array(self.versions, pa.binary()),
            event_item=pa.array(items, pa.int32()),
            event_before=pa.array(befores, pa.int32()),
            event_after=pa.array(afters, pa.int32()),
            event_deleted=pa.array(deleted, pa.bool_()),
        )


def _is_deletion(item: bytes, shows: bytes) -> bool:
    """Whether the row deletion of an item is why a row shows differently: it writes nothing else, or nothing of it shows."""
    row = flat.decode(item)
    written = row.liveness is not None or bool(row.cells or row.complex_deletions)
    return row.deletion is not None and not (written and shows != NOTHING)
