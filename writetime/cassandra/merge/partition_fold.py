"""Folds the updates of one partition into its state as a stream: one row at a time, in clustering order.

Strategy: a batch's updates are split into *items*, one for each row of an update and one for the partition's
*head* (its deletion, range tombstones, static row). The head is folded first, into timelines of its deletions
and of its live static cells. After that, rows are independent of each other. Each row is folded through its
own moments: its items, the deletions that cover it, changes of its static cells, and the seconds at which
something expires. The order of events is therefore guaranteed per row only.

The clock of a fold runs from `since`, the `now` of the previous batch, to `now`, and stops at the writetime
of each update (clamped to that interval): a row with a ttl of two seconds is visible for two seconds, however
late a batch reads it. A moment is (second, 0, ...) for expiries and (second, 1, writetime, content) for an
update, so cells that expire at a second are gone before the updates of that second. (since, -1, ...) is the
moment of schema changes: columns that were dropped or added again since the previous batch disappear or
reappear.

With `deletes="one"` a deletion of many rows precedes all events and removes every row under it that was
visible when the batch began. The events of these rows start without a `before`, so each `before` is what a
consumer has at that point. The removal itself is marked `taken`; a row that stays visible has an event that
creates it again.

With `deletes="placed"` such a deletion is one of the partition's events by writetime, and takes effect before
everything else of its timestamp. It removes the rows that are visible by then, so each of them has an event
that is `taken`, and one that creates it again if it stays visible. A row that outlasts many late deletions has
as many events.

Only the affected state is read: rows with items, rows under new deletions, and rows that expire; all rows
only if static content changes. Static content is visible alone if no other row is, so the head stores the
number of visible rows.

Rows are flat (`writetime.cassandra.merge.row_codec`), and their keys are bytes in clustering order
(`writetime.cassandra.types.byte_comparable`). Does not know the store or CQL types."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.range_tombstones import PartitionDeletions
from writetime.cassandra.merge.reconcile import POLICY, Policy, merge_static_rows
from writetime.cassandra.merge.row_codec import NOTHING, STATIC, Engine
from writetime.cassandra.model import MICROSECONDS, Bound, DeletionTime, PartitionUpdate, RangeTombstone, Row

Reason = Literal["row_delete", "range_delete", "partition_delete", "static", "expiry", "alter", "again"]
"""Why a row changed whose own cells were not written."""
Deletes = Literal["rows", "one", "placed"]
T = TypeVar("T")

Moment = tuple[int, int, int, bytes]
Place = tuple[Moment, Any]
"""A moment, and the source of what takes effect at it."""
_FIRST: Final[Moment] = (-(2**63), -1, 0, b"")
_LAST: Final[Moment] = (2**63, 0, 0, b"")
FIRST_ROW: Final = b"\x01"
PAST_ROWS: Final = b"\x02"
"""Row keys are between these two; the key of a head is empty."""


class Item(NamedTuple):
    """The part of one update that concerns a row (a flat row) or the head (a `PartitionUpdate`, its rows
    ignored).

    `ts` is the greatest timestamp of the whole update (µs). `content` orders updates of equal timestamp and
    is equal in all items of an update. `update` identifies the update in `Applied`, `source` is passed
    through to events."""

    ts: int
    content: bytes
    update: Hashable
    source: Any
    part: Any


class Head(NamedTuple):
    """The state of a partition apart from its rows. `shown`: the number of visible clustered rows, None if
    unknown."""

    update: PartitionUpdate | None = None
    shown: int | None = None


class Keys(Protocol):
    """Bounds of range tombstones as keys: a row is in the range if start <= key < end."""

    def start(self, bound: Bound) -> bytes: ...

    def end(self, bound: Bound) -> bytes: ...


class Rows(Protocol):
    """The state's rows of the partition, as flat rows."""

    def get(self, key: bytes) -> bytes:
        """The row of that key, `b""` if it does not exist."""
        ...

    def scan(self, start: bytes, end: bytes) -> Iterable[tuple[bytes, bytes]]:
        """The rows with start <= key < end, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """Facts about the table, and options of the fold. `since` None: there is no previous batch.

    `dropped_before`: the dropped columns at the previous batch, if they differ from those now. All rows of
    the partition are then read, and rows that look different because of it have events of reason "alter"
    before all others.

    `again`: nothing is taken for shown when the batch begins, so that each row that is visible has an event of reason
    "again" before all others.

    `deletes`: whether a deletion of many rows produces an event for each of them, or one `Deleted` that
    precedes all events of the partition, or one at the place of its writetime among them.

    `like_alone`: the key of a row that is published under the key of static content alone, because its clustering
    has no bytes. The events of both are one chain, in the order of their moments."""

    order: ClusteringOrder
    keys: Keys
    now: int
    since: int | None = None
    engine: Engine = "auto"
    dropped_before: Mapping[str, int] | None = None
    policy: Policy = POLICY
    deletes: Deletes = "rows"
    like_alone: bytes | None = None
    again: bool = False


class Shown(NamedTuple):
    """What SELECT returns for a row: its live cells and those of the static row, as from `row_codec.live`.
    `row` is `b""` if the row is not visible, and `STATIC` for static content without a clustered row."""

    row: bytes = NOTHING
    static: bytes = NOTHING


@dataclass(frozen=True, slots=True)
class Event:
    """A visible change of a row. `before` and `after` are never equal. `key` is empty for static content
    without a clustered row.

    `ts_micro` is the greatest timestamp of the update, or the second of expiry. `source` is None if no write
    caused the change. `reason` is None if the row's own cells or liveness were written. `taken`: the change
    is covered by a `Deleted` and is not published. `more`: other events of this row follow those of another
    one."""

    key: bytes
    before: Shown
    after: Shown
    source: Any
    ts_micro: int
    reason: Reason | None
    taken: bool = False
    more: bool = False
    moment: Moment = field(default=_FIRST, compare=False)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A new deletion of many rows. `tombstone` None: the whole partition. Always precedes the outputs of rows:
    with `deletes="placed"` the events are yet to be ordered by writetime, expiries before others of their
    time."""

    tombstone: RangeTombstone | None
    source: Any
    ts_micro: int


