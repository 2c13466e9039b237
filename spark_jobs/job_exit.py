"""How a job ends. When it fails, the error goes to stderr for people, to the log with its fields, and into the job result
for the Airflow task that started the job (`writetime.pipeline.job_result`). When the process that started it has ended,
it ends, too (`writetime.pipeline.parents`). Every job decorates its `main` with `reports_failure`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps

import structlog

from spark_jobs.spark_errors import limit_of
from writetime.errors import WritetimeError
from writetime.pipeline import parents
from writetime.pipeline.job_result import leave_error

log = structlog.get_logger()

Main = Callable[[list[str] | None], int]


def reports_failure(what: str) -> Callable[[Main], Callable[..., int]]:
    """Decorator of a job's `main`. A WritetimeError becomes exit code 1; any other exception is recorded and
    raised again. `what` names the job in the message, for example "publishing"."""

    def decorate(main: Main) -> Callable[..., int]:
        @wraps(main)
        def reporting(arguments: list[str] | None = None) -> int:
            # Under spark-submit, the JVM is the parent. Otherwise PySpark starts a JVM, which ends with this process.
            parents.watch({"JVM": os.getppid()} if "PYSPARK_GATEWAY_PORT" in os.environ else {})
            try:
                return main(arguments)
            except WritetimeError as error:
                return _reported(what, error)
            except Exception as error:
                if (limit := limit_of(error)) is not None:
                    return _reported(what, limit)
                leave_error(f"{what} failed", error)
                raise

        return reporting

    return decorate


def _reported(what: str, error: WritetimeError) -> int:
    log.error(f"{what} failed", **error.as_dict())
    print(f"{what} failed: {error}", file=sys.stderr)  # noqa: T201
    leave_error(f"{what} failed", error)
    return 1
