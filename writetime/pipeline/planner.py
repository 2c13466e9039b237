"""Planning: choose the input of the next batch and write it to a manifest.

Strategy: an open batch is always returned again before a new one is planned. Otherwise the incoming segments
(for a replay, the archived segments of an interval of hours) are listed and pinned. The manifest is created
and never overwritten, so only one of two concurrent planners succeeds. Of growing segments, the parts that
follow those of earlier batches are listed. A part after a gap waits; once the whole file has arrived, its
parts are ignored. Segments that are held or in conflict are left out until an operator has cleared them,
segments of a later commit log version until a release that reads it plans.
Segments that were archived before are recognized by the ledger. Nothing is planned before the last batch is
archived (`archiver.archive_last`). If nothing has arrived but a captured value
has expired, a batch without segments publishes the expiry. Does not know Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from operator import itemgetter
from typing import Final
from uuid import UUID, uuid4

from writetime.cassandra.commitlog.descriptor import waits_for_reader
from writetime.cassandra.merge.reconcile import Policy, policy_of
from writetime.cassandra.schema.history import SchemaLearner
from writetime.errors import BatchBusy, BatchClosed, BatchError, ObjectNotFound, PreconditionFailed
from writetime.events.naming import is_shadow_name, namespace_clash
from writetime.pipeline import again, chains, watermark
from writetime.pipeline.completeness import holds
from writetime.pipeline.documents import (
    BatchKind,
    Chain,
    Hold,
    LedgerEntry,
    LocalDocument,
    Manifest,
    Mark,
    PartInput,
    Sealed,
    SegmentInput,
    Tail,
    Watermark,
    released_objects,
)
from writetime.pipeline.erasures import Request, read_request
from writetime.pipeline.incoming import LeftOut, Most, age, read_incoming, released
from writetime.pipeline.interval import checked_interval
from writetime.pipeline.newest_segments import is_newer
from writetime.pipeline.node_facts import NodeFacts, read_facts
from writetime.pipeline.pace import read_pace
from writetime.pipeline.truncation_reports import new_answers
from writetime.storage import layout, segment_object, segment_parts
from writetime.storage.concurrency import at_once
from writetime.storage.segment_parts import Part
from writetime.storage.store import Listed, ObjectInfo, Store
from writetime.untrusted import SCHEMA, SEGMENT

_FORMAT_OF_3_11: Final = 6
_LISTED: Final = 64
"""Batches that are listed in one step of the search for the last one."""
_found_last: dict[tuple[str, str], int] = {}
"""By store and cluster, the last batch that this process has found."""
_RETRY_NOTED: Final = timedelta(hours=1)
_MOST_PARTS: Final = 50_000
"""Parts that one planning lists: those of all growing segments of thousands of nodes. More are those of a backlog."""
_SNAPSHOTS: Final = 1000
"""Maximum number of schema snapshots per batch."""
EXPIRY_PAUSE: Final = 60
"""Minimum seconds between two batches that only report expired values: a table of short TTLs must not start
one batch a second.
"""
OWNERS_TURN: Final = timedelta(minutes=10)
"""How long an open batch other than an ingest is left to the DAG that planned it. Two drivers of one batch are
safe, but waste CPU."""


@dataclass(frozen=True, slots=True)
class History:
    """The last batch number of a cluster, and the last seal that takes effect. `voided`: the batch with the
    last number was voided, so its commits must be reverted."""

    last: int
    sealed: Sealed | None
    voided: bool = False

    @property
    def open(self) -> bool:
        return not self.voided and self.last > self.base

    @property
    def base(self) -> int:
        """The batch from which the next one starts; 0 if there is none."""
        return self.sealed.number if self.sealed else 0


def history(store: Store, cluster: str) -> History:
    """The last batch that was begun and the last that was sealed. Apart from voided batches, they differ by
    at most one."""
    last = max(_latest(store, cluster), default=0)
    for number in (last, last - 1):
        if number > 0 and (found := read_sealed(store, cluster, number)):
            sealed = effective(store, cluster, found)
            if sealed is not None:
                # Segments that were released since are not held any more; the next seal leaves them out.
                held = sorted(set(sealed.held) - released_objects(store, cluster)) if sealed.held else []
                sealed = sealed.model_copy(update={"held": held})
            return History(last, sealed, voided=found.void is not None and number == last)
    return History(last, None)


@contextmanager
def as_of(store: Store, cluster: str, sealed: Sealed, operation: str) -> Iterator[None]:
    """Read as of a seal, outside of a batch. BatchBusy if that fails and another batch was sealed meanwhile: maintenance and
    erasures remove what only earlier batches needed."""
    try:
        yield
    except Exception as error:
        now = history(store, cluster).sealed
        if now is None or now.number == sealed.number:
            raise
        raise BatchBusy(
            f"batch {now.number} was sealed meanwhile",
            operation=operation,
            obj=layout.batch_object(cluster, now.number, "sealed"),
            hint="Run it again.",
        ) from error


def effective(store: Store, cluster: str, sealed: Sealed) -> Sealed | None:
    """The seal; for a voided batch, the seal of its base. None if it has no base."""
    if sealed.void is None:
        return sealed
    return read_sealed(store, cluster, sealed.void.base) if sealed.void.base else None


def not_voided(sealed: Sealed) -> Sealed:
    """The given seal if the batch takes effect; BatchClosed if it was voided."""
    if sealed.void is not None:
        raise BatchClosed(
            f"it was voided by {sealed.void.by}: {sealed.void.reason}",
            operation="run a batch",
            obj=str(sealed.number),
            hint="No action is needed: the next batch ingests its input and reverts its commits.",
        )
    return sealed


def _latest(store: Store, cluster: str) -> list[int]:
    """The numbers of the last few batches. A process that has looked before begins where it found the last one:
    a session looks every few seconds, and a pipeline can have millions of batches."""
    known = _found_last.get((store.url, cluster), 0)
    found = _some_since(store, cluster, known)
    if known and not found:
        # The bucket was put back to an earlier time.
        known, found = 0, _some_since(store, cluster, 0)
    if len(found) == _LISTED:
        found = _search(store, cluster, known)
    if found:
        _found_last[store.url, cluster] = max(found)
    return found


def _search(store: Store, cluster: str, low: int) -> list[int]:
    """The last few batches, of which there is at least one from `low` on, by steps that double and then
    halve."""
    high = low + _LISTED
    while next(_since(store, cluster, high), None):
        low, high = high, high + 2 * (high - low)
    while high - low > _LISTED:
        middle = (low + high) // 2
        low, high = (middle, high) if next(_since(store, cluster, middle), None) else (low, middle)
    return list(_since(store, cluster, low))


def _some_since(store: Store, cluster: str, number: int) -> list[int]:
    return list(islice(_since(store, cluster, number), _LISTED))


def _since(store: Store, cluster: str, number: int) -> Iterator[int]:
    """The numbers of the batches from that one on, ascending. Only a manifest counts as a batch: foreign objects
    must not mislead the search."""
    for info in store.names(layout.batches_prefix(cluster), start_after=layout.batch_folder(cluster, number)):
        if info.name > layout.batch_folders_end(cluster):
            return
        found = layout.batch_number(info.name) if info.name.endswith("/manifest.json") else None
        if found is not None:
            yield found


def read_manifest(store: Store, cluster: str, number: int) -> Manifest:
    return Manifest.model_validate_json(store.read(layout.batch_object(cluster, number, "manifest")))


def read_schema(store: Store, cluster: str, number: int) -> SchemaLearner:
    """The schema as known after a batch; empty for batch 0."""
    return SchemaLearner.from_json(store.read(layout.batch_object(cluster, number, "schema"))) if number else SchemaLearner()


def read_local(store: Store, cluster: str, number: int) -> LocalDocument:
    """What the nodes' logs have reported up to and including a batch; empty for batch 0."""
    found = LocalDocument.read(store, layout.batch_object(cluster, number, "local")) if number else None
    return found or LocalDocument()


