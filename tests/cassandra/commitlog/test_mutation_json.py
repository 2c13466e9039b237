"""Contents of dump lines."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from tests.cassandra.commitlog.dump import dump_lines
from tests.cassandra.commitlog.examples import (
    EPOCH_FRAME,
    EPOCH_TABLE,
    SCHEMA,
    STATICS_BODY,
    TTL_FRAME,
    body_of,
    delete_range,
    insert,
)
from tests.cassandra.schema.examples import change, create_table, ddl_bodies, deleted_row, schema_row
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.mutation_json import Failure
from writetime.cassandra.model import Cell, DeletionTime, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES, system_table_id
from writetime.errors import UnknownTable


def dump(*bodies: bytes) -> list[dict[str, object]]:
    content = encode_segment(12, 7, bodies)
    return [json.loads(line) for line in dump_lines([("CommitLog-7-12.log", content)]) if not isinstance(line, Failure)]


def test_lines_of_tables_that_the_segment_teaches() -> None:
    """The schema comes last in the log and applies to earlier frames."""
    bodies = [encode_mutation(insert(1, "a"), SCHEMA), encode_mutation(delete_range(2), SCHEMA)]
    lines = dump(*bodies, *ddl_bodies(SCHEMA))
    inserted, deleted = lines[:2]
    assert inserted["ks"] == "k"
    assert inserted["cdc"] is False
    assert inserted["pk"] == "00000001"
    assert inserted["size"] == len(bodies[0])
    assert inserted["pos"] == 28 + 12 + len(bodies[0])
    assert inserted["updates"] == [
        {
            "table": "rt",
            "id": "6c60b670-e583-11f1-817f-f173fd8e050e",
            "rows": [
                {
                    "ck": ["00000001", "00000001", "78"],
                    "live": {"ts": 1_700_000_000_000_000},
                    "cells": [{"col": "v", "ts": 1_700_000_000_000_000, "value": "61"}],
                }
            ],
        }
    ]
    assert deleted["updates"] == [
        {
            "table": "rt",
            "id": "6c60b670-e583-11f1-817f-f173fd8e050e",
            "rts": [
                {
                    "ts": 1_700_000_000_000_000,
                    "ldt": 1_700_000_000,
                    "start": {"kind": "INCL_START_BOUND", "ck": ["00000001"]},
                    "end": {"kind": "INCL_END_BOUND", "ck": []},
                }
            ],
            "rows": [],
        }
    ]


def test_statics_expiry_and_complex_deletions() -> None:
    static, expiring = dump(STATICS_BODY, body_of(TTL_FRAME), *ddl_bodies(SCHEMA))[:2]
    assert static["updates"][0]["static"] == {  # type: ignore[index]
        "static": True,
        "cells": [
            {"col": "s", "ts": 1_700_000_000_000_010, "tombstone": True, "ldt": 1_795_248_806, "value": ""},
            {"col": "sm", "complexDeletion": {"ts": 1_700_000_000_000_010, "ldt": 1_795_248_806}},
        ],
    }
    (row,) = expiring["updates"][0]["rows"]  # type: ignore[index]
    assert row["live"] == {"ts": 1_795_248_808_466_317, "ttl": 86_400, "ldt": 1_795_335_208}


def test_complex_columns_come_as_cassandra_sorts_them() -> None:
    """A name that begins with a non-ASCII letter comes first; deletions precede their cells."""
    regular = {name: Column(name, "regular", "set<int>") for name in ("a", "z", "é")}
    table = Table("k", "t", UUID(int=7), {"p": Column("p", "partition_key", "int", 0), **regular})
    cells = tuple(Cell(name, 5, b"", path=b"\0\0\0\1") for name in ("é", "a"))
    row = Row((), cells=cells, complex_deletions={name: DeletionTime(4, 9) for name in ("a", "z", "é")})
    schema = Schema(tables={table.id: table})
    body = encode_mutation(Mutation((PartitionUpdate(table.id, b"k", rows=(row,)),)), schema)
    line = dump(*ddl_bodies(schema), body)[-1]
    columns = [cell["col"] for cell in line["updates"][0]["rows"][0]["cells"]]  # type: ignore[index]
    assert columns == ["é", "é", "a", "a", "z"]


def test_an_older_life_is_told_apart_even_if_the_later_one_is_gone() -> None:
    at = 1_700_000_000_000_000
    incarnations = [Table("k", "t", UUID(int=number), {"p": Column("p", "partition_key", "int", 0)}) for number in (1, 2)]
    drops = [change("k", tables=[deleted_row(["t"], at + when)]) for when in (1, 3)]
    changes = [create_table(incarnations[0], at), drops[0], create_table(incarnations[1], at + 2), drops[1]]
    told = [encode_mutation(change, Schema(tables=dict(SCHEMA_TABLES))) for change in changes]
    schema = Schema(tables={incarnation.id: incarnation for incarnation in incarnations})
    written = [encode_mutation(Mutation((PartitionUpdate(incarnation.id, b"k", rows=(Row(()),)),)), schema) for incarnation in incarnations]
    lines = dump(*told, *written)[-2:]
    assert [line["updates"][0]["table"] for line in lines] == ["t_OLD_00000000", "t"]  # type: ignore[index]


def test_flags_and_epochs_of_version_9() -> None:
    """Of the flags only the one that Cassandra's reader keeps; no epoch of an update that changes nothing."""
    nothing = PartitionUpdate(EPOCH_TABLE.id, b"\0\0\0\1", epoch=7)
    written = decode_mutation(body_of(EPOCH_FRAME), SCHEMA, version=9).updates[0]
    system = Schema(tables=dict(SCHEMA_TABLES))
    ddl = [encode_mutation(decode_mutation(body, system), system, version=9) for body in ddl_bodies(SCHEMA)]
    bodies = [*ddl, encode_mutation(Mutation((nothing, written), 3), SCHEMA, version=9)]
    text = [*dump_lines([("CommitLog-9-12.log", encode_segment(12, 9, bodies))])][-1]
    assert isinstance(text, str)
    line = json.loads(text)
    assert list(line) == ["seg", "pos", "size", "ks", "cdc", "flags", "pk", "updates"]
    assert line["flags"] == 1
    assert [update.get("epoch") for update in line["updates"]] == [None, 6]


