"""Status of the nodes: which ones ship, how fresh they are, which segments wait, and which minutes of their
logs arrived.

A node is known by the document that its shipper writes (`nodes/`) or by its segments. Its freshness is the
completion time of its newest segment in the bucket. Frames that no node logged (bootstrap, retries) belong to
no node and are not counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from writetime.cassandra.cdc_settings import UnsafeSetting
from writetime.cassandra.commitlog.descriptor import waits_for_reader
from writetime.cassandra.merge.reconcile import Policy, policy_of
from writetime.errors import NotASegment
from writetime.pipeline.batch_history import WINDOW, Batches, BatchFacts, Position, taken_in
from writetime.pipeline.conflicts import undecided
from writetime.pipeline.documents import SegmentInput
from writetime.pipeline.node_facts import Loaded, NodeSpace, read_facts
from writetime.pipeline.truncation_reports import newest_answers
from writetime.storage import layout
from writetime.storage.store import ObjectInfo, Store
from writetime.storage.store import facts as facts_of

LISTED: Final = 2000
"""Maximum number of objects of one kind to list. A longer backlog is reported as "at least so many"."""
_ANSWERS_DAILY: Final = timedelta(days=2)
_STEPS: Final = (1, 5, 15, 60, 360, 1440)
_LATE_AFTER: Final = timedelta(hours=6)
"""Default for a node whose rate or limit is unknown."""
_EARLIEST_LATE: Final = timedelta(minutes=30)
_LATEST_LATE: Final = timedelta(days=1)
_SPACE_COUNTS: Final = timedelta(days=2)
_FARTHEST: Final = 500
"""Batches to search for a node without segments in the last ones."""
_COLUMNS: Final = 72


@dataclass(slots=True)
class NodeStatus:
    """A node. `newest`: completion time of its newest segment; None if that was before these batches.

    `waiting`: segments that no batch has read, and their bytes; `unreadable`: how many of them wait for a
    release of writetime that reads their commit log version, by version; `held`: segments that need an operator;
    `growing`: segments with parts only. `segments`, `frames`, `size` (bytes), `oldest`: segments that these
    batches read. `space`: None if its shipper has reported nothing since yesterday. `answered`: time of its
    last report of TRUNCATEs; without one, a TRUNCATE that is in no segment may be missed. `position`: how far
    its log was read, None if that was before these batches. `loaded`: tables into which it has loaded SSTables past its log."""

    node: layout.NodeName
    address: str = ""
    rack: str = ""
    release: str = ""
    tokens: int = 0
    newest: datetime | None = None
    waiting: int = 0
    waiting_size: int = 0
    unreadable: dict[int, int] = field(default_factory=dict)
    oldest_waiting: datetime | None = None
    growing: int = 0
    held: int = 0
    segments: int = 0
    frames: int = 0
    size: int = 0
    oldest: datetime | None = None
    space: NodeSpace | None = None
    answered: datetime | None = None
    position: Position | None = None
    loaded: tuple[Loaded, ...] = ()

    @property
    def rate(self) -> float | None:
        """Bytes of segments completed per second, over these batches and waiting segments; None with fewer
        than two segments."""
        if self.oldest is None or self.newest is None or self.segments < 2 or self.oldest >= self.newest:
            return None
        return (self.size + self.waiting_size) / (self.newest - self.oldest).total_seconds()

    @property
    def late_after(self) -> timedelta:
        """How old its newest segment may be before the node counts as late: the time in which it fills half
        of its `cdc_total_space` at its rate, which leaves as much time until Cassandra refuses writes; 30
        minutes to a day. Six hours if either is unknown."""
        if not self.rate or self.space is None or not self.space.limit:
            return _LATE_AFTER
        seconds = min(self.space.limit / self.rate / 2, _LATEST_LATE.total_seconds())
        return max(timedelta(seconds=seconds), _EARLIEST_LATE)

    @property
    def unsafe(self) -> list[UnsafeSetting]:
        """Settings with which it drops captured writes; empty if its settings are unknown."""
        return [] if self.space is None else list(self.space.settings.unsafe())

    def is_not_asked(self, now: datetime) -> bool:
        """Whether its TRUNCATEs are known from its segments only: its shipper has not queried it for two
        days."""
        return self.answered is None or now - self.answered > _ANSWERS_DAILY

    def came(self, sealed_at: datetime | None) -> None:
        """Record a segment completed at that time."""
        if sealed_at is not None:
            self.newest = sealed_at if self.newest is None else max(self.newest, sealed_at)

    def reached(self, position: Position | None) -> None:
        """Record how far a batch has read its log."""
        if position is not None:
            self.position = position if self.position is None else max(self.position, position)


@dataclass(frozen=True, slots=True)
class RingStatus:
    """A cluster at `now`. `since`: seal time of the oldest of `batches`. `complete`: False if more segments
    wait than were listed. `kept_from`: the archive may have deleted segments sealed before; None: it has all.
    `undecided`: by table, updates that a TRUNCATE may have removed, which no record decides. `voids`: the
    voided batches, which are not in `batches`. `in_conflict`: segments with different bytes, which need an
    operator."""

    cluster: str
    now: datetime
    nodes: tuple[NodeStatus, ...]
    batches: tuple[BatchFacts, ...]
    since: datetime | None
    open_batch: int | None
    held: tuple[str, ...]
    complete: bool
    kept_from: datetime | None = None
    undecided: dict[str, int] = field(default_factory=dict)
    voids: tuple[BatchFacts, ...] = ()
    in_conflict: tuple[str, ...] = ()

    @property
    def merge_rule(self) -> Policy:
        """The rule by which the last batch merged cells of equal timestamp; before the first batch, by the
        nodes' releases."""
        return self.batches[0].merge_rule if self.batches else policy_of(self.releases)

    @property
    def releases(self) -> dict[str, int]:
        """Number of nodes by release."""
        return dict(sorted(Counter(node.release for node in self.nodes if node.release).items()))

    @property
    def ties(self) -> int:
        """Cells of these batches that the cluster may resolve differently, by the rule of 3.11."""
        return sum(batch.total.ties for batch in self.batches)


