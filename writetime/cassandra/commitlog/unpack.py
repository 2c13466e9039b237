"""Unpacks a compressed or encrypted segment into its image, the uncompressed segment.

Source: Cassandra 3.0-5.0, CommitLogSegmentReader.


    header
    marker       its CRC covers its position in the file (`writetime.cassandra.commitlog.sections`)
    u32          length of the section's content
    ...          one packed block (compressed), or encrypted blocks (`encryption.decryptor`), up to the next marker

Cassandra's positions (`_cdc.idx`, truncations, CommitLogReader) refer to the image: the header, then eight
bytes and the content of each section. The image's markers are computed for its positions, so it reads like a
plain segment.

Strategy: a section is accepted only if it unpacks to the last byte. If not, or if a marker is damaged,
reading continues at the next valid marker of the file. A lost section is replaced by zeros of its declared
length, if that length is possible, so that later positions stay correct. Lost ranges are positions in the
*file*. This module does not know frames, codecs or keys.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Final, NamedTuple

from writetime.cassandra.commitlog import sections
from writetime.cassandra.commitlog.sections import MARKER_SIZE
from writetime.errors import ConfigError, CorruptSection, SegmentError, TornTail

LENGTH_SIZE: Final = 4
MOST_LOST: Final = 100
"""Damaged sections that are listed separately, like `segment.MOST_PROBLEMS`."""
LIMIT_VARIABLE: Final = "WRITETIME_IMAGE_LIMIT_MIB"
_DEFAULT_LIMIT_MIB: Final = "512"
_LARGEST_POSITION: Final = 0x7FFFFFFF
"""Cassandra's positions are i32."""
_LENGTH = struct.Struct(">I")


class Packing(NamedTuple):
    """How sections are packed.

    `unpack` takes a block and a limit in bytes, and raises SegmentError. `most_of` is the maximum unpacked
    size of so many bytes. `whole`: a block that unpacks is complete, so its length is more reliable than the
    section's.
    """

    unpack: Callable[[bytes, int], bytes]
    most_of: Callable[[int], int]
    whole: bool


class Lost(NamedTuple):
    """A range of the file that could not be unpacked, and its start in the image."""

    position: int
    size: int
    logical: int
    error: SegmentError


class Unpacked(NamedTuple):
    """The image, the ranges that could not be unpacked, and the position in the file where reading ended."""

    image: bytes
    lost: list[Lost]
    end: int


def image_limit() -> int:
    """The maximum unpacked size of a segment in bytes. Raises ConfigError if the limit is invalid."""
    text = os.environ.get(LIMIT_VARIABLE, _DEFAULT_LIMIT_MIB)
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"`{text}` is not a number of MiB", operation="read the environment", obj=LIMIT_VARIABLE)
    return min(_LARGEST_POSITION, int(text) << 20)


def unpack(
    buf: bytes, start: int, segment_id: int, packing: Packing, *, synced: int | None = None, begin: sections.Place | None = None
) -> Unpacked:
    """The image of a segment whose first section is at `start`. Sections after the logical position `synced`
    are not read. Sections before `begin` are not read either and are zeros in the image."""
    unpacker = _Unpacker(buf, start, segment_id, packing, synced)
    if begin is not None:
        unpacker.image.write(bytes(begin.logical - start))
        unpacker.logical = begin.logical
    end = unpacker.run(start if begin is None else begin.position)
    return Unpacked(unpacker.image.getvalue(), unpacker.lost, end)


