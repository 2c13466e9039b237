"""Fold routed frames into the state: the heart of a batch, as a function for `mapInArrow`.

Input: ROUTED rows of kind `update`, partitioned by (table_id, bucket) and sorted within by (table_id, bucket, key, digest, segment,
position). So one shard's rows come in one run, one partition key's rows within it, and replicas' copies side by side: of equal
digests only the first is decoded. Output: events, state records, accounts and undecodable frames. Nothing is written here; the
driver commits. What comes out depends only on the input and the pinned state, so a task may be run any number of times.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any
from uuid import UUID

import pyarrow as pa

from spark_jobs.frames import Batches, chunked
from spark_jobs.rows import RowShape
from spark_jobs.state import Known, Record, Shard, records
from writetime.commitlog.mutation import decode_mutation
from writetime.errors import DecodeError
from writetime.join.event import TableView
from writetime.join.partition import FoldResult, PartitionState, RowChange, SourcedUpdate, fold
from writetime.model import PartitionUpdate
from writetime.schema.model import Schema

FOLDED = pa.schema(
    [
        ("kind", pa.string()),  # event | record | account | quarantined
        ("table", pa.string()),
        ("table_id", pa.binary()),
        ("bucket", pa.int32()),
        ("seq", pa.int64()),  # order of events within (table, bucket)
        ("last", pa.bool_()),  # the last event of its row in this batch
        ("payload", pa.binary()),
    ]
)

_KEYS_PER_LOOKUP = 1024


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """What a fold task is told: schema, when `now` is, who the segments belong to, and which shard version to read.

    `files`, `versions` (of the commit log descriptor) and `hosts` go by index of the segment in the manifest."""

    schema: Schema
    now: int
    files: list[str]
    versions: list[int]
    hosts: list[str]
    shards: dict[tuple[bytes, int], tuple[str, int]]
    expected: dict[bytes, int]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a mutation was seen: the hosts that hold it, and the first place of all by file and position."""

    hosts: tuple[str, ...]
    file: str | None
    position: int | None


@dataclass(frozen=True, slots=True)
class _Frame:
    """One mutation's part in a partition: the copies that replicas hold of it, and its updates."""

    copies: list[dict[str, Any]]
    updates: list[SourcedUpdate]


@dataclass(frozen=True, slots=True)
class _Folded:
    """What a partition's frames come to."""

    result: FoldResult
    records: list[Record]
    events: list[dict[str, Any]]


def folder(plan: FoldPlan) -> Callable[[Batches], Batches]:
    """ROUTED -> FOLDED."""

    def fold_batches(batches: Batches) -> Batches:
        rows = (row for batch in batches for row in batch.to_pylist())
        for (table_id, bucket), run in groupby(rows, key=lambda row: (row["table_id"], row["bucket"])):
            yield from chunked(_ShardFold(plan, table_id, bucket).run(run), FOLDED)

    return fold_batches


