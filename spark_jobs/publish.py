"""The publish job: send the events of sealed batches to Kafka, each once. `spark-submit publish.py --config
FILE`

Strategy: the changes tables are the outbox. Events are distributed by partition key among a small, fixed
number of transactional publishers. A publisher first fences any earlier owner of its transactional id
(init_transactions), then reads its progress from the progress topic, and only then selects what to send.
Events and new progress are committed in one transaction. After a crash at any point, a rerun therefore leaves
each event once for `read_committed` consumers, in order per key. Where batches begin to be partitioned by
another key (`kafka.partition_by`), all publishers first send what is before, and then each topic is marked.
Exit code: 0 everything is sent, 1 not."""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_jobs.failures import COMMITTERS, concerning, is_lost_worker, of_each, reported_by, reporting
from spark_jobs.job_exit import reports_failure
from spark_jobs.meter import PUBLISH, Made, Meter
from spark_jobs.promised_events import hole, lacking, promised_by
from spark_jobs.rejected_tables import DEATHS, killing
from spark_jobs.session import spark_session
from spark_jobs.sinks.avro_files import files_up_to, to_files
from spark_jobs.sinks.changes_files import ChangesFiles, Reading, Spans, Wanted, read_together
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.kafka import (
    PACKS,
    RECORDS,
    SENT,
    Chain,
    Position,
    Publisher,
    Sent,
    Stretch,
    by_publisher,
    ensure_topics,
    expect_own,
    mark_complete,
    message_limits,
    read_epochs,
    send_heartbeat,
    sending_key,
    settled_progress,
    topic_ends,
)
from spark_jobs.sinks.kafka_records import PUT_ASIDE, Encoder, Incarnation, Oversized, QuarantineTopic
from spark_jobs.sinks.schema_registry import Registry
from spark_jobs.spark_errors import spark_failures
from spark_jobs.stages.jvm_batches import made_whole
from spark_jobs.stages.scan import Batches
from writetime import __version__
from writetime.cassandra.schema.ddl import Ddl, ddl
from writetime.cassandra.schema.model import Table
from writetime.config.kafka import KafkaConfig, PartitionBy
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import ConfigError, PublishError, SchemaError, WritetimeError
from writetime.events import envelope
from writetime.events.naming import from_topic, progress_topic, quarantine_topic
from writetime.events.serialization import DDL, HEARTBEAT, QUARANTINED, Plain
from writetime.pipeline import again, chains
from writetime.pipeline.documents import PartitionedFrom, RefusedTable, Sealed
from writetime.pipeline.identity import owner
from writetime.pipeline.job_result import cause
from writetime.pipeline.planner import history, read_manifest, read_schema, read_sealed
from writetime.pipeline.publish_progress import (
    AGAIN,
    CompleteBefore,
    Published,
    TopicMark,
    complete_in_kafka,
    read_published,
    write_published,
)
from writetime.pipeline.quarantine.published import of_batch, unsent, with_bytes
from writetime.pipeline.quarantine.record import QuarantineRecord
from writetime.pipeline.segment_check import known_schema
from writetime.pipeline.used_schemas import note_used, read_used
from writetime.storage import layout, open_store
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

log = structlog.get_logger()

_FEW_FILES = 32
"""Of so many files, the driver reads the schema versions itself: starting tasks takes longer."""
_FEW_PUBLISHERS = 3
"""So many read all files, each for itself: to read a row once more costs a quarter of what it costs to shuffle its event."""
_FEW_SEALS = 16
_TOPICS_LOOKED_AT = 200
"""So many topics are compared with the record in a run, and all that get events."""
_TABLE_WAITS = "Its events stay in the changes table, and are tried again with each run; other tables do not wait."
_CHECKED: set[tuple[str, ...]] = set()
"""Registries whose ids this process has compared with those that records have: URL, bucket, cluster, prefix."""
_REMEMBERED = 20
"""Requests of a table that are remembered."""


@reports_failure("publishing")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Drain the outbox to Kafka.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument(
        "--since",
        choices=("last", "beginning"),
        default="last",
        help="look at the batches sealed since publishing last drained the outbox, or at all; either way Kafka itself says what it lacks",
    )
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="KEYSPACE.TABLE",
        help="send all events of this table again, whatever Kafka's progress topic says: its topic was lost, or made anew by hand",
    )
    parser.add_argument("--request", default="", metavar="ID", help="of `--again`: made again with the same one, it changes nothing")
    options = parser.parse_args(arguments)
    again = [name for name in options.again if name]
    published = run(load(options.config), everything=options.since == "beginning", again=again, request=options.request)
    waiting = "".join(f"; {name} only up to {batch}, see the log" for name, batch in published.waiting.items())
    print(f"published {published.events} events, up to batch {published.batch}{waiting}")  # noqa: T201
    return 0


def run(
    config: PipelineConfig, *, everything: bool = False, again: Sequence[str] = (), request: str = "", session: SparkSession | None = None
) -> Published:
    """Publish every event of sealed batches that Kafka or the files lack; for Kafka, events of the tables
    `again` are published from the beginning: once for a `request`, however often it is made. A failure of the files is raised after
    Kafka has its events. A given `session` stays open."""
    if config.kafka is None and config.files is None:
        raise ConfigError(
            "neither `kafka` nor `files` is configured", operation="publish", hint="Say in the pipeline's YAML where events go."
        )
    store = open_store(config.bucket)
    if (rebuild := chains.unfinished(store, config.cluster.name)) is not None:
        if again:
            raise chains.under_way(rebuild, "publish again", config.cluster.name)
        log.info("publishing paused: a rebuild is running", hint="`writetime rebuild` finishes it.")
        return (read_published(store, config.cluster.name) or Published(batch=0, events=0)).model_copy(update={"events": 0})
    sealed = history(store, config.cluster.name).sealed
    if sealed is None:
        nothing = read_published(store, config.cluster.name) or Published(batch=0, events=0)
        return nothing if config.kafka is None else _with_heartbeat(config, config.kafka, store, nothing)
    if again and config.kafka is not None:
        expect_own(config.kafka, owner(store, config.cluster.name, config.pipeline))
        _request_again(config, config.kafka, store, again, request or uuid4().hex)
    sinks = _Sinks(config, store, sealed, everything)
    published = sinks.known or _beginning(store, config.cluster.name, sealed.number)
    published = published.model_copy(update={"events": 0})
    not_filed = sinks.not_filed
    if sinks.kafka_due or sinks.files_due:
        spark = session or spark_session(config, f"writetime publish {config.pipeline}")
        try:
            if sinks.files_due:
                published, not_filed = sinks.to_files(spark, published)
            if config.kafka is not None and sinks.kafka_due:
                meter = Meter(spark.sparkContext, whole=True, driver=PUBLISH, jvm=PUBLISH)
                outbox = Outbox(config, config.kafka, store, spark, sealed.number, meter=meter)
                # In a session, the process also runs batches, which count what it uses.
                published = outbox.drain(everything=everything, process=session is None)
        finally:
            if session is None:
                spark.stop()
    published = published if config.kafka is None else _with_heartbeat(config, config.kafka, store, published)
    if not_filed is not None:
        raise not_filed
    return published


