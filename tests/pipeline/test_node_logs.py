"""What a batch makes of the nodes' own logs: which tables start anew, and what is read again for them.
Against a real folder store."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.schema.node_metadata import Truncation
from writetime.cassandra.schema.system_tables import LOCAL, TABLES
from writetime.errors import BatchError
from writetime.pipeline.archive_packing import pack, to_pack
from writetime.pipeline.archiver import archive, mark_for_retry
from writetime.pipeline.documents import (
    Ending,
    LocalDocument,
    Manifest,
    Mark,
    Problem,
    Sealed,
    SegmentInput,
    SegmentOutcome,
    ShardVersions,
)
from writetime.pipeline.node_logs import (
    SchemaPlaces,
    all_segments,
    cuts,
    decide,
    only,
    read_local,
    settle,
)
from writetime.pipeline.planner import plan_ingest, plan_replay
from writetime.storage import layout, open_store
from writetime.storage.local import LocalStore

CLUSTER = "ring"
START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ORDERS = Table("shop", "orders", UUID(int=7), {}, cdc=True)
ITEMS = Table("shop", "items", UUID(int=8), {}, cdc=True)


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def ms(number: float) -> int:
    return int(minute(number).timestamp() * 1000)


def truncated(segment: int, position: int, at: float, table: Table = ORDERS) -> bytes:
    """The frame of a node that was at that place when the table was truncated."""
    value = struct.pack(">qiq", segment, position, ms(at))
    row = Row((), cells=(Cell("truncated_at", ms(at) * 1000, value, table.id.bytes),))
    return encode_mutation(Mutation((PartitionUpdate(LOCAL.id, b"local", rows=(row,)),)), Schema(tables=TABLES))


@dataclass
class Ring:
    """Ships segments of nodes, and runs batches as far as this part of them goes."""

    store: LocalStore
    clock: float = 0
    told: dict[str, list[bytes]] = field(default_factory=dict)
    batches: list[tuple[Manifest, LocalDocument]] = field(default_factory=list)
    captured: Sequence[Table] = (ORDERS, ITEMS)
    drops: dict[str, set[Truncation]] = field(default_factory=dict)
    creates: dict[str, set[Truncation]] = field(default_factory=dict)

    def ref(self, node: str, segment: int) -> layout.SegmentRef:
        return layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", node), layout.SegmentName(id=segment, version=7))

    def ship(self, node: str, segment: int, at: float, *local: bytes, ending: Ending = "completed") -> None:
        """`at`: the minute at which the node had finished it."""
        name = self.ref(node, segment).incoming
        self.store.put(name, f"{node} {segment}".encode(), metadata={"sealed_at": minute(at).isoformat(), "ending": ending})
        self.told[f"{node} {segment}"] = list(local)

    def dropped(self, node: str, segment: int, position: int, at: float) -> None:
        """The segment has the DROP of ORDERS, of that minute, at that place."""
        record = Truncation(ms(at), ORDERS.id, segment, position, ms(at) * 1000)
        self.drops.setdefault(f"{node} {segment}", set()).add(record)

    def created(self, node: str, segment: int, position: int, at: float) -> None:
        """The segment has the CREATE of ORDERS with its id, of that minute, at that place."""
        record = Truncation(ms(at), ORDERS.id, segment, position, ms(at) * 1000)
        self.creates.setdefault(f"{node} {segment}", set()).add(record)

    def part(self, node: str, segment: int, start: int, end: int, at: float, *local: bytes) -> str:
        """Of a segment that grows, bytes [start, end), synced at that minute."""
        name = self.ref(node, segment).part(start, end)
        self.store.put(name, bytes(end - start), metadata={"sealed_at": minute(at).isoformat()})
        self.told[f"{node} {segment}"] = list(local)
        return name

    def plan(self) -> Manifest:
        self.clock += 1
        manifest = plan_ingest(self.store, CLUSTER, now=minute(1000 + self.clock))
        assert manifest is not None
        return manifest

    def rows(self, manifest: Manifest) -> list[tuple[int, bytes]]:
        keys = [f"{each.ref.node.host_id} {each.ref.segment.id}" for each in manifest.segments]
        return [(index, body) for index, key in enumerate(keys) for body in self.told[key]]

    def run(self, manifest: Manifest, *, bad: str = "") -> LocalDocument:
        base = Sealed.read(self.store, layout.batch_object(CLUSTER, manifest.base, "sealed"))
        logged = SchemaPlaces({}, {})
        for segment in manifest.segments:
            host = segment.ref.node.host_id
            for places, records in zip(logged, (self.drops, self.creates), strict=True):
                places.setdefault(host, set()).update(records.get(f"{host} {segment.ref.segment.id}", ()))
        document = settle(self.store, manifest, base, self.rows(manifest), self.captured, logged)
        incarnations = {str(table_id): incarnation.generation for table_id, incarnation in document.generations.items()}
        sealed = Sealed(
            number=manifest.number,
            kind=manifest.kind,
            sealed_at=START,
            segments=[_outcome(segment, bad) for segment in manifest.segments],
            accounting=[],
            state={name: versions.captured_up_to(base.number) for name, versions in (base.state if base else {}).items() if base}
            | {str(t.id): ShardVersions(generation=incarnations.get(str(t.id), 0), buckets=[1]) for t in self.captured},
            held=[bad] if bad else [],
            growing=self._growing(manifest, base),
        )
        self.store.put(layout.batch_object(CLUSTER, manifest.number, "sealed"), sealed.to_bytes(), if_generation=0)
        archive(self.store, CLUSTER, manifest.number)
        self.batches.append((manifest, document))
        return document

    @staticmethod
    def _growing(manifest: Manifest, base: Sealed | None) -> dict[str, Mark]:
        whole = {segment.ref.growing for segment in manifest.segments if not segment.grows}
        known = {name: mark for name, mark in (base.growing if base else {}).items() if name not in whole}
        return known | {s.object: Mark(position=s.end, logical=s.end, frames=3) for s in manifest.segments if s.grows}

    def batch(self) -> LocalDocument:
        return self.run(self.plan())


def _outcome(segment: SegmentInput, bad: str) -> SegmentOutcome:
    problem = Problem(kind="corrupt_frame", position=1, size=1, message="CRC")
    return SegmentOutcome(object=segment.object, frames=3, problems=[problem] if segment.object == bad else [])


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    store = open_store(str(tmp_path / "bucket"))
    assert isinstance(store, LocalStore)
    return Ring(store)


def reread(document: LocalDocument) -> dict[str, dict[int, int]]:
    """{"node segment": {table's number: from position}}"""
    return {
        f"{each.segment.ref.node.host_id} {each.segment.ref.segment.id}": {table.int: position for table, position in each.tables.items()}
        for each in document.rereads
    }


def test_without_records_nothing_opens(ring: Ring) -> None:
    ring.ship("a", 1, 1)
    document = ring.batch()
    assert (document.truncations, document.generations, document.opened, document.rereads) == ({}, {}, [], [])


def test_all_records_in_one_batch_open_one_generation(ring: Ring) -> None:
    for node in "abc":
        ring.ship(node, 1, 1)
    ring.batch()
    for node, position in (("a", 30), ("b", 20), ("c", 10)):
        ring.ship(node, 2, 5, truncated(2, position, 3))
    document = ring.batch()
    assert document.opened == [ORDERS.id]
    opening = document.generations[ORDERS.id]
    assert (opening.generation, opening.opened, opening.at, opening.correction) == (1, 2, ms(3), False)
    assert document.rereads == [], "what had been archived ends before the cut"
    segments = all_segments(ring.batches[-1][0], document)
    gone = cuts(document, segments).gone
    for index, segment in enumerate(segments):
        position = {"a": 30, "b": 20, "c": 10}[segment.ref.node.host_id]
        assert gone(ORDERS.id.bytes, index, position, 2**62)
        assert not gone(ORDERS.id.bytes, index, position + 1, 0)

    # The same told once more, by a replay or after a crash of the node: nothing opens.
    replay = plan_replay(ring.store, CLUSTER, start=START, end=minute(60), now=minute(2000))
    assert replay is not None
    again = ring.run(replay)
    assert (again.opened, again.rereads, again.generations, again.truncations) == ([], [], document.generations, document.truncations)
    assert cuts(again, replay.segments).gone(ORDERS.id.bytes, 0, 1, 2**62), "what was cut is cut in a replay too"


def test_archived_segments_past_the_cut_are_read_again(ring: Ring) -> None:
    """The records come hours after what was written since."""
    ring.ship("a", 1, 1)
    ring.ship("a", 3, 70)
    ring.ship("b", 1, 1)
    ring.ship("b", 2, 80)
    ring.ship("b", 9, 4000)
    ring.ship("c", 1, 1)
    ring.ship("c", 2, 90)
    ring.batch()
    ring.ship("a", 2, 60, truncated(2, 500, 60), truncated(3, 7, 61, ITEMS))
    ring.ship("b", 3, 95, truncated(2, 40, 60.1))
    document = ring.batch()
    assert document.opened == [ORDERS.id, ITEMS.id]
    # c has no record: what a and b logged before theirs tells which of its updates are copies of what is
    # gone.
    whole = {7: -1, 8: -1}
    assert reread(document) == dict.fromkeys(("a 1", "a 3", "b 1", "b 2", "b 9", "c 1", "c 2"), whole)
    again = [(s.ref.node.host_id, s.ref.segment.id) for s in all_segments(ring.batches[-1][0], document)[2:]]
    assert again == [("a", 1), ("b", 1), ("c", 1), ("a", 3), ("b", 2), ("c", 2), ("b", 9)], "in the order of their names"
    assert only(ring.batches[-1][0], document)[3] == (frozenset({ORDERS.id, ITEMS.id}), -1)
    assert all(each.segment.object.startswith("cdc_archive/") for each in document.rereads)
    assert all(ring.store.read(each.segment.object, generation=each.segment.generation) for each in document.rereads)


def test_of_nodes_that_all_have_a_record_only_what_is_past_it_is_read_again(ring: Ring) -> None:
    for node in "ab":
        ring.ship(node, 1, 1)
        ring.ship(node, 3, 70)
    ring.batch()
    ring.ship("a", 2, 60, truncated(2, 500, 60))
    ring.ship("b", 2, 60, truncated(3, 7, 60.1))
    assert reread(ring.batch()) == {"a 3": {7: -1}, "b 3": {7: 7}}


def test_a_missing_record_corrects_what_writetime_had_judged(ring: Ring) -> None:
    for node in "ab":
        ring.ship(node, 1, 1)
    ring.batch()
    ring.ship("a", 2, 20, truncated(2, 900, 10))
    ring.ship("b", 3, 20)
    first = ring.batch()
    assert first.generations[ORDERS.id].generation == 1
    assert reread(first) == {}, "a's first segment is before its place, b had finished its own by then"
    ring.ship("b", 2, 15, truncated(3, 5, 10.1))
    second = ring.batch()
    opening = second.generations[ORDERS.id]
    assert (second.opened, opening.generation, opening.opened, opening.correction) == ([ORDERS.id], 2, 3, True)
    assert reread(second) == {"a 2": {7: 900}, "b 3": {7: 5}}


def corrected(ring: Ring) -> None:
    """As above, up to the batch before the one that corrects."""
    for node in "ab":
        ring.ship(node, 1, 1)
    ring.batch()
    ring.ship("a", 2, 20, truncated(2, 900, 10))
    ring.ship("b", 3, 20)
    ring.batch()
    ring.ship("b", 2, 15, truncated(3, 5, 10.1))


def test_a_packed_archive_corrects_the_same(ring: Ring) -> None:
    corrected(ring)
    for name in list(to_pack(ring.store, CLUSTER, minute(600))):
        pack(ring.store, name, 3)
    document = ring.batch()
    assert (document.opened, reread(document)) == ([ORDERS.id], {"a 2": {7: 900}, "b 3": {7: 5}})
    assert all(layout.is_packed(each.segment.object) for each in document.rereads)


def test_packing_alone_is_no_reason_to_correct(ring: Ring) -> None:
    """What was folded by its plain name is the same by its packed one."""
    for node in "abc":
        ring.ship(node, 1, 1)
    ring.batch()
    ring.ship("a", 2, 20, truncated(2, 900, 10))
    ring.ship("b", 3, 20)
    assert ring.batch().opened == [ORDERS.id]
    for name in list(to_pack(ring.store, CLUSTER, minute(600))):
        pack(ring.store, name, 3)
    ring.ship("c", 2, 21, truncated(2, 700, 10.01))
    assert ring.batch().opened == []


def test_what_is_packed_between_two_runs_of_a_batch_is_still_there(ring: Ring) -> None:
    corrected(ring)
    manifest = ring.plan()
    base = Sealed.read(ring.store, layout.batch_object(CLUSTER, manifest.base, "sealed"))
    first = settle(ring.store, manifest, base, ring.rows(manifest), ring.captured)
    for name in list(to_pack(ring.store, CLUSTER, minute(600))):
        pack(ring.store, name, 3)
    assert settle(ring.store, manifest, base, ring.rows(manifest), ring.captured) == first
    assert [each.segment.ref.segment.id for each in first.rereads] == [2, 3]


def test_a_truncate_behind_what_the_archive_keeps_is_not_followed(ring: Ring) -> None:
    """Its table would lack what was written since."""
    corrected(ring)
    manifest = ring.plan()
    base = Sealed.read(ring.store, layout.batch_object(CLUSTER, manifest.base, "sealed"))
    assert base is not None
    base = base.model_copy(update={"kept_from": int(START.timestamp())})
    document = decide(ring.store, manifest, base, ring.rows(manifest), ring.captured)
    assert (document.opened, document.rereads) == ([], [])
    (told,) = document.not_understood
    assert "TRUNCATE of 2026-05-04T12:10:00Z" in told
    assert "keep_days" in told
    kept = base.model_copy(update={"kept_from": int(START.timestamp()) - 3600})
    assert decide(ring.store, manifest, kept, ring.rows(manifest), ring.captured).opened == [ORDERS.id], "all since is there"


def test_without_the_documents_of_old_batches_a_correction_builds_anew(ring: Ring) -> None:
    for node in "abc":
        ring.ship(node, 1, 1)
    ring.batch()
    ring.ship("a", 2, 20, truncated(2, 900, 10))
    assert ring.batch().opened == [ORDERS.id]
    ring.ship("b", 2, 21, truncated(2, 700, 10.01))
    manifest = ring.plan()
    base = Sealed.read(ring.store, layout.batch_object(CLUSTER, manifest.base, "sealed"))
    assert decide(ring.store, manifest, base, ring.rows(manifest), ring.captured).opened == []
    ring.store.delete(layout.batch_object(CLUSTER, 2, "manifest"))
    assert decide(ring.store, manifest, base, ring.rows(manifest), ring.captured).opened == [ORDERS.id]


def test_a_missing_record_that_changes_no_frame_opens_nothing(ring: Ring) -> None:
    """The normal way: each node's record comes with the segment in which it was written, and not all in one
    batch."""
    for node in "abc":
        ring.ship(node, 1, 1)
    ring.batch()
    ring.ship("a", 2, 20, truncated(2, 900, 10))
    assert ring.batch().opened == [ORDERS.id]
    for node in "bc":
        ring.ship(node, 2, 21, truncated(2, 700, 10.01))
        document = ring.batch()
        assert (document.opened, document.rereads) == ([], [])
        assert document.generations[ORDERS.id].opened == 2
    found = cuts(document, ring.batches[-1][0].segments)
    assert found.gone(ORDERS.id.bytes, 0, 700, 2**62)
    assert not found.gone(ORDERS.id.bytes, 0, 701, 0)


def test_a_second_truncate_is_another_generation_and_the_last_of_two_is_one(ring: Ring) -> None:
    ring.ship("a", 1, 5, truncated(1, 10, 1))
    assert ring.batch().generations[ORDERS.id].generation == 1
    ring.ship("a", 2, 9, truncated(1, 50, 6), truncated(2, 70, 8))
    document = ring.batch()
    opening = document.generations[ORDERS.id]
    assert (opening.generation, opening.at, opening.correction) == (2, ms(8), False)
    assert document.opened == [ORDERS.id]


def test_an_older_truncate_that_becomes_known_later_opens_nothing(ring: Ring) -> None:
    ring.ship("a", 2, 9, truncated(2, 70, 8))
    assert ring.batch().opened == [ORDERS.id]
    ring.ship("a", 1, 5, truncated(1, 10, 1))
    assert ring.batch().opened == []


def test_a_life_that_is_over_opens_nothing_and_is_cut(ring: Ring) -> None:
    ring.captured = (Table("shop", "orders", ORDERS.id, {}, cdc=True, dropped=True),)
    ring.ship("a", 2, 9, truncated(2, 70, 8))
    document = ring.batch()
    assert document.opened == []
    assert cuts(document, ring.batches[-1][0].segments).gone(ORDERS.id.bytes, 0, 70, 2**62)


def test_a_dropped_id_that_is_created_again_in_one_batch_is_another_generation(ring: Ring) -> None:
    ring.ship("a", 1, 1)
    ring.batch()
    ring.ship("a", 2, 10)
    ring.dropped("a", 2, 500, 5)
    ring.created("a", 2, 700, 6)
    ring.dropped("a", 2, 900, 5)
    document = ring.batch()
    assert (document.opened, document.generations[ORDERS.id].generation) == ([ORDERS.id], 1)
    cut = cuts(document, all_segments(*ring.batches[-1]))
    # A write that raced the DROP is behind it, and nothing else is before the CREATE.
    assert cut.gone(ORDERS.id.bytes, 0, 700, ms(5) * 1000)
    # The DROP that the node logged again does not count: by then the table may be there.
    assert not cut.gone(ORDERS.id.bytes, 0, 701, ms(1) * 1000)


def drop_between_batches(ring: Ring) -> LocalDocument:
    """The document of a batch in which both nodes drop ORDERS, in segment 2 at position 500. Afterwards it is there."""
    ring.ship("a", 1, 1)
    ring.ship("b", 1, 1)
    ring.batch()
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(5) * 1000), ITEMS)
    for node in "ab":
        ring.ship(node, 2, 10)
        ring.dropped(node, 2, 500, 5)
    document = ring.batch()
    ring.captured = (ORDERS, ITEMS)
    return document


