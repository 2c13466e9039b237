"""A batch with a million unreadable frames: seconds, CPU seconds, size of the seal, objects in quarantine.

    python -m benchmarks.refused [--frames 1000000] [--size 400] [--table unknown|captured]

The frames are of an unknown table, or of a captured table with an unknown column. Spark's default heap.
Segments of 32 MiB of one node; the bucket is a folder, so that puts cost almost nothing: their number shows
the cost elsewhere.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Self
from uuid import UUID

from spark_jobs import ingest
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, Ring, insert
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.pipeline.archiver import archive
from writetime.storage import layout

HOT = Table(
    "shop",
    "hot",
    UUID("8cbda380-e583-11f1-817f-f173fd8e050e"),
    {"p": Column("p", "partition_key", "int", 0), "v": Column("v", "regular", "blob", -1)},
    cdc=True,
)
_SEGMENT = 32 << 20
_MOST_SECONDS, _MOST_BYTES = 60, 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=400)
    parser.add_argument("--table", choices=("unknown", "captured"), default="unknown")
    options = parser.parse_args()
    Path("var").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=Path("var")) as folder:
        ring = Ring.create(Path(folder) / "ring", "a")
        ring.write(insert(1, 1, 1, name=1))
        fill(ring, options.frames, options.size, HOT if options.table == "unknown" else replace(HOT, id=ORDERS.id))
        manifest = ring.plan(100)
        started = time.perf_counter()
        with _Cpu() as cpu:
            sealed = ingest.run(ring.config, manifest.number)
        seconds = time.perf_counter() - started
        started = time.perf_counter()
        archive(ring.store, CLUSTER, sealed.number)
        archived = time.perf_counter() - started
        kept = list(ring.store.list(layout.quarantine_prefix(CLUSTER)))
        size = next(info.size for info in ring.store.list(layout.batch_object(CLUSTER, sealed.number, "sealed")))
        refused = sum(outcome.refused_frames for outcome in sealed.segments)
    print(f"{refused} frames of a table that is {options.table}, in {len(manifest.segments)} segments")
    print(f"batch {seconds:.1f} s ({cpu.seconds:.0f} s of CPU, load {os.getloadavg()[0]:.1f}), archive {archived:.1f} s")
    print(f"seal {size} bytes; {len(kept)} objects in quarantine, {sum(info.size for info in kept) / 2**20:.0f} MiB")
    return 0 if refused == options.frames and seconds <= _MOST_SECONDS and size <= _MOST_BYTES else 1


class _Cpu:
    """CPU seconds of this process and of all below it: Spark's workers end before anybody could ask them."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._before = sum(os.times()[:2])
        self._ended = Event()
        self._watch = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    @property
    def seconds(self) -> float:
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK") - self._before

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            stats = {}
            for path in Path("/proc").glob("[0-9]*/stat"):
                with suppress(OSError):
                    fields = path.read_text().rpartition(")")[2].split()
                    stats[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
            mine = {os.getpid()}
            while below := {pid for pid, (parent, _) in stats.items() if parent in mine} - mine:
                mine |= below
            self._ticks |= {pid: stats[pid][1] for pid in mine & stats.keys()}


def fill(ring: Ring, frames: int, size: int, table: Table) -> None:
    """Segments with a number of frames of about that size."""
    schema = Schema(tables={table.id: table})
    written = 0
    for key in range(frames):
        cell = Cell("v", key + 1, key.to_bytes(8, "big") * (size // 8))
        update = PartitionUpdate(table.id, key.to_bytes(4, "big"), rows=(Row((), Liveness(key + 1), cells=(cell,)),))
        body = encode_mutation(Mutation((update,)), schema)
        ring.write(body)
        written += len(body)
        if written > _SEGMENT:
            ring.finish_and_ship(10)
            written = 0
    ring.finish_and_ship(10)


if __name__ == "__main__":
    raise SystemExit(main())
