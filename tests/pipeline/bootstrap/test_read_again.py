"""Rows that no log here holds any more come back from a real ring: an audit finds the gap, reads its token
ranges again at ALL, and the next batch takes in what is news."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from proof.bootstrap.live import CLUSTER, KEYSPACE, Live
from proof.harness.cassandra import Ring
from proof.ring.pipeline import Pipeline, _Replaced
from spark_jobs import audit, bootstrap
from spark_jobs.audit import Rereading
from writetime.pipeline.audit import AuditReport
from writetime.storage import layout

pytestmark = [pytest.mark.cassandra, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.thorough]

OPTIONS = ["-XX:TieredStopAtLevel=1"]
KNOWN, LOST = range(10), range(10, 25)


def test_what_all_logs_have_lost_comes_back_from_the_ring(tmp_path: Path) -> None:
    with (
        Ring(tmp_path / "ring", nodes=2, cluster_name=CLUSTER, segment_mb=1, heap="384M", options=OPTIONS) as ring,
        Pipeline.create(tmp_path / "run") as pipeline,
    ):
        live = Live(ring, pipeline)
        live.session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 2}}")
        live.session.execute(f"CREATE TABLE {KEYSPACE}.orders (id int PRIMARY KEY, note text) WITH cdc = true")
        ship(live)
        write(live, KNOWN)
        known = ship(live)
        write(live, LOST)
        lost = ship(live)
        # One replica's log of the first rows is gone, and that of the others on both.
        without = layout.SegmentRef.from_object(known[0]).node
        for name in (*lost, *(name for name in known if layout.SegmentRef.from_object(name).node == without)):
            pipeline.store.delete(name)
        batches(live)
        assert ids(pipeline) == set(KNOWN)

        report = audited(pipeline)
        assert {(gap.table, gap.host_id) for gap in report.gaps} == {(f"{KEYSPACE}.orders", without.host_id)}
        (read,) = report.reread
        assert (read.trouble, read.consistency, read.rows) == ("", "ALL", len(KNOWN) + len(LOST))
        assert read.frames == len(LOST), "what the tables hold already is no news"
        batches(live)
        assert ids(pipeline) == {*KNOWN, *LOST}


def write(live: Live, numbers: range) -> None:
    for number in numbers:
        live.session.execute(f"INSERT INTO {KEYSPACE}.orders (id, note) VALUES (%s, 'x')", (number,))


def ship(live: Live) -> list[str]:
    """All that has been written; the segments that have come by that and hold rows of the table."""
    before = incoming(live)
    live._roll()
    for node in live.ring.nodes:
        shipped = live.pipeline.ship(node)
        assert not shipped.failed, shipped.failed
    return sorted(incoming(live) - before)


def incoming(live: Live) -> set[str]:
    return {info.name for info in live.pipeline.store.list(layout.incoming_prefix(CLUSTER))}


def batches(live: Live) -> None:
    live._batches()
    assert live.mismatches == []


def ids(pipeline: Pipeline) -> set[int]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{pipeline.folder / 'lake' / 'catalog.db'}")
    return set(catalog.load_table((KEYSPACE, "orders")).scan().to_arrow()["id"].to_pylist())


def audited(pipeline: Pipeline) -> AuditReport:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    with _Replaced(audit, "spark_session", pipeline._session), _Replaced(bootstrap, "spark_session", pipeline._session):
        return audit.run(
            pipeline.config, now - timedelta(hours=1), now + timedelta(minutes=1), late=0, ranges=1, reread=Rereading("gaps", 64)
        )
