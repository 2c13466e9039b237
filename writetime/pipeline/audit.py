"""Compare the replicas' logs: whether each holds every mutation that it should. Counting, explaining gaps,
and the report. No Spark, no driver.

Strategy: replicas log the same bytes, so each owner of a token should have every mutation that any replica
logged for a table, token range and minute. Per owner there are a count and a CRC over the sorted digests,
one expected and one held; if they differ there is a *gap*. A gap is **explained** if the node's segments
account for it: its log is not shipped up to that minute, a segment between two others is missing, or the
node was down. An explained gap becomes an **alarm** when it is older than hints and shippers may take. A gap
in a minute that the node's log covers is an alarm at once.

The minute of a mutation is that of its latest writetime, which is equal on all replicas, unlike the time at
which it was logged. A mutation that only one node logged, although the other logs are complete, may come
from a repair of that node: such a gap is reported but is not an alarm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from pydantic import Field

from writetime.cassandra.token_ring import HIGHEST, LOWEST
from writetime.charts import Cell, Line, State, svg, text_table
from writetime.pipeline.documents import Document
from writetime.storage import layout
from writetime.storage.store import Store

Reason = Literal[
    "not shipped yet", "segment missing", "segment unreadable", "node down", "nothing before", "one node only", "not in its log"
]
Verdict = Literal["explained", "alarm"]
Which = Literal["none", "alarms", "gaps"]
"""For which gaps the token ranges are read again from the cluster."""

MINUTE: Final = 60_000_000
"""µs."""
_LISTED: Final = 200
"""Maximum number of gaps in the text report."""
_SHORT: Final = 10
_STEPS: Final = 72


# --- what was held


class Held(Document):
    """What one replica's log held of a table, range and minute. CRCs are over sorted digests. `alone`:
    missing mutations that only one node held."""

    host_id: str
    expected: int
    held: int
    alone: int = 0
    expected_crc32: int
    held_crc32: int

    @property
    def lacks(self) -> int:
        return self.expected - self.held


class Group(Document):
    """One table, token range and minute (of the epoch). `mutations` are distinct ones."""

    table: str
    range: int
    minute: int
    mutations: int
    nodes: list[Held]

    @property
    def complete(self) -> bool:
        return all(node.held_crc32 == node.expected_crc32 for node in self.nodes)


# --- what came of a node's log


class Came(NamedTuple):
    """A received segment of a node: id, version, time of completion, first minute, and whether it is
    readable."""

    id: int
    version: int
    sealed_at: datetime
    first_minute: int | None = None
    readable: bool = True

    @property
    def sealed_minute(self) -> int:
        return int(self.sealed_at.timestamp()) // 60


class Explained(NamedTuple):
    """Why a node lacks mutations; `detail` is the text for display."""

    reason: Reason
    detail: str


def explain(came: Sequence[Came], minute: int) -> Explained:
    """Why mutations of that minute may be missing from a node; `came` are its received segments by id.

    Segment ids increase by one while a node runs, starting from its clock in milliseconds: a larger step is
    a restart, a smaller one a missing segment."""
    if not came:
        return Explained("not shipped yet", "no segment of its log was received")
    last = came[-1]
    if minute >= last.sealed_minute:
        return Explained("not shipped yet", f"its log was received up to {_name(last)}, finished {_time(last.sealed_at)}")
    for before, after in pairwise(came):
        if not before.sealed_minute <= minute <= after.sealed_minute or after.id - before.id == 1:
            continue
        if after.id // 1000 >= int(before.sealed_at.timestamp()):
            if minute <= after.id // 60_000:
                return Explained("node down", f"it was down from {_time(before.sealed_at)} or later until {_milliseconds(after.id)}")
            continue
        lacking = f"CommitLog-{after.version}-{before.id + 1}" + (f" to -{after.id - 1}" if after.id - before.id > 2 else "")
        return Explained("segment missing", f"{lacking} was not received; {_name(before)} and {_name(after)} were")
    unreadable = [each for each in came if not each.readable and minute <= each.sealed_minute]
    if unreadable:
        return Explained("segment unreadable", f"{_name(unreadable[0])} could not be read completely")
    first = came[0]
    if first.first_minute is not None and minute < first.first_minute:
        return Explained("nothing before", f"its first received segment is {_name(first)}, from {_minute(first.first_minute)}")
    return Explained("not in its log", "its log of that time was received and does not contain it")


def _name(came: Came) -> str:
    return f"CommitLog-{came.version}-{came.id}"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _milliseconds(at: int) -> str:
    return _time(datetime.fromtimestamp(at / 1000, UTC))


def _minute(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%d %H:%M}Z"


# --- gaps


class Gap(Document):
    """Minutes [first, last] of the epoch in which a node lacks mutations of a table for one reason."""

    table: str
    host_id: str
    first: int
    last: int
    lacks: int
    expected: int
    ranges: list[int] = Field(description="Numbers of the token ranges.")
    reason: Reason
    told: str
    verdict: Verdict

    def line(self, address: str) -> str:
        place = f"{self.table} on {address or self.host_id}, {_minute(self.first)} to {_minute(self.last)}"
        return f"{self.verdict}: {place}: lacks {self.lacks} of {self.expected} mutations: {self.reason}: {self.told}"


def gaps(groups: Iterable[Group], came: Mapping[str, Sequence[Came]], now: datetime, grace_minutes: int) -> list[Gap]:
    """The gaps; minutes with the same explanation form one gap. `came`: by host id, in order of segment
    ids."""
    oldest = int(now.timestamp()) // 60 - grace_minutes
    found: dict[tuple[str, str, Explained], list[tuple[int, int, Held]]] = defaultdict(list)
    for group in groups:
        for node in group.nodes:
            if node.held_crc32 != node.expected_crc32:
                why = explain(came.get(node.host_id, ()), group.minute)
                if why.reason == "not in its log" and node.alone == node.lacks:
                    why = Explained("one node only", "a repair may have written to this replica only, or the others never received it")
                found[group.table, node.host_id, why].append((group.minute, group.range, node))
    made = []
    for (table, host_id, why), parts in sorted(found.items()):
        late = why.reason != "one node only" and max(minute for minute, _, _ in parts) < oldest
        made.append(
            Gap(
                table=table,
                host_id=host_id,
                first=min(minute for minute, _, _ in parts),
                last=max(minute for minute, _, _ in parts),
                lacks=sum(held.lacks for _, _, held in parts),
                expected=sum(held.expected for _, _, held in parts),
                ranges=sorted({number for _, number, _ in parts}),
                reason=why.reason,
                told=why.detail,
                verdict="alarm" if late or why.reason == "not in its log" else "explained",
            )
        )
    return made


def to_read(found: Iterable[Gap], which: Which, most: int) -> tuple[dict[str, list[int]], int]:
    """Numbers of the token ranges to read again, by table, at most `most`: alarms first, largest first; and
    how many ranges are left out. Mutations that no replica logged appear in no count, but are likely in
    ranges with gaps."""
    wanted = [gap for gap in found if which == "gaps" or (which == "alarms" and gap.verdict == "alarm")]
    wanted.sort(key=lambda gap: (gap.verdict != "alarm", -gap.lacks, gap.table, gap.host_id, gap.first))
    places = list(dict.fromkeys((gap.table, number) for gap in wanted for number in gap.ranges))
    chosen: dict[str, list[int]] = defaultdict(list)
    for table, number in sorted(places[:most]):
        chosen[table].append(number)
    return dict(chosen), len(places[most:])


# --- the report


class TableAudit(Document):
    """Totals of a table: distinct mutations, groups of range and minute, and complete groups."""

    table: str
    mutations: int
    groups: int
    complete: int


class NodeAudit(Document):
    """What was received of a node's log."""

    host_id: str
    address: str = ""
    datacenter: str
    segments: int
    unreadable: int = 0
    upto: datetime | None = Field(default=None, description="When its last received segment was finished.")
    expected: int = 0
    held: int = 0
    expected_by_step: list[int] = Field(default=[], description="For each `step` minutes of the interval.")
    held_by_step: list[int] = Field(default=[])


