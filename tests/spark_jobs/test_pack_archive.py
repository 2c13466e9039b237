"""A run of care over an archive, with packing in this process; on Spark the same function travels to
workers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark import cloudpickle

from spark_jobs import pack_archive
from spark_jobs.pack_archive import Care, PackAll, as_line, packer, published
from spark_jobs.sinks.avro_files import Filed
from tests.pipeline.test_archive_packing import CONTENT, NOON, Archive
from writetime.config import archive as of_archive
from writetime.config.pipeline import PipelineConfig, load
from writetime.pipeline.archive_packing import Packed, Shelved, read_shelved
from writetime.pipeline.documents import Sealed
from writetime.pipeline.publish_progress import Published, write_published
from writetime.storage import layout, segment_object
from writetime.storage.local import LocalStore

CLUSTER = "ring"
NOW = NOON + timedelta(days=10)


def configured(folder: Path, **about: Any) -> PipelineConfig:
    told = {"pipeline": "p", "cluster": {"name": CLUSTER, "datacenters": ["dc1"]}, "bucket": str(folder / "bucket"), **about}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
    return load(folder / "pipeline.yaml")


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(LocalStore(tmp_path / "bucket"))


class Spread:
    """Packs in this process; `rounds` are the segments of each round."""

    def __init__(self, config: PipelineConfig, at_once: int = 2) -> None:
        self.pack_one = packer(config)
        self.at_once = at_once
        self.rounds: list[list[str]] = []

    def __call__(self) -> tuple[PackAll, int]:
        return self._pack, self.at_once

    def _pack(self, found: Sequence[str]) -> Iterable[Packed]:
        self.rounds.append(list(found))
        return [self.pack_one(name) for name in found]


def cared(archive: Archive, config: PipelineConfig, spread: Spread | None = None, *, rounds: int = 1000, now: datetime = NOW) -> Shelved:
    """One run, whose time is up after that many looks at the clock."""
    turns = iter(range(rounds))
    care = Care(config, archive.store, now, lambda: next(turns, None) is None)
    return care.run(spread or Spread(config))


def seal(archive: Archive, number: int = 1, **about: Any) -> None:
    sealed = Sealed(number=number, kind="maintain", sealed_at=NOON, segments=[], accounting=[], state={}, **about)
    archive.store.put(layout.batch_object(CLUSTER, number, "manifest"), b"{}")
    archive.store.put(layout.batch_object(CLUSTER, number, "sealed"), sealed.to_bytes())


def test_what_is_old_enough_is_packed_and_counted(archive: Archive, tmp_path: Path) -> None:
    config = configured(tmp_path)
    old = [archive.put(number, NOON + timedelta(days=number)) for number in range(5)]
    young = archive.put(9, NOW - timedelta(hours=23))
    spread = Spread(config)
    shelved = cared(archive, config, spread)
    assert archive.names == [*map(layout.packed, old), young]
    assert spread.rounds == [old[:2], old[2:4], old[4:]]
    stored = sum(info.size for info in archive.store.list("cdc_archive/") if layout.is_packed(info.name))
    assert shelved.last.packed.model_dump() == {"objects": 5, "before": 5 * 4500, "after": stored}
    assert (shelved.finished, shelved.ever) == (True, shelved.last)
    assert shelved.packed_upto == (NOW - timedelta(days=1)).replace(minute=0)
    assert read_shelved(archive.store, CLUSTER) == shelved
    again = cared(archive, config)
    assert (again.last.packed.objects, again.ever) == (0, shelved.ever)


def test_what_time_does_not_suffice_for_is_the_next_runs(archive: Archive, tmp_path: Path) -> None:
    config = configured(tmp_path)
    old = [archive.put(number, NOON + timedelta(days=number)) for number in range(5)]
    first = cared(archive, config, rounds=1)
    assert archive.names == [*map(layout.packed, old[:2]), *old[2:]]
    assert (first.finished, first.last.packed.objects, first.packed_upto) == (False, 2, layout.archive_hour(old[2]))
    second = cared(archive, config)
    assert archive.names == [*map(layout.packed, old)]
    assert (second.finished, second.last.packed.objects, second.ever.packed.objects) == (True, 3, 5)


def test_what_comes_late_is_packed_too_but_not_looked_for_for_ever(archive: Archive, tmp_path: Path) -> None:
    config = configured(tmp_path)
    cared(archive, config)
    late, later = archive.put(1, NOW - timedelta(days=2)), archive.put(2, NOW - timedelta(days=3))
    assert cared(archive, config).last.packed.objects == 1
    assert archive.names == [later, layout.packed(late)]


def test_one_that_cannot_be_packed_holds_up_no_other(archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path)
    bad, good = archive.put(1), archive.put(2)
    archive.store.put(layout.packed(bad), b"something else")
    shelved = cared(archive, config)
    assert archive.names == [bad, layout.packed(bad), layout.packed(good)]
    assert (shelved.last.packed.objects, shelved.last.failed) == (1, 1)
    assert bad in capsys.readouterr().out
    assert "1 objects failed" in as_line(shelved)


def test_where_nothing_is_to_be_packed_no_spark_is_started(archive: Archive, tmp_path: Path) -> None:
    name = archive.put(1)

    def never() -> tuple[PackAll, int]:
        raise AssertionError

    for about in ({"compress_after_days": None}, {"compress_after_days": 30}):
        Care(configured(tmp_path, archive=about), archive.store, NOW, lambda: False).run(never)
    assert archive.names == [name]


def test_what_the_last_seal_lets_go_goes_and_is_not_packed_before(archive: Archive, tmp_path: Path) -> None:
    config = configured(tmp_path, archive={"keep_days": 5})
    gone, kept = archive.put(1), archive.put(2, NOW - timedelta(days=2))
    assert cared(archive, configured(tmp_path, archive={"keep_days": 5, "compress_after_days": None})).last.let_go.objects == 0
    seal(archive, kept_from=int((NOW - timedelta(days=5)).timestamp()))
    spread = Spread(config)
    shelved = cared(archive, config, spread)
    assert (archive.names, spread.rounds) == ([layout.packed(kept)], [[kept]])
    assert gone not in archive.names
    assert (shelved.last.let_go.objects, shelved.last.let_go.before) == (1, 4500)
    assert archive.entry(1).state == "expired"


def test_ledger_entries_go_when_they_are_old_enough(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.put(1)
    archive.put(2, NOW - timedelta(days=6))
    seal(archive, kept_from=int(NOW.timestamp()))
    config = configured(tmp_path, archive={"keep_days": 5})
    assert cared(archive, config).last.ledger.objects == 0
    monkeypatch.setattr(of_archive, "LATE_COPY_DAYS", 3)
    shelved = cared(archive, config)
    assert shelved.last.ledger.objects == 1
    assert [info.name.rpartition("/")[2] for info in archive.store.list("ledger/")] == ["CommitLog-7-2.json"]


def test_documents_of_batches_go_as_far_as_everything_is_published(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writetime.pipeline.retention.LAST_BATCHES", 2)
    for number in range(1, 10):
        seal(archive, number)
        for what in ("manifest", "sealed"):
            at = (NOON + timedelta(minutes=number)).timestamp()
            os.utime(Path(archive.store.url, layout.batch_object(CLUSTER, number, what)), (at, at))
    sinks = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"},
        "files": {"url": str(tmp_path / "files")},
        "archive": {"keep_days": 5},
    }
    config = configured(tmp_path, **sinks)
    assert published(config, archive.store) == 0
    assert cared(archive, config).last.batches.objects == 0
    write_published(archive.store, CLUSTER, Published(batch=6, events=0, waiting={"shop.orders": 5}))
    assert published(config, archive.store) == 0, "files have not begun"
    LocalStore(tmp_path / "files").put("_published.json", Filed(batch=8, events=0).to_bytes())
    assert published(config, archive.store) == 5
    shelved = cared(archive, config)
    assert shelved.last.batches.objects == 2 * 4
    left = {int(info.name.split("/")[2]) for info in archive.store.list(layout.batches_prefix(CLUSTER))}
    assert left == {5, 6, 7, 8, 9}
    assert published(configured(tmp_path), archive.store) == 0, "files are written by default, and have not begun"
    assert published(configured(tmp_path, files=None), archive.store) == 9, "nothing is published: nobody waits"


def test_reports_go_when_they_are_old_enough(archive: Archive, tmp_path: Path) -> None:
    for days in (100, 50):
        name = layout.verify_report(CLUSTER, NOW - timedelta(days=days))
        archive.store.put(name, b"{}")
        at = (NOW - timedelta(days=days)).timestamp()
        os.utime(Path(archive.store.url, name), (at, at))
    shelved = cared(archive, configured(tmp_path))
    assert (shelved.last.reports.objects, shelved.last.reports.before) == (1, 2)


def test_claims_go_only_if_it_is_said_when(archive: Archive, tmp_path: Path) -> None:
    name = layout.claim("t.shop.orders", 1, 1)
    archive.store.put(name, b"{}")
    at = (NOW - timedelta(days=400)).timestamp()
    os.utime(Path(archive.store.url, name), (at, at))
    kafka = {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "t"}
    assert cared(archive, configured(tmp_path, kafka=kafka)).last.claims.objects == 0
    shelved = cared(archive, configured(tmp_path, kafka=kafka, archive={"keep_claims_days": 30}))
    assert (shelved.last.claims.objects, shelved.last.claims.before) == (1, 2)


def test_what_packs_travels_to_workers(archive: Archive, tmp_path: Path) -> None:
    name = archive.put(1)
    pack_one = pickle.loads(cloudpickle.dumps(packer(configured(tmp_path))))
    assert (pack_one(name).before, pack_one(name).trouble.partition(":")[0]) == (4500, "pack a segment")
    assert segment_object.read(archive.store, layout.packed(name)) == CONTENT


def test_the_job_tells_what_it_did(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(tmp_path)
    archive.put(1, datetime.now(UTC) - timedelta(days=2))
    monkeypatch.setattr(pack_archive, "spread", lambda config, _: Spread(config)())
    assert pack_archive.main(["--config", str(tmp_path / "pipeline.yaml")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 segments packed, 4500 -> ")
    bad = archive.put(2, datetime.now(UTC) - timedelta(days=2))
    archive.store.put(layout.packed(bad), b"something else")
    assert pack_archive.main(["--config", str(tmp_path / "pipeline.yaml")]) == 1
