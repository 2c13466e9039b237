"""Folding as a plain function: what becomes of frames, and that one bad frame spoils nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.rows import RowShape, why_not
from spark_jobs.state import upsert
from tests.spark_jobs.examples import (
    COUNTS,
    EVERYTHING,
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
    table,
)
from writetime.cql.types import EMPTY, Duration
from writetime.model import Mutation, PartitionUpdate, Row


def account(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    (row,) = of_kind(rows, "account")
    found: dict[str, int] = json.loads(row["payload"])
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
    uri = str(tmp_path / "shard")
    version = upsert(uri, 1, payloads(first, "record"))
    again = folded(
        [frame(insert(ORDERS, 1, {"name": "n"}, 1)), frame(insert(ORDERS, 1, {"name": "old"}, 1, timestamp=THEN - 1))],
        shards={ORDERS.id: (uri, version)},
    )
    assert account(again) == {"superseded": 2}
    assert of_kind(again, "record") == []
    late = folded([frame(delete(ORDERS, 1, THEN + 1))], shards={ORDERS.id: (uri, version)})
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
    uri = str(tmp_path / "shard")
    version = upsert(uri, 1, payloads(first, "record"))
    rows = folded([frame(insert(ORDERS, 1, {"name": "other"}, 2, timestamp=THEN + 5))], now=NOW + 500, shards={ORDERS.id: (uri, version)})
    expired, created = payloads(rows, "event")
    assert (expired["op"], expired["reason"], expired["before"]["name"], expired["ts_micro"]) == (
        "d",
        "expiry",
        "n",
        (NOW + 100) * 1_000_000,
    )
    assert (expired["nodes"], expired["file"], expired["pos"]) == ([], None, None)
    assert created["after"]["name"] == "other"


def test_tables_whose_rows_cannot_be_shown_are_told_apart() -> None:
    assert [why_not(each, SCHEMA) for each in SCHEMA.tables.values()] == [None] * len(SCHEMA.tables)
    unknown = table("unknown", 20, {"id": "int", "v": "frozen<nowhere>"})
    assert "nowhere" in (why_not(unknown, SCHEMA) or "")
    garbled = table("garbled", 21, {"id": "int", "v": "map<"})
    assert "map<" in (why_not(garbled, SCHEMA) or "")
    taken = table("taken", 22, {"id": "int", "_writetime": "text"})
    assert why_not(taken, SCHEMA) is None
    assert RowShape.of(taken, SCHEMA).row_type.names == ["id", "__writetime"]
