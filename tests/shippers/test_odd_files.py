"""One odd file is one odd file: whatever its times, its size or the error that it raises, it delays no other segment, and
what stays is named and counts in the lag.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from shippers import after_crash, scan, upload
from shippers.agent import Agent, Mode
from shippers.folder import State, classify, look
from shippers.listing import Listings
from shippers.status import dry_run, status, status_table
from shippers.tail import Tail
from shippers.upload import Outcome
from shippers.write_times import WriteTimes, moment
from tests.shippers.conftest import Folder, ref
from tests.shippers.service import ROOT, command
from tests.shippers.test_after_crash import aged, torn
from tests.storage.memory import Fault, MemoryStore
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.config.node import NodeConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
YEAR = 365 * 86400.0
BEYOND_DATES = 300_000_000_000
"""After the year 9999. Btrfs, ZFS and tmpfs keep such a time."""


def node(settings: PipelineConfig, **changes: Any) -> PipelineConfig:
    assert settings.node is not None
    ship = {key: value for key, value in changes.items() if key != "address"}
    changed: dict[str, Any] = {"ship": settings.node.ship.model_copy(update=ship)}
    if "address" in changes:
        changed["address"] = changes["address"]
    return settings.model_copy(update={"node": settings.node.model_copy(update=changed)})


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let this many seconds pass between two scans."""
    passed = [0.0]
    monkeypatch.setattr(scan, "time", SimpleNamespace(time=lambda: time.time() + passed[0]))

    def more(seconds: float) -> None:
        passed[0] += seconds

    return more


@pytest.fixture
def any_time() -> Iterator[Path]:
    """A folder whose file system keeps 64-bit times."""
    try:
        path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    except OSError:
        pytest.skip("needs a tmpfs at /dev/shm")
    try:
        os.utime(path, (BEYOND_DATES, BEYOND_DATES))
        if path.stat().st_mtime != BEYOND_DATES:
            pytest.skip("the file system at /dev/shm has no 64-bit times")
        yield path
    finally:
        shutil.rmtree(path)


@pytest.mark.parametrize("mtime", [BEYOND_DATES, -BEYOND_DATES, -1, None])
def test_a_time_that_no_date_can_be(
    mtime: float | None, any_time: Path, store: LocalStore, agent_over: MakeAgent, settings: PipelineConfig
) -> None:
    folder, mtime = Folder(any_time), time.time() + YEAR if mtime is None else mtime
    config = settings.model_copy(
        update={"node": NodeConfig(cdc_raw=any_time, host_id="host-1", datacenter="dc1", state_dir=any_time / "s")}
    )
    for number in (1, 2, 3):
        folder.segment(number)
    growing = encode_segment(4, 7, [b"mutation"] * 10)
    folder.segment(4, growing, idx=str(len(growing)).encode())
    for name in ("CommitLog-7-1.log", "CommitLog-7-4.log", "CommitLog-7-4_cdc.idx"):
        os.utime(any_time / name, (mtime, mtime))
    assert len([file for file in status(config)["files"] if file["state"] == "completed"]) == 3
    Console(width=200).print(status_table(status(config)))
    assert [plan["action"] for plan in dry_run(config, store, None) if plan["state"] == "completed"] == ["upload, verify, delete"] * 3
    agent = agent_over(store, config=config)
    with capture_logs() as logs:
        result = agent.round()
    assert (result.shipped, result.failed) == ({Outcome.UPLOADED: 3}, [])
    info = store.head(ref(1).incoming)
    assert info is not None
    written = datetime.fromisoformat(info.metadata["sealed_at"])
    assert datetime(1970, 1, 1, tzinfo=UTC) <= written <= datetime.now(UTC)
    assert len(list(store.list("cdc_parts/"))) == 1, "the tail of the one that grows"
    said = [Path(log["file"]).name for log in logs if log["event"] == "last write to a file is in the future or before 1970"]
    assert sorted(said) == ["CommitLog-7-1.log", "CommitLog-7-4.log", "CommitLog-7-4_cdc.idx"]


def test_moments_are_dates() -> None:
    for odd in (BEYOND_DATES, -BEYOND_DATES, 1e300, -1e300):
        assert datetime(1970, 1, 1, tzinfo=UTC) <= moment(odd) <= datetime.now(UTC)
    assert moment(1.5) == datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)


