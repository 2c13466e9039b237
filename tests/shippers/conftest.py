"""A cdc_raw folder, a bucket, and an agent over both."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

from shippers.agent import Agent
from shippers.sign_off import Ring
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.config.cluster import ClusterConfig
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

NODE = NodeName("ring", "dc1", "host-1")
SEALED = 1_767_225_600  # 2026-01-01T00:00:00Z


def ref(number: int) -> SegmentRef:
    return SegmentRef(NODE, SegmentName(number, 7))


@dataclass
class Folder:
    """A cdc_raw folder that a node has written to."""

    path: Path

    def segment(self, number: int, data: bytes | None = None, idx: bytes | None = b"4\nCOMPLETED") -> bytes:
        """Write a segment; `idx` None writes none. Returns its bytes."""
        data = f"segment {number} ".encode() * 40 if data is None else data
        log = self.path / f"CommitLog-7-{number}.log"
        log.write_bytes(data)
        if idx is not None and b"COMPLETED" in idx:
            os.utime(log, (SEALED, SEALED))
        if idx is not None:
            (self.path / f"CommitLog-7-{number}_cdc.idx").write_bytes(idx)
        return data

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


@dataclass
class FakeLink:
    """A node that answers with `facts_now` etc. With `down`, it does not answer."""

    version: str = "v1"
    taken_at: str = "2026-01-01T00:00:00+00:00"
    down: bool = False
    space: int | None = None
    block_writes: bool | None = True
    truncated: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    introduced: bool = False
    sync: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    members: dict[str, list[str]] = field(default_factory=lambda: {"dc1": ["host-1", "host-2"], "dc2": ["host-3"]})
    agreed: bool | None = None
    facts_now: dict[str, Any] = field(
        default_factory=lambda: {
            "cluster": "ring",
            "datacenter": "dc1",
            "host_id": "host-1",
            "address": "192.0.2.1",
            "rack": "r1",
            "release_version": "5.0.6",
            "partitioner": "Murmur3Partitioner",
            "tokens": ["-1", "5"],
        }
    )

    def _answer(self, question: str, value: Any) -> Any:
        self.asked.append(question)
        if self.down:
            self.introduced = False
            raise ShipError("connection refused", operation=question, retriable=True)
        return value

    def facts(self) -> dict[str, Any]:
        facts = dict(self._answer("facts", self.facts_now))
        self.introduced = True
        return facts

    def schema_version(self) -> str:
        return str(self._answer("schema_version", self.version))

    def snapshot(self) -> dict[str, Any]:
        agreed = {} if self.agreed is None else {"agreed": self.agreed}
        snapshot = {"taken_at": self.taken_at, "schema_version": self.version, **agreed, "tables": []}
        return dict(self._answer("snapshot", snapshot))

    def truncations(self) -> list[dict[str, Any]]:
        return list(self._answer("truncations", self.truncated))

    def settings(self) -> CdcSettings:
        found = CdcSettings(cdc_enabled=True, cdc_block_writes=self.block_writes, cdc_total_space=self.space)
        return CdcSettings.parse(self._answer("settings", found.to_document() | self.sync))

    def ring(self) -> Ring:
        return cast(Ring, self._answer("ring", Ring(self.generation, self.members)))

    def close(self) -> None:
        self.asked.append("close")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "cdc_raw"
    path.mkdir()
    return Folder(path)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "bucket")


@pytest.fixture
def settings(folder: Folder, store: LocalStore) -> PipelineConfig:
    return PipelineConfig(
        pipeline="demo",
        cluster=ClusterConfig(name="ring", datacenters=["dc1"]),
        bucket=store.url,
        # Most tests write arbitrary bytes as segments, of which no tail can be shipped; tests of tails set an interval.
        node=NodeConfig(cdc_raw=folder.path, host_id="host-1", datacenter="dc1", poll_seconds=0.01, ship=ShipConfig(tail_seconds=None)),
    )


@pytest.fixture
def agent_over(settings: PipelineConfig) -> Callable[..., Agent]:
    def make(store: Store, *, link: Any = None, stop: Event | None = None, config: PipelineConfig = settings) -> Agent:
        return Agent(config, store, link=link, stop=stop or Event(), pause=0.0)

    return make
