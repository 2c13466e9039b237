"""Batches of flat rows: Arrow arrays in and out, one call for many rows.

    pack   a `Decoded` of `mutation_columns` → a flat row for each row of an update, and its greatest timestamp
    min_deletion_times   when something in a row dies first
    join   many small folds at once: merges items, sorted by row and writetime, into row states; returns visible changes

`join` handles rows in which nothing expires. What the head of their partition does to them while they are
merged (deletions that begin to cover them, changes of static content) are steps among their items (`Steps`).
It detects expiry and leaves such rows (`Joined.left`) to `partition_fold`, together with damaged rows, whose
error is reported one row at a time. Both functions have two engines, as in `row_codec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.reconcile import POLICY, Policy
from writetime.cassandra.merge.row_codec import NOTHING, Engine
from writetime.cassandra.model import NO_DELETION_TIME, NO_TIMESTAMP, DeletionTime, Row
from writetime.errors import MalformedMutation
from writetime.kernels.mutation_columns import Decoded, unflatten

_NO_DROPS: Final[Mapping[str, int]] = MappingProxyType({})
_NEVER: Final = -(2**63)
MOST_VERSIONS: Final = 1 << 30
"""Maximum bytes of versions in one call. Groups without room are left."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One entry per row of ROWS: `rows` (binary) the flat row, not settled; `max_timestamps` (int64) as
    `row_codec.max_timestamp`."""

    rows: Any
    max_timestamps: Any


@dataclass(frozen=True, slots=True)
class Steps:
    """What else takes effect with each item, before it is merged; one entry per item. `has_part` (bool): there is an
    item, else only this; `deletes` (bool): a deletion of the head begins to cover the row, stronger than those
    before it, `timestamps`, `times` (int64): which; `changes_statics` (bool): static content changes, which is a
    change of each row that is visible then."""

    has_part: Any
    deletes: Any
    timestamps: Any
    times: Any
    changes_statics: Any


@dataclass(frozen=True, slots=True)
class Joined:
    """The results of `join`: states, items and visible changes.

    Per group: `states` (binary) after the batch, b"" if nothing is left; `expiries` (int64, s): the next expiry in it after
    `now`, null for none; `changed` (bool): the state differs
    from before; `left` (bool): the group was not processed, its other values are meaningless; `showed`, `shows`
    (bool): it is visible before and after. Per item: `applied` (bool): it changed the state of its group, else it
    was superseded. Per visible change, in the order of items: `event_item` (int32): index of the item;
    `event_before`, `event_after` (int32): indexes in `versions`, equal if only static content changes;
    `event_deleted` (bool): a row deletion is the reason; `event_writes` (bool): the item writes more than
    deletions. `versions` (binary): visible rows as from `row_codec.live`, b"" if not visible.
    """

    states: Any
    expiries: Any
    changed: Any
    left: Any
    showed: Any
    shows: Any
    applied: Any
    versions: Any
    event_item: Any
    event_before: Any
    event_after: Any
    event_deleted: Any
    event_writes: Any


def pack(decoded: Decoded, *, engine: Engine = "auto") -> Packed:
    """The rows of a chunk, static rows included, as flat rows: equal to `row_codec.encode` of `unflatten`'s
    rows."""
    if (kernel := row_codec.compiled(engine)) is not None:
        return _pack(decoded, kernel)
    rows = [row_codec.encode(row) for row in _rows(decoded)]
    return Packed(pa.array(rows, pa.binary()), pa.array([row_codec.max_timestamp(row) for row in rows], pa.int64()))


def min_deletion_times(rows: Any, *, engine: Engine = "auto") -> Any:
    """`row_codec.min_deletion_time` (s) of each of the flat rows (binary), as an array of int64; NO_TIMESTAMP of what is
    not a row."""
    found = np.empty(len(rows), np.int64)
    if (kernel := row_codec.compiled(engine)) is not None:
        cursors, rules = np.zeros(kernel.CURSORS, np.int64), kernel.Rules(*[0] * len(kernel.Rules._fields))
        kernel.call(kernel.run, kernel.Ending(kernel.ENDS, len(rows), kernel.Blobs(*_blobs(rows)), found, cursors, rules))
        return found
    for number, row in enumerate(rows.to_pylist()):
        try:
            found[number] = row_codec.min_deletion_time(row or NOTHING, engine=engine)
        except MalformedMutation:
            found[number] = NO_TIMESTAMP
    return found


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
    steps: Steps | None = None,
    policy: Policy = POLICY,
    engine: Engine = "auto",
) -> Joined:
    """Merge each item into the state of its group, one by one.

    `groups` (int32): for each item the index of its state, ascending; `items` (binary): flat rows, those of a
    group in the order of application; `states` (binary): settled flat rows, null or b"" for none.
    `active_timestamps`, `active_times` (int64, null for none): the deletion of the head that covers the row from
    the start, like `active` in `merge`. `steps`: what else takes effect with the items (None: nothing); an item
    without a part may be null. `now`, `since` (s): the clock runs from `since` (None: unlimited) to `now`; a group
    with an expiry in (since, now] is left. `counter`, `dropped` and `policy` as in `row_codec`.
    """
    if (kernel := row_codec.compiled(engine)) is not None:
        clock = _NEVER if since is None else since
        rules = kernel.Rules(*kernel.NOT_COVERED, int(counter), int(policy == "3.11"), clock, now)
        columns = _active_columns(active_timestamps, active_times, len(states))
        numbers, taken = _group_numbers(groups, items, states), _step_columns(steps, len(items), kernel)
        return _Joining(numbers, items, taken, states, columns, row_codec.drops(dropped), rules, kernel).joined()
    actives = _actives(active_timestamps, active_times, len(states))
    folding = _Folding(now, since, counter, dropped, policy)
    numbers = _group_numbers(groups, items, states)
    ends = np.searchsorted(numbers, np.arange(len(states)), side="right").tolist()
    each = _steps(items, steps)
    first = 0
    for state, last, active in zip(states.to_pylist(), ends, actives, strict=True):
        folding.group(state or NOTHING, each[first:last], active)
        first = last
    return folding.joined()


def _group_numbers(groups: Any, items: Any, states: Any) -> Any:
    numbers = groups if isinstance(groups, np.ndarray) else _numbers(_whole(groups, pa.int32()), np.int32)
    ascending = len(numbers) == len(items) and not np.any(numbers[1:] < numbers[:-1])
    if not ascending or (len(items) and not 0 <= numbers[0] <= numbers[-1] < len(states)):
        raise ValueError(f"invalid group indexes: {len(numbers)} for {len(items)} items and {len(states)} states")
    return numbers


def _rows(decoded: Decoded) -> list[Row]:
    updates = (update for _, mutation in unflatten(decoded) for update in mutation.updates)
    return [row for update in updates for row in (update.static_row, *update.rows) if row is not None]


def _actives(timestamps: Any, times: Any, size: int) -> list[DeletionTime | None]:
    if timestamps is None:
        return [None] * size
    pairs = zip(timestamps.to_pylist(), times.to_pylist(), strict=True)
    return [None if timestamp is None else DeletionTime(timestamp, time) for timestamp, time in pairs]


class _Step(NamedTuple):
    """An item, or what takes effect without one (`part` None). `deletion` None: none begins."""

    number: int
    part: bytes | None
    deletion: DeletionTime | None = None
    changes_statics: bool = False


def _steps(items: Any, steps: Steps | None) -> list[_Step]:
    if steps is None:
        return [_Step(number, part) for number, part in enumerate(items.to_pylist())]
    columns = (steps.has_part, steps.deletes, steps.timestamps, steps.times, steps.changes_statics)
    return [
        _Step(number, part if there else None, DeletionTime(timestamp, time) if deletes else None, static)
        for number, (part, there, deletes, timestamp, time, static) in enumerate(
            zip(items.to_pylist(), *(column.to_pylist() for column in columns), strict=True)
        )
    ]


class _Folding:
    """The readable engine of `join`: folds group by group and collects columns."""

    def __init__(self, now: int, since: int | None, counter: bool, dropped: Mapping[str, int], policy: Policy) -> None:
        self.now, self.since, self.counter, self.dropped, self.policy = now, since, counter, dropped, policy
        self.states: list[bytes] = []
        self.expiries: list[int | None] = []
        self.changed: list[bool] = []
        self.left: list[bool] = []
        self.applied: list[bool] = []
        self.showed: list[bool] = []
        self.shows: list[bool] = []
        self.versions: list[bytes] = []
        self.events: list[tuple[int, int, int, bool, bool]] = []

    def group(self, state: bytes, steps: list[_Step], active: DeletionTime | None) -> None:
        kept = len(self.versions), len(self.events), len(self.applied)
        try:
            settled = self._settled(state, active)
            left = any(self._expires(row) for row in (settled, *(step.part for step in steps if step.part is not None)))
            after = state if left else self._fold(settled, steps, active)
        except MalformedMutation:
            left, after = True, state
        self.showed.append(not left and bool(self.versions[kept[0]]))
        self.shows.append(not left and bool(self.versions[-1]))
        if len(self.events) == kept[1]:
            del self.versions[kept[0] :]
        if left:
            del self.versions[kept[0] :], self.events[kept[1] :], self.applied[kept[2] :]
            self.applied += [False] * len(steps)
        self.states.append(after)
        self.expiries.append(None if left else row_codec.next_expiry(after, self.now, engine="python"))
        self.changed.append(after != state)
        self.left.append(left)

    def _fold(self, state: bytes, steps: list[_Step], active: DeletionTime | None) -> bytes:
        self.versions.append(self._live(state))
        for step in steps:
            if step.deletion is not None:
                active = step.deletion
                state = self._settled(state, active)
            merged = state
            if step.part is not None:
                merged = row_codec.merge(state, step.part, active=active, counter=self.counter, policy=self.policy, engine="python")
            self.applied.append(merged != state)
            state = merged
            self._show(step, self._live(state))
        return state

    def _show(self, step: _Step, shows: bytes) -> None:
        before = len(self.versions) - 1
        differs = shows != self.versions[-1]
        if differs:
            self.versions.append(shows)
        if differs or (step.changes_statics and shows):
            self.events.append((step.number, before, len(self.versions) - 1, *_written(step.part, shows)))

    def _settled(self, row: bytes, active: DeletionTime | None) -> bytes:
        if active is None:
            return row
        return row_codec.settle(row, active=active, counter=self.counter, policy=self.policy, engine="python")

    def _live(self, row: bytes) -> bytes:
        return row_codec.live(row, self.now, self.dropped, engine="python")

    def _expires(self, row: bytes) -> bool:
        """Whether something expires within (since, now]."""
        soonest = row_codec.next_expiry(row, _NEVER if self.since is None else self.since, engine="python")
        return soonest is not None and soonest <= self.now

    def joined(self) -> Joined:
        items, befores, afters, deleted, writes = zip(*self.events, strict=True) if self.events else ((), (), (), (), ())
        return Joined(
            states=pa.array(self.states, pa.binary()),
            expiries=pa.array(self.expiries, pa.int64()),
            changed=pa.array(self.changed, pa.bool_()),
            left=pa.array(self.left, pa.bool_()),
            showed=pa.array(self.showed, pa.bool_()),
            shows=pa.array(self.shows, pa.bool_()),
            applied=pa.array(self.applied, pa.bool_()),
            versions=pa.array(self.versions, pa.binary()),
            event_item=pa.array(items, pa.int32()),
            event_before=pa.array(befores, pa.int32()),
            event_after=pa.array(afters, pa.int32()),
            event_deleted=pa.array(deleted, pa.bool_()),
            event_writes=pa.array(writes, pa.bool_()),
        )


def _written(item: bytes | None, shows: bytes) -> tuple[bool, bool]:
    """Whether an item's row deletion is the reason of a change, as the item writes nothing else, or nothing
    visible; and whether it writes anything else."""
    if item is None:
        return False, False
    row = row_codec.decode(item)
    written = row.liveness is not None or bool(row.cells or row.complex_deletions)
    return row.deletion is not None and not (written and shows != NOTHING), written


# --- the compiled engine: Arrow to arrays and back


def _active_columns(timestamps: Any, times: Any, size: int) -> tuple[Any, Any, Any]:
    """Flags for whether there is a deletion, and the deletions."""
    if timestamps is None:
        return np.zeros(size, np.uint8), np.zeros(size, np.int64), np.zeros(size, np.int64)
    timestamps, times = _whole(timestamps, pa.int64()), _whole(times, pa.int64())
    return _valid(timestamps), _numbers(timestamps, np.int64, 0), _numbers(times, np.int64, NO_DELETION_TIME)


def _step_columns(steps: Steps | None, size: int, kernel: Any) -> tuple[Any, Any, Any]:
    """What takes effect with each item as bits, and the deletions."""
    if steps is None:
        return np.full(size, kernel.HAS_PART, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64)
    bits = ((steps.has_part, kernel.HAS_PART), (steps.deletes, kernel.DELETES), (steps.changes_statics, kernel.CHANGES_STATICS))
    flags = np.zeros(size, np.uint8)
    for column, bit in bits:
        flags |= _bools(column) * np.uint8(bit)
    return flags, _numbers(steps.timestamps, np.int64, 0), _numbers(steps.times, np.int64, NO_DELETION_TIME)


class _Joining:
    """One call of the compiled `join`: enlarges full buffers and continues."""

    def __init__(
        self, numbers: Any, items: Any, steps: tuple[Any, ...], states: Any, actives: tuple[Any, ...], drops: bytes, rules: Any, kernel: Any
    ) -> None:
        self.kernel = kernel
        self.groups, self.items = len(states), len(items)
        if any(len(column) != self.groups for column in actives):
            raise ValueError(f"{[len(column) for column in actives]} deletions for {self.groups} groups")
        ends = np.searchsorted(numbers, np.arange(self.groups + 1), side="left").astype(np.int64)
        ends[-1] = self.items
        blobs = kernel.Blobs(*_blobs(items)), kernel.Blobs(*_blobs(states))
        self.before = (
            kernel.JOIN,
            self.groups,
            ends,
            blobs[0],
            *steps,
            blobs[1],
            *actives,
            np.frombuffer(drops or b"\0", np.uint8),
            len(drops),
            rules,
        )
        longest = max((int(blob.length.max(initial=0)) for blob in blobs), default=0)
        total = sum(int(blob.length.sum()) for blob in blobs)
        self.region = 2 * longest + 1024
        self.arena = np.empty(4 * self.region, np.uint8)
        self.cur = np.zeros(kernel.CURSORS, np.int64)
        self.states = _Growing(self.groups, total + 1024)
        self.versions = _Growing(self.groups + self.items + 1, 2 * total + 1024)
        self.expiries = np.full(self.groups, NO_DELETION_TIME, np.int64)
        self.changed, self.left, self.shown = (np.zeros(self.groups, np.uint8) for _ in range(3))
        self.applied, self.deleted, self.writes = (np.zeros(self.items, np.uint8) for _ in range(3))
        self.events = [np.empty(self.items, np.int32) for _ in range(3)]

    def joined(self) -> Joined:
        kernel = self.kernel
        n = np.zeros(kernel.COUNTERS, np.int64)
        while True:
            leave = int(self.versions.room >= MOST_VERSIONS)
            out = (
                self.states.column(kernel),
                self.expiries,
                self.changed,
                self.left,
                self.applied,
                self.versions.column(kernel),
                *self.events,
                self.deleted,
                self.writes,
                self.shown,
            )
            kernel.call(kernel.run, kernel.Joining(*self.before, self.arena, self.region, self.cur, leave, *out, n))
            if not n[kernel.LACKS]:
                break
            self._make_room(int(n[kernel.LACKS]))
        events = int(n[kernel.EVENTS])
        items, befores, afters = (_int32s(column[:events]) for column in self.events)
        return Joined(
            states=self.states.binary(self.groups),
            expiries=pa.array(self.expiries, mask=self.expiries == NO_DELETION_TIME),
            changed=_booleans(self.changed),
            left=_booleans(self.left),
            showed=_booleans(self.shown & kernel.SHOWED),
            shows=_booleans(self.shown & kernel.SHOWS),
            applied=_booleans(self.applied),
            versions=self.versions.binary(int(n[kernel.VERSIONS])),
            event_item=items,
            event_before=befores,
            event_after=afters,
            event_deleted=_booleans(self.deleted[:events]),
            event_writes=_booleans(self.writes[:events]),
        )

    def _make_room(self, lacking: int) -> None:
        if lacking == self.kernel.LACKING_STATES:
            self.states.grow()
        elif lacking == self.kernel.LACKING_VERSIONS:
            self.versions.grow()
        else:
            self.region *= 4
            self.arena = np.empty(4 * self.region, np.uint8)


class _Growing:
    """A column of bytes that is being written."""

    def __init__(self, size: int, room: int) -> None:
        self.end = np.zeros(size + 1, np.int32)
        self.data = np.empty(min(room, _MOST_BYTES), np.uint8)

    @property
    def room(self) -> int:
        return len(self.data)

    def column(self, kernel: Any) -> Any:
        return kernel.Growing(self.room, self.end, self.data)

    def grow(self) -> None:
        if self.room == _MOST_BYTES:
            raise MalformedMutation(
                f"more than {_MOST_BYTES} bytes of rows in one batch", operation="join rows", hint="Join fewer rows at once"
            )
        self.data = np.concatenate((self.data, np.empty(min(self.room, _MOST_BYTES - self.room), np.uint8)))

    def binary(self, size: int) -> Any:
        """The first `size` entries, sharing memory with the arrays."""
        filled = int(self.end[size])
        return pa.Array.from_buffers(pa.binary(), size, [None, pa.py_buffer(self.end[: size + 1]), pa.py_buffer(self.data[:filled])])


_MOST_BYTES: Final = (1 << 31) - 1


def _pack(decoded: Decoded, kernel: Any) -> Packed:
    rows, cells, complexes = decoded.rows, decoded.cells, decoded.complex_deletions
    r, c, x = (dict(zip(batch.schema.names, batch.columns, strict=True)) for batch in (rows, cells, complexes))
    clustering = r["clustering"]
    values = clustering.values
    names = c["column"].dictionary
    value, path, name = (_blobs(array) for array in (c["value"], c["path"], names))
    widest = int(np.bincount(_numbers(c["row"], np.int32), minlength=1).max()) if cells.num_rows else 0
    room = int(value[1].sum() + path[1].sum() + _blobs(values)[1].sum()) + 24 * cells.num_rows + 64 * rows.num_rows + 1024
    out, latest, n = _Growing(rows.num_rows, room), np.empty(rows.num_rows, np.int64), np.zeros(3, np.int64)
    columns = (
        kernel.PACK,
        rows.num_rows,
        _bools(r["static"]),
        _offsets(clustering),
        _valid(values),
        kernel.Blobs(*_blobs(values)),
        _valid(r["liveness_timestamp"]),
        _numbers(r["liveness_timestamp"], np.int64),
        _numbers(r["liveness_ttl"], np.int32),
        _numbers(r["liveness_expires_at"], np.int64, NO_DELETION_TIME),
        _valid(r["deletion_timestamp"]),
        _numbers(r["deletion_timestamp"], np.int64),
        _numbers(r["deletion_time"], np.int64, NO_DELETION_TIME),
        _bools(r["shadowable"]),
        cells.num_rows,
        _numbers(c["row"], np.int32),
        _numbers(c["column"].indices, np.int32),
        _numbers(c["timestamp"], np.int64),
        _numbers(c["ttl"], np.int32),
        _numbers(c["local_deletion_time"], np.int64, NO_DELETION_TIME),
        _valid(c["path"]),
        kernel.Blobs(*path),
        kernel.Blobs(*value),
        complexes.num_rows,
        _numbers(x["row"], np.int32),
        _numbers(x["column"].indices, np.int32),
        _numbers(x["deletion_timestamp"], np.int64),
        _numbers(x["deletion_time"], np.int64, NO_DELETION_TIME),
        kernel.Blobs(*name),
        np.empty(widest, np.int64),
        np.empty(widest, np.int64),
        np.empty(complexes.num_rows, np.int64),
        np.zeros(kernel.CURSORS, np.int64),
    )
    while True:
        kernel.call(kernel.run, kernel.Packing(*columns, out.column(kernel), latest, n))
        if n[0] == rows.num_rows:
            return Packed(out.binary(rows.num_rows), pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, pa.py_buffer(latest)]))
        out.grow()


def _whole(array: Any, kind: Any) -> Any:
    """A single array of the given type."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if array.type == kind else array.cast(kind)


