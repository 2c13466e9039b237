"""What a broker and its clients do: each case on the double and on a real broker.

Strategy: calls of a producer are written as words, and their outcomes as `conftest.outcome` spells them. What can only be
shown on the double (faults, steps, copies) is in test_broker_double.py."""

from __future__ import annotations

import time
import zlib
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, Message, TopicPartition, murmur2
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from proof.doubles.broker import Fault
from tests.proof.doubles.conftest import Clients, outcome, spelled


def play(producer: Any, topic: str, calls: str) -> str:
    """Outcomes of calls. `produce:2` goes to partition 2."""
    found = []
    for call in calls.split():
        method, _, partition = call.partition(":")
        match method:
            case "produce":
                found.append(outcome(producer.produce, topic, call.encode(), partition=int(partition or 0)))
            case "flush":
                found.append(outcome(producer.flush, 30))
            case "begin":
                found.append(outcome(producer.begin_transaction))
            case _:
                found.append(outcome(getattr(producer, f"{method}_{'transactions' if method == 'init' else 'transaction'}"), 30))
    return " ".join(found)


# --- fencing

FENCED = [
    ("", "begin produce flush produce commit abort begin init", "ok ok _FENCED! _FATAL _FENCED! _FENCED! _FENCED! _FENCED!"),
    ("", "begin produce commit commit abort begin", "ok ok _FENCED! _FENCED! _FENCED! _FENCED!"),
    ("begin produce flush", "commit commit abort produce begin", "_FENCED! _FENCED! _FENCED! _FATAL _FENCED!"),
    ("begin produce flush", "abort commit produce begin", "_FENCED! _FENCED! _FATAL _FENCED!"),
    ("begin produce flush", "produce flush produce abort begin", "ok _FENCED! _FATAL _FENCED! _FENCED!"),
    ("begin produce flush", "produce:1 flush commit abort", "ok _FENCED! _FENCED! _FENCED!"),
    ("begin produce flush", "produce commit", "ok _FENCED!"),
    ("begin produce", "flush commit", "_FENCED! _FENCED!"),
    # What sends nothing does not notice.
    ("", "begin commit begin abort begin produce abort begin produce flush", "ok ok ok ok ok ok ok ok ok _FENCED!"),
    ("begin produce commit", "begin produce commit", "ok ok _FENCED!"),
]


@pytest.mark.parametrize(("before", "after", "expected"), FENCED)
def test_a_producer_is_fenced_by_the_next_of_its_name(clients: Clients, before: str, after: str, expected: str) -> None:
    topic, name = clients.topic(2), clients.name()
    earlier = clients.producer(name)
    assert set(play(earlier, topic, before).split()) <= {"ok"}
    later = clients.producer(name)
    assert play(later, topic, "begin produce:1 flush") == "ok ok ok"
    assert play(earlier, topic, after) == expected
    assert play(later, topic, "commit begin produce:1 commit") == "ok ok ok ok"
    assert clients.read(topic, 1) == [b"produce:1", b"produce:1"]
    assert clients.read(topic) == ([b"produce"] if "commit" in before else [])


TIMED_OUT = [
    ("commit abort begin", "_FENCED! _FENCED! _FENCED!"),
    ("abort commit produce", "_FENCED! _FENCED! _FATAL"),
    ("produce flush commit", "ok _FENCED! _FENCED!"),
    ("produce:1 flush abort", "ok _FENCED! _FENCED!"),
]


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(clients: Clients) -> None:
    late = []
    for calls, expected in TIMED_OUT:
        topic, name = clients.topic(2), clients.name()
        producer = clients.producer(name, **{"transaction.timeout.ms": 1000})
        assert play(producer, topic, "begin produce flush") == "ok ok ok"
        assert clients.read(topic, is_open=True) == []
        late.append((producer, topic, name, calls, expected))
    clients.clock[0] += 0.9
    assert clients.double is None or clients.read(late[0][1], is_open=True) == []
    clients.clock[0] += 0.1
    for producer, topic, name, calls, expected in late:
        if clients.double is None:
            until_aborted(clients, topic)
        assert (clients.read(topic), clients.read_all(topic)) == ([], [b"produce"])
        assert play(producer, topic, calls) == expected
        assert play(clients.producer(name), topic, "begin produce commit") == "ok ok ok"
        assert clients.read(topic) == [b"produce"]


