"""Rebuild: check the archive, choose the first number of a new chain, and plan its batches.

Strategy: everything is checked before anything is written. The ledger says which bytes should be archived;
the store's metadata say whether they are. Each batch then compares its segments with the ledger's size and
CRC32C. Missing segments stop the rebuild unless it is `partial`. Then a document
(`writetime.pipeline.chains`) fixes the chain, and the former one is ended: whoever looked before cannot begin a batch any
more. From there on each step is create-only, so an interrupted rebuild continues and a second driver does no harm. Batches
read the archive in order, oldest hour first.

The ledger is not changed: its segments stay archived. Segments under cdc/ and frames/ are not part of a
rebuild; the next ingest reads them. Does not know Spark, the warehouse or Kafka: their highest batch numbers
are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final
from uuid import uuid4

import structlog

from writetime.errors import BatchBusy, BatchError
from writetime.pipeline import chains, erasures
from writetime.pipeline.archive_packing import read_shelved
from writetime.pipeline.archiver import archive
from writetime.pipeline.chains import Rebuild, begin, current
from writetime.pipeline.documents import Chain, LedgerEntry, Manifest, SegmentInput
from writetime.pipeline.planner import History, history, plan_rebuild, read_manifest, read_sealed, take_number
from writetime.pipeline.publish_progress import read_published
from writetime.pipeline.truncation_reports import new_answers
from writetime.pipeline.void import void
from writetime.storage import layout, segment_object
from writetime.storage.concurrency import at_once
from writetime.storage.store import ObjectInfo, Store

log = structlog.get_logger()

MOST_SEGMENTS: Final = 1000
"""Segments of a batch: it reads the archive as fast as it can, and nothing measures it."""
NAMED: Final = 20
"""Maximum number of missing segments that are named."""
_READ_AT_ONCE: Final = 1000
_LEFT_FREE: Final = 10
"""Numbers that are left free below a chain: more than batches begin while its first number is chosen."""
_HOUR: Final = timedelta(hours=1)


@dataclass
class Archive:
    """The archive compared with the ledger. `missing`: archived, but not found; `changed`: found with
    different bytes; `expired`: deleted by `archive.keep_days`. `kept_from`: complete from that hour on.
    `last`: highest batch number in the ledger."""

    segments: int = 0
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    expired: int = 0
    kept_from: datetime | None = None
    last: int = 0

    @property
    def lacking(self) -> list[str]:
        """Objects that are missing or have different bytes."""
        return sorted([*self.missing, *self.changed])

    @property
    def whole(self) -> bool:
        return not self.missing and not self.changed and not self.expired

    def raise_kept_from(self, hour: datetime) -> None:
        self.kept_from = hour if self.kept_from is None else max(hour, self.kept_from)


def look(store: Store, cluster: str) -> Archive:
    """Compare the archive with the ledger by the store's metadata, without reading the objects."""
    held = {layout.plain(info.name): info for info in segment_object.every(store, layout.archive_prefix(cluster))}
    found = Archive(segments=len(held))
    for name, entry in _entries(store, cluster):
        found.last = max(found.last, entry.batch)
        if entry.state == "expired":
            found.expired += 1
            found.raise_kept_from(layout.hour_of(entry.sealed_at) + _HOUR)
        elif entry.state == "archived":
            place = layout.plain(entry.archived_as or name)
            info = held.get(place)
            if info is None:
                found.missing.append(place)
                found.raise_kept_from(layout.hour_of(entry.sealed_at) + _HOUR)
            elif not segment_object.stands_for(info, segment_object.Content(entry.size, entry.crc32c)):
                found.changed.append(info.name)
    _look_at_care(store, cluster, found, held)
    return found


def _look_at_care(store: Store, cluster: str, found: Archive, held: Iterable[str]) -> None:
    """Expired segments whose ledger entries are deleted: only the document of archive maintenance counts
    them."""
    shelved = read_shelved(store, cluster)
    let_go = shelved.ever.let_go.objects if shelved is not None else 0
    if let_go <= found.expired:
        return
    found.expired = let_go
    hours = [hour for name in held if (hour := layout.archive_hour(name)) is not None]
    if hours:
        found.raise_kept_from(min(hours))


def _entries(store: Store, cluster: str) -> Iterator[tuple[str, LedgerEntry]]:
    listed = (info.name for info in store.names(layout.ledger_of(cluster)))
    while some := list(islice(listed, _READ_AT_ONCE)):
        for name, entry in zip(some, at_once(lambda each: _entry(store, each), some), strict=True):
            if entry is not None:
                yield name, entry