def test_until_its_create_is_seen_a_drop_counts_up_to_the_end_of_its_segment(ring: Ring) -> None:
    """A node begins a new segment before a table is created again."""
    drop_between_batches(ring)
    ring.ship("a", 3, 20)
    ring.created("a", 3, 100, 6)
    ring.ship("b", 3, 20)
    document = ring.batch()
    assert (document.opened, reread(document)) == ([ORDERS.id], {})
    cut, (a, b) = cuts(document, all_segments(*ring.batches[-1])), (0, 1)
    assert [cut.gone(ORDERS.id.bytes, a, position, ms(15) * 1000) for position in (100, 101)] == [True, False]
    assert not cut.gone(ORDERS.id.bytes, b, 1, ms(15) * 1000)
    # The CREATE on that node shows that its frames before it belong to the table that is gone, too.
    ring.ship("b", 4, 25)
    ring.created("b", 4, 300, 6)
    document = ring.batch()
    assert (document.opened, document.generations[ORDERS.id].correction, reread(document)) == ([ORDERS.id], True, {"a 3": {7: 100}})
    cut = cuts(document, all_segments(*ring.batches[-1]))
    assert [cut.gone(ORDERS.id.bytes, 0, position, ms(15) * 1000) for position in (300, 301)] == [True, False]
    assert sum(each.table_id == ORDERS.id for noted in document.truncations.values() for each in noted) == 2
    ring.ship("b", 5, 30)
    assert ring.batch().opened == []


