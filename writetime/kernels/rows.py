"""Merging of flat rows, compiled: the twin of `reconcile` and `liveness` on the bytes of `row_codec`.

Strategy: numba, as in `mutation_kernel`. Rows are in one byte array and read entry by entry through cursors:
blocks of numbers in `cur`, at A and B for the two rows, at W for the winning cell and at LAST for the last
written entry. Nothing outside of a row is read. If a row is damaged, or a counter is not as Cassandra writes
it (shards and header in order), the result is ODD, and the caller uses the readable twin. So it is where counters
or elements of lists that were read from the cluster (`stand_ins`) meet others. If room lacks, the result is
LACKING, and the caller makes room and repeats the call.

Cassandra's rules are documented in `reconcile`; functions here have the names of their twins there. `merge`
calls them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.unknown_marker import ALONE, PATH_MARK, STATED, WITH_CELLS
from writetime.cassandra.model import EXPIRED_LIVENESS_TTL, MICROSECONDS, NO_DELETION_TIME, NO_TIMESTAMP, NO_TTL
from writetime.kernels.compiled import Bytes, Ints, compiled
from writetime.kernels.mutation_kernel import _copy, _length, _vint

ODD: Final = -1
LACKING: Final = -2

# Cursors: where they stand in `cur`, and what each says of its entry.
A, B, W, LAST, CURSORS = 0, 20, 40, 60, 80
POS, END, KIND, TIMESTAMP, TTL, TIME, LAST_TTL, LAST_TIME = range(8)
NAME, NAME_LENGTH, PATH, PATH_LENGTH, VALUE, VALUE_LENGTH = range(8, 14)
RANK, BAD, SEEN, IN_PLAY, TIED, STANDS_IN = range(14, 20)

_LIVE, _DELETED, _SIMPLE, _COMPLEX, _DONE = range(5)
"""Ranks of entries: entries of equal rank are merged with each other."""

_LIVENESS, _DELETION, _SHADOWABLE, _SIMPLE_CELL, _COMPLEX_DELETION, _ELEMENT = (int(kind) for kind in row_codec.Kind)
_VERSION, _KIND, _SAME_COLUMN, _SAME_TIMESTAMP = row_codec.VERSION, row_codec.KIND, row_codec.SAME_COLUMN, row_codec.SAME_TIMESTAMP
_MORTAL, _SAME_MORTAL, _TIED = row_codec.MORTAL, row_codec.SAME_MORTAL, row_codec.TIED
_EXPIRED, _NO_TIME, _NO_TIMESTAMP, _NO_TTL = EXPIRED_LIVENESS_TTL, NO_DELETION_TIME, NO_TIMESTAMP, NO_TTL
ENTRY: Final = 64
"""An upper limit of the bytes of an entry apart from name, path and value: flags, numbers, lengths."""
_SHARD, _MOST_SHARDS = 32, 1 << 15
_PATH = 16
_REMOTE, _LOCAL, _GLOBAL = range(3)
_GLOBAL_FLAG = 1 << 15
_ALONE, _WITH_CELLS = ALONE, WITH_CELLS
_STATED = int.from_bytes(STATED[:8], "big")
_PATH_MARK_HIGH, _PATH_MARK_LOW = int.from_bytes(PATH_MARK[:2], "big"), int.from_bytes(PATH_MARK[2:], "big")

_i64: Any = np.int64
_u64: Any = np.uint64
_u8: Any = np.uint8


class Rules(NamedTuple):
    """Options of a merge. `covered`: a partition or range deletion covers the row, at `active` µs and
    `active_time` s. `legacy`: use the rules of 3.11. The clock runs from `since` to `now`."""

    covered: int
    active: int
    active_time: int
    counter: int
    legacy: int
    since: int
    now: int


# --- numbers and bytes


@compiled
def put(out: Bytes, pos: int, value: Any) -> int:
    """An unsigned vint of 64 bits."""
    if value < _u64(0x80):
        out[pos] = _u8(value)
        return pos + 1
    extra = 1
    while extra < 8 and value >> _u64(7 * (extra + 1)):
        extra += 1
    if extra == 8:
        out[pos] = 0xFF
    else:
        out[pos] = _u8(_u64(0xFF & ~(0xFF >> extra)) | (value >> _u64(8 * extra)))
    for i in range(extra):
        out[pos + 1 + i] = _u8((value >> _u64(8 * (extra - 1 - i))) & _u64(0xFF))
    return pos + 1 + extra


@compiled
def blob(out: Bytes, pos: int, source: Bytes, at: int, length: int) -> int:
    pos = put(out, pos, _u64(length))
    return _copy(source, at, length, out, pos)


@compiled
def _sum(a: int, b: int) -> Any:
    """Java's long arithmetic: overflow wraps, which signed arithmetic in compiled code does not guarantee."""
    return _i64(_u64(a) + _u64(b))


