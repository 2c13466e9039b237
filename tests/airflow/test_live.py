"""A node of Cassandra that is written to, Airflow's four processes on their schedule, and a person at a
browser: `make test-airflow`.

One story: ingest takes in on its schedule what the shipper has sent, but for one segment that came damaged.
Its square is red, everything else is published. A person puts a good copy in its place and clears the square
in Airflow's page. Then three hours are replayed from the archive by the command line, the other DAGs are
triggered one by one, and the tables are held against the ring, before and after somebody has changed a row in
them. Pictures of the pages go to var/test-airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from proof.harness.cassandra import Ring
from shippers.folder import State, classify, look
from spark_jobs.session import spark_session
from tests.airflow.browser import Browser, browsing
from tests.damage import Damaged, flip_a_byte_of_a_captured_frame
from tests.spark_jobs.conf import spark_conf
from tools import ROOT
from tools.services.airflow import Airflow
from tools.services.kafka import Kafka
from writetime.config.airflow import SparkConfig
from writetime.config.pipeline import load
from writetime.pipeline.audit import AuditReport
from writetime.pipeline.bootstrap.run import runs as bootstrap_runs
from writetime.pipeline.maintenance_report import read_maintained
from writetime.pipeline.planner import history, read_sealed
from writetime.storage import layout, open_store

pytestmark = [
    pytest.mark.browser,
    pytest.mark.airflow,
    pytest.mark.cassandra,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(3600),
]

PICTURES = ROOT / "var" / "test-airflow"
TOPIC = "live.shop.orders"
ROWS_AN_HOUR = 1200
HOURS = 3
PATIENCE = 600.0
CLEAR = "Press shift+c to clear"
"""What Airflow 3.3 calls the button beside a task."""
DAGS = ("cdc_ingest", "cdc_publish", "cdc_replay", "cdc_verify")
SALT = "with this salt"
NOTE = re.compile(rb"note \d+ \.\.\.")
"""A column that the pipeline hashes, in clear."""
SECRET = {"cdc", "cdc_archive", "frames", "state"}
"""What of the bucket holds the ring's own bytes, by its purpose; of the quarantine its `.bin`."""
OTHERS = ("cdc_audit", "cdc_bootstrap", "cdc_maintain", "cdc_watch")


@dataclass
class Live:
    """The running pieces, and what the steps do with them."""

    folder: Path
    ring: Ring
    session: Any
    kafka: Kafka
    airflow: Airflow
    browser: Browser

    @property
    def node(self) -> Any:
        return self.ring.nodes[0]

    @property
    def store(self) -> Any:
        return open_store(str(self.folder / "bucket"))

    # --- the node

    def write(self, first: int, sealed: datetime) -> None:
        """Rows from `first` on, in segments that the node has finished, and that look as if that had been at
        `sealed`."""
        insert = self.session.prepare("INSERT INTO shop.orders (customer, id, amount, note) VALUES (?, ?, ?, ?)")
        before = {found.name for found in classify(look(self.node.cdc_raw)) if found.state is State.COMPLETED}
        for number in range(first, first + ROWS_AN_HOUR):
            self.session.execute(insert, (number % 7, number, Decimal(number) / 100, f"note {number} ".ljust(2000, ".")))
        self._finish_segments()
        for found in classify(look(self.node.cdc_raw)):
            if found.state is State.COMPLETED and found.name not in before:
                os.utime(self.node.cdc_raw / found.name, (sealed.timestamp(), sealed.timestamp()))

    def _finish_segments(self) -> None:
        waited = {file.name for file in self.node.cdc_raw.glob("CommitLog-*.log")}
        insert = self.session.prepare("INSERT INTO shop.filler (id, b) VALUES (?, ?)")

        def finished() -> bool:
            for number in range(100):
                self.session.execute(insert, (number, "x" * 10_000))
            return not waited & {found.name for found in classify(look(self.node.cdc_raw)) if found.state is not State.COMPLETED}

        eventually(finished, "the node finishes its segments")

    def ship(self) -> None:
        command = [Path(sys.executable).parent / "writetime", "ship", "--config", self.folder / "shipper.yaml", "--once"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    # --- Airflow

    def runs(self, dag: str, **wanted: str) -> list[dict[str, Any]]:
        return [run for run in self.airflow.api.runs(dag) if all(run[name] == value for name, value in wanted.items())]

    def trigger(self, dag: str, conf: dict[str, Any]) -> tuple[str, str]:
        """Run id and state."""
        run = self.airflow.api.trigger(dag, conf)
        return run, self.airflow.api.wait(dag, run, seconds=PATIENCE)

    # --- what came of it

    @property
    def sealed(self) -> int:
        found = history(self.store, self.ring.cluster_name).sealed
        return 0 if found is None else found.number

    def events(self) -> Counter[tuple[int, str]]:
        """How often Kafka has each event, by the order's id and op, as a reader of committed records sees
        it."""
        options = {"bootstrap.servers": self.kafka.bootstrap, "group.id": "test", "isolation.level": "read_committed"}
        consumer = Consumer({**options, "enable.partition.eof": True, "enable.auto.commit": False})
        partitions = consumer.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in partitions])
        found: Counter[tuple[int, str]] = Counter()
        ended = 0
        while ended < len(partitions):
            for message in consumer.consume(1000, timeout=30):
                if message.error() is not None:
                    ended += 1
                else:
                    event = json.loads(message.value())
                    found[event["after"]["id"], event["op"]] += 1
        consumer.close()
        return found


