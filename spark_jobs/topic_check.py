"""Compare topics with the tables of current rows, on a sample of keys: part of `verify.py` (`--topics`).

Strategy: the last record of a key and the row of the table come of the same events by different ways, so that
`after` of the one has to be the other. Tasks read the partitions of a topic up to their ends and keep the last
record of each sampled key; others make the key and `after` of each row by the forms of publishing; equal keys
meet in one task. A key that differs is **unsettled** if it has events that are not published yet, or a record
of a batch that the table did not have; else it is **drift**. A sample is by a checksum of the key, the same on
both sides. Does not know the cluster, nor what the report looks like."""

from __future__ import annotations

import io
import json
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_jobs.failures import kind_of, reason_of
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.kafka_clients import make, reader_options
from spark_jobs.sinks.schema_registry import Registry
from spark_jobs.stages.jvm_batches import made_whole
from spark_jobs.stages.scan import Batches, chunked
from spark_jobs.stages.table_rows import RowShape
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.types import Types
from writetime.config.kafka import KafkaConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, PublishError
from writetime.events.arrow import plain_values
from writetime.events.avro import Avro, without_calendar
from writetime.events.envelope import Shape, place_of, topic
from writetime.events.naming import to_column
from writetime.events.serialization import MAGIC, form_of
from writetime.pipeline import verification
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import history
from writetime.pipeline.publish_progress import Published, read_published
from writetime.pipeline.verification import TopicFinding, TopicKind, TopicResult
from writetime.storage import open_store
from writetime.storage.store import Store

log = structlog.get_logger()

MOST_FINDINGS: Final = 1000
_TIMEOUT_SECONDS: Final = 60.0
_ID: Final = struct.Struct(">BI")
"""Confluent's header of a record: the magic byte, the id of its schema."""
_RECORDS: Final = pa.schema(
    [("key", pa.string()), ("side", pa.string()), ("batch", pa.int64()), ("ordinal", pa.int64()), ("row", pa.string())]
)
"""What one side says of a key: the key as JSON, `topic`, `table` or `due` (it has events that are not published),
the place of the record's event, and the row as JSON, null if there is none. Without a key: all rows before that
place were removed."""
_FOUND: Final = pa.schema(
    [("keys", pa.int64()), ("key", pa.string()), ("verdict", pa.string()), ("topic", pa.string()), ("table", pa.string())]
)
"""A key that differs; or, without one, how many `keys` a task has compared."""


class Partition(NamedTuple):
    """A partition of a topic with the offsets of its first record and behind its last one."""

    number: int
    first: int
    end: int


