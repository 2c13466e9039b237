"""Up to which time all logs are in, of each table; and with it how far the state may forget: the purge clock.

Strategy: a node's log comes in segment by segment, so all that it logged before it had finished the last segment that a batch
took in is in, except what is in segments that a batch could not use whole (*held*). A hold concerns the tables of which the
segment may contain something that was not folded, and all tables if nobody can say: what lies in a damaged range. The time of a
table is the earliest of all nodes' and of all holds that concern it. A tombstone may be forgotten when its table's
gc_grace is over *and* all logs are in up to its deletion: then nothing comes in any more that it has to beat.

A node that has left holds its tables' clocks until its objects under nodes/ are removed; a segment, until it is cleared or a
person releases it from quarantine (`writetime quarantine release`): then it comes in nowhere but in a fresh namespace.

Reads the bucket; knows no Spark and no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from writetime.cassandra.merge.tombstone_gc import purge_before
from writetime.cassandra.schema.model import Table
from writetime.errors import NotASegment, ObjectNotFound
from writetime.pipeline.documents import (
    Hold,
    LedgerEntry,
    LocalDocument,
    Manifest,
    Sealed,
    SegmentInput,
    may_contain,
)
from writetime.pipeline.maintenance_report import HeldBack
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

_BATCHES_BACK: Final = 500
"""Manifests that are looked through for the last segment of each node, where no batch has noted it yet."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """A table's purge clock: what died before the second `before` may be forgotten. `wanted` is how far gc_grace alone would let it
    go; where `hold` keeps it back it is that."""

    before: int
    wanted: int
    hold: Hold | None = None


def purge_clock(table: Table, now: int, holds: Iterable[Hold]) -> Clock:
    """The table's clock at `now` (s): min(now - gc_grace, the time up to which all logs are in)."""
    wanted = purge_before(now, table.gc_grace_seconds)
    first = min((hold for hold in holds if hold.concerns(table.id)), key=lambda hold: (hold.until, hold.by), default=None)
    until = wanted if first is None else int(first.until.timestamp())
    return Clock(wanted, wanted) if until >= wanted else Clock(until, wanted, first)


def held_back(tables: Iterable[Table], manifest: Manifest) -> list[HeldBack]:
    """Of maintenance: the tables whose purge it held back, and for what; by their labels."""
    found = []
    for table in tables:
        clock = purge_clock(table, manifest.now, manifest.holds)
        if clock.hold is not None:
            until, wanted = (datetime.fromtimestamp(at, UTC) for at in (clock.before, clock.wanted))
            hold = clock.hold
            found.append(HeldBack(table=table.label, by=hold.by, until=until, wanted=wanted, since=hold.since))
    return sorted(found, key=lambda each: each.table)


def holds(store: Store, cluster: str, sealed: Sealed | None) -> list[Hold]:
    """All that keeps logs from being in, as of the last sealed batch."""
    ends = node_ends(store, cluster, sealed)
    nodes = [Hold(by=layout.node_documents(_node(path)), until=at, since=at) for path, at in ends.items()]
    return [*nodes, *_held(store, sealed), *_damaged_parts(sealed), *_late(store, cluster, sealed, ends)]


def node_ends(store: Store, cluster: str, sealed: Sealed | None) -> dict[str, datetime]:
    """By `NodeName.path`: when each node had finished the last of its segments that a batch has taken in.

    Nodes are those that have an object under nodes/, or all if none has: without it, one that has left holds nothing back."""
    if sealed is None:
        return {}
    found = (layout.NodeName.of_facts(info.name) for info in store.list(layout.nodes_prefix(cluster)))
    nodes = {node.path for node in found if node is not None}
    document = LocalDocument.read(store, layout.batch_object(cluster, sealed.number, "local")) or LocalDocument()
    ends = document.ends or _searched(store, cluster, sealed, nodes)
    return {path: at for path, at in sorted(ends.items()) if path in nodes or not nodes}


