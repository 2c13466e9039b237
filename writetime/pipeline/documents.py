"""The JSON documents of a batch and of the ledger, as models. They say what is stored, not how it comes about.

Times are ISO-8601 UTC, `now` is seconds since the Unix epoch, positions are logical segment positions in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from writetime import untrusted
from writetime.cassandra.commitlog.sections import Place
from writetime.cassandra.merge.reconcile import Policy
from writetime.errors import ObjectNotFound
from writetime.storage import layout, segment_object, untrusted_objects
from writetime.storage.checksum import crc32c
from writetime.storage.segment_parts import Part
from writetime.storage.store import ObjectInfo, Store

HELD_HERE: Final = 100
"""So many held segments are listed in the seal itself."""
BatchKind = Literal["ingest", "replay", "maintain", "rebuild", "erase"]
SegmentState = Literal["archived", "quarantined", "retry", "growing", "expired"]
Ending = Literal["completed", "after-crash"]


class Document(BaseModel):
    """Base: unknown keys are refused, so that a newer writer is noticed and not half understood."""

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


class Mark(Document):
    """How far a growing segment was taken in: `position` bytes of its file, which have that CRC32C and hold so many frames; `logical` is
    that place in the unpacked segment.

    `sound`: nothing was wrong with them. If anything was, the whole file is taken in from its beginning when it comes. Without a `logical`
    they could not be read at all, and no more parts of the segment are: its whole file has to show what it is."""

    position: int = 0
    logical: int | None = None
    crc32c: int = 0
    frames: int = 0
    sound: bool = True

    @property
    def place(self) -> Place | None:
        """Where reading goes on."""
        return None if self.logical is None else Place(self.position, self.logical)


class PartInput(Document):
    """A part of a growing segment, as the manifest pins it."""

    object: str
    generation: int = Field(description="What it was when it was pinned; for people. What counts are its bytes.")
    crc32c: int | None = Field(default=None, description="Of its bytes. Null: pinned by a version that went by the generation.")

    def is_in(self, info: ObjectInfo) -> bool:
        """Whether the object holds what was pinned."""
        return info.generation == self.generation if self.crc32c is None else info.crc32c == self.crc32c

    @property
    def range(self) -> tuple[int, int]:
        """The bytes [start, end) of the segment's file that it holds."""
        return layout.part_range(self.object)


class Tail(Document):
    """What is particular about a segment that grows, or of which parts were taken in before the whole file came.

    `parts`, of a growing one, hold its file without a gap from `after` on, up to the end of the last. `header` is the part that begins with
    the segment's header, if reading does not begin there. `after`: what earlier batches have taken in."""

    parts: list[PartInput] = []
    header: PartInput | None = None
    after: Mark | None = None


class SegmentInput(Document):
    """One segment as the manifest pins it: the bytes of that size and CRC32C under that name, whatever the generation: the same bytes put
    there again are the same input. `ending` is how its node left it, as the shipper saw it.

    Of a growing segment there is no object of that name, but the parts of `tail` below it; generation and checksum are the last part's, the
    size is theirs together."""

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
    def growing(cls, ref: layout.SegmentRef, run: Sequence[Part], *, header: Part | None = None, after: Mark | None = None) -> SegmentInput:
        """Of a growing segment, parts that follow each other (`writetime.storage.segment_parts.run`)."""
        last = cls.from_object(run[-1].info)
        start = after.position if after else 0
        tail = Tail(parts=[_pinned(part) for part in run], header=None if header is None else _pinned(header), after=after)
        return last.model_copy(update={"object": ref.growing, "size": run[-1].end - start, "tail": tail})

    def as_absent(self) -> SegmentInput:
        """The same of bytes that no object has: who reads it finds it gone."""
        parts = [part.model_copy(update={"crc32c": -1}) for part in self.tail.parts] if self.tail else []
        tail = self.tail.model_copy(update={"parts": parts}) if self.tail else None
        return self.model_copy(update={"crc32c": -1, "tail": tail})

    @property
    def grows(self) -> bool:
        """Whether this is what is there of a segment that still grows."""
        return self.tail is not None and bool(self.tail.parts)

    @property
    def end(self) -> int:
        """Of a growing segment, the place in its file where the last part ends."""
        assert self.tail is not None
        return self.tail.parts[-1].range[1]

    @classmethod
    def from_object(cls, info: ObjectInfo) -> SegmentInput:
        """`sealed_at` is what the shipper noted: when the node finished the file; else when the object came to be. Size and checksum are
        the segment's, packed or not."""
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


