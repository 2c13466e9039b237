"""Rows that travel packed: what comes out is what went in, in order, however little memory there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.stages import row_packs
from spark_jobs.stages.explode import ITEMS, ORDER, ExplodePlan, _merged, exploder
from spark_jobs.stages.merge_stream import FOLDED, FoldPlan, joiner
from spark_jobs.stages.row_packs import (
    EVENTS,
    PACKED,
    RECORDS,
    by_digest,
    by_place,
    by_writetime,
    folding,
    in_order,
    packed,
    packing,
    records,
    unpacked,
)
from spark_jobs.stages.scan import ROUTED, Batches
from tests.spark_jobs.examples import KEYS_ONLY, NOW, ORDERS, SCHEMA, THEN, delete, folded, frame, insert, of_kind, payloads, routed
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.types.byte_comparable import HEAD
from writetime.pipeline.truncations import Cuts


def item(random: Random) -> dict[str, Any]:
    row = random.choice([HEAD, b"\1\2", b"\1\2\1\2", b"\1\3", b"\1\2\0"])
    pk = random.choice([b"\0\0\0\1a", b"\0\0\0\2ab", b"\0\0\0\1\xff"])
    ts = random.choice([0, 1, -1, 255, 256, -(2**63), 2**63 - 1, THEN])
    return {**dict.fromkeys(ITEMS.names), "kind": "item", "pk": pk, "row": row, "ts": ts, "content": random.randbytes(2), "item": bytes(9)}


@pytest.mark.parametrize(("room", "size"), [(1 << 20, 1 << 20), (1, 64), (2000, 1), (700, 500)])
def test_items_in_their_order_however_little_fits_into_memory(room: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_packs, "SORTED_BYTES", room)
    monkeypatch.setattr(row_packs, "BYTES_PER_PACK", size)
    random = Random(room)
    rows = [item(random) for _ in range(300)]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 7], schema=ITEMS) for at in range(0, len(rows), 7)]
    found = [row for batch in in_order(batches, by_place) for row in batch.to_pylist()]
    assert [tuple(row[name] for name in ORDER[2:]) for row in found] == sorted(tuple(row[name] for name in ORDER[2:]) for row in rows)
    assert list(in_order([], by_place)) == []


def test_copies_of_a_mutation_become_one_list() -> None:
    """Several tasks may have found it: the copies of all of them, ascending, each once."""
    random = Random(4)
    given: dict[int, list[list[tuple[int, int]]]] = {}
    for _ in range(200):
        some = [(random.randrange(3), random.randrange(4)) for _ in range(random.randrange(1, 4))]
        given.setdefault(random.randrange(60), []).append(sorted(some))
    rows = [
        {**dict.fromkeys(ROUTED.names), "key": b"k", "digest": bytes([digest]), "copies": [{"segment": s, "position": p} for s, p in some]}
        for digest, found in sorted(given.items())
        for some in found
    ]
    found = _merged(pa.RecordBatch.from_pylist(rows, schema=ROUTED)).to_pylist()
    assert [row["digest"][0] for row in found] == sorted(given)
    expected = [sorted({copy for some in of_one for copy in some}) for _, of_one in sorted(given.items())]
    assert [[(copy["segment"], copy["position"]) for copy in row["copies"]] for row in found] == expected


FIRST = {table.bytes: at for at, table in enumerate(SCHEMA.tables)}


def some_frames() -> list[dict[str, Any]]:
    made = [insert(ORDERS, key, {"name": str(key)}, line, timestamp=THEN + line) for key in range(9) for line in (2, 1)]
    made += [insert(KEYS_ONLY, key, {}, "c") for key in range(4)] + [delete(ORDERS, 3, THEN + 1)]
    return [frame(each, segment=segment, position=100 + at) for at, each in enumerate(made) for segment in (0, 1)]


def test_shards_of_a_table_are_gathered_apart() -> None:
    rows = pa.RecordBatch.from_pylist([{"kind": "update", "table_id": ORDERS.id.bytes, "bucket": at} for at in (2, 0, 1, 3)], schema=ROUTED)
    found = [row for batch in packing(lambda _: iter([rows]), {ORDERS.id.bytes: 5})([]) for row in batch.to_pylist()]
    assert [(row["bucket"], row["partition"]) for row in found] == [(0, 5), (1, 6), (2, 7), (3, 8)]


@pytest.mark.parametrize("size", [1, 700, 4 << 20])
def test_folding_packed_rows_comes_to_what_folding_rows_does(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_packs, "BYTES_PER_PACK", size)
    monkeypatch.setattr(row_packs, "SORTED_BYTES", size)
    frames = some_frames()
    rows = routed(frames)
    rows += [{**dict.fromkeys(ROUTED.names), "kind": "not_ours", "table": "shop.other", "table_id": bytes(16), "updates": 5}]

    def route(_: Batches) -> Iterator[pa.RecordBatch]:
        for at in range(0, len(rows), 5):
            yield pa.RecordBatch.from_pylist(rows[at : at + 5], schema=ROUTED)

    shards = {(table.bytes, 0): ("", 0) for table in SCHEMA.tables}
    marker = pa.RecordBatch.from_pylist([{"kind": "shard", "table_id": ORDERS.id.bytes, "bucket": 0}], schema=ROUTED)
    gathered = [row for batch in packing(route, FIRST)([]) for row in batch.to_pylist()] + [packed(ORDERS.id.bytes, 0, marker, FIRST)]
    assert {row["partition"] for row in gathered} == {None, *(FIRST[row["table_id"]] for row in gathered if row["table_id"])}
    gathered.sort(key=lambda row: (row["table_id"] or b"", row["bucket"] or 0))
    fold = folding(exploder(ExplodePlan(SCHEMA, [7] * 3, Cuts())), joiner(FoldPlan(SCHEMA, NOW, None, shards)))
    found = list(fold([pa.RecordBatch.from_pylist(gathered, schema=PACKED)]))
    assert all(batch.schema == FOLDED for batch in found)
    out = [row for batch in found for row in batch.to_pylist()]
    assert {EVENTS, RECORDS, "account", "not_ours"} <= {row["kind"] for row in out}
    assert not {"event", "record"} & {row["kind"] for row in out}
    plain = folded(frames)
    events = [row for batch in unpacked(row["state"] for row in of_kind(out, EVENTS)) for row in batch.to_pylist()]
    assert sorted(map(repr, events)) == sorted(repr({name: row[name] for name in events[0]}) for row in of_kind(plain, "event"))
    states = [batch for batch in found if batch["kind"][0].as_py() == RECORDS]
    assert sorted(tuple(row.values()) for batch in records(states) for row in batch.to_pylist()) == sorted(payloads(plain, "record"))
    assert [row["updates"] for row in of_kind(out, "not_ours")] == [5]


def test_copies_stand_side_by_side() -> None:
    rows = routed(some_frames())
    Random(1).shuffle(rows)
    (batch,) = in_order([pa.RecordBatch.from_pylist(rows, schema=ROUTED)], by_digest)
    digests = batch["digest"].to_pylist()
    assert sum(a != b for a, b in pairwise(digests)) == len(set(digests)) - 1


def event(pk: bytes, at: int, seq: int | None, reason: str | None) -> dict[str, Any]:
    kind = "deletion" if reason == "range_delete" else "event"
    return {**dict.fromkeys(FOLDED.names), "kind": kind, "reason": reason, "pk": pk, "ts": at, "seq": seq, "before": bytes(9), "last": True}


@pytest.mark.parametrize(("room", "size"), [(1 << 20, 1 << 20), (1, 64), (2000, 1), (700, 500)])
def test_events_by_partition_key_and_writetime_however_little_fits_into_memory(
    room: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_packs, "SORTED_BYTES", room)
    monkeypatch.setattr(row_packs, "BYTES_PER_PACK", size)
    random = Random(room)
    moments = [0, -1, 255, 256, -(2**63), 2**63 - 1, THEN]
    seqs = iter(range(300))
    rows = [
        event(random.choice([b"b", b"ab", b"a\xff"]), random.choice(moments), None if random.random() < 0.2 else next(seqs), reason)
        for reason in random.choices([None, "alter", "expiry", "range_delete"], [7, 1, 1, 1], k=300)
    ]
    others = [{**dict.fromkeys(FOLDED.names), "kind": "record", "key": bytes([at])} for at in range(9)]
    mixed = [*rows[:100], *others[:5], *rows[100:], *others[5:]]
    batches = [pa.RecordBatch.from_pylist(mixed[at : at + 7], schema=FOLDED) for at in range(0, len(mixed), 7)]
    found = [row for batch in by_writetime(iter(batches)) for row in batch.to_pylist()]
    events = [row for row in found if row["kind"] != "record"]
    assert [row["key"] for row in found if row["kind"] == "record"] == [row["key"] for row in others]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return len(row["pk"]), row["pk"], -(2**63) if row["reason"] == "alter" else row["ts"], row["reason"] != "expiry"

    wanted = sorted(rows, key=place)
    assert [{**row, "seq": None} for row in events] == [{**row, "seq": None} for row in wanted]
    assert [row["seq"] is None for row in events] == [row["seq"] is None for row in wanted]
    assert [row["seq"] for row in events if row["seq"] is not None] == list(range(next(seqs)))
    assert list(by_writetime(iter([]))) == []


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_rows_events_stay_in_their_order_among_those_of_its_partition(engine: Engine) -> None:
    """Two rows by turns, then a delete of both; events that are for current rows only have no number."""
    line_and_time = [(1, 10), (2, 20), (1, 30), (2, 40), (1, 50)]
    made = [insert(ORDERS, 1, {"name": str(at)}, line, timestamp=THEN + at) for line, at in line_and_time]
    frames = [frame(each, position=at) for at, each in enumerate([*made, delete(ORDERS, 1, THEN + 60)])]
    rows = [row for row in folded(frames, engine=engine) if row["kind"] == "event"]
    assert [row["ts"] - THEN for row in rows] == [10, 30, 50, 60, 20, 40, 60], "row by row"
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in FOLDED.names} for row in rows], schema=FOLDED)
    found = [row for each in by_writetime(iter([batch])) for row in each.to_pylist()]
    assert [row["ts"] - THEN for row in found] == [10, 20, 30, 40, 50, 60, 60]
    assert [row["seq"] for row in found] == list(range(7))
    shown = {b"": b""}
    for row in found:
        assert row["before"] in shown.values()
        shown[row["after"] or row["before"]] = row["after"]


def test_a_delete_of_many_rows_that_is_one_event_is_at_its_place() -> None:
    """Between the events of what it deletes and that of a row that is written again."""
    made = [insert(ORDERS, 1, {"name": str(at)}, line, timestamp=THEN + at) for line, at in [(1, 10), (2, 20), (1, 40)]]
    frames = [frame(each, position=at) for at, each in enumerate([*made, delete(ORDERS, 1, THEN + 30)])]
    rows = [row for row in folded(frames, deletes="placed") if row["kind"] in ("event", "deletion")]
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in FOLDED.names} for row in rows], schema=FOLDED)
    found = [row for each in by_writetime(iter([batch])) for row in each.to_pylist()]
    told = [(row["ts"] - THEN, row["kind"], bool(row["before"])) for row in found if row["seq"] is not None]
    assert told == [(10, "event", False), (20, "event", False), (30, "deletion", True), (40, "event", False)]
    assert [(row["ts"] - THEN, row["kind"]) for row in found if row["seq"] is None] == [(30, "event"), (30, "event")], "current rows only"
