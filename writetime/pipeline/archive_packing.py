"""Maintenance of the archive: pack segments after some time, and delete segments after the retention time.

Strategy: one segment at a time. To pack a segment: write the packed form, read it back and compare it with
the segment, update the ledger, and only then delete the plain form. If a key is erased from the plain form meanwhile,
the packed one is deleted: an erasure that has looked before does not know it. To expire a segment: update the ledger,
then delete the object. Each step is repeatable, so a crash at any point loses nothing and the next run
continues. Readers that use the name pinned by a manifest are served by `writetime.storage.segment_object`.

The last seal says which segments may be expired (`kept_from`). Maintenance sets it, so every open and future
batch starts from a seal that requires nothing older. Expiring is therefore safe at any time and for any
caller.

Does not know Spark or the time: the caller distributes the packing and says when to stop. The next run does
the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from writetime.errors import ChecksumMismatch, ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import Document, LedgerEntry
from writetime.storage import layout, segment_object
from writetime.storage.checksum import crc32c
from writetime.storage.store import ObjectInfo, Store

LATE: Final = timedelta(days=1)
"""How far before the packed hours to look again: a segment may arrive long after its node finished it.
Segments that arrive even later stay plain and are read as usual; looking further back would mean listing the
archive daily.
"""
_HOUR: Final = timedelta(hours=1)
_TRIES: Final = 5
"""Attempts to write a ledger entry that others write as well."""


class Work(Document):
    """Number of processed objects, and their bytes before and after."""

    objects: int = 0
    before: int = 0
    after: int = 0

    def plus(self, objects: int, before: int, after: int = 0) -> Work:
        """The sum with these numbers."""
        return Work(objects=self.objects + objects, before=self.before + before, after=self.after + after)


class Done(Document):
    """The result of archive maintenance: segments packed and expired (`let_go`); ledger entries, batch
    documents, reports, settled quarantine records and claims deleted. `failed`: segments that were left
    unchanged; the job's log has the reason."""

    packed: Work = Work()
    let_go: Work = Work()
    ledger: Work = Work()
    batches: Work = Work()
    reports: Work = Work()
    quarantine: Work = Work()
    claims: Work = Work()
    failed: int = 0

    def with_(self, more: Done) -> Done:
        """The sum of both."""
        mine = ((name, getattr(self, name)) for name in Done.model_fields)
        works = {name: work.plus(*getattr(more, name).model_dump().values()) for name, work in mine if isinstance(work, Work)}
        return Done(**works, failed=self.failed + more.failed)


class Shelved(Document):
    """Progress of archive maintenance. `packed_upto`: segments sealed before that hour are packed, except
    late and failed ones. `finished`: the last run processed everything. `last`: result of that run; `ever`:
    sum of all runs."""

    at: datetime
    packed_upto: datetime | None = None
    finished: bool = False
    last: Done = Done()
    ever: Done = Done()


def read_shelved(store: Store, cluster: str) -> Shelved | None:
    """The document of the last run; None if there was none."""
    return Shelved.read(store, layout.shelved(cluster))


# --- packing


class Packed(NamedTuple):
    """The result for one segment: bytes before and after, or (`trouble`) why it was left unchanged."""

    name: str
    before: int
    after: int
    trouble: str = ""


def to_pack(store: Store, cluster: str, before: datetime, since: datetime | None = None) -> Iterator[str]:
    """Archived segments that are not packed, of hours that ended before `before` and not earlier than
    `since`, oldest first."""
    start = layout.archive_hour_prefix(cluster, since) if since else ""
    for info in segment_object.listed(store, layout.archive_prefix(cluster), start_after=start):
        hour = layout.archive_hour(info.name)
        if hour is not None and hour + _HOUR > before:
            return
        if hour is not None and not layout.is_packed(info.name):
            yield info.name


def pack(store: Store, name: str, level: int = segment_object.LEVEL) -> Packed:
    """Replace an archived segment by its packed form. Repeatable.

    Raises ChecksumMismatch, and deletes nothing, if ledger, segment and packed form differ; ObjectNotFound
    if the segment does not exist."""
    info = store.head(name)
    if info is None:
        raise ObjectNotFound("the segment is not in the archive", operation="pack a segment", obj=name)
    content = store.read(name, generation=info.generation)
    if (len(content), crc32c(content)) != (info.size, info.crc32c):
        raise _differs("the content does not match the store's size and checksum", name)
    held = _written(store, info, content, level)
    if segment_object.read(store, held.name, generation=held.generation) != content or segment_object.content_of(
        held
    ) != segment_object.content_of(info):
        raise _differs(f"the packed form {held.name} has different content", name)
    _expect_unchanged(store, info, held)
    _note_packed(store, info, held)
    _delete(store, info)
    return Packed(name, info.size, held.size)


