"""The whole pipeline with Airflow's four processes, Spark and Kafka really running, and a damaged segment in
the middle of it.

One story in one test, because each step starts from what the last one left, and starting Airflow for each
would take minutes."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from proof.recording.recording import Recording
from tests.damage import flip_a_byte_of_a_captured_frame
from tests.sign_off import sign_off
from tests.test_docs import for_people
from tools import ROOT, demo, verify
from tools.services.airflow import Airflow
from tools.services.airflow_api import AirflowApi
from tools.services.kafka import Kafka
from tools.site import Site
from writetime.pipeline import watermark
from writetime.pipeline.completed_hours import HOUR, key_of
from writetime.pipeline.documents import LedgerEntry, Sealed
from writetime.pipeline.planner import history, read_sealed
from writetime.storage import layout, open_store
from writetime.storage.store import Store

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]


class Story:
    """The running pieces, and what the steps ask of them."""

    def __init__(self, site: Site, recording: Recording, kafka: Kafka, airflow: Airflow) -> None:
        self.site = site
        self.recording = recording
        self.kafka = kafka
        self.airflow = airflow
        self.cluster = recording.cluster_name

    @property
    def api(self) -> AirflowApi:
        return self.airflow.api

    @property
    def store(self) -> Store:
        return open_store(str(self.site.bucket))

    def run(self, dag: str) -> tuple[str, str, dict[str, Any]]:
        """Trigger and wait; run id, state, and the task instances by name."""
        run = self.api.trigger(dag)
        state = self.api.wait(dag, run, seconds=600)
        return run, state, self.tasks(dag, run)

    def tasks(self, dag: str, run: str) -> dict[str, Any]:
        return {f"{t['task_id']}[{t['map_index']}]" if t["map_index"] >= 0 else t["task_id"]: t for t in self.api.tasks(dag, run)}

    def sealed(self) -> Sealed:
        found = history(self.store, self.cluster).sealed
        assert found is not None
        return found

    def ledger(self, name: str) -> LedgerEntry:
        entry = LedgerEntry.read(self.store, layout.SegmentRef.from_object(name).ledger)
        assert entry is not None
        return entry

    def verify(self) -> verify.Report:
        return verify.verify(self.site, self.recording, self.kafka.bootstrap)


def hours_told(story: Story) -> list[str]:
    """The partition keys of the events of completed hours."""
    events = [event for event in story.api.asset_events() if event["uri"] == "writetime://demo/complete"]
    return [event["partition_key"] for event in events]


@contextmanager
def started(folder: Path, *, mode: str = "batch", env: Mapping[str, str] | None = None) -> Iterator[Story]:
    """A story with Kafka and Airflow running, and every DAG of the demo unpaused."""
    site, recording = Site(folder), Recording.open()
    with Kafka(site.folder / "kafka", port=0) as kafka:
        site.write_configs(recording, bootstrap=kafka.bootstrap, schedule=None, mode=mode)
        airflow = Airflow(site.folder / "airflow", config=site.config, port=0, env=env)
        try:
            airflow.start(expect=demo.DAGS)
            for dag in demo.DAGS:
                airflow.api.pause(dag, paused=False)
            yield Story(site, recording, kafka, airflow)
        finally:
            airflow.stop()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    users = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer"}
    with started(tmp_path_factory.mktemp("site"), env=users) as running:
        yield running


def test_a_damaged_segment_its_repair_and_a_backfill(story: Story) -> None:
    folders = story.recording.stage(story.site.nodes)
    make_older(folders.values())
    damaged = flip_a_byte_of_a_captured_frame(folders[story.recording.nodes[0].host_id])
    demo.ship(story.site, story.recording, stage=False)
    name = layout.SegmentRef(
        layout.NodeName(story.cluster, story.recording.nodes[0].datacenter, story.recording.nodes[0].host_id),
        layout.SegmentName.parse(damaged.path.name),
    ).incoming

    # All else goes on: the batch is sealed and archived, only the square of that segment is red, and it has
    # its name.
    run, state, tasks = story.run("cdc_ingest")
    assert state == "failed"
    assert {task: found["state"] for task, found in tasks.items()} == {
        "archive_last": "success",
        "release": "success",
        "plan": "success",
        "ingest": "success",
        "archive": "success",
        "completed_hours": "skipped",
        "failed_segments": "success",
        "segment[0]": "failed",
        "failed_tables": "success",
        "table": "skipped",
    }
    assert tasks["segment[0]"]["rendered_map_index"].endswith(damaged.path.name)
    log = story.api.log("cdc_ingest", run, "segment", map_index=0)
    assert name in log
    assert "upload a good copy" in log

    # Its link leads to what the page knows of it.
    link = story.api.links("cdc_ingest", run, "segment", map_index=0)["Segment"]
    status, shown = Visitor(story.airflow, "admin").get(link.removeprefix("/writetime/"))
    assert status == 200
    assert "corrupt_frame" in shown
    assert "/writetime/rerun?name=" in shown
    assert story.api.links("cdc_ingest", run, "archive") == {"Batch": "/writetime/batches/1"}
    assert story.api.links("cdc_ingest", run, "ingest")["Batch"] == "/writetime/batches/1"

    # The ledger says what and where; the bytes are kept, and nothing but them.
    entry = story.ledger(name)
    assert entry.state == "quarantined"
    (problem,) = entry.problems
    assert problem.kind == "corrupt_frame"
    assert problem.quarantined_as is not None
    kept = story.store.read(problem.quarantined_as)
    assert kept == damaged.bytes[problem.position : problem.position + problem.size]
    assert problem.position <= damaged.position < problem.position + problem.size
    first = story.sealed()
    assert first.held == [name]

    # DAGs of others may start on a table.
    changed = {f"writetime://demo/{account.table.replace('.', '/')}": account.events for account in first.accounting if account.events}
    told = {event["uri"]: event["extra"] for event in story.api.asset_events() if not event["uri"].endswith("/outbox")}
    assert {uri: (extra["batch"], extra["events"]) for uri, extra in told.items()} == {uri: (1, events) for uri, events in changed.items()}

    # The two other replicas held the damaged mutation: nothing is missing.
    demo.wait_until_published(story.store, story.cluster)
    assert story.verify().good, story.verify().problems

    # Cleared but not mended: red again.
    story.api.clear("cdc_ingest", run, [("segment", 0)])
    assert story.api.wait("cdc_ingest", run, seconds=300) == "failed"
    assert story.sealed().number == first.number

    # Mended as an operator would, with a plain copy, then cleared: green, and in with the next batch.
    (story.site.bucket / name).write_bytes(damaged.original)
    story.api.clear("cdc_ingest", run, [("segment", 0)])
    assert story.api.wait("cdc_ingest", run, seconds=300) == "success"
    assert story.ledger(name).state == "retry"
    _, state, _ = story.run("cdc_ingest")
    assert state == "success"
    second = story.sealed()
    assert [outcome.object for outcome in second.segments] == [name]
    assert (second.held, second.events) == ([], 0)
    assert story.ledger(name).state == "archived"
    demo.wait_until_published(story.store, story.cluster)
    assert story.verify().good, story.verify().problems

    # Nothing to do: skipped without Spark.
    _, state, tasks = story.run("cdc_ingest")
    assert (state, tasks["plan"]["state"], tasks["ingest"]["state"]) == ("success", "skipped", "skipped")
    assert tasks["completed_hours"]["state"] == "skipped"

    # Nothing to do, and complete up to now: DAGs of others may start on the last hour.
    signed = datetime.now(UTC)
    sign_off(story.store, story.cluster, signed)
    _, state, tasks = story.run("cdc_ingest")
    assert (state, tasks["plan"]["state"], tasks["completed_hours"]["state"]) == ("success", "skipped", "success")
    assert hours_told(story) == [key_of(signed - watermark.CLOCK_MARGIN - HOUR)]

    # A backfill replays the archive: the same segments again, no event, nothing published twice.
    hours = {names_hour(info.name) for info in story.store.list("cdc_archive/")}
    assert len(hours) == 1
    events_before = story.verify().events
    replay(story, hours.pop())
    third = read_sealed(story.store, story.cluster, second.number + 1)
    assert third is not None
    assert (third.kind, third.events) == ("replay", 0)
    assert all(a.updates_in == a.duplicate + a.superseded + a.not_ours for a in third.accounting)
    report = story.verify()
    assert report.good, report.problems
    assert report.events == events_before


def names_hour(object_name: str) -> str:
    date, hour = object_name.split("/")[2:4]
    return f"{date.removeprefix('date=')}T{hour.removeprefix('hour=')}:00:00"


def make_older(folders: Iterable[Path]) -> None:
    """Let all segments have been sealed in the hour before this one: a backfill only takes hours that are
    over, and of this very hour the DAG's own schedule has made an empty run."""
    sealed_at = (datetime.now(UTC) - timedelta(hours=1)).replace(minute=10)
    for folder in folders:
        for file in folder.iterdir():
            os.utime(file, (sealed_at.timestamp(), sealed_at.timestamp()))


