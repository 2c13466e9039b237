"""Planning and archiving against a real folder store: what a batch takes in, and that every step may be
repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from spark_jobs.stages.scan import _place, content
from tests.cassandra.commitlog.examples import RANGES_TABLE
from tests.cassandra.schema.examples import create_table
from tests.node_objects import schema_name, status_of
from tests.pipeline.planning import plan_ingest, plan_maintain, plan_replay
from writetime.cassandra.commitlog import descriptor
from writetime.cassandra.schema.history import SchemaLearner
from writetime.errors import BatchBusy, BatchError, LeaseLost, ObjectNotFound
from writetime.pipeline import planner
from writetime.pipeline.archive_packing import let_go, pack
from writetime.pipeline.archiver import _settle, archive, archive_last, mark_for_retry
from writetime.pipeline.documents import (
    Accounting,
    Ending,
    LedgerEntry,
    LocalDocument,
    Manifest,
    Problem,
    Sealed,
    SegmentOutcome,
    ShardVersions,
    TruncationRecord,
    total,
)
from writetime.pipeline.erasures import Request
from writetime.pipeline.incoming import LeftOut, Most, read_incoming
from writetime.pipeline.planner import EXPIRY_PAUSE, History, history, read_manifest, read_schema, read_sealed, store_clock
from writetime.pipeline.publish_progress import Published, publish_due, write_published
from writetime.storage import layout, open_store
from writetime.storage.local import LocalStore
from writetime.storage.store import ObjectInfo

CLUSTER = "ring one"
NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
NODE = layout.NodeName(CLUSTER, "dc1", "7b1c0a52-0c43-4f0a-8a57-0242ac120002")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = open_store(str(tmp_path / "bucket"))
    assert isinstance(store, LocalStore)
    return store


def ref(segment_id: int) -> layout.SegmentRef:
    return layout.SegmentRef(NODE, layout.SegmentName(id=segment_id, version=7))


def ship(store: LocalStore, segment_id: int, data: bytes = b"segment", sealed_at: datetime = NOW, ending: Ending = "completed") -> str:
    name = ref(segment_id).incoming
    store.put(name, data, if_generation=0, metadata={"sealed_at": sealed_at.isoformat(), "ending": ending})
    return name


def seal(
    store: LocalStore,
    manifest: Manifest,
    bad: set[str] = frozenset(),  # type: ignore[assignment]
    held: list[str] | None = None,
    expires: list[int | None] | None = None,
    horizon: int | None = None,
) -> Sealed:
    outcomes = [
        SegmentOutcome(
            object=segment.object,
            frames=3,
            updates=3,
            problems=[Problem(kind="corrupt_frame", position=99, size=7, message="CRC")] if segment.object in bad else [],
        )
        for segment in manifest.segments
    ]
    sealed = Sealed(
        number=manifest.number,
        kind=manifest.kind,
        sealed_at=NOW,
        segments=outcomes,
        accounting=[],
        state={"a": ShardVersions(buckets=[1]), "b": ShardVersions(buckets=[1, 1], expires=expires or [])},
        held=sorted(bad) if held is None else held,
        snapshots_applied=manifest.schema_snapshots,
        horizon=horizon,
    )
    store.put(layout.batch_object(manifest.cluster, manifest.number, "sealed"), sealed.to_bytes(), if_generation=0)
    return sealed


def plan(store: LocalStore) -> Manifest | None:
    return plan_ingest(store, CLUSTER, now=NOW)


def planned(store: LocalStore) -> Manifest:
    manifest = plan(store)
    assert manifest is not None
    return manifest


def ledger(store: LocalStore, segment_id: int) -> LedgerEntry:
    entry = LedgerEntry.read(store, ref(segment_id).ledger)
    assert entry is not None
    return entry


def test_nothing_has_come_in(store: LocalStore) -> None:
    assert plan(store) is None


def test_a_manifest_pins_segments_oldest_first(store: LocalStore) -> None:
    younger = ship(store, 2)
    older = ship(store, 3, b"older", sealed_at=NOW - timedelta(hours=1))
    manifest = planned(store)
    assert (manifest.number, manifest.base, manifest.now) == (1, 0, int(NOW.timestamp()))
    assert [segment.object for segment in manifest.segments] == [older, younger]
    info = store.head(older)
    assert info is not None
    assert (manifest.segments[0].generation, manifest.segments[0].crc32c) == (info.generation, info.crc32c)


def test_a_backlog_is_worked_off_from_its_old_end(store: LocalStore) -> None:
    shipped = [ship(store, number, sealed_at=NOW - timedelta(hours=number)) for number in range(1, 6)]
    taken = []
    while (manifest := plan_ingest(store, CLUSTER, now=NOW, max_segments=2)) is not None:
        taken.append([segment.object for segment in manifest.segments])
        seal(store, manifest)
    oldest = list(reversed(shipped))
    assert taken == [oldest[:2], oldest[2:4], oldest[4:]]


def test_foreign_objects_are_left_alone(store: LocalStore) -> None:
    store.put(layout.incoming_prefix(CLUSTER) + "dc1/node/README.txt", b"hello")
    assert plan(store) is None


def test_an_unsealed_batch_is_handed_out_again(store: LocalStore) -> None:
    ship(store, 1)
    first = planned(store)
    ship(store, 2)
    assert planned(store) == first
    seal(store, first)
    second = planned(store)
    assert (second.number, second.base) == (2, 1)
    assert [segment.ref for segment in second.segments] == [ref(2)]


@pytest.mark.advice("It is archived by the next run of cdc_ingest.")
def test_nothing_is_planned_before_the_last_batch_is_archived(store: LocalStore) -> None:
    """Its segment, still under cdc/, would be ingested again."""
    name = ship(store, 1)
    seal(store, planned(store))
    hours = {"start": NOW.replace(minute=0), "end": NOW.replace(minute=0) + timedelta(hours=1)}
    for refused in (
        lambda: planner.plan_ingest(store, CLUSTER, now=NOW),
        lambda: planner.plan_maintain(store, CLUSTER, now=NOW),
        lambda: planner.plan_replay(store, CLUSTER, **hours, now=NOW),
    ):
        with pytest.raises(BatchBusy, match="batch 1 is not archived yet") as raised:
            refused()
        assert raised.value.retriable
    assert archive_last(store, CLUSTER) == {name: "archived"}
    assert archive_last(store, CLUSTER) == {}
    assert store.head(name) is None
    assert ledger(store, 1).state == "archived"
    assert planner.plan_ingest(store, CLUSTER, now=NOW) is None


def test_a_chain_without_batches_has_nothing_to_archive(store: LocalStore) -> None:
    assert archive_last(store, CLUSTER) == {}
    ship(store, 1)
    planned(store)
    assert archive_last(store, CLUSTER) == {}, "the open batch is not sealed"


def test_the_archive_is_by_the_hour_the_segment_was_sealed(store: LocalStore) -> None:
    ship(store, 1, sealed_at=datetime(2026, 5, 3, 23, 59, 59, tzinfo=UTC))
    seal(store, planned(store))
    assert archive(store, CLUSTER, 1) == {ref(1).incoming: "archived"}
    target = f"cdc_archive/ring%20one/date=2026-05-03/hour=23/dc1/{NODE.host_id}/CommitLog-7-1.log"
    assert store.read(target) == b"segment"
    assert ledger(store, 1).archived_as == target
    assert archive(store, CLUSTER, 1) == {}


@pytest.mark.advice("Finish the batch first: clear its ingest task.")
def test_an_unsealed_batch_is_not_archived(store: LocalStore) -> None:
    ship(store, 1)
    manifest = planned(store)
    with pytest.raises(BatchError, match="not sealed"):
        archive(store, CLUSTER, 1)
    seal(store, manifest)
    assert len(archive(store, CLUSTER, 1)) == 1


@pytest.mark.parametrize("died_after", ["copy", "note", "delete"])
def test_archiving_goes_on_from_any_point_of_death(store: LocalStore, died_after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = ship(store, 1)
    seal(store, planned(store))

    class Death(Exception):
        pass

    def dying(step: str) -> None:
        real = getattr(LocalStore, step)

        def call(self: LocalStore, target: str, *args: object, **kwargs: object) -> object:
            result = real(self, target, *args, **kwargs)
            if step != "put" or target.startswith("ledger/"):
                raise Death
            return result

        monkeypatch.setattr(LocalStore, step, call)

    dying({"copy": "copy", "note": "put", "delete": "delete"}[died_after])
    with pytest.raises(Death):
        archive(store, CLUSTER, 1)
    monkeypatch.undo()
    archive(store, CLUSTER, 1)
    entry = ledger(store, 1)
    assert (entry.state, entry.history) == ("archived", [])
    assert entry.archived_as is not None
    assert store.read(entry.archived_as) == b"segment"
    assert store.head(name) is None


def test_other_bytes_in_the_archive_stay_and_hold_up_nothing(store: LocalStore) -> None:
    name, other = ship(store, 1), ship(store, 2)
    store.put(ref(1).archived(NOW), b"other bytes", if_generation=0)
    manifest = planned(store)
    seal(store, manifest)
    assert archive(store, CLUSTER, 1) == {name: "archived", other: "archived"}
    assert store.read(ref(1).archived(NOW)) == b"other bytes"
    archived_as = ledger(store, 1).archived_as
    assert archived_as is not None
    assert archived_as != ref(1).archived(NOW)
    assert store.read(archived_as) == b"segment"
    assert layout.SegmentRef.from_object(archived_as) == ref(1)
    assert store.head(name) is None
    replay = plan_replay(store, CLUSTER, start=NOW.replace(minute=0), end=NOW, now=NOW)
    assert replay is not None
    assert len(replay.segments) == 3


@pytest.mark.parametrize("replacement", [b"replacement", None])
def test_what_was_replaced_before_it_was_archived_is_told_and_holds_up_nothing(store: LocalStore, replacement: bytes | None) -> None:
    name, other = ship(store, 1), ship(store, 2)
    seal(store, planned(store))
    store.delete(name) if replacement is None else store.put(name, replacement)
    assert archive(store, CLUSTER, 1) == {name: "quarantined", other: "archived"}
    assert [problem.kind for problem in ledger(store, 1).problems] == ["replaced"]
    following = plan(store)
    assert [segment.object for segment in (following.segments if following else [])] == ([] if replacement is None else [name])


def test_a_quarantined_segment_waits_until_a_person_clears_it(store: LocalStore) -> None:
    bad, good = ship(store, 1), ship(store, 2)
    seal(store, planned(store), bad={bad})
    archive(store, CLUSTER, 1)
    assert (ledger(store, 1).state, ledger(store, 2).state) == ("quarantined", "archived")
    assert ledger(store, 1).problems[0].position == 99
    assert store.head(good) is None
    assert plan(store) is None

    store.put(bad, b"repaired")
    assert plan(store) is None
    mark_for_retry(store, bad)
    assert ledger(store, 1).state == "retry"
    second = planned(store)
    assert [segment.object for segment in second.segments] == [bad]
    seal(store, second)
    archive(store, CLUSTER, 2)
    entry = ledger(store, 1)
    assert (entry.state, entry.batch) == ("archived", 2)
    assert [step["state"] for step in entry.history] == ["quarantined", "retry"]
    assert (entry.sealed_at, entry.archived_as) == (NOW, ref(1).archived(NOW)), "a mended copy belongs to the hour of the segment"


@pytest.mark.advice("Upgrade writetime to a release that reads it.")
def test_a_segment_of_an_unknown_version_waits_for_a_release_that_reads_it(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not quarantined, holds up no other, and comes in with the first plan of that release."""
    later = replace(ref(3), segment=layout.SegmentName(id=3, version=10))
    store.put(later.incoming, b"whatever", metadata={"sealed_at": NOW.isoformat()})
    store.put(later.part(0, 8), b"whatever")
    known = ship(store, 1)
    assert [segment.object for segment in planned(store).segments] == [known]
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    assert plan(store) is None
    assert store.head(later.ledger) is None
    monkeypatch.setattr(descriptor, "READABLE", (*descriptor.READABLE, 10))
    assert [segment.object for segment in planned(store).segments] == [later.incoming]