def read_sealed(store: Store, cluster: str, number: int) -> Sealed | None:
    return Sealed.read(store, layout.batch_object(cluster, number, "sealed"))


def seal(store: Store, cluster: str, sealed: Sealed) -> Sealed:
    """Create the seal, or return the existing one if another driver of the same batch was first: they differ
    only in their time. BatchError if the batch was voided in the meantime."""
    name = layout.batch_object(cluster, sealed.number, "sealed")
    try:
        sealed.write(store, name, layout.batch_folder(cluster, sealed.number))
    except PreconditionFailed:
        return not_voided(Sealed.read(store, name) or sealed)
    return sealed


def store_clock(store: Store, cluster: str) -> datetime:
    """The current time by the store's clock, which also dates its objects. Planners on different machines
    may have clocks that differ by days. The clock of batches never goes back, and values that expire up to
    that time are reported as deleted."""
    return store.put(layout.clock(cluster), b"\n").created


def plan_ingest(
    store: Store,
    cluster: str,
    *,
    now: datetime,
    max_segments: int = 1000,
    batch_seconds: float | None = None,
    largest: int = SEGMENT,
    datacenters: Collection[str] | None = None,
    check: Callable[[], None] | None = None,
) -> Manifest | None:
    """The manifest to run next: the open batch, or a new one over the segments that have arrived, the oldest ones, at
    most `max_segments`, and as many bytes as batches take `batch_seconds` for (`writetime.pipeline.pace`; None: any).
    None if there is nothing to do. `datacenters`: those that ship, whose nodes hold T; None: all. `check`: raises what
    forbids a new batch.

    Objects of more than `largest` bytes are ignored, so that nobody with write access can exhaust the memory
    of the workers."""
    past = history(store, cluster)
    expect_settled(store, cluster, past, "plan a batch")
    if past.open:
        return read_manifest(store, cluster, past.last)
    _expect_archived(store, cluster, past, "plan a batch")
    # Before the listings: whatever a sign-off speaks of is in them then.
    facts, before = read_facts(store, cluster, tidy=True), watermark.read(store, cluster, past.sealed)
    left = LeftOut()
    held, marks = _held(store, cluster, past.sealed, now), past.sealed.growing if past.sealed else {}
    # Parts first: a file that is completed meanwhile is among the whole ones then.
    partly = _parts(store, cluster, left, largest)
    most = Most(max_segments, None if batch_seconds is None else read_pace(store, cluster).limit(batch_seconds))
    local = read_local(store, cluster, past.base)
    come = read_incoming(store, cluster, held, now, most, left, largest=largest, newest=local.newest)
    segments = [_grown(segment, marks) for segment in come.segments]
    if come.backlog or len(partly) > _MOST_PARTS:
        # The parts of all that waits would be millions of names. Whole segments come first, and T stands still.
        left.nodes |= {each.node.path for each in facts} | {ref.node.path for ref, _ in partly}
    else:
        segments += _growing(store, cluster, partly, past.sealed, come.names, local.newest, left)
    listed = [segment for segment in segments if segment.grows]
    logged_by_none = _segments(store, layout.frames_prefix(cluster), largest)
    made = [each for info in logged_by_none if (each := released(info, held)) is not None]
    segments = _of_one_kind(segments, made, past.sealed)
    # Oldest first, so that a backlog is processed in the order in which it was written.
    segments = most.of(sorted(segments, key=age), lambda segment: segment.size)
    left.without(segments, listed)
    whole_ones = {segment.object for segment in segments if not segment.grows}
    complete = watermark.planned(store, before, past.sealed, facts, whole_ones, left.nodes, datacenters)
    snapshots = _new_snapshots(store, cluster, past.sealed)
    answers = new_answers(store, cluster, local.asked)
    wanted, tried = _made_again(store, cluster, past)
    nothing_new = not segments and not snapshots and not answers and not _something_expired(store, cluster, past.sealed, now)
    # What a batch could not do, such as for a table that is rejected, waits for one that has something else to do.
    nothing_new = nothing_new and wanted.keys() <= set(tried)
    # The commits of a voided batch are reverted by the next batch, even without segments.
    if nothing_new and not past.voided:
        # If another driver has sealed a batch meanwhile, what is not listed any more may be in that one.
        if past.sealed is not None and complete != before and history(store, cluster).last == past.last:
            watermark.advance(store, cluster, complete)
        return None
    if check is not None:
        check()
    known = before, complete
    return _create(store, cluster, past, "ingest", segments, snapshots, now, answers=answers, facts=facts, complete=known, wanted=wanted)


