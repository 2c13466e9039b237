"""What rings do to a batch job: segments that are late, writes of one replica, nodes that come and go,
truncates, expiry, purges, replays.

Made-up logs (tests.spark_jobs.synthetic), real Spark, Iceberg and Lance. After each batch the events fold
into the current table."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from spark_jobs import maintain
from tests.spark_jobs.synthetic import (
    CLUSTER,
    START,
    Ring,
    delete_partition,
    delete_row,
    folded,
    insert,
    micros,
    update,
)
from writetime.errors import BatchError
from writetime.pipeline.documents import Sealed, total
from writetime.pipeline.planner import plan_ingest, plan_maintain, plan_replay

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]

DAY = 86_400


def told(events: list[dict[str, Any]]) -> list[tuple[str, str | None, tuple[int, int] | None]]:
    """Op, reason and row of each."""
    return [(e["op"], e["reason"], e["key"] and (e["key"]["id"], e["key"]["line"])) for e in events]


def replay(ring: Ring, now: float) -> Sealed:
    """All that the archive holds, once more."""
    hours = timedelta(hours=1)
    manifest = plan_replay(ring.store, CLUSTER, start=START - hours, end=START + 9 * hours, now=START + timedelta(seconds=now))
    assert manifest is not None
    return ring.run(manifest)


def test_late_and_partial_and_a_ring_that_changes(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a", "b", "c")
    ring.write(insert(1, 1, 1, name=10))
    ring.write(update(1, 1, 5, name=50), "b")
    ring.write(insert(2, 1, 3, name=30), "c")
    ring.write(update(1, 1, 2, name=20, amount=2), "c")
    late = ring.finish("c", 10)
    ring.finish_and_ship(10, "a", "b")
    ring.batch(100)
    events = ring.events(1)
    assert [(e["after"]["name"], sorted(e["nodes"]), e["replicas_expected"]) for e in events] == [(10, ["a", "b"], 3), (50, ["b"], 3)]

    # A fourth node joins and is streamed what it is to hold, a fifth takes the place of c, whose last segment
    # is still on its way.
    ring.join("d").log(insert(1, 1, 1, name=10), update(1, 1, 5, name=50))
    del ring.nodes["c"]
    ring.join("e").log(insert(1, 1, 1, name=10))
    ring.write(insert(3, 1, 60, name=70))
    ring.finish_and_ship(90)
    sealed = ring.batch(200)
    assert told(ring.events(2)) == [("c", None, (3, 1))]
    assert sorted(ring.events(2)[0]["nodes"]) == ["a", "b", "d", "e"]
    account = next(each for each in sealed.accounting if each.table == "shop.orders")
    assert (account.updates_in, account.applied, account.duplicate, account.superseded) == (7, 1, 4, 2)

    # Hours late: what others had says nothing new, an older value loses where there is a newer, what c alone
    # had comes in.
    ring.ship(late)
    ring.batch(9000)
    events = ring.events(3)
    assert told(events) == [("u", None, (1, 1)), ("c", None, (2, 1))]
    assert [(e["ts_micro"], e["nodes"]) for e in events] == [(micros(2), ["c"]), (micros(3), ["c"])]
    expected = {(1, 1): {"name": 50, "amount": 2}, (2, 1): {"name": 30}, (3, 1): {"name": 70}}
    assert ring.current() == expected == folded(ring.events())

    sealed = replay(ring, 9100)
    assert len(sealed.segments) == 7
    assert sealed.events == 0
    assert ring.current() == expected


def test_a_truncate_whose_records_come_one_by_one(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a", "b", "c")
    for line in (1, 2, 3):
        ring.write(insert(1, line, line, name=line, note=9))
    ring.finish_and_ship(10)
    sealed = ring.batch(50)
    table = next(iter(sealed.state))
    assert set(ring.current()) == {(1, 1), (1, 2), (1, 3)}

    ring.write(insert(1, 4, 90, name=4))
    ring.truncate(100, "a")
    ring.truncate(100.2, "b", "c")
    record_of_b = ring.finish("b", 101)
    ring.write(insert(1, 5, 105, name=5))
    # Written after the TRUNCATE with a writetime before it: the ring shows it.
    ring.write(insert(2, 6, 7, name=6), "b")
    ring.finish_and_ship(110, "a", "b")
    sealed = ring.batch(120)
    assert sealed.state[table].generation == 1
    # Nothing says yet whether b's TRUNCATE was before or after it: what cannot be decided stays.
    assert told(ring.events(2)) == [("t", "truncate", None), ("c", None, (1, 5)), ("c", None, (2, 6))]
    assert ring.events(2)[0]["ts_micro"] == micros(100)
    expected = {(1, 5): {"name": 5}, (2, 6): {"name": 6}}
    assert ring.current() == expected == folded(ring.events())

    # b's own record comes: its frames past its place stand, whatever their writetime.
    ring.ship(record_of_b)
    ring.finish_and_ship(115, "c")
    sealed = ring.batch(130)
    assert sealed.state[table].generation == 2
    accounted = total(sealed.accounting)
    assert accounted.read_again == 3, "row 5 of a and b and row 6 of b, which the batch before had read"
    assert accounted.updates_in - accounted.read_again == sum(segment.updates for segment in sealed.segments)
    assert told(ring.events(3)) == [("t", "truncate", None), ("c", None, (1, 5)), ("c", None, (2, 6))]
    assert ring.current() == expected == folded(ring.events())

    sealed = replay(ring, 200)
    assert (sealed.events, sealed.state[table].generation) == (0, 2)
    assert ring.current() == expected


def test_expiry_without_segments_purge_and_what_a_replay_may_not_do(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, ttl=30, name=1))
    ring.write(insert(1, 2, 1, name=2))
    ring.write(insert(2, 1, 1, name=3))
    ring.write(delete_row(1, 3, 2))
    ring.finish_and_ship(5)
    sealed = ring.batch(10)
    assert sealed.next_expiry == START.timestamp() + 31
    assert plan_ingest(ring.store, CLUSTER, now=START + timedelta(seconds=40)) is None, "not one batch a second"
    sealed = ring.batch(80)
    assert (sealed.segments, sealed.next_expiry) == ([], None)
    assert told(ring.events(2)) == [("d", "expiry", (1, 1))]
    assert ring.events(2)[0]["ts_micro"] == micros(31)
    assert plan_ingest(ring.store, CLUSTER, now=START + timedelta(days=1)) is None
    assert ring.current() == {(1, 2): {"name": 2}, (2, 1): {"name": 3}} == folded(ring.events())

    ring.write(delete_partition(2, 90))
    ring.finish_and_ship(95)
    # A repair logs again, days later, what was deleted.
    ring.write(insert(2, 1, 1, name=3))
    ring.finish_and_ship(25 * DAY)
    ring.batch(30 * DAY)
    manifest = plan_maintain(ring.store, CLUSTER, now=START + timedelta(days=40))
    assert manifest is not None
    purged = maintain.run(ring.config, manifest.number)
    assert purged == maintain.run(ring.config, manifest.number)
    assert (purged.kind, purged.events, purged.horizon) == ("maintain", 0, int(START.timestamp()) + 20 * DAY)
    assert set(ring.remembered()) == {(1, 2)}, "the tombstones and what has expired are gone, nothing else is"
    with pytest.raises(BatchError, match="rows that they deleted would reappear"):
        replay(ring, 40 * DAY)
    days = timedelta(days=1)
    manifest = plan_replay(ring.store, CLUSTER, start=START + 24 * days, end=START + 26 * days, now=START + 40 * days)
    assert manifest is not None
    with capture_logs() as logs:
        sealed = ring.run(manifest)
    account = next(each for each in sealed.accounting if each.table == "shop.orders")
    assert (sealed.events, account.updates_in, account.superseded) == (0, 1, 1), "what has deleted it is purged, and it stays deleted"
    assert [(log["table"], log["updates"]) for log in logs if log["event"].startswith("left out")] == [("shop.orders", 1)]
    assert ring.current() == {(1, 2): {"name": 2}}

    ring.write(update(1, 2, 40 * DAY, amount=7))
    ring.finish_and_ship(40 * DAY)
    ring.batch(40 * DAY + 1)
    assert ring.current() == {(1, 2): {"name": 2, "amount": 7}} == folded(ring.events())