def publish_at_once(config: PipelineConfig, number: int, spark: SparkSession) -> None:
    """Publish the batch `number`, which was just sealed, in the application that sealed it: starting another
    one takes longer than sending the events of a small batch. Only if all earlier batches are published and
    no table waits, since a backlog must not delay the next batch: `cdc_publish` publishes it, and what a
    failure leaves. A failure is only logged."""
    if config.kafka is None and config.files is None:
        return
    try:
        store, cluster = open_store(config.bucket), config.cluster.name
        known = read_published(store, cluster) or _beginning(store, cluster, number)
        if known.batch < number - 1 or known.waiting:
            log.info("the batch is left to cdc_publish", batch=number, published=known.batch, waiting=known.waiting)
            return
        published = run(config, session=spark)
        log.info("published", batch=published.batch, events=published.events)
    except Exception as error:  # noqa: BLE001 - whatever it is, the batch is sealed and its events wait in the outbox
        log.warning("publishing failed, cdc_publish tries again", batch=number, error=cause(error))


class _Sinks:
    """Where events are published, and which sinks lack events of the batches up to `sealed`. `everything`:
    disregard the recorded progress."""

    def __init__(self, config: PipelineConfig, store: Store, sealed: Sealed, everything: bool) -> None:
        self.config, self.store, self.sealed = config, store, sealed
        cluster, upto = config.cluster.name, sealed.number
        recorded = read_published(store, cluster)
        self.known = recorded if config.kafka is None else _known(store, cluster, upto, recorded)
        behind = self.known is None or self.known.batch < upto or bool(self.known.waiting)
        self.kafka_due = config.kafka is not None and (everything or behind)
        self._filed, self.not_filed = self._files_up_to(everything)
        self.files_due = config.files is not None and self.not_filed is None and self._filed < upto

    def _files_up_to(self, everything: bool) -> tuple[int, WritetimeError | None]:
        """The last batch written to the files, or the error that prevents reading it; other sinks
        continue."""
        upto = self.sealed.number
        start = _beginning(self.store, self.config.cluster.name, upto).batch
        if self.config.files is None:
            return 0, None
        try:
            filed = files_up_to(self.config.files)
        except WritetimeError as error:
            return 0, error
        if filed > upto:
            return 0, _filed_beyond(self.config.files.url, filed, upto)
        return start if everything else max(start, filed), None

    def to_files(self, spark: SparkSession, published: Published) -> tuple[Published, WritetimeError | None]:
        """Write the files. Returns the progress, which counts if there is no Kafka, and the error, which does
        not delay Kafka."""
        assert self.config.files is not None
        try:
            done = to_files(self.config, self.config.files, self.store, spark, self._filed, self.sealed)
        except WritetimeError as error:
            return published, error
        if self.config.kafka is None:
            published = Published(batch=done.batch, events=done.events, kafka=False)
            write_published(self.store, self.config.cluster.name, published)
        return published, None


def _known(store: Store, cluster: str, upto: int, known: Published | None) -> Published | None:
    """The recorded progress, if it is of Kafka. None if it was written by runs without Kafka, or belongs to another
    chain of batches: then Kafka's own progress decides."""
    start = _beginning(store, cluster, upto)
    if known is not None and known.kafka and known.batch < start.batch:
        return start.model_copy(update=known.of_other_chain())
    return known if known is not None and known.kafka and known.is_of(store, cluster, upto) else None


def _beginning(store: Store, cluster: str, upto: int) -> Published:
    """Progress without a record: nothing is sent. In a chain that a rebuild began, batches up to its last one
    are not sent at all."""
    return Published(batch=chains.begins_after(store, cluster, upto), events=0)


def _request_again(config: PipelineConfig, kafka: KafkaConfig, store: Store, tables: Sequence[str], request: str) -> None:
    """Record that all events of these tables are to be sent again: in a new epoch, in which the publishers' progress does not
    count. Not if they are being sent again, nor if that was done for this request, by whatever run: they would be sent twice."""
    cluster = config.cluster.name
    found = {table.full_name: table for table in known_schema(store, cluster).schema().tables.values()}
    if unknown := [name for name in tables if name not in found]:
        hint = f"Known are {', '.join(sorted(found))}." if found else ""
        raise ConfigError("unknown table", operation="publish again", obj=", ".join(unknown), hint=hint)

    def change(before: Published | None) -> Published | None:
        # Looked up after the record was read: a batch sealed meanwhile may be published already, and its record is not of
        # another chain.
        sealed = history(store, cluster).sealed
        upto = sealed.number if sealed is not None else 0
        known = _known(store, cluster, upto, before) or _beginning(store, cluster, upto)
        new = [name for name in tables if request not in known.requests.get(name, ())]
        if not new:
            return None
        in_kafka = _epochs(kafka, found.values)
        requests = known.requests | {name: [*known.requests.get(name, ()), request][-_REMEMBERED:] for name in new}
        fresh = [name for name in new if name not in known.asked]
        epochs = known.epochs | {name: max(known.epochs.get(name, 0), in_kafka[name]) + 1 for name in fresh}
        waiting, reasons = known.waiting | dict.fromkeys(fresh, 0), known.reasons | dict.fromkeys(fresh, AGAIN)
        costs = before.costs if before is not None else []
        asked = sorted({*known.asked, *fresh})
        about = {"waiting": waiting, "reasons": reasons, "epochs": epochs, "requests": requests, "asked": asked, "costs": costs}
        return known.model_copy(update=about)

    Published.update(store, layout.published(cluster), change)


def _epochs(kafka: KafkaConfig, tables: Callable[[], Iterable[Table]]) -> Counter[str]:
    """By table, how often all its events were to be sent again, by Kafka's own progress."""
    in_kafka = +Counter(read_epochs(kafka))
    return Counter({table.full_name: in_kafka[_topic_of(kafka, table)] for table in tables()} if in_kafka else {})


def _topic_of(kafka: KafkaConfig, table: Table) -> str:
    return envelope.topic(kafka.topic_prefix, table.keyspace, table.name)


