"""Records and rows come to the same text, whatever the format; no Kafka, no Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.topic_check import Sides, compared
from tests.spark_jobs.examples import table
from writetime.config.kafka import KafkaConfig
from writetime.storage import open_store

PRICES = table("prices", 1, {"id": "int", "line": "decimal", "amount": "decimal", "tags": "set<text>"}, clustering=1)
STORED = pa.schema([("id", pa.int32()), ("line", pa.string()), ("amount", pa.decimal128(12, 2)), ("tags", pa.list_(pa.string()))])
KAFKA = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "cdc"})
KEY = b'{"id":1,"line":"1.0"}'
AFTER = {"id": 1, "line": "1.0", "amount": "1.5", "tags": None}


def sides(bucket: str = "bucket", **about: Any) -> Sides:
    given: dict[str, Any] = {"kafka": KAFKA, "numbers": frozenset({"amount"}), "cells": False, "share": 1.0, "seed": 0} | about
    made = Sides(bucket=bucket, topic="cdc.shop.prices", table=PRICES, types={}, stored=STORED, partitions=(), **given)
    assert made.shape is not None
    # As a task has it.
    return pickle.loads(pickle.dumps(made))


def event(after: Any, *, sequence: str = '["3","7"]', **more: Any) -> bytes:
    return json.dumps({"after": after, "source": {"sequence": sequence}, **more}).encode()


def said(found: Sides, bucket: str, *records: tuple[bytes | None, bytes | None]) -> list[dict[str, Any]]:
    return list(found._last_of(records, open_store(bucket)))


def held(found: Sides, **values: Any) -> dict[str, Any]:
    row = {"id": 1, "line": "1.0", "amount": Decimal("1.50"), "tags": None} | values
    (record,) = (each for out in found.of_table(iter([pa.RecordBatch.from_pylist([row], schema=STORED)])) for each in out.to_pylist())
    return dict(record)


@pytest.mark.parametrize(
    ("value", "cells"),
    [
        (event(AFTER), False),
        (event({"id": 1, "line": "1.0", "amount": "1.50"}), False),
        (json.dumps({"schema": {}, "payload": json.loads(event(AFTER))}).encode(), False),
        (event({name: {"value": value, "deletion_ts": None, "set": True, "writetime": 1} for name, value in AFTER.items()}), True),
    ],
    ids=["an event", "before a column was added", "with its schema", "cells"],
)
def test_a_record_says_what_the_row_is(tmp_path: Path, value: bytes, cells: bool) -> None:
    found = sides(cells=cells)
    key = json.dumps({"schema": {}, "payload": json.loads(KEY)}).encode() if b"schema" in value else KEY
    (record,) = said(found, str(tmp_path), (KEY, event(AFTER | {"amount": "9"})), (key, value))
    assert (record["batch"], record["ordinal"]) == (3, 7)
    row = held(found)
    assert (record["key"], record["row"]) == (row["key"], row["row"])
    assert held(found, amount=Decimal("1.51"))["row"] != record["row"]


def test_a_value_that_was_too_large_is_fetched(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "bucket"))
    store.put("claims/one", event(AFTER))
    claim = event(None, claim={"url": f"{store.url.rstrip('/')}/claims/one", "size": 1, "crc32c": 1})
    found = sides(str(tmp_path / "bucket"))
    (record,) = said(found, str(tmp_path / "bucket"), (KEY, claim))
    assert record["row"] == held(found)["row"]


def test_deletes_markers_and_truncates(tmp_path: Path) -> None:
    records = [(KEY, event(AFTER)), (None, None), (None, event(None, sequence='["4","1"]')), (KEY, None)]
    found = said(sides(), str(tmp_path), *records)
    assert [(each["key"] is None, each["batch"], each["row"]) for each in found] == [(True, 4, None), (False, None, None)]
    (deleted,) = said(sides(), str(tmp_path), (KEY, event(None)))
    assert deleted["row"] is None


def rows(*given: tuple[str, str, int | None, str | None]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("key", pa.string()), ("side", pa.string()), ("batch", pa.int64()), ("ordinal", pa.int64()), ("row", pa.string())])
    found = [{"key": key, "side": side, "batch": batch, "ordinal": 1, "row": row} for key, side, batch, row in given]
    yield pa.RecordBatch.from_pylist(found, schema=schema)


def test_what_differs_and_what_may() -> None:
    found = compared(
        rows(
            *(("equal", "table", None, "a"), ("equal", "topic", 2, "a")),
            *(("other", "table", None, "a"), ("other", "topic", 2, "b")),
            *(("missing", "table", None, "a"),),
            *(("too many", "topic", 2, "a"),),
            *(("gone in both", "topic", None, None),),
            *(("newer in the topic", "table", None, "a"), ("newer in the topic", "topic", 6, "b")),
            *(("not published", "due", None, None), ("not published", "table", None, "a")),
            *(("moved to another partition", "table", None, "b"), ("moved to another partition", "topic", 2, "a")),
            *(("moved to another partition", "topic", 4, "b"),),
        ),
        sealed=5,
    )
    *differ, last = [row for batch in found for row in batch.to_pylist()]
    assert {row["key"]: row["verdict"] for row in differ} == {
        **dict.fromkeys(("other", "missing", "too many"), "drift"),
        **dict.fromkeys(("newer in the topic", "not published"), "unsettled"),
    }
    assert last["keys"] == 8


def test_a_sample_is_the_same_of_both_sides() -> None:
    found = sides(share=0.3)
    keys = [json.dumps({"id": number}) for number in range(1000)]
    chosen = {key for key in keys if found._is_sampled(key)}
    assert 200 < len(chosen) < 400
    assert chosen != {key for key in keys if sides(share=0.3, seed=1)._is_sampled(key)}
