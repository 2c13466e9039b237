"""The TRUNCATEs that the nodes' logs report to a batch, and the tables that the batch rebuilds because of
them. Driver side; reads the bucket, no Spark.

    base's local.json + rows of system.local in this batch's segments + nodes' reports (`asked`)
        ──► local.json: records, generations, segments to read again

Strategy: records are only ever added (`writetime.pipeline.truncations` interprets them). A table needs a new
generation exactly if its records give another cut than in the base, and some frame that was merged or left
out since is judged differently by it. Then its state starts empty, and its frames past the cut are merged
again: those of the batch, and those of archived segments, found here by position and time of the cut. The
document is created once. A rerun uses it, unless a segment that it names is missing: then it is decided
again with the following generation, because the earlier one may contain shards built from other frames.

Two TRUNCATEs of a table that become known in one batch are one generation and one event, that of the last. A
dropped table incarnation gets no generation: its rows are gone, and its cut still rejects late frames.

The DROP of a table whose id is created again (CREATE TABLE … WITH ID) is a TRUNCATE of that id. A node logs the
DROP before it takes the table out of use, and then begins a new segment: writes that race it are behind it in the
log, and belong to the table that is gone. So the position is that of the CREATE in the node's log, and until that
is seen, the end of the DROP's segment. Source: Cassandra 3.11-6.0, Schema.dropTable (forceRecycleAllSegments). For
a table that is dropped now, this applies to each DROP before the last: the id was created again in between, and
that incarnation gets a generation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
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
from writetime.pipeline.newest_segments import newest_after, newest_in_ledger
from writetime.pipeline.planner import read_local, read_manifest
from writetime.pipeline.truncation_reports import read_answers
from writetime.pipeline.truncations import (
    WHOLE_SEGMENT,
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
"""Tolerance for a segment's `sealed_at` when the archive's hours are searched."""

LocalMutations = Iterable[tuple[int, bytes]]
"""Mutations of `system.local`: the index of the segment in the manifest, and the frame's body."""


class SchemaPlaces(NamedTuple):
    """Where nodes' logs of a batch have the DROPs of tables, and the CREATEs of tables that were dropped before, with
    their ids; by host id."""

    drops: Records
    creates: Records

    def reach(self, host: str, drop: Truncation, otherwise: int) -> Truncation:
        """The DROP with the place of the first CREATE behind it, up to which frames belong to the table that is gone;
        else with the position `otherwise`."""
        places = (
            (each.segment, each.position)
            for each in self.creates.get(host, ())
            if each.table_id == drop.table_id and each.timestamp > drop.timestamp
        )
        place = min((each for each in places if each >= (drop.segment, drop.position)), default=(drop.segment, otherwise))
        return replace(drop, segment=place[0], position=place[1])


def settle(
    store: Store,
    manifest: Manifest,
    base: Sealed | None,
    mutations: LocalMutations,
    captured: Iterable[Table],
    logged: SchemaPlaces | None = None,
) -> LocalDocument:
    """The batch's document: created by the first run of the batch, read by all others."""
    name = layout.batch_object(manifest.cluster, manifest.number, "local")
    found = store.head(name)
    settled = None
    if found is not None:
        settled = LocalDocument.model_validate_json(store.read(name, generation=found.generation))
        if all(_is_there(store, reread.segment) for reread in settled.rereads):
            return settled
    document = decide(store, manifest, base, mutations, captured, settled, logged)
    try:
        store.put(name, document.to_bytes(), if_generation=found.generation if found else 0)
    except PreconditionFailed:
        return LocalDocument.model_validate_json(store.read(name))
    return document


def _is_there(store: Store, segment: SegmentInput) -> bool:
    """Whether the object still has the pinned bytes, plain or packed: a held segment may have been repaired
    since."""
    if segment.tail is not None and segment.grows:
        return all((info := store.head(part.object)) is not None and part.is_in(info) for part in segment.tail.parts)
    held = segment_object.held(store, segment.object)
    return held is not None and segment_object.content_of(held) == (segment.size, segment.crc32c)


