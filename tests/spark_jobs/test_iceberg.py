"""The warehouse tables with real Spark and Iceberg: made, evolved, moved aside, written twice."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from structlog.testing import capture_logs

from spark_jobs.failures import of_each
from spark_jobs.session import spark_session
from spark_jobs.sinks import compaction, table_maintenance
from spark_jobs.sinks.compaction import compact_if_due
from spark_jobs.sinks.iceberg import Fence, Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.spark_catalog import SparkCatalog, _Notes
from spark_jobs.sinks.table_maintenance import count, tidy
from spark_jobs.stages.event_pages import PAGES
from tests.spark_jobs.examples import (
    COUNTS,
    EVERYTHING,
    KEYS_ONLY,
    NOW,
    ORDERS,
    SCHEMA,
    THEN,
    cells,
    delete,
    folded,
    frame,
    insert,
    of_kind,
    paged,
    schema_of,
    table,
)
from tests.spark_jobs.pipeline import Pipeline
from writetime.cassandra.model import Cell, DeletionTime, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, DroppedColumn, Schema, Table, UserType
from writetime.cassandra.types.types import Duration
from writetime.config.warehouse import WarehouseConfig
from writetime.errors import BatchBusy, BatchError
from writetime.events.naming import to_column
from writetime.pipeline.complete_tables import CompleteTable
from writetime.pipeline.documents import Sealed
from writetime.pipeline.identity import Owner
from writetime.pipeline.planner import seal
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.record import QuarantineRecord
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(Pipeline.create(tmp_path_factory.mktemp("warehouse")).config, "tests of the warehouse")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession) -> Warehouse:
    return Warehouse(spark, "lake")


def events(spark: SparkSession, mutations: Iterable[Mutation], schema: Schema, *, start: int = 0) -> DataFrame:
    rows = of_kind(folded([frame(m, schema=schema) for m in mutations], schema), "event")
    assert rows
    return pages(spark, paged(rows, schema, start=start))


def pages(spark: SparkSession, found: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(found, schema=PAGES), schema=from_arrow_schema(PAGES))


def write(warehouse: Warehouse, of: Table, batch: int, *mutations: Mutation, schema: Schema = SCHEMA) -> None:
    found = events(warehouse.spark, mutations, schema)
    warehouse.write_changes(of, schema, found, batch)
    warehouse.merge_current(of, schema, found, batch)


def rows(warehouse: Warehouse, name: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in warehouse.spark.table(f"lake.{name}").collect()]


@pytest.mark.thorough
def test_written_twice_is_there_once(warehouse: Warehouse) -> None:
    batch = [insert(ORDERS, 1, {"name": "one"}, 1), insert(ORDERS, 1, {"name": "two"}, 2), insert(ORDERS, 2, {"name": "three"}, 1)]
    write(warehouse, ORDERS, 1, *batch)
    write(warehouse, ORDERS, 2, insert(ORDERS, 3, {"name": "four"}, 1))
    for _ in range(2):
        write(warehouse, ORDERS, 1, *batch)
    changes = rows(warehouse, "shop__changes.orders")
    assert sorted((row["batch"], row["ordinal"]) for row in changes) == [(1, 1), (1, 2), (1, 3), (2, 1)]
    current = rows(warehouse, "shop.orders")
    names = {(row["id"], row["line"]): row["name"] for row in current}
    assert names == {(1, 1): "one", (1, 2): "two", (2, 1): "three", (3, 1): "four"}
    assert all(row["_writetime"] == {"name": THEN} and row["_expires_at"] == {} for row in current)
    snapshots = warehouse.spark.table("lake.shop.orders.snapshots").collect()
    assert [row["summary"]["writetime.batch"] for row in snapshots] == ["1", "2"]

    # Inserted again, and gone by the end of the batch.
    write(warehouse, ORDERS, 3, insert(ORDERS, 2, {"name": "three"}, 1), delete(ORDERS, 2, THEN + 1))
    assert {(row["id"], row["line"]) for row in rows(warehouse, "shop.orders")} == {(1, 1), (1, 2), (3, 1)}


def test_a_clustering_of_no_bytes_and_static_content_alone_take_turns(warehouse: Warehouse) -> None:
    turns = table("turns", 41, {"id": "int", "line": "int", "note": "static text", "v": "text"}, clustering=1)
    schema = schema_of(turns)
    static = Row(None, cells=(Cell("note", THEN, b"n"),))
    alone = Mutation((PartitionUpdate(turns.id, b"\0\0\0\1", static_row=static),))
    # INSERT INTO turns (id, line, v) VALUES (1, blobAsInt(0x), 'x')
    row = insert(turns, 1, {"v": "x"}, b"", timestamp=THEN + 1, schema=schema)
    gone = Mutation((PartitionUpdate(turns.id, b"\0\0\0\1", rows=(Row((b"",), deletion=DeletionTime(THEN + 2, THEN // 10**6)),)),))
    for batch, (mutations, v) in enumerate([((alone,), None), ((alone, row), "x"), ((alone, row, gone), None), ((alone, row), "x")], 1):
        write(warehouse, turns, batch, *mutations, schema=schema)
        assert [(row["line"], row["note"], row["v"]) for row in rows(warehouse, "shop.turns")] == [(None, "n", v)]


def test_a_row_that_comes_back_in_another_spelling_is_one_row(warehouse: Warehouse) -> None:
    prices = table("prices", 42, {"id": "int", "price": "decimal", "v": "text"}, clustering=1)
    schema = schema_of(prices)
    first = insert(prices, 1, {"v": "x"}, Decimal("1.0"), schema=schema)
    gone = Mutation((PartitionUpdate(prices.id, b"\0\0\0\1", DeletionTime(THEN + 1, THEN // 10**6)),))
    again = insert(prices, 1, {"v": "y"}, Decimal("1.00"), timestamp=THEN + 2, schema=schema)
    other = insert(prices, 1, {"v": "z"}, Decimal("2.0"), schema=schema)
    write(warehouse, prices, 1, first, other, schema=schema)
    write(warehouse, prices, 2, first, gone, again, schema=schema)
    assert sorted((row["price"], row["v"]) for row in rows(warehouse, "shop.prices")) == [("1", "y"), ("2", "z")]


def test_a_row_that_one_write_spells_otherwise_keeps_its_key(warehouse: Warehouse) -> None:
    """BEGIN BATCH: delete the partition, write a row of it again. It was never gone."""
    prices = table("respelled", 43, {"id": "int", "price": "decimal", "v": "text"}, clustering=1)
    schema = schema_of(prices)
    first = insert(prices, 1, {"v": "x"}, Decimal("1.0"), schema=schema)
    second = insert(prices, 1, {"v": "y"}, Decimal("1.00"), timestamp=THEN + 2, schema=schema)
    at_once = Mutation((replace(second.updates[0], deletion=DeletionTime(THEN + 1, THEN // 10**6)),))
    write(warehouse, prices, 1, first, schema=schema)
    write(warehouse, prices, 2, first, at_once, schema=schema)
    assert [(row["price"], row["v"]) for row in rows(warehouse, "shop.respelled")] == [("1", "y")]
    told = sorted(rows(warehouse, "shop__changes.respelled"), key=lambda row: (row["batch"], row["ordinal"]))
    parts = [tuple(row[part] and row[part]["price"] for part in ("key", "before", "after")) for row in told if row["op"] == "u"]
    assert parts == [("1", "1", "1")]
    gone = Mutation((PartitionUpdate(prices.id, b"\0\0\0\1", DeletionTime(THEN + 3, THEN // 10**6)),))
    write(warehouse, prices, 3, first, at_once, gone, schema=schema)
    assert rows(warehouse, "shop.respelled") == []


@pytest.mark.parametrize("kind", ["decimal", "frozen<price>", "frozen<list<frozen<price>>>"])
def test_a_key_is_respelled_wherever_in_it_a_decimal_is(warehouse: Warehouse, kind: str) -> None:
    def spelled(text: str) -> Any:
        price: Any = Decimal(text)
        return {"decimal": price, "frozen<price>": {"amount": price}}.get(kind, [{"amount": price}])

    types = {("shop", "price"): UserType("shop", "price", ("amount",), ("decimal",))}
    prices = table(f"deep_{len(kind)}", 50 + len(kind), {"id": "int", "price": kind, "v": "text"}, clustering=1)
    schema = schema_of(prices, types=types)
    first = insert(prices, 1, {"v": "x"}, spelled("1.0"), schema=schema)
    gone = Mutation((PartitionUpdate(prices.id, b"\0\0\0\1", DeletionTime(THEN + 1, THEN // 10**6)),))
    again = insert(prices, 1, {"v": "y"}, spelled("1.00"), timestamp=THEN + 2, schema=schema)
    write(warehouse, prices, 1, first, schema=schema)
    write(warehouse, prices, 2, first, gone, again, schema=schema)
    assert [row["v"] for row in rows(warehouse, f"shop.{prices.name}")] == ["y"]


def test_a_row_of_which_the_key_holds_nan_is_updated(warehouse: Warehouse) -> None:
    """NaN does not equal itself: the row was taken away and changed at once, which Spark refuses, and with it
    the whole batch."""
    odd = table("odd", 48, {"id": "int", "c": "double", "d": "frozen<list<float>>", "v": "text"}, clustering=2)
    schema = schema_of(odd)
    key = (math.nan, [math.nan, -0.0])
    first = insert(odd, 1, {"v": "x"}, *key, schema=schema)
    write(warehouse, odd, 1, first, schema=schema)
    write(warehouse, odd, 2, first, insert(odd, 1, {"v": "y"}, *key, timestamp=THEN + 1, schema=schema), schema=schema)
    assert [row["v"] for row in rows(warehouse, "shop.odd")] == ["y"]
    gone = Mutation((PartitionUpdate(odd.id, b"\0\0\0\1", DeletionTime(THEN + 2, THEN // 10**6)),))
    write(warehouse, odd, 3, first, gone, schema=schema)
    assert rows(warehouse, "shop.odd") == []


def test_a_partition_whose_key_reads_as_anothers_changes_no_row_of_it(warehouse: Warehouse) -> None:
    """The varint 1 in one byte and in two: two partitions to Cassandra, of which nobody who reads their rows
    could tell which is which. The second one is in quarantine."""
    alike = table("alike", 49, {"id": "varint", "v": "text"})
    schema = schema_of(alike)

    def put(key: bytes, v: str, timestamp: int) -> Mutation:
        return Mutation((PartitionUpdate(alike.id, key, rows=(Row((), cells=cells(alike, {"v": v}, timestamp, schema)),)),))

    first = [put(b"\1", "a", THEN), put(b"\0\1", "b", THEN)]
    write(warehouse, alike, 1, *first, schema=schema)
    assert [row["v"] for row in rows(warehouse, "shop.alike")] == ["a"]
    write(warehouse, alike, 2, *first, put(b"\1", "c", THEN + 1), put(b"\0\1", "d", THEN + 1), schema=schema)
    assert [row["v"] for row in rows(warehouse, "shop.alike")] == ["c"]
    assert Counter(row["op"] for row in rows(warehouse, "shop__changes.alike")) == {"c": 1 + 1, "u": 1}


@pytest.mark.thorough
def test_records_that_several_jobs_tell_of_at_once_are_all_there(warehouse: Warehouse) -> None:
    def tell(number: int, settled_in: int | None = None) -> None:
        kind = QuarantineKind.UNKNOWN_TABLE
        warehouse.write_quarantine([QuarantineRecord(f"record {number}", "ring", kind, "boo", 5, 1, NOW, settled_in=settled_in)], 1)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(tell, [*range(4), 1]))
    tell(2, settled_in=2)
    name = warehouse.quarantine()
    assert name is not None
    found = warehouse.spark.table(name).orderBy("name").collect()
    assert [(row["name"], row["settled_in"]) for row in found] == [(f"record {at}", 2 if at == 2 else None) for at in range(4)]
    assert [done.name for done in tidy(warehouse, [])] == [name.replace("`", "")] == ["lake._writetime.quarantine"]
    # Nobody waits for a table that somebody else has made.
    warehouse.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('writetime.table-id')")
    with capture_logs() as logs:
        tell(9)
    assert [log["records"] for log in logs if log["event"].startswith("quarantine records not written")] == [1]
    assert warehouse.quarantine() is None
    warehouse.spark.sql(f"DROP TABLE {name}")


def test_up_to_when_tables_are_complete(warehouse: Warehouse) -> None:
    def tables(cluster: str, seconds: int, batch: int, *names: str) -> list[CompleteTable]:
        until = datetime.fromtimestamp(NOW + seconds, UTC)
        return [CompleteTable(cluster, f"shop.{name}", name, until, until, until if batch > 1 else None, batch) for name in names]

    def found() -> dict[tuple[str, str], tuple[int, int | None, int]]:
        assert name is not None
        stored = warehouse.spark.table(name).selectExpr("cluster", "table_id", "unix_seconds(changes_until) AS changes", "batch")
        kafka = warehouse.spark.table(name).selectExpr("cluster", "table_id", "unix_seconds(kafka_until) AS kafka")
        rows = stored.join(kafka, ["cluster", "table_id"]).collect()
        return {
            (row["cluster"], row["table_id"]): (row["changes"] - NOW, row["kafka"] and row["kafka"] - NOW, row["batch"]) for row in rows
        }

    # Two pipelines begin at once.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(warehouse.write_completeness, [tables("one", 10, 1, "a", "b"), tables("it's", 10, 1, "a")]))
    name = warehouse.completeness()
    assert name is not None
    first = (10, None, 1)
    assert found() == {("one", "a"): first, ("one", "b"): first, ("it's", "a"): first}
    warehouse.write_completeness(tables("one", 20, 2, "a", "b"))
    second = (20, 20, 2)
    assert found() == {("one", "a"): second, ("one", "b"): second, ("it's", "a"): first}
    # A driver that is late takes nothing back, and what changes nothing is no commit.
    before = count(IcebergTable(warehouse.spark, name))
    warehouse.write_completeness(tables("one", 15, 1, "a", "b"))
    assert count(IcebergTable(warehouse.spark, name)) == before
    assert before.data == 2
    # b was dropped, c is new.
    warehouse.write_completeness(tables("one", 30, 3, "a", "c"))
    third = (30, 30, 3)
    assert found() == {("one", "a"): third, ("one", "c"): third, ("it's", "a"): first}
    assert "lake._writetime.completeness" in [done.name for done in tidy(warehouse, [])]
    # A table that somebody else has made stays as it is.
    warehouse.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('writetime.table-id')")
    with capture_logs() as logs:
        warehouse.write_completeness(tables("one", 40, 4, "a"))
    assert [log["event"] for log in logs] == ["completeness not written: the table was not created by writetime"]
    assert warehouse.completeness() is None
    assert found()["one", "a"] == third
    warehouse.spark.sql(f"DROP TABLE {name}")


def test_rows_without_other_columns(warehouse: Warehouse) -> None:
    write(warehouse, KEYS_ONLY, 1, insert(KEYS_ONLY, 1, None, "x"))
    write(warehouse, KEYS_ONLY, 2, insert(KEYS_ONLY, 1, None, "x"), insert(KEYS_ONLY, 1, None, "y"))
    assert sorted((row["id"], row["c"]) for row in rows(warehouse, "shop.keys_only")) == [(1, "x"), (1, "y")]


def test_static_content_that_stands_alone_has_null_clusterings(warehouse: Warehouse) -> None:
    statics = table("statics", 10, {"id": "int", "line": "int", "note": "static text", "name": "text"}, clustering=1)
    schema = schema_of(statics)
    alone = PartitionUpdate(statics.id, b"\0\0\0\1", static_row=Row(None, cells=(Cell("note", THEN, b"n"),)))
    for batch in (1, 2):
        write(warehouse, statics, batch, Mutation((alone,)), schema=schema)
        assert [(row["id"], row["line"], row["note"]) for row in rows(warehouse, "shop.statics")] == [(1, None, "n")]
    write(warehouse, statics, 3, Mutation((alone,)), insert(statics, 1, {"name": "x"}, 7, schema=schema, timestamp=THEN + 1), schema=schema)
    assert [(row["id"], row["line"], row["note"]) for row in rows(warehouse, "shop.statics")] == [(1, 7, "n")]


VALUES: dict[str, tuple[Any, Any]] = {
    # column: value, what Spark reads
    "c ascii": ("a", "a"),
    "c bigint": (-(2**63), -(2**63)),
    "c blob": (b"\0\xff", b"\0\xff"),
    "c boolean": (True, True),
    "c date": (20_778, date(2026, 11, 21)),
    "c decimal": (Decimal("1.10"), "1.10"),
    "c double": (0.1, 0.1),
    "c duration": (Duration(1, 2, 3), {"months": 1, "days": 2, "nanoseconds": 3}),
    "c float": (0.5, 0.5),
    "c inet": ("10.1.2.3", "10.1.2.3"),
    "c int": (-1, -1),
    "c smallint": (-(2**15), -(2**15)),
    "c text": ("ü", "ü"),
    "c time": (1, 1),
    "c timestamp": (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    "c timeuuid": (UUID("6cbda380-e583-11f1-817f-f173fd8e050e"), "6cbda380-e583-11f1-817f-f173fd8e050e"),
    "c tinyint": (-128, -128),
    "c uuid": (UUID(int=5), str(UUID(int=5))),
    "c varint": (10**40, str(10**40)),
    "Name": ("upper", "upper"),
    "name": (1, 1),
    "a.b": ("dot", "dot"),
    'with `ticks` and "quotes"': ("t", "t"),
    "select": ([3, 1], [3, 1]),
    "tags": (["a", "b"], ["a", "b"]),
    "names": ([("k", "v")], {"k": "v"}),
    "home": ({"street": "s", "Since when": 0}, {"street": "s", "__x53_ince_x20_when": datetime(1970, 1, 1)}),
    "work": ({"street": None, "Since when": None}, {"street": None, "__x53_ince_x20_when": None}),
    "homes": ([{"street": "x", "Since when": 1}], [{"street": "x", "__x53_ince_x20_when": datetime(1970, 1, 1, 0, 0, 0, 1000)}]),
    "two": ((1, "z"), {"field_1": 1, "field_2": "z"}),
    "v": ([0.5, 1.0], [0.5, 1.0]),
}


def test_all_types_and_names_that_need_quoting(warehouse: Warehouse) -> None:
    assert set(VALUES) | {"id", "by pair"} == set(EVERYTHING.columns)
    first = {name: value for name, (value, _) in VALUES.items()}
    keyed = {"by pair": [({"a": 1, "b": "x"}, 7)]}
    write(warehouse, EVERYTHING, 1, insert(EVERYTHING, 1, {**first, **keyed}), insert(EVERYTHING, 2))
    write(warehouse, EVERYTHING, 2, insert(EVERYTHING, 1, {**first, **keyed}, timestamp=THEN + 1))
    # A map whose keys are rows is no Python dict: it is looked at by SQL.
    stored = warehouse.spark.table("lake.shop.__x45_verything")
    full, empty = sorted((row.asDict(recursive=True) for row in stored.drop(to_column("by pair")).collect()), key=lambda row: row["id"])
    assert {name: full[to_column(name)] for name in VALUES} == {name: read for name, (_, read) in VALUES.items()}
    assert {empty[to_column(name)] for name in VALUES} == {None}
    assert full["_writetime"] == dict.fromkeys([*VALUES, *keyed], THEN + 1)
    (pair,) = stored.where("id = 1").selectExpr("map_keys(_by_x20_pair)[0].b AS b", "map_values(_by_x20_pair)[0] AS n").collect()
    assert (pair["b"], pair["n"]) == ("x", 7)
    changes = (
        warehouse.spark.table("lake.shop__changes.__x45_verything").where("batch = 2").select("after.__x4e_ame", "after.name").collect()
    )
    assert [tuple(row) for row in changes] == [("upper", 1)]


def test_key_columns_of_any_name(warehouse: Warehouse) -> None:
    names = ["it's", 'a "key"', "back\\slash\\n", "a\nline", "${env:HOME}", "${spark.app.name}", "'); DROP"]
    named = table("named", 71, {**dict.fromkeys(names, "int"), "v": "int"}, clustering=len(names) - 1)
    schema = schema_of(named)
    write(warehouse, named, 1, insert(named, 0, {"v": 1}, *range(1, len(names)), schema=schema), schema=schema)
    (found,) = warehouse.spark.sql("SHOW TBLPROPERTIES lake.shop__changes.named ('writetime.keys.first')").select("value").collect()
    assert json.loads(found.value) == names


def test_names_that_differ_in_case_only_are_two_for_every_reader(warehouse: Warehouse) -> None:
    cased = table("cased", 14, {"id": "int", "name": "int", "Name": "text", "at": "frozen<Both>"})
    both = {("shop", "Both"): UserType("shop", "Both", ("x", "X"), ("int", "int"))}
    cased = replace(cased, columns={**cased.columns, "at": Column("at", "regular", 'frozen<"Both">')})
    schema = schema_of(cased, types=both)
    write(warehouse, cased, 1, insert(cased, 1, {"name": 1, "Name": "upper", "at": {"x": 1, "X": 2}}, schema=schema), schema=schema)
    warehouse.spark.conf.set("spark.sql.caseSensitive", "false")
    try:
        (row,) = warehouse.spark.sql("SELECT NAME, __X4E_AME, at.X, at.__x58_ FROM lake.shop.cased").collect()
    finally:
        warehouse.spark.conf.set("spark.sql.caseSensitive", "true")
    assert tuple(row) == (1, "upper", 1, 2)


def test_counters(warehouse: Warehouse) -> None:
    context = b"\0\1\x80\0" + UUID(int=9).bytes + (1).to_bytes(8, "big") + (42).to_bytes(8, "big")
    write(warehouse, COUNTS, 1, insert(COUNTS, 1, {"n": context}))
    assert [(row["id"], row["n"]) for row in rows(warehouse, "shop.counts")] == [(1, 42)]


def test_writetimes_beyond_any_calendar(warehouse: Warehouse) -> None:
    odd = table("odd_times", 11, {"id": "int", "at": "timestamp", "on": "date"})
    schema = schema_of(odd)
    extremes = [-(2**63) + 1, 2**63 - 1]
    far = {"at": (2**63 - 1) // 1000, "on": 2**31 - 1}
    found = [insert(odd, key, far, timestamp=timestamp, schema=schema) for key, timestamp in enumerate(extremes)]
    for _ in range(2):
        write(warehouse, odd, 1, *found, schema=schema)
    changes = warehouse.spark.table("lake.shop__changes.odd_times")
    read = changes.selectExpr("ts_micro", "unix_seconds(changed_at) AS s", "unix_micros(after.at) AS at", "unix_date(after.on) AS d")
    first, second = sorted(read.collect())
    assert (first["ts_micro"], second["ts_micro"]) == (extremes[0], extremes[1])
    assert (first["s"], second["s"]) == (-62_135_596_800, 253_402_300_799)
    assert (first["at"], first["d"]) == (far["at"] * 1000, far["on"])


def _with(of: Table, **columns: str) -> Table:
    return replace(of, columns={**of.columns, **{name: Column(name, "regular", kind) for name, kind in columns.items()}})


def test_tables_grow_with_the_ring_and_keep_what_it_drops(warehouse: Warehouse) -> None:
    columns = {"id": "int", "old": "text", "where": "frozen<place>", "all": "list<frozen<place>>", "by": "map<text, frozen<place>>"}
    small = table("growing", 12, columns)
    narrow = {("shop", "place"): UserType("shop", "place", ("x",), ("int",))}
    place = {"x": 1}
    schema = schema_of(small, types=narrow)
    values = {"where": place, "all": [place], "by": [("k", place)]}
    write(warehouse, small, 1, insert(small, 1, {"old": "o", **values}, schema=schema), schema=schema)

    wide = {("shop", "place"): UserType("shop", "place", ("x", "y.z"), ("int", "text"))}
    grown = replace(small, columns={name: column for name, column in small.columns.items() if name != "old"})
    grown = replace(_with(grown, New="int"), dropped_columns={"old": DroppedColumn("old", "regular", "text", THEN + 1)})
    schema = schema_of(grown, types=wide)
    place = {"x": 2, "y.z": "wide"}
    values = {"where": place, "all": [place], "by": [("k", place)], "New": 5}
    write(warehouse, grown, 2, insert(grown, 2, values, schema=schema), insert(grown, 1, {"New": 6}, schema=schema), schema=schema)
    one, two = sorted(rows(warehouse, "shop.growing"), key=lambda row: row["id"])
    stored = {"x": 2, "_y_x2e_z": "wide"}
    assert (one["old"], one["__x4e_ew"]) == (None, 6)
    assert (two["old"], two["__x4e_ew"], two["where"], two["all"], two["by"]) == (None, 5, stored, [stored], {"k": stored})
    before, after = sorted(rows(warehouse, "shop__changes.growing"), key=lambda row: (row["batch"], row["ordinal"]))[::2]
    assert before["after"]["old"] == "o"
    assert before["after"]["all"] == [{"x": 1, "_y_x2e_z": None}]
    assert after["after"]["__x4e_ew"] in (5, 6)
    # Nothing of it is new any more.
    write(warehouse, grown, 3, insert(grown, 3, values, schema=schema), schema=schema)


def test_rows_with_maps_in_keys_of_maps_are_replaced_when_columns_were_dropped(warehouse: Warehouse) -> None:
    """Spark makes no map whose keys hold maps, and makes values anew where a column lacks or stands
    elsewhere."""
    odd = table("odd", 44, {"id": "int", "gone": "text", "m": "map<frozen<map<boolean, float>>, duration>", "v": "text"})
    less = replace(odd, columns={name: column for name, column in odd.columns.items() if name != "gone"})
    less = replace(less, dropped_columns={"gone": DroppedColumn("gone", "regular", "text", THEN + 1)})
    of = schema_of(odd), schema_of(less)
    write(warehouse, odd, 1, insert(odd, 1, {"gone": "x", "v": "a"}, schema=of[0]), schema=of[0])
    again = insert(less, 2, {"m": [([(True, 1.5)], Duration(1, 2, 3))], "v": "b"}, timestamp=THEN + 2, schema=of[1])
    found = events(warehouse.spark, [again], of[1])
    warehouse.write_changes(less, of[1], found, 2)
    warehouse.replace_current(less, of[1], found, 2)
    # Python knows no such keys.
    (row,) = warehouse.spark.sql("SELECT id, v, gone, map_values(m) AS values FROM lake.shop.odd").collect()
    assert (row["id"], row["v"], row["gone"]) == (2, "b", None)
    assert [value.asDict() for value in row["values"]] == [{"months": 1, "days": 2, "nanoseconds": 3}]


def test_rows_with_maps_in_their_keys_are_replaced_whatever_is_in_these(warehouse: Warehouse) -> None:
    """Java prints bytes and lists as objects, which differ each time."""
    keys = {
        "map<blob, decimal>": [(b"\0", Decimal("2228.8")), (b"\xff", Decimal(1))],
        "map<frozen<list<int>>, frozen<map<blob, blob>>>": [([1, 2], [(b"k", b"v")])],
        "list<frozen<map<blob, int>>>": [[(b"k", 1)], []],
        "tuple<frozen<map<blob, int>>, int>": ([(b"k", 1)], None),
        "tuple<int, frozen<map<blob, int>>>": (2, None),
    }
    clustering = {f"c{at}": f"frozen<{kind}>" for at, kind in enumerate(keys)}
    odd = table("by_maps", 45, {"id": "int", **clustering, "v": "text"}, clustering=len(keys))
    schema = schema_of(odd)
    for batch, value in enumerate("ab", 1):
        row = insert(odd, 1, {"v": value}, *keys.values(), timestamp=THEN + batch, schema=schema)
        write(warehouse, odd, batch, row, schema=schema)
    found = warehouse.spark.sql("SELECT v FROM lake.shop.by_maps").collect()
    assert [row["v"] for row in found] == ["b"]


def test_a_table_made_anew_gets_tables_of_its_own(warehouse: Warehouse) -> None:
    old = table("phoenix", 0xABCDEF01 << 96, {"id": "int", "v": "int"})
    new = table("phoenix", 0x12345678 << 96, {"id": "int", "v": "text"})
    write(warehouse, old, 1, insert(old, 1, {"v": 1}, schema=schema_of(old)), schema=schema_of(old))
    gone = replace(old, dropped=True)
    schema = schema_of(gone, new)
    write(warehouse, new, 2, insert(new, 1, {"v": "text"}, schema=schema), schema=schema)
    late = events(warehouse.spark, [insert(gone, 2, {"v": 2}, schema=schema)], schema)
    for _ in range(2):
        warehouse.write_changes(gone, schema, late, 2)
    assert [row["v"] for row in rows(warehouse, "shop.phoenix")] == ["text"]
    assert [row["v"] for row in rows(warehouse, "shop.phoenix__abcdef01")] == [1]
    assert sorted(row["after"]["v"] for row in rows(warehouse, "shop__changes.phoenix__abcdef01")) == [1, 2]
    assert warehouse.changes_of(new) == "`lake`.`shop__changes`.`phoenix`"
    assert warehouse.changes_of(gone) == "`lake`.`shop__changes`.`phoenix__abcdef01`"
    places = {
        warehouse.spark.sql(f"DESCRIBE TABLE EXTENDED lake.shop.{name}").where("col_name = 'Location'").collect()[0]["data_type"]
        for name in ("phoenix", "phoenix__abcdef01")
    }
    assert len(places) == 2


def test_a_keyspace_called_as_anothers_changes_keeps_its_own_tables(warehouse: Warehouse) -> None:
    plain = table("twins", 21, {"id": "int", "v": "int"})
    odd = replace(table("twins", 22, {"id": "int", "v": "text"}), keyspace="shop__changes")
    write(warehouse, plain, 1, insert(plain, 1, {"v": 5}, schema=schema_of(plain)), schema=schema_of(plain))
    write(warehouse, odd, 1, insert(odd, 1, {"v": "text"}, schema=schema_of(odd)), schema=schema_of(odd))
    assert [row["after"]["v"] for row in rows(warehouse, "shop__changes.twins")] == [5]
    assert [row["v"] for row in rows(warehouse, "shop__changes_.twins")] == ["text"]


@pytest.mark.advice("Rename it; writetime makes its own.")
def test_a_table_that_somebody_else_made_is_left_alone(warehouse: Warehouse) -> None:
    warehouse.spark.sql("CREATE TABLE lake.shop.taken (id int) USING iceberg")
    taken = table("taken", 13, {"id": "int"})
    with pytest.raises(BatchError, match="somebody else made it"):
        write(warehouse, taken, 1, insert(taken, 1, schema=schema_of(taken)), schema=schema_of(taken))
    assert "somebody else made it" in (warehouse.rejection_reason(taken) or "")
    warehouse.spark.sql("ALTER TABLE lake.shop.taken RENAME TO shop.theirs")
    write(warehouse, taken, 1, insert(taken, 1, schema=schema_of(taken)), schema=schema_of(taken))
    assert [row["id"] for row in rows(warehouse, "shop.taken")] == [1]
    # Publishing goes on with the others.
    taken = table("taken_too", 15, {"id": "int"})
    warehouse.spark.sql("CREATE TABLE lake.shop__changes.taken_too (id int) USING iceberg")
    assert warehouse.changes_of(taken) is None
    assert "somebody else made it" in (warehouse.rejection_reason(taken) or "")


def _seal(store: Store, number: int) -> None:
    seal(store, "c", Sealed(number=number, kind="ingest", sealed_at=datetime.now(UTC), segments=[], accounting=[], state={}))


class _Late(Warehouse):
    """A driver that is held up once its commit has been thought out: others finish its batch, and the next
    one, meanwhile."""

    def __init__(self, spark: SparkSession, fence: Fence | None, others: Callable[[], None], at: str) -> None:
        super().__init__(spark, "lake", WarehouseConfig(writes="copy-on-write" if at == "merge" else "merge-on-read"), fence=fence)
        self.others: list[Callable[[], None]] = [others]
        self.at = at
        self.tables.merge = self._merge  # type: ignore[method-assign]

    def _meanwhile(self, at: str) -> None:
        if at == self.at and self.others:
            self.others.pop()()

    def _look_at(self, held: IcebergTable, batch: int) -> tuple[int | None, bool]:
        seen = super()._look_at(held, batch)
        self._meanwhile("commit")
        return seen

    def _merge(self, *arguments: Any) -> None:
        self._meanwhile("merge")
        SparkCatalog.merge(self.tables, *arguments)

    def write_files(self, *arguments: Any) -> dict[bytes, int]:
        self._meanwhile("rows")
        return super().write_files(*arguments)


@pytest.mark.parametrize(
    ("at", "fence", "method", "known"),
    [
        # Held up before its job reads the table: the job's own rows look at the fence.
        ("merge", True, "merge_current", True),
        ("rows", True, "merge_current", True),
        ("rows", False, "merge_current", True),
        # Held up in its job: Iceberg refuses what was planned on another snapshot.
        ("commit", False, "merge_current", False),
        ("commit", False, "replace_current", True),
    ],
    ids=["merge", "by position", "by position, in its job", "first, in its job", "truncate, in its job"],
)
def test_a_driver_that_was_held_up_undoes_nothing(
    warehouse: Warehouse, tmp_path: Path, at: str, fence: bool, method: str, known: bool
) -> None:
    late = table(f"late_{at}_{method}_{fence}".lower(), 50 + len(at) + len(method) + 20 * fence, {"id": "int", "v": "int"})
    schema, store = schema_of(late), LocalStore(tmp_path)
    of_1, of_2, of_3 = (events(warehouse.spark, [insert(late, 1, {"v": v}, timestamp=THEN + v, schema=schema)], schema) for v in (1, 2, 3))
    if known:
        warehouse.merge_current(late, schema, of_1, 1)

    def others() -> None:
        getattr(warehouse, method)(late, schema, of_2, 2)
        _seal(store, 2)
        warehouse.merge_current(late, schema, of_3, 3)

    held_up = _Late(warehouse.spark, Fence(store, "c") if fence else None, others, at)
    with pytest.raises(BatchError if fence else BatchBusy, match="another driver has sealed it" if fence else "conflicting"):
        getattr(held_up, method)(late, schema, of_2, 2)
    assert not held_up.others
    assert [row["v"] for row in rows(warehouse, f"shop.{late.name}")] == [3]


@pytest.mark.advice("If another run of this batch is at it, a retry finds what that one has done.")
def test_of_two_that_make_a_table_the_slower_may_try_again(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it told that the table is there, it would take that for a table that cannot be written, and go on
    without it."""
    made = table("made_by_two", 61, {"id": "int", "v": "int"})
    schema = schema_of(made)
    given = events(warehouse.spark, [insert(made, 1, {"v": 1}, schema=schema)], schema)
    warehouse.write_changes(made, schema, given, 1)
    slower = Warehouse(warehouse.spark, "lake")
    monkeypatch.setattr(slower.tables, "find", lambda name: None)
    with pytest.raises(BatchBusy, match=r"concurrent write to the table: .*made_by_two.*already exists.*a retry"):
        of_each([made], lambda table: slower.write_changes(table, schema, given, 1))
    monkeypatch.undo()
    slower.write_changes(made, schema, given, 1)
    assert len(rows(warehouse, "shop__changes.made_by_two")) == 1


