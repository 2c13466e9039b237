"""A table of which nothing or not enough is known, with very many frames: kept by range, settled by range.
Real Spark and Iceberg."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import ingest
from spark_jobs.sinks.quarantine import STORED
from tests.cassandra.schema.examples import add_columns, create_table
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, START, Ring, i32, insert, micros
from tests.spark_jobs.test_quarantine_table import LATE, records, run, unknown
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema
from writetime.cassandra.schema.system_tables import TABLES
from writetime.events.masking import Rules
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.batch_report import batch_text
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import seal
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.record import list_records
from writetime.pipeline.quarantine.retry import release, retry

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.thorough]


def test_many_frames_of_an_unknown_table_are_one_record_until_they_come_in(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    for key in range(300):
        ring.write(unknown(key))
    ring.finish_and_ship(10)
    sealed = run(ring, 100)
    (outcome,) = sealed.segments
    (problem,) = outcome.problems
    assert (problem.frames, problem.table_id) == (300, LATE.id)
    assert {account.table: account.quarantined for account in sealed.accounting if account.quarantined} == {str(LATE.id): 300}
    assert all(account.balanced for account in sealed.accounting)
    assert problem.quarantined_as is not None
    assert list(frame_ranges.unpack(ring.store.read(problem.quarantined_as))) == [unknown(key) for key in range(300)]
    assert [row["name"] for row in records(ring)] == [problem.quarantined_as]
    assert "300 frames" in batch_text(sealed)
    assert sealed.held == [outcome.object]
    refused = retry(ring.store, CLUSTER, list_records(Batches(ring.store, CLUSTER))[0])
    assert list(refused.refused) == [problem.quarantined_as]

    ring.write(encode_mutation(create_table(LATE, micros(20)), Schema(tables=TABLES)))
    ring.finish_and_ship(30)
    assert run(ring, 200).held == [outcome.object]
    assert release(ring.store, CLUSTER, Rules()) == [outcome.object]
    third = run(ring, 300)
    assert third.held == []
    assert [(each.quarantined_as, each.frames) for each in third.segments[0].settled] == [(problem.quarantined_as, 300)]
    assert {account.table: account.applied for account in third.accounting if account.applied} == {"shop.late": 300}
    assert [row["settled_in"] for row in records(ring)] == [third.number]

    # A person may still ask for the record alone: its frames are in the table, and change nothing.
    again = retry(ring.store, CLUSTER, list_records(Batches(ring.store, CLUSTER))[0])
    assert (len(again.objects), again.refused) == (1, {})
    fourth = run(ring, 400)
    assert (fourth.events, fourth.held, fourth.segments[0].frames) == (0, [], 300)


WIDER = replace(ORDERS, columns={**ORDERS.columns, "extra": Column("extra", "regular", "blob")})


def undecodable(key: int, size: int = 8) -> bytes:
    row = Row((i32(1),), Liveness(micros(key)), cells=(Cell("extra", micros(key), key.to_bytes(size, "big")),))
    return encode_mutation(Mutation((PartitionUpdate(WIDER.id, i32(key), rows=(row,)),)), Schema(tables={WIDER.id: WIDER}))


def test_many_frames_that_a_captured_table_cannot_decode_are_one_record_in_each_log(tmp_path: Path) -> None:
    """Their bytes are put by workers that read the segments again: through Spark go their places."""
    ring = Ring.create(tmp_path, "a", "b")
    ring.write(insert(1, 1, 1, name=1))
    frames = [undecodable(key) for key in range(300)] + [undecodable(300, 2 * frame_ranges.BROUGHT)]
    for body in frames:
        ring.write(body)
    ring.finish_and_ship(10)
    sealed = run(ring, 100)
    assert len(sealed.segments) == 2
    for outcome in sealed.segments:
        (problem,) = outcome.problems
        assert (problem.kind, problem.frames, problem.table_id) == ("UnknownColumn", 301, ORDERS.id)
        assert list(frame_ranges.unpack(ring.store.read(str(problem.quarantined_as)))) == frames
    accounts = {account.table: account for account in sealed.accounting}
    assert (accounts["shop.orders"].quarantined, accounts["shop.orders"].applied) == (602, 1)
    kept = {info.name: info.crc32c for info in ring.store.list("quarantine/") if info.name.endswith(".bin")}
    assert len(kept) == 2

    ring.write(encode_mutation(add_columns(WIDER, ["extra"], micros(400)), Schema(tables=TABLES)))
    ring.finish_and_ship(410)
    run(ring, 500)
    assert len(release(ring.store, CLUSTER, Rules())) == 2
    third = run(ring, 600)
    assert third.held == []
    assert sorted(each.frames for outcome in third.segments for each in outcome.settled) == [301, 301]
    assert {account.table: account.applied for account in third.accounting if account.applied} == {"shop.orders": 301}


def test_a_driver_that_wakes_after_the_seal_puts_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a")
    for key in range(1, 200):
        ring.write(undecodable(key))
    ring.finish_and_ship(10)
    manifest = ring.plan(100)
    real, rival = ingest.tasks, []

    def sealed_meanwhile(*given: Any) -> Any:
        if given[-1] is STORED and not rival:
            store = ring.store
            rival.append(seal(store, CLUSTER, Sealed(number=1, kind="ingest", sealed_at=START, segments=[], accounting=[], state={})))
        return real(*given)

    monkeypatch.setattr(ingest, "tasks", sealed_meanwhile)
    assert ingest.run(ring.config, manifest.number) == rival[0]
    kept = [info.name for info in ring.store.list("quarantine/")]
    assert len(kept) == 1
    assert kept[0].endswith("-199.bin"), "bytes without a note say nothing"
