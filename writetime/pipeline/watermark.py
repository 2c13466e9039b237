"""Up to when the tables are complete: T.

T is log time: every captured mutation that a node appended to its commit log before T, by the node's clock,
is in the sealed batches. So a write that was acknowledged before T at consistency ONE or above by a replica
of a shipping datacenter is in the tables. (ANY may be acknowledged by a hint, and LOCAL_* of another
datacenter by its own replicas.)

Strategy: each shipper signs off that everything its node had synced at a time is in the bucket
(`shippers.sign_off`); what may not have been synced by then is subtracted, and a margin for the clock. The
planner reads the sign-offs *before* it lists the bucket, so whatever they speak of is listed or ingested
already. The sign-off of a node of which anything listed is left out of the batch does not count. T is the
earliest time of the nodes that belong to the ring (`members`): one that has joined holds T until it has signed
off, and one that has left no longer counts. A segment with problems holds the tables that it may concern, until
it is cleared.

The result is pinned in the manifest, corrected in the seal by what went wrong in the batch, and merged into
one document, in which no time ever goes back, not by a late driver, nor by a rebuild. Reads and writes the
bucket; does not know Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from writetime.pipeline.completeness import held_segments
from writetime.pipeline.documents import HeldTable, Hold, Manifest, Sealed, SegmentOutcome, Watermark, may_contain
from writetime.pipeline.node_facts import NodeFacts, SignedOff
from writetime.storage import layout
from writetime.storage.store import Store

CLOCK_MARGIN: Final = timedelta(seconds=2)
"""How far a node's clock may step back without a mutation getting a time that is signed off already."""
_SILENT: Final = timedelta(minutes=1)
"""How much later than a node's last sign-off the others must all have answered without it: four times as long as
between two sign-offs. Gossip takes a while, too."""
_MOST_HELD: Final = 100
"""Held segments whose ledger entries are read; if there are more, all tables count as held."""

_known_holds: dict[tuple[str, int, tuple[str, ...]], list[Hold]] = {}
"""Remembered: while nothing is new, a session asks every few seconds."""

log = structlog.get_logger()


def read(store: Store, cluster: str, sealed: Sealed | None) -> Watermark:
    """The watermark after the last sealed batch."""
    known = Watermark.read(store, layout.complete(cluster)) or Watermark()
    return known if sealed is None or sealed.complete is None else later(sealed.complete, known)


def planned(
    store: Store,
    before: Watermark,
    sealed: Sealed | None,
    facts: Sequence[NodeFacts],
    segments: Collection[str] = (),
    left_out: Collection[str] = (),
    datacenters: Collection[str] | None = None,
) -> Watermark:
    """The watermark of a batch over `segments` (objects of whole ones) that follows `sealed`, if it has no
    problems. `facts` were read before the bucket was listed; of the nodes `left_out` (paths), something
    listed is not in the batch. `datacenters`: those that ship; None: all."""
    signed = {each.node.path: _signed_until(each) for each in facts if each.node.path not in left_out}
    nodes = {path: _latest(before.nodes.get(path), signed.get(path)) for path in sorted(members(facts, datacenters))}
    batch = max(before.batch, sealed.number if sealed is not None else 0)
    found = Watermark(batch=batch, until=_latest(before.until, _earliest(nodes.values())), nodes=nodes)
    # A segment in the batch has been cleared; if it has problems again, the seal says so.
    for hold in _holds(store, sealed, segments):
        found = _with_hold(found, before, hold)
    return found


def members(facts: Iterable[NodeFacts], datacenters: Collection[str] | None = None) -> set[str]:
    """The paths of the nodes that hold T, in the `datacenters` that ship (None: all).

    Every node counts that has a status or is named by another one's last answer, however old that is: an answer
    without it may be wrong, and an old one may be the last of a node that is down. It has left when all other
    members have answered, later than the node itself, and none names it. Who has deleted its objects under nodes/
    has said so as well: it counts then only while others name it.
    """
    known = {each.node.path: each for each in facts if datacenters is None or each.node.datacenter in datacenters}
    answers = {path: each.signed_off for path, each in known.items() if each.signed_off is not None}
    ships = None if datacenters is None else {layout.part(each) for each in datacenters}
    named = frozenset[str]().union(*(answer.members for answer in answers.values()))
    found = {*known, *(path for path in named if ships is None or path.split("/")[1] in ships)}
    for path in _replaced(known.values()):
        del answers[path]
    own = {path: each.signed_off for path, each in known.items()}
    # A node that has left has no say in who else belongs to the ring.
    while left := {path for path in found if _has_left(path, own.get(path), answers, found)}:
        found -= left
        answers = {path: answer for path, answer in answers.items() if path not in left}
    return found


def _has_left(path: str, own: SignedOff | None, answers: Mapping[str, SignedOff], found: Collection[str]) -> bool:
    """Whether all other members answer without the node. `own`: its own last answer; `found`: those that may be
    members."""
    if any(path in answer.members for by, answer in answers.items() if by != path):
        return False
    others = [answer for by, answer in answers.items() if by != path]
    if not others or (own is not None and any(answer.written < own.written + _SILENT for answer in others)):
        return False
    datacenter = path.rsplit("/", 1)[0]
    named = frozenset[str]().union(*(answer.members for answer in others)).intersection(found)
    return named <= answers.keys() and all(datacenter in answer.datacenters for answer in others)


