"""Segments that are taken in while they grow: part by part and then the rest of the file, they give what the
whole file gives, once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proof.decoder import packed
from spark_jobs.stages.scan import Routes
from tests.cassandra.commitlog.packed import COMPRESSORS, repack
from tests.examples import examples
from tests.spark_jobs.examples import ORDERS, SCHEMA, insert
from tests.spark_jobs.growing import NOW, Batches, ends, laid, put_part
from tests.spark_jobs.synthetic import CLUSTER as RING_CLUSTER
from tests.spark_jobs.synthetic import ORDERS as ORDERS_OF_RING
from tests.spark_jobs.synthetic import START, Node, Ring, delete_row, folded, micros
from tests.spark_jobs.synthetic import insert as row_insert
from tests.spark_jobs.synthetic import update as row_update
from writetime.cassandra.commitlog.encode import encode_mutation
from writetime.cassandra.model import Cell, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import LOCAL, TABLES
from writetime.pipeline.archiver import sweep
from writetime.pipeline.batch_report import batch_text
from writetime.pipeline.documents import LedgerEntry, Manifest, Mark, Sealed
from writetime.pipeline.planner import plan_ingest, read_local
from writetime.pipeline.quarantine import frame_ranges
from writetime.storage import layout, open_store, segment_parts
from writetime.storage.checksum import crc32c
from writetime.storage.store import Store

CLUSTER = "c"
NODE = layout.NodeName(CLUSTER, "dc1", "host-1")
ROUTES = Routes(SCHEMA, {ORDERS.id: 4}, [])
NOTHING_KNOWN = Routes(Schema(tables={}), {}, [])
BODIES = [encode_mutation(insert(ORDERS, number, {"name": "n" * (number % 7)}, number + 1), SCHEMA) for number in range(24)]
WHOLE = laid(7, BODIES, range(len(BODIES)))


@pytest.fixture(autouse=True)
def _frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many frames of one unknown table are not kept together: how many there are is what differs here."""
    monkeypatch.setattr(frame_ranges, "NAMED", 1 << 30)


def ref(segment: int = 7) -> layout.SegmentRef:
    return layout.SegmentRef(NODE, layout.SegmentName(segment, 7))


def batches(folder: Path, keystore: Path | None = None) -> Batches:
    url = str(folder / "bucket")
    return Batches(url, open_store(url), CLUSTER, keystore)


def ship(store: Store, data: bytes, of: layout.SegmentRef | None = None) -> None:
    store.put((of or ref()).incoming, data, if_generation=0, metadata={"sealed_at": NOW.isoformat()})


def whole(folder: Path, data: bytes, routes: Routes, of: layout.SegmentRef, keystore: Path | None = None) -> list[tuple[int, int, bytes]]:
    """What the whole file alone gives."""
    alone = batches(folder / "alone", keystore)
    ship(alone.store, data, of)
    alone.run(routes)
    return alone.frames[0]


def check(each: Batches, data: bytes, cuts: Sequence[int], routes: Routes, of: layout.SegmentRef) -> None:
    """Ship and take in the file up to each of the cuts (numbers of sections), then as a whole."""
    places, start, frames = ends(data), 0, 0
    for cut in cuts:
        put_part(each.store, of, data, start, places[cut - 1])
        start = places[cut - 1]
        sealed = each.run(routes)
        assert sealed is not None
        frames += sealed.segments[0].frames
        mark = sealed.growing[of.growing]
        assert (mark.position, mark.crc32c, mark.frames, mark.sound) == (start, crc32c(data[:start]), frames, True)
        entry = LedgerEntry.read(each.store, of.ledger)
        assert entry is not None
        assert (entry.state, entry.position, entry.frames, entry.object, entry.history) == ("growing", start, frames, of.growing, [])
        assert each.run(routes) is None, "it has all been taken in"
    ship(each.store, data, of)
    sealed = each.run(routes)
    assert sealed is not None
    (outcome,) = sealed.segments
    assert (outcome.skipped, outcome.differs, outcome.mark) == (frames, False, None)
    assert sealed.growing == {}
    entry = LedgerEntry.read(each.store, of.ledger)
    assert entry is not None
    assert (entry.state, entry.position, entry.frames) == ("archived", None, frames + outcome.frames)
    assert list(each.store.list("cdc_parts/")) == list(each.store.list("cdc/")) == []
    assert each.run(routes) is None


