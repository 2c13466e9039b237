"""Counter cell values: contexts of shards, merged shard by shard.

A context is the raw value of a counter cell: for each node an absolute count with a clock. A merge of two
contexts keeps the newer of each shard; the counter's value is the sum of all shards. Contexts are small, so
they are decoded, merged as dictionaries and encoded again. This module does not know cells, rows or
timestamps.

A reading of the cluster knows a sum, but not its shards. It is a *statement* in the context: the total, and the window of
time in which it was read. A shard's clock is the time (µs) of its node's last increment, so each version of a shard is
part of the total or not: up to the window it is, after it it is not. For each shard the statement keeps its *base*: the
last version that is part of the total, with its count subtracted. So the sum of everything is the total and what was
counted since, in whatever order statement and shards arrive. It is `uncertain` if a base is not from before the window:
increments in the window may or may not be in the total, and a shard that was first seen after it counts as if all of it
were. A later statement replaces an earlier one.

Global shards (the only ones that Cassandra >= 2.1 writes) form a semilattice. Local shards, which only older
data has, do not: two local shards of one id *add up*, so merging the same context twice counts twice
(`has_local_shards`).

Source of the clock: Cassandra 3.0-5.0, db/CounterMutation.updateWithCurrentValue.

Layout (Cassandra 3.0-5.0, db/context/CounterContext), big-endian:

    | field          | size    |                                                                               |
    | header count   | 2       | |h| entries follow; h < 0 marks "local shards are to be cleared"              |
    | header entries | 2 x |h| | e < 0: shard number e + 32768 is global; e >= 0: shard number e is local      |
    | shards         | 32 each | counter id (16), clock (i64), count (i64); ascending by id; not listed: remote |
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Self

from writetime.cassandra.merge.unknown_marker import STATED
from writetime.errors import MalformedMutation

_SHARD = struct.Struct(">16sqq")
_GLOBAL_FLAG = 1 << 15
_WRAP = 1 << 64

_TOTAL: Final = STATED + b"\0opaque"
"""The total; its clock is the begin of the window."""
_UNTIL: Final = STATED + b"\0until\0"
"""Nothing; its clock is the end of the window."""


class ShardKind(IntEnum):
    """In order of precedence: of two shards with the same id the greater kind wins."""

    REMOTE = 0
    LOCAL = 1
    GLOBAL = 2


@dataclass(frozen=True, slots=True)
class Shard:
    """The count of one counter id at its `clock`."""

    counter_id: bytes
    clock: int
    count: int
    kind: ShardKind = ShardKind.GLOBAL


def decode_context(context: bytes) -> tuple[Shard, ...]:
    """The shards of a context in its order. Raises MalformedMutation if lengths or header entries are
    inconsistent."""
    if len(context) < 2:
        raise _malformed(context, "shorter than its header count")
    header_end = 2 + 2 * abs(int.from_bytes(context[:2], "big", signed=True))
    if header_end > len(context) or (len(context) - header_end) % _SHARD.size:
        raise _malformed(context, "length is not a multiple of the shard size")
    kinds = [ShardKind.REMOTE] * ((len(context) - header_end) // _SHARD.size)
    for at in range(2, header_end, 2):
        entry = int.from_bytes(context[at : at + 2], "big")
        number = entry & ~_GLOBAL_FLAG
        if number >= len(kinds):
            raise _malformed(context, "header refers to a missing shard")
        kinds[number] = ShardKind.GLOBAL if entry & _GLOBAL_FLAG else ShardKind.LOCAL
    shards = zip(_SHARD.iter_unpack(context[header_end:]), kinds, strict=True)
    return tuple(Shard(counter_id, clock, count, kind) for (counter_id, clock, count), kind in shards)


def encode_context(shards: tuple[Shard, ...]) -> bytes:
    """The context of these shards, ascending by id. The inverse of `decode_context`, except for a negative
    header count."""
    ordered = sorted(shards, key=lambda shard: shard.counter_id)
    numbered = ((number, shard.kind) for number, shard in enumerate(ordered) if shard.kind is not ShardKind.REMOTE)
    header = [number | (_GLOBAL_FLAG if kind is ShardKind.GLOBAL else 0) for number, kind in numbered]
    parts = [len(header).to_bytes(2, "big"), *(entry.to_bytes(2, "big") for entry in header)]
    parts += (_SHARD.pack(shard.counter_id, shard.clock, shard.count) for shard in ordered)
    return b"".join(parts)


def merge_contexts(a: bytes, b: bytes) -> bytes:
    """The merge of two contexts (Cassandra 4.0, CounterContext.merge)."""
    if a == b and not has_local_shards(a):
        return a
    sides = [_Context.of(decode_context(each)) for each in (a, b)]
    shards: dict[bytes, Shard] = {}
    for shard in (shard for side in sides for shard in side.shards):
        mine = shards.get(shard.counter_id)
        shards[shard.counter_id] = shard if mine is None else merge_shards(mine, shard)
    stated = max((side.statement for side in sides if side.statement is not None), default=None)
    return encode_context((*shards.values(), *(() if stated is None else _stated(stated, sides))))


class _Statement(NamedTuple):
    """A total that was read in the window from `since` to `until` (µs)."""

    since: int
    until: int
    total: int


class _Context(NamedTuple):
    """The shards of nodes, and a statement with the base of each shard by the id of the base."""

    shards: tuple[Shard, ...]
    statement: _Statement | None
    bases: dict[bytes, Shard]

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> Self:
        real, stated = list[Shard](), dict[bytes, Shard]()
        for shard in shards:
            if shard.counter_id.startswith(STATED):
                stated[shard.counter_id] = shard
            else:
                real.append(shard)
        read, until = stated.pop(_TOTAL, None), stated.pop(_UNTIL, None)
        if read is None:
            return cls(tuple(real), None, {})
        return cls(tuple(real), _Statement(read.clock, read.clock if until is None else until.clock, read.count), stated)


def _stated(statement: _Statement, sides: Iterable[_Context]) -> Iterable[Shard]:
    """A statement with the bases of all shards that it has met."""
    bases: dict[bytes, Shard] = {}
    met = list[Shard]()
    for side in sides:
        if side.statement == statement:
            for each, base in side.bases.items():
                bases[each] = max(base, bases.get(each, base), key=_age)
        else:
            met += side.shards
    for shard in met:
        base_id = STATED + hashlib.blake2b(shard.counter_id, digest_size=7).digest()
        known = bases.get(base_id)
        if known is None or known.clock < shard.clock <= statement.until:
            bases[base_id] = Shard(base_id, shard.clock, _int64(-shard.count))
    yield Shard(_TOTAL, statement.since, statement.total)
    yield Shard(_UNTIL, statement.until, 0)
    yield from bases.values()


def _age(shard: Shard) -> tuple[int, int]:
    return shard.clock, shard.count


def statement(total: int, since: int, until: int) -> bytes:
    """The context of a counter that was read: its total, and the window of time (µs) before which all increments are
    part of it, and after which none is."""
    return encode_context(tuple(_stated(_Statement(since, max(since, until), total), ())))


def is_stated(context: bytes) -> bool:
    """Whether a context (b"": none) has shards of a reading."""
    return STATED in context and any(shard.counter_id.startswith(STATED) for shard in decode_context(context))


def is_uncertain(context: bytes) -> bool:
    """Whether increments may be missing in a counter that was read, or counted twice."""
    found = _Context.of(decode_context(context))
    return found.statement is not None and any(base.clock > found.statement.since for base in found.bases.values())


def merge_shards(a: Shard, b: Shard) -> Shard:
    """The merge of two shards with the same id: the greater kind, then the greater clock, then the greater
    count wins; two local shards add up."""
    if a.kind is ShardKind.LOCAL and b.kind is ShardKind.LOCAL:
        return Shard(a.counter_id, _int64(a.clock + b.clock), _int64(a.count + b.count), ShardKind.LOCAL)
    return a if (a.kind, a.clock, a.count) >= (b.kind, b.clock, b.count) else b


def total(context: bytes) -> int:
    """The counter's value: the sum of its shards as a signed 64-bit integer; 0 for an empty (cleared)
    value."""
    return _int64(sum(shard.count for shard in decode_context(context))) if context else 0


def has_local_shards(context: bytes) -> bool:
    """Whether merging this context is not idempotent."""
    return bool(context) and any(shard.kind is ShardKind.LOCAL for shard in decode_context(context))


def _int64(value: int) -> int:
    """Java's long arithmetic: overflow wraps."""
    return (value + (_WRAP >> 1)) % _WRAP - (_WRAP >> 1)


def _malformed(context: bytes, reason: str) -> MalformedMutation:
    return MalformedMutation(
        f"counter context of {len(context)} bytes: {reason}",
        operation="decode a counter value",
        hint="The column is not a counter in the current schema, or the bytes are damaged.",
    )
