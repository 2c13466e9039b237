"""Encoding is the inverse of decoding, for any update that Cassandra can write."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cassandra.commitlog.examples import RANGES_TABLE, SCHEMA, STATICS_TABLE, TTL_TABLE, WIDE_TABLE
from tests.examples import examples
from writetime.cassandra.commitlog.encode import clustering_order, encode_mutation, encode_segment, encode_update
from writetime.cassandra.commitlog.mutation import INVALID_DELETION_TIME, decode_mutation, decode_update
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.model import (
    EXPIRED_LIVENESS_TTL,
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Schema, Table
from writetime.errors import MalformedMutation, UnknownColumn, UnknownTable

timestamps = st.one_of(
    st.integers(1_700_000_000_000_000, 1_700_000_000_000_003), st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from([0, -1, 2**63 - 1])
)
times = st.one_of(st.integers(1_700_000_000, 1_700_000_003), st.integers(0, INVALID_DELETION_TIME), st.just(NO_DELETION_TIME))
deletions = st.builds(DeletionTime, timestamps, times)
expiries = st.one_of(
    st.sampled_from([(86_400, 1_700_000_001), (86_400, 3_000_000_000), (86_400, INVALID_DELETION_TIME)]),
    st.tuples(st.integers(1, 630_720_000), st.integers(630_720_000, INVALID_DELETION_TIME)),
    st.tuples(st.just(EXPIRED_LIVENESS_TTL), st.integers(0, INVALID_DELETION_TIME)),
)


@st.composite
def livenesses(draw: st.DrawFn) -> Liveness:
    timestamp = draw(timestamps)
    return Liveness(timestamp, *draw(expiries)) if draw(st.booleans()) else Liveness(timestamp)


@st.composite
def cells(draw: st.DrawFn, column: str, fixed_length: int | None, path: bytes | None) -> Cell:
    timestamp = draw(timestamps)
    kind = draw(st.sampled_from(["live", "empty", "tombstone", "expiring"]))
    size = {"min_size": fixed_length or 1, "max_size": fixed_length or 20}
    value = b"" if kind in ("empty", "tombstone") else draw(st.binary(**size))
    if kind == "tombstone":
        return Cell(column, timestamp, b"", path, 0, draw(times.filter(lambda time: time != NO_DELETION_TIME)))
    if kind == "expiring":
        ttl, expires = draw(expiries)
        return Cell(column, timestamp, value, path, ttl, expires)
    return Cell(column, timestamp, value, path)


SIMPLE: dict[str, int | None] = {"gone": 4, "v": None, "w": 8, "ünï": 4}
STATIC: dict[str, int | None] = {"s": None}


@st.composite
def rows(draw: st.DrawFn, *, clustering: tuple[bytes | None, ...] | None, simple: dict[str, int | None], complex_: list[str]) -> Row:
    found: list[Cell] = []
    for column, length in simple.items():
        if draw(st.booleans()):
            found.append(draw(cells(column, length, None)))
    complex_deletions: dict[str, DeletionTime] = {}
    for column in complex_:
        if draw(st.booleans()):
            complex_deletions[column] = draw(deletions)
        for path in sorted(draw(st.sets(st.binary(max_size=4), max_size=3))):
            found.append(draw(cells(column, None, path)))
    deletion = draw(st.none() | deletions)
    shadowable = deletion is not None and draw(st.booleans())
    return Row(clustering, draw(st.none() | livenesses()), deletion, shadowable, tuple(found), complex_deletions)


@st.composite
def updates(draw: st.DrawFn) -> PartitionUpdate:
    keys = sorted(draw(st.sets(st.integers(-5, 5), max_size=4)))
    found = [draw(rows(clustering=(key.to_bytes(4, "big", signed=True),), simple=SIMPLE, complex_=["li", "m", "st", "u"])) for key in keys]
    static = draw(st.none() | rows(clustering=None, simple=STATIC, complex_=["sm"]))
    edges = sorted(draw(st.sets(st.integers(-6, 6), max_size=4)))
    tombstones = []
    for start, end in pairwise(edges):
        if draw(st.booleans()):
            bounds = [Bound((edge.to_bytes(4, "big", signed=True),), draw(st.booleans())) for edge in (start, end)]
            tombstones.append(RangeTombstone(bounds[0], bounds[1], draw(deletions)))
    deletion = draw(st.none() | deletions)
    return PartitionUpdate(STATICS_TABLE.id, draw(st.binary(max_size=9)), deletion, static, tuple(found), tuple(tombstones))


@settings(max_examples=examples(500))
@given(updates())
def test_updates_come_back(update: PartitionUpdate) -> None:
    raw = encode_update(update, STATICS_TABLE)
    assert decode_update(raw, STATICS_TABLE) == update
    assert encode_update(decode_update(raw, STATICS_TABLE), STATICS_TABLE) == raw


# Several updates are sometimes too much for one example, which hypothesis discards.
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.data_too_large])
@given(st.lists(updates(), min_size=1, max_size=3))
def test_mutations_come_back_through_a_segment(found: list[PartitionUpdate]) -> None:
    mutation = Mutation(tuple(found))
    content = encode_segment(5, 8, [encode_mutation(mutation, SCHEMA)] * 2)
    frames = scan(content, engine="python").frames
    bodies = [content[frame.body_offset : frame.body_offset + frame.body_length] for frame in frames]
    assert [decode_mutation(body, SCHEMA, version=8) for body in bodies] == [mutation] * 2


def test_names_in_either_order_come_back() -> None:
    """Cassandra sorts a name that begins with a non-ASCII letter first, a row of the state last. Both orders
    are kept."""
    a, u = Cell("w", 5, bytes(8)), Cell("ünï", 5, bytes(4))
    for order in ((a, u), (u, a)):
        update = PartitionUpdate(STATICS_TABLE.id, b"k", rows=(Row((bytes(4),), cells=order),))
        assert decode_update(encode_update(update, STATICS_TABLE), STATICS_TABLE) == update


def test_a_tombstone_of_everything_between_rows() -> None:
    """Markers and rows are in clustering order, which is descending in the second column."""
    deletion = DeletionTime(5, 6)
    one, two = (1).to_bytes(4, "big"), (2).to_bytes(4, "big")
    found = tuple(Row(ck, Liveness(9)) for ck in ((one, two, b"a"), (one, one, b"b"), (two, one, b"c")))
    tombstones = (
        RangeTombstone(Bound((one, two), False), Bound((one, one), True), deletion),
        RangeTombstone(Bound((two,), True), Bound((), True), deletion),
    )
    raw = encode_update(PartitionUpdate(RANGES_TABLE.id, b"k", rows=found, range_tombstones=tombstones), RANGES_TABLE)
    kinds = _unfiltered_kinds(raw)
    assert kinds == ["row", 7, "row", 6, 1, "row", 6]


def _unfiltered_kinds(raw: bytes) -> list[Any]:
    """Rows and marker kinds of an update of RANGES_TABLE, by a separate reader for these shapes only."""
    kinds: list[Any] = []
    pos = raw.index(b"\x03", 22) + 1
    while raw[pos] != 1:
        if raw[pos] == 2:
            kinds.append(raw[pos + 1])
            size = raw[pos + 3]
            pos += 4 + (1 + 4 * size if size else 0) + 2
        else:
            kinds.append("row")
            pos += 2 + 4 + 4 + 2 + 1
    return kinds


@pytest.mark.parametrize(
    "update",
    [
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 5, b"12345"),)),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 5, b"1234"), Cell("v", 6, b"1234"))),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 5, b"1234", path=b"x"),)),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 2**63, b"1234"),)),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 5, b"", None, 0, -1),)),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 5, b"", None, 0, 0xFFFFFFFF),)),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 5, b"1234", None, 100, 50),)),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("v", 5, b"1234", None, -7, 50),)),)),
        PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), Liveness(5, 0, 77)),)),
    ],
    ids=["length", "twice", "path", "timestamp", "negative time", "time too late", "expiry before ttl", "negative ttl", "no ttl"],
)
def test_what_no_bytes_can_express_is_refused(update: PartitionUpdate) -> None:
    with pytest.raises(MalformedMutation, match="cannot encode"):
        encode_update(update, TTL_TABLE)


def test_unknown_tables_and_columns_are_refused() -> None:
    update = PartitionUpdate(TTL_TABLE.id, b"k", rows=(Row((), cells=(Cell("nope", 5, b"1234"),)),))
    with pytest.raises(UnknownColumn):
        encode_update(update, TTL_TABLE)
    with pytest.raises(UnknownTable):
        encode_mutation(Mutation((update,)), Schema())


def test_a_complex_deletion_that_deletes_nothing_reads_as_none() -> None:
    row = Row((bytes(4),), complex_deletions={"m": DeletionTime(NO_TIMESTAMP, NO_DELETION_TIME), "st": DeletionTime(5, 6)})
    update = decode_update(encode_update(PartitionUpdate(STATICS_TABLE.id, b"k", rows=(row,)), STATICS_TABLE), STATICS_TABLE)
    assert update.rows[0].complex_deletions == {"st": DeletionTime(5, 6)}


@pytest.mark.parametrize("table", [RANGES_TABLE, WIDE_TABLE, STATICS_TABLE], ids=lambda table: table.name)
def test_clustering_order_puts_null_first_and_honours_desc(table: Table) -> None:
    width = len(table.clustering)
    low, high = ((bytes(3) + bytes((n,)),) * width for n in (1, 2))
    key = clustering_order(table, {})
    assert key(low) < key(high)
    assert key((None,) * width) < key(low)
    if width > 1 and table.clustering[1].descending:
        assert key((low[0], high[1])) < key((low[0], low[1]))
    assert not key(low) < key(low)
