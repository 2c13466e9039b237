"""What waits for a person costs neither seals nor planning: one object lists it, and the ledger is asked of
what was cleared only."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any

import pytest

from tests.node_objects import schema_name
from tests.storage.memory import Fault, MemoryStore
from writetime.cassandra.schema.history import SchemaLearner
from writetime.errors import StoreUnavailable
from writetime.events.masking import Rules
from writetime.pipeline.archiver import archive, mark_for_retry, release, whereabouts
from writetime.pipeline.documents import (
    HELD_HERE,
    LedgerEntry,
    Manifest,
    Problem,
    Sealed,
    SegmentOutcome,
)
from writetime.pipeline.planner import history, plan_ingest, read_sealed, seal
from writetime.pipeline.quarantine.retry import release as release_by_schema
from writetime.pipeline.retention import batches as prunable
from writetime.storage import layout

CLUSTER = "c"
NOW = datetime.now(UTC)


class Counted:
    """A store that counts its calls by kind, and how many of them were under way at once."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner, self.calls, self.lock = inner, Counter[tuple[str, str]](), Lock()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)

        def counted(*args: Any, **named: Any) -> Any:
            with self.lock:
                self.calls[name, str(args[0]).split("/")[0]] += 1
            return call(*args, **named)

        return counted if name in ("list", "names", "head", "read", "put", "copy", "delete") else call


def ref(number: int) -> layout.SegmentRef:
    return layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", f"host-{number % 7}"), layout.SegmentName(1_777_000_000_000 + number, 7))


def ship(store: MemoryStore, *numbers: int) -> None:
    for number in numbers:
        store.put(ref(number).incoming, b"x%d" % number, metadata={"sealed_at": "2026-05-04T12:00:00+00:00"})


def plan(store: Any) -> Manifest | None:
    return plan_ingest(store, CLUSTER, now=NOW, max_segments=10_000)


def run(store: Any, *bad: int) -> Sealed:
    """A batch over what has come in; of `bad` ones a frame cannot be used."""
    manifest = plan(store)
    assert manifest is not None
    wrong = {ref(number).incoming for number in bad}
    problem = Problem(kind="UnknownTable", position=1, size=1, message="m", quarantined_as="q")
    outcomes = [SegmentOutcome(object=each.object, problems=[problem] if each.object in wrong else []) for each in manifest.segments]
    taken_in = {each.object for each in manifest.segments}
    before = history(store, CLUSTER).sealed
    held = sorted({*(set(before.held if before else ()) - taken_in), *wrong})
    sealed = Sealed(number=manifest.number, kind="ingest", sealed_at=NOW, segments=outcomes, accounting=[], state={}, held=held)
    assert seal(store, CLUSTER, sealed) == sealed
    archive(store, CLUSTER, sealed.number)
    return sealed


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_seal_does_not_grow_with_what_is_held(store: MemoryStore) -> None:
    ship(store, *range(1000))
    first = run(store, *range(1000))
    ship(store, 1000)
    second = run(store)
    name = layout.batch_object(CLUSTER, 2, "sealed")
    assert len(store.read(name)) < 2000
    assert second.held == first.held
    for read in (read_sealed(store, CLUSTER, 2), history(store, CLUSTER).sealed, Sealed.read(store, name)):
        assert read is not None
        assert (len(read.held), read.held_in) == (1000, None)
    bare = Sealed.read(store, name, held=False)
    assert bare is not None
    assert bare.held == []
    assert bare.held_in is not None
    assert layout.batch_number(bare.held_in) == 2


@pytest.mark.parametrize("count", [0, 1, HELD_HERE])
def test_a_few_are_listed_in_the_seal_itself(store: MemoryStore, count: int) -> None:
    """As seals of earlier releases have them all."""
    ship(store, *range(count + 1))
    run(store, *range(count))
    assert not [info for info in store.list("batches/") if "held-" in info.name]
    assert Sealed.model_validate_json(store.read(layout.batch_object(CLUSTER, 1, "sealed"))).held == sorted(
        ref(n).incoming for n in range(count)
    )


