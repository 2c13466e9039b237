"""Who only looks, with its own rights alone: the page with `writetime status` and `writetime metrics`, and
who is on call.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
import yaml

from tests.monitoring import bucket
from tests.rights.places import S3, Place, at
from tests.rights.test_shipper import REFUSED
from writetime import cli
from writetime.errors import StoreError
from writetime.monitoring import checks, ledger, metrics
from writetime.monitoring.status import as_text
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.planner import history
from writetime.pipeline.quarantine import record
from writetime.pipeline.verification import VerifyReport
from writetime.storage import layout


@pytest.fixture
def filled(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A bucket as a pipeline leaves it, of a cluster that no other test has."""
    cluster = f"Prod <{uuid.uuid4().hex[:8]}>"
    monkeypatch.setattr(bucket, "CLUSTER", cluster)
    monkeypatch.setattr(
        bucket,
        "NODES",
        tuple(layout.NodeName(cluster, node.datacenter, node.host_id) for node in bucket.NODES),
    )
    root = place.root()

    def put(name: str, data: bytes) -> None:
        root.put(name, data, metadata={"sealed_at": data.decode()} if name.startswith("cdc_archive/") else None)

    builder = bucket.Builder(put)
    for number in range(1, 5):
        builder.batch(number)
    builder.around(4)
    at, told = (
        bucket.minute(0),
        {"batch": 4, "horizon": None, "consistency": "ALL", "share": 1, "seed": 0, "tables": []},
    )
    report = VerifyReport.model_validate({"cluster": cluster, "started_at": at, "finished_at": at, **told})
    put(report.name, report.to_bytes())
    return place


def config(place: Place, folder: Path) -> str:
    file = folder / "pipeline.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "pipeline": "p",
                "cluster": {"name": bucket.CLUSTER, "datacenters": ["dc1"]},
                "bucket": place.url,
            }
        )
    )
    return str(file)


def views(batches: Batches) -> None:
    """What status, metrics and the page ask for."""
    assert as_text(batches, 60)
    assert metrics.samples(batches)
    for query in (
        ledger.Query(),
        ledger.Query(state="waiting"),
        ledger.Query(state="growing"),
        ledger.Query(minute=bucket.minute(3)),
    ):
        assert ledger.search(batches, query).rows, query
    kept, _ = record.list_records(batches)
    assert [record.read_record(batches, each.name) for each in kept] == kept
    assert kept
    assert checks.checks(batches)


def test_status_metrics_and_the_page(filled: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = filled.become("page", cluster=bucket.CLUSTER)
    where = ["--config", config(filled, tmp_path)]
    assert cli.main(["status", *where]) == 0
    assert cli.main(["status", *where, "--json"]) == 0
    assert cli.main(["metrics", *where, "--output", str(tmp_path / "written.prom")]) == 0
    assert "batch 4 (ingest)" in capsys.readouterr().out
    views(Batches(store, bucket.CLUSTER))


def test_who_is_on_call(filled: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled.become("on-call", cluster=bucket.CLUSTER)
    where = ["--config", config(filled, tmp_path)]
    assert cli.main(["batches", *where]) == 0
    assert cli.main(["batch", "3", *where]) == 0
    assert bucket.TABLES[0] in capsys.readouterr().out


PAGE = {
    "list": "list objects|(read|look up) an object",
    **{f"read:{folder}": rf"(read|look up) an object.*/{folder}/" for folder in ("batches", "ledger", "nodes", "published", "quarantine")},
}
PAGE_OF_S3 = {f"read:{folder}": rf"look up an object.*/{folder}/" for folder in ("cdc", "cdc_archive")}
"""There what is listed is looked at."""


@pytest.mark.parametrize("missing", PAGE)
def test_the_page_fails_by_name_without_one_of_its_rights(filled: Place, missing: str) -> None:
    lacks(filled, missing, PAGE[missing])


@at(S3)
@pytest.mark.parametrize("missing", PAGE_OF_S3)
def test_the_page_fails_by_name_without_one_that_only_amazon_asks_for(filled: Place, missing: str) -> None:
    lacks(filled, missing, PAGE_OF_S3[missing])


def lacks(filled: Place, missing: str, trouble: str) -> None:
    batches = Batches(filled.become("page", cluster=bucket.CLUSTER, without=missing), bucket.CLUSTER)
    with pytest.raises(StoreError, match=REFUSED) as caught:
        views(batches)
    assert re.search(trouble, str(caught.value)), caught.value


@pytest.mark.parametrize("missing", ["list", "read:batches", "read:released"])
def test_on_call_fails_by_name_without_one_of_its_rights(filled: Place, missing: str) -> None:
    filled.root().put(bucket.ref(0, 6).released, b"{}")
    store = filled.become("on-call", cluster=bucket.CLUSTER, without=missing)
    with pytest.raises(StoreError, match=REFUSED) as caught:
        history(store, bucket.CLUSTER)
    assert re.search(rf"(list objects|(read|look up) an object).*/{missing.partition(':')[2]}", str(caught.value)), caught.value
