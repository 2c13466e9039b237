"""A standalone cluster of Spark on this machine: a master, and workers that share nothing with the driver or with each
other.

Strategy: each worker stands for a machine. Where this process is root, it runs under a user of its own, with a home
that nobody else can read (0700) and a loopback address of its own: what an executor finds, it has from the driver, or
from the store. Elsewhere all of them run under this user; their folders are still apart. Spark's own files are
copied to each home (as links where the file system allows it), since machines have Spark installed. Python is not,
unless an archive of it is given (`tools.executor_environment`): it comes with the job. Users are created for the
cluster, and removed with it. Must not know the jobs.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from tools.console import say
from tools.errors import ServiceError
from tools.java import java_home
from tools.services import ports, process

_PARTS = ("bin", "jars", "sbin")
_READY_SECONDS = 60.0
_USER = "writetime-spark"
_MASTER = "master"
_OWN = ("work", "tmp", "local", "python")
"""Folders of a home that belong to its user."""


@dataclass
class Machine:
    """One machine of the cluster: its address, its home, the user of its processes (None: this process's), and what
    runs there."""

    name: str
    address: str
    home: Path
    user: str | None
    services: list[process.Service] = field(default_factory=list)


class SparkCluster:
    """A master and `workers` workers of `cores` cores each. `env`: what is in the environment of workers, and so of
    executors, such as the credentials of a machine. `python`: an archive that is unpacked on each machine, whose
    `bin` is then in the PATH. `with SparkCluster(…) as cluster:` starts and stops it;
    `cluster.master` is its URL."""

    def __init__(
        self,
        run: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "2g",
        env: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        self.run = run
        self._python = python
        self.workers: list[Machine] = []
        self._machines: list[Machine] = []
        self._count, self._cores, self._memory, self._env = workers, cores, memory, dict(env or {})
        self._port = self._page = 0
        self._folder: Path | None = None
        self._created: list[str] = []

    @property
    def master(self) -> str:
        """Address of the master, for `spark.master`."""
        return f"spark://{ports.LOOPBACK}:{self._port}"

    @property
    def separated(self) -> bool:
        """Whether workers run under users of their own."""
        return os.geteuid() == 0

    def start(self) -> Self:
        """Start the master and the workers, and wait until these have registered."""
        # Not below this process's own folders, which other users may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="writetime-spark-"))
        self._folder.chmod(0o755)
        try:
            master = self._machine(_MASTER, ports.LOOPBACK)
            self._port, self._page = ports.any_free(), ports.any_free()
            options = ["--host", master.address, "--port", str(self._port), "--webui-port", str(self._page)]
            self._launch(master, "org.apache.spark.deploy.master.Master", options)
            self.workers = [self._machine(f"worker-{number}", _address(number)) for number in range(1, self._count + 1)]
            master.services[0].wait(lambda: self.state() is not None, seconds=_READY_SECONDS)
            for worker in self.workers:
                self.start_worker(worker)
            took = master.services[0].wait(lambda: self.alive_workers() == self._count, seconds=_READY_SECONDS)
        except BaseException:
            self.stop()
            raise
        whose = "of users of their own" if self.separated else "of this user"
        say(f"✓ Spark on {self.master}, {self._count} workers {whose}: {took:.1f} s")
        return self

    def start_worker(self, worker: Machine) -> None:
        """Start a worker, also one that was killed."""
        options = ["--host", worker.address, "--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(worker.home / "work")]
        options += ["--webui-port", str(ports.any_free()), self.master]
        self._launch(worker, "org.apache.spark.deploy.worker.Worker", options)

    def kill_worker(self, worker: Machine) -> None:
        """Kill a machine: its worker, the executors and their Python, without a chance to say anything."""
        for service in worker.services:
            for pid in [*_descendants(service.pid), service.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            service.stop()
        worker.services = []

    def kill_executor(self, worker: Machine) -> bool:
        """Kill one executor of a machine; False if it has none."""
        for service in worker.services:
            for pid in _descendants(service.pid):
                if b"CoarseGrainedExecutorBackend" in _command(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    return True
        return False

    def state(self) -> dict[str, Any] | None:
        """What the master says of its workers and applications; None while it does not answer."""
        with suppress(OSError, ValueError), urllib.request.urlopen(f"http://{ports.LOOPBACK}:{self._page}/json/", timeout=5) as answer:
            return dict(json.load(answer))
        return None

    def alive_workers(self) -> int:
        """How many workers the master knows as alive."""
        return sum(worker["state"] == "ALIVE" for worker in (self.state() or {}).get("workers", []))

    def stop(self) -> None:
        """Stop everything, and remove homes and users."""
        process.stop_all([service for machine in self._machines for service in machine.services], notify=lambda _: None)
        self._machines, self.workers = [], []
        for user in self._created:
            subprocess.run(["userdel", user], capture_output=True, check=False)
        self._created = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _machine(self, name: str, address: str) -> Machine:
        assert self._folder is not None
        home = self._folder / name
        home.mkdir(mode=0o700)
        user = self._user(name) if self.separated else None
        for part in _PARTS:
            shutil.copytree(Path(pyspark.__file__).parent / part, home / "spark" / part, copy_function=_link)
        for folder in _OWN:
            (home / folder).mkdir()
        if user is not None:
            for path in (home, *(home / folder for folder in _OWN)):
                shutil.chown(path, user)
        if self._python is not None and name != _MASTER:
            # By the user, who can then write to it: compiled code is not even read where it could not be written.
            with self._python.open("rb") as archive:
                subprocess.run(["tar", "-xzf", "-", "-C", str(home / "python")], stdin=archive, user=user, check=True)
        machine = Machine(name, address, home, user)
        self._machines.append(machine)
        return machine

    def _user(self, name: str) -> str:
        user = f"{_USER}-{os.getpid()}-{name}"[:32]
        with suppress(KeyError):
            pwd.getpwnam(user)
            return user
        command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", user]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceError(f"The user {user} cannot be created: {done.stderr.strip()}")
        self._created.append(user)
        return user

    def _launch(self, machine: Machine, main: str, options: list[str]) -> None:
        home = machine.home
        env = {
            "PATH": f"{home / 'python' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home / "spark"),
            "SPARK_LOCAL_IP": machine.address,
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            # All JVMs of the machine leave nothing in the system's folder.
            "JDK_JAVA_OPTIONS": f"-XX:-UsePerfData -Djava.io.tmpdir={home / 'tmp'}",
            "TMPDIR": str(home / "tmp"),
            **(self._env if main.endswith("Worker") else {}),
        }
        machine.services.append(
            process.start(
                f"spark-{machine.name}",
                [str(home / "spark" / "bin" / "spark-class"), main, *options],
                run=self.run,
                log=self.run / f"spark-{machine.name}.log",
                env=env,
                cwd=home,
                user=machine.user,
                detail=f"{machine.address}, {machine.user or 'this user'}",
            )
        )


def _address(number: int) -> str:
    """A loopback address of its own for each machine, where all of 127/8 is loopback."""
    return f"127.0.0.{1 + number}" if Path("/proc").is_dir() else ports.LOOPBACK


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and these, deepest first."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        threads = [path.read_text(encoding="ascii").split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = {int(child) for child in (*found, *(child for some in threads for child in some))}
    return [*(each for child in children for each in _descendants(child)), *children]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
