"""Removes mutations from a segment without moving the others.

Strategy: a removed mutation is replaced by a *filler*: one empty update of a table that does not exist, with
a key of zeros. Cassandra skips it like an update of a dropped table. Every other frame keeps its position,
which the ledger, TRUNCATE records and events refer to. If a mutation becomes shorter, a filler takes the
remaining bytes. If these are too few for a filler, they are zeroed: the section ends early, and a sync marker
in the last eight bytes lets the next frame keep its position. Below eight bytes, the rest of the section
moves up. This package reads such segments completely; Cassandra's reader stops at the zeros. Bytes that a
crashed node had not synced may be zeroed.

A compressed segment becomes its plain image, with a header of the same length and no compressor. An encrypted
segment is encrypted again with the same key: the length of the file may change, the image's does not. This
module does not know the schema: the caller decides what to do with each body.
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
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION, IS_EMPTY
from writetime.cassandra.commitlog.segment import Frame, Problem, Scan
from writetime.cassandra.schema.system_tables import ERASED
from writetime.cassandra.types.vint import write_unsigned
from writetime.errors import UnsupportedSegment

Change = Callable[[bytes], bytes | None]
"""Returns the replacement of a body, which must not be longer; `b""` removes it, None keeps it."""

_FILLER: Final = write_unsigned(1) + ERASED.id.bytes
"""The start of a filler: one update of that table."""
_FILLER_WITH_EPOCH: Final = b"\0" + _FILLER + write_unsigned(0)
"""The same with the flags and the epoch that mutations have from version 9 on."""
_HEADER: Final = struct.Struct(">iqH")
_LENGTH: Final = struct.Struct(">I")
_OPERATION: Final = "erase from a segment"


def changes(found: Scan, change: Change) -> dict[int, bytes]:
    """The replacement bodies by index in `found.frames`."""
    made: dict[int, bytes] = {}
    for number, frame in enumerate(found.frames):
        body = change(found.body(frame))
        if body is not None:
            made[number] = body
    return made


def is_filler(body: bytes) -> bool:
    """Whether a mutation is a filler, of any version."""
    return body.startswith((_FILLER, _FILLER_WITH_EPOCH))


def without(
    found: Scan,
    changed: Mapping[int, bytes],
    torn: Callable[[bytes], bool] | None = None,
    *,
    name: str = "",
    keys: Keystore | None = None,
) -> bytes:
    """The segment with the changed frames of `changes`. Bytes that the node had not synced are zeroed if
    `torn` returns true.

    Raises UnsupportedSegment if the segment is damaged or a new body is longer than the old one."""
    zeroed = [problem for problem in found.problems if torn is not None and torn(found.lost(problem))]
    if not changed and not zeroed:
        return found.file
    if found.descriptor.codec is not None and any(problem.in_file for problem in found.problems):
        raise _unsupported("the segment is compressed or encrypted, and a damaged range would be lost", name)
    if bad := next((problem for problem in zeroed if problem.kind != "torn_tail" or problem.in_file), None):
        raise _unsupported(f"a damaged range at {bad.position} may hold the key", name)
    writer = _Writer(found, name)
    # From the end, so that earlier positions do not move.
    for number in sorted(changed, reverse=True):
        writer.replace(found.frames[number], changed[number])
    for problem in zeroed:
        writer.zero(problem)
    return writer.encrypted(Decryptor(found.descriptor, keys, name)) if found.descriptor.encrypted else bytes(writer.out)


class _Writer:
    """The changed image and the positions of its sync markers."""

    def __init__(self, found: Scan, name: str) -> None:
        self.name = name
        self.version = found.descriptor.version
        self.out = bytearray(found.image)
        self.seed = sections.id_crc(found.descriptor.id)
        header, self.start = _plain_header(found, name)
        self.out[: len(header)] = header
        self.markers: list[int] = []
        self.end = self._chain(found.end)

    def _chain(self, end: int) -> int:
        """Follow the markers from the header. Returns the end of the chain."""
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
        if room >= _smallest(self.version):
            made += frames.encode_frame(_filler(room, self.version))
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
        """The image as an encrypted file: for each section the length and the encrypted content."""
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


def _start(version: int) -> bytes:
    return _FILLER_WITH_EPOCH if version >= EPOCHS_VERSION else _FILLER


def _smallest(version: int) -> int:
    """Size in bytes of a filler with an empty key."""
    return len(_start(version)) + 2


def _filler(size: int, version: int) -> bytes:
    """A mutation of `size` bytes: one empty update with a key of zeros."""
    for extra in range(5):
        key = size - _smallest(version) - extra
        if key < 1 << 7 * (extra + 1):
            # For some sizes, the key's length needs one byte more than the shortest vint. Readers accept
            # that.
            length = (0xFF00 >> extra & 0xFF) << 8 * extra | key
            return _start(version) + length.to_bytes(extra + 1, "big") + bytes(key) + bytes((IS_EMPTY,))
    raise ValueError(f"a filler of {size} bytes is impossible")


def _plain_header(found: Scan, name: str) -> tuple[bytes, int]:
    """The header of a plain segment, with the length of the existing header, and its end."""
    descriptor, start = parse(found.file)
    if descriptor.codec is None or descriptor.encrypted:
        return bytes(found.file[:start]), start
    length = start - len(Descriptor(descriptor.version, descriptor.id).encode()) + len(b"{}")
    params = json.dumps({"": "".ljust(length - len(b'{"":""}'))}, separators=(",", ":")).encode()
    if len(params) != length:
        raise _unsupported("the header has no room for other parameters", name)
    fixed = _HEADER.pack(descriptor.version, descriptor.id, length) + params
    crc = zlib.crc32(params, zlib.crc32(_fixed_for_crc(descriptor, length)))
    return fixed + _LENGTH.pack(crc), start


def _fixed_for_crc(descriptor: Descriptor, length: int) -> bytes:
    low, high = descriptor.id & 0xFFFFFFFF, descriptor.id >> 32 & 0xFFFFFFFF
    return struct.pack(">iIIi", descriptor.version, low, high, length)


def _unsupported(why: str, name: str) -> UnsupportedSegment:
    return UnsupportedSegment(why, operation=_OPERATION, obj=name)
