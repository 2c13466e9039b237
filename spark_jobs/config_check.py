"""What the clients of the jobs refuse of a configuration: part of `writetime config check`.

Strategy: each client is made as the jobs make it, and ended; none is connected. Knows no broker."""

from __future__ import annotations

from collections.abc import Iterator

from spark_jobs.sinks import kafka_clients
from spark_jobs.sinks.schema_registry import Registry
from writetime.config.base import Problem
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError


def problems(config: PipelineConfig) -> Iterator[Problem]:
    """The values that a client refuses, by key."""
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
