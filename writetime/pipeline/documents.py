"""The JSON documents of batches and of the ledger, as models. They define what is stored, not how it is
produced.

Times are ISO-8601 UTC, `now` is seconds since the Unix epoch, positions are logical segment positions in
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from writetime import untrusted
from writetime.cassandra.commitlog.sections import Place
from writetime.cassandra.merge.reconcile import Policy
from writetime.config.kafka import PartitionBy
from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.storage import layout, segment_object, untrusted_objects
from writetime.storage.checksum import crc32c
from writetime.storage.concurrency import at_once
from writetime.storage.segment_parts import Part
from writetime.storage.store import ObjectInfo, Store, change_object

HELD_HERE: Final = 100
"""Maximum number of held segments that are listed in the seal itself."""
BatchKind = Literal["ingest", "replay", "maintain", "rebuild", "erase"]
SegmentState = Literal["archived", "quarantined", "retry", "growing", "expired"]
Ending = Literal["completed", "after-crash"]


class Document(BaseModel):
    """Base class. Unknown keys are rejected, so that a document of a newer version is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_bytes(self) -> bytes:
        return self.model_dump_json(indent=1).encode() + b"\n"

    @classmethod
    def read(cls, store: Store, name: str) -> Self | None:
        """The document of that name, or None if there is none."""
        try:
            return cls.model_validate_json(store.read(name))
        except ObjectNotFound:
            return None

    def create(self, store: Store, name: str) -> Self:
        """Put the document, unless there is one of that name. Returns the one that is there then."""
        try:
            store.put(name, self.to_bytes(), if_generation=0)
        except PreconditionFailed:
            return type(self).model_validate_json(store.read(name))
        return self

    @classmethod
    def update(cls, store: Store, name: str, change: Callable[[Self | None], Self | None]) -> Self | None:
        """Replace the document, under its generation, by what `change` makes of it; None: it stays. If another process has
        written it meanwhile, `change` is called again with that. Returns the document that is there then."""
        latest: Self | None = None

        def changed(data: bytes | None) -> bytes | None:
            nonlocal latest
            latest = None if data is None else cls.model_validate_json(data)
            after = change(latest)
            if after is None:
                return None
            latest = after
            return after.to_bytes()

        change_object(store, name, changed)
        return latest


class Mark(Document):
    """How far a growing segment was ingested: `position` bytes of its file with this CRC32C and number of
    frames; `logical` is the same place in the unpacked segment.

    `sound`: these bytes had no problems. If they had, the whole file is read from its beginning when it
    arrives; `tables`: those that the problems concern; null: any. Without `logical` the bytes were
    unreadable, and no further parts of the segment are read; only the whole file is."""

    position: int = 0
    logical: int | None = None
    crc32c: int = 0
    frames: int = 0
    sound: bool = True
    tables: list[UUID] | None = None

    @property
    def place(self) -> Place | None:
        """Where reading continues."""
        return None if self.logical is None else Place(self.position, self.logical)


class PartInput(Document):
    """A part of a growing segment, as the manifest pins it."""

    object: str
    generation: int = Field(description="Generation when it was pinned; for information only.")
    crc32c: int = Field(description="CRC32C of its bytes.")

    @classmethod
    def of(cls, part: Part[ObjectInfo]) -> PartInput:
        return cls(object=part.info.name, generation=part.info.generation, crc32c=part.info.crc32c)

    def is_in(self, info: ObjectInfo) -> bool:
        """Whether the object holds the pinned bytes."""
        return info.crc32c == self.crc32c

    @property
    def range(self) -> tuple[int, int]:
        """The bytes [start, end) of the segment's file in this part."""
        return layout.part_range(self.object)


class Tail(Document):
    """Details of a segment that grows, or of which parts were ingested before the whole file.

    `parts`, of a growing segment, hold its file without a gap from `after` on. `header` is the part with the
    segment's header, if reading does not start there. `after`: what earlier batches have ingested."""

    parts: list[PartInput] = []
    header: PartInput | None = None
    after: Mark | None = None