def test_a_long_list_in_a_seal_of_an_earlier_release_is_read(store: MemoryStore) -> None:
    held = [ref(number).incoming for number in range(500)]
    sealed = Sealed(number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={}, held=held)
    store.put(layout.batch_object(CLUSTER, 1, "sealed"), sealed.to_bytes())
    assert read_sealed(store, CLUSTER, 1) == sealed


def test_who_seals_second_gets_the_first_seal_with_all_it_holds(store: MemoryStore) -> None:
    one = Sealed(
        number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={}, held=[ref(number).incoming for number in range(300)]
    )
    other = one.model_copy(update={"held": one.held[:200]})
    assert seal(store, CLUSTER, one) == one
    assert seal(store, CLUSTER, other) == one


def test_what_a_person_has_released_is_held_no_longer(store: MemoryStore) -> None:
    ship(store, *range(200))
    run(store, *range(200))
    release(store, CLUSTER, ref(7).incoming, "lost for good")
    found = history(store, CLUSTER).sealed
    assert found is not None
    assert len(found.held) == 199
    assert ref(7).incoming not in found.held


def test_what_became_of_a_segment_that_is_held_no_longer(store: MemoryStore) -> None:
    """For a failed task of an earlier run that is cleared again."""
    ship(store, 1, 2)
    run(store, 1, 2)
    names = [ref(number).incoming for number in (1, 2)]
    assert [whereabouts(store, CLUSTER, name) for name in names] == [None, None]
    release(store, CLUSTER, names[0], "lost for good")
    mark_for_retry(store, names[1])
    assert whereabouts(store, CLUSTER, names[1]) is None
    run(store)
    released, archived = (whereabouts(store, CLUSTER, name) for name in names)
    assert released is not None
    assert released.startswith("It was released at ")
    assert "(lost for good), and is cdc_archive/" in released
    assert archived is not None
    assert archived.startswith(f"Batch 2 of {CLUSTER} has read it, and it is cdc_archive/")
    # One that somebody has deleted is not in the archive.
    ship(store, 3)
    run(store, 3)
    store.delete(ref(3).incoming)
    assert whereabouts(store, CLUSTER, ref(3).incoming) is None


def test_a_release_that_was_interrupted_leaves_nothing_behind_when_it_is_repeated(store: MemoryStore) -> None:
    ship(store, 1)
    run(store, 1)
    store.fail(Fault.UNAVAILABLE, on="delete", prefix="cdc/")
    with pytest.raises(StoreUnavailable):
        release(store, CLUSTER, ref(1).incoming, "lost for good")
    done = release(store, CLUSTER, ref(1).incoming, "lost for good")
    assert (store.head(ref(1).incoming), store.head(done.archived_as) is None) == (None, False)


def test_planning_asks_the_ledger_of_what_was_cleared_only(store: MemoryStore) -> None:
    ship(store, *range(500))
    run(store, *range(500))
    counted = Counted(store)
    ship(store, 500)
    assert [each.object for each in run(counted).segments] == [ref(500).incoming]
    counted.calls.clear()
    mark_for_retry(store, ref(7).incoming)
    manifest = plan(counted)
    assert manifest is not None
    assert [each.object for each in manifest.segments] == [ref(7).incoming]
    assert counted.calls["read", "ledger"] == 1
    assert sum(counted.calls.values()) < 40


def test_what_was_cleared_stays_out_once_it_was_tried_again(store: MemoryStore) -> None:
    ship(store, 1, 2)
    run(store, 1)
    mark_for_retry(store, ref(1).incoming)
    assert run(store, 1).held == [ref(1).incoming]
    assert plan(store) is None
    mark_for_retry(store, ref(1).incoming)
    assert run(store).held == []
    assert plan(store) is None


