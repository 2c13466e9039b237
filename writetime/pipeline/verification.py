"""Are the tables what the ring answers? What may differ for a while, what must not, and the report of it. No driver, no Spark.

Strategy: a row is compared as a document that both sides come to: values, writetimes, expiries (`Shown`). The tables are as of a batch, the
ring is as of now, so a difference counts only when it cannot be of what is still on its way. Its *evidence* is the writetime that the ring
itself shows for what differs; where the ring shows nothing (a tombstone has no writetime in CQL), it is the moment when the ring was read.
Evidence older than the *horizon* is **drift**: all that was written up to there is in the tables. All else is **unsettled**, and is looked
at again when the horizon has moved past the moment of the first look. Where Cassandra 3.11 itself decides by its clock between cells of
equal timestamp (`writetime.cassandra.merge.reconcile`), the row is a **tie**.

The horizon: of each node the time at which it finished the last of its segments that a batch has taken in, and of these the earliest.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import Field

from writetime.cassandra.merge.liveness import is_live, is_live_cell
from writetime.cassandra.model import Row
from writetime.charts import Cell, Line, State, svg, text_table
from writetime.errors import ConfigError
from writetime.pipeline.completeness import node_ends
from writetime.pipeline.documents import Document
from writetime.pipeline.planner import history
from writetime.storage import layout
from writetime.storage.store import Store

Range = tuple[int, int]
"""Tokens > start and <= end."""
Json = Any
Verdict = Literal["drift", "unsettled", "tie"]
Kind = Literal["row missing", "row too many", "row twice", "value", "writetime", "expiry"]

CLOCKS: Final = 10
"""Seconds within which two expiries are one: the ring says how many are left, not when."""
EVER: Final = 2**63 - 1
"""A horizon for a ring at rest of which everything is known to be in."""
_LOWEST: Final = -(2**63)
_RING: Final = 2**64


# --- rows ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """A row as one side shows it, of what is not null: plain values (see `plain`), writetimes (µs) and expiries (s), by CQL name."""

    values: dict[str, Json]
    writetime: dict[str, int] = field(default_factory=dict)
    expires_at: dict[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return json.dumps([self.values, self.writetime, self.expires_at], sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, document: bytes) -> Shown:
        return cls(*json.loads(document))


def plain(value: Any) -> Json:
    """A value as JSON has it, from what Arrow takes (`writetime.events.arrow.to_arrow_value`). Fields of structs that are null are left
    out: a user type that has grown has them in new rows only."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items() if inner is not None}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def one_spelling(number: str) -> str:
    """The same text for decimals of equal value: as clusterings 1.0 and 1.00 are one row, and each replica may show its own."""
    sign, digits, exponent = Decimal(number).as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{significant}e{int(exponent) + len(digits) - len(significant)}" if significant else "0"


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared of a table. `columns`: all but the key; `elements`: those of them with a cell per element, of which a part may have
    gone without a trace; `untold`: those of which the ring (before 5.0) or the table tells no writetime and no expiry."""

    columns: frozenset[str]
    elements: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """`evidence` (µs): see the module. None: the ring shows none, so the moment of looking is meant."""

    kind: Kind
    column: str
    evidence: int | None


def differences(compared: Compared, ring: Shown | None, ours: Shown | None, now: int) -> list[Difference]:
    """How a row differs; of a column that differs in several ways the first. `now` (s): the ring's clock when it answered."""
    if ring is None:
        return [] if ours is None or _gone_by(compared, ours, now) else [Difference("row too many", "", None)]
    if ours is None:
        # Whatever of a row is old enough ought to be there, and the row with it.
        return [Difference("row missing", "", min(ring.writetime.values(), default=None))]
    found = (_column(compared, name, ring, ours, now) for name in sorted(compared.columns))
    return [difference for difference in found if difference is not None]


def _gone_by(compared: Compared, ours: Shown, now: int) -> bool:
    """Whether all that the row has was to expire by now: the next batch tells of it."""
    held = compared.columns & ours.values.keys()
    return bool(held) and all(ours.expires_at.get(name, EVER) <= now + CLOCKS for name in held)


