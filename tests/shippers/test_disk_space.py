"""Space: its level, the rate limit, and spilling while the store is down; nothing is ever deleted for
space."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import tenacity
from structlog.testing import capture_logs

from shippers import agent as agent_module
from shippers import disk_space, relief, spill, upload
from shippers.agent import Agent, Mode
from shippers.disk_space import Level, Pace, Space
from shippers.folder import Found, State
from shippers.upload import Outcome
from tests.shippers.conftest import FakeLink, Folder, ref
from tests.shippers.faults import FaultyStore
from tests.shippers.test_agent import changed, puts
from tests.storage.memory import Fault, MemoryStore
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError, StoreUnavailable
from writetime.storage.checksum import crc32c
from writetime.storage.layout import SegmentName
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
GIB = 1 << 30


class Down(FaultyStore):
    """A store that can be switched off, and counts the calls meanwhile."""

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self.down = True
        self.refused = 0

    def _call(self, what: str, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.down:
            self.refused += 1
            raise StoreUnavailable("503", operation=what, obj=name)
        return super()._call(what, name, *args, **kwargs)


def ship(settings: PipelineConfig, **options: Any) -> PipelineConfig:
    return changed(settings, ship=ShipConfig(**{"tail_seconds": None} | options))


@pytest.mark.parametrize(
    ("used", "free", "expected"),
    [
        (0, 9 * GIB, Level.OK),
        (499, 9 * GIB, Level.OK),
        (500, 9 * GIB, Level.WARN),
        (799, 9 * GIB, Level.WARN),
        (800, 9 * GIB, Level.ALARM),
        (5000, 9 * GIB, Level.ALARM),
        (0, 2 * GIB - 1, Level.WARN),
        (0, GIB - 1, Level.ALARM),
        (600, GIB - 1, Level.ALARM),
    ],
)
def test_levels(used: int, free: int, expected: Level) -> None:
    assert Space(used, 1100, 100, free).level(ShipConfig()) is expected


def test_a_limit_smaller_than_a_segment_is_full() -> None:
    assert Space(1, 100, 100, 9 * GIB).share == 1


def test_measuring(tmp_path: Path) -> None:
    found = [Found(f"CommitLog-7-{n}.log", State.GROWING, SegmentName(n, 7), size=n) for n in (10, 30, 20)]
    space = disk_space.measure(tmp_path, found, 4000)
    assert (space.used, space.limit, space.segment) == (60, 4000, 30)
    assert space.free > 0
    disk = os.statvfs(tmp_path)
    assert disk_space.measure(tmp_path, found, None).limit == min(4 * GIB, disk.f_blocks * disk.f_frsize // 8)
    with pytest.raises(ShipError, match="failed to read the free disk space"):
        disk_space.measure(tmp_path / "nowhere", found, None)


def test_the_limit_is_asked_of_the_node(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    link = FakeLink(space=1000, down=True)
    agent = agent_over(store, link=link)
    folder.segment(1, b"x" * 100, idx=None)
    agent.round()
    link.down = False
    with capture_logs() as logs:
        agent.round()
        agent.round()
    assert agent.metrics.registry.get_sample_value("writetime_ship_cdc_limit_bytes") == 1000
    assert link.asked.count("settings") == 2, "once a round, until it has answered"
    assert not [log for log in logs if log["log_level"] == "warning"]
    own = agent_over(store, link=link, config=ship(settings, cdc_total_space="2KiB"))
    own.round()
    assert own.metrics.registry.get_sample_value("writetime_ship_cdc_limit_bytes") == 2048


def test_a_change_of_level_is_told_once(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    agent = agent_over(store, config=ship(settings, cdc_total_space=1000, disk_reserve=0))
    levels = []
    for size in (10, 300, 300, 900, 10):
        folder.segment(1, b"x" * size, idx=b"5")
        with capture_logs() as logs:
            agent.round()
        levels += [(log["level"], log["log_level"]) for log in logs if log["event"] == "space level changed"]
        assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
    assert levels == [("alarm", "error"), ("ok", "info")]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.waited = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waited += seconds
        return False


def test_the_pace() -> None:
    clock = Clock()
    pace = Pace(100, clock, clock)  # type: ignore[arg-type]
    pace.wait(lambda: False)
    for _ in range(10):
        pace.spent(1000)
        pace.wait(lambda: False)
    assert 99 <= clock.waited <= 100
    clock.now += 3600
    pace.spent(1000)
    pace.spent(1000)
    pace.wait(lambda: False)
    assert clock.waited >= 118, "an idle hour is no credit for a burst"
    before = clock.waited
    pace.spent(10**9)
    pace.wait(lambda: True)
    pace.wait(lambda: False)
    assert clock.waited == before, "a hurry lifts the limit, and nothing is paid back later"
    Pace(None, Event()).wait(lambda: False)


def test_the_pace_ends_with_a_stop() -> None:
    stop = Event()
    stop.set()
    pace = Pace(1, stop)
    pace.spent(10**9)
    pace.wait(lambda: False)


@pytest.mark.parametrize("limit", [10_000, 3000])
def test_the_rate_is_lifted_when_space_gets_short(
    limit: int, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three segments of 1000 bytes at 1 byte a second: held back unless they fill more than half."""
    stop = Event()
    waits: list[float] = []

    def wait(seconds: float | None = None) -> bool:
        waits.append(seconds or 0)
        stop.set()
        return True

    agent = agent_over(store, stop=stop, config=ship(settings, cdc_total_space=limit, disk_reserve=0, rate=1))
    monkeypatch.setattr(stop, "wait", wait)
    for number in (1, 2, 3):
        folder.segment(number, b"x" * 1000)
    result = agent.round()
    assert bool(waits) == (limit == 10_000)
    assert result.shipped[Outcome.UPLOADED] >= 2