def _valid(array: Any) -> Any:
    """A byte per entry: 0 if it is null."""
    bitmap = array.buffers()[0]
    return np.ones(len(array), np.uint8) if bitmap is None else _unpacked(bitmap, array)


def _bools(array: Any) -> Any:
    return _unpacked(array.buffers()[1], array)


def _unpacked(bitmap: Any, array: Any) -> Any:
    if bitmap is None:
        return np.zeros(len(array), np.uint8)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :]


def _numbers(array: Any, kind: Any, null: int | None = None) -> Any:
    """The numbers of an array, `null` where they are null."""
    data = array.buffers()[1]
    if data is None:
        return np.full(len(array), null or 0, kind)
    found = np.frombuffer(data, kind, array.offset + len(array))[array.offset :]
    return found if null is None or array.null_count == 0 else np.where(_valid(array) != 0, found, kind(null))


def _offsets(array: Any) -> Any:
    data = array.buffers()[1]
    if data is None or data.size == 0:
        return np.zeros(len(array) + 1, np.int32)
    return np.frombuffer(data, np.int32, array.offset + len(array) + 1)[array.offset :]


def _blobs(array: Any) -> tuple[Any, Any, Any]:
    """Start and length of each value (length 0 if null), and all bytes."""
    array = _whole(array, pa.binary())
    offsets = _offsets(array).astype(np.int64)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths = np.where(_valid(array) != 0, lengths, 0)
    data = array.buffers()[2]
    return offsets[:-1], lengths, np.zeros(1, np.uint8) if data is None or data.size == 0 else np.frombuffer(data, np.uint8)


def _booleans(flags: Any) -> Any:
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(np.packbits(flags, bitorder="little"))])


def _int32s(column: Any) -> Any:
    return pa.Array.from_buffers(pa.int32(), len(column), [None, pa.py_buffer(np.ascontiguousarray(column))])
