"""Each system call of a round fails once, with each error: other segments are shipped all the same, nothing is lost or sent
twice, and the next rounds ship the rest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from shippers.agent import Agent
from tests.shippers.conftest import NODE, FakeLink, Folder
from tests.shippers.system_calls import ERRORS, SHORT, Call, SystemCalls
from tests.shippers.test_after_crash import torn
from tests.storage.memory import MemoryStore
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.config.cluster import ClusterConfig
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import WritetimeError
from writetime.storage.checksum import crc32c
from writetime.storage.layout import SegmentRef
from writetime.storage.source import opened
from writetime.storage.store import ObjectInfo

ROUNDS = 3
"""Rounds after the one in which a call failed: a tail rests, everything else is retried in the next."""


class Store(MemoryStore):
    """A store that reads files as real ones do: in pieces, and twice."""

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        with opened(data, "write an object", name) as source:
            crc = 0
            while piece := source.read(20_000):
                crc = crc32c(piece, crc)
            source.seek(0)
            sent = b""
            while piece := source.read(30_000):
                sent += piece
        assert crc32c(sent) == crc
        return super().put(name, sent, if_generation=if_generation, metadata=metadata)


class Node:
    """A node's folders with a segment of each kind, and a shipper."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir()
        cdc_raw = base / "cdc_raw"
        cdc_raw.mkdir()
        here = Folder(cdc_raw)
        self.written = {number: here.segment(number) for number in (2, 3, 4)}
        self.written[5] = here.segment(5, torn(5), idx=b"120")
        os.utime(cdc_raw / "CommitLog-7-5.log", (time.time() - 3600,) * 2)
        growing = encode_segment(6, 7, [b"mutation"] * 10)
        here.segment(6, growing, idx=str(len(growing)).encode())
        here.segment(7, idx=None)
        (cdc_raw / "CommitLog-7-8_cdc.idx").write_bytes(b"4\nCOMPLETED")
        (cdc_raw / "notes").write_bytes(b"")
        ship = ShipConfig(tail_seconds=1e-6, after_crash_seconds=60, listen=None)
        node = NodeConfig(cdc_raw=cdc_raw, host_id=NODE.host_id, datacenter="dc1", ship=ship, address="192.0.2.1")
        node.spill.mkdir(parents=True)
        self.written[1] = Folder(node.spill).segment(1)
        self.folders = (cdc_raw, node.spill)
        self.store = Store()
        config = PipelineConfig(pipeline="p", cluster=ClusterConfig(name="ring", datacenters=["dc1"]), bucket="unused", node=node)
        self.agent = Agent(config, self.store, link=FakeLink(), stop=Event(), pause=0.0)  # type: ignore[arg-type]

    @property
    def shipped(self) -> dict[int, bytes]:
        return {SegmentRef.from_object(info.name).segment.id: self.store.read(info.name) for info in self.store.list("cdc/")}

    @property
    def left(self) -> set[int]:
        return {int(path.stem.rpartition("-")[2]) for folder in self.folders for path in folder.glob("*.log")}

    def round(self) -> None:
        """A round of the service, which survives all errors of the node."""
        with contextlib.suppress(WritetimeError):
            self.agent.round()

    def check(self, call: Call, about: str) -> None:
        """After the round in which a call failed."""
        missing = set(self.written) - set(self.shipped)
        assert missing <= self.left, f"{about}: lost"
        number = number_of(call)
        if number is not None:
            assert missing <= {number}, f"{about}: delays others"

    def finish(self, about: str) -> None:
        """Everything is shipped once, with its bytes."""
        for _ in range(ROUNDS):
            if self.left == {6, 7} and self.shipped == self.written:
                break
            self.round()
        assert self.shipped == self.written, about
        assert self.left == {6, 7}, about
        assert not any("conflict" in info.name for info in self.store.list("cdc/")), about
        puts = Counter(name for method, name in self.store.calls if method == "put" and name.startswith("cdc/"))
        assert set(puts.values()) == {1}, f"{about}: sent twice"

    def close(self) -> None:
        self.store.forget()
        shutil.rmtree(self.base)


def number_of(call: Call) -> int | None:
    """The segment to whose files the path belongs; None: it is a folder, or a file of the shipper's own."""
    name = Path(call.path).name
    return int(name.split("-")[2].partition("_")[0].partition(".")[0]) if name.startswith("CommitLog-") else None


def inject(base: Path, number: int, code: int) -> Call | None:
    """Let one call fail in the first round. Returns it; None if there was none, or no short read of it."""
    node = Node(base)
    calls = SystemCalls(base)
    calls.strike = lambda at, _: code if at == number else None
    about = f"call {number}, {os.strerror(code) if code else 'short read'}"
    try:
        with calls.watched():
            node.round()
        if not calls.struck:
            return None
        about = f"{about}: {calls.struck[0]}"
        node.check(calls.struck[0], about)
        node.finish(about)
        return calls.struck[0]
    finally:
        node.close()


def clean_round(base: Path) -> list[Call]:
    node, calls = Node(base), SystemCalls(base)
    with calls.watched():
        node.round()
    node.finish("no call failed")
    node.close()
    return calls.calls


@pytest.fixture
def base(tmp_path: Path) -> Any:
    return tmp_path / "node"


def test_the_calls_of_a_round_are_seen(base: Path) -> None:
    """So that the tests below fail if the shipper reaches its disk another way."""
    calls = clean_round(base)
    by_name = Counter(call.name for call in calls)
    assert {"stat", "open", "read", "pread", "unlink", "fsync", "listdir", "statvfs", "fcntl", "write", "replace"} <= by_name.keys()
    for number in (1, 2, 3, 4, 5):
        of_one = [call.name for call in calls if number_of(call) == number]
        assert {"open", "read", "unlink"} <= set(of_one), number


@pytest.mark.parametrize("code", [*ERRORS, SHORT])
def test_some_calls_of_a_round_fail(code: int, base: Path) -> None:
    """Each error at another share of the calls."""
    calls = clean_round(base)
    step = 7
    start = [*ERRORS, SHORT].index(code)
    struck = [inject(base, number, code) for number in range(start, len(calls), step)]
    assert any(struck)


@pytest.mark.thorough
@pytest.mark.parametrize("code", [*ERRORS, SHORT])
def test_each_call_of_a_round_fails(code: int, base: Path, record_property: Any) -> None:
    calls = clean_round(base)
    struck = [call for number in range(len(calls)) if (call := inject(base, number, code)) is not None]
    print(f"{len(calls)} calls of a round, {len(struck)} of them failed with {os.strerror(code) if code else 'a short read'}")
    assert len(struck) == (len(calls) if code else sum(call.reads for call in calls))


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("ending", [".log", "_cdc.idx"])
def test_a_file_on_which_every_call_fails(ending: str, number: int, code: int, base: Path) -> None:
    node = Node(base)
    calls = SystemCalls(base)
    calls.strike = lambda _, call: code if call.path.endswith(f"CommitLog-7-{number}{ending}") else None
    with calls.watched():
        for _ in range(2):
            node.round()
    assert calls.struck
    missing = set(node.written) - set(node.shipped)
    assert missing <= {number}
    assert missing <= node.left
    node.finish(f"{number}{ending}")
    node.close()
