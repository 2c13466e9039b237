"""Voiding a batch at each step of its commits, drivers of it that are late, and what the next batch makes of
it, with Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import ingest, maintain
from spark_jobs.session import spark_session
from spark_jobs.sinks import compaction, table_maintenance
from spark_jobs.sinks.avro_files import to_files
from spark_jobs.sinks.compaction import compact_if_due
from spark_jobs.sinks.iceberg import Fence, Size, Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.table_maintenance import merge_small, tidy
from tests.spark_jobs.pipeline import dies_at
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, delete_row, folded, insert, update
from writetime.config.kafka import FilesConfig
from writetime.errors import BatchBusy, BatchError
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Manifest
from writetime.pipeline.planner import history, plan_maintain, plan_replay
from writetime.pipeline.void import void
from writetime.storage import layout as names
from writetime.storage import open_store

pytestmark = [pytest.mark.spark, pytest.mark.drivers, pytest.mark.timeout(900), pytest.mark.thorough]

STEPS = ("_commit_changes", "_commit_state", "_commit_current", "_seal")
"""What a batch dies before: nothing is committed, changes are, state is, all is."""
TABLE, CHANGES = "lake.shop.orders", "lake.shop__changes.orders"
LATE_EVENTS = f"INSERT INTO {CHANGES} (batch, ordinal, table_id, op) SELECT 2, ordinal, table_id, op FROM {CHANGES}"


def begun(folder: Path) -> Ring:
    """A ring with one sealed batch."""
    ring = Ring.create(folder, "a", "b")
    for line in (1, 2, 3):
        ring.write(insert(1, line, line, name=line))
    ring.finish_and_ship(10)
    ring.batch(100)
    return ring


def more(ring: Ring) -> None:
    """Writes for a second batch, and what these make of the table."""
    ring.write(update(1, 1, 111, amount=7))
    ring.write(delete_row(1, 2, 112))
    ring.write(insert(2, 1, 113, name=5))
    ring.finish_and_ship(120)


AFTER_MORE = {(1, 1): {"name": 1, "amount": 7}, (1, 3): {"name": 3}, (2, 1): {"name": 5}}


def give_up(ring: Ring, number: int, cluster: str = CLUSTER) -> None:
    void(ring.store, cluster, number, reason="it cannot be finished", by="ann")


@contextmanager
def session(ring: Ring) -> Iterator[SparkSession]:
    spark = spark_session(ring.config, "test")
    try:
        yield spark
    finally:
        spark.stop()


def commits_late(spark: SparkSession, manifest: Manifest, statement: str, **about: str) -> None:
    """What a driver commits that looked at the fence before the void, and was held up until now."""
    told = {"writetime.batch": str(manifest.number), "writetime.batch-id": str(manifest.id), "writetime.step": "rows", **about}
    for name, value in told.items():
        spark.conf.set(f"spark.sql.iceberg.snapshot-property.{name}", value)
    spark.sql(statement)
    for name in told:
        spark.conf.unset(f"spark.sql.iceberg.snapshot-property.{name}")


def snapshots(ring: Ring, table: str = TABLE) -> list[dict[str, Any]]:
    with session(ring) as spark:
        return [row.asDict(recursive=True) for row in spark.table(f"{table}.snapshots").orderBy("committed_at").collect()]


@pytest.mark.parametrize("step", STEPS)
def test_what_it_had_committed_is_taken_back_and_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    ring = begun(tmp_path)
    first, before = ring.current(), ring.events()
    more(ring)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, step):
        ring.run(given_up)
    assert bool(ring.events(2)) == (step != STEPS[0]), "what it is about"
    assert (ring.current() != first) == (step == "_seal")
    give_up(ring, 2)
    with pytest.raises(BatchError, match="voided by ann: it cannot be finished"):
        ingest.run(ring.config, 2)
    ring.write(insert(3, 1, 205, name=6))
    ring.finish_and_ship(210)
    sealed = ring.batch(300)
    assert (sealed.number, sealed.voided, sealed.events) == (3, {2: given_up.id}, 4)
    assert ring.current() == AFTER_MORE | {(3, 1): {"name": 6}} == folded(ring.events())
    assert ring.events(2) == []
    assert ring.events(1) == before
    assert sealed.rows == {"shop.orders": 4}
    # The state goes on from the base: what it holds by now shows in what comes next.
    ring.write(update(1, 1, 311, amount=8))
    ring.write(update(2, 1, 312, amount=9))
    ring.finish_and_ship(320)
    assert ring.batch(400).voided == {2: given_up.id}
    assert ring.current() == folded(ring.events())
    assert ring.current()[2, 1] == {"name": 5, "amount": 9}
    taken_back = [each["summary"] for each in snapshots(ring, CHANGES) if each["summary"].get("writetime.step") == "void"]
    assert [(told["writetime.batch"], told["writetime.void"]) for told in taken_back] == [("3", "2")][: step != STEPS[0]], "once"


def test_without_anything_new_the_next_batch_takes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    first = ring.current()
    more(ring)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_seal"):
        ring.run(given_up)
    give_up(ring, 2)
    for segment in given_up.segments:
        ring.store.delete(segment.object)
    empty = ring.batch(300)
    assert (empty.number, len(empty.segments), empty.events) == (3, 0, 0)
    assert ring.current() == first == folded(ring.events())
    assert empty.rows == {"shop.orders": 3}
    assert history(ring.store, CLUSTER).sealed == empty


def test_the_first_batch_of_all_leaves_tables_without_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    ring.finish_and_ship(10)
    given_up = ring.plan(100)
    with dies_at(monkeypatch, "_seal"):
        ring.run(given_up)
    give_up(ring, 1)
    for segment in given_up.segments:
        ring.store.delete(segment.object)
    ring.batch(200)
    assert (ring.current(), ring.events()) == ({}, [])
    ring.write(insert(2, 1, 201, name=2))
    for body in reversed(Ring.create(tmp_path / "again", "a").nodes["a"].bodies):
        ring.nodes["a"].bodies.insert(0, body)
    ring.finish_and_ship(210)
    ring.batch(300)
    assert ring.current() == {(2, 1): {"name": 2}} == folded(ring.events())


def test_a_truncate_that_it_had_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generation of the state, and the table that was replaced whole."""
    ring = begun(tmp_path)
    ring.truncate(111)
    ring.write(insert(5, 1, 113, name=5))
    ring.finish_and_ship(120)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_seal"):
        ring.run(given_up)
    assert ring.current() == {(5, 1): {"name": 5}}
    give_up(ring, 2)
    ring.batch(300)
    assert ring.current() == {(5, 1): {"name": 5}} == folded(ring.events())
    assert ring.events(2) == []
    assert ring.remembered() == [(5, 1)]