def _made_again(store: Store, cluster: str, past: History) -> tuple[dict[UUID, bool], Collection[UUID]]:
    """The tables that the next batch makes again (`writetime.pipeline.again`), and those of which the last one could not."""
    if past.sealed is None or next(store.names(layout.made_again_prefix(cluster), page=1), None) is None:
        return {}, ()
    base = read_manifest(store, cluster, past.base)
    made = {table_id for table_id, each in past.sealed.again.items() if each.batch == past.base}
    return again.due(store, cluster, past.sealed, base.chain.first if base.chain is not None else 1), base.again.keys() - made


def _parts(store: Store, cluster: str, left: LeftOut, largest: int) -> list[tuple[layout.SegmentRef, Part[Listed]]]:
    """The parts that can be taken in, at most one more than `_MOST_PARTS`."""
    found = []
    for ref, part in segment_parts.found(store, layout.parts_prefix(cluster)):
        if part.end <= largest and not waits_for_reader(ref.segment.version):
            found.append((ref, part))
        else:
            left.nodes.add(ref.node.path)
        if len(found) > _MOST_PARTS:
            break
    return found


def _something_expired(store: Store, cluster: str, sealed: Sealed | None, now: datetime) -> bool:
    """Whether an unreported expiry is due and the last batch is at least `EXPIRY_PAUSE` old."""
    if sealed is None or sealed.next_expiry is None or sealed.next_expiry > now.timestamp():
        return False
    return now.timestamp() >= read_manifest(store, cluster, sealed.number).now + EXPIRY_PAUSE


