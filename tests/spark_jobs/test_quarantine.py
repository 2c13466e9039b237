"""What a hot table that nobody can use costs the driver: records and problems by range, not by frame. Without
Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.sinks.quarantine import QuarantineWriter, Wanted, frame_writer
from spark_jobs.stages.scan import SEGMENTS, surveyor
from tests.storage.memory import MemoryStore
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.schema.model import Schema
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import (
    Manifest,
    Problem,
    Sealed,
    SegmentInput,
    SegmentOutcome,
    may_contain,
)
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.contents import look
from writetime.pipeline.quarantine.record import list_records
from writetime.storage import layout, open_store

NOW = datetime(2026, 5, 4, tzinfo=UTC)
NODE = layout.NodeName("c", "dc1", "00000000-0000-4000-8000-000000000000")
TABLE, OTHER = UUID(int=7), UUID(int=8)


def manifest(segments: int = 1, **about: Any) -> Manifest:
    refs = [layout.SegmentRef(NODE, layout.SegmentName(1777000000000 + number, 7)) for number in range(segments)]
    made = [SegmentInput(object=ref.incoming, generation=1, size=1, crc32c=1, sealed_at=NOW) for ref in refs]
    return Manifest(number=1, kind="ingest", cluster="c", created_at=NOW, now=1, base=0, segments=made, **about)


def unknown(table_id: UUID = TABLE) -> dict[str, Any]:
    message = f"route a frame: {table_id}: no schema is known for this table id"
    return {"kind": "UnknownTable", "message": message, "table_id": str(table_id)}


def never(wanted: Mapping[int, Wanted]) -> list[dict[str, int]]:
    raise AssertionError(f"workers were asked for {wanted}")


def kept(store: MemoryStore, frames: list[tuple[int, int, bytes, dict[str, Any]]], of: Manifest) -> dict[int, list[Problem]]:
    writer = QuarantineWriter(store, of, Schema(tables={}))
    for frame in frames:
        writer.add(*frame)
    return writer.finish(never)


def test_a_few_frames_are_records_of_their_own() -> None:
    store = MemoryStore()
    problems = kept(store, [(0, at, b"x%d" % at, unknown()) for at in range(100)], manifest())[0]
    assert [(problem.frames, problem.last) for problem in problems] == [(1, None)] * 100
    assert len(list(store.list("quarantine/"))) == 200


def test_many_frames_are_one_record_and_one_problem() -> None:
    store = MemoryStore()
    of = manifest()
    bodies = [b"x%d" % at * 100 for at in range(5000)]
    (problem,) = kept(store, [(0, at, body, unknown()) for at, body in reversed(list(enumerate(bodies)))], of)[0]
    assert (problem.position, problem.last, problem.frames, problem.table_id) == (0, 4999, 5000, TABLE)
    assert may_contain([problem]) == {TABLE}
    assert problem.quarantined_as is not None
    assert list(frame_ranges.unpack(store.read(problem.quarantined_as))) == bodies
    assert len(list(store.list("quarantine/"))) == 2
    ((record,), _) = list_records(Batches(store, "c"))
    assert (record.name, record.position, record.size, record.kind) == (problem.quarantined_as, 0, problem.size, "UnknownTable")
    assert "5000 frames of one table" in look(Batches(store, "c"), record, None, None, values=True).hidden  # type: ignore[arg-type]


def test_of_a_batch_the_first_hundred_of_a_table_are_named() -> None:
    store = MemoryStore()
    of = manifest(30)
    frames = [(segment, at, b"x", unknown(table)) for segment in range(30) for at in range(10) for table in (TABLE, OTHER)]
    problems = kept(store, frames, of)
    assert [len(problems[segment]) for segment in range(30)] == [20] * 10 + [2] * 20
    assert sum(problem.frames for found in problems.values() for problem in found) == 600


def test_what_is_only_compared_leaves_no_trace() -> None:
    store = MemoryStore()
    problems = kept(store, [(0, at, b"x", unknown()) for at in range(200)], manifest(namespace="n"))[0]
    assert [problem.quarantined_as for problem in problems] == [None]
    assert list(store.list("")) == []


def test_a_million_frames_leave_a_small_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the workers hand them over: 12 segments of 32 MiB, in records of 4 MiB."""
    store = MemoryStore()
    of = manifest(12)
    puts: list[str] = []
    monkeypatch.setattr(store, "put", lambda name, *_: puts.append(name))
    frames = [
        (segment, at * 10_400, b"", unknown() | {"frames": 10_400, "last": at * 10_400 + 10_399, "size": 4_000_000})
        for segment in range(12)
        for at in range(8)
    ]
    problems = kept(store, frames, of)
    outcomes = [SegmentOutcome(object=each.object, problems=problems[at]) for at, each in enumerate(of.segments)]
    sealed = Sealed(number=1, kind="ingest", sealed_at=NOW, segments=outcomes, accounting=[], state={})
    assert sum(outcome.refused_frames for outcome in outcomes) == 998_400
    assert len(sealed.to_bytes()) < 1 << 20
    assert len(puts) == 12 * 8, "notes: the workers put the bytes"


