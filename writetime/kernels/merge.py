"""Compiled tasks on flat rows: single rows, a column of rows, many small folds (`row_batches.join`),
`row_batches.pack`, and projection.

Strategy: one outermost function, `run`, for all tasks, which takes its arguments as one array of words
(`pointers`). Machine code is cached per outermost function, and each would include a copy of the rest. `rows`
merges rows in an arena of bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, cast

import numpy as np

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.reconcile import POLICY, Policy
from writetime.cassandra.model import NO_TIMESTAMP, DeletionTime
from writetime.kernels.compiled import Bytes, Int32s, Ints, compiled, compiled_and_kept
from writetime.kernels.mutation_kernel import _copy
from writetime.kernels.pack import Blobs, Growing, Packing, pack_rows
from writetime.kernels.pointers import call, reader, words
from writetime.kernels.projection_kernel import (
    ABSENT,
    CELLS,
    IS_ODD,
    NEVER,
    Cells,
    Differing,
    Held,
    Showing,
    Splitting,
    differ,
    show_rows,
    split_keys,
)
from writetime.kernels.rows import (
    BAD,
    CURSORS,
    IN_PLAY,
    LACKING,
    ODD,
    SEEN,
    A,
    B,
    Rules,
    equal,
    first_deletion_time,
    kinds_of,
    latest_timestamp,
    live_cells,
    merge_rows,
    soonest_expiry,
    tied_cells,
)

__all__ = [
    "ABSENT",
    "CELLS",
    "CURSORS",
    "IS_ODD",
    "NEVER",
    "Blobs",
    "Cells",
    "Differing",
    "Ending",
    "Growing",
    "Held",
    "Packing",
    "Rules",
    "Showing",
    "Splitting",
    "call",
]

SOURCES: Final = (
    *(f"cassandra/merge/{name}.py" for name in ("row_codec", "unknown_marker")),
    *(f"kernels/{name}.py" for name in ("merge", "pack", "rows", "projection_kernel")),
)
"""The sources of this module's machine code in addition to those of the decoder, constants included."""

kept: Callable[[Any], Any] = partial(compiled_and_kept, further=SOURCES)

_LIVENESS, _DELETION, _SHADOWABLE, _SIMPLE_CELL, _COMPLEX_DELETION, _ELEMENT = (int(kind) for kind in row_codec.Kind)
_i64: Any = np.int64


# --- one row at a time

MERGE, LIVE, NEXT_EXPIRY, MAX_TIMESTAMP, MIN_DELETION_TIME, TIES, KINDS, JOIN, PACK, SHOW, SPLIT, DIFFER, ENDS = range(13)


class Single(NamedTuple):
    """A task on the rows at the start of `buf`: `a` bytes of one row, then `b` bytes of the other (or of
    dropped columns). The rest of its `size` bytes is free: from `out` to `spare` for the result, then for
    counters. `answer`: the end of the result, or the result itself; and whether the bytes are damaged."""

    task: int
    buf: Bytes
    a: int
    b: int
    out: int
    spare: int
    size: int
    cur: Ints
    answer: Ints
    drops: Bytes
    rules: Rules


_single = reader(Single)


@compiled
def _do_single(arguments: Ints) -> None:
    this = _single(arguments)
    buf, cur, rules, answer = this.buf, this.cur, this.rules, this.answer
    a, b = this.a, this.a + this.b
    answer[1] = 0
    if this.task == MERGE:
        answer[0] = merge_rows(buf, cur, 0, a, a, b, this.out, this.spare, this.spare, this.size, rules)
    elif this.task == LIVE:
        answer[0] = live_cells(buf, cur, 0, a, buf, this.out, this.spare, this.drops, this.b, rules)
    else:
        if this.task == NEXT_EXPIRY:
            answer[0] = soonest_expiry(buf, cur, 0, a, rules)
        elif this.task == MIN_DELETION_TIME:
            answer[0] = first_deletion_time(buf, cur, 0, a, rules)
        elif this.task == TIES:
            answer[0] = tied_cells(buf, cur, 0, a, rules)
        elif this.task == KINDS:
            answer[0] = kinds_of(buf, cur, 0, a, rules)
        else:
            answer[0] = latest_timestamp(buf, cur, 0, a, rules)
        answer[1] = cur[A + BAD]


# --- a column of rows


