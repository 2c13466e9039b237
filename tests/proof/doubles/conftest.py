"""One broker's clients for the cases of both: the double, and a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from proof.doubles import broker as doubles
from spark_jobs.sinks.kafka import _meant
from writetime.config.kafka import KafkaConfig


def outcome(call: Callable[..., Any], *args: Any, **named: Any) -> str:
    """`ok`, or the error: `!` if it is fatal, `~` if retriable, `-` if the transaction must be aborted."""
    try:
        call(*args, **named)
    except (KafkaException, SystemError) as error:
        return spelled(_meant(error).args[0])
    return "ok"


def spelled(error: KafkaError | None) -> str:
    if error is None:
        return "ok"
    return error.name() + "!" * error.fatal() + "~" * error.retriable() + "-" * error.txn_requires_abort()


@dataclass
class Clients:
    """Clients of one broker. `double`: None if the broker is real. `clock`: the double's seconds."""

    bootstrap: str
    double: doubles.Broker | None = None
    clock: list[float] = field(default_factory=lambda: [1_777_900_000.0])
    prefix: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    kept: list[Any] = field(default_factory=list)

    def _client(self, name: str, **options: Any) -> Any:
        of = confluent_kafka if name != "AdminClient" else confluent_kafka.admin
        make = getattr(of, name) if self.double is None else partial(getattr(doubles, name), broker=self.double)
        client = make({"bootstrap.servers": self.bootstrap, "log_level": 0, **options})
        self.kept.append(client)  # Whose end would be the end of what it is asked for.
        return client

    def name(self) -> str:
        return f"{self.prefix}.{uuid.uuid4().hex[:8]}"

    def admin(self) -> AdminClient:
        return self._client("AdminClient")

    def topic(self, partitions: int = 1, **options: str) -> str:
        name = self.name()
        self.create(name, partitions, **{option.replace("_", "."): value for option, value in options.items()})
        return name

    def create(self, name: str, partitions: int, **options: str) -> None:
        self.admin().create_topics([NewTopic(name, partitions, 1, config=options)])[name].result(30)

    def producer(self, name: str | None = None, **options: Any) -> Any:
        """A producer of that transactional id, which has begun; a plain one without. It sends nothing by itself before it is
        flushed."""
        own = {"transactional.id": name} if name else {}
        linger = min(10_000, options.get("transaction.timeout.ms", 60_000) // 2)
        made = self._client("Producer", **{"linger.ms": linger, **own, **options})
        made.list_topics(timeout=30)
        if name:
            made.init_transactions(30)
        return made

    def consumer(self, isolation: str = "read_committed", **options: Any) -> Any:
        own = {"group.id": uuid.uuid4().hex, "isolation.level": isolation, "enable.partition.eof": True, "enable.auto.commit": False}
        return self._client("Consumer", **own, **{"fetch.wait.max.ms": 10, **options})

    def read(self, topic: str, partition: int = 0, *, is_open: bool = False, start: int = 0) -> list[bytes]:
        """Values of committed records. A real broker answers a commit before it is to be seen."""
        for _ in range(100):
            values, end, high = self._read(topic, partition, "read_committed", start)
            if is_open or end == high:
                break
        assert (end < high) == is_open
        return values

    def read_all(self, topic: str, partition: int = 0) -> list[bytes]:
        """Values of all records."""
        return self._read(topic, partition, "read_uncommitted", 0)[0]

    def _read(self, topic: str, partition: int, isolation: str, start: int) -> tuple[list[bytes], int, int]:
        """Values, the end that was reached, and that of the partition."""
        consumer = self.consumer(isolation)
        consumer.assign([TopicPartition(topic, partition, start)])
        values = []
        try:
            while (message := consumer.poll(30)) is not None:
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return values, message.offset(), consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)[1]
                values.append(message.value())
        finally:
            consumer.close()
        raise AssertionError("the broker has gone silent")

    def config(self, **options: Any) -> KafkaConfig:
        given = {"bootstrap.servers": self.bootstrap, "topic.prefix": f"p{uuid.uuid4().hex[:8]}", "partitions": 2}
        return KafkaConfig.model_validate(given | options)

    def installed(self) -> AbstractContextManager[None]:
        """The product has these clients."""
        return nullcontext() if self.double is None else doubles.installed(self.double)


@pytest.fixture(params=["double", pytest.param("real", marks=[pytest.mark.kafka, pytest.mark.thorough])])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    if request.param == "double":
        clock = [1_777_900_000.0]
        yield Clients("double:1", doubles.Broker(lambda: clock[0]), clock)
    else:
        yield Clients(request.getfixturevalue("kafka_broker"))