def plan_replay(
    store: Store, cluster: str, *, start: datetime, end: datetime, now: datetime, namespace: str | None = None
) -> Manifest | None:
    """Plan a batch over the archived segments that were sealed in [start, end), whole hours; None if there
    are none. Raises ConfigError if the interval is empty.

    Raises BatchBusy while another batch is open: run that one first (the next scheduled ingest does), then
    plan again. Raises BatchError if the interval begins before the purge horizon: its tombstones may be
    purged, and the rows that they deleted would reappear. Raises BatchError if the interval begins before
    the archive's retention.

    With a `namespace` the replay is a shadow replay with its own chain of batches. The chain begins with the
    known schema and the TRUNCATEs before the interval. Further replays into the same namespace merge with
    the rows in it. The purge horizon does not apply to it. It waits for an open erasure, which replaces archived
    segments."""
    chain = cluster if namespace is None else layout.shadow_chain(cluster, namespace)
    past = history(store, chain)
    expect_settled(store, cluster, past if namespace is None else history(store, cluster), "plan a replay")
    start, end = asked = checked_interval(start, end, "plan a replay")
    begun = namespace is None or past.sealed is not None
    if past.open and begun:
        open_batch = read_manifest(store, chain, past.last)
        if open_batch.kind == "replay" and open_batch.interval == asked:
            return open_batch
        raise _busy(store, chain, past, "plan a replay")
    expect_replayable(past.sealed if namespace is None else history(store, cluster).sealed, start, cluster, shadow=namespace is not None)
    if namespace is not None:
        _expect_free(store, cluster, namespace)
        _expect_no_open_erasure(store, cluster, "plan a replay")
    _expect_archived(store, chain, past, "plan a replay")
    segments = []
    for hour in _hours(start, end):
        found = segment_object.every(store, layout.archive_hour_prefix(cluster, hour))
        segments += [SegmentInput.from_object(info) for info in found]
    if not segments:
        return None
    if namespace is None:
        return _create(store, cluster, past, "replay", segments, [], now, asked)
    if not begun:
        past = _begin_shadow(store, cluster, namespace, asked)
    snapshots = _new_snapshots(store, cluster, past.sealed)
    return _create(store, cluster, past, "replay", segments, snapshots, now, asked, namespace)


def expect_replayable(live: Sealed | None, start: datetime, cluster: str, *, shadow: bool) -> None:
    """BatchError unless the hours from `start` on can be replayed as of the pipeline's last seal, into the
    live tables or (`shadow`) into a shadow namespace."""
    _expect_kept(live.kept_from if live else None, start, cluster)
    if not shadow:
        _expect_not_behind(live.horizon if live else None, start, cluster)


