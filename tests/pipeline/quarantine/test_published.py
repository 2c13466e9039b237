"""What is told of records in quarantine: each once, and bytes only of what may be seen."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring import bucket
from tests.storage.memory import MemoryStore
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.documents import Manifest, Problem, SegmentOutcome, Settled
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.published import MOST_BYTES, of_batch, topic_record, with_bytes
from writetime.pipeline.quarantine.record import QuarantineRecord

REF = bucket.ref(0, 1)
MANIFEST = Manifest(
    number=7, kind="ingest", cluster=bucket.CLUSTER, created_at=datetime(2026, 5, 4, tzinfo=UTC), now=9, base=6, segments=[]
)


def problem(position: int, message: str = "boo", table: str | None = None) -> Problem:
    name = f"{REF.quarantined(position, 5)}.bin"
    return Problem(kind="SchemaError", position=position, size=5, message=message, quarantined_as=name, table=table)


def settled(position: int) -> Settled:
    return Settled(**problem(position).model_dump(), object=REF.incoming, batch=3)


def told(*outcomes: dict[str, Any]) -> list[tuple[int | None, int, int | None, str, str | None]]:
    found = of_batch(MANIFEST, [SegmentOutcome(object=REF.incoming, **outcome) for outcome in outcomes])
    assert len({record.name for record in found}) == len(found)
    assert {record.object for record in found} == {REF.incoming}
    return [(record.position, record.batch, record.settled_in, record.message, record.table) for record in found]


def test_a_frame_with_rows_of_two_tables_is_one_record() -> None:
    problems = [problem(1, "one", "shop.a"), problem(1, "other", "shop.b"), problem(1, "other", "shop.b"), problem(2)]
    assert told({"problems": problems}) == [(1, 7, None, "one; other", "shop.a, shop.b"), (2, 7, None, "boo", None)]
    # An earlier release did not keep all of them.
    assert told({"problems": [problem(2), problem(3).model_copy(update={"quarantined_as": None})]}) == [(2, 7, None, "boo", None)]


def test_a_record_that_is_settled_has_the_batch_that_could_not_use_it_and_the_one_that_could() -> None:
    found = told({"settled": [settled(1), settled(2)]}, {"problems": [problem(2)]})
    assert found == [(2, 7, None, "boo", None), (1, 3, 7, "boo", None)]


BOTH = bucket.mutation(bucket.ORDERS, bucket.SECRET)
OURS = bucket.mutation(bucket.ORDERS)


@pytest.mark.parametrize(
    ("data", "columns", "tables", "kind", "seen"),
    [
        (OURS, {}, {}, "MalformedMutation", True),
        (OURS[:-1], {}, {}, "MalformedMutation", True),
        (OURS, {}, {}, "corrupt_frame", False),
        (OURS, {}, {}, "torn_tail", False),
        (OURS, {"column.exclude.list": "shop.orders.note"}, {}, "MalformedMutation", False),
        (OURS, {"rows": {"shop.orders": "note == 'x'"}}, {}, "SchemaError", False),
        (OURS, {}, {"exclude": ["shop.orders"]}, "SchemaError", False),
        (BOTH, {}, {}, "SchemaError", False),
        (bucket.mutation(bucket.SECRET), {}, {}, "SchemaError", False),
        (bucket.mutation(bucket.ORDERS, note=b"x" * MOST_BYTES), {}, {}, "SchemaError", False),
        (b"\xff" * 20, {}, {}, "MalformedMutation", False),
    ],
)
def test_bytes_are_told_of_what_may_be_seen_only(
    tmp_path: Path, data: bytes, columns: dict[str, Any], tables: dict[str, Any], kind: str, seen: bool
) -> None:
    store = MemoryStore()
    name = f"{REF.quarantined(1, len(data))}.bin"
    store.put(name, data)
    record = QuarantineRecord(name, bucket.CLUSTER, QuarantineKind(kind), "boo", len(data), 7, 9, segment=REF.segment.stem)
    document = {"pipeline": "p", "cluster": {"name": bucket.CLUSTER, "datacenters": ["dc1"]}, "bucket": str(tmp_path), "tables": tables}
    config = PipelineConfig.model_validate({**document, "columns": columns, "quarantine": {"bytes": "captured"}})
    ((with_them,), (later,)) = (with_bytes([each], store, bucket.learner(), config) for each in (record, replace(record, settled_in=8)))
    assert (with_them.bytes, later.bytes) == (data if seen else None, None)
    assert topic_record(with_them)[1]["bytes"] == (base64.b64encode(data).decode() if seen else None)
    asked = PipelineConfig.model_validate({**document, "columns": columns})
    assert with_bytes([record], store, bucket.learner(), asked) == [record]
