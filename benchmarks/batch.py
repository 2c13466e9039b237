"""A batch of three replicas' segments, without sinks: `make bench-batch`, or `python -m benchmarks.batch
[--json]`.

Strategy: the mutations of `data.py`, orders of a web shop that a real node has logged (about 1 KB each, 20
cells), are encoded into the segments of three replicas: the same bytes, in a different order per replica, as
writes arrive. They are put into a bucket and planned like shipped ones, and the ingest job runs the batch:
every stage up to the upsert of the state, including the files of the warehouse and the seal. The commits to the
warehouse are excluded; nothing is published. Each pass starts with an empty bucket; the first one only warms up Spark and its
workers.

MB/s are those of segment files of all replicas, by the clock, divided by Spark's cores. On a busy machine the
clock is unreliable, so MB per CPU second of this process, the JVM and Python workers are reported too.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.report import report
from spark_jobs import ingest
from spark_jobs.meter import Meter
from spark_jobs.session import spark_session
from tools import ROOT
from tools.console import say
from tools.errors import ToolError
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.segment import scan
from writetime.config.airflow import SparkConfig
from writetime.config.cluster import ClusterConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import CatalogConfig
from writetime.pipeline.documents import Manifest, Sealed, total
from writetime.pipeline.planner import plan_ingest
from writetime.storage import layout, open_store

MEBIBYTE = 1 << 20
CLUSTER = "bench"
REPLICAS = 3
SEGMENT_BYTES = 32 * MEBIBYTE
PER_SECTION = 1000
APART = 256
"""By how many places a mutation may stand earlier or later in one replica's log than in another's."""
GOAL = 30.0
SINKS = ("_commit_changes", "_commit_current")
"""Steps of the job that are left out."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--segments", type=int, default=3, help=f"segments of {SEGMENT_BYTES >> 20} MiB a replica (default: 3)")
    parser.add_argument("--passes", type=int, default=3, help="measured passes (default: 3)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (default: 2)")
    parser.add_argument("--buckets", type=int, default=4, help="key buckets, which are state shards, of a table (default: 4)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    return report(lambda: measure(options.segments, options.passes, options.cores, options.buckets), show, as_json=options.json)


def measure(segments: int, passes: int, cores: int, buckets: int) -> dict[str, Any]:
    """All figures as one document: rates in MB/s (10^6 bytes of file), times in s."""
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        folder = Path(temporary)
        logs = replicas(segments)
        spark = spark_session(config_of(folder, cores, buckets), "writetime bench-batch")
        try:
            runs = [_pass(spark, folder / f"pass-{number}", logs, cores, buckets) for number in range(1 + passes)]
        finally:
            spark.stop()
    size = sum(len(segment) for log in logs for segment in log)
    best = min(runs[1:], key=lambda run: float(run["seconds"]))
    least = min(float(run["cpu"]) for run in runs[1:])
    return {
        "bytes": size,
        "segments": segments * len(logs),
        "cores": cores,
        "mb_per_second": size / 1e6 / best["seconds"],
        "mb_per_second_and_core": size / 1e6 / best["seconds"] / cores,
        "mb_per_second_of_cpu": size / 1e6 / least,
        "passes": [size / 1e6 / run["seconds"] / cores for run in runs[1:]],
        **best,
    }


# --- segments


def replicas(segments: int, count: int = REPLICAS) -> list[list[bytes]]:
    """The segments of each of `count` replicas, in log order."""
    bodies = bodies_of(segments)
    return [[encode_segment(at + 1, 7, part, per_section=PER_SECTION, size=SEGMENT_BYTES) for at, part in enumerate(each)]
            for each in (log_of(bodies, number) for number in range(count))]  # fmt: skip


def bodies_of(segments: int) -> list[bytes]:
    """Mutations enough for so many segments, with a little room left in each for another order."""
    found: list[bytes] = []
    room = segments * usable(SEGMENT_BYTES)
    for path in data.segments():
        scanned = scan(path.read_bytes(), name=path.name)
        for frame in scanned.frames:
            room -= frame.body_length + 12
            if room < 0:
                return found
            found.append(scanned.body(frame))
    raise ToolError(f"{data.FOLDER} has too few segments: python -m benchmarks.data --anew --segments {segments + 1}")


def usable(segment_bytes: int) -> int:
    """How many bytes of frames are planned for a segment of that size."""
    return segment_bytes - segment_bytes // 32


def log_of(bodies: list[bytes], seed: int, segment_bytes: int = SEGMENT_BYTES) -> list[list[bytes]]:
    """The mutations in a replica's own order, cut into segments' worth of bytes."""
    draw = random.Random(seed)
    order = sorted(range(len(bodies)), key=[at + draw.random() * APART for at in range(len(bodies))].__getitem__)
    parts: list[list[bytes]] = [[]]
    size = 0
    for at in order:
        size += len(bodies[at]) + 12
        if size > segment_bytes - segment_bytes // 64:
            parts.append([])
            size = len(bodies[at]) + 12
        parts[-1].append(bodies[at])
    return parts


def ship(url: str, logs: list[list[bytes]]) -> Manifest:
    """Put the logs, each of a node of its own, into a bucket, and plan a batch of them."""
    store = open_store(url)
    start = datetime.now(UTC)
    for number, log in enumerate(logs):
        node = layout.NodeName(CLUSTER, "dc1", str(uuid.UUID(int=number + 1)))
        for at, segment in enumerate(log):
            sealed_at = start + timedelta(minutes=at, seconds=number)
            name = layout.SegmentRef(node, layout.SegmentName(at + 1, 7)).incoming
            store.put(name, segment, metadata={"sealed_at": sealed_at.isoformat()})
    manifest = plan_ingest(store, CLUSTER, now=datetime.now(UTC))
    assert manifest is not None
    return manifest


# --- the job


QUICK_START = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m",
    "spark.sql.codegen.wholeStage": "false",
}
"""Of a JVM that only tries a benchmark: compiling costs it more than it saves."""
DEPLOYED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC",
    "spark.shuffle.compress": "false",
}
"""As Airflow starts Spark for a batch of up to 1 GiB (`QUICK_START` in plugins/writetime_operators.py)."""


