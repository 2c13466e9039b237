"""A schema document of one node that no other table of the same batch notices. What documents can hold:
tests/cassandra/schema/test_hostile.py."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spark_jobs import ingest
from tests.spark_jobs.synthetic import CLUSTER, START, Ring, i32, insert, micros
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.pipeline.archiver import archive
from writetime.pipeline.quarantine.rejected_tables import failed_tables, remaining_reason
from writetime.storage import layout

AT = micros(0.5)
COLUMNS = {
    "cycle": {"type": "frozen<t0>"},
    "bomb": {"type": "frozen<b0>"},
    "reversed": {"type": "'org.apache.cassandra.db.marshal.ReversedType(org.apache.cassandra.db.marshal.Int32Type)'"},
    "nested": {"type": "frozen<list<" * 120 + "int" + ">>" * 120},
    "kind": {"kind": "odd"},
}
"""By table of the keyspace `evil`: what its second column is like. A table of `bad` has a replication that is none."""
TABLES = {("evil", name): UUID(int=at) for at, name in enumerate(COLUMNS, 100)} | {("bad", "t"): UUID(int=200)}


def document() -> dict[str, Any]:
    def keyspace(name: str, factor: str) -> dict[str, Any]:
        return {"keyspace_name": name, "durable_writes": True, "replication": {"class": "SimpleStrategy", "replication_factor": factor}}

    tables, columns = [], []
    for (name, table), table_id in TABLES.items():
        where = {"keyspace_name": name, "table_name": table, "writetime": AT}
        tables.append({**where, "id": str(table_id), "flags": ["compound"], "cdc": True})
        columns.append({**where, "column_name": "id", "kind": "partition_key", "position": 0, "type": "int"})
        columns.append({**where, "column_name": "v", "kind": "regular", "position": -1, "type": "int", **COLUMNS.get(table, {})})
    types = {"t0": ["frozen<t0>"], **{f"b{at}": [f"frozen<b{at + 1}>"] * 2 for at in range(40)}, "b40": ["int"]}
    return {
        "taken_at": (START + timedelta(seconds=20)).isoformat(),
        "schema_version": "v",
        "keyspaces": [{**keyspace("evil", "3"), "writetime": AT}, {**keyspace("bad", "abc"), "writetime": AT}],
        "tables": tables,
        "columns": columns,
        "types": [
            {"keyspace_name": "evil", "type_name": n, "field_names": ["a", "b"][: len(k)], "field_types": k, "writetime": AT}
            for n, k in types.items()
        ],
    }


def written(table_id: UUID) -> bytes:
    table = Table("evil", "t", table_id, {"id": Column("id", "partition_key", "int", 0), "v": Column("v", "regular", "int")})
    update = PartitionUpdate(table_id, i32(1), rows=(Row((), Liveness(micros(1))),))
    return encode_mutation(Mutation((update,)), Schema(tables={table_id: table}))


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_document_rejects_only_the_tables_that_it_is_about(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.store.put(f"{layout.schema_prefix(CLUSTER)}dc1/a/20260504T120020Z-v.json", json.dumps(document()).encode())
    for table_id in TABLES.values():
        ring.write(written(table_id))
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(30)
    sealed = ingest.run(ring.config, ring.plan(100).number)
    names = {".".join(name) for name in TABLES}
    assert sealed.snapshots_refused == {}
    assert {refused.table for refused in sealed.refused} == names
    assert all(refused.reason for refused in sealed.refused)
    assert {refused.table for refused in failed_tables(ring.store, CLUSTER, sealed.number)} == names
    assert ring.current() == {(1, 1): {"name": 1}}
    assert sum(account.quarantined for account in sealed.accounting) == len(TABLES)
    archive(ring.store, CLUSTER, sealed.number)
    assert all(remaining_reason(ring.store, CLUSTER, table_id, ring.config.columns.rules) for table_id in TABLES.values())
