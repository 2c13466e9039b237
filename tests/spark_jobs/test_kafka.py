"""Publishers against a real broker: each event once, in order, whatever died before."""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition, murmur2
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from spark_jobs.sinks import kafka as jobs
from spark_jobs.sinks.kafka import (
    RECORDS,
    Chain,
    Position,
    Publisher,
    Sent,
    _failure,
    ensure_topics,
    expect_own,
    message_limits,
    read_progress,
)
from writetime.config.kafka import KafkaConfig
from writetime.errors import PublishError
from writetime.events.naming import progress_topic, quarantine_topic
from writetime.pipeline.documents import Manifest
from writetime.pipeline.identity import Owner
from writetime.storage import layout, open_store

pytestmark = pytest.mark.kafka


@pytest.fixture
def kafka(kafka_broker: str) -> KafkaConfig:
    return KafkaConfig.model_validate({"bootstrap.servers": kafka_broker, "topic.prefix": f"t{uuid.uuid4().hex[:8]}", "partitions": 2})


@pytest.fixture
def topic(kafka: KafkaConfig) -> str:
    name = f"{kafka.topic_prefix}.shop.orders"
    ensure_topics(kafka, [name])
    return name


class Changeable(list[Any]):
    """A row of RECORDS whose values can be set by name."""

    def __getattr__(self, name: str) -> Any:
        return self[RECORDS.get_field_index(name)]

    def __setattr__(self, name: str, value: Any) -> None:
        self[RECORDS.get_field_index(name)] = value


def rows(topic: str, ordinals: Iterable[int], *, batch: int = 1, publisher: int = 0) -> list[Changeable]:
    return [
        Changeable(
            jobs.Row(
                publisher=publisher,
                stream=topic,
                topic=topic,
                batch=batch,
                ordinal=ordinal,
                key=b'{"id":%d}' % (ordinal % 3),
                value=b'{"n":%d}' % ordinal,
                op="d" if ordinal % 5 == 0 else "u",
                deletes=ordinal % 5 == 0,
                refused=None,
                placed_by=None,
            )
        )
        for ordinal in ordinals
    ]