def ring(batches: Batches, *, last: int = WINDOW, now: datetime | None = None) -> RingStatus:
    """The cluster by its last batches and the objects in the bucket."""
    past, latest = batches.newest(), batches.latest(last)
    facts = [batch for batch in latest if batch.void is None]
    store, cluster = batches.store, batches.cluster
    now = now or datetime.now(UTC)
    found = {node.node: node for node in _reported(store, cluster, now)}

    def of(node: layout.NodeName) -> NodeStatus:
        return found.setdefault(node, NodeStatus(node))

    for batch in facts:
        for node, taken in batch.nodes.items():
            if node.origin != "log":
                continue
            status = of(node)
            status.came(taken.newest)
            if batch.kind == "ingest":
                status.reached(taken.position)
                status.segments += taken.segments
                status.frames += taken.frames
                status.size += taken.size
                if taken.oldest is not None:
                    status.oldest = taken.oldest if status.oldest is None else min(status.oldest, taken.oldest)
    held = set(past.sealed.held if past.sealed else ())
    for node in (layout.SegmentRef.from_object(name).node for name in held):
        if node.origin == "log":
            of(node).held += 1
    incoming = list(islice(store.names(layout.incoming_prefix(cluster)), LISTED + 1))
    in_conflict = tuple(conflict.object for conflict in undecided(store, cluster, incoming))
    passed_over = held.union(in_conflict)
    for segment in _segments(facts_of(store, (each for each in incoming if each.name not in passed_over))):
        _wait(of(segment.ref.node), segment)
    for node, answer in newest_answers(store, cluster).items():
        of(node).answered = answer.created
    for name, mark in past.sealed.growing.items() if past.sealed else ():
        growing = layout.SegmentRef.from_object(name)
        of(growing.node).growing += 1
        of(growing.node).reached(Position(growing.segment, mark.position))
    return RingStatus(
        cluster=cluster,
        now=now,
        nodes=tuple(found[node] for node in sorted(found)),
        batches=tuple(facts),
        since=facts[-1].sealed_at if facts else None,
        open_batch=past.last if past.open else None,
        held=tuple(sorted(held)),
        in_conflict=in_conflict,
        complete=len(incoming) <= LISTED,
        kept_from=datetime.fromtimestamp(past.sealed.kept_from, UTC) if past.sealed and past.sealed.kept_from is not None else None,
        undecided=past.sealed.undecided if past.sealed else {},
        voids=tuple(batch for batch in latest if batch.void is not None),
    )


