"""Checking one segment, as a person who has mended it asks for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cassandra.commitlog.examples import RANGES_TABLE, SCHEMA, insert
from tests.cassandra.commitlog.packed import KEYS, PACKINGS, repack
from tests.cassandra.schema.examples import create_table
from tests.node_objects import schema_name
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Column, Schema
from writetime.cassandra.schema.system_tables import TABLES
from writetime.pipeline.documents import LedgerEntry, Manifest, Sealed
from writetime.pipeline.segment_check import check_segment
from writetime.storage import layout, open_store
from writetime.storage.store import Store

CLUSTER = "ring"
NOW = datetime(2026, 5, 4, tzinfo=UTC)
NAME = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "host"), layout.SegmentName(7, 7)).incoming


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def segment(*bodies: bytes) -> bytes:
    return encode_segment(7, 7, bodies)


def ddl(*, cdc: bool = True) -> bytes:
    return encode_mutation(create_table(replace(RANGES_TABLE, cdc=cdc), 1_600_000_000_000_000), Schema(tables=TABLES))


def kinds(store: Store) -> list[str]:
    return [problem.kind for problem in check_segment(store, CLUSTER, NAME)]


def test_a_segment_that_brings_its_own_schema_is_good(store: Store) -> None:
    store.put(NAME, segment(encode_mutation(insert(1), SCHEMA), ddl()))
    assert kinds(store) == []


def test_what_nobody_knows(store: Store) -> None:
    store.put(NAME, segment(encode_mutation(insert(1), SCHEMA), ddl(), encode_mutation(insert(2), SCHEMA)[:-1]))
    assert kinds(store) == ["MalformedMutation"]
    store.put(NAME, segment(encode_mutation(insert(1), SCHEMA)))
    assert kinds(store) == ["UnknownTable"]


def test_a_captured_table_is_decoded_and_others_are_not(store: Store) -> None:
    """A column that the schema lacks matters only where the table is captured."""
    wider = replace(RANGES_TABLE, columns={**RANGES_TABLE.columns, "more": Column("more", "regular", "int")})
    update = insert(1).updates[0]
    row = replace(update.rows[0], cells=(replace(update.rows[0].cells[0], column="more", value=b"\0\0\0\1"),))
    body = encode_mutation(replace(insert(1), updates=(replace(update, rows=(row,)),)), Schema(tables={wider.id: wider}))
    store.put(NAME, segment(ddl(), body))
    assert kinds(store) == ["UnknownColumn"]
    store.put(NAME, segment(ddl(cdc=False), body))
    assert kinds(store) == []


def test_what_sealed_batches_and_readable_snapshots_told_is_known(store: Store) -> None:
    learner = SchemaLearner()
    learner.apply(create_table(RANGES_TABLE, 1_600_000_000_000_000))
    manifest = Manifest(number=1, kind="ingest", cluster=CLUSTER, created_at=NOW, now=0, base=0, segments=[])
    sealed = Sealed(number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={})
    for what, data in (("manifest", manifest.to_bytes()), ("sealed", sealed.to_bytes()), ("schema", learner.to_json().encode())):
        store.put(layout.batch_object(CLUSTER, 1, what), data)
    store.put(schema_name(CLUSTER, NOW, "broken"), b"\xff no JSON")
    store.put(NAME, segment(encode_mutation(insert(1), SCHEMA)))
    assert kinds(store) == []


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_packed_segment_is_looked_into(packing: str, store: Store) -> None:
    plain = segment(ddl(), encode_mutation(insert(1), SCHEMA))
    store.put(NAME, repack(plain, packing))
    assert check_segment(store, CLUSTER, NAME, KEYS) == []
    store.put(NAME, repack(segment(ddl(), encode_mutation(insert(2), SCHEMA)[:-1]), packing))
    assert [problem.kind for problem in check_segment(store, CLUSTER, NAME, KEYS)] == ["MalformedMutation"]


def test_an_encrypted_segment_without_its_keystore(store: Store) -> None:
    store.put(NAME, repack(segment(ddl()), "encrypted"))
    (problem,) = check_segment(store, CLUSTER, NAME)
    assert problem.kind == "UnsupportedSegment"
    assert "commitlog_keystore" in problem.message


def test_what_a_node_lost_in_a_crash_is_nothing_wrong(store: Store) -> None:
    """A segment that ends so, and is held for something else, is good once that is mended: also as a copy
    that says nothing of a crash."""
    torn = segment(encode_mutation(insert(1), SCHEMA), encode_mutation(insert(2), SCHEMA))[:-40]
    info = store.put(NAME, torn, metadata={"ending": "after-crash"})
    assert kinds(store) == ["UnknownTable"]
    entry = LedgerEntry(
        object=NAME,
        state="quarantined",
        size=info.size,
        crc32c=info.crc32c,
        sealed_at=NOW,
        ending="after-crash",
        batch=1,
        updated_at=NOW,
    )
    mended = segment(ddl(), encode_mutation(insert(1), SCHEMA), encode_mutation(insert(2), SCHEMA))[:-40]
    store.put(NAME, mended)
    assert kinds(store) == ["torn_tail"]
    store.put(entry_name := layout.SegmentRef.from_object(NAME).ledger, entry.to_bytes())
    assert kinds(store) == []
    store.put(entry_name, entry.model_copy(update={"ending": "completed"}).to_bytes())
    assert kinds(store) == ["torn_tail"]


def test_damage_and_what_is_no_segment(store: Store) -> None:
    whole = segment(ddl(), encode_mutation(insert(1), SCHEMA))
    store.put(NAME, whole[:-20] + bytes((whole[-20] ^ 1,)) + whole[-19:])
    assert kinds(store) == ["corrupt_frame"]
    store.put(NAME, b"nothing of the kind")
    assert kinds(store) == ["NotASegment"]
    store.put(NAME, segment(b"\1" * 12))
    assert kinds(store) == ["MalformedMutation"]