class TableReread(Document):
    """Token ranges (by number) of a table that were read again from the cluster, by which bootstrap run and
    at which consistency level; the number of rows read, and of frames for new data, which the next batch
    ingests. `trouble`: why they were not read; empty if they were."""

    table: str
    ranges: list[int]
    run: str = ""
    consistency: str = ""
    rows: int = 0
    frames: int = 0
    trouble: str = ""

    def line(self) -> str:
        place = f"{self.table}, {len(self.ranges)} token ranges"
        if self.trouble:
            return f"not read again: {place}: {self.trouble}"
        return f"read again at {self.consistency}: {place}: {self.rows} rows, {self.frames} with new data, ingested by the next batch"


class AuditReport(Document):
    """One audit of the minutes in [start, end). `groups`: what each replica held of a table, range and
    minute; those with a gap first."""

    cluster: str
    started_at: datetime
    finished_at: datetime
    start: datetime
    end: datetime
    datacenters: list[str] = Field(description="Datacenters that ship: only their nodes are checked.")
    ranges: list[tuple[int, int]]
    nodes: list[NodeAudit]
    tables: list[TableAudit]
    gaps: list[Gap]
    groups: list[Group] = Field(description="Limited to the first groups.")
    step: int = Field(default=0, description="Minutes of the steps of each node's totals; 0: no totals by step.")
    reread: list[TableReread] = Field(default=[], description="Ranges with gaps that were read again from the cluster, if requested.")
    not_reread: int = Field(default=0, description="Number of ranges that were not read again because of the limit.")
    trouble: dict[str, str] = Field(default={}, description="Tables that could not be audited, with the reason.")

    @property
    def alarms(self) -> int:
        return sum(gap.verdict == "alarm" for gap in self.gaps)

    @property
    def ok(self) -> bool:
        return not self.alarms and not self.trouble and not any(each.trouble for each in self.reread)

    @property
    def name(self) -> str:
        return layout.audit_report(self.cluster, self.started_at)


