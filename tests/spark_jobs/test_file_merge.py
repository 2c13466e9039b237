"""Small data files of a table become large ones, and readers see the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from structlog.testing import capture_logs

from spark_jobs.session import spark_session
from spark_jobs.sinks import file_merge, table_maintenance
from spark_jobs.sinks.file_merge import Small, grouped, in_order, merge_files
from spark_jobs.sinks.iceberg_table import IcebergTable
from tests.spark_jobs.pipeline import Pipeline

NAME = "lake.merged.t"
COLUMNS = "id BIGINT, changed_at TIMESTAMP, after STRUCT<a: STRING, m: MAP<STRING, ARRAY<INT>>>"


def small(name: str, size: float) -> Small:
    """`size`: in MiB."""
    return Small(name, int(size * file_merge.TINY), None)


def test_files_of_a_day_are_merged_if_there_are_enough() -> None:
    few = [Small(f"few{n}", 1, 1) for n in range(4)]
    many = [Small(f"many{n}", 200 << 20, 2) for n in range(12)]
    none = [Small(f"none{n}", 1, None) for n in range(5)]
    assert grouped([*few, *none]) == [none]
    assert grouped(many) == []  # each two of them are large enough
    assert [len(group) for group in grouped([each._replace(size=100 << 20) for each in sorted(many)])] == [5, 5]


def test_a_file_that_outweighs_the_others_is_not_copied_again() -> None:
    few = [small(f"few{n}", 1) for n in range(5)]
    assert grouped([*few, small("large", 1.3)]) == [few]
    assert grouped([*few, small("large", 1.2)]) == [[*few, small("large", 1.2)]]
    assert grouped([*few, *(small(f"large{n}", 10) for n in range(4))]) == [few]
    assert grouped([small("alone", 1)]) == []
    tiny = [small(f"tiny{n}", 0.1 + n / 5) for n in range(5)]
    assert grouped(tiny) == [tiny]


def test_a_row_is_copied_once_for_each_tier_of_sizes() -> None:
    """A thousand batches of the same size, with a merge after every five of them."""
    held, copied = [small("0", 1)], 0
    for n in range(1, 1000):
        held.append(small(f"{n}", 1))
        for group in grouped(held) if n % 5 == 0 else []:
            size = sum(each.size for each in group)
            copied += size
            held = [*(each for each in held if each not in group), Small(f"merged{n}", size, None)]
        assert len(held) < table_maintenance.LEFT + 5
    assert copied / (1000 * file_merge.TINY) < log(1000, 5)


def test_rows_are_sorted_with_nulls_first_in_runs_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.RecordBatch.from_pydict({"a": pa.array(values, pa.int64()), "b": ["x", "y"]}) for values in ([5, None], [2, 1], [3, 4])]

    def found() -> list[int | None]:
        return pa.Table.from_batches(in_order(batches, ["a"]))["a"].to_pylist()

    assert found() == [None, 1, 2, 3, 4, 5]
    monkeypatch.setattr(file_merge, "HELD", batches[0].nbytes + batches[1].nbytes)
    assert found() == [None, 1, 2, 5, 3, 4]
    two = [pa.RecordBatch.from_pydict({"a": [1, 1, 0], "b": ["y", "x", "z"]})]
    assert pa.Table.from_batches(in_order(two, ["a", "b"])).to_pydict() == {"a": [0, 1, 1], "b": ["z", "x", "y"]}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(Pipeline.create(tmp_path_factory.mktemp("merge")).config, "tests of merging files")
    session.sql("CREATE NAMESPACE lake.merged")
    yield session
    session.stop()


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    spark.sql(f"CREATE TABLE {NAME} ({COLUMNS}) USING iceberg PARTITIONED BY (days(changed_at))")
    yield NAME
    spark.sql(f"DROP TABLE {NAME}")


def add(spark: SparkSession, ids: range, day: int = 1) -> None:
    """A commit, and a file, for each row."""
    for n in ids:
        text = f"'{n}'" if n % 3 else "NULL"
        after = f"named_struct('a', {text}, 'm', map('k', array({n}, NULL)))"
        spark.sql(f"INSERT INTO {NAME} SELECT /*+ COALESCE(1) */ {n}L, TIMESTAMP '2026-05-0{day} 12:00:00', {after}")


def contents(rows: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in rows.collect()), key=lambda row: row["id"])


def days(spark: SparkSession) -> dict[str, int]:
    return {
        str(row.day): row["n"]
        for row in spark.sql(f"SELECT partition.changed_at_day AS day, count(*) AS n FROM {NAME}.files GROUP BY 1").collect()
    }


pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_readers_see_the_same_rows_in_fewer_files(spark: SparkSession, table: str) -> None:
    add(spark, range(6))
    add(spark, range(10, 13), day=2)
    before = contents(spark.table(table))
    merge_files(spark, table)
    assert days(spark) == {"2026-05-01": 1, "2026-05-02": 3}
    assert contents(spark.table(table)) == before
    assert contents(spark.table(table).filter("after.a = '4'")) == [row for row in before if row["after"]["a"] == "4"]
    (last,) = spark.sql(f"SELECT operation, summary FROM {table}.snapshots ORDER BY committed_at DESC LIMIT 1").collect()
    assert last.operation == "replace"
    snapshots = spark.table(f"{table}.snapshots").count()
    merge_files(spark, table)
    assert spark.table(f"{table}.snapshots").count() == snapshots, "nothing is left to merge"


def test_files_with_other_columns_or_of_enough_bytes_are_left(spark: SparkSession, table: str) -> None:
    add(spark, range(2))
    spark.sql(f"ALTER TABLE {table} ADD COLUMN after.b INT AFTER a")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN after.b")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN after.a TO z")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN after.z TO a")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note STRING")
    for n in range(2, 8):
        spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ {n}L, TIMESTAMP '2026-05-01 12:00:00', NULL, 'note {n}'")
    before = contents(spark.table(table))
    merge_files(spark, table, below=10)
    assert days(spark) == {"2026-05-01": 8}
    merge_files(spark, table)
    assert days(spark) == {"2026-05-01": 3}, "two files without the new column, and one of all others"
    assert contents(spark.table(table)) == before


def test_a_table_with_deletes_is_left_to_iceberg(spark: SparkSession, table: str) -> None:
    add(spark, range(5))
    spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id + 100, changed_at, after FROM {table}")
    modes = ", ".join(f"'write.{command}.mode' = 'merge-on-read'" for command in ("delete", "update"))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({modes})")
    spark.sql(f"DELETE FROM {table} WHERE id = 102")
    files = spark.table(f"{table}.files").count()
    merge_files(spark, table)
    assert spark.table(f"{table}.files").count() == files


def test_a_merge_that_lost_a_row_is_not_committed(spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add(spark, range(6))
    real = file_merge._small
    monkeypatch.setattr(file_merge, "_small", lambda *given: [each._replace(rows=2) for each in real(*given)])
    with capture_logs() as logs:
        merge_files(spark, table)
    assert [(each["rows"], each["written"]) for each in logs] == [(12, 6)]
    assert days(spark) == {"2026-05-01": 6}


@pytest.mark.parametrize("meanwhile", ["DELETE", "UPDATE", "rewritten"])
def test_whoever_changes_the_files_meanwhile_is_not_undone(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    add(spark, range(6))
    modes = ", ".join(f"'write.{command}.mode' = 'merge-on-read'" for command in ("delete", "update"))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({modes})")
    rows = f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id + 100, changed_at, after FROM {table}"
    spark.sql(rows)
    statements = {
        "DELETE": f"DELETE FROM {table} WHERE id IN (3, 103)",
        "UPDATE": f"UPDATE {table} SET after = NULL WHERE id = 103",
        "rewritten": "CALL lake.system.rewrite_data_files(table => 'merged.t', options => map('rewrite-all', 'true'))",
    }
    real = IcebergTable.rewrite

    def late(self: IcebergTable, *arguments: Any) -> None:
        spark.sql(statements[meanwhile]).collect()
        real(self, *arguments)

    monkeypatch.setattr(IcebergTable, "rewrite", late)
    with pytest.raises(Py4JJavaError, match="ValidationException"):
        merge_files(spark, table)
    monkeypatch.undo()
    found = contents(spark.table(table))
    ids = {*range(6), *range(100, 106)} - ({3, 103} if meanwhile == "DELETE" else set())
    assert [row["id"] for row in found] == sorted(ids)
    assert [row["id"] for row in found if row["after"] is None] == ([103] if meanwhile == "UPDATE" else [])
    held = IcebergTable(spark, table)
    seen, target = held.snapshot, held.file_target(to_arrow_schema(held.columns))
    assert seen is not None
    assert target is not None
    with pytest.raises(ValueError, match="1 of 1 files to replace are not in snapshot"):
        held.rewrite(target, [], {"nowhere.parquet"}, seen)


CURRENT = "lake.merged.current"


@pytest.fixture
def current(spark: SparkSession) -> Iterator[str]:
    modes = ", ".join(f"'write.{command}.mode' = 'merge-on-read'" for command in ("delete", "update"))
    spark.sql(f"CREATE TABLE {CURRENT} (id BIGINT, line STRING, tags ARRAY<STRING>) USING iceberg TBLPROPERTIES ({modes})")
    for n in range(6):
        values = ", ".join(f"({id}L, '{n}', array('{id}'))" for id in (30 - n, 20 + n, n))
        spark.sql(f"INSERT INTO {CURRENT} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    yield CURRENT
    spark.sql(f"DROP TABLE {CURRENT}")


def in_file_order(name: str, spark: SparkSession) -> list[int]:
    (path,) = [row.file_path for row in spark.table(f"{name}.files").collect()]
    return pq.ParquetFile(path.removeprefix("file:")).read()["id"].to_pylist()


def test_deleted_rows_are_left_out_and_the_others_sorted(spark: SparkSession, current: str) -> None:
    spark.sql(f"DELETE FROM {current} WHERE id IN (3, 4, 25)")
    spark.sql(f"UPDATE {current} SET tags = array('new') WHERE id = 5")
    before = contents(spark.table(current))
    assert spark.table(f"{current}.delete_files").count() >= 3
    merge_files(spark, current, order=["id", "tags"])
    assert contents(spark.table(current)) == before
    assert in_file_order(current, spark) == [row["id"] for row in before]
    assert IcebergTable(spark, current).rows == len(before)
    snapshots = spark.table(f"{current}.snapshots").count()
    merge_files(spark, current, order=["id", "tags"])
    assert spark.table(f"{current}.snapshots").count() == snapshots


def test_a_file_of_deletes_of_several_data_files_is_applied(spark: SparkSession, current: str) -> None:
    spark.sql(f"ALTER TABLE {current} SET TBLPROPERTIES ('write.delete.granularity' = 'partition')")
    spark.sql(f"DELETE FROM {current} WHERE id IN (3, 4)")
    spark.sql(f"ALTER TABLE {current} UNSET TBLPROPERTIES ('write.delete.granularity')")
    spark.sql(f"DELETE FROM {current} WHERE id = 24")
    before = contents(spark.table(current))
    merge_files(spark, current, order=["id"])
    assert contents(spark.table(current)) == before
    assert spark.table(f"{current}.data_files").count() == 1
    # Other files may need a file that they share.
    assert spark.table(f"{current}.delete_files").count() <= 1


@pytest.mark.parametrize("statement", ["DELETE FROM {} WHERE id = 4", "UPDATE {} SET tags = NULL WHERE id = 4"])
def test_deletes_that_came_meanwhile_are_not_undone(
    spark: SparkSession, current: str, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    spark.sql(f"DELETE FROM {current} WHERE id = 24")
    real = IcebergTable.rewrite

    def late(self: IcebergTable, *arguments: Any) -> None:
        spark.sql(statement.format(current)).collect()
        real(self, *arguments)

    monkeypatch.setattr(IcebergTable, "rewrite", late)
    with pytest.raises(Py4JJavaError, match="ValidationException"):
        merge_files(spark, current, order=["id"])
    found = {row["id"]: row["tags"] for row in contents(spark.table(current))}
    assert 24 not in found
    assert found.get(4, "gone") == (None if "UPDATE" in statement else "gone")
    # The files of the merge, which did not happen, are deleted.
    (location,) = {row.file_path.partition("/data/")[0] for row in spark.table(f"{current}.files").collect()}
    known = {row.file_path for row in spark.table(f"{current}.all_files").collect()}
    assert {str(path) for path in Path(location.removeprefix("file:")).rglob("*.parquet")} == {path.removeprefix("file:") for path in known}
