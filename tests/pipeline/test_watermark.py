"""Up to when tables are complete: never further than what the batches hold, and never back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.ingest import unsound_tables
from tests.node_objects import status_of
from writetime.pipeline import planner, watermark
from writetime.pipeline.archiver import archive, mark_for_retry
from writetime.pipeline.documents import HeldTable, Manifest, Mark, Problem, Sealed, SegmentOutcome, Watermark
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.storage import layout, open_store
from writetime.storage.local import LocalStore
from writetime.storage.store import ObjectInfo

CLUSTER = "ring"
A, B = (layout.NodeName(CLUSTER, "dc1", name) for name in "ab")
TABLE, OTHER = UUID(int=1), UUID(int=2)
UNSYNCED = timedelta(seconds=25)
NOW = datetime.now(UTC).replace(microsecond=0)
"""The store's clock is this machine's."""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = open_store(str(tmp_path / "bucket"))
    assert isinstance(store, LocalStore)
    return store


def sign(store: LocalStore, node: layout.NodeName, at: datetime, members: Iterable[layout.NodeName] = (A,)) -> None:
    named = {"dc1": [each.host_id for each in members]}
    content = {"host_id": node.host_id, "signed_off": {"at": at.isoformat(), "unsynced_ms": 25_000, "members": named}}
    store.put(layout.node_status(node, at, f"{hash((node, at)) & 0xFFFFFFFF:08x}"), json.dumps(content).encode())


def ship(store: LocalStore, node: layout.NodeName, number: int, sealed_at: datetime = NOW) -> layout.SegmentRef:
    ref = layout.SegmentRef(node, layout.SegmentName(number, 7))
    store.put(ref.incoming, b"segment", metadata={"sealed_at": sealed_at.isoformat()})
    return ref


def part(store: LocalStore, node: layout.NodeName, number: int, start: int, end: int) -> None:
    ref = layout.SegmentRef(node, layout.SegmentName(number, 7))
    store.put(ref.part(start, end), bytes(end - start), metadata={"sealed_at": NOW.isoformat()})


def plan(store: LocalStore, **about: Any) -> Manifest | None:
    return planner.plan_ingest(store, CLUSTER, now=NOW, **about)


def planned(store: LocalStore, **about: Any) -> Manifest:
    manifest = plan(store, **about)
    assert manifest is not None
    return manifest


def run(store: LocalStore, manifest: Manifest, problems: dict[str, list[Problem]] | None = None) -> Sealed:
    """Seal and archive the batch, with these problems by object. Marks are as ingest makes them."""
    base = planner.read_sealed(store, CLUSTER, manifest.base) if manifest.base else None
    growing, outcomes = dict(base.growing if base else {}), []
    for segment in manifest.segments:
        found, mark = (problems or {}).get(segment.object, []), None
        if segment.grows:
            assert segment.tail is not None
            sound = segment.tail.after is None or segment.tail.after.sound
            tables = unsound_tables(segment, found, sound=sound)
            mark = growing[segment.object] = Mark(position=segment.end, logical=segment.end, sound=sound and not found, tables=tables)
        else:
            growing.pop(segment.ref.growing, None)
        outcomes.append(SegmentOutcome(object=segment.object, problems=found, mark=mark))
    taken_in = {segment.object for segment in manifest.segments}
    held = [name for name in (base.held if base else []) if name not in taken_in]
    sealed = Sealed(
        number=manifest.number,
        kind=manifest.kind,
        sealed_at=NOW,
        segments=outcomes,
        accounting=[],
        state={},
        held=held + [outcome.object for outcome in outcomes if not outcome.ok],
        growing=growing,
        snapshots_applied=manifest.schema_snapshots,
        complete=watermark.of_seal(manifest, outcomes),
    )
    planner.seal(store, CLUSTER, sealed)
    archive(store, CLUSTER, sealed.number)
    return sealed


def known(store: LocalStore) -> Watermark:
    found = Watermark.read(store, layout.complete(CLUSTER))
    assert found is not None
    return found


def at(signed: datetime) -> datetime:
    return signed - UNSYNCED - watermark.CLOCK_MARGIN


def problem(table: UUID | None) -> Problem:
    return Problem(kind=QuarantineKind.CORRUPT_FRAME, position=9, size=7, message="CRC", table_id=table)


# --- nodes


def test_the_earliest_node_decides(store: LocalStore) -> None:
    sign(store, A, NOW - timedelta(seconds=5), [A, B])
    sign(store, B, NOW - timedelta(seconds=9), [A, B])
    ship(store, A, 1)
    run(store, planned(store))
    assert known(store).until == at(NOW - timedelta(seconds=9))
    assert watermark.behind(known(store)) == [B.path]


def test_what_may_be_unsynced_and_the_margin_are_subtracted(store: LocalStore) -> None:
    sign(store, A, NOW)
    ship(store, A, 1)
    complete = planned(store).complete
    assert complete is not None
    assert complete.until == NOW - timedelta(seconds=27)


def test_a_clock_that_is_ahead_counts_up_to_the_stores(store: LocalStore) -> None:
    sign(store, A, NOW + timedelta(hours=3))
    ship(store, A, 1)
    complete = planned(store).complete
    assert complete is not None
    assert complete.until is not None
    assert complete.until <= at(datetime.now(UTC))


def test_a_member_that_has_not_signed_off_holds_all(store: LocalStore) -> None:
    """It has joined, and its shipper does not run yet."""
    sign(store, A, NOW - timedelta(minutes=2))
    ship(store, A, 1)
    run(store, planned(store))
    first = known(store).until
    sign(store, A, NOW, [A, B])
    assert plan(store) is None
    assert known(store).until == first
    assert watermark.behind(watermark.planned(store, known(store), None, planner.read_facts(store, CLUSTER))) == [B.path]
    sign(store, B, NOW, [A, B])
    assert plan(store) is None
    assert known(store).until == at(NOW)


def test_a_node_that_has_left_no_longer_counts(store: LocalStore) -> None:
    """Who has left: test_membership."""
    for node in (A, B):
        sign(store, node, NOW - timedelta(minutes=9), [A, B])
    ship(store, A, 1)
    run(store, planned(store))
    # What B said is the newest status of B, and older than A's by hours.
    for info in store.list(layout.node_documents(B)):
        aged = NOW.timestamp() - 3600
        os.utime(store.url + "/" + info.name, (aged, aged))
    sign(store, A, NOW, [A])
    assert plan(store) is None
    assert known(store).until == at(NOW)
    assert known(store).nodes.keys() == {A.path}


def test_without_any_answer_all_nodes_with_a_status_count(store: LocalStore) -> None:
    store.put(status_of(A), b"{}")
    ship(store, A, 1)
    complete = planned(store).complete
    assert complete is not None
    assert (complete.until, complete.nodes) == (None, {A.path: None})


# --- what is left out


@pytest.mark.parametrize("waits", ["too many", "too large", "a gap", "in conflict", "beside frames of no node"])
def test_a_node_of_which_something_is_left_out_is_not_complete(store: LocalStore, waits: str) -> None:
    sign(store, A, NOW)
    about: dict[str, Any] = {}
    ship(store, A, 1, NOW - timedelta(hours=1))
    if waits == "too many":
        ship(store, A, 2)
        about = {"max_segments": 1}
    elif waits == "too large":
        part(store, A, 2, 0, 1000)
        about = {"largest": 999}
    elif waits == "a gap":
        part(store, A, 2, 0, 100)
        part(store, A, 2, 200, 300)
    elif waits == "in conflict":
        ref = layout.SegmentRef(A, layout.SegmentName(3, 7))
        store.put(ref.conflict(7), b"other", metadata={"sealed_at": NOW.isoformat()})
    else:
        # Logs and frames alternate; this batch takes the log, the next one the frames.
        run(store, planned(store))
        sign(store, A, NOW + timedelta(seconds=1))
        ship(store, A, 2)
        made = layout.SegmentRef(layout.NodeName.made(CLUSTER, "snapshot", "1"), layout.SegmentName(1, 8))
        store.put(made.incoming, b"frames", metadata={"sealed_at": NOW.isoformat()})
    manifest = planned(store, **about)
    assert manifest.complete is not None
    before = manifest.complete_before.until if manifest.complete_before else None
    assert manifest.complete.until == before


def test_what_a_session_has_not_listed_any_more_is_not_claimed_early(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner is late: between its two looks at the batches another one has ingested what it waits for."""
    sign(store, A, NOW - timedelta(minutes=5))
    ship(store, A, 1)
    run(store, planned(store))
    sign(store, A, NOW)
    ship(store, A, 2)
    listed, late = planner.read_facts, []

    def read_facts(*about: Any, **more: Any) -> Any:
        found = listed(*about, **more)
        if not late:
            late.append(1)
            manifest = planned(store)
            seal = Sealed(number=2, kind="ingest", sealed_at=NOW, segments=[SegmentOutcome(object=manifest.segments[0].object)],
                          accounting=[], state={}, complete=None)  # fmt: skip
            planner.seal(store, CLUSTER, seal)
            archive(store, CLUSTER, 2)
        return found

    monkeypatch.setattr(planner, "read_facts", read_facts)
    assert plan(store) is None
    assert known(store).until == at(NOW - timedelta(minutes=5)), "it would say so of batch 1"


