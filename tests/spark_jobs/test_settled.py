"""Which records of earlier batches a batch says that it could use, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from spark_jobs.ingest import Batch
from tests.storage.memory import MemoryStore
from writetime.pipeline.documents import Manifest, Mark, Problem, Sealed, SegmentInput
from writetime.storage import layout

NOW = datetime(2026, 5, 4, tzinfo=UTC)
REF = layout.SegmentRef(layout.NodeName("c", "dc1", "host-1"), layout.SegmentName(5, 7))


@pytest.fixture
def store() -> MemoryStore:
    """Two records of a segment are in quarantine since batch 2."""
    filled = MemoryStore()
    for position in (1, 2):
        note = {**problem(position).model_dump(), "batch": 2, "object": REF.incoming, "table_id": "8cbda380-e583-11f1-817f-f173fd8e050e"}
        filled.put(f"{REF.quarantined(position, 9)}.json", json.dumps(note).encode())
    filled.put(f"{REF.quarantined(1, 9)}.bin", b"some bytes")
    return filled


def problem(position: int, kind: str = "UnknownTable") -> Problem:
    name = f"{REF.quarantined(position, 9)}.bin"
    return Problem(kind=kind, position=position, size=9, message="boo", quarantined_as=name)


def settled(store: MemoryStore, *problems: Problem, number: int = 3, of: layout.SegmentRef = REF, **base: Any) -> list[tuple[int, int]]:
    """Position, and the batch that could not use it, of what batch `number` says of the segment."""
    about = SegmentInput(object=of.incoming, generation=1, size=1, crc32c=1, sealed_at=NOW)
    manifest = Manifest(number=number, kind="ingest", cluster="c", created_at=NOW, now=1, base=2, segments=[about])
    before = Sealed(number=2, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={}, **base)
    batch = Batch(cast(Any, None), store, cast(Any, None), manifest, before, meter=cast(Any, None))
    found = batch._settle(about, list(problems))
    assert {each.object for each in found} <= {REF.incoming}
    return [(each.position, each.batch) for each in found]


HELD = {"held": [REF.incoming]}


def test_what_is_not_met_again_is_settled_once(store: MemoryStore) -> None:
    for _ in range(2):
        assert settled(store, problem(1), **HELD) == [(2, 2)]
    assert json.loads(store.read(f"{REF.quarantined(2, 9)}.json"))["settled_in"] == 3
    assert settled(store, number=4, **HELD) == [(1, 2)]


def test_nothing_is_settled_by_a_segment_that_has_damaged_ranges(store: MemoryStore) -> None:
    assert settled(store, problem(5, "corrupt_section"), **HELD) == []
    assert settled(store, problem(5, "corrupt_frame"), **HELD) == [(1, 2), (2, 2)]


def test_a_segment_that_comes_for_the_first_time_settles_nothing(store: MemoryStore) -> None:
    assert settled(store) == []
    assert settled(store, growing={REF.growing: Mark(position=5, logical=5)}) == []
    assert settled(store, growing={REF.growing: Mark(position=5, logical=5, sound=False)}) == [(1, 2), (2, 2)]


def test_a_frame_that_is_retried_alone_settles_its_record(store: MemoryStore) -> None:
    again = layout.SegmentRef(layout.NodeName.made("c", "retry", "20260504~host-1"), layout.SegmentName(1, 8))
    store.put(again.incoming, b"frames", metadata={"piece": str(problem(2).quarantined_as)})
    assert settled(store, problem(7), of=again) == []
    assert settled(store, of=again) == [(2, 2)]
