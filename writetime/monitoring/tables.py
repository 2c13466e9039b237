"""Status of the tables in the last batches, and how far Kafka is behind. Counts of partition updates, events
and rows come from the seals; row counts are those of the warehouse at the last write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from uuid import UUID

from writetime.cassandra.schema.model import NOT_DURABLE, Schema, Table
from writetime.errors import ObjectNotFound
from writetime.events.masking import Rules, Unmatched
from writetime.monitoring.nodes import NodeStatus
from writetime.pipeline import comparisons
from writetime.pipeline.batch_history import Batches, BatchFacts
from writetime.pipeline.bootstrap.run import runs
from writetime.pipeline.comparisons import Comparison
from writetime.pipeline.documents import CDC_OFF, Accounting, Sealed, total
from writetime.pipeline.node_facts import Loaded
from writetime.pipeline.planner import read_schema
from writetime.pipeline.publish_progress import read_published
from writetime.pipeline.rule_check import unmatched

LOADED: Final = "loaded"
"""In `TablesStatus.not_in_log`: a table into which a node has loaded SSTables."""


@dataclass(slots=True)
class TableStatus:
    """A table over the last batches. `events`, `applied` and `lags`: by batch, oldest first. A lag is the
    time in seconds from the completion of the batch's oldest segment to its seal, for batches with events of
    the table. `per_minute`: events per minute from the first of them to the last seal. `unpublished`: batches
    not known to be in Kafka. `rows`: current rows, None if unknown. `is_captured`: False for tables of the
    system, and for others whose updates are only counted."""

    name: str
    total: Accounting
    is_captured: bool = True
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
    """All captured tables, and those with updates. `published`: the last batch whose events are all known
    to be in Kafka, None if there is none. `refused`: tables rejected as of the last seal, with the reason.
    `waiting`: tables whose events cannot be published. `compared`: how far tables were compared with the cluster.
    `not_in_log`: captured tables whose writes bypass the
    commit log, as in the seal, unless that is by choice; `apart`: those. `loaded`: captured tables into which a node has
    loaded SSTables, and which were not read from the cluster since; they are in `not_in_log`, too."""

    tables: tuple[TableStatus, ...]
    batches: tuple[BatchFacts, ...]
    published: int | None
    refused: dict[str, str]
    waiting: dict[str, Waiting]
    not_in_log: dict[str, str]
    apart: dict[str, ApartStatus] = field(default_factory=dict)
    compared: dict[str, Comparison] = field(default_factory=dict)
    loaded: dict[str, LoadedStatus] = field(default_factory=dict)

    @property
    def captured(self) -> list[TableStatus]:
        return [table for table in self.tables if table.is_captured]

    def missing(self, name: str) -> str:
        """Why writes to a table in `not_in_log` are missing."""
        if name in self.apart:
            return self.apart[name].text
        return self.loaded[name].text if name in self.loaded else _why(self.not_in_log[name])

    def remedy(self, name: str) -> str:
        """What helps then, as a sentence."""
        if name in self.apart:
            return "Check whether cdc_bootstrap is paused or failed; its log contains the reason."
        if self.not_in_log[name] == CDC_OFF:
            return (
                "Set `cdc = true` and read the table with cdc_bootstrap; if it is off on purpose, leave the table out of `tables`. If "
                "nobody has set it, a node with `cdc_enabled: false` may have coordinated an ALTER TABLE."
            )
        if name in self.loaded:
            return (
                "Read the table again with cdc_bootstrap once all nodes have loaded: docs/runbook.md, `I bulk-loaded`. Until then it lacks "
                "these rows."
            )
        if self.not_in_log[name] == NOT_DURABLE:
            return (
                "Set `durable_writes = true` for its keyspace and read the table with cdc_bootstrap; or do not capture it. A node that "
                "crashes loses such writes, too."
            )
        return (
            "Set `transactional_mode = 'off'` and, once the migration is finished, read the table with cdc_bootstrap; or do not capture it."
        )

    @property
    def others(self) -> list[TableStatus]:
        """Tables of the system, and others that are not captured."""
        return [table for table in self.tables if not table.is_captured]


@dataclass(frozen=True, slots=True)
class LoadedStatus:
    """SSTables that nodes loaded past their commit logs: how many, on which nodes, and when they were found last."""

    files: int
    nodes: tuple[str, ...]
    at: datetime

    @property
    def text(self) -> str:
        many = "s" if self.files > 1 else ""
        return (
            f"{self.files} SSTable{many} came past the commit log of {', '.join(self.nodes)} (nodetool import, or a snapshot that was put "
            f"back), found {self.at:%Y-%m-%d %H:%M:%S}Z: their rows are in no segment"
        )


@dataclass(frozen=True, slots=True)
class ApartStatus:
    """A table whose writes bypass the commit log, by choice: read every `seconds` from the cluster (None: left
    out). `last`: when its last complete reading began."""

    mode: str
    seconds: int | None
    last: datetime | None
    now: datetime

    @property
    def is_late(self) -> bool:
        """Whether two intervals have passed without a reading."""
        return self.seconds is not None and (self.last is None or (self.now - self.last).total_seconds() > 2 * self.seconds)

    @property
    def text(self) -> str:
        if self.seconds is None:
            return f"left out, as its writes reach no commit log ({self.mode})"
        began = "never read yet" if self.last is None else f"as of {self.last:%Y-%m-%d %H:%M:%S}Z"
        return f"read from the cluster every {self.seconds} s, as its writes reach no commit log ({self.mode}): {began}" + (
            ", late" if self.is_late else ""
        )


def _why(mode: str) -> str:
    """What is missing of a table with that value in the seal's `not_in_log`."""
    if mode == CDC_OFF:
        return "its cdc is off, and was on: no segment holds its writes since then"
    if mode == NOT_DURABLE:
        return "its keyspace has durable_writes = false: its writes never reach a commit log"
    if mode == "tracked":
        return "its keyspace is tracked: its writes go to the journal of mutation tracking and never reach a commit log"
    part = "" if mode == "full" else ", except for what a read repair writes"
    return f"its transactional_mode is {mode}: its writes go through Accord and never reach a commit log{part}"


