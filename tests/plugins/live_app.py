"""Airflow's own API server in a process, with the plugin in it: its app, auth manager, database and DAGs, no fakes.
Only the port is missing.

Airflow configures itself once per process, so a test runs a module of this folder by `run` and reads what it
prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.services.airflow import template_database

ROOT = Path(__file__).resolve().parents[2]
RIGHTS = "WRITETIME_TEST_RIGHTS"
_MARK = "@@"


def run(module: str, home: Path, config: Path, rights: Mapping[str, Mapping[str, list[str]]], **more: str) -> Any:
    """What the module of this folder reports, in an Airflow whose users have these rights: by user and method, the
    patterns of DAG ids."""
    shutil.copyfile(template_database(), home / "airflow.db")
    (home / "passwords.json").write_text(json.dumps(dict.fromkeys(rights, "x")), encoding="utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "WRITETIME"))}
    env = inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API_AUTH__JWT_SECRET": "of this test, as long as sixty-four bytes have to be for it: ......",
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.plugins.rights_by_dag.RightsByDag",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:viewer" for name in rights),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"))),
        "WRITETIME_CONFIG": str(config),
        RIGHTS: json.dumps(rights),
        **more,
    }
    command = [sys.executable, "-m", f"tests.plugins.{module}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=home)
    marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    assert marked, done.stdout[-3000:] + done.stderr[-5000:]
    return json.loads(marked[-1].removeprefix(_MARK))


def report(found: Any) -> None:
    """To the test, from the process."""
    print(_MARK + json.dumps(found))


# --- in the process


class Server:
    """The API server's app, with the DAGs of WRITETIME_CONFIG in its database. `path`: that of `base_url`."""

    def __init__(self, path: str = "") -> None:
        from airflow.api_fastapi.app import create_app
        from fastapi.testclient import TestClient

        sync_dags()
        self.path = path
        # As a browser's address: a redirect has it.
        self.client = TestClient(create_app(), base_url="http://testserver", raise_server_exceptions=False)

    @property
    def page(self) -> Any:
        """The page's own app, as the plugin has built it for the next request."""
        from airflow.plugins_manager import get_fastapi_plugins

        (plugin,) = [each["app"] for each in get_fastapi_plugins()[0] if each["name"] == "writetime"]
        return plugin._app()

    def log_in(self, user: str) -> dict[str, str]:
        """The headers of a user's requests."""
        answer = self.client.post(f"{self.path}/auth/token", json={"username": user, "password": "x"})
        assert answer.status_code == 201, answer.text
        # Else the cookie would be that of the last one.
        self.client.cookies.clear()
        return {"authorization": f"Bearer {answer.json()['access_token']}"}


def sync_dags() -> None:
    """Put the DAGs of WRITETIME_CONFIG into Airflow's database, as the DAG processor does."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    path = ROOT / "dags"
    sync_bag_to_db(BundleDagBag(str(path), bundle_path=path, bundle_name="dags-folder"), "dags-folder", None)
