"""What a TRUNCATE takes away: which of the nodes' records are one TRUNCATE, and which frames it took. Pure; no store, no Spark.

A TRUNCATE is no mutation. Each node notes for itself where its log was (writetime.cassandra.schema.node_metadata.Truncation): what it holds
of the table up to there is gone, what it logs later stays. Nodes are not at the same place, nor do their notes come in together, or all of
them: a segment without captured writes is not kept, nor is the note in it. So, of the table's last TRUNCATE:

* a node with records is cut at the furthest place that it noted, by segment id and position: frames at or before it are
  gone, those behind it stay. If another node noted a TRUNCATE later than this one did, that may have been another one, of
  which this node left no record: frames with writetimes between the two notes are undecided;
* a node without a record of it took part all the same, at a moment within the time-out of every record of it. What of its
  segments was finished before that is gone, what was begun after that stays, and so does what has a younger writetime. All
  else is undecided, however old its writetime is: `USING TIMESTAMP` writes old ones;
* where a node's place says that an update came before the TRUNCATE, it says so for the copies of nodes without a record,
  too: neither hints nor batches outlive a TRUNCATE. Else an update stays if one of its copies does: a hint or a repair that
  a node logs behind its place is a frame of its own, as in the ring.

No frame is gone for how records are grouped: a node's place is its own, and the bounds hold for any TRUNCATE that a note
can be of. What is undecided is kept, and counted.

Records become known in any order, and what they come to depends on the set of them alone. Nodes that have left or never ship have no
frames, so nobody waits for their records. Source of the rule: Cassandra 3.11-5.0, ColumnFamilyStore.truncateBlocking (the place is that
of the flush before it), commitlog/CommitLogReplayer (a position at or before it is not replayed); Hint.applyFuture and
BatchlogManager (what is older than the table's `truncated_at` is left out); commitlog/CommitLogSegment (ids count up
from the time in ms at which the node was started).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final, Literal
from uuid import UUID

from writetime.cassandra.schema.node_metadata import Truncation

SAME_TRUNCATE_MS: Final = 60_000
"""How far apart the records of one TRUNCATE may be: its time-out in Cassandra (truncate_request_timeout)."""

_NOTHING: Final = -1
_EVERYTHING: Final = 2**62
_NEVER: Final = -(2**63) - 1

Verdict = Literal["gone", "kept", "undecided"]
"""Of an update: a TRUNCATE took it, did not, or nobody's records tell."""

Interval = tuple[int, int]
"""Writetimes (µs) above the first and up to the second, which may be the same: then there are none."""

Place = tuple[int, int]
"""Segment id and logical position in a node's log."""

