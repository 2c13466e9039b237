"""The compiled decoder of mutations: from bodies to the columns of `mutation_columns`. The twin of
`mutation.decode_mutation` and `mutation_columns.flatten`.

Strategy: numba, one function for each step of the Python decoder, in the same order, on one byte array with
positions. Every reader takes (buf, pos, end) and returns the next position. If bytes are invalid or truncated
that is `end + 1`, from which nothing can be read, so the failure propagates to the caller. Nothing outside of
buf[pos:end] is read.

Output goes to columns, that is pointers with a size: numbers by column, bytes concatenated with their ends. A
failed frame leaves no output. If a column is full, the chunk stops and reports which one (`mutation_buffers`
enlarges it and runs the chunk again). Room for bytes is not checked, because a column cannot get more bytes
than the bodies have.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from writetime.cassandra.commitlog import mutation
from writetime.cassandra.model import EXPIRED_LIVENESS_TTL, NO_DELETION_TIME, NO_TIMESTAMP, NO_TTL
from writetime.cassandra.types.vint import EXTRA_BYTES, as_int64
from writetime.kernels.compiled import (
    Bytes,
    Int32s,
    Ints,
    Words,
    compiled,
    compiled_and_kept,
)
from writetime.kernels.pointers import reader


class Tables(NamedTuple):
    """A schema. Table t has the columns bounds[2t]:bounds[2t+1] (static) and bounds[2t+1]:bounds[2t+2]
    (regular), the clustering lengths clusterings[t]:clusterings[t+1]. A length of -1 is variable;
    `column_length_before` is of cells in updates before `column_dropped_epoch`, or up to `column_dropped_at`
    where one has no epoch, of a column that has come back. Codes are those of `Dictionaries`. Ids are in order."""

    size: int
    high: Words
    low: Words
    code: Int32s
    clusterings: Ints
    clustering_length: Int32s
    bounds: Ints
    column_code: Int32s
    column_length: Int32s
    column_complex: Bytes
    column_length_before: Int32s
    column_dropped_at: Ints
    column_dropped_epoch: Ints
    name_start: Ints
    names: Bytes


class Scratch(NamedTuple):
    """Work space for a mutation: header columns, which of them a row has, one clustering (a length of -1 is
    null); the bases of timestamps, deletion times and ttls; of the segment's version whether its deletion
    times are unsigned and its updates have epochs; the update's epoch; and the layout of doubtful values
    (`mutation.Layout`)."""

    statics: Ints
    regulars: Ints
    present: Bytes
    last_seen: Ints
    value_at: Ints
    value_length: Ints
    bases: Ints


class Lists(NamedTuple):
    """A column of lists of bytes: where lists end, which values are there, where values end, and their
    bytes."""

    size: int
    list_end: Int32s
    valid: Bytes
    end: Int32s
    data: Bytes


class Updates(NamedTuple):
    size: int
    position: Ints
    ordinal: Int32s
    flags: Bytes
    table: Int32s
    epoch: Ints
    key_end: Int32s
    key: Bytes
    deleted: Bytes
    deletion_timestamp: Ints
    deletion_time: Ints


class Rows(NamedTuple):
    size: int
    update: Int32s
    flags: Bytes
    clustering: Lists
    liveness_timestamp: Ints
    liveness_ttl: Int32s
    liveness_expires_at: Ints
    deletion_timestamp: Ints
    deletion_time: Ints


class Cells(NamedTuple):
    size: int
    row: Int32s
    column: Int32s
    timestamp: Ints
    ttl: Int32s
    time: Ints
    has_path: Bytes
    path_end: Int32s
    path: Bytes
    value_end: Int32s
    value: Bytes


class ComplexDeletions(NamedTuple):
    size: int
    row: Int32s
    column: Int32s
    timestamp: Ints
    time: Ints


class Ranges(NamedTuple):
    size: int
    update: Int32s
    flags: Bytes
    start: Lists
    end: Lists
    timestamp: Ints
    time: Ints


class Output(NamedTuple):
    updates: Updates
    rows: Rows
    cells: Cells
    complex_deletions: ComplexDeletions
    ranges: Ranges


class Chunk(NamedTuple):
    """The arguments of `decode`: bodies by frame position, offset in `buf` and length; which of them failed;
    counters `n`."""

    tables: Tables
    scratch: Scratch
    buf: Bytes
    size: int
    position: Ints
    offset: Ints
    length: Ints
    failed: Bytes
    n: Ints
    out: Output


_chunk = reader(Chunk)

# Counters: how much there is of each thing. Those of `Lists` come in pairs: values, bytes. LACKING names the
# counter that ran out of room.
UPDATES, ROWS, CELLS, COMPLEX, RANGES, CLUSTERING, CLUSTERING_BYTES, START, START_BYTES, END, END_BYTES = range(11)
KEY_BYTES, PATH_BYTES, VALUE_BYTES, KEPT = 11, 12, 13, 14
LACKING, TABLE, SERIAL, COUNTERS = 14, 15, 16, 17

# Elements of `Scratch.bases`.
TIMESTAMP_BASE, TIME_BASE, TTL_BASE, UNSIGNED_TIMES, HAS_EPOCHS, EPOCH, LAYOUT, IS_DOUBTFUL, BASES = range(9)
_BY_TIMESTAMP, _LATTER, _FORMER = 0, 1, 2

ROW_STATIC, ROW_LIVE, ROW_DELETED, ROW_SHADOWABLE = 1, 2, 4, 8
START_INCLUSIVE, END_INCLUSIVE = 1, 2
VARIABLE: Final = -1

_IS_EMPTY, _IS_REVERSED, _HAS_PARTITION_DELETION = mutation.IS_EMPTY, mutation.IS_REVERSED, mutation.HAS_PARTITION_DELETION
_HAS_STATIC_ROW, _HAS_ROW_ESTIMATE = mutation.HAS_STATIC_ROW, mutation.HAS_ROW_ESTIMATE
_END_OF_PARTITION, _IS_MARKER, _HAS_TIMESTAMP, _HAS_TTL = (
    mutation.END_OF_PARTITION,
    mutation.IS_MARKER,
    mutation.HAS_TIMESTAMP,
    mutation.HAS_TTL,
)
_HAS_DELETION, _HAS_ALL_COLUMNS = mutation.HAS_DELETION, mutation.HAS_ALL_COLUMNS
_HAS_COMPLEX_DELETION, _EXTENSION_FLAG = mutation.HAS_COMPLEX_DELETION, mutation.EXTENSION_FLAG
_IS_STATIC, _HAS_SHADOWABLE_DELETION = mutation.IS_STATIC, mutation.HAS_SHADOWABLE_DELETION
_IS_DELETED, _IS_EXPIRING, _HAS_EMPTY_VALUE = mutation.IS_DELETED, mutation.IS_EXPIRING, mutation.HAS_EMPTY_VALUE
_USE_ROW_TIMESTAMP, _USE_ROW_TTL = mutation.USE_ROW_TIMESTAMP, mutation.USE_ROW_TTL
_EPOCH_MICROS, _EPOCH_SECONDS = mutation.EPOCH_MICROS, mutation.EPOCH_SECONDS
_INVALID, _UNSIGNED_NONE = mutation.INVALID_DELETION_TIME, mutation.UNSIGNED_NO_DELETION_TIME
_BATCH, _LARGE_SUBSET = mutation.CLUSTERING_BATCH, mutation.LARGE_SUBSET
_NO_BASE = as_int64(NO_TIMESTAMP - mutation.EPOCH_MICROS)
_NO_EPOCH = mutation.NO_EPOCH
_EXPIRED, _NO_TIME, _NO_TIMESTAMP, _NO_TTL = EXPIRED_LIVENESS_TTL, NO_DELETION_TIME, NO_TIMESTAMP, NO_TTL

_FURTHER_BYTES = np.array(EXTRA_BYTES, np.int64)
_MARKER_CLOSES = np.full(256, -1, np.int64)
_MARKER_OPENS = np.full(256, -1, np.int64)
for _kind, (_closes, _opens) in mutation.MARKER_KINDS.items():
    _MARKER_CLOSES[_kind] = -1 if _closes is None else _closes
    _MARKER_OPENS[_kind] = -1 if _opens is None else _opens

_i64: Any = np.int64
_u64: Any = np.uint64


# --- numbers


@compiled
def _vint(buf: Bytes, pos: int, end: int) -> tuple[int, int]:
    """The 64 bits of an unsigned vint, as a signed number."""
    if pos >= end:
        return 0, end + 1
    first = _i64(buf[pos])
    if first < 0x80:
        return first, pos + 1
    extra = _FURTHER_BYTES[first]
    after = pos + 1 + extra
    if after > end:
        return 0, end + 1
    value = first & (0xFF >> extra)
    for i in range(pos + 1, after):
        value = (value << 8) | _i64(buf[i])
    return value, after


@compiled
def _byte(buf: Bytes, pos: int, end: int) -> tuple[int, int]:
    if pos >= end:
        return 0, end + 1
    return _i64(buf[pos]), pos + 1


@compiled
def _length(buf: Bytes, pos: int, end: int) -> tuple[int, int]:
    """A length in bytes, or a count of items of at least one byte each."""
    length, pos = _vint(buf, pos, end)
    if length < 0 or length > end - pos:
        return 0, end + 1
    return length, pos


@compiled
def _int32(pattern: int) -> int:
    low: int = ((pattern & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
    return low


@compiled
def _as_time(bases: Ints, raw: int, ttl: int) -> int:
    time: int = bases[TIME_BASE] + _int32(raw)
    if time < 0 and bases[UNSIGNED_TIMES]:
        time &= 0xFFFFFFFF
    if time < 0:
        return _INVALID
    if time == _UNSIGNED_NONE and bases[UNSIGNED_TIMES]:
        return _NO_TIME
    if time < ttl and ttl != _EXPIRED:
        return _INVALID
    return time


@compiled
def _timestamp(buf: Bytes, pos: int, end: int, bases: Ints) -> tuple[int, int]:
    delta, pos = _vint(buf, pos, end)
    return bases[TIMESTAMP_BASE] + delta, pos


@compiled
def _ttl(buf: Bytes, pos: int, end: int, bases: Ints) -> tuple[int, int]:
    delta, pos = _vint(buf, pos, end)
    return _int32(bases[TTL_BASE] + delta), pos


@compiled
def _deletion(buf: Bytes, pos: int, end: int, bases: Ints) -> tuple[int, int, int]:
    timestamp, pos = _timestamp(buf, pos, end, bases)
    raw, pos = _vint(buf, pos, end)
    return timestamp, _as_time(bases, raw, _NO_TTL), pos


@compiled
def _copy(source: Bytes, start: int, length: int, target: Bytes, at: int) -> int:
    """Copy bytes to target[at:]. Returns the position after them."""
    for i in range(length):
        target[at + i] = source[start + i]
    return at + length


# --- schema


@compiled
def _word(buf: Bytes, pos: int) -> Any:
    value = _u64(0)
    for i in range(8):
        value = (value << _u64(8)) | _u64(buf[pos + i])
    return value


@compiled
def _find_table(tables: Tables, high: Any, low: Any, likely: int) -> int:
    """Index of a table id, or -1. `likely` is tried first."""
    size = tables.size
    if likely < size and tables.high[likely] == high and tables.low[likely] == low:
        return likely
    first, last = 0, size
    while first < last:
        middle = (first + last) // 2
        if tables.high[middle] < high or (tables.high[middle] == high and tables.low[middle] < low):
            first = middle + 1
        else:
            last = middle
    if first < size and tables.high[first] == high and tables.low[first] == low:
        return first
    return -1


@compiled
def _is_name(tables: Tables, column: int, buf: Bytes, pos: int, length: int) -> bool:
    start = tables.name_start[column]
    if tables.name_start[column + 1] - start != length:
        return False
    for i in range(length):  # noqa: SIM110 - compiled
        if tables.names[start + i] != buf[pos + i]:
            return False
    return True


@compiled
def _columns(
    buf: Bytes, pos: int, end: int, tables: Tables, first: int, last: int, header: Ints, scratch: Scratch, n: Ints
) -> tuple[int, int]:
    """Read a header's columns into `header`; (their number, next position). The search starts at the expected
    column."""
    count, pos = _length(buf, pos, end)
    n[SERIAL] += 1
    expected = first
    for i in range(count):
        length, pos = _length(buf, pos, end)
        if pos > end:
            return 0, pos
        column = expected
        tries = last - first
        while tries > 0 and not _is_name(tables, column, buf, pos, length):
            column = column + 1 if column + 1 < last else first
            tries -= 1
        if tries == 0 or scratch.last_seen[column] == n[SERIAL]:
            return 0, end + 1
        scratch.last_seen[column] = n[SERIAL]
        header[i] = column
        expected = column + 1 if column + 1 < last else first
        pos += length
    return count, pos


# --- clusterings


@compiled
def _clustering(buf: Bytes, pos: int, end: int, tables: Tables, table: int, size: int, scratch: Scratch) -> int:
    """Read the first `size` values of a clustering into scratch."""
    first = tables.clusterings[table]
    header = _u64(0)
    for i in range(size):
        bit = _u64(2 * (i % _BATCH))
        if bit == _u64(0):
            pattern, pos = _vint(buf, pos, end)
            header = _u64(pattern)
        marks = (header >> bit) & _u64(3)
        if marks & _u64(2):
            length = -1
        elif marks:
            length = 0
        else:
            length = _i64(tables.clustering_length[first + i])
            if length == VARIABLE:
                length, pos = _length(buf, pos, end)
            elif length > end - pos:
                return end + 1
        if pos > end:
            return pos
        scratch.value_at[i] = pos
        scratch.value_length[i] = length
        pos += max(length, 0)
    return pos


@compiled
def _add_list(lists: Lists, at: int, counter: int, buf: Bytes, size: int, scratch: Scratch, n: Ints) -> bool:
    """Append the `size` values in scratch as list `at`. False if there is no room."""
    values = n[counter]
    filled = n[counter + 1]
    if values + size > lists.size:
        n[LACKING] = counter
        return False
    for i in range(size):
        length = scratch.value_length[i]
        lists.valid[values] = length >= 0
        filled = _copy(buf, scratch.value_at[i], max(length, 0), lists.data, filled)
        values += 1
        lists.end[values] = filled
    lists.list_end[at + 1] = values
    n[counter] = values
    n[counter + 1] = filled
    return True


# --- rows


@compiled
def _subset(buf: Bytes, pos: int, end: int, total: int, present: Bytes) -> tuple[bool, int]:
    """Read which of a header's columns a row has into `present`. Returns whether it has all, and the next
    position."""
    encoded, pos = _vint(buf, pos, end)
    if encoded == 0 or pos > end:
        return True, pos
    if total < _LARGE_SUBSET:
        missing = _u64(encoded)
        if missing >> _u64(total):
            return True, end + 1
        for i in range(total):
            present[i] = not (missing >> _u64(i)) & _u64(1)
        return False, pos
    if encoded < 0 or encoded > total:
        return True, end + 1
    listed_are_there = total - encoded < total // 2
    for i in range(total):
        present[i] = not listed_are_there
    for _ in range(total - encoded if listed_are_there else encoded):
        index, pos = _vint(buf, pos, end)
        if pos > end or index < 0 or index >= total:
            return True, end + 1
        present[index] = listed_are_there
    return False, pos


@compiled
def _row(
    buf: Bytes, pos: int, end: int, flags: int, more: int, tables: Tables, header: Ints, total: int, scratch: Scratch, out: Output, n: Ints
) -> int:
    """Read a row from after its clustering."""
    bases = scratch.bases
    row = n[ROWS] - 1
    rows = out.rows
    live = flags & _HAS_TIMESTAMP != 0
    live_timestamp, live_ttl, live_expiry = 0, _NO_TTL, _NO_TIME
    if live:
        live_timestamp, pos = _timestamp(buf, pos, end, bases)
        if flags & _HAS_TTL:
            live_ttl, pos = _ttl(buf, pos, end, bases)
            raw, pos = _vint(buf, pos, end)
            live_expiry = _as_time(bases, raw, live_ttl)
    rows.liveness_timestamp[row] = live_timestamp
    rows.liveness_ttl[row] = live_ttl
    rows.liveness_expires_at[row] = live_expiry
    rows.deletion_timestamp[row] = 0
    rows.deletion_time[row] = _NO_TIME
    if flags & _HAS_DELETION:
        rows.deletion_timestamp[row], rows.deletion_time[row], pos = _deletion(buf, pos, end, bases)
    rows.flags[row] = (
        (ROW_STATIC if more & _IS_STATIC else 0)
        | (ROW_LIVE if live else 0)
        | (ROW_DELETED if flags & _HAS_DELETION else 0)
        | (ROW_SHADOWABLE if more & _HAS_SHADOWABLE_DELETION else 0)
    )
    all_columns = True
    if not flags & _HAS_ALL_COLUMNS:
        all_columns, pos = _subset(buf, pos, end, total, scratch.present)
    if pos > end:
        return pos
    cells = out.cells
    at, paths, values = n[CELLS], n[PATH_BYTES], n[VALUE_BYTES]
    for i in range(total):
        if not all_columns and not scratch.present[i]:
            continue
        column = header[i]
        is_complex = tables.column_complex[column] != 0
        fixed = VARIABLE if is_complex else _i64(tables.column_length[column])
        dropped_at = tables.column_dropped_at[column]
        dropped_epoch = tables.column_dropped_epoch[column]
        before = fixed if is_complex else _i64(tables.column_length_before[column])
        by_epoch = bases[HAS_EPOCHS] != 0 and dropped_epoch != _NO_EPOCH
        is_before = bases[EPOCH] < dropped_epoch if by_epoch else bases[LAYOUT] == _FORMER
        by_timestamp = not by_epoch and bases[LAYOUT] == _BY_TIMESTAMP
        code = tables.column_code[column]
        count = 1
        if is_complex:
            if flags & _HAS_COMPLEX_DELETION:
                pos = _complex_deletion(buf, pos, end, bases, row, code, out.complex_deletions, n)
            count, pos = _length(buf, pos, end)
            if pos > end:
                return pos
        if at + count > cells.size:
            n[LACKING] = CELLS
            return end + 1
        for _ in range(count):
            if pos >= end:
                return end + 1
            marks = _i64(buf[pos])
            pos += 1
            if marks & (_USE_ROW_TIMESTAMP | _USE_ROW_TTL) and not live:
                return end + 1
            if marks & _USE_ROW_TIMESTAMP:
                timestamp = live_timestamp
            else:
                timestamp, pos = _timestamp(buf, pos, end, bases)
            ttl, time = _NO_TTL, _NO_TIME
            if marks & _USE_ROW_TTL:
                ttl, time = live_ttl, live_expiry
            elif marks & (_IS_DELETED | _IS_EXPIRING):
                raw, pos = _vint(buf, pos, end)
                if marks & _IS_EXPIRING:
                    ttl, pos = _ttl(buf, pos, end, bases)
                time = _as_time(bases, raw, ttl)
            if is_complex:
                length, pos = _length(buf, pos, end)
                if pos > end:
                    return pos
                paths = _copy(buf, pos, length, cells.path, paths)
                pos += length
            if not marks & _HAS_EMPTY_VALUE:
                length = fixed
                if before != fixed:
                    if not by_epoch:
                        bases[IS_DOUBTFUL] = 1
                    if timestamp <= dropped_at if by_timestamp else is_before:
                        length = before
                if length == VARIABLE:
                    length, pos = _length(buf, pos, end)
                if length > end - pos:
                    return end + 1
                values = _copy(buf, pos, length, cells.value, values)
                pos += length
            cells.row[at] = row
            cells.column[at] = code
            cells.timestamp[at] = timestamp
            cells.ttl[at] = ttl
            cells.time[at] = time
            cells.has_path[at] = is_complex
            cells.path_end[at + 1] = paths
            cells.value_end[at + 1] = values
            at += 1
    n[CELLS], n[PATH_BYTES], n[VALUE_BYTES] = at, paths, values
    return pos


@compiled
def _complex_deletion(buf: Bytes, pos: int, end: int, bases: Ints, row: int, code: int, out: ComplexDeletions, n: Ints) -> int:
    timestamp, time, pos = _deletion(buf, pos, end, bases)
    if timestamp == _NO_TIMESTAMP:
        return pos
    at = n[COMPLEX]
    if at >= out.size:
        n[LACKING] = COMPLEX
        return end + 1
    out.row[at] = row
    out.column[at] = code
    out.timestamp[at] = timestamp
    out.time[at] = time
    n[COMPLEX] = at + 1
    return pos


@compiled
def _new_row(out: Rows, size: int, buf: Bytes, scratch: Scratch, n: Ints) -> bool:
    """Begin a row with the first `size` values in scratch as its clustering. False if there is no room."""
    at = n[ROWS]
    if at >= out.size:
        n[LACKING] = ROWS
        return False
    out.update[at] = n[UPDATES] - 1
    n[ROWS] = at + 1
    return _add_list(out.clustering, at, CLUSTERING, buf, size, scratch, n)


# --- range tombstones


@compiled
def _marker(
    buf: Bytes, pos: int, end: int, opened: bool, tables: Tables, table: int, scratch: Scratch, out: Ranges, n: Ints
) -> tuple[bool, int]:
    """Read a marker. Returns whether a range is open after it. An open range is stored in the entry it will
    get."""
    kind, pos = _byte(buf, pos, end)
    closes, opens = _MARKER_CLOSES[kind], _MARKER_OPENS[kind]
    if (closes < 0 and opens < 0) or (closes >= 0) != opened or end - pos < 2:
        return False, end + 1
    size = (_i64(buf[pos]) << 8) | _i64(buf[pos + 1])
    if size > tables.clusterings[table + 1] - tables.clusterings[table]:
        return False, end + 1
    pos = _clustering(buf, pos + 2, end, tables, table, size, scratch)
    if pos > end:
        return False, pos
    if closes >= 0:
        at = n[RANGES]
        timestamp, time, pos = _deletion(buf, pos, end, scratch.bases)
        if timestamp != out.timestamp[at] or time != out.time[at] or not _add_list(out.end, at, END, buf, size, scratch, n):
            return False, end + 1
        if closes:
            out.flags[at] |= END_INCLUSIVE
        n[RANGES] = at + 1
    if opens < 0:
        return False, pos
    at = n[RANGES]
    if at >= out.size:
        n[LACKING] = RANGES
        return False, end + 1
    out.update[at] = n[UPDATES] - 1
    out.flags[at] = START_INCLUSIVE if opens else 0
    out.timestamp[at], out.time[at], pos = _deletion(buf, pos, end, scratch.bases)
    if not _add_list(out.start, at, START, buf, size, scratch, n):
        return False, end + 1
    return True, pos


# --- partition updates


@compiled
def _bases(buf: Bytes, pos: int, end: int, bases: Ints) -> int:
    timestamp, pos = _vint(buf, pos, end)
    time, pos = _vint(buf, pos, end)
    ttl, pos = _vint(buf, pos, end)
    # Compared before the sum: compiled code may take it that a sum does not wrap.
    bases[TIMESTAMP_BASE] = _EPOCH_MICROS if timestamp == _NO_BASE else timestamp + _EPOCH_MICROS
    bases[TIME_BASE] = _int32(time + _EPOCH_SECONDS)
    bases[TTL_BASE] = _int32(ttl)
    return pos


@compiled
def _static_row(buf: Bytes, pos: int, end: int, tables: Tables, total: int, scratch: Scratch, out: Output, n: Ints) -> int:
    flags, pos = _byte(buf, pos, end)
    more = 0
    if flags & _EXTENSION_FLAG:
        more, pos = _byte(buf, pos, end)
    if not more & _IS_STATIC or not _new_row(out.rows, 0, buf, scratch, n):
        return end + 1
    return _row(buf, pos, end, flags, more, tables, scratch.statics, total, scratch, out, n)


@compiled
def _unfiltereds(buf: Bytes, pos: int, end: int, tables: Tables, table: int, total: int, scratch: Scratch, out: Output, n: Ints) -> int:
    """Read rows and markers up to the end of the partition."""
    size = tables.clusterings[table + 1] - tables.clusterings[table]
    opened = False
    while pos < end:
        flags = _i64(buf[pos])
        pos += 1
        if flags & _END_OF_PARTITION:
            return end + 1 if opened else pos
        if flags & _IS_MARKER:
            opened, pos = _marker(buf, pos, end, opened, tables, table, scratch, out.ranges, n)
            continue
        more = 0
        if flags & _EXTENSION_FLAG:
            more, pos = _byte(buf, pos, end)
        if more & _IS_STATIC:
            return end + 1
        pos = _clustering(buf, pos, end, tables, table, size, scratch)
        if pos > end or not _new_row(out.rows, size, buf, scratch, n):
            return end + 1
        pos = _row(buf, pos, end, flags, more, tables, scratch.regulars, total, scratch, out, n)
    return end + 1


@compiled
def _new_update(
    buf: Bytes, pos: int, end: int, position: int, ordinal: int, flags: int, code: int, has_epoch: int, out: Updates, n: Ints
) -> int:
    """Begin an update with the epoch, if there is one, and the partition key at `pos`."""
    epoch = 0
    if has_epoch:
        epoch, pos = _vint(buf, pos, end)
    length, pos = _length(buf, pos, end)
    at = n[UPDATES]
    if at >= out.size:
        n[LACKING] = UPDATES
        return end + 1
    if pos > end:
        return pos
    out.position[at] = position
    out.ordinal[at] = ordinal
    out.flags[at] = flags
    out.table[at] = code
    out.epoch[at] = epoch
    out.deleted[at] = 0
    out.deletion_timestamp[at] = 0
    out.deletion_time[at] = _NO_TIME
    n[KEY_BYTES] = _copy(buf, pos, length, out.key, n[KEY_BYTES])
    out.key_end[at + 1] = n[KEY_BYTES]
    n[UPDATES] = at + 1
    return pos + length


@compiled
def _update(
    buf: Bytes,
    pos: int,
    end: int,
    position: int,
    ordinal: int,
    mutation_flags: int,
    tables: Tables,
    table: int,
    scratch: Scratch,
    out: Output,
    n: Ints,
) -> int:
    """Read a partition update from after its table id."""
    has_epoch = scratch.bases[HAS_EPOCHS]
    pos = _new_update(buf, pos, end, position, ordinal, mutation_flags, tables.code[table], has_epoch, out.updates, n)
    flags, pos = _byte(buf, pos, end)
    if pos > end or flags & _IS_EMPTY:
        return pos
    if flags & _IS_REVERSED:
        return end + 1
    scratch.bases[EPOCH] = out.updates.epoch[n[UPDATES] - 1]
    pos = _bases(buf, pos, end, scratch.bases)
    first, middle, last = tables.bounds[2 * table], tables.bounds[2 * table + 1], tables.bounds[2 * table + 2]
    n_statics = 0
    if flags & _HAS_STATIC_ROW:
        n_statics, pos = _columns(buf, pos, end, tables, first, middle, scratch.statics, scratch, n)
    n_regulars, pos = _columns(buf, pos, end, tables, middle, last, scratch.regulars, scratch, n)
    if flags & _HAS_PARTITION_DELETION:
        at = n[UPDATES] - 1
        out.updates.deletion_timestamp[at], out.updates.deletion_time[at], pos = _deletion(buf, pos, end, scratch.bases)
        out.updates.deleted[at] = 1
    if flags & _HAS_STATIC_ROW:
        pos = _static_row(buf, pos, end, tables, n_statics, scratch, out, n)
    if flags & _HAS_ROW_ESTIMATE:
        _, pos = _vint(buf, pos, end)
    return _unfiltereds(buf, pos, end, tables, table, n_regulars, scratch, out, n)


@compiled
def _mutation(buf: Bytes, pos: int, end: int, position: int, tables: Tables, scratch: Scratch, out: Output, n: Ints) -> int:
    """Read one body. It is valid if the returned position is its end."""
    size = end - pos
    flags = 0
    if scratch.bases[HAS_EPOCHS]:
        flags, pos = _byte(buf, pos, end)
    count, pos = _vint(buf, pos, end)
    if count <= 0 or count > size:
        return end + 1
    for ordinal in range(count):
        if end - pos < 16:
            return end + 1
        table = _find_table(tables, _word(buf, pos), _word(buf, pos + 8), n[TABLE])
        if table < 0:
            return end + 1
        n[TABLE] = table
        pos = _update(buf, pos + 16, end, position, ordinal, flags, tables, table, scratch, out, n)
    return pos


@compiled
def _body(chunk: Chunk, i: int, layout: int) -> bool:
    """Read the body i; whether that goes to its end."""
    chunk.scratch.bases[LAYOUT] = layout
    start = chunk.offset[i]
    end = start + chunk.length[i]
    return bool(_mutation(chunk.buf, start, end, chunk.position[i], chunk.tables, chunk.scratch, chunk.out, chunk.n) == end)


@compiled
def _in_one_layout(chunk: Chunk, i: int, before: Ints) -> bool:
    """Read a body that cannot be decoded by timestamps, in another layout (`mutation.decode_placed`)."""
    for layout in (_LATTER, _FORMER):
        _go_back(chunk.n, before)
        whole = _body(chunk, i, layout)
        if whole or chunk.n[LACKING] >= 0:
            return whole
    return False


@compiled
def _go_back(n: Ints, before: Ints) -> None:
    for k in range(KEPT):
        n[k] = before[k]


@compiled_and_kept
def decode(arguments: Ints) -> None:
    """Decode all bodies of a chunk; `arguments`: the words of a `Chunk`. Stops early with n[LACKING] set if
    room lacks."""
    chunk = _chunk(arguments)
    n = chunk.n
    before = np.zeros(KEPT, np.int64)
    for i in range(chunk.size):
        for k in range(KEPT):
            before[k] = n[k]
        chunk.scratch.bases[IS_DOUBTFUL] = 0
        failed = not _body(chunk, i, _BY_TIMESTAMP)
        if failed and chunk.scratch.bases[IS_DOUBTFUL] and n[LACKING] < 0:
            failed = not _in_one_layout(chunk, i, before)
        chunk.failed[i] = failed
        if n[LACKING] >= 0:
            return
        if failed:
            _go_back(n, before)
