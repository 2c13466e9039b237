"""Whole segments, valid and damaged. Every case runs with both engines."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from tests.cassandra.commitlog.examples import (
    RANGES_TABLE,
    SCHEMA,
    TTL_FRAME,
    V8_HEADER_AND_MARKER,
    body_of,
    insert,
    small_segment,
)
from writetime.cassandra.commitlog import frames, sections
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.frames import is_zero
from writetime.cassandra.commitlog.segment import (
    MOST_PROBLEMS,
    Ending,
    Engine,
    Scan,
    peek,
    scan,
)
from writetime.errors import CorruptDescriptor, CorruptFrame, MalformedMutation, NotASegment, TornTail, UnsupportedSegment, WritetimeError

SEGMENT = small_segment()
PADDED = small_segment(size=4096)
WHOLE = scan(SEGMENT, engine="python")
STARTS = [frame.start for frame in WHOLE.frames]
MARKERS = [20, STARTS[2] - 8, STARTS[4] - 8]


@pytest.fixture(params=["python", "numba"])
def engine(request: pytest.FixtureRequest) -> Engine:
    chosen: Engine = request.param
    return chosen


def flip(buf: bytes, position: int, mask: int = 0x10) -> bytes:
    changed = bytearray(buf)
    changed[position] ^= mask
    return bytes(changed)


def overwrite(buf: bytes, position: int, content: bytes) -> bytes:
    return buf[:position] + content + buf[position + len(content) :]


def kinds(found: Scan) -> list[tuple[str, int, int]]:
    return [(problem.kind, problem.position, problem.size) for problem in found.problems]


def numbers(found: Scan) -> list[int]:
    """Which of the small segment's frames were found."""
    return [STARTS.index(frame.start) for frame in found.frames]


def test_a_sound_segment(engine: Engine) -> None:
    found = scan(SEGMENT, name="CommitLog-7-4294967303.log", engine=engine)
    assert found.descriptor == Descriptor(7, 0x1_0000_0007)
    assert len(found.frames) == 6
    assert not found.problems
    assert found.end == len(SEGMENT)
    first = found.frames[0]
    assert (first.start, first.body_offset) == (28, 36)
    assert first.position == first.start + first.body_length + 12
    assert SEGMENT[first.body_offset : first.body_offset + first.body_length] == bytes(SEGMENT[36 : 36 + first.body_length])


def test_padding_is_no_problem(engine: Engine) -> None:
    found = scan(PADDED, engine=engine)
    assert (found.frames, found.problems, found.end) == (WHOLE.frames, [], len(SEGMENT))


def test_real_bytes(engine: Engine) -> None:
    """A real frame after a real header, with the marker for that position."""
    start = len(V8_HEADER_AND_MARKER)
    marker = sections.encode_marker(sections.id_crc(1_795_248_800_211), 20, start + len(TTL_FRAME))
    assert V8_HEADER_AND_MARKER[24:] == marker[4:]
    found = scan(V8_HEADER_AND_MARKER[:20] + marker + TTL_FRAME, engine=engine)
    assert [(frame.position, frame.body_length) for frame in found.frames] == [(start + len(TTL_FRAME), 0x34)]
    assert frames.encode_frame(body_of(TTL_FRAME)) == TTL_FRAME


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (Descriptor(7, 5).encode(), 20),
        (Descriptor(7, 5).encode() + b"\0" * 1000, 20),
        (encode_segment(5, 7, []), 20),
        (Descriptor(7, 5).encode() + sections.encode_marker(sections.id_crc(5), 20, 28), 28),
        (Descriptor(7, 5).encode() + sections.encode_marker(sections.id_crc(5), 20, 28) + b"\0" * 512, 28),
    ],
    ids=["header only", "preallocated, never used", "written without mutations", "one empty section", "one empty section, padded"],
)
def test_segments_without_frames(content: bytes, end: int, engine: Engine) -> None:
    found = scan(content, engine=engine)
    assert (found.frames, found.problems, found.end) == ([], [], end)