def tables(batches: Batches, *, last: int = 60, now: datetime | None = None, nodes: Iterable[NodeStatus] = ()) -> TablesStatus:
    """The status of the tables by the accounting of the last batches, and by what the `nodes` report."""
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
    known = _captured_now(batches, sealed) if sealed and sealed.state else None
    apart = _apart(batches, sealed, now or datetime.now(UTC)) if sealed and sealed.apart else {}
    # What is not read in time is missing as well.
    not_in_log = (sealed.not_in_log if sealed else {}) | {name: each.mode for name, each in apart.items() if each.is_late}
    loaded = {name: each for name, each in _loaded(batches, nodes, known or rows.keys()).items() if name not in not_in_log}
    not_in_log |= dict.fromkeys(loaded, LOADED)
    for name in (*rows, *refused, *waiting, *not_in_log, *(known or ())):
        found.setdefault(name, [None] * len(facts))
    minutes = _minutes(facts)
    # Once for all tables: each looks at all nodes of a batch.
    lags = [round(batch.lag[1]) if batch.lag else 0 for batch in reversed(facts)]
    done = []
    for name, accounts in sorted(found.items()):
        status = TableStatus(name, _sum(name, accounts), rows=rows.get(name))
        took = status.total.updates_in > status.total.not_ours or status.rows is not None
        is_known = took if known is None else name in known
        status.is_captured = is_known or name in refused or name in waiting or name in not_in_log
        status.events = [account.events if account else 0 for account in accounts]
        status.lags = [lag if events else 0 for lag, events in zip(lags, status.events, strict=True)]
        status.applied = [account.applied if account else 0 for account in accounts]
        status.per_minute = status.total.events / minutes if minutes else 0.0
        sent = published.sent(name) if published else 0
        for batch, events in zip(reversed(facts), status.events, strict=True):
            if events:
                status.last_event = batch.sealed_at
                status.unpublished += batch.number > sent
        done.append(status)
    compared = _compared(batches, sealed) if sealed else {}
    upto = published.batch if published else None
    return TablesStatus(tuple(done), tuple(facts), upto, refused, waiting, not_in_log, apart, compared, loaded)