@pytest.mark.parametrize("policy", ["keep", "spill"])
def test_the_store_is_down_and_space_runs_out(
    policy: str, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    watched = Down(store)
    config = ship(settings, cdc_total_space=1100, disk_reserve=0, when_store_is_down=policy)
    assert config.node is not None
    aside = config.node.spill
    agent = agent_over(watched, config=config)
    written = {number: folder.segment(number, bytes([number]) * 100) for number in range(1, 9)}
    folder.segment(9, b"g" * 100, idx=b"5")
    assert len(agent.round().failed) == 3
    kept = {path.name: path.read_bytes() for path in (*folder.path.glob("*.log"), *aside.glob("*.log"))}
    assert kept == {f"CommitLog-7-{number}.log": data for number, data in written.items()} | {"CommitLog-7-9.log": b"g" * 100}
    moved = sorted(path.name for path in aside.glob("*")) if aside.is_dir() else []
    # 900 of 1000 bytes are in use: two have to go for less than 800. The first is in hand while the store is
    # asked for it.
    assert moved == ([] if policy == "keep" else [f"CommitLog-7-{n}{end}" for n in (2, 3) for end in (".log", "_cdc.idx")])
    assert agent.metrics.registry.get_sample_value("writetime_ship_aside_segments") == (0 if policy == "keep" else 2)
    watched.down = False
    assert agent.round().shipped == {Outcome.UPLOADED: 8}
    assert {number: store.read(ref(number).incoming) for number in written} == written
    assert folder.names == ["CommitLog-7-9.log", "CommitLog-7-9_cdc.idx"]
    assert not aside.is_dir() or list(aside.iterdir()) == []


class Hanging(FaultyStore):
    """A store whose uploads of segments hang until `go`; then it stays down."""

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self.asked, self.go = Event(), Event()

    def _call(self, what: str, name: str, *args: Any, **kwargs: Any) -> Any:
        if what == "put" and name.startswith("cdc/"):
            self.asked.set()
            self.go.wait(60)
        return super()._call(what, name, *args, **kwargs)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_room_is_made_while_an_upload_hangs(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node keeps writing while an upload blocks the loop: completed segments are spilled, except the
    current one.
    """
    monkeypatch.setattr(relief, "_HANGS", 0.1)
    monkeypatch.setattr(relief, "_EVERY_SECONDS", 0.01)
    watched, stop = Hanging(store), Event()
    config = ship(settings, cdc_total_space=1100, disk_reserve=0, when_store_is_down="spill")
    assert config.node is not None
    aside = config.node.spill
    written = {1: folder.segment(1, b"\1" * 100)}
    thread = Thread(target=agent_over(watched, config=config, stop=stop).run, args=(Mode.SERVICE,))
    thread.start()
    try:
        assert watched.asked.wait(60)
        written |= {number: folder.segment(number, bytes([number]) * 100) for number in range(2, 10)}
        # 900 of 1000 bytes: two have to go for less than 800.
        eventually(lambda: aside.is_dir() and len(list(aside.glob("*.log"))) == 2 and len(list(aside.glob("*.idx"))) == 2)
        assert sorted(path.name for path in aside.glob("*.log")) == ["CommitLog-7-2.log", "CommitLog-7-3.log"]
        watched.go.set()
        eventually(lambda: folder.names == [] and list(aside.iterdir()) == [])
    finally:
        watched.go.set()
        stop.set()
        thread.join(60)
    assert {number: store.read(ref(number).incoming) for number in written} == written


def test_room_is_made_in_the_pause_after_a_failure(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relief, "_EVERY_SECONDS", 0.01)
    watched, stop = Down(store), Event()
    config = ship(settings, cdc_total_space=1100, disk_reserve=0, when_store_is_down="spill")
    assert config.node is not None
    aside = config.node.spill
    folder.segment(1, b"\1" * 100)
    # It would be an hour until anybody looked again.
    monkeypatch.setattr(tenacity, "wait_random_exponential", lambda **_: tenacity.wait_fixed(3600))
    thread = Thread(target=agent_over(watched, config=config, stop=stop).run, args=(Mode.SERVICE,))
    thread.start()
    try:
        eventually(lambda: watched.refused > 0)
        for number in range(2, 10):
            folder.segment(number, bytes([number]) * 100)
        eventually(lambda: aside.is_dir() and len(list(aside.glob("*.log"))) == 2)
    finally:
        stop.set()
        thread.join(60)


def test_a_store_that_is_down_is_not_asked_for_every_segment(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    watched = Down(store)
    for number in range(50):
        folder.segment(number)
    result = agent_over(watched).round()
    assert len(result.failed) == 3
    assert watched.refused < 15
    assert len(folder.names) == 100


@pytest.mark.parametrize("fault", [Fault.EXPIRED, Fault.FORBIDDEN])
def test_a_store_that_refuses_us_counts_as_down(
    fault: Fault, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewing credentials takes an operator: meanwhile segments are spilled, and none is read repeatedly."""
    memory = MemoryStore()
    agent = agent_over(memory, config=ship(settings, cdc_total_space=1000, disk_reserve=0, when_store_is_down="spill"))
    written = {number: folder.segment(number, bytes([number]) * 100) for number in range(1, 10)}
    read, real = [], upload.crc32c_of

    def crc32c_of(path: Path) -> tuple[int, int]:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(upload, "crc32c_of", crc32c_of)
    memory.fail(fault, on="put", prefix="cdc/", times=1000)
    assert settings.node is not None
    for _ in range(2):
        assert len(agent.round().failed) == 3
        assert len(list(settings.node.spill.glob("*.log"))) == 2
    # The first three, of which two were put aside: a rename is a change of the file by its inode.
    assert len(read) == 5
    agent.round()
    assert len(read) == 5
    memory.calm()
    assert agent.round().shipped == {Outcome.UPLOADED: 9}
    assert {number: memory.read(ref(number).incoming) for number in written} == written


def test_a_node_that_has_not_said_who_it_is_yet(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that bootstraps writes for hours before it answers: the shipper stays, room is made, and then all
    is shipped.
    """
    config = changed(ship(settings, cdc_total_space=1000, disk_reserve=0, when_store_is_down="spill"), host_id=None)
    assert config.node is not None
    aside = config.node.spill
    written = {number: folder.segment(number, bytes([number]) * 100) for number in range(1, 10)}
    link, stop, rounds = FakeLink(down=True), Event(), []

    def wait(_: float | None = None) -> bool:
        rounds.append(len(list(aside.glob("*.log"))))
        link.down = len(rounds) < 3
        return len(rounds) == 4

    monkeypatch.setattr(stop, "wait", wait)
    with capture_logs() as logs:
        assert agent_over(store, link=link, stop=stop, config=config).run(Mode.SERVICE)
    assert rounds == [2, 2, 2, 0]
    assert ("alarm", "error") in [(log["level"], log["log_level"]) for log in logs if log["event"] == "space level changed"]
    assert [log["kind"] for log in logs if log["event"] == "round failed"] == ["ShipError"] * 3
    assert {number: store.read(ref(number).incoming) for number in written} == written


def stuck(store: LocalStore, number: int, data: bytes) -> None:
    """Let the store have other bytes under both names of the segment."""
    for name in (ref(number).incoming, ref(number).conflict(crc32c(data))):
        store.put(name, b"other bytes")


def test_nothing_is_put_aside_while_the_store_answers(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    """One segment in trouble at an alarm: the store is not down, and moving the file away would hide the
    trouble.
    """
    config = ship(settings, cdc_total_space=300, disk_reserve=0, when_store_is_down="spill")
    stuck(store, 1, folder.segment(1, b"x" * 250))
    assert not agent_over(store, config=config).round().ok
    assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]


def test_a_full_disk_is_not_filled_further(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    config = ship(settings, cdc_total_space=300, disk_reserve=1 << 60, when_store_is_down="spill")
    folder.segment(1, b"x" * 250)
    folder.segment(2, b"x" * 250)
    agent_over(Down(store), config=config).round()
    assert len(folder.names) == 4


def test_at_an_alarm_the_nodes_space_comes_first(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    for limit, first in ((100_000, 1), (300, 2)):
        config = ship(settings, cdc_total_space=limit, disk_reserve=0, when_store_is_down="spill")
        assert config.node is not None
        config.node.spill.mkdir(parents=True, exist_ok=True)
        (config.node.spill / "CommitLog-7-1.log").write_bytes(b"aside")
        folder.segment(2, b"x" * 250)
        watched = FaultyStore(LocalStore(f"{store.url}-{limit}"))
        agent_over(watched, config=config).round()
        assert puts(watched)[0] == ref(first).incoming


class Writing(FaultyStore):
    """A store during whose uploads a node writes on: what `meanwhile` does, at each that is asked for."""

    def __init__(self, inner: LocalStore, meanwhile: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._meanwhile = meanwhile

    def _call(self, what: str, name: str, *args: Any, **kwargs: Any) -> Any:
        if what == "put" and name.startswith("cdc/"):
            self._meanwhile(name)
        return super()._call(what, name, *args, **kwargs)


@pytest.mark.parametrize("mode", [Mode.ONCE, Mode.SERVICE])
def test_a_node_that_runs_short_while_a_backlog_is_shipped(
    mode: Mode, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight segments lie aside; cdc_raw, empty at first, is filled while the second of them is sent: the rest
    of them wait.
    """
    monkeypatch.setattr(agent_module, "_LOOK_AGAIN", 0.0)
    config = ship(settings, cdc_total_space=1100, disk_reserve=0, when_store_is_down="spill")
    assert config.node is not None
    aside, stop = config.node.spill, Event()
    aside.mkdir(parents=True)
    written = {number: bytes([number]) * 100 for number in range(1, 9)}
    for number, data in written.items():
        (aside / f"CommitLog-7-{number}.log").write_bytes(data)
    order: list[int] = []

    def meanwhile(name: str) -> None:
        order.append(next(number for number in range(1, 20) if ref(number).incoming == name))
        if len(order) == 2:
            written.update({number: folder.segment(number, bytes([number]) * 100) for number in range(9, 18)})
        if len(order) == 17:
            stop.set()

    assert agent_over(Writing(store, meanwhile), config=config, stop=stop).run(mode)
    assert order == [1, 2, *range(9, 18), *range(3, 9)]
    assert {number: store.read(ref(number).incoming) for number in written} == written


def test_a_segment_in_trouble_does_not_hold_up_what_lies_aside(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alarm that shipping cannot end, as the segment that causes it cannot be shipped: no round is cut
    short for it again and again.
    """
    monkeypatch.setattr(agent_module, "_LOOK_AGAIN", 0.0)
    config = ship(settings, cdc_total_space=300, disk_reserve=0, when_store_is_down="spill")
    assert config.node is not None
    config.node.spill.mkdir(parents=True)
    data = b"aside"
    (config.node.spill / "CommitLog-7-1.log").write_bytes(data)
    stuck(store, 2, folder.segment(2, b"x" * 250))
    assert not agent_over(store, config=config).run(Mode.ONCE)
    assert store.read(ref(1).incoming) == data


def test_what_was_put_aside_comes_back_to_the_node(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    """A node that replays after a crash links a segment anew that lies aside: it is never overwritten, and
    shipped once.
    """
    config = ship(settings, cdc_total_space=200, disk_reserve=0, when_store_is_down="spill")
    assert config.node is not None
    config.node.spill.mkdir(parents=True)
    data = folder.segment(1)
    (config.node.spill / "CommitLog-7-1.log").write_bytes(data)
    watched = Down(store)
    agent = agent_over(watched, config=config)
    agent.round()
    assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
    watched.down = False
    assert agent.round().shipped == {Outcome.UPLOADED: 1, Outcome.ALREADY_THERE: 1}
    assert folder.names == []


def completed(number: int) -> Found:
    return Found(f"CommitLog-7-{number}.log", State.COMPLETED, SegmentName(number, 7))


@pytest.mark.parametrize("ending", ["completed", "after-crash"])
def test_a_death_between_the_two_renames(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The idx says how the segment ended: it is moved after its log."""
    assert settings.node is not None
    synced = 100 if ending == "after-crash" else 90
    data, aside = folder.segment(1, b"x" * 100, idx=b"%d\nCOMPLETED" % synced), settings.node.spill
    assert spill.trouble(aside, folder.path) is None
    real = os.rename

    def die(source: Path, target: Path) -> None:
        if source.name.endswith("_cdc.idx"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        list(spill.put_aside(folder.path, aside, [completed(1)], lambda _: True))
    assert folder.names == ["CommitLog-7-1_cdc.idx"]
    monkeypatch.undo()
    assert agent_over(store).round().shipped == {Outcome.UPLOADED: 1}
    assert store.read(ref(1).incoming) == data
    info = store.head(ref(1).incoming)
    assert info is not None
    assert (info.metadata["ending"], info.metadata["synced"]) == (ending, str(synced))
    assert (folder.names, list(aside.iterdir())) == ([], [])


def test_an_idx_that_cannot_follow_its_log_is_not_deleted(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.node is not None
    settings.node.spill.mkdir(parents=True)
    folder.segment(1)
    os.rename(folder.path / "CommitLog-7-1.log", settings.node.spill / "CommitLog-7-1.log")

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    agent = agent_over(Down(store))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        assert not agent.round().ok
    assert folder.names == ["CommitLog-7-1_cdc.idx"]


def test_a_rename_that_is_refused(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.segment(1)
    assert spill.trouble(tmp_path / "aside", folder.path) is None

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ShipError, match="Permission denied"):
        list(spill.put_aside(folder.path, tmp_path / "aside", [completed(1)], lambda _: True))
    assert len(folder.names) == 2


def test_settings(tmp_path: Path) -> None:
    node = NodeConfig.model_validate({"cdc_raw": tmp_path / "cdc_raw", "ship": {"cdc_total_space": "4GiB", "rate": "20MB"}})
    assert (node.ship.cdc_total_space, node.ship.rate) == (4 * GIB, 20_000_000)
    assert node.spill == tmp_path / "cdc_raw.writetime" / "spill"
    for wrong in ({"rate": 0}, {"listen": "9464"}, {"listen": "a b:1"}, {"when_store_is_down": "delete"}):
        with pytest.raises(ValueError, match=r"rate|listen|when_store_is_down"):
            ShipConfig.model_validate(wrong)
