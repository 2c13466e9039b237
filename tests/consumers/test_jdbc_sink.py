"""Debezium's JDBC sink in a worker of Kafka Connect, with the settings of docs/consumers.md, into PostgreSQL."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from spark_jobs.sinks.kafka import ensure_topics, mark_complete
from tests.consumers.conftest import Publish, block
from tests.events.test_envelope import ABOUT, kinds
from tests.events.test_serialization import changed, stored
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_kafka import messages
from tools.services.connect import Connect
from tools.services.postgres import Postgres
from tools.verify import FACTS
from writetime.config.kafka import KafkaConfig
from writetime.events.envelope import Shape
from writetime.events.serialization import JsonSchema, form_of

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.thorough]


def settings(page: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block(page, "properties").splitlines())


def ends(kafka: KafkaConfig, topic: str) -> dict[int, int]:
    """Offset after the last event of each partition. What follows it, a transaction's end and what the filter
    drops, has an offset too, which no sink commits."""
    found = dict.fromkeys(range(kafka.partitions), 0)
    for message in messages(kafka, topic):
        if message.value() is not None:
            found[message.partition() or 0] = (message.offset() or 0) + 1
    return found


def drained(connect: Connect, kafka: KafkaConfig, topic: str) -> None:
    """Wait until the sink has written the whole topic."""
    wanted, deadline = ends(kafka, topic), time.monotonic() + 120
    group = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"connect-{connect.connector['name']}"})
    while True:
        committed = group.committed([TopicPartition(topic, number) for number in wanted], timeout=20)
        if all(at.offset >= wanted[at.partition] or not wanted[at.partition] for at in committed):
            break
        assert time.monotonic() < deadline, (wanted, committed, connect.tasks())
        assert all(task["state"] == "RUNNING" for task in connect.tasks()), connect.tasks()
        time.sleep(0.5)
    group.close()


def truncated(kafka: KafkaConfig) -> str:
    """The topic of a table that was truncated between two rows, in one partition, with a marker at its end."""
    topic, columns = f"{kafka.topic_prefix}.shop.truncated", kinds(id="int", v="text")
    schema = stored(columns)
    shape = Shape(kinds(id="int"), columns, schema, form=form_of("json-schema", "string", "adaptive"), required=kinds(id="int"))
    codec = JsonSchema(shape, topic, wide=False)
    before, after = {"id": 1, "v": "before"}, {"id": 2, "v": "after"}
    ensure_topics(kafka, [topic])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for row in (
        changed(schema, None, before, op="c", key={"id": 1}),
        changed(schema, None, None, op="t", reason="truncate", key=None),
        changed(schema, None, after, op="c", key={"id": 2}),
    ):
        producer.produce(topic, key=codec.key(shape.key(row)), value=codec.value(shape.value(row, ABOUT)), partition=0)
    assert producer.flush(30) == 0
    mark_complete(kafka, [topic], 1)
    return topic


def test_its_table_equals_the_warehouses(warehouse: Pipeline, published: Publish, page: str, postgres: Postgres, tmp_path: Path) -> None:
    kafka = published(**{"format": "json-schema", "time.precision.mode": "adaptive"})
    topic, emptied = f"{kafka.topic_prefix}.shop.customers", truncated(kafka)
    postgres.sql(block(page, "sql"))
    own = {"topics": f"{topic},{emptied}", "connection.url": postgres.url}
    connector = settings(page) | own | {"truncate.enabled": "true"}
    with Connect(tmp_path / "connect", kafka.bootstrap_servers, connector, {"SHOP_PASSWORD": "any"}) as connect:
        drained(connect, kafka, topic)
        drained(connect, kafka, emptied)
    name = topic.replace(".", "_")
    found, types = postgres.rows(name), postgres.types(name)
    left = postgres.rows(emptied.replace(".", "_"))
    assert left == [{"id": 2, "v": "after"}]
    expected = [comparable(row) for row in warehouse.rows("shop", "customers")]
    assert len(found) == len(expected) == 77
    assert [row for row in expected if row not in found] == [], found[:2]
    assert [types[name] for name in ("created_at", "points", "phones")] == ["timestamp", "int8", "_text"]


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the warehouse as PostgreSQL's JSON shows it."""
    at: datetime | None = row["created_at"]
    shown = None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00").rstrip("0").rstrip(".")
    preferences = None if row["preferences"] is None else dict(row["preferences"])
    return {name: row[name] for name in row if name not in FACTS} | {"created_at": shown, "preferences": preferences}