def _column(compared: Compared, name: str, ring: Shown, ours: Shown, now: int) -> Difference | None:
    evidence = None if name in compared.elements else ring.writetime.get(name)
    theirs, mine = ring.values.get(name), ours.values.get(name)
    if json.dumps(theirs) != json.dumps(mine):
        expired = ours.expires_at.get(name, EVER) <= now + CLOCKS
        return None if expired and (theirs is None or name in compared.elements) else Difference("value", name, evidence)
    if name in compared.untold or theirs is None:
        return None
    if ring.writetime.get(name) != ours.writetime.get(name):
        return Difference("writetime", name, evidence)
    if not _same_expiry(ring.expires_at.get(name), ours.expires_at.get(name)):
        return Difference("expiry", name, evidence)
    return None


def _same_expiry(theirs: int | None, mine: int | None) -> bool:
    return theirs == mine if theirs is None or mine is None else abs(theirs - mine) <= CLOCKS


def verdict(found: Sequence[Difference], looked_at: int, before: int) -> Verdict:
    """Of a row's differences; `looked_at` (µs): when it was first seen to be so, `before` (µs): the horizon, less a margin."""
    return "drift" if any((looked_at if each.evidence is None else each.evidence) <= before for each in found) else "unsettled"


# --- what is read -------------------------------------------------------------------------------------------------------------------


def sampled(ranges: Sequence[Range], share: float, seed: int) -> list[Range]:
    """Some of the ranges, in order, at least one: the same for the same seed. ConfigError for a share that is none."""
    if not 0 < share <= 1:
        raise ConfigError("a share is more than 0 and at most 1", operation="choose token ranges", obj=str(share))
    count = max(1, round(len(ranges) * share))
    return sorted(random.Random(seed).sample(list(ranges), count)) if count < len(ranges) else list(ranges)  # noqa: S311 - no secret


def horizon(store: Store, cluster: str) -> int | None:
    """What was written up to then (µs) is in the tables, as far as nodes ship at all; None if that cannot be said."""
    ends = node_ends(store, cluster, history(store, cluster).sealed)
    return min((int(at.timestamp() * 1_000_000) for at in ends.values()), default=None)


def may_be_ties(found: Sequence[Difference], ring: Shown | None, elements: frozenset[str]) -> bool:
    """Whether the ring only shows less of a row than the table does; `elements` are the columns with a cell per element."""

    def is_less(each: Difference) -> bool:
        lacks = ring is not None and (each.column not in ring.values or each.column in elements)
        return each.kind == "row too many" or (each.kind == "value" and lacks)

    return all(map(is_less, found))


def are_ties(found: Sequence[Difference], own: Row | None, static: Row | None, now: int) -> bool:
    """Whether a ring of Cassandra 3.11 may show so much less of a row: what it lacks are cells that won a tie against one that has expired
    since. `own` and `static` are the row and its partition's static row in the state; of static content that stands alone both are that."""
    tied = {cell.column for row in (own, static) if row is not None for cell in row.cells if cell.tied}
    stands = own is None or is_live(own.liveness, now) or any(is_live_cell(cell, now) and not cell.tied for cell in own.cells)
    return all(not stands if each.kind == "row too many" else each.column in tied for each in found)


# --- the report ---------------------------------------------------------------------------------------------------------------------


class Finding(Document):
    """A row that differs. `key`: its primary key as JSON, by column. Values are told only where that was asked for."""

    key: str
    token: int
    verdict: Verdict
    differences: list[tuple[Kind, str]] = Field(description="How it differs, and in which column.")
    first_seen: datetime
    ring: Json = Field(default=None, description="What the ring shows; null unless values were asked for.")
    ours: Json = Field(default=None, description="What the table holds; null unless values were asked for.")


class RangeResult(Document):
    """A token range that was compared."""

    start: int
    end: int
    rows: int = Field(default=0, description="Rows that either side shows.")
    drift: int = 0
    unsettled: int = 0
    tie: int = Field(default=0, description="Rows that Cassandra 3.11 itself shows one way or the other, by its clock.")


class TableResult(Document):
    """`snapshot`: the Iceberg snapshot that was compared. `trouble`: why the table could not be compared; empty if it was."""

    table: str
    table_id: UUID
    snapshot: int | None = None
    ranges: list[RangeResult] = Field(default=[], description="Those that were compared, in their order.")
    findings: list[Finding] = Field(default=[], description="The first so many; the ranges count all.")
    trouble: str = ""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.ranges)

    @property
    def drift(self) -> int:
        return sum(each.drift for each in self.ranges)

    @property
    def unsettled(self) -> int:
        return sum(each.unsettled for each in self.ranges)

    @property
    def ties(self) -> int:
        return sum(each.tie for each in self.ranges)