def _entry(store: Store, name: str) -> LedgerEntry | None:
    try:
        return LedgerEntry.read(store, name)
    except ValueError as error:
        log.warning("cannot read ledger entry", object=name, error=str(error).partition("\n")[0])
        return None


def expect_whole(found: Archive, cluster: str) -> None:
    """BatchError if the archive lacks anything that was archived."""
    if found.whole:
        return
    counts = [(len(found.missing), "segments are missing"), (len(found.changed), "have different bytes"), (found.expired, "have expired")]
    named = ", ".join(found.lacking[:NAMED])
    raise BatchError(
        f"the archive is incomplete: {', '.join(f'{count} {what}' for count, what in counts if count)}" + (f": {named}" if named else ""),
        operation="rebuild from the archive",
        obj=layout.archive_prefix(cluster),
        hint="Restore the same bytes under those names, or rebuild without them (`--partial`): the tables are marked as incomplete.",
    )


# --- the chain


def seen(store: Store, cluster: str, ledger: int) -> int:
    """The highest batch number in the bucket: in `batches/`, the ledger, `published/`, `touched/`,
    `erasures/` and earlier rebuilds."""
    last = history(store, cluster).last
    behind = store.names(layout.batches_prefix(cluster), start_after=layout.batch_folder(cluster, last))
    numbers = [ledger, last, *(layout.batch_number(info.name) or 0 for info in behind)]
    note, rebuild = read_published(store, cluster), current(store, cluster)
    numbers += [note.batch, *note.waiting.values()] if note else []
    numbers += [rebuild.chain.first, rebuild.chain.upto or 0] if rebuild else []
    numbers += [erasure.number for erasure in erasures.listed(store, cluster)]
    numbers += [_batch_of_incomplete_rows(info.name, cluster) for info in store.names(layout.incomplete_rows_prefix(cluster))]
    return max(numbers)


def _batch_of_incomplete_rows(name: str, cluster: str) -> int:
    number = name.removeprefix(layout.incomplete_rows_prefix(cluster)).partition("-")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= 18 else 0


def fresh_generation(store: Store, cluster: str, first: int) -> int:
    """A generation of state that no shard of an earlier chain uses. A batch opens at most one generation per
    table, except for ones that it decides again; the leases name all of them."""
    highest = 0
    for info in store.names(layout.leases_prefix(cluster)):
        number = info.name.split("/")[3].removeprefix("g").partition(".")[0] if info.name.count("/") == 4 else ""
        highest = max(highest, int(number) if number.isascii() and number.isdecimal() and len(number) <= 18 else 0)
    return max(first, highest + 1)


def start(store: Store, cluster: str, found: Archive, last: int, *, topics: str | None, partial: bool, now: datetime) -> Rebuild:
    """Create the new chain: its numbers are above `last`, the highest number found outside of the bucket, and those in it. From
    then on nothing else is planned, and what others have planned before ends (`close_former`)."""
    past = history(store, cluster)
    note = read_published(store, cluster)
    if past.sealed is not None and past.sealed.kept_from is not None:
        found.raise_kept_from(datetime.fromtimestamp(past.sealed.kept_from, UTC))
    first = max(last, seen(store, cluster, found.last)) + _LEFT_FREE + 1
    chain = Chain(
        id=uuid4(),
        first=first,
        generation=fresh_generation(store, cluster, first),
        partial=partial,
        kept_from=int(found.kept_from.timestamp()) if found.kept_from else None,
    )
    made = Rebuild(
        chain=chain,
        begun_at=now,
        segments=found.segments,
        missing=found.lacking[:NAMED],
        lacking=len(found.lacking) + found.expired,
        topics=topics,
        published=note.batch if note else None,
        sealed=past.sealed.number if past.sealed else None,
    )
    begun = begin(store, cluster, made)
    close_former(store, cluster, begun, now)
    return begun


def close_former(store: Store, cluster: str, rebuild: Rebuild, now: datetime) -> History:
    """End the former chain: its open batch is voided, or archived if a driver has sealed it, and the number after it is taken,
    with a batch that is voided. So a planner that looked before the rebuild was there finds its number taken. Changes nothing
    once it is done. Returns the progress then; its last batch is below the chain's first before that has any."""
    while (past := history(store, cluster)).last < rebuild.chain.first:
        if past.open:
            _give_up(store, cluster, past.last)
        elif past.voided and _is_of(read_manifest(store, cluster, past.last), rebuild):
            return past
        else:
            if past.sealed is not None:
                archive(store, cluster, past.sealed.number)
            with suppress(BatchBusy):
                take_number(store, cluster, past, rebuild.chain, now=now)
    return past


def _is_of(manifest: Manifest, rebuild: Rebuild) -> bool:
    return manifest.chain is not None and manifest.chain.id == rebuild.chain.id


