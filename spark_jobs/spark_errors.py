"""Spark failures as one line of text, for errors that must not stop other work, and for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from writetime.errors import RETRY, ConfigError, PublishError, SparkLimit, WritetimeError

OURS: Final = "writetime.errors."


class _Limit(NamedTuple):
    says: re.Pattern[str]
    message: str
    retriable: bool
    hint: str


_LIMITS: Final = (
    _Limit(
        re.compile(r"serialized results of .*is bigger than .*maxResultSize", re.DOTALL),
        "the results of a stage are larger than the driver takes",
        False,
        "Raise spark.driver.maxResultSize, and with it spark.driver.memory, in `spark.submit`.",
    ),
    _Limit(
        re.compile(r"exceeds max allowed: spark\.rpc\.message\.maxSize"),
        "a task is larger than a message to an executor may be",
        False,
        "Raise spark.rpc.message.maxSize in `spark.submit`.",
    ),
    _Limit(
        re.compile(r"KRYO_BUFFER_OVERFLOW|Kryo serialization failed: Buffer overflow"),
        "a value is larger than the buffer it is serialized in",
        False,
        "Raise spark.kryoserializer.buffer.max in `spark.submit`.",
    ),
    _Limit(
        re.compile(
            r"exceeding (?:physical |virtual )?memory limits|OOMKilled|possible container OOM|exit (?:code|status):? 137",
            re.I,
        ),
        "an executor was killed because it used more memory than it was given",
        True,
        "Raise spark.executor.memoryOverhead, the memory of Python workers, in `spark.submit`, or give an executor fewer cores.",
    ),
    _Limit(
        re.compile(r"java\.lang\.OutOfMemoryError|SparkOutOfMemoryError|UNABLE_TO_ACQUIRE_MEMORY"),
        "the memory of a Java process of Spark is exhausted",
        True,
        "Raise spark.executor.memory, or spark.driver.memory if it is the driver's, or set a smaller `batch_seconds`.",
    ),
    _Limit(
        re.compile(r"SQLITE_BUSY|database is locked"),
        "the catalog's SQLite database is locked by another process",
        True,
        "Run it again. If several jobs write at once, use a catalog in PostgreSQL (docs/warehouse.md).",
    ),
    _Limit(
        re.compile(r"No space left on device"),
        "the disk of a machine of Spark is full",
        True,
        "Free space where spark.local.dir is, or name a larger disk there: sorted and shuffled data are kept on it.",
    ),
)
"""What Spark, YARN and Kubernetes say when a limit is met. First match wins."""
_OF_THE_CATALOG: Final = (
    _Limit(
        re.compile(
            r"No FileSystem for scheme|FileSystem not found|Cannot initialize FileIO|NoClassDefFoundError: (?:software/amazon|com/google)"
            r"|ClassNotFoundException: (?:Class )?(?:software\.amazon|com\.google|org\.apache\.hadoop\.fs|org\.apache\.iceberg)"
        ),
        "catalog.options.io-impl: Iceberg cannot read and write where the tables lie",
        False,
        "For s3:// set `io-impl: org.apache.iceberg.aws.s3.S3FileIO` in `catalog.options`. The jar of its client (iceberg-aws-bundle, "
        "iceberg-gcp-bundle) belongs to `spark.jars` in `spark.submit` (docs/warehouse.md).",
    ),
    _Limit(
        re.compile(r"No suitable driver"),
        "catalog.uri: Java has no driver for this database",
        False,
        "Add the driver's jar to `spark.jars` in `spark.submit` (docs/warehouse.md).",
    ),
    _Limit(
        re.compile(
            r"UncheckedSQLException: Failed to connect|RuntimeMetaException: Failed to connect|occurred while processing GET request"
        ),
        "catalog.uri: the catalog does not answer",
        True,
        "Check `catalog.uri`, its user and its password, and that the server runs.",
    ),
    _Limit(
        re.compile(
            r"both type and catalog-impl are set"
            r"|(?:NumberFormat|IllegalArgument)Exception(?:(?!Caused by)[\s\S])*\bat org\.apache\.iceberg\.spark\.SparkCatalog\.init"
        ),
        "catalog.options: Iceberg refuses a value",
        False,
        "Correct it; the properties are those of Iceberg's catalogs and file access.",
    ),
)
"""The same of the pipeline's catalog, also by the causes that Java names: no table is to blame. `message` begins with the key."""
_BY_PY4J = "An error occurred while calling"
"""The first line of a Py4JJavaError, which comes before Java's own message."""


def why(error: Exception) -> str:
    """The most specific line of the error: a writetime error raised in a worker, or else the first line of
    Spark's or Java's message."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip() and not line.startswith(_BY_PY4J)]
    ours = [line for line in lines if line.startswith(OURS)]
    return (ours or lines or [type(error).__name__])[0]


def limit_of(error: BaseException) -> WritetimeError | None:
    """The limit that Spark came to, or what is wrong with the catalog, with what to do about it; None for any other
    failure."""
    if not isinstance(error, PySparkException | Py4JJavaError):
        return None
    text = str(error)
    for limit in _LIMITS:
        if limit.says.search(text):
            return SparkLimit(f"{limit.message}: {why(error)}", operation="run Spark", retriable=limit.retriable, hint=limit.hint)
    # What PySpark has converted says only its first line.
    trace = f"{text}\n{getattr(error, '_stackTrace', None) or ''}"
    for limit in _OF_THE_CATALOG:
        if limit.says.search(trace):
            key, _, message = limit.message.partition(": ")
            text = f"{message}: {why(error)}"
            return ConfigError(text, operation="open the catalog", obj=key, retriable=limit.retriable, hint=limit.hint)
    return None


@contextmanager
def spark_failures(obj: str | None = None) -> Iterator[None]:
    """Convert Spark failures during publishing to PublishError."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        limit, text = limit_of(error), why(error)
        if limit is None and text.startswith(OURS):
            # It says itself what to do, and whether a retry may help.
            said = text.partition(": ")[2].removeprefix("publish events: ").replace(RETRY, "")
            raise PublishError(said, operation="publish events", obj=obj, retriable=RETRY in text) from error
        raise PublishError(
            text,
            operation="publish events",
            obj=obj,
            retriable=limit is None or limit.retriable,
            hint="Events stay in the changes tables and go out with the next run; Spark's log says more." if limit is None else limit.hint,
        ) from error
