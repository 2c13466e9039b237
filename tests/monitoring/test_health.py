"""The health of tables: each check by itself, the worst wins, and status and page link to the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.monitoring import bucket
from writetime.config.airflow import WatchConfig
from writetime.config.pipeline import PipelineConfig
from writetime.monitoring import metrics
from writetime.monitoring.health import CHECKS, LEVELS, Expected, Health, TableHealth, health
from writetime.monitoring.overview import overview
from writetime.monitoring.status import as_document, as_text
from writetime.pipeline import comparisons, verification
from writetime.pipeline.audit import AuditReport, Gap, TableAudit
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.bootstrap.run import HIGHEST, LOWEST
from writetime.pipeline.documents import Accounting, HeldTable, RefusedTable, Sealed, ShardVersions, Watermark
from writetime.pipeline.publish_progress import Published
from writetime.pipeline.verification import RangeResult, TableResult, VerifyReport
from writetime.storage import layout
from writetime.storage.local import LocalStore

NOW = bucket.minute(12)
ORDERS, CUSTOMERS, THIRD = bucket.TABLES
CHECKED = Expected(cql=True, verify=True, audit=True)
IDS = dict(zip(bucket.TABLES, (bucket.ORDERS, UUID(int=1), UUID(int=2)), strict=True))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Everything is well: no held segment, all is published, complete a minute ago, compared an hour ago."""
    folder = tmp_path / "bucket"
    builder = bucket.Builder(LocalStore(folder).put, bad=False)
    for number in range(1, 9):
        builder.batch(number)
    builder.around(8)
    store = LocalStore(folder)
    store.delete(bucket.ref(0, 10**6).incoming)
    store.put(layout.published(bucket.CLUSTER), Published(batch=8, events=0).to_bytes())
    complete(store)
    verified(store)
    audited(store)
    return store


def complete(store: LocalStore, held: dict[UUID, HeldTable] | None = None) -> None:
    until = NOW - timedelta(minutes=1)
    watermark = Watermark(batch=8, until=until, nodes={node.path: until for node in bucket.NODES}, held=held or {})
    store.put(layout.complete(bucket.CLUSTER), watermark.to_bytes())


def verified(store: LocalStore, at: datetime = NOW - timedelta(hours=1), tables: tuple[str, ...] = bucket.TABLES, **bad: Any) -> str:
    results = [TableResult(table=name, table_id=IDS[name], ranges=[RangeResult(start=LOWEST, end=HIGHEST, rows=9)]) for name in tables]
    if bad:
        results[0] = results[0].model_copy(update=bad)
    about: dict[str, Any] = {"batch": 8, "horizon": None, "consistency": "ALL", "share": 1, "seed": 0}
    report = VerifyReport(cluster=bucket.CLUSTER, started_at=at, finished_at=at, tables=results, **about)
    verification.write_report(store, report)
    ids = set(IDS.values())
    comparisons.record(store, bucket.CLUSTER, results, report=report.name, began=at, at=at, read=ids, existing=ids)
    return report.name


def audited(store: LocalStore, at: datetime = NOW - timedelta(hours=1), *alarms: str) -> str:
    about: dict[str, Any] = {"datacenters": ["dc1"], "ranges": [], "nodes": [], "groups": []}
    gaps = [
        Gap(table=name, host_id="h", first=0, last=1, lacks=2, expected=9, ranges=[0], reason="not in its log", told="", verdict="alarm")
        for name in alarms
    ]
    tables = [TableAudit(table=ORDERS, mutations=9, groups=1, complete=1)]
    report = AuditReport(cluster=bucket.CLUSTER, started_at=at, finished_at=at, start=at, end=at, tables=tables, gaps=gaps, **about)
    store.put(report.name, report.to_bytes())
    return report.name


def seal(store: LocalStore, **update: Any) -> None:
    name = layout.batch_object(bucket.CLUSTER, 8, "sealed")
    store.put(name, Sealed.model_validate_json(store.read(name)).model_copy(update=update).to_bytes())


def seen(store: LocalStore, expected: Expected = CHECKED, now: datetime = NOW) -> Health:
    batches = Batches(store, bucket.CLUSTER)
    return health(batches, overview(batches, now=now), expected)


def of(found: Health, name: str = ORDERS) -> TableHealth:
    return next(table for table in found.tables if table.name == name)


