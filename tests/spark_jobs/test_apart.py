"""Tables whose writes reach no log, and what becomes of them by choice."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark_jobs.stages.explode import ExplodePlan, exploder
from spark_jobs.stages.scan import ROUTED
from tests.node_objects import schema_name
from tests.spark_jobs import examples
from tests.spark_jobs.examples import SCHEMA, THEN
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, micros
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.commitlog.mutation import BY_THE_NODE
from writetime.cassandra.merge.row_codec import Engine
from writetime.pipeline.documents import Apart, Sealed
from writetime.pipeline.truncations import Cuts


def exploded(engine: Engine, apart: frozenset[bytes]) -> tuple[list[bytes], Counter[str]]:
    """Keys of the items, and counts, of an ordinary write and one that a node made by itself."""
    table = examples.ORDERS
    rows = []
    for key, flags in ((1, 0), (2, BY_THE_NODE), (3, 0)):
        mutation = replace(examples.insert(table, key, {"name": "x"}, 1, timestamp=THEN), flags=flags)
        body = encode_mutation(mutation, SCHEMA, version=9)
        about = {"table": table.label, "table_id": table.id.bytes, "bucket": 0, "key": key.to_bytes(4, "big"), "updates": 1}
        copies = [{"segment": 0, "position": 100 * key}]
        rows.append({**dict.fromkeys(ROUTED.names), **about, "kind": "update", "digest": bytes([key]) * 16, "body": body, "copies": copies})
    plan = ExplodePlan(SCHEMA, [9], Cuts(), engine, apart=apart)
    found = [row for batch in exploder(plan)(iter([pa.RecordBatch.from_pylist(rows, schema=ROUTED)])) for row in batch.to_pylist()]
    (account,) = (Counter(json.loads(row["detail"])) for row in found if row["kind"] == "account")
    return sorted(row["pk"][-4:] for row in found if row["kind"] == "item"), account


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_what_a_read_repair_leaves_in_the_log_is_not_taken_for_the_table(engine: Engine) -> None:
    keys, counts = exploded(engine, frozenset({examples.ORDERS.id.bytes}))
    assert len(keys) == 2
    assert (counts["folded"], counts["made"], counts["leaked"]) == (2, 2, 1)
    keys, counts = exploded(engine, frozenset())
    assert len(keys) == 3, "of any other table it is a write, as what Paxos commits"
    assert (counts["folded"], counts["leaked"]) == (3, 0)


def known(ring: Ring, number: int, mode: str) -> None:
    """A node says the mode of the table."""
    row = {"keyspace_name": "shop", "table_name": "orders", "id": str(ORDERS.id), "cdc": True, "writetime": micros(-99)}
    at = START + timedelta(seconds=300 * number)
    found = {"taken_at": at.isoformat(), "schema_version": str(UUID(int=number)), "tables": [{**row, "transactional_mode": mode}]}
    ring.store.put(schema_name(CLUSTER, at, f"v{number}"), json.dumps(found).encode())


def choose(ring: Ring, **choice: Any) -> None:
    ring.config = ring.config.model_copy(update={"tables": ring.config.tables.model_copy(update=choice)})


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_table_that_is_left_out_or_read_is_in_the_seal_as_such(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.finish_and_ship(5)
    choose(ring, not_in_log="leave_out")
    known(ring, 1, "full")
    sealed = ring.batch(310)
    assert (sealed.not_in_log, sealed.apart) == ({}, {"shop.orders": Apart(mode="full")})
    assert sealed.state == {}, "nothing is taken of it"
    choose(ring, not_in_log="read", not_in_log_seconds=600)
    known(ring, 2, "mixed_reads")
    sealed = ring.batch(620)
    assert (sealed.not_in_log, sealed.apart) == ({}, {"shop.orders": Apart(mode="mixed_reads", seconds=600)})
    assert list(sealed.state) == [str(ORDERS.id)], "it is captured: its rows come from readings"
    known(ring, 3, "off")
    sealed = ring.batch(930)
    assert (sealed.not_in_log, sealed.apart) == ({}, {})
    assert b'"apart"' not in sealed.to_bytes(), "earlier versions reject the key"
    assert Sealed.model_validate_json(sealed.to_bytes()) == sealed
