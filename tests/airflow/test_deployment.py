"""Airflow as deployments have it: under a path of a host, behind a proxy, and in a time zone with daylight saving time.

The bucket is a made-up one, and no Spark job runs."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import yaml

from tests.airflow.test_running import Visitor
from tests.monitoring import bucket
from tools.services.airflow import Airflow
from writetime.pipeline.planner import history, read_manifest
from writetime.pipeline.void import void
from writetime.storage import layout
from writetime.storage.local import LocalStore

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800), pytest.mark.thorough]

PATH = "/tools/airflow"
ZONE = "Europe/Berlin"
BAD = bucket.ref(0, 6)
TWICE = datetime(2026, 10, 25, 0, tzinfo=UTC)
"""In Berlin, the hour from 2:00 to 3:00 that comes twice begins here, and again an hour later."""
MISSING = datetime(2026, 3, 29, 1, tzinfo=UTC)
"""Here clocks in Berlin go from 2:00 to 3:00."""
VIEWS = ("", "segments", "batches", "batches/3", "tables", "checks", "quarantine", "cost", "replay")


@dataclass
class Deployment:
    store: LocalStore
    airflow: Airflow
    admin: Visitor


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    bucket.small(folder / "bucket")
    store = LocalStore(folder / "bucket")
    fill_archive(store)
    schedules = ("audit_schedule", "bootstrap_schedule", "maintain_schedule", "publish_fallback", "verify_schedule")
    pipeline = {
        "pipeline": "page",
        "cluster": {"name": bucket.CLUSTER, "datacenters": ["dc1", "dc2"]},
        "bucket": str(folder / "bucket"),
        # In the hour that does not exist on one day in Berlin.
        "airflow": {**dict.fromkeys(schedules), "ingest_schedule": "30 2 * * *", "watch": {"schedule": None}},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")
    zone = {"AIRFLOW__CORE__DEFAULT_TIMEZONE": ZONE, "AIRFLOW__API__DEFAULT_UI_TIMEZONE": ZONE, "TZ": ZONE}
    airflow = Airflow(folder / "airflow", config=folder / "pipeline.yaml", port=0, path=PATH, env=zone)
    try:
        airflow.start(expect=("cdc_ingest", "cdc_replay"), seconds=600)
        yield Deployment(store, airflow, Visitor(airflow, "admin"))
    finally:
        airflow.stop()


def fill_archive(store: LocalStore) -> None:
    """One segment in the first of the hours around both changes of the clocks, two in the second, and so on: the number
    says which hour was meant."""
    for change in (TWICE, MISSING):
        for place in range(4):
            hour = change + timedelta(hours=place - 1)
            for number in range(place + 1):
                sealed_at = hour + timedelta(minutes=30 + number)
                ref = layout.SegmentRef(bucket.NODES[0], layout.SegmentName(int(sealed_at.timestamp()) * 1000, 7))
                store.put(ref.archived(sealed_at), b"x", metadata={"sealed_at": sealed_at.isoformat()})


def text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def until(holds: Callable[[], object], what: str, seconds: float = 300) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, what
        time.sleep(0.5)


# --- under a path


def test_links_and_files_of_the_page_are_below_the_path(deployment: Deployment) -> None:
    links = set()
    for view in VIEWS:
        status, shown = deployment.admin.get(view)
        assert status == 200, view
        links |= set(re.findall(r'(?:href|src|action)="([^"#]*)', shown))
    assert [link for link in links if not link.startswith(f"{PATH}/writetime/")] == []
    for link in sorted(html.unescape(link) for link in links):
        status, headers, _ = deployment.admin.ask(link.removeprefix(f"{PATH}/writetime/"))
        assert status == 200, link
        assert ("max-age" in headers["cache-control"]) == ("/files/" in link)


def test_the_menu_leads_below_the_path(deployment: Deployment) -> None:
    plugins = deployment.airflow.api._call("GET", "/api/v2/plugins")["plugins"]
    (view,) = [view for plugin in plugins if plugin["name"] == "writetime_page" for view in plugin["external_views"]]
    assert (view["href"], view["icon"]) == (f"{PATH}/writetime/", f"{PATH}/writetime/files/icon.svg")


def test_a_redirect_keeps_the_path(deployment: Deployment) -> None:
    status, headers, _ = deployment.admin.ask("segments/?node=x", {"Host": "internal:8080"})
    assert (status, headers["location"]) == (307, f"{PATH}/writetime/segments?node=x")


def test_buttons_work_below_the_path_and_behind_a_proxy(deployment: Deployment) -> None:
    """A proxy may send another host on than the browser's, which is that of `base_url`."""
    hour = {"start": "2020-01-01T00:00", "end": "2020-01-01T01:00"}
    assert deployment.admin.post("replay", hour, origin="http://elsewhere.example")[0] == 403
    for headers in ({}, {"Host": "internal:8080"}, {"Host": "internal:8080", "Sec-Fetch-Site": "same-origin"}):
        status, there = deployment.admin.post("replay", hour, more=headers)
        assert status == 303, headers
        assert there.startswith(f"{PATH}/writetime/started?")
        status, shown = deployment.admin.get(there.removeprefix(f"{PATH}/writetime/"))
        assert status == 200
        (run,) = parse_qs(urlsplit(there).query)["run"]
        assert f'href="{PATH}/dags/cdc_replay/runs/' in shown
        assert deployment.airflow.api.run("cdc_replay", run)["triggering_user_name"] == "admin"
        deployment.airflow.api.fail("cdc_replay", run)


