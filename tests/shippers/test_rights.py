"""A node's account may only create and read objects under its own prefixes: no list, no other node's name, no
overwriting. Objects that another account created there first, or damaged, take no space on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shippers import report, schema_snapshot, tail, truncations, upload
from shippers.agent import Agent, Mode
from shippers.upload import Outcome
from tests.shippers.conftest import NODE, FakeLink, Folder, ref
from tests.shippers.faults import FaultyStore
from tests.shippers.test_tail import growing, shipped
from writetime.config.node import ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import StoreError
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.layout import NodeName, SegmentRef
from writetime.storage.local import LocalStore
from writetime.storage.store import ObjectInfo, Store

MakeAgent = Callable[..., Agent]
PREFIXES = ("cdc", "cdc_parts", "schemas", "nodes", "truncations")


class Restricted(FaultyStore):
    """A store with the permissions of a node's account. A missing object looks forbidden, as on S3 without
    ListBucket.
    """

    def __init__(self, inner: Store, node: NodeName = NODE) -> None:
        super().__init__(inner)
        self._own = tuple(f"{prefix}/{node.path}/" for prefix in PREFIXES)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        raise self._forbidden("list", prefix)

    def read(self, name: str, **_: Any) -> bytes:
        raise self._forbidden("read", name)

    def copy(self, source: str, target: str, **_: Any) -> ObjectInfo:
        raise self._forbidden("copy", source)

    def delete(self, name: str, **_: Any) -> None:
        raise self._forbidden("delete", name)

    def head(self, name: str) -> ObjectInfo | None:
        if not name.startswith(self._own) or (found := super().head(name)) is None:
            raise self._forbidden("head", name)
        return found

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        if not name.startswith(self._own) or if_generation != 0:
            raise self._forbidden("put", name)
        return super().put(name, data, if_generation=0, metadata=metadata)

    def _forbidden(self, what: str, name: str) -> StoreError:
        self.calls.append((f"forbidden {what}", name))
        return StoreError("403 Forbidden", operation=what, obj=name)


@pytest.fixture
def everything(settings: PipelineConfig) -> PipelineConfig:
    """All features, including tails."""
    assert settings.node is not None
    ship = ShipConfig.model_validate({"tail_seconds": 0.001, "disk_reserve": 0})
    return settings.model_copy(update={"node": settings.node.model_copy(update={"ship": ship})})


def forbidden(store: FaultyStore) -> list[tuple[str, str]]:
    return [call for call in store.calls if call[0].startswith("forbidden")]


def test_a_node_ships_all_it_has_with_rights_to_its_own_prefixes(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, everything: PipelineConfig
) -> None:
    written = {number: folder.segment(number) for number in (1, 2)}
    segment = growing(folder, count=3)
    restricted = Restricted(store)
    agent = agent_over(restricted, link=FakeLink(), config=everything)
    result = agent.round()
    assert (result.shipped, result.failed, forbidden(restricted)) == ({Outcome.UPLOADED: 2}, [], [])
    assert {number: store.read(ref(number).incoming) for number in written} == written
    assert shipped(store, segment.ref) == segment.data[: segment.ends[2][0]]
    assert [info.name for info in store.list("schemas/")] == ["schemas/ring/dc1/host-1/20260101T000000Z-v1.json"]
    for prefix in ("nodes/", "truncations/"):
        (info,) = store.list(prefix)
        assert info.name.startswith(f"{prefix}{NODE.path}/")
    # Another start, while the segment grows on.
    segment.grow(folder.path, 5)
    again = Restricted(store)
    assert agent_over(again, link=FakeLink(), config=everything).round().ok
    assert forbidden(again) == []
    assert shipped(store, segment.ref) == segment.data


def test_what_was_created_before_is_met_without_a_right_to_list(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, everything: PipelineConfig
) -> None:
    """An earlier run has died before it could delete or note anything: all of it is there, and one object is
    not as it should be.
    """
    assert everything.node is not None
    segment = growing(folder, count=3)
    for number in (1, 2):
        folder.segment(number)
    assert agent_over(Restricted(store), link=FakeLink(), config=everything).round().ok
    for note in (report.NOTE, schema_snapshot.NOTE, tail.NOTE, truncations.NOTE):
        (everything.node.state / note).unlink()
    folder.segment(1)
    other = folder.segment(2, b"other bytes")
    restricted = Restricted(store)
    result = agent_over(restricted, link=FakeLink(), config=everything).round()
    assert (result.shipped, result.failed) == ({Outcome.ALREADY_THERE: 1, Outcome.IN_CONFLICT: 1}, [])
    assert store.read(ref(2).conflict(crc32c(other))) == other
    assert shipped(store, segment.ref) == segment.data[: segment.ends[2][0]]
    assert {what for what, _ in forbidden(restricted)} <= {"forbidden put"}, "of names that were taken"


def test_the_rights_of_another_node_are_none(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    """So the test above can fail: with prefixes of another node nothing goes up, and nothing is deleted."""
    folder.segment(1)
    other = Restricted(store, NodeName("ring", "dc1", "host-2"))
    assert not agent_over(other, link=FakeLink()).round().ok
    assert len(folder.names) == 2
    assert list(store.list()) == []


def test_names_that_another_account_has_taken_first_cost_the_node_no_room(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    """Somebody foresees the names of the next segments, and creates objects of foreign bytes there."""
    for number in range(1, 6):
        store.put(ref(number).incoming, b"squat", if_generation=0)
    written = {number: folder.segment(number) for number in range(1, 6)}
    agent = agent_over(Restricted(store))
    assert agent.run(Mode.ONCE)
    assert folder.names == []
    for number, data in written.items():
        assert store.read(ref(number).incoming) == b"squat", "nothing is overwritten"
        assert store.read(ref(number).conflict(crc32c(data))) == data
    samples = [sample for family in agent.metrics.registry.collect() for sample in family.samples]
    counted = {sample.labels["outcome"]: sample.value for sample in samples if sample.name == "writetime_ship_segments_total"}
    assert counted == {"in conflict": 5}


def test_parts_that_another_account_has_taken_first_stop_the_tail_alone(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, everything: PipelineConfig
) -> None:
    segment = growing(folder, count=3)
    store.put(segment.ref.part(0, segment.ends[2][0]), b"squat")
    data = folder.segment(1)
    result = agent_over(Restricted(store), link=FakeLink(), config=everything).round()
    assert result.shipped == {Outcome.UPLOADED: 1}
    assert ["differs from the segment" in str(error) for error in result.failed] == [True]
    assert not any(upload.is_unanswered(error) for error in result.failed)
    assert store.read(ref(1).incoming) == data


def test_a_store_that_refuses_for_another_reason_is_not_taken_for_one_that_holds_it(store: LocalStore, folder: Folder) -> None:
    """403 of a name that is free: nothing may be deleted, and the error is the store's."""

    class Refusing(FaultyStore):
        def put(self, name: str, *_: Any, **__: Any) -> ObjectInfo:
            raise StoreError("403 Forbidden", operation="put", obj=name)

    data = folder.segment(1)
    with pytest.raises(StoreError, match="403"):
        upload.ship(Refusing(store), ref(1), folder.path, {})
    assert (folder.path / "CommitLog-7-1.log").read_bytes() == data


def test_the_names_of_a_node_lie_under_its_prefixes() -> None:
    """The rights in the documentation are made of these."""
    segment = SegmentRef(NODE, ref(1).segment)
    own = {f"{prefix}/{NODE.path}/" for prefix in PREFIXES}
    found = [segment.incoming, segment.conflict(1), segment.part(0, 9), f"{layout.node_documents(NODE)}/x.json"]
    assert all(any(name.startswith(prefix) for prefix in own) for name in found)
