"""Of which waiting tables people are told."""

from __future__ import annotations

from tests.storage.memory import MemoryStore
from writetime.pipeline.publish_progress import already_notified
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
