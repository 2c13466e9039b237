"""Segments to measure with: real Cassandra 5.0 segments of a CDC table of orders. Made once, kept in
var/bench/decode.

    from benchmarks import data
    segments = data.segments()              # [.../CommitLog-7-<id>.log, …] in log order; starts a node if they are missing

or `python -m benchmarks.data [--segments 6] [--anew]`.

Strategy: one node, plain 32 MiB segments, and two processes that insert, update and delete until enough
segments are full. Rows are about 1 KB in 23 columns of mixed types, with collections, a UDT, a static column
and TTLs; batches make larger mutations. Only full segments are kept, so that bytes measure data. The first
one contains the DDL: the folder can be decoded by itself. Seeds are fixed, clocks are not: two runs are
similar, not equal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from tools import ROOT
from tools.console import say, step
from tools.errors import ServiceError, ToolError
from writetime.cassandra.commitlog import idx

FOLDER = ROOT / "var" / "bench" / "decode"
SEGMENTS = 6
SEGMENT_MB = 32
WRITERS = 2
PATIENCE_SECONDS = 1800.0
MANIFEST = "bench.json"

KEYSPACE = "bench"
DDL = (
    f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
    f"CREATE TYPE {KEYSPACE}.address (street text, zip text, country text)",
    f"""CREATE TABLE {KEYSPACE}.orders (
        tenant uuid, bucket int, placed_at timestamp, order_id uuid,
        region text static,
        status text, amount bigint, price double, weight float, discount decimal, items int, paid boolean, checksum varint,
        email text, note text, receipt blob, client_ip inet, ship_on date, ship_at time, tracking timeuuid,
        ship_to frozen<address>, tags set<text>, attributes map<text, text>, ratings list<int>,
        PRIMARY KEY ((tenant, bucket), placed_at, order_id)
    ) WITH CLUSTERING ORDER BY (placed_at DESC, order_id ASC) AND cdc = true""",
)
_COLUMNS = (
    "tenant, bucket, placed_at, order_id, status, amount, price, weight, discount, items, paid, checksum, email, note, receipt, client_ip,"
    " ship_on, ship_at, tracking, ship_to, tags, attributes, ratings"
)
_ORDER = "tenant = ? AND bucket = ? AND placed_at = ? AND order_id = ?"
_INSERT = f"INSERT INTO {KEYSPACE}.orders ({_COLUMNS}) VALUES ({', '.join('?' * 23)})"
STATEMENTS = {
    "insert": _INSERT,
    "insert with TTL": f"{_INSERT} USING TTL 7776000",
    "update": f"UPDATE {KEYSPACE}.orders SET status = ?, amount = ?, paid = ? WHERE {_ORDER}",
    "update a map": f"UPDATE {KEYSPACE}.orders SET attributes[?] = ? WHERE {_ORDER}",
    "update static": f"UPDATE {KEYSPACE}.orders SET region = ? WHERE tenant = ? AND bucket = ?",
    "delete row": f"DELETE FROM {KEYSPACE}.orders WHERE {_ORDER}",
    "delete range": f"DELETE FROM {KEYSPACE}.orders WHERE tenant = ? AND bucket = ? AND placed_at < ?",
}
_SHARES = {
    "insert": 78,
    "insert with TTL": 8,
    "update": 6,
    "update a map": 3,
    "update static": 1,
    "delete row": 2,
    "delete range": 1,
    "batch": 1,
}
"""How often each kind of statement is drawn, in percent."""
_BATCH_ROWS = 10
WORDS = tuple(
    word
    for line in (
        "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima order shipped pending customer invoice payment address",
        "warehouse express grün café naïve 木 gift fragile sale spare refill organic cotton steel vegan boxed",
    )
    for word in line.split()
)
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)


def segments(folder: Path = FOLDER, *, count: int = SEGMENTS, anew: bool = False) -> list[Path]:
    """Paths of at least `count` segments in log order; made by a node of its own if they are not there.
    ServiceError if it fails.
    """
    if anew:
        shutil.rmtree(folder, ignore_errors=True)
    if not _is_there(folder, count):
        _make(folder, count)
    return paths(folder)


def manifest(folder: Path = FOLDER) -> dict[str, Any]:
    """What the segments are: `version` of Cassandra, `segments`, `bytes`, `statements` run, `seconds` that
    writing took.
    """
    return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))


def _is_there(folder: Path, count: int) -> bool:
    return (folder / MANIFEST).exists() and len(paths(folder)) >= count


def paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("CommitLog-*.log"), key=lambda path: int(path.stem.rpartition("-")[2]))


def _make(folder: Path, count: int) -> None:
    """Fill a temporary folder, and rename it when it is complete."""
    from proof.harness.cassandra import Ring

    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        ring = Ring(Path(temporary), heap="1G", segment_mb=SEGMENT_MB, cdc_total_mb=(count + 8) * SEGMENT_MB)
        with step(f"one node of Cassandra {ring.version}"):
            ring.start()
        try:
            document = {"version": ring.version, **_write(ring, count)}
        finally:
            with step("stopping the node"):
                ring.close()
        full = [path for path in paths(ring.nodes[0].cdc_raw) if _is_finished(path)][:count]
        fresh = folder.with_name(f"{folder.name}.fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for path in full:
            shutil.copy2(path, fresh)
            shutil.copy2(_index(path), fresh)
        document |= {"segments": len(full), "bytes": sum(path.stat().st_size for path in full)}
        (fresh / MANIFEST).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    say(f"{folder}: {len(full)} segments, {document['bytes'] / 1e6:.0f} MB")


def _write(ring: Any, count: int) -> dict[str, Any]:
    """Run writers until `count` segments are completed, and print the progress."""
    node = ring.nodes[0]
    session = node.session()
    for statement in DDL:
        session.execute(statement)
    # Fresh interpreters: a driver's sockets and threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    enough, written = context.Event(), [context.Value("q", 0) for _ in range(WRITERS)]
    arguments = [(node.address, node.port, seed, enough, written[seed]) for seed in range(WRITERS)]
    writers = [context.Process(target=write, args=given, daemon=True) for given in arguments]
    begun = reported = time.monotonic()
    for writer in writers:
        writer.start()
    try:
        while (full := sum(_is_finished(path) for path in paths(node.cdc_raw))) < count:
            now = time.monotonic()
            if failed := [writer.exitcode for writer in writers if writer.exitcode is not None]:
                raise ServiceError(f"A writer ended early with exit code {failed[0]}; the node's log: {node.log}")
            if now - begun > PATIENCE_SECONDS:
                raise ServiceError(f"{full} of {count} segments after {now - begun:.0f} s; the node's log: {node.log}")
            if now - reported > 5:
                reported = now
                say(f"  {full} of {count} segments, {sum(value.value for value in written)} statements, {now - begun:.0f} s")
            time.sleep(0.25)
    finally:
        enough.set()
        for writer in writers:
            writer.join(60)
    return {"statements": sum(value.value for value in written), "seconds": round(time.monotonic() - begun, 1)}


def _index(segment: Path) -> Path:
    return segment.with_name(f"{segment.stem}_cdc.idx")


def _is_finished(segment: Path) -> bool:
    """Whether the node has filled and completed the segment."""
    try:
        index = idx.parse(_index(segment).read_bytes())
    except FileNotFoundError:
        return False
    return index is not None and index.completed


# --- what a writer does, in a process of its own


def write(address: str, port: int, seed: int, enough: Event, written: Any) -> None:
    """Execute statements until `enough` is set; `written` counts acknowledged ones."""
    from cassandra.concurrent import execute_concurrent

    from proof.harness.driver import Connections

    connections = Connections()
    session = connections.open([address], port, "ONE", only=True)
    prepared = {kind: session.prepare(cql) for kind, cql in STATEMENTS.items()}
    statements = _until(enough, Orders(seed).statements(prepared))
    for result in execute_concurrent(session, statements, concurrency=128, results_generator=True):
        if not result.success:
            raise result.result_or_exc
        written.value += 1
    connections.close()


def _until(enough: Event, statements: Iterator[Any]) -> Iterator[Any]:
    for number, statement in enumerate(statements):
        # Reading the flag takes a lock: not for every statement.
        if number % 100 == 0 and enough.is_set():
            return
        yield statement


class Orders:
    """Statements without end, the same ones for the same seed. Updates and deletes find rows that were
    inserted lately.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tenants = [uuid.UUID(int=self.random.getrandbits(128), version=4) for _ in range(500)]
        self.recent: list[tuple[Any, ...]] = []
        # Precomputed text: generating it per row would make the writer the bottleneck.
        self.notes = [self.words(self.random.randint(30, 110)) for _ in range(3000)]

    def statements(self, prepared: dict[str, Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """(prepared statement or batch, values), as the driver's `execute_concurrent` takes them."""
        kinds, weights = list(_SHARES), list(_SHARES.values())
        self.recent = [self.key() for _ in range(100)]
        while True:
            for kind in self.random.choices(kinds, weights, k=1000):
                yield (self.batch(prepared["insert"]), ()) if kind == "batch" else (prepared[kind], self.values(kind))

    def values(self, kind: str) -> tuple[Any, ...]:
        """What a statement's question marks stand for."""
        if kind.startswith("insert"):
            return self.row(self.new_key())
        key = self.random.choice(self.recent)
        if kind == "update":
            return (self.random.choice(WORDS), self.random.getrandbits(40), True, *key)
        if kind == "update a map":
            return (self.random.choice(WORDS), self.words(3), *key)
        if kind == "update static":
            return (self.random.choice(WORDS), *key[:2])
        return key[:3] if kind == "delete range" else key

    def batch(self, insert: Any) -> Any:
        """Rows of one partition: one mutation."""
        from cassandra.query import BatchStatement, BatchType

        batch = BatchStatement(BatchType.UNLOGGED)
        tenant, bucket, placed_at, order_id = self.new_key()
        for number in range(_BATCH_ROWS):
            batch.add(insert, self.row((tenant, bucket, placed_at + timedelta(seconds=number), order_id)))
        return batch

    def key(self) -> tuple[Any, ...]:
        placed_at = FIRST_DAY + timedelta(milliseconds=self.random.randrange(180 * 86_400_000))
        return (
            self.random.choice(self.tenants),
            self.random.randrange(64),
            placed_at,
            uuid.UUID(int=self.random.getrandbits(128), version=4),
        )

    def new_key(self) -> tuple[Any, ...]:
        key = self.key()
        self.recent[self.random.randrange(len(self.recent))] = key
        return key

    def row(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        draw = self.random
        day = draw.randrange(180)
        return (
            *key,
            draw.choice(WORDS),
            draw.getrandbits(50),
            round(draw.uniform(1, 900), 2),
            draw.randrange(1, 4096) / 64,
            Decimal(draw.randint(-(10**7), 10**7)).scaleb(-draw.randint(0, 6)),
            draw.randint(1, 40),
            draw.random() < 0.5,
            draw.getrandbits(80),
            f"{draw.choice(WORDS)}.{draw.getrandbits(40):x}@example.org",
            draw.choice(self.notes),
            draw.randbytes(draw.randint(0, 200)),
            f"198.51.100.{draw.randrange(256)}",
            (FIRST_DAY + timedelta(days=day)).date(),
            draw.randrange(86_400) * 10**9,
            uuid.UUID(int=draw.getrandbits(128), version=1),
            (f"{draw.choice(WORDS)} {draw.randrange(200)}", f"{draw.randrange(10**5):05}", "DE"),
            set(draw.choices(WORDS, k=draw.randrange(5))),
            {word: self.words(2) for word in draw.choices(WORDS, k=draw.randrange(5))},
            [draw.randint(1, 5) for _ in range(draw.randrange(4))],
        )

    def words(self, count: int) -> str:
        return " ".join(self.random.choices(WORDS, k=count))


def main(arguments: list[str]) -> int:
    """Make the segments unless they exist; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--segments", type=int, default=SEGMENTS, help=f"how many segments of {SEGMENT_MB} MiB (default: {SEGMENTS})")
    parser.add_argument("--anew", action="store_true", help="throw away what is there")
    options = parser.parse_args(arguments)
    try:
        paths = segments(count=options.segments, anew=options.anew)
    except ToolError as error:
        say(str(error))
        return 1
    say(f"{paths[0].parent}: {len(paths)} segments, {json.dumps(manifest())}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
