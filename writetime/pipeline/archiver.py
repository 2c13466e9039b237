"""After the seal: move what was taken in to the archive, and write every segment's ledger entry.

Strategy: per segment copy, compare, note, delete, in that order, each step idempotent, so that a rerun from any point of death
ends the same. A lease makes one archiver at a time; one that was held up and lost it stops at its next segment, and what it does until then
changes nothing: the ledger only goes forward, and who finds a segment gone looks into the archive again before it is noted as lost. The
archive is never overwritten. A segment with problems stays where it is and is noted as quarantined. Of one that grows,
only the ledger is written; its parts go when its whole file is archived, since nothing needs them any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Literal

from writetime.errors import BatchError, ChecksumMismatch, LeaseLost, ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import (
    Contents,
    LedgerEntry,
    Manifest,
    Problem,
    Release,
    Sealed,
    SegmentInput,
    SegmentOutcome,
    SegmentState,
)
from writetime.storage import layout, segment_object, segment_parts
from writetime.storage.concurrency import at_once
from writetime.storage.lease import Lease
from writetime.storage.store import ObjectInfo, Store

Moved = Literal["archived", "quarantined", "growing"]
_LEASE = 15.0
"""Seconds after which another archiver takes over from one that is dead or held up."""


def archive(store: Store, cluster: str, number: int) -> dict[str, Moved]:
    """Archive the segments of a sealed batch. Returns what became of each object; a second call changes nothing. Waits for another archiver
    of the batch; LeaseLost (retriable) if one has taken over from this one.

    ChecksumMismatch when the archive already holds other bytes under a segment's name: both are kept, a person has to look.
    """
    sealed = Sealed.read(store, layout.batch_object(cluster, number, "sealed"))
    if sealed is None:
        raise BatchError(
            "is not sealed",
            operation="archive a batch",
            obj=layout.batch_object(cluster, number, "sealed"),
            hint="Run the batch to its end first; clear its ingest task.",
        )
    if sealed.void is not None:
        # Its segments come in again.
        return {}
    done = layout.batch_object(cluster, number, "archived")
    if store.head(done):
        return {}
    with Lease(store, layout.batch_object(cluster, number, "archiver"), seconds=_LEASE) as lease:
        if store.head(done):
            return {}
        moved = _settle_all(store, cluster, sealed, lease)
        lease.check()
        store.put(done, b"{}\n")
    return moved


def _settle_all(store: Store, cluster: str, sealed: Sealed, lease: Lease) -> dict[str, Moved]:
    manifest = Manifest.model_validate_json(store.read(layout.batch_object(cluster, sealed.number, "manifest")))
    if manifest.kind != "ingest":
        return {}
    outcomes = {outcome.object: outcome for outcome in sealed.segments}

    def settle(segment: SegmentInput) -> Moved:
        lease.check()
        return _settle(store, sealed.number, segment, outcomes[segment.object])

    # Each segment has objects of its own. Where one cannot be archived, those that are under way still are.
    moved = at_once(settle, manifest.segments)
    return {segment.object: what for segment, what in zip(manifest.segments, moved, strict=True)}


def sweep(store: Store, cluster: str) -> int:
    """Remove the parts of segments whose whole file is in the archive: those that came after it, or were left over; bytes freed."""
    freed = 0
    for ref, found in groupby(segment_parts.found(store, layout.parts_prefix(cluster)), key=itemgetter(0)):
        entry = LedgerEntry.read(store, ref.ledger)
        if entry is not None and (entry.state == "expired" or _is_archived(store, entry)):
            freed += _remove_parts(store, (part for _, part in found))
    return freed


def _is_archived(store: Store, entry: LedgerEntry) -> bool:
    return (
        entry.state == "archived"
        and entry.archived_as is not None
        and segment_object.held(store, layout.plain(entry.archived_as)) is not None
    )


def mark_for_retry(store: Store, object_name: str) -> LedgerEntry:
    """A person has cleared a quarantined segment: let the next batch take it in again."""
    ref = layout.SegmentRef.from_object(object_name)
    entry = LedgerEntry.read(store, ref.ledger)
    if entry is None:
        raise ObjectNotFound("the segment has no ledger entry", operation="clear a segment", obj=ref.ledger)
    info = store.head(object_name)
    if info is None:
        raise ObjectNotFound("the segment is not there", operation="clear a segment", obj=object_name)
    segment = entry.noted(SegmentInput.from_object(info))
    # Its problems stay noted: all else in it was folded, and what beat that may be purged by now.
    outcome = SegmentOutcome(object=object_name, frames=entry.frames, problems=entry.problems)
    # First: without it planning would not look at the ledger's entry.
    store.put(ref.retry, b"{}\n")
    return _note(store, segment, "retry", entry.batch, outcome, None)


def release(store: Store, cluster: str, object_name: str, reason: str) -> Release:
    """A person gives up what could not be used of a held segment, so that it holds back no purge: move it to the archive as it is.

    From then on only a replay reads it: into a fresh namespace whole, into the live tables without what purges may have beaten. Each step
    can be repeated. ObjectNotFound if no batch holds it; BatchError if the next batch is to take it in again."""
    operation, ref = "release a segment", layout.SegmentRef.from_object(object_name)
    entry = LedgerEntry.read(store, ref.ledger)
    if entry is None or ref.node.cluster != cluster:
        raise ObjectNotFound("the segment has no ledger entry", operation=operation, obj=ref.ledger)
    if (done := Release.read(store, ref.released)) is not None:
        return done
    if entry.state == "retry":
        raise BatchError("the next batch takes it in again", operation=operation, obj=object_name, hint="Look again after that batch.")
    target = entry.archived_as
    if entry.state == "quarantined":
        target = _archive_as_it_is(store, entry).name
    if target is None or entry.state not in ("quarantined", "archived") or not entry.problems:
        raise BatchError(f"no batch holds it: it is {entry.state}", operation=operation, obj=object_name)
    done = Release(object=object_name, archived_as=target, reason=reason, released_at=datetime.now(UTC))
    store.put(ref.released, done.to_bytes())
    return done


def released(store: Store, cluster: str) -> frozenset[str]:
    """Objects under cdc/ and frames/ that people have released; for the status and for seals, which hold them no longer."""
    found = (Release.read(store, info.name) for info in store.list(layout.released_prefix(cluster)))
    return frozenset(each.object for each in found if each is not None)


def _archive_as_it_is(store: Store, entry: LedgerEntry) -> ObjectInfo:
    """With its problems noted, so that it is not taken for one that was folded whole."""
    info = store.head(entry.object)
    if info is None:
        raise ObjectNotFound("the segment is not there", operation="release a segment", obj=entry.object)
    segment = entry.noted(SegmentInput.from_object(info))
    held = _archived(store, segment)
    if held is None:
        raise BatchError("was replaced meanwhile", operation="release a segment", obj=entry.object, retriable=True)
    outcome = SegmentOutcome(object=segment.object, frames=entry.frames, problems=entry.problems)
    _note(store, segment, "archived", entry.batch, outcome, held)
    _remove_incoming(store, segment)
    _remove_parts(store, segment_parts.of(store, segment.ref))
    return held


def _settle(store: Store, batch: int, segment: SegmentInput, outcome: SegmentOutcome) -> Moved:
    if segment.grows:
        _note(store, segment, "growing", batch, outcome, None)
        return "growing"
    if not outcome.ok:
        _note(store, segment, "quarantined", batch, outcome, None)
        return "quarantined"
    held = _archived(store, segment)
    if held is None:
        _note(store, segment, "quarantined", batch, outcome.model_copy(update={"problems": [_replaced(segment)]}), None)
        return "quarantined"
    _note(store, segment, "archived", batch, outcome, held)
    _remove_incoming(store, segment)
    _remove_parts(store, segment_parts.of(store, segment.ref))
    return "archived"


def _archived(store: Store, segment: SegmentInput) -> ObjectInfo | None:
    """Where the archive holds the very bytes that the batch read, now or since an earlier attempt; None if they are nowhere any more.

    Other bytes under the segment's name stay what they are: these get a name with their checksum, and nothing else waits for a person.
    """
    for target in (segment.ref.archived(segment.sealed_at), segment.ref.archived(segment.sealed_at, crc32c=segment.crc32c)):
        # Once more: another archiver may have moved it between the two looks.
        held = segment_object.held(store, target) or _copy(store, segment, target) or segment_object.held(store, target)
        if held is None:
            return None
        if segment_object.stands_for(held, segment_object.Content(segment.size, segment.crc32c)):
            return held
    raise ChecksumMismatch(
        "the archive holds other bytes of the same checksum",
        operation="archive a segment",
        obj=target,
        hint=f"Compare it with {segment.object}; nothing was deleted.",
    )


def _copy(store: Store, segment: SegmentInput, target: str) -> ObjectInfo | None:
    """What the archive holds after copying; None if the object is no longer the one that the batch read."""
    source = store.head(segment.object)
    if source is None or segment_object.content_of(source) != (segment.size, segment.crc32c):
        return None
    try:
        return store.copy(segment.object, target, if_generation=0)
    except PreconditionFailed:
        return store.head(target)


def _replaced(segment: SegmentInput) -> Problem:
    message = "replaced or removed after the batch had read it: what was read is in the tables, but not in the archive"
    return Problem(kind="replaced", position=0, size=segment.size, message=message)


def _remove_parts(store: Store, found: Iterable[segment_parts.Part]) -> int:
    """Bytes freed."""
    freed = 0
    for part in list(found):
        try:
            store.delete(part.info.name, if_generation=part.info.generation)
            freed += part.info.size
        except (ObjectNotFound, PreconditionFailed):
            # Somebody else sweeps as well.
            continue
    return freed


def _remove_incoming(store: Store, segment: SegmentInput) -> None:
    found = store.head(segment.object)
    if found is None or segment_object.content_of(found) != (segment.size, segment.crc32c):
        return
    try:
        store.delete(segment.object, if_generation=found.generation)
    except (ObjectNotFound, PreconditionFailed):
        # Gone already, or replaced by somebody after it was read: a replacement belongs to the next batch.
        return


def _note(
    store: Store, segment: SegmentInput, state: SegmentState, batch: int, outcome: SegmentOutcome, held: ObjectInfo | None
) -> LedgerEntry:
    name = segment.ref.ledger
    before = store.head(name)
    old = LedgerEntry.model_validate_json(store.read(name, generation=before.generation)) if before else None
    if old and (old.batch > batch or (old.batch == batch and old.state in (state, "archived", "retry"))):
        # Noted already; by somebody who has gone on since, if this is late.
        return old
    # A segment that grows from batch to batch is one step.
    moved_on = old is not None and not (old.state == state == "growing")
    step = {"state": old.state, "batch": old.batch, "updated_at": old.updated_at.isoformat()} if old and moved_on else None
    # A segment that was put again since a key was erased from it is the one that the archive holds.
    size, checksum = segment_object.content_of(held) if held else (segment.size, segment.crc32c)
    original = segment_object.original_of(held) if held else None
    entry = LedgerEntry(
        object=segment.object,
        state=state,
        size=size,
        crc32c=checksum,
        erased_from=Contents(**original._asdict()) if original else None,
        sealed_at=segment.sealed_at,
        ending=segment.ending,
        batch=batch,
        frames=outcome.mark.frames if outcome.mark else outcome.frames + outcome.skipped,
        position=outcome.mark.position if outcome.mark else None,
        problems=outcome.problems,
        archived_as=held.name if held else None,
        stored=held.size if held and layout.is_packed(held.name) else None,
        updated_at=datetime.now(UTC),
        history=[*(old.history if old else []), *([step] if step else [])],
    )
    try:
        store.put(name, entry.to_bytes(), if_generation=before.generation if before else 0)
    except PreconditionFailed as error:
        raise LeaseLost(
            "another archiver has noted it meanwhile", operation="write a ledger entry", obj=name, hint="Archive the batch again."
        ) from error
    return entry