@dataclass(frozen=True, slots=True)
class RowRecord:
    """The state of a row to store, `b""` if it is removed; `expires_at` (s): the next expiry in it; `ties`:
    the number of its cells that have become `Cell.tied`."""

    key: bytes
    row: bytes
    expires_at: int | None
    ties: int = 0


@dataclass(frozen=True, slots=True)
class HeadRecord:
    """The state of the head to store; fields as in `RowRecord`."""

    head: Head
    expires_at: int | None
    ties: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """An item of this update changed the state. At most one per item; an update without any was
    superseded."""

    update: Hashable


Output = Event | Deleted | RowRecord | HeadRecord | Applied

_WRITTEN: Final = 1
_UNWRITTEN: Final[Mapping[int, Reason]] = {-1: "alter", 0: "expiry"}
"""The reason of changes at moments without a write."""


class _Step(NamedTuple):
    """Something that takes effect at a moment, and its source."""

    moment: Moment
    source: Any
    what: Any


class _Deletion(NamedTuple):
    time: DeletionTime
    tombstone: RangeTombstone | None

    @property
    def reason(self) -> Reason:
        return "partition_delete" if self.tombstone is None else "range_delete"


class _Span(NamedTuple):
    start: bytes
    end: bytes
    step: _Step


def fold(
    settings: Settings,
    head: Head,
    head_items: Iterable[Item],
    row_groups: Iterable[tuple[bytes, Iterable[Item]]],
    rows: Rows,
    due: Iterable[bytes] = (),
) -> Iterator[Output]:
    """Fold a partition's items into its state. Items are ordered by (ts, content), groups by row key; the
    items of a group are read before the next group is requested. `due`: ascending keys of rows with an expiry
    in (since, now].

    Raises MalformedMutation if counters to be merged are invalid; outputs up to then must be discarded."""
    return Partition(settings, head).run(head_items, row_groups, rows, due)


def new_ties(old: bytes, new: bytes, *, engine: Engine = "auto") -> int:
    """The number of additional cells that won a tie which a 3.11 cluster may decide differently."""
    found = row_codec.ties(new, engine=engine)
    return max(0, found - row_codec.ties(old, engine=engine)) if found else 0


class HeadStep(NamedTuple):
    """What the head does to a row at a moment: a deletion that begins to cover it and is stronger than those before
    it (None: none), and static cells that are there from then on, by index in `Partition.static_cells` (None: the same
    as before)."""

    moment: Moment
    source: Any
    deletion: DeletionTime | None = None
    reason: Reason | None = None
    cells: int | None = None