def config_of(
    folder: Path, cores: int, buckets: int, *, quick: bool = False, options: Mapping[str, str] = MappingProxyType({})
) -> PipelineConfig:
    """A pipeline whose bucket, catalog and warehouse lie in the folder. `options`: of Spark, unless it is a quick run."""
    jars = ",".join(str(jar) for jar in sorted((ROOT / "jars" / "spark").glob("*.jar")))
    conf = {
        "spark.jars": jars,
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.local.dir": str(folder),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        **(QUICK_START if quick else options),
    }
    return PipelineConfig(
        pipeline="bench",
        cluster=ClusterConfig(name=CLUSTER, datacenters=["dc1"]),
        bucket=str(folder / "bucket"),
        catalog=CatalogConfig(uri=f"jdbc:sqlite:{folder / 'catalog.db'}", warehouse=str(folder / "warehouse")),
        spark=SparkConfig(conf={**conf, "spark.sql.shuffle.partitions": str(buckets)}),
        buckets=buckets,
    )


def _pass(spark: SparkSession, folder: Path, logs: list[list[bytes]], cores: int, buckets: int) -> dict[str, Any]:
    config = config_of(folder, cores, buckets)
    manifest = ship(config.bucket, logs)
    clock = Clock(spark)
    batch = timed_job(clock, but=SINKS)(config, open_store(config.bucket), spark, manifest, None, meter_of(spark))
    begun, begun_cpu = time.perf_counter(), cpu_seconds()
    sealed = batch.run()
    seconds, cpu = time.perf_counter() - begun, cpu_seconds() - begun_cpu
    print(f"  {seconds:.1f} s, {cpu:.1f} s of CPU", file=sys.stderr)
    _check(sealed, logs)
    forget(spark)
    figures = {
        "seconds": seconds,
        "cpu": cpu,
        "steps": clock.steps,
        "stages": clock.stages(),
        "accounting": total(sealed.accounting).model_dump(),
    }
    shutil.rmtree(folder)
    return figures


def forget(spark: SparkSession) -> None:
    """Free what a batch has cached, as the end of its session would."""
    spark.catalog.clearCache()
    for rdd in spark.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist()


def _check(sealed: Sealed, logs: list[list[bytes]]) -> None:
    """Verify the measured work: every mutation was read and merged once."""
    account = next(account for account in sealed.accounting if account.table == f"{data.KEYSPACE}.orders")
    folded = account.applied + account.superseded
    if account.quarantined or account.duplicate != (len(logs) - 1) * folded or not account.events:
        raise ToolError(f"unexpected account of the batch: {account}")


