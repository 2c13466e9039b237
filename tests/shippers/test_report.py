"""A node's status in the bucket: at a change and at intervals, at most once a minute, and never delaying a
segment.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shippers import cdc_settings, report
from shippers.agent import Agent
from shippers.disk_space import Level, Space
from shippers.metrics import Sight, TailSeen
from shippers.node_identity import NodeFacts
from shippers.report import Reported
from tests.shippers.conftest import NODE, FakeLink, Folder, ref
from tests.shippers.faults import FaultyStore
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.config.node import ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import StoreError, StoreUnavailable
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
NOON = datetime(2026, 5, 4, 12, 5, 1, tzinfo=UTC)
SPACE = Space(used=900, limit=1000, segment=0, free=77)
FACTS = NodeFacts(NODE.cluster, NODE.datacenter, NODE.host_id, address="192.0.2.1", tokens=["-1", "7"])
ROOM = {"at": 0.0, "level": "alarm", "used": 900, "limit": 1000, "share": 0.9, "free": 77}
WAITING = {"to_ship": 2, "to_ship_bytes": 64, "oldest": 5.0, "waiting": 1, "foreign": 0, "spilled": 1, "spilled_bytes": 32}
SIGHT = Sight(**ROOM, **WAITING)  # type: ignore[arg-type]
TAIL = TailSeen("CommitLog-7-1.log", synced=20, written=6.0, shipped=10)
SETTINGS = CdcSettings(cdc_enabled=True, commitlog_sync="periodic", commitlog_sync_ms=10_000)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.mark.parametrize(
    ("changed", "after", "due"),
    [
        ({}, 59 * MINUTE, False),
        ({}, 60 * MINUTE, True),
        ({"log": "2"}, 10 * MINUTE - SECOND, False),
        ({"log": "2"}, 10 * MINUTE, True),
        ({"node": "2"}, MINUTE - SECOND, False),
        ({"node": "2"}, MINUTE, True),
        ({}, -SECOND, True),
    ],
)
def test_when_one_is_due(changed: dict[str, str], after: timedelta, due: bool) -> None:
    before = Reported("1", "1", NOON)
    assert before.is_due(replace(before, at=NOON + after, **changed)) is due
    assert not (due and before.is_recent(NOON + after))


@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from("ab"), st.sampled_from("abcdef")), max_size=200))
def test_never_more_than_one_a_minute(looks: list[tuple[int, str, str]]) -> None:
    last, now, written = Reported("a", "a", NOON), NOON, [NOON]
    for seconds, node, log in looks:
        now += timedelta(seconds=seconds)
        if last.is_due(new := Reported(node, log, now)):
            last = new
            written.append(now)
    assert all(later - earlier >= MINUTE for earlier, later in itertools.pairwise(written))


def test_what_it_says(store: LocalStore, tmp_path: Path) -> None:
    due, document = report.about("a", FACTS, SPACE, Level.ALARM, SIGHT, [TAIL], SETTINGS, NOON)
    name = report.report(store, NODE, document, NOON)
    assert report.report(store, NODE, document, NOON) == name, "an answer was lost"
    (info,) = store.list("nodes/")
    assert info.name == name
    assert name.startswith("nodes/ring/dc1/host-1/20260504T120501Z-")
    assert json.loads(store.read(name)) == {
        "at": "2026-05-04T12:05:01+00:00",
        "cluster": "ring",
        "datacenter": "dc1",
        "host_id": "host-1",
        "address": "192.0.2.1",
        "tokens": ["-1", "7"],
        "settings": {"cdc_enabled": True, "commitlog_sync": "periodic", "commitlog_sync_ms": 10000},
        "space": {"level": "alarm", "used": 900, "limit": 1000, "share": 0.9, "disk_free": 77},
        "log": {
            "to_ship": 2,
            "to_ship_bytes": 64,
            "oldest": 5.0,
            "spilled": 1,
            "growing": [{"segment": "CommitLog-7-1.log", "synced": 20, "written": 6.0, "shipped": 10}],
        },
    }
    report.note(tmp_path / "state", due)
    assert Reported.recall(tmp_path / "state") == due


def test_what_counts_as_a_change() -> None:
    def of(
        space: Space = SPACE,
        level: Level = Level.OK,
        facts: NodeFacts = FACTS,
        tails: tuple[TailSeen, ...] = (),
        settings: CdcSettings | None = None,
        store: str = "a",
    ) -> Reported:
        return report.about(store, facts, space, level, SIGHT, tails, settings, NOON)[0]

    assert of() == of(space=replace(SPACE, free=1)), "the disk's room always changes"
    assert of().node == of(space=replace(SPACE, used=1)).node
    assert of().log != of(space=replace(SPACE, used=1)).log
    assert of().log != of(tails=(TAIL,)).log
    assert of().node != of(level=Level.WARN).node
    assert of().node != of(facts=replace(FACTS, rack="r2")).node
    assert of().node != of(store="b").node, "another bucket has none yet"
    assert of().node == of(settings=CdcSettings()).node, "nothing is known"
    assert of().node != of(settings=SETTINGS).node


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"node": "a", "log": "b", "at": "x"}', '{"node": "a", "log": "b", "at": 3}'])
def test_a_note_that_cannot_be_read_is_none(note: str, tmp_path: Path) -> None:
    (tmp_path / report.NOTE).write_text(note, encoding="utf-8")
    assert Reported.recall(tmp_path) == Reported()


def ship(settings: PipelineConfig) -> PipelineConfig:
    assert settings.node is not None
    small = ShipConfig.model_validate({"cdc_total_space": 1000, "disk_reserve": 0, "tail_seconds": None})
    return settings.model_copy(update={"node": settings.node.model_copy(update={"ship": small})})


def levels(store: LocalStore) -> list[str]:
    return [json.loads(store.read(info.name))["space"]["level"] for info in store.list("nodes/")]


def test_the_agent_reports_what_has_changed(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_over(store, config=ship(settings))
    folder.segment(1, b"x" * 10, idx=b"5")
    agent.round()
    folder.segment(1, b"x" * 900, idx=b"5")
    agent.round()
    assert levels(store) == ["ok"], "within a minute"
    monkeypatch.setattr(report, "GAP", timedelta(0))
    agent.round()
    agent.round()
    assert sorted(levels(store)) == ["alarm", "ok"]
    # One that starts anew, as by cron, knows what was written.
    agent_over(store, config=ship(settings)).round()
    assert len(levels(store)) == 2


def test_a_change_of_the_nodes_settings_is_reported(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdc_settings, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(report, "GAP", timedelta(0))
    link = FakeLink(space=1000)
    agent = agent_over(store, link=link, config=ship(settings))
    agent.round()
    agent.round()
    assert reported(store) == [CdcSettings(cdc_enabled=True, cdc_block_writes=True, cdc_total_space=1000)]
    link.block_writes = False
    with capture_logs() as logs:
        agent.round()
        agent.round()
    assert [log["setting"] for log in logs if log["log_level"] == "error"] == ["cdc_block_writes"]
    assert sorted(len(list(each.unsafe())) for each in reported(store)) == [0, 1]
    # One that starts while the node is down keeps what the node said last.
    link.down = True
    again = agent_over(store, link=link, config=ship(settings))
    folder.segment(1, b"x" * 900, idx=b"5")
    again.round()
    assert sorted(len(list(each.unsafe())) for each in reported(store)) == [0, 1, 1]


def reported(store: LocalStore) -> list[CdcSettings]:
    return [CdcSettings.parse(json.loads(store.read(info.name)).get("settings")) for info in store.list("nodes/")]


class Refusing(FaultyStore):
    """A store that rejects a node's status only."""

    error: StoreError
    tried = 0

    def put(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("nodes/"):
            self.tried += 1
            raise self.error
        return super().put(name, *args, **kwargs)


@pytest.mark.parametrize(("error", "tries"), [(StoreError("403"), 1), (StoreUnavailable("503"), 4)], ids=["refused", "away"])
def test_that_it_cannot_be_written_stops_nothing(
    error: StoreError, tries: int, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    watched = Refusing(store)
    watched.error = error
    agent = agent_over(watched, config=ship(settings))
    folder.segment(1, b"x" * 900, idx=b"5")
    with capture_logs() as logs:
        assert agent.round().ok
        assert agent.round().ok
    assert watched.tried == tries
    assert len([log for log in logs if log["event"] == "failed to write the node status"]) == 1
    folder.segment(1, b"x" * 900)
    assert agent.round().shipped
    assert store.head(ref(1).incoming) is not None
