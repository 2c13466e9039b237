"""Of which waiting tables people are told, up to when tables were complete before a batch, and what publishing used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.storage.memory import Fault, MemoryStore
from writetime.pipeline.documents import HeldTable, Manifest, StageCost, Watermark
from writetime.pipeline.notified import Notified
from writetime.pipeline.publish_progress import (
    AGAIN,
    CompleteBefore,
    Published,
    read_published,
    write_published,
)
from writetime.storage import layout

PLACE = layout.published_notified("c")


def test_people_are_told_once_for_as_long_as_it_lasts() -> None:
    store = MemoryStore()
    assert Notified.still(store, PLACE, {"shop.a": 5}) == set()
    # Nobody was told yet: the notifier has failed.
    assert Notified.still(store, PLACE, {"shop.a": 5}) == set()
    Notified.record(store, PLACE, {"shop.a": 5})
    assert Notified.still(store, PLACE, {"shop.a": 5}) == {"shop.a"}
    # One more, while the first still waits.
    assert Notified.still(store, PLACE, {"shop.a": 5, "shop.b": 7}) == {"shop.a"}
    Notified.record(store, PLACE, {"shop.b": 7})
    # The first was sent, and waits again: that is news, whatever lies between.
    assert Notified.still(store, PLACE, {"shop.a": 9, "shop.b": 7}) == {"shop.b"}
    assert Notified.still(store, PLACE, {}) == set()
    assert Notified.still(store, PLACE, {"shop.b": 7}) == set()


def test_nothing_is_written_while_nothing_changes() -> None:
    store = MemoryStore()
    assert Notified.still(store, PLACE, {}) == set()
    assert store.head(PLACE) is None
    Notified.record(store, PLACE, {"shop.a": 5})
    first = store.head(PLACE)
    Notified.still(store, PLACE, {"shop.a": 5})
    assert store.head(PLACE) == first


def test_manifests_say_up_to_when_a_table_was_complete_before_a_batch() -> None:
    store, at = MemoryStore(), datetime(2026, 5, 4, tzinfo=UTC)
    held, other = UUID(int=1), UUID(int=2)
    before = Watermark(until=at + timedelta(microseconds=7), held={held: HeldTable(until=None, by="x")})
    for number, complete in ((1, None), (2, before)):
        manifest = Manifest(kind="ingest", segments=[], number=number, cluster="c", created_at=at, now=1, base=0, complete_before=complete)
        store.put(layout.batch_object("c", number, "manifest"), manifest.to_bytes())
    found = CompleteBefore(store, "c", range(1, 4))
    assert found.of(other) == {2: int(at.timestamp()) * 1_000_000 + 7}
    assert found.of(held) == {}


def test_what_publishing_used_adds_up() -> None:
    store = MemoryStore()
    sending, encoding = StageCost(stage="publish", cpu_seconds=1.5), StageCost(stage="publish", table="shop.a", cpu_seconds=0.25)
    write_published(store, "c", Published(batch=1, events=3), [sending, encoding])
    # A heartbeat.
    write_published(store, "c", Published(batch=1, events=0))
    write_published(store, "c", Published(batch=2, events=3), [sending])
    found = read_published(store, "c")
    assert found is not None
    assert found.costs == [StageCost(stage="publish", cpu_seconds=3), encoding]


def recorded(store: MemoryStore) -> Published:
    found = read_published(store, "c")
    assert found is not None
    return found


def batch(store: MemoryStore, number: int) -> UUID:
    """The id of a batch that is there."""
    about = {"kind": "ingest", "cluster": "c", "created_at": datetime(2026, 5, 4, tzinfo=UTC), "now": 1, "base": 0, "segments": []}
    made = Manifest.model_validate({**about, "number": number, "id": UUID(int=number)})
    store.put(layout.batch_object("c", number, "manifest"), made.to_bytes())
    return UUID(int=number)


def test_a_late_run_takes_back_nothing_that_another_one_has_recorded() -> None:
    store = MemoryStore()
    further = Published(batch=9, events=4, id=batch(store, 9), heartbeat=7)
    write_published(store, "c", further, [StageCost(stage="publish", cpu_seconds=2)])
    write_published(
        store, "c", Published(batch=8, events=2, id=batch(store, 8), waiting={"shop.a": 3}), [StageCost(stage="publish", cpu_seconds=1)]
    )
    assert recorded(store) == further.model_copy(update={"costs": [StageCost(stage="publish", cpu_seconds=3)]})
    # What is recorded is of batches that were put back from a backup since.
    store.delete(layout.batch_object("c", 9, "manifest"))
    write_published(store, "c", Published(batch=8, events=2, id=UUID(int=8)))
    assert recorded(store).batch == 8


def test_a_request_that_came_in_meanwhile_stays() -> None:
    store = MemoryStore()
    requested = {"epochs": {"shop.a": 1}, "requests": {"shop.a": ["x"]}, "asked": ["shop.a"]}
    asked = Published(batch=7, events=0, waiting={"shop.a": 0, "shop.b": 5}, reasons={"shop.a": "again"}, **requested)
    write_published(store, "c", asked)
    write_published(store, "c", Published(batch=8, events=2, id=batch(store, 8)))
    found = recorded(store)
    assert (found.batch, found.waiting, found.reasons) == (8, {"shop.a": 0}, {"shop.a": "again"})
    assert found.model_dump(include=requested.keys()) == requested
    write_published(store, "c", Published(batch=8, events=2, epochs={"shop.a": 1}))
    found = recorded(store)
    assert (found.waiting, found.asked) == ({}, []), "it was met by a run that knew of it"
    write_published(store, "c", Published(batch=9, events=2, id=batch(store, 9)))
    found = recorded(store)
    assert (found.batch, found.waiting, found.epochs) == (9, {"shop.a": 8}, {"shop.a": 1}), "this run did not: its events do not count"
    assert found.reasons.keys() == {"shop.a"}


@pytest.mark.parametrize("fault", [Fault.LOST_AND_REPEATED, Fault.PRECONDITION])
def test_the_record_is_changed_once_whatever_the_store_answers(fault: Fault) -> None:
    store = MemoryStore()
    write_published(store, "c", Published(batch=1, events=0), [StageCost(stage="publish", cpu_seconds=1)])
    store.fail(fault, on="put")
    write_published(store, "c", Published(batch=2, events=0), [StageCost(stage="publish", cpu_seconds=1)])
    assert (recorded(store).batch, recorded(store).costs) == (2, [StageCost(stage="publish", cpu_seconds=2)])


def test_of_another_chain_only_what_was_asked_for_counts() -> None:
    about = {"epochs": {"shop.a": 2, "shop.b": 1}, "requests": {"shop.a": ["x"]}, "heartbeat": 5}
    before = Published(batch=7, events=3, waiting={"shop.a": 4, "shop.b": 0, "shop.c": 6}, asked=["shop.a"], id=UUID(int=7), **about)
    after = Published(batch=30, events=0).model_copy(update=before.of_other_chain())
    assert after == Published(batch=30, events=0, waiting={"shop.a": 0}, reasons={"shop.a": AGAIN}, asked=["shop.a"], **about)
    assert (after.sent("shop.a"), after.sent("shop.b")) == (0, 30), "nothing of where it stood"
