"""Kafka for the publish job: topics, and publishers whose progress commits in the same transaction as their
events.

Strategy: a publisher's progress is one record per stream of events, keyed by its topic, in
`<prefix>.__progress`, with the (batch, ordinal) of the last event sent. The topic is compacted, so progress
does not expire as consumer-group offsets do. It has one partition per publisher: readers of committed records
see nothing after an open transaction, and another publisher may have one open at any time. Progress is read
after init_transactions has fenced and settled what an earlier owner of the transactional id left open, and up
to the end of the partition. Progress also holds the id of its batch: progress in an unknown batch, or beyond
the last seal, belongs to another chain, and its stream waits for an operator. Each partition also records the
owner of the topics. Must not know Spark.
"""

from __future__ import annotations

import json
import pickle
import time
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition, murmur2
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]  # exported, not by the stubs
from confluent_kafka.cimpl import NewTopic

from spark_jobs.sinks.kafka_clients import client_options, make, producer_options, publisher_options, reader_options
from spark_jobs.stages.arrow_runs import joined
from spark_jobs.stages.row_packs import ascending, in_order, is_ascending, pack, unpacked
from spark_jobs.stages.scan import Batches
from writetime.config.kafka import KafkaConfig, PartitionBy
from writetime.errors import PublishError
from writetime.events.naming import from_topic, progress_topic, quarantine_topic, topic_clashes
from writetime.pipeline.identity import Owner, batch_id
from writetime.storage.concurrency import at_once

log = structlog.get_logger()

RECORDS = pa.schema(
    [
        ("publisher", pa.int32()),
        ("stream", pa.string()),
        ("topic", pa.string()),
        ("batch", pa.int64()),
        ("ordinal", pa.int64()),
        ("key", pa.binary()),  # null: a truncate, as Debezium has it
        ("value", pa.binary()),
        ("op", pa.string()),
        ("deletes", pa.bool_()),
        ("refused", pa.string()),  # why the event cannot be encoded; its stream waits there
        ("placed_by", pa.binary()),  # what decides the partition of the topic; null: the key does
    ]
)
"""`stream`: the topic of whose events this is the one with that batch and ordinal, and by which progress
goes. Its record may go to another `topic`. A row without a `value` has nothing else."""

Row: Any = namedtuple("Row", RECORDS.names)  # type: ignore[misc]
"""A row of RECORDS. Publishers take plain tuples, too, and unpack them: an event has no time for names."""
_STREAM, _BATCH, _ORDINAL, _VALUE = (RECORDS.get_field_index(name) for name in ("stream", "batch", "ordinal", "value"))
PACKS: Final = pa.schema([("publisher", pa.int32()), ("first", pa.binary()), ("last", pa.binary()), ("rows", pa.binary())])
"""Rows of RECORDS of one publisher in the order of sending, packed (`row_packs`), and the sort keys of the first and
the last one: a shuffle moves a few large values."""


class Stretch(NamedTuple):
    """RECORDS of one source: the sort keys (`sending_key`) of the first and the last one, whether they are in order, and
    a function to those of a publisher."""

    first: bytes
    last: bytes
    in_order: bool
    records: Callable[[int], Batches]


SENT: Final = pa.schema([("sent", pa.binary())])
"""A pickled `Sent` for each publisher."""

COMPLETE: Final = "complete"
"""The op of a record without key and value: the partition has every event of a mutation that was logged before the
time in the record's header."""
SWITCH: Final = "partition_by"
"""`SWITCH=<by>` is the op of a record without key and value in each partition of a topic: from its batch on,
the topic is partitioned by that."""

