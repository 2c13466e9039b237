"""A crash or an outage at every point of a run, then another run: the same result, and nothing is deleted
early.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from shippers import upload
from shippers.agent import Agent, Mode
from tests.shippers.conftest import FakeLink, Folder, ref
from tests.shippers.faults import Died, Faults, FaultyStore, Harm, deletions_too
from writetime.config.pipeline import PipelineConfig
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore


def lay_down(folder: Folder) -> dict[int, bytes]:
    """Write two completed segments, a growing one, a leftover idx; returns the bytes of the completed
    ones."""
    written = {number: folder.segment(number) for number in (10, 9)}
    folder.segment(11, idx=b"12")
    (folder.path / "CommitLog-7-8_cdc.idx").write_bytes(b"4\nCOMPLETED")
    return written


def require_nothing_lost(store: LocalStore, folder: Folder, written: Mapping[int, bytes], in_conflict: Collection[int] = ()) -> None:
    """Each segment is complete on disk, with its idx, or complete in the bucket; those `in_conflict` under
    their other name.
    """
    for number, data in written.items():
        log = folder.path / f"CommitLog-7-{number}.log"
        if log.exists():
            assert log.read_bytes() == data
            assert log.with_name(f"CommitLog-7-{number}_cdc.idx").exists(), "a log without its idx looks like a new one"
        else:
            assert store.read(ref(number).conflict(crc32c(data)) if number in in_conflict else ref(number).incoming) == data


def end_state(store: LocalStore) -> dict[str, tuple[bytes, Mapping[str, str]]]:
    """All files and objects except status and truncation records, whose names contain times."""
    found = (info for info in store.list() if not info.name.startswith(("nodes/", "truncations/")))
    return {info.name: (store.read(info.name), info.metadata) for info in found}


def run_until_done(agent_over: Callable[..., Agent], store: LocalStore, folder: Folder) -> None:
    assert agent_over(store, link=FakeLink()).run(Mode.ONCE)
    assert folder.names == ["CommitLog-7-11.log", "CommitLog-7-11_cdc.idx"]


@pytest.mark.parametrize("harm", Harm)
def test_every_point(tmp_path: Path, agent_over: Callable[..., Agent], folder: Folder, settings: PipelineConfig, harm: Harm) -> None:
    assert settings.node is not None
    clean = LocalStore(tmp_path / "clean")
    lay_down(folder)
    run_until_done(agent_over, clean, folder)
    expected = end_state(clean)
    shutil.rmtree(settings.node.state)
    point = 0
    while True:
        store = LocalStore(tmp_path / f"bucket-{point}")
        written = lay_down(folder)
        faults = Faults(point, harm)
        with deletions_too(faults, folder.path), contextlib.suppress(Died):
            agent_over(FaultyStore(store, faults), link=FakeLink()).run(Mode.ONCE)
        require_nothing_lost(store, folder, written)
        run_until_done(agent_over, store, folder)
        assert end_state(store) == expected
        # What the shipper notes of one bucket must not keep it from shipping into the next.
        shutil.rmtree(settings.node.state)
        if not faults.struck:
            break
        point += 1
    assert point == len(faults.passed)
    assert {what.split()[1] for what in faults.passed} == {"head", "put", "unlink"}


@pytest.mark.parametrize("harm", Harm)
def test_every_point_of_a_conflict(tmp_path: Path, agent_over: Callable[..., Agent], folder: Folder, harm: Harm) -> None:
    """One of two segments is there with other bytes. All three end up in the bucket, each once, and the first
    is left as it was.
    """
    point = 0
    while True:
        store = LocalStore(tmp_path / f"bucket-{point}")
        store.put(ref(9).incoming, b"foreign bytes")
        written = lay_down(folder)
        faults = Faults(point, harm)
        with deletions_too(faults, folder.path), contextlib.suppress(Died):
            agent_over(FaultyStore(store, faults)).run(Mode.ONCE)
        require_nothing_lost(store, folder, written, in_conflict={9})
        run_until_done(agent_over, store, folder)
        assert {info.name: store.read(info.name) for info in store.list("cdc/")} == {
            ref(9).incoming: b"foreign bytes",
            ref(9).conflict(crc32c(written[9])): written[9],
            ref(10).incoming: written[10],
        }
        if not faults.struck:
            break
        point += 1
    assert f"after put {ref(9).conflict(crc32c(written[9]))}" in faults.passed


def upload_nothing(*_: Any) -> upload.Outcome:
    return upload.Outcome.UPLOADED


def delete_first(store: Any, local: upload.Local, metadata: Mapping[str, str], _: bool) -> upload.Outcome:
    data = local.log.read_bytes()
    local.log.unlink()
    store.put(local.ref.incoming, data, if_generation=0, metadata=metadata)
    return upload.Outcome.UPLOADED


@pytest.mark.parametrize("sabotage", [upload_nothing, delete_first])
def test_the_check_notices_an_early_deletion(
    store: LocalStore, agent_over: Callable[..., Agent], folder: Folder, monkeypatch: pytest.MonkeyPatch, sabotage: Any
) -> None:
    monkeypatch.setattr(upload, "_upload", sabotage)
    monkeypatch.setattr(upload, "_require_unchanged", lambda _: None)
    noticed = []
    for point in range(40):
        written = lay_down(folder)
        faults = Faults(point, Harm.DEATH)
        with deletions_too(faults, folder.path), contextlib.suppress(Died):
            agent_over(FaultyStore(LocalStore(f"{store.url}-{point}"), faults), link=FakeLink()).run(Mode.ONCE)
        try:
            require_nothing_lost(LocalStore(f"{store.url}-{point}"), folder, written)
        except Exception as error:  # noqa: BLE001 - either kind of loss will do
            noticed.append(error)
    assert noticed
