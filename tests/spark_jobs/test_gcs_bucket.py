"""The same pipeline over a bucket: shippers, jobs and operators meet in Google Cloud Storage (a test server of it), not in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import gcs_server
from tests.spark_jobs.pipeline import Pipeline
from tools import verify
from writetime.batch.archive import archive

pytestmark = [pytest.mark.gcs, pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_batch_from_bucket_to_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = gcs_server.program()
    if program is None:
        pytest.skip("no GCS test server: run make test-gcs")
    with gcs_server.running(program, tmp_path) as url:
        gcs_server.make_bucket(url, "cdc")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        pipeline = Pipeline.create(tmp_path, bucket="gs://cdc/orders")
        pipeline.stage()
        pipeline.ship()
        assert not list((tmp_path / "nodes").rglob("*.log"))
        sealed = pipeline.batch()
        assert sealed.held == []
        assert sealed.events > 0
        for keyspace, table in pipeline.recording.cdc_tables:
            expected = verify.expected_rows(pipeline.recording, keyspace, table)
            assert verify.differences(table, expected, [verify.as_recorded(row) for row in pipeline.rows(keyspace, table)]) == []
        names = [info.name for info in pipeline.store.list()]
        assert sum(name.startswith("cdc_archive/") for name in names) == len(sealed.segments)
        assert not [name for name in names if name.startswith("cdc/")]
        assert archive(pipeline.store, pipeline.cluster, sealed.number) == {}
