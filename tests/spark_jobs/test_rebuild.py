"""`writetime rebuild` with real Spark: what lies in the archive gives the recorded ring's answer again."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from proof.orders import Order, Orders
from spark_jobs import ingest, publish, rebuild
from spark_jobs.sinks.iceberg import Warehouse
from tests.pipeline.test_rebuild import NEXT
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.synthetic import CLUSTER, START, Ring, delete_row, folded, insert, update
from tests.spark_jobs.test_kafka import consume
from writetime import cli
from writetime.config.kafka import KafkaConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchBusy, BatchError
from writetime.events.envelope import place_of
from writetime.pipeline import chains
from writetime.pipeline.planner import history, read_manifest
from writetime.storage import layout

pytestmark = [pytest.mark.spark, pytest.mark.drivers, pytest.mark.timeout(900), pytest.mark.thorough]


def lose(bucket: Path, *folders: str) -> None:
    for folder in folders:
        shutil.rmtree(bucket / folder)


def flip(path: Path) -> None:
    """Another byte in the middle, and all else of the file as it was."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_tables_come_back(tmp_path: Path) -> None:
    orders = Orders(tmp_path, segments=2)
    made = Pipeline.create(tmp_path / "site")
    pipeline = replace(made, config=made.config.model_copy(update={"kafka": None}))
    pipeline.stage()
    pipeline.ship()
    while pipeline.store and any(True for _ in pipeline.store.list(layout.incoming_prefix(pipeline.cluster))):
        last = pipeline.batch()
    bucket = Path(pipeline.config.bucket)
    lose(bucket, "batches", "state")
    shutil.rmtree(pipeline.site.catalog.parent)
    pipeline.site.catalog.parent.mkdir()
    with pytest.raises(BatchError, match="writetime rebuild"):
        pipeline.plan()

    victim = next(iter(pipeline.store.list(layout.archive_prefix(pipeline.cluster))))
    kept = (bucket / victim.name).read_bytes()
    flip(bucket / victim.name)
    with pytest.raises(BatchError, match=victim.name):
        rebuild.run(pipeline.config)
    (bucket / victim.name).write_bytes(kept)

    done = rebuild.run(pipeline.config)
    assert (done.chain.first, done.chain.upto) == (last.number + NEXT, last.number + NEXT)
    order = Order(0)
    orders._compare(pipeline, order)
    assert order.problems == []
    assert sum(map(len, order.current.values())) > 0


# --- a made-up ring


def with_kafka(ring: Ring, broker: str, prefix: str) -> PipelineConfig:
    kafka = KafkaConfig.model_validate({"bootstrap.servers": broker, "topic.prefix": prefix, "include.schema.changes": False})
    ring.config = ring.config.model_copy(update={"kafka": kafka})
    return ring.config


def sequences(config: PipelineConfig) -> list[tuple[int, int]]:
    """(batch, ordinal) of all events on the topic of orders."""
    assert config.kafka is not None
    found = consume(config.kafka, f"{config.kafka.topic_prefix}.shop.orders")
    return sorted(place_of(json.loads(value)) for _, _, value in found if value is not None)


def shipped(ring: Ring, *bodies: bytes, at: float) -> None:
    for body in bodies:
        ring.write(body)
    ring.finish_and_ship(at)


@contextmanager
def dies_after(monkeypatch: pytest.MonkeyPatch, calls: int, of: type, step: str) -> Iterator[None]:
    """The rebuild's driver ends just before the step, when it has been taken so many times."""

    class Death(BaseException):
        pass

    left, real = [calls], getattr(of, step)

    def die(*arguments: Any) -> Any:
        if not left[0]:
            raise Death
        left[0] -= 1
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(of, step, die)
        with pytest.raises(Death):
            yield


