"""Segments in conflict: the store has, or had, different bytes under their names. No batch ingests them
until an operator has decided.

Strategy: a node creates objects and never overwrites one. If different bytes exist under a segment's name,
it ships its own to `cdc/<node>/conflict-<crc32c>/`. If bytes of an archived segment arrive again, they are
compared with the ledger: the same bytes are deleted, because the archive has them; different ones are in
conflict, too. Planning records each conflict, create-only, and skips the segment from then on, so that
conflicts do not delay other segments. `keep` records which bytes count and then moves the others to
`rejected/`, where they stay; each step is repeatable. The chosen bytes are ingested with the next batch.

Does not know Spark. The cause of conflicts is in `shippers.upload`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from writetime.errors import BatchError, NotASegment, ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import Document, LedgerEntry, SegmentInput
from writetime.pipeline.newest_segments import is_newer
from writetime.storage import layout, segment_object
from writetime.storage.concurrency import at_once
from writetime.storage.store import Listed, ObjectInfo, Store


class Conflict(Document):
    """A segment with different contents. `object`: its name under cdc/; `kept`: size and CRC32C of the bytes
    that count; null until an operator has decided."""

    object: str
    found_at: datetime
    kept: tuple[int, int] | None = None
    reason: str = ""
    decided_at: datetime | None = None

    @property
    def ref(self) -> layout.SegmentRef:
        return layout.SegmentRef.from_object(self.object)

    def admits(self, segment: SegmentInput) -> bool:
        """Whether a batch may ingest this content of the segment."""
        return self.kept == (segment.size, segment.crc32c)


def known(store: Store, cluster: str) -> dict[str, Conflict]:
    """All recorded conflicts, including decided ones, by the segments' names under cdc/."""
    found = at_once(lambda each: Conflict.read(store, each.name), store.names(layout.conflicts_prefix(cluster)))
    return {each.object: each for each in found if each is not None}


def undecided(store: Store, cluster: str, listed: Iterable[Listed] | None = None) -> list[Conflict]:
    """Undecided conflicts, by name: recorded by a planner, or found among the objects `listed` (default:
    all) under cdc/."""
    found = known(store, cluster)
    for info in store.names(layout.incoming_prefix(cluster)) if listed is None else listed:
        name = shipped(info.name)
        if name is not None and name not in found:
            found[name] = Conflict(object=name, found_at=info.created)
    return [found[name] for name in sorted(found) if found[name].kept is None]


def expect_new(
    store: Store,
    segments: Iterable[SegmentInput],
    decided: Mapping[str, Conflict],
    now: datetime,
    newest: Mapping[str, int] | None = None,
) -> list[SegmentInput]:
    """The segments that a batch has to ingest. If a segment was archived before, the same bytes are deleted,
    and different ones are recorded as in conflict, unless an operator has chosen them (`decided`). Those newer than
    `newest` were not archived (`writetime.pipeline.newest_segments`)."""
    wanted = list(segments)
    entries = at_once(lambda each: None if is_newer(each.ref, newest) else LedgerEntry.read(store, each.ref.ledger), wanted)
    found = []
    for segment, entry in zip(wanted, entries, strict=True):
        conflict = decided.get(segment.object)
        if entry is None or entry.state not in ("archived", "expired") or (conflict is not None and conflict.admits(segment)):
            found.append(segment)
        elif (segment.size, segment.crc32c) not in _contents(entry):
            note(store, segment.object, now)
        elif entry.state == "expired" or _is_archived(store, entry):
            _remove(store, segment)
        else:
            # A lifecycle rule of the bucket has deleted it: this is the only copy.
            found.append(segment)
    return found


def _contents(entry: LedgerEntry) -> list[tuple[int, int]]:
    """Size and CRC32C of the archived bytes, and of the original ones if a key was erased."""
    erased = entry.erased_from
    return [(entry.size, entry.crc32c), *([(erased.size, erased.crc32c)] if erased is not None else [])]


def note(store: Store, name: str, now: datetime) -> None:
    """Record the segment under cdc/ as in conflict, unless it is recorded already."""
    conflict = Conflict(object=name, found_at=now)
    with suppress(PreconditionFailed):
        store.put(conflict.ref.conflicts, conflict.to_bytes(), if_generation=0)


def candidates(store: Store, conflict: Conflict) -> list[ObjectInfo]:
    """The objects to choose from: the archived one, the one under the segment's name, and those that its
    node shipped as conflicts."""
    ref = conflict.ref
    entry = LedgerEntry.read(store, ref.ledger)
    held = segment_object.held(store, layout.plain(entry.archived_as)) if entry is not None and entry.archived_as is not None else None
    return [*([held] if held is not None else []), *_objects(store, ref)]


