"""What fails in Spark, told in one line: used where what has failed must hold up nothing else, or people are to read why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from writetime.errors import PublishError

OURS: Final = "writetime.errors."
_BY_PY4J = "An error occurred while calling"
"""How Py4JJavaError begins, before it comes to Java's own words."""


def why(error: PySparkException | Py4JJavaError) -> str:
    """The line that says most of why: an error of ours that a worker raised, by its class, or else the first that is Spark's or Java's."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip() and not line.startswith(_BY_PY4J)]
    told = [line for line in lines if line.startswith(OURS)]
    return (told or lines or [type(error).__name__])[0]


@contextmanager
def spark_failures(obj: str | None = None) -> Iterator[None]:
    """What fails in Spark while events are published as a PublishError."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PublishError(
            why(error),
            operation="publish events",
            obj=obj,
            retriable=True,
            hint="Events stay in the changes tables and go out with the next run; Spark's log says more.",
        ) from error