def _expect_free(store: Store, cluster: str, namespace: str) -> None:
    """BatchError if the namespace may clash with an existing one."""
    sealed = history(store, cluster).sealed
    keyspaces = {table.keyspace for table in read_schema(store, cluster, sealed.number if sealed else 0).schema().tables.values()}
    why = None
    if not is_shadow_name(namespace):
        why = "a namespace consists of lower-case letters, digits and single `_`, and is not `changes`"
    elif (clash := namespace_clash(keyspaces, namespace)) is not None:
        why = f"the keyspace {clash} has that name in the warehouse"
    elif (last := history(store, layout.shadow_chain(cluster, namespace)).sealed) is not None:
        chain = layout.shadow_chain(cluster, namespace)
        why = None if read_manifest(store, chain, last.number).namespace == namespace else f"batches of {chain} belong to a pipeline"
    if why is not None:
        raise BatchError(why, operation="plan a replay", obj=namespace, hint="Choose another name.")


def _begin_shadow(store: Store, cluster: str, namespace: str, interval: tuple[datetime, datetime]) -> History:
    """Seal an empty first batch of the shadow namespace, with the pipeline's schema and the TRUNCATEs before
    the interval. If it is interrupted, the batch stays open, and the next replay completes it as it was begun."""
    chain, sealed = layout.shadow_chain(cluster, namespace), history(store, cluster).sealed
    number = sealed.number if sealed else 0
    facts = read_facts(store, cluster)
    manifest = Manifest(
        number=1,
        kind="replay",
        cluster=chain,
        created_at=interval[1],
        # As if there were no batch before: the first replay reports what has expired by now.
        now=0,
        base=0,
        segments=[],
        nodes=node_addresses(facts),
        merge_rule=merge_rule(facts),
        interval=interval,
        namespace=namespace,
    ).create(store, layout.batch_object(chain, 1, "manifest"))
    begin, _ = manifest.interval or interval
    local, before = read_local(store, cluster, number), int(begin.timestamp() * 1000)
    truncations = {host: [record for record in noted if record.at < before] for host, noted in local.truncations.items()}
    with suppress(PreconditionFailed):
        store.put(layout.batch_object(chain, 1, "schema"), read_schema(store, cluster, number).to_json().encode(), if_generation=0)
    LocalDocument(truncations=truncations).create(store, layout.batch_object(chain, 1, "local"))
    first = Sealed(
        number=1,
        kind="replay",
        sealed_at=manifest.created_at,
        segments=[],
        accounting=[],
        state={},
        snapshots_applied=sealed.snapshots_applied if sealed else [],
    )
    return History(1, seal(store, chain, first))


def plan_maintain(store: Store, cluster: str, *, now: datetime) -> Manifest | None:
    """Plan a batch without input that purges the state; None if there is no state.

    It keeps the clock of the last batch: what has expired since then is reported by the next ingest, and
    must not be purged before."""
    past = history(store, cluster)
    expect_settled(store, cluster, past, "plan maintenance")
    if past.open:
        if (open_batch := read_manifest(store, cluster, past.last)).kind == "maintain":
            return open_batch
        raise _busy(store, cluster, past, "plan maintenance")
    if past.sealed is None or not past.sealed.state:
        return None
    _expect_archived(store, cluster, past, "plan maintenance")
    return _create(store, cluster, past, "maintain", [], [], now, holding=holds(store, cluster, past.sealed))


