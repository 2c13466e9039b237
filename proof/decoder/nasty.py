"""A workload with everything that a commit log can contain, to compare decoders.

    counts = nasty.run(session, "5.0.6", seed=1)

Strategy: `PARTS` is the table of parts; each creates its tables and yields statements, as CQL text, as a
prepared statement with values, or as a batch. All statements are executed in order on one session, so the
result depends on the seed and the clock only. Parts that a version does not support are excluded by name.
Between the parts, wide random rows are written, so that small segments fill up and every part of the log
contains a captured table. Knows nothing about segments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from cassandra.cluster import Session
from cassandra.query import BatchType
from cassandra.util import Date, Duration, Time

from proof.recording.workload import Batch, Runner, Statement

KEYSPACE = "nasty"
QUOTED_KEYSPACE = '"CaseKept"'
FIRST_TIMESTAMP, LAST_TIMESTAMP = -(2**63) + 1, 2**63 - 1
"""µs; CQL takes no lower one, for it means that there is none."""
LONGEST_TTL = 20 * 365 * 86_400
"""Seconds; Cassandra takes none that is longer. It ends after 2038, which only version 8 and later can write down:
others must be told to cut it.
"""

Item = str | Statement | Batch
Part = Callable[["Setting"], Iterator[Item]]


@dataclass(frozen=True)
class Setting:
    """What the parts may ask: a source of chance, and what the node can do."""

    random: Random
    version: str

    @property
    def vectors(self) -> bool:
        return self.version >= "5."


def run(
    session: Session,
    version: str,
    *,
    seed: int,
    parts: Sequence[Part] | None = None,
    fill: bool = True,
    pause: Callable[[str], None] = lambda _: None,
) -> Counter[str]:
    """All parts, or those given; how many statements each took. Without `fill`, segments stay small.

    `pause` is called with the name of every part that is done.
    """
    # Reading the schema anew after every change is most of what the driver would do here.
    session.cluster.schema_metadata_enabled = False
    setting = Setting(Random(seed), version)
    runner = Runner(session)
    counts: Counter[str] = Counter()
    for number, part in enumerate((keyspaces, *(PARTS if parts is None else parts))):
        for item in (*part(setting), *(filler(setting, number) if fill else ())):
            counts[part.__name__] += 1
            if isinstance(item, str):
                session.execute(item)
            else:
                runner.run(item)
        pause(part.__name__)
    return counts


def run_again(session: Session) -> None:
    """A little more on tables that are there, for a node that comes back."""
    runner = Runner(session)
    setting = Setting(Random(0), "")
    for number in (1000, 1001):
        runner.run_all(filler(setting, number))


def create(name: str, columns: str, options: str = "cdc = true") -> str:
    return f"CREATE TABLE {KEYSPACE}.{name} ({columns}) WITH {options}"


def insert(table: str, using: str = "", **columns: Any) -> Statement:
    """An INSERT of columns whose names need no quotes. `using` is a TIMESTAMP, a TTL or both."""
    marks = ", ".join("?" * len(columns))
    tail = f" USING {using}" if using else ""
    return Statement("", f"INSERT INTO {KEYSPACE}.{table} ({', '.join(columns)}) VALUES ({marks}){tail}", tuple(columns.values()))


def batch(*statements: str | Statement, kind: BatchType = BatchType.UNLOGGED) -> Batch:
    return Batch("", kind, tuple(Statement("", item) if isinstance(item, str) else item for item in statements))


def keyspaces(setting: Setting) -> Iterator[Item]:
    for name in (KEYSPACE, QUOTED_KEYSPACE):
        yield f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    yield create("filler", "p int, c int, b blob, PRIMARY KEY (p, c)")


def filler(setting: Setting, number: int) -> Iterator[Statement]:
    """About 150 KB of captured rows, one of them an entry of more than 64 KiB."""
    for clustering, size in enumerate((90_000, *[1500] * 40)):
        yield insert("filler", p=number, c=clustering, b=setting.random.randbytes(size))


# --- values

NATIVE: dict[str, Sequence[Any]] = {
    "ascii": ("", "plain", "~" * 200),
    "bigint": (0, 1, -1, 2**63 - 1, -(2**63)),
    "blob": (b"", b"\0", bytes(range(256)), b"\xff" * 5000),
    "boolean": (True, False),
    "date": (Date(date(1970, 1, 1)), Date(0), Date(-(2**31)), Date(2**31 - 1), Date(date(2026, 2, 28))),
    "decimal": tuple(map(Decimal, ("0", "-0.1", "1E+10", "1E-10", "123456789012345678901234567890.000001", "-1"))),
    "double": (0.0, -0.0, 1.5, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan")),
    "duration": (Duration(0, 0, 0), Duration(1, 2, 3), Duration(-1, -2, -3), Duration(2**31 - 1, 2**31 - 1, 2**63 - 1)),
    "float": (0.0, -0.0, 1.5, float("inf"), float("nan")),
    "inet": ("127.0.0.1", "255.255.255.255", "::1", "2001:db8::ffff"),
    "int": (0, 1, -1, 2**31 - 1, -(2**31)),
    "smallint": (0, -1, 2**15 - 1, -(2**15)),
    "text": ("", "plain", "grün 木 😀", "\0", "x" * 3000),
    "time": (Time(0), Time(86_399_999_999_999), Time(time(12, 30))),
    "timestamp": (datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999000), datetime(9999, 12, 31), datetime(1, 1, 1)),
    "timeuuid": (UUID("8d3e1c60-0000-11f1-8000-000000000000"), UUID("00000000-0000-1000-8080-808080808080")),
    "tinyint": (0, -1, 127, -128),
    "uuid": (UUID(int=0), UUID(int=2**128 - 1), UUID("6b8d1a2e-93a1-4a5e-8b0d-0a1b2c3d4e5f")),
    "varchar": ("", "é"),
    "varint": (0, 127, 128, -128, -129, 2**200, -(2**200)),
}
"""Values of every native type but counter, the odd ones among them."""


def native_types(setting: Setting) -> Iterator[Item]:
    """Each type as a regular column, as a static one, in a collection and in a frozen one; null and empty
    too.
    """
    regular = ", ".join(f"v_{name} {name}" for name in NATIVE)
    static = ", ".join(f"s_{name} {name} static" for name in NATIVE)
    yield create("natives", f"p int, c int, {regular}, {static}, PRIMARY KEY (p, c)")
    for row in range(max(map(len, NATIVE.values()))):
        values = {f"v_{name}": known[row % len(known)] for name, known in NATIVE.items()}
        yield insert("natives", p=1, c=row, **values)
        yield insert("natives", p=2, **{f"s_{name}": known[row % len(known)] for name, known in NATIVE.items()})
        some = setting.random.sample(sorted(values), 5)
        yield insert("natives", "TTL 86400", p=1, c=row, **{name: values[name] for name in some})
    yield insert("natives", p=3, c=0, **dict.fromkeys(f"v_{name}" for name in NATIVE))
    yield insert("natives", p=3, c=1)
    # The empty value is not null, and most types take it.
    empty = ("bigint", "boolean", "decimal", "double", "float", "inet", "int", "timestamp", "timeuuid", "uuid", "varint")
    for name in empty:
        yield f"INSERT INTO {KEYSPACE}.natives (p, c, v_{name}) VALUES (4, 0, blobAs{name}(0x))"
    kinds = {"l": "list<{0}>", "s": "set<{0}>", "m": "map<{0}, {0}>", "f": "frozen<map<{0}, frozen<list<{0}>>>>", "t": "tuple<{0}, {0}>"}
    inside = [name for name in NATIVE if name != "duration"]
    columns = ", ".join(f"{prefix}_{name} {kind.format(name)}" for name in inside for prefix, kind in kinds.items())
    yield create("inside", f"p int, c int, ld list<duration>, md map<int, duration>, {columns}, PRIMARY KEY (p, c)")
    yield insert("inside", p=0, c=0, ld=list(NATIVE["duration"]), md=dict(enumerate(NATIVE["duration"])))
    for row in range(max(map(len, NATIVE.values()))):
        values: dict[str, Any] = {}
        for name in inside:
            value = NATIVE[name][row % len(NATIVE[name])]
            values |= {f"l_{name}": [value, value], f"s_{name}": {value}, f"m_{name}": {value: value}}
            values |= {f"f_{name}": {value: [value]}, f"t_{name}": (value, None)}
        yield insert("inside", p=1, c=row, **values)
        yield insert("inside", p=2, c=row, **{name: type(value)() for name, value in values.items() if not name.startswith("t")})


def nested_types(setting: Setting) -> Iterator[Item]:
    """Tuples, UDTs and collections in each other, frozen or not; fields that are null or were not there
    yet."""
    yield f"CREATE TYPE {KEYSPACE}.inner (a int, b text)"
    yield f"CREATE TYPE {KEYSPACE}.outer (i frozen<inner>, l frozen<list<int>>, t frozen<tuple<int, text>>, m frozen<map<text, inner>>)"
    yield create(
        "nested",
        "p int, c int, t tuple<int, text, frozen<list<int>>>, fu frozen<outer>, u outer, lu list<frozen<inner>>,"
        " su set<frozen<tuple<int, int>>>, mu map<frozen<inner>, frozen<set<text>>>, ff frozen<list<frozen<map<int, frozen<set<int>>>>>>,"
        " us inner static, PRIMARY KEY (p, c)",
    )
    table = f"{KEYSPACE}.nested"
    yield f"INSERT INTO {table} (p, c, t) VALUES (1, 1, (1, 'one', [1, 2]))"
    yield f"INSERT INTO {table} (p, c, t) VALUES (1, 2, (null, null, null))"
    yield f"INSERT INTO {table} (p, c, fu) VALUES (1, 3, {{i: {{a: 1, b: 'b'}}, l: [], t: (1, null), m: {{'k': {{a: null, b: ''}}}}}})"
    yield f"INSERT INTO {table} (p, c, fu) VALUES (1, 4, {{i: null}})"
    yield f"INSERT INTO {table} (p, c, u) VALUES (1, 5, {{i: {{a: 1}}, l: [1, 2, 3], t: (null, 'x')}})"
    yield f"UPDATE {table} SET u.l = [9], u.m = {{'x': {{a: 7}}}} WHERE p = 1 AND c = 5"
    yield f"UPDATE {table} USING TTL 5000 SET u.i = {{b: 'later'}} WHERE p = 1 AND c = 5"
    yield f"DELETE u.l FROM {table} WHERE p = 1 AND c = 5"
    yield f"UPDATE {table} SET u = null WHERE p = 1 AND c = 5"
    yield f"UPDATE {table} SET us = {{a: 1, b: 'static'}} WHERE p = 1"
    yield f"UPDATE {table} SET us.b = null WHERE p = 1"
    yield f"INSERT INTO {table} (p, c, lu, su) VALUES (1, 6, [{{a: 1}}, {{b: 'two'}}, {{a: 1}}], {{(1, 2), (2, null)}})"
    yield f"INSERT INTO {table} (p, c, mu, ff) VALUES (1, 7, {{{{a: 1, b: 'k'}}: {{'x', 'y'}}, {{a: 2}}: {{}}}}, [{{1: {{1, 2}}}}, {{}}])"
    yield f"ALTER TYPE {KEYSPACE}.inner ADD late double"
    yield f"INSERT INTO {table} (p, c, fu, lu) VALUES (1, 8, {{i: {{a: 1, late: 1.5}}}}, [{{late: 2.5}}])"
    yield f"UPDATE {table} SET us.late = 3.5 WHERE p = 1"
    yield f"ALTER TYPE {KEYSPACE}.inner RENAME late TO later"
    yield f"UPDATE {table} SET us.later = 4.5 WHERE p = 1"


def custom_types(setting: Setting) -> Iterator[Item]:
    """Types that are named by their class: bytes of a length of their own, or of none at all."""
    marshal = "org.apache.cassandra.db.marshal"
    classes = {
        "lexical": (f"{marshal}.LexicalUUIDType", "0x000102030405060708090a0b0c0d0e0f"),
        "nothing": (f"{marshal}.EmptyType", "0x"),
        "composite": (f"{marshal}.CompositeType({marshal}.Int32Type,{marshal}.UTF8Type)", "0x000400000007000002c3a900"),
        "dynamic": (f"{marshal}.DynamicCompositeType(a=>{marshal}.AsciiType,i=>{marshal}.Int32Type)", "0x806100017800"),
    }
    if setting.version >= "6.":
        # 6.0-alpha2 calls the type `empty` in its metadata log, and cannot read that when it starts again.
        del classes["nothing"]
    columns = ", ".join(f"{name} '{kind}'" for name, (kind, _) in classes.items())
    yield create("customs", f"p int, c '{classes['lexical'][0]}', {columns}, PRIMARY KEY (p, c)")
    for name in ("lexical", "composite", "dynamic"):
        value = classes[name][1]
        yield f"INSERT INTO {KEYSPACE}.customs (p, c, {name}) VALUES (1, {classes['lexical'][1]}, {value})"


def vectors(setting: Setting) -> Iterator[Item]:
    """Of elements with a fixed length and without, in each other and in collections, as clustering."""
    if not setting.vectors:
        return
    yield f"CREATE TYPE {KEYSPACE}.pair (a int, b text)"
    yield create(
        "vectors",
        "p int, c vector<int, 2>, f vector<float, 3>, t vector<text, 2>, n vector<vector<int, 2>, 2>, u vector<frozen<pair>, 1>,"
        " l list<frozen<vector<double, 2>>>, m map<text, frozen<vector<text, 1>>>, s vector<smallint, 2> static, PRIMARY KEY (p, c)",
    )
    table = f"{KEYSPACE}.vectors"
    for number in range(4):
        yield f"INSERT INTO {table} (p, c, f) VALUES (1, [{number}, -1], [0.5, 1, {number}])"
    yield f"INSERT INTO {table} (p, c, t, n) VALUES (1, [1, 1], ['', 'é'], [[1, 2], [3, 4]])"
    yield f"INSERT INTO {table} (p, c, u, l, m) VALUES (1, [1, 1], [{{a: 1, b: 'b'}}], [[1, 2], [3, 4]], {{'k': ['v']}})"
    yield f"UPDATE {table} SET s = [1, 2] WHERE p = 1"
    yield f"DELETE FROM {table} WHERE p = 1 AND c > [0, 5]"


# --- shapes of keys


def keys(setting: Setting) -> Iterator[Item]:
    """Composite and wide keys, both directions, all types as clustering; 40 clustering columns."""
    names = [name for name in NATIVE if name != "duration"]
    order = ", ".join(f"c_{name} {'DESC' if number % 2 else 'ASC'}" for number, name in enumerate(names))
    clustering = ", ".join(f"c_{name}" for name in names)
    columns = ", ".join(f"c_{name} {name}" for name in names)
    yield create(
        "all_keys", f"p text, q int, {columns}, v int, PRIMARY KEY ((p, q), {clustering})", f"CLUSTERING ORDER BY ({order}) AND cdc = true"
    )
    for row in range(8):
        values = {f"c_{name}": NATIVE[name][row % len(NATIVE[name])] for name in names}
        yield insert("all_keys", p="", q=row, v=row, **values)
        yield insert("all_keys", p="é" * 300, q=-1, v=row, **values)
    yield f"DELETE FROM {KEYSPACE}.all_keys WHERE p = '' AND q = 0 AND c_ascii > 'a'"
    yield f"INSERT INTO {KEYSPACE}.filler (p, c, b) VALUES (0, blobAsInt(0x), 0x01)"
    wide = [f"c{number:02}" for number in range(40)]
    columns = ", ".join(f"{name} {'text' if number % 3 else 'int'}" for number, name in enumerate(wide))
    order = ", ".join(f"{name} {'DESC' if number % 5 == 0 else 'ASC'}" for number, name in enumerate(wide))
    yield create("forty", f"p int, {columns}, v text, PRIMARY KEY (p, {', '.join(wide)})", f"CLUSTERING ORDER BY ({order}) AND cdc = true")
    for row in range(6):
        values = {name: ("" if (number + row) % 7 == 0 else f"{row}.{number}") if number % 3 else row for number, name in enumerate(wide)}
        yield insert("forty", p=row, v="x", **values)
        prefix = wide[: (1, 5, 31, 32, 33, 40)[row]]
        where = " AND ".join(f"{name} = ?" for name in prefix)
        yield Statement("", f"DELETE FROM {KEYSPACE}.forty WHERE p = ? AND {where}", (row, *(values[name] for name in prefix)))
        last = prefix[-1]
        where = " AND ".join([*(f"{name} = ?" for name in prefix[:-1]), f"{last} >= ?"])
        yield Statement("", f"DELETE FROM {KEYSPACE}.forty WHERE p = ? AND {where}", (row, *(values[name] for name in prefix)))
    yield create("only_keys", "p int, c int, PRIMARY KEY (p, c)")
    yield create("only_a_key", "p int PRIMARY KEY")
    for row in range(5):
        yield insert("only_keys", p=1, c=row)
        yield insert("only_a_key", "TTL 4000" if row % 2 else "", p=row)
    yield f"DELETE FROM {KEYSPACE}.only_keys WHERE p = 1 AND c IN (1, 3)"
    yield f"DELETE FROM {KEYSPACE}.only_a_key WHERE p = 1"


def many_columns(setting: Setting) -> Iterator[Item]:
    """Subsets of 63, 64 and 80 columns, plain, collections and static: none, one, half of them, all but one,
    all.
    """
    for count in (63, 64, 80):
        plain, maps, statics = count - 3, 3, 66
        columns = [f"v{number:02} int" for number in range(plain)] + [f"m{number} map<int, int>" for number in range(maps)]
        columns += [f"s{number:02} int static" for number in range(statics)]
        table = f"columns_{count}"
        yield create(table, f"p int, c int, {', '.join(columns)}, PRIMARY KEY (p, c)")
        names = [name.split()[0] for name in columns[:count]]
        for row, size in enumerate([0, 1, 2, count // 2 - 1, count // 2, count // 2 + 1, count - 1, count] * 2):
            chosen = setting.random.sample(names, size)
            # A batch of two rows lists the columns of both: each row has a subset of them.
            values = {name: {1: row} if name.startswith("m") else row for name in chosen}
            whole = {name: {2: row} if name.startswith("m") else row for name in names}
            yield insert(table, p=row, c=1, **values)
            yield batch(insert(table, p=row, c=2, **whole), insert(table, p=row, c=3, **values))
        for size in (1, 32, 33, 65, 66):
            chosen = setting.random.sample(range(statics), size)
            yield insert(table, p=100, **{f"s{number:02}": number for number in chosen})


def names(setting: Setting) -> Iterator[Item]:
    """Names that need quotes: in any case, with spaces, quotes, and letters beyond ASCII and beyond the
    BMP."""
    quoted = ('"Größe"', '"two words"', '"say ""hi"""', '"select"', '"日本"', '"😀"', '"\uffee"', '"UPPER"', '"1st"', '"a.b/c%d"')
    columns = ", ".join(f"{name} {'map<text, int>' if number % 3 == 2 else 'text'}" for number, name in enumerate(quoted))
    for table in (f'{QUOTED_KEYSPACE}."Orders"', f"{QUOTED_KEYSPACE}.orders"):
        yield f'CREATE TABLE {table} ("P" int, p int, "C" int, {columns}, "Ü" text static, PRIMARY KEY (("P", p), "C")) WITH cdc = true'
        for number, name in enumerate(quoted):
            value = {"é": number} if number % 3 == 2 else "v"
            cql = f'INSERT INTO {table} ("P", p, "C", "Ü", {name}) VALUES (?, ?, ?, ?, ?)'
            yield Statement("", cql, (number, 1, 2, "s", value))
        marks = ", ".join("?" * len(quoted))
        values = [{"é": 1} if number % 3 == 2 else "v" for number in range(len(quoted))]
        cql = f'INSERT INTO {table} ("P", p, "C", {", ".join(quoted)}) VALUES (1, 2, 3, {marks})'
        yield Statement("", cql, tuple(values))
    yield f'CREATE TYPE {QUOTED_KEYSPACE}."Adresse" ("Straße" text, "PLZ" int)'
    yield f'CREATE TABLE {QUOTED_KEYSPACE}.typed (p int PRIMARY KEY, a frozen<"Adresse">, b "Adresse") WITH cdc = true'
    yield f'INSERT INTO {QUOTED_KEYSPACE}.typed (p, a, b) VALUES (1, {{"Straße": \'x\', "PLZ": 1}}, {{"PLZ": 2}})'


