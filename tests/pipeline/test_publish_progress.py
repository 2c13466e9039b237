"""Of which waiting tables people are told, up to when tables were complete before a batch, and what publishing used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from tests.storage.memory import MemoryStore
from writetime.pipeline.documents import HeldTable, Manifest, StageCost, Watermark
from writetime.pipeline.publish_progress import CompleteBefore, Published, already_notified, read_published, write_published
from writetime.storage import layout


def test_people_are_told_once_for_as_long_as_it_lasts() -> None:
    store = MemoryStore()
    assert already_notified(store, "c", {"shop.a": 5}) == set()
    assert already_notified(store, "c", {"shop.a": 5}) == {"shop.a"}
    # One more, while the first still waits.
    assert already_notified(store, "c", {"shop.a": 5, "shop.b": 7}) == {"shop.a"}
    # The first was sent, and waits again: that is news, whatever lies between.
    assert already_notified(store, "c", {"shop.a": 9, "shop.b": 7}) == {"shop.b"}
    assert already_notified(store, "c", {}) == set()
    assert already_notified(store, "c", {"shop.b": 7}) == set()


def test_nothing_is_written_while_nothing_changes() -> None:
    store = MemoryStore()
    assert already_notified(store, "c", {}) == set()
    assert store.head(layout.published_notified("c")) is None
    already_notified(store, "c", {"shop.a": 5})
    first = store.head(layout.published_notified("c"))
    already_notified(store, "c", {"shop.a": 5})
    assert store.head(layout.published_notified("c")) == first


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