def messages(kafka: KafkaConfig, topic: str) -> Iterator[Message]:
    """Everything committed, in order within a partition."""
    options = {"group.id": uuid.uuid4().hex, "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **options})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(kafka.partitions)])
    ended: set[int | None] = set()
    while len(ended) < kafka.partitions:
        message = consumer.poll(20)
        assert message is not None, "the broker does not answer"
        if (error := message.error()) is None:
            yield message
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()


def consume(kafka: KafkaConfig, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    """The same, as (partition, key, value)."""
    return [(message.partition(), message.key(), message.value()) for message in messages(kafka, topic)]  # type: ignore[misc]


def numbers(found: list[tuple[int, bytes, bytes | None]]) -> list[int]:
    return [json.loads(value)["n"] for _, _, value in found if value is not None]


def progress(kafka: KafkaConfig, publisher: int) -> dict[str, tuple[int, int]]:
    return {stream: (reached.batch, reached.ordinal) for stream, reached in read_progress(kafka, publisher).items()}


def send(kafka: KafkaConfig, found: list[Any]) -> int:
    return sum(sent.events for sent in Publisher(kafka).send_all(found))


def test_each_event_once_in_order_per_key(kafka: KafkaConfig, topic: str) -> None:
    assert send(kafka, rows(topic, range(1, 31))) == 30
    found = consume(kafka, topic)
    assert sorted(numbers(found)) == list(range(1, 31))
    for key in {key for _, key, _ in found}:
        of_key = [json.loads(value)["n"] for _, k, value in found if k == key and value is not None]
        assert of_key == sorted(of_key)


def test_a_delete_is_followed_by_a_tombstone(kafka: KafkaConfig, topic: str) -> None:
    send(kafka, rows(topic, [5]))
    assert [value for _, _, value in consume(kafka, topic)] == [b'{"n":5}', None]
    without = kafka.model_copy(update={"tombstones_on_delete": False})
    send(without, rows(topic, [10]))
    assert [value for _, _, value in consume(kafka, topic)].count(None) == 1


def test_a_rerun_sends_nothing(kafka: KafkaConfig, topic: str) -> None:
    everything = rows(topic, range(1, 11)) + rows(topic, range(1, 4), batch=2)
    assert send(kafka, everything) == 13
    assert send(kafka, everything) == 0
    assert progress(kafka, 0) == {topic: (2, 3)}
    assert send(kafka, everything + rows(topic, [4], batch=2)) == 1
    assert len(numbers(consume(kafka, topic))) == 14


MINE = Owner(cluster="ring", pipeline="orders", id=UUID(int=1))
THEIRS = Owner(cluster="ring", pipeline="bets", id=UUID(int=2))


def chain(folder: Path, upto: int, *ids: int) -> Chain:
    """Batches from 1 on, with those ids."""
    bucket = folder / f"bucket-{upto}-{'-'.join(map(str, ids))}"
    about: dict[str, Any] = {"kind": "ingest", "cluster": "c", "created_at": datetime(2026, 5, 4, tzinfo=UTC), "now": 1, "base": 0}
    for number, each in enumerate(ids, 1):
        made = Manifest(number=number, id=UUID(int=each), segments=[], **about)
        open_store(str(bucket)).put(layout.batch_object("c", number, "manifest"), made.to_bytes())
    return Chain(str(bucket), "c", upto)


@pytest.mark.thorough
def test_progress_of_another_chain_of_batches_is_refused(kafka: KafkaConfig, topic: str, tmp_path: Path) -> None:
    before = Publisher(kafka, chain(tmp_path, 3, 11, 12, 13), MINE)
    assert list(before.send_all(rows(topic, [1, 2], batch=1) + rows(topic, [1, 2], batch=3))) == [Sent(4)]
    assert read_progress(kafka, 0) == {topic: Position(3, 2, str(UUID(int=13)))}
    # The batches were put back from a backup: batch 2 is the last one, and what comes then has numbers that
    # were sent.
    for now, said in [
        (chain(tmp_path, 2, 11, 12), "2 is the last that is sealed"),
        (chain(tmp_path, 4, 11, 12, 23, 24), "another one by now"),
    ]:
        ((sent),) = Publisher(kafka, now, MINE).send_all(rows(topic, [1, 2], batch=3) + rows(topic, [1], batch=4))
        assert sent.events == 0
        assert said in str(sent.stuck[topic])
        assert not sent.stuck[topic].retriable
    assert list(before.send_all(rows(topic, [3], batch=3))) == [Sent(1)]
    # Progress beyond the last seal that a run has looked at, in a batch that is there, is that of another run.
    late = chain(tmp_path, 3, 11, 12, 13)
    assert list(Publisher(kafka, replace(late, upto=2), MINE).send_all(rows(topic, [1, 2], batch=2))) == [Sent(0)]


def test_progress_of_the_version_before_is_gone_on_with(kafka: KafkaConfig, topic: str, tmp_path: Path) -> None:
    assert send(kafka, rows(topic, [1, 2])) == 2
    assert list(Publisher(kafka, chain(tmp_path, 2, 11, 12), MINE).send_all(rows(topic, [1, 2, 3]))) == [Sent(1)]
    assert read_progress(kafka, 0)[topic] == Position(1, 3, str(UUID(int=11)))


@pytest.mark.thorough
@pytest.mark.advice("Give this pipeline another `topic.prefix`.")
def test_a_second_pipeline_with_the_same_prefix_is_refused_by_name(kafka: KafkaConfig, topic: str) -> None:
    expect_own(kafka, MINE)
    assert list(Publisher(kafka, owner=MINE).send_all(rows(topic, [1]))) == [Sent(1)]
    with pytest.raises(PublishError, match="belong to pipeline orders of cluster ring"):
        expect_own(kafka, THEIRS)
    with pytest.raises(PublishError, match="belong to pipeline orders of cluster ring"):
        list(Publisher(kafka, owner=THEIRS).send_all(rows(topic, [2])))
    elsewhere = kafka.model_copy(update={"topic_prefix": f"{kafka.topic_prefix}2"})
    assert ensure_topics(elsewhere, [f"{elsewhere.topic_prefix}.shop.orders"]) == {}
    assert list(Publisher(elsewhere, owner=THEIRS).send_all(rows(f"{elsewhere.topic_prefix}.shop.orders", [1]))) == [Sent(1)]
    expect_own(kafka, MINE.model_copy(update={"pipeline": "renamed"}))
    assert list(Publisher(kafka, owner=MINE).send_all(rows(topic, [1, 2]))) == [Sent(1)]


@pytest.mark.advice("It ends by itself when its producer's time is over.")
def test_progress_behind_an_open_transaction_is_not_read(kafka: KafkaConfig, topic: str) -> None:
    send(kafka, rows(topic, [1]))
    stalled = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{kafka.topic_prefix}.somebody"})
    stalled.init_transactions(30)
    stalled.begin_transaction()
    stalled.produce(progress_topic(kafka.topic_prefix), key=topic.encode(), value=b"[1, 9]", partition=0)
    stalled.flush(30)
    with pytest.raises(PublishError, match="a transaction is open in partition 0") as caught:
        read_progress(kafka, 0)
    assert caught.value.retriable
    stalled.abort_transaction(30)
    assert progress(kafka, 0) == {topic: (1, 1)}


@pytest.mark.thorough
def test_what_is_told_elsewhere_goes_once_in_its_place_and_holds_up_its_own_stream_only(kafka: KafkaConfig, topic: str) -> None:
    elsewhere, other = quarantine_topic(kafka.topic_prefix), f"{kafka.topic_prefix}.shop.other"
    assert ensure_topics(kafka, [other, elsewhere]) == {}
    everything = [*rows(topic, range(1, 6)), *rows(other, range(1, 6))]
    everything[1].topic, everything[1].value = elsewhere, b"x" * 2_000_000
    ((sent),) = Publisher(kafka).send_all(everything)
    assert (sent.events, list(sent.stuck)) == (1 + 5, [topic])
    everything[1].value = b'{"n":2}'
    assert list(Publisher(kafka).send_all(everything)) == [Sent(4)]
    assert list(Publisher(kafka).send_all(everything)) == [Sent(0)]
    assert sorted(numbers(consume(kafka, topic))) == [1, 3, 4, 5]
    assert numbers(consume(kafka, elsewhere)) == [2]
    assert progress(kafka, 0) == {topic: (1, 5), other: (1, 5)}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})  # whose end would be the end of what it is asked for
    (settings,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, elsewhere)]).values()
    assert settings.result(30)["cleanup.policy"].value == "compact"


