"""Maintenance as a batch, without Spark: how far back a replay may reach after it, by its seal, and what it
leaves of the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs import maintain
from spark_jobs.maintain import Purged, TablesUnmaintained
from spark_jobs.state.shards import Record, Shard, Written, in_batches, upsert
from tests.cassandra.merge.join_oracle import WITH_STATICS
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import BatchError
from writetime.pipeline.documents import LocalDocument, Manifest, Sealed, ShardVersions
from writetime.pipeline.planner import read_sealed
from writetime.storage import layout, open_store

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


Purge = Callable[..., Purged | None]


def pipeline(folder: Path) -> PipelineConfig:
    yaml = f"pipeline: p\ncluster: {{name: c, datacenters: [dc1]}}\nbucket: {folder / 'bucket'}\n"
    (folder / "pipeline.yaml").write_text(yaml, encoding="utf-8")
    return load(folder / "pipeline.yaml")


def maintained(folder: Path, monkeypatch: pytest.MonkeyPatch, base: Sealed, written: Purged | Purge | None) -> Sealed:
    config = pipeline(folder)
    store = open_store(config.bucket)
    for what, data in (("schema", SchemaLearner().to_json().encode()), ("local", LocalDocument().to_bytes())):
        store.put(layout.batch_object("c", base.number, what), data)
    at = datetime.fromtimestamp(NOW, UTC)
    manifest = Manifest(number=base.number + 1, kind="maintain", cluster="c", created_at=at, now=NOW, base=base.number, segments=[])
    monkeypatch.setattr(maintain, "read_schema", lambda *_: SimpleNamespace(schema=lambda: SCHEMA))
    monkeypatch.setattr(maintain, "purge_shard", written if callable(written) else lambda *_: written)
    monkeypatch.setattr(maintain, "Meter", lambda *_, **__: SimpleNamespace(costs=list))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(parallelize=lambda tasks, _: Here(tasks)))
    return maintain.maintain(config, store, spark, manifest, base)


def maintained_in_part(folder: Path, monkeypatch: pytest.MonkeyPatch, base: Sealed, written: Purged | Purge | None) -> Sealed:
    """What is sealed where a table fails oddly, which the error names."""
    with pytest.raises(TablesUnmaintained, match="odd"):
        maintained(folder, monkeypatch, base, written)
    after = read_sealed(open_store(pipeline(folder).bucket), "c", base.number + 1)
    assert after is not None
    return after


@pytest.mark.parametrize(
    ("days", "before", "expected"),
    [(None, None, None), (None, 7200, 7200), (1.5, None, NOW - 3 * DAY // 2), (1.5, 7200, NOW - 3 * DAY // 2), (1.5, NOW, NOW)],
)
def test_what_the_archive_keeps_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float | None, before: int | None, expected: int | None
) -> None:
    real = pipeline(tmp_path)
    config = real.model_copy(update={"archive": real.archive.model_copy(update={"keep_days": days})})
    monkeypatch.setattr("tests.spark_jobs.test_horizon.pipeline", lambda _: config)
    base = sealed(1, ShardVersions(buckets=[3]), None).model_copy(update={"kept_from": before})
    found = maintained(tmp_path, monkeypatch, base, None).kept_from
    assert found == (expected if expected == before or expected is None else expected - expected % 3600)


@pytest.mark.parametrize(("horizon", "expected"), [(None, NOW - 10 * DAY), (NOW - 20 * DAY, NOW - 10 * DAY), (NOW - DAY, NOW - DAY)])
def test_how_far_was_purged_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, horizon: int | None, expected: int) -> None:
    base = sealed(1, ShardVersions(buckets=[3], expires=[NOW + 5], purged=70), horizon)
    older, newer = (Purged(Written(4, None), newest) for newest in (60, 80))
    (tmp_path / "other").mkdir()
    after = maintained(tmp_path, monkeypatch, base, older)
    assert (after.horizon, after.state[TABLE].purged) == (expected, 70)
    assert maintained(tmp_path / "other", monkeypatch, base, newer).state[TABLE].purged == 80


def test_where_nothing_is_purged_replays_reach_as_far_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = sealed(1, ShardVersions(buckets=[3]), horizon=NOW - 20 * DAY)
    assert maintained(tmp_path, monkeypatch, base, None).horizon == NOW - 20 * DAY


def test_a_table_that_is_not_captured_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has expired in it has to be told when it is back."""
    versions = ShardVersions(buckets=[3], expires=[NOW - 5], behind=1)
    assert maintained(tmp_path, monkeypatch, sealed(2, versions, None), Purged(Written(4, None), 60)).state == {TABLE: versions}


