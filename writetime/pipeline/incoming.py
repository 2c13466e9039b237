"""What waits under cdc/, as planning chooses from it: the oldest segments, with a bounded number of requests however
many wait.

Strategy: names are listed first, and only what may go into the batch is looked at. Up to `MANY` segments are ordered
by when their nodes finished them. If more wait, an outage is over, and listing a million names for each batch would
take minutes: then each node's folder is listed as far as the batch may reach, all nodes at once, and the order is that
of the uploads. Segments that no batch may take (held, in conflict, waiting for a reader) are passed over, but listed.
Does not know manifests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from heapq import nsmallest
from itertools import accumulate, chain, islice
from typing import Final, TypeVar

from writetime.cassandra.commitlog.descriptor import waits_for_reader
from writetime.errors import NotASegment
from writetime.pipeline import conflicts
from writetime.pipeline.conflicts import Conflict
from writetime.pipeline.documents import LedgerEntry, SegmentInput, may_contain
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import PAGE, Listed, ObjectInfo, Store, facts

_Item = TypeVar("_Item")
MANY: Final = 4000
"""Waiting segments that planning looks at one by one. If there are more, it does not list them all."""
_AHEAD: Final = 2
"""How many times its share of a batch is listed of each node, if more wait."""


@dataclass
class LeftOut:
    """What was listed and is not in the batch. `nodes`: paths of the nodes that logged it; `waiting`: whole
    segments that were listed and are not held, by node."""

    nodes: set[str] = field(default_factory=set)
    waiting: Counter[str] = field(default_factory=Counter)

    def without(self, segments: Iterable[SegmentInput], growing: Iterable[SegmentInput]) -> None:
        """Complete `nodes`, now that the batch consists of these segments; `growing` are those that could
        have been among them."""
        segments = list(segments)
        chosen = {segment.object for segment in segments}
        waiting = self.waiting - Counter(segment.ref.node.path for segment in segments if not segment.grows)
        self.nodes |= waiting.keys() | {segment.ref.node.path for segment in growing if segment.object not in chosen}


@dataclass(frozen=True)
class Most:
    """What a batch may take in: segments, and their bytes; None: any."""

    segments: int
    bytes: int | None = None

    def of(self, ordered: Sequence[_Item], size: Callable[[_Item], int]) -> list[_Item]:
        """The first ones within both limits, but at least one."""
        some = list(ordered[: self.segments])
        if self.bytes is None:
            return some
        return some[: max(1, bisect_right(list(accumulate(map(size, some))), self.bytes))]


@dataclass
class Incoming:
    """The segments that a batch may take. `names`: all whole segments that were listed; `backlog`: more wait than
    were listed."""

    segments: list[SegmentInput] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    backlog: bool = False


def read_incoming(
    store: Store,
    cluster: str,
    held: Mapping[str, LedgerEntry | None],
    now: datetime,
    most: Most,
    left: LeftOut,
    *,
    largest: int,
    newest: Mapping[str, int] | None = None,
) -> Incoming:
    """The oldest new whole segments, at most `most`, but at least one. `held`: the held segments, with their ledger
    entry if they were cleared. `newest`: see `conflicts.expect_new`."""
    while True:
        known = conflicts.known(store, cluster)
        look = _Look(held, known, left, largest)
        left.waiting.clear()
        some = list(islice(look.usable(store.names(layout.incoming_prefix(cluster))), MANY + 1))
        backlog = len(some) > MANY
        if backlog:
            some = most.of(_oldest(store, cluster, look, most.segments), lambda each: each.size)
        admitted = list(look.admitted(facts(store, some)))
        found = most.of(nsmallest(most.segments, admitted, key=age), lambda segment: segment.size)
        for name in sorted(look.disputed):
            conflicts.note(store, name, now)
        # Cleared segments have a ledger entry already, and are wanted.
        segments = [segment for segment in found if segment.object in held]
        others = (segment for segment in found if segment.object not in held and segment.object not in look.disputed)
        segments += conflicts.expect_new(store, others, known, now, newest)
        # If none is new, all were removed or recorded: look at the next ones.
        if segments or not found:
            return Incoming(segments, look.names, backlog)


def released(info: ObjectInfo, held: Mapping[str, LedgerEntry | None]) -> SegmentInput | None:
    """The segment, or None if it is held and not cleared. A repaired copy has no metadata of the node, so
    its end and its time come from the ledger."""
    segment = SegmentInput.from_object(info)
    if info.name not in held:
        return segment
    entry = held[info.name]
    if entry is None:
        return None
    again = may_contain(entry.problems)
    return entry.noted(segment).model_copy(update={"folded_but": None if again is None else sorted(again)})


def age(segment: SegmentInput) -> tuple[datetime, str]:
    """What segments are ordered by."""
    return segment.sealed_at, segment.object


@dataclass
class _Look:
    """One look at cdc/. `disputed`: segments with a new conflict; `names`: all whole segments that were listed."""

    held: Mapping[str, LedgerEntry | None]
    known: Mapping[str, Conflict]
    left: LeftOut
    largest: int
    disputed: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def usable(self, listed: Iterable[Listed]) -> Iterator[Listed]:
        """Those that may be segments of the batch; notes the others."""
        for each in listed:
            if (name := conflicts.shipped(each.name)) is not None:
                self.left.nodes.add(layout.SegmentRef.from_object(name).node.path)
                if name not in self.known:
                    self.disputed.add(name)
            try:
                ref = layout.SegmentRef.from_object(each.name)
            except NotASegment:
                continue
            if each.size > self.largest or waits_for_reader(ref.segment.version):
                # What waits for a reader would need an operator after the upgrade if it were quarantined; what was
                # logged after it is merged all the same.
                self.left.nodes.add(ref.node.path)
                continue
            self.names.add(each.name)
            if each.name in self.held and self.held[each.name] is None:
                continue
            conflict = self.known.get(each.name)
            self.left.waiting[ref.node.path] += 1
            if conflict is None or conflict.kept is not None:
                yield each

    def admitted(self, infos: Iterable[ObjectInfo]) -> Iterator[SegmentInput]:
        """The segments whose bytes a batch may take."""
        for info in infos:
            segment, conflict = released(info, self.held), self.known.get(info.name)
            if segment is not None and (conflict is None or conflict.admits(segment)):
                yield segment


@dataclass
class _OfNode:
    """What was listed of a node's folder so far; `done`: that is all."""

    folder: str
    found: list[Listed] = field(default_factory=list)
    done: bool = False
    _last: str = ""

    def more(self, store: Store, look: _Look, page: int) -> None:
        """List at least one more that is usable, if there is one."""
        while not self.done:
            listed = list(islice(store.names(self.folder, start_after=self._last, page=page), page))
            self.done = len(listed) < page
            self._last = listed[-1].name if listed else self._last
            usable = list(look.usable(listed))
            self.found += usable
            if usable:
                return


def _oldest(store: Store, cluster: str, look: _Look, most: int) -> list[Listed]:
    """The oldest of all nodes by the time of their upload: more of the nodes whose last listed one is among them, until
    there is none."""
    datacenters = list(store.folders(layout.incoming_prefix(cluster)))
    folders = chain.from_iterable(at_once(lambda each: list(store.folders(each)), datacenters))
    nodes = [_OfNode(folder) for folder in folders]
    look.left.waiting.clear()
    short, page = nodes, min(PAGE, _AHEAD * -(-most // max(1, len(nodes))))
    while short:
        # Each node's names are looked at by one thread; sets and counters are added to by single operations.
        at_once(partial(_OfNode.more, store=store, look=look, page=page), short)
        chosen = nsmallest(most, chain.from_iterable(node.found for node in nodes), key=_uploaded)
        last = _uploaded(chosen[-1]) if len(chosen) == most else None
        short = [node for node in nodes if not node.done and (last is None or _uploaded(node.found[-1]) <= last)]
        page = PAGE
    return chosen if nodes else []


def _uploaded(each: Listed) -> tuple[datetime, str]:
    return each.created, each.name
