"""Case n of a seed: one damaged segment of the corpus. The same numbers give the same bytes on every machine.

Strategy: a table of kinds of damage, each a function of (random, segment's bytes). One to three of them are
applied to a segment, and in half of the cases every CRC is corrected afterwards, so that the damage reaches
the decoder. How a case was made determines what may still be delivered as valid: see `Case`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from proof.fuzz.corpus import Corpus, Seed
from proof.fuzz.structure import changed, random_mutation
from tests.cassandra.commitlog.packed import PACKINGS, pack
from writetime.cassandra.commitlog import sections
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.frames import encode_frame
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION, count_offset, decode_mutation, decode_placed
from writetime.cassandra.types.vint import read_unsigned, write_unsigned
from writetime.errors import WritetimeError

BOMBS = (0, 1, 2, 9, 10, 63, 64, 127, 128, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
"""Lengths and counts that nothing can have, and those at the edges of what can."""
_PARAMS: tuple[dict[str, object], ...] = (
    {"compressionClass": "LZ4Compressor", "compressionParameters": None},
    {"compressionClass": "org.apache.cassandra.io.compress.ZstdCompressor"},
    {"compressionClass": "SnappyCompressor"},
    {"compressionClass": "DeflateCompressor"},
    {"compressionClass": "NoopCompressor"},
    {"compressionClass": "Nobody'sCompressor"},
    {"compressionClass": 7},
    {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "key", "encIV": "00" * 16},
    {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "key", "encIV": "no hex"},
    {"encCipher": "ROT13", "encKeyAlias": "key"},
)


@dataclass(frozen=True, slots=True)
class Case:
    """A damaged segment.

    `how` names what was done. `may_deliver` are the bodies that may still come out, None where CRCs were put
    right and any may. `in_place` says that nothing moved: what comes out must then stand where it stood.
    `synced` as in `segment.scan`.
    """

    number: int
    seed: Seed
    content: bytes
    how: tuple[str, ...]
    may_deliver: frozenset[bytes] | None
    in_place: bool
    synced: int | None


def make(corpus: Corpus, seed: int, number: int) -> Case:
    """Case `number` of `seed`."""
    rng = Random(f"{seed}:{number}")
    start = rng.choice(corpus.seeds)
    if rng.random() < 0.35:
        return _restructured(rng, corpus, start, number)
    donor = rng.choice(corpus.seeds)
    content, how, in_place = bytearray(start.content), [], True
    for _ in range(rng.choice((1, 1, 2, 3))):
        damage = rng.choice(_DAMAGES)
        damage.do(rng, content, donor.content)
        how.append(damage.name)
        in_place &= damage.in_place
    may_deliver: frozenset[bytes] | None = frozenset(start.frames.values()) | (
        frozenset() if in_place else frozenset(donor.frames.values())
    )
    if rng.random() < 0.5:
        put_right(content, packed=start.packing is not None)
        how.append("CRCs put right")
        may_deliver = None
    synced = rng.randrange(len(content) + 50) if rng.random() < 0.1 else None
    return Case(number, start, bytes(content), tuple(how), may_deliver, in_place, synced)


def put_right(content: bytearray, *, packed: bool = False) -> None:
    """Compute every CRC anew that stands where the walk would look for one: header, markers, and in a plain
    segment sizes and bodies.
    """
    if len(content) < 22:
        return
    version, segment_id, length = struct.unpack_from(">iqH", content)
    pos = 14 + length
    if pos + 4 > len(content):
        return
    fixed = struct.pack(">iIIi", version, segment_id & 0xFFFFFFFF, segment_id >> 32 & 0xFFFFFFFF, length)
    struct.pack_into(">I", content, pos, zlib.crc32(content[14:pos], zlib.crc32(fixed)))
    pos += 4
    seed = sections.id_crc(segment_id)
    while pos + 8 <= len(content):
        following = struct.unpack_from(">I", content, pos)[0]
        if not any(content[pos:]):
            return
        struct.pack_into(">I", content, pos + 4, sections.marker_crc(seed, pos))
        if not packed:
            _put_frames_right(content, pos + 8, min(following, len(content)))
        if following <= pos:
            return
        pos = following


def _put_frames_right(content: bytearray, pos: int, end: int) -> None:
    while pos + 8 <= end:
        size = struct.unpack_from(">I", content, pos)[0]
        if size == 0:
            return
        size_crc = zlib.crc32(content[pos : pos + 4])
        struct.pack_into(">I", content, pos + 4, size_crc)
        body_end = pos + 8 + size
        if body_end + 4 > end:
            return
        struct.pack_into(">I", content, body_end, zlib.crc32(content[pos + 8 : body_end], size_crc))
        pos = body_end + 4


# --- damage to bytes


def _place(rng: Random, content: bytearray) -> int:
    """A position; every other time one near a header, a marker or a frame's edge would be too rare, so small
    files help.
    """
    return rng.randrange(len(content)) if content else 0


def _range(rng: Random, content: bytearray) -> tuple[int, int]:
    start = _place(rng, content)
    return start, min(len(content), start + rng.choice((1, 2, 4, 8, 12, 40, 200)))


def _frame_edges(content: bytes) -> list[int]:
    """Positions at which a size stands whose own CRC holds: where frames begin, wherever they have got to."""
    return [pos for pos in range(len(content) - 8) if content[pos] == 0 == content[pos + 1] and _is_size(content, pos)]


def _is_size(content: bytes, pos: int) -> bool:
    return struct.unpack_from(">I", content, pos + 4)[0] == zlib.crc32(content[pos : pos + 4])


def _frame_at(content: bytes, pos: int) -> tuple[int, int]:
    return pos, min(len(content), pos + 12 + struct.unpack_from(">I", content, pos)[0])


def _flip(rng: Random, content: bytearray, donor: bytes) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        if content:
            content[_place(rng, content)] ^= 1 << rng.randrange(8)


def _set(rng: Random, content: bytearray, donor: bytes) -> None:
    for _ in range(rng.choice((1, 1, 2, 4))):
        if content:
            content[_place(rng, content)] = rng.choice((0, 0xFF, 0x7F, 0x80, 1, rng.randrange(256)))


def _blank(rng: Random, content: bytearray, donor: bytes) -> None:
    start, end = _range(rng, content)
    content[start:end] = rng.choice((b"\0", b"\xff")) * (end - start)


def _cut(rng: Random, content: bytearray, donor: bytes) -> None:
    del content[_place(rng, content) :]


def _cut_and_pad(rng: Random, content: bytearray, donor: bytes) -> None:
    at = _place(rng, content)
    content[at:] = bytes(len(content) - at)


def _remove(rng: Random, content: bytearray, donor: bytes) -> None:
    start, end = _range(rng, content)
    del content[start:end]


def _insert(rng: Random, content: bytearray, donor: bytes) -> None:
    size = rng.choice((1, 4, 8, 100))
    content[(at := _place(rng, content)) : at] = rng.choice((bytes(size), rng.randbytes(size)))


def _insert_of_another(rng: Random, content: bytearray, donor: bytes) -> None:
    start, end = _range(rng, bytearray(donor))
    content[(at := _place(rng, content)) : at] = donor[start:end]


def _overwrite(rng: Random, content: bytearray, donor: bytes) -> None:
    start, end = _range(rng, content)
    source = _place(rng, content)
    content[start:end] = content[source : source + end - start].ljust(end - start, b"\0")


def _swap(rng: Random, content: bytearray, donor: bytes) -> None:
    _exchange(content, *sorted((_range(rng, content), _range(rng, content))))


def _exchange(content: bytearray, first: tuple[int, int], second: tuple[int, int]) -> None:
    (a, b), (c, d) = first, (max(second[0], first[1]), max(second[1], first[1]))
    content[a:d] = content[c:d] + content[b:c] + content[a:b]


def _swap_frames(rng: Random, content: bytearray, donor: bytes) -> None:
    edges = _frame_edges(content)
    if len(edges) >= 2:
        first, second = sorted(rng.sample(edges, 2))
        _exchange(content, _frame_at(content, first), _frame_at(content, second))


def _repeat_frame(rng: Random, content: bytearray, donor: bytes) -> None:
    if edges := _frame_edges(content):
        start, end = _frame_at(content, rng.choice(edges))
        content[end:end] = content[start:end]


def _frame_of_another(rng: Random, content: bytearray, donor: bytes) -> None:
    mine, theirs = _frame_edges(content), _frame_edges(donor)
    if mine and theirs:
        start, end = _frame_at(donor, rng.choice(theirs))
        content[(at := rng.choice(mine)) : at] = donor[start:end]


def _markers(content: bytearray) -> list[int]:
    """Positions of the markers of the chain, as far as it holds."""
    if len(content) < 22:
        return []
    pos, found = 18 + struct.unpack_from(">H", content, 12)[0], []
    while pos + 8 <= len(content):
        found.append(pos)
        following = struct.unpack_from(">I", content, pos)[0]
        if following <= pos:
            break
        pos = following
    return found


def _swap_sections(rng: Random, content: bytearray, donor: bytes) -> None:
    markers = _markers(content)
    if len(markers) >= 3:
        at = rng.randrange(len(markers) - 2)
        _exchange(content, (markers[at], markers[at + 1]), (markers[at + 1], markers[at + 2]))


def _move_marker(rng: Random, content: bytearray, donor: bytes) -> None:
    """A marker points elsewhere. Its CRC does not cover that, so only what stands there can tell."""
    if markers := _markers(content):
        at = rng.choice(markers)
        following = rng.choice(
            (*BOMBS, at, at + 7, at + 8, at + 12, len(content), len(content) + 1, *markers, rng.randrange(len(content) + 9))
        )
        struct.pack_into(">I", content, at, following & 0xFFFFFFFF)


def _marker_anywhere(rng: Random, content: bytearray, donor: bytes) -> None:
    """A marker of this segment whose CRC holds, at any place."""
    if len(content) < 22:
        return
    at = _place(rng, content)
    seed = sections.id_crc(struct.unpack_from(">q", content, 4)[0])
    following = rng.choice((0, at, at + 8, len(content), rng.randrange(len(content) + 9)))
    content[at : at + 8] = sections.encode_marker(seed, at, following)


def _size_bomb(rng: Random, content: bytearray, donor: bytes) -> None:
    """A frame's size is another, with a CRC of its own that holds."""
    if edges := _frame_edges(content):
        at = rng.choice(edges)
        size = struct.unpack_from(">I", content, at)[0]
        lie = struct.pack(
            ">I", rng.choice((*BOMBS, size - 1, size + 1, size + 12, len(content) - at - 12, len(content) - at - 11)) & 0xFFFFFFFF
        )
        content[at : at + 8] = lie + struct.pack(">I", zlib.crc32(lie))


