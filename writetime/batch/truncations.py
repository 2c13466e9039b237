"""What a TRUNCATE takes away: which of the nodes' records are one TRUNCATE, and which frames it took. Pure; no store, no Spark.

A TRUNCATE is no mutation. Each node notes for itself where its log was (writetime.schema.local.Truncation): what it holds of the table up
to there is gone, what it logs later stays. Nodes are not at the same place, nor do their notes come in together, or all of them: a
segment without captured writes is not kept, nor is the note in it. So, of the table's last TRUNCATE:

* a node with a record of it is cut at that place, by segment id and position: frames at or before it are gone;
* a node without one is cut by writetime: what is not younger than the earliest `at` of that TRUNCATE is gone, and so is all of a segment
  that the node had finished by then; and of course what an older record of that node covers;
* a mutation stays if one of its copies does. A hint or a repair that comes late is a later frame of its own and stays, as in the ring.

Records become known in any order, and what they come to depends on the set of them alone. Nodes that have left or never ship have no
frames, so nobody waits for their records. Source of the rule: Cassandra 3.11-5.0, ColumnFamilyStore.truncateBlocking (the place is that
of the flush before it), commitlog/CommitLogReplayer (a position at or before it is not replayed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final
from uuid import UUID

from writetime.schema.local import Truncation

SAME_TRUNCATE_MS: Final = 60_000
"""How far apart the records of one TRUNCATE may be: its time-out in Cassandra (truncate_request_timeout)."""

_NOTHING: Final = -1
_EVERYTHING: Final = 2**62
_NEVER: Final = -(2**63) - 1

Place = tuple[int, int]
"""Segment id and logical position in a node's log."""

Records = Mapping[str, Iterable[Truncation]]
"""What each node has noted, by host id."""


@dataclass(slots=True)
class Truncate:
    """One TRUNCATE of one table: the record of each node that left one, by host id."""

    records: dict[str, Truncation] = field(default_factory=dict)

    @property
    def at(self) -> int:
        """The earliest that any node noted, ms since the epoch."""
        return min(record.at for record in self.records.values())

    def is_same(self, other: Truncate) -> bool:
        """Whether they are the same TRUNCATE, known through more or fewer records."""
        return any(self.records.get(host) == record for host, record in other.records.items())


def truncates(records: Records) -> list[Truncate]:
    """The TRUNCATEs of one table, the oldest first. The same node twice means two of them.

    One TRUNCATE returns when all nodes are done, so all records of it are earlier than those of the next; where a node left no record of
    one of two in quick succession, the one that it left belongs to the nearer.
    """
    found: list[Truncate] = []
    for host, record in sorted(_noted(records), key=lambda pair: (pair[1].at, pair[0], pair[1])):
        if not found or host in found[-1].records or record.at - found[-1].at > SAME_TRUNCATE_MS:
            found.append(Truncate())
        found[-1].records[host] = record
    for this, following in pairwise(found):
        _hand_over(this, following)
    return found


def _noted(records: Records) -> set[tuple[str, Truncation]]:
    """Every record once. One that a node logs again has another writetime, and nothing else."""
    first: dict[tuple[str, UUID, int, int, int], Truncation] = {}
    for host, noted in records.items():
        for record in noted:
            key = host, record.table_id, record.at, record.segment, record.position
            first[key] = min(record, first.get(key, record))
    return {(key[0], record) for key, record in first.items()}


def _hand_over(this: Truncate, following: Truncate) -> None:
    """Move what is nearer to the following TRUNCATE, as the nodes that took part in both have it."""
    both = this.records.keys() & following.records.keys()
    if not both:
        return
    middle = sum(this.records[host].at + following.records[host].at for host in both) / (2 * len(both))
    for host in sorted(this.records.keys() - both):
        if this.records[host].at > middle:
            following.records[host] = this.records.pop(host)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is gone of one table: `places` by host id, the furthest that each node noted; `at` (ms) the last TRUNCATE's time, for all
    nodes but those in `placed`, whose place is that TRUNCATE's own."""

    at: int
    places: dict[str, Place]
    placed: frozenset[str]

    @classmethod
    def of(cls, found: Sequence[Truncate]) -> Cut:
        """Of the table's TRUNCATEs, one at least."""
        places: dict[str, Place] = {}
        for truncate in found:
            for host, record in truncate.records.items():
                places[host] = max((record.segment, record.position), places.get(host, (_NOTHING, _NOTHING)))
        return cls(found[-1].at, places, frozenset(found[-1].records))

    def position(self, host: str, segment: int, sealed_at: datetime) -> int:
        """Up to which position frames of that segment are gone for sure; -1: none are."""
        place = self.places.get(host, (_NOTHING, _NOTHING))
        if segment < place[0] or (host not in self.placed and _ms(sealed_at) < self.at):
            return _EVERYTHING
        return place[1] if segment == place[0] else _NOTHING

    def takes_all(self, host: str, segment: int, sealed_at: datetime) -> bool:
        """Whether nothing of that segment can stand."""
        return self.position(host, segment, sealed_at) == _EVERYTHING

    def timestamp(self, host: str) -> int | None:
        """Frames of that node up to this writetime (µs) are gone; None: its writetimes do not matter."""
        return None if host in self.placed else self.at * 1000


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def cuts_by_table(records: Records) -> dict[UUID, tuple[Truncate, Cut]]:
    """The last TRUNCATE of each table that ever had one, and what is gone by it."""
    by_table: dict[UUID, dict[str, list[Truncation]]] = {}
    for host, noted in records.items():
        for record in noted:
            by_table.setdefault(record.table_id, {}).setdefault(host, []).append(record)
    found = {table_id: truncates(noted) for table_id, noted in by_table.items()}
    return {table_id: (of[-1], Cut.of(of)) for table_id, of in sorted(found.items())}


@dataclass(frozen=True, slots=True)
class Source:
    """Of one segment that a batch reads: whose it is, its id, and when its node finished it."""

    host: str
    segment: int
    sealed_at: datetime


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts, as a worker asks for them: by table id (16 bytes) and the index of a segment among those that the batch reads."""

    _positions: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    _timestamps: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    _purged: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, cuts: Mapping[UUID, Cut], segments: Sequence[Source], purged: Mapping[bytes, int] | None = None) -> Cuts:
        """`purged`, by table id, for a replay: writetimes (µs) up to which what was purged since may have beaten what comes again."""
        positions = {
            table_id.bytes: tuple(cut.position(each.host, each.segment, each.sealed_at) for each in segments)
            for table_id, cut in cuts.items()
        }
        timestamps = {
            table_id.bytes: tuple(_NEVER if (at := cut.timestamp(each.host)) is None else at for each in segments)
            for table_id, cut in cuts.items()
        }
        return cls(positions, timestamps, purged or {})

    @property
    def tables(self) -> frozenset[bytes]:
        """Ids of the tables that were ever truncated: for others `gone` need not be asked."""
        return frozenset(self._positions)

    def purged(self, table_id: bytes) -> int | None:
        """Up to which writetime (µs) all of the table stays out, wherever it stands; None: it all comes in."""
        return self._purged.get(table_id)

    def gone(self, table_id: bytes, segment: int, position: int, max_timestamp: int) -> bool:
        """Whether a TRUNCATE took this copy of an update: `position` is where its frame ends, `max_timestamp` its greatest writetime (µs).

        An update is gone when all its copies are.
        """
        positions = self._positions.get(table_id)
        if positions is None:
            return False
        return position <= positions[segment] or max_timestamp <= self._timestamps[table_id][segment]
