"""What nodes answer of their TRUNCATEs, as planning and batches take it in: a TRUNCATE whose segment no node
kept is followed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from shippers.truncations import checksum_of, ship_truncations
from tests.pipeline.test_node_logs import (
    CLUSTER,
    ORDERS,
    START,
    Ring,
    minute,
    ms,
    reread,
    ring,
    truncated,
)
from writetime.monitoring.status import as_text
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.node_logs import all_segments, cuts
from writetime.pipeline.planner import plan_ingest
from writetime.pipeline.truncation_reports import new_answers, newest_answers, read_answers, sweep_answers
from writetime.storage import layout

__all__ = ["ring"]


def node(host: str) -> layout.NodeName:
    return layout.NodeName(CLUSTER, "dc1", host)


def answer(ring: Ring, host: str, *records: tuple[UUID, int, int, float], taken: float = 0) -> str:
    """The node's answer at the minute `taken`: table, segment, position and minute of each TRUNCATE."""
    found = [{"table_id": str(table), "segment": segment, "position": position, "at": ms(at)} for table, segment, position, at in records]
    return ship_truncations(ring.store, node(host), found, minute(taken))


def test_a_truncate_that_no_segment_holds_opens_a_generation(ring: Ring) -> None:
    for host in "ab":
        ring.ship(host, 1, 1)
    ring.batch()
    answer(ring, "a", (ORDERS.id, 1, 900, 10))
    answer(ring, "b", (ORDERS.id, 1, 800, 10.01))
    manifest = ring.plan()
    assert (manifest.segments, len(manifest.truncations)) == ([], 2), "the answers alone are reason enough for a batch"
    document = ring.run(manifest)
    assert document.opened == [ORDERS.id]
    assert reread(document) == {"a 1": {7: 900}, "b 1": {7: 800}}
    gone = cuts(document, all_segments(manifest, document)).gone
    assert [gone(ORDERS.id.bytes, 0, position, 2**62) for position in (900, 901)] == [True, False]


def test_what_was_taken_in_is_no_reason_for_another_batch(ring: Ring) -> None:
    ring.ship("a", 1, 1)
    answer(ring, "a", (ORDERS.id, 1, 900, 10))
    ring.batch()
    assert plan_ingest(ring.store, CLUSTER, now=minute(2000)) is None
    answer(ring, "a", (ORDERS.id, 1, 900, 10), taken=1440)
    assert plan_ingest(ring.store, CLUSTER, now=minute(2001)) is None, "the same answer, a day later"
    answer(ring, "b")
    assert plan_ingest(ring.store, CLUSTER, now=minute(2002)) is None, "a node without records"
    answer(ring, "a", (ORDERS.id, 1, 900, 10), (UUID(int=8), 2, 5, 11), taken=1441)
    assert plan_ingest(ring.store, CLUSTER, now=minute(2003)) is not None


def test_the_log_says_the_same_later(ring: Ring) -> None:
    """The record in the log is the one that the node answered: nothing opens again."""
    ring.ship("a", 1, 1)
    ring.batch()
    answer(ring, "a", (ORDERS.id, 2, 900, 10))
    assert ring.batch().opened == [ORDERS.id]
    ring.ship("a", 2, 20, truncated(2, 900, 10))
    assert ring.batch().opened == []


def test_the_newest_answer_counts_by_the_clock_of_the_store(ring: Ring) -> None:
    """The node's clock was set back between the two."""
    answer(ring, "a", (ORDERS.id, 1, 900, 10), taken=600)
    later = answer(ring, "a", (ORDERS.id, 2, 5, 30), taken=-600)
    found = newest_answers(ring.store, CLUSTER)
    created = {info.created for info in ring.store.list(layout.truncations_prefix(CLUSTER))}
    assert len(created) == 1 or found[node("a")].name == later


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no JSON", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b'{"taken_at": "2026-05-04T12:00:00Z"}', "Field required"),
        (
            json.dumps({"taken_at": START.isoformat(), "truncated_at": [{"table_id": "x", "segment": 1, "position": 1, "at": 1}]}).encode(),
            "UUID",
        ),
        (
            json.dumps(
                {"taken_at": START.isoformat(), "truncated_at": [{"table_id": str(ORDERS.id), "segment": 1, "position": 1, "at": 2**62}]}
            ).encode(),
            "ahead of the store's clock",
        ),
    ],
)
def test_a_hostile_answer_is_reported_and_holds_up_no_other(ring: Ring, content: bytes, reason: str) -> None:
    bad = layout.node_truncations(node("bad"), minute(0), "0badcafe")
    ring.store.put(bad, content)
    ring.store.put(f"{layout.truncations_prefix(CLUSTER)}stray", b"")
    ring.ship("a", 1, 1)
    ring.batch()
    answer(ring, "a", (ORDERS.id, 1, 900, 10))
    document = ring.batch()
    assert document.opened == [ORDERS.id]
    _, _, rejected = read_answers(ring.store, [bad])
    assert [reason in text for text in rejected] == [True], rejected
    assert plan_ingest(ring.store, CLUSTER, now=minute(3000)) is None, "it was looked at once"


def test_both_sides_know_the_answer_without_records(ring: Ring) -> None:
    name = answer(ring, "a")
    assert layout.truncations_checksum(name) == checksum_of([])
    assert new_answers(ring.store, CLUSTER, {}) == []
    known: dict[str, Any] = {"a": name}
    assert new_answers(ring.store, CLUSTER, known) == []
    assert START + timedelta(0) == minute(0)


def test_maintenance_keeps_the_newest_answer_of_each_node(ring: Ring) -> None:
    answer(ring, "a", taken=0)
    answer(ring, "b", taken=0)
    last = answer(ring, "a", (ORDERS.id, 1, 900, 10), taken=1)
    stray = f"{layout.truncations_prefix(CLUSTER)}stray"
    ring.store.put(stray, b"")
    newest = {info.name for info in newest_answers(ring.store, CLUSTER).values()}
    assert sweep_answers(ring.store, CLUSTER) > 0
    assert {info.name for info in ring.store.list(layout.truncations_prefix(CLUSTER))} == {*newest, stray}
    assert last in newest


def test_status_names_a_node_that_is_not_asked(ring: Ring) -> None:
    ring.ship("a", 1, 1)
    ring.ship("b", 1, 1)
    ring.batch()
    answer(ring, "a")
    text = as_text(Batches(ring.store, CLUSTER), 10)
    assert "TRUNCATEs of node b are known from its segments only: it was never queried" in text
    assert "TRUNCATEs of node a" not in text