# --- what is done to rows


def deletes(setting: Setting) -> Iterator[Item]:
    """Of cells, rows, ranges with every kind of bound in both directions, partitions; ranges that touch and
    overlap in one mutation.
    """
    columns = "p int, a int, b text, c int, s text static, v int, m map<text, int>, PRIMARY KEY (p, a, b, c)"
    yield create("deletes", columns, "CLUSTERING ORDER BY (a ASC, b DESC, c DESC) AND cdc = true")
    table = f"{KEYSPACE}.deletes"
    for row in range(20):
        yield insert("deletes", p=row % 4, a=row, b="b" * (row % 3), c=-row, s="s", v=row, m={"k": row})
    for first in (">", ">=", "<", "<=", "="):
        yield f"DELETE FROM {table} WHERE p = 1 AND a {first} 3"
        yield f"DELETE FROM {table} WHERE p = 1 AND a = 3 AND b {first} 'b'"
        yield f"DELETE FROM {table} WHERE p = 1 AND a = 3 AND b = '' AND c {first} -3"
        for last in ("<", "<="):
            if first.startswith(">"):
                yield f"DELETE FROM {table} WHERE p = 1 AND a {first} 3 AND a {last} 7"
                yield f"DELETE FROM {table} WHERE p = 1 AND a = 2 AND b {first} 'a' AND b {last} 'c'"
                yield f"DELETE FROM {table} WHERE p = 1 AND a = 2 AND b = 'x' AND c {first} 1 AND c {last} 9"
                yield f"DELETE FROM {table} WHERE p = 1 AND (a) {first} (2) AND (a) {last} (5)"
    yield f"DELETE FROM {table} WHERE p = 1 AND a IN (1, 2, 3)"
    yield f"DELETE FROM {table} WHERE p IN (1, 2) AND a = 2 AND b IN ('', 'b') AND c IN (-1, -2)"
    yield f"DELETE v, m['k'] FROM {table} WHERE p = 2 AND a = 2 AND b = 'bb' AND c = -2"
    yield f"DELETE m FROM {table} WHERE p = 2 AND a = 2 AND b = 'bb' AND c = -2"
    yield f"DELETE s FROM {table} WHERE p = 2"
    yield f"DELETE FROM {table} USING TIMESTAMP 12345 WHERE p = 2"
    yield f"DELETE FROM {table} WHERE p = 2"
    touching = [
        f"DELETE FROM {table} USING TIMESTAMP {10 + number} WHERE p = 3 AND a >= {number} AND a {'<' if number % 2 else '<='} {number + 1}"
        for number in range(8)
    ]
    yield batch(*touching)
    for _ in range(60):
        yield batch(*(_any_change(setting.random, table) for _ in range(setting.random.randint(2, 9))))