_EVENTS_PER_TRANSACTION = 20_000
_BYTES_PER_TRANSACTION = 32 << 20
"""A transaction ends with the event that reaches either: it is held in memory, and has to be over before the
broker's time for it is."""
_TIMEOUT_SECONDS = 60.0
_REPORT_SECONDS = 5.0
"""How long the report of a refused event may take to come after the refusal itself."""
_OF_ONE_TOPIC = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)
"""What a broker has against an event or its topic, and meets again however often it is sent."""
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
"""What a broker has against a batch of records, which may be larger than each of them may be."""
_REFUSED_CLIENT = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_NO_RIGHT = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_REFUSED_LOGIN = (*_REFUSED_CLIENT, KafkaError.SASL_AUTHENTICATION_FAILED)
_REFUSED_QUERY = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_NO_LEADER = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
_LEADER_TRIES: Final = 20
_LEADER_PAUSE: Final = 0.25
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_GONE_WITH_OTHERS = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_PASSING = (
    *(KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, *_FENCED),
    *(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION),
    *(KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.CONCURRENT_TRANSACTIONS),
    *(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR),
    *(KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.THROTTLING_QUOTA_EXCEEDED),
    *_GONE_WITH_OTHERS,
)
"""What a retry may find mended. A client says it of its own calls, and not of a record that was not delivered."""
_NOT_KEPT = (KafkaError._MSG_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
"""What a record is not delivered for while its partition lacks replicas: the client tries until its time is over."""
_WAIT = "Events stay in the changes tables and go out with the next run."
_TRANSACTION_TIMEOUT = "transaction.timeout.ms"
_DELIVERY_TIMEOUTS = frozenset({"message.timeout.ms", "delivery.timeout.ms"})
_DEFAULT_TRANSACTION_MS = 60_000
"""What librdkafka asks for if `kafka.producer` does not say it."""
_LEAST_TRANSACTION_MS = 5_000
"""In less, a transaction of one large event may not be over."""
_ALLOWED_MS: Final[dict[str, int]] = {}
"""By bootstrap servers, the time for transactions that they allow, where it is less than the client's default."""
_LIBRDKAFKA_MAX = 1_000_000
_RECORD_OVERHEAD = 256  # a record's frame and its headers
_BY_KEY = -1  # librdkafka's RD_KAFKA_PARTITION_UA: the partitioner decides
_OWNER_KEY = b"__pipeline"
"""Of the record that says whose the topics are. Streams go by topics, whose names hold a dot."""


class Position(NamedTuple):
    """The last event of a stream that was sent, the id of its batch, if it has one, and how often all events of the stream
    were to be sent again before it."""

    batch: int
    ordinal: int
    id: str | None = None
    epoch: int = 0


@dataclass(frozen=True)
class Chain:
    """The batches whose events are published: the bucket, the cluster, and the last sealed batch. Progress in
    batches before `first` belongs to chains that this one succeeds. `run`: what ids of batches are known for."""

    bucket: str
    cluster: str
    upto: int
    first: int = 0
    run: str = field(default_factory=lambda: uuid4().hex)

    def id_of(self, number: int) -> str | None:
        return batch_id(self.bucket, self.cluster, number, self.run)

    def rejection_reason(self, stream: str, reached: Position) -> PublishError | None:
        """Why a stream with that progress cannot go on; None if it can. Progress beyond the last seal is that of another run,
        which has begun later, if the batch is there."""
        if reached.batch < self.first:
            return None
        known = None if reached.id is None else self.id_of(reached.batch)
        # Of a batch that is not known the documents may be deleted.
        if (reached.batch <= self.upto) if known is None else (known == reached.id):
            return None
        beyond = f"{self.upto} is the last that is sealed" if reached.batch > self.upto else "that batch is another one by now"
        return PublishError(
            f"its events were sent up to batch {reached.batch}, and {beyond}: its progress is that of another chain of batches",
            operation="publish events",
            obj=stream,
            hint="`batches/` of the bucket was put back from a backup or made anew, and Kafka was not. Run `writetime rebuild`, "
            "after which later events go on; or put it back as it was; or give the pipeline another `topic.prefix`; or let all "
            "events of the table go out again (`cdc_publish`, `again`).",
        )


Headers = list[tuple[str, str | bytes | None]]


def ensure_topics(kafka: KafkaConfig, topics: list[str]) -> dict[str, PublishError]:
    """Create missing topics; existing ones keep their settings. Returns the topics that Kafka refuses to
    create, with the error."""
    errors: list[KafkaError] = []
    options: dict[str, Any] = {**client_options(kafka), "error_cb": errors.append}
    admin = make(AdminClient, options)
    try:
        present = admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
    except KafkaException as error:
        # It only says that there was no answer; the client reports the reason separately.
        admin.poll(0)
        why = next((KafkaException(each) for each in errors if each.code() in _REFUSED_CLIENT), error)
        raise _failure("list the topics", kafka.bootstrap_servers, why) from error
    refused = clashes(present, topics)
    missing = [topic for topic in topics if topic not in present and topic not in refused]
    kept = {quarantine_topic(kafka.topic_prefix): {"cleanup.policy": "compact"}}
    wanted = [NewTopic(topic, kafka.partitions, kafka.replication_factor, config=kept.get(topic, {})) for topic in missing]
    progress = progress_topic(kafka.topic_prefix)
    if progress not in present:
        wanted.append(NewTopic(progress, kafka.publishers, kafka.replication_factor, config={"cleanup.policy": "compact"}))
    elif (partitions := len(present[progress].partitions)) != kafka.publishers:
        raise PublishError(
            f"it was made for {partitions} publishers, `kafka.publishers` says {kafka.publishers}",
            operation="check the progress topic",
            obj=progress,
            hint=f"Set `kafka.publishers` to {partitions}: who has sent which key's events is kept there.",
        )
    else:
        _check_keeps(admin, progress)
    for topic, future in admin.create_topics(wanted).items() if wanted else ():
        try:
            future.result(timeout=_TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            refused[topic] = _failure("create a topic", topic, error)
            if topic == progress:
                raise refused[topic] from error
        except TimeoutError as error:
            # This is a time-out of the client, not an answer from Kafka.
            refused[topic] = PublishError(
                f"no answer within {_TIMEOUT_SECONDS:.0f} s", operation="create a topic", obj=topic, retriable=True, hint=_WAIT
            )
            if topic == progress:
                raise refused[topic] from error
    return refused


def _check_keeps(admin: AdminClient, progress: str) -> None:
    """PublishError if Kafka deletes the publishers' progress after a time: without it, a rerun would send
    events again."""
    try:
        policy = _settings(admin, [progress])[progress]()["cleanup.policy"].value
    except KafkaException as error:
        if error.args[0].code() not in _REFUSED_QUERY:
            raise _failure("ask for a topic's settings", progress, error) from error
        log.warning("progress topic settings cannot be read", topic=progress, hint="It has to have cleanup.policy=compact.")
        return
    if policy != "compact":
        raise PublishError(
            f"its cleanup.policy is `{policy}`: the publishers' progress would expire, and events be sent again",
            operation="check the progress topic",
            obj=progress,
            hint="Set cleanup.policy=compact on it; nothing has been lost unless records have expired by now.",
        )


def _settings(admin: AdminClient, topics: Iterable[str]) -> dict[str, Callable[[], dict[str, ConfigEntry]]]:
    """Request the settings of topics. Returns a function that returns a topic's settings or raises
    KafkaException. `admin` must stay open until then."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    asked = admin.describe_configs(resources) if resources else {}
    return {resource.name: partial(future.result, timeout=_TIMEOUT_SECONDS) for resource, future in asked.items()}


def message_limits(kafka: KafkaConfig, topics: Iterable[str]) -> tuple[dict[str, int], dict[str, PublishError]]:
    """Maximum bytes of a record's key and value by topic: the limits of producer and topic, less a record's
    overhead. Of a topic that does not exist yet, the broker's limit. Also the topics whose limit is unknown, with the
    error."""
    own = kafka.largest_message or _LIBRDKAFKA_MAX
    # Its end would be the end of what it is asked for.
    admin = make(AdminClient, client_options(kafka))
    limits: dict[str, int] = {}
    silent: dict[str, PublishError] = {}
    for topic, settings in _settings(admin, topics).items():
        overhead = _RECORD_OVERHEAD + len(topic)
        try:
            allowed = _allowed(admin, settings, own)
        except KafkaException as error:
            if error.args[0].code() in _REFUSED_QUERY:
                # Who may not ask goes by what the producer allows. Were the topic's own limit less, the
                # broker would refuse the event, and the table wait.
                limits[topic] = own - overhead
                log.warning("topic size limit cannot be read", topic=topic, right="DescribeConfigs")
            else:
                silent[topic] = _failure("ask for a topic's settings", topic, error)
        else:
            limits[topic] = min(own, allowed) - overhead
    return limits, silent


def _allowed(admin: AdminClient, settings: Callable[[], dict[str, ConfigEntry]], own: int) -> int:
    """The bytes that a batch of records of a topic may have; of one that does not exist, of any topic without a limit of its
    own."""
    try:
        return int(settings()["max.message.bytes"].value or own)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
    return int(_of_broker(admin)["message.max.bytes"].value or own)


def send_heartbeat(kafka: KafkaConfig, key: bytes, value: bytes) -> None:
    """Send one record to the heartbeat topic, which is created if it is missing."""
    topic = kafka.heartbeat_topic
    if (refused := ensure_topics(kafka, [topic])).get(topic) is not None:
        raise refused[topic]
    failed: list[KafkaError] = []
    producer = make(Producer, producer_options(kafka))
    _produce(producer, topic, key, value, lambda error, _: failed.append(error) if error else None)
    if producer.flush(_TIMEOUT_SECONDS) or failed:
        raise _failure("send a heartbeat", topic, KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT)))


def mark_complete(kafka: KafkaConfig, topics: Iterable[str], until_ms: int) -> None:
    """Write to each partition of these topics that it is complete up to then: a record without key and value.
    Topics that do not exist, and those that reject it, get none: compacted ones reject records without a key."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if error.code() in (*_OF_ONE_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
            log.info("topic not marked as complete", topic=message.topic(), error=str(error))
        else:
            failed.append(error)

    producer = make(Producer, producer_options(kafka))
    try:
        present = producer.list_topics(timeout=_TIMEOUT_SECONDS).topics
        for topic in sorted(present.keys() & set(topics)):
            about: Headers = [
                ("writetime.table", _table(topic)),
                ("writetime.op", COMPLETE.encode()),
                ("writetime.complete_until_ms", str(until_ms).encode()),
            ]
            for partition in present[topic].partitions:
                _produce(producer, topic, None, None, delivered, partition, headers=about)
        if producer.flush(_TIMEOUT_SECONDS) or failed:
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
    except KafkaException as error:
        raise _failure("mark topics as complete", kafka.topic_prefix, error) from error


def clashes(present: Iterable[str], wanted: Iterable[str]) -> dict[str, PublishError]:
    """The wanted topics whose names collide with another existing or wanted topic."""
    new = set(wanted).difference(present)
    return {
        topic: PublishError(
            f"Kafka makes only one of {' and '.join(clash)}: `.` and `_` are one in the names of its metrics",
            operation="create a topic",
            obj=topic,
            hint="Give one of the keyspaces a pipeline with a topic prefix of its own.",
        )
        for clash in topic_clashes([*present, *new])
        for topic in sorted(new & set(clash))
    }


@dataclass(frozen=True)
class Sent:
    """How many events a publisher sent, and, by stream, why it stopped. `reached`: by stream, the last batch of which it has sent
    events, now or before."""

    events: int
    stuck: dict[str, PublishError] = field(default_factory=dict)
    publisher: int = field(default=0, compare=False)
    reached: dict[str, int] = field(default_factory=dict, compare=False)


@dataclass
class _Sender:
    """A publisher's producer, how far each stream had been sent when it began, whether each record is a batch of its
    own, and the part of a usual transaction that is over in the brokers' time."""

    producer: Producer
    sent: dict[str, tuple[int, int]]
    one_by_one: bool = False
    share: float = 1.0


@dataclass(frozen=True)
class Publisher:
    """Sends the shares of one or more publishers. It is sent to executors, so it holds configuration only.
    Without a `chain`, progress is not checked; without an `owner`, neither are the owners of topics. `epochs`: by stream, how
    often all its events were to be sent again, as far as the run knows that has selected the events. `batch_bytes`: a
    limit of the batches in which records travel, as a broker refuses a batch that is larger than a record may be."""

    kafka: KafkaConfig
    chain: Chain | None = None
    owner: Owner | None = None
    epochs: Mapping[str, int] = field(default_factory=dict)
    batch_bytes: int | None = None

    def send_packs(self, packs: Batches) -> Batches:
        """PACKS, sorted by publisher and first row, to SENT: `send_all` of a partition."""
        found = (pack for batch in packs for pack in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for publisher, run in groupby(found, key=itemgetter(0)):
            yield from self._send_batches(
                _in_order((Stretch(first, last, True, _of_pack(rows)) for _, first, last, rows in run), publisher)
            )

    def send_stretches(self, stretches: Sequence[Stretch]) -> Callable[[Batches], Batches]:
        """A function from the numbers of publishers (`id`) to SENT: each sends its records of these stretches."""
        ordered = sorted(stretches, key=itemgetter(0))

        def send(numbers: Batches) -> Batches:
            for publisher in (number for batch in numbers for number in batch["id"].to_pylist()):
                yield from self._send_batches(_in_order(ordered, publisher))

        return send

    def _send_batches(self, batches: Batches) -> Batches:
        rows = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches)
        for sent in self.send_all(chain.from_iterable(rows)):
            yield pa.RecordBatch.from_pydict({"sent": [pickle.dumps(sent)]}, schema=SENT)

    def send_all(self, rows: Iterable[Any]) -> Iterator[Sent]:
        """Send rows of RECORDS, each publisher's in one run and in order. Yields the result of each run."""
        for publisher, run in groupby(rows, key=itemgetter(0)):
            try:
                yield self._send(publisher, run)
            except (KafkaException, SystemError) as error:
                raise _failure("publish events", self._transactional_id(publisher), _meant(error)) from error

    def mark_switch(self, topics: Sequence[str], batch: int, by: PartitionBy) -> dict[str, PublishError]:
        """Say in each partition of these topics, once, that they are partitioned by that from the batch on. All
        publishers must have sent what is before it. Returns the topics that do not take it, with the error."""
        about = {**dict.fromkeys(RECORDS.names), "publisher": 0, "batch": batch, "ordinal": 0, "op": f"{SWITCH}={by}"}
        rows = [Row(**{**about, "stream": topic, "topic": topic}) for topic in topics]
        return {topic: error for sent in self.send_all(rows) for topic, error in sent.stuck.items()}

    def _transactional_id(self, publisher: int) -> str:
        return f"{self.kafka.topic_prefix}.publisher.{publisher}"

    def _producer(self, publisher: int, *, one_by_one: bool = False) -> Producer:
        """The publisher's producer. It fences all earlier ones of the same name and settles what they left
        open. `one_by_one`: each record is a batch of its own."""
        options = publisher_options(self.kafka, self._transactional_id(publisher))
        if one_by_one:
            options["batch.num.messages"] = 1
        if self.batch_bytes is not None:
            # What is larger is in a batch by itself.
            options["batch.size"] = max(1, min(self.batch_bytes, int(options.get("batch.size", _LIBRDKAFKA_MAX))))
        if (allowed := _shorter_timeout(self.kafka)) is not None:
            options[_TRANSACTION_TIMEOUT] = allowed
        if not options.keys() & _DELIVERY_TIMEOUTS:
            # What is not delivered is told before the brokers end the transaction, of which the client would say less.
            options["message.timeout.ms"] = int(options.get(_TRANSACTION_TIMEOUT, _DEFAULT_TRANSACTION_MS)) * 3 // 4
        producer = make(Producer, options)
        try:
            self._begin(producer)
        except KafkaException as error:
            if not _learn_timeout(self.kafka, error):
                raise
            return self._producer(publisher, one_by_one=one_by_one)
        return producer

    def _begin(self, producer: Producer) -> None:
        # Without a connection, librdkafka looks for the coordinator again only after 500 ms. The first answer names the
        # brokers, and the connection that it came by is closed; the second one comes by one that stays.
        for _ in range(2):
            producer.list_topics(progress_topic(self.kafka.topic_prefix), timeout=_TIMEOUT_SECONDS)
        producer.init_transactions(_TIMEOUT_SECONDS)

    def _headers(self, topic: str, op: str, batch: int, ordinal: int) -> Headers | None:
        if not self.kafka.headers:
            return None
        return [*_same_headers(self.kafka.topic_prefix, topic, op), ("writetime.sequence", b"%d.%d" % (batch, ordinal))]

    def _send(self, publisher: int, rows: Iterable[Any]) -> Sent:
        stuck: dict[str, PublishError] = {}
        sender = self._started(publisher, stuck)
        events = 0
        for chunk in chunks(_beyond(rows, sender.sent, stuck), sender.share):
            events += self._send_chunk(sender, publisher, chunk, stuck)
        return Sent(events, stuck, publisher, {stream: batch for stream, (batch, _) in sender.sent.items()})

    def _started(self, publisher: int, stuck: dict[str, PublishError], *, one_by_one: bool = False) -> _Sender:
        """A producer that fences all others, and what has been sent before: nobody adds to that any more. Streams of which
        nothing may be sent are added to `stuck`."""
        producer = self._producer(publisher, one_by_one=one_by_one)
        done, claimed = _read_progress(self.kafka, publisher)
        _expect_own(self.kafka, self.owner, claimed)
        if self.owner is not None and claimed is None:
            self._claim(producer, publisher, self.owner)
        stuck |= self._of_another_chain(done) | self._of_later_epochs(done)
        # What was sent in an earlier epoch is sent again.
        sent = {stream: reached[:2] for stream, reached in done.items() if reached.epoch == self.epochs.get(stream, 0)}
        allowed = _shorter_timeout(self.kafka)
        return _Sender(producer, sent, one_by_one, 1.0 if allowed is None else allowed / _DEFAULT_TRANSACTION_MS)

    def _of_another_chain(self, done: Mapping[str, Position]) -> dict[str, PublishError]:
        if self.chain is None:
            return {}
        found = {stream: self.chain.rejection_reason(stream, reached) for stream, reached in done.items()}
        return {stream: error for stream, error in found.items() if error is not None}

    def _of_later_epochs(self, done: Mapping[str, Position]) -> dict[str, PublishError]:
        """The streams whose events this run may have selected after those that are to be sent again."""
        return {
            stream: PublishError(
                "all its events are being sent again, as was asked since this run began",
                operation="publish events",
                obj=stream,
                retriable=True,
                hint="The next run goes on. If the record of publishing (`published/`) was lost or put back from a backup, run cdc_publish "
                "with `since: beginning`.",
            )
            for stream, reached in done.items()
            if reached.epoch > self.epochs.get(stream, 0)
        }

    def _claim(self, producer: Producer, publisher: int, owner: Owner) -> None:
        """Record the owner of the topics, which have none."""
        log.info("topics claimed for this pipeline", prefix=self.kafka.topic_prefix, publisher=publisher, pipeline=str(owner.id))
        producer.begin_transaction()
        value = owner.model_dump_json().encode()
        _produce(producer, progress_topic(self.kafka.topic_prefix), _OWNER_KEY, value, None, partition=publisher)
        producer.commit_transaction(_TIMEOUT_SECONDS)

    def _send_chunk(self, sender: _Sender, publisher: int, rows: list[Any], stuck: dict[str, PublishError]) -> int:
        """Send the rows in one transaction; returns how many were sent. A topic with an event that the
        producer or broker rejects is added to `stuck` and stops. If the broker finds a batch too large, the rows are sent
        again one by one, which says whether an event is."""
        while True:
            producer = sender.producer
            producer.begin_transaction()
            reached: dict[str, Any] = {}
            sent, failed = self._produce_chunk(producer, publisher, rows, stuck, reached)
            if not failed:
                producer.commit_transaction(_TIMEOUT_SECONDS)
                sender.sent.update({stream: (row[_BATCH], row[_ORDINAL]) for stream, row in reached.items()})
                return sent
            if lacking := [error for error, _ in failed if error.code() in _NOT_KEPT]:
                # Nor would the topic keep the marker of an abortion: the publisher begins again when replicas are back.
                raise KafkaException(lacking[0])
            producer.abort_transaction(_TIMEOUT_SECONDS)
            large = {topic for error, topic in failed if error.code() in _TOO_LARGE}
            if large and not sender.one_by_one:
                log.warning(
                    "broker refused a batch of events as too large, sending events one by one",
                    topics=sorted(large),
                    hint="Let the user describe topic configurations, or set `batch.size` under `kafka.producer`.",
                )
                sender.one_by_one = True
            else:
                progress = progress_topic(self.kafka.topic_prefix)
                if fatal := [error for error, topic in failed if topic in ("", progress) or error.code() not in _OF_ONE_TOPIC]:
                    raise KafkaException(fatal[0])
                # Each iteration has at least one topic fewer.
                stuck.update({topic: _refused(topic, error) for error, topic in failed})
            # Another producer: the broker's late answers about an aborted transaction end the producer's next one as well.
            # Another run may have sent the rows before it began.
            other = self._started(publisher, stuck, one_by_one=sender.one_by_one)
            sender.producer = other.producer
            sender.sent.update(other.sent)
            rows = list(_beyond(rows, sender.sent, stuck))

    def _produce_chunk(
        self, producer: Producer, publisher: int, rows: list[Any], stuck: dict[str, PublishError], reached: dict[str, Any] | None = None
    ) -> tuple[int, list[tuple[KafkaError, str]]]:
        """Produce the rows and the progress. Returns their number, and the broker's rejection with its
        topic. `reached`: receives the last row of each stream."""
        failed: list[tuple[KafkaError, str]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append((error, message.topic() or ""))

        sent = 0
        reached = {} if reached is None else reached
        partitions = cache(partial(_partitions, producer))
        tombstones = self.kafka.tombstones_on_delete
        try:
            for row in rows:
                _, stream, topic, batch, ordinal, key, value, op, deletes, refused, placed_by = row
                if topic in stuck:
                    # What is told elsewhere holds up the stream that it stands in.
                    stuck.setdefault(stream, stuck[topic])
                if refused is not None:
                    stuck.setdefault(stream, _unencodable(row))
                if stream in stuck:
                    continue
                if value is None and _is_switch(op):
                    for each in range(partitions(topic)):
                        _produce(producer, topic, None, None, delivered, partition=each, headers=_switch_headers(row))
                place = _BY_KEY if placed_by is None else murmur2(bytes(placed_by), partitions(topic))
                headers = self._headers(topic, op, batch, ordinal)
                try:
                    if value is not None:
                        _produce(producer, topic, key, value, delivered, place, headers)
                except KafkaException as error:
                    if (too_large := _too_large(row, error)) is None:
                        raise
                    stuck[stream] = too_large
                    continue
                sent += value is not None
                if deletes and tombstones:
                    _produce(producer, topic, key, None, delivered, place, headers)
                reached[stream] = row
            for stream, row in reached.items():
                value = self._progress(row[_BATCH], row[_ORDINAL], self.epochs.get(stream, 0))
                _produce(producer, progress_topic(self.kafka.topic_prefix), stream.encode(), value, delivered, partition=publisher)
        except KafkaException:
            # A transaction with a rejected event accepts no more events: the rejection, which is reported when the
            # producer is polled, is the reason.
            reported_by = time.monotonic() + _REPORT_SECONDS
            while not _reasons(failed) and time.monotonic() < reported_by:
                producer.poll(0.5)
            if not failed:
                raise
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not _reasons(failed) and producer.flush(1.0) and time.monotonic() < deadline:
            pass
        # Aborting adds to these errors.
        return sent, _reasons(failed) or list(failed)

    def _progress(self, batch: int, ordinal: int, epoch: int) -> bytes:
        found = self.chain.id_of(batch) if self.chain else None
        return json.dumps([batch, ordinal, *([found, epoch] if epoch else [found] if found else [])]).encode()


def by_publisher(encode: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """A function to PACKS, from one to RECORDS."""

    def pack_batches(batches: Batches) -> Batches:
        for records in encode(batches):
            publishers = records["publisher"]
            for publisher in publishers.unique().to_pylist():
                rows = records.filter(pc.equal(publishers, publisher))
                keys = _sending_order(rows)
                if not is_ascending(keys):
                    order = pc.sort_indices(keys)
                    rows, keys = rows.take(order), keys.take(order)
                row = {"publisher": publisher, "first": keys[0].as_py(), "last": keys[-1].as_py(), "rows": pack(rows)}
                yield pa.RecordBatch.from_pylist([row], schema=PACKS)

    return pack_batches


def _of_pack(rows: bytes) -> Callable[[int], Batches]:
    return lambda _: unpacked([rows])


def _in_order(stretches: Iterable[Stretch], publisher: int) -> Batches:
    """A publisher's RECORDS of stretches, which are sorted by first row, in the order of sending. A file's rows have been
    numbered in its order, so most stretches overlap with no other, and nothing is kept back; of those that do, what does
    not fit in memory is in a file."""
    number: int = 0
    until: bytes = b""

    def part_of(stretch: Stretch) -> int:
        nonlocal number, until
        number += int(stretch.first > until)
        until = max(until, stretch.last)
        return number

    for _, part in groupby(stretches, key=part_of):
        one, *others = islice(part, 2)
        records = (batch for stretch in chain([one, *others], part) for batch in stretch.records(publisher))
        yield from records if one.in_order and not others else in_order(records, _sending_order)


def sending_key(batch: int, stream: str, ordinal: int) -> bytes:
    """Sort key of one of RECORDS, as `_sending_order`."""
    first, last = ((number + (1 << 63)).to_bytes(8, "big") for number in (batch, ordinal))
    return first + stream.encode() + b"\0" + last


def _sending_order(records: pa.RecordBatch) -> Any:
    """Sort key of one publisher's RECORDS: batch, stream, ordinal."""
    # No topic's name has a null character.
    streams = joined(records["stream"].cast(pa.binary()), pa.scalar(b"\0", pa.binary()))
    return joined(ascending(records["batch"].to_numpy()), joined(streams, ascending(records["ordinal"].to_numpy())))


def expect_own(kafka: KafkaConfig, owner: Owner) -> list[dict[str, Position]]:
    """PublishError if the topics of the prefix belong to another pipeline; if they do not exist, they belong to nobody. Call it
    before a publisher starts, because that would fence the other pipeline's publisher. Returns each publisher's progress, by
    stream; a transaction that is open may hide the last of it."""
    found = _all_progress(kafka, settled=False)
    for _, claimed in found:
        _expect_own(kafka, owner, claimed)
    return [progress for progress, _ in found]


def settled_progress(kafka: KafkaConfig) -> list[dict[str, Position]]:
    """Each publisher's progress, by stream. PublishError (retriable) if a transaction is open, which may hide the last of it."""
    return [progress for progress, _ in _all_progress(kafka)]


def topic_ends(kafka: KafkaConfig, topics: Iterable[str]) -> dict[str, int]:
    """By topic, the sum of the offsets at which its partitions end: it only grows while the topic is the same one. 0 if there is
    no such topic; nothing of a topic that the user may not describe."""
    wanted = sorted(set(topics))
    if not wanted:
        return {}
    admin = make(AdminClient, client_options(kafka))
    for left in reversed(range(_LEADER_TRIES)):
        try:
            return _topic_ends(admin, wanted)
        except KafkaException as error:
            if error.args[0].code() in _REFUSED_QUERY:
                log.warning("ends of topics cannot be read, so that nobody notices if one was made anew", right="Describe")
                break
            if error.args[0].code() not in _NO_LEADER or not left:
                raise _failure("look where topics end", kafka.topic_prefix, error) from error
            # The leaders of a new topic are not known at once.
            time.sleep(_LEADER_PAUSE)
    return {}


def _topic_ends(admin: AdminClient, wanted: Sequence[str]) -> dict[str, int]:
    present = admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
    places = [TopicPartition(topic, number) for topic in wanted if topic in present for number in present[topic].partitions]
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets(dict.fromkeys(places, latest)) if places else {}
    ends = dict.fromkeys(wanted, 0)
    for place, future in asked.items():
        ends[place.topic] += future.result(timeout=_TIMEOUT_SECONDS).offset
    return ends


def _expect_own(kafka: KafkaConfig, owner: Owner | None, claimed: bytes | None) -> None:
    other = owner.other(claimed) if owner else None
    if other is not None:
        raise PublishError(
            f"its topics belong to {other}",
            operation="publish events",
            obj=kafka.topic_prefix,
            hint="Give this pipeline another `topic.prefix`.",
        )


def last_sent(kafka: KafkaConfig, owner: Owner | None = None) -> int:
    """The highest batch in any publisher's progress; 0 if nothing was sent. PublishError if progress cannot
    be read completely or belongs to another pipeline."""
    found = _all_progress(kafka)
    for _, claimed in found:
        _expect_own(kafka, owner, claimed)
    return max((reached.batch for progress, _ in found for reached in progress.values()), default=0)


def read_epochs(kafka: KafkaConfig) -> dict[str, int]:
    """By stream, how often all its events were to be sent again, by the publishers' progress."""
    found: dict[str, int] = {}
    for progress, _ in _all_progress(kafka, settled=False):
        for stream, reached in progress.items():
            found[stream] = max(reached.epoch, found.get(stream, 0))
    return found


def _all_progress(kafka: KafkaConfig, *, settled: bool = True) -> list[tuple[dict[str, Position], bytes | None]]:
    """As `_read_progress`, of all publishers; of none if their topic does not exist."""
    topic = progress_topic(kafka.topic_prefix)
    try:
        topics = make(AdminClient, client_options(kafka)).list_topics(timeout=_TIMEOUT_SECONDS).topics
        numbers = topics[topic].partitions if topic in topics else ()
        return at_once(lambda number: _read_progress(kafka, number, settled=settled), numbers)
    except KafkaException as error:
        raise _failure("read the publishers' progress", topic, error) from error


def _beyond(rows: Iterable[Any], done: Mapping[str, tuple[int, int]], stuck: Mapping[str, Any]) -> Iterator[Any]:
    """The rows that are not sent, of streams that are not stuck."""
    beginning = (0, 0)
    for row in rows:
        stream = row[_STREAM]
        if stream not in stuck and (row[_BATCH], row[_ORDINAL]) > done.get(stream, beginning):
            yield row


def _shorter_timeout(kafka: KafkaConfig) -> int | None:
    """The time (ms) for transactions that the brokers allow, if it is known to be less than the client's default, and
    `kafka.producer` says none."""
    return None if _TRANSACTION_TIMEOUT in kafka.producer else _ALLOWED_MS.get(kafka.bootstrap_servers)


def _learn_timeout(kafka: KafkaConfig, error: KafkaException) -> bool:
    """Whether the brokers refuse the client's default time for transactions, and say themselves which one they allow: it is
    known from then on in this process."""
    if error.args[0].code() != KafkaError.INVALID_TRANSACTION_TIMEOUT or _TRANSACTION_TIMEOUT in kafka.producer:
        return False
    try:
        allowed = int(_of_broker(make(AdminClient, client_options(kafka)))["transaction.max.timeout.ms"].value or 0)
    except KafkaException as unknown:
        log.warning("broker settings cannot be read", error=str(unknown), right="DescribeConfigs")
        return False
    if not _LEAST_TRANSACTION_MS <= allowed < _DEFAULT_TRANSACTION_MS:
        return False
    log.info("transactions are shorter, as the brokers allow", timeout_ms=allowed)
    _ALLOWED_MS[kafka.bootstrap_servers] = allowed
    return True


def _of_broker(admin: AdminClient) -> dict[str, ConfigEntry]:
    """The settings of one of the brokers. `admin` must stay open meanwhile."""
    broker = next(iter(admin.list_topics(timeout=_TIMEOUT_SECONDS).brokers))
    (asked,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]).values()
    found: dict[str, ConfigEntry] = asked.result(timeout=_TIMEOUT_SECONDS)
    return found


def chunks(rows: Iterable[Any], share: float = 1.0) -> Iterator[list[Any]]:
    """Rows of RECORDS by transaction, each at most that share of a usual one."""
    chunk: list[Any] = []
    held, events, size = 0, _EVENTS_PER_TRANSACTION * share, _BYTES_PER_TRANSACTION * share
    for row in rows:
        chunk.append(row)
        held += len(row[_VALUE] or b"")
        if len(chunk) >= events or held >= size:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


@lru_cache(maxsize=1024)
def _table(topic: str) -> bytes:
    """The table of the topic, as `<keyspace>.<table>`."""
    return ".".join(from_topic(topic)[1:]).encode("utf-8", "backslashreplace")


@lru_cache(maxsize=1024)
def _same_headers(prefix: str, topic: str, op: str) -> Headers:
    """The headers that records of a topic have in common if their `op` is the same."""
    of_no_table = topic in (prefix, quarantine_topic(prefix))
    return [*([] if of_no_table else [("writetime.table", _table(topic))]), ("writetime.op", op.encode())]


def _produce(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    delivered: Any,
    partition: int = _BY_KEY,
    headers: Headers | None = None,
) -> None:
    while True:
        try:
            # Failures are reported when the producer is polled, which flushing does: to poll for each record costs more.
            producer.produce(topic, value=value, key=key, partition=partition, on_delivery=delivered, headers=headers or [])
            return
        except BufferError:
            # The local queue is full: let the network drain it.
            producer.poll(0.5)


def _is_switch(op: str | None) -> bool:
    return bool(op and op.startswith(SWITCH))


def _switch_headers(row: Any) -> Headers:
    row = Row._make(row)
    op, _, by = row.op.partition("=")
    return [
        ("writetime.table", _table(row.topic)),
        ("writetime.op", op.encode()),
        ("writetime.sequence", f"{row.batch}.{row.ordinal}".encode()),
        ("writetime.partition_by", by.encode()),
    ]


def _partitions(producer: Producer, topic: str) -> int:
    """The number of partitions of a topic."""
    listed: Any = producer.list_topics(topic, timeout=_TIMEOUT_SECONDS)
    return len(listed.topics[topic].partitions)


def _too_large(row: Any, error: KafkaException) -> PublishError | None:
    if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
        return None
    row = Row._make(row)
    return PublishError(
        f"event [{row.batch}, {row.ordinal}] of {len(row.value)} bytes is larger than the maximum message size",
        operation="publish events",
        obj=row.topic,
        hint="Raise `message.max.bytes` under `kafka.producer` in the pipeline's YAML and `max.message.bytes` of the topic; events wait.",
    )


def _unencodable(row: Any) -> PublishError:
    row = Row._make(row)
    return PublishError(f"event [{row.batch}, {row.ordinal}] cannot be encoded: {row.refused}", operation="publish events", obj=row.topic)


def _reasons(failed: list[tuple[KafkaError, str]]) -> list[tuple[KafkaError, str]]:
    """Those rejections that say why; the others are of events that went with a rejected one."""
    return [each for each in failed if each[0].code() not in _GONE_WITH_OTHERS]


def _refused(topic: str, error: KafkaError) -> PublishError:
    hint = "Mend the topic's settings (`max.message.bytes`) or rights; its events wait, others go on."
    if error.code() == KafkaError.INVALID_RECORD:
        hint = (
            "If its cleanup.policy is `compact`, it takes no event without a key, as that of a TRUNCATE or a DROP TABLE is, nor the marker "
            "of a new `partition_by`: list `t` under `skipped.operations`, or set another policy until it has gone out; its events wait, "
            "others go on. Else compare its message.timestamp.before.max.ms and after.max.ms with the clocks."
        )
    return PublishError(f"the broker refuses an event: {error.str()}", operation="publish events", obj=topic, hint=hint)


def read_progress(kafka: KafkaConfig, publisher: int) -> dict[str, Position]:
    """Committed progress of one publisher, by stream. PublishError (retriable) if a transaction is open,
    because its outcome is unknown."""
    return _read_progress(kafka, publisher)[0]


def _read_progress(kafka: KafkaConfig, publisher: int, *, settled: bool = True) -> tuple[dict[str, Position], bytes | None]:
    """Committed progress and the owner of the topics. With `settled`, the partition must be read to its very
    end."""
    options = {
        **reader_options(kafka, f"{kafka.topic_prefix}.progress-reader"),
        # A broker says that nothing is left only after it has waited that long for more.
        "fetch.wait.max.ms": 10,
        # The first fetch often finds its broker not connected yet, which librdkafka takes for an error.
        "fetch.error.backoff.ms": 10,
    }
    consumer = make(Consumer, options)
    progress: dict[str, Position] = {}
    claimed: bytes | None = None
    try:
        partition = TopicPartition(progress_topic(kafka.topic_prefix), publisher, 0)
        consumer.assign([partition])
        while True:
            message = consumer.poll(_TIMEOUT_SECONDS)
            if message is None:
                raise PublishError(
                    f"no answer within {_TIMEOUT_SECONDS:.0f} s",
                    operation="read the publishers' progress",
                    obj=progress_topic(kafka.topic_prefix),
                    retriable=True,
                )
            failure = message.error()
            if failure is None:
                stream, value = (message.key() or b"").decode(), message.value()
                if message.key() == _OWNER_KEY:
                    claimed = value
                elif value is not None:
                    progress[stream] = Position(*json.loads(value))
            elif failure.code() == KafkaError._PARTITION_EOF:
                if settled:
                    _expect_end(consumer, partition, message.offset() or 0)
                return progress, claimed
            else:
                raise KafkaException(failure)
    finally:
        consumer.close()


def _expect_end(consumer: Consumer, partition: TopicPartition, stable: int) -> None:
    """PublishError if the partition continues after offset `stable`, the end for readers of committed
    records."""
    # The fetch that reached this end returned the other one, too. A new client would have to query it, and one query in
    # twenty takes three seconds.
    _, end = consumer.get_watermark_offsets(partition, cached=True)
    if end != stable:
        raise PublishError(
            f"a transaction is open in partition {partition.partition}: it can be read up to {stable}, and ends at {end}",
            operation="read the publishers' progress",
            obj=partition.topic,
            retriable=True,
            hint=f"It ends by itself when its producer's time is over. {_WAIT}",
        )


def _meant(error: KafkaException | SystemError) -> KafkaException:
    """The client's own error. Python raises errors in callbacks, such as that of a fenced producer, as
    SystemError with the client's error as cause."""
    meant = error if isinstance(error, KafkaException) else error.__cause__
    if not isinstance(meant, KafkaException):
        raise error
    return meant


def _failure(operation: str, obj: str, error: KafkaException) -> PublishError:
    reason: KafkaError = error.args[0]
    hint = _WAIT
    if reason.code() in _FENCED:
        hint = f"Another run publishes at the same time; what it leaves, a retry sends. {_WAIT}"
    elif reason.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        hint = f"Lower `transaction.timeout.ms` under `kafka.producer`, or raise transaction.max.timeout.ms of the brokers. {_WAIT}"
    elif reason.code() in _NOT_KEPT:
        hint = f"Are the brokers up, and has each topic as many replicas in sync as its min.insync.replicas says? {_WAIT}"
    elif reason.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        hint = f"Lower `kafka.replication.factor`, or add brokers. {_WAIT}"
    elif reason.code() in _NO_RIGHT:
        hint = f"Grant the user what docs/security.md lists: on topics, transactional ids and the group of `topic.prefix`. {_WAIT}"
    elif reason.code() in _REFUSED_LOGIN:
        hint = f"Check `security.protocol`, `sasl.…` and `ssl.…` under `kafka.producer`, and the password in the environment. {_WAIT}"
    elif reason.code() == KafkaError.POLICY_VIOLATION:
        hint = f"Make the topic as the brokers' policy wants it, or set `kafka.partitions` and `replication.factor`. {_WAIT}"
    return PublishError(reason.str(), operation=operation, obj=obj, retriable=reason.retriable() or reason.code() in _PASSING, hint=hint)
