"""Status of the tables in the last batches, and how far Kafka is behind. Counts of partition updates, events
and rows come from the seals; row counts are those of the warehouse at the last write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from writetime.pipeline.batch_history import Batches, BatchFacts
from writetime.pipeline.documents import Accounting, total
from writetime.pipeline.publish_progress import read_published


@dataclass(slots=True)
class TableStatus:
    """A table over the last batches. `events`, `applied` and `lags`: by batch, oldest first. A lag is the
    time in seconds from the completion of the batch's oldest segment to its seal, for batches with events of
    the table. `per_minute`: events per minute from the first of them to the last seal. `unpublished`: batches
    not known to be in Kafka. `rows`: current rows, None if unknown."""

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
    """A table whose events after batch `sent` cannot be published, and the reason."""

    sent: int
    reason: str


@dataclass(frozen=True, slots=True)
class TablesStatus:
    """All tables with updates, known rows or problems. `published`: the last batch whose events are all known
    to be in Kafka, None if there is none. `refused`: tables rejected as of the last seal, with the reason.
    `waiting`: tables whose events cannot be published. `not_in_log`: captured tables whose writes bypass the
    commit log, with their transactional mode."""

    tables: tuple[TableStatus, ...]
    batches: tuple[BatchFacts, ...]
    published: int | None
    refused: dict[str, str]
    waiting: dict[str, Waiting]
    not_in_log: dict[str, str]


def tables(batches: Batches, *, last: int = 60) -> TablesStatus:
    """The status of the tables by the accounting of the last batches."""
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
    not_in_log = sealed.not_in_log if sealed else {}
    return TablesStatus(tuple(done), tuple(facts), published.batch if published else None, refused, waiting, not_in_log)


def _sum(name: str, accounts: Iterable[Accounting | None]) -> Accounting:
    return total(account for account in accounts if account).model_copy(update={"table": name})


def _minutes(facts: Sequence[BatchFacts]) -> float:
    """Minutes from the planning of the first batch to the seal of the last."""
    return (facts[0].sealed_at - facts[-1].created_at).total_seconds() / 60 if facts else 0.0