def _loaded(batches: Batches, nodes: Iterable[NodeStatus], captured: Collection[str]) -> dict[str, LoadedStatus]:
    found: dict[str, list[tuple[str, Loaded]]] = {}
    for node in nodes:
        for each in node.loaded:
            if each.full_name in captured:
                found.setdefault(each.full_name, []).append((node.address or node.node.host_id, each))
    if not found:
        return {}
    read = _begun(batches)
    status = {
        name: LoadedStatus(sum(each.files for _, each in some), tuple(sorted(host for host, _ in some)), max(each.at for _, each in some))
        for name, some in sorted(found.items())
    }
    # A reading has what was loaded before it began.
    return {name: each for name, each in status.items() if name not in read or read[name] <= each.at}


def _apart(batches: Batches, sealed: Sealed, now: datetime) -> dict[str, ApartStatus]:
    begun = _begun(batches)
    return {name: ApartStatus(each.mode, each.seconds, begun.get(name), now) for name, each in sorted(sealed.apart.items())}


def _begun(batches: Batches) -> dict[str, datetime]:
    """When the last complete reading of each table began."""
    begun: dict[str, datetime] = {}
    for run in runs(batches.store, batches.cluster):
        if run.part is None and run.finished_at is not None:
            name = f"{run.keyspace}.{run.table}"
            begun[name] = max(run.started_at, begun.get(name, run.started_at))
    return begun


def _captured_now(batches: Batches, sealed: Sealed) -> set[str] | None:
    """Names of the captured tables that exist, by the state of the last batch. None if no schema is known."""
    known = known_tables(batches, sealed.number)
    now = (UUID(table_id) for table_id, versions in sealed.state.items() if versions.behind is None and not versions.ended)
    return {known[table_id].label for table_id in now if table_id in known} if known else None


def _compared(batches: Batches, sealed: Sealed) -> dict[str, Comparison]:
    """By name, what is known of all tables but dropped ones, whose names others may have by now."""
    found, known = comparisons.read(batches.store, batches.cluster).tables, known_tables(batches, sealed.number)
    return {each.table: each for table_id, each in found.items() if table_id not in known or not known[table_id].dropped}


def known_tables(batches: Batches, number: int) -> Mapping[UUID, Table]:
    """All tables as of a sealed batch, by id; empty if its schema is gone."""
    try:
        return _known_schema(batches, number).tables
    except ObjectNotFound:
        return {}


def unmatched_rules(batches: Batches, rules: Rules) -> list[Unmatched] | None:
    """The rules that fit no table or column as of the last batch; None if no table is known yet."""
    if not rules:
        return []
    sealed = batches.newest().sealed
    try:
        return None if sealed is None else unmatched(rules, _known_schema(batches, sealed.number))
    except ObjectNotFound:
        return None


@lru_cache(maxsize=16)
def _known_schema(batches: Batches, number: int) -> Schema:
    return read_schema(batches.store, batches.cluster, number).schema()


def _sum(name: str, accounts: Iterable[Accounting | None]) -> Accounting:
    return total(account for account in accounts if account).model_copy(update={"table": name})


def _minutes(facts: Sequence[BatchFacts]) -> float:
    """Minutes from the planning of the first batch to the seal of the last."""
    return (facts[0].sealed_at - facts[-1].created_at).total_seconds() / 60 if facts else 0.0
