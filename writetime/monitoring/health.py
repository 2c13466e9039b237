"""The health of a pipeline at a glance: one level per table, and the problems that concern all of them.

Strategy: four checks per table (its last batch, how far it is complete, the comparisons with the cluster, the last
audit), each with a finding: a level, a text, and the view of the page that shows the reason. The worst
finding is the table's. What exceeds a limit is decided by `watch`, so that the page, `writetime status` and
`cdc_watch` agree. Levels have the severities of the alert rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self, get_args
from urllib.parse import quote, urlencode

from writetime.config.airflow import WatchConfig
from writetime.config.pipeline import PipelineConfig
from writetime.events.masking import Rules
from writetime.monitoring import checks
from writetime.monitoring.checks import TableCheck
from writetime.monitoring.complete_until import CompleteUntil
from writetime.monitoring.durations import span
from writetime.monitoring.nodes import RingStatus
from writetime.monitoring.overview import Overview
from writetime.monitoring.tables import TablesStatus, TableStatus, unmatched_rules
from writetime.monitoring.watch import NO_RULES, Trouble, troubles
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.comparisons import Comparison
from writetime.pipeline.verification import UNNAMED, repairs

Level = Literal["none", "ok", "unknown", "warning", "critical"]
"""`none`: not checked; `unknown`: nothing is known, although it should be checked."""
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
Check = Literal["batch", "lag", "verify", "audit"]
CHECKS: Final[tuple[Check, ...]] = get_args(Check)
NOT_COMPARED: Final = "not compared: cluster.cql is not configured"
STALE: Final = timedelta(days=3)
"""Age at which a report of a check says nothing any more, as in the alert rules."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a pipeline is held to: its limits, its rules for what is published, and whether it publishes, runs a session,
    reads the cluster, and schedules checks. `config`: its YAML, as commands name it."""

    limits: WatchConfig = field(default_factory=WatchConfig)
    publishes: bool = True
    session: bool = False
    cql: bool = False
    verify: bool = False
    audit: bool = False
    config: str = UNNAMED
    rules: Rules = NO_RULES

    @classmethod
    def of(cls, config: PipelineConfig, path: str = UNNAMED) -> Self:
        airflow, cql = config.airflow, config.cluster.cql is not None
        return cls(
            limits=airflow.watch,
            publishes=config.kafka is not None or config.files is not None,
            session=airflow.mode == "session",
            cql=cql,
            verify=cql and airflow.verify_schedule is not None,
            audit=airflow.audit_schedule is not None,
            config=path,
            rules=config.rules or NO_RULES,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """`view`: the view of the page that shows the reason, below the pipeline's path; empty: the first view."""

    level: Level
    text: str
    view: str = ""

    @property
    def rank(self) -> int:
        return LEVELS.index(self.level)


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A captured table. `until`: up to when it is complete; None: unknown."""

    name: str
    findings: Mapping[Check, Finding]
    until: datetime | None

    @property
    def worst(self) -> Finding:
        """The finding that decides; of equal ones, the first by the order of `CHECKS`."""
        return max(self.findings.values(), key=lambda finding: finding.rank)

    @property
    def level(self) -> Level:
        return self.worst.level


@dataclass(frozen=True, slots=True)
class Health:
    """`problems`: those that concern no single table, the worst first. `tables`: the worst first."""

    problems: tuple[Finding, ...]
    tables: tuple[TableHealth, ...]

    @property
    def level(self) -> Level:
        """The worst of all."""
        found = [*(problem.rank for problem in self.problems), *(table.worst.rank for table in self.tables)]
        return LEVELS[max(found)] if found else "unknown"

    def to_document(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "problems": [_document(problem) for problem in self.problems],
            "tables": [
                {
                    "table": table.name,
                    "level": table.level,
                    "complete_until": None if table.until is None else table.until.isoformat(),
                    **{check: _document(finding) for check, finding in table.findings.items()},
                }
                for table in self.tables
            ],
        }


def health(batches: Batches, seen: Overview, expected: Expected) -> Health:
    """The health by one look at the bucket and the last reports of the checks."""
    found = troubles(
        batches,
        seen.with_late_nodes(batches),
        expected.limits,
        publishes=expected.publishes,
        session=expected.session,
        rules=expected.rules,
    )
    names = [table.name for table in seen.tables.captured]
    compared, audited = seen.tables.compared, checks.audited(batches, names)
    late = [trouble for trouble in found if trouble.key.startswith("late ")]
    of_tables = [
        TableHealth(
            table.name,
            {
                "batch": _batch(table, seen.tables, seen.ring, found),
                "lag": _lag(table.name, seen.until, seen.ring.now, expected.limits, late),
                "verify": _verified(table.name, compared.get(table.name), seen, expected),
                "audit": _audited(audited.get(table.name), seen.ring.now, scheduled=expected.audit),
            },
            None if seen.until is None else _until(table.name, seen.until),
        )
        for table in seen.tables.captured
    ]
    problems = [
        *_held(seen.ring),
        *_unchecked(batches, expected.rules),
        *(Finding(each.severity, each.text, each.view) for each in found if not each.table),
    ]
    return Health(
        tuple(sorted(problems, key=lambda problem: -problem.rank)),
        tuple(sorted(of_tables, key=lambda table: (-table.worst.rank, table.name))),
    )


def _unchecked(batches: Batches, rules: Rules) -> Iterable[Finding]:
    if unmatched_rules(batches, rules) is None:
        yield Finding("unknown", "the rules of `columns` are not checked yet: no table of the cluster is known", "tables")


def _held(found: RingStatus) -> Iterable[Finding]:
    if found.held:
        many = len(found.held) > 1
        text = f"{len(found.held)} segment{'s' if many else ''} in quarantine need{'' if many else 's'} an operator"
        yield Finding("warning", text, "segments?" + urlencode({"state": "quarantined"}))


def _batch(table: TableStatus, about: TablesStatus, found: RingStatus, problems: Iterable[Trouble]) -> Finding:
    """Whether the table came through the last batch, and its events to Kafka."""
    name, view = table.name, f"tables#{quote(table.name)}"
    if name in about.refused:
        return Finding("warning", f"rejected: {about.refused[name]}", view)
    if name in about.waiting:
        waits = about.waiting[name]
        return Finding("warning", f"events since batch {waits.sent} cannot be published: {waits.reason or 'see cdc_publish'}", view)
    if name in about.not_in_log:
        return Finding("critical", about.missing(name), view)
    if (behind := next((each for each in problems if each.table == name), None)) is not None:
        return Finding(behind.severity, f"events of {table.unpublished} batches are not in Kafka", behind.view)
    if not found.batches:
        return Finding("unknown", "no batch is sealed yet", "batches")
    last = found.batches[0]
    account = next((account for account in last.accounting if account.table == name), None)
    view = f"batches/{last.number}"
    if account is not None and account.quarantined:
        return Finding("warning", f"{account.quarantined} updates of batch {last.number} are in quarantine", view)
    events = account.events if account is not None else 0
    return Finding("ok", f"batch {last.number}, {span((found.now - last.sealed_at).total_seconds())} ago: {events} events", view)


def _until(name: str, until: CompleteUntil) -> datetime | None:
    held = until.held.get(name)
    return until.tables if held is None else held.until


def _lag(name: str, until: CompleteUntil | None, now: datetime, limits: WatchConfig, late: list[Trouble]) -> Finding:
    """Whether the table is complete up to a recent time. Without sign-offs of nodes, whether one is late."""
    if until is None:
        if late:
            return Finding("warning", f"{len(late)} node{'s are' if len(late) > 1 else ' is'} late", late[0].view)
        return Finding("ok", "no node is late; nodes without sign-offs: complete up to an unknown time")
    held = until.held.get(name)
    by = until.by if held is None else held.by
    view = "segment?" + urlencode({"name": by}) if by is not None and not by.startswith("nodes/") else ""
    at = _until(name, until)
    reason = until.reason if held is None else f"held by {held.by}"
    if at is None:
        return Finding("unknown", f"complete up to an unknown time; {reason}", view)
    behind = (now - at).total_seconds()
    text = f"complete up to {at:%Y-%m-%d %H:%M:%S}Z, {span(behind)} ago"
    if limits.complete_minutes is not None and behind > 60 * limits.complete_minutes:
        return Finding("warning", f"{text}; {reason}", view)
    return Finding("ok", text)


def _verified(name: str, found: Comparison | None, seen: Overview, expected: Expected) -> Finding:
    view = "checks" if found is None else _report(found.report)
    if found is not None and found.drift:
        command, *more = repairs(name, ((each.start, each.end) for each in found.drift), expected.config)
        text = f"{found.drift_rows} rows differ from the cluster; to repair: {command}"
        return Finding("critical", text + (f" (and {len(more)} more token ranges)" if more else ""), view)
    if found is not None and found.trouble:
        return Finding("warning", f"could not be compared: {found.trouble}", view)
    if found is None or found.complete is None:
        return _never_compared(name, found, seen.tables, expected, view)
    good = f"equal to the cluster, completely compared {found.complete.finished_at:%Y-%m-%d}"
    return _age(good, "compared", found.at, view, seen.ring.now)


def _never_compared(name: str, found: Comparison | None, tables: TablesStatus, expected: Expected, view: str) -> Finding:
    if not expected.cql:
        return Finding("none", NOT_COMPARED, view)
    if name in tables.apart:
        return Finding("none", "not compared: its writes reach no commit log", view)
    text = "never compared with the cluster"
    if found is not None and found.share:
        text += f" completely, {found.share:.0%} so far"
    remedy = "the next run of cdc_verify compares it once its first reading is ingested" if expected.verify else "trigger cdc_verify"
    return Finding("unknown", f"{text}: {remedy}", view)


def _audited(found: TableCheck | None, now: datetime, *, scheduled: bool) -> Finding:
    if found is None:
        return Finding("unknown" if scheduled else "none", "the logs of the replicas were never compared: trigger cdc_audit", "checks")
    if found.bad:
        return Finding("warning", f"{found.bad} gaps in the logs of replicas that nothing explains", _report(found.name))
    return _age("no unexplained gap", "audited", found.finished_at, _report(found.name), now)


def _age(good: str, done: str, at: datetime, view: str, now: datetime) -> Finding:
    age = now - at
    if age > STALE:
        return Finding("warning", f"last {done} {span(age.total_seconds())} ago", view)
    return Finding("ok", f"{good}, {done} {span(age.total_seconds())} ago", view)


def _report(name: str) -> str:
    return "checks/report?" + urlencode({"name": name})


def _document(finding: Finding) -> dict[str, str]:
    return {"level": finding.level, "text": finding.text, "view": finding.view}