def _vint_bomb(rng: Random, content: bytearray, donor: bytes) -> None:
    """Bytes of a body become a vint of some terrible value, in place: whatever stood behind it is
    overwritten.
    """
    at = _place(rng, content)
    bomb = write_unsigned(rng.choice(BOMBS))
    content[at : at + len(bomb)] = bomb[: len(content) - at]


def _header(rng: Random, content: bytearray, donor: bytes) -> None:
    """Another version, id or length of parameters in the header, whose CRC is put right."""
    if len(content) < 22:
        return
    pick = rng.randrange(4)
    if pick == 0:
        struct.pack_into(">i", content, 0, rng.choice((-1, 0, 1, 5, 6, 7, 8, 9, 10, 255, 256, 2**31 - 1)))
    elif pick == 1:
        struct.pack_into(">q", content, 4, rng.choice((-1, 0, 1, 2**63 - 1, -(2**63), rng.getrandbits(63))))
    elif pick == 2:
        struct.pack_into(">H", content, 12, rng.choice((0, 1, 2, 3, 40, 0xFFFF)))
    else:
        params = rng.choice((b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 40, b"1" * 5000, json.dumps(rng.choice(_PARAMS)).encode()))
        old = struct.unpack_from(">H", content, 12)[0]
        content[12 : 14 + old] = struct.pack(">H", len(params)) + params
    length = struct.unpack_from(">H", content, 12)[0]
    version, segment_id = struct.unpack_from(">iq", content)
    if 18 + length <= len(content):
        fixed = struct.pack(">iIIi", version, segment_id & 0xFFFFFFFF, segment_id >> 32 & 0xFFFFFFFF, length)
        struct.pack_into(">I", content, 14 + length, zlib.crc32(content[14 : 14 + length], zlib.crc32(fixed)))


