"""The drivers, as Airflow's tasks, a session and people start them: the product's own calls, in their order.

Strategy: a driver is a function of the place where it runs. Airflow tries a failed task twice more, and people run a
command again whose error says that a retry helps. What a driver raises after that is its outcome, and the scenario
judges it. Knows no schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from proof.interleavings.jobs import CLUSTER, PREFIX, Mutation, Place, mutations_of, segment_ref
from spark_jobs import erase, ingest, publish, rebuild, stream
from spark_jobs.pack_archive import Care, packer
from writetime.errors import BatchBusy, BatchClosed, LeaseLost, ObjectNotFound, PreconditionFailed, WritetimeError
from writetime.events.naming import progress_topic
from writetime.pipeline import archiver, conflicts
from writetime.pipeline.archive_packing import to_pack
from writetime.pipeline.archiver import archive, archive_last
from writetime.pipeline.documents import LedgerEntry, Manifest, Release
from writetime.pipeline.planner import (
    OWNERS_TURN,
    history,
    plan_ingest,
    plan_maintain,
    plan_replay,
    read_manifest,
    read_sealed,
    store_clock,
)
from writetime.pipeline.publish_progress import publish_due
from writetime.pipeline.sessions import request_stop
from writetime.pipeline.void import void
from writetime.storage import layout, segment_object
from writetime.storage.lease import Lease

T = TypeVar("T")
_RETRIES: Final = 2
_SECONDS: Final = 12.0


def retrying(place: Place, work: Callable[[], T], *, tries: int = _RETRIES + 1) -> T:
    """As Airflow tries a task, or a person a command whose error is retriable."""
    for left in reversed(range(tries)):
        try:
            return work()
        except WritetimeError as error:
            if not left:
                raise
            place.world.note(f"    failed: {type(error).__name__}: {error.message}")
            place.world.block(lambda: False, 30.0)
    raise AssertionError


# --- Airflow


def ingest_run(place: Place) -> int | None:
    """A run of cdc_ingest."""
    store = place.store
    try:
        retrying(place, lambda: archive_last(store, CLUSTER))
    except WritetimeError:
        place.world.note("    archive_last failed; the run goes on")
    manifest = retrying(place, lambda: _planned(place))
    if manifest is None:
        return None
    if manifest.kind != "ingest" and store_clock(store, CLUSTER) - manifest.created_at < OWNERS_TURN:
        # Its own DAG runs it.
        return None
    return run_batch(place, manifest)


def _planned(place: Place) -> Manifest | None:
    try:
        return plan_ingest(place.store, CLUSTER, now=store_clock(place.store, CLUSTER), max_segments=place.config.segments_per_batch)
    except BatchBusy as error:
        place.world.note(f"    busy: {error.message}")
        return None


def run_batch(place: Place, manifest: Manifest) -> int | None:
    def task() -> None:
        config = place.config if manifest.namespace is None else place.config.shadow(manifest.namespace)
        ingest.run(config, manifest.number, session=place.spark())

    try:
        retrying(place, task)
    except BatchClosed as error:
        sealed = read_sealed(place.store, manifest.cluster, manifest.number)
        if sealed is None or sealed.void is None:
            raise
        place.world.note(f"    voided: {error.message}")
        return None
    if manifest.namespace is None:
        retrying(place, lambda: archive(place.store, manifest.cluster, manifest.number))
    return manifest.number


def ingest_until_idle(place: Place, most: int = 20) -> int:
    done = 0
    while ingest_run(place) is not None:
        done += 1
        assert done < most, "batches without an end"
    return done


def publish_run(place: Place, *, again: Sequence[str] = (), everything: bool = False) -> Any:
    """A run of cdc_publish."""
    return retrying(place, lambda: publish.run(place.config, again=again, request="manual", everything=everything))


def publish_if_due(place: Place) -> Any:
    return publish_run(place) if publish_due(place.store, CLUSTER) else None


def again(place: Place) -> Any:
    """*Send all of a table again*: each try of the task is the same request."""
    return publish_run(place, again=["shop.orders"], everything=True)


def replay(place: Place, *, namespace: str | None = None) -> int | None:
    """A run of cdc_replay over all hours: it waits for its turn. `namespace`: the shadow namespace that it writes to."""
    now = store_clock(place.store, CLUSTER)

    def planned() -> Manifest | None:
        archive_last(place.store, CLUSTER)
        return plan_replay(place.store, CLUSTER, start=place.begin, end=now, now=now, namespace=namespace)

    manifest = _in_turn(place, planned)
    return None if manifest is None else run_batch(place, manifest)


def cleared(place: Place, *, namespace: str) -> int | None:
    """The task `ingest` is cleared of the run whose replay into a namespace was interrupted."""
    chain = layout.shadow_chain(CLUSTER, namespace)
    past = history(place.store, chain)
    if not past.open or past.sealed is None:
        return None
    return run_batch(place, read_manifest(place.store, chain, past.last))


def maintenance(place: Place) -> int | None:
    """A run of cdc_maintain: it waits for its turn."""

    def planned() -> Manifest | None:
        archive_last(place.store, CLUSTER)
        return plan_maintain(place.store, CLUSTER, now=store_clock(place.store, CLUSTER))

    manifest = _in_turn(place, planned)
    return None if manifest is None else run_batch(place, manifest)


def care(place: Place) -> Any:
    """The archive's part of a run of cdc_maintain, which packs nothing."""
    return Care(place.config, place.store, place.world.date(), lambda: False).run(lambda: (lambda _: [], 1))


