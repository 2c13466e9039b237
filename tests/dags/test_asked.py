"""What people ask of DAGs that cannot be done: runs without a logical date, swapped hours, tasks that were marked as
successful by hand. Airflow itself runs the DAGs (`dag.test()`), on a database of its own."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.dags.test_dags import run, yaml
from tests.monitoring import bucket
from tools.services.airflow import template_database

_RUNS = """
import contextlib, io, json, os, sys
from datetime import datetime, timedelta, timezone
from airflow.dag_processing.dagbag import DagBag

asked = json.loads(os.environ["ASKED"])
found = {}
for number, (name, (dag_id, conf, by_hand, dated)) in enumerate(asked.items()):
    # Read again: Airflow writes a run's parameters into those of the DAG, as a worker has a process for each task.
    dag = DagBag(f"{sys.argv[1]}/{dag_id}.py").dags[dag_id]
    for task in dag.tasks:
        # The log says why; a regression need not wait for its retries.
        with contextlib.suppress(AttributeError):
            task.retry_delay = timedelta(0)
    at = datetime(2026, 5, 4, 12, number, tzinfo=timezone.utc)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        done = dag.test(run_after=at, logical_date=at if dated else None, run_conf=conf, mark_success_pattern=by_hand or None)
    tasks = {ti.task_id: [str(ti.state), ti.try_number] for ti in done.get_task_instances()}
    found[name] = {"state": str(done.state), "tasks": tasks, "log": said.getvalue()}
print("@@" + json.dumps(found))
"""
# Airflow reads all DAGs again before each run.
pytestmark = pytest.mark.timeout(1800)
HOURS = {"start": "2026-05-04T12:00Z", "end": "2026-05-04T13:00Z"}
SWAPPED = {"start": HOURS["end"], "end": HOURS["start"]}
ASKED: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    # DAG, parameters, tasks that are marked as successful by hand, whether there is a logical date.
    # Of which the archive holds nothing.
    "an interval": ("cdc_replay", {"start": "2020-01-01T00:00Z", "end": "2020-01-01T01:00Z"}, "", False),
    "an hour by its date": ("cdc_replay", {}, "", True),
    "no date and no times": ("cdc_replay", {}, "", False),
    "no date and a start": ("cdc_replay", {"start": HOURS["start"]}, "", False),
    "swapped": ("cdc_replay", SWAPPED, "", False),
    "a start after the hour of the date": ("cdc_replay", {"start": "2026-05-04T15:00Z"}, "", True),
    "replay planned by hand": ("cdc_replay", HOURS, "plan", False),
    "replay run by hand": ("cdc_replay", HOURS | {"namespace": "check"}, "plan|ingest", False),
    "ingest planned by hand": ("cdc_ingest", {}, "plan", False),
    "ingest run by hand": ("cdc_ingest", {}, "plan|ingest", False),
    "maintain planned by hand": ("cdc_maintain", {}, "plan", False),
    "a part of no table": ("cdc_bootstrap", {"token_range": "0:100"}, "", False),
    "a batch that is none": ("cdc_report", {"batch": 99}, "", False),
    "batches swapped": ("cdc_report", {"changed_since": 5, "changed_upto": 3}, "", False),
    "batches to come": ("cdc_report", {"changed_since": 3, "changed_upto": 10**9}, "", False),
    "nothing to report": ("cdc_report", {}, "", False),
    "publish without a date": ("cdc_publish", {}, "", False),
    "verify without a date": ("cdc_verify", {}, "", False),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("asked")
    shutil.copyfile(template_database(), home / "airflow.db")
    bucket.small(home / "orders")
    (home / "pipeline.yaml").write_text(yaml("orders", "files: null\n"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASKED", json.dumps(ASKED))
        found: dict[str, Any] = run(_RUNS, home, home / "pipeline.yaml")
    return found


@pytest.mark.parametrize(
    ("asked", "task", "why"),
    [
        ("no date and no times", "plan", "`start` is missing. Give `start` and `end`: a run without a logical date has no interval"),
        ("no date and a start", "plan", "`end` is missing"),
        ("swapped", "plan", "2026-05-04T13:00Z to 2026-05-04T12:00Z: `start` is not before `end`"),
        ("a start after the hour of the date", "plan", "2026-05-04T15:00Z to 2026-05-04T12:00Z: `start` is not before `end`"),
        ("replay planned by hand", "ingest", "the task `plan` of this run has returned no batch, but 'None'"),
        ("replay run by hand", "outcome", "the task `plan` of this run has returned no batch"),
        ("ingest planned by hand", "ingest", "the task `plan` of this run has returned no batch"),
        ("ingest run by hand", "archive", "the task `plan` of this run has returned no batch"),
        ("ingest run by hand", "failed_segments", "the task `plan` of this run has returned no batch"),
        ("ingest run by hand", "failed_tables", "the task `plan` of this run has returned no batch"),
        ("maintain planned by hand", "maintain", "the task `plan` of this run has returned no batch"),
        ("a part of no table", "plan", "0:100: a token range without a table"),
        ("a batch that is none", "failed_segments", "batch 99 of Prod <1> is not sealed"),
        ("a batch that is none", "failed_tables", "batch 99 of Prod <1> is not sealed"),
        ("batches swapped", "changed_tables", "`changed_since` 5 and `changed_upto` 3 are no batches in order"),
        ("batches to come", "changed_tables", "the last sealed batch of Prod <1> is"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_says_why_and_is_not_retried(runs: dict[str, Any], asked: str, task: str, why: str) -> None:
    found = runs[asked]
    assert found["state"] == "failed"
    assert found["tasks"][task] == ["failed", 1], found["log"]
    assert why in found["log"]


@pytest.mark.parametrize(
    ("asked", "task", "state"),
    [
        ("an interval", "plan", "skipped"),
        ("an hour by its date", "plan", "skipped"),
        ("nothing to report", "failed_segments", "success"),
        ("nothing to report", "changed_tables", "skipped"),
        ("publish without a date", "due", "skipped"),
        ("verify without a date", "verify", "skipped"),
    ],
)
def test_what_can_be_done_needs_no_logical_date(runs: dict[str, Any], asked: str, task: str, state: str) -> None:
    assert runs[asked]["state"] == "success", runs[asked]["log"]
    assert runs[asked]["tasks"][task][0] == state
