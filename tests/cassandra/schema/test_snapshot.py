"""Snapshots give the same schema as the log."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.cassandra.schema.examples import change, create_keyspace, create_table, deleted_row
from tests.cassandra.schema.test_history import learner_of_churn, seconds_to_learn
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.commitlog.system_mutations import decode_own
from writetime.cassandra.model import Cell, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import NOT_DURABLE, Column, DroppedColumn, Schema, Table, UserType
from writetime.cassandra.schema.snapshot import parse
from writetime.cassandra.schema.system_tables import TABLES, system_table_id
from writetime.errors import SchemaError

T = 1_700_000_000_000_000
TABLE = Table(
    "k",
    "t",
    UUID("11111111-e583-11f1-817f-f173fd8e050e"),
    {
        "p": Column("p", "partition_key", "int", 0),
        "c": Column("c", "clustering", "text", 0, descending=True),
        "v": Column("v", "regular", "frozen<addr>"),
    },
    {"old": DroppedColumn("old", "regular", "text", T - 1000)},
    cdc=True,
)


def column(name: str, kind: str, type_text: str, position: int = -1, order: str = "none") -> dict[str, Any]:
    return {
        "keyspace_name": "k",
        "table_name": "t",
        "column_name": name,
        "column_name_bytes": "0x" + name.encode().hex(),
        "kind": kind,
        "type": type_text,
        "position": position,
        "clustering_order": order,
        "writetime": T,
    }


def document() -> dict[str, Any]:
    return {
        "taken_at": "2026-11-22T10:00:00Z",
        "schema_version": "5f8b8a5e-0d5c-3b8e-9a44-0f6f1c3c9b10",
        "keyspaces": [
            {
                "keyspace_name": "k",
                "durable_writes": True,
                "replication": {"replication_factor": "3", "class": "org.apache.cassandra.locator.SimpleStrategy"},
                "writetime": T,
            }
        ],
        "tables": [
            {
                "keyspace_name": "k",
                "table_name": "t",
                "id": str(TABLE.id),
                "cdc": True,
                "flags": ["compound"],
                "gc_grace_seconds": 864_000,
                "default_time_to_live": 0,
                "bloom_filter_fp_chance": 0.01,
                "extensions": {"a": "00ff"},
                "comment": None,
                "invented_by_a_later_version": 7,
                "writetime": T,
            }
        ],
        "columns": [
            column("p", "partition_key", "int", 0),
            column("c", "clustering", "text", 0, "desc"),
            column("v", "regular", "frozen<addr>"),
        ],
        "dropped_columns": [
            {
                "keyspace_name": "k",
                "table_name": "t",
                "column_name": "old",
                "kind": "regular",
                "type": "text",
                "dropped_time": (T - 1000) // 1000,
                "writetime": T,
            }
        ],
        "types": [{"keyspace_name": "k", "type_name": "addr", "field_names": ["zip", "a"], "field_types": ["int", "text"], "writetime": T}],
        "views": [],
    }


def test_a_snapshot_teaches_what_the_log_would() -> None:
    from_snapshot = SchemaLearner()
    assert from_snapshot.apply_snapshot(document())
    assert from_snapshot.schema().tables[TABLE.id] == TABLE
    assert from_snapshot.schema().types == {("k", "addr"): UserType("k", "addr", ("zip", "a"), ("int", "text"))}
    from_log = SchemaLearner()
    for mutation in (create_keyspace("k", T), create_table(TABLE, T)):
        from_log.apply(mutation)
    assert from_log.schema().keyspaces == from_snapshot.schema().keyspaces
    assert from_log.schema().tables == from_snapshot.schema().tables


def with_mode(mode: str | None, epoch: int, written: int = T) -> dict[str, Any]:
    found = {**document(), "schema_version": str(UUID(int=epoch))}
    found["tables"] = [{**row, "writetime": written} | ({} if mode is None else {"transactional_mode": mode}) for row in found["tables"]]
    return found


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_mode_of_the_latest_epoch_counts_whatever_the_clocks_say(order: tuple[int, ...]) -> None:
    """A node that starts again stamps all rows of its schema anew."""
    said = [with_mode("full", 7, T + 90), with_mode("mixed_reads", 8, T + 10), with_mode(None, 6, T + 50)]
    learner = SchemaLearner()
    for number in order:
        learner.apply_snapshot(said[number])
        learner.apply(create_table(TABLE, T + 100 + number))
    table = learner.schema().tables[TABLE.id]
    assert (table.transactional_mode, table.bypasses_log) == ("mixed_reads", True)
    again = SchemaLearner.from_json(learner.to_json())
    assert again.schema() == learner.schema()
    assert not again.apply_snapshot(said[1])
    assert again.apply_snapshot(with_mode("off", 9))
    assert not again.schema().tables[TABLE.id].bypasses_log


def set_on_keyspace(learner: SchemaLearner, cell: Cell, value: Any, *, logged: bool) -> None:
    """An option of the tables' keyspace, as a log or else a snapshot has it; `value`: the cell's, decoded."""
    if logged:
        update = PartitionUpdate(system_table_id("system_schema", "keyspaces"), b"k", rows=(Row((), cells=(cell,)),))
        body = encode_mutation(Mutation((update,)), Schema(tables=TABLES))
        learner.apply(decode_own(body, version=7).mutation)
    else:
        found = document()
        rows = [{**row, cell.column: value, "writetime": cell.timestamp} for row in found["keyspaces"]]
        learner.apply_snapshot({**found, "keyspaces": rows})


@pytest.mark.parametrize("logged", [True, False])
def test_all_tables_of_a_tracked_keyspace_bypass_the_log(logged: bool) -> None:
    """No version that is out has these keyspaces: their option is that of Cassandra's branch."""
    learner = SchemaLearner()
    learner.apply_snapshot(document())
    assert not learner.schema().tables[TABLE.id].bypasses_log
    for at, kind, bypass in ((1, "tracked", "tracked"), (2, "untracked", "off")):
        set_on_keyspace(learner, Cell("replication_type", T + at, kind.encode()), kind, logged=logged)
        table = learner.schema().tables[TABLE.id]
        assert (table.bypass, table.bypasses_log) == (bypass, kind == "tracked")
        assert SchemaLearner.from_json(learner.to_json()).schema() == learner.schema()


