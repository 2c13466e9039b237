"""Every fault of store, disk and folder: the result of the round, no deletion of unconfirmed data, and
recovery in the next.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shippers import listing, upload
from shippers.agent import Agent, Mode
from shippers.folder import read_idx
from shippers.upload import Outcome
from tests.shippers.conftest import NODE, FakeLink, Folder, ref
from tests.storage.memory import Fault, MemoryStore
from writetime.errors import ShipError, StoreUnavailable
from writetime.storage import layout, local
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
BY_ITSELF = "the same round"
NEXT_ROUND = "the next round"


@pytest.mark.parametrize(
    ("fault", "on", "settled_by", "outcome"),
    [
        (Fault.UNAVAILABLE, "put", BY_ITSELF, Outcome.UPLOADED),
        (Fault.UNAVAILABLE, "head", BY_ITSELF, Outcome.ALREADY_THERE),
        (Fault.LOST_ANSWER, "put", BY_ITSELF, Outcome.ALREADY_THERE),
        (Fault.PRECONDITION, "put", BY_ITSELF, Outcome.UPLOADED),
        (Fault.LOST_AND_REPEATED, "put", BY_ITSELF, Outcome.ALREADY_THERE),
        (Fault.TRUNCATED, "put", BY_ITSELF, Outcome.UPLOADED),
        (Fault.TRUNCATED, "head", BY_ITSELF, Outcome.ALREADY_THERE),
        (Fault.GONE, "put", BY_ITSELF, Outcome.UPLOADED),
        (Fault.EXPIRED, "put", NEXT_ROUND, Outcome.UPLOADED),
        (Fault.EXPIRED, "head", NEXT_ROUND, Outcome.ALREADY_THERE),
        (Fault.FORBIDDEN, "head", NEXT_ROUND, Outcome.ALREADY_THERE),
        (Fault.FORBIDDEN, "put", NEXT_ROUND, Outcome.UPLOADED),
        (Fault.DAMAGED, "put", NEXT_ROUND, Outcome.IN_CONFLICT),
        (Fault.DAMAGED_UNSEEN, "put", NEXT_ROUND, Outcome.IN_CONFLICT),
    ],
)
def test_the_store(fault: Fault, on: str, settled_by: str, outcome: Outcome, folder: Folder, agent_over: MakeAgent) -> None:
    store = MemoryStore()
    agent = agent_over(store)
    agent.round()
    data = folder.segment(1)
    store.fail(fault, on=on, prefix="cdc/")
    first = agent.round()
    assert [fault for fault, *_ in store.struck] == [fault]
    if settled_by != BY_ITSELF:
        assert (first.shipped, len(first.failed), len(folder.names)) == ({}, 1, 2)
        first = agent.round()
    assert first.shipped == {outcome: 1}
    assert store.read(ref(1).conflict(crc32c(data)) if outcome is Outcome.IN_CONFLICT else ref(1).incoming) == data
    assert folder.names == []


@pytest.mark.parametrize(("fault", "rounds"), [(Fault.UNAVAILABLE, 1), (Fault.EXPIRED, 2)])
def test_the_look_after_the_upload_fails(fault: Fault, rounds: int, folder: Folder, agent_over: MakeAgent) -> None:
    """An upload does not count until it is verified."""
    store = MemoryStore()
    agent = agent_over(store)
    agent.round()
    folder.segment(1)
    store.fail(fault, on="head", prefix="cdc/")
    results = [agent.round() for _ in range(rounds)]
    assert results[-1].shipped == {Outcome.ALREADY_THERE: 1}
    assert len(results[0].failed) == rounds - 1


def test_a_store_that_fails_at_every_turn(folder: Folder, agent_over: MakeAgent) -> None:
    """More than half of all calls, for as long as it takes; every round either ships or keeps."""
    store = MemoryStore()
    written = {number: folder.segment(number) for number in range(20)}
    store.storm(seed=11, share=0.6)
    agent = agent_over(store)
    for _ in range(200):
        agent.round()
        for number, data in written.items():
            if not (folder.path / f"CommitLog-7-{number}.log").exists():
                held = store._memory.objects[ref(number).incoming][1]
                assert held == data
        if not folder.names:
            break
    assert folder.names == []
    assert len(store.struck) > 20


def test_the_disk_of_a_folder_as_store_is_full(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder.segment(1)

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    agent = agent_over(store)
    with monkeypatch.context() as patch:
        patch.setattr(local, "_write", full)
        (error,) = agent.round().failed
    assert (type(error), error.hint) == (StoreUnavailable, "Make room on the disk.")
    assert len(folder.names) == 2
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert store.read(ref(1).incoming) == data


def test_the_nodes_disk_is_full(store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state folder cannot be written: segments are still shipped, which frees space."""
    folder.segment(1)
    real = Path.mkdir

    def full(path: Path, *rest: Any, **more: Any) -> None:
        if "cdc_raw.writetime" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *rest, **more)

    monkeypatch.setattr(Path, "mkdir", full)
    assert agent_over(store, link=FakeLink()).round().shipped == {Outcome.UPLOADED: 1}
    assert folder.names == []


