"""Every DAG loads, and keeps to the house's policy: short, documented, tagged, without logic."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring import bucket
from tests.pipeline.quarantine.test_rejected_tables import REASON, REFUSED, problem, seal
from writetime.pipeline.documents import Manifest
from writetime.pipeline.publish_progress import Published, write_published
from writetime.storage.layout import batch_object
from writetime.storage.local import LocalStore

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "dags").glob("*.py"))
PROBLEMS = "writetime_problems"
DAGS = {path.stem for path in FILES} - {PROBLEMS}
AUDIT = ["--late=3", "--ranges=16", "--reread=none", "--most=64"]

_DESCRIBE = """
import copy, json, logging, os, sys
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.execution_time import macros
from airflow.serialization.serialized_objects import DagSerialization
from tests.dags import fakes

def rendered(dag, task, given):
    run = fakes.context()["dag_run"]
    run.run_after = fakes.MOMENT
    params = dict(dag.params.dump()) | given
    templates = dag.get_template_env()
    lines = [templates.from_string(line).render(params=params, dag_run=run, macros=macros) for line in task.application_args[2:]]
    return [line for line in lines if line]

table = {"table": "shop.orders", "table_id": "7", "reason": "x"}
segment = {"segment": "cdc/x", "place": 1, "of": 1}
waiting = {"table": "shop.orders", "notified_before": False}
mapped = {"SegmentOperator": segment, "TableOperator": table, "RejectedTableOperator": waiting}

def unmapped(task):
    return task.unmap(mapped[task.operator_class.__name__]) if task.is_mapped else task

def told(task):
    # As a worker has it: what is mapped gets its defaults there.
    task = unmapped(task)
    spark = type(task).__name__ in ("SparkJobOperator", "BatchJobOperator", "CheckJobOperator", "SessionOperator")
    return {
        "retries": task.retries,
        "doc": bool(task.doc_md),
        "down": sorted(task.downstream_task_ids),
        "pool": task.pool,
        "config": task.config,
        "page": task.page,
        "asked": task.application_args[:2] + [task._conn_id] if spark else None,
        "outlets": sorted(outlet.name for outlet in task.outlets),
        "trigger_rule": task.trigger_rule,
    }

def instance(paused=False):
    return {"ti": fakes.instance(paused)}

def submitted(task, batch="1"):
    # The command that would be run, and what the job would find in its environment.
    task.batch, task.namespace = batch, ""
    commands = []
    SparkSubmitHook.submit = lambda hook, application: commands.append(hook._build_spark_submit_command(application))
    SparkSubmitHook._mask_cmd = lambda hook, command: "not logged here"
    inherited = dict(os.environ)
    try:
        task.execute(instance(paused=task.dag.dag_id.endswith("bets")))
        password = os.environ["WRITETIME_CQL_PASSWORD"]
        return {"command": commands[0], "path": os.environ["PYTHONPATH"].split(os.pathsep), "password": password}
    finally:
        # A worker runs each task in a process of its own.
        os.environ.clear()
        os.environ.update(inherited)

logged = []
class Kept(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())

logging.getLogger("writetime_settings").addHandler(Kept())
bag = DagBag(sys.argv[1])
checks = {dag_id: dag for dag_id, dag in bag.dags.items() if dag_id in ("cdc_verify", "cdc_audit")}
given = {"table": "shop.orders", "token_range": "1:2", "at_rest": True, "tell_values": True, "topics": True}
given |= {"start": "2026-05-04T00:00Z", "end": "2026-05-05T00:00Z"}
commands = {dag_id: [rendered(dag, dag.tasks[0], some) for some in ({}, given)] for dag_id, dag in checks.items()}

def asked(dag_id, task_id, **given):
    # What a task is told, once its templates are rendered, or why Airflow does not take what was asked for.
    from airflow.exceptions import ParamValidationError
    dag = bag.dags[dag_id]
    task = dag.get_task(task_id)
    params = copy.deepcopy(dag.params)
    try:
        for name, value in given.items():
            params[name] = value
        params.validate()
    except ParamValidationError as error:
        return [type(error).__name__]
    context = fakes.context(**params.dump()) | {"run_id": "manual__1"}
    fields = ("start", "end", "namespace") if hasattr(task, "start") else ("application_args",)
    found = [getattr(task, field) for field in fields]
    lines = found[0][2:] if fields == ("application_args",) else found
    return [dag.get_template_env().from_string(line).render(**context) for line in lines]