@pytest.mark.advice(
    "Run `writetime rebuild`, after which later events go on; or put it back as it was;",
    "Run `writetime rebuild`, which makes state and tables again from the archive;",
)
def test_a_restored_backup_is_rebuilt_and_nothing_is_sent_twice(tmp_path: Path, kafka_broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a")
    config = with_kafka(ring, kafka_broker, f"t{uuid.uuid4().hex[:8]}")
    bucket = tmp_path / "bucket"
    shipped(ring, insert(1, 1, 1, name=1), insert(2, 1, 2, name=2), at=10)
    ring.batch(20)
    shutil.copytree(bucket / "batches", tmp_path / "backup")
    shipped(ring, update(1, 1, 31, name=3), at=40)
    ring.batch(50)
    assert publish.run(config).events == 3
    shipped(ring, delete_row(2, 1, 61), insert(3, 1, 62, name=4), at=70)
    ring.batch(80)
    before = sequences(config)
    assert [batch for batch, _ in before] == [1, 1, 2]

    lose(bucket, "batches")
    shutil.copytree(tmp_path / "backup", bucket / "batches")
    shipped(ring, insert(4, 1, 91, name=5), at=100)
    manifest = ring.plan(110)
    with pytest.raises(BatchError, match=r"another chain of batches.*writetime rebuild"):
        ring.run(manifest)

    config = ring.config.model_copy(update={"segments_per_batch": 1})
    # Once between the rows and the note whose they are, once in the batch after that.
    with dies_after(monkeypatch, 1, Warehouse, "_take_over"):
        rebuild.run(config)
    with dies_after(monkeypatch, 1, ingest.Batch, "_commit_current"):
        rebuild.run(config)
    under_way = chains.unfinished(ring.store, CLUSTER)
    assert under_way is not None
    first = under_way.chain.first
    assert (first, under_way.published, under_way.sealed) == (3 + NEXT, 2, 1)
    with pytest.raises(BatchBusy, match="a rebuild is under way"):
        ring.plan(120)
    assert publish.run(config).events == 0

    done = rebuild.run(config)
    assert (done.chain.first, done.chain.upto, done.segments) == (first, first + 2, 3)
    assert ring.current() == {(1, 1): {"name": 3}, (3, 1): {"name": 4}}
    assert folded(ring.events()) == ring.current()
    assert min(event["batch"] for event in ring.events()) == first
    assert [publish.run(config).events, publish.run(config, everything=True).events] == [0, 0]
    assert sequences(config) == before

    ring.batch(130)
    assert ring.current() == {(1, 1): {"name": 3}, (3, 1): {"name": 4}, (4, 1): {"name": 5}}
    assert [publish.run(config).events, publish.run(config, everything=True).events] == [1, 0]
    assert sequences(config) == [*before, (first + 3, 1)]
    later = read_manifest(ring.store, CLUSTER, first + 3).chain
    assert later is not None
    assert (later.id, later.upto) == (done.chain.id, first + 2)


def test_all_events_again_under_another_prefix(tmp_path: Path, kafka_broker: str) -> None:
    ring = Ring.create(tmp_path, "a")
    prefix = f"t{uuid.uuid4().hex[:8]}"
    config = with_kafka(ring, kafka_broker, prefix)
    shipped(ring, insert(1, 1, 1, name=1), at=10)
    ring.batch(20)
    shipped(ring, update(1, 1, 31, name=2), at=40)
    ring.batch(50)
    assert publish.run(config).events == 2
    lose(tmp_path / "bucket", "batches", "state")

    done = rebuild.run(config, topics=f"{prefix}-again")
    first = 2 + NEXT
    assert (done.chain.first, done.chain.upto, done.waiting) == (first, first, {})
    assert [batch for batch, _ in sequences(config)] == [1, 2]
    again = with_kafka(ring, kafka_broker, f"{prefix}-again")
    assert [batch for batch, _ in sequences(again)] == [first, first]

    shipped(ring, insert(2, 1, 61, name=3), at=70)
    ring.batch(80)
    assert publish.run(again).events == 1
    assert publish.run(again, everything=True).events == 0
    assert [batch for batch, _ in sequences(again)] == [first, first, first + 1]
    assert [batch for batch, _ in sequences(config)] == [1, 2]


def command(ring: Ring, *options: str) -> int:
    """What `writetime rebuild` ends with."""
    return cli.main(["rebuild", "--config", str(ring.folder / "pipeline.yaml"), *options])


def test_an_archive_that_lacks_something_is_named_or_left_out_and_flagged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.finish_and_ship(5)
    ring.batch(8)
    shipped(ring, insert(1, 1, 9, name=1), at=10)
    ring.batch(20)
    shipped(ring, insert(2, 1, 31, name=2), at=7500)
    ring.batch(7600)
    _, second, third = [info.name for info in ring.store.list(layout.archive_prefix(CLUSTER))]
    ring.store.delete(second)
    ring.store.delete(third)
    assert command(ring, "--yes") == 1
    shown = capsys.readouterr().err
    assert re.search("2 segments are missing: .*CommitLog-7-2.log, .*CommitLog-7-3.log", shown)
    assert "--partial" in shown
    assert chains.current(ring.store, CLUSTER) is None

    assert command(ring, "--partial", "--yes") == 0
    shown = capsys.readouterr().out
    assert f"rebuilt from 1 archived segments: batches {3 + NEXT} to {3 + NEXT}\nincomplete: 2 segments were missing" in shown
    done = chains.current(ring.store, CLUSTER)
    assert done is not None
    assert (done.lacking, done.chain.partial, done.missing) == (2, True, [second, third])
    assert (ring.current(), ring.events()) == ({}, [])
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
    assert catalog.load_table("shop.orders").properties["writetime.incomplete"] == "true"
    last = history(ring.store, CLUSTER).sealed
    assert last is not None
    assert last.kept_from == int(START.timestamp()) + 3 * 3600
    assert command(ring, "--topics", "again", "--yes") == 2
    assert "`kafka` is missing" in capsys.readouterr().err
    shipped(ring, insert(3, 1, 7700, name=3), at=7800)
    ring.batch(7900)
    assert ring.current() == {(3, 1): {"name": 3}}
