"""More shards for a table that is there: every record is in its bucket afterwards, once, whatever dies on the way; and
batches go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import maintain
from spark_jobs.maintain import Purged
from spark_jobs.stages.scan import key_bucket
from spark_jobs.state.shards import Record, Shard, in_batches, shards_of, upsert
from tests.cassandra.merge.join_oracle import WITH_STATICS, i32
from tests.spark_jobs import test_horizon
from tests.spark_jobs.pipeline import Pipeline
from tools import verify
from writetime.cassandra.types.byte_comparable import record_key, split_record_key
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, LeaseLost
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Sealed, ShardVersions
from writetime.pipeline.planner import plan_ingest, plan_maintain, read_sealed
from writetime.storage import layout, open_store

TABLE = test_horizon.TABLE
Stored = dict[bytes, tuple[bytes, int | None]]


def stored(config: PipelineConfig, sealed: Sealed) -> list[Stored]:
    """The records of each shard that the seal names."""
    found = []
    for uri, version in shards_of(config, sealed, WITH_STATICS.id):
        rows = [row for batch in Shard(uri, version).stored(lambda _: True) for row in batch.to_pylist()]
        found.append({row["key"]: (row["state"], row["expires_at"]) for row in rows})
        assert len(found[-1]) == len(rows)
    return found


def filled(folder: Path, before: int, records: int = 200) -> tuple[ShardVersions, Stored]:
    """A table's state in so many buckets, and all of its records."""
    config = test_horizon.pipeline(folder)
    store = open_store(config.bucket)
    of_bucket: list[list[Record]] = [[] for _ in range(before)]
    for number in range(records):
        pk = i32(number // 3)
        record = Record(record_key(pk) + b"%d" % number, b"state %d" % number, number + 5 if number % 2 else None)
        of_bucket[key_bucket(split_record_key(record.key)[0], before)].append(record)
    versions = []
    for bucket, some in enumerate(of_bucket):
        place = "c", TABLE, 2, bucket
        written = upsert(config.state_url(layout.state_shard(*place)), 0, 1, in_batches(some), store, layout.state_lease(*place))
        versions.append(written.version)
    return ShardVersions(generation=2, buckets=versions), {r.key: (r.state, r.expires_at) for some in of_bucket for r in some}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], PipelineConfig]:
    """Lets maintenance run with so many buckets."""
    plain = test_horizon.pipeline

    def raised(buckets: int) -> PipelineConfig:
        changed = plain(tmp_path).model_copy(update={"buckets": buckets})
        monkeypatch.setattr(test_horizon, "pipeline", lambda _: changed)
        return changed

    return raised


def is_distributed(found: list[Stored], of: int) -> bool:
    return all(key_bucket(split_record_key(key)[0], of) == bucket for bucket, some in enumerate(found) for key in some)


@pytest.mark.parametrize(("before", "of"), [(1, 4), (2, 6), (3, 4), (4, 4), (4, 2)])
def test_every_record_is_in_its_bucket_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Callable[[int], PipelineConfig], before: int, of: int
) -> None:
    versions, records = filled(tmp_path, before)
    raised = config(of)
    after = test_horizon.maintained(tmp_path, monkeypatch, test_horizon.sealed(1, versions, None), None)
    found, buckets = stored(raised, after), max(before, of)
    assert len(after.state[TABLE].buckets) == len(found) == buckets
    assert {key: value for some in found for key, value in some.items()} == records
    assert sum(map(len, found)) == len(records)
    assert is_distributed(found, buckets)
    assert after.state[TABLE].generation == 2
    if of > before:
        expiries = [min((at for _, at in some.values() if at is not None), default=None) for some in found]
        assert after.state[TABLE].expires == expiries


