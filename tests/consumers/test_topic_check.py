"""`cdc_verify` with topics: the last record of each key is the row of the table, and where it is not, it is named;
with a real broker."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from spark_jobs import verify
from spark_jobs.session import spark_session
from spark_jobs.sinks.schema_registry import Registry
from spark_jobs.topic_check import AvroReader, TopicChecks, _canonical
from tests.consumers.conftest import Publish
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_kafka import consume
from writetime.config.kafka import KafkaConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError
from writetime.events.avro import without_calendar
from writetime.pipeline.publish_progress import Published, read_published, write_published
from writetime.pipeline.segment_check import known_schema
from writetime.pipeline.verification import TopicResult, report_text

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.thorough]

TABLE = "shop.customers"


@pytest.fixture
def spark(warehouse: Pipeline) -> Iterator[SparkSession]:
    session = spark_session(warehouse.config, "topics")
    yield session
    session.stop()


def config_of(warehouse: Pipeline, kafka: KafkaConfig, **update: Any) -> PipelineConfig:
    config: PipelineConfig = warehouse.config.model_copy(update={"kafka": kafka, **update})
    return config


def checked(warehouse: Pipeline, spark: SparkSession, kafka: KafkaConfig, *names: str, **about: Any) -> dict[str, TopicResult]:
    """The results by table; `names`: default all captured tables."""
    schema = known_schema(warehouse.store, warehouse.cluster).schema()
    wanted = names or tuple(f"{keyspace}.{table}" for keyspace, table in warehouse.recording.cdc_tables)
    tables = [table for table in schema.tables.values() if not table.dropped and table.full_name in wanted]
    checks = TopicChecks(config_of(warehouse, kafka), spark, schema, about.get("share", 1.0), 0, values=about.get("values", True))
    return {result.table: result for result in checks.results(tables)}


def records(kafka: KafkaConfig, topic: str) -> dict[bytes, bytes]:
    """The last record of each key that has a row."""
    found = {key: value for _, key, value in consume(kafka, topic) if key is not None}
    return {key: value for key, value in found.items() if value is not None and payload(kafka, value)["after"] is not None}


def payload(kafka: KafkaConfig, raw: bytes) -> dict[str, Any]:
    if kafka.format == "avro":
        return AvroReader(Registry(kafka).schema)(raw)
    document: dict[str, Any] = json.loads(raw)
    return document.get("payload", document)


def with_one_point_more(kafka: KafkaConfig, value: bytes) -> bytes:
    """The record as somebody else would have altered it."""
    event = payload(kafka, value)
    event["after"]["points"] = (event["after"]["points"] or 0) + 1
    if kafka.format != "avro":
        document = json.loads(value)
        return json.dumps({**document, "payload": event} if "payload" in document else event).encode()
    out = io.BytesIO()
    fastavro.schemaless_writer(out, without_calendar(Registry(kafka).schema(int.from_bytes(value[1:5], "big"))), event)
    return value[:5] + out.getvalue()


def send(kafka: KafkaConfig, topic: str, key: bytes, value: bytes | None, partition: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0


def partition_of(kafka: KafkaConfig, topic: str, key: bytes) -> int:
    return next(message[0] for message in reversed(consume(kafka, topic)) if message[1] == key)


@pytest.mark.parametrize(
    "options",
    [
        {"format": "json"},
        {"format": "json-schema", "decimal.handling.mode": "precise", "time.precision.mode": "microseconds"},
        {"format": "avro"},
        {"format": "avro", "decimal.handling.mode": "precise"},
    ],
    ids=["json", "json-schema", "avro", "avro, precise"],
)
def test_a_record_taken_away_and_one_altered_are_found(
    warehouse: Pipeline, published: Publish, spark: SparkSession, schema_registry: str, options: dict[str, Any]
) -> None:
    kafka = published(**options, **({"schema.registry.url": schema_registry} if options["format"] == "avro" else {}))
    equal = checked(warehouse, spark, kafka)
    assert len(equal) == len(warehouse.recording.cdc_tables)
    assert {name: (result.trouble, result.findings) for name, result in equal.items()} == dict.fromkeys(equal, ("", []))
    assert equal[TABLE].keys >= len(warehouse.rows("shop", "customers")) == 77

    topic = f"{kafka.topic_prefix}.{TABLE}"
    (gone, _), (altered, value), *_ = sorted(records(kafka, topic).items())
    send(kafka, topic, gone, None, partition_of(kafka, topic, gone))
    send(kafka, topic, altered, with_one_point_more(kafka, value), partition_of(kafka, topic, altered))
    found = checked(warehouse, spark, kafka, TABLE)[TABLE]
    assert (found.drift, found.unsettled, found.keys) == (2, 0, equal[TABLE].keys)
    by_key = {json.dumps(json.loads(each.key), sort_keys=True): each for each in found.findings}
    missing, changed = (by_key[_canonical(payload(kafka, key))] for key in (gone, altered))
    assert (missing.kind, missing.in_topic, missing.in_table is not None) == ("record missing", None, True)
    assert (changed.kind, changed.columns) == ("value", ["points"])
    assert changed.in_topic["points"] == changed.in_table.get("points", 0) + 1

    # A sample has its share of the keys, and the same of both sides.
    part = checked(warehouse, spark, kafka, TABLE, share=0.5, values=False)[TABLE]
    assert 0.25 * found.keys < part.keys < 0.75 * found.keys
    assert all(each.in_topic is None and each.in_table is None for each in part.findings)
    assert {each.key for each in part.findings} <= {each.key for each in found.findings}


def test_events_that_are_not_published_yet_are_no_drift(warehouse: Pipeline, published: Publish, spark: SparkSession) -> None:
    kafka = published(format="json")
    topic = f"{kafka.topic_prefix}.{TABLE}"
    (gone, _), *_ = sorted(records(kafka, topic).items())
    send(kafka, topic, gone, None, partition_of(kafka, topic, gone))
    known = read_published(warehouse.store, warehouse.cluster)
    assert known is not None
    write_published(warehouse.store, warehouse.cluster, Published(batch=0, events=0))
    try:
        found = checked(warehouse, spark, kafka, TABLE)[TABLE]
    finally:
        write_published(warehouse.store, warehouse.cluster, known)
    assert (found.drift, found.unsettled) == (0, 1)
    assert checked(warehouse, spark, kafka, TABLE)[TABLE].drift == 1


def test_the_job_compares_topics_without_a_cluster_and_says_what_it_cannot(warehouse: Pipeline, published: Publish) -> None:
    kafka = published(format="json")
    config = config_of(warehouse, kafka)
    assert config.cluster.cql is None
    report = verify.run(config, verify.Options(tables=[TABLE], topics=True))
    assert (report.ok, [each.topic for each in report.topics], report.tables) == (True, [f"{kafka.topic_prefix}.{TABLE}"], [])
    assert "equal" in report_text(report)
    for update, why in (
        ({"events": config.events.model_copy(update={"deletes": "one"})}, "`events.deletes: one`"),
        ({"kafka": kafka.model_copy(update={"skipped_operations": ["u", "t"]})}, "leaves out u"),
        ({"kafka": kafka.model_copy(update={"topic_prefix": "nobody"})}, "Unknown topic"),
    ):
        failed = verify.run(config.model_copy(update=update), verify.Options(tables=[TABLE], topics=True))
        assert not failed.ok
        assert why in failed.topics[0].trouble
    with pytest.raises(ConfigError, match="`kafka` is missing"):
        verify.run(config.model_copy(update={"kafka": None}), verify.Options(topics=True))
