"""The ring as its bucket tells it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.monitoring import bucket
from tests.node_objects import put_space, status_of
from tests.storage.memory import MemoryStore
from writetime.monitoring.ledger import Query, search
from writetime.monitoring.metrics import samples
from writetime.monitoring.nodes import coverage, ring
from writetime.monitoring.status import as_document, as_text
from writetime.pipeline.batch_history import Batches
from writetime.storage import layout


def test_a_ring_knows_its_nodes(batches: Batches) -> None:
    found = ring(batches, now=bucket.minute(20))
    first, second, third = found.nodes
    assert (first.address, first.release, first.tokens, third.rack) == ("10.0.0.1", "5.0.6", 1, "r<1>")
    assert (first.waiting, first.held, third.growing) == (1, 1, 1)
    assert second.newest == bucket.minute(8.5)
    assert (second.segments, second.frames) == (14, 680)
    assert found.open_batch is None
    assert found.since == bucket.minute(3) + timedelta(seconds=20)


def test_a_node_of_which_nothing_came_lately_says_so(batches: Batches) -> None:
    (facts,) = ring(batches, last=1).batches
    assert facts.number == 8
    found = ring(batches, last=1)
    assert {node.segments for node in found.nodes} == {2}


def test_a_node_that_says_nothing_sensible_hides_nobody() -> None:
    store = MemoryStore()
    store.put(status_of(bucket.NODES[0]), b"[1]")
    store.put(status_of(bucket.NODES[1]), b"\xff")
    store.put(layout.nodes_prefix(bucket.CLUSTER) + "stray", b"{}")
    assert [node.node for node in ring(Batches(store, bucket.CLUSTER)).nodes] == [bucket.NODES[0], bucket.NODES[1]]


def test_frames_that_no_node_logged_are_no_node() -> None:
    store = MemoryStore()
    builder = bucket.Builder(store.put)
    builder.batch(1)
    made = layout.SegmentRef(layout.NodeName.made(bucket.CLUSTER, "snapshot", "run-1"), layout.SegmentName(1, 8))
    manifest = json.loads(store.read(layout.batch_object(bucket.CLUSTER, 1, "manifest")))
    manifest["segments"].append(manifest["segments"][0] | {"object": made.incoming})
    store.put(layout.batch_object(bucket.CLUSTER, 1, "manifest"), json.dumps(manifest).encode())
    store.put(made.incoming, b"waits")
    batches = Batches(store, bucket.CLUSTER)
    found = ring(batches)
    assert {node.node for node in found.nodes} <= set(bucket.NODES)
    assert set(coverage((), found.batches).nodes) <= set(bucket.NODES)
    assert [row.object for row in search(batches, Query(state="waiting")).rows] == [made.incoming]


def test_minutes_without_a_segment_of_a_node_are_gaps(batches: Batches) -> None:
    found = coverage(bucket.NODES, batches.latest())
    assert (found.minutes, len(found.starts), found.most) == (1, 8, 160)
    gaps = [(node, found.starts[column]) for node in found.nodes for column in range(8) if found.gap(node, column)]
    assert gaps == [(bucket.NODES[1], bucket.minute(2))]


def test_nothing_taken_in_is_no_gap() -> None:
    found = coverage(bucket.NODES, [])
    assert (found.starts, found.most) == ((), 0)


def test_a_long_time_takes_wider_steps() -> None:
    store = MemoryStore()
    builder = bucket.Builder(store.put, bad=False)
    for number in range(1, 120):
        builder.batch(number)
    found = coverage(bucket.NODES, Batches(store, bucket.CLUSTER).latest(200))
    assert (found.minutes, len(found.starts)) == (5, 24)
    assert sum(segments for row in found.cells.values() for segments, _ in row) == 119 * 6 - 2


def test_a_node_tells_of_its_space_until_it_has_enough(batches: Batches) -> None:
    at = bucket.minute(20)
    space = {"at": at.isoformat(), "level": "alarm", "used": 90, "limit": 100, "share": 0.95, "disk_free": 7}
    told = MemoryStore()
    seen = Batches(told, bucket.CLUSTER)

    def tell(node: int, moment: timedelta, **more: object) -> None:
        put_space(told, bucket.NODES[node], {**space, "at": (at + moment).isoformat(), **more})

    tell(0, timedelta(minutes=-2), level="warn")
    tell(0, timedelta(0))
    tell(1, timedelta(days=-1), level="warn", share=0.5)
    tell(2, timedelta(0), share="much")
    spaces = {node.node: node.space for node in ring(seen, now=at).nodes}
    assert {node: space and (space.level, space.share) for node, space in spaces.items()} == {
        bucket.NODES[0]: ("alarm", 0.95),
        bucket.NODES[1]: ("warn", 0.5),
        bucket.NODES[2]: None,
    }
    tell(0, timedelta(minutes=5), level="ok", share=0.1)
    assert [node.space.level for node in ring(seen, now=at + timedelta(minutes=9)).nodes if node.space] == ["ok", "warn"]
    assert {node.space for node in ring(seen, now=at + timedelta(days=3)).nodes} == {None}


def test_a_cluster_of_3_11_says_by_which_rule_it_is_merged() -> None:
    store = MemoryStore()
    for node, release in zip(bucket.NODES, ("3.11.19", "4.1.10", "3.11.19"), strict=True):
        store.put(status_of(node), json.dumps({"host_id": node.host_id, "release_version": release}).encode())
    bucket.Builder(store.put).batch(1)
    seen = Batches(store, bucket.CLUSTER)
    # The batch is of before the rule was noted.
    assert as_document(seen, 5)["merging"] == {"rule": "4.0", "releases": {"3.11.19": 2, "4.1.10": 1}, "ties": 0}
    for what, news in (("manifest", {"merge_rule": "3.11"}), ("sealed", {})):
        name = layout.batch_object(bucket.CLUSTER, 1, what)
        document = json.loads(store.read(name)) | news
        for account in document.get("accounting", [])[:1]:
            account["ties"] = 3
        store.put(name, json.dumps(document).encode())
    seen = Batches(store, bucket.CLUSTER)
    assert as_document(seen, 5)["merging"] == {"rule": "3.11", "releases": {"3.11.19": 2, "4.1.10": 1}, "ties": 3}
    assert (
        "cells of equal timestamp are merged by the rule of Cassandra 3.11, until the last node is upgraded from it (1 of 3 are); "
        "3 cells of these batches may differ from the cluster"
    ) in as_text(seen, 5)


def test_segments_that_wait_for_a_reader_are_named_with_their_version(batches: Batches) -> None:
    for version, number in ((10, 1), (10, 2), (11, 3), (7, 4)):
        ref = layout.SegmentRef(bucket.NODES[0], layout.SegmentName(1_777_999_000_000 + number, version))
        batches.store.put(ref.incoming, b"whatever")
    lines = [line for line in as_text(batches, 5).splitlines() if line.startswith("waiting for a reader")]
    assert [line.partition(";")[0] for line in lines] == [
        "waiting for a reader: 2 segments of commit log version 10, from 10.0.0.1",
        "waiting for a reader: 1 segments of commit log version 11, from 10.0.0.1",
    ]
    assert as_document(batches, 5)["nodes"][0]["unreadable"] == {10: 2, 11: 1}
    found = [(labels["version"], value) for name, labels, value in samples(batches) if name == "writetime_unreadable_segments"]
    assert found == [("10", 2), ("11", 1)]


def test_space_is_shown_as_text_and_as_document(batches: Batches) -> None:
    now = datetime.now(UTC)
    told = {"at": now.isoformat(), "level": "alarm", "used": 90, "limit": 100, "share": 0.95, "disk_free": 7}
    put_space(batches.store, bucket.NODES[0], told)
    assert "short of space (alarm): 10.0.0.1, 95% of what cdc_raw may hold" in as_text(batches, 5)
    first = as_document(batches, 5)["nodes"][0]
    assert first["space"] == {**told, "at": now.isoformat(), "settings": {}}


def test_a_node_that_drops_captured_writes_is_named() -> None:
    batches, now = Batches(MemoryStore(), bucket.CLUSTER), datetime.now(UTC)
    space = {"at": now.isoformat(), "level": "ok", "used": 9, "limit": 100, "share": 0.09, "disk_free": 7}
    settings = {"cdc_enabled": True, "cdc_block_writes": False, "commitlog_sync": "periodic", "of_a_later_release": [1]}
    put_space(batches.store, bucket.NODES[0], {**space, "settings": settings})
    put_space(batches.store, bucket.NODES[1], space)
    (line,) = [line for line in as_text(batches, 5).splitlines() if line.startswith("drops captured writes")]
    assert line.startswith(
        f"drops captured writes: {bucket.NODES[0].host_id}: cdc_block_writes is false: when cdc_raw is full, Cassandra deletes"
    )
    first = as_document(batches, 5)["nodes"][0]
    assert first["space"]["settings"] == {"cdc_enabled": True, "cdc_block_writes": False, "commitlog_sync": "periodic"}


@pytest.mark.parametrize(
    "settings",
    [
        [],
        "cdc",
        {"cdc_enabled": "false"},
        {"cdc_block_writes": 0},
        {"cdc_total_space": -1},
        {"commitlog_sync": "x" * 99},
        {"commitlog_sync_ms": 1.5},
    ],
)
def test_settings_that_make_no_sense_are_passed_over_and_listed(settings: object) -> None:
    batches, now = Batches(MemoryStore(), bucket.CLUSTER), datetime.now(UTC)
    space = {"at": now.isoformat(), "level": "alarm", "used": 9, "limit": 100, "share": 0.09, "disk_free": 7, "settings": settings}
    name = put_space(batches.store, bucket.NODES[0], space)
    assert all(node.space is None for node in ring(batches).nodes)
    assert name in [each["object"] for each in as_document(batches, 5)["ignored"]]
