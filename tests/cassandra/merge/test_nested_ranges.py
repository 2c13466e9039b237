"""Nested range deletions: each row appears and disappears as a plain list of tombstones requires, in nearly
linear time."""

from __future__ import annotations

from time import process_time
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import (
    KEYS,
    REGULARS,
    TABLE_ID,
    i32,
    make_table,
    number,
    update,
)
from tests.cassandra.merge.streaming import Store, clustering_of, run
from tests.examples import examples
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition_fold import Event, Head, Item, Settings
from writetime.cassandra.merge.partition_fold import fold as stream_fold
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.types.byte_comparable import RowKeys

TABLE = make_table(*KEYS[:2], *REGULARS)
ORDER = ClusteringOrder(TABLE, {})
ROWS = 6
NOW = 10**9


class Write(NamedTuple):
    """At the writetime `ts`: an insert of the row `low`, or if there is a `high`, a deletion of the rows
    low..high."""

    ts: int
    low: int
    high: int | None


@st.composite
def writes(draw: st.DrawFn) -> Write:
    low = draw(st.integers(0, ROWS - 1))
    return Write(draw(st.integers(1, 9)), low, draw(st.none() | st.integers(low, ROWS - 1)))


def as_update(write: Write, deletes_partition: bool = False) -> PartitionUpdate:
    if write.high is None:
        row = Row((i32(write.low),), Liveness(write.ts), cells=(Cell("a", write.ts, i32(write.ts)),))
        return update(rows=(row,))
    deletion = DeletionTime(write.ts, 1)
    if deletes_partition:
        return update(deletion=deletion)
    ends = Bound((i32(write.low),), True), Bound((i32(write.high),), True)
    return update(range_tombstones=(RangeTombstone(*ends, deletion),))


def shown(row: int, seen: list[Write]) -> int | None:
    """Writetime of the row that shows after these writes, by asking every tombstone."""
    written = max((write.ts for write in seen if write.high is None and write.low == row), default=0)
    deleted = max((write.ts for write in seen if write.high is not None and write.low <= row <= write.high), default=0)
    return written if written > deleted else None


def chain(row: int, before: list[Write], batch: list[Write]) -> list[tuple[int | None, int | None, int]]:
    """What shows of a row before and after each writetime of the batch, where these differ."""
    seen, found = list(before), []
    for ts in sorted({write.ts for write in batch}):
        was = shown(row, seen)
        seen += [write for write in batch if write.ts == ts]
        if was != shown(row, seen):
            found.append((was, shown(row, seen), ts))
    return found


def tie_free(batch: list[Write]) -> list[Write]:
    """One write per writetime: which of two comes first is another test's matter."""
    return list({write.ts: write for write in batch}.values())


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(writes(), st.booleans()), max_size=9), st.lists(st.tuples(writes(), st.booleans()), max_size=9))
def test_rows_come_and_go_as_a_list_of_tombstones_says(first: list[tuple[Write, bool]], second: list[tuple[Write, bool]]) -> None:
    store, before = Store(), list[Write]()
    for drawn in (first, second):
        whole = {write for write, deletes_partition in drawn if deletes_partition and write.high is not None}
        batch = tie_free([write._replace(low=0, high=ROWS - 1) if write in whole else write for write, _ in drawn])
        updates = [(n, as_update(write, write.high == ROWS - 1 and write.low == 0)) for n, write in enumerate(batch)]
        result = run(store, updates, ORDER, now=NOW, since=NOW)
        for row in range(ROWS):
            events = [event for event in result.events if clustering_of(event) == (i32(row),)]
            told = [(writetime(event.before.row), writetime(event.after.row), event.ts_micro) for event in events]
            assert told == chain(row, before, batch)
            assert all(event.source == source_of(batch, event.ts_micro) for event in events)
        before += batch
    assert {row for row in range(ROWS) if shown(row, before)} == {
        row for row in range(ROWS) if (state := store.rows.get(RowKeys(TABLE, {}).key((i32(row),)))) and row_codec.shows(state, NOW, {})
    }


def writetime(row: bytes) -> int | None:
    """Each insert writes its writetime as a value, too."""
    return number(row_codec.decode(row).cells[0].value) if row else None


def source_of(batch: list[Write], ts: int) -> int:
    return next(n for n, write in enumerate(batch) if write.ts == ts)


Shape = Literal["queue", "stack", "single"]


def seconds_to_fold(shape: Shape, count: int) -> float:
    """CPU time of a batch in which each insert is followed by a deletion: of all rows up to it, of all from
    it on, or of itself."""
    keys = RowKeys(TABLE, {})
    groups, heads = [], []
    for n in range(count):
        ts, ends = 2 * n + 1, Bound((i32(n),), True)
        row = as_update(Write(ts, n, None)).rows[0]
        tombstone = RangeTombstone(
            Bound(() if shape == "queue" else ends.values, True),
            Bound(() if shape == "stack" else ends.values, True),
            DeletionTime(ts + 1, 1),
        )
        groups.append((keys.key((i32(n),)), [Item(ts, b"%d" % n, n, n, row_codec.encode(row))]))
        deletion = PartitionUpdate(TABLE_ID, b"p", range_tombstones=(tombstone,))
        heads.append(Item(ts + 1, b"d%d" % n, -n, -n, deletion))
    began = process_time()
    outputs = stream_fold(Settings(ORDER, keys, NOW, NOW), Head(), heads, groups, Store())
    assert sum(isinstance(output, Event) for output in outputs) == 2 * count
    return process_time() - began


@pytest.mark.parametrize("shape", ["queue", "stack", "single"])
def test_many_ranges_fold_in_about_linear_time(shape: Shape) -> None:
    seconds_to_fold(shape, 10)
    # Four times the ranges take about four times as long; sixteen times, if each row looked at all of them.
    assert seconds_to_fold(shape, 8000) < 9 * seconds_to_fold(shape, 2000)
