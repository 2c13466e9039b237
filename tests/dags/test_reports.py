"""What a session triggers in Airflow, as Airflow's own API answers, and that of tests' doubles of task instances it
holds what they say."""

from __future__ import annotations

from pathlib import Path

from tests.dags.one_process import run
from tests.monitoring import bucket
from writetime.storage.local import LocalStore

_HOURS = """
from uuid import uuid4
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors
import writetime_operators as ops
import writetime_session
from writetime.pipeline.documents import Watermark
from writetime.storage import layout

config = os.environ["WRITETIME_CONFIG"]
loaded, store = ops.opened(config)
cluster = loaded.cluster.name
asset = Asset("writetime_complete", uri="writetime://p/complete")
log = logging.getLogger("test")

def until(hour, minute):
    at = datetime(2026, 11, 25, hour, minute, tzinfo=timezone.utc)
    store.put(layout.complete(cluster), Watermark(until=at).to_bytes())

def ran(succeeds=True):
    # As a worker runs it: the events go with the success, the callback follows it.
    operator = ops.CompletedHoursOperator(task_id="completed_hours", config=config, outlets=[asset]).prepare_for_execution()
    context = {"outlet_events": OutletEventAccessors(), "task": operator}
    try:
        operator.execute(context)
    except ops.AirflowSkipException as error:
        return str(error)
    if succeeds:
        task_runner._run_task_state_change_callbacks(operator, "on_success_callback", context, log)
    events = list(task_runner._serialize_outlet_events(context["outlet_events"]))
    assert {event["dest_asset_key"]["uri"] for event in events} == {asset.uri}
    return sorted(event["partition_key"] for event in events)

reporter = writetime_session.Reporter(store, cluster, "cdc_report", log)
def look(**how):
    with asking(uuid4()):
        reporter.look(**how)

def triggered():
    return [[run_id.rpartition("_")[0], conf] for run_id, conf in runs("cdc_report")]

make_known()
found = [ran()]
look(last=True)
until(21, 59)
look()
look(last=True)
found += [ran(succeeds=False), ran(), ran()]
look(last=True)
until(23, 1)
look()
found += [triggered()]
look(last=True)
found += [ran(), ran(), triggered()]
say(found)
"""


def test_each_completed_hour_is_an_event_with_the_hour_as_partition_key(tmp_path: Path) -> None:
    LocalStore(tmp_path / "bucket")
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")
    nothing, killed, first, second, before, more, done, triggered = run(_HOURS, tmp_path, config, ["cdc_report"])
    assert nothing == second == done == "no hour has been completed since the last event"
    # A task that ended before it was recorded creates the event again.
    assert killed == first == ["2026-11-25T20"]
    assert more == ["2026-11-25T21", "2026-11-25T22"]
    # A session triggers one run for all that is new, and looks every half a minute.
    assert before == [["hours_2026-11-25T20", {"batch": 0}]]
    assert triggered == [*before, ["hours_2026-11-25T22", {"batch": 0}]]


