"""Up to which time the logs of each table are complete, and the purge clock that follows from it.

Strategy: a node's log arrives segment by segment. Everything that the node logged before it finished its
last ingested segment is merged, except data in *held* segments. A hold affects the tables of which the
segment may contain unmerged data, or all tables if these are unknown, as in a damaged range. The time of a
table is the earliest of all nodes and of all holds that affect it. A tombstone may be purged when the
table's gc_grace is over *and* all logs are complete up to its deletion: then no write can arrive that it has
to supersede.

A node that has left delays purging until its objects under nodes/ are deleted; a held segment, until it is
cleared or released (`writetime quarantine release`). A released segment is read into shadow namespaces only.

Reads the bucket; does not know Spark or the state.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
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
from writetime.storage.store import Store, facts

_BATCHES_BACK: Final = 500
"""Maximum number of manifests searched for the last segment of each node, where no batch has recorded it."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """A table's purge clock: tombstones from before the second `before` may be purged. `wanted`: the limit
    by gc_grace alone; `hold`: what delays it."""

    before: int
    wanted: int
    hold: Hold | None = None


def purge_clock(table: Table, now: int, holds: Iterable[Hold]) -> Clock:
    """The table's clock at `now` (s): min(now - gc_grace, the time up to which all logs are complete)."""
    wanted = purge_before(now, table.gc_grace_seconds)
    first = min((hold for hold in holds if hold.concerns(table.id)), key=lambda hold: (hold.until, hold.by), default=None)
    until = wanted if first is None else int(first.until.timestamp())
    return Clock(wanted, wanted) if until >= wanted else Clock(until, wanted, first)


def held_back(tables: Iterable[Table], manifest: Manifest) -> list[HeldBack]:
    """The tables whose purge maintenance has delayed, and why; by label."""
    found = []
    for table in tables:
        clock = purge_clock(table, manifest.now, manifest.holds)
        if clock.hold is not None:
            until, wanted = (datetime.fromtimestamp(at, UTC) for at in (clock.before, clock.wanted))
            hold = clock.hold
            found.append(HeldBack(table=table.label, by=hold.by, until=until, wanted=wanted, since=hold.since))
    return sorted(found, key=lambda each: each.table)


def holds(store: Store, cluster: str, sealed: Sealed | None) -> list[Hold]:
    """Everything that makes logs incomplete, as of the last sealed batch."""
    ends = node_ends(store, cluster, sealed)
    nodes = [Hold(by=layout.node_documents(_node(path)), until=at, since=at) for path, at in ends.items()]
    return [*nodes, *_held(store, sealed), *_damaged_parts(sealed), *_late(store, cluster, sealed, ends)]


def held_segments(store: Store, sealed: Sealed, but: Container[str]) -> list[Hold]:
    """The segments with problems as of the last sealed batch, without `but`."""
    return list(_held(store, sealed.model_copy(update={"held": [name for name in sealed.held if name not in but]})))


def node_ends(store: Store, cluster: str, sealed: Sealed | None) -> dict[str, datetime]:
    """When each node finished its last ingested segment, by `NodeName.path`.

    Nodes are those with an object under nodes/, or all if there is none: a node without one that has left
    delays nothing."""
    if sealed is None:
        return {}
    found = (layout.NodeName.of_facts(info.name) for info in store.names(layout.nodes_prefix(cluster)))
    nodes = {node.path for node in found if node is not None}
    document = LocalDocument.read(store, layout.batch_object(cluster, sealed.number, "local")) or LocalDocument()
    ends = document.ends or _searched(store, cluster, sealed, nodes)
    return {path: at for path, at in sorted(ends.items()) if path in nodes or not nodes}


def ends_after(known: Mapping[str, datetime], manifest: Manifest) -> dict[str, datetime]:
    """`node_ends` of all nodes after that batch."""
    ends = dict(known)
    for segment in manifest.segments:
        node = segment.ref.node
        if node.origin == "log":
            ends[node.path] = max(segment.sealed_at, ends.get(node.path, segment.sealed_at))
    return dict(sorted(ends.items()))


def _searched(store: Store, cluster: str, sealed: Sealed, nodes: set[str]) -> dict[str, datetime]:
    """The same from manifests of batches that have not recorded it."""
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
    """Growing segments with a damaged part: their whole files will be read from the beginning, all tables in
    them again."""
    for name, mark in sealed.growing.items() if sealed else ():
        if sealed and not mark.sound:
            started = _begun(layout.SegmentRef.from_object(name), sealed.sealed_at)
            yield Hold(by=name, until=started, since=sealed.sealed_at)


def _late(store: Store, cluster: str, sealed: Sealed | None, ends: Mapping[str, datetime]) -> Iterator[Hold]:
    """Segments that arrived after younger ones of their node and are not ingested yet; and segments in
    conflict."""
    held = set(sealed.held if sealed else ())
    waiting = []
    for each in store.names(layout.incoming_prefix(cluster)):
        other = layout.SegmentRef.from_conflict(each.name)
        if other is not None:
            yield Hold(by=each.name, until=_begun(other[0], each.created), since=each.created)
        elif each.name not in held:
            waiting.append(each)
    for info in facts(store, waiting):
        try:
            segment = SegmentInput.from_object(info)
            late = is_late(segment, ends)
        except NotASegment:
            continue
        if late:
            yield Hold(by=info.name, until=begun(segment), since=info.created)


def is_late(segment: SegmentInput, ends: Mapping[str, datetime]) -> bool:
    """Whether younger segments of its node were ingested before."""
    end = ends.get(segment.ref.node.path)
    return end is not None and segment.sealed_at < end


def begun(segment: SegmentInput) -> datetime:
    """The earliest time at which its node may have begun the segment."""
    return _begun(segment.ref, segment.sealed_at)


def _begun(ref: layout.SegmentRef, sealed_at: datetime) -> datetime:
    """The earliest time at which the node may have begun the segment: ids count up from the node's start
    time in ms (Cassandra, CommitLogSegment). For other names, the epoch."""
    try:
        started = datetime.fromtimestamp(ref.segment.id / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return _EPOCH
    return started if _EPOCH < started < sealed_at else _EPOCH


def _node(path: str) -> layout.NodeName:
    return layout.NodeName(*map(layout.unpart, path.split("/")))
