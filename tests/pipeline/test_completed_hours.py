"""Completed hours: each is notified once all tables are complete up to its end, none twice, none too early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import pytest

from writetime.pipeline.completed_hours import HOUR, MOST, completed_hours, key_of, record_notified
from writetime.pipeline.documents import HeldTable, Watermark
from writetime.storage import layout, open_store
from writetime.storage.store import Store

CLUSTER = "ring"
MIDNIGHT = datetime(2026, 11, 25, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "bucket"))


def complete(store: Store, until: datetime | None, held: dict[UUID, HeldTable] | None = None) -> None:
    store.put(layout.complete(CLUSTER), Watermark(until=until, held=held or {}).to_bytes())


def keys(store: Store) -> list[str]:
    return [key_of(hour) for hour in completed_hours(store, CLUSTER)]


def notify(store: Store) -> list[str]:
    found = completed_hours(store, CLUSTER)
    record_notified(store, CLUSTER, found)
    return [key_of(hour) for hour in found]


def test_nothing_is_completed_while_nothing_is_known(store: Store) -> None:
    assert keys(store) == []
    complete(store, None)
    assert keys(store) == []


def test_first_the_last_hour_then_each_that_follows(store: Store) -> None:
    complete(store, MIDNIGHT + timedelta(hours=21, minutes=59))
    assert notify(store) == ["2026-11-25T20"]
    assert keys(store) == []
    complete(store, MIDNIGHT + timedelta(hours=22) - timedelta(microseconds=1))
    assert keys(store) == []
    complete(store, MIDNIGHT + timedelta(hours=22))
    # Until it is recorded, it is found again.
    assert keys(store) == keys(store) == ["2026-11-25T21"]
    assert notify(store) == ["2026-11-25T21"]
    complete(store, MIDNIGHT + timedelta(hours=25, minutes=3))
    assert notify(store) == ["2026-11-25T22", "2026-11-25T23", "2026-11-26T00"]
    assert keys(store) == []


def test_a_table_that_is_held_holds_the_hour(store: Store) -> None:
    complete(store, MIDNIGHT + timedelta(hours=3))
    assert notify(store) == ["2026-11-25T02"]
    held = HeldTable(until=MIDNIGHT + timedelta(hours=4, minutes=59), by="segment")
    complete(store, MIDNIGHT + timedelta(hours=9), {UUID(int=1): held})
    assert keys(store) == ["2026-11-25T03"]
    complete(store, MIDNIGHT + timedelta(hours=9), {UUID(int=1): HeldTable(until=None, by="segment")})
    assert keys(store) == []


def test_after_an_outage_not_more_than_two_days(store: Store) -> None:
    record_notified(store, CLUSTER, [MIDNIGHT])
    complete(store, MIDNIGHT + timedelta(days=30, minutes=30))
    found = completed_hours(store, CLUSTER)
    assert len(found) == MOST == 48
    assert found[-1] == MIDNIGHT + timedelta(days=30) - HOUR


def test_a_late_run_takes_nothing_back(store: Store) -> None:
    record_notified(store, CLUSTER, [MIDNIGHT, MIDNIGHT + HOUR])
    record_notified(store, CLUSTER, [MIDNIGHT])
    complete(store, MIDNIGHT + 2 * HOUR)
    assert keys(store) == []


def test_hours_are_those_of_utc(store: Store) -> None:
    """In India the hour changes at half past."""
    complete(store, datetime(2026, 11, 26, 2, 45, tzinfo=timezone(timedelta(hours=5, minutes=30))))
    assert keys(store) == ["2026-11-25T20"]