def test_notes_of_what_was_tried_again_go(store: MemoryStore) -> None:
    ship(store, 1, 2)
    run(store, 1, 2)
    mark_for_retry(store, ref(1).incoming)
    run(store, 1)
    later = NOW + timedelta(hours=3)
    assert [info.name for info in store.list("retries/")] == [ref(1).retry]
    assert plan_ingest(store, CLUSTER, now=later) is None
    assert [info.name for info in store.list("retries/")] == []


def test_archiving_and_the_ledger_go_on_at_once(store: MemoryStore) -> None:
    under_way, most, lock = 0, 0, Lock()
    copied = store.copy

    def copy(*args: Any, **named: Any) -> Any:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        try:
            pause.wait(0.05)
            return copied(*args, **named)
        finally:
            with lock:
                under_way -= 1

    from threading import Event

    pause = Event()
    store.copy = copy  # type: ignore[method-assign]
    ship(store, *range(50))
    run(store)
    assert most > 4
    assert all(LedgerEntry.read(store, ref(number).ledger).state == "archived" for number in range(50))  # type: ignore[union-attr]


def test_archiving_goes_on_where_one_segment_stopped_it(store: MemoryStore) -> None:
    ship(store, *range(30))
    copied = store.copy

    def copy(source: str, *args: Any, **named: Any) -> Any:
        if source == ref(4).incoming:
            raise OSError("broken")
        return copied(source, *args, **named)

    store.copy = copy  # type: ignore[method-assign]
    with pytest.raises(OSError, match="broken"):
        run(store)
    assert ref(4).incoming in {info.name for info in store.list("cdc/")}
    store.copy = copied  # type: ignore[method-assign]
    archive(store, CLUSTER, 1)
    assert list(store.list("cdc/")) == []


def test_the_list_goes_with_its_batch_after_the_seal(store: MemoryStore) -> None:
    ship(store, *range(200))
    sealed = run(store, *range(200))
    ((*_, before, last),) = prunable(store, CLUSTER, sealed.model_copy(update={"number": 10**6}), NOW + timedelta(days=1), 10**6)
    assert before.name.endswith("/sealed.json")
    assert "/held-" in last.name


def test_what_waits_for_a_schema_is_looked_at_once_for_each_thing_that_is_new(store: MemoryStore) -> None:
    ship(store, *range(200))
    run(store, *range(200))
    store.put(layout.batch_object(CLUSTER, 1, "schema"), SchemaLearner().to_json().encode())
    for expected in (200, 0, 0):
        counted = Counted(store)
        assert release_by_schema(counted, CLUSTER, Rules()) == []  # type: ignore[arg-type]
        assert counted.calls["read", "ledger"] == expected
    change = {"keyspaces": [{"keyspace_name": "k", "writetime": 1}], "tables": []}
    store.put(schema_name(CLUSTER, NOW, "v"), json.dumps(change).encode())
    counted = Counted(store)
    assert release_by_schema(counted, CLUSTER, Rules()) == []  # type: ignore[arg-type]
    assert counted.calls["read", "ledger"] == 200


def test_a_batch_that_is_not_archived_yet_is_looked_at_again(store: MemoryStore) -> None:
    ship(store, *range(3))
    run(store, *range(3))
    store.put(layout.batch_object(CLUSTER, 1, "schema"), SchemaLearner().to_json().encode())
    noted = store.read(ref(1).ledger)
    store.delete(ref(1).ledger)
    for expected in (3, 3):
        counted = Counted(store)
        assert release_by_schema(counted, CLUSTER, Rules()) == []  # type: ignore[arg-type]
        assert counted.calls["read", "ledger"] == expected
    store.put(ref(1).ledger, noted)
    release_by_schema(store, CLUSTER, Rules())
    counted = Counted(store)
    release_by_schema(counted, CLUSTER, Rules())  # type: ignore[arg-type]
    assert counted.calls["read", "ledger"] == 0
