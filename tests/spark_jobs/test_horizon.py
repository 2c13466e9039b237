"""How far back a replay may reach after maintenance, without Spark: what the seal says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs import maintain
from spark_jobs.shards import Written
from tests.join.join_oracle import WITH_STATICS
from writetime import names
from writetime.batch.documents import LocalDocument, Manifest, Sealed, ShardVersions
from writetime.config import load
from writetime.schema.learn import SchemaLearner
from writetime.schema.model import Schema
from writetime.store import open_store

DAY = 86_400
NOW = 1_700_000_000
TABLE = str(WITH_STATICS.id)
SCHEMA = Schema(tables={WITH_STATICS.id: WITH_STATICS})


class Here:
    """Runs what Spark would, in this process."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = list(items)

    def map(self, function: Callable[[Any], Any]) -> Here:
        return Here(map(function, self.items))

    def collect(self) -> list[Any]:
        return self.items


def sealed(number: int, versions: ShardVersions, horizon: int | None) -> Sealed:
    at = datetime.fromtimestamp(NOW, UTC)
    return Sealed(number=number, kind="ingest", sealed_at=at, segments=[], accounting=[], state={TABLE: versions}, horizon=horizon)


def maintained(folder: Path, monkeypatch: pytest.MonkeyPatch, base: Sealed, written: Written | None) -> Sealed:
    (folder / "pipeline.yaml").write_text(f"pipeline: p\ncluster: {{name: c, datacenters: [dc1]}}\nbucket: {folder / 'bucket'}\n", encoding="utf-8")
    config = load(folder / "pipeline.yaml")
    store = open_store(config.bucket)
    for what, data in (("schema", SchemaLearner().to_json().encode()), ("local", LocalDocument().to_bytes())):
        store.put(names.batch_object("c", base.number, what), data)
    at = datetime.fromtimestamp(NOW, UTC)
    manifest = Manifest(number=base.number + 1, kind="maintain", cluster="c", created_at=at, now=NOW, base=base.number, segments=[])
    monkeypatch.setattr(maintain, "read_schema", lambda *_: SimpleNamespace(schema=lambda: SCHEMA))
    monkeypatch.setattr(maintain, "purge_shard", lambda *_: written)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(parallelize=lambda tasks, _: Here(tasks)))
    return maintain.maintain(config, store, spark, manifest, base)


def test_what_was_logged_before_a_purge_is_not_replayed_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair logs rows that are older than a tombstone days after it: the tombstone's age says nothing of what it has beaten."""
    base = sealed(1, ShardVersions(buckets=[3], expires=[NOW + 5]), horizon=NOW - 20 * DAY)
    assert maintained(tmp_path, monkeypatch, base, Written(4, None)).horizon == NOW


def test_where_nothing_is_purged_replays_reach_as_far_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = sealed(1, ShardVersions(buckets=[3]), horizon=NOW - 20 * DAY)
    assert maintained(tmp_path, monkeypatch, base, None).horizon == NOW - 20 * DAY


def test_a_table_that_is_not_captured_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has expired in it has to be told when it is back."""
    versions = ShardVersions(buckets=[3], expires=[NOW - 5], behind=1)
    assert maintained(tmp_path, monkeypatch, sealed(2, versions, None), Written(4, None)).state == {TABLE: versions}
