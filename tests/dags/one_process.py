"""Airflow's own task runner, API and database in one process: what a DAG's tasks ask of Airflow, and what it
answers, without its four processes.

Strategy: a script runs in a process of its own, since Airflow configures itself once per process, with a copy of
an empty database of the installed version. `dag.test()` runs tasks with the API server's code in the process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools import ROOT
from tools.services.airflow import template_database

PRELUDE = """
import json, logging, os
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
import structlog
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms, InProcessTestSupervisor, set_supervisor_comms
from airflow.utils.session import create_session
from sqlalchemy import select
import psutil

logging.disable(logging.WARNING)
home = Path(os.environ["AIRFLOW_HOME"])
dags = os.environ["AIRFLOW__CORE__DAGS_FOLDER"]
bag = BundleDagBag(dag_folder=dags, bundle_path=Path(dags), bundle_name="dags-folder")
assert not bag.import_errors, bag.import_errors

def make_known():
    # As the DAG processor does.
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(bag, "dags-folder", None)

def runs(dag_id):
    with create_session() as session:
        return [(run.run_id, run.conf) for run in session.scalars(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id))]

asked = []

class Channel(InProcessSupervisorComms):
    def send(self, msg):
        asked.append(msg)
        return super().send(msg)

@contextmanager
def asking(task_id):
    # The channel of a task, or of a callback in the DAG processor, to Airflow.
    about = {"id": task_id, "pid": os.getpid(), "process": psutil.Process(), "process_log": structlog.get_logger()}
    supervisor = InProcessTestSupervisor(**about, client=InProcessTestSupervisor._api_client())
    supervisor.comms = Channel(supervisor=supervisor)
    with set_supervisor_comms(supervisor.comms):
        yield

def say(found):
    print("@@" + json.dumps(found))
"""


def run(script: str, home: Path, config: Path, dags: Iterable[str], more: Mapping[str, str] | None = None) -> Any:
    """What the script says, after `PRELUDE`, where Airflow has the named files of `dags/` only. `more`: of the environment."""
    folder = home / "dags"
    folder.mkdir(exist_ok=True)
    for name in dags:
        (folder / f"{name}.py").symlink_to(ROOT / "dags" / f"{name}.py")
    shutil.copyfile(template_database(), home / "airflow.db")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "WRITETIME"))}
    env = inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        # A machine that has other work may take more than 30 s for a file.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "WRITETIME_CONFIG": str(config),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"), str(home))),
        **(more or {}),
    }
    command = [sys.executable, "-c", PRELUDE + script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=home)
    marked = [line for line in done.stdout.splitlines() if line.startswith("@@")]
    assert marked, done.stdout[-4000:] + done.stderr[-8000:]
    return json.loads(marked[-1][2:])