def test_the_cookie_of_airflows_login_is_enough(deployment: Deployment) -> None:
    token = deployment.admin._token
    status, _, _ = Visitor(deployment.airflow).ask("", {"Cookie": f"_token={token}"})
    assert status == 200
    assert Visitor(deployment.airflow).get("")[0] == 401


# --- in a time zone


def test_all_times_on_the_page_are_utc_and_say_so(deployment: Deployment) -> None:
    shown = " ".join(text(deployment.admin.get(view)[1]) for view in (*VIEWS, f"segment?{urlencode({'name': BAD.incoming})}"))
    times = re.findall(r"\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(\S*)", shown)
    assert len(times) > 20
    assert {end.rstrip(",.;:)") for end in times} <= {"Z", "+00:00"}
    # Sealed by the made-up bucket at 12:10:20 UTC; in Berlin that was 14:10:20.
    assert "2026-05-04 12:10:20Z" in shown
    assert "14:10:20" not in shown


@pytest.mark.parametrize(
    ("start", "hour", "segments"),
    [
        ("2026-10-25T00:00", TWICE, 2),
        ("2026-10-25T01:00", TWICE + timedelta(hours=1), 3),
        ("2026-10-25T02:00", TWICE + timedelta(hours=2), 4),
        ("2026-10-25T02:00+02:00", TWICE, 2),
        ("2026-10-25T02:00+01:00", TWICE + timedelta(hours=1), 3),
        ("2026-03-29T02:00", MISSING + timedelta(hours=1), 3),
        ("2026-03-29T02:00+01:00", MISSING, 2),
    ],
)
def test_the_form_of_a_replay_takes_one_hour_of_utc(deployment: Deployment, start: str, hour: datetime, segments: int) -> None:
    end = (datetime.fromisoformat(start) + timedelta(hours=1)).isoformat()
    shown = deployment.admin.get(f"replay?{urlencode({'start': start, 'end': end, 'namespace': 'zone'})}")[1]
    assert f"{hour:%Y-%m-%d %H:00:00}Z to {hour + timedelta(hours=1):%Y-%m-%d %H:00:00}Z" in text(shown)
    assert f"{segments} of them are in the archive" in text(shown)
    # The form that is sent says the same, with its offset.
    assert re.findall(r'name="start" value="([^"]+)"', shown) == [hour.isoformat()]


def test_a_run_replays_the_hour_that_was_asked_for(deployment: Deployment) -> None:
    """Asked for at Airflow itself, where people may write their own clock, and without an offset."""
    deployment.airflow.api.pause("cdc_replay", paused=False)
    wanted = {
        ("2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"): (TWICE, 2),
        ("2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"): (TWICE + timedelta(hours=1), 3),
        ("2026-03-29T02:00:00Z", "2026-03-29T03:00:00Z"): (MISSING + timedelta(hours=1), 3),
    }
    for (start, end), (hour, segments) in wanted.items():
        manifest = planned(deployment, {"start": start, "end": end, "namespace": "zone"})
        assert manifest.interval == (hour, hour + timedelta(hours=1)), start
        assert len(manifest.segments) == segments, start


def planned(deployment: Deployment, conf: dict[str, str]) -> Any:
    """The manifest that a run plans. The run ends there."""
    api, chain = deployment.airflow.api, layout.shadow_chain(bucket.CLUSTER, conf["namespace"])
    run = api.trigger("cdc_replay", conf)

    def plan() -> str:
        return next(str(task["state"]) for task in api.tasks("cdc_replay", run) if task["task_id"] == "plan")

    until(lambda: plan() in ("success", "failed", "skipped"), "`plan` ends", 600)
    assert plan() == "success", api.log("cdc_replay", run, "plan")
    api.fail("cdc_replay", run)
    number = int(api.xcom("cdc_replay", run, "plan"))
    manifest = read_manifest(deployment.store, chain, number)
    if history(deployment.store, chain).open:
        void(deployment.store, chain, number, reason="only planned", by="a test")
    return manifest


def test_a_backfill_has_each_hour_once(deployment: Deployment) -> None:
    """Also those around a change of the clocks; hours are those of UTC, as the form's are."""
    for change in (TWICE, MISSING):
        first, last = change - timedelta(hours=1), change + timedelta(hours=2)
        interval = ("--from-date", f"{first:%Y-%m-%dT%H:%MZ}", "--to-date", f"{last:%Y-%m-%dT%H:%MZ}")
        command = ("backfill", "create", "--dag-id", "cdc_replay", *interval, "--reprocess-behavior", "completed", "--dry-run")
        done = deployment.airflow.command(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        hours = [datetime.fromisoformat(hour) for hour in re.findall(r"^\| (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*)", done.stdout, re.MULTILINE)]
        assert hours == [first + timedelta(hours=n) for n in range(4)], done.stdout


def test_schedules_are_in_utc_whatever_airflows_time_zone(deployment: Deployment) -> None:
    """As the docs of the YAML say; 2:30 in Berlin is an hour or two earlier."""
    (ingest,) = [dag for dag in deployment.airflow.api.dags() if dag["dag_id"] == "cdc_ingest"]
    following = datetime.fromisoformat(ingest["next_dagrun_run_after"].replace("Z", "+00:00")).astimezone(UTC)
    assert (following.hour, following.minute) == (2, 30)
