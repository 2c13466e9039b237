"""Jobs end with the processes that started them: real processes, killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from writetime.pipeline import parents

_JOB = """
import os, resource, sys, time
from pathlib import Path
from writetime.pipeline import parents

folder, how = Path(sys.argv[1]), sys.argv[2]

def goodbye(reason):
    if how == "fails":
        raise RuntimeError("the store refuses")
    if how == "hangs":
        time.sleep(3600)
    (folder / "goodbye").write_text(reason)

parents.watch({"JVM": os.getppid()})
with parents.before_end(lambda reason: None if how != "fails" else goodbye(reason)), parents.before_end(goodbye):
    if how == "no descriptors":
        (folder / "pid").write_text(str(os.getpid()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        time.sleep(3600)
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(3600)
"""
_BETWEEN = """
import os, subprocess, sys
from pathlib import Path

Path(sys.argv[1], "between").write_text(str(os.getpid()))
subprocess.run([sys.executable, *sys.argv[2:]])
"""
_TASK = """
import os, subprocess, sys, time
from pathlib import Path
from writetime.pipeline import parents

folder = Path(sys.argv[1])
os.environ[parents.SETTING] = parents.named({"task": os.getpid(), "supervisor": os.getppid()})
(folder / "task").write_text(str(os.getpid()))
subprocess.Popen([sys.executable, str(folder / "between.py"), str(folder), str(folder / "job.py"), str(folder), sys.argv[2]])
time.sleep(3600)
"""
_SUPERVISOR = """
import subprocess, sys, time

task = subprocess.Popen([sys.executable, *sys.argv[1:]])
# It does not wait for its child: a killed task stays a zombie, as long as its supervisor is busy.
time.sleep(3600)
"""


class Tree:
    """supervisor → task → what lies between, as spark-submit's JVM → job. Each has its own process id in a file of its
    name."""

    def __init__(self, folder: Path, how: str = "") -> None:
        self.folder = folder
        for name, program in {"job": _JOB, "between": _BETWEEN, "task": _TASK, "supervisor": _SUPERVISOR}.items():
            (folder / f"{name}.py").write_text(program, encoding="utf-8")
        env = os.environ | {"PYTHONPATH": str(Path(parents.__file__).parents[2])}
        command = [sys.executable, str(folder / "supervisor.py"), str(folder / "task.py"), str(folder), how]
        self.supervisor = subprocess.Popen(command, env=env)
        wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), 60)
        # It has looked at them once.
        self.job = int((folder / "pid").read_text())

    def pid(self, role: str) -> int:
        return self.supervisor.pid if role == "supervisor" else int((self.folder / role).read_text())

    def kill(self, role: str) -> None:
        os.kill(self.pid(role), signal.SIGKILL)

    @property
    def runs(self) -> bool:
        return parents._started(self.job) is not None

    def end(self) -> None:
        for pid in (self.job, self.pid("between"), self.pid("task"), self.supervisor.pid):
            if parents._started(pid) is not None:
                os.kill(pid, signal.SIGKILL)
        self.supervisor.wait()


def wait_for(holds: Callable[[], object], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tree]:
    made = Tree(tmp_path, getattr(request, "param", ""))
    yield made
    made.end()


@pytest.mark.parametrize(("killed", "role"), [("supervisor", "supervisor"), ("task", "task"), ("between", "JVM")])
def test_a_job_ends_within_seconds_of_each_process_above_it(tree: Tree, killed: str, role: str) -> None:
    time.sleep(2.5)
    assert tree.runs, "nothing has ended yet"
    pid = tree.pid(killed)
    tree.kill(killed)
    wait_for(lambda: not tree.runs, 10)
    assert (tree.folder / "goodbye").read_text() == f"its {role} (process {pid}) has ended"


@pytest.mark.parametrize("tree", ["fails"], indirect=True)
def test_what_fails_before_the_end_keeps_nobody(tree: Tree) -> None:
    tree.kill("task")
    wait_for(lambda: not tree.runs, 10)


@pytest.mark.parametrize("tree", ["hangs"], indirect=True)
def test_what_hangs_before_the_end_keeps_it_for_seconds_only(tree: Tree) -> None:
    tree.kill("task")
    wait_for(lambda: not tree.runs, 20)


@pytest.mark.parametrize("tree", ["no descriptors"], indirect=True)
def test_a_job_that_cannot_look_goes_on(tree: Tree) -> None:
    time.sleep(3)
    assert tree.runs


def test_a_process_with_the_id_of_one_that_has_ended_is_another(tmp_path: Path) -> None:
    """The task was killed before the job began to look, and its id is used again."""
    program = "from writetime.pipeline import parents; parents.watch({}); print('goes on')"
    name = parents.named({"task": os.getpid()})
    for named, printed in ((name, "goes on\n"), (f"{name}0", "")):
        env = os.environ | {parents.SETTING: named}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
        assert (done.stdout.endswith("goes on\n"), done.returncode) == (bool(printed), 0 if printed else 1)


def test_processes_that_cannot_be_seen_are_not_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise a job would end because of a task that it may not look at."""
    assert parents.named({"task": os.getpid(), "supervisor": 2**22 + 1}).startswith(f"task:{os.getpid()}:")
    assert "supervisor" not in parents.named({"task": os.getpid(), "supervisor": 2**22 + 1})
    # Where there is no /proc, the id has to do.
    monkeypatch.setattr(parents, "_PROC", tmp_path)
    assert parents.named({"task": os.getpid(), "supervisor": 2**22 + 1}) == f"task:{os.getpid()}:unknown"