@pytest.mark.parametrize("died_at", [0, 1, 3])
def test_a_batch_that_dies_between_shards_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Callable[[int], PipelineConfig], died_at: int
) -> None:
    versions, records = filled(tmp_path, 1)
    raised, base, real, seen = config(4), test_horizon.sealed(1, versions, None), maintain.fill_shard, list[int]()

    def purge(_: Any, task: maintain.Task, *__: Any) -> Purged:
        key = next(iter(records))
        return Purged(upsert(task.uri, task.version, 2, in_batches([Record(key, b"", None)]), open_store(raised.bucket), task.lease), 0)

    def dies(store: Any, task: maintain.Filling, batch: int) -> Any:
        if task.bucket == died_at:
            raise LeaseLost("gone", operation="write a state shard", obj=task.uri)
        seen.append(task.bucket)
        return real(store, task, batch)

    monkeypatch.setattr(maintain, "fill_shard", dies)
    with pytest.raises(LeaseLost):
        test_horizon.maintained(tmp_path, monkeypatch, base, purge)
    assert read_sealed(open_store(raised.bucket), "c", 2) is None
    # What the batch starts from is as it was.
    assert stored(raised, base) == [records]
    assert seen == list(range(died_at))
    monkeypatch.setattr(maintain, "fill_shard", real)
    found = stored(raised, test_horizon.maintained(tmp_path, monkeypatch, base, purge))
    records.pop(next(iter(records)))
    assert {key: value for some in found for key, value in some.items()} == records
    assert is_distributed(found, 4)


def test_a_table_of_which_it_fails_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Callable[[int], PipelineConfig]
) -> None:
    versions, records = filled(tmp_path, 1)
    raised, real = config(4), maintain.fill_shard

    def fails(store: Any, task: maintain.Filling, batch: int) -> Any:
        if task.bucket == 2:
            raise BatchError("odd", operation="write a state shard", obj=task.uri)
        return real(store, task, batch)

    monkeypatch.setattr(maintain, "fill_shard", fails)
    after = test_horizon.maintained_in_part(tmp_path, monkeypatch, test_horizon.sealed(1, versions, None), None)
    assert (after.state[TABLE].buckets, after.state[TABLE].of) == (versions.buckets, None)
    assert stored(raised, after) == [records]


def test_the_shards_before_are_removed_when_no_batch_starts_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Callable[[int], PipelineConfig]
) -> None:
    versions, records = filled(tmp_path, 2)
    raised = config(4)
    store = open_store(raised.bucket)

    def generations() -> set[tuple[int, int]]:
        return {layout.state_generation(each.name) for each in store.names(layout.state_prefix("c", TABLE))}

    second = test_horizon.maintained(tmp_path, monkeypatch, test_horizon.sealed(1, versions, None), None)
    assert generations() == {(2, 0), (2, 4)}
    third = test_horizon.maintained(tmp_path, monkeypatch, second, None)
    assert generations() == {(2, 4)}
    assert {key: value for some in stored(raised, third) for key, value in some.items()} == records


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_tables_equal_the_cluster_with_more_buckets_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline.create(tmp_path)
    pipeline.stage()
    pipeline.ship()
    pipeline.run(manifest := plan_ingest(pipeline.store, pipeline.cluster, now=datetime.now(UTC), max_segments=3))  # type: ignore[arg-type]
    assert manifest is not None
    archive(pipeline.store, pipeline.cluster, manifest.number)
    pipeline = replace(pipeline, config=pipeline.config.model_copy(update={"buckets": 5}))
    planned = plan_maintain(pipeline.store, pipeline.cluster, now=datetime.now(UTC))
    assert planned is not None
    real, died = maintain.seal, list[int]()

    def dies_once(*arguments: Any) -> Any:
        if not died:
            died.append(1)
            raise BatchError("died", operation="seal", obj="2")
        return real(*arguments)

    monkeypatch.setattr(maintain, "seal", dies_once)
    with pytest.raises(BatchError, match="died"):
        maintain.run(pipeline.config, planned.number)
    sealed = maintain.run(pipeline.config, planned.number)
    assert {len(versions.buckets) for versions in sealed.state.values()} == {5}
    pipeline.batches(3)
    for keyspace, table in pipeline.recording.cdc_tables:
        expected = verify.expected_rows(pipeline.recording, keyspace, table)
        found = [verify.as_recorded(row) for row in pipeline.rows(keyspace, table)]
        assert verify.differences(table, expected, found) == []
