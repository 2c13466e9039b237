"""The model: user types, tables and columns after the statements so far, and the keys of their rows.

Strategy: key spaces are small, so that operations hit the same rows. A partition key comes from a lane of its
table: `open` (written at the current time), `timed` (timestamps from a narrow moving window), `extreme`
(timestamps before 1970 and far in the future), and fresh keys that no other operation uses. Knows no
operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from proof.ring.generate.values import (
    EQUALS,
    KEY_TYPE,
    NATIVE,
    ROOMY,
    Types,
    Values,
    fresh,
    quoted,
)
from writetime.cassandra.schema.model import UserType
from writetime.cassandra.types.types import CollectionType, CqlType, NativeType, UdtType

LANES: Final = {"open": 4, "timed": 3, "extreme": 1}
ODD_NAMES: Final = (
    "Größe", "two words", 'say "hi"', "select", "日本", "UPPER", "upper", "1st", "a.b/c%d", "_x58_", "op", "before", "after", "reason",
    "writetime", "ttl", "table_id", "key", "value", "from", "Tab\tbed", "it's", "`tick`", "{brace}", "ordinal", "😀", "x" * 60,
)  # fmt: skip
SHORT_TTL_SECONDS: Final = (1, 2, 3)
LONG_TTL_SECONDS: Final = (43_200, 86_400, 30 * 86_400, 9 * 365 * 86_400)
CLUSTERING_VALUES: Final = {0: (), 1: (6,), 2: (3, 3), 3: (2, 3, 3), 4: (2, 2, 2, 3)}
"""How many values each clustering column has."""


@dataclass(frozen=True)
class Column:
    """`kind`: partition, clustering, static or regular. A steady column is never dropped."""

    name: str
    kind: str
    type: str
    descending: bool = False
    steady: bool = True

    @property
    def definition(self) -> str:
        return f"{quoted(self.name)} {self.type}{' static' if self.kind == 'static' else ''}"


@dataclass
class Table:
    """A table that exists. `partitions` by lane; `choices`: values by clustering column; `dropped`: columns
    that may come again, as they were; `gone`: names of all that were ever dropped, which Cassandra gives to
    no column of another type. `id`: of one that is dropped and created again with the same id, which it has
    from the beginning.
    """

    keyspace: Keyspace
    name: str
    columns: dict[str, Column]
    cdc: bool = True
    default_ttl: int = 0
    fleeting: bool = False
    partitions: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    choices: list[list[Any]] = field(default_factory=list)
    dropped: dict[str, Column] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    groups: dict[str, list[list[str]]] = field(default_factory=dict)
    id: str = ""

    @property
    def cql(self) -> str:
        return f"{quoted(self.keyspace.name)}.{quoted(self.name)}"

    def of_kind(self, *kinds: str) -> list[Column]:
        return [column for column in self.columns.values() if column.kind in kinds]

    @property
    def partition(self) -> list[Column]:
        return self.of_kind("partition")

    @property
    def clustering(self) -> list[Column]:
        return self.of_kind("clustering")

    @property
    def counters(self) -> bool:
        return any(column.type == "counter" for column in self.columns.values())

    def type_of(self, column: Column) -> CqlType:
        return self.keyspace.types.parse(column.type)

    def made_of(self, kind: str, *, static: bool = False) -> list[Column]:
        """Columns that are a non-frozen list, set, map or udt."""
        return [column for column in self.of_kind("static" if static else "regular") if _shape(self.type_of(column)) == kind]

    def simple(self, *names: str, static: bool = False) -> list[Column]:
        """Steady columns of one cell, of these native types if any are named."""
        columns = [column for column in self.of_kind("static" if static else "regular") if column.steady]
        return [column for column in columns if (column.type in names if names else not self.type_of(column).multicell)]

    def create(self) -> str:
        keys = f"({', '.join(quoted(column.name) for column in self.partition)})"
        keys = ", ".join([keys, *(quoted(column.name) for column in self.clustering)])
        columns = ", ".join([*(column.definition for column in self.columns.values()), f"PRIMARY KEY ({keys})"])
        order = ", ".join(f"{quoted(column.name)} {'DESC' if column.descending else 'ASC'}" for column in self.clustering)
        options = [f"CLUSTERING ORDER BY ({order})"] if order else []
        options += ["cdc = true"] if self.cdc else []
        options += [f"id = '{self.id}'"] if self.id else []
        options += [f"default_time_to_live = {self.default_ttl}"] if self.default_ttl else []
        return f"CREATE TABLE {self.cql} ({columns})" + (f" WITH {' AND '.join(options)}" if options else "")

    def rename(self, old: str, new: str) -> None:
        self.columns = {
            (new if name == old else name): (Column(new, c.kind, c.type, c.descending, c.steady) if name == old else c)
            for name, c in self.columns.items()
        }
        self.changed()

    def changed(self) -> None:
        """Columns came or went."""
        self.groups.clear()


def safe_name(name: str, kind: CqlType) -> str:
    """The name, if Cassandra (5.0.6; 4.1 has the same code) can keep what such a column of that type holds.

    `BTreeRow.hasComplexDeletion` begins to look behind the column of the empty name, and
    `ColumnIdentifier.prefixComparison` orders names that begin with a byte above 127 before it. So where no
    other collection of the row is deleted, the deletion of such a collection is in the writer's memtable, and
    neither in commit logs nor in SSTables nor with other replicas: nothing can be compared.
    """
    return f"x{name}" if kind.multicell and not name[:1].isascii() else name


def _shape(kind: CqlType) -> str | None:
    if not kind.multicell:
        return None
    return "udt" if isinstance(kind, UdtType) else kind.kind if isinstance(kind, CollectionType) else None


class Keyspace:
    """A keyspace with its user types, which only ever get more fields."""

    def __init__(self, random: Random, name: str) -> None:
        self.name = name
        self.udts = {
            KEY_TYPE: UserType(name, KEY_TYPE, ("a", "b"), ("int", "text")),
            "Address": UserType(name, "Address", ("Street Name", "zip", "tags"), ("text", "int", "frozen<set<text>>")),
            "shape": UserType(name, "shape", ("middle", "weights", "code"), (f"frozen<{KEY_TYPE}>", "frozen<list<double>>", "blob")),
        }
        self.types = Types(random, name, self.udts)

    def create(self, replication: str) -> list[str]:
        statements = [f"CREATE KEYSPACE {quoted(self.name)} WITH replication = {replication}"]
        for udt in self.udts.values():
            fields = ", ".join(f"{quoted(name)} {kind}" for name, kind in zip(udt.field_names, udt.field_types, strict=True))
            statements.append(f"CREATE TYPE {quoted(self.name)}.{quoted(udt.name)} ({fields})")
        return statements

    def add_field(self, udt: str, name: str, kind: str) -> str:
        """The statement that adds a field to a user type."""
        old = self.udts[udt]
        self.udts[udt] = UserType(self.name, udt, (*old.field_names, name), (*old.field_types, kind))
        self.types.know(self.udts)
        return f"ALTER TYPE {quoted(self.name)}.{quoted(udt)} ADD {quoted(name)} {kind}"


class Maker:
    """Makes tables, by chance or as a part of the workload needs them."""

    def __init__(self, random: Random, values: Values) -> None:
        self.random, self.values = random, values
        self._fresh = 0

    def by_chance(self, keyspace: Keyspace, name: str, *, shape: tuple[int, int] | None = None, fleeting: bool = False) -> Table:
        """Partition key columns, clustering columns (or as many as `shape` says), statics and regular columns
        of any types.
        """
        random = self.random
        partition, clustering = shape or (random.choice((1, 1, 1, 2, 3)), random.choice((0, 1, 1, 2, 3, 4)))
        names = self._names(24)
        types = keyspace.types
        columns = [Column(next(names), "partition", random.choice(ROOMY))]
        columns += [Column(next(names), "partition", types.clustering()) for _ in range(partition - 1)]
        columns += [Column(next(names), "clustering", types.clustering(), random.random() < 0.5) for _ in range(clustering)]
        if clustering:
            columns += [Column(next(names), "static", types.regular(), steady=random.random() < 0.6) for _ in range(random.randint(0, 3))]
        columns += [Column(next(names), "regular", types.regular(), steady=random.random() < 0.6) for _ in range(random.randint(1, 8))]
        columns.append(Column(next(names), "regular", random.choice(("text", "int"))))
        columns = [replace(column, name=safe_name(column.name, types.parse(column.type))) for column in columns]
        return self.table(keyspace, name, columns, fleeting=fleeting)

    def table(self, keyspace: Keyspace, name: str, columns: list[Column], **options: Any) -> Table:
        table = Table(keyspace, name, {column.name: column for column in columns}, **options)
        self.fill_keys(table)
        return table

    def fill_keys(self, table: Table) -> None:
        """Few values for each key column."""
        kinds = [table.type_of(column) for column in table.clustering]
        table.choices = [self._choices(kind, count) for kind, count in zip(kinds, CLUSTERING_VALUES[len(kinds)], strict=True)]
        total = sum(LANES.values())
        keys = self._partitions(table, total)
        for lane, count in LANES.items():
            table.partitions[lane], keys = keys[:count], keys[count:]

    def fresh_partition(self, table: Table) -> tuple[Any, ...]:
        """A partition key that was not there before."""
        self._fresh += 1
        first, *others = table.partition
        return (fresh(first.type, self._fresh), *(self.values.some(table.type_of(column), 1)[0] for column in others))

    def _partitions(self, table: Table, count: int) -> list[tuple[Any, ...]]:
        first, *others = table.partition
        # A partition key that is one column must not be empty.
        known = [value for value in self.values.some(table.type_of(first), count) if others or value not in ("", b"")]
        kinds = [table.type_of(column) for column in others]
        rest = [self._choices(kind, 3) for kind in kinds]
        keys: list[tuple[Any, ...]] = []
        while len(keys) < count:
            value = known[len(keys)] if len(keys) < len(known) else self.fresh_partition(table)[0]
            keys.append((value, *(self.random.choice(choices) for choices in rest)))
        return keys

    def _choices(self, kind: CqlType, count: int) -> list[Any]:
        if isinstance(kind, NativeType) and kind.name == "decimal":
            # The same clustering, written in several ways.
            return [*self.values.some(kind, max(count - 2, 1)), *EQUALS]
        return self.values.some(kind, count)

    def _names(self, count: int) -> Any:
        plain = [f"{letter}{number}" for number, letter in enumerate("pqrcdefghijklmnoabstuvwxyz")]
        odd = list(ODD_NAMES)
        self.random.shuffle(odd)
        picked = [odd[at] if self.random.random() < 0.4 else plain[at] for at in range(count)]
        return iter(picked)


def everything(keyspace: Keyspace) -> list[Column]:
    """Every type as a regular column, every shape of collection, and static ones."""
    columns = [Column("id", "partition", "int"), Column("at", "clustering", "timestamp", True), Column("Name", "clustering", "text")]
    columns += [Column(f"v_{name}", "regular", name) for name in NATIVE]
    made = {
        "list": "list<text>", "list of doubles": "list<double>", "set": "set<int>", "map": "map<text, int>", "blobs": "map<int, blob>",
        "udt": '"Address"', "frozen udt": 'frozen<"Address">', "udts": "list<frozen<shape>>",
        "tuple": "tuple<int, text, frozen<list<int>>>", "frozen map": "frozen<map<text, duration>>",
        "nested": "map<frozen<pair>, frozen<set<text>>>", "numbers": "set<decimal>", "by number": "map<varint, int>",
        "addresses": 'set<frozen<"Address">>', "by shape": "map<frozen<shape>, int>", "by pair": "map<frozen<tuple<double, boolean>>, int>",
        "vector": "vector<float, 3>", "words": "vector<text, 2>",
    }  # fmt: skip
    columns += [Column(name, "regular", kind) for name, kind in made.items()]
    statics = {
        "s_text": "text",
        "s_int": "int",
        "s_map": "map<text, text>",
        "s_list": "list<int>",
        "s_flags": "map<boolean, int>",
        "s_udt": "shape",
        "S frozen": "frozen<set<int>>",
    }
    return columns + [Column(name, "static", kind) for name, kind in statics.items()]
