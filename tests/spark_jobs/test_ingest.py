"""The ingest job on the recorded ring, with real Spark, Iceberg and Lance: whole, damaged, interrupted and
repeated."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from tests.cassandra.commitlog.packed import make_keystore, repack
from tests.damage import flip_a_byte_of_a_captured_frame, rewrite
from tests.spark_jobs.pipeline import Pipeline, dies_at
from tests.spark_jobs.readers import expect_the_page_to_hold
from tools import verify
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.model import Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.errors import BatchError
from writetime.pipeline import pace
from writetime.pipeline.documents import Accounting, Sealed, WarehouseFiles, total
from writetime.pipeline.planner import plan_ingest, read_manifest
from writetime.storage.layout import schema_prefix

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PASSWORD = "pass-word"
UNKNOWN = Table("nobody", "knows", UUID("6cbda380-e583-11f1-817f-f173fd8e050e"), {"p": Column("p", "partition_key", "int", 0)}, cdc=True)


def expect_the_rings_answer(pipeline: Pipeline) -> None:
    """Every captured table equals what the ring answered."""
    for keyspace, table in pipeline.recording.cdc_tables:
        expected = verify.expected_rows(pipeline.recording, keyspace, table)
        actual = [verify.as_recorded(row) for row in pipeline.rows(keyspace, table)]
        assert verify.differences(f"{keyspace}.{table}", expected, actual) == []


def captured(pipeline: Pipeline, sealed: Sealed) -> Accounting:
    tables = {f"{keyspace}.{table}" for keyspace, table in pipeline.recording.cdc_tables}
    return total(account for account in sealed.accounting if account.table in tables)


def expect_sums_and_files_to_be_noted(pipeline: Pipeline, sealed: Sealed) -> None:
    """What the seal says of all batches, of which this is the first, and of the warehouse's files."""
    assert sealed.totals is not None
    assert (sealed.totals.batches, sealed.totals.tables) == ({"ingest": 1}, sorted(sealed.accounting, key=lambda each: each.table))
    assert sealed.totals.segments == len(sealed.segments)
    assert sealed.totals.bytes == sum(segment.size for segment in read_manifest(pipeline.store, pipeline.cluster, 1).segments)
    changed = {account.table for account in sealed.accounting if account.events}
    assert sealed.files.keys() == changed
    for name, files in sealed.files.items():
        keyspace, table = name.split(".")
        assert files == WarehouseFiles(current=pipeline.files(keyspace, table), changes=pipeline.files(f"{keyspace}__changes", table))
    costs = {(cost.stage, cost.table): cost for cost in sealed.totals.costs}
    # Current rows were committed by an attempt that died.
    assert {stage for stage, _ in costs} >= {"scan", "merge", "write", "changes", "state", "driver", "jvm"}
    assert all(cost.cpu_seconds > 0 for (stage, _), cost in costs.items() if stage not in ("changes", "current"))
    assert (costs["scan", ""].objects, costs["scan", ""].bytes) == (sealed.totals.segments, sealed.totals.bytes)
    for name, files in sealed.files.items():
        assert files.changes is not None
        assert (costs["changes", name].objects, costs["changes", name].bytes) == (files.changes.data, files.changes.bytes)


