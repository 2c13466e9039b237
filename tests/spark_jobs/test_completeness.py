"""When the completeness table is written, and that a failure stops nothing."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from structlog.testing import capture_logs

from spark_jobs import completeness, ingest
from spark_jobs.completeness import CompletenessWriter
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, insert
from writetime.pipeline.complete_tables import CompleteTable
from writetime.pipeline.watermark import CLOCK_MARGIN
from writetime.storage import layout


class Written:
    """A warehouse that writes down what it should write."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.error: Exception | None = None

    def __call__(self, *_: object) -> Written:
        return self

    def write_completeness(self, tables: list[CompleteTable]) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(tables[0].batch)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    warehouse = Written()
    monkeypatch.setattr(completeness, "Warehouse", warehouse)
    return warehouse


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(completeness, "time", made)
    return made


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[CompleteTable]:
    """What is known; tests replace it."""
    tables: list[CompleteTable] = []
    monkeypatch.setattr(completeness, "complete_tables", lambda *_: list(tables))
    return tables


def writer(folder: Path) -> CompletenessWriter:
    ring, spark = Ring.create(folder), Any
    return CompletenessWriter(ring.config, ring.store, spark)  # type: ignore[arg-type]


def table(second: int, batch: int) -> CompleteTable:
    until = START + timedelta(seconds=second)
    return CompleteTable(CLUSTER, "shop.orders", str(UUID(int=1)), until, until, None, batch)


def test_a_minute_after_a_batch_and_five_without_one(tmp_path: Path, written: Written, clock: Clock, known: list[CompleteTable]) -> None:
    table_writer = writer(tmp_path)
    at = []
    for second in range(0, 1800, 5):
        clock.now = 1000.0 + second
        # One batch every ten seconds, in the first five minutes.
        batch = 1 + min(second, 300) // 10
        known[:] = [table(second, batch)]
        before = len(written.batches)
        table_writer.write_if_due(batch)
        at += [second] * (len(written.batches) - before)
    assert at == [60, 120, 180, 240, 300, 600, 900, 1200, 1500]


def test_nothing_new_is_not_written(tmp_path: Path, written: Written, clock: Clock, known: list[CompleteTable]) -> None:
    table_writer = writer(tmp_path)
    table_writer.write(1)
    assert written.batches == [], "nothing is known"
    known[:] = [table(0, 1)]
    table_writer.write(1)
    table_writer.write(1)
    assert written.batches == [1]
    # At the end of a session, only what its last batches brought.
    known[:] = [table(1, 2)]
    table_writer.finish(1)
    assert written.batches == [1]
    table_writer.finish(2)
    assert written.batches == [1, 2]


def test_a_failure_is_logged_and_the_next_write_catches_up(
    tmp_path: Path, written: Written, clock: Clock, known: list[CompleteTable]
) -> None:
    table_writer, known[:] = writer(tmp_path), [table(0, 1)]
    written.error = RuntimeError("no catalog")
    with capture_logs() as logs:
        table_writer.write(1)
    assert [(log["event"], log["error"], log["log_level"]) for log in logs] == [
        ("failed to write the completeness table", "no catalog", "error")
    ]
    written.error = None
    table_writer.write(1)
    assert written.batches == [1]


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_batch_of_the_command_line_writes_it(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    node, signed = layout.NodeName(CLUSTER, "dc1", "a"), START + timedelta(seconds=20)
    status = {"host_id": "a", "signed_off": {"at": signed.isoformat(), "unsynced_ms": 0, "members": {"dc1": ["a"]}}}
    ring.store.put(layout.node_status(node, signed, "51934d0f"), json.dumps(status).encode())
    assert ring.plan(100).number == 1
    assert ingest.main(["--config", str(tmp_path / "pipeline.yaml"), "--batch", "1"]) == 0
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
    (row,) = catalog.load_table(("_writetime", "completeness")).scan().to_arrow().to_pylist()
    until = signed - CLOCK_MARGIN
    assert (row["cluster"], row["table"], row["table_id"], row["batch"]) == (CLUSTER, "shop.orders", str(ORDERS.id), 1)
    assert (row["changes_until"], row["current_until"], row["kafka_until"]) == (until, until, None)
