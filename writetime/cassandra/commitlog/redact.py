"""A segment without some of its mutations: the others stand where they stood.

Strategy: in the place of a mutation that goes stands a *filler*: one empty update of a table that no Cassandra has, whose key is zeros.
Cassandra passes over it as over a table that was dropped, and so every other frame keeps its position, by which the ledger, TRUNCATE
records and events go. Where a mutation becomes shorter, a filler takes the rest. A rest that is too small for one is zeros: the section
ends early then, and a sync marker in the last eight bytes lets the next frame begin where it began; below eight bytes the section's rest
moves up. That is read here as all else is; Cassandra's own reader stops at the zeros. What a crashed node had not synced may be zeroed.

A compressed segment comes out as a plain one, its image, with a header of the same length whose parameters name no compressor. An
encrypted one is encrypted again, with the key that it has: its file may have another length, its image has not. Knows no schema: who
calls says what becomes of each body.
"""

from __future__ import annotations

import json
import struct
import zlib
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from typing import Final

from writetime.cassandra.commitlog import frames, sections
from writetime.cassandra.commitlog.descriptor import Descriptor, parse
from writetime.cassandra.commitlog.encryption.decryptor import Decryptor
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.mutation import IS_EMPTY
from writetime.cassandra.commitlog.segment import Frame, Problem, Scan
from writetime.cassandra.schema.system_tables import ERASED
from writetime.cassandra.types.vint import write_unsigned
from writetime.errors import UnsupportedSegment

Change = Callable[[bytes], bytes | None]
"""Of a body what is to stand in its place, no longer than it; `b""` for nothing; None to leave it."""

_FILLER: Final = write_unsigned(1) + ERASED.id.bytes
"""What a filler begins with: one update, of that table."""
_SMALLEST: Final = len(_FILLER) + 2
"""Bytes of a filler with an empty key."""
_HEADER: Final = struct.Struct(">iqH")
_LENGTH: Final = struct.Struct(">I")
_OPERATION: Final = "erase from a segment"


def changes(found: Scan, change: Change) -> dict[int, bytes]:
    """What is to stand in the place of which frames, by their number in `found.frames`."""
    made: dict[int, bytes] = {}
    for number, frame in enumerate(found.frames):
        body = change(found.body(frame))
        if body is not None:
            made[number] = body
    return made


def is_filler(body: bytes) -> bool:
    """Whether a mutation stands in the place of one that was cut out."""
    return body.startswith(_FILLER)


def without(
    found: Scan,
    changed: Mapping[int, bytes],
    torn: Callable[[bytes], bool] | None = None,
    *,
    name: str = "",
    keys: Keystore | None = None,
) -> bytes:
    """The segment with frames changed, as `changes` gives them. Bytes that its node had not synced are zeroed where `torn` says so.

    UnsupportedSegment for one that is damaged, or whose new body is longer than the old one: it cannot be written anew."""
    zeroed = [problem for problem in found.problems if torn is not None and torn(found.lost(problem))]
    if not changed and not zeroed:
        return found.file
    if found.descriptor.codec is not None and any(problem.in_file for problem in found.problems):
        raise _unsupported("it is packed, and a damaged range would be lost", name)
    if bad := next((problem for problem in zeroed if problem.kind != "torn_tail" or problem.in_file), None):
        raise _unsupported(f"a damaged range at {bad.position} may hold the key", name)
    writer = _Writer(found, name)
    # From behind: what stands before a place has not moved yet.
    for number in sorted(changed, reverse=True):
        writer.replace(found.frames[number], changed[number])
    for problem in zeroed:
        writer.zero(problem)
    return writer.encrypted(Decryptor(found.descriptor, keys, name)) if found.descriptor.encrypted else bytes(writer.out)


