"""The recorded ring: every replica's log held all; with a segment withheld, the gap has its name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs import audit, bootstrap
from spark_jobs.audit import Audit, run
from spark_jobs.bootstrap import Bootstrap
from spark_jobs.session import spark_session
from tests.pipeline.bootstrap.test_run import CLUSTER, config, report_schema
from tests.pipeline.bootstrap.test_run import NOW as START
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_pack_archive import configured
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.model import Table
from writetime.errors import ConfigError
from writetime.pipeline.audit import AuditReport, Gap, ranges
from writetime.pipeline.bootstrap import run as runs
from writetime.pipeline.bootstrap.run import LOWEST
from writetime.pipeline.documents import Sealed
from writetime.storage import layout, open_store

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


@pytest.mark.thorough
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
    store.put(layout.batch_object(config.cluster.name, 1, "manifest"), b"{}")
    store.put(layout.batch_object(config.cluster.name, 1, "sealed"), sealed.to_bytes())
    with pytest.raises(ConfigError, match=r"no longer holds.*from 2026-05-04T12:00:00Z on"):
        run(config, kept - timedelta(minutes=1), kept + timedelta(hours=1))
    # From there on it looks further, and finds no catalog to start Spark with.
    with pytest.raises(ConfigError, match="catalog"):
        run(config, kept, kept + timedelta(hours=1))


def test_ranges_of_gaps_are_read_again_table_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ring: what is asked of a bootstrap, and what the report tells of it."""
    read: list[tuple[str, list[runs.Range] | None, str]] = []

    def read_table(job: Bootstrap, table: Table, parts: list[runs.Range] | None = None) -> runs.Run:
        read.append((table.full_name, parts, job.config.snapshot.consistency))
        if table.name == "notes":
            raise PySparkException("in a stage\nwriteTime is no error\nwritetime.errors.BatchError: a replica is down\nat a line")
        run = runs.begin(job.store, job.cluster, table, part=None, ranges=parts or [], consistency="ALL", now=START)
        return run.model_copy(update={"rows": 7, "frames": 1})

    store = MemoryStore()
    report_schema(store)
    monkeypatch.setattr(bootstrap, "open_store", lambda _: store)
    monkeypatch.setattr(Bootstrap, "read_table", read_table)
    about = {"host_id": "b", "first": 1, "last": 1, "lacks": 1, "expected": 2, "reason": "segment missing", "told": "", "verdict": "alarm"}
    gaps = [Gap.model_validate({**about, "table": f"shop.{name}", "ranges": [3, 0, 1]}) for name in ("notes", "nothing", "orders")]
    times = dict.fromkeys(("started_at", "finished_at", "start", "end"), START)
    whole = AuditReport(cluster=CLUSTER, datacenters=[], ranges=ranges(4), nodes=[], tables=[], gaps=gaps, groups=[], **times)
    one = config(snapshot={"consistency": "ONE"})
    report = audit.read_again(one, cast(SparkSession, None), whole, audit.Rereading("alarms", most=8))
    first, second, _, last = ranges(4)
    assert read == [("shop.notes", [(LOWEST, second[1]), last], "ALL"), ("shop.orders", [first, last], "ALL")]
    notes, nothing, orders = report.reread
    assert "a replica is down" in notes.trouble
    assert "no schema of the table is known" in nothing.trouble
    assert (orders.ranges, orders.rows, orders.frames, orders.consistency, orders.trouble) == ([0, 3], 7, 1, "ALL", "")
    assert store.head(orders.run) is not None
    assert report.not_reread == 1


def test_without_a_way_to_ask_the_ring_nothing_is_begun() -> None:
    unreachable = config().model_copy(update={"cluster": config().cluster.model_copy(update={"cql": None})})
    with pytest.raises(ConfigError, match=r"cluster\.cql"):
        audit.run(unreachable, START, START + timedelta(hours=1), reread=audit.Rereading("gaps"))


@pytest.mark.thorough
def test_a_part_of_the_time(shipped: Pipeline) -> None:
    start, _ = minutes(shipped)
    spark = spark_session(shipped.config, "audit")
    try:
        assert Audit(shipped.config, spark, start, start + timedelta(minutes=5), late=3, ranges=4).report(start).tables == []
    finally:
        spark.stop()