def _with_heartbeat(config: PipelineConfig, kafka: KafkaConfig, store: Store, published: Published) -> Published:
    """Send a heartbeat if one is due, and record it. If another publisher has gone further meanwhile, that one
    sends it."""
    now = int(time.time() * 1000)
    if not kafka.heartbeat_interval_ms or now - published.heartbeat < kafka.heartbeat_interval_ms:
        return published
    stored = read_published(store, config.cluster.name)
    if stored is not None and (stored.batch > published.batch or now - stored.heartbeat < kafka.heartbeat_interval_ms):
        return published
    published = published.model_copy(update={"complete": stored.complete if stored is not None else published.complete})
    ids = _ids_of(config, kafka, store, kafka.heartbeat_topic, HEARTBEAT)
    complete = complete_in_kafka(store, config.cluster.name, published)
    until = None if complete is None else int(complete.timestamp() * 1000)
    value = {"ts_ms": now, "complete_until_ms": until}
    send_heartbeat(kafka, *HEARTBEAT.record(kafka.format, {"serverName": kafka.topic_prefix}, value, ids))
    if until is not None and kafka.complete_markers:
        waiting = published.waiting.keys() | (stored.waiting.keys() if stored is not None else set())
        _mark_complete(config, kafka, store, until, waiting)
    said = {"heartbeat": now, "complete": complete}
    Published.update(store, layout.published(config.cluster.name), lambda before: (before or published).model_copy(update=said))
    return published.model_copy(update=said)


def _mark_complete(config: PipelineConfig, kafka: KafkaConfig, store: Store, until: int, waiting: Collection[str]) -> None:
    """Mark the topics of captured tables as complete up to then (ms). Not those of waiting tables: if their events
    are sent again, they are not there yet."""
    expect_own(kafka, owner(store, config.cluster.name, config.pipeline))
    captured = known_schema(store, config.cluster.name).captured(config.tables.captures)
    tables = [table for table in captured if not table.dropped and table.full_name not in waiting]
    mark_complete(kafka, [envelope.topic(kafka.topic_prefix, table.keyspace, table.name) for table in tables], until)


def _ids_of(config: PipelineConfig, kafka: KafkaConfig, store: Store, topic: str, plain: Plain) -> tuple[int, int] | None:
    """Schema ids of records that do not belong to a row; None if the format has no schema ids."""
    if kafka.format != "avro":
        return None
    schemas = plain.schemas()
    with opened_registry(config, kafka, store) as registry:
        return registry.id_of(f"{topic}-key", schemas.key), registry.id_of(f"{topic}-value", schemas.value)


@contextmanager
def opened_registry(config: PipelineConfig, kafka: KafkaConfig, store: Store, *, check: bool = True) -> Iterator[Registry]:
    """The registry, with the ids that records of the pipeline's topics have: what is asked for is noted at the end, before anything
    is sent. `check`: a process looks once whether these ids mean what they did. PublishError if they do not."""
    cluster = config.cluster.name

    def topics() -> set[str]:
        tables = known_schema(store, cluster).captured(config.tables.captures)
        others = {kafka.topic_prefix, quarantine_topic(kafka.topic_prefix), kafka.heartbeat_topic}
        return others | {_topic_of(kafka, table) for table in tables if not table.dropped}

    known = read_used(store, cluster)
    with Registry(kafka, known, topics) as registry:
        if check and (place := (registry.url, config.bucket, cluster, kafka.topic_prefix)) not in _CHECKED:
            registry.expect_used()
            _CHECKED.add(place)
        try:
            yield registry
        finally:
            if known.and_(registry.new.ids) != known:
                note_used(store, cluster, registry.new.ids)


class Part(NamedTuple):
    """Batches up to `last` whose records are partitioned `by` the same key. `marks`: the batch of which topics are told
    that they are partitioned otherwise from there on. `held`: names whose earlier events could not be sent."""

    last: int
    by: PartitionBy
    marks: int | None = None
    held: frozenset[str] = frozenset()


def parts(rules: Sequence[PartitionedFrom], since: int, upto: int) -> Iterator[Part]:
    """The batches after `since`, up to `upto`, in parts that are sent one after the other."""
    before: PartitionBy = "primary_key"
    ends = [*(rule.batch - 1 for rule in rules), upto]
    for rule, last in zip([PartitionedFrom(batch=0, by=before), *rules], ends, strict=True):
        marks = rule.batch if rule.by != before and rule.batch > 1 else None
        before = rule.by
        if rule.batch <= upto and (last > since or last >= upto):
            yield Part(min(last, upto), rule.by, marks)


class Unsent(NamedTuple):
    """Rows, and the function for `mapInArrow` that makes RECORDS of them. `stretches`: the same, if publishers may read
    them without a shuffle."""

    rows: DataFrame
    encode: Callable[[Batches], Batches]
    stretches: Sequence[Stretch] | None = None

    def records(self) -> DataFrame:
        return self.rows.mapInArrow(self.encode, schema=from_arrow_schema(RECORDS))

    def packs(self) -> DataFrame:
        """The records as PACKS."""
        return self.rows.mapInArrow(by_publisher(self.encode), schema=from_arrow_schema(PACKS))


class Used(NamedTuple):
    """Of an incarnation's new events: the schema versions, and whether some of each have values in dropped columns; and how many
    events there are of each batch, with those of operations that are skipped."""

    incarnation: Incarnation
    versions: list[tuple[str, bool]]
    events: Counter[int]