@compiled
def compare(buf: Bytes, a: int, a_length: int, b: int, b_length: int) -> int:
    """Compare as unsigned bytes: negative, 0 or positive."""
    if a == b:
        return a_length - b_length
    for i in range(min(a_length, b_length)):
        if buf[a + i] != buf[b + i]:
            return _i64(buf[a + i]) - _i64(buf[b + i])  # type: ignore[no-any-return]
    return a_length - b_length


@compiled
def equal(left: Bytes, a: int, a_length: int, right: Bytes, b: int, b_length: int) -> bool:
    if a_length != b_length:
        return False
    for i in range(a_length):  # noqa: SIM110 - compiled
        if left[a + i] != right[b + i]:
            return False
    return True


# --- reading entries


@compiled
def _clustering(buf: Bytes, pos: int, end: int) -> int:
    """The position after version and clustering; after the end if they are damaged."""
    if pos >= end or buf[pos] != _VERSION:
        return end + 1
    count, pos = _vint(buf, pos + 1, end)
    if count < 0 or count > end:
        return end + 1
    for _ in range(count - 1):
        length, pos = _vint(buf, pos, end)
        if length < 0 or length - 1 > end - pos:
            return end + 1
        pos += max(length - 1, 0)
    return pos


@compiled
def _open(buf: Bytes, cur: Ints, o: int, pos: int, end: int, rules: Rules) -> int:
    """Set a cursor to the first entry of a row, or to none if the row is empty. Returns the position of the
    entry."""
    cur[o + TIMESTAMP] = 0
    cur[o + LAST_TTL], cur[o + LAST_TIME] = _NO_TTL, _NO_TIME
    cur[o + NAME_LENGTH] = 0
    cur[o + NAME] = pos
    cur[o + BAD] = cur[o + SEEN] = cur[o + IN_PLAY] = cur[o + STANDS_IN] = 0
    entries = pos if pos == end else _clustering(buf, pos, end)
    cur[o + POS], cur[o + END] = entries, end
    _next(buf, cur, o, rules)
    return entries


@compiled
def _u16(buf: Bytes, pos: int) -> int:
    return (_i64(buf[pos]) << 8) | _i64(buf[pos + 1])  # type: ignore[no-any-return]


@compiled
def _is_stand_in(buf: Bytes, path: int) -> bool:
    """Whether this is the path of a list's element that was read from the cluster."""
    low = (_u16(buf, path + 6) << 16) | _u16(buf, path + 8)
    return low == _PATH_MARK_LOW and _u16(buf, path + 4) == _PATH_MARK_HIGH


@compiled
def _next(buf: Bytes, cur: Ints, o: int, rules: Rules) -> None:
    """Read the next entry; RANK is its kind, or _DONE at the end."""
    pos, end = cur[o + POS], cur[o + END]
    if pos >= end:
        cur[o + RANK] = _DONE
        if pos > end:
            cur[o + BAD] = 1
        return
    flags = _i64(buf[pos])
    kind = flags & _KIND
    pos += 1
    if not flags & _SAME_TIMESTAMP:
        pattern, pos = _vint(buf, pos, end)
        zigzag = _u64(pattern)
        cur[o + TIMESTAMP] = _sum(cur[o + TIMESTAMP], _i64((zigzag >> _u64(1)) ^ (_u64(0) - (zigzag & _u64(1)))))
    if flags & _MORTAL:
        cur[o + LAST_TTL], pos = _vint(buf, pos, end)
        cur[o + LAST_TIME], pos = _vint(buf, pos, end)
    ttl, time = _NO_TTL, _NO_TIME
    if flags & (_MORTAL | _SAME_MORTAL):
        ttl, time = cur[o + LAST_TTL], cur[o + LAST_TIME]
        if ttl != _NO_TTL and rules.since < time <= rules.now and (kind != _LIVENESS or ttl != _EXPIRED):
            cur[o + IN_PLAY] = 1
    if kind >= _SIMPLE_CELL:
        if not flags & _SAME_COLUMN:
            cur[o + NAME_LENGTH], pos = _length(buf, pos, end)
            cur[o + NAME] = pos
            pos += cur[o + NAME_LENGTH]
        if kind == _ELEMENT:
            cur[o + PATH_LENGTH], pos = _length(buf, pos, end)
            cur[o + PATH] = pos
            pos += cur[o + PATH_LENGTH]
            if cur[o + PATH_LENGTH] == _PATH and pos <= end and _is_stand_in(buf, cur[o + PATH]):
                cur[o + STANDS_IN] = 1
        if kind != _COMPLEX_DELETION:
            cur[o + VALUE_LENGTH], pos = _length(buf, pos, end)
            cur[o + VALUE] = pos
            pos += cur[o + VALUE_LENGTH]
    cur[o + KIND], cur[o + TTL], cur[o + TIME], cur[o + POS] = kind, ttl, time, pos
    cur[o + TIED] = flags & _TIED
    cur[o + SEEN] |= 1 << kind
    if pos > end or kind > _ELEMENT:
        cur[o + RANK], cur[o + BAD] = _DONE, 1
    elif kind == _LIVENESS:
        cur[o + RANK] = _LIVE
    elif kind <= _SHADOWABLE:
        cur[o + RANK] = _DELETED
    else:
        cur[o + RANK] = _SIMPLE if kind == _SIMPLE_CELL else _COMPLEX


