"""Columns that are dropped and added again while data flows: what shows differently in rows that nobody
writes to is told, and is so.

Made-up logs (tests.spark_jobs.synthetic), real Spark, Iceberg and Lance. After each batch the events fold
into the current table."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.stages import merge_stream
from tests.cassandra.schema.examples import change, column_row, deleted_row, dropped_row
from tests.spark_jobs import examples
from tests.spark_jobs.examples import NOW, ORDERS, THEN
from tests.spark_jobs.synthetic import Ring, delete_row, folded, insert, micros, update
from tests.spark_jobs.test_merge_stream import stored
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.schema.model import DroppedColumn, Schema
from writetime.cassandra.schema.system_tables import TABLES

SYSTEM = Schema(tables=TABLES)


def drop(column: str, at: float, kind: str = "regular") -> bytes:
    """ALTER TABLE orders DROP …"""
    dropped = dropped_row("orders", column, micros(at), kind, "int", micros(at) // 1000)
    gone = deleted_row(("orders", column), micros(at))
    return encode_mutation(change("shop", columns=[gone], dropped_columns=[dropped]), SYSTEM)


def add(column: str, at: float, kind: str = "regular") -> bytes:
    """ALTER TABLE orders ADD …"""
    return encode_mutation(change("shop", columns=[column_row("orders", column, micros(at), kind, "int")]), SYSTEM)


def told(ring: Ring, batch: int) -> list[tuple[int, str, str | None, list[str]]]:
    found = [(e["key"]["id"], e["op"], e["reason"], e["changed"]) for e in ring.events(batch)]
    return sorted(found, key=lambda event: (event[0], event[2] or ""))


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_rows_that_nobody_writes_to_lose_what_was_dropped(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=10, amount=11))
    # A row of an UPDATE lives by its cells: without them SELECT has nothing to show.
    ring.write(update(2, 1, 1, name=20))
    ring.write(insert(3, 1, 1, amount=31))
    ring.write(insert(4, 1, 1, note=40, name=41))
    ring.finish_and_ship(10)
    ring.batch(100)
    assert len(ring.current()) == 4

    # Dropped, and written to: the row's own event begins where the drop has left it.
    ring.write(drop("name", 200))
    ring.write(update(1, 1, 210, amount=12))
    ring.finish_and_ship(220)
    ring.batch(300)
    assert told(ring, 2) == [
        (1, "u", None, ["amount"]),
        (1, "u", "alter", ["name"]),
        (2, "d", "alter", ["name"]),
        (4, "u", "alter", ["name"]),
    ]
    assert ring.current() == {(1, 1): {"amount": 12}, (3, 1): {"amount": 31}, (4, 1): {"note": 40}}
    assert folded(ring.events()) == ring.current()

    # Added again, and a static column dropped, which stood on all rows of its partition: what was there stays
    # away.
    ring.write(add("name", 400))
    ring.write(drop("note", 401, "static"))
    ring.write(update(3, 1, 410, name=33))
    ring.finish_and_ship(420)
    ring.batch(500)
    assert told(ring, 3) == [(3, "u", None, ["name"]), (4, "u", "alter", ["note"])]
    assert ring.current() == {(1, 1): {"amount": 12}, (3, 1): {"amount": 31, "name": 33}, (4, 1): {}}
    assert folded(ring.events()) == ring.current()


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_batch_that_sees_a_drop_and_the_column_back(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    for key in (1, 2, 3):
        ring.write(insert(key, 1, 1, name=key, amount=key))
    # Ahead of the clock: it is younger than the drop, and comes back.
    ring.write(insert(4, 1, 900, name=4))
    ring.finish_and_ship(10)
    ring.batch(100)
    ring.write(drop("name", 200))
    ring.write(add("name", 201))
    ring.write(update(2, 1, 210, name=22))
    ring.write(delete_row(3, 1, 211))
    ring.finish_and_ship(220)
    ring.batch(300)
    assert ring.current() == {(1, 1): {"amount": 1}, (2, 1): {"amount": 2, "name": 22}, (4, 1): {"name": 4}}
    assert folded(ring.events()) == ring.current()
    assert (4, "u", "alter", ["name"]) not in told(ring, 2)


@pytest.mark.parametrize("at_hand", [1, 2, 8192])
def test_all_partitions_of_a_shard_are_looked_at_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_hand: int) -> None:
    monkeypatch.setattr(merge_stream, "_ROWS_AT_HAND", at_hand)
    # Partition 1 has one row, partition 2 two, and so on.
    rows = [examples.insert(ORDERS, key, {"name": "n"}, line) for key in range(1, 5) for line in range(key)]
    shard = stored(tmp_path, examples.folded(map(examples.frame, rows)))
    gone = replace(ORDERS, columns={name: column for name, column in ORDERS.columns.items() if name != "name"})
    gone = replace(gone, dropped_columns={"name": DroppedColumn("name", "regular", "text", THEN + 5)})
    schema = examples.schema_of(gone)
    written = examples.insert(gone, 3, {"at": 1}, 1, timestamp=THEN + 10, schema=schema)
    options: dict[str, Any] = {"since": NOW, "now": NOW + 1, "shards": {ORDERS.id: shard}, "dropped_before": {ORDERS.id.bytes: {}}}
    events = examples.of_kind(examples.folded([examples.frame(written, schema=schema)], schema, **options), "event")
    found = [pickle.loads(event["payload"]) for event in events]
    told = [(event["key"]["id"], event["key"]["line"], event["reason"]) for event in found]
    altered = [(key, line, "alter") for key in range(1, 5) for line in range(key)]
    assert told == sorted([*altered, (3, 1, None)], key=lambda each: (*each[:2], each[2] is None))
