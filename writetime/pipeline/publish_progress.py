"""Progress of publishing, as a hint in the bucket that saves idle runs a Spark start. The exact progress is
in Kafka.

Strategy: several runs may write the record, a session and `cdc_publish`. Each changes what is there, under its generation,
so that no run takes back what another one has recorded or was asked for since it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pydantic import Field

from writetime.pipeline import watermark
from writetime.pipeline.documents import Document, Manifest, StageCost, Watermark, sum_of_costs
from writetime.pipeline.identity import id_of
from writetime.pipeline.planner import history
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
AGAIN: Final = "all its events are to be sent again"
_SENT_AGAIN: Final = "all its events were sent again while later ones were published, which are sent again next"


class TopicMark(Document):
    """Where a topic stood when a run had sent its events: the last batch by each publisher's progress, and the sum of the offsets at
    which its partitions ended. Both only grow, unless Kafka has lost something."""

    progress: list[int] = Field(default_factory=list)
    end: int = 0

    def is_behind(self, progress: Sequence[int]) -> bool:
        """Whether publishers have less progress than they had."""
        return any(now < before for now, before in zip([*progress, *[0] * len(self.progress)], self.progress, strict=False))


class Published(Document):
    """Every event of the batches up to `batch` is in Kafka; the last run sent `events`. Tables in `waiting`,
    by full name, are an exception: their events are sent only up to the batch given there, because of
    `reasons`. `heartbeat`: time of the last one (ms); `complete`: up to when it said that all topics are
    complete. Without `kafka` the document is about files. `id`: the
    batch's id (`Manifest.id`), if it has one. `costs`: what publishing has used so far, ever. `epochs`: by table, how often
    all its events were to be sent again; publishers' progress of an earlier epoch does not count. `requests`: by table, who has
    asked for that lately; `asked`: the tables of which it has not been done yet, all of them are in `waiting`.
    `topics`: where the topics of tables stood."""

    batch: int
    events: int
    waiting: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)
    heartbeat: int = 0
    complete: datetime | None = None
    kafka: bool = True
    id: UUID | None = None
    costs: list[StageCost] = Field(default_factory=list)
    epochs: dict[str, int] = Field(default_factory=dict)
    requests: dict[str, list[str]] = Field(default_factory=dict)
    asked: list[str] = Field(default_factory=list)
    topics: dict[str, TopicMark] = Field(default_factory=dict)

    def is_of(self, store: Store, cluster: str, upto: int) -> bool:
        """Whether the document is about existing batches, the last sealed of which is `upto`."""
        return self.batch <= upto and (self.id is None or id_of(store, cluster, self.batch) in (None, self.id))

    def of_other_chain(self) -> dict[str, Any]:
        """What counts in any chain of batches, as fields: heartbeats, and what was asked for. Where a table stood in the batches
        of another chain says nothing about this one: all of it is sent again, or nothing."""
        waiting, reasons = dict.fromkeys(self.asked, 0), dict.fromkeys(self.asked, AGAIN)
        kept = self.model_dump(include={"heartbeat", "complete", "epochs", "requests", "asked"})
        return {**kept, "waiting": waiting, "reasons": reasons}

    def sent(self, table: str) -> int:
        """The last batch of which all events of the table are in Kafka."""
        return self.waiting.get(table, self.batch)

    @property
    def sent_by_all(self) -> int:
        """The last batch of which all events of all tables are in Kafka."""
        return min([self.batch, *self.waiting.values()])


def read_published(store: Store, cluster: str) -> Published | None:
    return Published.read(store, layout.published(cluster))


def write_published(store: Store, cluster: str, published: Published, costs: Iterable[StageCost] = ()) -> None:
    """Record what a run has reached, with the topics that it has sent to, and add its `costs` to those so far. What a heartbeat
    has said stays said. If another run has gone further, its record stays, and so do requests to send a table again that came in
    since this run began."""
    used = list(costs)

    def change(before: Published | None) -> Published:
        mine = published
        if before is not None and before.kafka == mine.kafka and before.batch > mine.batch and _is_there(store, cluster, before):
            mine = before
        said = max((each.complete for each in (before, published) if each is not None and each.complete is not None), default=None)
        so_far = sum_of_costs([*(before.costs if before is not None else ()), *used])
        heartbeat = max(published.heartbeat, before.heartbeat if before is not None else 0)
        topics = published.topics if before is None else before.topics | published.topics
        mine = mine.model_copy(update={"complete": said, "costs": so_far, "heartbeat": heartbeat, "topics": topics})
        return mine if before is None else _with_requests(mine, before)

    Published.update(store, layout.published(cluster), change)


def _is_there(store: Store, cluster: str, published: Published) -> bool:
    """Whether the record's batch is one of the bucket."""
    return published.id is not None and id_of(store, cluster, published.batch) == published.id


