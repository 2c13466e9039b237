"""Each tie-break of cells, liveness and deletions, one case a rule, both ways round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from writetime.cassandra.merge.counters import Shard, encode_context, total
from writetime.cassandra.merge.reconcile import (
    merge_deletions,
    merge_liveness,
    merge_rows,
    policy_of,
    reconcile_cells,
    settle_row,
)
from writetime.cassandra.model import (
    EXPIRED_LIVENESS_TTL,
    NO_TIMESTAMP,
    Cell,
    DeletionTime,
    Liveness,
    Row,
)


def plain(timestamp: int, value: bytes = b"v") -> Cell:
    return Cell("v", timestamp, value)


def expiring(timestamp: int, at: int, ttl: int = 10, value: bytes = b"v") -> Cell:
    return Cell("v", timestamp, value, ttl=ttl, local_deletion_time=at)


def tombstone(timestamp: int, at: int = 100) -> Cell:
    return Cell("v", timestamp, local_deletion_time=at)


CELLS = {
    "greater timestamp, though the older is a tombstone": (plain(2), tombstone(1)),
    "greater timestamp, though it has expired long ago": (expiring(2, at=1), plain(1, b"z")),
    "tie: tombstone beats plain": (tombstone(1), plain(1, b"zzz")),
    "tie: expiring beats plain": (expiring(1, at=5), plain(1, b"zzz")),
    "tie: tombstone beats expiring, even a later one": (tombstone(1, at=5), expiring(1, at=900)),
    "tie of tombstones: later deletion": (tombstone(1, at=6), tombstone(1, at=5)),
    "tie of expiring: later expiry": (expiring(1, at=6, value=b"a"), expiring(1, at=5, value=b"b")),
    "tie of expiring, same expiry: smaller ttl": (expiring(1, at=6, ttl=3, value=b"a"), expiring(1, at=6, ttl=4, value=b"b")),
    "tie of expiring, all the same: greater value": (expiring(1, at=6, value=b"b"), expiring(1, at=6, value=b"a")),
    "tie of plain: greater value by unsigned bytes": (plain(1, b"\x80"), plain(1, b"\x7f")),
    "tie of plain: a prefix is smaller": (plain(1, b"ab"), plain(1, b"a")),
    "tie of plain: empty is smallest": (plain(1, b"\x00"), plain(1, b"")),
}


@pytest.mark.parametrize(("winner", "loser"), CELLS.values(), ids=CELLS)
def test_cells(winner: Cell, loser: Cell) -> None:
    assert reconcile_cells(winner, loser) == reconcile_cells(loser, winner) == winner
    assert reconcile_cells(winner, winner) == winner


def mark(cell: Cell) -> Cell:
    """As the winner of a tie that a ring may have decided otherwise."""
    return replace(cell, tied=True)


CELLS_OF_3_11 = {
    "greater timestamp, though the older is a tombstone": (plain(2), tombstone(1), plain(2)),
    "tie: tombstone beats plain": (tombstone(1), plain(1, b"zzz"), tombstone(1)),
    "tie: tombstone beats expiring, even a later one": (tombstone(1, at=5), expiring(1, at=900), tombstone(1, at=5)),
    "tie of tombstones: later deletion": (tombstone(1, at=6), tombstone(1, at=5), tombstone(1, at=6)),
    "tie of plain: greater value by signed bytes": (plain(1, b"z"), plain(1, "é".encode()), plain(1, b"z")),
    "tie of plain: a prefix is smaller": (plain(1, b"ab"), plain(1, b"a"), plain(1, b"ab")),
    "tie, the one expires: greater value": (plain(1, b"b"), expiring(1, at=5, value=b"a"), mark(plain(1, b"b"))),
    "tie, the other expires: greater value": (expiring(1, at=5, value=b"b"), plain(1, b"a"), mark(expiring(1, at=5, value=b"b"))),
    "tie, the one expires, equal values: the one that stays": (plain(1, b"a"), expiring(1, at=5, value=b"a"), mark(plain(1, b"a"))),
    "tie of expiring at two times: greater value": (
        expiring(1, at=5, value=b"b"),
        expiring(1, at=6, value=b"a"),
        mark(expiring(1, at=5, value=b"b")),
    ),
    "tie of expiring at one time: greater value, nothing in doubt": (
        expiring(1, at=5, value=b"b"),
        expiring(1, at=5, value=b"a"),
        expiring(1, at=5, value=b"b"),
    ),
    "a mark stays under the winner's equal": (mark(plain(1)), plain(1), mark(plain(1))),
    "a mark goes with a younger cell": (plain(2), mark(plain(1)), plain(2)),
    "a mark goes with a tombstone": (tombstone(1), mark(plain(1)), tombstone(1)),
}


@pytest.mark.parametrize(("winner", "loser", "merged"), CELLS_OF_3_11.values(), ids=CELLS_OF_3_11)
def test_cells_of_3_11(winner: Cell, loser: Cell, merged: Cell) -> None:
    assert reconcile_cells(winner, loser, policy="3.11") == reconcile_cells(loser, winner, policy="3.11") == merged


def test_the_oldest_release_of_the_nodes_says_which_rule_holds() -> None:
    assert policy_of(["3.11.19", "3.0.30"]) == policy_of(["4.1.10", "3.11.19", "4.1.10"]) == "3.11"
    assert policy_of(["4.0.18", "5.0.6"]) == policy_of(["", "13.0"]) == policy_of([]) == "4.0"


LIVENESS = {
    "greater timestamp": (Liveness(2), Liveness(1, EXPIRED_LIVENESS_TTL, 5)),
    "tie: a view's expired mark beats expiring": (Liveness(1, EXPIRED_LIVENESS_TTL, 5), Liveness(1, 10, 900)),
    "tie: expiring beats lasting": (Liveness(1, 10, 5), Liveness(1)),
    "tie of expiring: later expiry": (Liveness(1, 10, 6), Liveness(1, 10, 5)),
    "tie of expiring, same expiry: smaller ttl": (Liveness(1, 3, 6), Liveness(1, 4, 6)),
    "something over nothing": (Liveness(-5), None),
}


@pytest.mark.parametrize(("winner", "loser"), LIVENESS.values(), ids=LIVENESS)
def test_liveness(winner: Liveness, loser: Liveness | None) -> None:
    assert merge_liveness(winner, loser) == merge_liveness(loser, winner) == winner


DELETIONS = {
    "greater timestamp": (DeletionTime(2, 1), DeletionTime(1, 9)),
    "tie: later local deletion time": (DeletionTime(1, 9), DeletionTime(1, 1)),
    "something over nothing": (DeletionTime(1, 9), None),
    "something over what deletes nothing": (DeletionTime(1, 1), DeletionTime(NO_TIMESTAMP, 2**31 - 1)),
}


@pytest.mark.parametrize(("winner", "loser"), DELETIONS.values(), ids=DELETIONS)
def test_deletions(winner: DeletionTime, loser: DeletionTime | None) -> None:
    assert merge_deletions(winner, loser) == merge_deletions(loser, winner) == winner


def test_two_deletions_that_delete_nothing_are_none() -> None:
    nothing = DeletionTime(NO_TIMESTAMP, 0)
    assert merge_deletions(nothing, nothing) is merge_deletions(nothing, None) is merge_deletions(None, nothing) is None


ONE, TWO = (encode_context((Shard(bytes([n]) * 16, 1, n),)) for n in (1, 2))


def test_counters_merge_whatever_their_timestamps() -> None:
    merged = reconcile_cells(plain(5, ONE), plain(9, TWO), counter=True)
    assert (merged.timestamp, total(merged.value)) == (9, 3)


@pytest.mark.parametrize("beaten", [plain(9, ONE), plain(9, b"")], ids=["count", "cleared"])
def test_a_tombstone_beats_an_even_newer_count(beaten: Cell) -> None:
    assert reconcile_cells(tombstone(1), beaten, counter=True) == reconcile_cells(beaten, tombstone(1), counter=True) == tombstone(1)


def test_a_cleared_count_beats_a_newer_one_and_of_two_the_newer_stays() -> None:
    assert reconcile_cells(plain(1, b""), plain(9, ONE), counter=True) == plain(1, b"")
    assert reconcile_cells(plain(1, b""), plain(2, b""), counter=True) == plain(2, b"")


def test_two_counter_tombstones_follow_the_rule_of_cells() -> None:
    assert reconcile_cells(tombstone(1, at=9), tombstone(2, at=1), counter=True) == tombstone(2, at=1)


KEY = (b"\x00\x00\x00\x01",)
FULL = Row(
    KEY,
    liveness=Liveness(10),
    cells=(Cell("a", 10, b"x"), Cell("b", 11, b"y"), Cell("m", 10, b"1", path=b"k"), Cell("m", 12, b"2", path=b"l")),
)


def test_a_deletion_of_the_same_timestamp_wins() -> None:
    deleted = merge_rows(FULL, Row(KEY, deletion=DeletionTime(10, 1)))
    assert deleted == Row(KEY, deletion=DeletionTime(10, 1), cells=(FULL.cells[1], FULL.cells[3]))
    assert merge_rows(Row(KEY, deletion=DeletionTime(9, 1)), FULL) == replace(FULL, deletion=DeletionTime(9, 1))


def test_a_deletion_from_outside_shadows_and_is_not_kept() -> None:
    assert settle_row(FULL, active=DeletionTime(11, 1)) == Row(KEY, cells=(FULL.cells[3],))
    assert settle_row(Row(KEY, deletion=DeletionTime(11, 1)), active=DeletionTime(11, 1)).is_empty
    later = Row(KEY, deletion=DeletionTime(11, 2))
    assert settle_row(later, active=DeletionTime(11, 1)) == later


def test_a_complex_deletion_covers_its_column_only() -> None:
    gone = merge_rows(FULL, Row(KEY, complex_deletions={"m": DeletionTime(11, 1)}))
    assert gone == replace(FULL, cells=(*FULL.cells[:2], FULL.cells[3]), complex_deletions={"m": DeletionTime(11, 1)})


def test_a_complex_deletion_is_dropped_unless_it_supersedes_the_row_deletion() -> None:
    row = Row(KEY, deletion=DeletionTime(5, 5), complex_deletions={"m": DeletionTime(5, 5), "n": DeletionTime(5, 6)})
    assert settle_row(row).complex_deletions == {"n": DeletionTime(5, 6)}
    assert settle_row(Row(KEY, complex_deletions={"m": DeletionTime(NO_TIMESTAMP, 1)})).is_empty


def test_cells_stand_simple_first_by_name_then_elements_by_path() -> None:
    cells = [Cell("a", 1, path=b"\x02"), Cell("a", 1, path=b"\x01"), Cell("z", 1), Cell("é", 1), Cell("b", 1)]
    assert [(c.column, c.path) for c in settle_row(Row(KEY, cells=tuple(cells))).cells] == [
        ("b", None),
        ("z", None),
        ("é", None),
        ("a", b"\x01"),
        ("a", b"\x02"),
    ]


def test_a_shadowable_deletion_goes_once_a_newer_liveness_is_there() -> None:
    shadowable = Row(KEY, deletion=DeletionTime(5, 1), shadowable=True)
    kept = Row(KEY, cells=(Cell("a", 4, b"x"),))
    assert merge_rows(shadowable, Row(KEY, liveness=Liveness(6), cells=kept.cells)) == Row(KEY, liveness=Liveness(6), cells=kept.cells)
    assert merge_rows(shadowable, Row(KEY, liveness=Liveness(5), cells=kept.cells)) == shadowable


def test_of_equal_deletions_the_plain_one_stays() -> None:
    shadowable, lasting = Row(KEY, deletion=DeletionTime(5, 1), shadowable=True), Row(KEY, deletion=DeletionTime(5, 1))
    assert merge_rows(shadowable, lasting) == merge_rows(lasting, shadowable) == lasting
