"""A real node, a batch of its log, and what the job says of both: equal at first, and not when somebody has
touched the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from shippers.agent import Agent
from shippers.folder import State, classify, look
from shippers.node_identity import Link
from spark_jobs import ingest
from spark_jobs.session import spark_session
from spark_jobs.verify import Options, Verification
from tests.spark_jobs.conf import spark_conf
from writetime.config.airflow import SparkConfig
from writetime.config.cluster import ClusterConfig, CqlConfig, SnapshotConfig
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.tables import TablesConfig
from writetime.config.warehouse import CatalogConfig
from writetime.pipeline import comparisons
from writetime.pipeline.bootstrap.run import RangeDone, begin, finish_range, table_named, update
from writetime.pipeline.comparisons import WHOLE
from writetime.pipeline.planner import plan_ingest
from writetime.pipeline.segment_check import known_schema
from writetime.pipeline.verification import TableResult, VerifyReport
from writetime.storage import open_store

pytestmark = [pytest.mark.cassandra, pytest.mark.spark]

KEYSPACE = "verify_test"
ROWS = 20
TABLES = (
    "orders (id int, day date, at decimal, note text static, v int, price decimal, tags map<text, int>, names set<text>, path list<text>, "
    "home address, PRIMARY KEY ((id, day), at)) WITH cdc = true",
    "hits (page text PRIMARY KEY, n counter) WITH cdc = true",
    "filler (id int PRIMARY KEY, b text) WITH cdc = true",
)


@dataclass
class Bench:
    """The node's session, and the pipeline after its first batch."""

    session: Any
    config: PipelineConfig
    spark: SparkSession

    def verify(self, **options: Any) -> VerifyReport:
        assert self.config.cluster.cql is not None
        return Verification(self.config, self.config.cluster.cql, self.spark, Options(**options)).report()


