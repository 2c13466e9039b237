"""A ring that is made up: nodes whose logs a test writes frame by frame, and the batches that read them, with
real Spark.

One table `shop.orders` of ints, (id, line) -> note (static), name, amount. Times are seconds after `START`; a
node's log is one segment until it is sealed, and positions are those that Cassandra would give. Replicas get
the same bytes, as in a ring."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import ingest
from spark_jobs.state.shards import Shard
from tests.cassandra.schema.examples import create_keyspace, create_table
from tests.spark_jobs.conf import spark_conf
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.merge import row_codec
from writetime.cassandra.model import (
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    Row,
)
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import LOCAL, TABLES
from writetime.cassandra.types.byte_comparable import split_record_key
from writetime.config.pipeline import PipelineConfig, load
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.planner import history, plan_ingest
from writetime.storage import layout, open_store
from writetime.storage.store import Store

CLUSTER = "made up"
START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ORDERS = Table(
    "shop",
    "orders",
    UUID("6cbda380-e583-11f1-817f-f173fd8e050e"),
    {
        "id": Column("id", "partition_key", "int", 0),
        "line": Column("line", "clustering", "int", 0),
        "note": Column("note", "static", "int"),
        "name": Column("name", "regular", "int"),
        "amount": Column("amount", "regular", "int"),
    },
    cdc=True,
)
AGAIN = replace(ORDERS, id=UUID("7cbda380-e583-11f1-817f-f173fd8e050e"))
"""The same, dropped and created again."""
SCHEMA = Schema(tables={**TABLES, ORDERS.id: ORDERS, AGAIN.id: AGAIN})


def micros(second: float) -> int:
    return int((START + timedelta(seconds=second)).timestamp() * 1_000_000)


def seconds(second: float) -> int:
    return int((START + timedelta(seconds=second)).timestamp())


def i32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big", signed=True)


def insert(key: int, line: int, at: float, *, ttl: int = 0, of: UUID = ORDERS.id, **values: int) -> bytes:
    """INSERT INTO orders (id, line, …); `note` is the static column, `of` the table's life."""
    dies = {"ttl": ttl, "local_deletion_time": seconds(at) + ttl} if ttl else {}

    def cells(*columns: str) -> tuple[Cell, ...]:
        return tuple(Cell(name, micros(at), i32(values[name]), **dies) for name in sorted(columns) if name in values)

    liveness = Liveness(micros(at), ttl, seconds(at) + ttl) if ttl else Liveness(micros(at))
    static = Row(None, cells=cells("note")) if "note" in values else None
    return _body(PartitionUpdate(of, i32(key), static_row=static, rows=(Row((i32(line),), liveness, cells=cells("amount", "name")),)))


def update(key: int, line: int, at: float, **values: int) -> bytes:
    cells = tuple(Cell(name, micros(at), i32(values[name])) for name in sorted(values))
    return _body(PartitionUpdate(ORDERS.id, i32(key), rows=(Row((i32(line),), cells=cells),)))


def delete_row(key: int, line: int, at: float) -> bytes:
    return _body(PartitionUpdate(ORDERS.id, i32(key), rows=(Row((i32(line),), deletion=DeletionTime(micros(at), seconds(at))),)))


def delete_partition(key: int, at: float) -> bytes:
    return _body(PartitionUpdate(ORDERS.id, i32(key), DeletionTime(micros(at), seconds(at))))


def ddl() -> list[bytes]:
    system = Schema(tables=TABLES)
    return [encode_mutation(each, system) for each in (create_keyspace("shop", micros(-100)), create_table(ORDERS, micros(-99)))]


def _body(update: PartitionUpdate) -> bytes:
    return encode_mutation(Mutation((update,)), SCHEMA)


