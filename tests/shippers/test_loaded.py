"""What a node loads past its commit log, by the names and times in folders like a node's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from shippers import loaded
from shippers.agent import Agent
from shippers.loaded import LoadedTables
from tests.shippers.conftest import NODE
from writetime.config.node import NodeConfig
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.node_facts import read_facts
from writetime.storage.local import LocalStore

TABLE_ID = "5b6962dd3f9011ed9a8d0000000000aa"
START = 1_790_000_000 * 10**9
MINUTE = 60 * 10**9


class Clock:
    """The time of the shipper, in ns, a minute later at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        monkeypatch.setattr(loaded.time, "time_ns", lambda: self.now)
        monkeypatch.setattr(loaded.time, "monotonic", lambda: self.now / 1e9)


class Data:
    """A data folder of Cassandra."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self.clock = clock
        self.table = root / "shop" / f"orders-{TABLE_ID}"
        for folder in (
            root / "system" / f"local-{TABLE_ID}",
            root / "system_auth",
            self.table / "snapshots" / "before",
            root / "lost+found",
        ):
            folder.mkdir(parents=True)

    def sstable(self, number: int, *, written: int | None = None, folder: Path | None = None) -> Path:
        """One whose last write was at `written`; now, as one that Cassandra flushes."""
        path = (folder or self.table) / f"nb-{number}-big-Data.db"
        path.write_bytes(b"rows")
        at = self.clock.now if written is None else written
        os.utime(path, ns=(at, at))
        os.utime(path.parent, ns=(self.clock.now, self.clock.now))
        return path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def data(tmp_path: Path, clock: Clock) -> Data:
    return Data(tmp_path / "data", clock)


def looker(data: Data) -> LoadedTables:
    """As a shipper that starts now."""
    return LoadedTables(NodeConfig(cdc_raw=data.root.parent / "cdc_raw"), structlog.get_logger())


def look(looking: LoadedTables, clock: Clock) -> list[tuple[str, str, int]]:
    clock.now += MINUTE
    looking.look_if_due()
    return [(each.keyspace, each.table, each.files) for each in looking.found]


def test_what_was_there_and_what_the_node_writes_is_not_loaded(data: Data, clock: Clock) -> None:
    data.sstable(1, written=START - 1000 * MINUTE)
    looking = looker(data)
    assert look(looking, clock) == []
    for number in range(2, 5):
        data.sstable(number)
        assert look(looking, clock) == []
    # A compaction, a snapshot, and files of Cassandra's own tables.
    data.sstable(5)
    (data.table / "nb-1-big-Data.db").unlink()
    data.sstable(1, written=START, folder=data.table / "snapshots" / "before")
    data.sstable(9, written=START, folder=data.root / "system" / f"local-{TABLE_ID}")
    assert look(looking, clock) == []


def test_what_was_written_before_the_last_look_and_was_not_there_is_loaded(data: Data, clock: Clock) -> None:
    looking = looker(data)
    look(looking, clock)
    data.sstable(7, written=clock.now - 100 * MINUTE)
    data.sstable(8, written=clock.now - 100 * MINUTE)
    data.sstable(9)
    with capture_logs() as logs:
        assert look(looking, clock) == [("shop", "orders", 2)]
    (said,) = [each for each in logs if each["event"] == "node loaded SSTables past its commit log"]
    assert (said["log_level"], said["table"], said["files"]) == ("error", "shop.orders", 2)
    assert look(looking, clock) == [("shop", "orders", 2)], "each is found once"
    data.sstable(10, written=START - MINUTE)
    assert look(looking, clock) == [("shop", "orders", 3)]
    # What came while no shipper ran is found by the next one; so is a table whose folder is new.
    restored = data.root / "shop" / f"restored-{TABLE_ID[::-1]}"
    restored.mkdir()
    data.sstable(1, written=START - MINUTE, folder=restored)
    assert look(looker(data), clock) == [("shop", "restored", 1), ("shop", "orders", 3)]
    clock.now += int(loaded.KEPT / timedelta(microseconds=1)) * 1000
    data.sstable(11, written=START)
    assert look(looker(data), clock) == [("shop", "orders", 4)], "older findings are forgotten"


@pytest.mark.parametrize("moved", ["keyspace", "table"])
def test_what_lies_on_another_disk_by_a_link_is_looked_at(moved: str, data: Data, clock: Clock, tmp_path: Path) -> None:
    there, disk = data.table.parent if moved == "keyspace" else data.table, tmp_path / "disk"
    there.rename(disk)
    there.symlink_to(disk)
    data.sstable(1, written=START - MINUTE)
    looking = looker(data)
    assert look(looking, clock) == []
    data.sstable(2, written=START - MINUTE)
    assert look(looking, clock) == [("shop", "orders", 1)]
    # While the disk is not mounted, nothing has come or gone.
    disk.rename(tmp_path / "not mounted")
    with capture_logs() as logs:
        assert look(looking, clock) == [("shop", "orders", 1)]
    assert [each["event"] for each in logs] == ["not looking for loaded SSTables, data folder cannot be listed"]
    (tmp_path / "not mounted").rename(disk)
    assert look(looking, clock) == [("shop", "orders", 1)]


def test_a_folder_is_not_listed_again_while_it_does_not_change(data: Data, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    data.sstable(1)
    looking = looker(data)
    look(looking, clock)
    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(loaded.os, "scandir", lambda path: listed.append(str(path)) or real(path))
    look(looking, clock)
    assert str(data.table) not in listed
    data.sstable(2)
    look(looking, clock)
    assert str(data.table) in listed


def test_a_clock_that_was_set_back_makes_a_new_beginning(data: Data, clock: Clock) -> None:
    looking = looker(data)
    look(looking, clock)
    clock.now -= 60 * MINUTE
    data.sstable(1)
    assert look(looker(data), clock) == []
    assert look(looking, clock) == []


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"at_ns": 1, "folders": {"a": 7}, "found": []}', '{"at_ns": "x"}', "[" * 10_000])
def test_a_record_that_cannot_be_read_makes_a_new_beginning(data: Data, clock: Clock, note: str) -> None:
    looking = looker(data)
    look(looking, clock)
    looking._note.write_text(note)
    data.sstable(1, written=START - MINUTE)
    assert look(looker(data), clock) == []


@pytest.mark.advice("Let the shipper list it, or set `node.data_file_directories`")
def test_a_folder_that_cannot_be_listed_is_said_once_and_forgets_nothing(data: Data, clock: Clock) -> None:
    data.sstable(1, written=START - MINUTE)
    looking = looker(data)
    look(looking, clock)
    # As if its disk were not mounted.
    away = data.root.rename(data.root.with_name("away"))
    for empty in (False, True):
        if empty:
            data.root.mkdir()
        with capture_logs() as logs:
            for _ in range(3):
                assert look(looking, clock) == []
        assert [each["event"] for each in logs] == ["not looking for loaded SSTables, data folder cannot be listed"]
    data.root.rmdir()
    away.rename(data.root)
    assert look(looking, clock) == []
    data.sstable(2, written=START - MINUTE)
    assert look(looking, clock) == [("shop", "orders", 1)]


def test_no_file_is_opened(data: Data, clock: Clock) -> None:
    data.sstable(1, written=START - MINUTE).chmod(0)
    looking = looker(data)
    look(looking, clock)
    data.sstable(2, written=START - MINUTE).chmod(0)
    assert look(looking, clock) == [("shop", "orders", 1)]
    assert NodeConfig(cdc_raw=Path("/a/cdc_raw"), data_file_directories=[]).data_folders == []


def test_the_status_says_it(
    agent_over: Callable[..., Agent], settings: PipelineConfig, store: LocalStore, data: Data, clock: Clock
) -> None:
    def status() -> dict[str, Any]:
        (info, *_) = sorted(store.list("nodes/"), key=lambda info: info.name, reverse=True)
        return dict(json.loads(store.read(info.name)))

    agent = agent_over(store)
    clock.now += MINUTE
    agent.round()
    assert "loaded" not in status()
    (facts,) = read_facts(store, NODE.cluster)
    assert facts.loaded == ()
    data.sstable(1, written=START - MINUTE)
    clock.now += MINUTE
    agent._reporter._last = agent._reporter._last.__class__()
    agent.round()
    found = next(each for each in (json.loads(store.read(info.name)) for info in store.list("nodes/")) if "loaded" in each)["loaded"]
    at = datetime.fromtimestamp(clock.now / 1e9, UTC)
    assert found == [{"keyspace": "shop", "table": "orders", "table_id": TABLE_ID, "at": at.isoformat(timespec="seconds"), "files": 1}]
