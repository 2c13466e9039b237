"""The JSON documents of a batch and of the ledger, as models. They say what is stored, not how it comes about.

Times are ISO-8601 UTC, `now` is seconds since the Unix epoch, positions are logical segment positions in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from writetime import names
from writetime.errors import ObjectNotFound
from writetime.store import ObjectInfo, Store

BatchKind = Literal["ingest", "replay", "maintain"]
SegmentState = Literal["archived", "quarantined", "retry"]
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


class SegmentInput(Document):
    """One segment as the manifest pins it: that generation of that object. `ending` is how its node left it, as the shipper saw it."""

    object: str
    generation: int
    size: int
    crc32c: int
    sealed_at: datetime
    ending: Ending = "completed"

    @classmethod
    def from_object(cls, info: ObjectInfo) -> SegmentInput:
        """`sealed_at` is what the shipper noted: when the node finished the file; else when the object came to be."""
        return cls(
            object=info.name,
            generation=info.generation,
            size=info.size,
            crc32c=info.crc32c,
            sealed_at=_moment(info.metadata.get("sealed_at")) or info.created,
            ending="after-crash" if info.metadata.get("ending") == "after-crash" else "completed",
        )

    @property
    def ref(self) -> names.SegmentRef:
        return names.SegmentRef.from_object(self.object)


def _moment(text: str | None) -> datetime | None:
    """An ISO-8601 time in UTC. None for what is none: a node's note must not stand in the way of its segment."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


class ShardVersions(Document):
    """State of one table's life: generation, the dataset version of each key bucket (0 = nothing written yet), and when the first
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
    nodes: dict[str, str] = Field(default={}, description="Host id to address, of every node that ships.")
    interval: tuple[datetime, datetime] | None = None


class Problem(Document):
    """A range of a segment that could not be used, and where its bytes are kept."""

    kind: str
    position: int
    size: int
    message: str
    quarantined_as: str | None = None


class SegmentOutcome(Document):
    """What a batch made of one segment. `torn`: bytes that its node had not synced when it crashed. It has lost them as well, so they are
    no problem; of a segment that its node completed they would be one."""

    object: str
    frames: int = 0
    updates: int = 0
    problems: list[Problem] = []
    torn: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


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

    @property
    def balanced(self) -> bool:
        return self.updates_in == self.applied + self.duplicate + self.superseded + self.not_ours + self.quarantined


class Sealed(Document):
    """The outcome of a batch; that this object exists is the seal."""

    number: int
    kind: BatchKind
    sealed_at: datetime
    segments: list[SegmentOutcome]
    accounting: list[Accounting]
    state: dict[str, ShardVersions] = Field(description="By table id: the state versions the next batch starts from.")
    held: list[str] = Field(default=[], description="Objects under cdc/ that wait for a person: quarantined and not yet cleared.")
    snapshots_applied: list[str] = Field(default=[], description="Schema snapshots taken in so far, refused ones too.")
    snapshots_refused: dict[str, str] = Field(default={}, description="Of this batch's snapshots those that could not be read, and why.")
    horizon: int | None = Field(
        default=None,
        description="Tombstones older than this (s since the epoch) may have been purged from the state, in any batch so far.",
    )
    events: int = 0

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
    generations: dict[UUID, Opening] = {}
    opened: list[UUID] = []
    rereads: list[Reread] = []
    not_understood: list[str] = Field(default=[], description="Mutations of system.local that could not be read, and why.")


class LedgerEntry(Document):
    """What became of one segment; overwritten as it moves on, `history` keeps the way it came.

    `sealed_at` and `ending` are the shipper's notes on the first copy: one that a person has put in its place need not carry them."""

    object: str
    state: SegmentState
    size: int
    crc32c: int
    sealed_at: datetime
    ending: Ending = "completed"
    batch: int
    frames: int = 0
    problems: list[Problem] = []
    archived_as: str | None = None
    updated_at: datetime
    history: list[dict[str, Any]] = []

    def noted(self, segment: SegmentInput) -> SegmentInput:
        """The segment as its node left it, whatever copy of it lies there now."""
        ending: Ending = "after-crash" if "after-crash" in (self.ending, segment.ending) else "completed"
        return segment.model_copy(update={"sealed_at": self.sealed_at, "ending": ending})


def total(accounts: Iterable[Accounting]) -> Accounting:
    """The sum over all tables, under the name `*`."""
    numbers = [name for name in Accounting.model_fields if name != "table"]
    accounts = list(accounts)
    return Accounting(table="*", **{name: sum(getattr(account, name) for account in accounts) for name in numbers})