def eventually(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(1)
    return found


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with Ring(folder / "ring", segment_mb=1, cluster_name="live") as ring, Kafka(folder / "kafka", port=0) as kafka:
        session = ring.session("ALL")
        session.execute("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}")
        session.execute(
            "CREATE TABLE shop.orders (customer int, id int, amount decimal, note text, PRIMARY KEY (customer, id)) WITH cdc = true"
        )
        session.execute("CREATE TABLE shop.filler (id int PRIMARY KEY, b text) WITH cdc = true")
        configure(folder, ring, kafka)
        with (
            Airflow(folder / "airflow", config=folder / "pipeline.yaml", port=0) as airflow,
            browsing(airflow.url, folder, PICTURES) as browser,
        ):
            eventually(lambda: {dag["dag_id"] for dag in airflow.api.dags()} >= {*DAGS, *OTHERS}, "the DAGs are there")
            yield Live(folder, ring, session, kafka, airflow, browser)


def configure(folder: Path, ring: Ring, kafka: Kafka) -> None:
    node = ring.nodes[0]
    common = {
        "pipeline": "live",
        "cluster": {"name": "live", "datacenters": ["dc1"], "cql": {"contact_points": [node.address], "port": node.port}},
        "bucket": str(folder / "bucket"),
        "tables": {"include": ["shop.*"], "exclude": ["shop.filler"]},
    }
    jobs = {
        "catalog": {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}", "warehouse": str(folder / "warehouse")},
        "kafka": {"bootstrap.servers": kafka.bootstrap, "topic.prefix": "live"},
        "columns": {"salt": SALT, "column.mask.hash.sha256.with.salt": "shop.orders.note"},
        "snapshot": {"mode": "never", "consistency": "ALL"},
        "airflow": {
            "ingest_schedule": "* * * * *",
            **dict.fromkeys(("audit_schedule", "bootstrap_schedule", "maintain_schedule", "verify_schedule")),
            "watch": {"schedule": None, "late_minutes": 1},
        },
    }
    shipper = {"cdc_raw": str(node.cdc_raw), "address": node.address, "port": node.port, "state_dir": str(folder / "state")}
    # The story counts segments by the hour.
    shipper |= {"ship": {"tail_seconds": None}}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(common | jobs), encoding="utf-8")
    (folder / "shipper.yaml").write_text(yaml.safe_dump(common | {"node": shipper}), encoding="utf-8")


def test_a_day_on_call(live: Live) -> None:
    hours = [datetime.now(UTC).replace(minute=10, second=0, microsecond=0) - timedelta(hours=ago) for ago in range(HOURS, 0, -1)]
    for number, hour in enumerate(hours):
        live.write(number * ROWS_AN_HOUR, hour)
    damaged = flip_a_byte_of_a_captured_frame(live.node.cdc_raw)
    live.ship()
    for dag in DAGS:
        live.airflow.api.pause(dag, paused=False)

    red = one_square_is_red(live, damaged)
    cleared_in_the_page(live, damaged, red)
    three_hours_replayed_change_nothing(live, hours)
    the_others_look_and_change_nothing(live, hours)
    drift_is_red(live)
    nothing_shows_a_note(live)