@pytest.mark.parametrize("when", ["before the next batch", "after it"])
def test_a_driver_that_passed_the_fence_before_the_void_changes_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    ring = begun(tmp_path)
    more(ring)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_commit_current"):
        ring.run(given_up)
    give_up(ring, 2)
    if when == "after it":
        # Which leaves the table as it is: nothing that the late driver does is in conflict.
        for segment in given_up.segments:
            ring.store.delete(segment.object)
        ring.batch(300)
    with session(ring) as spark:
        commits_late(spark, given_up, f"DELETE FROM {TABLE} WHERE line = 1")
        commits_late(spark, given_up, f"INSERT INTO {TABLE} (id, line, name) VALUES (9, 9, 9)")
        commits_late(spark, given_up, LATE_EVENTS, **{"writetime.step": ""})
    assert (9, 9) in ring.current()
    assert ring.events(2)
    ring.write(insert(3, 1, 405, name=6))
    ring.finish_and_ship(410)
    sealed = ring.batch(500)
    expected = {(1, line): {"name": line} for line in (1, 2, 3)} if when == "after it" else AFTER_MORE
    assert ring.current() == expected | {(3, 1): {"name": 6}} == folded(ring.events())
    assert ring.events(2) == []
    assert sealed.voided == {2: given_up.id}


@pytest.mark.advice("Run it again: that takes those rows back.")
def test_rows_that_come_in_below_the_next_batchs_own_make_that_one_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    more(ring)
    given_up = ring.plan(200)
    give_up(ring, 2)
    merge = Warehouse.commit_current

    def overtaken(self: Warehouse, *given: Any) -> Size:
        commits_late(self.spark, given_up, f"INSERT INTO {TABLE} (id, line, name) VALUES (9, 9, 9)")
        return merge(self, *given)

    manifest = ring.plan(300)
    with monkeypatch.context() as patch:
        patch.setattr(Warehouse, "commit_current", overtaken)
        with pytest.raises(BatchBusy, match="concurrent write to the table"):
            ring.run(manifest)
    assert (9, 9) in ring.current()
    ring.run(manifest)
    assert ring.current() == AFTER_MORE == folded(ring.events())


