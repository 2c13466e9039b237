"""Whose failure an error is, and what happens to a batch whose tables or workers fail, without Spark."""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from proof.doubles.warehouse import IcebergError
from spark_jobs.failures import (
    FailedInWorker,
    Kind,
    TablesFailed,
    concerning,
    failed,
    is_lost_worker,
    kind_of,
    of_each,
    reason_of,
    reported_by,
    reporting,
)
from spark_jobs.rejected_tables import Attempts, without_rejected
from spark_jobs.sinks.iceberg_table import is_conflict
from spark_jobs.stages.number_columns import NumberTooLong
from tests.spark_jobs.examples import table
from writetime.cassandra.schema.model import Table
from writetime.errors import (
    BatchBusy,
    BatchClosed,
    BatchError,
    ChainMismatch,
    ChecksumMismatch,
    ConfigError,
    LeaseLost,
    MalformedMutation,
    ObjectNotFound,
    SchemaError,
    StoreUnavailable,
)
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.pinned import VerdictAdded, verdicts
from writetime.storage.local import LocalStore

AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ONE, TWO, THREE, FOUR = (table(name, number, {"id": "int"}) for number, name in enumerate(("one", "two", "three", "four"), start=70))


RESULTS = (
    "Job aborted due to stage failure: Total size of serialized results of 12 tasks (1025.3 MiB) is bigger than "
    "spark.driver.maxResultSize (1024.0 MiB)"
)
"""As the driver of Spark 4.1 says it (TaskSetManager)."""


class Java:
    """A Java exception as py4j shows it."""

    def __init__(self, name: str, message: str = "", *, state: str | None = None, cause: Java | None = None) -> None:
        self.name, self.message, self.state, self.cause = name, message, state, cause

    def getClass(self) -> Any:
        return SimpleNamespace(getName=lambda: self.name)

    def getMessage(self) -> str:
        return self.message

    def getCause(self) -> Java | None:
        return self.cause

    def getSqlState(self) -> str:
        if self.state is None:
            raise Py4JError("Method getSqlState([]) does not exist")
        return self.state

    getSQLState = getSqlState  # noqa: N815


def of_java(name: str, message: str = "", **more: Any) -> PySparkException:
    error = PySparkException(message)
    cast(Any, error)._origin = Java(name, message, **more)
    return error


def of_python(line: str) -> PySparkException:
    """An error in a Python worker, as Spark passes it on."""
    trace = f'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    process()\n{line}\n'
    return PySparkException(
        f"Job aborted due to stage failure: Task 0 in stage 1.0 failed: org.apache.spark.api.python.PythonException: {trace}"
        "\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala)\nDriver stacktrace:"
    )