def ring_with_late_nodes(batches: Batches, *, now: datetime | None = None, found: RingStatus | None = None) -> RingStatus:
    """As `ring`, or as `found`, but with more batches if a node has no segment in the last ones, to decide whether
    it is late."""
    found = found or ring(batches, now=now)
    if any(node.newest is None for node in found.nodes) and found.batches and found.batches[-1].number > 1:
        found = ring(batches, last=_FARTHEST, now=found.now)
    return found


def _wait(status: NodeStatus, segment: SegmentInput) -> None:
    status.came(segment.sealed_at)
    status.waiting += 1
    status.waiting_size += segment.size
    if waits_for_reader(version := segment.ref.segment.version):
        status.unreadable[version] = status.unreadable.get(version, 0) + 1
    oldest = status.oldest_waiting
    status.oldest_waiting = segment.sealed_at if oldest is None else min(oldest, segment.sealed_at)


def _segments(found: Iterable[ObjectInfo]) -> Iterator[SegmentInput]:
    for info in found:
        try:
            layout.SegmentRef.from_object(info.name)
        except NotASegment:
            continue
        yield SegmentInput.from_object(info)


def _reported(store: Store, cluster: str, now: datetime) -> Iterator[NodeStatus]:
    """Nodes by the documents of their shippers. A node with an invalid document is listed by its name."""
    for facts in read_facts(store, cluster):
        status = NodeStatus(facts.node, address=facts.address, rack=facts.rack, release=facts.release, tokens=len(facts.tokens))
        if facts.space is not None and now - facts.space.at <= _SPACE_COUNTS:
            status.space = facts.space
        status.loaded = facts.loaded
        yield status


@dataclass(frozen=True, slots=True)
class Coverage:
    """Processed segments by node and time. `cells[node][column]`: (segments, frames) of `minutes` from
    `starts[column]`."""

    nodes: tuple[layout.NodeName, ...]
    starts: tuple[datetime, ...]
    minutes: int
    cells: dict[layout.NodeName, tuple[tuple[int, int], ...]]

    @property
    def most(self) -> int:
        """Frames in the fullest cell."""
        return max((frames for row in self.cells.values() for _, frames in row), default=0)

    def gap(self, node: layout.NodeName, column: int) -> bool:
        """Whether the node has no segment for a time for which another node of its datacenter has. The first
        and the last column are incomplete and never count."""
        if self.cells[node][column][0] or column in (0, len(self.starts) - 1):
            return False
        return any(self.cells[other][column][0] for other in self.nodes if other.datacenter == node.datacenter)


def coverage(nodes: Sequence[layout.NodeName], batches: Iterable[BatchFacts]) -> Coverage:
    """Coverage by the completion times of segments, in steps that give at most `_COLUMNS` columns."""
    found = list(taken_in(batches))
    if not found:
        return Coverage(tuple(nodes), (), 1, dict.fromkeys(nodes, ()))
    first, last = min(minute for _, minute, _, _ in found), max(minute for _, minute, _, _ in found)
    step = next((step for step in _STEPS if (last - first) / timedelta(minutes=step) < _COLUMNS), _STEPS[-1])
    columns = {_floor(minute, step) for _, minute, _, _ in found}
    begin = max(min(columns), max(columns) - (_COLUMNS - 1) * timedelta(minutes=step))
    starts = [begin + index * timedelta(minutes=step) for index in range((max(columns) - begin) // timedelta(minutes=step) + 1)]
    sums: dict[tuple[layout.NodeName, datetime], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for node, minute, segments, frames in found:
        at = (node, _floor(minute, step))
        sums[at] = (sums[at][0] + segments, sums[at][1] + frames)
    rows = sorted({*nodes, *(node for node, _ in sums)})
    return Coverage(tuple(rows), tuple(starts), step, {node: tuple(sums.get((node, start), (0, 0)) for start in starts) for node in rows})


def _floor(moment: datetime, minutes: int) -> datetime:
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % (60 * minutes), UTC)
