"""Merge-on-read compared with copy-on-write for tables of current rows: `python -m benchmarks.warehouse
[--rows N] [--changes N]`.

Strategy: a table with the warehouse's properties and rows of about 150 bytes receives batches of changes to
random keys (half of them new) by the warehouse's MERGE. After each batch the whole table is read once. The
figures are CPU seconds of the JVM, which does all the work, the best of the batches: more reliable than the
clock on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as Grid

from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import Warehouse, current_schema
from spark_jobs.sinks.spark_catalog import merge_statement
from spark_jobs.stages.table_rows import RowShape
from tools import ROOT
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.config.airflow import SparkConfig
from writetime.config.cluster import ClusterConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import CatalogConfig, WarehouseConfig

Writes = Literal["merge-on-read", "copy-on-write"]
BATCHES = 3
COLUMNS = [f"c{number}" for number in range(5)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Merge-on-read against copy-on-write for current rows.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=100_000)
    options = parser.parse_args(arguments)
    grid = Grid(title=f"{options.changes} changes to {options.rows} rows, {BATCHES} batches, best and last")
    for heading in ("writes", "merge, CPU s", "read, CPU s", "read at last, CPU s", "MB written a batch", "files at last"):
        grid.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        spark = _session(Path(folder))
        for writes in ("merge-on-read", "copy-on-write"):
            grid.add_row(writes, *_measured(spark, writes, options.rows, options.changes))
        spark.stop()
    Console().print(grid)
    return 0


def _session(folder: Path) -> SparkSession:
    jars = ",".join(str(jar) for jar in sorted((ROOT / "jars" / "spark").glob("*.jar")))
    conf = {"spark.jars": jars, "spark.master": "local[2]", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    conf |= {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}
    config = PipelineConfig(
        pipeline="bench",
        cluster=ClusterConfig(name="bench", datacenters=["dc1"]),
        bucket=str(folder),
        catalog=CatalogConfig(uri=f"jdbc:sqlite:{folder / 'catalog.db'}", warehouse=str(folder / "warehouse")),
        spark=SparkConfig(conf=conf),
    )
    return spark_session(config, "benchmark of current rows")


def _measured(spark: SparkSession, writes: Writes, rows: int, changes: int) -> list[str]:
    columns = {"id": Column("id", "partition_key", "bigint", 0), **{name: Column(name, "regular", "text") for name in COLUMNS}}
    table = Table("bench", writes.replace("-", "_"), uuid.uuid4(), columns)
    schema = Schema(tables={table.id: table})
    shape = RowShape.of(table, schema)
    warehouse = Warehouse(spark, "lake", WarehouseConfig(writes=writes))
    held, facts = warehouse._current(shape, schema, 0)
    name = held.name
    _rows(spark.range(rows), "first").writeTo(name).append()
    merges, reads = [], []
    for batch in range(BATCHES):
        keys = spark.range(changes).select(F.pmod(F.xxhash64("id", F.lit(batch)), F.lit(2 * rows)).alias("id")).distinct()
        source = _rows(keys, str(batch)).withColumn("_op", F.lit("u"))
        source.persist().count()
        source.createOrReplaceTempView("changed")
        statement = merge_statement(name, "changed", shape, current_schema(shape, facts))
        merges.append(cpu_seconds_of_jvm(spark, partial(spark.sql, statement)))
        reads.append(cpu_seconds_of_jvm(spark, spark.table(name).agg(*(F.max(column) for column in COLUMNS)).collect))
        source.unpersist()
    last = spark.table(f"{name}.snapshots").orderBy(F.desc("committed_at")).head()
    files = spark.table(f"{name}.files").count()
    written = int(last["summary"].get("added-files-size", "0")) / 1e6 if last is not None else 0.0
    return [f"{min(merges):.1f}", f"{min(reads):.1f}", f"{reads[-1]:.1f}", f"{written:.0f}", str(files)]


def _rows(keys: DataFrame, salt: str) -> DataFrame:
    """Rows of the table for these keys; values that do not compress away."""
    values = [F.md5(F.concat_ws("/", F.col("id").cast("string"), F.lit(name), F.lit(salt))).alias(name) for name in COLUMNS]
    times = F.map_from_arrays(F.array(*map(F.lit, COLUMNS)), F.array(*(F.col("id") + 1 for _ in COLUMNS)))
    none = F.map_from_arrays(F.array().cast("array<string>"), F.array().cast("array<bigint>"))
    return keys.select("id", *values, times.alias("_writetime"), none.alias("_expires_at"))


def cpu_seconds_of_jvm(spark: SparkSession, run: Callable[[], Any]) -> float:
    """CPU seconds of the JVM while something runs."""
    session: Any = spark
    stat = Path(f"/proc/{session.sparkContext._gateway.proc.pid}/stat")

    def ticks() -> int:
        fields = stat.read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    began = ticks()
    run()
    return (ticks() - began) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
