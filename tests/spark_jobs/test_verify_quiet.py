"""Verification of a cluster that nobody writes to: it ends with a verdict, because the time up to which tables are
complete advances without a batch. No cluster, no Spark: passes are made up, sign-offs and planning are real."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spark_jobs import verify
from spark_jobs.verify import Look, Options, Plan, Subject, Suspect, Verification
from tests.pipeline.test_watermark import A, plan, planned, run, ship, sign
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.config.cluster import CqlConfig
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.planner import history
from writetime.pipeline.verification import Difference, Shown
from writetime.storage import layout
from writetime.storage.local import LocalStore

TABLE = Table("shop", "orders", UUID(int=7), {"id": Column("id", "partition_key", "int", 0), "v": Column("v", "regular", "int")}, cdc=True)
MICROSECONDS = 1_000_000


class MadeUp(Verification):
    """Its passes find the same difference again and again."""

    def __init__(self, store: LocalStore, wait: float) -> None:
        about: dict[str, Any] = {"pipeline": "p", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": "/none"}
        self.config = PipelineConfig.model_validate(about)
        self.store, self.cluster, self.options, self._written = store, "ring", Options(wait=wait), None
        self.again = 0

    def pass_over(self, at: datetime) -> Look:
        found = [Difference("value", "v", _us(at) - 1)]
        suspect = Suspect(5, "same", _us(at), found, Shown({"v": 1}), Shown({"v": 2}), b"record")
        return Look(_us(at), 1, self._horizon(TABLE), suspects={"key": (0, suspect)})

    def _ties(self, subject: Subject, look: Look) -> set[str]:
        return set()

    def _again(self, subject: Subject) -> Look:
        self.again += 1
        look, first = self.pass_over(datetime.now(UTC)), subject.looks[-1].suspects["key"][1]
        look.suspects["key"] = 0, replace(look.suspects["key"][1], since=first.since)
        return look


def _us(at: datetime) -> int:
    return int(at.timestamp() * MICROSECONDS)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """The last segment was finished an hour ago."""
    store = LocalStore(tmp_path / "bucket")
    ship(store, A, 1, datetime.now(UTC) - timedelta(hours=1))
    run(store, planned(store))
    return store


def settled(store: LocalStore, wait: float, meanwhile: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[MadeUp, str]:
    """The verdict on a row that was written, and found to differ, a minute ago."""
    monkeypatch.setattr(verify, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(time, "sleep", lambda _: meanwhile())
    job = MadeUp(store, wait)
    plan_ = Plan(job.config, CqlConfig(contact_points=["127.0.0.1"]), TABLE, Schema(), [(0, 9)], False)
    subject = Subject(TABLE, "lake.shop.orders", plan_, [job.pass_over(datetime.now(UTC) - timedelta(minutes=1))])
    assert subject.looks[-1].horizon.logged < _us(datetime.now(UTC) - timedelta(minutes=50))
    job._settle([subject])
    (finding,) = job._result(subject).findings
    return job, finding.verdict


def test_a_quiet_cluster_gets_a_verdict_without_a_batch(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = history(store, "ring").last

    def signs_off() -> None:
        sign(store, A, datetime.now(UTC))
        assert plan(store) is None, "nothing to ingest"

    job, verdict = settled(store, 60, signs_off, monkeypatch)
    assert (verdict, job.again) == ("drift", 1)
    assert history(store, "ring").last == before


@pytest.mark.parametrize(("key", "table", "expected"), [(b"record", 7, "unsettled"), (b"other", 7, "drift"), (b"record", 8, "drift")])
def test_a_row_that_is_to_be_read_again_is_no_drift(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, key: bytes, table: int, expected: str
) -> None:
    """Such as a counter: cdc_bootstrap reads it after the batch that changed it."""
    note = {"batch": 1, "table_id": str(UUID(int=table)), "keys": [key.hex()]}
    store.put(layout.incomplete_rows("ring", 1, str(UUID(int=table)), 0), json.dumps(note).encode())
    assert settled(store, 60, lambda: (sign(store, A, datetime.now(UTC)), plan(store)), monkeypatch)[1] == expected


def test_a_node_that_signs_nothing_off_gets_none_in_time(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    job, verdict = settled(store, 0.1, lambda: None, monkeypatch)
    assert (verdict, job.again) == ("unsettled", 0)
