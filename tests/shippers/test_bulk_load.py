"""What no log of a real node holds is seen: SSTables that are imported, and keyspaces without durable writes."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from shippers.cdc_settings import take_settings
from shippers.loaded import LoadedTables
from shippers.schema_snapshot import take_snapshot
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import NOT_DURABLE
from writetime.config.node import NodeConfig

pytestmark = [pytest.mark.cassandra, pytest.mark.thorough]
KEYSPACE = "bulk_load"


def look(looking: LoadedTables) -> list[tuple[str, str, int]]:
    looking._next = 0.0
    looking.look_if_due()
    # What is written from now on is later than this look, by the slack that is granted to clocks.
    time.sleep(3)
    return [(each.keyspace, each.table, each.files) for each in looking.found]


def is_logged(node: Any, words: str) -> bool:
    return any(words.encode() in path.read_bytes() for path in node.cdc_raw.glob("*.log"))


def test_what_a_node_takes_in_past_its_log(cassandra_node: Any, tmp_path: Path) -> None:
    node, session = cassandra_node, cassandra_node.session()
    session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    session.execute(f"CREATE TABLE {KEYSPACE}.orders (id int PRIMARY KEY, note text) WITH cdc = true")
    data = node.folder / "data"
    looking = LoadedTables(
        NodeConfig(cdc_raw=node.cdc_raw, state_dir=tmp_path / "state", data_file_directories=[data]), structlog.get_logger()
    )
    assert look(looking) == []

    # What the node writes itself: flushes, a compaction, a snapshot, a truncation.
    for number in range(3):
        session.execute(f"INSERT INTO {KEYSPACE}.orders (id, note) VALUES ({number}, 'durable words')")
        node.nodetool("flush", KEYSPACE)
        assert look(looking) == []
    node.nodetool("compact", KEYSPACE)
    node.nodetool("snapshot", "-t", "kept", KEYSPACE)
    assert look(looking) == []
    (snapshot,) = (data / KEYSPACE).glob("orders-*/snapshots/kept")
    # `nodetool import` takes the keyspace and the table from the folder's path.
    elsewhere = tmp_path / KEYSPACE / "orders"
    shutil.copytree(snapshot, elsewhere, copy_function=shutil.copy2)
    session.execute(f"TRUNCATE {KEYSPACE}.orders")
    assert look(looking) == []

    node.nodetool("import", KEYSPACE, "orders", str(elsewhere))
    assert {row.id for row in session.execute(f"SELECT id FROM {KEYSPACE}.orders")} == {0, 1, 2}
    assert look(looking) == [(KEYSPACE, "orders", 1)]
    node.nodetool("compact", KEYSPACE)
    assert look(looking) == [(KEYSPACE, "orders", 1)]
    # A shipper that starts again knows it.
    assert look(LoadedTables(NodeConfig(cdc_raw=node.cdc_raw, state_dir=tmp_path / "state", data_file_directories=[data]), None)) == [
        (KEYSPACE, "orders", 1)
    ]

    session.execute(f"ALTER KEYSPACE {KEYSPACE} WITH durable_writes = false")
    session.execute(f"INSERT INTO {KEYSPACE}.orders (id, note) VALUES (9, 'undurable words')")
    learner = SchemaLearner()
    learner.apply_snapshot(take_snapshot(session))
    (table,) = (table for table in learner.captured() if table.keyspace == KEYSPACE)
    assert table.bypass == NOT_DURABLE
    assert (is_logged(node, "undurable words"), is_logged(node, "durable words")) == (False, True)
    assert take_settings(session).cdc_on_repair_enabled is True
    session.execute(f"DROP KEYSPACE {KEYSPACE}")
