"""The alert rules, run by promtool over the series of `alerts.yml`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import promtool
from tools.errors import MissingPrerequisite

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
CASES = Path(__file__).resolve().parent / "alerts.yml"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        program = promtool.need()
    except MissingPrerequisite as error:
        pytest.skip(str(error))
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (*DEPLOY.glob("*.yml"), CASES):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_rules_and_scrape_configuration_are_well_formed(folder: Path) -> None:
    done = run(folder, "check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_for_its_cause_and_only_then(folder: Path) -> None:
    done = run(folder, "test", "rules", "alerts.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_a_rule_that_cannot_fire_is_noticed(folder: Path) -> None:
    rules = (folder / "rules.yml").read_text(encoding="utf-8")
    ends_with_its_series = rules.replace(
        "last_over_time(writetime_ship_last_look_timestamp_seconds[1d])", "writetime_ship_last_look_timestamp_seconds"
    )
    assert ends_with_its_series != rules
    (folder / "rules.yml").write_text(ends_with_its_series, encoding="utf-8")
    done = run(folder, "test", "rules", "alerts.yml")
    assert done.returncode != 0
    assert "WritetimeShipperSilent" in done.stdout + done.stderr


def test_no_alert_is_left_out() -> None:
    groups: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "rules.yml").read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    healthy, *others = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    assert healthy["name"] == "healthy"
    assert {each["alertname"] for each in healthy["alert_rule_test"] if not each.get("exp_alerts")} == alerts
    assert {each["alertname"] for case in others for each in case["alert_rule_test"] if each.get("exp_alerts")} == alerts
