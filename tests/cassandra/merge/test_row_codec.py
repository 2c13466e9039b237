"""Flat rows: one form for one content, and the readable twin and the compiled one alike on whatever can be
merged."""

from __future__ import annotations

from functools import reduce
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import (
    KEY,
    TABLE_ID,
    cells,
    deletions,
    liveness,
    rows,
    static_rows,
    timestamps,
)
from tests.examples import examples
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.counters import Shard, ShardKind, encode_context
from writetime.cassandra.merge.liveness import by_column, visible
from writetime.cassandra.merge.reconcile import Policy, max_timestamp, merge_rows, settle_row
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.model import (
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    Cell,
    DeletionTime,
    Liveness,
    PartitionUpdate,
    Row,
)
from writetime.errors import MalformedMutation
from writetime.kernels import merge as kernel

ENGINES: tuple[Engine, ...] = ("python", "numba")
LONG = 2**63 - 1


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Not on the clock of the first example."""
    kernel.compile_ahead()


# --- rows that tie, and rows at the ends of all ranges

numbers = st.sampled_from([NO_TIMESTAMP, NO_TIMESTAMP + 1, -1, 0, 1, 63, 64, 2**31, LONG - 1, LONG])
times = st.sampled_from([0, 1, 100, 0xFFFFFFFE, NO_DELETION_TIME])
ttls = st.sampled_from([-(2**31), -1, 0, 0, 1, 0x7FFFFFFF])
far_deletions = st.builds(DeletionTime, numbers, times)
names = st.sampled_from(["a", "ab", "é", "z" * 200, ""])
blobs = st.sampled_from([b"", b"\0", b"\x7f", b"\x80", b"a" * 127, b"b" * 300])
far_cells = st.builds(Cell, names, numbers, blobs, st.none(), ttls, times)
far_elements = st.builds(Cell, st.sampled_from(["m", "mm", "ñ"]), numbers, blobs, blobs, ttls, times)
far_rows = st.builds(
    Row,
    st.just((b"k", None, b"")),
    st.none() | st.builds(Liveness, numbers, ttls, times),
    st.none() | far_deletions,
    st.booleans(),
    st.lists(far_cells | far_elements, max_size=4).map(tuple),
    st.dictionaries(st.sampled_from(["m", "mm", "x"]), far_deletions, max_size=2),
)
shadowable_rows = st.builds(Row, st.just((b"k",)), st.none() | liveness, deletions, st.booleans())
any_row = rows | static_rows | far_rows | shadowable_rows
pairs = (
    st.tuples(rows, rows)
    | st.tuples(static_rows, static_rows)
    | st.tuples(far_rows, far_rows)
    | st.tuples(shadowable_rows, shadowable_rows)
)
actives = st.none() | deletions | far_deletions
DROPPED = {"a": 2, "m": 1, "gone": LONG + 1}


def as_flat(row: Row) -> bytes:
    return row_codec.NOTHING if row.is_empty else row_codec.encode(row)


@given(any_row)
def test_a_row_comes_back_sorted(row: Row) -> None:
    back = row_codec.decode(row_codec.encode(row))
    assert row_codec.encode(back) == row_codec.encode(row)
    assert row_codec.decode(row_codec.encode(settle_row(row))) == settle_row(row)
    assert sorted(map(repr, back.cells)) == sorted(map(repr, row.cells))
    assert (back.clustering, back.liveness, back.deletion) == (row.clustering, row.liveness, row.deletion)
    assert back.complex_deletions == row.complex_deletions


@given(any_row, st.integers(0, 400))
def test_what_shows_is_read_as_decoding_reads_it(row: Row, now: int) -> None:
    live = row_codec.live(row_codec.encode(settle_row(row)), now)
    if live == row_codec.NOTHING:
        return
    decoded = row_codec.decode(live)
    assert row_codec.shown(live) == (decoded.clustering, by_column(decoded.cells))


def test_what_does_not_show_is_no_shown_row() -> None:
    for row in (Row((), liveness=Liveness(1)), Row((), deletion=DeletionTime(1, 1)), Row((), complex_deletions={"m": DeletionTime(1, 1)})):
        with pytest.raises(MalformedMutation, match="only live cells are allowed"):
            row_codec.shown(row_codec.encode(row))


@given(pairs)
def test_settled_rows_are_equal_if_their_bytes_are(pair: tuple[Row, Row]) -> None:
    a, b = map(settle_row, pair)
    assert (a == b) == (row_codec.encode(a) == row_codec.encode(b))


def test_a_name_that_is_no_text_comes_back() -> None:
    row = Row((), cells=(Cell("\udcff", 1, b"v"),))
    assert row_codec.decode(row_codec.encode(row)) == row
    assert row_codec.merge(row_codec.NOTHING, row_codec.encode(row), engine="numba") == row_codec.encode(row)


def test_what_was_written_at_once_takes_few_bytes() -> None:
    """21 columns of 8 bytes, with names of 8 bytes, and a TTL: in the log they take as much, but for two
    bytes a cell."""
    cells = tuple(Cell(f"column{i:02}", 1_700_000_000_000_000, bytes(8), None, 60, 1_700_000_060) for i in range(21))
    row = Row((bytes(8),), Liveness(1_700_000_000_000_000, 60, 1_700_000_060), cells=cells)
    assert len(row_codec.encode(row)) == 11 + 15 + 21 * (8 + 8 + 3)


# --- one against the other


@pytest.mark.parametrize("engine", ENGINES)
@given(pairs, actives)
def test_merging(engine: Engine, pair: tuple[Row, Row], active: DeletionTime | None) -> None:
    a, b = pair
    assert row_codec.merge(row_codec.encode(a), row_codec.encode(b), active=active, engine=engine) == as_flat(
        merge_rows(a, b, active=active)
    )
    assert row_codec.settle(row_codec.encode(b), active=active, engine=engine) == as_flat(settle_row(b, active=active))


@pytest.mark.parametrize("engine", ENGINES)
@given(pairs)
def test_merging_by_the_rules_of_3_11(engine: Engine, pair: tuple[Row, Row]) -> None:
    a, b = pair
    expected = merge_rows(a, b, policy="3.11")
    found = row_codec.merge(row_codec.encode(a), row_codec.encode(b), policy="3.11", engine=engine)
    assert found == as_flat(expected)
    assert row_codec.ties(found, engine=engine) == sum(cell.tied for cell in expected.cells)
    writes = expected.liveness is not None or bool(expected.cells or expected.complex_deletions)
    assert row_codec.writes(found, engine=engine) == (writes, expected.deletion is not None)


ENDS = (0, 100, 101, NO_DELETION_TIME)
TIES = [
    *(Row((b"k",), cells=(Cell("a", 0, value, None, ttl, end),)) for value in (b"", b"\1", b"\xff") for ttl in (0, 1, 2) for end in ENDS),
    *(Row((b"k",), Liveness(0, ttl, end)) for ttl in (0, 1, 2, 0x7FFFFFFF) for end in ENDS),
    *(Row((b"k",), None, DeletionTime(0, end), shadowable) for end in ENDS for shadowable in (False, True)),
    *(Row((b"k",), complex_deletions={"m": DeletionTime(0, end)}) for end in ENDS),
]


@pytest.mark.parametrize("policy", ["4.0", "3.11"])
def test_every_tie(policy: Policy) -> None:
    for a in TIES:
        for b in TIES:
            expected = as_flat(merge_rows(a, b, policy=policy))
            assert row_codec.merge(row_codec.encode(a), row_codec.encode(b), policy=policy, engine="numba") == expected


@pytest.mark.parametrize("engine", ENGINES)
@given(any_row, st.sampled_from([{}, DROPPED]), st.integers(99, 103))
def test_what_is_there_to_be_asked(engine: Engine, row: Row, dropped: dict[str, int], now: int) -> None:
    whole = row_codec.encode(row)
    shows = visible(row_codec.decode(whole), now=now, dropped=dropped)
    assert row_codec.live(whole, now, dropped, engine=engine) == (
        row_codec.encode(Row(shows.clustering, cells=shows.cells)) if shows else b""
    )
    assert row_codec.shows(whole, now, dropped, engine=engine) == (shows is not None)
    ends = [cell.local_deletion_time for cell in row.cells if cell.is_expiring]
    ends += [row.liveness.expires_at] if row.liveness and row.liveness.ttl not in (0, 0x7FFFFFFF) else []
    assert row_codec.next_expiry(whole, now, engine=engine) == min((end for end in ends if now < end < LONG), default=None)
    dead = [deletion.local_deletion_time for deletion in (row.deletion, *row.complex_deletions.values()) if deletion]
    dead += [cell.local_deletion_time for cell in row.cells]
    dead += [row.liveness.expires_at] if row.liveness and row.liveness.ttl else []
    assert row_codec.min_deletion_time(whole, engine=engine) == min([*dead, NO_DELETION_TIME])
    assert row_codec.max_timestamp(whole, engine=engine) == max_timestamp(PartitionUpdate(TABLE_ID, KEY, rows=(row,)))


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_no_row(engine: Engine) -> None:
    assert row_codec.merge(b"", b"", engine=engine) == row_codec.live(b"", 0, engine=engine) == b""
    assert row_codec.next_expiry(b"", 0, engine=engine) is None
    assert row_codec.max_timestamp(b"", engine=engine) == NO_TIMESTAMP
    assert row_codec.min_deletion_time(b"", engine=engine) == NO_DELETION_TIME


# --- counters

ids = st.sampled_from([bytes(15) + b"\1", bytes(15) + b"\2", b"\xff" * 16])
counts = st.sampled_from([-(2**63), -1, 0, 1, LONG])
shards = st.builds(Shard, ids, counts, counts, st.sampled_from(ShardKind))
contexts = st.lists(shards, max_size=3, unique_by=lambda shard: shard.counter_id).map(tuple).map(encode_context)
cleared = contexts.map(lambda context: (-int.from_bytes(context[:2], "big")).to_bytes(2, "big", signed=True) + context[2:])
doubled = st.lists(shards, max_size=3).map(tuple).map(encode_context)
unsorted = st.tuples(doubled, st.booleans()).map(lambda pair: pair[0][:2] + pair[0][2:][::-1] if pair[1] else pair[0])
garbage = st.binary(max_size=40) | st.builds(
    lambda n, rest: bytes((0, n)) + bytes(rest), st.integers(0, 3), st.sampled_from([0, 34, 68, 102])
)
values = contexts | contexts | cleared | st.just(b"") | unsorted | garbage
counter_cells = st.builds(Cell, st.just("n"), timestamps, values) | cells("n", st.none(), values)
counter_rows = st.builds(Row, st.just((b"k",)), cells=st.lists(counter_cells, min_size=1, max_size=2).map(tuple))


def outcome(merge: Any) -> Any:
    try:
        return merge()
    except MalformedMutation as error:
        return str(error)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=examples(300))
@given(counter_rows, counter_rows, actives)
def test_counters_good_odd_and_damaged(engine: Engine, a: Row, b: Row, active: DeletionTime | None) -> None:
    expected = outcome(lambda: as_flat(merge_rows(a, b, active=active, counter=True)))
    assert (
        outcome(lambda: row_codec.merge(row_codec.encode(a), row_codec.encode(b), active=active, counter=True, engine=engine)) == expected
    )


# --- damage

damage = st.tuples(st.integers(0, 200), st.integers(0, 255), st.booleans())


@given(any_row, any_row, st.lists(damage, min_size=1, max_size=3))
def test_damaged_bytes_are_refused_or_mean_something(row: Row, other: Row, damages: list[tuple[int, int, bool]]) -> None:
    """Whatever they are, nothing outside of them is read: the compiled twin refuses what the readable one
    does."""
    bad = bytearray(row_codec.encode(row))
    for place, value, cut in damages:
        place %= len(bad)
        bad[place] = value
        if cut:
            del bad[place + 1 :]
    tasks: list[Any] = [
        lambda engine: row_codec.live(bytes(bad), 100, engine=engine),
        lambda engine: row_codec.max_timestamp(bytes(bad), engine=engine),
        lambda engine: row_codec.next_expiry(bytes(bad), 100, engine=engine),
        lambda engine: row_codec.min_deletion_time(bytes(bad), engine=engine),
        lambda engine: row_codec.merge(bytes(bad), row_codec.encode(other), engine=engine),
    ]
    for task in tasks:
        refused = [isinstance(outcome(lambda task=task, engine=engine: task(engine)), str) for engine in ENGINES]
        assert refused[0] == refused[1]


# --- the laws

triples = st.tuples(rows, rows, rows).map(lambda found: [Row((b"k",), *_parts(row)) for row in found])


def _parts(row: Row) -> tuple[Any, ...]:
    return row.liveness, row.deletion, False, row.cells, row.complex_deletions


@pytest.mark.parametrize("engine", ENGINES)
@given(triples, actives)
def test_merging_is_associative_commutative_and_idempotent(engine: Engine, found: list[Row], active: DeletionTime | None) -> None:
    def merge(x: bytes, y: bytes) -> bytes:
        return row_codec.merge(x, y, active=active, engine=engine)

    a, b, c = (row_codec.settle(row_codec.encode(row), active=active, engine=engine) for row in found)
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, a) == a
    assert merge(merge(a, b), b) == merge(a, b)


@pytest.mark.parametrize("engine", ENGINES)
@given(st.lists(rows, max_size=6), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(engine: Engine, history: list[Row], random: Random) -> None:
    def merged(found: list[Row]) -> bytes:
        return reduce(
            lambda a, b: row_codec.merge(a, b, engine=engine), (row_codec.encode(Row((b"k",), *_parts(row))) for row in found), b""
        )

    again = [*history, *random.sample(history, len(history) // 2)]
    random.shuffle(again)
    assert merged(again) == merged(history)


@pytest.mark.parametrize("engine", ENGINES)
@given(triples, actives)
def test_the_rules_of_3_11_are_a_join_at_any_time(engine: Engine, found: list[Row], active: DeletionTime | None) -> None:
    def merge(x: bytes, y: bytes) -> bytes:
        return row_codec.merge(x, y, active=active, policy="3.11", engine=engine)

    a, b, c = (row_codec.settle(row_codec.encode(row), active=active, policy="3.11", engine=engine) for row in found)
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(merge(a, b), b) == merge(a, b)
