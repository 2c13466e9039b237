"""What one node can write into its schema documents, or into the schema tables of its log: whatever it is, it is
refused as a document, or rejects the table that it is about, in little time; all other tables stay as they are."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from time import process_time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import Frame
from writetime.cassandra.model import Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.create_statements import schema_cql
from writetime.cassandra.schema.ddl import ddl
from writetime.cassandra.schema.fingerprint import schema_version
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Keyspace, Schema, Table
from writetime.cassandra.schema.snapshot import mutations, read
from writetime.cassandra.schema.timeline import differences
from writetime.cassandra.token_ring import Member, Ownership, expected_replicas
from writetime.cassandra.types.compound import MAX_PARTS
from writetime.cassandra.types.types import parse_type
from writetime.errors import SchemaError
from writetime.events.arrow import arrow_type
from writetime.events.avro import AvroTable
from writetime.events.masking import rejection_reason
from writetime.kernels import mutation_decoder

T = 1_700_000_000_000_000
CLASS = "org.apache.cassandra.db.marshal."
GOOD, EVIL = UUID("6cbda380-e583-11f1-817f-f173fd8e050e"), UUID("7cbda380-e583-11f1-817f-f173fd8e050e")
SIMPLE = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"}
SECONDS = 20
"""Of CPU, for whatever a document holds: far more than any of these takes."""


def keyspace(name: str, replication: Any = SIMPLE) -> dict[str, Any]:
    return {"keyspace_name": name, "durable_writes": True, "replication": replication, "writetime": T}


def table(name: str, table_id: UUID, **more: Any) -> dict[str, Any]:
    return {"keyspace_name": name, "table_name": "t", "id": str(table_id), "flags": ["compound"], "cdc": True, "writetime": T, **more}


def column(name: str, of: str, kind: str, type_text: str, position: int = -1) -> dict[str, Any]:
    row = {"keyspace_name": of, "table_name": "t", "column_name": name, "kind": kind, "position": position, "type": type_text}
    return {**row, "clustering_order": "none", "writetime": T}


def user_type(name: str, names: Any, kinds: Any) -> dict[str, Any]:
    return {"keyspace_name": "evil", "type_name": name, "field_names": names, "field_types": kinds, "writetime": T}


def columns_of(name: str) -> list[dict[str, Any]]:
    keys = [column("p", name, "partition_key", "int", 0), column("c", name, "clustering", "text", 0)]
    return [*keys, column("s", name, "static", "int"), column("v", name, "regular", "map<text, int>"), column("w", name, "regular", "text")]


def document() -> dict[str, Any]:
    """A valid snapshot of two keyspaces, which has rows of all kinds."""
    dropped = {
        "keyspace_name": "evil",
        "table_name": "t",
        "column_name": "gone",
        "kind": "regular",
        "type": "int",
        "dropped_time": T // 1000,
    }
    view = {"keyspace_name": "evil", "view_name": "mv", "id": str(UUID(int=9)), "base_table_name": "t", "where_clause": "x", "cdc": False}
    return {
        "taken_at": "2023-11-14T22:13:20+00:00",
        "schema_version": "v",
        "keyspaces": [keyspace("good"), keyspace("evil")],
        "tables": [table("good", GOOD), table("evil", EVIL)],
        "columns": [*columns_of("good"), *columns_of("evil"), column("u", "evil", "regular", "frozen<addr>")],
        "dropped_columns": [{**dropped, "writetime": T}],
        "types": [user_type("addr", ["street", "zip"], ["text", "int"])],
        "views": [{**view, "writetime": T}],
    }


# --- one by one


def chain(count: int, *kinds: str) -> list[dict[str, Any]]:
    names = [f"f{at}" for at in range(len(kinds))]
    links = [user_type(f"t{at}", names, [kind.replace("next", f"frozen<t{at + 1}>") for kind in kinds]) for at in range(count)]
    return [*links, user_type(f"t{count}", ["a"], ["int"])]


DEEP = 150
TYPES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a type that contains itself": ("frozen<t0>", [user_type("t0", ["a"], ["frozen<t0>"])]),
    "in a list": ("frozen<t0>", [user_type("t0", ["a"], ["list<frozen<t0>>"])]),
    "by way of another": ("t0", [user_type("t0", ["a"], ["frozen<t1>"]), user_type("t1", ["b"], ["frozen<map<int, frozen<t0>>>"])]),
    "2^n fields": ("frozen<t0>", chain(40, "next", "next")),
    "a long chain": ("frozen<t0>", chain(2000, "next")),
    "nested": ("frozen<list<" * DEEP + "int" + ">>" * DEEP, []),
    "nested classes": (f"'{f'{CLASS}FrozenType({CLASS}ListType(' * DEEP}{CLASS}Int32Type{'))' * DEEP}'", []),
    "nested classes in nested types": (f"{'frozen<list<' * 40}'{'ListType(' * 90}Int32Type{')' * 90}'{'>>' * 40}", []),
    "a wide tuple": (f"tuple<{', '.join(['int'] * 15_000)}>", []),
    "a text of megabytes": ("int" + " " * (1 << 20) + "x", []),
    "no end": ("frozen<" * 10_000, []),
    "reversed": (f"'{CLASS}ReversedType({CLASS}Int32Type)'", []),
    "reversed in a list": (f"list<'{CLASS}ReversedType({CLASS}Int32Type)'>", []),
    "a vector of nothing": ("vector<'EmptyType', 2147483647>", []),
    "a class of a vector of nothing": ("frozen<list<vector<empty, 2147483647>>>", []),
    "a negative dimension": ("vector<float, -1>", []),
    "a huge dimension": ("vector<float, 99999999999999999999>", []),
    "two fields of one name": ("frozen<t0>", [user_type("t0", ["a", "a"], ["int", "text"])]),
    "more names than types": ("frozen<t0>", [user_type("t0", ["a", "b"], ["int"])]),
    "not a type": ("frozen<t0>", [user_type("t0", ["a"], ["<<>"])]),
    "an unknown type": ("frozen<nowhere>", []),
    "a type of another keyspace": ("frozen<good.addr>", []),
    "unicode": ("frozen<\u2603>", []),
    "empty": (" ", []),
}
"""Types of a column that reject its table."""


@pytest.mark.parametrize("what", TYPES)
def test_a_type_that_cannot_be_published_rejects_its_table(what: str) -> None:
    kind, types = TYPES[what]
    found = document()
    found["columns"].append(column("x", "evil", "regular", kind))
    found["types"] += types
    schema = checked(found)
    reason = rejection_reason(schema.tables[EVIL], schema) if EVIL in schema.tables else "left out"
    assert reason is not None
    assert len(reason) < 1000


def replication(
    factor: Any, strategy: str = "org.apache.cassandra.locator.SimpleStrategy", name: str = "replication_factor"
) -> dict[str, Any]:
    return {"class": strategy, name: factor}


FACTORS = ("abc", "", "-1", "3000000000", "9" * 5000, "3/1/1", "3 ", "\u0663", "1e3", "0x3")


@pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: ascii(factor[:12]))
def test_a_number_of_replicas_that_is_none_rejects_the_tables_of_its_keyspace(factor: str) -> None:
    for given_replication in (replication(factor), replication(factor, "NetworkTopologyStrategy", "dc1")):
        schema = checked({**document(), "keyspaces": [keyspace("good"), keyspace("evil", given_replication)]})
        assert "is no number of replicas" in (rejection_reason(schema.tables[EVIL], schema) or "")
        with pytest.raises(SchemaError):
            expected_replicas(given_replication, ["dc1"])
        with pytest.raises(SchemaError):
            Ownership([Member("a", "dc1", "r", (1,))], ["dc1"]).replicas(given_replication, 0)


@pytest.mark.parametrize(
    ("given_replication", "count"), [(SIMPLE, 3), (replication("3/1"), 3), ({}, 0), ({"class": "EverywhereStrategy", "x": "y"}, 0)]
)
def test_numbers_of_replicas(given_replication: dict[str, str], count: int) -> None:
    schema = checked({**document(), "keyspaces": [keyspace("good"), keyspace("evil", given_replication)]})
    assert rejection_reason(schema.tables[EVIL], schema) is None
    assert expected_replicas(given_replication, ["dc1", "dc2"]) == count


def test_a_keyspace_has_no_tables_of_another_and_none_that_are_built_in() -> None:
    from writetime.cassandra.schema.system_tables import LOCAL

    found = document()
    found["tables"] += [table("aaa", LOCAL.id), table("zzz", GOOD)]
    found["columns"] += [*columns_of("aaa"), *columns_of("zzz")]
    schema = checked(found)
    assert schema.tables[LOCAL.id] is LOCAL


def test_many_columns_and_fields_reject_a_table() -> None:
    found = document()
    found["columns"] += [column(f"x{at}", "evil", "regular", "frozen<map<text, int>>") for at in range(MAX_PARTS // 3 + 1)]
    schema = checked(found)
    assert f"more than {MAX_PARTS} columns and fields" in (rejection_reason(schema.tables[EVIL], schema) or "")


@pytest.mark.parametrize(
    ("column_name", "change", "reason"),
    [("w", {"kind": "odd"}, "unknown kind 'odd'"), ("n" * 2000, {}, "more than 1024 bytes"), ("w", {"type": "x"}, None)],
    ids=["kind", "name", "type"],
)
def test_a_table_whose_definition_means_nothing_is_rejected_by_name(column_name: str, change: dict[str, Any], reason: str | None) -> None:
    found = document()
    found["columns"].append(column(column_name, "evil", "regular", "int") | change | {"writetime": T + 1})
    learner = SchemaLearner()
    learner.apply_snapshot(found)
    names = dict(learner.unusable().values())
    assert names.keys() == ({"evil.t"} if reason else set())
    assert (reason or "") in names.get("evil.t", "")
    assert learner.unusable(lambda name: name != "evil.t") == {}
    # One whose CREATE is not known waits for it.
    learner = SchemaLearner()
    learner.apply_snapshot(document() | {"columns": [*columns_of("good"), *columns_of("evil")[1:]]})
    assert (learner.unusable(), EVIL in learner.schema().tables) == ({}, False)


# --- by chance

TEXTS = st.one_of(
    st.sampled_from(["", "a" * 300, "x" * 2000, "\u2603", 'a"b', "a'b", "../..", "\ud800", "NULL", "none", "counter", "empty", "-1"]),
    st.sampled_from([kind for kind, _ in TYPES.values()]),
    st.text(max_size=20),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.sampled_from([0, 1, 7, -1, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 1e308, 10**4000]),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.lists(TEXTS, max_size=3),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
    st.sampled_from([replication(factor) for factor in FACTORS]),
    st.sampled_from([str(GOOD), str(UUID(int=0)), "partition_key", "clustering", "static", "regular", "desc"]),
    st.lists(st.lists(st.text(max_size=3), max_size=2), max_size=2),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """The valid snapshot with some values of one keyspace replaced, and rows of it left out or added."""
    found = copy.deepcopy(document())
    rows = [(name, row) for name in found if isinstance(found[name], list) for row in found[name] if row["keyspace_name"] == "evil"]
    for _ in range(draw(st.integers(1, 5))):
        name, row = draw(st.sampled_from(rows))
        match draw(st.sampled_from(["value", "value", "value", "left out", "twice", "document"])):
            case "value":
                row[draw(st.sampled_from(sorted(row)))] = draw(VALUES)
            case "left out":
                found[name] = [each for each in found[name] if each is not row] if isinstance(found[name], list) else found[name]
            case "twice":
                again = {**row, draw(st.sampled_from(sorted(row))): draw(VALUES)}
                found[name] = [*found[name], again] if isinstance(found[name], list) else found[name]
            case _:
                found[draw(st.sampled_from(["taken_at", "schema_version", "agreed", "keyspaces", "views", "types"]))] = draw(VALUES)
    return found


@given(documents())
@settings(max_examples=examples(150))
def test_documents_by_chance(found: dict[str, Any]) -> None:
    with suppress(SchemaError):
        checked(found)


BYTES = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"\xff" * 16, GOOD.bytes, b"\x00\x00\x00\x01\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
)


@given(st.data())
@settings(max_examples=examples(100))
def test_mutations_by_chance(data: st.DataObject) -> None:
    """What a log says, without the checks of documents: cells of any bytes, names of any bytes, and any times."""
    evil, good = mutations(document())
    changed = _changed(evil, data)
    learner = SchemaLearner()
    learner.apply(good)
    learner.apply(changed)
    check(learner)
    assert GOOD not in learner.drops(changed)


@pytest.mark.parametrize("place", [("evil", "t"), ("evil", "s"), ("aaa", "t"), ("good", "a"), ("good", "z")], ids=".".join)
@pytest.mark.parametrize("later", [0, 1, -T], ids=["same time", "later", "earlier"])
def test_no_table_takes_the_id_of_another_one(place: tuple[str, str], later: int) -> None:
    """Whatever their names and times are, also after the history was written and read; nor is the other one captured for it,
    or dropped with it."""
    learner = learnt(document() | {"tables": [table("good", GOOD, cdc=False)], "columns": columns_of("good"), "types": []})
    claimed = _created(*place, GOOD, T + later)
    learner.apply(claimed)
    for each in (learner, SchemaLearner.from_json(learner.to_json())):
        assert each.schema().tables[GOOD].full_name == "good.t"
        assert GOOD not in {table.id for table in each.captured()}
        assert each.creates_again(claimed) == {}
        again = _created(*place, GOOD, T + later + 3)
        each.apply(again)
        assert (each.drops(again), each.creates_again(again)) == ({}, {})
        dropped = _dropped(claimed, T + later + 5)
        each.apply(dropped)
        assert each.drops(dropped) == {}
        assert (each.schema().tables[GOOD].full_name, each.schema().tables[GOOD].dropped) == ("good.t", False)


@pytest.mark.parametrize("value", [b"", b"12345"])
def test_a_table_without_an_id_that_is_created_again_stops_nothing(value: bytes) -> None:
    learner = learnt(document())
    for at in (T, T + 10, T + 20):
        created = _created("good", "none", EVIL, at)
        updates = [replace(each, rows=tuple(_with_id(row, value) for row in each.rows)) for each in created.updates]
        created = replace(created, updates=tuple(updates))
        learner.apply(created)
        assert (learner.drops(created), learner.creates_again(created)) == ({}, {})


def _with_id(row: Row, value: bytes) -> Row:
    return replace(row, cells=tuple(replace(cell, value=value) if cell.column == "id" else cell for cell in row.cells))


def test_a_table_takes_the_id_of_one_that_was_dropped() -> None:
    evil, _ = mutations(document())
    learner = learnt(document())
    dropped, created = _dropped(evil, T + 5), _created("good", "a", EVIL, T + 9)
    for mutation in (dropped, created):
        learner.apply(mutation)
    for each in (learner, SchemaLearner.from_json(learner.to_json())):
        assert (each.schema().tables[EVIL].full_name, each.schema().tables[EVIL].dropped) == ("good.a", False)
        assert (each.drops(dropped)[EVIL], EVIL in each.cdc_ever) == (T + 5, True)


def learnt(found: dict[str, Any]) -> SchemaLearner:
    learner = SchemaLearner()
    for mutation in mutations(found):
        learner.apply(mutation)
    return learner


def _created(of: str, name: str, table_id: UUID, at: int) -> Mutation:
    place = {"keyspace_name": of, "table_name": name, "writetime": at}
    columns = [column("k", "", "partition_key", "int", 0), column("v", "", "regular", "int")]
    found = {"tables": [table("", table_id) | place], "columns": [each | place for each in columns]}
    (mutation,) = mutations({"taken_at": "2023-11-14T22:13:20+00:00", "schema_version": "v", **found})
    return mutation


def _dropped(created: Mutation, at: int) -> Mutation:
    return Mutation(tuple(_deleted(update, at) for update in created.updates))


def _deleted(update: PartitionUpdate, at: int) -> PartitionUpdate:
    return replace(update, rows=tuple(Row(row.clustering, deletion=DeletionTime(at, at // 1_000_000)) for row in update.rows))


def _changed(mutation: Mutation, data: st.DataObject) -> Mutation:
    updates = list(mutation.updates)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(updates) - 1))
        rows = list(updates[at].rows)
        place = data.draw(st.integers(0, len(rows) - 1))
        row = rows[place]
        cells = list(row.cells)
        if cells and data.draw(st.booleans()):
            index = data.draw(st.integers(0, len(cells) - 1))
            timestamp = data.draw(st.sampled_from([cells[index].timestamp, 0, -(2**63), 2**62, 2**62 + 1, 2**63 - 1]))
            cells[index] = replace(cells[index], value=data.draw(BYTES), timestamp=timestamp)
        clustering = row.clustering or ()
        if clustering and data.draw(st.booleans()):
            clustering = (*clustering[:-1], data.draw(st.one_of(BYTES, st.just(b"n" * 2000))))
        rows[place] = replace(row, clustering=clustering, cells=tuple(cells))
        updates[at] = replace(updates[at], rows=tuple(rows))
    return Mutation(tuple(updates))


# --- what must hold


GOOD_TABLE = Table(
    "good", "t", GOOD, {c["column_name"]: Column(c["column_name"], c["kind"], c["type"], c["position"]) for c in columns_of("good")}
)


def written() -> bytes:
    row = Row((b"c",), Liveness(T), cells=(Cell("w", T, b"here"), Cell("v", T, bytes(4), b"k")))
    update = PartitionUpdate(GOOD, bytes(4), rows=(row,))
    return encode_mutation(Mutation((update,)), Schema(tables={GOOD: GOOD_TABLE}))


def checked(found: dict[str, Any]) -> Schema:
    """The schema with a document, as a node ships it. Raises SchemaError if the document is refused."""
    learner = SchemaLearner()
    good = {"keyspaces": [keyspace("good")], "tables": [table("good", GOOD)], "columns": columns_of("good")}
    learner.apply_snapshot({"taken_at": "2023-11-14T22:13:20+00:00", "schema_version": "v", **good})
    text = json.dumps(found)
    started = process_time()
    learner.apply_snapshot(read(text), latest=T + 1, received=T)
    schema = check(learner)
    assert process_time() - started < SECONDS
    return schema


def check(learner: SchemaLearner) -> Schema:
    """What a batch does with the schema of a cluster, of all tables and of each."""
    schema = learner.schema()
    captured = learner.captured()
    assert GOOD in {table.id for table in captured}
    assert rejection_reason(schema.tables[GOOD], schema) is None
    assert schema.tables[GOOD].full_name == "good.t"
    assert all(reason and name != "good.t" for name, reason in learner.unusable().values())
    for table in captured:
        if rejection_reason(table, schema) is None:
            _use(table, schema)
    empty = Schema(tables={}, types={})
    for before in (empty, schema):
        assert all(each.text for each in differences(before, schema))
        assert all(each.text for each in ddl(before, schema, {table.id for table in captured}))
    "\n".join(schema_cql(schema, system=False)).encode("utf-8", "surrogatepass")
    assert SchemaLearner.from_json(learner.to_json()).schema() == schema
    _expect_written(schema)
    return schema


def _use(table: Table, schema: Schema) -> None:
    """What is made of a table that is not rejected."""
    assert len(schema_version(table, schema.types)) == 16
    AvroTable.of(table, schema.types)
    for column in table.columns.values():
        arrow_type(parse_type(column.type, table.keyspace, schema.types))
    known = schema.keyspaces.get(table.keyspace, Keyspace(table.keyspace, {}))
    assert 0 <= expected_replicas(known.replication, ["dc1", "dc2"]) < 1 << 31


def _expect_written(schema: Schema) -> None:
    """The row of the other table decodes, by both engines."""
    body = written()
    (update,) = decode_mutation(body, schema).updates
    assert (update.table_id, update.rows[0].cells[0].value) == (GOOD, b"here")
    (chunk,) = _decoded(body, schema)
    assert (len(chunk.updates), chunk.failures) == (1, ())


def _decoded(body: bytes, schema: Schema) -> Iterator[Any]:
    return iter(mutation_decoder.decode(body, [Frame(len(body), 0, 0, len(body))], schema, version=7))