def test_a_batch_that_dies_at_each_commit_and_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One replica's log is plain, one compressed, one encrypted: they are the same mutations."""
    keystore, key = make_keystore(tmp_path, PASSWORD)
    pipeline = Pipeline.create(tmp_path).with_keystore(keystore, PASSWORD)
    _, second, third = pipeline.stage()
    for log in second.glob("*.log"):
        rewrite(log, repack(log.read_bytes(), "ZstdCompressor"))
    for log in third.glob("*.log"):
        rewrite(log, repack(log.read_bytes(), "encrypted", key=key))
    pipeline.ship()
    manifest = pipeline.plan()
    # Else the recording is too small to say anything.
    monkeypatch.setattr(pace, "FIRST", 1)
    for step in ("_commit_state", "_seal"):
        with dies_at(monkeypatch, step):
            pipeline.run(manifest)
        assert pipeline.plan() == manifest
    assert pace.read_pace(pipeline.store, pipeline.cluster).measures == []
    began = time.monotonic()
    sealed = pipeline.run(manifest)
    (measure,) = pace.read_pace(pipeline.store, pipeline.cluster).measures
    assert (measure.batch, measure.segments, measure.bytes) == (1, len(manifest.segments), sum(each.size for each in manifest.segments))
    assert 0 < measure.seconds < time.monotonic() - began
    assert sealed.held == []
    assert all(account.balanced for account in sealed.accounting)
    account = captured(pipeline, sealed)
    assert account.updates_in == 3 * (account.updates_in // 3)
    assert account.duplicate >= 2 * account.updates_in // 3
    assert account.quarantined == 0
    expect_the_rings_answer(pipeline)
    changes = [row for keyspace, table in pipeline.recording.cdc_tables for row in pipeline.rows(f"{keyspace}__changes", table)]
    assert len(changes) == sealed.events == account.events
    assert len({(row["table_id"], row["ordinal"]) for row in changes}) == len(changes)
    expect_the_page_to_hold(pipeline)
    expect_sums_and_files_to_be_noted(pipeline, sealed)

    # Sealed: a no-op, whoever asks.
    assert pipeline.run(manifest) == sealed


@pytest.mark.thorough
def test_bad_input_holds_up_nothing_else(tmp_path: Path) -> None:
    pipeline = Pipeline.create(tmp_path)
    first, second, third = pipeline.stage()
    flipped = flip_a_byte_of_a_captured_frame(first)
    bad: dict[str, bytes] = {pipeline.incoming(0, flipped.path.name): flipped.bytes}
    names = {
        "empty": (1, "CommitLog-7-1000.log", b""),
        "a text": (1, "CommitLog-7-1001.log", b"this is no segment at all, whatever it is called\n"),
        "unknown table": (2, "CommitLog-7-1002.log", encode_segment(1002, 7, [_unknown_mutation()])),
    }
    fullest = max(second.glob("*.log"), key=lambda log: len(log.read_bytes().rstrip(b"\0")))
    whole = fullest.read_bytes()
    names["truncated"] = (1, fullest.name, whole[: len(whole.rstrip(b"\0")) // 2])
    pipeline.ship()
    for node, filename, data in names.values():
        # As a node's disk may have given them: they came whole and verified, but were bad before.
        name = pipeline.incoming(node, filename)
        pipeline.store.put(name, data)
        bad[name] = data
    # What the node had not synced when it crashed, it lost as well.
    crashed = pipeline.incoming(2, fullest.name)
    pipeline.store.put(crashed, names["truncated"][2], metadata={"ending": "after-crash"})
    snapshot = f"{schema_prefix(pipeline.cluster)}20200101T000000Z-broken.json"
    pipeline.store.put(snapshot, b"this is no JSON")

    sealed = pipeline.batch()
    assert list(sealed.snapshots_refused) == [snapshot]
    outcomes = {outcome.object: outcome for outcome in sealed.segments}
    assert {name for name, outcome in outcomes.items() if not outcome.ok} == set(bad) == set(sealed.held)
    assert all(account.balanced for account in sealed.accounting)
    expect_the_rings_answer(pipeline)

    torn = outcomes[pipeline.incoming(1, fullest.name)].problems[0].size
    assert (outcomes[crashed].problems, outcomes[crashed].torn) == ([], torn)
    kinds = {label: outcomes[pipeline.incoming(node, filename)].problems[0].kind for label, (node, filename, _) in names.items()}
    assert kinds == {"empty": "NotASegment", "a text": "NotASegment", "unknown table": "UnknownTable", "truncated": "torn_tail"}
    for name, data in bad.items():
        entry = pipeline.ledger(name)
        assert entry.state == "quarantined"
        assert pipeline.store.read(name) == data
        for problem in entry.problems:
            assert problem.message
            assert problem.quarantined_as is not None
            assert len(pipeline.store.read(problem.quarantined_as)) == problem.size
    unknown = next(account for account in sealed.accounting if account.table == str(UNKNOWN.id))
    assert (unknown.updates_in, unknown.quarantined) == (1, 1)

    # The same segments once more, as after a crash of the node: those of which the ledger says that they were
    # taken in are removed.
    pipeline.store.put(crashed, names["truncated"][2])
    assert plan_ingest(pipeline.store, pipeline.cluster, now=datetime.now(UTC)) is None
    assert pipeline.store.head(crashed) is None
    # Of the others all is known to the state, and nothing is an event.
    pipeline.stage()
    for folder in (second, third):
        for log in folder.glob("*.log"):
            again = pipeline.incoming(1 if folder == second else 2, log.name)
            if again not in bad:
                pipeline.forget(again)
                pipeline.store.put(again, log.read_bytes())
    repeated = pipeline.batch()
    assert (repeated.events, repeated.snapshots_refused) == (0, {})
    assert captured(pipeline, repeated).applied == 0
    expect_the_rings_answer(pipeline)


def _unknown_mutation() -> bytes:
    row = Row((), liveness=Liveness(1_700_000_000_000_000))
    update = PartitionUpdate(UNKNOWN.id, b"\0\0\0\1", rows=(row,))
    return encode_mutation(Mutation((update,)), Schema(tables={UNKNOWN.id: UNKNOWN}))


def test_a_batch_whose_base_is_not_sealed_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline.create(tmp_path)
    pipeline.stage()
    pipeline.ship()
    manifest = pipeline.plan()
    orphan = manifest.model_copy(update={"number": 3, "base": 2})
    name = f"batches/{manifest.cluster}/{3:010d}/manifest.json"
    pipeline.store.put(name, orphan.to_bytes())
    with pytest.raises(BatchError, match="its base, batch 2, is not sealed"):
        pipeline.run(orphan)
