"""A table whose writes go through Accord, and reach no log, is read from a real node at intervals and equals it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proof.bootstrap.live import CLUSTER, Live
from proof.bootstrap.workload import KEYSPACE
from proof.harness.cassandra import PRERELEASE, Ring
from proof.ring.pipeline import Pipeline

pytestmark = [pytest.mark.cassandra, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]
MODES = {"whole": "full", "reads": "mixed_reads"}


def test_tables_of_accord_are_read_again_and_again_and_equal_the_node(tmp_path: Path) -> None:
    with accord(tmp_path) as live:
        execute(live, "INSERT INTO {} (p, c, v, m) VALUES (1, 1, 'one', {{'a': 1, 'b': 2}})", "INSERT INTO {} (p, s) VALUES (2, 'static')")
        execute(live, "INSERT INTO {} (p, c, v) VALUES (3, 1, 'goes')", "INSERT INTO {} (p, c, v) VALUES (4, 1, 'stays')")
        live.take_in()
        assert sum(sealed.events for sealed in live.pipeline.sealed) == 0, "the log has the schema and nothing else"

        assert {run.table for run in live.bootstrap()} == set(MODES)
        first = compared(live, "after the first reading")
        assert all(set(found) == {("r", "snapshot")} for found in first.values())

        assert live.bootstrap() == [], "the interval has not passed"
        execute(live, "UPDATE {} SET v = 'two', m['c'] = 3 WHERE p = 1 AND c = 1", "DELETE m['a'] FROM {} WHERE p = 1 AND c = 1")
        execute(live, "DELETE FROM {} WHERE p = 3", "DELETE s FROM {} WHERE p = 2", "INSERT INTO {} (p, c) VALUES (5, 5)")
        read_every(live, 1)
        assert {run.table for run in live.bootstrap()} == set(MODES)
        for name, found in compared(live, "after the second reading").items():
            later = found[len(first[name]) :]
            assert {reason for _, reason in later} == {"snapshot"}
            assert {op for op, _ in later} == {"r", "u", "d"}, name


@contextmanager
def accord(folder: Path) -> Iterator[Live]:
    """One node with a table of each mode, and a pipeline that reads them each hour."""
    settings = {"auto_snapshot": False, "accord": {"enabled": True}}
    with (
        Ring(folder / "ring", version=PRERELEASE, cluster_name=CLUSTER, segment_mb=1, heap="768M", settings=settings) as ring,
        Pipeline.create(folder / "run") as pipeline,
    ):
        live = Live(ring, pipeline)
        snapshot = live.pipeline.config.snapshot.model_copy(update={"mode": "never"})
        live.pipeline.config = live.pipeline.config.model_copy(update={"snapshot": snapshot})
        read_every(live, 3600)
        live.session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 1}}")
        for name, mode in MODES.items():
            live.session.execute(
                f"CREATE TABLE {KEYSPACE}.{name} (p int, c int, s text static, v text, m map<text, int>, PRIMARY KEY (p, c)) "
                f"WITH cdc = true AND transactional_mode = '{mode}'"
            )
        yield live


def read_every(live: Live, seconds: int) -> None:
    config = live.pipeline.config
    tables = config.tables.model_copy(update={"not_in_log": "read", "not_in_log_seconds": seconds})
    live.pipeline.config = config.model_copy(update={"tables": tables})


def execute(live: Live, *statements: str) -> None:
    """Each on all tables."""
    for statement in statements:
        for name in MODES:
            live.session.execute(statement.format(f"{KEYSPACE}.{name}"))


def compared(live: Live, where: str) -> dict[str, list[tuple[str, str | None]]]:
    """Compare all tables with the node; (op, reason) of each event so far, by table."""
    answer = live.compare(where)
    assert {table.name for table in answer.tables} == set(MODES)
    assert all(table.rows for table in answer.tables)
    assert [str(mismatch) for mismatch in live.mismatches] == []
    return {table.name: [(event.op, event.reason) for event in live.pipeline.lake.changes(table)] for table in answer.tables}
