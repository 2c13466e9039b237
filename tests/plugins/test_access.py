"""Airflow as the page knows it: `AirflowAccess` in a real API server, and that the stand-in of the other tests answers as
it does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow", reason="Airflow comes with the extra `airflow`")
from fastapi import Request

from tests.plugins.access_contract import RIGHTS, behaviour, request
from tests.plugins.live_app import ROOT, run
from tests.plugins.test_page import Guard


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "plugins"))
    try:
        import writetime_page_app

        yield writetime_page_app
    finally:
        sys.path.remove(str(ROOT / "plugins"))


def pipelines(home: Path, *names: str) -> Path:
    folder = home / "pipelines"
    folder.mkdir()
    for name in names:
        text = f"pipeline: {name}\ncluster: {{name: {name}, datacenters: [dc1]}}\nbucket: {name}\n"
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("airflow")
    return run("access_live", home, pipelines(home, "bets", "orders"), RIGHTS, AIRFLOW__API__BASE_URL="https://airflow.example")


def test_airflow_decides_who_may_what(live: Any) -> None:
    found = live["behaviour"]
    assert (found["without a login"], found["forged"]) == (401, 403)
    assert found["bookmaker"] == {"is named": True, "reads": ["cdc_ingest__bets"], "triggers": []}
    assert found["replayer"]["triggers"] == ["cdc_replay__bets", "cdc_replay__orders"]
    assert found["stranger"] == {"is named": True, "reads": [], "triggers": []}
    assert found["unknown DAG"] == [409, True]
    assert found["hosts"] == ["frozenset", ["str"]]


def test_a_run_is_started_as_its_users(live: Any) -> None:
    assert live["runs"] == [["cdc_replay__bets", {"start": "2026-05-04T12:00Z"}, "operator", "a <note>", "ui"]]


def test_the_stand_in_of_other_tests_answers_as_airflow_does(live: Any, page: Any) -> None:
    def request_of(user: str) -> Request:
        return request({"user": user} if user else {})

    assert json.loads(json.dumps(asyncio.run(behaviour(Guard(page.Started), request_of)))) == live["behaviour"]


@pytest.mark.thorough
def test_a_dag_that_airflow_never_had_is_of_no_team(tmp_path: Path) -> None:
    """To Airflow a DAG without a team is one of all teams. The file of a pipeline whose YAML was never valid has none
    yet, and its problem is for those who see the DAGs of all teams."""
    bundle = [
        {
            "name": "dags-folder",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(ROOT / "dags")},
            "team_name": "shop",
        }
    ]
    found = run(
        "access_teams",
        tmp_path,
        pipelines(tmp_path, "orders"),
        {name: {} for name in ("ann", "bob", "adam")},
        AIRFLOW__CORE__AUTH_MANAGER="airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
        AIRFLOW__CORE__MULTI_TEAM="True",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="ann:viewer:shop,bob:viewer:other,adam:admin:other",
        AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps(bundle),
    )
    assert found == {"ann": [True, False], "bob": [False, False], "adam": [True, True]}