if "cdc_replay" in bag.dags:
    beside = {"start": "2026-05-01T00:00Z", "end": "2026-05-01T02:00Z", "namespace": "check"}
    commands["params"] = {
        "replay": [asked("cdc_replay", "plan"), asked("cdc_replay", "ingest")],
        "replay beside": [asked("cdc_replay", "plan", **beside), asked("cdc_replay", "ingest", **beside)],
        "replay wrong": [asked("cdc_replay", "plan", namespace="No Name"), asked("cdc_replay", "plan", start=7)],
        "bootstrap": [asked("cdc_bootstrap", "read", table="shop.orders", token_range="-5:"), asked("cdc_bootstrap", "read")],
        "bootstrap wrong": [asked("cdc_bootstrap", "read", table="orders"), asked("cdc_bootstrap", "read", token_range="1-2")],
        "publish": [asked("cdc_publish", "publish", since="beginning", again="shop.orders"), asked("cdc_publish", "publish", since="x")],
        "verify wrong": [asked("cdc_verify", "verify", share=2), asked("cdc_verify", "verify", token_range="x")],
        "audit wrong": [asked("cdc_audit", "audit", reread="all"), asked("cdc_audit", "audit", ranges=0)],
    }
dags = {
    dag_id: {
        "tasks": {task.task_id: told(task) for task in dag.tasks},
        "serialized": len(json.dumps(DagSerialization.to_dict(dag))),
        "doc": dag.doc_md or "",
        "tags": sorted(dag.tags),
        "owner": dag.owner,
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "description": dag.description,
        "schedule": type(dag.timetable).__name__,
    }
    for dag_id, dag in bag.dags.items()
}
spark = {dag_id: submitted(dag.get_task("ingest")) for dag_id, dag in bag.dags.items() if dag_id.startswith("cdc_ingest__")}
if spark:
    import writetime_operators
    writetime_operators.SMALL_BATCH = 0
    spark["large"] = submitted(bag.dags["cdc_replay__orders"].get_task("ingest"))
def pages():
    # As the API server makes them: again when a file has changed, and only then.
    from writetime_page_access import Pages, _none
    made = Pages()
    def mounts():
        return sorted(route.path for route in made.app().routes if route.path.startswith("/pipeline/"))
    same = made.app() is made.app()
    before, folder = mounts(), Path(os.environ["WRITETIME_CONFIG"])
    more = folder / "zoo.yaml"
    more.write_text((folder / "orders.yml").read_text().replace("orders", "zoo"))
    after = mounts()
    more.unlink()
    single = []
    for setting in (str(folder / "orders.yml"), str(folder / "typo.yaml"), ""):
        os.environ["WRITETIME_CONFIG"] = setting
        single.append(mounts())
        try:
            _none()
        except Exception as error:
            single.append(str(error))
    os.environ["WRITETIME_CONFIG"] = str(folder)
    return {"same": same, "before": before, "after": after, "single": single}

shown = pages() if "cdc_watch__bets" in bag.dags else {}

def linked(task):
    # As a worker has it: with its templates rendered.
    task = unmapped(task)
    if hasattr(task, "batch"):
        task.batch, task.namespace = "7", ("check" if task.dag.dag_id.startswith("cdc_replay") else "")
    found = [link.get_link(task, ti_key=None) for link in task.operator_extra_links]
    if hasattr(task, "asks_ring"):
        task.report = "verify/c/1.json"
        found += [link.get_link(task, ti_key=None) for link in task.operator_extra_links]
    return found

links = {f"{dag_id}.{task.task_id}": found for dag_id, dag in bag.dags.items() for task in dag.tasks if (found := linked(task))}

def failed(words, dag_id="cdc_verify", task_id="verify"):
    # spark-submit knows a job's exit code and nothing else: what the job has left for its task.
    from airflow.sdk.exceptions import AirflowException
    from writetime.pipeline.job_result import leave
    def submit(hook, application):
        if words is not None:
            leave(**words)
        if words is None or words.get("text"):
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.")
    SparkSubmitHook.submit = submit
    operator = bag.dags[dag_id].get_task(task_id)
    try:
        operator.submit(instance())
        return ["", operator.report]
    except Exception as error:
        return [f"{type(error).__name__}: {error}", operator.report]

