"""The product's own publishing, on the double and on a real broker: equal outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import murmur2
from confluent_kafka.admin import ConfigResource, ResourceType

from spark_jobs.sinks import kafka as jobs
from spark_jobs.sinks.kafka import (
    Position,
    Publisher,
    Sent,
    ensure_topics,
    expect_own,
    last_sent,
    message_limits,
    read_epochs,
    read_progress,
    settled_progress,
    topic_ends,
)
from spark_jobs.topic_check import messages, partitions_of
from tests.proof.doubles.conftest import Clients
from writetime.config.kafka import KafkaConfig
from writetime.errors import PublishError
from writetime.events.naming import progress_topic
from writetime.pipeline.identity import Owner


@pytest.fixture
def kafka(clients: Clients) -> Iterator[KafkaConfig]:
    with clients.installed():
        yield clients.config()


def topics_of(kafka: KafkaConfig) -> list[str]:
    return [f"{kafka.topic_prefix}.shop.{name}" for name in ("orders", "users")]


def rows(kafka: KafkaConfig, ordinals: Iterable[int], *, batch: int = 1, publisher: int = 0) -> list[Any]:
    """Events of two topics in turn; each fifth deletes."""
    names = topics_of(kafka)
    return [
        jobs.Row(
            publisher=publisher,
            stream=names[ordinal % 2],
            topic=names[ordinal % 2],
            batch=batch,
            ordinal=ordinal,
            key=b"%d" % (ordinal % 3),
            value=b"%d.%d" % (batch, ordinal),
            op="d" if ordinal % 5 == 0 else "u",
            deletes=ordinal % 5 == 0,
            refused=None,
            placed_by=None,
        )
        for ordinal in ordinals
    ]


def sent(clients: Clients, kafka: KafkaConfig) -> list[list[list[bytes]]]:
    """What is in the partitions of the two topics."""
    return [[clients.read(topic, each) for each in range(kafka.partitions)] for topic in topics_of(kafka)]


def count(clients: Clients, kafka: KafkaConfig) -> int:
    return sum(value is not None for topic in sent(clients, kafka) for partition in topic for value in partition)


def test_events_are_sent_once_with_their_progress(clients: Clients, kafka: KafkaConfig) -> None:
    assert ensure_topics(kafka, topics_of(kafka)) == {}
    assert (last_sent(kafka), read_progress(kafka, 0)) == (0, {})
    everything = [*rows(kafka, range(1, 11)), *rows(kafka, range(1, 11), publisher=1)]
    assert list(Publisher(kafka).send_all(everything)) == [Sent(10), Sent(10)]
    orders, users = topics_of(kafka)
    for publisher in (0, 1):
        assert read_progress(kafka, publisher) == {orders: Position(1, 10), users: Position(1, 9)}
    found = sent(clients, kafka)
    assert list(Publisher(kafka).send_all(everything)) == [Sent(0), Sent(0)]
    assert (sent(clients, kafka), count(clients, kafka)) == (found, 20)
    assert list(Publisher(kafka).send_all(rows(kafka, [1, 2], batch=7))) == [Sent(2)]
    assert last_sent(kafka) == 7
    assert count(clients, kafka) == 22
    expected = {key: murmur2(key, 2) for key in (b"0", b"1", b"2")}
    for topic in found:
        for number, partition in enumerate(topic):
            assert {expected[b"%d" % (int(value.split(b".")[1]) % 3)] for value in partition if value} <= {number}


def test_what_is_to_be_sent_again_is_sent_again(clients: Clients, kafka: KafkaConfig) -> None:
    ensure_topics(kafka, topics_of(kafka))
    orders, users = topics_of(kafka)
    list(Publisher(kafka).send_all(rows(kafka, range(1, 5))))
    again = Publisher(kafka, epochs={orders: 1})
    assert list(again.send_all(rows(kafka, range(1, 5)))) == [Sent(2)]
    assert list(again.send_all(rows(kafka, range(1, 5)))) == [Sent(0)]
    assert read_epochs(kafka) == {orders: 1, users: 0}
    assert count(clients, kafka) == 6
    (late,) = Publisher(kafka).send_all(rows(kafka, [6], batch=2))
    assert (late.events, list(late.stuck)) == (0, [orders])


def test_topics_belong_to_one_pipeline(clients: Clients, kafka: KafkaConfig) -> None:
    mine, theirs = (Owner(cluster="ring", pipeline=name, id=UUID(int=number)) for number, name in ((1, "orders"), (2, "others")))
    # Those that do not exist are nobody's.
    expect_own(kafka, mine)
    ensure_topics(kafka, topics_of(kafka))
    expect_own(kafka, mine)
    assert list(Publisher(kafka, owner=mine).send_all(rows(kafka, [1]))) == [Sent(1)]
    for refused in (lambda: expect_own(kafka, theirs), lambda: list(Publisher(kafka, owner=theirs).send_all(rows(kafka, [2])))):
        with pytest.raises(PublishError, match="belong to pipeline orders of cluster ring"):
            refused()
    assert list(Publisher(kafka, owner=mine).send_all(rows(kafka, [1, 2]))) == [Sent(1)]


def test_a_topic_with_an_event_that_is_too_large_waits_and_others_go_on(clients: Clients, kafka: KafkaConfig) -> None:
    ensure_topics(kafka, topics_of(kafka))
    orders, users = topics_of(kafka)
    everything = rows(kafka, range(1, 11))
    everything[1] = everything[1]._replace(value=b"x" * 1_000_000)
    ((result),) = Publisher(kafka).send_all(everything)
    assert (result.events, list(result.stuck)) == (5, [orders])
    assert read_progress(kafka, 0) == {users: Position(1, 9)}
    assert message_limits(kafka, [orders])[0] == {orders: 1_000_000 - 256 - len(orders)}


def test_a_topic_that_the_broker_rejects_an_event_of_waits_and_others_go_on(clients: Clients, kafka: KafkaConfig) -> None:
    orders, users = topics_of(kafka)
    clients.create(orders, 2, **{"cleanup.policy": "compact"})
    assert ensure_topics(kafka, topics_of(kafka)) == {}
    everything = rows(kafka, range(1, 11))
    everything[1] = everything[1]._replace(key=None)
    ((result),) = Publisher(kafka).send_all(everything)
    assert (result.events, list(result.stuck)) == (5, [orders])
    assert "Broker failed to validate record" in str(result.stuck[orders])
    assert read_progress(kafka, 0) == {users: Position(1, 9)}
    assert [each for partition in sent(clients, kafka)[0] for each in partition] == []


def test_a_switch_is_marked_in_each_partition(clients: Clients, kafka: KafkaConfig) -> None:
    ensure_topics(kafka, topics_of(kafka))
    assert Publisher(kafka).mark_switch(topics_of(kafka), 3, "partition_key") == {}
    assert sent(clients, kafka) == [[[None], [None]], [[None], [None]]]
    assert last_sent(kafka) == 3


def test_topics_are_marked_as_complete_unless_they_are_compacted(clients: Clients, kafka: KafkaConfig) -> None:
    orders, users = topics_of(kafka)
    clients.create(users, 2, **{"cleanup.policy": "compact"})
    ensure_topics(kafka, [orders])
    jobs.mark_complete(kafka, [orders, users, f"{kafka.topic_prefix}.shop.none"], 1_777_900_000_000)
    assert sent(clients, kafka) == [[[None], [None]], [[], []]]


def test_heartbeats(clients: Clients, kafka: KafkaConfig) -> None:
    for value in (b"1", b"2"):
        jobs.send_heartbeat(kafka, b"k", value)
    found = [clients.read(kafka.heartbeat_topic, each) for each in range(kafka.partitions)]
    assert sorted(found) == [[], [b"1", b"2"]]


def test_the_topics_of_a_prefix(clients: Clients, kafka: KafkaConfig) -> None:
    progress = progress_topic(kafka.topic_prefix)
    assert ensure_topics(kafka, topics_of(kafka)) == ensure_topics(kafka, topics_of(kafka)) == {}
    present = clients.admin().list_topics(timeout=30).topics
    assert [len(present[name].partitions) for name in (*topics_of(kafka), progress)] == [2, 2, 2]
    (settings,) = clients.admin().describe_configs([ConfigResource(ResourceType.TOPIC, progress)]).values()
    assert settings.result(30)["cleanup.policy"].value == "compact"
    assert list(ensure_topics(kafka, [topics_of(kafka)[0].replace(".shop.", "_shop_")])) == [
        topics_of(kafka)[0].replace(".shop.", "_shop_")
    ]
    with pytest.raises(PublishError, match="it was made for 2 publishers"):
        ensure_topics(kafka.model_copy(update={"publishers": 3}), [])


def test_a_progress_topic_that_expires_is_refused(clients: Clients, kafka: KafkaConfig) -> None:
    clients.create(progress_topic(kafka.topic_prefix), 2)
    with pytest.raises(PublishError, match=r"its cleanup\.policy is `delete`"):
        ensure_topics(kafka, [])


def test_progress_behind_an_open_transaction_is_not_read(clients: Clients, kafka: KafkaConfig) -> None:
    ensure_topics(kafka, [])
    producer = Publisher(kafka)._producer(0)
    producer.begin_transaction()
    producer.produce(progress_topic(kafka.topic_prefix), key=b"a.b.c", value=b"[1, 9]", partition=0)
    producer.flush(30)
    with pytest.raises(PublishError, match="a transaction is open in partition 0: it can be read up to 0, and ends at 1") as caught:
        read_progress(kafka, 0)
    assert caught.value.retriable
    assert read_progress(kafka, 1) == {}
    producer.abort_transaction(30)
    assert clients.read(progress_topic(kafka.topic_prefix)) == []
    assert read_progress(kafka, 0) == {}


@pytest.mark.parametrize("before", [1, 5, 10])
def test_of_two_publishers_of_one_name_the_later_one_sends_everything_once(clients: Clients, kafka: KafkaConfig, before: int) -> None:
    """The later one begins when the earlier one has been given so many rows."""
    ensure_topics(kafka, topics_of(kafka))
    everything = rows(kafka, range(1, 11))

    def overtaken() -> Iterator[Any]:
        yield from everything[:before]
        assert list(Publisher(kafka).send_all(everything)) == [Sent(10)]
        yield from everything[before:]

    with pytest.raises(PublishError, match=r"fenced by a newer instance.* \(a retry may help\)\. Another run publishes") as caught:
        list(Publisher(kafka).send_all(overtaken()))
    assert caught.value.retriable
    assert count(clients, kafka) == 10
    assert list(Publisher(kafka).send_all(everything)) == [Sent(0)]


def test_what_an_earlier_publisher_left_open_is_aborted_by_the_next(clients: Clients, kafka: KafkaConfig) -> None:
    ensure_topics(kafka, topics_of(kafka))
    publisher = Publisher(kafka)
    producer = publisher._producer(0)
    producer.begin_transaction()
    assert publisher._produce_chunk(producer, 0, rows(kafka, range(1, 11)), {}) == (10, [])
    assert list(publisher.send_all(rows(kafka, range(1, 11)))) == [Sent(10)]
    assert count(clients, kafka) == 10


def test_topics_are_read_as_the_topic_check_reads_them(clients: Clients, kafka: KafkaConfig) -> None:
    ensure_topics(kafka, topics_of(kafka))
    list(Publisher(kafka).send_all(rows(kafka, range(1, 11))))
    orders, _ = topics_of(kafka)
    for number in (0, 1):
        clients.read(orders, number)
    found = partitions_of(kafka, orders)
    assert [(each.number, each.first) for each in found] == [(0, 0), (1, 0)]
    values = [value for each in found for _, value in messages(kafka, orders, each) if value is not None]
    assert sorted(values) == sorted(b"1.%d" % each for each in range(2, 11, 2))
    with pytest.raises(PublishError, match="Unknown topic"):
        partitions_of(kafka, f"{kafka.topic_prefix}.none")


def test_where_topics_end_only_grows_while_they_are_the_same(clients: Clients, kafka: KafkaConfig) -> None:
    orders, users = topics_of(kafka)
    assert topic_ends(kafka, []) == {}
    assert topic_ends(kafka, [orders, users]) == {orders: 0, users: 0}
    ensure_topics(kafka, [orders])
    assert topic_ends(kafka, [orders, users]) == {orders: 0, users: 0}
    ensure_topics(kafka, [users])
    (first,) = Publisher(kafka).send_all(rows(kafka, range(1, 11)))
    assert (first.publisher, first.reached) == (0, {orders: 1, users: 1})
    before = topic_ends(kafka, [orders, users])
    # With the records that end transactions.
    assert all(end >= 5 for end in before.values())
    (second,) = Publisher(kafka).send_all(rows(kafka, [2], batch=7))
    assert second.reached == {orders: 7, users: 1}
    after = topic_ends(kafka, [orders, users])
    assert after[orders] > before[orders]
    # Markers may be written after a commit is answered.
    assert after[users] >= before[users]
    assert settled_progress(kafka)[0] == {orders: Position(7, 2), users: Position(1, 9)}
