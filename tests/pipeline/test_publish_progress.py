"""Of which waiting tables people are told."""

from __future__ import annotations

from tests.storage.memory import MemoryStore
from writetime.pipeline.publish_progress import tell_of
from writetime.storage import layout


def test_people_are_told_once_for_as_long_as_it_lasts() -> None:
    store = MemoryStore()
    assert tell_of(store, "c", {"shop.a": 5}) == set()
    assert tell_of(store, "c", {"shop.a": 5}) == {"shop.a"}
    # One more, while the first still waits.
    assert tell_of(store, "c", {"shop.a": 5, "shop.b": 7}) == {"shop.a"}
    # The first was sent, and waits again: that is news, whatever lies between.
    assert tell_of(store, "c", {"shop.a": 9, "shop.b": 7}) == {"shop.b"}
    assert tell_of(store, "c", {}) == set()
    assert tell_of(store, "c", {"shop.b": 7}) == set()


def test_nothing_is_written_while_nothing_changes() -> None:
    store = MemoryStore()
    assert tell_of(store, "c", {}) == set()
    assert store.head(layout.published_told("c")) is None
    tell_of(store, "c", {"shop.a": 5})
    first = store.head(layout.published_told("c"))
    tell_of(store, "c", {"shop.a": 5})
    assert store.head(layout.published_told("c")) == first
