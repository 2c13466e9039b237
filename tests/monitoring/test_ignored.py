"""What is passed over is named: stray objects, and documents of nodes that cannot be used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.monitoring import bucket
from tests.node_objects import status_of
from tests.storage.memory import MemoryStore
from writetime.monitoring.ignored import Ignored, ignored
from writetime.monitoring.status import as_document, as_text
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.retention import batches as prunable
from writetime.storage import layout

CLUSTER = bucket.CLUSTER
NOW = datetime.now(UTC)
C = layout.part(CLUSTER)
STRAY = [
    f"batches/{C}/notes.txt",
    f"batches/{C}/.DS_Store",
    f"batches/{C}/0000000099x/manifest.json",
    f"batches/{C}/99999999999999999999/manifest.json",
    f"batches/{C}/copy/0000000001/sealed.json",
    f"cdc/{C}/dc1/h/notes.txt",
    f"cdc/{C}/dc1/h/CommitLog-7-{'9' * 40}.log",
    f"cdc/{C}/dc1/h/CommitLog-07-1.log",
    f"cdc/{C}/dc1/%68/CommitLog-7-1.log",
    f"cdc/{C}/frames/snapshot-x/CommitLog-7-1.log",
    f"cdc_parts/{C}/dc1/h/CommitLog-7-1/notes.txt",
    f"cdc_parts/{C}/frames/retry-x/CommitLog-7-1/0000000000-0000000007",
    f"nodes/{C}/README",
    f"nodes/{C}/dc1/h.json.bak",
    f"schemas/{C}/notes.txt",
    f"truncations/{C}/dc1/notes.txt",
]


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    bucket.Builder(store.put).batch(1)
    return store


def test_a_bucket_as_it_should_be_has_nothing_to_ignore(store: MemoryStore) -> None:
    assert ignored(Batches(store, CLUSTER), now=NOW) == []


@pytest.mark.parametrize("name", STRAY)
def test_a_stray_object_is_named_and_changes_nothing(store: MemoryStore, name: str) -> None:
    before = as_document(Batches(store, CLUSTER), 60)
    known = Batches(store, CLUSTER)
    known.newest()
    store.put(name, b"a stray object")
    for batches in (Batches(store, CLUSTER), known):
        document = as_document(batches, 60)
        assert [each["object"] for each in document["ignored"]] == [name]
        assert "stray" in document["ignored"][0]["reason"]
        assert {key: value for key, value in document.items() if key not in ("ignored", "now", "nodes")} == {
            key: value for key, value in before.items() if key not in ("ignored", "now", "nodes")
        }
        assert len(document["nodes"]) == len(before["nodes"])
        assert f"ignored: {name}: a stray object" in as_text(batches, 60)


def test_a_stray_object_is_not_pruned(store: MemoryStore) -> None:
    store.put(f"batches/{C}/.DS_Store", b"")
    sealed = Batches(store, CLUSTER).newest().sealed
    assert sealed is not None
    found = prunable(store, CLUSTER, sealed.model_copy(update={"number": 10**6}), NOW + timedelta(days=1), 10**6)
    assert {layout.batch_number(info.name) for documents in found for info in documents} == {1}


@pytest.mark.parametrize(
    "said", [b"[" * 2000, b'{"a":' * 2000, b"\xff", b"[]", b'{"address": 7}', b'{"address": "\\ud800"}', b" " * (2 << 20)]
)
def test_documents_of_a_node_that_make_no_sense_are_named(store: MemoryStore, said: bytes) -> None:
    node = layout.NodeName(CLUSTER, "dc1", "evil")
    store.put(status_of(node), said)
    (found,) = ignored(Batches(store, CLUSTER), now=NOW)
    assert (found.object, bool(found.reason)) == (status_of(node), True)
    assert "evil" in as_text(Batches(store, CLUSTER), 60)


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "garbage", (NOW + timedelta(days=9)).isoformat()])
def test_a_time_that_makes_no_sense_is_named(store: MemoryStore, at: str) -> None:
    name = bucket.ref(0, 77).incoming
    store.put(name, b"segment", metadata={"sealed_at": at})
    (found,) = ignored(Batches(store, CLUSTER), now=NOW)
    assert isinstance(found, Ignored)
    assert found.object == name
    assert found.reason.endswith("its upload time is used")


def test_of_very_many_the_text_shows_some(store: MemoryStore) -> None:
    for number in range(30):
        store.put(f"nodes/{C}/stray-{number}", b"")
    assert "ignored: 10 more objects" in as_text(Batches(store, CLUSTER), 60)
