"""Flat rows by the batch: the compiled engine finds what the readable one does, and both what a fold of partitions finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.join.join_oracle import WITH_STATICS, deletions, i32, rows, update, updates
from tests.ring.recording import Recording
from writetime.commitlog.cells import Decoded, Dictionaries, decode_segment, flatten
from writetime.commitlog.dump import learn
from writetime.commitlog.segment import scan
from writetime.join import bulk, flat
from writetime.join.bulk import Joined
from writetime.join.reconcile import settle_row
from writetime.model import Cell, DeletionTime, Mutation, PartitionUpdate, Row
from writetime.schema.learn import SchemaLearner
from writetime.schema.model import Schema

SINCES = st.none() | st.integers(99, 102)


def as_lists(joined: Joined) -> dict[str, list[Any]]:
    """The columns, without what says nothing of groups that were left."""
    return {field.name: getattr(joined, field.name).to_pylist() for field in fields(joined)}


@st.composite
def batches(draw: Callable[..., Any]) -> tuple[list[int], list[Row], list[Row | None], list[DeletionTime | None]]:
    groups = draw(st.lists(st.integers(0, 2), max_size=8).map(sorted))
    actives = [draw(st.none() | deletions) for _ in range(3)]
    states = [settle_row(row, active=active) if (row := draw(st.none() | rows)) else None for active in actives]
    return groups, [draw(rows) for _ in groups], states, actives


def join(batch: Any, engine: Any, **options: Any) -> Joined:
    groups, items, states, actives = batch
    return bulk.join(
        pa.array(groups, pa.int32()),
        pa.array([flat.encode(item) for item in items], pa.binary()),
        pa.array([None if state is None or state.is_empty else flat.encode(state) for state in states], pa.binary()),
        active_timestamps=pa.array([active and active.marked_for_delete_at for active in actives], pa.int64()),
        active_times=pa.array([active and active.local_deletion_time for active in actives], pa.int64()),
        engine=engine,
        **options,
    )


@settings(deadline=None, max_examples=300)
@given(batches(), SINCES, st.sampled_from([{}, {"a": 2, "m": 1}]))
def test_both_engines_join_alike(batch: Any, since: int | None, dropped: dict[str, int]) -> None:
    found = (as_lists(join(batch, engine, now=101, since=since, dropped=dropped)) for engine in ("python", "numba"))
    in_python, compiled = found
    assert in_python == compiled


# --- pack --------------------------------------------------------------------------------------------------------------------------

SCHEMA = Schema(tables={WITH_STATICS.id: WITH_STATICS})
CODES = Dictionaries.of(SCHEMA)


def assert_packed_alike(decoded: Decoded) -> None:
    in_python, compiled = (bulk.pack(decoded, engine=engine) for engine in ("python", "numba"))
    compiled.rows.validate(full=True)
    assert in_python.rows.to_pylist() == compiled.rows.to_pylist()
    assert in_python.max_timestamps.to_pylist() == compiled.max_timestamps.to_pylist()


@settings(deadline=None)
@given(st.lists(updates, max_size=3), st.integers(0, 3))
def test_packing_what_was_decoded_in_any_order(found: list[PartitionUpdate], skipped: int) -> None:
    decoded = flatten([(i, Mutation((update,))) for i, update in enumerate(found)], CODES)
    assert_packed_alike(decoded)
    assert_packed_alike(replace(decoded, cells=decoded.cells.slice(skipped)))


def test_elements_stand_by_the_bytes_of_their_paths_however_many() -> None:
    """In the log they stand by type: -1 is before 1 there."""
    elements = tuple(Cell("m", 7, b"v", i32(number)) for number in range(-500, 500))
    row = Row((i32(1), i32(2)), cells=(*elements, *elements[:3]), complex_deletions={"m": DeletionTime(6, 6)})
    assert_packed_alike(flatten([(1, Mutation((update(rows=(row,)),)))], CODES))


def test_packing_what_a_ring_has_logged(tmp_path: Path) -> None:
    """All that a node of the recording wrote, system tables included."""
    recording = Recording.open()
    folder = recording.stage(tmp_path)[recording.nodes[0].host_id]
    scans = [scan(path.read_bytes(), name=path.name) for path in sorted(folder.glob("*.log"))]
    learner = SchemaLearner()
    for scanned in scans:
        learn(scanned, learner)
    for scanned in scans:
        for decoded in decode_segment(scanned, learner.schema()):
            assert_packed_alike(decoded)
