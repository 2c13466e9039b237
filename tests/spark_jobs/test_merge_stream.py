"""Exploding and joining as plain functions: what becomes of mutations, and that a bad one spoils nothing
else."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from spark_jobs.stages.table_rows import RowShape
from spark_jobs.state.shards import in_batches, upsert
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
    payloads,
    schema_of,
    stored,
    table,
)
from writetime.cassandra.merge.reconcile import Policy
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import DroppedColumn
from writetime.cassandra.types.types import EMPTY, Duration
from writetime.errors import BatchError
from writetime.events.masking import rejection_reason
from writetime.pipeline.truncations import Cut, Cuts, Purged, Source
from writetime.storage import open_store


def account(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    (found,) = payloads(rows, "account")
    return {name: count for name, count in found.items() if count}


def names(rows: Sequence[dict[str, Any]]) -> list[str | None]:
    return [event["after"] and event["after"]["name"] for event in payloads(rows, "event")]


def test_copies_of_one_mutation_are_one_event_that_knows_its_replicas() -> None:
    mutation = insert(ORDERS, 1, {"name": "n", "at": 5}, 7)
    rows = folded([frame(mutation, segment=segment, position=50 + segment) for segment in (2, 0, 1)])
    (event,) = payloads(rows, "event")
    assert (event["op"], event["before"], event["key"]) == ("c", None, {"id": 1, "line": 7})
    assert event["after"] == {"id": 1, "line": 7, "note": None, "name": "n", "at": 5000}
    assert (event["nodes"], event["file"], event["pos"]) == (["host-a", "host-b", "host-c"], "host-a.log", 50)
    assert (event["ts_micro"], event["now"], event["replicas_expected"]) == (THEN, NOW, 3)
    assert account(rows) == {"applied": 1, "duplicate": 2, "events": 1}


def test_changed_is_what_shows() -> None:
    """Null and a value of no bytes are one where the type knows no such value, and two where it does."""
    empties = table("empties", 43, {"id": "int", "a float": "float", "a decimal": "decimal", "zero": "double"})
    schema = schema_of(empties)
    values = [{"zero": 0.0}, {"zero": -0.0}, {"a float": b"", "a decimal": b""}, {"a float": 1.0, "a decimal": b""}]
    rows = folded([frame(insert(empties, 1, v, timestamp=THEN + at, schema=schema), schema=schema) for at, v in enumerate(values)], schema)
    assert [event["changed"] for event in payloads(rows, "event")] == [["zero"], ["zero"], ["a decimal"], ["a float"]]


def test_events_come_in_writetime_order_and_tell_their_last() -> None:
    found = [frame(insert(ORDERS, 1, {"name": name}, 1, timestamp=THEN + at)) for at, name in ((2, "third"), (0, "first"), (1, "second"))]
    rows = folded([*found, frame(insert(ORDERS, 1, {"name": "other"}, 2))])
    events = of_kind(rows, "event")
    assert [row["seq"] for row in events] == [0, 1, 2, 3]
    mine = [(row["last"], event) for row, event in zip(events, payloads(rows, "event"), strict=True) if event["key"]["line"] == 1]
    assert [(last, event["after"]["name"]) for last, event in mine] == [(False, "first"), (False, "second"), (True, "third")]
    assert [event["before"] and event["before"]["name"] for _, event in mine] == [None, "first", "second"]


def test_the_same_input_gives_the_same_output() -> None:
    found = [frame(insert(ORDERS, key, {"name": str(at)}, at, timestamp=THEN + at), segment=at) for key in (1, 2) for at in range(3)]
    assert folded(found) == folded(reversed(found))


def test_what_the_state_knows_is_no_event(tmp_path: Path) -> None:
    first = folded([frame(insert(ORDERS, 1, {"name": "n"}, 1))])
    shard = stored(tmp_path, first)
    again = folded(
        [frame(insert(ORDERS, 1, {"name": "n"}, 1)), frame(insert(ORDERS, 1, {"name": "old"}, 1, timestamp=THEN - 1))],
        shards={ORDERS.id: shard},
    )
    assert account(again) == {"superseded": 2}
    assert of_kind(again, "record") == []
    late = folded([frame(delete(ORDERS, 1, THEN + 1))], shards={ORDERS.id: shard})
    (event,) = payloads(late, "event")
    assert (event["op"], event["before"]["name"], event["after"], event["reason"]) == ("d", "n", None, "partition_delete")


BAD_VALUES = {
    "text that is no UTF-8": {"c text": b"\xff\xfe"},
    "a timestamp beyond the calendar": {"c timestamp": 2**63 - 1},
    "an int of three bytes in a tuple": {"two": b"\0\0\0\3abc\0\0\0\1x"},
    "a date of three bytes": {"c date": b"abc"},
    "a duration of too many months": {"c duration": Duration(2**40, 0, 0)},
    "a map with an empty key": {"by pair": [(EMPTY, 1)]},
    "a set element that is no UTF-8": {"tags": [None]},
}


@pytest.mark.parametrize("values", BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_that_cannot_be_shown_takes_its_frames_to_quarantine_and_nothing_else(values: dict[str, Any]) -> None:
    if values == {"tags": [None]}:
        made = insert(EVERYTHING, 1, {"tags": ["x"]}).updates[0]
        (row,) = made.rows
        (cell,) = row.cells
        bad = Mutation((PartitionUpdate(EVERYTHING.id, made.key, rows=(Row(row.clustering, row.liveness, cells=(_with_path(cell),)),)),))
    else:
        bad = insert(EVERYTHING, 1, values)
    good = insert(EVERYTHING, 1, {"Name": "good"}, timestamp=THEN + 1)
    neighbour = insert(EVERYTHING, 2, {"Name": "neighbour"})
    found = [
        frame(bad, segment=0, position=11),
        frame(bad, segment=2, position=22),
        frame(good, position=33),
        frame(neighbour, position=44),
    ]
    rows = folded(found)
    assert account(rows) == {"applied": 2, "quarantined": 2, "events": 2}
    assert [(place["segment"], place["position"]) for place in payloads(rows, "quarantined")] == [(0, 11), (2, 22)]
    assert {place["body"] for place in payloads(rows, "quarantined")} == {found[0]["body"]}
    assert sorted(event["after"]["__x4e_ame"] for event in payloads(rows, "event")) == ["good", "neighbour"]
    # Nothing of it has become state.
    assert payloads(rows, "record") == payloads(folded(found[2:]), "record")


def _with_path(cell: Any) -> Any:
    return replace(cell, path=b"\xff")


def test_a_frame_that_does_not_decode_is_quarantined() -> None:
    whole = frame(insert(ORDERS, 1, {"name": "n"}, 1), position=11)
    torn = {**whole, "body": whole["body"][:-3], "position": 12}
    rows = folded([whole, torn])
    assert account(rows) == {"applied": 1, "quarantined": 1, "events": 1}
    (place,) = payloads(rows, "quarantined")
    assert (place["position"], place["body"]) == (12, torn["body"])
    assert json.loads(place["detail"])["kind"] == "MalformedMutation"


def test_a_column_that_the_schema_lacks_is_quarantined() -> None:
    wider = table("orders", 1, {"id": "int", "line": "int", "extra": "text"}, clustering=1)
    rows = folded([frame(insert(wider, 1, {"extra": "x"}, 1, schema=schema_of(wider)), schema=schema_of(wider))])
    assert account(rows) == {"quarantined": 1}
    assert json.loads(payloads(rows, "quarantined")[0]["detail"])["kind"] == "UnknownColumn"


def test_a_damaged_counter_is_quarantined() -> None:
    assert account(folded([frame(insert(COUNTS, 1, {"n": b"\0"}))])) == {"quarantined": 1}


COMPOSITE = "'org.apache.cassandra.db.marshal.CompositeType(org.apache.cassandra.db.marshal.Int32Type)'"
CUSTOM = table("custom", 20, {"id": "int", "c": COMPOSITE, "v": "text"}, clustering=1)
GONE = {"old": DroppedColumn("old", "regular", "counter", THEN)}
LESS_COUNTS = table("less", 21, {"id": "int", "n": "counter"}, flags=frozenset({"compound", "counter"}), dropped_columns=GONE)


@pytest.mark.parametrize("engine", ["auto", "python"])
@pytest.mark.parametrize("bad", [b"\0\1", b"\0\3abc\0", b"\2\1\1"])
def test_a_clustering_that_shows_but_has_no_order_is_quarantined(bad: bytes, engine: Engine) -> None:
    schema = schema_of(CUSTOM)
    rows = [Row((value,), Liveness(THEN), cells=(Cell("v", THEN, b"x"),)) for value in (bad, b"\0\4\0\0\0\1\0")]
    found = [frame(Mutation((PartitionUpdate(CUSTOM.id, b"\0\0\0\1", rows=(row,)),)), schema=schema) for row in rows]
    assert account(folded(found, schema, engine=engine)) == {"applied": 1, "quarantined": 1, "events": 1}


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_damaged_counter_of_a_dropped_column_is_quarantined(engine: Engine) -> None:
    """Nobody sees it, but it would have to be merged."""
    schema = schema_of(LESS_COUNTS)
    values = [b"\1\2\3", b"\1\2\4", context(2), context(3)]
    rows = [Row((), cells=(Cell("old", THEN + at, value),)) for at, value in enumerate(values)]
    found = [frame(Mutation((PartitionUpdate(LESS_COUNTS.id, b"\0\0\0\1", rows=(row,)),)), schema=schema) for row in rows]
    assert account(folded(found, schema, engine=engine)) == {"applied": 2, "quarantined": 2}


def test_a_damaged_row_of_the_state_is_named(tmp_path: Path) -> None:
    (record,) = payloads(folded([frame(insert(COUNTS, 1, {"n": context(2)}))]), "record")
    damaged = record._replace(state=record.state.replace(context(2), b"\1" + context(2)[1:]))
    uri = str(tmp_path / "shard")
    shard = uri, upsert(uri, 0, 1, in_batches([damaged]), open_store(str(tmp_path / "bucket")), "lease.json").version
    with pytest.raises(BatchError, match=r"shop\.counts.* 00000001"):
        folded([frame(insert(COUNTS, 1, {"n": context(3)}))], shards={COUNTS.id: shard})


def test_bad_values_that_are_dead_hold_up_nothing() -> None:
    found = [frame(insert(ORDERS, 1, {"name": b"\xff"}, 1)), frame(delete(ORDERS, 1, THEN + 1))]
    rows = folded(found)
    assert account(rows)["quarantined"] == 1
    assert payloads(rows, "event") == []


def test_what_has_expired_in_between_is_an_event_of_nobody(tmp_path: Path) -> None:
    made = insert(ORDERS, 1, {"name": "n"}, 1).updates[0]
    (row,) = made.rows
    dying = replace(
        row,
        liveness=replace(row.liveness, ttl=200, expires_at=NOW + 100),
        cells=tuple(replace(cell, ttl=200, local_deletion_time=NOW + 100) for cell in cells(ORDERS, {"name": "n"})),
    )
    first = folded([frame(Mutation((replace(made, rows=(dying,)),)))])
    shard = stored(tmp_path, first)
    rows = folded([frame(insert(ORDERS, 1, {"name": "other"}, 2, timestamp=THEN + 5))], now=NOW + 500, since=NOW, shards={ORDERS.id: shard})
    expired, created = sorted(payloads(rows, "event"), key=lambda event: event["key"]["line"])
    assert (expired["op"], expired["reason"], expired["before"]["name"], expired["ts_micro"]) == (
        "d",
        "expiry",
        "n",
        (NOW + 100) * 1_000_000,
    )
    assert (expired["nodes"], expired["file"], expired["pos"]) == ([], None, None)
    assert created["after"]["name"] == "other"


def test_tables_whose_rows_cannot_be_shown_are_told_apart() -> None:
    assert [rejection_reason(each, SCHEMA) for each in SCHEMA.tables.values()] == [None] * len(SCHEMA.tables)
    unknown = table("unknown", 20, {"id": "int", "v": "frozen<nowhere>"})
    assert "nowhere" in (rejection_reason(unknown, SCHEMA) or "")
    garbled = table("garbled", 21, {"id": "int", "v": "map<"})
    assert "map<" in (rejection_reason(garbled, SCHEMA) or "")
    taken = table("taken", 22, {"id": "int", "_writetime": "text"})
    assert rejection_reason(taken, SCHEMA) is None
    assert RowShape.of(taken, SCHEMA).row_type.names == ["id", "__writetime"]


def test_what_expires_where_nothing_is_written_is_told_too(tmp_path: Path) -> None:
    made = [dying(insert(ORDERS, key, {"name": "n"}, 1), NOW + 100 * key) for key in (1, 2, 9)]
    shard = stored(tmp_path, folded([frame(mutation) for mutation in made]))
    rows = folded([], now=NOW + 500, since=NOW, shards={ORDERS.id: shard})
    events = payloads(rows, "event")
    assert [(event["key"]["id"], event["reason"], event["ts_micro"] // 1_000_000 - NOW) for event in events] == [
        (1, "expiry", 100),
        (2, "expiry", 200),
    ]
    assert account(rows) == {"events": 2}
    assert [record.expires_at for record in payloads(rows, "record")] == [None, None]


def test_updates_of_one_mutation_are_counted_each_and_once() -> None:
    both = Mutation((*insert(ORDERS, 7, {"name": "n"}, 1).updates, *insert(KEYS_ONLY, 7, None, "x").updates))
    several = Mutation((*insert(ORDERS, 7, {"name": "n"}, 2).updates, *insert(ORDERS, 7, {"name": "m"}, 3).updates))
    rows = folded([frame(both, segment=0), frame(both, segment=1), frame(several)])
    assert account(rows) == {"applied": 4, "duplicate": 2, "events": 4}
    # An update of two rows, of which one is known to be newer: it was applied.
    rows_ = tuple(insert(ORDERS, 7, {"name": "n"}, line).updates[0].rows[0] for line in (1, 2))
    two = Mutation((PartitionUpdate(ORDERS.id, (7).to_bytes(4, "big"), rows=rows_),))
    assert account(folded([frame(two), frame(insert(ORDERS, 7, {"name": "newer"}, 1, timestamp=THEN - 1))])) == {"applied": 2, "events": 3}
    assert account(folded([frame(two), frame(delete(ORDERS, 7, THEN - 1))])) == {"applied": 2, "events": 2}


def test_what_a_truncate_took_is_superseded_by_it() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    cut = Cut(places={HOSTS[0]: (1, 150)}, noted={HOSTS[0]: (THEN + 5) // 1000 + 1})
    cuts = Cuts.of({ORDERS.id: cut}, [Source(host, 1, at) for host in HOSTS])
    early, hinted, late = (insert(ORDERS, 1, {"name": name}, line) for line, name in enumerate(("early", "hinted", "late")))
    found = [
        frame(early, position=100),
        frame(early, segment=1),
        frame(hinted, position=100),
        frame(hinted, position=200),
        frame(late, position=160),
    ]
    for engine in ("auto", "python"):
        rows = folded(found, cuts=cuts, engine=engine)
        assert sorted(name or "" for name in names(rows)) == ["hinted", "late"]
        assert account(rows) == {"applied": 2, "superseded": 1, "duplicate": 2, "events": 2}


def test_what_no_record_decides_is_kept_and_counted() -> None:
    cut = Cut(places={HOSTS[0]: (1, 150)}, noted={HOSTS[0]: NOW * 1000})
    cuts = Cuts.of({ORDERS.id: cut}, [Source(host, 1, datetime.fromtimestamp(NOW, UTC)) for host in HOSTS])
    both, alone = (insert(ORDERS, 1, {"name": name}, line) for line, name in enumerate(("both", "alone")))
    for engine in ("auto", "python"):
        rows = folded([frame(both, position=100), frame(both, segment=1), frame(alone, segment=1)], cuts=cuts, engine=engine)
        assert names(rows) == ["alone"]
        assert account(rows) == {"applied": 1, "superseded": 1, "duplicate": 1, "events": 1, "undecided": 1}
        # By the record that is to be read from the ring again.
        (note,) = of_kind(rows, "undecided")
        (record,) = payloads(rows, "record")
        assert (note["table_id"], note["bucket"], note["state"]) == (ORDERS.id.bytes, 0, record.key)


def line(number: int) -> bytes:
    return number.to_bytes(4, "big")


def ranged(bounds: tuple[Bound, Bound], at: int) -> RangeTombstone:
    return RangeTombstone(*bounds, DeletionTime(at, at // 1_000_000))


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_of_one_update_a_replay_takes_in_only_what_no_purge_can_have_beaten(engine: Engine) -> None:
    """A repair logs much of a partition in one update, with all its writetimes."""
    old, young = THEN - 10, THEN + 10
    cuts = Cuts.of(
        {},
        [Source(host, 1, datetime.fromtimestamp(NOW, UTC)) for host in HOSTS],
        {ORDERS.id.bytes: Purged(THEN, frozenset(range(len(HOSTS))))},
    )
    mixed = Row((line(2),), Liveness(old), cells=(*cells(ORDERS, {"at": 5}, young), *cells(ORDERS, {"name": "old"}, old)))
    rows_ = (insert(ORDERS, 1, {"name": "old"}, 1, timestamp=old).updates[0].rows[0], mixed)
    static = Row(None, cells=cells(ORDERS, {"note": "old"}, old))
    bounds = Bound((line(7),), True), Bound((line(8),), False)
    head = PartitionUpdate(ORDERS.id, line(1), DeletionTime(THEN, 5), static, range_tombstones=(ranged(bounds, THEN),))
    for about, items in (
        (PartitionUpdate(ORDERS.id, line(1)), 1),
        (head, 1),
        (replace(head, range_tombstones=(ranged(bounds, young),)), 2),
    ):
        update = replace(about, rows=rows_)
        found = folded([frame(Mutation((update,))), frame(insert(ORDERS, 1, {"name": "old"}, 3, timestamp=THEN))], cuts=cuts, engine=engine)
        (event,) = payloads(found, "event")
        assert (event["key"], event["after"]["name"], event["after"]["note"]) == ({"id": 1, "line": 2}, None, None)
        assert account(found) == {"applied": 1, "superseded": 1, "events": 1}
        assert len(payloads(found, "record")) == items


def test_a_delete_of_many_rows_is_one_event_where_that_is_wanted(tmp_path: Path) -> None:
    lines = [insert(ORDERS, 1, {"name": "n"}, line) for line in (1, 2, 3)]
    shard = stored(tmp_path, folded([frame(mutation) for mutation in lines]))
    fresh = insert(ORDERS, 1, {"name": "n"}, 4, timestamp=THEN + 1)
    rows = folded([frame(fresh), frame(delete(ORDERS, 1, THEN + 2))], shards={ORDERS.id: shard}, since=NOW, deletes="one")
    (deletion,) = payloads(rows, "deletion")
    assert (deletion["op"], deletion["reason"], deletion["key"], deletion["bounds"]) == (
        "d",
        "partition_delete",
        {"id": 1, "line": None},
        None,
    )
    told = [(row["seq"], pickle.loads(row["payload"])) for row in of_kind(rows, "event")]
    # Rows that were known go by the one event; one that came and went within the batch has been told of, so
    # its end is told too.
    assert [(seq is None, event["key"]["line"], event["op"]) for seq, event in told] == [
        (True, 1, "d"),
        (True, 2, "d"),
        (True, 3, "d"),
        (False, 4, "c"),
        (False, 4, "d"),
    ]
    assert sorted(row["seq"] for row in (*of_kind(rows, "event"), *of_kind(rows, "deletion")) if row["seq"] is not None) == [0, 1, 2]
    assert account(rows)["events"] == 3


def tied(values: Sequence[tuple[str, int]]) -> list[Mutation]:
    """UPDATEs of one cell at one timestamp; a second of expiry of 0 is none."""
    made = []
    for name, second in values:
        (cell,) = cells(ORDERS, {"name": name})
        cell = replace(cell, ttl=9 if second else 0, local_deletion_time=second or cell.local_deletion_time)
        made.append(Mutation((PartitionUpdate(ORDERS.id, (1).to_bytes(4, "big"), rows=(Row((bytes(4),), cells=(cell,)),)),)))
    return made


@pytest.mark.parametrize("engine", ["auto", "python"])
@pytest.mark.parametrize(("rule", "shows"), [("4.0", "é"), ("3.11", "z")])
def test_live_values_of_one_timestamp_compare_as_the_nodes_release_does(rule: Policy, shows: str, engine: Engine) -> None:
    rows = folded([frame(each) for each in tied([("é", 0), ("z", 0)])], policy=rule, engine=engine)
    assert names(rows)[-1] == shows
    assert "ties" not in account(rows)


@pytest.mark.parametrize("engine", ["auto", "python"])
@pytest.mark.parametrize("order", [1, -1])
def test_by_the_rule_of_3_11_expiring_cells_meet_as_live_ones_and_are_counted(engine: Engine, order: int, tmp_path: Path) -> None:
    """Whenever the two are merged: before the expiry, or after it, in one batch or in two."""
    second = NOW + 100
    mutations = [frame(each) for each in tied([("b", 0), ("a", second)])[::order]]
    rows = folded(mutations, policy="3.11", engine=engine, now=second + 1)
    assert names(rows)[-1] == "b"
    assert account(rows)["ties"] == 1
    uri, (first, last) = str(tmp_path / "shard"), ([each] for each in mutations)
    version = upsert(
        uri, 0, 1, in_batches(payloads(folded(first, policy="3.11"), "record")), open_store(str(tmp_path / "bucket")), "l.json"
    ).version
    shards = {ORDERS.id: (uri, version)}
    late = folded(last, policy="3.11", engine=engine, since=NOW, now=second + 1, shards=shards)
    # The record says of its cell that a ring may have decided otherwise.
    (late_record,), (record,) = payloads(late, "record"), payloads(rows, "record")
    assert late_record == record
    assert account(late)["ties"] == 1


def test_events_of_rows_under_a_delete_of_many_begin_behind_it(tmp_path: Path) -> None:
    """As told one after the other: the delete first; a row that was known begins with nothing then, whatever
    the batch did to it before."""
    lines = [insert(ORDERS, 1, {"name": "old"}, line) for line in (1, 2)] + [insert(ORDERS, 1, {"name": "young"}, 3, timestamp=THEN + 9)]
    shard = stored(tmp_path, folded([frame(mutation) for mutation in lines]))
    second = [
        insert(ORDERS, 1, {"name": "changed"}, 1, timestamp=THEN + 1),
        delete(ORDERS, 1, THEN + 2),
        insert(ORDERS, 1, {"name": "again"}, 1, timestamp=THEN + 3),
    ]
    rows = folded([frame(each) for each in second], shards={ORDERS.id: shard}, since=NOW, deletes="one")
    (deletion,) = of_kind(rows, "deletion")
    assert deletion["seq"] == 0
    told = sorted((row["seq"], pickle.loads(row["payload"])) for row in of_kind(rows, "event") if row["seq"] is not None)
    chain = [(seq, e["key"]["line"], e["op"], *(e[part] and e[part]["name"] for part in ("before", "after"))) for seq, e in told]
    between = [(1, "c", None, "changed"), (1, "d", "changed", None)]
    # The delete is older than the third row, which stands.
    expected = [*between, (1, "c", None, "again"), (3, "c", None, "young")]
    assert chain == [(seq, *each) for seq, each in enumerate(expected, start=1)]
    last = {pickle.loads(row["payload"])["key"]["line"]: row for row in of_kind(rows, "event") if row["last"]}
    assert {line: row["seq"] is None for line, row in last.items()} == {1: False, 2: True, 3: False}


# --- both ways of each stage


def many(random: Random, size: int) -> list[Mutation]:
    """Mutations of all kinds of updates over few keys, rows and times; several updates in some, copies and
    bad values among them."""
    made: list[Mutation] = []
    for _ in range(size):
        key, line, at = random.randrange(4), random.randrange(3), THEN + random.randrange(6) * 1_000_000
        values = {"name": random.choice(["a", "b", "ü"]), "at": random.randrange(3)}
        one = random.choice(
            [
                insert(ORDERS, key, values, line, timestamp=at),
                insert(ORDERS, key, {}, line, timestamp=at),
                insert(ORDERS, key, {"name": b"\xff"}, line, timestamp=at),
                dying(insert(ORDERS, key, values, line, timestamp=at), at // 1_000_000 + random.randrange(1, 400)),
                row_delete(key, line, at),
                delete(ORDERS, key, at) if random.random() < 0.3 else insert(KEYS_ONLY, key, None, str(line), timestamp=at),
                insert(STATICS, key, values, line, timestamp=at),
                static(key, at),
                insert(COUNTS, key, {"n": context(random.randrange(3))}, timestamp=at),
            ]
        )
        made.append(
            random.choice([one, one, one, *[Mutation((*one.updates, *other.updates)) for other in made[-1:] if same_key(one, other)]])
        )
    return made


def same_key(one: Mutation, other: Mutation) -> bool:
    return one.updates[0].key == other.updates[0].key


def dying(mutation: Mutation, second: int) -> Mutation:
    (update,) = mutation.updates
    (row,) = update.rows
    cells_ = tuple(replace(cell, ttl=9, local_deletion_time=second) for cell in row.cells)
    return Mutation((replace(update, rows=(replace(row, liveness=Liveness(row.liveness.timestamp, 9, second), cells=cells_),)),))


def row_delete(key: int, line: int, at: int) -> Mutation:
    row = Row((line.to_bytes(4, "big"),), deletion=DeletionTime(at, at // 1_000_000))
    return Mutation((PartitionUpdate(ORDERS.id, key.to_bytes(4, "big"), rows=(row,)),))


def static(key: int, at: int) -> Mutation:
    row = Row(None, cells=(Cell("note", at, b"n"),))
    return Mutation((PartitionUpdate(STATICS.id, key.to_bytes(4, "big"), static_row=row),))


def context(count: int) -> bytes:
    return b"\0\1\x80\0" + UUID(int=9).bytes + count.to_bytes(8, "big") + (count * 7).to_bytes(8, "big")


STATICS = table("statics", 10, {"id": "int", "line": "int", "note": "static text", "name": "text", "at": "timestamp"}, clustering=1)
MIXED = schema_of(ORDERS, KEYS_ONLY, COUNTS, STATICS)


def in_one_order(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """By kind, in an order that does not depend on which row came out first; of a row's events the order
    stays."""
    events: dict[Any, list[Any]] = defaultdict(list)
    for row in sorted(of_kind(rows, "event"), key=lambda row: (row["table_id"], row["bucket"], row["seq"])):
        events[row["table_id"], repr(pickle.loads(row["payload"])["key"])].append((row["last"], pickle.loads(row["payload"])))
    others = {kind: sorted(map(repr, payloads(rows, kind))) for kind in ("record", "quarantined", "account")}
    return {**others, "event": [events[key] for key in sorted(events)], "applied": sorted(row["key"] for row in of_kind(rows, "applied"))}


@pytest.mark.parametrize("seed", range(6))
def test_by_the_column_and_one_by_one_come_to_the_same(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    shards: dict[UUID, tuple[str, int]] = {}
    since = None
    for batch in (1, 2):
        frames = [frame(m, segment=random.randrange(3), position=100 + at, schema=MIXED) for at, m in enumerate(many(random, 60))]
        frames += [{**each, "segment": (each["segment"] + 1) % 3} for each in random.sample(frames, 30)]
        now = NOW + batch * 100
        how: dict[str, Any] = {"now": now, "since": since, "shards": shards, "policy": "3.11" if seed % 2 else "4.0"}
        fast, readable = (folded(frames, MIXED, engine=engine, **how) for engine in ("auto", "python"))
        assert in_one_order(fast) == in_one_order(readable)
        assert account(fast)["applied"]
        for table_id in MIXED.tables:
            uri, base = shards.get(table_id, (str(tmp_path / str(table_id)), 0))
            records = [pickle.loads(row["payload"]) for row in of_kind(fast, "record") if row["table_id"] == table_id.bytes]
            shards[table_id] = (
                uri,
                upsert(uri, base, batch, in_batches(records), open_store(str(tmp_path / "bucket")), f"{table_id}.json").version,
            )
        since = now