def _any_change(random: Random, table: str) -> str:
    """A change of some part of partition 9, at one of a few writetimes so that ranges tie, nest and meet."""
    timestamp = random.choice((100, 101, 102, 103))
    a, b, c = random.randrange(5), random.choice(("''", "'b'", "'c'")), random.randrange(4)
    low, high = random.choice((">", ">=")), random.choice(("<", "<="))
    using = f"USING TIMESTAMP {timestamp}"
    return random.choice(
        (
            f"INSERT INTO {table} (p, a, b, c, v, s) VALUES (9, {a}, {b}, {c}, {timestamp}, 's') {using}",
            f"UPDATE {table} {using} SET m = {{'k': {c}}} WHERE p = 9 AND a = {a} AND b = {b} AND c = {c}",
            f"DELETE FROM {table} {using} WHERE p = 9 AND a = {a} AND b = {b} AND c = {c}",
            f"DELETE FROM {table} {using} WHERE p = 9 AND a = {a} AND b = {b}",
            f"DELETE FROM {table} {using} WHERE p = 9 AND a = {a}",
            f"DELETE FROM {table} {using} WHERE p = 9 AND a {low} {a}",
            f"DELETE FROM {table} {using} WHERE p = 9 AND a {low} {a} AND a {high} {a + 1 + c}",
            f"DELETE FROM {table} {using} WHERE p = 9 AND a = {a} AND b {high} {b}",
            f"DELETE FROM {table} {using} WHERE p = 9 AND a = {a} AND b = {b} AND c {low} {c} AND c {high} {c + 2}",
            f"DELETE v FROM {table} {using} WHERE p = 9 AND a = {a} AND b = {b} AND c = {c}",
            f"DELETE FROM {table} {using} WHERE p = 9",
        )
    )


