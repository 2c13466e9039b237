"""The benchmark of the page in a browser asks for every view of a running Airflow: small, so that figures
mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import page, paint

pytestmark = [pytest.mark.browser, pytest.mark.airflow, pytest.mark.timeout(600)]


def test_every_view_is_painted(tmp_path: Path) -> None:
    result = CliRunner().invoke(paint.app, ["--batches", "60", "--per-batch", "12", "--passes", "1"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    shown = {line[:32].strip() for line in result.output.splitlines() if line[32:].split()[1:2]}
    assert shown >= set(page.views(tmp_path, 60, 12))