def plan_erase(store: Store, cluster: str, request: Request, looked: int, *, now: datetime) -> Manifest:
    """The batch that erases a key: the open batch if it erases the same key, else a new one. It has no input
    and keeps the clock of the last batch. `looked`: the batch as of which nothing prevents it.

    Raises BatchBusy while another batch is open, including one of a replay into a namespace, which pins
    archived segments, and if a batch was sealed after `looked`, because the key may have come back."""
    operation = "plan an erasure"
    past = history(store, cluster)
    expect_settled(store, cluster, past, operation)
    if past.open:
        open_batch = read_manifest(store, cluster, past.last)
        found = read_request(store, cluster, open_batch.id) if open_batch.kind == "erase" else None
        if found is not None and found.is_of(request):
            return open_batch
        raise _busy(store, cluster, past, operation)
    if past.base != looked:
        raise BatchBusy(
            f"batch {past.base} was sealed after the key was looked for",
            operation=operation,
            obj=layout.batch_object(cluster, past.base, "sealed"),
            hint="Run it again.",
        )
    expect_no_open_replay(store, cluster, operation)
    _expect_archived(store, cluster, past, operation)
    batch_id = uuid4()
    # First: whoever finds the batch open can finish it.
    numbered = request.model_copy(update={"number": past.last + 1})
    store.put(layout.erasure_request(cluster, str(batch_id)), numbered.to_bytes(), if_generation=0)
    return _create(store, cluster, past, "erase", [], [], now, batch_id=batch_id)


def expect_no_open_replay(store: Store, cluster: str, operation: str) -> None:
    """BatchBusy while a batch of a replay into a namespace is open, which pins archived segments."""
    for chain in namespaces(store, cluster):
        past = history(store, chain)
        # The first one reads nothing, and its replay, which is planned again, waits for the erasure.
        if past.open and past.sealed is not None:
            raise _busy(store, chain, past, operation)


def _expect_no_open_erasure(store: Store, cluster: str, operation: str) -> None:
    past = history(store, cluster)
    if past.open and read_manifest(store, cluster, past.last).kind == "erase":
        raise _busy(store, cluster, past, operation)


def namespaces(store: Store, cluster: str) -> list[str]:
    """The chains of the replays of the cluster into namespaces of their own (`layout.shadow_chain`)."""
    prefix = layout.batches_prefix(layout.shadow_chain(cluster, "")).removesuffix("/")
    found, start = [], ""
    while (info := next(store.names(prefix, start_after=start, page=1), None)) is not None:
        folder = info.name.split("/")[1]
        found.append(layout.unpart(folder))
        start = f"batches/{folder}0"  # "0" comes right after "/"
    return found


def _busy(store: Store, cluster: str, past: History, operation: str) -> BatchBusy:
    manifest = read_manifest(store, cluster, past.last)
    return BatchBusy(
        f"batch {past.last} ({manifest.kind}) is not sealed yet",
        operation=operation,
        obj=layout.batch_object(cluster, past.last, "manifest"),
        hint="It is finished by the next run of cdc_ingest."
        if manifest.namespace is None
        else "Clear the task `ingest` of the run of cdc_replay that planned it, or void it.",
    )


def plan_rebuild(
    store: Store, cluster: str, past: History, chain: Chain, segments: list[SegmentInput], *, answers: list[str], now: datetime
) -> Manifest:
    """The next batch of a rebuild: over these segments, which no batch up to `past` has; the chain's first one takes in all schema
    snapshots too.

    BatchBusy if another driver of the rebuild has created it meanwhile."""
    snapshots = []
    # Also if its first batches were voided: what they took in comes in again.
    if past.base < chain.first:
        past = History(max(chain.first - 1, past.last), None)
        listed = (each for each in store.names(layout.schema_prefix(cluster)) if layout.is_schema_snapshot(each.name))
        # Without a limit: a frame of a table that is not known yet would not come in again.
        snapshots = [info.name for info in listed if info.size <= SCHEMA]
    return _create(store, cluster, past, "rebuild", segments, snapshots, now, answers=answers, chained=chain)


def take_number(store: Store, cluster: str, past: History, chain: Chain, *, now: datetime) -> Manifest:
    """An empty batch that takes the next number. BatchBusy if another planner has it."""
    return _create(store, cluster, past, "rebuild", [], [], now, chained=chain)


def expect_settled(store: Store, cluster: str, past: History, operation: str) -> None:
    """Raise BatchBusy while a rebuild is under way, and BatchError if the batches in the bucket are not those
    that the ledger, the archive or the last rebuild name: batches numbered from 1 again would be older than
    what the warehouse and Kafka have."""
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
        f"the interval begins before {limit:%Y-%m-%dT%H:%M:%SZ}: tombstones of that time are purged from the state, "
        "and rows that they deleted would reappear",
        operation="plan a replay",
        obj=cluster,
        hint="Replay a later interval, or replay this one into a shadow namespace (`namespace`) and compare.",
    )


