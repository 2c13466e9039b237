"""Filler: writes that nobody reads, so that the segment of a quiet node fills, is finished, and can be shipped.

Strategy: Cassandra 3.11 has no idx, and a segment comes into cdc_raw only when it is full and all its tables are flushed
(CommitLogSegmentManagerCDC.discard, 3.11.19), which takes a quiet node hours. One segment's worth of random bytes, which no compression
shrinks, goes under one key into a table of its own that captures nothing and forgets soon. The key's token is this node's, and the table
has one replica, so no other node writes anything for it.

Knows how to fill; when it is due, and that an alarm forbids it, says the agent.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from writetime.cassandra.token_ring import token
from writetime.config.pipeline import FillerConfig
from writetime.errors import ConfigError

PIECE = 128 << 10
"""Bytes of one write: far under any max_mutation_size, and few enough of them for 32 MiB."""
_KEYS = 100_000
"""That are tried: enough for a node that owns a ten-thousandth of the ring."""
_MURMUR3 = "org.apache.cassandra.dht.Murmur3Partitioner"


def fill(session: Any, config: FillerConfig, stopped: Callable[[], bool]) -> int:
    """Write one segment's worth under the node's own key, or until stopped. Returns bytes written.

    ConfigError if the table captures changes, keeps its rows or has more replicas, or if the ring does not use Murmur3Partitioner.
    """
    if (reason := _unfit(session, config)) is not None:
        hint = "docs/shipper.md has the statements that make it."
        raise ConfigError(reason, operation="fill a segment", obj=config.table, hint=hint)
    key = own_key(*_tokens(session))
    # Both names are plain by the configuration's own pattern.
    statement = session.prepare(f"INSERT INTO {config.table} (key, filler) VALUES (?, ?)")  # noqa: S608
    for written in range(0, config.segment_size, PIECE):
        if stopped():
            return written
        session.execute(statement, (key, os.urandom(PIECE)))
    return -(-config.segment_size // PIECE) * PIECE


def own_key(mine: Iterable[int], all_: Iterable[int]) -> int:
    """The least int whose only replica is the node of the tokens `mine`, of `all_` of its datacenter. ConfigError if none is found."""
    own, ring = set(mine), sorted(all_)

    def owner(key: int) -> int:
        """A node owns the range that ends with its token; behind the last token the ring begins anew."""
        return ring[bisect_left(ring, token(key.to_bytes(4, "big"))) % len(ring)]

    found = next((key for key in range(_KEYS) if owner(key) in own), None)
    if found is None:
        hint = "Its token ranges are tiny: take ship.filler away."
        raise ConfigError(f"no key of {_KEYS:,} is this node's", operation="fill a segment", hint=hint)
    return found


def _tokens(session: Any) -> tuple[list[int], list[int]]:
    """The node's own tokens, and all of its datacenter."""
    local = session.execute("SELECT data_center, partitioner, tokens FROM system.local").one()
    datacenter, partitioner, texts = local
    if partitioner != _MURMUR3:
        raise ConfigError(f"the ring's partitioner is {partitioner}", operation="fill a segment", hint="Take ship.filler away.")
    mine = [int(text) for text in texts]
    others = [
        int(text)
        for dc, texts in session.execute("SELECT data_center, tokens FROM system.peers")
        if dc == datacenter
        for text in texts or ()
    ]
    return mine, mine + others


def _unfit(session: Any, config: FillerConfig) -> str | None:
    """What is wrong with the table. One that captured its filler would fill the bucket, and one that kept it the disk."""
    table = "SELECT cdc, default_time_to_live FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    if (row := session.execute(table, (config.keyspace, config.name)).one()) is None:
        return "there is no such table"
    captures, ttl = row
    keyspace = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    replication = dict(session.execute(keyspace, (config.keyspace,)).one()[0])
    if captures:
        return "the table has cdc = true"
    if not ttl:
        return "the table has no default_time_to_live"
    if [value for option, value in replication.items() if option != "class"] != ["1"]:
        return f"its keyspace has replication {replication}, not one replica in one datacenter"
    return None