def test_a_drop_that_the_version_before_noted_stays_where_it_is(ring: Ring) -> None:
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(5) * 1000), ITEMS)
    ring.ship("a", 1, 1)
    ring.dropped("a", 1, 500, 5)
    document = ring.batch()
    name = layout.batch_object(CLUSTER, 1, "local")
    (record,) = document.drops["a"]
    ring.store.put(name, document.model_copy(update={"drops": {"a": [record.model_copy(update={"position": 500})]}}).to_bytes())
    ring.captured = (ORDERS, ITEMS)
    ring.ship("a", 2, 20)
    ring.created("a", 2, 100, 6)
    document = ring.batch()
    assert (document.opened, reread(document)) == ([ORDERS.id], {"a 1": {7: 500}})


def test_a_dropped_id_that_is_created_again_in_a_later_batch_is_another_generation(ring: Ring) -> None:
    document = drop_between_batches(ring)
    assert (document.truncations, document.opened) == ({}, [])
    assert not cuts(document, all_segments(*ring.batches[-1])).gone(ORDERS.id.bytes, 0, 400, 1)
    ring.ship("a", 3, 20)
    ring.created("a", 3, 100, 6)
    document = ring.batch()
    assert (document.opened, reread(document)) == ([ORDERS.id], {})
    ring.ship("b", 3, 20)
    ring.created("b", 3, 200, 6)
    assert ring.batch().opened == []


