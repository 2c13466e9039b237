"""Whose failure an error is, reported apart in one place: `kind_of`.

    driver   the lease or the batch is another driver's now, or the process is to end: this driver stops
    world    store, catalog, broker, network, disk or a worker failed: the run fails, a retry may succeed, no table is to blame
    table    anything else that is raised in work for one table: the same input fails again, so the batch goes on without it

Strategy: `concerning` and `of_each` surround work for one table. They turn a failure of the kind `table` into TablesFailed,
which names the table and the reason; anything else passes through them. The class of an error decides, of an error of
Spark the classes of its causes and, of one in a Python worker, the last line of the traceback. TablesFailed in a worker
reaches the driver as such a line (`reported_by`), or as a row, where a stage has rows for what it rejects. Must not know what
becomes of the table."""

from __future__ import annotations

import builtins
import errno
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

import structlog
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from spark_jobs.spark_errors import limit_of, why
from writetime import errors
from writetime.cassandra.schema.model import Table
from writetime.errors import (
    RETRY,
    BatchBusy,
    BatchClosed,
    ChainMismatch,
    LeaseLost,
    ObjectNotFound,
    StoreError,
    WritetimeError,
    without_secrets,
)
from writetime.pipeline.documents import RefusedTable
from writetime.storage.concurrency import at_once

log = structlog.get_logger()

Kind = Literal["driver", "world", "table"]
T = TypeVar("T")

COMMITTERS: Final = 4
"""Tables that are looked at or written to at once: of a small commit the most is planning, and waiting for the catalog."""
_DRIVER: Final = (LeaseLost, BatchBusy, BatchClosed, ChainMismatch)
_OF_THE_INPUT: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EOVERFLOW, errno.EFBIG, errno.EDOM, errno.ERANGE})
"""Of errors of the operating system, those that the same name or value has again."""
_CLIENTS: Final = ("botocore", "cassandra", "confluent_kafka", "google", "http", "requests", "urllib3")
"""Packages whose errors are about what they talk to."""
_OF_THE_ROWS: Final = ("21", "22", "23")
"""Classes of SQLSTATE (ISO 9075-2, 24.1): cardinality violation, data exception, integrity constraint violation."""
_WORLD_OF_JAVA: Final = re.compile(
    r"^(?:java\.io\.(?!(?:NotSerializable|InvalidObject|UTFDataFormat|FileNotFound)Exception)|java\.net\.(?!URISyntax)|java\.nio\.channels\."
    r"|java\.nio\.file\.FileSystemException|java\.sql\.|org\.sqlite\.|org\.postgresql\.|com\.mysql\.|java\.util\.concurrent\."
    r"|java\.lang\.(?:OutOfMemoryError|InterruptedException|IllegalThreadStateException)|javax\.net\.|org\.apache\.http\.|org\.apache\.hc\."
    r"|org\.apache\.hadoop\.(?:fs\.s3a|ipc|net)\.|software\.amazon\.|com\.amazonaws\.|com\.google\.|com\.azure\."
    r"|org\.apache\.iceberg\.jdbc\.Unchecked|org\.apache\.iceberg\.exceptions\.(?:Service|REST|Commit|NotAuthorized|Forbidden|RuntimeIO)"
    r"|org\.apache\.spark\.(?:shuffle\.|ExecutorDead|TaskKilled|memory\.|rpc\.|SparkOutOfMemory))"
)
_LOST_WORKER: Final = re.compile(
    r"Python worker exited unexpectedly|Python worker failed to connect|ExecutorLostFailure|Executor heartbeat timed out"
)
_LOST: Final = re.compile(
    rf"{_LOST_WORKER.pattern}|FetchFailed|No space left on device|Too many open files|Connection (?:refused|reset)|stopped SparkContext"
    r"|SparkContext was shut down|LanceError\(IO\)"
)
"""What Spark, or a library of a worker, says when the machine or the network is at fault."""
_GONE: Final = re.compile(r"LanceError\(IO\): .*\bnot found: |Dataset at path \S+ was not found", re.IGNORECASE)
"""What Lance says when a file of a dataset is gone, while its store answers."""
_GONE_OF_JAVA: Final = re.compile(r"^org\.apache\.iceberg\.exceptions\.NotFoundException$")
"""The same of a file of a table; its cause may be one of the world."""
_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$", re.MULTILINE)
_ERRNO: Final = re.compile(r"^\[Errno (\d+)\]")
_LONGEST: Final = 500
_TAG: Final = "tables failed alone: "