@compiled
def _order(buf: Bytes, cur: Ints, a: int, b: int) -> int:
    """Compare the order of the entries at two cursors: negative, 0 or positive."""
    rank: int = cur[a + RANK]
    if rank != cur[b + RANK] or rank == _DONE:
        return rank - cur[b + RANK]  # type: ignore[no-any-return]
    found: int = compare(buf, cur[a + NAME], cur[a + NAME_LENGTH], cur[b + NAME], cur[b + NAME_LENGTH])
    if found or rank != _COMPLEX:
        return found
    if cur[a + KIND] != cur[b + KIND] or cur[a + KIND] == _COMPLEX_DELETION:
        return cur[a + KIND] - cur[b + KIND]  # type: ignore[no-any-return]
    return compare(buf, cur[a + PATH], cur[a + PATH_LENGTH], cur[b + PATH], cur[b + PATH_LENGTH])


@compiled
def _take(cur: Ints, o: int) -> None:
    """Make the entry at a cursor the winning one so far."""
    for i in range(KIND, VALUE_LENGTH + 1):
        cur[W + i] = cur[o + i]
    cur[W + RANK], cur[W + TIED] = cur[o + RANK], cur[o + TIED]


# --- writing entries


@compiled
def begin(cur: Ints) -> None:
    """Reset the state of the last written entry."""
    cur[LAST + TIMESTAMP] = 0
    cur[LAST + TTL], cur[LAST + TIME] = _NO_TTL, _NO_TIME
    cur[LAST + NAME] = -1


@compiled
def stamp(out: Bytes, pos: int, cur: Ints, kind: int, same_column: bool, timestamp: int, ttl: int, time: int) -> int:
    """Write the flags and numbers of an entry."""
    flags = kind
    if same_column:
        flags |= _SAME_COLUMN
    at = pos
    pos += 1
    if timestamp == cur[LAST + TIMESTAMP]:
        flags |= _SAME_TIMESTAMP
    else:
        difference = _u64(timestamp) - _u64(cur[LAST + TIMESTAMP])
        sign = _u64(0) - (difference >> _u64(63))
        pos = put(out, pos, (difference << _u64(1)) ^ sign)
        cur[LAST + TIMESTAMP] = timestamp
    if ttl != _NO_TTL or time != _NO_TIME:
        if ttl == cur[LAST + TTL] and time == cur[LAST + TIME]:
            flags |= _SAME_MORTAL
        else:
            flags |= _MORTAL
            pos = put(out, pos, _u64(ttl))
            pos = put(out, pos, _u64(time))
            cur[LAST + TTL], cur[LAST + TIME] = ttl, time
    out[at] = flags
    return pos


@compiled
def _write(buf: Bytes, cur: Ints, o: int, out: Bytes, pos: int, room: int) -> int:
    """Write the complex deletion or cell at a cursor; the end position or LACKING. Names are not moved until
    the row is done."""
    name, name_length = cur[o + NAME], cur[o + NAME_LENGTH]
    kind = cur[o + KIND]
    need = ENTRY + name_length
    if kind != _COMPLEX_DELETION:
        need += cur[o + VALUE_LENGTH]
    if kind == _ELEMENT:
        need += cur[o + PATH_LENGTH]
    if need > room - pos:
        return LACKING
    same = cur[LAST + NAME] >= 0 and compare(buf, name, name_length, cur[LAST + NAME], cur[LAST + NAME_LENGTH]) == 0
    pos = stamp(out, pos, cur, kind | cur[o + TIED], same, cur[o + TIMESTAMP], cur[o + TTL], cur[o + TIME])
    if not same:
        pos = blob(out, pos, buf, name, name_length)
        cur[LAST + NAME], cur[LAST + NAME_LENGTH] = name, name_length
    if kind == _ELEMENT:
        pos = blob(out, pos, buf, cur[o + PATH], cur[o + PATH_LENGTH])
    if kind != _COMPLEX_DELETION:
        pos = blob(out, pos, buf, cur[o + VALUE], cur[o + VALUE_LENGTH])
    return pos


