"""Filler writes, so that an idle node's current segment fills up, is completed, and can be shipped.

Strategy: Cassandra 3.11 has no idx, and moves a segment to cdc_raw only when it is full and all its tables
are flushed (CommitLogSegmentManagerCDC.discard, 3.11.19), which takes an idle node hours. One segment's size
of random bytes, which do not compress, is written under one key to a dedicated table without CDC and with a
short TTL. The key's token belongs to this node and the table has one replica, in this node's datacenter, so no
other node receives the writes.

It is written at intervals while the node completes no segments by itself and has enough space. Knows nothing
about the store.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from threading import Event
from typing import Any

from shippers.disk_space import Level
from shippers.metrics import Metrics, Pulse
from writetime.cassandra.token_ring import MURMUR3, partitioner_name, token
from writetime.config.node import FillerConfig
from writetime.errors import ConfigError, WritetimeError

WRITE_BYTES = 128 << 10
"""Size of one write: far below any max_mutation_size, and large enough to fill 32 MiB in few writes."""
_KEYS = 100_000
"""How many keys are tried: enough for a node that owns a ten-thousandth of the ring."""


class Filler:
    """Fills segments of one node when due. `config` is None if it is not configured."""

    def __init__(self, config: FillerConfig | None, stop: Event, metrics: Metrics, pulse: Pulse, log: Any) -> None:
        self._config = config
        self._stop = stop
        self._metrics = metrics
        self._pulse = pulse
        self._log = log
        self._next = time.monotonic() + (config.every_seconds if config else 0.0)

    def fill_if_due(self, write: Callable[[FillerConfig, Callable[[], bool]], int], level: Level, *, shipped: bool) -> None:
        """Write filler so that the node completes its current segment, if configured and due.

        Skipped if the node completes segments by itself, that is, the round `shipped` some, or is short of
        space. `write` is `Link.fill`.
        """
        if self._config is None or self._stop.is_set():
            return
        if shipped:
            self._next = time.monotonic() + self._config.every_seconds
        if time.monotonic() < self._next or level is not Level.OK:
            return
        self._next = time.monotonic() + self._config.every_seconds
        try:
            written = write(self._config, self._may_not_fill)
        except WritetimeError as error:
            # A filler error, even a wrong configuration, must not stop shipping.
            self._metrics.failed(type(error).__name__)
            self._log.error("failed to fill a segment", **error.as_dict())
        else:
            self._metrics.filled(written)
            self._log.info("segment filled", table=self._config.table, bytes=written)

    def _may_not_fill(self) -> bool:
        """Whether filling must stop. Called before each write; it also reports that the loop is alive."""
        self._pulse.beat()
        return self._stop.is_set()


def fill(session: Any, config: FillerConfig, stopped: Callable[[], bool]) -> int:
    """Write one segment's size under the node's own key, or until stopped. Returns bytes written.

    ConfigError if the table has CDC, no TTL or more replicas, or if the cluster does not use
    Murmur3Partitioner.
    """
    datacenter, mine, ring = _tokens(session)
    if (reason := _unfit(session, config, datacenter)) is not None:
        hint = "See docs/shipper.md for the statements that create it."
        raise ConfigError(reason, operation="fill a segment", obj=config.table, hint=hint)
    key = own_key(mine, ring)
    # The configuration restricts both names to characters that need no quoting.
    statement = session.prepare(f"INSERT INTO {config.table} (key, filler) VALUES (?, ?)")  # noqa: S608
    for written in range(0, config.segment_size, WRITE_BYTES):
        if stopped():
            return written
        session.execute(statement, (key, os.urandom(WRITE_BYTES)))
    return -(-config.segment_size // WRITE_BYTES) * WRITE_BYTES


def own_key(mine: Iterable[int], all_: Iterable[int]) -> int:
    """The smallest int key whose only replica is the node with the tokens `mine`, of `all_` tokens of its
    datacenter.

    ConfigError if none is found.
    """
    own, ring = set(mine), sorted(all_)

    def owner(key: int) -> int:
        """A node owns the range that ends at its token; after the last token the ring wraps around."""
        return ring[bisect_left(ring, token(key.to_bytes(4, "big"))) % len(ring)]

    found = next((key for key in range(_KEYS) if owner(key) in own), None)
    if found is None:
        hint = "Its token ranges are very small: remove ship.filler."
        raise ConfigError(f"the node owns none of {_KEYS:,} keys", operation="fill a segment", hint=hint)
    return found


def _tokens(session: Any) -> tuple[str, list[int], list[int]]:
    """The node's datacenter, its own tokens, and all of its datacenter."""
    local = session.execute("SELECT data_center, partitioner, tokens FROM system.local").one()
    datacenter, partitioner, texts = local
    if (name := partitioner_name(partitioner)) != MURMUR3:
        raise ConfigError(f"unsupported partitioner {name}", operation="fill a segment", hint="Remove ship.filler.")
    mine = [int(text) for text in texts]
    others = [
        int(text)
        for dc, texts in session.execute("SELECT data_center, tokens FROM system.peers")
        if dc == datacenter
        for text in texts or ()
    ]
    return datacenter, mine, mine + others


def _unfit(session: Any, config: FillerConfig, datacenter: str) -> str | None:
    """Why the table cannot be used by a node of that datacenter, or None. With CDC, filler would fill the
    bucket; without a TTL, the disk; with its replica in another datacenter, the logs there."""
    table = "SELECT cdc, default_time_to_live FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    if (row := session.execute(table, (config.keyspace, config.name)).one()) is None:
        return "the table does not exist"
    captures, ttl = row
    keyspace = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    replication = dict(session.execute(keyspace, (config.keyspace,)).one()[0])
    if captures:
        return "the table has cdc = true"
    if not ttl:
        return "the table has no default_time_to_live"
    if [value for option, value in replication.items() if option != "class"] != ["1"]:
        return f"its keyspace has replication {replication}, not one replica in one datacenter"
    if "replication_factor" in replication:
        # SimpleStrategy knows no datacenters: the replica may be in any.
        elsewhere = session.execute("SELECT data_center FROM system.peers")
        if any(name not in (None, datacenter) for (name,) in elsewhere):
            return f"its keyspace has replication {replication}, and the cluster more datacenters than this node's, {datacenter}"
    elif datacenter not in replication:
        return f"its keyspace has replication {replication}, no replica in this node's datacenter, {datacenter}"
    return None
