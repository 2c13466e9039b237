"""Schema versions of tables: equal for equal shapes, different for all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from writetime.cassandra.schema.fingerprint import describe, described, schema_version
from writetime.cassandra.schema.model import Column, DroppedColumn, Table, UserType

TYPES = {
    ("shop", "inner"): UserType("shop", "inner", ("a",), ("int",)),
    ("shop", "outer"): UserType("shop", "outer", ("b",), ("map<text, frozen<inner>>",)),
    ("shop", "other"): UserType("shop", "other", ("c",), ("int",)),
}
TABLE = Table(
    "shop",
    "orders",
    UUID(int=1),
    {
        "id": Column("id", "partition_key", "int", 0),
        "line": Column("line", "clustering", "int", 0),
        "home": Column("home", "regular", "frozen<list<frozen<outer>>>"),
    },
)

ODD_TYPES = {
    ("shop", "Odd one"): UserType("shop", "Odd one", ("A", "a b", "\udcff"), ("int", 'frozen<"Odd ""two">', "frozen<set<text>>")),
    ("shop", 'Odd "two'): UserType("shop", 'Odd "two', ("x",), ("frozen<tuple<int, text>>",)),
}
ODD = Table(
    "shop",
    "odd",
    UUID(int=3),
    {
        "z": Column("z", "partition_key", "int", 1),
        "a": Column("a", "clustering", "text", 1, descending=True),
        "b": Column("b", "partition_key", 'frozen<"Odd one">', 0),
        "c": Column("c", "clustering", "uuid", 0),
        "s": Column("s", "static", '"Odd one"'),
        "v": Column("v", "regular", 'map<int, frozen<"Odd ""two">>'),
        "w": Column("w", "regular", "vector<float, 3>"),
        "n": Column("n", "regular", "'org.apache.cassandra.db.marshal.LexicalUUIDType'"),
    },
)


def with_columns(table: Table, *columns: Column) -> Table:
    return replace(table, columns={**table.columns, **{column.name: column for column in columns}})


def test_what_is_described() -> None:
    assert describe(TABLE, TYPES) == {
        "id": str(TABLE.id),
        "columns": [
            {"name": "id", "kind": "partition_key", "type": "int"},
            {"name": "line", "kind": "clustering", "type": "int"},
            {"name": "home", "kind": "regular", "type": "frozen<list<frozen<outer>>>"},
        ],
        "types": {"inner": [["a", "int"]], "outer": [["b", "frozen<map<text, frozen<inner>>>"]]},
    }


@pytest.mark.parametrize(("table", "types"), [(TABLE, TYPES), (ODD, ODD_TYPES)], ids=["plain", "odd"])
def test_a_description_says_all_of_a_shape(table: Table, types: dict[tuple[str, str], UserType]) -> None:
    told = json.loads(json.dumps(describe(table, types)))
    again, its_types = described(told, table.keyspace, table.name)
    assert describe(again, its_types) == told
    assert (again.partition_key, again.clustering) == (table.partition_key, table.clustering)
    assert schema_version(again, its_types) == schema_version(table, types)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: with_columns(table, Column("more", "regular", "int")),
        lambda table: with_columns(table, Column("line", "clustering", "int", 0, descending=True)),
        lambda table: with_columns(table, Column("home", "static", "frozen<list<frozen<outer>>>")),
        lambda table: replace(table, columns={name: column for name, column in table.columns.items() if name != "home"}),
        lambda table: replace(table, id=UUID(int=2)),
    ],
    ids=["added", "order", "static", "dropped", "created anew"],
)
def test_another_shape_has_another_version(change: Callable[[Table], Table]) -> None:
    assert schema_version(change(TABLE), TYPES) != schema_version(TABLE, TYPES)


def test_a_field_deep_below_makes_another_version_and_a_type_beside_does_not() -> None:
    deep = {**TYPES, ("shop", "inner"): UserType("shop", "inner", ("a", "z"), ("int", "text"))}
    beside = {**TYPES, ("shop", "other"): UserType("shop", "other", ("c", "z"), ("int", "text"))}
    assert schema_version(TABLE, deep) != schema_version(TABLE, TYPES)
    assert schema_version(TABLE, beside) == schema_version(TABLE, TYPES)


def test_options_are_no_part_of_a_shape() -> None:
    dropped = {"old": DroppedColumn("old", "regular", "int", 1)}
    other = replace(TABLE, cdc=True, gc_grace_seconds=1, dropped_columns=dropped)
    assert schema_version(other, TYPES) == schema_version(TABLE, TYPES)
