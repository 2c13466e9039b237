"""Care of the archive, long after the seal: pack what lies there long enough, and let go what need not be kept any longer.

Strategy: one segment at a time. To pack one: write the packed form, read it back and compare it with the segment, note it in the ledger,
and only then delete the plain form. To let one go: note that, then delete it. Each step may be repeated, so a death at any point loses
nothing and the next run goes on there. Who meanwhile reads by the name that a manifest pins is served by
`writetime.storage.segment_object`.

What may be let go stands in the last seal (`kept_from`): maintenance puts it there, so every batch that is open, and every one that will be
planned, starts from a seal that says so and asks for nothing older. So it is safe at any time, by anybody.

Knows no Spark, and no clock: who calls says how packing is spread, and when time is up. What is left then is the next run's.
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
"""How far behind what is packed is looked again: a segment may come in long after its node had finished it. What comes later still stays
plain, and is read like all else; to look further would be to list the archive again each day."""
_HOUR: Final = timedelta(hours=1)
_TRIES: Final = 5
"""Of a ledger entry that others write, too."""


class Work(Document):
    """Objects that something was done to, and their bytes before and after."""

    objects: int = 0
    before: int = 0
    after: int = 0

    def plus(self, objects: int, before: int, after: int = 0) -> Work:
        """With so much more."""
        return Work(objects=self.objects + objects, before=self.before + before, after=self.after + after)


class Done(Document):
    """What care came to: segments packed and let go, ledger entries, documents of batches, reports, settled pieces of quarantine and claims
    pruned. `failed`: segments that stay as they are, for a reason that the job's log tells."""

    packed: Work = Work()
    let_go: Work = Work()
    ledger: Work = Work()
    batches: Work = Work()
    reports: Work = Work()
    quarantine: Work = Work()
    claims: Work = Work()
    failed: int = 0

    def with_(self, more: Done) -> Done:
        """Both together."""
        mine = ((name, getattr(self, name)) for name in Done.model_fields)
        works = {name: work.plus(*getattr(more, name).model_dump().values()) for name, work in mine if isinstance(work, Work)}
        return Done(**works, failed=self.failed + more.failed)


class Shelved(Document):
    """How far care has come. `packed_upto`: segments sealed before that hour are packed, but for what came late or failed. `finished`: the
    last run had time for all there was. `last` is what that run did, `ever` what all have done."""

    at: datetime
    packed_upto: datetime | None = None
    finished: bool = False
    last: Done = Done()
    ever: Done = Done()


def read_shelved(store: Store, cluster: str) -> Shelved | None:
    """What the last run has left; None if there was none."""
    return Shelved.read(store, layout.shelved(cluster))


# --- packing ------------------------------------------------------------------------------------------------------------------------


class Packed(NamedTuple):
    """What came of one segment: bytes before and after, or (`trouble`) why it stays as it is."""

    name: str
    before: int
    after: int
    trouble: str = ""


def to_pack(store: Store, cluster: str, before: datetime, since: datetime | None = None) -> Iterator[str]:
    """Segments of the archive that are not packed, of hours that were over at `before` and no earlier than `since`, the oldest first."""
    start = layout.archive_hour_prefix(cluster, since) if since else ""
    for info in segment_object.listed(store, layout.archive_prefix(cluster), start_after=start):
        hour = layout.archive_hour(info.name)
        if hour is not None and hour + _HOUR > before:
            return
        if hour is not None and not layout.is_packed(info.name):
            yield info.name


def pack(store: Store, name: str, level: int) -> Packed:
    """Put the packed form of an archived segment in its place. Another attempt, now or later, ends the same.

    ChecksumMismatch, with nothing deleted, where ledger, segment and packed form do not agree; ObjectNotFound when it is gone."""
    info = store.head(name)
    if info is None:
        raise ObjectNotFound("it is not in the archive", operation="pack a segment", obj=name)
    content = store.read(name, generation=info.generation)
    if (len(content), crc32c(content)) != (info.size, info.crc32c):
        raise _differs("what was read is not what the store says it holds", name)
    held = _written(store, info, content, level)
    if segment_object.read(store, held.name, generation=held.generation) != content or segment_object.content_of(
        held
    ) != segment_object.content_of(info):
        raise _differs(f"{held.name} holds something else", name)
    _note_packed(store, info, held)
    _delete(store, info)
    return Packed(name, info.size, held.size)


