"""A table of somebody else has the name that a captured one needs: that one waits, and no other does. Real
Spark and Iceberg."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import ingest
from spark_jobs.sinks.iceberg import Size, TableWrite, Warehouse
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.pipeline import dies_at
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, Ring, i32, insert, micros
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import TABLES
from writetime.pipeline.archiver import archive
from writetime.pipeline.quarantine.rejected_tables import failed_tables, release_table, remaining_reason

pytestmark = pytest.mark.thorough

FREE = replace(ORDERS, name="free", id=UUID("8cbda380-e583-11f1-817f-f173fd8e050e"))


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_table_whose_name_is_taken_waits_and_no_other_does(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}", warehouse=str(tmp_path / "lake" / "warehouse"))
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema=pa.schema([("mine", pa.int32())]))
    ring.write(encode_mutation(create_table(FREE, micros(-98)), Schema(tables=TABLES)))
    ring.write(insert(1, 1, 1, name=1))
    written = PartitionUpdate(FREE.id, i32(2), rows=(Row((i32(1),), Liveness(micros(1))),))
    ring.write(encode_mutation(Mutation((written,)), Schema(tables={FREE.id: FREE})))
    ring.finish_and_ship(10)
    sealed = ingest.run(ring.config, ring.plan(100).number)
    counts = {account.table: (account.applied, account.quarantined) for account in sealed.accounting}
    assert (counts["shop.free"], counts["shop.orders"]) == ((1, 0), (0, 1))
    (problem,), held = sealed.segments[0].problems, sealed.segments[0].object
    assert "somebody else made it" in problem.message
    assert sealed.held == [held] == [sealed.segments[0].object]
    (refused,) = sealed.refused
    assert (refused.table, refused.table_id, refused.reason) == ("shop.orders", ORDERS.id, problem.message)
    assert problem.table_id == ORDERS.id
    assert sealed.waits_for_tables(sealed.segments[0])
    assert [row["id"] for row in catalog.load_table("shop.free").scan().to_arrow().to_pylist()] == [2]
    assert catalog.load_table("shop.orders").schema().column_names == ["mine"]
    # The name is free again, and a person says so: what waited comes in.
    archive(ring.store, CLUSTER, sealed.number)
    catalog.drop_table("shop.orders")
    rules = ring.config.columns.rules
    assert [table.table for table in failed_tables(ring.store, CLUSTER, sealed.number)] == ["shop.orders"]
    assert remaining_reason(ring.store, CLUSTER, ORDERS.id, rules) is None
    assert release_table(ring.store, CLUSTER, ORDERS.id) == [held]
    again = ingest.run(ring.config, ring.plan(200).number)
    counts = {account.table: (account.applied, account.superseded) for account in again.accounting}
    assert (counts["shop.free"], counts["shop.orders"]) == ((0, 1), (1, 0))
    assert (again.refused, again.held) == ([], [])
    assert [row["id"] for row in catalog.load_table("shop.orders").scan().to_arrow().to_pylist()] == [1]


NOT_TO_BE_PLANNED = "SELECT nobody_has_this FROM lake.shop.orders"
TWO_FOR_ONE = "MERGE INTO lake.shop.orders t USING (SELECT 1 AS id FROM range(2)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 3"
"""Planned as any other, and refused by the task that meets the rows."""


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("statement", "condition"), [(NOT_TO_BE_PLANNED, "UNRESOLVED_COLUMN"), (TWO_FOR_ONE, "MERGE_CARDINALITY")])
def test_a_table_that_spark_cannot_write_waits_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, condition: str
) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(encode_mutation(create_table(FREE, micros(-98)), Schema(tables=TABLES)))
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    archive(ring.store, CLUSTER, ring.run(ring.plan(50)).number)
    ring.write(insert(1, 1, 2, name=2))
    written = PartitionUpdate(FREE.id, i32(2), rows=(Row((i32(1),), Liveness(micros(1))),))
    ring.write(encode_mutation(Mutation((written,)), Schema(tables={FREE.id: FREE})))
    ring.finish_and_ship(60)
    commit = Warehouse.commit_current

    def refused_by_spark(self: Warehouse, write: TableWrite, *others: Any) -> Size:
        if write.table.id == ORDERS.id:
            self.spark.sql(statement)
        return commit(self, write, *others)

    with monkeypatch.context() as patch:
        patch.setattr(Warehouse, "commit_current", refused_by_spark)
        sealed = ingest.run(ring.config, ring.plan(100).number)
    (refused,) = sealed.refused
    assert (refused.table, refused.table_id) == ("shop.orders", ORDERS.id)
    assert f"cannot be written: [{condition}" in refused.reason
    counts = {account.table: (account.applied, account.quarantined) for account in sealed.accounting}
    assert (counts["shop.free"], counts["shop.orders"]) == ((1, 0), (0, 1))
    # What the first run told of it does not count, and the next batch takes it back; what was there before stays.
    assert (sealed.without_effect(ORDERS.id), sealed.without_effect(FREE.id)) == ({sealed.number}, set())
    assert (ring.current(), len(ring.events(sealed.number))) == ({(1, 1): {"name": 1}}, 1)
    archive(ring.store, CLUSTER, sealed.number)
    assert len(release_table(ring.store, CLUSTER, ORDERS.id)) == 1
    again = ingest.run(ring.config, ring.plan(200).number)
    assert (again.refused, again.held, again.events) == ([], [], 1)
    assert ring.current() == {(1, 1): {"name": 2}}
    assert [len(ring.events(number)) for number in (1, sealed.number, again.number)] == [1, 0, 1]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_what_an_attempt_told_of_a_table_that_the_next_one_rejects_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    manifest = ring.plan(100)
    with dies_at(monkeypatch, "_commit_state"):
        ring.run(manifest)
    assert len(ring.events(manifest.number)) == 1
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}", warehouse=str(tmp_path / "lake" / "warehouse"))
    # Nothing is in it yet.
    catalog.drop_table("shop.orders")
    catalog.create_table("shop.orders", schema=pa.schema([("mine", pa.int32())]))
    sealed = ingest.run(ring.config, manifest.number)
    assert (sealed.events, len(sealed.held)) == (0, 1)
    # Another run may seal it with these events until this one does: the next batch takes them back.
    assert len(ring.events()) == 1
    archive(ring.store, CLUSTER, sealed.number)
    ring.write(insert(1, 1, 2, name=2))
    ring.finish_and_ship(60)
    again = ingest.run(ring.config, ring.plan(200).number)
    assert [table.table_id for table in again.refused] == [ORDERS.id]
    assert again.without_effect(ORDERS.id) == {sealed.number, again.number}
    assert ring.events() == []
