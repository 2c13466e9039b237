"""Segments with removed mutations: the others are read as before, at the same positions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.commitlog.packed import KEYS, PACKINGS, small_packed
from tests.examples import examples
from writetime.cassandra.commitlog import redact
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import Frame, Scan, scan
from writetime.cassandra.model import PartitionUpdate
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.system_tables import ERASED, TABLES
from writetime.errors import UnsupportedSegment

bodies = st.lists(st.binary(min_size=10, max_size=60), min_size=1, max_size=12)


def kept(found: Scan) -> list[Frame]:
    """All frames except fillers."""
    return [frame for frame in found.frames if not redact.is_filler(found.body(frame))]


def read(segment: bytes) -> Scan:
    """Both engines agree; the segment has no damage."""
    found = scan(segment, engine="python")
    assert found.problems == []
    assert list(scan(segment, engine="numba").frames) == list(found.frames)
    return found


@settings(max_examples=examples(300))
@given(bodies, st.data(), st.integers(0, 4), st.integers(0, 200), st.sampled_from([7, 9]))
def test_the_others_stand_where_they_stood(made: list[bytes], data: st.DataObject, per_section: int, room: int, version: int) -> None:
    segment = encode_segment(7, version, made, per_section=per_section)
    segment += bytes(room)
    before = read(segment)
    gone = data.draw(st.sets(st.integers(0, len(made) - 1)))
    after = redact.without(before, dict.fromkeys(gone, b""))
    assert len(after) == len(segment)
    assert kept(read(after)) == [frame for number, frame in enumerate(before.frames) if number not in gone]


@settings(max_examples=examples(300))
@given(bodies, st.data(), st.integers(0, 4))
def test_what_becomes_shorter_is_read_and_leaves_nothing_of_itself(made: list[bytes], data: st.DataObject, per_section: int) -> None:
    before = read(encode_segment(7, 7, made, per_section=per_section))
    chosen = data.draw(st.sets(st.integers(0, len(made) - 1)))
    shorter = {number: bytes([number]) * data.draw(st.integers(10, len(made[number]))) for number in chosen}
    found = read(redact.without(before, shorter))
    assert [found.body(frame) for frame in kept(found)] == [shorter.get(number, body) for number, body in enumerate(made)]


def test_the_bytes_are_gone() -> None:
    secret = b"a value of the key that goes"
    segment = encode_segment(7, 7, [b"one that stays", secret, b"another one"], size=500)
    found = read(segment)
    changed = redact.changes(found, lambda body: b"" if body == secret else None)
    after = redact.without(found, changed)
    assert list(changed) == [1]
    assert secret in segment
    assert secret not in after
    assert redact.without(found, {}) is segment


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_segments(packing: str) -> None:
    packed = small_packed(packing)
    before = scan(packed.file, keys=KEYS)
    made = redact.without(before, {1: b""}, keys=KEYS)
    after = scan(made, keys=KEYS) if packing == "encrypted" else read(made)
    assert (after.problems, after.descriptor.encrypted) == ([], packing == "encrypted")
    assert kept(after) == [frame for number, frame in enumerate(before.frames) if number != 1]
    assert [after.body(frame) for frame in kept(after)] == [before.body(frame) for number, frame in enumerate(before.frames) if number != 1]


def test_what_a_crashed_node_had_not_synced_is_zeroed() -> None:
    segment = encode_segment(7, 7, [b"one that stays"])
    torn = segment + bytes(8) + b"half of a frame with the key"
    found = scan(torn)
    assert found.problems
    after = redact.without(found, {}, lambda lost: b"the key" in lost)
    assert after == segment + bytes(len(torn) - len(segment))
    assert redact.without(found, {}, lambda lost: b"no key" in lost) == torn


def test_damage_that_holds_the_key_is_left_to_a_person() -> None:
    segment = bytearray(encode_segment(7, 7, [b"one with the key", b"one that stays"]))
    segment[segment.index(b"one with")] ^= 1
    with pytest.raises(UnsupportedSegment, match="damaged range"):
        redact.without(scan(bytes(segment)), {}, lambda lost: b"the key" in lost)


@given(st.one_of(st.integers(21, 400), st.integers(16_000, 17_000), st.just(2_200_000)), st.sampled_from([7, 9]))
def test_fillers_of_any_size(size: int, version: int) -> None:
    body = redact._filler(size, version)
    (update,) = decode_mutation(body, Schema(tables=TABLES), version=version).updates
    assert (len(body), update) == (size, PartitionUpdate(ERASED.id, update.key, epoch=0 if version == 9 else None))
    assert not update.key.strip(b"\0")
    assert redact.is_filler(body)
