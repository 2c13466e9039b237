"""Compares the product's output with the cluster's answers. Each difference is a `Mismatch` with the details
to debug it.

table       current rows equal the cluster's: values, writetimes, expiries
fold        the events, folded by ordinal, give the current rows
consumer    who takes the last value of each record key ends with the cluster's rows
before      `before` of each event equals `after` of the previous event of the same key
event       op and changed columns of each event are correct
duplicate   no event twice, no gap in a batch's ordinals
account     each batch balances and accounts for the contents of its segments
problem     nothing was quarantined, rejected or left unread
replay      segments that were read before change nothing
rows        every compared table had rows
replicas    events name nodes that ship, and as many as have to have the change; of two datacenters
audit       an audit of all logs expects each write of the nodes that ship, and of no other; of two datacenters
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from proof.ring.answer import Answer, Row, TableAnswer, key_of
from proof.ring.lake import Event, Lake, cql_name
from writetime.pipeline.documents import Sealed, total
from writetime.storage import layout

LIVES_SHORTLY = "lives_shortly"
"""The table with a default TTL of three seconds."""

EXPIRY_SLACK_SECONDS = 1
_LAST = 5


@dataclass(frozen=True)
class Mismatch:
    """One difference. `ring` is the expected value, `ours` the actual one; `events` are the last ones of the
    key.
    """

    check: str
    where: str
    table: str
    key: str = ""
    column: str = ""
    ring: Any = None
    ours: Any = None
    events: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        place = " ".join(filter(None, (self.table, self.key and f"key {self.key}", self.column and f"column {self.column}")))
        lines = [f"✗ {self.check} ({self.where}): {place}: expected {self.ring!r}, found {self.ours!r}"]
        return "\n".join([*lines, *(f"      {event}" for event in self.events)])

    @property
    def place(self) -> tuple[str, str, str, str]:
        """The fields that are equal when a recording is replayed."""
        return self.check, self.table, self.key, self.column

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(answer: Answer, lake: Lake, where: str) -> list[Mismatch]:
    """Check tables and events at one quiet point."""
    return [mismatch for table in answer.tables for mismatch in check_table(table, lake, where)]


def check_table(table: TableAnswer, lake: Lake, where: str) -> list[Mismatch]:
    events = lake.changes(table)
    found = lake.current(table)
    current = {row.key: row for row in found or []}
    history: dict[str, list[Event]] = {}
    for event in events:
        history.setdefault(event.key, []).append(event)
    reporter = _Reporter(where, table.label, history)
    mismatches = [*_no_twins(found or [], reporter), *_rows(table, current, reporter), *_feed(events, current, reporter)]
    return [*mismatches, *_consumer(table, events, reporter), *_numbers(lake.numbers(table.keyspace, table.name), reporter)]


def check_history(points: Iterable[tuple[int, Answer]], lake: Lake, where: str) -> tuple[int, list[Mismatch]]:
    """Compare tables as they were after earlier batches with the cluster's answers then. `points`: the last
    batch before each quiet point, and the answer at it. The number of tables compared, and what differs. A
    table is not compared if no snapshot has its rows any more, or it was created again."""
    compared, found = 0, list[Mismatch]()
    for batch, answer in points:
        for table in answer.tables:
            rows = lake.current_after(table, batch)
            if rows is not None:
                compared += 1
                reporter = _Reporter(f"{where}, as of batch {batch}", table.label, {})
                found += _rows(table, {row.key: row for row in rows}, reporter)
    return compared, found


def check_replicas(answer: Answer, lake: Lake, where: str, shipped: Collection[str]) -> Iterator[Mismatch]:
    """Check which nodes the events name. `shipped`: the host ids of the nodes whose logs are shipped, all
    of which have a replica of each row.
    """
    most = 0
    for table in answer.tables:
        for event in lake.changes(table):
            expected, nodes = event.more["replicas_expected"], event.more["nodes"]
            assert isinstance(nodes, list)
            most = max(most, len(nodes))
            if expected != len(shipped):
                yield Mismatch("replicas", where, table.label, event.key, "replicas_expected", len(shipped), str(event))
            if not set(map(str, nodes)) <= set(shipped):
                yield Mismatch("replicas", where, table.label, event.key, "nodes", sorted(shipped), str(event))
    if most != len(shipped):
        yield Mismatch("replicas", where, "*", "", "nodes", f"some event of {len(shipped)} nodes", f"at most {most}")


@dataclass(frozen=True)
class _Reporter:
    where: str
    table: str
    history: dict[str, list[Event]]

    def mismatch(self, check: str, key: str, column: str, ring: Any, ours: Any) -> Mismatch:
        last = tuple(str(event) for event in self.history.get(key, [])[-_LAST:])
        return Mismatch(check, self.where, self.table, key, column, ring, ours, last)


def _no_twins(found: list[Row], reporter: _Reporter) -> Iterator[Mismatch]:
    for key, count in Counter(row.key for row in found).items():
        if count > 1:
            yield reporter.mismatch("table", key, "", "one row", f"{count} rows")


def _rows(table: TableAnswer, current: dict[str, Row], reporter: _Reporter) -> Iterator[Mismatch]:
    for key in sorted(table.rows.keys() | current.keys()):
        ring, ours = table.rows.get(key), current.get(key)
        if ring is None or ours is None:
            yield reporter.mismatch("table", key, "", ring and ring.values, ours and ours.values)
            continue
        yield from _values(ring, ours, reporter)
        for name in sorted((ring.writetime.keys() | ours.writetime.keys()).difference(table.untold)):
            if ring.writetime.get(name) != ours.writetime.get(name):
                yield reporter.mismatch("table", key, f"WRITETIME({name})", ring.writetime.get(name), ours.writetime.get(name))
        for name in sorted((ring.expires_at.keys() | ours.expires_at.keys()).difference(table.untold)):
            expected, found = ring.expires_at.get(name), ours.expires_at.get(name)
            if expected is None or found is None or not -EXPIRY_SLACK_SECONDS <= found - expected <= table.slack:
                yield reporter.mismatch("table", key, f"expiry of {name}", expected, found)


def _values(ring: Row, ours: Row, reporter: _Reporter) -> Iterator[Mismatch]:
    """Compare column by column. A column that was dropped in the cluster stays in the warehouse and is not
    compared.
    """
    for name, value in ring.values.items():
        if name not in ours.values and value is None:
            continue
        if not same(value, ours.values.get(name)):
            yield reporter.mismatch("table", ring.key, cql_name(name), value, ours.values.get(name))


def same(a: Any, b: Any) -> bool:
    """Exactly equal and of one type: 0.0 is not -0.0, 1 is not true."""
    if type(a) is type(b) and isinstance(a, _PLAIN):
        return bool(a == b)
    return _text(a) == _text(b)


_PLAIN = (str, int, bool, type(None))
"""Of which equal values of one type are equal in every way: most are, and of millions it counts."""


def _text(value: Any) -> str:
    return json.dumps(_without_nulls(value), sort_keys=True)


def _without_nulls(value: Any) -> Any:
    """Remove null fields of structs: only new rows have the new fields of an altered user type."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _feed(events: list[Event], current: dict[str, Row], reporter: _Reporter) -> Iterator[Mismatch]:
    """Fold the events. A truncate deletes all rows."""
    folded: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.op == "t":
            folded.clear()
            continue
        if not same(event.before, folded.get(event.key)):
            yield reporter.mismatch("before", event.key, "", folded.get(event.key), str(event))
        yield from _event(event, reporter)
        if event.after is None:
            folded.pop(event.key, None)
        else:
            folded[event.key] = event.after
    for key in sorted(folded.keys() | current.keys()):
        ours = current[key].values if key in current else None
        if not same(ours, folded.get(key)):
            yield reporter.mismatch("fold", key, "", ours, folded.get(key))


