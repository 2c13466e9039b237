"""How the suite is run: as two processes, of which each test is in one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import tests

SUITE = """
import pytest

@pytest.mark.airflow
def test_that_waits(): {0}

def test_that_computes(): {1}

@pytest.mark.gcs
def test_elsewhere(): assert False
"""


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((0, 1), 1), ((2, 1), 2), ((5, 0), 0), ((0, 5), 0), ((5, 5), 5), ((5, 1), 1), ((-9, 0), -9)]
)
def test_one_code_for_both(codes: tuple[int, int], code: int) -> None:
    assert tests.outcome(codes) == code


@pytest.mark.parametrize(("bodies", "code"), [(("pass", "pass"), 0), (("pass", "assert 0"), 1), (("assert 0", "pass"), 1)])
def test_each_test_is_run_once_and_what_fails_counts(tmp_path: Path, bodies: tuple[str, str], code: int) -> None:
    (tmp_path / "test_it.py").write_text(SUITE.format(*bodies), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n airflow\n gcs\n", encoding="utf-8")
    command = [sys.executable, "-m", "tools.tests", str(tmp_path), "-c", str(tmp_path / "pytest.ini"), "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tests.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    ran = re.findall(r"::(test_\w+) (?:PASSED|FAILED) ", done.stdout)
    assert ran == ["test_that_waits", "test_that_computes"]
