"""Up to which time all logs are in, by table, and what a person may do about a segment that keeps it back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.cassandra.merge.join_oracle import WITH_STATICS
from tests.node_objects import status_of
from tests.pipeline.planning import plan_ingest, plan_maintain
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cli import main
from writetime.errors import BatchError, ObjectNotFound
from writetime.pipeline.archiver import archive, mark_for_retry, release
from writetime.pipeline.completeness import ends_after, holds, is_late, node_ends, purge_clock
from writetime.pipeline.documents import (
    Hold,
    LedgerEntry,
    LocalDocument,
    Manifest,
    Mark,
    Problem,
    Sealed,
    SegmentOutcome,
    ShardVersions,
    released_objects,
)
from writetime.pipeline.planner import history, read_sealed
from writetime.storage import layout, open_store
from writetime.storage.store import Store

CLUSTER = "ring"
NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
NODES = tuple(layout.NodeName(CLUSTER, "dc1", f"host-{number}") for number in (1, 2))
TABLE, OTHER = WITH_STATICS.id, UUID(int=99)
DAY = 86_400


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "bucket"))


def ship(store: Store, started: datetime, *, node: int = 0, after: float = 1, data: bytes = b"segment") -> str:
    """A segment of a node that was started then, finished `after` minutes."""
    ref = layout.SegmentRef(NODES[node], layout.SegmentName(int(started.timestamp() * 1000), 7))
    at = started + timedelta(minutes=after)
    store.put(ref.incoming, data, if_generation=0, metadata={"sealed_at": at.isoformat(), "ending": "completed"})
    return ref.incoming


def known(store: Store, *nodes: int) -> None:
    for node in nodes:
        store.put(status_of(NODES[node]), b"{}")


def batch(store: Store, problems: dict[str, Sequence[Problem]] | None = None, growing: dict[str, Mark] | None = None) -> Manifest:
    """Plan, seal and archive a batch; `problems` of its segments."""
    manifest = plan_ingest(store, CLUSTER, now=NOW)
    assert manifest is not None
    past = history(store, CLUSTER).sealed
    before = LocalDocument.read(store, layout.batch_object(CLUSTER, past.number, "local")) if past else None
    local = LocalDocument(ends=ends_after(before.ends if before else {}, manifest))
    outcomes = [SegmentOutcome(object=s.object, frames=2, problems=list((problems or {}).get(s.object, ()))) for s in manifest.segments]
    taken_in = {segment.object for segment in manifest.segments}
    held = [*(set(past.held if past else ()) - taken_in), *(outcome.object for outcome in outcomes if not outcome.ok)]
    sealed = Sealed(
        number=manifest.number,
        kind=manifest.kind,
        sealed_at=NOW,
        segments=outcomes,
        accounting=[],
        state={str(TABLE): ShardVersions(buckets=[1], expires=[None])},
        held=sorted(held),
        growing=growing or {},
    )
    for what, data in (("schema", SchemaLearner().to_json().encode()), ("local", local.to_bytes()), ("sealed", sealed.to_bytes())):
        store.put(layout.batch_object(CLUSTER, manifest.number, what), data)
    archive(store, CLUSTER, manifest.number)
    return manifest


def problem(*tables: UUID | None) -> list[Problem]:
    return [Problem(kind="UnknownTable", position=at, size=9, message="boo", table_id=table) for at, table in enumerate(tables)]


def found(store: Store) -> dict[str, Hold]:
    return {hold.by: hold for hold in holds(store, CLUSTER, history(store, CLUSTER).sealed)}


def test_a_nodes_logs_are_in_up_to_the_end_of_its_last_segment(store: Store) -> None:
    known(store, 0, 1)
    ship(store, NOW - timedelta(hours=3))
    ship(store, NOW - timedelta(hours=5), node=1)
    batch(store)
    ship(store, NOW - timedelta(hours=2))
    batch(store)
    ends = node_ends(store, CLUSTER, history(store, CLUSTER).sealed)
    minute = timedelta(minutes=1)
    assert ends == {NODES[0].path: NOW - timedelta(hours=2) + minute, NODES[1].path: NOW - timedelta(hours=5) + minute}
    first = min(found(store).values(), key=lambda hold: hold.until)
    assert (first.by, first.tables) == (layout.node_documents(NODES[1]), None)
    store.delete(status_of(NODES[1]))
    assert status_of(NODES[1]) not in found(store), "one that has left the ring holds nothing back"


def test_ends_of_batches_of_older_versions_are_looked_up(store: Store) -> None:
    known(store, 0)
    ship(store, NOW - timedelta(hours=3))
    manifest = batch(store)
    store.put(layout.batch_object(CLUSTER, manifest.number, "local"), LocalDocument().to_bytes())
    assert node_ends(store, CLUSTER, history(store, CLUSTER).sealed) == {NODES[0].path: NOW - timedelta(hours=3) + timedelta(minutes=1)}


def test_a_held_segment_holds_back_only_tables_it_may_contain(store: Store) -> None:
    started = NOW - timedelta(days=30)
    one, any_ = ship(store, started), ship(store, started + timedelta(days=1))
    batch(store, {one: problem(TABLE), any_: problem(TABLE, None)})
    by = found(store)
    assert (by[one].tables, by[any_].tables) == ([TABLE], None)
    assert (by[one].until, by[any_].until) == (started, started + timedelta(days=1))
    clock = purge_clock(WITH_STATICS, int(NOW.timestamp()), [by[one]])
    assert clock.hold == by[one]
    assert clock.before == int(started.timestamp()) < clock.wanted
    assert purge_clock(WITH_STATICS, int(NOW.timestamp()), [by[one].model_copy(update={"tables": [OTHER]})]).hold is None


def test_a_segment_whose_name_says_nothing_of_its_time_holds_back_everything(store: Store) -> None:
    ref = layout.SegmentRef(NODES[0], layout.SegmentName(5, 7))
    store.put(ref.incoming, b"x", metadata={"sealed_at": NOW.isoformat(), "ending": "completed"})
    batch(store, {ref.incoming: problem(TABLE)})
    assert found(store)[ref.incoming].until <= datetime(1970, 1, 2, tzinfo=UTC)


def test_a_damaged_part_of_a_growing_segment_holds_back_all(store: Store) -> None:
    ship(store, NOW - timedelta(hours=1))
    growing = layout.SegmentRef(NODES[0], layout.SegmentName(int((NOW - timedelta(days=2)).timestamp() * 1000), 7)).growing
    batch(store, growing={growing: Mark(position=5, logical=5, sound=False)})
    assert (found(store)[growing].tables, found(store)[growing].until) == (None, NOW - timedelta(days=2))


def test_a_segment_that_comes_after_younger_ones_holds_back_until_it_is_taken_in(store: Store) -> None:
    ship(store, NOW - timedelta(hours=1))
    batch(store)
    assert not any(by.startswith("cdc/") for by in found(store))
    late = ship(store, NOW - timedelta(days=20))
    assert found(store)[late].until == NOW - timedelta(days=20)
    manifest = plan_ingest(store, CLUSTER, now=NOW)
    assert manifest is not None
    (segment,) = manifest.segments
    assert is_late(segment, node_ends(store, CLUSTER, history(store, CLUSTER).sealed))


def test_maintenance_pins_what_keeps_logs_back(store: Store) -> None:
    held = ship(store, NOW - timedelta(days=30))
    batch(store, {held: problem(TABLE)})
    manifest = plan_maintain(store, CLUSTER, now=NOW)
    assert manifest is not None
    assert held in {hold.by for hold in manifest.holds}


def test_a_segment_comes_in_again_with_what_was_folded_of_it(store: Store) -> None:
    whole, part, unsure = (ship(store, NOW - timedelta(days=days)) for days in (30, 20, 10))
    batch(store, {part: problem(TABLE), unsure: problem(TABLE, None)})
    for name in (part, unsure):
        mark_for_retry(store, name)
    manifest = plan_ingest(store, CLUSTER, now=NOW)
    assert manifest is not None
    assert {segment.object: segment.folded_but for segment in manifest.segments} == {part: [TABLE], unsure: None}
    assert store.head(whole) is None


def test_a_released_segment_holds_back_nothing_and_stays_in_the_archive(store: Store) -> None:
    held = ship(store, NOW - timedelta(days=30))
    batch(store, {held: problem(TABLE)})
    done = release(store, CLUSTER, held, "the table is gone")
    assert release(store, CLUSTER, held, "again") == done
    assert (store.read(done.archived_as), store.head(held), done.reason) == (b"segment", None, "the table is gone")
    assert held not in found(store)
    past = history(store, CLUSTER).sealed
    assert past is not None
    assert past.held == []
    assert read_sealed(store, CLUSTER, past.number).held == [held]  # type: ignore[union-attr]
    assert released_objects(store, CLUSTER) == {held}
    entry = LedgerEntry.read(store, layout.SegmentRef.from_object(held).ledger)
    assert entry is not None
    assert (entry.state, bool(entry.problems)) == ("archived", True)
    assert plan_ingest(store, CLUSTER, now=NOW) is None
    with pytest.raises(ObjectNotFound):
        mark_for_retry(store, held)


def test_a_release_that_died_half_way_is_finished(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held = ship(store, NOW - timedelta(days=30))
    batch(store, {held: problem(TABLE)})
    put = type(store).put

    def dies(self: Store, name: str, data: bytes, **options: object) -> object:
        if name.startswith("released/"):
            raise OSError("killed")
        return put(self, name, data, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "put", dies)
        with pytest.raises(OSError, match="killed"):
            release(store, CLUSTER, held, "why")
    assert held not in found(store)
    assert release(store, CLUSTER, held, "why").reason == "why"
    assert released_objects(store, CLUSTER) == {held}


def test_what_is_not_held_is_not_released(store: Store) -> None:
    good, bad = ship(store, NOW - timedelta(days=3)), ship(store, NOW - timedelta(days=2))
    with pytest.raises(ObjectNotFound):
        release(store, CLUSTER, good, "why")
    batch(store, {bad: problem(TABLE)})
    with pytest.raises(BatchError, match="the segment is not held: its state is archived"):
        release(store, CLUSTER, good, "why")
    mark_for_retry(store, bad)
    with pytest.raises(BatchError, match="ingests it again"):
        release(store, CLUSTER, bad, "why")


def test_the_command_releases(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = ship(store, NOW - timedelta(days=30))
    batch(store, {held: problem(TABLE)})
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: {CLUSTER}, datacenters: [dc1]}}\nbucket: {tmp_path / 'bucket'}\n", encoding="utf-8")
    assert main(["quarantine", "release", held, "--config", str(config), "--reason", "damaged for good"]) == 0
    assert "is archived as cdc_archive/" in capsys.readouterr().out
    assert released_objects(store, CLUSTER) == {held}