def shipped(name: str) -> str | None:
    """The segment, by its name under cdc/, of which this object is a conflicting copy; None for other
    objects."""
    other = layout.SegmentRef.from_conflict(name)
    return other[0].incoming if other is not None else None


def keep(store: Store, cluster: str, name: str, reason: str, *, now: datetime | None = None) -> Conflict:
    """Choose the bytes of that object, one of `candidates`. The next batch ingests them, unless the archive
    holds them.

    Raises ObjectNotFound if the segment has no known conflict or the object does not exist; BatchError if it
    was decided otherwise before."""
    operation, ref = "decide a conflict", _ref_of(name)
    if ref.node.cluster != cluster:
        raise ObjectNotFound("the segment belongs to another cluster", operation=operation, obj=name)
    record = Conflict.read(store, ref.conflicts) or Conflict(object=ref.incoming, found_at=now or datetime.now(UTC))
    found = {info.name: info for info in candidates(store, record)}
    if len(found) < 2 and record.kept is None:
        raise ObjectNotFound(
            "the segment has no known conflict", operation=operation, obj=name, hint="`writetime conflicts list` shows all."
        )
    if name in found:
        kept = segment_object.content_of(found[name])
    elif record.kept is None:
        raise ObjectNotFound("the object does not exist", operation=operation, obj=name, hint="`writetime conflicts list` names them.")
    else:
        # Repeated after a crash: it was moved already.
        kept = segment_object.Content(*record.kept)
    decided = record.model_copy(update={"kept": tuple(kept), "reason": reason, "decided_at": now or datetime.now(UTC)})

    def change(before: Conflict | None) -> Conflict | None:
        if before is None or before.kept is None:
            return decided
        if before.kept != tuple(kept):
            raise BatchError("other bytes were decided for before", operation=operation, obj=ref.conflicts, hint="They come in, or have.")
        return None

    Conflict.update(store, ref.conflicts, change)
    _clear(store, ref, kept, in_archive=any(_is(info, kept) for info in found.values() if info.name.startswith(layout.ARCHIVE)))
    return decided


def _clear(store: Store, ref: layout.SegmentRef, kept: segment_object.Content, *, in_archive: bool) -> None:
    """Leave the chosen bytes under the segment's name, or nothing if the archive holds them, and move the
    others away."""
    objects = _objects(store, ref)
    for info in objects:
        if not _is(info, kept):
            _move(store, info, ref.rejected(info.crc32c))
    for info in (info for info in objects if _is(info, kept)):
        if in_archive:
            store.delete(info.name, if_generation=info.generation)
        elif info.name != ref.incoming:
            _move(store, info, ref.incoming)


def _move(store: Store, info: ObjectInfo, target: str) -> None:
    """Move to a name that is free or has the same bytes."""
    with suppress(PreconditionFailed):
        store.copy(info.name, target, if_generation=0)
    held = store.head(target)
    if held is None or not _is(held, segment_object.content_of(info)):
        raise BatchError(
            "the target has different bytes", operation="move a segment in conflict", obj=target, hint=f"Compare it with {info.name}."
        )
    with suppress(ObjectNotFound):
        store.delete(info.name, if_generation=info.generation)


def _objects(store: Store, ref: layout.SegmentRef) -> list[ObjectInfo]:
    """The object under the segment's name, and those that its node shipped as conflicts."""
    there = store.head(ref.incoming)
    found = [there] if there is not None else []
    for info in store.list(f"cdc/{ref.node.path}/conflict-"):
        other = layout.SegmentRef.from_conflict(info.name)
        if other is not None and other[0] == ref:
            found.append(info)
    return found


def _ref_of(name: str) -> layout.SegmentRef:
    other = layout.SegmentRef.from_conflict(name)
    try:
        return other[0] if other is not None else layout.SegmentRef.from_object(name)
    except NotASegment as error:
        raise ObjectNotFound("the object is not a segment", operation="decide a conflict", obj=name) from error


def _is(info: ObjectInfo, content: segment_object.Content) -> bool:
    return segment_object.content_of(info) == content


def _is_archived(store: Store, entry: LedgerEntry) -> bool:
    held = segment_object.held(store, layout.plain(entry.archived_as)) if entry.archived_as is not None else None
    return held is not None and _is(held, segment_object.Content(entry.size, entry.crc32c))


def _remove(store: Store, segment: SegmentInput) -> None:
    """Delete the object, whose bytes are archived. If it was replaced in the meantime it stays."""
    with suppress(ObjectNotFound, PreconditionFailed):
        store.delete(segment.object, if_generation=segment.generation)
