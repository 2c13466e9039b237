"""What CQL does not tell of a row, and how the state marks that it does not know: three values that no node writes.

    liveness    that a row is there CQL tells, but not since when. It gets a liveness that says "as of this reading", with a ttl that stands
                for "nobody knows": whatever deletes the row later takes it, and what had deleted an earlier row does not.
    lists       elements, in order, but not their paths. They get paths between those that prepends and appends make: the instant at which
                Cassandra turns from the one to the other, and their place.
    counters    a sum, but not its shards. It becomes one shard of an id of its own.
    ttl         what is left of it, but not what it was. A cell gets the longest there can be: then the log's own cell wins over it.

A log that touches such a value says something that cannot be applied to it: it removes a list's element by a path that nobody knows, counts
on in a shard that is part of the sum, takes a row's last cell. So a batch notes the keys of the rows that it leaves so (`is_opaque`), and
they are read from the ring again. Notes that were not needed cost a read and change nothing. Pure.

Source: Cassandra 3.11-5.0, cql3/Lists.PrecisionTime.REFERENCE_TIME, cql3/Attributes.MAX_TTL.
"""

from __future__ import annotations

import hashlib
from typing import Final

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.counters import Shard, decode_context, encode_context
from writetime.cassandra.merge.liveness import is_live, live_cells
from writetime.cassandra.model import Cell, Liveness
from writetime.cassandra.types.vint import write_unsigned

UNKNOWN_TTL: Final = 20 * 365 * 86_400
"""The longest that Cassandra takes. Of two cells that expire at once, the one of the smaller ttl wins."""

_LIVENESS_TTL: Final = 0x7FFFFFFE
_LIVENESS_EXPIRY: Final = 0xFFFFFFF0
"""s since the epoch: in 2106. One less than what a segment of version 8 can say."""
_LIVENESS_MARK: Final = write_unsigned(_LIVENESS_TTL) + write_unsigned(_LIVENESS_EXPIRY)

_REFERENCE: Final = (1_262_304_000 + 12_219_292_800) * 10_000_000
"""2010-01-01 in the clock of UUIDs: paths of prepended elements are before it, of appended ones after it."""
_LOW: Final = _REFERENCE & 0xFFFFFFFF
_PATH_MARK: Final = (
    ((_REFERENCE >> 32) & 0xFFFF).to_bytes(2, "big") + ((_REFERENCE >> 48) & 0x0FFF | 0x1000).to_bytes(2, "big") + b"\x80\x77"
)
PLACES: Final = 1 << 20
"""Where a list begins whose first places are taken."""

COUNTER_ID: Final = b"writetime\0opaque"
"""A host id is a UUID of version 1 or 4; this is none."""


def liveness(as_of: int) -> Liveness:
    """Of a row that a reading showed; `as_of` (µs): what was deleted up to then shows in that reading."""
    return Liveness(as_of, _LIVENESS_TTL, _LIVENESS_EXPIRY)


def is_opaque_liveness(found: Liveness | None) -> bool:
    return found is not None and found.ttl == _LIVENESS_TTL


def list_path(place: int, cell_value: bytes, timestamp: int) -> bytes:
    """The path of the element at a place (from 0) of a list, with that value and writetime (µs): a UUID of version 1. The same element at
    the same place has the same path in every reading."""
    own = hashlib.blake2b(timestamp.to_bytes(8, "big", signed=True) + cell_value, digest_size=6).digest()
    return (_LOW + place).to_bytes(4, "big") + _PATH_MARK + own


def is_list_path(path: bytes) -> bool:
    return path[4:10] == _PATH_MARK


def counter(total: int, context: bytes, clock: int) -> bytes:
    """A context that, merged with this one (b"": none), sums up to `total`. `clock` has to be greater than in any such context before."""
    known = sum(shard.count for shard in decode_context(context) if shard.counter_id != COUNTER_ID) if context else 0
    count = (total - known + (1 << 63)) % (1 << 64) - (1 << 63)
    return encode_context((Shard(COUNTER_ID, clock, count),))


def is_opaque(state: bytes, now: int, *, head: bool = False) -> bool:
    """Whether the state of a row (a flat row), or of a partition's `head`, rests on something that nobody knows: then the ring has to be
    asked once a log has touched it. Of liveness: whether nothing else makes the row show at `now` (s)."""
    if _PATH_MARK in state or COUNTER_ID in state:
        return True
    if head or _LIVENESS_MARK not in state:
        return False
    row = row_codec.decode(state)
    return is_opaque_liveness(row.liveness) and is_live(row.liveness, now) and not live_cells(row, now=now)


def unsure(cell: Cell) -> Cell:
    """The cell with the ttl that stands for one that is not known."""
    return Cell(cell.column, cell.timestamp, cell.value, cell.path, UNKNOWN_TTL, cell.local_deletion_time)