class TablesFailed(WritetimeError):
    """These tables cannot be worked on, and could not be if it were tried again."""

    def __init__(self, refused: list[RefusedTable]) -> None:
        super().__init__("; ".join(f"{table.table}: {table.reason}" for table in refused))
        self.refused = refused

    def __str__(self) -> str:
        return self.message

    def as_line(self) -> str:
        """All of it in one line, which `reported_by` finds in the text of another error."""
        return _TAG + json.dumps([table.model_dump(mode="json") for table in self.refused])


class FailedInWorker(Exception):
    """TablesFailed on its way to the driver: Spark passes on the text of an error only."""


# --- reporting apart


def kind_of(error: BaseException) -> Kind:
    """Whose failure an error is that was raised in work for one table."""
    if not isinstance(error, Exception) or isinstance(error, _DRIVER):
        return "driver"
    if isinstance(error, TablesFailed):
        return "table"
    if isinstance(error, WritetimeError):
        return "world" if error.retriable or (isinstance(error, StoreError) and not isinstance(error, ObjectNotFound)) else "table"
    if isinstance(error, PySparkException | Py4JJavaError):
        return _kind_of_spark(error)
    if isinstance(error, Py4JNetworkError | EOFError) or type(error).__module__.startswith(_CLIENTS):
        return "world"
    if _GONE.search(str(error)):
        return "table"
    if isinstance(error, OSError):
        return "table" if error.errno in _OF_THE_INPUT else "world"
    return "world" if _LOST.search(str(error)) else "table"


def _kind_of_spark(error: PySparkException | Py4JJavaError) -> Kind:
    if isinstance(error, AnalysisException) or reported_by(error):
        return "table"
    causes = list(_causes(error))
    if any(_sql_state(cause).startswith(_OF_THE_ROWS) for cause in causes):
        return "table"
    if any(_GONE_OF_JAVA.match(str(cause.getClass().getName())) for cause in causes):
        return "table"
    if _LOST.search(str(error)) or limit_of(error) is not None:
        return "world"
    if (raised := _raised_by_worker(error)) is not None:
        return raised
    return "world" if any(_WORLD_OF_JAVA.match(str(cause.getClass().getName())) for cause in causes) else "table"


