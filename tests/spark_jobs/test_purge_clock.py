"""A segment that comes in again, or late, after a purge: nothing that a purge may have beaten comes back to
life. Without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from spark_jobs.ingest import Batch
from spark_jobs.maintain import purged
from spark_jobs.state.shards import Record, Shard, in_batches, upsert
from tests.spark_jobs.examples import NOW, ORDERS, THEN, Engine, folded, frame, insert, payloads, schema_of
from tests.storage.memory import MemoryStore
from writetime.cassandra.merge.tombstone_gc import purge_before
from writetime.cassandra.model import DeletionTime, Mutation, PartitionUpdate, Row
from writetime.pipeline.documents import LocalDocument, Manifest, Sealed, SegmentInput, ShardVersions
from writetime.pipeline.truncations import Cuts, Purged, Source
from writetime.storage import layout, open_store

DAY = 86_400
TABLE = replace(ORDERS, gc_grace_seconds=3600)
SCHEMA = schema_of(TABLE)
LATER = NOW + 2 * DAY
NODE = layout.NodeName("c", "dc1", "host-1")
TIME = datetime(2026, 5, 4, tzinfo=UTC)


def deleted(at: int) -> Mutation:
    row = Row(((7).to_bytes(4, "big"),), deletion=DeletionTime(at, at // 1_000_000))
    return Mutation((PartitionUpdate(TABLE.id, (1).to_bytes(4, "big"), rows=(row,)),))


@dataclass
class State:
    """One shard of the table, batch after batch."""

    folder: Path
    version: int = 0
    batch: int = 0
    at: int = 0
    written: list[Record] = field(default_factory=list)

    def write(self, records: list[Record]) -> None:
        self.batch += 1
        locks = open_store(str(self.folder / "locks"))
        self.version = upsert(str(self.folder / "shard"), self.version, self.batch, in_batches(records), locks, "lease").version

    def fold(self, mutation: Mutation, now: int, **options: Any) -> list[str]:
        """Operations of the events."""
        shards = {TABLE.id: (str(self.folder / "shard"), self.version)} if self.version else None
        rows = folded([frame(mutation, schema=SCHEMA)], SCHEMA, now=now, since=self.at or None, shards=shards, **options)
        self.at = now
        self.write(payloads(rows, "record"))
        return [event["op"] for event in payloads(rows, "event")]

    def purge(self, now: int) -> int:
        """The newest writetime (µs) that was purged."""
        before = purge_before(now, TABLE.gc_grace_seconds)
        found = [record for record, _ in purged(Shard(str(self.folder / "shard"), self.version), TABLE, SCHEMA, before, now)]
        assert found
        self.write(found)
        return THEN + 5_000_000


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_cleared_segment_brings_nothing_back_that_a_purge_forgot(tmp_path: Path, engine: Engine) -> None:
    state, old = State(tmp_path), insert(TABLE, 1, {"name": "old"}, 7)
    assert state.fold(old, NOW, engine=engine) == ["c"]
    assert state.fold(deleted(THEN + 5_000_000), NOW + 10, engine=engine) == ["d"]
    until = state.purge(LATER)
    source = [Source(UUID(int=1), 1, datetime.fromtimestamp(NOW, UTC))]
    again = Cuts.of({}, source, {TABLE.id.bytes: Purged(until, frozenset({0}))})
    assert state.fold(old, LATER + 60, cuts=again, engine=engine) == []
    new = insert(TABLE, 1, {"name": "new"}, 7, timestamp=until + 1)
    assert state.fold(new, LATER + 70, cuts=again, engine=engine) == ["c"], "what no purge can have beaten comes in"


def test_what_another_segment_brings_first_is_folded_although_a_cleared_one_has_it_too(tmp_path: Path) -> None:
    """A write with an old timestamp of the client's is news where it was logged for the first time."""
    state = State(tmp_path)
    state.fold(insert(TABLE, 1, {"name": "old"}, 7), NOW)
    source = [Source(UUID(int=1), 1, datetime.fromtimestamp(NOW, UTC))]
    other = Cuts.of({}, source, {TABLE.id.bytes: Purged(THEN, frozenset({1}))})
    assert state.fold(insert(TABLE, 2, {"name": "x"}, 7, timestamp=THEN - 9), LATER, cuts=other) == ["c"]


def segment(day: int, **about: Any) -> SegmentInput:
    ref = layout.SegmentRef(NODE, layout.SegmentName(int((TIME + timedelta(days=day)).timestamp() * 1000), 7))
    at = TIME + timedelta(days=day, hours=1)
    return SegmentInput(object=ref.incoming, generation=1, size=1, crc32c=1, sealed_at=at, **about)


def kept_out(segments: list[SegmentInput], *, held: list[str] | None = None, horizon: int | None = None, kind: str = "ingest") -> list[int]:
    """Indexes of the segments of which old writes of the table stay out."""
    store = MemoryStore()
    ends = LocalDocument(ends={NODE.path: TIME + timedelta(days=5)})
    store.put(layout.batch_object("c", 2, "local"), ends.to_bytes())
    versions = ShardVersions(buckets=[1], purged=THEN)
    about: dict[str, Any] = {"segments": [], "accounting": [], "state": {str(TABLE.id): versions}, "held": held or [], "horizon": horizon}
    base = Sealed(number=2, kind="ingest", sealed_at=TIME, **about)
    manifest = Manifest(number=3, kind=cast(Any, kind), cluster="c", created_at=TIME, now=1, base=2, segments=segments)
    batch = Batch(cast(Any, None), store, cast(Any, None), manifest, base, meter=cast(Any, None))
    batch._shard_versions = lambda _: versions  # type: ignore[method-assign]
    found = batch._purged([TABLE])
    return sorted(found[TABLE.id.bytes].segments) if found else []


def test_of_a_cleared_segment_only_what_was_folded_stays_out() -> None:
    segments = [segment(9), segment(8, folded_but=[]), segment(7, folded_but=[TABLE.id])]
    assert kept_out(segments) == [1]


def test_a_segment_that_is_late_for_a_purge_stays_out_unless_it_held_the_purge_back() -> None:
    late, young = segment(1), segment(9)
    horizon = int((TIME + timedelta(days=3)).timestamp())
    assert kept_out([late, young], horizon=horizon) == [0]
    assert kept_out([late, young], horizon=horizon, held=[late.object]) == []
    assert kept_out([late, young]) == [], "nothing was purged yet"
    assert kept_out([late, young], horizon=int(TIME.timestamp())) == [], "purges stopped before it"


def test_a_replay_keeps_out_of_every_segment() -> None:
    assert kept_out([segment(1), segment(9)], kind="replay") == [0, 1]
