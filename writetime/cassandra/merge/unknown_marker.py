"""What CQL does not report of a row: the marks of the stand-ins for it that a reading of the cluster writes.

    liveness    CQL reports that a row exists, but not since when. It gets a liveness info as of the reading, with a
                ttl beyond Cassandra's longest: one for a row that was read with cells, one for a row without any.
    lists       elements in order, but not their paths. They get paths between those of prepended and appended
                elements: the instant at which Cassandra switches from one to the other and their index, and the time
                of the reading.
    counters    a sum, but not its shards. It gets shards with ids of their own (`writetime.cassandra.merge.counters`).
    ttl         the remaining time, but not the original ttl. A cell gets the longest one, and never expires later
                than the real one: so the log's own cell wins by Cassandra's rules.

No node writes any of these. How they yield to what a log knows is in `stand_ins`. Pure.

Source: Cassandra 3.11-5.0, cql3/Lists.PrecisionTime.REFERENCE_TIME, cql3/Attributes.MAX_TTL.
"""

from __future__ import annotations

from typing import Final

from writetime.cassandra.model import Liveness
from writetime.cassandra.types.vint import write_unsigned

UNKNOWN_TTL: Final = 20 * 365 * 86_400
"""The longest ttl of Cassandra. Of two cells that expire at once, the one with the smaller ttl wins."""

WITH_CELLS: Final = 0x7FFFFFFE
ALONE: Final = 0x7FFFFFFD
"""Ttls of the liveness of a row that was read: with cells, or without any."""
UNKNOWN_LIVENESS: Final = (WITH_CELLS, ALONE)
_LIVENESS_EXPIRY: Final = 0xFFFFFFF0
"""s since the epoch: in 2106. One less than what a segment of version 8 can say."""
_LIVENESS_MARK: Final = write_unsigned(WITH_CELLS)

REFERENCE: Final = (1_262_304_000 + 12_219_292_800) * 10_000_000
"""2010-01-01 in the clock of UUIDs: paths of prepended elements are before it, those of appended ones after
it.
"""
_LOW: Final = REFERENCE & 0xFFFFFFFF
PATH_MARK: Final = ((REFERENCE >> 32) & 0xFFFF).to_bytes(2, "big") + ((REFERENCE >> 48) & 0x0FFF | 0x1000).to_bytes(2, "big") + b"\x80\x77"
"""Bytes 4 to 10 of the path of a stand-in."""

STATED: Final = b"writetime"
"""How the counter ids of a reading's shards begin. Those of nodes are UUIDs."""


def liveness(as_of: int, *, alone: bool = False) -> Liveness:
    """The liveness info of a row that was read, `alone`: without cells. `as_of` (µs): earlier deletions are visible in
    the reading."""
    return Liveness(as_of, ALONE if alone else WITH_CELLS, _LIVENESS_EXPIRY)


def is_unknown_liveness(found: Liveness | None) -> bool:
    return found is not None and found.ttl in UNKNOWN_LIVENESS


def list_path(place: int, as_of: int) -> bytes:
    """The path of the element at an index of a list that was read as of that time (µs): a UUID of version 1."""
    return (_LOW + place).to_bytes(4, "big") + PATH_MARK + (as_of // 1000).to_bytes(6, "big")


def is_list_path(path: bytes | None) -> bool:
    return path is not None and path[4:10] == PATH_MARK and len(path) == 16


def read_at(path: bytes | None) -> int:
    """When the element with the path of a stand-in was read (ms)."""
    return int.from_bytes((path or b"")[10:], "big")


def may_be_unknown(state: bytes) -> bool:
    """Whether bytes that contain a flat row may contain a stand-in that can be in doubt; False is certain."""
    return PATH_MARK in state or _LIVENESS_MARK in state or STATED in state