def test_a_transaction_that_one_publisher_left_open_hides_no_progress_of_another(kafka: KafkaConfig, topic: str) -> None:
    ensure_topics(kafka, [])
    dead = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{kafka.topic_prefix}.publisher.1"})
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(progress_topic(kafka.topic_prefix), key=topic.encode(), value=b"[1, 9]", partition=1)
    dead.flush(30)
    share = rows(topic, [2, 4], publisher=0)
    assert send(kafka, share) == 2

    assert progress(kafka, 0) == {topic: (1, 4)}
    with pytest.raises(PublishError, match="a transaction is open in partition 1"):
        progress(kafka, 1)
    assert send(kafka, share) == 0
    assert numbers(consume(kafka, topic)) == [2, 4]


@pytest.mark.advice("Raise `message.max.bytes` under `kafka.producer`")
def test_an_event_larger_than_a_message_may_be_holds_up_its_own_topic_only(
    kafka: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_EVENTS_PER_TRANSACTION", 4)
    other = f"{kafka.topic_prefix}.shop.other"
    assert ensure_topics(kafka, [other]) == {}
    everything = [*rows(topic, range(1, 8)), *rows(other, range(1, 8))]
    everything[2].value = b"x" * 2_000_000
    ((sent),) = Publisher(kafka).send_all(everything)
    assert (sent.events, list(sent.stuck)) == (2 + 7, [topic])
    assert re.search(r"event \[1, 3\] of 2000000 bytes.*max.message.bytes", str(sent.stuck[topic]))
    assert sorted(numbers(consume(kafka, topic))) == [1, 2]
    assert sorted(numbers(consume(kafka, other))) == list(range(1, 8))
    # When it may go, it goes, and what came after it.
    everything[2].value = json.dumps({"n": 3, "noise": "x" * 2_000_000}).encode()
    set_option(kafka, topic, "max.message.bytes", "4000000")
    raised = kafka.model_copy(update={"producer": {"message.max.bytes": 4_000_000}})
    assert list(Publisher(raised).send_all(everything)) == [Sent(5)]
    assert sorted(numbers(consume(kafka, topic))) == list(range(1, 8))


def test_an_event_that_cannot_be_encoded_holds_up_its_own_topic_only(kafka: KafkaConfig, topic: str) -> None:
    other = f"{kafka.topic_prefix}.shop.other"
    assert ensure_topics(kafka, [other]) == {}
    everything = [*rows(topic, range(1, 8)), *rows(other, range(1, 8))]
    everything[2].value, everything[2].refused = None, "a varint is larger than 64 bits"
    ((sent),) = Publisher(kafka).send_all(everything)
    assert (sent.events, list(sent.stuck)) == (2 + 7, [topic])
    assert "event [1, 3] cannot be encoded: a varint is larger than 64 bits" in str(sent.stuck[topic])
    assert sorted(numbers(consume(kafka, topic))) == [1, 2]
    everything[2].value, everything[2].refused = b'{"n":3}', None
    assert list(Publisher(kafka).send_all(everything)) == [Sent(5)]
    assert sorted(numbers(consume(kafka, topic))) == list(range(1, 8))


@pytest.mark.advice("Mend the topic's settings (`max.message.bytes`)")
def test_an_event_that_the_broker_finds_too_large_holds_up_its_own_topic_only(kafka: KafkaConfig, topic: str) -> None:
    other, small = f"{kafka.topic_prefix}.shop.other", f"{kafka.topic_prefix}.shop.small"
    assert ensure_topics(kafka, [other]) == {}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics([NewTopic(small, kafka.partitions, 1, config={"max.message.bytes": "1000"})]).values():
        future.result(timeout=30)
    everything = [*rows(topic, range(1, 8)), *rows(small, range(1, 4)), *rows(other, range(1, 8))]
    everything[8].value = b"".join(b"%d" % (n * n) for n in range(3000))
    ((sent),) = Publisher(kafka).send_all(everything)
    assert (sent.events, list(sent.stuck)) == (7 + 7, [small])
    assert "the broker refuses an event" in str(sent.stuck[small])
    assert sorted(numbers(consume(kafka, topic))) == sorted(numbers(consume(kafka, other))) == list(range(1, 8))
    assert consume(kafka, small) == []
    # When it may go, it goes, and what came with it.
    set_option(kafka, small, "max.message.bytes", "1000000")
    everything[8].value = json.dumps({"n": 2, "noise": everything[8].value.hex()}).encode()
    assert list(Publisher(kafka).send_all(everything)) == [Sent(3)]
    assert sorted(numbers(consume(kafka, small))) == [1, 2, 3]


@pytest.mark.thorough
def test_publishers_keep_their_progress_apart(kafka: KafkaConfig, topic: str) -> None:
    share = rows(topic, [2, 4], publisher=0) + rows(topic, [1, 3], publisher=1)
    assert list(Publisher(kafka).send_all(share)) == [Sent(2), Sent(2)]
    assert (progress(kafka, 0), progress(kafka, 1)) == ({topic: (1, 4)}, {topic: (1, 3)})
    assert send(kafka, share) == 0


@pytest.mark.advice("Set `kafka.publishers` to ")
def test_another_number_of_publishers_is_refused(kafka: KafkaConfig, topic: str) -> None:
    with pytest.raises(PublishError, match=r"made for 2 publishers, `kafka\.publishers` says 3"):
        ensure_topics(kafka.model_copy(update={"publishers": 3}), [topic])
    assert ensure_topics(kafka.model_copy(update={"publishers": 2}), [topic]) == {}


@pytest.mark.parametrize("dies_in_transaction", [1, 2, 3])
def test_a_death_between_events_and_commit_doubles_and_loses_nothing(
    kafka: KafkaConfig, topic: str, dies_in_transaction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_EVENTS_PER_TRANSACTION", 4)
    everything = rows(topic, range(1, 11))

    class Death(BaseException):
        pass

    class Mortal:
        """A producer whose process ends just before its n-th commit: events are sent, the transaction is left
        open."""

        def __init__(self, options: dict[str, Any]) -> None:
            self._producer = Producer(options)
            self._commits = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, timeout: float) -> None:
            self._commits += 1
            if self._commits == dies_in_transaction:
                raise Death
            self._producer.commit_transaction(timeout)

    monkeypatch.setattr(jobs, "Producer", Mortal)
    with pytest.raises(Death):
        send(kafka, everything)
    monkeypatch.setattr(jobs, "Producer", Producer)
    assert send(kafka, everything) == 10 - 4 * (dies_in_transaction - 1)
    assert sorted(numbers(consume(kafka, topic))) == list(range(1, 11))


@pytest.mark.advice("Events stay in the changes tables and go out with the next run.")
def test_of_two_at_once_the_earlier_one_stops_and_may_try_again(kafka: KafkaConfig, topic: str) -> None:
    everything = rows(topic, range(1, 11))

    def overtaken() -> Iterator[Any]:
        yield from everything
        assert send(kafka, everything) == 10

    with pytest.raises(PublishError, match=rf"{kafka.topic_prefix}.publisher.0: .*\(a retry may help\). Another run publishes"):
        list(Publisher(kafka).send_all(overtaken()))
    assert send(kafka, everything) == 0
    assert sorted(numbers(consume(kafka, topic))) == list(range(1, 11))


def test_what_a_client_raises_while_it_calls_back_is_its_own_error() -> None:
    fenced, other = KafkaException(KafkaError(KafkaError._FENCED)), SystemError("returned a result with an exception set")
    with pytest.raises(SystemError, match="with an exception set"):
        jobs._meant(other)
    other.__cause__ = fenced
    assert jobs._meant(other) is fenced
    assert jobs._meant(fenced) is fenced


def test_the_progress_topic_is_compacted(kafka: KafkaConfig, topic: str) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, progress_topic(kafka.topic_prefix))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (settings,) = (future.result(timeout=20) for future in admin.describe_configs([resource]).values())
    assert settings["cleanup.policy"].value == "compact"
    ensure_topics(kafka, [topic])


