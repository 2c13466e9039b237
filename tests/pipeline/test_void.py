"""Voiding, by the documents alone: who wins, where the next batch starts, and what is left out from then
on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from spark_jobs.stages import erase_key
from tests.pipeline.planning import plan_ingest, plan_maintain, plan_replay
from tests.pipeline.test_planner import (
    CLUSTER,
    NODE,
    NOW,
    plan,
    planned,
    ref,
    seal,
    ship,
)
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.history import SchemaLearner
from writetime.errors import BatchBusy, BatchClosed, BatchError, PreconditionFailed
from writetime.pipeline import erasures
from writetime.pipeline import planner as planning
from writetime.pipeline.archiver import archive
from writetime.pipeline.completeness import node_ends
from writetime.pipeline.documents import LocalDocument, Manifest, Sealed, SegmentInput
from writetime.pipeline.erasures import Request
from writetime.pipeline.node_logs import _Past
from writetime.pipeline.planner import history, plan_erase, read_manifest, read_sealed
from writetime.pipeline.publish_progress import Published, publish_due, write_published
from writetime.pipeline.void import void, voided_before
from writetime.storage import layout, open_store
from writetime.storage.local import LocalStore

WHY = {"reason": "its segment is lost", "by": "ann"}


@pytest.fixture
def store(tmp_path: object) -> LocalStore:
    made = open_store(f"{tmp_path}/bucket")
    assert isinstance(made, LocalStore)
    return made


def finish(store: LocalStore, manifest: Manifest) -> Sealed:
    """Seal a batch as ingest does."""
    base = read_sealed(store, CLUSTER, manifest.base) if manifest.base else None
    sealed = seal(store, manifest).model_copy(update={"voided": voided_before(store, manifest, base)})
    store.put(layout.batch_object(CLUSTER, manifest.number, "sealed"), sealed.to_bytes())
    return sealed


def test_the_erasure_of_a_voided_batch_is_revoked(store: LocalStore) -> None:
    ship(store, 1)
    finish(store, planned(store))
    archive(store, CLUSTER, 1)
    erasing = plan_erase(store, CLUSTER, Request.of("shop.orders", b"k", None, "a test"), 1, now=NOW)
    void(store, CLUSTER, erasing.number, **WHY)
    (revoked,) = erasures.listed(store, CLUSTER)
    assert (revoked.number, revoked.revoked, revoked.by) == (erasing.number, True, "ann")
    assert erasures.load(store, CLUSTER) == {}


def test_its_input_comes_in_with_the_next_batch_which_starts_from_the_base(store: LocalStore) -> None:
    ship(store, 1)
    first = planned(store)
    finish(store, first)
    later = ship(store, 2)
    given_up = plan_ingest(store, CLUSTER, now=NOW + timedelta(minutes=5))
    assert given_up is not None
    sealed = void(store, CLUSTER, 2, **WHY)
    assert sealed.void is not None
    assert (sealed.void.reason, sealed.void.by, sealed.void.base) == ("its segment is lost", "ann", 1)
    past = history(store, CLUSTER)
    assert (past.last, past.base, past.open, past.voided) == (2, 1, False, True)
    assert past.sealed is not None
    assert past.sealed.number == 1
    with pytest.raises(BatchClosed, match="voided by ann"):
        planning.not_voided(sealed)
    following = planned(store)
    assert (following.number, following.base, following.since) == (3, 1, first.now)
    assert [segment.object for segment in following.segments] == [later]
    assert following.now < given_up.now, "the clock of a batch without effect does not count"
    assert plan(store) == following, "an open batch is handed out again"
    assert not history(store, CLUSTER).voided
    after = finish(store, following)
    assert after.voided == {2: given_up.id}
    assert (history(store, CLUSTER).sealed, history(store, CLUSTER).open) == (after, False)


def test_the_first_batch_of_all(store: LocalStore) -> None:
    ship(store, 1)
    manifest = planned(store)
    void(store, CLUSTER, 1, **WHY)
    past = history(store, CLUSTER)
    assert (past.last, past.sealed, past.open, past.voided) == (1, None, False, True)
    following = planned(store)
    assert (following.number, following.base, following.since) == (2, 0, None)
    assert finish(store, following).voided == {1: manifest.id}
    void_of_nothing_new = plan(store)
    assert void_of_nothing_new is None


def test_several_in_a_row_start_from_the_same_base_and_are_all_known(store: LocalStore) -> None:
    ship(store, 1)
    finish(store, planned(store))
    ship(store, 2)
    ids = {}
    for number in (2, 3, 4):
        ids[number] = planned(store).id
        void(store, CLUSTER, number, **WHY)
    following = planned(store)
    assert (following.number, following.base) == (5, 1)
    assert finish(store, following).voided == ids
    ship(store, 3)
    assert finish(store, planned(store)).voided == ids, "carried on"


def test_a_batch_is_planned_though_nothing_has_come_in_once(store: LocalStore) -> None:
    ship(store, 1)
    first = planned(store)
    finish(store, first)
    archive(store, CLUSTER, 1)
    ship(store, 2)
    planned(store)
    void(store, CLUSTER, 2, **WHY)
    store.delete(ref(2).incoming)
    empty = planned(store)
    assert (empty.number, empty.segments) == (3, [])
    finish(store, empty)
    assert plan(store) is None


@pytest.mark.advice("Replay its hours (cdc_replay) if something in it was wrong")
def test_a_seal_and_a_void_exclude_each_other(store: LocalStore) -> None:
    ship(store, 1)
    manifest = planned(store)
    void(store, CLUSTER, 1, **WHY)
    late = Sealed(number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={})
    with pytest.raises(BatchError, match="voided by ann: its segment is lost"):
        planning.seal(store, CLUSTER, late)
    with pytest.raises(PreconditionFailed):
        late.write(store, layout.batch_object(CLUSTER, 1, "sealed"), layout.batch_folder(CLUSTER, 1))
    finish(store, planned(store))
    with pytest.raises(BatchError, match="sealed"):
        void(store, CLUSTER, 2, **WHY)
    assert manifest.number == 1
    archive(store, CLUSTER, 2)
    replay = plan_replay(store, CLUSTER, start=NOW - timedelta(hours=1), end=NOW + timedelta(hours=1), now=NOW)
    assert replay is not None
    assert [segment.ref for segment in replay.segments] == [ref(1)]


def test_who_is_second_finds_the_void_of_the_first(store: LocalStore) -> None:
    ship(store, 1)
    planned(store)
    first = void(store, CLUSTER, 1, **WHY)
    assert void(store, CLUSTER, 1, reason="something else", by="bob") == first
    finish(store, planned(store))
    assert void(store, CLUSTER, 1, reason="something else", by="bob") == first, "whatever has come since"


@pytest.mark.parametrize("sealed_first", [True, False])
def test_a_void_that_loses_the_race_says_what_won(store: LocalStore, monkeypatch: pytest.MonkeyPatch, sealed_first: bool) -> None:
    ship(store, 1)
    manifest = planned(store)
    write = Sealed.write

    def beaten(self: Sealed, *where: str) -> None:
        monkeypatch.setattr(Sealed, "write", write)
        if sealed_first:
            seal(store, manifest)
        else:
            void(store, CLUSTER, 1, reason="mine", by="bob")
        write(self, *where)  # type: ignore[arg-type]

    monkeypatch.setattr(Sealed, "write", beaten)
    if sealed_first:
        with pytest.raises(BatchError, match="the batch is sealed"):
            void(store, CLUSTER, 1, **WHY)
    else:
        found = void(store, CLUSTER, 1, **WHY)
        assert found.void is not None
        assert found.void.by == "bob"


@pytest.mark.advice("Give a reason: it is stored in the seal.", "Only the open batch can be voided.")
def test_only_the_open_batch_can_be_voided_and_a_reason_is_asked_for(store: LocalStore) -> None:
    with pytest.raises(BatchError, match="no batch is"):
        void(store, CLUSTER, 1, **WHY)
    ship(store, 1)
    planned(store)
    with pytest.raises(BatchError, match="batch 1 is"):
        void(store, CLUSTER, 2, **WHY)
    with pytest.raises(BatchError, match="a reason is missing"):
        void(store, CLUSTER, 1, reason="  ", by="ann")
    assert history(store, CLUSTER).open
    void(store, CLUSTER, 1, **WHY)
    assert not history(store, CLUSTER).open


def test_it_archives_nothing(store: LocalStore) -> None:
    name = ship(store, 1)
    planned(store)
    void(store, CLUSTER, 1, **WHY)
    assert archive(store, CLUSTER, 1) == {}
    assert store.head(name) is not None
    assert store.head(ref(1).ledger) is None


def test_a_batch_that_died_before_its_archive_is_archived_all_the_same(store: LocalStore) -> None:
    name = ship(store, 1)
    finish(store, planned(store))
    ship(store, 2)
    plan_maintain(store, CLUSTER, now=NOW)
    void(store, CLUSTER, 2, **WHY)
    planned(store)
    assert store.head(name) is None


def test_maintenance_can_be_voided_and_comes_again(store: LocalStore) -> None:
    ship(store, 1)
    finish(store, planned(store))
    assert plan_maintain(store, CLUSTER, now=NOW) is not None
    void(store, CLUSTER, 2, **WHY)
    again = plan_maintain(store, CLUSTER, now=NOW)
    assert again is not None
    assert (again.number, again.base, again.kind) == (3, 1, "maintain")


def test_a_replay_that_was_voided_does_not_stand_in_the_way_of_another(store: LocalStore) -> None:
    ship(store, 1)
    finish(store, planned(store))
    archive(store, CLUSTER, 1)
    hours = {"start": NOW - timedelta(hours=1), "end": NOW + timedelta(hours=1), "now": NOW}
    assert plan_replay(store, CLUSTER, **hours) is not None
    with pytest.raises(BatchBusy):
        plan_maintain(store, CLUSTER, now=NOW)
    void(store, CLUSTER, 2, **WHY)
    again = plan_replay(store, CLUSTER, **hours)
    assert again is not None
    assert (again.number, again.base) == (3, 1)


@pytest.mark.advice("Plan the replay again to finish it.")
def test_of_a_namespace_all_but_the_first_batch_can_be_voided(store: LocalStore) -> None:
    ship(store, 1)
    finish(store, planned(store))
    archive(store, CLUSTER, 1)
    store.put(layout.batch_object(CLUSTER, 1, "schema"), SchemaLearner().to_json().encode())
    hours = {"start": NOW - timedelta(hours=1), "end": NOW + timedelta(hours=1), "now": NOW, "namespace": "look"}
    chain = layout.shadow_chain(CLUSTER, "look")
    assert plan_replay(store, CLUSTER, **hours) is not None
    sealed = void(store, chain, 2, **WHY)
    assert sealed.void is not None
    assert sealed.void.base == 1
    again = plan_replay(store, CLUSTER, **hours)
    assert again is not None
    assert (again.number, again.base, again.namespace) == (3, 1, "look")
    # A planner that died half-way through the first one.
    store.delete(layout.batch_object(chain, 3, "manifest"))
    for number in (1, 2):
        store.delete(layout.batch_object(chain, number, "sealed"))
    store.delete(layout.batch_object(chain, 2, "manifest"))
    with pytest.raises(BatchError, match="first batch of a shadow namespace"):
        void(store, chain, 1, **WHY)
    finished = plan_replay(store, CLUSTER, **hours)
    assert finished is not None
    assert void(store, chain, finished.number, **WHY).void is not None


@pytest.mark.advice("Clear the task `ingest` of the run of cdc_replay that planned it, or void it.")
@pytest.mark.parametrize("voided", [False, True])
def test_an_erasure_goes_on_when_the_replay_before_it_has_ended(store: LocalStore, voided: bool) -> None:
    ship(store, 1)
    finish(store, planned(store))
    archive(store, CLUSTER, 1)
    store.put(layout.batch_object(CLUSTER, 1, "schema"), SchemaLearner().to_json().encode())
    replay = plan_replay(store, CLUSTER, start=NOW - timedelta(hours=1), end=NOW + timedelta(hours=1), now=NOW, namespace="look")
    assert replay is not None
    request = Request.of("shop.orders", b"k", None, "a test")
    with pytest.raises(BatchBusy, match="not sealed yet") as caught:
        plan_erase(store, CLUSTER, request, 1, now=NOW)
    assert "run of cdc_replay" in (caught.value.hint or "")
    if voided:
        void(store, replay.cluster, replay.number, **WHY)
    else:
        seal(store, replay)
    assert plan_erase(store, CLUSTER, request, 1, now=NOW).kind == "erase"


@pytest.mark.advice("Void the batch, and erase the key again.")
def test_an_erasure_without_its_request_is_voided_and_begins_again(store: LocalStore) -> None:
    ship(store, 1)
    base = finish(store, planned(store))
    archive(store, CLUSTER, 1)
    request = Request.of("shop.orders", b"k", None, "a test")
    lost = plan_erase(store, CLUSTER, request, 1, now=NOW)
    store.delete(layout.erasure_request(CLUSTER, str(lost.id)))
    with pytest.raises(BatchError, match="the erase request is missing"):
        # Of configuration and Spark it needs nothing yet.
        erase_key.erase(None, store, None, lost, base)  # type: ignore[arg-type]
    with pytest.raises(BatchBusy):
        plan_erase(store, CLUSTER, request, 1, now=NOW)
    void(store, CLUSTER, lost.number, **WHY)
    again = plan_erase(store, CLUSTER, request, 1, now=NOW)
    assert erasures.read_request(store, CLUSTER, again.id) is not None


def test_batches_before_the_base_that_are_of_another_chain_are_not_taken_for_voids() -> None:
    store = MemoryStore()
    other = Sealed(number=6, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={})
    store.put(layout.batch_object("c", 6, "sealed"), other.to_bytes())
    manifest = Manifest(number=7, kind="ingest", cluster="c", created_at=NOW, now=1, base=0, segments=[])
    assert voided_before(store, manifest, None) == {}


def test_what_it_planned_was_not_folded(store: LocalStore) -> None:
    """Nodes' ends, and what a TRUNCATE that is learnt later judges, go by batches that took effect."""
    ship(store, 1, sealed_at=NOW - timedelta(hours=2))
    finish(store, planned(store))
    ship(store, 2)
    planned(store)
    void(store, CLUSTER, 2, **WHY)
    store.delete(ref(2).incoming)
    ship(store, 3, sealed_at=NOW - timedelta(hours=1))
    following = planned(store)
    sealed = finish(store, following)
    assert node_ends(store, CLUSTER, sealed) == {NODE.path: NOW - timedelta(hours=1)}
    after = Manifest(number=4, kind="ingest", cluster=CLUSTER, created_at=NOW, now=1, base=3, segments=[])
    folded: Callable[[int], list[SegmentInput]] = lambda since: list(_Past(store, after, sealed, LocalDocument())._folded(since))  # noqa: E731
    assert [segment.ref for segment in folded(1)] == [ref(1), ref(3)]


def test_publishing_waits_for_a_batch_that_takes_effect(store: LocalStore) -> None:
    ship(store, 1)
    first = planned(store)
    finish(store, first)
    write_published(store, CLUSTER, Published(batch=1, events=0, id=first.id))
    ship(store, 2)
    planned(store)
    void(store, CLUSTER, 2, **WHY)
    assert not publish_due(store, CLUSTER)
    finish(store, planned(store))
    assert publish_due(store, CLUSTER)


def test_documents_of_before_know_of_no_voids() -> None:
    old = Sealed(number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={}).model_dump(exclude={"void", "voided"})
    assert Sealed.model_validate(old).void is None
    given = Sealed.model_validate({**old, "voided": {3: uuid4(), 5: None}})
    assert Sealed.model_validate_json(given.to_bytes()) == given


def test_its_manifest_stays_for_people(store: LocalStore) -> None:
    ship(store, 1)
    manifest = planned(store)
    void(store, CLUSTER, 1, **WHY)
    assert read_manifest(store, CLUSTER, 1) == manifest
