"""User types of dropped columns and tables: values are decoded by the definitions that were in force at the drop,
whatever has been done to the types since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.cassandra.schema.examples import (
    change,
    column_row,
    create_table,
    deleted_row,
    dropped_row,
    schema_row,
)
from tests.cassandra.schema.test_history import ID, TABLE, T, drop, learnt
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.ddl import ddl
from writetime.cassandra.schema.fingerprint import schema_version
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column
from writetime.cassandra.types.types import parse_type

S = 1_000_000
"""µs."""
Fields = dict[str, str]
OLD: Fields = {"street": "text", "zip": "int"}
VALUES = {
    "frozen<addr>": ("frozen<tuple<text, int>>", {"street": "s", "zip": 9}),
    "list<frozen<addr>>": ("list<frozen<tuple<text, int>>>", [{"street": "s", "zip": 9}]),
    "frozen<list<frozen<addr>>>": ("frozen<list<frozen<tuple<text, int>>>>", [{"street": "s", "zip": 9}]),
    "map<text, frozen<addr>>": ("map<text, frozen<tuple<text, int>>>", [("k", {"street": "s", "zip": 9})]),
    "frozen<tuple<int, frozen<addr>>>": ("frozen<tuple<int, frozen<tuple<text, int>>>>", (1, {"street": "s", "zip": 9})),
    "frozen<person>": ("frozen<tuple<text, frozen<tuple<text, int>>>>", {"name": "n", "home": {"street": "s", "zip": 9}}),
    "vector<frozen<addr>, 1>": ("vector<frozen<tuple<text, int>>, 1>", [{"street": "s", "zip": 9}]),
}
"""By a column's type: the type that Cassandra records with its drop, and a value."""


def define(name: str, fields: Fields, at: int, *, keyspace: str = "k") -> Mutation:
    cells = {"field_names": [*fields], "field_types": [*fields.values()]}
    return change(keyspace, types=[schema_row("types", (name,), at, cells)])


def drop_type(name: str, at: int, *, keyspace: str = "k") -> Mutation:
    return change(keyspace, types=[deleted_row((name,), at)])


def drop_column(recorded: str, at: int, *, table: str = "t", keyspace: str = "k") -> Mutation:
    gone = dropped_row(table, "home", at, "regular", recorded, at // 1000)
    return change(keyspace, columns=[deleted_row((table, "home"), at)], dropped_columns=[gone])


def with_home(kind: str) -> Mutation:
    return create_table(replace(TABLE, columns={**TABLE.columns, "home": Column("home", "regular", kind)}), T + 2 * S)


def applied(history: Sequence[Mutation]) -> SchemaLearner:
    learner = SchemaLearner()
    for mutation in history:
        learner.apply(mutation)
    return learner


def dropped(learner: SchemaLearner) -> tuple[str, Any]:
    """The dropped column's type as text, and as a type, by the schema of today."""
    schema = learner.schema()
    text = schema.tables[ID].dropped_columns["home"].type
    return text, parse_type(text, "k", schema.types)


AFTERWARDS: dict[str, Sequence[Mutation]] = {
    "nothing": (),
    "dropped": [drop_type("addr", T + 11 * S)],
    "made again": [drop_type("addr", T + 11 * S), define("addr", {"street": "int", "city": "text"}, T + 12 * S)],
    "made again, fields of equal length": [drop_type("addr", T + 11 * S), define("addr", {"zip": "text", "street": "int"}, T + 12 * S)],
    "made again, other names": [drop_type("addr", T + 11 * S), define("addr", {"a": "text", "b": "int"}, T + 12 * S)],
    "made again, its DROP unknown": [define("addr", {"street": "float", "zip": "float"}, T + 12 * S)],
    "a field added": [define("addr", {**OLD, "city": "text"}, T + 12 * S)],
    "fields renamed": [define("addr", {"road": "text", "code": "int"}, T + 12 * S)],
    "made again twice": [
        drop_type("addr", T + 11 * S),
        define("addr", {"x": "int"}, T + 12 * S),
        drop_type("addr", T + 13 * S),
        define("addr", {"zip": "int", "street": "text"}, T + 14 * S),
    ],
}


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS)
@pytest.mark.parametrize("kind", VALUES)
def test_a_dropped_column_keeps_its_types(kind: str, afterwards: Sequence[Mutation]) -> None:
    recorded, value = VALUES[kind]
    addr = [define("addr", {"street": "text"}, T), define("addr", OLD, T + S)]
    types = [*addr, define("person", {"name": "text", "home": "frozen<addr>"}, T)]
    before = applied([*types, with_home(kind)])
    was = parse_type(kind, "k", before.schema().types)
    # That the order does not matter is seen with one of them.
    learner = (learnt if kind == "frozen<addr>" else applied)([*types, with_home(kind), drop_column(recorded, T + 10 * S), *afterwards])
    _, found = dropped(learner)
    assert (str(found), found.multicell) == (str(was), was.multicell)
    if was.multicell:
        # Each element has a cell.
        was, found, value = was.elements[-1], found.elements[-1], value[0][1] if kind.startswith("map") else value[0]  # type: ignore[attr-defined]
    assert found.decode(was.encode(value)) == value