def _with_requests(mine: Published, before: Published) -> Published:
    """With the tables of a later epoch as they are in the record: what this run has sent of them does not count."""
    later = [name for name, epoch in before.epochs.items() if epoch > mine.epochs.get(name, 0)]
    behind = [name for name in later if name in before.waiting or before.sent(name) < mine.batch]
    return mine.model_copy(
        update={
            "epochs": mine.epochs | {name: before.epochs[name] for name in later},
            "requests": mine.requests | before.requests,
            "asked": sorted({*(name for name in mine.asked if name not in later), *(name for name in before.asked if name in later)}),
            "waiting": mine.waiting | {name: before.sent(name) for name in behind},
            "reasons": mine.reasons | {name: before.reasons.get(name, _SENT_AGAIN) for name in behind},
        }
    )


def complete_in_kafka(store: Store, cluster: str, published: Published) -> datetime | None:
    """Up to when all topics are complete: they hold every event of a mutation that was logged before then.
    None if unknown. Never earlier than what a heartbeat has said."""
    sent = published.sent_by_all
    found = watermark.read(store, cluster, history(store, cluster).sealed)
    if sent < found.batch:
        # What the next batch found complete when it was planned is in the batches before it.
        following = Manifest.read(store, layout.batch_object(cluster, sent + 1, "manifest"))
        found = (following.complete_before if following else None) or Watermark()
    return max((at for at in (published.complete, found.of_all) if at is not None), default=None)


class CompleteBefore:
    """Up to when tables were complete before each of some batches. Manifests pin it, so it is the same in every
    run."""

    def __init__(self, store: Store, cluster: str, batches: Iterable[int]) -> None:
        def read(number: int) -> tuple[int, Watermark | None]:
            # Of a thousand manifests of some hundred KB each, only this is kept.
            manifest = Manifest.read(store, layout.batch_object(cluster, number, "manifest"))
            return number, manifest.complete_before if manifest else None

        self._found = {number: before for number, before in at_once(read, batches) if before is not None}

    def of(self, table_id: UUID) -> dict[int, int]:
        """Of that table, by batch, in µs since the epoch."""
        times = ((number, watermark.of(table_id)) for number, watermark in self._found.items())
        return {number: (at - EPOCH) // timedelta(microseconds=1) for number, at in times if at is not None}


def topics_complete_until(store: Store, cluster: str, upto: int) -> datetime | None:
    """The same by the recorded progress; None also without Kafka, or if the record is about other batches than
    those up to the sealed batch `upto`."""
    published = read_published(store, cluster)
    if published is None or not published.kafka or not published.is_of(store, cluster, upto):
        return None
    return complete_in_kafka(store, cluster, published)


def publish_due(store: Store, cluster: str, *, heartbeat_ms: int = 0, now: int = 0) -> bool:
    """Whether publishing has work: a batch was sealed since the last run, a waiting table may be sent now,
    or, with `heartbeat_ms`, a heartbeat is due (`now`, in ms)."""
    sealed = history(store, cluster).sealed
    published = read_published(store, cluster) or Published(batch=0, events=0)
    if sealed is not None and (published.batch != sealed.number or published.waiting):
        return True
    return bool(heartbeat_ms) and now - published.heartbeat >= heartbeat_ms
