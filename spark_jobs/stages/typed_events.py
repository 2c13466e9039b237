"""Raw events to typed events, in the tasks that write them to the sinks.

Input: packs (`state`) of FOLDED rows of the kinds `event` and `deletion`. Output: pages (`event_pages`) in
the same order, with the columns and rows that `writetime.events.masking` lets through. `explode` has
validated every value, so no conversion can fail here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark_jobs.stages import table_events
from spark_jobs.stages.arrow_runs import by_shard, lengths
from spark_jobs.stages.event_pages import Pages, page_of, page_row
from spark_jobs.stages.row_packs import unpacked
from spark_jobs.stages.scan import Batches
from spark_jobs.stages.table_rows import RowShape
from spark_jobs.stages.typed_columns import EventColumns, EventFacts
from writetime.cassandra.commitlog.mutation import decode_update
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.events.envelope import encode
from writetime.events.masking import Rules, rejection_reason
from writetime.events.naming import to_column
from writetime.events.row_values import Shown, TableView

READ: Final = "r"
SNAPSHOT: Final = "snapshot"
"""Op and reason of what was read from the ring, and that no log has told: rows that are new, and rows that
were otherwise (op u)."""
BYTES_PER_PAGE: Final = 16 << 20
"""Of what pages are made of, an event beside its rows counted as much as `_EVENT`."""
_EVENT = 1 << 10
_FEW = 16
"""Events that are typed one by one as fast."""
_ROWS: Final = ("pk", "before", "static_before", "after", "static_after")


@dataclass(frozen=True, slots=True)
class EventPlan:
    """The input of typing. `files` and `hosts` are by index of the segment among those that the batch reads;
    `expected` by table id; so is `before`: the tables as in the batch before, where columns have been dropped
    since. `starts`: first ordinals of shards. `read`, by index: segments of frames that were read from the
    cluster; their events have the op r. A host of "" is not a node."""

    schema: Schema
    now: int
    files: list[str]
    hosts: list[str]
    expected: dict[bytes, int]
    starts: dict[tuple[bytes, int], int] = field(default_factory=dict)
    before: dict[bytes, Table] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    read: frozenset[int] = frozenset()
    apart: frozenset[bytes] = frozenset()
    """Tables (ids) that are in no log: their deletions, too, are known from reading the cluster, and say so."""


def typed(plan: EventPlan, engine: Engine = "auto") -> Callable[[Batches], Pages]:
    """Packs to pages."""

    def pages_of(batches: Batches) -> Pages:
        tables: dict[bytes | None, TypedEvents] = {}
        for (table_id, bucket), run in by_shard(events for batch in batches for events in unpacked(batch["state"].to_pylist())):
            assert table_id is not None
            assert bucket is not None
            if table_id not in tables:
                tables[table_id] = TypedEvents(plan, UUID(bytes=table_id), engine)
            for events in run:
                for some in _parts(events):
                    yield tables[table_id].page(some, bucket)

    return pages_of


def _parts(events: pa.RecordBatch) -> Batches:
    """The same events, of each page."""
    sizes: Any = sum(lengths(events[name]) for name in _ROWS)
    begins = np.flatnonzero(np.diff(np.cumsum(sizes + _EVENT) // BYTES_PER_PAGE, prepend=-1)).tolist()
    for start, end in pairwise([*begins, events.num_rows]):
        yield events.slice(start, end - start)


def of_no_row(shown: Table, schema: Schema, ordinal: int, event: table_events.Event) -> dict[str, Any]:
    """An event that does not belong to a row (see `table_events`) as a row of PAGES. `shown`: the table as
    the rules publish it."""
    return page_row(shown.id.bytes, page_of(RowShape.of(shown, schema), [(ordinal, False, event)]))


class TypedEvents:
    """Makes the events of one table."""

    def __init__(self, plan: EventPlan, table_id: UUID, engine: Engine = "auto") -> None:
        self.plan = plan
        self.table = plan.schema.tables[table_id]
        self._read_deletions = table_id.bytes in plan.apart
        # Values of a dropped column appear once more: they are what changes.
        whole = _with_dropped(self.table, plan.before.get(table_id.bytes, self.table), plan.schema)
        self.view = TableView(whole, plan.schema.types)
        self.clear = RowShape.of(whole, plan.schema)
        rules = plan.rules.of(whole, plan.schema.types)
        self.shape = RowShape.of(rules.shown(), plan.schema)
        kernel, self._few = row_codec.compiled(engine), _FEW if engine == "auto" else 0
        self._columns = None if kernel is None else EventColumns(self.clear, self.shape, rules, list(self.table.columns), kernel)
        self._change, self._keeps, self._filters = rules.compiled(), rules.keeps(), rules.filter is not None

    def page(self, folded: pa.RecordBatch, bucket: int) -> pa.RecordBatch:
        """The events of FOLDED rows of one bucket."""
        start = self.plan.starts[self.table.id.bytes, bucket]
        made = self._by_column(folded, start)
        return page_of(self.shape, (self._event(row, start) for row in folded.to_pylist())) if made is None else made

    def _by_column(self, folded: pa.RecordBatch, start: int) -> pa.RecordBatch | None:
        """The page made by column; None if its events are typed one by one: without compiled code, if they are few, if one is
        a deletion of many rows, or if one has unusual bytes."""
        if self._columns is None or folded.num_rows < self._few:
            return None
        return self._columns.page(folded, start, self._about())

    def _about(self) -> EventFacts:
        plan = self.plan
        read = np.array([index in plan.read for index in range(len(plan.hosts))], np.bool_)
        facts = EventFacts(plan.now, plan.files, plan.hosts, plan.expected[self.table.id.bytes], read, (SNAPSHOT, READ))
        return replace(facts, read_deletions=self._read_deletions)

    def _event(self, row: dict[str, Any], start: int) -> tuple[int | None, bool, table_events.Event]:
        """The event of a FOLDED row, with its ordinal and whether it is the last of its row."""
        event = self.event(row)
        # Events that are not published have no ordinal; neither have rows that a filter hides before and
        # after.
        hidden = row["kind"] != "deletion" and event["before"] is None and event["after"] is None
        ordinal = None if row["seq"] is None or hidden else start + row["seq"] + 1
        # Values of a dropped column are removed as a whole.
        within = {**event, "changed": [name for name in event["changed"] if name in self.table.columns]}
        elements = table_events.changed_elements(self.shape, within)
        return ordinal, row["last"], {**event, "changed_elements": encode(elements).decode() if elements else None}

    def event(self, row: dict[str, Any]) -> dict[str, Any]:
        """The event of a FOLDED row as a dictionary."""
        return self._deletion(row) if row["kind"] == "deletion" else self._row(row)

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        before, after = _shown(row["before"], row["static_before"]), _shown(row["after"], row["static_after"])
        event = self.view.event_of(row["pk"], before, after, ts_micro=row["ts"], reason=row["reason"])
        if (
            row["copies"]
            and (after is not None or self._read_deletions)
            and all(copy["segment"] in self.plan.read for copy in row["copies"])
        ):
            event |= {"reason": SNAPSHOT, "op": READ if before is None and after is not None else event["op"]}
        if self._filters:
            event |= self._filtered(event)
        values = {part: None if event[part] is None else self._shown(event[part]) for part in ("key", "before", "after")}
        there = [name for name in event["changed"] if name in self.shape.columns]
        changed = [name for name in there if _shows(to_column(name), values["before"], values["after"])]
        facts = {fact: {name: at for name, at in event[fact].items() if name in self.shape.columns} for fact in ("writetime", "expires_at")}
        return {**event, **values, **facts, "changed": changed, "now": self.plan.now, **self._source(row["copies"])}

    def _shown(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """What everybody sees of a row's, a key's or a bound's values, by column of the warehouse."""
        return self.shape.values(self._change(values))

    def _filtered(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the row filter: a row that begins to match is created, one that stops matching is deleted."""
        before, after = (row if row is not None and self._keeps(row) else None for row in (event["before"], event["after"]))
        if after is None:
            return {"before": before, "after": None, "op": "d", "writetime": {}, "expires_at": {}}
        return {"before": before, "after": after, "op": "c" if before is None and event["op"] == "u" else event["op"]}

    def _deletion(self, row: dict[str, Any]) -> dict[str, Any]:
        update = decode_update(row["before"], self.table)
        key = self._shown(self.view.key_values(row["pk"], None)) or {}
        within = table_events.bounds(self.clear, update.range_tombstones[0], self._shown) if update.range_tombstones else None
        return table_events.deletion(key=key, within=within, ts_micro=row["ts"], now=self.plan.now, source=self._source(row["copies"]))

    def _source(self, copies: list[dict[str, int]] | None) -> dict[str, Any]:
        """The nodes that hold the mutation, and its first position. An expiry has no position in a log."""
        first = copies[0] if copies else None
        return {
            "nodes": sorted({host for copy in copies or () if (host := self.plan.hosts[copy["segment"]])}),
            "replicas_expected": self.plan.expected[self.table.id.bytes],
            "file": self.plan.files[first["segment"]] if first else None,
            "pos": first["position"] if first else None,
        }


def _shows(column: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> bool:
    """Whether the change is visible outside Cassandra."""
    if before is None or after is None:
        return (before or after or {}).get(column) is not None
    return table_events.differ(before[column], after[column])


def _with_dropped(table: Table, before: Table, schema: Schema) -> Table:
    """The table with the columns that it had before and has no longer, as far as their types are known: those that they
    had when they were dropped, because a user type of that name may have other fields by now."""
    gone = {name: Column(name, each.kind, each.type) for name, each in table.dropped_columns.items()}
    lost = {n: gone.get(n, c) for n, c in before.columns.items() if n not in table.columns and c.kind in ("static", "regular")}
    known = {name: column for name, column in lost.items() if not rejection_reason(replace(table, columns={name: column}), schema)}
    return replace(table, columns={**table.columns, **known})


def _shown(row: bytes, static: bytes) -> Shown | None:
    """What shows of a row; None of one that does not."""
    if not row:
        return None
    clustering, cells = row_codec.shown(row)
    return clustering, (row_codec.shown(static)[1] if static else {}, cells)
