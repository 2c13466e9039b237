"""A killed task takes its Spark with it: task → spark-submit's JVM → driver and daemon → workers, all real. What is killed is
named by the test; nothing else may be left a few seconds later (a minute, if the machine is busy)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.java import java_home
from writetime.storage.local import LocalStore

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
MARK = "WRITETIME_TEST_OF_KILLED"
_JOB = """
import os, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from spark_jobs.job_exit import reports_failure

folder = os.environ["WRITETIME_TEST_OF_KILLED"]

def busy(batches):
    # Neither reads nor writes: it would not notice that nobody waits for it.
    Path(folder, f"worker-{os.getpid()}").touch()
    while True:
        sum(range(10_000))

@reports_failure("the test")
def main(arguments=None):
    spark = SparkSession.builder.config("spark.python.daemon.module", "spark_jobs.daemon").getOrCreate()
    work = spark.range(2, numPartitions=2).mapInArrow(busy, "id long")
    threading.Thread(target=work.count, daemon=True).start()
    # As a session without segments: it does not need its JVM for long.
    time.sleep(3600)
    return 0

sys.exit(main())
"""
_TASK = """
import os, sys
from pathlib import Path
import writetime_operators as ops

Path(sys.argv[1], "task").write_text(str(os.getpid()))
task = ops.SparkJobOperator(task_id="job", job="ingest", config=os.environ["WRITETIME_CONFIG"])
task.application = sys.argv[2]
task.execute({})
"""


class Processes:
    """All processes that a task has started, by their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "job.py").write_text(_JOB, encoding="utf-8")
        LocalStore(folder / "bucket")
        config = folder / "pipeline.yaml"
        config.write_text("pipeline: p\ncluster: {name: c, datacenters: [dc1]}\nbucket: bucket\n", encoding="utf-8")
        binaries = str(Path(sys.executable).parent)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "WRITETIME"))} | {
            MARK: str(folder),
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW_CONN_SPARK_WRITETIME": '{"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}',
            "JAVA_HOME": str(java_home()),
            "PATH": os.pathsep.join([binaries, os.environ.get("PATH", os.defpath)]),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"))),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "WRITETIME_CONFIG": str(config),
        }
        self.output = (folder / "output").open("wb")
        command = [sys.executable, "-c", _TASK, str(folder), str(folder / "job.py")]
        self.task = subprocess.Popen(command, env=env, stdout=self.output, stderr=subprocess.STDOUT)
        give_up = time.monotonic() + 900
        while len(list(folder.glob("worker-*"))) < 2:
            assert self.task.poll() is None, (folder / "output").read_text()
            assert time.monotonic() < give_up, (folder / "output").read_text()
            time.sleep(0.2)

    def living(self) -> dict[str, int]:
        """Process ids by role."""
        return {self._role(pid, command): pid for pid, command in self._found()}

    def _found(self) -> Iterator[tuple[int, str]]:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"{MARK}={self.folder}".encode() in (process / "environ").read_bytes().split(b"\0")
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            # The environment of a zombie is empty.
            if mine:
                yield int(process.name), command

    def _role(self, pid: int, command: str) -> str:
        if pid == self.task.pid:
            return "task"
        if "org.apache.spark.deploy.SparkSubmit" in command:
            return "JVM"
        if "job.py --config" in command:
            return "driver"
        return f"worker {pid}"

    def end(self) -> None:
        for pid in self.living().values():
            os.kill(pid, signal.SIGKILL)
        self.task.wait()
        self.output.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.end()


@pytest.mark.parametrize("killed", ["task", "JVM", "driver"])
def test_nothing_is_left_of_a_job(processes: Processes, killed: str) -> None:
    before = processes.living()
    assert {"task", "JVM", "driver"} <= before.keys()
    assert sum(role.startswith("worker") for role in before) >= 3, "a daemon and two workers"
    os.kill(before[killed], signal.SIGKILL)
    since = time.monotonic()
    while processes.task.poll() is None or processes.living():
        assert time.monotonic() - since < 60, processes.living()
        time.sleep(0.2)
    print(f"killed {killed}: nothing left after {time.monotonic() - since:.1f} s")
