"""Compare the tables with the cluster, and topics with the tables: which differences may exist for a while and which may not, and the
report. No driver, no Spark.

Strategy: a row is compared as a document of values, writetimes and expiries (`Shown`) that both sides can
produce. The tables are as of a batch and the cluster is as of now, so a difference counts only if it cannot
be data in transit. Its *evidence* is the writetime that the cluster shows for the difference; where the
cluster shows none (CQL has no writetime for a tombstone), it is the time at which the cluster was read.
Evidence older than the *horizon* is **drift**, because everything written before the horizon is in the
tables. All else is **unsettled**, and is checked again once the horizon has passed the time of the first
check. Where Cassandra 3.11 itself chooses by its clock between cells of equal timestamp
(`writetime.cassandra.merge.reconcile`), the row is a **tie**.

The horizon for writetimes: for each node, the time at which it finished its last ingested segment; the earliest
of these. Clocks of clients, which make writetimes, are not compared with anything later. The horizon for the
time of a check is the time up to which the table is complete (`writetime.pipeline.watermark`): it advances while
nobody writes and no segment is finished. Without sign-offs of the nodes, it is the first horizon.
"""

from __future__ import annotations

import hashlib
import json
import random
import shlex
from collections.abc import Iterable, Iterator, Sequence
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
from writetime.pipeline.bootstrap.run import HIGHEST, LOWEST, Range, joined
from writetime.pipeline.completeness import node_ends
from writetime.pipeline.documents import Document, Sealed, Watermark
from writetime.storage import layout
from writetime.storage.store import Store

Json = Any
Verdict = Literal["drift", "unsettled", "tie"]
Kind = Literal["row missing", "row too many", "row twice", "value", "writetime", "expiry"]
TopicKind = Literal["record missing", "record too many", "value"]

CLOCKS: Final = 10
"""Seconds by which two equal expiries may differ: the cluster reports the remaining time, not the moment."""
EVER: Final = 2**63 - 1
"""A horizon for a cluster without writes of which everything is ingested."""
UNNAMED: Final = "…"
"""In a command, where the pipeline's YAML is not known."""
_MOST_COMMANDS: Final = 5
"""Token ranges that are repaired one by one; of more, the whole table is read."""
_RING: Final = 2**64


# --- rows