def go_partial(store: Store, cluster: str, rebuild: Rebuild) -> Rebuild:
    """Continue an unfinished rebuild without the segments that the archive lacks now."""
    found = look(store, cluster)
    if rebuild.chain.kept_from is not None:
        found.raise_kept_from(datetime.fromtimestamp(rebuild.chain.kept_from, UTC))
    kept_from = int(found.kept_from.timestamp()) if found.kept_from else None
    missing = found.lacking
    return chains.go_partial(store, cluster, rebuild, missing=missing[:NAMED], lacking=len(missing) + found.expired, kept_from=kept_from)


def _give_up(store: Store, cluster: str, number: int) -> None:
    """Void an open batch of a chain that is abandoned: a late driver of it finds the void, and its input
    stays in place."""
    try:
        void(store, cluster, number, reason="a rebuild begins", by="writetime rebuild")
    except BatchError:
        if read_sealed(store, cluster, number) is None:
            raise
        # A driver has sealed it.
        archive(store, cluster, number)
    else:
        log.warning("voided open batch of the previous chain", batch=number)


# --- its batches


@dataclass
class Planner:
    """Plans the batches of a rebuild one after the other; `taken`: segments, by plain name, that batches
    have so far."""

    store: Store
    cluster: str
    rebuild: Rebuild
    segments_per_batch: int = MOST_SEGMENTS
    taken: set[str] = field(default_factory=set)
    _known_upto: int = 0

    def next(self, now: datetime) -> Manifest | None:
        """The next batch: the open one, else a new one; None when the whole archive is read."""
        past, chain = close_former(self.store, self.cluster, self.rebuild, now), self.rebuild.chain
        if past.last >= chain.first and past.open:
            return read_manifest(self.store, self.cluster, past.last)
        self.learn(past.last)
        segments, begun = self._segments(), past.base >= chain.first
        if not segments and begun:
            return None
        answers = [] if begun else new_answers(self.store, self.cluster, {})
        return plan_rebuild(self.store, self.cluster, past, chain, segments, answers=answers, now=now)

    def learn(self, last: int) -> None:
        """Record which segments the chain's batches have read, up to batch `last`. Those of voided batches
        are read again."""
        for number in range(max(self.rebuild.chain.first, self._known_upto + 1), last + 1):
            self._known_upto = number
            sealed = read_sealed(self.store, self.cluster, number)
            if sealed is None or sealed.void is None:
                manifest = read_manifest(self.store, self.cluster, number)
                self.taken.update(layout.plain(segment.object) for segment in manifest.segments)

    def _segments(self) -> list[SegmentInput]:
        """The next segments of the archive by name, that is by hour. At the end the whole archive is listed
        once more, to include segments added to earlier hours."""
        prefix, last = layout.archive_prefix(self.cluster), max(self.taken, default="")
        found = self._new(segment_object.listed(self.store, prefix, start_after=last))
        found = found or self._new(segment_object.every(self.store, prefix))
        refs = [layout.SegmentRef.from_object(info.name) for info in found]
        entries = at_once(lambda ref: _entry(self.store, ref.ledger), refs)
        return [_pinned(info, entry) for info, entry in zip(found, entries, strict=True)]

    def _new(self, listed: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        return list(islice((info for info in listed if layout.plain(info.name) not in self.taken), self.segments_per_batch))


def _pinned(info: ObjectInfo, entry: LedgerEntry | None) -> SegmentInput:
    """The segment with the size and checksum of its ledger entry, whatever the store has now: that is checked when it is read.
    For a segment with two contents the ledger describes the last."""
    segment = SegmentInput.from_object(info)
    if entry is None or entry.archived_as is None or layout.plain(entry.archived_as) != layout.plain(info.name):
        return segment
    return entry.noted(segment).model_copy(update={"size": entry.size, "crc32c": entry.crc32c})


def expect_readable(store: Store, manifest: Manifest, unreadable: Iterable[str]) -> None:
    """BatchError if segments of a rebuild's batch do not have their archived bytes, unless the rebuild is
    partial."""
    lost = sorted(unreadable)
    rebuild = current(store, manifest.cluster)
    if not lost or manifest.kind != "rebuild" or (rebuild is not None and rebuild.chain.partial):
        return
    raise BatchError(
        f"{len(lost)} segments are missing or differ from what was archived: {', '.join(lost[:NAMED])}",
        operation="rebuild from the archive",
        obj=layout.batch_object(manifest.cluster, manifest.number, "manifest"),
        hint="Restore the same bytes under those names, then run `writetime rebuild` again; or continue without them: `--partial`.",
    )
