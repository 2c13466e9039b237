"""Rows of both sides come to one document, also where the pipeline masks, leaves out or filters; no ring, no
Spark."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from pyspark import cloudpickle

from spark_jobs.cassandra_reader import token_of
from spark_jobs.stages.table_rows import EXPIRES_AT, WRITETIME
from spark_jobs.state.shards import Record, in_batches, upsert
from spark_jobs.verify import Look, Plan, Rows, Suspect, _differing, tied_rows
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.reconcile import merge_rows
from writetime.cassandra.model import Cell, Row
from writetime.cassandra.schema.model import Column, ColumnKind, Schema, Table
from writetime.cassandra.types.byte_comparable import RowKeys, record_key
from writetime.config.cluster import CqlConfig
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import WarehouseConfig
from writetime.events.masking import Rules
from writetime.pipeline import verification
from writetime.pipeline.verification import Compared, Difference, Shown
from writetime.storage import open_store

KINDS: dict[str, tuple[ColumnKind, str]] = {
    "id": ("partition_key", "int"),
    "at": ("clustering", "decimal"),
    "secret": ("regular", "text"),
    "tags": ("regular", "map<text, int>"),
    "v": ("regular", "bigint"),
}
TABLE = Table("shop", "orders", UUID(int=1), {n: Column(n, kind, type_, 0) for n, (kind, type_) in KINDS.items()})
WHOLE = [(-(2**63), 2**63 - 1)]


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


def listed(*values: bytes) -> bytes:
    return i32(len(values)) + b"".join(i32(len(value)) + value for value in values)


def answer(number: int, v: int) -> tuple[bytes | None, ...]:
    """id, at, then secret, tags, v, each with its writetime and TTL, and the clock."""
    tags = i32(1) + i32(1) + b"a" + i32(4) + i32(7)
    at = i32(1) + b"\x0a"
    return (i32(number), at, b"s", i64(5), None, tags, listed(i64(6)), listed(i32(60)), i64(v), i64(7), i32(30), i64(0))


def lake(secret: str | None, *, key: str | int = 3) -> pa.RecordBatch:
    row = {"id": key, "at": "1", "secret": secret, "tags": [("a", 7)], "v": 9}
    facts = {WRITETIME: [("secret", 5), ("tags", 6), ("v", 7)], EXPIRES_AT: [("tags", 1060), ("v", 1030)]}
    if secret is None:
        del row["secret"]
        facts[WRITETIME] = facts[WRITETIME][1:]
    kinds = {"tags": pa.map_(pa.string(), pa.int32()), "v": pa.int64(), "id": pa.string() if isinstance(key, str) else pa.int32()}
    types = [(name, kinds.get(name, pa.string())) for name in row] + [(name, pa.map_(pa.string(), pa.int64())) for name in facts]
    return pa.RecordBatch.from_pylist([{**row, **facts}], schema=pa.schema(types))


def both(rules: Rules, batch: pa.RecordBatch) -> tuple[tuple[str, Shown] | None, tuple[str, Shown]]:
    rows = Rows(TABLE, Schema(), True, rules)
    found = rows.answered(answer(3, 9), 1000)
    (ours,) = rows.of_lake(batch, WHOLE, {0})
    return found and (found[0], found[2]), (ours["key"], Shown.from_bytes(ours["row"]))


def test_plain() -> None:
    ring, ours = both(Rules(), lake("s"))
    assert ring == ours
    assert ours[1] == Shown({"secret": "s", "tags": [["a", 7]], "v": 9}, {"secret": 5, "tags": 6, "v": 7}, {"tags": 1060, "v": 1030})
    assert ours[0] == '{"id": 3, "at": "1"}'


def test_rows_whose_ties_the_ring_decided_otherwise_are_named(tmp_path: Path) -> None:
    """The state says of which cells it may: what the ring lacks of these is no drift, and of others it is."""
    rows = Rows(TABLE, Schema(), True)
    (ours,) = rows.of_lake(lake("s"), WHOLE, {0})
    record = record_key(i32(3), RowKeys(TABLE, {}).key((i32(2) + b"\x64",)))
    assert ours["record"] == record
    (masked,) = Rows(TABLE, Schema(), True, Rules(hashes={"sha256": ["shop.orders.at"]}, salt="salt")).of_lake(lake("s"), WHOLE, {0})
    assert masked["record"] is None

    winner, late = Cell("v", 7, i64(9)), Cell("v", 7, i64(8), ttl=5, local_deletion_time=50)
    state = merge_rows(Row((i32(2) + b"\x64",), cells=(winner,)), Row((), cells=(late,)), policy="3.11")
    bucket = open_store(str(tmp_path / "bucket"))
    version = upsert(
        str(tmp_path / "shard"), 0, 1, in_batches([Record(record, row_codec.encode(state), None)]), bucket, "lease.json"
    ).version
    found = Shown.from_bytes(ours["row"])
    suspects = {column: (0, Suspect(0, "", 0, [Difference("value", column, None)], Shown({}), found, record)) for column in ("v", "secret")}
    shards = [(str(tmp_path / "shard"), version)]
    look = Look(0, 1, verification.AT_REST, suspects=suspects)
    assert tied_rows(look, shards, ClusteringOrder(TABLE, {}), frozenset({"tags"}), 100) == {"v"}


def test_tokens_come_from_the_warehouse() -> None:
    rows = Rows(TABLE, Schema(), True)
    token = token_of(i32(3))
    assert [each["token"] for each in rows.of_lake(lake("s"), WHOLE, {0})] == [token]
    ranges = [(-(2**63), token - 1), (token - 1, token), (token, 2**63 - 1)]
    assert [each["range"] for each in rows.of_lake(lake("s"), ranges, {0, 1, 2})] == [1]
    assert list(rows.of_lake(lake("s"), ranges, {0, 2})) == []


def test_elements_are_compared_by_type() -> None:
    """1.0 of the cluster is the 1 that the tables have, and a list's 1.0 is itself."""
    kinds: dict[str, tuple[ColumnKind, str]] = {
        "id": ("partition_key", "int"),
        "m": ("regular", "map<decimal, decimal>"),
        "n": ("regular", "set<frozen<list<decimal>>>"),
    }
    table = Table("shop", "numbers", UUID(int=2), {n: Column(n, kind, type_, 0) for n, (kind, type_) in kinds.items()})
    one = i32(1) + b"\x0a"
    pair = i32(1) + i32(len(one)) + one + i32(len(one)) + one
    answered = (i32(3), pair, listed(i64(5)), listed(), listed(listed(one)), listed(i64(6)), listed(), i64(0))
    found = Rows(table, Schema(types={}), of_elements=True).answered(answered, 1000)
    assert found is not None
    assert found[2].values == {"m": [["1", "1.0"]], "n": [["1"]]}


