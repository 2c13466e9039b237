"""A replay whose segments are packed after it was planned, with real Spark: nothing is missing, and nothing
is news."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs import pack_archive
from tests.spark_jobs.pipeline import Pipeline
from writetime.pipeline.archive_packing import read_shelved
from writetime.pipeline.documents import total
from writetime.pipeline.planner import plan_replay
from writetime.storage import layout, segment_object

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.thorough]


def test_a_replay_that_is_packed_under_its_feet(tmp_path: Path) -> None:
    pipeline = Pipeline.create(tmp_path)
    pipeline.stage()
    pipeline.ship()
    first = pipeline.batch()
    store, cluster = pipeline.store, pipeline.cluster
    plain = list(store.list(layout.archive_prefix(cluster)))
    hours = [hour for info in plain if (hour := layout.archive_hour(info.name)) is not None]
    end = max(hours) + timedelta(hours=1)
    manifest = plan_replay(store, cluster, start=min(hours), end=end, now=datetime.now(UTC))
    assert manifest is not None
    assert [segment.object for segment in manifest.segments] == [info.name for info in plain]

    shelved = pack_archive.run(pipeline.config)
    packed = list(store.list(layout.archive_prefix(cluster)))
    assert [info.name for info in packed] == [layout.packed(info.name) for info in plain]
    assert [segment_object.content_of(info) for info in packed] == [(info.size, info.crc32c) for info in plain]
    assert all(pipeline.ledger(info.name).archived_as == info.name for info in packed)
    work = shelved.last.packed
    assert (work.objects, work.before, work.after) == (len(plain), sum(i.size for i in plain), sum(i.size for i in packed))
    assert read_shelved(store, cluster) == shelved

    again = pipeline.run(manifest)
    assert (again.events, [outcome.problems for outcome in again.segments]) == (0, [[]] * len(plain))
    assert total(again.accounting).updates_in == total(first.accounting).updates_in
