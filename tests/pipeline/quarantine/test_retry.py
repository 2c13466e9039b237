"""What could not be used comes in again, as a whole segment or as frames, once it can be used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring import bucket
from tests.node_objects import schema_name
from tests.storage.memory import MemoryStore
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cli import main
from writetime.config.tables import ColumnsConfig
from writetime.events.masking import Rules
from writetime.pipeline.archiver import archive
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import (
    LedgerEntry,
    Manifest,
    Problem,
    Sealed,
    SegmentInput,
    SegmentOutcome,
)
from writetime.pipeline.planner import plan_ingest
from writetime.pipeline.quarantine.record import QuarantineRecord, list_records
from writetime.pipeline.quarantine.retry import release, retry
from writetime.storage import layout
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

NOW = datetime(2026, 5, 5, tzinfo=UTC)
REF = bucket.ref(0, 1)
BODY = bucket.mutation(bucket.ORDERS)
SNAPSHOT: dict[str, Any] = {
    "keyspaces": [{"keyspace_name": "shop", "durable_writes": True, "replication": {"class": "SimpleStrategy"}, "writetime": 1}],
    "tables": [{"keyspace_name": "shop", "table_name": "orders", "id": str(bucket.ORDERS), "cdc": True, "writetime": 1}],
    "columns": [
        {"keyspace_name": "shop", "table_name": "orders", "column_name": name, "kind": kind, "type": "text", "position": position}
        | {"clustering_order": "none", "writetime": 1}
        for name, kind, position in (("id", "partition_key", 0), ("note", "regular", -1))
    ],
}


def fill(store: Store, kind: str = "UnknownTable", message: str = "boo") -> None:
    """One batch is sealed, whose one segment has a frame that could not be used: nobody knows its table."""
    info = store.put(REF.incoming, encode_segment(REF.segment.id, 7, [BODY]))
    segment = SegmentInput.from_object(info)
    (frame,) = scan(store.read(REF.incoming)).frames
    stem = REF.quarantined(frame.position, len(BODY))
    problem = Problem(kind=kind, position=frame.position, size=len(BODY), message=message, quarantined_as=f"{stem}.bin")
    about = {**problem.model_dump(), "batch": 1, "object": REF.incoming, "table_id": str(bucket.ORDERS)}
    store.put(f"{stem}.bin", BODY)
    store.put(f"{stem}.json", json.dumps(about).encode())
    outcome = SegmentOutcome(object=REF.incoming, frames=1, updates=1, problems=[problem])
    manifest = Manifest(number=1, kind="ingest", cluster=bucket.CLUSTER, created_at=NOW, now=1, base=0, segments=[segment])
    sealed = Sealed(
        number=1, kind="ingest", sealed_at=NOW, segments=[outcome], accounting=[], state={}, held=[REF.incoming], snapshots_applied=[]
    )
    for what, document in (("manifest", manifest), ("sealed", sealed)):
        store.put(layout.batch_object(bucket.CLUSTER, 1, what), document.to_bytes())
    store.put(layout.batch_object(bucket.CLUSTER, 1, "schema"), SchemaLearner().to_json().encode())
    archive(store, bucket.CLUSTER, 1)


def report_schema(store: Store) -> None:
    store.put(schema_name(bucket.CLUSTER, NOW, "v1"), json.dumps(SNAPSHOT).encode())


@pytest.fixture
def store() -> MemoryStore:
    filled = MemoryStore()
    fill(filled)
    return filled


def records(store: Store) -> list[QuarantineRecord]:
    return list_records(Batches(store, bucket.CLUSTER))[0]


def taken_in(store: Store) -> list[str]:
    manifest = plan_ingest(store, bucket.CLUSTER, now=NOW)
    return [segment.object for segment in manifest.segments] if manifest else []


def test_a_segment_that_waits_for_a_schema_comes_in_by_itself_when_it_is_there(store: MemoryStore) -> None:
    assert release(store, bucket.CLUSTER, Rules()) == []
    report_schema(store)
    assert release(store, bucket.CLUSTER, Rules()) == [REF.incoming]
    assert release(store, bucket.CLUSTER, Rules()) == []
    assert taken_in(store) == [REF.incoming]


@pytest.mark.parametrize("message", ["commit log version 250 is not supported", "the compressor is not supported: `Best`", "boo"])
def test_an_unsupported_segment_waits_for_a_person(message: str) -> None:
    store = MemoryStore()
    fill(store, kind="UnsupportedSegment", message=message)
    assert release(store, bucket.CLUSTER, Rules()) == []


def test_a_column_that_nobody_knew_is_told_of_later(store: MemoryStore) -> None:
    """The batch knew the table, without the column; a first snapshot tells of something else, the next of the
    column."""
    fill(store, kind="UnknownColumn")
    learner = SchemaLearner()
    learner.apply_snapshot({**SNAPSHOT, "columns": SNAPSHOT["columns"][:1]})
    store.put(layout.batch_object(bucket.CLUSTER, 1, "schema"), learner.to_json().encode())
    assert release(store, bucket.CLUSTER, Rules()) == []
    other = {**SNAPSHOT["columns"][0], "column_name": "more", "kind": "regular", "position": -1}
    store.put(schema_name(bucket.CLUSTER, NOW, "v1"), json.dumps({**SNAPSHOT, "columns": [other]}).encode())
    reads = Counting(store)
    assert release(reads, bucket.CLUSTER, Rules()) == []
    assert reads.segments == 1
    # Nothing new: the segment is not read each minute.
    assert release(reads, bucket.CLUSTER, Rules()) == []
    assert reads.segments == 1
    store.put(schema_name(bucket.CLUSTER, NOW, "v2"), json.dumps(SNAPSHOT).encode())
    assert release(reads, bucket.CLUSTER, Rules()) == [REF.incoming]


def test_what_the_configuration_refuses_waits_for_a_person(store: MemoryStore) -> None:
    fill(store, kind="SchemaError")
    report_schema(store)
    assert release(store, bucket.CLUSTER, ColumnsConfig.model_validate({"column.exclude.list": "shop.orders.id"}).rules) == []
    assert release(store, bucket.CLUSTER, Rules()) == [REF.incoming]


class Counting:
    """A store that counts how often segments are read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.segments = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.segments += name.endswith(".log")
        return self._store.read(name, *args, **kwargs)