class VerifyReport(Document):
    """One comparison of tables with the ring. `horizon`: what was written up to then had to be equal; null: that could not be said."""

    cluster: str
    started_at: datetime
    finished_at: datetime
    batch: int = Field(description="The last batch that was sealed when the tables were looked at last.")
    horizon: datetime | None
    consistency: str
    share: float = Field(description="Share of the token ranges that were compared.")
    seed: int
    at_rest: bool = Field(default=False, description="Nobody wrote, and all was in: whatever differed was drift.")
    waiting: list[str] = Field(default=[], description="Segments that wait for a person: what they hold is not in the tables.")
    tables: list[TableResult]

    @property
    def drift(self) -> int:
        return sum(table.drift for table in self.tables)

    @property
    def ok(self) -> bool:
        return not self.drift and not any(table.trouble for table in self.tables)

    @property
    def name(self) -> str:
        return layout.verify_report(self.cluster, self.started_at)


def write_report(store: Store, report: VerifyReport) -> str:
    """Put the report and its picture into the bucket; the report's name."""
    store.put(report.name, report.to_bytes())
    store.put(f"{report.name.removesuffix('.json')}.svg", picture(report).encode())
    return report.name


def in_short(report: VerifyReport) -> str:
    """A few lines for whoever is told of it, without a key of any row, and where the whole is."""
    lines = []
    for table in report.tables:
        if table.trouble:
            lines.append(f"{table.table} could not be compared: {table.trouble}")
        elif table.drift:
            lines.append(f"{table.table}: drift in {table.drift} of {table.rows} rows")
    return "\n".join((f"{report.drift} rows are not what the ring has", *lines, f"Report and picture: {report.name}"))


def report_text(report: VerifyReport) -> str:
    """The report for people: a table, then rows that differ."""
    rows = [
        (
            table.table,
            len(table.ranges),
            table.rows,
            table.drift,
            table.unsettled,
            table.ties,
            table.trouble or ("DRIFT" if table.drift else "equal"),
        )
        for table in report.tables
    ]
    grid = text_table(("table", "ranges", "rows", "drift", "unsettled", "ties", ""), rows)
    return "\n".join([grid, *_about(report), *_lines(report)])


def picture(report: VerifyReport, *, styled: bool = True) -> str:
    """An SVG: a line a table, its token ranges from left to right."""
    lines = []
    for table in report.tables:
        cells = [Cell((r.start - _LOWEST) / _RING, (r.end - r.start) / _RING, _state(r), _title(r)) for r in table.ranges]
        lines.append(Line(table.table, cells, table.trouble))
    title = f"{report.cluster}, {report.started_at:%Y-%m-%d %H:%M:%S}Z: tables against the ring, by token"
    return svg(title, lines, styled=styled)


def _state(found: RangeResult) -> State:
    return "bad" if found.drift else "doubtful" if found.unsettled or found.tie else "good"


def _title(found: RangeResult) -> str:
    return f"({found.start}, {found.end}]: {found.rows} rows, {found.drift} drift, {found.unsettled} unsettled, {found.tie} ties"


def _about(report: VerifyReport) -> Iterator[str]:
    if report.at_rest:
        until = "nobody writes, and all is in"
    else:
        until = "nothing is known to be in" if report.horizon is None else f"written up to {report.horizon:%Y-%m-%d %H:%M:%S}Z"
    yield f"batch {report.batch}, {until}; read at {report.consistency}, share {report.share:g}, seed {report.seed}"
    yield from (f"waits for a person: {name}" for name in report.waiting)


def _lines(report: VerifyReport) -> Iterator[str]:
    for table in report.tables:
        for finding in table.findings:
            told = ", ".join(f"{kind} {column}".strip() for kind, column in finding.differences)
            yield f"{finding.verdict} {table.table} {finding.key}: {told}"


def identity(ring: bytes | None, ours: bytes | None) -> str:
    """What stays the same as long as a difference does."""
    digest = hashlib.blake2b(digest_size=16)
    for document in (ring, ours):
        digest.update(b"-" if document is None else b"+%d:" % len(document) + document)
    return digest.hexdigest()


def moment(microseconds: int | None) -> datetime | None:
    """As a time in UTC; None for none, and for `EVER`."""
    return None if microseconds is None or microseconds >= EVER else datetime.fromtimestamp(microseconds / 1_000_000, UTC)
