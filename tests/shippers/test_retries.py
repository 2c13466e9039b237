"""A retry sends nothing that the store holds, and all bytes that are sent count for the rate limit, whatever becomes of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shippers import upload
from shippers.agent import Agent, Mode
from shippers.disk_space import Pace
from shippers.tried import MOST, NOTE, Tried
from shippers.upload import Outcome
from tests import s3_server
from tests.shippers.conftest import Folder, ref
from tests.storage import gcs_stub, s3_stub
from tests.storage.memory import Fault, MemoryStore
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError, StoreError
from writetime.storage import open_store, sent_bytes
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
MIB = 1 << 20


def refuse_to_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(path: Path) -> None:
        raise ShipError("failed to delete the file: Read-only file system", operation="delete a shipped file", obj=str(path))

    monkeypatch.setattr(upload, "remove", remove)


def puts(store: MemoryStore) -> list[str]:
    return [name for method, name in store.calls if method == "put" and name.startswith("cdc/")]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_folder_that_is_not_writable_sends_each_segment_once(
    restarts: bool, folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    for number in (1, 2, 3):
        folder.segment(number)
    agent = agent_over(store)
    with monkeypatch.context() as patch:
        refuse_to_delete(patch)
        for _ in range(3):
            assert len(agent.round().failed) == 3
            agent = agent_over(store) if restarts else agent
    assert puts(store) == [ref(number).incoming for number in (1, 2, 3)]
    assert agent.round().shipped == {Outcome.ALREADY_THERE: 3}
    assert folder.names == []


def test_a_segment_in_conflict_is_sent_once_too(folder: Folder, agent_over: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.put(ref(1).incoming, b"other")
    folder.segment(1)
    agent = agent_over(store)
    with monkeypatch.context() as patch:
        refuse_to_delete(patch)
        for _ in range(3):
            agent.round()
    assert [name.split("/")[4].partition("-")[0] for name in puts(store)[1:]] == ["CommitLog", "conflict"]
    assert agent.round().shipped == {Outcome.IN_CONFLICT: 1}


def test_a_segment_that_was_just_completed_is_not_looked_for(folder: Folder, agent_over: MakeAgent) -> None:
    """One request less for each segment; also without the right to list a look for a missing object is an alarm."""
    store = MemoryStore()
    agent = agent_over(store)
    agent.round()
    folder.segment(1)
    del store.calls[:]
    agent.round()
    assert [call for call in store.calls if call[1].startswith("cdc/")] == [("put", ref(1).incoming), ("head", ref(1).incoming)]


def test_where_a_missing_object_looks_forbidden_it_is_sent(folder: Folder, agent_over: MakeAgent) -> None:
    """Without the right to list, which a node does not need."""
    store = MemoryStore()
    folder.segment(1)
    store.fail(Fault.EXPIRED, on="put", prefix="cdc/")
    agent = agent_over(store)
    assert agent.round().shipped == {}
    store.fail(Fault.FORBIDDEN, on="head", prefix="cdc/")
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert (folder.names, store.struck[-1][:2]) == ([], (Fault.FORBIDDEN, "head"))


def test_the_record_of_what_was_tried(tmp_path: Path) -> None:
    one, two = ref(1).segment, ref(2).segment
    tried = Tried(tmp_path / "state", "s3://a")
    for segment in (one, two, one):
        tried.add(segment)
    tried.discard(one)
    assert (one in tried, two in tried) == (False, True)
    again = Tried(tmp_path / "state", "s3://a")
    assert (one in again, two in again) == (False, True)
    assert two not in Tried(tmp_path / "state", "s3://b")
    for number in range(MOST + 5):
        again.add(ref(number + 10).segment)
    assert two not in again
    for damaged in (b"", b"[]", b"{}", b'{"store": "s3://a", "segments": ["x"]}', b'{"store": "s3://a", "segments": 1}'):
        (tmp_path / "state" / NOTE).write_bytes(damaged)
        assert one not in Tried(tmp_path / "state", "s3://a")
    (tmp_path / "file").write_bytes(b"")
    Tried(tmp_path / "file" / "state", "s3://a").add(one)


@pytest.mark.parametrize("size", [MIB, 0, 3 * MIB + 1])
def test_what_is_sent_to_s3_counts(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is kept or refused; what is read for a checksum or a signature, or for nobody, does not."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))

    def sent(put: Callable[[], object]) -> int:
        before = sent_bytes.sent()
        with contextlib.suppress(StoreError):
            put()
        return sent_bytes.sent() - before

    with s3_stub.running() as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        store = open_store(f"s3://{s3_stub.BUCKET}")
        store.put("first", b"", if_generation=0)
        assert sent(lambda: store.put("a", path, if_generation=0)) == size
        assert sent(lambda: store.put("a", path, if_generation=0)) == size, "refused, and sent all the same"
        stub.faults, stub.only = [(403, "AccessDenied")], {"PUT"}
        assert sent(lambda: store.put("b", path)) == size
        stub.faults = [(503, "SlowDown")]
        assert sent(lambda: store.put("b", path)) == 2 * size, "the library repeats it"
        assert sent(lambda: store.put("c", path.read_bytes())) == size
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    assert sent(lambda: open_store(f"s3://{s3_stub.BUCKET}").put("d", path)) == 0, "nobody listens"


def test_what_is_sent_in_parts_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(65 * MIB))
    with s3_stub.running() as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        store = open_store(f"s3://{s3_stub.BUCKET}")
        store.put("first", b"", if_generation=0)
        before = sent_bytes.sent()
        store.put("a", path, if_generation=0)
        # The document that completes the upload is sent, too.
        assert 65 * MIB <= sent_bytes.sent() - before < 65 * MIB + 10_000


@pytest.mark.parametrize("size", [MIB, 9 * MIB])
def test_what_is_sent_elsewhere_counts(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    with gcs_stub.running() as stub:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.url)
        for store in (open_store(f"gs://{gcs_stub.BUCKET}"), LocalStore(tmp_path / "bucket")):
            before = sent_bytes.sent()
            store.put("a", path)
            assert sent_bytes.sent() - before == size, store.url


def test_the_rate_counts_what_was_sent_in_vain(
    folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    monkeypatch.setattr(Pace, "spent", lambda self, size: spent.append(size))
    with s3_stub.running() as stub:
        s3_server.into_environment(monkeypatch, stub.url, "any", "any")
        store = open_store(f"s3://{s3_stub.BUCKET}")
        store.put("first", b"", if_generation=0)
        agent = agent_over(store)
        agent.round()
        folder.segment(1, os.urandom(MIB))
        del spent[:]
        stub.faults, stub.only = [(503, "SlowDown")] * 5 + [(403, "AccessDenied")], {"PUT"}
        monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
        assert not agent.run(Mode.ONCE)
        assert agent.run(Mode.ONCE)
    assert sum(spent) == 7 * MIB
    assert folder.names == []
