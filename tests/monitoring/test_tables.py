"""What came of each table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.monitoring import bucket
from tests.storage.memory import MemoryStore
from writetime.monitoring.tables import tables
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import Sealed
from writetime.storage import layout


def test_tables_sum_up_their_batches(batches: Batches) -> None:
    found = {table.name: table for table in tables(batches, last=4).tables}
    orders, rare = found["shop.orders"], found['shop."<b>X</b>"']
    assert orders.total.updates_in == 120
    assert (orders.events, rare.events) == ([10, 10, 10, 10], [30, 0, 30, 0])
    assert orders.per_minute == pytest.approx(40 / (3 + 20 / 60))
    assert rare.last_event == bucket.minute(9) + timedelta(seconds=20)
    assert (orders.unpublished, rare.unpublished) == (1, 0)
    assert (orders.rows, rare.rows) == (1000 * batches.latest(1)[0].number, None)


def test_a_quiet_table_shows_by_its_rows() -> None:
    store = MemoryStore()
    document = bucket.Builder(store.put)
    document.batch(1)
    name = layout.batch_object(bucket.CLUSTER, 1, "sealed")
    sealed = Sealed.model_validate_json(store.read(name))
    store.put(name, sealed.model_copy(update={"rows": {"shop.quiet": 7}}).to_bytes())
    quiet = {table.name: table for table in tables(Batches(store, bucket.CLUSTER)).tables}["shop.quiet"]
    assert (quiet.rows, quiet.total.updates_in, quiet.last_event) == (7, 0, None)


def test_without_a_batch_there_is_no_table() -> None:
    found = tables(Batches(MemoryStore(), bucket.CLUSTER))
    assert (found.tables, found.published) == ((), None)
