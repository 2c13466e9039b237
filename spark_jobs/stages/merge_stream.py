"""The merge as a stage: items, sorted by row and writetime, are merged into the state; the output is events,
state records and accounts.

Strategy: a function from record batches to record batches. Input: ITEMS in the order of `explode.ORDER`, one
shard per run. Partitions are folded one after the other as streams
(`writetime.cassandra.merge.partition_fold`), so neither a partition nor a row has to fit in memory. The state
records for a stretch of items are read from the shard in one call; ranges are read while they are folded.
Expiries in partitions without items are found by the shard. Rows that depend on nothing but their own items,
which are most, are merged at once (`merge_batch`), with equal results (`engine="python"`: none are). Nothing
is written here, and the output depends only on the items and the pinned state, so a task may run several
times. Events are raw (`typed_events` adds types); those of a row follow one another."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle, groupby, islice
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.arrow_runs import by_shard, whole
from spark_jobs.stages.folded_columns import FoldedColumns, untold
from spark_jobs.stages.merge_batch import Part, PlainRows, looked_up
from spark_jobs.stages.merge_heads import HeadedPartitions
from spark_jobs.stages.scan import COPIES, Batches, chunked
from spark_jobs.state.shards import Shard
from writetime.cassandra.commitlog.encode import encode_update
from writetime.cassandra.commitlog.mutation import decode_update
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition_fold import (
    Applied,
    Deleted,
    Deletes,
    Event,
    HeadRecord,
    Item,
    Output,
    RowRecord,
    Settings,
    fold,
)
from writetime.cassandra.merge.partition_head import decode_head, encode_head
from writetime.cassandra.merge.reconcile import POLICY, Policy
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.model import PartitionUpdate
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.byte_comparable import HEAD, PAST_RECORDS, RowKeys, record_key, split_record_key
from writetime.errors import BatchError, MalformedMutation
from writetime.events.key_spelling import like_alone

FOLDED: Final = pa.schema(
    [
        # event | deletion | record | applied | account | quarantined | not_ours | parsed | reread |
        # undecided; once packed (`packs`): events | records
        ("kind", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.binary()),
        ("bucket", pa.int32()),
        ("seq", pa.int64()),  # of what the stream tells: order within (table, bucket); null for what is for current rows only
        ("last", pa.bool_()),  # the last event of its row in this batch
        ("pk", pa.binary()),
        ("before", pa.binary()),  # what shows, as flat rows; of a deletion the encoded update
        ("static_before", pa.binary()),
        ("after", pa.binary()),
        ("static_after", pa.binary()),
        ("ts", pa.int64()),
        ("reason", pa.string()),
        ("copies", COPIES),  # null: nobody wrote it
        ("key", pa.binary()),  # of a record; of `applied` the update
        ("state", pa.binary()),  # of a record; of what is quarantined the mutation
        ("expires_at", pa.int64()),
        ("updates", pa.int64()),  # as in ITEMS
        ("detail", pa.string()),  # JSON, as in ITEMS
    ]
)

_NO_PARTITIONS: Final = (b"", b"\0")
_ITEMS_PER_LOOKUP = 8192
_BYTES_PER_LOOKUP = 16 << 20
_BYTES_PASSED = 64 << 20
"""Of rows that go by a partition while it is folded."""
_DUE_PER_LOOKUP = 4096
_ROWS_AT_HAND = 8192
_BYTES_AT_HAND = 16 << 20


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The input of a task: the schema, the seconds between which its clock advances, the shard and version to
    read, and the events to make. `dropped_before`: by id, the columns that counted as dropped in the batch
    before, for tables where they differ now; all their records are read. `since_of`: by id, the clock of
    tables that skipped some batches. `untold`: indexes of segments whose changes alone make no events. `again`: by id, tables of which
    all rows are shown again, and whether there are events of that."""

    schema: Schema
    now: int
    since: int | None
    shards: dict[tuple[bytes, int], tuple[str, int]]
    deletes: Deletes = "rows"
    engine: Engine = "auto"
    dropped_before: Mapping[bytes, Mapping[str, int]] = field(default_factory=dict)
    since_of: Mapping[bytes, int] = field(default_factory=dict)
    untold: frozenset[int] = frozenset()
    again: Mapping[bytes, bool] = field(default_factory=dict)
    policy: Policy = POLICY


def joiner(plan: FoldPlan) -> Callable[[Batches], Batches]:
    """ITEMS to FOLDED."""

    def join_batches(batches: Batches) -> Batches:
        for (table_id, bucket), run in by_shard(batches):
            if table_id is None or bucket is None:
                yield from chunked((_passed(row) for batch in run for row in batch.to_pylist()), FOLDED)
            else:
                yield from _messages(_ShardJoin(plan, table_id, bucket).run(run))

    return join_batches