@dataclass(frozen=True, slots=True)
class Shown:
    """A row as one side shows it, without nulls: plain values (see `plain`), writetimes (µs) and expiries
    (s), by CQL name."""

    values: dict[str, Json]
    writetime: dict[str, int] = field(default_factory=dict)
    expires_at: dict[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return json.dumps([self.values, self.writetime, self.expires_at], sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, document: bytes) -> Shown:
        return cls(*json.loads(document))


def plain(value: Any) -> Json:
    """A value as JSON, from a value for Arrow (`writetime.events.arrow.to_arrow_value`). Null fields of
    structs are left out: after a user type has got a new field, only new rows have it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items() if inner is not None}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def one_spelling(number: str) -> str:
    """The same text for decimals of equal value: a column of numbers has one scale for all."""
    sign, digits, exponent = Decimal(number).as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{significant}e{int(exponent) + len(digits) - len(significant)}" if significant else "0"


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared of a table. `columns`: all but the key; `elements`: columns with a cell per element,
    which may lose elements without a trace; `untold`: columns for which the cluster (before 5.0) or the
    table has no writetime and expiry."""

    columns: frozenset[str]
    elements: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """`evidence` (µs): see the module. None: the cluster shows none, so the time of the check counts."""

    kind: Kind
    column: str
    evidence: int | None


def differences(compared: Compared, ring: Shown | None, ours: Shown | None, now: int) -> list[Difference]:
    """The differences of a row, at most one per column. `now` (s): the cluster's clock when it answered."""
    if ring is None:
        return [] if ours is None or _gone_by(compared, ours, now) else [Difference("row too many", "", None)]
    if ours is None:
        # If any value of the row is old enough, the row should exist.
        return [Difference("row missing", "", min(ring.writetime.values(), default=None))]
    found = (_column(compared, name, ring, ours, now) for name in sorted(compared.columns))
    return [difference for difference in found if difference is not None]


def _gone_by(compared: Compared, ours: Shown, now: int) -> bool:
    """Whether all values of the row have expired by now: the next batch reports that."""
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


@dataclass(frozen=True, slots=True)
class Horizon:
    """Up to when everything is in the tables (µs), less a margin for clocks; -1: unknown. `written`: by
    writetime; `logged`: by the time at which the cluster was read."""

    written: int
    logged: int


AT_REST: Final = Horizon(EVER, EVER)


def verdict(found: Sequence[Difference], looked_at: int, horizon: Horizon) -> Verdict:
    """The verdict on a row. `looked_at` (µs): when the difference was first seen."""
    is_written = any(each.evidence is not None and each.evidence <= horizon.written for each in found)
    return "drift" if is_written or looked_at <= horizon.logged else "unsettled"


# --- what is read


def sampled(ranges: Sequence[Range], share: float, seed: int) -> list[Range]:
    """A sample of the ranges, in order, at least one; the same for the same seed. ConfigError for an invalid
    share."""
    if not 0 < share <= 1:
        raise ConfigError("the share must be greater than 0 and at most 1", operation="choose token ranges", obj=str(share))
    count = max(1, round(len(ranges) * share))
    return sorted(random.Random(seed).sample(list(ranges), count)) if count < len(ranges) else list(ranges)  # noqa: S311 - no secret


def written_until(store: Store, cluster: str, sealed: Sealed | None) -> datetime | None:
    """Everything written up to then by nodes that ship is in the tables; None if unknown."""
    return min(node_ends(store, cluster, sealed).values(), default=None)


def horizon(written: datetime | None, complete: Watermark, table_id: UUID, margin_seconds: float) -> Horizon:
    """The horizon of a table by `written_until` and by the time up to which the tables are complete."""
    is_known = complete.until is not None
    return Horizon(_less(written, margin_seconds), _less(complete.of(table_id) if is_known else written, margin_seconds))


def _less(at: datetime | None, seconds: float) -> int:
    return -1 if at is None else int((at.timestamp() - seconds) * 1_000_000)


def may_be_ties(found: Sequence[Difference], ring: Shown | None, elements: frozenset[str]) -> bool:
    """Whether the cluster only shows less of a row than the table; `elements` are the columns with a cell
    per element."""

    def is_less(each: Difference) -> bool:
        lacks = ring is not None and (each.column not in ring.values or each.column in elements)
        return each.kind == "row too many" or (each.kind == "value" and lacks)

    return all(map(is_less, found))


def are_ties(found: Sequence[Difference], own: Row | None, static: Row | None, now: int) -> bool:
    """Whether a Cassandra 3.11 cluster may show that much less of a row: the missing cells won a tie against
    a cell that has expired since. `own` and `static` are the row and its partition's static row in the
    state; for static content without a row both are the same."""
    tied = {cell.column for row in (own, static) if row is not None for cell in row.cells if cell.tied}
    stands = own is None or is_live(own.liveness, now) or any(is_live_cell(cell, now) and not cell.tied for cell in own.cells)
    return all(not stands if each.kind == "row too many" else each.column in tied for each in found)


# --- the report


class Finding(Document):
    """A row that differs. `key`: its primary key as JSON, by column. Values are included only on request."""

    key: str
    token: int
    verdict: Verdict
    differences: list[tuple[Kind, str]] = Field(description="How it differs, and in which column.")
    first_seen: datetime
    ring: Json = Field(default=None, description="What the cluster shows; null unless values were requested.")
    ours: Json = Field(default=None, description="What the table holds; null unless values were requested.")


class RangeResult(Document):
    """A token range that was compared."""

    start: int
    end: int
    rows: int = Field(default=0, description="Rows of either side.")
    drift: int = 0
    unsettled: int = 0
    tie: int = Field(default=0, description="Rows that Cassandra 3.11 itself shows differently depending on its clock.")


class TableResult(Document):
    """`snapshot`: the compared Iceberg snapshot. `trouble`: why the table could not be compared; empty if it
    was."""

    table: str
    table_id: UUID
    snapshot: int | None = None
    ranges: list[RangeResult] = Field(default=[], description="The compared ranges, in order.")
    findings: list[Finding] = Field(default=[], description="Limited to the first findings; the ranges count all.")
    trouble: str = ""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.ranges)

    @property
    def drift(self) -> int:
        return sum(each.drift for each in self.ranges)

    @property
    def drifting(self) -> list[Range]:
        """The ranges with drift."""
        return [(each.start, each.end) for each in self.ranges if each.drift]

    @property
    def unsettled(self) -> int:
        return sum(each.unsettled for each in self.ranges)

    @property
    def ties(self) -> int:
        return sum(each.tie for each in self.ranges)


