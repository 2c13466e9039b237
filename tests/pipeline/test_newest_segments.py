"""Which segments planning asks the ledger for: all that a batch may have taken in, and of new ones none."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipeline.test_planner import CLUSTER, NOW, archive, plan, planned, seal
from tests.storage.memory import MemoryStore
from writetime.pipeline import node_logs
from writetime.pipeline.conflicts import undecided
from writetime.pipeline.documents import LocalDocument, Manifest
from writetime.pipeline.newest_segments import is_newer, newest_after, newest_in_ledger
from writetime.pipeline.planner import read_local, read_manifest, read_sealed
from writetime.storage import layout
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.local import LocalStore

FIRST = 1_777_000_000_000
NODES = [NodeName(CLUSTER, "dc1", str(UUID(int=number))) for number in (1, 2)]


def ref(segment_id: int, node: NodeName = NODES[0], version: int = 7) -> SegmentRef:
    return SegmentRef(node, SegmentName(segment_id, version))


class Counted(LocalStore):
    """Notes the ledger entries that are read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[str] = []

    def read(self, name: str, **about: Any) -> bytes:
        if name.startswith("ledger/"):
            self.asked.append(name)
        return super().read(name, **about)


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(tmp_path / "bucket")


def ship(store: LocalStore, each: SegmentRef, data: bytes = b"segment") -> str:
    store.put(each.incoming, data, metadata={"sealed_at": NOW.isoformat()})
    return each.incoming


def batch(store: Counted) -> list[str]:
    """Plan, settle, seal and archive a batch; the ledger entries that planning asked for."""
    store.asked.clear()
    manifest = planned(store)
    asked = list(store.asked)
    base = read_sealed(store, CLUSTER, manifest.base) if manifest.base else None
    node_logs.settle(store, manifest, base, [], [])
    seal(store, manifest)
    archive(store, CLUSTER, manifest.number)
    return asked


def test_only_the_first_batch_asks_for_what_is_new(store: Counted) -> None:
    ship(store, ref(FIRST))
    assert batch(store) == [ref(FIRST).ledger]
    for number in (1, 2):
        for node in NODES:
            ship(store, ref(FIRST + number, node))
        assert batch(store) == []
    assert read_local(store, CLUSTER, 3).newest == {node.path: FIRST + 2 for node in NODES}


def test_what_arrives_again_or_late_is_asked_for(store: Counted) -> None:
    ship(store, ref(FIRST + 5))
    batch(store)
    ship(store, ref(FIRST + 5))
    assert plan(store) is None, "the archive has it"
    assert store.head(ref(FIRST + 5).incoming) is None
    late = ship(store, ref(FIRST + 4))
    assert batch(store) == [ref(FIRST + 4).ledger]
    assert store.head(late) is None, "archived"
    ship(store, ref(FIRST + 4), b"other bytes")
    assert plan(store) is None
    assert [each.object for each in undecided(store, CLUSTER)] == [late]


def test_a_node_whose_clock_was_set_back_is_asked_for(store: Counted) -> None:
    ship(store, ref(FIRST + 10**9))
    batch(store)
    ship(store, ref(FIRST))
    assert batch(store) == [ref(FIRST).ledger]
    assert read_local(store, CLUSTER, 2).newest == {NODES[0].path: FIRST + 10**9}


def test_the_first_batch_after_an_upgrade_searches_the_ledger(store: Counted) -> None:
    for number in (3, 4):
        ship(store, ref(FIRST + number))
        batch(store)
    name = layout.batch_object(CLUSTER, 2, "local")
    store.put(name, read_local(store, CLUSTER, 2).model_copy(update={"newest": None}).to_bytes())
    late = ship(store, ref(FIRST + 2))
    assert batch(store) == [ref(FIRST + 2).ledger]
    assert read_local(store, CLUSTER, 3).newest == {NODES[0].path: FIRST + 4}, "not that of its own segment"
    ship(store, ref(FIRST + 4))
    assert (plan(store), store.head(late)) == (None, None)


def test_a_document_of_the_version_before_is_read() -> None:
    assert LocalDocument.model_validate_json(b'{"ends": {}}').newest is None


def test_after_batches_were_put_back_what_they_had_is_taken_in_again(store: Counted) -> None:
    """The ledger is ahead of the batches then, and the state lacks what the lost batch had merged."""
    for number in (1, 2):
        ship(store, ref(FIRST + number))
        batch(store)
    for info in list(store.list(f"{layout.batch_folder(CLUSTER, 2)}")):
        store.delete(info.name)
    again = ship(store, ref(FIRST + 2))
    assert batch(store) == []
    assert [segment.object for segment in read_manifest(store, CLUSTER, 2).segments] == [again]
    assert store.head(again) is None, "archived"


def test_parts_do_not_count(store: Counted) -> None:
    store.put(ref(FIRST).part(0, 100), bytes(100), metadata={"sealed_at": NOW.isoformat()})
    batch(store)
    assert read_local(store, CLUSTER, 1).newest == {}
    ship(store, ref(FIRST))
    assert batch(store) == []


def test_a_rebuilt_chain_knows_what_the_ledger_has(store: Counted) -> None:
    ship(store, ref(FIRST + 7))
    batch(store)
    first = planned_of([ref(FIRST + 1)])
    assert node_logs.decide(store, first, None, [], []).newest == {NODES[0].path: FIRST + 7}


def planned_of(refs: list[SegmentRef]) -> Manifest:
    segments = [{"object": each.incoming, "generation": 1, "size": 7, "crc32c": 1, "sealed_at": NOW.isoformat()} for each in refs]
    return Manifest.model_validate(
        {"number": 9, "kind": "rebuild", "cluster": CLUSTER, "created_at": NOW.isoformat(), "now": 0, "base": 0, "segments": segments}
    )


@pytest.mark.parametrize(
    ("each", "newest", "newer"),
    [
        (ref(FIRST + 1), {NODES[0].path: FIRST}, True),
        (ref(FIRST), {NODES[0].path: FIRST}, False),
        (ref(FIRST), {NODES[1].path: FIRST}, True),
        (ref(FIRST), None, False),
        (ref(7), {}, False),
        (ref(10**13), {}, False),
        (ref(FIRST, NodeName(CLUSTER, "frames", "snapshot-1")), {}, False),
    ],
)
def test_is_newer(each: SegmentRef, newest: dict[str, int] | None, newer: bool) -> None:
    assert is_newer(each, newest) is newer


IDS = st.one_of(st.integers(10**12, 10**13 - 1), st.integers(FIRST, FIRST + 50), st.integers(1, 10**6), st.integers(10**13, 2**63 - 1))
REFS = st.lists(st.builds(ref, IDS, st.sampled_from(NODES), st.sampled_from([6, 7, 10])), max_size=12)


@given(REFS)
@settings(max_examples=examples(60))
def test_the_search_finds_the_newest_of_each_node(refs: list[SegmentRef]) -> None:
    store = MemoryStore()
    for each in refs:
        store.put(each.ledger, b"{}")
        store.put(f"{layout.ledger_prefix(each.node)}note.txt", b"somebody's")
    found = newest_in_ledger(store, CLUSTER)
    sortable = [each for each in refs if 10**12 < each.segment.id < 10**13]
    assert found == newest_after({}, planned_of(sortable).segments)
    assert not any(is_newer(each, found) for each in refs)