def until_aborted(clients: Clients, topic: str) -> None:
    deadline = time.monotonic() + 40
    while clients._read(topic, 0, "read_committed", 0)[1] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_a_producer_without_an_open_transaction_may_wait_for_as_long_as_it_likes(clients: Clients) -> None:
    topic = clients.topic()
    producer = clients.producer(clients.name(), **{"transaction.timeout.ms": 1000})
    clients.clock[0] += 3600
    assert play(producer, topic, "begin") == "ok"
    clients.clock[0] += 3600
    assert play(producer, topic, "produce commit") == "ok ok"
    assert clients.read(topic) == [b"produce"]


def test_the_broker_limits_how_long_a_transaction_may_take(clients: Clients) -> None:
    producer = clients._client("Producer", **{"transactional.id": clients.name(), "transaction.timeout.ms": 900_001})
    assert outcome(producer.init_transactions, 30) == "INVALID_TRANSACTION_TIMEOUT!"


# --- the states of a producer

STATES = [
    ("commit", "_STATE"),
    ("abort", "_STATE"),
    ("produce", "_STATE"),
    ("init", "_STATE"),
    ("begin begin abort", "ok _STATE ok"),
    ("begin commit begin abort commit", "ok ok ok ok _STATE"),
    ("begin produce abort begin produce commit", "ok ok ok ok ok ok"),
]


@pytest.mark.parametrize(("calls", "expected"), STATES)
def test_calls_in_the_wrong_state(clients: Clients, calls: str, expected: str) -> None:
    assert play(clients.producer(clients.name()), clients.topic(), calls) == expected


def test_before_it_is_initialized_a_producer_does_nothing(clients: Clients) -> None:
    producer = clients._client("Producer", **{"transactional.id": clients.name()})
    assert play(producer, clients.topic(), "begin commit abort produce") == "_STATE _STATE _STATE _STATE"


def test_a_plain_producer_has_no_transactions(clients: Clients) -> None:
    topic, producer = clients.topic(), clients.producer()
    assert play(producer, topic, "init begin commit abort produce flush") == " ".join([*["_NOT_CONFIGURED"] * 4, "ok", "ok"])
    assert clients.read(topic) == [b"produce"]


def test_a_commit_whose_time_is_over_goes_on_when_it_is_called_again(clients: Clients) -> None:
    topic = clients.topic()
    producer = clients.producer(clients.name())
    play(producer, topic, "begin produce")
    if clients.double is not None:
        clients.double.fail(Fault.LOST_ANSWER, on="commit")
    assert outcome(producer.commit_transaction, 0) == "_TIMED_OUT~"
    assert play(producer, topic, "begin abort produce") == "_CONFLICT~ _CONFLICT~ _STATE"
    assert play(producer, topic, "commit begin abort") == "ok ok ok"
    assert clients.read(topic) == [b"produce"]


# --- what readers see


def test_an_open_transaction_hides_what_is_behind_it_in_its_own_partitions(clients: Clients) -> None:
    topic = clients.topic(2)
    producer, plain = clients.producer(clients.name()), clients.producer()
    play(plain, topic, "produce produce:1 flush")
    play(producer, topic, "begin produce flush")
    play(plain, topic, "produce produce:1 flush")
    assert clients.read(topic, is_open=True) == [b"produce"]
    assert clients.read_all(topic) == [b"produce"] * 3
    assert clients.read(topic, 1) == [b"produce:1"] * 2
    play(producer, topic, "commit")
    assert clients.read(topic) == [b"produce"] * 3


def test_records_of_a_transaction_are_seen_together_or_never(clients: Clients) -> None:
    topic = clients.topic(2)
    producer = clients.producer(clients.name())
    assert play(producer, topic, "begin produce flush produce:1 flush") == "ok ok ok ok ok"
    assert [clients.read(topic, each, is_open=True) for each in (0, 1)] == [[], []]
    assert play(producer, topic, "commit begin produce produce:1 flush abort") == "ok ok ok ok ok ok"
    assert [clients.read(topic, each) for each in (0, 1)] == [[b"produce"], [b"produce:1"]]
    assert clients.read_all(topic) == [b"produce"] * 2