# --- cells


@compiled
def _stays(buf: Bytes, cur: Ints, o: int, rules: Rules) -> bool:
    """Whether the winning cell supersedes or equals the one at a cursor, which has the same column and
    path."""
    if cur[W + TIMESTAMP] != cur[o + TIMESTAMP]:
        return cur[W + TIMESTAMP] > cur[o + TIMESTAMP]  # type: ignore[no-any-return]
    if rules.legacy:
        mine_dead = cur[W + TTL] == _NO_TTL and cur[W + TIME] != _NO_TIME
        its_dead = cur[o + TTL] == _NO_TTL and cur[o + TIME] != _NO_TIME
        if mine_dead != its_dead:
            return mine_dead  # type: ignore[no-any-return]
        found = _compare_signed(buf, cur[W + VALUE], cur[W + VALUE_LENGTH], cur[o + VALUE], cur[o + VALUE_LENGTH])
        if found != 0:
            return found > 0
        if cur[W + TIME] != cur[o + TIME]:
            return cur[W + TIME] > cur[o + TIME]  # type: ignore[no-any-return]
        return cur[W + TTL] <= cur[o + TTL]  # type: ignore[no-any-return]
    mine, its = cur[W + TIME] != _NO_TIME, cur[o + TIME] != _NO_TIME
    if mine != its:
        return mine  # type: ignore[no-any-return]
    mine, its = mine and cur[W + TTL] == _NO_TTL, its and cur[o + TTL] == _NO_TTL
    if mine != its:
        return mine  # type: ignore[no-any-return]
    if cur[W + TIME] != cur[o + TIME]:
        return cur[W + TIME] > cur[o + TIME]  # type: ignore[no-any-return]
    if cur[W + TTL] != cur[o + TTL]:
        return cur[W + TTL] < cur[o + TTL]  # type: ignore[no-any-return]
    found = compare(buf, cur[W + VALUE], cur[W + VALUE_LENGTH], cur[o + VALUE], cur[o + VALUE_LENGTH])
    return found >= 0


@compiled
def _compare_signed(buf: Bytes, a: int, a_length: int, b: int, b_length: int) -> int:
    """As `compare`, with signed bytes."""
    for i in range(min(a_length, b_length)):
        if buf[a + i] != buf[b + i]:
            return (_i64(buf[a + i]) ^ 0x80) - (_i64(buf[b + i]) ^ 0x80)  # type: ignore[no-any-return]
    return a_length - b_length


@compiled
def _reconcile(buf: Bytes, cur: Ints, o: int, rules: Rules, spare: int, room: int) -> int:
    """Reconcile the cell at a cursor with the winning one. Merged counters go to `spare`. Returns the next
    free position there, ODD or LACKING."""
    mine_dead = cur[W + TTL] == _NO_TTL and cur[W + TIME] != _NO_TIME
    its_dead = cur[o + TTL] == _NO_TTL and cur[o + TIME] != _NO_TIME
    if not rules.counter or (mine_dead and its_dead):
        tied = cur[W + TIED] | cur[o + TIED]
        if rules.legacy and cur[W + TIME] != cur[o + TIME]:
            tied = _i64(_TIED)
        both_live = cur[W + TIMESTAMP] == cur[o + TIMESTAMP] and not mine_dead and not its_dead
        if not _stays(buf, cur, o, rules):
            _take(cur, o)
        if both_live:
            cur[W + TIED] = tied
        return spare
    if mine_dead or its_dead:
        if its_dead:
            _take(cur, o)
        return spare
    mine_empty, its_empty = cur[W + VALUE_LENGTH] == 0, cur[o + VALUE_LENGTH] == 0
    if mine_empty or its_empty:
        if (its_empty and not mine_empty) or (mine_empty == its_empty and cur[o + TIMESTAMP] > cur[W + TIMESTAMP]):
            _take(cur, o)
        return spare
    end: int = _merge_contexts(buf, cur[W + VALUE], cur[W + VALUE_LENGTH], cur[o + VALUE], cur[o + VALUE_LENGTH], spare, room)
    if end >= 0:
        cur[W + TIMESTAMP] = max(cur[W + TIMESTAMP], cur[o + TIMESTAMP])
        cur[W + TTL], cur[W + TIME] = _NO_TTL, _NO_TIME
        cur[W + VALUE], cur[W + VALUE_LENGTH] = spare, end - spare
    return end