class _Unpacker:
    """Reads a packed file. Collects the image and the lost ranges; methods return positions in the file.

    After the first damaged pointer or section, no pointer is followed past a valid marker (`careful`). This
    keeps the work linear whatever the pointers contain.
    """

    def __init__(self, buf: bytes, start: int, segment_id: int, packing: Packing, synced: int | None) -> None:
        self.buf = buf
        self.length = len(buf)
        self.data_end = len(buf.rstrip(b"\0"))
        self.seed = sections.id_crc(segment_id)
        self.packing = packing
        self.stop_at = _LARGEST_POSITION if synced is None else synced
        self.limit = image_limit()
        self.careful = False
        # getvalue() returns the bytes without another copy.
        self.image = BytesIO()
        self.image.write(buf[:start])
        self.searched: tuple[int, int] | None = None
        self.logical = start
        self.lost: list[Lost] = []
        self.many = False

    def run(self, pos: int) -> int:
        done = False
        while not done and pos <= self.length - MARKER_SIZE and self.logical < self.stop_at:
            next_pos, crc = sections.parse_marker(self.buf, pos)
            if crc == sections.marker_crc(self.seed, pos):
                pos, done = self._section(pos, next_pos)
            else:
                pos, done = self._damaged_marker(pos, next_pos, crc)
        if not done and pos < self.data_end and self.logical < self.stop_at:
            self._lose(pos, self.data_end, TornTail("the last sync marker is half-written"))
        return pos

    def _section(self, pos: int, next_pos: int) -> tuple[int, bool]:
        """Read the section whose marker is at `pos`. Returns the next position and whether reading is
        finished."""
        inside = pos + MARKER_SIZE + LENGTH_SIZE <= next_pos <= self.length
        if inside and not self.careful and isinstance(content := self._content(pos, next_pos), bytes):
            return self._take(pos, next_pos, content), False
        self.careful = True
        found = self._find_marker(pos + MARKER_SIZE)
        far = found if found >= 0 else self.length
        near = next_pos if inside and next_pos < far else far
        for end in dict.fromkeys((near, far)):
            content = self._content(pos, end)
            # At the end of the file, a length of zero without a block does not prove an empty section.
            if isinstance(content, bytes) and (end in (next_pos, found) or end > pos + MARKER_SIZE + LENGTH_SIZE):
                if end != next_pos:
                    self._lose(pos, pos + MARKER_SIZE, CorruptSection("the sync marker points to a wrong place"))
                return self._take(pos, end, content), False
        if found < 0 and next_pos > self.length:
            self._lose(pos, self.length, TornTail("the last section ends early and cannot be unpacked"))
            return pos, True
        failure = self._content(pos, near)
        cause = failure if isinstance(failure, SegmentError) else CorruptSection("the sync marker points to a wrong place")
        return self._lose_section(pos, near, cause), False

    def _damaged_marker(self, pos: int, next_pos: int, crc: int) -> tuple[int, bool]:
        """The marker at `pos` is invalid, but its section may be valid up to its declared end or to the next
        marker.

        Zeros up to the end of the file are a normal end of a segment.
        """
        if pos >= self.data_end:
            return pos, True
        self.careful = True
        found = self._find_marker(pos + 1)
        end = found if found >= 0 else self.length
        for near in (next_pos, end):
            content = self._content(pos, near) if self._may_end(pos, near, end) else None
            if isinstance(content, bytes):
                self._lose(pos, pos + MARKER_SIZE, CorruptSection("the sync marker's CRC is wrong; its section is read"))
                return self._take(pos, near, content), False
        if found >= 0:
            return self._lose_section(pos, end, CorruptSection("the sync marker's CRC is wrong")), False
        error: SegmentError = CorruptSection("the sync marker's CRC is wrong")
        if crc == 0:
            error = TornTail("the last sync marker is half-written" if next_pos else "bytes follow that no sync marker covers")
        self._lose(pos, self.data_end, error)
        return pos, True

    def _may_end(self, pos: int, near: int, end: int) -> bool:
        """Whether a section with a damaged marker may end at `near`, before `end`: not if it would be
        empty."""
        return near == end or pos + MARKER_SIZE + LENGTH_SIZE < near < end

    def _content(self, pos: int, end: int) -> bytes | SegmentError:
        """The content of the section from `pos` to `end`, or why it is invalid."""
        start = pos + MARKER_SIZE + LENGTH_SIZE
        if end < start:
            return CorruptSection("the section is too short for its length field")
        claimed = self._claim(pos)
        try:
            content = self.packing.unpack(self.buf[start:end], max(0, self.limit - self.logical - MARKER_SIZE))
        except SegmentError as error:
            return error
        # An empty block proves nothing: any wrong pointer to the byte after the length would give one.
        if len(content) == claimed or (end > start and self.packing.whole):
            return content
        return CorruptSection(f"the section declares {claimed} bytes and holds {len(content)}")

    def _take(self, pos: int, end: int, content: bytes) -> int:
        start = pos + MARKER_SIZE
        if (claimed := self._claim(pos)) != len(content):
            error = CorruptSection(f"the section's length is wrong: it declares {claimed} bytes and holds {len(content)}, which are read")
            self._lose(start, start + LENGTH_SIZE, error)
        self._append(content)
        return end

    def _append(self, content: bytes) -> None:
        following = self.logical + MARKER_SIZE + len(content)
        self.image.write(sections.encode_marker(self.seed, self.logical, following))
        self.image.write(content)
        self.logical = following

    def _lose_section(self, pos: int, end: int, cause: SegmentError) -> int:
        size = end - pos - MARKER_SIZE - LENGTH_SIZE
        claimed = self._claim(pos) if size >= 0 else -1
        believable = 0 <= claimed <= min(self.packing.most_of(max(size, 0)), self.limit - self.logical - MARKER_SIZE)
        if believable:
            note = f"later positions assume the {claimed} bytes that it declares"
        else:
            note = "later positions are too low, because its size is unknown"
        message = f"a section cannot be unpacked: {cause.message}; {note}"
        self._lose(pos, end, type(cause)(message, retriable=cause.retriable, hint=cause.hint))
        if believable:
            self._append(bytes(claimed))
        return end

    def _claim(self, pos: int) -> int:
        (claimed,) = _LENGTH.unpack_from(self.buf, pos + MARKER_SIZE)
        return int(claimed)

    def _find_marker(self, start: int) -> int:
        """Like `sections.find_marker`, with a cache: positions only increase, so nothing is searched
        twice."""
        if self.searched is not None:
            since, found = self.searched
            if since <= start and (found < 0 or start <= found):
                return found
        self.searched = start, sections.find_marker(self.buf, start, self.data_end, self.length, self.seed)
        return self.searched[1]

    def _lose(self, start: int, end: int, error: SegmentError) -> None:
        if isinstance(error, TornTail) or (len(self.lost) < MOST_LOST and not self.many):
            self.lost.append(Lost(start, end - start, self.logical, error))
            return
        # Millions of separate errors would not fit in memory. Positions only increase, so the first range
        # stays first.
        first = self.lost[0]
        if not self.many:
            message = f"more than {MOST_LOST} sections are damaged; this range covers all of them: {first.error.message}"
            one = type(first.error)(message, retriable=first.error.retriable, hint=first.error.hint)
            self.lost, self.many = [first._replace(error=one)], True
        self.lost[0] = self.lost[0]._replace(size=end - first.position)
