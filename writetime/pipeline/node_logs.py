"""What the nodes' own logs tell a batch, and which tables it therefore starts anew. Driver side; reads the bucket, no Spark.

    base's local.json + rows of system.local in this batch's segments + nodes' answers (`asked`)
        ──► local.json: records, generations, what is read again

Strategy: records only ever add up (`writetime.pipeline.truncations` says what they come to), so a table needs a new generation exactly when
they come to another cut than in the base, and some frame that was folded since, or was left out, is judged otherwise by it. Then its state
starts empty, and its frames past the cut are folded anew: the batch's own, and those of archived segments, which are listed here by the
place and the time of the cut. The document is created once; a rerun goes by the one that is there, unless what it names is not: then it is
decided anew, and the generation after that one opened, for there may be shards in it that were made of other frames.

Two TRUNCATEs of a table that one batch learns of are one generation and one event, the last's: nothing of what stood between them shows.
A table's incarnation that is over (dropped) gets no generation: its rows went with it, and its cut still holds back what comes late.

The DROP of a table whose id is created again (CREATE TABLE … WITH ID) is a TRUNCATE of that id, at the place where a node's log has it.
So is each DROP before the last of a table that is dropped now: the id was created again in between, and that incarnation gets a generation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from writetime.cassandra.commitlog.system_mutations import decode_own
from writetime.cassandra.schema.model import Table
from writetime.cassandra.schema.node_metadata import LocalFacts, Truncation
from writetime.errors import BatchError, DecodeError, ObjectNotFound, PreconditionFailed
from writetime.pipeline.completeness import ends_after, node_ends
from writetime.pipeline.documents import (
    LedgerEntry,
    LocalDocument,
    Manifest,
    Opening,
    Reread,
    Sealed,
    SegmentInput,
    TruncationRecord,
)
from writetime.pipeline.planner import read_manifest
from writetime.pipeline.truncation_reports import read_answers
from writetime.pipeline.truncations import (
    Cut,
    Cuts,
    Interval,
    Purged,
    Records,
    Source,
    Truncate,
    cuts_by_table,
)
from writetime.storage import layout, segment_object, segment_parts
from writetime.storage.store import Store

CLOCKS: Final = timedelta(hours=1)
"""How far a segment's `sealed_at` may be off when the archive's hours are searched."""

Told = Iterable[tuple[int, bytes]]
"""Mutations of `system.local`, as the index of the segment in the manifest and the frame's body."""


def read_local(store: Store, cluster: str, number: int) -> LocalDocument:
    """All that was told up to a batch, that one included; nothing before the first (0)."""
    found = LocalDocument.read(store, layout.batch_object(cluster, number, "local")) if number else None
    return found or LocalDocument()


def settle(
    store: Store, manifest: Manifest, base: Sealed | None, told: Told, captured: Iterable[Table], drops: Records | None = None
) -> LocalDocument:
    """The batch's document: decided and created by the first run of the batch, read by any other."""
    name = layout.batch_object(manifest.cluster, manifest.number, "local")
    found = store.head(name)
    settled = None
    if found is not None:
        settled = LocalDocument.model_validate_json(store.read(name, generation=found.generation))
        if all(_is_there(store, reread.segment) for reread in settled.rereads):
            return settled
    document = decide(store, manifest, base, told, captured, settled, drops)
    try:
        store.put(name, document.to_bytes(), if_generation=found.generation if found else 0)
    except PreconditionFailed:
        return LocalDocument.model_validate_json(store.read(name))
    return document


def _is_there(store: Store, segment: SegmentInput) -> bool:
    """Whether it still is the object that was pinned, or the same packed: one that waits for a person may have been mended meanwhile."""
    if segment.tail is not None and segment.grows:
        return all((info := store.head(part.object)) is not None and part.is_in(info) for part in segment.tail.parts)
    held = segment_object.held(store, segment.object)
    return held is not None and segment_object.content_of(held) == (segment.size, segment.crc32c)