def cpu_seconds(but: frozenset[int] = frozenset(), *, root: int | None = None) -> float:
    """What this process, or `root`, and all below it have used, those included that have ended, but for the
    processes `but` and all below these.
    """
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid() if root is None else root}
    while more := {child for child, parent in parents.items() if parent in family} - family - but:
        family |= more
    return sum(used[process] for process in family)


def own_cpu_seconds(process: int) -> float:
    """CPU seconds of the process without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Clock:
    """Seconds of each step of the job, and what Spark says of the stages that ran meanwhile."""

    spark: SparkSession
    steps: dict[str, float] = field(default_factory=dict)
    current: str | None = None
    seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.seen = {stage.stageId() for stage in self._stages()}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts as that of a step unless it is called by one."""

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if self.current is not None:
                return function(*arguments, **options)
            self.current = name
            self.spark.sparkContext.setJobDescription(name)
            begun = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.steps[name] = self.steps.get(name, 0.0) + time.perf_counter() - begun
                self.current = None

        return call

    def stages(self) -> list[dict[str, Any]]:
        """Stages by what they did: the step that asked, before or behind a shuffle, seconds of tasks and MB
        that were shuffled.
        """
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for stage in self._stages():
            if stage.stageId() in self.seen or stage.executorRunTime() == 0:
                continue
            step = stage.description().get() if stage.description().isDefined() else ""
            place = ("reads" if stage.shuffleReadBytes() else "") + (" writes" if stage.shuffleWriteBytes() else "")
            sums = found.setdefault((step, place), {"step": step, "shuffle": place.strip(), "stages": 0, "seconds": 0.0, "shuffled": 0.0})
            sums["stages"] += 1
            sums["seconds"] += stage.executorRunTime() / 1e3
            sums["shuffled"] += (stage.shuffleReadBytes() + stage.shuffleWriteBytes()) / 1e6
        return sorted(found.values(), key=lambda one: -float(one["seconds"]))

    def _stages(self) -> Iterator[Any]:
        context: Any = self.spark.sparkContext
        nothing = context._gateway.new_array(context._jvm.double, 0)
        listed = context._jsc.sc().statusStore().stageList(None, False, False, nothing, context._jvm.java.util.ArrayList())
        return (listed.apply(at) for at in range(listed.size()))


def meter_of(spark: SparkSession) -> Meter:
    """What a job counts its stages with."""
    return Meter(spark.sparkContext, whole=False)


def timed_job(clock: Clock, *, but: Sequence[str] = ()) -> type[ingest.Batch]:
    """The job, every step timed; without some of them."""
    steps = {
        name: clock.timed(name.strip("_").replace("_", " "), step)
        for name, step in vars(ingest.Batch).items()
        if name.startswith("_") and not name.startswith("__") and callable(step)
    }
    nothing = {name: lambda *_, **__: None for name in but}
    return type("Measured", (ingest.Batch,), steps | nothing)


# --- for people


def show(figures: dict[str, Any]) -> None:
    size = figures["bytes"] / 1e6
    spark = f"Spark local[{figures['cores']}]"
    say(f"{figures['segments']} segments of {REPLICAS} replicas, {size:.0f} MB, {spark}, best pass {figures['seconds']:.1f} s")
    say(f"{figures['mb_per_second']:.1f} MB/s, {figures['mb_per_second_and_core']:.1f} MB/s a core (goal: {GOAL:.0f})")
    say(f"{figures['mb_per_second_of_cpu']:.1f} MB per second of CPU, all processes together")
    say("passes, MB/s a core: " + ", ".join(f"{rate:.1f}" for rate in figures["passes"]))
    account = figures["accounting"]
    say("partition updates: " + ", ".join(f"{name} {count}" for name, count in account.items() if name != "table" and count))
    table = Table(title="by the clock of the driver")
    table.add_column("step")
    table.add_column("s", justify="right")
    for step, seconds in figures["steps"].items():
        if seconds >= 0.05:
            table.add_row(step, f"{seconds:.2f}")
    Console().print(table)
    table = Table(title="seconds of tasks")
    for column in ("asked by", "shuffle", "stages", "s", "MB shuffled"):
        table.add_column(column, justify="left" if column in ("asked by", "shuffle") else "right")
    for one in figures["stages"]:
        if one["seconds"] >= 0.05:
            table.add_row(one["step"], one["shuffle"], str(one["stages"]), f"{one['seconds']:.2f}", f"{one['shuffled']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