@dataclass(frozen=True)
class Sides:
    """Makes comparable records of both sides, in tasks. `table`: as it is published; `numbers`: its columns that are
    DECIMAL by rule; `stored`: its columns in the table of current rows; `cells`: whether
    columns of events have these; `key_names`: of the fields of keys."""

    kafka: KafkaConfig
    bucket: str
    topic: str
    table: Table
    types: Types
    numbers: frozenset[str]
    stored: pa.Schema
    cells: bool
    share: float
    seed: int
    partitions: tuple[Partition, ...]
    key_names: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # Not what was made here: converters are functions.
        return {name: value for name, value in self.__dict__.items() if name not in ("shape", "payload")}

    @cached_property
    def shape(self) -> Shape:
        shape = RowShape.of(self.table, Schema(types=dict(self.types)))
        form = form_of(self.kafka.format, self.kafka.decimal_handling_mode, self.kafka.time_precision_mode, self.kafka.varint_handling_mode)
        stored = pa.schema([("after", pa.struct(list(self.stored)))])
        return Shape(shape.keys, shape.columns, stored, form=form, key_names=self.key_names)

    @cached_property
    def payload(self) -> Callable[[bytes], dict[str, Any]]:
        """What a record's key or value says."""
        return AvroReader(Registry(self.kafka).schema) if self.kafka.format == "avro" else _payload

    # --- the topic

    def of_topic(self, batches: Batches) -> Batches:
        """Numbers of partitions to _RECORDS: the last record of each sampled key, and TRUNCATEs."""
        store = open_store(self.bucket)
        for number in (number for batch in batches for number in batch["partition"].to_pylist()):
            partition = next(each for each in self.partitions if each.number == number)
            yield from chunked(self._last_of(messages(self.kafka, self.topic, partition), store), _RECORDS)

    def _last_of(self, found: Iterable[tuple[bytes | None, bytes | None]], store: Store) -> Iterator[dict[str, Any]]:
        last: dict[str, bytes | None] = {}
        for key, value in found:
            if key is None:
                # A marker has no value; a TRUNCATE or a DROP has.
                if value is not None:
                    yield self._record(None, value, store)
                continue
            text = _canonical(self.payload(key))
            if self._is_sampled(text):
                last[text] = value
        for text, value in last.items():
            yield self._record(text, value, store)

    def _record(self, key: str | None, value: bytes | None, store: Store) -> dict[str, Any]:
        if value is None:
            return {"key": key, "side": "topic", "batch": None, "ordinal": None, "row": None}
        event = self.payload(value)
        if claim := event.get("claim"):
            event = self.payload(store.read(claim["url"].removeprefix(store.url.rstrip("/") + "/")))
        batch, ordinal = place_of(event)
        after = event["after"]
        if after is not None and self.cells:
            after = {name: cell and cell["value"] for name, cell in after.items()}
        return {"key": key, "side": "topic", "batch": batch, "ordinal": ordinal, "row": None if after is None else self._row(after)}

    # --- the table

    def of_table(self, batches: Batches) -> Batches:
        """Rows of the table to _RECORDS."""
        yield from chunked((each for batch in made_whole(batches) for each in self._rows_of(batch)), _RECORDS)

    def of_due(self, batches: Batches) -> Batches:
        """Keys of changes to _RECORDS."""
        keys = (key for batch in made_whole(batches) for key in plain_values(batch["key"]) if key is not None)
        texts = (_canonical(self.shape.key({"key": key})) for key in keys)
        yield from chunked(({"key": text, "side": "due"} for text in texts if self._is_sampled(text)), _RECORDS)

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        columns = [plain_values(batch[name]) for name in self.stored.names]
        numbers = [place for place, column in enumerate(self.stored) if pa.types.is_decimal(column.type)]
        keys = self.stored.names[: len(self.shape.keys)]
        for values in zip(*columns, strict=True):
            row = dict(zip(self.stored.names, values, strict=True))
            text = _canonical(self.shape.key({"key": {name: row[name] for name in keys}}))
            if not self._is_sampled(text):
                continue
            for place in numbers:
                name = self.stored.names[place]
                row[name] = None if row[name] is None else str(row[name])
            yield {"key": text, "side": "table", "row": self._row(self.shape.row(row))}

    # --- both

    def _is_sampled(self, key: str) -> bool:
        return zlib.crc32(key.encode(), self.seed & 0xFFFFFFFF) < self.share * 2**32

    def _row(self, values: Mapping[str, Any]) -> str:
        """A row as text, without its nulls: a column that was added later is not in earlier records. Numbers
        that the table holds by rule have their own scale there."""
        row = {name: value for name, value in values.items() if value is not None}
        for name in {self.shape.form.name(each) for each in self.numbers} & row.keys():
            row[name] = verification.one_spelling(row[name]) if isinstance(row[name], str) and row[name] else None
        return _canonical(row)


def _payload(raw: bytes) -> dict[str, Any]:
    """A record's key or value, with a schema or without."""
    found: dict[str, Any] = json.loads(raw)
    return found["payload"] if found.keys() == {"schema", "payload"} else found


def _canonical(value: Any) -> str:
    """The same text for equal values, whether they come from a record or are to become one."""
    return json.dumps(value, sort_keys=True, default=_text_of)


def _text_of(value: Any) -> str:
    """What is no JSON in a record of Avro, or in a row that is to become one."""
    return value.hex() if isinstance(value, bytes) else str(value)


class AvroReader:
    """Reads what was written in Confluent's wire format. `schema`: gives the schema of an id."""

    def __init__(self, schema: Callable[[int], Avro]) -> None:
        self._schema = lru_cache(maxsize=None)(lambda number: fastavro.parse_schema(without_calendar(schema(number))))

    def __call__(self, raw: bytes) -> dict[str, Any]:
        if raw[:1] != MAGIC or len(raw) < _ID.size:
            raise PublishError("a record is not in Confluent's wire format", operation="compare a topic", hint="Somebody else wrote it.")
        _, number = _ID.unpack_from(raw)
        found: Any = fastavro.schemaless_reader(io.BytesIO(raw[_ID.size :]), self._schema(number), None)
        return dict(found)


def compared(batches: Batches, sealed: int) -> Batches:
    """_RECORDS, sorted by key, to _FOUND. `sealed`: the last batch that the table had for sure."""
    yield from chunked(_compared((row for batch in batches for row in batch.to_pylist()), sealed), _FOUND)


def _compared(rows: Iterable[Mapping[str, Any]], sealed: int) -> Iterator[dict[str, Any]]:
    keys = 0
    for key, group in groupby(rows, key=lambda row: row["key"]):
        sides: dict[str, list[Mapping[str, Any]]] = {"topic": [], "table": [], "due": []}
        for row in group:
            sides[row["side"]].append(row)
        # Where the partitions' key was switched, two of them have a record.
        last = max(sides["topic"], key=lambda row: (row["batch"] or 0, row["ordinal"] or 0), default=None)
        said, held = last and last["row"], sides["table"][0]["row"] if sides["table"] else None
        keys += bool(sides["topic"] or sides["table"])
        if said != held:
            unsettled = sides["due"] or (last is not None and (last["batch"] or 0) > sealed)
            yield {"key": key, "verdict": "unsettled" if unsettled else "drift", "topic": said, "table": held}
    yield {"keys": keys}


