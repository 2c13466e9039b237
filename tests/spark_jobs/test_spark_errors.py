"""Limits that Spark comes to, as an error of ours with what to do about them."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_jobs.failures import kind_of, reason_of
from spark_jobs.job_exit import reports_failure
from spark_jobs.spark_errors import limit_of, spark_failures
from tests.spark_jobs.test_failures import RESULTS
from writetime.errors import ConfigError, PublishError, StoreUnavailable
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


OF_THE_CATALOG = [
    (
        "Cannot initialize FileIO implementation org.apache.iceberg.aws.s3.S3FileIO: Cannot find constructor for interface "
        "org.apache.iceberg.io.FileIO",
        "",
        "catalog.options.io-impl",
        False,
    ),
    (
        "org.apache.iceberg.exceptions.RuntimeIOException: Failed to get file system for path: s3://lake/a.metadata.json",
        'Caused by: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"',
        "catalog.options.io-impl",
        False,
    ),
    (
        "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        "",
        "catalog.options.io-impl",
        False,
    ),
    ("java.lang.RuntimeException: java.lang.NoClassDefFoundError: com/google/api/client/util/Lists", "", "catalog.options.io-impl", False),
    (
        "org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect: jdbc:foo:x?password=hunter2",
        "Caused by: java.sql.SQLException: No suitable driver found for jdbc:foo:x?password=hunter2",
        "catalog.uri",
        False,
    ),
    ("org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect: jdbc:mysql://u:hunter2@h/db", "", "catalog.uri", True),
    ("org.apache.iceberg.hive.RuntimeMetaException: Failed to connect to Hive Metastore", "", "catalog.uri", True),
    ("org.apache.iceberg.exceptions.RESTException: Error occurred while processing GET request", "", "catalog.uri", True),
    ("Cannot create catalog c8, both type and catalog-impl are set: type=jdbc, catalog-impl=a.B", "", "catalog.options", False),
    (
        'For input string: "x"',
        'java.lang.NumberFormatException: For input string: "x"\n\tat java.base/java.lang.Integer.parseInt(Integer.java:668)\n'
        "\tat org.apache.iceberg.spark.SparkCatalog.initialize(SparkCatalog.java:700)",
        "catalog.options",
        False,
    ),
]
"""What Iceberg 1.12 in Spark 4.1 says of a catalog that cannot be opened, its first line and the rest."""


@pytest.mark.parametrize(("said", "trace", "key", "retriable"), OF_THE_CATALOG)
def test_what_is_wrong_with_the_catalog_is_told_by_key_and_rejects_no_table(said: str, trace: str, key: str, retriable: bool) -> None:
    """Each table would meet it: a batch that went on without them would reject all."""
    error = PySparkException(said)
    error._stackTrace = trace  # type: ignore[attr-defined]
    found = limit_of(error)
    assert found is not None
    assert (type(found), found.obj, found.retriable) == (ConfigError, key, retriable)
    assert "hunter2" not in f"{found} {found.as_dict()}"
    assert kind_of(error) == "world"
    assert "hunter2" not in reason_of(error)


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