def test_parts_of_an_unknown_version_wait_too(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    later = replace(ref(3), segment=layout.SegmentName(id=3, version=10))
    store.put(later.part(0, 8), b"whatever", metadata={"sealed_at": NOW.isoformat(), "logical_to": "8"})
    assert plan(store) is None
    monkeypatch.setattr(descriptor, "READABLE", (*descriptor.READABLE, 10))
    assert [segment.object for segment in planned(store).segments] == [later.growing]


def test_a_node_whose_segments_wait_for_a_release_holds_completeness(store: LocalStore) -> None:
    left = LeftOut()
    later = replace(ref(3), segment=layout.SegmentName(id=3, version=10))
    store.put(later.incoming, b"whatever", metadata={"sealed_at": NOW.isoformat()})
    come = read_incoming(store, CLUSTER, {}, NOW, Most(10), left, largest=1 << 20)
    assert (come.segments, left.nodes) == ([], {NODE.path})


def test_a_mended_copy_is_still_what_a_crash_has_left(store: LocalStore) -> None:
    """Else its torn tail, which is no problem, would hold it for ever."""
    bad = ship(store, 1, ending="after-crash")
    seal(store, planned(store), bad={bad})
    archive(store, CLUSTER, 1)
    store.put(bad, b"mended")
    assert mark_for_retry(store, bad).ending == "after-crash"
    assert [segment.ending for segment in planned(store).segments] == ["after-crash"]


def test_a_ledger_that_does_not_tell_how_a_segment_ended_leaves_it_to_the_object(store: LocalStore) -> None:
    bad = ship(store, 1, ending="after-crash")
    seal(store, planned(store), bad={bad})
    archive(store, CLUSTER, 1)
    store.put(ref(1).ledger, ledger(store, 1).model_copy(update={"ending": "completed"}).to_bytes())
    mark_for_retry(store, bad)
    assert [segment.ending for segment in planned(store).segments] == ["after-crash"]


def test_a_replacement_that_came_after_reading_is_kept_for_the_next_batch(store: LocalStore) -> None:
    name = ship(store, 1)
    manifest = planned(store)
    seal(store, manifest, bad=set())
    store.copy(name, ref(1).archived(NOW))
    store.put(name, b"replacement")
    archive(store, CLUSTER, 1)
    assert store.read(name) == b"replacement"


class Meanwhile:
    """A store whose first look at an object comes after somebody else has done something."""

    def __init__(self, store: LocalStore, name: str, done: Callable[[], object]) -> None:
        self._store, self._name, self._done = store, name, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def head(self, name: str) -> ObjectInfo | None:
        if name == self._name:
            self._name = ""
            self._done()
        return self._store.head(name)


def test_an_archiver_that_is_late_notes_nothing_as_lost_that_is_archived(store: LocalStore) -> None:
    name = ship(store, 1)
    manifest = planned(store)
    seal(store, manifest)
    lease = layout.batch_object(CLUSTER, 1, "archiver")

    def another() -> None:
        # This one was held up for so long that its lease went.
        store.delete(lease)
        assert archive(store, CLUSTER, 1) == {name: "archived"}

    with pytest.raises(LeaseLost):
        archive(cast(Any, Meanwhile(store, name, another)), CLUSTER, 1)
    entry = ledger(store, 1)
    assert (entry.state, entry.problems, entry.history) == ("archived", [], [])
    assert archive(store, CLUSTER, 1) == {}


def test_the_ledger_only_goes_forward(store: LocalStore) -> None:
    name = ship(store, 1)
    first = planned(store)
    outcome = seal(store, first, bad={name}).segments[0]
    archive(store, CLUSTER, 1)
    mark_for_retry(store, name)
    assert _settle(store, 1, first.segments[0], outcome) == "quarantined"
    assert ledger(store, 1).state == "retry", "what a person has cleared stays cleared"
    seal(store, planned(store), held=[])
    archive(store, CLUSTER, 2)
    _settle(store, 1, first.segments[0], outcome)
    assert (ledger(store, 1).state, ledger(store, 1).batch) == ("archived", 2)


def test_two_archivers_at_once_come_to_the_same(store: LocalStore) -> None:
    shipped = [ship(store, number, f"segment {number}".encode()) for number in range(1, 21)]
    seal(store, planned(store))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: archive(store, CLUSTER, 1), range(2)))
    assert sorted(map(len, both)) == [0, 20]
    assert {ledger(store, number).state for number in range(1, 21)} == {"archived"}
    assert [store.head(name) for name in shipped] == [None] * 20


