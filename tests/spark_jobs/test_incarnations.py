"""Tables that come and go: one that is not captured for a while has its story told when it is back, one that
is dropped has an end.

Made-up logs (tests.spark_jobs.synthetic), real Spark, Iceberg and Lance. After each batch the events fold
into the current table."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import maintain
from tests.cassandra.commitlog.test_system_mutations import later
from tests.cassandra.schema.examples import change, create_table, deleted_row
from tests.cassandra.schema.test_snapshot import OTHER, whole
from tests.node_objects import schema_name
from tests.spark_jobs.synthetic import AGAIN, CLUSTER, ORDERS, START, Ring, folded, i32, insert, micros, update
from tests.spark_jobs.test_alter import SYSTEM, drop
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema
from writetime.pipeline.documents import CDC_OFF
from writetime.pipeline.planner import plan_ingest, plan_maintain

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]

DAY = 86_400
OLD = "orders__6cbda380"


def without_orders(ring: Ring) -> Ring:
    tables = ring.config.tables.model_copy(update={"exclude": ["shop.orders"]})
    return replace(ring, config=ring.config.model_copy(update={"tables": tables}))


def told(events: list[dict[str, Any]]) -> list[tuple[str, str | None, tuple[int, int] | None]]:
    """Op, reason and row of each."""
    return [(e["op"], e["reason"], e["key"] and (e["key"]["id"], e["key"]["line"])) for e in events]


def test_a_table_that_sits_out_tells_what_became_of_it_meanwhile(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, ttl=60, name=1))
    ring.write(insert(1, 2, 1, name=2, amount=3))
    ring.write(update(2, 1, 1, name=4))
    ring.finish_and_ship(5)
    assert ring.batch(10).next_expiry == START.timestamp() + 61

    # Excluded, or refused for a batch because a type was not known yet: what expires and is dropped there
    # waits, and nobody is kept busy.
    out = without_orders(ring)
    out.write(drop("name", 100))
    out.finish_and_ship(110)
    sealed = out.batch(200)
    assert (sealed.events, sealed.next_expiry) == (0, None)
    assert [versions.behind for versions in sealed.state.values()] == [1]
    assert plan_ingest(ring.store, CLUSTER, now=START + timedelta(days=30)) is None
    # Nor is anything forgotten before it was told, long after gc_grace.
    out.write(insert(9, 9, 29 * DAY, amount=9))
    out.finish_and_ship(29 * DAY)
    assert out.batch(30 * DAY).next_expiry is None
    manifest = plan_maintain(ring.store, CLUSTER, now=START + timedelta(days=30))
    assert manifest is not None
    maintain.run(ring.config, manifest.number)

    ring.write(update(1, 2, 30 * DAY + 1, amount=5))
    ring.finish_and_ship(30 * DAY + 5)
    sealed = ring.batch(30 * DAY + 10)
    assert sorted(told(ring.events(sealed.number)), key=str) == [
        ("d", "alter", (2, 1)),
        ("d", "expiry", (1, 1)),
        ("u", "alter", (1, 1)),
        ("u", "alter", (1, 2)),
        ("u", None, (1, 2)),
    ]
    assert {e["ts_micro"] for e in ring.events(sealed.number) if e["reason"] == "expiry"} == {micros(61)}
    assert (sealed.next_expiry, [versions.behind for versions in sealed.state.values()]) == (None, [None])
    assert ring.current() == {(1, 2): {"amount": 5}} == folded(ring.events())
    assert plan_ingest(ring.store, CLUSTER, now=START + timedelta(days=40)) is None


def test_a_table_that_is_dropped_has_one_last_event(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, ttl=200, name=1))
    ring.write(insert(1, 2, 1, name=2))
    ring.finish_and_ship(5)
    assert ring.batch(10).next_expiry == START.timestamp() + 201

    ring.write(update(1, 2, 90, name=3))
    ring.write(encode_mutation(change("shop", tables=[deleted_row(("orders",), micros(100))]), SYSTEM))
    ring.write(encode_mutation(create_table(AGAIN, micros(110)), SYSTEM))
    ring.write(insert(1, 1, 120, of=AGAIN.id, name=4))
    ring.finish_and_ship(130)
    sealed = ring.batch(140)
    events = [(e["ordinal"], e["op"], e["reason"], e["ts_micro"]) for e in _rows(ring, "shop__changes", OLD) if e["batch"] == 2]
    assert sorted(events) == [(1, "u", None, micros(90)), (2, "t", "drop", micros(100))]
    assert [(e["ordinal"], e["op"]) for e in ring.events(2)] == [(3, "c")], "the new life's come after it"
    assert (_rows(ring, "shop", OLD), ring.current()) == ([], {(1, 1): {"name": 4}})
    assert (sealed.events, sealed.next_expiry) == (3, None)
    assert {name: versions.ended for name, versions in sealed.state.items()} == {str(ORDERS.id): True, str(AGAIN.id): False}
    assert plan_ingest(ring.store, CLUSTER, now=START + timedelta(days=30)) is None

    # What a node sends of it hours later is history; it neither ends again nor does anything in it expire.
    ring.write(update(1, 3, 95, name=5))
    ring.finish_and_ship(9000)
    sealed = ring.batch(9100)
    assert [(e["op"], e["reason"]) for e in _rows(ring, "shop__changes", OLD) if e["batch"] == 3] == [("c", None)]
    assert (sealed.events, _rows(ring, "shop", OLD), ring.current()) == (1, [], {(1, 1): {"name": 4}})


def _rows(ring: Ring, namespace: str, name: str) -> list[dict[str, Any]]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{ring.folder / 'lake' / 'catalog.db'}")
    rows: list[dict[str, Any]] = catalog.load_table((namespace, name)).scan().to_arrow().to_pylist()
    return rows


SAME = replace(AGAIN, id=ORDERS.id)


def drop_table(at: float) -> bytes:
    gone = [deleted_row(("orders", name), micros(at)) for name in ORDERS.columns]
    return encode_mutation(change("shop", tables=[deleted_row(("orders",), micros(at))], columns=gone), SYSTEM)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_an_id_that_is_created_again_shows_nothing_of_the_life_before(tmp_path: Path, batches: int) -> None:
    """DROP TABLE and CREATE TABLE … WITH ID of the same id, in one batch, or with the batch's end at the
    DROP, or at the CREATE as well."""
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1, amount=7))
    ring.write(insert(1, 2, 1, name=2))
    ring.finish_and_ship(5)
    ring.batch(10)

    ring.write(update(1, 2, 90, name=3))
    ring.write(drop_table(100))
    # It raced the DROP.
    ring.write(insert(1, 3, 101, name=9))
    if batches > 1:
        ring.finish_and_ship(103)
        ring.batch(104)
    ring.write(encode_mutation(create_table(SAME, micros(110)), SYSTEM))
    if batches > 2:
        ring.finish_and_ship(113)
        ring.batch(114)
    ring.write(update(1, 1, 120, amount=4))
    ring.finish_and_ship(130)
    sealed = ring.batch(140)
    assert ring.current() == {(1, 1): {"amount": 4}} == folded(ring.events())
    assert [versions.generation for versions in sealed.state.values()] == [1]


def test_an_incarnation_that_is_created_and_dropped_within_a_batch_shows_nothing_of_the_one_before(tmp_path: Path) -> None:
    """DROP in one batch; CREATE … WITH ID, rows and another DROP in the next; CREATE … WITH ID in a third."""
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1, amount=7))
    ring.write(insert(1, 2, 1, name=2))
    ring.finish_and_ship(5)
    ring.batch(10)
    ring.write(drop_table(100))
    ring.finish_and_ship(103)
    ring.batch(104)

    ring.write(encode_mutation(create_table(SAME, micros(110)), SYSTEM))
    ring.write(update(1, 1, 120, amount=4))
    ring.write(drop_table(125))
    ring.write(insert(1, 3, 126, name=9))
    ring.finish_and_ship(128)
    sealed = ring.batch(130)
    assert told(ring.events(3)) == [("t", "truncate", None), ("c", None, (1, 1)), ("c", None, (1, 3)), ("t", "drop", None)]
    assert ring.current() == {} == folded(ring.events())
    assert {name: (versions.ended, versions.generation) for name, versions in sealed.state.items()} == {str(ORDERS.id): (True, 1)}

    ring.write(encode_mutation(create_table(SAME, micros(140)), SYSTEM))
    ring.write(update(1, 2, 150, amount=5))
    ring.finish_and_ship(160)
    ring.batch(170)
    assert told(ring.events(4)) == [("t", "truncate", None), ("c", None, (1, 2))]
    assert ring.current() == {(1, 2): {"amount": 5}} == folded(ring.events())


def test_a_drop_that_no_segment_tells_is_learnt_from_a_whole_snapshot(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(5)
    ring.batch(10)
    snapshot = json.dumps(whole(micros(300), OTHER)).encode()
    ring.store.put(schema_name(CLUSTER, START + timedelta(seconds=300), "v2-agreed"), snapshot)
    ring.write(update(1, 1, 90, name=2))
    ring.finish_and_ship(305)
    sealed = ring.batch(310)
    assert {name: versions.ended for name, versions in sealed.state.items()} == {str(ORDERS.id): True, str(OTHER.id): False}
    assert [(e["op"], e["reason"], e["ts_micro"]) for e in ring.events(2)] == [("u", None, micros(90)), ("t", "drop", micros(240))]
    assert ring.current() == {} == folded(ring.events())
    assert sealed.snapshots_applied == [schema_name(CLUSTER, START + timedelta(seconds=300), "v2-agreed")]


def test_an_incarnation_between_two_drops_known_from_snapshots_shows_nothing_of_the_one_before(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(5)
    ring.batch(10)
    ring.store.put(schema_name(CLUSTER, START + timedelta(seconds=300), "v2"), json.dumps(whole(micros(300), OTHER)).encode())
    ring.write(update(1, 1, 90, name=2))
    ring.finish_and_ship(305)
    ring.batch(310)
    ring.write(encode_mutation(create_table(SAME, micros(400)), SYSTEM))
    ring.write(update(1, 2, 410, amount=4))
    ring.store.put(schema_name(CLUSTER, START + timedelta(seconds=700), "v3"), json.dumps(whole(micros(700), OTHER)).encode())
    ring.finish_and_ship(705)
    sealed = ring.batch(710)
    assert told(ring.events(3)) == [("t", "truncate", None), ("c", None, (1, 2)), ("t", "drop", None)]
    assert ring.current() == {} == folded(ring.events())
    assert sealed.state[str(ORDERS.id)].ended


def test_a_captured_table_that_bypasses_the_log_is_in_the_seal_until_it_does_not(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.finish_and_ship(5)
    for number, mode in enumerate(("full", "off"), 1):
        row = {"keyspace_name": "shop", "table_name": "orders", "id": str(ORDERS.id), "cdc": True, "writetime": micros(-99)}
        at = START + timedelta(seconds=300 * number)
        known = {"taken_at": at.isoformat(), "schema_version": str(UUID(int=number)), "tables": [{**row, "transactional_mode": mode}]}
        ring.store.put(schema_name(CLUSTER, at, f"v{number}"), json.dumps(known).encode())
        sealed = ring.batch(310 * number)
        assert sealed.not_in_log == ({"shop.orders": "full"} if mode == "full" else {})


def test_a_captured_table_whose_cdc_goes_off_is_in_the_seal_until_it_is_on_again(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(5)
    for number, cdc in enumerate((True, False, True), 1):
        row = {"keyspace_name": "shop", "table_name": "orders", "id": str(ORDERS.id), "cdc": cdc, "writetime": micros(300 * number - 10)}
        at = START + timedelta(seconds=300 * number)
        known = {"taken_at": at.isoformat(), "schema_version": str(UUID(int=number)), "tables": [row]}
        ring.store.put(schema_name(CLUSTER, at, f"v{number}"), json.dumps(known).encode())
        sealed = ring.batch(310 * number)
        assert sealed.not_in_log == ({} if cdc else {"shop.orders": CDC_OFF})
    assert len(ring.current()) == 1, "its rows stay"


def test_a_schema_change_of_a_later_cassandra_makes_a_table(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    grown = replace(ORDERS, columns={**ORDERS.columns, "more": Column("more", "regular", "int")})
    ring.write(later(create_table(grown, micros(0)), {"lane": "frozen<map<text, text>>"}))
    row = Row((i32(1),), Liveness(micros(1)), cells=(Cell("more", micros(1), i32(7)),))
    mutation = Mutation((PartitionUpdate(ORDERS.id, i32(1), rows=(row,)),))
    ring.write(encode_mutation(mutation, Schema(tables={grown.id: grown})))
    ring.finish_and_ship(5)
    sealed = ring.batch(10)
    assert [row["more"] for row in _rows(ring, "shop", "orders")] == [7]
    assert [outcome.problems for outcome in sealed.segments] == [[]]