def _consumer(table: TableAnswer, events: list[Event], reporter: _Reporter) -> Iterator[Mismatch]:
    """Upsert by record key: the last value wins, null deletes."""
    held: dict[bytes | None, Event] = {}
    for event in events:
        if event.op == "t":
            held.clear()
        elif event.after is None:
            held.pop(event.record, None)
        else:
            held[event.record] = event
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in held.values():
        rows[key_of(event.after or {}, table.keys)].append(event.after or {})
    for key in sorted(table.rows.keys() | rows.keys()):
        ring, found = table.rows.get(key), rows.get(key, [])
        if ring is None or len(found) != 1:
            yield reporter.mismatch("consumer", key, "", ring and ring.values, found)
            continue
        for name, value in ring.values.items():
            if not same(value, found[0].get(name)):
                yield reporter.mismatch("consumer", key, cql_name(name), value, found[0].get(name))


def _event(event: Event, reporter: _Reporter) -> Iterator[Mismatch]:
    before, after = event.before, event.after
    op = ("r" if event.reason == "snapshot" else "c") if before is None else "d" if after is None else "u"
    if event.op != op or (before is None and after is None):
        yield reporter.mismatch("event", event.key, "op", op, str(event))
    if before is None or after is None:
        return
    differ = sorted(name for name in after.keys() | before.keys() if not same(before.get(name), after.get(name)))
    if differ != sorted(event.changed):
        yield reporter.mismatch("event", event.key, "changed", differ, str(event))


