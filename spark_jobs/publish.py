"""The publish job: drain the outbox to Kafka, each event once. `spark-submit publish.py --config FILE`

Strategy: the changes tables are the outbox; events of sealed batches are shared out by key among a small fixed number of
transactional publishers. Each first fences whatever may be left of a dead one (init_transactions), then reads how far it got from
the progress topic, and only then decides what to send; events and the new progress commit in one transaction. So a rerun from any
point of death leaves each event once for `read_committed` consumers, in order per key. Exit code: 0 drained, 1 not.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import pyarrow as pa
import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_jobs.kafka import RECORDS, Publisher, ensure_topics
from spark_jobs.rows import RowShape
from spark_jobs.scan import Batches
from spark_jobs.session import spark_session
from spark_jobs.warehouse import Changes, Warehouse, changes_schema
from writetime import envelope
from writetime.batch.plan import history, read_manifest, read_schema, read_sealed
from writetime.batch.publish import Published, read_published, write_published
from writetime.config import KafkaConfig, PipelineConfig, load
from writetime.cql.names import from_topic
from writetime.errors import ConfigError, PublishError, WritetimeError
from writetime.schema.model import Schema, Table
from writetime.schema.version import described
from writetime.store import Store, open_store

log = structlog.get_logger()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Drain the outbox to Kafka.")
    parser.add_argument("--config", required=True, help="the pipeline's YAML")
    parser.add_argument(
        "--since",
        choices=("last", "beginning"),
        default="last",
        help="look at the batches sealed since publishing last drained the outbox, or at all; either way Kafka itself says what it lacks",
    )
    options = parser.parse_args(arguments)
    try:
        published = run(load(options.config), everything=options.since == "beginning")
    except WritetimeError as error:
        log.error("publishing failed", **error.as_dict())
        print(f"publishing failed: {error}", file=sys.stderr)  # noqa: T201
        return 1
    waiting = "".join(f"; {name} only up to {batch}, see the log" for name, batch in published.waiting.items())
    print(f"published {published.events} events, up to batch {published.batch}{waiting}")  # noqa: T201
    return 0


def run(config: PipelineConfig, *, everything: bool = False) -> Published:
    """Publish every event of the sealed batches that Kafka does not hold yet."""
    if config.kafka is None:
        raise ConfigError("`kafka` is missing", operation="publish", hint="Say in the pipeline's YAML where events go.")
    store = open_store(config.bucket)
    sealed = history(store, config.cluster.name).sealed
    if sealed is None:
        return Published(batch=0, events=0)
    spark = spark_session(config, f"writetime publish {config.pipeline}")
    try:
        return Outbox(config, config.kafka, store, spark, sealed.number).drain(everything=everything)
    finally:
        spark.stop()


class Outbox:
    """The changes tables of all captured tables, up to the last sealed batch."""

    def __init__(self, config: PipelineConfig, kafka: KafkaConfig, store: Store, spark: SparkSession, upto: int) -> None:
        self.config = config
        self.kafka = kafka
        self.store = store
        self.spark = spark
        self.upto = upto

    def drain(self, *, everything: bool) -> Published:
        """Send what is not in Kafka yet. `everything` disregards the note of how far publishing is known to be.

        What cannot be sent holds up nothing else. If it may go out later by itself, its error is raised when the rest is out."""
        cluster = self.config.cluster.name
        known = (None if everything else read_published(self.store, cluster)) or Published(batch=0, events=0)
        records, refused = self._records(known)
        with _spark_failures():
            sent = [] if records is None else records.rdd.mapPartitions(Publisher(self.kafka).send_all).collect()
        refused |= {".".join(from_topic(topic)[1:]): error for found in sent for topic, error in found.stuck.items()}
        for name, error in refused.items():
            log.error("table not published", table=name, **error.as_dict())
        if passing := [error for error in refused.values() if error.retriable]:
            raise passing[0]
        published = Published(
            batch=self.upto, events=sum(found.events for found in sent), waiting={name: known.sent(name) for name in sorted(refused)}
        )
        write_published(self.store, cluster, published)
        return published

    def _records(self, known: Published) -> tuple[DataFrame | None, dict[str, WritetimeError]]:
        """Kafka records of the batches that are not known to be sent, each publisher's share in one partition, in the order they have to
        go; and what cannot be sent, by the table's full name. All lives of a name are one topic: none goes ahead of another."""
        learner = read_schema(self.store, self.config.cluster.name, self.upto)
        schema = learner.schema()
        addresses = read_manifest(self.store, self.config.cluster.name, self.upto).nodes
        warehouse = Warehouse(self.spark, self.config.catalog.name if self.config.catalog else "")
        found: dict[str, list[tuple[Table, Changes]]] = defaultdict(list)
        refused: dict[str, WritetimeError] = {}
        topics: dict[str, str] = {}
        for table in (schema.tables[table_id] for table_id in sorted(learner.cdc_ever) if table_id in schema.tables):
            try:
                if changes := warehouse.open_changes(table):
                    topics[table.full_name] = self._topic(table)
                    found[table.full_name].append((table, changes))
            except WritetimeError as error:
                refused[table.full_name] = error
        refused |= {name: _not_there(name) for name in self._expected() - found.keys() - refused.keys()}
        refused |= self._undescribed(found, known)
        unmade = ensure_topics(self.kafka, sorted({topics[name] for name in found if name not in refused}))
        refused |= {name: unmade[topic] for name, topic in topics.items() if topic in unmade}
        parts = [
            self._table_records(table, changes, addresses, known.sent(name))
            for name, lives in found.items()
            for table, changes in lives
            if name not in refused
        ]
        if not parts:
            return None, refused
        spread = reduce(DataFrame.unionByName, parts).repartition(self.kafka.publishers, "publisher")
        return spread.sortWithinPartitions("publisher", "batch", "topic", "ordinal"), refused

    def _expected(self) -> set[str]:
        """Full names of the tables with events that the last run does not know to be sent: by the seals since, and by its note."""
        cluster = self.config.cluster.name
        note = read_published(self.store, cluster) or Published(batch=0, events=0)
        seals = (read_sealed(self.store, cluster, number) for number in range(note.batch + 1, self.upto + 1))
        told = (account.table for sealed in seals if sealed is not None for account in sealed.accounting if account.events)
        # Of a life that is over its id comes behind the name (Table.label).
        return {label.partition("@")[0] for label in told} | note.waiting.keys()

    def _undescribed(self, found: Mapping[str, list[tuple[Table, Changes]]], known: Published) -> dict[str, WritetimeError]:
        """The tables with events that nothing says the schema of: looked up before a task, where it would stop all tables, meets them."""
        lives = [(name, table, changes) for name, of_name in found.items() for table, changes in of_name]
        if not lives:
            return {}
        versions = [
            changes.rows.filter(self._new(table, known.sent(name))).select(F.lit(at).alias("at"), "schema_version").distinct()
            for at, (name, table, changes) in enumerate(lives)
        ]
        refused: dict[str, WritetimeError] = {}
        with _spark_failures():
            used = reduce(DataFrame.unionByName, versions).collect()
        for row in used:
            name, _, changes = lives[row["at"]]
            try:
                _description(changes.versions, row["schema_version"], name)
            except PublishError as error:
                refused[name] = error
        return refused

    def _new(self, table: Table, since: int) -> Column:
        """Which rows of its changes table are the life's and not known to be sent."""
        return (F.col("batch") > since) & (F.col("batch") <= self.upto) & (F.col("table_id") == str(table.id))

    def _table_records(self, table: Table, changes: Changes, addresses: Mapping[str, str], since: int) -> DataFrame:
        about = envelope.About(self.config.cluster.name, table.keyspace, table.name, addresses)
        # By the values of the key, not by what it looks like in JSON: neither DDL nor a release may give a key to another publisher, whose
        # progress is another.
        share = F.pmod(F.xxhash64(_hashable(F.col("key"), changes.rows.schema["key"].dataType)), F.lit(self.kafka.publishers))
        rows = changes.rows.filter(self._new(table, since)).withColumn("publisher", share.cast("int"))
        if table.dropped:
            # What comes in of a life after its DROP was told is history: by then the topic may be another life's.
            end = changes.rows.filter("op = 't' AND reason = 'drop'").agg(F.min(F.struct("batch", "ordinal")).alias("end"))
            rows = rows.crossJoin(F.broadcast(end)).filter("end IS NULL OR struct(batch, ordinal) <= end").drop("end")
        return rows.mapInArrow(_encoder(changes.versions, self._topic(table), about), schema=from_arrow_schema(RECORDS))

    def _topic(self, table: Table) -> str:
        return envelope.topic(self.kafka.topic_prefix, table.keyspace, table.name)


