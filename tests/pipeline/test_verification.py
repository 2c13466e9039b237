"""What counts as drift, what has to wait, and what the report says."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.node_objects import status_of
from writetime.cassandra.model import Cell, Liveness, Row
from writetime.errors import ConfigError
from writetime.pipeline import verification
from writetime.pipeline.documents import HeldTable, Manifest, Sealed, SegmentInput, Watermark
from writetime.pipeline.verification import (
    Compared,
    Difference,
    Horizon,
    RangeResult,
    Shown,
    TableResult,
    TopicFinding,
    TopicResult,
    VerifyReport,
    are_ties,
    differences,
    may_be_ties,
    verdict,
)
from writetime.storage import layout, open_store

NOW = 1_000
OF = Compared(frozenset({"v", "tags"}), elements=frozenset({"tags"}))
RING = Shown({"v": 1, "tags": ["a"]}, {"v": 500, "tags": 400})


@pytest.mark.parametrize(
    ("ring", "ours", "expected"),
    [
        (RING, RING, []),
        (RING, None, [Difference("row missing", "", 400)]),
        (Shown({}), None, [Difference("row missing", "", None)]),
        (None, RING, [Difference("row too many", "", None)]),
        (RING, Shown({"v": 2, "tags": ["a"]}, RING.writetime), [Difference("value", "v", 500)]),
        (RING, Shown({"v": True, "tags": ["a"]}, RING.writetime), [Difference("value", "v", 500)]),
        (RING, Shown(RING.values, {"v": 499, "tags": 400}), [Difference("writetime", "v", 500)]),
        (RING, Shown(RING.values, RING.writetime, {"v": 9_000}), [Difference("expiry", "v", 500)]),
        # An element may have gone a moment ago, of which nothing is left to see.
        (RING, Shown({"v": 1, "tags": ["a", "b"]}, RING.writetime), [Difference("value", "tags", None)]),
        (Shown({"tags": ["a"]}, {"tags": 400}), RING, [Difference("value", "v", None)]),
        # What was to expire by now is for the next batch to tell.
        (Shown({"tags": ["a"]}, {"tags": 400}), Shown(RING.values, RING.writetime, {"v": NOW}), []),
        (None, Shown({"v": 1}, {"v": 500}, {"v": NOW}), []),
        (None, Shown(RING.values, RING.writetime, {"v": NOW}), [Difference("row too many", "", None)]),
        (None, Shown({}), [Difference("row too many", "", None)]),
    ],
)
def test_how_a_row_differs(ring: Shown | None, ours: Shown | None, expected: list[Difference]) -> None:
    assert differences(OF, ring, ours, NOW) == expected


def test_what_is_not_told_is_not_compared() -> None:
    untold = Compared(OF.columns, OF.elements, untold=frozenset({"v", "tags"}))
    assert differences(untold, RING, Shown(RING.values), NOW) == []


def test_only_what_ought_to_be_in_is_drift() -> None:
    old, unseen = [Difference("value", "v", 500)], [Difference("row too many", "", None)]
    assert [verdict(old, 900, Horizon(written, -1)) for written in (499, 500)] == ["unsettled", "drift"]
    assert [verdict(unseen, 900, Horizon(written, -1)) for written in (900, 1000)] == ["unsettled"] * 2
    # Whatever its writetime: it was there when the cluster was read, and everything logged by then is in.
    assert [verdict(each, 900, Horizon(-1, logged)) for each in (old, unseen) for logged in (899, 900)] == ["unsettled", "drift"] * 2
    assert verdict([], 900, Horizon(-1, -1)) == "unsettled"


def test_less_of_a_row_is_a_tie_if_what_lacks_won_one() -> None:
    """A cell that won against one of its timestamp that has expired by now, on a ring of Cassandra 3.11
    (`writetime.cassandra.merge.reconcile`)."""
    won, other = Cell("v", 5, b"b", tied=True), Cell("w", 5, b"b")
    null, gone = [Difference("value", "v", None)], [Difference("row too many", "", None)]
    shown = Shown({"w": "b"})
    assert may_be_ties(null, shown, frozenset())
    assert not may_be_ties(null, Shown({"v": "c"}), frozenset())
    assert may_be_ties(null, Shown({"v": ["c"]}), frozenset({"v"}))
    assert not may_be_ties([*null, Difference("writetime", "w", 7)], shown, frozenset())
    assert not may_be_ties([Difference("row missing", "", 7)], shown, frozenset())
    assert are_ties(null, Row((), cells=(won, other)), None, 100)
    assert are_ties(null, Row((), cells=(other,)), Row(None, cells=(won,)), 100)
    assert not are_ties(null, Row((), cells=(replace(won, tied=False), other)), None, 100)
    assert are_ties(gone, Row((), cells=(won,)), None, 100)
    # The ring would show these rows for something else.
    assert not are_ties(gone, Row((), cells=(won, other)), None, 100)
    assert not are_ties(gone, Row((), Liveness(5), cells=(won,)), None, 100)
    assert not are_ties(gone, None, Row(None, cells=(won,)), 100)


def test_a_document_survives_and_numbers_have_one_spelling() -> None:
    assert Shown.from_bytes(RING.to_bytes()) == RING
    assert {verification.one_spelling(text) for text in ("1", "1.0", "10E-1")} == {"1e0"}
    assert verification.one_spelling("-0.00") == "0"
    assert verification.plain({"a": b"\x01", "b": None, "c": [(1, b"")]}) == {"a": "01", "c": [[1, ""]]}


def test_a_share_of_the_ranges_is_the_same_for_a_seed() -> None:
    ranges = [(at, at + 1) for at in range(100)]
    some = verification.sampled(ranges, 0.1, 7)
    assert len(some) == 10
    assert some == verification.sampled(ranges, 0.1, 7) == sorted(some)
    assert some != verification.sampled(ranges, 0.1, 8)
    assert verification.sampled(ranges, 1, 7) == ranges
    assert len(verification.sampled(ranges, 0.0001, 7)) == 1
    with pytest.raises(ConfigError):
        verification.sampled(ranges, 0, 7)


def test_the_horizon_is_that_of_the_node_that_is_furthest_behind(tmp_path: Path) -> None:
    store, start = open_store(str(tmp_path)), datetime(2026, 5, 4, 12, tzinfo=UTC)
    nodes = [layout.NodeName("c", "dc1", host) for host in ("a", "b", "gone")]

    def segment(node: layout.NodeName, minute: int) -> SegmentInput:
        name = layout.SegmentRef(node, layout.SegmentName(1_777_890_000_000 + minute, 7)).incoming
        return SegmentInput(object=name, generation=1, size=1, crc32c=1, sealed_at=start + timedelta(minutes=minute))

    taken = {1: [(0, 1), (1, 2), (2, 0)], 2: [(0, 3), (0, 5)], 3: []}
    assert verification.written_until(store, "c", None) is None
    for number, segments in taken.items():
        about = {"number": number, "cluster": "c", "created_at": start, "now": 0, "base": number - 1}
        made = Manifest(kind="ingest", segments=[segment(nodes[at], minute) for at, minute in segments], **about)
        store.put(layout.batch_object("c", number, "manifest"), made.to_bytes())
        sealed = Sealed(number=number, kind="ingest", sealed_at=start, segments=[], accounting=[], state={})
        store.put(layout.batch_object("c", number, "sealed"), sealed.to_bytes())
    assert verification.written_until(store, "c", sealed) == start
    for node in nodes[:2]:
        store.put(status_of(node), b"{}")
    assert verification.written_until(store, "c", sealed) == start + timedelta(minutes=2)


def test_the_horizon_of_a_table_is_the_time_up_to_which_it_is_complete() -> None:
    """It advances without segments; a table that is held stays behind."""
    start = datetime(2026, 5, 4, 12, tzinfo=UTC)
    held, other = UUID(int=1), UUID(int=2)

    def of(complete: Watermark, table_id: UUID, written: datetime | None = start) -> tuple[datetime | None, datetime | None]:
        found = verification.horizon(written, complete, table_id, 10)
        return verification.moment(found.written), verification.moment(found.logged)

    later, less = start + timedelta(hours=1), timedelta(seconds=10)
    complete = Watermark(until=later, held={held: HeldTable(until=start - timedelta(hours=1), by="x")})
    assert of(complete, other) == (start - less, later - less)
    assert of(complete, held) == (start - less, start - timedelta(hours=1) - less)
    assert of(complete.model_copy(update={"held": {held: HeldTable(until=None, by="x")}}), held) == (start - less, None)
    # Nodes that sign nothing off.
    assert of(Watermark(), other) == (start - less, start - less)
    assert of(Watermark(), other, None) == (None, None)


def test_the_report_and_its_picture(tmp_path: Path) -> None:
    ranges = [RangeResult(start=-(2**63), end=0, rows=7, drift=1), RangeResult(start=0, end=2**63 - 1, rows=3)]
    when = datetime(2026, 5, 4, 12, tzinfo=UTC)
    finding = verification.Finding(key='{"id": 7}', token=-5, verdict="drift", differences=[("value", "a<b")], first_seen=when)
    table = TableResult(table="shop.<orders>", table_id=UUID(int=1), ranges=ranges, findings=[finding])
    about = {"cluster": "c", "started_at": when, "finished_at": when, "batch": 3, "horizon": when}
    report = VerifyReport(**about, consistency="ALL", share=1, seed=0, tables=[table])
    assert (report.ok, report.drift, table.rows) == (False, 1, 10)
    store = open_store(str(tmp_path))
    name = verification.write_report(store, report)
    assert name == "verify/c/20260504T120000Z.json"
    assert VerifyReport.model_validate_json(store.read(name)) == report
    drawn = ET.fromstring(store.read(name.replace(".json", ".svg")))
    classes = [each.get("class") for each in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert classes[:3] == ["b", "bad", "good"]
    text = verification.report_text(report)
    assert "DRIFT" in text
    assert 'drift shop.<orders> {"id": 7}: value a<b' in text
    assert report.model_copy(update={"tables": []}).ok
    assert "written up to 2026-05-04 12:00:00Z" in text
    assert "no writes, everything is ingested" in verification.report_text(report.model_copy(update={"at_rest": True, "horizon": None}))
    # What people are told of it names no row.
    command = f"writetime bootstrap --config p.yaml --table 'shop.<orders>' --token-range={-(2**63)}:0"
    assert f"to repair: {command}" in verification.report_text(report, "p.yaml")
    short = verification.in_short(report, "p.yaml")
    told = f"1 rows differ from the cluster\nshop.<orders>: drift in 1 of 10 rows. To repair:\n{command}\n"
    assert short == f"{told}Report and chart: verify/c/20260504T120000Z.json"


def test_topics_are_part_of_the_report() -> None:
    at = datetime(2026, 5, 4, 12, tzinfo=UTC)
    about: dict[str, Any] = {"cluster": "c", "started_at": at, "finished_at": at, "batch": 3, "horizon": at, "consistency": "ALL"}
    finding = TopicFinding(key='{"id": 7}', verdict="drift", kind="value", columns=["a", "b"])
    topics = [
        TopicResult(topic="cdc.shop.orders", table="shop.orders", keys=5, drift=1, findings=[finding]),
        TopicResult(topic="cdc.shop.carts", table="shop.carts", trouble="the table does not exist in the warehouse"),
    ]
    report = VerifyReport(**about, share=1, seed=0, tables=[], topics=topics)
    assert (report.ok, report.drift) == (False, 1)
    assert VerifyReport.model_validate_json(report.to_bytes()) == report
    text = verification.report_text(report)
    assert 'drift cdc.shop.orders {"id": 7}: value a b' in text
    assert "the table does not exist in the warehouse" in text
    short = verification.in_short(report)
    assert "topic cdc.shop.orders: drift of 1 of 5 keys from the table" in short
    assert "topic cdc.shop.carts could not be compared" in short
    assert '"id"' not in short
    # A report of an earlier version has none.
    assert VerifyReport.model_validate_json(report.model_copy(update={"topics": []}).model_dump_json(exclude={"topics"})).ok
