"""Who a pipeline is, and which batches a note of publishing speaks of."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from tests.storage.memory import MemoryStore
from writetime.pipeline.documents import Manifest
from writetime.pipeline.identity import Owner, owner
from writetime.pipeline.planner import plan_ingest
from writetime.pipeline.publish_progress import Published
from writetime.storage import layout

AT = datetime(2026, 5, 4, tzinfo=UTC)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_an_identity_is_made_once_and_survives_a_new_name(store: MemoryStore) -> None:
    made = owner(store, "ring", "orders")
    assert owner(store, "ring", "renamed") == made
    assert made.other(owner(store, "ring", "renamed").model_dump_json()) is None
    other = owner(store, "another ring", "orders")
    assert other.id != made.id
    assert made.other(other.model_dump_json()) == "pipeline orders of cluster another ring"


@pytest.mark.parametrize("held", ["", "{", "[]", "null", '{"id": "1"}', "3"])
def test_what_cannot_be_read_is_somebody_elses(held: str) -> None:
    assert Owner(cluster="ring", pipeline="orders", id=UUID(int=1)).other(held) == "somebody else"


def test_what_nobody_has_claimed_is_free() -> None:
    assert Owner(cluster="ring", pipeline="orders", id=UUID(int=1)).other(None) is None


def test_every_batch_has_an_id_of_its_own(store: MemoryStore) -> None:
    name = "cdc/ring/dc1/7b1c0a52-0c43-4f0a-8a57-0242ac120002/CommitLog-7-1.log"
    store.put(name, b"x")
    first = plan_ingest(store, "ring", now=AT)
    assert first is not None
    assert plan_ingest(store, "ring", now=AT) == first, "an open batch keeps it"
    assert first.id is not None
    store.delete(layout.batch_object("ring", 1, "manifest"))
    anew = plan_ingest(store, "ring", now=AT)
    assert anew is not None
    assert (anew.number, anew.id == first.id) == (first.number, False)


def test_a_note_of_publishing_that_speaks_of_other_batches(store: MemoryStore) -> None:
    manifest = Manifest(number=2, id=UUID(int=2), kind="ingest", cluster="c", created_at=AT, now=1, base=0, segments=[])
    store.put(layout.batch_object("c", 2, "manifest"), manifest.to_bytes())

    def speaks(batch: int, told: int | None) -> bool:
        return Published(batch=batch, events=0, id=None if told is None else UUID(int=told)).is_of(store, "c", 3)

    assert speaks(2, 2)
    assert speaks(2, None), "of a version that had none"
    assert speaks(1, 9), "that one has been pruned"
    assert not speaks(2, 9)
    assert not speaks(4, 9), "beyond the last seal"