# --- counters


@compiled
def _long(buf: Bytes, pos: int) -> int:
    value = _u64(0)
    for i in range(8):
        value = (value << _u64(8)) | _u64(buf[pos + i])
    return _i64(value)  # type: ignore[no-any-return]


@compiled
def _put_long(buf: Bytes, pos: int, value: int) -> None:
    for i in range(8):
        buf[pos + i] = _u8((_u64(value) >> _u64(56 - 8 * i)) & _u64(0xFF))


@compiled
def _shards(buf: Bytes, pos: int, length: int) -> tuple[int, int]:
    """(header entries, shards) of a context; (0, ODD) if it is malformed, or header or shards are not in
    order."""
    if length < 2:
        return 0, ODD
    entries = _u16(buf, pos)
    if entries >= 0x8000:
        entries = 0x10000 - entries
    rest = length - 2 - 2 * entries
    if rest < 0 or rest % _SHARD:
        return 0, ODD
    count = rest // _SHARD
    before = -1
    for i in range(entries):
        number = _u16(buf, pos + 2 + 2 * i) & ~_GLOBAL_FLAG
        if number <= before or number >= count:
            return 0, ODD
        before = number
    first = pos + 2 + 2 * entries
    for i in range(1, count):
        if compare(buf, first + (i - 1) * _SHARD, 16, first + i * _SHARD, 16) >= 0:
            return 0, ODD
    return entries, count


@compiled
def _merge_contexts(buf: Bytes, a: int, a_length: int, b: int, b_length: int, out: int, room: int) -> int:
    """Write the merge of two contexts to `out`; the position after it, ODD or LACKING."""
    a_entries, a_count = _shards(buf, a, a_length)
    b_entries, b_count = _shards(buf, b, b_length)
    if a_count < 0 or b_count < 0 or a_count + b_count > _MOST_SHARDS:
        return ODD
    most = a_count + b_count
    if 2 + 2 * most + _SHARD * most > room - out:
        return LACKING
    a_header, b_header = a + 2, b + 2
    a_first, b_first = a_header + 2 * a_entries, b_header + 2 * b_entries
    if not _has_local(buf, a_header, a_entries) and compare(buf, a, a_length, b, b_length) == 0:
        return _copy(buf, a, a_length, buf, out)
    # Shards are written after space for the largest header, and moved once the header is known.
    shards = out + 2 + 2 * most
    i = j = x = y = written = entries = 0
    while i < a_count or j < b_count:
        a_kind = b_kind = -1
        mine, its = a_first + i * _SHARD, b_first + j * _SHARD
        order = -1 if j == b_count else 1 if i == a_count else compare(buf, mine, 16, its, 16)
        if order <= 0:
            a_kind = _REMOTE
            if x < a_entries and _u16(buf, a_header + 2 * x) & ~_GLOBAL_FLAG == i:
                a_kind = _GLOBAL if _u16(buf, a_header + 2 * x) & _GLOBAL_FLAG else _LOCAL
                x += 1
            i += 1
        if order >= 0:
            b_kind = _REMOTE
            if y < b_entries and _u16(buf, b_header + 2 * y) & ~_GLOBAL_FLAG == j:
                b_kind = _GLOBAL if _u16(buf, b_header + 2 * y) & _GLOBAL_FLAG else _LOCAL
                y += 1
            j += 1
        at = shards + written * _SHARD
        if _long(buf, its if order > 0 else mine) == _STATED:
            return ODD
        kind = max(a_kind, b_kind)
        _copy(buf, its if order > 0 or (order == 0 and not _shard_stays(buf, a_kind, mine, b_kind, its)) else mine, _SHARD, buf, at)
        if a_kind == _LOCAL and b_kind == _LOCAL:
            _put_long(buf, at + 16, _sum(_long(buf, mine + 16), _long(buf, its + 16)))
            _put_long(buf, at + 24, _sum(_long(buf, mine + 24), _long(buf, its + 24)))
        if kind != _REMOTE:
            entry = written | (_GLOBAL_FLAG if kind == _GLOBAL else 0)
            buf[out + 2 + 2 * entries], buf[out + 3 + 2 * entries] = entry >> 8, entry & 0xFF
            entries += 1
        written += 1
    buf[out], buf[out + 1] = entries >> 8, entries & 0xFF
    target = out + 2 + 2 * entries
    for k in range(written * _SHARD):
        buf[target + k] = buf[shards + k]
    return target + written * _SHARD