@pytest.mark.parametrize("sealed_already", [False, True])
def test_the_same_bytes_put_again_are_the_same_input(store: LocalStore, sealed_already: bool) -> None:
    name = ship(store, 1, b"the very bytes")
    manifest = planned(store)
    place = _place(0, manifest.segments[0])
    if sealed_already:
        seal(store, manifest)
    store.delete(name)
    ship(store, 1, b"the very bytes")
    assert content(store, place) == b"the very bytes"
    if not sealed_already:
        seal(store, manifest)
    assert archive(store, CLUSTER, 1) == {name: "archived"}
    assert (store.head(name), plan(store)) == (None, None)


def test_clearing_what_is_not_there(store: LocalStore) -> None:
    with pytest.raises(ObjectNotFound, match="no ledger entry"):
        mark_for_retry(store, ref(1).incoming)


def test_a_replay_takes_the_hours_of_its_interval(store: LocalStore) -> None:
    hour = NOW.replace(minute=0)
    for number, offset in ((1, -1), (2, 0), (3, 59), (4, 60)):
        ship(store, number, sealed_at=hour + timedelta(minutes=offset))
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    replay = plan_replay(store, CLUSTER, start=hour, end=hour + timedelta(hours=1), now=NOW)
    assert replay is not None
    assert replay.kind == "replay"
    assert [segment.ref.segment.id for segment in replay.segments] == [2, 3]
    assert plan_replay(store, CLUSTER, start=hour, end=hour + timedelta(hours=1), now=NOW) == replay
    seal(store, replay)
    assert archive(store, CLUSTER, 2) == {}
    assert ledger(store, 2).batch == 1


