"""Stories run side by side: one real node, one pipeline, one Kafka broker.

Strategy: all stories take their steps together, so that a step costs one round of the pipeline, however many stories
there are, and a story that breaks a batch shows in all others. After a step, for each captured table,

    table       the current rows equal SELECT at ALL, with writetimes and expiries, and the events fold to them
    consumer    an upsert consumer of the topic, which keeps the last value of each record key, has as many rows, each
                of them as the last event of its key left it

What differs is kept by story. Knows what stories are, and nothing of a single one.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from cassandra import RequestExecutionException, RequestValidationException
from cassandra.cluster import Session
from cassandra.protocol import ErrorMessage
from confluent_kafka import Consumer, KafkaError, TopicPartition

from proof.harness.cassandra import Ring
from proof.ring import answer, check
from proof.ring.lake import Event
from proof.ring.pipeline import CLUSTER, Pipeline, _Replaced
from spark_jobs import publish
from tests.stories.story import Story
from writetime.config.kafka import KafkaConfig
from writetime.events.envelope import place_of
from writetime.events.naming import to_topic
from writetime.pipeline.documents import Sealed

SEALING: Final = "writetime_sealing"
_PREFIX: Final = "stories"
_SYNC_SECONDS: Final = 2.5
"""More than two periods of commitlog_sync."""
SETTINGS: Final = {
    "auto_snapshot": False,
    "enable_materialized_views": True,
    "enable_drop_compact_storage": True,
    "user_defined_functions_enabled": True,
    "dynamic_data_masking_enabled": True,
}


@dataclass
class World:
    """What the stories share. `differences`: what differs, by story; `reasons`: why tables are rejected, by full name."""

    ring: Ring
    pipeline: Pipeline
    session: Session
    differences: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[str, str] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _sealed_with: int = 0

    @classmethod
    def create(cls, folder: Path, broker: str, *, rule: str | None = None, **settings: Any) -> Self:
        """A node that runs, and a pipeline that publishes JSON; `close` stops them. `rule`: the sabotage that the pipeline
        runs under."""
        options = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=128m"]
        about = {"cluster_name": CLUSTER, "segment_mb": 1, "compatibility": "NONE", "options": options}
        ring = Ring(folder / "ring", nodes=1, settings={**SETTINGS, **settings}, **about).start()
        session = ring.session("ONE")
        session.execute(f"CREATE KEYSPACE {SEALING} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
        pipeline = Pipeline.create(folder, rule=rule)
        kafka = KafkaConfig.model_validate({"bootstrap.servers": broker, "topic.prefix": f"{_PREFIX}{time.time_ns()}", "partitions": 1})
        pipeline.config = pipeline.config.model_copy(update={"kafka": kafka})
        return cls(ring, pipeline, session)

    def close(self) -> None:
        self.pipeline.__exit__()
        self.ring.close()

    def run(self, stories: list[Story]) -> None:
        for story in stories:
            self.session.execute(
                f"CREATE KEYSPACE \"{story.name}\" WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            )
        for at in range(max(len(story.steps) for story in stories)):
            waited = 0
            for story in (story for story in stories if at < len(story.steps)):
                waited = max(waited, self._take(story, story.steps[at]))
            time.sleep(waited)
            self._round(f"step {at + 1}", {story.name for story in stories})

    def _take(self, story: Story, step: list[str | int]) -> int:
        """Run the statements of a step; the seconds to wait after it."""
        self.session.set_keyspace(story.name)
        for statement in step:
            if isinstance(statement, str):
                try:
                    self.session.execute(statement)
                except (RequestValidationException, RequestExecutionException, ErrorMessage) as error:
                    self.differences[story.name].append(f"✗ the node refuses {statement!r}: {error}")
        return sum(each for each in step if isinstance(each, int))

    # --- the pipeline

    def _round(self, where: str, names: set[str]) -> None:
        # What the node itself cannot read (5.0.6: cells that are later than the DROP of their column) is not compared.
        found = answer.read(self.ring.session("ALL"))
        self._seal_segment()
        shipped = self.pipeline.ship(self.ring.nodes[0])
        assert not shipped.failed, shipped.failed
        while (sealed := self.pipeline.batch()) is not None:
            self._look_at(sealed, where)
        with _Replaced(publish, "spark_session", self.pipeline._session):
            publish.run(self.pipeline.config)
        records = dict(self._records())
        for table in (table for table in found.tables if table.keyspace in names):
            if table.label not in self.reasons:
                self.compared[table.label] += 1
                self._compare(table, records.get(to_topic(self._prefix, table.keyspace, table.name), {}), where)

    def _seal_segment(self) -> None:
        """A DROP makes the node complete its segment."""
        self._sealed_with += 1
        self.session.execute(f"CREATE TABLE {SEALING}.t{self._sealed_with} (id int PRIMARY KEY)")
        self.session.execute(f"DROP TABLE {SEALING}.t{self._sealed_with}")
        time.sleep(_SYNC_SECONDS)

    def _look_at(self, sealed: Sealed, where: str) -> None:
        self.reasons = {refused.table: refused.reason for refused in sealed.refused}
        for mismatch in check.check_batch(sealed, self.pipeline.updates(sealed), where):
            if mismatch.check != "problem":
                self.differences[mismatch.table.partition(".")[0]].append(str(mismatch))

    # --- what differs

    def _compare(self, table: answer.TableAnswer, latest: dict[bytes, Any], where: str) -> None:
        mismatches = check.check_table(table, self.pipeline.lake, where)
        found = self.differences[table.keyspace]
        found += map(str, mismatches)
        last: dict[str, Event] = {}
        for event in self.pipeline.lake.changes(table):
            if event.op == "t":
                last.clear()
            else:
                last[event.key] = event
        shown = sorted(f"{event.batch}.{event.ordinal}" for event in last.values() if event.after is not None)
        ours = sorted(".".join(json.loads(value["source"]["sequence"])) for value in latest.values())
        if shown != ours:
            found.append(f"✗ consumer ({where}): {table.label}: expected the events {shown} as last ones, found {ours}")
        elif len(ours) != len(table.rows):
            found.append(f"✗ consumer ({where}): {table.label}: expected {len(table.rows)} rows, found {len(ours)}: {sorted(latest)}")

    @property
    def _prefix(self) -> str:
        kafka = self.pipeline.config.kafka
        assert kafka is not None
        return kafka.topic_prefix

    def _records(self) -> Iterator[tuple[str, dict[bytes, Any]]]:
        """What an upsert consumer has of each topic: the last value by record key, without deleted rows."""
        kafka = self.pipeline.config.kafka
        assert kafka is not None
        options = {"group.id": "stories", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **options})
        try:
            for name in sorted(consumer.list_topics(timeout=30).topics):
                if name.startswith(f"{self._prefix}.") and not name.startswith(f"{self._prefix}.__"):
                    yield name, _latest(consumer, name)
        finally:
            consumer.close()


def _latest(consumer: Consumer, topic: str) -> dict[bytes, Any]:
    """The topic has one partition. Its events come from several publishers, so only `source.sequence` says which of them were
    before a TRUNCATE or a DROP TABLE."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    latest: dict[bytes, Any] = {}
    truncated = (0, 0)
    while True:
        message = consumer.poll(30)
        assert message is not None, "the broker does not answer"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return {key: value for key, value in latest.items() if place_of(value) > truncated}
        value = json.loads(message.value()) if message.value() is not None else None
        if value is not None and value["op"] == "t":
            truncated = max(truncated, place_of(value))
        elif value is None or value["after"] is None:
            latest.pop(message.key(), None)
        else:
            latest[message.key()] = value
