"""What a TRUNCATE removes: which of the nodes' records belong to one TRUNCATE, and which frames it removed. Pure; no
store, no Spark.

A TRUNCATE is not a mutation. Each node records the position of its log
(`writetime.cassandra.schema.node_metadata.Truncation`): its writes to the table up to there are gone, later ones
stay. The positions differ between nodes, and the records arrive at different times or not at all: a segment without
captured writes is not kept, nor is the record in it. For the table's last TRUNCATE:

* a node with records is cut at the last position that it recorded, by segment id and position: frames at or before it
  are gone, later ones stay. If another node recorded a TRUNCATE later than this node, that may be another TRUNCATE of
  which this node left no record: frames with writetimes between the two records are undecided;
* a node without a record took part as well, at a time within the time-out of every record. Its segments finished before
  that are gone. Its segments begun after that stay, and so do updates with a younger writetime. All other frames are
  undecided, however old their writetime: `USING TIMESTAMP` can write old ones;
* if one node's position shows that an update came before the TRUNCATE, the copies on nodes without a record are gone
  too: neither hints nor batches outlive a TRUNCATE. Otherwise an update stays if one of its copies stays: a hint or
  repair logged after the position is a separate frame, as in Cassandra.

How records are grouped never removes a frame: a node's position is its own, and the bounds hold for any TRUNCATE that
a record can belong to. Undecided frames are kept and counted.

The result depends on the set of records only, not on their order. Nodes that have left or never ship have no frames,
so their records are not needed. Source of the rule: Cassandra 3.11-5.0, ColumnFamilyStore.truncateBlocking (the
position is that of the preceding flush), commitlog/CommitLogReplayer (a position at or before it is not replayed);
Hint.applyFuture and BatchlogManager (writes older than the table's `truncated_at` are skipped);
commitlog/CommitLogSegment (ids count up from the node's start time in ms).
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
"""Maximum distance of the records of one TRUNCATE: its time-out in Cassandra (truncate_request_timeout)."""

_NOTHING: Final = -1
WHOLE_SEGMENT: Final = 2**62
"""A position after all frames of a segment."""
_NEVER: Final = -(2**63) - 1

Verdict = Literal["gone", "kept", "undecided"]
"""Whether a TRUNCATE removed an update, did not, or no record decides it."""

Interval = tuple[int, int]
"""Writetimes (µs) above the first and up to the second; empty if both are equal."""

Place = tuple[int, int]
"""Segment id and logical position in a node's log."""

Copy = tuple[int, int]
"""A copy of an update: index of its segment in the batch, and the end of its frame."""

Records = Mapping[str, Iterable[Truncation]]
"""The records of each node, by host id."""


@dataclass(slots=True)
class Truncate:
    """One TRUNCATE of one table: the records of the nodes that left one, by host id."""

    records: dict[str, Truncation] = field(default_factory=dict)

    @property
    def at(self) -> int:
        """Time of the earliest record, ms since the epoch."""
        return min(record.at for record in self.records.values())

    def is_same(self, other: Truncate) -> bool:
        """Whether they are the same TRUNCATE, known through more or fewer records. The place of a DROP may have become
        known better."""
        mine = {(host, record.at, record.timestamp) for host, record in self.records.items()}
        return any((host, record.at, record.timestamp) in mine for host, record in other.records.items())


def truncates(records: Records) -> list[Truncate]:
    """The TRUNCATEs of one table, oldest first. Two records of one node are two TRUNCATEs.

    A TRUNCATE returns when all nodes are done, so all its records are earlier than those of the next. If a
    node left only one record of two TRUNCATEs in quick succession, it belongs to the nearer one."""
    found: list[Truncate] = []
    for host, record in sorted(_noted(records), key=lambda pair: (pair[1].at, pair[0], pair[1])):
        if not found or host in found[-1].records or record.at - found[-1].at > SAME_TRUNCATE_MS:
            found.append(Truncate())
        found[-1].records[host] = record
    for this, following in pairwise(found):
        _hand_over(this, following)
    return found


def _noted(records: Records) -> set[tuple[str, Truncation]]:
    """Every record once. A record that is logged again differs in its writetime only."""
    first: dict[tuple[str, UUID, int, int, int], Truncation] = {}
    for host, noted in records.items():
        for record in noted:
            key = host, record.table_id, record.at, record.segment, record.position
            first[key] = min(record, first.get(key, record))
    return {(key[0], record) for key, record in first.items()}


