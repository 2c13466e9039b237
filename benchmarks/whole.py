"""The whole path, from the bucket to Kafka: `make bench NAME=whole`, or `python -m benchmarks.whole [--json]`.

Strategy: the segments of three replicas (`workloads.py`: orders that a real node has logged, about 1 KB and 20
cells each, 302 MB) are planned like shipped ones. What is measured is all that a batch costs: ingest with its
commits to the warehouse and the state, archiving, and every event in a real Kafka, where the committed ones are
counted. Then some small batches of 1,000 rows, and one of maintenance, of what was written. The JVM is started as
Airflow starts it. The first pass is cold: Spark's workers start, and code is compiled. Each pass begins without
tables and with topics of its own.

With `--workers`, Spark is a standalone cluster of so many workers with one core each, which share nothing with the
driver but an S3 server (`tools.standalone`); the server is on the same cores, and its CPU is not in the figures.

CPU is that of this process, the JVM and the Python workers; the broker's is given apart. MB are 10^6 bytes of
segment files of all replicas. Figures of a part of the path (`batch.py`, `publish.py`) are not comparable.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.batch import CLUSTER, DEPLOYED, PER_SECTION, REPLICAS, SEGMENT_BYTES, config_of, forget
from benchmarks.figures import KEYS
from benchmarks.processes import Label, Meter
from benchmarks.publish import committed, events_only
from benchmarks.report import report
from benchmarks.workloads import MEBIBYTE, SMALL, Workload, orders, recorded
from spark_jobs import ingest, publish
from spark_jobs.session import spark_session
from tools import ROOT, standalone
from tools.background import in_background
from tools.console import say
from tools.errors import ToolError
from tools.services.kafka import Kafka
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.planner import plan_ingest, plan_maintain
from writetime.storage import layout, open_store
from writetime.storage.store import Store

Logs = Sequence[Sequence[Sequence[bytes]]]
"""Mutations by segment, by replica."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--segments", type=int, default=3, help=f"segments of {SEGMENT_BYTES >> 20} MiB a replica (default: 3)")
    parser.add_argument("--passes", type=int, default=3, help="measured passes, after the cold one (default: 3)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (default: 2)")
    parser.add_argument("--buckets", type=int, default=4, help="key buckets, which are state shards, of a table (default: 4)")
    parser.add_argument("--workers", type=int, help="workers of a standalone cluster with one core each, in place of --cores")
    parser.add_argument(
        "--scaling", action="store_true", help="also passes on one core and on two, pinned by taskset; or with one worker on one core"
    )
    parser.add_argument("--bare", action="store_true", help="the large batches only, without small ones and maintenance")
    parser.add_argument("--recorded", action="store_true", help="a small recorded workload, which needs no node: to try the benchmark")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return report(lambda: measure(options), show, as_json=options.json)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures as one document."""
    workload = recorded() if options.recorded else orders(options.segments, 0 if options.bare else 5)
    cores = options.workers or options.cores
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary, ExitStack() as services:
        folder = Path(temporary)
        config = config_of(folder, cores, options.buckets, quick=options.recorded, options=DEPLOYED if options.workers is None else {})
        if options.workers is not None:
            config = _on(services.enter_context(standalone.running(folder, run=folder / "run", workers=cores, installed=True)), config)
        kafka = services.enter_context(Kafka(folder / "kafka", port=0))
        spark = spark_session(config, "writetime bench-whole")
        try:
            runs = passes_of(spark, config, kafka, workload, 1 + options.passes, bare=options.bare)
            peak = {} if options.bare else {"peak_rss_mb": Pipeline.create(spark, config, kafka, "memory").peak_of(workload)}
        finally:
            spark.stop()
    figures = figures_of(runs, workload, cores) | peak
    if options.scaling and options.workers is not None:
        # A worker's Python and JVM run beside each other, and beside the driver: one worker would use both cores.
        alike = _alike(options.segments, options.passes, options.buckets, small=options.recorded)
        alone = _separate(["--workers", 1, *alike], _on_cores(1))
        figures["worker_scaling"] = statistics.median(alone) / figures["seconds"]
        figures["spread"]["seconds_of_one_worker"] = alone
    elif options.scaling:
        figures["core_scaling_1_to_2"] = statistics.median(scaling(options.segments, 1, options.buckets))
    return figures


def _on(found: standalone.Standalone, config: PipelineConfig) -> PipelineConfig:
    """The same pipeline on that cluster, its bucket and tables in the server."""
    os.environ.update(found.environment)
    spark, jars = found.spark, config.spark.conf["spark.jars"]
    submit = spark["submit"] | {"spark.jars": f"{jars},{spark['submit']['spark.jars']}"}
    conf = (
        config.spark.conf
        | submit
        | spark["conf"]
        | {"spark.master": found.cluster.master, "spark.cores.max": str(len(found.cluster.workers))}
    )
    assert config.catalog is not None
    return config.model_copy(
        update={
            "bucket": standalone.BUCKET,
            "catalog": config.catalog.model_copy(update=found.tables),
            "spark": config.spark.model_copy(update={"conf": conf}),
        }
    )


def scaling(segments: int, passes: int, buckets: int, *, small: bool = False) -> list[float]:
    """Time on one core against time on two, by pass: runs of their own on the first cores only."""
    one, two = (_pinned(cores, segments, passes, buckets, small=small) for cores in (1, 2))
    return [alone / both for alone, both in zip(one, two, strict=True)]


def _pinned(cores: int, segments: int, passes: int, buckets: int, *, small: bool) -> list[float]:
    """Seconds of each pass of a run on the first cores only."""
    return _separate(["--cores", cores, *_alike(segments, passes, buckets, small=small)], _on_cores(cores))


def _on_cores(cores: int) -> list[str]:
    """What to put before a command, so that it and all below it run on the first cores only."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    if len(allowed) < cores:
        raise ToolError(f"there is only {len(allowed)} core to run on, and {cores} are needed")
    return ["taskset", "-c", ",".join(map(str, allowed))]


