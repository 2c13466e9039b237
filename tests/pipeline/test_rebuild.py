"""What a rebuild looks at, the numbers that it begins with, and what nobody plans meanwhile; against a real
folder store, without Spark."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.node_objects import schema_name
from tests.pipeline.planning import plan_ingest, plan_maintain, plan_replay
from tests.pipeline.test_planner import (
    CLUSTER,
    NOW,
    ledger,
    planned,
    ref,
    seal,
    ship,
)
from tests.pipeline.test_planner import store as store
from writetime.cassandra.schema.history import SchemaLearner
from writetime.errors import BatchBusy, BatchError, ConfigError
from writetime.pipeline import chains
from writetime.pipeline import planner as planner_module
from writetime.pipeline import rebuild as planning
from writetime.pipeline.archive_packing import let_go, pack
from writetime.pipeline.archiver import archive
from writetime.pipeline.chains import Rebuild
from writetime.pipeline.documents import Chain, Manifest
from writetime.pipeline.node_logs import first_generation
from writetime.pipeline.planner import history, read_manifest, read_sealed
from writetime.pipeline.publish_progress import Published, write_published
from writetime.pipeline.void import void
from writetime.storage import layout
from writetime.storage.local import LocalStore

NEXT = planning._LEFT_FREE + 1
"""From the highest number to the first one of a chain."""


def taken_in(store: LocalStore, *segments: int, hour: int = 0) -> list[str]:
    """Ship and archive the segments in one batch; their places in the archive."""
    for number in segments:
        ship(store, number, b"segment %d" % number, sealed_at=NOW + timedelta(hours=hour))
    sealed = seal(store, planned(store))
    store.put(layout.batch_object(CLUSTER, sealed.number, "schema"), SchemaLearner().to_json().encode())
    archive(store, CLUSTER, sealed.number)
    return [ledger(store, number).archived_as or "" for number in segments]


def forget(store: LocalStore, folder: str) -> None:
    shutil.rmtree(Path(store.url) / folder)


def started(store: LocalStore, *, last: int | None = None, partial: bool = False, topics: str | None = None) -> Rebuild:
    found = planning.look(store, CLUSTER)
    seen = planning.seen(store, CLUSTER, found.last)
    return planning.start(store, CLUSTER, found, max(seen, last or 0), topics=topics, partial=partial, now=NOW)


def planner(store: LocalStore, rebuild: Rebuild, size: int = 1000) -> planning.Planner:
    return planning.Planner(store, CLUSTER, rebuild, size)


def step(store: LocalStore, made: planning.Planner) -> Manifest | None:
    """The next batch, sealed."""
    manifest = made.next(NOW)
    if manifest is not None:
        seal(store, manifest)
    return manifest


def rebuilt(store: LocalStore, **options: int) -> Rebuild:
    rebuild = started(store, **options)
    made = planner(store, rebuild)
    while step(store, made) is not None:
        pass
    return chains.finish(store, CLUSTER, rebuild, history(store, CLUSTER).last, NOW, {})


# --- planning refuses


def test_batches_that_are_gone_do_not_begin_at_one_again(store: LocalStore) -> None:
    taken_in(store, 1)
    forget(store, "batches")
    ship(store, 2)
    with pytest.raises(BatchError, match="is missing, and the cluster has been ingested before") as caught:
        plan_ingest(store, CLUSTER, now=NOW)
    assert "writetime rebuild" in str(caught.value)
    assert not isinstance(caught.value, BatchBusy)


def test_a_note_of_what_was_published_is_a_past_too_but_a_heartbeat_is_none(store: LocalStore) -> None:
    ship(store, 1)
    write_published(store, CLUSTER, Published(batch=0, events=0, heartbeat=7))
    assert planned(store).number == 1
    forget(store, "batches")
    write_published(store, CLUSTER, Published(batch=3, events=0))
    with pytest.raises(BatchError, match="is missing"):
        plan_ingest(store, CLUSTER, now=NOW)


@pytest.mark.advice("Run `writetime rebuild` to finish it; batches continue after that.")
def test_nothing_else_is_planned_while_a_rebuild_is_under_way(store: LocalStore) -> None:
    taken_in(store, 1)
    ship(store, 2)
    rebuild = started(store)
    hours = {"start": NOW - timedelta(hours=1), "end": NOW + timedelta(hours=1), "now": NOW}
    plans = (
        lambda: plan_ingest(store, CLUSTER, now=NOW),
        lambda: plan_replay(store, CLUSTER, **hours),
        lambda: plan_replay(store, CLUSTER, **hours, namespace="check"),
        lambda: plan_maintain(store, CLUSTER, now=NOW),
    )
    for plan in plans:
        with pytest.raises(BatchBusy, match="a rebuild is under way") as caught:
            plan()
        assert caught.value.retriable
    made = planner(store, rebuild)
    assert step(store, made) is not None
    for plan in plans:
        with pytest.raises(BatchBusy, match="a rebuild is under way"):
            plan()
    assert made.next(NOW) is None
    chains.finish(store, CLUSTER, rebuild, history(store, CLUSTER).last, NOW, {})
    manifest = planned(store)
    assert [segment.ref for segment in manifest.segments] == [ref(2)]
    assert manifest.chain == rebuild.chain.model_copy(update={"upto": rebuild.chain.first})
    seal(store, manifest)
    ship(store, 3)
    assert planned(store).chain == manifest.chain


@pytest.mark.advice("Run `writetime rebuild`: it rebuilds state and tables from the archive")
def test_batches_from_before_a_rebuild_are_refused(store: LocalStore) -> None:
    taken_in(store, 1)
    shutil.copytree(Path(store.url) / "batches", Path(store.url).parent / "backup")
    first = rebuilt(store).chain.first
    forget(store, "batches")
    shutil.copytree(Path(store.url).parent / "backup", Path(store.url) / "batches")
    ship(store, 2)
    with pytest.raises(BatchError, match=f"has no batch of the chain that began with batch {first}") as caught:
        plan_ingest(store, CLUSTER, now=NOW)
    assert "writetime rebuild" in str(caught.value)
    again = rebuilt(store)
    assert (again.chain.first, again.chain.upto) == (first + NEXT, first + NEXT)
    assert planned(store).number == first + NEXT + 1


# --- the archive


def test_an_archive_that_is_whole(store: LocalStore) -> None:
    places = taken_in(store, 1, 2)
    pack(store, places[0], 3)
    found = planning.look(store, CLUSTER)
    assert (found.segments, found.whole, found.kept_from, found.last) == (2, True, None, 1)
    planning.expect_whole(found, CLUSTER)


@pytest.mark.advice("Restore the same bytes under those names, or rebuild without them (`--partial`)")
def test_what_the_archive_lacks_is_named(store: LocalStore) -> None:
    gone, changed, expired, _ = taken_in(store, 1, 2, 3, 4)
    bytes_of = {name: store.read(name) for name in (gone, changed)}
    store.delete(gone)
    store.put(changed, b"other bytes")
    info = store.head(expired)
    assert info is not None
    let_go(store, info)
    found = planning.look(store, CLUSTER)
    assert (found.missing, found.changed, found.expired, found.segments) == ([gone], [changed], 1, 2)
    assert found.kept_from == NOW.replace(minute=0) + timedelta(hours=1)
    with pytest.raises(BatchError, match="1 segments are missing, 1 have different bytes, 1 have expired") as caught:
        planning.expect_whole(found, CLUSTER)
    assert gone in str(caught.value)
    assert changed in str(caught.value)
    assert "--partial" in str(caught.value)
    for name, content in bytes_of.items():
        store.put(name, content)
    found = planning.look(store, CLUSTER)
    assert (found.missing, found.changed, found.expired, found.segments) == ([], [], 1, 3)
    rebuild = started(store, partial=True)
    manifest = step(store, planner(store, rebuild))
    assert manifest is not None
    assert (len(manifest.segments), rebuild.chain.partial) == (3, True)


def test_a_byte_that_differs_is_pinned_as_the_ledger_has_it(store: LocalStore) -> None:
    """As on a disk that has rotted: what the store notes of the object is what it was."""
    (place,) = taken_in(store, 1)
    path = Path(store.url) / place
    times = path.stat()
    path.write_bytes(b"segment X")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert planning.look(store, CLUSTER).whole
    manifest = planner(store, started(store)).next(NOW)
    assert manifest is not None
    (segment,) = manifest.segments
    entry = ledger(store, 1)
    assert (segment.size, segment.crc32c, segment.sealed_at) == (entry.size, entry.crc32c, entry.sealed_at)
    with pytest.raises(BatchError, match=r"differ from what was archived: .*CommitLog-7-1") as caught:
        planning.expect_readable(store, manifest, [segment.object])
    assert "--partial" in str(caught.value)
    rebuild = chains.current(store, CLUSTER)
    assert rebuild is not None
    planning.go_partial(store, CLUSTER, rebuild)
    planning.expect_readable(store, manifest, [segment.object])


@pytest.mark.advice("or continue without them: `--partial`.")
def test_a_rebuild_that_goes_partial_half_way_notes_what_is_missing_by_then(store: LocalStore) -> None:
    (first,) = taken_in(store, 1, hour=0)
    taken_in(store, 2, hour=1)
    rebuild = started(store)
    made = planner(store, rebuild, 1)
    assert (rebuild.lacking, rebuild.chain.kept_from) == (0, None)
    Path(store.url, first).unlink()
    changed = planning.go_partial(store, CLUSTER, rebuild)
    assert (changed.missing, changed.lacking, changed.chain.partial) == ([first], 1, True)
    assert changed.chain.kept_from == int((NOW.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)).timestamp())
    assert chains.current(store, CLUSTER) == changed
    made = planner(store, changed, 1)
    manifest = step(store, made)
    assert manifest is not None
    assert [segment.ref for segment in manifest.segments] == [ref(2)]
    assert manifest.chain == changed.chain


# --- numbers


def test_who_looked_before_the_rebuild_was_there_begins_no_batch(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_in(store, 1)
    ship(store, 2)
    read_facts, begun = planner_module.read_facts, []

    def slow(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(planner_module, "read_facts", read_facts)
        begun.append(started(store))
        return read_facts(*given, **named)

    monkeypatch.setattr(planner_module, "read_facts", slow)
    with pytest.raises(BatchBusy, match="another planner created this batch"):
        planned(store)
    assert begun[0].chain.first > history(store, CLUSTER).last


def test_a_batch_that_is_sealed_while_a_rebuild_begins_is_of_the_former_chain(store: LocalStore) -> None:
    taken_in(store, 1)
    found = planning.look(store, CLUSTER)
    last = planning.seen(store, CLUSTER, found.last)
    (place,) = taken_in(store, 2)
    rebuild = planning.start(store, CLUSTER, found, last, topics=None, partial=False, now=NOW)
    assert rebuild.chain.first > 3
    manifest = step(store, planner(store, rebuild))
    assert manifest is not None
    assert place in [segment.object for segment in manifest.segments]


def test_the_former_chain_is_ended_once(store: LocalStore) -> None:
    taken_in(store, 1)
    rebuild = started(store)
    last = history(store, CLUSTER).last
    planning.close_former(store, CLUSTER, rebuild, NOW)
    assert (history(store, CLUSTER).last, history(store, CLUSTER).voided, last) == (2, True, 2)


def test_a_chain_begins_above_every_number_in_the_bucket(store: LocalStore) -> None:
    taken_in(store, 1)
    assert planning.seen(store, CLUSTER, 0) == 1
    assert planning.seen(store, CLUSTER, 4) == 4
    write_published(store, CLUSTER, Published(batch=5, events=0, waiting={"shop.orders": 6}))
    assert planning.seen(store, CLUSTER, 0) == 6
    store.put(layout.incomplete_rows(CLUSTER, 7, "table", 0), b"{}")
    assert planning.seen(store, CLUSTER, 0) == 7
    store.put(layout.incomplete_rows_prefix(CLUSTER) + "stray", b"{}")
    store.put(layout.batch_object(CLUSTER, 8, "sealed"), b"{}")
    assert planning.seen(store, CLUSTER, 0) == 8
    forget(store, "batches")
    rebuild = started(store, last=41)
    assert (rebuild.chain.first, rebuild.sealed, rebuild.published) == (41 + NEXT, None, 5)
    assert planning.seen(store, CLUSTER, 0) == 41 + NEXT


def test_state_begins_where_no_shard_lies(store: LocalStore) -> None:
    taken_in(store, 1)
    assert planning.fresh_generation(store, CLUSTER, 2) == 2
    store.put(layout.state_lease(CLUSTER, "table", 17, 0), b"{}")
    store.put(layout.leases_prefix(CLUSTER) + "stray", b"{}")
    rebuild = started(store)
    manifest = planner(store, rebuild).next(NOW)
    assert manifest is not None
    assert first_generation(manifest) == rebuild.chain.generation == 18


# --- batches


def test_batches_go_through_the_archive_by_the_hour_and_build_on_each_other(store: LocalStore) -> None:
    late = taken_in(store, 1, 2, hour=2)
    early = taken_in(store, 3, hour=0)
    store.put("schemas/ring%20one/dc1/a/20260504T000000Z-a.json", b"{}")
    rebuild = started(store)
    made = planner(store, rebuild, 2)
    manifests = [manifest for manifest in iter(lambda: step(store, made), None) if manifest is not None]
    assert [[segment.object for segment in each.segments] for each in manifests] == [[early[0], late[0]], [late[1]]]
    assert [(each.number, each.base, each.kind, each.chain) for each in manifests] == [
        (2 + NEXT, 0, "rebuild", rebuild.chain),
        (3 + NEXT, 2 + NEXT, "rebuild", rebuild.chain),
    ]
    assert [each.schema_snapshots for each in manifests] == [["schemas/ring%20one/dc1/a/20260504T000000Z-a.json"], []]
    assert all(segment.ref.node.host_id for each in manifests for segment in each.segments)


def test_a_rebuild_goes_on_where_it_died(store: LocalStore) -> None:
    taken_in(store, 1, 2, 3)
    rebuild = started(store)
    first = planner(store, rebuild, 1).next(NOW)
    assert first is not None
    assert planner(store, rebuild, 1).next(NOW) == first
    seal(store, first)
    # A segment that an archiver has put behind the place that was reached.
    store.copy(first.segments[0].object, first.segments[0].object.replace("CommitLog-7-1", "CommitLog-7-0"))
    made = planner(store, rebuild, 1)
    rest = [manifest.segments[0].ref.segment.id for manifest in iter(lambda: step(store, made), None) if manifest is not None]
    assert rest == [2, 3, 0]


def test_of_two_drivers_that_plan_at_once_one_is_refused(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_in(store, 1)
    rebuild = started(store)
    slow, list_answers = planner(store, rebuild), planning.new_answers

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(planning, "new_answers", list_answers)
        assert planner(store, rebuild).next(NOW) is not None
        return list_answers(*given)

    monkeypatch.setattr(planning, "new_answers", meanwhile)
    with pytest.raises(BatchBusy, match="another planner created this batch"):
        slow.next(NOW)
    assert history(store, CLUSTER).last == rebuild.chain.first


def test_a_segment_that_is_packed_meanwhile_comes_in_once(store: LocalStore) -> None:
    places = taken_in(store, 1, 2)
    made = planner(store, started(store), 1)
    assert step(store, made) is not None
    for place in places:
        pack(store, place, 3)
    second = step(store, made)
    assert second is not None
    assert [segment.object for segment in second.segments] == [layout.packed(places[1])]
    assert step(store, made) is None


def test_an_empty_archive_makes_a_chain_too(store: LocalStore) -> None:
    write_published(store, CLUSTER, Published(batch=3, events=0))
    done = rebuilt(store)
    assert (done.chain.first, done.chain.upto) == (3 + NEXT, 3 + NEXT)
    ship(store, 1)
    assert planned(store).base == 3 + NEXT


def test_an_open_batch_of_the_chain_before_is_given_up(store: LocalStore) -> None:
    taken_in(store, 1)
    name = ship(store, 2)
    open_batch = planned(store)
    rebuild = started(store)
    assert rebuild.chain.first == open_batch.number + NEXT
    given_up = read_sealed(store, CLUSTER, open_batch.number)
    assert given_up is not None
    assert (given_up.segments, given_up.events) == ([], 0)
    assert archive(store, CLUSTER, open_batch.number) == {}
    assert store.head(name) is not None
    made = planner(store, rebuild)
    while step(store, made) is not None:
        pass
    chains.finish(store, CLUSTER, rebuild, rebuild.chain.first, NOW, {})
    assert [segment.object for segment in planned(store).segments] == [name]


def test_two_drivers_begin_one_rebuild(store: LocalStore) -> None:
    taken_in(store, 1)
    first = started(store)
    chain = Chain(id=first.chain.id, first=first.chain.first, generation=9)
    assert chains.begin(store, CLUSTER, first.model_copy(update={"chain": chain})) == first


@pytest.mark.advice("Run `writetime rebuild` again.")
def test_of_two_drivers_that_change_a_rebuild_the_slower_looks_again(store: LocalStore) -> None:
    taken_in(store, 1)
    slow = started(store)
    planning.go_partial(store, CLUSTER, slow)
    with pytest.raises(BatchBusy, match="another driver has changed the rebuild"):
        chains.finish(store, CLUSTER, slow, 2, NOW, {})
    found = chains.unfinished(store, CLUSTER)
    assert found is not None
    assert chains.finish(store, CLUSTER, found, 2, NOW, {}).chain.partial
    assert chains.unfinished(store, CLUSTER) is None


@pytest.mark.advice("Give the same options, or finish this rebuild")
def test_a_rebuild_under_way_keeps_its_options(store: LocalStore) -> None:
    taken_in(store, 1)
    rebuild = started(store, topics="again")
    chains.expect_same(rebuild, None)
    chains.expect_same(rebuild, "again")
    with pytest.raises(ConfigError, match="the rebuild was begun with `--topics again`"):
        chains.expect_same(rebuild, "other")
    late = chains.finish(store, CLUSTER, rebuild, 2, NOW, {})
    assert chains.finish(store, CLUSTER, rebuild, 7, NOW, {}) == late
    assert chains.unfinished(store, CLUSTER) is None


def test_what_is_published_of_a_chain(store: LocalStore) -> None:
    taken_in(store, 1)
    rebuild = started(store)
    made = planner(store, rebuild)
    assert step(store, made) is not None
    first = rebuild.chain.first
    assert [chains.begins_after(store, CLUSTER, number) for number in (1, first, 99)] == [0, first, 0]
    assert [chains.first_of(store, CLUSTER, number) for number in (1, first, 99)] == [1, first, 1]
    chains.finish(store, CLUSTER, rebuild, first, NOW, {})
    ship(store, 2)
    seal(store, planned(store))
    assert (chains.begins_after(store, CLUSTER, first + 1), chains.first_of(store, CLUSTER, first + 1)) == (first, first)


def test_a_late_driver_that_plans_when_the_rebuild_is_finished_silences_nothing(store: LocalStore) -> None:
    taken_in(store, 1)
    rebuild = started(store)
    late = planner(store, rebuild)
    assert step(store, late) is not None
    first = rebuild.chain.first
    chains.finish(store, CLUSTER, rebuild, first, NOW, {})
    taken_in(store, 2)
    stray = late.next(NOW)
    assert stray is not None
    assert (stray.number, stray.kind, chains.begins_after(store, CLUSTER, first + 2)) == (first + 2, "rebuild", first)
    seal(store, stray)
    ship(store, 3)
    later = planned(store).chain
    assert later is not None
    assert later.upto == first


def test_a_chain_goes_on_when_its_document_is_lost(store: LocalStore) -> None:
    taken_in(store, 1)
    first = rebuilt(store).chain.first
    forget(store, "chains")
    ship(store, 2)
    later = planned(store).chain
    assert later is not None
    assert (later.first, later.upto) == (first, first)


def test_batches_of_before_have_no_chain(store: LocalStore) -> None:
    taken_in(store, 1)
    assert read_manifest(store, CLUSTER, 1).chain is None
    ship(store, 2)
    assert planned(store).chain is None


# --- voids


def test_an_open_batch_of_the_chain_before_is_voided(store: LocalStore) -> None:
    taken_in(store, 1)
    ship(store, 2)
    given_up = planned(store)
    rebuild = started(store)
    sealed = read_sealed(store, CLUSTER, given_up.number)
    assert sealed is not None
    assert sealed.void is not None
    assert rebuild.chain.first > given_up.number
    made = planner(store, rebuild)
    manifest = step(store, made)
    assert manifest is not None
    assert [segment.ref for segment in manifest.segments] == [ref(1)], "what it was to take in waits in cdc/"


@pytest.mark.parametrize("before", [0, 1])
def test_what_a_voided_batch_of_a_rebuild_took_comes_in_again(before: int, store: LocalStore) -> None:
    store.put(schema_name(CLUSTER, NOW, "v1"), b"{}")
    taken_in(store, 1, hour=0)
    taken_in(store, 2, hour=1)
    made = planner(store, started(store), 1)
    for _ in range(before):
        step(store, made)
    manifest = made.next(NOW)
    assert manifest is not None
    void(store, CLUSTER, manifest.number, reason="cannot be finished", by="somebody")
    again = made.next(NOW)
    assert again is not None
    assert again.number == manifest.number + 1
    assert (again.base, again.segments, again.schema_snapshots) == (manifest.base, manifest.segments, manifest.schema_snapshots)
    assert bool(again.schema_snapshots) == (before == 0)
    seal(store, again)
    rest = [step(store, made) for _ in range(3)]
    assert [each.segments[0].ref for each in rest if each is not None] == ([ref(2)] if before == 0 else [])
