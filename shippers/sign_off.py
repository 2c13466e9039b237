"""Signs off that everything the node had synced at a time is shipped: the basis of "complete up to T".

Strategy: a scan at which nothing synced was unshipped (`GrowingSegments.caught_up`) proves this for the time
of the scan, but only if the node was running: one that is killed after a sync and before it rewrites the idx
has synced more than the idx says. Its generation (system.local, new with each start) is therefore queried
before the scan and after it, and a scan counts only if both answers are the same. A node that does not answer
signs nothing off. The same query tells which nodes belong to the ring.

A running node always has a segment open in its cdc_raw, from 4.0 on. If none is open, the folder is that of another node, of an
earlier configuration or of a disk that is not mounted: then nothing is signed off, because what the node writes is elsewhere.

What is not synced yet is subtracted by the jobs (`writetime.pipeline.watermark`). Knows no files or objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from writetime.cassandra.cdc_settings import CdcSettings
from writetime.errors import ShipError

_ELSEWHERE: Final = (
    "Compare node.cdc_raw with cdc_raw_directory of the node, and the mounts. Until they are one folder, nothing is signed off."
)


@dataclass(frozen=True, slots=True)
class Ring:
    """What a node answers: its `generation`, and the host ids of the ring's members, itself among them, by
    datacenter."""

    generation: int
    members: Mapping[str, list[str]]


class CaughtUp(NamedTuple):
    """A scan at which nothing synced was unshipped: its time in s since the epoch, and by the monotonic
    clock. `in_use`: whether a segment in the folder may be open for writing."""

    at: float
    monotonic: float
    in_use: bool = True


class SignedOff(NamedTuple):
    """Everything that the node had synced at `at` is shipped. `unsynced_ms`: how much later than its place in
    the log a mutation may have been synced."""

    at: datetime
    unsynced_ms: int
    members: Mapping[str, list[str]]

    def to_document(self) -> dict[str, Any]:
        return {"at": self.at.isoformat(timespec="milliseconds"), "unsynced_ms": self.unsynced_ms, "members": self.members}


class SignOff:
    """Signs off for one node, which `query` asks. `datacenters`: those that ship. `restarted` is called when
    the node has another generation than before."""

    def __init__(
        self, query: Callable[[], Ring] | None, datacenters: Collection[str], log: Any, restarted: Callable[[], None] = lambda: None
    ) -> None:
        self._query = query
        self._restarted = restarted
        self._datacenters = datacenters
        self._log = log
        self._generation: int | None = None
        self._since = 0.0
        """Since when the node has this generation, by the monotonic clock."""
        self._fails = False
        self._is_elsewhere = False

    def of(self, caught_up: CaughtUp | None, settings: CdcSettings | None) -> SignedOff | None:
        """The last such scan, signed off; None if the node does not answer, has restarted meanwhile, or does
        not expose its sync interval (3.11)."""
        unsynced = None if settings is None else settings.unsynced
        if self._query is None or unsynced is None or (ring := self._ask()) is None:
            return None
        if ring.generation != self._generation:
            self._generation, self._since = ring.generation, time.monotonic()
            # The sync interval may have been changed.
            self._restarted()
            return None
        if caught_up is None or caught_up.monotonic < self._since or self._writes_elsewhere(caught_up, settings):
            return None
        # Also a datacenter without nodes: otherwise nobody could say that its last one has left.
        members = {name: sorted(ring.members.get(name, ())) for name in sorted(self._datacenters)}
        return SignedOff(datetime.fromtimestamp(caught_up.at, UTC), int(unsynced.total_seconds() * 1000), members)

    def _writes_elsewhere(self, caught_up: CaughtUp, settings: CdcSettings | None) -> bool:
        """Whether no segment in the folder was open for writing at a scan while the node was running. Logged once."""
        # Without CDC there is none, which is an alarm of its own.
        is_elsewhere = not caught_up.in_use and (settings is None or settings.cdc_enabled is not False)
        if is_elsewhere and not self._is_elsewhere:
            self._log.error("node does not write to this cdc_raw", hint=_ELSEWHERE)
        self._is_elsewhere = is_elsewhere
        return is_elsewhere

    def _ask(self) -> Ring | None:
        assert self._query is not None
        try:
            ring = self._query()
        except ShipError as error:
            if not self._fails:
                self._log.warning("failed to query the ring", **error.as_dict())
            self._fails = True
            # It may be another node, or a restarted one, that answers next.
            self._generation = None
            return None
        self._fails = False
        return ring


def take_ring(session: Any) -> Ring:
    """Query the node's generation and the ring's members. Driver errors are not caught."""
    generation, own_dc, own_id = session.execute("SELECT gossip_generation, data_center, host_id FROM system.local").one()
    members: dict[str, list[str]] = {own_dc: [str(own_id)]}
    for datacenter, host_id in session.execute("SELECT data_center, host_id FROM system.peers"):
        # A peer that the node has just heard of has no host id yet, and is no member.
        if datacenter is not None and host_id is not None:
            members.setdefault(datacenter, []).append(str(host_id))
    return Ring(int(generation), members)
