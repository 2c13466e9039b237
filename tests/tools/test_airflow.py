"""The Airflow of demo and tests: its processes run DAGs in the given environment, on loopback, with
persistent secrets.
"""

from __future__ import annotations

import shlex
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.errors import ServiceError
from tools.services import ports
from tools.services.airflow import Airflow
from tools.services.airflow_api import AirflowApi

pytestmark = pytest.mark.airflow

DAG = """
import os
from airflow.sdk import DAG, task

with DAG("probe", schedule=None) as dag:
    @task
    def environment():
        print("a line of the log")
        return {key: os.environ[key] for key in ("WRITETIME_CONFIG", "MORE", "PYSPARK_PYTHON")}

    @task
    def repaired(found):
        assert os.path.exists(os.environ["MORE"]), "not repaired yet"

    repaired(environment())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def airflow(folder: Path) -> Iterator[Airflow]:
    (folder / "dags").mkdir()
    (folder / "plugins").mkdir()
    (folder / "dags" / "probe.py").write_text(DAG)
    config = folder / "pipeline.yaml"
    config.touch()
    service = Airflow(
        folder / "home",
        config=config,
        env={"MORE": str(folder / "repaired")},
        port=0,
        dags=folder / "dags",
        plugins=folder / "plugins",
    )
    service.start(expect=["probe"])
    yield service
    service.stop()


def test_a_task_sees_its_environment_and_is_run_again_when_cleared(airflow: Airflow, folder: Path) -> None:
    api = airflow.api
    api.pause("probe", paused=False)
    run = api.trigger("probe")
    assert api.wait("probe", run, seconds=120) == "failed"
    assert {task["task_id"]: task["state"] for task in api.tasks("probe", run)} == {"environment": "success", "repaired": "failed"}
    seen = api.xcom("probe", run, "environment")
    assert seen["WRITETIME_CONFIG"] == str(folder / "pipeline.yaml")
    assert seen["PYSPARK_PYTHON"] == airflow.environment()["PYSPARK_PYTHON"]
    assert "a line of the log" in api.log("probe", run, "environment")
    assert "not repaired yet" in api.log("probe", run, "repaired")

    (folder / "repaired").touch()
    api.clear("probe", run, ["repaired"])
    assert api.wait("probe", run, seconds=120) == "success"
    assert run in [found["dag_run_id"] for found in api.runs("probe")]


def test_a_wrong_password_is_refused(airflow: Airflow) -> None:
    with pytest.raises(ServiceError, match="401"):
        AirflowApi(airflow.port, "admin", "guess").dags()


def test_the_command_line_sees_the_same_airflow(airflow: Airflow) -> None:
    done = airflow.command("dags", "list", "--output", "plain")
    assert done.returncode == 0, done.stderr
    assert "probe" in done.stdout


def test_all_wait_for_the_one_writer_of_the_database(airflow: Airflow) -> None:
    """`airflow backfill create` came upon a scheduler that was writing, and failed with "database is locked";
    or the other way round.
    """
    writer = sqlite3.connect(airflow.home / "airflow.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    released = threading.Timer(12, writer.execute, ("COMMIT",))
    released.start()
    done = airflow.command("variables", "set", "waited", "for")
    waited = not released.is_alive()
    released.join()
    writer.close()
    assert done.returncode == 0, done.stderr
    assert waited
    assert all(service.alive for service in airflow.services)


SAVEPOINT = """
import sqlite3, sys
from airflow.models import Variable
from airflow.utils.session import create_session
from sqlalchemy import delete, select

with create_session() as session:
    with session.begin_nested():
        session.scalar(select(Variable))
        try:
            sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("INSERT INTO variable (key, val) VALUES ('a', 'b')")
        except sqlite3.OperationalError as error:
            print(f"another's: {error}")
        session.execute(delete(Variable))
        print("done")
"""


def test_nobody_writes_between_reading_and_writing_within_a_savepoint(airflow: Airflow) -> None:
    env = airflow.environment()
    done = subprocess.run([sys.executable, "-c", SAVEPOINT, airflow.home / "airflow.db"], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["another's: database is locked", "done"], done.stdout + done.stderr


def test_secrets_are_readable_by_their_owner_only(airflow: Airflow) -> None:
    for name in ("airflow.cfg", "passwords.json", "secrets.json", "env.sh"):
        assert stat.S_IMODE((airflow.home / name).stat().st_mode) == 0o600, name
    logs = "".join(Path(service.log).read_text(errors="replace") for service in airflow.services)
    assert airflow.password not in logs


def test_a_shell_can_take_over_the_environment(airflow: Airflow) -> None:
    code = f"source {shlex.quote(str(airflow.home / 'env.sh'))}; echo $AIRFLOW_HOME; echo $WRITETIME_CONFIG"
    told = subprocess.run(["bash", "-c", code], env={"PATH": "/usr/bin:/bin"}, check=True, capture_output=True, text=True).stdout
    assert told.split() == [str(airflow.home), airflow.environment()["WRITETIME_CONFIG"]]


def test_all_four_run_and_nothing_listens_on_other_addresses(airflow: Airflow) -> None:
    assert [service.name.removeprefix("airflow-") for service in airflow.services] == [
        "api-server",
        "dag-processor",
        "scheduler",
        "triggerer",
    ]
    assert all(service.alive for service in airflow.services)
    tcp = Path("/proc/net/tcp")
    if not tcp.exists():
        pytest.skip("listeners are read from Linux's /proc")
    inodes = {inode for service in airflow.services for inode in sockets(service.pid)}
    rows = [line.split() for table in (tcp, Path("/proc/net/tcp6")) if table.exists() for line in table.read_text().splitlines()[1:]]
    # Fields: local address as hex:port, …, state (0A is LISTEN), …, inode. proc(5)
    listening = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
    assert listening == {"0100007F"}, "127.0.0.1, in network order"


def sockets(pid: int) -> set[str]:
    """Inodes of a process's sockets."""
    links = [link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}


def test_an_airflow_that_is_running_is_not_started_twice(airflow: Airflow) -> None:
    before = (airflow.home / "airflow.cfg").read_text()
    with pytest.raises(ServiceError, match="airflow-api-server is running already"):
        Airflow(airflow.home, port=0).start()
    assert (airflow.home / "airflow.cfg").read_text() == before
    assert all(service.alive for service in airflow.services)


def test_stopping_ends_every_process(airflow: Airflow) -> None:
    services = list(airflow.services)
    airflow.stop()
    assert not any(service.alive for service in services)
    assert not ports.answers(airflow.port)