def _written(store: Store, info: ObjectInfo, content: bytes, level: int) -> ObjectInfo:
    """The packed form: made now, or by an earlier attempt."""
    target = layout.packed(info.name)
    if (held := store.head(target)) is not None:
        return held
    noted = {**info.metadata, segment_object.SIZE: str(info.size), segment_object.CRC32C: str(info.crc32c)}
    try:
        return store.put(target, segment_object.pack(content, level), if_generation=0, metadata=noted)
    except PreconditionFailed:
        found = store.head(target)
        if found is None:
            raise
        return found


def _note_packed(store: Store, info: ObjectInfo, held: ObjectInfo) -> None:
    """Into the ledger, if that speaks of these bytes: of a segment that came in with two contents it speaks of the last."""
    for _ in range(_TRIES):
        entry, generation = _entry(store, info.name)
        if entry is None or entry.archived_as != info.name:
            return
        if (entry.size, entry.crc32c) != segment_object.content_of(info):
            raise _differs(f"the ledger has {entry.size} bytes with CRC32C {entry.crc32c:08x}", info.name)
        noted = entry.model_copy(update={"archived_as": held.name, "stored": held.size, "updated_at": datetime.now(UTC)})
        if _put(store, info.name, noted, generation):
            return
    raise _busy(info.name)


# --- letting go ---------------------------------------------------------------------------------------------------------------------


def to_let_go(store: Store, cluster: str, kept_from: datetime) -> Iterator[ObjectInfo]:
    """Segments of the archive, packed and plain, sealed before the hour `kept_from`."""
    for info in store.list(layout.archive_prefix(cluster)):
        hour = layout.archive_hour(info.name)
        if hour is not None and hour >= kept_from:
            return
        if hour is not None and layout.is_segment(info.name):
            yield info


def let_go(store: Store, info: ObjectInfo) -> int:
    """Note it, then delete it; bytes freed. Another attempt, now or later, ends the same."""
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


# --- steps of both ------------------------------------------------------------------------------------------------------------------


def _entry(store: Store, name: str) -> tuple[LedgerEntry | None, int]:
    """The ledger entry of the segment that an object holds, and the entry's generation."""
    ledger = layout.SegmentRef.from_object(name).ledger
    info = store.head(ledger)
    if info is None:
        return None, 0
    try:
        return LedgerEntry.model_validate_json(store.read(ledger, generation=info.generation)), info.generation
    except ObjectNotFound:
        # Overwritten in between.
        return _entry(store, name)


def _put(store: Store, name: str, entry: LedgerEntry, generation: int) -> bool:
    """Whether nobody else has written to it meanwhile."""
    try:
        store.put(layout.SegmentRef.from_object(name).ledger, entry.to_bytes(), if_generation=generation)
    except PreconditionFailed:
        return False
    return True


def _delete(store: Store, info: ObjectInfo) -> bool:
    try:
        store.delete(info.name, if_generation=info.generation)
    except (ObjectNotFound, PreconditionFailed):
        # Another run was here, too; what somebody has put in its place meanwhile is not what was looked at.
        return False
    return True


def _differs(why: str, name: str) -> ChecksumMismatch:
    hint = "Nothing was deleted. Find out which of them is right (`writetime verify` reads each), and take the other away."
    return ChecksumMismatch(why, operation="pack a segment", obj=name, hint=hint)


def _busy(name: str) -> PreconditionFailed:
    return PreconditionFailed("its ledger entry is written again and again", operation="note a segment", obj=name, retriable=True)
