"""Numbers of events compared with the seals, without Spark."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from spark_jobs.promised_events import hole, promised_by
from spark_jobs.sinks import avro_files
from tests.spark_jobs.examples import table
from writetime.pipeline.documents import Accounting, Sealed
from writetime.pipeline.erasures import Erasure
from writetime.storage import layout
from writetime.storage.local import LocalStore

AT = datetime(2026, 5, 4, tzinfo=UTC)
SOLD = table("sold", 50, {"id": "int"})


def sealed(number: int, **events: int) -> Sealed:
    """`__`: a dropped incarnation of the name."""
    accounting = [Accounting(table=f"shop.{name.replace('__', '@')}", events=count) for name, count in events.items()]
    return Sealed(number=number, kind="ingest", sealed_at=AT, segments=[], accounting=accounting, state={})


def test_a_hole_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    promised = {1: promised_by(sealed(1, sold=2, sold__aaaaaaaa=1)), 2: promised_by(sealed(2, other=4)), 3: None}
    assert hole(store, "c", "shop.sold", {1: 3, 3: 7}, promised) is None
    for there, says in (
        ({}, "has 0 events of batch 1, and the seal says 3"),
        ({1: 4}, "has 4 events"),
        ({1: 3, 2: 1}, "1 events of batch 2"),
    ):
        error = hole(store, "c", "shop.sold", there, promised)
        assert error is not None
        assert says in str(error)
        assert "`writetime again shop.sold`" in str(error)
    assert "2 events of batch 1, and the seal says 3, and 1 more batches differ" in str(
        hole(store, "c", "shop.sold", {1: 2, 2: 1}, promised)
    )


@pytest.mark.parametrize(
    ("number", "revoked", "of", "is_whole"), [(1, False, "sold", True), (1, True, "sold", False), (1, False, "x", False)]
)
def test_of_a_key_that_was_erased_events_may_be_gone(tmp_path: Path, number: int, revoked: bool, of: str, is_whole: bool) -> None:
    store = LocalStore(tmp_path)
    about: dict[str, Any] = {"table_ids": [UUID(int=1)], "partition": "aa", "until": 1, "at": AT, "by": "me"}
    erasure = Erasure(number=number, table=f"shop.{of}", revoked=revoked, **about)
    store.put(layout.erasure("c", number), erasure.to_bytes())
    promised = {1: promised_by(sealed(1, sold=3)), 2: promised_by(sealed(2, sold=3))}
    assert (hole(store, "c", "shop.sold", {1: 2, 2: 3}, promised) is None) is is_whole
    # Never more, nor of a batch after it.
    assert hole(store, "c", "shop.sold", {1: 4, 2: 3}, promised) is not None
    assert hole(store, "c", "shop.sold", {1: 3, 2: 2}, promised) is not None


def test_files_with_a_hole_are_not_complete(tmp_path: Path) -> None:
    store, config = LocalStore(tmp_path), SimpleNamespace(cluster=SimpleNamespace(name="c"))
    for number in (1, 2):
        store.put(layout.batch_object("c", number, "sealed"), sealed(number, sold=number).to_bytes())

    def missing(begins: dict[UUID, int], **written: Counter[int]) -> Any:
        found = {f"shop.{name}": events for name, events in written.items()}
        return avro_files._hole(config, store, [SOLD], found, begins, range(1, 3))  # type: ignore[arg-type]

    assert missing({}, sold=Counter({1: 1, 2: 2})) is None
    assert "has 0 events of batch 1" in str(missing({}))
    # From where the table was made again.
    assert missing({SOLD.id: 2}, sold=Counter({2: 2})) is None
    assert "has 1 events of batch 2" in str(missing({SOLD.id: 2}, sold=Counter({2: 1})))
