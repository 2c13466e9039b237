"""What many small commits make of a table of changes and a table of current rows: `python -m benchmarks.commits
[--commits 50 150 300] [--changes 20] [--rows 100000] [--writes copy-on-write] [--compact 100]`.

Strategy: a table of current rows gets its first rows in bulk. Then batches of a few changes are committed as
the ingest job does, half of them to existing rows, half to new ones. At each of the given numbers of commits
the files, manifests and snapshots are counted, and three reads are measured: a key and everything of current
rows, and everything of changes. Figures are CPU seconds of the JVM, which are more reliable than the clock on a
busy machine. At the end comes a maintenance, and the same once more. With `--compact`, the tables are
compacted between batches, as in a session.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.warehouse import cpu_seconds_of_jvm
from spark_jobs.session import spark_session
from spark_jobs.sinks import compaction
from spark_jobs.sinks.compaction import compact_if_due
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.table_maintenance import tidy
from spark_jobs.stages.event_pages import PAGES
from tests.spark_jobs.conf import spark_conf
from tests.spark_jobs.examples import folded, frame, insert, of_kind, paged, schema_of, table
from tools.console import say
from writetime.config.airflow import SparkConfig
from writetime.config.cluster import ClusterConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import CatalogConfig, WarehouseConfig

COLUMNS = [f"c{number}" for number in range(5)]
SALES = table("sales", 1, {"id": "int", "line": "int", **dict.fromkeys(COLUMNS, "text")}, clustering=1)
SCHEMA = schema_of(SALES)
LAST = 20
"""Commits of which the median is given."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--commits", type=int, nargs="+", default=[50, 150, 300], help="after how many commits to look")
    parser.add_argument("--changes", type=int, default=20, help="changes of a batch")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the table from the start")
    parser.add_argument("--writes", choices=("merge-on-read", "copy-on-write"), default="merge-on-read")
    parser.add_argument("--compact", type=int, default=0, help="compact after so many commits, as a session does after 40")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench.create(Path(folder), WarehouseConfig(writes=options.writes), options.rows, options.changes)
        bench.compact_after = compaction.COMMITS = options.compact
        for commits in sorted(options.commits):
            while bench.commits < commits:
                bench.commit()
            bench.look(f"{commits} commits")
        seconds = cpu_seconds_of_jvm(bench.spark, lambda: tidy(bench.warehouse, [SALES], now=datetime.now(UTC)))
        bench.look(f"maintenance, {seconds:.1f} s")
        for _ in range(LAST):
            bench.commit()
        bench.look(f"{LAST} more commits")
        bench.spark.stop()
    Console(width=200).print(bench.grid)
    return 0


