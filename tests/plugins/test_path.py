"""The page of an Airflow that is served under a path, with a proxy in front (`[api] base_url`): links, files, the menu,
buttons, redirects and logins, in Airflow's own app. tests/airflow/test_deployment.py has it with Airflow's processes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("airflow", reason="Airflow comes with the extra `airflow`")
from tests.monitoring import bucket
from tests.plugins.access_contract import RIGHTS
from tests.plugins.live_app import run

pytestmark = pytest.mark.thorough

PATH = "/tools/airflow"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("airflow")
    bucket.small(home / "bucket")
    config = home / "pipeline.yaml"
    config.write_text(f"pipeline: page\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\n", encoding="utf-8")
    return run("under_a_path", home, config, RIGHTS, AIRFLOW__API__BASE_URL=f"https://tools.example{PATH}")


def test_links_and_files_are_below_the_path(found: Any) -> None:
    assert found["pages"].pop("nothing") == 404
    assert set(found["pages"].values()) == {200}
    assert found["elsewhere"] == []
    assert {link: status for link, status in found["links"].items() if status != 200} == {}
    assert f"{PATH}/writetime/files/page.css" in found["links"]


def test_the_menu_leads_there(found: Any) -> None:
    assert found["menu"] == [[f"{PATH}/writetime/", f"{PATH}/writetime/files/icon.svg"]]


def test_buttons_are_pressed_in_the_browsers_host_and_not_from_elsewhere(found: Any) -> None:
    done = [303, f"{PATH}/writetime/started", [f"{PATH}/dags/cdc_replay/runs/"]]
    assert found["buttons"] == {"browser": done, "proxy": done, "other site": [403, "", []]}


def test_a_redirect_names_neither_scheme_nor_host(found: Any) -> None:
    assert found["redirect"] == [307, f"{PATH}/writetime/segments?node=x"]


def test_the_cookie_of_airflows_login_counts(found: Any) -> None:
    assert (found["with the cookie"], found["without a login"]) == (200, 401)