def _expect_archived(store: Store, cluster: str, past: History, operation: str) -> None:
    """BatchBusy until the last sealed batch is archived: its segments under cdc/ would be ingested again, and
    would be missing from a replay."""
    if past.sealed is None or store.head(layout.batch_object(cluster, past.sealed.number, "archived")):
        return
    if read_manifest(store, cluster, past.sealed.number).kind == "ingest":
        raise BatchBusy(
            f"batch {past.sealed.number} is not archived yet",
            operation=operation,
            obj=layout.batch_object(cluster, past.sealed.number, "sealed"),
            hint="It is archived by the next run of cdc_ingest.",
        )


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
    facts: list[NodeFacts] | None = None,
    complete: tuple[Watermark, Watermark] | None = None,
    wanted: dict[UUID, bool] | None = None,
) -> Manifest:
    chain = cluster if namespace is None else layout.shadow_chain(cluster, namespace)
    # If the clock was set back, values that expired in an earlier batch must not reappear.
    before = read_manifest(store, chain, past.base) if past.base else None
    since = (before.now or None) if before is not None else None
    facts = read_facts(store, cluster) if facts is None else facts
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
        complete=complete[1] if complete else None,
        complete_before=complete[0] if complete else None,
        again=wanted or {},
    )
    name = layout.batch_object(chain, manifest.number, "manifest")
    try:
        store.put(name, manifest.to_bytes(), if_generation=0)
    except PreconditionFailed as error:
        raise BatchBusy(
            "another planner created this batch", operation="plan a batch", obj=name, hint="Plan again: the new batch is returned then."
        ) from error
    return manifest


def _held(store: Store, cluster: str, sealed: Sealed | None, now: datetime) -> dict[str, LedgerEntry | None]:
    """The held segments of the last seal, by object; with their ledger entry if they were cleared since.
    Only the ledger entries of cleared segments are read (`mark_for_retry` creates an object for each),
    because a hundred thousand segments may be held."""
    if sealed is None or not sealed.held:
        return {}
    held: dict[str, LedgerEntry | None] = dict.fromkeys(sealed.held)
    marked = [(info, layout.SegmentRef.from_retry(info.name)) for info in store.list(layout.retries_prefix(cluster))]
    asked = [(info, ref.ledger) for info, ref in marked if ref is not None]
    for (info, _), entry in zip(asked, at_once(lambda each: LedgerEntry.read(store, each[1]), asked), strict=True):
        if entry is not None and entry.state == "retry":
            if entry.object in held:
                held[entry.object] = entry
        elif now - info.created > _RETRY_NOTED:
            # It was ingested since. The delay protects a mark being written now: its ledger entry is written
            # second.
            with suppress(ObjectNotFound, PreconditionFailed):
                store.delete(info.name, if_generation=info.generation)
    return held


def _grown(segment: SegmentInput, marks: Mapping[str, Mark]) -> SegmentInput:
    """The whole segment. What was ingested while it grew is skipped, unless it had problems."""
    mark = marks.get(segment.ref.growing)
    return segment if mark is None or not mark.sound else segment.model_copy(update={"tail": Tail(after=mark)})


