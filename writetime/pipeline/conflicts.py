"""Segments in conflict: the store has, or had, other bytes under their names. No batch takes any of them in until a person has decided.

Strategy: a node creates objects and never overwrites one, so where other bytes lie under a segment's name already, it ships its own to
`cdc/<node>/conflict-<crc32c>/`. And of a segment that a batch has archived, bytes that come in again are compared with the ledger: the same
ones are removed (the archive has them), other ones are in conflict too. Planning notes each, create-only, and passes it over from then
on, so that a thousand of them keep no other segment waiting. `keep` notes which bytes count and then moves the others to `rejected/`,
where they stay; each step can be repeated. Bytes that were decided for come in with the next batch like any segment.

Knows no Spark. How bytes come to be in conflict is `shippers.upload`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from writetime.errors import BatchError, NotASegment, ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import Document, LedgerEntry, SegmentInput
from writetime.storage import layout, segment_object
from writetime.storage.concurrency import at_once
from writetime.storage.store import ObjectInfo, Store


class Conflict(Document):
    """A segment of which there are other bytes. `object` is its name under cdc/; `kept`: size and CRC32C of the bytes that count; null as
    long as nobody has decided."""

    object: str
    found_at: datetime
    kept: tuple[int, int] | None = None
    reason: str = ""
    decided_at: datetime | None = None

    @property
    def ref(self) -> layout.SegmentRef:
        return layout.SegmentRef.from_object(self.object)

    def admits(self, segment: SegmentInput) -> bool:
        """Whether a batch may take these bytes of the segment in."""
        return self.kept == (segment.size, segment.crc32c)


def known(store: Store, cluster: str) -> dict[str, Conflict]:
    """All that were found so far, decided ones too, by the segments' names under cdc/."""
    found = at_once(lambda info: Conflict.read(store, info.name), list(store.list(layout.conflicts_prefix(cluster))))
    return {each.object: each for each in found if each is not None}


def undecided(store: Store, cluster: str, listed: Iterable[ObjectInfo] | None = None) -> list[Conflict]:
    """Those that wait for a person, in order of names: noted by a planner, or to be seen among the objects `listed` (default: all) under
    cdc/."""
    found = known(store, cluster)
    for info in store.list(layout.incoming_prefix(cluster)) if listed is None else listed:
        name = shipped(info.name)
        if name is not None and name not in found:
            found[name] = Conflict(object=name, found_at=info.created)
    return [found[name] for name in sorted(found) if found[name].kept is None]


def expect_new(store: Store, segments: Iterable[SegmentInput], decided: Mapping[str, Conflict], now: datetime) -> list[SegmentInput]:
    """Those that a batch is to take in. Of a segment that was archived before, the same bytes are removed, and other ones noted as in
    conflict, unless a person has decided for them (`decided`)."""
    wanted = list(segments)
    entries = at_once(lambda segment: LedgerEntry.read(store, segment.ref.ledger), wanted)
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
            # Somebody else's rule of the bucket has taken it away: what comes in again is all there is.
            found.append(segment)
    return found


def _contents(entry: LedgerEntry) -> list[tuple[int, int]]:
    """Size and CRC32C of what the archive holds, and of what the node wrote if a key was erased from that."""
    erased = entry.erased_from
    return [(entry.size, entry.crc32c), *([(erased.size, erased.crc32c)] if erased is not None else [])]


def note(store: Store, name: str, now: datetime) -> None:
    """Note the segment under cdc/ as in conflict, unless it is noted already."""
    conflict = Conflict(object=name, found_at=now)
    with suppress(PreconditionFailed):
        store.put(conflict.ref.conflicts, conflict.to_bytes(), if_generation=0)


def candidates(store: Store, conflict: Conflict) -> list[ObjectInfo]:
    """The objects of which one may be decided for: what the archive holds, what lies under the name, what its node shipped besides."""
    ref = conflict.ref
    entry = LedgerEntry.read(store, ref.ledger)
    held = segment_object.held(store, layout.plain(entry.archived_as)) if entry is not None and entry.archived_as is not None else None
    return [*([held] if held is not None else []), *_objects(store, ref)]


def shipped(name: str) -> str | None:
    """The segment, by its name under cdc/, whose other bytes the object of that name holds; None if it is no such object."""
    other = layout.SegmentRef.from_conflict(name)
    return other[0].incoming if other is not None else None


def keep(store: Store, cluster: str, name: str, reason: str, *, now: datetime | None = None) -> Conflict:
    """Decide for the bytes of that object: one of `candidates`. They come in with the next batch, unless the archive holds them.

    ObjectNotFound if no conflict is known of its segment, or there is no such object; BatchError if it was decided otherwise before."""
    operation, ref = "decide a conflict", _ref_of(name)
    if ref.node.cluster != cluster:
        raise ObjectNotFound("it is another cluster's", operation=operation, obj=name)
    record = Conflict.read(store, ref.conflicts) or Conflict(object=ref.incoming, found_at=now or datetime.now(UTC))
    found = {info.name: info for info in candidates(store, record)}
    if len(found) < 2 and record.kept is None:
        raise ObjectNotFound(
            "no conflict is known of this segment", operation=operation, obj=name, hint="`writetime conflicts list` has all."
        )
    if name in found:
        kept = segment_object.content_of(found[name])
        if record.kept not in (None, kept):
            raise BatchError("other bytes were decided for before", operation=operation, obj=ref.conflicts, hint="They come in, or have.")
    elif record.kept is None:
        raise ObjectNotFound("there is no such object", operation=operation, obj=name, hint="`writetime conflicts list` names them.")
    else:
        # Repeated after a death half-way: it was moved already.
        kept = segment_object.Content(*record.kept)
    decided = record.model_copy(update={"kept": tuple(kept), "reason": reason, "decided_at": now or datetime.now(UTC)})
    if record.kept is None:
        store.put(ref.conflicts, decided.to_bytes())
    _clear(store, ref, kept, in_archive=any(_is(info, kept) for info in found.values() if info.name.startswith(layout.ARCHIVE)))
    return decided


def _clear(store: Store, ref: layout.SegmentRef, kept: segment_object.Content, *, in_archive: bool) -> None:
    """Leave under the segment's name the bytes that count, or nothing if the archive holds them; and nothing of it in conflict."""
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
    """To a name that nothing lies under, or the same bytes do."""
    with suppress(PreconditionFailed):
        store.copy(info.name, target, if_generation=0)
    held = store.head(target)
    if held is None or not _is(held, segment_object.content_of(info)):
        raise BatchError("other bytes lie there", operation="move a segment in conflict", obj=target, hint=f"Compare it with {info.name}.")
    with suppress(ObjectNotFound):
        store.delete(info.name, if_generation=info.generation)


def _objects(store: Store, ref: layout.SegmentRef) -> list[ObjectInfo]:
    """What lies under the segment's name, and what its node shipped besides."""
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
        raise ObjectNotFound("it is no segment's object", operation="decide a conflict", obj=name) from error


def _is(info: ObjectInfo, content: segment_object.Content) -> bool:
    return segment_object.content_of(info) == content


def _is_archived(store: Store, entry: LedgerEntry) -> bool:
    held = segment_object.held(store, layout.plain(entry.archived_as)) if entry.archived_as is not None else None
    return held is not None and _is(held, segment_object.Content(entry.size, entry.crc32c))


def _remove(store: Store, segment: SegmentInput) -> None:
    """The archive has these bytes. Whoever has replaced them meanwhile keeps his."""
    with suppress(ObjectNotFound, PreconditionFailed):
        store.delete(segment.object, if_generation=segment.generation)