@pytest.fixture(scope="module")
def bench(cassandra_node: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("verify")
    session = cassandra_node.session()
    write(session)
    node = NodeConfig(
        cdc_raw=cassandra_node.cdc_raw,
        address=cassandra_node.address,
        port=cassandra_node.port,
        state_dir=folder,
        ship=ShipConfig(tail_seconds=None),
    )
    with Link(node) as link:
        facts = link.facts()
        cql = CqlConfig(contact_points=[cassandra_node.address], port=cassandra_node.port)
        config = PipelineConfig(
            pipeline="verify",
            cluster=ClusterConfig(name=facts["cluster"], datacenters=[facts["datacenter"]], cql=cql),
            bucket=str(folder / "bucket"),
            tables=TablesConfig(include=[f"{KEYSPACE}.*"], exclude=["*.filler"]),
            catalog=CatalogConfig(uri=f"jdbc:sqlite:{folder / 'catalog.db'}", warehouse=str(folder / "warehouse")),
            spark=SparkConfig(master="local[2]", conf={**spark_conf(folder), "spark.sql.shuffle.partitions": "2"}),
            snapshot=SnapshotConfig(consistency="ALL", ranges=4, margin_seconds=0),
            node=node,
        )
        ship(session, config, link, cassandra_node.cdc_raw)
    ingest.run(config, 1)
    spark = spark_session(config, "verify")
    yield Bench(session, config, spark)
    spark.stop()


def write(session: Any) -> None:
    session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    session.execute(f"CREATE TYPE {KEYSPACE}.address (street text, zip int)")
    for table in TABLES:
        session.execute(f"CREATE TABLE {KEYSPACE}.{table}")
    insert = (
        f"INSERT INTO {KEYSPACE}.orders (id, day, at, v, price, tags, names, path, home) "
        "VALUES (%s, '2026-05-04', %s, %s, 1.50, {'a': 1, 'b': 2}, "
        "{'x', 'y'}, ['p', 'q', 'p'], {street: 'S', zip: 7})"
    )
    for number in range(ROWS):
        session.execute(insert, (number % 7, Decimal(number), number))
    session.execute(f"UPDATE {KEYSPACE}.orders SET note = 'static' WHERE id = 1 AND day = '2026-05-04'")
    session.execute(f"UPDATE {KEYSPACE}.orders SET note = 'alone' WHERE id = 100 AND day = '2026-05-04'")
    session.execute(f"UPDATE {KEYSPACE}.orders USING TTL 100000 SET v = 5 WHERE id = 1 AND day = '2026-05-04' AND at = 1")
    session.execute(f"UPDATE {KEYSPACE}.orders SET home.zip = 8, tags['c'] = 3 WHERE id = 2 AND day = '2026-05-04' AND at = 2")
    session.execute(f"DELETE FROM {KEYSPACE}.orders WHERE id = 3 AND day = '2026-05-04' AND at = 3")
    session.execute(f"UPDATE {KEYSPACE}.hits SET n = n + 3 WHERE page = '/'")


def ship(session: Any, config: PipelineConfig, link: Link, cdc_raw: Path) -> None:
    """Let the node finish the segments that hold what was written, have them shipped, and plan a batch over
    them."""
    waited = {file.name for file in cdc_raw.glob("CommitLog-*.log")}
    insert = session.prepare(f"INSERT INTO {KEYSPACE}.filler (id, b) VALUES (?, ?)")
    store = open_store(config.bucket)
    deadline = time.monotonic() + 300
    while waited & {found.name for found in classify(look(cdc_raw)) if found.state is not State.COMPLETED}:
        assert time.monotonic() < deadline, "the node finished no segment"
        for result in [session.execute_async(insert, (number, "x" * 10_000)) for number in range(100)]:
            result.result()
    assert Agent(config, store, link=link, stop=Event()).round().ok
    assert plan_ingest(store, config.cluster.name, now=datetime.now(UTC)) is not None


def of(report: VerifyReport, name: str) -> TableResult:
    return next(table for table in report.tables if table.table == f"{KEYSPACE}.{name}")


def test_what_is_due_is_compared_completely_once_and_then_by_shares(bench: Bench) -> None:
    store, cluster = open_store(bench.config.bucket), bench.config.cluster.name
    assert bench.verify(due=True).tables == [], "nothing was read from the cluster yet"
    for name in ("orders", "hits"):
        table = table_named(known_schema(store, cluster).schema(), f"{KEYSPACE}.{name}")
        run = begin(store, cluster, table, part=None, ranges=[WHOLE], consistency="ALL", now=datetime.now(UTC))
        finish_range(store, run, 0, RangeDone(rows=0, frames=0, objects=[]))
        update(store, run, datetime.now(UTC))
    report = bench.verify(due=True)
    assert (report.ok, report.share, of(report, "orders").rows) == (True, pytest.approx(1), ROWS)
    known = comparisons.read(store, cluster).tables.values()
    assert sorted(each.complete.rows if each.complete else 0 for each in known) == [1, ROWS]
    again = bench.verify(due=True)
    assert (again.ok, again.share, len(again.tables)) == (True, pytest.approx(0.01), 2)


def test_the_tables_are_the_ring_until_somebody_touches_them(bench: Bench) -> None:
    report = bench.verify()
    assert report.ok, report
    orders = of(report, "orders")
    # One is gone, and a partition has nothing but its static column.
    assert (orders.rows, orders.unsettled) == (ROWS, 0)
    assert (of(report, "hits").rows, of(report, "hits").trouble) == (1, "")
    assert report.horizon is not None

    lake = f"lake.{KEYSPACE}.orders"
    bench.spark.sql(f"UPDATE {lake} SET v = 77 WHERE v = 10")
    bench.spark.sql(f"DELETE FROM {lake} WHERE v = 11")
    bench.spark.sql(f"UPDATE {lake} SET at = '999' WHERE v = 12")
    bench.session.execute(f"UPDATE {KEYSPACE}.orders SET v = 1000 WHERE id = 6 AND day = '2026-05-04' AND at = 13")
    told = bench.verify(tables=[f"{KEYSPACE}.orders"], values=True)
    found = {(each.verdict, *each.differences) for each in of(told, "orders").findings}
    assert found == {
        ("drift", ("value", "v")),
        ("drift", ("row missing", "")),
        # It may have been deleted a moment ago: only a later batch tells.
        ("unsettled", ("row too many", "")),
        ("unsettled", ("value", "v")),
    }
    assert not told.ok
    assert of(told, "orders").drift == 3
    assert {each.ours["v"] for each in of(told, "orders").findings if each.ours} == {77, 12, 13}
    assert of(bench.verify(tables=[f"{KEYSPACE}.orders"], at_rest=True), "orders").drift == 5


def test_a_part_of_the_ring_and_a_table_that_is_not_there(bench: Bench) -> None:
    half = bench.verify(tables=[f"{KEYSPACE}.hits", f"{KEYSPACE}.filler"], part=(-(2**63), 0), share=0.5)
    assert "does not exist in the warehouse" in of(half, "filler").trouble
    assert not half.ok
    assert all(each.end <= 0 for each in of(half, "hits").ranges)
