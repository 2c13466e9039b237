"""Whether the job that seals a batch publishes it, too. That events go out once, whoever sends them: test_publish
and test_kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_jobs import publish
from tests.spark_jobs.pipeline import Pipeline
from writetime.errors import PublishError
from writetime.pipeline.publish_progress import Published, write_published


class Runs(list[Any]):
    """The sessions of the runs that `publish_at_once` starts."""

    def run(self, config: object, *, session: Any) -> Published:
        self.append(session)
        return Published(batch=8, events=1)


@pytest.mark.parametrize(
    ("published", "number", "publishes"),
    [
        (None, 1, True),
        (None, 2, False),
        (Published(batch=7, events=3), 8, True),
        (Published(batch=6, events=3), 8, False),
        (Published(batch=7, events=3, waiting={"shop.orders": 5}), 8, False),
        (Published(batch=8, events=3), 8, True),
    ],
)
def test_a_batch_is_published_at_once_unless_there_is_a_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: Published | None, number: int, publishes: bool
) -> None:
    pipeline, runs, spark = Pipeline.create(tmp_path), Runs(), object()
    monkeypatch.setattr(publish, "run", runs.run)
    if published is not None:
        write_published(pipeline.store, pipeline.cluster, published)
    publish.publish_at_once(pipeline.config, number, spark)  # type: ignore[arg-type]
    assert runs == ([spark] if publishes else [])


@pytest.mark.parametrize("error", [PublishError("no broker", operation="publish"), RuntimeError("a defect")])
def test_a_failure_does_not_fail_the_sealed_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fails(*_: object, **__: object) -> Published:
        raise error

    monkeypatch.setattr(publish, "run", fails)
    publish.publish_at_once(Pipeline.create(tmp_path).config, 1, object())  # type: ignore[arg-type]
    assert "publishing failed, cdc_publish tries again" in capsys.readouterr().out


def test_without_a_sink_nothing_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(publish, "run", runs.run)
    config = Pipeline.create(tmp_path).config.model_copy(update={"kafka": None, "files": None})
    publish.publish_at_once(config, 1, object())  # type: ignore[arg-type]
    assert not runs
