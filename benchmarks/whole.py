"""The whole path, from the bucket to Kafka: `make bench NAME=whole`, or `python -m benchmarks.whole [--json]`.

Strategy: the segments of three replicas (`batch.py`: orders that a real node has logged, about 1 KB and 20 cells
each, 302 MB) are planned like shipped ones. What is measured is all that a batch costs: ingest with its commits to
the warehouse and the state, archiving, and every event in a real Kafka, where the committed ones are counted.
Then some small batches of 1,000 rows, and one of maintenance, of what was written. The first pass is cold: Spark's
workers start, and code is compiled. Each pass begins without tables and with topics of its own.

CPU is that of this process, the JVM and the Python workers; the broker's is given apart. MB are 10^6 bytes of
segment files of all replicas. Figures of a part of the path (`batch.py`, `publish.py`) are not comparable.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.batch import (
    CLUSTER,
    MEBIBYTE,
    PER_SECTION,
    REPLICAS,
    SEGMENT_BYTES,
    bodies_of,
    config_of,
    forget,
    log_of,
)
from benchmarks.processes import Label, Meter
from benchmarks.publish import committed, events_only
from benchmarks.report import report
from spark_jobs import ingest, publish
from spark_jobs.session import spark_session
from tools import ROOT
from tools.background import in_background
from tools.console import say
from tools.errors import ToolError
from tools.services.kafka import Kafka
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Manifest
from writetime.pipeline.planner import plan_ingest, plan_maintain
from writetime.storage import layout, open_store
from writetime.storage.store import Store

FIGURES = ROOT / "build" / "bench.json"
SMALL = 1000
"""Mutations of a small batch."""
SMALL_BATCHES = 5
GOALS = {"whole_mb_s_per_core": 15.0, "whole_mb_per_cpu_s": 20.0, "publish_events_s_per_core": 25_000.0, "core_scaling_1_to_2": 1.7}
"""At least; `small_batch_s`: at most 3."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--segments", type=int, default=3, help=f"segments of {SEGMENT_BYTES >> 20} MiB a replica (default: 3)")
    parser.add_argument("--passes", type=int, default=3, help="measured passes, after the cold one (default: 3)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (default: 2)")
    parser.add_argument("--buckets", type=int, default=4, help="key buckets, which are state shards, of a table (default: 4)")
    parser.add_argument("--scaling", action="store_true", help="also one pass on one core and on two, pinned by taskset")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return report(lambda: measure(options), show, as_json=options.json)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures; also written to build/bench.json."""
    figures = _measure(options.segments, options.passes, options.cores, options.buckets)
    if options.scaling:
        one, two = (_pinned(cores, options.segments, options.buckets) for cores in (1, 2))
        figures["core_scaling_1_to_2"] = one["seconds"] / two["seconds"]
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


def _pinned(cores: int, segments: int, buckets: int) -> dict[str, Any]:
    """The figures of a run of its own on the first cores only."""
    asked = ["--cores", cores, "--segments", segments, "--buckets", buckets, "--passes", 1, "--json"]
    command = [
        "taskset",
        "-c",
        ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores])),
        sys.executable,
        "-m",
        "benchmarks.whole",
        *map(str, asked),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise ToolError(f"a run on {cores} cores failed: exit code {done.returncode}")
    return dict(json.loads(done.stdout))


def _measure(segments: int, passes: int, cores: int, buckets: int) -> dict[str, Any]:
    few = bodies_of(segments + 1)[-SMALL * SMALL_BATCHES :]
    bodies = bodies_of(segments)
    logs = [log_of(bodies, seed) for seed in range(REPLICAS)]
    size = sum(SEGMENT_BYTES for log in logs for _ in log)
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary, Kafka(Path(temporary) / "kafka", port=0) as kafka:
        folder = Path(temporary)
        spark = spark_session(config_of(folder, cores, buckets), "writetime bench-whole")
        try:
            runs = []
            for number in range(1 + passes):
                # Nothing that a worker knows of a bucket is of an earlier pass.
                own = {"kafka": events_only(kafka, f"pass-{number}", cores), "bucket": str(folder / f"bucket-{number}")}
                config = config_of(folder, cores, buckets).model_copy(update=own)
                pipeline = Pipeline(spark, config, kafka)
                runs.append(pipeline.run(logs, few))
                say(f"  {'cold' if number == 0 else number}: {_sentence(runs[-1])}")
                pipeline.forget()
        finally:
            spark.stop()
    return _figures(runs, size, cores)


@dataclass
class Cost:
    """Of a step: s by the clock, s of CPU, and of these the broker's apart."""

    seconds: float
    cpu: float
    broker: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu, self.broker + other.broker)


