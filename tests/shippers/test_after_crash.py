"""Segments that a node left incomplete, segments of 3.11, and the last segments of a node before it is
wiped."""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from shippers import after_crash, open_file_probe
from shippers.agent import Agent, Mode
from shippers.open_file_probe import nobody_writes
from shippers.upload import Outcome
from tests.shippers.conftest import Folder, ref
from tests.shippers.test_agent import changed
from tests.shippers.test_upload import take_in
from writetime.cassandra.commitlog import sections
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError
from writetime.pipeline.documents import SegmentInput
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
PATIENCE = 300.0


def aged(folder: Folder, number: int, *, seconds: float = 3600, version: int = 7) -> Path:
    path = folder.path / f"CommitLog-{version}-{number}.log"
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def torn(number: int) -> bytes:
    """A preallocated segment of 64 KiB: one synced section, then bytes that no sync marker covers, then
    zeros.
    """
    whole = encode_segment(number, 7, [b"mutation"] * 10)
    return (whole + b"half a frame").ljust(1 << 16, b"\0")


# --- whether anybody writes


def test_nobody_writes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    assert nobody_writes(path) is True
    with path.open("rb"):
        assert nobody_writes(path) is True, "readers do not count"
    with path.open("r+b") as file:
        assert nobody_writes(path) is False
        mapped = mmap.mmap(file.fileno(), 0)
    with closing(mapped):
        assert nobody_writes(path) is False, "a mapping outlives its descriptor"
        link = tmp_path / "link"
        link.hardlink_to(path)
        assert nobody_writes(link) is False, "a hard link is the same file"
    assert nobody_writes(link) is True
    assert nobody_writes(tmp_path / "nowhere") is None
    with path.open("r+b"):
        pass
    assert path.read_bytes() == b"x" * mmap.PAGESIZE


