"""Summaries of sealed batches, newest first.

Strategy: a sealed batch never changes, so its summary is cached in memory, and later calls read only newly
sealed batches. For each batch its manifest and its seal are read, several batches in parallel. Does not know
the ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Final, TypeVar

from writetime.cassandra.merge.reconcile import Policy
from writetime.errors import ObjectNotFound
from writetime.pipeline.documents import (
    Accounting,
    BatchKind,
    Manifest,
    Sealed,
    SegmentInput,
    SegmentOutcome,
    Void,
    total,
)
from writetime.pipeline.planner import History, effective, history, read_manifest, read_sealed
from writetime.pipeline.void import voided_by_now
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store
from writetime.untrusted import SEGMENT

WINDOW: Final = 60
"""Default number of batches: an hour by the default schedule."""
_KEPT: Final = 2000
_AT_ONCE: Final = 8
_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far the log of a node was read: a segment, and bytes of its file. Orders as the log does."""

    segment: layout.SegmentName
    bytes: int


@dataclass(slots=True)
class Taken:
    """The input of a batch from one node: segments, frames, bytes, when the node finished the oldest and the
    newest segment, and how far its log was read."""

    segments: int = 0
    frames: int = 0
    size: int = 0
    problems: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    position: Position | None = None

    def add(self, segment: SegmentInput, outcome: SegmentOutcome | None) -> None:
        """Add a segment. Frames that were ingested while it grew count for the batch that ingested them."""
        sealed_at, reached = segment.sealed_at, Position(segment.ref.segment, segment.end if segment.grows else segment.size)
        self.position = reached if self.position is None else max(self.position, reached)
        self.segments += 1
        self.size += segment.size
        self.frames += outcome.frames if outcome else 0
        self.problems += outcome.refused_frames if outcome else 0
        self.oldest = sealed_at if self.oldest is None else min(self.oldest, sealed_at)
        self.newest = sealed_at if self.newest is None else max(self.newest, sealed_at)


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A sealed batch. `minutes`: (segments, frames) by node and the minute in which the node finished them.
    `rows`: by table, as far as known. With a `void` it takes no effect, and nodes, minutes and rows are
    empty."""

    number: int
    kind: BatchKind
    created_at: datetime
    sealed_at: datetime
    segments: int
    problems: int
    events: int
    accounting: tuple[Accounting, ...]
    nodes: dict[layout.NodeName, Taken] = field(default_factory=dict)
    minutes: dict[tuple[layout.NodeName, datetime], tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    merge_rule: Policy = "4.0"
    void: Void | None = None

    @property
    def total(self) -> Accounting:
        """The sum over all tables."""
        return total(self.accounting)

    @property
    def lag(self) -> tuple[float, float] | None:
        """Seconds from the completion of a segment to the seal, for the newest and the oldest segment. None
        without segments."""
        if self.kind != "ingest" or not self.nodes:
            return None
        newest = max(taken.newest for taken in self.nodes.values() if taken.newest)
        oldest = min(taken.oldest for taken in self.nodes.values() if taken.oldest)
        return (self.sealed_at - newest).total_seconds(), (self.sealed_at - oldest).total_seconds()


class Batches:
    """The batches of a cluster. Thread-safe; an instance may live as long as its process. `largest`: maximum
    bytes of an object that a batch ingests."""

    def __init__(self, store: Store, cluster: str, *, largest: int = SEGMENT) -> None:
        self.store = store
        self.cluster = cluster
        self.largest = largest
        self._facts: OrderedDict[int, BatchFacts] = OrderedDict()
        self._known: History | None = None
        self._lock = Lock()

    def newest(self) -> History:
        """The last batch begun and the last seal; each call lists only what is new."""
        known = self._known
        sealed = known.sealed if known else None
        self._known = history(self.store, self.cluster) if known is None or sealed is None else self._newer(known, sealed)
        return self._known

    def latest(self, count: int = WINDOW, *, before: int | None = None) -> list[BatchFacts]:
        """The last `count` sealed batches, or those below number `before`, including voided ones; newest
        first."""
        newest = self.newest()
        first = newest.last - newest.open
        if before is not None:
            first = min(first, before - 1)
        return self._read(range(first, max(0, first - count), -1))

    def voided(self) -> frozenset[int]:
        """Numbers of all voided batches."""
        return voided_by_now(self.store, self.cluster, self.newest())

    def begun(self, number: int) -> Manifest | None:
        """The manifest of a batch, sealed or not; None if there is none, or it is deleted."""
        try:
            return read_manifest(self.store, self.cluster, number)
        except ObjectNotFound:
            return None

    def shadow(self, namespace: str) -> Batches:
        """The batches of replays into a shadow namespace."""
        return Batches(self.store, layout.shadow_chain(self.cluster, namespace))

    def documents(self, number: int) -> tuple[Manifest, Sealed] | None:
        """Manifest and seal of a batch; None if it is not sealed, or its documents are deleted."""
        sealed = read_sealed(self.store, self.cluster, number)
        manifest = None if sealed is None else self.begun(number)
        return None if sealed is None or manifest is None else (manifest, sealed)

    def _newer(self, known: History, sealed: Sealed) -> History:
        last, seals = known.last, []
        for info in self.store.names(layout.batches_prefix(self.cluster), start_after=layout.batch_folder(self.cluster, sealed.number)):
            number, what = layout.batch_number(info.name), info.name.rpartition("/")[2]
            if number is not None and what == "manifest.json":
                last = max(last, number)
            elif number is not None and what == "sealed.json" and number > sealed.number:
                seals.append(number)
        for number in sorted(seals, reverse=True):
            found = read_sealed(self.store, self.cluster, number)
            if found is not None and (takes_effect := effective(self.store, self.cluster, found)) is not None:
                return History(last, takes_effect, voided=found.void is not None and number == last)
        return History(last, sealed)

    def _read(self, numbers: Iterable[int]) -> list[BatchFacts]:
        wanted = list(numbers)
        with self._lock:
            known = {number: self._facts[number] for number in wanted if number in self._facts}
        found = at_once(self._facts_of, (number for number in wanted if number not in known))
        with self._lock:
            for facts in found:
                if facts is not None:
                    known[facts.number] = self._facts[facts.number] = facts
            while len(self._facts) > _KEPT:
                self._facts.popitem(last=False)
        return [known[number] for number in wanted if number in known]

    def _facts_of(self, number: int) -> BatchFacts | None:
        documents = self.documents(number)
        return None if documents is None else summary(*documents)


def summary(manifest: Manifest, sealed: Sealed) -> BatchFacts:
    """The summary of a batch."""
    outcomes = {outcome.object: outcome for outcome in sealed.segments}
    facts = BatchFacts(
        number=sealed.number,
        kind=sealed.kind,
        created_at=manifest.created_at,
        sealed_at=sealed.sealed_at,
        segments=len(manifest.segments),
        problems=sum(outcome.refused_frames for outcome in sealed.segments),
        events=sealed.events,
        accounting=tuple(sealed.accounting),
        rows=sealed.rows,
        merge_rule=manifest.merge_rule,
        void=sealed.void,
    )
    if sealed.void is not None:
        return facts
    for segment in manifest.segments:
        node, outcome = segment.ref.node, outcomes.get(segment.object)
        facts.nodes.setdefault(node, Taken()).add(segment, outcome)
        at = (node, segment.sealed_at.replace(second=0, microsecond=0))
        segments, frames = facts.minutes.get(at, (0, 0))
        facts.minutes[at] = (segments + 1, frames + (outcome.frames if outcome else 0))
    return facts


def taken_in(batches: Iterable[BatchFacts]) -> Iterator[tuple[layout.NodeName, datetime, int, int]]:
    """(node, minute, segments, frames) of logs ingested for the first time, without replays."""
    for batch in batches:
        if batch.kind == "ingest":
            for (node, minute), (segments, frames) in batch.minutes.items():
                if node.origin == "log":
                    yield node, minute, segments, frames