def test_all_is_well(store: LocalStore) -> None:
    found = seen(store)
    assert (found.level, found.problems) == ("ok", ())
    assert {(table.name, table.level, table.until) for table in found.tables} == {
        (name, "ok", NOW - timedelta(minutes=1)) for name in bucket.TABLES
    }
    assert of(found).findings["batch"].text == "batch 8, 100 s ago: 10 events"


def refuse(store: LocalStore) -> None:
    seal(store, refused=[RefusedTable(table=ORDERS, table_id=bucket.ORDERS, reason="no such type")])


def wait(store: LocalStore) -> None:
    waits = Published(batch=8, events=0, waiting={ORDERS: 5}, reasons={ORDERS: "too large"})
    store.put(layout.published(bucket.CLUSTER), waits.to_bytes())


def bypass(store: LocalStore) -> None:
    seal(store, not_in_log={ORDERS: "full"})


def quarantine(store: LocalStore) -> None:
    accounts = [Accounting(table=name, updates_in=9, quarantined=3 * (name == ORDERS), applied=6, events=6) for name in bucket.TABLES]
    seal(store, accounting=accounts)


def hold(store: LocalStore) -> None:
    complete(store, {bucket.ORDERS: HeldTable(until=NOW - timedelta(minutes=31), by=bucket.ref(1, 3).incoming)})


def drift(store: LocalStore) -> str:
    return verified(store, NOW, ranges=[RangeResult(start=-5, end=9, rows=9, drift=2)])


@pytest.mark.parametrize(
    ("trouble", "check", "level", "text", "view"),
    [
        (refuse, "batch", "warning", "rejected: no such type", "tables#shop.orders"),
        (wait, "batch", "warning", "events since batch 5 cannot be published: too large", "tables#shop.orders"),
        (bypass, "batch", "critical", "its transactional_mode is full", "tables#shop.orders"),
        (quarantine, "batch", "warning", "3 updates of batch 8 are in quarantine", "batches/8"),
        (hold, "lag", "warning", "31.0 min ago; held by cdc/", "segment?name=cdc%2F"),
        (
            lambda store: verified(store, NOW, ranges=[RangeResult(start=-5, end=9, rows=9, drift=2)]),
            "verify",
            "critical",
            "2 rows differ from the cluster; to repair: writetime bootstrap --config … --table shop.orders --token-range=-5:9",
            "checks/report?name=verify%2F",
        ),
        (lambda store: verified(store, NOW, trouble="no SELECT"), "verify", "warning", "no SELECT", "checks/report?name=verify%2F"),
        (lambda store: audited(store, NOW, ORDERS), "audit", "warning", "1 gaps in the logs", "checks/report?name=audit%2F"),
    ],
)
def test_each_check_of_one_table(
    store: LocalStore, trouble: Callable[[LocalStore], object], check: Any, level: str, text: str, view: str
) -> None:
    trouble(store)
    found = seen(store)
    finding = of(found).findings[check]
    assert (finding.level, of(found).worst, found.level) == (level, finding, level)
    assert text in finding.text
    assert finding.view.startswith(view)
    assert found.tables[0].name == ORDERS, "the worst comes first"
    assert [of(found).findings[other].level for other in CHECKS if other != check] == ["ok"] * 3
    others = [of(found, name).level for name in (CUSTOMERS, THIRD)]
    assert others == ["ok", "ok"], "the others are well"


def test_the_worst_finding_is_the_one_shown(store: LocalStore) -> None:
    hold(store)
    audited(store, NOW, ORDERS)
    assert of(seen(store)).worst == of(seen(store)).findings["lag"], "of equal ones the first"
    name = drift(store)
    worst = of(seen(store)).worst
    assert (worst.level, worst.text.partition(";")[0]) == ("critical", "2 rows differ from the cluster")
    assert name.rpartition("/")[2] in worst.view
    assert list(LEVELS) == ["none", "ok", "unknown", "warning", "critical"]


def test_limits_are_those_of_cdc_watch(store: LocalStore) -> None:
    later = NOW + timedelta(minutes=30)
    assert [table.findings["lag"].level for table in seen(store, now=later).tables] == ["warning"] * 3
    (problem,) = seen(store, now=later).problems
    assert problem.text.startswith("completeness: ")
    unlimited = Expected(WatchConfig(complete_minutes=None, late_minutes=None), cql=True, verify=True, audit=True)
    assert seen(store, unlimited, now=later).level == "ok"
    store.put(layout.published(bucket.CLUSTER), Published(batch=5, events=0).to_bytes())
    assert of(seen(store)).level == "ok"
    few = Expected(WatchConfig(unpublished_batches=2), cql=True, verify=True, audit=True)
    assert of(seen(store, few)).worst.text == "events of 3 batches are not in Kafka"
    assert seen(store, Expected(few.limits, publishes=False)).level == "ok"


