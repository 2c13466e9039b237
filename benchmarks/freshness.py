"""How long a write takes to reach the bucket, with and without the tail: `make bench-freshness`.

Strategy: one real Cassandra node is written to at a constant rate, each row with its number in a text; the
shipper runs as a process and ships to a folder. A row's time is from the node's acknowledgement to the first
object with its number, a part or a whole segment. The two modes run one after the other, each with its own
bucket and rows. Writing continues at the same rate until every measured row has arrived, because without the
tail a segment must be full first.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proof.harness.cassandra import Ring
from tests.shippers.process import shipping
from writetime.storage import open_store
from writetime.storage.store import Store

KEYSPACE = "fresh"
ROW = 1000
"""Bytes of a row, about."""
PATIENCE = 900.0
_NUMBER = re.compile(rb"row:(\w+):(\d{9}):")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freshness", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for how long rows count (default: 60)")
    parser.add_argument("--rate", type=int, default=100, help="KB of rows a second (default: 100)")
    parser.add_argument("--segment", type=int, default=8, help="MiB of a commit log segment (default: 8; Cassandra's is 32)")
    parser.add_argument("--sync", type=float, default=10, help="s between two syncs of the node (default: 10, as Cassandra's)")
    parser.add_argument("--tail", type=float, default=1, help="node.ship.tail_seconds (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="writetime-fresh-") as name:
        settings = {"commitlog_sync_period_in_ms": int(options.sync * 1000)}
        with Ring(Path(name) / "ring", segment_mb=options.segment, settings=settings) as ring:
            session = ring.session("ONE")
            session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
            session.execute(f"CREATE TABLE {KEYSPACE}.rows (id bigint PRIMARY KEY, text text) WITH cdc = true")
            figures = {
                way: measure(ring, Path(name) / way, way, tail, options.seconds, options.rate * 1000)
                for way, tail in (("tail", options.tail), ("whole", None))
            }
    if options.json:
        print(json.dumps({"options": vars(options), **figures}, indent=2))
    else:
        show(figures)
    return 0


def measure(ring: Ring, folder: Path, way: str, tail: float | None, seconds: float, rate: int) -> dict[str, float]:
    """Of the rows written in the first `seconds`, at `rate` bytes a second: how long they took, in s, and
    what it cost in objects.
    """
    folder.mkdir()
    with shipping(ring, folder, str(folder / "bucket"), {"tail_seconds": tail}) as shipper:
        wait_until_known(open_store(str(folder / "bucket")), shipper)
        written = write(ring, folder / "bucket", way, seconds, rate)
    arrived, objects = arrivals(folder / "bucket", way)
    late = sorted(arrived[number] - at for number, at in written.items())
    percentiles = statistics.quantiles(late, n=100, method="inclusive")
    return {"rows": len(late), "p50": percentiles[49], "p95": percentiles[94], "most": late[-1], **objects}


def write(ring: Ring, bucket: Path, way: str, seconds: float, rate: int) -> dict[int, float]:
    """Write until all of the rows that count are in the bucket; when each of them was answered, s since the
    epoch.
    """
    session = ring.session("ONE")
    insert = session.prepare(f"INSERT INTO {KEYSPACE}.rows (id, text) VALUES (?, ?)")
    begun, looked, number = time.time(), time.monotonic(), 0
    answered: dict[int, float] = {}
    while True:
        session.execute(insert, (number, f"row:{way}:{number:09d}:".ljust(ROW, "x")))
        now = time.time()
        if now - begun < seconds:
            answered[number] = now
        elif time.monotonic() - looked > 2:
            looked = time.monotonic()
            if answered.keys() <= arrivals(bucket, way)[0].keys():
                return answered
            if now - begun > seconds + PATIENCE:
                raise SystemExit(f"rows are missing in the bucket {PATIENCE:.0f} s after they were written")
        number += 1
        time.sleep(max(0.0, begun + number * ROW / rate - time.time()))


def arrivals(bucket: Path, way: str) -> tuple[dict[int, float], dict[str, int]]:
    """When each row was first in an object, and how many objects there are, of how many bytes."""
    store = open_store(str(bucket))
    first: dict[int, float] = {}
    found = [info for prefix in ("cdc_parts/", "cdc/") for info in store.list(prefix)]
    for info in found:
        for of, number in _NUMBER.findall(store.read(info.name)):
            if of == way.encode():
                first[int(number)] = min(info.created.timestamp(), first.get(int(number), float("inf")))
    return first, {"objects": len(found), "bytes": sum(info.size for info in found)}


def wait_until_known(store: Store, shipper: subprocess.Popen[bytes]) -> None:
    """Return once the shipper has recorded the node's identity: from then on it scans."""
    while not next(store.list("nodes/"), None):
        if shipper.poll() is not None:
            raise SystemExit(f"the shipper ended with {shipper.returncode}")
        time.sleep(0.2)


def show(figures: dict[str, dict[str, float]]) -> None:
    names = {"tail": "with the tail", "whole": "whole segments only"}
    table = Table("", *(f"{name} s" for name in ("p50", "p95", "most")), "rows", "objects", "MB")
    for way, found in figures.items():
        times = [f"{found[name]:.1f}" for name in ("p50", "p95", "most")]
        table.add_row(names[way], *times, f"{found['rows']:.0f}", f"{found['objects']:.0f}", f"{found['bytes'] / 1e6:.1f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
