"""Tables whose rows could not be shown: what a batch tells of them, and what comes in once they are
mended."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from tests.monitoring import bucket
from tests.storage.memory import MemoryStore
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.events.masking import Rules
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import (
    Accounting,
    Manifest,
    Problem,
    RefusedTable,
    Sealed,
    SegmentInput,
    SegmentOutcome,
)
from writetime.pipeline.planner import plan_ingest, read_sealed
from writetime.pipeline.quarantine.rejected_tables import (
    failed_tables,
    release_table,
    remaining_reason,
    task_arguments,
    waiting_segments,
)
from writetime.storage import layout
from writetime.storage.store import Store

NOW = datetime(2026, 5, 5, tzinfo=UTC)
REASON = "`columns`: id is part of the primary key"
REFUSED = RefusedTable(table="shop.orders", table_id=bucket.ORDERS, reason=REASON)
OTHER = UUID(int=8)


def problem(table_id: UUID | None, message: str = REASON) -> Problem:
    return Problem(kind="SchemaError", position=1, size=1, message=message, table_id=table_id)


def seal(store: Store, number: int, refused: list[RefusedTable], *found: list[Problem], quarantined: int = 0) -> list[str]:
    """A sealed batch with a segment for each list of problems; what is refused of the table is told by
    `quarantined`."""
    objects = [bucket.ref(0, 10 * number + at).incoming for at in range(len(found))]
    segments = [SegmentInput.from_object(store.put(name, encode_segment(1, 7, [bucket.mutation(bucket.ORDERS)]))) for name in objects]
    outcomes = [SegmentOutcome(object=name, frames=1, updates=1, problems=some) for name, some in zip(objects, found, strict=True)]
    before = read_sealed(store, bucket.CLUSTER, number - 1)
    manifest = Manifest(number=number, kind="ingest", cluster=bucket.CLUSTER, created_at=NOW, now=1, base=number - 1, segments=segments)
    sealed = Sealed(
        number=number,
        kind="ingest",
        sealed_at=NOW,
        segments=outcomes,
        accounting=[Accounting(table="shop.orders", updates_in=quarantined, quarantined=quarantined)],
        state={},
        held=[*(before.held if before else []), *(outcome.object for outcome in outcomes if not outcome.ok)],
        refused=refused,
    )
    for what, document in (("manifest", manifest), ("sealed", sealed)):
        store.put(layout.batch_object(bucket.CLUSTER, number, what), document.to_bytes())
    store.put(layout.batch_object(bucket.CLUSTER, number, "schema"), bucket.learner().to_json().encode())
    archive(store, bucket.CLUSTER, number)
    return objects


def test_a_batch_tells_of_a_table_when_it_is_news_or_more_of_it_waits() -> None:
    store = MemoryStore()
    seal(store, 1, [])
    seal(store, 2, [REFUSED])
    seal(store, 3, [REFUSED])
    seal(store, 4, [REFUSED], quarantined=1)
    seal(store, 5, [REFUSED.model_copy(update={"reason": "another"})])
    told = {number: [table.reason for table in failed_tables(store, bucket.CLUSTER, number)] for number in range(1, 7)}
    assert told == {1: [], 2: [REASON], 3: [], 4: [REASON], 5: ["another"], 6: []}


def test_a_segment_that_waits_for_tables_only_is_not_told_apart() -> None:
    sealed = Sealed(number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={}, refused=[REFUSED])

    def waits(*problems: Problem) -> bool:
        return sealed.waits_for_tables(SegmentOutcome(object="x", problems=list(problems)))

    assert waits(problem(bucket.ORDERS), problem(bucket.ORDERS))
    assert not waits(problem(bucket.ORDERS), problem(None))
    assert not waits(problem(OTHER))
    assert not waits(problem(bucket.ORDERS, "a value of no bytes"))
    assert not waits()


def test_what_waits_for_a_table_comes_in_when_it_is_let_in_and_nothing_else() -> None:
    store = MemoryStore()
    mine, mixed, others, gone = seal(
        store,
        1,
        [REFUSED],
        [problem(bucket.ORDERS)],
        [problem(None, "damage"), problem(bucket.ORDERS)],
        [problem(OTHER)],
        [problem(bucket.ORDERS)],
    )
    store.delete(gone)
    assert waiting_segments(store, bucket.CLUSTER, bucket.ORDERS) == [mine, mixed, gone]
    assert release_table(store, bucket.CLUSTER, bucket.ORDERS) == [mine, mixed]
    assert waiting_segments(store, bucket.CLUSTER, bucket.ORDERS) == [gone]
    assert release_table(store, bucket.CLUSTER, bucket.ORDERS) == []
    manifest = plan_ingest(store, bucket.CLUSTER, now=NOW)
    assert manifest is not None
    assert [segment.object for segment in manifest.segments] == [mine, mixed]
    assert store.head(others) is not None


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (Rules(), None),
        (Rules(exclude=[r"shop\.orders\.id"]), "`columns`: id is part of the primary key"),
        (Rules(rows={"shop.orders": "missing == 1"}), "the table has no column missing"),
    ],
)
def test_why_a_table_still_waits(rules: Rules, reason: str | None) -> None:
    store = MemoryStore()
    seal(store, 1, [REFUSED], [problem(bucket.ORDERS)])
    found = remaining_reason(store, bucket.CLUSTER, bucket.ORDERS, rules)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")
    assert remaining_reason(store, bucket.CLUSTER, OTHER, rules) is None


def test_more_rejected_tables_than_airflow_has_tasks_for() -> None:
    found = [RefusedTable(table=f"k.t{at}", table_id=UUID(int=at), reason="why") for at in range(1100)]
    assert task_arguments(found[:3], 3) == [{"table": f"k.t{at}", "table_id": str(UUID(int=at)), "reason": "why"} for at in range(3)]
    shown = task_arguments(found, 1024)
    assert (len(shown), {each["reason"] for each in shown[:-1]}) == (1024, {"why"})
    assert shown[-1]["reason"].startswith("why\n76 more tables are rejected and have no task: k.t1024, k.t1025, ")
    assert task_arguments([], 1024) == []