def test_a_check_that_never_ran_counts_where_it_is_scheduled(store: LocalStore) -> None:
    for prefix in (layout.verify_prefix(bucket.CLUSTER), layout.comparisons(bucket.CLUSTER), layout.audit_prefix(bucket.CLUSTER)):
        for info in list(store.list(prefix)):
            store.delete(info.name)
    found = of(seen(store))
    assert (found.findings["verify"].level, found.findings["audit"].level, found.level) == ("unknown", "unknown", "unknown")
    assert found.worst.text.startswith("never compared with the cluster: the next run of cdc_verify")
    found = of(seen(store, Expected(cql=True)))
    assert found.findings["verify"].text == "never compared with the cluster: trigger cdc_verify"
    assert found.level == "unknown", "whether or not anything is scheduled"
    found = of(seen(store, Expected()))
    assert (found.findings["verify"].level, found.findings["audit"].level, found.level) == ("none", "none", "ok")
    assert found.findings["verify"].text == "not compared: cluster.cql is not configured"
    batches = Batches(store, bucket.CLUSTER)
    texts = [as_text(batches, 60, expected) for expected in (Expected(), Expected(cql=True), CHECKED)]
    assert ["not compared: cluster.cql is not configured" in text for text in texts] == [True, False, False]


@pytest.mark.parametrize(
    ("ranges", "read", "level", "text"),
    [
        ([(LOWEST, 0)], True, "unknown", "never compared with the cluster completely, 50% so far"),
        ([(0, HIGHEST)], True, "unknown", "never compared with the cluster: "),
        ([(LOWEST, 0), (0, HIGHEST)], True, "ok", "equal to the cluster, completely compared 2026-05-04"),
        # Before its first reading is ingested, it proves nothing.
        ([(LOWEST, HIGHEST)], False, "unknown", "never compared with the cluster: "),
    ],
)
def test_a_table_counts_as_compared_once_all_of_it_was(
    store: LocalStore, ranges: list[tuple[int, int]], read: bool, level: str, text: str
) -> None:
    store.delete(layout.comparisons(bucket.CLUSTER))
    for start, end in ranges:
        result = TableResult(table=ORDERS, table_id=bucket.ORDERS, ranges=[RangeResult(start=start, end=end, rows=5)])
        known = {bucket.ORDERS}
        about: dict[str, Any] = {"report": "verify/x.json", "began": NOW, "at": NOW, "read": known if read else (), "existing": known}
        comparisons.record(store, bucket.CLUSTER, [result], **about)
    found = of(seen(store)).findings["verify"]
    assert (found.level, found.text[: len(text)]) == (level, text)
    batches = Batches(store, bucket.CLUSTER)
    assert text in of(seen(store)).worst.text or level == "ok"
    (orders,) = [each for each in json.loads(json.dumps(as_document(batches, 60, CHECKED)))["tables"] if each["table"] == ORDERS]
    assert (orders["compared"]["complete"] is not None) == (level == "ok")
    samples = {name: value for name, labels, value in metrics.samples(batches) if labels.get("table") == ORDERS}
    assert (samples["writetime_verify_complete_timestamp_seconds"] > 0) == (level == "ok")


def test_reports_age_and_an_older_one_may_cover_more_tables(store: LocalStore) -> None:
    verified(store, NOW - timedelta(minutes=5), (ORDERS,))
    found = seen(store)
    assert "5.0 min ago" in of(found).findings["verify"].text
    assert "60.0 min ago" in of(found, CUSTOMERS).findings["verify"].text
    old = seen(store, now=NOW + timedelta(days=3))
    assert of(old).findings["verify"].level == of(old).findings["audit"].level == "warning"


def test_a_held_segment_is_a_problem_of_all_tables(store: LocalStore) -> None:
    seal(store, held=[bucket.ref(0, 6).incoming])
    found = seen(store)
    assert [(each.level, each.text, each.view) for each in found.problems] == [
        ("warning", "1 segment in quarantine needs an operator", "segments?state=quarantined")
    ]
    assert (found.level, found.tables[0].level) == ("warning", "ok")