def pack(place: Place) -> list[str]:
    """The rest of that run, some hours later: segments of the archive are packed. Returns what was left as it is, and why."""
    one = packer(place.config)
    found = [one(name) for name in list(to_pack(place.store, CLUSTER, place.world.date() + timedelta(hours=2)))]
    return [f"{each.name}: {each.trouble}" for each in found if each.trouble]


def _in_turn(place: Place, planned: Callable[[], Manifest | None]) -> Manifest | None:
    for _ in range(10):
        try:
            return retrying(place, planned, tries=1)
        except BatchBusy as error:
            place.world.note(f"    waits: {error.message}")
            place.world.block(lambda: False, 15.0)
    return None


# --- a session


class _Unchanged:
    def changed(self) -> str:
        return ""


def session(place: Place, *, seconds: float = _SECONDS) -> str:
    """A session of cdc_stream, whose successor begins when it fails."""

    def run() -> str:
        stop = stream.threading.Event()  # the world's
        return stream.run(place.config, source=_Unchanged(), seconds=seconds, stop=stop, session=place.spark())  # type: ignore[arg-type]

    return retrying(place, run)


# --- people


def rebuild_run(place: Place, *, topics: str | None = None) -> Any:
    """`writetime rebuild`, again if it says so."""
    return retrying(place, lambda: rebuild.run(place.config, topics=topics), tries=4)


def rebuild_once(place: Place) -> Any:
    """Somebody who leaves the rest to others if it fails."""
    return rebuild.run(place.config)


def rebuild_twice(place: Place) -> Any:
    """Somebody who rebuilds, and rebuilds again."""
    rebuild_run(place)
    return rebuild_run(place)


def erase_run(place: Place, *, key: str) -> Any:
    """`writetime erase` of a key of shop.orders, again if it says so."""

    def run() -> Any:
        return erase.run(place.config, "shop.orders", json.dumps({"id": key}), by="somebody", yes=True, spark=place.spark())

    return retrying(place, run, tries=4)


def void_open(place: Place) -> int | None:
    """A person voids the open batch that they see."""
    past = history(place.store, CLUSTER)
    if not past.open:
        return None
    void(place.store, CLUSTER, past.last, reason="it hangs", by="somebody")
    return past.last


def void_planned(place: Place) -> int | None:
    """A batch is planned, and a person voids it before it has done anything."""
    _planned(place)
    return void_open(place)


def ship(place: Place, segments: Sequence[Sequence[Mutation]]) -> int:
    """A shipper uploads segments, one after the other."""
    for mutations in segments:
        place.ship(mutations)
    return len(segments)


def ship_again(place: Place, *, mutations: Sequence[Mutation], number: int) -> None:
    """A shipper that has lost its notes uploads the same segment once more."""
    with suppress(PreconditionFailed):
        # It has come in twice before.
        place.upload(number, mutations)


def count(place: Place, *, times: int = 2) -> None:
    """Somebody counts under a lease, as shards keep their version."""
    for _ in range(times):
        with suppress(LeaseLost), Lease(place.store, layout.state_lease(CLUSTER, "counter", 0, 0, 1)) as lease:
            number = lease.notes.get("count", 0) + 1
            lease.check()
            lease.finish({"count": number})
            place.counted.append(number)


def decide(place: Place, *, rightly: Sequence[Mutation]) -> int:
    """A person decides which bytes of a segment in conflict count: those that hold these mutations. Once more, if that was interrupted
    and others are left."""
    found = [*conflicts.undecided(place.store, CLUSTER), *conflicts.known(place.store, CLUSTER).values()]
    for each in found:
        held = {info.name: mutations_of(segment_object.read(place.store, info.name)) for info in conflicts.candidates(place.store, each)}
        right = [name for name, mutations in held.items() if mutations == [*rightly]]
        if right and len(right) < len(held):
            retrying(place, partial(conflicts.keep, place.store, CLUSTER, right[0], "compared with the node"))
    return len(found)


