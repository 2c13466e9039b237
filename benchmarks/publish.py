"""Events per second to Kafka, by our publishers and by Spark's Kafka sink: `make bench-publish`.

Strategy: a real batch of orders of a web shop (`data.py`: about 1 KB and 20 cells each) fills the changes
table; then the same events are sent to a real broker, in one Spark session, in three modes in turns, each
time to new topics:

- ours: the publish job, including progress and transactions; each event exactly once, in order per key;
- same records: our records, in Debezium's envelope, sent by Spark's sink, which is at least once;
- plain: Spark's sink with the rows as `to_json` writes them: no envelope, no order, no Python.

The first two modes show the cost of the guarantee, the last two the cost of making the records. Every mode
must leave all events in Kafka, otherwise there is no result. Rates are by the clock, divided by Spark's
cores, and by CPU seconds of all processes except the broker, which is the same for all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.batch import config_of, cpu_seconds, replicas, ship
from benchmarks.report import report
from spark_jobs import ingest
from spark_jobs.meter import Meter
from spark_jobs.publish import Outbox, Part
from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.kafka import ensure_topics
from tools import jars
from tools.console import say, step
from tools.errors import ToolError
from tools.services.kafka import Kafka
from writetime.config.kafka import KafkaConfig
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.planner import read_schema
from writetime.pipeline.publish_progress import Published
from writetime.storage import open_store

WAYS = ("ours", "same records", "plain")
TABLE = f"{data.KEYSPACE}.orders"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--segments", type=int, default=3, help="segments of 32 MiB that the events come from (default: 3)")
    parser.add_argument("--passes", type=int, default=5, help="measured passes of each way (default: 5)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use, and publishers (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    return report(lambda: measure(options.segments, options.passes, options.cores), show, as_json=options.json)


def measure(segments: int, passes: int, cores: int) -> dict[str, Any]:
    """All figures as one document: events a second and core, by the clock and of CPU, each pass and their
    medians.
    """
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary, Kafka(Path(temporary) / "kafka", port=0) as kafka:
        folder = Path(temporary)
        config = _with_sink(config_of(folder, cores, buckets=2 * cores))
        spark = spark_session(config, "writetime bench-publish")
        try:
            with step("a batch that fills the changes table"):
                events = _fill(config, spark, segments)
            turns = [_pass(config, kafka, spark, events, number, cores) for number in range(1 + passes)]
        finally:
            spark.stop()
    measured = {way: [turn[way] for turn in turns[1:]] for way in WAYS}
    figures = {
        way: {
            "per_second_and_core": [events / seconds / cores for seconds, _ in runs],
            "per_second_of_cpu": [events / cpu for _, cpu in runs],
        }
        for way, runs in measured.items()
    }
    return {"events": events, "cores": cores, "ways": figures}


def _with_sink(config: PipelineConfig) -> PipelineConfig:
    """With the jars of Spark's sink beside those that it has."""
    sink = sorted(jars.need("spark-kafka").glob("*.jar"))
    conf = {**config.spark.conf, "spark.jars": ",".join([config.spark.conf["spark.jars"], *map(str, sink)])}
    return config.model_copy(update={"spark": config.spark.model_copy(update={"conf": conf})})


def _fill(config: PipelineConfig, spark: SparkSession, segments: int) -> int:
    """Ingest the segments of one replica; how many events there are."""
    manifest = ship(config.bucket, replicas(segments, count=1))
    sealed = ingest.Batch(config, open_store(config.bucket), spark, manifest, None, Meter(spark.sparkContext, whole=False)).run()
    return sum(account.events for account in sealed.accounting if account.table == TABLE)


def _pass(
    config: PipelineConfig, kafka: Kafka, spark: SparkSession, events: int, number: int, cores: int
) -> dict[str, tuple[float, float]]:
    """Seconds by the clock and of CPU, by way."""
    broker = frozenset({kafka.service.pid} if kafka.service else ())
    found = {}
    for way in WAYS:
        settings = events_only(kafka, f"{way.replace(' ', '-')}-{number}", cores)
        send = _ways(config, settings, spark)[way]
        begun, begun_cpu = time.perf_counter(), cpu_seconds(broker)
        send()
        found[way] = time.perf_counter() - begun, cpu_seconds(broker) - begun_cpu
        if (there := committed(settings)) != events:
            raise ToolError(f"{way}: {there} of {events} events are in Kafka")
        print(f"  {way}: {found[way][0]:.1f} s, {found[way][1]:.1f} s of CPU", file=sys.stderr)
    return found


