"""The command `writetime cost`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.monitoring import bucket
from writetime import cli
from writetime.pipeline import costs


@pytest.fixture
def file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    class Then(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2026, 5, 4, 18, tzinfo=UTC)

    monkeypatch.setattr(costs, "datetime", Then)
    made = tmp_path / "pipeline.yaml"
    made.write_text(yaml.safe_dump({"pipeline": "p", "cluster": {"name": bucket.CLUSTER, "datacenters": ["dc1"]}, "bucket": str(folder)}))
    return str(made)


def test_text(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost", "--config", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2026-05-04: 8 batches"
    rows = [line.split() for line in lines]
    assert ["scan", "20.0", "96", "48", "0.0"] in rows
    assert ["all", "26.0", "112", "56", "0.0"] in rows
    # 240 of 1,080 updates, of 24 s; and 2 s of its own.
    assert ["shop.orders", "7.3", "2.0", "5.3", "240", "80", "8", "0.0"] in rows


def test_document(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost", "--config", file, "--days", "31", "--json"]) == 0
    (day,) = json.loads(capsys.readouterr().out)["days"]
    assert (day["day"], day["batches"]) == ("2026-05-04", 8)
    assert {stage["stage"]: stage["cpu_seconds"] for stage in day["stages"]} == {"changes": 2, "merge": 4, "scan": 20}
    assert [cost["bytes"] for cost in day["costs"] if cost["table"] == "shop.orders"] == [360]
    assert {table["table"] for table in day["tables"]} == set(bucket.TABLES)


def test_nothing_is_noted_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"pipeline: p\ncluster: {{name: c, datacenters: [dc1]}}\nbucket: {tmp_path / 'none'}\n")
    assert cli.main(["cost", "--config", str(config)]) == 0
    assert capsys.readouterr().out == "No batch of these days has noted its cost: batches of this version do.\n"
