"""Pages typed by columns: as those of the readable twin, value by value, on tables of all types; and what
goes the twin's way."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.stages.column_values import without
from spark_jobs.stages.merge_stream import FOLDED
from spark_jobs.stages.row_packs import pack, unpacked
from spark_jobs.stages.typed_columns import EventColumns
from spark_jobs.stages.typed_events import EventPlan, TypedEvents, typed
from tests.cassandra.schema.examples import create_table
from tests.cassandra.schema.test_dropped_types import define, drop_column, drop_type
from tests.cassandra.types.typed import TYPES, kind_of, typed_values, values_of
from tests.events.test_round_trips import IN_ARROW
from tests.examples import examples
from tests.spark_jobs.examples import (
    COUNTS,
    EVERYTHING,
    HOSTS,
    KEYS_ONLY,
    NOW,
    ORDERS,
    SCHEMA,
    THEN,
    cells,
    delete,
    folded,
    frame,
    insert,
    of_kind,
    paged,
    schema_of,
    table,
)
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.model import NO_DELETION_TIME, Cell, Row
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Schema, Table, UserType
from writetime.cassandra.types.types import CollectionType, CqlType, UdtType, elements
from writetime.errors import MalformedMutation
from writetime.events.arrow import arrow_type, plain_values, to_arrow_value
from writetime.events.masking import Rules

KEY_TYPES = (
    "frozen<addr>",
    "frozen<map<text, int>>",
    "tuple<int, text>",
    "int",
    "text",
    "uuid",
    "timeuuid",
    "decimal",
    "timestamp",
    "boolean",
    "inet",
    "double",
    "blob",
    "varint",
    "frozen<list<int>>",
)
COLLECTIONS = ("set<text>", "list<int>", "map<text, timestamp>", "addr", "person", "set<int>", "list<frozen<addr>>", "map<uuid, double>")
MORE_COLLECTIONS = (
    "map<int, frozen<set<text>>>",
    "set<boolean>",
    "map<boolean, int>",
    "set<timeuuid>",
    "list<blob>",
    "set<decimal>",
    "set<date>",
)
ENGINES: tuple[Engine, ...] = ("numba", "python")
HOST_NAMES = ["host-b", "", "host-a", "host-c"]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    made: dict[str, Column] = {}
    for kind, most in (("partition_key", 2), ("clustering", 2)):
        for at in range(draw(st.integers(1 if kind == "partition_key" else 0, most))):
            name = f"{kind[0]}{at}"
            made[name] = Column(name, kind, draw(st.sampled_from(KEY_TYPES)), at)
    kinds = ["regular"] if "c0" not in made else ["static", "regular"]
    for at in range(draw(st.integers(0, 6))):
        text = draw(st.one_of(st.sampled_from((*COLLECTIONS, *MORE_COLLECTIONS)), typed_values(2, IN_ARROW, empty_keys=False).map(first)))
        name = draw(st.sampled_from(("v", "ü", "V", "a.b", "vv"))) + str(at)
        made[name] = Column(name, draw(st.sampled_from(kinds)), text)
    return Table("k", "any", UUID(int=77), made, cdc=True)


def first(pair: tuple[str, Any]) -> str:
    return pair[0]


@st.composite
def pages_of_rows(draw: st.DrawFn, of: Table) -> list[dict[str, Any]]:
    """FOLDED rows of events."""
    statics, regulars = ([column for column in of.columns.values() if column.kind == kind] for kind in ("static", "regular"))
    rows = []
    for seq in range(draw(st.integers(1, 6))):
        parts = [draw_value(draw, column.type) for column in of.partition_key]
        pk = parts[0] if len(parts) == 1 else b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in parts)
        old = tuple(draw(st.none() | st.just(draw_value(draw, column.type))) for column in of.clustering)
        new = old if draw(st.integers(0, 4)) else tuple(draw_value(draw, column.type) for column in of.clustering)
        before, after = draw(st.sampled_from([(True, True), (True, True), (False, True), (True, False)]))
        was, is_now = changing(draw, regulars)
        stood, stands = changing(draw, statics)
        alone = bool(statics) and draw(st.integers(0, 5)) == 0
        rows.append(
            {
                **dict.fromkeys(FOLDED.names),
                "kind": "event",
                "table": of.label,
                "table_id": of.id.bytes,
                "bucket": 0,
                "seq": draw(st.none() | st.just(seq)),
                "last": draw(st.booleans()),
                "pk": pk,
                "before": row_codec.encode(Row(None if alone else old, cells=() if alone else was)) if before else b"",
                # Of a row that does not show nobody asks for static content.
                "static_before": row_codec.encode(Row(None, cells=stood)) if stood and (before or draw(st.booleans())) else b"",
                "after": row_codec.encode(Row(None if alone else new, cells=() if alone else is_now)) if after else b"",
                "static_after": row_codec.encode(Row(None, cells=stands)) if stands else draw(st.sampled_from([b"", None])),
                "ts": draw(st.integers(-(2**63), 2**63 - 1) | st.just(THEN)),
                "reason": draw(st.sampled_from([None, "expiry", "row_delete"])),
                "copies": draw(
                    st.none() | st.lists(st.fixed_dictionaries({"segment": st.integers(0, 3), "position": st.integers(0, 99)}), max_size=4)
                ),
            }
        )
    return rows


def draw_value(draw: st.DrawFn, text: str) -> bytes:
    return kind_of(text).encode(draw(values_of(text, IN_ARROW)))


def changing(draw: st.DrawFn, columns: list[Column]) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Live cells before and after."""
    before: list[Cell] = []
    after: list[Cell] = []
    for column in columns:
        old = draw_cells(draw, column)
        before += old
        after += draw(st.sampled_from([old, [], None])) or draw_cells(draw, column)
    return tuple(before), tuple(after)


