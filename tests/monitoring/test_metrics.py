"""Metrics of a bucket, and that dashboard and alert rules speak of no others."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from shippers.metrics import Metrics
from tests.monitoring import bucket
from tests.monitoring.exported import PIPELINE, SHIPPER
from tests.node_objects import status_of
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.cli import main
from writetime.events.masking import Rules
from writetime.monitoring import metrics
from writetime.pipeline import comparisons, verification
from writetime.pipeline.audit import AuditReport
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.bootstrap.run import RangeDone, Run, begin, finish_range, split, update
from writetime.pipeline.documents import Watermark
from writetime.pipeline.external_tables import ExternalTable, ExternalTables
from writetime.pipeline.maintenance_report import HeldBack, Maintained, Size
from writetime.pipeline.pace import Measure, Pace
from writetime.pipeline.verification import RangeResult, TableResult, VerifyReport
from writetime.storage import layout
from writetime.storage.local import LocalStore

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "writetime.json"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bucket.small(tmp_path)
    ranges = [RangeResult(start=0, end=9, rows=9, drift=2, unsettled=1)]
    tables = [TableResult(table="shop.orders", table_id=bucket.ORDERS, ranges=ranges)]
    about: dict[str, Any] = {"batch": 3, "horizon": None, "consistency": "ALL", "share": 1, "seed": 0, "tables": tables}
    for hour in (1, 2):
        when = bucket.START + timedelta(hours=hour)
        verification.write_report(LocalStore(tmp_path), VerifyReport(cluster=bucket.CLUSTER, started_at=when, finished_at=when, **about))
    comparisons.record(LocalStore(tmp_path), bucket.CLUSTER, tables, report="verify/x.json", began=when, at=when, read=())
    finish_range(LocalStore(tmp_path), reading := read_from_ring(tmp_path), 0, RangeDone(rows=10, frames=3, objects=[]))
    update(LocalStore(tmp_path), reading, bucket.START + timedelta(seconds=90))
    return tmp_path


def read_from_ring(folder: Path) -> Run:
    table = bucket.learner().schema().tables[bucket.ORDERS]
    return begin(LocalStore(folder), bucket.CLUSTER, table, part=None, ranges=split([], None, 2), consistency="ALL", now=bucket.START)


@pytest.fixture
def everything(folder: Path) -> Batches:
    """With all that a pipeline may have: sign-offs, a purge that is held back, an audit, a segment that no reader knows."""
    store, now = LocalStore(folder), bucket.minute(9)
    watermark = Watermark(batch=8, until=bucket.minute(8), nodes={bucket.NODES[0].path: bucket.minute(8)})
    store.put(layout.complete(bucket.CLUSTER), watermark.to_bytes())
    back = HeldBack(table="shop.orders", by="nodes/x", until=now, wanted=now + timedelta(days=8), since=now)
    sizes = {"before": Size(), "after": Size(), "swept": 0, "tables": [], "shards": 1, "purged": 0, "failed": 0}
    store.put(layout.maintained(bucket.CLUSTER), Maintained(batch=8, at=now, held_back=[back], **sizes).to_bytes())
    failing = ExternalTable(table="shop.orders", error="403: Access Denied", failing_since=now)
    store.put(layout.external_tables(bucket.CLUSTER), ExternalTables(tables={"shop.orders": failing, "shop.x": ExternalTable()}).to_bytes())
    measured = [Measure(batch=8, segments=30, bytes=1 << 30, seconds=60.0)]
    store.put(layout.pace(bucket.CLUSTER), Pace(measures=measured, target=120.0).to_bytes())
    times = {"started_at": now, "finished_at": now, "start": bucket.START, "end": now}
    lists: dict[str, Any] = {"datacenters": ["dc1"], "ranges": [], "nodes": [], "tables": [], "gaps": [], "groups": []}
    report = AuditReport(cluster=bucket.CLUSTER, **times, **lists)
    store.put(report.name, report.to_bytes())
    store.put(layout.SegmentRef(bucket.NODES[0], layout.SegmentName(1_777_999_000_000, 99)).incoming, b"of a later release")
    return Batches(store, bucket.CLUSTER)


def told(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.samples[0].name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_what_the_bucket_tells(folder: Path) -> None:
    found = told(metrics.as_text(metrics.samples(Batches(LocalStore(folder), bucket.CLUSTER))))
    assert found.keys() <= metrics.METRICS.keys()
    assert {labels["cluster"] for each in found.values() for labels, _ in each} == {bucket.CLUSTER}
    (number,) = found["writetime_batch_number"]
    assert number[1] > 3
    assert found["writetime_held_segments"][0][1] == 1
    assert {labels["host_id"] for labels, _ in found["writetime_waiting_segments"]} == {node.host_id for node in bucket.NODES}
    of_orders = {"cluster": bucket.CLUSTER, "table": "shop.orders"}
    assert [labels for labels, rows in found["writetime_verify_drift_rows"] if rows] == [of_orders]
    assert (of_orders, 2) in found["writetime_verify_drift_rows"]
    assert (of_orders, 0) in found["writetime_verify_complete_timestamp_seconds"], "never"
    assert found["writetime_verify_finished_timestamp_seconds"][0][1] == (bucket.START + timedelta(hours=2)).timestamp()
    assert "writetime_audit_alarms" not in found
    (table,) = found["writetime_bootstrap_remaining_ranges"]
    assert table == ({"cluster": bucket.CLUSTER, "table": "shop.orders"}, 1)
    assert found["writetime_bootstrap_rows"][0][1] == 10
    assert found["writetime_refused_tables"][0][1] == 0
    assert len(found["writetime_late_after_seconds"]) == len(found["writetime_source_timestamp_seconds"]) == len(bucket.NODES)
    ((_, read),) = found["writetime_metrics_timestamp_seconds"]
    assert abs(read - time.time()) < 60
    assert {labels["table"] for labels, _ in found["writetime_batch_updates"]} <= set(bucket.TABLES)


def test_counters_go_on_from_batch_to_batch(folder: Path) -> None:
    """They count each batch once, whenever somebody looks."""
    seen = []
    for last in (3, 8):
        part = folder / f"up-to-{last}"
        bucket.small(part, batches=last)
        found = told(metrics.as_text(metrics.samples(Batches(LocalStore(part), bucket.CLUSTER))))
        assert found["writetime_batches_total"] == [({"cluster": bucket.CLUSTER, "kind": "ingest"}, last)]
        made = {labels["table"]: value for labels, value in found["writetime_events_total"]}
        # Orders and customers in each batch, the third table in every second one.
        assert made == {"shop.orders": 10 * last, "shop.customers": 20 * last, 'shop."<b>X</b>"': 30 * ((last + 1) // 2)}
        sent = {labels["table"]: value for labels, value in found["writetime_published_events_total"]}
        assert (sent["shop.orders"], sent["shop.customers"]) == (10 * (last - 1), 20 * (last - 1)), "the last batch is not published"
        updates = {(labels["table"], labels["class"]): value for labels, value in found["writetime_updates_total"]}
        assert (updates["shop.customers", "applied"], updates["shop.customers", "duplicate"]) == (20 * last, 40 * last)
        assert found["writetime_problems_total"][0][1] == 1
        ((_, segments),) = found["writetime_segments_total"]
        # Two of each of three nodes; the second node has none in batch 2.
        assert segments == 6 * last - 2
        ((_, size),) = found["writetime_segment_bytes_total"]
        assert size == sum((1000 + number) * (4 if number == 2 else 6) for number in range(1, last + 1))
        seen.append(found)
    assert seen[0].keys() == seen[1].keys()


def test_seals_of_earlier_versions_have_no_counters(folder: Path) -> None:
    """They begin with the next batch, at its own numbers."""
    store, name = LocalStore(folder), layout.batch_object(bucket.CLUSTER, 8, "sealed")
    sealed = json.loads(store.read(name))
    store.put(name, json.dumps({key: value for key, value in sealed.items() if key not in ("totals", "files")}).encode())
    found = told(metrics.as_text(metrics.samples(Batches(store, bucket.CLUSTER))))
    counters = {"writetime_events_total", "writetime_batches_total", "writetime_published_events_total", "writetime_table_files"}
    # Batch 7, which is published, still has them.
    assert counters & found.keys() == {"writetime_published_events_total"}


def test_positions_and_files(folder: Path) -> None:
    found = told(metrics.as_text(metrics.samples(Batches(LocalStore(folder), bucket.CLUSTER))))
    ids = {labels["host_id"]: value for labels, value in found["writetime_position_segment_id"]}
    read = {labels["host_id"]: value for labels, value in found["writetime_position_bytes"]}
    whole, growing = bucket.NODES[0].host_id, bucket.NODES[2].host_id
    assert (ids[whole], read[whole]) == (bucket.ref(0, 17).segment.id, 1008)
    # Of the segment that grows, 4096 bytes; it is newer than its whole ones.
    assert (ids[growing], read[growing]) == (bucket.ref(2, 10**6).segment.id, 4096)
    files = {(labels["table"], labels["in"]): value for labels, value in found["writetime_table_delete_files"]}
    assert files == {("shop.orders", "current"): 16, ("shop.orders", "changes"): 0}
    assert [value for labels, value in found["writetime_table_bytes"] if labels["in"] == "current"] == [2400]


def test_a_bootstrap_that_ended_is_aborted_until_it_goes_on(folder: Path) -> None:
    def shown() -> dict[str, float]:
        found = told(metrics.as_text(metrics.samples(Batches(LocalStore(folder), bucket.CLUSTER))))
        return {name.removeprefix("writetime_bootstrap_"): found[name][0][1] for name in found if "bootstrap" in name}

    # The fixture's run reported for the last time on the day of its start, and its process is gone.
    first = shown()
    assert (first["aborted"], first["duration_seconds"], first["finished_timestamp_seconds"]) == (1, 90, 0)
    store, now = LocalStore(folder), datetime.now(UTC)
    run = begin(
        store,
        bucket.CLUSTER,
        bucket.learner().schema().tables[bucket.ORDERS],
        part=None,
        ranges=split([], None, 1),
        consistency="ONE",
        now=now,
    )
    assert shown()["aborted"] == 0
    update(store, run, now + timedelta(seconds=30), error="no answer")
    failed = shown()
    assert (failed["aborted"], failed["duration_seconds"]) == (1, 30)
    finish_range(store, run, 0, RangeDone(rows=1, frames=0, objects=[]))
    update(store, run, now + timedelta(minutes=2))
    last = shown()
    assert (last["aborted"], last["duration_seconds"], last["remaining_ranges"]) == (0, 120, 0)
    assert last["finished_timestamp_seconds"] == pytest.approx((now + timedelta(minutes=2)).timestamp(), abs=0.001)


def test_a_node_that_is_silent_for_long_keeps_its_sample(folder: Path) -> None:
    """Without one the alert for a late node would end when no batch that is looked at has a segment of it any
    more."""
    store = LocalStore(folder)
    silent = layout.NodeName(bucket.CLUSTER, "dc1", "00000009-0000-4000-8000-000000000000")
    store.put(status_of(silent), b"{}")
    found = told(metrics.as_text(metrics.samples(Batches(store, bucket.CLUSTER))))["writetime_source_timestamp_seconds"]
    (oldest,) = [value for labels, value in found if labels["host_id"] == silent.host_id]
    assert oldest <= min(value for _, value in found)


def test_the_command_writes_a_file_whole(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: {folder}\n", encoding="utf-8")
    assert main(["metrics", "--config", str(config)]) == 0
    printed = capsys.readouterr().out
    target = tmp_path / "writetime.prom"
    assert main(["metrics", "--config", str(config), "--output", str(target)]) == 0
    same = [re.sub(r"(writetime_metrics_timestamp_seconds.*) .*", r"\1", text) for text in (target.read_text(encoding="utf-8"), printed)]
    assert same[0] == same[1]
    assert told(printed)


def test_odd_labels_survive() -> None:
    odd = 'a "b" \\ c\nd'
    assert told(metrics.as_text([("writetime_held_segments", {"cluster": odd}, 1)]))["writetime_held_segments"] == [({"cluster": odd}, 1)]


def known() -> set[str]:
    """Names under which Prometheus has them."""
    return set(PIPELINE) | {f"writetime_ship_{name}" for name in SHIPPER}


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bwritetime_[a-z_]+\b", expression))


def test_the_dashboard_speaks_of_metrics_that_there_are() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert all(named(each) for each in expressions)
    assert set().union(*map(named, expressions)) <= known()
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_rules_speak_of_metrics_that_there_are_and_of_runbooks() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert named(rule["expr"]) or 'up{job="writetime' in rule["expr"], rule["alert"]
        assert named(rule["expr"]) <= known(), rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor in anchors(ROOT / page), rule["alert"]


def test_no_metric_is_lost_or_renamed(everything: Batches) -> None:
    """Each name, type and set of labels, as dashboards and rules of users have them."""
    text = metrics.as_text(metrics.samples(everything, session=True, rules=Rules()))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    found = {}
    for family in families.values():
        for sample in family.samples:
            found[sample.name] = (family.type, *sorted(sample.labels.keys() - {"cluster"}))
    assert found == {name: tuple(about.split()) for name, about in PIPELINE.items()}
    assert list(metrics.METRICS) == sorted(metrics.METRICS, key=list(PIPELINE).index), "the order of the output is that of the list"
    assert set(metrics.METRICS) == set(PIPELINE)


def test_no_metric_of_the_shipper_is_lost_or_renamed() -> None:
    counted = Metrics()
    counted.shipped("uploaded", 1, 0.1)
    counted.failed("ShipError")
    counted.saw_settings(CdcSettings(cdc_enabled=True, cdc_block_writes=True))
    found = {}
    for family in counted.registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[sample.name.removeprefix("writetime_ship_")] = (family.type, *sorted(sample.labels))
    assert found == {name: tuple(about.split()) for name, about in SHIPPER.items()}


def test_documentation_and_metrics_agree() -> None:
    """Each metric is in the documentation, and the documentation has no other."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    assert {name for name in PIPELINE if f"`{name}`" not in pages["metrics.md"]} == set()
    table = re.findall(r"^\| (`.+?) \|.*\|$", pages["shipper.md"].partition("| metric, after")[2].partition("\n\n")[0], re.MULTILINE)
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in SHIPPER}
    assert {name for row in table for name in re.findall(r"`([a-z_]+)", row)} == families
    for name, page in pages.items():
        read = {each for each in re.findall(r"`(writetime_[a-z_]+[a-z])(?:\{[^`]*)?`", page) if each not in NOT_METRICS}
        assert {each for each in read if each not in known()} == set(), name


NOT_METRICS = {"writetime_complete", "writetime_ingest_orders"}
"""Of the documentation: a keyspace, assets and a DAG of Airflow."""
