"""Planning: decide what the next batch takes in, and freeze it in a manifest.

Strategy: an unsealed batch is always handed out again before anything new. Else the incoming segments (or, for a replay, the
archived ones of an interval of hours) are listed and pinned by generation. The manifest is created, never overwritten, so two
planners cannot both win. Of segments that grow, the parts are listed that follow on what earlier batches have taken in; a part behind a gap
waits, and once the whole file is there, parts are of no interest any more. Segments that wait for a person (`held`, or in conflict) stay
out until somebody has cleared them, and what was archived before is known by its ledger. Where nothing has come in but something captured
has expired, a batch without segments publishes that. Knows no Spark.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nsmallest
from itertools import groupby, islice
from operator import itemgetter
from typing import Final
from uuid import UUID, uuid4

from writetime.cassandra.merge.reconcile import Policy, policy_of
from writetime.cassandra.schema.history import SchemaLearner
from writetime.errors import BatchBusy, BatchError, ObjectNotFound, PreconditionFailed
from writetime.events.naming import is_beside, namespace_clash
from writetime.pipeline import chains, conflicts
from writetime.pipeline.archiver import archive, released
from writetime.pipeline.completeness import holds
from writetime.pipeline.conflicts import Conflict
from writetime.pipeline.documents import (
    BatchKind,
    Chain,
    Hold,
    LedgerEntry,
    LocalDocument,
    Manifest,
    Mark,
    Sealed,
    SegmentInput,
    Tail,
    may_contain,
)
from writetime.pipeline.erasures import Request, read_request
from writetime.pipeline.node_facts import NodeFacts, read_facts
from writetime.pipeline.truncation_reports import new_answers
from writetime.storage import layout, segment_object, segment_parts
from writetime.storage.concurrency import at_once
from writetime.storage.store import ObjectInfo, Store
from writetime.untrusted import SCHEMA, SEGMENT

_FORMAT_OF_3_11: Final = 6
_LISTED: Final = 64
"""Batches that are listed to find the last one."""
_RETRY_NOTED: Final = timedelta(hours=1)
_SNAPSHOTS: Final = 1000
"""Schema snapshots that a batch takes in."""
EXPIRY_PAUSE: Final = 60
"""Seconds between two batches that only tell what has expired: a table full of short TTLs is no reason for a batch a second."""


@dataclass(frozen=True, slots=True)
class History:
    """Where a cluster's batches stand: the last number given out, and the last seal that takes effect.
    `voided`: the batch of that number was voided, so what is left of it has to be taken back."""

    last: int
    sealed: Sealed | None
    voided: bool = False

    @property
    def open(self) -> bool:
        return not self.voided and self.last > self.base

    @property
    def base(self) -> int:
        """The batch that the next one starts from; 0 if there is none."""
        return self.sealed.number if self.sealed else 0


def history(store: Store, cluster: str) -> History:
    """The last batch begun and the last one sealed; but for those that were voided they differ by at most
    one."""
    last = max(_latest(store, cluster), default=0)
    for number in (last, last - 1):
        if number > 0 and (found := read_sealed(store, cluster, number)):
            sealed = effective(store, cluster, found)
            if sealed is not None:
                # What a person has released since holds nothing back any more; the next seal leaves it out.
                held = sorted(set(sealed.held) - released(store, cluster)) if sealed.held else []
                sealed = sealed.model_copy(update={"held": held})
            return History(last, sealed, voided=found.void is not None and number == last)
    return History(last, None)


def effective(store: Store, cluster: str, sealed: Sealed) -> Sealed | None:
    """The seal, or of a voided batch the one that it was to start from; None if there was none."""
    if sealed.void is None:
        return sealed
    return read_sealed(store, cluster, sealed.void.base) if sealed.void.base else None


def not_voided(sealed: Sealed) -> Sealed:
    """The seal of a batch that takes effect; BatchError of one that was voided."""
    if sealed.void is not None:
        raise BatchError(
            f"it was voided by {sealed.void.by}: {sealed.void.reason}",
            operation="run a batch",
            obj=str(sealed.number),
            hint="Nothing is left to do for it: its input comes in with the next batch, which also takes back what it has committed.",
        )
    return sealed


def _latest(store: Store, cluster: str) -> Iterator[int]:
    """The last few batches: found by steps that double, then halve, because a pipeline comes to have millions of them. Only a manifest
    says that there is a batch: any other object there is somebody's own, and must not lead the search on."""

    def since(number: int) -> Iterator[int]:
        for info in store.list(layout.batches_prefix(cluster), start_after=layout.batch_folder(cluster, number)):
            if info.name > layout.batch_folders_end(cluster):
                return
            found = layout.batch_number(info.name) if info.name.endswith("/manifest.json") else None
            if found is not None:
                yield found

    low, high = 0, _LISTED
    while next(since(high), None):
        low, high = high, 2 * high
    while high - low > _LISTED:
        middle = (low + high) // 2
        low, high = (middle, high) if next(since(middle), None) else (low, middle)
    yield from since(low)