class SegmentInput(Document):
    """One segment as pinned by the manifest: bytes of this size and CRC32C under this name. The generation
    does not matter: the same bytes uploaded again are the same input. `ending` is how the node left the
    segment, according to the shipper.

    A growing segment has no object of that name, but the parts in `tail`. Generation and checksum are those
    of the last part, `size` is their total."""

    object: str
    generation: int
    size: int
    crc32c: int
    sealed_at: datetime
    ending: Ending = "completed"
    tail: Tail | None = None
    folded_but: list[UUID] | None = Field(
        default=None,
        description="Of a segment that a batch has taken in before: the tables of which something could not be used; all else "
        "in it was folded then. Null: nothing of it was, or nobody can say what.",
    )

    @classmethod
    def growing(
        cls, ref: layout.SegmentRef, run: Sequence[Part[ObjectInfo]], *, header: PartInput | None = None, after: Mark | None = None
    ) -> SegmentInput:
        """A growing segment from consecutive parts (`writetime.storage.segment_parts.run`)."""
        last = cls.from_object(run[-1].info)
        start = after.position if after else 0
        tail = Tail(parts=[PartInput.of(part) for part in run], header=header, after=after)
        return last.model_copy(update={"object": ref.growing, "size": run[-1].end - start, "tail": tail})

    def as_absent(self) -> SegmentInput:
        """The same segment with a checksum that no object has: reading it reports it as missing."""
        parts = [part.model_copy(update={"crc32c": -1}) for part in self.tail.parts] if self.tail else []
        tail = self.tail.model_copy(update={"parts": parts}) if self.tail else None
        return self.model_copy(update={"crc32c": -1, "tail": tail})

    @property
    def header(self) -> PartInput | None:
        """Of a growing segment: the part with the file's header."""
        return (self.tail.header or self.tail.parts[0]) if self.tail is not None and self.tail.parts else None

    @property
    def grows(self) -> bool:
        """Whether these are parts of a segment that still grows."""
        return self.tail is not None and bool(self.tail.parts)

    @property
    def end(self) -> int:
        """The end of the last part of a growing segment, as a position in its file."""
        assert self.tail is not None
        return self.tail.parts[-1].range[1]

    @classmethod
    def from_object(cls, info: ObjectInfo) -> SegmentInput:
        """`sealed_at` is when the node finished the file, from the shipper's metadata, or else when the
        object was created. Size and checksum are those of the unpacked segment."""
        content = segment_object.content_of(info)
        return cls(
            object=info.name,
            generation=info.generation,
            size=content.size,
            crc32c=content.crc32c,
            sealed_at=_sealed_at(info),
            ending="after-crash" if info.metadata.get("ending") == "after-crash" else "completed",
        )

    @property
    def ref(self) -> layout.SegmentRef:
        return layout.SegmentRef.from_object(self.object)


def _sealed_at(info: ObjectInfo) -> datetime:
    """A node's note that makes no sense must not stand in the way of its segment, or of anybody else's."""
    try:
        return untrusted_objects.moment_of(info, "sealed_at")
    except untrusted.Untrusted:
        return info.created


class ShardVersions(Document):
    """State of one table incarnation: generation, the dataset version of each key bucket (0: nothing written
    yet), and when the first value in each expires (s since the epoch; None: never; an empty list: unknown).

    `behind`: the last batch that captured a table which is not captured now; expired values have not been
    reported since. `ended`: the table was dropped and that was reported, so its expired values are not
    reported. `purged`: the newest writetime (µs) purged by maintenance, which may have superseded anything
    that is not newer. `distributed`: the keys were distributed anew, among more buckets than the generation began
    with."""

    generation: int = 0
    buckets: list[int]
    expires: list[int | None] = []
    behind: int | None = None
    ended: bool = False
    purged: int | None = None
    distributed: bool = False

    @property
    def of(self) -> int | None:
        """As in the names of shards (`layout.state_shard`)."""
        return len(self.buckets) if self.distributed else None

    @property
    def next_expiry(self) -> int | None:
        """When a value expires next that a batch can report, s since the epoch."""
        if self.ended or self.behind is not None:
            return None
        return min((at for at in self.expires if at is not None), default=None)

    def captured_up_to(self, number: int) -> ShardVersions:
        """These versions if no batch after `number` captures the table."""
        return self if self.behind is not None else self.model_copy(update={"behind": number})

    def purged_up_to(self, newest: int | None) -> ShardVersions:
        """These versions after a purge up to `newest`."""
        if newest is None or (self.purged is not None and newest <= self.purged):
            return self
        return self.model_copy(update={"purged": newest})

    def after(self, written: Mapping[int, tuple[int, int | None]]) -> ShardVersions:
        """These versions after some buckets were written: by bucket, the new version and when its first
        value expires."""
        buckets, expires = list(self.buckets), list(self.expires) or [None] * len(self.buckets)
        for bucket, (version, at) in written.items():
            buckets[bucket], expires[bucket] = version, at
        return self.model_copy(update={"buckets": buckets, "expires": expires})


