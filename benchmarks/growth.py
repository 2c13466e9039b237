"""Whole batches of 100,000 changed rows against tables of two sizes: `make bench-growth`, or `python -m
benchmarks.growth [--json]`.

Strategy: one pipeline, with a table of each size. Batch 1 reads the DDL; then rows are written in bulk to the
state shards and the table of current rows, in the form that batches write. From then on only the ingest job
runs: segments of 100,000 mutations, random keys, half of them new, of one table at a time in turns, so that
disturbances affect both sizes. The tables of changes and of current rows are written as usual; nothing is
published. The first pass only warms up Spark and its workers.

Unlike `state.py`, which measures look-up and write of the state alone, this is the time of the whole batch.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.batch import Clock, config_of, cpu_seconds, forget, meter_of, timed_job
from benchmarks.report import report
from spark_jobs.session import spark_session
from spark_jobs.stages.scan import key_bucket
from spark_jobs.state.shards import INDEX
from spark_jobs.state.shards import SCHEMA as RECORDS
from tests.cassandra.schema.examples import create_keyspace, create_table
from tools.console import say, step
from tools.errors import ToolError
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.merge import row_codec
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import TABLES
from writetime.cassandra.types.byte_comparable import RowKeys, record_key
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Manifest, Sealed, ShardVersions, total
from writetime.pipeline.planner import plan_ingest
from writetime.storage import layout, open_store
from writetime.storage.lease import Lease
from writetime.storage.store import Store

SIZES = (1_000_000, 10_000_000)
CHANGED = 100_000
AIM = 2.0
CLUSTER = "bench"
NODE = layout.NodeName(CLUSTER, "dc1", str(uuid.UUID(int=1)))
TEXT = 100
SEGMENT_BYTES = 128 << 20
WRITTEN_AT = 1_750_000_000_000_000
"""Writetime (µs) of the rows that are there from the start."""
_SCATTER = 0x9E3779B97F4A7C15
_AT_ONCE = 500_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(SIZES), help="sizes of the tables (default: 1 and 10 million)")
    parser.add_argument("--changed", type=int, default=CHANGED, help="changed rows of a batch, half of them new (default: 100,000)")
    parser.add_argument("--passes", type=int, default=3, help="measured passes (default: 3)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (default: 2)")
    parser.add_argument("--buckets", type=int, default=4, help="key buckets, which are state shards, of a table (default: 4)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    given = options.rows, options.changed, options.passes, options.cores, options.buckets
    return report(lambda: measure(*given), show, as_json=options.json)


def measure(sizes: Sequence[int], changed: int, passes: int, cores: int, buckets: int) -> dict[str, Any]:
    """Per size the medians of `seconds` and `cpu`, and the seconds of each step, of a batch; `ratio`s of the
    last size to the first.
    """
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        config = config_of(Path(temporary), cores, buckets)
        spark = spark_session(config, "writetime bench-growth")
        try:
            found = passes_of(Bench.create(spark, config, sizes), sizes, changed, passes)
        finally:
            spark.stop()
    return {"changed": changed, "passes": passes, "cores": cores, "buckets": buckets, **figures_of(found)}


def figures_of(found: Mapping[int, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of each size, and the ratios of the last size to the first."""
    each = [{"rows": rows, **_medians(runs)} for rows, runs in found.items()]
    ratios = {f"ratio_{name}": each[-1][name] / each[0][name] for name in ("seconds", "cpu")}
    return {"sizes": each, **ratios}


def passes_of(bench: Bench, sizes: Sequence[int], changed: int, passes: int) -> dict[int, list[dict[str, Any]]]:
    """Figures of the batches of each size, of one pass after the other; the first pass is not among them."""
    found: dict[int, list[dict[str, Any]]] = {rows: [] for rows in sizes}
    for number in range(1 + passes):
        for rows in sizes:
            figures = bench.batch(rows, changed, number)
            if number:
                found[rows].append(figures)
    return found


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    steps = {name: statistics.median(run["steps"].get(name, 0.0) for run in runs) for name in runs[0]["steps"]}
    return {"steps": steps, **{name: statistics.median(run[name] for run in runs) for name in ("seconds", "cpu")}}


