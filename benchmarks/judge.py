"""The judge: every figure that a goal is set for, in one run: `make bench`, or `python -m benchmarks.judge [--quick]
[--only PART …] [--json]`.

Strategy: one part after the other, each with figures of its own (`figures.py`); those with Spark share a session
and a broker, as a long-lived session of the product does, and the others run when these have ended. A part that
fails leaves its figures out, with the reason, and the others go on. The document goes to build/bench.json, and as a
page to build/bench.html. `--quick` measures a small recorded workload by the same code: its figures mean nothing,
it shows that the judge works.

The first run starts nodes of Cassandra for the segments (`data.py`, `workloads.py`), which are kept.
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
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from pyspark.sql import SparkSession
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Grid

from benchmarks import growth, judge_page, whole
from benchmarks.batch import CLUSTER, DEPLOYED, REPLICAS, config_of
from benchmarks.figures import KEYS, OTHER_TABLES, Found, Key, Peer, text_of
from benchmarks.report import report
from benchmarks.workloads import Workload, orders, other, recorded
from spark_jobs import ingest
from spark_jobs.session import spark_session
from spark_jobs.sinks.compaction import COMMITS, Compaction
from tests.cassandra.schema.examples import create_keyspace, create_table
from tools import ROOT
from tools.console import say
from tools.errors import ToolError
from tools.services.kafka import Kafka
from tools.services.registry import Registry
from writetime import __version__
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import TABLES
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.planner import plan_maintain

FOLDER = ROOT / "build"


@dataclass(frozen=True)
class Size:
    """How much is measured: segments of a replica, passes of a part, rows of tables, seconds of a part."""

    segments: int = 3
    passes: int = 5
    other_passes: int = 2
    small_batches: int = 5
    small: int = 1000
    tables: int = 20
    rows: tuple[int, int] = (1_000_000, 10_000_000)
    changed: int = 100_000
    growth_passes: int = 5
    commits: int = 1000
    commit_seconds: float = 400.0
    reads: int = 5
    decode_passes: int = 12
    scaling_segments: int = 3
    scaling_passes: int = 4
    avro_passes: int = 3
    shipping_seconds: float = 30.0
    shipping_passes: int = 3
    quick: bool = False

    def orders(self, small_batches: int | None = None) -> Workload:
        if self.quick:
            return recorded(self.small, self.small_batches)
        return orders(self.segments, self.small_batches if small_batches is None else small_batches)

    def table(self, name: str) -> Workload:
        """One of the other tables; a quick run has the recorded one in its place."""
        if not self.quick:
            return other(name)
        found = recorded(self.small, 1)
        return replace(found, bodies=found.bodies[self.small :], few=[found.bodies[: self.small]])


QUICK = Size(
    passes=1, other_passes=1, small_batches=1, small=100, tables=3, rows=(500, 5000), changed=100, growth_passes=1, commits=3, reads=1,
    decode_passes=2, scaling_passes=1, avro_passes=1, shipping_seconds=6.0, shipping_passes=1, quick=True,
)  # fmt: skip


@dataclass
class Bench:
    """A run of the judge: what parts share, and what they have found."""

    size: Size
    cores: int
    folder: Path
    found: Found

    def own_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder


@dataclass
class Session(Bench):
    """With Spark and a broker."""

    spark: SparkSession
    config: PipelineConfig
    kafka: Kafka

    @property
    def catalog(self) -> str:
        assert self.config.catalog is not None
        return self.config.catalog.name

    def pipeline(self, name: str) -> whole.Pipeline:
        return whole.Pipeline.create(self.spark, self.config, self.kafka, name)

    def read(self, table: str, columns: str) -> float:
        """Median of s to read those columns of all rows, as a reader that has just come."""
        name = f"{self.catalog}.{table}"
        times = []
        for _ in range(self.size.reads):
            self.spark.catalog.refreshTable(name)
            begun = time.perf_counter()
            self.spark.sql(f"SELECT {', '.join(f'max({column})' for column in columns.split())} FROM {name}").collect()
            times.append(time.perf_counter() - begun)
        return statistics.median(times)


@dataclass(frozen=True)
class Part:
    """Measures the keys, or leaves them out by an error."""

    name: str
    keys: tuple[str, ...]
    run: Callable[[Any], None]


# --- parts with Spark


def whole_path(bench: Session) -> None:
    workload = bench.size.orders()
    runs = whole.passes_of(bench.spark, bench.config, bench.kafka, workload, 1 + bench.size.passes, bare=False)
    bench.found.values |= whole.values_of(runs[1:], bench.cores)
    bench.found.steps = whole.steps_of(runs[1:])
    bench.found.values["peak_rss_mb"] = [bench.pipeline("memory").peak_of(workload)]


def other_table(bench: Session, name: str) -> None:
    """The large batch of each pass, after a small one that creates the table."""
    workload = bench.size.table(name)
    logs, rates = workload.logs(), []
    for number in range(bench.size.other_passes):
        pipeline = bench.pipeline(f"{name}-{number}")
        pipeline.batch([[few] for few in workload.few * REPLICAS], {}, workload.segment_bytes)
        run = whole.Run()
        run.mb = pipeline.batch(logs, run.steps, workload.segment_bytes) / 1e6
        run.events = pipeline.expect_events(workload.table)
        pipeline.forget()
        rates.append(run.mb / run.whole.seconds / bench.cores)
        say(f"  {name}: {run.mb:.0f} MB, {run.events} events, {rates[-1]:.2f} MB/s a core")
    bench.found.values[f"whole_mb_s_per_core.{name}"] = rates


def avro(bench: Session) -> None:
    """The same events as JSON and as Avro, in turns."""
    pipeline = bench.pipeline("formats")
    workload = bench.size.orders(0)
    pipeline.batch(workload.logs()[:1], {}, workload.segment_bytes)
    with Registry(bench.own_folder("registry")) as registry:
        formats = {"json": {"format": "json"}, "avro": {"format": "avro", "schema.registry.url": registry.url}}
        ratios = []
        for number in range(1 + bench.size.avro_passes):
            steps: dict[str, whole.Steps] = {name: {} for name in formats}
            for name, options in formats.items():
                pipeline.publish_again(bench.kafka, f"{name}-{number}", steps[name], **options)
            ratios.append(steps["avro"]["publish"].cpu / steps["json"]["publish"].cpu)
    pipeline.forget()
    bench.found.values["avro_vs_json"] = ratios[1:]


def many_tables(bench: Session) -> None:
    """The rows of a small batch over tables of three columns."""
    tables = [growth.table_of(number) for number in range(bench.size.tables)]
    pipeline = bench.pipeline("tables")
    system = Schema(tables=TABLES)
    ddl = [create_keyspace("bench", growth.WRITTEN_AT - 100), *(create_table(table, growth.WRITTEN_AT - 99) for table in tables)]
    each = bench.size.small // bench.size.tables
    found = []
    for number in range(1 + max(2, bench.size.small_batches)):
        rows = growth.Rows.of(np.arange(number * each // 2, number * each // 2 + each), number)
        bodies = [body for table in tables for body in rows.mutations(table, growth.WRITTEN_AT + number)]
        steps: whole.Steps = {}
        pipeline.batch([[[encode_mutation(change, system) for change in ddl] + bodies if number == 0 else bodies]] * REPLICAS, steps)
        found.append(whole.seconds_of(steps))
    pipeline.forget()
    bench.found.values["small_batch_20_tables_s"] = found[1:]


def table_sizes(bench: Session) -> None:
    """Batches against two sizes of a table; then many small batches on the smaller one."""
    own = bench.config.model_copy(update={"bucket": f"{bench.config.bucket}-growth"})
    filled = growth.Bench.create(bench.spark, own, bench.size.rows)
    passes = growth.passes_of(filled, bench.size.rows, bench.size.changed, bench.size.growth_passes)
    pairs = list(zip(*passes.values(), strict=True))
    commit = next(name for name in pairs[0][0]["steps"] if "current" in name)
    bench.found.values["batch_time_10x_table"] = [large["seconds"] / small["seconds"] for small, large in pairs]
    bench.found.values["current_commit_time_10x_table"] = [large["steps"][commit] / small["steps"][commit] for small, large in pairs]
    try:
        _many_batches(bench, filled)
    finally:
        whole.Pipeline(bench.spark, own, bench.kafka).forget()


def _many_batches(bench: Session, filled: growth.Bench) -> None:
    """How much longer it takes to read a table after many batches than when Iceberg has rewritten all of it. A session's
    compaction runs between them; the table is read when the next one is near.
    """
    key, rows = "read_after_1000_batches_vs_compacted", bench.size.rows[0]
    table = growth.table_of(rows)
    changed = max(2, bench.size.changed // 100)
    compaction = Compaction(filled.config, filled.store, bench.spark)
    deadline, number, reads = time.monotonic() + bench.size.commit_seconds, 0, []
    while number < bench.size.commits and time.monotonic() < deadline:
        number += 1
        filled.batch(rows, changed, 100 + number, check=False)
        due = compaction.due(filled.sealed)
        if due or number == bench.size.commits or number % COMMITS == COMMITS - 1:
            reads.append(bench.read(table.full_name, "id note amount"))
        compaction.run(filled.sealed, due)
    reads.append(bench.read(table.full_name, "id note amount"))
    manifest = plan_maintain(filled.store, CLUSTER, now=datetime.now(UTC))
    assert manifest is not None
    ingest.run(filled.config, manifest.number, bench.spark)
    maintained = bench.read(table.full_name, "id note amount")
    # Maintenance leaves a few files of each size.
    everything = "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
    bench.spark.sql(f"CALL {bench.catalog}.system.rewrite_data_files(table => '{table.full_name}', {everything})").collect()
    compacted = bench.read(table.full_name, "id note amount")
    bench.found.values[key] = [max(reads) / compacted]
    over = "" if number == bench.size.commits else f"; {bench.size.commit_seconds:.0f} s were over"
    bench.found.notes[key] = (
        f"{number} batches of {changed} rows, {rows:,} rows at first; the slowest of {len(reads)} reads; "
        f"after maintenance {maintained / compacted:.2f}{over}"
    )


# --- parts of their own


def decode(bench: Bench) -> None:
    given = ["--folder", str(_recorded_segments(bench))] if bench.size.quick else []
    figures = _run("benchmarks.decode", "--passes", str(bench.size.decode_passes), "--speed", *given)
    bench.found.values["decode_vs_cassandra"] = figures["ratios"]
    bench.found.values["decode_read_vs_cassandra"] = figures["ratios copied"]
    bench.found.values["decode_v9_vs_v8"] = figures["versions"]
    bench.found.values["cold_start_s"] = figures["first calls apart"]
    java = figures["java"]
    bench.found.peers.append(
        Peer(
            f"Cassandra {figures['cassandra']} CommitLogReader",
            "iterates over all cells of the segments and counts them, on one core",
            "keep values; everything after decoding: replicas, merge, tables, events, state",
            {name: java[name] for name in ("mb_per_second", "mutations_per_second", "cells_per_second")},
        )
    )


def peers_in_spark(bench: Bench) -> None:
    given = ["--rows", str(bench.size.small)] if bench.size.quick else ["--segments", str(bench.size.segments)]
    figures = _run("benchmarks.spark_peers", "--cores", str(bench.cores), "--passes", str(bench.size.other_passes), *given)
    bench.found.peers += [Peer(**peer) for peer in figures]


def _recorded_segments(bench: Bench) -> Path:
    from proof.recording.recording import Recording

    recording = Recording.open()
    return recording.stage(bench.own_folder("recording"))[recording.nodes[0].host_id]


def scaling(bench: Bench) -> None:
    size = bench.size
    bench.found.values["core_scaling_1_to_2"] = whole.scaling(size.scaling_segments, size.scaling_passes, 4, small=size.quick)


def shipper(bench: Bench) -> None:
    size = bench.size
    given = ["--seconds", str(size.shipping_seconds), "--passes", str(size.shipping_passes), *(["--recorded"] if size.quick else [])]
    bench.found.values["shipper_cpu_share_10mb_s"] = _run("benchmarks.shipping", *given)["shares"]
    bench.found.notes["shipper_cpu_share_10mb_s"] = "to a folder; the tail is on, the node syncs every second"


def debezium(bench: Bench) -> None:
    size = bench.size
    if size.quick:
        raise ToolError("--quick starts no node")
    found = _run("benchmarks.debezium", "--segments", str(size.segments), "--cores", str(bench.cores))["peers"]
    bench.found.peers += [Peer(**peer) for peer in found]
    unique = found[-1]["figures"]["unique_events_s_per_core"]
    ours = bench.found.values.get("whole_events_s_per_core")
    if ours is None:
        raise ToolError("the part `whole` has no figure to compare with")
    bench.found.values["events_vs_debezium"] = [rate / unique for rate in ours]


def _run(module: str, *arguments: str) -> Any:
    """The document of a benchmark that runs in a process of its own."""
    command = [sys.executable, "-m", module, *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise ToolError(f"{' '.join(command[2:])} ended with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


WITH_SPARK = (
    Part(
        "whole",
        (
            *("whole_mb_s_per_core", "whole_mb_per_cpu_s", "whole_events_s_per_core", "publish_events_s_per_core", "small_batch_s"),
            *("maintenance_cpu_share", "peak_rss_mb"),
        ),
        whole_path,
    ),
    *(Part(name, (f"whole_mb_s_per_core.{name}",), partial(other_table, name=name)) for name in OTHER_TABLES),
    Part("tables", ("small_batch_20_tables_s",), many_tables),
    Part("avro", ("avro_vs_json",), avro),
    Part("growth", ("batch_time_10x_table", "current_commit_time_10x_table", "read_after_1000_batches_vs_compacted"), table_sizes),
)
ALONE = (
    Part("spark-peers", (), peers_in_spark),
    Part("decode", ("decode_vs_cassandra", "decode_read_vs_cassandra", "decode_v9_vs_v8", "cold_start_s"), decode),
    Part("scaling", ("core_scaling_1_to_2",), scaling),
    Part("shipper", ("shipper_cpu_share_10mb_s",), shipper),
    Part("debezium", ("events_vs_debezium",), debezium),
)
PARTS = tuple(part.name for part in (*WITH_SPARK, *ALONE))


# --- a run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small recorded workload, to try the judge: its figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", default=PARTS, help=f"parts to run: {', '.join(PARTS)}")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (default: 2)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of bench.json and bench.html (default: build)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return report(lambda: run(options), partial(show, out=options.out), as_json=options.json)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts; the document, which is written to `options.out` after each of them."""
    begun = time.monotonic()
    found = Found()
    for part in (*WITH_SPARK, *ALONE):
        found.left_out |= dict.fromkeys(part.keys, "not measured yet" if part.name in options.only else "not asked for (--only)")
    options.out.mkdir(exist_ok=True)

    def write() -> dict[str, Any]:
        document = found.document(_about(options, time.monotonic() - begun))
        (options.out / "bench.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (options.out / "bench.html").write_text(judge_page.page(document), encoding="utf-8")
        return document

    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        bench = Bench(QUICK if options.quick else Size(), options.cores, Path(temporary), found)
        with_spark = [part for part in WITH_SPARK if part.name in options.only]
        if with_spark:
            with session_of(bench) as session:
                _run_parts(session, with_spark, write)
        _run_parts(bench, [part for part in ALONE if part.name in options.only], write)
    return write()


@contextmanager
def session_of(bench: Bench, buckets: int = 4) -> Iterator[Session]:
    folder = bench.own_folder("spark")
    config = config_of(folder, bench.cores, buckets, quick=bench.size.quick, options=DEPLOYED)
    with Kafka(folder / "kafka", port=0) as kafka:
        spark = spark_session(config, "writetime bench")
        try:
            yield Session(bench.size, bench.cores, bench.folder, bench.found, spark, config, kafka)
        finally:
            spark.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _run_parts(bench: Bench, parts: Sequence[Part], write: Callable[[], object]) -> None:
    for part in parts:
        begun = time.monotonic()
        say(f"▸ {part.name} …")
        try:
            part.run(bench)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are measured
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            bench.found.left_out |= dict.fromkeys([key for key in part.keys if key not in bench.found.values], reason)
            say(f"✗ {part.name}: {reason}")
        else:
            bench.found.left_out |= dict.fromkeys(
                [key for key in part.keys if key not in bench.found.values], "the part did not measure it"
            )
            say(f"✓ {part.name}: {time.monotonic() - begun:.0f} s")
        write()


def _about(options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    memory = next((int(line.split()[1]) // 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "version": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "parts": list(options.only),
        "spark_cores": options.cores,
        "machine": {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_mb": memory},
        "load": os.getloadavg()[2],
        "seconds": round(seconds),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


# --- for people


def show(document: dict[str, Any], *, out: Path) -> None:
    say("medians" + (" of a quick run: they mean nothing" if document["about"]["quick"] else ""))
    right = ("median", "spread", "passes", "at least", "aim")
    grid = Grid(box=SIMPLE, pad_edge=False)
    for column in ("figure", "median", "spread", "passes", "unit", "at least", "aim", ""):
        grid.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for name, key in KEYS.items():
        if name in document:
            grid.add_row(*_row(name, key, document[name]))
    # Names are whole in a log, too.
    Console(width=None if sys.stdout.isatty() else 140).print(grid)
    for name, reason in document["left_out"].items():
        say(f"left out: {name}: {reason}")
    if below := document["below_half_of_orders"]:
        say(f"below half of what orders reach: {', '.join(below)}")
    for peer in document["peers"]:
        say(f"{peer['name']}: " + ", ".join(f"{name} {text_of(value)}" for name, value in peer["figures"].items()))
        say(f"  does: {peer['does']}; does not: {peer['does_not']}")
    say(f"{out / 'bench.json'}, {out / 'bench.html'}; {document['about']['seconds']} s")


def _row(name: str, key: Key, figure: dict[str, Any]) -> tuple[str, ...]:
    spread = " to ".join(map(text_of, figure["spread"]))
    goals = (f"≤ {text_of(goal)}" if key.low and goal is not None else text_of(goal) for goal in (key.least, key.aim))
    verdict = {True: "reached", False: "missed", None: ""}[figure["reached"]]
    return (name, text_of(figure["median"]), spread, str(figure["passes"]), key.unit, *goals, verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