def test_no_lease_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for _ in range(3):
        assert nobody_writes(path) is True
        # With a lease still held this would wait for it, for lease-break-time: 45 s.
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
36 27 0:30 /segments /var/lib/cassandra rw,relatime shared:5 master:2 - virtiofs share rw
41 27 0:44 / /mnt/n\\040f\\040s rw - nfs4 server:/export rw
42 27 0:45 / /mnt/fuse rw - fuse.s3fs s3fs rw
136 27 0:46 / /mnt/odd rw
"""


def test_the_type_of_a_mount() -> None:
    found = {mount: open_file_probe.type_of(MOUNTS, mount) for mount in ("27", "36", "41", "42", "136", "7")}
    assert found == {"27": "ext4", "36": "virtiofs", "41": "nfs4", "42": "fuse.s3fs", "136": None, "7": None}


@pytest.mark.parametrize("mounted", ["virtiofs", "fuse.s3fs", "nfs4", "cifs", "ceph", "9p", "something new", None])
def test_a_lease_counts_for_nothing_where_other_machines_may_write(
    mounted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    line = f" 1 0:9 / / rw - {mounted} share rw\n"
    real = Path.read_text

    def read_text(file: Path, **more: Any) -> str:
        if file != Path("/proc/self/mountinfo"):
            return real(file, **more)
        return "".join(f"{mount}{line}" for mount in range(10_000)) if mounted else ""

    monkeypatch.setattr(Path, "read_text", read_text)
    assert nobody_writes(path) is None
    with path.open("r+b"):
        assert nobody_writes(path) is None


# --- after a crash


def test_an_orphan_is_shipped_whole_and_says_so(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    data = folder.segment(1, torn(1), idx=b"120")
    aged(folder, 1)
    assert agent_over(store).round().shipped == {Outcome.UPLOADED: 1}
    info = store.head(ref(1).incoming)
    assert info is not None
    assert (store.read(info.name), info.metadata["ending"]) == (data, "after-crash")
    assert SegmentInput.from_object(info).ref == ref(1)
    assert folder.names == []


def test_a_segment_that_somebody_writes_to_is_never_an_orphan(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1, torn(1), idx=b"120")
    path = aged(folder, 1)
    with path.open("r+b"):
        assert agent_over(store).round().waiting == 1
    assert len(folder.names) == 2
    assert agent_over(store).round().shipped == {Outcome.UPLOADED: 1}


def test_an_orphan_is_left_to_its_node_for_a_while(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1, torn(1), idx=b"120")
    aged(folder, 1, seconds=PATIENCE - 60)
    assert agent_over(store).round().waiting == 1
    # The node comes back, replays, and completes it with the length of the file.
    (folder.path / "CommitLog-7-1_cdc.idx").write_bytes(b"65536\nCOMPLETED")
    assert agent_over(store).round().shipped == {Outcome.UPLOADED: 1}
    info = store.head(ref(1).incoming)
    assert info is not None
    assert (info.metadata["ending"], info.metadata["synced"]) == ("after-crash", "65536")


def test_one_that_was_closed_as_usual_says_so_too(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1, torn(1), idx=b"120\nCOMPLETED")
    agent_over(store).round()
    info = store.head(ref(1).incoming)
    assert info is not None
    assert (info.metadata["ending"], info.metadata["synced"]) == ("completed", "120")


def test_a_segment_without_an_idx_is_left_to_its_node(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    """No CDC write was synced: the node deletes the segment when it restarts, or completes it."""
    folder.segment(1, torn(1), idx=None)
    aged(folder, 1)
    assert agent_over(store).round().waiting == 1
    assert folder.names == ["CommitLog-7-1.log"]


def test_where_the_kernel_cannot_tell(store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_crash, "nobody_writes", lambda _: None)
    folder.segment(1, torn(1), idx=b"120")
    aged(folder, 1)
    agent = agent_over(store)
    with capture_logs() as logs:
        for _ in range(2):
            assert agent.round().waiting == 1
    (warned,) = [log for log in logs if log["log_level"] == "warning"]
    assert "stop it first, then run `writetime ship --drain`" in warned["hint"]
    assert len(folder.names) == 2


def test_leases_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(open_file_probe.fcntl, "fcntl", refuse)
    assert nobody_writes(path) is None


@pytest.mark.parametrize("archived", [False, True])
def test_an_orphan_that_reappears_is_compared(store: LocalStore, folder: Folder, agent_over: MakeAgent, archived: bool) -> None:
    data = folder.segment(1, torn(1), idx=b"120")
    aged(folder, 1)
    agent_over(store).round()
    if archived:
        take_in(store, 1)
    # The node was only down: at its start it links the file anew and completes it.
    folder.segment(1, data, idx=b"65536\nCOMPLETED")
    expected = Outcome.UPLOADED if archived else Outcome.ALREADY_THERE
    assert agent_over(store).round().shipped == {expected: 1}
    assert store.read(ref(1).incoming) == data
    assert folder.names == []
    other = folder.segment(1, data[:-1] + b"x", idx=b"65536\nCOMPLETED")
    assert agent_over(store).round().shipped == {Outcome.IN_CONFLICT: 1}
    assert store.read(ref(1).incoming) == data
    assert store.read(ref(1).conflict(crc32c(other))) == other
    assert folder.names == []


def test_a_clock_that_was_set_back_delays_and_one_set_forward_harms_nothing(
    store: LocalStore, folder: Folder, agent_over: MakeAgent
) -> None:
    folder.segment(1, torn(1), idx=b"120")
    path = aged(folder, 1, seconds=-86400)
    agent = agent_over(store)
    assert agent.round().waiting == 1
    folder.segment(2)
    future = aged(folder, 2, seconds=-86400)
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert not future.exists()
    assert agent.metrics.registry.get_sample_value("writetime_ship_lag_seconds") == 0
    aged(folder, 1, seconds=10 * 365 * 86400)
    with path.open("r+b"):
        assert agent.round().waiting == 1


# --- Cassandra 3.11


def test_segments_of_3_11_are_shipped_as_they_come(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    path = folder.path / "CommitLog-6-7.log"
    data = Descriptor(6, 7, {}).encode() + b"sections"
    with path.open("wb") as copying:
        copying.write(data[:10])
        copying.flush()
        assert agent_over(store).round().waiting == 1, "still being copied from another disk"
        copying.write(data[10:])
    assert agent_over(store).round().shipped == {Outcome.UPLOADED: 1}
    assert store.read("cdc/ring/dc1/host-1/CommitLog-6-7.log") == data
    assert folder.names == []


def test_segments_of_3_11_where_the_kernel_cannot_tell(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes into them where they lie but a copy does, and that takes no five minutes without a
    byte."""
    monkeypatch.setattr(after_crash, "nobody_writes", lambda _: None)
    (folder.path / "CommitLog-6-7.log").write_bytes(b"x")
    assert agent_over(store).round().waiting == 1
    aged(folder, 7, version=6)
    assert agent_over(store).round().shipped == {Outcome.UPLOADED: 1}


