"""A Kafka broker in the memory of one process, and clients in the place of librdkafka's.

    broker = Broker(clock, step=world.step)
    with installed(broker):
        Publisher(config).send_all(rows)
    broker.committed("shop.orders")

Strategy: clients make *requests*. Before each of them the broker calls `step` with a short text ("broker: commit
shop.publisher.0"); whoever is called there may let others go on, or raise, and then nothing of the request was done.
A request is done as a whole. There are no threads, no randomness and no time but `now`: a client sends what it
has queued when it is flushed, polled with a time-out, or commits; nothing waits, and what would be waited for in vain
fails at once. Rules and errors are those of librdkafka 2.16 and Kafka 4.1, and `tests/proof/doubles` holds both
against the same cases. Where they are coarser than these:

* A consumer fetches all that there is in one request per partition, and then says that it has reached the end. Kafka takes
  two requests; what is readable only grows, so that both may as well have been made at the time of the second.
* A transaction that has run out of time is aborted at that moment, not at the coordinator's next look (10 s).
* With a failed callback pending, Python's client raises SystemError with the error as its cause; here it is the error.
* A record without a key goes to partition 0, not to any.
* During an outage messages fail at once with _MSG_TIMED_OUT, as they do in an outage that is longer than their time-out.
* No group, no quota, no queue that is full; a topic has the options of `DEFAULTS` only, and Kafka's own are not listed.

Must not know what is published, nor the schedule."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from unittest import mock

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition, murmur2
from confluent_kafka.admin import (
    BrokerMetadata,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ListOffsetsResultInfo,
    PartitionMetadata,
    ResourceType,
    TopicMetadata,
)

from proof.doubles.partition_log import Headers, PartitionLog, Record, Transaction, is_larger

T = TypeVar("T")

DEFAULTS: Final = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.ms": "604800000",
}
"""Options of a topic."""
USERS: Final = ("spark_jobs.sinks.kafka", "spark_jobs.topic_check")
"""Modules of the product that have clients of Kafka."""
_MAX_TRANSACTION_MS: Final = 900_000
_BATCH_BYTES: Final = 1_000_000
_BATCH_RECORDS: Final = 10_000
_BY_KEY: Final = -1
_OF_BATCHES: Final = (KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE)
"""What a broker has against a batch."""


class Fault(Enum):
    """What happens to a request."""

    UNAVAILABLE = "no answer, and nothing was done"
    LOST_ANSWER = "no answer, and it was done"


class Unanswered(Exception):
    """A request had no answer in time. Each client has its own error for that."""


@dataclass
class _Rule:
    fault: Fault
    on: str
    skip: int
    times: int


@dataclass
class Topic:
    """`options` are those that were set."""

    name: str
    partitions: list[PartitionLog]
    options: dict[str, str]

    @property
    def settings(self) -> dict[str, str]:
        return DEFAULTS | self.options


@dataclass
class _TransactionalId:
    """What the coordinator knows of a transactional id. `timeout`: seconds that a transaction may take; `last`: the
    transaction that ended last."""

    epoch: int
    timeout: float
    transaction: Transaction | None = None
    last: Transaction | None = None


def nothing(_: str) -> None:
    """A step at which nothing happens."""


class Broker:
    """See the module's docstring. `now` gives seconds. With `late_markers`, a commit or an abort is answered before its
    markers are written, as Kafka does it: `write_marker` writes one, and the producer's next transaction waits for them.
    `is_down`: no request has an answer."""

    def __init__(self, now: Callable[[], float], *, step: Callable[[str], None] = nothing, late_markers: bool = False) -> None:
        self.now, self.step, self.late_markers = now, step, late_markers
        self.is_down = False
        self.topics: dict[str, Topic] = {}
        self.unmarked: list[tuple[Transaction, PartitionLog]] = []
        self._ids: dict[str, _TransactionalId] = {}
        self._rules: list[_Rule] = []

    # --- for whoever watches: no requests

    def committed(self, topic: str) -> list[list[tuple[bytes | None, bytes | None]]]:
        """Key and value of what readers of committed records get now, by partition."""
        return [[(each.key, each.value) for each in log.read(log.start, committed=True)] for log in self._logs(topic)]

    def records(self, topic: str) -> list[list[Record]]:
        """All records by partition, with what is open or aborted, without markers."""
        return [list(log.read(log.start, committed=False)) for log in self._logs(topic)]

    def _logs(self, topic: str) -> list[PartitionLog]:
        return self.topics[topic].partitions if topic in self.topics else []

    def copied(self, now: Callable[[], float], step: Callable[[str], None] = nothing) -> Broker:
        """The same broker in another world. Clients stay with this one."""
        made = Broker(now, step=step, late_markers=self.late_markers)
        of_logs = chain.from_iterable(log.pending for topic in self.topics.values() for log in topic.partitions)
        of_ids = (each.transaction for each in self._ids.values() if each.transaction is not None)
        pending = dict.fromkeys(chain(of_logs, of_ids, (transaction for transaction, _ in self.unmarked)))
        fresh = {each: replace(each, partitions=[]) for each in pending}
        logs: dict[PartitionLog, PartitionLog] = {}
        for topic in self.topics.values():
            logs |= {log: log.copied(fresh) for log in topic.partitions}
            made.topics[topic.name] = Topic(topic.name, [logs[log] for log in topic.partitions], dict(topic.options))
        for each, other in fresh.items():
            other.partitions = [logs[log] for log in each.partitions if log in logs]
        made.unmarked = [(fresh[each], logs[log]) for each, log in self.unmarked if log in logs]
        made._ids = {
            name: replace(each, transaction=fresh.get(each.transaction), last=fresh.get(each.last)) for name, each in self._ids.items()
        }
        made._rules, made.is_down = [replace(rule) for rule in self._rules], self.is_down
        return made

    def compact(self, topic: str) -> None:
        for log in self._logs(topic):
            log.compact()

    def write_marker(self, index: int = 0) -> None:
        """Write one of the markers that are late."""
        transaction, log = self.unmarked.pop(index)
        log.mark(transaction, self._at())

    # --- faults

    def fail(self, fault: Fault, *, on: str = "", times: int = 1, skip: int = 0) -> None:
        """Let a fault come over the next `times` requests, after `skip` of them, whose text starts with `on`, as
        "commit" or "fetch shop.orders"."""
        self._rules.append(_Rule(fault, on, skip, times))

    def calm(self) -> None:
        """No more faults."""
        self.is_down = False
        self._rules.clear()

    def _strike(self, what: str) -> Fault | None:
        if self.is_down:
            return Fault.UNAVAILABLE
        for rule in self._rules:
            if rule.times and what.startswith(rule.on):
                if not rule.skip:
                    rule.times -= 1
                    return rule.fault
                rule.skip -= 1
        return None

    # --- requests

    def ask(self, what: str, do: Callable[[], T]) -> T:
        """Make a request. Unanswered, if there is no answer."""
        self.step(f"broker: {what}")
        fault = self._strike(what)
        if fault is Fault.UNAVAILABLE:
            raise Unanswered(what)
        self._abort_late_ones()
        if fault is Fault.LOST_ANSWER:
            with suppress(KafkaException):
                do()
            raise Unanswered(what)
        return do()

    def partition(self, topic: str, number: int) -> PartitionLog:
        logs = self._logs(topic)
        if not 0 <= number < len(logs):
            raise _failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return logs[number]

    def begin_producer(self, name: str, timeout: float) -> int:
        """A new epoch of a transactional id; what the one before left open is aborted."""
        if timeout * 1000 > _MAX_TRANSACTION_MS:
            raise _failed(KafkaError.INVALID_TRANSACTION_TIMEOUT)
        known = self._ids.setdefault(name, _TransactionalId(-1, timeout))
        self._settle(known)
        if known.transaction is not None:
            self._end(known, committed=False)
            self._settle(known)
        known.epoch, known.timeout = known.epoch + 1, timeout
        return known.epoch

    def produce(self, topic: str, number: int, records: list[Record], producer: tuple[str, int] | None) -> int:
        """Append a batch; returns the offset of its first record. `producer`: transactional id and epoch."""
        log = self.partition(topic, number)
        transaction = self._join(*producer, log) if producer else None
        settings = self.topics[topic].settings
        if "compact" in settings["cleanup.policy"] and any(record.key is None for record in records):
            raise _failed(KafkaError.INVALID_RECORD)
        if is_larger(records, int(settings["max.message.bytes"])):
            raise _failed(KafkaError.MSG_SIZE_TOO_LARGE)
        return log.append([record._replace(transaction=transaction) for record in records], self._at())

    def _join(self, name: str, epoch: int, log: PartitionLog) -> Transaction:
        known = self._fenced(name, epoch)
        if known.transaction is None:
            self._settle(known)
            known.transaction = Transaction(self.now())
        if log not in known.transaction.partitions:
            known.transaction.partitions.append(log)
        return known.transaction

    def end_transaction(self, name: str, epoch: int, *, committed: bool) -> None:
        """The second time, it is done already."""
        known = self._fenced(name, epoch)
        if known.transaction is not None:
            self._end(known, committed=committed)

    def _fenced(self, name: str, epoch: int) -> _TransactionalId:
        known = self._ids[name]
        if known.epoch != epoch:
            raise _failed(KafkaError._FENCED)
        return known

    def _end(self, known: _TransactionalId, *, committed: bool) -> None:
        transaction = known.transaction
        assert transaction is not None
        transaction.committed, known.transaction, known.last = committed, None, transaction
        self.unmarked += [(transaction, log) for log in transaction.partitions]
        if not self.late_markers:
            self._settle(known)

    def _settle(self, known: _TransactionalId) -> None:
        """Write the markers of the id's last transaction."""
        for each in [each for each in self.unmarked if each[0] is known.last]:
            self.write_marker(self.unmarked.index(each))

    def _abort_late_ones(self) -> None:
        """The coordinator aborts what is open for too long, and fences its producer."""
        now = self.now()
        for known in self._ids.values():
            if known.transaction is not None and now >= known.transaction.began + known.timeout:
                self._end(known, committed=False)
                known.epoch += 1

    def _at(self) -> int:
        return int(self.now() * 1000)

    # --- requests of administrators

    def metadata(self, topic: str | None) -> ClusterMetadata:
        found = ClusterMetadata()
        broker = BrokerMetadata()
        broker.id, broker.host, broker.port = 1, "127.0.0.1", 9092
        found.brokers, found.cluster_id, found.controller_id, found.orig_broker_id = {1: broker}, "double", 1, 1
        found.topics = {name: self._topic_metadata(name) for name in (self.topics if topic is None else (topic,))}
        return found

    def _topic_metadata(self, name: str) -> TopicMetadata:
        found = TopicMetadata()
        found.topic = name
        found.error = None if name in self.topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        for number in range(len(self._logs(name))):
            each = PartitionMetadata()
            each.id, each.leader, each.replicas, each.isrs = number, 1, [1], [1]
            found.partitions[number] = each
        return found

    def create_topic(self, name: str, partitions: int = 1, replicas: int = -1, options: Mapping[str, str] | None = None) -> None:
        if name in self.topics:
            raise _failed(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        _check_name(name)
        if other := next((each for each in self.topics if each.replace(".", "_") == name.replace(".", "_")), None):
            raise _failed(KafkaError.TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")
        if partitions < 1:
            raise _failed(KafkaError.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
        if replicas not in (-1, 1):
            raise _failed(KafkaError.INVALID_REPLICATION_FACTOR, f"Unable to replicate the partition {replicas} time(s)")
        _check_options(options or {})
        self.topics[name] = Topic(name, [PartitionLog(f"{name}[{number}]") for number in range(partitions)], dict(options or {}))

    def delete_topic(self, name: str) -> None:
        gone = self._topic(name)
        del self.topics[name]
        self.unmarked = [each for each in self.unmarked if each[1] not in gone.partitions]

    def settings_of(self, name: str) -> dict[str, ConfigEntry]:
        _check_name(name)
        return {option: ConfigEntry(option, value) for option, value in self._topic(name).settings.items()}

    def own_settings(self) -> dict[str, ConfigEntry]:
        """Those of the broker: what a topic has that is made without options."""
        return {"message.max.bytes": ConfigEntry("message.max.bytes", DEFAULTS["max.message.bytes"])}

    def set_options(self, name: str, options: Mapping[str, str]) -> None:
        topic = self._topic(name)
        _check_options(options)
        topic.options.update(options)

    def _topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise _failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return self.topics[name]


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
        raise _failed(KafkaError.TOPIC_EXCEPTION, f"Topic name is invalid: '{name}'")


def _check_options(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name not in DEFAULTS:
            raise _failed(KafkaError.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if DEFAULTS[name].lstrip("-").isdecimal() and not re.fullmatch(r"-?\d+", value):
            raise _failed(KafkaError.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: Not a number of type INT")


# --- clients


class _Queued(NamedTuple):
    topic: str
    partition: int
    record: Record
    report: Callable[[KafkaError | None, Message], None] | None


class _State(Enum):
    """States of a transactional producer, by librdkafka's names."""

    INIT = "Init"
    INITIALIZING = "WaitPID"
    READY = "Ready"
    IN_TRANSACTION = "InTransaction"
    COMMITTING = "BeginCommit"
    ABORTING = "BeginAbort"


_CALLS: Final = {
    _State.INITIALIZING: "init_transactions",
    _State.COMMITTING: "commit_transaction",
    _State.ABORTING: "abort_transaction",
}
"""What goes on after its time-out until it is called again."""


class _Client:
    """What all clients have."""

    def __init__(self, options: Mapping[str, Any], *, broker: Broker) -> None:
        self._options, self._broker = dict(options), broker

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        try:
            return self._broker.ask(" ".join(filter(None, ("list_topics", topic))), lambda: self._broker.metadata(topic))
        except Unanswered:
            raise _failed(KafkaError._TRANSPORT, "Failed to get metadata: Local: Broker transport failure") from None


class Producer(_Client):
    """A producer, plain or transactional. What it is given is sent by a flush, a poll with a time-out or a commit, in one
    request for each partition."""

    def __init__(self, options: Mapping[str, Any], *, broker: Broker) -> None:
        super().__init__(options, broker=broker)
        self._name: str | None = self._options.get("transactional.id")
        self._epoch = -1
        self._state = _State.INIT
        self._fatal: KafkaError | None = None
        self._abortable: KafkaError | None = None
        self._has_joined = False
        self._undelivered = 0
        self._skipped: set[tuple[str, int]] = set()
        self._queue: list[_Queued] = []
        self._reports_all = not self._options.get("delivery.report.only.error", False)
        self._max_bytes = int(self._options.get("message.max.bytes", 1_000_000))
        self._batch_bytes = int(self._options.get("batch.size", _BATCH_BYTES))
        self._batch_records = int(self._options.get("batch.num.messages", _BATCH_RECORDS))
        self._is_idempotent = self._name is not None or bool(self._options.get("enable.idempotence", False))
        self._hash = murmur2 if str(self._options.get("partitioner", "")).startswith("murmur2") else _crc32

    def __len__(self) -> int:
        return len(self._queue)

    # --- records

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = _BY_KEY,
        *,
        on_delivery: Any = None,
        headers: Any = None,
    ) -> None:
        if self._name is not None:
            self._expect_open()
        record = Record(_bytes(key), _bytes(value), _headers(headers) or None)
        if record.client_size > self._max_bytes:
            raise _failed(KafkaError.MSG_SIZE_TOO_LARGE, "Unable to produce message: Broker: Message size too large")
        count = len(self._broker._logs(topic))
        if partition >= count > 0:
            raise _failed(KafkaError._UNKNOWN_PARTITION, "Unable to produce message: Local: Unknown partition")
        if partition == _BY_KEY:
            partition = self._hash(record.key, count) if record.key is not None and count else 0
        self._queue.append(_Queued(topic, partition, record, on_delivery))

    def _expect_open(self) -> None:
        if self._fatal is not None:
            raise _failed(KafkaError._FATAL, "Unable to produce message: Local: Fatal error")
        if self._state is not _State.IN_TRANSACTION or self._abortable is not None:
            raise _failed(KafkaError._STATE, "Unable to produce message: Local: Erroneous state")

    def poll(self, timeout: float = -1) -> int:
        return self._send() if timeout else 0

    def flush(self, timeout: float = -1) -> int:
        self._send()
        return len(self._queue)

    def _send(self) -> int:
        """Send what is queued. Returns how many reports were made."""
        queue, self._queue = self._queue, []
        return sum(self._send_batch(batch) for batch in _batches(queue, self._batch_bytes, self._batch_records))

    def _send_batch(self, batch: list[_Queued]) -> int:
        place = batch[0][:2]
        if place in self._skipped:
            self._spoil(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "skipped sequence numbers"))
            return sum(self._report(each, KafkaError(KafkaError._PURGE_QUEUE)) for each in batch)
        offset, error = self._request(place, [each.record for each in batch])
        if error is not None and error.code() in _OF_BATCHES:
            self._spoil(error)
        elif error is not None:
            self._undelivered += len(batch)
        return sum(self._report(each, error, offset + index) for index, each in enumerate(batch))

    def _request(self, place: tuple[str, int], records: list[Record]) -> tuple[int, KafkaError | None]:
        """The offset of the first record, or why there is none."""
        topic, number = place
        producer = (self._name, self._epoch) if self._name is not None else None
        try:
            what = " ".join(filter(None, ("produce", self._name, f"{topic}[{number}]")))
            offset = self._broker.ask(what, lambda: self._broker.produce(topic, number, records, producer))
        except Unanswered:
            self._has_joined = True
            return 0, KafkaError(KafkaError._MSG_TIMED_OUT)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() == KafkaError._FENCED:
                self._end_for_good(error)
            self._has_joined |= error.code() in _OF_BATCHES
            if self._is_idempotent and error.code() in _OF_BATCHES:
                self._skipped.add(place)
            return 0, error
        self._has_joined = True
        return offset, None

    def _spoil(self, error: KafkaError) -> None:
        """The transaction, if there is one, can only be aborted."""
        if self._name is not None and self._abortable is None:
            self._abortable = KafkaError(error.code(), error.str(), txn_requires_abort=True)

    def _report(self, queued: _Queued, error: KafkaError | None, offset: int = 0) -> int:
        if queued.report is None or (error is None and not self._reports_all):
            return 0
        record = queued.record
        about: dict[str, Any] = {"error": error} if error is not None else {"offset": offset}
        queued.report(error, Message(topic=queued.topic, partition=queued.partition, key=record.key, value=record.value, **about))
        return 1

    # --- transactions

    def init_transactions(self, timeout: float = -1) -> None:
        name = self._expect_state(_State.INIT, _State.INITIALIZING)
        self._state = _State.INITIALIZING
        seconds = int(self._options.get("transaction.timeout.ms", 60_000)) / 1000
        self._epoch = self._ask(f"init {name}", lambda: self._broker.begin_producer(name, seconds))
        self._state = _State.READY

    def begin_transaction(self) -> None:
        self._expect_state(_State.READY)
        self._state, self._has_joined, self._undelivered = _State.IN_TRANSACTION, False, 0

    def commit_transaction(self, timeout: float = -1) -> None:
        name = self._expect_state(_State.IN_TRANSACTION, _State.COMMITTING)
        self._state = _State.COMMITTING
        self._send()
        if self._undelivered:
            self._spoil(KafkaError(KafkaError._INCONSISTENT, f"{self._undelivered} message(s) failed delivery"))
        if self._abortable is not None:
            self._state = _State.IN_TRANSACTION
            raise KafkaException(self._abortable)
        self._end_transaction(f"commit {name}", name, committed=True)

    def abort_transaction(self, timeout: float = -1) -> None:
        if self._abortable is not None and self._fatal is None:
            if self._abortable.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
                # The producer gets a new epoch, in which sequence numbers begin again.
                self._skipped.clear()
            self._abortable = None
        name = self._expect_state(_State.IN_TRANSACTION, _State.ABORTING)
        self._state = _State.ABORTING
        queue, self._queue = self._queue, []
        for each in queue:
            self._report(each, KafkaError(KafkaError._PURGE_QUEUE))
        self._end_transaction(f"abort {name}", name, committed=False)

    def _end_transaction(self, what: str, name: str, *, committed: bool) -> None:
        """Ask for it, unless no partition has joined the transaction."""
        if self._has_joined:
            self._ask(what, lambda: self._broker.end_transaction(name, self._epoch, committed=committed))
        self._state = _State.READY

    def _expect_state(self, *states: _State) -> str:
        """The transactional id, if the call is allowed now."""
        if self._name is None:
            raise _failed(KafkaError._NOT_CONFIGURED, "The Transactional API requires transactional.id to be configured")
        if error := self._fatal or self._abortable:
            raise KafkaException(error)
        if self._state in states:
            return self._name
        if self._state in _CALLS:
            text = f"Conflicting {_CALLS[self._state]} API call is already in progress"
            raise KafkaException(KafkaError(KafkaError._CONFLICT, text, retriable=True))
        raise _failed(KafkaError._STATE, f"Operation not valid in state {self._state.value}")

    def _ask(self, what: str, do: Callable[[], T]) -> T:
        try:
            return self._broker.ask(what, do)
        except Unanswered:
            text = "Timed out waiting for operation to finish, retry call to resume"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text, retriable=True)) from None
        except KafkaException as failure:
            self._end_for_good(failure.args[0])

    def _end_for_good(self, error: KafkaError) -> NoReturn:
        self._queue.clear()
        self._fatal = KafkaError(error.code(), error.str(), fatal=True)
        raise KafkaException(self._fatal)


@dataclass
class _Assigned:
    """A partition of a consumer. `ended`: the end that was last reported; `seen`: the log's start and end at the last fetch."""

    topic: str
    number: int
    offset: int
    ended: int | None = None
    seen: tuple[int, int] = (OFFSET_INVALID, OFFSET_INVALID)


class Consumer(_Client):
    """A consumer of partitions that it is assigned. A poll that finds nothing does not wait."""

    def __init__(self, options: Mapping[str, Any], *, broker: Broker) -> None:
        super().__init__(options, broker=broker)
        self._committed = self._options.get("isolation.level", "read_committed") == "read_committed"
        self._reports_ends = bool(self._options.get("enable.partition.eof", False))
        self._assigned: list[_Assigned] = []
        self._fetched: list[Message] = []
        self._is_closed = False

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._fetched = []
        self._assigned = [_Assigned(each.topic, each.partition, each.offset) for each in partitions]

    def poll(self, timeout: float = -1) -> Message | None:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        if not self._fetched:
            self._fetched = [message for each in self._assigned for message in self._fetch(each)]
            self._fetched.reverse()
        return self._fetched.pop() if self._fetched else None

    def _fetch(self, assigned: _Assigned) -> list[Message]:
        """What there is, and the end. Nothing, if the partition does not exist: the client goes on looking for it."""
        try:
            return self._broker.ask(f"fetch {assigned.topic}[{assigned.number}]", lambda: list(self._messages(assigned)))
        except (Unanswered, KafkaException):
            return []

    def _messages(self, assigned: _Assigned) -> Iterator[Message]:
        topic, number = assigned.topic, assigned.number
        log = self._broker.partition(topic, number)
        end = log.stable if self._committed else log.end
        assigned.offset, assigned.seen = self._place(assigned.offset, log), (log.start, log.end)
        for record in log.read(assigned.offset, committed=self._committed):
            yield _message(topic, number, record)
        assigned.offset = max(assigned.offset, end)
        if self._reports_ends and assigned.ended != assigned.offset:
            text = f"Fetch from broker 1 reached end of partition at offset {assigned.offset} (HighwaterMark {log.end})"
            yield Message(topic=topic, partition=number, offset=assigned.offset, error=KafkaError(KafkaError._PARTITION_EOF, text))
        assigned.ended = assigned.offset

    def _place(self, offset: int, log: PartitionLog) -> int:
        """The offset, or where a consumer goes whose offset is none of the log's."""
        if log.start <= offset <= log.end:
            return offset
        earliest = str(self._options.get("auto.offset.reset", "latest")) in ("earliest", "smallest", "beginning")
        if offset == OFFSET_BEGINNING or (earliest and offset != OFFSET_END):
            return log.start
        return log.stable if self._committed else log.end

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1, cached: bool = False) -> tuple[int, int]:
        topic, number = partition.topic, partition.partition
        if cached:
            return next(
                (each.seen for each in self._assigned if (each.topic, each.number) == (topic, number)), (OFFSET_INVALID, OFFSET_INVALID)
            )
        try:
            log = self._broker.ask(f"watermarks {topic}[{number}]", lambda: self._broker.partition(topic, number))
        except (Unanswered, KafkaException):
            raise _failed(KafkaError._UNKNOWN_PARTITION, "Failed to get watermark offsets: Local: Unknown partition") from None
        return log.start, log.stable if self._committed else log.end

    def close(self) -> None:
        self._is_closed = True


class AdminClient(_Client):
    """Each call is one request; the futures that it returns have their results."""

    def poll(self, timeout: float = -1) -> int:
        return 0

    def create_topics(self, new_topics: Sequence[Any], **_: Any) -> dict[str, Future[None]]:
        def create(each: Any) -> None:
            self._broker.create_topic(each.topic, each.num_partitions, each.replication_factor, each.config)

        return self._each("create_topics", {each.topic: partial(create, each) for each in _some(new_topics, "NewTopic")})

    def delete_topics(self, topics: Sequence[str], **_: Any) -> dict[str, Future[None]]:
        return self._each("delete_topics", {name: partial(self._broker.delete_topic, name) for name in topics})

    def describe_configs(self, resources: Sequence[ConfigResource], **_: Any) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]:
        some = _some(resources, "ConfigResource")
        calls = {each: partial(self._broker.settings_of, each.name) for each in some if each.restype is ResourceType.TOPIC}
        brokers = {each: self._broker.own_settings for each in some if each.restype is ResourceType.BROKER}
        return self._each("describe_configs", calls | brokers)

    def incremental_alter_configs(self, resources: Sequence[ConfigResource], **_: Any) -> dict[ConfigResource, Future[None]]:
        """Sets options; other operations are not known."""

        def options(each: ConfigResource) -> dict[str, str]:
            return {entry.name: str(entry.value) for entry in each.incremental_configs}

        return self._each("alter_configs", {each: partial(self._broker.set_options, each.name, options(each)) for each in resources})

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        """The ends of partitions; other offsets are not known."""

        def end(place: TopicPartition) -> ListOffsetsResultInfo:
            return ListOffsetsResultInfo(self._broker.partition(place.topic, place.partition).end, -1, -1)

        names = {place: f"{place.topic}[{place.partition}]" for place in wanted}
        found = self._each("list_offsets", {name: partial(end, place) for place, name in names.items()})
        return {place: found[name] for place, name in names.items()}

    def _each(self, what: str, calls: dict[Any, Callable[[], Any]]) -> dict[Any, Future[Any]]:
        """Futures of calls that are one request."""
        found: dict[Any, Future[Any]] = {key: Future() for key in calls}

        def do() -> list[tuple[Any, KafkaException | None]]:
            return [_outcome(call) for call in calls.values()]

        names = (each if isinstance(each, str) else each.name for each in calls)
        try:
            outcomes = self._broker.ask(" ".join((what, *names)), do)
        except Unanswered:
            outcomes = [(None, _failed(KafkaError._TIMED_OUT, "Failed while waiting for controller: Local: Timed out"))] * len(calls)
        for future, (result, error) in zip(found.values(), outcomes, strict=True):
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        return found