Copy = tuple[int, int]
"""Of an update: index of the segment among those that the batch reads, and where its frame ends."""

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
    """What is gone of one table: `places` by host id, the furthest that each node noted; `noted` (ms) when each of the nodes that left a
    record of the last TRUNCATE did so, one at least."""

    places: dict[str, Place]
    noted: dict[str, int]

    @classmethod
    def of(cls, found: Sequence[Truncate]) -> Cut:
        """Of the table's TRUNCATEs, one at least."""
        places: dict[str, Place] = {}
        for truncate in found:
            for host, record in truncate.records.items():
                places[host] = max((record.segment, record.position), places.get(host, (_NOTHING, _NOTHING)))
        return cls(places, {host: record.at for host, record in found[-1].records.items()})

    @property
    def at(self) -> int:
        """The earliest that any node noted of the last TRUNCATE, ms."""
        return min(self.noted.values())

    @property
    def window(self) -> Interval:
        """Between which moments (ms) the last TRUNCATE reached the nodes that left no record of it: not further from any note than its
        time-out."""
        return max(self.noted.values()) - SAME_TRUNCATE_MS, self.at + SAME_TRUNCATE_MS

    def position(self, host: str, segment: int, sealed_at: datetime) -> int:
        """Up to which position frames of that segment are gone for sure; -1: none are."""
        place = self.places.get(host, (_NOTHING, _NOTHING))
        if segment < place[0] or (host not in self.noted and _ms(sealed_at) < self.window[0]):
            return _EVERYTHING
        return place[1] if segment == place[0] else _NOTHING

    def takes_all(self, host: str, segment: int, sealed_at: datetime) -> bool:
        """Whether nothing of that segment can stand."""
        return self.position(host, segment, sealed_at) == _EVERYTHING

    def undecided(self, host: str, segment: int) -> Interval:
        """The writetimes (µs) for which frames of that segment past `position` may be from before the last TRUNCATE or from after it.

        Frames with greater ones stay, and so do those with smaller ones; there are none smaller on a node that left no record of it.
        """
        if host in self.noted:
            return self.noted[host] * 1000, max(self.noted.values()) * 1000
        after = self.window[1]
        # Ids of segments are times, or a little earlier: one with a later id was begun when all was over.
        return (_NEVER, _NEVER) if segment > after else (_NEVER, after * 1000)


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
class Purged:
    """What stays out of a table because what was purged may have beaten it: all up to the writetime `until` (µs) that stands in
    none but `segments`, by their indexes."""

    until: int
    segments: frozenset[int]

    def keeps_out(self, segments: Iterable[int]) -> bool:
        """Whether that concerns an update with copies in these segments."""
        return self.segments.issuperset(segments)


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
    _undecided: dict[bytes, tuple[Interval, ...]] = field(default_factory=dict)
    _purged: Mapping[bytes, Purged] = field(default_factory=dict)

    @classmethod
    def of(cls, cuts: Mapping[UUID, Cut], segments: Sequence[Source], purged: Mapping[bytes, Purged] | None = None) -> Cuts:
        """`purged`, by table id: see `Purged`."""
        positions = {
            table_id.bytes: tuple(cut.position(each.host, each.segment, each.sealed_at) for each in segments)
            for table_id, cut in cuts.items()
        }
        undecided = {table_id.bytes: tuple(cut.undecided(each.host, each.segment) for each in segments) for table_id, cut in cuts.items()}
        return cls(positions, undecided, purged or {})

    @property
    def tables(self) -> frozenset[bytes]:
        """Ids of the tables that were ever truncated: for others `gone` need not be asked."""
        return frozenset(self._positions)

    def purged(self, table_id: bytes) -> Purged | None:
        """What purges of the table keep out; None: nothing."""
        return self._purged.get(table_id)

    def verdict(self, table_id: bytes, segment: int, position: int, max_timestamp: int) -> Verdict:
        """On one copy of an update: `position` is where its frame ends, `max_timestamp` the update's greatest writetime (µs)."""
        positions = self._positions.get(table_id)
        if positions is None:
            return "kept"
        if position <= positions[segment]:
            return "gone"
        after, until = self._undecided[table_id][segment]
        return "undecided" if after < max_timestamp <= until else "kept"

    def decide(self, table_id: bytes, copies: Iterable[Copy], max_timestamp: int) -> Verdict:
        """On an update, by all its copies in the batch. What is undecided is to be kept, and counted.

        A copy that is gone decides for those of nodes that left no record, whatever their writetime says. Else the
        update stays if one of its copies does.
        """
        listed = list(copies)
        verdicts = [self.verdict(table_id, *copy, max_timestamp) for copy in listed]
        others = [copy for copy, verdict in zip(listed, verdicts, strict=True) if verdict != "gone"]
        if len(others) < len(listed) and all(self._is_unknown(table_id, segment) for segment, _ in others):
            return "gone"
        return "undecided" if "kept" not in verdicts else "kept"

    def gone(self, table_id: bytes, segment: int, position: int, max_timestamp: int) -> bool:
        """Whether a TRUNCATE took this copy of an update for sure; see `verdict`."""
        return self.verdict(table_id, segment, position, max_timestamp) == "gone"

    def _is_unknown(self, table_id: bytes, segment: int) -> bool:
        """Whether that segment's node left no record of the last TRUNCATE, and may have begun it before."""
        after, until = self._undecided[table_id][segment] if table_id in self._undecided else (_NEVER, _NEVER)
        return after == _NEVER != until
