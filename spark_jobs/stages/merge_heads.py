"""Merges partitions with a head, many rows at once: those with static rows, with deletions of ranges or of the whole
partition.

Strategy: `partition_fold.Partition` folds the head, as in the stream. What that does to a row becomes steps among its
items: a deletion begins to cover it, static content changes. All rows of many partitions, those of the state that new
deletions cover or that show other static content among them, are then merged by one call of the compiled join
(`writetime.kernels.row_batches.join`). Rows in which something expires are folded one by one, within their partition.

Only for partitions all of whose items are there, of which nothing is due, and which are not too large. All others are
returned to `merge_stream`, which defines the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.arrow_runs import lengths
from spark_jobs.stages.folded_columns import FoldedColumns
from spark_jobs.state.shards import Shard
from writetime.cassandra.commitlog.mutation import decode_update
from writetime.cassandra.merge.partition_fold import Event, HeadStep, Item, Moment, Output, Partition, Place, Settings
from writetime.cassandra.merge.partition_head import decode_head
from writetime.cassandra.merge.row_codec import NOTHING
from writetime.cassandra.model import DeletionTime
from writetime.cassandra.schema.model import Table
from writetime.cassandra.types.byte_comparable import HEAD, split_record_key
from writetime.errors import MalformedMutation
from writetime.kernels import row_batches

_MOST_ROWS: Final = 1 << 16
"""Rows of the state that are read for one partition at most; a larger one is left to the stream."""
_MOST_STEPS: Final = 1 << 18
"""Steps of one partition at most; one with more is left to the stream."""
_STEPS: Final = 1 << 16
"""Steps that are merged at once, about."""
_BYTES: Final = 64 << 20
"""Bytes of states that are read at once, about, a row counted as `_ROW` beside its state."""
_ROW: Final = 256
_REASONS: Final = (None, "row_delete", "range_delete", "partition_delete", "static")
_ROW_DELETE, _STATIC = _REASONS.index("row_delete"), _REASONS.index("static")

Rows: TypeAlias = dict[str, Any] | pa.RecordBatch
"""A row of FOLDED, or several."""


@dataclass(frozen=True, slots=True)
class Given:
    """Items of some rows, in order: for each row its partition's key, its name in it and its first item (with one past
    the last row); and whether two of its items are of one moment."""

    items: pa.RecordBatch
    pks: Sequence[bytes]
    names: Sequence[bytes]
    begins: Sequence[int]
    twice: npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Opened:
    """A partition whose head is folded. `first`, `end`: its rows among those given; `sources`: the head's items, by
    moment; `states`: rows of the state in the ranges that have to be read; `groups`: its rows among those merged."""

    pk: bytes
    partition: Partition
    outputs: list[Output]
    first: int
    end: int
    sources: dict[Moment, int]
    states: dict[bytes, bytes] = field(default_factory=dict)
    groups: list[int] = field(default_factory=list)
    left: list[tuple[bytes, bytes, int, int]] = field(default_factory=list)

    @property
    def most_steps(self) -> int:
        """An upper bound, all of its rows counted: those with items, and those that were read."""
        of_head = len(self.partition.news) + len(self.partition.statics)
        return of_head * (self.end - self.first + len(self.states))


class HeadedPartitions:
    """Those of one shard. `is_due`: whether something in a partition expires; `rows_of`: makes FOLDED rows of the outputs
    of a partition, by its key; `item`: makes an item of a row of ITEMS and its decoded part."""

    def __init__(
        self,
        settings: Settings,
        table: Table,
        shard: Shard,
        columns: FoldedColumns,
        *,
        is_due: Callable[[bytes], bool],
        rows_of: Callable[[bytes, Iterable[Output]], Iterator[dict[str, Any]]],
        item: Callable[[dict[str, Any], Any], Item],
    ) -> None:
        self._settings, self._table, self._shard, self._columns = settings, table, shard, columns
        self._is_due, self._rows_of, self._item = is_due, rows_of, item

    def fold(
        self, given: Given, spans: Iterable[tuple[int, int]], known: Mapping[bytes, bytes]
    ) -> tuple[list[Rows], npt.NDArray[np.bool_]]:
        """Fold the partitions whose rows are these spans of those given; `known`: the records of their heads and rows.
        Returns the results, and which rows they are of."""
        heads = _of_heads(given.items)
        begun = (self._begun(given, first, end, known, heads) for first, end in spans)
        opened = self._with_states([each for each in begun if each is not None])
        done = np.zeros(len(given.pks), bool)
        found: list[Rows] = []
        merge = _Merge(given, self._settings)
        for each in (each for each in opened if each.most_steps <= _MOST_STEPS):
            done[each.first : each.end] = True
            merge.add(each, known)
            if merge.is_large:
                found += self._merged(merge)
                merge = _Merge(given, self._settings)
        return found + self._merged(merge), done

    def _begun(
        self, given: Given, first: int, end: int, known: Mapping[bytes, bytes], heads: Mapping[int, dict[str, Any]]
    ) -> _Opened | None:
        """None if the partition has to be folded by the stream."""
        pk = given.pks[first]
        if self._is_due(pk):
            return None
        place = range(given.begins[first], given.begins[first + 1]) if given.names[first] == HEAD else range(0)
        try:
            head = decode_head(known.get(pk, b""), self._settings.order)
            items = [self._item(row, decode_update(row["item"], self._table)) for row in map(heads.__getitem__, place)]
            partition = Partition(self._settings, head)
            outputs = list(partition.begin(items))
        except MalformedMutation:
            # The stream says where.
            return None
        if not partition.fits_steps:
            return None
        sources = {partition.moment(item): at for item, at in zip(items, place, strict=True)}
        return _Opened(pk, partition, outputs, first, end, sources)

    def _with_states(self, opened: list[_Opened]) -> list[_Opened]:
        """Read the rows of the state that the partitions ask for; without those that ask for too many."""
        asked = [(each.pk + start, each.pk + end) for each in opened for start, end in each.partition.scanned]
        if not asked:
            return opened
        at = size = 0
        for key, state in self._shard.scan_all(asked):
            while not key.startswith(opened[at].pk):
                at += 1
            opened[at].states[key[len(opened[at].pk) :]] = state
            size += _ROW + len(state)
            if len(opened[at].states) > _MOST_ROWS or size > _BYTES:
                return opened[:at]
        return opened

    def _merged(self, merge: _Merge) -> list[Rows]:
        """Results for all partitions in it."""
        if not merge.opened:
            return []
        found = merge.joined()
        left = found.left.to_numpy(zero_copy_only=False)
        out: list[Rows] = []
        visible = merge.visible(found)
        showed, shows = found.showed.to_pylist(), found.shows.to_pylist()
        for each in merge.opened:
            for group in each.groups:
                if left[group]:
                    each.left.append(merge.row(group))
                else:
                    each.partition.note_row(visible.get(group, ()), showed=showed[group], shows=shows[group])
            out += self._rows_of(split_record_key(each.pk)[0], self._one_by_one(each, merge.given.items))
        return out + merge.applied(self._columns, found) + merge.events(self._columns, found) + merge.records(self._columns, found)

    def _one_by_one(self, opened: _Opened, items: pa.RecordBatch) -> Iterator[Output]:
        """The outputs of a partition that are not arrays: of its head, of rows that were left."""
        yield from opened.outputs
        opened.partition.restart()
        for key, state, first, end in sorted(opened.left):
            rows = items.slice(first, end - first).to_pylist()
            yield from opened.partition.fold_row(key, state, (self._item(row, row["item"]) for row in rows))
        for output in opened.partition.finish():
            # A row that was merged at once knows its source by number.
            if isinstance(output, Event) and isinstance(output.source, int):
                yield replace(output, source=items["copies"][output.source].as_py())
            else:
                yield output


def _of_heads(items: pa.RecordBatch) -> dict[int, dict[str, Any]]:
    """The items of heads, by number."""
    at = np.flatnonzero(lengths(items["row"]) == len(HEAD))
    rows = items.select(["ts", "content", "parts", "copies", "item"]).take(pa.array(at)).to_pylist()
    return dict(zip(at.tolist(), rows, strict=True))


class _Merge:
    """Rows of several partitions, as arguments of the join and as what its results are about."""

    def __init__(self, given: Given, settings: Settings) -> None:
        self.given, self._settings = given, settings
        self.opened: list[_Opened] = []
        self._ts = given.items["ts"].to_pylist()
        self._contents = given.items["content"].to_pylist()
        # By group.
        self._keys: list[bytes] = []
        self._states: list[bytes] = []
        self._actives: list[DeletionTime | None] = []
        self._places: list[tuple[bytes, int, int]] = []
        # By step.
        self._group: list[int] = []
        self._source: list[int] = []
        self._has_part: list[bool] = []
        self._deletion: list[DeletionTime | None] = []
        self._reason: list[int] = []
        self._moment: list[Moment] = []
        self._cells_before: list[int] = []
        self._cells_after: list[int] = []
        # Live static cells; the first are none.
        self._cells: list[bytes] = [NOTHING]

    @property
    def is_large(self) -> bool:
        return len(self._group) > _STEPS

    def add(self, opened: _Opened, known: Mapping[bytes, bytes]) -> None:
        given, pk = self.given, opened.pk
        self.opened.append(opened)
        first_cells = len(self._cells)
        self._cells += opened.partition.static_cells
        at = {given.names[row]: row for row in range(opened.first, opened.end) if given.names[row] != HEAD}
        for name in sorted({*at, *opened.states}) if opened.states else at:
            row = at.get(name)
            state = opened.states.get(name) or known.get(pk + name, b"")
            items = range(0) if row is None else range(given.begins[row], given.begins[row + 1])
            active, steps = opened.partition.head_steps(name)
            if (row is not None and given.twice[row]) or opened.partition.is_like_alone(name):
                opened.left.append((name, state, items.start, items.stop))
                continue
            group = len(self._keys)
            opened.groups.append(group)
            self._keys.append(pk + name)
            self._states.append(state)
            self._actives.append(active)
            self._places.append((name, items.start, items.stop))
            self._add_row(opened, group, items, steps, first_cells)

    def _add_row(self, opened: _Opened, group: int, items: range, steps: Sequence[HeadStep], first_cells: int) -> None:
        moments = {opened.partition.moment_of(self._ts[at], self._contents[at]): at for at in items}
        of_head = {step.moment: step for step in steps}
        before = first_cells
        for moment in sorted({*moments, *of_head}) if of_head else moments:
            item, step = moments.get(moment), of_head.get(moment)
            after = before if step is None or step.cells is None else first_cells + step.cells
            self._group.append(group)
            self._source.append(opened.sources[moment] if item is None else item)
            self._has_part.append(item is not None)
            self._deletion.append(None if step is None else step.deletion)
            self._reason.append(0 if step is None or step.reason is None else _REASONS.index(step.reason))
            self._moment.append(moment)
            self._cells_before.append(before)
            self._cells_after.append(after)
            before = after

    def row(self, group: int) -> tuple[bytes, bytes, int, int]:
        """Name and state of a row, and its first item and the one past its last."""
        name, first, end = self._places[group]
        return name, self._states[group], first, end

    def joined(self) -> row_batches.Joined:
        source = pa.array(self._source, pa.int32(), mask=~np.array(self._has_part, bool))
        deletions, order = self._deletion, self._settings.order
        steps = row_batches.Steps(
            has_part=pa.array(self._has_part, pa.bool_()),
            deletes=pa.array([each is not None for each in deletions], pa.bool_()),
            timestamps=_timestamps(deletions),
            times=_times(deletions),
            changes_statics=pa.array([a != b for a, b in zip(self._cells_before, self._cells_after, strict=True)], pa.bool_()),
        )
        return row_batches.join(
            pa.array(self._group, pa.int32()),
            self.given.items["item"].take(source),
            pa.array(self._states, pa.binary()),
            now=self._settings.now,
            since=self._settings.since,
            counter=order.counter,
            dropped=order.dropped,
            active_timestamps=_timestamps(self._actives),
            active_times=_times(self._actives),
            steps=steps,
            policy=self._settings.policy,
            engine=self._settings.engine,
        )

    # --- results

    def visible(self, found: row_batches.Joined) -> dict[int, list[tuple[Place | None, Place | None]]]:
        """From where to where rows are visible, by group, where their partition has to know. The source is the number of an
        item."""
        asked = {group for each in self.opened if each.partition.coverage is not None for group in each.groups}
        if not asked:
            return {}
        showed = found.showed.to_pylist()
        since: dict[int, Place | None] = {group: None for group in asked if showed[group]}
        between: dict[int, list[tuple[Place | None, Place | None]]] = {group: [] for group in asked}
        there = (pc.binary_length(found.versions.take(which)).to_numpy() > 0 for which in (found.event_before, found.event_after))
        for step, was, is_ in zip(found.event_item.to_pylist(), *there, strict=True):
            group = self._group[step]
            if group in asked and was != is_:
                place = self._moment[step], self._source[step]
                if is_:
                    since[group] = place
                else:
                    between[group].append((since.pop(group), place))
        for group, begin in since.items():
            between[group].append((begin, None))
        return between

    def applied(self, columns: FoldedColumns, found: row_batches.Joined) -> list[pa.RecordBatch]:
        return columns.applied(self.given.items, np.array(self._source, np.int64)[found.applied.to_numpy(zero_copy_only=False)])

    def events(self, columns: FoldedColumns, found: row_batches.Joined) -> list[pa.RecordBatch]:
        number = found.event_item.to_numpy()
        source = self.given.items.select(["pk", "copies"]).take(pa.array(np.array(self._source, np.int32)[number]))
        before, after = (found.versions.take(which) for which in (found.event_before, found.event_after))
        there = [pc.binary_length(rows).to_numpy() > 0 for rows in (before, after)]
        cells = pa.array(self._cells, pa.binary())
        statics = [
            cells.take(pa.array(np.where(shown, np.array(at, np.int64)[number], 0)))
            for shown, at in zip(there, (self._cells_before, self._cells_after), strict=True)
        ]
        return columns.events(
            source,
            np.array(self._group, np.int64)[number],
            before=(before, statics[0]),
            after=(after, statics[1]),
            ts=pa.array([self._moment[step][2] for step in number.tolist()], pa.int64()),
            reason=self._reasons(found, number, there[1]),
        )

    def _reasons(self, found: row_batches.Joined, number: Any, shows: Any) -> Any:
        """Why rows change: the part of an update that concerns the row most directly."""
        of_head = np.array(self._reason, np.int8)[number]
        deleted, writes = (each.to_numpy(zero_copy_only=False) for each in (found.event_deleted, found.event_writes))
        otherwise = np.where(of_head != 0, of_head, np.where(writes, 0, _STATIC))
        codes = np.where(deleted, _ROW_DELETE, np.where(writes & shows, 0, otherwise))
        return pa.array(_REASONS, pa.string()).take(pa.array(codes))

    def records(self, columns: FoldedColumns, found: row_batches.Joined) -> list[pa.RecordBatch]:
        changed = found.changed.to_numpy(zero_copy_only=False) & ~found.left.to_numpy(zero_copy_only=False)
        return columns.records(self._keys, self._states, changed, found)


def _timestamps(deletions: Sequence[DeletionTime | None]) -> Any:
    return pa.array([None if each is None else each.marked_for_delete_at for each in deletions], pa.int64())


def _times(deletions: Sequence[DeletionTime | None]) -> Any:
    return pa.array([None if each is None else each.local_deletion_time for each in deletions], pa.int64())
