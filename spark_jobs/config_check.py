"""What the clients of the jobs refuse of a configuration: part of `writetime config check`.

Strategy: each client is made as the jobs make it, and ended; none is connected. Knows no broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_jobs.sinks import kafka_clients
from spark_jobs.sinks.schema_registry import Registry
from writetime.config.base import Problem
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import CatalogConfig
from writetime.errors import ConfigError

_IO: Final = "catalog.options.io-impl"
_S3: Final = "org.apache.iceberg.aws.s3.S3FileIO"
_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopFileIO"
_OF_ICEBERG: Final = frozenset(
    {
        *(_S3, _HADOOP, "org.apache.iceberg.gcp.gcs.GCSFileIO", "org.apache.iceberg.io.ResolvingFileIO"),
        *("org.apache.iceberg.azure.adlsv2.ADLSFileIO", "org.apache.iceberg.aliyun.oss.OSSFileIO"),
        *("org.apache.iceberg.dell.ecs.EcsFileIO", "org.apache.iceberg.inmemory.InMemoryFileIO"),
    }
)
"""Iceberg's classes for reading and writing files."""


def problems(config: PipelineConfig) -> Iterator[Problem]:
    """The values that a client refuses, by key."""
    if config.catalog is not None:
        yield from _of_the_catalog(config, config.catalog)
    if config.cluster.cql is not None and config.cluster.cql.tls is not None:
        from spark_jobs.cassandra_reader import tls_context

        try:
            tls_context(config.cluster.cql)
        except ConfigError as error:
            yield Problem("cluster.cql.tls", error.message)
    if config.kafka is None:
        return
    yield from kafka_clients.problems(config.kafka)
    if config.kafka.schema_registry_url is not None:
        try:
            with Registry(config.kafka):
                pass
        except ConfigError as error:
            yield Problem(error.obj or "kafka.schema.registry.url", f"{error.message}. {error.hint or ''}".rstrip(". "))


def _of_the_catalog(config: PipelineConfig, catalog: CatalogConfig) -> Iterator[Problem]:
    """How Iceberg would not reach the tables' files, as far as that can be seen without Java."""
    chosen = catalog.options.get("io-impl")
    if chosen is None:
        of_hadoop = {**config.spark.submit, **config.spark.conf}.get("spark.hadoop.fs.s3.impl")
        if catalog.type != "rest" and catalog.warehouse.startswith("s3://") and of_hadoop is None:
            yield Problem(
                _IO,
                f"Iceberg would ask Hadoop for s3://, which knows it on few clusters: set it to {_S3}, or to {_HADOOP} if Hadoop knows it",
            )
    elif chosen.startswith("org.apache.iceberg.") and chosen not in _OF_ICEBERG:
        yield Problem(_IO, f"Iceberg has no {chosen}; it has {', '.join(sorted(_OF_ICEBERG))}")