def draw_cells(draw: st.DrawFn, column: Column) -> list[Cell]:
    kind = kind_of(column.type)
    if draw(st.integers(0, 3)) == 0:
        return []
    if not kind.multicell:
        return [cell(draw, column, draw_value(draw, column.type), None)]
    found = dict(draw_elements(draw, kind))
    return [cell(draw, column, value, path) for path, value in found.items()]


def cell(draw: st.DrawFn, column: Column, value: bytes, path: bytes | None) -> Cell:
    mortal = draw(st.booleans())
    ttl, time = (10, NOW + draw(st.integers(1, 3))) if mortal else (0, NO_DELETION_TIME)
    return Cell(column.name, THEN + draw(st.integers(0, 3)), value, path, ttl, time)


def draw_elements(draw: st.DrawFn, kind: CqlType) -> list[tuple[bytes, bytes]]:
    some = range(draw(st.integers(1, 4)))
    if isinstance(kind, UdtType):
        fields = list(kind.known_fields.items())
        return [(at.to_bytes(2, "big"), draw_value(draw, str(fields[at][1]))) for at in some if at < len(fields)]
    assert isinstance(kind, CollectionType)
    if kind.kind == "list":
        return [(draw(st.uuids(version=1)).bytes, draw_value(draw, str(kind.elements[0]))) for _ in some]
    keys = [draw_value(draw, str(kind.elements[0])) for _ in some]
    if kind.kind == "map":
        return [(key, draw_value(draw, str(kind.elements[1]))) for key in keys if key]
    return [(key, b"") for key in keys]


def page(of: Table, rows: list[dict[str, Any]], schema: Schema, engine: Any, **options: Any) -> Any:
    """The rows typed, or what is wrong with them."""
    plan = EventPlan(schema, NOW, [f"{at}.log" for at in range(4)], HOST_NAMES, {of.id.bytes: 3}, {(of.id.bytes, 0): 5}, **options)
    try:
        return TypedEvents(plan, of.id, engine).page(pa.RecordBatch.from_pylist(rows, schema=FOLDED), 0)
    except Exception as error:  # noqa: BLE001 - both have to fail alike
        return type(error), str(error)


def same(of: Table, rows: list[dict[str, Any]], schema: Schema, **options: Any) -> None:
    fast, twin = (page(of, rows, schema, engine, **options) for engine in ENGINES)
    if isinstance(twin, tuple) or isinstance(fast, tuple):
        # Of several values that cannot be converted, they name different ones: one goes by column, one by row.
        assert isinstance(twin, tuple)
        assert isinstance(fast, tuple)
        assert fast[0] == twin[0]
        return
    assert fast.schema == twin.schema
    for name in fast.schema.names:
        assert repr(plain_values(fast[name])) == repr(plain_values(twin[name])), name
    fast.validate(full=True)