class Ending(NamedTuple):
    """Arguments of `row_batches.min_deletion_times`, and its answer `found`, one per row: NO_TIMESTAMP for a damaged one."""

    task: int
    size: int
    rows: Blobs
    found: Ints
    cur: Ints
    rules: Rules


_ending = reader(Ending)


@compiled
def _do_ending(arguments: Ints) -> None:
    this = _ending(arguments)
    for i in range(this.size):
        at = this.rows.at[i]
        time = first_deletion_time(this.rows.data, this.cur, at, at + this.rows.length[i], this.rules)
        this.found[i] = NO_TIMESTAMP if this.cur[A + BAD] else time


# --- many small folds

LACKING_STATES: Final = -3
LACKING_VERSIONS: Final = -4
GROUP, VERSIONS, EVENTS, LACKS, COUNTERS = range(5)
"""`n` of a `Joining`: its progress, and which room was lacking."""


HAS_PART: Final = 1
DELETES: Final = 2
CHANGES_STATICS: Final = 4
"""Bits of `Joining.steps`."""
SHOWED: Final = 1
SHOWS: Final = 2
"""Bits of `Joining.shown`."""


class Joining(NamedTuple):
    """Arguments of `row_batches.join`. Group g has the items item_end[g]:item_end[g+1]. The arena has four
    regions of equal size: two that alternate for the state, one for the item, one for counters. `leave`:
    versions cannot get more room."""

    task: int
    groups: int
    item_end: Ints
    items: Blobs
    steps: Bytes
    step_active: Ints
    step_time: Ints
    states_before: Blobs
    covered: Bytes
    active: Ints
    active_time: Ints
    drops: Bytes
    drops_end: int
    rules: Rules
    arena: Bytes
    region: int
    cur: Ints
    leave: int
    states: Growing
    expiries: Ints
    changed: Bytes
    left: Bytes
    applied: Bytes
    versions: Growing
    event_item: Int32s
    event_before: Int32s
    event_after: Int32s
    event_deleted: Bytes
    event_writes: Bytes
    shown: Bytes
    n: Ints


_joining = reader(Joining)


@compiled
def _do_join(arguments: Ints) -> None:
    """Fold from group n[GROUP] on. Stops early with n[LACKS] set if a group lacks room; it is then
    discarded."""
    this = _joining(arguments)
    n = this.n
    n[LACKS] = 0
    while n[GROUP] < this.groups:
        versions, events = n[VERSIONS], n[EVENTS]
        end = _fold(this, n[GROUP])
        if end == LACKING_VERSIONS and this.leave:
            end = ODD
        if end == ODD:
            n[VERSIONS], n[EVENTS] = versions, events
            end = _leave(this, n[GROUP])
        if end < 0:
            n[VERSIONS], n[EVENTS] = versions, events
            n[LACKS] = end
            return
        n[GROUP] += 1


@compiled
def _leave(this: Joining, group: int) -> int:
    """Leave the state of a group unchanged and its items unprocessed."""
    for i in range(this.item_end[group], this.item_end[group + 1]):
        this.applied[i] = 0
    this.changed[group], this.left[group], this.shown[group] = 0, 1, 0
    before = this.states_before
    return _keep(this.states, group, before.data, before.at[group], before.length[group])


@compiled
def _keep(states: Growing, group: int, source: Bytes, at: int, length: int) -> int:
    """Append a state; 0 or LACKING_STATES."""
    pos = states.end[group]
    if length > states.room - pos:
        return LACKING_STATES
    states.end[group + 1] = _copy(source, at, length, states.data, pos)
    return 0


@compiled
def _settle(this: Joining, state: int, state_end: int, other: int, rules: Rules) -> int:
    """Write the state without what its own deletions and the head's shadow to `other`; its end, ODD or LACKING."""
    region, spare = this.region, 3 * this.region
    return merge_rows(this.arena, this.cur, state, state, state, state_end, other, other + region, spare, spare + region, rules)