@compiled
def _has_local(buf: Bytes, header: int, entries: int) -> bool:
    for i in range(entries):  # noqa: SIM110 - compiled
        if not _u16(buf, header + 2 * i) & _GLOBAL_FLAG:
            return True
    return False


@compiled
def _shard_stays(buf: Bytes, a_kind: int, a: int, b_kind: int, b: int) -> bool:
    if a_kind != b_kind:
        return a_kind > b_kind
    a_clock, b_clock = _long(buf, a + 16), _long(buf, b + 16)
    if a_clock != b_clock:
        return a_clock > b_clock
    return _long(buf, a + 24) >= _long(buf, b + 24)


# --- rows


@compiled
def _supersedes(timestamp: int, time: int, other: int, other_time: int) -> bool:
    return timestamp > other or (timestamp == other and time > other_time)


@compiled
def _is_unknown_liveness(ttl: int) -> bool:
    return ttl in (_WITH_CELLS, _ALONE)


@compiled
def _yields(cur: Ints, stand_in: int, real: int) -> bool:
    """Whether the liveness at a cursor takes the place of its stand-in."""
    if cur[stand_in + TTL] == _WITH_CELLS or cur[real + TIMESTAMP] > cur[stand_in + TIMESTAMP] or cur[real + TTL] == _NO_TTL:
        return True
    return cur[real + TTL] != _EXPIRED and cur[real + TIME] > cur[stand_in + TIMESTAMP] // MICROSECONDS  # type: ignore[no-any-return]


@compiled
def _liveness_stays(cur: Ints, o: int, legacy: int) -> bool:
    """Whether the winning liveness supersedes or equals the one at a cursor."""
    stands_in = _is_unknown_liveness(cur[W + TTL])
    if stands_in != _is_unknown_liveness(cur[o + TTL]):
        return not _yields(cur, W, o) if stands_in else _yields(cur, o, W)
    if cur[W + TIMESTAMP] != cur[o + TIMESTAMP]:
        return cur[W + TIMESTAMP] > cur[o + TIMESTAMP]  # type: ignore[no-any-return]
    mine, its = cur[W + TTL] == _EXPIRED, cur[o + TTL] == _EXPIRED
    if mine != its:
        return mine  # type: ignore[no-any-return]
    mine, its = cur[W + TTL] != _NO_TTL, cur[o + TTL] != _NO_TTL
    if mine != its:
        return mine  # type: ignore[no-any-return]
    if cur[W + TIME] != cur[o + TIME]:
        return cur[W + TIME] > cur[o + TIME]  # type: ignore[no-any-return]
    return cur[W + TTL] <= cur[o + TTL]  # type: ignore[no-any-return]


@compiled
def _row_deletion(cur: Ints) -> tuple[int, bool, bool]:
    """Copy the stronger row deletion of A and B to W; (timestamp, whether there is one, whether it is
    shadowable)."""
    found = False
    a_there = cur[A + RANK] == _DELETED and cur[A + TIMESTAMP] != _NO_TIMESTAMP
    b_there = cur[B + RANK] == _DELETED and cur[B + TIMESTAMP] != _NO_TIMESTAMP
    shadowable = False
    if a_there:
        _take(cur, A)
        shadowable = cur[A + KIND] == _SHADOWABLE
        found = True
    if b_there:
        b_shadowable = cur[B + KIND] == _SHADOWABLE
        if not found or _supersedes(cur[B + TIMESTAMP], cur[B + TIME], cur[W + TIMESTAMP], cur[W + TIME]):
            _take(cur, B)
            shadowable = b_shadowable
        elif cur[B + TIMESTAMP] == cur[W + TIMESTAMP] and cur[B + TIME] == cur[W + TIME]:
            shadowable = shadowable and b_shadowable
        found = True
    return cur[W + TIMESTAMP], found, shadowable


