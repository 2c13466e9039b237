"""Limits that Spark comes to, as an error of ours with what to do about them."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_jobs.job_exit import reports_failure
from spark_jobs.spark_errors import limit_of, spark_failures
from tests.spark_jobs.test_failures import RESULTS
from writetime.errors import PublishError, StoreUnavailable
from writetime.pipeline.job_result import listening

_LOST = "Job aborted due to stage failure: Task 3 in stage 7.0 failed 4 times: ExecutorLostFailure (executor 2 exited caused by one of the "
SAID = [
    (RESULTS, False, "spark.driver.maxResultSize"),
    ("Job aborted: Serialized task 12:0 was 150000000 bytes, which exceeds max allowed: spark.rpc.message.maxSize (134217728 bytes).",
     False, "spark.rpc.message.maxSize"),
    ("[KRYO_BUFFER_OVERFLOW] Kryo serialization failed: Buffer overflow. Available: 0, required: 70. To avoid this, increase "
     '"spark.kryoserializer.buffer.max" value.', False, "spark.kryoserializer.buffer.max"),
    (f"{_LOST}running tasks) Reason: Container killed by YARN for exceeding physical memory limits. 5.5 GB of 5.5 GB physical memory used.",
     True, "spark.executor.memoryOverhead"),
    (f"{_LOST}running tasks) Reason: Container from a bad node: container_1 on host: n1. Exit status: 137. Diagnostics: killed", True,
     "spark.executor.memoryOverhead"),
    (f"{_LOST}running tasks) Reason: \n The executor with id 2 exited with exit code 137(SIGKILL, possible container OOM).", True,
     "spark.executor.memoryOverhead"),
    (": java.lang.OutOfMemoryError: Java heap space", True, "spark.executor.memory"),
    ("[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes of memory, got 0.", True, "spark.executor.memory"),
    ("org.apache.iceberg.jdbc.UncheckedSQLException: Failed to execute\n: [SQLITE_BUSY] The database file is locked", True, "PostgreSQL"),
    ("Task 0 failed: java.io.IOException: No space left on device", True, "spark.local.dir"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "retriable", "option"), SAID)
def test_a_limit_is_an_error_of_ours(said: str, retriable: bool, option: str) -> None:
    found = limit_of(PySparkException(said))
    assert found is not None
    assert (found.retriable, option in (found.hint or "")) == (retriable, True)

    @reports_failure("ingest")
    def main(_: list[str] | None) -> int:
        raise PySparkException(said)

    with listening() as heard:
        assert main([]) == 1
        result = heard.read()
    assert result.retriable == retriable
    assert option in (result.text or "")
    with pytest.raises(PublishError, match=option) as raised, spark_failures("shop.orders"):
        raise PySparkException(said)
    assert raised.value.retriable == retriable


@pytest.mark.parametrize(
    "error",
    [
        PySparkException("Job aborted due to stage failure: a column is missing"),
        PySparkException("ExecutorLostFailure (executor 1 exited) Reason: Remote RPC client disassociated"),
        RuntimeError(RESULTS),
        StoreUnavailable("java.lang.OutOfMemoryError"),
    ],
)
def test_anything_else_is_none(error: Exception) -> None:
    assert limit_of(error) is None