def test_a_driver_that_was_held_up_changes_no_shape(warehouse: Warehouse, tmp_path: Path) -> None:
    old = table("late_shape", 0xAAAAAAAA << 96, {"id": "int", "v": "int"}, clustering=0)
    store = LocalStore(tmp_path)
    schema = schema_of(old)
    write(warehouse, old, 1, insert(old, 1, {"v": 1}, schema=schema), schema=schema)
    new = table("late_shape", 0xBBBBBBBB << 96, {"id": "int", "v": "text"})
    held_up = Warehouse(warehouse.spark, "lake", fence=Fence(store, "c"))
    _seal(store, 2)
    later = schema_of(replace(old, dropped=True), new)
    write(warehouse, new, 3, insert(new, 1, {"v": "new"}, schema=later), schema=later)
    for act in (held_up.merge_current, held_up.write_changes):
        with pytest.raises(BatchError, match="another driver has sealed it"):
            act(old, schema, events(warehouse.spark, [insert(old, 1, {"v": 2}, timestamp=THEN + 1, schema=schema)], schema), 2)
    with pytest.raises(BatchError, match="another driver has sealed it"):
        held_up.follow(_with(old, more="int"), schema, 2)
    assert [row["v"] for row in rows(warehouse, "shop.late_shape")] == ["new"]
    assert [row["v"] for row in rows(warehouse, "shop.late_shape__aaaaaaaa")] == [1]