@pytest.mark.advice("Set cleanup.policy=compact on it;")
def test_progress_that_would_expire_is_refused(kafka: KafkaConfig) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    made = NewTopic(progress_topic(kafka.topic_prefix), kafka.publishers, 1, config={"cleanup.policy": "delete"})
    for future in admin.create_topics([made]).values():
        future.result(timeout=30)
    with pytest.raises(PublishError, match=r"cleanup\.policy is `delete`.*Set cleanup\.policy=compact"):
        ensure_topics(kafka, [f"{kafka.topic_prefix}.shop.orders"])
    set_option(kafka, progress_topic(kafka.topic_prefix), "cleanup.policy", "compact")
    assert ensure_topics(kafka, [f"{kafka.topic_prefix}.shop.orders"]) == {}


@pytest.mark.thorough
def test_what_is_to_be_sent_again_goes_out_again_and_nothing_else(kafka: KafkaConfig, topic: str) -> None:
    other = f"{kafka.topic_prefix}.shop.other"
    assert ensure_topics(kafka, [other]) == {}
    everything = [*rows(topic, [2, 4]), *rows(other, [6]), *rows(topic, [1, 3], publisher=1)]
    assert send(kafka, everything) == 5
    again = Publisher(kafka, epochs={topic: 1})
    assert sum(sent.events for sent in again.send_all(everything)) == 4
    assert sum(sent.events for sent in again.send_all(everything)) == 0
    assert jobs.read_epochs(kafka) == {topic: 1, other: 0}
    assert sorted(numbers(consume(kafka, topic))) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert numbers(consume(kafka, other)) == [6]