def in_two_batches(folder: Path, generation: int, bucket: int, key: bytes) -> list[int]:
    """A shard's versions after each of two batches, with one record that they change."""
    place = "c", TABLE, generation, bucket
    uri, store = pipeline(folder).state_url(layout.state_shard(*place)), open_store(str(folder / "bucket"))
    versions = [0]
    for batch in (1, 2):
        written = upsert(uri, versions[-1], batch, in_batches([Record(key, b"%d" % batch, None)]), store, layout.state_lease(*place))
        versions.append(written.version)
    return versions[1:]


def shard(folder: Path, generation: int, bucket: int, version: int) -> Shard:
    return Shard(pipeline(folder).state_url(layout.state_shard("c", TABLE, generation, bucket)), version)


def test_what_no_batch_starts_from_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_two_batches(tmp_path, 0, 0, b"before a TRUNCATE")
    in_two_batches(tmp_path, 1, 0, b"before another")
    first, second = in_two_batches(tmp_path, 2, 0, b"k")
    (other,) = in_two_batches(tmp_path, 2, 1, b"k")[1:]
    store = open_store(pipeline(tmp_path).bucket)

    def purge(_: Any, task: maintain.Task, *__: Any) -> Purged | None:
        return (
            None if task.bucket else Purged(upsert(task.uri, task.version, 3, in_batches([Record(b"k", b"", None)]), store, task.lease), 0)
        )

    base = sealed(2, ShardVersions(generation=2, buckets=[second, other, 0]), None)
    after = maintained(tmp_path, monkeypatch, base, purge)
    third = after.state[TABLE].buckets[0]
    assert after.state[TABLE].buckets == [third, other, 0]
    assert [shard(tmp_path, 2, 0, version).get([b"k"]) for version in (second, third)] == [{b"k": b"2"}, {}]
    assert shard(tmp_path, 2, 1, other).get([b"k"]) == {b"k": b"2"}
    with pytest.raises(BatchError, match="is gone"):
        shard(tmp_path, 2, 0, first)
    left = {layout.state_generation(info.name) for info in store.list(layout.state_prefix("c", TABLE))}
    assert left == {(2, 0)}


def test_a_shard_that_cannot_be_purged_or_cleaned_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_two_batches(tmp_path, 0, 0, b"before a TRUNCATE")
    versions = ShardVersions(generation=1, buckets=[in_two_batches(tmp_path, 1, bucket, b"k")[1] for bucket in range(3)])
    store = open_store(pipeline(tmp_path).bucket)
    cleanup = maintain.cleanup
    cleaned = []

    def purge(_: Any, task: maintain.Task, *__: Any) -> Purged:
        if task.bucket == 0:
            raise BatchError("odd", operation="purge", obj=task.uri)
        return Purged(upsert(task.uri, task.version, 3, in_batches([Record(b"k", b"", None)]), store, task.lease), 0)

    def clean(uri: str, *args: Any, **kwargs: Any) -> int:
        if uri.endswith("1"):
            raise OSError("odd")
        cleaned.append(uri[-1])
        return cleanup(uri, *args, **kwargs)

    monkeypatch.setattr(maintain, "cleanup", clean)
    after = maintained_in_part(tmp_path, monkeypatch, sealed(2, versions, None), purge).state[TABLE].buckets
    assert [new == old for new, old in zip(after, versions.buckets, strict=True)] == [True, False, False]
    assert cleaned == ["0", "2"]
    assert {layout.state_generation(info.name) for info in store.list(layout.state_prefix("c", TABLE))} == {(1, 0)}


def test_a_failure_that_passes_is_no_reason_to_go_on_without_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def purge(*_: Any) -> Purged:
        raise BatchError("try again", operation="purge", obj="a shard", retriable=True)

    with pytest.raises(BatchError, match="try again"):
        maintained(tmp_path, monkeypatch, sealed(2, ShardVersions(buckets=[3]), None), purge)
