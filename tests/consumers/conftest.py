"""What the consumers read: the recorded ring, taken in by one batch and published in each format."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import publish
from tests.spark_jobs.pipeline import Pipeline
from tools.errors import MissingPrerequisite
from tools.services.postgres import Postgres, need
from writetime.config.kafka import KafkaConfig
from writetime.config.pipeline import PipelineConfig

Publish = Callable[..., KafkaConfig]
"""Publishes to topics of their own; keywords are keys of `kafka`."""


@pytest.fixture(scope="package")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A pipeline whose tables hold the recorded ring's answer."""
    pipeline = Pipeline.create(tmp_path_factory.mktemp("consumers"))
    pipeline.stage()
    pipeline.ship()
    pipeline.batch()
    return pipeline


@pytest.fixture(scope="package")
def published(warehouse: Pipeline, kafka_broker: str) -> Publish:
    def to_topics(**options: Any) -> KafkaConfig:
        prefix = f"c{uuid.uuid4().hex[:8]}"
        kafka = KafkaConfig.model_validate({"bootstrap.servers": kafka_broker, "topic.prefix": prefix, **options})
        config: PipelineConfig = warehouse.config.model_copy(update={"kafka": kafka})
        done = publish.run(config, everything=True)
        assert (done.waiting, done.events > 1000) == ({}, True)
        return kafka

    return to_topics


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    try:
        need()
    except MissingPrerequisite as missing:
        pytest.skip(str(missing))
    with Postgres() as server:
        yield server


@pytest.fixture
def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "consumers.md").read_text(encoding="utf-8")


def block(page: str, language: str, word: str = "") -> str:
    """The one block of the page in that language which has the word."""
    (found,) = (each for each in re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if word in each)
    return str(found)