@settings(max_examples=examples(150))
@given(st.data())
def test_as_the_twin_has_it(data: st.DataObject) -> None:
    of = data.draw(tables())
    rows = data.draw(pages_of_rows(of))
    read = data.draw(st.sampled_from([frozenset(), frozenset({0, 2}), frozenset(range(4))]))
    same(of, rows, Schema(tables={of.id: of}, types=dict(TYPES)), read=read)


@st.composite
def rules_of(draw: st.DrawFn, of: Table) -> Rules:
    """Rules of columns, and a filter, that fit the table."""
    found: dict[str, list[str]] = {name: [] for name in ("plain", "exclude", "hash", "mask", "cut", "fields")}
    for column in of.columns.values():
        is_key, paths = column.kind in ("partition_key", "clustering"), sorted(paths_of(kind_of(column.type)))
        more = (["cut"] if column.type in ("text", "ascii", "varchar") else []) + (["fields"] if paths else [])
        rule, label = (
            draw(st.sampled_from(["plain", "hash"] if is_key else ["plain", "exclude", "hash", "mask", *more])),
            f"k.any.{column.name}",
        )
        if rule == "fields":
            found[rule] += [f"{label}.{'.'.join(path)}" for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3))]
        else:
            found[rule].append(re.escape(label))
    length = draw(st.sampled_from([0, 1, 8]))
    hashes = {draw(st.sampled_from(["sha256", "blake2b"])): found["hash"]}
    rows = draw(st.none() | filters([column.name for column in of.columns.values() if column.name.isidentifier()]))
    return Rules(
        exclude=found["exclude"],
        fields=found["fields"],
        hashes=hashes,
        masks={length: found["mask"]},
        cuts={length: found["cut"]},
        rows={} if rows is None else {"k.any": rows},
        salt="pepper",
    )


def paths_of(kind: CqlType) -> set[tuple[str, ...]]:
    """The fields of user types within a type, as rules name them."""
    if isinstance(kind, UdtType):
        named = {name: part for name, part in kind.known_fields.items() if "." not in name}
        return {(name.lower(), *path) for name, part in named.items() for path in (*paths_of(part), ())}
    return {path for part in elements(kind) for path in paths_of(part)}


def filters(names: list[str]) -> st.SearchStrategy[str]:
    """Filters of one to three of these columns."""
    name = st.sampled_from(names)
    constant = st.sampled_from(["0", "1.5", "-1", "'a'", "''", "'1970'", "True", "(0, 1, 'a')", "[]", "None"])
    compared = st.tuples(name, st.sampled_from(["==", "!=", "<", ">=", "in", "not in", "is", "is not"]), constant | name).map(" ".join)
    return st.lists(compared, min_size=1, max_size=3).map(" or ".join) | compared.map(lambda text: f"not {text}")


@settings(max_examples=examples(150))
@given(st.data())
def test_as_the_twin_has_it_by_any_rules(data: st.DataObject) -> None:
    of = data.draw(tables())
    rules, rows = data.draw(rules_of(of)), data.draw(pages_of_rows(of))
    assert rules.of(of, TYPES).rejection_reason() is None
    read = data.draw(st.sampled_from([frozenset(), frozenset({0, 2}), frozenset(range(4))]))
    same(of, rows, Schema(tables={of.id: of}, types=dict(TYPES)), read=read, rules=rules)