def test_a_rival_that_rolls_the_table_back_takes_no_rows_from_a_batch_that_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run has written on top of late rows, another takes both back: the first must not seal what is not
    there any more."""
    ring = begun(tmp_path)
    more(ring)
    given_up = ring.plan(200)
    give_up(ring, 2)
    manifest = ring.plan(300)
    merge, settle = Warehouse.commit_current, Warehouse.is_settled

    def overtaken(self: Warehouse, *given: Any) -> Size:
        commits_late(self.spark, given_up, f"INSERT INTO {TABLE} (id, line, name) VALUES (9, 9, 9)")
        return merge(self, *given)

    def rival(self: Warehouse, table: Any, voided: Any, batch: int) -> bool:
        assert self.take_back_voided(table, voided, batch)
        return settle(self, table, voided, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Warehouse, "commit_current", overtaken)
        patch.setattr(Warehouse, "is_settled", rival)
        with pytest.raises(BatchBusy):
            ring.run(manifest)
    assert history(ring.store, CLUSTER).open
    ring.run(manifest)
    assert ring.current() == AFTER_MORE == folded(ring.events())


def test_a_rollback_undoes_nothing_that_came_after_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    more(ring)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_seal"):
        ring.run(given_up)
    give_up(ring, 2)
    manifest = ring.plan(300)
    roll_back = IcebergTable.roll_back

    def another_writes(self: IcebergTable, seen: int, target: int | None, properties: Any, check: Any) -> None:
        def checked() -> None:
            check()
            # The table that the rollback begins with is fixed by now.
            self._spark.sql(f"INSERT INTO {TABLE} (id, line, name) VALUES (8, 8, 8)")

        roll_back(self, seen, target, properties, checked)

    with session(ring) as spark:
        warehouse = Warehouse(spark, "lake", fence=Fence(ring.store, CLUSTER), batch_id=manifest.id)
        monkeypatch.setattr(IcebergTable, "roll_back", another_writes)
        with pytest.raises(BatchBusy, match="concurrent write to the table"):
            warehouse.take_back_voided(ORDERS, {2: given_up.id}, 3)
    assert (8, 8) in ring.current()


def test_a_compaction_above_its_rows_is_taken_back_and_rows_of_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    more(ring)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_seal"):
        ring.run(given_up)
    give_up(ring, 2)
    with session(ring) as spark:
        spark.sql(f"CALL lake.system.rewrite_data_files(table => '{TABLE}', options => map('rewrite-all', 'true'))")
    assert snapshots(ring)[-1]["operation"] == "replace"
    with session(ring) as spark:
        spark.sql(f"INSERT INTO {TABLE} (id, line, name) VALUES (8, 8, 8)")
    manifest = ring.plan(300)
    with pytest.raises(BatchError, match="rows of batch 2, which was voided, and rows of batch of somebody else stand above them"):
        ring.run(manifest)
    with session(ring) as spark:
        target = snapshots_of(spark)[-2]
        spark.sql(f"CALL lake.system.rollback_to_snapshot('{TABLE}', {target})")
    ring.run(manifest)
    assert ring.current() == AFTER_MORE == folded(ring.events())


def snapshots_of(spark: SparkSession, table: str = TABLE) -> list[int]:
    return [row.snapshot_id for row in spark.table(f"{table}.snapshots").orderBy("committed_at").collect()]


def test_maintenance_takes_back_before_snapshots_expire_and_can_be_voided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    monkeypatch.setattr(table_maintenance, "NEWEST", 1)
    layout = ring.config.warehouse.model_copy(update={"keep_snapshots_days": 0})
    ring.config = ring.config.model_copy(update={"warehouse": layout})
    first = ring.current()
    more(ring)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_seal"):
        ring.run(given_up)
    give_up(ring, 2)
    now = START + timedelta(seconds=300)
    assert plan_maintain(ring.store, CLUSTER, now=now) is not None
    give_up(ring, 3)
    with pytest.raises(BatchError, match="voided"):
        maintain.run(ring.config, 3)
    manifest = plan_maintain(ring.store, CLUSTER, now=now)
    assert manifest is not None
    assert (manifest.number, manifest.base) == (4, 1)
    sealed = maintain.run(ring.config, 4)
    assert sorted(sealed.voided) == [2, 3]
    assert ring.current() == first == folded(ring.events())
    assert len(snapshots(ring)) == 1, "what was rolled back has expired"
    ring.batch(400)
    assert ring.current() == AFTER_MORE == folded(ring.events())


def test_small_files_merged_between_batches_hide_nothing_that_has_to_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the snapshots before the voided batch one is left, and a compaction stands above what its late driver
    writes."""
    ring = begun(tmp_path)
    monkeypatch.setattr(compaction, "COMMITS", 5)
    monkeypatch.setattr(table_maintenance, "NEWEST", 1)
    monkeypatch.setattr(table_maintenance, "MOST", 1)
    for at in range(5):
        ring.write(insert(4, at, 101 + at, name=at))
        ring.finish_and_ship(110 + at)
        ring.batch(130 + at)
    before = ring.current()
    with session(ring) as spark:
        compact(spark)
        # Two hours later nobody reads the older ones.
        tidy(Warehouse(spark, "lake"), [ORDERS], now=datetime.now(UTC) + timedelta(hours=2))
        assert all(len(snapshots_of(spark, name)) <= 2 for name in (TABLE, CHANGES))
    more(ring)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_commit_current"):
        ring.run(given_up)
    give_up(ring, given_up.number)
    with session(ring) as spark:
        commits_late(spark, given_up, f"INSERT INTO {TABLE} (id, line, name) VALUES (9, 9, 9)")
        # Five files of a partition at least are merged.
        for name in (TABLE, CHANGES):
            merge_small(spark, name)
            spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    assert ring.events(given_up.number)
    assert (9, 9) in ring.current()
    sealed = ring.batch(300)
    assert ring.current() == folded(ring.events())
    # One row of `before` is deleted by then.
    assert ring.current() == {key: row for key, row in before.items() if key != (1, 2)} | AFTER_MORE
    assert sealed.voided == {given_up.number: given_up.id}
    assert ring.events(given_up.number) == []


