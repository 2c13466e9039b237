"""Shippers of earlier versions with the jobs of this one: what they left in a bucket is planned and taken in.
Real Spark and Iceberg."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import ingest
from tests.recordings import shippers as recorded
from tests.spark_jobs.conf import spark_conf
from writetime.config.pipeline import PipelineConfig, load
from writetime.monitoring.ignored import ignored
from writetime.monitoring.nodes import ring
from writetime.pipeline.archiver import archive
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import plan_ingest
from writetime.storage import layout, open_store
from writetime.storage.store import Store

pytestmark = pytest.mark.thorough

KINDS = {"cdc", "cdc_parts", "nodes", "schemas"}


def test_there_are_recordings_with_all_kinds_of_objects() -> None:
    assert recorded.VERSIONS
    kinds = {version: {each.name.split("/")[0] for each in recorded.opened(version).objects} for version in recorded.VERSIONS}
    assert all(kinds[version] >= KINDS for version in recorded.VERSIONS)
    assert kinds[recorded.VERSIONS[-1]] == KINDS | {"truncations", "space"}
    for version in recorded.VERSIONS:
        assert sum(each.name.startswith("cdc/") for each in recorded.opened(version).objects) >= 3
        assert len(recorded.opened(version).rows) > 200


def configured(folder: Path, cluster: str) -> PipelineConfig:
    (folder / "lake").mkdir(parents=True)
    document = {
        "pipeline": "skew",
        "cluster": {"name": cluster, "datacenters": ["dc1"]},
        "bucket": str(folder / "bucket"),
        "catalog": {"uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}", "warehouse": str(folder / "lake" / "warehouse")},
        "spark": {"shuffle_partitions": 2, "conf": spark_conf(folder)},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return load(folder / "pipeline.yaml")


def put(store: Store, objects: list[recorded.Shipped]) -> None:
    for each in objects:
        store.put(each.name, each.data, metadata=each.metadata)


def batch(config: PipelineConfig, store: Store, now: datetime) -> Sealed:
    manifest = plan_ingest(store, config.cluster.name, now=now)
    assert manifest is not None
    sealed = ingest.run(config, manifest.number)
    archive(store, config.cluster.name, sealed.number)
    return sealed


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_what_an_earlier_shipper_left_is_taken_in(version: str, tmp_path: Path) -> None:
    recording = recorded.opened(version)
    config = configured(tmp_path, recording.cluster)
    store = open_store(config.bucket)
    # First as it was while the last segment grew: of that one there are parts only.
    growing = {layout.SegmentRef.from_object(each.name).growing for each in recording.objects if each.name.startswith("cdc_parts/")}
    wholes = sorted((each for each in recording.objects if each.name.startswith("cdc/")), key=lambda each: each.name)
    last = next(each for each in reversed(wholes) if layout.SegmentRef.from_object(each.name).growing in growing)
    put(store, [each for each in recording.objects if each is not last])
    now = store.put("clock", b"").created
    store.delete("clock")
    first = batch(config, store, now)
    assert layout.SegmentRef.from_object(last.name).growing in first.growing
    put(store, [last])
    second = batch(config, store, now)
    (outcome,) = second.segments
    assert (outcome.skipped > 0, outcome.differs) == (True, False)
    assert plan_ingest(store, recording.cluster, now=now) is None
    for sealed in (first, second):
        assert (sealed.held, [each.problems for each in sealed.segments if each.problems]) == ([], [])
        assert all(account.balanced for account in sealed.accounting)
    assert sorted((row["id"], row["line"], row["note"]) for row in rows(tmp_path, "orders")) == recording.rows
    assert rows(tmp_path, "gone") == []

    seen = Batches(store, recording.cluster)
    assert ignored(seen) == []
    (node,) = ring(seen).nodes
    assert (node.address, node.release, node.held, node.waiting) == ("127.0.0.1", "5.0.6", 0, 0)


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder / 'lake' / 'catalog.db'}")
    found: list[dict[str, Any]] = catalog.load_table(("shop", table)).scan().to_arrow().to_pylist()
    return found
