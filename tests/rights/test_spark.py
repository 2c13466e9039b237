"""A batch with Spark: each node's shipper has its node's rights alone, planner and jobs have theirs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rights.places import S3, S3Place, at
from tests.spark_jobs.pipeline import Pipeline
from tools import verify
from writetime.storage.layout import NodeName, part

WRITETIME = Path(sys.executable).parent / "writetime"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("own_jvm")]


@at(S3)
def test_a_batch_from_nodes_to_tables(place: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline.create(tmp_path, bucket=place.url)
    pipeline = replace(pipeline, config=pipeline.config.model_copy(update={"state": None}))
    pipeline.stage()
    for node in pipeline.recording.nodes:
        place.become("shipper", NodeName(pipeline.cluster, node.datacenter, node.host_id))
        command = [str(WRITETIME), "ship", "--config", str(pipeline.site.shipper_config(node)), "--once"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "nodes").rglob("*.log"))
    place.become("jobs", cluster=pipeline.cluster)
    # The state lies in the bucket, too; the library of its shards has names of its own for where that is.
    own_names = {"AWS_ENDPOINT": place.site.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    for name, value in own_names.items():
        monkeypatch.setenv(name, value)
    sealed = pipeline.batch()
    assert sealed.held == []
    for keyspace, table in pipeline.recording.cdc_tables:
        found = [verify.as_recorded(row) for row in pipeline.rows(keyspace, table)]
        assert verify.differences(table, verify.expected_rows(pipeline.recording, keyspace, table), found) == []
    archived = [info.name for info in place.root().list(f"cdc_archive/{part(pipeline.cluster)}/")]
    assert len(archived) == len(sealed.segments)
    assert list(place.root().list(f"state/{part(pipeline.cluster)}/"))
