"""Airflow at its default schedule, in both modes: from a write in CQL to Kafka, and the cost while idle. `make
bench-schedule`.

Strategy: all parts are real: a Cassandra node, the shipper with its tail, Airflow's four processes with the
DAGs as they are, Spark, a broker. Rows are written at a constant rate; a row's time is from the node's
acknowledgement until a reader of committed records receives its event. Rows written while the first batch
starts a cold Spark are included; the percentiles named `warm` leave them out: a session runs for an hour, so
they are more of a short run than of a day. The modes run one after the other, each with a cluster, a bucket
and an Airflow of its own. CPU is that of process trees: what the scheduler starts (tasks, and with them
Spark), Airflow's own four processes, the shipper, the node, and the broker.

While nothing is written, a session's cost is the CPU of what the scheduler starts. In mode `batch`, it is
that of the runs of `cdc_ingest` which find nothing to do, less that of as many minutes with every DAG paused.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.freshness import wait_until_known
from benchmarks.processes import Label, Meter, Size, shares
from benchmarks.report import report
from proof.harness.cassandra import Ring
from tests.shippers.process import shipping
from tools.background import in_background
from tools.console import say
from tools.errors import ToolError
from tools.services.airflow import Airflow
from tools.services.kafka import Kafka
from writetime.pipeline.planner import history
from writetime.storage import open_store

CLUSTER = "bench"
TOPIC = "bench.fresh.rows"
DAGS = {"batch": ("cdc_ingest", "cdc_publish"), "session": ("cdc_stream", "cdc_report")}
"""The DAGs that run by themselves, by mode."""
ROW = 1000
"""Bytes of a row, about."""
PATIENCE = 900.0
_SIZED_EVERY = 60.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--mode", choices=(*DAGS, "both"), default="both", help="airflow.mode (default: both, one after the other)")
    parser.add_argument("--seconds", type=float, default=600, help="for how long rows are written (default: 600)")
    parser.add_argument("--rate", type=int, default=20, help="rows of 1 KB a second (default: 20)")
    parser.add_argument("--tail", type=float, default=1, help="node.ship.tail_seconds (default: 1)")
    parser.add_argument("--sync", type=float, default=10, help="s between two syncs of the node (default: 10, as Cassandra's)")
    parser.add_argument("--idle", type=float, default=5, help="minutes with nothing to do (default: 5; 0: none)")
    parser.add_argument("--session", type=float, default=60, help="airflow.session_minutes (default: 60)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    return report(lambda: measure(options), show, as_json=options.json)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures by mode: times in s, CPU as shares of a core."""
    modes = tuple(DAGS) if options.mode == "both" else (options.mode,)
    return {mode: _of_mode(mode, options) for mode in modes}


