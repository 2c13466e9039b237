"""The Spark session of every job: the configured Iceberg catalog, and Python workers with the driver's
interpreter.

Settings of the deployment (master, jars, memory) come from spark-submit; settings of the pipeline are set
here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.daemon import ENVIRONMENT
from writetime.config.base import LOGIN_IN_URL, NAMES_OF_SECRETS
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import CatalogConfig
from writetime.errors import ConfigError
from writetime.storage.s3_endpoint import named_endpoint

_REDACTION = "spark.redaction.regex"


def spark_session(config: PipelineConfig, name: str) -> SparkSession:
    """A session named `name` whose catalog `config.catalog.name` is the pipeline's Iceberg catalog."""
    if (python := config.spark.conf.get("spark.pyspark.python")) is not None:
        # spark-submit sees to it that PySpark knows it, if it is among its own options.
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.openlineage.appName", lineage_name(name))
    for key, value in options(config).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def second_session(spark: SparkSession) -> SparkSession:
    """Another session of the same application, with settings and catalogs of its own: what a thread sets
    while it commits must not reach the commits of another."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def lineage_name(name: str) -> str:
    """The job's name in a lineage catalog: the same for all its batches, unlike the name on Spark's own
    pages."""
    return re.sub(r" batch \d+$", "", name).replace(" ", "_")


def options(config: PipelineConfig) -> dict[str, str]:
    """Spark's options for the pipeline. ConfigError if no catalog is configured."""
    catalog = config.catalog
    if catalog is None:
        raise ConfigError("`catalog` is missing", operation="start Spark", hint="Say in the pipeline's YAML where the tables live.")
    prefix = f"spark.sql.catalog.{catalog.name}"
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": catalog.type,
        f"{prefix}.uri": catalog.uri,
        f"{prefix}.warehouse": catalog.warehouse,
        **({f"{prefix}.jdbc.schema-version": "V1"} if catalog.type == "jdbc" else {}),
        **_file_io(prefix, catalog),
        # A table that is created again must not share a folder with the one that was renamed.
        f"{prefix}.unique-table-location": "true",
        **{f"{prefix}.{name}": value for name, value in catalog.options.items()},
        **{f"{prefix}.{name}": value.get_secret_value() for name, value in catalog.secrets.items()},
        # What `writetime config show` masks, and Iceberg's client secrets: redacted on pages and in event logs.
        _REDACTION: _redacted(config, catalog.secrets),
        # CQL distinguishes "Name" from name.
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(config.spark.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        # A mutation may be as large as half a segment, so Arrow batches are bounded by rows and by bytes.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
        **{f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()},
        "spark.ui.showConsoleProgress": "false",
        **({"spark.python.daemon.module": "spark_jobs.daemon"} if _is_local(config) else {}),
        # Data between stages is read at once and compresses badly: compression would cost more than it saves.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # Spark keeps the code of 100 queries, which the commits of one batch use up: a session would compile all of it
        # again in each batch.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # Operators look for the job's own lines in the task's log; Spark would add a thousand per second.
        "spark.log.level": "WARN",
        **{name: value for name, value in config.spark.conf.items() if name != _REDACTION},
    }


def _file_io(prefix: str, catalog: CatalogConfig) -> dict[str, str]:
    """Iceberg's file access for a warehouse in a bucket. For Google Cloud Storage it is chosen here: by default Iceberg
    uses Hadoop, which supports `gs:` only with a connector. For S3 it is told of the service that the environment or the
    library's files name, which the tasks write to as well. With a catalog server (`rest`), the server or
    `catalog.options` decides."""
    if catalog.warehouse.startswith("gs://"):
        return {f"{prefix}.io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}
    if catalog.warehouse.startswith("s3://") and catalog.type != "rest" and (endpoint := named_endpoint()):
        # Other services have no host name per bucket.
        return {f"{prefix}.s3.endpoint": endpoint, f"{prefix}.s3.path-style-access": "true"}
    return {}


def _redacted(config: PipelineConfig, secrets: Iterable[str]) -> str:
    """What Spark shows of no option, by name or by value: an option of `spark.conf` adds to it."""
    named = "".join(f"|{re.escape(name)}$" for name in secrets)
    more = f"|(?:{config.spark.conf[_REDACTION]})" if config.spark.conf.get(_REDACTION) else ""
    return f"(?i){NAMES_OF_SECRETS}|{LOGIN_IN_URL}{named}{more}"


def _is_local(config: PipelineConfig) -> bool:
    """Whether workers run on this machine, where they can import what the driver imports. On a cluster whose
    machines have writetime installed, the daemon may be set in `spark.conf`."""
    master = config.spark.conf.get("spark.master")
    if master is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started the JVM with its log level.
        SparkContext._ensure_initialized()
        master = SparkConf().get("spark.master")
    return master is None or master.startswith("local")
