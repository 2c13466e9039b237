"""A table of which nothing is known, with very many frames: kept by range, settled by range. Real Spark and Iceberg."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schema.examples import create_table
from tests.spark_jobs.synthetic import CLUSTER, Ring, insert, micros
from tests.spark_jobs.test_quarantine_table import LATE, pieces, run, unknown
from writetime import frame_ranges
from writetime.batch.report import batch_text
from writetime.columns import Rules
from writetime.commitlog.encode import encode_mutation
from writetime.quarantine import release, retry
from writetime.schema.model import Schema
from writetime.schema.system import TABLES
from writetime.status.batches import Batches
from writetime.status.quarantine import quarantined

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_many_frames_of_an_unknown_table_are_one_piece_until_they_come_in(tmp_path: Path) -> None:
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
    assert [row["name"] for row in pieces(ring)] == [problem.quarantined_as]
    assert "300 frames" in batch_text(sealed)
    assert sealed.held == [outcome.object]
    refused = retry(ring.store, CLUSTER, quarantined(Batches(ring.store, CLUSTER))[0])
    assert list(refused.refused) == [problem.quarantined_as]

    ring.write(encode_mutation(create_table(LATE, micros(20)), Schema(tables=TABLES)))
    ring.finish_and_ship(30)
    assert run(ring, 200).held == [outcome.object]
    assert release(ring.store, CLUSTER, Rules()) == [outcome.object]
    third = run(ring, 300)
    assert third.held == []
    assert [(each.quarantined_as, each.frames) for each in third.segments[0].settled] == [(problem.quarantined_as, 300)]
    assert {account.table: account.applied for account in third.accounting if account.applied} == {"shop.late": 300}
    assert [row["settled_in"] for row in pieces(ring)] == [third.number]

    # A person may still ask for the piece alone: its frames are in the table, and change nothing.
    again = retry(ring.store, CLUSTER, quarantined(Batches(ring.store, CLUSTER))[0])
    assert (len(again.objects), again.refused) == (1, {})
    fourth = run(ring, 400)
    assert (fourth.events, fourth.held, fourth.segments[0].frames) == (0, [], 300)
