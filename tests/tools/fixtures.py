"""Real services for tests, one of each per session, started on first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import gcs_server, s3_server
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


@pytest.fixture(scope="session")
def gcs_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a GCS test server. Buckets are the test's own."""
    binary = gcs_server.program()
    if binary is None:
        pytest.skip("no GCS test server: run make test-gcs")
    with gcs_server.running(binary, tmp_path_factory.mktemp("gcs"), xml=True) as url:
        yield url


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.Server]:
    """An S3 test server. Buckets are the test's own."""
    binary = s3_server.program()
    if binary is None:
        pytest.skip("no S3 test server: run make test-s3")
    with s3_server.running(binary, tmp_path_factory.mktemp("s3")) as server:
        yield server
