"""A table that was dropped or put back is made again from its state, beside others: real Spark, Iceberg and Lance on made-up logs. The
cases are in `tests/proof/test_lost.py`, on doubles; here is what these stand in for."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from spark_jobs import ingest
from spark_jobs.session import spark_session
from spark_jobs.stages import merge_stream
from tests.spark_jobs import examples
from tests.spark_jobs.examples import NOW, THEN
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, delete_partition, delete_row, folded, insert, update
from tests.spark_jobs.test_merge_stream import stored
from writetime.pipeline import again
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import history, plan_ingest, store_clock
from writetime.pipeline.quarantine.rejected_tables import release_made_again


def run(ring: Ring, now: float, spark: SparkSession) -> Sealed:
    """The next batch; segments of it may be held. The session stays, with what Iceberg keeps of tables in its cache."""
    release_made_again(ring.store, CLUSTER)
    manifest = plan_ingest(ring.store, CLUSTER, now=START + timedelta(seconds=now))
    assert manifest is not None
    sealed = ingest.run(ring.config, manifest.number, spark)
    archive(ring.store, CLUSTER, sealed.number)
    return sealed


def ask(ring: Ring, *, with_events: bool) -> None:
    past = history(ring.store, CLUSTER)
    about = {"since": past.last, "sealed": past.sealed, "by": "me", "now": store_clock(ring.store, CLUSTER)}
    again.ask(ring.store, CLUSTER, [ORDERS], with_events=with_events, **about)  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_table_is_made_again_as_the_cluster_has_it(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    spark = spark_session(ring.config, "a session")
    lake = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
    for body in (insert(1, 1, 1, note=5, name=10), insert(1, 2, 1, amount=7), insert(2, 1, 1, name=20), insert(3, 1, 1, ttl=150, name=30)):
        ring.write(body)
    ring.write(insert(4, 1, 1, name=40, note=6))
    ring.finish_and_ship(10)
    first = run(ring, 100, spark)
    point = first.points[ORDERS.id].current
    held = lake.load_table("shop.orders")
    assert point is not None
    assert (point.batch, point.table, point.snapshot) == (1, str(held.metadata.table_uuid), held.current_snapshot().snapshot_id)  # type: ignore[union-attr]

    # Dropped: the batch goes on without it, and its updates wait.
    lake.drop_table("shop.orders")
    ring.write(delete_row(1, 2, 110))
    ring.write(update(2, 1, 111, amount=21))
    ring.finish_and_ship(120)
    (refused,) = run(ring, 130, spark).refused
    assert "shop.orders is not there, and holds batch 1" in refused.reason
    assert "writetime again shop.orders --rows" in refused.reason

    # Its rows alone: no events, but of the updates that have waited, in the batch after.
    ask(ring, with_events=False)
    third = run(ring, 140, spark)
    assert (third.refused, third.events) == ([], 0)
    assert ring.current() == {(1, 1): {"note": 5, "name": 10}, (1, 2): {"note": 5, "amount": 7}, **others(20, 30)}
    fourth = run(ring, 150, spark)
    assert (fourth.held, fourth.events) == ([], 2)
    assert folded(ring.events()) == ring.current() == {(1, 1): {"note": 5, "name": 10}, **others(20, 30, amount=21)}

    # The changes are lost: all rows are events, with what is new in the batch after them.
    lake.drop_table("shop__changes.orders")
    ask(ring, with_events=True)
    ring.write(delete_partition(4, 160))
    ring.write(update(1, 1, 161, name=11))
    ring.finish_and_ship(170)
    fifth = run(ring, 200, spark)
    events = ring.events(5)
    assert fifth.refused == []
    assert fifth.events == len(events)
    assert [(event["op"], event["reason"], event["key"]) for event in events[:1]] == [("t", "again", None)]
    told = [(event["key"]["id"], event["op"], event["reason"]) for event in events[1:]]
    assert sorted(told, key=str) == [
        (1, "c", "again"),
        (1, "u", None),
        (2, "c", "again"),
        (3, "c", "again"),
        (3, "d", "expiry"),
        (4, "c", "again"),
        (4, "d", "partition_delete"),
    ]
    assert folded(events[1:]) == ring.current() == {(1, 1): {"note": 5, "name": 11}, (2, 1): {"name": 20, "amount": 21}}
    spark.stop()


@pytest.mark.parametrize("at_hand", [1, 8192])
@pytest.mark.parametrize("with_events", [True, False])
def test_all_rows_of_a_shard_are_shown_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_hand: int, with_events: bool) -> None:
    monkeypatch.setattr(merge_stream, "_ROWS_AT_HAND", at_hand)
    rows = [examples.insert(examples.ORDERS, key, {"name": "n"}, line) for key in range(1, 4) for line in range(key)]
    shard = stored(tmp_path, examples.folded(map(examples.frame, rows)))
    written = examples.insert(examples.ORDERS, 3, {"name": "new"}, 1, timestamp=THEN + 10)
    about = {"since": NOW, "now": NOW + 1, "shards": {examples.ORDERS.id: shard}, "again": {examples.ORDERS.id.bytes: with_events}}
    found = examples.folded([examples.frame(written)], **about)  # type: ignore[arg-type]
    events = examples.of_kind(found, "event")
    told = [(each["op"], each["key"]["id"], each["key"]["line"], each["reason"]) for each in (pickle.loads(e["payload"]) for e in events)]
    shown = [("c", key, line, "again") for key in range(1, 4) for line in range(key)]
    assert told == sorted([*shown, ("u", 3, 1, None)], key=lambda each: (*each[1:3], each[3] is None))
    # For current rows, the last of each row counts; only what is numbered is an event.
    assert [event["last"] for event in events] == [each[1:] != (3, 1, "again") for each in told]
    assert [event["seq"] is None for event in events] == [not with_events and each[3] == "again" for each in told]
    (account,) = (pickle.loads(row["payload"]) for row in examples.of_kind(found, "account"))
    assert (account["events"], account.get("untold", 0)) == ((7, 0) if with_events else (1, 6))
    # The state changes by what is new only.
    assert len(examples.of_kind(found, "record")) == 1


def others(name: int, mortal: int, **more: int) -> dict[tuple[int, int], dict[str, int]]:
    return {(2, 1): {"name": name, **more}, (3, 1): {"name": mortal}, (4, 1): {"name": 40, "note": 6}}
