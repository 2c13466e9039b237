"""A bucket, a warehouse and topics as the version before identities and pins left them: gone on with, and
nothing is sent twice."""

from __future__ import annotations

import json
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import publish
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.kafka import _OWNER_KEY, Position, read_progress
from tests.spark_jobs.synthetic import CLUSTER, Ring, delete_partition, folded, insert, update
from tests.spark_jobs.test_kafka import consume
from tools import ROOT
from writetime.config.kafka import KafkaConfig
from writetime.config.pipeline import PipelineConfig
from writetime.events.naming import progress_topic
from writetime.pipeline.archiver import archive
from writetime.pipeline.planner import read_manifest
from writetime.pipeline.publish_progress import Published, read_published
from writetime.storage import layout

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900), pytest.mark.thorough]


def as_before(ring: Ring, kafka: KafkaConfig) -> None:
    """Take away what the version before did not write."""
    for what in ("config", "absent", "verdicts", "archiver"):
        ring.store.delete(layout.batch_object(CLUSTER, 1, what))
    ring.store.delete(layout.owner(CLUSTER))
    note = json.loads(ring.store.read(layout.published(CLUSTER)))
    ring.store.put(layout.published(CLUSTER), json.dumps({key: value for key, value in note.items() if key != "id"}).encode())
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(kafka.publishers):
        producer.produce(progress_topic(kafka.topic_prefix), key=_OWNER_KEY, value=None, partition=number)
    assert producer.flush(30) == 0


def test_what_the_version_before_made_is_adopted(tmp_path: Path, kafka_broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a")
    kafka = KafkaConfig.model_validate({"bootstrap.servers": kafka_broker, "topic.prefix": f"t{uuid.uuid4().hex[:8]}"})
    config: PipelineConfig = ring.config.model_copy(update={"kafka": kafka})
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    manifest = ring.plan(100)
    ring.store.put(layout.batch_object(CLUSTER, 1, "manifest"), manifest.model_dump_json(exclude={"id"}).encode())
    with monkeypatch.context() as patch:
        patch.setattr(Warehouse, "_claim", lambda _: {})
        ring.run(read_manifest(ring.store, CLUSTER, 1))
    sent = publish.run(config).events
    topic = f"{kafka.topic_prefix}.shop.orders"
    assert len(consume(kafka, topic)) == 1
    as_before(ring, kafka)
    held = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}").load_table("shop.orders")
    assert "writetime.pipeline" not in held.properties
    assert "writetime.batch-id" not in held.metadata.snapshots[-1].summary.additional_properties  # type: ignore[union-attr]

    assert (sent > 0, publish.run(config, everything=True).events) == (True, 0)
    ring.write(insert(2, 1, 110, name=2))
    ring.finish_and_ship(120)
    ring.run(ring.plan(200))
    assert publish.run(config).events == 1
    assert len(consume(kafka, topic)) == 2
    assert ring.current() == {(1, 1): {"name": 1}, (2, 1): {"name": 2}}
    made = read_manifest(ring.store, CLUSTER, 2).id
    published = read_published(ring.store, CLUSTER)
    assert published is not None
    assert published.model_copy(update={"costs": []}) == Published(batch=2, events=1, id=made)
    reached = [read_progress(kafka, number).get(topic) for number in range(kafka.publishers)]
    assert Position(2, 1, str(made)) in reached
    held = held.refresh()
    assert json.loads(held.properties["writetime.pipeline"])["cluster"] == CLUSTER
    assert held.metadata.snapshots[-1].summary["writetime.batch-id"] == str(made)  # type: ignore[index]


RECORDED = ROOT / "tests" / "recordings" / "version-0.1.0" / "pipeline.tar.xz"
PLACE = Path("/tmp/writetime-0.1.0")
"""Iceberg metadata of the recording names this folder."""


@pytest.fixture
def recorded() -> Iterator[Ring]:
    """The pipeline that 0.1.0 left, with this version's configuration; two nodes that go on with their third
    segments."""
    shutil.rmtree(PLACE, ignore_errors=True)
    ring = Ring.create(PLACE)
    with tarfile.open(RECORDED) as archive:
        archive.extractall(PLACE.parent, filter="data")
    for host in ("a", "b"):
        ring.join(host).segment = 3
    yield ring
    shutil.rmtree(PLACE)


def test_bucket_state_and_warehouse_that_0_1_0_wrote_are_taken_over(recorded: Ring) -> None:
    rows: dict[tuple[int, int], dict[str, int]] = {
        (1, 1): {"note": 3, "name": 1, "amount": 8},
        (2, 1): {"name": 5},
        (3, 1): {"name": 6},
        (4, 1): {"name": 9},
    }
    assert recorded.current() == rows == folded(recorded.events())
    archive(recorded.store, CLUSTER, 2)
    recorded.write(update(1, 1, 210, name=11))
    # A late copy of what batch 2 had from one node is not told again.
    recorded.write(insert(4, 1, 112, name=9), "b")
    recorded.write(delete_partition(3, 211))
    recorded.finish_and_ship(220)
    sealed = recorded.run(recorded.plan(300))
    assert (sealed.number, sealed.events) == (3, 2)
    (changed,) = [event for event in recorded.events(3) if event["op"] == "u"]
    assert (changed["before"]["amount"], changed["before"]["name"], changed["after"]["name"]) == (8, 1, 11)
    del rows[3, 1]
    rows[1, 1] = {"note": 3, "name": 11, "amount": 8}
    assert recorded.current() == rows == folded(recorded.events())
    assert read_manifest(recorded.store, CLUSTER, 3).base == 2