def test_a_replay_finishes_the_archive_of_a_batch_that_died_after_its_seal(store: LocalStore) -> None:
    hour = NOW.replace(minute=0)
    ship(store, 1, sealed_at=hour)
    seal(store, planned(store))
    replay = plan_replay(store, CLUSTER, start=hour, end=hour + timedelta(hours=1), now=NOW)
    assert replay is not None
    assert [segment.object for segment in replay.segments] == [ref(1).archived(hour)]


@pytest.mark.advice("It is finished by the next run of cdc_ingest.")
def test_a_replay_waits_for_an_open_batch(store: LocalStore) -> None:
    ship(store, 1)
    manifest = planned(store)
    hours = {"start": NOW - timedelta(hours=1), "end": NOW + timedelta(hours=1), "now": NOW}
    with pytest.raises(BatchBusy, match=r"batch 1 \(ingest\) is not sealed yet") as raised:
        plan_replay(store, CLUSTER, **hours)
    assert raised.value.retriable
    seal(store, manifest)
    archive(store, CLUSTER, 1)
    assert plan_replay(store, CLUSTER, **hours) is not None


def test_a_replay_takes_packed_segments_as_what_they_were(store: LocalStore) -> None:
    hour = NOW.replace(minute=0)
    for number in (1, 2):
        ship(store, number, sealed_at=hour, data=b"segment" * 100)
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    pack(store, ref(2).archived(hour), 3)
    replay = plan_replay(store, CLUSTER, start=hour, end=hour + timedelta(hours=1), now=NOW)
    assert replay is not None
    assert [segment.object for segment in replay.segments] == [ref(1).archived(hour), layout.packed(ref(2).archived(hour))]
    assert [(s.ref, s.size, s.sealed_at) for s in replay.segments] == [(ref(1), 700, hour), (ref(2), 700, hour)]
    assert replay.segments[0].crc32c == replay.segments[1].crc32c


@pytest.mark.parametrize("since", ["nothing", "packed", "let go"])
def test_a_segment_that_comes_again_is_known_by_the_ledger(store: LocalStore, since: str) -> None:
    ship(store, 1)
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    (held,) = store.list("cdc_archive/")
    if since == "packed":
        pack(store, held.name, 3)
    elif since == "let go":
        let_go(store, held)
    before = ledger(store, 1)
    ship(store, 1)
    assert plan(store) is None
    assert (store.head(ref(1).incoming), ledger(store, 1), list(store.list("conflicts/"))) == (None, before, [])


def test_a_segment_that_comes_again_is_new_if_the_archive_lost_it(store: LocalStore) -> None:
    ship(store, 1)
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    (held,) = store.list("cdc_archive/")
    store.delete(held.name)
    ship(store, 1)
    seal(store, planned(store))
    assert archive(store, CLUSTER, 2) == {ref(1).incoming: "archived"}
    assert ledger(store, 1).batch == 2


