"""Debezium's connector for Cassandra on the segments of the whole path: `python -m benchmarks.debezium [--json]`.

Strategy: one node of Cassandra is started, whose tables have the ids of the segments: the connector asks it for the
schema. A user type is a tuple there, because the connector cannot load it. The segments of all three replicas are put
into a folder as cdc_raw, and the connector is started as its users do, with JSON converters and a real broker, once
with its defaults and once tuned. It sends every replica's events, so a third of them are unique. The time is that from
the first record's timestamp to the last one's; start-up is not counted. CPU is that of the connector in between, and
is seen twice a second.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition

from benchmarks import data
from benchmarks.batch import REPLICAS
from benchmarks.figures import Peer, text_of
from benchmarks.processes import Label, Meter
from benchmarks.publish import events_only
from benchmarks.report import report
from benchmarks.spark_peers import table_of, write_segments
from benchmarks.workloads import Workload, orders
from proof.decoder.judge import cassandra_settings
from proof.harness.cassandra import Ring
from proof.harness.node import access
from spark_jobs.sinks.kafka import ensure_topics
from tools.console import say, step
from tools.errors import ToolError
from tools.jars import need
from tools.java import java
from tools.services import ports
from tools.services.kafka import Kafka

DOES = "one event for each row of each replica's mutations, at least once, to the same broker, as JSON"
DOES_NOT = "replicas as one; before images, whole rows; statics, rows of range and partition deletes, TTL expiry; tables; state"
DEFAULTS: dict[str, str] = {}
TUNED = {
    "num.of.change.event.queues": "2",
    "event.order.guarantee.mode": "partition_values",
    "max.batch.size": "8192",
    "max.queue.size": "65536",
    "offset.flush.interval.ms": "10000",
    "max.offset.flush.size": "100000",
    "kafka.producer.linger.ms": "20",
    "kafka.producer.batch.size": "262144",
    "kafka.producer.buffer.memory": "67108864",
    "kafka.producer.compression.type": "lz4",
}
KINDS = {"defaults": DEFAULTS, "tuned": TUNED}
_ADDRESS = "<tuple<text, text, text>>"
"""The user type as a tuple, which has the same bytes: the connector does not load a table with a user type, and would
send nothing."""
_QUIET_SECONDS = 8.0
"""Without a new record after so long, everything has been sent."""
_PATIENCE_SECONDS = 300.0
_START_SECONDS = 60.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.debezium", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--segments", type=int, default=3, help="segments of 32 MiB a replica (default: 3)")
    parser.add_argument("--passes", type=int, default=2, help="passes of each kind (default: 2)")
    parser.add_argument("--cores", type=int, default=2, help="cores that it may use (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    return report(lambda: {"peers": [vars(peer) for peer in measure(orders(options.segments, 0), options.passes, options.cores)]}, show,
                  as_json=options.json)  # fmt: skip


def measure(workload: Workload, passes: int, cores: int) -> list[Peer]:
    """Figures of the connector with its defaults and tuned, medians of the passes."""
    jars = need("debezium")
    with tempfile.TemporaryDirectory(prefix="writetime-debezium-") as temporary:
        folder = Path(temporary)
        size = write_segments(folder / "segments", workload)
        with Kafka(folder / "kafka", port=0) as kafka, _node(folder / "ring", folder / "segments", workload) as ring:
            runs: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in KINDS}
            for number in range(passes):
                for kind, options in KINDS.items():
                    connector = Connector(folder / f"{kind}-{number}", jars, ring, kafka, workload.table, options)
                    runs[kind].append(connector.run(folder / "segments"))
                    say(f"  Debezium, {kind}: {runs[kind][-1]}")
    (version,) = re.findall(r"cassandra-5-(.+?)-jar", next(jars.glob("*.jar")).name)
    return [_peer(f"Debezium {version}, {kind}", found, size, cores) for kind, found in runs.items()]


def _peer(name: str, runs: list[tuple[float, float, int]], size: int, cores: int) -> Peer:
    seconds, cpu, events = (statistics.median(run[at] for run in runs) for at in range(3))
    figures = {
        "mb_s_per_core": size / 1e6 / seconds / cores,
        "mb_per_cpu_s": size / 1e6 / cpu,
        "events_s_per_core": events / seconds / cores,
        "unique_events_s_per_core": events / REPLICAS / seconds / cores,
        "events_per_cpu_s": events / cpu,
        "records": float(events),
        "passes": float(len(runs)),
    }
    return Peer(name, DOES, DOES_NOT, figures)


@contextmanager
def _node(folder: Path, segments: Path, workload: Workload) -> Iterator[Ring]:
    """A node that has the table of the segments, by the same id."""
    table = table_of(workload.table, segments)
    ring = Ring(folder)
    with step("a node for Debezium's schema"):
        ring.start()
    try:
        session = ring.session("ONE")
        session.execute(data.DDL[0])
        session.execute(data.DDL[2].replace("cdc = true", f"cdc = true AND ID = '{table.id}'").replace("<address>", _ADDRESS))
        yield ring
    finally:
        ring.close()


class Connector:
    """The connector with a folder of its own. ToolError, with the end of its log, if it sends nothing."""

    def __init__(self, folder: Path, jars: Path, ring: Ring, kafka: Kafka, table: str, options: dict[str, str]) -> None:
        self._folder, self._jars, self._table = folder, jars, table
        self._raw = folder / "cdc_raw"
        for each in (folder, self._raw, folder / "relocated", folder / "offsets"):
            each.mkdir()
        self._kafka = events_only(kafka, f"debezium-{uuid.uuid4().hex[:8]}", 2)
        self._topic = f"{self._kafka.topic_prefix}.{table}"
        self._configure(ring, options)

    def run(self, segments: Path) -> tuple[float, float, int]:
        """Seconds, CPU seconds, and records of all the segments."""
        for path in segments.iterdir():
            shutil.copy2(path, self._raw)
        ensure_topics(self._kafka, [self._topic])
        with (self._folder / "connector.log").open("wb") as log:
            process = subprocess.Popen(self._command(), stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)
            try:
                cpu = self._until_quiet(process)
            finally:
                process.terminate()
                process.wait(60)
        first, last, count = self._records()
        return (last - first) / 1000, cpu, count

    def _until_quiet(self, process: subprocess.Popen[bytes]) -> float:
        """Wait until all is sent; CPU seconds from the first record to the last."""
        meter = Meter({process.pid: Label("connector", "connector")})
        watcher = Consumer({"bootstrap.servers": self._kafka.bootstrap_servers, "group.id": "watch", "enable.auto.commit": False})
        begun = time.monotonic()
        sent, at, cpu = 0, time.monotonic(), 0.0
        while not sent or time.monotonic() - at < _QUIET_SECONDS:
            if process.poll() is not None or time.monotonic() - begun > (_PATIENCE_SECONDS if sent else _START_SECONDS):
                raise ToolError(f"Debezium ended or took too long after {sent} records; its log ends with:\n{self._log()[-3000:]}")
            time.sleep(0.5)
            meter.sample()
            now = sum(watcher.get_watermark_offsets(partition, timeout=10)[1] for partition in self._partitions())
            if now and not sent:
                meter.used.clear()
            if now > sent:
                sent, at, cpu = now, time.monotonic(), meter.used["connector"]
        watcher.close()
        return cpu

    def _records(self) -> tuple[int, int, int]:
        """The first and the last record's time, ms since the epoch, and how many there are."""
        given = {"bootstrap.servers": self._kafka.bootstrap_servers, "group.id": "count", "enable.partition.eof": True}
        consumer = Consumer({**given, "enable.auto.commit": False})
        consumer.assign(self._partitions())
        times: list[int] = []
        ended = 0
        while ended < self._kafka.partitions:
            messages = consumer.consume(10_000, timeout=10)
            if not messages:
                raise ToolError(f"failed to read {self._topic} to its end")
            for message in messages:
                if message.error() is not None:
                    ended += 1
                elif message.timestamp()[0] == TIMESTAMP_CREATE_TIME:
                    times.append(message.timestamp()[1])
        consumer.close()
        return min(times), max(times), len(times)

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, 0) for partition in range(self._kafka.partitions)]

    def _log(self) -> str:
        return (self._folder / "connector.log").read_text(encoding="utf-8", errors="replace")

    def _command(self) -> list[str]:
        (jar,) = self._jars.glob("*.jar")
        options = [
            *access(),
            "-Xmx1500m",
            f"-Dcassandra.storagedir={self._folder}",
            f"-Dlogback.configurationFile={self._folder / 'logback.xml'}",
        ]
        main_class = "io.debezium.connector.cassandra.CassandraConnectorTask"
        return [java(), *options, "-cp", str(jar), main_class, str(self._folder / "connector.properties")]

    def _configure(self, ring: Ring, options: dict[str, str]) -> None:
        node = ring.nodes[0]
        (self._folder / "logback.xml").write_text(
            '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %p %c{0} %m%n</pattern>'
            '</encoder></appender><root level="INFO"><appender-ref ref="out"/></root></configuration>'
        )
        (self._folder / "driver.conf").write_text(
            f'datastax-java-driver {{ basic.contact-points = ["{node.address}:{node.port}"]\n'
            'basic.load-balancing-policy.local-datacenter = "dc1"\nbasic.request.timeout = 20 seconds }\n'
        )
        settings = cassandra_settings(self._folder) | {"cdc_enabled": True, "cdc_raw_directory": str(self._raw)}
        (self._folder / "cassandra.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
        converter = "org.apache.kafka.connect.json.JsonConverter"
        properties = {
            "connector.name": "bench",
            "topic.prefix": self._kafka.topic_prefix,
            "cassandra.config": str(self._folder / "cassandra.yaml"),
            "cassandra.driver.config.file": str(self._folder / "driver.conf"),
            "cassandra.cluster.name": ring.cluster_name,
            "cassandra.node.id": "bench",
            "snapshot.mode": "NEVER",
            "commit.log.relocation.dir": str(self._folder / "relocated"),
            "offset.backing.store.dir": str(self._folder / "offsets"),
            "http.port": str(ports.any_free()),
            "kafka.producer.bootstrap.servers": self._kafka.bootstrap_servers,
            "key.converter": converter,
            "key.converter.schemas.enable": "false",
            "value.converter": converter,
            "value.converter.schemas.enable": "false",
            **options,
        }
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self._folder / "connector.properties").write_text(lines, encoding="utf-8")


def show(figures: dict[str, Any]) -> None:
    for peer in figures["peers"]:
        say(f"{peer['name']}: " + ", ".join(f"{name} {text_of(value)}" for name, value in peer["figures"].items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