@pytest.mark.parametrize(
    ("content", "name", "error"),
    [
        (b"", "", NotASegment),
        (b"not a commit log but a text file\n" * 9, "CommitLog-7-1.log", NotASegment),
        (flip(SEGMENT, 9), "", CorruptDescriptor),
        (Descriptor(7, 5, {"compressionClass": "com.example.BestCompressor"}).encode(), "", UnsupportedSegment),
        (Descriptor(7, 5, {"compressionClass": ""}).encode(), "", UnsupportedSegment),
        (Descriptor(10, 5).encode(), "", UnsupportedSegment),
        (SEGMENT, "/somewhere/CommitLog-7-8.log", CorruptDescriptor),
    ],
)
def test_a_header_that_is_none_is_raised(content: bytes, name: str, error: type[WritetimeError], engine: Engine) -> None:
    with pytest.raises(error):
        scan(content, name=name, engine=engine)


def end_of(section: int) -> int:
    return MARKERS[section + 1]


DAMAGE: list[tuple[str, bytes, list[int], list[tuple[str, int, int]]]] = [
    ("body of a frame", flip(PADDED, STARTS[1] + 20), [0, 2, 3, 4, 5], [("corrupt_frame", STARTS[1], MARKERS[1] - STARTS[1])]),
    ("CRC of a frame", flip(PADDED, MARKERS[1] - 1), [0, 2, 3, 4, 5], [("corrupt_frame", STARTS[1], MARKERS[1] - STARTS[1])]),
    ("size of a frame", flip(PADDED, STARTS[2] + 3), [0, 1, 4, 5], [("corrupt_section", STARTS[2], MARKERS[2] - STARTS[2])]),
    ("CRC of a size", flip(PADDED, STARTS[3] + 5), [0, 1, 2, 4, 5], [("corrupt_section", STARTS[3], MARKERS[2] - STARTS[3])]),
    (
        "size of a frame in the last section",
        flip(PADDED, STARTS[5] + 3),
        [0, 1, 2, 3, 4],
        [("corrupt_section", STARTS[5], len(SEGMENT) - STARTS[5])],
    ),
    ("a size of zero", overwrite(PADDED, STARTS[2], bytes(4)), [0, 1, 4, 5], [("corrupt_section", STARTS[2], MARKERS[2] - STARTS[2])]),
    ("CRC of a marker", flip(PADDED, MARKERS[1] + 6), [0, 1, 2, 3, 4, 5], [("corrupt_section", MARKERS[1], 8)]),
    ("a marker zeroed", overwrite(PADDED, MARKERS[1], bytes(8)), [0, 1, 2, 3, 4, 5], [("corrupt_section", MARKERS[1], 8)]),
    ("a marker points too far", flip(PADDED, MARKERS[1] + 2, 0x01), [0, 1, 2, 3, 4, 5], [("corrupt_section", MARKERS[1], 8)]),
    ("a marker points out of the file", flip(PADDED, MARKERS[1], 0x40), [0, 1, 2, 3, 4, 5], [("corrupt_section", MARKERS[1], 8)]),
    ("a marker points back", overwrite(PADDED, MARKERS[1], bytes(4)), [0, 1, 2, 3, 4, 5], [("corrupt_section", MARKERS[1], 8)]),
    (
        "a marker points into a frame",
        overwrite(PADDED, MARKERS[1], struct.pack(">I", STARTS[3] + 7)),
        [0, 1, 2, 3, 4, 5],
        [("corrupt_section", MARKERS[1], 8)],
    ),
    (
        "CRC of the last marker with nothing behind it",
        flip(PADDED, MARKERS[2] + 6),
        [0, 1, 2, 3],
        [("corrupt_section", MARKERS[2], len(SEGMENT) - MARKERS[2])],
    ),
    (
        "frames that no marker covers",
        overwrite(PADDED, MARKERS[2], bytes(8)),
        [0, 1, 2, 3],
        [("torn_tail", MARKERS[2], len(SEGMENT) - MARKERS[2])],
    ),
    (
        "a marker without its CRC",
        overwrite(PADDED, MARKERS[2] + 4, bytes(4)),
        [0, 1, 2, 3],
        [("torn_tail", MARKERS[2], len(SEGMENT) - MARKERS[2])],
    ),
    (
        "the last marker points out of the file",
        flip(PADDED, MARKERS[2], 0x40),
        [0, 1, 2, 3, 4, 5],
        [("torn_tail", len(SEGMENT), 0)],
    ),
    (
        "the last marker points back",
        overwrite(PADDED, MARKERS[2], bytes(4)),
        [0, 1, 2, 3, 4, 5],
        [("corrupt_section", MARKERS[2], 8)],
    ),
    (
        "the last marker points into a frame",
        overwrite(PADDED, MARKERS[2], struct.pack(">I", STARTS[5] + 7)),
        [0, 1, 2, 3, 4, 5],
        [("corrupt_section", MARKERS[2], 8)],
    ),
    (
        "the last marker points into a frame that is damaged too",
        flip(overwrite(PADDED, MARKERS[2], struct.pack(">I", STARTS[5] + 7)), STARTS[5] + 20),
        [0, 1, 2, 3, 4],
        [("corrupt_section", STARTS[5], 7), ("corrupt_section", STARTS[5] + 7, len(SEGMENT) - STARTS[5] - 7)],
    ),
    (
        "two frames of two sections",
        flip(flip(PADDED, STARTS[0] + 20), STARTS[5] + 20),
        [1, 2, 3, 4],
        [("corrupt_frame", STARTS[0], STARTS[1] - STARTS[0]), ("corrupt_frame", STARTS[5], len(SEGMENT) - STARTS[5])],
    ),
    ("half a frame at the end", SEGMENT[: STARTS[5] + 30], [0, 1, 2, 3, 4], [("torn_tail", STARTS[5], 30)]),
    ("cut between two frames", SEGMENT[: STARTS[5]], [0, 1, 2, 3, 4], [("torn_tail", STARTS[5], 0)]),
    ("cut inside a marker", SEGMENT[: MARKERS[2] + 5], [0, 1, 2, 3], [("torn_tail", MARKERS[2], 5)]),
    ("cut between two sections", SEGMENT[: MARKERS[2]], [0, 1, 2, 3], []),
    ("a byte far behind the end", flip(PADDED, 4000), [0, 1, 2, 3, 4, 5], [("torn_tail", len(SEGMENT), 4001 - len(SEGMENT))]),
]


