"""A compressed or encrypted segment as the uncompressed one it stands for: its image (Cassandra 3.0-5.0, CommitLogSegmentReader).

    header
    marker       at its place in the file, which its CRC binds it to (`writetime.cassandra.commitlog.sections`)
    u32          length of the section's content
    ...          one packed block (compressed), or encrypted blocks (`encryption.decryptor`), up to the next marker

Positions that Cassandra speaks of (`_cdc.idx`, truncations, its own reader) are those of the image: the header, then eight bytes and the
content of each section. The image's markers are made anew for their places there, so whoever reads plain segments reads it unchanged.

Strategy: a section is taken only if it unpacks to the last byte. Where it does not, or a marker is damaged, reading goes on at the next
marker that proves itself at its place in the file. A lost section leaves a hole of zeros as long as it claims to be, if it can be, so that
the positions behind it stay right. Lost ranges are positions in the *file*. Knows nothing of frames, codecs or keys.
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
"""Damaged sections that are listed each by itself, as `segment.MOST_PROBLEMS`."""
LIMIT_VARIABLE: Final = "WRITETIME_IMAGE_LIMIT_MIB"
_DEFAULT_LIMIT_MIB: Final = "512"
_LARGEST_POSITION: Final = 0x7FFFFFFF
"""Cassandra's positions are i32."""
_LENGTH = struct.Struct(">I")


class Packing(NamedTuple):
    """How sections are packed.

    `unpack` takes a block and the bytes that there is room for, and raises SegmentError; `most_of` bounds what so many bytes can hold;
    `whole` says that a block which unpacks is whole, so that its length is more to be believed than the section's.
    """

    unpack: Callable[[bytes, int], bytes]
    most_of: Callable[[int], int]
    whole: bool


class Lost(NamedTuple):
    """A range of the file that could not be unpacked, and where in the image it would begin."""

    position: int
    size: int
    logical: int
    error: SegmentError


class Unpacked(NamedTuple):
    """The image, what could not be unpacked, and where in the file reading ended."""

    image: bytes
    lost: list[Lost]
    end: int


def image_limit() -> int:
    """The most bytes that a segment may unpack to. Raises ConfigError for a limit that is none."""
    text = os.environ.get(LIMIT_VARIABLE, _DEFAULT_LIMIT_MIB)
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"`{text}` is no number of MiB", operation="read the environment", obj=LIMIT_VARIABLE)
    return min(_LARGEST_POSITION, int(text) << 20)


def unpack(
    buf: bytes, start: int, segment_id: int, packing: Packing, *, synced: int | None = None, begin: sections.Place | None = None
) -> Unpacked:
    """The image of a segment whose first section is at `start`. Sections from the logical position `synced` on are not looked at, nor are
    those before `begin`, which are zeros in the image."""
    unpacker = _Unpacker(buf, start, segment_id, packing, synced)
    if begin is not None:
        unpacker.image.write(bytes(begin.logical - start))
        unpacker.logical = begin.logical
    end = unpacker.run(start if begin is None else begin.position)
    return Unpacked(unpacker.image.getvalue(), unpacker.lost, end)


class _Unpacker:
    """The walk over a packed file: the image's parts and what is lost gather here, methods return positions in the file.

    Once a pointer or a section was found damaged, no pointer is followed past a marker that proves itself (`careful`): so the work stays
    linear, whatever the pointers say.
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
        # Its value is handed out without one more copy.
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
        """Take the section whose marker is at `pos`; where to go on, and whether the walk is over."""
        inside = pos + MARKER_SIZE + LENGTH_SIZE <= next_pos <= self.length
        if inside and not self.careful and isinstance(content := self._content(pos, next_pos), bytes):
            return self._take(pos, next_pos, content), False
        self.careful = True
        found = self._find_marker(pos + MARKER_SIZE)
        far = found if found >= 0 else self.length
        near = next_pos if inside and next_pos < far else far
        for end in dict.fromkeys((near, far)):
            content = self._content(pos, end)
            # Where the file just stops, a length of zero without a block is no proof of an empty section.
            if isinstance(content, bytes) and (end in (next_pos, found) or end > pos + MARKER_SIZE + LENGTH_SIZE):
                if end != next_pos:
                    self._lose(pos, pos + MARKER_SIZE, CorruptSection("the sync marker points to a wrong place"))
                return self._take(pos, end, content), False
        if found < 0 and next_pos > self.length:
            self._lose(pos, self.length, TornTail("the last section ends early, so that nothing of it can be unpacked"))
            return pos, True
        failure = self._content(pos, near)
        cause = failure if isinstance(failure, SegmentError) else CorruptSection("the sync marker points to a wrong place")
        return self._lose_section(pos, near, cause), False

    def _damaged_marker(self, pos: int, next_pos: int, crc: int) -> tuple[int, bool]:
        """No marker proves itself at `pos`, but a section may, up to where it is said to end or to the next marker.

        Zeros up to the end of the file are how a segment may end.
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
        """Whether a section whose marker is damaged may end at `near`, short of `end`: not if there is nothing to unpack."""
        return near == end or pos + MARKER_SIZE + LENGTH_SIZE < near < end

    def _content(self, pos: int, end: int) -> bytes | SegmentError:
        """What the section from `pos` to `end` holds, if it is whole."""
        start = pos + MARKER_SIZE + LENGTH_SIZE
        if end < start:
            return CorruptSection("it has no room for its length")
        claimed = self._claim(pos)
        try:
            content = self.packing.unpack(self.buf[start:end], max(0, self.limit - self.logical - MARKER_SIZE))
        except SegmentError as error:
            return error
        # A block of no bytes proves nothing: it is where any wrong pointer to just behind the length would end.
        if len(content) == claimed or (end > start and self.packing.whole):
            return content
        return CorruptSection(f"it should hold {claimed} bytes and holds {len(content)}")

    def _take(self, pos: int, end: int, content: bytes) -> int:
        start = pos + MARKER_SIZE
        if (claimed := self._claim(pos)) != len(content):
            error = CorruptSection(f"a section's length is wrong: {claimed}, and it holds {len(content)} bytes, which are read")
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
            note = f"positions behind it rest on the {claimed} bytes that it claims to hold"
        else:
            note = "positions behind it are too low, for how much it held is not known"
        message = f"a section cannot be unpacked: {cause.message}; {note}"
        self._lose(pos, end, type(cause)(message, retriable=cause.retriable, hint=cause.hint))
        if believable:
            self._append(bytes(claimed))
        return end

    def _claim(self, pos: int) -> int:
        (claimed,) = _LENGTH.unpack_from(self.buf, pos + MARKER_SIZE)
        return int(claimed)

    def _find_marker(self, start: int) -> int:
        """As `sections.find_marker`. The walk only goes on, so nothing is searched twice."""
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
        # Each with its error, millions of them would not fit in memory. The walk only goes on, so the first comes first.
        first = self.lost[0]
        if not self.many:
            message = f"more than {MOST_LOST} sections are damaged; this is from the first to the last: {first.error.message}"
            one = type(first.error)(message, retriable=first.error.retriable, hint=first.error.hint)
            self.lost, self.many = [first._replace(error=one)], True
        self.lost[0] = self.lost[0]._replace(size=end - first.position)