def test_an_id_that_is_created_and_dropped_again_is_another_generation_once(ring: Ring) -> None:
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(5) * 1000), ITEMS)
    ring.ship("a", 1, 1)
    ring.ship("b", 1, 1)
    ring.batch()
    ring.ship("a", 2, 10)
    ring.dropped("a", 2, 500, 5)
    assert ring.batch().opened == [], "its rows went with it"
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(9) * 1000), ITEMS)
    ring.ship("a", 3, 20)
    ring.created("a", 3, 200, 6)
    ring.dropped("a", 3, 400, 9)
    document = ring.batch()
    assert (document.opened, reread(document)) == ([ORDERS.id], {})
    assert cuts(document, all_segments(*ring.batches[-1])).gone(ORDERS.id.bytes, 0, 200, ms(6) * 1000)
    # The other node tells of the same two DROPs: the table is over, and nothing of it is told again.
    ring.ship("b", 2, 10)
    ring.dropped("b", 2, 300, 5)
    ring.dropped("b", 2, 600, 9)
    assert ring.batch().opened == []


def test_a_life_between_two_batches_whose_end_has_no_record_is_another_generation(ring: Ring) -> None:
    """The first DROP is known a batch before; of the second one only a snapshot of the schema tells."""
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(5) * 1000), ITEMS)
    ring.ship("a", 1, 10)
    ring.dropped("a", 1, 500, 5)
    assert ring.batch().opened == []
    ring.ship("a", 2, 15)
    assert ring.batch().opened == []
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(9) * 1000), ITEMS)
    ring.ship("a", 3, 20)
    ring.created("a", 3, 200, 6)
    document = ring.batch()
    assert (document.opened, document.generations[ORDERS.id].generation) == ([ORDERS.id], 1)
    cut = cuts(document, all_segments(*ring.batches[-1]))
    assert [cut.gone(ORDERS.id.bytes, 0, position, ms(7) * 1000) for position in (200, 201)] == [True, False]
    ring.ship("b", 1, 20)
    ring.created("b", 1, 300, 6)
    assert ring.batch().opened == []


