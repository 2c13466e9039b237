"""Batches in short: what is summed up, and that nothing sealed is read twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring import bucket
from tests.storage.memory import MemoryStore
from writetime.monitoring.nodes import ring
from writetime.monitoring.status import as_document, as_text
from writetime.monitoring.tables import tables
from writetime.pipeline.batch_history import Batches, taken_in
from writetime.pipeline.planner import read_manifest
from writetime.pipeline.void import void
from writetime.storage import layout
from writetime.storage.local import LocalStore


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
    store.put(layout.batch_object(bucket.CLUSTER, 4, "manifest"), b"{}")
    assert (batches.newest().last, batches.newest().open) == (4, True)


def test_without_a_batch_there_is_nothing() -> None:
    batches = Batches(MemoryStore(), bucket.CLUSTER)
    assert batches.latest() == []
    assert batches.newest().sealed is None


def test_a_voided_batch_is_listed_and_counts_for_nothing_else() -> None:
    store = MemoryStore()
    builder = bucket.Builder(store.put)
    builder.batch(1)
    builder.batch(2)
    batches = Batches(store, bucket.CLUSTER)
    assert batches.newest().last == 2
    manifest = read_manifest(store, bucket.CLUSTER, 2).model_copy(update={"number": 3, "base": 2})
    store.put(layout.batch_object(bucket.CLUSTER, 3, "manifest"), manifest.to_bytes())
    void(store, bucket.CLUSTER, 3, reason="lost", by="ann")
    fresh = Batches(store, bucket.CLUSTER)
    for each in (batches, fresh):
        past = each.newest()
        assert (past.last, past.base, past.open, past.voided) == (3, 2, False, True)
        assert [(facts.number, facts.void is not None) for facts in each.latest()] == [(3, True), (2, False), (1, False)]
        assert each.voided() == {3}
        found, of_tables = ring(each), tables(each)
        assert [facts.number for facts in found.batches] == [2, 1]
        assert [facts.number for facts in found.voids] == [3]
        assert found.open_batch is None
        assert {table.name: table.rows for table in of_tables.tables}["shop.orders"] == 2000
    assert list(taken_in(batches.latest())) == list(taken_in(batches.latest()[1:]))
    assert "batch 3 was voided by ann at" in as_text(batches, 10)
    (told,) = as_document(batches, 10)["voids"]
    assert (told["number"], told["reason"], told["by"]) == (3, "lost", "ann")
    store.put(layout.batch_object(bucket.CLUSTER, 4, "manifest"), manifest.model_copy(update={"number": 4}).to_bytes())
    for each in (batches, Batches(store, bucket.CLUSTER)):
        assert (each.newest().open, each.newest().base, each.voided()) == (True, 2, {3})
        assert [facts.number for facts in each.latest()] == [3, 2, 1]
