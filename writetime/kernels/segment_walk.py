"""The walk over a segment, compiled: the twin of `segment.walk` with the same steps, and arrays as the
result.

Strategy: numba, one function for each step of the Python twin, on one byte array with positions; nothing is
read outside its bounds. In addition it peeks into each valid frame: number of partition updates, table id of
the first, position of the partition key.

Compiled code is cached on disk for a generic CPU of the architecture, so that one cache serves all machines
of a cluster:

    python -m writetime.kernels.segment_walk      compiles everything ahead and prints the time it took

Only compiled modules import numpy and numba, and they are imported only on use (`segment.scan`, Spark jobs).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from writetime.cassandra.commitlog import frames, sections
from writetime.cassandra.commitlog.frames import FrameCheck
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION
from writetime.cassandra.commitlog.segment import MOST_PROBLEMS, Frame, RawProblem, Reason, is_torn
from writetime.cassandra.types.vint import EXTRA_BYTES
from writetime.kernels.compiled import Bytes, Ints, Words, compiled, compiled_and_kept
from writetime.kernels.crc import HAS_CLMUL, TABLES, crc32

_MARKER = sections.MARKER_SIZE
_OVERHEAD, _BODY_OFFSET, _SMALLEST = frames.OVERHEAD, frames.BODY_OFFSET, frames.SMALLEST_BODY
_OK, _END, _BAD_SIZE, _OVERRUN, _BAD_BODY = (int(check) for check in FrameCheck)
_BODY_CRC, _FRAME_SIZE, _FRAME_OVERRUN, _MARKER_CRC, _MARKER_NEXT, _CUT_SHORT, _UNMARKED, _HALF, *_ = (int(reason) for reason in Reason)
_FRAME_COLUMNS = 8
_NOT_PEEKABLE = -1
_FURTHER_BYTES = np.array(EXTRA_BYTES, np.int64)
_PROBLEMS = 1024
"""Initial room for problems; with more, the walk is repeated."""


_i64: Any = np.int64


class Peeks(NamedTuple):
    """The fields read from the beginning of each body, as in `Walk`."""

    update_count: Ints
    table_hi: Words
    table_lo: Words
    key_offset: Ints
    key_length: Ints

    def sliced(self, index: slice) -> Peeks:
        return Peeks(self.update_count[index], self.table_hi[index], self.table_lo[index], self.key_offset[index], self.key_length[index])


class Frames(Sequence[Frame]):
    """Frames of a segment as arrays, in log order. A `Frame` object is created on access: creating all of
    them costs as much as the walk.

    `peeks` is set for frames found by `walk`.
    """

    def __init__(self, position: Ints, body_offset: Ints, body_length: Ints, peeks: Peeks | None = None) -> None:
        self.position, self.body_offset, self.body_length, self.peeks = position, body_offset, body_length, peeks

    def __len__(self) -> int:
        return len(self.position)

    def __iter__(self) -> Iterator[Frame]:
        columns = zip(self.position.tolist(), self.body_offset.tolist(), self.body_length.tolist(), strict=True)
        return (Frame(position, offset - _BODY_OFFSET, offset, length) for position, offset, length in columns)

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> Frames: ...
    def __getitem__(self, index: int | slice) -> Frame | Frames:
        columns = (self.position[index], self.body_offset[index], self.body_length[index])
        if isinstance(index, slice):
            return Frames(*columns, self.peeks and self.peeks.sliced(index))
        position, offset, length = map(int, columns)
        return Frame(position, offset - _BODY_OFFSET, offset, length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True, slots=True)
class Walk:
    """All valid frames of a segment in log order, one array for each attribute; problems likewise; `end` is
    where reading stopped.

    `position` is a frame's end, as Cassandra's reader reports it. If a body is too short or invalid,
    `update_count` is -1 and the fields after it are 0. `table_hi` and `table_lo` are the table id of the
    first update; key positions are relative to the segment.
    """

    position: Ints
    body_offset: Ints
    body_length: Ints
    update_count: Ints
    table_hi: Words
    table_lo: Words
    key_offset: Ints
    key_length: Ints
    problem_position: Ints
    problem_size: Ints
    problem_reason: Ints
    end: int

    def as_python(self) -> tuple[Sequence[Frame], list[RawProblem], int]:
        """The result in the form of `segment.walk`."""
        peeks = Peeks(self.update_count, self.table_hi, self.table_lo, self.key_offset, self.key_length)
        return (
            Frames(self.position, self.body_offset, self.body_length, peeks),
            self._problems(),
            self.end,
        )

    def _problems(self) -> list[RawProblem]:
        """The problems as from `segment.few`, without creating millions of objects."""
        position, size = self.problem_position, self.problem_size
        reasons = [Reason(reason) for reason in self.problem_reason[:MOST_PROBLEMS].tolist()]
        if len(position) <= MOST_PROBLEMS:
            return [RawProblem(*item) for item in zip(position.tolist(), size.tolist(), reasons, strict=True)]
        last = RawProblem(int(position[-1]), int(size[-1]), Reason(int(self.problem_reason[-1])))
        kept = is_torn(last.reason)
        rest = slice(len(position) - kept)
        start, end = int(position[rest].min()), int((position[rest] + size[rest]).max())
        return [RawProblem(start, end - start, Reason.MANY), *([last] if kept else [])]


def walk(buf: bytes, start: int, length: int, segment_id: int, *, version: int = 7) -> Walk:
    """Walk the sections of a segment from `start` within the first `length` bytes. Arguments as in
    `segment.walk`; `version` is that of the segment's descriptor.

    Raises ValueError if `buf` is shorter, because compiled code does not check that.
    """
    data = np.frombuffer(buf, np.uint8)
    if start < 0 or not 0 <= length <= len(data):
        raise ValueError(f"length {length} or start {start} is outside of {len(data)} bytes")
    data.flags.writeable = False
    found = np.empty((length // (_OVERHEAD + _SMALLEST) + 1, _FRAME_COLUMNS), np.int64)
    problems = np.empty((_PROBLEMS, 3), np.int64)
    seed = sections.id_crc(segment_id)
    epochs = version >= EPOCHS_VERSION
    n_frames, n_problems, end = _walk(data, start, length, seed, found, problems, HAS_CLMUL, epochs)
    if n_problems > len(problems):
        problems = np.empty((n_problems, 3), np.int64)
        n_frames, n_problems, end = _walk(data, start, length, seed, found, problems, HAS_CLMUL, epochs)
    position, offset, size, count, table_hi, table_lo, key, key_length = (found[:n_frames, i].copy() for i in range(_FRAME_COLUMNS))
    lost = [problems[:n_problems, i].copy() for i in range(3)]
    table = table_hi.view(np.uint64), table_lo.view(np.uint64)
    return Walk(position, offset, size, count, *table, key, key_length, lost[0], lost[1], lost[2], int(end))


def compile_ahead() -> float:
    """Compile everything into the cache, or load it from there; the seconds it took."""
    started = time.perf_counter()
    walk(bytes(64), 20, 64, 0)
    return time.perf_counter() - started


@compiled
def _u32(buf: Bytes, pos: int) -> int:
    value: int = (_i64(buf[pos]) << 24) | (_i64(buf[pos + 1]) << 16) | (_i64(buf[pos + 2]) << 8) | _i64(buf[pos + 3])
    return value


@compiled
def _marker_crc(seed: int, pos: int) -> int:
    c = seed ^ 0xFFFFFFFF
    for shift in (24, 16, 8, 0):
        c = (c >> 8) ^ _i64(TABLES[0, (c ^ (pos >> shift)) & 0xFF])
    return c ^ 0xFFFFFFFF


@compiled
def _is_marker(buf: Bytes, length: int, seed: int, pos: int) -> bool:
    if pos > length - _MARKER:
        return False
    following = _u32(buf, pos)
    return pos + _MARKER <= following <= length and _u32(buf, pos + 4) == _marker_crc(seed, pos)


@compiled
def _find_marker(buf: Bytes, start: int, data_end: int, length: int, seed: int) -> int:
    for pos in range(start, min(data_end, length - _MARKER + 1)):
        if _is_marker(buf, length, seed, pos):
            return pos
    return -1


@compiled
def _data_end(buf: Bytes, start: int, end: int) -> int:
    """The position after the last nonzero byte of buf[start:end]."""
    while end > start and buf[end - 1] == 0:
        end -= 1
    return end


@compiled
def _is_zero(buf: Bytes, start: int, end: int) -> bool:
    while start < end and buf[start] == 0:
        start += 1
    return start >= end


@compiled
def _check_frame(buf: Bytes, pos: int, end: int, clmul: bool) -> tuple[int, int]:
    if end - pos < 4:
        return _END, 0
    size = _u32(buf, pos)
    if size == 0:
        return (_END if _is_zero(buf, pos, end) else _BAD_SIZE), 0
    if end - pos < _BODY_OFFSET:
        return _OVERRUN, size
    crc = crc32(buf, pos, pos + 4, 0, clmul)
    if size < _SMALLEST or size >= 1 << 31 or _u32(buf, pos + 4) != crc:
        return _BAD_SIZE, 0
    if end - pos < size + _OVERHEAD:
        return _OVERRUN, size
    body_end = pos + _BODY_OFFSET + size
    return (_OK if _u32(buf, body_end) == crc32(buf, pos + _BODY_OFFSET, body_end, crc, clmul) else _BAD_BODY), size


@compiled
def _vint(buf: Bytes, pos: int, end: int) -> tuple[int, int]:
    """(value, next position) of an unsigned vint; (-1, pos) if it is truncated or too large for a length."""
    if pos >= end:
        return -1, pos
    first = _i64(buf[pos])
    if first < 0x80:
        return first, pos + 1
    extra = 1
    while extra < 8 and first & (0x80 >> extra):
        extra += 1
    if extra > 6 or pos + 1 + extra > end:
        return -1, pos
    value = first & (0xFF >> extra)
    for i in range(extra):
        value = (value << 8) | _i64(buf[pos + 1 + i])
    return value, pos + 1 + extra


@compiled
def _u64(buf: Bytes, pos: int) -> int:
    return (_u32(buf, pos) << 32) | _u32(buf, pos + 4)


@compiled
def _peek(buf: Bytes, pos: int, end: int, epochs: bool, out: Ints) -> None:
    """Fill update count, table id and key position of the body buf[pos:end]."""
    out[3] = _NOT_PEEKABLE
    out[4:] = 0
    count, table = _vint(buf, pos + epochs, end)
    key = table + 16
    if epochs and key < end:
        # Stepped over: by a table, because epochs of one and two bytes alternate.
        key += 1 + _FURTHER_BYTES[buf[key]]
    length, key = _vint(buf, key, end)
    if count < 0 or length < 0 or key + length > end:
        return
    out[3] = count
    out[4] = _u64(buf, table)
    out[5] = _u64(buf, table + 8)
    out[6] = key
    out[7] = length


@compiled
def _lose(problems: Ints, counts: Ints, start: int, end: int, reason: int) -> None:
    if counts[1] < len(problems):
        row = problems[counts[1]]
        row[0] = start
        row[1] = end - start
        row[2] = reason
    counts[1] += 1


@compiled
def _frames(buf: Bytes, pos: int, end: int, found: Ints, problems: Ints, counts: Ints, clmul: bool, epochs: bool) -> tuple[int, int]:
    while True:
        check, size = _check_frame(buf, pos, end, clmul)
        following = pos + size + _OVERHEAD
        if check == _OK:
            out = found[counts[0]]
            out[0] = following
            out[1] = pos + _BODY_OFFSET
            out[2] = size
            _peek(buf, pos + _BODY_OFFSET, pos + _BODY_OFFSET + size, epochs, out)
            counts[0] += 1
        elif check == _BAD_BODY:
            _lose(problems, counts, pos, following, _BODY_CRC)
        else:
            return pos, check
        pos = following


@compiled
def _section(
    buf: Bytes,
    pos: int,
    following: int,
    length: int,
    data_end: int,
    seed: int,
    found: Ints,
    problems: Ints,
    counts: Ints,
    clmul: bool,
    epochs: bool,
) -> tuple[int, bool]:
    inside = pos + _MARKER <= following <= length
    end = following if inside else length
    stop, check = _frames(buf, pos + _MARKER, end, found, problems, counts, clmul, epochs)
    if inside and check == _END:
        return end, False
    if length < following <= len(buf):
        return stop, True
    again = end if inside and _is_marker(buf, length, seed, end) else _find_marker(buf, stop, data_end, length, seed)
    if again < 0 and check == _OVERRUN and _check_frame(buf, stop, length, clmul)[0] == _OK:
        inside = False
        stop, _ = _frames(buf, stop, length, found, problems, counts, clmul, epochs)
    if again < 0 and not inside:
        last = max(data_end, stop)
        if following > length:
            _lose(problems, counts, stop, last, _CUT_SHORT)
        else:
            _lose(problems, counts, pos, pos + _MARKER, _MARKER_NEXT)
            if last > stop:
                _lose(problems, counts, stop, last, _FRAME_SIZE)
        return stop, True
    if again < 0:
        again = end
    elif again != end:
        _lose(problems, counts, pos, pos + _MARKER, _MARKER_NEXT)
        stop, check = _frames(buf, stop, again, found, problems, counts, clmul, epochs)
    if check != _END:
        _lose(problems, counts, stop, again, _FRAME_OVERRUN if check == _OVERRUN else _FRAME_SIZE)
    return again, False


@compiled_and_kept
def _walk(buf: Bytes, pos: int, length: int, seed: int, found: Ints, problems: Ints, clmul: bool, epochs: bool) -> tuple[int, int, int]:
    counts = np.zeros(2, np.int64)
    data_end = _data_end(buf, 0, length)
    done = False
    while not done and pos <= length - _MARKER:
        following = _u32(buf, pos)
        crc = _u32(buf, pos + 4)
        if crc == _marker_crc(seed, pos):
            pos, done = _section(buf, pos, following, length, data_end, seed, found, problems, counts, clmul, epochs)
            continue
        again = _find_marker(buf, pos + 1, data_end, length, seed)
        if again >= 0:
            payload = min(again, pos + _MARKER)
            _lose(problems, counts, pos, payload, _MARKER_CRC)
            if again > payload:
                pos, done = _section(buf, pos, again, length, data_end, seed, found, problems, counts, clmul, epochs)
            else:
                pos = again
            continue
        done = True
        if data_end > pos:
            _lose(problems, counts, pos, data_end, _MARKER_CRC if crc else _HALF if following else _UNMARKED)
    if not done and pos < data_end:
        _lose(problems, counts, pos, data_end, _HALF)
    return counts[0], counts[1], pos


def _main() -> Any:
    # Run as a script this file is called __main__, and numba names its cache by module: compile the module by
    # its own name.
    from writetime.kernels import segment_walk

    return segment_walk.compile_ahead()


if __name__ == "__main__":
    print(f"segment kernel ready in {_main():.1f} s")  # noqa: T201 - a command's answer