@compiled
def _fold(this: Joining, group: int) -> int:
    """Merge the items of a group into its state, one by one; 0, ODD or the lacking room."""
    arena, cur, region, n = this.arena, this.cur, this.region, this.n
    rules = this.rules
    rules = Rules(
        _i64(this.covered[group]), this.active[group], this.active_time[group], rules.counter, rules.legacy, rules.since, rules.now
    )
    state, other, item, spare = 0, region, 2 * region, 3 * region
    before, before_length = this.states_before.at[group], this.states_before.length[group]
    if before_length > region:
        return LACKING
    state_end = _copy(this.states_before.data, before, before_length, arena, state)
    if rules.covered and state_end > state:
        end = _settle(this, state, state_end, other, rules)
        if end < 0:
            return end
        state, other, state_end = other, state, end
    first_event, first_version = n[EVENTS], n[VERSIONS]
    cur[A + IN_PLAY] = 0
    code = _show(this, state, state_end, rules)
    if code < 0:
        return code
    if cur[A + IN_PLAY]:
        return ODD
    ends = this.versions.end
    this.shown[group] = SHOWED if ends[first_version + 1] > ends[first_version] else 0
    n[VERSIONS] += 1
    for i in range(this.item_end[group], this.item_end[group + 1]):
        step, seen = this.steps[i], 0
        changed = False
        if step & DELETES:
            rules = Rules(_i64(1), this.step_active[i], this.step_time[i], rules.counter, rules.legacy, rules.since, rules.now)
            if state_end > state:
                end = _settle(this, state, state_end, other, rules)
                if end < 0:
                    return end
                state, other, state_end = other, state, end
                changed = True
        if step & HAS_PART:
            length = this.items.length[i]
            if length > region:
                return LACKING
            _copy(this.items.data, this.items.at[i], length, arena, item)
            end = merge_rows(arena, cur, state, state_end, item, item + length, other, other + region, spare, spare + region, rules)
            if end < 0:
                return end
            if cur[B + IN_PLAY]:
                return ODD
            seen = cur[B + SEEN]
            same = equal(arena, other, end - other, arena, state, state_end - state)
            this.applied[i] = not same
            if not same:
                state, other, state_end = other, state, end
                changed = True
        if not changed and not step & CHANGES_STATICS:
            continue
        code = _show(this, state, state_end, rules)
        if code < 0:
            return code
        last = n[VERSIONS]
        was, becomes, behind = ends[last - 1], ends[last], ends[last + 1]
        differs = not equal(this.versions.data, was, becomes - was, this.versions.data, becomes, behind - becomes)
        if differs or (step & CHANGES_STATICS and behind > becomes):
            event = n[EVENTS]
            this.event_item[event], this.event_before[event], this.event_after[event] = i, last - 1, last if differs else last - 1
            written = seen & ~((1 << _DELETION) | (1 << _SHADOWABLE))
            this.event_deleted[event] = seen != written and (written == 0 or behind == becomes)
            this.event_writes[event] = written != 0
            n[EVENTS] = event + 1
            if differs:
                n[VERSIONS] = last + 1
    last = n[VERSIONS]
    this.shown[group] |= SHOWS if ends[last] > ends[last - 1] else 0
    if n[EVENTS] == first_event:
        n[VERSIONS] = first_version
    this.left[group] = 0
    later = Rules(rules.covered, rules.active, rules.active_time, rules.counter, rules.legacy, rules.now, rules.now)
    this.expiries[group] = soonest_expiry(arena, cur, state, state_end, later)
    this.changed[group] = not equal(arena, state, state_end - state, this.states_before.data, before, before_length)
    return _keep(this.states, group, arena, state, state_end - state)


@compiled
def _show(this: Joining, state: int, state_end: int, rules: Rules) -> int:
    """Append the visible content of a state as the next version; 0, ODD or LACKING_VERSIONS."""
    versions, at = this.versions, this.n[VERSIONS]
    pos = versions.end[at]
    end = live_cells(this.arena, this.cur, state, state_end, versions.data, pos, versions.room, this.drops, this.drops_end, rules)
    if end < 0:
        return LACKING_VERSIONS if end == LACKING else ODD
    versions.end[at + 1] = end
    return 0


# --- the one outermost function


@kept
def run(arguments: Ints) -> None:
    """Run the task in the first word. `arguments`: the words of a `Single`, `Ending`, `Joining`, `Packing`, or of a
    tuple of `projection_kernel`. One function for all, because each outermost function has its own machine
    code."""
    task = arguments[0]
    if task == JOIN:
        _do_join(arguments)
    elif task == PACK:
        pack_rows(arguments)
    elif task == SHOW:
        show_rows(arguments)
    elif task == SPLIT:
        split_keys(arguments)
    elif task == DIFFER:
        differ(arguments)
    elif task == ENDS:
        _do_ending(arguments)
    else:
        _do_single(arguments)