def test_many_that_come_again_hold_up_no_other(store: LocalStore) -> None:
    for number in range(6):
        ship(store, number)
    seal(store, planned(store))
    archive(store, CLUSTER, 1)
    for number in range(6):
        ship(store, number, b"segment" if number % 2 else b"other bytes")
    new = ship(store, 9, sealed_at=NOW + timedelta(hours=1))
    manifest = plan_ingest(store, CLUSTER, now=NOW, max_segments=2)
    assert manifest is not None
    assert [segment.object for segment in manifest.segments] == [new]
    assert [info.name for info in store.list("cdc/")] == [*(ref(number).incoming for number in (0, 2, 4)), new]


@pytest.mark.advice("Replay a later interval; what the tables lack of that time")
def test_a_replay_of_hours_that_the_archive_has_let_go_is_refused(store: LocalStore) -> None:
    hour = NOW.replace(minute=0)
    ship(store, 1, sealed_at=hour)
    manifest = planned(store)
    sealed = seal(store, manifest).model_copy(update={"kept_from": int(hour.timestamp())})
    store.put(layout.batch_object(CLUSTER, 1, "sealed"), sealed.to_bytes())
    with pytest.raises(BatchError, match=r"no longer holds what was sealed before 2026-05-04T12:00:00Z.*keep_days") as raised:
        plan_replay(store, CLUSTER, start=hour - timedelta(minutes=1), end=hour + timedelta(hours=1), now=NOW)
    assert not raised.value.retriable
    assert plan_replay(store, CLUSTER, start=hour, end=hour + timedelta(hours=1), now=NOW) is not None


def told(store: LocalStore, number: int, cluster: str = CLUSTER, *, at: datetime | None = None) -> SchemaLearner:
    """What a sealed batch has learnt: a table, and a node's TRUNCATE of it."""
    learner = SchemaLearner()
    learner.apply(create_table(replace(RANGES_TABLE, keyspace="shop"), 1_600_000_000_000_000))
    store.put(layout.batch_object(cluster, number, "schema"), learner.to_json().encode())
    if at is not None:
        record = TruncationRecord(table_id=RANGES_TABLE.id, segment=1, position=2, at=int(at.timestamp() * 1000), writetime=3)
        later = record.model_copy(update={"at": record.at + 10 * 3_600_000})
        store.put(layout.batch_object(cluster, number, "local"), LocalDocument(truncations={"h": [record, later]}).to_bytes())
    return learner


def test_a_replay_into_a_namespace_is_of_a_chain_of_its_own(store: LocalStore) -> None:
    """Behind the horizon as well, and beside a batch that is open."""
    hour = NOW.replace(minute=0)
    for number, offset in ((1, 0), (2, 60)):
        ship(store, number, sealed_at=hour + timedelta(minutes=offset))
    seal(store, planned(store), horizon=int((hour + timedelta(days=1)).timestamp()))
    learner = told(store, 1, at=hour - timedelta(hours=1))
    archive(store, CLUSTER, 1)
    ship(store, 3)
    planned(store)
    before = {(info.name, info.generation) for info in store.list("")}

    def replay(at: datetime) -> Manifest | None:
        return plan_replay(store, CLUSTER, start=at, end=at + timedelta(hours=1), now=NOW, namespace="check")

    chain = layout.shadow_chain(CLUSTER, "check")
    assert replay(hour - timedelta(days=1)) is None
    assert history(store, chain) == History(0, None)
    first = replay(hour)
    assert first is not None
    assert (first.number, first.kind, first.cluster, first.base, first.since, first.namespace) == (2, "replay", chain, 1, None, "check")
    assert [segment.object for segment in first.segments] == [ref(1).archived(hour)]
    assert replay(hour) == first
    with pytest.raises(BatchBusy):
        replay(hour + timedelta(hours=1))
    origin = read_sealed(store, chain, 1)
    assert origin is not None
    assert (origin.segments, origin.state, origin.horizon) == ([], {}, None)
    assert read_schema(store, chain, 1).to_json() == learner.to_json()
    local = LocalDocument.read(store, layout.batch_object(chain, 1, "local"))
    assert local is not None
    assert [(host, len(records)) for host, records in local.truncations.items()] == [("h", 1)], "none since the interval began"

    seal(store, first)
    told(store, 2, chain)
    second = replay(hour + timedelta(hours=1))
    assert second is not None
    assert (second.number, second.base, second.since) == (3, 2, first.now)
    assert [segment.ref.segment.id for segment in second.segments] == [2]
    after = {(info.name, info.generation) for info in store.list("")}
    assert before <= after
    assert {name.split("/")[1] for name, _ in after - before} == {layout.part(chain)}


def archived_hour(store: LocalStore) -> datetime:
    """When the one hour begins that the archive has a segment of. A node's TRUNCATE was noted an hour before."""
    hour = NOW.replace(minute=0)
    ship(store, 1, sealed_at=hour)
    seal(store, planned(store))
    told(store, 1, at=hour - timedelta(hours=1))
    archive(store, CLUSTER, 1)
    return hour


def test_a_replay_into_a_namespace_waits_for_an_erasure_that_is_open(store: LocalStore) -> None:
    """It would pin archived segments that the erasure replaces."""
    hour = archived_hour(store)
    erasing = planner.plan_erase(store, CLUSTER, Request.of("shop.orders", b"k", None, "a test"), 1, now=NOW)

    def replay() -> Manifest | None:
        return plan_replay(store, CLUSTER, start=hour, end=hour + timedelta(hours=1), now=NOW, namespace="check")

    with pytest.raises(BatchBusy, match=r"batch 2 \(erase\) is not sealed yet"):
        replay()
    assert history(store, layout.shadow_chain(CLUSTER, "check")) == History(0, None)
    seal(store, erasing)
    told(store, 2, at=hour - timedelta(hours=1))
    assert replay() is not None


