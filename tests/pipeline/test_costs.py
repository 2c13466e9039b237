"""The cost of a day: the difference of two seals, found among many, and divided among tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from tests.storage.memory import MemoryStore
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.costs import NOT_CAPTURED, TableCost, costs
from writetime.pipeline.documents import Accounting, Manifest, Sealed, SegmentInput, StageCost, Totals, Void
from writetime.storage import layout

CLUSTER = "c"
START = datetime(2026, 5, 4, tzinfo=UTC)
"""The midnight before batch 1."""
TODAY = START + timedelta(days=3, hours=12)
SEGMENT = SegmentInput(object="cdc/c/dc/h/CommitLog-7-1.log", generation=1, size=100, crc32c=1, sealed_at=START)


class Chain:
    """Batches that each cost the same: 3 s of CPU for all tables, 1 s for orders alone."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.number = 0
        self.totals: Totals | None = Totals()
        self.base = 0

    def batch(self, at: datetime, *, orders: int = 30, others: int = 10, void: bool = False) -> None:
        self.number += 1
        accounts = [
            Accounting(table="shop.orders", updates_in=orders, applied=orders, events=orders),
            Accounting(table="shop.carts", updates_in=10, applied=10, events=1),
            *(Accounting(table=name, updates_in=others, not_ours=others) for name in ("system.local", "system.peers")),
        ]
        made = [StageCost(stage="scan", cpu_seconds=3, requests=7, objects=1, bytes=100)]
        made.append(StageCost(stage="changes", table="shop.orders", cpu_seconds=1, objects=2, bytes=50))
        if self.totals is not None and not void:
            self.totals = self.totals.and_of("ingest", [SEGMENT], [], accounts, made)
        sealed = Sealed(number=self.number, kind="ingest", sealed_at=at, segments=[], accounting=[], state={}, totals=self.totals)
        if void:
            empty = {"totals": None, "void": Void(reason="r", by="b", base=self.base)}
            sealed = sealed.model_copy(update=empty)
        else:
            self.base = self.number
        manifest = Manifest(number=self.number, kind="ingest", cluster=CLUSTER, created_at=at, now=0, base=self.base, segments=[])
        for what, document in (("manifest", manifest), ("sealed", sealed)):
            self.store.put(layout.batch_object(CLUSTER, self.number, what), document.to_bytes())

    def of(self, days: int = 7, now: datetime = TODAY) -> dict[date, int]:
        return {day.day: day.batches for day in costs(Batches(self.store, CLUSTER), days=days, now=now)}


@pytest.fixture
def chain() -> Chain:
    """Ten batches on the first day, none on the second, five on the third, one today."""
    made = Chain()
    for hour in range(10):
        made.batch(START + timedelta(hours=hour))
    for hour in range(5):
        made.batch(START + timedelta(days=2, hours=hour))
    made.batch(START + timedelta(days=3))
    return made


def test_each_batch_counts_on_the_day_of_its_seal(chain: Chain) -> None:
    assert chain.of() == {date(2026, 5, 7): 1, date(2026, 5, 6): 5, date(2026, 5, 4): 10}
    assert chain.of(days=1) == {date(2026, 5, 7): 1}
    today, third, first = costs(Batches(chain.store, CLUSTER), days=7, now=TODAY)
    assert [day.all.cpu_seconds for day in (today, third, first)] == [4, 20, 40]
    assert {cost.stage: (cost.requests, cost.objects, cost.bytes) for cost in third.stages} == {
        "scan": (35, 5, 500),
        "changes": (0, 10, 250),
    }


def test_what_all_tables_share_is_divided_by_their_updates(chain: Chain) -> None:
    (today,) = costs(Batches(chain.store, CLUSTER), days=1, now=TODAY)
    # 30, 10 and 20 of 60 updates, of 3 s.
    assert today.tables == (
        TableCost("shop.orders", updates=30, events=30, own=1, shared=1.5, objects=2, bytes=50),
        TableCost(NOT_CAPTURED, updates=20, events=0, own=0, shared=1, objects=0, bytes=0),
        TableCost("shop.carts", updates=10, events=1, own=0, shared=0.5, objects=0, bytes=0),
    )
    assert sum(table.cpu_seconds for table in today.tables) == today.all.cpu_seconds


def test_a_report_reads_few_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain()
    for number in range(2000):
        chain.batch(START + timedelta(minutes=2 * number))
    read: list[str] = []
    plain = MemoryStore.read
    monkeypatch.setattr(MemoryStore, "read", lambda self, name, **how: read.append(name) or plain(self, name, **how))
    assert chain.of(days=3, now=START + timedelta(days=2, hours=12)) == {
        date(2026, 5, 6): 560,
        date(2026, 5, 5): 720,
        date(2026, 5, 4): 720,
    }
    assert len(read) < 50


def test_voided_batches_have_the_sums_of_their_base(chain: Chain) -> None:
    chain.batch(START + timedelta(days=3, hours=1), void=True)
    assert chain.of(days=1) == {date(2026, 5, 7): 1}
    chain.batch(START + timedelta(days=3, hours=2))
    assert chain.of(days=1) == {date(2026, 5, 7): 2}


def test_days_whose_seals_are_gone_are_left_out(chain: Chain) -> None:
    for number in range(1, 11):
        chain.store.delete(layout.batch_object(CLUSTER, number, "sealed"))
    found = chain.of()
    assert date(2026, 5, 4) not in found
    assert found[date(2026, 5, 7)] == 1


def test_sums_of_a_rebuild_begin_anew(chain: Chain) -> None:
    chain.totals = Totals()
    chain.batch(START + timedelta(days=3, hours=1))
    chain.batch(START + timedelta(days=3, hours=2))
    assert chain.of(days=1) == {date(2026, 5, 7): 2}


def test_batches_of_earlier_versions_have_none() -> None:
    chain = Chain()
    chain.totals = None
    chain.batch(START)
    assert chain.of() == {}
    chain.totals = Totals()
    chain.batch(TODAY)
    assert chain.of() == {TODAY.date(): 1}
    assert costs(Batches(MemoryStore(), CLUSTER), days=7, now=TODAY) == []


def test_publishing_counts_with_the_next_seal_once() -> None:
    def publish(seconds: float) -> list[StageCost]:
        return [StageCost(stage="publish", cpu_seconds=seconds)]

    chain = Chain()
    # Something was published before batches noted it.
    chain.totals = Totals(publishing=publish(100)).and_publishing(publish(100))
    chain.batch(START)
    assert chain.totals is not None
    chain.totals = chain.totals.and_publishing(publish(102))
    chain.batch(TODAY)
    chain.totals = chain.totals.and_publishing(publish(102)).and_publishing(publish(105))
    chain.batch(TODAY + timedelta(hours=1))
    (today, first) = costs(Batches(chain.store, CLUSTER), days=7, now=TODAY)
    assert [cost.cpu_seconds for cost in today.stages if cost.stage == "publish"] == [5]
    assert [cost.stage for cost in first.stages] == ["scan", "changes"]
