"""The rows of the completeness table: which tables, with which times, and never a lower value than before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cassandra.schema.examples import drop_keyspace
from tests.monitoring import bucket
from writetime.pipeline.complete_tables import CompleteTable, complete_tables
from writetime.pipeline.documents import HeldTable, Sealed, Watermark
from writetime.pipeline.planner import seal
from writetime.pipeline.publish_progress import Published, write_published
from writetime.storage import layout, open_store
from writetime.storage.store import Store

CLUSTER = bucket.CLUSTER
NOW = datetime(2026, 11, 25, 21, tzinfo=UTC)
ROW = CompleteTable(CLUSTER, "shop.orders", str(bucket.ORDERS), NOW, NOW, None, 3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One sealed batch, which knows `shop.orders`."""
    store = open_store(str(tmp_path / "bucket"))
    store.put(layout.batch_object(CLUSTER, 1, "manifest"), b"{}")
    store.put(layout.batch_object(CLUSTER, 1, "schema"), bucket.learner().to_json().encode())
    seal(
        store, CLUSTER, Sealed(number=1, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={}, held=[], snapshots_applied=[])
    )
    return store


def know(store: Store, **about: object) -> None:
    store.put(layout.complete(CLUSTER), Watermark.model_validate({"batch": 1, "until": NOW, **about}).to_bytes())


def found(store: Store) -> list[CompleteTable]:
    return complete_tables(store, CLUSTER, lambda _: True)


def test_captured_tables_with_their_times(store: Store) -> None:
    assert found(store) == [], "nothing is known"
    know(store)
    assert found(store) == [ROW._replace(batch=1)]
    assert complete_tables(store, CLUSTER, lambda name: name != "shop.orders") == []
    held_at = NOW - timedelta(hours=1)
    know(store, held={bucket.ORDERS: HeldTable(until=held_at, by="segment")})
    assert found(store) == [ROW._replace(batch=1, changes_until=held_at, current_until=held_at)]


def test_in_kafka_is_what_was_published(store: Store) -> None:
    know(store)
    write_published(store, CLUSTER, Published(batch=1, events=0))
    assert found(store)[0].kafka_until == NOW
    # Files are no topics, and progress in batches that do not exist is another bucket's.
    write_published(store, CLUSTER, Published(batch=1, events=0, kafka=False))
    assert found(store)[0].kafka_until is None
    write_published(store, CLUSTER, Published(batch=7, events=0))
    assert found(store)[0].kafka_until is None


def test_a_dropped_table_has_no_row(store: Store) -> None:
    know(store)
    assert len(found(store)) == 1
    known = bucket.learner()
    known.apply(drop_keyspace("shop", 2))
    store.put(layout.batch_object(CLUSTER, 1, "schema"), known.to_json().encode())
    assert found(store) == []


def test_no_value_goes_back() -> None:
    stored = ROW._replace(changes_until=NOW + timedelta(hours=1), current_until=None, kafka_until=NOW, batch=4)._asdict()
    merged = ROW._replace(changes_until=NOW + timedelta(hours=1), kafka_until=NOW, batch=4)
    assert ROW.not_before(stored) == merged
    assert ROW.not_before(None) == ROW
