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

from tests.examples import examples
from writetime.cassandra.schema.node_metadata import Truncation
from writetime.pipeline.truncations import (
    SAME_TRUNCATE_MS,
    Cut,
    Cuts,
    Purged,
    Source,
    cuts_by_table,
    truncates,
)

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


LONG_AGO = (AT - 31_536_000_000) * 1000


def sealed(after: int) -> datetime:
    """So many ms after AT."""
    return datetime.fromtimestamp((AT + after) / 1000, UTC)


def test_of_a_node_without_a_record_no_writetime_says_that_a_frame_is_gone() -> None:
    """A reload after the TRUNCATE, USING TIMESTAMP of last year, on a node that left no record."""
    found = cuts({"a": [record(7)], "b": [record(2)]}, Source("c", 1, NEVER))
    latest = (AT + 2 + SAME_TRUNCATE_MS) * 1000
    for timestamp in (-(2**63) + 1, 0, LONG_AGO, AT * 1000, latest):
        assert found.verdict(TABLE.bytes, 0, 5000, timestamp) == "undecided"
        assert not found.gone(TABLE.bytes, 0, 5000, timestamp)
    assert found.verdict(TABLE.bytes, 0, 5000, latest + 1) == "kept"
    assert found.verdict(OTHER.bytes, 0, 5000, LONG_AGO) == "kept"


def test_of_a_node_without_a_record_segments_outside_of_the_time_out_are_decided() -> None:
    before, just = sealed(7 - SAME_TRUNCATE_MS - 1), sealed(7 - SAME_TRUNCATE_MS)
    begun_after = AT + 2 + SAME_TRUNCATE_MS + 1
    sources = [Source("c", 1, before), Source("c", 2, just), Source("c", begun_after, NEVER), Source("a", 9, before)]
    found = cuts({"a": [record(7)], "b": [record(2)]}, *sources)
    future = (AT + 10**9) * 1000
    assert [found.verdict(TABLE.bytes, index, 1, LONG_AGO) for index in range(4)] == ["gone", "undecided", "kept", "kept"]
    assert [found.verdict(TABLE.bytes, index, 1, future) for index in range(4)] == ["gone", "kept", "kept", "kept"]


def test_two_truncates_of_which_different_nodes_tell() -> None:
    """T1 noted by a alone, T2 ten seconds later by b alone: they look like one. Each node is cut at its own
    place, and what a logged in between may have been taken by T2."""
    found = cuts({"a": [record(0)], "b": [record(10_000, 7, 300)]}, Source("a", 5, NEVER), Source("b", 7, NEVER))
    between, after = (AT + 5_000) * 1000, (AT + 10_000) * 1000 + 1
    verdicts = [found.verdict(TABLE.bytes, 0, position, at) for position in (100, 101) for at in (between, after)]
    assert verdicts == ["gone", "gone", "undecided", "kept"]
    assert [found.verdict(TABLE.bytes, 1, position, between) for position in (300, 301)] == ["gone", "kept"]


def test_an_older_place_of_a_node_that_left_no_record_of_the_last_truncate_holds_too() -> None:
    records = {"a": [record(0), record(100_000, 8, 1)], "b": [record(1, 5, 50)]}
    found = cuts(records, Source("b", 4, NEVER), Source("b", 5, NEVER))
    young = (AT + 100_000 + SAME_TRUNCATE_MS) * 1000 + 1
    assert [found.verdict(TABLE.bytes, 0, 1, at) for at in (LONG_AGO, young)] == ["gone", "gone"]
    assert [found.verdict(TABLE.bytes, 1, 50, at) for at in (LONG_AGO, young)] == ["gone", "gone"]
    assert [found.verdict(TABLE.bytes, 1, 51, at) for at in (LONG_AGO, young)] == ["undecided", "kept"]


A, B, C, D = 0, 1, 2, 3
"""Nodes by the index of their segment: a and b left records, one second apart; c did not; d was started
after."""
PAST, BEHIND = 100, 101


@pytest.mark.parametrize(
    ("copies", "at", "expected"),
    [
        ([(A, PAST), (B, PAST)], LONG_AGO, "gone"),
        ([(A, PAST), (B, BEHIND)], LONG_AGO, "kept"),
        # Where a says that it came before the TRUNCATE, so it did on c; whatever the writetime.
        ([(A, PAST), (C, 7)], LONG_AGO, "gone"),
        ([(A, PAST), (C, 7)], (AT + 10**9) * 1000, "gone"),
        ([(A, BEHIND), (C, 7)], LONG_AGO, "kept"),
        ([(C, 7)], LONG_AGO, "undecided"),
        ([(C, 7), (C, 8)], LONG_AGO, "undecided"),
        ([(A, PAST), (C, 7), (B, BEHIND)], LONG_AGO, "kept"),
        # d logged it when all was over: another write of the same bytes.
        ([(A, PAST), (D, 7)], LONG_AGO, "kept"),
        ([(C, 7), (D, 7)], LONG_AGO, "kept"),
        # Behind its place on a, and perhaps before another TRUNCATE.
        ([(A, BEHIND)], (AT + 500) * 1000, "undecided"),
        ([(A, BEHIND), (B, PAST)], (AT + 500) * 1000, "undecided"),
        ([(A, BEHIND), (B, BEHIND)], (AT + 500) * 1000, "kept"),
    ],
)
def test_what_became_of_an_update_by_all_its_copies(copies: list[tuple[int, int]], at: int, expected: str) -> None:
    sources = [Source("a", 5, NEVER), Source("b", 5, NEVER), Source("c", 5, NEVER), Source("d", AT + 10**6, NEVER)]
    found = cuts({"a": [record(0)], "b": [record(1000)]}, *sources)
    assert found.decide(TABLE.bytes, copies, at) == expected
    assert found.decide(OTHER.bytes, copies, at) == "kept"


