"""Drivers of one batch that come late, or meet: nothing that is sealed changes, and all come to the same.
Real Spark and Iceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_jobs import ingest
from spark_jobs.meter import Meter
from spark_jobs.session import spark_session
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, Ring, insert
from writetime.errors import BatchError
from writetime.pipeline import pinned
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import RefusedTable
from writetime.pipeline.planner import read_sealed

pytestmark = pytest.mark.thorough

REFUSED = RefusedTable(table="shop.orders", table_id=ORDERS.id, reason="another run found that it cannot be written")


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_driver_that_wakes_after_seal_and_archive_changes_nothing(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    manifest = ring.plan(100)
    spark = spark_session(ring.config, "late")
    late = ingest.Batch(ring.config, ring.store, spark, manifest, None, Meter(spark.sparkContext, whole=False))
    sealed = ring.run(manifest)
    archive(ring.store, CLUSTER, sealed.number)

    def objects() -> dict[str, int]:
        return {info.name: info.generation for info in ring.store.list("")}

    before = objects()
    late.spark = spark_session(ring.config, "late")
    late.meter = Meter(late.spark.sparkContext, whole=False)
    try:
        with pytest.raises(BatchError, match="another driver has sealed it"):
            late.run()
    finally:
        late.spark.stop()
    assert objects() == before
    assert read_sealed(ring.store, CLUSTER, 1) == sealed
    assert (ring.current(), len(ring.events())) == ({(1, 1): {"name": 1}}, 1)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_verdict_that_another_run_adds_counts_from_the_next_commit_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    manifest = ring.plan(100)
    commit = ingest.Batch._commit_current

    def beaten(self: ingest.Batch, *given: Any) -> None:
        pinned.add_verdict(self.store, self.manifest, REFUSED)
        commit(self, *given)

    monkeypatch.setattr(ingest.Batch, "_commit_current", beaten)
    sealed = ingest.run(ring.config, manifest.number)
    assert (sealed.refused, sealed.events, len(sealed.held)) == ([REFUSED], 0, 1)
    # What was told before does not count; the next batch takes it back.
    assert sealed.without_effect(REFUSED.table_id) == {sealed.number}