def times(setting: Setting) -> Iterator[Item]:
    """Writetimes of any size alone and side by side; TTLs from a second to 20 years, as default, in rows,
    cells and elements.
    """
    yield create("times", "p int, c int, v int, m map<int, int>, l list<int>, s int static, PRIMARY KEY (p, c)")
    table = f"{KEYSPACE}.times"
    stamps = (
        FIRST_TIMESTAMP,
        -1,
        0,
        1,
        1_442_879_999_999_999,
        1_442_880_000_000_000,
        4_102_444_800_000_000,
        LAST_TIMESTAMP - 1,
        LAST_TIMESTAMP,
    )
    for row, stamp in enumerate(stamps):
        yield insert("times", f"TIMESTAMP {stamp}", p=1, c=row, v=row, m={row: row}, s=row)
        yield f"UPDATE {table} USING TIMESTAMP {stamp} AND TTL 3000 SET v = 1, l = [1, 2] WHERE p = 1 AND c = {row}"
        yield f"DELETE FROM {table} USING TIMESTAMP {stamp} WHERE p = 1 AND c = {row}"
        yield f"DELETE v, m FROM {table} USING TIMESTAMP {stamp} WHERE p = 2 AND c = {row}"
        yield f"DELETE FROM {table} USING TIMESTAMP {stamp} WHERE p = 2 AND c < {row}"
        yield f"DELETE FROM {table} USING TIMESTAMP {stamp} WHERE p = 3"
        for other in stamps:
            first = f"INSERT INTO {table} (p, c, v, s) VALUES (4, {row}, 1, 2) USING TIMESTAMP {stamp} AND TTL 77"
            yield batch(first, f"UPDATE {table} USING TIMESTAMP {other} SET m = {{1: 1}} WHERE p = 4 AND c = {row}")
    ttls = (1, 60, 86_400, 5 * 365 * 86_400, LONGEST_TTL)
    yield create("default_ttl", "p int, c int, v int, m map<int, int>, PRIMARY KEY (p, c)", "cdc = true AND default_time_to_live = 600")
    for row, ttl in enumerate(ttls):
        for name in ("times", "default_ttl"):
            yield insert(name, f"TTL {ttl}", p=5, c=row, v=row, m={row: row})
            yield insert(name, "TTL 0", p=6, c=row, v=row, m={row: row})
            yield insert(name, p=7, c=row, v=row, m={row: row})
        yield f"UPDATE {table} USING TTL {ttl} SET s = {row}, m[1] = 2, l = l + [3] WHERE p = 5 AND c = {row}"
        mixed = f"INSERT INTO {table} (p, c, v) VALUES (8, {row}, 1) USING TTL {ttl}"
        yield batch(mixed, f"UPDATE {table} SET m[9] = 9 WHERE p = 8 AND c = {row}", f"DELETE FROM {table} WHERE p = 8 AND c = 99")
        yield batch(mixed, *(f"UPDATE {table} USING TTL {other} SET m[{other}] = 1 WHERE p = 8 AND c = {row}" for other in ttls))