def replay(story: Story, hour: str) -> None:
    """As the README says it, from a shell."""
    interval = ("--from-date", hour, "--to-date", hour)
    done = story.airflow.command("backfill", "create", "--dag-id", "cdc_replay", *interval, "--reprocess-behavior", "completed")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = [run["dag_run_id"] for run in story.api.runs("cdc_replay") if run["run_type"] == "backfill"]
    assert story.api.wait("cdc_replay", run, seconds=600) == "success", json.dumps(story.api.tasks("cdc_replay", run), default=str)


class Visitor:
    """A user of Airflow at writetime's page; without a name, somebody who has not logged in."""

    def __init__(self, airflow: Airflow, name: str = "") -> None:
        self._airflow = airflow
        passwords = json.loads((airflow.home / "passwords.json").read_text())
        self._token = (
            json.loads(self._ask("/auth/token", {"username": name, "password": passwords[name]})[2])["access_token"] if name else ""
        )

    def get(self, path: str) -> tuple[int, str]:
        status, _, text = self.ask(path)
        return status, text

    def ask(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Message, str]:
        """Status, headers and text of a path below the page."""
        return self._ask(f"/writetime/{path}", None, headers)

    def post(self, path: str, form: dict[str, str], origin: str = "", more: dict[str, str] | None = None) -> tuple[int, str]:
        """Status, and where it leads."""
        own = self._airflow.url.removesuffix(self._airflow.path)
        status, headers, _ = self._ask(f"/writetime/{path}", urlencode(form), {"Origin": origin or own, **(more or {})})
        return status, headers.get("location", "")

    def _ask(self, path: str, body: dict[str, str] | str | None, more: dict[str, str] | None = None) -> tuple[int, Message, str]:
        form = isinstance(body, str)
        headers = {"Content-Type": "application/x-www-form-urlencoded" if form else "application/json", **(more or {})}
        if path.startswith("/writetime/") and self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection("127.0.0.1", self._airflow.port, timeout=60)
        try:
            data = body if form or body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", self._airflow.path + path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()


