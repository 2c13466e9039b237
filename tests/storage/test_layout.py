"""Names of objects: readable, reversible, sortable, and nothing from outside can leave its place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.errors import NotASegment
from writetime.storage import layout
from writetime.storage.layout import NodeName, SegmentName, SegmentRef, part, unpart
from writetime.storage.object_names import is_name

NODE = NodeName("ring", "dc1", "host-1")
REF = SegmentRef(NODE, SegmentName(1795248832760, 7))


@given(st.text(max_size=12))
def test_parts_are_reversible_and_safe(text: str) -> None:
    escaped = part(text)
    assert unpart(escaped) == text
    assert "/" not in escaped
    assert escaped not in ("", ".", "..")
    assert is_name(escaped)


@given(st.text(max_size=8), st.text(max_size=8))
def test_different_texts_have_different_parts(one: str, other: str) -> None:
    assert (part(one) == part(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", "orders"),
        ("My-Table_2.x", "My-Table_2.x"),
        ("a/b", "a%2Fb"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("", "%"),
        ("%", "%25"),
        ("~x", "%7Ex"),
        ("ü", "%C3%BC"),
        ("a b", "a%20b"),
    ],
)
def test_parts(text: str, expected: str) -> None:
    assert part(text) == expected


def test_a_segments_name() -> None:
    segment = SegmentName.parse("CommitLog-7-1795248832760.log")
    assert (segment.id, segment.version) == (1795248832760, 7)
    assert segment.filename == "CommitLog-7-1795248832760.log"
    assert segment.idx_filename == "CommitLog-7-1795248832760_cdc.idx"
    assert segment.stem == "CommitLog-7-1795248832760"
    assert SegmentName(9, 8) < SegmentName(10, 7), "by id, not by version or text"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CommitLog-7-1.log.bak",
        "CommitLog-7.log",
        "commitlog-7-1.log",
        "CommitLog-7-1_cdc.idx",
        "a/CommitLog-7-1.log",
        "CommitLog-7--1.log",
    ],
)
def test_what_is_no_segments_name(text: str) -> None:
    with pytest.raises(NotASegment):
        SegmentName.parse(text)


def test_where_a_segment_is_kept() -> None:
    sealed = datetime(2026, 5, 4, 1, 30, tzinfo=timezone(timedelta(hours=3)))
    assert REF.incoming == "cdc/ring/dc1/host-1/CommitLog-7-1795248832760.log"
    assert REF.ledger == "ledger/ring/dc1/host-1/CommitLog-7-1795248832760.json"
    assert REF.archived(sealed) == "cdc_archive/ring/date=2026-05-03/hour=22/dc1/host-1/CommitLog-7-1795248832760.log"
    assert REF.archived(sealed).startswith(layout.archive_hour_prefix("ring", sealed))
    assert REF.quarantined(42, 7) == "quarantine/ring/dc1/host-1/CommitLog-7-1795248832760/0000000042-7"
    assert REF.incoming.startswith(layout.incoming_prefix("ring"))


@given(st.text(max_size=6), st.text(max_size=6), st.text(max_size=6), st.integers(0, 2**63 - 1))
def test_a_segment_is_known_by_its_object(cluster: str, datacenter: str, host: str, number: int) -> None:
    ref = SegmentRef(NodeName(cluster, datacenter, host), SegmentName(number, 7))
    for name in (ref.incoming, ref.archived(datetime(2026, 1, 1, tzinfo=UTC)), ref.growing, ref.part(0, 7)):
        assert SegmentRef.from_object(name) == ref
        assert is_name(name)


def test_parts_are_sorted_by_where_they_begin() -> None:
    parts = [REF.part(0, 20_000_000), REF.part(9, 10), REF.part(2_000_000_000, 2_100_000_000)]
    assert parts == sorted(parts)
    assert parts[1] == "cdc_parts/ring/dc1/host-1/CommitLog-7-1795248832760/0000000009-0000000010"
    assert [layout.part_range(name) for name in parts] == [(0, 20_000_000), (9, 10), (2_000_000_000, 2_100_000_000)]
    assert all(name.startswith(layout.parts_prefix("ring")) for name in parts)


@pytest.mark.parametrize("name", ["", REF.incoming, REF.growing, f"{REF.growing}/1-2", f"{REF.growing}/{'0' * 10}-{'0' * 10}"])
def test_what_is_no_part(name: str) -> None:
    with pytest.raises(NotASegment):
        layout.part_range(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cdc/ring/dc1/CommitLog-7-1.log",
        "cdc/ring/dc1/host/notes.txt",
        "ledger/ring/dc1/host/CommitLog-7-1.log",
        "cdc/r/d/h/x/CommitLog-7-1.log",
    ],
)
def test_what_is_no_segments_object(name: str) -> None:
    with pytest.raises(NotASegment):
        SegmentRef.from_object(name)


def test_other_objects() -> None:
    taken = datetime(2026, 5, 4, 12, 30, 5, tzinfo=UTC)
    assert layout.node_schema(NODE, taken, "v/1") == "schemas/ring/dc1/host-1/20260504T123005Z-v%2F1.json"
    assert layout.node_schema(NODE, taken, "v").startswith(layout.schema_prefix("ring"))
    assert layout.is_schema_snapshot(layout.node_schema(NODE, taken, "v"))
    assert not layout.is_schema_snapshot("schemas/ring/20260504T123005Z-v.json")
    assert not layout.is_schema_snapshot("schemas/ring/dc1/20260504T123005Z-v.json")
    assert layout.node_status(NODE, taken, "0badcafe") == "nodes/ring/dc1/host-1/20260504T123005Z-0badcafe.json"
    assert layout.node_status(NODE, taken, "0badcafe").startswith(layout.node_documents(NODE))
    assert NodeName.of_facts(layout.node_status(NODE, taken, "0badcafe")) == NODE
    odd = NodeName("my ring", "dc/1", "..")
    assert NodeName.of_facts(layout.node_status(odd, taken, "0badcafe")) == odd
    assert NodeName.of_facts("nodes/ring/dc1/host-1.json") is None
    assert layout.batch_object("ring", 12, "manifest") == "batches/ring/0000000012/manifest.json"
    assert layout.batch_object("ring", 9, "sealed") < layout.batch_object("ring", 10, "sealed")
    assert layout.state_shard("ring", "id", 2, 3) == "state/ring/id/g0002/b00003"
    assert layout.state_shard("ring", "id", 2, 3, 16) == "state/ring/id/g0002.of00016/b00003"
    assert layout.state_generation("state/ring/id/g0002/b00003/data/x.lance") == (2, 0)
    assert layout.state_generation("state/ring/id/g0002.of00016/b00003/data/x.lance") == (2, 16)


def test_no_cluster_reaches_into_anothers_place() -> None:
    for cluster in ("../other", "ring/dc1", "ring"):
        assert layout.incoming_prefix(cluster).count("/") == 2
        assert not layout.incoming_prefix(cluster + "x").startswith(layout.incoming_prefix(cluster))
