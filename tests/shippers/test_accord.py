"""Cassandra 6.0 with Accord: a captured table whose writes never reach the log is found, on a real node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proof.harness.cassandra import PRERELEASE, Ring
from shippers.schema_snapshot import take_snapshot
from writetime.cassandra.commitlog.mutation_json import Failure, decode, learn
from writetime.cassandra.commitlog.segment import Scan, scan
from writetime.cassandra.schema.history import SchemaLearner

pytestmark = [pytest.mark.cassandra, pytest.mark.thorough]
MODES = {"plain": "off", "reads": "mixed_reads", "whole": "full"}


def test_tables_whose_writes_bypass_the_log_are_known_by_their_mode(tmp_path: Path) -> None:
    with Ring(tmp_path, version=PRERELEASE, segment_mb=1, heap="768M", settings={"accord": {"enabled": True}}) as ring:
        node = ring.nodes[0]
        session = ring.session("ONE")
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        for name, mode in MODES.items():
            session.execute(f"CREATE TABLE k.{name} (p int PRIMARY KEY, v text) WITH cdc = true AND transactional_mode = '{mode}'")
        session.execute("CREATE TABLE k.unwatched (p int PRIMARY KEY) WITH transactional_mode = 'full'")
        for name in MODES:
            session.execute(f"INSERT INTO k.{name} (p, v) VALUES (1, 'of {name}')")
        assert known(take_snapshot(session)) == MODES
        session.execute("ALTER TABLE k.whole WITH transactional_mode = 'off'")
        assert known(take_snapshot(session)) == MODES | {"whole": "off"}
        node.nodetool("drain")
        found = [scan(path.read_bytes(), name=path.name) for path in sorted(node.cdc_raw.glob("*.log"))]
    assert {each.descriptor.version for each in found} == {9}
    assert written(found) == {"plain"}, "nothing of the others is in any segment"


def known(snapshot: dict[str, Any]) -> dict[str, str]:
    """The modes of captured tables by name, as a batch knows them after that snapshot."""
    learner = SchemaLearner()
    learner.apply_snapshot(snapshot)
    return {table.name: table.transactional_mode for table in learner.captured() if table.keyspace == "k"}


def written(found: list[Scan]) -> set[str]:
    """The user tables with an update in these segments."""
    learner = SchemaLearner()
    for each in found:
        learn(each, learner)
    schema = learner.schema()
    decoded = [mutation for each in found for _, mutation in decode(each, schema) if not isinstance(mutation, Failure)]
    return {
        schema.tables[update.table_id].name
        for mutation in decoded
        for update in mutation.updates
        if schema.tables[update.table_id].keyspace == "k"
    }
