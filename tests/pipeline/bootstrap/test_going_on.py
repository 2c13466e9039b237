"""A table that cannot be read holds up no other, without Spark and a ring."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from spark_jobs import bootstrap
from spark_jobs.bootstrap import Bootstrap
from tests.pipeline.bootstrap.test_run import CLUSTER, config, report_schema, table
from tests.storage.memory import MemoryStore
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, WritetimeError
from writetime.pipeline.bootstrap.run import RangeDone, Run, finish_range, runs
from writetime.storage import layout
from writetime.storage.local import LocalStore


def test_one_table_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def read_table(_: Any, table: Any, __: Any) -> str:
        read.append(table.full_name)
        if table.full_name == "shop.orders":
            raise BatchError("no SELECT permission", operation="read a table from the ring", obj=table.full_name)
        return str(table.full_name)

    def read_incomplete_rows(_: Any, failed: list[WritetimeError]) -> int:
        assert len(failed) == 1
        read.append("touched")
        return 0

    cluster = SimpleNamespace(name="c", cql=SimpleNamespace())
    config = cast(PipelineConfig, SimpleNamespace(cluster=cluster, pipeline="p", bucket=str(tmp_path), state=None))
    monkeypatch.setattr(bootstrap, "spark_session", lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(bootstrap.runs, "table_named", lambda _, name: SimpleNamespace(full_name=name))
    monkeypatch.setattr(Bootstrap, "__post_init__", lambda job: setattr(job, "schema", None))
    monkeypatch.setattr(Bootstrap, "read_table", read_table)
    monkeypatch.setattr(Bootstrap, "read_incomplete_rows", read_incomplete_rows)
    with pytest.raises(BatchError, match="no SELECT"):
        bootstrap.run(config, tables=["shop.orders", "shop.notes"], incomplete_rows=True)
    assert read == ["shop.orders", "shop.notes", "touched"]


def test_a_table_that_cannot_be_read_again_keeps_its_own_notes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    tables = {UUID(int=number): SimpleNamespace(full_name=f"shop.t{number}", dropped=False) for number in (1, 2)}
    noted = []
    for number, table_id in enumerate(tables, start=1):
        noted.append(layout.incomplete_rows("c", 7, str(table_id), number))
        store.put(noted[-1], json.dumps({"batch": 7, "table_id": str(table_id), "keys": ["00"]}).encode())
    later = layout.incomplete_rows("c", 8, str(UUID(int=2)), 1)
    store.put(later, json.dumps({"batch": 8, "table_id": str(UUID(int=2)), "keys": ["01"]}).encode())

    doubtful = layout.undecided("c", 7, str(UUID(int=2)), 1)
    store.put(doubtful, json.dumps({"batch": 7, "table_id": str(UUID(int=2)), "keys": ["02"], "whole": True}).encode())
    asked: list[tuple[list[bytes], bool]] = []

    def read_keys(_: Any, table: Any, keys: list[bytes], *, whole: bool) -> int:
        asked.append((keys, whole))
        if table.full_name == "shop.t1":
            raise BatchError("no SELECT permission", operation="read a table from the ring", obj=table.full_name)
        if not whole:
            # Another run was faster.
            store.delete(noted[1])
        return len(keys)

    monkeypatch.setattr(Bootstrap, "_read_keys", read_keys)
    job: Any = Bootstrap.__new__(Bootstrap)
    job.store, job.cluster = store, "c"
    job.sealed, job.schema = SimpleNamespace(number=7), SimpleNamespace(tables=tables)
    failed: list[WritetimeError] = []
    assert job.read_incomplete_rows(failed) == 2
    # What a TRUNCATE may have taken is asked of all replicas, and the rest as ever.
    assert ([b"\2"], True) in asked
    assert [whole for keys, whole in asked if keys == [b"\0"]] == [False, False]
    assert [error.obj for error in failed] == ["shop.t1"]
    assert [info.name for info in store.list(layout.incomplete_rows_prefix("c"))] == [noted[0], later]


def test_a_run_whose_reading_fails_says_so_until_it_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    report_schema(store)
    made = table(store)
    answers: list[WritetimeError | None] = [BatchError("replica 10.0.0.2 is down", operation="read", obj=made.full_name), None]

    def read(job: Bootstrap, _: Any, run: Run, wanted: list[int]) -> None:
        if (error := answers.pop(0)) is not None:
            finish_range(store, run, 0, RangeDone(rows=4, frames=0, objects=[]))
            raise error
        seen.append((run.failed_at, run.error, wanted))
        for number in wanted:
            finish_range(store, run, number, RangeDone(rows=3, frames=0, objects=[]))

    seen: list[tuple[Any, str, list[int]]] = []
    monkeypatch.setattr(Bootstrap, "_read", read)
    ring = nullcontext(SimpleNamespace(tokens=lambda: [0]))
    monkeypatch.setattr(Bootstrap, "_plan", lambda *_: SimpleNamespace(ring=lambda: ring))
    job: Any = Bootstrap.__new__(Bootstrap)
    job.store, job.cluster, job.config, job.notify = store, CLUSTER, config(), lambda _: None
    with pytest.raises(BatchError, match="is down"):
        job.read_table(made)
    (failed,) = runs(store, CLUSTER)
    assert (failed.rows, failed.finished_at) == (4, None)
    assert failed.failed_at is not None
    assert failed.is_aborted(failed.failed_at)
    assert "replica 10.0.0.2 is down" in failed.line()
    done = job.read_table(made)
    assert seen == [(None, "", list(range(1, len(failed.ranges))))]
    assert (done.run, done.failed_at, done.error, done.is_aborted(done.updated_at)) == (failed.run, None, "", False)
    assert done.duration == done.finished_at - done.started_at