def collections(setting: Setting) -> Iterator[Item]:
    """Whole and by element: added, put in front, set, removed, emptied; with TTLs; many elements; in static
    columns.
    """
    columns = "p int, c int, l list<text>, s set<int>, m map<text, blob>, sl list<int> static, sm map<int, int> static"
    yield create("collections", f"{columns}, PRIMARY KEY (p, c)")
    table, row = f"{KEYSPACE}.collections", "WHERE p = 1 AND c = 1"
    yield insert("collections", p=1, c=1, l=["a", "b", "a"], s={3, 1, 2}, m={"é": b"", "k": b"\0"})
    changes = (
        "l = l + ['x', 'y']", "l = ['first', 'second'] + l", "l[1] = 'set'", "l = l - ['a']", "s = s + {9}", "s = s - {1, 7}", "s = {}",
        "m['k'] = 0xff", "m['k'] = null", "m = m + {'n': 0x01}", "m = m - {'é'}", "m = {}", "l = []", "l = null",
    )  # fmt: skip
    for using in ("", "USING TTL 900 "):
        for change in changes:
            yield f"UPDATE {table} {using}SET {change} {row}"
        yield f"UPDATE {table} {using}SET l = ['1', '2', '3'], s = {{4}}, m = {{'q': 0x}} {row}"
    yield f"DELETE l[0], m['q'], s[4] FROM {table} {row}"
    yield f"UPDATE {table} SET sl = [1, 2], sm = {{1: 1}} WHERE p = 1"
    yield f"UPDATE {table} SET sl = sl + [3], sm[2] = 2 WHERE p = 1"
    yield f"DELETE sl, sm[1] FROM {table} WHERE p = 1"
    yield insert("collections", p=2, c=1, l=[str(number) for number in range(700)], s=set(range(700)), m={str(k): b"v" for k in range(700)})
    yield insert("collections", p=2, c=2, l=["x" * 70_000], m={"long" * 2000: b"x" * 20_000})


