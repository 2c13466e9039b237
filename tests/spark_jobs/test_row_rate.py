"""How fast a reader may read."""

from __future__ import annotations

import time

import pytest

from spark_jobs.cassandra_reader import RowRate
from writetime.config.cluster import SnapshotConfig


class Clock:
    """A clock that only sleeping and `work` move."""

    def __init__(self) -> None:
        self.now = 100.0

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "sleep", made.work)
    return made


@pytest.mark.parametrize(
    ("rate", "readers", "page_seconds", "expected"),
    [
        # Ten pages of 1000 rows, each of which takes so long.
        (10_000, 1, 0.0, 1.0),
        (10_000, 2, 0.0, 2.0),
        (10_000, 1, 0.05, 1.0),
        (10_000, 1, 0.3, 3.0),
        (None, 4, 0.01, 0.1),
    ],
)
def test_a_reader_keeps_to_its_share(clock: Clock, rate: int | None, readers: int, page_seconds: float, expected: float) -> None:
    found = RowRate(rate, readers)
    for _ in range(10):
        clock.work(page_seconds)
        found.wait(1000)
    assert clock.now - 100 == pytest.approx(expected, abs=0.06)


def test_a_pause_is_not_caught_up(clock: Clock) -> None:
    found = RowRate(1000, 1)
    found.wait(1000)
    clock.work(3600)
    began = clock.now
    for _ in range(5):
        found.wait(1000)
    assert clock.now - began >= 4


def test_there_is_a_limit_by_default() -> None:
    assert SnapshotConfig().rows_per_second == 10_000