def _replaced(answered: Iterable[NodeFacts]) -> list[str]:
    """Nodes whose answers are not current: others have answered later and have their tokens, of which each belongs
    to one node. So with a replaced node, and with all nodes when an upgrade to 6.0 changes their host ids."""
    times = [(each.signed_off.written, each) for each in answered if each.signed_off is not None]
    newest = max((at for at, _ in times), default=None)
    if newest is None or not (silent := [(at, each) for at, each in times if at < newest - _SILENT and each.tokens]):
        return []
    last = {token: at for at, each in sorted(times, key=lambda pair: pair[0]) for token in each.tokens}
    return [each.node.path for at, each in silent if all(last[token] > at for token in each.tokens)]


def of_seal(manifest: Manifest, outcomes: Iterable[SegmentOutcome]) -> Watermark | None:
    """The watermark with that batch: tables of which it could not use something stay where they were."""
    found, before = manifest.complete, manifest.complete_before or Watermark()
    if found is None:
        return None
    found = found.model_copy(update={"batch": manifest.number})
    at = manifest.created_at
    for outcome in outcomes:
        if outcome.mark is not None and not outcome.mark.sound:
            found = _with_hold(found, before, Hold(by=outcome.object, until=at, since=at, tables=outcome.mark.tables))
        elif outcome.mark is None and outcome.problems:
            tables = may_contain(outcome.problems)
            found = _with_hold(
                found, before, Hold(by=outcome.object, until=at, since=at, tables=None if tables is None else sorted(tables))
            )
    return found


def advance(store: Store, cluster: str, found: Watermark | None) -> Watermark | None:
    """Merge it into the cluster's document, which other drivers write too; returns the document."""
    if found is None:
        return None
    known = Watermark()

    def change(before: Watermark | None) -> Watermark | None:
        nonlocal known
        known = before or Watermark()
        merged = later(known, found)
        return None if merged == known else merged

    merged = Watermark.update(store, layout.complete(cluster), change) or known
    _log_nodes(cluster, known, merged)
    return merged


def later(one: Watermark, other: Watermark) -> Watermark:
    """What both say together: of each table the later time. Nodes and reasons are those of the later
    batch."""
    newer = max(other, one, key=lambda each: (each.batch, each.until is not None, each.until))
    until = _latest(one.until, other.until)
    held = {}
    for table_id in sorted({*one.held, *other.held}):
        at = _latest(one.of(table_id), other.of(table_id))
        if at != until:
            held[table_id] = HeldTable(until=at, by=(newer.held.get(table_id) or one.held.get(table_id) or other.held[table_id]).by)
    return newer.model_copy(update={"until": until, "held": held})


def behind(found: Watermark) -> list[str]:
    """The nodes that hold T: those without a sign-off, otherwise the one with the earliest."""
    silent = [path for path, at in found.nodes.items() if at is None]
    known = [(at, path) for path, at in found.nodes.items() if at is not None]
    return silent or [path for _, path in sorted(known)[:1]]


def _signed_until(facts: NodeFacts) -> datetime | None:
    """Up to when everything that the node logged is in the bucket. A clock that is ahead of the store's does
    not count further than the store's."""
    signed = facts.signed_off
    return None if signed is None else min(signed.at, signed.written) - signed.unsynced - CLOCK_MARGIN


def _with_hold(found: Watermark, before: Watermark, hold: Hold) -> Watermark:
    """The watermark if the tables that the hold concerns stay where they were."""
    if hold.tables is None:
        return before.model_copy(update={"batch": found.batch, "nodes": found.nodes, "by": hold.by})
    held = dict(found.held)
    for table_id in hold.tables:
        if before.of(table_id) != found.until:
            held[table_id] = HeldTable(until=before.of(table_id), by=hold.by)
    return found.model_copy(update={"held": held})


def _holds(store: Store, sealed: Sealed | None, but: Collection[str]) -> list[Hold]:
    """What holds tables as of the last sealed batch, without the segments `but`."""
    if sealed is None:
        return []
    at = sealed.sealed_at
    growing = [Hold(by=name, until=at, since=at, tables=mark.tables) for name, mark in sealed.growing.items() if not mark.sound]
    held = tuple(name for name in sealed.held if name not in but)
    if len(held) > _MOST_HELD:
        return [*growing, Hold(by=held[0], until=at, since=at)]
    # Those that the last batch has read again may have other problems than before.
    key = store.url, sealed.number if any(each.object in held for each in sealed.segments) else 0, held
    if held and key not in _known_holds:
        _known_holds.clear()
        _known_holds[key] = held_segments(store, sealed, but)
    return [*growing, *(_known_holds[key] if held else ())]


def _latest(*times: datetime | None) -> datetime | None:
    return max((at for at in times if at is not None), default=None)


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    """None if one is missing, or if there are none."""
    found = list(times)
    return min(at for at in found if at is not None) if found and None not in found else None


def _log_nodes(cluster: str, before: Watermark, now: Watermark) -> None:
    for path in sorted(before.nodes.keys() - now.nodes.keys()):
        log.info("node has left the ring and no longer holds completeness", cluster=cluster, node=path)
    for path in sorted(now.nodes.keys() - before.nodes.keys()):
        log.info("node holds completeness from now on", cluster=cluster, node=path)