def read_manifest(store: Store, cluster: str, number: int) -> Manifest:
    return Manifest.model_validate_json(store.read(layout.batch_object(cluster, number, "manifest")))


def read_schema(store: Store, cluster: str, number: int) -> SchemaLearner:
    """All that was learnt of the schema up to a batch, that one included. Before the first batch (0) that is nothing."""
    return SchemaLearner.from_json(store.read(layout.batch_object(cluster, number, "schema"))) if number else SchemaLearner()


def read_sealed(store: Store, cluster: str, number: int) -> Sealed | None:
    return Sealed.read(store, layout.batch_object(cluster, number, "sealed"))


def seal(store: Store, cluster: str, sealed: Sealed) -> Sealed:
    """Create the seal; the one that is there if another driver of this very batch was first: it is the same
    but for the clock. BatchError if the batch was voided meanwhile."""
    name = layout.batch_object(cluster, sealed.number, "sealed")
    try:
        sealed.write(store, name, layout.batch_folder(cluster, sealed.number))
    except PreconditionFailed:
        return not_voided(Sealed.read(store, name) or sealed)
    return sealed


def store_clock(store: Store, cluster: str) -> datetime:
    """What time the store has, which is the time of planning: the age of its objects is by that clock, and of several machines that
    plan, one may be off by days. A batch's clock never goes back, and what expires until then is told as gone."""
    return store.put(layout.clock(cluster), b"\n").created


def plan_ingest(store: Store, cluster: str, *, now: datetime, max_segments: int = 1000, largest: int = SEGMENT) -> Manifest | None:
    """The manifest to run next: an unsealed one again, else a new one over what has come in; None when there is nothing to do.

    Objects of more than `largest` bytes stay where they are: whoever can write there must not fill the memory of workers."""
    past = history(store, cluster)
    _expect_settled(store, cluster, past, "plan a batch")
    if past.open:
        return read_manifest(store, cluster, past.last)
    _finish(store, cluster, past)
    held, marks = _held(store, cluster, past.sealed, now), past.sealed.growing if past.sealed else {}
    partly = [(ref, part) for ref, part in segment_parts.found(store, layout.parts_prefix(cluster)) if part.end <= largest]
    whole: set[str] = set()
    among = {ref.incoming for ref, _ in partly}
    come = _incoming(store, cluster, held, now, max_segments, among=among, whole=whole, largest=largest)
    segments = [_grown(segment, marks) for segment in come]
    segments += _growing(store, partly, marks, whole)
    logged_by_none = _segments(store, layout.frames_prefix(cluster), largest)
    made = [each for info in logged_by_none if (each := _released(info, held)) is not None]
    segments = _of_one_kind(segments, made, past.sealed)
    # Oldest first, so that a backlog is worked off in the order in which it was written.
    segments = sorted(segments, key=_age)[:max_segments]
    snapshots = _new_snapshots(store, cluster, past.sealed)
    answers = _new_answers(store, cluster, past.sealed)
    nothing_new = not segments and not snapshots and not answers and not _something_expired(store, cluster, past.sealed, now)
    # What a voided batch has committed is taken back by the next one, and does not wait for segments.
    if nothing_new and not past.voided:
        return None
    return _create(store, cluster, past, "ingest", segments, snapshots, now, answers=answers)


def _something_expired(store: Store, cluster: str, sealed: Sealed | None, now: datetime) -> bool:
    """Whether an expiry is due that no batch has told of, and the last batch was not just now."""
    if sealed is None or sealed.next_expiry is None or sealed.next_expiry > now.timestamp():
        return False
    return now.timestamp() >= read_manifest(store, cluster, sealed.number).now + EXPIRY_PAUSE


