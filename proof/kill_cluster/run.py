"""Batches of the recorded cluster on a standalone cluster of Spark, whose processes are killed meanwhile, and the
comparison of the results.

Strategy: the cluster shares nothing with the driver but an S3 server (`tools.standalone`), and the jobs are started by
spark-submit, as Airflow does. The recorded segments are ingested in batches of two. The first one tells how
long a job takes; in the others, at random moments within that time, one executor is killed, or a machine with all of
its processes (another one takes its place some seconds later), or the driver with its JVM. A job that loses executors
or machines has to end well by itself; one whose driver is killed is started again. Then the publisher loses them in the
same way. Spark is in a hurry to speculate: a task that takes a little longer than others is started a second time on
another machine, and both attempts write files. In the end, tables must equal the cluster's answers, and each event of
the seals must be in Kafka once, those of a key in order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from proof.kill_batch.run import committed
from proof.recording.recording import Recording
from tools import ROOT, demo, standalone, verify
from tools.console import say
from tools.errors import ToolError
from tools.java import java_home
from tools.services.kafka import Kafka
from tools.services.spark import Machine, SparkCluster
from tools.site import Site
from writetime.config.pipeline import PipelineConfig, load
from writetime.events import envelope
from writetime.pipeline.archiver import archive
from writetime.pipeline.planner import plan_ingest
from writetime.storage import layout, open_store

KINDS = ("executor", "machine", "driver")
PUBLISHED = 1
"""Of the kills, so many at least are of the publisher."""
SEGMENTS = 2
"""Of a batch."""
LONGEST = 900.0
"""Seconds after which a job counts as stuck."""
AWAY = 3.0
"""Seconds until another machine takes the place of one that was killed."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.05",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
    # For stages with one task.
    "spark.speculation.task.duration.threshold": "500ms",
    "spark.speculation.efficiency.enabled": "false",
}


