"""The page in a running Airflow, as a person uses it: by the menu, in a browser, in the dark, and its two
buttons. `make test-airflow`.

The bucket is a made-up one of some batches, so nothing has to be ingested first, and the DAGs stay paused: a
button's run has to be there, as somebody's. Pictures of all views go to var/test-airflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.airflow.browser import Browser, browsing
from tests.airflow.test_live import PICTURES
from tests.monitoring import bucket
from tools.services.airflow import Airflow
from writetime.pipeline.documents import LedgerEntry
from writetime.storage.local import LocalStore

pytestmark = [pytest.mark.browser, pytest.mark.airflow, pytest.mark.timeout(900)]

VIEWS = ("", "segments", "batches", "batches/3", "tables", "checks", "quarantine", "replay")
BAD = bucket.ref(0, 6)
DARK, LIGHT = "rgb(15, 19, 24)", "rgb(255, 255, 255)"


@dataclass
class Page:
    store: LocalStore
    airflow: Airflow
    browser: Browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    bucket.small(folder / "bucket")
    schedules = ("audit_schedule", "bootstrap_schedule", "ingest_schedule", "maintain_schedule", "publish_fallback", "verify_schedule")
    pipeline = {
        "pipeline": "page",
        "cluster": {"name": bucket.CLUSTER, "datacenters": ["dc1", "dc2"]},
        "bucket": str(folder / "bucket"),
        "airflow": {**dict.fromkeys(schedules), "watch": {"schedule": None}},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")
    with (
        Airflow(folder / "airflow", config=folder / "pipeline.yaml", port=0) as airflow,
        browsing(airflow.url, folder, PICTURES) as browser,
    ):
        browser.log_in("admin", airflow.password)
        yield Page(LocalStore(folder / "bucket"), airflow, browser)


def test_by_the_menu_and_by_a_search(page: Page) -> None:
    page.browser.open_menu("writetime")
    page.browser.see("1 segment in quarantine needs an operator")
    page.browser.follow("Segments")
    page.browser.see("CommitLog-7-1777890000006")
    page.browser.fill("name", "CommitLog-7-1777890000006")
    page.browser.fill("node", bucket.NODES[0].host_id)
    page.browser.click("Find")
    page.browser.follow("CommitLog-7-1777890000006")
    page.browser.see("<script>boo</script>")
    page.browser.picture("page-by-the-menu")
    page.browser.leave_frame()


@pytest.mark.parametrize(("theme", "colour"), [("dark", DARK), ("light", LIGHT)])
def test_every_view_in_both_themes(page: Page, theme: str, colour: str) -> None:
    page.browser.open_page("")
    page.browser.theme(theme)
    for view in VIEWS:
        page.browser.open_page(view)
        page.browser.see("Quarantine")
        assert page.browser.background() == colour, view
        page.browser.picture(f"page-{theme}-{view.replace('/', '-') or 'rings'}")


def test_rerun_asks_once_and_starts_ingest(page: Page) -> None:
    page.browser.open_page(f"segment?name={BAD.incoming.replace('%', '%25')}")
    page.browser.follow("Rerun…")
    page.browser.see("Read this segment again?")
    assert page.airflow.api.runs("cdc_ingest") == []
    page.browser.picture("page-rerun")
    page.browser.click("Rerun it: trigger cdc_ingest")
    page.browser.see("cdc_ingest was started")
    page.browser.see("The DAG is paused")
    (run,) = page.airflow.api.runs("cdc_ingest")
    assert run["triggering_user_name"] == "admin"
    entry = LedgerEntry.read(page.store, BAD.ledger)
    assert entry is not None
    assert entry.state == "retry"


def test_replay_asks_once_and_starts_it_with_these_hours(page: Page) -> None:
    page.browser.open_page("")
    page.browser.follow("Replay hours…")
    page.browser.fill("start", "2026-05-04T12:10")
    page.browser.fill("end", "2026-05-04T12:40")
    page.browser.fill("namespace", "check")
    page.browser.click("Go on…")
    page.browser.see("of them are in the archive")
    assert page.airflow.api.runs("cdc_replay") == []
    page.browser.picture("page-replay")
    page.browser.click("Replay them: trigger cdc_replay")
    page.browser.see("cdc_replay was started")
    (run,) = page.airflow.api.runs("cdc_replay")
    assert run["conf"] == {"start": "2026-05-04T12:00:00+00:00", "end": "2026-05-04T13:00:00+00:00", "namespace": "check"}