def _hand_over(this: Truncate, following: Truncate) -> None:
    """Move records that are nearer to the following TRUNCATE, judged by nodes with records of both."""
    both = this.records.keys() & following.records.keys()
    if not both:
        return
    middle = sum(this.records[host].at + following.records[host].at for host in both) / (2 * len(both))
    for host in sorted(this.records.keys() - both):
        if this.records[host].at > middle:
            following.records[host] = this.records.pop(host)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is removed of one table: `places`: the last position that each node recorded, by host id;
    `noted`: time (ms) of each node's record of the last TRUNCATE, at least one."""

    places: dict[str, Place]
    noted: dict[str, int]

    @classmethod
    def of(cls, found: Sequence[Truncate]) -> Cut:
        """The cut of the table's TRUNCATEs, at least one."""
        places: dict[str, Place] = {}
        for truncate in found:
            for host, record in truncate.records.items():
                places[host] = max((record.segment, record.position), places.get(host, (_NOTHING, _NOTHING)))
        return cls(places, {host: record.at for host, record in found[-1].records.items()})

    @property
    def at(self) -> int:
        """Time of the earliest record of the last TRUNCATE, ms."""
        return min(self.noted.values())

    @property
    def window(self) -> Interval:
        """The interval (ms) in which the last TRUNCATE reached the nodes without a record: within the
        time-out of every record."""
        return max(self.noted.values()) - SAME_TRUNCATE_MS, self.at + SAME_TRUNCATE_MS

    def position(self, host: str, segment: int, sealed_at: datetime) -> int:
        """The position up to which frames of that segment are gone for certain; -1: none."""
        place = self.places.get(host, (_NOTHING, _NOTHING))
        if segment < place[0] or (host not in self.noted and _ms(sealed_at) < self.window[0]):
            return WHOLE_SEGMENT
        return place[1] if segment == place[0] else _NOTHING

    def takes_all(self, host: str, segment: int, sealed_at: datetime) -> bool:
        """Whether all of that segment is gone."""
        return self.position(host, segment, sealed_at) == WHOLE_SEGMENT

    def undecided(self, host: str, segment: int) -> Interval:
        """The writetimes (µs) for which frames of that segment past `position` may be from before or after
        the last TRUNCATE.

        Frames with later writetimes stay, and so do those with earlier ones; a node without a record has no
        earlier ones."""
        if host in self.noted:
            return self.noted[host] * 1000, max(self.noted.values()) * 1000
        after = self.window[1]
        # Segment ids are times, or slightly earlier: a segment with a later id was begun after the TRUNCATE.
        return (_NEVER, _NEVER) if segment > after else (_NEVER, after * 1000)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def cuts_by_table(records: Records) -> dict[UUID, tuple[Truncate, Cut]]:
    """The last TRUNCATE of each truncated table, and its cut."""
    by_table: dict[UUID, dict[str, list[Truncation]]] = {}
    for host, noted in records.items():
        for record in noted:
            by_table.setdefault(record.table_id, {}).setdefault(host, []).append(record)
    found = {table_id: truncates(noted) for table_id, noted in by_table.items()}
    return {table_id: (of[-1], Cut.of(of)) for table_id, of in sorted(found.items())}


@dataclass(frozen=True, slots=True)
class Purged:
    """Updates that are rejected because purged data may have superseded them: those with writetimes up to
    `until` (µs) that occur in `segments` (by index) only."""

    until: int
    segments: frozenset[int]

    def keeps_out(self, segments: Iterable[int]) -> bool:
        """Whether an update with copies in these segments is rejected."""
        return self.segments.issuperset(segments)


@dataclass(frozen=True, slots=True)
class Source:
    """A segment that a batch reads: its node, its id, and when the node finished it."""

    host: str
    segment: int
    sealed_at: datetime


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts for workers: by table id (16 bytes) and the index of a segment in the batch."""

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
        """Ids of all truncated tables: for others `gone` need not be called."""
        return frozenset(self._positions)

    def purged(self, table_id: bytes) -> Purged | None:
        """What is rejected because of purges of the table; None: nothing."""
        return self._purged.get(table_id)

    def verdict(self, table_id: bytes, segment: int, position: int, max_timestamp: int) -> Verdict:
        """The verdict on one copy of an update: `position` is the end of its frame, `max_timestamp` the
        update's greatest writetime (µs)."""
        positions = self._positions.get(table_id)
        if positions is None:
            return "kept"
        if position <= positions[segment]:
            return "gone"
        after, until = self._undecided[table_id][segment]
        return "undecided" if after < max_timestamp <= until else "kept"

    def decide(self, table_id: bytes, copies: Iterable[Copy], max_timestamp: int) -> Verdict:
        """The verdict on an update, by all its copies in the batch. Undecided updates are kept and counted.

        A copy that is gone decides for the copies on nodes without a record, whatever their writetime.
        Otherwise the update stays if one copy stays."""
        listed = list(copies)
        verdicts = [self.verdict(table_id, *copy, max_timestamp) for copy in listed]
        others = [copy for copy, verdict in zip(listed, verdicts, strict=True) if verdict != "gone"]
        if len(others) < len(listed) and all(self._is_unknown(table_id, segment) for segment, _ in others):
            return "gone"
        return "undecided" if "kept" not in verdicts else "kept"

    def gone(self, table_id: bytes, segment: int, position: int, max_timestamp: int) -> bool:
        """Whether a TRUNCATE removed this copy of an update for certain; see `verdict`."""
        return self.verdict(table_id, segment, position, max_timestamp) == "gone"

    def _is_unknown(self, table_id: bytes, segment: int) -> bool:
        """Whether that segment's node left no record of the last TRUNCATE and may have begun the segment
        before it."""
        after, until = self._undecided[table_id][segment] if table_id in self._undecided else (_NEVER, _NEVER)
        return after == _NEVER != until