def _growing(
    store: Store,
    cluster: str,
    partly: Iterable[tuple[layout.SegmentRef, Part[Listed]]],
    sealed: Sealed | None,
    whole: Container[str],
    newest: Mapping[str, int] | None,
    left: LeftOut,
) -> Iterator[SegmentInput]:
    """The new parts of growing segments. Only those that are taken are looked at, all at once."""
    come = []
    marks = sealed.growing if sealed else {}
    for ref, found in groupby(partly, key=itemgetter(0)):
        mark = marks.get(ref.growing)
        if ref.incoming in whole or (mark is not None and mark.logical is None):
            continue
        parts = [part for _, part in found]
        there = [part for part in parts if part.info.size == part.end - part.start]
        run = segment_parts.run(there, mark.position if mark else 0)
        header = next((part for part in there if part.start == 0), None)
        reached = run[-1].end if run and header is not None else mark.position if mark else 0
        beyond = any(part.end > reached for part in parts)
        come.append((ref, mark, run, header, beyond))
    new = [ref for ref, mark, run, _, beyond in come if (beyond or run) and mark is None and not is_newer(ref, newest)]
    processed = {ref for ref, is_so in zip(new, at_once(lambda ref: _is_processed(store, ref), new), strict=True) if is_so}
    come = [each for each in come if each[0] not in processed]
    left.nodes |= {ref.node.path for ref, *_, beyond in come if beyond}
    taken = [(ref, mark, run, header) for ref, mark, run, header, _ in come if run and header is not None]
    # Where a listing has all facts there is nothing to look at.
    before = _headers(store, cluster, sealed) if any(mark and header.info.info is None for _, mark, _, header in taken) else {}
    unknown = [header for _, mark, _, header in taken if mark and header.info.name not in before]
    looked_at = segment_parts.with_facts(store, [*(part for _, _, run, _ in taken for part in run), *unknown])
    known = {part.info.name: part for part in looked_at}
    headers = before | {name: PartInput.of(part) for name, part in known.items()}
    for ref, mark, run, header in taken:
        first = headers.get(header.info.name) if mark else None
        if any(part.info.name not in known for part in run) or (mark and first is None):
            # Deleted since it was listed: the next batch finds what is there then.
            left.nodes.add(ref.node.path)
            continue
        yield SegmentInput.growing(ref, [known[part.info.name] for part in run], header=first, after=mark)


def _headers(store: Store, cluster: str, sealed: Sealed | None) -> dict[str, PartInput]:
    """The parts with headers that the last batch has pinned, by object: they need no look again. A part that was
    replaced since is noticed when it is read."""
    if sealed is None:
        return {}
    pinned = (each.header for each in read_manifest(store, cluster, sealed.number).segments)
    return {header.object: header for header in pinned if header is not None}


def _is_processed(store: Store, ref: layout.SegmentRef) -> bool:
    """Whether a batch has ingested the whole file, so that its remaining parts only wait for deletion."""
    entry = LedgerEntry.read(store, ref.ledger)
    return entry is not None and entry.state != "growing"


def _of_one_kind(logged: list[SegmentInput], made: list[SegmentInput], sealed: Sealed | None) -> list[SegmentInput]:
    """Segments of nodes or generated frames, alternating if there are both: so a batch knows which rows were
    changed by a log."""
    if not logged or not made:
        return logged or made
    last = (layout.SegmentRef.from_object(outcome.object).node.origin for outcome in sealed.segments) if sealed else ()
    return logged if any(origin != "log" for origin in last) else made


def _segments(store: Store, prefix: str, largest: int) -> Iterator[ObjectInfo]:
    return (info for info in store.list(prefix) if _is_segment(info, largest))


def _is_segment(info: ObjectInfo, largest: int) -> bool:
    """Whether the object has the name of a segment and at most `largest` bytes. Batches ignore all other
    objects in these folders; the status lists them (`writetime.monitoring.ignored`)."""
    return layout.is_segment(info.name) and info.size <= largest


def _new_snapshots(store: Store, cluster: str, sealed: Sealed | None) -> list[str]:
    known = set(sealed.snapshots_applied if sealed else ())
    listed = (each for each in store.names(layout.schema_prefix(cluster)) if layout.is_schema_snapshot(each.name))
    return [info.name for info in islice((info for info in listed if info.name not in known and info.size <= SCHEMA), _SNAPSHOTS)]


def node_addresses(facts: Iterable[NodeFacts]) -> dict[str, str]:
    """Host id to address, from the shippers' status. Addresses are for display only: a node with an invalid
    status is shown by its host id."""
    return {each.node.host_id: each.address for each in facts if each.rejected is None}


def merge_rule(facts: Iterable[NodeFacts], segments: Iterable[SegmentInput] = (), *, base: Manifest | None = None) -> Policy:
    """The release whose rule a batch merges by: taken from the releases in the shippers' status; if no
    shipper can query its node, from the format in the segments' names (6 up to 3.11); otherwise as in the
    batch before."""
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
