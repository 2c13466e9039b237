"""Rows joined all at once come to what the stream makes of them: same records, same events of each row, same
counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.stages import merge_batch, merge_stream
from spark_jobs.state import shards
from tests.examples import examples
from tests.spark_jobs.examples import COUNTS, NOW, ORDERS, THEN, cells, delete, folded, frame, insert, of_kind, payloads, stored
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)

TELLING = ("last", "pk", "before", "static_before", "after", "static_after", "ts", "reason", "copies")


def key_of(number: int) -> bytes:
    return number.to_bytes(4, "big")


@st.composite
def rows(draw: st.DrawFn, timestamp: int) -> Row:
    line = key_of(draw(st.integers(0, 2)))
    if draw(st.integers(0, 4)) == 0:
        return Row((line,), deletion=DeletionTime(timestamp, timestamp // 1_000_000))
    ttl = draw(st.sampled_from([0, 0, 0, 0, 50, 150, 10_000]))
    ends = {"ttl": ttl, "expires_at": timestamp // 1_000_000 + ttl} if ttl else {}
    live = Liveness(timestamp, **ends) if draw(st.booleans()) else None
    values = draw(st.dictionaries(st.sampled_from(["name", "at"]), st.integers(0, 2), min_size=0 if live else 1))
    made = cells(ORDERS, {name: str(value) if name == "name" else value for name, value in values.items()}, timestamp)
    if ttl:
        made = tuple(Cell(c.column, c.timestamp, c.value, ttl=ttl, local_deletion_time=ends["expires_at"]) for c in made)
    return Row((line,), live, cells=made)


@st.composite
def mutations(draw: st.DrawFn, start: int, kinds: int = 30) -> Mutation:
    timestamp = start + draw(st.integers(0, 6)) * 1_000_000
    key = draw(st.integers(0, 3))
    kind = draw(st.integers(0, kinds))
    if kind == 0:
        return delete(ORDERS, key, timestamp)
    if kind == 1:
        some = Bound((key_of(1),), True)
        tombstone = RangeTombstone(some, some, DeletionTime(timestamp, timestamp // 1_000_000))
        return Mutation((PartitionUpdate(ORDERS.id, key_of(key), range_tombstones=(tombstone,)),))
    if kind == 2:
        return Mutation((PartitionUpdate(ORDERS.id, key_of(key), static_row=Row(None, cells=cells(ORDERS, {"note": "s"}, timestamp))),))
    several = {row.clustering: row for row in draw(st.lists(rows(timestamp), min_size=1, max_size=3))}
    return Mutation((PartitionUpdate(ORDERS.id, key_of(key), rows=tuple(several[place] for place in sorted(several))),))


def told(found: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """What a join has to say, however it is ordered but for the events of a row."""
    events = defaultdict(list)
    for row, event in sorted(zip(of_kind(found, "event"), payloads(found, "event"), strict=True), key=lambda pair: pair[0]["seq"]):
        events[repr(event["key"])].append({name: row[name] for name in TELLING})
    numbers = sorted(row["seq"] for row in of_kind(found, "event"))
    assert numbers == list(range(len(numbers)))
    (account,) = payloads(found, "account")
    return dict(events), sorted(payloads(found, "record")), {name: count for name, count in account.items() if count}


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_two_batches(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("state")
    waiting, stretch = data.draw(st.sampled_from([(1, 1), (2, 3), (4096, 8192)]))
    held = data.draw(st.sampled_from([1, 60, 150, shards.HELD]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_batch, "_WAITING", waiting)
        patch.setattr(merge_batch, "_WAITING_OF_PARTITION", waiting)
        patch.setattr(merge_stream, "_ITEMS_PER_LOOKUP", stretch)
        patch.setattr(shards, "HELD", held)
        patch.setattr(merge_stream, "_BYTES_PASSED", data.draw(st.sampled_from([0, 300, 64 << 20])))
        first = [frame(each, segment=at % 3) for at, each in enumerate(data.draw(st.lists(mutations(THEN), max_size=10)))]
        second = [frame(each, segment=at % 3) for at, each in enumerate(data.draw(st.lists(mutations(THEN + 3_000_000), max_size=10)))]
        by_column, one_by_one = (folded(first, engine=engine, now=NOW - 50) for engine in ("auto", "python"))
        assert told(by_column) == told(one_by_one)
        if not of_kind(by_column, "record"):
            return
        options: dict[str, Any] = {"now": NOW, "since": NOW - 50, "shards": {ORDERS.id: stored(folder, by_column)}}
        assert told(folded(second, engine="auto", **options)) == told(folded(second, engine="python", **options))


def test_most_go_by_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else nothing above says anything."""
    asked: list[int] = []
    take = merge_batch.PlainRows.take

    def noted(self: merge_batch.PlainRows, items: Any, **options: Any) -> Any:
        for done, rest in take(self, items, **options):
            asked.append(sum(batch.num_rows for batch in done) - (0 if rest is None else 1000))
            yield merge_batch.Part(done, rest)

    monkeypatch.setattr(merge_batch.PlainRows, "take", noted)
    row = Row((key_of(1),), Liveness(THEN), cells=cells(ORDERS, {"name": "n"}))
    folded([frame(Mutation((PartitionUpdate(ORDERS.id, key_of(key), rows=(row,)),))) for key in range(5)])
    assert sum(asked) == 10


