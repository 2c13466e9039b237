"""The tests of publishing (tests/spark_jobs/test_kafka.py), which run on a real broker, once more on the double."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from unittest import mock

import pytest

from proof.doubles import broker as doubles
from spark_jobs.sinks.kafka import ensure_topics
from tests.spark_jobs import test_kafka as of_a_broker
from writetime.config.kafka import KafkaConfig

OUTSIDE = (
    "test_no_broker_is_an_error_that_says_so",  # addresses
    "test_every_option_of_the_producer_is_passed_on",  # the names of options
    "test_records_say_in_headers_whose_they_are",  # groups
)
"""What is about something that the double does not have."""

globals().update({name: value for name, value in vars(of_a_broker).items() if name.startswith("test_") and name not in OUTSIDE})


@pytest.fixture
def kafka() -> Iterator[KafkaConfig]:
    broker = doubles.Broker(time.time)
    clients = {name: partial(getattr(doubles, name), broker=broker) for name in ("AdminClient", "Consumer", "Producer")}
    with doubles.installed(broker), mock.patch.multiple(of_a_broker, **clients):
        yield KafkaConfig.model_validate({"bootstrap.servers": "double:1", "topic.prefix": "p", "partitions": 2})


@pytest.fixture
def topic(kafka: KafkaConfig) -> str:
    ensure_topics(kafka, ["p.shop.orders"])
    return "p.shop.orders"