class Partition:
    """One partition while it is folded. First `begin` folds the head. Then the rows follow, ascending: those with items, those
    that are due, and those of the state in the ranges `scanned`. At last `finish` tells what depends on all rows.

    `base`: deletions from before the batch; `news`: deletions of the batch; `statics`: the timeline of live static cells."""

    def __init__(self, settings: Settings, head: Head) -> None:
        self.settings, self.head = settings, head
        self.order, self.engine = settings.order, settings.engine
        self.start: Moment = _FIRST if settings.since is None else (settings.since, *_FIRST[1:])
        self.altered = self._alteration()
        self.base: list[_Span] = []
        self.news: list[_Span] = []
        self.statics: list[_Step] = []
        self.scanned: list[tuple[bytes, bytes]] = []
        self.coverage: _Coverage | None = None
        self.sweep = self._taking = self.placed = _Sweep(())
        self._update: PartitionUpdate | None = None
        self._everything = False
        self._partition_deletions: set[Moment] = set()
        self._showed = self._shows = 0
        self._like_alone: list[Event] = []

    def run(
        self, head_items: Iterable[Item], row_groups: Iterable[tuple[bytes, Iterable[Item]]], rows: Rows, due: Iterable[bytes]
    ) -> Iterator[Output]:
        yield from self.begin(head_items)
        for key, row, items in _visits(row_groups, due, rows, self.scanned):
            yield from self.fold_row(key, row, items)
        yield from self.finish()

    def begin(self, items: Iterable[Item]) -> Iterator[Output]:
        self._update = yield from self._fold_head(items)
        if self.settings.deletes == "one":
            self._taking = _Sweep(self.news)
        elif self.settings.deletes == "placed":
            self.placed = _Sweep(self.news, rank=_when)
        if any(step.what for step in self.statics):
            self.coverage = _Coverage()
        self._everything = self.altered is not None or self._reads_everything()
        self.scanned = [(FIRST_ROW, PAST_ROWS)] if self._everything else _united((span.start, span.end) for span in self.news)
        self.restart()

    def restart(self) -> None:
        """The next row may be any of them again."""
        self.sweep = _Sweep((*self.base, *self.news))

    def finish(self) -> Iterator[Output]:
        shown = self._count(self._everything)
        if self.coverage is not None:
            whole = [span for span in self.news if span.step.what.tombstone is None]
            taking = _Sweep(whole if self.settings.deletes == "one" else ())
            placed = [span.step for span in whole if self.settings.deletes == "placed"]
            alone = self._taken(b"", self._alone_at_start(self.coverage), taking, self._statics_alone(self.coverage, placed))
            yield from _one_chain(self._like_alone, alone)
        yield from self._head_record(self._update, shown)

    # --- rows that are folded by the column

    @property
    def fits_steps(self) -> bool:
        """Whether `head_steps` are all that happens to rows beside their items and expiries of their own."""
        is_simple = self.altered is None and (self.settings.deletes == "rows" or not self.news)
        return is_simple and all(step.moment[1] == _WRITTEN for step in self.statics[1:])

    @property
    def static_cells(self) -> list[bytes]:
        """The live static cells, one version after the other; the first are those at the start."""
        return [step.what for step in self.statics]

    def head_steps(self, key: bytes) -> tuple[DeletionTime | None, list[HeadStep]]:
        """The deletion that covers the row of this key from the start, and what the head does to it later, by moment."""
        covering = self.sweep.at(key)
        first = covering.until(self.start)
        steps = [HeadStep(step.moment, step.source, cells=at) for at, step in enumerate(self.statics[1:], 1)]
        while (moment := covering.next) is not None and (step := covering.until(moment)) is not None:
            steps.append(HeadStep(moment, step.source, step.what.time, step.what.reason))
        if len(steps) > len(self.statics) - 1:
            steps = [_together(list(group)) for _, group in groupby(sorted(steps, key=_moment), key=_moment)]
        return None if first is None else first.what.time, steps

    def note_row(self, visible: Iterable[tuple[Place | None, Place | None]], *, showed: bool, shows: bool) -> None:
        """What a row has come to that was folded by the column: whether it was visible when the batch began, and is when it
        ends; and from where to where it is `visible`, None for the begin and the end of the batch."""
        self._showed += showed
        self._shows += shows
        if self.coverage is not None:
            for since, until in visible:
                begin = _Step(_FIRST, None, None) if since is None else _Step(*since, None)
                self.coverage.add(begin, None if until is None else _Step(*until, None))

    # --- the clock

    def moment(self, item: Item) -> Moment:
        return self.moment_of(item.ts, item.content)

    def moment_of(self, ts: int, content: bytes) -> Moment:
        """When an update of that writetime takes effect."""
        second = min(ts // MICROSECONDS, self.settings.now)
        return (second if self.settings.since is None else max(second, self.settings.since)), _WRITTEN, ts, content

    def unwritten(self, moment: Moment) -> Reason | None:
        """The reason of a change at a moment without a write; None if there is one."""
        return "again" if self.settings.again and moment[1] == _FIRST[1] else _UNWRITTEN.get(moment[1])

    def expiry(self, row: bytes, moment: Moment) -> Moment | None:
        """The next expiry in the row, up to now."""
        second = row_codec.next_expiry(row, moment[0], engine=self.engine)
        return None if second is None or second > self.settings.now else (second, 0, second * MICROSECONDS, b"")

    def live(self, row: bytes, moment: Moment) -> bytes:
        altered = self.altered is None or moment >= self.altered
        if self.settings.again and not altered:
            return NOTHING
        dropped = self.order.dropped if altered else self.settings.dropped_before
        return row_codec.live(row, moment[0], dropped or {}, engine=self.engine)

    def _alteration(self) -> Moment | None:
        """The moment at which the set of dropped columns changes, or all is shown again; None if it is that of the
        previous batch."""
        before, since = self.settings.dropped_before, self.settings.since
        if self.settings.again and since is not None:
            return since, -1, max(1, since * MICROSECONDS), b""
        if before is None or since is None or before == self.order.dropped:
            return None
        altered = {name for name, _ in before.items() ^ self.order.dropped.items()}
        times = (gone.dropped_at for name, gone in self.order.table.dropped_columns.items() if name in altered)
        # After the start, whatever the timestamp of the drop.
        return since, -1, max([1, *times]), b""

    # --- the head

    def _fold_head(self, items: Iterable[Item]) -> Generator[Output, None, PartitionUpdate | None]:
        """Fold the head's items. Returns the new update of the head."""
        old = self.head.update
        deletions = PartitionDeletions(self.order)
        if old is not None:
            self.base = self._delete(deletions, old, _Step(self.start, None, None))
        statics = _Statics(self, None if old is None else old.static_row)

        def merged(row: Row | None) -> Row | None:
            counter, policy = self.order.counter, self.settings.policy
            return merge_static_rows(statics.row, row, active=deletions.partition, counter=counter, policy=policy)

        for together in self._taking_effect_together(items):
            old = old or together[0].part
            deleting = [self._delete(deletions, item.part, _Step(self._deletes_at(item), item.source, None)) for item in together]
            for item, news in zip(together, deleting, strict=True):
                yield from (Deleted(span.step.what.tombstone, item.source, item.ts) for span in news)
                self.news += news
                if news and self.settings.deletes == "placed":
                    statics.put(_Step(self._deletes_at(item), item.source, None), merged(None))
            for item, news in zip(together, deleting, strict=True):
                moment, row = self.moment(item), merged(item.part.static_row)
                if item.part.deletion is not None and (self.settings.deletes == "placed" or item.part.static_row is None):
                    self._partition_deletions.add(self._deletes_at(item))
                if news or row != statics.row:
                    yield Applied(item.update)
                statics.put(_Step(moment, item.source, None), row)
        self.statics = statics.finished()
        return _head(old, deletions, statics.row)

    def _taking_effect_together(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """The items of one timestamp if their deletions come first, else each on its own."""
        if self.settings.deletes != "placed":
            return ([item] for item in items)
        return (list(group) for _, group in groupby(items, key=lambda item: item.ts))

    def _deletes_at(self, item: Item) -> Moment:
        """When the deletions of an item take effect. Those at their place do so before any other update of
        their timestamp, as events of equal times have no order among rows."""
        moment = self.moment(item)
        return (*moment[:3], b"") if self.settings.deletes == "placed" else moment

    def _delete(self, deletions: PartitionDeletions, update: PartitionUpdate, step: _Step) -> list[_Span]:
        """Add the update's deletions. Returns those that are new."""
        news: list[_Span] = []
        if update.deletion is not None and deletions.delete_partition(update.deletion):
            news.append(_Span(FIRST_ROW, PAST_ROWS, step._replace(what=_Deletion(update.deletion, None))))
        for tombstone in update.range_tombstones:
            if deletions.delete_range(tombstone):
                start, end = self.settings.keys.start(tombstone.start), self.settings.keys.end(tombstone.end)
                news.append(_Span(start, end, step._replace(what=_Deletion(tombstone.deletion, tombstone))))
        return news

    def _head_record(self, update: PartitionUpdate | None, shown: int | None) -> Iterator[Output]:
        static = _flat(update)
        new = Head(update, shown if static else None)
        if new != self.head or self._falls_due(_flat(self.head.update)):
            ties = self._ties(_flat(self.head.update), static)
            yield HeadRecord(new, row_codec.next_expiry(static, self.settings.now, engine=self.engine), ties)

    def _ties(self, old: bytes, new: bytes) -> int:
        return new_ties(old, new, engine=self.engine) if self.settings.policy == "3.11" else 0

    def _falls_due(self, row: bytes) -> bool:
        return self.settings.since is not None and self.expiry(row, self.start) is not None

    # --- rows

    def fold_row(self, key: bytes, old: bytes, items: Iterable[Item]) -> Iterator[Output]:
        """Fold one row, `old` in the state, through all its moments."""
        folding = _RowFolding(self, key, old)
        self._showed += folding.shows
        outputs = self._taken(key, folding.shown, self._taking, folding.run(items))
        yield from self._kept_back(outputs) if self.is_like_alone(key) else outputs
        self._shows += folding.shows
        if folding.row != old or self._falls_due(old):
            expires_at = row_codec.next_expiry(folding.row, self.settings.now, engine=self.engine)
            yield RowRecord(key, folding.row, expires_at, self._ties(old, folding.row))

    def is_like_alone(self, key: bytes) -> bool:
        """Whether the row's events have to be ordered among those of static content alone."""
        return self.coverage is not None and key == self.settings.like_alone

    def _kept_back(self, outputs: Iterable[Output]) -> Iterator[Output]:
        for output in outputs:
            if isinstance(output, Event):
                self._like_alone.append(output)
            else:
                yield output

    def _taken(self, key: bytes, shown: Shown, taking: _Sweep, outputs: Iterable[Output]) -> Iterator[Output]:
        """The outputs of one row if a preceding deletion removes it; `shown` is the row when the batch
        began."""
        by = taking.at(key or FIRST_ROW).until(_LAST) if shown.row and taking.steps else None
        if by is None:
            yield from outputs
            return
        waiting = True
        about = by.source, by.moment[2], by.what.reason
        gone = Event(key, shown, Shown(), *about, taken=True, moment=by.moment)
        for output in outputs:
            if waiting and isinstance(output, Event):
                waiting = False
                if not output.after.row:
                    yield replace(output, taken=True)
                    continue
                yield gone
                output = replace(output, before=Shown())
            yield output
        if waiting:
            yield gone
            yield Event(key, Shown(), shown, *about, moment=by.moment)

    # --- static content

    def _reads_everything(self) -> bool:
        """Whether static content changes, which affects all rows, or exists while the number of visible rows
        is unknown."""
        return self.coverage is not None and (len(self.statics) > 1 or self.head.shown is None)

    def _count(self, everything: bool) -> int | None:
        """The number of visible rows at the end. Adds unread rows to `coverage`: they are visible all the
        time."""
        if everything:
            return self._shows
        if self.head.shown is None:
            return None
        untouched = self.head.shown - self._showed
        if untouched > 0 and self.coverage is not None:
            self.coverage.add(_Step(_FIRST, None, None), None)
        return untouched + self._shows

    def _statics_alone(self, coverage: _Coverage, placed: Sequence[_Step]) -> Iterator[Output]:
        """Events of the row without clustering, which is visible while static content exists and no other row
        is visible. `placed`: deletions of the partition at their place."""
        cells, covered = NOTHING, False
        before = Shown()
        for moment, steps in groupby(merge(self.statics, coverage.steps(), placed, key=_moment), key=_moment):
            source: Any = None
            by: _Step | None = None
            for step in steps:
                source = source if step.source is None else step.source
                if isinstance(step.what, _Deletion):
                    by = step
                elif isinstance(step.what, bool):
                    covered = step.what
                else:
                    cells = step.what
            after = Shown(STATIC, cells) if cells and not covered else Shown()
            if by is not None and before.row:
                yield from _taken_by(by, b"", before, after)
            elif moment > self.start and before != after:
                yield Event(b"", before, after, source, moment[2], self._alone_reason(moment), moment=moment)
            before = after

    def _alone_at_start(self, coverage: _Coverage) -> Shown:
        cells, covered = NOTHING, False
        for step in merge(self.statics, coverage.steps(), key=_moment):
            if step.moment > self.start:
                break
            if isinstance(step.what, bool):
                covered = step.what
            else:
                cells = step.what
        return Shown(STATIC, cells) if cells and not covered else Shown()

    def _alone_reason(self, moment: Moment) -> Reason:
        if (reason := self.unwritten(moment)) is not None:
            return reason
        return "partition_delete" if moment in self._partition_deletions else "static"


def _together(steps: Sequence[HeadStep]) -> HeadStep:
    """What one update of the head does at once."""
    found = steps[0]
    for step in steps[1:]:
        found = HeadStep(step.moment, step.source, found.deletion or step.deletion, found.reason or step.reason, found.cells or step.cells)
    return found


def _taken_by(by: _Step, key: bytes, before: Shown, after: Shown) -> Iterator[Event]:
    """The events of a visible row at the moment of a deletion that is an event itself."""
    about = by.source, by.moment[2], by.what.reason
    yield Event(key, before, Shown(), *about, taken=True, moment=by.moment)
    if after.row:
        yield Event(key, Shown(), after, *about, moment=by.moment)


def _one_chain(row: Sequence[Event], alone: Iterable[Output]) -> Iterator[Output]:
    """The events of static content alone and those of a row that is published under its key. No moment shows both: what
    goes comes before what is there then."""
    if not row:
        return (each for each in alone)
    events: list[Any] = sorted([*row, *alone], key=lambda event: (event.moment, bool(event.after.row)))
    last = {event.key: at for at, event in enumerate(events)}
    return (replace(event, more=at < last[event.key]) for at, event in enumerate(events))


class _Statics:
    """The static row through a batch, with the timeline of its live cells."""

    def __init__(self, partition: Partition, row: Row | None) -> None:
        self.row = row
        self._partition = partition
        self._flat = NOTHING if row is None else row_codec.encode(row)
        self._clock = partition.start
        self._steps = [_Step(partition.start, None, partition.live(self._flat, partition.start))]
        if partition.altered is not None:
            self._note(_Step(partition.altered, None, None))

    def put(self, step: _Step, row: Row | None) -> None:
        self._expire(step.moment)
        if row != self.row:
            self.row, self._flat = row, NOTHING if row is None else row_codec.encode(row)
        self._note(step)

    def finished(self) -> list[_Step]:
        self._expire(_LAST)
        return self._steps

    def _expire(self, until: Moment) -> None:
        while (moment := self._partition.expiry(self._flat, self._clock)) is not None and moment < until:
            self._note(_Step(moment, None, None))

    def _note(self, step: _Step) -> None:
        self._clock = step.moment
        cells = self._partition.live(self._flat, step.moment)
        if cells != self._steps[-1].what:
            self._steps.append(step._replace(what=cells))


class _How(TypedDict):
    """Options of `row_codec.merge` that are the same for all rows."""

    counter: bool
    policy: Policy
    engine: Engine


class _RowFolding:
    """One row while it is folded: `row` is its state so far."""

    def __init__(self, partition: Partition, key: bytes, row: bytes) -> None:
        self.partition, self.key, self.row = partition, key, row
        self._how: _How = {"counter": partition.order.counter, "policy": partition.settings.policy, "engine": partition.engine}
        self._clock = partition.start
        self._deletions = partition.sweep.at(key)
        self._placed = partition.placed.at(key)
        self._statics = _Walk(partition.statics)
        self._active: DeletionTime | None = None
        self._cells = NOTHING
        self._settle(partition.start)
        self._own = partition.live(self.row, partition.start)
        self._since = _Step(_FIRST, None, None)
        self._asked: tuple[bytes, Moment | None] | None = None

    @property
    def shows(self) -> bool:
        return bool(self._own)

    def run(self, items: Iterable[Item]) -> Iterator[Output]:
        for moment, group in groupby(items, key=self.partition.moment):
            yield from self._pass_time(moment)
            yield from self._step(moment, group)
        yield from self._pass_time(_LAST)
        self._covered_until(None)

    def _pass_time(self, until: Moment) -> Iterator[Output]:
        """The moments before `until` that have no item. An empty row has none."""
        while self.row:
            altered = self.partition.altered
            if altered is not None and altered <= self._clock:
                altered = None
            ahead = (self._deletions.next, self._statics.next, self._expiry, altered, self._taking)
            moment = min((each for each in ahead if each is not None), default=until)
            if moment >= until:
                return
            yield from self._step(moment, ())

    @property
    def _expiry(self) -> Moment | None:
        """The next expiry in the row. The last answer holds until the row changes, or it is that second."""
        if self._asked is None or self._asked[0] is not self.row or (self._asked[1] is not None and self._asked[1] <= self._clock):
            self._asked = self.row, self.partition.expiry(self.row, self._clock)
        return self._asked[1]

    @property
    def _taking(self) -> Moment | None:
        """The next moment at which a deletion at its place takes the row."""
        return self._placed.next if self._own else None

    def _step(self, moment: Moment, items: Iterable[Item]) -> Iterator[Output]:
        """Apply everything that takes effect at one moment."""
        before, by_many = self.shown, self._placed.until(moment)
        source, deleted = self._settle(moment)
        written, by = NOTHING, None
        for item in items:
            written = item.part
            if self._merge(item.part):
                by = item.source if by is None else by
                yield Applied(item.update)
        source = source if by is None else by
        self._show(_Step(moment, source, None))
        after = self.shown
        if before.row and by_many is not None and by_many.moment == moment:
            yield from _taken_by(by_many, self.key, before, after)
        elif before != after:
            reason = self.partition.unwritten(moment) or _reason(written, after, deleted, self.partition.engine)
            yield Event(self.key, before, after, source, moment[2], reason, moment=moment)

    def _settle(self, moment: Moment) -> tuple[Any, Reason | None]:
        """Apply the head's changes up to the moment. Returns the source and the deletion reason of the change
        made at the moment itself."""
        self._clock = moment
        source: Any = None
        deleted: Reason | None = None
        covering = self._deletions.until(moment)
        if covering is not None:
            self._active = covering.what.time
            if covering.moment == moment:
                source, deleted = covering.source, covering.what.reason
        if covering is not None and self.row:
            self.row = row_codec.settle(self.row, active=self._active, **self._how)
        for step in self._statics.until(moment):
            self._cells = step.what
            source = step.source if step.moment == moment else source
        return source, deleted

    def _merge(self, part: bytes) -> bool:
        merged = row_codec.merge(self.row, part, active=self._active, **self._how)
        changed = merged != self.row
        self.row = merged
        return changed

    @property
    def shown(self) -> Shown:
        """The visible row at the current moment."""
        return Shown(self._own, self._cells) if self._own else Shown()

    def _show(self, step: _Step) -> None:
        own = self.partition.live(self.row, step.moment)
        if own and not self._own:
            self._since = step
        elif self._own and not own:
            self._covered_until(step)
        self._own = own

    def _covered_until(self, step: _Step | None) -> None:
        if self._own and self.partition.coverage is not None:
            self.partition.coverage.add(self._since, step)


def _reason(written: bytes, after: Shown, deleted: Reason | None, engine: Engine) -> Reason | None:
    """Why an update changes a visible row: its part that concerns the row most directly."""
    writes, deletes = row_codec.writes(written, engine=engine)
    if writes and after.row:
        return None
    if deletes:
        return "row_delete"
    return deleted or (None if writes else "static")


class _Walk:
    """A list of steps, read once."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._steps, self._at = steps, 0

    @property
    def next(self) -> Moment | None:
        return self._steps[self._at].moment if self._at < len(self._steps) else None

    def until(self, moment: Moment) -> Sequence[_Step]:
        """The steps up to and including a moment that have not been returned yet."""
        first = self._at
        if first == len(self._steps):
            return ()
        self._at = bisect_right(self._steps, moment, lo=first, key=_moment)
        return self._steps[first : self._at]


class _Sweep:
    """The deletions that cover a row, by moment, for rows requested in ascending order.

    Each span has a slot, ordered by moment. A slot holds the rank of its deletion while the span covers the
    row, else 0. A tree of maxima over the slots answers each query in O(log n), so n nested ranges over n
    rows cost O(n log n), not n². By default stronger deletions have greater ranks. With `rank=_when` later ones
    have, so that none is passed over.
    """

    def __init__(self, spans: Iterable[_Span], rank: Callable[[_Span], Any] | None = None) -> None:
        rank = rank or _strength
        holding = (span for span in spans if span.start < span.end)
        ordered = sorted(holding, key=lambda span: (span.step.moment, _strength(span)))
        ranks = {each: number for number, each in enumerate(sorted(set(map(rank, ordered))), 1)}
        self.steps = [span.step for span in ordered]
        self._ranks = [ranks[rank(span)] for span in ordered]
        self._leaves = 1 << max(0, len(ordered) - 1).bit_length()
        self._tree = [0] * (2 * self._leaves)
        slots = range(len(ordered))
        self._coming = sorted(((ordered[slot].start, slot) for slot in slots), reverse=True)
        self._going = sorted(((ordered[slot].end, slot) for slot in slots), reverse=True)

    def at(self, key: bytes) -> _Covering:
        """The deletions that cover the row of this key. Invalidates the result of earlier calls."""
        while self._coming and self._coming[-1][0] <= key:
            slot = self._coming.pop()[1]
            self._put(slot, self._ranks[slot])
        while self._going and self._going[-1][0] <= key:
            self._put(self._going.pop()[1], 0)
        return _Covering(self)

    def strongest(self, low: int, high: int) -> int:
        """The greatest rank in the slots low <= slot < high; 0 if none of them covers the row."""
        found, low, high = 0, low + self._leaves, high + self._leaves
        while low < high:
            if low & 1:
                found = max(found, self._tree[low])
                low += 1
            if high & 1:
                high -= 1
                found = max(found, self._tree[high])
            low, high = low >> 1, high >> 1
        return found

    def first_above(self, rank: int, low: int) -> int | None:
        """The first slot from `low` with a greater rank."""
        if self._tree[1] <= rank or low >= len(self.steps):
            return None
        node = low + self._leaves
        while self._tree[node] <= rank:
            # Continue with the next subtree to the right. The last one has none.
            while node & 1:
                node >>= 1
            if not node:
                return None
            node += 1
        while node < self._leaves:
            node *= 2
            node += self._tree[node] <= rank
        return node - self._leaves

    def _put(self, slot: int, rank: int) -> None:
        node = slot + self._leaves
        self._tree[node] = rank
        while node > 1:
            node >>= 1
            strongest = max(self._tree[2 * node], self._tree[2 * node + 1])
            if self._tree[node] == strongest:
                return
            self._tree[node] = strongest


class _Covering:
    """The deletions that cover one row, read once by moment: only those that are stronger than all earlier
    ones."""

    def __init__(self, sweep: _Sweep) -> None:
        self._sweep = sweep
        self._slot = self._rank = 0

    @property
    def next(self) -> Moment | None:
        slot = self._sweep.first_above(self._rank, self._slot)
        return None if slot is None else self._sweep.steps[slot].moment

    def until(self, moment: Moment) -> _Step | None:
        """The strongest deletion up to and including a moment, if stronger than those returned before."""
        first, steps = self._slot, self._sweep.steps
        if first == len(steps):
            return None
        self._slot = bisect_right(steps, moment, lo=first, key=_moment)
        rank = self._sweep.strongest(first, self._slot)
        if rank <= self._rank:
            return None
        slot = self._sweep.first_above(rank - 1, first)
        self._rank = rank
        return None if slot is None else steps[slot]


def _when(span: _Span) -> Moment:
    return span.step.moment


def _strength(span: _Span) -> tuple[int, int]:
    deletion = span.step.what.time
    return deletion.marked_for_delete_at, deletion.local_deletion_time


class _Coverage:
    """When at least one clustered row is visible: a union of intervals of moments, usually a single one."""

    def __init__(self) -> None:
        self._starts: list[_Step] = []
        self._ends: list[_Step | None] = []

    def add(self, start: _Step, end: _Step | None) -> None:
        """Add the interval from `start` up to but excluding `end`; None: no end."""
        low = bisect_left(self._ends, start.moment, key=_end)
        high = bisect_right(self._starts, _end(end), key=_moment)
        if low < high:
            start = min(start, self._starts[low], key=_moment)
            end = max(end, self._ends[high - 1], key=_end)
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def steps(self) -> Iterator[_Step]:
        """The moments at which an interval begins (True) or ends (False)."""
        for start, end in zip(self._starts, self._ends, strict=True):
            yield start._replace(what=True)
            if end is not None:
                yield end._replace(what=False)


def _end(step: _Step | None) -> Moment:
    return _LAST if step is None else step.moment


def _moment(step: _Step | HeadStep) -> Moment:
    return step.moment


class _Ahead(Generic[T]):
    """An iterator of (key, ...) tuples with one tuple of lookahead."""

    def __init__(self, entries: Iterable[tuple[bytes, T]]) -> None:
        self._entries = iter(entries)
        self.next = next(self._entries, None)

    def take(self, key: bytes, default: T) -> T:
        """The value of the key, if the key is next, else `default`. Does not advance, `go_on` does."""
        return self.next[1] if self.next is not None and self.next[0] == key else default

    def go_on(self, key: bytes) -> None:
        if self.next is not None and self.next[0] == key:
            self.next = next(self._entries, None)


def _visits(
    groups: Iterable[tuple[bytes, Iterable[Item]]], due: Iterable[bytes], rows: Rows, scanned: Sequence[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes, Iterable[Item]]]:
    """The rows to fold with their state and items, ascending: rows of the groups, rows that are due, and rows
    of the state in the ranges `scanned`, which are disjoint and ascending."""
    given, asked = _Ahead(groups), _Ahead((key, True) for key in due)
    found = _Ahead((key, row) for start, end in scanned for key, row in rows.scan(start, end))
    ranges = iter(scanned)
    reach = next(ranges, None)
    while keys := [ahead.next[0] for ahead in (given, asked, found) if ahead.next is not None]:
        key = min(keys)
        while reach is not None and reach[1] <= key:
            reach = next(ranges, None)
        within = reach is not None and reach[0] <= key
        yield key, found.take(key, NOTHING) if within else rows.get(key), given.take(key, ())
        for ahead in (given, asked, found):
            ahead.go_on(key)


def _united(ranges: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The union of the ranges, as disjoint ascending ranges."""
    united: list[tuple[bytes, bytes]] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((start, end))
    return united


def _head(old: PartitionUpdate | None, deletions: PartitionDeletions, static: Row | None) -> PartitionUpdate | None:
    partition, tombstones = deletions.partition, deletions.tombstones()
    if old is None or (partition is None and not tombstones and static is None):
        return None
    return replace(old, deletion=partition, static_row=static, rows=(), range_tombstones=tombstones)


def _flat(head: PartitionUpdate | None) -> bytes:
    """The static row of a head, as a flat row."""
    return NOTHING if head is None or head.static_row is None else row_codec.encode(head.static_row)