def both(earlier: TableResult | None, later: TableResult, most_findings: int) -> TableResult:
    """The results of two comparisons of one table."""
    if earlier is None:
        return later
    found = [*earlier.findings, *later.findings][:most_findings]
    return later.model_copy(update={"ranges": sorted([*earlier.ranges, *later.ranges], key=lambda each: each.start), "findings": found})


def share_of(results: Sequence[TableResult]) -> float:
    """The share of the ring that was compared, on an average."""
    compared = sum(each.end - each.start for result in results for each in result.ranges)
    return compared / (_RING * len(results)) if results else 0.0


class TopicFinding(Document):
    """A key whose last record and row differ. `key`: the record's key as JSON. Rows are included only on
    request."""

    key: str
    verdict: Literal["drift", "unsettled"]
    kind: TopicKind
    columns: list[str] = Field(default=[], description="Those that differ, if both sides have the row.")
    in_topic: Json = Field(default=None, description="The row by the topic; null unless values were requested.")
    in_table: Json = Field(default=None, description="The row of the table; null unless values were requested.")


class TopicResult(Document):
    """A topic that was compared with its table of current rows, at `snapshot`. `keys`: those of either side, of the
    sample. `trouble`: why it could not be compared."""

    topic: str
    table: str
    snapshot: int | None = None
    keys: int = 0
    drift: int = 0
    unsettled: int = 0
    findings: list[TopicFinding] = Field(default=[], description="Limited to the first findings; the counts are of all.")
    trouble: str = ""


class VerifyReport(Document):
    """One comparison of tables with the cluster, and of topics with tables. `horizon`: everything written up to then had to be equal;
    null: unknown."""

    cluster: str
    started_at: datetime
    finished_at: datetime
    batch: int = Field(description="The last sealed batch when the tables were last read.")
    horizon: datetime | None
    consistency: str
    share: float = Field(description="Share of the token ranges that were compared.")
    seed: int
    at_rest: bool = Field(default=False, description="There were no writes and everything was ingested: every difference was drift.")
    waiting: list[str] = Field(default=[], description="Held segments: their content is not in the tables.")
    tables: list[TableResult]
    topics: list[TopicResult] = Field(default=[], description="Compared topics; empty unless they were asked for.")

    @property
    def results(self) -> list[TableResult | TopicResult]:
        return [*self.tables, *self.topics]

    @property
    def drift(self) -> int:
        return sum(each.drift for each in self.results)

    @property
    def ok(self) -> bool:
        return not self.drift and not any(each.trouble for each in self.results)

    @property
    def name(self) -> str:
        return layout.verify_report(self.cluster, self.started_at)


def write_report(store: Store, report: VerifyReport) -> str:
    """Write the report and its chart to the bucket; returns the report's name."""
    store.put(report.name, report.to_bytes())
    store.put(f"{report.name.removesuffix('.json')}.svg", picture(report).encode())
    return report.name


def repairs(table: str, drift: Iterable[Range], config: str = UNNAMED) -> list[str]:
    """The commands that read token ranges of a table again, for a shell. `config`: the pipeline's YAML."""
    command = f"writetime bootstrap --config {config if config == UNNAMED else shlex.quote(config)} --table {shlex.quote(table)}"
    ranges = joined(drift)
    if len(ranges) > _MOST_COMMANDS or ranges == [(LOWEST, HIGHEST)]:
        return [command]
    return [f"{command} --token-range={start}:{end}" for start, end in ranges]


