"""DDL between two schemas."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from writetime.cassandra.schema.ddl import ddl
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table, UserType

ID = UUID(int=7)
KEY = Column("id", "partition_key", "int", 0)
TABLE = Table("shop", "orders", ID, {"id": KEY, "v": Column("v", "regular", "text")}, cdc=True)
PLACE = UserType("shop", "place", ("x",), ("int",))
OTHER = replace(TABLE, id=UUID(int=8), name="private", cdc=False)


def told(before: Schema, after: Schema) -> list[str]:
    return [each.text for each in ddl(before, after, {ID})]


def schema(table: Table = TABLE, *types: UserType) -> Schema:
    return Schema(tables={table.id: table, OTHER.id: OTHER}, types={(each.keyspace, each.name): each for each in types})


def test_what_is_captured_is_created_its_types_first() -> None:
    first, second = told(Schema(), schema(TABLE, PLACE))
    assert first.startswith("CREATE TYPE shop.place (")
    assert second.startswith("CREATE TABLE shop.orders (")
    assert told(schema(), schema()) == []


def test_columns_come_go_come_back_and_are_renamed() -> None:
    changed = {"Key": replace(KEY, name="Key"), "n": Column("n", "static", "set<int>")}
    assert told(schema(), schema(replace(TABLE, columns=changed))) == [
        'ALTER TABLE shop.orders RENAME id TO "Key";',
        "ALTER TABLE shop.orders DROP v;",
        "ALTER TABLE shop.orders ADD n set<int> static;",
    ]
    again = replace(TABLE, dropped_columns={"v": DroppedColumn("v", "text", "regular", 5)})
    assert told(schema(), schema(again)) == ["ALTER TABLE shop.orders DROP v;", "ALTER TABLE shop.orders ADD v text;"]
    wider = replace(TABLE, columns={**TABLE.columns, "v": Column("v", "regular", "blob")}, default_time_to_live=60, cdc=False)
    assert told(schema(), schema(wider)) == [
        "ALTER TABLE shop.orders ALTER v TYPE blob;",
        "ALTER TABLE shop.orders WITH cdc = false AND default_time_to_live = 60;",
    ]


def test_tables_and_types_go() -> None:
    gone = replace(TABLE, dropped=True, dropped_at=9)
    assert told(schema(TABLE, PLACE), schema(gone)) == ["DROP TABLE shop.orders;", "DROP TYPE shop.place;"]
    bigger = UserType("shop", "place", ("X", "y"), ("int", "text"))
    assert told(schema(TABLE, PLACE), schema(TABLE, bigger)) == [
        'ALTER TYPE shop.place RENAME x TO "X";',
        "ALTER TYPE shop.place ADD y text;",
    ]
