"""What people write in Spark to make current rows of captured changes: `dropDuplicates` and `max_by`, or `MERGE`.

Strategy: the mutations of three replicas, the same segments as of the whole path, are first decoded to rows of
Parquet, as such jobs find them (by `spark_jobs.data_source`; not measured: these jobs cannot read a commit log).
Then each job makes the table of current rows in Iceberg, from nothing, as in a pass of the whole path. They run in
turns in one warm session of a process of their own, whose JVM has its own settings. MB are those of the segments.

Neither is right: the last writer of a row wins whole, where Cassandra decides by cell; statics, range and partition
deletes, TTLs are left out; there are no before images, no events, no state, and no order that a rerun would keep.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.batch import PER_SECTION, config_of
from benchmarks.figures import Peer
from benchmarks.processes import Label, Meter
from benchmarks.workloads import Workload, orders, recorded
from spark_jobs.data_source import CassandraCommitlog
from spark_jobs.session import spark_session
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.mutation_json import learn
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Table

DOES = "current rows in Iceberg of rows that are decoded already; one copy of each change is kept"
DOES_NOT = "decode; merge by cell; statics, range and partition deletes, TTLs; events; before images; state; rerun without doubles"


def measure(spark: SparkSession, catalog: str, folder: Path, workload: Workload, passes: int, cores: int, meter: Meter) -> list[Peer]:
    """The figures of each job: medians of the passes after the first."""
    size = write_segments(folder / "segments", workload)
    spark.dataSource.register(CassandraCommitlog)
    rows = spark.read.format("cassandra_commitlog").option("table", workload.table).load(str(folder / "segments"))
    rows.write.mode("overwrite").parquet(str(folder / "rows"))
    decoded = spark.read.parquet(str(folder / "rows"))
    count = decoded.count()
    table_schema = table_of(workload.table, folder / "segments")
    key = [column.name for column in (*table_schema.partition_key, *table_schema.clustering)]
    table = f"{catalog}.peers.current"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.peers")
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in JOBS}
    for number in range(1 + passes):
        for name, job in JOBS.items():
            seconds, cpu = _timed(meter, partial(job, spark, decoded, key, table))
            if number:
                found[name].append((seconds, cpu, spark.table(table).count()))
            spark.sql(f"DROP TABLE {table} PURGE")
    shutil.rmtree(folder)
    return [_peer(name, runs, size, count, cores) for name, runs in found.items()]


def write_segments(folder: Path, workload: Workload) -> int:
    """The segments of all replicas in one folder, with their indexes, as completed ones; their bytes."""
    folder.mkdir(parents=True)
    number = size = 0
    for log in workload.logs():
        for bodies in log:
            number += 1
            segment = encode_segment(number, 7, bodies, per_section=PER_SECTION, size=workload.segment_bytes)
            (folder / f"CommitLog-7-{number}.log").write_bytes(segment)
            (folder / f"CommitLog-7-{number}_cdc.idx").write_bytes(b"%d\nCOMPLETED" % len(segment))
            size += len(segment)
    return size


def _peer(name: str, runs: list[tuple[float, float, int]], size: int, rows: int, cores: int) -> Peer:
    seconds, cpu = (statistics.median(run[at] for run in runs) for at in (0, 1))
    figures = {
        "mb_s_per_core": size / 1e6 / seconds / cores,
        "mb_per_cpu_s": size / 1e6 / cpu,
        "rows_s_per_core": rows / seconds / cores,
        "current_rows": float(runs[-1][2]),
        "passes": float(len(runs)),
    }
    return Peer(f"Spark: {name}", DOES, DOES_NOT, figures)


def _timed(meter: Meter, run: Callable[[], Any]) -> tuple[float, float]:
    begun = time.perf_counter()
    with meter.running():
        run()
    return time.perf_counter() - begun, meter.used["job"]


def table_of(name: str, segments: Path) -> Table:
    """The schema of the table, as the segments have it."""
    learner = SchemaLearner()
    for path in sorted(segments.glob("*.log")):
        learn(scan(path.read_bytes(), name=path.name), learner)
    (table,) = [table for table in learner.schema().tables.values() if table.full_name == name]
    return table


# --- the jobs


def _rows(decoded: DataFrame, key: list[str]) -> DataFrame:
    """Rows with the time that they were written, each once."""
    written = F.greatest(F.array_max(F.map_values("_writetime")), F.col("_inserted_at"), F.col("_deleted_at"))
    rows = decoded.where("_op IN ('insert', 'update', 'delete')").withColumn("written", written)
    return rows.dropDuplicates([*key, "written"])


def _values(decoded: DataFrame) -> list[str]:
    return decoded.columns[: decoded.columns.index("_op")]


def _max_by(spark: SparkSession, decoded: DataFrame, key: list[str], table: str) -> None:
    """The last version of each row, by its time."""
    last = F.max_by(F.struct("_op", *_values(decoded)), "written").alias("last")
    current = _rows(decoded, key).groupBy(*key).agg(last).select("last.*").where("_op <> 'delete'").drop("_op")
    current.writeTo(table).using("iceberg").createOrReplace()


def _merge(spark: SparkSession, decoded: DataFrame, key: list[str], table: str) -> None:
    """The last version of each row, merged into a table that is empty at first."""
    values = _values(decoded)
    decoded.select(*values).limit(0).writeTo(table).using("iceberg").tableProperty("write.merge.mode", "merge-on-read").create()
    latest = F.row_number().over(Window.partitionBy(*key).orderBy(F.desc("written")))
    changed = _rows(decoded, key).withColumn("latest", latest).where("latest = 1").select("_op", *values)
    changed.createOrReplaceTempView("changed")
    names = ", ".join(f"`{name}`" for name in values)
    spark.sql(
        f"MERGE INTO {table} t USING changed s ON {' AND '.join(f't.`{name}` = s.`{name}`' for name in key)}"
        " WHEN MATCHED AND s._op = 'delete' THEN DELETE"
        f" WHEN MATCHED THEN UPDATE SET {', '.join(f't.`{name}` = s.`{name}`' for name in values)}"
        f" WHEN NOT MATCHED AND s._op <> 'delete' THEN INSERT ({names}) VALUES ({', '.join(f's.`{name}`' for name in values)})"
    )


JOBS: dict[str, Callable[[SparkSession, DataFrame, list[str], str], None]] = {
    "dropDuplicates and max_by": _max_by,
    "Iceberg MERGE": _merge,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_peers", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (default: 2)")
    parser.add_argument("--segments", type=int, default=3, help="segments of a replica (default: 3)")
    parser.add_argument("--passes", type=int, default=2, help="passes after the first, which is not counted (default: 2)")
    parser.add_argument("--rows", type=int, help="a recorded workload of so many rows instead")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, as is done anyway")
    options = parser.parse_args(arguments)
    workload = recorded(options.rows, 0) if options.rows else orders(options.segments, 0)
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        config = config_of(Path(temporary), options.cores, 4, quick=bool(options.rows))
        spark = spark_session(config, "writetime peers")
        try:
            meter = Meter({os.getpid(): Label("job", "job")})
            assert config.catalog is not None
            peers = measure(spark, config.catalog.name, Path(temporary) / "peers", workload, options.passes, options.cores, meter)
        finally:
            spark.stop()
    print(json.dumps([asdict(peer) for peer in peers]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
