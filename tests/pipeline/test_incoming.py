"""What planning chooses of a backlog that it does not list whole."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipeline.planning import plan_ingest
from tests.storage.memory import MemoryStore
from writetime.pipeline import incoming
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import LedgerEntry, Manifest, Sealed, SegmentOutcome
from writetime.pipeline.incoming import LeftOut, Most, read_incoming
from writetime.pipeline.planner import seal
from writetime.storage import layout
from writetime.storage.store import Store

CLUSTER = "ring"
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""When the store's clock begins."""


def ref(node: int, number: int) -> layout.SegmentRef:
    name = layout.NodeName(CLUSTER, f"dc{node % 2}", f"host-{node}")
    return layout.SegmentRef(name, layout.SegmentName(1_777_000_000_000 + number, 7))


def ship(store: Store, node: int, number: int, size: int = 1) -> str:
    name = ref(node, number).incoming
    # The store's clock goes on a second with each object.
    store.put(name, b"x" * size, metadata={"sealed_at": (BEGIN + timedelta(seconds=number)).isoformat()})
    return name


def look(
    store: Store, most: int, held: dict[str, LedgerEntry | None] | None = None, bytes_: int | None = None
) -> tuple[list[str], LeftOut, bool]:
    left = LeftOut()
    found = read_incoming(store, CLUSTER, held or {}, NOW, Most(most, bytes_), left, largest=1000)
    return [segment.object for segment in found.segments], left, found.backlog


def run(store: Store, manifest: Manifest) -> None:
    outcomes = [SegmentOutcome(object=each.object) for each in manifest.segments]
    seal(store, CLUSTER, Sealed(number=manifest.number, kind="ingest", sealed_at=NOW, segments=outcomes, accounting=[], state={}))
    archive(store, CLUSTER, manifest.number)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MANY", 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(st.lists(st.integers(0, 6), min_size=6, max_size=60), st.integers(1, 12), st.sampled_from([1, 3, 1000]))
def test_a_backlog_is_taken_in_the_order_of_its_uploads(nodes: list[int], most: int, page: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incoming, "PAGE", page)
        store = MemoryStore()
        names = [ship(store, node, number) for number, node in enumerate(nodes)]
        assert look(store, most)[0] == names[:most]
        taken: list[str] = []
        while (manifest := plan_ingest(store, CLUSTER, now=NOW, max_segments=most)) is not None:
            taken += [segment.object for segment in manifest.segments]
            run(store, manifest)
    assert taken == names


def test_a_batch_takes_what_fits() -> None:
    store = MemoryStore()
    sizes = [10, 20, 5, 500, 1, 1, 1, 1]
    names = [ship(store, number % 3, number, size) for number, size in enumerate(sizes)]
    for limit, expected in [(1, 1), (10, 1), (30, 2), (35, 3), (534, 3), (535, 4), (10_000, 8)]:
        found, _, backlog = look(store, 100, bytes_=limit)
        assert (found, backlog) == (names[:expected], True)
    assert look(store, 2, bytes_=10_000)[0] == names[:2]


def test_without_a_backlog_the_nodes_times_count() -> None:
    store = MemoryStore()
    names = [ship(store, number, 9 - number, 10) for number in range(5)]
    found, left, backlog = look(store, 2, bytes_=20)
    assert (found, backlog) == ([names[4], names[3]], False)
    assert set(left.waiting) == {ref(number, 0).node.path for number in range(5)}


def test_what_no_batch_may_take_is_passed_over() -> None:
    store = MemoryStore()
    held = {ship(store, 0, number): None for number in range(20)}
    later = replace(ref(1, 30), segment=layout.SegmentName(30, 99))
    store.put(later.incoming, b"x")
    store.put(ref(2, 31).incoming, b"x" * 2000)
    store.put(f"cdc/{ref(2, 0).node.path}/notes.txt", b"x")
    names = [ship(store, node, 40 + number) for number, node in enumerate((3, 0, 4, 0, 5, 1))]
    assert look(store, 100, {**held})[0] == names
    store.put(f"cdc/{ref(3, 0).node.path}/conflict-0000000a/{ref(3, 40).segment.filename}", b"y")
    found, left, _ = look(store, 100, {**held})
    assert found == [name for name in names if name != ref(3, 40).incoming]
    assert left.nodes >= {ref(node, 0).node.path for node in (1, 2, 3)}
    assert store.head(ref(3, 40).conflicts) is not None


def test_completeness_stands_still_and_parts_wait_while_a_backlog_drains() -> None:
    store = MemoryStore()
    names = [ship(store, number % 3, number) for number in range(8)]
    store.put(ref(0, 100).part(0, 3), b"xyz", metadata={"logical_to": "3", "sealed_at": NOW.isoformat()})
    first = plan_ingest(store, CLUSTER, now=NOW, max_segments=4)
    assert first is not None
    assert [segment.object for segment in first.segments] == names[:4]
    run(store, first)
    second = plan_ingest(store, CLUSTER, now=NOW, max_segments=100)
    assert second is not None
    assert {segment.object for segment in second.segments} == {*names[4:], ref(0, 100).growing}
