"""A second opinion on the join: collect all facts of a partition, then ask of each cell whether it wins and
whether anything covers it.

Deliberately naive, and written apart from `writetime.cassandra.merge`: no state, no merging step by step, no
positions. Tables here have int clusterings (c ascending, d descending), so that order is arithmetic. Also the
hypothesis strategies for small, tie-ridden partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cmp_to_key
from uuid import UUID

from hypothesis import strategies as st

from writetime.cassandra.merge.counters import Shard, ShardKind, encode_context
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Column, Table

NOW = 101
TABLE_ID = UUID(int=1)
KEY = b"\x00\x00\x00\x07"


def make_table(*columns: Column, flags: Iterable[str] = ("compound",), **facts: object) -> Table:
    return Table("ks", "t", TABLE_ID, {column.name: column for column in columns}, flags=frozenset(flags), **facts)  # type: ignore[arg-type]


KEYS = (
    Column("p", "partition_key", "int", 0),
    Column("c", "clustering", "int", 0),
    Column("d", "clustering", "int", 1, descending=True),
)
REGULARS = (Column("a", "regular", "int"), Column("b", "regular", "text"), Column("m", "regular", "map<int, int>"))
STATICS = (Column("s", "static", "int"), Column("t", "static", "set<int>"))
WITH_STATICS = make_table(*KEYS, *STATICS, *REGULARS)
WITHOUT_STATICS = make_table(*KEYS, *REGULARS)
COUNTERS = make_table(*KEYS, Column("n", "regular", "counter"), Column("sn", "static", "counter"), flags=["compound", "counter"])


def i32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big", signed=True)


def update(**parts: object) -> PartitionUpdate:
    return PartitionUpdate(TABLE_ID, KEY, **parts)  # type: ignore[arg-type]


# --- strategies: few timestamps, few values, so that ties are the rule

timestamps = st.integers(0, 4)
seconds = st.integers(100, 102)
deletions = st.builds(DeletionTime, timestamps, seconds)
clusterings = st.tuples(st.integers(0, 2), st.integers(0, 2)).map(lambda pair: tuple(map(i32, pair)))
liveness = st.one_of(
    st.builds(Liveness, timestamps),
    st.builds(Liveness, timestamps, st.integers(1, 2), seconds),
    st.builds(Liveness, timestamps, st.just(0x7FFFFFFF), seconds),
)


def cells(column: str, paths: st.SearchStrategy[bytes | None], values: st.SearchStrategy[bytes]) -> st.SearchStrategy[Cell]:
    name = st.just(column)
    return st.one_of(
        st.builds(Cell, name, timestamps, values, paths),
        st.builds(Cell, name, timestamps, values, paths, st.integers(1, 2), seconds),
        st.builds(Cell, name, timestamps, st.just(b""), paths, st.just(0), seconds),
    )


small_values = st.sampled_from([b"", i32(1), i32(-1)])
elements = st.integers(0, 1).map(i32)
regular_cells = st.one_of(
    cells("a", st.none(), small_values), cells("b", st.none(), st.sampled_from([b"", b"x", b"\xff"])), cells("m", elements, small_values)
)
static_cells = st.one_of(cells("s", st.none(), small_values), cells("t", elements, st.just(b"")))


def rows_of(
    clustering: st.SearchStrategy[tuple[bytes, ...] | None], cell: st.SearchStrategy[Cell], complex_columns: tuple[str, ...]
) -> st.SearchStrategy[Row]:
    optional = {"liveness": st.none() | liveness, "deletion": st.none() | deletions}
    return st.builds(
        Row,
        clustering,
        cells=st.lists(cell, max_size=3).map(tuple),
        complex_deletions=st.dictionaries(st.sampled_from(complex_columns), deletions, max_size=1),
        **(optional if cell is regular_cells else {}),
    )


prefixes = st.lists(st.integers(0, 2).map(i32), max_size=2).map(tuple)
bounds = st.builds(Bound, prefixes, st.booleans())
range_tombstones = st.builds(RangeTombstone, bounds, bounds, deletions)
rows = rows_of(clusterings, regular_cells, ("m",))
static_rows = rows_of(st.none(), static_cells, ("t",))


def updates_of(*, statics: bool) -> st.SearchStrategy[PartitionUpdate]:
    return st.builds(
        PartitionUpdate,
        st.just(TABLE_ID),
        st.just(KEY),
        deletion=st.one_of(st.none(), st.none(), deletions),
        static_row=(st.none() | static_rows) if statics else st.none(),
        rows=st.lists(rows, max_size=3).map(tuple),
        range_tombstones=st.lists(range_tombstones, max_size=2).map(tuple),
    )


updates = updates_of(statics=True)

shards = st.builds(Shard, st.sampled_from([b"\x01" * 16, b"\x02" * 16]), st.integers(0, 2), st.integers(-2, 2), st.just(ShardKind.GLOBAL))
contexts = st.lists(shards, min_size=1, max_size=2, unique_by=lambda shard: shard.counter_id).map(tuple).map(encode_context)


def counter_cells(column: str) -> st.SearchStrategy[Cell]:
    return st.one_of(
        st.builds(Cell, st.just(column), timestamps, contexts),
        st.builds(Cell, st.just(column), timestamps, st.just(b"")),
        st.builds(Cell, st.just(column), timestamps, st.just(b""), st.none(), st.just(0), seconds),
    )


# Row and range deletions are left out: what they do to a counter depends on the order of arrival, in the ring
# as here.
counter_updates = st.builds(
    PartitionUpdate,
    st.just(TABLE_ID),
    st.just(KEY),
    static_row=st.none() | st.builds(Row, st.none(), cells=st.lists(counter_cells("sn"), max_size=2).map(tuple)),
    rows=st.lists(st.builds(Row, clusterings, cells=st.lists(counter_cells("n"), max_size=2).map(tuple)), max_size=3).map(tuple),
)


# --- the oracle

Fact = tuple[str, bytes | None, bytes, int, int, int]
"""column, path, value, timestamp, ttl, local deletion time"""


def answer(history: Iterable[PartitionUpdate], now: int) -> dict[tuple[int, int] | None, set[Fact]]:
    """What SELECT shows: cells (static ones included) by (c, d), or by None for static content that stands
    alone."""
    history = list(history)
    partition = [u.deletion for u in history if u.deletion]
    static = _survivors([u.static_row for u in history if u.static_row], partition)
    static_live = {_fact(cell) for cell in static if _alive(cell, now)}
    shown: dict[tuple[int, int] | None, set[Fact]] = {}
    by_clustering = defaultdict(list)
    for u in history:
        for row in u.rows:
            by_clustering[_place(row.clustering)].append(row)
    for place, versions in by_clustering.items():
        over = [*partition, *(t.deletion for u in history for t in u.range_tombstones if _covers(t, place))]
        live = {_fact(cell) for cell in _survivors(versions, over) if _alive(cell, now)}
        if live or _row_is_alive(versions, over, now):
            shown[place] = live | static_live
    if static_live and not shown:
        shown[None] = static_live
    return shown


def _survivors(versions: list[Row], over: list[DeletionTime]) -> list[Cell]:
    """Cells that win among those of their column and path, and that no deletion of the row, its column or
    from outside covers."""
    rivals = defaultdict(list)
    for row in versions:
        for cell in row.cells:
            rivals[cell.column, cell.path].append(cell)
    own = [row.deletion for row in versions if row.deletion]
    found = []
    for (column, _), candidates in rivals.items():
        winner = sorted(candidates, key=cmp_to_key(_compare))[-1]
        complex_ones = [row.complex_deletions[column] for row in versions if column in row.complex_deletions]
        if all(d.marked_for_delete_at < winner.timestamp for d in (*over, *own, *complex_ones)):
            found.append(winner)
    return found


def _compare(left: Cell, right: Cell) -> int:
    """Negative if `left` loses; one question after the other."""
    if left.timestamp != right.timestamp:
        return left.timestamp - right.timestamp
    left_dies, right_dies = left.is_tombstone or left.is_expiring, right.is_tombstone or right.is_expiring
    if left_dies != right_dies:
        return 1 if left_dies else -1
    if left.is_tombstone != right.is_tombstone:
        return 1 if left.is_tombstone else -1
    if left_dies and left.local_deletion_time != right.local_deletion_time:
        return left.local_deletion_time - right.local_deletion_time
    if left.is_expiring and left.ttl != right.ttl:
        return right.ttl - left.ttl
    a, b = list(left.value), list(right.value)
    return (a > b) - (a < b)


def _row_is_alive(versions: list[Row], over: list[DeletionTime], now: int) -> bool:
    marks = [row.liveness for row in versions if row.liveness]
    if not marks:
        return False
    newest = [mark for mark in marks if mark.timestamp == max(m.timestamp for m in marks)]
    if any(d.marked_for_delete_at >= newest[0].timestamp for d in (*over, *(r.deletion for r in versions if r.deletion))):
        return False
    if any(mark.ttl == 0x7FFFFFFF for mark in newest):
        return False
    expiring = [mark for mark in newest if mark.ttl]
    return max(mark.expires_at for mark in expiring) > now if expiring else True


def _alive(cell: Cell, now: int) -> bool:
    return not cell.is_tombstone and not (cell.is_expiring and cell.local_deletion_time <= now)


def _place(clustering: tuple[bytes | None, ...] | None) -> tuple[int, int]:
    c, d = clustering or ()
    return number(c), number(d)


def _covers(tombstone: RangeTombstone, place: tuple[int, int]) -> bool:
    def rank(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(-value if column else value for column, value in enumerate(values))

    def sides(bound: Bound) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return rank(place)[: len(bound.values)], rank(number(value) for value in bound.values)

    row, start = sides(tombstone.start)
    after_start = row > start or (row == start and (tombstone.start.inclusive or not start))
    row, end = sides(tombstone.end)
    return after_start and (row < end or (row == end and (tombstone.end.inclusive or not end)))


def _fact(cell: Cell) -> Fact:
    return cell.column, cell.path, cell.value, cell.timestamp, cell.ttl, cell.local_deletion_time


def as_answer(shown: Iterable[tuple[tuple[bytes | None, ...] | None, Iterable[Cell]]]) -> dict[tuple[int, int] | None, set[Fact]]:
    """Rows as (clustering, cells) in the oracle's form."""
    return {None if clustering is None else _place(clustering): {_fact(cell) for cell in found} for clustering, found in shown}