def decide(
    store: Store,
    manifest: Manifest,
    base: Sealed | None,
    told: Told,
    captured: Iterable[Table],
    void: LocalDocument | None = None,
    drops: Records | None = None,
) -> LocalDocument:
    """What `settle` creates; `void` is what it had created, if that does not hold any more. `drops`: where this batch's segments have the
    DROP of a table."""
    known = read_local(store, manifest.cluster, base.number if base else 0)
    answers, asked, rejected = read_answers(store, manifest.truncations)
    living = {table.id for table in captured if not table.dropped}
    dropped = _drops(_truncations(known.drops), drops or {})
    ended = _of_earlier_incarnations(dropped, {table.id for table in captured if table.dropped})
    records, not_understood = learn(known, manifest.segments, told, [answers, _of_tables(dropped, living), ended])
    not_understood += rejected
    after = cuts_by_table(_truncations(records))
    past = _Past(store, manifest, base, known)
    opened: list[UUID] = []
    generations = dict(known.generations)
    for table_id in sorted((living | _dropped_again(ended, drops or {}, known)) & after.keys(), key=str):
        old, new = past.cut(table_id), after[table_id]
        if old == new:
            continue
        state = base.state.get(str(table_id)) if base else None
        correction = old is not None and new[0].is_same(old[0])
        since = _since(manifest, known, table_id)
        if old is not None and correction and (state is None or not past.judged_otherwise(old[1], new[1], since)):
            continue
        if (gone := past.gone(new[1])) is not None:
            not_understood.append(_not_followed(table_id, new[0], gone))
            continue
        opened.append(table_id)
        known_generation = state.generation if state else first_generation(manifest)
        last = max(known_generation, void.generations[table_id].generation if void and table_id in void.opened else 0)
        generations[table_id] = Opening(generation=last + 1, opened=manifest.number, at=new[0].at, correction=correction)
    return LocalDocument(
        truncations=records,
        drops={host: [_record(each) for each in noted] for host, noted in dropped.items()},
        generations=generations,
        opened=opened,
        asked=known.asked | asked,
        ends=ends_after(known.ends or node_ends(store, manifest.cluster, base), manifest),
        not_understood=not_understood,
        rereads=past.rereads({table_id: after[table_id][1] for table_id in opened}),
    )


def first_generation(manifest: Manifest) -> int:
    """With which generation the state of a table begins: none that a shard of an earlier chain may lie in."""
    return 0 if manifest.chain is None else manifest.chain.generation


def last_truncate(document: LocalDocument, table_id: UUID) -> Truncate:
    """The table's last TRUNCATE, of which there is one if a generation was opened for it."""
    return cuts_by_table(_truncations(document.truncations))[table_id][0]


def _drops(known: Records, more: Records) -> dict[str, list[Truncation]]:
    """Of each DROP that a node's log has, the first place: a node may be told of it again, but not before the table is there again."""
    found: dict[str, dict[tuple[UUID, int], Truncation]] = {}
    for host, record in ((host, record) for records in (known, more) for host, noted in records.items() for record in noted):
        first = found.setdefault(host, {}).setdefault((record.table_id, record.timestamp), record)
        if (record.segment, record.position) < (first.segment, first.position):
            found[host][record.table_id, record.timestamp] = record
    return {host: sorted(noted.values()) for host, noted in sorted(found.items())}


def _of_earlier_incarnations(drops: Records, dead: Collection[UUID]) -> Records:
    """Of tables that are dropped now: the DROPs before the last, after each of which the id was created again. They are TRUNCATEs."""
    last: dict[UUID, int] = {}
    for record in (record for noted in drops.values() for record in noted):
        last[record.table_id] = max(record.timestamp, last.get(record.table_id, record.timestamp))
    return {
        host: [each for each in noted if each.table_id in dead and each.timestamp < last[each.table_id]] for host, noted in drops.items()
    }


def _dropped_again(ended: Records, drops: Records, known: LocalDocument) -> set[UUID]:
    """Tables with a record in `ended` of which this batch is the first to know another DROP. Later batches leave them as they are."""
    before = {(record.table_id, record.timestamp) for noted in _truncations(known.drops).values() for record in noted}
    new = {each.table_id for noted in drops.values() for each in noted if (each.table_id, each.timestamp) not in before}
    return new & {record.table_id for noted in ended.values() for record in noted}


def _of_tables(records: Records, tables: Collection[UUID]) -> Records:
    return {host: [record for record in noted if record.table_id in tables] for host, noted in records.items()}


def learn(
    known: LocalDocument, segments: Sequence[SegmentInput], told: Told, answers: Iterable[Records] = ()
) -> tuple[dict[str, list[TruncationRecord]], list[str]]:
    """The records known, those in the log and, by host id, those from elsewhere (`answers` of nodes, drops); and of mutations that cannot
    be read, why and of whom: no other node's records wait for them."""
    facts = {segment.ref.node.host_id: LocalFacts() for segment in segments}
    not_understood = []
    for index, body in told:
        ref = segments[index].ref
        try:
            facts[ref.node.host_id].apply(decode_own(body, version=ref.segment.version).mutation)
        except DecodeError as error:
            not_understood.append(f"{segments[index].object}: {error}")
    found = {host: set(noted) for host, noted in _truncations(known.truncations).items()}
    for host, fact in facts.items():
        if fact.truncations:
            found.setdefault(host, set()).update(fact.truncations)
    for host, recorded in (pair for each in answers for pair in each.items()):
        if recorded:
            found.setdefault(host, set()).update(recorded)
    return {host: [_record(each) for each in sorted(noted)] for host, noted in sorted(found.items())}, sorted(set(not_understood))