def table_of(rows: int) -> Table:
    columns = {
        "id": Column("id", "partition_key", "bigint", 0),
        "note": Column("note", "regular", "text"),
        "amount": Column("amount", "regular", "int"),
    }
    return Table("bench", f"rows_{rows}", uuid.UUID(int=(1 << 76) + rows), columns, cdc=True)


# --- rows


@dataclass(frozen=True)
class Rows:
    """Rows by number: `keys` (N × 8 bytes, big endian), `notes` (N × TEXT, hexadecimal digits), `amounts`."""

    keys: np.ndarray
    notes: np.ndarray
    amounts: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray, seed: int) -> Rows:
        """Keys scattered over all of the order; contents that do not compress away."""
        random = np.random.default_rng(seed)
        keys = (numbers.astype(np.uint64) * np.uint64(_SCATTER)).astype(">u8")
        digits = np.frombuffer(b"0123456789abcdef", np.uint8)
        notes = digits[random.integers(0, 16, (len(numbers), TEXT), dtype=np.uint8)]
        return cls(keys.view(np.uint8).reshape(-1, 8), notes, random.integers(0, 2**31, len(numbers), dtype=np.int32))

    def arrow(self) -> pa.Table:
        """As current rows, but for the facts of their cells."""
        ids = self.keys.reshape(-1).view(">i8").astype(np.int64)
        return pa.table({"id": ids, "note": _binary(self.notes).cast(pa.string()), "amount": pa.array(self.amounts)})

    def mutations(self, table: Table, at: int) -> Iterator[bytes]:
        schema = Schema(tables={**TABLES, table.id: table})
        for key, note, amount in zip(self.keys, self.notes, self.amounts.astype(">i4"), strict=True):
            cells = (Cell("amount", at, amount.tobytes()), Cell("note", at, note.tobytes()))
            row = Row((), Liveness(at), cells=cells)
            yield encode_mutation(Mutation((PartitionUpdate(table.id, key.tobytes(), rows=(row,)),)), schema)

    def records(self, table: Table) -> pa.RecordBatch:
        """As the state remembers them: one flat row with other bytes in its places."""
        marks = b"\xa1" * 4, b"\xa2" * TEXT
        cells = tuple(Cell(name, WRITTEN_AT, mark) for name, mark in zip(("amount", "note"), marks, strict=True))
        states = self._filled(row_codec.encode(Row((), Liveness(WRITTEN_AT), cells=cells)), marks, (_bytes(self.amounts), self.notes))
        mark = b"\xa3" * 8
        keys = self._filled(record_key(mark, RowKeys(table, {}).key(())), (mark,), (self.keys,))
        return pa.record_batch([keys, states, pa.nulls(len(self.keys), pa.int64())], schema=RECORDS)

    def _filled(self, form: bytes, marks: Sequence[bytes], parts: Sequence[np.ndarray]) -> pa.Array:
        made = np.tile(np.frombuffer(form, np.uint8), (len(self.keys), 1))
        for mark, part in zip(marks, parts, strict=True):
            at = form.index(mark)
            made[:, at : at + len(mark)] = part
        return _binary(made)


def _bytes(amounts: np.ndarray) -> np.ndarray:
    return amounts.astype(">i4").view(np.uint8).reshape(-1, 4)


def _binary(rows: np.ndarray) -> pa.Array:
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, pa.py_buffer(rows.tobytes())])
    return fixed.cast(pa.binary())


# --- a pipeline with tables