def decide(
    store: Store,
    manifest: Manifest,
    base: Sealed | None,
    mutations: LocalMutations,
    captured: Iterable[Table],
    void: LocalDocument | None = None,
    logged: SchemaPlaces | None = None,
) -> LocalDocument:
    """The document that `settle` creates; `void` is an earlier one that is not valid any more."""
    logged = logged or SchemaPlaces({}, {})
    known = read_local(store, manifest.cluster, base.number if base else 0)
    answers, asked, rejected = read_answers(store, manifest.truncations)
    living = {table.id for table in captured if not table.dropped}
    dropped = _drops(_truncations(known.drops), logged)
    ended = _of_earlier_incarnations(dropped, {table.id: table.dropped_at or 0 for table in captured if table.dropped})
    kept = known.model_copy(update={"truncations": _without_drops(known)})
    records, not_understood = learn(kept, manifest.segments, mutations, [answers, _of_tables(dropped, living), ended])
    not_understood += rejected
    after = cuts_by_table(_truncations(records))
    past = _Past(store, manifest, base, known)
    opened: list[UUID] = []
    generations = dict(known.generations)
    for table_id in sorted((living | _dropped_again(ended, logged, known)) & after.keys(), key=str):
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
        newest=newest_after(newest_in_ledger(store, manifest.cluster) if known.newest is None else known.newest, manifest.segments),
        not_understood=not_understood,
        rereads=past.rereads({table_id: after[table_id][1] for table_id in opened}),
    )


def first_generation(manifest: Manifest) -> int:
    """The first generation of a table's state: one that no shard of an earlier chain uses."""
    return 0 if manifest.chain is None else manifest.chain.generation


def last_truncate(document: LocalDocument, table_id: UUID) -> Truncate:
    """The table's last TRUNCATE; there is one if a generation was opened for it."""
    return cuts_by_table(_truncations(document.truncations))[table_id][0]


def _drops(known: Records, logged: SchemaPlaces) -> dict[str, list[Truncation]]:
    """The place up to which each DROP counts in a node's log. A node may log a DROP again, but not before the table
    exists again, so the first place is the right one."""
    more = {host: [logged.reach(host, each, WHOLE_SEGMENT) for each in noted] for host, noted in logged.drops.items()}
    found: dict[str, dict[tuple[UUID, int], Truncation]] = {}
    for host, record in ((host, record) for records in (known, more) for host, noted in records.items() for record in noted):
        first = found.setdefault(host, {}).setdefault((record.table_id, record.timestamp), record)
        if (record.segment, record.position) < (first.segment, first.position):
            found[host][record.table_id, record.timestamp] = record
    return {
        host: sorted(logged.reach(host, each, each.position) if each.position == WHOLE_SEGMENT else each for each in noted.values())
        for host, noted in sorted(found.items())
    }


def _without_drops(known: LocalDocument) -> dict[str, list[TruncationRecord]]:
    """The records of TRUNCATEs. Those of DROPs are added again, as their places may have changed."""
    drops = {(host, each.table_id, each.at, each.writetime) for host, noted in known.drops.items() for each in noted}
    return {
        host: [each for each in noted if (host, each.table_id, each.at, each.writetime) not in drops]
        for host, noted in known.truncations.items()
    }


def _of_earlier_incarnations(drops: Records, dead: Mapping[UUID, int]) -> Records:
    """For tables that are dropped now, by id with the time (µs): all DROPs before that. The id was created again after
    each. There is no record of the last one if it is known from a snapshot of the schema only."""
    last = dict(dead)
    for record in (record for noted in drops.values() for record in noted):
        last[record.table_id] = max(record.timestamp, last.get(record.table_id, record.timestamp))
    return {
        host: [each for each in noted if each.table_id in dead and each.timestamp < last[each.table_id]] for host, noted in drops.items()
    }


def _dropped_again(ended: Records, logged: SchemaPlaces, known: LocalDocument) -> set[UUID]:
    """Tables with a record in `ended` of which this batch is the first to see another DROP, or the CREATE behind a record
    that no batch before has counted. Later batches do not change them."""
    again = {table_id for table_id, _ in _keys(logged.drops) - _keys(_truncations(known.drops))}
    uncounted = _keys(ended) - _keys(_truncations(known.truncations))
    again |= {table_id for table_id, at in _keys(logged.creates) if any(each == table_id and drop < at for each, drop in uncounted)}
    return again & {table_id for table_id, _ in _keys(ended)}


def _keys(records: Records) -> set[tuple[UUID, int]]:
    return {(record.table_id, record.timestamp) for noted in records.values() for record in noted}


def _of_tables(records: Records, tables: Collection[UUID]) -> Records:
    return {host: [record for record in noted if record.table_id in tables] for host, noted in records.items()}