@pytest.mark.thorough
@pytest.mark.advice("The next run goes on. If the record of publishing")
def test_who_does_not_know_that_events_are_sent_again_sends_none_of_them(kafka: KafkaConfig, topic: str) -> None:
    """It has selected those after a batch, and others before them are not there any more."""
    other = f"{kafka.topic_prefix}.shop.other"
    assert ensure_topics(kafka, [other]) == {}
    assert sum(sent.events for sent in Publisher(kafka, epochs={topic: 1}).send_all(rows(topic, [1, 2]))) == 2
    ((sent),) = Publisher(kafka).send_all([*rows(topic, [3], batch=2), *rows(other, [1])])
    assert (sent.events, list(sent.stuck), sent.stuck[topic].retriable) == (1, [topic], True)
    assert numbers(consume(kafka, topic)) == [1, 2]
    assert list(Publisher(kafka, epochs={topic: 1}).send_all(rows(topic, [3], batch=2))) == [Sent(1)]


def test_a_compacted_topic_takes_no_event_without_a_key_and_it_is_said_what_to_do(kafka: KafkaConfig, topic: str) -> None:
    compacted = f"{kafka.topic_prefix}.shop.compacted"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics([NewTopic(compacted, kafka.partitions, 1, config={"cleanup.policy": "compact"})]).values():
        future.result(timeout=30)
    everything = [*rows(compacted, range(1, 4)), *rows(topic, [1, 2])]
    everything[1].key = None
    ((sent),) = Publisher(kafka).send_all(everything)
    assert (sent.events, list(sent.stuck)) == (2, [compacted])
    assert "`skipped.operations`" in str(sent.stuck[compacted])
    # As it is skipped then.
    assert send(kafka, [everything[0], *everything[2:]]) == 2
    assert sorted(numbers(consume(kafka, compacted))) == [1, 3]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "docs/security.md"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "docs/security.md"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "docs/security.md"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "docs/security.md"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "security.protocol"),
        (KafkaError._AUTHENTICATION, "security.protocol"),
    ],
)
def test_a_missing_right_and_a_refused_login_say_what_to_check(code: int, said: str) -> None:
    """The next run would meet them again."""
    found = _failure("start a publisher", "p.publisher.0", KafkaException(KafkaError(code)))
    assert said in str(found)
    assert not found.retriable