def plan_replay(
    store: Store, cluster: str, *, start: datetime, end: datetime, now: datetime, namespace: str | None = None
) -> Manifest | None:
    """A batch over the archived segments sealed in [start, end), whole hours; None when there are none.

    BatchBusy while another batch is unsealed: run that one first (the next scheduled ingest does), then plan again. BatchError for an
    interval that begins before the horizon: tombstones of that time may be gone, and what they had deleted would stand up again. And for
    one that begins before what the archive still keeps: only a part of it would be there.

    With a `namespace` it is a batch beside the pipeline's own, of a chain that begins with nothing but what is known of the schema and of
    TRUNCATEs before the interval; further replays into the same namespace are folded into what is there. No horizon is in its way.
    """
    chain = cluster if namespace is None else layout.beside(cluster, namespace)
    past = history(store, chain)
    _expect_settled(store, cluster, past if namespace is None else history(store, cluster), "plan a replay")
    interval = (start.astimezone(UTC), end.astimezone(UTC))
    begun = namespace is None or past.sealed is not None
    if past.open and begun:
        open_batch = read_manifest(store, chain, past.last)
        if open_batch.kind == "replay" and open_batch.interval == interval:
            return open_batch
        raise _busy(store, chain, past, "plan a replay")
    expect_replayable(past.sealed if namespace is None else history(store, cluster).sealed, start, cluster, beside=namespace is not None)
    if namespace is not None:
        _expect_free(store, cluster, namespace)
    _finish(store, chain, past)
    segments = []
    for hour in _hours(start, end):
        found = segment_object.every(store, layout.archive_hour_prefix(cluster, hour))
        segments += [SegmentInput.from_object(info) for info in found]
    if not segments:
        return None
    if namespace is None:
        return _create(store, cluster, past, "replay", segments, [], now, interval)
    if not begun:
        past = _begin_beside(store, cluster, namespace, interval)
    snapshots = _new_snapshots(store, cluster, past.sealed)
    return _create(store, cluster, past, "replay", segments, snapshots, now, interval, namespace)


def expect_replayable(live: Sealed | None, start: datetime, cluster: str, *, beside: bool) -> None:
    """BatchError unless hours from `start` on can be replayed, as of the pipeline's last seal: into the live tables, or `beside` them."""
    _expect_kept(live.kept_from if live else None, start, cluster)
    if not beside:
        _expect_not_behind(live.horizon if live else None, start, cluster)


def _expect_free(store: Store, cluster: str, namespace: str) -> None:
    """BatchError if the namespace cannot be told from what is somebody else's."""
    sealed = history(store, cluster).sealed
    keyspaces = {table.keyspace for table in read_schema(store, cluster, sealed.number if sealed else 0).schema().tables.values()}
    why = None
    if not is_beside(namespace):
        why = "small letters, digits and single `_` make a namespace, and it is not called `changes`"
    elif (clash := namespace_clash(keyspaces, namespace)) is not None:
        why = f"the keyspace {clash} has that name in the warehouse"
    elif (last := history(store, layout.beside(cluster, namespace)).sealed) is not None:
        chain = layout.beside(cluster, namespace)
        why = None if read_manifest(store, chain, last.number).namespace == namespace else f"batches of {chain} are a pipeline's own"
    if why is not None:
        raise BatchError(why, operation="plan a replay", obj=namespace, hint="Choose another name.")


def _begin_beside(store: Store, cluster: str, namespace: str, interval: tuple[datetime, datetime]) -> History:
    """Seal a first batch of the namespace, which is empty: the schema as the pipeline knows it, and TRUNCATEs before the interval. Dying
    half-way leaves it unsealed, and it is written again."""
    chain, sealed = layout.beside(cluster, namespace), history(store, cluster).sealed
    number = sealed.number if sealed else 0
    local = LocalDocument.read(store, layout.batch_object(cluster, number, "local")) or LocalDocument()
    before = int(interval[0].timestamp() * 1000)
    truncations = {host: [record for record in told if record.at < before] for host, told in local.truncations.items()}
    facts = read_facts(store, cluster)
    manifest = Manifest(
        number=1,
        kind="replay",
        cluster=chain,
        created_at=interval[1],
        # As if there were no batch before: whatever has expired by now is for the first replay to tell.
        now=0,
        base=0,
        segments=[],
        nodes=node_addresses(facts),
        merge_rule=merge_rule(facts),
        namespace=namespace,
    )
    store.put(layout.batch_object(chain, 1, "schema"), read_schema(store, cluster, number).to_json().encode())
    store.put(layout.batch_object(chain, 1, "local"), LocalDocument(truncations=truncations).to_bytes())
    store.put(layout.batch_object(chain, 1, "manifest"), manifest.to_bytes())
    first = Sealed(
        number=1,
        kind="replay",
        sealed_at=interval[1],
        segments=[],
        accounting=[],
        state={},
        snapshots_applied=sealed.snapshots_applied if sealed else [],
    )
    return History(1, seal(store, chain, first))


