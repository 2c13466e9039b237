"""Erasing a key from the bucket's objects: what is cut out, what stays, and what is noted of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shippers.faults import FaultyStore
from tests.spark_jobs.synthetic import CLUSTER, ORDERS, SCHEMA, i32, insert, micros, seconds
from writetime.cassandra.commitlog import redact
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.model import (
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    Row,
)
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.types.byte_comparable import RowKeys, record_key
from writetime.errors import BatchBusy, PreconditionFailed
from writetime.pipeline import archive_packing, archiver, erase, erasures, rebuild
from writetime.pipeline.documents import LedgerEntry, SegmentInput, SegmentOutcome
from writetime.pipeline.erasures import Erasure, Request
from writetime.pipeline.planner import plan_erase
from writetime.pipeline.quarantine import frame_ranges
from writetime.storage import layout, open_store, segment_object
from writetime.storage.store import Store

KEY, OTHER = i32(0x5EC2E7A9), i32(1)
SALT = bytes(32)
UNTIL = micros(100)
NOTES = replace(ORDERS, name="notes", id=UUID(int=5), cdc=True)
_PROPOSALS = {"row_key": Column("row_key", "partition_key", "blob", 0), "p": Column("p", "regular", "blob")}
PAXOS = Table("system", "paxos", UUID(int=9), _PROPOSALS)
BOTH = Schema(tables={**SCHEMA.tables, NOTES.id: NOTES})
KEYS = RowKeys(ORDERS, {})


def erasure(row: bytes | None = None, *, until: int = UNTIL, number: int = 1) -> Erasure:
    hashed = None if row is None else erasures.digest(SALT, KEY, row).hex()
    return Erasure(
        number=number,
        table="shop.orders",
        table_ids=[ORDERS.id],
        partition=erasures.digest(SALT, KEY).hex(),
        row=hashed,
        until=until,
        at=datetime.now(UTC),
        by="a test",
    )


def search(row: bytes | None = None) -> erase.Search:
    erased = erasures.erased_of([erasure(row)], SALT)
    return erase.Search(BOTH, frozenset({ORDERS.id, NOTES.id}), (ORDERS.id,), KEY, erased, row)


def written(key: bytes, line: int, at: float, of: UUID = ORDERS.id, name: int = 7) -> PartitionUpdate:
    row = Row((i32(line),), Liveness(micros(at)), cells=(Cell("name", micros(at), i32(name)),))
    return PartitionUpdate(of, key, rows=(row,))


def mutation(*updates: PartitionUpdate, version: int = 7, flags: int | None = None) -> bytes:
    return encode_mutation(Mutation(updates, flags), BOTH, version=version)


# --- what is left of a mutation


def test_of_a_mutation_the_other_tables_stay_to_the_byte() -> None:
    mine, other = written(KEY, 1, 1), written(KEY, 1, 1, NOTES.id)
    assert search().change(mutation(mine, other), 7) == mutation(other)
    assert search().change(mutation(mine), 7) == b""
    assert search().change(mutation(other), 7) is None
    assert search().change(mutation(written(OTHER, 1, 1)), 7) is None


@pytest.mark.parametrize("epoch", [0, 300, 2**40, -1])
def test_of_a_mutation_with_epochs_flags_and_the_epochs_of_others_stay(epoch: int) -> None:
    mine, other = (replace(written(KEY, 1, 1, of), epoch=epoch) for of in (ORDERS.id, NOTES.id))
    assert search().change(mutation(mine, other, version=9, flags=1), 9) == mutation(other, version=9, flags=1)
    assert search().change(mutation(mine, version=9), 9) == b""
    assert search().change(mutation(replace(written(OTHER, 1, 1), epoch=epoch), version=9), 9) is None
    both = replace(mine, rows=(*mine.rows, *written(KEY, 2, 101).rows))
    left = replace(written(KEY, 2, 101), epoch=epoch)
    assert search().change(mutation(both, version=9), 9) == mutation(left, version=9)


def test_what_was_written_later_stays() -> None:
    both = replace(written(KEY, 1, 1), rows=(*written(KEY, 1, 1).rows, *written(KEY, 2, 101).rows))
    assert search().change(mutation(both), 7) == mutation(written(KEY, 2, 101))
    assert search().change(mutation(written(KEY, 1, 101)), 7) is None


def test_one_row_leaves_the_others_and_what_deletes_the_partition() -> None:
    head = PartitionUpdate(ORDERS.id, KEY, DeletionTime(micros(1), seconds(1)))
    rows = (*written(KEY, 1, 2).rows, *written(KEY, 2, 2).rows)
    looking = search(KEYS.key((i32(2),)))
    assert looking.change(mutation(replace(head, rows=rows)), 7) == mutation(replace(head, rows=rows[:1]))
    assert looking.change(mutation(written(KEY, 2, 2)), 7) == b""
    assert looking.change(mutation(head), 7) is None


def test_copies_of_mutations_in_tables_of_the_ring_go_whole() -> None:
    """A proposal of a lightweight transaction holds the update; nobody has told what system.paxos is."""
    held = mutation(written(KEY, 1, 1))[1:]
    schema = Schema(tables={PAXOS.id: PAXOS})
    proposal = Mutation((PartitionUpdate(PAXOS.id, KEY, rows=(Row((), cells=(Cell("p", 1, held),)),)),))
    assert search().change(encode_mutation(proposal, schema), 7) == b""
    of_others = replace(proposal.updates[0], rows=(Row((), cells=(Cell("p", 1, mutation(written(OTHER, 1, 1))[1:]),)),))
    assert search().change(encode_mutation(Mutation((of_others,)), schema), 7) is None


times = st.integers(1, 200)


@given(st.lists(st.tuples(st.sampled_from([KEY, OTHER]), st.integers(1, 3), times), min_size=1, max_size=6), st.booleans())
def test_what_a_batch_leaves_out_is_what_is_cut_out(writes: list[tuple[bytes, int, int]], one_row: bool) -> None:
    """A late copy of a mutation comes to the same as the archived one from which the key was erased."""
    row = KEYS.key((i32(2),)) if one_row else None
    looking = search(row)
    erased = looking.erased[ORDERS.id.bytes]
    for key, line, at in writes:
        update = written(key, line, at)
        body = mutation(update)
        left = erased.left(update, KEYS, counter=False)
        cut = looking.change(body, 7)
        assert (cut is None) == (left is update)
        if cut:
            assert decode_mutation(cut, BOTH).updates == (left,)
        goes = key == KEY and micros(at) <= UNTIL and (not one_row or line == 2)
        assert (left is None) == goes
        assert erased.concerns(key) == (key == KEY)


# --- the archive


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "bucket"))


REF = layout.SegmentRef(layout.NodeName(CLUSTER, "dc1", "a"), layout.SegmentName(id=7, version=7))
SEGMENT = encode_segment(7, 7, [insert(1, 1, 1, name=1), mutation(written(KEY, 1, 1)), insert(2, 1, 1, name=2)], size=4096)


def put_into_archive(store: Store, content: bytes = SEGMENT) -> str:
    """As a batch does; the segment's name in the archive."""
    info = store.put(REF.incoming, content, metadata={"sealed_at": "2026-05-04T12:00:00+00:00"})
    segment = SegmentInput.from_object(info)
    outcome = SegmentOutcome(object=segment.object, frames=3)
    assert archiver._settle(store, 1, segment, outcome) == "archived"
    return segment.ref.archived(segment.sealed_at)