def test_markers_have_offsets_and_a_consumer_ends_behind_them(clients: Clients) -> None:
    topic = clients.topic(2)
    producer = clients.producer(clients.name())
    play(producer, topic, "begin produce produce commit begin produce flush abort begin produce flush")
    clients.read(topic, is_open=True)
    consumer = clients.consumer()
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    assert [consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True)] == [(OFFSET_INVALID, OFFSET_INVALID)]
    found = [told(consumer.poll(30)) for _ in range(4)]
    assert [each for each in found if each[0] == 0] == [(0, 0, b"produce"), (0, 1, b"produce"), (0, 5, "_PARTITION_EOF")]
    assert (1, 0, "_PARTITION_EOF") in found
    assert consumer.poll(0.2) is None
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True) == (0, 6)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30) == (0, 5)
    play(producer, topic, "commit")
    assert [told(consumer.poll(30)) for _ in range(2)] == [(0, 5, b"produce"), (0, 7, "_PARTITION_EOF")]
    consumer.close()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(1)


def told(message: Message | None) -> tuple[int | None, int | None, Any]:
    assert message is not None, "the broker has gone silent"
    return message.partition(), message.offset(), message.value() if message.error() is None else message.error().name()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("start", "reset", "expected"),
    [
        (OFFSET_BEGINNING, "latest", [b"a", b"b"]),
        (1, "latest", [b"b"]),
        (OFFSET_END, "earliest", []),
        (100, "latest", []),
        (100, "earliest", [b"a", b"b"]),
    ],
)
def test_where_a_consumer_begins(clients: Clients, start: int, reset: str, expected: list[bytes]) -> None:
    topic, producer = clients.topic(), clients.producer()
    for value in (b"a", b"b"):
        producer.produce(topic, value)
    producer.flush(30)
    consumer = clients.consumer(**{"auto.offset.reset": reset})
    consumer.assign([TopicPartition(topic, 0, start)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.value())
    assert message is not None
    assert (found, told(message)) == (expected, (0, 2, "_PARTITION_EOF"))


def test_a_record_keeps_its_parts(clients: Clients) -> None:
    topic, producer = clients.topic(), clients.producer()
    producer.produce(topic, value="v", key="k", partition=0, headers=[("h", b"1"), ("g", None), ("h", "text")])
    producer.produce(topic, partition=0)
    producer.flush(30)
    consumer = clients.consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    first, second = consumer.poll(30), consumer.poll(30)
    assert (first.topic(), first.partition(), first.offset(), first.key(), first.value()) == (topic, 0, 0, b"k", b"v")
    assert first.headers() == [("h", b"1"), ("g", None), ("h", b"text")]
    kind, at = first.timestamp()
    assert kind == 1
    assert abs(at / 1000 - (time.time() if clients.double is None else clients.clock[0])) < 60
    assert (second.key(), second.value(), second.headers()) == (None, None, None)


@pytest.mark.parametrize("name", [None, "murmur2_random", "consistent"])
def test_the_key_decides_the_partition(clients: Clients, name: str | None) -> None:
    topic = clients.topic(3)
    producer = clients.producer(**({"partitioner": name} if name else {}))
    found: dict[Any, Any] = {}
    for key in (b"key%d" % number for number in range(20)):
        producer.produce(topic, b"v", key=key, on_delivery=lambda _, message: found.update({message.key(): message.partition()}))
    producer.flush(30)
    assert found == {key: murmur2(key, 3) if name == "murmur2_random" else zlib.crc32(key) % 3 for key in found}
    assert len(found) == 20


# --- what is rejected


class Reports(list[str]):
    """What a producer reports of its records, as `value: outcome`."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.append(f"{(message.value() or b'')[:5].decode()}: {spelled(error)}")

    def taken(self) -> list[str]:
        found = sorted(self)
        self.clear()
        return found


def test_every_delivery_is_reported_or_only_what_failed(clients: Clients) -> None:
    topic, reports = clients.topic(), Reports()
    for only_errors in (False, True):
        producer = clients.producer(**{"delivery.report.only.error": only_errors})
        producer.produce(topic, b"v", on_delivery=reports)
        assert len(producer) == 1
        assert producer.flush(30) == 0
        assert reports.taken() == ([] if only_errors else ["v: ok"])


@pytest.mark.parametrize(
    ("key", "headers", "most"),
    [
        (None, None, 1964),
        (b"k", None, 1963),
        (b"kkkkk", None, 1959),
        (b"k", [("h", b"1")], 1959),
        (b"k", [("hhh", b"1"), ("a", None)], 1954),
    ],
)
def test_the_client_rejects_what_is_too_large(clients: Clients, key: bytes | None, headers: Any, most: int) -> None:
    topic = clients.topic()
    producer = clients.producer(clients.name(), **{"message.max.bytes": 2000})
    producer.begin_transaction()
    assert outcome(producer.produce, topic, b"x" * (most + 1), key=key, headers=headers) == "MSG_SIZE_TOO_LARGE"
    assert outcome(producer.produce, topic, b"x" * most, key=key, headers=headers) == "ok"
    assert outcome(producer.commit_transaction, 30) == "ok"
    assert clients.read(topic) == [b"x" * most]


@pytest.mark.parametrize(("key", "headers", "most"), [(b"k", None, 929), (None, None, 930), (b"k" * 100, [("name", b"value")], 1000 - 182)])
def test_the_broker_rejects_what_is_too_large(clients: Clients, key: bytes | None, headers: Any, most: int) -> None:
    topic, reports = clients.topic(max_message_bytes="1000"), Reports()
    producer = clients.producer()
    for size in (most, most + 1):
        producer.produce(topic, b"x" * size, key=key, headers=headers, on_delivery=reports)
        producer.flush(30)
    assert reports.taken() == ["xxxxx: MSG_SIZE_TOO_LARGE", "xxxxx: ok"]
    assert clients.read(topic) == [b"x" * most]


def test_a_rejected_record_takes_its_batch_with_it_and_the_transaction_can_only_be_aborted(clients: Clients) -> None:
    small, other, reports = clients.topic(max_message_bytes="1000"), clients.topic(), Reports()
    producer = clients.producer(clients.name())
    producer.begin_transaction()
    for topic, value in ((other, b"fine"), (small, b"small"), (small, b"large" * 1000)):
        producer.produce(topic, value, on_delivery=reports)
    assert producer.flush(30) == 0
    assert reports.taken() == ["fine: ok", "large: MSG_SIZE_TOO_LARGE", "small: MSG_SIZE_TOO_LARGE"]
    refused = "MSG_SIZE_TOO_LARGE-"
    assert play(producer, other, "produce commit commit begin abort") == f"_STATE {refused} {refused} {refused} ok"
    assert play(producer, other, "begin produce commit") == "ok ok ok"
    assert (clients.read(other), clients.read(small), clients.read_all(small)) == ([b"produce"], [], [])


def test_a_commit_says_what_was_rejected(clients: Clients) -> None:
    topic = clients.topic(cleanup_policy="compact")
    assert play(clients.producer(clients.name()), topic, "begin produce commit abort begin commit") == "ok ok INVALID_RECORD- ok ok ok"


def test_after_a_rejection_the_partition_takes_nothing_until_a_second_abort(clients: Clients) -> None:
    """librdkafka counts the rejected batch, the broker does not; the second abort gives the producer a new epoch."""
    topic, reports = clients.topic(2, cleanup_policy="compact"), Reports()
    producer = clients.producer(clients.name())
    producer.begin_transaction()
    producer.produce(topic, b"none", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"first", key=b"k", partition=0, on_delivery=reports)
    producer.flush(30)
    assert reports.taken() == ["first: _PURGE_QUEUE"]
    assert outcome(producer.commit_transaction, 30) == "OUT_OF_ORDER_SEQUENCE_NUMBER-"
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"again", key=b"k", partition=0, on_delivery=reports)
    producer.commit_transaction(30)
    assert reports.taken() == ["again: ok"]
    assert clients.read(topic) == [b"again"]


def test_a_compacted_topic_takes_no_record_without_a_key(clients: Clients) -> None:
    topic, reports = clients.topic(cleanup_policy="compact"), Reports()
    producer = clients.producer()
    for value, key in ((b"none", None), (b"key", b"k")):
        producer.produce(topic, value, key=key, partition=0, on_delivery=reports)
    producer.flush(30)
    assert reports.taken() == ["key: INVALID_RECORD", "none: INVALID_RECORD"]
    producer.produce(topic, b"key", key=b"k", partition=0, on_delivery=reports)
    producer.flush(30)
    assert (reports.taken(), clients.read(topic)) == (["key: ok"], [b"key"])


def test_an_abort_purges_what_was_not_sent(clients: Clients) -> None:
    topic, reports = clients.topic(), Reports()
    producer = clients.producer(clients.name())
    producer.begin_transaction()
    producer.produce(topic, b"never", on_delivery=reports)
    producer.abort_transaction(30)
    producer.flush(30)
    assert (reports.taken(), clients.read_all(topic)) == (["never: _PURGE_QUEUE"], [])


def test_topics_and_partitions_that_do_not_exist(clients: Clients) -> None:
    topic, unknown, reports = clients.topic(), clients.name(), Reports()
    patience = {"topic.metadata.propagation.max.ms": 500}
    producer = clients.producer(**patience)
    assert play(producer, topic, "produce flush") == "ok ok"  # With it, the client learns of the partitions.
    assert outcome(producer.produce, topic, b"v", partition=1) == "_UNKNOWN_PARTITION"
    producer.produce(unknown, b"v", on_delivery=reports)
    assert producer.flush(30) == 0
    assert reports.taken() == ["v: UNKNOWN_TOPIC_OR_PART"]
    found = producer.list_topics(unknown, timeout=30).topics[unknown]
    assert (spelled(found.error), found.partitions) == ("UNKNOWN_TOPIC_OR_PART", {})
    consumer = clients.consumer()
    consumer.assign([TopicPartition(unknown, 0, 0)])
    assert consumer.poll(1) is None
    assert outcome(consumer.get_watermark_offsets, TopicPartition(unknown, 0), timeout=5) == "_UNKNOWN_PARTITION"
    transactional = clients.producer(clients.name(), **patience)
    assert play(transactional, unknown, "begin produce flush commit abort begin commit") == "ok ok ok _INCONSISTENT- ok ok ok"


# --- topics


def futures(found: dict[Any, Any]) -> str:
    return " ".join(outcome(future.result, 30) for future in found.values())


def test_topics_are_listed_with_their_partitions(clients: Clients) -> None:
    topic = clients.topic(3)
    for found in (clients.admin().list_topics(timeout=30), clients.producer().list_topics(topic, timeout=30)):
        assert (sorted(found.topics[topic].partitions), found.topics[topic].error, found.topics[topic].topic) == ([0, 1, 2], None, topic)
        assert len(found.brokers) == 1


def test_topics_that_cannot_be_created(clients: Clients) -> None:
    present, dotted = clients.topic(), f"{clients.name()}.a"
    wanted = {
        NewTopic(present, 1, 1): "TOPIC_ALREADY_EXISTS",
        NewTopic(clients.name(), 1, 3): "INVALID_REPLICATION_FACTOR",
        NewTopic(clients.name(), 0, 1): "INVALID_PARTITIONS",
        NewTopic(clients.name(), 1, 1, config={"no.such.option": "1"}): "INVALID_CONFIG",
        NewTopic(clients.name(), 1, 1, config={"max.message.bytes": "many"}): "INVALID_CONFIG",
        NewTopic("a/b", 1, 1): "TOPIC_EXCEPTION",
        NewTopic(dotted, 2, -1): "ok",
    }
    admin = clients.admin()
    assert futures(admin.create_topics(list(wanted))) == " ".join(wanted.values())
    assert futures(admin.create_topics([NewTopic(dotted.replace(".a", "_a"), 1, 1)])) == "TOPIC_EXCEPTION"
    assert len(admin.list_topics(timeout=30).topics[dotted].partitions) == 2
    with pytest.raises(ValueError, match="non-empty"):
        admin.create_topics([])


def test_the_settings_of_topics(clients: Clients) -> None:
    topic, admin = clients.topic(cleanup_policy="compact"), clients.admin()

    def settings() -> dict[str, str | None]:
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        found = future.result(30)
        return {name: found[name].value for name in ("cleanup.policy", "max.message.bytes", "retention.ms")}

    assert settings() == {"cleanup.policy": "compact", "max.message.bytes": "1048588", "retention.ms": "604800000"}
    entry = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    assert futures(admin.incremental_alter_configs([change])) == "ok"
    assert settings()["max.message.bytes"] == "2000"
    assert futures(admin.describe_configs([ConfigResource(ResourceType.TOPIC, clients.name())])) == "UNKNOWN_TOPIC_OR_PART"


def test_a_topic_that_is_deleted_and_made_anew_is_empty(clients: Clients) -> None:
    topic, admin = clients.topic(), clients.admin()
    play(clients.producer(), topic, "produce flush")
    assert clients.read(topic) == [b"produce"]
    assert futures(admin.delete_topics([topic, clients.name()])) == "ok UNKNOWN_TOPIC_OR_PART"
    assert topic not in admin.list_topics(timeout=30).topics
    assert futures(admin.create_topics([NewTopic(topic, 2, 1)])) == "ok"
    assert [clients.read(topic, each) for each in (0, 1)] == [[], []]
    assert play(clients.producer(), topic, "produce:1 flush") == "ok ok"
    assert clients.read(topic, 1) == [b"produce:1"]
