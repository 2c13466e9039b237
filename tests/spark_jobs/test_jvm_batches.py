"""What Spark's JVM hands over without offsets can be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.stages.jvm_batches import made_whole
from spark_jobs.stages.scan import Batches
from tests.spark_jobs.pipeline import Pipeline

pytestmark = pytest.mark.spark

ROWS = "id int, lists array<array<int>>, maps map<string, array<string>>, s struct<deep: array<struct<m: map<string, array<int>>>>>"
NOTHING = [(1, [], {}, None), (2, None, None, ([],)), (3, [], None, (None,))]
SOMETHING = [(1, [[], [1]], {"a": [], "b": ["x"]}, ([({"k": [1]},), (None,)],)), (2, None, {}, ([],))]
_FEW = 1 << 12


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(Pipeline.create(tmp_path_factory.mktemp("jvm")).config, "tests of batches of the JVM")
    yield session
    session.stop()


def without_offsets(kind: pa.DataType) -> Any:
    """An array without rows whose offsets are not there: at their address are other bytes."""
    elsewhere = pa.py_buffer(b"\x70" * 64)[32:32]
    return pa.Array.from_buffers(kind, 0, [None, elsewhere], children=[pa.array([], kind.value_type)])


def test_arrays_without_rows_have_offsets() -> None:
    inner = without_offsets(pa.list_(pa.list_(pa.int32())))
    outer = pa.Array.from_buffers(pa.list_(inner.type), 2, [None, pa.py_buffer(bytes(12))], children=[inner])
    (found,) = made_whole([pa.RecordBatch.from_arrays([pa.StructArray.from_arrays([outer], ["deep"])], names=["s"])])
    lists = found["s"].field("deep")
    assert lists.values.buffers()[1].to_pybytes() == bytes(4)
    assert found.nbytes < _FEW
    assert found.to_pylist() == [{"s": {"deep": []}}] * 2


@pytest.mark.parametrize("rows", [NOTHING, SOMETHING], ids=["nothing", "something"])
def test_rows_of_the_jvm_stay_as_they_are(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    def sizes(batches: Batches) -> Batches:
        for batch in made_whole(batches):
            batch.validate(full=True)
            assert batch.nbytes < _FEW
            yield batch

    frame = spark.createDataFrame(rows, ROWS).coalesce(1)
    assert frame.mapInArrow(sizes, schema=ROWS).collect() == frame.collect()


def test_a_nested_array_without_offsets_ends_the_process_otherwise() -> None:
    """If this fails, Arrow or Spark has learnt it, and `made_whole` can go."""
    again = f"from {__name__} import *\nkind = pa.list_(pa.list_(pa.int32()))\nprint(without_offsets(kind).nbytes)"
    found = subprocess.run([sys.executable, "-c", again], capture_output=True, check=False)
    assert found.returncode or int(found.stdout) > _FEW
