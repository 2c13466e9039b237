"""Where tables stand, asked of Iceberg itself: what people do to a table is told from what goes on there. No Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from spark_jobs.sinks.iceberg import _loss
from spark_jobs.sinks.iceberg_table import IcebergTable, is_conflict
from tests import iceberg_jvm
from writetime.pipeline.documents import TablePoint


class Session:
    """What `IcebergTable` needs of Spark, but for the table."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._jvm = gateway.jvm
        self.catalog = SimpleNamespace(refreshTable=lambda _: None)


@pytest.fixture(scope="module")
def gateway() -> Iterator[JavaGateway]:
    with iceberg_jvm.running() as running:
        yield running


@pytest.fixture
def tables(gateway: JavaGateway, tmp_path: Path) -> iceberg_jvm.Tables:
    return iceberg_jvm.Tables(gateway, str(tmp_path / "lake"), tmp_path / "catalog.db", {})


def held_of(gateway: JavaGateway, table: Any) -> IcebergTable:
    held = IcebergTable.__new__(IcebergTable)
    held.__dict__.update(_spark=Session(gateway), name="t", _table=table, _read=([], []), _metadata={}, _read_from=None, _found={})
    return held


def append(tables: iceberg_jvm.Tables, table: Any, number: int) -> None:
    tables.append(table, f"/nowhere/{number}.parquet", 1, 1)


def noted(held: IcebergTable, batch: int) -> TablePoint:
    point = held.point
    assert point is not None
    return TablePoint(batch=batch, **point._asdict())


def test_what_people_do_to_a_table_is_told_from_what_goes_on(gateway: JavaGateway, tables: iceberg_jvm.Tables) -> None:
    table = tables.create("shop", "orders")
    held = held_of(gateway, table)
    assert held.point is None
    append(tables, table, 1)
    first = noted(held, 1)
    append(tables, table, 2)
    second = noted(held, 2)
    assert (second.table, second.sequence) == (first.table, first.sequence + 1)
    assert (_loss(held, first), _loss(held, second), _loss(held, None)) == (None, None, None)
    # Others may commit on top, and snapshots may expire.
    append(tables, table, 3)
    third = noted(held, 3)
    assert _loss(held, second) is None
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000) + 1000).retainLast(1).commit()
    assert (_loss(held, first), _loss(held, second), _loss(held, third)) == (None, None, None)
    append(tables, table, 4)
    fourth = noted(held, 4)
    # Rolled back, and written to after that: its sequence numbers go on.
    table.manageSnapshots().rollbackTo(third.snapshot).commit()
    assert _loss(held, third) is None
    assert "lacks batch 4" in str(_loss(held, fourth))
    append(tables, table, 5)
    assert held.point is not None
    assert held.point.sequence > fourth.sequence
    assert "lacks batch 4" in str(_loss(held, fourth))
    assert _loss(None, fourth) == "is not there, and holds batch 4 by the seals: it was dropped or renamed"


def test_a_table_that_was_dropped_is_not_taken_for_one_that_somebody_writes_to(gateway: JavaGateway, tables: iceberg_jvm.Tables) -> None:
    table = tables.create("shop", "orders")
    append(tables, table, 1)
    held, schema, spec = held_of(gateway, table), table.schema(), table.spec()
    point = noted(held, 1)
    name = gateway.jvm.org.apache.iceberg.catalog.TableIdentifier.parse("shop.orders")
    tables._catalog.dropTable(name, False)
    with pytest.raises(Py4JJavaError) as dropped:
        held.refresh()
    assert is_conflict(dropped.value)
    table = tables._catalog.createTable(name, schema, spec)
    append(tables, table, 2)
    assert _loss(held_of(gateway, table), point) == "is another table, and lacks batch 1: the one of this name was dropped"
    # As the catalog of Spark is told to forget a table.
    levels = gateway.new_array(gateway.jvm.java.lang.String, 1)
    levels[0] = "shop"
    assert gateway.jvm.org.apache.spark.sql.connector.catalog.Identifier.of(levels, "orders").toString() == "shop.orders"
