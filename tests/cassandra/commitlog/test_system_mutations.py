"""Schema changes of a later Cassandra version: unknown parts are skipped, the rest is learnt."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.cassandra.commitlog.dump import dump_lines
from tests.cassandra.commitlog.examples import STATICS_TABLE
from tests.cassandra.schema.examples import change, create_keyspace, create_table
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.system_mutations import decode_own, is_schema_change
from writetime.cassandra.model import (
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    Row,
)
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES, TABLES, system_table_id
from writetime.cassandra.types.types import parse_type
from writetime.errors import UnknownColumn, UnknownTable

T = 1_700_000_000_000_000
VALUES = {
    "text": "SIMPLE",
    "blob": b"\0\1\2",
    "int": 70_000,
    "boolean": True,
    "bigint": -1,
    "double": 0.5,
    "timestamp": 1,
    "uuid": UUID(int=7),
    "frozen<map<text, text>>": [("a", "b")],
}


def later(mutation: Mutation, columns: dict[str, str], value: object = None) -> bytes:
    """The mutation as written by a Cassandra version with these additional columns in system_schema, each
    with a value."""
    tables = {table.id: replace(table, columns={**table.columns, **more(columns)}) for table in SCHEMA_TABLES.values()}
    updates = []
    for update in mutation.updates:
        rows = [
            replace(row, cells=tuple(sorted((*row.cells, *cells(columns)), key=lambda cell: cell.column))) if row.cells else row
            for row in update.rows
        ]
        updates.append(replace(update, rows=tuple(rows)))
    return encode_mutation(Mutation(tuple(updates)), Schema(tables=tables))


def more(columns: dict[str, str]) -> dict[str, Column]:
    return {name: Column(name, "regular", kind) for name, kind in columns.items()}


def cells(columns: dict[str, str]) -> list[Cell]:
    return [Cell(name, T, parse_type(kind, "system_schema", {}).encode(VALUES[kind])) for name, kind in columns.items()]


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", ["aaa", "kind_of", "zzz"])
def test_an_unknown_column_is_read_past_and_named(kind: str, name: str) -> None:
    for told in (create_keyspace("k", T), create_table(STATICS_TABLE, T)):
        own = decode_own(later(told, {name: kind}))
        assert own.mutation == told
        assert set(own.unknown) == {f"{SCHEMA_TABLES[update.table_id].full_name}.{name}" for update in told.updates if update.rows}


def test_several_unknown_columns_in_one_table() -> None:
    told = create_keyspace("k", T)
    own = decode_own(later(told, {"fast": "int", "path": "text", "priority": "boolean"}))
    assert own.mutation == told
    assert len(own.unknown) == 3


def test_an_unknown_column_that_is_deleted() -> None:
    table = SCHEMA_TABLES[system_table_id("system_schema", "keyspaces")]
    gone = Row((), Liveness(T), cells=(Cell("durable_writes", T, b"\1"), Cell("later", T, b"", None, 0, T // 1_000_000)))
    schema = Schema(tables={table.id: replace(table, columns={**table.columns, **more({"later": "text"})})})
    own = decode_own(encode_mutation(Mutation((PartitionUpdate(table.id, b"k", rows=(gone,)),)), schema))
    assert [cell.column for cell in own.mutation.updates[0].rows[0].cells] == ["durable_writes"]


def unknown_table(name: str, clusterings: int) -> Table:
    keys = {"keyspace_name": Column("keyspace_name", "partition_key", "text", 0)}
    keys |= {f"c{place}": Column(f"c{place}", "clustering", "text", place) for place in range(clusterings)}
    return Table("system_schema", name, system_table_id("system_schema", name), {**keys, **more({"label": "text", "rank": "int"})})


@pytest.mark.parametrize("clusterings", [0, 1, 2, 3])
@pytest.mark.parametrize("first", [False, True])
def test_an_unknown_table_is_read_past_and_named(clusterings: int, first: bool) -> None:
    table = unknown_table("labels", clusterings)
    row = Row((b"name",) * clusterings, Liveness(T))
    row = replace(row, cells=(Cell("label", T, b"secret"), Cell("rank", T, b"\0\0\0\1")))
    deleted = PartitionUpdate(table.id, b"k", DeletionTime(T - 1, 1_700_000_000), rows=(row,))
    told = create_table(STATICS_TABLE, T)
    updates = (deleted, *told.updates) if first else (*told.updates, deleted)
    body = encode_mutation(Mutation(updates), Schema(tables={**SCHEMA_TABLES, table.id: table}))
    assert is_schema_change(body, version=7)
    own = decode_own(body)
    assert own.mutation == told
    assert own.unknown == (f"table {table.id}",)
    assert own.tables == tuple(update.table_id for update in updates)


def test_tables_of_users_are_none_of_cassandras_own() -> None:
    schema = Schema(tables={**TABLES, STATICS_TABLE.id: STATICS_TABLE})
    update = PartitionUpdate(STATICS_TABLE.id, b"k", DeletionTime(T, 1_700_000_000))
    body = encode_mutation(Mutation((update, *create_keyspace("k", T).updates)), schema)
    assert not is_schema_change(body, version=7)
    with pytest.raises(UnknownTable):
        decode_own(body)


def test_what_no_shape_fits_keeps_its_error() -> None:
    body = later(create_keyspace("k", T), {"later": "text"})
    with pytest.raises(UnknownColumn, match="later"):
        decode_own(body + b"\0")


def test_a_segment_of_a_later_cassandra_teaches_the_schema() -> None:
    table = replace(STATICS_TABLE, cdc=True)
    bodies = [
        later(told, {"fast_lane": "frozen<map<text, text>>"}) for told in (create_keyspace(table.keyspace, T), create_table(table, T))
    ]
    bodies.append(
        encode_mutation(Mutation((PartitionUpdate(table.id, b"k", DeletionTime(T, 1_700_000_000)),)), Schema(tables={table.id: table}))
    )
    learner = SchemaLearner()
    lines = list(dump_lines([("CommitLog-7-1.log", encode_segment(1, 7, bodies))], learner))
    assert learner.schema().tables[table.id] == table
    assert isinstance(lines[-1], str)
    assert str(table.id) in lines[-1]


def test_the_columns_that_cassandra_6_has_added_are_known() -> None:
    """Seen in a log of 6.0: a map in addition to `replication`."""
    row = Row(
        (),
        Liveness(T),
        cells=(Cell("durable_writes", T, b"\1"), Cell("fast_path", T, bytes.fromhex("00000001000000046b696e640000000653494d504c45"))),
    )
    told = change("k", keyspaces=[row])
    assert decode_own(encode_mutation(told, Schema(tables=dict(SCHEMA_TABLES)))).unknown == ()
