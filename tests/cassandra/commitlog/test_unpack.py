"""Packed segments, valid and damaged: the result equals that of the plain segment. Both engines."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.commitlog.packed import (
    ALIAS,
    COMPRESSORS,
    ENCRYPTION,
    ID,
    KEY,
    KEYS,
    PACKINGS,
    Packed,
    encrypted,
    encrypted_block,
    pack,
    small_packed,
)
from tests.examples import examples
from writetime.cassandra.commitlog import frames, sections, unpack
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.segment import (
    Ending,
    Engine,
    Frame,
    Scan,
    scan,
    walk,
)
from writetime.errors import ConfigError, CorruptDescriptor, CorruptSection, NotASegment, SegmentError, TornTail, UnsupportedSegment

PACKED = {packing: small_packed(packing) for packing in PACKINGS}
WHOLE = {packing: walk(packed.plain, packed.markers[0], len(packed.plain), ID)[0] for packing, packed in PACKED.items()}
CHECKED = [packing for packing in COMPRESSORS if packing != "NoopCompressor"]


@pytest.fixture(params=["python", "numba"])
def engine(request: pytest.FixtureRequest) -> Engine:
    chosen: Engine = request.param
    return chosen


@pytest.fixture(params=PACKINGS)
def packing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def flip(buf: bytes, position: int, mask: int = 0xFF) -> bytes:
    changed = bytearray(buf)
    changed[position] ^= mask
    return bytes(changed)


def overwrite(buf: bytes, position: int, content: bytes) -> bytes:
    return buf[:position] + content + buf[position + len(content) :]


def kinds(found: Scan) -> list[tuple[str, int, int]]:
    return [(problem.kind, problem.position, problem.size) for problem in found.problems]


def numbers(packing: str, found: Scan) -> list[int]:
    """Which of the small segment's frames were found, by position and content."""
    assert all(found.body(frame) == bodies(packing)[frame] for frame in found.frames)
    return [WHOLE[packing].index(frame) for frame in found.frames]


def bodies(packing: str) -> dict[Frame, bytes]:
    plain = PACKED[packing].plain
    return {frame: plain[frame.body_offset : frame.body_offset + frame.body_length] for frame in WHOLE[packing]}


def test_the_image_is_the_plain_segment(packing: str, engine: Engine) -> None:
    packed = PACKED[packing]
    found = scan(packed.file, name="CommitLog-7-4294967303.log", engine=engine, keys=KEYS)
    assert found.image == packed.plain
    assert found.file == packed.file
    assert (found.problems, found.ending, found.end) == ([], Ending.END_OF_FILE, len(packed.plain))
    assert numbers(packing, found) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("version", [6, 7, 8])
@pytest.mark.parametrize("prefix", ["", "org.apache.cassandra.io.compress."])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_versions_and_full_names(version: int, prefix: str, compressor: str) -> None:
    packed = small_packed(prefix + compressor, version=version)
    found = scan(packed.file, engine="python")
    assert (found.image, found.descriptor.version, found.problems) == (packed.plain, version, [])


def test_an_encrypted_segment_of_every_version() -> None:
    for version in (6, 7, 8):
        packed = small_packed("encrypted", version=version)
        assert scan(packed.file, engine="python", keys=KEYS).image == packed.plain


def test_encryption_goes_before_compression() -> None:
    params = {**ENCRYPTION, "compressionClass": "ZstdCompressor", "compressionParameters": None}
    header = Descriptor(7, ID, params).encode()
    content = frames.encode_frame(b"a mutation of some kind")
    block = struct.pack(">I", len(content)) + encrypted(content)
    found = scan(header + sections.encode_marker(sections.id_crc(ID), len(header), len(header) + 8 + len(block)) + block, keys=KEYS)
    assert [found.body(frame) for frame in found.frames] == [b"a mutation of some kind"]