def test_the_place_of_a_counted_drop_is_corrected_in_the_batch_that_drops_its_id_again(ring: Ring) -> None:
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(9) * 1000), ITEMS)
    ring.ship("a", 1, 10)
    ring.dropped("a", 1, 500, 5)
    assert ring.batch().opened == [ORDERS.id]
    ring.ship("a", 2, 15)
    assert ring.batch().opened == []
    ring.ship("a", 3, 20)
    ring.created("a", 3, 200, 6)
    ring.dropped("a", 3, 400, 9)
    document = ring.batch()
    # What segment 2 has of the table raced the first DROP.
    assert (document.opened, document.generations[ORDERS.id].correction) == ([ORDERS.id], True)
    cut = cuts(document, all_segments(*ring.batches[-1]))
    assert [cut.gone(ORDERS.id.bytes, 0, position, ms(7) * 1000) for position in (200, 201)] == [True, False]


def test_the_last_drop_may_have_no_record(ring: Ring) -> None:
    """Both are known from snapshots of the schema only: the first is implied by the CREATE, and is not the last."""
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(5) * 1000), ITEMS)
    ring.ship("a", 1, 1)
    assert ring.batch().opened == []
    ring.captured = (replace(ORDERS, dropped=True, dropped_at=ms(9) * 1000), ITEMS)
    ring.ship("a", 2, 10)
    ring.dropped("a", 2, 500, 6)
    ring.created("a", 2, 500, 6.1)
    document = ring.batch()
    assert (document.opened, document.generations[ORDERS.id].generation) == ([ORDERS.id], 1)
    cut = cuts(document, all_segments(*ring.batches[-1]))
    assert [cut.gone(ORDERS.id.bytes, 0, position, ms(7) * 1000) for position in (500, 501)] == [True, False]
    ring.ship("a", 3, 20)
    assert ring.batch().opened == []