def one_square_is_red(live: Live, damaged: Damaged) -> str:
    """Ingest by its schedule: the run is red for one segment, and all else is published. The run's id."""
    (run,) = eventually(lambda: live.runs("cdc_ingest", state="failed"), "a run of ingest is red")
    assert run["run_type"] == "scheduled"
    states = {task["task_id"]: task["state"] for task in live.airflow.api.tasks("cdc_ingest", run["dag_run_id"])}
    # Depends on the time of day, and on whether an earlier run had nothing to do.
    assert states.pop("completed_hours") in ("skipped", "success")
    done = dict.fromkeys(("archive_last", "release", "plan", "ingest", "archive", "failed_segments", "failed_tables"), "success")
    assert states == {**done, "segment": "failed", "table": "skipped"}
    eventually(lambda: sum(live.events().values()) == HOURS * ROWS_AN_HOUR - 1, "all but the damaged row is published")

    live.browser.log_in("admin", live.airflow.password)
    live.browser.open_run("cdc_ingest", run["dag_run_id"])
    live.browser.see(damaged.path.name)
    live.browser.picture("1-one-square-is-red")
    live.browser.open_page("")
    live.browser.see("1 segment in quarantine needs an operator")
    live.browser.picture("2-the-ring")
    return str(run["dag_run_id"])


def cleared_in_the_page(live: Live, damaged: Damaged, run: str) -> None:
    """A good copy, and a click: the square is green, the row comes with the next batch, and nothing comes
    twice."""
    (held,) = [info.name for info in live.store.list("cdc/") if info.name.endswith(damaged.path.name)]
    (live.folder / "bucket" / held).write_bytes(damaged.original)
    live.browser.open_task("cdc_ingest", run, "segment", 0)
    live.browser.see(damaged.path.name)
    live.browser.click(CLEAR)
    live.browser.picture("3-clear")
    live.browser.click("Confirm")
    eventually(lambda: live.airflow.api.run("cdc_ingest", run)["state"] == "success", "the run is green")
    live.browser.open_run("cdc_ingest", run)
    live.browser.see(damaged.path.name)
    live.browser.picture("4-green")
    eventually(lambda: sum(live.events().values()) == HOURS * ROWS_AN_HOUR, "the row is published too")
    assert live.events() == Counter((number, "c") for number in range(HOURS * ROWS_AN_HOUR))


def three_hours_replayed_change_nothing(live: Live, hours: list[datetime]) -> None:
    before = live.sealed
    start, end = (f"{hour:%Y-%m-%dT%H:00:00}" for hour in (hours[0], hours[-1]))
    interval = ("--from-date", start, "--to-date", end)
    done = live.airflow.command("backfill", "create", "--dag-id", "cdc_replay", *interval, "--reprocess-behavior", "completed")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = eventually(lambda: len(found := live.runs("cdc_replay", run_type="backfill")) == HOURS and found, "three runs of the backfill")
    for run in runs:
        assert live.airflow.api.wait("cdc_replay", run["dag_run_id"], seconds=PATIENCE) == "success"
    replayed = [read_sealed(live.store, "live", number) for number in range(before + 1, live.sealed + 1)]
    assert [(batch.kind, batch.events) for batch in replayed if batch is not None] == [("replay", 0)] * HOURS
    assert sum(len(batch.segments) for batch in replayed if batch is not None) == len(list(archived(live)))
    assert live.events() == Counter((number, "c") for number in range(HOURS * ROWS_AN_HOUR))