def _pinned(part: Part) -> PartInput:
    return PartInput(object=part.info.name, generation=part.info.generation, crc32c=part.info.crc32c)


def _sealed_at(info: ObjectInfo) -> datetime:
    """A node's note that makes no sense must not stand in the way of its segment, or of anybody else's."""
    try:
        return untrusted_objects.moment_of(info, "sealed_at")
    except untrusted.Untrusted:
        return info.created


class ShardVersions(Document):
    """State of one table's incarnation: generation, the dataset version of each key bucket (0 = nothing written yet), and when the first
    thing in each expires (s since the epoch, None = nothing will; an empty list says nothing of any).

    `behind`: of a table that is not captured now, the last batch that captured it: nobody has told since what expired and was dropped.
    `ended`: the table was dropped, and that was told. Its rows are gone, and what expires in it is no news. `purged`: the newest writetime
    (µs) of all that maintenance has purged, which may have beaten anything that is no newer."""

    generation: int = 0
    buckets: list[int]
    expires: list[int | None] = []
    behind: int | None = None
    ended: bool = False
    purged: int | None = None

    @property
    def next_expiry(self) -> int | None:
        """When something of the table expires next that a batch can tell, s since the epoch."""
        if self.ended or self.behind is not None:
            return None
        return min((at for at in self.expires if at is not None), default=None)

    def captured_up_to(self, number: int) -> ShardVersions:
        """These versions where no batch after that one captures the table."""
        return self if self.behind is not None else self.model_copy(update={"behind": number})

    def purged_up_to(self, newest: int | None) -> ShardVersions:
        """These versions once that was purged as well."""
        if newest is None or (self.purged is not None and newest <= self.purged):
            return self
        return self.model_copy(update={"purged": newest})

    def after(self, written: Mapping[int, tuple[int, int | None]]) -> ShardVersions:
        """These versions once some buckets were written: by bucket, the new version, and when the first thing in it expires."""
        buckets, expires = list(self.buckets), list(self.expires) or [None] * len(self.buckets)
        for bucket, (version, at) in written.items():
            buckets[bucket], expires[bucket] = version, at
        return self.model_copy(update={"buckets": buckets, "expires": expires})


class Hold(Document):
    """What keeps logs from being in: a node (`by`: with which its objects under nodes/ begin) or a segment (its object).

    `until`: up to then all is in, as far as this goes. `since`: when it began. `tables`: whose logs it keeps; null: all tables'."""

    by: str
    until: datetime
    since: datetime
    tables: list[UUID] | None = None

    def concerns(self, table_id: UUID) -> bool:
        return self.tables is None or table_id in self.tables


class Chain(Document):
    """Batches that build on each other, begun by `writetime rebuild`. `first` is the number of the first one, above all numbers of
    earlier chains; `upto` that of the last one of the rebuild, null in manifests of the rebuild itself. State begins with `generation`.

    `partial`: some of the archive was missing. `kept_from`: segments sealed before that hour (s since the epoch) may be missing."""

    id: UUID
    first: int
    upto: int | None = None
    generation: int
    partial: bool = False
    kept_from: int | None = None


