"""Partitions with a head that are merged many at once come to what the stream makes of them: same records, same events of
each row, same counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.stages import merge_batch, merge_heads, merge_stream
from tests.examples import examples
from tests.spark_jobs.examples import NOW, ORDERS, THEN, cells, folded, frame, of_kind, payloads, stored
from tests.spark_jobs.test_merge_batch import key_of, rows, told
from writetime.cassandra.model import Bound, Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, RangeTombstone, Row

LINES = 4


def deletion(timestamp: int) -> DeletionTime:
    return DeletionTime(timestamp, timestamp // 1_000_000)


@st.composite
def ranges(draw: st.DrawFn, timestamp: int) -> RangeTombstone:
    start, end = sorted(draw(st.lists(st.integers(0, LINES), min_size=2, max_size=2)))
    bounds = [() if draw(st.integers(0, 4)) == 0 else (key_of(at),) for at in (start, end)]
    inclusive = [draw(st.booleans()) if bound else True for bound in bounds]
    return RangeTombstone(Bound(bounds[0], inclusive[0]), Bound(bounds[1], inclusive[1]), deletion(timestamp))


@st.composite
def static_rows(draw: st.DrawFn, timestamp: int) -> Row:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return Row(None, cells=(Cell("note", timestamp, b"", None, 0, timestamp // 1_000_000),))
    (cell,) = cells(ORDERS, {"note": draw(st.sampled_from("abc"))}, timestamp)
    if kind == 1:
        ttl = draw(st.sampled_from([50, 150, 10_000]))
        cell = Cell("note", timestamp, cell.value, ttl=ttl, local_deletion_time=timestamp // 1_000_000 + ttl)
    return Row(None, cells=(cell,))


@st.composite
def mutations(draw: st.DrawFn, start: int) -> Mutation:
    """Half of them with a head: alone, or with rows of the same update."""
    timestamp = start + draw(st.integers(0, 6)) * 1_000_000
    head: dict[str, Any] = {}
    kind = draw(st.integers(0, 9))
    if kind == 0:
        head["deletion"] = deletion(timestamp - draw(st.integers(0, 1)))
    if kind in (1, 2):
        head["range_tombstones"] = (draw(ranges(timestamp)),)
    if kind in (0, 3, 4):
        head["static_row"] = draw(static_rows(timestamp))
    least = 0 if head else 1
    several = {row.clustering: row for row in draw(st.lists(rows(timestamp), min_size=least, max_size=3))}
    of_update = tuple(several[place] for place in sorted(several))
    return Mutation((PartitionUpdate(ORDERS.id, key_of(draw(st.integers(0, 2))), rows=of_update, **head),))


def all_told(found: list[dict[str, Any]]) -> Any:
    deletions = [{name: row[name] for name in ("pk", "ts", "reason", "copies", "before")} for row in of_kind(found, "deletion")]
    return sorted(map(repr, deletions)), sorted(row["key"] for row in of_kind(found, "applied")), told_with_deletions(found)


def told_with_deletions(found: list[dict[str, Any]]) -> Any:
    """As `told`, which expects that the numbers are those of events."""
    if not of_kind(found, "deletion"):
        return told(found)
    events = [{name: row[name] for name in row if name not in ("seq", "payload")} for row in of_kind(found, "event")]
    return sorted(map(repr, events)), sorted(payloads(found, "record")), payloads(found, "account")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_two_batches(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("state")
    options: dict[str, Any] = {
        "policy": data.draw(st.sampled_from(["4.0", "3.11"])),
        "deletes": data.draw(st.sampled_from(["rows", "rows", "one", "placed"])),
    }
    waiting, stretch = data.draw(st.sampled_from([(1, 1), (2, 3), (4096, 8192)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_batch, "_WAITING", waiting)
        patch.setattr(merge_batch, "_WAITING_OF_PARTITION", data.draw(st.sampled_from([waiting, 1 << 16])))
        patch.setattr(merge_stream, "_ITEMS_PER_LOOKUP", stretch)
        patch.setattr(merge_heads, "_STEPS", data.draw(st.sampled_from([6, 30, 1 << 16])))
        patch.setattr(merge_heads, "_MOST_STEPS", data.draw(st.sampled_from([6, 1 << 18])))
        patch.setattr(merge_heads, "_MOST_ROWS", data.draw(st.sampled_from([1, 8192])))
        first = [frame(each, segment=at % 3) for at, each in enumerate(data.draw(st.lists(mutations(THEN), max_size=12)))]
        second = [frame(each, segment=at % 3) for at, each in enumerate(data.draw(st.lists(mutations(THEN + 3_000_000), max_size=12)))]
        by_column, one_by_one = (folded(first, engine=engine, now=NOW - 50, **options) for engine in ("auto", "python"))
        assert all_told(by_column) == all_told(one_by_one)
        if not of_kind(by_column, "record"):
            return
        options |= {"now": NOW, "since": NOW - 50, "shards": {ORDERS.id: stored(folder, by_column)}}
        by_column, one_by_one = (folded(second, engine=engine, **options) for engine in ("auto", "python"))
        assert all_told(by_column) == all_told(one_by_one)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each part leaves to the stream."""
    found: list[int] = []
    take = merge_batch.PlainRows.take

    def noted(self: merge_batch.PlainRows, items: Any, **options: Any) -> Any:
        for part in take(self, items, **options):
            found.append(0 if part.rest is None else part.rest.num_rows)
            yield part

    monkeypatch.setattr(merge_batch.PlainRows, "take", noted)
    return found


