"""Batches of logs and of readings of the cluster, in any order and grouping: the same rows, events that go on from each
other, and keys that are noted only where something is in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.stages.incomplete_rows import IncompleteRows
from spark_jobs.state.shards import Shard as StateShard
from spark_jobs.state.shards import in_batches, upsert
from tests.spark_jobs.examples import COUNTS, EVERYTHING, NOW, ORDERS, SCHEMA, THEN, folded, frame, insert, of_kind, payloads
from writetime.cassandra.merge import row_codec, unknown_marker
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.counters import Shard, encode_context, statement, total
from writetime.cassandra.merge.partition_head import decode_head
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.merge.unknown_marker import list_path
from writetime.cassandra.model import Cell, Liveness, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Table
from writetime.cassandra.types.byte_comparable import HEAD, PAST_RECORDS, split_record_key
from writetime.storage import open_store

LOG, READ = 0, 1
AS_OF = (NOW - 50) * 1_000_000
KEY = (1).to_bytes(4, "big")


def i32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


@dataclass
class Shards:
    """The state of one table through several batches, and what they told."""

    folder: Path
    table: Table
    engine: Engine
    version: int = 0
    number: int = 0
    since: int | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    noted: bool = False

    def batch(self, *mutations: tuple[int, Mutation], now: int = NOW) -> list[dict[str, Any]]:
        self.number += 1
        frames = [frame(mutation, segment=segment, position=100 * at) for at, (segment, mutation) in enumerate(mutations)]
        shards = {self.table.id: (self.uri, self.version)}
        found = folded(frames, shards=shards, now=now, since=self.since, engine=self.engine, readings=frozenset({READ}))
        notes = IncompleteRows(now, counter=self.table.is_counter)
        records = list(notes.of(in_batches(payloads(found, "record"))))
        store = open_store(str(self.folder / "bucket"))
        self.version = upsert(self.uri, self.version, self.number, iter(records), store, "lease.json").version
        notes.put(store, f"noted-{self.number}.json", self.number, self.table.id.bytes)
        self.noted = store.head(f"noted-{self.number}.json") is not None
        self.events += of_kind(found, "event")
        self.since = now
        return found

    @property
    def uri(self) -> str:
        return str(self.folder / "shard")

    def rows(self) -> list[Row]:
        order = ClusteringOrder(self.table, SCHEMA.types)
        found = []
        for key, state in StateShard(self.uri, self.version).scan(b"", PAST_RECORDS):
            if split_record_key(key)[1] != HEAD:
                found.append(row_codec.decode(row_codec.live(state, NOW, engine="python")))
            elif (update := decode_head(state, order).update) is not None and update.static_row is not None:
                found.append(update.static_row)
        return found


def logged(table: Table, row: Row) -> Mutation:
    return Mutation((PartitionUpdate(table.id, KEY, static_row=row if row.is_static else None, rows=() if row.is_static else (row,)),))


def counted(clock: int, count: int) -> Row:
    return Row((), cells=(Cell("n", clock, encode_context((Shard(b"a" * 16, clock, count),))),))


def elements(*numbers: int) -> tuple[Cell, ...]:
    (update,) = insert(EVERYTHING, 1, {"select": numbers}).updates
    return update.rows[0].cells


CASES = {
    "counter": (COUNTS, (counted(THEN, 18),), Row((), cells=(Cell("n", THEN, statement(18, AS_OF, AS_OF + 9)),))),
    "counter that counts on": (
        COUNTS,
        (counted(THEN, 18), counted(AS_OF + 99, 20)),
        Row((), cells=(Cell("n", THEN, statement(18, AS_OF, AS_OF + 9)),)),
    ),
    "list": (
        EVERYTHING,
        (Row((), Liveness(THEN), cells=elements(7, 7, 8)),),
        Row(
            (),
            unknown_marker.liveness(AS_OF),
            cells=tuple(Cell("select", THEN, i32(number), list_path(at, AS_OF)) for at, number in enumerate((7, 7, 8))),
        ),
    ),
    "row that expires": (
        ORDERS,
        (Row((i32(1),), Liveness(THEN, 900, NOW + 800), cells=(Cell("name", THEN, b"tv", None, 900, NOW + 800),)),),
        Row((i32(1),), unknown_marker.liveness(AS_OF), cells=(Cell("name", THEN, b"tv", None, unknown_marker.UNKNOWN_TTL, NOW + 799),)),
    ),
    "static": (
        ORDERS,
        (Row(None, cells=(Cell("note", THEN, b"tv", None, 900, NOW + 800),)), Row((i32(1),), Liveness(THEN))),
        Row(None, cells=(Cell("note", THEN, b"tv", None, unknown_marker.UNKNOWN_TTL, NOW + 799),)),
    ),
}


@pytest.mark.parametrize("engine", ["auto", "python"])
@pytest.mark.parametrize("case", CASES)
def test_a_reading_adds_nothing_to_a_log_that_has_all_of_it(case: str, engine: Engine, tmp_path: Path) -> None:
    table, rows, read = CASES[case]
    log, reading = [(LOG, logged(table, row)) for row in rows], (READ, logged(table, read))
    alone = Shards(tmp_path / "alone", table, engine)
    alone.batch(*log)
    groups: list[list[list[tuple[int, Mutation]]]] = [
        [log, [reading]],
        [[reading], log],
        [[reading], *([each] for each in log)],
        [[reading, *log]],
        [[*log, reading], [reading], log],
        [[reading], [reading], log, [reading]],
    ]
    for at, batches in enumerate(groups):
        found = Shards(tmp_path / str(at), table, engine)
        for batch in batches:
            found.batch(*batch)
        if found.noted:
            # The log was ahead of the reading: of the counts in the state only the last one is known.
            assert case == "counter that counts on"
            assert batches[0] != [reading]
        else:
            assert shown(found.rows()) == shown(alone.rows()), f"{case}: {at}"
        follow(found.events)


def shown(rows: Sequence[Row]) -> list[Any]:
    return [[replace(cell, value=b"%d" % total(cell.value)) if cell.column == "n" else cell for cell in row.cells] for row in rows]


def follow(events: Sequence[dict[str, Any]]) -> None:
    """Each event goes on from the last one of its row."""
    shows: dict[Any, tuple[bytes, bytes]] = {}
    for event in events:
        row = row_codec.decode(event["before"] or event["after"]).clustering
        assert (event["before"], event["static_before"]) == shows.get((event["pk"], row), (b"", b""))
        shows[event["pk"], row] = event["after"], event["static_after"]


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_row_is_noted_when_its_last_cell_expires_and_only_the_reading_says_that_it_exists(engine: Engine, tmp_path: Path) -> None:
    read = Row((i32(1),), unknown_marker.liveness(AS_OF), cells=(Cell("name", THEN, b"tv", None, unknown_marker.UNKNOWN_TTL, NOW + 50),))
    shards = Shards(tmp_path, ORDERS, engine)
    shards.batch((READ, logged(ORDERS, read)))
    assert not shards.noted
    shards.batch(now=NOW + 100)
    assert shards.noted


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_batch_of_a_reading_notes_what_is_in_doubt_and_not_what_was_read(engine: Engine, tmp_path: Path) -> None:
    shards = Shards(tmp_path, COUNTS, engine)
    shards.batch((LOG, logged(COUNTS, counted(AS_OF + 99, 20))))
    shards.batch((READ, logged(COUNTS, CASES["counter"][2])))
    assert shards.noted
    shards.batch((READ, logged(COUNTS, Row((), cells=(Cell("n", THEN, statement(20, AS_OF + 200, AS_OF + 209)),)))))
    assert not shards.noted


STAND_INS = {name: CASES[name][::2] for name in ("counter", "list", "row that expires")}


@pytest.mark.parametrize("engine", ["auto", "python"])
@pytest.mark.parametrize("case", STAND_INS)
def test_a_node_cannot_say_what_only_a_reading_may(case: str, engine: Engine) -> None:
    table, row = STAND_INS[case]
    for segments, expected in (((READ,), 0), ((LOG,), 1), ((READ, LOG), 2)):
        frames = [frame(logged(table, row), segment=segment) for segment in segments]
        found = folded(frames, engine=engine, readings=frozenset({READ}))
        assert len(payloads(found, "quarantined")) == expected, segments