def test_a_namespace_that_was_begun_and_not_sealed_is_begun_again(store: LocalStore) -> None:
    hour = NOW.replace(minute=0)
    ship(store, 1, sealed_at=hour)
    seal(store, planned(store))
    told(store, 1)
    archive(store, CLUSTER, 1)
    chain = layout.shadow_chain(CLUSTER, "check")
    first = plan_replay(store, CLUSTER, start=hour, end=NOW, now=NOW, namespace="check")
    for name in (layout.batch_object(chain, 2, "manifest"), layout.batch_object(chain, 1, "sealed")):
        store.delete(name)
    again = plan_replay(store, CLUSTER, start=hour, end=NOW, now=NOW, namespace="check")
    assert first is not None
    assert again is not None
    assert again == first.model_copy(update={"id": again.id})


def test_an_erasure_waits_for_replays_that_read_segments_only(store: LocalStore) -> None:
    """The first batch of a namespace reads nothing, and waits for the erasure until it is planned again."""
    hour = archived_hour(store)
    chain, request = layout.shadow_chain(CLUSTER, "check"), Request.of("shop.orders", b"k", None, "a test")
    plan_replay(store, CLUSTER, start=hour, end=NOW, now=NOW, namespace="check")
    with pytest.raises(BatchBusy, match=r"batch 2 \(replay\) is not sealed yet"):
        planner.plan_erase(store, CLUSTER, request, 1, now=NOW)
    for name in (layout.batch_object(chain, 2, "manifest"), layout.batch_object(chain, 1, "sealed")):
        store.delete(name)
    assert planner.plan_erase(store, CLUSTER, request, 1, now=NOW).kind == "erase"


@pytest.mark.advice("Choose another name.")
@pytest.mark.parametrize("namespace", ["changes", "a__b", "_a", "a_", "A", "1a", "", "x", "mine"])
def test_a_namespace_that_is_no_name_or_somebody_elses(store: LocalStore, namespace: str) -> None:
    ship(store, 1)
    mine = planned(store)
    seal(store, mine)
    told(store, 1)
    learner = read_schema(store, CLUSTER, 1)
    learner.apply(create_table(replace(RANGES_TABLE, keyspace="shop__x", id=UUID(int=5)), 1_600_000_000_000_000))
    store.put(layout.batch_object(CLUSTER, 1, "schema"), learner.to_json().encode())
    other = mine.model_copy(update={"cluster": layout.shadow_chain(CLUSTER, "mine")})
    store.put(layout.batch_object(other.cluster, 1, "manifest"), other.to_bytes())
    seal(store, other)
    archive(store, CLUSTER, 1)

    def replay(namespace: str) -> Manifest | None:
        return plan_replay(store, CLUSTER, start=NOW.replace(minute=0), end=NOW + timedelta(hours=1), now=NOW, namespace=namespace)

    with pytest.raises(BatchError, match="plan a replay"):
        replay(namespace)
    assert replay("another") is not None


def test_a_replay_of_empty_hours(store: LocalStore) -> None:
    assert plan_replay(store, CLUSTER, start=NOW, end=NOW + timedelta(hours=3), now=NOW) is None


def test_a_new_snapshot_alone_makes_a_batch_once(store: LocalStore) -> None:
    name = schema_name(CLUSTER, NOW, "v1")
    store.put(name, b"{}")
    manifest = planned(store)
    assert manifest.schema_snapshots == [name]
    seal(store, manifest)
    assert plan(store) is None


def test_nodes_come_with_their_addresses(store: LocalStore) -> None:
    store.put(status_of(NODE), json.dumps({"host_id": NODE.host_id, "address": "10.0.0.1"}).encode())
    ship(store, 1)
    assert planned(store).nodes == {NODE.host_id: "10.0.0.1"}


@pytest.mark.parametrize(
    ("releases", "rule"),
    [
        (["3.11.19"], "3.11"),
        (["4.1.10"], "4.0"),
        # Until the last node is upgraded the older rule holds.
        (["4.1.10", "3.11.19"], "3.11"),
        # Of segments only: those of the tests are of format 7.
        ([None], "4.0"),
    ],
)
def test_a_batch_pins_the_rule_that_follows_the_nodes_releases(store: LocalStore, releases: list[str | None], rule: str) -> None:
    for at, release in enumerate(releases):
        node = layout.NodeName(CLUSTER, "dc1", f"node-{at}")
        store.put(status_of(node), json.dumps({"host_id": node.host_id, "release_version": release}).encode())
    ship(store, 1)
    manifest = planned(store)
    assert manifest.merge_rule == rule
    # An upgrade in between does not change a batch that is begun.
    for info in store.list(layout.nodes_prefix(CLUSTER)):
        store.put(info.name, b'{"release_version": "5.0.6"}')
    assert planned(store) == manifest
    seal(store, manifest)
    ship(store, 2)
    assert planned(store).merge_rule == "4.0"


