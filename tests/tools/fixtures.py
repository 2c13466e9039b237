"""Real services for tests, one of each per session, started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.services.kafka import Kafka


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a Kafka broker on loopback. Topics are the test's own: use a prefix that nobody else has."""
    with Kafka(tmp_path_factory.mktemp("kafka"), port=0) as kafka:
        yield kafka.bootstrap
