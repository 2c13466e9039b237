"""The whole path on a standalone cluster, with recorded segments: its figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.batch import DEPLOYED
from tools import ROOT
from tools.services.s3 import PROGRAM


@pytest.mark.s3
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_one_worker_and_two_are_compared() -> None:
    if not PROGRAM.exists():
        pytest.skip("no S3 test server: run make test-s3")
    options = ["--workers", "2", "--scaling", "--recorded", "--passes", "1", "--bare", "--json"]
    done = subprocess.run([sys.executable, "-m", "benchmarks.whole", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout)
    assert (figures["cores"], figures["events"]) == (2, 3852)
    assert figures["worker_scaling"] > 0
    assert len(figures["spread"]["seconds_of_one_worker"]) == 1


def test_spark_starts_as_airflow_starts_it() -> None:
    """The plugins import Airflow, which a benchmark has no need of."""
    options = "".join(f'    "{name}": "{value}",\n' for name, value in DEPLOYED.items())
    assert f"QUICK_START = {{\n{options}}}\n" in (ROOT / "plugins" / "writetime_operators.py").read_text(encoding="utf-8")
