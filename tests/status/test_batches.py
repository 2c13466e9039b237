"""Batches in short: what is summed up, and that nothing sealed is read twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.status import bucket
from tests.store.memory import MemoryStore
from writetime import names
from writetime.status.batches import Batches
from writetime.store.local import LocalStore


def test_the_newest_come_first_and_a_page_goes_on_before_a_number(batches: Batches) -> None:
    assert [facts.number for facts in batches.latest(3)] == [8, 7, 6]
    assert [facts.number for facts in batches.latest(3, before=3)] == [2, 1]
    assert batches.latest(3, before=1) == []


def test_a_batch_sums_up_its_nodes(batches: Batches) -> None:
    (facts,) = batches.latest(1, before=4)
    assert (facts.segments, facts.problems, facts.events) == (6, 1, 30)
    taken = facts.nodes[bucket.NODES[0]]
    assert (taken.segments, taken.frames, taken.problems) == (2, 60, 1)
    assert (taken.oldest, taken.newest) == (bucket.minute(3), bucket.minute(3.5))
    assert facts.minutes[bucket.NODES[0], bucket.minute(3)] == (2, 60)
    assert facts.lag == (110, 140)
    assert facts.total.updates_in == 180


def test_what_is_sealed_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(folder)
    batches = Batches(store, bucket.CLUSTER)
    first = batches.latest()
    read: list[str] = []
    monkeypatch.setattr(store, "read", lambda name, **_: read.append(name))
    assert batches.latest() == first
    assert read == []


def test_a_batch_that_was_sealed_since_is_seen() -> None:
    store = MemoryStore()
    builder = bucket.Builder(store.put)
    builder.batch(1)
    batches = Batches(store, bucket.CLUSTER)
    assert [facts.number for facts in batches.latest()] == [1]
    builder.batch(2)
    builder.batch(3)
    assert [facts.number for facts in batches.latest()] == [3, 2, 1]
    store.put(names.batch_object(bucket.CLUSTER, 4, "manifest"), b"{}")
    assert (batches.newest().last, batches.newest().open) == (4, True)


def test_without_a_batch_there_is_nothing() -> None:
    batches = Batches(MemoryStore(), bucket.CLUSTER)
    assert batches.latest() == []
    assert batches.newest().sealed is None