def test_nodes_without_sign_offs_count_by_their_segments(store: LocalStore) -> None:
    store.delete(layout.complete(bucket.CLUSTER))
    assert (of(seen(store)).level, of(seen(store)).until) == ("ok", None)
    found = seen(store, now=NOW + timedelta(hours=7))
    assert of(found).findings["lag"].text == "3 nodes are late"
    assert of(found).findings["lag"].view == f"segments?node={bucket.NODES[0].host_id}"


def test_system_and_uncaptured_tables_have_no_health(store: LocalStore) -> None:
    counted = [Accounting(table=name, updates_in=7, not_ours=7) for name in ("system.local", "vault.keys")]
    captured = ShardVersions(buckets=[1])
    state = {str(bucket.ORDERS): captured, str(bucket.SECRET): captured.captured_up_to(3)}
    seal(store, accounting=[Accounting(table=ORDERS, updates_in=9, applied=9, events=9), *counted], state=state)
    batches = Batches(store, bucket.CLUSTER)
    about = overview(batches, now=NOW)
    assert [table.name for table in about.tables.captured] == [ORDERS]
    # The others are in earlier batches, but not in the state of the last one.
    assert {"system.local", "vault.keys"} <= {table.name for table in about.tables.others}
    assert [table.name for table in health(batches, about, CHECKED).tables] == [ORDERS]
    document = as_document(batches, 60, CHECKED)
    assert [each["table"] for each in document["health"]["tables"]] == [ORDERS]
    assert {each["table"]: each["captured"] for each in document["tables"]}["system.local"] is False
    (line,) = [line for line in as_text(batches, 1, CHECKED).splitlines() if line.startswith("not captured: ")]
    assert line == "not captured: system.local, vault.keys: 14 updates"


def test_a_captured_table_without_writes_is_shown(store: LocalStore) -> None:
    seal(store, accounting=[], rows={}, state={str(bucket.ORDERS): ShardVersions(buckets=[0])})
    batches = Batches(store, bucket.CLUSTER)
    assert [table.name for table in overview(batches, last=1, now=NOW).tables.captured] == [ORDERS]


def test_status_begins_with_health_and_lag(store: LocalStore) -> None:
    hold(store)
    text = as_text(Batches(store, bucket.CLUSTER), 60, CHECKED)
    rows = [line.split() for line in text.splitlines()]
    first = next(row for row in rows if row[1:2] == [ORDERS])
    assert first[:5] == ["warning", ORDERS, "2026-05-04", "11:41:00Z", first[4]]
    assert text.index("\n health ") < text.index("\n node ") < text.index("\n batch ") < text.index("\n table ")
    document = json.loads(json.dumps(as_document(Batches(store, bucket.CLUSTER), 60, CHECKED)))["health"]
    (orders,) = [table for table in document["tables"] if table["table"] == ORDERS]
    assert orders["complete_until"] == (NOW - timedelta(minutes=31)).isoformat()
    assert orders["lag"]["view"].startswith("segment?name=cdc%2F")
    assert document["level"] == "warning"


def test_nothing_is_known_before_the_first_batch(tmp_path: Path) -> None:
    found = seen(LocalStore(tmp_path / "none"))
    assert (found.level, found.problems, found.tables) == ("unknown", (), ())


def test_what_a_pipeline_is_held_to(tmp_path: Path) -> None:
    about: dict[str, Any] = {"pipeline": "p", "cluster": {"name": "c", "datacenters": ["dc1"]}, "bucket": str(tmp_path)}
    assert Expected.of(PipelineConfig.model_validate(about)) == Expected(publishes=False)
    airflow = {"mode": "session", "verify_schedule": "0 0 * * *", "audit_schedule": "0 0 * * *", "watch": {"complete_minutes": 5}}
    more = PipelineConfig.model_validate({**about, "airflow": airflow, "kafka": {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"}})
    assert Expected.of(more) == Expected(WatchConfig(complete_minutes=5), session=True, audit=True)
    reading = PipelineConfig.model_validate({**about, "cluster": {**about["cluster"], "cql": {"contact_points": ["10.0.0.1"]}}})
    assert Expected.of(reading, "p.yaml") == Expected(publishes=False, cql=True, verify=True, config="p.yaml")