def test_masked_hashed_and_left_out() -> None:
    ring, ours = both(Rules(masks={4: ["shop.orders.secret"]}), lake("****"))
    assert ring == ours
    assert ours[1].values["secret"] == "****"
    ring, ours = both(Rules(exclude=["shop.orders.secret"]), lake(None))
    assert ring == ours
    assert "secret" not in {**ours[1].values, **ours[1].writetime}
    hashing = Rules(hashes={"sha256": ["shop.orders.id"]}, salt="salt")
    rows = Rows(TABLE, Schema(), True, hashing)
    found = rows.answered(answer(3, 9), 1000)
    assert found is not None
    assert rows.blind
    (hashed,) = rows.of_lake(lake("s", key=json.loads(found[0])["id"]), [(0, 1)], {0})
    assert (hashed["key"], Shown.from_bytes(hashed["row"])) == (found[0], found[2])


def test_filtered() -> None:
    rows = Rows(TABLE, Schema(), True, Rules(rows={"shop.orders": "v > 9"}))
    assert rows.answered(answer(3, 9), 1000) is None
    assert rows.answered(answer(3, 10), 1000) is not None


def test_a_partition_that_reads_as_another_is_left_to_the_quarantine() -> None:
    kinds: dict[str, tuple[ColumnKind, str]] = {"id": ("partition_key", "varint"), "v": ("regular", "int")}
    padded = Table("shop", "padded", UUID(int=2), {n: Column(n, kind, type_, 0) for n, (kind, type_) in kinds.items()})
    rows = Rows(padded, Schema(), True)
    answers = [rows.answered((key, i32(7), i64(5), None, i64(0)), 1000) for key in (b"\1", b"\0\1", b"\0\x80")]
    assert [found and json.loads(found[0]) for found in answers] == [{"id": "1"}, None, {"id": "128"}]