def plan_maintain(store: Store, cluster: str, *, now: datetime) -> Manifest | None:
    """A batch that takes nothing in and drops from the state what may be forgotten; None before there is any state.

    Its clock stands where the last batch left it: what has expired since is told by the next ingest, and is not purged before that.
    """
    past = history(store, cluster)
    _expect_settled(store, cluster, past, "plan maintenance")
    if past.open:
        if (open_batch := read_manifest(store, cluster, past.last)).kind == "maintain":
            return open_batch
        raise _busy(store, cluster, past, "plan maintenance")
    if past.sealed is None or not past.sealed.state:
        return None
    _finish(store, cluster, past)
    return _create(store, cluster, past, "maintain", [], [], now, holding=holds(store, cluster, past.sealed))


def plan_erase(store: Store, cluster: str, request: Request, *, now: datetime) -> Manifest:
    """The batch that erases a key: the open one, if that erases the very same. It takes nothing in, and its clock stands.

    BatchBusy while any other batch is open, also one of a replay into a namespace, which pins what lies in the archive; BatchError
    before there is any batch."""
    operation = "plan an erasure"
    past = history(store, cluster)
    _expect_settled(store, cluster, past, operation)
    if past.open:
        open_batch = read_manifest(store, cluster, past.last)
        found = read_request(store, cluster, open_batch.id) if open_batch.kind == "erase" else None
        if found is not None and found.is_of(request):
            return open_batch
        raise _busy(store, cluster, past, operation)
    if past.sealed is None:
        raise BatchError("no batch is sealed yet", operation=operation, obj=cluster, hint="Nothing of the key has come in.")
    _expect_no_open_replay(store, cluster, operation)
    _finish(store, cluster, past)
    batch_id = uuid4()
    # First: whoever finds the batch open can finish it.
    store.put(layout.erasure_request(cluster, str(batch_id)), request.to_bytes(), if_generation=0)
    return _create(store, cluster, past, "erase", [], [], now, batch_id=batch_id)


def _expect_no_open_replay(store: Store, cluster: str, operation: str) -> None:
    for chain in namespaces(store, cluster):
        past = history(store, chain)
        if past.open:
            raise _busy(store, chain, past, operation)


def namespaces(store: Store, cluster: str) -> list[str]:
    """The chains of the replays of the cluster into namespaces of their own (`layout.beside`)."""
    prefix = layout.batches_prefix(layout.beside(cluster, "")).removesuffix("/")
    found, start = [], ""
    while (info := next(store.list(prefix, start_after=start), None)) is not None:
        folder = info.name.split("/")[1]
        found.append(layout.unpart(folder))
        start = f"batches/{folder}0"  # "0" comes right after "/"
    return found


def _busy(store: Store, cluster: str, past: History, operation: str) -> BatchBusy:
    return BatchBusy(
        f"batch {past.last} ({read_manifest(store, cluster, past.last).kind}) is not sealed yet",
        operation=operation,
        obj=layout.batch_object(cluster, past.last, "manifest"),
        hint="It is finished by the next run of cdc_ingest.",
    )


def plan_rebuild(store: Store, cluster: str, chain: Chain, segments: list[SegmentInput], *, answers: list[str], now: datetime) -> Manifest:
    """The next batch of a rebuild: over these segments; the chain's first one takes in all schema snapshots too.

    BatchBusy if another driver of the rebuild has just created it."""
    past = history(store, cluster)
    snapshots = []
    # Also if its first batches were voided: what they took in comes in again.
    if past.base < chain.first:
        past = History(max(chain.first - 1, past.last), None)
        listed = (info for info in store.list(layout.schema_prefix(cluster)) if layout.is_schema_snapshot(info.name))
        # Without a limit: a frame of a table that is not known yet would not come in again.
        snapshots = [info.name for info in listed if info.size <= SCHEMA]
    return _create(store, cluster, past, "rebuild", segments, snapshots, now, answers=answers, chained=chain)