def test_counters() -> None:
    context = b"\0\1\x80\0" + b"\1" * 16 + (3).to_bytes(8, "big") + (4).to_bytes(8, "big")
    made = [Row((), cells=(Cell("n", THEN + key, context),)) for key in (1, 2)]
    found = [frame(Mutation((PartitionUpdate(COUNTS.id, key_of(key), rows=(row,)),))) for key, row in enumerate(made)]
    assert told(folded(found, engine="auto")) == told(folded(found, engine="python"))


@pytest.mark.parametrize("counts", [(12, 9), (16, 9), (20, 20), (5, 30, 7), (40,)])
def test_several_hot_rows(counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a row goes to the stream when there is too much of it: so has the rest, whatever row is
    next."""
    monkeypatch.setattr(merge_batch, "_WAITING", 2)
    monkeypatch.setattr(merge_batch, "_WAITING_OF_PARTITION", 2)
    monkeypatch.setattr(merge_stream, "_ITEMS_PER_LOOKUP", 4)
    hot = []
    for line, count in enumerate(counts):
        for at in range(count):
            row = Row((key_of(line),), cells=(Cell("name", THEN + at, b"%d" % at),))
            hot.append(frame(Mutation((PartitionUpdate(ORDERS.id, key_of(1), rows=(row,)),))))
    found = folded(hot, engine="auto")
    assert told(found) == told(folded(hot, engine="python"))
    assert len(of_kind(found, "record")) == len(counts)
    assert len(of_kind(found, "event")) == sum(counts)


def test_what_is_joined_at_once_goes_out_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_stream, "_ITEMS_PER_LOOKUP", 4)
    held: list[int] = []
    told_of = merge_stream._ShardJoin._items

    def items(self: Any, batches: Any, passed: list[Any]) -> Any:
        for row in told_of(self, batches, passed):
            held.append(len(passed))
            yield row

    monkeypatch.setattr(merge_stream._ShardJoin, "_items", items)
    folded([frame(insert(ORDERS, key, {"name": "x"}, 1)) for key in range(400)], engine="auto")
    assert len(held) > 50
    assert max(held) < 30


def test_states_are_held_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However many rows a look-up is for."""
    wide = [insert(ORDERS, key, {"name": "x" * 10_000}, line) for key in range(4) for line in range(10)]
    found = folded([frame(each) for each in wide])
    shard = stored(tmp_path, found)
    held: list[int] = []
    looked_up = merge_batch.looked_up

    def noted(*arguments: Any) -> Any:
        for start, end, states in looked_up(*arguments):
            held.append(sum(map(len, states.values())))
            yield start, end, states

    for module in (merge_batch, merge_stream):
        monkeypatch.setattr(module, "looked_up", noted)
    monkeypatch.setattr(shards, "HELD", 65_000)
    monkeypatch.setattr(shards, "READ_AT_ONCE", 2)
    later = [frame(insert(ORDERS, key, {"at": 1}, line, timestamp=THEN + 1)) for key in range(4) for line in range(10)]
    for engine in ("auto", "python"):
        held.clear()
        after = folded(later, shards={ORDERS.id: shard}, engine=engine)
        assert len(of_kind(after, "record")) == len(of_kind(after, "event")) == 40
        assert sum(held) > 40 * 10_000
        assert max(held) < 70_000


def test_what_goes_by_a_partition_goes_out_while_it_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row that dies is the stream's; the others of its partition need not wait for it."""
    monkeypatch.setattr(merge_batch, "_WAITING_OF_PARTITION", 4)
    monkeypatch.setattr(merge_stream, "_ITEMS_PER_LOOKUP", 4)
    monkeypatch.setattr(merge_stream, "_BYTES_PASSED", 2000)
    dying = Row((key_of(0),), cells=(Cell("name", THEN, b"x", ttl=50, local_deletion_time=THEN // 1_000_000 + 50),))
    rows = [dying, *(Row((key_of(line),), Liveness(THEN), cells=cells(ORDERS, {"name": "n"})) for line in range(1, 400))]
    held: list[int] = []
    told_of = merge_stream._ShardJoin._items

    def items(self: Any, batches: Any, passed: list[Any]) -> Any:
        for row in told_of(self, batches, passed):
            held.append(len(passed))
            yield row

    monkeypatch.setattr(merge_stream._ShardJoin, "_items", items)
    given = [frame(Mutation((PartitionUpdate(ORDERS.id, key_of(1), rows=(row,)),))) for row in rows]
    found = folded(given, engine="auto")
    assert told(found) == told(folded(given, engine="python"))
    assert 0 < max(held) < 60
