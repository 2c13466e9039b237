"""Read a recording: the cdc_raw folders of a real cluster of three nodes, and its final answers.

    recording = Recording.open()
    folders = recording.stage(tmp_path)      # {host_id: <tmp_path>/<address>/cdc_raw}
    rows = recording.answer("shop", "orders")

Needs neither Cassandra nor its driver. The recording's README.md describes the layout and the form of values.
"""

from __future__ import annotations

import json
import lzma
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tools import ROOT

DEFAULT = ROOT / "tests" / "recordings" / "ring-5.0"


@dataclass(frozen=True)
class FileInfo:
    """A file of a node's cdc_raw folder; `mtime_ns` is the node's last write."""

    name: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class NodeInfo:
    """A node's identity. `tokens` as text, as in `system.local`."""

    host_id: str
    address: str
    datacenter: str
    rack: str
    tokens: tuple[str, ...]
    release_version: str
    files: tuple[FileInfo, ...]


@dataclass(frozen=True)
class Recording:
    """An opened recording. `document` is its recording.json."""

    path: Path
    document: dict[str, Any]

    @classmethod
    def open(cls, path: Path = DEFAULT) -> Self:
        """FileNotFoundError if there is no recording at `path`."""
        return cls(path, json.loads((path / "recording.json").read_text(encoding="utf-8")))

    @property
    def cluster_name(self) -> str:
        return str(self.document["cluster_name"])

    @property
    def nodes(self) -> list[NodeInfo]:
        """The nodes in the order of their addresses."""
        return [
            NodeInfo(**{**node, "tokens": tuple(node["tokens"]), "files": tuple(FileInfo(**file) for file in node["files"])})
            for node in self.document["nodes"]
        ]

    @property
    def tables(self) -> list[tuple[str, str]]:
        """(keyspace, table) of every user table, captured or not, for which there is an answer."""
        return [(keyspace, name) for keyspace, _, name in (full_name.partition(".") for full_name in self.document["tables"])]

    @property
    def cdc_tables(self) -> list[tuple[str, str]]:
        """(keyspace, table) of the captured tables."""
        return [(keyspace, name) for keyspace, name in self.tables if self.document["tables"][f"{keyspace}.{name}"]["cdc"]]

    @property
    def schema_snapshot(self) -> dict[str, Any]:
        """The schema at the end, as the shipper ships it."""
        return dict(json.loads((self.path / "schema-snapshot.json").read_text(encoding="utf-8")))

    def read_at(self, keyspace: str, table: str) -> int:
        """Unix time in seconds at which the cluster answered for a table: TTLs count from there."""
        return int(self.document["tables"][f"{keyspace}.{table}"]["read_at"])

    def answer(self, keyspace: str, table: str) -> list[dict[str, Any]]:
        """Every row as the ring had it in the end: `values`, `writetime` (µs) and `ttl` (s, at `read_at`),
        each by column.
        """
        with lzma.open(self.path / "answer" / f"{keyspace}.{table}.jsonl.xz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def stage(self, folder: Path) -> dict[str, Path]:
        """Unpack each node's files to `<folder>/<address>/cdc_raw`, as old as they were on the node; folders
        by host id.
        """
        with tarfile.open(self.path / "segments.tar.xz", "r:xz") as archive:
            archive.extractall(folder, filter="data")
        staged = {node.host_id: folder / node.address / "cdc_raw" for node in self.nodes}
        for node in self.nodes:
            for file in node.files:
                os.utime(staged[node.host_id] / file.name, ns=(file.mtime_ns, file.mtime_ns))
        return staged
