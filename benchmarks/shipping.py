"""What the shipper takes of a core beside a node that logs 10 MB a second: `python -m benchmarks.shipping [--json]`.

Strategy: segments of the orders table grow in a commit log folder as a node's do: preallocated, linked into cdc_raw,
written section by section, the index rewritten once a second (a node's default is every 10 s; the tail costs the
shipper less then), completed when they are full. The shipper runs as a service does, with its defaults, and ships
to a folder. Its CPU is counted while the node writes, from the second segment on. All that was completed must be in
the bucket at the end, otherwise there is no result.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import yaml

from benchmarks.batch import PER_SECTION
from benchmarks.processes import Label, Meter
from benchmarks.report import report
from benchmarks.workloads import Workload, orders, recorded
from tools.console import say
from tools.errors import ToolError
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.storage import open_store

RATE = 10_000_000
_FIRST_ID = 1_700_000_000_000
_SYNC_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
_COMMAND = "import sys, writetime.cli; sys.exit(writetime.cli.main(sys.argv[1:]))"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shipping", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=30, help="how long the node writes (default: 30)")
    parser.add_argument("--passes", type=int, default=3, help="how often it is measured (default: 3)")
    parser.add_argument("--recorded", action="store_true", help="a small recorded workload, which needs no node: to try the benchmark")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)

    def figures() -> dict[str, Any]:
        workload = recorded() if options.recorded else orders(3, 0)
        shares = [measure(workload, options.seconds) for _ in range(options.passes)]
        return {"rate": RATE, "seconds": options.seconds, "shares": shares}

    return report(figures, show, as_json=options.json)


def measure(workload: Workload, seconds: float) -> float:
    """The shipper's share of a core. ToolError if it did not ship everything."""
    with tempfile.TemporaryDirectory(prefix="writetime-shipping-") as temporary:
        folder = Path(temporary)
        node = Node(folder, segments_of(workload))
        with _shipper(folder, node.cdc_raw) as process:
            _wait(lambda: (folder / "bucket").exists() or process.poll() is not None, "the shipper did not start", folder)
            node.write(0.1 * seconds)
            meter = Meter({process.pid: Label("shipper", "shipper")})
            begun = time.perf_counter()
            with meter.running():
                node.write(seconds)
            share = meter.used["shipper"] / (time.perf_counter() - begun)
            _wait(lambda: _shipped(folder) >= node.completed, f"not all of {node.completed} segments were shipped", folder)
        return share


def segments_of(workload: Workload) -> Iterator[bytes]:
    """Segments without end, of the workload's mutations, each with an id of its own."""
    bodies: Sequence[Sequence[bytes]] = workload.logs()[0]
    for number, part in zip(count(_FIRST_ID), cycle(bodies)):
        yield encode_segment(number, 7, part, per_section=PER_SECTION, size=workload.segment_bytes)


class Node:
    """A commit log that is written at a constant rate; `completed`: how many segments are complete."""

    def __init__(self, folder: Path, segments: Iterator[bytes]) -> None:
        self.cdc_raw, self._commitlog = folder / "cdc_raw", folder / "commitlog"
        for each in (self.cdc_raw, self._commitlog):
            each.mkdir()
        self._segments = segments
        self.completed = 0

    def write(self, seconds: float) -> None:
        """Write whole segments for that long, and at least one."""
        begun, written = time.perf_counter(), 0
        while written == 0 or written < seconds * RATE:
            written = self._segment(next(self._segments), begun, written)

    def _segment(self, content: bytes, begun: float, written: int) -> int:
        """Write one segment, so that bytes written keep to the rate; bytes written after it."""
        number = _FIRST_ID + self.completed
        log = self._commitlog / f"CommitLog-7-{number}.log"
        index = self.cdc_raw / f"CommitLog-7-{number}_cdc.idx"
        log.write_bytes(bytes(len(content)))
        (self.cdc_raw / log.name).hardlink_to(log)
        at = synced = 0
        last = time.perf_counter()
        with log.open("r+b", buffering=0) as file:
            for end in ends_of(content):
                file.write(content[at:end])
                written += end - at
                at = end
                time.sleep(max(0.0, begun + written / RATE - time.perf_counter()))
                if time.perf_counter() - last >= _SYNC_SECONDS:
                    last, synced = time.perf_counter(), at
                    index.write_bytes(b"%d" % synced)
        index.write_bytes(b"%d\nCOMPLETED" % at)
        log.unlink()
        self.completed += 1
        return written


def ends_of(segment: bytes) -> Iterator[int]:
    """Where each section ends. A marker holds the position of the next one, or the end of the segment."""
    at = len(Descriptor(7, _FIRST_ID, {}).encode())
    while at + 8 <= len(segment) and (after := int.from_bytes(segment[at : at + 4], "big")) > at:
        yield after
        at = after


@contextmanager
def _shipper(folder: Path, cdc_raw: Path) -> Iterator[subprocess.Popen[bytes]]:
    document = {
        "pipeline": "shipping",
        "cluster": {"name": "bench", "datacenters": ["dc1"]},
        "bucket": str(folder / "bucket"),
        "node": {
            "cdc_raw": str(cdc_raw),
            "host_id": "bench-node",
            "datacenter": "dc1",
            "state_dir": str(folder / "state"),
            "ship": {"listen": None, "cdc_total_space": "4GiB", "disk_reserve": 0},
        },
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with (folder / "ship.log").open("wb") as log:
        command = [sys.executable, "-c", _COMMAND, "ship", "-c", str(folder / "pipeline.yaml")]
        process = subprocess.Popen(command, stderr=log, env=dict(os.environ))
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _shipped(folder: Path) -> int:
    return sum(info.name.endswith(".log") for info in open_store(str(folder / "bucket")).list("cdc/"))


def _wait(until: Any, problem: str, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not until():
        if time.monotonic() > deadline:
            log = (folder / "ship.log").read_text(encoding="utf-8", errors="replace")
            raise ToolError(f"{problem} within {_PATIENCE_SECONDS:.0f} s; its log ends with:\n{log[-2000:]}")
        time.sleep(0.1)


def show(figures: dict[str, Any]) -> None:
    shares = ", ".join(f"{share:.1%}" for share in figures["shares"])
    say(f"the shipper at {figures['rate'] / 1e6:.0f} MB/s for {figures['seconds']:.0f} s: {shares} of a core")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
