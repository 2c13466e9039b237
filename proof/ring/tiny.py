"""The smallest generator: inserts, updates, deletes and TTLs on one table with a clustering column and a
static one.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from proof.ring.operations import Operation
from proof.ring.topology import ONE_DATACENTER

KINDS = ("insert", "update", "ttl", "row delete", "cell delete", "static", "range delete", "partition delete", "collection", "tie", "batch")
UNKEPT = "truncate in no kept segment"
SHORT_TTL_SECONDS = 2
LONG_TTL_SECONDS = 315_360_000


class Tiny:
    """See `proof.ring.operations.Generator`."""

    kinds = (*KINDS, UNKEPT)

    def __init__(self, seed: int, ops: int, replication: str = ONE_DATACENTER.replication) -> None:
        self.seed, self.ops, self.replication = seed, ops, replication

    def schema(self) -> list[str]:
        return [
            f"CREATE KEYSPACE tiny WITH replication = {self.replication}",
            "CREATE TABLE tiny.t (p int, c int, s text static, v text, n int, m map<text, int>, PRIMARY KEY (p, c)) "
            "WITH CLUSTERING ORDER BY (c DESC) AND cdc = true",
            "CREATE TABLE tiny.u (p int PRIMARY KEY, v text) WITH cdc = true",
        ]

    def minimum(self, ops: int) -> dict[str, int]:
        return dict.fromkeys(KINDS, ops // 100) | {UNKEPT: min(1, ops // 100)}

    def __iter__(self) -> Iterator[Operation]:
        random = Random(f"{self.seed} tiny")
        for number in range(self.ops):
            if self.ops >= 100 and number == self.ops - 4:
                yield Operation(UNKEPT, "TRUNCATE tiny.u", needs_all_up=True, kept_by=0)
            else:
                yield self._one(random, number)

    def _one(self, random: Random, number: int) -> Operation:
        kind = random.choice(KINDS)
        p, c, v = random.randrange(6), random.randrange(8), f"v{number}"
        if kind == "insert":
            return Operation(kind, "INSERT INTO tiny.t (p, c, v, n) VALUES (?, ?, ?, ?)", (p, c, v, number))
        if kind == "update":
            return Operation(kind, "UPDATE tiny.t SET n = ? WHERE p = ? AND c = ?", (number, p, c))
        if kind == "ttl":
            ttl = random.choice((SHORT_TTL_SECONDS, LONG_TTL_SECONDS))
            return Operation(kind, f"INSERT INTO tiny.t (p, c, v) VALUES (?, ?, ?) USING TTL {ttl}", (p, c, v))
        if kind == "row delete":
            return Operation(kind, "DELETE FROM tiny.t WHERE p = ? AND c = ?", (p, c))
        if kind == "cell delete":
            return Operation(kind, "DELETE v FROM tiny.t WHERE p = ? AND c = ?", (p, c))
        if kind == "static":
            return Operation(kind, "UPDATE tiny.t SET s = ? WHERE p = ?", (v, p))
        if kind == "range delete":
            low, high = random.choice((">", ">=")), random.choice(("<", "<="))
            return Operation(kind, f"DELETE FROM tiny.t WHERE p = ? AND c {low} ? AND c {high} ?", (p, c, c + 2))
        if kind == "partition delete":
            return Operation(kind, "DELETE FROM tiny.t WHERE p = ?", (p,)) if random.random() < 0.3 else self._map(kind, random, p, c)
        if kind == "collection":
            return self._map(kind, random, p, c)
        if kind == "tie":
            moment = 1_700_000_000_000_000 + random.randrange(3)
            return Operation(
                kind, f"UPDATE tiny.u USING TIMESTAMP {moment} SET v = ? WHERE p = ?", (random.choice((v, f"a{number}", None)), p + 100)
            )
        insert = ("INSERT INTO tiny.u (p, v) VALUES (?, ?)", (p, v))
        return Operation(kind, "BEGIN BATCH", (), [insert, ("UPDATE tiny.t SET v = ? WHERE p = ? AND c = ?", (v, p, c))])

    def _map(self, kind: str, random: Random, p: int, c: int) -> Operation:
        if random.random() < 0.5:
            return Operation(kind, "UPDATE tiny.t SET m[?] = ? WHERE p = ? AND c = ?", (f"k{random.randrange(3)}", c, p, c))
        return Operation(kind, "UPDATE tiny.t SET m = ? WHERE p = ? AND c = ?", ({f"k{random.randrange(3)}": p}, p, c))
