"""The command `writetime status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.status import bucket
from writetime import cli


def config(folder: Path, where: Path) -> str:
    file = where / "pipeline.yaml"
    file.write_text(yaml.safe_dump({"pipeline": "p", "cluster": {"name": bucket.CLUSTER, "datacenters": ["dc1"]}, "bucket": str(folder)}))
    return str(file)


def test_text_for_people(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--config", config(folder, tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Prod <1>: batch 8 (ingest) sealed 2026-05-04 12:10:20Z, 110 s after its newest segment"
    assert any(line.split()[:3] == [bucket.NODES[0].host_id, "10.0.0.1", "dc1"] for line in lines)
    assert any(line.split()[:2] == ["shop.orders", "2026-05-04"] for line in lines)
    assert lines[-1] == f"waits for a person: {bucket.ref(0, 6).incoming}"


def test_one_document_for_machines(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--config", config(folder, tmp_path), "--json", "--last", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [batch["number"] for batch in found["batches"]] == [8, 7]
    assert found["batches"][0]["lag"] == [110, 140]
    assert found["batches"][0]["accounting"]["updates_in"] == 90
    assert found["nodes"][0]["address"] == "10.0.0.1"
    assert {table["table"] for table in found["tables"]} == set(bucket.TABLES)
    assert found["published"] == 7


def test_before_the_first_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--config", config(tmp_path / "none", tmp_path)]) == 0
    assert capsys.readouterr().out == "Prod <1>: no batch is sealed yet\n"
