"""A schema as JSON: from rows as the driver returns them, and read back by the core's parser."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from cassandra.util import OrderedMapSerializedKey, SortedSet, sortedset

from shippers.schema_snapshot import TABLES, plain, take_snapshot
from writetime.cassandra.schema.snapshot import modes, parse
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES

TABLE_ID = UUID("5bc52802-de25-35ed-aeab-188eecebb090")
COLUMNS = {
    "keyspaces": {"keyspace_name": "shop", "durable_writes": True, "replication": {"class": "SimpleStrategy"}},
    "tables": {
        "keyspace_name": "shop",
        "table_name": "orders",
        "id": TABLE_ID,
        "cdc": True,
        "flags": sortedset(["compound"]),
        "extensions": {"a": b"\x01\xff"},
    },
    "columns": {
        "keyspace_name": "shop",
        "table_name": "orders",
        "column_name": "Id",
        "kind": "partition_key",
        "type": "uuid",
        "position": 0,
    },
    "dropped_columns": {
        "keyspace_name": "shop",
        "table_name": "orders",
        "column_name": "gone",
        "dropped_time": 1_767_225_600_123,
        "kind": None,
        "type": "int",
    },
    "types": {"keyspace_name": "shop", "type_name": "address", "field_names": ["street"], "field_types": ["text"]},
    "views": {},
}


class Rows(list[Any]):
    def one(self) -> Any:
        return self[0]


class FakeSession:
    """Answers the snapshot's questions from COLUMNS; the schema version changes after `restless` questions
    for it.
    """

    def __init__(self, restless: int = 0) -> None:
        self._versions = ["old"] * restless + ["new"]
        self.statements: list[str] = []

    def execute(self, statement: str, values: tuple[str, ...] = ()) -> Rows:
        self.statements.append(statement)
        if "schema_version" in statement:
            return Rows([(self._versions.pop(0) if len(self._versions) > 1 else self._versions[0],)])
        if values:
            return Rows((name, "timestamp" if name == "dropped_time" else "text") for name in COLUMNS[values[0]])
        table = statement.rsplit(".", 1)[1]
        names = statement.removeprefix("SELECT ").split(" FROM ")[0].split(", ")
        row = COLUMNS[table]
        names = ["dropped_time" if name == "toUnixTimestamp(dropped_time)" else name for name in names]
        assert names[-1] == f"WRITETIME({TABLES[table]})"
        return Rows([(*(row[name] for name in names[:-1]), 1_767_225_600_000_000)] if row else [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        ("text", "text"),
        (7, 7),
        (0.5, 0.5),
        (b"\x00\xff", "00ff"),
        (TABLE_ID, str(TABLE_ID)),
        ([b"\x01", "b", "a"], ["01", "b", "a"]),
        ({"b", "a"}, ["a", "b"]),
        (SortedSet(["b", "a"]), ["a", "b"]),
        ({"k": b"\x01"}, {"k": "01"}),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def test_the_drivers_own_maps() -> None:
    from cassandra.cqltypes import UTF8Type

    value = OrderedMapSerializedKey(UTF8Type, 4)
    value._insert_unchecked("class", b"class", "SimpleStrategy")
    assert plain(value) == {"class": "SimpleStrategy"}


def test_tables_are_those_that_the_core_knows() -> None:
    assert TABLES.keys() <= {table.name for table in SCHEMA_TABLES.values()}


def test_a_snapshot_is_what_the_core_reads() -> None:
    snapshot = json.loads(json.dumps(take_snapshot(FakeSession())))
    assert snapshot["schema_version"] == "new"
    assert datetime.fromisoformat(snapshot["taken_at"]).tzinfo is not None
    assert snapshot["tables"][0]["id"] == str(TABLE_ID)
    assert snapshot["dropped_columns"][0]["dropped_time"] == 1_767_225_600_123
    assert snapshot["views"] == []
    (mutation,) = parse(json.dumps(snapshot))
    assert len(mutation.updates) == 5
    assert {update.rows[0].liveness.timestamp for update in mutation.updates if update.rows[0].liveness} == {1_767_225_600_000_000}


@pytest.mark.parametrize(("versions", "agreed"), [([], True), (["new", "new"], True), (["new", "old"], False), ([None], False)])
def test_whether_peers_agree(versions: list[str | None], agreed: bool) -> None:
    class Session(FakeSession):
        def execute(self, statement: str, values: tuple[str, ...] = ()) -> Rows:
            return Rows((each,) for each in versions) if "system.peers" in statement else super().execute(statement, values)

    assert take_snapshot(Session())["agreed"] is agreed


class Node6(FakeSession):
    """A node of 6.0, whose table is described by these lines."""

    def __init__(self, *lines: str, cdc: bool = True) -> None:
        super().__init__()
        self.lines, self.cdc = lines, cdc

    def execute(self, statement: str, values: tuple[str, ...] = ()) -> Rows:
        if statement.startswith("DESCRIBE"):
            self.statements.append(statement)
            return Rows([("shop", "table", "orders", "\n".join(("CREATE TABLE shop.orders (", *self.lines)))])
        if values == ("tables",):
            return Rows((name, "text") for name in (*COLUMNS["tables"], "cdc", "fast_path"))
        if "FROM system_schema.tables" in statement:
            names = statement.removeprefix("SELECT ").split(" FROM ")[0].split(", ")
            row = {**COLUMNS["tables"], "cdc": self.cdc, "fast_path": {}, "WRITETIME(id)": 1_767_225_600_000_000}
            return Rows([tuple(row[name] for name in names)])
        return super().execute(statement, values)


COMMENT = "    AND comment = 'two lines:\n    AND transactional_mode = ' 'mixed_reads' '.'".replace("' '", "''")


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        (("    AND transactional_mode = 'full'", "    AND cdc = true;"), "full"),
        ((") WITH transactional_mode = 'mixed_reads'",), "mixed_reads"),
        ((COMMENT, "    AND transactional_mode = 'off'"), "off"),
        ((COMMENT,), None),
    ],
)
def test_the_mode_of_a_captured_table_comes_from_its_description(lines: tuple[str, ...], mode: str | None) -> None:
    session = Node6(*lines)
    snapshot = json.loads(json.dumps(take_snapshot(session)))
    assert snapshot["tables"][0].get("transactional_mode") == mode
    assert [each for each in session.statements if each.startswith("DESCRIBE")] == ['DESCRIBE TABLE "shop"."orders"']
    known = {table_id: found for table_id, (_, found) in modes({**snapshot, "schema_version": str(UUID(int=7))}).items()}
    assert known == ({} if mode is None else {TABLE_ID: mode})


def test_only_captured_tables_of_a_node_with_modes_are_described() -> None:
    for session in (Node6("    AND transactional_mode = 'full'", cdc=False), FakeSession()):
        take_snapshot(session)
        assert not any(each.startswith("DESCRIBE") for each in session.statements)


def test_a_schema_that_changes_meanwhile_is_read_again() -> None:
    session = FakeSession(restless=1)
    assert take_snapshot(session)["schema_version"] == "new"
    assert sum("FROM system_schema.tables" in statement for statement in session.statements) == 2
