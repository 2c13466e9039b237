"""A store in memory for the streaming fold, and the way of updates into it and of events out of it. Rows are
looked at as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import Clustering, ClusteringOrder
from writetime.cassandra.merge.liveness import VisibleRow
from writetime.cassandra.merge.partition_fold import (
    Applied,
    Deleted,
    Deletes,
    Event,
    Head,
    HeadRecord,
    Item,
    RowRecord,
    Settings,
    Shown,
    fold,
)
from writetime.cassandra.merge.reconcile import Policy, max_timestamp
from writetime.cassandra.model import PartitionUpdate, Row
from writetime.cassandra.types.byte_comparable import RowKeys

Change = tuple[Clustering | None, VisibleRow | None, VisibleRow | None, object, int]
"""Clustering, what showed before and after, source, µs."""


@dataclass
class Store:
    """State of one partition as records, and what was asked of it."""

    head: Head = field(default_factory=Head)
    rows: dict[bytes, bytes] = field(default_factory=dict)
    expiries: dict[bytes, int] = field(default_factory=dict)
    read: list[bytes] = field(default_factory=list)

    def get(self, key: bytes) -> bytes:
        self.read.append(key)
        return self.rows.get(key, b"")

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self.rows):
            if start <= key < end:
                self.read.append(key)
                yield key, self.rows[key]

    def due(self, since: int | None, now: int) -> list[bytes]:
        return [] if since is None else sorted(key for key, second in self.expiries.items() if since < second <= now)

    def keep(self, record: RowRecord | HeadRecord) -> None:
        key = record.key if isinstance(record, RowRecord) else b""
        if isinstance(record, HeadRecord):
            self.head = record.head
        elif record.row:
            self.rows[key] = record.row
        else:
            self.rows.pop(key, None)
        self.expiries.pop(key, None)
        if record.expires_at is not None:
            self.expiries[key] = record.expires_at

    def as_update(self, nothing: PartitionUpdate) -> PartitionUpdate:
        """Head and rows in one."""
        return replace(self.head.update or nothing, rows=tuple(row_codec.decode(self.rows[key]) for key in sorted(self.rows)))


@dataclass
class Result:
    events: list[Event] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)
    applied: list[object] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        return [(clustering_of(e), visible(e.before), visible(e.after), e.source, e.ts_micro) for e in self.events]

    def of(self, clustering: Clustering | None) -> list[Event]:
        return [event for event in self.events if clustering_of(event) == clustering]


def run(
    store: Store,
    updates: Sequence[tuple[object, PartitionUpdate]],
    order: ClusteringOrder,
    *,
    now: int,
    since: int | None = None,
    engine: row_codec.Engine = "python",
    dropped_before: Mapping[str, int] | None = None,
    policy: Policy = "4.0",
    deletes: Deletes = "rows",
    again: bool = False,
) -> Result:
    """Fold the updates, each with its name, and keep the records in the store."""
    keys = RowKeys(order.table, {})
    items: list[tuple[bytes, Item]] = []
    for name, update in updates:
        ts, content = max_timestamp(update), repr(update).encode()
        head = replace(update, rows=())
        items += [(keys.key(row.clustering or ()), Item(ts, content, name, name, row_codec.encode(row))) for row in update.rows]
        items.append((b"", Item(ts, content, name, name, head)))
    items.sort(key=lambda entry: (entry[0], entry[1].ts, entry[1].content))
    heads = [item for key, item in items if key == b""]
    groups = ((key, (item for _, item in group)) for key, group in groupby((e for e in items if e[0]), key=lambda entry: entry[0]))
    due = [key for key in store.due(since, now) if key]
    result, records = Result(), []
    settings = Settings(order, keys, now, since, engine, dropped_before, policy, deletes, again=again)
    for output in fold(settings, store.head, heads, groups, store, due):
        if isinstance(output, Event):
            result.events.append(output)
        elif isinstance(output, Deleted):
            result.deleted.append(output)
        elif isinstance(output, Applied):
            result.applied.append(output.update)
        else:
            records.append(output)
    for record in records:
        store.keep(record)
    return result


def visible(shown: Shown) -> VisibleRow | None:
    if not shown.row:
        return None
    row = row_codec.decode(shown.row)
    return VisibleRow(row.clustering, row.cells, row_codec.decode(shown.static).cells if shown.static else ())


def clustering_of(event: Event) -> Clustering | None:
    return row_of(event.before.row or event.after.row).clustering


def row_of(row: bytes) -> Row:
    return row_codec.decode(row)


def replay(changes: Iterable[Change], shown: dict[Clustering | None, VisibleRow]) -> dict[Clustering | None, VisibleRow]:
    """Follow the changes; each must start from where the last one of its row ended."""
    rows = dict(shown)
    for clustering, before, after, _, _ in changes:
        assert before != after
        assert rows.pop(clustering, None) == before
        if after is not None:
            assert after.clustering == clustering
            rows[clustering] = after
    return rows
