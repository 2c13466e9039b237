"""Materialized views WITH cdc = true: rejected by name, whether the log or a snapshot tells of them, and whether their
rows or their definition come first; no other table is affected."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spark_jobs import ingest
from tests.cassandra.schema.examples import change, column_row, schema_row
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, i32, insert, micros
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.create_statements import table_cql
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema, Table, View
from writetime.cassandra.schema.system_tables import TABLES
from writetime.events.masking import rejection_reason
from writetime.pipeline.archiver import archive
from writetime.pipeline.quarantine.rejected_tables import failed_tables, release_table, remaining_reason
from writetime.storage import layout

BY_NAME = Table(
    "shop",
    "By name",
    UUID("8cbda380-e583-11f1-817f-f173fd8e050e"),
    {
        "name": replace(ORDERS.columns["name"], kind="partition_key", position=0),
        "id": replace(ORDERS.columns["id"], kind="clustering", position=0),
        "line": replace(ORDERS.columns["line"], position=1),
        "amount": ORDERS.columns["amount"],
    },
    cdc=True,
    view=View("orders", "name IS NOT NULL AND id IS NOT NULL AND line IS NOT NULL", all_columns=False),
)


def create_view(at: float, *, cdc: bool = True) -> Mutation:
    view = BY_NAME.view
    assert view is not None
    cells: dict[str, Any] = {"id": BY_NAME.id, "cdc": cdc, "base_table_name": view.base_table, "where_clause": view.where_clause}
    columns = [column_row(BY_NAME.name, c.name, micros(at), c.kind, c.type, c.position) for c in BY_NAME.columns.values()]
    return change("shop", views=[schema_row("views", (BY_NAME.name,), micros(at), cells)], columns=columns)


def snapshot(at: float) -> dict[str, Any]:
    where = {"keyspace_name": "shop", "writetime": micros(at)}
    columns = [
        {**where, "table_name": BY_NAME.name, "column_name": c.name, "kind": c.kind, "position": c.position, "type": c.type}
        for c in BY_NAME.columns.values()
    ]
    view = {**where, "view_name": BY_NAME.name, "id": str(BY_NAME.id), "cdc": True, "base_table_name": "orders", "where_clause": "x"}
    return {"taken_at": (START + timedelta(seconds=at)).isoformat(), "schema_version": "v", "views": [view], "columns": columns}


def written(key: int, at: float) -> bytes:
    row = Row((i32(1), i32(1)), Liveness(micros(at)), cells=(Cell("amount", micros(at), i32(7)),))
    return encode_mutation(Mutation((PartitionUpdate(BY_NAME.id, i32(key), rows=(row,)),)), Schema(tables={BY_NAME.id: BY_NAME}))


@pytest.mark.parametrize("by", ["log", "snapshot"])
def test_a_view_is_rejected_by_name_whoever_tells_of_it(by: str) -> None:
    learner = SchemaLearner()
    if by == "log":
        learner.apply(create_view(1))
    else:
        learner.apply_snapshot(snapshot(1))
    schema = learner.schema()
    view = schema.tables[BY_NAME.id]
    assert (learner.captured(), learner.views_with_cdc(lambda _: True), learner.views_with_cdc(lambda _: False)) == ([], [view], [])
    reason = rejection_reason(view, schema) or ""
    assert 'ALTER MATERIALIZED VIEW shop."By name" WITH cdc = false; and capture its base table shop.orders' in reason
    assert "    AND cdc = true" in table_cql(view)
    # It is done.
    learner.apply(change("shop", views=[schema_row("views", (BY_NAME.name,), micros(2), {"cdc": False})]))
    schema = learner.schema()
    assert (learner.captured(), learner.views_with_cdc(lambda _: True)) == ([], [])
    assert rejection_reason(schema.tables[BY_NAME.id], schema) is None
    assert "cdc" not in table_cql(schema.tables[BY_NAME.id])


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("by", ["log", "snapshot"])
def test_a_view_that_is_known_after_its_first_rows_disturbs_no_other_table(tmp_path: Path, by: str) -> None:
    ring = Ring.create(tmp_path, "a")
    system = Schema(tables=TABLES)

    def batch(now: float) -> Any:
        ring.finish_and_ship(now - 1)
        sealed = ingest.run(ring.config, ring.plan(now).number)
        archive(ring.store, CLUSTER, sealed.number)
        return sealed

    ring.write(written(5, 1))
    ring.write(insert(1, 1, 1, name=5))
    unknown = batch(100)
    assert (unknown.refused, len(unknown.held), ring.current()) == ([], 1, {(1, 1): {"name": 5}})

    if by == "log":
        ring.write(encode_mutation(create_view(0.5), system))
    else:
        name = f"{layout.schema_prefix(CLUSTER)}dc1/a/20260504T120130Z-v.json"
        ring.store.put(name, json.dumps(snapshot(0.5)).encode())
    ring.write(written(6, 110))
    ring.write(insert(2, 1, 110, name=6))
    known = batch(200)
    assert [table.table for table in known.refused] == ["shop.By name"]
    assert "materialized views cannot be captured" in known.refused[0].reason
    assert [table.table for table in failed_tables(ring.store, CLUSTER, known.number)] == ["shop.By name"]
    assert ring.current() == {(1, 1): {"name": 5}, (2, 1): {"name": 6}}
    assert len(known.held) == 2
    assert remaining_reason(ring.store, CLUSTER, BY_NAME.id, ring.config.columns.rules) is not None

    ring.write(encode_mutation(change("shop", views=[schema_row("views", (BY_NAME.name,), micros(210), {"cdc": False})]), system))
    ring.write(written(7, 220))
    ring.write(insert(3, 1, 220, name=7))
    done = batch(300)
    assert done.refused == []
    assert remaining_reason(ring.store, CLUSTER, BY_NAME.id, ring.config.columns.rules) is None
    assert len(release_table(ring.store, CLUSTER, BY_NAME.id)) >= 1
    ring.write(insert(4, 1, 320, name=8))
    last = batch(400)
    assert (last.refused, last.held) == ([], [])
    assert ring.current().keys() == {(1, 1), (2, 1), (3, 1), (4, 1)}