class Hold(Document):
    """What makes logs incomplete: a node (`by`: prefix of its objects under nodes/) or a segment (its
    object).

    `until`: logs are complete up to then. `since`: when it began. `tables`: the affected tables; null: all.
    """

    by: str
    until: datetime
    since: datetime
    tables: list[UUID] | None = None

    def concerns(self, table_id: UUID) -> bool:
        return self.tables is None or table_id in self.tables


class HeldTable(Document):
    """A table that is complete up to an earlier time than the others, null: none, because of the object
    `by`."""

    until: datetime | None
    by: str


class Watermark(Document):
    """Up to when tables are complete: every captured mutation that a node of `nodes` appended to its log
    before `until`, by its clock, is in the batches up to `batch` (`writetime.pipeline.watermark`).

    `nodes`: the nodes that count, by their path, with the time up to which the log of each is in; null: it
    has not signed anything off yet. `held`: by table id, the tables that are not as far; `by`: what holds
    back all tables."""

    batch: int = 0
    until: datetime | None = None
    nodes: dict[str, datetime | None] = {}
    held: dict[UUID, HeldTable] = {}
    by: str | None = None

    def of(self, table_id: UUID) -> datetime | None:
        """Up to when that table is complete."""
        held = self.held.get(table_id)
        return self.until if held is None else held.until

    @property
    def of_all(self) -> datetime | None:
        """Up to when every table is complete."""
        times = [self.until, *(held.until for held in self.held.values())]
        return None if None in times else min(at for at in times if at is not None)


class Chain(Document):
    """A chain of batches, begun by `writetime rebuild`. `first`: number of its first batch, above all
    numbers of earlier chains; `upto`: the last batch of the rebuild, null in manifests of the rebuild
    itself. State begins with `generation`.

    `partial`: parts of the archive were missing. `kept_from`: segments sealed before that hour (s since the
    epoch) may be missing."""

    id: UUID
    first: int
    upto: int | None = None
    generation: int
    partial: bool = False
    kept_from: int | None = None


class Manifest(Document):
    """The fixed input of a batch. `base`: the sealed batch whose schema and state it starts from (0:
    none)."""

    number: int
    kind: BatchKind
    cluster: str
    created_at: datetime
    now: int = Field(description="Seconds since the epoch at which rows are judged live or expired.")
    base: int
    since: int | None = Field(default=None, description="The base's `now`: this batch reports what expires after it. Null: no base.")
    segments: list[SegmentInput]
    schema_snapshots: list[str] = []
    truncations: list[str] = Field(default=[], description="The nodes' TRUNCATE reports, at most one new object per node.")
    nodes: dict[str, str] = Field(default={}, description="Host id to address, of every node that ships.")
    merge_rule: Policy = Field(
        default="4.0", description="The release whose rule decides between cells of equal timestamp. Default for older batches: 4.0."
    )
    interval: tuple[datetime, datetime] | None = None
    namespace: str | None = Field(default=None, description="Shadow namespace of a replay. Null: the live tables.")
    id: UUID | None = Field(default=None, description="Distinguishes it from a batch of another chain of the same number.")
    chain: Chain | None = Field(default=None, description="The chain of batches. Null: the pipeline's first chain.")
    holds: list[Hold] = Field(default=[], description="Of maintenance: what makes logs incomplete, so that tombstones are kept.")
    complete: Watermark | None = Field(default=None, description="Up to when tables are complete if the batch has no problems.")
    complete_before: Watermark | None = Field(default=None, description="Up to when they were complete before it.")
    again: dict[UUID, bool] = Field(
        default={}, description="By table id: tables whose rows are made again from the state, and whether events tell all of them."
    )

    def to_bytes(self) -> bytes:
        # Earlier versions reject unknown keys: leave the key out where it is not needed.
        return self.model_dump_json(indent=1, exclude=None if self.again else {"again"}).encode() + b"\n"