def _hashable(value: Column, kind: DataType) -> Column:
    """The value as Spark hashes it, which does not take maps: as the lists of pairs that they are."""
    if isinstance(kind, StructType):
        return F.struct(*(_hashable(value.getField(field.name), field.dataType) for field in kind))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda each: _hashable(each, kind.elementType))
    if isinstance(kind, MapType):
        pairs = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return F.transform(F.map_entries(value), lambda each: _hashable(each, pairs))
    return value


def _encoder(versions: Mapping[str, Mapping[str, Any]], topic: str, about: envelope.About) -> Callable[[Batches], Batches]:
    """Rows of a changes table, and their `publisher`, -> RECORDS. `versions` as in `Changes`."""

    def encode(batches: Batches) -> Batches:
        shapes: dict[str, envelope.Shape] = {}
        for batch in batches:
            rows = envelope.rows_of(batch)
            for version in {row["schema_version"] for row in rows} - shapes.keys():
                shapes[version] = _shape(versions, version, about, batch.schema)
            columns = {
                "publisher": batch["publisher"],
                "topic": [topic] * len(rows),
                "batch": batch["batch"],
                "ordinal": batch["ordinal"],
                "key": [_encoded_key(row, shapes[row["schema_version"]]) for row in rows],
                "value": [envelope.encode(shapes[row["schema_version"]].value(row, about)) for row in rows],
                # Of a delete of many rows the key is no row's: there is nothing that a tombstone would take away.
                "deletes": [row["op"] == "d" and row["before"] is not None for row in rows],
            }
            yield pa.RecordBatch.from_pydict(columns, schema=RECORDS)

    return encode


