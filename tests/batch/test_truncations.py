"""Which records are one TRUNCATE, and what it took: cases by hand, and a small ring played at random."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from writetime.batch.truncations import SAME_TRUNCATE_MS, Cut, Cuts, Source, cuts_by_table, truncates
from writetime.schema.local import Truncation

TABLE = UUID(int=7)
OTHER = UUID(int=8)
AT = 1_700_000_000_000
NEVER = datetime(2100, 1, 1, tzinfo=UTC)


def record(at: int, segment: int = 5, position: int = 100, *, table: UUID = TABLE, timestamp: int = 1) -> Truncation:
    return Truncation(AT + at, table, segment, position, timestamp)


def shape(records: Mapping[str, list[Truncation]]) -> list[dict[str, int]]:
    """The TRUNCATEs as {host: ms after AT}."""
    return [{host: each.at - AT for host, each in sorted(found.records.items())} for found in truncates(records)]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ({"a": [0], "b": [3], "c": [40]}, [{"a": 0, "b": 3, "c": 40}]),
        ({"a": [0, 900], "b": [3, 905], "c": [1, 899]}, [{"a": 0, "b": 3, "c": 1}, {"a": 900, "b": 905, "c": 899}]),
        # A node without a record of one of them: its record goes with the nearer.
        ({"a": [0, 900], "b": [3, 905], "c": [899]}, [{"a": 0, "b": 3}, {"a": 900, "b": 905, "c": 899}]),
        ({"a": [0, 900], "b": [3, 905], "c": [4]}, [{"a": 0, "b": 3, "c": 4}, {"a": 900, "b": 905}]),
        ({"a": [0, 900], "b": [3]}, [{"a": 0, "b": 3}, {"a": 900}]),
        # Longer apart than a TRUNCATE may take.
        ({"a": [0], "b": [SAME_TRUNCATE_MS]}, [{"a": 0, "b": SAME_TRUNCATE_MS}]),
        ({"a": [0], "b": [SAME_TRUNCATE_MS + 1]}, [{"a": 0}, {"b": SAME_TRUNCATE_MS + 1}]),
        ({}, []),
    ],
)
def test_which_records_are_one_truncate(records: dict[str, list[int]], expected: list[dict[str, int]]) -> None:
    assert shape({host: [record(at) for at in times] for host, times in records.items()}) == expected


def test_a_record_that_is_logged_again_is_the_same() -> None:
    assert shape({"a": [record(0), record(0), record(0, timestamp=99)]}) == [{"a": 0}]
    assert len(truncates({"a": [record(0), record(1)]})) == 2, "nothing was written in between: the same place twice"


def test_tables_are_apart() -> None:
    found = cuts_by_table({"a": [record(0), record(5, 6, 1, table=OTHER)]})
    assert {table_id: cut.places for table_id, (_, cut) in found.items()} == {TABLE: {"a": (5, 100)}, OTHER: {"a": (6, 1)}}


def cuts(records: Mapping[str, list[Truncation]], *sources: Source) -> Cuts:
    made = Cuts.of({table_id: cut for table_id, (_, cut) in cuts_by_table(records).items()}, sources)
    copy: Cuts = pickle.loads(pickle.dumps(made))
    return copy


def test_a_node_with_a_record_is_cut_at_its_place_whatever_the_writetime() -> None:
    sources = [Source("a", segment, NEVER) for segment in (4, 5, 6)]
    found = cuts({"a": [record(0)], "b": [record(2, 9, 9)]}, *sources)
    future, past = (AT + 10**9) * 1000, 5
    assert found.tables == {TABLE.bytes}
    for index, position, gone in ((0, 9999, True), (1, 99, True), (1, 100, True), (1, 101, False), (2, 0, False)):
        for timestamp in (past, future):
            assert found.gone(TABLE.bytes, index, position, timestamp) is gone
            assert not found.gone(OTHER.bytes, index, position, timestamp)


def test_a_node_without_a_record_is_cut_by_writetime_at_the_earliest_time() -> None:
    sealed_before = datetime.fromtimestamp(AT / 1000 - 1, UTC)
    found = cuts({"a": [record(7)], "b": [record(2)]}, Source("c", 1, NEVER), Source("c", 2, sealed_before), Source("a", 9, sealed_before))
    earliest = (AT + 2) * 1000
    assert found.gone(TABLE.bytes, 0, 0, earliest)
    assert not found.gone(TABLE.bytes, 0, 0, earliest + 1)
    assert found.gone(TABLE.bytes, 1, 0, earliest + 10**12), "its node had finished the segment by then"
    assert not found.gone(TABLE.bytes, 2, 0, earliest), "a place says more than a clock"


def test_an_older_place_of_a_node_that_left_no_record_of_the_last_truncate_holds_too() -> None:
    records = {"a": [record(0), record(10_000, 8, 1)], "b": [record(1, 5, 50)]}
    found = cuts(records, Source("b", 4, NEVER), Source("b", 5, NEVER))
    young = (AT + 10_000) * 1000 + 1
    assert found.gone(TABLE.bytes, 0, 0, young)
    assert found.gone(TABLE.bytes, 1, 50, young)
    assert not found.gone(TABLE.bytes, 1, 51, young)
    assert found.gone(TABLE.bytes, 1, 51, young - 1)


def test_only_the_last_truncate_counts_in_whatever_order_they_become_known() -> None:
    both = cuts_by_table({"a": [record(0), record(900, 7, 3)], "b": [record(5, 6, 6), record(905, 6, 9)]})[TABLE][1]
    assert both == Cut(AT + 900, {"a": (7, 3), "b": (6, 9)}, frozenset("ab"))


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 4))
def test_with_all_records_the_cut_is_what_the_nodes_did(rng: random.Random, nodes: int, number: int) -> None:
    """A ring played: each node logs, at its own pace, and notes its place at each TRUNCATE. All frames since the last stay, no other."""
    records: dict[str, list[Truncation]] = {str(node): [] for node in range(nodes)}
    now, frames = AT, []
    for generation in range(number + 1):
        for node in rng.sample(range(nodes), nodes):
            host = str(node)
            now += rng.randint(0, 1000)
            places = [(generation * 3 + segment, position) for segment in range(3) for position in range(5)]
            cut = rng.randrange(len(places))
            frames += [(host, place, generation + (number_ > cut)) for number_, place in enumerate(places)]
            if generation < number:
                records[host].append(Truncation(now, TABLE, *places[cut], now * 1000))
        now += rng.randint(1, 100_000)
    for host in rng.sample(sorted(records), rng.randint(0, nodes)):
        rng.shuffle(records[host])
    cut_of = cuts_by_table(records)[TABLE][1]
    assert len(truncates(records)) == number
    for host, (segment, position), life in frames:
        gone = position <= cut_of.position(host, segment, NEVER) or cut_of.timestamp(host) is not None
        if life <= number:
            assert gone == (life < number)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_records_alone_count_not_the_order_in_which_they_are_listed(rng: random.Random) -> None:
    records = {str(node): [record(rng.randint(0, 200_000), rng.randint(1, 9), rng.randint(0, 9)) for _ in range(4)] for node in range(3)}
    shuffled = {host: rng.sample(noted, len(noted)) for host, noted in rng.sample(sorted(records.items()), 3)}
    assert cuts_by_table(records)[TABLE][1] == cuts_by_table(shuffled)[TABLE][1]
    assert shape(records) == shape(shuffled)
    each = truncates(records)
    assert sum(len(found.records) for found in each) == len({(h, r.at, r.segment, r.position) for h, n in records.items() for r in n})


def test_a_place_beyond_midnight_is_in_utc() -> None:
    moment = datetime.fromtimestamp(AT / 1000, UTC) - timedelta(milliseconds=1)
    cut = Cut(AT, {}, frozenset())
    assert cut.takes_all("x", 1, moment.astimezone())
    assert not cut.takes_all("x", 1, moment + timedelta(milliseconds=1))


def test_a_purge_is_told_of_its_table_and_is_no_truncate() -> None:
    made = Cuts.of({}, [Source("a", 4, NEVER)], {TABLE.bytes: 90})
    assert (made.purged(TABLE.bytes), made.purged(OTHER.bytes), made.tables) == (90, None, frozenset())
    assert not made.gone(TABLE.bytes, 0, 10, 5)