def test_a_transaction_ends_by_events_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_EVENTS_PER_TRANSACTION", 4)
    monkeypatch.setattr(jobs, "_BYTES_PER_TRANSACTION", 100)
    found = rows("t", range(1, 12))
    found[1].value = b"x" * 99
    found[2].value = None
    assert [[row.ordinal for row in chunk] for chunk in jobs.chunks(found)] == [[1, 2], [3, 4, 5, 6], [7, 8, 9, 10], [11]]


def test_no_broker_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_TIMEOUT_SECONDS", 2.0)
    nowhere = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"})
    with pytest.raises(PublishError, match="list the topics") as raised:
        ensure_topics(nowhere, ["t.a.b"])
    assert raised.value.retriable


@pytest.mark.advice("Lower `transaction.timeout.ms` under `kafka.producer`, or raise transaction.max.timeout.ms of the brokers.")
def test_a_time_for_transactions_beyond_the_brokers_says_what_to_lower(kafka: KafkaConfig, topic: str) -> None:
    with pytest.raises(PublishError, match=r"larger than the maximum value allowed by the broker.*Lower `transaction\.timeout") as raised:
        send(kafka.model_copy(update={"producer": {"transaction.timeout.ms": 86_400_000}}), rows(topic, range(3)))
    assert not raised.value.retriable
    assert send(kafka, rows(topic, range(3))) == 3


@pytest.mark.advice("Lower `kafka.replication.factor`, or add brokers.")
def test_more_replicas_than_brokers_says_what_to_lower(kafka: KafkaConfig) -> None:
    name = f"{kafka.topic_prefix}.shop.orders"
    with pytest.raises(PublishError, match=r"Unable to replicate.*Lower `kafka\.replication\.factor`") as raised:
        ensure_topics(kafka.model_copy(update={"replication_factor": 3}), [name])
    assert not raised.value.retriable
    assert ensure_topics(kafka, [name]) == {}


def test_a_topic_that_is_not_made_in_time_is_refused_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"})
    present = SimpleNamespace(topics={progress_topic("t"): SimpleNamespace(partitions=dict.fromkeys(range(kafka.publishers)))})
    monkeypatch.setattr(jobs, "_check_keeps", lambda *_: None)
    admin = SimpleNamespace(list_topics=lambda **_: present, create_topics=lambda wanted: {topic.topic: Future[None]() for topic in wanted})
    monkeypatch.setattr(jobs, "AdminClient", lambda _: admin)
    monkeypatch.setattr(jobs, "_TIMEOUT_SECONDS", 0.1)
    refused = ensure_topics(kafka, ["t.a.b"])
    assert list(refused) == ["t.a.b"]
    assert refused["t.a.b"].retriable
    present.topics = {}
    with pytest.raises(PublishError, match="no answer"):
        ensure_topics(kafka, [])


def test_every_option_of_the_producer_is_passed_on(kafka: KafkaConfig, topic: str) -> None:
    wrong: Iterator[Sent] = Publisher(kafka.model_copy(update={"producer": {"no.such.option": "1"}})).send_all(rows(topic, [1]))
    with pytest.raises(PublishError, match=r"no\.such\.option"):
        next(wrong)


def test_limits_are_those_of_topic_and_producer(kafka: KafkaConfig, topic: str) -> None:
    small = f"{kafka.topic_prefix}.shop.small"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics([NewTopic(small, 1, 1, config={"max.message.bytes": "5000"})]).values():
        future.result(timeout=30)
    wrong = f"{kafka.topic_prefix}.no topic"
    limits, silent = message_limits(kafka.model_copy(update={"producer": {"message.max.bytes": 20_000}}), [topic, small, wrong])
    # One that does not tell keeps nothing from the others.
    assert limits.keys() == {topic, small}
    assert wrong in str(silent[wrong])
    assert 19_000 < limits[topic] < 20_000
    assert 4000 < limits[small] < 5000
    # What is as large as that goes.
    everything = rows(small, [1])
    everything[0].value = random.Random(1).randbytes(limits[small] - len(everything[0].key))
    assert send(kafka, everything) == 1


def test_the_limit_of_a_topic_that_does_not_exist_yet_is_the_brokers(kafka: KafkaConfig, topic: str) -> None:
    absent = f"{kafka.topic_prefix}.shop.absent"
    generous = kafka.model_copy(update={"producer": {"message.max.bytes": 2_000_000}})
    assert message_limits(generous, [absent]) == ({absent: 1_048_588 - jobs._RECORD_OVERHEAD - len(absent)}, {})


