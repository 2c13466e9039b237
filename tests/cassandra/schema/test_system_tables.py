"""Cassandra's own tables: ids and shapes that nodes have been seen to use."""

from __future__ import annotations

from uuid import UUID

import pytest

from writetime.cassandra.schema.system_tables import (
    CLUSTER_METADATA_LOG,
    ERASED,
    LOCAL,
    LOCAL_TABLES,
    SCHEMA_TABLES,
    TABLES,
    system_table_id,
)
from writetime.cassandra.types.types import wire_shape

IDS = [
    ("system", "local", "7ad54392-bcdd-35a6-8417-4e047860b377"),
    ("system", "paxos", "b7b7f0c2-fd0a-3410-8c05-3ef614bb7c2d"),
    ("system", "consensus_migration_state", "03080a13-c01d-32e3-ba37-8f8fbc73febf"),
    ("system", "local_metadata_log", "e4ddd16e-bea6-31f4-8361-e88f07af8d4e"),
    ("system", "metadata_snapshots", "6775be21-7f1f-3a2f-90d5-bd313a15ce78"),
    ("system_cluster_metadata", "distributed_metadata_log", "d885727a-f67b-3a32-951b-78efe9c75732"),
    ("system_schema", "tables", "afddfb9d-bc1e-3068-8056-eed6c302ba09"),
    ("system_schema", "columns", "24101c25-a2ae-3af7-87c1-b40ee1aca33f"),
    ("system_schema", "keyspaces", "abac5682-dea6-31c5-b535-b3d6cffd0fb6"),
    ("system_schema", "column_masks", "738cc5ed-0168-3268-b9d1-853d4bc278af"),
]


@pytest.mark.parametrize(("keyspace", "name", "table_id"), IDS)
def test_ids(keyspace: str, name: str, table_id: str) -> None:
    assert system_table_id(keyspace, name) == UUID(table_id)
    assert TABLES[UUID(table_id)].full_name == f"{keyspace}.{name}"


def test_every_table_is_whole() -> None:
    assert len(SCHEMA_TABLES) == 11
    assert len(TABLES) == len(SCHEMA_TABLES) + len(LOCAL_TABLES) + len([CLUSTER_METADATA_LOG, ERASED])
    for table in TABLES.values():
        assert [column.position for column in table.partition_key] == list(range(len(table.partition_key)))
        assert [column.position for column in table.clustering] == list(range(len(table.clustering)))
        assert table.partition_key
        for column in table.columns.values():
            wire_shape(column.type)


def test_local_tells_of_truncations_and_topology() -> None:
    types = {name: column.type for name, column in LOCAL.columns.items()}
    assert types["truncated_at"] == "map<uuid, blob>"
    assert types["tokens"] == "set<text>"
    assert {"host_id", "data_center", "rack", "release_version", "cluster_name", "schema_version"} <= types.keys()


def test_clustering_columns_stand_in_order() -> None:
    columns = SCHEMA_TABLES[system_table_id("system_schema", "columns")]
    assert [column.name for column in columns.clustering] == ["table_name", "column_name"]
