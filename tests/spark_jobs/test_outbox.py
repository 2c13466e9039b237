"""What the publish job does about tables that cannot be sent, without Spark and Kafka."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from spark_jobs.publish import Outbox
from writetime.config import KafkaConfig, PipelineConfig
from writetime.errors import PublishError
from writetime.store.local import LocalStore


def outbox(folder: Path, upto: int) -> Outbox:
    config = cast(PipelineConfig, SimpleNamespace(cluster=SimpleNamespace(name="c"), catalog=None))
    kafka = KafkaConfig.model_validate({"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"})
    return Outbox(config, kafka, LocalStore(folder), cast(Any, None), upto)


def test_what_fails_in_a_task_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def collect() -> None:
        raise PySparkException(
            "Job aborted\n  Traceback\n  writetime.errors.PublishError: publish events: t.publisher.0: no broker\n at java"
        )

    records = SimpleNamespace(rdd=SimpleNamespace(mapPartitions=lambda _: SimpleNamespace(collect=collect)))
    monkeypatch.setattr(Outbox, "_records", lambda *_: (records, {}))
    with pytest.raises(PublishError, match="no broker") as raised:
        outbox(tmp_path, 1).drain(everything=False)
    assert raised.value.retriable
    assert "java" not in str(raised.value)