def test_a_table_that_is_not_captured_opens_nothing(ring: Ring) -> None:
    ring.captured = ()
    ring.ship("a", 1, 5, truncated(1, 10, 1))
    assert ring.batch().opened == []
    ring.captured = (ORDERS,)
    ring.ship("a", 2, 6)
    assert ring.batch().opened == [], "there is nothing that it could have taken"


def test_a_table_that_is_truncated_while_it_is_not_captured(ring: Ring) -> None:
    """It has a state from before, which the TRUNCATE empties when the table is captured again."""
    ring.ship("a", 1, 1)
    ring.batch()
    ring.captured = (ITEMS,)
    ring.ship("a", 2, 5, truncated(2, 10, 3))
    assert ring.batch().opened == []
    ring.ship("a", 3, 6)
    assert ring.batch().opened == []
    ring.captured = (ORDERS, ITEMS)
    ring.ship("a", 4, 7)
    document = ring.batch()
    assert document.opened == [ORDERS.id]
    assert reread(document) == {"a 2": {7: 10}, "a 3": {7: -1}}
    ring.ship("a", 5, 8)
    assert ring.batch().opened == []


def test_a_node_that_has_left_or_never_ships_holds_up_nothing(ring: Ring) -> None:
    ring.ship("gone", 1, 1)
    ring.batch()
    ring.ship("a", 1, 9, truncated(1, 10, 5))
    assert ring.batch().opened == [ORDERS.id]
    ring.ship("a", 2, 19)
    assert ring.batch().opened == []


