"""A whole segment: header, sections and frames, with every byte accounted for.

Strategy: frames and markers have their own CRCs, so damage costs only the bytes that cannot be separated from
it. If a length cannot be trusted, reading continues at the next valid marker (`sections.is_marker`). Damage
is returned as data, with position, size and error, and never raised; more than `MOST_PROBLEMS` places are
merged into one range (`few`). Only an invalid header is raised. A packed segment is first unpacked into its
image, the uncompressed segment (`writetime.cassandra.commitlog.unpack`).

`scan` uses the compiled engine (`writetime.kernels.segment_walk`) if it can be imported. This module does not
read frame bodies, except in `peek`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from uuid import UUID

from writetime.cassandra.commitlog import codecs, frames, sections, unpack
from writetime.cassandra.commitlog.descriptor import Descriptor, parse
from writetime.cassandra.commitlog.encryption.decryptor import Decryptor
from writetime.cassandra.commitlog.frames import FrameCheck, check_frame
from writetime.cassandra.commitlog.mutation import read_head
from writetime.errors import (
    CorruptDescriptor,
    CorruptFrame,
    CorruptSection,
    SegmentError,
    TornTail,
    UnsupportedSegment,
)

if TYPE_CHECKING:
    from writetime.cassandra.commitlog.encryption.keystore import Keystore

MOST_PROBLEMS: Final = 100
"""Damaged places that are listed separately. A failing disk causes a few; a crafted file can have one every
13 bytes, and each would become a row, an object and a notification downstream."""
Engine = Literal["auto", "python", "numba"]
ProblemKind = Literal["torn_tail", "corrupt_section", "corrupt_frame", "too_large"]

_COMPILED_TWIN: Final = "writetime.kernels.segment_walk"
"""The compiled engine, imported by name: it imports this module, which must work without numba."""


class Frame(NamedTuple):
    """One valid frame. `position` is its end, as in Cassandra's CommitLogReader."""

    position: int
    start: int
    body_offset: int
    body_length: int


class Reason(IntEnum):
    """Why bytes are lost. The compiled engine returns these numbers."""

    BODY_CRC = 0
    FRAME_SIZE = 1
    FRAME_OVERRUN = 2
    MARKER = 3
    MARKER_NEXT = 4
    CUT_SHORT = 5
    UNMARKED_TAIL = 6
    HALF_MARKER = 7
    NOT_AS_PROMISED = 8
    MANY = 9


