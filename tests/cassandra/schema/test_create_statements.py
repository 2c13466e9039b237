"""Schemas as CQL: what is printed, in which order, how names are quoted. That a node takes it is for
test_cql_on_a_node."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.cassandra.commitlog.examples import COUNTER_TABLE, STATICS_TABLE
from writetime.cassandra.schema.create_statements import (
    identifier,
    in_order,
    keyspace_cql,
    schema_cql,
    table_cql,
    type_cql,
)
from writetime.cassandra.schema.model import (
    Column,
    DroppedColumn,
    Keyspace,
    Schema,
    Table,
    UserType,
    View,
)
from writetime.cassandra.schema.system_tables import TABLES

ID, OLD = UUID("11111111-e583-11f1-817f-f173fd8e050e"), UUID("22222222-e583-11f1-817f-f173fd8e050e")
KEYS = {"p": Column("p", "partition_key", "int", 0), "c": Column("c", "clustering", "text", 0, descending=True)}


def without_notes(cql: str) -> str:
    return "\n".join(line for line in cql.splitlines() if not line.startswith("--"))


@pytest.mark.parametrize(
    ("name", "quoted"),
    [("plain_1", "plain_1"), ("Upper", '"Upper"'), ("order", '"order"'), ("é", '"é"'), ('a"b', '"a""b"'), ("1st", '"1st"'), ("_x", '"_x"')],
)
def test_names(name: str, quoted: str) -> None:
    assert identifier(name) == quoted


def test_a_table_with_everything() -> None:
    columns = {
        "k1": Column("k1", "partition_key", "int", 0),
        "K2": Column("K2", "partition_key", "text", 1),
        "c1": Column("c1", "clustering", "timeuuid", 0, descending=True),
        "c2": Column("c2", "clustering", "int", 1),
        "s": Column("s", "static", "set<text>"),
        "select": Column("select", "regular", "frozen<addr>"),
        "v": Column("v", "regular", "vector<float, 3>"),
    }
    dropped = {
        "gone": DroppedColumn("gone", "regular", "int", 1_700_000_000_000_000),
        "v": DroppedColumn("v", "regular", "vector<float, 3>", 1_600_000_000_000_000),
    }
    table = Table("k", "T", ID, columns, dropped, cdc=True, default_time_to_live=60, gc_grace_seconds=0)
    assert table_cql(table) == (
        f"-- k.T id {ID}\n"
        "-- dropped column v vector<float, 3> (regular) at 2020-09-13 12:26:40Z, added again since\n"
        "-- dropped column gone int (regular) at 2023-11-14 22:13:20Z\n"
        'CREATE TABLE k."T" (\n'
        "    k1 int,\n"
        '    "K2" text,\n'
        "    c1 timeuuid,\n"
        "    c2 int,\n"
        "    s set<text> static,\n"
        '    "select" frozen<addr>,\n'
        "    v vector<float, 3>,\n"
        '    PRIMARY KEY ((k1, "K2"), c1, c2)\n'
        ") WITH CLUSTERING ORDER BY (c1 DESC, c2 ASC)\n"
        "    AND cdc = true\n"
        "    AND default_time_to_live = 60\n"
        "    AND gc_grace_seconds = 0;"
    )


def test_compact_tables_hide_what_cql_does_not_name() -> None:
    """Seen on 3.11: a compact table without clustering keeps its columns as static ones, beside two of its
    own."""
    hidden = {"column1": Column("column1", "clustering", "text", 0), "value": Column("value", "regular", "blob")}
    static = Table(
        "k", "t", ID, {"k": Column("k", "partition_key", "int", 0), "v": Column("v", "static", "text"), **hidden}, flags=frozenset()
    )
    assert "    k int,\n    v text,\n    PRIMARY KEY ((k))\n) WITH COMPACT STORAGE\n" in table_cql(static)
    assert "column1" not in table_cql(static)
    nothing = Column("value", "regular", "'org.apache.cassandra.db.marshal.EmptyType'")
    dense = Table("k", "t", ID, {**KEYS, "value": nothing}, flags=frozenset({"compound", "dense"}))
    assert "    p int,\n    c text,\n    PRIMARY KEY ((p), c)\n) WITH COMPACT STORAGE\n    AND CLUSTERING ORDER BY (c DESC)" in table_cql(
        dense
    )
    assert "Thrift" in table_cql(Table("k", "t", ID, KEYS, flags=frozenset({"super", "dense"})))


def test_counters_and_views() -> None:
    assert "    n counter,\n    n2 counter,\n" in table_cql(COUNTER_TABLE)
    view = Table("k", "mv", ID, KEYS, view=View("T", "c IS NOT NULL AND p IS NOT NULL", all_columns=False))
    assert without_notes(table_cql(view)) == (
        'CREATE MATERIALIZED VIEW k.mv AS\n    SELECT p, c\n    FROM k."T"\n    WHERE c IS NOT NULL AND p IS NOT NULL\n'
        "    PRIMARY KEY ((p), c)\n    WITH CLUSTERING ORDER BY (c DESC)\n    AND gc_grace_seconds = 864000;"
    )


def test_types_come_after_those_they_name() -> None:
    types = [
        UserType("k", "a_person", ("home", "more"), ("frozen<zip_code>", "map<text, frozen<list<frozen<Address>>>>")),
        UserType("k", "Address", ("zip",), ("frozen<zip_code>",)),
        UserType("k", "address", ("java",), ("'org.zip_code.Address'",)),
        UserType("k", "zip_code", ("n",), ("int",)),
        UserType("k", "b_person", ("home",), ('frozen<"Address">',)),
    ]
    order = [each.name for each in in_order(types)]
    assert order.index("zip_code") < order.index("Address") < order.index("b_person")
    assert order.index("address") < order.index("a_person")
    assert type_cql(types[1]) == 'CREATE TYPE k."Address" (\n    zip frozen<zip_code>\n);'


def test_types_in_a_circle_are_still_shown() -> None:
    circle = [UserType("k", "a", ("b",), ("frozen<b>",)), UserType("k", "b", ("a",), ("frozen<a>",))]
    assert [each.name for each in in_order(circle)] == ["a", "b"]


def test_keyspaces() -> None:
    keyspace = Keyspace("K s", {"class": "NetworkTopologyStrategy", "it's": "3"}, durable_writes=False)
    assert keyspace_cql(keyspace) == (
        "CREATE KEYSPACE \"K s\" WITH replication = {'class': 'NetworkTopologyStrategy', 'it''s': '3'} AND durable_writes = false;"
    )


def test_a_schema_stands_in_an_order_in_which_it_can_be_made() -> None:
    tables = {
        **TABLES,
        STATICS_TABLE.id: STATICS_TABLE,
        ID: Table("k", "t", ID, KEYS),
        OLD: Table("k", "t", OLD, KEYS, dropped=True),
    }
    schema = Schema({"k": Keyspace("k", {})}, tables, {("k", "addr"): UserType("k", "addr", ("street",), ("text",))})
    schema.types["k", "old"] = UserType("k", "old", ("a",), ("int",), dropped=True)
    heads = [statement.splitlines()[0] for statement in schema_cql(schema)]
    assert [head.split(" WITH")[0] for head in heads] == [
        "CREATE KEYSPACE k",
        "CREATE TYPE k.addr (",
        f"-- k.clust id {STATICS_TABLE.id}",
        f"-- k.t id {ID}",
        "-- dropped: type k.old",
        "-- dropped: k.t@22222222",
    ]
    assert without_notes(list(schema_cql(schema))[-1]) == ""
    assert any("system.local" in statement for statement in schema_cql(schema, system=True))


def test_a_keyspace_that_nobody_told_is_said_to_be() -> None:
    (head, _) = schema_cql(Schema(tables={ID: Table("k", "t", ID, KEYS)}))
    assert head.startswith("-- keyspace k")


def test_no_name_gets_out_of_a_comment() -> None:
    nasty = "x\nDROP KEYSPACE k;\r--\x1b[31m"
    table = Table("k", nasty, ID, {**KEYS, nasty: Column(nasty, "regular", "int")}, {nasty: DroppedColumn(nasty, "regular", "int", 0)})
    head, dropped, *create = table_cql(table).split("\n")
    assert head.startswith("-- k.x\\nDROP")
    assert (dropped.startswith("-- dropped column"), dropped.isprintable()) == (True, True)
    assert "\n".join(create).startswith(f'CREATE TABLE k."{nasty}" (')
    (_, gone) = schema_cql(Schema(tables={ID: replace(table, dropped=True)}))
    assert all(line.startswith("-- ") and line.isprintable() for line in gone.split("\n"))