def _expect_settled(store: Store, cluster: str, past: History, operation: str) -> None:
    """BatchBusy while a rebuild is under way. BatchError if the batches are not those that ledger, archive or the last rebuild speak of:
    a batch that began at 1 again would stand behind what warehouse and Kafka have."""
    rebuild = chains.current(store, cluster)
    if rebuild is not None and rebuild.finished_at is None:
        raise chains.under_way(rebuild, operation, cluster)
    if past.last == 0 and (rebuild is not None or chains.has_past(store, cluster)):
        raise chains.missing(cluster, operation, "is missing, and the cluster has been ingested before")
    if past.last and rebuild is not None:
        found = read_manifest(store, cluster, past.last).chain
        if found is None or found.id != rebuild.chain.id:
            raise chains.missing(cluster, operation, f"has no batch of the chain that began with batch {rebuild.chain.first}")


def _expect_kept(kept_from: int | None, start: datetime, cluster: str) -> None:
    if kept_from is None or layout.hour_of(start).timestamp() >= kept_from:
        return
    limit = datetime.fromtimestamp(kept_from, UTC)
    raise BatchError(
        f"the archive no longer holds what was sealed before {limit:%Y-%m-%dT%H:%M:%SZ}: the configuration says so (`archive.keep_days`)",
        operation="plan a replay",
        obj=cluster,
        hint="Replay a later interval; what the tables lack of that time is read from the ring by cdc_bootstrap.",
    )


def _expect_not_behind(horizon: int | None, start: datetime, cluster: str) -> None:
    # The archive is by hours, and all of the first one is taken in.
    if horizon is None or layout.hour_of(start).timestamp() >= horizon:
        return
    limit = datetime.fromtimestamp(horizon, UTC)
    raise BatchError(
        f"the interval begins before {limit:%Y-%m-%dT%H:%M:%SZ}: tombstones of that time have been purged from the state, "
        "and rows that they deleted would come back",
        operation="plan a replay",
        obj=cluster,
        hint="Replay a later interval; or replay this one into a fresh namespace (`namespace`), and compare.",
    )


def _finish(store: Store, cluster: str, past: History) -> None:
    """A batch that died between seal and archive left its segments in cdc/: they would come in again, and be missing from a replay."""
    if past.sealed:
        archive(store, cluster, past.sealed.number)


def _create(
    store: Store,
    cluster: str,
    past: History,
    kind: BatchKind,
    segments: list[SegmentInput],
    snapshots: list[str],
    now: datetime,
    interval: tuple[datetime, datetime] | None = None,
    namespace: str | None = None,
    answers: list[str] | None = None,
    holding: list[Hold] | None = None,
    chained: Chain | None = None,
    batch_id: UUID | None = None,
) -> Manifest:
    chain = cluster if namespace is None else layout.beside(cluster, namespace)
    # A clock that was set back must not bring to life again what has expired in an earlier batch.
    before = read_manifest(store, chain, past.base) if past.base else None
    since = (before.now or None) if before is not None else None
    facts = read_facts(store, cluster)
    manifest = Manifest(
        number=past.last + 1,
        kind=kind,
        cluster=chain,
        created_at=now,
        now=since if kind in ("maintain", "erase") and since is not None else max(int(now.timestamp()), since or 0),
        base=past.base,
        since=since,
        segments=segments,
        schema_snapshots=snapshots,
        truncations=answers or [],
        nodes=node_addresses(facts),
        merge_rule=merge_rule(facts, segments, base=before),
        interval=interval,
        namespace=namespace,
        id=batch_id or uuid4(),
        holds=holding or [],
        chain=chained or chains.continued(store, cluster, before),
    )
    name = layout.batch_object(chain, manifest.number, "manifest")
    try:
        store.put(name, manifest.to_bytes(), if_generation=0)
    except PreconditionFailed as error:
        raise BatchBusy(
            "another planner has just created this batch", operation="plan a batch", obj=name, hint="Plan again: it will be handed out."
        ) from error
    return manifest