@dataclass
class Result:
    """The result of a run. `took`: seconds of each job that nobody killed."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    late: int = 0
    batches: int = 0
    events: int = 0
    speculated: int = 0
    lost: int = 0
    doubled: int = 0
    took: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.problems)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {kind}" for kind, count in sorted(self.kills.items()))
        took = ", ".join(f"{job} {seconds:.0f} s" for job, seconds in self.took.items())
        return (
            f"seed {self.seed}: {self.kills.total()} kills ({kills}), {self.late} came too late; {self.batches} batches, "
            f"{self.speculated} tasks started a second time, {self.events} events: lost {self.lost}, doubled {self.doubled}, "
            f"{len(self.problems)} other problems; without a kill: {took}"
        )


class ClusterKills:
    """A run under `folder` with so many kills."""

    def __init__(self, folder: Path, seed: int, kills: int) -> None:
        folder.chmod(0o700)
        self.folder, self.random, self.result = folder, Random(f"{seed} cluster"), Result(seed)
        self._kinds = list(islice(cycle(self.random.sample(KINDS, len(KINDS))), kills))
        self._log = folder / "jobs.log"
        self._events = folder / "spark-events"
        self._events.mkdir()

    def play(self) -> Result:
        """Execute the run and return its result."""
        recording = Recording.open()
        cluster = standalone.running(self.folder, run=self.folder / "run", installed=True)
        with cluster as found, Kafka(self.folder / "kafka", port=0) as kafka:
            os.environ.update(found.environment)
            site = Site(self.folder, standalone.BUCKET, found.reading)
            site.write_configs(recording, bootstrap=kafka.bootstrap, schedule=None, cluster=found)
            demo.ship(site, recording)
            self._batches(load(site.config), site, found.cluster)
            self._compare(site, recording, kafka.bootstrap)
            self._count_speculated()
        return self.result

    def _batches(self, config: PipelineConfig, site: Site, cluster: SparkCluster) -> None:
        store, name = open_store(config.bucket), config.cluster.name
        of_publisher = [self._kinds.pop() for _ in range(min(PUBLISHED, len(self._kinds)))]
        batches = sum(layout.is_segment(each.name) for each in store.names(layout.incoming_prefix(name))) // SEGMENTS
        shares = [self._kinds[at :: batches - 1] for at in range(batches - 1)]
        while (planned := plan_ingest(store, name, now=datetime.now(UTC), max_segments=SEGMENTS)) is not None:
            kinds = shares.pop(0) if self.result.batches and shares else []
            self._job("ingest", site, cluster, ["--batch", str(planned.number)], kinds, config)
            archive(store, name, planned.number)
            self.result.batches += 1
        self._job("publish", site, cluster, [], of_publisher, config)
        self._job("publish", site, cluster, [], [], config)

    # --- jobs

    def _job(
        self, job: str, site: Site, cluster: SparkCluster, arguments: Sequence[str], kinds: Sequence[str], config: PipelineConfig
    ) -> None:
        """Run a job until it ends well, with kills of these kinds on the way."""
        expected = self.result.took.get(job, self.result.took.get("ingest", 60.0))
        moments = sorted(self.random.uniform(0.15, 0.9) * expected for _ in kinds)
        pending = list(zip(moments, kinds, strict=True))
        while True:
            begun = time.monotonic()
            process = self._started(job, site, cluster, arguments, config)
            killed = self._killed(process, cluster, pending, begun)
            code = process.wait(timeout=LONGEST)
            if code == 0:
                self.result.late += len(pending)
                if not kinds:
                    self.result.took.setdefault(job, time.monotonic() - begun)
                return
            if not killed:
                raise ToolError(f"{job} failed although its driver was left alone; see {self._log}:\n{self._tail()}")

    def _killed(self, process: subprocess.Popen[bytes], cluster: SparkCluster, pending: list[tuple[float, str]], begun: float) -> bool:
        """Kill what is due while the job runs; True if that was its driver."""
        while pending:
            moment, kind = pending[0]
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.1, begun + moment - time.monotonic()))
                return False
            machine = self.random.choice(cluster.workers)
            if kind == "driver":
                os.killpg(process.pid, signal.SIGKILL)
            elif kind == "machine":
                cluster.kill_worker(machine)
                time.sleep(AWAY)
                cluster.start_worker(machine)
            elif not self._kill_executor(cluster, machine):
                # It has no executor yet.
                pending[0] = time.monotonic() - begun + 1.0, kind
                continue
            pending.pop(0)
            self.result.kills[kind] += 1
            say(f"  {kind} killed after {time.monotonic() - begun:.1f} s")
            if kind == "driver":
                return True
        return False

    @staticmethod
    def _kill_executor(cluster: SparkCluster, machine: Machine) -> bool:
        return any(cluster.kill_executor(each) for each in (machine, *cluster.workers))

    def _started(
        self, job: str, site: Site, cluster: SparkCluster, arguments: Sequence[str], config: PipelineConfig
    ) -> subprocess.Popen[bytes]:
        jars = [str(jar) for jar in sorted((ROOT / "jars" / "spark").glob("*.jar"))]
        submit = {"spark.driver.memory": "1g", "spark.ui.enabled": "false", **config.spark.submit, **SPECULATION}
        # Of a driver that is killed, what has been written so far counts.
        submit |= {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": self._events.as_uri()}
        jars.append(submit.pop("spark.jars"))
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", cluster.master, "--jars", ",".join(jars)]
        command += [part for key, value in submit.items() for part in ("--conf", f"{key}={value}")]
        command += [str(ROOT / "spark_jobs" / f"{job}.py"), "--config", str(site.config), *arguments]
        env: Mapping[str, str] = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])

    # --- what came of it

    def _compare(self, site: Site, recording: Recording, bootstrap: str) -> None:
        report = verify.verify(site, recording, bootstrap)
        self.result.problems += report.problems
        for keyspace, table in recording.cdc_tables:
            of_key: dict[Any, list[tuple[int, int]]] = defaultdict(list)
            for _, key, value in committed(bootstrap, f"{verify.TOPIC_PREFIX}.{keyspace}.{table}"):
                if value is not None:
                    of_key[key].append(envelope.place_of(json.loads(value)))
            found = Counter(sequence for sequences in of_key.values() for sequence in sequences)
            self.result.events += len(found)
            self.result.doubled += found.total() - len(found)
            label = f"{keyspace}.{table}"
            expected = sum(account.events for account in report.accounting if account.table == label)
            self.result.lost += expected - len(found)
            if any(sequences != sorted(sequences) for sequences in of_key.values()):
                self.result.problems.append(f"{label}: events of a key are out of order")

    def _count_speculated(self) -> None:
        logs = (path.read_text(encoding="utf-8", errors="replace") for path in self._events.rglob("*") if path.is_file())
        started = (line for log in logs for line in log.splitlines() if line.startswith('{"Event":"SparkListenerTaskStart"'))
        self.result.speculated = sum('"Speculative":true' in line for line in started)
        if not self.result.speculated:
            self.result.problems.append("no task was started a second time")