def _not_there(table: str) -> PublishError:
    return PublishError(
        "its changes table is not there",
        operation="publish events",
        obj=table,
        hint="Give it its name, or its property writetime.table-id, back; its events wait.",
    )


@contextmanager
def _spark_failures() -> Iterator[None]:
    """What fails in Spark as an error of ours, with the line that says most of why."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("writetime.errors.")]
        raise PublishError(
            (told or lines or [type(error).__name__])[0],
            operation="publish events",
            retriable=True,
            hint="Events stay in the changes tables and go out with the next run; Spark's log says more.",
        ) from error


def _description(versions: Mapping[str, Mapping[str, Any]], version: str, table: str) -> Mapping[str, Any]:
    if version not in versions:
        raise PublishError(
            f"the changes table does not say what schema version {version} is",
            operation="publish events",
            obj=table,
            hint=f"Its property writetime.schema.{version} was taken away: set it again.",
        )
    return versions[version]


def _shape(versions: Mapping[str, Mapping[str, Any]], version: str, about: envelope.About, stored: pa.Schema) -> envelope.Shape:
    description = _description(versions, version, f"{about.keyspace}.{about.table}")
    table, types = described(description, about.keyspace, about.table)
    return envelope.Shape(changes_schema(RowShape.of(table, Schema(types=types))), stored)


def _encoded_key(row: Mapping[str, Any], shape: envelope.Shape) -> bytes | None:
    key = shape.key(row)
    return None if key is None else envelope.encode(key)


if __name__ == "__main__":
    sys.exit(main())
