"""How far publishing is known to be, as a hint in the bucket that spares idle runs a Spark start. The truth is in Kafka itself."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pydantic import Field

from writetime.pipeline.documents import Document
from writetime.pipeline.identity import id_of
from writetime.pipeline.planner import history
from writetime.storage import layout
from writetime.storage.store import Store


class Published(Document):
    """Every event of the batches up to `batch` is in Kafka; `events` were sent by the last run. Of tables in `waiting`, by full name, only
    those of the batches up to the one noted there are: they could not be sent, for `reasons`. `heartbeat`: when the last was sent
    (ms). Without `kafka` there was none when it was written, and it tells of files. `id`: the batch's (`Manifest.id`), if it has one."""

    batch: int
    events: int
    waiting: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)
    heartbeat: int = 0
    kafka: bool = True
    id: UUID | None = None

    def is_of(self, store: Store, cluster: str, upto: int) -> bool:
        """Whether it speaks of the batches that there are, of which `upto` is the last that is sealed."""
        return self.batch <= upto and (self.id is None or id_of(store, cluster, self.batch) in (None, self.id))

    def sent(self, table: str) -> int:
        """The last batch all of whose events of the table are in Kafka."""
        return self.waiting.get(table, self.batch)


def read_published(store: Store, cluster: str) -> Published | None:
    return Published.read(store, layout.published(cluster))


def write_published(store: Store, cluster: str, published: Published) -> None:
    store.put(layout.published(cluster), published.to_bytes())


class ToldOf(Document):
    """The tables that people were told of as waiting, each by the batch up to which it had been sent then: one that waits again, with more
    of it sent, is news."""

    waiting: dict[str, int] = Field(default_factory=dict)


def tell_of(store: Store, cluster: str, waiting: Mapping[str, int]) -> set[str]:
    """Which of the tables that wait people were told of before. Notes all of them."""
    before = ToldOf.read(store, layout.published_told(cluster)) or ToldOf()
    if before.waiting != waiting:
        store.put(layout.published_told(cluster), ToldOf(waiting=dict(waiting)).to_bytes())
    return {name for name, sent in waiting.items() if before.waiting.get(name) == sent}


def publish_due(store: Store, cluster: str, *, heartbeat_ms: int = 0, now: int = 0) -> bool:
    """Whether a batch has been sealed since publishing last drained the outbox, or a table waits that may go by now, or, with
    `heartbeat_ms`, it is time for a heartbeat (`now`, in ms)."""
    sealed = history(store, cluster).sealed
    published = read_published(store, cluster) or Published(batch=0, events=0)
    if sealed is not None and (published.batch != sealed.number or published.waiting):
        return True
    return bool(heartbeat_ms) and now - published.heartbeat >= heartbeat_ms
