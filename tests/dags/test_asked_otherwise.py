"""What Airflow does with the DAGs where it is set up otherwise, or is asked for something else: backfills, runs that are
taken over, parameters that are ignored, DAGs that it would pause, and texts of the cluster that look like templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.dags.one_process import run
from tests.dags.test_notices import HEARS, PAGERS, pipeline
from tests.monitoring import bucket
from tests.pipeline.quarantine.test_rejected_tables import REFUSED, problem, seal
from writetime.pipeline.documents import RefusedTable
from writetime.pipeline.publish_progress import Published, write_published
from writetime.storage.local import LocalStore

ALL = tuple(
    f"cdc_{name}" for name in ("audit", "bootstrap", "ingest", "maintain", "publish", "replay", "report", "stream", "verify", "watch")
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "pagers.py").write_text(PAGERS, encoding="utf-8")
    return tmp_path


_REPORTED = """
with create_session() as session:
    from airflow.models.connection import Connection
    session.add(Connection(conn_id="warehouse", conn_type="generic", password="hunter-of-rows"))
done = bag.dags["cdc_report"].test(run_conf={"batch": 1})
heard = home / "heard.jsonl"
tasks = {f"{ti.task_id}[{ti.map_index}]": [str(ti.state), ti.rendered_map_index] for ti in done.get_task_instances()}
say([str(done.state), tasks, [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []])
"""


TEXTS = ["{{ conn.warehouse.password }}", "{% include 'x' %}", "{% broken", "{{ 7 * 7 }}", "{# nothing #}"]


def test_what_a_node_calls_a_type_is_no_template(home: Path) -> None:
    """Reasons quote schemas, which nodes write; Airflow renders what it maps tasks over."""
    store = LocalStore(home / "bucket")
    refused = [RefusedTable(table=f"shop.t{n}", table_id=UUID(int=n), reason=f"the type {text} is unknown") for n, text in enumerate(TEXTS)]
    seal(store, 1, refused)
    state, tasks, heard = run(_REPORTED, home, pipeline(home, HEARS), ["cdc_report"])
    assert state == "failed"
    assert [tasks[f"table[{n}]"] for n in range(len(TEXTS))] == [["failed", f"shop.t{n}"] for n in range(len(TEXTS))]
    told = "".join(text for _, text in heard)
    for n, text in enumerate(TEXTS):
        assert f"shop.t{n}: table rejected: the type {text} is unknown" in told


def test_labels_fit_into_the_database_of_airflow(home: Path) -> None:
    """PostgreSQL refuses a longer one with the state of the task; SQLite, which this test has, does not."""
    store = LocalStore(home / "bucket")
    name = f"shop.{'orders_' * 60}end"
    seal(store, 1, [REFUSED.model_copy(update={"table": name})], [problem(None, "damage")], quarantined=1)
    write_published(store, bucket.CLUSTER, Published(batch=1, events=0, waiting={name: 1}))
    _, tasks, heard = run(_REPORTED, home, pipeline(home, HEARS), ["cdc_report"])
    labels = {task: label for task, (_, label) in tasks.items() if task in ("segment[0]", "table[0]", "waiting_table[0]")}
    assert len(labels) == 3
    for task, label in labels.items():
        assert len(label) <= 250, task
        assert label.endswith(".log" if task == "segment[0]" else "orders_end"), task
    # The message has the whole name.
    assert any(name in told for _, told in heard)


def test_parameters_that_airflow_ignores_are_an_error(home: Path) -> None:
    """With core.dag_run_conf_overrides_params off, the run reported batch 0: nothing, in green."""
    store = LocalStore(home / "bucket")
    seal(store, 1, [REFUSED], quarantined=1)
    more = {"AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS": "False"}
    state, _, heard = run(_REPORTED, home, pipeline(home, HEARS), ["cdc_report"], more)
    assert state == "failed"
    assert all("Airflow ignores what this run was asked for (batch)" in told for _, told in heard)
    assert {channel for channel, _ in heard} >= {"failed_segments", "failed_tables"}


_PAUSED = """
from airflow.models.dag import DagModel
make_known()
with create_session() as session:
    limits = {dag_id: session.get(DagModel, dag_id).max_consecutive_failed_dag_runs for dag_id in bag.dags}
say(limits)
"""


def test_airflow_pauses_no_dag_that_fails(home: Path) -> None:
    """A paused cdc_watch says nothing any more."""
    more = {"AIRFLOW__CORE__MAX_CONSECUTIVE_FAILED_DAG_RUNS_PER_DAG": "3"}
    assert run(_PAUSED, home, pipeline(home, HEARS), ALL, more) == dict.fromkeys(ALL, 0)


_BACKFILL = """
from airflow.models.backfill import Backfill, ReprocessBehavior, _create_backfill
from airflow.api.common.trigger_dag import trigger_dag
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType

make_known()
day = datetime(2026, 5, 4, tzinfo=timezone.utc)

def backfill(dag_id, hour, conf=None):
    about = {"from_date": day.replace(hour=hour), "to_date": day.replace(hour=hour, minute=30), "max_active_runs": 10, "reverse": False}
    how = {"dag_run_conf": conf, "reprocess_behavior": ReprocessBehavior.COMPLETED, "triggering_user_name": "ann"}
    try:
        made = _create_backfill(dag_id=dag_id, **about, **how)
        with create_session() as session:
            session.get(Backfill, made.id).completed_at = day
        return "made"
    except Exception as error:
        return type(error).__name__

made = {dag_id: backfill(dag_id, 3) for dag_id in sorted(bag.dags)}

# By hand, for the hour of a date; then a backfill takes the run over.
given = {1: {"start": "2020-01-01T00:00Z", "end": "2020-01-01T01:00Z"}, 2: {"namespace": "check"}, 4: {}}
for hour, conf in given.items():
    trigger_dag("cdc_replay", triggered_by=DagRunTriggeredByType.REST_API, logical_date=day.replace(hour=hour), conf=conf)
with create_session() as session:
    for dag_run in session.scalars(select(DagRun)):
        dag_run.state = DagRunState.SUCCESS
for hour in given:
    backfill("cdc_replay", hour)
backfill("cdc_replay", 5, {"namespace": "check"})
backfill("cdc_replay", 6, given[1])
runs = {}
with create_session() as session:
    for dag_run in session.scalars(select(DagRun).where(DagRun.dag_id == "cdc_replay", DagRun.run_type == "backfill")):
        runs[dag_run.logical_date.hour] = [dag_run.run_id, dag_run.conf]

import writetime_operators as ops
from types import SimpleNamespace
found = {}
for hour, (run_id, conf) in runs.items():
    # As the task of such a run is asked; what a run is, `runs` has from Airflow.
    params = {"start": None, "end": None, "namespace": None} | conf
    try:
        ops._expect_own_params({"dag_run": SimpleNamespace(run_type="backfill", run_id=run_id, conf=conf), "params": params})
        found[hour] = ""
    except ops.AirflowFailException as error:
        found[hour] = str(error)
say([made, found])
"""


def test_only_what_is_of_an_interval_can_be_backfilled(home: Path) -> None:
    """A backfill has its own limit of active runs, and each run of another DAG would do the work of today."""
    config = pipeline(home, HEARS)
    text = config.read_text(encoding="utf-8").replace("airflow:\n", "airflow:\n  audit_schedule: '0 * * * *'\n", 1)
    config.write_text(text, encoding="utf-8")
    made, found = run(_BACKFILL, home, config, ALL)
    assert {dag_id for dag_id, answer in made.items() if answer == "made"} == {"cdc_audit", "cdc_replay"}
    # A backfill without parameters keeps those of the run that it takes over.
    assert {int(hour): text.partition(".")[0] for hour, text in found.items()} == {
        1: "a run of a backfill replays its own hour, but this one has `start`, `end`: it was triggered by hand before, and Airflow kept "
        "its parameters",
        2: "a run of a backfill replays its own hour, but this one has `namespace`: it was triggered by hand before, and Airflow kept its "
        "parameters",
        3: "",
        4: "",
        5: "",
        6: "a run of a backfill replays its own hour, but this one has `start`, `end`",
    }


_LOADED = """
say([sorted({dag_id.partition("__")[2] for dag_id in bag.dags}), sorted({task.pool for task in bag.dags["cdc_watch__orders"].tasks})])
"""
BROKEN = {
    "minutes": "airflow: {watch: {stuck_minutes: 1.0e+300}}",
    "pool": f"airflow: {{pool: {'x' * 300}}}",
    "p" * 101: "",
}


def test_a_value_that_airflow_refuses_takes_no_dag_of_others_away(home: Path) -> None:
    folder = home / "pipelines"
    folder.mkdir()
    for name, text in {"orders": "airflow: {pool: nowhere}", **BROKEN}.items():
        about = f"pipeline: {name}\ncluster: {{name: {name}, datacenters: [dc1]}}\nbucket: {name}\n{text}\n"
        (folder / f"{name[:9]}.yaml").write_text(about, encoding="utf-8")
    names, pools = run(_LOADED, home, folder, ["cdc_ingest", "cdc_watch"])
    assert names == ["orders"]
    # The alarm does not wait for a pool that nobody has made.
    assert pools == ["default_pool"]


_CONNECTIONS = """
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
import writetime_operators as ops
from writetime.config.pipeline import load
found = {}
for name in os.environ["NAMES"].split():
    connection = ops.BaseHook.get_connection(name)
    try:
        ops.expect_client_mode(connection, load(os.environ["WRITETIME_CONFIG"]))
        refused = ""
    except ops.AirflowFailException as error:
        refused = str(error)
    # As the provider reads it.
    found[name] = [SparkSubmitHook(conn_id=name)._connection["master"], ops._is_local(connection), refused]
say(found)
"""
CLIENT = '{"conn_type": "spark", "host": "%s", "extra": {"deploy-mode": "client"}}'
CONNECTIONS: dict[str, tuple[str, tuple[str, bool, bool]]] = {
    # The connection; its master, whether that is this machine, whether it is refused.
    "here": (CLIENT % "local[2]", ("local[2]", True, False)),
    "plain": (CLIENT % "local", ("local", True, False)),
    "failures": (CLIENT % "local[*, 4]", ("local[*, 4]", True, False)),
    "uri": ("spark://local%5B2%5D", ("local[2]", True, False)),
    "named_so": ("spark://local-master:7077", ("spark://local-master:7077", False, False)),
    "loopback": ("spark://localhost:7077", ("spark://localhost:7077", False, False)),
    "cluster": (CLIENT % "spark://m:7077", ("spark://m:7077", False, False)),
    "away": (CLIENT.replace("client", "cluster") % "yarn", ("yarn", False, True)),
    "away_too": ("spark://m:7077?deploy-mode=cluster", ("spark://m:7077", False, True)),
}


def test_connections_are_read_as_the_provider_reads_them(home: Path) -> None:
    more = {f"AIRFLOW_CONN_{name.upper()}": text for name, (text, _) in CONNECTIONS.items()}
    found: dict[str, Any] = run(_CONNECTIONS, home, pipeline(home, HEARS), [], more | {"NAMES": " ".join(CONNECTIONS)})
    assert {name: (master, local, bool(why)) for name, (master, local, why) in found.items()} == {
        name: wanted for name, (_, wanted) in CONNECTIONS.items()
    }
    assert "`deploy-mode` of the connection `away` asks for another deploy mode than `client`" in found["away"][2]