@dataclass
class Node:
    """A node's log: the segment that it writes, by bodies."""

    host: str
    segment: int = 1
    bodies: list[bytes] = field(default_factory=list)

    def log(self, *bodies: bytes) -> None:
        self.bodies += bodies

    @property
    def bytes(self) -> bytes:
        return encode_segment(self.segment, 7, self.bodies)

    def truncate(self, at: float) -> None:
        """Note, as TRUNCATE does, that all of the table up to here is gone."""
        self.log(self.noted(at))

    def noted(self, at: float) -> bytes:
        """The note itself, of a TRUNCATE now."""
        value = struct.pack(">qiq", self.segment, len(self.bytes), micros(at) // 1000)
        row = Row((), cells=(Cell("truncated_at", micros(at), value, ORDERS.id.bytes),))
        return _body(PartitionUpdate(LOCAL.id, b"local", rows=(row,)))


@dataclass
class Ring:
    """Nodes, a bucket and a pipeline in one folder."""

    folder: Path
    config: PipelineConfig
    nodes: dict[str, Node] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path, *hosts: str) -> Ring:
        (folder / "lake").mkdir(parents=True)
        document: dict[str, Any] = {
            "pipeline": "made_up",
            "cluster": {"name": CLUSTER, "datacenters": ["dc1"]},
            "bucket": str(folder / "bucket"),
            "catalog": {"uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}", "warehouse": str(folder / "lake" / "warehouse")},
            "spark": {
                "conf": {**spark_conf(folder), "spark.sql.shuffle.partitions": "2"},
            },
        }
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        ring = cls(folder, load(folder / "pipeline.yaml"))
        for host in hosts:
            ring.join(host).log(*ddl())
        return ring

    def join(self, host: str) -> Node:
        """A node of that host id, with an empty log."""
        self.nodes[host] = Node(host)
        return self.nodes[host]

    @property
    def store(self) -> Store:
        return open_store(self.config.bucket)

    def write(self, body: bytes, *hosts: str) -> None:
        """Write on those nodes; on all if none is named."""
        for host in hosts or tuple(self.nodes):
            self.nodes[host].log(body)

    def truncate(self, at: float, *hosts: str) -> None:
        for host in hosts or tuple(self.nodes):
            self.nodes[host].truncate(at)

    def finish(self, host: str, at: float) -> str:
        """The node has finished its segment and begins another. Gives the name under which `ship` puts it."""
        node = self.nodes[host]
        ref = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", host), layout.SegmentName(id=node.segment, version=7))
        (self.folder / "finished").mkdir(exist_ok=True)
        kept = self.folder / "finished" / f"{host}-{node.segment}"
        kept.write_bytes(node.bytes)
        kept.with_suffix(".at").write_text((START + timedelta(seconds=at)).isoformat())
        self.nodes[host] = Node(host, node.segment + 1)
        return ref.incoming

    def ship(self, *incoming: str) -> None:
        for name in incoming:
            ref = layout.SegmentRef.from_object(name)
            kept = self.folder / "finished" / f"{ref.node.host_id}-{ref.segment.id}"
            self.store.put(name, kept.read_bytes(), if_generation=0, metadata={"sealed_at": kept.with_suffix(".at").read_text()})

    def finish_and_ship(self, at: float, *hosts: str) -> None:
        for host in hosts or tuple(self.nodes):
            self.ship(self.finish(host, at))

    def plan(self, now: float) -> Manifest:
        manifest = plan_ingest(self.store, CLUSTER, now=START + timedelta(seconds=now))
        assert manifest is not None, "nothing to do"
        return manifest

    def run(self, manifest: Manifest) -> Sealed:
        sealed = ingest.run(self.config, manifest.number)
        archive(self.store, CLUSTER, sealed.number)
        assert all(account.balanced for account in sealed.accounting)
        assert sealed.held == []
        return sealed

    def batch(self, now: float) -> Sealed:
        return self.run(self.plan(now))

    def current(self) -> dict[tuple[int, int], dict[str, int]]:
        """The current table: non-null columns by (id, line)."""
        shown = {}
        for row in self._scan("shop"):
            values = {name: row[name] for name in ("note", "name", "amount") if row[name] is not None}
            shown[row["id"], row["line"]] = values
        return shown

    def events(self, batch: int | None = None) -> list[dict[str, Any]]:
        """Rows of the changes table, of one batch or all, in their order."""
        rows = [row for row in self._scan("shop__changes") if batch in (None, row["batch"])]
        return sorted(rows, key=lambda row: (row["batch"], row["ordinal"]))

    def remembered(self) -> list[tuple[int, int] | int]:
        """What the state has records of, as of the last seal: (id, line) of rows, id of heads."""
        sealed = history(self.store, CLUSTER).sealed
        assert sealed is not None
        ((table_id, versions),) = sealed.state.items()
        found: list[tuple[int, int] | int] = []
        for bucket, version in enumerate(versions.buckets):
            uri = self.folder / "bucket" / layout.state_shard(CLUSTER, table_id, versions.generation, bucket)
            for key, state in Shard(str(uri), version).scan(b"", b"\xff"):
                pk, row = split_record_key(key)
                line = row_codec.decode(state).clustering if row else None
                found.append((number(pk), number(line[0])) if line else number(pk))
        return found

    def _scan(self, namespace: str) -> list[dict[str, Any]]:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{self.folder / 'lake' / 'catalog.db'}")
        rows: list[dict[str, Any]] = catalog.load_table((namespace, "orders")).scan().to_arrow().to_pylist()
        return rows


def folded(events: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, int]]:
    """The table that the events come to, by (id, line), as `Ring.current` gives it. Each `before` has to be
    the last `after` of its key."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        if event["op"] == "t":
            rows.clear()
            continue
        key = event["key"]["id"], event["key"]["line"]
        assert event["before"] == rows.get(key), event
        if event["after"] is None:
            del rows[key]
        else:
            rows[key] = event["after"]
    named = ("note", "name", "amount")
    return {key: {name: row[name] for name in named if row[name] is not None} for key, row in rows.items()}