# --- problems


@pytest.mark.parametrize("table", [TABLE, None])
def test_a_segment_with_problems_holds_its_tables(store: LocalStore, table: UUID | None) -> None:
    sign(store, A, NOW - timedelta(minutes=9))
    ship(store, A, 1)
    run(store, planned(store))
    sign(store, A, NOW - timedelta(minutes=5))
    bad = ship(store, A, 2)
    run(store, planned(store), {bad.incoming: [problem(table)]})
    sign(store, A, NOW)
    ship(store, A, 3)
    run(store, planned(store))
    found = known(store)
    assert found.of(TABLE) == at(NOW - timedelta(minutes=9))
    assert found.of(OTHER) == (at(NOW) if table else at(NOW - timedelta(minutes=9)))
    assert bad.incoming in (found.by, *(held.by for held in found.held.values()))


def test_a_cleared_segment_holds_nothing_any_more(store: LocalStore) -> None:
    sign(store, A, NOW - timedelta(minutes=9))
    bad = ship(store, A, 1)
    run(store, planned(store), {bad.incoming: [problem(TABLE)]})
    sign(store, A, NOW)
    mark_for_retry(store, bad.incoming)
    run(store, planned(store))
    assert known(store).of(TABLE) == at(NOW)


@pytest.mark.parametrize("table", [TABLE, None])
def test_a_damaged_part_holds_its_tables_until_the_whole_file_is_read(store: LocalStore, table: UUID | None) -> None:
    sign(store, A, NOW - timedelta(minutes=9))
    part(store, A, 1, 0, 100)
    run(store, planned(store))
    sign(store, A, NOW - timedelta(minutes=5))
    part(store, A, 1, 100, 200)
    manifest = planned(store)
    run(store, manifest, {manifest.segments[0].object: [problem(table)]})
    sign(store, A, NOW)
    part(store, A, 1, 200, 300)
    run(store, planned(store))
    assert plan(store) is None
    assert known(store).of(TABLE) == at(NOW - timedelta(minutes=9))
    assert known(store).of(OTHER) == (at(NOW - timedelta(minutes=9)) if table is None else at(NOW))
    ship(store, A, 1)
    run(store, planned(store))
    assert plan(store) is None
    assert known(store).of(TABLE) == known(store).of(OTHER) == at(NOW)