def row_of(line: int, name: str, timestamp: int) -> Row:
    return Row((key_of(line),), Liveness(timestamp), cells=cells(ORDERS, {"name": name}, timestamp))


def of_partition(key: int, **parts: Any) -> Mutation:
    return Mutation((PartitionUpdate(ORDERS.id, key_of(key), **parts),))


def test_the_stream_has_nothing_to_do(left: list[int]) -> None:
    """Or else nothing above says anything."""
    lines = Bound((key_of(1),), True), Bound((key_of(2),), True)
    made = []
    for key in range(5):
        made += [of_partition(key, rows=tuple(row_of(line, "n", THEN) for line in range(4)))]
        made += [of_partition(key, static_row=Row(None, cells=cells(ORDERS, {"note": "s"}, THEN + 1)))]
        made += [of_partition(key, range_tombstones=(RangeTombstone(*lines, deletion(THEN + 2)),))]
    found = folded([frame(each) for each in made])
    assert sum(left) == 0
    assert told(found) == told(folded([frame(each) for each in made], engine="python"))
    reasons = [event["reason"] for event in payloads(found, "event")]
    assert {reason: reasons.count(reason) for reason in reasons} == {None: 20, "static": 20, "range_delete": 10}


def test_a_partition_waits_for_all_of_its_items(left: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_stream, "_ITEMS_PER_LOOKUP", 4)
    made = [of_partition(1, static_row=Row(None, cells=cells(ORDERS, {"note": "s"}, THEN)))]
    made += [of_partition(1, rows=(row_of(line, "n", THEN + 1),)) for line in range(40)]
    found = folded([frame(each) for each in made])
    assert left == [0]
    monkeypatch.setattr(merge_batch, "_WAITING_OF_PARTITION", 10)
    assert told(folded([frame(each) for each in made])) == told(found)
    assert sum(left) == 41


def test_rows_of_the_state_count_as_those_with_items(left: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A partition whose head changes has steps for all of its rows."""
    shard = stored(tmp_path, folded([frame(of_partition(1, rows=tuple(row_of(line, "n", THEN) for line in range(20))))]))
    late = [frame(of_partition(1, static_row=Row(None, cells=cells(ORDERS, {"note": "s"}, THEN + 1))))]
    options: dict[str, Any] = {"since": NOW - 50, "shards": {ORDERS.id: shard}}
    found = folded(late, **options)
    assert sum(left) == 0
    monkeypatch.setattr(merge_heads, "_MOST_STEPS", 30)
    assert told(folded(late, **options)) == told(found)
    assert sum(left) == 1


def test_a_row_that_expires_is_folded_within_its_partition(left: list[int]) -> None:
    dying = Row((key_of(0),), cells=(Cell("name", THEN, b"x", ttl=50, local_deletion_time=THEN // 1_000_000 + 50),))
    made = [of_partition(1, rows=(dying, row_of(1, "n", THEN)), static_row=Row(None, cells=cells(ORDERS, {"note": "s"}, THEN)))]
    made += [of_partition(1, rows=(Row((key_of(1),), deletion=deletion(THEN + 1)),))]
    found = folded([frame(each) for each in made])
    assert sum(left) == 0
    assert told(found) == told(folded([frame(each) for each in made], engine="python"))
    # The last row that was visible leaves static content alone.
    assert [event["reason"] for event in payloads(found, "event") if event["key"]["line"] is None] == ["expiry"]