@pytest.mark.parametrize("logged", [True, False])
def test_all_tables_of_a_keyspace_without_durable_writes_bypass_the_log(logged: bool) -> None:
    learner = SchemaLearner()
    learner.apply_snapshot(document())
    for at, durable, bypass in ((1, False, NOT_DURABLE), (2, True, "off")):
        set_on_keyspace(learner, Cell("durable_writes", T + at, bytes([durable])), durable, logged=logged)
        table = learner.schema().tables[TABLE.id]
        assert (table.bypass, table.bypasses_log) == (bypass, not durable)
        assert SchemaLearner.from_json(learner.to_json()).schema() == learner.schema()
        assert replace(table, transactional_mode="full").bypass == "full"


@pytest.mark.parametrize("said", [{"transactional_mode": 7}, {"transactional_mode": "x" * 99}, {"transactional_mode": "full", "id": "no"}])
def test_a_mode_that_makes_no_sense(said: dict[str, Any]) -> None:
    wrong = with_mode("full", 7)
    wrong["tables"][0] |= said
    with pytest.raises(SchemaError):
        SchemaLearner().apply_snapshot(wrong)


def test_a_snapshot_after_the_log_says_nothing_new() -> None:
    learner = SchemaLearner()
    learner.apply_snapshot(document())
    assert not any([learner.apply(mutation) for mutation in parse(json.dumps(document()))])  # noqa: C419 - all of them


def test_what_the_snapshot_leaves_out_is_not_deleted() -> None:
    learner = SchemaLearner()
    learner.apply(create_table(TABLE, T))
    learner.apply_snapshot({**document(), "columns": [], "tables": []})
    assert set(learner.schema().tables[TABLE.id].columns) == {"p", "c", "v"}


