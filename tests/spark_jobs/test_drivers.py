"""What a driver decides by itself, without Spark: whether its batch is done, and whether all of each table is
accounted for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_jobs import ingest
from writetime.config.pipeline import load
from writetime.errors import BatchError
from writetime.pipeline.documents import Accounting, Manifest, Sealed
from writetime.storage import layout, open_store

AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("sealed_by_another", [True, False])
def test_a_driver_that_finds_its_batch_sealed_has_done_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed_by_another: bool) -> None:
    (tmp_path / "pipeline.yaml").write_text(f"pipeline: p\ncluster: {{name: c, datacenters: [dc1]}}\nbucket: {tmp_path / 'bucket'}\n")
    config = load(tmp_path / "pipeline.yaml")
    store = open_store(config.bucket)
    manifest = Manifest(number=1, kind="ingest", cluster="c", created_at=AT, now=int(AT.timestamp()), base=0, segments=[])
    store.put(layout.batch_object("c", 1, "manifest"), manifest.to_bytes())
    sealed = Sealed(number=1, kind="ingest", sealed_at=AT, segments=[], accounting=[], state={})

    def run(_: ingest.Batch) -> Sealed:
        if sealed_by_another:
            store.put(layout.batch_object("c", 1, "sealed"), sealed.to_bytes())
        raise BatchError("another driver has sealed it, or something else is wrong", operation="commit a batch", obj="1")

    monkeypatch.setattr(ingest, "spark_session", lambda *_: SimpleNamespace(stop=lambda: None, sparkContext=None))
    monkeypatch.setattr(ingest, "Meter", lambda *_, **__: None)
    monkeypatch.setattr(ingest.Batch, "run", run)
    if sealed_by_another:
        assert ingest.run(config, 1) == sealed
    else:
        with pytest.raises(BatchError, match="something else is wrong"):
            ingest.run(config, 1)


def test_what_one_table_lacks_does_not_make_up_for_what_another_has_too_much() -> None:
    accounting = [Accounting(table="a.b", updates_in=3), Accounting(table="a.c", updates_in=5), Accounting(table="a.d", events=1)]
    assert ingest.unlike({"a.b": 3, "a.c": 5}, accounting) == []
    assert ingest.unlike({"a.b": 4, "a.c": 4}, accounting) == [
        "a.b: 4 were read, 3 are accounted for",
        "a.c: 4 were read, 5 are accounted for",
    ]
    assert ingest.unlike({"a.b": 3, "a.c": 5, "a.e": 1}, accounting) == ["a.e: 1 were read, 0 are accounted for"]