def the_others_look_and_change_nothing(live: Live, hours: list[datetime]) -> None:
    """The only node held what it ought to; its table is read whole, and nothing is news; state, warehouse and
    archive are tidied; and the node, whose last segment is older than a minute, is late."""
    for dag in OTHERS:
        live.airflow.api.pause(dag, paused=False)
    start, end = (f"{time:%Y-%m-%dT%H:%M:00Z}" for time in (hours[0], datetime.now(UTC) + timedelta(minutes=1)))
    _, state = live.trigger("cdc_audit", {"start": start, "end": end, "late": 1})
    assert state == "success"
    (report,) = [AuditReport.read(live.store, info.name) for info in live.store.list("audit/live/") if info.name.endswith(".json")]
    assert report is not None
    assert (sum(table.mutations for table in report.tables), report.gaps) == (HOURS * ROWS_AN_HOUR, [])

    _, state = live.trigger("cdc_bootstrap", {"table": "shop.orders"})
    assert state == "success"
    (reading,) = bootstrap_runs(live.store, "live")
    assert (reading.rows, reading.frames) == (HOURS * ROWS_AN_HOUR, 0)

    before = live.sealed
    _, state = live.trigger("cdc_maintain", {})
    assert state == "success"
    maintained = read_sealed(live.store, "live", live.sealed)
    assert maintained is not None
    assert (maintained.number, maintained.kind) == (before + 1, "maintain")
    came_to = read_maintained(live.store, "live")
    assert came_to is not None
    assert (came_to.failed, came_to.before.bytes > 0, came_to.after.bytes > 0) == (0, True, True)
    assert came_to.before.index_bytes > 0
    assert [table.name for table in came_to.tables if table.trouble or table.after is None] == []
    assert {table.name for table in came_to.tables} >= {"lake.shop.orders", "lake.shop__changes.orders"}

    run, state = live.trigger("cdc_watch", {})
    assert state == "failed"
    assert "late: node" in live.airflow.api.log("cdc_watch", run, "watch")
    assert live.events() == Counter((number, "c") for number in range(HOURS * ROWS_AN_HOUR))


def archived(live: Live) -> Iterator[str]:
    return (info.name for info in live.store.list(layout.archive_prefix("live")))


def drift_is_red(live: Live) -> None:
    """The tables equal the ring, until a row is changed behind its back."""
    _, state = live.trigger("cdc_verify", {"share": 1, "at_rest": True})
    assert state == "success"
    config = load(live.folder / "pipeline.yaml")
    own = config.model_copy(
        update={"spark": SparkConfig(master="local[1]", conf={**spark_conf(live.folder), "spark.sql.shuffle.partitions": "1"})}
    )
    spark = spark_session(own, "behind its back")
    try:
        spark.sql("UPDATE lake.shop.orders SET amount = 0 WHERE id = 77")
    finally:
        spark.stop()
    run, state = live.trigger("cdc_verify", {"share": 1, "at_rest": True, "tell_values": True})
    assert state == "failed"
    log = live.airflow.api.log("cdc_verify", run, "verify")
    assert "1 rows differ from the cluster" in log
    assert "shop.orders: drift in 1 of" in log
    live.browser.open_run("cdc_verify", run)
    live.browser.see("verify")
    live.browser.picture("5-drift")
    link = live.airflow.api.links("cdc_verify", run, "verify")["Report"]
    live.browser.open_page(link.removeprefix("/writetime/"))
    live.browser.see("drift shop.orders")
    live.browser.picture("6-the-report")
    live.browser.open_page("checks")
    live.browser.see("drift in 1 rows")
    live.browser.see("lake.shop.orders")
    live.browser.picture("7-checks")
    live.browser.open_page("")
    live.browser.see("By the last audit")
    live.browser.picture("8-completeness")


def nothing_shows_a_note(live: Live) -> None:
    """Neither logs of tasks, nor Airflow's database with what tasks told each other and how they were called,
    nor any report."""
    bucket = live.folder / "bucket"
    folders = [live.folder / "airflow", live.folder / "warehouse", *(each for each in bucket.iterdir() if each.name not in SECRET)]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.suffix != ".bin"]
    found = {str(file): file.read_bytes() for file in [*files, live.folder / "catalog.db"]}
    found |= {f"{name}, unpacked": repr(pq.read_table(name).to_pylist()).encode() for name in found if name.endswith(".parquet")}
    assert [name for name, content in found.items() if NOTE.search(content) or SALT.encode() in content] == []
    # The search sees logs, the database, reports with values, and rows.
    assert any(b"1 rows differ from the cluster" in content for name, content in found.items() if name.endswith(".log"))
    assert any(b"cdc_verify" in content for name, content in found.items() if name.endswith(".db"))
    assert any(b"note" in content for name, content in found.items() if "/verify/" in name)
    assert any(b"'note': '" in content for name, content in found.items() if name.endswith("unpacked"))
    assert any(NOTE.search(file.read_bytes()) for file in (bucket / "cdc_archive").rglob("*.log"))
