"""Bootstrap on a real cluster: tables are read during writes, and compared at the end of each act.

    acts    bootstrap of tables that had data before they were captured, during writes and deletes; killed half-way and
            resumed, followed by edits of elements and increments of counters
            the same again: no new events
            cdc off, rows, cells and elements deleted, cdc on: what was deleted in the cluster is deleted here

Tests run it on one node with a hundred rows, `make bootstrap-proof` on three nodes with as many as requested.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from random import Random
from threading import Event, Thread
from typing import Any

import yaml
from cassandra import InvalidRequest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent, execute_concurrent_with_args
from cassandra.query import BatchStatement, BatchType

from proof.harness.cassandra import Ring
from proof.ring import answer, check
from proof.ring.answer import Answer
from proof.ring.check import Mismatch
from proof.ring.pipeline import Pipeline, _Replaced
from spark_jobs import bootstrap
from tools import ROOT
from tools.console import say
from writetime.config.cluster import CqlConfig, SnapshotConfig
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.bootstrap.run import HIGHEST, LOWEST, Run, finished_ranges, runs
from writetime.storage import layout

KEYSPACE = "live"
CLUSTER = "living"
"""No other ring's name: nodes of one name find each other, whoever has started them."""
TABLES = ("wide", "counts", "keyed")
ROWS_PER_PARTITION = 20
FEW = 100_000
"""At most so many rows have the tables beside the large one."""
PAGE_ROWS = 5000
LONG = 5_000_000
"""A TTL (s) that does not end while anybody looks."""

SCHEMA = (
    f"CREATE TYPE {KEYSPACE}.u (a int, b text)",
    f"CREATE TABLE {KEYSPACE}.wide (pk int, ck int, st int static, sl list<int> static, v text, n int, l list<int>, s set<text>, "
    'm map<text, int>, u u, f frozen<list<int>>, "Odd name" blob, PRIMARY KEY (pk, ck)) WITH CLUSTERING ORDER BY (ck DESC)',
    f"CREATE TABLE {KEYSPACE}.counts (pk int, ck int, c counter, d counter, PRIMARY KEY (pk, ck))",
    f"CREATE TABLE {KEYSPACE}.keyed (a text, b int, c decimal, PRIMARY KEY ((a, b), c))",
)


