"""The demo: a recorded cluster of three goes through the real shipper, Airflow, Spark and Kafka, and is
compared with its answers.

    python -m tools.demo [--master standalone]
                                  run it, check it, stop everything; exit code 0 only if every check holds
    python -m tools.demo up       the same, and leave it running: shippers, UI, scheduler, broker (`down` stops it)
    python -m tools.demo events shop.orders    print a table's events
    python -m tools.demo down

`--master standalone`: Spark is a cluster of processes under users of their own, and bucket, state and tables are in
an S3 server (`tools.standalone`).

The next run continues from what is in var/demo; it ships and publishes nothing twice. `--fresh` starts over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from proof.recording.recording import NodeInfo, Recording
from tools import ROOT, standalone, verify
from tools.console import say, step
from tools.errors import ServiceError, ToolError
from tools.services import process
from tools.services.airflow import Airflow
from tools.services.airflow_api import AirflowApi
from tools.services.kafka import Kafka
from tools.site import Site
from writetime.config.pipeline import load
from writetime.pipeline import sessions
from writetime.pipeline.planner import history
from writetime.pipeline.publish_progress import publish_due
from writetime.storage import layout, open_store
from writetime.storage.store import Store

FOLDER = ROOT / "var" / "demo"
RUN = ROOT / "var" / "run"
DAGS = ("cdc_ingest", "cdc_maintain", "cdc_publish", "cdc_replay", "cdc_report", "cdc_stream")
_PATIENCE_SECONDS = 600.0
_CONFIG = Site(FOLDER).config

app = typer.Typer(add_completion=False, help=__doc__, invoke_without_command=True)
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget what an earlier demo left.")]
Master = Annotated[Literal["local", "standalone"], typer.Option("--master", help="Where Spark runs: in the driver, or on a cluster.")]
Folder = Annotated[Path, typer.Option("--folder", help="Where the demo keeps everything.")]


@app.callback()
def run(context: typer.Context, fresh: Fresh = False, folder: Folder = FOLDER, master: Master = "local") -> None:
    """Run the demo, check it, stop everything."""
    if context.invoked_subcommand is None:
        on_cluster = master == "standalone"
        _main(folder.with_name("demo-standalone") if on_cluster and folder == FOLDER else folder, fresh, keep=False, on_cluster=on_cluster)


@app.command()
def up(fresh: Fresh = False, folder: Folder = FOLDER) -> None:
    """Run the demo and leave it running."""
    _main(folder, fresh, keep=True)


@app.command()
def events(
    table: Annotated[str, typer.Argument(help="<keyspace>.<table>")],
    config: Annotated[Path, typer.Option("--config", envvar="WRITETIME_CONFIG", help="The demo's pipeline.yaml.")] = _CONFIG,
    seconds: Annotated[float, typer.Option("--seconds", help="How long to wait for the first event.")] = 300.0,
) -> None:
    """Print the events of a table, one a line; wait for the first."""
    kafka = load(config).kafka
    if kafka is None:
        raise typer.BadParameter(f"{config} has no kafka")
    deadline, found = time.monotonic() + seconds, list[dict[str, Any]]()
    while not found and time.monotonic() < deadline:
        # The topic does not exist before the first event.
        with suppress(ServiceError):
            found = list(verify.consume(kafka.bootstrap_servers, f"{kafka.topic_prefix}.{table}"))
        time.sleep(0 if found else 0.5)
    for event in found:
        typer.echo(json.dumps(event, ensure_ascii=False))
    raise typer.Exit(0 if found else 1)


@app.command()
def down() -> None:
    """Stop what `up` left running."""
    process.stop_all(process.recorded(RUN))


def _main(folder: Path, fresh: bool, *, keep: bool, on_cluster: bool = False) -> None:
    begun = time.monotonic()
    # Stop all services also if the demo is terminated from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        _refuse_second()
        _prepare(folder, fresh)
        good = _on_cluster(folder.resolve()) if on_cluster else _demo(Site(folder.resolve()), keep=keep)
    except ToolError as error:
        say(f"✗ {error}")
        raise typer.Exit(1) from error
    say(f"{'✓ the demo holds' if good else '✗ the demo does not hold'}: {time.monotonic() - begun:.0f} s in all")
    raise typer.Exit(0 if good else 1)


def _prepare(folder: Path, fresh: bool) -> None:
    """Keep the data of an earlier demo of the same recording, unless `--fresh`. Data of another recording is
    deleted.
    """
    stamp = folder / "recording.sha256"
    now = hashlib.sha256((Recording.open().path / "recording.json").read_bytes()).hexdigest()
    another = stamp.exists() and stamp.read_text(encoding="utf-8") != now
    if another:
        say("  the recording has changed: starting over")
    if fresh or another:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text(now, encoding="utf-8")


def _refuse_second() -> None:
    running = [service.name for service in process.recorded(RUN) if service.alive]
    if running:
        raise ToolError(f"A demo is running already ({', '.join(running)}). Stop it first: make down")


def _on_cluster(folder: Path) -> bool:
    # Whoever can read it shares more than the store.
    folder.chmod(0o700)
    with standalone.running(folder, run=RUN) as cluster:
        os.environ.update(cluster.environment)
        return _demo(Site(folder, standalone.BUCKET, cluster.reading), keep=False, cluster=cluster)


def _demo(site: Site, *, keep: bool, cluster: standalone.Standalone | None = None) -> bool:
    recording = Recording.open()
    kafka = Kafka(site.folder / "kafka", run=RUN)
    master = cluster.cluster.master if cluster is not None else "local[2]"
    airflow = Airflow(site.folder / "airflow", config=site.config, run=RUN, spark_master=master)
    done = False
    try:
        with step("start Kafka and Airflow, and ship three nodes' segments meanwhile"):
            kafka.start()
            schedule = "* * * * *" if keep else None
            site.write_configs(recording, bootstrap=kafka.bootstrap, schedule=schedule, mode="session", cluster=cluster)
            with ThreadPoolExecutor(2) as pool:
                ready = pool.submit(airflow.start, expect=DAGS)
                shipped = pool.submit(ship, site, recording)
                shipped.result()
                ready.result()
        with step("Airflow runs a session of cdc_stream, which ingests and publishes"):
            run_session(airflow.api, open_store(site.bucket_url), recording.cluster_name)
        with step("compare events and tables with what the ring answered"):
            report = verify.verify(site, recording, kafka.bootstrap)
        verify.show(report)
        if keep and report.good:
            keep_shipping(site, recording, run=RUN)
        done = report.good
    finally:
        if not (keep and done):
            airflow.stop()
            kafka.stop()
    if keep and done:
        for dag in ("cdc_ingest", "cdc_maintain", "cdc_publish", "cdc_replay"):
            airflow.api.pause(dag, paused=False)
        say(f"Airflow: {airflow.url}  user admin, password {airflow.password}")
        say(f"Kafka: {kafka.bootstrap}   bucket: {site.bucket}   stop with: make down")
        say(f"Shippers look at {site.nodes}/*/cdc_raw: README says how to copy a segment there")
    return done


def ship(site: Site, recording: Recording, *, stage: bool = True, nodes: Sequence[NodeInfo] | None = None) -> None:
    """Stage the recording as the nodes' cdc_raw folders, and run a shipper for each, or for these `nodes`."""
    if stage:
        recording.stage(site.nodes)
    nodes = recording.nodes if nodes is None else nodes
    shippers = [_shipper(site.shipper_config(node)) for node in nodes]
    for node, shipper in zip(nodes, shippers, strict=True):
        output, _ = shipper.communicate()
        if shipper.returncode != 0:
            raise ToolError(f"The shipper of node {node.address} failed:\n{output}")
        say(f"  node {node.address}: {_summary(output)}")
        # Files that a person has added may not be finished.
        cdc_raw = site.nodes / node.address / "cdc_raw"
        left = [file.name for file in node.files if file.name.endswith(".log") and (cdc_raw / file.name).exists()]
        if left:
            raise ToolError(f"The shipper of node {node.address} left {len(left)} segments behind:\n{output}")