def _raised_by_worker(error: Exception) -> Kind | None:
    """The kind of the error that a Python worker raised; None if none did."""
    text = str(error)
    if "Traceback (most recent call last)" not in text:
        return None
    name, message = _last_line(text)
    package, _, called = name.rpartition(".")
    kind = getattr(errors if package == errors.__name__ else builtins, called, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return "world" if name.startswith(_CLIENTS) else "driver" if called == "VerdictAdded" else "table"
    if RETRY in message and not issubclass(kind, _DRIVER):
        return "world"
    if issubclass(kind, OSError):
        number = _ERRNO.match(message)
        return kind_of(OSError(int(number[1]), message)) if number else "world"
    return kind_of(kind.__new__(kind))


def _last_line(text: str) -> tuple[str, str]:
    """Class and message of the error at the end of a traceback."""
    trace = text.rpartition("Traceback (most recent call last)")[2]
    found = [match for match in _RAISED.finditer(trace) if match[1].rpartition(".")[2][:1].isupper()]
    return (found[0][1], found[0][2] or "") if found else ("", "")


def is_lost_worker(error: BaseException) -> bool:
    """Whether a worker died: of its input, perhaps, or because the machine is out of memory. An error of ours may have
    that of Spark as its cause."""
    of_spark = error.__cause__ if isinstance(error, WritetimeError) else error
    return isinstance(of_spark, PySparkException | Py4JJavaError) and bool(_LOST_WORKER.search(str(of_spark)))


def _causes(error: PySparkException | Py4JJavaError) -> Iterator[Any]:
    """The Java exception and its causes; the exception of a task comes last."""
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _sql_state(thrown: Any) -> str:
    for method in ("getSqlState", "getSQLState"):
        try:
            return getattr(thrown, method)() or ""
        except Py4JError:
            # An exception of another library has none.
            continue
    return ""


# --- reasons


def reason_of(error: BaseException) -> str:
    """Why the same would fail again, as one line for people."""
    if isinstance(error, WritetimeError):
        return str(error)[:_LONGEST]
    if isinstance(error, PySparkException | Py4JJavaError):
        return _first_line(_reason_of_spark(error))
    # An exception with a message of its own speaks for itself.
    reported = str(error).strip()
    named = type(error).__module__.startswith(("spark_jobs.", "writetime."))
    return _first_line(reported if named and reported else f"{type(error).__name__}: {reported}" if reported else type(error).__name__)


def _reason_of_spark(error: PySparkException | Py4JJavaError) -> str:
    if isinstance(error, AnalysisException):
        return f"it cannot be written: {_first_line(str(error))}"
    for cause in _causes(error):
        if _sql_state(cause).startswith(_OF_THE_ROWS):
            return f"it cannot be written: {_first_line(str(cause.getMessage()))}"
    if "Traceback (most recent call last)" in str(error):
        name, message = _last_line(str(error))
        return message if name.startswith(("spark_jobs.", "writetime.")) and message else f"{name.rpartition('.')[2]}: {message}"
    return why(error)


def _first_line(message: str) -> str:
    return without_secrets((message.strip().splitlines() or [""])[0][:_LONGEST])


# --- work for one table


@contextmanager
def concerning(table: Table | bytes) -> Iterator[None]:
    """Work for this table, or the one with this id, alone: what fails because of it is raised as TablesFailed."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TablesFailed) or kind_of(error) != "table":
            raise
        raise failed(table, error) from error


def failed(table: Table | bytes, error: BaseException) -> TablesFailed:
    """The error as one of this table, or as a worker has reported it."""
    label, table_id = (table.label, table.id) if isinstance(table, Table) else (str(UUID(bytes=table)), UUID(bytes=table))
    return TablesFailed(reported_by(error) or [RefusedTable(table=label, table_id=table_id, reason=reason_of(error))])


def of_each(tables: Iterable[Table], work: Callable[[Table], T], *, workers: int = 1) -> list[T]:
    """The results of work for each table, in order; TablesFailed for all tables that fail alone. `workers`: for so many
    at once; incarnations of one name, which the name passes between, one after the other."""

    def of_name(incarnations: list[Table]) -> list[T] | TablesFailed:
        found = []
        for table in incarnations:
            try:
                with concerning(table):
                    found.append(work(table))
            except TablesFailed as error:
                return error
        return found

    names = [list(incarnations) for _, incarnations in groupby(tables, key=lambda table: table.full_name)]
    done = at_once(of_name, names, workers=workers) if workers > 1 else [of_name(name) for name in names]
    if refused := [table for each in done if isinstance(each, TablesFailed) for table in each.refused]:
        raise TablesFailed(refused)
    return [result for each in done if not isinstance(each, TablesFailed) for result in each]


@contextmanager
def going_on(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Work for the table of that name in a job that does not need to succeed with all: what fails because of it is logged,
    and `failed` receives the reason."""
    try:
        yield
    except Exception as error:
        if kind_of(error) != "table":
            raise
        log.error("table left out", table=name, error=reason_of(error))
        failed.setdefault(name, reason_of(error))


# --- from worker to driver


@contextmanager
def reporting(table_id: bytes) -> Iterator[None]:
    """As `concerning`, in a task of Spark without rows for what it rejects."""
    try:
        with concerning(table_id):
            yield
    except TablesFailed as error:
        raise FailedInWorker(error.as_line()) from error


def reported_by(error: BaseException) -> list[RefusedTable]:
    """The tables that failed in the workers, according to an error of Spark."""
    if isinstance(error, TablesFailed):
        return error.refused
    if not isinstance(error, PySparkException | Py4JJavaError | FailedInWorker):
        return []
    _, tag, text = str(error).rpartition(_TAG)
    if not tag:
        return []
    found, _ = json.JSONDecoder().raw_decode(text)
    return [RefusedTable.model_validate(each) for each in found]