def set_option(kafka: KafkaConfig, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (done,) = admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]).values()
    done.result(timeout=30)
    deadline = time.monotonic() + 30
    while next(iter(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values())).result(30)[name].value != value:
        assert time.monotonic() < deadline, "the broker does not take the option"
        time.sleep(0.05)


class Refusals:
    """Producers that note what a broker refuses, and whether each record is a batch of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.one_by_one: list[bool] = []
        self.aborted = 0
        refusals = self

        class Noting:
            def __init__(self, options: dict[str, Any]) -> None:
                self._producer = Producer(options)
                refusals.one_by_one.append(options.get("batch.num.messages") == 1)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._producer, name)

            def abort_transaction(self, timeout: float) -> None:
                refusals.aborted += 1
                self._producer.abort_transaction(timeout)

        monkeypatch.setattr(jobs, "Producer", Noting)


def of_limit(kafka: KafkaConfig, limit: int) -> str:
    small = f"{kafka.topic_prefix}.shop.small"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics([NewTopic(small, kafka.partitions, 1, config={"max.message.bytes": str(limit)})]).values():
        future.result(timeout=30)
    return small


def noise(topic: str, count: int, size: int) -> list[Changeable]:
    """Events that do not compress."""
    found = rows(topic, range(1, count + 1))
    for row in found:
        row.value = json.dumps({"n": row.ordinal, "noise": random.Random(row.ordinal).randbytes(size // 2).hex()}).encode()
    return found


def test_small_events_go_to_a_topic_whose_limit_is_below_that_of_batches(
    kafka: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = of_limit(kafka, 100_000)
    everything = [*noise(small, 300, 2000), *noise(topic, 300, 2000)]
    limits, _ = message_limits(kafka, [topic, small])
    refusals = Refusals(monkeypatch)
    assert list(Publisher(kafka, batch_bytes=min(limits.values())).send_all(everything)) == [Sent(600)]
    assert (refusals.one_by_one, refusals.aborted) == ([False], 0)
    assert sorted(numbers(consume(kafka, small))) == sorted(numbers(consume(kafka, topic))) == list(range(1, 301))


@pytest.mark.advice("or set `batch.size` under `kafka.producer`.")
def test_events_of_a_batch_that_the_broker_refuses_go_one_by_one(kafka: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_EVENTS_PER_TRANSACTION", 350)
    small = of_limit(kafka, 100_000)
    everything = [*noise(small, 300, 2000), *noise(topic, 100, 2000)]
    everything[200].value = random.Random(1).randbytes(150_000)
    # As for one who may not ask for the limits of topics.
    refusals = Refusals(monkeypatch)
    ((sent),) = Publisher(kafka).send_all(everything)
    assert (sent.events, list(sent.stuck)) == (100, [small])
    # After the batch that is refused, and after the event that is.
    assert refusals.one_by_one == [False, True, True]
    everything[200].value = b'{"n":201}'
    refusals.one_by_one.clear()
    bounded = kafka.model_copy(update={"producer": {"batch.size": 50_000}})
    assert list(Publisher(bounded).send_all(everything)) == [Sent(300)]
    assert refusals.one_by_one == [False]
    assert list(Publisher(kafka).send_all(everything)) == [Sent(0)]
    assert sorted(numbers(consume(kafka, small))) == list(range(1, 301))
    assert sorted(numbers(consume(kafka, topic))) == list(range(1, 101))
    for key in {key for _, key, _ in consume(kafka, small)}:
        of_key = [json.loads(value)["n"] for _, k, value in consume(kafka, small) if k == key and value is not None]
        assert of_key == sorted(of_key)


def test_what_another_run_has_sent_meanwhile_is_not_sent_one_by_one_too(
    kafka: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent between the refusal and the producer that sends events one by one."""
    small = of_limit(kafka, 100_000)
    everything = [*noise(small, 100, 2000), *noise(topic, 100, 2000)]
    another = kafka.model_copy(update={"producer": {"batch.size": 50_000}})
    begin, sent_by_another = Publisher._producer, []

    def overtaken(self: Publisher, publisher: int, *, one_by_one: bool = False) -> Any:
        if one_by_one:
            sent_by_another.extend(Publisher(another).send_all(everything))
        return begin(self, publisher, one_by_one=one_by_one)

    monkeypatch.setattr(Publisher, "_producer", overtaken)
    assert (list(Publisher(kafka).send_all(everything)), sent_by_another) == ([Sent(0)], [Sent(200)])
    assert sorted(numbers(consume(kafka, small))) == sorted(numbers(consume(kafka, topic))) == list(range(1, 101))