def _held(store: Store, cluster: str, sealed: Sealed | None, now: datetime) -> dict[str, LedgerEntry | None]:
    """The segments that the last seal held back, by object; with the ledger's entry those that were cleared since. The ledger is asked of
    these only (`mark_for_retry` leaves an object for each): a hundred thousand may wait."""
    if sealed is None or not sealed.held:
        return {}
    _adopt_retries(store, cluster, sealed)
    held: dict[str, LedgerEntry | None] = dict.fromkeys(sealed.held)
    marked = [(info, layout.SegmentRef.from_retry(info.name)) for info in store.list(layout.retries_prefix(cluster))]
    asked = [(info, ref.ledger) for info, ref in marked if ref is not None]
    for (info, _), entry in zip(asked, at_once(lambda each: LedgerEntry.read(store, each[1]), asked), strict=True):
        if entry is not None and entry.state == "retry":
            if entry.object in held:
                held[entry.object] = entry
        elif now - info.created > _RETRY_NOTED:
            # It has been taken in since. The pause is for one that is being marked now: its ledger entry comes second.
            with suppress(ObjectNotFound, PreconditionFailed):
                store.delete(info.name, if_generation=info.generation)
    return held


def _adopt_retries(store: Store, cluster: str, sealed: Sealed) -> None:
    """Segments that a release before cleared have the ledger's entry only: once, all that are held are looked at."""
    if store.head(layout.retries_adopted(cluster)) is not None:
        return
    refs = [layout.SegmentRef.from_object(name) for name in sealed.held]
    for ref, entry in zip(refs, at_once(lambda ref: LedgerEntry.read(store, ref.ledger), refs), strict=True):
        if entry is not None and entry.state == "retry":
            store.put(ref.retry, b"{}\n")
    store.put(layout.retries_adopted(cluster), b"{}\n")


def _released(info: ObjectInfo, held: Mapping[str, LedgerEntry | None]) -> SegmentInput | None:
    """The segment, unless it is held back and not cleared. A mended copy does not know how and when its node left it: the ledger does."""
    segment = SegmentInput.from_object(info)
    if info.name not in held:
        return segment
    entry = held[info.name]
    if entry is None:
        return None
    again = may_contain(entry.problems)
    return entry.noted(segment).model_copy(update={"folded_but": None if again is None else sorted(again)})


def _grown(segment: SegmentInput, marks: Mapping[str, Mark]) -> SegmentInput:
    """A whole segment; what was taken in of it while it grew is passed over, if nothing was wrong with that."""
    mark = marks.get(segment.ref.growing)
    return segment if mark is None or not mark.sound else segment.model_copy(update={"tail": Tail(after=mark)})


def _incoming(
    store: Store,
    cluster: str,
    held: Mapping[str, LedgerEntry | None],
    now: datetime,
    most: int,
    *,
    among: Container[str],
    whole: set[str],
    largest: int,
) -> list[SegmentInput]:
    """The oldest whole segments that are new, at most so many. Of the names `among`, those that are there are noted in `whole`."""
    while True:
        known = conflicts.known(store, cluster)
        disputed: set[str] = set()
        # After an outage a million may wait: no more are kept than a batch takes.
        come = _come(store, cluster, held, known, among=among, whole=whole, disputed=disputed, largest=largest)
        found = nsmallest(most, come, key=_age)
        for name in sorted(disputed):
            conflicts.note(store, name, now)
        # What a person has cleared was in the ledger before, and is known to be wanted.
        segments = [segment for segment in found if segment.object in held]
        others = (segment for segment in found if segment.object not in held and segment.object not in disputed)
        segments += conflicts.expect_new(store, others, known, now)
        # If none is new, all were removed or noted by now, and those behind them are looked at.
        if segments or len(found) < most:
            return segments


def _come(
    store: Store,
    cluster: str,
    held: Mapping[str, LedgerEntry | None],
    known: Mapping[str, Conflict],
    *,
    among: Container[str],
    whole: set[str],
    disputed: set[str],
    largest: int,
) -> Iterator[SegmentInput]:
    """The whole segments that a batch may take in, as they are listed. Of the names `among`, those that are there are noted in `whole`;
    those of which a node has shipped other bytes, and nobody knows yet, in `disputed`."""
    for info in store.list(layout.incoming_prefix(cluster)):
        if (name := conflicts.shipped(info.name)) is not None and name not in known:
            disputed.add(name)
        if not _is_segment(info, largest):
            continue
        if info.name in among:
            whole.add(info.name)
        segment = _released(info, held)
        conflict = known.get(info.name)
        if segment is not None and (conflict is None or conflict.admits(segment)):
            yield segment


