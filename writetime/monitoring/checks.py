"""Results of verification and audit, newest first.

Strategy: a report never changes, so its summary is cached; a list reads only new reports. Differing rows are
summarized by table and count: only users who may see values see their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from heapq import nlargest
from typing import Final, Literal

from pydantic import ValidationError

from writetime.errors import ObjectNotFound
from writetime.pipeline import audit, verification
from writetime.pipeline.audit import AuditReport
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.verification import VerifyReport
from writetime.storage import layout
from writetime.storage.concurrency import at_once

Kind = Literal["verify", "audit"]
Report = VerifyReport | AuditReport

SHOWN: Final = 15
"""Reports of each kind in a list."""


@dataclass(frozen=True, slots=True)
class Check:
    """Summary of a report. `name`: its object; `about`: what was checked; `says`: what was found."""

    kind: Kind
    name: str
    finished_at: datetime | None
    ok: bool
    about: str
    says: str


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What the last audit says of a table. `name`: the report; `bad`: gaps that nothing explains."""

    name: str
    finished_at: datetime
    bad: int


@dataclass(frozen=True, slots=True)
class Held:
    """Mutations of a node by the last audit, per time step: how many its log should hold, and how many it
    held."""

    node: str
    expected: tuple[int, ...]
    held: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completeness:
    """Completeness of the replicas' logs by the last audit, in steps of `minutes` from `start`. `name`: the
    report."""

    name: str
    start: datetime
    minutes: int
    nodes: tuple[Held, ...]


def checks(batches: Batches) -> list[Check]:
    """The last reports of both kinds, newest first."""
    wanted = [*_last(batches, "verify", SHOWN), *_last(batches, "audit", SHOWN)]
    found = at_once(lambda name: _in_short(batches, name), wanted)
    return sorted(found, key=lambda check: check.name.rpartition("/")[2], reverse=True)


def audited(batches: Batches, wanted: Iterable[str]) -> dict[str, TableCheck]:
    """For each of the tables, the unexplained gaps by the last audit; empty if there is none. An audit covers
    all tables that were written to."""
    name = next(iter(_last(batches, "audit", 1)), None)
    found = None if name is None else _alarms_in(batches, name)
    return {} if found is None or name is None else {table: TableCheck(name, found[0], found[1].get(table, 0)) for table in wanted}


def report(batches: Batches, name: str) -> Report | None:
    """The report of that name; None if it does not exist or the name is not a report name."""
    kind = _kind(batches, name)
    if kind is None:
        return None
    return VerifyReport.read(batches.store, name) if kind == "verify" else AuditReport.read(batches.store, name)


def text(found: Report, *, keys: bool) -> str:
    """A report as text; without `keys`, row keys are left out."""
    if isinstance(found, AuditReport):
        return audit.report_text(found)
    return verification.report_text(found) if keys else verification.in_short(found)


def picture(found: Report) -> str:
    """A report's chart as SVG, for a page with its own style sheet."""
    return audit.picture(found, styled=False) if isinstance(found, AuditReport) else verification.picture(found, styled=False)


def completeness(batches: Batches) -> Completeness | None:
    """Completeness by the last audit; None if there is no audit or it has no steps."""
    name = next(iter(_last(batches, "audit", 1)), None)
    return None if name is None else _completeness(batches, name)


@lru_cache(maxsize=64)
def _completeness(batches: Batches, name: str) -> Completeness | None:
    try:
        found = AuditReport.read(batches.store, name)
    except ValidationError:
        return None
    if found is None or not found.step:
        return None
    nodes = [Held(n.address or n.host_id, tuple(n.expected_by_step), tuple(n.held_by_step)) for n in found.nodes]
    return Completeness(name, found.start, found.step, tuple(nodes))


def _kind(batches: Batches, name: str) -> Kind | None:
    """The kind of a report by its name; None if the name is not a report name."""
    kinds: tuple[Kind, ...] = ("verify", "audit")
    return next((kind for kind in kinds if name.startswith(_prefix(batches, kind)) and name.endswith(".json")), None)


def _prefix(batches: Batches, kind: Kind) -> str:
    return layout.verify_prefix(batches.cluster) if kind == "verify" else layout.audit_prefix(batches.cluster)


def _last(batches: Batches, kind: Kind, count: int) -> Iterator[str]:
    found = (info.name for info in batches.store.names(_prefix(batches, kind)) if info.name.endswith(".json"))
    yield from nlargest(count, found)


@lru_cache(maxsize=512)
def _in_short(batches: Batches, name: str) -> Check:
    kind = _kind(batches, name) or "verify"
    try:
        found = report(batches, name)
    except (ValidationError, ObjectNotFound) as error:
        return Check(kind, name, None, False, "", f"cannot be read: {type(error).__name__}")
    if found is None:
        return Check(kind, name, None, False, "", "was deleted")
    if isinstance(found, VerifyReport):
        return Check("verify", name, found.finished_at, found.ok, _compared(found), _found(found))
    says = f"{found.alarms} alarms, {len(found.gaps)} gaps" if found.gaps else "no gap"
    again = sum(each.frames for each in found.reread)
    says += f"; read again: {again} rows were missing" if found.reread else ""
    return Check("audit", name, found.finished_at, found.ok, f"{found.start:%m-%d %H:%M}Z to {found.end:%m-%d %H:%M}Z", says)


@lru_cache(maxsize=64)
def _alarms_in(batches: Batches, name: str) -> tuple[datetime, Counter[str]] | None:
    """When an audit finished, and its unexplained gaps by table; None if it cannot be read."""
    try:
        found = AuditReport.read(batches.store, name)
    except ValidationError:
        return None
    return None if found is None else (found.finished_at, Counter(gap.table for gap in found.gaps if gap.verdict == "alarm"))


def _compared(found: VerifyReport) -> str:
    topics = f"; {len(found.topics)} topics, {sum(topic.keys for topic in found.topics):,} keys" if found.topics else ""
    return f"{len(found.tables)} tables, {found.share:.0%} of the tokens, {sum(table.rows for table in found.tables):,} rows{topics}"


def _found(found: VerifyReport) -> str:
    failed = sum(bool(table.trouble) for table in found.tables)
    not_read = sum(bool(topic.trouble) for topic in found.topics)
    parts = [
        f"drift in {found.drift} rows" if found.drift else "",
        f"{failed} tables could not be compared" if failed else "",
        f"{not_read} topics could not be compared" if not_read else "",
        f"{ties} rows tie" if (ties := sum(table.ties for table in found.tables)) else "",
        f"{sum(table.unsettled for table in found.tables)} rows unsettled" if any(table.unsettled for table in found.tables) else "",
    ]
    return "; ".join(part for part in parts if part) or "equal"