class _ShardFold:
    """One shard's part of a batch."""

    def __init__(self, plan: FoldPlan, table_id: bytes, bucket: int) -> None:
        self.plan = plan
        self.table = plan.schema.tables[UUID(bytes=table_id)]
        self.bucket = bucket
        self.view = TableView(self.table, plan.schema.types)
        self.shape = RowShape.of(self.table, plan.schema)
        uri, version = plan.shards[table_id, bucket]
        self.shard = Shard(uri, version)
        self.counts: Counter[str] = Counter()
        self.sequence = 0

    def run(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        keys = ((key, list(group)) for key, group in groupby(rows, key=lambda row: row["key"]))
        while chunk := list(islice(keys, _KEYS_PER_LOOKUP)):
            states = self.shard.partitions([key for key, _ in chunk], self.table)
            for key, group in chunk:
                yield from self._fold_key(key, group, states[key])
        yield self._out("account", json.dumps(dict(self.counts)).encode())

    def _fold_key(self, key: bytes, rows: list[dict[str, Any]], known: Known) -> Iterator[dict[str, Any]]:
        frames: list[_Frame] = []
        for _, copies in groupby(rows, key=lambda row: row["digest"]):
            same = list(copies)
            try:
                frames.append(self._frame(same))
            except DecodeError as error:
                yield from self._quarantined(same, error)
        try:
            folded = self._fold(key, frames, known)
        except DecodeError:
            frames, refused = self._tried_alone(key, frames)
            for frame, reason in refused:
                yield from self._quarantined(frame.copies, reason)
            try:
                folded = self._fold(key, frames, known)
            except DecodeError as error:
                # Each is good alone: what is known of the partition does not go with them.
                for frame in frames:
                    yield from self._quarantined(frame.copies, error)
                return
        for frame in frames:
            self.counts["duplicate"] += sum(row["updates"] for row in frame.copies[1:])
        for outcome in folded.result.outcomes:
            self.counts["applied" if outcome.applied else "superseded"] += 1
        for record in folded.records:
            yield self._out("record", pickle.dumps(record))
        yield from self._numbered(folded)

    def _tried_alone(self, key: bytes, frames: list[_Frame]) -> tuple[list[_Frame], list[tuple[_Frame, DecodeError]]]:
        """The frames that can be folded into nothing, and the others with the reason."""
        good: list[_Frame] = []
        refused: list[tuple[_Frame, DecodeError]] = []
        for frame in frames:
            try:
                self._fold(key, [frame], Known(PartitionState(), None))
                good.append(frame)
            except DecodeError as error:
                refused.append((frame, error))
        return good, refused

    def _fold(self, key: bytes, frames: list[_Frame], known: Known) -> _Folded:
        """DecodeError if a value cannot be ordered, shown or stored; nothing has been counted or given out then."""
        updates = [update for frame in frames for update in frame.updates]
        result = fold(known.state, updates, order=self.view.order, now=self.plan.now, since=known.folded_at)
        kept = list(records(result, key, self.table, self.plan.schema, self.plan.now))
        return _Folded(result, kept, [self._event(key, change) for change in result.changes])

    def _frame(self, copies: list[dict[str, Any]]) -> _Frame:
        source = self._source(copies)
        return _Frame(copies, [SourcedUpdate(update, source) for update in self._decode(copies[0])])

    def _decode(self, row: dict[str, Any]) -> list[PartitionUpdate]:
        mutation = decode_mutation(row["body"], self.plan.schema, version=self.plan.versions[row["segment"]])
        return [update for update in mutation.updates if update.table_id == self.table.id]

    def _source(self, copies: list[dict[str, Any]]) -> Source:
        hosts = tuple(sorted({self.plan.hosts[row["segment"]] for row in copies}))
        first = copies[0]
        return Source(hosts, self.plan.files[first["segment"]], first["position"])

    def _quarantined(self, copies: list[dict[str, Any]], error: DecodeError) -> Iterator[dict[str, Any]]:
        for row in copies:
            self.counts["quarantined"] += row["updates"]
            detail = {"kind": type(error).__name__, "message": str(error), "table_id": str(self.table.id)}
            place = {"segment": row["segment"], "position": row["position"], "body": row["body"], "detail": json.dumps(detail)}
            yield self._out("quarantined", pickle.dumps(place))

    def _event(self, key: bytes, change: RowChange) -> dict[str, Any]:
        event = self.view.event(key, change)
        # An expiry was written by nobody: it has no place in any log.
        source = change.source if isinstance(change.source, Source) else Source((), None, None)
        return {
            **event,
            **{part: self.shape.values(event[part]) for part in ("key", "before", "after")},
            "now": self.plan.now,
            "nodes": list(source.hosts),
            "replicas_expected": self.plan.expected[self.table.id.bytes],
            "file": source.file,
            "pos": source.position,
        }

    def _numbered(self, folded: _Folded) -> Iterator[dict[str, Any]]:
        changes = folded.result.changes
        last = {change.clustering: index for index, change in enumerate(changes)}
        for index, (change, event) in enumerate(zip(changes, folded.events, strict=True)):
            self.counts["events"] += 1
            row = self._out("event", pickle.dumps(event))
            yield {**row, "seq": self.sequence, "last": last[change.clustering] == index}
            self.sequence += 1

    def _out(self, kind: str, payload: bytes) -> dict[str, Any]:
        return {
            "kind": kind,
            "table": self.table.label,
            "table_id": self.table.id.bytes,
            "bucket": self.bucket,
            "seq": None,
            "last": None,
            "payload": payload,
        }


def unpacked_records(rows: Iterable[dict[str, Any]]) -> Iterator[Record]:
    """The state records among FOLDED rows."""
    for row in rows:
        record: Record = pickle.loads(row["payload"])  # noqa: S301 - written by this very job, between its own stages
        yield record