words = []
if "cdc_verify" in bag.dags:
    away = {"text": "the batch failed: no answer", "retriable": True}
    words = [failed(each) for each in (None, {"text": "drift", "report": "verify/c/2.json"}, away, {"report": "verify/c/3.json"})]
    # Another driver may have sealed the batch meanwhile.
    words.append(failed({"text": "somebody else was here"}, "cdc_ingest", "ingest"))
found = {"dags": dags, "errors": bag.import_errors, "commands": commands, "spark": spark, "links": links}
found |= {"words": words, "log": "\\n".join(logged)}
print("@@" + json.dumps(found | {"shown": shown}))
"""


def describe(home: Path, config: Path | str | None) -> dict[str, Any]:
    """The DAGs as Airflow loads them."""
    found: dict[str, Any] = run(_DESCRIBE, home, config)
    return found


def run(script: str, home: Path, config: Path | str | None) -> Any:
    """What the script prints, in a process of its own: Airflow configures itself once per process."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "WRITETIME"))}
    env = inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW_CONN_SPARK_WRITETIME": '{"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}',
        "AIRFLOW_CONN_SPARK_YARN": '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "client", "queue": "cdc"}}',
        "WRITETIME_CQL_PASSWORD": "of-all",
        "WRITETIME_CQL_PASSWORD__BETS": "of-bets",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"))),
    }
    if config:
        env["WRITETIME_CONFIG"] = str(config)
    command = [sys.executable, "-c", script, str(ROOT / "dags")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=home)
    marked = [line for line in done.stdout.splitlines() if line.startswith("@@")]
    assert marked, done.stdout + done.stderr
    return json.loads(marked[-1][2:])


_SQUARES = """
import json, logging, os
from types import SimpleNamespace
import writetime_operators as ops
from writetime.pipeline import archiver

logging.disable(logging.CRITICAL)
mine = {"config": os.environ["WRITETIME_CONFIG"]}
def instance(attempt=1):
    return {"ti": SimpleNamespace(try_number=attempt)}

def outcome(operator, attempt):
    context = instance(attempt=attempt)
    try:
        return [operator.execute(context), context.get("table"), context.get("writetime_notified_before")]
    except ops.AirflowFailException as error:
        return [str(error), context.get("table"), context.get("writetime_notified_before")]

told = []
for batch in ("1", "2"):
    told.append(ops.FailedSegmentsOperator(task_id=f"s{batch}", batch=batch, **mine).execute({}))
    told.append(ops.FailedTablesOperator(task_id=f"t{batch}", batch=batch, **mine).execute({}))
(table,) = told[1]
told += [outcome(ops.TableOperator(task_id=f"r{attempt}", **table, **mine), attempt) for attempt in (1, 2)]
found = ops.RejectedTablesOperator(task_id="w", **mine)
told.append(found.execute(instance()))
ops.Notified.record(found.pipeline()[1], ops.layout.published_notified(found.pipeline()[0].cluster.name), {"shop.orders": 1})
told.append(found.execute(instance()))
rejected = [ops.RejectedTableOperator(task_id=n, table=f"shop.{n}", notified_before=n == "sent", **mine) for n in ("orders", "sent")]
told += [outcome(operator, 1) for operator in rejected]
bad = told[0][0]["segment"]
told += [outcome(ops.SegmentOperator(task_id=f"b{place}", segment=bad, place=place, of=2, **mine), 1) for place in (1, 2)]
told += [outcome(ops.OutcomeOperator(task_id=f"o{batch}", batch=batch, **mine), 1) for batch in ("1", "2", "3", "9")]
told.append(outcome(ops.OutcomeOperator(task_id="beside", batch="1", namespace="check", **mine), 1))
# The square of a run before, after an operator has released the segment.
loaded, store = ops.opened(mine["config"])
archiver.release(store, loaded.cluster.name, bad, "damaged for good")
told.append(outcome(ops.SegmentOperator(task_id="old", segment=bad, **mine), 2))
print("@@" + json.dumps(told))
"""