class Problem(Document):
    """A range of a segment that could not be used, and the object with its bytes. `table`: its full name or
    id, if known; `table_id`: its id. `frames`: if more than one, the frames of that table from `position` to
    `last` that are kept as one record (`writetime.pipeline.quarantine.frame_ranges`); frames of other tables
    may lie between them."""

    kind: QuarantineKind
    position: int
    size: int
    message: str
    quarantined_as: str | None = None
    table: str | None = None
    table_id: UUID | None = None
    frames: int = 1
    last: int | None = None

    def covers(self, note: Mapping[str, Any]) -> bool:
        """Whether the quarantine record with that note holds frames of this problem."""
        if self.last is None or note.get("table_id") != str(self.table_id):
            return False
        return self.position <= int(note["position"]) and int(note.get("last") or note["position"]) <= self.last


def may_contain(problems: Iterable[Problem]) -> frozenset[UUID] | None:
    """The tables of which a segment with these problems may hold unmerged data; None: any table."""
    tables = {problem.table_id for problem in problems}
    return None if not tables or None in tables else frozenset(table for table in tables if table is not None)


class Settled(Problem):
    """A problem of an earlier batch in segment `object` that a later batch could resolve. `batch`: the last
    one that could not."""

    object: str
    batch: int


class SegmentOutcome(Document):
    """The outcome of one segment in a batch. `torn`: bytes that the node had not synced when it crashed. The
    node has lost them as well, so they are not a problem, unless the segment was completed.

    `mark`: how far a growing segment is ingested now. `skipped`: frames of a whole segment that were
    ingested while it grew; not included in `frames`. `differs`: the whole file does not begin with its
    parts, so all of it was ingested. `settled`: problems of earlier batches that this batch resolved."""

    object: str
    frames: int = 0
    updates: int = 0
    problems: list[Problem] = []
    torn: int = 0
    mark: Mark | None = None
    skipped: int = 0
    differs: bool = False
    settled: list[Settled] = []

    @property
    def ok(self) -> bool:
        """Whether nothing is held. A growing segment is never held: its whole file is read later."""
        return not self.problems or self.mark is not None

    @property
    def refused_frames(self) -> int:
        """Number of frames and damaged ranges that could not be used."""
        return sum(problem.frames for problem in self.problems)


class Accounting(Document):
    """Partition updates of one table in one batch, over all replicas. Each is counted once, in the first
    class that applies: quarantined, not_ours, duplicate (the same bytes were seen in this batch), superseded
    (changed nothing), applied."""

    table: str
    updates_in: int = 0
    applied: int = 0
    duplicate: int = 0
    superseded: int = 0
    not_ours: int = 0
    quarantined: int = 0
    events: int = 0
    ties: int = Field(default=0, description="Cells that won against one of another expiry by the rule of 3.11; the cluster may differ.")

    undecided: int = Field(default=0, description="Updates, counted above, that were kept as no record says whether a TRUNCATE took them.")
    read_again: int = Field(default=0, description="Updates, counted above, of archived segments read again for a TRUNCATE known late.")

    @property
    def is_not_ours(self) -> bool:
        """Whether the table only counts: one of the system, or one that is not captured."""
        return self.updates_in == self.not_ours and not self.events

    @property
    def balanced(self) -> bool:
        return self.updates_in == self.applied + self.duplicate + self.superseded + self.not_ours + self.quarantined


