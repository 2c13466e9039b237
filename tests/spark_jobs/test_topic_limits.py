"""What brokers and people do to topics: the rows of the table in docs/warehouse.md, at a real broker of its own, whose
transactions may last eight seconds."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic

from spark_jobs.sinks import kafka as jobs
from spark_jobs.sinks.kafka import Publisher, ensure_topics
from tests.spark_jobs.test_kafka import consume, numbers, rows, send, set_option
from tools.services import kafka as service
from tools.services import ports
from writetime.config.kafka import KafkaConfig
from writetime.errors import PublishError

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
ALLOWED_MS = 8_000


@pytest.fixture(scope="module")
def settings() -> list[tuple[Any, ...]]:
    """What brokers were set up with: folder, port, and port of the controller."""
    return []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, settings: list[tuple[Any, ...]]) -> Iterator[str]:
    made = service.server_settings

    def noted(*about: Any) -> dict[str, object]:
        settings.append(about)
        return {**made(*about), "transaction.max.timeout.ms": ALLOWED_MS}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "server_settings", noted)
        with service.Kafka(tmp_path_factory.mktemp("kafka"), port=0) as held:
            yield held.bootstrap


@pytest.fixture
def kafka(broker: str) -> KafkaConfig:
    return KafkaConfig.model_validate({"bootstrap.servers": broker, "topic.prefix": f"t{uuid.uuid4().hex[:8]}", "partitions": 2})


@pytest.fixture
def topic(kafka: KafkaConfig) -> str:
    name = f"{kafka.topic_prefix}.shop.orders"
    assert ensure_topics(kafka, [name]) == {}
    return name


@pytest.fixture
def admin(broker: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker})


def delete(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(30)
    while topic in admin.list_topics(timeout=10).topics:
        time.sleep(0.1)


def test_transactions_are_as_short_as_the_brokers_allow(kafka: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_ALLOWED_MS", {})
    monkeypatch.setattr(jobs, "_EVENTS_PER_TRANSACTION", 30)
    begun: list[int] = []
    send_chunk = Publisher._send_chunk

    def counted(publisher: Publisher, sender: Any, number: int, found: list[Any], stuck: Any) -> int:
        begun.append(len(found))
        return send_chunk(publisher, sender, number, found, stuck)

    monkeypatch.setattr(Publisher, "_send_chunk", counted)
    assert send(kafka, rows(topic, range(1, 11))) == 10
    assert {kafka.bootstrap_servers: ALLOWED_MS} == jobs._ALLOWED_MS
    assert begun == [4, 4, 2], "as much less is in one as the time is shorter"
    assert sorted(numbers(consume(kafka, topic))) == list(range(1, 11))


@pytest.mark.advice("Lower `transaction.timeout.ms` under `kafka.producer`")
@pytest.mark.parametrize("why", ["set by the user", "the brokers do not say"])
def test_a_time_that_brokers_refuse_is_named_by_its_key(kafka: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(jobs, "_ALLOWED_MS", {})
    producer: dict[str, Any] = {"transaction.timeout.ms": 30_000} if why == "set by the user" else {}

    def denied(_: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_of_broker", denied)
        with pytest.raises(PublishError, match=r"Lower `transaction\.timeout\.ms` under `kafka\.producer`") as raised:
            send(kafka.model_copy(update={"producer": producer}), rows(topic, range(3)))
    assert not raised.value.retriable, "it is refused each time"
    assert send(kafka.model_copy(update={"producer": {"transaction.timeout.ms": ALLOWED_MS}}), rows(topic, range(3))) == 3


def test_a_deleted_topic_is_made_again_and_later_events_go_on(kafka: KafkaConfig, admin: AdminClient, topic: str) -> None:
    assert send(kafka, rows(topic, [1, 2])) == 2
    delete(admin, topic)
    assert ensure_topics(kafka, [topic]) == {}
    everything = rows(topic, [1, 2, 3])
    assert send(kafka, everything) == 1
    assert numbers(consume(kafka, topic)) == [3], "what was in it is not sent again by itself"
    assert sum(sent.events for sent in Publisher(kafka, epochs={topic: 1}).send_all(everything)) == 3
    assert sorted(numbers(consume(kafka, topic))) == [1, 2, 3, 3]


@pytest.mark.parametrize("how", ["made anew", "added"])
def test_more_partitions_take_the_events_of_their_keys(kafka: KafkaConfig, admin: AdminClient, topic: str, how: str) -> None:
    assert send(kafka, rows(topic, range(1, 5))) == 4
    if how == "made anew":
        delete(admin, topic)
        admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(30)
    else:
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result(30)
    assert send(kafka, rows(topic, range(1, 40))) == 35
    found = [each for each in consume(kafka.model_copy(update={"partitions": 6}), topic) if each[2] is not None]
    later = [(partition, key, value) for partition, key, value in found if value is not None and int(value[5:-1]) > 4]
    assert len(later) == 35
    for key in {key for _, key, _ in later}:
        mine = [(partition, number) for partition, of, value in later if of == key and value for number in [int(value[5:-1])]]
        assert len({partition for partition, _ in mine}) == 1
        assert [number for _, number in mine] == sorted(number for _, number in mine)


def test_what_a_shorter_retention_deletes_is_not_sent_again(kafka: KafkaConfig, admin: AdminClient, topic: str) -> None:
    everything = rows(topic, range(1, 9))
    assert send(kafka, everything) == 8
    # As the broker does when it is time.
    ends = [TopicPartition(topic, partition, OFFSET_END) for partition in range(kafka.partitions)]
    for deleted in admin.delete_records(ends).values():
        deleted.result(30)
    assert send(kafka, rows(topic, range(1, 10))) == 1
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "look"})
    kept = [consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30) for partition in range(kafka.partitions)]
    consumer.close()
    # The event and the record that ends its transaction.
    assert sum(high - low for low, high in kept) == 2


def test_more_replicas_in_sync_than_there_are_replicas_hold_up_nothing(kafka: KafkaConfig, topic: str) -> None:
    """Kafka counts no more than the topic has."""
    set_option(kafka, topic, "min.insync.replicas", "2")
    assert send(kafka, rows(topic, [1, 2])) == 2
    assert sorted(numbers(consume(kafka, topic))) == [1, 2]


class Second(service.Kafka):
    """A second broker of a cluster, whose controller the first one is."""

    def __init__(self, folder: Path, first: Path) -> None:
        super().__init__(folder, port=0)
        self.cluster = dict(line.split("=", 1) for line in (first / "logs" / "meta.properties").read_text().splitlines() if "=" in line)

    def _format(self, properties: Path) -> None:
        command = ["kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster['cluster.id']}", "--config", str(properties)]
        subprocess.run(self._java("-Xmx128m", *command), check=True, capture_output=True, cwd=self.folder)

    def _answers(self) -> bool:
        return ports.answers(self.port) and len(AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=10).brokers) == 2


@pytest.fixture
def second(broker: str, settings: list[tuple[Path, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Second:
    (folder, _, controller), made = settings[0], service.server_settings

    def of_second(folder: Path, port: int, _: int) -> dict[str, object]:
        own = {"process.roles": "broker", "node.id": 2, "listeners": f"PLAINTEXT://{ports.LOOPBACK}:{port}"}
        return {**made(folder, port, controller), **own}

    monkeypatch.setattr(service, "server_settings", of_second)
    return Second(tmp_path, folder)


@pytest.mark.thorough
def test_too_few_replicas_in_sync_are_named(kafka: KafkaConfig, admin: AdminClient, topic: str, second: Second) -> None:
    # So that the first broker has all that publishing needs.
    assert send(kafka, rows(topic, [1])) == 1
    kept = f"{kafka.topic_prefix}.shop.kept"
    second.start()
    try:
        made = NewTopic(kept, 2, 2, config={"min.insync.replicas": "2"})
        admin.create_topics([made])[kept].result(30)
        assert send(kafka, rows(kept, [1])) == 1
        second.stop()
        with pytest.raises(PublishError, match=r"as many replicas in sync as its min\.insync\.replicas") as raised:
            send(kafka, [*rows(kept, [2]), *rows(topic, [2])])
        assert raised.value.retriable
    finally:
        second.stop()
