"""Flat rows by the batch: the compiled engine finds what the readable one does, and both what a fold of partitions finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.join.join_oracle import deletions, rows
from writetime.join import bulk, flat
from writetime.join.bulk import Joined
from writetime.join.reconcile import settle_row
from writetime.model import DeletionTime, Row

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