class Outbox:
    """The changes tables of all captured tables, up to the last sealed batch, without those that were
    voided."""

    def __init__(
        self,
        config: PipelineConfig,
        kafka: KafkaConfig,
        store: Store,
        spark: SparkSession,
        upto: int,
        *,
        meter: Meter | None = None,
    ) -> None:
        self.config = config
        self.kafka = kafka
        self.store = store
        self.spark = spark
        self.upto = upto
        self.meter = meter
        self.first = chains.first_of(store, config.cluster.name, upto)
        self.owner = owner(store, config.cluster.name, config.pipeline)
        self._seals: dict[int, Sealed] = {}
        self._spans: dict[Wanted, Spans] = {}
        self._failed: dict[str, WritetimeError] = {}
        self._events: dict[int, Counter[str] | None] = {}
        self._sending: dict[str, str] = {}
        self._marks: dict[str, TopicMark] = {}
        self._epochs: Mapping[str, int] = {}
        self._batch_bytes: int | None = None
        sealed = self._sealed(upto)
        self.rules = sealed.partition_by if sealed is not None else []

    def without_effect(self, table_id: UUID) -> frozenset[int]:
        """The batches whose events of the table are not sent."""
        sealed = self._sealed(self.upto)
        return frozenset() if sealed is None else sealed.without_effect(table_id)

    def _sealed(self, number: int) -> Sealed | None:
        """The seal of a batch. A run asks several times for the same few, which may be large."""
        found = self._seals.get(number) or read_sealed(self.store, self.config.cluster.name, number)
        if found is not None and len(self._seals) < _FEW_SEALS:
            self._seals[number] = found
        return found

    def drain(self, *, everything: bool, process: bool = False) -> Published:
        """Send what Kafka lacks. `everything` disregards the recorded progress; `process`: this process does nothing
        else, so that what it uses is noted, too.

        An event that cannot be sent does not delay other tables. If it may be sent by a later run, its error
        is raised after everything else is sent."""
        cluster = self.config.cluster.name
        record = read_published(self.store, cluster)
        known = _known(self.store, cluster, self.upto, record)
        published = self.send(known if known is not None and not everything else self._from_the_start(record, known))
        published = published.model_copy(update={"topics": self._marks})
        write_published(self.store, cluster, published, self.meter.costs(process=process) if self.meter is not None else ())
        return published

    def _metered(self, table: str, made: Made) -> Made:
        return made if self.meter is None else self.meter.stage(PUBLISH, table)(made)

    def _from_the_start(self, record: Published | None, known: Published | None) -> Published:
        """Progress for sending everything, except batches that are not sent at all; tables that are sent
        again start from their beginning. `known`: the record, if it is one of this chain."""
        start = _beginning(self.store, self.config.cluster.name, self.upto)
        kept = record.of_other_chain() if record is not None else {}
        if known is not None:
            # Whether a topic that has lost its progress is sent as a whole, Kafka says.
            kept["topics"] = {topic: mark.model_copy(update={"progress": []}) for topic, mark in known.topics.items()}
        if known is not None and start.batch:
            kept["waiting"] = known.waiting
        # Either record may have been lost.
        epochs = +_epochs(self.kafka, self._all_tables) | Counter(kept.get("epochs", {}))
        return start.model_copy(update=kept | {"epochs": dict(epochs)})

    def send(self, known: Published) -> Published:
        """Send what is neither `known` to be in Kafka nor in Kafka's own progress; returns the new progress.
        Raises as `drain`."""
        self._epochs = known.epochs
        reached, held = known, Published(batch=0, events=0)
        # A table that waits from its beginning has no events of the chains before.
        for part in parts(self.rules, max(known.sent_by_all, self.first - 1), self.upto):
            reached = self._send(reached, part._replace(held=frozenset(held.waiting)))
            held = reached = reached.model_copy(
                update={
                    "events": held.events + reached.events,
                    "waiting": held.waiting | reached.waiting,
                    "reasons": held.reasons | reached.reasons,
                }
            )
        return reached.model_copy(update={"asked": [name for name in known.asked if name in reached.waiting]})

    def _send(self, known: Published, part: Part) -> Published:
        """The same for a part of the batches: again without the tables that fail alone, in the driver or in a publisher,
        as after a crash, and without those of which a worker dies twice. They wait."""
        deaths = 0
        while True:
            try:
                return self._send_tables(known, part)
            except (WritetimeError, PySparkException) as error:
                reported = reported_by(error) or reported_by(error.__cause__ or error)
                if not reported and is_lost_worker(error):
                    deaths += 1
                    if deaths < DEATHS:
                        log.warning("a worker died, events are sent again", batch=part.last, error=str(error)[:200])
                        continue
                    reported, deaths = self._killing(known, part), 0
                found = {self._full_name(each.table_id): each for each in reported}
                if not found.keys() - self._failed.keys():
                    raise
                for name, each in found.items():
                    self._failed[name] = PublishError(each.reason, operation="publish events", obj=name, hint=_TABLE_WAITS)

    def _killing(self, known: Published, part: Part) -> list[RefusedTable]:
        """The table of whose events alone a worker dies. Nothing is sent meanwhile."""
        tables = {table.full_name: table for table in self._tables(known, part)}

        def encode(some: Collection[Table]) -> None:
            others = tables.keys() - {table.full_name for table in some}
            records, _ = self._records(known, part._replace(held=part.held | others))
            for source in records:
                source.packs().count()

        return killing(encode, list(tables.values()))

    def _all_tables(self) -> Iterable[Table]:
        return read_schema(self.store, self.config.cluster.name, self.upto).schema().tables.values()

    def _full_name(self, table_id: UUID) -> str:
        return read_schema(self.store, self.config.cluster.name, self.upto).schema().tables[table_id].full_name

    def _send_tables(self, known: Published, part: Part) -> Published:
        cluster = self.config.cluster.name
        records, refused = self._records(known, part)
        with spark_failures():
            found = self._sent(records) if records else []
            sent: list[Sent] = [pickle.loads(row.sent) for row in found]  # noqa: S301 - made by our own workers
        refused |= {self._named(stream): error for found in sent for stream, error in found.stuck.items()}
        self._note_topics(known, sent, refused)
        with spark_failures():
            self._write_quarantine(known, part)
        for name, error in refused.items():
            log.error("table not published", table=name, **error.as_dict())
        if passing := [error for error in refused.values() if error.retriable]:
            raise passing[0]
        return Published(
            batch=part.last,
            events=sum(found.events for found in sent),
            waiting={name: known.sent(name) for name in sorted(refused)},
            reasons={name: str(refused[name]) for name in sorted(refused)},
            heartbeat=known.heartbeat,
            complete=known.complete,
            id=read_manifest(self.store, cluster, part.last).id,
            epochs=known.epochs,
            requests=known.requests,
            asked=known.asked,
            topics=known.topics | self._marks,
        )

    def _sent(self, records: Sequence[Unsent]) -> list[Row]:
        """Send the records, each publisher's share in one task; rows of SENT."""
        if self.kafka.publishers <= _FEW_PUBLISHERS and all(source.stretches is not None for source in records):
            send = self._publisher.send_stretches([stretch for source in records for stretch in source.stretches or ()])
            numbers = self.spark.range(self.kafka.publishers, numPartitions=self.kafka.publishers)
            return numbers.mapInArrow(self._metered("", send), schema=from_arrow_schema(SENT)).collect()
        packs = reduce(DataFrame.unionByName, (source.packs() for source in records))
        shares = packs.repartition(self.kafka.publishers, "publisher").sortWithinPartitions("publisher", "first")
        return shares.mapInArrow(self._metered("", self._publisher.send_packs), schema=from_arrow_schema(SENT)).collect()

    @property
    def _publisher(self) -> Publisher:
        tables = self._all_tables() if self._epochs else ()
        epochs = {self._topic(table): self._epochs[table.full_name] for table in tables if table.full_name in self._epochs}
        chain = Chain(self.config.bucket, self.config.cluster.name, self.upto, self.first)
        return Publisher(self.kafka, chain, self.owner, epochs, self._batch_bytes)

    def _named(self, topic: str) -> str:
        """The full name of the table whose topic it is; the topic itself if it is not a table's."""
        prefix = self.kafka.topic_prefix
        return topic if topic in (prefix, quarantine_topic(prefix)) else ".".join(from_topic(topic)[1:])

    def _records(self, known: Published, part: Part) -> tuple[list[Unsent], dict[str, WritetimeError]]:
        """What becomes the Kafka records of the part's batches that are not known to be sent; and the errors of
        what cannot be sent, by full table name. All incarnations of a name share a topic and are sent in
        order."""
        addresses = read_manifest(self.store, self.config.cluster.name, self.upto).nodes
        warehouse = Warehouse(self.spark, self.config.catalog.name if self.config.catalog else "")
        found: dict[str, list[Incarnation]] = defaultdict(list)
        refused: dict[str, WritetimeError] = dict(self._failed)
        complete = CompleteBefore(self.store, self.config.cluster.name, range(known.sent_by_all + 1, part.last + 1))
        # Before topics are created: what is gone is not to look as if it were new.
        refused |= self._lost(known, part, expect_own(self.kafka, self.owner))
        tables = [table for table in self._tables(known, part) if table.full_name not in refused]

        def opened(table: Table) -> Incarnation | WritetimeError | None:
            try:
                changes = warehouse.open_changes(table, self.without_effect(table.id))
                if changes is None:
                    return None
                where = self.config.cluster.name, table.keyspace, table.name
                about = envelope.About(*where, addresses, self.kafka.topic_prefix, complete.of(table.id))
                return Incarnation(table, changes, about, self._topic(table), changes.files(self._since(known, table.full_name), part.last))
            except WritetimeError as error:
                return error

        for table, each in zip(tables, of_each(tables, opened, workers=COMMITTERS), strict=True):
            if isinstance(each, Incarnation):
                found[table.full_name].append(each)
            elif each is not None:
                refused[table.full_name] = each
        # Not of refused tables: their names may be what they are refused for.
        topics = {name: incarnations[0].topic for name, incarnations in found.items()}
        absent = self._not_known_to_be_sent(known, part) - found.keys() - refused.keys() - part.held
        refused |= {name: _not_there(name) for name in absent if self._has_unsent(name, known, part)}
        used = self._used(found, known, part)
        refused |= self._holes(found, {each.table.id: events for each, _, events in used}, known, part)
        encoders, unclear = self._encoders(used, refused, part.by)
        refused |= unclear
        statements, cannot = self._ddl(known, part)
        refused |= cannot
        quarantined, quarantine, cannot = self._quarantine_records(known, part)
        refused |= cannot
        wanted = sorted({topics[name] for name in found if name not in refused})
        others = [*([self.kafka.topic_prefix] if statements else []), *([] if quarantine is None else [quarantine.topic])]
        unmade = ensure_topics(self.kafka, [*wanted, *others])
        refused |= {self._named(topic): error for topic, error in unmade.items()}
        silent = self._limit(
            encoders,
            [topic for topic in (*wanted, *others) if topic not in unmade],
            None if quarantine and quarantine.topic in unmade else quarantine,
        )
        refused |= {self._named(topic): error for topic, error in silent.items()}
        if part.marks is not None:
            marked = [topic for topic in wanted if self._named(topic) not in refused]
            refused |= {self._named(topic): error for topic, error in self._publisher.mark_switch(marked, part.marks, part.by).items()}
        unsent = [
            (incarnation, encoders[incarnation.table.id], self._since(known, name))
            for name, incarnations in found.items()
            for incarnation in incarnations
            if name not in refused and incarnation.has_unsent
        ]
        self._sending = {incarnation.topic: incarnation.table.full_name for incarnation, *_ in unsent}
        sources = self._table_records(unsent, part)
        plain = [record for record in (*statements, *quarantined) if record[1] not in refused]
        if plain:
            rows = self.spark.createDataFrame(plain, schema=from_arrow_schema(RECORDS))
            sources.append(Unsent(rows, _as_they_are, [_stretch_of(plain)]))
        return sources, refused

    def _tables(self, known: Published, part: Part) -> list[Table]:
        """The tables, with those of dropped incarnations, that may have events to send."""
        captured = read_schema(self.store, self.config.cluster.name, self.upto).captured()
        has_events, left_out = self._with_events(known, part), part.held | self._failed.keys()
        return [table for table in captured if table.full_name not in left_out and has_events(table)]

    def _with_events(self, known: Published, part: Part) -> Callable[[Table], bool]:
        """Whether a table may have events that are not known to be sent, by the seals of the part's batches. Of many
        batches, or if a seal is gone, any may: opening a table costs as much as reading some seals. If topics are to
        be marked, all count."""
        numbers = range(known.sent_by_all + 1, part.last + 1)
        if part.marks is not None or len(numbers) > _FEW_SEALS:
            return lambda _: True
        if None in map(self._sealed, numbers):
            return lambda _: True
        names = self._names_with_events(numbers)
        return lambda table: table.full_name in names

    def _names_with_events(self, numbers: Iterable[int]) -> set[str]:
        """Full names of the tables with events in these batches, by their seals."""
        return {name for events in self._events_of(numbers).values() if events is not None for name in +events}

    def _events_of(self, numbers: Iterable[int]) -> dict[int, Counter[str] | None]:
        """By batch, how many events the seal has of each table, by full name; None if the seal is gone."""
        wanted = list(numbers)
        new = [number for number in wanted if number not in self._events]
        self._events |= zip(new, at_once(lambda number: promised_by(self._sealed(number)), new), strict=True)
        return {number: self._events[number] for number in wanted}

    def _since(self, known: Published, name: str) -> int:
        """The batch after which events of the table are sent: where it was made again, its events tell all of it, and what is
        before may be lost."""
        return max(known.sent(name), self._begins.get(name, 0) - 1)

    @cached_property
    def _begins(self) -> dict[str, int]:
        """By full name, the last batch whose events tell all rows of the table (`writetime.pipeline.again`)."""
        sealed = self._sealed(self.upto)
        found = again.begins(sealed)
        return {table.full_name: found[table.id] for table in self._all_tables() if table.id in found} if found else {}

    # --- compared with the seals, and with the record

    def _holes(
        self, found: Mapping[str, list[Incarnation]], counted: Mapping[UUID, Counter[int]], known: Published, part: Part
    ) -> dict[str, WritetimeError]:
        """The tables of which there are not as many events of a batch as its seal says. Nothing is sent over the hole."""
        refused: dict[str, WritetimeError] = {}
        for name, incarnations in found.items():
            there = sum((counted.get(each.table.id, Counter()) for each in incarnations), Counter[int]())
            numbers = range(max(self._since(known, name), self.first - 1) + 1, part.last + 1)
            error = hole(self.store, self.config.cluster.name, name, there, self._events_of(numbers))
            if error is not None:
                refused[name] = error
        return refused

    def _lost(self, known: Published, part: Part, progress: Sequence[Mapping[str, Position]]) -> dict[str, WritetimeError]:
        """The tables whose topics, or whose progress in Kafka, are less than they were when a run recorded them. Events of
        these would be sent over a hole."""
        marks = self._expected(known, part)
        if not marks:
            return {}
        ends = topic_ends(self.kafka, marks)
        behind = [topic for topic, (name, mark) in marks.items() if mark.is_behind(self._batches(progress, topic, name))]
        if behind:
            # Unless a transaction hides the last progress, which is an error.
            progress = settled_progress(self.kafka)
        refused: dict[str, WritetimeError] = {}
        for topic, (name, mark) in marks.items():
            now = self._batches(progress, topic, name)
            # Without any progress, a run that looks at all batches sends all of them.
            sends_all = not mark.progress and not any(now)
            if mark.is_behind(now):
                refused[name] = _lost_progress(name, topic, max(now, default=0), max(mark.progress))
            elif ends.get(topic, mark.end) < mark.end and not sends_all:
                refused[name] = _lost_topic(name, topic, ends[topic], mark.end)
        return refused

    def _expected(self, known: Published, part: Part) -> dict[str, tuple[str, TopicMark]]:
        """By topic, the table and where it stood: of those whose events go on there. Of many, those with events and some
        others in turn."""
        if not known.topics:
            return {}
        captured = read_schema(self.store, self.config.cluster.name, self.upto).captured(self.config.tables.captures)
        names = {self._topic(table): table.full_name for table in captured if not table.dropped}
        names = {topic: name for topic, name in names.items() if topic in known.topics and name not in known.asked}
        names = {topic: name for topic, name in names.items() if self._since(known, name) <= known.sent(name)}
        if len(names) > _TOPICS_LOOKED_AT:
            first = self.upto * _TOPICS_LOOKED_AT % len(names)
            active = self._names_with_events(range(known.sent_by_all + 1, part.last + 1))
            turn = {*(sorted(names) * 2)[first : first + _TOPICS_LOOKED_AT]}
            names = {topic: name for topic, name in names.items() if topic in turn or name in active}
        return {topic: (name, known.topics[topic]) for topic, name in names.items()}

    def _batches(self, progress: Sequence[Mapping[str, Position]], topic: str, name: str) -> list[int]:
        """How far each publisher has sent the topic, without what it sent before all was sent again."""
        epoch = self._epochs.get(name, 0)
        return [found[topic].batch if topic in found and found[topic].epoch >= epoch else 0 for found in progress]

    def _note_topics(self, known: Published, sent: Sequence[Sent], refused: Container[str]) -> None:
        """Note where the topics stand to which events were sent."""
        topics = {topic: name for topic, name in self._sending.items() if name not in refused}
        if not topics or not sent:
            return
        ends = topic_ends(self.kafka, topics)
        for topic, name in topics.items():
            is_new = name in known.asked or self._since(known, name) > known.sent(name)
            before = TopicMark() if is_new else self._marks.get(topic) or known.topics.get(topic) or TopicMark()
            reached = [*before.progress, *[0] * self.kafka.publishers][: self.kafka.publishers]
            for each in sent:
                if topic in each.reached:
                    reached[each.publisher] = each.reached[topic]
            self._marks[topic] = TopicMark(progress=reached, end=ends.get(topic, 0))

    def _limit(
        self, encoders: Mapping[UUID, Encoder], topics: Sequence[str], quarantine: QuarantineTopic | None
    ) -> dict[str, PublishError]:
        """Set the encoders' size limits and oversized policy, and the limit of batches, which go to all topics of the run.
        Returns the topics without a known limit, with the error."""
        if not topics:
            return {}
        limits, silent = message_limits(self.kafka, [*topics, progress_topic(self.kafka.topic_prefix)])
        if (unknown := silent.pop(progress_topic(self.kafka.topic_prefix), None)) is not None:
            raise unknown
        self._batch_bytes = min(limits.values(), default=None)
        if self.kafka.oversized == "wait":
            return silent
        for encoder in encoders.values():
            if encoder.topic in limits:
                limit = limits[encoder.topic]
                encoder.oversized = Oversized(self.kafka.oversized, limit, self.config.bucket, self.config.cluster.name, quarantine)
        return silent

    def _ddl(self, known: Published, part: Part) -> tuple[list[tuple[Any, ...]], dict[str, WritetimeError]]:
        """RECORDS of the DDL that is not known to be sent, all of one publisher, whose progress ensures that
        they are sent once; and the errors."""
        topic = self.kafka.topic_prefix
        if not self.kafka.include_schema_changes or topic in part.held:
            return [], {}
        found = list(self._statements(known.sent(topic), part.last))
        try:
            ids = _ids_of(self.config, self.kafka, self.store, topic, DDL) if found else None
        except PublishError as error:
            if error.retriable:
                raise
            return [], {topic: error}
        records = []
        for batch, ordinal, now, each in found:
            source = {
                "version": __version__,
                "connector": "writetime",
                "cluster": self.config.cluster.name,
                "keyspace": each.keyspace,
                "table": each.table.name if each.table else None,
                "table_id": str(each.table.id) if each.table else None,
                "sequence": [batch, ordinal],
                "snapshot": False,
            }
            value = {"keyspace": each.keyspace, "ddl": each.text, "ts_ms": now * 1000, "source": source}
            key, payload = DDL.record(self.kafka.format, {"keyspace": each.keyspace}, value, ids)
            records.append((0, topic, topic, batch, ordinal, bytearray(key), bytearray(payload), "ddl", False, None, None))
        return records, {}

    def _quarantine_records(
        self, known: Published, part: Part
    ) -> tuple[list[tuple[Any, ...]], QuarantineTopic | None, dict[str, WritetimeError]]:
        """RECORDS of the quarantine records that are not known to be sent, all of one publisher; their topic,
        if anything may have to be sent to it; and what cannot be sent, by topic."""
        topic = quarantine_topic(self.kafka.topic_prefix)
        if not self.config.quarantine.topic or topic in part.held:
            return [], None, {}
        found = [
            (number, ordinal, record)
            for number in range(known.sent(topic) + 1, part.last + 1)
            for ordinal, record in enumerate(self._records_of(number), start=1)
        ]
        if not found and self.kafka.oversized != "quarantine":
            return [], None, {}
        try:
            quarantine = QuarantineTopic(topic, self.kafka.format, _ids_of(self.config, self.kafka, self.store, topic, QUARANTINED))
        except PublishError as error:
            if error.retriable:
                raise
            return [], None, {topic: error}
        records = []
        for number, ordinal, record in found:
            key, value = quarantine.record(record)
            op = PUT_ASIDE if record.settled_in is None else "settled"
            records.append((0, topic, topic, number, ordinal, bytearray(key), bytearray(value), op, False, None, None))
        return records, quarantine, {}

    def _records_of(self, number: int) -> list[QuarantineRecord]:
        """The records that a sealed batch quarantined, and those that it settled."""
        cluster = self.config.cluster.name
        sealed = self._sealed(number)
        outcomes = [outcome for outcome in sealed.segments if outcome.problems or outcome.settled] if sealed else []
        if not outcomes:
            return []
        quarantined = of_batch(read_manifest(self.store, cluster, number), outcomes)
        return with_bytes(quarantined, self.store, read_schema(self.store, cluster, number), self.config)

    def _write_quarantine(self, known: Published, part: Part) -> None:
        """Write unsent events to the quarantine table. This happens before progress is recorded, so that the
        next run repeats it after a crash."""
        if self.kafka.oversized == "quarantine" and self.config.quarantine.table and self.config.catalog is not None:
            quarantined = list(unsent(self.store, self.config.cluster.name, known.sent_by_all, part.last))
            if quarantined:
                Warehouse(self.spark, self.config.catalog.name).write_quarantine(quarantined, part.last)

    def _statements(self, since: int, upto: int) -> Iterator[tuple[int, int, int, Ddl]]:
        """Batch, ordinal, the batch's clock, and DDL statement, for the schema changes of captured tables in
        the batches after `since`, up to `upto`."""
        cluster = self.config.cluster.name
        # Nothing is known before the first batch of a chain.
        before, last = read_schema(self.store, cluster, since if since >= self.first else 0).schema(), None
        sealed = self._sealed(self.upto)
        voided = () if sealed is None else sealed.voided
        for number in range(since + 1, upto + 1):
            if number in voided:
                continue
            # An unchanged schema is not read again.
            held = self.store.head(layout.batch_object(cluster, number, "schema"))
            if held is None or held.crc32c == last:
                continue
            learner, last = read_schema(self.store, cluster, number), held.crc32c
            after = learner.schema()
            captured = {table.id for table in learner.captured(self.config.tables.captures)}
            for ordinal, each in enumerate(ddl(before, after, captured), start=1):
                yield number, ordinal, read_manifest(self.store, cluster, number).now, each
            before = after

    def _has_unsent(self, name: str, known: Published, part: Part) -> bool:
        """Whether a table has events of the part that are not known to be sent. A table that waits may have none: all of them
        may be in other parts, or it was asked for and never written to. If a seal is gone, it counts as one with events."""
        numbers = range(max(self._since(known, name), self.first - 1) + 1, part.last + 1)
        return any(events is None or events[name] for events in self._events_of(numbers).values())

    def _not_known_to_be_sent(self, known: Published, part: Part) -> set[str]:
        """Full names of the tables that may have events which the last run does not know to be sent, by the seals since
        then and by the recorded progress."""
        note = _known(self.store, self.config.cluster.name, self.upto, read_published(self.store, self.config.cluster.name)) or known
        tables = note.waiting.keys() - {self.kafka.topic_prefix, quarantine_topic(self.kafka.topic_prefix)}
        return self._names_with_events(range(note.batch + 1, part.last + 1)) | tables

    def _encoders(
        self, used: Sequence[Used], left_out: Container[str], by: PartitionBy
    ) -> tuple[dict[UUID, Encoder], dict[str, WritetimeError]]:
        """The encoder of each incarnation's events, by id; and the errors of tables whose schema is unknown
        or rejected by the registry. They are found here because an error in a task would stop all tables."""
        encoders: dict[UUID, Encoder] = {}
        refused: dict[str, WritetimeError] = {}
        asked = opened_registry(self.config, self.kafka, self.store) if self.kafka.format == "avro" else nullcontext()
        with asked as registry:
            for incarnation, versions, _ in used:
                name = incarnation.table.full_name
                if name in left_out:
                    continue
                try:
                    with concerning(incarnation.table):
                        encoder = Encoder.of(self.kafka, self.config.events, incarnation, by)
                        encoder = encoders.setdefault(incarnation.table.id, encoder)
                        for version, wide in versions if name not in refused else ():
                            encoder.learn(version, wide, registry)
                except (PublishError, SchemaError) as error:
                    if error.retriable:
                        raise
                    refused[name] = error
        return encoders, refused

    def _used(self, found: Mapping[str, list[Incarnation]], known: Published, part: Part) -> list[Used]:
        """The schema versions of each incarnation's new events, and how many these are. Incarnations of a name, and versions, are in
        the order of their events."""
        incarnations = [(name, incarnation) for name, of_name in found.items() for incarnation in of_name if incarnation.has_unsent]
        if not incarnations:
            return []
        if self.kafka.format != "avro" and all(each.files is not None and len(each.files.files) <= _FEW_FILES for _, each in incarnations):
            # Only Avro's schemas depend on the order of versions and on values of dropped columns.
            return [
                Used(
                    each,
                    [(version, False) for version in sorted(frozenset().union(*(span.versions for span in spans.of_files)))],
                    spans.events,
                )
                for name, each in incarnations
                if (spans := self._spans_of(each, self._since(known, name), part)) is not None
            ]
        first, wide = F.min(F.struct("batch", "ordinal")).alias("first"), F.max("wide").alias("wide")
        versions = [
            incarnation.changes.rows.filter(_new(incarnation.table, self._since(known, name), part.last))
            .select("batch", "ordinal", "schema_version", _shows_dropped(incarnation).alias("wide"))
            .groupBy("schema_version", "batch")
            .agg(first, wide, F.count("*").alias("events"))
            .withColumn("at", F.lit(at))
            for at, (name, incarnation) in enumerate(incarnations)
        ]
        with spark_failures():
            rows = sorted(reduce(DataFrame.unionByName, versions).collect(), key=lambda row: row["first"])
        used: dict[int, dict[str, bool]] = {at: {} for at in sorted(range(len(incarnations)), key=_first_of(rows))}
        events: dict[int, Counter[int]] = defaultdict(Counter)
        for row in rows:
            of_table = used[row["at"]]
            of_table[row["schema_version"]] = of_table.get(row["schema_version"], False) or row["wide"]
            events[row["at"]][row["batch"]] += row["events"]
        return [Used(incarnations[at][1], list(versions.items()), events[at]) for at, versions in used.items()]

    def _spans_of(self, incarnation: Incarnation, since: int, part: Part) -> Spans | None:
        """What its files have, if they are few. A run asks twice."""
        files = incarnation.files
        if files is None or len(files.files) > _FEW_FILES:
            return None
        with concerning(incarnation.table):
            wanted = self._wanted(incarnation, since, part)
            if wanted not in self._spans:
                self._spans[wanted] = files.spans(wanted)
            return self._spans[wanted]

    def _table_records(self, tables: Iterable[tuple[Incarnation, Encoder, int]], part: Part) -> list[Unsent]:
        """The events of these tables after the batch that is given with each. What tasks read themselves, they read
        together."""
        found, together = list[Unsent](), list[tuple[Reading, Encoder]]()
        for incarnation, encoder, since in tables:
            with concerning(incarnation.table):
                reading = self._reading(incarnation, encoder, since, part)
                if reading is None:
                    found.append(self._read_by_spark(incarnation, encoder, since, part))
                else:
                    together.append((reading, encoder))
        if together:
            rows, encode = read_together(self.spark, [reading for reading, _ in together])
            stretches = None
            if all(reading.spans is not None for reading, _ in together):
                stretches = [stretch for reading, encoder in together for stretch in self._stretches(reading, encoder)]
            found.append(Unsent(rows, encode, stretches))
        return found

    def _stretches(self, reading: Reading, encoder: Encoder) -> Iterator[Stretch]:
        label = f"{encoder.about.keyspace}.{encoder.about.table}"
        made = _reporting(UUID(reading.wanted.table_id), encoder)
        made = made if self.meter is None else self.meter.share(PUBLISH, label)(made)
        for span in reading.spans or ():
            first, last = (sending_key(batch, encoder.topic, ordinal) for batch, ordinal in (span.first, span.last))
            yield Stretch(first, last, span.in_order, partial(_events_of, reading.files, span.path, reading.wanted, made))

    def _reading(self, incarnation: Incarnation, encoder: Encoder, since: int, part: Part) -> Reading | None:
        """What tasks read of a table's files; None if only Spark's reader can."""
        if incarnation.files is None or self._needs_spark(incarnation, incarnation.files, part):
            return None
        wanted, spans = self._wanted(incarnation, since, part), self._spans_of(incarnation, since, part)
        made = self._metered(incarnation.table.label, _reporting(incarnation.table.id, encoder))
        return Reading(incarnation.files, wanted, made, None if spans is None else spans.of_files)

    def _wanted(self, incarnation: Incarnation, since: int, part: Part) -> Wanted:
        owned = len(_key_columns(incarnation).fields)
        skipped, table_id = frozenset(self.kafka.skipped_operations), incarnation.table.id
        return Wanted(str(table_id), since, part.last, self.without_effect(table_id), skipped, owned, self.kafka.publishers)

    def _needs_spark(self, incarnation: Incarnation, files: ChangesFiles, part: Part) -> bool:
        """Whether rows are compared with others of the table, or have keys that only Spark hashes."""
        return incarnation.table.dropped or not files.owns_by(len(_key_columns(incarnation).fields))

    def _read_by_spark(self, incarnation: Incarnation, encoder: Encoder, since: int, part: Part) -> Unsent:
        changes = incarnation.changes
        # By the values of the key, not by what it looks like in JSON: neither DDL nor a release may give a
        # key to another publisher, whose progress is another.
        wanted = _new(incarnation.table, since, part.last) & ~F.col("op").isin(self.kafka.skipped_operations)
        key = _key_columns(incarnation)
        rows = changes.rows.filter(wanted).withColumn("publisher", self._share(F.col("key"), key))
        if incarnation.table.dropped:
            # Events of an incarnation after its DROP are not sent: the topic may belong to another
            # incarnation by then.
            end = changes.rows.filter("op = 't' AND reason = 'drop'").agg(F.min(F.struct("batch", "ordinal")).alias("end"))
            rows = rows.crossJoin(F.broadcast(end)).filter("end IS NULL OR struct(batch, ordinal) <= end").drop("end")
        made = _reporting(incarnation.table.id, lambda batches: encoder(made_whole(batches)))
        return Unsent(rows, self._metered(incarnation.table.label, made))

    def _share(self, key: Column, owned: StructType) -> Column:
        """The publisher of a key, which owns these columns of it."""
        return F.pmod(F.xxhash64(_hashable(key, owned)), F.lit(self.kafka.publishers)).cast("int")

    def _topic(self, table: Table) -> str:
        return _topic_of(self.kafka, table)


