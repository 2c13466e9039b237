"""Which snapshots of a table expire when there are many, and when a session compacts which tables, without
Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.sinks import compaction, table_maintenance
from spark_jobs.sinks.compaction import Compaction, commits_since_compaction
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import Kept
from spark_jobs.sinks.table_maintenance import IN_USE, Snapshot, surplus
from writetime.pipeline.documents import Accounting

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)


def commits(*ages: timedelta) -> list[Snapshot]:
    """Snapshots that old, each on top of the one before; ids from 1 on."""
    return [Snapshot(number, number - 1 or None, NOW - age) for number, age in enumerate(ages, 1)]


def every(step: timedelta, since: timedelta) -> list[Snapshot]:
    return commits(*(since - step * number for number in range(since // step + 1)))


def left(snapshots: Sequence[Snapshot], *, current: int | None = None) -> list[Snapshot]:
    found = surplus(snapshots, snapshots[-1].id if current is None else current, NOW)
    gone = set(found)
    assert len(gone) == len(found)
    return [each for each in snapshots if each.id not in gone]


def test_a_session_of_two_days_leaves_its_last_hour_and_the_last_of_each_hour() -> None:
    found = every(timedelta(seconds=5), timedelta(days=2))
    stay = left(found)
    assert len(stay) == 1000
    assert {each for each in found if each.at > NOW - IN_USE} <= set(stay)
    hours = [each.at.replace(minute=0, second=0) for each in stay]
    assert len(set(hours)) == 2 * 24 + 1
    coarse = [at for at, hour in zip(stay, hours, strict=True) if hours.count(hour) == 1]
    assert len(coarse) > 40
    assert {(each.at.minute, each.at.second) for each in coarse} == {(59, 55)}
    assert left(stay) == stay


def limited(monkeypatch: pytest.MonkeyPatch, *, newest: int, most: int) -> None:
    monkeypatch.setattr(table_maintenance, "NEWEST", newest)
    monkeypatch.setattr(table_maintenance, "MOST", most)


def test_the_last_hour_stays_however_many_its_commits_are_and_history_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stay = left(every(timedelta(seconds=2), timedelta(days=1)))
    young = [each for each in stay if each.at > NOW - IN_USE]
    assert len(young) == 1800
    assert len(stay) == len(young) + 24
    # As many hours at most.
    limited(monkeypatch, newest=1, most=100)
    stay = left(every(timedelta(minutes=20), timedelta(days=90)))
    assert len([each for each in stay if each.at <= NOW - IN_USE]) == 99


def test_nothing_goes_that_is_few_or_that_nobody_wants_gone() -> None:
    few = every(timedelta(minutes=1), timedelta(hours=16))
    assert left(few) == few
    assert surplus([], None, NOW) == []


def test_the_newest_stay_whatever_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    found = every(timedelta(minutes=1), timedelta(hours=9))
    old = [each for each in found if each.at < NOW - timedelta(hours=5)]
    limited(monkeypatch, newest=3, most=1)
    stay = left(old)
    assert stay[-3:] == old[-3:]
    # Rolled back to an old one, which is what readers see.
    target = old[10]
    assert {old[8], old[9], target} <= set(left(old, current=target.id))


def test_what_was_rolled_back_does_not_stand_for_its_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, newest=1, most=3)
    hours = timedelta(hours=1)
    first, second = commits(5 * hours, 4 * hours)
    undone = Snapshot(3, second.id, NOW - 4 * hours + timedelta(minutes=10))
    after = Snapshot(4, second.id, NOW - 2 * hours)
    stay = left([first, second, undone, after])
    assert stay == [first, second, after]


@pytest.mark.parametrize(("operations", "count"), [(["append"] * 3, 3), (["append", "replace", "append"], 1), (["replace"], 0), ([], 0)])
def test_commits_are_counted_above_the_last_compaction(operations: list[str], count: int) -> None:
    assert commits_since_compaction([Kept(1, None, False, {"operation": operation}, NOW) for operation in operations]) == count


class Session:
    """The compaction of a session whose batches have events of these tables; each table got 3 commits before
    it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 0) -> None:
        self.compacted: list[str] = []
        self.now = 0.0
        self._took = seconds
        self._commits: Counter[str] = Counter()
        tables = [SimpleNamespace(label=label) for label in "abcd"]
        monkeypatch.setattr(compaction, "read_schema", lambda *_: SimpleNamespace(captured=lambda: tables))
        monkeypatch.setattr(compaction, "compact_if_due", self._compact)
        monkeypatch.setattr(compaction.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(Warehouse, "of", lambda *_: None)
        config: Any = SimpleNamespace(cluster=SimpleNamespace(name="c"))
        self.compaction = Compaction(config, cast(Any, None), cast(Any, None))

    def batch(self, *tables: str) -> list[str]:
        """Seal a batch with events of these tables; those that were compacted then."""
        self.compacted = []
        self._commits.update(tables)
        accounting = [Accounting(table=label, events=int(label in tables)) for label in "abcd"]
        sealed: Any = SimpleNamespace(accounting=accounting, number=1)
        if due := self.compaction.due(sealed):
            self.compaction.run(sealed, due)
        return self.compacted

    def _compact(self, _: object, table: Any) -> int:
        self.now += self._took
        if (since := 3 + self._commits[table.label]) < 5:
            return 5 - since
        self._commits[table.label] = -3
        self.compacted.append(table.label)
        return 5


def test_a_table_is_compacted_after_so_many_of_its_own_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(monkeypatch)
    assert [session.batch("a", "b"), session.batch("a"), session.batch("b")] == [[], ["a"], ["b"]]
    assert [session.batch("a") for _ in range(5)] == [[], [], [], [], ["a"]]
    assert session.batch("e") == []


def test_slow_compactions_take_turns_the_longest_overdue_first(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(monkeypatch, seconds=6)
    found = [session.batch("a", "b", "c") for _ in range(12)]
    assert all(len(each) <= 1 for each in found), "one in a batch, because it takes longer than it may"
    times = Counter(table for each in found for table in each)
    assert min(times[table] for table in "abc") >= 2, "none is left behind"