class StageCost(Document):
    """What a stage of batches used: CPU seconds and requests to the store; objects read or written, and their
    bytes. `table`: the table that the stage worked for; empty: several, or none."""

    stage: str
    table: str = ""
    cpu_seconds: float = 0.0
    requests: int = 0
    objects: int = 0
    bytes: int = 0

    def __add__(self, other: StageCost) -> StageCost:
        return self._with(other, 1)

    def __sub__(self, other: StageCost) -> StageCost:
        return self._with(other, -1)

    def _with(self, other: StageCost, sign: int) -> StageCost:
        seconds = round(self.cpu_seconds + sign * other.cpu_seconds, 3)
        counts = {name: getattr(self, name) + sign * getattr(other, name) for name in ("requests", "objects", "bytes")}
        return self.model_copy(update={"cpu_seconds": seconds, **counts})


class Totals(Document):
    """Sums over this batch and all earlier ones of its chain that take effect, for counters. `batches`: by kind;
    `segments`, `bytes`: what they read, a segment again with each of its parts; `problems`: frames and damaged
    ranges that could not be used; `tables`: partition updates and events, in the order of their names; `costs`: by
    stage and table; `publishing`: what publishing had used when the last batch was sealed, ever."""

    batches: dict[BatchKind, int] = {}
    segments: int = 0
    bytes: int = 0
    problems: int = 0
    tables: list[Accounting] = []
    costs: list[StageCost] = []
    publishing: list[StageCost] = []

    def and_of(
        self,
        kind: BatchKind,
        read: Sequence[SegmentInput],
        outcomes: Iterable[SegmentOutcome],
        made: Iterable[Accounting],
        costs: Iterable[StageCost] = (),
    ) -> Totals:
        """The sums with one more batch: what it read, the outcomes, its accounting, and what it cost."""
        tables: dict[str, list[Accounting]] = {}
        for account in (*self.tables, *made):
            tables.setdefault(account.table, []).append(account)
        return self.model_copy(
            update={
                "batches": {**self.batches, kind: self.batches.get(kind, 0) + 1},
                "segments": self.segments + len(read),
                "bytes": self.bytes + sum(segment.size for segment in read),
                "problems": self.problems + sum(outcome.refused_frames for outcome in outcomes),
                "tables": [total(accounts).model_copy(update={"table": name}) for name, accounts in sorted(tables.items())],
                "costs": sum_of_costs([*self.costs, *costs]),
            }
        )

    def and_publishing(self, so_far: list[StageCost]) -> Totals:
        """The sums with what publishing has used since the batch before, by what it has used so far, ever."""
        since = costs_since(so_far, self.publishing)
        return self.model_copy(update={"costs": sum_of_costs([*self.costs, *since]), "publishing": so_far})


def costs_since(costs: Iterable[StageCost], before: Iterable[StageCost]) -> list[StageCost]:
    """What was used since, by the sums now and before; without stages that used nothing."""
    known = {(cost.stage, cost.table): cost for cost in before}
    found = (cost - known[key] if (key := (cost.stage, cost.table)) in known else cost for cost in costs)
    return [cost for cost in found if cost != StageCost(stage=cost.stage, table=cost.table)]


def sum_of_costs(costs: Iterable[StageCost]) -> list[StageCost]:
    """One item for each stage and table, in their order."""
    found: dict[tuple[str, str], StageCost] = {}
    for cost in costs:
        key = cost.stage, cost.table
        found[key] = found[key] + cost if key in found else cost
    return [found[key] for key in sorted(found)]


class TableFiles(Document):
    """Files of a warehouse table: data files, delete files, and the bytes of both."""

    data: int
    deletes: int
    bytes: int


class WarehouseFiles(Document):
    """Files of a table's current rows and of its changes; null: unknown, or there is no such table."""

    current: TableFiles | None = None
    changes: TableFiles | None = None


class TablePoint(Document):
    """Where a table of the warehouse stood when `batch` had committed to it: the table's own UUID, its snapshot, and the
    snapshot's sequence number. Whatever comes later has that snapshot among those before it."""

    batch: int
    table: str
    snapshot: int
    sequence: int


