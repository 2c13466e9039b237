"""What came of each table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.status import bucket
from tests.store.memory import MemoryStore
from writetime.status.batches import Batches
from writetime.status.tables import tables


def test_tables_sum_up_their_batches(batches: Batches) -> None:
    found = {table.name: table for table in tables(batches, last=4).tables}
    orders, rare = found["shop.orders"], found['shop."<b>X</b>"']
    assert orders.total.updates_in == 120
    assert (orders.events, rare.events) == ([10, 10, 10, 10], [30, 0, 30, 0])
    assert orders.per_minute == pytest.approx(40 / (3 + 20 / 60))
    assert rare.last_event == bucket.minute(9) + timedelta(seconds=20)
    assert (orders.unpublished, rare.unpublished) == (1, 0)


def test_without_a_batch_there_is_no_table() -> None:
    found = tables(Batches(MemoryStore(), bucket.CLUSTER))
    assert (found.tables, found.published) == ((), None)
