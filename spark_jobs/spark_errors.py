"""Spark failures as one line of text, for errors that must not stop other work, and for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from writetime.errors import PublishError

OURS: Final = "writetime.errors."
_BY_PY4J = "An error occurred while calling"
"""The first line of a Py4JJavaError, which comes before Java's own message."""


def why(error: Exception) -> str:
    """The most specific line of the error: a writetime error raised in a worker, or else the first line of
    Spark's or Java's message."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip() and not line.startswith(_BY_PY4J)]
    ours = [line for line in lines if line.startswith(OURS)]
    return (ours or lines or [type(error).__name__])[0]


@contextmanager
def spark_failures(obj: str | None = None) -> Iterator[None]:
    """Convert Spark failures during publishing to PublishError."""
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