# --- the driver


class TopicChecks:
    """Compares the topics of tables. `share` and `seed` choose the keys; with `values`, findings have both rows."""

    def __init__(self, config: PipelineConfig, spark: SparkSession, schema: Schema, share: float, seed: int, *, values: bool) -> None:
        self.config, self.spark, self.schema = config, spark, schema
        self.share, self.seed, self.values = share, seed, values
        self.store = open_store(config.bucket)

    def results(self, tables: Iterable[Table]) -> list[TopicResult]:
        """A result for each table; `trouble` says why one could not be compared."""
        assert self.config.kafka is not None
        found = []
        for table in tables:
            name = topic(self.config.kafka.topic_prefix, table.keyspace, table.name)
            try:
                found.append(self._result(name, table, self.config.kafka))
            except Exception as error:
                if kind_of(error) == "driver":
                    raise
                log.error("topic not compared", topic=name, error=reason_of(error))
                found.append(TopicResult(topic=name, table=table.full_name, trouble=reason_of(error)))
        return found

    def _result(self, name: str, table: Table, kafka: KafkaConfig) -> TopicResult:
        self._expect_comparable(name, kafka)
        cluster = self.config.cluster.name
        # Before anything is read: what is published or sealed later may be in one of both only.
        published = read_published(self.store, cluster) or Published(batch=0, events=0)
        sealed = history(self.store, cluster).sealed
        partitions = partitions_of(kafka, name)
        warehouse = Warehouse(self.spark, self.config.catalog.name if self.config.catalog else "")
        current = warehouse.current_of(table)
        if current is None:
            raise BatchError("the table does not exist in the warehouse", operation="compare a topic", obj=name)
        held = IcebergTable(self.spark, current)
        held.refresh()
        sides = self._sides(name, table, kafka, held, partitions, warehouse.key_names(table))
        since = published.sent(table.full_name)
        rows = self._records(sides, current, held.snapshot, warehouse.changes_of(table), since, sealed)
        number = sealed.number if sealed else 0
        ordered = rows.repartition(self.config.spark.shuffle_partitions, "key").sortWithinPartitions("key")
        answers = ordered.mapInArrow(lambda batches: compared(batches, number), schema=from_arrow_schema(_FOUND)).toLocalIterator()
        return self._outcome(name, table, held.snapshot, answers)

    def _expect_comparable(self, name: str, kafka: KafkaConfig) -> None:
        """PublishError if the last record of a key does not say what its row is."""
        why = None
        if self.config.events.deletes == "one":
            why = "with `events.deletes: one`, deletes of many rows leave the last records of these as they are"
        elif skipped := sorted({*kafka.skipped_operations} - {"t"}):
            why = f"`skipped.operations` leaves out {', '.join(skipped)}"
        elif self.config.snapshot.events == "none":
            why = "with `snapshot.events: none`, rows that a bootstrap read have no record"
        if why is not None:
            raise PublishError(why, operation="compare a topic", obj=name)

    def _sides(
        self, name: str, table: Table, kafka: KafkaConfig, held: IcebergTable, partitions: list[Partition], key_names: tuple[str, ...]
    ) -> Sides:
        shown = self.config.columns.rules.of(table, self.schema.types).shown()
        schema = to_arrow_schema(held.columns)
        # Not those that were dropped, or made anew with another type.
        columns = [schema.field(to_column(each)) for each in RowShape.of(shown, self.schema).columns]
        numbers = frozenset(self.config.warehouse.numbers.of(shown))
        return Sides(
            kafka=kafka,
            bucket=self.config.bucket,
            topic=name,
            table=shown,
            types=self.schema.types,
            numbers=numbers,
            stored=pa.schema(columns),
            cells=self.config.events.shape == "cells",
            share=self.share,
            seed=self.seed,
            partitions=tuple(partitions),
            key_names=key_names,
        )

    def _records(
        self, sides: Sides, current: str, snapshot: int | None, changes: str | None, since: int, sealed: Sealed | None
    ) -> DataFrame:
        """_RECORDS of both sides, and of keys with events after batch `since`."""
        schema = from_arrow_schema(_RECORDS)
        numbers = [(each.number,) for each in sides.partitions]
        spread = self.spark.sparkContext.parallelize(numbers, max(1, len(numbers)))
        said = self.spark.createDataFrame(spread, "partition int").mapInArrow(sides.of_topic, schema=schema).persist()
        rows = said.filter("key IS NOT NULL")
        ((emptied,),) = said.filter("key IS NULL").agg(F.max(F.struct("batch", "ordinal"))).collect()
        if emptied is not None:
            batch, ordinal = F.col("batch"), F.col("ordinal")
            is_gone = (batch < emptied.batch) | ((batch == emptied.batch) & (ordinal < emptied.ordinal))
            rows = rows.withColumn("row", F.when(~F.coalesce(is_gone, F.lit(False)), F.col("row")))
        if snapshot is not None:
            stored = self.spark.sql(f"SELECT * FROM {current} VERSION AS OF {snapshot}")  # noqa: S608 - quoted names only
            rows = rows.unionByName(stored.mapInArrow(sides.of_table, schema=schema))
        if changes is not None and (sealed is None or since < sealed.number):
            due = self.spark.table(changes).filter(F.col("batch") > since).select("key")
            rows = rows.unionByName(due.mapInArrow(sides.of_due, schema=schema))
        return rows

    def _outcome(self, name: str, table: Table, snapshot: int | None, rows: Iterable[Any]) -> TopicResult:
        keys, verdicts, findings = 0, Counter[str](), list[TopicFinding]()
        for row in rows:
            if row["key"] is None:
                keys += row["keys"]
                continue
            verdicts[row["verdict"]] += 1
            if len(findings) < MOST_FINDINGS:
                findings.append(self._finding(row))
        drift, unsettled = verdicts["drift"], verdicts["unsettled"]
        log.info("topic compared", topic=name, keys=keys, drift=drift, unsettled=unsettled)
        findings.sort(key=lambda each: (each.verdict, each.key))
        full_name = table.full_name
        return TopicResult(topic=name, table=full_name, snapshot=snapshot, keys=keys, drift=drift, unsettled=unsettled, findings=findings)

    def _finding(self, row: Any) -> TopicFinding:
        said, held = (None if row[side] is None else json.loads(row[side]) for side in ("topic", "table"))
        kind: TopicKind = "record missing" if said is None else "record too many" if held is None else "value"
        columns = sorted(name for name in said.keys() | held.keys() if said.get(name) != held.get(name)) if said and held else []
        values = {"in_topic": said, "in_table": held} if self.values else {}
        return TopicFinding(key=row["key"], verdict=row["verdict"], kind=kind, columns=columns, **values)


