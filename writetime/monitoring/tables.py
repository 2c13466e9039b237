"""What came of each table in the last batches, and how far Kafka is behind. Counts are of partition updates and events, and rows as the
warehouse told when they were last written to: the seals have them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from writetime.pipeline.batch_history import Batches, BatchFacts
from writetime.pipeline.documents import Accounting, total
from writetime.pipeline.publish_progress import read_published


@dataclass(slots=True)
class TableStatus:
    """A table over the batches that were looked at. `events`, `applied` and `lags` by batch, the oldest first; a lag (s) is from when a
    node had finished the oldest segment to the seal, of batches with events of the table. `per_minute` is events a minute over the time
    from the first of them to the last seal; `unpublished` batches of it are not known to be in Kafka. `rows`: how many current rows it has;
    None = nobody has told."""

    name: str
    total: Accounting
    events: list[int] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    last_event: datetime | None = None
    per_minute: float = 0.0
    unpublished: int = 0
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table whose events cannot be sent: those of batches after `sent`, and why."""

    sent: int
    reason: str


@dataclass(frozen=True, slots=True)
class TablesStatus:
    """All tables of which there was anything, or whose rows are told. `published`: the last batch all of whose events are known to be in
    Kafka, None = none yet. `refused`: tables whose rows cannot be shown, as of the last seal, and why; `waiting`: those whose events cannot
    be sent."""

    tables: tuple[TableStatus, ...]
    batches: tuple[BatchFacts, ...]
    published: int | None
    refused: dict[str, str]
    waiting: dict[str, Waiting]


def tables(batches: Batches, *, last: int = 60) -> TablesStatus:
    """By the accounting of the last batches."""
    facts = [batch for batch in batches.latest(last) if batch.void is None]
    published = read_published(batches.store, batches.cluster)
    found: dict[str, list[Accounting | None]] = {}
    for index, batch in enumerate(reversed(facts)):
        for account in batch.accounting:
            found.setdefault(account.table, [None] * len(facts))[index] = account
    sealed = batches.newest().sealed
    refused = {table.table: table.reason for table in sealed.refused} if sealed else {}
    waiting = {name: Waiting(sent, published.reasons.get(name, "")) for name, sent in published.waiting.items()} if published else {}
    rows = facts[0].rows if facts else {}
    for name in (*rows, *refused, *waiting):
        found.setdefault(name, [None] * len(facts))
    minutes = _minutes(facts)
    done = []
    for name, accounts in sorted(found.items()):
        status = TableStatus(name, _sum(name, accounts), rows=rows.get(name))
        status.events = [account.events if account else 0 for account in accounts]
        status.lags = [
            round(batch.lag[1]) if events and batch.lag else 0 for batch, events in zip(reversed(facts), status.events, strict=True)
        ]
        status.applied = [account.applied if account else 0 for account in accounts]
        status.per_minute = status.total.events / minutes if minutes else 0.0
        sent = published.sent(name) if published else 0
        for batch, events in zip(reversed(facts), status.events, strict=True):
            if events:
                status.last_event = batch.sealed_at
                status.unpublished += batch.number > sent
        done.append(status)
    return TablesStatus(tuple(done), tuple(facts), published.batch if published else None, refused, waiting)


def _sum(name: str, accounts: Iterable[Accounting | None]) -> Accounting:
    return total(account for account in accounts if account).model_copy(update={"table": name})


def _minutes(facts: Sequence[BatchFacts]) -> float:
    """From when the first was planned to when the last was sealed."""
    return (facts[0].sealed_at - facts[-1].created_at).total_seconds() / 60 if facts else 0.0