@dataclass(frozen=True, slots=True)
class Damage:
    """A kind of damage. `in_place`: whatever is still whole afterwards stands where it stood."""

    name: str
    in_place: bool
    do: Callable[[Random, bytearray, bytes], None]


_DAMAGES = (
    Damage("bits flipped", True, _flip),
    Damage("bits flipped", True, _flip),
    Damage("bytes set", True, _set),
    Damage("bytes set", True, _set),
    Damage("range blanked", True, _blank),
    Damage("cut", True, _cut),
    Damage("cut and padded", True, _cut_and_pad),
    Damage("range removed", False, _remove),
    Damage("range inserted", False, _insert),
    Damage("range of another inserted", False, _insert_of_another),
    Damage("range overwritten", False, _overwrite),
    Damage("ranges swapped", False, _swap),
    Damage("frames swapped", False, _swap_frames),
    Damage("frame repeated", False, _repeat_frame),
    Damage("frame of another", False, _frame_of_another),
    Damage("sections swapped", False, _swap_sections),
    Damage("marker moved", True, _move_marker),
    Damage("marker anywhere", True, _marker_anywhere),
    Damage("size bomb", True, _size_bomb),
    Damage("vint bomb", True, _vint_bomb),
    Damage("header", False, _header),
)


# --- damage to what is in the bodies


