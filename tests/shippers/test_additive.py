"""Documents of the shipper with an additional field of a later version, and without each optional field.

Strategy: the shipper itself fills a bucket, so new kinds of documents are noticed here. Each document is read
by its readers in planning, jobs and status: an additional field, at every depth, must not change the result,
and each optional field may be missing. The required fields of each reader are listed here: a new required
field would reject documents of today's shippers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from proof.recording.recording import Recording
from shippers.agent import Agent
from tests.shippers.conftest import FakeLink, Folder
from tests.shippers.test_tail import growing
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.snapshot import read as read_snapshot
from writetime.config.node import ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.documents import SegmentInput
from writetime.pipeline.node_facts import read_facts
from writetime.pipeline.planner import plan_ingest
from writetime.pipeline.truncation_reports import read_answers
from writetime.storage.local import LocalStore
from writetime.storage.store import ObjectInfo, Store

CLUSTER = "ring"
LATER = {"a": [1, {"b": None}]}


class Rejected(Exception):
    """The reader rejected the document."""


def expect(found: Any) -> Any:
    if not found:
        raise Rejected
    return found


def node_facts(store: Store, _: str) -> Any:
    (found,) = read_facts(store, CLUSTER)
    return expect(found.rejected is None and found)


def schema(store: Store, name: str) -> Any:
    learner = SchemaLearner()
    learner.apply_snapshot(read_snapshot(store.read(name)))
    return expect(learner.schema().table("shop", "orders"))


def truncations(store: Store, name: str) -> Any:
    records, _, rejected = read_answers(store, [name])
    return expect(not rejected and records)


READERS: dict[str, tuple[Callable[[Store, str], Any], set[str]]] = {
    "nodes": (node_facts, set()),
    "schemas": (schema, {"tables", "columns"}),
    "truncations": (truncations, {"taken_at", "truncated_at"}),
}
"""By the kind of document, who reads it, and the fields that it cannot do without."""
SEGMENTS = {"cdc", "cdc_parts"}
"""Objects that are no documents. What is noted on them is optional, all of it."""


class TalkingLink(FakeLink):
    """A node with a real schema."""

    def snapshot(self) -> dict[str, Any]:
        return dict(self._answer("snapshot", Recording.open().schema_snapshot))


@pytest.fixture
def shipped(store: LocalStore, folder: Folder, settings: PipelineConfig, agent_over: Callable[..., Agent]) -> Store:
    """All objects that a shipper writes for a node."""
    assert settings.node is not None
    node = settings.node.model_copy(update={"ship": ShipConfig(tail_seconds=0.001)})
    (table_id,) = {row["id"] for row in Recording.open().schema_snapshot["tables"] if row["table_name"] == "orders"}
    link = TalkingLink(space=1 << 30, truncated=[{"table_id": table_id, "segment": 5, "position": 6, "at": 7}])
    folder.segment(1)
    growing(folder)
    agent_over(store, link=link, config=settings.model_copy(update={"node": node})).round()
    return store


def documents(store: Store) -> Iterator[ObjectInfo]:
    return (info for info in store.list("") if info.name.split("/")[0] not in SEGMENTS)


def with_more(value: Any, levels: int) -> Any:
    """The document with an additional field in each object, down to `levels` levels."""
    if isinstance(value, dict) and levels:
        return {name: with_more(each, levels - 1) for name, each in value.items()} | {"of_a_later_version": LATER}
    return [with_more(each, levels) for each in value] if isinstance(value, list) else value


def test_all_that_it_writes_is_read_here(shipped: Store) -> None:
    assert {info.name.split("/")[0] for info in shipped.list("")} == READERS.keys() | SEGMENTS


def test_a_field_more_changes_nothing(shipped: Store) -> None:
    for info in list(documents(shipped)):
        reader, _ = READERS[info.name.split("/")[0]]
        before, text = reader(shipped, info.name), shipped.read(info.name)
        # An object in a row of the schema is a value of Cassandra's.
        document = with_more(json.loads(text), 2 if info.name.startswith("schemas/") else 9)
        assert document != json.loads(text)
        shipped.put(info.name, json.dumps(document).encode())
        assert reader(shipped, info.name) == before, info.name


def test_a_field_less_is_read_unless_nothing_can_be_made_of_it(shipped: Store) -> None:
    for info in list(documents(shipped)):
        reader, required = READERS[info.name.split("/")[0]]
        text = shipped.read(info.name)
        document = json.loads(text)
        assert required <= document.keys(), info.name
        for field in document:
            less = deepcopy(document)
            del less[field]
            shipped.put(info.name, json.dumps(less).encode())
            try:
                reader(shipped, info.name)
                read = True
            except (Rejected, KeyError, ValueError):
                read = False
            assert read is (field not in required), f"{field} of {info.name}"
        shipped.put(info.name, text)


def test_notes_on_segments_are_optional_and_more_of_them_changes_nothing(shipped: Store) -> None:
    found = [info for info in shipped.list("") if info.name.split("/")[0] in SEGMENTS]
    assert {info.name.split("/")[0] for info in found} == SEGMENTS
    for info in found:
        before, data = SegmentInput.from_object(info), shipped.read(info.name)
        for metadata in (
            dict(info.metadata) | {"of_a_later_version": "x"},
            *({k: v for k, v in info.metadata.items() if k != less} for less in info.metadata),
        ):
            shipped.delete(info.name)
            shipped.put(info.name, data, metadata=metadata)
            again = shipped.head(info.name)
            assert again is not None
            after = SegmentInput.from_object(again)
            noted = {"sealed_at", "ending"} & info.metadata.keys() & metadata.keys()
            same = {"object", "size", "crc32c", *noted}
            assert {name: getattr(after, name) for name in same} == {name: getattr(before, name) for name in same}
    manifest = plan_ingest(shipped, CLUSTER, now=datetime.now(UTC))
    assert manifest is not None
    assert {segment.object.split("/")[0] for segment in manifest.segments} == SEGMENTS