@compiled
def merge_rows(
    buf: Bytes, cur: Ints, a: int, a_end: int, b: int, b_end: int, out: int, room: int, spare: int, spare_end: int, rules: Rules
) -> int:
    """Write the settled merge of the rows a:a_end and b:b_end, either may be empty, to out:room; its end, ODD
    or LACKING."""
    a_entries = _open(buf, cur, A, a, a_end, rules)
    b_entries = _open(buf, cur, B, b, b_end, rules)
    if cur[A + BAD] or cur[B + BAD]:
        return ODD
    head, head_length = (a, a_entries - a) if a_end > a else (b, b_entries - b)
    if head_length + 2 * ENTRY > room - out:
        return LACKING
    pos = _copy(buf, head, head_length, buf, out)
    begin(cur)

    live = cur[A + RANK] == _LIVE or cur[B + RANK] == _LIVE
    if cur[A + RANK] == _LIVE:
        _take(cur, A)
        _next(buf, cur, A, rules)
        if cur[B + RANK] == _LIVE:
            stands_in = _is_unknown_liveness(cur[W + TTL]) != _is_unknown_liveness(cur[B + TTL])
            if not _liveness_stays(cur, B, rules.legacy):
                _take(cur, B)
            _next(buf, cur, B, rules)
            if stands_in and (rules.covered or cur[A + RANK] == _DELETED or cur[B + RANK] == _DELETED):
                return ODD
    elif cur[B + RANK] == _LIVE:
        _take(cur, B)
        _next(buf, cur, B, rules)
    live_timestamp, live_ttl, live_time = cur[W + TIMESTAMP], cur[W + TTL], cur[W + TIME]

    timestamp, deleted, shadowable = _row_deletion(cur)
    time = cur[W + TIME]
    for o in (A, B):
        if cur[o + RANK] == _DELETED:
            _next(buf, cur, o, rules)
    if deleted and shadowable and live and live_timestamp > timestamp:
        deleted = False
    if deleted and rules.covered and not _supersedes(timestamp, time, rules.active, rules.active_time):
        deleted = False
    covered = deleted or rules.covered != 0
    strongest, strongest_time = (timestamp, time) if deleted else (rules.active, rules.active_time)

    empty = True
    if live and live_timestamp != _NO_TIMESTAMP and not (covered and live_timestamp <= strongest):
        pos = stamp(buf, pos, cur, _LIVENESS, False, live_timestamp, live_ttl, live_time)
        empty = False
    if deleted:
        pos = stamp(buf, pos, cur, _SHADOWABLE if shadowable else _DELETION, False, timestamp, _NO_TTL, time)
        empty = False
    before = pos
    pos = _merge_cells(buf, cur, pos, room, spare, spare_end, rules, covered, strongest, strongest_time)
    if cur[A + BAD] or cur[B + BAD]:
        return ODD
    if (cur[A + STANDS_IN] and cur[B + SEEN] & (1 << _ELEMENT)) or (cur[B + STANDS_IN] and cur[A + SEEN] & (1 << _ELEMENT)):
        return ODD
    return out if empty and pos == before else pos


@compiled
def _merge_cells(
    buf: Bytes,
    cur: Ints,
    pos: int,
    room: int,
    spare: int,
    spare_end: int,
    rules: Rules,
    covered: bool,
    strongest: int,
    strongest_time: int,
) -> int:
    """Merge the remaining cells and complex deletions of A and B, without shadowed ones."""
    column, column_length = -1, 0
    shadowed, floor = covered, strongest
    while cur[A + RANK] < _DONE or cur[B + RANK] < _DONE:
        o = A if _order(buf, cur, A, B) <= 0 else B
        _take(cur, o)
        _next(buf, cur, o, rules)
        free = spare
        if cur[W + KIND] == _COMPLEX_DELETION:
            if _order(buf, cur, W, B) == 0:
                if _supersedes(cur[B + TIMESTAMP], cur[B + TIME], cur[W + TIMESTAMP], cur[W + TIME]):
                    _take(cur, B)
                _next(buf, cur, B, rules)
            column, column_length = cur[W + NAME], cur[W + NAME_LENGTH]
            stands = cur[W + TIMESTAMP] != _NO_TIMESTAMP and not (
                covered and not _supersedes(cur[W + TIMESTAMP], cur[W + TIME], strongest, strongest_time)
            )
            shadowed, floor = (True, cur[W + TIMESTAMP]) if stands else (covered, strongest)
            if not stands:
                continue
        else:
            for other in (A, B):
                while cur[other + RANK] < _DONE and _order(buf, cur, W, other) == 0:
                    free = _reconcile(buf, cur, other, rules, free, spare_end)
                    if free < 0:
                        return free
                    _next(buf, cur, other, rules)
            if column >= 0 and compare(buf, column, column_length, cur[W + NAME], cur[W + NAME_LENGTH]) != 0:
                column, shadowed, floor = -1, covered, strongest
            if shadowed and cur[W + TIMESTAMP] <= floor:
                continue
        pos = _write(buf, cur, W, buf, pos, room)
        if pos < 0:
            return pos
    return pos


