"""The same pipeline with everything in S3 (a test server of it): bucket, state, and tables by Iceberg's own S3FileIO."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import maintain
from spark_jobs.sinks import table_maintenance
from tests import s3_server
from tests.spark_jobs.conf import spark_conf
from tests.spark_jobs.pipeline import Pipeline
from tools import jars, verify
from writetime.pipeline.archiver import archive
from writetime.pipeline.maintenance_report import read_maintained
from writetime.pipeline.planner import plan_ingest, plan_maintain

pytestmark = [pytest.mark.s3, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("own_jvm")]


def test_batches_and_maintenance_with_everything_in_s3(tmp_path: Path, s3: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for bucket in ("cdc", "lake"):
        s3.make_bucket(f"{bucket}-everything")
    s3_server.into_environment(monkeypatch, s3.url, s3.access, s3.secret)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    made = Pipeline.create(tmp_path, bucket="s3://cdc-everything/orders")
    assert made.config.catalog is not None
    reached = {"s3.endpoint": s3.url, "s3.path-style-access": "true", "client.region": "us-east-1"}
    account = {"s3.access-key-id": s3.access, "s3.secret-access-key": s3.secret}
    options = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **reached, **account}
    catalog = made.config.catalog.model_copy(update={"warehouse": "s3://lake-everything/tables", "options": options})
    spark = made.config.spark.model_copy(update={"conf": spark_conf(tmp_path, jars.need("s3"))})
    pipeline = replace(made, config=made.config.model_copy(update={"state": None, "catalog": catalog, "spark": spark}))
    pipeline.stage()
    pipeline.ship()
    first = plan_ingest(pipeline.store, pipeline.cluster, now=datetime.now(UTC), max_segments=3)
    assert first is not None
    pipeline.run(first)
    archive(pipeline.store, pipeline.cluster, first.number)
    pipeline = replace(pipeline, config=pipeline.config.model_copy(update={"buckets": 3}))
    # Orphans are looked for as in tables of some age.
    monkeypatch.setattr(table_maintenance, "_is_older", lambda *_: True)
    planned = plan_maintain(pipeline.store, pipeline.cluster, now=datetime.now(UTC))
    assert planned is not None
    sealed = maintain.run(pipeline.config, planned.number)
    assert {len(versions.buckets) for versions in sealed.state.values()} == {3}
    report = read_maintained(pipeline.store, pipeline.cluster)
    assert report is not None
    assert report.failed == 0
    assert [table.trouble for table in report.tables if table.trouble] == []
    assert report.after.bytes > 0
    pipeline.batches(3)
    for keyspace, table in pipeline.recording.cdc_tables:
        found = SqlCatalog("lake", uri=f"sqlite:///{pipeline.site.catalog}", **reached, **account).load_table((keyspace, table)).scan()
        expected = verify.expected_rows(pipeline.recording, keyspace, table)
        assert verify.differences(table, expected, [verify.as_recorded(row) for row in found.to_arrow().to_pylist()]) == []
    assert not (tmp_path / "state").exists(), "state lies in a folder"
    assert not (tmp_path / "lake" / "warehouse").exists(), "a table lies in a folder"