REASONS: dict[Reason, tuple[type[SegmentError], str]] = {
    Reason.BODY_CRC: (CorruptFrame, "the frame's CRC is wrong; the next frame is read"),
    Reason.FRAME_SIZE: (CorruptSection, "a frame's size or its CRC is wrong; nothing is readable up to the next sync marker"),
    Reason.FRAME_OVERRUN: (CorruptSection, "a frame reaches past the end of its section"),
    Reason.MARKER: (CorruptSection, "the sync marker's CRC is wrong"),
    Reason.MARKER_NEXT: (CorruptSection, "the sync marker points to a wrong place"),
    Reason.CUT_SHORT: (TornTail, "the last section ends early"),
    Reason.UNMARKED_TAIL: (TornTail, "bytes follow that no sync marker covers"),
    Reason.HALF_MARKER: (TornTail, "the last sync marker is half-written"),
    Reason.MANY: (
        CorruptSection,
        f"more than {MOST_PROBLEMS} places are damaged; this range covers all of them, and good frames inside it are read",
    ),
    Reason.NOT_AS_PROMISED: (TornTail, "the segment ends before its synced position"),
}
_KINDS: dict[type[SegmentError], ProblemKind] = {
    CorruptFrame: "corrupt_frame",
    CorruptSection: "corrupt_section",
    TornTail: "torn_tail",
    UnsupportedSegment: "too_large",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A range of `size` bytes at `position` that could not be read. The size is 0 if bytes are missing.

    The position refers to the image, like a frame's, or to the packed file if `in_file` is set.
    """

    kind: ProblemKind
    position: int
    size: int
    error: SegmentError
    in_file: bool = False


class Ending(StrEnum):
    """How reading ended. TORN and DAMAGED come with a problem that has the details."""

    UNUSED = "unused"
    """There is no section: the node allocated the segment and never wrote to it."""
    END_OF_FILE = "end_of_file"
    """The file ends with its last section."""
    ZEROS = "zeros"
    """Zeros follow the last section: the file is preallocated."""
    GROWING = "growing"
    """Reading stopped at the synced position: later bytes may be half-written."""
    TORN = "torn"
    """The last section or marker is incomplete: the node is running or crashed, or the file is truncated."""
    DAMAGED = "damaged"
    """Bytes that are not a section, with no valid marker after them."""


@dataclass(frozen=True, slots=True)
class Scan:
    """All valid frames of a segment in log order, and all problems. `end` is where reading ended, in bytes.

    `image` is the uncompressed segment: header, markers and payloads at the positions that Cassandra uses.
    Frames and `end` are positions in the image. For a plain segment, the image is `file` itself.
    """

    descriptor: Descriptor
    frames: Sequence[Frame]
    problems: list[Problem]
    end: int
    ending: Ending
    image: bytes
    file: bytes

    def body(self, frame: Frame) -> bytes:
        """The mutation of a frame."""
        return self.image[frame.body_offset : frame.body_offset + frame.body_length]

    def lost(self, problem: Problem) -> bytes:
        """The bytes of a problem's range."""
        return (self.file if problem.in_file else self.image)[problem.position : problem.position + problem.size]


class RawProblem(NamedTuple):
    position: int
    size: int
    reason: Reason


def few(problems: list[RawProblem]) -> list[RawProblem]:
    """The problems, or one range over all of them if there are more than `MOST_PROBLEMS`. A torn tail at the
    end stays separate: whether it is damage depends on how the segment ended."""
    if len(problems) <= MOST_PROBLEMS:
        return problems
    kept = is_torn(problems[-1].reason)
    rest, torn = problems[: len(problems) - kept], problems[len(problems) - kept :]
    start, end = min(item.position for item in rest), max(item.position + item.size for item in rest)
    return [RawProblem(start, end - start, Reason.MANY), *torn]


def is_torn(reason: Reason) -> bool:
    """Whether it is a torn tail."""
    return REASONS[reason][0] is TornTail


def scan(
    buf: bytes,
    *,
    synced: int | None = None,
    name: str = "",
    engine: Engine = "auto",
    keys: Keystore | None = None,
    begin: sections.Place | None = None,
) -> Scan:
    """Read a segment's bytes. `name` is the file name, used in errors; a segment file name must match the
    header.

    `synced` is for a growing segment: the position from `_cdc.idx`, after which bytes may be half-written and
    are not read. Omit it for a completed segment. `keys` decrypt an encrypted segment. `begin`, a position
    between two sections, skips everything before it except the header; the image of a packed segment has
    zeros there. Raises only for the header: NotASegment, CorruptDescriptor, UnsupportedSegment (version,
    compressor or cipher; retriable if only the key is missing).
    """
    descriptor, start = parse(buf, name=name)
    _check_name(descriptor, name)
    if descriptor.codec is None:
        found, problems, end = _walk(buf, begin.position if begin else start, descriptor, synced, name, engine)
        return Scan(descriptor, found, problems, end, _ending(problems, start, end, len(buf), synced), buf, buf)
    image, lost, file_end = _unpack(buf, start, descriptor, synced, name, keys, begin)
    found, in_image, end = _walk(image, begin.logical if begin else start, descriptor, synced, name, engine)
    in_file = [_file_problem(item, name) for item in lost]
    ending = _ending(in_file, start, file_end, len(buf), synced)
    if in_image and in_image[-1].kind == "torn_tail":
        ending = Ending.TORN
    logical = [item.logical for item in lost] + [item.position for item in in_image]
    problems = [item for _, item in sorted(zip(logical, in_file + in_image, strict=True), key=itemgetter(0))]
    return Scan(descriptor, found, problems, end, ending, image, buf)


def _walk(
    image: bytes, start: int, descriptor: Descriptor, synced: int | None, name: str, engine: Engine
) -> tuple[Sequence[Frame], list[Problem], int]:
    length = len(image) if synced is None else max(start, min(len(image), synced))
    found: Sequence[Frame]
    if uses_kernel(engine):
        twin = importlib.import_module(_COMPILED_TWIN)
        found, raw, end = twin.walk(image, start, length, descriptor.id, version=descriptor.version).as_python()
    else:
        found, raw, end = walk(image, start, length, descriptor.id)
    if length < len(image) and end < length < end + sections.MARKER_SIZE and _marks(image, end, descriptor):
        # The index was read half-written, so the synced position is inside a marker. The marker itself is
        # valid.
        return found, [problem(item, name) for item in raw if item.position != end], end
    # A valid frame across the synced position is not synced yet. Anything else there means missing bytes.
    if synced is not None and end < synced and not raw and check_frame(image, end, len(image))[0] is not FrameCheck.OK:
        raw.append(RawProblem(end, max(0, length - end), Reason.NOT_AS_PROMISED))
    return found, [problem(item, name) for item in raw], end


def _marks(image: bytes, pos: int, descriptor: Descriptor) -> bool:
    return sections.is_marker(image, len(image), sections.id_crc(descriptor.id), pos)


def _unpack(
    buf: bytes, start: int, descriptor: Descriptor, synced: int | None, name: str, keys: Keystore | None, begin: sections.Place | None
) -> unpack.Unpacked:
    if descriptor.encrypted:
        decryptor = Decryptor(descriptor, keys, name)
        packing = unpack.Packing(decryptor.unpack, decryptor.most_of, whole=False)
        unpacked = unpack.unpack(buf, start, descriptor.id, packing, synced=synced, begin=begin)
        decryptor.check_key()
        return unpacked
    codec = str(descriptor.codec)
    unpacker = codecs.unpacker(codec)
    if unpacker is None:
        raise UnsupportedSegment(f"the compressor is not supported: `{codec}`", operation="read a segment's header", obj=name)
    packing = unpack.Packing(unpacker, partial(codecs.most_of, codec), whole=codec != "NoopCompressor")
    return unpack.unpack(buf, start, descriptor.id, packing, synced=synced, begin=begin)


def _ending(problems: list[Problem], start: int, end: int, length: int, synced: int | None) -> Ending:
    if problems and problems[-1].kind == "torn_tail":
        return Ending.TORN
    if problems and problems[-1].position + problems[-1].size > end:
        return Ending.DAMAGED
    if synced is not None:
        return Ending.GROWING
    if end == start:
        return Ending.UNUSED
    return Ending.END_OF_FILE if end == length else Ending.ZEROS


def _file_problem(lost: unpack.Lost, name: str) -> Problem:
    error = type(lost.error)(
        f"{lost.error.message} ({lost.size} bytes of the file)",
        operation="unpack a segment",
        obj=name,
        position=lost.position,
        retriable=lost.error.retriable,
        hint=lost.error.hint,
    )
    return Problem(_KINDS[type(lost.error)], lost.position, lost.size, error, in_file=True)


def problem(raw: RawProblem, name: str = "") -> Problem:
    """The problem with its error message."""
    kind, message = REASONS[raw.reason]
    error = kind(f"{message} ({raw.size} bytes)", operation="read a segment", obj=name, position=raw.position)
    return Problem(_KINDS[kind], raw.position, raw.size, error)


def uses_kernel(engine: Engine) -> bool:
    """Whether the compiled twin does the work: if asked for, or by default where numba is installed."""
    return engine == "numba" or (engine == "auto" and _kernel_importable())


@cache
def _kernel_importable() -> bool:
    return all(importlib.util.find_spec(module) is not None for module in ("numba", _COMPILED_TWIN))


def _check_name(descriptor: Descriptor, name: str) -> None:
    match = re.search(r"CommitLog-(\d+)-(\d+)\.log$", name)
    if match is not None and (int(match[1]), int(match[2])) != (descriptor.version, descriptor.id):
        raise CorruptDescriptor(
            f"the file name does not match the header: CommitLog-{descriptor.version}-{descriptor.id}.log",
            operation="read a segment's header",
            obj=name,
            hint="The file was renamed or holds another segment's bytes",
        )


def walk(buf: bytes, start: int, length: int, segment_id: int) -> tuple[list[Frame], list[RawProblem], int]:
    """Frames, problems and end of the sections from `start`, within the first `length` bytes."""
    return _Walker(buf, length, segment_id).run(start)


class _Walker:
    """Reads one segment. Collects frames and problems; methods return positions.

    A section that ends after `length` but within the file is not synced yet; it is not torn.
    """

    def __init__(self, buf: bytes, length: int, segment_id: int) -> None:
        self.buf = buf
        self.length = length
        self.seed = sections.id_crc(segment_id)
        self.data_end = len(buf[:length].rstrip(b"\0"))
        self.frames: list[Frame] = []
        self.problems: list[RawProblem] = []

    def run(self, pos: int) -> tuple[list[Frame], list[RawProblem], int]:
        done = False
        while not done and pos <= self.length - sections.MARKER_SIZE:
            next_pos, crc = sections.parse_marker(self.buf, pos)
            if crc == sections.marker_crc(self.seed, pos):
                pos, done = self._section(pos, next_pos)
                continue
            found = self._find_marker(pos + 1)
            if found < 0:
                self._tail(pos, next_pos, crc)
                done = True
            else:
                payload = min(found, pos + sections.MARKER_SIZE)
                self._lose(pos, payload, Reason.MARKER)
                pos, done = self._section(pos, found) if found > payload else (found, False)
        if not done and pos < self.data_end:
            self._lose(pos, self.data_end, Reason.HALF_MARKER)
        return self.frames, few(self.problems), pos

    def _section(self, pos: int, next_pos: int) -> tuple[int, bool]:
        """Read the section whose marker is at `pos`. Returns the next position and whether reading is
        finished."""
        inside = pos + sections.MARKER_SIZE <= next_pos <= self.length
        end = next_pos if inside else self.length
        stop, check = self._frames(pos + sections.MARKER_SIZE, end)
        if inside and check is FrameCheck.END:
            return end, False
        if self.length < next_pos <= len(self.buf):
            return stop, True
        trusted = inside and sections.is_marker(self.buf, self.length, self.seed, end)
        again = end if trusted else self._find_marker(stop)
        if again < 0 and check is FrameCheck.OVERRUN and check_frame(self.buf, stop, self.length)[0] is FrameCheck.OK:
            # A valid frame crosses the end of the last section, so the marker's pointer is wrong.
            inside = False
            stop, _ = self._frames(stop, self.length)
        if again < 0 and not inside:
            return self._no_more_sections(pos, next_pos, stop)
        if again < 0:
            again = end
        elif again != end:
            self._lose(pos, pos + sections.MARKER_SIZE, Reason.MARKER_NEXT)
            stop, check = self._frames(stop, again)
        if check is not FrameCheck.END:
            self._lose(stop, again, Reason.FRAME_OVERRUN if check is FrameCheck.OVERRUN else Reason.FRAME_SIZE)
        return again, False

    def _frames(self, pos: int, end: int) -> tuple[int, FrameCheck]:
        """Read frames from `pos` to `end`. Returns where and why reading stopped (END, BAD_SIZE or
        OVERRUN)."""
        while True:
            check, size = check_frame(self.buf, pos, end)
            following = pos + size + frames.OVERHEAD
            if check is FrameCheck.OK:
                self.frames.append(Frame(following, pos, pos + frames.BODY_OFFSET, size))
            elif check is FrameCheck.BAD_BODY:
                self._lose(pos, following, Reason.BODY_CRC)
            else:
                return pos, check
            pos = following

    def _no_more_sections(self, pos: int, next_pos: int, stop: int) -> tuple[int, bool]:
        """The marker at `pos` has an invalid pointer and no marker follows: truncated file or damaged
        pointer."""
        last = max(self.data_end, stop)
        if next_pos > self.length:
            self._lose(stop, last, Reason.CUT_SHORT)
        else:
            self._lose(pos, pos + sections.MARKER_SIZE, Reason.MARKER_NEXT)
            if last > stop:
                self._lose(stop, last, Reason.FRAME_SIZE)
        return stop, True

    def _tail(self, pos: int, next_pos: int, crc: int) -> None:
        """There is no marker at `pos` or later. If all bytes are zeros, this is the normal end of a
        segment."""
        if self.data_end <= pos:
            return
        reason = Reason.MARKER
        if crc == 0:
            reason = Reason.HALF_MARKER if next_pos else Reason.UNMARKED_TAIL
        self._lose(pos, self.data_end, reason)

    def _find_marker(self, start: int) -> int:
        return sections.find_marker(self.buf, start, self.data_end, self.length, self.seed)

    def _lose(self, start: int, end: int, reason: Reason) -> None:
        self.problems.append(RawProblem(start, end - start, reason))


def peek(body: bytes, *, version: int) -> tuple[int, UUID, bytes]:
    """(number of partition updates, table id of the first, partition key) of a mutation, without decoding it.
    `version` is that of the segment's descriptor.

    All updates share the key, but not the table. Raises MalformedMutation.
    """
    count, table_id, key, length = read_head(body, version=version)
    return count, table_id, bytes(body[key : key + length])