class TablePoints(Document):
    """The same of a table's current rows and of its changes; null: never written, or not known."""

    current: TablePoint | None = None
    changes: TablePoint | None = None


class MadeAgain(Document):
    """The last batch that made a table's current rows again from its state (`writetime.pipeline.again`), and the last whose
    events tell all of them: 0 is none."""

    batch: int
    with_events: int = 0


class RefusedTable(Document):
    """A captured table whose rows cannot be converted, by its `Table.label`, and the reason. Its updates are
    quarantined."""

    table: str
    table_id: UUID
    reason: str


class HeldDocument(Document):
    """Held objects under cdc/ and frames/, as of the batches whose seals name this document."""

    held: list[str]


class Void(Document):
    """An operator's decision that a batch takes no effect. `base`: the last effective batch before it (0:
    none), where the next one starts."""

    reason: str
    by: str
    base: int


class PartitionedFrom(Document):
    """The events of batch `batch`, and of later ones, are ordered and partitioned by this key."""

    batch: int
    by: PartitionBy


class Apart(Document):
    """A captured table whose writes reach no commit log, and what becomes of it: the cluster is asked every
    `seconds` (None: never, nothing is taken of it). `mode`: its transactional mode, or `tracked`."""

    mode: str
    seconds: int | None = None


CDC_OFF: Final = "cdc = false"
"""In `Sealed.not_in_log`: a table that was captured, and whose cdc is off now."""