def _restructured(rng: Random, corpus: Corpus, start: Seed, number: int) -> Case:
    """The segment built anew around bodies that were changed: lengths and CRCs are right, what they hold is
    not.
    """
    bodies = list(start.frames.values()) or [bytes(12)]
    how = []
    for at in range(len(bodies)):
        if at == 0 or rng.random() < 0.3:
            name, change = rng.choice(_BODY_DAMAGES if start.version < EPOCHS_VERSION else _BODY_DAMAGES + _EPOCH_DAMAGES)
            bodies[at] = change(rng, corpus, start, bodies[at])
            how.append(name)
    segment_id = struct.unpack_from(">q", start.content, 4)[0]
    if start.packing is not None:
        return Case(number, start, _packed(rng, start, segment_id, bodies), tuple(how), None, False, None)
    content = encode_segment(
        segment_id, start.version, bodies, per_section=rng.choice((0, 1, 2)), size=rng.choice((0, 0, len(start.content)))
    )
    return Case(number, start, content, tuple(how), None, False, None)


def _packed(rng: Random, start: Seed, segment_id: int, bodies: list[bytes]) -> bytes:
    """Sections of two bodies each, at times damaged before they are packed: what unpacks is then not what was
    meant.
    """
    contents = [bytearray(b"".join(map(encode_frame, bodies[at : at + 2]))) for at in range(0, len(bodies), 2)]
    if rng.random() < 0.5:
        hurt = rng.choice(contents)
        rng.choice((_flip, _set, _blank, _cut, _remove, _insert, _swap, _size_bomb, _swap_frames))(rng, hurt, bytes(hurt))
    packing = rng.choice((start.packing, start.packing, *PACKINGS))
    return pack(contents, packing, version=start.version, segment_id=segment_id, chunk=rng.choice((30, 300))).file