def test_where_no_shipper_can_ask_its_node_the_format_of_segments_says_the_rule(store: LocalStore) -> None:
    old = layout.SegmentRef(NODE, layout.SegmentName(id=1, version=6))
    store.put(old.incoming, b"segment", if_generation=0, metadata={"sealed_at": NOW.isoformat(), "ending": "completed"})
    first = planned(store)
    assert first.merge_rule == "3.11"
    seal(store, first)
    store.put(schema_name(CLUSTER, NOW, "v"), b"{}")
    second = planned(store)
    assert (second.segments, second.merge_rule) == ([], "3.11")


def test_a_manifest_of_before_the_rule_was_noted_means_that_of_4_0(store: LocalStore) -> None:
    ship(store, 1)
    document = planned(store).model_dump(mode="json")
    del document["merge_rule"]
    assert Manifest.model_validate(document).merge_rule == "4.0"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"no JSON",
        b"[]",
        b'{"host_id": "other", "address": "10.0.0.9"}',
        b"[" * 2000,
        b'{"address": "\\ud800"}',
        b'{"a": ' + b"1" * 5000 + b"}",
    ],
)
def test_a_node_that_says_nothing_sensible_holds_up_nobody(store: LocalStore, said: bytes) -> None:
    other = layout.NodeName(CLUSTER, "dc1", "other")
    store.put(status_of(NODE), said)
    store.put(status_of(other), b'{"host_id": "other", "address": null}')
    ship(store, 1)
    assert planned(store).nodes == {"other": ""}


@pytest.mark.parametrize(
    ("noted", "understood"),
    [("2026-05-04T12:00:00", NOW - timedelta(minutes=30)), ("2026-05-04T14:00:00+02:00", NOW - timedelta(minutes=30))],
)
def test_when_a_segment_was_sealed_is_told_in_any_zone(store: LocalStore, noted: str, understood: datetime) -> None:
    store.put(ref(1).incoming, b"segment", metadata={"sealed_at": noted})
    ship(store, 2)
    assert [segment.sealed_at for segment in planned(store).segments] == [understood, NOW]


@pytest.mark.parametrize("noted", ["", "yesterday"])
def test_a_segment_that_does_not_say_when_it_was_sealed_came_when_it_came(store: LocalStore, noted: str) -> None:
    info = store.put(ref(1).incoming, b"segment", metadata={"sealed_at": noted})
    assert planned(store).segments[0].sealed_at == info.created


def test_time_does_not_run_backwards(store: LocalStore) -> None:
    ship(store, 1)
    first = planned(store)
    seal(store, first)
    ship(store, 2)
    second = plan_ingest(store, CLUSTER, now=NOW - timedelta(hours=1))
    assert second is not None
    assert second.now == first.now