ICEBERG = "org.apache.iceberg.exceptions."
CASES: list[tuple[BaseException, Kind]] = [
    (KeyboardInterrupt(), "driver"),
    (SystemExit(1), "driver"),
    (GeneratorExit(), "driver"),
    (LeaseLost("taken over"), "driver"),
    (BatchBusy("another run"), "driver"),
    (BatchClosed("sealed"), "driver"),
    (VerdictAdded("another run"), "driver"),
    (ChainMismatch("another chain"), "driver"),
    (of_python("writetime.errors.LeaseLost: taken over (a retry may help)"), "driver"),
    (StoreUnavailable("503"), "world"),
    (ChecksumMismatch("other bytes"), "world"),
    (BatchError("no answer", retriable=True), "world"),
    (ConnectionResetError(), "world"),
    (TimeoutError(), "world"),
    (OSError(errno.ENOSPC, "No space left on device"), "world"),
    (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"), "world"),
    (EOFError(), "world"),
    (RuntimeError("LanceError(IO): Generic S3 error"), "world"),
    (OSError("LanceError(IO): Generic S3 error: connection closed"), "world"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), "world"),
    (Py4JNetworkError("the JVM is gone"), "world"),
    (of_java("java.net.ConnectException", "Connection refused"), "world"),
    (of_java("org.apache.spark.SparkException", cause=Java("java.io.IOException", "disk quota exceeded")), "world"),
    (of_java("org.apache.iceberg.jdbc.UncheckedSQLException", cause=Java("org.sqlite.SQLiteException", "[SQLITE_BUSY]")), "world"),
    (of_java("org.apache.iceberg.exceptions.ServiceUnavailableException"), "world"),
    (of_java("java.lang.OutOfMemoryError", "Java heap space"), "world"),
    (of_java("org.apache.spark.SparkException", RESULTS), "world"),
    (of_python("writetime.errors.StoreUnavailable: read an object: a/b: 503 (a retry may help)"), "world"),
    (of_python("writetime.errors.BatchError: read from the ring: no answer (a retry may help)"), "world"),
    (of_python("OSError: [Errno 28] No space left on device"), "world"),
    (of_python("ConnectionRefusedError: [Errno 111] Connection refused"), "world"),
    (PySparkException("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"), "world"),
    (PySparkException("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)"), "world"),
    (RuntimeError("anything"), "table"),
    (RecursionError("maximum recursion depth exceeded"), "table"),
    (MemoryError(), "table"),
    (pa.ArrowInvalid("offset overflow"), "table"),
    (KeyError("column"), "table"),
    (OSError(errno.ENAMETOOLONG, "File name too long"), "table"),
    (MalformedMutation("no such type"), "table"),
    (SchemaError("a type that contains itself"), "table"),
    (ConfigError("a rule that does not fit"), "table"),
    (ObjectNotFound("version 3 is gone"), "table"),
    (BatchError("somebody else made it"), "table"),
    (NumberTooLong("column a needs 3 digits"), "table"),
    (AnalysisException("[UNRESOLVED_COLUMN] a"), "table"),
    (of_java("java.lang.NumberFormatException", 'For input string: "x"'), "table"),
    (of_java("org.apache.spark.SparkRuntimeException", "two rows for one", state="21506"), "table"),
    (of_java("java.sql.SQLException", "value too long for type character varying(255)", state="22001"), "table"),
    (of_java("org.apache.iceberg.exceptions.NotFoundException", "File does not exist: metadata.json"), "table"),
    (of_java("java.lang.RuntimeException", cause=Java(f"{ICEBERG}NotFoundException", cause=Java("java.net.SocketException"))), "table"),
    (OSError("LanceError(IO): Generic N/A error: Not found: /state/1/data/1.lance, rust/lance-io/src/object_reader.rs"), "table"),
    (pa.ArrowInvalid("External error: LanceError(IO): Generic N/A error: Not found: /state/1/_indices/1/page_lookup.lance"), "table"),
    (ValueError("Dataset at path state/1/_versions/2.manifest was not found: Not found: state/1/_versions/2.manifest"), "table"),
    (of_python("RecursionError: maximum recursion depth exceeded"), "table"),
    (of_python("pyarrow.lib.ArrowInvalid: offset overflow"), "table"),
    (of_python("spark_jobs.stages.number_columns.NumberTooLong: column a needs 3 digits"), "table"),
    (failed(ONE, RuntimeError("no")), "table"),
]