class Manifest(Document):
    """The frozen input of a batch. `base` is the sealed batch whose schema and state versions this one starts from (0 = none)."""

    number: int
    kind: BatchKind
    cluster: str
    created_at: datetime
    now: int = Field(description="Seconds since the epoch at which rows are judged live or expired.")
    base: int
    since: int | None = Field(default=None, description="The base's `now`: what expires after it is this batch's to tell. Null: no base.")
    segments: list[SegmentInput]
    schema_snapshots: list[str] = []
    truncations: list[str] = Field(default=[], description="What nodes answered of their TRUNCATEs, a new object of each node at most.")
    nodes: dict[str, str] = Field(default={}, description="Host id to address, of every node that ships.")
    merge_rule: Policy = Field(
        default="4.0", description="The release by whose rule cells of equal timestamp merge. Older batches, which do not say so: 4.0's."
    )
    interval: tuple[datetime, datetime] | None = None
    namespace: str | None = Field(default=None, description="Of a replay that is to be compared: where its rows go. Null: the live tables.")
    id: UUID | None = Field(default=None, description="Tells it from a batch of another chain that has its number. Null: none was made.")
    chain: Chain | None = Field(default=None, description="Which batches it builds on. Null: those that the pipeline began with.")
    holds: list[Hold] = Field(default=[], description="Of maintenance: what keeps logs from being in, so that tombstones are kept for it.")


class Problem(Document):
    """A range of a segment that could not be used, and where its bytes are kept. `table`: the table that it is of, as far as that is known,
    by its full name or its id; `table_id`: its id. `frames`: more than one if it is of so many frames of that table, from `position` to
    `last`, kept as one piece (`writetime.pipeline.quarantine.frame_ranges`); frames of other tables lie between them."""

    kind: str
    position: int
    size: int
    message: str
    quarantined_as: str | None = None
    table: str | None = None
    table_id: UUID | None = None
    frames: int = 1
    last: int | None = None

    def covers(self, note: Mapping[str, Any]) -> bool:
        """Whether the piece of that note is of the frames that this one is of."""
        if self.last is None or note.get("table_id") != str(self.table_id):
            return False
        return self.position <= int(note["position"]) and int(note.get("last") or note["position"]) <= self.last


def may_contain(problems: Iterable[Problem]) -> frozenset[UUID] | None:
    """The tables of which a segment with these problems may hold something that was not folded; None: any."""
    tables = {problem.table_id for problem in problems}
    return None if not tables or None in tables else frozenset(table for table in tables if table is not None)


class Settled(Problem):
    """What an earlier batch could not use, of the segment `object`, and a later one could. `batch`: the last one that could not."""

    object: str
    batch: int


class SegmentOutcome(Document):
    """What a batch made of one segment. `torn`: bytes that its node had not synced when it crashed. It has lost them as well, so they are
    no problem; of a segment that its node completed they would be one.

    `mark`, of a growing segment: how far it is taken in now. `skipped`, of a whole one: frames that had been taken in while it grew; they
    are not among `frames`. `differs`: its beginning is not what the parts had held, so all of it was taken in. `settled`: what earlier
    batches had put into quarantine, and this one could use."""

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
        """Whether nothing waits for a person. Of a growing segment nothing does: its whole file will be looked at."""
        return not self.problems or self.mark is not None

    @property
    def refused_frames(self) -> int:
        """How many frames and damaged ranges could not be used."""
        return sum(problem.frames for problem in self.problems)


class Accounting(Document):
    """Partition updates of one table in one batch, all replicas counted. Each is counted once, in the first class that fits, in
    this order: quarantined, not_ours, duplicate (the same bytes were seen in this batch), superseded (changed nothing), applied."""

    table: str
    updates_in: int = 0
    applied: int = 0
    duplicate: int = 0
    superseded: int = 0
    not_ours: int = 0
    quarantined: int = 0
    events: int = 0
    ties: int = Field(default=0, description="Cells that won against one of another expiry by the rule of 3.11; the ring may differ.")

    undecided: int = Field(default=0, description="Updates, counted above, that were kept as no record says whether a TRUNCATE took them.")
    read_again: int = Field(default=0, description="Updates, counted above, of archived segments read again for a TRUNCATE known late.")

    @property
    def balanced(self) -> bool:
        return self.updates_in == self.applied + self.duplicate + self.superseded + self.not_ours + self.quarantined


