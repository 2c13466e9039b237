"""Look-up and write of a batch's records in state shards of two sizes: `make bench-state`, or `python -m
benchmarks.state [--json]`.

Strategy: for each size, a shard is filled once with records of 150 random bytes under scattered keys, and
kept. Then, in a fresh process with a hundred thousand changed keys, half of them new: look up all keys, then
write as many records, from the same pinned version each time, so that every pass finds the same shard. The
sizes take turns, so that disturbances affect both. The steps between look-up and write (decode, merge) are
excluded. Each figure is the median of the passes; the ratio is the cost of ten times the rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from spark_jobs.state.shards import INDEX, SCHEMA, Record, Shard, in_batches, upsert
from tools.console import say
from writetime.cassandra.types.byte_comparable import record_key
from writetime.storage import open_store

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "var/bench/state"
SIZES = (1_000_000, 10_000_000)
CHANGED = 100_000
VALUE = 150
AIM = 2.0
_SCATTER = 0x9E3779B97F4A7C15
_ROWS_AT_ONCE = 200_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(SIZES), help="sizes of the table (default: 1 and 10 million)")
    parser.add_argument("--changed", type=int, default=CHANGED, help="changed keys of a batch, half of them new (default: 100,000)")
    parser.add_argument("--buckets", type=int, default=1, help="shards of a table, one after the other (default: 1)")
    parser.add_argument("--passes", type=int, default=5, help="measured passes (default: 5)")
    parser.add_argument("--batches", type=int, default=0, help="instead: so many batches on the smallest table, each on the last")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the shards are kept (default: var/bench/state)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(_pass(**options.child)))
        return 0
    if options.batches:
        figures: Any = series(options.folder, min(options.rows), options.changed, options.batches)
    else:
        figures = measure(options.folder, options.rows, options.buckets, options.changed, options.passes)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


# --- data


def keys(numbers: Sequence[int] | np.ndarray) -> list[bytes]:
    """Record keys of rows with a partition key of 8 bytes and a clustering of 8, scattered over all of the
    order.
    """
    scattered = np.asarray(numbers, dtype=np.uint64) * np.uint64(_SCATTER)
    row = b"\1\2\1"
    return [record_key(pk.tobytes(), row + pk.tobytes() + b"\2") for pk in scattered.astype(">u8")]


def values(count: int, seed: int) -> pa.Array:
    data = np.random.default_rng(seed).bytes(count * VALUE)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(VALUE), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def shard(folder: Path, rows: int, buckets: int) -> tuple[str, int]:
    """A shard with its part of so many rows, made if it is not there; its uri and version."""
    import lance

    uri = folder / f"rows-{rows}-of-{buckets}"
    if not (uri / "done").exists():
        say(f"filling {uri.name} …")
        batches = _filling(rows // buckets)
        dataset = lance.write_dataset(pa.RecordBatchReader.from_batches(SCHEMA, batches), uri, schema=SCHEMA, mode="overwrite")
        dataset.create_scalar_index("key", "BTREE", name=INDEX)
        (uri / "done").write_text(str(dataset.version))
    return str(uri), int((uri / "done").read_text())


def _filling(rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, _ROWS_AT_ONCE):
        count = min(_ROWS_AT_ONCE, rows - start)
        found = pa.array(keys(np.arange(start, start + count)), pa.binary())
        yield pa.record_batch([found, values(count, start), pa.nulls(count, pa.int64())], schema=SCHEMA)


def changes(rows: int, count: int, seed: int) -> list[Record]:
    """Records of random keys, half of them among the first `rows`, half of them of none yet."""
    random = np.random.default_rng(seed)
    old = random.choice(rows, min(count // 2, rows), replace=False)
    new = rows + seed * count + np.arange(count - len(old))
    return [Record(key, value, None) for key, value in zip(keys([*old, *new]), values(count, seed).to_pylist(), strict=True)]


# --- passes


def measure(folder: Path, sizes: Sequence[int], buckets: int, changed: int, passes: int) -> list[dict[str, Any]]:
    """For each size, seconds of a batch's look-up and write: of one shard, in a fresh process each time,
    times the shards of a table.
    """
    tasks = []
    for rows in sizes:
        uri, version = shard(folder, rows, buckets)
        tasks.append({"uri": uri, "version": version, "rows": rows // buckets, "changed": changed // buckets, "folder": str(folder)})
    found: list[list[dict[str, float]]] = [[] for _ in sizes]
    for number in range(1, passes + 1):
        for task, mine in zip(tasks, found, strict=True):
            command = [sys.executable, "-m", "benchmarks.state", "--child", json.dumps({**task, "number": number})]
            mine.append(json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout))
    return [
        {"rows": rows, "buckets": buckets, "changed": changed, "passes": passes}
        | {name: statistics.median(one[name] for one in mine) * buckets for name in mine[0]}
        for rows, mine in zip(sizes, found, strict=True)
    ]


def _pass(uri: str, version: int, rows: int, changed: int, number: int, folder: str) -> dict[str, float]:
    records = changes(rows, changed, number)
    lease = f"leases/{Path(uri).name}-{time.time_ns()}.json"
    started, cpu = time.perf_counter(), time.process_time()
    known = Shard(uri, version).get(record.key for record in records)
    looked_up, cpu_looked_up = time.perf_counter(), time.process_time()
    upsert(uri, version, number, in_batches(records), open_store(folder), lease)
    written, cpu_written = time.perf_counter(), time.process_time()
    if len(known) != changed // 2:
        raise AssertionError(f"{len(known)} of {changed // 2} keys were found")
    return {
        "lookup": looked_up - started,
        "upsert": written - looked_up,
        "lookup_cpu": cpu_looked_up - cpu,
        "upsert_cpu": cpu_written - cpu_looked_up,
    }


def series(folder: Path, rows: int, changed: int, batches: int) -> list[dict[str, Any]]:
    """The same over many batches, each on the version before, in one process."""
    uri, version = shard(folder, rows, 1)
    lease = f"leases/{Path(uri).name}-{time.time_ns()}.json"
    figures = []
    for number in range(1, batches + 1):
        records = changes(rows, changed, number)
        started, cpu = time.perf_counter(), time.process_time()
        Shard(uri, version).get(record.key for record in records)
        looked_up, cpu_looked_up = time.perf_counter(), time.process_time()
        version = upsert(uri, version, number, in_batches(records), open_store(str(folder)), lease).version
        written, cpu_written = time.perf_counter(), time.process_time()
        figures.append(
            {
                "batch": number,
                "lookup": looked_up - started,
                "upsert": written - looked_up,
                "lookup_cpu": cpu_looked_up - cpu,
                "upsert_cpu": cpu_written - cpu_looked_up,
            }
        )
    return figures


# --- what is shown


def show(figures: list[dict[str, Any]]) -> None:
    """The figures as a table, s; and the ratio of the last to the first."""
    first = "batch" if "batch" in figures[0] else "rows"
    table = Table(first, "look up", "write", "together", "CPU of looking up", "CPU of writing")
    chosen = figures if first == "rows" else [*figures[:5], *figures[5:-5:20], *figures[-5:]]
    for one in chosen:
        seconds = (one["lookup"], one["upsert"], one["lookup"] + one["upsert"], one["lookup_cpu"], one["upsert_cpu"])
        table.add_row(f"{one[first]:,}", *(f"{value:.2f}" for value in seconds))
    Console().print(table)
    ends = [figures[0], figures[-1]]
    clock, cpu = (ratio(ends, *names) for names in (("lookup", "upsert"), ("lookup_cpu", "upsert_cpu")))
    say(f"ratio of the last to the first: {clock:.2f} by the clock, {cpu:.2f} of CPU (aim: at most {AIM:.0f})")


def ratio(ends: list[dict[str, Any]], *names: str) -> float:
    small, large = (sum(one[name] for name in names) for one in ends)
    return float(large / small)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