# --- drain


def test_drain_ships_what_was_written_and_nothing_else(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    written = {1: folder.segment(1), 2: folder.segment(2, torn(2), idx=b"120"), 3: folder.segment(3, torn(3), idx=None)}
    folder.segment(4, Descriptor(7, 4, {}).encode().ljust(1 << 16, b"\0"), idx=None)
    folder.segment(5, bytes(1 << 16), idx=None)
    header = Descriptor(7, 8, {}).encode()
    marker = sections.encode_marker(sections.id_crc(8), len(header), len(header) + sections.MARKER_SIZE)
    folder.segment(8, (header + marker).ljust(1 << 16, b"\0"), idx=None)
    folder.segment(6, b"damaged", idx=None)
    (folder.path / "CommitLog-6-7.log").write_bytes(b"of 3.11")
    assert agent_over(store).run(Mode.DRAIN)
    assert folder.names == ["CommitLog-7-4.log", "CommitLog-7-5.log", "CommitLog-7-8.log"]
    assert {number: store.read(ref(number).incoming) for number in written} == written
    endings = {info.name.rsplit("-", 1)[1]: info.metadata["ending"] for info in store.list("cdc/")}
    expected = {"1.log": "completed", "2.log": "after-crash", "3.log": "after-crash", "6.log": "after-crash", "7.log": "completed"}
    assert endings == expected


def test_drain_refuses_while_the_node_is_there(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1)
    folder.segment(2, torn(2), idx=b"120")
    with (folder.path / "CommitLog-7-2.log").open("r+b"), pytest.raises(ShipError, match="is open for writing"):
        agent_over(store).run(Mode.DRAIN)
    assert len(folder.names) == 4
    assert list(store.list("cdc/")) == []


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("young", ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx", None])
def test_drain_where_the_kernel_cannot_tell_looks_at_the_age(
    young: str | None,
    store: LocalStore,
    folder: Folder,
    agent_over: MakeAgent,
    settings: PipelineConfig,
    monkeypatch: pytest.MonkeyPatch,
    free_port: int,
) -> None:
    monkeypatch.setattr(after_crash, "nobody_writes", lambda _: None)
    folder.segment(2, torn(2), idx=b"120")
    for name in folder.names:
        then = time.time() - (10 if name == young else 3600)
        os.utime(folder.path / name, (then, then))
    agent = agent_over(store, config=changed(settings, address="127.0.0.1", port=free_port))
    if young is None:
        assert agent.run(Mode.DRAIN)
        assert folder.names == []
        return
    with pytest.raises(ShipError, match=r"modified recently.*Stop the node first"):
        agent.run(Mode.DRAIN)
    assert len(folder.names) == 2


@pytest.mark.parametrize("version", [6, 7])
def test_drain_where_the_kernel_cannot_tell_tries_the_nodes_port(
    version: int, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_crash, "nobody_writes", lambda _: None)
    (folder.path / f"CommitLog-{version}-2.log").write_bytes(torn(2))
    aged(folder, 2, version=version)
    with pytest.raises(ShipError, match=r"Set node\.address"):
        agent_over(store).run(Mode.DRAIN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = changed(settings, address="127.0.0.1", port=server.getsockname()[1])
        with pytest.raises(ShipError, match=r"the node accepts connections.*Stop the node first"):
            agent_over(store, config=config).run(Mode.DRAIN)
    assert (len(folder.names), list(store.list("cdc/"))) == (1, [])

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "create_connection", unknown)
        with pytest.raises(ShipError, match="failed to connect to the CQL port"):
            agent_over(store, config=config).run(Mode.DRAIN)
    assert agent_over(store, config=config).run(Mode.DRAIN)
    assert folder.names == []


def test_drain_says_when_something_is_left(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    data = folder.segment(1)
    for name in (ref(1).incoming, ref(1).conflict(crc32c(data))):
        store.put(name, b"other bytes")
    assert not agent_over(store).run(Mode.DRAIN)
    assert len(folder.names) == 2


def test_a_drain_leaves_no_segment_in_conflict_behind(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    """The node will be wiped: all its segments are in the bucket, under either name."""
    data = folder.segment(1)
    store.put(ref(1).incoming, b"other bytes")
    assert agent_over(store).run(Mode.DRAIN)
    assert folder.names == []
    assert store.read(ref(1).conflict(crc32c(data))) == data


@pytest.mark.parametrize("mode", [Mode.DRAIN, Mode.ONCE])
@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.advice("Run it again. Do not wipe the node yet.")
def test_a_run_that_is_interrupted_says_that_something_is_left(
    store: LocalStore,
    folder: Folder,
    agent_over: MakeAgent,
    settings: PipelineConfig,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    aside: bool,
) -> None:
    assert settings.node is not None
    folder.segment(1)
    if aside:
        settings.node.spill.mkdir(parents=True)
        (settings.node.spill / "CommitLog-7-2.log").write_bytes(b"aside")
    else:
        folder.segment(2)
    stop, real = Event(), store.put

    def stopped_meanwhile(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == ref(1).incoming:
            stop.set()
        return real(name, *args, **kwargs)

    monkeypatch.setattr(store, "put", stopped_meanwhile)
    with capture_logs() as logs:
        assert not agent_over(store, stop=stop).run(mode)
    assert [log["oldest"] for log in logs if log["event"] == "segments left unshipped"] == ["CommitLog-7-2.log"]
    assert agent_over(store).run(mode)


def test_what_a_busy_node_completes_meanwhile_is_for_the_next_run(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    """`--once` ships all segments of its scan; later ones are not an error."""
    folder.segment(1)
    real = store.put

    def completed_meanwhile(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == ref(1).incoming:
            folder.segment(2)
        return real(name, *args, **kwargs)

    store.put = completed_meanwhile  # type: ignore[method-assign]
    assert agent_over(store).run(Mode.ONCE)
    assert folder.names == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]
    store.put = real  # type: ignore[method-assign]
    assert agent_over(store).run(Mode.ONCE)
    assert folder.names == []


# --- a node that is rebuilt


def test_ids_that_go_back_under_another_host_id(store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig) -> None:
    folder.segment(1000)
    assert agent_over(store).round().ok
    rebuilt = changed(settings, host_id="host-2")
    data = folder.segment(1, b"of the new node")
    folder.segment(1000, b"the same id again")
    assert agent_over(store, config=rebuilt).round().shipped == {Outcome.UPLOADED: 2}
    assert store.read("cdc/ring/dc1/host-2/CommitLog-7-1.log") == data
    assert store.read("cdc/ring/dc1/host-2/CommitLog-7-1000.log") == b"the same id again"
    assert store.read(ref(1000).incoming) != b"the same id again"


def test_ids_that_go_back_under_the_same_host_id(store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    """As with a host id that was set by hand: nothing is overwritten or lost, and others are shipped."""
    before = folder.segment(1000)
    agent_over(store).round()
    data = folder.segment(1, b"of the new node")
    again = folder.segment(1000, b"the same id again")
    result = agent_over(store).round()
    assert (result.shipped, result.failed) == ({Outcome.UPLOADED: 1, Outcome.IN_CONFLICT: 1}, [])
    assert (store.read(ref(1000).incoming), store.read(ref(1).incoming)) == (before, data)
    assert store.read(ref(1000).conflict(crc32c(again))) == again
    assert folder.names == []
