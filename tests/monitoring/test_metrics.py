"""Metrics of a bucket, and that dashboard and alert rules speak of no others."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from shippers.metrics import Metrics
from tests.monitoring import bucket
from writetime.cli import main
from writetime.monitoring import metrics
from writetime.pipeline import verification
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.bootstrap.run import RangeDone, begin, finish_range, split, update
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
    tables = [TableResult(table="shop.orders", table_id=UUID(int=1), ranges=ranges)]
    about: dict[str, Any] = {"batch": 3, "horizon": None, "consistency": "ALL", "share": 1, "seed": 0, "tables": tables}
    for hour in (1, 2):
        when = bucket.START + timedelta(hours=hour)
        verification.write_report(LocalStore(tmp_path), VerifyReport(cluster=bucket.CLUSTER, started_at=when, finished_at=when, **about))
    store = LocalStore(tmp_path)
    table = bucket.learner().schema().tables[bucket.ORDERS]
    reading = begin(store, bucket.CLUSTER, table, part=None, ranges=split([], None, 2), consistency="ALL", now=bucket.START)
    finish_range(store, reading, 0, RangeDone(rows=10, frames=3, objects=[]))
    update(store, reading, bucket.START)
    return tmp_path


def told(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {family.name: [(sample.labels, sample.value) for sample in family.samples] for family in text_string_to_metric_families(text)}


def test_what_the_bucket_tells(folder: Path) -> None:
    found = told(metrics.as_text(metrics.samples(Batches(LocalStore(folder), bucket.CLUSTER))))
    assert found.keys() <= metrics.METRICS.keys()
    assert {labels["cluster"] for each in found.values() for labels, _ in each} == {bucket.CLUSTER}
    (number,) = found["writetime_batch_number"]
    assert number[1] > 3
    assert found["writetime_held_segments"][0][1] == 1
    assert {labels["host_id"] for labels, _ in found["writetime_waiting_segments"]} == {node.host_id for node in bucket.NODES}
    assert found["writetime_verify_drift_rows"] == [({"cluster": bucket.CLUSTER, "table": "shop.orders"}, 2)]
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


def test_a_node_that_is_silent_for_long_keeps_its_sample(folder: Path) -> None:
    """Without one the alert for a late node would end when no batch that is looked at has a segment of it any
    more."""
    store = LocalStore(folder)
    silent = layout.NodeName(bucket.CLUSTER, "dc1", "00000009-0000-4000-8000-000000000000")
    store.put(layout.node_facts(silent), b"{}")
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
    shipper: set[str] = set()
    for family in Metrics().registry.collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        shipper |= {family.name + end for end in ends}
    return shipper | set(metrics.METRICS)


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


def test_every_metric_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert {name for name in metrics.METRICS if f"`{name}`" not in page} == set()