def ranges(wanted: int) -> list[tuple[int, int]]:
    """The ring in so many ranges of equal size: tokens > start and <= end."""
    edges = [LOWEST + (HIGHEST - LOWEST) * at // wanted for at in range(wanted + 1)]
    return list(pairwise(edges))


def step_of(start: datetime, end: datetime) -> int:
    """Minutes per step, so that an interval has at most as many steps as fit into a chart."""
    return max(1, -(-int((end - start).total_seconds() // 60) // _STEPS))


def by_step(groups: Iterable[Group], start: datetime, end: datetime, step: int) -> dict[str, tuple[list[int], list[int]]]:
    """For each node (by host id) and step: the mutations that its log should hold, and those that it
    holds."""
    first, count = int(start.timestamp()) // 60, max(1, -(-int((end - start).total_seconds()) // (60 * step)))
    found: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([0] * count, [0] * count))
    for group in groups:
        at = min(count - 1, max(0, (group.minute - first) // step))
        for node in group.nodes:
            found[node.host_id][0][at] += node.expected
            found[node.host_id][1][at] += node.held
    return found


def tables_of(groups: Iterable[Group]) -> list[TableAudit]:
    by_table: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_table[group.table].append(group)
    return [
        TableAudit(
            table=table,
            mutations=sum(group.mutations for group in found),
            groups=len(found),
            complete=sum(group.complete for group in found),
        )
        for table, found in sorted(by_table.items())
    ]


def write_report(store: Store, report: AuditReport) -> str:
    """Write the report and its chart to the bucket; returns the report's name."""
    store.put(report.name, report.to_bytes())
    store.put(f"{report.name.removesuffix('.json')}.svg", picture(report).encode())
    return report.name


def picture(report: AuditReport, *, styled: bool = True) -> str:
    """An SVG chart: one line per node, with the steps of the interval from left to right."""
    lines = [Line(node.address or node.host_id, list(_cells(report, node))) for node in report.nodes]
    title = f"{report.cluster}: what each replica's log held, {_time(report.start)} to {_time(report.end)}"
    return svg(title, lines, styled=styled)


def _cells(report: AuditReport, node: NodeAudit) -> Iterator[Cell]:
    """The steps in which mutations of a node were expected."""
    first, count = int(report.start.timestamp()) // 60, len(node.expected_by_step)
    mine = [gap for gap in report.gaps if gap.host_id == node.host_id]
    for at, (expected, held) in enumerate(zip(node.expected_by_step, node.held_by_step, strict=True)):
        if expected:
            begin = first + at * report.step
            verdicts = {gap.verdict for gap in mine if gap.first < begin + report.step and gap.last >= begin}
            state: State = "bad" if "alarm" in verdicts else "doubtful" if verdicts else "good"
            yield Cell(at / count, 1 / count, state, f"{_minute(begin)}: {held} of {expected} mutations")


def in_short(report: AuditReport) -> str:
    """A short summary for notifications: alarms first, and the name of the report."""
    lines = list(_lines(report))[:_SHORT]
    about = f"{report.alarms} alarms of {len(report.gaps)} gaps, {_time(report.start)} to {_time(report.end)}"
    return "\n".join((about, *lines, f"Report and chart: {report.name}"))


def report_text(report: AuditReport) -> str:
    """The report as text: tables, nodes, then gaps."""
    tables = [(each.table, each.mutations, each.groups, each.complete) for each in report.tables]
    nodes = [
        (
            each.address or each.host_id,
            each.datacenter,
            each.segments,
            each.expected,
            each.held,
            "-" if each.upto is None else _time(each.upto),
        )
        for each in report.nodes
    ]
    parts = [
        text_table(("table", "mutations", "ranges × minutes", "complete"), tables),
        text_table(("node", "datacenter", "segments", "expected", "held", "log received up to"), nodes),
        *_lines(report),
    ]
    return "\n".join(part for part in parts if part)


def _lines(report: AuditReport) -> Iterator[str]:
    yield from (f"{table} could not be audited: {reason}" for table, reason in sorted(report.trouble.items()))
    addresses = {node.host_id: node.address for node in report.nodes}
    ordered = sorted(report.gaps, key=lambda gap: (gap.verdict, gap.table, gap.host_id, gap.first))
    yield from (gap.line(addresses.get(gap.host_id, "")) for gap in ordered[:_LISTED])
    if len(ordered) > _LISTED:
        yield f"and {len(ordered) - _LISTED} more gaps: see the report"
    yield from (each.line() for each in report.reread)
    if report.not_reread:
        yield f"not read again: {report.not_reread} more token ranges: run it again, or raise the limit"
    if not ordered:
        yield "no gaps: every replica's log is complete"