def compact(spark: SparkSession) -> None:
    """As a session does, which comes to five commits."""
    before = snapshots_of(spark)
    assert compact_if_due(Warehouse(spark, "lake"), ORDERS) == compaction.COMMITS
    assert len(snapshots_of(spark)) > len(before), "it was due"


def test_a_replay_into_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    more(ring)
    ring.batch(200)
    hours: dict[str, Any] = {"start": START, "end": START + timedelta(hours=1), "now": START + timedelta(seconds=300), "namespace": "look"}
    manifest = plan_replay(ring.store, CLUSTER, **hours)
    assert manifest is not None
    chain = names.shadow_chain(CLUSTER, "look")
    with dies_at(monkeypatch, "_seal"):
        ingest.run(ring.config.shadow("look"), manifest.number)
    give_up(ring, manifest.number, chain)
    again = plan_replay(ring.store, CLUSTER, **hours)
    assert again is not None
    sealed = ingest.run(ring.config.shadow("look"), again.number)
    assert sealed.voided == {manifest.number: manifest.id}
    with session(ring) as spark:
        found = spark.sql("SELECT id, line, name, amount FROM lake.shop__look.orders ORDER BY id, line").collect()
        batches = spark.sql("SELECT DISTINCT batch FROM lake.shop__look__changes.orders").collect()
    assert [tuple(row) for row in found] == [(1, 1, 1, 7), (1, 3, 3, None), (2, 1, 5, None)]
    assert [row.batch for row in batches] == [again.number]
    assert ring.current() == AFTER_MORE


def test_records_in_quarantine_are_told_of_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    ring.write(b"\x00 is no mutation")
    ring.finish_and_ship(120)
    given_up = ring.plan(200)
    with dies_at(monkeypatch, "_seal"):
        ring.run(given_up)

    def records() -> list[tuple[int, int | None]]:
        with session(ring) as spark:
            found = spark.sql("SELECT batch, settled_in FROM lake._writetime.quarantine ORDER BY name").collect()
        return [(row.batch, row.settled_in) for row in found]

    assert records() == [(2, None), (2, None)]
    give_up(ring, 2)
    for segment in given_up.segments:
        ring.store.delete(segment.object)
    ring.batch(300)
    assert records() == []


def test_files_hold_no_events_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = begun(tmp_path)
    more(ring)
    given_up = ring.plan(200)
    give_up(ring, 2)
    sealed = ring.batch(300)
    archive(ring.store, CLUSTER, 3)
    files = FilesConfig(url=str(tmp_path / "files"))
    with session(ring) as spark:
        commits_late(spark, given_up, LATE_EVENTS, **{"writetime.step": ""})
        warehouse = Warehouse(spark, "lake")
        shown = warehouse.open_changes(ORDERS, sealed.voided)
        assert shown is not None
        assert {row.batch for row in shown.rows.select("batch").distinct().collect()} == {1, 3}
        done = to_files(ring.config, files, ring.store, spark, 0, sealed)
    assert done.events == len(ring.events(1)) + len(ring.events(3))
    assert not [info.name for info in open_store(files.url).list("") if "/0000000002-" in info.name]