def test_what_compaction_packs_can_still_be_replaced(warehouse: Warehouse) -> None:
    packed = table("packed", 40, {"id": "int", "v": "int"})
    schema = schema_of(packed)
    attempts = [[insert(packed, key, {"v": key}, schema=schema) for key in keys] for keys in ((1,), (2, 3, 4), (2, 5))]
    first, died, again = (events(warehouse.spark, attempt, schema) for attempt in attempts)
    warehouse.write_changes(packed, schema, first, 1)
    warehouse.write_changes(packed, schema, died, 2)
    options = "map('rewrite-all', 'true')"
    warehouse.spark.sql(f"CALL lake.system.rewrite_data_files(table => 'shop__changes.packed', options => {options})").collect()
    assert warehouse.spark.table("lake.shop__changes.packed.files").count() == 1
    for _ in range(2):
        warehouse.write_changes(packed, schema, again, 2)
        found = sorted((row["batch"], row["ordinal"], row["after"]["v"]) for row in rows(warehouse, "shop__changes.packed"))
        assert found == [(1, 1, 1), (2, 1, 2), (2, 2, 5)]


@pytest.mark.parametrize("compacted", [False, True])
def test_what_an_attempt_wrote_is_taken_back(warehouse: Warehouse, compacted: bool) -> None:
    name = f"back_{compacted}".lower()
    back = table(name, 60 + compacted, {"id": "int", "v": "int"})
    schema = schema_of(back)
    warehouse.take_back(back, 1)
    for batch in (1, 2):
        told = events(warehouse.spark, [insert(back, key, {"v": key}, schema=schema) for key in range(batch)], schema)
        warehouse.write_changes(back, schema, told, batch)
    if compacted:
        options = "map('rewrite-all', 'true')"
        warehouse.spark.sql(f"CALL lake.system.rewrite_data_files(table => 'shop__changes.{name}', options => {options})").collect()
        assert warehouse.spark.table(f"lake.shop__changes.{name}.files").count() == 1
    for _ in range(2):
        warehouse.take_back(back, 2)
        warehouse.take_back(back, 3)
        assert [row["batch"] for row in rows(warehouse, f"shop__changes.{name}")] == [1]


