"""Merges rows many at once: most rows of most batches.

Strategy: if neither the state nor the batch has a head of a partition, its rows depend on nothing but their own items.
Those in which nothing expires are merged by one call of the compiled join
(`writetime.kernels.row_batches.join`), and their events and records are built as arrays. Partitions with a head are
merged by `merge_heads`, if all of their items are there. All other rows are
returned to `merge_stream`, which defines the result. All items of a row are merged in the same way: the last
partition of a stretch waits for the next stretch, or its last row, and a row that would wait too long is returned for
good."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.arrow_runs import Ints, joined, starts, whole
from spark_jobs.stages.folded_columns import FoldedColumns
from spark_jobs.stages.merge_heads import Given, HeadedPartitions, Rows
from spark_jobs.state.shards import Shard
from writetime.cassandra.merge.partition_fold import Settings
from writetime.kernels import row_batches

_WAITING: Final = 4096
"""Items of one row that wait for more of them."""
_WAITING_OF_PARTITION: Final = 1 << 16
_BYTES_OF_PARTITION: Final = 32 << 20
"""The same of one partition, as only whole ones are merged by `merge_heads`."""


class Part(NamedTuple):
    """Rows of FOLDED for the plain rows among some items, and the items of all other rows."""

    done: list[Rows]
    rest: pa.RecordBatch | None


class PlainRows:
    """One shard's plain rows. `counts` are those of the whole shard's merge, by which events are numbered."""

    def __init__(self, settings: Settings, shard: Shard, columns: FoldedColumns, headed: HeadedPartitions) -> None:
        self.settings, self.shard, self.columns, self.headed = settings, shard, columns, headed
        self._waiting: pa.RecordBatch | None = None
        # Rows with items that went to the stream: that of the last message, and that of this one.
        self._given_back: list[tuple[bytes, bytes] | None] = [None, None]
        # The partition of the last row, and whether it has a head.
        self._last: tuple[bytes, bool] = (b"", False)
        # The partition of the row after the last one taken, if it is known yet.
        self.next: bytes | None = None

    def take(self, items: pa.RecordBatch | None, *, enough: Callable[[], bool] = lambda: False) -> Iterator[Part]:
        """The next items of the shard, or None after the last, in parts whose states fit in memory. While
        there is `enough`, no row is plain."""
        parts = [part for part in (self._waiting, items) if part is not None and part.num_rows]
        self._waiting = None
        self.next = None
        if not parts:
            return
        rows = whole(parts)
        begins = starts(rows, ["pk", "row"])
        self._given_back = [self._given_back[1], self._given_back[1]]
        if items is not None:
            last = int(begins[-1])
            if rows.num_rows - last > _WAITING:
                self._given_back[1] = rows["pk"][last].as_py(), rows["row"][last].as_py()
            else:
                partition = int(starts(rows, ["pk"])[-1])
                if rows.num_rows - partition <= _WAITING_OF_PARTITION and rows.slice(partition).nbytes <= _BYTES_OF_PARTITION:
                    last = partition
                self._waiting = rows.slice(last)
                rows, begins = rows.slice(0, last), begins[begins < last]
        waits_for = None if self._waiting is None else self._waiting["pk"][0].as_py()
        found = _Rows(rows, begins)
        self.next = waits_for
        for start, end, known in looked_up(self.shard, list(zip(found.pks, found.keys, strict=True))):
            self.next = found.pks[end] if end < len(begins) else waits_for
            yield self._joined(found.part(start, end), known, enough())

    def _joined(self, rows: _Rows, known: dict[bytes, bytes], enough: bool) -> Part:
        before = self._last[0]
        fast = self._plain(rows, known)
        headed, done = list[Rows](), np.zeros(len(fast), bool)
        if not enough:
            headed, done = self.headed.fold(rows.given(), self._whole(rows, fast, before), known)
        fast &= ~rows.twice & (not enough)
        at = np.flatnonzero(fast)
        items = np.flatnonzero(fast[rows.of])
        group = (np.cumsum(fast) - 1)[rows.of[items]]
        order = self.settings.order
        keys = [rows.keys[row] for row in at.tolist()]
        states = [known.get(key, b"") for key in keys]
        found = row_batches.join(
            pa.array(group, pa.int32()),
            rows.items["item"].take(pa.array(items)),
            pa.array(states, pa.binary()),
            now=self.settings.now,
            since=self.settings.since,
            counter=order.counter,
            dropped=order.dropped,
            policy=self.settings.policy,
            engine=self.settings.engine,
        )
        left = found.left.to_numpy(zero_copy_only=False)
        fast[at[left]] = False
        out = [*headed, *self.columns.applied(rows.items, items[found.applied.to_numpy(zero_copy_only=False) & ~left[group]])]
        out += self._events(rows, items, group, left, found)
        changed = found.changed.to_numpy(zero_copy_only=False) & ~left
        out += self.columns.records(keys, states, changed, found)
        rest = np.flatnonzero(~(fast | done)[rows.of])
        return Part(out, rows.items.take(pa.array(rest)) if len(rest) else None)

    def _events(self, rows: _Rows, items: Ints, group: Ints, left: Any, found: row_batches.Joined) -> list[pa.RecordBatch]:
        number = found.event_item.to_numpy()
        kept = np.flatnonzero(~left[group[number]])
        number = number[kept]
        deleted = found.event_deleted.take(pa.array(kept))
        source = rows.items.select(["pk", "ts", "copies"]).take(pa.array(items[number]))
        nothing = pa.repeat(pa.scalar(b"", pa.binary()), len(kept))
        before, after = (found.versions.take(which.take(pa.array(kept))) for which in (found.event_before, found.event_after))
        reason = pc.if_else(deleted, pa.scalar("row_delete"), pa.scalar(None, pa.string()))
        return self.columns.events(source, group[number], before=(before, nothing), after=(after, nothing), ts=source["ts"], reason=reason)

    def _whole(self, rows: _Rows, plain: npt.NDArray[np.bool_], before: bytes) -> Iterator[tuple[int, int]]:
        """Spans of the rows of partitions that are not plain and have all their items here. `before`: the partition of the
        rows before these."""
        ends = {(rows.pks[at], rows.names[at]) for at in (0, -1)} & {each for each in self._given_back if each is not None}
        parted = {before, self.next, *(pk for pk, _ in ends)}
        for pk, run in groupby(np.flatnonzero(~plain).tolist(), key=rows.pks.__getitem__):
            span = list(run)
            if pk not in parted and span[-1] - span[0] + 1 == len(span):
                yield span[0], span[-1] + 1

    def _plain(self, rows: _Rows, known: dict[bytes, bytes]) -> npt.NDArray[np.bool_]:
        """Rows of partitions without a head, except those of which an item is or was returned to the
        stream."""
        headed = {pk for pk, name in zip(rows.pks, rows.names, strict=True) if not name}
        if self._last[1]:
            headed.add(self._last[0])
        plain = [pk not in headed and pk not in known for pk in rows.pks]
        self._last = rows.pks[-1], rows.pks[-1] in headed
        for end in (0, -1):
            plain[end] &= (rows.pks[end], rows.names[end]) not in self._given_back
        return np.array(plain, bool)


class _Rows:
    """Items by row: for each row its partition, its name in it, its key, and whether two of its items have
    the same timestamp, which makes one event; for each item the number of its row."""

    def __init__(self, items: pa.RecordBatch, begins: Ints) -> None:
        self.items, self.begins = items, begins
        self.of: Ints = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, items.num_rows)))
        pks, names = (items[name].take(pa.array(begins)) for name in ("pk", "row"))
        self.pks, self.names, self.keys = pks.to_pylist(), names.to_pylist(), joined(pks, names).to_pylist()
        moments = starts(items, ["pk", "row", "ts", "content"])
        self.twice = np.bincount(self.of[moments], minlength=len(begins)) < np.bincount(self.of, minlength=len(begins))

    def given(self) -> Given:
        return Given(self.items, self.pks, self.names, [*self.begins.tolist(), self.items.num_rows], self.twice)

    def part(self, start: int, end: int) -> _Rows:
        """Some of the rows, by number."""
        if (start, end) == (0, len(self.begins)):
            return self
        first, last = np.append(self.begins, self.items.num_rows)[[start, end]].tolist()
        return _Rows(self.items.slice(first, last - first), self.begins[start:end] - first)


def looked_up(shard: Shard, rows: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[int, int, dict[bytes, bytes]]]:
    """The records of some rows, given by the ascending keys of their heads and their own, and of those heads.
    Yields parts that fit in memory: the first row, the row after the last, by number, and the existing
    records."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    at = 0
    head: dict[bytes, bytes] = {}
    for some, found in shard.get_parts(keys):
        known = head | found
        end = bisect_right(rows, some[-1], lo=at, key=itemgetter(1))
        if end > at:
            yield at, end, known
        at = end
        # The head of a partition may have come with earlier rows.
        head = {rows[at][0]: known[rows[at][0]]} if at < len(rows) and rows[at][0] in known else {}