def learn(
    known: LocalDocument, segments: Sequence[SegmentInput], mutations: LocalMutations, answers: Iterable[Records] = ()
) -> tuple[dict[str, list[TruncationRecord]], list[str]]:
    """The known records, those in the log, and those from elsewhere (`answers` of nodes, drops), by host id;
    and the mutations that could not be read, with the reason. An unreadable mutation does not delay other
    nodes' records."""
    facts = {segment.ref.node.host_id: LocalFacts() for segment in segments}
    not_understood = []
    for index, body in mutations:
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
    """The cuts for the workers; `segments` are all that the batch reads, by index. `purged`: see
    `Cuts.of`."""
    sources = [Source(segment.ref.node.host_id, segment.ref.segment.id, segment.sealed_at) for segment in segments]
    found = cuts_by_table(_truncations(document.truncations))
    return Cuts.of({table_id: cut for table_id, (_, cut) in found.items()}, sources, purged)


def all_segments(manifest: Manifest, document: LocalDocument) -> list[SegmentInput]:
    """All segments that the batch reads: those of its manifest, then those to read again."""
    return [*manifest.segments, *(reread.segment for reread in document.rereads)]


def only(manifest: Manifest, document: LocalDocument) -> dict[int, tuple[frozenset[UUID], int]]:
    """For segments to read again, by index in `all_segments`: the tables, and the position after which
    frames are needed."""
    first = len(manifest.segments)
    return {first + index: (frozenset(each.tables), min(each.tables.values())) for index, each in enumerate(document.rereads)}


