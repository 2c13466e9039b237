"""After the seal: move the ingested segments to the archive, and write each segment's ledger entry.

Strategy: for each segment copy, compare, update the ledger, delete, in this order. Each step is idempotent,
so a rerun after a crash at any point has the same result. A lease allows one archiver at a time. An archiver
that was delayed and lost its lease stops at its next segment; what it does until then is harmless, because
the ledger only goes forward and a missing segment is looked up in the archive again before it is recorded as
lost. The archive is never overwritten. A segment with problems stays where it is and is recorded as
quarantined. For a growing segment, only the ledger is written; its parts are deleted when the whole file is
archived.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Literal

from writetime.errors import BatchError, ChecksumMismatch, LeaseLost, ObjectNotFound, PreconditionFailed
from writetime.pipeline import watermark
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
from writetime.pipeline.node_facts import delete_outdated
from writetime.pipeline.part_merging import merge_parts
from writetime.pipeline.planner import expect_settled, history
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.storage import layout, segment_object, segment_parts
from writetime.storage.concurrency import at_once
from writetime.storage.lease import Lease
from writetime.storage.store import Listed, ObjectInfo, Store

Moved = Literal["archived", "quarantined", "growing"]
_LEASE = 15.0
"""Seconds after which another archiver takes over from one that crashed or hangs."""
_LISTED_ALONE = 10
"""Segments of a batch up to which the parts of each are listed alone."""
_LISTED_TOGETHER = 1000
"""Parts for each segment of the batch up to which all parts are listed: a page lists as many as a listing of one."""
_MERGED_EVERY = 20
"""Batches after which parts are merged: to find out how many there are, all have to be listed."""


def archive(store: Store, cluster: str, number: int) -> dict[str, Moved]:
    """Archive the segments of a sealed batch. Returns the new state of each object; a second call changes
    nothing. Waits for another archiver of the batch; raises LeaseLost (retriable) if another archiver took
    over.

    Raises ChecksumMismatch if the archive holds different bytes under a segment's name: both are kept, and
    an operator has to compare them."""
    sealed = Sealed.read(store, layout.batch_object(cluster, number, "sealed"))
    if sealed is None:
        raise BatchError(
            "the batch is not sealed",
            operation="archive a batch",
            obj=layout.batch_object(cluster, number, "sealed"),
            hint="Finish the batch first: clear its ingest task.",
        )
    if sealed.void is not None:
        # The next batch ingests its segments again.
        return {}
    done = layout.batch_object(cluster, number, "archived")
    if store.head(done):
        return {}
    with Lease(store, layout.batch_object(cluster, number, "archiver"), seconds=_LEASE) as lease:
        if store.head(done):
            return {}
        moved = _settle_all(store, cluster, sealed, lease)
        lease.check()
        watermark.advance(store, cluster, sealed.complete)
        if number % _MERGED_EVERY == 0:
            merge_parts(store, cluster, sealed.growing)
        store.put(done, b"{}\n")
    delete_outdated(store, cluster)
    return moved


def archive_last(store: Store, cluster: str) -> dict[str, Moved]:
    """Archive the last sealed batch, in case its run was interrupted before that. Planning requires it: a
    segment that is still under cdc/ would be ingested again, and would be missing from a replay.

    Returns and raises as `archive`; also raises as `planner.expect_settled`."""
    past = history(store, cluster)
    expect_settled(store, cluster, past, "archive the last batch")
    return archive(store, cluster, past.sealed.number) if past.sealed else {}


def _settle_all(store: Store, cluster: str, sealed: Sealed, lease: Lease) -> dict[str, Moved]:
    manifest = Manifest.model_validate_json(store.read(layout.batch_object(cluster, sealed.number, "manifest")))
    if manifest.kind != "ingest":
        return {}
    outcomes = {outcome.object: outcome for outcome in sealed.segments}

    parts = _listed_parts(store, cluster, manifest.segments)

    def settle(segment: SegmentInput) -> Moved:
        lease.check()
        return _settle(store, sealed.number, segment, outcomes[segment.object], None if parts is None else parts.get(segment.ref, []))

    # Segments are independent: if one fails, those in progress are still archived.
    moved = at_once(settle, manifest.segments)
    return {segment.object: what for segment, what in zip(manifest.segments, moved, strict=True)}


def _listed_parts(
    store: Store, cluster: str, segments: Iterable[SegmentInput]
) -> dict[layout.SegmentRef, list[segment_parts.Part[Listed]]] | None:
    """The parts of these segments, by one listing; None if there are so many parts that each segment's are better
    listed alone."""
    wanted = {segment.ref for segment in segments if not segment.grows}
    if len(wanted) < _LISTED_ALONE:
        return None
    found: dict[layout.SegmentRef, list[segment_parts.Part[Listed]]] = {}
    for number, (ref, part) in enumerate(segment_parts.found(store, layout.parts_prefix(cluster))):
        if number >= _LISTED_TOGETHER * len(wanted):
            return None
        if ref in wanted:
            found.setdefault(ref, []).append(part)
    return found


def sweep(store: Store, cluster: str) -> int:
    """Delete the leftover parts of segments whose whole file is archived; returns the bytes freed."""
    parts = segment_parts.found(store, layout.parts_prefix(cluster))
    found = [(ref, [part for _, part in some]) for ref, some in groupby(parts, key=itemgetter(0))]

    def remove(each: tuple[layout.SegmentRef, list[segment_parts.Part[Listed]]]) -> int:
        entry = LedgerEntry.read(store, each[0].ledger)
        leftover = entry is not None and (entry.state == "expired" or _is_archived(store, entry))
        return _remove_parts(store, each[1]) if leftover else 0

    return sum(at_once(remove, found))


def _is_archived(store: Store, entry: LedgerEntry) -> bool:
    return (
        entry.state == "archived"
        and entry.archived_as is not None
        and segment_object.held(store, layout.plain(entry.archived_as)) is not None
    )


def mark_for_retry(store: Store, object_name: str) -> LedgerEntry:
    """Let the next batch ingest a quarantined segment again, after an operator has cleared it."""
    ref = layout.SegmentRef.from_object(object_name)
    entry = LedgerEntry.read(store, ref.ledger)
    if entry is None:
        raise ObjectNotFound("the segment has no ledger entry", operation="clear a segment", obj=ref.ledger)
    info = store.head(object_name)
    if info is None:
        raise ObjectNotFound("the segment does not exist", operation="clear a segment", obj=object_name)
    segment = entry.noted(SegmentInput.from_object(info))
    # Its problems stay recorded: the rest was merged, and what superseded it may be purged by now.
    outcome = SegmentOutcome(object=object_name, frames=entry.frames, problems=entry.problems)
    # Written first: without it, planning does not read the ledger entry.
    store.put(ref.retry, b"{}\n")
    return _note(store, segment, "retry", entry.batch, outcome, None)


def whereabouts(store: Store, cluster: str, object_name: str) -> str | None:
    """What became of a segment that was held, for people; None while it is where it was. A failed task of an earlier batch
    may be looked at again long after another one was cleared."""
    if store.head(object_name) is not None:
        return None
    ref = layout.SegmentRef.from_object(object_name)
    entry = LedgerEntry.read(store, ref.ledger)
    if entry is None or entry.state not in ("archived", "expired"):
        return None
    if (released := Release.read(store, ref.released)) is not None:
        return f"It was released at {released.released_at:%Y-%m-%dT%H:%M:%SZ} ({released.reason}), and is {released.archived_as}."
    kept = f"is {entry.archived_as}" if entry.state == "archived" else "was deleted after archive.keep_days"
    return f"Batch {entry.batch} of {cluster} has read it, and it {kept} since {entry.updated_at:%Y-%m-%dT%H:%M:%SZ}."


def release(store: Store, cluster: str, object_name: str, reason: str) -> Release:
    """Archive a held segment as it is, by an operator's decision, so that it no longer delays purging.

    Afterwards only a replay reads it: completely into a shadow namespace; into the live tables without what
    may have been purged. Each step is repeatable. Raises ObjectNotFound if no batch holds the segment;
    BatchError if the next batch is to ingest it again."""
    operation, ref = "release a segment", layout.SegmentRef.from_object(object_name)
    entry = LedgerEntry.read(store, ref.ledger)
    if entry is None or ref.node.cluster != cluster:
        raise ObjectNotFound("the segment has no ledger entry", operation=operation, obj=ref.ledger)
    if (done := Release.read(store, ref.released)) is not None:
        return done
    if entry.state == "retry":
        raise BatchError("the next batch ingests it again", operation=operation, obj=object_name, hint="Check again after that batch.")
    target = entry.archived_as
    if entry.state == "quarantined":
        target = _archive_as_it_is(store, entry).name
    if target is None or entry.state not in ("quarantined", "archived") or not entry.problems:
        raise BatchError(f"the segment is not held: its state is {entry.state}", operation=operation, obj=object_name)
    _remove_released(store, ref, target)
    done = Release(object=object_name, archived_as=target, reason=reason, released_at=datetime.now(UTC))
    store.put(ref.released, done.to_bytes())
    return done


def _archive_as_it_is(store: Store, entry: LedgerEntry) -> ObjectInfo:
    """Archive the segment with its problems recorded, so that it does not count as fully merged."""
    info = store.head(entry.object)
    if info is None:
        raise ObjectNotFound("the segment does not exist", operation="release a segment", obj=entry.object)
    segment = entry.noted(SegmentInput.from_object(info))
    held = _archived(store, segment)
    if held is None:
        raise BatchError("the segment was replaced in the meantime", operation="release a segment", obj=entry.object, retriable=True)
    outcome = SegmentOutcome(object=segment.object, frames=entry.frames, problems=entry.problems)
    _note(store, segment, "archived", entry.batch, outcome, held)
    return held


def _remove_released(store: Store, ref: layout.SegmentRef, target: str) -> None:
    """Remove what is archived as `target` from where shippers put it. An earlier attempt may have been interrupted before this."""
    left, held = store.head(ref.incoming), segment_object.held(store, layout.plain(target))
    if left is not None and held is not None and segment_object.stands_for(held, segment_object.content_of(left)):
        _remove_incoming(store, SegmentInput.from_object(left))
    _remove_parts(store, _parts_of(store, ref))


def _settle(
    store: Store, batch: int, segment: SegmentInput, outcome: SegmentOutcome, parts: list[segment_parts.Part[Listed]] | None = None
) -> Moved:
    """`parts`: those of the segment, if they were listed."""
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
    _remove_parts(store, _parts_of(store, segment.ref) if parts is None else parts)
    return "archived"


def _parts_of(store: Store, ref: layout.SegmentRef) -> list[segment_parts.Part[Listed]]:
    return [part for _, part in segment_parts.found(store, f"{ref.growing}/")]


def _archived(store: Store, segment: SegmentInput) -> ObjectInfo | None:
    """The archived object with the bytes that the batch read, copied now or by an earlier attempt; None if
    they do not exist any more.

    If other bytes are archived under the segment's name, they stay, and these bytes get a name with their
    checksum."""
    for target in (segment.ref.archived(segment.sealed_at), segment.ref.archived(segment.sealed_at, crc32c=segment.crc32c)):
        # A packed one first: a copy beside it would come back to life. Look again after the copy: another archiver
        # may have moved the segment in between.
        held = store.head(layout.packed(target)) or _copy(store, segment, target) or segment_object.held(store, target)
        if held is None:
            return None
        if segment_object.stands_for(held, segment_object.Content(segment.size, segment.crc32c)):
            return held
    raise ChecksumMismatch(
        "the archive holds different bytes with the same checksum",
        operation="archive a segment",
        obj=target,
        hint=f"Compare it with {segment.object}; nothing was deleted.",
    )


def _copy(store: Store, segment: SegmentInput, target: str) -> ObjectInfo | None:
    """The archived object after copying; None if the source is no longer the object that the batch read."""
    source = store.head(segment.object)
    if source is None or segment_object.content_of(source) != (segment.size, segment.crc32c):
        return None
    try:
        return store.copy(segment.object, target, if_generation=0)
    except PreconditionFailed:
        return store.head(target)


def _replaced(segment: SegmentInput) -> Problem:
    message = "replaced or deleted after the batch read it: its content is in the tables, but not in the archive"
    return Problem(kind=QuarantineKind.REPLACED, position=0, size=segment.size, message=message)


def _remove_parts(store: Store, found: Iterable[segment_parts.Part[Listed]]) -> int:
    """Returns their bytes. Whatever has the name of a part of an archived segment is of no use any more."""
    parts = [part.info for part in found]
    if parts:
        store.discard(each.name for each in parts)
    return sum(each.size for each in parts)


def _remove_incoming(store: Store, segment: SegmentInput) -> None:
    # Usually it is still what was pinned, and one request does.
    with suppress(ObjectNotFound, PreconditionFailed):
        store.delete(segment.object, if_generation=segment.generation)
        return
    found = store.head(segment.object)
    if found is None or segment_object.content_of(found) != (segment.size, segment.crc32c):
        return
    try:
        store.delete(segment.object, if_generation=found.generation)
    except (ObjectNotFound, PreconditionFailed):
        # Deleted already, or replaced after it was read: a replacement belongs to the next batch.
        return


def _note(
    store: Store, segment: SegmentInput, state: SegmentState, batch: int, outcome: SegmentOutcome, held: ObjectInfo | None
) -> LedgerEntry:
    name = segment.ref.ledger
    if segment.tail is None and segment.folded_but is None:
        # Most segments have no entry, and then there is nothing to look at.
        with suppress(PreconditionFailed):
            created = _entry(segment, state, batch, outcome, held, None)
            store.put(name, created.to_bytes(), if_generation=0)
            return created
    before = store.head(name)
    old = LedgerEntry.model_validate_json(store.read(name, generation=before.generation)) if before else None
    if old and (old.batch > batch or (old.batch == batch and old.state in (state, "archived", "retry"))):
        # Recorded already, or a later batch has changed it.
        return old
    entry = _entry(segment, state, batch, outcome, held, old)
    try:
        store.put(name, entry.to_bytes(), if_generation=before.generation if before else 0)
    except PreconditionFailed as error:
        raise LeaseLost(
            "another archiver has changed the ledger entry", operation="write a ledger entry", obj=name, hint="Archive the batch again."
        ) from error
    return entry


def _entry(
    segment: SegmentInput, state: SegmentState, batch: int, outcome: SegmentOutcome, held: ObjectInfo | None, old: LedgerEntry | None
) -> LedgerEntry:
    """The next entry after `old`."""
    # A segment that grows over several batches is one step of the history.
    moved_on = old is not None and not (old.state == state == "growing")
    step = {"state": old.state, "batch": old.batch, "updated_at": old.updated_at.isoformat()} if old and moved_on else None
    # If a key was erased from the archived segment, the entry describes the archived bytes.
    size, checksum = segment_object.content_of(held) if held else (segment.size, segment.crc32c)
    original = segment_object.original_of(held) if held else None
    return LedgerEntry(
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