def test_statements_that_tell_the_same_go_on_at_once() -> None:
    conf: dict[str, str] = {}
    notes = _Notes(cast(Any, SimpleNamespace(conf=SimpleNamespace(set=conf.__setitem__, unset=conf.__delitem__))))
    told: list[dict[str, str]] = []
    other = Event()

    def tell(value: str) -> None:
        with notes.applied({"a": value}):
            told.append(dict(conf))
            if value == "other":
                other.set()

    with ThreadPoolExecutor(1) as pool:
        with notes.applied({"a": "same"}):
            pool.submit(tell, "same").result(60)
            waits = pool.submit(tell, "other")
            assert not other.wait(0.2)
            told.append(dict(conf))
        waits.result(60)
    assert [list(each.values()) for each in told] == [["same"], ["same"], ["other"]]
    assert conf == {}


@pytest.mark.parametrize("fails", ["set", "unset"])
def test_nobody_waits_for_a_statement_that_failed(fails: str) -> None:
    notes = _Notes(cast(Any, SimpleNamespace(conf=SimpleNamespace(**{"set": _nothing, "unset": _nothing, fails: _fails_once()}))))
    told = Event()

    def tell() -> None:
        with notes.applied({"a": "other"}):
            told.set()

    # What hangs must not keep the test's process.
    waits = Thread(target=tell, daemon=True)

    def fail() -> None:
        with notes.applied({"a": "one"}):
            waits.start()
            assert not told.wait(0.2)

    with pytest.raises(ConnectionError):
        fail()
    if waits.ident is None:
        waits.start()
    assert told.wait(20)