def test_an_older_snapshot_does_not_undo() -> None:
    learner = SchemaLearner()
    learner.apply(create_table(Table("k", "t", TABLE.id, {**TABLE.columns, "v": Column("v", "regular", "blob")}), T + 5))
    learner.apply_snapshot(document())
    assert learner.schema().tables[TABLE.id].columns["v"].type == "blob"


def without(table: str, key: str) -> dict[str, Any]:
    changed = document()
    del changed[table][0][key]
    return changed


def replaced(table: str, key: str, value: object) -> dict[str, Any]:
    changed = document()
    changed[table][0][key] = value
    return changed


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        json.dumps(without("tables", "writetime")),
        json.dumps(without("tables", "table_name")),
        json.dumps(without("columns", "keyspace_name")),
        json.dumps(replaced("tables", "writetime", None)),
        json.dumps(replaced("tables", "id", "no uuid")),
        json.dumps(replaced("columns", "position", "zero")),
        json.dumps(replaced("columns", "column_name_bytes", "zz")),
        json.dumps(replaced("keyspaces", "replication", ["a"])),
        json.dumps({**document(), "types": [7]}),
        json.dumps({**document(), "tables": 5}),
    ],
)
def test_what_is_no_snapshot_is_refused(content: str) -> None:
    with pytest.raises(SchemaError):
        parse(content)


MINUTE = 60_000_000
OTHER = Table("k", "u", UUID(int=6), {"p": Column("p", "partition_key", "int", 0), "w": Column("w", "regular", "int")}, cdc=True)


def whole(at: int, *tables: Table, agreed: bool = True, written: int = T) -> dict[str, Any]:
    """The cluster's schema at that time (µs), as reported by a node whose peers agree."""
    found: dict[str, Any] = {"taken_at": datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(), "agreed": agreed}
    found["keyspaces"] = [{"keyspace_name": name, "durable_writes": True, "writetime": T} for name in ("k", "system_schema")]
    found["tables"] = [{"keyspace_name": "k", "table_name": t.name, "id": str(t.id), "cdc": True, "writetime": written} for t in tables]
    found["columns"] = [
        {**column(c.name, c.kind, c.type, c.position), "table_name": t.name, "writetime": written}
        for t in tables
        for c in t.columns.values()
    ]
    return found


def told(*documents: dict[str, Any]) -> SchemaLearner:
    """The learner after the log with both tables and these snapshots, in any order and after a JSON round
    trip."""
    orders = []
    for order in itertools.permutations(documents):
        learner = SchemaLearner()
        for mutation in (create_keyspace("k", T), create_table(TABLE, T), create_table(OTHER, T)):
            learner.apply(mutation)
        for document in (*order, *order):
            learner.apply_snapshot(document)
            learner = SchemaLearner.from_json(learner.to_json())
        orders.append(learner)
    assert len({learner.to_json() for learner in orders}) == 1
    return orders[0]


def test_a_drop_in_a_lost_segment_is_told_by_a_whole_snapshot() -> None:
    gone = told(whole(T + 10 * MINUTE, OTHER)).schema().tables[TABLE.id]
    assert (gone.dropped, gone.dropped_at, set(gone.columns)) == (True, T + 9 * MINUTE, {"p", "c", "v"})
    assert not told(whole(T + 10 * MINUTE, OTHER)).schema().tables[OTHER.id].dropped
    # What other snapshots lack later is no other end.
    assert told(whole(T + 10 * MINUTE, OTHER), whole(T + 20 * MINUTE, OTHER)).schema().tables[TABLE.id].dropped_at == T + 9 * MINUTE


@pytest.mark.thorough
def test_very_many_whole_snapshots_of_a_keyspace_with_much_churn() -> None:
    learner = learner_of_churn()
    for number in range(100):
        learner.apply_snapshot(whole(T + number * MINUTE, OTHER))
    # 0.1 s; it was 2 s when each column was compared with each snapshot.
    assert seconds_to_learn(learner) < 0.6