def ends_after(known: Mapping[str, datetime], manifest: Manifest) -> dict[str, datetime]:
    """`node_ends`, of all nodes, once that batch has taken in its segments."""
    ends = dict(known)
    for segment in manifest.segments:
        node = segment.ref.node
        if node.origin == "log":
            ends[node.path] = max(segment.sealed_at, ends.get(node.path, segment.sealed_at))
    return dict(sorted(ends.items()))


def _searched(store: Store, cluster: str, sealed: Sealed, nodes: set[str]) -> dict[str, datetime]:
    """From the manifests of batches before the first that noted it."""
    found: dict[str, datetime] = {}
    for number in range(sealed.number, max(0, sealed.number - _BATCHES_BACK), -1):
        if number in sealed.voided:
            continue
        try:
            manifest = Manifest.model_validate_json(store.read(layout.batch_object(cluster, number, "manifest")))
        except ObjectNotFound:
            break
        if manifest.kind == "ingest":
            found = ends_after(found, manifest)
        if nodes and nodes <= found.keys():
            break
    return found


def _held(store: Store, sealed: Sealed | None) -> Iterator[Hold]:
    refs = {name: layout.SegmentRef.from_object(name) for name in (sealed.held if sealed else ())}
    entries = at_once(lambda ref: LedgerEntry.read(store, ref.ledger), refs.values())
    for (name, ref), entry in zip(refs.items(), entries, strict=True):
        if entry is not None and entry.state in ("quarantined", "retry"):
            tables = may_contain(entry.problems)
            wanted = None if tables is None else sorted(tables)
            yield Hold(by=name, until=_begun(ref, entry.sealed_at), since=entry.updated_at, tables=wanted)


def _damaged_parts(sealed: Sealed | None) -> Iterator[Hold]:
    """Segments that grow, of which a part could not be used: their whole files will be looked at from the beginning."""
    for name, mark in sealed.growing.items() if sealed else ():
        if sealed and not mark.sound:
            started = _begun(layout.SegmentRef.from_object(name), sealed.sealed_at)
            yield Hold(by=name, until=started, since=sealed.sealed_at)


def _late(store: Store, cluster: str, sealed: Sealed | None, ends: Mapping[str, datetime]) -> Iterator[Hold]:
    """Segments that have come after younger ones of their node, and no batch has taken in yet; and bytes of segments in conflict."""
    held = set(sealed.held if sealed else ())
    for info in store.list(layout.incoming_prefix(cluster)):
        other = layout.SegmentRef.from_conflict(info.name)
        if other is not None:
            yield Hold(by=info.name, until=_begun(other[0], info.created), since=info.created)
            continue
        try:
            segment = SegmentInput.from_object(info)
            late = is_late(segment, ends)
        except NotASegment:
            continue
        if late and info.name not in held:
            yield Hold(by=info.name, until=begun(segment), since=info.created)


def is_late(segment: SegmentInput, ends: Mapping[str, datetime]) -> bool:
    """Whether younger segments of its node were taken in before: logs were taken for in that it is part of."""
    end = ends.get(segment.ref.node.path)
    return end is not None and segment.sealed_at < end


def begun(segment: SegmentInput) -> datetime:
    """Before that moment its node had not begun the segment."""
    return _begun(segment.ref, segment.sealed_at)


def _begun(ref: layout.SegmentRef, sealed_at: datetime) -> datetime:
    """Before that moment the node had not begun the segment: its ids count up from the time (ms) at which the node was started
    (Cassandra, CommitLogSegment). A name that says nothing of the kind may be of any time."""
    try:
        started = datetime.fromtimestamp(ref.segment.id / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return _EPOCH
    return started if _EPOCH < started < sealed_at else _EPOCH


def _node(path: str) -> layout.NodeName:
    return layout.NodeName(*map(layout.unpart, path.split("/")))