def test_squares_of_tables(tmp_path: Path) -> None:
    """What the tasks find in a bucket: a table that could not be shown, and one whose events cannot be
    sent."""
    store = LocalStore(tmp_path / "bucket")
    waits, damaged = seal(store, 1, [REFUSED], [problem(bucket.ORDERS)], [problem(None, "damage")], quarantined=1)
    seal(store, 2, [REFUSED])
    seal(store, 3, [])
    store.put(damaged, b"no segment at all")
    write_published(store, bucket.CLUSTER, Published(batch=2, events=0, waiting={"shop.orders": 1}, reasons={"shop.orders": "too large"}))
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")
    (segments, tables, *quiet, red, green), more = (found := run(_SQUARES, tmp_path, config))[:6], found[6:]
    assert segments == [{"segment": damaged, "place": 1, "of": 1}]
    assert tables == [{"table": "shop.orders", "table_id": str(bucket.ORDERS), "reason": REASON}]
    assert quiet == [[], []]
    assert REASON in red[0]
    assert "1 segments wait" in red[0]
    assert red[1] == "shop.orders"
    assert green == [[waits], "shop.orders", None]
    first, again, stuck, sent, one, other, left_out, untouched, whole, unsealed, beside, old = more
    assert first == [{"table": "shop.orders", "notified_before": False}]
    assert again == [{"table": "shop.orders", "notified_before": True}], "each run of cdc_publish is red, and people are told of it once"
    assert "events since batch 1 cannot be published: too large" in stuck[0]
    assert (stuck[2], sent) == (False, [None, "shop.sent", True])
    # A thousand segments of one cause are one thing to be told of.
    assert (one[2], other[2]) == (False, True)
    for part in ("1 more segments of this batch are held", "ledger/Prod", "/writetime/segment?name="):
        assert part in one[0], part
    # A replay has one square for all that it left out.
    assert f"shop.orders: table rejected: {REASON}" in left_out[0]
    assert f"{damaged} at 1: damage" in left_out[0]
    # A table that is refused, and that these hours do not hold, is no news.
    assert (untouched[0], whole[0]) == (None, None)
    assert "batch 9 of Prod <1> is not sealed" in unsealed[0]
    assert "batch 1 of Prod <1>.replay.check is not sealed" in beside[0]
    assert old[0] == damaged


_TURN = """
import json, logging, os
from types import SimpleNamespace
import writetime_operators as ops
from airflow.sdk.exceptions import AirflowRescheduleException

logging.disable(logging.CRITICAL)
plan = ops.PlanMaintainOperator(task_id="plan", config=os.environ["WRITETIME_CONFIG"])
try:
    told = plan.execute({"ti": SimpleNamespace(get_first_reschedule_date=lambda context: None)})
except (AirflowRescheduleException, ops.AirflowSkipException) as error:
    told = type(error).__name__
replay = ops.PlanReplayOperator(task_id="replay", config=os.environ["WRITETIME_CONFIG"], start="yesterday", end="2026-05-04T13:00")
try:
    replay.number({"dag_run": None})
    wrong = ""
except ops.AirflowFailException as error:
    wrong = str(error)
ingest = ops.PlanBatchOperator(task_id="ingest", config=os.environ["WRITETIME_CONFIG"])
try:
    found = ingest.execute({})
except ops.AirflowSkipException as error:
    found = str(error)
print("@@" + json.dumps([told, plan.reschedule, plan.timeout, wrong, found]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("age", "whose"), [(1, "theirs"), (11, "ours")])
def test_ingest_leaves_a_replay_to_its_own_dag_for_a_while(tmp_path: Path, age: int, whose: str) -> None:
    store = LocalStore(tmp_path / "bucket")
    seal(store, 1, [])
    begun = datetime.now(UTC) - timedelta(minutes=age)
    replay = Manifest(number=2, kind="replay", cluster=bucket.CLUSTER, created_at=begun, now=1, base=1, segments=[])
    store.put(batch_object(bucket.CLUSTER, 2, "manifest"), replay.to_bytes())
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")
    found = run(_TURN, tmp_path, config)[-1]
    assert found == 2 if whose == "ours" else "If it is not sealed 10 minutes after that, cdc_ingest runs it" in found


@pytest.mark.thorough
def test_a_batch_that_others_are_ahead_of_waits_without_a_retry(tmp_path: Path) -> None:
    """Of a backfill of a day all hours plan at once, and a batch takes minutes."""
    store = LocalStore(tmp_path / "bucket")
    seal(store, 1, [])
    ahead = Manifest(number=2, kind="ingest", cluster=bucket.CLUSTER, created_at=datetime.now(UTC), now=1, base=1, segments=[])
    store.put(batch_object(bucket.CLUSTER, 2, "manifest"), ahead.to_bytes())
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")
    *told, wrong, ours = run(_TURN, tmp_path, config)
    assert ours == 2
    assert told == ["AirflowRescheduleException", True, 86_400]
    assert wrong == "plan a replay: `start` is not a time: 'yesterday'. Use the format 2026-01-31T10:00Z."
    seal(store, 2, [])
    # There is no state to maintain yet.
    assert run(_TURN, tmp_path, config)[:3] == ["AirflowSkipException", True, 86_400]


_BACKLOG = """
import json, os
import writetime_operators as ops
import writetime_session

