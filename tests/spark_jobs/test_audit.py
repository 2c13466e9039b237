"""The recorded ring: every replica's log held all; with a segment withheld, the gap has its name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.audit import Audit, run
from spark_jobs.session import spark_session
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_shelve import configured
from writetime import names
from writetime.audit import AuditReport
from writetime.batch.documents import Sealed
from writetime.errors import ConfigError
from writetime.store import open_store

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    pipeline = Pipeline.create(tmp_path_factory.mktemp("audit"))
    pipeline.stage()
    pipeline.ship()
    return pipeline


def minutes(pipeline: Pipeline) -> tuple[datetime, datetime]:
    times = [file.mtime_ns // 10**9 for node in pipeline.recording.nodes for file in node.files]
    return tuple(datetime.fromtimestamp(at, UTC) for at in (min(times) - 3600, max(times) + 3600))  # type: ignore[return-value]


def audited(pipeline: Pipeline, now: datetime) -> AuditReport:
    start, end = minutes(pipeline)
    spark = spark_session(pipeline.config, "audit")
    try:
        return Audit(pipeline.config, spark, start, end, late=3, ranges=4).report(now)
    finally:
        spark.stop()


def test_complete_and_then_without_a_segment(shipped: Pipeline) -> None:
    _, end = minutes(shipped)
    whole = audited(shipped, end)
    assert whole.gaps == []
    assert {table.table for table in whole.tables} == {"shop.customers", "shop.orders"}
    assert all(table.complete == table.groups for table in whole.tables)
    held = [node.held for node in whole.nodes]
    assert held == [node.expected for node in whole.nodes]
    assert len(set(held)) == 1
    assert held[0] > 3000

    last = max(file.name for file in shipped.node(0).files if file.name.endswith(".log"))
    shipped.store.delete(shipped.incoming(0, last))
    lacking = audited(shipped, end)
    assert {(gap.host_id, gap.reason, gap.verdict) for gap in lacking.gaps} == {
        (shipped.node(0).host_id, "not shipped yet", "explained"),
    }
    assert sum(gap.lacks for gap in lacking.gaps) > 0
    assert all("CommitLog-7-1795263035973" in gap.told for gap in lacking.gaps)
    assert audited(shipped, end + timedelta(hours=5)).alarms == len(lacking.gaps)


def test_what_the_archive_has_let_go_is_no_gap(tmp_path: Path) -> None:
    """It is refused before anything is read."""
    config = configured(tmp_path)
    kept = datetime(2026, 5, 4, 12, tzinfo=UTC)
    sealed = Sealed(number=1, kind="maintain", sealed_at=kept, segments=[], accounting=[], state={}, kept_from=int(kept.timestamp()))
    store = open_store(config.bucket)
    store.put(names.batch_object(config.cluster.name, 1, "manifest"), b"{}")
    store.put(names.batch_object(config.cluster.name, 1, "sealed"), sealed.to_bytes())
    with pytest.raises(ConfigError, match=r"no longer holds.*from 2026-05-04T12:00:00Z on"):
        run(config, kept - timedelta(minutes=1), kept + timedelta(hours=1))
    # From there on it looks further, and finds no catalog to start Spark with.
    with pytest.raises(ConfigError, match="catalog"):
        run(config, kept, kept + timedelta(hours=1))


def test_a_part_of_the_time(shipped: Pipeline) -> None:
    start, _ = minutes(shipped)
    spark = spark_session(shipped.config, "audit")
    try:
        assert Audit(shipped.config, spark, start, start + timedelta(minutes=5), late=3, ranges=4).report(start).tables == []
    finally:
        spark.stop()
