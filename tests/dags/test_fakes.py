"""What the fakes of this folder answer is what Airflow answers: the same is asked in a task that Airflow's own task runner
runs, with the API server's code and a database in the process.

* `fakes.instance`: `RuntimeTaskInstance`; `fakes.context`: what templates are rendered with.
* `SparkSubmitHook.submit` and `_mask_cmd`, which test_dags replaces: methods of the Spark provider.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow", reason="Airflow comes with the extra `airflow`")
from tests.dags import fakes
from tools.services.airflow import template_database

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
LINES = (
    "{{ ti.xcom_pull(task_ids='plan') }}",
    "{{ params.start or data_interval_start.isoformat() }}",
    "{{ params.end or data_interval_end.isoformat() }}",
    "{{ params.namespace or '' }}",
    "{{ (dag_run.run_after - macros.timedelta(hours=params.late)).isoformat() }}",
)
PARAMS = {"start": None, "end": None, "namespace": "check", "late": 3}

_PROBE = """
import inspect, json, sys
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from tests.dags import fakes

folder = sys.argv[1]
DagBundlesManager().sync_bundles_to_db()
bag = BundleDagBag(folder, bundle_path=folder, bundle_name="dags-folder")
assert not bag.import_errors, bag.import_errors
sync_bag_to_db(bag, "dags-folder", None)
with create_session() as session:
    for dag_id in (fakes.PAUSED, fakes.UNPAUSED):
        session.get(DagModel, dag_id).is_paused = dag_id == fakes.PAUSED
bag.dags["probe"].test(run_after=fakes.MOMENT.replace(hour=13), logical_date=fakes.MOMENT.replace(hour=13))
"""

_DAGS = """
import json
from airflow.sdk import DAG, BaseOperator, CronDataIntervalTimetable
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
import inspect
from tests.dags import fakes
from tests.dags.test_fakes import LINES, PARAMS

for other in (fakes.PAUSED, fakes.UNPAUSED):
    with DAG(other, schedule=None):
        BaseOperator(task_id="nothing")

class Plan(BaseOperator):
    def execute(self, context):
        return 7

class Probe(BaseOperator):
    template_fields = ("lines",)

    def __init__(self, lines, **kwargs):
        super().__init__(**kwargs)
        self.lines = lines

    def execute(self, context):
        found = {"answers": {what: ask(context) for what, ask in fakes.ANSWERS.items()}, "lines": list(self.lines)}
        found["is"] = type(context["ti"]).__name__
        found["hook"] = {
            name: list(inspect.signature(getattr(SparkSubmitHook, name)).parameters)
            for name in ("submit", "_mask_cmd", "_build_spark_submit_command")
        }
        with open(HOME + "/found.json", "w") as file:
            json.dump(found, file)

with DAG("probe", schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"), start_date=fakes.MOMENT, catchup=False, params=PARAMS):
    Plan(task_id="plan") >> Probe(task_id="probe", lines=list(LINES))
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("airflow")
    shutil.copyfile(template_database(), home / "airflow.db")
    (home / "dags").mkdir()
    (home / "dags" / "probe.py").write_text(f"HOME = {str(home)!r}\n{_DAGS}", encoding="utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "WRITETIME"))}
    env = inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API_AUTH__JWT_SECRET": "of this test, as long as sixty-four bytes have to be for it: ......",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "no-plugins"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(home / "dags")], env=env, capture_output=True, text=True, check=False, cwd=home
    )
    found = home / "found.json"
    assert found.exists(), done.stdout[-3000:] + done.stderr[-5000:]
    return json.loads(found.read_text(encoding="utf-8"))


def test_the_fakes_answer_as_airflow_does(live: Any) -> None:
    assert live["is"] == "RuntimeTaskInstance"
    faked = fakes.context(**PARAMS)
    assert {what: ask(faked) for what, ask in fakes.ANSWERS.items()} == live["answers"]


def test_templates_are_rendered_alike(live: Any) -> None:
    from airflow.sdk.definitions._internal.templater import SandboxedEnvironment
    from airflow.sdk.execution_time import macros

    faked = fakes.context(**PARAMS) | {"macros": macros}
    assert [SandboxedEnvironment().from_string(line).render(**faked) for line in LINES] == live["lines"]


def test_the_spark_provider_calls_what_the_tests_replace(live: Any) -> None:
    """A hook that is renamed would not be replaced, and a job would be started."""
    assert live["hook"]["submit"][:2] == ["self", "application"]
    assert live["hook"]["_build_spark_submit_command"][:2] == ["self", "application"]
    assert live["hook"]["_mask_cmd"][:2] == ["self", "connection_cmd"]
