"""What only the double does: steps, faults, late markers, copies, compaction; and random calls of many clients."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st

from proof.doubles.broker import AdminClient, Broker, Consumer, Fault, Producer, installed
from spark_jobs.sinks.kafka import Publisher, Sent, ensure_topics, read_progress
from tests.examples import examples
from tests.proof.doubles.conftest import outcome
from tests.proof.doubles.test_broker import Reports, play
from tests.proof.doubles.test_broker_product import rows, topics_of
from writetime.config.kafka import KafkaConfig
from writetime.errors import PublishError


class Killed(BaseException):
    """The process dies at a step."""


class Steps:
    """What the broker announces. `at`: the step at which the process dies, by its number."""

    def __init__(self, at: int | None = None) -> None:
        self.found: list[str] = []
        self.at = at

    def __call__(self, what: str) -> None:
        if len(self.found) == self.at:
            raise Killed
        self.found.append(what)


def broker_of(steps: Steps | None = None, **options: Any) -> Broker:
    broker = Broker(lambda: 1_777_900_000.0, step=steps or Steps(), **options)
    broker.create_topic("t", 2)
    return broker


def producer_of(broker: Broker, name: str | None = None, **options: Any) -> Producer:
    producer = Producer({**({"transactional.id": name} if name else {}), **options}, broker=broker)
    if name:
        producer.init_transactions(30)
    return producer


def config(**options: Any) -> KafkaConfig:
    return KafkaConfig.model_validate({"bootstrap.servers": "double:1", "topic.prefix": "p", "partitions": 2, "publishers": 1} | options)


# --- steps


def test_each_request_is_announced() -> None:
    steps = Steps()
    broker = broker_of(steps)
    producer = producer_of(broker, "p")
    play(producer, "t", "begin produce produce:1 produce flush commit begin commit begin produce abort begin produce flush abort")
    producer.list_topics(timeout=30)
    producer.list_topics("t", timeout=30)
    play(producer_of(broker), "t", "produce flush flush")
    consumer = Consumer({}, broker=broker)
    consumer.assign([TopicPartition("t", 0, 0)])
    while consumer.poll(1) is not None:
        pass
    consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30)
    admin = AdminClient({}, broker=broker)
    admin.create_topics([NewTopic("u", 1, 1), NewTopic("v", 1, 1)])
    admin.describe_configs([ConfigResource(ResourceType.TOPIC, "u")])
    admin.delete_topics(["u"])
    assert steps.found == [
        *("broker: init p", "broker: produce p t[0]", "broker: produce p t[1]", "broker: commit p"),
        *("broker: produce p t[0]", "broker: abort p", "broker: list_topics", "broker: list_topics t", "broker: produce t[0]"),
        *("broker: fetch t[0]", "broker: fetch t[0]", "broker: watermarks t[0]"),
        *("broker: create_topics u v", "broker: describe_configs u", "broker: delete_topics u"),
    ]


def test_whoever_dies_at_a_step_leaves_the_broker_as_it_was_before() -> None:
    """A publisher is killed at each of its requests; the next one sends what is missing, once."""
    kafka = config()
    for at in range(1000):
        steps = Steps()
        broker = Broker(lambda: 1_777_900_000.0, step=steps)
        with installed(broker):
            ensure_topics(kafka, topics_of(kafka))
            steps.found, steps.at = [], at
            everything = rows(kafka, range(1, 11))
            is_over = False
            try:
                assert list(Publisher(kafka).send_all(everything)) == [Sent(10)]
                is_over = True
            except Killed:
                pass
            steps.at = None
            ((again),) = Publisher(kafka).send_all(everything)
            assert again.events in (0, 10)
            values = [value for topic in topics_of(kafka) for part in broker.committed(topic) for _, value in part if value is not None]
            assert (len(values), len(set(values))) == (10, 10)
        if is_over:
            assert 10 <= at < 30
            return
    raise AssertionError("it never ends")


# --- faults


def test_an_outage() -> None:
    broker = broker_of()
    reports = Reports()
    waiting, open_, aborting = (producer_of(broker, name) for name in ("waiting", "open", "aborting"))
    for each in (open_, aborting):
        play(each, "t", "begin produce flush")
    consumer = Consumer({"enable.partition.eof": True}, broker=broker)
    consumer.assign([TopicPartition("t", 1, 0)])
    broker.is_down = True
    assert outcome(waiting.list_topics, timeout=30) == "_TRANSPORT"
    waiting.begin_transaction()
    waiting.produce("t", b"lost", on_delivery=reports)
    assert (waiting.flush(30), reports.taken()) == (0, ["lost: _MSG_TIMED_OUT"])
    assert play(waiting, "t", "commit abort") == "_INCONSISTENT- _TIMED_OUT~"
    assert play(open_, "t", "commit begin abort") == "_TIMED_OUT~ _CONFLICT~ _CONFLICT~"
    assert play(aborting, "t", "abort begin commit") == "_TIMED_OUT~ _CONFLICT~ _CONFLICT~"
    new = Producer({"transactional.id": "new"}, broker=broker)
    assert play(new, "t", "init begin") == "_TIMED_OUT~ _CONFLICT~"
    assert consumer.poll(30) is None
    assert outcome(consumer.get_watermark_offsets, TopicPartition("t", 0), timeout=30) == "_UNKNOWN_PARTITION"
    admin = AdminClient({}, broker=broker)
    assert outcome(admin.create_topics([NewTopic("u", 1, 1)])["u"].result) == "_TIMED_OUT"
    broker.calm()
    for producer, call in ((waiting, "abort"), (open_, "commit"), (aborting, "abort"), (new, "init")):
        assert play(producer, "t", call) == "ok"
    assert consumer.poll(30).error().name() == "_PARTITION_EOF"  # type: ignore[union-attr]
    assert broker.committed("t") == [[(None, b"produce")], []]
    assert "u" not in broker.topics


def test_a_lost_answer() -> None:
    broker = broker_of()
    producer = producer_of(broker, "p")
    broker.fail(Fault.LOST_ANSWER, on="commit", skip=1)
    assert play(producer, "t", "begin produce commit") == "ok ok ok"
    assert play(producer, "t", "begin produce:1 commit") == "ok ok _TIMED_OUT~"
    assert broker.committed("t")[1] == [(None, b"produce:1")]
    assert play(producer, "t", "commit begin abort") == "ok ok ok"
    assert broker.committed("t")[1] == [(None, b"produce:1")]
    # Of a batch nobody knows, so that its transaction is aborted.
    broker.fail(Fault.LOST_ANSWER, on="produce p t[1]")
    assert play(producer, "t", "begin produce:1 flush commit abort") == "ok ok ok _INCONSISTENT- ok"
    assert [len(each) for each in broker.records("t")] == [1, 2]
    assert broker.committed("t")[1] == [(None, b"produce:1")]


def test_the_answer_to_a_commit_is_lost_and_the_next_producer_is_there() -> None:
    broker = broker_of()
    producer = producer_of(broker, "p")
    broker.fail(Fault.LOST_ANSWER, on="commit")
    assert play(producer, "t", "begin produce commit") == "ok ok _TIMED_OUT~"
    producer_of(broker, "p")
    assert play(producer, "t", "commit") == "_FENCED!"
    assert broker.committed("t")[0] == [(None, b"produce")]


def test_what_the_product_makes_of_faults() -> None:
    kafka, broker = config(), Broker(lambda: 1_777_900_000.0)
    with installed(lambda: broker):
        ensure_topics(kafka, topics_of(kafka))
        everything = rows(kafka, range(1, 11))
        for fault in Fault:
            for on in ("list_topics", "init", "produce", "fetch", "commit"):
                broker.fail(fault, on=on)
                with pytest.raises(PublishError, match="a retry may help"):
                    list(Publisher(kafka).send_all(everything))
        assert list(Publisher(kafka).send_all(everything)) == [Sent(0)]
        broker.is_down = True
        with pytest.raises(PublishError, match="no answer within 60 s"):
            read_progress(kafka, 0)


# --- late markers, copies, compaction


def test_markers_may_be_late() -> None:
    broker = broker_of(late_markers=True)
    producer = producer_of(broker, "p")
    play(producer, "t", "begin produce produce:1 commit")
    assert broker.committed("t") == [[], []]
    broker.write_marker(1)
    assert broker.committed("t") == [[], [(None, b"produce:1")]]
    # The next transaction, or the next producer, waits for them.
    play(producer, "t", "begin produce:1 flush")
    assert broker.committed("t") == [[(None, b"produce")], [(None, b"produce:1")]]
    assert broker.unmarked == []
    producer_of(broker, "p")
    assert broker.committed("t")[1] == [(None, b"produce:1")]
    assert [len(log.pending) for log in broker.topics["t"].partitions] == [0, 0]


def test_a_copy_goes_on_by_itself() -> None:
    broker = broker_of(late_markers=True)
    one, other, third = (producer_of(broker, name) for name in ("one", "other", "third"))
    play(one, "t", "begin produce commit")
    play(other, "t", "begin produce flush")
    play(third, "t", "begin produce:1 commit begin produce:1 flush")
    copy = broker.copied(lambda: 1_777_900_000.0)
    assert (copy.committed("t"), len(copy.unmarked)) == (broker.committed("t"), len(broker.unmarked))
    for each in (one, other, third):
        play(each, "t", "commit")
    while broker.unmarked:
        broker.write_marker()
    assert [len(each) for each in broker.committed("t")] == [2, 2]
    assert [len(each) for each in copy.committed("t")] == [0, 1]
    for name in ("one", "other", "third"):
        producer_of(copy, name)
    while copy.unmarked:
        copy.write_marker()
    assert [len(each) for each in copy.committed("t")] == [1, 1]
    assert [log.pending for log in copy.topics["t"].partitions] == [{}, {}]
    copy.create_topic("only.here", options={"cleanup.policy": "compact"})
    assert "only.here" not in broker.topics
    # A transaction without a record.
    play(producer_of(copy, "rejected"), "only.here", "begin produce flush abort")
    assert len(copy.copied(copy.now).unmarked) == len(copy.unmarked) == 1


def test_compaction_keeps_the_last_of_each_key_and_what_is_open() -> None:
    broker = broker_of()
    plain, transactional = producer_of(broker), producer_of(broker, "p")
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None)):
        plain.produce("t", value, key=key, partition=0)
    plain.flush(30)
    transactional.begin_transaction()
    transactional.produce("t", b"3", key=b"a", partition=0)
    transactional.flush(30)
    broker.compact("t")
    assert broker.committed("t")[0] == [(b"a", b"2"), (b"c", b"1")]
    transactional.commit_transaction(30)
    assert broker.committed("t")[0] == [(b"a", b"2"), (b"c", b"1"), (b"a", b"3")]
    broker.compact("t")
    assert [(each.offset, each.value) for each in broker.records("t")[0]] == [(3, b"1"), (5, b"3")]
    consumer = Consumer({"enable.partition.eof": True}, broker=broker)
    consumer.assign([TopicPartition("t", 0, 1)])
    assert [message.offset() for message in iter(partial(consumer.poll, 1), None)] == [3, 5, 7]


# --- random calls

WORDS = ("init", "begin", "produce", "produce:1", "flush", "commit", "abort", "wait", "marker", "read")
CALLS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(WORDS)), max_size=60)


@settings(max_examples=examples(200))
@given(CALLS, st.booleans())
def test_readers_see_each_transaction_whole_or_not_at_all_and_in_order(calls: list[tuple[int, str]], late_markers: bool) -> None:
    """Producers 0 and 1 have one name, 2 and 3 another one. A transaction is committed if its commit said so, and otherwise
    not; a reader who is at the end has seen all records of those, in the order of their commits by producer."""
    clock = [0.0]
    broker = Broker(lambda: clock[0], late_markers=late_markers)
    broker.create_topic("t", 2)
    producers = [Producer({"transactional.id": f"n{number // 2}"}, broker=broker) for number in range(4)]
    sent: list[list[bytes]] = [[] for _ in producers]
    committed: list[list[bytes]] = [[], []]
    readers = [Reader(broker, partition) for partition in (0, 1)]
    for count, (number, call) in enumerate(calls):
        producer = producers[number]
        if call == "wait":
            clock[0] += 40
        elif call == "marker" and broker.unmarked:
            broker.write_marker()
        elif call == "read":
            readers[number % 2].read()
        elif call.startswith("produce"):
            value = b"%d" % count
            partition = int(call[-1] == "1")
            if outcome(producer.produce, "t", value, partition=partition) == "ok":
                sent[number].append(b"%d:%s" % (partition, value))
        elif call in ("init", "begin", "flush", "commit", "abort"):
            result = play(producer, "t", call)
            if call == "commit" and result == "ok":
                committed[number // 2] += sent[number]
            if call in ("begin", "commit", "abort") and result == "ok":
                sent[number] = []
    for name in ("n0", "n1"):
        producer_of(broker, name)
    for partition, reader in enumerate(readers):
        values = reader.read()
        for each in committed:
            wanted = [value[2:] for value in each if value.startswith(b"%d:" % partition)]
            assert [value for value in values if value in wanted] == wanted
        assert set(values) == {value[2:] for each in committed for value in each if value.startswith(b"%d:" % partition)}


class Reader:
    """Reads committed records of a partition, a bit more each time."""

    def __init__(self, broker: Broker, partition: int) -> None:
        self.consumer = Consumer({"enable.partition.eof": True}, broker=broker)
        self.consumer.assign([TopicPartition("t", partition, 0)])
        self.values: list[bytes] = []

    def read(self) -> list[bytes]:
        for message in iter(partial(self.consumer.poll, 1), None):
            if message.error() is None:
                self.values.append(message.value())  # type: ignore[arg-type]
        return self.values