def test_an_event_that_was_not_sent_is_listed_and_shown_and_not_retried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = LocalStore(tmp_path / "bucket")
    fill(place)
    stem = layout.unpublishable(bucket.CLUSTER, "p.shop.orders", 7, 3)
    about = {"kind": "oversized", "topic": "p.shop.orders", "sequence": [7, 3], "message": "9 bytes are more than the 8", "size": 17}
    place.put(f"{stem}.bin", b'{"note":"hunter2"}')
    place.put(f"{stem}.json", json.dumps(about).encode())
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")

    def ran(*arguments: str) -> str:
        main(["quarantine", arguments[0], "--config", str(config), *arguments[1:]])
        told = capsys.readouterr()
        return told.out + told.err

    short = f"{stem}.bin".split("/", 2)[2]
    assert f"{short}\n    oversized: 9 bytes are more than the 8\n    event 3 of batch 7, 17 bytes, was not sent" in ran("list")
    assert json.loads(ran("list", "--json").splitlines()[-1])["topic"] == "p.shop.orders"
    assert "hunter2" not in ran("show", short)
    assert "hunter2" in ran("show", short, "--values")
    assert "Send all of a table again" in ran("retry", short)
    report_schema(place)
    assert short not in ran("retry", "--all")


def test_one_with_another_problem_waits_for_a_person() -> None:
    store = MemoryStore()
    fill(store, kind="MalformedMutation")
    report_schema(store)
    assert release(store, bucket.CLUSTER, Rules()) == []
    done = retry(store, bucket.CLUSTER, records(store))
    assert (done.segments, done.objects, done.refused) == ([REF.incoming], [], {})


def test_what_cannot_be_decoded_yet_is_refused_with_its_reason(store: MemoryStore) -> None:
    done = retry(store, bucket.CLUSTER, records(store))
    ((name, reason),) = done.refused.items()
    assert name == records(store)[0].name
    assert str(bucket.ORDERS) in reason
    assert (done.segments, done.objects) == ([], [])


def test_of_a_segment_that_is_gone_the_frames_come_in_as_its_nodes(store: MemoryStore) -> None:
    store.delete(REF.incoming)
    report_schema(store)
    done = retry(store, bucket.CLUSTER, records(store))
    (name,) = done.objects
    found = scan(store.read(name), name=name)
    assert [found.body(frame) for frame in found.frames] == [BODY]
    ref = layout.SegmentRef.from_object(name)
    assert ref.node.origin == "retry"
    assert ref.node.ring_host == bucket.NODES[0].host_id
    assert ref.incoming == name
    assert taken_in(store) == [name]
    note = json.loads(store.read(records(store)[0].name.removesuffix(".bin") + ".json"))
    assert note["retried_at"]


def test_damaged_bytes_are_never_retried_as_frames(store: MemoryStore) -> None:
    entry = LedgerEntry.read(store, REF.ledger)
    assert entry is not None
    store.put(REF.incoming, b"other bytes, and bad ones")
    stem = REF.quarantined(5, 3)
    store.put(f"{stem}.bin", b"abc")
    store.put(f"{stem}.json", json.dumps({"kind": "corrupt_section", "message": "x", "object": REF.incoming}).encode())
    report_schema(store)
    (damaged,) = (record for record in records(store) if record.kind == "corrupt_section")
    assert "damaged" in retry(store, bucket.CLUSTER, [damaged]).refused[damaged.name]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = LocalStore(tmp_path / "bucket")
    fill(place)
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")

    def ran(*arguments: str) -> tuple[int, str, str]:
        code = main(["quarantine", arguments[0], "--config", str(config), *arguments[1:]])
        return code, *capsys.readouterr()

    name = records(place)[0].name
    code, text, _ = ran("list")
    assert code == 0
    assert "UnknownTable: boo" in text
    short = name.split("/", 2)[2]
    assert short in text
    assert json.loads(ran("list", "--json")[1])["name"] == name
    code, text, _ = ran("show", short, "--values")
    assert code == 0
    assert "hunter2" not in text
    assert BODY[:4].hex(" ") not in text
    assert "--all-tables" in text
    assert BODY[:4].hex(" ") in ran("show", short, "--values", "--all-tables")[1]
    code, _, error = ran("retry", short)
    assert code == 1
    assert "still cannot be read" in error
    report_schema(place)
    assert "the next batch reads" in ran("retry", "--all")[1]
    assert ran("show", "no/such/record")[0] == 2
    assert ran("retry")[0] == 2


def test_what_is_settled_is_listed_as_such_and_not_retried_with_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = LocalStore(tmp_path / "bucket")
    fill(place)
    report_schema(place)
    note = records(place)[0].name.removesuffix(".bin") + ".json"
    place.put(note, json.dumps(json.loads(place.read(note)) | {"settled_in": 2}).encode())
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")
    main(["quarantine", "list", "--config", str(config)])
    assert "settled: read by batch 2" in capsys.readouterr().out
    assert main(["quarantine", "retry", "--config", str(config), "--all"]) == 0
    assert capsys.readouterr().out == ""