def _of_mode(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    settings = {"commitlog_sync_period_in_ms": int(options.sync * 1000)}
    with tempfile.TemporaryDirectory(prefix="writetime-schedule-") as name:
        folder = Path(name)
        with (
            Ring(folder / "ring", segment_mb=8, cluster_name=CLUSTER, settings=settings) as ring,
            Kafka(folder / "kafka", port=0) as kafka,
            Airflow(folder / "airflow", config=_configure(folder, kafka, mode, options.session), port=0) as airflow,
        ):
            session = ring.session("ONE")
            session.execute("CREATE KEYSPACE fresh WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
            session.execute("CREATE TABLE fresh.rows (id bigint PRIMARY KEY, text text) WITH cdc = true")
            _wait(lambda: {dag["dag_id"] for dag in airflow.api.dags()} >= set(DAGS[mode]), "the DAGs are there")
            fresh = freshness(folder, ring, kafka, airflow, mode, options)
            return fresh | ((idle_session if mode == "session" else idle)(airflow, options.idle) if options.idle else {})


def _configure(folder: Path, kafka: Kafka, mode: str, minutes: float) -> Path:
    pipeline = {
        "pipeline": "bench",
        "cluster": {"name": CLUSTER, "datacenters": ["dc1"]},
        "bucket": str(folder / "bucket"),
        "catalog": {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}", "warehouse": str(folder / "warehouse")},
        "kafka": {"bootstrap.servers": kafka.bootstrap, "topic.prefix": "bench"},
        "snapshot": {"mode": "never"},
        "airflow": {"mode": mode, "session_minutes": minutes},
    }
    path = folder / "airflow.yaml"
    path.write_text(yaml.safe_dump(pipeline), encoding="utf-8")
    return path


def _wait(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise ToolError(f"{what}: not within {seconds:.0f} s")
        time.sleep(1)


# --- freshness


def freshness(folder: Path, ring: Ring, kafka: Kafka, airflow: Airflow, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Of all rows written: how long after the node's answer their events could be read; and the CPU
    meanwhile."""
    (folder / "shipper").mkdir()
    with (
        shipping(ring, folder / "shipper", str(folder / "bucket"), {"tail_seconds": options.tail}, poll_seconds=1) as shipper,
        reading(kafka) as reader,
    ):
        store = open_store(str(folder / "bucket"))
        wait_until_known(store, shipper)
        for dag in DAGS[mode]:
            airflow.api.pause(dag, paused=False)
        started = time.time()
        roots = _roots(airflow) | {ring.nodes[0].pid: Label("node", "node"), shipper.pid: Label("shipper", "shipper")}
        if kafka.service is not None:
            roots[kafka.service.pid] = Label("broker", "broker")
        begun = time.monotonic()
        with Meter(roots).running() as meter, _sized(meter) as sizes:
            written = write(ring, options.seconds, options.rate)
        seconds = time.monotonic() - begun
        say(f"{len(written)} rows written; waiting for the last of their events …")
        _wait(lambda: written.keys() <= reader.seen.keys(), "all rows are in Kafka")
    first = min(reader.seen.values())
    late = [reader.seen[number] - at for number, at in written.items()]
    percentiles = _percentiles(late)
    warm = _percentiles([reader.seen[number] - at for number, at in written.items() if at >= first])
    sealed = history(store, CLUSTER).sealed
    return {
        "rows": len(late),
        "seconds": options.seconds,
        "p50_s": percentiles[49],
        "p95_s": percentiles[94],
        "most_s": max(late),
        "start_s": first - started,
        "warm_p50_s": warm[49],
        "warm_p95_s": warm[94],
        "doubled": reader.doubled,
        "batches": sealed.number if sealed else 0,
        "cpu_shares": {name: used / seconds for name, used in sorted(meter.used.items())},
        "memory": sizes,
        "files": files(folder / "warehouse"),
    }


def _percentiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=100, method="inclusive")


def _roots(airflow: Airflow) -> dict[int, Label]:
    """Airflow's processes; what its scheduler starts are tasks, and with them Spark."""
    below = {"airflow-scheduler": "tasks"}
    return {service.pid: Label("airflow", below.get(service.name, "airflow")) for service in airflow.services}


@contextmanager
def _sized(meter: Meter) -> Iterator[list[dict[str, Any]]]:
    """Memory and open files of a session, once a minute: of its driver, of the JVM, and of the workers."""
    found: list[dict[str, Any]] = []
    begun = time.monotonic()

    def run(over: threading.Event) -> None:
        while not over.wait(_SIZED_EVERY):
            sizes = meter.sizes("tasks", _kind)
            found.append({"minute": round((time.monotonic() - begun) / 60, 1), **{kind: size._asdict() for kind, size in sizes.items()}})

    with in_background(run):
        yield found


def _kind(command: str) -> str | None:
    """The part of a Spark application that a process is."""
    if "pyspark.daemon" in command or "pyspark/daemon" in command or "spark_jobs.daemon" in command:
        return "workers"
    if "SparkSubmit" in command:
        return "jvm"
    return "driver" if "stream.py" in command and "spark-submit" not in command else None


def files(warehouse: Path) -> dict[str, int]:
    """Files in the tables' folders: rows (data and delete files), and metadata."""
    found = [path for path in warehouse.rglob("*") if path.is_file() and not path.name.startswith(".")]
    rows = [path for path in found if path.parent.name != "metadata"]
    return {
        "tables": len({path.parent for path in found if path.parent.name == "metadata"}),
        "rows": len(rows),
        "metadata": len(found) - len(rows),
    }


def write(ring: Ring, seconds: float, rate: int) -> dict[int, float]:
    """When each row was answered, s since the epoch."""
    session = ring.session("ONE")
    insert = session.prepare("INSERT INTO fresh.rows (id, text) VALUES (?, ?)")
    begun = time.time()
    answered: dict[int, float] = {}
    while time.time() - begun < seconds:
        number = len(answered)
        session.execute(insert, (number, "".ljust(ROW, "x")))
        answered[number] = time.time()
        time.sleep(max(0.0, begun + (number + 1) / rate - time.time()))
    return answered


@dataclass
class Reader:
    """When each row's event was first read, and how many came more than once."""

    seen: dict[int, float] = field(default_factory=dict)
    doubled: int = 0
    trouble: Exception | None = None

    def run(self, bootstrap: str, ended: threading.Event) -> None:
        options = {"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer(options)
        try:
            while not ended.is_set() and TOPIC not in (topics := consumer.list_topics(timeout=10).topics):
                time.sleep(0.2)
            if not ended.is_set():
                consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in topics[TOPIC].partitions])
            while not ended.is_set():
                for message in consumer.consume(1000, timeout=0.2):
                    if message.error() is None and (value := message.value()) is not None:
                        self.note(json.loads(value)["after"]["id"], time.time())
        except KafkaException as error:
            self.trouble = error
        finally:
            consumer.close()

    def note(self, number: int, at: float) -> None:
        self.doubled += number in self.seen
        self.seen.setdefault(number, at)


@contextmanager
def reading(kafka: Kafka) -> Iterator[Reader]:
    """Record all events that arrive meanwhile."""
    reader = Reader()
    with in_background(lambda ended: reader.run(kafka.bootstrap, ended)):
        yield reader
    if reader.trouble is not None:
        raise ToolError(f"failed to read events: {reader.trouble}")


# --- nothing to do


def idle(airflow: Airflow, minutes: float) -> dict[str, Any]:
    """Runs of `cdc_ingest` with nothing to do: their seconds by Airflow's clock, and those of the CPU that
    each costs.
    """
    _wait(lambda: _skipped(airflow, 0), "a run of cdc_ingest with nothing to do")
    airflow.api.pause("cdc_publish")
    say(f"{minutes:g} minutes with nothing to do, and as many with all DAGs paused …")
    begun = time.time()
    busy = shares(_roots(airflow), minutes * 60)
    runs = _skipped(airflow, begun)
    airflow.api.pause("cdc_ingest")
    paused = shares(_roots(airflow), minutes * 60)
    if not runs:
        raise ToolError(f"no run of cdc_ingest within {minutes:g} minutes")
    return {
        "idle_cpu_share": busy["tasks"] - paused["tasks"],
        "idle_airflow_share": busy["airflow"],
        "paused_airflow_share": paused["airflow"],
        "idle_runs": len(runs),
        "idle_run_s": statistics.median(runs),
        "idle_run_cpu_s": (busy["tasks"] - paused["tasks"]) * minutes * 60 / len(runs),
    }


def idle_session(airflow: Airflow, minutes: float) -> dict[str, Any]:
    """The CPU of a session that has nothing to do."""
    time.sleep(60)
    say(f"{minutes:g} minutes with nothing to do …")
    found = shares(_roots(airflow), minutes * 60)
    return {"idle_cpu_share": found["tasks"], "idle_airflow_share": found["airflow"]}


def _skipped(airflow: Airflow, since: float) -> list[float]:
    """Seconds of each run since then that has ended without a Spark job."""
    return [seconds for seconds, states in _runs(airflow, "cdc_ingest", since) if states.get("plan") == states.get("ingest") == "skipped"]


def _runs(airflow: Airflow, dag: str, since: float = 0) -> Iterator[tuple[float, dict[str, str]]]:
    """Seconds of each green run that has begun since then, and its tasks' states."""
    for run in airflow.api.runs(dag, state="success"):
        begun, ended = (datetime.fromisoformat(run[name]).timestamp() for name in ("start_date", "end_date"))
        if begun >= since:
            yield ended - begun, {task["task_id"]: task["state"] for task in airflow.api.tasks(dag, run["dag_run_id"])}


# --- for people


def show(figures: dict[str, Any]) -> None:
    table = Table(
        "from a write in CQL to Kafka",
        "p50 s",
        "p95 s",
        "most s",
        "start s",
        "warm p50",
        "warm p95",
        "rows",
        "batches",
        "doubled",
        "idle: share of a core",
    )
    for mode, found in figures.items():
        times = [f"{found[name]:.1f}" for name in ("p50_s", "p95_s", "most_s", "start_s", "warm_p50_s", "warm_p95_s")]
        counts = [str(found[name]) for name in ("rows", "batches", "doubled")]
        table.add_row(f"mode {mode}", *times, *counts, f"{found['idle_cpu_share']:.1%}" if "idle_cpu_share" in found else "")
    Console().print(table)
    names = sorted({name for found in figures.values() for name in found["cpu_shares"]})
    table = Table("CPU while rows are written, share of a core", *names)
    for mode, found in figures.items():
        table.add_row(f"mode {mode}", *(f"{found['cpu_shares'].get(name, 0):.0%}" for name in names))
    Console().print(table)
    for found in figures.values():
        if len(sizes := found["memory"]) > 1:
            Console().print(_memory(sizes))


def _memory(sizes: list[dict[str, Any]]) -> Table:
    """Of a session: memory and open files after ten minutes, or at the first sample, and at the end."""
    first = next((each for each in sizes if each["minute"] >= 10 and "workers" in each), sizes[0])
    table = Table("a session", f"MB, minute {first['minute']:.0f}", f"MB, minute {sizes[-1]['minute']:.0f}", "open files", "then")
    nothing = Size(0, 0, 0)._asdict()
    for kind in ("driver", "jvm", "workers"):
        one, other = first.get(kind, nothing), sizes[-1].get(kind, nothing)
        table.add_row(kind, f"{one['mb']:.0f}", f"{other['mb']:.0f}", str(one["files"]), str(other["files"]))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