def _alike(segments: int, passes: int, buckets: int, *, small: bool) -> list[str | int]:
    """Options of a run that is compared with another one by its large batches."""
    return ["--segments", segments, "--buckets", buckets, "--passes", passes, "--bare", "--json", *(["--recorded"] if small else [])]


def _separate(options: Sequence[str | int], before: Sequence[str] = ()) -> list[float]:
    """Seconds of each pass of a run in a process of its own."""
    run = [*before, sys.executable, "-m", "benchmarks.whole", *map(str, options)]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise ToolError(f"a run with {' '.join(map(str, options))} failed: exit code {done.returncode}")
    return list(json.loads(done.stdout.splitlines()[-1])["spread"]["seconds"])


def passes_of(spark: SparkSession, config: PipelineConfig, kafka: Kafka, workload: Workload, passes: int, *, bare: bool) -> list[Run]:
    """So many passes, each from an empty bucket and warehouse."""
    logs = workload.logs()
    runs = []
    for number in range(passes):
        pipeline = Pipeline.create(spark, config, kafka, f"{workload.table}-{number}")
        runs.append(pipeline.run(workload, logs, bare=bare))
        say(f"  {workload.table}, {number or 'first'}: {_sentence(runs[-1])}")
        pipeline.forget()
    return runs


@dataclass
class Cost:
    """Of a step: s by the clock, s of CPU, and the broker's CPU apart."""

    seconds: float
    cpu: float
    broker: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu, self.broker + other.broker)


Steps = dict[str, Cost]


@dataclass
class Run:
    """What a pass has cost, by step; the small batches' steps; the large one's MB and events."""

    steps: Steps = field(default_factory=dict)
    small: list[Steps] = field(default_factory=list)
    mb: float = 0.0
    events: int = 0

    @property
    def whole(self) -> Cost:
        return self.steps["ingest"] + self.steps["archive"] + self.steps["publish"]


