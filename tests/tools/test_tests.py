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
from hypothesis import given, strategies as st

@pytest.mark.airflow
def test_that_waits(): {0}

def test_that_computes(): {1}

@pytest.mark.gcs
def test_elsewhere(): assert False

@pytest.mark.thorough
def test_that_takes_long(): pass

@given(st.integers())
def test_of_a_property(number): pass
"""


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((0, 1), 1), ((2, 1), 2), ((5, 0), 0), ((0, 5), 0), ((5, 5), 5), ((5, 1), 1), ((-9, 0), -9)]
)
def test_one_code_for_both(codes: tuple[int, int], code: int) -> None:
    assert tests.outcome(codes) == code


def run(tmp_path: Path, bodies: tuple[str, str], *options: str) -> tuple[int, list[str]]:
    """Exit code, and the tests that were run."""
    (tmp_path / "test_it.py").write_text(SUITE.format(*bodies), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n airflow\n gcs\n thorough\n", encoding="utf-8")
    about = [str(tmp_path), "-c", str(tmp_path / "pytest.ini"), "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.tests", *options, *about], cwd=tests.ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, re.findall(r"::(test_\w+) (?:PASSED|FAILED) ", done.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize(("bodies", "code"), [(("pass", "pass"), 0), (("pass", "assert 0"), 1), (("assert 0", "pass"), 1)])
def test_each_test_is_run_once_and_what_fails_counts(tmp_path: Path, bodies: tuple[str, str], code: int) -> None:
    assert run(tmp_path, bodies) == (code, ["test_that_waits", "test_that_computes", "test_of_a_property"])


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--all", ["test_that_waits", "test_that_computes", "test_that_takes_long", "test_of_a_property"]),
        ("--rest", ["test_that_takes_long", "test_of_a_property"]),
    ],
)
def test_the_quick_suite_and_the_rest_are_everything(tmp_path: Path, option: str, expected: list[str]) -> None:
    assert run(tmp_path, ("pass", "pass"), option) == (0, expected)