def cuts(document: LocalDocument, segments: Sequence[SegmentInput], purged: Mapping[bytes, Purged] | None = None) -> Cuts:
    """What the workers are told; `segments` are all that the batch reads, in the order of their indexes. `purged`: see `Cuts.of`."""
    sources = [Source(segment.ref.node.host_id, segment.ref.segment.id, segment.sealed_at) for segment in segments]
    found = cuts_by_table(_truncations(document.truncations))
    return Cuts.of({table_id: cut for table_id, (_, cut) in found.items()}, sources, purged)


def all_segments(manifest: Manifest, document: LocalDocument) -> list[SegmentInput]:
    """All that the batch reads: its manifest's segments, then those read again."""
    return [*manifest.segments, *(reread.segment for reread in document.rereads)]


def only(manifest: Manifest, document: LocalDocument) -> dict[int, tuple[frozenset[UUID], int]]:
    """Of the segments read again, by their index in `all_segments`: which tables are wanted, and frames past which position."""
    first = len(manifest.segments)
    return {first + index: (frozenset(each.tables), min(each.tables.values())) for index, each in enumerate(document.rereads)}


def _not_followed(table_id: UUID, truncate: Truncate, kept: datetime) -> str:
    at = datetime.fromtimestamp(truncate.at / 1000, UTC)
    return (
        f"table {table_id}: a TRUNCATE of {at:%Y-%m-%dT%H:%M:%SZ} became known too late: what was written since cannot be read again, as "
        f"the archive keeps nothing from before {kept:%Y-%m-%dT%H:%M:%SZ} (archive.keep_days). The table stays as it is: let cdc_bootstrap "
        "read it"
    )


def _since(manifest: Manifest, known: LocalDocument, table_id: UUID) -> int:
    opening = known.generations.get(table_id)
    return opening.opened if opening else _first(manifest)


def _first(manifest: Manifest) -> int:
    return 1 if manifest.chain is None else manifest.chain.first


def _record(truncation: Truncation) -> TruncationRecord:
    return TruncationRecord(
        table_id=truncation.table_id,
        segment=truncation.segment,
        position=truncation.position,
        at=truncation.at,
        writetime=truncation.timestamp,
    )


def _truncations(records: Mapping[str, Iterable[TruncationRecord]]) -> dict[str, list[Truncation]]:
    return {host: [Truncation(r.at, r.table_id, r.segment, r.position, r.writetime) for r in noted] for host, noted in records.items()}