class Pipeline:
    """A bucket and a warehouse that are empty at first, and the jobs that fill them."""

    def __init__(self, spark: SparkSession, config: PipelineConfig, kafka: Kafka) -> None:
        self.spark, self.config = spark, config
        self.store: Store = open_store(config.bucket)
        self.sealed: Sealed | None = None
        self._segment = 0
        assert kafka.service is not None
        self._meter = Meter({os.getpid(): Label("job", "job"), kafka.service.pid: Label("broker", "broker")})

    @classmethod
    def create(cls, spark: SparkSession, config: PipelineConfig, kafka: Kafka, name: str, **publishing: Any) -> Pipeline:
        """With a bucket and topics of its own: nothing that a worker knows of a bucket is of an earlier one.
        `publishing`: options of Kafka.
        """
        conf = config.spark.conf
        cores = int(conf.get("spark.cores.max") or conf["spark.master"].removeprefix("local[").removesuffix("]"))
        own = {"kafka": events_only(kafka, name, cores, **publishing), "bucket": f"{config.bucket}-{name}"}
        return cls(spark, config.model_copy(update=own), kafka)

    def run(self, workload: Workload, logs: Logs, *, bare: bool) -> Run:
        """The large batch; then, unless `bare`, the small ones and maintenance."""
        run = Run()
        run.mb = self.batch(logs, run.steps, workload.segment_bytes) / 1e6
        run.events = self.expect_events(workload.table)
        if bare:
            return run
        for few in workload.few:
            run.small.append({})
            self.batch([[few]] * REPLICAS, run.small[-1])
        self.expect_events(workload.table)
        self.maintain(run.steps)
        return run

    def peak_of(self, workload: Workload) -> float:
        """MB of memory that this process and those below it have at most during a pass, measured every other second. It is a
        pass of its own, since counting shared pages takes 0.1 s of CPU each time and stops the processes meanwhile."""
        seen = [0.0]

        def watch(over: threading.Event) -> None:
            while not over.wait(2.0):
                seen.append(sum(size.mb for size in self._meter.sizes("job", lambda _: "all").values()))

        with in_background(watch):
            self.run(workload, workload.logs(), bare=False)
        self.forget()
        return max(seen)

    def batch(self, logs: Logs, steps: Steps, segment_bytes: int = 4 * MEBIBYTE) -> int:
        """Ship, ingest, archive, publish; bytes of the segments."""
        manifest, size = self._ship(logs, segment_bytes)
        with self._timed(steps, "ingest"):
            self.sealed = ingest.run(self.config, manifest.number, self.spark)
        with self._timed(steps, "archive"):
            archive(self.store, CLUSTER, manifest.number)
        with self._timed(steps, "publish"):
            publish.run(self.config, session=self.spark)
        forget(self.spark)
        return size

    def publish_again(self, kafka: Kafka, name: str, steps: Steps, **publishing: Any) -> None:
        """All events to other topics, with other options of Kafka."""
        before = self.config
        self.config = Pipeline.create(self.spark, before, kafka, name, **publishing).config.model_copy(update={"bucket": before.bucket})
        try:
            with self._timed(steps, "publish"):
                publish.run(self.config, everything=True, session=self.spark)
        finally:
            self.config = before

    def maintain(self, steps: Steps) -> None:
        manifest = plan_maintain(self.store, CLUSTER, now=datetime.now(UTC))
        assert manifest is not None
        with self._timed(steps, "maintain"):
            ingest.run(self.config, manifest.number, self.spark)

    def forget(self) -> None:
        """Drop the tables and the bucket, for the next pass."""
        assert self.config.catalog is not None
        for (namespace,) in self.spark.sql(f"SHOW NAMESPACES IN {self.config.catalog.name}").collect():
            for row in self.spark.sql(f"SHOW TABLES IN {self.config.catalog.name}.{namespace}").collect():
                self.spark.sql(f"DROP TABLE {self.config.catalog.name}.{namespace}.{row.tableName} PURGE")
        self.store.discard([each.name for each in self.store.names()])

    def expect_events(self, table: str) -> int:
        """How many events the table has had; all of them must be in Kafka."""
        assert self.config.kafka is not None
        assert self.config.catalog is not None
        events = self.spark.table(f"{self.config.catalog.name}.{table.replace('.', '__changes.')}").count()
        if (there := committed(self.config.kafka, table)) != events or not events:
            raise ToolError(f"{there} of {events} events of {table} are in Kafka")
        return events

    def _ship(self, logs: Logs, segment_bytes: int) -> tuple[Manifest, int]:
        start = datetime.now(UTC)
        size = 0
        for at in range(max(map(len, logs))):
            self._segment += 1
            for number, log in enumerate(logs):
                if at < len(log):
                    node = layout.NodeName(CLUSTER, "dc1", str(uuid.UUID(int=number + 1)))
                    segment = encode_segment(self._segment, 7, log[at], per_section=PER_SECTION, size=segment_bytes)
                    sealed_at = start + timedelta(milliseconds=at)
                    name = layout.SegmentRef(node, layout.SegmentName(self._segment, 7)).incoming
                    self.store.put(name, segment, metadata={"sealed_at": sealed_at.isoformat()})
                    size += len(segment)
        manifest = plan_ingest(self.store, CLUSTER, now=datetime.now(UTC) + timedelta(seconds=1))
        assert manifest is not None
        return manifest, size

    @contextmanager
    def _timed(self, steps: Steps, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        with self._meter.running():
            yield
        used = self._meter.used
        steps[name] = Cost(time.perf_counter() - begun, used["job"], used["broker"])


# --- figures


def values_of(runs: Sequence[Run], cores: int) -> dict[str, list[float]]:
    """Figures of warm passes by key, a value a pass; of small batches, a value a batch."""
    found = {
        "whole_mb_s_per_core": [run.mb / run.whole.seconds / cores for run in runs],
        "whole_events_s_per_core": [run.events / run.whole.seconds / cores for run in runs],
        "publish_events_s_per_core": [run.events / run.steps["publish"].seconds / cores for run in runs],
        "small_batch_s": [seconds_of(steps) for run in runs for steps in run.small],
    }
    if all("maintain" in run.steps for run in runs):
        found["whole_mb_per_cpu_s"] = [run.mb / (run.whole.cpu + run.steps["maintain"].cpu) for run in runs]
        found["maintenance_cpu_share"] = [run.steps["maintain"].cpu / run.steps["ingest"].cpu for run in runs]
    return {key: values for key, values in found.items() if values}


def seconds_of(steps: Steps) -> float:
    """Of a small batch, from its plan to its last event in Kafka; archiving is no part of it."""
    return steps["ingest"].seconds + steps["publish"].seconds


def steps_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """By step the medians of seconds, CPU and the broker's CPU."""
    parts = ("seconds", "cpu", "broker")
    return {name: {part: statistics.median(getattr(run.steps[name], part) for run in runs) for part in parts} for name in runs[0].steps}


def figures_of(runs: Sequence[Run], workload: Workload, cores: int) -> dict[str, Any]:
    """The document of this benchmark: medians, and under `spread` the values."""
    warm = runs[1:]
    values = values_of(warm, cores)
    small = [steps for run in warm for steps in run.small]
    return {
        "table": workload.table,
        "bytes": round(warm[0].mb * 1e6),
        "events": warm[0].events,
        "cores": cores,
        "seconds": statistics.median(run.whole.seconds for run in warm),
        **{key: statistics.median(found) for key, found in values.items() if key != "small_batch_s"},
        "small_batch_s": {name: statistics.median(steps[name].seconds for steps in small) for name in (small[0] if small else ())},
        "cold": {name: vars(cost) for name, cost in runs[0].steps.items()},
        "steps": steps_of(warm),
        "spread": {"seconds": [run.whole.seconds for run in warm], **values},
    }


# --- for people


def _sentence(run: Run) -> str:
    steps = ", ".join(f"{name} {cost.seconds:.1f} s ({cost.cpu:.1f} s of CPU)" for name, cost in run.steps.items())
    small = "".join(f", {seconds_of(each):.1f}" for each in run.small)
    return f"{steps}; {run.events} events{f'; small batches{small[1:]} s' if small else ''}"


def show(figures: dict[str, Any]) -> None:
    say(f"{figures['bytes'] / 1e6:.0f} MB of {REPLICAS} replicas, {figures['events']} events, Spark on {figures['cores']} cores")
    table = Table(title="medians of the warm passes")
    for column in ("figure", "value", "at least"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        if isinstance(value, float):
            key = KEYS.get(name)
            table.add_row(name, f"{value:,.2f}", f"{key.least:,.1f}" if key and key.least is not None and not key.low else "")
    Console().print(table)
    table = Table(title="by step, s")
    for column in ("step", "clock", "CPU", "broker's CPU", "cold: clock"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for name, cost in figures["steps"].items():
        table.add_row(name, *(f"{cost[part]:.1f}" for part in ("seconds", "cpu", "broker")), f"{figures['cold'][name]['seconds']:.1f}")
    Console().print(table)
    if small := figures["small_batch_s"]:
        steps = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in small.items())
        say(f"{SMALL} rows: {steps}; {small['ingest'] + small['publish']:.2f} s to ingest and publish (goal: 3)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