def test_the_age_of_a_file_with_an_impossible_time_outlasts_a_restart(tmp_path: Path) -> None:
    path, state = tmp_path / "file", tmp_path / "state"
    path.write_bytes(b"")

    def written(at: float, size: int = 1, mtime: float = 9e9) -> float:
        times = WriteTimes(state)
        found = times.of(path, size, mtime, at)
        times.keep()
        return found

    assert [written(1000.0), written(2000.0)] == [1000.0, 1000.0]
    assert [written(3000.0, size=2), written(4000.0, size=2, mtime=8e9)] == [3000.0, 4000.0], "it was written to"
    assert written(500.0, size=2, mtime=8e9) == 500.0, "the clock was set back since"
    assert WriteTimes(state).of(path, 1, 5e8, 1e9) == 5e8, "a time in the past is believed"
    path.unlink()
    times = WriteTimes(state)
    times.of(path, 2, 8e9, 600.0)
    times.keep()
    assert ({}, (state / "write_times.json").read_text()) == ({}, "{}")
    for damaged in ("[]", '{"a": 1}', "\xff", '{"a": [1, 2]}'):
        (state / "write_times.json").write_text(damaged, encoding="latin-1")
        assert written(700.0) == 700.0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_segment_from_a_clock_that_was_ahead_is_shipped_after_a_crash(
    restarts: bool,
    store: LocalStore,
    folder: Folder,
    agent_over: MakeAgent,
    settings: PipelineConfig,
    later: Callable[[float], None],
) -> None:
    config = node(settings, after_crash_seconds=300)
    folder.segment(1, torn(1), idx=b"120")
    folder.segment(2, torn(2), idx=b"120")
    aged(folder, 1, seconds=-YEAR)
    aged(folder, 2, seconds=YEAR)
    agent = agent_over(store, config=config)
    with capture_logs() as logs:
        assert agent.round().shipped == {Outcome.UPLOADED: 1}
        assert agent.round().waiting == 1
    assert [log["file"] for log in logs if "is in the future" in log["event"]] == [str(folder.path / "CommitLog-7-1.log")]
    later(301)
    if restarts:
        assert agent_over(store, config=config).run(Mode.ONCE)
    else:
        assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert folder.names == []


