"""A streaming session: batch after batch in one application, with real Spark, Iceberg and Kafka."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs import stream
from spark_jobs.session import spark_session
from tests.sign_off import sign_off
from tests.spark_jobs.pipeline import Pipeline
from tools import verify
from writetime.errors import PublishError
from writetime.pipeline import sessions
from writetime.pipeline.documents import Watermark
from writetime.pipeline.planner import history, plan_maintain, read_schema
from writetime.pipeline.publish_progress import Published, read_published
from writetime.storage import layout

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.thorough, pytest.mark.timeout(900)]


class Running:
    """A session in a thread of the test."""

    def __init__(self, pipeline: Pipeline, stop: threading.Event, ended: Callable[[], str]) -> None:
        self.pipeline, self.stop, self.ended = pipeline, stop, ended

    def state(self) -> sessions.SessionState:
        found = sessions.read_state(self.pipeline.store, self.pipeline.cluster)
        assert found is not None
        return found

    def until(self, holds: Callable[[], object], seconds: float = 300) -> None:
        give_up = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < give_up
            time.sleep(0.2)


@contextmanager
def running(pipeline: Pipeline, seconds: float = 600) -> Iterator[Running]:
    stop = threading.Event()
    source = stream.Source(pipeline.site.config)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(stream.run, pipeline.config, source=source, seconds=seconds, stop=stop)
        try:
            yield Running(pipeline, stop, lambda: future.result(300))
        finally:
            stop.set()


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, kafka_broker: str) -> Pipeline:
    made = Pipeline.create(tmp_path_factory.mktemp("stream"))
    assert made.config.kafka is not None
    kafka = made.config.kafka.model_copy(update={"bootstrap_servers": kafka_broker, "topic_prefix": f"s{uuid.uuid4().hex[:8]}"})
    airflow = made.config.airflow.model_copy(update={"session_poll_seconds": 0.2})
    return replace(made, config=made.config.model_copy(update={"kafka": kafka, "airflow": airflow}))


def test_batches_follow_one_another_and_are_published(pipeline: Pipeline) -> None:
    folders = pipeline.stage()
    later = _put_aside(folders)
    pipeline.ship()
    store, cluster = pipeline.store, pipeline.cluster

    def up_to_date() -> bool:
        past, published = history(store, cluster), read_published(store, cluster)
        waiting = any(layout.is_segment(info.name) for info in store.list(layout.incoming_prefix(cluster)))
        return not waiting and not past.open and published is not None and published.batch == past.base > 0

    with running(pipeline) as session:
        session.until(up_to_date)
        sign_off(store, cluster, datetime.now(UTC))
        session.until(lambda: Watermark.read(store, layout.complete(cluster)))
        before = history(store, cluster).base
        for path, place in later:
            path.rename(place)
        pipeline.ship()
        session.until(up_to_date)
        assert history(store, cluster).base > before
        # Another DAG has its turn: the session leaves its batch alone.
        sessions.request_turn(store, cluster, "cdc_maintain")
        manifest = plan_maintain(store, cluster, now=datetime.now(UTC))
        assert manifest is not None
        sessions.end_turn(store, cluster)
        time.sleep(1)
        assert history(store, cluster).open
        assert sessions.request_stop(store, cluster, "a person") is not None
        assert session.ended() == "stop requested by a person"
    state = session.state()
    assert state.ended == "stop requested by a person"
    assert (state.failed, state.waiting, state.publish_error) == ([], {}, "")
    assert state.batch == state.published == manifest.base
    assert history(store, cluster).open
    assert pipeline.config.kafka is not None
    kafka = pipeline.config.kafka
    report = verify.verify(pipeline.site, pipeline.recording, kafka.bootstrap_servers, kafka.topic_prefix)
    assert report.good, report
    # Up to when they are complete is in a table, in Kafka too.
    complete = Watermark.read(store, layout.complete(cluster))
    assert complete is not None
    assert complete.until is not None
    rows = pipeline.rows("_writetime", "completeness")
    captured = read_schema(store, cluster, manifest.base).captured()
    assert {row["table"] for row in rows} == {table.full_name for table in captured if not table.dropped} != set()
    assert {(row["cluster"], row["changes_until"], row["current_until"], row["kafka_until"], row["batch"]) for row in rows} == {
        (cluster, complete.until, complete.until, complete.until, manifest.base)
    }


def test_a_session_that_makes_no_progress_ends_the_process(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    expired = threading.Event()
    monkeypatch.setattr(stream.os, "_exit", lambda _: expired.set())
    spark = spark_session(pipeline.config, "tests of the watchdog")
    try:
        # The first task waits for workers that start, which is not what is looked at.
        spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: None)
        with stream.Watchdog(spark, lambda: "batch 1: ingest", seconds=3).watching():
            # Tasks that end are progress, although they take longer together than a session may wait.
            spark.sparkContext.parallelize(range(24), 24).foreach(lambda _: time.sleep(0.5))
            assert not expired.is_set()
            assert expired.wait(15)
        expired.clear()
        with stream.Watchdog(spark, lambda: str(time.monotonic()), seconds=1).watching():
            assert not expired.wait(3)
    finally:
        spark.stop()


def test_publishing_that_fails_is_reported_and_tried_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[dict[str, object]] = []
    outcomes = iter([PublishError("no answer", operation="publish events", obj="broker", retriable=True), RuntimeError("broken")])

    def run(*_: object, **__: object) -> Published:
        if (error := next(outcomes, None)) is not None:
            raise error
        return Published(batch=7, events=3)

    monkeypatch.setattr(stream.publish, "run", run)
    monkeypatch.setattr(stream.Publishing, "_is_due", lambda _: len(noted) < 3)
    spark = spark_session(pipeline.config, "tests of publishing")
    try:
        publishing = stream.Publishing(pipeline.config, pipeline.store, spark, lambda **changes: noted.append(changes))
        with publishing.running():
            give_up = time.monotonic() + 30
            while len(noted) < 3 and time.monotonic() < give_up:
                publishing.wake()
                time.sleep(0.1)
    finally:
        spark.stop()
    errors = [each["publish_error"] for each in noted]
    assert errors == ["publish events: broker: no answer (a retry may help)", "RuntimeError: broken", ""]
    assert noted[-1]["published"] == 7


def _put_aside(folders: list[Path]) -> list[tuple[Path, Path]]:
    """Move each node's last segment away; where it is, and where it was."""
    moved = []
    for folder in folders:
        last = max(folder.glob("*.log"), key=lambda path: path.name)
        for path in (last, last.with_name(f"{last.stem}_cdc.idx")):
            aside = folder.parent / path.name
            path.rename(aside)
            moved.append((aside, path))
    return moved
