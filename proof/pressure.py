"""A node under load with little CDC space, while the store is down for a while: `make pressure`, `python -m
proof.pressure`.

Strategy: one real node whose `cdc_total_space` holds a few seconds of its writes, a real S3 server, and the
shipper as a process. Random rows are written at a constant rate while the shipper starts and in three phases: the store
is up; it is stopped; it is restarted over the same folder. Every rejected write is counted. At the end, once the shipper
has caught up, every acknowledged row must be in the bucket or in a segment that the node still has. Measured:
CPU and memory of the shipper, the share of `cdc_total_space` in use, and the objects written per kind.
`--rate 0` is an idle node.

`--without-shipper` runs the same load without a shipper: the node must reject writes, otherwise the run
proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Event, Lock, Thread
from typing import Any

from rich.console import Console
from rich.table import Table

from proof.harness.cassandra import VERSIONS, Ring, version_of
from proof.harness.node import Node
from shippers.folder import Found, State, classify, look
from tests import s3_server
from tests.shippers.process import shipping
from tools.console import progress_apart, step
from tools.services import ports
from writetime.storage import open_store

MIB = 1 << 20
KEYSPACE = "pressure"
ROW = 16_000
"""Bytes of a row, about."""
AT_ONCE = 32
PATIENCE = 300.0
START = 15.0
"""Seconds that are shown apart: imports, the first connection and the store's probe happen once in a process's life."""
BUCKET = "pressure"
_ROW = re.compile(rb"row:(\d{9}):")
_TICKS = os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.pressure", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--version", type=version_of, default=VERSIONS[0], help=f"of Cassandra (default: {VERSIONS[0]})")
    parser.add_argument("--rate", type=float, default=10, help="MB of rows a second (default: 10; 0: an idle node)")
    parser.add_argument("--space", type=int, default=128, help="MiB of cdc_total_space (default: 128)")
    parser.add_argument("--segment", type=int, default=8, help="MiB of a commit log segment (default: 8)")
    parser.add_argument("--seconds", type=float, default=60, help="of load before the store goes away, and after it is back (default: 60)")
    parser.add_argument("--down", type=float, default=120, help="seconds for which the store is away (default: 120; 0: it stays up)")
    parser.add_argument("--sync", type=float, default=1, help="s between two syncs of the node (default: 1; Cassandra's is 10)")
    parser.add_argument("--tail", type=float, default=1, help="node.ship.tail_seconds (default: 1; 0: null, whole segments only)")
    parser.add_argument("--without-shipper", action="store_true", help="the load alone: the node has to reject writes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with progress_apart(options.json):
        figures = measure(options)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    rejected = sum(phase["rejected"] for phase in figures["phases"])
    if options.without_shipper:
        return 0 if rejected else 1
    return 0 if rejected == 0 == figures["missing"] else 1


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures as one document: sizes in bytes, times in s."""
    binary = s3_server.program()
    if binary is None:
        raise SystemExit("no S3 test server: run make test-s3 once")
    with tempfile.TemporaryDirectory(prefix="writetime-pressure-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "s3").mkdir()
        with step(f"a node of Cassandra {options.version}, {options.space} MiB for CDC"):
            ring = stack.enter_context(
                Ring(
                    folder / "ring",
                    version=options.version,
                    segment_mb=options.segment,
                    cdc_total_mb=options.space,
                    settings={"commitlog_sync_period_in_ms": int(options.sync * 1000)},
                )
            )
            session = ring.session("ONE")
            session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
            session.execute(f"CREATE TABLE {KEYSPACE}.rows (id bigint PRIMARY KEY, data blob) WITH cdc = true")
        store = StoreProcess(binary, folder / "s3")
        stack.callback(store.stop)
        store.start()
        store.server.make_bucket(BUCKET)
        load = stack.enter_context(Load(session, options.rate * 1e6).running())
        if options.without_shipper:
            return {"version": options.version, "phases": [phase("nobody ships", options.seconds, load, None, ring.nodes[0])]}
        shipper = stack.enter_context(
            shipping(
                ring,
                folder,
                f"s3://{BUCKET}",
                {"when_store_is_down": "spill", "tail_seconds": options.tail or None},
                poll_seconds=1,
                environment=environment(store.server),
            )
        )
        phases = [
            phase("start", START, load, shipper, ring.nodes[0]),
            phase("store up", options.seconds, load, shipper, ring.nodes[0]),
        ]
        objects = objects_in(store.server)
        aside_folder, aside, caught_up = folder / "state" / "spill", 0, 0.0
        if options.down:
            store.stop()
            phases.append(phase("store away", options.down, load, shipper, ring.nodes[0]))
            aside = len(list(aside_folder.glob("*.log")))
            store.start()
            back = time.monotonic()
            phases.append(
                phase("store back", options.seconds, load, shipper, ring.nodes[0], until=lambda: not any(aside_folder.glob("*.log")))
            )
            caught_up = phases[-1]["reached"] or wait_until_caught_up(aside_folder, back, load)
        load.end()
        missing = wait_for_rows(ring, shipper, load, store.server)
    return {
        "version": options.version,
        "space": options.space * MIB,
        "phases": phases,
        "objects_while_up": objects,
        "put_aside": aside,
        "caught_up_after": caught_up,
        "answered": len(load.answered),
        "missing": missing,
        "errors": dict(load.errors),
    }


# --- what runs


class StoreProcess:
    """The S3 server, on one port and one folder."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary, self._folder, self._port = binary, folder, ports.any_free()
        self._running = ExitStack()
        self.server = s3_server.Server("")

    def start(self) -> None:
        self.server = self._running.enter_context(s3_server.running(self._binary, self._folder, port=self._port))

    def stop(self) -> None:
        self._running.close()


@dataclass
class Load:
    """Writes rows at `rate` bytes per second; records acknowledged rows and errors by message."""

    session: Any
    rate: float
    answered: set[int] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    _over: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _free: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(AT_ONCE))

    @contextmanager
    def running(self) -> Iterator[Load]:
        thread = Thread(target=self._write, name="load")
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def end(self) -> None:
        """Stop writing and wait for all responses."""
        self._over.set()
        for _ in range(AT_ONCE):
            self._free.acquire()
        for _ in range(AT_ONCE):
            self._free.release()

    def _write(self) -> None:
        insert = self.session.prepare(f"INSERT INTO {KEYSPACE}.rows (id, data) VALUES (?, ?)")
        noise = os.urandom(4 * MIB)
        begun, number = time.monotonic(), 0
        while not self._over.is_set():
            if not self.rate:
                self._over.wait()
                return
            at = number * 4099 % (len(noise) - ROW)
            self._free.acquire()
            future = self.session.execute_async(insert, (number, b"row:%09d:" % number + noise[at : at + ROW]))
            future.add_callbacks(self._done, self._failed, callback_args=(number,))
            number += 1
            time.sleep(max(0.0, begun + number * ROW / self.rate - time.monotonic()))

    def _done(self, _: Any, number: int) -> None:
        with self._lock:
            self.answered.add(number)
        self._free.release()

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self.errors[f"{type(error).__name__}: {str(error)[:120]}"] += 1
        self._free.release()


def environment(server: s3_server.Server) -> dict[str, str]:
    """The shipper's environment: the address of its store only."""
    return {
        "AWS_ENDPOINT_URL_S3": server.url,
        "AWS_ACCESS_KEY_ID": server.access,
        "AWS_SECRET_ACCESS_KEY": server.secret,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


# --- what is looked at


def phase(
    name: str,
    seconds: float,
    load: Load,
    shipper: subprocess.Popen[bytes] | None,
    node: Node,
    until: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run a phase: acknowledged and rejected writes, peak use of cdc_raw, CPU and memory of the shipper;
    `reached`: after how many seconds `until` held.
    """
    reached: float | None = None
    with step(name):
        begun, cpu, answered, rejected = time.monotonic(), cpu_of(shipper), len(load.answered), load.errors.total()
        most_used, most_memory = 0, 0
        while (spent := time.monotonic() - begun) < seconds:
            if shipper is not None and shipper.poll() is not None:
                raise SystemExit(f"the shipper ended with {shipper.returncode}")
            most_used = max(most_used, sum(item.size for item in found_in(node.cdc_raw)))
            most_memory = max(most_memory, memory_of(shipper))
            if reached is None and until():
                reached = spent
            time.sleep(0.2)
    written = len(load.answered) - answered
    return {
        "phase": name,
        "seconds": spent,
        "rows": written,
        "bytes_per_second": written * ROW / spent,
        "rejected": load.errors.total() - rejected,
        "most_used": most_used,
        "cpu_share": (cpu_of(shipper) - cpu) / spent,
        "most_memory": most_memory,
        "reached": reached,
    }


def objects_in(server: s3_server.Server) -> dict[str, dict[str, int]]:
    """Number and bytes of the objects, by the first part of their names."""
    found: dict[str, dict[str, int]] = {}
    for page in server.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for entry in page.get("Contents", ()):
            of = found.setdefault(entry["Key"].partition("/")[0], {"objects": 0, "bytes": 0})
            of["objects"] += 1
            of["bytes"] += entry["Size"]
    return found


def found_in(folder: Path) -> list[Found]:
    return classify(look(folder))


def cpu_of(process: subprocess.Popen[bytes] | None) -> float:
    """CPU seconds of the process."""
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(process: subprocess.Popen[bytes] | None) -> int:
    """Resident bytes of the process (VmRSS)."""
    if process is None:
        return 0
    (line,) = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def wait_until_caught_up(aside: Path, back: float, load: Load) -> float:
    """Seconds from the store's return until no spilled segment was left, under load."""
    with step("catching up"):
        while list(aside.glob("*.log")):
            if time.monotonic() > back + PATIENCE:
                raise SystemExit(f"segments still lie aside {PATIENCE:.0f} s after the store came back; errors: {load.errors}")
            time.sleep(0.1)
        return time.monotonic() - back


def wait_for_rows(ring: Ring, shipper: subprocess.Popen[bytes], load: Load, server: s3_server.Server) -> int:
    """Number of acknowledged rows that are missing once the node has stopped and its completed segments are
    shipped.
    """
    with step("reading the bucket"):
        (node,) = ring.nodes
        node.stop()
        deadline = time.monotonic() + PATIENCE
        while any(item.state is State.COMPLETED for item in found_in(node.cdc_raw)) and time.monotonic() < deadline:
            time.sleep(0.2)
        shipper.send_signal(signal.SIGTERM)
        shipper.wait(120)
        os.environ |= environment(server)
        bucket = open_store(f"s3://{BUCKET}")
        held: set[int] = set()
        for info in bucket.list("cdc/"):
            held.update(map(int, _ROW.findall(bucket.read(info.name))))
        for item in found_in(node.cdc_raw):
            # Segments that the node had not completed are still on its disk.
            held.update(map(int, _ROW.findall((node.cdc_raw / item.name).read_bytes())))
        return len(load.answered - held)


def show(figures: dict[str, Any]) -> None:
    columns = ("", "s", "rows", "MB/s", "rejected", "most of cdc_raw, MiB", "shipper: share of a core", "most memory, MiB")
    table = Table(*columns, title=f"Cassandra {figures['version']}, little room for CDC")
    for found in figures["phases"]:
        table.add_row(
            found["phase"],
            f"{found['seconds']:.0f}",
            str(found["rows"]),
            f"{found['bytes_per_second'] / 1e6:.1f}",
            str(found["rejected"]),
            f"{found['most_used'] / MIB:.0f}",
            f"{found['cpu_share']:.3f}",
            f"{found['most_memory'] / MIB:.0f}",
        )
    Console().print(table)
    if "missing" in figures:
        seconds = sum(phase["seconds"] for phase in figures["phases"][:2])
        print(f"objects written in {seconds:.0f} s while the store was up, by folder: {figures['objects_while_up']}")
        print(
            f"put aside while the store was away: {figures['put_aside']} segments; caught up {figures['caught_up_after']:.0f} s after its"
            f" return; rows answered: {figures['answered']}, lost: {figures['missing']}; errors: {figures['errors']}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
