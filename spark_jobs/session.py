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

from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError


def spark_session(config: PipelineConfig, name: str) -> SparkSession:
    """A session named `name` whose catalog `config.catalog.name` is the pipeline's Iceberg catalog."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.openlineage.appName", lineage_name(name))
    for key, value in options(config).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def lineage_name(name: str) -> str:
    """What a catalog of lineage calls the job: the same for all its batches, where Spark's own pages tell them apart."""
    return re.sub(r" batch \d+$", "", name).replace(" ", "_")


def options(config: PipelineConfig) -> dict[str, str]:
    """What Spark is told of the pipeline. ConfigError if nothing says where its tables live."""
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
        **_file_io(prefix, catalog.warehouse),
        # A table made anew under an old name must not lie among the files of the one that was moved aside.
        f"{prefix}.unique-table-location": "true",
        **{f"{prefix}.{name}": value for name, value in catalog.options.items()},
        **{f"{prefix}.{name}": value.get_secret_value() for name, value in catalog.secrets.items()},
        # Spark's own pattern, and what Iceberg calls a client's secret: neither page nor event log shows them.
        "spark.redaction.regex": _redacted(catalog.secrets),
        # CQL tells "Name" from name.
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(config.spark.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        # A mutation may be as large as half a segment: what travels to a worker at once is bounded by rows and by bytes.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.python.daemon.module": "spark_jobs.daemon"} if _is_local(config) else {}),
        # What is kept between stages is read a moment later, and is mostly digests and values: packing it costs more than it saves.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # The job's own lines are what a person looks for in the task's log; Spark's are a thousand a second.
        "spark.log.level": "WARN",
        **config.spark.conf,
    }


def _file_io(prefix: str, warehouse: str) -> dict[str, str]:
    """By what Iceberg reads and writes files, where the warehouse is a bucket of Google's: left alone, it asks Hadoop, which knows no `gs:`
    unless a connector is installed. A server that names its warehouse otherwise (`rest`) says so itself, or `catalog.options` does."""
    return {f"{prefix}.io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"} if warehouse.startswith("gs://") else {}


def _redacted(secrets: Iterable[str]) -> str:
    named = "".join(f"|{re.escape(name)}$" for name in secrets)
    return rf"(?i)secret|password|token|credential|access[.]?key{named}"


def _is_local(config: PipelineConfig) -> bool:
    """Whether workers run on this machine, where what the driver imports can be imported before any task has told how. On a cluster whose
    machines have writetime installed, the daemon may be set by hand (`spark.conf`)."""
    master = config.spark.conf.get("spark.master")
    if master is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started the JVM, and knows.
        SparkContext._ensure_initialized()
        master = SparkConf().get("spark.master")
    return master is None or master.startswith("local")
