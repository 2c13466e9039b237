"""What lies in the bucket by mistake, or was written by a node that means harm, stops no planner and no
archiver."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.node_objects import schema_name, status_of
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.snapshot import parse
from writetime.errors import SchemaError
from writetime.monitoring.ignored import ignored
from writetime.monitoring.nodes import ring
from writetime.pipeline.archiver import archive
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.completeness import holds
from writetime.pipeline.documents import Sealed, SegmentOutcome
from writetime.pipeline.planner import history, plan_ingest, seal
from writetime.pipeline.segment_check import known_schema
from writetime.storage import layout, open_store, segment_object
from writetime.storage.local import LocalStore
from writetime.untrusted import SEGMENT

CLUSTER = "c"
NODE = layout.NodeName(CLUSTER, "dc1", "h")
EVIL = layout.NodeName(CLUSTER, "dc1", "evil")
DEEP = [b"[" * 2000, b"[" * 200_000, b'{"a":' * 2000]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = open_store(str(tmp_path / "bucket"))
    assert isinstance(store, LocalStore)
    return store


def ref(number: int, node: layout.NodeName = NODE) -> layout.SegmentRef:
    return layout.SegmentRef(node, layout.SegmentName(1_700_000_000_000 + number, 7))


def ship(store: LocalStore, number: int, sealed_at: str = "2026-01-01T00:00:00+00:00") -> None:
    store.put(ref(number).incoming, b"x%d" % number, metadata={"sealed_at": sealed_at})


def run(store: LocalStore) -> list[str]:
    """One batch, to its end."""
    manifest = plan_ingest(store, CLUSTER, now=datetime.now(UTC))
    assert manifest is not None
    outcomes = [SegmentOutcome(object=segment.object) for segment in manifest.segments]
    sealed = Sealed(number=manifest.number, kind="ingest", sealed_at=datetime.now(UTC), segments=outcomes, accounting=[], state={})
    seal(store, CLUSTER, sealed)
    assert set(archive(store, CLUSTER, manifest.number).values()) <= {"archived"}
    return [segment.object for segment in manifest.segments]


@pytest.mark.parametrize(
    "stray",
    [
        "notes.txt",
        ".DS_Store",
        "0000000007",
        "00000000zz/manifest.json",
        "9" * 40 + "/manifest.json",
        "9999999999/notes.txt",
        "~/manifest.json",
    ],
)
def test_a_stray_object_under_batches_ends_no_search(store: LocalStore, stray: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(layout.batch_object(CLUSTER, 1, "manifest"), b"{}")
    store.put(layout.batches_prefix(CLUSTER) + stray, b"a stray object")
    listings: list[Any] = []
    listed = store.list
    monkeypatch.setattr(store, "list", lambda *args, **named: [listings.append(args), listed(*args, **named)][1])
    assert history(store, CLUSTER).last == 1
    assert len(listings) < 10


def test_a_stray_object_stops_no_batch(store: LocalStore) -> None:
    for place in ("batches/c/notes.txt", "cdc/c/notes.txt", "cdc/c/dc1/h/CommitLog-7-1.log.tmp", "nodes/c/notes", "schemas/c/notes.txt"):
        store.put(place, b"a stray object")
    for number in (1, 2):
        ship(store, number)
        assert run(store) == [ref(number).incoming]
    assert Batches(store, CLUSTER).newest().last == 2
    assert plan_ingest(store, CLUSTER, now=datetime.now(UTC)) is None


def test_an_object_that_is_too_large_is_in_no_batch_and_is_named(store: LocalStore) -> None:
    node = layout.NodeName(CLUSTER, "dc1", "h2")
    made = layout.SegmentRef(layout.NodeName.made(CLUSTER, "retry", "x"), layout.SegmentName(1_700_000_000_000, 7))
    large = {ref(1).incoming: 101, ref(2).incoming: 100, made.incoming: 101}
    for name, size in large.items():
        store.put(name, bytes(size), metadata={"sealed_at": "2026-01-01T00:00:00+00:00"})
    grows = ref(3, node)
    for start, end in ((0, 60), (60, 101)):
        store.put(grows.part(start, end), bytes(end - start))
    manifest = plan_ingest(store, CLUSTER, now=datetime.now(UTC), largest=100)
    assert manifest is not None
    assert {segment.object: segment.size for segment in manifest.segments} == {ref(2).incoming: 100, grows.growing: 60}
    batches = Batches(store, CLUSTER, largest=100)
    refused = {each.object: each.reason for each in ignored(batches)}
    assert refused.keys() == {ref(1).incoming, made.incoming, grows.part(60, 101)}
    assert all("that a segment may have" in reason for reason in refused.values())
    assert ignored(Batches(store, CLUSTER)) == []
    assert SEGMENT == segment_object._LONGEST


def test_an_object_that_is_too_large_keeps_the_state_from_being_purged(store: LocalStore) -> None:
    """What it holds is not known, so tombstones are kept for it, as for a segment in quarantine."""
    ship(store, 1, "2026-01-02T00:00:00+00:00")
    run(store)
    store.put(ref(0).incoming, bytes(101), metadata={"sealed_at": "2026-01-01T00:00:00+00:00"})
    assert plan_ingest(store, CLUSTER, now=datetime.now(UTC), largest=100) is None
    assert ref(0).incoming in [hold.by for hold in holds(store, CLUSTER, history(store, CLUSTER).sealed)]


@pytest.mark.parametrize("number", ["9" * 19, "9" * 30, "0" * 13])
def test_a_name_with_a_number_out_of_range_is_no_segment(store: LocalStore, number: str) -> None:
    store.put(f"cdc/c/dc1/h/CommitLog-7-{number}.log", b"x")
    ship(store, 1)
    assert run(store) == [ref(1).incoming]


@pytest.mark.parametrize(
    "at",
    ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "garbage", "2026-01-01T00:00:00", "2199-01-01T00:00:00+00:00", "1" * 5000],
)
def test_a_note_of_any_time_lets_all_others_go_on(store: LocalStore, at: str) -> None:
    if len(at) < 1000:
        ship(store, 0, at)
    else:
        ship(store, 0, at[:64])
    ship(store, 1)
    assert set(run(store)) == {ref(0).incoming, ref(1).incoming}
    ship(store, 2)
    assert run(store) == [ref(2).incoming]
    latest = datetime.now(UTC) + timedelta(days=1)
    assert all(layout.archive_hour(info.name) <= latest for info in store.list("cdc_archive/"))  # type: ignore[operator]


@pytest.mark.parametrize("said", [*DEEP, b'{"address": "\\ud800"}', b'{"host_id": "h", "address": "10.0.0.9"}', b'{"tokens": [1e999]}'])
def test_a_document_of_a_node_stops_neither_planning_nor_the_status(store: LocalStore, said: bytes) -> None:
    store.put(status_of(NODE), json.dumps({"host_id": "h", "address": "10.0.0.1"}).encode())
    store.put(status_of(EVIL), said)
    ship(store, 1)
    manifest = plan_ingest(store, CLUSTER, now=datetime.now(UTC))
    assert manifest is not None
    assert manifest.nodes == {"h": "10.0.0.1"}
    assert {node.node for node in ring(Batches(store, CLUSTER)).nodes} == {NODE, EVIL}


@pytest.mark.parametrize("said", DEEP)
def test_a_deep_schema_is_refused(store: LocalStore, said: bytes) -> None:
    store.put(schema_name(CLUSTER, datetime.now(UTC), "x"), said)
    assert known_schema(store, CLUSTER).cdc_ever == frozenset()
    with pytest.raises(SchemaError):
        SchemaLearner().apply_document(said)


ROW = {"keyspace_name": "a", "writetime": 1}


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"[]",
        json.dumps({"tables": [{"x": 1}]}).encode(),
        json.dumps({"keyspaces": [1]}).encode(),
        json.dumps({"keyspaces": [{**ROW, "writetime": "zz"}]}).encode(),
        json.dumps({"keyspaces": [{**ROW, "writetime": 2**63}]}).encode(),
        json.dumps({"keyspaces": [{**ROW, "writetime": True}]}).encode(),
        json.dumps({"keyspaces": [{**ROW, "keyspace_name": ["a"]}]}).encode(),
        json.dumps({"keyspaces": [{**ROW, "keyspace_name": 7}]}).encode(),
        json.dumps({"keyspaces": [{**ROW, "keyspace_name": "\ud800"}]}).encode(),
        json.dumps({"tables": [{**ROW, "table_name": "\ud800"}]}).encode(),
        json.dumps({"tables": [{**ROW, "table_name": "t", "gc_grace_seconds": 2**40}]}).encode(),
        json.dumps({"tables": [{**ROW, "table_name": "t", "id": 5}]}).encode(),
        *DEEP,
    ],
)
def test_a_schema_snapshot_that_makes_no_sense_is_refused(document: bytes) -> None:
    with pytest.raises(SchemaError):
        parse(document)


def test_a_schema_of_times_to_come_is_refused() -> None:
    document = json.dumps({"keyspaces": [{**ROW, "writetime": 2_000}]}).encode()
    assert parse(document, latest=2_000)
    with pytest.raises(SchemaError, match="writetime"):
        parse(document, latest=1_999)


def test_a_batch_takes_in_a_limited_number_of_snapshots(store: LocalStore) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(1005):
        store.put(schema_name(CLUSTER, at + timedelta(seconds=number), "v"), b"{}")
    manifest = plan_ingest(store, CLUSTER, now=datetime.now(UTC))
    assert manifest is not None
    assert len(manifest.schema_snapshots) == 1000
    assert list(islice(sorted(manifest.schema_snapshots), 1)) == [schema_name(CLUSTER, at, "v")]
