"""Pieces in quarantine as rows of the warehouse and records of their topic: new ones, again, and settled
ones. Real Spark, Iceberg and Kafka."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import ingest, publish
from tests.cassandra.schema.examples import create_table
from tests.spark_jobs.pipeline import dies_at
from tests.spark_jobs.synthetic import CLUSTER, START, Ring, i32, insert, micros
from tests.spark_jobs.test_kafka import consume
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.schema.system_tables import TABLES
from writetime.config.kafka import KafkaConfig
from writetime.events.masking import Rules
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Sealed
from writetime.pipeline.quarantine.retry import release
from writetime.storage import layout
from writetime.storage.checksum import crc32c

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900), pytest.mark.thorough]

LATE = Table("shop", "late", UUID("7cbda380-e583-11f1-817f-f173fd8e050e"), {"p": Column("p", "partition_key", "int", 0)}, cdc=True)


def unknown(key: int) -> bytes:
    update = PartitionUpdate(LATE.id, i32(key), rows=(Row((), Liveness(micros(key))),))
    return encode_mutation(Mutation((update,)), Schema(tables={LATE.id: LATE}))


def records(ring: Ring) -> list[dict[str, Any]]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{ring.folder / 'lake' / 'catalog.db'}")
    rows: list[dict[str, Any]] = catalog.load_table(("_writetime", "quarantine")).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: str(row["name"]))


def run(ring: Ring, now: float) -> Sealed:
    sealed = ingest.run(ring.config, ring.plan(now).number)
    archive(ring.store, CLUSTER, sealed.number)
    return sealed


def test_a_record_is_told_of_until_it_is_settled(tmp_path: Path, kafka_broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(tmp_path, "a")
    ring.write(insert(1, 1, 1, name=1))
    for key in (2, 3):
        ring.write(unknown(key))
    ring.finish_and_ship(10)
    manifest = ring.plan(100)
    with dies_at(monkeypatch, "_commit_changes"):
        ingest.run(ring.config, manifest.number)
    assert len(records(ring)) == 2
    sealed = run(ring, 100)
    (outcome,) = sealed.segments
    found = records(ring)
    assert [row["name"] for row in found] == [problem.quarantined_as for problem in outcome.problems]
    (first, _) = found
    assert ring.store.read(first["name"]) == unknown(2)
    told = {name: value for name, value in first.items() if name not in ("name", "message", "position", "at")}
    assert told == {
        "cluster": CLUSTER,
        "kind": "UnknownTable",
        "size": len(unknown(2)),
        "batch": sealed.number,
        "datacenter": "dc1",
        "node": "a",
        "segment": "CommitLog-7-1",
        "table": str(LATE.id),
        "object": outcome.object,
        "topic": None,
        "ordinal": None,
        "settled_in": None,
        "bytes": None,
    }
    assert "no schema is known" in first["message"]
    assert first["at"].timestamp() == (START.timestamp() + 100)

    # Nothing has changed but that somebody asks for it again.
    assert release(ring.store, CLUSTER, Rules()) == []
    ring.write(encode_mutation(create_table(LATE, micros(20)), Schema(tables=TABLES)))
    ring.write(unknown(4))
    ring.finish_and_ship(30)
    second = run(ring, 200)
    assert (second.segments[0].problems, second.held) == ([], [outcome.object])
    assert [row["settled_in"] for row in records(ring)] == [None, None]
    assert release(ring.store, CLUSTER, Rules()) == [outcome.object]
    third = run(ring, 300)
    assert third.held == []
    assert [row["settled_in"] for row in records(ring)] == [third.number] * 2
    assert [row["batch"] for row in records(ring)] == [sealed.number] * 2
    assert [settled.quarantined_as for settled in third.segments[0].settled] == [row["name"] for row in records(ring)]

    # An event that is too large is a record, too; of a topic that holds up nothing.
    topic = f"q{uuid.uuid4().hex[:8]}"
    given = {"bootstrap.servers": kafka_broker, "topic.prefix": topic, "partitions": 2, "oversized": "quarantine"}
    kafka = KafkaConfig.model_validate(given)
    config = ring.config.model_copy(update={"kafka": kafka})
    limits = {f"{topic}.shop.orders": 10, f"{topic}.shop.late": 1_000_000}
    monkeypatch.setattr(publish, "message_limits", lambda *_: (limits, {}))
    # DDL of two tables and of a keyspace's, what the two records and the event are told by, and the rows of
    # the late table.
    assert publish.run(config).waiting == {}
    large = layout.unpublishable(CLUSTER, f"{topic}.shop.orders", 1, 1) + ".bin"
    rows = {row["name"]: row for row in records(ring)}
    assert list(rows) == [*(row["name"] for row in found), large]
    assert (rows[large]["table"], rows[large]["topic"], rows[large]["kind"]) == ("shop.orders", f"{topic}.shop.orders", "oversized")
    told = [(json.loads(key), json.loads(value or b"")) for _, key, value in consume(kafka, f"{topic}.__quarantine")]
    assert all(key == {"name": value["name"]} for key, value in told)
    by_name = {name: [value for _, value in told if value["name"] == name] for name in rows}
    assert [len(values) for values in by_name.values()] == [2, 2, 1]
    for name, values in by_name.items():
        row = dict(rows[name])
        assert values[-1] == row | {"ts_ms": int(row.pop("at").timestamp() * 1000)}
        assert [value["settled_in"] for value in values] == ([None] if name == large else [None, third.number])
    assert consume(kafka, f"{topic}.shop.orders") == []
    assert publish.run(config, everything=True).events == 0
    assert len(consume(kafka, f"{topic}.__quarantine")) == len(told)
    assert records(ring) == list(rows.values())

    # By default it goes as a claim, and its value lies in the bucket as a consumer would have had it.
    claims = KafkaConfig.model_validate({**given, "topic.prefix": f"{topic}c", "oversized": "claim-check"})
    monkeypatch.setattr(publish, "message_limits", lambda *_: ({f"{topic}c.shop.orders": 10}, {}))
    assert KafkaConfig.model_validate({"bootstrap.servers": "k:1", "topic.prefix": "p"}).oversized == "claim-check"
    assert publish.run(ring.config.model_copy(update={"kafka": claims}), everything=True).waiting == {}
    ((_, _, value),) = consume(claims, f"{topic}c.shop.orders")
    told_of = json.loads(value or b"")
    assert told_of["after"] is None
    claim = told_of["claim"]
    content = ring.store.read(claim["url"].removeprefix(f"{ring.store.url.rstrip('/')}/"))
    assert (len(content), crc32c(content)) == (claim["size"], claim["crc32c"])
    assert json.loads(content)["source"]["sequence"] == told_of["source"]["sequence"]
    assert json.loads(content)["after"] is not None
    assert publish.run(ring.config.model_copy(update={"kafka": claims}), everything=True).events == 0
