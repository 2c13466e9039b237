"""Shipping a node's truncation records."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shippers import truncations
from shippers.agent import Agent
from tests.shippers.conftest import NODE, FakeLink
from writetime.config.pipeline import PipelineConfig
from writetime.storage import layout
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
RECORD = {"table_id": str(UUID(int=7)), "segment": 1_777_000_000_000, "position": 4711, "at": 1_777_000_123_456}


def shipped(store: LocalStore) -> list[list[dict[str, Any]]]:
    found = sorted(store.list(layout.truncations_prefix(NODE.cluster)), key=lambda info: info.created)
    return [json.loads(store.read(info.name))["truncated_at"] for info in found]


def test_the_driver_gives_a_map_of_blobs() -> None:
    value = struct.pack(">qiq", RECORD["segment"], RECORD["position"], RECORD["at"])
    assert truncations.records({UUID(int=7): value, UUID(int=8): b"of a later release"}) == [RECORD]


def test_records_are_shipped_when_they_change(store: LocalStore, agent_over: MakeAgent) -> None:
    link = FakeLink()
    agent = agent_over(store, link=link)
    agent.round()
    agent.round()
    assert shipped(store) == [[]], "an empty answer shows that the node answers"
    link.truncated = [RECORD]
    agent.round()
    agent.round()
    assert shipped(store) == [[], [RECORD]]
    assert {layout.NodeName.of_truncations(info.name) for info in store.list(layout.truncations_prefix(NODE.cluster))} == {NODE}


def test_a_new_run_does_not_ship_the_same_again(store: LocalStore, agent_over: MakeAgent) -> None:
    agent_over(store, link=FakeLink(truncated=[RECORD])).round()
    agent_over(store, link=FakeLink(truncated=[RECORD])).round()
    assert shipped(store) == [[RECORD]]


@pytest.mark.parametrize(
    ("passed", "due"),
    [(timedelta(0), False), (timedelta(hours=23), False), (timedelta(days=1), True), (timedelta(seconds=-1), True)],
)
def test_the_same_is_due_once_a_day_and_when_the_clock_was_set_back(passed: timedelta, due: bool) -> None:
    at = datetime(2026, 5, 4, tzinfo=UTC)
    shipped = truncations.Shipped("0badcafe", at, "store", "node")
    assert shipped.is_due(replace(shipped, at=at + passed)) is due


@pytest.mark.parametrize("change", [{"checksum": "x"}, {"store": "another"}, {"node": "another"}])
def test_another_answer_store_or_node_is_due_at_once(change: dict[str, str]) -> None:
    shipped = truncations.Shipped("0badcafe", datetime(2026, 5, 4, tzinfo=UTC), "store", "node")
    assert shipped.is_due(replace(shipped, **change))  # type: ignore[arg-type]


def test_another_store_gets_the_records_too(store: LocalStore, agent_over: MakeAgent, tmp_path: Path) -> None:
    other = LocalStore(tmp_path / "other")
    for each in (store, other):
        agent_over(each, link=FakeLink(truncated=[RECORD])).round()
        assert shipped(each) == [[RECORD]]


def test_a_note_without_an_offset_of_its_time_ends_no_round(store: LocalStore, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    assert settings.node is not None
    settings.node.state.mkdir(parents=True)
    checksum = truncations.checksum_of([RECORD])
    (settings.node.state / truncations.NOTE).write_text(json.dumps({"checksum": checksum, "at": "2026-05-04T12:00:00"}))
    assert agent_over(store, link=FakeLink(truncated=[RECORD])).round().ok
    assert shipped(store) == [[RECORD]]


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"checksum": "a", "at": 7}', '{"checksum": "a", "at": "0001-01-01T00:00:00+23:00"}'])
def test_a_damaged_note_counts_as_none(tmp_path: Path, note: str) -> None:
    (tmp_path / truncations.NOTE).write_text(note)
    assert truncations.Shipped.recall(tmp_path) == truncations.Shipped()