@settings(max_examples=examples(150))
@given(
    st.lists(st.lists(st.binary(min_size=10, max_size=300), max_size=4), max_size=4),
    st.sampled_from(PACKINGS),
    st.integers(1, 400),
    st.sampled_from([6, 7, 8]),
)
def test_any_sections_come_back(contents: list[list[bytes]], packing: str, chunk: int, version: int) -> None:
    """Frames across encrypted blocks, empty sections, any content."""
    packed = pack([b"".join(map(frames.encode_frame, section)) for section in contents], packing, version=version, chunk=chunk)
    in_python, compiled = (scan(packed.file, engine=engine, keys=KEYS) for engine in ("python", "numba"))
    assert in_python == compiled
    assert (in_python.image, in_python.problems) == (packed.plain, [])
    assert [in_python.body(frame) for frame in in_python.frames] == [body for section in contents for body in section]


@pytest.mark.parametrize(
    ("packing", "block"),
    [
        ("LZ4Compressor", bytes(5)),
        ("SnappyCompressor", bytes(1)),
        ("DeflateCompressor", b""),
        ("DeflateCompressor", bytes.fromhex("789c030000000001")),
        ("ZstdCompressor", b""),
        ("ZstdCompressor", COMPRESSORS["ZstdCompressor"](b"")),
        ("NoopCompressor", b""),
        ("encrypted", b""),
        ("encrypted", encrypted_block(b"")),
    ],
)
def test_empty_sections(packing: str, block: bytes) -> None:
    """Written if a segment is closed right after a sync: sometimes without bytes, sometimes as an
    empty block."""
    header = PACKED[packing].file[: PACKED[packing].markers[0]]
    marker = sections.encode_marker(sections.id_crc(ID), len(header), len(header) + 12 + len(block))
    found = scan(header + marker + bytes(4) + block, keys=KEYS)
    assert (found.frames, found.problems, found.end, found.ending) == ([], [], len(header) + 8, Ending.END_OF_FILE)


@pytest.mark.parametrize("padding", [0, 3, 500])
def test_a_segment_never_written_to(packing: str, padding: int) -> None:
    header = PACKED[packing].file[: PACKED[packing].markers[0]]
    found = scan(header + bytes(padding), keys=KEYS)
    assert (found.frames, found.problems, found.end, found.ending) == ([], [], len(header), Ending.UNUSED)


def test_zeros_behind_the_last_section(packing: str) -> None:
    found = scan(PACKED[packing].file + bytes(700), keys=KEYS)
    assert (numbers(packing, found), found.problems, found.ending) == ([0, 1, 2, 3, 4, 5], [], Ending.ZEROS)


# --- damage: sections are 0 (two frames), 1 (empty), 2, 3 (two frames each), 4 (empty)


def test_damage_in_a_section_costs_that_section(packing: str, engine: Engine) -> None:
    """Later positions stay the same: zeros replace the lost section."""
    packed = PACKED[packing]
    start, end = packed.markers[2], packed.markers[3]
    found = scan(overwrite(packed.file, start + 13, b"\xff" * (end - start - 14)), name="a.log", engine=engine, keys=KEYS)
    assert numbers(packing, found) == [0, 1, 4, 5]
    (problem,) = found.problems
    if packing == "NoopCompressor":
        assert (problem.kind, problem.in_file) == ("corrupt_section", False)
        return
    assert (problem.kind, problem.position, problem.size, problem.in_file) == ("corrupt_section", start, end - start, True)
    assert isinstance(problem.error, CorruptSection)
    assert problem.error.position == start
    assert problem.error.obj == "a.log"
    assert f"assume the {packed.logical[3] - packed.logical[2] - 8} bytes" in str(problem.error)
    assert found.lost(problem) == found.file[start:end]
    assert found.ending is Ending.END_OF_FILE


def test_a_codec_s_own_words_are_told() -> None:
    packed = PACKED["DeflateCompressor"]
    (problem,) = scan(flip(packed.file, packed.markers[2] + 20), engine="python").problems
    assert "Error -3 while decompressing" in str(problem.error)