class _Past:
    """Sealed batches up to the base: what they knew, and their segments."""

    def __init__(self, store: Store, manifest: Manifest, base: Sealed | None, known: LocalDocument) -> None:
        self._store = store
        self._manifest = manifest
        self._base = base
        self._cuts = {base.number if base else 0: cuts_by_table(_truncations(known.truncations))}
        self._mine = {_identity(segment) for segment in manifest.segments}

    def cut(self, table_id: UUID) -> tuple[Truncate, Cut] | None:
        """What the table's state goes by: the records of the base, or of the last batch that captured the table."""
        number = self._base.captured_by(table_id) if self._base else 0
        if number not in self._cuts:
            self._cuts[number] = cuts_by_table(_truncations(read_local(self._store, self._manifest.cluster, number).truncations))
        return self._cuts[number].get(table_id)

    def rereads(self, cuts: Mapping[UUID, Cut]) -> list[Reread]:
        """What the new generations need of them, in the order of their names; what the batch reads anyway is not among it."""
        wanted: dict[str, tuple[SegmentInput, dict[UUID, int]]] = {}
        for table_id, cut in cuts.items():
            for segment, position in self._read_again(cut):
                wanted.setdefault(segment.object, (segment, {}))[1][table_id] = position
        return [Reread(segment=segment, tables=tables) for _, (segment, tables) in sorted(wanted.items())]

    def gone(self, cut: Cut) -> datetime | None:
        """Since when the archive holds all, if it does not hold all that may be past the cut."""
        if self._base is None or self._base.kept_from is None:
            return None
        kept = datetime.fromtimestamp(self._base.kept_from, UTC)
        return kept if self._earliest(cut) < kept else None

    def judged_otherwise(self, old: Cut, new: Cut, since: int) -> bool:
        """Whether `new` may keep a frame that the generation begun in batch `since` was not given, or take one that it was. It
        may, if nobody knows any more what that was given."""
        try:
            folded = {_identity(segment): segment for segment in self._folded(since)}
        except ObjectNotFound:
            # Documents of batches that old have been pruned.
            return True
        for segment in folded.values():
            both_take_it = _takes_all(old, segment) and _takes_all(new, segment)
            if not both_take_it and _rule(old, segment) != _rule(new, segment):
                return True
        return any(_identity(segment) not in folded for segment in self._past(new))

    def _read_again(self, cut: Cut) -> Iterator[tuple[SegmentInput, int]]:
        """The segments that a new generation needs, with the position up to which their frames are of no use to it.

        Where a node left no record of the TRUNCATE, frames that it took on other nodes are of use: a copy of one of these is gone too."""
        found = list(self._in_range(cut))
        if all(_takes_all(cut, segment) or segment.ref.node.host_id in cut.noted for segment in found):
            yield from ((segment, _position(cut, segment)) for segment in found if not _takes_all(cut, segment))
        else:
            yield from ((segment, -1) for segment in found)

    def _past(self, cut: Cut) -> Iterator[SegmentInput]:
        """The segments that may hold frames past the cut."""
        return (segment for segment in self._in_range(cut) if not _takes_all(cut, segment))

    def _in_range(self, cut: Cut) -> Iterator[SegmentInput]:
        """The segments of the archive's hours from shortly before the cut on, and those that are not archived."""
        # What was not replayed into a namespace is none of it; and what a rebuild has not come to yet, comes with a later batch.
        partly = self._manifest.namespace is not None or self._manifest.kind == "rebuild"
        for segment in self._folded(_first(self._manifest)) if partly else self._segments_from(self._earliest(cut)):
            if _identity(segment) not in self._mine:
                yield segment

    @staticmethod
    def _earliest(cut: Cut) -> datetime:
        return datetime.fromtimestamp(cut.at / 1000, UTC) - CLOCKS

    def _segments_from(self, start: datetime) -> Iterator[SegmentInput]:
        # The archive is by hours, so that names after this one are all there is from that hour on.
        for info in segment_object.every(self._store, layout.archive_prefix(self._manifest.cluster), start_after=self._hour(start)):
            yield SegmentInput.from_object(info)
        yield from self._held()
        yield from self._growing()

    def _hour(self, start: datetime) -> str:
        return layout.archive_hour_prefix(self._manifest.cluster, start)

    def _held(self) -> Iterator[SegmentInput]:
        """Segments that wait for a person: what was whole of them has been folded."""
        for name in self._base.held if self._base else ():
            info = self._store.head(name)
            entry = LedgerEntry.read(self._store, layout.SegmentRef.from_object(name).ledger)
            if info is not None and entry is not None and entry.frames:
                yield entry.noted(SegmentInput.from_object(info))

    def _growing(self) -> Iterator[SegmentInput]:
        """What was taken in of segments that grow; their whole files are not there yet, or come with this batch."""
        for name, mark in self._base.growing.items() if self._base else ():
            ref = layout.SegmentRef.from_object(name)
            run = segment_parts.run(segment_parts.of(self._store, ref), 0, mark.position)
            if run and run[-1].end == mark.position:
                yield SegmentInput.growing(ref, run)
            elif (info := self._store.head(ref.incoming)) is not None:
                yield SegmentInput.from_object(info)
            elif mark.frames:
                raise BatchError(
                    f"parts of it are gone, of which {mark.frames} frames were taken in, and a truncated table may need them again",
                    operation="look for what is to be read again",
                    obj=name,
                    hint=f"Put them back, or the whole segment to {ref.incoming}; then run the batch again.",
                )

    def _folded(self, since: int) -> Iterator[SegmentInput]:
        """All that batches have read from `since` to the base."""
        for number in range(since, self._base.number + 1 if self._base else since):
            if self._base and number in self._base.voided:
                continue
            manifest = read_manifest(self._store, self._manifest.cluster, number)
            yield from all_segments(manifest, read_local(self._store, self._manifest.cluster, number))


def _identity(segment: SegmentInput) -> tuple[layout.SegmentRef, bool, int]:
    """The same for a segment and its copy in the archive; of one that grows, what goes as far is the same."""
    return segment.ref, segment.grows, segment.end if segment.grows else segment.crc32c


def _position(cut: Cut, segment: SegmentInput) -> int:
    return cut.position(segment.ref.node.host_id, segment.ref.segment.id, segment.sealed_at)


def _takes_all(cut: Cut, segment: SegmentInput) -> bool:
    return cut.takes_all(segment.ref.node.host_id, segment.ref.segment.id, segment.sealed_at)


def _rule(cut: Cut, segment: SegmentInput) -> tuple[int, Interval | None]:
    """What decides about the segment's frames. What is undecided of a node with a record stays, as all that is past its place."""
    host = segment.ref.node.host_id
    return _position(cut, segment), None if host in cut.noted else cut.undecided(host, segment.ref.segment.id)