_REPORTS = """
from uuid import UUID, uuid4
import writetime_operators as ops
import writetime_session
from airflow.sdk.execution_time.comms import TriggerDagRun
from writetime.pipeline import sessions
from writetime.pipeline.documents import Manifest
from writetime.storage import layout

loaded, store = ops.opened(os.environ["WRITETIME_CONFIG"])
cluster, log = loaded.cluster.name, logging.getLogger("test")
make_known()
now = datetime(2026, 11, 25, 21, tzinfo=timezone.utc)
state = sessions.SessionState(id="3f2a9b7c", started_at=now, updated_at=now, until=now + timedelta(hours=1))
reporter = writetime_session.Reporter(store, cluster, "cdc_report", log)

def reported(minute, **changes):
    # The runs that Airflow has got by what the session notes then.
    global state
    state = state.noted(now + timedelta(minutes=minute), **changes)
    sessions.write_state(store, cluster, state)
    before = len(runs("cdc_report"))
    with asking(uuid4()):
        reporter.look()
    return runs("cdc_report")[before:]

def batch_of_chain(number):
    manifest = Manifest(number=3, kind="ingest", cluster=cluster, created_at=now, now=1, base=2, segments=[], id=UUID(int=number << 96))
    store.put(layout.batch_object(cluster, 3, "manifest"), manifest.to_bytes())

def of_another_session(minute):
    global reporter, state
    reporter = writetime_session.Reporter(store, cluster, "cdc_report", log)
    fresh = sessions.SessionState(id=uuid4().hex, started_at=now + timedelta(minutes=minute), updated_at=now, until=now)
    state = fresh.with_problems_of(sessions.read_state(store, cluster))

away = {"publish_error": "KafkaError: broker transport failure"}
with asking(uuid4()):
    old = [TriggerDagRun(dag_id="cdc_report", run_id="batch_3", logical_date=now) for _ in range(2)]
    old = [task_runner.SUPERVISOR_COMMS.send(each) for each in old]
found = {"refused": old[1].error.value}
batch_of_chain(1)
found["publishing"] = [
    reported(0, **away),
    reported(1, publish_error="KafkaError: another text"),
    reported(2, publish_error=""),
    reported(3, **away),
]
found["batch"] = [reported(4, failed=[3]), reported(5, failed=[3])]
found["tables"] = [reported(6, waiting={"shop.a": 0}), reported(7, waiting={}), reported(8, waiting={"shop.a": 0})]
of_another_session(9)
found["another session"] = [reported(10, failed=[3]), reported(11, **away), reported(12, waiting={"shop.a": 0})]
batch_of_chain(2)
of_another_session(13)
found["another chain"] = [reported(14, failed=[3])]
reporter = writetime_session.Reporter(store, cluster, "no_such_dag", log)
found["unknown"] = [reported(15), sorted(reporter._triggered)]
say(found)
"""


def test_an_occurrence_is_reported_once_and_each_one_is(tmp_path: Path) -> None:
    """Airflow has a run `batch_3` of an earlier life of the bucket, and keeps all others."""
    LocalStore(tmp_path / "bucket")
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")
    found = run(_REPORTS, tmp_path, config, ["cdc_report"])
    assert found["refused"] == "DAGRUN_ALREADY_EXISTS"
    nothing = {"batch": 0}
    assert found["publishing"] == [[["publish_20261125T210000Z", nothing]], [], [], [["publish_20261125T210300Z", nothing]]]
    assert found["batch"] == [[["batch_3_20261125T210000Z_00000001", {"batch": 3}]], []]
    first, over, again = found["tables"]
    assert [name.rpartition("_")[0] for ((name, _),) in (first, again)] == ["tables_20261125T210600Z", "tables_20261125T210800Z"]
    assert over == []
    assert found["another session"] == [[], [], []]
    assert found["another chain"] == [[["batch_3_20261125T210000Z_00000002", {"batch": 3}]]]
    assert found["unknown"] == [[], []]


_DOUBLES = """
import sys
sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
run = bag.dags["asks"].test()
say([str(run.state), json.loads((home / "answers.json").read_text())])
"""

_ASKS = """
import json, os
from datetime import datetime
from pathlib import Path
from airflow.sdk import DAG, task

with DAG("asks", schedule=None):

    @task
    def plan():
        return 7

    @task
    def ask(rendered, ti=None, dag_run=None, **context):
        answers = [rendered, ti.xcom_pull(task_ids="plan"), ti.get_dag("asks").is_paused, ti.try_number, ti.map_index]
        answers += [isinstance(dag_run.run_after, datetime), ti.get_first_reschedule_date(context), dag_run.run_type]
        Path(os.environ["AIRFLOW_HOME"], "answers.json").write_text(json.dumps(answers))

    plan() >> ask("{{ ti.xcom_pull(task_ids='plan') }}")
"""


def test_task_instances_answer_as_their_doubles_do(tmp_path: Path) -> None:
    """Those of `test_dags.py`, which says in one process what operators do with the answers."""
    config = tmp_path / "pipeline.yaml"
    config.write_text("pipeline: p\ncluster: {name: c, datacenters: [dc1]}\nbucket: bucket\n", encoding="utf-8")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "asks.py").write_text(_ASKS, encoding="utf-8")
    state, answers = run(_DOUBLES, tmp_path, config, [])
    assert (state, answers) == ("success", ["7", 7, True, 1, -1, True, None, "manual"])