def _numbers(numbers: list[tuple[int, int]], reporter: _Reporter) -> Iterator[Mismatch]:
    for number, count in Counter(numbers).items():
        if count > 1:
            yield reporter.mismatch("duplicate", "", f"batch {number[0]} ordinal {number[1]}", "one event", f"{count} events")
    for batch in sorted({batch for batch, _ in numbers}):
        ordinals = sorted({ordinal for of, ordinal in numbers if of == batch})
        if ordinals != list(range(1, len(ordinals) + 1)):
            yield reporter.mismatch("duplicate", "", f"ordinals of batch {batch}", f"1 to {len(ordinals)}", str(ordinals[:20]))


def check_batch(sealed: Sealed, updates: int | None, where: str, damaged: Container[layout.SegmentRef] = frozenset()) -> Iterator[Mismatch]:
    """Check one batch's accounts against each other and against `updates`, the counted partition updates of
    its segments. Problems of `damaged` segments are expected.
    """
    whole = total(sealed.accounting)
    for account in [*sealed.accounting, whole]:
        if not account.balanced:
            yield Mismatch("account", where, account.table, ring="a balance", ours=account.model_dump())
    accounted = whole.updates_in - whole.read_again
    held = sum(outcome.updates for outcome in sealed.segments)
    for expected, what in ((held, "the segments' own counts"), (updates, "a count of the segments")):
        if expected is not None and accounted != expected:
            yield Mismatch("account", where, "*", column=what, ring=expected, ours=accounted)
    for outcome in sealed.segments:
        for problem in outcome.problems if layout.SegmentRef.from_object(outcome.object) not in damaged else ():
            yield Mismatch(
                "problem", where, outcome.object, str(problem.position), ring="no problem", ours=f"{problem.kind}: {problem.message}"
            )
    for name, reason in sealed.snapshots_refused.items():
        yield Mismatch("problem", where, name, ring="a snapshot that can be read", ours=reason)


def check_rows_seen(answers: Iterable[Answer], where: str) -> Iterator[Mismatch]:
    """A table that was empty at every quiet point proves nothing. Exceptions: a single quiet point, and the
    table whose rows live for seconds; its events are compared.
    """
    seen: dict[str, list[int]] = defaultdict(list)
    for answer in answers:
        for table in answer.tables:
            seen[table.label].append(len(table.rows))
    for label, counts in sorted(seen.items()):
        if len(counts) > 1 and not any(counts) and not label.endswith(f".{LIVES_SHORTLY}"):
            yield Mismatch("rows", where, label, ring="rows at some quiet point", ours="none at any")
    if not seen:
        yield Mismatch("rows", where, "*", ring="captured tables", ours="none")
