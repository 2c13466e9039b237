"""What a shipper tells of its node's space: at a change, each day besides, never twice, and never so that a segment waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shippers import tell
from shippers.agent import Agent
from shippers.guard import Level, Space
from shippers.tell import Told
from tests.shippers.conftest import NODE, Folder, ref
from tests.shippers.faults import FaultyStore
from writetime.config import PipelineConfig, ShipConfig
from writetime.errors import StoreError, StoreUnavailable
from writetime.store.local import LocalStore

MakeAgent = Callable[..., Agent]
NOON = datetime(2026, 5, 4, 12, 5, 1, tzinfo=UTC)
SPACE = Space(used=900, limit=1000, segment=0, free=77)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("before", "level", "after", "due"),
    [
        (Level.OK, Level.OK, timedelta(hours=11), False),
        (Level.OK, Level.OK, DAY, True),
        (Level.OK, Level.WARN, SECOND, True),
        (Level.WARN, Level.ALARM, SECOND, True),
        (Level.ALARM, Level.WARN, 59 * SECOND, False),
        (Level.ALARM, Level.OK, 60 * SECOND, True),
        (Level.ALARM, Level.ALARM, timedelta(hours=11), False),
        (Level.ALARM, Level.ALARM, timedelta(hours=12), True),
        (Level.WARN, Level.WARN, DAY, True),
    ],
)
def test_when_there_is_something_new(before: Level, level: Level, after: timedelta, due: bool) -> None:
    assert Told(before, NOON).is_due(level, NOON + after) is due


def test_it_is_told_and_noted(store: LocalStore, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert Told.recall(state) == Told()
    assert tell.tell(store, NODE, state, SPACE, Level.ALARM, NOON) == Told(Level.ALARM, NOON) == Told.recall(state)
    (info,) = store.list("space/")
    assert info.name == "space/ring/date=2026-05-04/dc1/host-1/120501Z-alarm.json"
    document = {"at": NOON.isoformat(), "level": "alarm", "used": 900, "limit": 1000, "share": 0.9, "disk_free": 77}
    assert json.loads(store.read(info.name)) == document
    tell.tell(store, NODE, state, SPACE, Level.ALARM, NOON)  # whose first answer was lost


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"level": "loud", "at": "x"}', '{"level": 3, "at": "2026-05-04T12:00:00+00:00"}'])
def test_a_note_that_cannot_be_read_is_none(note: str, tmp_path: Path) -> None:
    (tmp_path / tell.NOTE).write_text(note, encoding="utf-8")
    assert Told.recall(tmp_path) == Told()


def ship(settings: PipelineConfig) -> PipelineConfig:
    assert settings.node is not None
    small = ShipConfig.model_validate({"cdc_total_space": 1000, "disk_reserve": 0})
    return settings.model_copy(update={"node": settings.node.model_copy(update={"ship": small})})


def levels(store: LocalStore) -> list[str]:
    return sorted(info.name.rpartition("-")[2].removesuffix(".json") for info in store.list("space/"))


def test_the_agent_tells_what_has_changed(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    agent = agent_over(store, config=ship(settings))
    folder.segment(1, b"x" * 10, idx=b"5")
    agent.round()
    agent.round()
    assert levels(store) == ["ok"], "once a day"
    folder.segment(1, b"x" * 900, idx=b"5")
    agent.round()
    agent.round()
    assert levels(store) == ["alarm", "ok"]
    # One that starts anew, as by cron, knows what was told.
    agent_over(store, config=ship(settings)).round()
    assert levels(store) == ["alarm", "ok"]


class Refusing(FaultyStore):
    """A store that takes everything but what is told of space."""

    error: StoreError
    tried = 0

    def put(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("space/"):
            self.tried += 1
            raise self.error
        return super().put(name, *args, **kwargs)


@pytest.mark.parametrize(("error", "tries"), [(StoreError("403"), 1), (StoreUnavailable("503"), 2)], ids=["refused", "away"])
def test_that_it_cannot_be_told_stops_nothing(
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
    assert len([log for log in logs if "not told" in log["event"]]) == 1
    folder.segment(1, b"x" * 900)
    assert agent.round().shipped
    assert store.head(ref(1).incoming) is not None
