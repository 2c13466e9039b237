"""What CQL does not report of a row, and the markers in the state for unknown values, which no node writes.

    liveness    CQL reports that a row exists, but not since when. It gets a liveness info as of the reading, with a
                ttl that means "unknown": later deletions of the row supersede it, earlier ones do not.
    lists       elements in order, but not their paths. They get paths between those of prepended and appended
                elements: the instant at which Cassandra switches from one to the other, and their index.
    counters    a sum, but not its shards. It becomes one shard with an id of its own.
    ttl         the remaining time, but not the original ttl. A cell gets the longest one: the log's own cell wins.

A logged write to such a value cannot be applied exactly: it removes a list element by its real path, adds to
a shard that is part of the sum, or deletes a row's last cell. A batch notes the keys of these rows
(`is_unknown`), and they are read from the cluster again. A superfluous note costs a read and changes
nothing. Pure.

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
"""The longest ttl of Cassandra. Of two cells that expire at once, the one with the smaller ttl wins."""

_LIVENESS_TTL: Final = 0x7FFFFFFE
_LIVENESS_EXPIRY: Final = 0xFFFFFFF0
"""s since the epoch: in 2106. One less than what a segment of version 8 can say."""
_LIVENESS_MARK: Final = write_unsigned(_LIVENESS_TTL) + write_unsigned(_LIVENESS_EXPIRY)

_REFERENCE: Final = (1_262_304_000 + 12_219_292_800) * 10_000_000
"""2010-01-01 in the clock of UUIDs: paths of prepended elements are before it, those of appended ones after
it.
"""
_LOW: Final = _REFERENCE & 0xFFFFFFFF
_PATH_MARK: Final = (
    ((_REFERENCE >> 32) & 0xFFFF).to_bytes(2, "big") + ((_REFERENCE >> 48) & 0x0FFF | 0x1000).to_bytes(2, "big") + b"\x80\x77"
)
PLACES: Final = 1 << 20
"""First index of a list if the first indexes are taken."""

COUNTER_ID: Final = b"writetime\0opaque"
"""Not a host id: that is a UUID of version 1 or 4."""


def liveness(as_of: int) -> Liveness:
    """The liveness info of a row that was read. `as_of` (µs): earlier deletions are visible in the
    reading."""
    return Liveness(as_of, _LIVENESS_TTL, _LIVENESS_EXPIRY)


def is_unknown_liveness(found: Liveness | None) -> bool:
    return found is not None and found.ttl == _LIVENESS_TTL


def list_path(place: int, cell_value: bytes, timestamp: int) -> bytes:
    """The path of the element at an index of a list, with that value and writetime (µs): a UUID of version
    1, the same in every reading."""
    own = hashlib.blake2b(timestamp.to_bytes(8, "big", signed=True) + cell_value, digest_size=6).digest()
    return (_LOW + place).to_bytes(4, "big") + _PATH_MARK + own


def is_list_path(path: bytes) -> bool:
    return path[4:10] == _PATH_MARK


def counter(total: int, context: bytes, clock: int) -> bytes:
    """A counter context that, merged with `context` (b"": none), sums up to `total`. `clock` must be greater
    than in any such context before."""
    known = sum(shard.count for shard in decode_context(context) if shard.counter_id != COUNTER_ID) if context else 0
    count = (total - known + (1 << 63)) % (1 << 64) - (1 << 63)
    return encode_context((Shard(COUNTER_ID, clock, count),))


def is_unknown(state: bytes, now: int, *, head: bool = False) -> bool:
    """Whether the state of a row (a flat row), or of a partition's `head`, contains an unknown value, so
    that the cluster has to be asked after a logged write. An unknown liveness info counts only if nothing
    else makes the row live at `now` (s)."""
    if _PATH_MARK in state or COUNTER_ID in state:
        return True
    if head or _LIVENESS_MARK not in state:
        return False
    row = row_codec.decode(state)
    return is_unknown_liveness(row.liveness) and is_live(row.liveness, now) and not live_cells(row, now=now)


def unsure(cell: Cell) -> Cell:
    """The cell with the ttl that means "unknown"."""
    return Cell(cell.column, cell.timestamp, cell.value, cell.path, UNKNOWN_TTL, cell.local_deletion_time)
