"""What is due to be compared with the cluster, and what a comparison leaves on record."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.model import Column, Table
from writetime.config.cluster import SnapshotConfig
from writetime.pipeline import comparisons
from writetime.pipeline.bootstrap import run as runs
from writetime.pipeline.bootstrap.run import HIGHEST, LOWEST, Range, RangeDone
from writetime.pipeline.comparisons import WHOLE, Comparison, Comparisons, Due
from writetime.pipeline.verification import RangeResult, TableResult, repairs
from writetime.storage import layout

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
ORDERS = Table("shop", "orders", UUID(int=7), {"id": Column("id", "partition_key", "int", 0)}, cdc=True)
NOTES = replace(ORDERS, name="notes", id=UUID(int=9))
BOTH = frozenset({ORDERS.id, NOTES.id})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def result(*ranges: tuple[int, int], table: Table = ORDERS, drift: Sequence[int] = (), trouble: str = "") -> TableResult:
    found = [RangeResult(start=start, end=end, rows=10, drift=at in drift) for at, (start, end) in enumerate(ranges)]
    return TableResult(table=table.full_name, table_id=table.id, ranges=found, trouble=trouble)


def record(store: MemoryStore, *results: TableResult, at: datetime = NOW, **about: Any) -> Comparison:
    given: dict[str, Any] = {"report": "verify/r.json", "began": at, "at": at, "read": BOTH, "existing": BOTH, **about}
    comparisons.record(store, "c", results, **given)
    return comparisons.read(store, "c").tables[results[0].table_id]


def due(store: MemoryStore, *tables: Table, at: datetime = NOW, **about: Any) -> list[Due]:
    more: dict[str, Any] = {"read": BOTH, "rows": {}, **about}
    snapshot = SnapshotConfig(**{name: more.pop(name) for name in ("verify_share", "rows_per_second") if name in more})
    return comparisons.due(comparisons.read(store, "c"), tables, snapshot, at, **more)


# --- the record


def test_parts_come_together_to_a_pass(store: MemoryStore) -> None:
    found = record(store, result((LOWEST, 0)))
    assert (found.share, found.rows, found.complete) == (0.5, 10, None)
    assert record(store, result((5, 9))).upto == 0, "a part that does not continue it changes nothing"
    later = NOW + timedelta(days=1)
    found = record(store, result((-9, 3), (3, HIGHEST), drift=[1]), at=later)
    assert found.complete is not None
    assert (found.complete.begun_at, found.complete.finished_at, found.complete.drift) == (NOW, later, 1)
    assert (found.upto, found.rows) == (LOWEST, 0)


def test_a_comparison_of_all_is_a_pass_of_its_own(store: MemoryStore) -> None:
    record(store, result((LOWEST, 0)))
    found = record(store, result((LOWEST, 0), (0, HIGHEST)))
    assert found.complete is not None
    assert (found.complete.rows, found.upto) == (20, LOWEST)


def test_drift_stays_until_its_range_is_equal(store: MemoryStore) -> None:
    whole = [(LOWEST, 0), (0, 50), (50, HIGHEST)]
    assert [(each.start, each.end) for each in record(store, result(*whole, drift=[1])).drift] == [(0, 50)]
    assert record(store, result((0, 49))).drift_rows == 1, "not all of it"
    assert record(store, result((0, 50), trouble="no answer")).drift_rows == 1
    assert record(store, result((-5, 70))).drift_rows == 0


def test_what_could_not_be_compared_moves_nothing(store: MemoryStore) -> None:
    found = record(store, result(WHOLE, trouble="Unavailable"))
    assert (found.trouble, found.complete, found.upto) == ("Unavailable", None, LOWEST)
    assert record(store, result(WHOLE)).trouble == ""


def test_before_the_first_reading_nothing_counts(store: MemoryStore) -> None:
    found = record(store, result(WHOLE, drift=[0]), read=())
    assert (found.complete, found.drift_rows) == (None, 1)


def test_dropped_tables_are_forgotten_and_writers_do_not_overwrite_each_other(store: MemoryStore) -> None:
    record(store, result(WHOLE), result(WHOLE, table=NOTES))
    assert comparisons.read(store, "c").tables.keys() == BOTH
    put, late = store.put, [result((LOWEST, 3), table=NOTES)]

    def rival(*args: Any, **about: Any) -> Any:
        if late:
            record(store, late.pop())
        return put(*args, **about)

    store.put = rival  # type: ignore[method-assign]
    assert record(store, result(WHOLE), at=NOW + timedelta(hours=1)).at > NOW
    assert comparisons.read(store, "c").tables[NOTES.id].upto == 3
    store.put = put  # type: ignore[method-assign]
    record(store, result(WHOLE), existing={ORDERS.id})
    assert comparisons.read(store, "c").tables.keys() == {ORDERS.id}


def test_the_record_is_no_report() -> None:
    assert not layout.comparisons("c").startswith(layout.verify_prefix("c"))


# --- what is due


@given(st.floats(0.02, 1), st.sets(st.integers(0, 20)))
def test_runs_go_around_the_ring_and_miss_nothing(share: float, die: set[int]) -> None:
    """Whatever the share, and if some runs `die` before their record."""
    store = MemoryStore()
    record(store, result(WHOLE))
    seen: list[Range] = []
    for number in count():
        if seen and seen[-1][1] == HIGHEST:
            break
        (found,) = due(store, ORDERS, verify_share=share)
        ((part,),) = found.slices
        if number not in die:
            record(store, result(part), at=NOW + timedelta(days=1))
            seen.append(part)
    assert seen[0][0] == LOWEST
    assert all(a[1] == b[0] for a, b in pairwise(seen))
    assert abs(len(seen) - 1 / share) <= 1
    complete = comparisons.read(store, "c").tables[ORDERS.id].complete
    assert complete is not None
    assert complete.finished_at > NOW


def test_a_hundred_runs_by_default(store: MemoryStore) -> None:
    record(store, result(WHOLE))
    for number in range(1, 101):
        record(store, result(*due(store, ORDERS)[0].slices[0]), at=NOW + timedelta(days=number))
    complete = comparisons.read(store, "c").tables[ORDERS.id].complete
    assert complete is not None
    assert complete.finished_at == NOW + timedelta(days=100)


def test_tables_that_were_never_compared_come_first_and_completely(store: MemoryStore) -> None:
    record(store, result(WHOLE, table=NOTES))
    orders, notes = due(store, NOTES, ORDERS)
    assert (orders.table, orders.slices) == (ORDERS, [[WHOLE]])
    assert notes.table == NOTES
    # Half a billion rows in slices of an hour at 10,000 a second; a run that was killed is continued.
    (found,) = due(store, ORDERS, rows={"shop.orders": 500_000_000})
    assert len(found.slices) == 14
    assert (found.slices[0][0][0], found.slices[-1][0][1]) == WHOLE
    record(store, result(*found.slices[0]))
    (rest,) = due(store, ORDERS, rows={"shop.orders": 500_000_000})
    assert rest.slices[0][0][0] == found.slices[0][0][1]
    assert len(rest.slices) == 13
    assert len(due(store, ORDERS, rows={"shop.orders": 500_000_000}, rows_per_second=None)[0].slices) == 1


def test_drift_is_compared_again_with_the_next_share(store: MemoryStore) -> None:
    record(store, result((LOWEST, 0), (0, 50), (50, HIGHEST), drift=[1]))
    (found,) = due(store, ORDERS, verify_share=0.25)
    assert found.slices == [[(LOWEST, -(2**62)), (0, 50)]]


def test_tables_that_hide_tokens_are_compared_as_a_whole_and_as_often(store: MemoryStore) -> None:
    about: dict[str, Any] = {"whole": {ORDERS.id}, "rows": {"shop.orders": 10**9}}
    assert due(store, ORDERS, **about)[0].slices == [[WHOLE]]
    record(store, result(WHOLE))
    assert due(store, ORDERS, **about, at=NOW + timedelta(days=99)) == []
    assert due(store, ORDERS, **about, at=NOW + timedelta(days=100))[0].slices == [[WHOLE]]
    record(store, result(WHOLE, drift=[0]))
    assert due(store, ORDERS, **about)[0].slices == [[WHOLE]]


def test_only_what_was_read_and_ingested_is_due(store: MemoryStore) -> None:
    assert due(store, ORDERS, NOTES, read={NOTES.id})[0].table == NOTES
    assert due(store, replace(ORDERS, transactional_mode="full")) == []
    run = runs.begin(store, "c", ORDERS, part=None, ranges=[WHOLE], consistency="ALL", now=NOW)
    assert comparisons.read_and_ingested(store, "c") == set()
    runs.finish_range(store, run, 0, RangeDone(rows=1, frames=1, objects=[]))
    runs.update(store, run, NOW)
    frames = layout.SegmentRef(run.node, layout.SegmentName(1, 8)).incoming
    store.put(frames, b"frames")
    assert comparisons.read_and_ingested(store, "c") == set()
    store.delete(frames)
    assert comparisons.read_and_ingested(store, "c") == {ORDERS.id}
    # It is read once more, and a part of it only.
    part = runs.begin(store, "c", ORDERS, part=(0, 9), ranges=[(0, 9)], consistency="ALL", now=NOW + timedelta(hours=1))
    assert comparisons.read_and_ingested(store, "c") == {ORDERS.id}
    store.put(layout.SegmentRef(part.node, layout.SegmentName(1, 8)).incoming, b"frames")
    assert comparisons.read_and_ingested(store, "c") == set()


def test_the_default_is_one_percent() -> None:
    assert SnapshotConfig().verify_share == 0.01
    assert Comparisons().tables == {}


# --- what repairs


@pytest.mark.parametrize(
    ("drift", "expected"),
    [
        ([(-5, 9)], ["writetime bootstrap --config '/etc/my pipe.yaml' --table shop.orders --token-range=-5:9"]),
        ([(LOWEST, 0), (0, 9)], [f"writetime bootstrap --config '/etc/my pipe.yaml' --table shop.orders --token-range={LOWEST}:9"]),
        ([WHOLE], ["writetime bootstrap --config '/etc/my pipe.yaml' --table shop.orders"]),
        ([(at, at + 1) for at in range(0, 12, 2)], ["writetime bootstrap --config '/etc/my pipe.yaml' --table shop.orders"]),
        ([], []),
    ],
)
def test_commands_that_repair_run_as_they_are(drift: list[Range], expected: list[str]) -> None:
    from typer.main import get_command

    from writetime.cli import build

    found = repairs("shop.orders", drift, "/etc/my pipe.yaml")
    assert found == expected
    for command in found:
        _, name, *arguments = shlex.split(command)
        group = get_command(build())
        with group.commands[name].make_context(name, list(arguments)) as context:  # type: ignore[attr-defined]
            assert str(context.params["config"]) == "/etc/my pipe.yaml"
            assert context.params["table"] == ["shop.orders"]
            if context.params["token_range"]:
                assert runs.parse_part(context.params["token_range"]) in runs.joined(drift)