def repair(place: Place, *, number: int, rightly: Sequence[Mutation]) -> None:
    """A person puts the right bytes in the place of a damaged segment that is quarantined, and clears it."""
    ref = segment_ref(number)
    place.shipped += rightly
    if _is_quarantined(place, ref):
        with suppress(ObjectNotFound):
            place.store.delete(ref.incoming)
        with suppress(PreconditionFailed):
            place.upload(number, rightly)
        retrying(place, lambda: archiver.mark_for_retry(place.store, ref.incoming))


def release(place: Place, *, number: int) -> None:
    """A person gives a damaged segment up. Once more, if that was interrupted."""
    ref = segment_ref(number)
    if _is_quarantined(place, ref) or Release.read(place.store, ref.released) is None:
        retrying(place, lambda: archiver.release(place.store, CLUSTER, ref.incoming, "nobody has the right bytes"))


def _is_quarantined(place: Place, ref: layout.SegmentRef) -> bool:
    """Whether it is at last, after some minutes."""
    for _ in range(10):
        if retrying(place, partial(_is_held, place, ref)):
            return True
        place.world.block(lambda: False, 15.0)
    return False


def _is_held(place: Place, ref: layout.SegmentRef) -> bool:
    entry = LedgerEntry.read(place.store, ref.ledger)
    return entry is not None and entry.state == "quarantined"


def stop_session(place: Place) -> Any:
    """A person asks the session to end after its batch."""
    return retrying(place, lambda: request_stop(place.store, CLUSTER, "somebody"))


def on_fast_clock(place: Place, *, work: Callable[[Place], T], seconds: float = 60.0) -> T:
    """A driver on a machine whose clock is fast."""
    driver = place.world.current_driver()
    assert driver is not None
    driver.ahead = seconds
    return work(place)


# --- what happens to bucket and Kafka


def jumping_clock(place: Place) -> None:
    """The store's clock jumps an hour ahead, and back again."""
    place.world.step("clock: ahead")
    place.store.ahead = 3600.0
    place.world.step("clock: back")
    place.store.ahead = 0.0


def restore_bucket(place: Place) -> Any:
    """The whole bucket is put back from a backup that was made before the last batch, and the warehouse and Kafka are not. Then
    another segment comes in."""
    put_back = place.backup()
    ingest_until_idle(place)
    publish_if_due(place)
    place.world.step("backup: put back")
    put_back()
    place.ship([Mutation("shop.orders", "z", 9, "z9")])
    return ingest_until_idle(place)


def take_name(place: Place, *, table: str) -> None:
    """A table of somebody else has its name in the warehouse for some minutes. What batches reject meanwhile waits."""
    place.world.step(f"warehouse: {table} is somebody else's")
    place.taken.add(table)
    place.world.block(lambda: False, 90.0)
    place.world.step(f"warehouse: {table} is free again")
    place.taken.discard(table)


def clear_held(place: Place) -> None:
    """A person lets the next batch read again the segments that are held."""
    place.taken.clear()
    for info in list(place.store.names(layout.incoming_prefix(CLUSTER))):
        ref = layout.SegmentRef.from_object(info.name)
        if _is_held(place, ref):
            retrying(place, partial(archiver.mark_for_retry, place.store, ref.incoming))


def restore_published(place: Place) -> None:
    """`published/` is put back from a backup. A request that it lacks is forgotten, however far it has come."""
    name = layout.published(CLUSTER)
    kept = place.store.read(name)
    place.world.step("backup: made")
    with place.world.unhindered():
        there = place.store.head(name)
        place.has_forgotten = _requests(place.store.read(name)) != _requests(kept) and _is_sent_again(place)
        place.store.put(name, kept, if_generation=there.generation if there is not None else 0)


def _requests(published: bytes) -> Any:
    return json.loads(published).get("requests", {})


def _is_sent_again(place: Place) -> bool:
    """Whether an event is in its topic twice."""
    values = [value for partition in place.broker.committed(f"{PREFIX}.shop.orders") for _, value in partition]
    return len(values) > len(set(values))


def lose_progress(place: Place) -> None:
    """The topic of publishers' progress is gone."""
    place.world.step("broker: lose progress")
    place.broker.delete_topic(progress_topic(PREFIX))