class Sealed(Document):
    """The outcome of a batch; the existence of this object is the seal. With a `void` there is no outcome:
    the input is planned again.

    If many segments are held, their names are in a separate object (`held_in`), so that the seal stays
    small. `read` returns the full list in either case; `write` creates that object."""

    number: int
    kind: BatchKind
    sealed_at: datetime
    segments: list[SegmentOutcome]
    accounting: list[Accounting]
    state: dict[str, ShardVersions] = Field(description="By table id: the state versions the next batch starts from.")
    held: list[str] = Field(default=[], description="Objects under cdc/ that are quarantined and not yet cleared.")
    held_in: str | None = Field(default=None, description="The object that lists the held segments; null: `held` does.")
    growing: dict[str, Mark] = Field(
        default={}, description="How far the segments were taken in of which there are parts only, by the name that these lie below."
    )
    snapshots_applied: list[str] = Field(default=[], description="Schema snapshots read so far, including rejected ones.")
    snapshots_refused: dict[str, str] = Field(default={}, description="Snapshots of this batch that could not be read, and why.")
    undecided: dict[str, int] = Field(
        default={},
        description="By table: updates, so far, of which no record says whether a TRUNCATE took them, and which nobody reads from the ring "
        "again as `cluster.cql` is not configured.",
    )
    rows: dict[str, int] = Field(default={}, description="By table: number of current rows, as of its last commit.")
    files: dict[str, WarehouseFiles] = Field(
        default={}, description="By table: its files in the warehouse, as of the last batch that wrote it."
    )
    points: dict[UUID, TablePoints] = Field(
        default={}, description="By table id: where its tables in the warehouse stood after the last batch that wrote them."
    )
    again: dict[UUID, MadeAgain] = Field(default={}, description="By table id: the last batches that made it again.")
    totals: Totals | None = Field(default=None, description="Sums over the chain's batches. Null: unknown.")
    refused: list[RefusedTable] = Field(default=[], description="Tables whose rows could not be shown in this batch.")
    not_in_log: dict[str, str] = Field(
        default={},
        description="By captured table: its transactional mode, if Accord takes writes that never reach a commit log; `cdc = false` if "
        "no node puts its segments into cdc_raw for it any more.",
    )
    apart: dict[str, Apart] = Field(default={}, description="By captured table: the same if `tables.not_in_log` is not `alarm`.")
    horizon: int | None = Field(
        default=None,
        description="Tombstones older than this (s since the epoch) may have been purged from the state, in any batch so far.",
    )
    kept_from: int | None = Field(
        default=None,
        description="Segments sealed before this hour (s since the epoch) may have been let go by the archive, in any batch so far.",
    )
    events: int = 0
    complete: Watermark | None = Field(default=None, description="Up to when tables are complete with this batch. Null: unknown.")
    partition_by: list[PartitionedFrom] = Field(
        default=[],
        description="By what events are ordered and partitioned, since when.",
    )
    void: Void | None = Field(default=None, description="Set if the batch takes no effect: why, and by whose decision.")
    voided: dict[int, UUID | None] = Field(
        default={}, description="All voided batches before this one, by number, with their ids: their rows do not count."
    )
    late_rejections: dict[UUID, list[tuple[int, int]]] = Field(
        default={},
        description="By table id: first and last of the batches, up to this one, whose rows of the table do not count: they rejected "
        "it, the first of them after one of its runs may have opened it.",
    )

    @classmethod
    def read(cls, store: Store, name: str, *, held: bool = True) -> Self | None:
        """The seal of that name, or None; without `held`, a list in a separate object is not read."""
        sealed = super().read(store, name)
        if sealed is None or sealed.held_in is None or not held:
            return sealed
        return sealed.model_copy(update={"held": HeldDocument.model_validate_json(store.read(sealed.held_in)).held, "held_in": None})

    def write(self, store: Store, name: str, folder: str) -> None:
        """Create the seal; PreconditionFailed if it exists. A long list of held segments is written to the
        batch's `folder` first, under a name with its checksum: two drivers with different lists overwrite
        nothing."""
        sealed = self
        if len(self.held) > HELD_HERE:
            listed = HeldDocument(held=self.held).to_bytes()
            held_in = f"{folder}/held-{crc32c(listed):08x}.json"
            if store.head(held_in) is None:
                store.put(held_in, listed)
            sealed = self.model_copy(update={"held": [], "held_in": held_in})
        store.put(name, sealed.to_bytes(), if_generation=0)

    def to_bytes(self) -> bytes:
        # Earlier versions reject unknown keys: leave the key out where it is not needed.
        unneeded = {name for name in ("not_in_log", "apart", "points", "again") if not getattr(self, name)}
        return self.model_dump_json(indent=1, exclude=unneeded).encode() + b"\n"

    def waits_for_tables(self, outcome: SegmentOutcome) -> bool:
        """Whether rejected tables are the only problem of the segment."""
        reasons = {(table.table_id, table.reason) for table in self.refused}
        return bool(outcome.problems) and all((problem.table_id, problem.message) in reasons for problem in outcome.problems)

    def without_effect(self, table_id: UUID) -> frozenset[int]:
        """The batches whose rows of the table do not count."""
        return frozenset(self.voided).union(*(range(first, last + 1) for first, last in self.late_rejections.get(table_id, ())))

    def with_late_rejections(self, of: Container[UUID], refused: Iterable[UUID], number: int) -> dict[UUID, list[tuple[int, int]]]:
        """The same with the next batch. `refused`: the tables that it rejects; `of`: those that one of its runs may have opened."""
        found = dict(self.late_rejections)
        for table_id in refused:
            *earlier, last = found.get(table_id, []) or [(0, 0)]
            captured = self.captured_by(table_id) if str(table_id) in self.state else 0
            if last[0] > captured:
                found[table_id] = [*earlier, (last[0], number)]
            elif table_id in of:
                found[table_id] = [*found.get(table_id, []), (number, number)]
        return found

    def captured_by(self, table_id: UUID) -> int:
        """The last batch that captured the table: this one, unless its state says otherwise."""
        versions = self.state.get(str(table_id))
        return self.number if versions is None or versions.behind is None else versions.behind

    @property
    def next_expiry(self) -> int | None:
        """When the next captured value expires, s since the epoch."""
        return min((at for versions in self.state.values() if (at := versions.next_expiry) is not None), default=None)


class TruncationRecord(Document):
    """A node's record of a TRUNCATE at a position of its log. `at` in ms; `writetime` of the record itself
    in µs."""

    table_id: UUID
    segment: int
    position: int
    at: int
    writetime: int