def _written(store: Store, info: ObjectInfo, content: bytes, level: int) -> ObjectInfo:
    """The packed form, created now or by an earlier attempt."""
    target = layout.packed(info.name)
    if (held := store.head(target)) is not None:
        if segment_object.content_of(held) not in (segment_object.original_of(info), segment_object.replaced_by(info)):
            return held
        # An attempt died while a key was erased from the plain form.
        _delete(store, held)
    noted = {**info.metadata, segment_object.SIZE: str(info.size), segment_object.CRC32C: str(info.crc32c)}
    try:
        return store.put(target, segment_object.pack(content, level), if_generation=0, metadata=noted)
    except PreconditionFailed:
        found = store.head(target)
        if found is None:
            raise
        return found


def _expect_unchanged(store: Store, info: ObjectInfo, held: ObjectInfo) -> None:
    """PreconditionFailed, and no packed form, if a key was erased from the plain one since it was read."""
    now = store.head(info.name)
    # If there is none, another run has packed it.
    if now is None or segment_object.content_of(now) == segment_object.content_of(info):
        return
    _delete(store, held)
    raise PreconditionFailed(
        "a key was erased from it meanwhile", operation="pack a segment", obj=info.name, hint="The next run packs it.", retriable=True
    )


def _note_packed(store: Store, info: ObjectInfo, held: ObjectInfo) -> None:
    """Update the ledger entry if it describes these bytes: for a segment ingested with two contents it
    describes the last."""
    for _ in range(_TRIES):
        entry, generation = _entry(store, info.name)
        if entry is None or entry.archived_as != info.name:
            return
        if (entry.size, entry.crc32c) != segment_object.content_of(info):
            raise _differs(f"the ledger entry has {entry.size} bytes and CRC32C {entry.crc32c:08x}", info.name)
        noted = entry.model_copy(update={"archived_as": held.name, "stored": held.size, "updated_at": datetime.now(UTC)})
        if _put(store, info.name, noted, generation):
            return
    raise _busy(info.name)


# --- expiring


def to_let_go(store: Store, cluster: str, kept_from: datetime) -> Iterator[ObjectInfo]:
    """Archived segments, packed and plain, that were sealed before the hour `kept_from`."""
    for info in store.list(layout.archive_prefix(cluster)):
        hour = layout.archive_hour(info.name)
        if hour is not None and hour >= kept_from:
            return
        if hour is not None and layout.is_segment(info.name):
            yield info


def let_go(store: Store, info: ObjectInfo) -> int:
    """Record the expiry in the ledger, then delete the segment; returns the bytes freed. Repeatable."""
    for _ in range(_TRIES):
        entry, generation = _entry(store, info.name)
        if entry is None or entry.archived_as is None or layout.plain(entry.archived_as) != layout.plain(info.name):
            break
        if _put(store, info.name, _expired(entry), generation):
            break
    else:
        raise _busy(info.name)
    return info.size if _delete(store, info) else 0


def _expired(entry: LedgerEntry) -> LedgerEntry:
    step = {"state": entry.state, "batch": entry.batch, "updated_at": entry.updated_at.isoformat()}
    changed = {"state": "expired", "archived_as": None, "stored": None, "updated_at": datetime.now(UTC)}
    return entry.model_copy(update={**changed, "history": [*entry.history, step]})


# --- shared steps


def _entry(store: Store, name: str) -> tuple[LedgerEntry | None, int]:
    """The ledger entry of an object's segment, and the entry's generation."""
    ledger = layout.SegmentRef.from_object(name).ledger
    info = store.head(ledger)
    if info is None:
        return None, 0
    try:
        return LedgerEntry.model_validate_json(store.read(ledger, generation=info.generation)), info.generation
    except ObjectNotFound:
        # Overwritten between the two calls.
        return _entry(store, name)


def _put(store: Store, name: str, entry: LedgerEntry, generation: int) -> bool:
    """Write the entry; False if another writer changed it in the meantime."""
    try:
        store.put(layout.SegmentRef.from_object(name).ledger, entry.to_bytes(), if_generation=generation)
    except PreconditionFailed:
        return False
    return True


def _delete(store: Store, info: ObjectInfo) -> bool:
    try:
        store.delete(info.name, if_generation=info.generation)
    except (ObjectNotFound, PreconditionFailed):
        # Another run deleted it, or it was replaced: a replacement has not been compared.
        return False
    return True


def _differs(why: str, name: str) -> ChecksumMismatch:
    hint = "Nothing was deleted. Find out which copy is intact (`writetime verify` reads each), and remove the other."
    return ChecksumMismatch(why, operation="pack a segment", obj=name, hint=hint)


def _busy(name: str) -> PreconditionFailed:
    return PreconditionFailed(
        "the ledger entry was changed concurrently, giving up", operation="update a ledger entry", obj=name, retriable=True
    )
