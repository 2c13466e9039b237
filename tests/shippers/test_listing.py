"""The kept listing of a folder: always what a full look finds, and no cost for segments that only wait."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shippers import listing
from shippers.agent import Agent
from shippers.folder import State, classify, look
from shippers.listing import Listings
from shippers.upload import Outcome
from tests.shippers.conftest import Folder, ref
from tests.storage.memory import Fault, MemoryStore
from writetime.config.pipeline import PipelineConfig

MakeAgent = Callable[..., Agent]
LONG_AGO = time.time() - 3600


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the operating system is asked about a file, or for the names in a folder."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("stat", "lstat", "open", "listdir", "scandir"):
        counted(name)
    real_open = Path.open

    def open_(path: Path, *args: Any, **kwargs: Any) -> Any:
        counts["open"] += 1
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_)
    return counts


def quiet(*folders: Path) -> None:
    """As if nothing had been changed in them for a while."""
    for folder in folders:
        os.utime(folder, (LONG_AGO, LONG_AGO))


def change(folder: Folder, rng: random.Random) -> None:
    """What a node, a shipper, or an operator does next; nobody writes to a completed segment."""
    number = rng.randrange(1, 12)
    log, idx = folder.path / f"CommitLog-7-{number}.log", folder.path / f"CommitLog-7-{number}_cdc.idx"
    step = rng.randrange(8)
    if step == 0 and not log.exists() and not idx.exists():
        folder.segment(number, idx=rng.choice([None, b"", b"12", b"4\nCOMPLETED"]))
    elif step == 1 and log.exists() and not (idx.exists() and b"COMPLETED" in idx.read_bytes()):
        idx.write_bytes(b"120\nCOMPLETED")
    elif step == 2:
        log.unlink(missing_ok=True)
    elif step == 3:
        idx.unlink(missing_ok=True)
    elif step == 4 and log.exists():
        log.rename(folder.path / f"CommitLog-7-{number + 20}.log")
    elif step == 5:
        (folder.path / rng.choice(["lost+found", "notes"])).touch()
    elif step == 6:
        (folder.path / f"CommitLog-6-{number}.log").write_bytes(b"x")
    elif step == 7:
        for path in folder.path.glob(f"*-{number}.log"):
            path.unlink()


@pytest.mark.parametrize("seed", range(4))
def test_it_is_what_a_full_look_finds(seed: int, folder: Folder, tmp_path: Path) -> None:
    rng, kept = random.Random(seed), Listings(tmp_path / "state")
    for _ in range(150):
        for _ in range(rng.choice([0, 1, 1, 5])):
            change(folder, rng)
        assert kept.here(folder.path, time.time()) == classify(look(folder.path))
        aside = kept.aside(folder.path, time.time())
        ours = [item for item in classify(look(folder.path)) if item.segment is not None and item.state is not State.LEFTOVER_IDX]
        assert aside.segments == len(ours)
        assert aside.size == sum(item.size for item in ours)
        assert {item.state for _, item in aside.files} <= {State.COMPLETED, State.LEFTOVER_IDX, State.FOREIGN}


def test_what_changes_without_a_change_of_the_folder_is_found(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idx that grows is read each time; one that said that its segment is completed, once a minute."""
    folder.segment(1)
    folder.segment(2, idx=b"12")
    kept = Listings(tmp_path / "state")

    def states() -> list[State]:
        quiet(folder.path)
        return [item.state for item in kept.here(folder.path, time.time())]

    assert states() == [State.COMPLETED, State.GROWING]
    (folder.path / "CommitLog-7-2_cdc.idx").write_bytes(b"12\nCOMPLETED")
    assert states() == [State.COMPLETED, State.COMPLETED]
    (folder.path / "CommitLog-7-1_cdc.idx").write_bytes(b"")
    assert states() == [State.COMPLETED, State.COMPLETED]
    passed = time.monotonic() + listing.AGAIN
    monkeypatch.setattr(listing.time, "monotonic", lambda: passed)
    assert states() == [State.GROWING, State.COMPLETED]


def test_a_folder_that_is_replaced_is_looked_at_anew(folder: Folder, tmp_path: Path) -> None:
    """As when a disk is mounted over it."""
    folder.segment(1)
    quiet(folder.path)
    kept = Listings(tmp_path / "state")
    assert [item.size for item in kept.here(folder.path, time.time())] == [400]
    other = Folder(tmp_path / "other")
    other.path.mkdir()
    other.segment(1, b"other")
    folder.path.rename(tmp_path / "former")
    other.path.rename(folder.path)
    assert [item.size for item in kept.here(folder.path, time.time())] == [5]


@pytest.mark.parametrize(
    ("then", "aside"), [(b"12", False), (b"", False), (b"8\nCOMPLETED", False), (None, False), (b"8\nCOMPLETED", True), (None, True)]
)
def test_a_segment_with_the_name_of_another_is_not_taken_for_it(
    then: bytes | None, aside: bool, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted and came back between two scans, perhaps with the same inode: what grows is not shipped, spilled or deleted."""
    assert settings.node is not None
    here = Folder(settings.node.spill) if aside else folder
    here.path.mkdir(parents=True, exist_ok=True)
    here.segment(1)
    here.segment(2)
    agent = agent_over(MemoryStore())
    real = agent._scanner.scan

    def scan(**more: Any) -> Any:
        view = real(**more)
        if (here.path / "CommitLog-7-1.log").stat().st_size == 400:
            for name in ("CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"):
                (here.path / name).unlink()
            here.segment(1, b"other", idx=then)
        return view

    with monkeypatch.context() as patch:
        patch.setattr(agent._scanner, "scan", scan)
        assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert "CommitLog-7-1.log" in here.names
    is_completed = aside or then == b"8\nCOMPLETED"
    assert agent.round().shipped == ({Outcome.UPLOADED: 1} if is_completed else {})
    if then == b"8\nCOMPLETED":
        info = agent._completed._store.head(ref(1).incoming)
        assert info is not None
        assert (info.size, info.metadata["synced"]) == (5, "8")


@pytest.mark.parametrize("backlog", [20, 200])
def test_the_cost_of_a_round_does_not_follow_the_backlog(
    backlog: int, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, calls: Counter[str]
) -> None:
    assert settings.node is not None
    store, spill = MemoryStore(), settings.node.spill
    spill.mkdir(parents=True)
    for number in range(backlog):
        Folder(spill).segment(number + 1)
        folder.segment(number + 1000)
    folder.segment(2000, idx=b"12")
    store.fail(Fault.EXPIRED, times=10**6)
    agent = agent_over(store)
    for _ in range(2):
        quiet(folder.path, spill)
        agent.round()
    calls.clear()
    quiet(folder.path, spill)
    agent.round()
    assert calls["listdir"] == 0
    assert calls.total() < 120
    # What comes and goes is noticed at once, whoever does that.
    folder.segment(2001)
    (spill / "CommitLog-7-1.log").unlink()
    (spill / "CommitLog-7-1_cdc.idx").unlink()
    calls.clear()
    agent.round()
    assert agent.metrics.registry.get_sample_value("writetime_ship_aside_segments") == backlog - 1
    assert agent.metrics.registry.get_sample_value("writetime_ship_to_ship_segments") == 2 * backlog
    assert calls.total() < 240
