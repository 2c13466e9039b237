"""Airflow at its default schedule: from a write in CQL to Kafka, and the cost of idle runs. `make
bench-schedule`.

Strategy: all parts are real: a Cassandra node, the shipper with its tail, Airflow's four processes with the
DAGs as they are, Spark, a broker. Rows are written at a constant rate; a row's time is from the node's
acknowledgement until a reader of committed records receives its event. Rows written while the first batches
start a cold Spark are included. Then the shipper stops and the last batch is published. The duration of idle
runs of `cdc_ingest` is read from Airflow; their CPU is that of all processes that the scheduler starts. The
CPU of Airflow's four processes is measured for as many minutes with those runs and with every DAG paused.
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

from benchmarks.batch import cpu_seconds, own_cpu_seconds
from benchmarks.freshness import wait_until_known
from benchmarks.report import report
from proof.harness.cassandra import Ring
from tests.shippers.process import shipping
from tools.console import say
from tools.errors import ToolError
from tools.services.airflow import Airflow
from tools.services.kafka import Kafka
from writetime.pipeline.planner import history
from writetime.storage import open_store

CLUSTER = "bench"
TOPIC = "bench.fresh.rows"
DAGS = ("cdc_ingest", "cdc_publish")
ROW = 1000
"""Bytes of a row, about."""
PATIENCE = 900.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="for how long rows are written (default: 600)")
    parser.add_argument("--rate", type=int, default=20, help="rows of 1 KB a second (default: 20)")
    parser.add_argument("--tail", type=float, default=1, help="node.ship.tail_seconds (default: 1)")
    parser.add_argument("--idle", type=float, default=5, help="minutes with nothing to do, and as many with all DAGs paused (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    return report(lambda: measure(options.seconds, options.rate, options.tail, options.idle), show, as_json=options.json)


def measure(seconds: float, rate: int, tail: float, idle_minutes: float) -> dict[str, Any]:
    """All figures as one document: times in s."""
    with tempfile.TemporaryDirectory(prefix="writetime-schedule-") as name:
        folder = Path(name)
        with (
            Ring(folder / "ring", segment_mb=8, cluster_name=CLUSTER) as ring,
            Kafka(folder / "kafka", port=0) as kafka,
            Airflow(folder / "airflow", config=_configure(folder, kafka), port=0) as airflow,
        ):
            session = ring.session("ONE")
            session.execute("CREATE KEYSPACE fresh WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
            session.execute("CREATE TABLE fresh.rows (id bigint PRIMARY KEY, text text) WITH cdc = true")
            _wait(lambda: {dag["dag_id"] for dag in airflow.api.dags()} >= set(DAGS), "the DAGs are there")
            fresh = freshness(folder, ring, kafka, airflow, tail, seconds, rate)
            return {"freshness": fresh, "idle": idle(airflow, idle_minutes)}


def _configure(folder: Path, kafka: Kafka) -> Path:
    pipeline = {
        "pipeline": "bench",
        "cluster": {"name": CLUSTER, "datacenters": ["dc1"]},
        "bucket": str(folder / "bucket"),
        "catalog": {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}", "warehouse": str(folder / "warehouse")},
        "kafka": {"bootstrap.servers": kafka.bootstrap, "topic.prefix": "bench"},
        "snapshot": {"mode": "never"},
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


def freshness(folder: Path, ring: Ring, kafka: Kafka, airflow: Airflow, tail: float, seconds: float, rate: int) -> dict[str, Any]:
    """Of all rows written in `seconds`: how long after the node's answer their events could be read."""
    (folder / "shipper").mkdir()
    with (
        shipping(ring, folder / "shipper", str(folder / "bucket"), {"tail_seconds": tail}, poll_seconds=1) as shipper,
        reading(kafka) as reader,
    ):
        store = open_store(str(folder / "bucket"))
        wait_until_known(store, shipper)
        for dag in DAGS:
            airflow.api.pause(dag, paused=False)
        written = write(ring, seconds, rate)
        say(f"{len(written)} rows written; waiting for the last of their events …")
        _wait(lambda: written.keys() <= reader.seen.keys(), "all rows are in Kafka")
    late = sorted(reader.seen[number] - at for number, at in written.items())
    percentiles = statistics.quantiles(late, n=100, method="inclusive")
    sealed = history(store, CLUSTER).sealed
    return {
        "rows": len(late),
        "seconds": seconds,
        "p50": percentiles[49],
        "p95": percentiles[94],
        "most": late[-1],
        "doubled": reader.doubled,
        "batches": sealed.number if sealed else 0,
        "ingest": _seconds(airflow, "cdc_ingest", "ingest"),
        "publish": _seconds(airflow, "cdc_publish", "publish"),
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
    reader, ended = Reader(), threading.Event()
    thread = threading.Thread(target=reader.run, args=(kafka.bootstrap, ended))
    thread.start()
    try:
        yield reader
    finally:
        ended.set()
        thread.join()
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
    tasks, airflows = _cpu_of(airflow, minutes)
    runs = _skipped(airflow, begun)
    airflow.api.pause("cdc_ingest")
    tasks_paused, airflows_paused = _cpu_of(airflow, minutes)
    if not runs:
        raise ToolError(f"no run of cdc_ingest within {minutes:g} minutes")
    return {
        "runs": len(runs),
        "seconds": statistics.median(runs),
        "most": max(runs),
        "cpu_a_run": (tasks - tasks_paused) / len(runs),
        "cpu_of_airflow_a_minute": airflows / minutes,
        "cpu_of_airflow_a_minute_paused": airflows_paused / minutes,
    }


def _skipped(airflow: Airflow, since: float) -> list[float]:
    """Seconds of each run since then that has ended without a Spark job."""
    return [seconds for seconds, states in _runs(airflow, "cdc_ingest", since) if states.get("plan") == states.get("ingest") == "skipped"]


def _seconds(airflow: Airflow, dag: str, job: str) -> float:
    """The median of the seconds of runs that have ended with this Spark job."""
    return statistics.median([seconds for seconds, states in _runs(airflow, dag) if states.get(job) == "success"])


def _runs(airflow: Airflow, dag: str, since: float = 0) -> Iterator[tuple[float, dict[str, str]]]:
    """Seconds of each green run that has begun since then, and its tasks' states."""
    for run in airflow.api.runs(dag, state="success"):
        begun, ended = (datetime.fromisoformat(run[name]).timestamp() for name in ("start_date", "end_date"))
        if begun >= since:
            yield ended - begun, {task["task_id"]: task["state"] for task in airflow.api.tasks(dag, run["dag_run_id"])}


def _cpu_of(airflow: Airflow, minutes: float) -> tuple[float, float]:
    """CPU seconds, in so many minutes, of all that the scheduler starts, which is tasks; and of Airflow's
    processes besides.
    """
    before = _cpu(airflow)
    time.sleep(minutes * 60)
    after = _cpu(airflow)
    return after[0] - before[0], after[1] - before[1]


def _cpu(airflow: Airflow) -> tuple[float, float]:
    scheduler = next(service.pid for service in airflow.services if service.name == "airflow-scheduler")
    tasks = cpu_seconds(root=scheduler) - own_cpu_seconds(scheduler)
    return tasks, sum(cpu_seconds(root=service.pid) for service in airflow.services) - tasks


# --- for people


def show(figures: dict[str, Any]) -> None:
    fresh, quiet = figures["freshness"], figures["idle"]
    runs = ("a run of cdc_ingest, s", "of cdc_publish, s")
    table = Table("from a write in CQL to Kafka", "p50 s", "p95 s", "most s", *runs, "rows", "batches", "doubled")
    times = [f"{fresh[name]:.0f}" for name in ("p50", "p95", "most", "ingest", "publish")]
    table.add_row("default schedule, tail on", *times, *(str(fresh[name]) for name in ("rows", "batches", "doubled")))
    Console().print(table)
    table = Table("a run with nothing to do", "s", "most s", "s of CPU", "runs", "Airflow's own s of CPU a minute", "with all paused")
    airflows = [f"{quiet[name]:.1f}" for name in ("cpu_of_airflow_a_minute", "cpu_of_airflow_a_minute_paused")]
    times = [f"{quiet[name]:.1f}" for name in ("seconds", "most", "cpu_a_run")]
    table.add_row("cdc_ingest", *times, str(quiet["runs"]), *airflows)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
