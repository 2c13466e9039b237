"""Maintenance of a shard, without Spark: what is purged of records as they are stored, and what stays to the
byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import maintain
from spark_jobs.maintain import Task, _purgeable, purge_shard, purged
from spark_jobs.state.shards import Record, Shard, in_batches, upsert
from tests.cassandra.merge.join_oracle import (
    KEY,
    NOW,
    WITH_STATICS,
    i32,
    update,
    updates,
)
from tests.cassandra.merge.partition import PartitionState, SourcedUpdate, fold
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.liveness import VisibleRow, visible_rows
from writetime.cassandra.merge.partition_fold import Head
from writetime.cassandra.merge.partition_head import decode_head, encode_head
from writetime.cassandra.model import Cell, DeletionTime, Liveness, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.types.byte_comparable import RowKeys, record_key
from writetime.storage import open_store

SCHEMA = Schema(tables={WITH_STATICS.id: WITH_STATICS})
ORDER = ClusteringOrder(WITH_STATICS, {})
KEYS = RowKeys(WITH_STATICS, {})


@dataclass
class Held:
    """A shard in memory."""

    held: dict[bytes, bytes]

    def batches(self) -> Iterator[pa.RecordBatch]:
        keys, states = (pa.array(column, pa.binary()) for column in (self.held.keys(), self.held.values()))
        whole = pa.RecordBatch.from_arrays([keys, states], ["key", "state"])
        yield from (whole.slice(at, 2) for at in range(0, len(self.held), 2))

    def scan_all(self, intervals: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for start, end in intervals:
            yield from ((key, self.held[key]) for key in sorted(self.held) if start <= key < end)


def records_of(found: Sequence[PartitionUpdate], key: bytes = KEY) -> dict[bytes, bytes]:
    state = fold(PartitionState(), [SourcedUpdate(each) for each in found], order=ORDER, now=NOW).state
    rows = {record_key(key, KEYS.key(clustering)): row_codec.encode(row) for clustering, row in state.rows.items()}
    head = {record_key(key): encode_head(Head(state.head, 7), ORDER, {})} if state.head else {}
    return head | rows


def shown(records: dict[bytes, bytes], key: bytes, now: int) -> list[VisibleRow]:
    head = decode_head(records.get(record_key(key), b""), ORDER).update
    rows = [
        row_codec.decode(state) for name, state in sorted(records.items()) if name.startswith(record_key(key)) and name != record_key(key)
    ]
    return visible_rows(head.static_row if head else None, rows, now=now)


def apply(records: dict[bytes, bytes], changed: Iterator[tuple[Record, int]]) -> dict[bytes, bytes]:
    after = records | {record.key: record.state for record, _ in changed}
    return {key: state for key, state in after.items() if state}


@given(st.lists(st.lists(updates, max_size=3), min_size=1, max_size=3), st.integers(100, 103))
def test_nothing_shows_differently_and_a_second_time_changes_nothing(partitions: list[list[PartitionUpdate]], before: int) -> None:
    keys = [i32(number) for number in range(len(partitions))]
    records: dict[bytes, bytes] = {}
    for key, found in zip(keys, partitions, strict=True):
        records |= records_of(found, key)
    after = apply(records, purged(Held(records), WITH_STATICS, SCHEMA, before, before))
    for key in keys:
        assert shown(after, key, before) == shown(records, key, before)
    assert list(purged(Held(after), WITH_STATICS, SCHEMA, before, before)) == []
    assert list(purged(Held(records), WITH_STATICS, SCHEMA, 0, before)) == []


def test_what_a_head_deletes_is_of_its_own_partition_only() -> None:
    """The partition after one with a head has none."""
    row = Row((i32(1), i32(1)), Liveness(5), cells=(Cell("a", 5, i32(9)),))
    first, second = i32(1), i32(2)
    records = records_of([update(deletion=DeletionTime(9, 50))], first) | records_of([update(rows=(row,))], second)
    gone = list(purged(Held(records), WITH_STATICS, SCHEMA, 100, 100))
    assert [(record.key, newest) for record, newest in gone] == [(record_key(first), 9)]


def test_a_shard_is_written_once_and_only_if_anything_changes(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "bucket"))
    live = Row((i32(1), i32(1)), Liveness(5), cells=(Cell("a", 5, i32(9)), Cell("b", 5, b"x", None, 50, 500)))
    dead = Row((i32(1), i32(2)), deletion=DeletionTime(9, 50))
    records = records_of([update(rows=(live, dead))])
    uri = str(tmp_path / "shard")
    version = upsert(uri, 0, 1, in_batches(Record(key, state, None) for key, state in sorted(records.items())), store, "lease.json").version

    def task(before: int) -> Task:
        return Task(UUID(int=1), 0, uri, version, "lease.json", before)

    assert purge_shard(store, task(50), SCHEMA, 2, 100) is None
    purged_first = purge_shard(store, task(51), SCHEMA, 2, 100)
    assert purged_first is not None
    assert purged_first == purge_shard(store, task(51), SCHEMA, 2, 100), "a rerun writes nothing twice"
    assert purged_first.newest == 9
    left = dict(Shard(uri, purged_first.written.version).scan(b"", b"\xff"))
    assert left == {record_key(KEY, KEYS.key((i32(1), i32(1)))): row_codec.encode(live)}
    assert dict(Shard(uri, version).scan(b"", b"\xff")) == records, "the pinned version is what it was"


@given(st.lists(st.lists(updates, max_size=3), min_size=1, max_size=3), st.integers(100, 103), st.integers(0, 2))
def test_what_is_too_much_to_remember_is_purged_all_the_same(partitions: list[list[PartitionUpdate]], before: int, room: int) -> None:
    records: dict[bytes, bytes] = {}
    for number, found in enumerate(partitions):
        records |= records_of(found, i32(number))
    expected = list(purged(Held(records), WITH_STATICS, SCHEMA, before, before))
    with patch.object(maintain, "REMEMBERED", room):
        assert list(purged(Held(records), WITH_STATICS, SCHEMA, before, before)) == expected


def test_only_what_may_change_is_read_in_order(tmp_path: Path) -> None:
    """Of the partitions 1, 2 and 3: a row of 1 with its head, all of 3, whose deletion is over."""
    live, dead = (
        Row((i32(1), i32(n)), Liveness(5), deletion, cells=(Cell("a", 20, i32(9)),))
        for n, deletion in ((1, None), (2, DeletionTime(9, 50)))
    )
    static = update(static_row=Row(None, cells=(Cell("s", 5, b"s"),)))
    records = records_of([static, update(rows=(live, dead))], i32(1)) | records_of([static, update(rows=(live,))], i32(2))
    records |= records_of([update(deletion=DeletionTime(9, 50)), update(rows=(live,))], i32(3))
    intervals = _purgeable(Held(records), ORDER, 100)
    read = [key for key, _ in Held(records).scan_all(intervals)]
    row = KEYS.key(dead.clustering or ())
    assert read == [record_key(i32(1)), record_key(i32(1), row), record_key(i32(3)), record_key(i32(3), KEYS.key(live.clustering or ()))]
    assert _purgeable(Held(records), ORDER, 50) == []