class RefusedTable(Document):
    """A captured table whose rows cannot be shown, by its `Table.label`, and why. Its updates wait in quarantine; all else has gone on."""

    table: str
    table_id: UUID
    reason: str


class Unwritable(Document):
    """Tables that the warehouse refused in a run of a batch: its further runs leave them out, as those that cannot be shown."""

    tables: list[RefusedTable] = []


class HeldDocument(Document):
    """Objects under cdc/ and frames/ that wait for a person, as of the batches whose seals name this object."""

    held: list[str]


class Void(Document):
    """A person's decision that a batch takes no effect. `base`: the last effective batch before it (0: none),
    where the next one starts."""

    reason: str
    by: str
    base: int


class Sealed(Document):
    """The outcome of a batch; that this object exists is the seal. With a `void` it has no outcome: its input
    is planned again.

    Where many segments are held their names are in an object beside it (`held_in`): a seal does not grow with
    what waits. `read` gives it with all of them, whichever form it has; `write` takes care of that object."""

    number: int
    kind: BatchKind
    sealed_at: datetime
    segments: list[SegmentOutcome]
    accounting: list[Accounting]
    state: dict[str, ShardVersions] = Field(description="By table id: the state versions the next batch starts from.")
    held: list[str] = Field(default=[], description="Objects under cdc/ that wait for a person: quarantined and not yet cleared.")
    held_in: str | None = Field(default=None, description="The object that lists what is held; null: `held` does.")
    growing: dict[str, Mark] = Field(
        default={}, description="How far the segments were taken in of which there are parts only, by the name that these lie below."
    )
    snapshots_applied: list[str] = Field(default=[], description="Schema snapshots taken in so far, refused ones too.")
    snapshots_refused: dict[str, str] = Field(default={}, description="Of this batch's snapshots those that could not be read, and why.")
    undecided: dict[str, int] = Field(
        default={},
        description="By table: updates, so far, of which no record says whether a TRUNCATE took them, and which nobody reads from the ring "
        "again as `cluster.cql` is not configured.",
    )
    rows: dict[str, int] = Field(default={}, description="By table: how many current rows it has, as its last commit has told.")
    refused: list[RefusedTable] = Field(default=[], description="Tables whose rows could not be shown in this batch.")
    horizon: int | None = Field(
        default=None,
        description="Tombstones older than this (s since the epoch) may have been purged from the state, in any batch so far.",
    )
    kept_from: int | None = Field(
        default=None,
        description="Segments sealed before this hour (s since the epoch) may have been let go by the archive, in any batch so far.",
    )
    events: int = 0
    void: Void | None = Field(default=None, description="Of a batch that takes no effect: why, and by whose decision. Null: it does.")
    voided: dict[int, UUID | None] = Field(
        default={}, description="All batches before this one that were voided, by number, with their ids: no rows of theirs count."
    )

    @classmethod
    def read(cls, store: Store, name: str, *, held: bool = True) -> Self | None:
        """The seal of that name, or None if there is none; without `held` what is held is left out where it is listed elsewhere."""
        sealed = super().read(store, name)
        if sealed is None or sealed.held_in is None or not held:
            return sealed
        return sealed.model_copy(update={"held": HeldDocument.model_validate_json(store.read(sealed.held_in)).held, "held_in": None})

    def write(self, store: Store, name: str, folder: str) -> None:
        """Create the seal of that name; PreconditionFailed if it is there. A long list goes into an object in the batch's `folder` first,
        whose name says what is in it: two drivers that have come to different lists overwrite nothing."""
        sealed = self
        if len(self.held) > HELD_HERE:
            listed = HeldDocument(held=self.held).to_bytes()
            held_in = f"{folder}/held-{crc32c(listed):08x}.json"
            if store.head(held_in) is None:
                store.put(held_in, listed)
            sealed = self.model_copy(update={"held": [], "held_in": held_in})
        store.put(name, sealed.to_bytes(), if_generation=0)

    def waits_for_tables(self, outcome: SegmentOutcome) -> bool:
        """Whether nothing else is wrong with a segment than that tables in it are refused."""
        reasons = {(table.table_id, table.reason) for table in self.refused}
        return bool(outcome.problems) and all((problem.table_id, problem.message) in reasons for problem in outcome.problems)

    def captured_by(self, table_id: UUID) -> int:
        """The last batch that captured the table, or would have: this one, unless its state says otherwise."""
        versions = self.state.get(str(table_id))
        return self.number if versions is None or versions.behind is None else versions.behind

    @property
    def next_expiry(self) -> int | None:
        """When anything captured expires next, s since the epoch."""
        return min((at for versions in self.state.values() if (at := versions.next_expiry) is not None), default=None)


