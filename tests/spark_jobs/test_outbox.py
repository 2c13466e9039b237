"""What the publish job does about tables that cannot be sent, without Spark and Kafka."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from spark_jobs import publish
from spark_jobs.publish import Outbox
from writetime import names
from writetime.batch.documents import Accounting, Sealed
from writetime.batch.publish import Published, read_published, write_published
from writetime.config import KafkaConfig, PipelineConfig, QuarantineConfig
from writetime.errors import PublishError
from writetime.schema.learn import SchemaLearner
from writetime.store.local import LocalStore


def outbox(folder: Path, upto: int) -> Outbox:
    config = cast(PipelineConfig, SimpleNamespace(cluster=SimpleNamespace(name="c"), catalog=None, quarantine=QuarantineConfig()))
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


@pytest.mark.parametrize("everything", [False, True])
def test_a_table_whose_changes_are_not_found_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool) -> None:
    monkeypatch.setattr(publish, "read_schema", lambda *_: SchemaLearner())
    monkeypatch.setattr(publish, "read_manifest", lambda *_: SimpleNamespace(nodes={}))
    monkeypatch.setattr(publish, "ensure_topics", lambda *_: {})
    box = outbox(tmp_path, 3)
    write_published(box.store, "c", Published(batch=2, events=1, waiting={"shop.old": 1, "t": 1, "t.__quarantine": 1}))
    accounting = [Accounting(table="shop.sold@aaaaaaaa", events=2), Accounting(table="shop.quiet", updates_in=1, not_ours=1)]
    sealed = Sealed(number=3, kind="ingest", sealed_at=datetime(2026, 5, 4, tzinfo=UTC), segments=[], accounting=accounting, state={})
    box.store.put(names.batch_object("c", 3, "sealed"), sealed.to_bytes())
    sent = (0, 0) if everything else (1, 2)
    expected = Published(batch=3, events=0, waiting=dict(zip(("shop.old", "shop.sold"), sent, strict=True)))
    drained = box.drain(everything=everything)
    assert drained == read_published(box.store, "c")
    assert drained.model_copy(update={"reasons": {}}) == expected
    assert [(name, "its changes table is not there" in reason) for name, reason in drained.reasons.items()] == [
        ("shop.old", True),
        ("shop.sold", True),
    ]
