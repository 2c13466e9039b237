"""The broker of demo and tests: transactions, loopback only, persistent data."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tools.errors import ServiceError
from tools.services.kafka import Kafka, server_settings

pytestmark = pytest.mark.kafka


def make_topic(bootstrap: str) -> str:
    topic = f"t{uuid.uuid4().hex}"
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    client.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(30)
    return topic


def producer(bootstrap: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex, "log_level": 0})
    made.init_transactions(30)
    return made


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All records of a topic of one partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "isolation.level": isolation, "log_level": 0}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    values = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return values
            values.append(message.value())
    finally:
        consumer.close()
    raise AssertionError("the broker has gone silent")


def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(kafka_broker: str) -> None:
    topic = make_topic(kafka_broker)
    writer = producer(kafka_broker)
    writer.begin_transaction()
    writer.produce(topic, b"given up")
    writer.flush(30)
    writer.abort_transaction(30)
    writer.begin_transaction()
    writer.produce(topic, b"committed")
    writer.commit_transaction(30)
    assert read(kafka_broker, topic) == [b"committed"]
    assert read(kafka_broker, topic, "read_uncommitted") == [b"given up", b"committed"]


def test_a_topic_that_nobody_made_is_an_error(kafka_broker: str) -> None:
    topic = f"missing{uuid.uuid4().hex}"
    errors: list[KafkaError | None] = []
    # librdkafka believes for 30 s that a topic it does not see may still be under way.
    writer = Producer({"bootstrap.servers": kafka_broker, "topic.metadata.propagation.max.ms": 500, "log_level": 0})
    writer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    writer.flush(30)
    # Either the broker refuses it, or the client does after having seen the list of topics.
    assert len(errors) == 1
    assert errors[0] is not None
    assert errors[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
    assert topic not in AdminClient({"bootstrap.servers": kafka_broker, "log_level": 0}).list_topics(timeout=30).topics


@pytest.mark.thorough
def test_what_was_written_is_there_after_a_restart_on_another_port(tmp_path: Path) -> None:
    with Kafka(tmp_path, port=0) as kafka:
        topic = make_topic(kafka.bootstrap)
        writer = producer(kafka.bootstrap)
        writer.begin_transaction()
        writer.produce(topic, b"kept")
        writer.commit_transaction(30)
    with Kafka(tmp_path, port=0) as kafka:
        assert read(kafka.bootstrap, topic) == [b"kept"]
    assert kafka.service is None


def test_every_listener_is_on_loopback(tmp_path: Path) -> None:
    settings = server_settings(tmp_path, 1, 2)
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1"


def test_without_its_jars_it_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="make setup"):
        Kafka(tmp_path, jars=tmp_path).start()