loaded, store = ops.opened(os.environ["WRITETIME_CONFIG"])
writetime_session.SMALL_BATCH = 100
found = []
for size in (0, 60, 60):
    store.put(f"cdc/{loaded.cluster.name}/dc1/{len(found)}", b"x" * size)
    found.append(writetime_session.SessionOperator.local_conf(None, loaded, store))
print("@@" + json.dumps(found))
"""


def test_a_session_without_a_backlog_starts_its_jvm_quickly(tmp_path: Path) -> None:
    LocalStore(tmp_path / "bucket")
    config = tmp_path / "pipeline.yaml"
    config.write_text("pipeline: p\ncluster: {name: c, datacenters: [dc1]}\nbucket: bucket\n", encoding="utf-8")
    quick = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC",
        "spark.shuffle.compress": "false",
    }
    assert run(_BACKLOG, tmp_path, config) == [quick, quick, {}]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("airflow")
    config = home / "pipeline.yaml"
    config.write_text(
        "pipeline: orders\ncluster: {name: c, datacenters: [dc1]}\nbucket: bucket\nairflow: {owner: data-team}\n", encoding="utf-8"
    )
    return describe(home, config)


def test_all_load(loaded: dict[str, Any]) -> None:
    assert loaded["errors"] == {}
    assert set(loaded["dags"]) == DAGS


def test_policy(loaded: dict[str, Any]) -> None:
    for dag_id, dag in loaded["dags"].items():
        assert dag["tags"] == ["orders", "writetime"], dag_id
        assert dag["owner"] == "data-team", dag_id
        assert dag["max_active_runs"] == 1, dag_id
        assert not dag["catchup"], dag_id
        assert dag["description"], dag_id
        assert f"### {dag_id}" in dag["doc"], dag_id


def test_ingest_points_at_bad_segments_although_archiving_failed(loaded: dict[str, Any]) -> None:
    tasks = loaded["dags"]["cdc_ingest"]["tasks"]
    assert {name: task["down"] for name, task in tasks.items()} == {
        "archive_last": ["plan"],
        "release": ["plan"],
        "plan": ["ingest"],
        "ingest": ["archive", "failed_segments", "failed_tables"],
        "archive": ["completed_hours"],
        "completed_hours": [],
        "failed_segments": ["segment"],
        "segment": [],
        "failed_tables": ["table"],
        "table": [],
    }
    # Without new segments `archive` is skipped, and hours are completed nevertheless; if it fails, the run
    # is red.
    assert tasks["completed_hours"]["trigger_rule"] == "none_failed"
    assert tasks["segment"]["retries"] == tasks["table"]["retries"] == 0
    assert tasks["ingest"]["retries"] == 2


def test_batches_run_in_one_of_two_modes(loaded: dict[str, Any], tmp_path: Path) -> None:
    """An existing YAML says nothing of a mode: its DAGs go on. In mode `session`, only `cdc_stream` runs by
    itself."""
    config = tmp_path / "pipeline.yaml"
    config.write_text(
        "pipeline: orders\ncluster: {name: c, datacenters: [dc1], cql: {contact_points: [10.0.0.1]}}\nbucket: bucket\n"
        "airflow: {mode: session, pool: cdc, spark_pool: spark}\n",
        encoding="utf-8",
    )
    session = describe(tmp_path, config)["dags"]
    batch = loaded["dags"]
    dags = ("cdc_ingest", "cdc_publish", "cdc_stream", "cdc_report")
    assert [session[dag]["schedule"] for dag in dags] == ["NullTimetable", "NullTimetable", "ContinuousTimetable", "NullTimetable"]
    assert [batch[dag]["schedule"] for dag in dags[2:]] == ["NullTimetable", "NullTimetable"]
    assert "NullTimetable" not in [batch[dag]["schedule"] for dag in dags[:2]]
    # Tables are compared with the cluster by themselves where it can be read.
    assert [found["cdc_verify"]["schedule"] for found in (batch, session)] == ["NullTimetable", "CronTriggerTimetable"]
    # A session runs all the time: it takes no slot of the jobs.
    task = session["cdc_stream"]["tasks"]["session"]
    assert task["pool"] == "default_pool"
    assert task["retries"] == 0
    assert session["cdc_maintain"]["tasks"]["maintain"]["pool"] == "spark"
    # Both have the event of completed hours.
    hours = [session["cdc_report"]["tasks"]["completed_hours"], batch["cdc_ingest"]["tasks"]["completed_hours"]]
    assert [task["outlets"] for task in hours] == [["writetime_complete"]] * 2
    assert session["cdc_report"]["tasks"]["segment"]["retries"] == session["cdc_report"]["tasks"]["table"]["retries"] == 0


def test_a_replay_tells_what_it_left_out(loaded: dict[str, Any]) -> None:
    tasks = loaded["dags"]["cdc_replay"]["tasks"]
    assert {name: task["down"] for name, task in tasks.items()} == {
        "plan": ["ingest"],
        "ingest": ["archive", "outcome"],
        "archive": ["outcome"],
        "outcome": [],
    }


def test_the_archive_is_cared_for_after_the_seal(loaded: dict[str, Any]) -> None:
    tasks = loaded["dags"]["cdc_maintain"]["tasks"]
    assert {name: task["down"] for name, task in tasks.items()} == {
        "plan": ["maintain"],
        "maintain": ["archive"],
        "archive": ["shelve"],
        "shelve": [],
    }


def test_checks_are_told_what_was_asked_for(loaded: dict[str, Any]) -> None:
    assert {name: found for name, found in loaded["commands"].items() if name != "params"} == {
        "cdc_verify": [
            ["--due", "--seed=20260504", "--wait=900"],
            [
                "--share=1",
                "--seed=20260504",
                "--wait=900",
                "--table=shop.orders",
                "--token-range=1:2",
                "--at-rest",
                "--values",
                "--topics",
            ],
        ],
        "cdc_audit": [
            ["--end=2026-05-04T09:00:00+00:00", "--start=2026-05-03T09:00:00+00:00", *AUDIT],
            ["--end=2026-05-05T00:00Z", "--start=2026-05-04T00:00Z", *AUDIT],
        ],
    }


def test_what_people_ask_for_reaches_the_jobs_and_nonsense_is_refused(loaded: dict[str, Any]) -> None:
    wrong = [["ParamValidationError"]] * 2
    hours = ["2026-05-04 12:00:00+00:00", "2026-05-04 13:00:00+00:00"]
    assert loaded["commands"]["params"] == {
        "replay": [[*hours, ""], ["--batch", "7", "--namespace="]],
        "replay beside": [["2026-05-01T00:00Z", "2026-05-01T02:00Z", "check"], ["--batch", "7", "--namespace=check"]],
        "replay wrong": wrong,
        "bootstrap": [
            ["--table=shop.orders", "--token-range=-5:", "--due", "--touched"],
            ["--table=", "--token-range=", "--due", "--touched"],
        ],
        "bootstrap wrong": wrong,
        "publish": [["--since=beginning", "--again=shop.orders", "--request=manual__1"], ["ParamValidationError"]],
        "verify wrong": wrong,
        "audit wrong": wrong,
    }


def test_without_a_pipeline_they_still_load_and_say_so(tmp_path: Path) -> None:
    found = describe(tmp_path, None)
    assert found["errors"] == {}
    assert all("unconfigured" in dag["tags"] for dag in found["dags"].values())


def yaml(name: str, more: str = "") -> str:
    return f"pipeline: {name}\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: {name}\n{more}"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "pipelines").mkdir()
    (home / "pipelines" / "bets.yaml").write_text(
        yaml(
            "bets",
            "airflow:\n  pool: cdc\n  spark_pool: spark\n  spark_connection: spark_yarn\n"
            "  on_failure:\n"
            "  - {notifier: nowhere.Pager}\n"
            "spark: {submit: {spark.archives: 'hdfs:///env.tgz#environment', spark.driver.port: '7079', spark.jars: /more/s3.jar}}\n",
        ),
        encoding="utf-8",
    )
    (home / "pipelines" / "orders.yml").write_text(yaml("orders", "airflow: {pool: cdc}\n"), encoding="utf-8")
    bucket.small(home / "pipelines" / "orders")
    (home / "pipelines" / "typo.yaml").write_text(yaml("typo", "nodes: {}\n"), encoding="utf-8")
    return describe(home, home / "pipelines") | {"home": str(home)}


def test_each_pipeline_has_its_own_dags(several: dict[str, Any]) -> None:
    assert set(several["dags"]) == {f"{dag}__{name}" for dag in DAGS for name in ("bets", "orders")}
    for dag_id, dag in several["dags"].items():
        name = dag_id.rpartition("__")[2]
        assert dag["tags"] == sorted([name, "writetime"]), dag_id
        file = f"{several['home']}/pipelines/{'orders.yml' if name == 'orders' else 'bets.yaml'}"
        for task_id, task in dag["tasks"].items():
            where = f"{dag_id}.{task_id}"
            assert task["config"] == file, where
            assert task["page"] == f"pipeline/{name}/", where
            assert task["asked"] is None or task["asked"][:2] == ["--config", file], where
            assert all(name in outlet for outlet in task["outlets"]), where


def test_a_file_that_is_wrong_is_an_import_error_and_takes_nothing_from_others(several: dict[str, Any]) -> None:
    """Airflow shows the error to users of any DAG, so that the reasons are in the log only."""
    (file,) = several["errors"]
    assert file.endswith(f"{PROBLEMS}.py")
    assert "files cannot be used, or not completely" in several["errors"][file]
    assert "nodes" not in several["errors"][file]
    assert "typo.yaml: `nodes`: is not a known key" in several["log"]
    assert "bets.yaml: `airflow.on_failure.0`: make a notifier: nowhere.Pager: cannot be used" in several["log"]


def test_of_a_single_file_the_import_error_has_the_reason(loaded: dict[str, Any], several: dict[str, Any], tmp_path: Path) -> None:
    assert loaded["errors"] == {}
    config = tmp_path / "pipeline.yaml"
    config.write_text(yaml("typo", "nodes: {}\n"), encoding="utf-8")
    (error,) = describe(tmp_path, config)["errors"].values()
    assert "pipeline.yaml: `nodes`: is not a known key" in error


def test_the_page_follows_the_files(several: dict[str, Any]) -> None:
    shown = several["shown"]
    assert shown["same"]
    assert shown["before"] == ["/pipeline/bets", "/pipeline/orders"]
    assert shown["after"] == ["/pipeline/bets", "/pipeline/orders", "/pipeline/zoo"]
    one, _, broken, why, unset, how = shown["single"]
    assert one == broken == unset == []
    assert "`nodes`: is not a known key" in why
    assert "WRITETIME_CONFIG: is not set" in how


def test_tasks_take_slots_of_the_pools_that_are_configured(loaded: dict[str, Any], several: dict[str, Any]) -> None:
    def pools(found: dict[str, Any], dag_id: str) -> dict[str, str]:
        return {task_id: task["pool"] for task_id, task in found["dags"][dag_id]["tasks"].items()}

    others = ("archive_last", "release", "plan", "archive", "failed_segments", "segment", "failed_tables", "table", "completed_hours")
    assert pools(several, "cdc_ingest__bets") == {"ingest": "spark", **dict.fromkeys(others, "cdc")}
    assert pools(several, "cdc_ingest__orders") == {"ingest": "cdc", **dict.fromkeys(others, "cdc")}
    assert pools(several, "cdc_verify__bets") == {"verify": "spark"}
    assert set(pools(loaded, "cdc_ingest").values()) == {"default_pool"}
    assert several["dags"]["cdc_ingest__bets"]["tasks"]["ingest"]["asked"][2] == "spark_yarn"
    assert several["dags"]["cdc_ingest__orders"]["tasks"]["ingest"]["asked"][2] == "spark_writetime"


def test_jobs_run_where_the_pipeline_says(several: dict[str, Any]) -> None:
    def options(dag_id: str) -> dict[str, list[str]]:
        command = several["spark"][dag_id]["command"]
        found: dict[str, list[str]] = {}
        for name, value in pairwise(command):
            found.setdefault(name, []).append(value)
        return found

    # Driver and executors in one process: nothing listens elsewhere.
    here = options("cdc_ingest__orders")
    assert here["--master"] == ["local[2]"]
    loopback = ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
    assert here["--conf"] == [
        *loopback,
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC",
        "spark.shuffle.compress=false",
    ]
    assert options("large")["--conf"] == loopback
    assert here["--name"] == ["writetime ingest orders"]
    assert here["--config"] == [f"{several['home']}/pipelines/orders.yml"]
    # On a cluster executors call the driver: never by an address that is each machine's own.
    there = options("cdc_ingest__bets")
    assert there["--master"] == ["yarn"]
    assert there["--queue"] == ["cdc"]
    assert there["--conf"] == ["spark.archives=hdfs:///env.tgz#environment", "spark.driver.port=7079"]
    # Beside the locked jars, which spark-submit's own option would hide.
    assert there["--jars"] == [f"{here['--jars'][0]},/more/s3.jar"]
    assert there["--config"] == [f"{several['home']}/pipelines/bets.yaml"]
    assert all(found["path"][0] == str(ROOT) for found in several["spark"].values())


def test_a_batch_is_published_by_its_own_job_unless_publishing_is_paused(several: dict[str, Any]) -> None:
    assert several["spark"]["cdc_ingest__orders"]["command"][-1] == "--publish"
    assert "--publish" not in several["spark"]["cdc_ingest__bets"]["command"]


def test_rings_have_passwords_of_their_own_which_stand_in_no_command(several: dict[str, Any]) -> None:
    found = several["spark"]
    passwords = {"cdc_ingest__bets": "of-bets", "cdc_ingest__orders": "of-all", "large": "of-all"}
    assert {dag_id: each["password"] for dag_id, each in found.items()} == passwords
    assert not [part for each in found.values() for part in each["command"] if "of-bets" in part or "of-all" in part]


def test_links_lead_to_the_page_of_the_pipeline(loaded: dict[str, Any], several: dict[str, Any]) -> None:
    assert loaded["links"] == {
        "cdc_audit.audit": ["/writetime/checks", "/writetime/checks/report?name=verify%2Fc%2F1.json"],
        "cdc_ingest.archive": ["/writetime/batches/7"],
        "cdc_ingest.ingest": ["/writetime/batches/7"],
        "cdc_ingest.segment": ["/writetime/segment?name=cdc%2Fx"],
        "cdc_ingest.table": ["/writetime/tables#shop.orders"],
        "cdc_maintain.archive": ["/writetime/batches/7"],
        "cdc_maintain.maintain": ["/writetime/batches/7"],
        "cdc_publish.table": ["/writetime/tables#shop.orders"],
        "cdc_replay.archive": ["/writetime/beside/check/batches/7"],
        "cdc_replay.ingest": ["/writetime/beside/check/batches/7"],
        "cdc_replay.outcome": ["/writetime/beside/check/batches/7"],
        "cdc_report.segment": ["/writetime/segment?name=cdc%2Fx"],
        "cdc_report.table": ["/writetime/tables#shop.orders"],
        "cdc_report.waiting_table": ["/writetime/tables#shop.orders"],
        "cdc_verify.verify": ["/writetime/checks", "/writetime/checks/report?name=verify%2Fc%2F1.json"],
    }
    assert several["links"]["cdc_ingest__bets.segment"] == ["/writetime/pipeline/bets/segment?name=cdc%2Fx"]


def test_a_failed_job_says_itself_why_and_whether_a_retry_helps(loaded: dict[str, Any]) -> None:
    killed, drift, away, fine, rival = loaded["words"]
    assert rival == ["AirflowException: somebody else was here", ""]
    assert killed == ["AirflowException: Cannot execute: spark-submit. Error code is: 1.", ""]
    assert drift == ["AirflowFailException: drift", "verify/c/2.json"]
    assert away == ["AirflowException: the batch failed: no answer", ""]
    assert fine == ["", "verify/c/3.json"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_wiring_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    logic = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Try, ast.Lambda)
    found = [ast.unparse(node).partition("\n")[0] for node in ast.walk(ast.parse(text)) if isinstance(node, logic)]
    # But for the one loop that makes the DAG for each pipeline.
    assert found == ([] if path.stem == PROBLEMS else ["for pipeline in settings():"])