def test_the_time_of_planning_is_the_stores(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose clock is off must not tell as gone what is not, nor wait for what is due: a batch's
    clock never goes back."""
    put = store.put
    monkeypatch.setattr(store, "put", lambda *args, **named: replace(put(*args, **named), created=NOW))
    assert store_clock(store, CLUSTER) == NOW
    monkeypatch.undo()
    before = datetime.now(UTC)
    assert before - timedelta(seconds=1) <= store_clock(store, CLUSTER) <= datetime.now(UTC) + timedelta(seconds=1)
    assert store_clock(store, CLUSTER) >= before - timedelta(seconds=1), "each time anew"
    assert history(store, CLUSTER).last == 0


def test_a_batch_tells_what_expired_since_the_one_before(store: LocalStore) -> None:
    ship(store, 1)
    first = planned(store)
    assert first.since is None
    seal(store, first)
    ship(store, 2)
    later = plan_ingest(store, CLUSTER, now=NOW + timedelta(minutes=3))
    assert later is not None
    assert (later.since, later.now) == (first.now, first.now + 180)


@pytest.mark.parametrize(
    ("expires", "seconds", "planned"),
    [
        ([None, 100], 99, False),
        ([None, 100], 100, True),
        ([100, 5000], 100, True),
        ([1], EXPIRY_PAUSE - 1, False),
        ([1], EXPIRY_PAUSE, True),
        ([None], 10**9, False),
        ([], 10**9, False),
    ],
)
def test_an_expiry_that_is_due_makes_a_batch_but_not_one_a_second(
    store: LocalStore, expires: list[int | None], seconds: int, planned: bool
) -> None:
    ship(store, 1)
    first = plan(store)
    assert first is not None
    seal(store, first, expires=[None if at is None else first.now + at for at in expires])
    found = plan_ingest(store, CLUSTER, now=NOW + timedelta(seconds=seconds))
    assert (found is not None) == planned
    if found is not None:
        assert (found.segments, found.since, found.now) == ([], first.now, first.now + seconds)
        seal(store, found, expires=[None])
        assert plan_ingest(store, CLUSTER, now=NOW + timedelta(days=9)) is None


def test_what_expires_in_a_table_that_is_not_captured_makes_no_batch(store: LocalStore) -> None:
    ship(store, 1)
    first = planned(store)
    sealed = seal(store, first, expires=[first.now + 100, None])
    out = {name: versions.captured_up_to(1) for name, versions in sealed.state.items()}
    assert (sealed.next_expiry, sealed.model_copy(update={"state": out}).next_expiry) == (first.now + 100, None)
    store.put(layout.batch_object(CLUSTER, 1, "sealed"), sealed.model_copy(update={"state": out}).to_bytes())
    assert plan_ingest(store, CLUSTER, now=NOW + timedelta(days=1)) is None


def test_maintenance_takes_nothing_in_and_its_clock_stands_still(store: LocalStore) -> None:
    assert plan_maintain(store, CLUSTER, now=NOW) is None
    ship(store, 1)
    first = planned(store)
    with pytest.raises(BatchBusy, match=r"batch 1 \(ingest\) is not sealed yet"):
        plan_maintain(store, CLUSTER, now=NOW)
    seal(store, first)
    ship(store, 2)
    later = NOW + timedelta(days=1)
    found = plan_maintain(store, CLUSTER, now=later)
    assert found is not None
    assert (found.kind, found.segments, found.base, found.now, found.since) == ("maintain", [], 1, first.now, first.now)
    assert plan_maintain(store, CLUSTER, now=later) == found == plan_ingest(store, CLUSTER, now=later)
    with pytest.raises(BatchBusy, match=r"batch 2 \(maintain\) is not sealed yet"):
        plan_replay(store, CLUSTER, start=NOW, end=NOW + timedelta(hours=1), now=NOW)
    seal(store, found)
    assert archive(store, CLUSTER, 2) == {}
    following = plan_ingest(store, CLUSTER, now=later)
    assert following is not None
    assert (following.since, [segment.ref for segment in following.segments]) == (first.now, [ref(2)])


@pytest.mark.advice("Replay a later interval, or replay this one into a shadow namespace")
def test_a_replay_does_not_reach_behind_what_was_purged(store: LocalStore) -> None:
    hour = NOW.replace(minute=0)
    ship(store, 1, sealed_at=hour + timedelta(hours=1))
    seal(store, planned(store), horizon=int(hour.timestamp()) + 1)
    # All of an hour is taken in, whenever in it the interval begins.
    for minutes in (0, 30):
        with pytest.raises(BatchError, match=r"the interval begins before 2026-05-04T12:00:01Z.*shadow namespace") as raised:
            plan_replay(store, CLUSTER, start=hour + timedelta(minutes=minutes), end=hour + timedelta(hours=2), now=NOW)
        assert not raised.value.retriable
    hours = {"end": hour + timedelta(hours=2), "now": NOW}
    store.put(layout.batch_object(CLUSTER, 1, "schema"), SchemaLearner().to_json().encode())
    assert plan_replay(store, CLUSTER, start=hour, **hours, namespace="check") is not None
    assert plan_replay(store, CLUSTER, start=hour + timedelta(hours=1), **hours) is not None


@dataclass
class Long:
    """A store that has documents of so many batches, and counts what it lists."""

    last: int
    first: int = 1
    listed: int = 0
    url: str = field(default_factory=lambda: uuid4().hex)

    def names(self, prefix: str, *, start_after: str = "", page: int = 1000) -> Iterator[Named]:
        given = start_after.rsplit("/", 1)[-1]
        for number in range(max(self.first, int(given or 0)), self.last + 1):
            for what in ("archived", "local", "manifest", "schema", "sealed"):
                self.listed += 1
                name = layout.batch_object(CLUSTER, number, what)
                assert name > start_after
                yield Named(name)

    def read(self, name: str) -> bytes:
        raise ObjectNotFound("no", operation="read", obj=name)


@dataclass
class Named:
    name: str


@pytest.mark.parametrize(
    ("last", "first"), [(0, 1), (1, 1), (63, 1), (64, 1), (65, 1), (100, 1), (128, 90), (1_000_000, 1), (777_777, 777_000)]
)
def test_the_last_batch_is_found_without_a_look_at_all(last: int, first: int) -> None:
    store: Any = Long(last, first)
    assert history(store, CLUSTER).last == last
    assert store.listed <= 2 * 5 * 65 + 40
    # The next look begins there, however many batches there are.
    store.last, store.listed = last + 1, 0
    assert history(store, CLUSTER).last == last + 1
    assert store.listed <= (10 if last else 5)
    store.last, store.listed = last + 300, 0
    assert history(store, CLUSTER).last == last + 300
    # A bucket that was put back to an earlier time has fewer.
    store.last = max(last - 70, 0)
    assert history(store, CLUSTER).last == (store.last if store.last >= first else 0)


@pytest.mark.advice("Plan again: the new batch is returned then.")
def test_two_planners_cannot_both_win(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(store, 1)
    past = history(store, CLUSTER)
    first = planned(store)
    with monkeypatch.context() as patch:
        patch.setattr("writetime.pipeline.planner.history", lambda *_: past)
        with pytest.raises(BatchBusy, match="another planner"):
            plan(store)
    assert read_manifest(store, CLUSTER, 1).number == 1
    assert plan(store) == first


def test_publishing_is_due_after_a_seal(store: LocalStore) -> None:
    assert not publish_due(store, CLUSTER)
    ship(store, 1)
    seal(store, planned(store))
    assert publish_due(store, CLUSTER)
    write_published(store, CLUSTER, Published(batch=1, events=5, waiting={"shop.orders": 0}))
    assert publish_due(store, CLUSTER)
    write_published(store, CLUSTER, Published(batch=1, events=5))
    assert not publish_due(store, CLUSTER)


def test_accounting_balances_or_says_so() -> None:
    good = Accounting(table="a.b", updates_in=6, applied=1, duplicate=4, superseded=1)
    bad = Accounting(table="a.c", updates_in=2, applied=1)
    assert good.balanced
    assert not bad.balanced
    assert total([good, bad]).updates_in == 8
