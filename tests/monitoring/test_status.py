"""The command `writetime status`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import UUID

import pytest
import yaml

from tests.monitoring import bucket
from writetime import cli
from writetime.pipeline import chains
from writetime.pipeline.archive_packing import Done, Shelved, Work
from writetime.pipeline.chains import Rebuild
from writetime.pipeline.documents import Chain
from writetime.pipeline.pace import Measure, Pace
from writetime.pipeline.planner import read_sealed
from writetime.storage import layout
from writetime.storage.local import LocalStore


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
    assert lines[-1] == f"held: {bucket.ref(0, 6).incoming}"


def test_one_document_for_machines(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--config", config(folder, tmp_path), "--json", "--last", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [batch["number"] for batch in found["batches"]] == [8, 7]
    assert found["batches"][0]["lag"] == [110, 140]
    assert found["batches"][0]["accounting"]["updates_in"] == 90
    assert found["nodes"][0]["address"] == "10.0.0.1"
    assert found["nodes"][0]["position"] == {"segment": bucket.ref(0, 17).segment.filename, "bytes": 1008}
    assert {table["table"] for table in found["tables"]} == set(bucket.TABLES)
    assert {table["table"]: table["rows"] for table in found["tables"]}["shop.orders"] == 8000
    assert found["published"] == 7


def test_how_large_batches_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bucket"
    bucket.small(folder)
    where = ["--config", config(folder, tmp_path)]
    assert cli.main(["status", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pace"] is None
    measures = [Measure(batch=number, segments=64, bytes=2 << 30, seconds=240.0) for number in (6, 7)]
    LocalStore(folder).put(layout.pace(bucket.CLUSTER), Pace(measures=measures, target=120.0).to_bytes())
    assert cli.main(["status", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "batches take in up to 1.0 GiB, to take 2.0 min (batch_seconds); batch 7 took 4.0 min for 2.0 GiB" in lines
    assert cli.main(["status", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pace"]["limit"] == 1 << 30


def test_how_far_the_archive_is_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bucket"
    bucket.small(folder)
    where = ["--config", config(folder, tmp_path)]
    assert cli.main(["status", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["archive"] is None
    last = Done(packed=Work(objects=3, before=96 << 20, after=32 << 20), let_go=Work(objects=2, before=10 << 20), failed=1)
    shelved = Shelved(at=bucket.minute(9), packed_upto=bucket.minute(0), last=last, ever=last.with_(last))
    store = LocalStore(folder)
    store.put(layout.shelved(bucket.CLUSTER), shelved.to_bytes())
    sealed = read_sealed(store, bucket.CLUSTER, 8)
    assert sealed is not None
    kept_from = bucket.minute(0).replace(minute=0)
    store.put(
        layout.batch_object(bucket.CLUSTER, 8, "sealed"), sealed.model_copy(update={"kept_from": int(kept_from.timestamp())}).to_bytes()
    )
    assert cli.main(["status", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    (first,) = [line for line in lines if line.startswith("archive:")]
    assert first == (
        f"archive: packed up to {bucket.minute(0):%Y-%m-%d %H}:00Z, kept from {kept_from:%Y-%m-%d %H}:00Z on; "
        "the last run had no time to finish"
    )
    shown = [line.split() for line in lines]
    assert ["segments", "packed", "3", "96.0", "32.0", "6", "192.0", "64.0"] in shown
    assert ["segments", "deleted", "2", "10.0", "0.0", "4", "20.0", "0.0"] in shown
    assert any(line.startswith("1 objects of the archive failed") for line in lines)
    assert cli.main(["status", *where, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["archive"]
    assert (told["kept_from"], told["last"]["packed"]["before"], told["finished"]) == (kept_from.isoformat(), 96 << 20, False)


def test_before_the_first_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--config", config(tmp_path / "none", tmp_path)]) == 0
    nothing = "Prod <1>: no batch is sealed yet\nNo node has shipped anything yet: run `writetime ship --config …` on each node.\n"
    assert capsys.readouterr().out == nothing


def test_a_rebuild_is_shown(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder, tmp_path / "bucket")
    store, where = LocalStore(tmp_path / "bucket"), ["status", "--config", config(tmp_path / "bucket", tmp_path)]
    chain = Chain(id=UUID(int=1), first=9, generation=9, partial=True)
    begun = Rebuild(chain=chain, begun_at=bucket.minute(0), segments=7, lacking=2, missing=["cdc_archive/a", "cdc_archive/b"])
    rebuild = chains.begin(store, bucket.CLUSTER, begun)
    assert cli.main(where) == 0
    shown = capsys.readouterr().out
    assert f"a rebuild is under way since {bucket.minute(0):%Y-%m-%d %H:%M:%S}Z: `writetime rebuild` finishes it" in shown
    assert "incomplete: rebuilt from an archive that lacked 2 segments (cdc_archive/a …)" in shown
    chains.finish(store, bucket.CLUSTER, rebuild, 9, bucket.minute(1), {})
    assert cli.main([*where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rebuild"]["chain"]["upto"] == 9
