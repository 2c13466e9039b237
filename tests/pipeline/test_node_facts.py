"""What nodes say of themselves, as it is read: the newest status, or the one document of shippers up to
0.1."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shippers import report
from shippers.disk_space import Level, Space
from shippers.metrics import Sight
from shippers.node_identity import NodeFacts as Facts
from tests.node_objects import status_of
from tests.storage.memory import MemoryStore
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.monitoring.nodes import ring
from writetime.pipeline import node_facts
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.node_facts import NodeSpace, read_facts
from writetime.storage import layout

NODE, OTHER = (layout.NodeName("ring one", "dc1", f"7b1c0a52-0c43-4f0a-8a57-0242ac12000{number}") for number in (2, 3))
NOON = datetime(2026, 5, 4, 12, 5, 1, tzinfo=UTC)
STATUS: dict[str, Any] = {
    "at": NOON.isoformat(),
    "host_id": NODE.host_id,
    "address": "10.0.0.1",
    "tokens": ["-5", "7"],
    "space": {"level": "warn", "used": 9, "limit": 10, "share": 0.9, "disk_free": 3},
}


def put(store: MemoryStore, document: dict[str, Any], *, at: datetime = NOON, node: layout.NodeName = NODE) -> str:
    return store.put(layout.node_status(node, at, "00000000"), json.dumps(document).encode()).name


def test_the_newest_counts_by_the_clock_of_the_store() -> None:
    store = MemoryStore()
    store.put(status_of(NODE), json.dumps({"host_id": NODE.host_id, "address": "old"}).encode())
    put(store, STATUS, at=NOON + timedelta(days=1))
    last = put(store, {**STATUS, "address": "10.0.0.9"})
    store.put(status_of(OTHER), json.dumps({"address": "10.0.0.2"}).encode())
    first, second = read_facts(store, NODE.cluster)
    assert (first.object, first.address, first.tokens) == (last, "10.0.0.9", (-5, 7))
    assert first.space == NodeSpace(NOON, "warn", 0.9, 9, 10, 3)
    assert (second.node, second.object, second.address, second.space) == (OTHER, status_of(OTHER), "10.0.0.2", None)


@pytest.mark.parametrize("tokens", [None, ["85070591730234615865843651857942052864"], ["0a"], [7]])
def test_tokens_of_another_partitioner_reject_no_status(tokens: Any) -> None:
    """All that does not need them goes on: space, sign-offs, addresses."""
    store = MemoryStore()
    put(store, {**STATUS, "partitioner": "RandomPartitioner", "tokens": tokens})
    (found,) = read_facts(store, NODE.cluster)
    assert (found.rejected, found.partitioner, found.tokens, found.address) == (None, "RandomPartitioner", (), "10.0.0.1")


@pytest.mark.parametrize(
    "news",
    [
        {"space": 7},
        {"space": {}},
        {"space": {**STATUS["space"], "used": -1}},
        {"at": "x"},
        {"host_id": "h"},
        {"tokens": 1},
        {"settings": 7},
        {"signed_off": 7},
        {"signed_off": {"at": "x", "unsynced_ms": 0, "members": {}}},
        {"signed_off": {"at": NOON.isoformat(), "unsynced_ms": -1, "members": {}}},
        {"signed_off": {"at": NOON.isoformat(), "unsynced_ms": 1 << 60, "members": {}}},
        {"signed_off": {"at": NOON.isoformat(), "unsynced_ms": 0, "members": []}},
        {"signed_off": {"at": NOON.isoformat(), "unsynced_ms": 0, "members": {"dc1": "abc"}}},
        {"signed_off": {"at": NOON.isoformat(), "unsynced_ms": 0, "members": {"dc1": [7]}}},
        {"signed_off": {"at": NOON.isoformat(), "unsynced_ms": 0, "members": {"dc1": ["a"] * 20_000}}},
    ],
    ids=lambda news: next(iter(news)),
)
def test_nonsense_is_passed_over(news: dict[str, Any]) -> None:
    store = MemoryStore()
    name = put(store, STATUS | news)
    (found,) = read_facts(store, NODE.cluster)
    assert (found.node, found.object, found.address) == (NODE, name, "")
    assert found.rejected


def test_unknown_fields_are_read_past() -> None:
    store = MemoryStore()
    put(store, {**STATUS, "log": {"more": [1]}, "later": {"x": 1}, "space": {**STATUS["space"], "later": 1}})
    (found,) = read_facts(store, NODE.cluster)
    assert (found.rejected, found.address) == (None, "10.0.0.1")


def test_what_a_shipper_writes_is_what_the_status_shows() -> None:
    store, now = MemoryStore(), datetime.now(UTC)
    facts = Facts(NODE.cluster, NODE.datacenter, NODE.host_id, address="10.0.0.1", rack="r1", release_version="4.1.10", tokens=["1"])
    sight = Sight(0.0, "alarm", 9, 10, 0.9, 3, 0, 0, None, 0, 0, 0, 0)
    _, document = report.about(store.url, facts, Space(9, 10, 0, 3), Level.ALARM, sight, [], CdcSettings(cdc_block_writes=False), now)
    name = report.report(store, NODE, document, now)
    assert layout.NodeName.of_facts(name) == NODE
    (node,) = ring(Batches(store, NODE.cluster), now=now).nodes
    assert (node.address, node.rack, node.release, node.tokens) == ("10.0.0.1", "r1", "4.1.10", 1)
    assert node.space is not None
    assert (node.space.level, node.space.used, node.space.limit) == ("alarm", 9, 10)
    assert [setting.name for setting in node.unsafe] == ["cdc_block_writes"]
    assert ring(Batches(store, NODE.cluster), now=now + timedelta(days=3)).nodes[0].space is None


def test_planning_deletes_outdated_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    other = put(store, STATUS | {"host_id": OTHER.host_id}, node=OTHER)
    names = [put(store, STATUS, at=NOON + timedelta(seconds=15 * number)) for number in range(100)]
    read_facts(store, NODE.cluster, tidy=True)
    assert len(list(store.list("nodes/"))) == 101, "they are only just written"
    monkeypatch.setattr(node_facts, "_OUTDATED", timedelta(seconds=-1))
    read_facts(store, NODE.cluster)
    assert len(list(store.list("nodes/"))) == 101, "people only look"
    found = read_facts(store, NODE.cluster, tidy=True)
    assert [info.name for info in store.list("nodes/")] == sorted([other, names[-1]])
    assert found == read_facts(store, NODE.cluster)


def test_statuses_of_many_nodes_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next process, as far as planning has read them; a status that is new or has a sign-off, by itself."""
    store = MemoryStore()
    monkeypatch.setattr(node_facts, "_MANY", 5)
    nodes = [layout.NodeName("many", "dc1", f"7b1c0a52-0c43-4f0a-8a57-0242ac12{number:04d}") for number in range(20)]
    for node in nodes:
        put(store, {**STATUS, "host_id": node.host_id}, node=node)
    signed = {"at": NOON.isoformat(), "unsynced_ms": 0, "members": {"dc1": [nodes[0].host_id]}}
    put(store, {**STATUS, "host_id": nodes[0].host_id, "signed_off": signed}, node=nodes[0], at=NOON + timedelta(seconds=1))

    def read(*, tidy: bool = False) -> tuple[list[node_facts.NodeFacts], int]:
        """As a process of its own: the facts, and how many statuses it read by itself."""
        node_facts._parsed.clear()
        before = len(store.calls)
        found = read_facts(store, "many", tidy=tidy)
        return found, sum(call == "read" and name.startswith("nodes/") for call, name in store.calls[before:])

    alone, requests = read()
    assert requests == 20
    assert read()[1] == 20, "only planning keeps them"
    assert read(tidy=True) == (alone, 20)
    assert read() == (alone, 1)
    put(store, {**STATUS, "host_id": nodes[3].host_id, "rack": "moved"}, node=nodes[3], at=NOON + timedelta(seconds=1))
    found, requests = read(tidy=True)
    assert (requests, found[3].rack, found[4]) == (2, "moved", alone[4])
    last = layout.statuses("many")
    assert store.calls.count(("put", last)) == 1, "two new ones are too few"
    store.delete(last)
    assert read() == (found, 20)