def statics(setting: Setting) -> Iterator[Item]:
    """Alone, with rows, gone, expiring, and beside a partition deletion."""
    yield create("statics", "p int, c int, s text static, t int static, v int, PRIMARY KEY (p, c)")
    table = f"{KEYSPACE}.statics"
    for number in range(6):
        yield insert("statics", p=number, s="alone")
        yield insert("statics", p=number, c=1, s="with", t=number, v=number)
        yield insert("statics", "TTL 50", p=number, c=2, s="brief", v=number)
    yield f"DELETE s FROM {table} WHERE p = 1"
    yield f"UPDATE {table} SET s = null, t = 3 WHERE p = 2"
    yield batch(
        f"DELETE FROM {table} WHERE p = 3", insert("statics", p=3, c=9, s="after", v=1), f"DELETE FROM {table} WHERE p = 3 AND c > 4"
    )
    yield f"UPDATE {table} SET t = 9 WHERE p = 2 IF s = null"


def counters(setting: Setting) -> Iterator[Item]:
    """Up, down, static, deleted, and several in one mutation."""
    yield create("counters", "p text, c int, n counter, m counter, s counter static, PRIMARY KEY (p, c)")
    table = f"{KEYSPACE}.counters"
    for number in range(8):
        yield f"UPDATE {table} SET n = n + {number}, m = m - {2**40} WHERE p = 'é' AND c = {number % 3}"
        yield f"UPDATE {table} SET s = s + 1 WHERE p = 'é'"
    both = [f"UPDATE {table} SET n = n + 1 WHERE p = 'é' AND c = {number}" for number in range(3)]
    yield batch(*both, kind=BatchType.COUNTER)
    yield f"DELETE n FROM {table} WHERE p = 'é' AND c = 1"
    yield f"DELETE s FROM {table} WHERE p = 'é'"
    yield f"DELETE FROM {table} WHERE p = 'é' AND c = 2"
    yield f"DELETE FROM {table} WHERE p = 'é'"


def conditional(setting: Setting) -> Iterator[Item]:
    """Lightweight transactions, some of which are not applied; on rows, static columns, in batches."""
    yield create("conditional", "p int, c int, v int, l list<int>, s int static, PRIMARY KEY (p, c)")
    table = f"{KEYSPACE}.conditional"
    for number in range(4):
        yield f"INSERT INTO {table} (p, c, v, l) VALUES (1, {number % 2}, {number}, [1]) IF NOT EXISTS"
        yield f"UPDATE {table} SET v = 7, l = l + [2] WHERE p = 1 AND c = {number} IF v = {number}"
        yield f"UPDATE {table} USING TTL 99 SET s = {number} WHERE p = 1 IF s = null"
        yield f"DELETE FROM {table} WHERE p = 1 AND c = {number} IF EXISTS"
    several = f"INSERT INTO {table} (p, c, v) VALUES (2, 1, 1) IF NOT EXISTS; INSERT INTO {table} (p, c, v) VALUES (2, 2, 2) IF NOT EXISTS"
    yield f"BEGIN BATCH {several}; APPLY BATCH"


def batches(setting: Setting) -> Iterator[Item]:
    """One mutation with updates of several tables, captured or not; several mutations; kinds of statements
    mixed.
    """
    names = ("batch_plain", "batch_captured", "batch_other")
    for name in names:
        yield create(
            name, "p int, c int, v text, m map<int, text>, s int static, PRIMARY KEY (p, c)", f"cdc = {'plain' not in name}".lower()
        )
    for number in range(12):
        kind = BatchType.LOGGED if number % 3 == 0 else BatchType.UNLOGGED
        order = setting.random.sample(names, 3)
        statements: list[str | Statement] = [insert(name, p=number, c=1, v=name, m={1: "x"}, s=2) for name in order]
        statements.append(f"DELETE FROM {KEYSPACE}.{order[0]} WHERE p = {number} AND c > 5")
        statements.append(f"DELETE FROM {KEYSPACE}.{order[1]} WHERE p = {number + 100}")
        yield batch(*statements, kind=kind)
        yield batch(insert("batch_plain", p=number, c=2, v="alone"), insert("filler", p=number, c=3, b=b"x"))
    for rows in (10, 300):
        yield batch(*(insert("batch_captured", p=50, c=row, v=f"{row}", m={row: "m"}) for row in range(rows)))
    yield f"BEGIN UNLOGGED BATCH USING TIMESTAMP 4711 INSERT INTO {KEYSPACE}.batch_other (p, c, v) VALUES (1, 1, 'x'); APPLY BATCH"


