"""Files of all tables of a batch, written together: the rows are those of each table alone, and it takes two jobs of
Spark however many tables there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.failures import TablesFailed
from spark_jobs.session import spark_session
from spark_jobs.sinks.batch_files import EVENTS_PER_TASK, Events
from spark_jobs.sinks.iceberg import TableWrite, Warehouse
from spark_jobs.stages import event_pages
from tests.spark_jobs.examples import THEN, folded, frame, insert, of_kind, paged, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import pages, rows
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.model import Schema, Table
from writetime.config.warehouse import WarehouseConfig

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TABLES = [table(name, 110 + number, {"id": "int", "v": "int"}) for number, name in enumerate(("first", "second", "third"))]
SCHEMA = schema_of(*TABLES)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline.create(tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def spark(pipeline: Pipeline) -> Iterator[SparkSession]:
    session = spark_session(pipeline.config, "tests of files written together")
    yield session
    session.stop()


@pytest.fixture
def warehouse(spark: SparkSession) -> Warehouse:
    return Warehouse(spark, "lake")


def events_of(spark: SparkSession, *mutations: Mutation) -> Events:
    """Pages of a few events each: those of a table are in several partitions, among those of others."""
    found = pages(spark, [page for at, mutation in enumerate(mutations) for page in pages_of(mutation, SCHEMA, at)])
    return Events(found.repartition(3), event_pages.pages, is_sorted=False)


def pages_of(mutation: Mutation, schema: Schema, start: int = 0) -> list[dict[str, Any]]:
    return paged(of_kind(folded([frame(mutation, schema=schema)], schema), "event"), schema, start=start)


def write(warehouse: Warehouse, batch: int, *mutations: Mutation) -> list[TableWrite]:
    writes = [warehouse.open(of, SCHEMA, batch, changes=True, current="merged") for of in TABLES]
    assert all(write.is_by_tasks for write in writes)
    together = events_of(warehouse.spark, *mutations)
    emitted = warehouse.write_files(writes, together.shared_by_tables({of.id.bytes: 1 for of in TABLES}, 2), batch)
    assert sum(emitted.values()) == len(mutations)
    for each in writes:
        warehouse.commit_changes(each, together, batch)
        warehouse.commit_current(each, together, batch)
    return writes


def current(warehouse: Warehouse, of: Table) -> dict[int, int]:
    return {row["id"]: row["v"] for row in rows(warehouse, f"shop.{of.name}")}


def inserts(batch: int, keys: range) -> list[Mutation]:
    return [insert(of, key, {"v": 100 * batch + key}, timestamp=THEN + batch, schema=SCHEMA) for key in keys for of in TABLES]


def test_files_of_all_tables_take_two_jobs(warehouse: Warehouse) -> None:
    write(warehouse, 1, *inserts(1, range(4)))
    tracker, context = warehouse.spark.sparkContext.statusTracker(), warehouse.spark.sparkContext
    context.setJobGroup("second batch", "files of all tables")
    try:
        writes = write(warehouse, 2, *inserts(2, range(2, 6)))
        assert len(tracker.getJobIdsForGroup("second batch")) == 2
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    for of, each in zip(TABLES, writes, strict=True):
        assert current(warehouse, of) == {0: 100, 1: 101, **{key: 200 + key for key in range(2, 6)}}
        assert len(rows(warehouse, f"shop__changes.{of.name}")) == 8
        assert each.current is not None
        assert [(row.rows, len(each.current.held_files or ())) for row in each.current.deletes] == [(2, 1)]


def test_what_is_not_committed_leaves_no_files(spark: SparkSession, pipeline: Pipeline) -> None:
    by_rule = WarehouseConfig.model_validate({"decimal": {"shop.*.price": "decimal(5, 2)"}})
    warehouse = Warehouse(spark, "lake", by_rule)
    of, other = table("priced", 120, {"id": "int", "price": "decimal"}), table("unpriced", 121, {"id": "int", "v": "int"})
    schema = schema_of(of, other)
    mutations = [insert(other, 1, {"v": 1}, schema=schema), insert(of, 1, {"price": Decimal("1234.5")}, schema=schema)]
    together = Events.of_pages(pages(spark, [page for mutation in mutations for page in pages_of(mutation, schema)]))
    before = files(pipeline)
    writes = [warehouse.open(each, schema, 1, changes=True, current="merged") for each in (of, other)]
    with pytest.raises(TablesFailed, match="column price is DECIMAL"):
        warehouse.write_files(writes, [together], 1)
    assert files(pipeline) == before
    # A batch that goes no further deletes its files.
    written = warehouse.write(other, schema, replace(together, tables=(other.id.bytes,)), 1, changes=True, current="merged")
    assert len(files(pipeline) - before) == 2
    written.discard()
    assert files(pipeline) == before


def files(pipeline: Pipeline) -> set[Path]:
    return set(pipeline.site.folder.rglob("*.parquet"))


def test_a_large_table_has_tasks_of_its_own_and_others_share_some(spark: SparkSession) -> None:
    counts = {bytes([number]): 10 for number in range(5)} | {b"large": 3 * EVENTS_PER_TASK, b"none": 0}
    shares = Events(spark.range(1), event_pages.pages, is_sorted=False).shared_by_tables(counts, 2)
    assert [(each.tables, each.tasks) for each in shares[:1]] == [((b"large",), 4)]
    assert [each.tasks for each in shares[1:]] == [1, 1]
    assert sorted(name for each in shares[1:] for name in each.tables or ()) == sorted(counts.keys() - {b"large"})
    assert Events(spark.range(1), event_pages.pages).shared_by_tables({}, 2) == []