def _body_bytes(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    content = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((_flip, _set, _remove, _insert, _swap, _overwrite))(rng, content, body)
    return bytes(content)


def _body_bomb(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    """The vint that may stand at some position is replaced by another of any length, so that all behind it
    stays in step.
    """
    at = rng.randrange(len(body))
    extra = 8 - (body[at] ^ 0xFF).bit_length()
    left = len(body) - at
    bomb = rng.choice((*BOMBS, left - 1, left, left + 1, body[at] + 1, max(0, body[at] - 1)))
    return body[:at] + _long_form(rng, bomb) + body[at + 1 + extra :]


def _long_form(rng: Random, value: int) -> bytes:
    """A vint, sometimes in more bytes than it needs: readers take it all the same."""
    return b"\xff" + (value & 2**64 - 1).to_bytes(8, "big") if rng.random() < 0.2 else write_unsigned(value)


def _body_changed(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    try:
        mutation = changed(rng, decode_mutation(body, corpus.schema, version=start.version))
        return encode_mutation(mutation, corpus.schema, version=start.version)
    except WritetimeError:
        return _body_bytes(rng, corpus, start, body)


def _body_new(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    tables = [corpus.schema.tables[table_id] for table_id in rng.sample(sorted(corpus.schema.tables), 3)]
    try:
        return encode_mutation(random_mutation(rng, tables, corpus.schema), corpus.schema, version=start.version)
    except WritetimeError:
        return _body_bomb(rng, corpus, start, body)


def _body_spliced(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    """The beginning of one body and the end of another."""
    other = rng.choice(list(start.frames.values()))
    return body[: rng.randrange(len(body) + 1)] + other[rng.randrange(len(other) + 1) :]


def _body_of_another_table(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    table_id = rng.choice(sorted(corpus.schema.tables))
    at = count_offset(start.version) + 1
    return body[:at] + table_id.bytes + body[at + 16 :]


def _body_changed_then_hurt(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    return _body_bytes(rng, corpus, start, _body_changed(rng, corpus, start, body))


def _body_epoch(rng: Random, corpus: Corpus, start: Seed, body: bytes) -> bytes:
    """Of version 9: other flags, and an epoch that is another number, missing, there twice, or the body's last bytes."""
    try:
        update = rng.choice(decode_placed(body, corpus.schema, version=start.version))
    except WritetimeError:
        return _body_bytes(rng, corpus, start, body)
    at = update.start + 16
    after = read_unsigned(body, at)[1]
    epoch = rng.choice((b"", 2 * body[at:after], *3 * (_long_form(rng, rng.choice(BOMBS)),)))
    whole = bytes((rng.choice((0, 1, 2, 0x80, 0xFF)),)) + body[1:at] + epoch + body[after:]
    return whole[: at + rng.randrange(9)] if rng.random() < 0.1 else whole


_BodyDamages = tuple[tuple[str, Callable[[Random, Corpus, Seed, bytes], bytes]], ...]
_BODY_DAMAGES: _BodyDamages = (
    ("body: bytes", _body_bytes),
    ("body: vint bomb", _body_bomb),
    ("body: vint bomb", _body_bomb),
    ("body: other values", _body_changed),
    ("body: other values, then bytes", _body_changed_then_hurt),
    ("body: made up", _body_new),
    ("body: spliced", _body_spliced),
    ("body: of another table", _body_of_another_table),
)
_EPOCH_DAMAGES: _BodyDamages = (("body: flags and epochs", _body_epoch),)
"""In addition, from version 9 on."""
