"""Publishers against a broker that wants TLS, a password and rights: they do with the rights that
docs/security.md names."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

from spark_jobs.sinks import kafka as jobs
from spark_jobs.sinks.kafka import (
    Position,
    ensure_topics,
    message_limits,
    read_epochs,
    read_progress,
    send_heartbeat,
)
from tests.shippers.test_tls import Identity, identity
from tests.spark_jobs.test_kafka import consume, numbers, rows, send
from tools.services.kafka import Kafka
from writetime.config.kafka import KafkaConfig
from writetime.errors import PublishError

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), pytest.mark.thorough]

PREFIX = "safe"
PASSWORD = f"hush-{uuid.uuid4().hex}"
ON_TOPICS = (
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.READ,
    AclOperation.WRITE,
)
ON_TRANSACTIONS = (AclOperation.DESCRIBE, AclOperation.WRITE)


def allow(admin: AdminClient, kind: ResourceType, name: str, operations: tuple[AclOperation, ...], pattern: ResourcePatternType) -> None:
    bindings = [AclBinding(kind, name, pattern, "User:publisher", "*", each, AclPermissionType.ALLOW) for each in operations]
    for future in admin.create_acls(bindings).values():
        future.result(timeout=30)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return identity(tmp_path_factory.mktemp("tls"), "broker")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, own: Identity) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("secured-kafka")
    pair = folder / "broker.pem"
    pair.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    secured = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pair),
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": f'{login} required user_publisher="{PASSWORD}" user_stranger="{PASSWORD}";',
    }
    with Kafka(folder, port=0, secured=secured) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        allow(admin, ResourceType.TOPIC, PREFIX, ON_TOPICS, ResourcePatternType.PREFIXED)
        allow(admin, ResourceType.TOPIC, f"__debezium-heartbeat.{PREFIX}", ON_TOPICS, ResourcePatternType.LITERAL)
        allow(admin, ResourceType.TRANSACTIONAL_ID, f"{PREFIX}.publisher.", ON_TRANSACTIONS, ResourcePatternType.PREFIXED)
        allow(admin, ResourceType.GROUP, f"{PREFIX}.progress-reader", (AclOperation.READ,), ResourcePatternType.LITERAL)
        yield kafka


def config(broker: Kafka, own: Identity, **other: Any) -> KafkaConfig:
    producer = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "publisher",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(own.certificate),
        **other,
    }
    servers = f"127.0.0.1:{broker.secured_port}"
    return KafkaConfig.model_validate({"bootstrap.servers": servers, "topic.prefix": PREFIX, "partitions": 2, "producer": producer})


def test_events_go_out_over_tls_with_no_more_rights_than_documented(broker: Kafka, own: Identity) -> None:
    kafka = config(broker, own)
    topic = f"{PREFIX}.shop.orders"
    for _ in range(2):
        assert ensure_topics(kafka, [topic]) == {}
    assert message_limits(kafka, [topic])[0].keys() == {topic}
    # Who may not ask for a topic's limit goes by the producer's.
    (limit,), silent = message_limits(kafka, ["elsewhere"])[0].values(), message_limits(kafka, ["elsewhere"])[1]
    assert (990_000 < limit < 1_000_000, silent) == (True, {})
    assert send(kafka, rows(topic, range(1, 8))) == 7
    assert read_progress(kafka, 0) == {topic: Position(1, 7)}
    send_heartbeat(kafka, b"{}", b"{}")
    plain = kafka.model_copy(update={"bootstrap_servers": broker.bootstrap})
    assert sorted(numbers(consume(plain, topic))) == list(range(1, 8))
    assert len(consume(plain.model_copy(update={"partitions": 1}), kafka.heartbeat_topic)) <= 1
    assert read_epochs(kafka) == {topic: 0}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sasl.password": "no"}, "Authentication failed"),
        ({"sasl.username": "nobody"}, "Authentication failed"),
        ({"ssl.ca.location": ""}, "certificate"),
    ],
    ids=["password", "user", "authority"],
)
def test_who_may_not_in_is_told_so_without_the_secret(
    broker: Kafka, own: Identity, wrong: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_TIMEOUT_SECONDS", 5.0)
    with pytest.raises(PublishError, match=f"list the topics.*{why}") as raised:
        ensure_topics(config(broker, own, **wrong), [f"{PREFIX}.shop.orders"])
    assert PASSWORD not in str(raised.value)
    assert PASSWORD not in repr(config(broker, own))


def test_who_has_no_rights_is_told_so(broker: Kafka, own: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_TIMEOUT_SECONDS", 5.0)
    with pytest.raises(PublishError, match="create a topic"):
        ensure_topics(config(broker, own, **{"sasl.username": "stranger"}), [f"{PREFIX}.shop.orders"])