def test_what_waits_for_a_person_is_read_again_too(ring: Ring) -> None:
    """Its good frames had been folded; the object is where it was."""
    ring.ship("a", 3, 70)
    bad = ring.ref("a", 3).incoming
    ring.run(ring.plan(), bad=bad)
    ring.ship("a", 2, 60, truncated(3, 20, 60))
    document = ring.batch()
    assert reread(document) == {"a 3": {7: 20}}
    assert document.rereads[0].segment.object == bad


def test_what_the_batch_reads_anyway_is_not_read_twice(ring: Ring) -> None:
    ring.ship("a", 3, 70)
    bad = ring.ref("a", 3).incoming
    ring.run(ring.plan(), bad=bad)
    mark_for_retry(ring.store, bad)
    ring.ship("a", 2, 60, truncated(3, 20, 60))
    manifest = ring.plan()
    assert len(manifest.segments) == 2
    assert reread(ring.run(manifest)) == {}


def test_a_rerun_goes_by_what_the_first_run_decided(ring: Ring) -> None:
    ring.ship("a", 1, 5, truncated(1, 10, 1))
    manifest = ring.plan()
    document = settle(ring.store, manifest, None, ring.rows(manifest), ring.captured)
    assert settle(ring.store, manifest, None, [], ()) == document == read_local(ring.store, CLUSTER, 1)
    assert decide(ring.store, manifest, None, ring.rows(manifest), ring.captured) == document


def test_a_rerun_decides_anew_when_what_was_to_be_read_again_was_mended(ring: Ring) -> None:
    ring.ship("a", 3, 70, ending="after-crash")
    bad = ring.ref("a", 3).incoming
    ring.run(ring.plan(), bad=bad)
    ring.ship("a", 2, 60, truncated(3, 20, 60))
    manifest = ring.plan()
    base = Sealed.read(ring.store, layout.batch_object(CLUSTER, 1, "sealed"))
    first = settle(ring.store, manifest, base, ring.rows(manifest), ring.captured)
    ring.store.put(bad, b"mended", metadata={"sealed_at": minute(70).isoformat()})
    second = settle(ring.store, manifest, base, ring.rows(manifest), ring.captured)
    info = ring.store.head(bad)
    assert info is not None
    assert second.rereads[0].segment.ending == "after-crash"
    assert second.rereads[0].segment.generation == info.generation != first.rereads[0].segment.generation
    # The first run may have written the state that it had opened, of frames that are not read now.
    assert [document.generations[ORDERS.id].generation for document in (first, second)] == [1, 2]
    assert settle(ring.store, manifest, base, [], ()) == second == read_local(ring.store, CLUSTER, 2)