class TruncationRecord(Document):
    """A node's note that it emptied a table at a place of its log. `at` in ms, `writetime` of the note itself in µs."""

    table_id: UUID
    segment: int
    position: int
    at: int
    writetime: int


class Opening(Document):
    """A table whose state starts empty in this batch: a TRUNCATE was learnt, or (`correction`) more of one that was known.

    `opened` is the batch in which `generation` began, `at` the TRUNCATE's time in ms since the epoch."""

    generation: int
    opened: int
    at: int
    correction: bool = False


class Reread(Document):
    """An archived segment that a new generation needs again: of each table (by id) only frames past that position."""

    segment: SegmentInput
    tables: dict[UUID, int]


class LocalDocument(Document):
    """What the nodes' own logs have told up to a batch, that one included, and what the batch makes of it.

    Generations are those that any batch so far has opened; `opened` lists the tables of this one."""

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
    asked: dict[str, str] = Field(
        default={}, description="By host id: the last of the node's own answers on its TRUNCATEs (`truncations/`) that was taken in."
    )
    not_understood: list[str] = Field(
        default=[], description="Mutations of system.local that could not be read, TRUNCATEs that could not be followed, and why."
    )


class Contents(Document):
    """Bytes, and their CRC32C."""

    size: int
    crc32c: int


class LedgerEntry(Document):
    """What became of one segment; overwritten as it moves on, `history` keeps the way it came.

    While it grows, `position` is how far its file was taken in, and its parts lie below `object`. `sealed_at` and `ending` are the
    shipper's notes on the first copy: one that a person has put in its place need not carry them. `size` and `crc32c` are the segment's;
    `stored` is how many bytes the archive keeps of it, packed, and null as long as it keeps the very file; of one that is `expired` it
    keeps nothing any more.

    `erased_from`: what the node wrote, where a key was erased from the archived segment since; `size` and `crc32c` are then those of
    what the archive holds."""

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
        # A version before erasures refuses a key that it does not know: it reads all entries but those of segments that were erased from.
        return self.model_dump_json(indent=1, exclude=None if self.erased_from else {"erased_from"}).encode() + b"\n"

    def noted(self, segment: SegmentInput) -> SegmentInput:
        """The segment as its node left it, whatever copy of it lies there now."""
        ending: Ending = "after-crash" if "after-crash" in (self.ending, segment.ending) else "completed"
        return segment.model_copy(update={"sealed_at": self.sealed_at, "ending": ending})


class Release(Document):
    """A person's decision that a held segment `object` holds nothing back any more: it lies in the archive as it is."""

    object: str
    archived_as: str
    reason: str
    released_at: datetime


def total(accounts: Iterable[Accounting]) -> Accounting:
    """The sum over all tables, under the name `*`."""
    numbers = [name for name in Accounting.model_fields if name != "table"]
    accounts = list(accounts)
    return Accounting(table="*", **{name: sum(getattr(account, name) for account in accounts) for name in numbers})