@pytest.mark.parametrize(("content", "good", "problems"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_damage_costs_only_what_it_hits(content: bytes, good: list[int], problems: list[tuple[str, int, int]], engine: Engine) -> None:
    found = scan(content, name="a.log", engine=engine)
    assert numbers(found) == good
    assert kinds(found) == problems
    for problem in found.problems:
        assert problem.error.position == problem.position
        assert problem.error.obj == "a.log"


def test_problems_carry_their_error_as_data(engine: Engine) -> None:
    (problem,) = scan(flip(PADDED, STARTS[1] + 20), engine=engine).problems
    assert isinstance(problem.error, CorruptFrame)
    assert problem.error.as_dict()["kind"] == "CorruptFrame"


@pytest.mark.parametrize("content", [SEGMENT, PADDED[: len(SEGMENT) + 300]], ids=["bare", "padded"])
def test_every_cut_gives_a_clean_prefix(content: bytes, engine: Engine) -> None:
    for cut in range(len(content)):
        try:
            found = scan(content[:cut], engine=engine)
        except WritetimeError:
            assert cut < 20
            continue
        assert found.frames == [frame for frame in WHOLE.frames if frame.position <= cut]
        assert all(problem.kind == "torn_tail" for problem in found.problems)
        assert all(problem.position + problem.size <= cut for problem in found.problems)


def test_every_flipped_byte_is_noticed_and_loses_at_most_a_section(engine: Engine) -> None:
    for position in range(20, len(SEGMENT)):
        found = scan(flip(PADDED, position, 0xFF), engine=engine)
        assert found.problems, position
        assert set(found.frames) <= set(WHOLE.frames)
        assert len(found.frames) >= 4, position


def test_every_byte_is_accounted_for(engine: Engine) -> None:
    """Valid frames, lost ranges and valid markers cover the segment without gap or overlap."""
    for position in range(20, len(SEGMENT)):
        found = scan(flip(PADDED, position, 0xFF), engine=engine)
        covered = bytearray(len(PADDED))
        ranges = [(frame.start, frame.position) for frame in found.frames]
        ranges += [(problem.position, problem.position + problem.size) for problem in found.problems]
        for start, end in ranges:
            assert not any(covered[start:end]), position
            covered[start:end] = b"\1" * (end - start)
        missing = [i for i in range(20, len(SEGMENT)) if not covered[i]]
        assert all(any(marker <= i < marker + 8 for marker in MARKERS) for i in missing), position


ENDINGS: list[tuple[str, bytes, int | None, Ending]] = [
    ("header only", SEGMENT[:20], None, Ending.UNUSED),
    ("preallocated, never used", SEGMENT[:20] + bytes(500), None, Ending.UNUSED),
    ("bare", SEGMENT, None, Ending.END_OF_FILE),
    ("cut between two sections", SEGMENT[: MARKERS[2]], None, Ending.END_OF_FILE),
    ("padded", PADDED, None, Ending.ZEROS),
    ("padded by less than a marker", SEGMENT + bytes(5), None, Ending.ZEROS),
    ("half a frame", SEGMENT[: STARTS[5] + 30], None, Ending.TORN),
    ("cut between two frames", SEGMENT[: STARTS[5]], None, Ending.TORN),
    ("half a marker", SEGMENT[: MARKERS[2] + 5], None, Ending.TORN),
    ("a byte far behind the end", flip(PADDED, 4000), None, Ending.TORN),
    ("the last marker's CRC", flip(PADDED, MARKERS[2] + 6), None, Ending.DAMAGED),
    ("damage further in", flip(PADDED, STARTS[1] + 20), None, Ending.ZEROS),
    ("two sections of three are synced", PADDED, MARKERS[2], Ending.GROWING),
    ("nothing is synced", PADDED, 0, Ending.GROWING),
    ("all that there is is synced", SEGMENT, len(SEGMENT), Ending.GROWING),
    ("more is synced than there is", SEGMENT, len(SEGMENT) + 1, Ending.TORN),
]


@pytest.mark.parametrize(("content", "synced", "ending"), [case[1:] for case in ENDINGS], ids=[case[0] for case in ENDINGS])
def test_how_a_segment_ends_has_a_name(content: bytes, synced: int | None, ending: Ending, engine: Engine) -> None:
    assert scan(content, synced=synced, engine=engine).ending is ending


def test_a_plain_segment_is_its_own_image(engine: Engine) -> None:
    damaged = flip(PADDED, STARTS[1] + 20)
    found = scan(damaged, engine=engine)
    assert found.image is damaged
    assert [found.body(frame) for frame in found.frames] == [damaged[f.start + 8 : f.position - 4] for f in found.frames]
    assert [found.lost(problem) for problem in found.problems] == [damaged[STARTS[1] : MARKERS[1]]]


SYNCED: list[tuple[str, bytes, int, list[int], list[str]]] = [
    ("all of it", PADDED, len(SEGMENT), [0, 1, 2, 3, 4, 5], []),
    ("two sections", PADDED, MARKERS[2], [0, 1, 2, 3], []),
    ("one section", PADDED, MARKERS[1], [0, 1], []),
    ("nothing yet", PADDED, 0, [], []),
    ("the header", PADDED, 20, [], []),
    ("inside a section", PADDED, STARTS[3] + 5, [0, 1, 2], []),
    *((f"{n} bytes into a marker", PADDED, MARKERS[1] + n, [0, 1], []) for n in (1, 4, 5, 7, 8)),
    ("damage behind it is not looked at", flip(PADDED, STARTS[3] + 20), MARKERS[1], [0, 1], []),
    ("a half-written marker behind it", overwrite(PADDED, MARKERS[2] + 4, bytes(4)), MARKERS[2], [0, 1, 2, 3], []),
    ("damage before it", flip(PADDED, STARTS[0] + 20), MARKERS[1], [1], ["corrupt_frame"]),
    ("more than the file has", SEGMENT, len(SEGMENT) + 100, [0, 1, 2, 3, 4, 5], ["torn_tail"]),
    ("more than sections have", PADDED, len(SEGMENT) + 100, [0, 1, 2, 3, 4, 5], ["torn_tail"]),
]


@pytest.mark.parametrize(("content", "synced", "good", "problems"), [case[1:] for case in SYNCED], ids=[case[0] for case in SYNCED])
def test_a_segment_still_written_is_read_up_to_what_is_synced(
    content: bytes, synced: int, good: list[int], problems: list[str], engine: Engine
) -> None:
    found = scan(content, synced=synced, engine=engine)
    assert numbers(found) == good
    assert [problem.kind for problem in found.problems] == problems


def test_a_promise_that_is_not_kept_is_a_torn_tail(engine: Engine) -> None:
    (problem,) = scan(PADDED, synced=len(SEGMENT) + 100, engine=engine).problems
    assert isinstance(problem.error, TornTail)
    assert (problem.position, problem.size) == (len(SEGMENT), 100)


@pytest.mark.parametrize("next_pos", [1 << 24, (1 << 24) - 1, (1 << 24) + 90, 2000])
def test_a_marker_is_found_wherever_it_points(next_pos: int) -> None:
    """A pointer's first byte is zero only in small files."""
    seed, length = sections.id_crc(7), (1 << 24) + 100
    buf = bytes(1000) + sections.encode_marker(seed, 1000, next_pos) + bytes(length - 1008)
    assert sections.find_marker(buf, 990, 1008, length, seed) == 1000
    assert sections.find_marker(buf, 1001, 1100, length, seed) == -1
    assert sections.find_marker(buf, 990, 1008, next_pos - 1, seed) == -1


def test_peek() -> None:
    body = encode_mutation(insert(7), SCHEMA)
    assert peek(body, version=7) == (1, RANGES_TABLE.id, b"\0\0\0\x07")
    assert peek(body_of(TTL_FRAME), version=7) == (1, UUID("6cbda380-e583-11f1-817f-f173fd8e050e"), bytes(4))


@pytest.mark.parametrize("cut", range(22))
def test_peeking_into_too_little(cut: int) -> None:
    with pytest.raises(MalformedMutation):
        peek(body_of(TTL_FRAME)[:cut], version=7)


def test_entries_of_every_size_keep_their_crc(engine: Engine) -> None:
    """CRCs are computed in strides of eight bytes: every remainder must be correct."""
    bodies = [bytes((7 * i + length) % 256 for i in range(length)) for length in range(10, 60)]
    content = encode_segment(9, 6, bodies, per_section=7)
    found = scan(content, engine=engine)
    assert [content[f.body_offset : f.body_offset + f.body_length] for f in found.frames] == bodies
    assert not found.problems


class Counted(bytes):
    """Bytes that count how many of them were read."""

    looked_at = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.looked_at += len(found) if isinstance(key, slice) else 1
        return found


@pytest.mark.parametrize(("zeros", "most"), [(0, 64), (8, 64), (1000, 4000)])
def test_a_size_of_zero_does_not_cost_a_look_at_the_whole_file(zeros: int, most: int) -> None:
    """Otherwise a file with many such places would take quadratic time."""
    Counted.looked_at = 0
    assert not is_zero(Counted(bytes(zeros) + b"\1" + bytes(1 << 20)), 0, 1 << 20)
    assert 0 < Counted.looked_at <= most
    assert is_zero(bytes(zeros) + b"\1", 0, zeros)


def damaged_frames(count: int, *, torn: bool = False) -> bytes:
    """A segment of so many frames, every other one with a wrong CRC, torn in the middle of one more
    section."""
    good = [encode_mutation(insert(key), SCHEMA) for key in range(2 * count)]
    whole = bytearray(encode_segment(WHOLE.descriptor.id, 7, good))
    for frame in scan(bytes(whole), engine="python").frames[::2]:
        whole[frame.position - 1] ^= 1
    end = len(whole)
    return bytes(whole) + (sections.encode_marker(sections.id_crc(WHOLE.descriptor.id), end, end + 500) + b"\xee" * 60 if torn else b"")


@pytest.mark.parametrize("torn", [False, True])
def test_very_many_damaged_places_are_one_range(engine: Engine, torn: bool) -> None:
    few = scan(damaged_frames(MOST_PROBLEMS - torn, torn=torn), engine=engine)
    assert len(few.problems) == MOST_PROBLEMS
    buf = damaged_frames(MOST_PROBLEMS + 1, torn=torn)
    found = scan(buf, engine=engine)
    first, *rest = found.problems
    assert len(found.frames) == MOST_PROBLEMS + 1, "the good ones are there"
    assert (first.kind, first.position) == ("corrupt_section", 28)
    assert first.position + first.size < found.frames[-1].position
    assert found.lost(first) == buf[28 : 28 + first.size]
    assert "more than 100 places" in str(first.error)
    # Whether a torn tail is damage depends on how the segment ended.
    assert [problem.kind for problem in rest] == ["torn_tail"] * torn
    assert found.ending is (Ending.TORN if torn else Ending.END_OF_FILE)