@pytest.mark.parametrize("packing", CHECKED)
@pytest.mark.parametrize("claim", [0, 1, 77, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_section_s_length_that_is_wrong_is_corrected_by_its_block(packing: str, claim: int, engine: Engine) -> None:
    packed = PACKED[packing]
    start = packed.markers[2] + 8
    found = scan(overwrite(packed.file, start, struct.pack(">I", claim)), engine=engine)
    assert numbers(packing, found) == [0, 1, 2, 3, 4, 5]
    assert kinds(found) == [("corrupt_section", start, 4)]


@pytest.mark.parametrize("claim", [0, 1, 77, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("packing", ["NoopCompressor", "encrypted"])
def test_where_a_block_does_not_prove_its_length_the_section_is_lost(packing: str, claim: int) -> None:
    packed = PACKED[packing]
    found = scan(overwrite(packed.file, packed.markers[2] + 8, struct.pack(">I", claim)), keys=KEYS)
    assert [found.body(frame) for frame in found.frames] == [list(bodies(packing).values())[i] for i in (0, 1, 4, 5)]
    assert kinds(found) == [("corrupt_section", packed.markers[2], packed.markers[3] - packed.markers[2])]
    assert ("size is unknown" in str(found.problems[0].error)) == (claim > 1000)


def test_a_marker_s_crc(packing: str, engine: Engine) -> None:
    packed = PACKED[packing]
    found = scan(flip(packed.file, packed.markers[2] + 5), engine=engine, keys=KEYS)
    assert numbers(packing, found) == [0, 1, 2, 3, 4, 5]
    assert kinds(found) == [("corrupt_section", packed.markers[2], 8)]
    assert found.ending is Ending.END_OF_FILE


def test_the_crcs_of_two_markers_in_a_row(packing: str, engine: Engine) -> None:
    """The first section ends at its declared end, because it unpacks to the last byte there. No valid marker
    has to follow."""
    packed = PACKED[packing]
    found = scan(flip(flip(packed.file, packed.markers[2] + 5), packed.markers[3] + 5), engine=engine, keys=KEYS)
    assert numbers(packing, found) == [0, 1, 2, 3, 4, 5]
    assert kinds(found) == [("corrupt_section", packed.markers[2], 8), ("corrupt_section", packed.markers[3], 8)]


def test_two_sections_in_a_row(packing: str, engine: Engine) -> None:
    packed = PACKED[packing]
    file = packed.file
    for i in (2, 3):
        file = overwrite(file, packed.markers[i] + 13, b"\xff" * (packed.markers[i + 1] - packed.markers[i] - 14))
    found = scan(file, engine=engine, keys=KEYS)
    assert numbers(packing, found) == [0, 1]
    assert [problem.kind for problem in found.problems] == ["corrupt_section"] * 2
    assert found.end == len(packed.plain)


def test_the_last_marker_s_crc_costs_nothing_either(packing: str, engine: Engine) -> None:
    """A plain section cannot be validated without its marker; a packed section is valid if it unpacks to the
    last byte."""
    packed = pack([PACKED[packing].plain[PACKED[packing].logical[0] + 8 : PACKED[packing].logical[1]]], packing)
    found = scan(flip(packed.file, packed.markers[0] + 5), engine=engine, keys=KEYS)
    assert (len(found.frames), found.image) == (2, packed.plain)
    assert kinds(found) == [("corrupt_section", packed.markers[0], 8)]


@pytest.mark.parametrize(
    "target", ["back", "the next section", "the last section", "into a section", "behind the file", "just behind the marker"]
)
def test_a_marker_that_points_to_a_wrong_place(packing: str, target: str, engine: Engine) -> None:
    packed = PACKED[packing]
    marker = packed.markers[2]
    pointer = {
        "back": 0,
        "the next section": packed.markers[4],
        "the last section": len(packed.file),
        "into a section": packed.markers[3] - 9,
        "behind the file": 1 << 30,
        "just behind the marker": marker + 12,
    }[target]
    found = scan(overwrite(packed.file, marker, struct.pack(">I", pointer)), engine=engine, keys=KEYS)
    assert numbers(packing, found) == [0, 1, 2, 3, 4, 5]
    assert kinds(found) == [("corrupt_section", marker, 8)]


def test_a_marker_and_its_section_are_lost_together(packing: str) -> None:
    packed = PACKED[packing]
    start, end = packed.markers[2], packed.markers[3]
    found = scan(overwrite(packed.file, start, b"\xee" * (end - start)), keys=KEYS)
    assert [found.body(frame) for frame in found.frames] == [list(bodies(packing).values())[i] for i in (0, 1, 4, 5)]
    assert kinds(found) == [("corrupt_section", start, end - start)]
    assert "later positions are too low" in str(found.problems[0].error)


def test_a_tail_of_another_kind(packing: str) -> None:
    packed = PACKED[packing]
    rest = len(packed.file) - packed.markers[3]
    cases = {b"\xee" * rest: (Ending.DAMAGED, "corrupt_section"), bytes(20) + b"\x01" * (rest - 20): (Ending.TORN, "torn_tail")}
    for tail, (ending, kind) in cases.items():
        found = scan(packed.file[: packed.markers[3]] + tail, keys=KEYS)
        assert numbers(packing, found) == [0, 1, 2, 3]
        assert kinds(found) == [(kind, packed.markers[3], rest)]
        assert found.ending is ending
        assert found.end == packed.logical[3]


def test_every_cut(packing: str, engine: Engine) -> None:
    """Complete sections before the cut and a torn tail with the rest. Half a marker of zeros looks like zero
    fill."""
    packed = PACKED[packing]
    ends = [*packed.markers[1:], len(packed.file)]
    for cut in range(packed.markers[0], len(packed.file)):
        found = scan(packed.file[:cut], engine=engine, keys=KEYS)
        whole = sum(end <= cut for end in ends)
        logical = [*packed.logical, len(packed.plain)][whole]
        assert found.frames == [frame for frame in WHOLE[packing] if frame.position <= logical]
        assert found.end == logical
        rest = packed.file[[*packed.markers, len(packed.file)][whole] : cut]
        assert [found.lost(problem).rstrip(b"\0") for problem in found.problems] == ([rest.rstrip(b"\0")] if any(rest) else [])
        assert all(isinstance(problem.error, TornTail) for problem in found.problems)
        if any(rest):
            assert found.ending is Ending.TORN
        else:
            assert found.ending is (Ending.UNUSED if whole == 0 else Ending.ZEROS if rest else Ending.END_OF_FILE)


def test_every_cut_of_a_header(packing: str) -> None:
    for cut in range(PACKED[packing].markers[0]):
        with pytest.raises((NotASegment, CorruptDescriptor)):
            scan(PACKED[packing].file[:cut], keys=KEYS)


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte(packing: str, mask: int, engine: Engine) -> None:
    """It is noticed (if it changes anything: not every bit of LZ4 or Deflate does), costs no more than a
    section, and what is given is what was there; and where it was, but for a length that is damaged and
    cannot be put right."""
    packed = PACKED[packing]
    expected = bodies(packing)
    unproved = {"NoopCompressor": packed.markers, "encrypted": packed.markers, "DeflateCompressor": [packed.markers[1], packed.markers[4]]}
    lengths = {marker + i for marker in unproved.get(packing, []) for i in range(8, 12)}
    for position in range(packed.markers[0], len(packed.file)):
        found = scan(flip(packed.file, position, mask), engine=engine, keys=KEYS)
        assert {found.body(frame) for frame in found.frames} <= set(expected.values()), position
        assert len(found.frames) >= 4, position
        assert found.problems or found.image == packed.plain, position
        assert position in lengths or set(found.frames) <= set(expected), position


def test_every_flipped_byte_of_a_header(packing: str) -> None:
    packed = PACKED[packing]
    for position in range(packed.markers[0]):
        with pytest.raises(SegmentError):
            scan(flip(packed.file, position), keys=KEYS)


changes = st.lists(st.tuples(st.integers(30, 900), st.binary(min_size=1, max_size=12)), max_size=4)
moves = st.tuples(st.integers(0, 600), st.integers(0, 600), st.integers(0, 300))


@settings(max_examples=examples(500))
@given(st.sampled_from(PACKINGS), changes, moves, st.integers(60, 1200))
def test_any_damage_gives_frames_of_the_original_only(
    packing: str, changes: list[tuple[int, bytes]], move: tuple[int, int, int], size: int
) -> None:
    packed = PACKED[packing]
    damaged = bytearray(packed.file)
    source, target, length = (packed.markers[0] + move[0], packed.markers[0] + move[1], move[2])
    damaged[target : target + length] = damaged[source : source + length]
    for position, content in changes:
        damaged[position : position + len(content)] = content
    damaged[: packed.markers[0]] = packed.file[: packed.markers[0]]
    content = bytes(damaged[: max(size, packed.markers[0])])
    try:
        in_python, compiled = (scan(content, engine=engine, keys=KEYS) for engine in ("python", "numba"))
    except UnsupportedSegment:
        assert packing == "encrypted"
        return
    assert (in_python.frames, in_python.image, kinds(in_python)) == (compiled.frames, compiled.image, kinds(compiled))
    given = {in_python.body(frame) for frame in in_python.frames}
    assert given <= set(bodies(packing).values())
    for problem in in_python.problems:
        assert 0 <= problem.position <= problem.position + problem.size <= (len(content) if problem.in_file else len(in_python.image))


# --- growing segments


@pytest.mark.parametrize("sections_synced", [0, 1, 3, 5])
def test_a_growing_segment_is_read_up_to_what_is_synced(packing: str, sections_synced: int, engine: Engine) -> None:
    """The position counts uncompressed bytes: the file is shorter."""
    packed = PACKED[packing]
    synced = [*packed.logical, len(packed.plain)][sections_synced]
    end = [*packed.markers, len(packed.file)][sections_synced]
    for file in (packed.file, packed.file[:end] + b"half of the next section", packed.file[:end]):
        found = scan(file, synced=synced, engine=engine, keys=KEYS)
        assert found.frames == [frame for frame in WHOLE[packing] if frame.position <= synced]
        assert (found.problems, found.ending, found.end) == ([], Ending.GROWING, synced)


def test_a_position_inside_a_section_is_honoured(packing: str, engine: Engine) -> None:
    packed = PACKED[packing]
    found = scan(packed.file, synced=WHOLE[packing][2].position, engine=engine, keys=KEYS)
    assert (numbers(packing, found), found.problems, found.ending) == ([0, 1, 2], [], Ending.GROWING)


def test_any_position_may_be_synced(packing: str, engine: Engine) -> None:
    """A half-written index gives a smaller number, which may be inside a frame or a marker."""
    packed = PACKED[packing]
    for synced in range(len(packed.plain)):
        found = scan(packed.file, synced=synced, engine=engine, keys=KEYS)
        assert found.frames == [frame for frame in WHOLE[packing] if frame.position <= synced]
        assert (found.problems, found.ending) == ([], Ending.GROWING)


def test_more_is_synced_than_there_is(packing: str, engine: Engine) -> None:
    packed = PACKED[packing]
    found = scan(packed.file, synced=len(packed.plain) + 100, engine=engine, keys=KEYS)
    assert numbers(packing, found) == [0, 1, 2, 3, 4, 5]
    assert (kinds(found), found.ending) == ([("torn_tail", len(packed.plain), 0)], Ending.TORN)


# --- false lengths


def lying(packing: str, block: bytes, claim: int) -> Packed:
    """A good section, one of this block, and another good one."""
    good = frames.encode_frame(b"a mutation of some kind")
    packed = pack([good, b"", good], packing)
    header, seed = packed.file[: packed.markers[1]], sections.id_crc(ID)
    first = sections.encode_marker(seed, len(header), len(header) + 12 + len(block)) + struct.pack(">I", claim) + block
    last = packed.file[packed.markers[2] + 8 :]
    start = len(header) + len(first)
    file = header + first + sections.encode_marker(seed, start, start + 8 + len(last)) + last
    return Packed(file, packed.plain, [packed.markers[0], len(header), start], packed.logical)


HUGE = 0x7FFFFFF0
BOMBS = {
    "LZ4Compressor": struct.pack("<i", HUGE) + b"\x1fa\x01\x00" + b"\xff" * 200,
    "SnappyCompressor": b"\xf0\xff\xff\xff\x07" + b"\xfe\x01\x00" * 60,
    "ZstdCompressor": b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", HUGE) + b"\x02\x00\x00\x00" * 5,
    "NoopCompressor": b"x" * 200,
    "encrypted": encrypted_block(b"")[:8] + struct.pack(">II", HUGE, HUGE - 1) + b"x" * 64,
}


@pytest.mark.parametrize("claim", [HUGE, 1_000_000])
@pytest.mark.parametrize("packing", BOMBS)
def test_a_length_is_not_believed_because_it_stands_there(packing: str, claim: int) -> None:
    packed = lying(packing, BOMBS[packing], claim)
    tracemalloc.start()
    try:
        found = scan(packed.file, engine="python", keys=KEYS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.frames) == 2
    assert kinds(found) == [("corrupt_section", packed.markers[1], packed.markers[2] - packed.markers[1])]
    assert "size is unknown" in str(found.problems[0].error)
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("packing", "wrong"),
    [
        ("LZ4Compressor", lambda block: struct.pack("<i", len(b"abc" * 50) + 7) + block[4:]),
        ("LZ4Compressor", lambda block: struct.pack("<i", len(b"abc" * 50) - 1) + block[4:]),
        ("LZ4Compressor", lambda block: struct.pack("<i", -1) + block[4:]),
        ("LZ4Compressor", lambda block: block[:3]),
        ("SnappyCompressor", lambda block: b"\x9d\x01" + block[2:]),
        ("SnappyCompressor", lambda block: b"\x80\x80\x80\x80\x80\x01"),
        ("SnappyCompressor", lambda block: b""),
        ("ZstdCompressor", lambda block: block[:5] + bytes([block[5] + 1]) + block[6:]),
        ("ZstdCompressor", lambda block: b"\x28\xb5\x2f\xfd\x00\x58" + block[6:]),
        ("ZstdCompressor", lambda block: b"PK\x03\x04" + block[4:]),
        ("ZstdCompressor", lambda block: block[:4]),
        ("ZstdCompressor", lambda block: block + b"\0"),
        ("DeflateCompressor", lambda block: block[:-1]),
        ("DeflateCompressor", lambda block: block + b"\0"),
    ],
)
def test_a_block_has_exactly_its_length(packing: str, wrong: object) -> None:
    """Repeated: data left in a codec's buffer must not be returned."""
    content = frames.encode_frame(b"abc" * 46)
    assert len(content) == 150
    good = COMPRESSORS[packing](content)
    assert callable(wrong)
    sound, damaged = lying(packing, good, 150), lying(packing, wrong(good), 150)
    for _ in range(3):
        assert len(scan(sound.file, engine="python").frames) == 3
        found = scan(damaged.file, engine="python")
        assert len(found.frames) == 2
        assert kinds(found) == [("corrupt_section", damaged.markers[1], damaged.markers[2] - damaged.markers[1])]


def test_an_image_has_a_limit(packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section over the limit is reported, with a hint to raise the limit; the rest is read."""
    content = frames.encode_frame(bytes(700_000))
    packed = pack([content, content, b""], packing, chunk=65_536)
    monkeypatch.setenv("WRITETIME_IMAGE_LIMIT_MIB", "1")
    found = scan(packed.file, keys=KEYS)
    assert len(found.frames) == 1
    (problem,) = found.problems
    assert (problem.kind, problem.position, problem.in_file) == ("too_large", packed.markers[1], True)
    assert isinstance(problem.error, UnsupportedSegment)
    assert problem.error.retriable
    assert "WRITETIME_IMAGE_LIMIT_MIB" in str(problem.error)
    monkeypatch.setenv("WRITETIME_IMAGE_LIMIT_MIB", "2")
    assert scan(packed.file, keys=KEYS).image == packed.plain


@pytest.mark.parametrize("limit", ["", "many", "-1", "0", "1.5"])
def test_a_limit_that_is_none(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITETIME_IMAGE_LIMIT_MIB", limit)
    with pytest.raises(ConfigError, match="WRITETIME_IMAGE_LIMIT_MIB"):
        scan(PACKED["LZ4Compressor"].file)


@pytest.mark.parametrize("sound", [True, False])
@pytest.mark.parametrize("reach", [16, 160_000], ids=["the next", "the end"])
def test_pointers_cost_no_square(packing: str, sound: bool, reach: int) -> None:
    """Ten thousand markers, all valid or all invalid, each with a section up to the next marker or to the
    end."""
    header = PACKED[packing].file[: PACKED[packing].markers[0]]
    seed, count = sections.id_crc(ID if sound else ID + 1), 10_000
    size = len(header) + 16 * count
    places = range(len(header), size, 16)
    file = header + b"".join(sections.encode_marker(seed, at, min(at + reach, size)) + b"\0\0\0\4\x7f\x7f\x7f\x7f" for at in places)
    unpacked, searched = [0], [0]
    original, find = unpack._Unpacker._content, sections.find_marker

    def counting(self: unpack._Unpacker, pos: int, end: int) -> bytes | SegmentError:
        unpacked[0] += end - pos
        return original(self, pos, end)

    def counting_search(buf: bytes, start: int, data_end: int, length: int, seed: int) -> int:
        found = find(buf, start, data_end, length, seed)
        searched[0] += (found if found >= 0 else length) - start
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "find_marker", counting_search)
        patch.setattr(unpack._Unpacker, "_content", counting)
        try:
            assert scan(file, engine="python", keys=KEYS).frames == []
        except UnsupportedSegment:
            assert packing == "encrypted"
    assert unpacked[0] < 4 * len(file)
    assert searched[0] <= 2 * len(file)


# --- keys


def test_without_a_keystore_the_alias_and_the_way_are_named() -> None:
    with pytest.raises(UnsupportedSegment, match=f"`{ALIAS}`.*commitlog_keystore.*--keystore") as raised:
        scan(PACKED["encrypted"].file, name="CommitLog-7-4294967303.log")
    assert raised.value.retriable
    assert raised.value.obj == "CommitLog-7-4294967303.log"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (Keystore("k", {"another": lambda: KEY}), f"no secret key `{ALIAS}`.*`another`"),
        (Keystore("k", {ALIAS: lambda: KEY[::-1]}), "no block can be decrypted"),
        (Keystore("k", {ALIAS: lambda: KEY + KEY}), "no block can be decrypted"),
        (Keystore("k", {ALIAS: lambda: KEY[:7]}), "has 56 bits"),
    ],
    ids=["another alias", "another key", "a longer key", "a key of no AES"],
)
def test_another_key(keys: Keystore, message: str) -> None:
    with pytest.raises(UnsupportedSegment, match=message) as raised:
        scan(PACKED["encrypted"].file, keys=keys)
    assert raised.value.retriable
    for shown in (str(raised.value), str(raised.value.as_dict())):
        assert not any(key.hex() in shown or repr(key)[2:-1] in shown for key in (KEY, KEY[::-1], KEY[:7]))


@pytest.mark.parametrize("bits", [128, 192, 256])
def test_keys_of_every_size(bits: int) -> None:
    key = bytes(range(bits // 8))
    content = frames.encode_frame(b"a mutation of some kind")
    header = Descriptor(8, ID, ENCRYPTION).encode()
    block = struct.pack(">I", len(content)) + encrypted(content, key=key)
    file = header + sections.encode_marker(sections.id_crc(ID), len(header), len(header) + 8 + len(block)) + block
    found = scan(file, keys=Keystore("k", {ALIAS.upper(): lambda: key}))
    assert [found.body(frame) for frame in found.frames] == [b"a mutation of some kind"]


def test_lengths_in_an_encrypted_block_have_to_agree() -> None:
    content = frames.encode_frame(b"a mutation of some kind")
    sound = lying("encrypted", encrypted_block(content), len(content))
    damaged = lying("encrypted", encrypted_block(content, claim=len(content) + 1), len(content))
    assert len(scan(sound.file, keys=KEYS).frames) == 3
    found = scan(damaged.file, keys=KEYS)
    assert (len(found.frames), [problem.kind for problem in found.problems]) == (2, ["corrupt_section"])


def test_an_empty_encrypted_segment_needs_its_key_too() -> None:
    packed = pack([b"", b""], "encrypted")
    assert scan(packed.file, keys=Keystore("k", {ALIAS: lambda: bytes(16)})).image == packed.plain
    with pytest.raises(UnsupportedSegment):
        scan(packed.file)


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({**ENCRYPTION, "encCipher": "AES/GCM/NoPadding"}, UnsupportedSegment),
        ({**ENCRYPTION, "encIV": "00"}, CorruptDescriptor),
        ({**ENCRYPTION, "encIV": "no hex"}, CorruptDescriptor),
        ({key: value for key, value in ENCRYPTION.items() if key != "encIV"}, CorruptDescriptor),
    ],
)
def test_what_cannot_be_decrypted(params: dict[str, str], error: type[SegmentError]) -> None:
    with pytest.raises(error):
        scan(Descriptor(7, ID, params).encode(), keys=KEYS)


@pytest.mark.parametrize("torn", [False, True])
def test_very_many_damaged_sections_are_one_range(torn: bool) -> None:
    """A million separate errors would not fit in memory."""
    start = len(Descriptor(7, ID, {"compressionClass": "LZ4Compressor"}).encode())
    seed, size = sections.id_crc(ID), 16
    buf = bytearray(PACKED["LZ4Compressor"].file[:start])
    for _ in range(1000):
        following = len(buf) + sections.MARKER_SIZE + 4 + size
        buf += sections.encode_marker(seed, len(buf), following) + struct.pack(">I", 64) + b"\xff" * size
    end = len(buf)
    found = scan(bytes(buf) + b"\xee" * 3 * torn)
    assert [problem.kind for problem in found.problems] == ["corrupt_section", *["torn_tail"] * torn]
    first = found.problems[0]
    assert (first.in_file, first.position, first.size) == (True, start, end - start)
    assert "more than 100 sections" in str(first.error)


def test_a_segment_that_unpacks_to_too_much_says_how_to_raise_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if very many sections exceed the limit."""
    monkeypatch.setenv(unpack.LIMIT_VARIABLE, "1")
    frame = frames.encode_frame(bytes(1 << 14))
    packed = pack([frame] * 400, "DeflateCompressor")
    assert len(packed.file) < 100_000 < 1 << 20 < len(packed.plain)
    found = scan(packed.file)
    assert len(found.image) <= 1 << 20
    assert len(found.frames) == ((1 << 20) - packed.markers[0]) // (len(frame) + sections.MARKER_SIZE)
    (problem,) = found.problems
    assert (problem.kind, problem.in_file, problem.error.retriable) == ("too_large", True, True)
    assert unpack.LIMIT_VARIABLE in str(problem.error.hint)