def test_the_page_is_for_who_may_see_the_dags_and_its_buttons_for_who_may_trigger_them(story: Story) -> None:
    nobody, viewer, admin = Visitor(story.airflow), Visitor(story.airflow, "viewer"), Visitor(story.airflow, "admin")
    assert nobody.get("")[0] == 401
    status, rings = viewer.get("")
    assert status == 200
    assert all(node.host_id[:8] in rings for node in story.recording.nodes)
    for part in ("segments", "batches", "tables", "checks", "quarantine"):
        assert admin.get(part)[0] == 200, part
    assert "shop.orders" in viewer.get("tables")[1]

    # An hour of which the archive holds nothing: the run ends at once, without Spark.
    hour = {"start": "2020-01-01T00:00", "end": "2020-01-01T01:00"}
    assert nobody.post("replay", hour)[0] == 401
    assert viewer.post("replay", hour)[0] == 403
    assert admin.post("replay", hour, origin="http://elsewhere.example")[0] == 403
    status, there = admin.post("replay", hour)
    assert status == 303
    run = parse_qs(urlsplit(there).query)["run"][0]
    assert story.api.wait("cdc_replay", run, seconds=120) == "success"
    assert story.tasks("cdc_replay", run)["plan"]["state"] == "skipped"
    assert story.api.run("cdc_replay", run)["triggering_user_name"] == "admin"


def test_a_spark_job_that_fails_tells_its_square_why_and_is_not_tried_again_in_vain(story: Story) -> None:
    run = story.api.trigger("cdc_publish", {"again": "shop.nothing"})
    assert story.api.wait("cdc_publish", run, seconds=300) == "failed"
    log = story.api.log("cdc_publish", run, "publish")
    assert "publishing failed: publish again: shop.nothing: unknown table. Known are" in log
    assert "AirflowFailException" in log
    assert story.tasks("cdc_publish", run)["publish"]["try_number"] == 1


def test_airflow_commands_of_the_docs(story: Story) -> None:
    """One process for all: Airflow's command line takes seconds to load."""
    commands = [command for _, command in for_people() if command.startswith("airflow ")]
    assert len(commands) == 4
    program = (
        "import json, shlex, sys\n"
        "from airflow.cli import cli_parser\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    given = cli_parser.get_parser().parse_args(shlex.split(command)[1:])\n"
        "    given.func(given)\n"
    )
    # All connections have the same name.
    first, *connections = commands
    assert all(command.startswith("airflow connections add spark_writetime ") for command in connections)
    given = [first, *(each for command in connections for each in (command, "airflow connections delete spark_writetime"))]
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(given)], env=story.airflow.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_interface_shows_the_dags(story: Story) -> None:
    assert {dag["dag_id"] for dag in story.api.dags()} == {path.stem for path in (ROOT / "dags").glob("cdc_*.py")}
    assert story.api.import_errors() == []
