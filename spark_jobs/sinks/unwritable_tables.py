"""Tables that Spark or the warehouse cannot write: the batch continues without them, and they wait for an
operator.

A commit to a table fails for a temporary reason (the catalog is not available) or because of the rows or the
table. Only the second makes a table unwritable; any other failure fails the batch, because a retry may
succeed. Spark says which it is: a statement that cannot be planned can never run, and for a failure at run
time the SQLSTATE decides (ISO 9075-2, 24.1).

Must not know what a batch consists of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from spark_jobs.stages.number_columns import NumberTooLong
from writetime.cassandra.schema.model import Table
from writetime.pipeline.documents import Manifest, RefusedTable, Sealed
from writetime.pipeline.pinned import VerdictAdded, add_verdict
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

log = structlog.get_logger()

COMMITTERS = 4
"""Tables that are looked at or written to at once: of a small commit the most is planning, and waiting for
the catalog."""
_OF_THE_ROWS = ("21", "22", "23")
"""Classes of SQLSTATE: cardinality violation, data exception, integrity constraint violation."""
_OF_A_TASK = re.compile(rf"^(?:\w+\.)*{NumberTooLong.__name__}: (.+)$", re.MULTILINE)
_LONGEST = 500


class UnwritableTable(Exception):
    """The warehouse rejects a table's rows, and would again: the batch can only continue without the
    table."""

    def __init__(self, table: Table, reason: str) -> None:
        super().__init__(f"{table.label}: {reason}")
        self.refused = RefusedTable(table=table.label, table_id=table.id, reason=reason)


def without_unwritable(run: Callable[[], Sealed], store: Store, manifest: Manifest, spark: SparkSession) -> Sealed:
    """Run the batch, and again without each table that the warehouse rejects, which is recorded for all its
    runs."""
    found = set()
    while True:
        try:
            return run()
        except UnwritableTable as error:
            if error.refused.table_id in found:
                raise
            found.add(error.refused.table_id)
            log.error(
                "table cannot be written, the batch continues without it", batch=manifest.number, **error.refused.model_dump(mode="json")
            )
            add_verdict(store, manifest, error.refused)
        except VerdictAdded as error:
            log.warning("another run excluded a table, this run excludes it too", batch=manifest.number, **error.as_dict())
        spark.catalog.clearCache()


def commit_each(captured: list[Table], commit: Callable[[Table], None]) -> None:
    """Commit several tables at once. Incarnations of one name, which the name passes between, are committed
    in sequence. UnwritableTable for the first table whose rows Spark would reject again."""

    def commit_incarnations(incarnations: list[Table]) -> None:
        for table in incarnations:
            try:
                commit(table)
            except NumberTooLong as error:
                raise UnwritableTable(table, str(error)) from error
            except (PySparkException, Py4JJavaError) as error:
                if (reason := why_never(error)) is None:
                    raise
                raise UnwritableTable(table, f"it cannot be written: {reason}") from error

    at_once(
        commit_incarnations,
        [list(incarnations) for _, incarnations in groupby(captured, key=lambda table: table.full_name)],
        workers=COMMITTERS,
    )


def why_never(error: PySparkException | Py4JJavaError) -> str | None:
    """Why the same rows would be rejected again; None if they may be accepted."""
    if isinstance(error, AnalysisException):
        return _first_line(str(error))
    causes = list(_causes(error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)))
    # A task of ours says it with an exception of its own, which is the last line of a traceback.
    texts = (str(error), *(str(cause.getMessage()) for cause in causes))
    if found := next((match for text in texts if (match := _OF_A_TASK.search(text))), None):
        return _first_line(found[1])
    return next((_first_line(str(cause.getMessage())) for cause in causes if _sql_state(cause).startswith(_OF_THE_ROWS)), None)


def _causes(thrown: Any) -> Iterator[Any]:
    """A Java exception and its causes; the exception of a task comes last."""
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _sql_state(thrown: Any) -> str:
    try:
        return thrown.getSqlState() or ""
    except Py4JError:
        # An exception of another library has none.
        return ""


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0][:_LONGEST]
