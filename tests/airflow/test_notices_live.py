"""Notices of a running Airflow, with a history of runs: what the watch reports, and tasks whose process is killed,
alone or with the worker that supervises it.

The bucket is a made-up one, so nothing has to be ingested first. A DAG of the test's own has a task that sleeps; all else is
as in the project's DAGs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.dags.test_notices import PAGERS
from tests.monitoring import bucket
from tools import ROOT
from tools.services.airflow import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.thorough, pytest.mark.timeout(1800)]

SLEEPER = """
import os, time
from pathlib import Path
from airflow.sdk import DAG
from writetime_operators import PipelineOperator
from writetime_settings import settings

class Sleeper(PipelineOperator):
    def execute(self, context):
        file = Path(os.environ["AIRFLOW_HOME"], "sleeper.pid")
        file.with_suffix(".new").write_text(str(os.getpid()))
        file.with_suffix(".new").rename(file)
        time.sleep(3600)

for pipeline in settings():
    with DAG("sleeper", schedule=None, **pipeline.common, default_args=pipeline.defaults):
        Sleeper(task_id="sleep")
"""
PATIENCE = 300.0


class Story:
    """The running Airflow, and what its pager has heard."""

    def __init__(self, airflow: Airflow, config: Path) -> None:
        self.airflow, self.config = airflow, config
        self.log = ""
        self._calls: Counter[str] = Counter()

    def heard(self) -> list[tuple[str, str]]:
        file = self.airflow.home / "heard.jsonl"
        return [tuple(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def watched(self, **fields: Any) -> tuple[str, int]:
        """A run of the watch: its state, and how many notices it has sent."""
        before = len(self.heard())
        run = self.airflow.api.trigger("cdc_watch", **fields)
        state = self.airflow.api.wait("cdc_watch", run, seconds=PATIENCE)
        self.log = self.airflow.api.log("cdc_watch", run, "watch")
        # Whatever the DAG processor does after it.
        self.run_is_over("cdc_watch", run)
        return state, len(self.heard()) - before

    def run_is_over(self, dag: str, run: str) -> None:
        """The DAG processor has called the run's callback, if it failed."""
        if self.airflow.api.run(dag, run)["state"] == "failed":
            self._calls[dag] += 1
            eventually(lambda: self.calls(dag) >= self._calls[dag], "the run's callback is called")

    def calls(self, dag: str) -> int:
        """How often the DAG processor has said that it calls callbacks of failed runs."""
        files = (self.airflow.home / "logs" / "dag_processor").rglob(f"*{dag}*.log")
        return sum(file.read_text(encoding="utf-8", errors="replace").count("Executing on_failure dag callback") for file in files)

    def sleeping(self) -> tuple[str, int]:
        """A run whose task sleeps, and its process."""
        file = self.airflow.home / "sleeper.pid"
        file.unlink(missing_ok=True)
        run = self.airflow.api.trigger("sleeper")
        eventually(file.exists, "the task runs")
        return run, int(file.read_text(encoding="utf-8"))


def eventually(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("notices")
    bucket.small(folder / "bucket")
    (folder / "dags").mkdir()
    (folder / "dags" / "cdc_watch.py").symlink_to(ROOT / "dags" / "cdc_watch.py")
    (folder / "dags" / "sleeper.py").write_text(SLEEPER, encoding="utf-8")
    (folder / "pagers.py").write_text(PAGERS, encoding="utf-8")
    pipeline = {
        "pipeline": "p",
        "cluster": {"name": bucket.CLUSTER, "datacenters": ["dc1", "dc2"]},
        "bucket": str(folder / "bucket"),
        "airflow": {"watch": {"schedule": None}, "on_failure": [{"notifier": "pagers.Pager"}]},
    }
    config = folder / "pipeline.yaml"
    config.write_text(yaml.safe_dump(pipeline), encoding="utf-8")
    env = {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    }
    airflow = Airflow(folder / "airflow", config=config, port=0, env=env, dags=folder / "dags")
    airflow.start(expect=("cdc_watch", "sleeper"), seconds=PATIENCE)
    try:
        for dag in ("cdc_watch", "sleeper"):
            airflow.api.pause(dag, paused=False)
        yield Story(airflow, config)
    finally:
        airflow.stop()


def test_the_watch_says_what_is_wrong_in_each_run_and_reports_what_is_new(story: Story) -> None:
    """Five runs, with and without a logical date."""
    assert story.watched() == ("failed", 1)
    for number in range(3):
        assert story.watched(logical_date=f"2026-01-0{number + 1}T00:00:00Z") == ("failed", 0)
        assert "late: node 00000002" in story.log
    assert story.watched() == ("failed", 0)
    known = yaml.safe_load(story.config.read_text(encoding="utf-8"))
    for late, wanted in ((None, ("success", 0)), ("auto", ("failed", 1))):
        known["airflow"]["watch"]["late_minutes"] = late
        story.config.write_text(yaml.safe_dump(known), encoding="utf-8")
        assert story.watched() == wanted
    first, (channel, text) = story.heard()
    assert first[0] == channel == "watch"
    assert "cdc_watch.watch failed in run" in text
    assert "late: node 00000002" in text


@pytest.mark.parametrize("whose", ["task", "supervisor"])
def test_a_killed_task_is_reported_once(story: Story, whose: str) -> None:
    before = len(story.heard())
    run, pid = story.sleeping()
    supervisor = psutil.Process(pid).ppid()
    if whose == "supervisor":
        os.kill(supervisor, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    assert story.airflow.api.wait("sleeper", run, seconds=PATIENCE) == "failed"
    story.run_is_over("sleeper", run)
    eventually(lambda: len(story.heard()) > before, "somebody is told")
    ((channel, text),) = story.heard()[before:]
    assert channel == "sleep"
    assert f"sleeper: sleep failed in run {run} without a notice" in text
    assert "The task's process was killed" in text