def _nothing(*_: str) -> None:
    pass


def _fails_once() -> Callable[..., None]:
    errors = iter([ConnectionError("the session is gone")])

    def fail(*_: str) -> None:
        for error in errors:
            raise error

    return fail


def operations(spark: SparkSession, name: str) -> list[str]:
    return [row["operation"] for row in spark.table(f"{name}.snapshots").orderBy("committed_at").collect()]


def test_an_attempt_of_a_batch_that_nobody_began_only_adds_and_another_driver_gives_way(warehouse: Warehouse) -> None:
    """To replace events, a commit reads all manifests of the table."""
    once = table("added_once", 66, {"id": "int", "v": "int"})
    schema = schema_of(once)
    told = {batch: events(warehouse.spark, [insert(once, batch, {"v": batch}, schema=schema)], schema) for batch in (1, 2, 3)}
    for batch in (1, 2):
        warehouse.write_changes(once, schema, told[batch], batch)
    # Both have seen that nothing of batch 3 is there.
    slower = _Late(warehouse.spark, None, lambda: warehouse.write_changes(once, schema, told[3], 3), "commit")
    with pytest.raises(BatchBusy, match="conflicting"):
        slower.write_changes(once, schema, told[3], 3)
    assert not slower.others
    slower.write_changes(once, schema, told[3], 3)
    # A late driver of the batch before stands above it and hides nothing.
    warehouse.write_changes(once, schema, told[2], 2)
    warehouse.write_changes(once, schema, told[3], 3)
    name = "lake.shop__changes.added_once"
    assert operations(warehouse.spark, name) == ["append", "append", "append", "overwrite", "overwrite", "overwrite"]
    assert sorted(row["batch"] for row in rows(warehouse, "shop__changes.added_once")) == [1, 2, 3]