@dataclass
class Live:
    """One ring, one pipeline, some rows."""

    ring: Ring
    pipeline: Pipeline
    rows: int
    seed: int = 1
    mismatches: list[Mismatch] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _fillers: int = 0

    def __post_init__(self) -> None:
        node = self.ring.nodes[0]
        cql = CqlConfig(contact_points=[node.address], port=node.port)
        large = self.rows > FEW
        snapshot = SnapshotConfig(ranges=32 if large else 8, page_rows=1000 if large else 200, margin_seconds=1.0)
        cluster = self.pipeline.config.cluster.model_copy(update={"cql": cql, "name": self.ring.cluster_name})
        tables = self.pipeline.config.tables.model_copy(update={"include": [f"{KEYSPACE}.*"]})
        self.pipeline.config = self.pipeline.config.model_copy(update={"cluster": cluster, "snapshot": snapshot, "tables": tables})
        self.session: Session = self.ring.session("ALL" if len(self.ring.nodes) > 1 else "ONE")
        self.random = Random(self.seed)

    @property
    def partitions(self) -> int:
        return max(4, self.rows // ROWS_PER_PARTITION)

    # --- the ring

    def fill(self) -> None:
        """Tables that nobody captures, full."""
        replication = f"{{'class': 'NetworkTopologyStrategy', 'dc1': {len(self.ring.nodes)}}}"
        self.session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}")
        for statement in SCHEMA:
            self.session.execute(statement)
        keys = [(number // ROWS_PER_PARTITION, number % ROWS_PER_PARTITION) for number in range(self.rows)]
        self._all_of_partitions("INSERT INTO wide (pk, ck, v, n) VALUES (?, ?, ?, ?)", [(pk, ck, f"v{pk}-{ck}", pk) for pk, ck in keys])
        third = keys[::3]
        self._all("UPDATE wide SET l = [1, 2, 3], s = {'a', 'b'}, m = {'x': 1}, u = {a: 1} WHERE pk = ? AND ck = ?", third)
        self._all("UPDATE wide SET l = l + [4], m['y'] = 2, u.b = 'b', f = [1, 2] WHERE pk = ? AND ck = ?", third[::2])
        self._all(f'UPDATE wide USING TTL {LONG} SET v = ?, s = s + {{\'t\'}}, "Odd name" = 0x00ff WHERE pk = ? AND ck = ?',
                  [(f"t{ck}", pk, ck) for pk, ck in keys[::7]])  # fmt: skip
        self._all("INSERT INTO wide (pk, ck) VALUES (?, ?)", [(pk, 1000) for pk in range(0, self.partitions, 5)])
        self._all("UPDATE wide SET st = ?, sl = [7, 8] WHERE pk = ?", [(pk, pk) for pk in range(0, self.partitions, 3)])
        self._all("UPDATE wide SET st = ? WHERE pk = ?", [(1, -pk) for pk in range(1, 5)])
        self._all("DELETE FROM wide WHERE pk = ? AND ck = ?", keys[5::11])
        self._all("UPDATE counts SET c = c + ? WHERE pk = ? AND ck = ?", [(ck + 1, pk, ck) for pk, ck in keys[:FEW:2]])
        self._all("UPDATE counts SET d = d - 5 WHERE pk = ? AND ck = ?", keys[:FEW:4])
        self._all("INSERT INTO keyed (a, b, c) VALUES (?, ?, ?)", [(f"a{pk}", pk, ck) for pk, ck in keys[:FEW:5]])

    def cdc(self, on: bool) -> None:
        for table in TABLES:
            self.session.execute(f"ALTER TABLE {KEYSPACE}.{table} WITH cdc = {'true' if on else 'false'}")

    def write(self, count: int = 1) -> None:
        """Some operations of all kinds, somewhere."""
        for _ in range(count):
            pk, ck, number = self.random.randrange(self.partitions), self.random.randrange(ROWS_PER_PARTITION), self.random.randrange(1000)
            row = f"WHERE pk = {pk} AND ck = {ck}"
            statement = self.random.choice(
                (
                    f"UPDATE wide SET v = 'w{number}' {row}",
                    f"INSERT INTO wide (pk, ck, v) VALUES ({pk}, {ck}, 'i{number}')",
                    f"INSERT INTO wide (pk, ck, n) VALUES ({self.partitions + number}, {ck}, 1)",
                    f"UPDATE wide SET v = null, n = null {row}",
                    f"DELETE FROM wide {row}",
                    f"DELETE FROM wide WHERE pk = {pk} AND ck > {ck}",
                    f"DELETE FROM wide WHERE pk = {self.random.randrange(-4, self.partitions)}",
                    f"DELETE l FROM wide {row}",
                    f"UPDATE wide USING TTL {LONG} SET n = {number} {row}",
                    f"UPDATE wide SET st = {number} WHERE pk = {pk}",
                    *self._edits(pk, ck, number),
                    f"DELETE FROM keyed WHERE a = 'a{pk}' AND b = {pk}",
                    f"INSERT INTO keyed (a, b, c) VALUES ('a{pk}', {pk}, {number}.5)",
                )
            )
            self._one(statement)

    def edit(self, count: int) -> None:
        """Elements of collections and counters only."""
        for _ in range(count):
            pk, ck = self.random.randrange(self.partitions), self.random.randrange(ROWS_PER_PARTITION)
            self._one(self.random.choice(self._edits(pk, ck, self.random.randrange(1000))))

    @staticmethod
    def _edits(pk: int, ck: int, number: int) -> tuple[str, ...]:
        row = f"WHERE pk = {pk} AND ck = {ck}"
        return (
            f"UPDATE wide SET l = l + [{number}] {row}",
            f"UPDATE wide SET l = [{number}] + l {row}",
            f"UPDATE wide SET l = l - [2] {row}",
            f"UPDATE wide SET l[0] = {number} {row}",
            f"DELETE l[0] FROM wide {row}",
            f"UPDATE wide SET l = [{number}] {row}",
            f"UPDATE wide SET sl = sl + [{number}] WHERE pk = {pk}",
            f"UPDATE wide SET s = s + {{'{number}'}} {row}",
            f"UPDATE wide SET s = s - {{'a'}} {row}",
            f"UPDATE wide SET m['x'] = {number} {row}",
            f"DELETE m['y'] FROM wide {row}",
            f"UPDATE wide SET u.a = {number} {row}",
            f"UPDATE counts SET c = c + {number} {row}",
            f"UPDATE counts SET d = d - 1 {row}",
        )

    def delete_unseen(self) -> None:
        """What only a reading can find: nobody captures it."""
        keys = [(number // ROWS_PER_PARTITION, number % ROWS_PER_PARTITION) for number in range(self.rows)]
        self._all("DELETE FROM wide WHERE pk = ? AND ck = ?", keys[1::4])
        self._all("DELETE v, s, u FROM wide WHERE pk = ? AND ck = ?", keys[2::9])
        self._all("DELETE m['x'] FROM wide WHERE pk = ? AND ck = ?", keys[3::9])
        self._all("UPDATE wide SET l = l - [3] WHERE pk = ? AND ck = ?", keys[::6])
        self._all("DELETE st FROM wide WHERE pk = ?", [(pk,) for pk in range(0, self.partitions, 6)])
        self._all("DELETE FROM wide WHERE pk = ?", [(pk,) for pk in range(0, self.partitions, 9)])
        self._all("UPDATE counts SET c = c + 3 WHERE pk = ? AND ck = ?", keys[:FEW:10])
        self._all("DELETE FROM keyed WHERE a = ? AND b = ?", [(f"a{pk}", pk) for pk in range(0, self.partitions, 4)])

    def _all(self, statement: str, arguments: list[Any]) -> None:
        prepared = self.session.prepare(_qualified(statement))
        for success, result in execute_concurrent_with_args(self.session, prepared, arguments, concurrency=32, results_generator=True):
            assert success, result

    def _all_of_partitions(self, statement: str, arguments: list[Any]) -> None:
        """The same, with the rows of a partition in one write; they stand one after the other, the partition
        key first.
        """
        prepared, batches = self.session.prepare(_qualified(statement)), []
        for _, rows in groupby(arguments, itemgetter(0)):
            batch = BatchStatement(BatchType.UNLOGGED)
            for row in rows:
                batch.add(prepared, row)
            batches.append((batch, None))
        for success, result in execute_concurrent(self.session, batches, concurrency=32, results_generator=True):
            assert success, result

    def _one(self, statement: str) -> None:
        try:
            self.session.execute(_qualified(statement))
        except InvalidRequest as error:
            # A list that is null, or too short for l[0].
            if "list" not in str(error).lower():
                raise
        self.done[statement.split()[0]] += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Somebody writes all the while."""
        stop = Event()
        failed: list[Exception] = []

        def write() -> None:
            try:
                while not stop.is_set():
                    self.write()
                    time.sleep(0.02)
            except Exception as error:  # noqa: BLE001 - it is told by whoever waits
                failed.append(error)

        writer = Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
        assert not failed, failed

    # --- the product

    def bootstrap(self, *, tables: tuple[str, ...] = TABLES, due: bool = False, part: tuple[int, int] | None = None) -> list[Run]:
        with _Replaced(bootstrap, "spark_session", self.pipeline._session):
            found = bootstrap.run(self.pipeline.config, tables=[f"{KEYSPACE}.{name}" for name in tables if not due], due=due, part=part)
        say("\n".join(f"{run.line()}, {(run.finished_at or run.updated_at) - run.started_at}" for run in found))
        return found

    def killed_bootstrap(self, table: str) -> None:
        """The job as a process of its own, killed when it has finished half of its ranges."""
        slow = self.pipeline.config.snapshot.model_copy(
            update={"rows_per_second": max(20, self.rows // 8), "page_rows": max(20, self.rows // 1000), "readers": 1}
        )
        config = self.pipeline.config.model_copy(update={"snapshot": slow})
        file = self.pipeline.folder / "bootstrap.yaml"
        file.write_text(as_yaml(config), encoding="utf-8")
        command = [sys.executable, "-m", "spark_jobs.bootstrap", "--config", str(file), "--table", f"{KEYSPACE}.{table}"]
        said = self.pipeline.folder / "killed.log"
        with said.open("wb") as log:
            job = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 1800
            while not self._half_way(table):
                assert job.poll() is None, f"it ended before it could be killed:\n{said.read_text()[-4000:]}"
                assert time.monotonic() < deadline, f"it is not half-way yet:\n{said.read_text()[-4000:]}"
                time.sleep(0.1)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()

    def _half_way(self, table: str) -> bool:
        store = self.pipeline.store
        return any(2 * len(finished_ranges(store, run)) >= len(run.ranges) for run in runs(store, CLUSTER, KEYSPACE, table))

    def take_in(self) -> None:
        """Everything that has been written, to the end; and what has to be read again, until nothing has."""
        self._roll()
        for node in self.ring.nodes:
            shipped = self.pipeline.ship(node)
            assert not shipped.failed, shipped.failed
        self._batches()
        for _ in range(10):
            if not list(self.pipeline.store.list(layout.incomplete_rows_prefix(CLUSTER))):
                return
            with _Replaced(bootstrap, "spark_session", self.pipeline._session):
                bootstrap.run(self.pipeline.config, incomplete_rows=True)
            self.done["read again"] += 1
            self._batches()
        raise AssertionError("incomplete rows remain after ten reads")

    def _batches(self) -> None:
        while (sealed := self.pipeline.batch()) is not None:
            self.mismatches += check.check_batch(sealed, self.pipeline.updates(sealed), f"batch {sealed.number}")

    def _roll(self) -> None:
        """Dropping a table ends the current segment on every node."""
        self._fillers += 1
        self.session.execute(f"CREATE TABLE {KEYSPACE}.filler_{self._fillers} (p int PRIMARY KEY)")
        self.session.execute(f"DROP TABLE {KEYSPACE}.filler_{self._fillers}")
        time.sleep(1.0)

    def compare(self, where: str) -> Answer:
        reader = self.ring.session("ALL")
        found = answer.read(reader, page_rows=PAGE_ROWS)
        reader.cluster.shutdown()
        self.take_in()
        mismatches = check.check(found, self.pipeline.lake, where)
        say(f"{where}: {sum(len(table.rows) for table in found.tables)} rows, {len(mismatches)} mismatches, {dict(self.done)}")
        self.mismatches += mismatches
        return found


def prove(live: Live) -> None:
    """All acts."""
    live.fill()
    live.cdc(True)
    with live.writing():
        live.write(5)
        live._roll()
        for node in live.ring.nodes:
            live.pipeline.ship(node)
        live.killed_bootstrap("wide")
        found = live.bootstrap(due=True)
    assert {run.table for run in found} == set(TABLES)
    assert all(run.finished_at for run in found)
    live.compare("after the bootstrap")
    live.edit(60)
    live.compare("after edits of elements and counters")
    found = live.bootstrap()
    live.compare("after the same once more")
    live.done["frames of the second run"] = sum(run.frames for run in found)
    prove_parts(live, next(run.rows for run in found if run.table == "keyed"))
    live.cdc(False)
    live.delete_unseen()
    time.sleep(live.pipeline.config.snapshot.margin_seconds)
    live.cdc(True)
    live.bootstrap()
    live.compare("after deletes that nobody captured")


def prove_parts(live: Live, rows: int) -> None:
    """One half of the ring's tokens, and the other: together all rows, none of which is news."""
    halves = [run for part in ((LOWEST, 0), (0, HIGHEST)) for run in live.bootstrap(tables=("keyed",), part=part)]
    assert [run.part for run in halves] == [(LOWEST, 0), (0, HIGHEST)]
    assert sum(run.rows for run in halves) == rows
    assert all(0 < run.rows < rows for run in halves) or rows < 4
    live.done["frames of the second run"] += sum(run.frames for run in halves)


def _qualified(statement: str) -> str:
    for word in ("INTO", "UPDATE", "FROM"):
        statement = statement.replace(f"{word} ", f"{word} {KEYSPACE}.", 1) if f"{word} " in statement else statement
    return statement


def as_yaml(config: PipelineConfig) -> str:
    return yaml.safe_dump(config.model_dump(mode="json", by_alias=True, exclude_none=True))
