"""A short run of the killed shipper, and that every sabotage is detected. The long one: make kill-shipper."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from proof.kill_shipper.sabotage import RULES
from proof.kill_shipper.shipper import POINTS

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: it forks, and that has to be done without this one's threads.
    command = [sys.executable, "-m", "proof.kill_shipper", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)


def test_nothing_is_lost_or_doubled_whenever_the_shipper_dies() -> None:
    kills = 2 * len(POINTS)
    done = run("--seed", "3", "--kills", str(kills))
    assert done.returncode == 0, done.stdout + done.stderr
    (counts,) = re.findall(r"kills (\d+), segments (\d+), lost 0, doubled 0, early 0, stuck 0, tail 0", done.stdout)
    assert int(counts[0]) == kills
    assert int(counts[1]) > kills
    struck = re.findall(r"killed (.*): [1-9]", done.stdout)
    assert len(set(struck) & set(POINTS)) >= 2, "hardly any shipper came to its point"


def test_every_sabotage_is_noticed() -> None:
    done = run("--seed", "5", "--kills", "120", "--sabotage", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(.*): noticed", done.stdout, re.MULTILINE) == list(RULES)