@dataclass
class Bench:
    """The pipeline, and the seal that the next batch starts from."""

    spark: SparkSession
    config: PipelineConfig
    store: Store
    sealed: Sealed
    segment: int = 1

    @classmethod
    def create(cls, spark: SparkSession, config: PipelineConfig, sizes: Sequence[int]) -> Bench:
        tables = [table_of(rows) for rows in sizes]
        store = open_store(config.bucket)
        system = Schema(tables=TABLES)
        ddl = [create_keyspace("bench", WRITTEN_AT - 100), *(create_table(table, WRITTEN_AT - 99) for table in tables)]
        first = [body for table in tables for body in Rows.of(np.arange(1), 1).mutations(table, WRITTEN_AT)]
        manifest = _ship(store, 1, [*(encode_mutation(each, system) for each in ddl), *first])
        with step("batch 1, which makes the tables"):
            sealed = timed_job(Clock(spark))(config, store, spark, manifest, None, meter_of(spark)).run()
        bench = cls(spark, config, store, sealed)
        for rows, table in zip(sizes, tables, strict=True):
            with step(f"filling {table.full_name}"):
                bench._fill(table, rows)
        bench._reseal()
        archive(store, CLUSTER, 1)
        return bench

    def batch(self, rows: int, changed: int, number: int, *, check: bool = True) -> dict[str, Any]:
        """Run one batch of changes to the table of so many rows; seconds, and seconds of CPU of all
        processes. `check`: print that, and verify what it did; then all batches have the same number of changes.
        """
        table = table_of(rows)
        random = np.random.default_rng(number)
        old = random.choice(rows, changed // 2, replace=False)
        new = rows + number * changed + np.arange(changed - len(old))
        numbers = random.permutation(np.concatenate([old, new]))
        self.segment += 1
        bodies = list(Rows.of(numbers, 100 + number).mutations(table, WRITTEN_AT + 10**6 * self.segment))
        manifest = _ship(self.store, self.segment, bodies)
        clock = Clock(self.spark)
        job = timed_job(clock)(self.config, self.store, self.spark, manifest, self.sealed, meter_of(self.spark))
        begun, begun_cpu = time.perf_counter(), cpu_seconds()
        self.sealed = job.run()
        figures = {"seconds": time.perf_counter() - begun, "cpu": cpu_seconds() - begun_cpu, "steps": clock.steps}
        if check:
            say(f"  {rows:,} rows: {figures['seconds']:.1f} s, {figures['cpu']:.1f} s of CPU")
            self._check(table, changed, rows + (number + 1) * (changed - len(old)))
        archive(self.store, CLUSTER, manifest.number)
        forget(self.spark)
        return figures

    def _check(self, table: Table, changed: int, rows: int) -> None:
        """Verify the measured work: half of the rows existed before, and all exist now."""
        assert self.config.catalog is not None
        account = total(self.sealed.accounting)
        changes = f"{self.config.catalog.name}.{table.keyspace}__changes.{table.name}"
        found = self.spark.sql(
            f"SELECT count(*) FROM {changes} WHERE batch = {self.sealed.number} AND op = 'u' AND before.note <> after.note"
        )
        updated = found.collect()[0][0]
        if (account.applied, account.events, updated, self.sealed.rows[table.full_name]) != (changed, changed, changed // 2, rows):
            raise ToolError(f"unexpected account of the batch: {account}, {updated} updated, {self.sealed.rows} rows")

    def _fill(self, table: Table, rows: int) -> None:
        """Put all rows but the first, which batch 1 has brought, into the state and into the table of current
        rows.
        """
        versions = self.sealed.state[str(table.id)]
        written: dict[int, tuple[int, int | None]] = {}
        files = Path(self.config.bucket).parent / f"fill-{rows}"
        files.mkdir()
        parts: dict[int, list[pa.RecordBatch]] = {bucket: [] for bucket in range(len(versions.buckets))}
        for start in range(1, rows, _AT_ONCE):
            some = Rows.of(np.arange(start, min(start + _AT_ONCE, rows)), start)
            pq.write_table(some.arrow(), files / f"{start}.parquet")
            records = some.records(table)
            buckets = np.array([key_bucket(key.tobytes(), len(parts)) for key in some.keys])
            for bucket, mine in parts.items():
                mine.append(records.filter(pa.array(buckets == bucket)))
        for bucket, mine in parts.items():
            written[bucket] = (self._fill_shard(table, versions, bucket, mine), None)
        self.sealed.state[str(table.id)] = versions.after(written)
        self._fill_current(table, files)

    def _fill_shard(self, table: Table, versions: ShardVersions, bucket: int, records: list[pa.RecordBatch]) -> int:
        """Append records to a shard, and note it in its lease as the write of batch 1; the shard's
        version."""
        uri = f"{self.config.bucket}/{layout.state_shard(CLUSTER, str(table.id), versions.generation, bucket)}"
        lease = layout.state_lease(CLUSTER, str(table.id), versions.generation, bucket)
        with Lease(self.store, lease) as held:
            mode: Any = "append" if versions.buckets[bucket] else "create"
            dataset = lance.write_dataset(pa.RecordBatchReader.from_batches(RECORDS, records), uri, mode=mode)
            dataset.create_scalar_index("key", "BTREE", name=INDEX, replace=True)
            version = int(lance.dataset(uri).version)
            held.finish({"batch": 1, "base": 0, "records": "", "version": version, "earliest_expiry": None})
        return version

    def _fill_current(self, table: Table, files: Path) -> None:
        assert self.config.catalog is not None
        self.spark.read.parquet(str(files)).createOrReplaceTempView("filling")
        facts = f"map('note', {WRITTEN_AT}L, 'amount', {WRITTEN_AT}L)", "cast(map() AS map<string, bigint>)"
        name, columns = f"{self.config.catalog.name}.{table.keyspace}.{table.name}", "id, note, amount"
        self.spark.sql(f"INSERT INTO {name} ({columns}, _writetime, _expires_at) SELECT {columns}, {', '.join(facts)} FROM filling")

    def _reseal(self) -> None:
        """Let the seal of batch 1 name what was filled."""
        self.store.put(layout.batch_object(CLUSTER, 1, "sealed"), self.sealed.to_bytes())


def _ship(store: Store, segment: int, bodies: list[bytes]) -> Manifest:
    name = layout.SegmentRef(NODE, layout.SegmentName(segment, 7)).incoming
    sealed_at = datetime.now(UTC) - timedelta(seconds=1)
    store.put(name, encode_segment(segment, 7, bodies, per_section=1000, size=SEGMENT_BYTES), metadata={"sealed_at": sealed_at.isoformat()})
    manifest = plan_ingest(store, CLUSTER, now=datetime.now(UTC))
    assert manifest is not None
    return manifest


# --- for people


def show(figures: dict[str, Any]) -> None:
    sizes = figures["sizes"]
    say(f"{figures['changed']:,} changed rows, medians of {figures['passes']} batches, Spark local[{figures['cores']}]")
    grid = Grid("step", *(f"{one['rows']:,} rows, s" for one in sizes), title="by the clock of the driver")
    for name in sizes[0]["steps"]:
        seconds = [one["steps"].get(name, 0.0) for one in sizes]
        if max(seconds) >= 0.05:
            grid.add_row(name, *(f"{value:.2f}" for value in seconds))
    grid.add_section()
    for label, name in (("the whole batch", "seconds"), ("of CPU", "cpu")):
        grid.add_row(label, *(f"{one[name]:.1f}" for one in sizes))
    Console().print(grid)
    clock, cpu = figures["ratio_seconds"], figures["ratio_cpu"]
    say(f"ratio of the last size to the first: {clock:.2f} by the clock, {cpu:.2f} of CPU (aim: at most {AIM:.0f})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