def made_by_columns(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each page that is asked for by columns from now on, whether it was made so."""
    found: list[bool] = []
    make = EventColumns.page

    def noted(self: EventColumns, *arguments: Any) -> Any:
        made = make(self, *arguments)
        found.append(made is not None)
        return made

    monkeypatch.setattr(EventColumns, "page", noted)
    return found


def folded_of(of: Table, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: row[name] for name in FOLDED.names}
        for row in rows
        if row["kind"] in ("event", "deletion") and row["table_id"] == of.id.bytes
    ]


PLAIN: dict[str, Any] = {
    "Name": "n",
    "name": 7,
    "a.b": "",
    "select": [3, 1, 2],
    "tags": ["b", "a"],
    "names": [("k", "v"), ("j", "")],
    "home": {"street": "s", "Since when": 5},
    "work": {"street": None, "Since when": 0},
    "two": (1, "x"),
    "v": [0.5, -0.0],
    "c double": float("nan"),
    "c float": -0.0,
    "c varint": 10**30,
    "c inet": "::1",
    "c boolean": True,
    "homes": [{"street": "t", "Since when": None}],
}


def test_all_kinds_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = made_by_columns(monkeypatch)
    later = PLAIN | {"select": [3, 1], "tags": ["a", "c"], "c float": 0.0, "home": {"street": "t", "Since when": 5}, "name": None}
    later.pop("name")
    frames = [
        insert(EVERYTHING, 1, PLAIN),
        insert(EVERYTHING, 1, later, timestamp=THEN + 1),
        insert(EVERYTHING, 2, {"c int": b"", "c timestamp": b"", "c uuid": b"", "c duration": b"", "c date": b""}),
        insert(EVERYTHING, 2, {"c int": b"\0\0\0\1", "c uuid": bytes(16)}, timestamp=THEN + 1),
        delete(EVERYTHING, 1, THEN + 2),
        insert(KEYS_ONLY, 1, None, "x"),
        insert(COUNTS, 1, {"n": counter(5)}),
        insert(COUNTS, 1, {"n": counter(6)}, timestamp=THEN + 1),
        insert(ORDERS, 1, {"name": "a"}, 3),
    ]
    rows = folded([frame(mutation, segment=at % 3) for at, mutation in enumerate(frames)])
    for of in (EVERYTHING, KEYS_ONLY, COUNTS, ORDERS):
        mine = folded_of(of, rows)
        assert mine
        same(of, mine, SCHEMA)
    assert noted == [True] * 4


def counter(count: int) -> bytes:
    return b"\0\1\x80\0" + UUID(int=9).bytes + (1).to_bytes(8, "big") + count.to_bytes(8, "big")


def test_what_a_dropped_column_held_is_told_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = made_by_columns(monkeypatch)
    was = table("lost", 70, {"id": "int", "v": "text", "tags": "set<text>"})
    now = table("lost", 70, {"id": "int", "v": "text"})
    old, new = (
        row_codec.encode(Row((), cells=cells(was, values, schema=schema_of(was)))) for values in ({"v": "x", "tags": ["a"]}, {"v": "x"})
    )
    row = {**dict.fromkeys(FOLDED.names), "kind": "event", "table_id": now.id.bytes, "bucket": 0, "seq": 0, "last": True, "pk": bytes(4)}
    rows = [{**row, "before": old, "after": new, "ts": THEN, "reason": "alter"}]
    same(now, rows, schema_of(now), before={now.id.bytes: was})
    (event,) = page(now, rows, schema_of(now), "numba", before={now.id.bytes: was}).to_pylist()
    assert (event["changed"], event["before"]["tags"], event["after"]["tags"], event["changed_elements"]) == (["tags"], ["a"], None, None)
    # If nobody knows the column any more, nobody tells of it.
    same(now, rows, schema_of(now))
    assert noted == [True] * 3


@pytest.mark.parametrize("kind", ["frozen<addr>", "list<frozen<addr>>", "frozen<list<frozen<addr>>>"])
@pytest.mark.parametrize("fields", [{"street": "int", "city": "text"}, {"zip": "text", "street": "int"}, {"a": "float", "b": "float"}])
def test_what_a_dropped_column_held_is_told_in_the_types_of_its_time(kind: str, fields: dict[str, str]) -> None:
    was = table("lost", 70, {"id": "int", "v": "text", "home": kind})
    old = schema_of(was, types={("shop", "addr"): UserType("shop", "addr", ("street", "zip"), ("text", "int"))})
    value: Any = {"street": "main", "zip": 9}
    values = {"v": "x", "home": value if kind == "frozen<addr>" else [value]}
    before, after = (row_codec.encode(Row((), cells=cells(was, each, schema=old))) for each in (values, {"v": "x"}))
    row = {**dict.fromkeys(FOLDED.names), "kind": "event", "table_id": was.id.bytes, "bucket": 0, "seq": 0, "last": True, "pk": bytes(4)}
    learner, at = SchemaLearner(), 1_600_000_000_000_000
    recorded = kind.replace("addr", "tuple<text, int>")
    for mutation in (
        define("addr", {"street": "text", "zip": "int"}, at, keyspace="shop"),
        create_table(was, at),
        drop_column(recorded, at + 1, table="lost", keyspace="shop"),
        drop_type("addr", at + 2, keyspace="shop"),
        define("addr", fields, at + 3, keyspace="shop"),
    ):
        learner.apply(mutation)
    schema = learner.schema()
    now = schema.tables[was.id]
    rows = [{**row, "before": before, "after": after, "ts": THEN, "reason": "alter"}]
    same(now, rows, schema, before={now.id.bytes: was})
    (event,) = page(now, rows, schema, "numba", before={now.id.bytes: was}).to_pylist()
    assert (event["changed"], event["before"]["home"], event["after"]["home"]) == (["home"], values["home"], None)


@pytest.mark.parametrize("read", [frozenset[int](), frozenset({0, 1, 2})])
@pytest.mark.parametrize(
    "rules",
    [
        Rules(cuts={1: ["shop.everything.(c text|c ascii)"]}),
        Rules(masks={2: ["shop.everything.(c text|tags|home|c int)"]}),
        Rules(hashes={"sha256": ["shop.everything.(id|c text|c int|tags|home|homes|select)"]}, salt="s"),
        Rules(fields=[f"shop.everything.{name}" for name in ("home.street", "work.since when", "homes.street", "by pair.b")]),
        Rules(exclude=["shop.everything.(c text|names|select)"]),
        Rules(rows={"shop.everything": "name > 2"}),
        Rules(rows={"shop.everything": "'a' in tags and not name == 4"}, exclude=["shop.everything.(tags|name)"]),
        Rules(rows={"shop.everything": "id == 1 and tags is not None"}, masks={1: ["shop.everything.tags"]}),
    ],
    ids=["cut", "mask", "hash", "fields", "exclude", "rows", "rows by excluded columns", "rows by keys and masked columns"],
)
def test_each_rule_as_the_twin_has_it(rules: Rules, read: frozenset[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that are created, changed, deleted, and that come to a filter and leave it."""
    noted = made_by_columns(monkeypatch)
    held = PLAIN | {"c text": "äbc", "c ascii": "xyz", "by pair": [({"a": 1, "b": "x"}, 5), ({"a": 2, "b": "x"}, 6)], "name": 1}
    steps: list[dict[str, Any]] = [
        {},
        {"c text": "äx", "name": 3, "home": {"street": "t", "Since when": 5}},
        {"c ascii": "xz", "home": {"street": "t", "Since when": 6}, "tags": ["a", "c"], "select": [3]},
        {"name": 4, "c text": "y", "by pair": [({"a": 1, "b": "y"}, 5)], "homes": []},
        {"name": 2, "tags": ["b"], "c float": 0.0},
    ]
    mutations = []
    for at, step in enumerate(steps):
        held = held | step
        mutations += [insert(EVERYTHING, key, held, timestamp=THEN + at) for key in (1, 2)]
    rows = folded([frame(each, segment=at % 3) for at, each in enumerate([*mutations, delete(EVERYTHING, 1, THEN + 9)])])
    mine = folded_of(EVERYTHING, rows)
    assert len(mine) == 11
    same(EVERYTHING, mine, SCHEMA, rules=rules, read=read)
    assert noted == [True]


ADDRESS = {"street": "s", "zip": 7, "tags": None}
WITHIN: dict[str, Any] = {
    "frozen<addr>": ADDRESS,
    "list<frozen<addr>>": [ADDRESS, ADDRESS | {"street": None}],
    "map<text, frozen<addr>>": [("a", ADDRESS), ("b", ADDRESS)],
    "tuple<int, frozen<addr>>": (1, ADDRESS),
    "vector<frozen<addr>, 2>": [ADDRESS, ADDRESS],
    "map<text, frozen<list<frozen<tuple<frozen<addr>>>>>>": [("a", [(ADDRESS,), (ADDRESS,)])],
}


@pytest.mark.parametrize("text", WITHIN)
@pytest.mark.parametrize("path", [("street",), ("zip",)])
def test_fields_are_null_wherever_their_type_is(text: str, path: tuple[str, ...]) -> None:
    of = Table("k", "any", UUID(int=77), {"id": Column("id", "partition_key", "int", 0), "v": Column("v", "regular", text)})
    change = Rules(fields=[f"k.any.v.{path[0]}"]).of(of, TYPES).changes()["v"]
    kind, value = kind_of(text), WITHIN[text]
    held = pa.array([None, to_arrow_value(kind, value), None, to_arrow_value(kind, value)], arrow_type(kind))
    expected = to_arrow_value(kind, change(value))
    for at in (0, 1, 2):
        found = without(kind, held.slice(at), {path})
        found.validate(full=True)
        assert found.equals(pa.array([None, expected, None, expected][at:], arrow_type(kind)))
        assert not found.equals(held.slice(at))


SECRET = "clear"
HOLDERS: dict[str, Any] = {
    "Name": SECRET,
    "tags": [SECRET],
    "names": [(SECRET, SECRET)],
    "home": {"street": SECRET, "Since when": 5},
    "work": {"street": SECRET, "Since when": 0},
    "homes": [{"street": SECRET, "Since when": None}],
    "two": (1, SECRET),
    "c blob": SECRET.encode(),
}
HIDDEN = "shop.everything.(c blob|names|two|work|name|homes|home|tags)"
HIDING = {
    "exclude": Rules(exclude=[HIDDEN]),
    "hash": Rules(hashes={"sha256": [HIDDEN]}, salt="s"),
    "mask": Rules(masks={6: [HIDDEN]}),
    "fields": Rules(
        fields=[f"shop.everything.{name}.street" for name in ("home", "work", "homes")],
        exclude=["shop.everything.(c blob|names|two|name|tags)"],
    ),
    "rows": Rules(rows={"shop.everything": "name > 2"}),
}


@pytest.mark.parametrize("rules", HIDING.values(), ids=HIDING)
def test_what_rules_hide_is_in_no_byte_of_a_page_by_column(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not behind a null either, where a reader of values would not see it."""
    noted = made_by_columns(monkeypatch)
    frames = [frame(insert(EVERYTHING, 1, HOLDERS | {"name": at}, timestamp=THEN + at)) for at in (1, 2)]
    rows = folded_of(EVERYTHING, folded(frames))
    assert len(rows) == 2
    for each, is_hidden in ((rules, True), (Rules(masks={1: ["shop.everything.c text"]}), False)):
        made = page(EVERYTHING, rows, SCHEMA, "numba", rules=each)
        held = b"".join(bytes(buffer) for column in made.columns for buffer in column.buffers() if buffer is not None)
        assert (SECRET.encode() in held) is not is_hidden
        same(EVERYTHING, rows, SCHEMA, rules=each)
    assert noted == [True] * 4


def test_deletions_and_damage_go_the_readable_way(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = made_by_columns(monkeypatch)
    rows = folded_of(ORDERS, folded([frame(insert(ORDERS, 1, {"name": "a"}, 3))]))
    same(ORDERS, [*rows, *folded_of(ORDERS, folded([frame(delete(ORDERS, 1))], deletes="one"))], SCHEMA)
    same(ORDERS, [{**rows[0], "after": rows[0]["after"] + b"\x03"}], SCHEMA)
    assert page(ORDERS, [{**rows[0], "after": rows[0]["after"] + b"\x03"}], SCHEMA, "numba")[0] is MalformedMutation
    same(ORDERS, [{**rows[0], "pk": b"\0"}], SCHEMA)
    assert noted == [False] * 3


def test_few_events_are_typed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = made_by_columns(monkeypatch)
    rows = folded_of(ORDERS, folded([frame(insert(ORDERS, 1, {"name": "a"}, line)) for line in range(16)]))
    few, more = page(ORDERS, rows[:15], SCHEMA, "auto"), page(ORDERS, rows, SCHEMA, "auto")
    assert few.equals(more.slice(0, 15))
    assert noted == [True]


def test_a_pack_of_many_rows_is_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.stages.typed_events.BYTES_PER_PAGE", 2500)
    rows = of_kind(folded([frame(insert(ORDERS, 1, {"name": "a"}, line)) for line in range(5)]), "event")
    pages = paged(rows, start=7)
    assert [row["told"] for row in pages] == [2, 2, 1]
    assert [row["last"] for row in pages] == [2, 2, 1]
    assert [n for made in unpacked(row["payload"] for row in pages) for n in made["ordinal"].to_pylist()] == [8, 9, 10, 11, 12]


def test_the_engine_may_be_chosen() -> None:
    rows = folded_of(ORDERS, folded([frame(insert(ORDERS, 1, {"name": "a"}, 3))]))
    plan = EventPlan(SCHEMA, NOW, ["a.log"] * 3, HOSTS, {ORDERS.id.bytes: 3}, {(ORDERS.id.bytes, 0): 0})
    batch = pa.RecordBatch.from_pylist([{"state": pack(pa.RecordBatch.from_pylist(rows, schema=FOLDED))}])
    made = [list(typed(plan, engine)(iter([batch]))) for engine in ENGINES]
    assert made[0][0].equals(made[1][0])
    assert made[0][0]["after"][0].as_py()["name"] == "a"