@dataclass
class Run:
    """What a pass has cost, by step; the small batches' seconds; the events of the large one; MB of memory."""

    steps: dict[str, Cost] = field(default_factory=dict)
    small: list[dict[str, float]] = field(default_factory=list)
    events: int = 0
    peak: float = 0.0

    @property
    def whole(self) -> Cost:
        return self.steps["ingest"] + self.steps["archive"] + self.steps["publish"]


class Pipeline:
    """An empty bucket and warehouse, and the jobs that fill them."""

    def __init__(self, spark: SparkSession, config: PipelineConfig, kafka: Kafka) -> None:
        self.spark, self.config = spark, config
        self.store: Store = open_store(config.bucket)
        self.segment = 0
        assert kafka.service is not None
        self._meter = Meter({os.getpid(): Label("job", "job"), kafka.service.pid: Label("broker", "broker")})

    def run(self, logs: list[list[list[bytes]]], few: list[bytes]) -> Run:
        run = Run()
        with self._memory(run):
            self._batch(logs, run.steps)
            run.events = self._expect_events()
            for at in range(0, len(few), SMALL):
                steps: dict[str, Cost] = {}
                self._batch([[few[at : at + SMALL]]] * REPLICAS, steps)
                run.small.append({name: cost.seconds for name, cost in steps.items()})
            self._expect_events()
            manifest = plan_maintain(self.store, CLUSTER, now=datetime.now(UTC))
            assert manifest is not None
            with self._timed(run.steps, "maintain"):
                ingest.run(self.config, manifest.number, self.spark)
        return run

    def forget(self) -> None:
        """Drop the tables and the bucket, for the next pass."""
        assert self.config.catalog is not None
        for (namespace,) in self.spark.sql(f"SHOW NAMESPACES IN {self.config.catalog.name}").collect():
            for row in self.spark.sql(f"SHOW TABLES IN {self.config.catalog.name}.{namespace}").collect():
                self.spark.sql(f"DROP TABLE {self.config.catalog.name}.{namespace}.{row.tableName} PURGE")
        shutil.rmtree(self.config.bucket)

    def _batch(self, logs: list[list[list[bytes]]], steps: dict[str, Cost]) -> None:
        manifest = self._ship(logs)
        with self._timed(steps, "ingest"):
            ingest.run(self.config, manifest.number, self.spark)
        with self._timed(steps, "archive"):
            archive(self.store, CLUSTER, manifest.number)
        with self._timed(steps, "publish"):
            publish.run(self.config, session=self.spark)
        forget(self.spark)

    def _ship(self, logs: list[list[list[bytes]]]) -> Manifest:
        start = datetime.now(UTC)
        for at in range(len(logs[0])):
            self.segment += 1
            for number, log in enumerate(logs):
                node = layout.NodeName(CLUSTER, "dc1", str(uuid.UUID(int=number + 1)))
                room = SEGMENT_BYTES if sum(map(len, log[at])) > MEBIBYTE else 4 * MEBIBYTE
                segment = encode_segment(self.segment, 7, log[at], per_section=PER_SECTION, size=room)
                sealed_at = start + timedelta(milliseconds=at)
                name = layout.SegmentRef(node, layout.SegmentName(self.segment, 7)).incoming
                self.store.put(name, segment, metadata={"sealed_at": sealed_at.isoformat()})
        manifest = plan_ingest(self.store, CLUSTER, now=datetime.now(UTC) + timedelta(seconds=1))
        assert manifest is not None
        return manifest

    def _expect_events(self) -> int:
        """How many events the table has had; all of them must be in Kafka."""
        assert self.config.kafka is not None
        assert self.config.catalog is not None
        name = f"{self.config.catalog.name}.{data.KEYSPACE}__changes.orders"
        events = self.spark.table(name).count()
        if (there := committed(self.config.kafka)) != events:
            raise ToolError(f"{there} of {events} events are in Kafka")
        return events

    @contextmanager
    def _timed(self, steps: dict[str, Cost], name: str) -> Iterator[None]:
        begun = time.perf_counter()
        with self._meter.running():
            yield
        used = self._meter.used
        steps[name] = Cost(time.perf_counter() - begun, used["job"], used["broker"])

    @contextmanager
    def _memory(self, run: Run) -> Iterator[None]:
        """Note the most memory that this process and those below it have at any time."""

        def watch(over: threading.Event) -> None:
            while not over.wait(2.0):
                run.peak = max(run.peak, *(size.mb for size in self._meter.sizes("job", lambda _: "all").values()))

        with in_background(watch):
            yield


