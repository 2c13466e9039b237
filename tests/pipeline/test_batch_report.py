"""What is said of batches, by the commands and to people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from writetime import cli
from writetime.pipeline.batch_report import batch_text, batches_text
from writetime.pipeline.documents import Accounting, Manifest, Problem, Sealed, SegmentOutcome
from writetime.storage import layout, open_store

THEN = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
ACCOUNTS = [
    Accounting(table="shop.orders", updates_in=30, applied=9, duplicate=20, superseded=1, events=11),
    Accounting(table="shop.x[red]y[/red]", updates_in=5, not_ours=3, quarantined=2),
]


def sealed(number: int) -> Sealed:
    problem = Problem(kind="corrupt_frame", position=99, size=7, message="CRC")
    outcome = SegmentOutcome(object="cdc/ring/CommitLog-7-1.log", frames=3, updates=3, problems=[problem])
    return Sealed(number=number, kind="ingest", sealed_at=THEN, segments=[outcome], accounting=ACCOUNTS, state={}, events=11)


def cells(line: str) -> list[str]:
    return line.split()


def test_a_batch_tells_where_every_update_went() -> None:
    lines = batch_text(sealed(7)).splitlines()
    assert lines[0] == "batch 7 (ingest) sealed: 1 segments, 11 events"
    assert cells(lines[1])[:3] == ["table", "updates", "in"]
    assert cells(lines[3]) == ["shop.orders", "30", "9", "20", "1", "0", "0", "11"]
    assert cells(lines[4]) == ["shop.x[red]y[/red]", "5", "0", "0", "0", "3", "2", "0"]
    assert cells(lines[5]) == ["all", "35", "9", "20", "1", "3", "2", "11"]
    assert lines[6] == "quarantined cdc/ring/CommitLog-7-1.log at 99: CRC"


def test_batches_are_a_line_each() -> None:
    lines = batches_text([sealed(7), sealed(8)]).splitlines()
    assert [cells(line)[0] for line in lines[2:]] == ["7", "8"]
    assert cells(lines[2])[1:] == ["ingest", "2026-05-04", "12:30:00Z", "1", "35", "9", "20", "1", "3", "2", "11"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A pipeline with three sealed batches and one that runs."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump({"pipeline": "shop", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": "bucket"}))
    store = open_store(str(tmp_path / "bucket"))
    for number in (1, 2, 3, 4):
        manifest = Manifest(number=number, kind="ingest", cluster="ring", created_at=THEN, now=1, base=number - 1, segments=[])
        store.put(layout.batch_object("ring", number, "manifest"), manifest.to_bytes())
        if number < 4:
            store.put(layout.batch_object("ring", number, "sealed"), sealed(number).to_bytes())
    return path


def test_the_commands(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["batches", "--config", str(config), "--last", "2", "--json"]) == 0
    assert [json.loads(line)["number"] for line in capsys.readouterr().out.splitlines()] == [2, 3]
    assert cli.main(["batches", "--config", str(config)]) == 0
    assert capsys.readouterr().out == batches_text([sealed(1), sealed(2), sealed(3)]) + "\n"
    assert cli.main(["batch", "2", "--config", str(config)]) == 0
    assert capsys.readouterr().out == batch_text(sealed(2)) + "\n"
    assert cli.main(["batch", "2", "--config", str(config), "--json"]) == 0
    assert Sealed.model_validate_json(capsys.readouterr().out) == sealed(2)
    assert cli.main(["batch", "4", "--config", str(config)]) == 1
    assert "batch is not sealed" in capsys.readouterr().err


def test_before_the_first_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump({"pipeline": "shop", "cluster": {"name": "ring", "datacenters": ["dc1"]}, "bucket": "bucket"}))
    assert cli.main(["batches", "--config", str(path)]) == 0
    assert capsys.readouterr().out == "no batch is sealed yet\n"