def _messages(outputs: Iterable[dict[str, Any] | pa.RecordBatch]) -> Batches:
    """Rows as batches; some are batches already."""
    for are_batches, run in groupby(outputs, key=lambda output: isinstance(output, pa.RecordBatch)):
        if are_batches:
            yield from run
        else:
            yield from chunked(run, FOLDED)


def _stretches(batches: Batches) -> Iterator[pa.RecordBatch | None]:
    """The rows in stretches that are each looked up at once; None after the last."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ITEMS_PER_LOOKUP or size >= _BYTES_PER_LOOKUP:
            yield whole(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield whole(pending)
    yield None


def _emptied(passed: list[dict[str, Any] | pa.RecordBatch]) -> Iterator[dict[str, Any] | pa.RecordBatch]:
    if passed:
        yield from passed
        passed.clear()


_NOTHING: Final = dict.fromkeys(FOLDED.names)


def _passed(row: dict[str, Any]) -> dict[str, Any]:
    same = {name: row[name] for name in ("kind", "table", "table_id", "bucket", "copies", "updates", "detail")}
    return {**_NOTHING, **same, "state": row["item"]}


class _ShardJoin:
    """One shard's part of a batch."""

    def __init__(self, plan: FoldPlan, table_id: bytes, bucket: int) -> None:
        self.plan = plan
        self.table: Table = plan.schema.tables[UUID(bytes=table_id)]
        self.about = {"table": self.table.label, "table_id": table_id, "bucket": bucket}
        self.order = ClusteringOrder(self.table, plan.schema.types)
        keys = RowKeys(self.table, plan.schema.types)
        before, self.again = plan.dropped_before.get(table_id), plan.again.get(table_id)
        since = plan.since_of.get(table_id, plan.since)
        self.settings = Settings(
            self.order,
            keys,
            plan.now,
            since,
            plan.engine,
            before,
            plan.policy,
            plan.deletes,
            like_alone(self.table, plan.schema.types),
            self.again is not None,
        )
        self.shard = Shard(*plan.shards[table_id, bucket])
        self.state = _State(self.shard, plan, everything=before is not None or self.again is not None)
        self.counts: Counter[str] = Counter()
        bulk = plan.engine != "python" and self.settings.dropped_before is None and self.again is None
        self.plain = self._plain() if bulk else None

    def _plain(self) -> PlainRows:
        columns = FoldedColumns(self.settings, self.about, FOLDED, self.counts, self.plan.untold)
        headed = HeadedPartitions(
            self.settings, self.table, self.shard, columns, is_due=self.state.is_due, rows_of=self._rows_of, item=self._item
        )
        return PlainRows(self.settings, self.shard, columns, headed)

    def run(self, batches: Batches) -> Iterator[dict[str, Any] | pa.RecordBatch]:
        passed: list[dict[str, Any] | pa.RecordBatch] = []
        given = _Peekable(groupby(self._items(batches, passed), key=lambda row: row["pk"]))
        # Expiries in a dropped table make no events: all its rows were deleted at once.
        asked = () if self.table.dropped else self.state.due()
        due = _Peekable(groupby(asked, key=lambda key: record_key(split_record_key(key)[0])))
        while heads := [ahead.next[0] for ahead in (given, due) if ahead.next is not None]:
            pk = min(heads)
            if pk not in _NO_PARTITIONS:
                for row in self._partition(pk, given.take(pk), due.take(pk)):
                    yield from _emptied(passed)
                    yield row
            given.go_on(pk)
            due.go_on(pk)
            yield from _emptied(passed)
        yield from passed
        yield self._out("account", detail=json.dumps(self.counts, sort_keys=True))

    def _items(self, batches: Batches, passed: list[dict[str, Any] | pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        """The items to be folded one by one, with their records looked up. Rows that are not items, and
        results of the merge by column, go to `passed`. So that `passed` stays small, a row without a
        partition is yielded where one may stand; where none may for long, items are yielded that could have
        been merged by column."""
        last = _NO_PARTITIONS[0]
        # Two groups of one partition in a row would be one group, which ends when the next begins.
        nobody = cycle(_NO_PARTITIONS)

        def enough() -> bool:
            size: int = sum(row.nbytes for row in passed if isinstance(row, pa.RecordBatch))
            return size > _BYTES_PASSED

        for stretch in _stretches(batches):
            rest = stretch if stretch is None else stretch.filter(pc.equal(stretch["kind"], "item"))
            if stretch is not None and rest is not None:
                passed += (_passed(row) for row in stretch.filter(pc.not_equal(stretch["kind"], "item")).to_pylist())
                self.counts["items"] += rest.num_rows
            for part in (Part([], rest),) if self.plain is None else self.plain.take(rest, enough=enough):
                passed += part.done
                items = part.rest.to_pylist() if part.rest is not None else []
                for some in self.state.looked_up(items):
                    yield from some
                last = items[-1]["pk"] if items else last
                if not items and (self.plain is None or self.plain.next != last):
                    yield {"pk": next(nobody)}

    def _partition(self, pk: bytes, items: Iterable[dict[str, Any]], due: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        key = split_record_key(pk)[0]
        head = decode_head(self.state.record(pk), self.order)
        by_row = _Peekable(groupby(items, key=lambda row: row["row"]))
        of_head = [self._item(row, decode_update(row["item"], self.table)) for row in by_row.take(HEAD)]
        by_row.go_on(HEAD)
        groups = ((row, (self._item(each, each["item"]) for each in group)) for row, group in by_row.rest())
        due_rows = (row for each in due if (row := split_record_key(each)[1]) != HEAD)
        yield from self._rows_of(key, fold(self.settings, head, of_head, groups, _Rows(self.state, pk), due_rows))

    def _rows_of(self, key: bytes, outputs: Iterable[Output]) -> Iterator[dict[str, Any]]:
        """Rows of FOLDED, from the outputs of a partition."""
        try:
            yield from self._numbered(key, outputs)
        except MalformedMutation as error:
            raise BatchError(
                f"a validated row cannot be merged: {error}",
                operation="join a partition",
                obj=f"{self.table.label}, bucket {self.about['bucket']}, partition key {key.hex()}",
                hint="This is a defect of writetime: keep the batch and report it.",
            ) from error

    @staticmethod
    def _item(row: dict[str, Any], part: Any) -> Item:
        return Item(row["ts"], row["content"], (row["content"], row["parts"]), row["copies"], part)

    # --- output

    def _numbered(self, key: bytes, outputs: Iterable[Output]) -> Iterator[dict[str, Any]]:
        """An event is held back until it is known whether it is the last of its row."""
        held: Event | None = None
        for output in outputs:
            if isinstance(output, Event):
                if held is not None:
                    yield self._event(key, held, last=held.key != output.key and not held.more)
                held = output
            else:
                yield from self._other(key, output)
        if held is not None:
            yield self._event(key, held, last=True)

    def _event(self, key: bytes, event: Event, *, last: bool) -> dict[str, Any]:
        hidden = event.taken
        if untold(event.source, self.plan.untold) or (event.reason == "again" and not self.again):
            hidden = True
            self.counts["untold"] += 1
        columns = {"before": event.before.row, "static_before": event.before.static}
        columns |= {"after": event.after.row, "static_after": event.after.static}
        about = {"ts": event.ts_micro, "reason": event.reason, "copies": event.source}
        return self._out("event", seq=None if hidden else self._next(), last=last, pk=key, **columns, **about)

    def _other(self, key: bytes, output: Output) -> Iterator[dict[str, Any]]:
        if isinstance(output, Applied):
            yield from self._applied(*output.update)  # type: ignore[misc]
        elif isinstance(output, RowRecord):
            self._count_ties(output.ties)
            yield self._out("record", key=record_key(key, output.key), state=output.row, expires_at=output.expires_at)
        elif isinstance(output, HeadRecord):
            self._count_ties(output.ties)
            state = encode_head(output.head, self.order, self.plan.schema.types)
            yield self._out("record", key=record_key(key), state=state, expires_at=output.expires_at)
        elif isinstance(output, Deleted) and self.plan.deletes != "rows":
            update = PartitionUpdate(self.table.id, key)
            if output.tombstone is None:
                reason = "partition_delete"
            else:
                reason, update = "range_delete", replace(update, range_tombstones=(output.tombstone,))
            encoded = encode_update(update, self.table, self.plan.schema.types)
            about = {"ts": output.ts_micro, "reason": reason, "copies": output.source}
            yield self._out("deletion", seq=self._next(), last=False, pk=key, before=encoded, **about)

    def _applied(self, content: bytes, parts: int) -> Iterator[dict[str, Any]]:
        """Count an update of one item here; updates of several items are named, and the driver counts them
        (`several`: how many names there are)."""
        if parts == 1:
            self.counts["applied"] += 1
        else:
            self.counts["several"] += 1
            yield self._out("applied", key=content)

    def _count_ties(self, ties: int) -> None:
        if ties:
            self.counts["ties"] += ties

    def _next(self) -> int:
        self.counts["events"] += 1
        return self.counts["events"] - 1

    def _out(self, kind: str, **columns: Any) -> dict[str, Any]:
        return {**_NOTHING, **self.about, "kind": kind, **columns}


class _State:
    """The shard as the fold reads it: by key from the records looked up in advance, by range, and by
    expiry."""

    def __init__(self, shard: Shard, plan: FoldPlan, *, everything: bool) -> None:
        self.shard, self.plan, self.everything = shard, plan, everything
        self._at_hand: dict[bytes, dict[bytes, bytes]] = {}
        self._of_items: dict[bytes, bytes] = {}
        self._of_due: dict[bytes, bytes] = {}
        self._asked: set[bytes] = set()

    def looked_up(self, items: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The items in parts; when a part is returned, its records and those of its heads are ready."""
        rows = [(item["pk"], item["pk"] + item["row"]) for item in items]
        for start, end, found in looked_up(self.shard, rows):
            self._of_items, self._asked = found, {key for row in rows[start:end] for key in row}
            yield items[start:end]

    @cached_property
    def _due(self) -> list[bytes]:
        return list(self.shard.due(self.plan.now))

    @cached_property
    def _due_partitions(self) -> frozenset[bytes]:
        return frozenset(record_key(split_record_key(key)[0]) for key in self._due)

    def is_due(self, pk: bytes) -> bool:
        """Whether something expires in a partition that no item says."""
        return pk in self._due_partitions

    def due(self) -> Iterator[bytes]:
        """Keys of records that expire in this batch, ascending; when they are returned, they and their heads
        are ready."""
        if self.everything:
            yield from self._partitions()
            return
        keys = iter(self._due)
        while chunk := list(islice(keys, _DUE_PER_LOOKUP)):
            rows = [(record_key(split_record_key(key)[0]), key) for key in chunk]
            for start, end, found in looked_up(self.shard, rows):
                self._of_due = found
                yield from chunk[start:end]

    def _partitions(self) -> Iterator[bytes]:
        """Keys of the heads of all partitions, existing or not. Their records are ready, unless there are
        many."""
        for pk, run in groupby(self.shard.scan(b"", PAST_RECORDS), key=lambda record: record_key(split_record_key(record[0])[0])):
            some = _few(run)
            # The fold of a partition may have peeked at the next one already.
            last = dict([*self._at_hand.items()][-1:])
            self._at_hand = {**last, **({} if some is None else {pk: some})}
            self._of_due = {key: state for records in self._at_hand.values() for key, state in records.items()}
            yield pk

    def scan(self, pk: bytes, start: bytes, end: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Records of a partition, ascending."""
        held = self._at_hand.get(pk)
        if held is None:
            return self.shard.scan(pk + start, pk + end)
        return [(key, state) for key, state in held.items() if pk + start <= key < pk + end]

    def record(self, key: bytes) -> bytes:
        for known in (self._of_items, self._of_due):
            if (state := known.get(key)) is not None:
                return state
        return b"" if key in self._asked else self.shard.get([key]).get(key, b"")


def _few(records: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
    """Some records; None if there are many."""
    found: dict[bytes, bytes] = {}
    size = 0
    for key, state in records:
        found[key] = state
        size += len(state)
        if len(found) > _ROWS_AT_HAND or size > _BYTES_AT_HAND:
            return None
    return found


class _Rows:
    """The rows of one partition."""

    def __init__(self, state: _State, pk: bytes) -> None:
        self._state, self._pk = state, pk

    def get(self, key: bytes) -> bytes:
        return self._state.record(self._pk + key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, state in self._state.scan(self._pk, start, end):
            yield key[len(self._pk) :], state


class _Peekable:
    """Groups like those of `itertools.groupby`, with a look at the key of the next one; no group may be
    skipped before it is read."""

    def __init__(self, groups: Iterable[tuple[bytes, Iterable[Any]]]) -> None:
        self._groups = iter(groups)
        self.next = next(self._groups, None)

    def take(self, key: bytes) -> Iterable[Any]:
        return self.next[1] if self.next is not None and self.next[0] == key else ()

    def go_on(self, key: bytes) -> None:
        if self.next is not None and self.next[0] == key:
            self.next = next(self._groups, None)

    def rest(self) -> Iterator[tuple[bytes, Iterable[Any]]]:
        while self.next is not None:
            key, group = self.next
            yield key, group
            self.go_on(key)