def _figures(runs: list[Run], size: int, cores: int) -> dict[str, Any]:
    warm = runs[1:]

    def median(of: Any) -> float:
        return statistics.median(map(of, warm))

    def rates(of: Any) -> list[float]:
        return [round(of(run), 2) for run in warm]

    mb = size / 1e6
    small = [each for run in warm for each in run.small]
    return {
        "bytes": size,
        "events": warm[0].events,
        "cores": cores,
        "seconds": median(lambda run: run.whole.seconds),
        "whole_mb_s_per_core": median(lambda run: mb / run.whole.seconds / cores),
        "whole_mb_per_cpu_s": median(lambda run: mb / (run.whole.cpu + run.steps["maintain"].cpu)),
        "whole_events_s_per_core": median(lambda run: run.events / run.whole.seconds / cores),
        "publish_events_s_per_core": median(lambda run: run.events / run.steps["publish"].seconds / cores),
        "small_batch_s": {name: statistics.median(each[name] for each in small) for name in small[0]},
        "maintenance_cpu_share": median(lambda run: run.steps["maintain"].cpu / run.steps["ingest"].cpu),
        "peak_rss_mb": max(run.peak for run in runs),
        "cold": {name: vars(cost) for name, cost in runs[0].steps.items()},
        "steps": {name: {part: median(lambda run, n=name, p=part: getattr(run.steps[n], p)) for part in ("seconds", "cpu", "broker")}
                  for name in warm[0].steps},
        "spread": {
            "whole_mb_s_per_core": rates(lambda run: mb / run.whole.seconds / cores),
            "publish_events_s_per_core": rates(lambda run: run.events / run.steps["publish"].seconds / cores),
        },
    }  # fmt: skip


# --- for people


def _sentence(run: Run) -> str:
    steps = ", ".join(f"{name} {cost.seconds:.1f} s ({cost.cpu:.1f} s of CPU)" for name, cost in run.steps.items())
    return f"{steps}; {run.events} events; {run.peak:.0f} MB"


def show(figures: dict[str, Any]) -> None:
    say(f"{figures['bytes'] / 1e6:.0f} MB of {REPLICAS} replicas, {figures['events']} events, Spark local[{figures['cores']}]")
    table = Table(title="medians of the warm passes")
    for column in ("figure", "value", "at least"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        if isinstance(value, float):
            table.add_row(name, f"{value:,.2f}", f"{GOALS[name]:,.1f}" if name in GOALS else "")
    Console().print(table)
    table = Table(title="by step, s")
    for column in ("step", "clock", "CPU", "broker's CPU", "cold: clock"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for name, cost in figures["steps"].items():
        table.add_row(name, *(f"{cost[part]:.1f}" for part in ("seconds", "cpu", "broker")), f"{figures['cold'][name]['seconds']:.1f}")
    Console().print(table)
    small = figures["small_batch_s"]
    say(
        f"{SMALL} rows: "
        + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in small.items())
        + f"; {sum(small.values()):.2f} s (goal: 3)"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