def test_a_record_that_cannot_be_read_is_told_and_holds_up_no_other(ring: Ring) -> None:
    ring.ship("a", 1, 5, b"\x01nonsense")
    ring.ship("b", 1, 5, truncated(1, 10, 1))
    document = ring.batch()
    assert document.opened == [ORDERS.id]
    assert [text.split(":")[0] for text in document.not_understood] == [ring.ref("a", 1).incoming]


# --- segments that grow


def test_parts_are_read_again_as_long_as_the_whole_file_is_not_there(ring: Ring) -> None:
    first = ring.part("a", 1, 0, 100, 1)
    ring.batch()
    ring.part("a", 1, 100, 200, 4, truncated(1, 50, 3))
    document = ring.batch()
    assert reread(document) == {"a 1": {7: 50}}
    tail = document.rereads[0].segment.tail
    assert tail is not None
    assert ([part.object for part in tail.parts], tail.after, tail.header) == ([first], None, None)
    # The rest comes with the whole file, and what came before it with parts: read again is those.
    ring.ship("a", 1, 9, truncated(1, 150, 8))
    document = ring.batch()
    assert reread(document) == {"a 1": {7: 150}}
    assert document.rereads[0].segment.grows
    assert list(ring.store.list("cdc_parts/")) == []
    ring.ship("a", 2, 14, truncated(1, 160, 12))
    document = ring.batch()
    assert [each.segment.object.split("/")[0] for each in document.rereads] == ["cdc_archive"]


def test_what_was_taken_in_part_by_part_opens_nothing_anew(ring: Ring) -> None:
    ring.part("a", 1, 0, 100, 1)
    ring.batch()
    ring.part("a", 1, 100, 200, 4, truncated(1, 50, 3))
    assert ring.batch().opened == [ORDERS.id]
    ring.part("a", 1, 200, 300, 5)
    ring.part("b", 1, 0, 10, 2, truncated(1, 5, 3))
    assert ring.batch().opened == [], "nothing of that node was judged before"
    ring.ship("a", 1, 9)
    assert (ring.batch().opened, list(ring.store.list("cdc_parts/ring/dc1/a"))) == ([], [])


@pytest.mark.advice("Restore them, or put the whole segment at")
def test_parts_that_are_gone_though_they_are_needed_are_an_error(ring: Ring) -> None:
    name = ring.part("a", 1, 0, 100, 1)
    ring.batch()
    ring.store.delete(name)
    ring.ship("a", 2, 4, truncated(1, 50, 3))
    with pytest.raises(BatchError, match="ingested frames are missing"):
        ring.batch()
    # The batch is planned already; what was to be read again may lie there as a whole.
    ring.ship("a", 1, 3)
    document = ring.batch()
    assert [each.segment.object for each in document.rereads] == [ring.ref("a", 1).incoming]


def test_parts_that_went_since_the_document_was_made_are_decided_anew(ring: Ring) -> None:
    name = ring.part("a", 1, 0, 100, 1)
    ring.batch()
    ring.part("a", 1, 100, 200, 4, truncated(1, 50, 3))
    manifest = ring.plan()
    base = Sealed.read(ring.store, layout.batch_object(CLUSTER, manifest.base, "sealed"))
    first = settle(ring.store, manifest, base, ring.rows(manifest), ring.captured)
    assert settle(ring.store, manifest, base, ring.rows(manifest), ring.captured) == first
    ring.store.put(name, ring.store.read(name))
    assert settle(ring.store, manifest, base, ring.rows(manifest), ring.captured) == first, "the same bytes are the same part"
    ring.store.delete(name)
    ring.store.put(name, b"x" * 100)
    again = settle(ring.store, manifest, base, ring.rows(manifest), ring.captured)
    assert again.generations[ORDERS.id].generation == first.generations[ORDERS.id].generation + 1
    assert reread(again) == reread(first)