def files_of(warehouse: Warehouse, name: str) -> tuple[set[str], set[str]]:
    """The data files of a changes table: those that readers see, and those in its folder."""
    seen = {row["file_path"] for row in warehouse.spark.table(f"lake.shop__changes.{name}.files").collect()}
    (location,) = {path.partition("/data/")[0] for path in seen}
    return seen, {str(path) for path in Path(location).rglob("*.parquet")}


def test_files_of_a_refused_commit_are_deleted_and_those_of_a_done_one_are_not(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = table("leftovers", 68, {"id": "int", "v": "int"})
    schema = schema_of(named)
    told = {batch: events(warehouse.spark, [insert(named, batch, {"v": batch}, schema=schema)], schema) for batch in (1, 2, 3)}
    warehouse.write_changes(named, schema, told[1], 1)
    slower = _Late(warehouse.spark, None, lambda: warehouse.write_changes(named, schema, told[2], 2), "commit")
    with pytest.raises(BatchBusy, match="conflicting"):
        slower.write_changes(named, schema, told[2], 2)
    seen, there = files_of(warehouse, "leftovers")
    assert seen == there
    assert len(seen) == 2

    # Whoever fails after the commit does not know that it happened.
    def forgets(_: IcebergTable, *arguments: Any) -> None:
        real(_, *arguments)
        raise Py4JNetworkError("the JVM does not answer")

    real = IcebergTable.overwrite
    monkeypatch.setattr(IcebergTable, "overwrite", forgets)
    with pytest.raises(Py4JNetworkError):
        warehouse.write_changes(named, schema, told[3], 3)
    monkeypatch.undo()
    seen, there = files_of(warehouse, "leftovers")
    assert seen == there
    assert sorted(row["batch"] for row in rows(warehouse, "shop__changes.leftovers")) == [1, 2, 3]
    # Its next attempt replaces the events.
    warehouse.write_changes(named, schema, told[3], 3)
    assert sorted(row["batch"] for row in rows(warehouse, "shop__changes.leftovers")) == [1, 2, 3]
    seen, there = files_of(warehouse, "leftovers")

    # The file of the second day cannot be written.
    day = datetime.fromtimestamp(THEN / 1_000_000, UTC) + timedelta(days=1)
    Path(next(iter(seen)).partition("/changed_at_day=")[0], f"changed_at_day={day:%Y-%m-%d}").write_text("in its way", encoding="utf-8")
    both = [insert(named, n, {"v": n}, timestamp=THEN + n * 86_400_000_000, schema=schema) for n in (0, 1)]
    with pytest.raises(BatchError, match="FileExistsError") as failed:
        warehouse.write_changes(named, schema, events(warehouse.spark, both, schema), 4)
    assert failed.value.retriable
    assert files_of(warehouse, "leftovers") == (seen, there)


def test_events_are_replaced_if_the_commits_before_are_not_known(warehouse: Warehouse) -> None:
    lost = table("history_lost", 67, {"id": "int", "v": "int"})
    schema = schema_of(lost)
    told = events(warehouse.spark, [insert(lost, 1, {"v": 1}, schema=schema)], schema)
    warehouse.write_changes(lost, schema, told, 1)
    warehouse.write_changes(lost, schema, told, 2)
    # As a compaction by somebody else leaves it, who keeps one snapshot.
    options = "map('rewrite-all', 'true')"
    warehouse.spark.sql(f"CALL lake.system.rewrite_data_files(table => 'shop__changes.history_lost', options => {options})").collect()
    expire = "CALL lake.system.expire_snapshots(table => 'shop__changes.history_lost', older_than => TIMESTAMP '2999-01-01')"
    warehouse.spark.sql(expire).collect()
    assert operations(warehouse.spark, "lake.shop__changes.history_lost") == ["replace"]
    warehouse.write_changes(lost, schema, told, 2)
    assert sorted(row["batch"] for row in rows(warehouse, "shop__changes.history_lost")) == [1, 2]


# --- care


@pytest.mark.thorough
@pytest.mark.parametrize("writes", ["merge-on-read", "copy-on-write"])
def test_many_small_commits_leave_few_files(spark: SparkSession, writes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    every = 6
    monkeypatch.setattr(compaction, "COMMITS", every)
    monkeypatch.setattr(table_maintenance, "NEWEST", 1)
    monkeypatch.setattr(table_maintenance, "MOST", 4)
    warehouse = Warehouse(spark, "lake", WarehouseConfig(writes=writes))
    busy = table(f"small_{writes[:4]}", 68 + len(writes), {"id": "int", "v": "text"})
    schema = schema_of(busy)
    looks, most, expected = 0, 0, dict[int, str]()
    left = 1
    for batch in range(1, 3 * every + 1):
        changed = dict.fromkeys((batch, batch // 2), f"{batch}")
        expected |= changed
        found = [insert(busy, key, {"v": v}, timestamp=THEN + batch, schema=schema) for key, v in changed.items()]
        write(warehouse, busy, batch, *found, schema=schema)
        left -= 1
        if left == 0:
            looks, left = looks + 1, compact_if_due(warehouse, busy)
        most = max(most, *(of.data + of.deletes for of in (count(IcebergTable(spark, str(name))) for name in _places(warehouse, busy))))
    # The first look counts what was there before; two files, of data and of deletes, come with each commit.
    assert looks == 4
    assert every <= most <= 2 * every + 2
    assert {row["id"]: row["v"] for row in spark.table(str(warehouse.current_of(busy))).collect()} == expected
    batches = Counter(row["batch"] for row in spark.table(str(warehouse.changes_of(busy))).collect())
    assert batches == dict.fromkeys(range(1, 3 * every + 1), 2)
    for name in _places(warehouse, busy):
        # Nothing of the last hour expires.
        assert operations(spark, str(name)).count("replace") >= 3
    # It can be run again, and two hours later most of its history is gone.
    write(warehouse, busy, 3 * every, *found, schema=schema)
    for done in tidy(warehouse, [busy], now=datetime.now(UTC) + timedelta(hours=2)):
        assert done.after is not None
        assert done.after.snapshots <= 4
        assert (done.after.data, done.after.deletes) == (1, 0)


def _places(warehouse: Warehouse, of: Table) -> list[str | None]:
    return [warehouse.changes_of(of), warehouse.current_of(of)]


@pytest.mark.thorough
def test_tidying_changes_no_row_and_no_batch(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files, files of deletes and old snapshots go; a batch that is run again after that finds what it
    left."""
    monkeypatch.setattr(table_maintenance, "NEWEST", 2)
    warehouse = Warehouse(spark, "lake", WarehouseConfig(keep_snapshots_days=1))
    fruit = table('it\'s "fruit"', 60, {"id": "int", "line": "text", "name": "text"}, clustering=1)
    schema = schema_of(fruit)
    for batch in range(1, 8):
        changed = [insert(fruit, key, {"name": f"{batch}"}, "x", timestamp=THEN + batch, schema=schema) for key in range(batch, batch + 3)]
        write(warehouse, fruit, batch, *changed, schema=schema)
    current, changes = warehouse.current_of(fruit), warehouse.changes_of(fruit)
    assert current is not None
    assert changes is not None

    def held() -> tuple[list[Any], list[Any]]:
        found = sorted((row["id"], row["name"]) for row in spark.table(current).collect())
        return found, sorted((row["batch"], row["ordinal"]) for row in spark.table(changes).collect())

    before = held()
    assert len(before[0]) == 9
    # Of another life nothing is touched.
    (of_current, of_changes) = tidy(warehouse, [fruit, replace(fruit, id=UUID(int=61))], now=datetime.now(UTC) + timedelta(days=2))
    assert (of_current.name, of_changes.name) == (current.replace("`", ""), changes.replace("`", ""))
    assert of_current.before is not None
    assert of_current.before.data >= 7
    assert of_current.before.deletes > 0
    for found in (of_current, of_changes):
        assert found.before is not None
        assert found.after is not None
        assert (found.after.data, found.after.deletes, found.after.snapshots) == (1, 0, 2)
        assert found.after.bytes < found.before.bytes
    assert of_changes.before is not None
    assert of_changes.before.data == 7
    assert held() == before
    # Its rows are in one file with those of other batches by now.
    write(warehouse, fruit, 7, insert(fruit, 7, {"name": "7"}, "x", timestamp=THEN + 7, schema=schema), schema=schema)
    assert [row for row in held()[1] if row[0] == 7] == [(7, 1)]
    assert held()[0] == before[0]
    write(warehouse, fruit, 8, insert(fruit, 1, {"name": "8"}, "x", timestamp=THEN + 8, schema=schema), schema=schema)
    assert dict(held()[0])[1] == "8"


@pytest.mark.thorough
def test_snapshots_are_expired_by_number_too(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """But none that a query may still read, and not the last of an hour. Old metadata goes by itself."""
    busy = table("busy", 64, {"id": "int", "v": "text"})
    schema = schema_of(busy)

    monkeypatch.setattr(table_maintenance, "_compact", lambda *_: None)

    def snapshots_after(layout: WarehouseConfig, age: timedelta, *, newest: int = 1, most: int = 3) -> int:
        monkeypatch.setattr(table_maintenance, "NEWEST", newest)
        monkeypatch.setattr(table_maintenance, "MOST", most)
        (current, _) = tidy(Warehouse(spark, "lake", layout), [busy], now=datetime.now(UTC) + age)
        assert current.after is not None
        return current.after.snapshots

    for batch in range(1, 7):
        write(Warehouse(spark, "lake"), busy, batch, insert(busy, batch, {"v": "x"}, timestamp=THEN + batch, schema=schema), schema=schema)
    name = Warehouse(spark, "lake").current_of(busy)
    many = spark.table(f"{name}.snapshots").count()
    assert many >= 6
    layout = WarehouseConfig()
    assert snapshots_after(layout, timedelta(minutes=30)) == many
    assert snapshots_after(layout.model_copy(update={"keep_snapshots_days": None}), timedelta(hours=2)) == many
    assert snapshots_after(layout, timedelta(hours=2)) == 3
    assert snapshots_after(layout, timedelta(hours=2)) == 3
    assert snapshots_after(layout, timedelta(hours=2), newest=2, most=1) == 2
    assert spark.table(str(name)).count() == 6
    properties = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
    assert properties["write.metadata.delete-after-commit.enabled"] == "true"


def test_what_cannot_be_tidied_holds_up_nothing_else(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = Warehouse(spark, "lake", WarehouseConfig(keep_snapshots_days=None))
    tables = [table(f"tidied_{number}", 62 + number, {"id": "int", "v": "text"}) for number in range(2)]
    for of in tables:
        write(warehouse, of, 1, insert(of, 1, {"v": "x"}, schema=schema_of(of)), schema=schema_of(of))
    real = Warehouse.current_of
    monkeypatch.setattr(Warehouse, "current_of", lambda self, of: "lake.shop.nowhere" if of == tables[0] else real(self, of))
    with capture_logs() as logs:
        done = tidy(warehouse, tables)
    places = [warehouse.changes_of(tables[0]), real(warehouse, tables[1]), warehouse.changes_of(tables[1])]
    assert [found.name for found in done] == ["lake.shop.nowhere", *(place.replace("`", "") for place in places if place)]
    assert [bool(found.trouble) for found in done] == [True, False, False, False]
    assert done[0].after is None
    assert [(log["event"], log["name"]) for log in logs] == [("table maintenance failed", "lake.shop.nowhere")]


def test_a_table_of_another_pipeline_is_left_alone_and_one_of_nobody_is_adopted(spark: SparkSession) -> None:
    def of(number: int) -> Warehouse:
        return Warehouse(spark, "lake", owner=Owner(cluster="ring", pipeline=f"p{number}", id=UUID(int=number)))

    ours = replace(ORDERS, keyspace="owned")
    theirs = replace(ours, id=UUID(int=99))
    first, second = insert(ours, 1, {"name": "one"}, 1), insert(ours, 2, {"name": "two"}, 1)
    write(Warehouse(spark, "lake"), ours, 1, first, schema=schema_of(ours))
    write(of(1), ours, 2, second, schema=schema_of(ours))
    assert of(1).rejection_reason(ours) is None
    # Neither the very table, as counters for ids make it, nor one of that name, which would have moved it
    # aside.
    for other in (ours, theirs):
        assert "belongs to pipeline p1 of cluster ring" in (of(2).rejection_reason(other) or "")
        with pytest.raises(BatchError, match="belongs to pipeline p1 of cluster ring"):
            write(of(2), other, 3, insert(other, 3, {"name": "three"}, 1), schema=schema_of(other))
    assert sorted(row["id"] for row in rows(Warehouse(spark, "lake"), "owned.orders")) == [1, 2]
    assert [row.tableName for row in spark.sql("SHOW TABLES IN lake.owned").collect()] == ["orders"]


def test_a_table_that_holds_another_chain_of_batches_is_left_alone(spark: SparkSession) -> None:
    def of(batch: int) -> Warehouse:
        return Warehouse(spark, "lake", batch_id=UUID(int=batch))

    table = replace(ORDERS, keyspace="chained")
    schema = schema_of(table)
    # What a version before this one wrote has no id.
    write(Warehouse(spark, "lake"), table, 1, insert(table, 1, {"name": "one"}, 1), schema=schema)
    for _ in range(2):
        write(of(12), table, 2, insert(table, 2, {"name": "two"}, 1), schema=schema)
    for again in (2, 1):
        with pytest.raises(BatchError, match="holds batch 2 of another chain of batches, and this one is at") as caught:
            write(of(22), table, again, insert(table, 3, {"name": "three"}, 1), schema=schema)
        assert not caught.value.retriable
    write(of(23), table, 3, insert(table, 4, {"name": "four"}, 1), schema=schema)
    assert sorted(row["id"] for row in rows(of(23), "chained.orders")) == [1, 2, 4]