def in_short(report: VerifyReport, config: str = UNNAMED) -> str:
    """A short summary for notifications, without the key of any row, and the name of the report."""
    lines = []
    for table in report.tables:
        if table.trouble:
            lines.append(f"{table.table} could not be compared: {table.trouble}")
        elif table.drift:
            lines.append(f"{table.table}: drift in {table.drift} of {table.rows} rows. To repair:")
            lines += repairs(table.table, table.drifting, config)
    for topic in report.topics:
        if topic.trouble:
            lines.append(f"topic {topic.topic} could not be compared: {topic.trouble}")
        elif topic.drift:
            lines.append(f"topic {topic.topic}: drift of {topic.drift} of {topic.keys} keys from the table")
    differ = sum(table.drift for table in report.tables)
    return "\n".join((f"{differ} rows differ from the cluster", *lines, f"Report and chart: {report.name}"))


def report_text(report: VerifyReport, config: str = UNNAMED) -> str:
    """The report as text: a table, rows that differ, and the commands that repair the tables."""
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
    topics = [
        (topic.topic, topic.keys, topic.drift, topic.unsettled, topic.trouble or ("DRIFT" if topic.drift else "equal"))
        for topic in report.topics
    ]
    of_topics = [text_table(("topic", "keys", "drift", "unsettled", ""), topics)] if topics else []
    repair = [f"to repair: {command}" for table in report.tables for command in repairs(table.table, table.drifting, config)]
    return "\n".join([*([grid] if rows or not topics else []), *of_topics, *_about(report), *_lines(report), *repair])


def picture(report: VerifyReport, *, styled: bool = True) -> str:
    """An SVG chart: one line per table, with its token ranges from left to right."""
    lines = []
    for table in report.tables:
        cells = [Cell((r.start - LOWEST) / _RING, (r.end - r.start) / _RING, _state(r), _title(r)) for r in table.ranges]
        lines.append(Line(table.table, cells, table.trouble))
    title = f"{report.cluster}, {report.started_at:%Y-%m-%d %H:%M:%S}Z: tables compared with the cluster, by token"
    return svg(title, lines, styled=styled)


def _state(found: RangeResult) -> State:
    return "bad" if found.drift else "doubtful" if found.unsettled or found.tie else "good"


def _title(found: RangeResult) -> str:
    return f"({found.start}, {found.end}]: {found.rows} rows, {found.drift} drift, {found.unsettled} unsettled, {found.tie} ties"


def _about(report: VerifyReport) -> Iterator[str]:
    if report.at_rest:
        until = "no writes, everything is ingested"
    else:
        until = "no horizon is known" if report.horizon is None else f"written up to {report.horizon:%Y-%m-%d %H:%M:%S}Z"
    yield f"batch {report.batch}, {until}; read at {report.consistency}, share {report.share:g}, seed {report.seed}"
    yield from (f"held segment: {name}" for name in report.waiting)


def _lines(report: VerifyReport) -> Iterator[str]:
    for table in report.tables:
        for finding in table.findings:
            listed = ", ".join(f"{kind} {column}".strip() for kind, column in finding.differences)
            yield f"{finding.verdict} {table.table} {finding.key}: {listed}"
    for topic in report.topics:
        for differs in topic.findings:
            yield f"{differs.verdict} {topic.topic} {differs.key}: {' '.join([differs.kind, *differs.columns])}"


def identity(ring: bytes | None, ours: bytes | None) -> str:
    """A hash that stays the same as long as the difference does."""
    digest = hashlib.blake2b(digest_size=16)
    for document in (ring, ours):
        digest.update(b"-" if document is None else b"+%d:" % len(document) + document)
    return digest.hexdigest()


def moment(microseconds: int | None) -> datetime | None:
    """A time in UTC; None for `EVER` and for an unknown one."""
    if microseconds is None or not 0 <= microseconds < EVER:
        return None
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