@pytest.mark.parametrize("kind", [None, *(recording.name for recording in packed.recordings())])
def test_part_by_part_it_is_the_same(kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of real nodes, packed in every way: nothing of the schema is known, so that every frame shows with its
    bytes."""
    keystore, data, of, routes = None, WHOLE, ref(), ROUTES
    if kind is not None:
        recording = packed.Packed(packed.FOLDER / kind)
        path = max(recording.stage(tmp_path / kind), key=lambda path: len(ends(path.read_bytes())))
        data, of, routes = path.read_bytes(), layout.SegmentRef(NODE, layout.SegmentName.parse(path.name)), NOTHING_KNOWN
        if (keystore := recording.keystore) is not None:
            monkeypatch.setenv("WRITETIME_KEYSTORE_PASSWORD", recording.password)
    each, count = batches(tmp_path, keystore), len(ends(data))
    check(each, data, sorted({1, count // 3, count // 2}), routes, of)
    expected = whole(tmp_path, data, routes, of, keystore)
    assert sorted(frame for found in each.frames for frame in found) == expected
    assert len(expected) > 20


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, len(BODIES)), max_size=4), packing=st.sampled_from(["", *COMPRESSORS]))
def test_wherever_it_is_cut(cuts: set[int], packing: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = repack(WHOLE, packing) if packing else WHOLE
    folder = tmp_path_factory.mktemp("cut")
    each = batches(folder)
    check(each, data, sorted(cuts), ROUTES, ref())
    assert sorted(frame for found in each.frames for frame in found) == whole(folder, data, ROUTES, ref())


def test_a_file_that_begins_with_other_bytes_is_taken_in_whole(tmp_path: Path) -> None:
    each, other = batches(tmp_path), laid(7, [*BODIES[:3], BODIES[9], *BODIES[4:]], range(len(BODIES)))
    put_part(each.store, ref(), other, 0, ends(other)[7])
    each.run(ROUTES)
    ship(each.store, WHOLE)
    sealed = each.run(ROUTES)
    assert sealed is not None
    assert each.frames[-1] == whole(tmp_path, WHOLE, ROUTES, ref())
    assert (sealed.segments[0].differs, sealed.segments[0].skipped, sealed.segments[0].ok) == (True, 0, True)
    assert f"ALARM: {ref().incoming} does not begin with its parts; the whole file was ingested" in batch_text(sealed)


def test_a_file_that_is_shorter_than_its_parts_differs(tmp_path: Path) -> None:
    each, short = batches(tmp_path), laid(7, BODIES[:5], range(5))
    put_part(each.store, ref(), WHOLE, 0, ends(WHOLE)[9])
    each.run(ROUTES)
    ship(each.store, short)
    sealed = each.run(ROUTES)
    assert sealed is not None
    assert sealed.segments[0].differs
    assert each.frames[-1] == whole(tmp_path, short, ROUTES, ref())


def test_a_part_behind_a_gap_waits(tmp_path: Path) -> None:
    each, places = batches(tmp_path), ends(WHOLE)
    put_part(each.store, ref(), WHOLE, places[3], places[5])
    assert each.run(ROUTES) is None, "where it begins is not there"
    put_part(each.store, ref(), WHOLE, 0, places[2])
    put_part(each.store, ref(), WHOLE, places[7], places[9])
    sealed = each.run(ROUTES)
    assert sealed is not None
    assert sealed.growing[ref().growing].position == places[2]
    put_part(each.store, ref(), WHOLE, places[2], places[3])
    sealed = each.run(ROUTES)
    assert sealed is not None
    assert sealed.growing[ref().growing].position == places[5]
    assert sum(map(len, each.frames)) == 6


def test_parts_that_overlap_give_nothing_twice(tmp_path: Path) -> None:
    each, places = batches(tmp_path), ends(WHOLE)
    put_part(each.store, ref(), WHOLE, 0, places[2])
    each.run(ROUTES)
    put_part(each.store, ref(), WHOLE, 0, places[5])
    put_part(each.store, ref(), WHOLE, places[4], places[8])
    each.run(ROUTES)
    assert [len(found) for found in each.frames] == [3, 6]
    assert len({position for found in each.frames for _, position, _ in found}) == 9


def test_parts_of_which_the_whole_file_is_there_are_left_alone_and_swept(tmp_path: Path) -> None:
    each, places = batches(tmp_path), ends(WHOLE)
    put_part(each.store, ref(), WHOLE, 0, places[2])
    ship(each.store, WHOLE)
    each.run(ROUTES)
    assert each.frames == [whole(tmp_path, WHOLE, ROUTES, ref())]
    assert segment_parts.of(each.store, ref()) == []
    put_part(each.store, ref(), WHOLE, 0, places[3])
    alive = put_part(each.store, ref(8), laid(8, BODIES), 0, len(laid(8, BODIES)))
    each.run(ROUTES)
    assert {segment for segment, *_ in each.frames[-1]} == {8}
    assert sweep(each.store, CLUSTER) == places[3]
    assert [info.name for info in each.store.list("cdc_parts/")] == [alive]


def test_a_part_that_is_not_what_its_name_says_is_no_part(tmp_path: Path) -> None:
    each = batches(tmp_path)
    each.store.put(ref().part(0, ends(WHOLE)[3]), WHOLE[: ends(WHOLE)[2]])
    assert each.run(ROUTES) is None


@pytest.mark.parametrize(("mark", "taken"), [(Mark(position=20, logical=None, sound=False), False), (Mark(logical=20), True)])
def test_what_could_not_be_read_waits_for_the_whole_file(mark: Mark, taken: bool, tmp_path: Path) -> None:
    each = batches(tmp_path)
    each.sealed.append(Sealed(number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={}, growing={ref().growing: mark}))
    each.store.put(layout.batch_object(CLUSTER, 1, "sealed"), each.sealed[0].to_bytes())
    each.store.put(layout.batch_object(CLUSTER, 1, "archived"), b"{}")
    manifest = {"number": 1, "kind": "ingest", "cluster": CLUSTER, "created_at": NOW, "now": 1, "base": 0, "segments": []}
    each.store.put(layout.batch_object(CLUSTER, 1, "manifest"), Manifest.model_validate(manifest).to_bytes())
    put_part(each.store, ref(), WHOLE, 0, ends(WHOLE)[3])
    planned = plan_ingest(each.store, CLUSTER, now=NOW)
    assert (planned is not None) == taken
    ship(each.store, WHOLE, ref(9))
    ship(each.store, WHOLE)
    if not taken:
        planned = plan_ingest(each.store, CLUSTER, now=NOW)
        assert planned is not None
        assert [segment.tail for segment in planned.segments] == [None, None]


# --- the whole job


@dataclass
class Tailing(Ring):
    """A ring whose shippers ship what is synced. `cuts`: where each node's sections end, as numbers of
    bodies."""

    cuts: dict[str, list[int]] = field(default_factory=dict)
    shipped: dict[str, int] = field(default_factory=dict)

    def ref(self, host: str) -> layout.SegmentRef:
        return layout.SegmentRef(layout.NodeName(RING_CLUSTER, "dc1", host), layout.SegmentName(id=self.nodes[host].segment, version=7))

    def log_of(self, host: str) -> bytes:
        return laid(self.nodes[host].segment, self.nodes[host].bodies, self.cuts.get(host, ()))

    def part(self, at: float, *hosts: str, damage: bool = False) -> None:
        """The nodes sync what they have, and it is shipped."""
        for host in hosts or tuple(self.nodes):
            self.cuts.setdefault(host, []).append(len(self.nodes[host].bodies))
            data, start = self.log_of(host), self.shipped.get(host, 0)
            self.shipped[host] = len(data)
            if damage:
                data = data[:-1] + bytes([data[-1] ^ 1])
            put_part(self.store, self.ref(host), data, start, len(data), START + timedelta(seconds=at))

    def truncate(self, at: float, *hosts: str) -> None:
        for host in hosts or tuple(self.nodes):
            place, value = len(self.log_of(host)), micros(at) // 1000
            cell = Cell("truncated_at", micros(at), struct.pack(">qiq", self.nodes[host].segment, place, value), ORDERS_OF_RING.id.bytes)
            update = PartitionUpdate(LOCAL.id, b"local", rows=(Row((), cells=(cell,)),))
            self.nodes[host].log(encode_mutation(Mutation((update,)), Schema(tables=TABLES)))

    def finish_and_ship(self, at: float, *hosts: str) -> None:
        """The nodes finish their segments, whose whole files are shipped."""
        for host in hosts or tuple(self.nodes):
            data = self.log_of(host)
            sealed_at = (START + timedelta(seconds=at)).isoformat()
            self.store.put(self.ref(host).incoming, data, if_generation=0, metadata={"sealed_at": sealed_at})
            self.join_again(host)

    def join_again(self, host: str) -> None:
        self.cuts.pop(host, None)
        self.shipped.pop(host, None)
        self.nodes[host] = Node(host, self.nodes[host].segment + 1)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_event_comes_once_whether_with_a_part_or_with_the_file(tmp_path: Path) -> None:
    """One node ships tails, one does not, and a part of the third is damaged."""
    ring = Tailing.create(tmp_path, "a", "b", "c")
    ring.write(row_insert(1, 1, 1, name=1))
    ring.write(row_insert(2, 1, 2, name=2))
    ring.write(row_insert(9, 1, 2, name=9), "c")
    ring.part(3, "a")
    ring.part(3, "c", damage=True)
    first = ring.batch(100)
    assert first.events == 2
    marks = {host: first.growing[ring.ref(host).growing] for host in "ac"}
    assert {host: (mark.frames, mark.sound) for host, mark in marks.items()} == {"a": (4, True), "c": (4, False)}
    (problem,) = [problem for outcome in first.segments for problem in outcome.problems]
    assert problem.kind == "corrupt_frame"
    assert len(ring.store.read(problem.quarantined_as or "")) == problem.size
    for body in (row_update(1, 1, 4, name=3), delete_row(2, 1, 5), row_insert(3, 1, 6, name=5)):
        ring.write(body)
    ring.part(7, "a")
    assert ring.batch(101).events == 3
    ring.write(row_update(3, 1, 8, name=6))
    ring.write(row_insert(4, 1, 9, name=7))
    ring.finish_and_ship(40)
    last = ring.batch(200)
    assert last.growing == {}
    read = {outcome.object.split("/")[3]: (outcome.frames, outcome.skipped, outcome.differs) for outcome in last.segments}
    assert read == {"a": (2, 7, False), "b": (9, 0, False), "c": (10, 0, False)}, "what was damaged is read from its beginning"
    expected = {("c", 1), ("u", 1), ("c", 2), ("d", 2), ("c", 3), ("u", 3), ("c", 4), ("c", 9)}
    assert (len(ring.events()), {(event["op"], event["key"]["id"]) for event in ring.events()}) == (len(expected), expected)
    now = {(1, 1): {"name": 3}, (3, 1): {"name": 6}, (4, 1): {"name": 7}, (9, 1): {"name": 9}}
    assert ring.current() == folded(ring.events()) == now
    assert list(ring.store.list("cdc_parts/")) == []


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_truncate_reads_parts_again(tmp_path: Path) -> None:
    ring = Tailing.create(tmp_path, "a", "b")
    ring.write(row_insert(1, 1, 1, name=1))
    ring.part(2)
    ring.batch(100)
    # Told by one node only, whose note comes behind what the other wrote after it.
    ring.truncate(10, "a")
    ring.write(row_insert(2, 1, 11, name=2))
    ring.part(12)
    sealed = ring.batch(101)
    document = read_local(ring.store, RING_CLUSTER, sealed.number)
    both = {ring.ref("a").growing, ring.ref("b").growing}
    assert {reread.segment.object for reread in document.rereads} == both, "writetimes do not say that all of b's was before"
    assert ring.current() == {(2, 1): {"name": 2}}
    ring.finish_and_ship(40)
    sealed = ring.batch(102)
    assert (sealed.events, sealed.growing) == (0, {})
    assert ring.current() == {(2, 1): {"name": 2}} == folded(ring.events())
