"""A batch of which a stage loses something, or makes it up, fails and commits nothing; without the defect it
is sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import ingest
from tests.spark_jobs.synthetic import CLUSTER, Ring, delete_partition, insert
from writetime.errors import AccountingMismatch
from writetime.pipeline.documents import total
from writetime.pipeline.planner import read_sealed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]

Batches = Iterator[pa.RecordBatch]


def altered(make: Any, kind: str, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Any:
    """The stage, but for its first batch of rows with one of the kind, which is changed."""

    def made(*plan: Any) -> Any:
        stage = make(*plan)

        def run(batches: Batches) -> Batches:
            pending = True
            for batch in stage(batches):
                found = pending and kind in batch["kind"].to_pylist()
                pending = pending and not found
                yield change(batch) if found else batch

        return run

    return made


def without(kind: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: batch.filter(pc.not_equal(batch["kind"], kind))


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([batch, batch])


def altered_events(make: Any, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Any:
    """The stage that types events, each batch of which is changed."""
    return lambda plan: lambda batches: map(change, make(plan)(batches))


def test_a_batch_that_does_not_balance_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a", "b")
    ring.write(insert(1, 1, 1, name=1))
    ring.write(delete_partition(2, 2))
    ring.finish_and_ship(10)
    manifest = ring.plan(100)
    defects = [
        ("router", altered(ingest.router, "update", without("update"))),
        ("exploder", altered(ingest.exploder, "item", without("item"))),
        ("joiner", altered(ingest.joiner, "account", doubled)),
        ("typed", altered_events(ingest.typed, lambda batch: batch.slice(1))),
        ("typed", altered_events(ingest.typed, doubled)),
    ]
    for stage, defective in defects:
        with monkeypatch.context() as patch:
            patch.setattr(ingest, stage, defective)
            with pytest.raises(AccountingMismatch, match="Nothing was committed"):
                ingest.run(ring.config, manifest.number)
        assert read_sealed(ring.store, CLUSTER, manifest.number) is None
        # Files are written before events are counted, and deleted when they do not balance.
        assert list((tmp_path / "lake").rglob("*.parquet")) == []
        catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
        tables = [name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace)]
        assert [name for name in tables if catalog.load_table(name).current_snapshot() is not None] == []
        assert [info.name for info in ring.store.list("state/")] == []
    sealed = ring.run(manifest)
    assert total(sealed.accounting).updates_in > 0
    assert ring.current() == {(1, 1): {"name": 1}}
