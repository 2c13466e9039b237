"""Spill folders: recorded before the first segment, read until empty, and never a reason not to ship."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from shippers import spill
from shippers.agent import Agent, Mode
from shippers.disk_space import Level, Space
from shippers.folder import Found, State
from shippers.scan import View
from tests.shippers.conftest import Folder, ref
from tests.shippers.test_disk_space import Down
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError
from writetime.storage.layout import SegmentName
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
GIB = 1 << 30


def ship(settings: PipelineConfig, **ship: Any) -> PipelineConfig:
    assert settings.node is not None
    node = settings.node.model_copy(update={"ship": ShipConfig.model_validate({"disk_reserve": 0, "tail_seconds": None, **ship})})
    return settings.model_copy(update={"node": node})


def node_of(config: PipelineConfig) -> NodeConfig:
    assert config.node is not None
    return config.node


def test_it_is_the_default_but_not_into_the_last_of_the_disk() -> None:
    config = ShipConfig()
    assert config.when_store_is_down == "spill"

    def may(free: int, total: int, share: float = 0.9, **more: Any) -> bool:
        space = Space(used=int(share * 1000), limit=1000, segment=0, free=free, total=total)
        return space.may_spill(ShipConfig.model_validate(more))

    assert may(15 * GIB, 100 * GIB)
    assert not may(15 * GIB - 1, 100 * GIB), "15 % of a large disk"
    assert may(GIB, 2 * GIB)
    assert not may(GIB - 1, 2 * GIB), "1 GiB of a small one"
    assert may(0, 100 * GIB, disk_reserve=0)
    assert not may(50 * GIB, 100 * GIB, share=0.79), "there is room in cdc_raw"
    # Nobody is called for a disk that is merely well used.
    assert Space(0, 1000, 0, free=5 * GIB, total=100 * GIB).level(config) is Level.OK


@pytest.mark.parametrize("mode", [Mode.ONCE, Mode.DRAIN])
def test_a_place_that_was_changed_is_shipped_from(
    mode: Mode, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path
) -> None:
    old, new = (ship(settings, cdc_total_space=1000, spill_dir=tmp_path / name) for name in ("old", "new"))
    written = {number: folder.segment(number, bytes([number]) * 100) for number in range(1, 10)}
    agent_over(Down(store), config=old).round()
    aside = sorted(path.name for path in (tmp_path / "old").glob("*.log"))
    assert aside
    assert agent_over(store, config=new).run(mode)
    assert {number: store.read(ref(number).incoming) for number in written} == written
    assert (folder.names, list((tmp_path / "old").iterdir())) == ([], [])
    # It is forgotten once it is empty.
    agent_over(store, config=new).run(Mode.ONCE)
    assert spill.places(node_of(new).state, node_of(new).spill) == ([tmp_path / "new"], [])


@pytest.mark.advice("Mount its disk, then its segments are shipped.")
def test_a_drain_fails_while_a_place_is_not_there(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path
) -> None:
    old, new = (ship(settings, cdc_total_space=1000, spill_dir=tmp_path / name) for name in ("old", "new"))
    for number in range(1, 10):
        folder.segment(number, b"x" * 100)
    agent_over(Down(store), config=old).round()
    (tmp_path / "old").rename(tmp_path / "unmounted")
    with capture_logs() as logs:
        assert not agent_over(store, config=new).run(Mode.DRAIN)
        assert agent_over(store, config=new).run(Mode.ONCE), "a service goes on"
    lost = [log["object"] for log in logs if log["event"] == "failed to read a spill folder"]
    assert lost == [str(tmp_path / "old")] * 2, "once a run"
    (tmp_path / "unmounted").rename(tmp_path / "old")
    assert agent_over(store, config=new).run(Mode.DRAIN)
    assert len(list(store.list("cdc/"))) == 9


def test_an_idx_follows_its_log_into_the_earlier_place(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path
) -> None:
    """A death between the two moves, and then the place was changed."""
    old, new = (ship(settings, spill_dir=tmp_path / name) for name in ("old", "new"))
    folder.segment(1, b"x" * 100)
    (tmp_path / "old").mkdir()
    spill.note_place(node_of(old).state, tmp_path / "old")
    os.rename(folder.path / "CommitLog-7-1.log", tmp_path / "old" / "CommitLog-7-1.log")
    assert agent_over(store, config=new).round().ok
    info = store.head(ref(1).incoming)
    assert info is not None
    assert info.metadata["ending"] == "completed"
    assert "synced" in info.metadata
    assert (folder.names, list((tmp_path / "old").iterdir())) == ([], [])


@pytest.mark.parametrize("trouble", ["inside", "a file", "another file system"])
def test_a_place_that_cannot_be_used_stops_nothing(
    trouble: str, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file")
    shm = Path("/dev/shm")
    places = {
        "inside": folder.path / "spill",
        "a file": tmp_path / "file" / "spill",
        "another file system": shm / f"writetime-{os.getpid()}",
    }
    if trouble == "another file system" and shm.stat().st_dev == folder.path.stat().st_dev:
        pytest.skip("there is no second file system at /dev/shm")
    config = ship(settings, cdc_total_space=500, spill_dir=places[trouble])
    data = folder.segment(1, b"x" * 450)
    try:
        with capture_logs() as logs:
            agent = agent_over(Down(store), config=config)
            assert not agent.run(Mode.ONCE)
            assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
            agent = agent_over(store, config=config)
            assert agent.run(Mode.ONCE)
    finally:
        if trouble == "another file system":
            places[trouble].rmdir()
    assert store.read(ref(1).incoming) == data
    assert agent.metrics.registry.get_sample_value("writetime_ship_can_spill") == 0
    errors = [log for log in logs if log["event"] == "spill folder is unusable"]
    assert [log["object"] for log in errors] == [str(places[trouble])] * 2


def test_two_mounts_of_one_file_system_are_noticed(tmp_path: Path) -> None:
    """Where a bind mount can be made. The device of both is the same, and a rename fails all the same."""
    raw, aside = tmp_path / "raw", tmp_path / "aside"
    raw.mkdir()
    aside.mkdir()
    script = (
        f"mount --bind {aside} {aside} && exec {sys.executable} -c 'from pathlib import Path; from shippers import spill; "
        f'print(spill.trouble(Path("{aside}"), Path("{raw}")))\''
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"a mount cannot be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "another file system or mount" in done.stdout
    assert spill.trouble(aside, raw) is None
    assert list(raw.iterdir()) == []


def test_without_a_note_nothing_is_put_aside(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ship(settings, cdc_total_space=500)
    for number in range(1, 6):
        folder.segment(number, b"x" * 100)

    def refuse(*_: Any) -> None:
        raise ShipError("no space left on device", operation="note the spill folder")

    monkeypatch.setattr(spill, "note_place", refuse)
    with capture_logs() as logs:
        agent_over(Down(store), config=config).round()
    assert len(folder.names) == 10
    assert "failed to spill a segment" in [log["event"] for log in logs]


@pytest.mark.parametrize("note", ["", "{", "[1]", "7"])
def test_a_note_that_cannot_be_read_fails_a_drain(
    note: str, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    """Else what lies in an earlier folder would be left behind by a drain that ends well. A service goes
    on."""
    state = node_of(settings).state
    state.mkdir()
    (state / spill.NOTE).write_text(note)
    folder.segment(1)
    assert agent_over(store, config=settings).run(Mode.ONCE)
    assert store.head(ref(1).incoming) is not None
    assert not agent_over(store, config=settings).run(Mode.DRAIN)


def test_the_work_grows_with_the_number_of_files(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is not listed once for each file that is moved."""
    looks = 0
    look = View.of

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(*args, **kwargs)

    monkeypatch.setattr(View, "of", counted)
    config = ship(settings, cdc_total_space=1000)
    for number in range(300):
        folder.segment(number, b"x" * 10)
    begun = time.monotonic()
    agent_over(Down(store), config=config, stop=Event()).round()
    assert len(list(node_of(config).spill.glob("*.log"))) > 200
    assert looks < 30
    assert time.monotonic() - begun < 30


def test_put_aside_stops_where_it_no_longer_helps(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "aside").mkdir()
    items = []
    for number in range(5):
        folder.segment(number, b"x" * 10)
        items.append(Found(f"CommitLog-7-{number}.log", State.COMPLETED, SegmentName(number, 7), size=10))
    moved = list(spill.put_aside(folder.path, tmp_path / "aside", items, lambda moved: moved < 25))
    assert [item.name for item in moved] == [f"CommitLog-7-{number}.log" for number in range(3)]
