"""From changes tables to topics, with real Spark, Iceberg and Kafka."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import murmur2

from spark_jobs import publish
from spark_jobs.meter import Meter
from spark_jobs.publish import Outbox, Part, Unsent, parts
from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.kafka import Publisher
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.examples import NOW, THEN, insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import events
from tests.spark_jobs.test_kafka import consume
from writetime.cassandra.schema.fingerprint import schema_version
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Table
from writetime.config.kafka import KafkaConfig, PartitionBy
from writetime.events.envelope import place_of
from writetime.pipeline.documents import PartitionedFrom
from writetime.pipeline.publish_progress import Published, read_published, write_published
from writetime.storage.layout import batch_object

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

KEYS = range(1, 13)


def publishing(folder: Path, broker: str) -> tuple[Pipeline, KafkaConfig]:
    """A pipeline, and the settings by which it publishes to topics of its own."""
    pipeline = Pipeline.create(folder)
    assert pipeline.config.kafka is not None
    return pipeline, pipeline.config.kafka.model_copy(update={"bootstrap_servers": broker, "topic_prefix": f"p{uuid.uuid4().hex[:8]}"})


def knows(monkeypatch: pytest.MonkeyPatch, *tables: Table) -> SchemaLearner:
    """All batches know these tables; no manifest is there."""
    learner = SchemaLearner()
    for each in tables:
        learner.apply(create_table(each, THEN))
    monkeypatch.setattr(publish, "read_schema", lambda _, __, number: learner if number else SchemaLearner())
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(nodes={}, now=NOW, id=None))
    return learner


def share_of(publisher: int, unsent: list[Unsent]) -> list[Any]:
    """A publisher's records in sending order."""
    rows = [row for each in unsent for row in each.records().filter(f"publisher = {publisher}").collect()]
    return sorted(rows, key=lambda row: (row.batch, row.stream, row.ordinal))


def drained(outbox: Outbox, *, everything: bool = False) -> Published:
    """What is published afterwards, but for where topics end."""
    return outbox.drain(everything=everything).model_copy(update={"topics": {}})