def entry(store: Store) -> LedgerEntry:
    found = LedgerEntry.read(store, REF.ledger)
    assert found is not None
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_a_segment_is_replaced_and_known_by_both_its_contents(store: Store, *, packed: bool) -> None:
    name = put_into_archive(store)
    before = entry(store)
    if packed:
        archive_packing.pack(store, name, 3)
        name = layout.packed(name)
    found = erase.from_segment(store, name, search())
    assert (found.frames, found.trouble) == (1, "")
    content = segment_object.read(store, name)
    assert (KEY in content, len(content)) == (False, len(SEGMENT))
    old = scan(SEGMENT)
    others = [frame for frame in old.frames if KEY not in old.body(frame)]
    left = scan(content)
    assert [frame for frame in left.frames if not redact.is_filler(left.body(frame))] == others
    after = entry(store)
    assert after.erased_from is not None
    assert (after.erased_from.size, after.erased_from.crc32c) == (before.size, before.crc32c)
    assert rebuild.look(store, CLUSTER).whole
    # Once more there is nothing to do; and nothing comes of the same bytes if they are put again.
    assert erase.from_segment(store, name, search()).frames == 0
    assert entry(store) == after
    put_into_archive(store)
    assert store.head(REF.incoming) is None
    assert rebuild.look(store, CLUSTER).whole
    assert [info.name for info in store.list("cdc_archive/")] == [name]