@pytest.mark.parametrize("what", ["unlink", "open"])
def test_permission_denied(what: str, store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read or deleted stays and is reported, and the other one is shipped."""
    for number in (1, 2):
        folder.segment(number)

    real_unlink, real_open = Path.unlink, Path.open

    def refuse(path: Path) -> None:
        if path.parent == folder.path and "-7-1" in path.name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def unlink(path: Path, *rest: Any, **more: Any) -> None:
        refuse(path)
        real_unlink(path, *rest, **more)

    def open_(path: Path, *rest: Any, **more: Any) -> Any:
        if path.suffix == ".log":
            refuse(path)
        return real_open(path, *rest, **more)

    agent = agent_over(store)
    with monkeypatch.context() as patch:
        patch.setattr(Path, what, unlink if what == "unlink" else open_)
        result = agent.round()
        assert result.shipped == {Outcome.UPLOADED: 1}
        assert "Permission denied" in str(result.failed[0])
        assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
    assert agent.round().shipped == {Outcome.ALREADY_THERE if what == "unlink" else Outcome.UPLOADED: 1}


def test_a_file_on_a_bad_disk_is_no_trouble_with_the_store(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum can be taken, and then not be read again: more than three such files do not make the store
    count as down.
    """
    for number in range(1, 6):
        folder.segment(number)
    real = store.put

    def put(name: str, data: Any, **more: Any) -> Any:
        bad = isinstance(data, Path) and data.name != "CommitLog-7-5.log"
        return real(name, Path("/proc/self/mem") if bad else data, **more)

    monkeypatch.setattr(store, "put", put)
    agent = agent_over(store)
    result = agent.round()
    assert [type(error) for error in result.failed] == [ShipError] * 4
    assert not any(upload.is_unanswered(error) for error in result.failed)
    assert all(error.obj.endswith(".log") for error in result.failed if error.obj)
    assert (result.shipped, result.unanswered) == ({Outcome.UPLOADED: 1}, 0)
    assert len(folder.names) == 8
    monkeypatch.undo()
    assert agent.round().shipped == {Outcome.UPLOADED: 4}


def test_a_leftover_that_may_not_be_deleted_holds_up_no_segment(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "CommitLog-7-1_cdc.idx").write_bytes(b"4\nCOMPLETED")
    folder.segment(2)
    real = Path.unlink

    def unlink(path: Path, *rest: Any, **more: Any) -> None:
        if path.name == "CommitLog-7-1_cdc.idx":
            raise PermissionError(errno.EACCES, "Permission denied")
        real(path, *rest, **more)

    monkeypatch.setattr(Path, "unlink", unlink)
    result = agent_over(store).round()
    assert (result.shipped, len(result.failed)) == ({Outcome.UPLOADED: 1}, 1)
    assert folder.names == ["CommitLog-7-1_cdc.idx"]


def test_an_idx_that_may_not_be_read(store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        folder.segment(number)
    real = read_idx

    def read(path: Path) -> bytes:
        if path.name == "CommitLog-7-1_cdc.idx":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr("shippers.folder.read_idx", read)
    with capture_logs() as logs:
        result = agent_over(store).round()
    assert (result.shipped, result.ok) == ({Outcome.UPLOADED: 1}, False)
    failed = [log["message"] for log in logs if log["event"] == "failed to read an idx"]
    assert failed == ["idx: failed to read the file: Permission denied"]
    assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]


def test_a_folder_that_may_not_be_listed(store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(listing.os, "listdir", refuse)
    with pytest.raises(ShipError, match="Permission denied"):
        agent_over(store).run(Mode.ONCE)


def test_a_segment_vanishes_between_the_look_and_the_upload(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with cdc_block_writes: false, where Cassandra deletes the oldest segment when space runs out. It is
    reported, and others are shipped.
    """
    for number in (1, 2, 3):
        folder.segment(number)
    real = upload.measure

    def vanish(segment: Any, path: Path) -> Any:
        if segment == ref(2):
            os.unlink(path / "CommitLog-7-2.log")
        return real(segment, path)

    monkeypatch.setattr(upload, "measure", vanish)
    result = agent_over(store).round()
    assert result.shipped == {Outcome.UPLOADED: 2}
    assert "cdc_block_writes" in str(result.failed[0].hint)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_log_that_may_not_be_looked_at(
    code: int, store: LocalStore, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its idx must not count as a leftover, and others are shipped."""
    for number in (1, 2):
        folder.segment(number)
    agent = agent_over(store)
    with monkeypatch.context() as patch, capture_logs() as logs:
        refuse(patch, folder.path / "CommitLog-7-1.log", code)
        result = agent.round()
    assert (result.shipped, len(result.failed)) == ({Outcome.UPLOADED: 1}, 1)
    assert [log["file"] for log in logs if log["event"] == "not a segment, ignored"] == ["CommitLog-7-1.log"]
    assert folder.names == ["CommitLog-7-1.log", "CommitLog-7-1_cdc.idx"]
    assert agent.round().shipped == {Outcome.UPLOADED: 1}


def refuse(patch: pytest.MonkeyPatch, refused: Path, code: int) -> None:
    """Let stat fail for one file."""
    real = Path.stat

    def stat(path: Path, **more: Any) -> os.stat_result:
        if path == refused:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, **more)

    patch.setattr(Path, "stat", stat)
    patch.setattr(Path, "lstat", lambda path: stat(path, follow_symlinks=False))


def test_bytes_that_the_store_damages_every_time_are_never_deleted_here(folder: Folder, agent_over: MakeAgent) -> None:
    store = MemoryStore()
    data = folder.segment(1)
    store.fail(Fault.DAMAGED_UNSEEN, on="put", prefix="cdc/", times=100)
    agent = agent_over(store)
    for _ in range(4):
        (error,) = agent.round().failed
        assert "the store holds" in str(error)
        assert (folder.path / "CommitLog-7-1.log").read_bytes() == data
    assert len(folder.names) == 2


@pytest.mark.parametrize("content", [b"", b"null", b"[1]", b"\xff\xfe"])
def test_what_others_wrote_of_the_node_is_not_looked_at(content: bytes, store: LocalStore, folder: Folder, agent_over: MakeAgent) -> None:
    folder.segment(1)
    for name in (f"{layout.node_documents(NODE)}/damaged.json", ref(1).ledger):
        store.put(name, content)
    assert agent_over(store, link=FakeLink()).round().shipped == {Outcome.UPLOADED: 1}