def test_each_event_goes_out_once_whatever_died_and_was_renamed(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, kafka = publishing(tmp_path_factory.mktemp("publish"), kafka_broker)
    assert kafka.publishers == 2
    before = table("sold", 50, {"id": "int", "v": "int"})
    columns = {"key": replace(before.columns["id"], name="key"), "v": before.columns["v"]}
    after = replace(before, columns=columns)
    learner = knows(monkeypatch, before)
    kafka = kafka.model_copy(update={"heartbeat_interval_ms": 3_600_000})
    pipeline.store.put(batch_object(pipeline.cluster, 1, "schema"), learner.to_json().encode())
    spark = spark_session(pipeline.config, "tests of publishing")
    try:
        warehouse = Warehouse(spark, "lake")

        def outbox(batch: int) -> Outbox:
            of = before if batch < 3 else after
            schema = schema_of(of)
            told = events(spark, [insert(of, key, {"v": batch}, timestamp=THEN + batch, schema=schema) for key in KEYS], schema)
            warehouse.write_changes(of, schema, told, batch)
            return Outbox(pipeline.config, kafka, pipeline.store, spark, batch, meter=Meter(spark.sparkContext, whole=False))

        # With the DDL of the table.
        assert drained(outbox(1)) == Published(batch=1, events=1 + len(KEYS))
        noted = read_published(pipeline.store, pipeline.cluster)
        assert noted is not None
        # Encoding is the table's, sending is everybody's.
        assert [(cost.stage, cost.table) for cost in noted.costs] == [("publish", ""), ("publish", "shop.sold")]
        assert all(cost.cpu_seconds > 0 for cost in noted.costs)
        # One of the publishers dies before it sends anything of the second batch; the next run is after a
        # rename.
        records, refused = outbox(2)._records(Published(batch=1, events=0), Part(2, "primary_key"))
        assert refused == {}
        share = share_of(0, records)
        ((sent),) = Publisher(kafka).send_all(share)
        assert 0 < sent.events == len(share) < len(KEYS)
        last = outbox(3)
        assert drained(last) == Published(batch=3, events=2 * len(KEYS) - len(share))
        assert drained(last, everything=True) == Published(batch=3, events=0)
        # Somebody takes away what says what the events are of: that table waits, and the run says so.
        fourth = outbox(4)
        version = schema_version(after, schema_of(after).types)
        spark.sql(f"ALTER TABLE lake.shop__changes.sold UNSET TBLPROPERTIES ('writetime.schema.{version}')")
        done = fourth.drain(everything=False)
        assert (done.batch, done.events, done.waiting, list(done.reasons)) == (4, 0, {"shop.sold": 3}, ["shop.sold"])
    finally:
        spark.stop()
    config = pipeline.config.model_copy(update={"kafka": kafka})
    noted = publish._with_heartbeat(config, kafka, pipeline.store, Published(batch=4, events=0))
    assert publish._with_heartbeat(config, kafka, pipeline.store, noted) is noted
    (beat,) = consume(kafka, f"__debezium-heartbeat.{kafka.topic_prefix}")
    assert (json.loads(beat[1]), json.loads(beat[2] or b"")) == (
        {"serverName": kafka.topic_prefix},
        {"ts_ms": noted.heartbeat, "complete_until_ms": None},
    )
    (statement,) = consume(kafka, kafka.topic_prefix)
    ddl = json.loads(statement[2] or b"")
    assert (json.loads(statement[1]), ddl["keyspace"], ddl["source"]["sequence"], ddl["ts_ms"]) == (
        {"keyspace": "shop"},
        "shop",
        [1, 1],
        NOW * 1000,
    )
    assert ddl["ddl"].startswith("CREATE TABLE shop.sold (")
    found = [(json.loads(key or b""), json.loads(value or b"")) for _, key, value in consume(kafka, f"{kafka.topic_prefix}.shop.sold")]
    sequences = Counter(place_of(value) for _, value in found)
    assert set(sequences.values()) == {1}
    assert len(sequences) == 3 * len(KEYS)
    # The record key keeps the column's first name, the row has the new one.
    for key in KEYS:
        names = {1: "id", 2: "id", 3: "key"}
        assert [value["after"] for named, value in found if named == {"id": key}] == [{names[v]: key, "v": v} for v in names]
    # Said in the topic itself too, by option, as soon as there is something to say.
    sold = f"{kafka.topic_prefix}.shop.sold"
    there = len(consume(kafka, sold))
    marking = kafka.model_copy(update={"complete_markers": True, "heartbeat_interval_ms": 1})
    noted = publish._with_heartbeat(config, marking, pipeline.store, noted)
    assert len(consume(kafka, sold)) == there
    monkeypatch.setattr(publish, "complete_in_kafka", lambda *_: datetime.fromtimestamp(NOW, UTC))
    monkeypatch.setattr(publish, "known_schema", lambda *_: learner)
    # Not while the table waits: its events may be sent again.
    waits = noted.model_copy(update={"waiting": {"shop.sold": 3}})
    publish._with_heartbeat(config, marking, pipeline.store, waits.model_copy(update={"heartbeat": 0}))
    assert len(consume(kafka, sold)) == there
    write_published(pipeline.store, pipeline.cluster, noted.model_copy(update={"heartbeat": 0}))
    publish._with_heartbeat(config, marking, pipeline.store, noted)
    assert [(key, value) for _, key, value in consume(kafka, sold)].count((None, None)) == kafka.partitions


def test_a_table_whose_events_kill_workers_does_not_hold_up_another(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, kafka = publishing(tmp_path_factory.mktemp("killed"), kafka_broker)
    killer, other = table("sold", 50, {"id": "int", "v": "int"}), table("kept", 51, {"id": "int", "v": "int"})
    schema, learner = schema_of(killer, other), knows(monkeypatch, killer, other)
    pipeline.store.put(batch_object(pipeline.cluster, 1, "schema"), learner.to_json().encode())
    reported = publish._reporting

    def dying(table_id: uuid.UUID, encode: Any) -> Any:
        def die(_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)
            yield

        return die if table_id == killer.id else reported(table_id, encode)

    spark = spark_session(pipeline.config, "tests of publishing")
    try:
        for of in (killer, other):
            told = events(spark, [insert(of, key, {"v": 1}, schema=schema) for key in KEYS], schema)
            Warehouse(spark, "lake").write_changes(of, schema, told, 1)

        def drained() -> Published:
            return Outbox(pipeline.config, kafka, pipeline.store, spark, 1).drain(everything=False)

        with monkeypatch.context() as patch:
            patch.setattr(publish, "_reporting", dying)
            assert drained().waiting == {"shop.sold": 0}
        topics = [f"{kafka.topic_prefix}.shop.{name}" for name in ("sold", "kept")]
        assert [len(consume(kafka, topic)) for topic in topics] == [0, len(KEYS)]
        assert drained().waiting == {}
        assert [len(consume(kafka, topic)) for topic in topics] == [len(KEYS), len(KEYS)]
    finally:
        spark.stop()


def test_a_switch_to_partition_keys_loses_and_doubles_nothing_and_is_marked(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are placed by primary keys, and from batch 4 on by partition keys. A publisher was killed in batch 2."""
    pipeline, kafka = publishing(tmp_path_factory.mktemp("switch"), kafka_broker)
    lines = table("lines", 60, {"id": "int", "line": "int", "v": "int"}, clustering=1)
    schema = schema_of(lines)
    knows(monkeypatch, lines)
    spark = spark_session(pipeline.config, "tests of a switch")
    rules = [PartitionedFrom(batch=1, by="primary_key"), PartitionedFrom(batch=4, by="partition_key")]
    rows = [(key, line) for key in range(1, 7) for line in range(1, 5)]
    try:
        warehouse = Warehouse(spark, "lake")
        for batch in range(1, 6):
            made = [insert(lines, key, {"v": batch}, line, timestamp=THEN + batch, schema=schema) for key, line in rows]
            warehouse.write_changes(lines, schema, events(spark, made, schema), batch)

        def outbox(upto: int) -> Outbox:
            found = Outbox(pipeline.config, kafka, pipeline.store, spark, upto)
            found.rules = rules
            return found

        assert outbox(1).drain(everything=False).events == len(rows)
        records, _ = outbox(2)._records(Published(batch=1, events=0), Part(2, "primary_key"))
        share = share_of(0, records)
        assert 0 < len(share) < len(rows)
        list(Publisher(kafka).send_all(share))
        # It dies once more, after the marker, in a batch that is placed otherwise.
        real = Outbox._send

        def dies(self: Outbox, known: Published, part: Part) -> Published:
            found, _ = self._records(known, part)
            if part.marks is not None:
                list(Publisher(kafka).send_all(share_of(1, found)))
                raise KeyboardInterrupt
            return real(self, known, part)

        with monkeypatch.context() as patched:
            patched.setattr(Outbox, "_send", dies)
            with pytest.raises(KeyboardInterrupt):
                outbox(5).drain(everything=False)
        assert outbox(5).drain(everything=False).batch == 5
        assert outbox(5).drain(everything=True).events == 0
        # More publishers than read the files themselves leave the same records.
        sent_by_all = outbox(5)
        sent_by_all.kafka = kafka.model_copy(update={"topic_prefix": f"{kafka.topic_prefix}shuffled"})
        with monkeypatch.context() as patched:
            patched.setattr(publish, "_FEW_PUBLISHERS", 0)
            patched.setattr(Outbox, "_publisher", property(lambda self: Publisher(self.kafka)))
            assert sent_by_all.send(Published(batch=0, events=0)).events == 5 * len(rows)
    finally:
        spark.stop()
    found = [(partition, value and json.loads(value)) for partition, _, value in consume(kafka, f"{kafka.topic_prefix}.shop.lines")]
    told = [(partition, place_of(value)[0], value["after"]) for partition, value in found if value]
    assert Counter((batch, row["id"], row["line"]) for _, batch, row in told) == Counter((b, *row) for b in range(1, 6) for row in rows)
    places = {(key, partition) for partition, batch, row in told if batch >= 4 for key in (row["id"],)}
    assert places == {(key, murmur2(b"[%d]" % key, kafka.partitions)) for key in range(1, 7)}
    assert len({(row["id"], partition) for partition, batch, row in told if batch < 4}) > len(places), "primary keys before"
    for partition in range(kafka.partitions):
        of_partition = [value for at, value in found if at == partition]
        assert of_partition.count(None) == 1
        marked = of_partition.index(None)
        assert [place_of(value)[0] < 4 for value in of_partition if value] == [True] * marked + [False] * (len(of_partition) - marked - 1)


@pytest.mark.parametrize(
    ("rules", "since", "upto", "wanted"),
    [
        ([], 0, 5, [Part(5, "primary_key")]),
        ([(1, "primary_key")], 0, 5, [Part(5, "primary_key")]),
        ([(1, "partition_key")], 2, 5, [Part(5, "partition_key")]),
        ([(3, "primary_key")], 0, 5, [Part(2, "primary_key"), Part(5, "primary_key")]),
        ([(3, "partition_key")], 0, 5, [Part(2, "primary_key"), Part(5, "partition_key", 3)]),
        ([(3, "partition_key")], 2, 5, [Part(5, "partition_key", 3)]),
        ([(3, "partition_key")], 5, 5, [Part(5, "partition_key", 3)]),
        (
            [(2, "primary_key"), (3, "partition_key"), (5, "primary_key")],
            0,
            5,
            [Part(1, "primary_key"), Part(2, "primary_key"), Part(4, "partition_key", 3), Part(5, "primary_key", 5)],
        ),
    ],
)
def test_batches_of_different_owners_are_sent_one_after_the_other(
    rules: list[tuple[int, PartitionBy]], since: int, upto: int, wanted: list[Part]
) -> None:
    assert list(parts([PartitionedFrom(batch=batch, by=by) for batch, by in rules], since, upto)) == wanted
