"""The tables of a run, and what the generators of operations need from them: a suitable table, a key, values,
a timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

from cassandra.query import UNSET_VALUE

from proof.ring.generate.statements import Statement, Term, key
from proof.ring.generate.tables import (
    LONG_TTL_SECONDS,
    SHORT_TTL_SECONDS,
    Column,
    Keyspace,
    Maker,
    Table,
    everything,
)
from proof.ring.generate.values import Values
from proof.ring.operations import Operation

KEYSPACES: Final = ("proof", "Proof_2")
TIMED: Final = 1_700_000_000_000_000
"""µs; timestamps of the timed lane are counted from here. They lie behind every clock."""
WINDOW_OPERATIONS: Final = 12
"""So many operations further, the timed lane's window of three timestamps moves on by one."""
MOST_COLUMNS: Final = 40
UNSET: Final = UNSET_VALUE
Row = tuple[Any, ...]


class World:
    """The model of everything that exists. `number` is that of the operation to come."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed} proof")
        self.values = Values(self.random)
        self.maker = Maker(self.random, self.values)
        self.keyspaces = [Keyspace(self.random, name) for name in KEYSPACES]
        self.number = 0
        self._ties = 0
        self._names = 0
        self._counters: list[tuple[Table, Row, Row]] = []
        self._first_tables()

    def _first_tables(self) -> None:
        first, second = self.keyspaces
        make = self.maker
        self.everything = make.table(first, "everything", everything(first))
        short = [
            Column("id", "partition", "int"),
            Column("c", "clustering", "int"),
            Column("v", "regular", "text"),
            Column("n", "regular", "int"),
        ]
        more = [Column("m", "regular", "map<text, int>"), Column("s", "static", "text"), Column("sm", "static", "map<int, text>")]
        self.same_key = [
            self.everything,
            make.table(first, "plain", short, cdc=False),
            make.table(first, "beside", [*short, *more]),
            make.table(first, "single", [short[0], *short[2:], *more[:1], Column("l", "regular", "list<int>")]),
        ]
        for table in self.same_key[1:]:
            table.partitions = dict(self.everything.partitions)
        keys = [Column("k", "partition", "text"), Column("a", "clustering", "decimal"), Column("b", "clustering", "inet", True)]
        crowd = [Column("p", "partition", "int"), Column("a", "clustering", "int", True), Column("b", "clustering", "text")]
        self.crowd = make.table(first, "Crowd", [*crowd, Column("v", "regular", "int"), Column("s", "static", "text")])
        counts = [Column("p", "partition", "text"), Column("c", "clustering", "int"), Column("n", "regular", "counter")]
        counts += [Column("m m", "regular", "counter"), Column("s", "static", "counter")]
        self.counts = make.table(first, "counts", counts)
        self.count = make.table(second, "count", [Column("p", "partition", "bigint"), Column("n", "regular", "counter")])
        self.tables = [
            *self.same_key,
            make.table(second, "OnlyKeys", keys),
            make.table(second, "lives_long", [*short, *more], default_ttl=86_400),
            make.table(second, "lives_shortly", [*short, *more], default_ttl=3),
            make.table(second, "plain", short, cdc=False),
        ]
        # One of each shape that chance might leave out.
        shapes = [(1, 0), (1, 1), (2, 2), (3, 4), None, None]
        for number, shape in enumerate(shapes):
            self.tables.append(make.by_chance(self.keyspaces[number % 2], f"t{number}", shape=shape))
        self.tables += [make.by_chance(keyspace, "fleeting", fleeting=True) for keyspace in self.keyspaces]
        self.tables += [self._with_id(make.by_chance(keyspace, "again", shape=(1, 2))) for keyspace in self.keyspaces]

    def _with_id(self, table: Table) -> Table:
        table.id = str(UUID(int=self.random.getrandbits(128), version=4))
        return table

    def schema(self, replication: str) -> list[str]:
        statements = [cql for keyspace in self.keyspaces for cql in keyspace.create(replication)]
        return statements + [table.create() for table in (*self.tables, self.crowd, self.counts, self.count)]

    # Tables and columns

    def table(self, able: Callable[[Table], Any] = lambda table: True) -> Table:
        """One that `able` has something to say for; a quarter of the time the one with everything, if it
        has."""
        if self.random.random() < 0.25 and able(self.everything):
            return self.everything
        return self.random.choice([table for table in self.tables if able(table)])

    def name(self, prefix: str) -> str:
        """A name that was not there before."""
        self._names += 1
        return f"{prefix}{self._names}"

    def group(self, table: Table, kind: str, *, most: int = 12) -> list[str]:
        """Columns of a kind that are written together: one of a few groups, so that few statements differ."""
        if kind not in table.groups:
            names = [column.name for column in table.of_kind(kind)]
            sizes = [min(len(names), size) for size in (1, 1, 2, 3, 5, most)]
            table.groups[kind] = [sorted(self.random.sample(names, size)) for size in sizes] if names else [[]]
        return self.random.choice(table.groups[kind])

    def filled(self, table: Table, names: Sequence[str]) -> dict[str, Any]:
        return {name: self.values.of(table.type_of(table.columns[name])) for name in names}

    def value(self, table: Table, column: Column) -> Any:
        return self.values.of(table.type_of(column))

    # Keys

    def partition(self, table: Table, lane: str = "open") -> Row:
        """A partition key of a lane; the first one is hot."""
        keys = table.partitions[lane]
        return keys[0] if self.random.random() < 0.35 else self.random.choice(keys)

    def row(self, table: Table) -> Row:
        """A clustering; the first one of all is hot."""
        if self.random.random() < 0.15:
            return tuple(choices[0] for choices in table.choices)
        return tuple(self.random.choice(choices) for choices in table.choices)

    def rows(self, table: Table, most: int) -> list[Row]:
        """Different clusterings."""
        rows = {repr(row): row for row in (self.row(table) for _ in range(most))}
        return list(rows.values())

    def where(self, table: Table, lane: str = "open") -> Term:
        """Some row's whole key."""
        return key(table, self.partition(table, lane), self.row(table))

    # Times

    @property
    def moment(self) -> int:
        """A timestamp of the timed lane, soon to be drawn again. Even: those of ties are odd, and no two ties
        share one.
        """
        return TIMED + 2 * (self.number // WINDOW_OPERATIONS + self.random.randrange(3))

    def tie(self) -> int:
        self._ties = max(self._ties + 1, self.number // WINDOW_OPERATIONS)
        return TIMED + 2 * self._ties + 1

    def short(self) -> int:
        return self.random.choice(SHORT_TTL_SECONDS)

    def long(self) -> int:
        return self.random.choice(LONG_TTL_SECONDS)

    # Counters

    def counter_row(self) -> tuple[Table, Row, Row]:
        """A counter that has not been deleted."""
        while len(self._counters) < 12:
            table = self.random.choice((self.counts, self.count))
            partition = table.partitions["open"][0] if table is self.counts else self.maker.fresh_partition(table)
            clustering = (self.name_number(),) if table is self.counts else ()
            self._counters.append((table, partition, clustering))
        return self.random.choice(self._counters)

    def name_number(self) -> int:
        self._names += 1
        return self._names

    def bury(self, row: tuple[Table, Row, Row]) -> None:
        """Deleted counters are never counted again: Cassandra does not say what that would mean."""
        self._counters.remove(row)


def operation(kind: str, statement: Statement, **options: Any) -> Operation:
    return Operation(kind, *statement, **options)


def batch(kind: str, statements: Sequence[Statement], form: str = "UNLOGGED ", **options: Any) -> Operation:
    """Statements that go to the ring as one; `form`: `UNLOGGED `, `COUNTER ` or nothing."""
    return Operation(kind, f"BEGIN {form}BATCH", (), list(statements), **options)