def test_an_older_life_of_a_counted_table_id_is_told_apart_by_the_end() -> None:
    at = 1_700_000_000_000_000
    incarnations = [replace(EPOCH_TABLE, id=UUID(int=EPOCH_TABLE.id.int + more)) for more in (0, 0x1A)]
    told = [encode_mutation(create_table(each, at + n), Schema(tables=dict(SCHEMA_TABLES))) for n, each in enumerate(incarnations)]
    schema = Schema(tables={incarnation.id: incarnation for incarnation in incarnations})
    written = [encode_mutation(Mutation((PartitionUpdate(each.id, bytes(4), rows=(Row(()),)),)), schema) for each in incarnations]
    lines = dump(*told, *written)[-2:]
    assert [line["updates"][0]["table"] for line in lines] == ["p_OLD_00000005", "p"]  # type: ignore[index]


def test_a_table_that_nobody_taught_makes_no_line() -> None:
    content = encode_segment(12, 7, [body_of(TTL_FRAME)])
    (failure,) = dump_lines([("CommitLog-7-12.log", content)])
    assert isinstance(failure, Failure)
    assert failure.frame.position == 28 + len(TTL_FRAME)
    assert isinstance(failure.error, UnknownTable)


@pytest.mark.parametrize(("version", "order"), [(6, ["keyspaces", "types"]), (7, ["types", "keyspaces"])])
def test_updates_of_one_mutation_stand_as_the_reader_of_the_version_has_them(version: int, order: list[str]) -> None:
    """Seen in a log of 3.11, whose reader swaps these two."""
    rows = {
        "keyspaces": schema_row("keyspaces", (), 1, {"durable_writes": True}),
        "types": schema_row("types", ("t",), 1, {"field_names": []}),
    }
    updates = [PartitionUpdate(system_table_id("system_schema", name), b"k", rows=(rows[name],)) for name in ("types", "keyspaces")]
    content = encode_segment(12, version, [encode_mutation(Mutation(tuple(updates)), Schema(tables=dict(SCHEMA_TABLES)))])
    (line,) = dump_lines([(f"CommitLog-{version}-12.log", content)])
    assert isinstance(line, str)
    assert [update["table"] for update in json.loads(line)["updates"]] == order