def keep_shipping(site: Site, recording: Recording, *, run: Path) -> list[process.Service]:
    """Start a shipper for each node that runs until it is stopped; recorded in `run`."""
    started: list[process.Service] = []
    program = Path(sys.executable).parent / "writetime"
    try:
        for node in recording.nodes:
            config = site.shipper_config(node)
            command = [str(program), "ship", "--config", str(config)]
            started.append(process.start(f"shipper-{node.address}", command, run=run, log=config.with_name("shipper.log"), cwd=ROOT))
    except ToolError:
        process.stop_all(started)
        raise
    return started


def _shipper(config: Path) -> subprocess.Popen[str]:
    program = Path(sys.executable).parent / "writetime"
    return subprocess.Popen(
        [str(program), "ship", "--config", str(config), "--once"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _summary(output: str) -> str:
    """The counts of the shipper's last round as a sentence, from its JSON log."""
    rounds = [json.loads(line) for line in output.splitlines() if line.startswith("{") and '"event": "round finished"' in line]
    if not rounds:
        raise ToolError(f"The shipper logged no finished round:\n{output}")
    counts = {key.replace("_", " "): count for key, count in rounds[-1].items() if isinstance(count, int)}
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def run_session(api: AirflowApi, store: Store, cluster: str) -> None:
    """Let a session run until everything that was shipped is in the tables and in Kafka."""
    begun = datetime.now(UTC)
    before = history(store, cluster).base
    for dag in ("cdc_report", "cdc_stream"):
        api.pause(dag, paused=False)
    _wait(lambda: _is_idle(store, cluster, begun), "No session has processed all segments", progress=lambda: _step(store, cluster))
    if history(store, cluster).base == before:
        say("  no new segments; cdc_publish is started for all batches")
        api.pause("cdc_publish", paused=False)
        _expect_success(api, "cdc_publish", api.trigger("cdc_publish", {"since": "beginning"}))
    wait_until_published(store, cluster)


def _is_idle(store: Store, cluster: str, since: datetime) -> bool:
    """Whether a session that began after `since` has nothing to do."""
    state, past = sessions.read_state(store, cluster), history(store, cluster)
    waiting = any(layout.is_segment(info.name) for info in store.list(layout.incoming_prefix(cluster)))
    return state is not None and state.started_at >= since and not state.step and not past.open and not waiting


def _step(store: Store, cluster: str) -> str:
    state = sessions.read_state(store, cluster)
    return state.step or state.ended if state is not None else ""


def wait_until_published(store: Store, cluster: str) -> None:
    """Wait until every sealed batch is published to Kafka."""
    _wait(lambda: not publish_due(store, cluster), "The last batch has not been published")


def _wait(holds: Callable[[], bool], problem: str, progress: Callable[[], str] = str) -> None:
    """Wait until it holds; print the steps meanwhile."""
    deadline, shown = time.monotonic() + _PATIENCE_SECONDS, ""
    while not holds():
        if time.monotonic() > deadline:
            raise ToolError(f"{problem} within {_PATIENCE_SECONDS:.0f} s")
        if (step_now := progress()) and step_now != shown:
            say(f"  {step_now}")
            shown = step_now
        time.sleep(0.5)


def _expect_success(api: AirflowApi, dag: str, run: str) -> None:
    shown: dict[str, str] = {}

    def progress(tasks: Iterable[dict[str, Any]]) -> None:
        for task in tasks:
            name, state = _task_name(task), str(task["state"])
            if shown.get(name) != state and state not in ("None", "scheduled"):
                say(f"  {dag}.{name}: {state}")
                shown[name] = state

    if api.wait(dag, run, seconds=_PATIENCE_SECONDS, progress=progress) == "success":
        return
    failed = [task for task in api.tasks(dag, run) if task["state"] == "failed"]
    logs = "\n".join(api.log(dag, run, task["task_id"], task["try_number"], task["map_index"])[-4000:] for task in failed)
    raise ToolError(f"Run {run} of {dag} failed: {', '.join(_task_name(task) for task in failed)}\n{logs}")


def _task_name(task: dict[str, Any]) -> str:
    label = task.get("rendered_map_index") or (str(task["map_index"]) if task["map_index"] >= 0 else "")
    return f"{task['task_id']}[{label}]" if label else str(task["task_id"])


if __name__ == "__main__":
    app()