# --- what is done to tables


def alterations(setting: Setting) -> Iterator[Item]:
    """Columns added, dropped, added again, also as another type, renamed; before and after, and at once; CDC off
    and on.
    """
    yield create("altered", "p int, c int, d int, v text, w int, n bigint, m map<text, int>, s set<int> static, PRIMARY KEY (p, c, d)")
    table = f"{KEYSPACE}.altered"
    yield insert("altered", p=1, c=1, d=1, v="v", w=1, m={"a": 1}, s={1})
    yield f"ALTER TABLE {table} ADD late list<int>"
    yield insert("altered", p=1, c=1, d=2, v="v", late=[1, 2])
    yield f"ALTER TABLE {table} DROP v"
    yield insert("altered", p=1, c=1, d=3, w=3)
    yield f"ALTER TABLE {table} ADD v text"
    yield insert("altered", p=1, c=1, d=4, v="again", w=4)
    yield f"ALTER TABLE {table} DROP m"
    yield f"ALTER TABLE {table} DROP s"
    yield insert("altered", p=1, c=1, d=5, v="without", w=5)
    yield f"ALTER TABLE {table} ADD m map<text, int>"
    yield insert("altered", p=1, c=1, d=6, m={"b": 2}, late=[3])
    # Cassandra allows types whose values have the same layout.
    yield insert("altered", p=1, c=1, d=7, n=7, v="text")
    yield insert("altered", f"TIMESTAMP {2**52}", p=1, c=1, d=8, n=8, v="in the future")
    yield f"ALTER TABLE {table} DROP n"
    yield f"ALTER TABLE {table} DROP v"
    yield insert("altered", p=1, c=1, d=9, w=9)
    yield f"ALTER TABLE {table} ADD n timestamp"
    yield f"ALTER TABLE {table} ADD v blob"
    yield f"INSERT INTO {table} (p, c, d, n, v) VALUES (1, 1, 10, 1700000000000, 0x00ff)"
    yield f"INSERT INTO {table} (p, c, d, n, v) VALUES (1, 1, 11, 1700000000000, 0x) USING TIMESTAMP 1000"
    yield f'ALTER TABLE {table} RENAME c TO c_new AND d TO "D"'
    yield f'INSERT INTO {table} (p, c_new, "D", v) VALUES (1, 2, 1, 0x72656e616d6564)'
    yield f'ALTER TABLE {table} RENAME p TO "Ключ"'
    yield f'INSERT INTO {table} ("Ключ", c_new, "D", v) VALUES (1, 2, 2, 0x746f6f)'
    yield f"ALTER TABLE {table} WITH cdc = false AND gc_grace_seconds = 77 AND default_time_to_live = 5000"
    yield f'INSERT INTO {table} ("Ключ", c_new, "D", v) VALUES (1, 3, 1, 0x6e6f74)'
    yield f"ALTER TABLE {table} WITH cdc = true AND comment = 'captured again'"
    yield f'DELETE FROM {table} WHERE "Ключ" = 1 AND c_new = 2 AND "D" > 1'


def incarnations(setting: Setting) -> Iterator[Item]:
    """Tables that are dropped and made again with other columns, truncated, never used; a type that goes; a
    keyspace that goes.
    """
    yield create("reborn", "p int PRIMARY KEY, v text, w int")
    yield insert("reborn", p=1, v="first life", w=1)
    yield f"DROP TABLE {KEYSPACE}.reborn"
    yield create("reborn", "p text, c timeuuid, v int, m map<int, int>, PRIMARY KEY (p, c)", "CLUSTERING ORDER BY (c DESC) AND cdc = true")
    yield f"INSERT INTO {KEYSPACE}.reborn (p, c, v, m) VALUES ('p', now(), 2, {{1: 1}})"
    yield f"TRUNCATE {KEYSPACE}.reborn"
    yield f"INSERT INTO {KEYSPACE}.reborn (p, c, v) VALUES ('after', now(), 3)"
    yield f"DROP TABLE {KEYSPACE}.reborn"
    yield create("reborn", "p blob PRIMARY KEY, v int", "cdc = false")
    yield insert("reborn", p=b"third", v=3)
    yield f"CREATE TYPE {KEYSPACE}.brief (a int, b frozen<set<text>>)"
    yield create("typed_briefly", "p int PRIMARY KEY, t frozen<brief>, u brief")
    yield f"INSERT INTO {KEYSPACE}.typed_briefly (p, t, u) VALUES (1, {{a: 1, b: {{'x'}}}}, {{a: 2}})"
    yield f"DROP TABLE {KEYSPACE}.typed_briefly"
    yield f"DROP TYPE {KEYSPACE}.brief"
    yield "CREATE KEYSPACE going WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    yield "CREATE TABLE going.gone (p int PRIMARY KEY, v int) WITH cdc = true"
    yield "INSERT INTO going.gone (p, v) VALUES (1, 1)"
    yield "DROP KEYSPACE going"
    yield "CREATE KEYSPACE going WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    yield "CREATE TABLE going.gone (p int PRIMARY KEY, w text) WITH cdc = true"
    yield "INSERT INTO going.gone (p, w) VALUES (1, 'again')"
    yield "DROP KEYSPACE going"
    yield create("gone_twice", "p int PRIMARY KEY, v int")
    yield insert("gone_twice", p=1, v=1)
    yield f"DROP TABLE {KEYSPACE}.gone_twice"
    yield create("gone_twice", "p int PRIMARY KEY, w text")
    yield insert("gone_twice", p=1, w="w")
    yield f"DROP TABLE {KEYSPACE}.gone_twice"
    # A restored table is created with its former id.
    identity = UUID(int=setting.random.getrandbits(128), version=4)
    yield create("restored", "p int PRIMARY KEY, v int, w text", f"ID = {identity} AND cdc = true")
    yield insert("restored", p=1, v=1, w="before")
    yield f"DROP TABLE {KEYSPACE}.restored"
    yield create("restored", "p int PRIMARY KEY, v int, x text", f"ID = {identity} AND cdc = true")
    yield insert("restored", p=2, v=2, x="after")
    # Here the layout of a column is another one; the reader, which knows the last schema only, is shown no other.
    identity = UUID(int=setting.random.getrandbits(128), version=4)
    yield create("restored_otherwise", "p int PRIMARY KEY, v int, w text", f"ID = {identity} AND cdc = true")
    yield insert("restored_otherwise", p=1, w="before")
    yield f"DROP TABLE {KEYSPACE}.restored_otherwise"
    yield create("restored_otherwise", "p int PRIMARY KEY, v text, w text", f"ID = {identity} AND cdc = true")
    yield insert("restored_otherwise", p=2, v="after", w="w")
    yield insert("restored_otherwise", "TIMESTAMP 1000", p=3, v="as if long before", w="w")


