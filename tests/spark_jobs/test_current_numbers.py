"""Columns of current rows that are numbers by rule, in real tables: the same from both writers, adopted by tables
that exist, and rejected with the table when a value does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from structlog.testing import capture_logs

from spark_jobs.failures import TablesFailed, of_each
from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.table_maintenance import merge_small
from tests.spark_jobs.examples import insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import events, rows
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.model import Schema, Table
from writetime.config.warehouse import WarehouseConfig

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COLUMNS = {"id": "int", "amount": "decimal", "total": "varint"}
BY_RULE = {"decimal": {"shop.*.amount": "decimal(12, 2)"}, "varint": {"shop.*.*": "decimal(38)"}}
TEXTS = ("1.5", "1.50", "-1E+3", "0", "9999999999.99", "15E-1")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline.create(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="module")
def spark(pipeline: Pipeline) -> Iterator[SparkSession]:
    session = spark_session(pipeline.config, "numbers of current rows")
    yield session
    session.stop()


def warehouse(spark: SparkSession, **rules: Any) -> Warehouse:
    return Warehouse(spark, "lake", WarehouseConfig.model_validate(rules))


def prices(name: str, number: int) -> Table:
    return table(name, number, COLUMNS)


def price(of: Table, key: int, amount: str | bytes, total: int = 7) -> Mutation:
    value: Any = Decimal(amount) if isinstance(amount, str) else amount
    return insert(of, key, {"amount": value, "total": total}, schema=schema_of(of))


def write(target: Warehouse, of: Table, batch: int, *mutations: Mutation) -> None:
    """As a batch commits: TablesFailed if the rows would be rejected again."""
    found = events(target.spark, mutations, schema_of(of))
    target.write_changes(of, schema_of(of), found, batch)
    of_each([of], lambda each: target.merge_current(each, schema_of(of), found, batch))


def committed(commit: Callable[[Table, Schema, DataFrame, int], None], found: DataFrame, of: Table) -> None:
    commit(of, schema_of(of), found, 2)


def amounts(target: Warehouse, of: Table) -> dict[int, str | None]:
    found = rows(target, f"shop.{of.name}")
    return {row["id"]: None if row["amount"] is None else str(row["amount"]) for row in found}


def kind(target: Warehouse, of: Table, column: str = "amount") -> str:
    return target.spark.table(f"lake.shop.{of.name}").schema[column].dataType.simpleString()


def test_files_from_arrow_and_from_sparks_writer_hold_the_same_numbers(spark: SparkSession, pipeline: Pipeline) -> None:
    target, arrow, by_spark = warehouse(spark, **BY_RULE), prices("by_arrow", 81), prices("by_spark", 82)
    # A property of a writer leaves the files of a table to Spark's.
    target.follow(by_spark, schema_of(by_spark), 0)
    for of in (arrow, by_spark):
        write(target, of, 1, price(of, 99, "0"))
    spark.sql("ALTER TABLE lake.shop.by_spark SET TBLPROPERTIES ('write.parquet.row-group-size-bytes' = '1048576')")
    logs: dict[str, list[str]] = {}
    for of in (arrow, by_spark):
        given = [price(of, key, text, -(10**37) + key) for key, text in enumerate(TEXTS)] + [price(of, 50, b"")]
        found = events(spark, given, schema_of(of))
        with capture_logs() as said:
            target.replace_current(of, schema_of(of), found, 2)
        logs[of.name] = [line["event"] for line in said]
        # By positions, and by Spark's MERGE.
        write(target, of, 3, price(of, 60, "12.3"), price(of, 0, "2.25"))
    assert "files written by Spark's writer" in logs["by_spark"]
    assert "files written by Spark's writer" not in logs["by_arrow"]
    expected = {key: str(Decimal(text).quantize(Decimal("0.01"))) for key, text in enumerate(TEXTS)} | {0: "2.25", 50: None, 60: "12.30"}
    for of in (arrow, by_spark):
        assert amounts(target, of) == expected
        assert (kind(target, of), kind(target, of, "total")) == ("decimal(12,2)", "decimal(38,0)")
        read = {row["id"]: row for row in pipeline.rows("shop", of.name)}
        assert {key: None if row["amount"] is None else str(row["amount"]) for key, row in read.items()} == expected
        assert read[1]["total"] == -(10**37) + 1
    for of in (arrow, by_spark):
        merge_small(spark, f"lake.shop.{of.name}")
        assert amounts(target, of) == expected
    assert spark.sql("SELECT CAST(sum(amount) AS STRING) FROM lake.shop.by_arrow").collect()[0][0] == "9999999017.54"
    # Changes have the text.
    assert [row["after"]["amount"] for row in rows(target, "shop__changes.by_arrow") if row["batch"] == 3] == ["2.25", "12.3"]


def test_a_number_that_does_not_fit_rejects_the_table(spark: SparkSession) -> None:
    of, target = prices("too_long", 83), warehouse(spark, **BY_RULE)
    write(target, of, 1, price(of, 1, "1.5"))
    found = events(spark, [price(of, 2, "1.505")], schema_of(of))
    for commit in (target.merge_current, target.replace_current):
        with pytest.raises(TablesFailed, match=r"column amount is DECIMAL\(12, 2\), and a value needs 1 digits before") as raised:
            of_each([of], partial(committed, commit, found))
        assert "1.505" not in raised.value.refused[0].reason
        assert "Set a wider type in `warehouse.decimal`" in raised.value.refused[0].reason
        assert amounts(target, of) == {1: "1.50"}


def test_a_table_that_exists_adopts_a_rule_and_a_wider_one(spark: SparkSession) -> None:
    of, plain = prices("adopted", 84), warehouse(spark)
    write(plain, of, 1, price(of, 1, "1.5"), price(of, 2, "1.505"), price(of, 3, b""))
    assert kind(plain, of) == "string"
    # A value that does not fit leaves the table as it was.
    narrow, wider = ({**BY_RULE, "decimal": {"shop.*.*": text}} for text in ("decimal(12, 2)", "decimal(12, 3)"))
    with pytest.raises(TablesFailed, match="1 digits before the point and 3 after"):
        write(warehouse(spark, **narrow), of, 2, price(of, 4, "4"))
    assert (kind(plain, of), amounts(plain, of)) == ("string", {1: "1.5", 2: "1.505", 3: ""})

    write(warehouse(spark, **wider), of, 2, price(of, 4, "4"))
    expected = {1: "1.500", 2: "1.505", 3: None, 4: "4.000"}
    assert (kind(plain, of), amounts(plain, of)) == ("decimal(12,3)", expected)
    before = {row["id"]: row["_was_1_amount"] for row in rows(plain, "shop.adopted")}
    assert before == {1: "1.5", 2: "1.505", 3: "", 4: None}

    # More digits before the point change the schema only; another scale is adopted as the first rule was.
    wide = {**BY_RULE, "decimal": {"shop.*.*": "decimal(14, 3)"}}
    write(warehouse(spark, **wide), of, 3, price(of, 5, "12345678901.125"))
    assert (kind(plain, of), amounts(plain, of)) == ("decimal(14,3)", expected | {5: "12345678901.125"})
    with pytest.raises(TablesFailed, match="11 digits before the point and 3 after"):
        write(warehouse(spark, **narrow), of, 4, price(of, 6, "6"))
    scaled = {**BY_RULE, "decimal": {"shop.*.*": "decimal(20, 5)"}}
    write(warehouse(spark, **scaled), of, 4, price(of, 6, "6"))
    assert amounts(plain, of) == {1: "1.50000", 2: "1.50500", 3: None, 4: "4.00000", 5: "12345678901.12500", 6: "6.00000"}

    # Back to text: the spelling is not known any more.
    with pytest.raises(TablesFailed, match="Restore the rule; or drop the table") as raised:
        write(plain, of, 5, price(of, 7, "7"))
    assert "lake" in str(raised.value)
    assert kind(plain, of) == "decimal(20,5)"


def test_a_rule_that_does_not_fit_rejects_the_table_before_anything_is_written(spark: SparkSession) -> None:
    of = prices("misnamed", 86)
    target = warehouse(spark, decimal={"shop.misnamed.id": "decimal(9, 2)"})
    assert target.rejection_reason(of) == "`warehouse.decimal`: id is part of the primary key, which stays text"
    assert target.rejection_reason(replace(of, name="other")) is None


def test_parquet_files_have_the_types_that_iceberg_specifies(spark: SparkSession) -> None:
    of, target = prices("physical", 87), warehouse(spark, **BY_RULE)
    write(target, of, 1, price(of, 1, "1.5"))
    (file,) = [row["file_path"] for row in spark.table("lake.shop.physical.files").collect()]
    schema = pq.ParquetFile(file.removeprefix("file:")).schema
    assert [(schema.column(at).name, schema.column(at).physical_type) for at in (1, 2)] == [
        ("amount", "INT64"),
        ("total", "FIXED_LEN_BYTE_ARRAY"),
    ]