def test_of_many_held_segments_all_tables_wait_until_few_are_left(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermark, "_MOST_HELD", 2)
    sign(store, A, NOW - timedelta(minutes=9))
    bad = [ship(store, A, number).incoming for number in range(1, 5)]
    run(store, planned(store), {name: [problem(TABLE)] for name in bad})
    before = known(store).of(OTHER)
    sign(store, A, NOW)
    mark_for_retry(store, bad[0])
    run(store, planned(store))
    assert known(store).of(OTHER) == before, "three are left"
    mark_for_retry(store, bad[1])
    run(store, planned(store))
    assert (known(store).of(OTHER), known(store).of(TABLE)) == (at(NOW), None)


def test_parts_of_which_all_is_ingested_hold_nothing(store: LocalStore) -> None:
    sign(store, A, NOW - timedelta(minutes=9))
    part(store, A, 1, 0, 100)
    part(store, A, 1, 0, 200)
    run(store, planned(store))
    sign(store, A, NOW)
    assert plan(store) is None
    assert known(store).until == at(NOW)


# --- never back


TIMES = st.one_of(st.none(), st.integers(0, 9).map(lambda second: NOW + timedelta(seconds=second)))
HELD = st.dictionaries(st.sampled_from([TABLE, OTHER]), TIMES.map(lambda until: HeldTable(until=until, by="x")))
WATERMARKS = st.builds(Watermark, batch=st.integers(0, 3), until=TIMES, held=HELD)


@given(WATERMARKS, WATERMARKS)
def test_merged_no_table_goes_back(one: Watermark, other: Watermark) -> None:
    merged = watermark.later(one, other)
    for table in (TABLE, OTHER, UUID(int=3)):
        assert merged.of(table) == max((t for t in (one.of(table), other.of(table)) if t is not None), default=None)
    assert merged.batch == max(one.batch, other.batch)
    assert watermark.later(merged, one) == watermark.later(merged, other) == merged


def test_a_late_driver_takes_nothing_back(store: LocalStore) -> None:
    newest = Watermark(batch=3, until=NOW)
    watermark.advance(store, CLUSTER, newest)
    assert watermark.advance(store, CLUSTER, Watermark(batch=2, until=NOW - timedelta(hours=1))) == newest
    assert known(store) == newest


def test_of_two_drivers_at_once_both_count(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, head = [], store.head

    def overtaken(name: str) -> ObjectInfo | None:
        found = head(name)
        if not heads:
            heads.append(name)
            watermark.advance(store, CLUSTER, Watermark(batch=5, until=NOW, held={TABLE: HeldTable(until=None, by="x")}))
        return found

    monkeypatch.setattr(store, "head", overtaken)
    watermark.advance(store, CLUSTER, Watermark(batch=4, until=NOW - timedelta(hours=1)))
    monkeypatch.undo()
    assert (known(store).batch, known(store).until, known(store).of(TABLE)) == (5, NOW, NOW - timedelta(hours=1))