NOT_COVERED: Final = (0, 0, 0)
_NEVER: Final = -(2**63)


def _rules(
    active: DeletionTime | None = None, *, counter: bool = False, policy: Policy = POLICY, since: int = _NEVER, now: int | None = None
) -> Rules:
    covered = NOT_COVERED if active is None else (1, active.marked_for_delete_at, active.local_deletion_time)
    return Rules(*covered, int(counter), int(policy == "3.11"), since, _NEVER if now is None else now)


_TASK, _BUF, _A, _B = (Single._fields.index(name) for name in ("task", "buf", "a", "b"))
_DROPS, _RULES = (Single._fields.index(name) for name in ("drops", "rules"))


class _Desk(threading.local):
    """A thread's arguments for single tasks. They are laid out once, and only numbers change."""

    def __init__(self) -> None:
        self.cur, self.answer = np.empty(CURSORS, np.int64), np.empty(2, np.int64)
        self.room = 0
        self.make_room(1 << 12)

    def make_room(self, room: int) -> None:
        """Allocate room for rows of `room` bytes, a result and counters."""
        self.room = room
        self.buf = np.empty(3 * room, np.uint8)
        self.bytes = memoryview(cast(Any, self.buf))
        nothing = Single(0, self.buf, 0, 0, room, 2 * room, 3 * room, self.cur, self.answer, self.buf, Rules(0, 0, 0, 0, 0, 0, 0))
        self.words = words(nothing)
        self.start = int(self.words[_BUF])

    def do(self, task: int, a: bytes, b: bytes, rules: Rules) -> int:
        """Run a task and return its answer. The result bytes begin after `room`."""
        if len(a) + len(b) > self.room:
            self.make_room(4 * (len(a) + len(b)))
        while True:
            self.bytes[: len(a) + len(b)] = a + b
            self.words[_TASK], self.words[_A], self.words[_B] = task, len(a), len(b)
            self.words[_DROPS] = self.start + len(a)
            self.words[_RULES:] = rules
            run(self.words)
            answer = int(self.answer[0])
            if answer != LACKING or task > LIVE:
                return answer
            self.make_room(4 * self.room)


_desk: Final = _Desk()


def _make(task: int, a: bytes, b: bytes, rules: Rules) -> bytes | None:
    """The result bytes of a task, None if the input is damaged or odd."""
    end = _desk.do(task, a, b, rules)
    return None if end == ODD else bytes(_desk.bytes[_desk.room : end])


def _ask(task: int, row: bytes, rules: Rules) -> int | None:
    found = _desk.do(task, row, b"", rules)
    return None if _desk.answer[1] else found


def merge(a: bytes, b: bytes, *, active: DeletionTime | None, counter: bool, policy: Policy = POLICY) -> bytes | None:
    """As `row_codec.merge`; None if a row is damaged or a counter is not in canonical form."""
    return _make(MERGE, a, b, _rules(active, counter=counter, policy=policy))


def live(row: bytes, now: int, drops: bytes) -> bytes | None:
    """As `row_codec.live`; None if the row is damaged."""
    return _make(LIVE, row, drops, _rules(now=now))


def next_expiry(row: bytes, after: int) -> int | None:
    """As `row_codec.next_expiry`, NO_DELETION_TIME if nothing expires; None if the row is damaged."""
    return _ask(NEXT_EXPIRY, row, _rules(since=after))


def max_timestamp(row: bytes) -> int | None:
    """As `row_codec.max_timestamp`; None if the row is damaged."""
    return _ask(MAX_TIMESTAMP, row, _rules())


def min_deletion_time(row: bytes) -> int | None:
    """As `row_codec.min_deletion_time`; None if the row is damaged."""
    return _ask(MIN_DELETION_TIME, row, _rules())


def ties(row: bytes) -> int | None:
    """As `row_codec.ties`; None if the row is damaged."""
    return _ask(TIES, row, _rules())


def kinds(row: bytes) -> int | None:
    """A bit for each `row_codec.Kind` of the row's entries; None if the row is damaged."""
    return _ask(KINDS, row, _rules())


def compile_ahead() -> float:
    """Compile everything into the cache, or load it from there; the seconds it took."""
    started = perf_counter()
    max_timestamp(row_codec.STATIC)
    return perf_counter() - started


if __name__ == "__main__":
    print(f"join kernel ready in {compile_ahead():.1f} s")  # noqa: T201 - a command's answer