@pytest.mark.parametrize(("error", "kind"), CASES, ids=lambda each: each if isinstance(each, str) else repr(each)[:60])
def test_whose_failure_an_error_is(error: BaseException, kind: Kind) -> None:
    assert kind_of(error) == kind


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RecursionError("too deep"), "RecursionError: too deep"),
        (MemoryError(), "MemoryError"),
        (NumberTooLong("column a needs 3 digits"), "column a needs 3 digits"),
        (SchemaError("no type", obj="shop.one"), "shop.one: no type"),
        (AnalysisException("[UNRESOLVED_COLUMN] a\nmore"), "it cannot be written: [UNRESOLVED_COLUMN] a"),
        (of_java("org.apache.spark.SparkRuntimeException", "two rows for one", state="21506"), "it cannot be written: two rows for one"),
        (of_python("ValueError: in a worker"), "ValueError: in a worker"),
        (of_python("spark_jobs.stages.number_columns.NumberTooLong: column a"), "column a"),
    ],
)
def test_the_reason_is_one_line(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


def test_all_tables_that_fail_are_named_and_others_are_done() -> None:
    done = []

    def work(each: Table) -> str:
        if each in (ONE, THREE):
            raise RuntimeError(each.name)
        done.append(each.name)
        return each.name

    for workers in (1, 3):
        with pytest.raises(TablesFailed) as raised:
            of_each([ONE, TWO, THREE, FOUR], work, workers=workers)
        assert [(each.table, each.reason) for each in raised.value.refused] == [
            (ONE.label, "RuntimeError: one"),
            (THREE.label, "RuntimeError: three"),
        ]
    assert sorted(done) == ["four", "four", "two", "two"]
    assert of_each([TWO, FOUR], work) == ["two", "four"]


@pytest.mark.parametrize("error", [StoreUnavailable("503"), LeaseLost("gone"), KeyboardInterrupt()])
def test_what_is_not_of_the_table_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, concerning(ONE):
        raise error
    assert raised.value is error


def test_a_worker_tells_which_table_failed() -> None:
    with pytest.raises(FailedInWorker) as raised, reporting(ONE.id.bytes):
        raise ValueError("with: colons, [brackets] and\nlines")
    arrived = of_python(f"spark_jobs.failures.FailedInWorker: {raised.value}")
    (reported,) = reported_by(arrived)
    assert (reported.table_id, reported.reason) == (ONE.id, "ValueError: with: colons, [brackets] and")
    assert kind_of(arrived) == "table"
    assert Attempts(tables=[ONE]).named(reported).table == ONE.label


# --- batches

SEALED = Sealed(number=1, kind="ingest", sealed_at=AT, segments=[], accounting=[], state={})
DEAD = PySparkException("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")


class Batches:
    """A batch that some tables make fail, or kill a worker of."""

    def __init__(
        self, folder: Path, tables: Sequence[Table], *, fails: Sequence[Table] = (), kills: Sequence[Table] = (), most: int = 9
    ) -> None:
        self.store = LocalStore(folder)
        self.manifest = Manifest(number=1, kind="ingest", cluster="c", created_at=AT, now=0, base=0, segments=[])
        self.tables, self.fails, self.kills, self.most = tables, fails, kills, most
        self.attempts = Attempts()
        self.runs = self.tried = 0

    def run(self) -> Sealed:
        self.runs += 1
        rejected = verdicts(self.store, self.manifest).refused
        self.attempts.tables = [each for each in self.tables if each.id not in rejected]
        self._work(self.attempts.tables)
        return SEALED

    def attempt(self, tables: Collection[Table]) -> None:
        self.tried += 1
        self._work(tables)

    def _work(self, tables: Collection[Table]) -> None:
        if len(tables) > self.most or any(each in tables for each in self.kills):
            assert is_lost_worker(DEAD)
            raise DEAD
        if wrong := [each for each in tables if each in self.fails]:
            raise TablesFailed([each for table in wrong for each in failed(table, RuntimeError("no")).refused])

    def sealed(self) -> list[str]:
        spark = cast(Any, SimpleNamespace(catalog=SimpleNamespace(clearCache=lambda: None)))
        assert without_rejected(self.run, self.attempt, self.attempts, self.store, self.manifest, spark) == SEALED
        return sorted(each.table for each in verdicts(self.store, self.manifest).refused.values())


def test_a_batch_goes_on_without_the_tables_that_fail(tmp_path: Path) -> None:
    batches = Batches(tmp_path, [ONE, TWO, THREE, FOUR], fails=[TWO, FOUR])
    assert batches.sealed() == sorted([TWO.label, FOUR.label])
    assert (batches.runs, batches.tried) == (2, 0)
    # Another run of the batch begins without them.
    assert batches.sealed() == sorted([TWO.label, FOUR.label])
    assert batches.runs == 3


@pytest.mark.parametrize("killers", [[ONE], [THREE], [ONE, FOUR], [ONE, TWO, THREE, FOUR]])
def test_the_table_that_kills_workers_is_found_by_halves(tmp_path: Path, killers: list[Table]) -> None:
    batches = Batches(tmp_path, [ONE, TWO, THREE, FOUR], kills=killers, fails=[TWO])
    assert batches.sealed() == sorted({*(each.label for each in killers), TWO.label})


def test_a_machine_that_is_too_small_rejects_nothing(tmp_path: Path) -> None:
    batches = Batches(tmp_path, [ONE, TWO, THREE, FOUR], most=2)
    with pytest.raises(PySparkException, match="exited unexpectedly"):
        batches.sealed()
    assert verdicts(batches.store, batches.manifest).refused == {}
    # A worker that dies once is no reason at all.
    batches = Batches(tmp_path, [ONE, TWO], most=1)
    batches.runs, run = 0, batches.run

    def once() -> Sealed:
        batches.most = 1 if batches.runs == 0 else 9
        return run()

    batches.run = once  # type: ignore[method-assign]
    assert (batches.sealed(), batches.tried) == ([], 0)


@pytest.mark.parametrize(
    ("message", "is_somebody_faster"),
    [
        ("CommitFailedException: Cannot commit changes based on stale table metadata", True),
        ("ValidationException: Found conflicting files that can contain records matching true", True),
        ("ValidationException: Found new conflicting delete files that can apply to records matching true", True),
        ("ValidationException: Cannot commit, missing data files: [a.parquet]", True),
        ("ValidationException: Cannot determine history between starting snapshot 1 and the last known ancestor 2", True),
        ("ValidationException: Missing required files to delete: a.parquet", True),
        ("ValidationException: Cannot find source column for partition field: 1000: shard: bucket[4](1)", False),
        ("ValidationException: Invalid metrics config, could not find column v from table prop write.metadata.metrics.column.v", False),
        ("ValidationException: Cannot expire snapshots: GC is disabled (deleting files may corrupt other tables)", False),
        ("NotFoundException: File does not exist: a.metadata.json", False),
    ],
)
def test_what_iceberg_refuses_is_a_conflict_only_if_somebody_was_faster(message: str, is_somebody_faster: bool) -> None:
    error = of_java("org.apache.spark.SparkException", f"{ICEBERG}{message}")
    assert is_conflict(error) == is_somebody_faster
    assert is_conflict(IcebergError(f"{ICEBERG}{message.partition(':')[0]}", message.partition(": ")[2])) == is_somebody_faster
