"""What `make kill-batch` kills at is there to be passed; the runs themselves have a target of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proof.kill_batch import points, sabotage
from proof.kill_batch.run import misplaced
from spark_jobs import ingest
from tools import ROOT


def test_every_step_is_one_of_the_job() -> None:
    assert [step for step in points.STEPS if not callable(getattr(ingest.Batch, f"_{step}", None))] == []


def test_every_broken_rule_shows_by_something() -> None:
    known = {*points.INGEST, *points.PUBLISH, sabotage.BETWEEN}
    assert {
        name: rule
        for name, rule in sabotage.RULES.items()
        if not (rule.late in known or rule.edited or rule.voids or rule.restores or rule.switches or known & set(rule.points))
    } == {}
    assert [point for rule in sabotage.RULES.values() for point in rule.points if point not in known] == []


BREAK_EACH = """
import sys
from inspect import isclass, isroutine
from proof.kill_batch import child, points, sabotage
from proof.ring.sabotage import _expect_alike
from spark_jobs.sinks import voids
points.install_in_driver()

def bound():
    modules = [module for name, module in sys.modules.items() if name.startswith(("spark_jobs.", "writetime."))]
    classes = [each for module in modules for each in vars(module).values() if isclass(each) and each.__module__ == module.__name__]
    return {(holder, name): value for holder in (*modules, *classes) for name, value in vars(holder).items() if name[:2] != "__"}

for name, rule in sabotage.RULES.items():
    before = bound()
    rule.break_it()
    changed = {place: value for place, value in bound().items() if before.get(place) is not value}
    assert changed, name
    for (holder, attribute), value in changed.items():
        assert (holder, attribute) in before, f"{name}: nothing had the name {attribute}"
        # Programs in C do not say how they are called.
        if isroutine(value) and attribute != "murmur2":
            _expect_alike(before[holder, attribute], value, f"{name}: {attribute}")
        setattr(holder, attribute, before[holder, attribute])
    print(name)
"""


def test_every_broken_rule_is_called_as_it_was() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BREAK_EACH],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(sabotage.RULES)


@pytest.mark.parametrize(("at", "passes"), [(0, 1), (2, 3)])
def test_a_job_ends_where_it_was_told_to(at: int, passes: int) -> None:
    program = (
        "import os; from proof.kill_batch import points; os.environ[points.DRIVER] = str(os.getpgid(0))\n"
        "for number in range(1, 9): print(number, flush=True); points.passed('before step seal'); points.passed('after step seal')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), points.POINT: "before step seal", points.AT: str(at)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    told, _ = process.communicate(timeout=60)
    assert (process.returncode, told.split()) == (-signal.SIGKILL, [str(number) for number in range(1, passes + 1)])


def record(partition: int, pk: int, batch: int, ordinal: int, ts: int) -> tuple[int, bytes, bytes]:
    key = json.dumps({"pk": pk, "ck": ordinal}).encode()
    source = {"sequence": f'["{batch}","{ordinal}"]', "ts_us": ts, "reason": None}
    return partition, key, json.dumps({"source": source}).encode()


def test_what_is_misplaced_after_a_switch_shows() -> None:
    marker = (0, None, None)
    good = [record(0, 1, 1, 9, 5), (0, b"k", None), marker, record(0, 1, 2, 1, 5), record(0, 1, 2, 2, 6), record(0, 1, 3, 1, 2)]
    assert list(misplaced(good, 2, ["pk"])) == []
    wrong = {
        "on the wrong side": [record(0, 1, 2, 1, 5), marker],
        "is in the partitions [0, 1]": [marker, (1, None, None), record(0, 1, 2, 1, 5), record(1, 1, 2, 2, 6)],
        "comes after (2, 2)": [marker, record(0, 1, 2, 2, 5), record(0, 1, 2, 1, 5)],
        "is older than the one before it": [marker, record(0, 1, 2, 1, 6), record(0, 1, 2, 2, 5)],
    }
    for problem, received in wrong.items():
        (found,) = misplaced(received, 2, ["pk"])
        assert problem in found


def test_a_job_is_stopped_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of its processes may pass the point, also after it was resumed."""
    stopped: list[int] = []
    monkeypatch.setenv(points.DRIVER, "77")
    monkeypatch.setattr(points.os, "killpg", lambda group, _: stopped.append(group))
    for _ in range(2):
        points._stop(str(tmp_path / "stopped"))
    assert stopped == [77, os.getpgid(0)]
    assert (tmp_path / "stopped").read_text() == f"77 {os.getpgid(0)}"