@contextmanager
def installed(broker: Broker | Callable[[], Broker]) -> Iterator[None]:
    """The product's clients are those of the broker, or of the one that the function returns when a client is made."""
    find: Callable[[], Broker] = (lambda: broker) if isinstance(broker, Broker) else broker

    def of(client: type[_Client]) -> Callable[[Mapping[str, Any]], _Client]:
        return lambda options: client(options, broker=find())

    with ExitStack() as stack:
        for module in map(import_module, USERS):
            for client in (Producer, Consumer, AdminClient):
                if hasattr(module, client.__name__):
                    stack.enter_context(mock.patch.object(module, client.__name__, of(client)))
        yield


# --- helpers


def _failed(code: int, text: str | None = None) -> KafkaException:
    return KafkaException(KafkaError(code, text))


def _outcome(call: Callable[[], Any]) -> tuple[Any, KafkaException | None]:
    try:
        return call(), None
    except KafkaException as error:
        return None, error


def _some(values: Sequence[T], kind: str) -> Sequence[T]:
    if not values:
        raise ValueError(f"Expected non-empty list of {kind} objects")
    return values


def _batches(queue: Iterable[_Queued], most_bytes: int, most_records: int) -> Iterator[list[_Queued]]:
    """What is sent in one request each: records of one partition, in the order in which partitions were first named."""
    by_partition: dict[tuple[str, int], list[_Queued]] = {}
    for each in queue:
        by_partition.setdefault(each[:2], []).append(each)
    for records in by_partition.values():
        batch: list[_Queued] = []
        size = 0
        for each in records:
            size += each.record.client_size
            if batch and (size > most_bytes or len(batch) == most_records):
                yield batch
                batch, size = [], each.record.client_size
            batch.append(each)
        yield batch


def _crc32(key: bytes, count: int) -> int:
    """librdkafka's own partitioner."""
    return zlib.crc32(key) % count


def _bytes(part: str | bytes | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


def _headers(given: Any) -> Headers:
    return [(name, _bytes(value)) for name, value in (given.items() if isinstance(given, Mapping) else given or ())]


def _message(topic: str, partition: int, record: Record) -> Message:
    return Message(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp=(1, record.at),
    )