def test_only_the_last_truncate_counts_in_whatever_order_they_become_known() -> None:
    both = cuts_by_table({"a": [record(0), record(900, 7, 3)], "b": [record(5, 6, 6), record(905, 6, 9)]})[TABLE][1]
    assert both == Cut({"a": (7, 3), "b": (6, 9)}, {"a": AT + 900, "b": AT + 905})
    assert both.at == AT + 900


@settings(max_examples=examples(300))
@given(st.randoms(use_true_random=False), st.integers(2, 4), st.integers(1, 3), st.booleans())
def test_whatever_records_are_lost_no_row_is_and_none_comes_back(rng: random.Random, nodes: int, number: int, old_writetimes: bool) -> None:
    """A ring played in which notes get lost: what is called gone is gone, what is called kept stays. Only
    writes with old writetimes may stay that an unnoted TRUNCATE took, on nodes that noted another one within
    its time-out."""
    records: dict[str, list[Truncation]] = {}
    now, frames = AT, list[tuple[str, int, int, int]]()
    for generation in range(number + 1):
        for host in map(str, range(nodes)):
            for position in range(1, 4):
                now += rng.randint(1, 5_000)
                writetime = LONG_AGO if old_writetimes and rng.random() < 0.5 else now * 1000
                frames.append((host, 10 * generation + position, generation, writetime))
        if generation < number:
            start = now
            for host in map(str, range(nodes)):
                now = max(now, start + rng.randint(1, SAME_TRUNCATE_MS // 2))
                if rng.random() < 0.6:
                    records.setdefault(host, []).append(record(now - AT, 1, 10 * generation + 9, timestamp=now))
        now += rng.randint(1, 60_000)
    if not any(each.at > frames_begin(frames, number - 1) for noted in records.values() for each in noted):
        return
    sources = [Source(str(node), 1, NEVER) for node in range(nodes)]
    found = cuts(records, *sources)
    for host, position, generation, writetime in frames:
        verdict = found.verdict(TABLE.bytes, int(host), position, writetime)
        if verdict == "gone":
            assert generation < number
        elif verdict == "kept" and writetime != LONG_AGO:
            assert generation == number


def frames_begin(frames: list[tuple[str, int, int, int]], generation: int) -> int:
    """When (ms) the last frame of a generation was written by the latest: its records are younger."""
    return max(writetime for _, _, of, writetime in frames if of == generation) // 1000


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 4))
def test_with_all_records_the_cut_is_what_the_nodes_did(rng: random.Random, nodes: int, number: int) -> None:
    """A ring played: each node logs, at its own pace, and notes its place at each TRUNCATE. All frames since
    the last stay, no other."""
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
    for host, (segment, position), incarnation in frames:
        gone = position <= cut_of.position(host, segment, NEVER)
        if incarnation <= number:
            assert gone == (incarnation < number)


@given(st.randoms(use_true_random=False))
def test_the_records_alone_count_not_the_order_in_which_they_are_listed(rng: random.Random) -> None:
    records = {str(node): [record(rng.randint(0, 200_000), rng.randint(1, 9), rng.randint(0, 9)) for _ in range(4)] for node in range(3)}
    shuffled = {host: rng.sample(noted, len(noted)) for host, noted in rng.sample(sorted(records.items()), 3)}
    assert cuts_by_table(records)[TABLE][1] == cuts_by_table(shuffled)[TABLE][1]
    assert shape(records) == shape(shuffled)
    each = truncates(records)
    assert sum(len(found.records) for found in each) == len({(h, r.at, r.segment, r.position) for h, n in records.items() for r in n})


def test_a_place_beyond_midnight_is_in_utc() -> None:
    moment = sealed(-SAME_TRUNCATE_MS) - timedelta(milliseconds=1)
    cut = Cut({}, {"y": AT})
    assert cut.takes_all("x", 1, moment.astimezone())
    assert not cut.takes_all("x", 1, moment + timedelta(milliseconds=1))


def test_a_purge_is_told_of_its_table_and_is_no_truncate() -> None:
    made = Cuts.of({}, [Source("a", 4, NEVER)], {TABLE.bytes: Purged(90, frozenset({0}))})
    assert (made.purged(TABLE.bytes), made.purged(OTHER.bytes), made.tables) == (Purged(90, frozenset({0})), None, frozenset())
    assert not made.gone(TABLE.bytes, 0, 10, 5)
