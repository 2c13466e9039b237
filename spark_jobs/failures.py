"""What fails in Spark, as errors of ours: used where what has failed must hold up nothing else, or be told to people in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from writetime.errors import PublishError

_BY_PY4J = "An error occurred while calling"
"""How Py4JJavaError begins, before it comes to Java's own words."""


@contextmanager
def spark_failures(obj: str | None = None) -> Iterator[None]:
    """What fails in Spark while events are published as a PublishError, with the line that says most of why."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip() and not line.startswith(_BY_PY4J)]
        told = [line for line in lines if line.startswith("writetime.errors.")]
        raise PublishError(
            (told or lines or [type(error).__name__])[0],
            operation="publish events",
            obj=obj,
            retriable=True,
            hint="Events stay in the changes tables and go out with the next run; Spark's log says more.",
        ) from error