def _reporting(table_id: UUID, encode: Made) -> Made:
    """Encodes the rows of one table; if it is the table that fails, with their reading, the driver learns of it."""

    def encoded(batches: Batches) -> Batches:
        with reporting(table_id.bytes):
            yield from encode(batches)

    return encoded


def _as_they_are(batches: Batches) -> Batches:
    return batches


def _events_of(files: ChangesFiles, path: str, wanted: Wanted, encode: Made, publisher: int) -> Batches:
    """RECORDS of a publisher, of one file."""
    return encode(files.read(path, wanted, publisher))


def _stretch_of(records: Sequence[tuple[Any, ...]]) -> Stretch:
    """RECORDS that the driver made."""
    held = pa.RecordBatch.from_pylist([dict(zip(RECORDS.names, record, strict=True)) for record in records], schema=RECORDS)
    keys = sorted(sending_key(batch, stream, ordinal) for _, stream, _, batch, ordinal, *_ in records)
    return Stretch(keys[0], keys[-1], False, partial(_records_of, held))


def _records_of(held: pa.RecordBatch, publisher: int) -> Batches:
    yield held.filter(pc.equal(held["publisher"], publisher))


def _new(table: Table, since: int, upto: int) -> Column:
    """The condition for the rows of the changes table that belong to the incarnation and are not known to be
    sent."""
    return (F.col("batch") > since) & (F.col("batch") <= upto) & (F.col("table_id") == str(table.id))


