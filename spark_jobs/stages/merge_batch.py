"""Merges rows that depend on nothing but their own items, many at once: most rows of most batches.

Strategy: if neither the state nor the batch has a head of a partition, its rows are independent of each
other. Those in which nothing expires are merged by one call of the compiled join
(`writetime.kernels.row_batches.join`), and their events and records are built as arrays. All other rows are
returned to `merge_stream`, which defines the result. All items of a row are merged in the same way: the last
row of a stretch waits for the next stretch, and a row that would wait too long is returned for good."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.arrow_runs import (
    Ints,
    joined,
    lengths,
    starts,
    whole,
    without_prefix,
)
from spark_jobs.state.shards import Shard
from writetime.cassandra.merge.partition_fold import Settings, new_ties
from writetime.cassandra.types.byte_comparable import LENGTH_BYTES
from writetime.kernels import row_batches
from writetime.kernels.mutation_columns import chunks

_WAITING: Final = 4096
"""Items of one row that wait for more of them."""
_BYTES_PER_BATCH: Final = 4 << 20


class Part(NamedTuple):
    """Rows of FOLDED for the plain rows among some items, and the items of all other rows."""

    done: list[pa.RecordBatch]
    rest: pa.RecordBatch | None


class PlainRows:
    """One shard's plain rows. `counts` are those of the whole shard's merge, by which events are numbered."""

    def __init__(
        self,
        settings: Settings,
        shard: Shard,
        about: dict[str, Any],
        schema: pa.Schema,
        counts: Counter[str],
        untold: frozenset[int] = frozenset(),
    ) -> None:
        self.settings, self.shard, self.about, self.schema, self.counts, self.untold = settings, shard, about, schema, counts, untold
        self._waiting: pa.RecordBatch | None = None
        # Rows with items that went to the stream: that of the last message, and that of this one.
        self._given_back: list[tuple[bytes, bytes] | None] = [None, None]
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
                self._waiting = rows.slice(last)
                rows, begins = rows.slice(0, last), begins[:-1]
        waits_for = None if self._waiting is None else self._waiting["pk"][0].as_py()
        found = _Rows(rows, begins)
        self.next = waits_for
        for start, end, known in looked_up(self.shard, list(zip(found.pks, found.keys, strict=True))):
            self.next = found.pks[end] if end < len(begins) else waits_for
            yield self._joined(found.part(start, end), known, enough())

    def _joined(self, rows: _Rows, known: dict[bytes, bytes], enough: bool) -> Part:
        fast = self._plain(rows, known) & ~rows.twice & (not enough)
        at = np.flatnonzero(fast)
        items = np.flatnonzero(fast[rows.of])
        group = (np.cumsum(fast) - 1)[rows.of[items]]
        order = self.settings.order
        found = row_batches.join(
            pa.array(group, pa.int32()),
            rows.items["item"].take(pa.array(items)),
            pa.array([known.get(rows.keys[row], b"") for row in at.tolist()], pa.binary()),
            now=self.settings.now,
            since=self.settings.since,
            counter=order.counter,
            dropped=order.dropped,
            policy=self.settings.policy,
            engine=self.settings.engine,
        )
        left = found.left.to_numpy(zero_copy_only=False)
        fast[at[left]] = False
        out = [*self._applied(rows, items, ~left[group], found), *self._events(rows, items, group, left, found)]
        out += self._records([rows.keys[row] for row in at.tolist()], known, left, found)
        rest = np.flatnonzero(~fast[rows.of])
        return Part(out, rows.items.take(pa.array(rest)) if len(rest) else None)

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

    # --- output

    def _applied(self, rows: _Rows, items: Ints, done: Any, found: row_batches.Joined) -> list[pa.RecordBatch]:
        """Count updates as `join` does: those of one item here; for the others each item is named."""
        applied = items[found.applied.to_numpy(zero_copy_only=False) & done]
        parts = rows.items["parts"].to_numpy()[applied]
        self.counts["applied"] += int((parts == 1).sum())
        several = pa.array(applied[parts > 1])
        if not len(several):
            return []
        self.counts["several"] += len(several)
        return self._batches("applied", key=rows.items["content"].take(several))

    def _events(self, rows: _Rows, items: Ints, group: Ints, left: Any, found: row_batches.Joined) -> list[pa.RecordBatch]:
        number = found.event_item.to_numpy()
        kept = np.flatnonzero(~left[group[number]])
        number = number[kept]
        of, size = group[number], len(kept)
        if size == 0:
            return []
        last = np.append(of[1:] != of[:-1], True)
        deleted = found.event_deleted.take(pa.array(kept))
        source = rows.items.select(["pk", "ts", "copies"]).take(pa.array(items[number]))
        nothing = pa.repeat(pa.scalar(b"", pa.binary()), size)
        return self._batches(
            "event",
            seq=self._numbered(source["copies"]),
            last=pa.array(last),
            pk=without_prefix(source["pk"], LENGTH_BYTES),
            before=found.versions.take(found.event_before.take(pa.array(kept))),
            static_before=nothing,
            after=found.versions.take(found.event_after.take(pa.array(kept))),
            static_after=nothing,
            ts=source["ts"],
            reason=pc.if_else(deleted, pa.scalar("row_delete"), pa.scalar(None, pa.string())),
            copies=source["copies"],
        )

    def _numbered(self, copies: Any) -> Any:
        """The numbers of the next events; null for those that are not published."""
        hidden = np.array([untold(each, self.untold) for each in copies.to_pylist()], bool) if self.untold else np.zeros(len(copies), bool)
        first = self.counts["events"]
        numbered = len(hidden) - int(hidden.sum())
        self.counts["events"] += numbered
        if numbered < len(hidden):
            self.counts["untold"] += len(hidden) - numbered
        return pa.array(first + np.cumsum(~hidden) - 1, mask=hidden)

    def _records(self, keys: list[bytes], known: dict[bytes, bytes], left: Any, found: row_batches.Joined) -> list[pa.RecordBatch]:
        changed = np.flatnonzero(found.changed.to_numpy(zero_copy_only=False) & ~left)
        if len(changed) == 0:
            return []
        states = found.states.take(pa.array(changed))
        written = [keys[row] for row in changed.tolist()]
        if self.settings.policy == "3.11":
            pairs = zip(states.to_pylist(), written, strict=True)
            if ties := sum(new_ties(known.get(each, b""), state, engine=self.settings.engine) for state, each in pairs):
                self.counts["ties"] += ties
        return self._batches("record", key=pa.array(written, pa.binary()), state=states, expires_at=found.expiries.take(pa.array(changed)))

    def _batches(self, kind: str, **columns: Any) -> list[pa.RecordBatch]:
        """Rows of that kind, in batches of bounded size."""
        size = len(next(iter(columns.values())))
        same = {"kind": kind, **self.about}
        arrays = [
            columns[field.name]
            if field.name in columns
            else pa.repeat(pa.scalar(same[field.name], field.type), size)
            if field.name in same
            else pa.nulls(size, field.type)
            for field in self.schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        bytes_ = sum(lengths(column) for column in columns.values() if pa.types.is_binary(column.type))
        return [batch.slice(start, end - start) for start, end in chunks(bytes_, _BYTES_PER_BATCH)]


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

    def part(self, start: int, end: int) -> _Rows:
        """Some of the rows, by number."""
        if (start, end) == (0, len(self.begins)):
            return self
        first, last = np.append(self.begins, self.items.num_rows)[[start, end]].tolist()
        return _Rows(self.items.slice(first, last - first), self.begins[start:end] - first)


def untold(copies: Sequence[dict[str, int]] | None, segments: frozenset[int]) -> bool:
    """Whether a mutation occurs in these segments only."""
    return bool(segments and copies) and all(copy["segment"] in segments for copy in copies or ())


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
