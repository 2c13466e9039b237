"""Batches of flat rows: both engines give equal results, equal to those of the partition fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proof.recording.recording import Recording
from tests.cassandra.merge.join_oracle import (
    WITH_STATICS,
    WITHOUT_STATICS,
    deletions,
    i32,
    rows,
    update,
    updates,
    updates_of,
)
from tests.cassandra.merge.partition import PartitionState, SourcedUpdate, fold
from tests.examples import examples
from writetime.cassandra.commitlog.mutation_json import learn
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.counters import Shard, encode_context
from writetime.cassandra.merge.liveness import VisibleRow
from writetime.cassandra.merge.reconcile import Policy, max_timestamp, settle_row
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.model import NO_TIMESTAMP, Cell, DeletionTime, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.kernels import row_batches
from writetime.kernels.mutation_columns import Decoded, Dictionaries, flatten
from writetime.kernels.mutation_decoder import decode_segment
from writetime.kernels.row_batches import Joined

# No statics and no ranges: a deletion of the partition is all that a head has here.
rows_updates = updates_of(statics=False).map(lambda found: replace(found, range_tombstones=()))
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
    return row_batches.join(
        pa.array(groups, pa.int32()),
        pa.array([row_codec.encode(item) for item in items], pa.binary()),
        pa.array([None if state is None or state.is_empty else row_codec.encode(state) for state in states], pa.binary()),
        active_timestamps=pa.array([active and active.marked_for_delete_at for active in actives], pa.int64()),
        active_times=pa.array([active and active.local_deletion_time for active in actives], pa.int64()),
        engine=engine,
        **options,
    )


@settings(max_examples=examples(200))
@given(batches(), SINCES, st.sampled_from([{}, {"a": 2, "m": 1}]), st.sampled_from(["4.0", "3.11"]))
def test_both_engines_join_alike(batch: Any, since: int | None, dropped: dict[str, int], policy: Policy) -> None:
    found = (as_lists(join(batch, engine, now=101, since=since, dropped=dropped, policy=policy)) for engine in ("python", "numba"))
    in_python, compiled = found
    assert in_python == compiled


@settings(max_examples=examples(200))
@given(batches(), st.data(), SINCES)
def test_both_engines_take_steps_alike(batch: Any, data: st.DataObject, since: int | None) -> None:
    """Deletions that begin to cover a row, and changes of static content, with an item or without one."""
    size = len(batch[0])
    flags = [[data.draw(st.booleans()) for _ in range(size)] for _ in range(3)]
    begun = [data.draw(deletions) for _ in range(size)]
    steps = row_batches.Steps(
        *(pa.array(each, pa.bool_()) for each in flags[:2]),
        pa.array([each.marked_for_delete_at for each in begun], pa.int64()),
        pa.array([each.local_deletion_time for each in begun], pa.int64()),
        pa.array(flags[2], pa.bool_()),
    )
    in_python, compiled = (as_lists(join(batch, engine, now=101, since=since, steps=steps)) for engine in ("python", "numba"))
    assert in_python == compiled


def shown(row: VisibleRow | None) -> bytes:
    return b"" if row is None else row_codec.encode(Row(row.clustering, cells=row.cells))


@given(st.lists(rows_updates, max_size=4), st.lists(rows, max_size=8))
@pytest.mark.parametrize("engine", ["python", "numba"])
def test_joining_is_what_a_fold_of_the_partition_does(engine: Engine, history: list[PartitionUpdate], items: list[Row]) -> None:
    """Under the partition's deletion that is there already; but for rows that are left, because something of
    them expires."""
    order = ClusteringOrder(WITHOUT_STATICS, {})
    begin = fold(PartitionState(), [SourcedUpdate(u) for u in history], order=order, now=101).state
    sourced = [SourcedUpdate(update(rows=(row,)), number) for number, row in enumerate(items)]
    folded = fold(begin, sourced, order=order, now=101)

    clusterings = sorted({row.clustering or () for row in items})
    numbers = sorted(range(len(items)), key=lambda i: (items[i].clustering, max_timestamp(sourced[i].update), repr(sourced[i].update)))
    groups = [clusterings.index(items[number].clustering or ()) for number in numbers]
    deletion = begin.head and begin.head.deletion
    states = [begin.rows.get(clustering) for clustering in clusterings]
    found = join((groups, [items[number] for number in numbers], states, [deletion] * len(states)), engine, now=101)

    left = found.left.to_pylist()
    for group, clustering in enumerate(clusterings):
        after = folded.state.rows.get(clustering)
        if not left[group]:
            assert found.states[group].as_py() == (row_codec.NOTHING if after is None else row_codec.encode(after))
            assert found.changed[group].as_py() == (clustering in folded.changed_rows)
            assert found.expiries[group].as_py() == row_codec.next_expiry(found.states[group].as_py(), 101)
    for place, number in enumerate(numbers):
        if not left[groups[place]]:
            assert found.applied[place].as_py() == folded.outcomes[number].applied
    told = [
        (numbers[item], *(found.versions[i].as_py() for i in versions), "row_delete" if deleted else None)
        for item, *versions, deleted in zip(
            *(getattr(found, name).to_pylist() for name in ("event_item", "event_before", "event_after", "event_deleted")), strict=True
        )
    ]
    expected = [
        (change.source, *map(shown, (change.before, change.after)), change.reason)
        for change in folded.changes
        if not left[clusterings.index(change.clustering or ())]
    ]
    assert sorted(told, key=lambda event: numbers.index(event[0])) == sorted(expected, key=lambda event: numbers.index(event[0]))


@given(st.lists(st.none() | rows, max_size=5), st.integers(0, 2))
def test_both_engines_know_when_the_first_of_each_row_dies(some: list[Row | None], skipped: int) -> None:
    flat = [None if row is None else row_codec.encode(row) for row in some]
    expected = [row_codec.min_deletion_time(row or b"", engine="python") for row in flat]
    for column in (pa.array(flat, pa.binary()), pa.array([b"?"] * skipped + flat, pa.binary()).slice(skipped)):
        for engine in ("python", "numba"):
            assert row_batches.min_deletion_times(column, engine=engine).tolist() == expected
    damaged = pa.array([*(row[:-1] for row in flat if row), b"\xff"], pa.binary())
    in_python, compiled = (row_batches.min_deletion_times(damaged, engine=engine).tolist() for engine in ("python", "numba"))
    assert in_python == compiled
    assert compiled[-1] == NO_TIMESTAMP


@pytest.mark.parametrize("engine", ["python", "numba"])
def test_an_expiry_in_between_and_damage_are_left(engine: Engine) -> None:
    def expiring(end: int) -> Row:
        return Row((b"k",), cells=(Cell("a", 1, b"v", None, 5, end),))

    plain = Row((b"k",), cells=(Cell("b", 1, b"v"),))
    ends = [90, 91, 100, 101]
    found = join(([0, 1, 2, 3], [plain] * 4, [expiring(end) for end in ends], [None] * 4), engine, now=100, since=90)
    assert found.left.to_pylist() == [False, True, True, False]
    assert found.applied.to_pylist() == [True, False, False, True]
    assert found.expiries.to_pylist() == [None, None, None, 101]
    items = pa.array([row_codec.encode(plain), row_codec.encode(plain)[:-1], row_codec.encode(plain)], pa.binary())
    found = row_batches.join(pa.array([0, 1, 1], pa.int32()), items, pa.nulls(2, pa.binary()), now=100, engine=engine)
    assert found.left.to_pylist() == [False, True]
    assert found.states.to_pylist() == [row_codec.encode(plain), b""]
    assert found.event_item.to_pylist() == [0]


@pytest.mark.parametrize("engine", ["python", "numba"])
def test_counters(engine: Engine) -> None:
    def counted(*clocks: int) -> Row:
        return Row((b"k",), cells=(Cell("n", max(clocks), encode_context(tuple(Shard(bytes(15) + bytes((c,)), c, c) for c in clocks))),))

    no_context = Row((b"k",), cells=(Cell("n", 1, b"\0"),))
    items = [counted(1), counted(2), counted(1), no_context]
    found = join(([0, 0, 0, 1], items, [None, counted(5)], [None] * 2), engine, now=1, counter=True)
    assert found.states.to_pylist() == [row_codec.encode(counted(1, 2)), row_codec.encode(counted(5))]
    assert found.applied.to_pylist() == [True, True, False, False]
    assert found.left.to_pylist() == [False, True]


def test_room_is_made_where_it_lacks() -> None:
    """A collection that grows by an element each time: versions take the square of its size."""
    items = [Row((b"k",), cells=(Cell("m", 1, bytes(200), bytes((i,))),)) for i in range(200)]
    batch = ([0] * 200 + [1], [*items, items[0]], [None, None], [None, None])
    in_python, compiled = (as_lists(join(batch, engine, now=1)) for engine in ("python", "numba"))
    assert in_python == compiled
    assert len(compiled["versions"][200]) > 200 * 200


def test_versions_without_end_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batches, "MOST_VERSIONS", 4000)
    items = [Row((b"k",), cells=(Cell("m", 1, bytes(200), bytes((i,))),)) for i in range(50)]
    found = join(([0] + [1] * 50 + [2], [items[0], *items, items[0]], [None] * 3, [None] * 3), "numba", now=1)
    assert found.left.to_pylist() == [False, True, False]
    assert found.event_item.to_pylist() == [0, 51]


@pytest.mark.parametrize("engine", ["python", "numba"])
@pytest.mark.parametrize("groups", [[1, 0], [0, 2], [-1, 0], [0]])
def test_groups_that_cannot_be_are_refused(engine: Engine, groups: list[int]) -> None:
    items = pa.array([row_codec.STATIC] * 2, pa.binary())
    with pytest.raises(ValueError, match="for 2 items and 2 states"):
        row_batches.join(pa.array(groups, pa.int32()), items, pa.nulls(2, pa.binary()), now=1, engine=engine)


# --- pack

SCHEMA = Schema(tables={WITH_STATICS.id: WITH_STATICS})
CODES = Dictionaries.of(SCHEMA)


def assert_packed_alike(decoded: Decoded) -> None:
    in_python, compiled = (row_batches.pack(decoded, engine=engine) for engine in ("python", "numba"))
    compiled.rows.validate(full=True)
    assert in_python.rows.to_pylist() == compiled.rows.to_pylist()
    assert in_python.max_timestamps.to_pylist() == compiled.max_timestamps.to_pylist()


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
