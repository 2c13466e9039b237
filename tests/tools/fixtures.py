"""Real services for tests, one of each per session, started on first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.services.kafka import Kafka
from tools.services.registry import Registry


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a Kafka broker on loopback. Use topics with a prefix of the test's own."""
    with Kafka(tmp_path_factory.mktemp("kafka"), port=0) as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a schema registry's Confluent API on loopback. Subjects are the test's own."""
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry.url
