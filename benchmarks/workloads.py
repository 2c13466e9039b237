"""What the whole path is measured with: mutations that a real node has logged, by table.

    orders()                  the table of `data.py`: 23 columns of mixed types, about 1 KB a row
    other("wide")             100 columns; "narrow": 4; "collections", with statics; "deletes": 10 % of the statements
    recorded()                a recorded workload of 3,700 statements, for tests: needs no node

Strategy: one node logs the four other tables, a fixed number of statements each, one table after the other; its
segments are kept in var/bench/tables. A workload is what was logged of its table, and the DDL before it, cut to
a number of segments. The segments of three replicas are encoded from it (`batch.py`): the same bytes, in an order
of their own. Seeds are fixed, clocks are not: two runs are similar, not equal.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.batch import REPLICAS, SEGMENT_BYTES, bodies_of, log_of, usable
from tools import ROOT
from tools.console import say, step
from tools.errors import ServiceError, ToolError
from writetime.cassandra.commitlog.segment import scan

FOLDER = ROOT / "var" / "bench" / "tables"
KEYSPACE = "bench_tables"
MANIFEST = "tables.json"
MEBIBYTE = 1 << 20
SMALL = 1000
"""Mutations of a small batch."""
_WRITERS = 2
_PATIENCE_SECONDS = 1200.0


@dataclass(frozen=True)
class Workload:
    """Mutations of a captured table, in log order; the first ones have its DDL. `few`: later ones, for small
    batches, which need no DDL.
    """

    table: str
    bodies: list[bytes]
    few: list[list[bytes]]
    segment_bytes: int = SEGMENT_BYTES

    def logs(self) -> list[list[list[bytes]]]:
        """The mutations of each segment, of each replica."""
        return [log_of(self.bodies, seed, self.segment_bytes) for seed in range(REPLICAS)]


def orders(segments: int, small_batches: int = 5) -> Workload:
    """The table of orders, in so many segments of a replica. ServiceError if no node can be started."""
    more = bodies_of(segments + 1) if small_batches else []
    return Workload(f"{data.KEYSPACE}.orders", bodies_of(segments), _batches(more, SMALL, small_batches))


def recorded(small: int = 100, small_batches: int = 2) -> Workload:
    """The orders of a recorded cluster, as one of its nodes logged them."""
    from proof.recording.recording import Recording

    recording = Recording.open()
    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        staged = recording.stage(Path(temporary))[recording.nodes[0].host_id]
        bodies = list(_bodies(staged))
    rest = len(bodies) - small * small_batches
    return Workload("shop.orders", bodies[:rest], _batches(bodies, small, small_batches), MEBIBYTE)


def other(name: str, segments: int | None = None) -> Workload:
    """One of the other tables; made by a node of its own if it is not there. ServiceError if that fails."""
    kind = OTHERS[name]
    if not (FOLDER / MANIFEST).exists():
        _make(FOLDER)
    ids = {table: uuid.UUID(text) for table, text in json.loads((FOLDER / MANIFEST).read_text(encoding="utf-8"))["ids"].items()}
    ddl, own = _of_table(_bodies(FOLDER), ids, name)
    few, own = own[:SMALL], own[SMALL:]
    bodies = _cut(own, (segments or kind.segments) * usable(kind.segment_bytes))
    return Workload(f"{KEYSPACE}.{name}", bodies, [ddl + few], kind.segment_bytes)


def _batches(bodies: Sequence[bytes], size: int, count: int) -> list[list[bytes]]:
    """The last ones, in batches."""
    last = bodies[len(bodies) - size * count :]
    return [list(last[at : at + size]) for at in range(0, len(last), size)]


def _bodies(folder: Path) -> Iterator[bytes]:
    for path in data.paths(folder):
        found = scan(path.read_bytes(), name=path.name)
        yield from (found.body(frame) for frame in found.frames)


def _of_table(bodies: Iterator[bytes], ids: dict[str, uuid.UUID], name: str) -> tuple[list[bytes], list[bytes]]:
    """What was logged before the first write to any of the tables, and the mutations of this one. A mutation
    begins with the number of its partition updates, one byte here, and the first table's id.
    """
    ddl: list[bytes] = []
    own: list[bytes] = []
    every = {table_id.bytes for table_id in ids.values()}
    begun = False
    for body in bodies:
        of = body[1:17]
        begun = begun or of in every
        if of == ids[name].bytes:
            own.append(body)
        elif not begun:
            ddl.append(body)
    return ddl, own


def _cut(bodies: Sequence[bytes], room: int) -> list[bytes]:
    found: list[bytes] = []
    for body in bodies:
        room -= len(body) + 12
        if room < 0:
            break
        found.append(body)
    return found


# --- tables


@dataclass(frozen=True)
class Other:
    """A table: how it is created, its statements by kind, the share of each, and how many are executed.
    `values`: the values of a statement of a kind, with a seed's own random numbers.
    """

    ddl: str
    statements: dict[str, str]
    shares: dict[str, int]
    count: int
    values: Callable[[random.Random], Callable[[str], tuple[Any, ...]]]
    segments: int = 1
    segment_bytes: int = SEGMENT_BYTES


_WIDE_TYPES = ("text", "int", "bigint", "double", "boolean", "timestamp", "text", "uuid", "smallint", "date")
_WIDE = {f"c{number:02}": _WIDE_TYPES[number % len(_WIDE_TYPES)] for number in range(99)}
_WIDE_UPDATED = ("c00", "c01", "c03", "c10", "c16")


def _wide(draw: random.Random) -> Callable[[str], tuple[Any, ...]]:
    texts = [_text(draw, draw.randint(1, 6)) for _ in range(1000)]
    day = data.FIRST_DAY
    makers: dict[str, Callable[[], Any]] = {
        "text": lambda: draw.choice(texts),
        "int": lambda: draw.randrange(2**31),
        "bigint": lambda: draw.getrandbits(50),
        "double": draw.random,
        "boolean": lambda: draw.random() < 0.5,
        "timestamp": lambda: day + timedelta(milliseconds=draw.randrange(10**10)),
        "uuid": lambda: uuid.UUID(int=draw.getrandbits(128), version=4),
        "smallint": lambda: draw.randrange(2**15),
        "date": lambda: (day + timedelta(days=draw.randrange(200))).date(),
    }
    recent: list[uuid.UUID] = [uuid.UUID(int=draw.getrandbits(128), version=4)]

    def values(kind: str) -> tuple[Any, ...]:
        if kind == "update":
            return (*(makers[_WIDE[name]]() for name in _WIDE_UPDATED), draw.choice(recent[-500:]))
        recent.append(uuid.UUID(int=draw.getrandbits(128), version=4))
        return (recent[-1], *(makers[of]() for of in _WIDE.values()))

    return values


def _narrow(draw: random.Random) -> Callable[[str], tuple[Any, ...]]:
    clock = iter(range(10**9))
    sensors = draw.randrange(10**6)

    def values(kind: str) -> tuple[Any, ...]:
        number = next(clock)
        key = sensors + number % 1000, data.FIRST_DAY + timedelta(milliseconds=number if kind == "insert" else number // 2)
        return (*key, draw.random(), draw.randrange(4)) if kind == "insert" else (draw.randrange(4), *key)

    return values


def _collections(draw: random.Random) -> Callable[[str], tuple[Any, ...]]:
    """Rows of partitions that are written to again and again: statics, whole collections and single elements."""
    base = draw.getrandbits(64)

    def values(kind: str) -> tuple[Any, ...]:
        key = f"{base:x}-{draw.randrange(5000)}", draw.randrange(20)
        words = [_text(draw, 2) for _ in range(draw.randrange(1, 5))]
        made: dict[str, tuple[Any, ...]] = {
            "insert": (*key, list(range(len(words))), set(words), dict(zip(words, reversed(words), strict=True)), draw.randrange(10**6)),
            "static": (words[0], key[0]),
            "static map": ({words[0]: draw.randrange(100)}, key[0]),
            "put into map": (draw.choice(data.WORDS), words[0], *key),
            "remove from map": (draw.choice(data.WORDS), *key),
            "add to set": (set(words), *key),
            "append to list": ([draw.randrange(100)], *key),
            "replace set": (set(words), *key),
        }
        return made[kind]

    return values


def _deletes(draw: random.Random) -> Callable[[str], tuple[Any, ...]]:
    of = data.Orders(draw.randrange(10**6))
    of.recent = [of.key() for _ in range(500)]

    def values(kind: str) -> tuple[Any, ...]:
        return of.values(kind)[:2] if kind == "delete partition" else of.values(kind)

    return values


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(data.WORDS, k=words))


_COLLECTIONS = f"{KEYSPACE}.collections"
_KEY = "WHERE key = ? AND n = ?"
OTHERS = {
    "wide": Other(
        f"CREATE TABLE {KEYSPACE}.wide (id uuid PRIMARY KEY, {', '.join(f'{name} {of}' for name, of in _WIDE.items())}) WITH cdc = true",
        {
            "insert": f"INSERT INTO {KEYSPACE}.wide (id, {', '.join(_WIDE)}) VALUES ({', '.join('?' * 100)})",
            "update": f"UPDATE {KEYSPACE}.wide SET {', '.join(f'{name} = ?' for name in _WIDE_UPDATED)} WHERE id = ?",
        },
        {"insert": 80, "update": 20},
        62_000,
        _wide,
        segments=2,
    ),
    "narrow": Other(
        f"CREATE TABLE {KEYSPACE}.narrow (sensor int, at timestamp, value double, quality int, PRIMARY KEY (sensor, at)) WITH cdc = true",
        {
            "insert": f"INSERT INTO {KEYSPACE}.narrow (sensor, at, value, quality) VALUES (?, ?, ?, ?)",
            "update": f"UPDATE {KEYSPACE}.narrow SET quality = ? WHERE sensor = ? AND at = ?",
        },
        {"insert": 95, "update": 5},
        200_000,
        _narrow,
        segment_bytes=SEGMENT_BYTES // 2,
    ),
    "collections": Other(
        f"CREATE TABLE {_COLLECTIONS} (key text, n int, label text static, totals map<text, int> static, numbers list<int>, tags set<text>,"
        " attributes map<text, text>, amount int, PRIMARY KEY (key, n)) WITH cdc = true",
        {
            "insert": f"INSERT INTO {_COLLECTIONS} (key, n, numbers, tags, attributes, amount) VALUES (?, ?, ?, ?, ?, ?)",
            "static": f"UPDATE {_COLLECTIONS} SET label = ? WHERE key = ?",
            "static map": f"UPDATE {_COLLECTIONS} SET totals = totals + ? WHERE key = ?",
            "put into map": f"UPDATE {_COLLECTIONS} SET attributes[?] = ? {_KEY}",
            "remove from map": f"DELETE attributes[?] FROM {_COLLECTIONS} {_KEY}",
            "add to set": f"UPDATE {_COLLECTIONS} SET tags = tags + ? {_KEY}",
            "append to list": f"UPDATE {_COLLECTIONS} SET numbers = numbers + ? {_KEY}",
            "replace set": f"UPDATE {_COLLECTIONS} SET tags = ? {_KEY}",
        },
        {"insert": 50, "static": 8, "static map": 4, "put into map": 12, "remove from map": 4, "add to set": 8, "append to list": 8}
        | {"replace set": 6},
        110_000,
        _collections,
        segment_bytes=SEGMENT_BYTES // 2,
    ),
    "deletes": Other(
        data.DDL[2].replace(f"{data.KEYSPACE}.orders", f"{KEYSPACE}.deletes"),
        {kind: cql.replace(f"{data.KEYSPACE}.orders", f"{KEYSPACE}.deletes") for kind, cql in data.STATEMENTS.items()}
        | {"delete partition": f"DELETE FROM {KEYSPACE}.deletes WHERE tenant = ? AND bucket = ?"},
        {"insert": 85, "update": 5, "delete row": 6, "delete range": 2, "delete partition": 2},
        80_000,
        _deletes,
        segments=2,
    ),
}


# --- the node


def _make(folder: Path) -> None:
    """Let a node log all the tables. The folder is there when it is complete."""
    from proof.harness.cassandra import Ring

    with tempfile.TemporaryDirectory(prefix="writetime-bench-") as temporary:
        ring = Ring(Path(temporary), heap="1G", segment_mb=data.SEGMENT_MB, cdc_total_mb=2048)
        with step(f"one node of Cassandra {ring.version}, for {', '.join(OTHERS)}"):
            ring.start()
        try:
            ids = _write(ring)
        finally:
            with step("stopping the node"):
                ring.close()
        fresh = folder.with_name(f"{folder.name}.fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for path in data.paths(ring.nodes[0].cdc_raw):
            shutil.copy2(path, fresh)
        (fresh / MANIFEST).write_text(json.dumps({"version": ring.version, "ids": ids}, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)


def _write(ring: Any) -> dict[str, str]:
    """Create the tables, then write them one after the other; their ids."""
    node = ring.nodes[0]
    session = node.session()
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}")
    session.execute(data.DDL[1].replace(f"{data.KEYSPACE}.", f"{KEYSPACE}."))
    for other_table in OTHERS.values():
        session.execute(other_table.ddl)
    for name, other_table in OTHERS.items():
        with step(f"{other_table.count:,} statements to {KEYSPACE}.{name}"):
            _write_table(node, name)
    found = session.execute(f"SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = '{KEYSPACE}'")
    return {row.table_name: str(row.id) for row in found}


def _write_table(node: Any, name: str) -> None:
    # Fresh interpreters: a driver's sockets and threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write, args=(node.address, node.port, name, seed), daemon=True) for seed in range(_WRITERS)]
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(max(0.0, deadline - time.monotonic()))
    if failed := [writer.exitcode for writer in writers if writer.exitcode != 0]:
        raise ServiceError(f"a writer of {name} failed or took too long, exit code {failed[0]}; the node's log: {node.log}")


def write(address: str, port: int, name: str, seed: int) -> None:
    """Execute a writer's share of a table's statements, in a process of its own."""
    from cassandra.concurrent import execute_concurrent

    from proof.harness.driver import Connections

    of = OTHERS[name]
    connections = Connections()
    session = connections.open([address], port, "ONE", only=True)
    prepared = {kind: session.prepare(cql) for kind, cql in of.statements.items()}
    for result in execute_concurrent(session, islice(_statements(of, seed, prepared), of.count // _WRITERS), concurrency=128,
                                     results_generator=True):  # fmt: skip
        if not result.success:
            raise result.result_or_exc
    connections.close()


def _statements(of: Other, seed: int, prepared: dict[str, Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    draw = random.Random(seed)
    values = of.values(draw)
    while True:
        for kind in draw.choices(list(of.shares), list(of.shares.values()), k=1000):
            yield prepared[kind], values(kind)


def main() -> int:
    """Make the tables' segments unless they are there."""
    try:
        for name in OTHERS:
            found = other(name)
            size = sum(map(len, found.bodies))
            say(f"{found.table}: {len(found.bodies)} mutations, {size / 1e6:.1f} MB, {size / len(found.bodies):.0f} bytes each")
    except ToolError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