def test_a_row_that_the_table_has_twice_differs() -> None:
    row = Shown({"v": 1}, {"v": 5}).to_bytes()
    side = {"range": 0, "key": "k", "token": 1, "now": 9, "row": row, "record": None}
    rows = [side | {"ring": True}, side | {"ring": False}, side | {"ring": False}]
    found = list(_differing(Compared(frozenset({"v"})), rows))
    assert [(each["key"], each["twice"], each["rows"]) for each in found] == [("k", True, 0), (None, None, 1)]
    assert [each["key"] for each in _differing(Compared(frozenset({"v"})), rows[:2])] == [None]


def test_what_travels_to_the_workers() -> None:
    about = {"pipeline": "p", "cluster": {"name": "c", "datacenters": ["dc1"]}, "bucket": "b"}
    config = PipelineConfig.model_validate({**about, "columns": {"column.exclude.list": ["shop.orders.secret"]}})
    plan = Plan(config, CqlConfig(contact_points=["127.0.0.1"]), TABLE, Schema(), WHOLE, False)
    columns = plan.columns(["id", "at", "tags", "v", "once", WRITETIME, EXPIRES_AT])
    assert columns == ["id", "at", "tags", "v", WRITETIME, EXPIRES_AT]
    # Before 5.0 a ring tells nothing of elements.
    assert plan.compared(columns) == Compared(frozenset({"tags", "v"}), frozenset({"tags"}), frozenset({"tags"}))
    read = cloudpickle.loads(cloudpickle.dumps(plan.our_side({0})))
    (batch,) = read(iter([lake(None)]))
    assert batch["ring"].to_pylist() == [False]
    assert Shown.from_bytes(batch["row"][0].as_py()).values == {"tags": [["a", 7]], "v": 9}
    cloudpickle.dumps(plan.ring_side(2))


def test_numbers_of_current_rows_are_compared_as_numbers() -> None:
    kinds: dict[str, tuple[ColumnKind, str]] = {"id": ("partition_key", "int"), "amount": ("regular", "decimal")}
    priced = Table("shop", "orders", UUID(int=1), {n: Column(n, kind, type_, 0) for n, (kind, type_) in kinds.items()})

    def differ(raw: bytes, stored: str | None) -> bool:
        layout = WarehouseConfig.model_validate({"decimal": {"shop.orders.*": "decimal(6, 2)"}})
        rows = Rows(priced, Schema(), True, warehouse=layout)
        found = rows.answered((i32(1), raw, i64(5), None, i64(0)), 1000)
        row = {"id": 1, "amount": None if stored is None else Decimal(stored), WRITETIME: [("amount", 5)], EXPIRES_AT: []}
        facts = [(name, pa.map_(pa.string(), pa.int64())) for name in (WRITETIME, EXPIRES_AT)]
        schema = pa.schema([("id", pa.int32()), ("amount", pa.decimal128(6, 2)), *facts])
        (ours,) = rows.of_lake(pa.RecordBatch.from_pylist([row], schema=schema), WHOLE, {0})
        assert found is not None
        return found[2] != Shown.from_bytes(ours["row"])

    assert not differ(i32(1) + b"\x0f", "1.50"), "1.5"
    assert not differ(i32(0) + b"\x00", "0.00"), "0"
    assert not differ(b"", None), "no bytes"
    assert differ(i32(1) + b"\x0f", "1.51")
    assert differ(i32(1) + b"\x0f", None)
    assert differ(i32(3) + b"\x05\xe1", None), "1.505"
    assert differ(i32(3) + b"\x05\xe1", "1.50")