def _not_followed(table_id: UUID, truncate: Truncate, kept: datetime) -> str:
    at = datetime.fromtimestamp(truncate.at / 1000, UTC)
    return (
        f"table {table_id}: a TRUNCATE of {at:%Y-%m-%dT%H:%M:%SZ} became known too late: later writes cannot be read again, because "
        f"the archive has expired everything before {kept:%Y-%m-%dT%H:%M:%SZ} (archive.keep_days). The table is unchanged: run "
        "cdc_bootstrap for it"
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
    """Sealed batches up to the base: what was known, and their segments."""

    def __init__(self, store: Store, manifest: Manifest, base: Sealed | None, known: LocalDocument) -> None:
        self._store = store
        self._manifest = manifest
        self._base = base
        self._cuts = {base.number if base else 0: cuts_by_table(_truncations(known.truncations))}
        self._mine = {_identity(segment) for segment in manifest.segments}

    def cut(self, table_id: UUID) -> tuple[Truncate, Cut] | None:
        """The cut of the table's state: by the records of the base, or of the last batch that captured the
        table."""
        number = self._base.captured_by(table_id) if self._base else 0
        if number not in self._cuts:
            self._cuts[number] = cuts_by_table(_truncations(read_local(self._store, self._manifest.cluster, number).truncations))
        return self._cuts[number].get(table_id)

    def rereads(self, cuts: Mapping[UUID, Cut]) -> list[Reread]:
        """The archived segments that the new generations need, by name, without those that the batch reads
        anyway."""
        wanted: dict[str, tuple[SegmentInput, dict[UUID, int]]] = {}
        for table_id, cut in cuts.items():
            for segment, position in self._read_again(cut):
                wanted.setdefault(segment.object, (segment, {}))[1][table_id] = position
        return [Reread(segment=segment, tables=tables) for _, (segment, tables) in sorted(wanted.items())]

    def gone(self, cut: Cut) -> datetime | None:
        """The start of the archive's retention, if frames past the cut may be older than that."""
        if self._base is None or self._base.kept_from is None:
            return None
        kept = datetime.fromtimestamp(self._base.kept_from, UTC)
        return kept if self._earliest(cut) < kept else None

    def judged_otherwise(self, old: Cut, new: Cut, since: int) -> bool:
        """Whether `new` may keep a frame that the generation of batch `since` was not given, or reject one
        that it was given; True if that is not known any more."""
        try:
            folded = {_identity(segment): segment for segment in self._folded(since)}
        except ObjectNotFound:
            # Documents of batches that old are deleted.
            return True
        for segment in folded.values():
            both_take_it = _takes_all(old, segment) and _takes_all(new, segment)
            if not both_take_it and _rule(old, segment) != _rule(new, segment):
                return True
        return any(_identity(segment) not in folded for segment in self._past(new))

    def _read_again(self, cut: Cut) -> Iterator[tuple[SegmentInput, int]]:
        """The segments that a new generation needs, each with the position up to which its frames are not
        needed.

        If a node left no record of the TRUNCATE, frames that other nodes have before it are needed: they
        identify copies that are gone too."""
        found = list(self._in_range(cut))
        if all(_takes_all(cut, segment) or segment.ref.node.host_id in cut.noted for segment in found):
            yield from ((segment, _position(cut, segment)) for segment in found if not _takes_all(cut, segment))
        else:
            yield from ((segment, -1) for segment in found)

    def _past(self, cut: Cut) -> Iterator[SegmentInput]:
        """The segments that may hold frames past the cut."""
        return (segment for segment in self._in_range(cut) if not _takes_all(cut, segment))

    def _in_range(self, cut: Cut) -> Iterator[SegmentInput]:
        """The segments of the archive's hours from shortly before the cut on, and those that are not
        archived."""
        # A shadow namespace has only replayed segments; a rebuild reads the remaining ones in later batches.
        partly = self._manifest.namespace is not None or self._manifest.kind == "rebuild"
        for segment in self._folded(_first(self._manifest)) if partly else self._segments_from(self._earliest(cut)):
            if _identity(segment) not in self._mine:
                yield segment

    @staticmethod
    def _earliest(cut: Cut) -> datetime:
        return datetime.fromtimestamp(cut.at / 1000, UTC) - CLOCKS

    def _segments_from(self, start: datetime) -> Iterator[SegmentInput]:
        # The archive is ordered by hours: later names are from that hour on.
        for info in segment_object.every(self._store, layout.archive_prefix(self._manifest.cluster), start_after=self._hour(start)):
            yield SegmentInput.from_object(info)
        yield from self._held()
        yield from self._growing()

    def _hour(self, start: datetime) -> str:
        return layout.archive_hour_prefix(self._manifest.cluster, start)

    def _held(self) -> Iterator[SegmentInput]:
        """Held segments: their intact frames were merged."""
        for name in self._base.held if self._base else ():
            info = self._store.head(name)
            entry = LedgerEntry.read(self._store, layout.SegmentRef.from_object(name).ledger)
            if info is not None and entry is not None and entry.frames:
                yield entry.noted(SegmentInput.from_object(info))

    def _growing(self) -> Iterator[SegmentInput]:
        """The ingested parts of growing segments; their whole files have not arrived, or are in this
        batch."""
        for name, mark in self._base.growing.items() if self._base else ():
            ref = layout.SegmentRef.from_object(name)
            run = segment_parts.run(segment_parts.of(self._store, ref), 0, mark.position)
            if run and run[-1].end == mark.position:
                yield SegmentInput.growing(ref, run)
            elif (info := self._store.head(ref.incoming)) is not None:
                yield SegmentInput.from_object(info)
            elif mark.frames:
                raise BatchError(
                    f"parts with {mark.frames} ingested frames are missing, and a truncated table may need them again",
                    operation="find segments to read again",
                    obj=name,
                    hint=f"Restore them, or put the whole segment at {ref.incoming}; then run the batch again.",
                )

    def _folded(self, since: int) -> Iterator[SegmentInput]:
        """All segments that batches have read from `since` to the base."""
        for number in range(since, self._base.number + 1 if self._base else since):
            if self._base and number in self._base.voided:
                continue
            manifest = read_manifest(self._store, self._manifest.cluster, number)
            yield from all_segments(manifest, read_local(self._store, self._manifest.cluster, number))


def _identity(segment: SegmentInput) -> tuple[layout.SegmentRef, bool, int]:
    """Equal for a segment and its archived copy; for growing segments, equal if they end at the same
    position."""
    return segment.ref, segment.grows, segment.end if segment.grows else segment.crc32c


def _position(cut: Cut, segment: SegmentInput) -> int:
    return cut.position(segment.ref.node.host_id, segment.ref.segment.id, segment.sealed_at)


def _takes_all(cut: Cut, segment: SegmentInput) -> bool:
    return cut.takes_all(segment.ref.node.host_id, segment.ref.segment.id, segment.sealed_at)


def _rule(cut: Cut, segment: SegmentInput) -> tuple[int, Interval | None]:
    """What decides about the segment's frames. A node with a record has no undecided frames: all past its
    position stay."""
    host = segment.ref.node.host_id
    return _position(cut, segment), None if host in cut.noted else cut.undecided(host, segment.ref.segment.id)
