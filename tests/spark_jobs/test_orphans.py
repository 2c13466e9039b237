"""Files that no snapshot has: tasks that ran twice and drivers that died leave them, and maintenance deletes them, but
not before anyone may still commit them. Real Spark and Iceberg; a task that fails is run again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.sinks import iceberg, table_maintenance
from spark_jobs.sinks.data_files import FileTarget
from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.table_maintenance import tidy
from spark_jobs.stages.scan import Batches
from tests.spark_jobs.examples import THEN, insert, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.spark_jobs.test_iceberg import write
from writetime.config.warehouse import WarehouseConfig

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DAY = 86_400
ROWS = table("orphaned", 90, {"id": "int", "v": "text"})


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    config = Pipeline.create(tmp_path_factory.mktemp("orphans")).config
    twice = config.spark.model_copy(update={"conf": {**config.spark.conf, "spark.master": "local[2,3]"}})
    session = spark_session(config.model_copy(update={"spark": twice}), "tests of orphans")
    yield session
    session.stop()


@pytest.fixture
def uncompacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance leaves the files as they are, and the newest snapshot only."""
    monkeypatch.setattr(table_maintenance, "_compact", lambda *_: None)
    monkeypatch.setattr(table_maintenance, "NEWEST", 1)


def data_files(spark: SparkSession, name: str) -> tuple[set[Path], set[Path]]:
    """The data files in the table's folder, and those that its snapshots have."""
    known = {Path(row.file_path.removeprefix("file:")) for row in spark.table(f"{name}.all_files").select("file_path").distinct().collect()}
    return set(next(iter(known)).parents[0].rglob("*.parquet")), known


def age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY,) * 2)


def test_orphans_go_when_they_are_old_and_nothing_else(spark: SparkSession, uncompacted: None) -> None:
    schema = schema_of(ROWS)
    warehouse = Warehouse(spark, "lake", WarehouseConfig(keep_snapshots_days=0.0))
    for batch in (1, 2):
        write(warehouse, ROWS, batch, insert(ROWS, batch, {"v": f"{batch}"}, timestamp=THEN + batch, schema=schema), schema=schema)
    name = warehouse.current_of(ROWS)
    assert name is not None
    expected = sorted(map(tuple, spark.table(name).select("id", "v").collect()))
    (there, known) = data_files(spark, name)
    assert there == known
    folder, content = next(iter(there)).parent, next(iter(there)).read_bytes()
    old, young = folder / "left-by-a-task.parquet", folder / "of-a-batch-that-is-not-sealed.parquet"
    for path in (old, young):
        path.write_bytes(content)
    for path in (*there, old):
        age(path, 4)
    # All its snapshots are younger than the files may be: nothing can be an orphan yet, and nothing is looked for.
    young_table = Warehouse(spark, "lake", WarehouseConfig(keep_snapshots_days=None))
    assert not [done.trouble for done in tidy(young_table, [ROWS]) if done.trouble]
    assert old.exists()
    assert not [done.trouble for done in tidy(warehouse, [ROWS]) if done.trouble]
    assert not old.exists()
    assert young.exists(), "its driver may commit it yet"
    assert sorted(map(tuple, spark.table(name).select("id", "v").collect())) == expected
    young.unlink()
    assert data_files(spark, name)[0] == data_files(spark, name)[1] == known


def test_a_task_that_fails_after_it_has_written_is_run_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncompacted: None
) -> None:
    """Its rows are in the table once; the files of the attempt that failed are orphans, and go."""
    failed, of = tmp_path / "failed", table("retried", 91, {"id": "int", "v": "text"})
    real = FileTarget.written

    def written(target: FileTarget, rows: Any) -> Any:
        made = real(target, rows)

        def failing(batches: Batches) -> Batches:
            found = list[pa.RecordBatch](made(batches))
            if found and not failed.exists():
                failed.touch()
                raise OSError("the executor is lost")
            yield from found

        return failing

    monkeypatch.setattr(iceberg.FileTarget, "written", written)
    warehouse = Warehouse(spark, "lake", WarehouseConfig(keep_snapshots_days=0.0))
    changes = [insert(of, key, {"v": f"{key}"}, schema=schema_of(of)) for key in range(20)]
    write(warehouse, of, 1, *changes, schema=schema_of(of))
    assert failed.exists()
    name = warehouse.changes_of(of)
    assert name is not None
    assert sorted(row.ordinal for row in spark.table(name).select("ordinal").collect()) == list(range(1, 21))
    there, known = data_files(spark, name)
    orphans = there - known
    assert orphans
    write(warehouse, of, 2, insert(of, 1, {"v": "x"}, timestamp=THEN + 2, schema=schema_of(of)), schema=schema_of(of))
    for path in there:
        age(path, 4)
    assert not [done.trouble for done in tidy(warehouse, [of]) if done.trouble]
    assert not any(path.exists() for path in orphans)
    assert sorted(row.ordinal for row in spark.table(name).where("batch = 1").select("ordinal").collect()) == list(range(1, 21))
