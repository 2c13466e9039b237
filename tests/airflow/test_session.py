"""A streaming session under a running Airflow, with real Spark and Kafka: red squares while it runs, turns for
other DAGs, and what follows when it is replaced or killed.

One story in one test, because each step starts from what the last one left, and starting Airflow for each
would take minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from tests.airflow.test_running import Story, hours_told, make_older, names_hour, replay, started
from tests.damage import flip_a_byte_of_a_captured_frame
from tests.sign_off import sign_off
from tests.test_docs import dropped_by_hand
from tools import ROOT, demo, verify
from tools.services import process
from writetime.pipeline import sessions, watermark
from writetime.pipeline.completed_hours import HOUR, key_of
from writetime.pipeline.planner import read_manifest
from writetime.storage import layout

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.thorough]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with started(tmp_path_factory.mktemp("site"), mode="session") as running:
        yield running


def until(holds: Callable[[], object], what: str, seconds: float = 300) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, what
        time.sleep(0.5)


def running(story: Story) -> sessions.SessionState | None:
    """The state of the session that runs."""
    state = sessions.read_state(story.store, story.cluster)
    return state if state is not None and not state.ended else None


def next_session(story: Story, before: str) -> sessions.SessionState:
    until(lambda: (now := running(story)) is not None and now.id != before, "another session runs")
    state = running(story)
    assert state is not None
    return state


def test_a_session_and_what_happens_to_it(story: Story) -> None:
    folders = story.recording.stage(story.site.nodes)
    make_older(folders.values())
    damaged = flip_a_byte_of_a_captured_frame(folders[story.recording.nodes[0].host_id])
    first = next_session(story, "")
    demo.ship(story.site, story.recording, stage=False)
    node = layout.NodeName(story.cluster, story.recording.nodes[0].datacenter, story.recording.nodes[0].host_id)
    name = layout.SegmentRef(node, layout.SegmentName.parse(damaged.path.name)).incoming

    # The damaged segment is a red square with its name within a minute of the seal, while the session runs.
    until(lambda: running(story) and running(story).failed, "the batch is sealed")
    (batch,) = first_failed(story)
    run = f"batch_{batch}"
    until(lambda: reports_of(story, batch), "cdc_report is triggered", 60)
    (run,) = reports_of(story, batch)
    assert story.api.wait("cdc_report", run, seconds=60) == "failed"
    sealed_at = (story.ledger(name)).updated_at
    assert (datetime.now(UTC) - sealed_at).total_seconds() < 90
    tasks = story.tasks("cdc_report", run)
    assert {task: found["state"] for task, found in tasks.items() if found["state"] == "failed"} == {"segment[0]": "failed"}
    assert tasks["segment[0]"]["rendered_map_index"].endswith(damaged.path.name)
    demo.wait_until_published(story.store, story.cluster)
    assert story.verify().good, story.verify().problems

    # Mended, then cleared: green, and in with a batch of the same session.
    (story.site.bucket / name).write_bytes(damaged.original)
    story.api.clear("cdc_report", run, [("segment", 0)])
    assert story.api.wait("cdc_report", run, seconds=300) == "success"
    until(lambda: story.ledger(name).state == "archived", "the next batch reads it")
    demo.wait_until_published(story.store, story.cluster)
    assert story.verify().good, story.verify().problems

    # Once all nodes have signed off, the last hour is complete: DAGs of others may start on it.
    assert hours_told(story) == []
    signed = datetime.now(UTC)
    sign_off(story.store, story.cluster, signed)
    until(lambda: hours_told(story), "an event of a completed hour", 120)
    assert hours_told(story) == [key_of(signed - watermark.CLOCK_MARGIN - HOUR)]

    # The DAGs of the other mode say so; those of neither mode have their turn.
    _, state, tasks = story.run("cdc_ingest")
    assert (state, tasks["plan"]["state"], tasks["ingest"]["state"]) == ("success", "skipped", "skipped")
    _, state, tasks = story.run("cdc_publish")
    assert (state, tasks["due"]["state"], tasks["publish"]["state"]) == ("success", "skipped", "skipped")
    _, state, _ = story.run("cdc_maintain")
    assert state == "success"
    assert read_manifest(story.store, story.cluster, story.sealed().number).kind == "maintain"
    replay(story, {names_hour(info.name) for info in story.store.list("cdc_archive/")}.pop())
    demo.wait_until_published(story.store, story.cluster)
    assert story.verify().good, story.verify().problems
    assert running(story) is not None
    assert running(story).id == first.id

    # A segment copied into cdc_raw by hand; the comparison with the recording holds beside its tables.
    copy_a_segment_by_hand(story)
    assert story.verify().good, story.verify().problems

    # Changed: the session ends by itself, and the next one has read the change.
    config = yaml.safe_load(story.site.config.read_text(encoding="utf-8"))
    config["airflow"]["session_minutes"] = 30
    story.site.config.write_text(yaml.safe_dump(config), encoding="utf-8")
    second = next_session(story, first.id)
    assert (second.until - second.started_at).total_seconds() == 1800
    assert sessions.read_failures(story.store, story.cluster).count == 0

    # Killed, twice: the next session waits longer each time, and goes on.
    for count, pause in ((1, 10), (2, 20)):
        before = running(story)
        assert before is not None
        killed = time.monotonic()
        os.kill(driver(story), signal.SIGKILL)
        until(lambda count=count: sessions.read_failures(story.store, story.cluster).count == count, "the failure is counted")
        next_session(story, before.id)
        assert time.monotonic() - killed >= pause


def copy_a_segment_by_hand(story: Story) -> None:
    """The commands of README, as they are, where `var/demo` is this site. The last one fails unless there are
    events within five minutes: no schedule of this site would start a batch then.
    """
    here = story.site.folder / "here"
    (here / "var").mkdir(parents=True)
    (here / "var" / "demo").symlink_to(story.site.folder)
    (here / "tests").symlink_to(ROOT / "tests")
    shippers = demo.keep_shipping(story.site, story.recording, run=here / "run")
    try:
        script = "\n".join(["set -e", *dropped_by_hand()])
        done = subprocess.run(["bash", "-c", script], cwd=here, capture_output=True, text=True, check=False, timeout=420)
    finally:
        process.stop_all(shippers)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(event["source"]["table"], event["source"]["file"]) for event in shown} == {("deletes", "CommitLog-8-1795274013053.log")}
    # Its table has the rows that the events end with, once each publisher has committed its share.
    demo.wait_until_published(story.store, story.cluster)
    events = list(verify.consume(story.kafka.bootstrap, "demo.nasty.deletes"))
    assert all(event in events for event in shown)
    last = {json.dumps(event["key"], sort_keys=True): event["after"] for event in events}
    table = SqlCatalog("lake", uri=f"sqlite:///{story.site.catalog}").load_table(("nasty", "deletes"))
    assert table.scan().to_arrow().num_rows == sum(after is not None for after in last.values()) > 0


def reports_of(story: Story, batch: int) -> list[str]:
    """The runs that report the batch."""
    return [each["dag_run_id"] for each in story.api.runs("cdc_report") if each["dag_run_id"].startswith(f"batch_{batch}_")]


def first_failed(story: Story) -> list[int]:
    state = running(story)
    assert state is not None
    return state.failed


def driver(story: Story) -> int:
    """The process of the session's driver, by the owner of its lease."""
    owner = json.loads(story.store.read(layout.session(story.cluster, "lease")))["owner"]
    return int(owner.split(":")[1])
