"""How gaps are found, explained and told."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from writetime.pipeline import audit
from writetime.pipeline.audit import (
    AuditReport,
    Came,
    Gap,
    Group,
    Held,
    NodeAudit,
    TableReread,
    explain,
)
from writetime.storage import open_store

START = datetime(2026, 5, 4, 12, tzinfo=UTC)
MINUTE = int(START.timestamp()) // 60


def came(minute: int, number: int, *, first: int = 0, readable: bool = True, incarnation: int = 0) -> Came:
    """A segment that was finished in that minute; `life`: the minute in which its node started."""
    base = int((START + timedelta(minutes=incarnation or -600)).timestamp() * 1000)
    return Came(base + number, 7, START + timedelta(minutes=minute, seconds=30), MINUTE + first, readable)


@pytest.mark.parametrize(
    ("log", "minute", "reason", "told"),
    [
        ([], 0, "not shipped yet", "no segment"),
        ([came(3, 1)], 3, "not shipped yet", "12:03:30Z"),
        ([came(3, 1)], 2, "not in its log", ""),
        ([came(3, 1), came(9, 3)], 5, "segment missing", "602 was not received"),
        ([came(3, 1), came(9, 5)], 5, "segment missing", " to -"),
        ([came(3, 1), came(9, 3)], 2, "not in its log", ""),
        ([came(3, 1), came(9, 0, incarnation=6)], 5, "node down", "until 2026-05-04 12:06:00Z"),
        ([came(3, 1), came(9, 0, incarnation=6)], 8, "not in its log", ""),
        ([came(3, 1, readable=False), came(9, 2)], 2, "segment unreadable", ""),
        ([came(3, 1, first=2)], 1, "nothing before", "from 2026-05-04 12:02Z"),
    ],
)
def test_why_something_is_missing(log: list[Came], minute: int, reason: str, told: str) -> None:
    found = explain(log, MINUTE + minute)
    assert found.reason == reason
    assert told.replace("602", "") in found.detail


def group(minute: int, *nodes: Held, number: int = 0) -> Group:
    return Group(table="shop.orders", range=number, minute=MINUTE + minute, mutations=10, nodes=list(nodes))


WHOLE = Held(host_id="a", expected=10, held=10, expected_crc32=1, held_crc32=1)
LACKING = Held(host_id="b", expected=10, held=7, expected_crc32=1, held_crc32=2)


def test_neighbouring_gaps_are_one_and_old_ones_are_alarms() -> None:
    groups = [group(1, WHOLE, LACKING), group(2, WHOLE, LACKING, number=3), group(3, WHOLE)]
    log = {"a": [came(9, 1)], "b": [came(0, 1)]}
    (gap,) = audit.gaps(groups, log, START + timedelta(minutes=10), 180)
    assert (gap.first, gap.last, gap.lacks, gap.expected, gap.ranges) == (MINUTE + 1, MINUTE + 2, 6, 20, [0, 3])
    assert (gap.host_id, gap.reason, gap.verdict) == ("b", "not shipped yet", "explained")
    (late,) = audit.gaps(groups, log, START + timedelta(hours=4), 180)
    assert late.verdict == "alarm"


def test_what_its_log_ought_to_hold_is_an_alarm_at_once_unless_only_one_node_has_it() -> None:
    log = {"b": [came(9, 1)]}
    (gap,) = audit.gaps([group(1, LACKING)], log, START, 180)
    assert (gap.reason, gap.verdict) == ("not in its log", "alarm")
    (alone,) = audit.gaps([group(1, LACKING.model_copy(update={"alone": 3}))], log, START + timedelta(days=9), 180)
    assert (alone.reason, alone.verdict) == ("one node only", "explained")


def gap(table: str, verdict: str, lacks: int, *numbers: int) -> Gap:
    about = {"host_id": "b", "first": 1, "last": 1, "expected": 10, "reason": "segment missing", "told": ""}
    return Gap.model_validate({**about, "table": table, "verdict": verdict, "lacks": lacks, "ranges": list(numbers)})


def test_what_is_read_again_is_bounded_and_alarms_come_first() -> None:
    found = [gap("a", "explained", 9, 0), gap("b", "alarm", 1, 3, 2), gap("a", "alarm", 5, 1), gap("a", "alarm", 4, 1, 2)]
    assert audit.to_read(found, "none", 9) == ({}, 0)
    assert audit.to_read(found, "alarms", 9) == ({"a": [1, 2], "b": [2, 3]}, 0)
    assert audit.to_read(found, "gaps", 9) == ({"a": [0, 1, 2], "b": [2, 3]}, 0)
    assert audit.to_read(found, "gaps", 4) == ({"a": [1, 2], "b": [2, 3]}, 1)
    assert audit.to_read(found, "alarms", 1) == ({"a": [1]}, 3)


def test_the_report_and_its_picture(tmp_path: Path) -> None:
    groups = [group(1, WHOLE, LACKING), group(2, WHOLE)]
    found = audit.gaps(groups, {"b": [came(9, 1)]}, START, 180)
    end = START + timedelta(hours=1)
    step = audit.step_of(START, end)
    sums = audit.by_step(groups, START, end, step)
    nodes = [
        NodeAudit(host_id=host, address=address, datacenter="dc1", segments=1, expected_by_step=sums[host][0], held_by_step=sums[host][1])
        for host, address in (("a", "10.0.0.1"), ("b", ""))
    ]
    report = AuditReport(
        cluster="c",
        started_at=START,
        finished_at=START,
        start=START,
        end=START + timedelta(hours=1),
        datacenters=["dc1"],
        ranges=audit.ranges(4),
        nodes=nodes,
        tables=audit.tables_of(groups),
        gaps=found,
        groups=groups,
        step=step,
    )
    store = open_store(str(tmp_path))
    name = audit.write_report(store, report)
    assert name == "audit/c/20260504T120000Z.json"
    assert AuditReport.model_validate_json(store.read(name)) == report
    assert report.alarms == 1
    drawn = ET.fromstring(store.read(name.replace(".json", ".svg")))
    classes = [each.get("class") for each in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert classes[:5] == ["b", "good", "good", "b", "bad"]
    text = audit.report_text(report)
    assert "alarm: shop.orders on b, 2026-05-04 12:01Z to 2026-05-04 12:01Z: lacks 3 of 10 mutations" in text
    read = TableReread(table="shop.orders", ranges=[1, 2], run="r", consistency="ALL", rows=7, frames=1)
    refused = TableReread(table="shop.notes", ranges=[1], trouble="a replica is down")
    quiet = report.model_copy(update={"gaps": [], "reread": [read], "not_reread": 3})
    assert quiet.ok
    assert not quiet.model_copy(update={"reread": [read, refused]}).ok
    told = audit.report_text(quiet.model_copy(update={"reread": [read, refused]}))
    assert "read again at ALL: shop.orders, 2 token ranges: 7 rows, 1 with new data, ingested by the next batch" in told
    assert "not read again: shop.notes, 1 token ranges: a replica is down" in told
    assert "not read again: 3 more token ranges" in told
    assert "no gap" in audit.report_text(report.model_copy(update={"gaps": []}))


def test_ranges_cover_the_ring() -> None:
    ranges = audit.ranges(7)
    assert (ranges[0][0], ranges[-1][1], len(ranges)) == (-(2**63), 2**63 - 1, 7)
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
