"""Tasks that are killed under a running Airflow, with real Spark and Kafka: as the kernel does it for their memory, as Airflow
does it for a run that is marked as failed, and with Airflow's own supervisor.

One story in one test, because each step starts from what the last one left, and starting Airflow for each would take
minutes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.airflow.test_running import Story, names_hour, started
from tests.airflow.test_session import driver, next_session, running, until
from tools import demo
from writetime.pipeline import parents, sessions

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.thorough]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with started(tmp_path_factory.mktemp("site"), mode="session") as running_story:
        yield running_story


def environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(line.partition("=")[::2] for line in lines if line)


def processes(story: Story, named: str) -> dict[str, int]:
    """Process ids of the driver whose environment names these parents, of all that it ends with, and of all that have this
    environment, too: its JVM, and the Python workers."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = environment(int(process.name)).get(parents.SETTING) == named
        except OSError:
            continue
        if mine:
            found[f"{(process / 'comm').read_text().strip()} {process.name}"] = int(process.name)
    return found


def of_parents(pid: int) -> tuple[str, dict[str, int]]:
    """What the environment of a driver says of those that it ends with."""
    named = environment(pid)[parents.SETTING]
    return named, {role: int(pid) for role, pid, _ in (each.split(":") for each in named.split())}


def batch_driver() -> int | None:
    """The driver of a task that runs a batch of its own."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[0].endswith(b"python") and any(part.endswith(b"spark_jobs/ingest.py") for part in command):
            return int(process.name)
    return None


def runs(story: Story, dag: str) -> list[str]:
    return [run["state"] for run in story.api.runs(dag)]


def test_killed_tasks(story: Story) -> None:
    first = next_session(story, "")
    demo.ship(story.site, story.recording)

    # The task of a session. Its Spark ends with it, and the next session is at work.
    named, above = of_parents(driver(story))
    assert set(above) == {"task", "supervisor"}
    until(lambda: len(processes(story, named)) >= 3, "JVM, driver and daemon run", 60)
    os.kill(above["task"], signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: not processes(story, named), "nothing is left of the session", 30)
    left = time.monotonic() - killed
    state = sessions.read_state(story.store, story.cluster)
    assert state is not None
    assert state.id != first.id or state.ended == f"killed: its task (process {above['task']}) has ended"
    second = next_session(story, first.id)
    works = time.monotonic() - killed
    print(f"nothing is left after {left:.1f} s, the next session works after {works:.1f} s")
    # On an idle machine within 30 s.
    assert works <= 90
    assert runs(story, "cdc_stream").count("failed") == 1
    (run,) = [run["dag_run_id"] for run in story.api.runs("cdc_stream") if run["state"] == "running"]
    interrupted = f"the last session ({first.id}) was interrupted: killed: its task (process {above['task']}) has ended"
    until(lambda: interrupted in story.api.log("cdc_stream", run, "session"), "the next session says so", 60)

    # A run that is marked as failed: Airflow signals the task's process group, and Spark's workers have their own.
    named, _ = of_parents(driver(story))
    story.api.fail("cdc_stream", run)
    until(lambda: not processes(story, named), "nothing is left of the session", 60)
    next_session(story, second.id)
    until(lambda: not list(story.store.list("cdc/")), "each shipped segment is archived")
    demo.wait_until_published(story.store, story.cluster)
    assert story.verify().good, story.verify().problems

    # The task of a batch: its next try runs the same batch.
    number = story.sealed().number
    found = sorted({names_hour(info.name) for info in story.store.list("cdc_archive/")})
    end = datetime.fromisoformat(found[-1]) + timedelta(hours=1)
    hours = {"start": f"{found[0]}Z", "end": end.isoformat() + "Z"}
    run = story.api.trigger("cdc_replay", hours)
    until(batch_driver, "a batch runs", 240)
    pid = batch_driver()
    assert pid is not None
    named, above = of_parents(pid)
    os.kill(above["task"], signal.SIGKILL)
    until(lambda: not processes(story, named), "nothing is left of the batch", 30)
    assert story.api.wait("cdc_replay", run, seconds=600) == "success"
    assert story.tasks("cdc_replay", run)["ingest"]["try_number"] == 2
    assert story.sealed().number == number + 1
    assert story.verify().good, story.verify().problems

    # The supervisor of a session: nobody sends heartbeats then, and Airflow would start a second one.
    last = running(story)
    assert last is not None
    story.api.pause("cdc_stream")
    named, above = of_parents(driver(story))
    os.kill(above["supervisor"], signal.SIGKILL)
    until(lambda: not processes(story, named), "nothing is left of the session", 30)
    state = sessions.read_state(story.store, story.cluster)
    assert state is not None
    assert (state.id, bool(state.ended)) == (last.id, True)