def test_a_column_that_a_whole_snapshot_lacks_is_gone() -> None:
    without = Table("k", "u", OTHER.id, {"p": OTHER.columns["p"]}, cdc=True)
    assert set(told(whole(T + 10 * MINUTE, TABLE, without)).schema().tables[OTHER.id].columns) == {"p"}


def test_a_drop_that_the_log_records_says_when_and_not_the_snapshot_just_after_it() -> None:
    """The table is dropped and created again with another column within the minute before the snapshot."""
    drop, again = T + 10 * MINUTE, T + 10 * MINUTE + 1_000_000
    second = Table("k", "u", UUID(int=7), {"p": OTHER.columns["p"], "x": Column("x", "regular", "int")}, cdc=True)
    snapshot = whole(again + 1_000_000, TABLE)
    of_second = whole(again + 1_000_000, second, written=again)
    merged = {**snapshot, "tables": snapshot["tables"] + of_second["tables"], "columns": snapshot["columns"] + of_second["columns"]}
    learner = SchemaLearner()
    gone = [deleted_row(("u", name), drop) for name in OTHER.columns]
    changes = [change("k", tables=[deleted_row(("u",), drop)], columns=gone), create_table(second, again)]
    for mutation in (create_keyspace("k", T), create_table(TABLE, T), create_table(OTHER, T), *changes):
        learner.apply(mutation)
    learner.apply_snapshot(merged)
    tables = learner.schema().tables
    assert (tables[OTHER.id].dropped, set(tables[OTHER.id].columns)) == (True, {"p", "w"})
    assert (tables[second.id].dropped, set(tables[second.id].columns)) == (False, {"p", "x"})


@pytest.mark.parametrize(
    "document",
    [
        whole(T + 10 * MINUTE, OTHER, agreed=False),
        whole(T + MINUTE // 2, OTHER),
        {**whole(T + 10 * MINUTE, OTHER), "columns": []},
        {**whole(T + 10 * MINUTE, OTHER), "keyspaces": []},
    ],
)
def test_what_is_not_whole_or_too_early_tells_of_no_end(document: dict[str, Any]) -> None:
    assert not told(document).schema().tables[TABLE.id].dropped


def test_a_table_that_a_later_snapshot_has_was_never_gone() -> None:
    healed = told(whole(T + 10 * MINUTE, OTHER), whole(T + 20 * MINUTE, OTHER, TABLE)).schema().tables[TABLE.id]
    assert (healed.dropped, set(healed.columns)) == (False, {"p", "c", "v"})
    assert told(whole(T + 10 * MINUTE, OTHER, TABLE), whole(T + 20 * MINUTE, OTHER)).schema().tables[TABLE.id].dropped


def test_a_table_that_is_created_after_the_snapshot_lives() -> None:
    learner = told(whole(T + 10 * MINUTE, OTHER))
    again = Table("k", "t", UUID(int=9), {"p": Column("p", "partition_key", "int", 0)}, cdc=True)
    learner.apply(create_table(again, T + 15 * MINUTE))
    tables = learner.schema().tables
    assert (tables[TABLE.id].dropped, tables[again.id].dropped, set(tables[again.id].columns)) == (True, False, {"p"})
    learner.apply_snapshot(whole(T + 30 * MINUTE, OTHER, again, written=T + 15 * MINUTE))
    assert not learner.schema().tables[again.id].dropped


def test_a_clock_that_is_ahead_drops_nothing_that_comes() -> None:
    learner = told()
    learner.apply_snapshot(whole(T + 60 * MINUTE, OTHER, TABLE), received=T + 5 * MINUTE)
    later = Table("k", "later", UUID(int=9), {"p": Column("p", "partition_key", "int", 0)}, cdc=True)
    learner.apply(create_table(later, T + 20 * MINUTE))
    assert not learner.schema().tables[later.id].dropped