@compiled
def _is_dropped(buf: Bytes, cur: Ints, o: int, drops: Bytes, drops_end: int) -> bool:
    pos = 0
    while pos < drops_end:
        length, pos = _length(drops, pos, drops_end)
        name = pos
        pattern, pos = _vint(drops, pos + length, drops_end)
        zigzag = _u64(pattern)
        dropped_at = _i64((zigzag >> _u64(1)) ^ (_u64(0) - (zigzag & _u64(1))))
        if cur[o + TIMESTAMP] <= dropped_at and equal(buf, cur[o + NAME], cur[o + NAME_LENGTH], drops, name, length):
            return True
    return False


@compiled
def live_cells(
    buf: Bytes, cur: Ints, a: int, a_end: int, out: Bytes, pos: int, room: int, drops: Bytes, drops_end: int, rules: Rules
) -> int:
    """Write what SELECT returns for a row to pos:room of `out`; its end, ODD or LACKING. Uses cursor A."""
    if a == a_end:
        return pos
    first = pos
    entries = _open(buf, cur, A, a, a_end, rules)
    if cur[A + BAD]:
        return ODD
    if entries - a > room - pos:
        return LACKING
    pos = _copy(buf, a, entries - a, out, pos)
    begin(cur)
    shows = False
    while cur[A + RANK] < _DONE:
        ttl, time = cur[A + TTL], cur[A + TIME]
        lives = time == _NO_TIME or (ttl != _NO_TTL and rules.now < time)
        if cur[A + KIND] == _LIVENESS:
            shows = ttl != _EXPIRED and (ttl == _NO_TTL or rules.now < time)
        elif lives and cur[A + RANK] >= _SIMPLE and cur[A + KIND] != _COMPLEX_DELETION and not _is_dropped(buf, cur, A, drops, drops_end):
            shows = True
            # Readers do not see whether a cell won a tie.
            cur[A + TIED] = 0
            pos = _write(buf, cur, A, out, pos, room)
            if pos < 0:
                return pos
        _next(buf, cur, A, rules)
    if cur[A + BAD]:
        return ODD
    return pos if shows else first


@compiled
def soonest_expiry(buf: Bytes, cur: Ints, a: int, a_end: int, rules: Rules) -> int:
    """The first expiry after `since`, or NO_DELETION_TIME."""
    _open(buf, cur, A, a, a_end, rules)
    soonest = _NO_TIME
    while cur[A + RANK] < _DONE:
        ttl, time = cur[A + TTL], cur[A + TIME]
        if ttl != _NO_TTL and rules.since < time < soonest and not (cur[A + KIND] == _LIVENESS and ttl == _EXPIRED):
            soonest = time
        _next(buf, cur, A, rules)
    return soonest


@compiled
def first_deletion_time(buf: Bytes, cur: Ints, a: int, a_end: int, rules: Rules) -> int:
    """The earliest local deletion time or expiry of anything in the row, or NO_DELETION_TIME."""
    _open(buf, cur, A, a, a_end, rules)
    first = _NO_TIME
    while cur[A + RANK] < _DONE:
        if not (cur[A + KIND] == _LIVENESS and cur[A + TTL] == _NO_TTL):
            first = min(first, cur[A + TIME])
        _next(buf, cur, A, rules)
    return first


@compiled
def latest_timestamp(buf: Bytes, cur: Ints, a: int, a_end: int, rules: Rules) -> int:
    _open(buf, cur, A, a, a_end, rules)
    latest = _NO_TIMESTAMP
    while cur[A + RANK] < _DONE:
        latest = max(latest, cur[A + TIMESTAMP])
        _next(buf, cur, A, rules)
    return latest


@compiled
def tied_cells(buf: Bytes, cur: Ints, a: int, a_end: int, rules: Rules) -> int:
    """The number of cells that won a tie which a 3.11 cluster may decide differently."""
    _open(buf, cur, A, a, a_end, rules)
    found = 0
    while cur[A + RANK] < _DONE:
        if cur[A + KIND] >= _SIMPLE_CELL and cur[A + TIED]:
            found += 1
        _next(buf, cur, A, rules)
    return found


@compiled
def kinds_of(buf: Bytes, cur: Ints, a: int, a_end: int, rules: Rules) -> int:
    """The kinds of the row's entries: a bit for each."""
    _open(buf, cur, A, a, a_end, rules)
    while cur[A + RANK] < _DONE:
        _next(buf, cur, A, rules)
    seen: int = cur[A + SEEN]
    return seen
