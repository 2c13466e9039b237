"""The benchmark of the page builds a bucket that it can read, and asks for views that are there: small, so
that figures mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import page
from writetime.pipeline.planner import history
from writetime.storage import open_store


@pytest.mark.thorough
def test_every_view_is_answered(tmp_path: Path, runner: CliRunner) -> None:
    small = ["--folder", str(tmp_path), "--batches", "60", "--per-batch", "12", "--passes", "1"]
    result = runner.invoke(page.app, small, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    shown = {line[:32].strip() for line in result.output.splitlines()[2:]}
    assert shown == set(page.views(tmp_path, 60, 12))
    sealed = history(open_store(str(tmp_path)), page.CLUSTER).sealed
    assert sealed is not None
    assert (sealed.number, len(sealed.held)) == (60, 1)


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()
