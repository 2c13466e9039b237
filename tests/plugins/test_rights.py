"""Who sees what of the page, in Airflow's own API server with the plugin in it: every route of the app, enumerated from
the app, is asked for everything by users of one pipeline, of none and of all."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.plugins.live_app import run

pytest.importorskip("airflow", reason="Airflow comes with the extra `airflow`")
RIGHTS = {
    "ann": {"GET": ["cdc_*__orders"], "POST": ["cdc_*__orders"]},
    "nia": {},
    "vic": {"GET": ["cdc_*__broken"]},
    "adam": {"GET": ["*"], "POST": ["*"]},
}


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("airflow")
    return run("rights_walk", home, home / "installation" / "pipelines", RIGHTS)


def test_all_routes_are_asked(walked: Any) -> None:
    assert walked["routes"] >= 40
    assert walked["requests"] > 200
    assert walked["files"] == ["/files"], "only the style sheet, the script and the icon are for everyone"


def test_without_a_login_all_answers_are_one(walked: Any) -> None:
    """Whatever the path and the method: they do not tell which pipelines there are."""
    with_text = [answer for answer in walked["anonymous"] if answer[1].strip()]
    assert {status for status, _ in walked["anonymous"]} == {401}
    assert len(with_text) == 1, with_text


def test_a_user_of_no_pipeline_learns_of_none(walked: Any) -> None:
    assert {status for status, _ in walked["of none"]} == {403}
    messages = {re.sub(r"\s+", " ", found[1]) for _, text in walked["of none"] if (found := re.search(r'class="alarm">([^<]*)<', text))}
    assert messages == {
        "You may not see the DAG cdc_ingest of any pipeline, so you may not see this page.",
        "You may not see the DAG cdc_ingest__*, so you may not see this page.",
    }


def test_a_user_of_one_pipeline_cannot_tell_whether_there_are_others(walked: Any) -> None:
    assert walked["answered to ann"] == ["orders"]
    assert walked["seen by ann"] == []
    assert walked["told apart by ann"] == []


def test_an_admin_sees_all_of_it(walked: Any) -> None:
    """Otherwise the other tests would look for what nobody is shown."""
    assert walked["answered to an admin"] == ["orders", "payroll"]
    assert walked["admin"] == walked["markers"]


def test_who_may_see_the_dags_of_a_pipeline_is_shown_why_its_file_cannot_be_used(walked: Any) -> None:
    ((request, (status, text)),) = walked["vic"].items()
    assert (request.strip(), status) == ("GET /", 200)
    assert "broken.yaml: `nodes`: is not a known key" in text
    assert [word for word in ("orders", "payroll", "Prod", "Wage", "obody", "twin") if word in text] == []


def test_import_errors_which_airflow_shows_to_all_name_no_pipeline(walked: Any) -> None:
    """Airflow hides an import error of a file only if it knows DAGs of the file."""
    (error,) = walked["import errors"]
    assert "WRITETIME_CONFIG: files cannot be used, or not completely" in error
    assert "/writetime/ lists them" in error
    assert [word for word in ("orders", "payroll", "broken", "known key", "obody", "twin", ".yaml") if word in error] == []
