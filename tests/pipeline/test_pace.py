"""How the size of batches follows what they take."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipeline.planning import plan_ingest
from tests.pipeline.test_incoming import CLUSTER, run, ship
from tests.storage.memory import MemoryStore
from writetime.pipeline import pace
from writetime.pipeline.documents import Manifest, SegmentInput
from writetime.pipeline.pace import FIRST, KEPT, LEAST, Measure, Pace, fitted

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
GB = 10**9
TARGET = 120.0

rates = st.floats(min_value=2e6, max_value=2e10)
targets = st.floats(min_value=5.0, max_value=7200.0)
measures = st.lists(
    st.builds(Measure, batch=st.integers(1, 10**6), segments=st.just(1), bytes=st.integers(1, 2**45), seconds=st.floats(0.001, 1e6)),
    min_size=1,
    max_size=KEPT,
)


def manifest(number: int, size: int, kind: str = "ingest", namespace: str | None = None) -> Manifest:
    segment = SegmentInput(object="cdc/c/dc/n/CommitLog-7-1.log", generation=1, size=size, crc32c=1, sealed_at=NOW)
    return Manifest.model_validate(
        {
            "number": number,
            "kind": kind,
            "cluster": "c",
            "created_at": NOW,
            "now": 1,
            "base": 0,
            "segments": [segment.model_dump()],
            "namespace": namespace,
        }
    )


class Cluster:
    """Takes `fixed` seconds a batch and a second for each `rate` bytes; a backlog that never ends waits."""

    def __init__(self, rate: float, fixed: float = 0.0, target: float = TARGET) -> None:
        self.store, self.rate, self.fixed, self.target, self.number = MemoryStore(), rate, fixed, target, 0

    @property
    def limit(self) -> int:
        return pace.read_pace(self.store, "c").limit(self.target)

    def batch(self, *, times: float = 1.0, size: int | None = None) -> float:
        """The seconds of the next batch, `times` as long as it should take."""
        self.number += 1
        size = self.limit if size is None else size
        seconds = times * (self.fixed + size / self.rate)
        pace.note(self.store, manifest(self.number, size), seconds, self.target)
        return seconds

    def settle(self, batches: int = 25) -> None:
        for _ in range(batches):
            self.batch()


def test_the_first_batch() -> None:
    assert Pace().limit(TARGET) == FIRST
    assert Pace().limit(5) == FIRST


@settings(max_examples=examples(50))
@given(rates, targets)
def test_batches_come_to_take_their_time(rate: float, target: float) -> None:
    cluster = Cluster(rate, target=target)
    cluster.settle()
    if rate * target > LEAST:
        assert cluster.batch() == pytest.approx(target, rel=0.05)
    else:
        assert cluster.limit == LEAST


@settings(max_examples=examples(50))
@given(rates, st.floats(min_value=0.0, max_value=300.0), targets)
def test_a_time_that_is_too_short_does_not_shrink_batches_to_nothing(rate: float, fixed: float, target: float) -> None:
    cluster = Cluster(rate, fixed, target)
    cluster.settle(40)
    for _ in range(10):
        limit, seconds = cluster.limit, cluster.batch()
        if limit > LEAST:
            # It takes about its time, or about as long for its bytes as it takes anyway. Where the fixed time is near the target, it
            # is hard to tell which of the two is due.
            assert seconds <= 1.15 * target or seconds - fixed >= 0.25 * fixed
            assert seconds <= 2.1 * max(target, 2 * fixed)


@settings(max_examples=examples(50))
@given(measures, targets)
def test_the_limit_has_bounds(found: list[Measure], target: float) -> None:
    limit = Pace(measures=found).limit(target)
    assert limit >= LEAST
    assert limit <= max(LEAST, 2 * max(measure.bytes for measure in found))
    assert limit >= min(LEAST, found[-1].bytes / 2)
    fixed, each = fitted(found)
    assert fixed >= 0
    assert each > 0


@settings(max_examples=examples(50))
@given(rates, st.floats(min_value=0.0, max_value=20.0), st.floats(min_value=0.01, max_value=1000.0))
def test_one_batch_that_hung_changes_nothing(rate: float, fixed: float, times: float) -> None:
    cluster = Cluster(rate, fixed)
    cluster.settle(40)
    before = cluster.limit
    cluster.batch(times=times)
    assert cluster.limit == pytest.approx(before, rel=0.05)
    cluster.batch()
    assert cluster.limit == pytest.approx(before, rel=0.05)


@settings(max_examples=examples(50))
@given(rates, st.floats(min_value=0.1, max_value=10.0))
def test_a_cluster_that_became_faster_or_slower_is_followed(rate: float, times: float) -> None:
    cluster = Cluster(rate)
    cluster.settle()
    cluster.rate *= times
    cluster.settle(12)
    if cluster.rate * TARGET > LEAST:
        assert cluster.batch() == pytest.approx(TARGET, rel=0.1)


def test_small_batches_say_nothing() -> None:
    cluster = Cluster(GB)
    cluster.settle()
    before, known = cluster.limit, pace.read_pace(cluster.store, "c")
    for _ in range(100):
        # Nothing waits: a batch each few seconds, one of which hangs.
        cluster.batch(size=40 << 20)
        cluster.batch(size=40 << 20, times=10_000)
    assert cluster.limit == before
    assert pace.read_pace(cluster.store, "c") == known


def test_a_step_is_at_most_a_factor_of_two() -> None:
    cluster = Cluster(1e12)
    limits = []
    for _ in range(6):
        limits.append(cluster.limit)
        cluster.batch()
    assert limits == [FIRST * 2**step for step in range(6)]
    slow = Cluster(1e6)
    slow.batch()
    assert slow.limit == FIRST // 2


def test_other_batches_are_not_measured() -> None:
    store = MemoryStore()
    pace.note(store, manifest(1, FIRST, kind="replay"), 10, TARGET)
    pace.note(store, manifest(1, FIRST, namespace="shadow"), 10, TARGET)
    pace.note(store, manifest(1, FIRST), 10, None)
    pace.note(store, manifest(1, 0), 10, TARGET)
    assert pace.read_pace(store, "c") == Pace()
    assert store.calls.count(("put", "maintained/c.pace.json")) == 0


def test_a_batch_that_is_run_again_counts_once() -> None:
    store = MemoryStore()
    for seconds in (10.0, 20.0):
        pace.note(store, manifest(7, FIRST), seconds, TARGET)
    # The bucket was put back, and the batches after it are gone.
    pace.note(store, manifest(3, FIRST), 5.0, TARGET)
    assert [(measure.batch, measure.seconds) for measure in pace.read_pace(store, "c").measures] == [(3, 5.0)]


def test_the_limit_follows_what_was_measured_and_a_planned_batch_keeps_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FIRST", 40)
    monkeypatch.setattr(pace, "LEAST", 10)
    store = MemoryStore()
    names = [ship(store, number % 3, number, 10) for number in range(30)]
    first = plan_ingest(store, CLUSTER, now=NOW, batch_seconds=100.0)
    assert first is not None
    assert [segment.object for segment in first.segments] == names[:4]
    # Whatever is measured, or configured, meanwhile: a batch that is open is run as it was planned.
    pace.note(store, first, 1.0, 100.0)
    assert plan_ingest(store, CLUSTER, now=NOW, max_segments=1, batch_seconds=5.0) == first
    run(store, first)
    second = plan_ingest(store, CLUSTER, now=NOW, batch_seconds=100.0)
    assert second is not None
    assert [segment.object for segment in second.segments] == names[4:12]
    pace.note(store, second, 1000.0, 100.0)
    pace.note(store, second.model_copy(update={"number": 3}), 1000.0, 100.0)
    run(store, second)
    third = plan_ingest(store, CLUSTER, now=NOW, batch_seconds=100.0)
    assert third is not None
    assert len(third.segments) == 4
    run(store, third)
    # Without a time, and without the document, as before.
    fourth = plan_ingest(store, CLUSTER, now=NOW)
    assert fourth is not None
    assert len(fourth.segments) == 14