def test_records_say_in_headers_whose_they_are(kafka: KafkaConfig, topic: str) -> None:
    send(kafka, rows(topic, [5], batch=2))
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    messages = [consumer.poll(20) for _ in range(2)]
    consumer.close()
    expected = [("writetime.table", b"shop.orders"), ("writetime.op", b"d"), ("writetime.sequence", b"2.5")]
    assert [message.headers() for message in messages if message is not None] == [expected, expected]
    assert Publisher(kafka.model_copy(update={"headers": False}))._headers(topic, "u", 1, 5) is None


def test_a_partition_keys_records_are_in_the_partition_that_kafkas_own_hash_says(kafka: KafkaConfig, topic: str) -> None:
    found = rows(topic, range(1, 31))
    for row in found:
        row.placed_by = b"[%d]" % (row.ordinal % 7)
    send(kafka, found)
    for partition, _, value in consume(kafka, topic):
        if value is not None:
            assert partition == murmur2(b"[%d]" % (json.loads(value)["n"] % 7), kafka.partitions)


def test_a_switch_is_said_once_in_each_partition_and_is_progress(kafka: KafkaConfig, topic: str) -> None:
    without = kafka.model_copy(update={"headers": False})
    send(kafka, rows(topic, range(1, 5)))
    for _ in range(2):
        assert Publisher(without).mark_switch([topic], 2, "partition_key") == {}
    assert progress(kafka, 0) == {topic: (2, 0)}
    found = consume(kafka, topic)
    assert sorted(partition for partition, key, value in found if key is None and value is None) == [0, 1]
    assert numbers(found) == [1, 2, 3, 4] or sorted(numbers(found)) == [1, 2, 3, 4]
    send(kafka, rows(topic, range(1, 3), batch=2))
    for partition in range(kafka.partitions):
        of_partition = [(key, value) for at, key, value in consume(kafka, topic) if at == partition]
        marked = of_partition.index((None, None))
        assert all(value is None or json.loads(value)["n"] <= 4 for _, value in of_partition[:marked])
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": uuid.uuid4().hex, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    headers: Any = None
    while headers is None or dict(headers)["writetime.op"] != b"partition_by":
        message = consumer.poll(20)
        assert message is not None
        headers = message.headers()
    consumer.close()
    assert dict(headers) | {"writetime.table": b""} == {
        "writetime.table": b"",
        "writetime.op": b"partition_by",
        "writetime.partition_by": b"partition_key",
        "writetime.sequence": b"2.0",
    }


def test_each_partition_of_what_takes_it_is_marked_as_complete(kafka: KafkaConfig, topic: str) -> None:
    compacted, missing = (f"{kafka.topic_prefix}.shop.{name}" for name in ("compacted", "missing"))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(compacted, 2, config={"cleanup.policy": "compact"})])[compacted].result()
    send(kafka, rows(topic, range(1, 5)))
    jobs.mark_complete(kafka, [topic, compacted, missing], 1_700_000_000_123)
    assert missing not in admin.list_topics(timeout=20).topics
    assert consume(kafka, compacted) == []
    for partition in range(kafka.partitions):
        of_partition = [(key, value) for at, key, value in consume(kafka, topic) if at == partition]
        assert of_partition.index((None, None)) == len(of_partition) - 1
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": uuid.uuid4().hex})
    _, high = consumer.get_watermark_offsets(TopicPartition(topic, 1), timeout=20)
    consumer.assign([TopicPartition(topic, 1, high - 1)])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.headers() == [
        ("writetime.table", b"shop.orders"),
        ("writetime.op", b"complete"),
        ("writetime.complete_until_ms", b"1700000000123"),
    ]


def test_a_compacted_topic_does_not_take_a_switch(kafka: KafkaConfig) -> None:
    compacted = f"{kafka.topic_prefix}.shop.compacted"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(compacted, 2, config={"cleanup.policy": "compact"})])[compacted].result()
    plain = f"{kafka.topic_prefix}.shop.plain"
    ensure_topics(kafka, [plain])
    refused = Publisher(kafka).mark_switch([compacted, plain], 2, "partition_key")
    assert list(refused) == [compacted]
    assert "partition_by" in (refused[compacted].hint or "")
    assert progress(kafka, 0) == {plain: (2, 0)}