# --- Kafka


def partitions_of(kafka: KafkaConfig, name: str) -> list[Partition]:
    """The topic's partitions. PublishError if there is none, or if records have been deleted without regard to
    their keys."""
    consumer = make(Consumer, _options(kafka))
    try:
        known = consumer.list_topics(name, timeout=_TIMEOUT_SECONDS).topics[name]
        if known.error is not None:
            raise PublishError(known.error.str(), operation="compare a topic", obj=name)
        found = [Partition(number, *_offsets(consumer, name, number)) for number in sorted(known.partitions)]
    except KafkaException as error:
        raise _failure(name, error) from error
    finally:
        consumer.close()
    if expired := next((each for each in found if each.first > 0), None):
        raise PublishError(
            f"records before offset {expired.first} of partition {expired.number} have been deleted",
            operation="compare a topic",
            obj=name,
            hint="Only a topic without retention, or a compacted one, has the last record of every key.",
        )
    return found


def _offsets(consumer: Consumer, name: str, number: int) -> tuple[int, int]:
    first, end = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=_TIMEOUT_SECONDS)
    return first, end


def messages(kafka: KafkaConfig, name: str, partition: Partition) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of the partition's committed records, up to the end that it had. PublishError (retriable) if
    Kafka does not answer."""
    consumer = make(Consumer, _options(kafka))
    try:
        consumer.assign([TopicPartition(name, partition.number, partition.first)])
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while partition.end > partition.first:
            message = consumer.poll(1.0)
            if message is None:
                if time.monotonic() > deadline:
                    raise PublishError(f"no answer within {_TIMEOUT_SECONDS:.0f} s", operation="compare a topic", obj=name, retriable=True)
                continue
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            if (failed := message.error()) is not None:
                if failed.code() == KafkaError._PARTITION_EOF:
                    return
                raise _failure(name, KafkaException(failed))
            yield _bytes(message.key()), _bytes(message.value())
            if (message.offset() or 0) >= partition.end - 1:
                return
    finally:
        consumer.close()


def _bytes(part: str | bytes | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


def _options(kafka: KafkaConfig) -> dict[str, Any]:
    """Of a consumer that sees what was committed. It joins no group: the id is one for which publishing has the
    rights anyway."""
    return reader_options(kafka, f"{kafka.topic_prefix}.progress-reader")


def _failure(name: str, error: KafkaException) -> PublishError:
    reason: KafkaError = error.args[0]
    return PublishError(reason.str(), operation="compare a topic", obj=name, retriable=reason.retriable())