@dataclass
class Bench:
    spark: SparkSession
    warehouse: Warehouse
    folder: Path
    rows: int
    changes: int
    commits: int = 0
    until_compaction: int = 0
    compact_after: int = 0
    """0: never."""
    times: dict[str, list[float]] = field(default_factory=lambda: {"changes": [], "current": []})
    grid: Grid = field(default_factory=lambda: Grid("after", "table", *FIGURES))

    @classmethod
    def create(cls, folder: Path, layout: WarehouseConfig, rows: int, changes: int) -> Bench:
        spark = _session(folder)
        bench = cls(spark, Warehouse(spark, "lake", layout), folder, rows, changes)
        # Makes both tables.
        bench.commit()
        values = [F.md5(F.concat_ws("/", F.col("id").cast("string"), F.lit(name))).alias(name) for name in COLUMNS]
        times = F.map_from_arrays(F.array(*map(F.lit, COLUMNS)), F.array(*(F.lit(1).cast("bigint") for _ in COLUMNS)))
        none = F.map_from_arrays(F.array().cast("array<string>"), F.array().cast("array<bigint>"))
        ids = spark.range(1_000_000, 1_000_000 + rows).select(F.col("id").cast("int").alias("id"), F.lit(1).alias("line"))
        filled = ids.select("id", "line", *values, times.alias("_writetime"), none.alias("_expires_at"))
        filled.coalesce(1).writeTo(CURRENT).append()
        bench.commits, bench.times = 0, {"changes": [], "current": []}
        return bench

    def commit(self) -> None:
        """One batch to both tables."""
        self.commits += 1
        batch = self.commits + (1 if self.times["changes"] else 0)
        found = self._events(batch)
        self._timed("changes", lambda: self.warehouse.write_changes(SALES, SCHEMA, found, batch))
        self._timed("current", lambda: self.warehouse.merge_current(SALES, SCHEMA, found, batch))
        self.until_compaction -= 1
        if self.compact_after and self.until_compaction <= 0:
            seconds = cpu_seconds_of_jvm(self.spark, self._compact)
            if self.until_compaction == self.compact_after:
                say(f"compaction after {self.commits} commits: {seconds:.1f} s")

    def _compact(self) -> None:
        self.until_compaction = compact_if_due(self.warehouse, SALES)

    def _events(self, batch: int) -> DataFrame:
        chance = random.Random(batch)
        old = [1_000_000 + chance.randrange(self.rows) for _ in range(self.changes // 2)]
        new = [2_000_000 + batch * self.changes + at for at in range(self.changes - len(old))]
        values = {name: f"{name} of {batch} {chance.random()}" for name in COLUMNS}
        mutations = [insert(SALES, key, values, 1, schema=SCHEMA) for key in {*old, *new}]
        pages = paged(of_kind(folded([frame(each, schema=SCHEMA) for each in mutations], SCHEMA), "event"), SCHEMA)
        return self.spark.createDataFrame(pa.Table.from_pylist(pages, schema=PAGES), schema=from_arrow_schema(PAGES))

    def _timed(self, what: str, run: Callable[[], Any]) -> None:
        self.times[what].append(cpu_seconds_of_jvm(self.spark, run))

    def look(self, title: str) -> None:
        """Add the rows of both tables to the grid."""
        key = f"SELECT * FROM {CURRENT} WHERE id = {1_000_000 + self.rows // 2}"
        by_key = f"{self._read(key):.2f}"
        for name, what, after in ((CHANGES, "changes", "after."), (CURRENT, "current", "")):
            everything = self._read(f"SELECT {', '.join(f'max({after}{column})' for column in COLUMNS)} FROM {name}")
            row = [title, what, *self._counts(name), self._commit(what), by_key if what == "current" else "", f"{everything:.2f}"]
            say("  ".join(row))
            self.grid.add_row(*row)

    def _commit(self, what: str) -> str:
        return f"{statistics.median(self.times[what][-LAST:]):.2f}"

    def _read(self, query: str) -> float:
        times = []
        for _ in range(3):
            # As a reader that has just come.
            self.spark.catalog.refreshTable(query.split(" FROM ")[1].split(" ")[0])
            times.append(cpu_seconds_of_jvm(self.spark, self.spark.sql(query).collect))
        return min(times)

    def _counts(self, name: str) -> list[str]:
        held = IcebergTable(self.spark, name)
        held.refresh()
        location = Path(held._table.operations().current().metadataFileLocation().removeprefix("file:"))
        metadata = location.parent
        files = self.spark.table(f"{name}.files").groupBy("content").count().collect()
        by_content = {row["content"]: row["count"] for row in files}
        manifests = self.spark.table(f"{name}.manifests").count()
        documents = len(list(metadata.glob("*.metadata.json")))
        counts = by_content.get(0, 0), by_content.get(1, 0), manifests, len(held.summaries), location.stat().st_size // 1000, documents
        return [f"{count:,}" for count in counts]


CURRENT, CHANGES = "lake.shop.sales", "lake.shop__changes.sales"
FIGURES = ("data", "deletes", "manifests", "snapshots", "metadata kB", "metadata files", "commit s", "by key s", "all s")


def _session(folder: Path) -> SparkSession:
    conf = {**spark_conf(folder), "spark.driver.memory": "2g"}
    config = PipelineConfig(
        pipeline="bench",
        cluster=ClusterConfig(name="bench", datacenters=["dc1"]),
        bucket=str(folder),
        catalog=CatalogConfig(uri=f"jdbc:sqlite:{folder / 'catalog.db'}", warehouse=str(folder / "warehouse")),
        spark=SparkConfig(conf={**conf, "spark.sql.shuffle.partitions": "2"}),
    )
    return spark_session(config, "benchmark of small commits")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