def events_only(kafka: Kafka, prefix: str, publishers: int, **more: Any) -> KafkaConfig:
    """Publishing to that broker so that each record of a table's topic is an event; `more`: other options."""
    return KafkaConfig.model_validate(
        {
            **more,
            "bootstrap.servers": kafka.bootstrap,
            "topic.prefix": prefix,
            "publishers": publishers,
            "include.schema.changes": False,
            "tombstones.on.delete": False,
        }
    )


def _ways(config: PipelineConfig, kafka: KafkaConfig, spark: SparkSession) -> dict[str, Callable[[], object]]:
    store = open_store(config.bucket)
    outbox = Outbox(config, kafka, store, spark, upto=1)

    def same_records() -> None:
        records, refused = outbox._records(Published(batch=0, events=0), Part(1, "primary_key"))
        if not records or refused:
            raise ToolError(f"no events to send: {refused}")
        _to_kafka(reduce(DataFrame.unionByName, (source.records() for source in records)), kafka)

    def plain() -> None:
        learner = read_schema(store, config.cluster.name, 1)
        (table,) = [table for table in learner.schema().tables.values() if table.full_name == TABLE]
        changes = Warehouse(spark, config.catalog.name if config.catalog else "").open_changes(table)
        if changes is None:
            raise ToolError(f"{TABLE} has no changes table")
        topic = f"{kafka.topic_prefix}.{TABLE}"
        ensure_topics(kafka, [topic])
        columns = [F.lit(topic).alias("topic"), F.to_json("key").alias("key"), F.to_json(F.struct("*")).alias("value")]
        _to_kafka(changes.rows.select(*columns), kafka)

    return {"ours": lambda: outbox.drain(everything=True), "same records": same_records, "plain": plain}


def _to_kafka(records: DataFrame, kafka: KafkaConfig) -> None:
    """Spark's own sink, with our producer's compression."""
    sink = records.select("topic", "key", "value").write.format("kafka")
    sink.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("kafka.compression.type", "lz4").option(
        "kafka.linger.ms", "20"
    ).save()


def committed(kafka: KafkaConfig, table: str = TABLE) -> int:
    """Records on the table's topic that a reader of committed ones sees. A commit takes a place in the log
    too, so they are counted.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"count-{datetime.now().timestamp()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    topic = f"{kafka.topic_prefix}.{table}"
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(kafka.partitions)])
    ended, count = 0, 0
    while ended < kafka.partitions:
        messages = consumer.consume(10_000, timeout=10)
        if not messages:
            raise ToolError(f"failed to read {topic} to its end")
        ended += sum(message.error() is not None for message in messages)
        count += sum(message.error() is None for message in messages)
    consumer.close()
    return count


def show(figures: dict[str, Any]) -> None:
    say(f"{figures['events']} events of {TABLE}, {figures['cores']} cores")
    table = Table()
    for column in ("way", "events/s a core", "least to most", "ours as a share", "events per s of CPU", "ours as a share "):
        table.add_column(column, justify="left" if column == "way" else "right")
    ours = figures["ways"]["ours"]
    for way, rates in figures["ways"].items():
        clock, cpu = rates["per_second_and_core"], rates["per_second_of_cpu"]
        table.add_row(
            way,
            f"{statistics.median(clock):,.0f}",
            f"{min(clock):,.0f} to {max(clock):,.0f}",
            _share(ours["per_second_and_core"], clock),
            f"{statistics.median(cpu):,.0f}",
            _share(ours["per_second_of_cpu"], cpu),
        )
    Console().print(table)


def _share(ours: list[float], theirs: list[float]) -> str:
    """The median of the passes, each of which ran both."""
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