def test_a_drain_where_the_kernel_cannot_tell_waits_for_its_own_clock(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    monkeypatch.setattr(after_crash, "nobody_writes", lambda _: None)
    monkeypatch.setattr(scan, "answers", lambda _: False)
    folder.segment(1, torn(1), idx=b"120")
    for name in folder.names:
        os.utime(folder.path / name, (time.time() + YEAR,) * 2)
    with pytest.raises(ShipError, match="it was modified recently"):
        agent_over(store).run(Mode.DRAIN)
    later(301)
    assert agent_over(store).run(Mode.DRAIN)
    assert folder.names == []


def test_what_stays_counts_in_the_lag_whatever_its_time(folder: Folder, agent_over: MakeAgent, later: Callable[[float], None]) -> None:
    store = MemoryStore()
    folder.segment(1)
    aged(folder, 1, seconds=-YEAR)
    store.fail(Fault.FORBIDDEN, on="put", prefix="cdc/", times=9)
    agent = agent_over(store)
    agent.round()
    later(100)
    (error,) = agent.round().failed
    assert error.obj is not None
    lag = agent.metrics.registry.get_sample_value("writetime_ship_lag_seconds")
    assert lag is not None
    assert 100 <= lag < 1000
    assert agent.metrics.registry.get_sample_value("writetime_ship_to_ship_segments") == 1


def test_many_of_them_cost_nothing_to_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an outage during which the clock was ahead."""
    folder, state, asked = Folder(tmp_path / "spill"), tmp_path / "state", 0
    folder.path.mkdir()
    for number in range(50):
        folder.segment(number + 1)
        aged(folder, number + 1, seconds=-YEAR)
    os.utime(folder.path, (0, 0))
    listings = Listings(state, records=True)
    assert listings.aside(folder.path, time.time()).segments == 50
    assert len(listings.new_odd()) == 50
    real = os.path.lexists

    def lexists(path: Any) -> bool:
        nonlocal asked
        asked += 1
        return real(path)

    monkeypatch.setattr(os.path, "lexists", lexists)
    before = (state / "write_times.json").stat()
    for _ in range(10):
        listings.here(folder.path, time.time())
        assert listings.aside(folder.path, time.time()).segments == 50
    assert (asked, listings.new_odd()) == (0, [])
    assert (state / "write_times.json").stat() == before


def test_nothing_is_signed_off_by_the_time_of_such_a_segment(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    agent = agent_over(store)
    folder.segment(1)
    before = aged(folder, 1, seconds=600).stat().st_mtime
    folder.segment(2)
    aged(folder, 2, seconds=-YEAR)
    assert agent.round().shipped == {Outcome.UPLOADED: 2}
    assert agent._completed.youngest == (ref(1).segment, before)


@pytest.mark.parametrize("error", [ValueError("year 11476 is out of range"), RuntimeError("defect"), MemoryError(), KeyError(1)])
def test_whatever_is_raised_for_one_segment_delays_no_other(
    error: Exception, store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        folder.segment(number)
    real = upload.measure

    def measure(segment: Any, path: Path) -> Any:
        if segment == ref(1):
            raise error
        return real(segment, path)

    monkeypatch.setattr(upload, "measure", measure)
    agent = agent_over(store)
    with capture_logs() as logs:
        result = agent.round()
    assert result.shipped == {Outcome.UPLOADED: 2}
    (failed,) = result.failed
    assert str(failed.obj).endswith("CommitLog-7-1.log")
    assert [log["segment"] for log in logs if log["event"] == "failed to ship a segment unexpectedly"] == ["CommitLog-7-1.log"]
    assert not agent_over(store).run(Mode.ONCE)
    monkeypatch.undo()
    assert agent.round().shipped == {Outcome.UPLOADED: 1}


def test_whatever_is_raised_for_one_tail_delays_no_other(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        data = encode_segment(number, 7, [b"mutation"] * 10)
        folder.segment(number, data, idx=str(len(data)).encode())
    real = Tail.ship

    def ship(self: Tail, segment: Any, *rest: Any) -> Any:
        if segment == ref(1):
            raise KeyError("defect")
        return real(self, segment, *rest)

    monkeypatch.setattr(Tail, "ship", ship)
    agent = agent_over(store, config=node(settings, tail_seconds=0.01))
    result = agent.round()
    assert [str(failed.obj) for failed in result.failed] == [str(folder.path / "CommitLog-7-1.log")]
    assert [info.name.split("/")[4] for info in store.list("cdc_parts/")] == ["CommitLog-7-2"]


def test_a_segment_that_cannot_be_read_delays_no_other_in_a_drain(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        folder.segment(number, torn(number), idx=b"120")
    folder.segment(3)
    real = after_crash.is_used

    def is_used(path: Path) -> bool:
        if path.name == "CommitLog-7-1.log":
            raise ShipError(f"failed to read the file: {os.strerror(errno.EIO)}", operation="read a segment", obj=str(path))
        return real(path)

    monkeypatch.setattr(after_crash, "is_used", is_used)
    with capture_logs() as logs:
        assert not agent_over(store).run(Mode.DRAIN)
    assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
    named = {log["object"] for log in logs if log["event"] == "failed to read a segment"}
    assert named == {str(folder.path / "CommitLog-7-1.log")}
    monkeypatch.undo()
    assert agent_over(store).run(Mode.DRAIN)
    assert folder.names == []


def test_a_spill_folder_that_cannot_be_listed_delays_nothing_in_cdc_raw(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.node is not None
    spill = settings.node.spill
    spill.mkdir(parents=True)
    Folder(spill).segment(1)
    folder.segment(2)
    real = os.listdir

    def listdir(path: Any) -> list[str]:
        if path == spill:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    agent = agent_over(store)
    with capture_logs() as logs:
        assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert [log["object"] for log in logs if log["event"] == "failed to read a spill folder"] == [str(spill)]
    assert not agent_over(store).run(Mode.DRAIN), "a drain must not say that all is shipped"
    monkeypatch.undo()
    assert agent.round().shipped == {Outcome.UPLOADED: 1}


def test_a_huge_idx_costs_no_memory(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    data = folder.segment(1, torn(1), idx=b"")
    os.truncate(folder.path / "CommitLog-7-1_cdc.idx", 1 << 30)
    aged(folder, 1)
    folder.segment(2)
    tracemalloc.start()
    try:
        assert [item.state for item in classify(look(folder.path))] == [State.GROWING, State.COMPLETED]
        assert agent_over(store, config=node(settings, after_crash_seconds=1)).run(Mode.ONCE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert (store.read(ref(1).incoming), folder.names) == (data, [])


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_a_name_that_is_no_text_is_shown(encoding: str, folder: Folder, tmp_path: Path) -> None:
    """As in a locale like en_US.UTF-8, where Python refuses to write it."""
    folder.segment(1)
    Path(os.fsdecode(os.fsencode(folder.path) + b"/caf\xe9.log")).touch()
    for option in ("--status", "--dry-run"):
        line = command(folder.path, str(tmp_path / "bucket"), option)
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        shown = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "caf\\udce9.log" in shown.stdout
        assert "CommitLog-7-1.log" in shown.stdout
