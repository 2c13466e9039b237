"""A pipeline without Airflow for tests of the jobs: ship, plan, run, archive, in this process and with real
Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from proof.recording.recording import NodeInfo, Recording
from spark_jobs import ingest
from tests.spark_jobs.conf import spark_conf
from tools import demo
from tools.site import Site
from writetime.config.pipeline import PipelineConfig, load
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import LedgerEntry, Manifest, Sealed, TableFiles
from writetime.pipeline.planner import plan_ingest
from writetime.storage import layout, open_store
from writetime.storage.store import Store


@dataclass(frozen=True)
class Pipeline:
    """One site, and what tests do with it."""

    site: Site
    recording: Recording
    config: PipelineConfig

    @classmethod
    def create(cls, folder: Path, bucket: str | None = None) -> Pipeline:
        recording = Recording.open()
        site = Site(folder, bucket)
        site.write_configs(recording, bootstrap="127.0.0.1:1", schedule=None)
        config = load(site.config)
        conf = spark_conf(folder)
        return cls(site, recording, config.model_copy(update={"spark": config.spark.model_copy(update={"conf": conf})}))

    def with_keystore(self, keystore: Path, password: str) -> Pipeline:
        """The same with a keystore for encrypted segments. An earlier test may have started the JVM: its
        environment is what it was."""
        conf = {**self.config.spark.conf, "spark.executorEnv.WRITETIME_KEYSTORE_PASSWORD": password}
        update = {
            "cluster": self.config.cluster.model_copy(update={"commitlog_keystore": keystore}),
            "spark": self.config.spark.model_copy(update={"conf": conf}),
        }
        return replace(self, config=self.config.model_copy(update=update))

    @property
    def store(self) -> Store:
        return open_store(self.config.bucket)

    @property
    def cluster(self) -> str:
        return self.config.cluster.name

    def node(self, index: int) -> NodeInfo:
        return self.recording.nodes[index]

    def incoming(self, node: int, filename: str) -> str:
        """Name in the bucket of a node's segment."""
        info = self.node(node)
        where = layout.NodeName(self.cluster, info.datacenter, info.host_id)
        return layout.SegmentRef(where, layout.SegmentName.parse(filename)).incoming

    def stage(self) -> list[Path]:
        """The nodes' cdc_raw folders, in the order of the nodes."""
        folders = self.recording.stage(self.site.nodes)
        return [folders[node.host_id] for node in self.recording.nodes]

    def ship(self) -> None:
        demo.ship(self.site, self.recording, stage=False)

    def plan(self) -> Manifest:
        manifest = plan_ingest(self.store, self.cluster, now=datetime.now(UTC))
        assert manifest is not None
        return manifest

    def run(self, manifest: Manifest) -> Sealed:
        return ingest.run(self.config, manifest.number)

    def batch(self) -> Sealed:
        """Plan, run, archive."""
        sealed = self.run(self.plan())
        archive(self.store, self.cluster, sealed.number)
        return sealed

    def batches(self, most: int) -> list[int]:
        """Plan, run, archive batches of so many segments at most until nothing is left; gives their numbers."""
        numbers = []
        while (planned := plan_ingest(self.store, self.cluster, now=datetime.now(UTC), max_segments=most)) is not None:
            numbers.append(self.run(planned).number)
            archive(self.store, self.cluster, numbers[-1])
        return numbers

    def ledger(self, name: str) -> LedgerEntry:
        entry = LedgerEntry.read(self.store, layout.SegmentRef.from_object(name).ledger)
        assert entry is not None
        return entry

    def forget(self, name: str) -> None:
        """Take away the ledger's entry of a segment, as care of the archive does in time: then nobody knows
        that it was taken in before."""
        self.store.delete(layout.SegmentRef.from_object(name).ledger)

    def rows(self, namespace: str, table: str) -> list[dict[str, Any]]:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{self.site.catalog}", **self.site.lake)
        rows: list[dict[str, Any]] = catalog.load_table((namespace, table)).scan().to_arrow().to_pylist()
        return rows

    def files(self, namespace: str, table: str) -> TableFiles:
        """The files of a table, as its manifests list them."""
        found = SqlCatalog("lake", uri=f"sqlite:///{self.site.catalog}").load_table((namespace, table)).inspect.files().to_pylist()
        deletes = sum(each["content"] != 0 for each in found)
        return TableFiles(data=len(found) - deletes, deletes=deletes, bytes=sum(each["file_size_in_bytes"] for each in found))


@contextmanager
def dies_at(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """The batch's driver ends just before the named commit."""

    class Death(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(ingest.Batch, step, die)
        with pytest.raises(Death):
            yield