def test_a_later_batch_finds_single_records_of_before_among_the_many() -> None:
    """A release before kept each frame as a record: those of frames that still cannot be used are not
    settled."""
    many = Problem(kind="UnknownTable", position=10, size=9, message="m", table_id=TABLE, frames=5, last=50)
    for position, table, expected in ((10, TABLE, True), (50, TABLE, True), (51, TABLE, False), (9, TABLE, False), (20, OTHER, False)):
        assert many.covers({"position": position, "table_id": str(table)}) is expected
    assert many.covers({"position": 10, "last": 50, "table_id": str(TABLE)})
    assert not many.covers({"position": 10, "last": 60, "table_id": str(TABLE)})


@given(st.lists(st.binary(max_size=50)))
def test_packing(bodies: list[bytes]) -> None:
    packed = frame_ranges.pack(bodies)
    assert list(frame_ranges.unpack(packed)) == bodies
    for cut in range(1, min(4, len(bodies[-1]) + 4) if bodies else 0):
        with pytest.raises(ValueError, match="truncated"):
            list(frame_ranges.unpack(packed[:-cut]))


@given(st.lists(st.integers(0, frame_ranges.LARGEST * 2), max_size=30))
def test_runs(sizes: list[int]) -> None:
    found = list(frame_ranges.runs(sizes))
    assert [at for start, end in found for at in range(start, end)] == list(range(len(sizes)))
    assert all(end - start == 1 or sum(sizes[start:end]) <= frame_ranges.LARGEST for start, end in found)


def test_names_say_how_many() -> None:
    ref = layout.SegmentRef(NODE, layout.SegmentName(5, 7))
    assert layout.quarantined_frames(f"{ref.quarantined(1, 9)}.bin") == 1
    assert layout.quarantined_frames(f"{ref.quarantined(1, 9, 300)}.bin") == 300
    assert json.dumps(ref.quarantined(1, 9, 300)).endswith('/0000000001-9-300"')


# --- bytes that workers put


BODIES = [b"\1" + TABLE.bytes + b"\4key%d" % at + b"x" * (10 if at else 2 * frame_ranges.BROUGHT) for at in range(150)]


class Workers:
    """A segment in a store, and what `frame_writer` makes of it."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self.store, self.manifest = open_store(str(folder)), manifest()
        (segment,) = self.manifest.segments
        crc = self.store.put(segment.object, data).crc32c
        place = {"segment": 0, "object": segment.object, "crc32c": crc, "tail": None}
        self.given = [pa.RecordBatch.from_pylist([{"segments": [place]}], schema=SEGMENTS)]
        self.url, self.asked = str(folder), 0

    def __call__(self, wanted: Mapping[int, Wanted]) -> list[dict[str, int]]:
        self.asked += 1
        assert [info.name for info in self.store.list("quarantine/") if info.name.endswith(".json")] == [], "bytes come before notes"
        return [row for batch in frame_writer(wanted, self.url, None, puts=True)(self.given) for row in batch.to_pylist()]

    def positions(self) -> list[int]:
        return [frame.position for frame in scan(self.store.read(self.manifest.segments[0].object)).frames]


def test_workers_put_what_the_driver_has_places_of_only(tmp_path: Path) -> None:
    workers = Workers(tmp_path, encode_segment(1777000000000, 7, BODIES))
    at = workers.positions()
    writer = QuarantineWriter(workers.store, workers.manifest, Schema(tables={}))
    few, many = unknown(OTHER), unknown(TABLE)
    writer.add(0, at[0], None, few | {"size": len(BODIES[0])})
    writer.add(0, at[1], BODIES[1], few)
    writer.add(0, at[2], BODIES[2], many | {"message": "another one"})
    writer.add(0, at[3], frame_ranges.places(at[3:]), many | {"places": len(at) - 3})
    problems = writer.finish(workers)[0]
    assert workers.asked == 1
    assert [(problem.table_id, problem.position, problem.frames, problem.last) for problem in problems] == [
        (TABLE, at[2], 148, at[-1]),
        (OTHER, at[0], 1, None),
        (OTHER, at[1], 1, None),
    ]
    assert problems[0].message == "another one (the first of 2 messages)"
    together, *single = [workers.store.read(str(problem.quarantined_as)) for problem in problems]
    assert list(frame_ranges.unpack(together)) == BODIES[2:]
    assert single == BODIES[:2]
    assert [len(data) for data in (together, *single)] == [problem.size for problem in problems]


def test_a_long_damaged_range_is_put_by_a_worker(tmp_path: Path) -> None:
    data = b"no segment at all" * 1000
    workers = Workers(tmp_path, data)
    writer = QuarantineWriter(workers.store, workers.manifest, Schema(tables={}))
    (row,) = [row for batch in surveyor(workers.url)(workers.given) for row in batch.to_pylist() if row["kind"] == "problem"]
    assert row["body"] is None
    writer.add(0, row["position"], row["body"], json.loads(row["detail"]))
    (problem,) = writer.finish(workers)[0]
    assert workers.store.read(str(problem.quarantined_as)) == data
    assert problem.size == len(data)


def test_frames_that_are_not_there_any_more_are_named(tmp_path: Path) -> None:
    workers = Workers(tmp_path, encode_segment(1777000000000, 7, BODIES))
    (row,) = workers({0: Wanted(groups=[(frame_ranges.places([5, workers.positions()[7]]), False)])})
    assert (row["position"], row["frames"]) == (5, 0)


@given(st.lists(st.integers(0, 2**40)))
def test_places(positions: list[int]) -> None:
    assert frame_ranges.placed(frame_ranges.places(sorted(positions))) == sorted(positions)