class _Writer:
    """The image that changes, and where its sync markers stand."""

    def __init__(self, found: Scan, name: str) -> None:
        self.name = name
        self.out = bytearray(found.image)
        self.seed = sections.id_crc(found.descriptor.id)
        header, self.start = _plain_header(found, name)
        self.out[: len(header)] = header
        self.markers: list[int] = []
        self.end = self._chain(found.end)

    def _chain(self, end: int) -> int:
        """Follow the markers from the header on; where the chain ends."""
        pos, image = self.start, bytes(self.out)
        while pos < end and sections.is_marker(image, len(image), self.seed, pos):
            self.markers.append(pos)
            pos, _ = sections.parse_marker(image, pos)
        return pos

    def replace(self, frame: Frame, body: bytes) -> None:
        place = bisect_right(self.markers, frame.start) - 1
        if place < 0 or frame.position > self.end:
            raise _unsupported(f"no chain of sync markers leads to the frame at {frame.start}", self.name)
        made = frames.encode_frame(body) if body else b""
        room = frame.position - frame.start - len(made) - frames.OVERHEAD
        if room >= _SMALLEST:
            made += frames.encode_frame(_filler(room))
        gap = frame.position - frame.start - len(made)
        if gap < 0:
            raise _unsupported(f"the frame at {frame.start} would become longer", self.name)
        owner = self.markers[place]
        following = self.markers[place + 1] if place + 1 < len(self.markers) else self.end
        self.out[frame.start : frame.start + len(made)] = made
        if gap < sections.MARKER_SIZE or frame.position == following:
            rest = bytes(self.out[frame.position : following])
            self.out[frame.start + len(made) : following] = rest + bytes(gap)
            return
        marker = frame.position - sections.MARKER_SIZE
        self.out[frame.start + len(made) : marker] = bytes(gap - sections.MARKER_SIZE)
        self._mark(owner, marker)
        self._mark(marker, following)
        insort(self.markers, marker)

    def encrypted(self, cipher: Decryptor) -> bytes:
        """The file of the image: each section's content behind its length, encrypted."""
        out = self.out[: self.start]
        ends = [*self.markers[1:], self.end]
        for marker, end in zip(self.markers, ends, strict=True):
            content = bytes(self.out[marker + sections.MARKER_SIZE : end])
            packed = _LENGTH.pack(len(content)) + cipher.pack(content)
            start = len(out)
            out += sections.encode_marker(self.seed, start, start + sections.MARKER_SIZE + len(packed)) + packed
        return bytes(out)

    def _mark(self, pos: int, following: int) -> None:
        self.out[pos : pos + sections.MARKER_SIZE] = sections.encode_marker(self.seed, pos, following)

    def zero(self, problem: Problem) -> None:
        self.out[problem.position : problem.position + problem.size] = bytes(problem.size)


def _filler(size: int) -> bytes:
    """A mutation of so many bytes: one empty update, whose key is zeros."""
    for extra in range(5):
        key = size - _SMALLEST - extra
        if key < 1 << 7 * (extra + 1):
            # Of some sizes the key's length takes a byte more than it has to, which readers take.
            length = (0xFF00 >> extra & 0xFF) << 8 * extra | key
            return _FILLER + length.to_bytes(extra + 1, "big") + bytes(key) + bytes((IS_EMPTY,))
    raise ValueError(f"no frame has {size} bytes")


def _plain_header(found: Scan, name: str) -> tuple[bytes, int]:
    """The header of a plain segment, as long as the one that is there, and where it ends."""
    descriptor, start = parse(found.file)
    if descriptor.codec is None or descriptor.encrypted:
        return bytes(found.file[:start]), start
    length = start - len(Descriptor(descriptor.version, descriptor.id).encode()) + len(b"{}")
    params = json.dumps({"": "".ljust(length - len(b'{"":""}'))}, separators=(",", ":")).encode()
    if len(params) != length:
        raise _unsupported("its header has no room", name)
    fixed = _HEADER.pack(descriptor.version, descriptor.id, length) + params
    crc = zlib.crc32(params, zlib.crc32(_fixed_for_crc(descriptor, length)))
    return fixed + _LENGTH.pack(crc), start


def _fixed_for_crc(descriptor: Descriptor, length: int) -> bytes:
    low, high = descriptor.id & 0xFFFFFFFF, descriptor.id >> 32 & 0xFFFFFFFF
    return struct.pack(">iIIi", descriptor.version, low, high, length)


def _unsupported(why: str, name: str) -> UnsupportedSegment:
    return UnsupportedSegment(why, operation=_OPERATION, obj=name)