def test_what_is_not_known_is_as_recorded() -> None:
    """Without the definition of its time a column has no names, and never those of another type."""
    recorded = "frozen<tuple<text, int>>"
    later = define("addr", {"street": "int", "city": "text"}, T + 12 * S)
    text, kind = dropped(learnt([with_home("frozen<addr>"), drop_column(recorded, T + 10 * S), later]))
    assert text == recorded
    assert kind.decode(kind.encode(("s", 9))) == ("s", 9)


def test_a_column_that_was_never_seen_is_as_recorded() -> None:
    recorded = "frozen<tuple<text, int>>"
    assert dropped(learnt([create_table(TABLE, T), define("addr", OLD, T), drop_column(recorded, T + 10 * S)]))[0] == recorded


@pytest.mark.parametrize("afterwards", [each for each in AFTERWARDS if each != "nothing"])
def test_a_dropped_table_keeps_the_types_of_its_columns(afterwards: str) -> None:
    types = [define("addr", OLD, T), with_home("list<frozen<addr>>")]
    value = {"street": "s", "zip": 9}
    before = learnt(types).schema()
    now = learnt([*types, drop(T + 10 * S), *AFTERWARDS[afterwards]]).schema()
    kind = parse_type(now.tables[ID].columns["home"].type, "k", now.types)
    (element,) = kind.elements  # type: ignore[attr-defined]
    data = parse_type("frozen<addr>", "k", before.types).encode(value)
    assert (kind.multicell, element.decode(data)) == (True, value)
    # As far as consumers see, nothing has changed but that it is gone.
    assert [each.text for each in ddl(before, now, {ID}) if each.table] == ["DROP TABLE k.t;"]
    if afterwards == "dropped":
        assert schema_version(now.tables[ID], now.types) == schema_version(before.tables[ID], before.types)


def test_columns_of_an_id_that_was_created_again_keep_their_types() -> None:
    again = create_table(TABLE, T + 12 * S)
    home = change("k", columns=[deleted_row(("t", "home"), T + 10 * S)])
    other = [drop_type("addr", T + 11 * S), define("addr", {"street": "int"}, T + 11 * S + 1)]
    _, kind = dropped(learnt([define("addr", OLD, T), with_home("frozen<addr>"), drop(T + 10 * S), home, again, *other]))
    assert list(kind.known_fields) == ["street", "zip"]


@pytest.mark.parametrize("kind", [*VALUES, "addr"])
def test_columns_of_an_id_that_was_created_again_are_the_same_although_their_types_grow(kind: str) -> None:
    """What is written to them with an older timestamp than the DROP counts."""
    types = [define("addr", OLD, T), define("person", {"name": "text", "home": "frozen<addr>"}, T)]
    gone = change("k", columns=[deleted_row(("t", "home"), T + 10 * S)])
    created, again = with_home(kind), create_table(learnt([*types, with_home(kind)]).schema().tables[ID], T + 12 * S)
    grown = define("addr", {**OLD, "city": "text"}, T + 20 * S)
    assert learnt([*types, created, drop(T + 10 * S), gone, again]).schema().tables[ID].dropped_columns == {}
    assert learnt([*types, created, drop(T + 10 * S), gone, again, grown]).schema().tables[ID].dropped_columns == {}
    other = define("addr", {"zip": "int", "street": "text"}, T + 20 * S)
    assert "home" in learnt([*types, created, drop(T + 10 * S), gone, again, other]).schema().tables[ID].dropped_columns


def test_a_column_of_that_name_that_is_back_is_what_it_is_now() -> None:
    back = change("k", columns=[column_row("t", "home", T + 13 * S, "regular", "frozen<addr>")])
    other = [drop_type("addr", T + 11 * S), define("addr", {"a": "text", "b": "int"}, T + 12 * S)]
    recorded = VALUES["frozen<addr>"][0]
    learner = learnt([define("addr", OLD, T), with_home("frozen<addr>"), drop_column(recorded, T + 10 * S), *other, back])
    table, (_, was) = learner.schema().tables[ID], dropped(learner)
    now = parse_type(table.columns["home"].type, "k", learner.schema().types)
    assert (list(was.known_fields), list(now.known_fields)) == (["street", "zip"], ["a", "b"])  # type: ignore[attr-defined]