class Opening(Document):
    """A table whose state starts empty in this batch: a TRUNCATE became known, or (`correction`) more about
    a known one.

    `opened`: the batch in which `generation` began; `at`: time of the TRUNCATE in ms since the epoch."""

    generation: int
    opened: int
    at: int
    correction: bool = False


class Reread(Document):
    """An archived segment that a new generation has to read again: for each table (by id), frames past that
    position."""

    segment: SegmentInput
    tables: dict[UUID, int]


class LocalDocument(Document):
    """What the nodes' logs have reported up to and including a batch, and the resulting generations.

    `generations` are those opened by any batch so far; `opened` lists the tables of this batch."""

    truncations: dict[str, list[TruncationRecord]] = Field(default={}, description="By host id.")
    drops: dict[str, list[TruncationRecord]] = Field(
        default={}, description="By host id: where the node's log has the DROP of a table, which is a TRUNCATE if its id is created again."
    )
    generations: dict[UUID, Opening] = {}
    opened: list[UUID] = []
    rereads: list[Reread] = []
    ends: dict[str, datetime] = Field(
        default={}, description="By node: when it had finished the last of its segments that any batch so far has taken in."
    )
    newest: dict[str, int] | None = Field(
        default=None, description="By node: the greatest id of a whole segment that any batch so far has taken in. Null: not recorded yet."
    )
    asked: dict[str, str] = Field(
        default={}, description="By host id: the last of the node's own answers on its TRUNCATEs (`truncations/`) that was taken in."
    )
    not_understood: list[str] = Field(
        default=[], description="Mutations of system.local that could not be read, TRUNCATEs that could not be applied, and why."
    )


class Contents(Document):
    """Size and CRC32C of an object's bytes."""

    size: int
    crc32c: int


class LedgerEntry(Document):
    """The state of one segment; overwritten on each step, `history` keeps the earlier steps.

    For a growing segment, `position` is how far its file was ingested, and its parts lie below `object`.
    `sealed_at` and `ending` are the shipper's metadata of the first copy; a repaired copy may lack them.
    `size` and `crc32c` are the segment's; `stored` is the packed size in the archive, null if it is stored
    as it is. Of an `expired` segment the archive keeps nothing.

    `erased_from`: the original size and CRC32C if a key was erased from the archived segment; `size` and
    `crc32c` then describe the archived bytes."""

    object: str
    state: SegmentState
    size: int
    crc32c: int
    sealed_at: datetime
    ending: Ending = "completed"
    batch: int
    frames: int = 0
    position: int | None = None
    problems: list[Problem] = []
    archived_as: str | None = None
    stored: int | None = None
    erased_from: Contents | None = None
    updated_at: datetime
    history: list[dict[str, Any]] = []

    def to_bytes(self) -> bytes:
        # Versions before erasures reject unknown keys: leave the key out where it is not needed.
        return self.model_dump_json(indent=1, exclude=None if self.erased_from else {"erased_from"}).encode() + b"\n"

    def noted(self, segment: SegmentInput) -> SegmentInput:
        """The segment with the node's metadata, even if the current copy lacks them."""
        ending: Ending = "after-crash" if "after-crash" in (self.ending, segment.ending) else "completed"
        return segment.model_copy(update={"sealed_at": self.sealed_at, "ending": ending})


class Release(Document):
    """An operator's decision that the held segment `object` no longer delays purging; it is archived as it
    is."""

    object: str
    archived_as: str
    reason: str
    released_at: datetime


def released_objects(store: Store, cluster: str) -> frozenset[str]:
    """Released objects under cdc/ and frames/: the status and seals do not list them as held."""
    found = at_once(lambda each: Release.read(store, each.name), store.names(layout.released_prefix(cluster)))
    return frozenset(each.object for each in found if each is not None)


def total(accounts: Iterable[Accounting]) -> Accounting:
    """The sum over all tables, under the name `*`."""
    numbers = [name for name in Accounting.model_fields if name != "table"]
    accounts = list(accounts)
    return Accounting(table="*", **{name: sum(getattr(account, name) for account in accounts) for name in numbers})
