"""What happens around batches while they run: Airflow's API server and scheduler are restarted, and the pipeline's YAML
breaks. In the end all events are there once, and a backfill of several runs changes nothing.

One story in one test, because starting Airflow for each would take minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.airflow.test_running import Story, Visitor, started
from tools import demo
from tools.errors import ServiceError
from writetime.pipeline.planner import history
from writetime.storage import layout

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(3600), pytest.mark.thorough]

PATIENCE = 1200.0


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with started(tmp_path_factory.mktemp("site")) as running:
        yield running


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    give_up = time.monotonic() + seconds
    while True:
        # A restarted API server does not answer for some seconds.
        try:
            if holds():
                return
        except ServiceError:
            pass
        assert time.monotonic() < give_up, what
        time.sleep(0.5)


def test_batches_through_restarts_a_broken_yaml_and_a_backfill(story: Story) -> None:
    hours = stage(story)
    restarted_in_a_batch(story, 0, "api-server")
    restarted_in_a_batch(story, 1, "scheduler")
    broken_in_a_batch(story, 2)
    demo.wait_until_published(story.store, story.cluster)
    report = story.verify()
    assert report.good, report.problems
    three_hours_at_once(story, hours)
    assert (story.verify().good, story.verify().events) == (True, report.events)


def stage(story: Story) -> list[datetime]:
    """The nodes' segments, those of each node an hour after those of the one before; the hours."""
    folders = story.recording.stage(story.site.nodes)
    now = datetime.now(UTC).replace(minute=10, second=0, microsecond=0)
    hours = [now - timedelta(hours=ago) for ago in range(len(story.recording.nodes), 0, -1)]
    for node, hour in zip(story.recording.nodes, hours, strict=True):
        for file in folders[node.host_id].iterdir():
            os.utime(file, (hour.timestamp(), hour.timestamp()))
    return hours


def begin(story: Story, place: int) -> tuple[str, int]:
    """Ship a node's segments and start their batch: the run's id and the batch's number, when Spark is in the middle of
    it."""
    demo.ship(story.site, story.recording, stage=False, nodes=story.recording.nodes[place : place + 1])
    before = history(story.store, story.cluster).sealed
    number = 1 if before is None else before.number + 1
    run = story.api.trigger("cdc_ingest")
    until(lambda: story.store.head(layout.batch_object(story.cluster, number, "schema")), "the batch has learned its schema")
    assert not is_sealed(story, number), "the batch is over before anything could happen to it"
    return run, number


def is_sealed(story: Story, number: int) -> bool:
    return story.store.head(layout.batch_object(story.cluster, number, "sealed")) is not None


def restarted_in_a_batch(story: Story, place: int, service: str) -> None:
    run, number = begin(story, place)
    story.airflow.restart(service, seconds=600)
    until(lambda: story.api.run("cdc_ingest", run)["state"] in ("success", "failed"), f"the run ends after a restart of {service}")
    states = {task: (found["state"], found["try_number"]) for task, found in story.tasks("cdc_ingest", run).items()}
    assert story.api.run("cdc_ingest", run)["state"] == "success", states
    assert (is_sealed(story, number), story.sealed().number) == (True, number), "one batch, however often its task was tried"
    assert Visitor(story.airflow, "admin").get(f"batches/{number}")[0] == 200


def broken_in_a_batch(story: Story, place: int) -> None:
    """The batch itself goes on with the configuration that it has pinned. Airflow puts off what follows for three minutes; if
    that is not enough, the run can be cleared."""
    run, number = begin(story, place)
    good = story.site.config.read_text(encoding="utf-8")
    story.site.config.write_text(f"{good}nodes: {{}}\n", encoding="utf-8")
    admin = Visitor(story.airflow, "admin")
    status, shown = admin.get("")
    assert (status, "`nodes`: is not a known key" in shown) == (500, True)
    until(lambda: any("`nodes`: is not a known key" in error["stack_trace"] for error in story.api.import_errors()), "an import error")
    until(lambda: is_sealed(story, number), "the batch is sealed nevertheless")

    story.site.config.write_text(good, encoding="utf-8")
    assert admin.get("")[0] == 200
    until(lambda: not story.api.import_errors(), "the import error is gone")
    until(lambda: story.api.run("cdc_ingest", run)["state"] in ("success", "failed"), "the run ends")
    if story.api.run("cdc_ingest", run)["state"] == "failed":
        story.api.clear("cdc_ingest", run, only_failed=True)
        assert story.api.wait("cdc_ingest", run, seconds=PATIENCE) == "success", story.tasks("cdc_ingest", run)
    assert story.sealed().number == number
    assert [info.name for info in story.store.list(layout.incoming_prefix(story.cluster))] == [], "all segments are archived"


def three_hours_at_once(story: Story, hours: list[datetime]) -> None:
    before = story.sealed().number
    interval = ("--from-date", f"{hours[0]:%Y-%m-%dT%H:00Z}", "--to-date", f"{hours[-1]:%Y-%m-%dT%H:00Z}")
    done = story.airflow.command("backfill", "create", "--dag-id", "cdc_replay", *interval, "--reprocess-behavior", "completed")
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: len(backfilled(story)) == len(hours), "a run for each hour")
    until(lambda: all(state in ("success", "failed") for state in backfilled(story).values()), "all runs end")
    assert set(backfilled(story).values()) == {"success"}
    assert story.sealed().number == before + len(hours), "a batch for each hour"


def backfilled(story: Story) -> dict[str, str]:
    return {run["dag_run_id"]: run["state"] for run in story.api.runs("cdc_replay") if run["run_type"] == "backfill"}
