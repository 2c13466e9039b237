"""Tables of all kinds of columns, and somebody who writes to them.

Some tables are full before anybody captures them, others are captured from their first write on. Half of all
writes go to a few partitions, so that a reading, its log and later writes are about the same rows. The seed
decides the statements; when each of them is executed depends on the machine.

Knows CQL only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from random import Random
from threading import Event
from typing import Any, Final

from cassandra import DriverException, InvalidRequest
from cassandra.cluster import NoHostAvailable, Session
from cassandra.concurrent import execute_concurrent, execute_concurrent_with_args
from cassandra.query import BatchStatement, BatchType

from tools.background import in_background

KEYSPACE: Final = "live"
LATE: Final = ("wide", "counts", "keyed", "brief")
"""Tables that have rows before cdc is enabled."""
EARLY: Final = ("wide_new", "counts_new")
"""Tables that are captured from their first write on."""
MARKS: Final = "marks"
"""A captured table of which each row says that what was written before it is older."""
TABLES: Final = (*LATE, *EARLY)
ROWS_PER_PARTITION: Final = 20
_HOT: Final = 6
"""So many partitions get half of all writes."""
FEW: Final = 100_000
"""At most so many rows have the tables beside the large one."""
LONG: Final = 5_000_000
"""A TTL (s) that does not end while anybody looks."""
SHORT: Final = (4, 25)
"""TTLs (s) that end during the run."""

_WIDE = (
    "(pk int, ck int, st int static, sl list<int> static, v text, n int, l list<int>, s set<text>, "
    'm map<text, int>, u u, f frozen<list<int>>, "Odd name" blob, PRIMARY KEY (pk, ck)) WITH CLUSTERING ORDER BY (ck DESC)'
)
_COUNTS = "(pk int, ck int, c counter, d counter, PRIMARY KEY (pk, ck))"
SCHEMA: Final = (
    f"CREATE TYPE {KEYSPACE}.u (a int, b text)",
    f"CREATE TABLE {KEYSPACE}.wide {_WIDE}",
    f"CREATE TABLE {KEYSPACE}.counts {_COUNTS}",
    f"CREATE TABLE {KEYSPACE}.keyed (a text, b int, c decimal, PRIMARY KEY ((a, b), c))",
    f"CREATE TABLE {KEYSPACE}.brief (pk int, ck int, v text, m map<text, int>, PRIMARY KEY (pk, ck)) "
    f"WITH default_time_to_live = {SHORT[1]}",
    f"CREATE TABLE {KEYSPACE}.wide_new {_WIDE} AND cdc = true",
    f"CREATE TABLE {KEYSPACE}.counts_new {_COUNTS} WITH cdc = true",
    f"CREATE TABLE {KEYSPACE}.{MARKS} (p int PRIMARY KEY) WITH cdc = true",
)


class Workload:
    """All writes. `session` fills and deletes at ALL, `writers` is the session of who writes meanwhile."""

    def __init__(self, session: Session, writers: Session, rows: int, replicas: int, seed: int, *, of_elements: bool = True) -> None:
        """`of_elements`: the cluster returns the TTLs of elements, so that one that is in no log is known to expire."""
        self.session, self._writers, self.rows, self._replicas = session, writers, rows, replicas
        self._of_elements = of_elements
        self._random = Random(f"{seed} writes")
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.expired_by = 0.0
        """When everything with a short TTL has expired (s since the epoch)."""
        self.longest_write = 0.0
        self._marks = 0

    @property
    def partitions(self) -> int:
        return max(4, self.rows // ROWS_PER_PARTITION)

    # --- before and between

    def create(self) -> None:
        replication = f"{{'class': 'NetworkTopologyStrategy', 'dc1': {self._replicas}}}"
        self.session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}")
        for statement in SCHEMA:
            self.session.execute(statement)

    def fill(self) -> None:
        """Rows of the tables that nobody captures yet, and some of those that are captured."""
        keys = self._keys()
        for wide, some in (("wide", keys), ("wide_new", keys[::8])):
            values = [(pk, ck, f"v{pk}-{ck}", pk) for pk, ck in some]
            self._all_of_partitions(f"INSERT INTO {wide} (pk, ck, v, n) VALUES (?, ?, ?, ?)", values)
            third = some[::3]
            collections = "l = [1, 2, 3], s = {'a', 'b'}, m = {'x': 1}, u = {a: 1}"
            self._all(f"UPDATE {wide} SET {collections} WHERE pk = ? AND ck = ?", third)
            self._all(f"UPDATE {wide} SET l = l + [4], m['y'] = 2, u.b = 'b', f = [1, 2] WHERE pk = ? AND ck = ?", third[::2])
            self._all(f'UPDATE {wide} USING TTL {LONG} SET v = ?, s = s + {{\'t\'}}, "Odd name" = 0x00ff WHERE pk = ? AND ck = ?',
                      [(f"t{ck}", pk, ck) for pk, ck in some[::7]])  # fmt: skip
            self._all(f"UPDATE {wide} SET n = 1, l = [5] WHERE pk = ? AND ck = ?", [(pk, 500) for pk in self._every(7)])
            self._all(f"INSERT INTO {wide} (pk, ck) VALUES (?, ?)", [(pk, 1000) for pk in self._every(5)])
            self._all(f"UPDATE {wide} SET st = ?, sl = [7, 8] WHERE pk = ?", [(pk, pk) for pk in self._every(3)])
            self._all(f"UPDATE {wide} SET st = ? WHERE pk = ?", [(1, -pk) for pk in range(1, 5)])
            self._all(f"DELETE FROM {wide} WHERE pk = ? AND ck = ?", some[5::11])
        for counts, some in (("counts", keys[:FEW]), ("counts_new", keys[:FEW:8])):
            self._all(f"UPDATE {counts} SET c = c + ? WHERE pk = ? AND ck = ?", [(ck + 1, pk, ck) for pk, ck in some[::2]])
            self._all(f"UPDATE {counts} SET d = d - 5 WHERE pk = ? AND ck = ?", some[::4])
        self._all("INSERT INTO keyed (a, b, c) VALUES (?, ?, ?)", [(f"a{pk}", pk, ck) for pk, ck in keys[:FEW:5]])

    def fill_short(self) -> None:
        """Rows, cells and elements that are there when a reading begins, and soon are not."""
        hot = [(pk, ck) for pk in range(_HOT) for ck in range(ROWS_PER_PARTITION)]
        self._all("INSERT INTO brief (pk, ck, v) VALUES (?, ?, 'brief')", hot)
        if self._of_elements:
            self._all("UPDATE brief SET m = {'x': 1} WHERE pk = ? AND ck = ?", hot[::2])
        for wide in ("wide", "wide_new"):
            self._all(f"INSERT INTO {wide} (pk, ck, v, n) VALUES (?, ?, 'short', 1) USING TTL {SHORT[1]}", [(pk, 700) for pk, _ in hot])
            elements = "l = l + [9], s = s + {'e'}, u.b = 'e'" if self._of_elements else "v = 'e'"
            self._all(f"UPDATE {wide} USING TTL {SHORT[1]} SET {elements} WHERE pk = ? AND ck = ?", hot[::3])
        self._note_expiry(SHORT[1])

    def cdc(self, on: bool) -> None:
        for table in LATE:
            self.session.execute(f"ALTER TABLE {KEYSPACE}.{table} WITH cdc = {'true' if on else 'false'}")

    def delete_unseen(self) -> None:
        """What only a reading can find: nobody captures it."""
        keys = self._keys()
        self._all("DELETE FROM wide WHERE pk = ? AND ck = ?", keys[1::4])
        self._all("DELETE v, s, u FROM wide WHERE pk = ? AND ck = ?", keys[2::9])
        self._all("DELETE m['x'] FROM wide WHERE pk = ? AND ck = ?", keys[3::9])
        self._all("UPDATE wide SET l = l - [3] WHERE pk = ? AND ck = ?", keys[::6])
        self._all("DELETE st FROM wide WHERE pk = ?", [(pk,) for pk in self._every(6)])
        self._all("DELETE FROM wide WHERE pk = ?", [(pk,) for pk in self._every(9)])
        self._all("UPDATE counts SET c = c + 3 WHERE pk = ? AND ck = ?", keys[:FEW:10])
        self._all("DELETE FROM keyed WHERE a = ? AND b = ?", [(f"a{pk}", pk) for pk in self._every(4)])

    def mark(self) -> float:
        """Write a mark, after which nothing is written: when that was (s since the epoch)."""
        self._marks += 1
        self.session.execute(f"INSERT INTO {KEYSPACE}.{MARKS} (p) VALUES ({self._marks})")
        return time.time()

    # --- all the while

    @contextmanager
    def writing(self, rate: float, *, elements: bool = False) -> Iterator[None]:
        """Somebody writes at that rate (1/s); with `elements`, elements and counters for the most part."""
        failed: list[Exception] = []

        def write(over: Event) -> None:
            try:
                while not over.wait(1 / rate):
                    self._write(elements)
            except Exception as error:  # noqa: BLE001 - it is raised by whoever waits
                failed.append(error)

        with in_background(write):
            yield
        if failed:
            raise failed[0]

    def _write(self, elements: bool) -> None:
        table = self._random.choice(TABLES)
        kind = table.removesuffix("_new")
        if kind == "wide":
            statement = self._wide(table, elements)
        else:
            statement = {"counts": self._counts, "keyed": self._keyed, "brief": self._brief}[kind](table)
        begun = time.monotonic()
        try:
            self._writers.execute(_qualified(statement))
        except InvalidRequest as error:
            # A list that is null, or too short for l[1].
            if "list" not in str(error).lower():
                raise
        except (DriverException, NoHostAvailable) as error:
            # It may have been applied or not: both are compared.
            self.refused[type(error).__name__] += 1
        else:
            self.done[statement.split()[0]] += 1
        self.longest_write = max(self.longest_write, time.monotonic() - begun)

    def _place(self) -> tuple[int, int, int]:
        partitions = min(_HOT, self.partitions) if self._random.random() < 0.5 else self.partitions
        return self._random.randrange(partitions), self._random.randrange(ROWS_PER_PARTITION), self._random.randrange(1000)

    def _wide(self, table: str, elements: bool) -> str:
        pk, ck, number = self._place()
        row = f"WHERE pk = {pk} AND ck = {ck}"
        # Rows that no INSERT has made.
        updated = f"WHERE pk = {pk} AND ck = {500 + number % 8}"
        edits = self._edits(table, pk, self._random.choice((row, row, row, updated)), number)
        if elements and self._random.random() < 0.8:
            return self._random.choice(edits)
        short = self._random.randint(*SHORT)
        expiring: tuple[str, ...] = (
            f"INSERT INTO {table} (pk, ck, v) VALUES ({pk}, {700 + number % 5}, 'e{number}') USING TTL {short}",
            f"INSERT INTO {table} (pk, ck, v, f) VALUES ({pk}, {ck}, 'e{number}', [{number}, 1]) USING TTL {short}",
            f"UPDATE {table} USING TTL {short} SET n = {number}, f = [{number}] {row}",
            f"UPDATE {table} USING TTL {short} SET v = 'e{number}' WHERE pk = {pk} AND ck = {600 + number % 5}",
            f"UPDATE {table} USING TTL {short} SET st = {number} WHERE pk = {pk}",
        )
        if self._of_elements:
            expiring += (
                f"INSERT INTO {table} (pk, ck, v, l) VALUES ({pk}, {ck}, 'e{number}', [{number}, 1]) USING TTL {short}",
                f"UPDATE {table} USING TTL {short} SET l = l + [{number}], s = s + {{'e{number % 5}'}}, m['e'] = {number}, u.b = 'e' {row}",
                f"UPDATE {table} USING TTL {short} SET sl = sl + [{number}] WHERE pk = {pk}",
            )
        others = (
            f"UPDATE {table} SET v = 'w{number}' {row}",
            f"UPDATE {table} SET v = 'w{number}', n = {number} {updated}",
            f"UPDATE {table} SET v = null, n = null {updated}",
            f"INSERT INTO {table} (pk, ck, v) VALUES ({pk}, {ck}, 'i{number}')",
            f"INSERT INTO {table} (pk, ck, n) VALUES ({self.partitions + number}, {ck}, 1)",
            f"UPDATE {table} SET v = null, n = null {row}",
            f"UPDATE {table} USING TTL {LONG} SET n = {number} {row}",
            f"UPDATE {table} SET st = {number} WHERE pk = {pk}",
        )
        deletes = (
            f"DELETE FROM {table} {row}",
            f"DELETE FROM {table} WHERE pk = {pk} AND ck > {ck} AND ck < {ck + 4}",
            f"DELETE FROM {table} WHERE pk = {self._random.randrange(-4, self.partitions)}",
            f"DELETE v, l FROM {table} {row}",
            f"DELETE st, sl FROM {table} WHERE pk = {pk}",
        )
        chosen = self._random.choices(("edit", "expiring", "other", "delete"), (8, 4, 6, 2))[0]
        if chosen == "expiring":
            self._note_expiry(short)
        return self._random.choice({"edit": edits, "expiring": expiring, "other": others, "delete": deletes}[chosen])

    @staticmethod
    def _edits(table: str, pk: int, row: str, number: int) -> tuple[str, ...]:
        return (
            f"UPDATE {table} SET l = l + [{number}] {row}",
            f"UPDATE {table} SET l = l + [{number}, 2] {row}",
            f"UPDATE {table} SET l = [{number}] + l {row}",
            f"UPDATE {table} SET l = l - [2] {row}",
            f"UPDATE {table} SET l[0] = {number} {row}",
            f"UPDATE {table} SET l[1] = {number} {row}",
            f"DELETE l[0] FROM {table} {row}",
            f"DELETE l[1] FROM {table} {row}",
            f"UPDATE {table} SET l = [{number}] {row}",
            f"UPDATE {table} SET sl = sl + [{number}] WHERE pk = {pk}",
            f"UPDATE {table} SET s = s + {{'{number % 9}'}} {row}",
            f"UPDATE {table} SET s = s - {{'a'}} {row}",
            f"UPDATE {table} SET m['x'] = {number} {row}",
            f"UPDATE {table} SET m = {{'z': {number}}} {row}",
            f"DELETE m['y'] FROM {table} {row}",
            f"UPDATE {table} SET u.a = {number} {row}",
            f"UPDATE {table} SET u = {{a: {number}, b: 'n'}} {row}",
            f"DELETE u.b FROM {table} {row}",
        )

    def _counts(self, table: str) -> str:
        pk, ck, number = self._place()
        row = f"WHERE pk = {pk} AND ck = {ck}"
        return self._random.choice((f"UPDATE {table} SET c = c + {number} {row}", f"UPDATE {table} SET d = d - 1, c = c + 2 {row}"))

    def _keyed(self, table: str) -> str:
        pk, ck, number = self._place()
        partition = f"a = 'a{pk}' AND b = {pk}"
        return self._random.choice(
            (
                f"INSERT INTO {table} (a, b, c) VALUES ('a{pk}', {pk}, {number}.5)",
                f"INSERT INTO {table} (a, b, c) VALUES ('a{pk}', {pk}, {ck}) USING TTL {LONG}",
                f"DELETE FROM {table} WHERE {partition} AND c = {ck}",
                f"DELETE FROM {table} WHERE {partition}",
            )
        )

    def _brief(self, table: str) -> str:
        pk, ck, number = self._place()
        self._note_expiry(SHORT[1])
        element = f", m['y'] = {number}" if self._of_elements else ""
        return self._random.choice(
            (
                f"INSERT INTO {table} (pk, ck, v) VALUES ({pk}, {ck}, 'b{number}')",
                f"UPDATE {table} SET v = 'u{number}'{element} WHERE pk = {pk} AND ck = {ck}",
                f"DELETE m['x'] FROM {table} WHERE pk = {pk} AND ck = {ck}",
            )
        )

    def _note_expiry(self, ttl: int) -> None:
        self.expired_by = max(self.expired_by, time.time() + ttl)

    # --- many at once

    def _keys(self) -> list[tuple[int, int]]:
        return [(number // ROWS_PER_PARTITION, number % ROWS_PER_PARTITION) for number in range(self.rows)]

    def _every(self, step: int) -> range:
        return range(0, self.partitions, step)

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


def _qualified(statement: str) -> str:
    for word in ("INTO", "UPDATE", "FROM"):
        statement = statement.replace(f"{word} ", f"{word} {KEYSPACE}.", 1) if f"{word} " in statement else statement
    return statement