class Meanwhile(FaultyStore):
    """A store in which something happens right before a request."""

    def __init__(self, store: Store, method: str, name: str, happens: Callable[[], object]) -> None:
        super().__init__(store)
        self._at, self._happens = (method, name), happens

    def _meanwhile(self, method: str, name: str) -> None:
        if (method, name) == self._at:
            self._at = ("", "")
            self._happens()

    def put(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._meanwhile("put", name)
        return super().put(name, *args, **kwargs)

    def head(self, name: str) -> Any:
        self._meanwhile("head", name)
        return super().head(name)

    def delete(self, name: str, **kwargs: Any) -> None:
        self._meanwhile("delete", name)
        super().delete(name, **kwargs)


def is_erased_and_packed_once(store: Store, name: str) -> None:
    archive_packing.pack(store, name, 3)
    assert [info.name for info in store.list("cdc_archive/")] == [layout.packed(name)]
    assert KEY not in segment_object.read(store, layout.packed(name))
    assert rebuild.look(store, CLUSTER).whole


@pytest.mark.parametrize("request_of_erasure", ["head", "put"])
def test_a_segment_that_is_packed_since_it_was_listed(store: Store, request_of_erasure: str) -> None:
    name = put_into_archive(store)
    meanwhile = Meanwhile(store, request_of_erasure, name, lambda: archive_packing.pack(store, name, 3))
    found = erase.from_segment(meanwhile, name, search())
    assert (found.frames, found.trouble) == (1, "")
    assert [info.name for info in store.list("cdc_archive/")] == [layout.packed(name)]
    assert KEY not in segment_object.read(store, layout.packed(name))


@pytest.mark.parametrize(("method", "packed"), [("put", True), ("head", False), ("delete", False)])
def test_a_key_that_is_erased_while_its_segment_is_packed(store: Store, method: str, *, packed: bool) -> None:
    name = put_into_archive(store)
    at = layout.packed(name) if packed or method == "head" else name
    meanwhile = Meanwhile(store, method, at, lambda: erase.from_segment(store, name, search()))
    with suppress(PreconditionFailed):
        archive_packing.pack(meanwhile, name, 3)
    assert [info.name for info in store.list("cdc_archive/") if KEY in segment_object.read(store, info.name)] == []
    is_erased_and_packed_once(store, name)


def test_a_packed_form_of_before_an_erasure_is_made_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    name = put_into_archive(store)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    meanwhile = Meanwhile(store, "put", layout.packed(name), lambda: erase.from_segment(store, name, search()))
    with monkeypatch.context() as patch:
        patch.setattr(archive_packing, "_expect_unchanged", die)
        with pytest.raises(KeyboardInterrupt):
            archive_packing.pack(meanwhile, name, 3)
    is_erased_and_packed_once(store, name)


@pytest.mark.parametrize("packed", [False, True])
def test_a_death_between_object_and_ledger(store: Store, monkeypatch: pytest.MonkeyPatch, *, packed: bool) -> None:
    name, pinned = put_into_archive(store), entry(store).crc32c
    plain = name
    if packed:
        archive_packing.pack(store, name, 3)
        name = layout.packed(name)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(erase, "_note", die)
        with pytest.raises(KeyboardInterrupt):
            erase.from_segment(store, name, search())
    assert entry(store).crc32c == pinned
    assert rebuild.look(store, CLUSTER).whole
    assert KEY not in segment_object.read_pinned(store, plain, pinned), "a batch that was planned before goes on"
    assert erase.from_segment(store, name, search()).frames == 0
    assert entry(store).crc32c != pinned
    assert rebuild.look(store, CLUSTER).whole
    assert KEY not in segment_object.read_pinned(store, plain, entry(store).crc32c)


def test_bytes_that_somebody_has_changed_are_not_taken_for_an_erasure(store: Store) -> None:
    name = put_into_archive(store)
    info = store.head(name)
    assert info is not None
    store.put(name, SEGMENT.replace(KEY, OTHER), metadata=info.metadata)
    erase.from_segment(store, name, search())
    assert rebuild.look(store, CLUSTER).changed == [name]


def test_a_damaged_range_that_may_hold_the_key_is_told(store: Store) -> None:
    damaged = bytearray(SEGMENT)
    damaged[damaged.index(KEY) + 12] ^= 1
    name = put_into_archive(store, bytes(damaged))
    found = erase.from_segment(store, name, search())
    assert "a damaged range" in found.trouble
    assert segment_object.read(store, name) == bytes(damaged)


# --- quarantine, notes, requests


def test_records_of_quarantine(store: Store) -> None:
    mine, other = mutation(written(KEY, 1, 1)), mutation(written(OTHER, 1, 1))
    for stem, content in {
        REF.quarantined(100, 52): mine,
        REF.quarantined(200, 52): other,
        REF.quarantined(300, 90, 2): frame_ranges.pack([mine, other]),
    }.items():
        store.put(f"{stem}.bin", content)
        store.put(f"{stem}.json", b'{"kind": "UnknownColumn"}')
    found = list(erase.quarantine_records(store, CLUSTER, search()))
    assert [record.left for record in found] == [b"", frame_ranges.pack([other])]
    for record in found:
        erase.erase_record(store, record, 4)
    assert list(erase.quarantine_records(store, CLUSTER, search())) == []
    assert store.head(f"{REF.quarantined(100, 52)}.bin") is None
    assert json.loads(store.read(f"{REF.quarantined(100, 52)}.json")) == {"kind": "UnknownColumn", "erased_in": 4}
    assert store.read(f"{REF.quarantined(200, 52)}.bin") == other


def test_notes_of_rows_to_be_read_again(store: Store) -> None:
    keys = [record_key(KEY), record_key(KEY, KEYS.key((i32(1),))), record_key(OTHER)]
    name = layout.incomplete_rows(CLUSTER, 3, str(ORDERS.id), 0)
    document = {"batch": 3, "table_id": str(ORDERS.id), "keys": [key.hex() for key in keys]}
    store.put(name, json.dumps(document).encode())
    assert erase.incomplete_rows(store, CLUSTER, search(), erase=False) == 1
    assert json.loads(store.read(name)) == document
    assert erase.incomplete_rows(store, CLUSTER, search(), erase=True) == 1
    assert json.loads(store.read(name)) == {**document, "keys": [record_key(OTHER).hex()]}
    assert erase.incomplete_rows(store, CLUSTER, search(), erase=True) == 0


def test_erasures_of_a_key_add_up_and_say_nothing_of_it(store: Store) -> None:
    assert erasures.load(store, CLUSTER) == {}
    salted = erasures.salt(store, CLUSTER)
    assert erasures.salt(store, CLUSTER) == salted
    for number, until in ((3, 30), (5, 50), (4, 40)):
        erasures.note(store, CLUSTER, erasure(number=number, until=until))
    assert erasures.note(store, CLUSTER, erasure(number=3, until=99)).until == 30
    assert KEY.hex() not in store.read(layout.erasure(CLUSTER, 3)).decode()
    hashed = erasures.digest(SALT, KEY)
    assert erasures.load(store, CLUSTER)[ORDERS.id.bytes].partitions == {hashed: 50}
    assert erasures.load(store, CLUSTER, before=5)[ORDERS.id.bytes].partitions == {hashed: 40}
    assert erasures.digest(SALT, KEY) != erasures.digest(salted, KEY)


def test_an_erasure_that_is_revoked_leaves_nothing_out(store: Store) -> None:
    erasures.revoke(store, CLUSTER, 3, by="ann")
    assert erasures.note(store, CLUSTER, erasure(number=3)).revoked, "a late run of a voided batch"
    assert erasures.load(store, CLUSTER) == {}
    erasures.note(store, CLUSTER, erasure(number=4))
    erasures.revoke(store, CLUSTER, 4, by="ann")
    assert set(erasures.load(store, CLUSTER)) == {ORDERS.id.bytes}, "data may be erased already"


def test_a_request_is_forgotten_once_its_batch_is_over(store: Store) -> None:
    request = Request.of("shop.orders", KEY, (None, i32(1)), "a test")
    assert (request.key, request.row) == (KEY, (None, i32(1)))
    sealed, of_open = (request.model_copy(update={"number": number}) for number in (4, 5))
    for each in (sealed, of_open):
        store.put(layout.erasure_request(CLUSTER, str(UUID(int=each.number))), each.to_bytes())
    erasures.forget_requests(store, CLUSTER, 4)
    assert erasures.read_request(store, CLUSTER, UUID(int=4)) is None
    found = erasures.read_request(store, CLUSTER, UUID(int=5))
    assert found is not None
    assert found.is_of(request)


def test_a_key_is_erased_as_it_was_when_it_was_looked_for(store: Store) -> None:
    request = Request.of("shop.orders", KEY, None, "a test")
    with pytest.raises(BatchBusy, match="batch 0 was sealed after the key was looked for"):
        plan_erase(store, CLUSTER, request, 1, now=datetime.now(UTC))