def _age(segment: SegmentInput) -> tuple[datetime, str]:
    return segment.sealed_at, segment.object


def _growing(
    store: Store, partly: Iterable[tuple[layout.SegmentRef, segment_parts.Part]], marks: Mapping[str, Mark], whole: Container[str]
) -> Iterator[SegmentInput]:
    """What is new of segments of which there are parts only."""
    for ref, found in groupby(partly, key=itemgetter(0)):
        mark = marks.get(ref.growing)
        if ref.incoming in whole or (mark is not None and mark.logical is None):
            continue
        there = [part for _, part in found if part.info.size == part.end - part.start]
        run = segment_parts.run(there, mark.position if mark else 0)
        if not run or (mark is None and _is_processed(store, ref)):
            continue
        header = next((part for part in there if part.start == 0), None)
        if header is not None:
            yield SegmentInput.growing(ref, run, header=header if mark else None, after=mark)


def _is_processed(store: Store, ref: layout.SegmentRef) -> bool:
    """Whether a batch has taken in the whole file, so that these parts are merely not swept yet."""
    entry = LedgerEntry.read(store, ref.ledger)
    return entry is not None and entry.state != "growing"


def _of_one_kind(logged: list[SegmentInput], made: list[SegmentInput], sealed: Sealed | None) -> list[SegmentInput]:
    """Frames of nodes, or frames that no node logged, in turns where there are both: so a batch knows which rows a log has touched."""
    if not logged or not made:
        return logged or made
    last = (layout.SegmentRef.from_object(outcome.object).node.origin for outcome in sealed.segments) if sealed else ()
    return logged if any(origin != "log" for origin in last) else made


def _segments(store: Store, prefix: str, largest: int) -> Iterator[ObjectInfo]:
    return (info for info in store.list(prefix) if _is_segment(info, largest))


def _is_segment(info: ObjectInfo, largest: int) -> bool:
    """Whether the object is named like a segment and is no larger than one may be; anything else in those folders is no business of a
    batch: the status lists it (`writetime.monitoring.ignored`)."""
    return layout.is_segment(info.name) and info.size <= largest


def _new_snapshots(store: Store, cluster: str, sealed: Sealed | None) -> list[str]:
    known = set(sealed.snapshots_applied if sealed else ())
    listed = (info for info in store.list(layout.schema_prefix(cluster)) if layout.is_schema_snapshot(info.name))
    return [info.name for info in islice((info for info in listed if info.name not in known and info.size <= SCHEMA), _SNAPSHOTS)]


def _new_answers(store: Store, cluster: str, sealed: Sealed | None) -> list[str]:
    """What nodes have answered of their TRUNCATEs since the last batch."""
    known = LocalDocument.read(store, layout.batch_object(cluster, sealed.number, "local")) if sealed else None
    return new_answers(store, cluster, known.asked if known else {})


def node_addresses(facts: Iterable[NodeFacts]) -> dict[str, str]:
    """Host id to address, from what the shippers said of their nodes. Addresses are for people only: a node that says nothing sensible
    goes by its host id, and holds up nobody."""
    return {each.node.host_id: each.address for each in facts if each.rejected is None}


def merge_rule(facts: Iterable[NodeFacts], segments: Iterable[SegmentInput] = (), *, base: Manifest | None = None) -> Policy:
    """By which release's rule a batch over these segments merges: by the nodes' releases, as their shippers say. Where no shipper can ask
    its node, by the format of the segments' names, which up to 3.11 was 6; where there are none either, as the batch before."""
    releases = [each.release for each in facts if each.release]
    if releases:
        return policy_of(releases)
    formats = {segment.ref.segment.version for segment in segments if segment.ref.node.origin == "log"}
    if formats:
        return "3.11" if min(formats) <= _FORMAT_OF_3_11 else "4.0"
    return base.merge_rule if base is not None else "4.0"


def _hours(start: datetime, end: datetime) -> Iterator[datetime]:
    hour = layout.hour_of(start)
    while hour < end:
        yield hour
        hour += timedelta(hours=1)