def _key_columns(incarnation: Incarnation) -> StructType:
    """The columns of a key that a publisher owns."""
    key = incarnation.changes.rows.schema["key"].dataType
    assert isinstance(key, StructType)
    return StructType(key.fields[: len(incarnation.table.partition_key)])


def _hashable(value: Column, kind: DataType) -> Column:
    """The value in a form that Spark can hash: maps as lists of pairs."""
    if isinstance(kind, StructType):
        return F.struct(*(_hashable(value.getField(field.name), field.dataType) for field in kind))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda each: _hashable(each, kind.elementType))
    if isinstance(kind, MapType):
        pairs = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return F.transform(F.map_entries(value), lambda each: _hashable(each, pairs))
    return value


def _shows_dropped(incarnation: Incarnation) -> Column:
    """Whether a row has a value in a column that its own schema version lacks."""
    shows = F.lit(False)
    for version, fields in incarnation.dropped().items():
        for name in fields:
            values = [F.col(part).getField(name).isNotNull() for part in ("before", "after")]
            shows = shows | ((F.col("schema_version") == version) & (values[0] | values[1]))
    return F.coalesce(shows, F.lit(False))


def _first_of(rows: Sequence[Row]) -> Callable[[int], Any]:
    first: dict[int, Any] = {}
    for row in rows:
        first.setdefault(row["at"], tuple(row["first"]))
    return lambda at: first.get(at, (0, 0))


def _filed_beyond(url: str, filed: int, upto: int) -> PublishError:
    return PublishError(
        f"they hold the batches up to {filed}, and {upto} is the last that is sealed: they are of another chain of batches",
        operation="write events to files",
        obj=url,
        hint="`batches/` of the bucket was put back from a backup or made anew, and the files were not. Run `writetime rebuild`, after "
        "which later events go on; or give the files another `url`.",
    )


def _lost_progress(table: str, topic: str, now: int, before: int) -> PublishError:
    known = f"batch {now}" if now else "none"
    was = f"its events in {topic} were sent up to batch {before}"
    return lacking(table, f"{was}, and Kafka knows of {known}: it was made anew, or put back from a backup")


def _lost_topic(table: str, topic: str, now: int, before: int) -> PublishError:
    return lacking(
        table, f"the topic {topic} ends at {now}, and has ended at {before}: it was deleted, made anew, or put back from a backup"
    )


def _not_there(table: str) -> PublishError:
    return lacking(table, "its changes table is not there: it was dropped, or its name or its property writetime.table-id was changed")


if __name__ == "__main__":
    sys.exit(main())
