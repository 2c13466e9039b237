"""A run of verification over what is due: in rounds, each of which is on record before the next begins. No cluster,
no Spark: what a round finds is made up."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from spark_jobs import verify
from spark_jobs.verify import Options, Verification
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline import comparisons, verification
from writetime.pipeline.bootstrap import run as runs
from writetime.pipeline.bootstrap.run import HIGHEST, LOWEST, RangeDone
from writetime.pipeline.comparisons import WHOLE
from writetime.pipeline.documents import Sealed, ShardVersions
from writetime.pipeline.verification import Range, RangeResult, TableResult, VerifyReport
from writetime.storage import layout
from writetime.storage.store import Store

LARGE, SMALL = (
    Table("shop", name, UUID(int=number), {"id": Column("id", "partition_key", "int", 0)}, cdc=True)
    for number, name in enumerate(("large", "small"), 7)
)
ROUND = tuple[Table, list[Range] | None]


class MadeUp(Verification):
    """`bad`: rounds in which a table cannot be compared, or drifts."""

    def __init__(self, store: Store, options: Options, bad: dict[int, TableResult] | None = None) -> None:
        about: dict[str, Any] = {"pipeline": "p", "bucket": "/none"}
        about["cluster"] = {"name": "c", "datacenters": ["dc1"], "cql": {"contact_points": ["127.0.0.1"]}}
        self.config = PipelineConfig.model_validate(about)
        self.store, self.cluster, self.options, self.cql = store, "c", options, self.config.cluster.cql
        self.schema = Schema(tables={table.id: table for table in (LARGE, SMALL)})
        self._logged = verification.EVER
        self.bad = bad or {}
        self.rounds: list[list[ROUND]] = []

    def _compared(self, wanted: Iterable[ROUND]) -> list[TableResult]:
        self.rounds.append(list(wanted))
        found = {}
        for table, parts in self.rounds[-1]:
            ranges = [RangeResult(start=start, end=end, rows=5) for start, end in parts or [WHOLE]]
            found[table.id] = TableResult(table=table.full_name, table_id=table.id, ranges=ranges)
        if (bad := self.bad.get(len(self.rounds))) is not None and bad.table_id in found:
            found[bad.table_id] = bad.model_copy(update={"ranges": found[bad.table_id].ranges if bad.trouble else bad.ranges})
        return list(found.values())


@pytest.fixture
def store() -> MemoryStore:
    """A large table, of 100 million rows, and a small one, both read from the cluster."""
    store, now = MemoryStore(), datetime.now(UTC)
    state = {str(table.id): ShardVersions(buckets=[1]) for table in (LARGE, SMALL)}
    about: dict[str, Any] = {"sealed_at": now, "segments": [], "accounting": [], "rows": {"shop.large": 100_000_000}}
    store.put(layout.batch_object("c", 1, "sealed"), Sealed(number=1, kind="ingest", state=state, **about).to_bytes())
    store.put(layout.batch_object("c", 1, "manifest"), b"{}")
    for table in (LARGE, SMALL):
        run = runs.begin(store, "c", table, part=None, ranges=[WHOLE], consistency="ALL", now=now)
        runs.finish_range(store, run, 0, RangeDone(rows=1, frames=1, objects=[]))
        runs.update(store, run, now)
    return store


def complete(store: Store) -> set[str]:
    return {each.table for each in comparisons.read(store, "c").tables.values() if each.complete is not None}


def test_tables_are_compared_completely_once_and_then_by_shares(store: MemoryStore) -> None:
    job = MadeUp(store, Options(due=True))
    report = job.report()
    assert [[table.name for table, _ in each] for each in job.rounds] == [["large", "small"], ["large"], ["large"]]
    assert complete(store) == {"shop.large", "shop.small"}
    assert (report.ok, report.share, [len(each.ranges) for each in report.tables]) == (True, pytest.approx(1), [3, 1])
    assert VerifyReport.read(store, report.name) == report
    again = MadeUp(store, Options(due=True))
    assert again.report().share == pytest.approx(0.01)
    assert [len(each) for each in again.rounds] == [2]


def test_a_run_that_is_killed_is_continued_by_the_next_one(store: MemoryStore) -> None:
    class Killed(MadeUp):
        def _compared(self, wanted: Iterable[ROUND]) -> list[TableResult]:
            found = super()._compared(wanted)
            if len(self.rounds) == 3:
                raise KeyboardInterrupt
            return found

    with pytest.raises(KeyboardInterrupt):
        Killed(store, Options(due=True)).report()
    found = comparisons.read(store, "c").tables[LARGE.id]
    assert found.share == pytest.approx(2 / 3)
    assert store.read(found.report), "the report of what was compared is there"
    job = MadeUp(store, Options(due=True))
    job.report()
    assert [[table.name for table, _ in each] for each in job.rounds] == [["large", "small"]]
    assert complete(store) == {"shop.large", "shop.small"}


def test_a_run_ends_in_time(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "JOB_HOURS", 1e-9)
    job = MadeUp(store, Options(due=True))
    job.report()
    assert len(job.rounds) == 1
    assert complete(store) == {"shop.small"}


def test_a_table_that_cannot_be_compared_does_not_stop_the_others(store: MemoryStore) -> None:
    bad = {1: TableResult(table="shop.large", table_id=LARGE.id, trouble="Unavailable")}
    job = MadeUp(store, Options(due=True), bad=bad)
    report = job.report()
    assert [[table.name for table, _ in each] for each in job.rounds] == [["large", "small"]]
    assert complete(store) == {"shop.small"}
    assert not report.ok


def test_the_failure_names_tables_counts_and_commands(store: MemoryStore) -> None:
    ranges = [RangeResult(start=start, end=end, rows=7, drift=2 * (start == -5)) for start, end in ((LOWEST, -5), (-5, 9), (9, HIGHEST))]
    drifts = TableResult(table="shop.small", table_id=SMALL.id, ranges=ranges)
    report = MadeUp(store, Options(due=True, tables=["shop.small"]), bad={1: drifts}).report()
    text = verification.in_short(report, "/etc/pipeline.yaml")
    assert "shop.small: drift in 2 of 21 rows. To repair:\n" in text
    assert "\nwritetime bootstrap --config /etc/pipeline.yaml --table shop.small --token-range=-5:9\n" in text
    assert comparisons.read(store, "c").tables[SMALL.id].drift_rows == 2
    # Compared again by the next run, whatever its share.
    ((small,),) = MadeUp(store, Options(due=True, tables=["shop.small"]))._rounds({SMALL.id}, {})
    assert small[1] is not None
    assert [len(small[1]), small[1][1]] == [2, (-5, 9)]


def test_nothing_that_was_not_read_is_due(store: MemoryStore) -> None:
    for run in list(runs.runs(store, "c")):
        store.delete(run.name)
    job = MadeUp(store, Options(due=True))
    assert (job.report().tables, job.rounds) == ([], [])
    by_hand = MadeUp(store, Options())
    by_hand.report()
    assert len(by_hand.rounds[0]) == 2
    assert complete(store) == set(), "before its first reading it proves nothing"