def compact_storage(setting: Setting) -> Iterator[Item]:
    """Tables of the Thrift era in every shape that CQL can still make."""
    compact = "COMPACT STORAGE AND cdc = true"
    yield create("compact_static", "p text PRIMARY KEY, v int, w text", compact)
    yield create("compact_dense", "p int, c text, v int, PRIMARY KEY (p, c)", compact)
    yield create(
        "compact_compound", "p int, c int, d text, v blob, PRIMARY KEY (p, c, d)", f"{compact} AND CLUSTERING ORDER BY (c DESC, d ASC)"
    )
    yield create("compact_keys", "p int, c int, PRIMARY KEY (p, c)", compact)
    yield create("compact_counter", "p int, c int, n counter, PRIMARY KEY (p, c)", compact)
    for number in range(4):
        yield insert("compact_static", p=f"{number}", v=number, w="w")
        yield insert("compact_dense", "TTL 500" if number % 2 else "", p=1, c=f"{number}", v=number)
        yield insert("compact_compound", p=1, c=number, d="", v=b"")
        yield insert("compact_compound", p=1, c=number, d="d", v=b"v")
        yield insert("compact_keys", p=1, c=number)
        yield f"UPDATE {KEYSPACE}.compact_counter SET n = n + {number} WHERE p = 1 AND c = {number}"
    yield f"DELETE v FROM {KEYSPACE}.compact_static WHERE p = '1'"
    yield f"DELETE FROM {KEYSPACE}.compact_static WHERE p = '2'"
    yield f"DELETE FROM {KEYSPACE}.compact_dense WHERE p = 1 AND c = '1'"
    yield f"DELETE FROM {KEYSPACE}.compact_compound WHERE p = 1 AND c = 1"
    yield f"DELETE FROM {KEYSPACE}.compact_compound WHERE p = 1 AND c >= 2 AND c < 3"
    yield f"DELETE FROM {KEYSPACE}.compact_keys WHERE p = 1"
    yield f"ALTER TABLE {KEYSPACE}.compact_dense DROP COMPACT STORAGE"
    yield insert("compact_dense", p=2, c="no longer compact", v=1)
    # A clustering may be a prefix in these tables: what follows is null.
    yield f"INSERT INTO {KEYSPACE}.compact_compound (p, c, v) VALUES (2, 7, 0x07)"


def views(setting: Setting) -> Iterator[Item]:
    """A materialized view: rows that move, vanish, expire."""
    yield create("base", "p int, c int, v int, w text, PRIMARY KEY (p, c)")
    where = "v IS NOT NULL AND p IS NOT NULL AND c IS NOT NULL"
    yield f"CREATE MATERIALIZED VIEW {KEYSPACE}.by_value AS SELECT * FROM {KEYSPACE}.base WHERE {where} PRIMARY KEY (v, p, c)"
    where = "p IS NOT NULL AND c IS NOT NULL"
    yield f"CREATE MATERIALIZED VIEW {KEYSPACE}.turned AS SELECT p, c, w FROM {KEYSPACE}.base WHERE {where} PRIMARY KEY (c, p)"
    for number in range(6):
        yield insert("base", p=1, c=number, v=number, w="w")
        yield f"UPDATE {KEYSPACE}.base SET v = {number + 10} WHERE p = 1 AND c = {number}"
        yield f"UPDATE {KEYSPACE}.base USING TTL {1 + number} SET v = {number + 20}, w = 'x' WHERE p = 1 AND c = {number}"
        yield f"UPDATE {KEYSPACE}.base USING TTL 100 SET w = 'y' WHERE p = 2 AND c = {number}"
    yield f"UPDATE {KEYSPACE}.base SET v = null WHERE p = 1 AND c = 1"
    yield f"DELETE FROM {KEYSPACE}.base WHERE p = 1 AND c = 2"
    yield f"DELETE FROM {KEYSPACE}.base WHERE p = 1 AND c > 3"
    yield f"DELETE FROM {KEYSPACE}.base WHERE p = 1"


PARTS: tuple[Part, ...] = (
    native_types,
    nested_types,
    custom_types,
    vectors,
    keys,
    many_columns,
    names,
    deletes,
    times,
    collections,
    statics,
    counters,
    conditional,
    batches,
    compact_storage,
    views,
    alterations,
    incarnations,
)
"""Everything, in the order in which it is run."""
