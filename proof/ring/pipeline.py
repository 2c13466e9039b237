"""The product's pipeline on one folder: shippers, plan, ingest, archive. One Spark session serves all batches
of a run.

    <folder>/bucket     segments, archive, state, batches
    <folder>/lake       the Iceberg catalog and its tables

With the store `s3` only the catalog is there, and all else in the server that `proof.in_s3` runs.

With a `Kept` folder, the input of every batch is recorded, and `replay` uses it again. Maintenance purges
without the product's safety margin of one day: only the proof's own tables have such a short gc_grace. Under
a sabotage the product is patched here, in the driver, and in Spark's Python workers by `proof.ring.worker`,
which replaces pyspark's daemon module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any, Self

from pydantic import ByteSize
from pyspark.sql import SparkSession

from proof import in_s3
from proof.harness.node import Node
from proof.ring import held, sabotage
from proof.ring.answer import Answer
from proof.ring.lake import Lake
from proof.ring.topology import ONE_DATACENTER
from shippers.agent import Agent, Round
from shippers.node_identity import Link
from spark_jobs import audit, ingest, maintain
from spark_jobs.session import spark_session
from tests.spark_jobs.conf import spark_conf
from tools import ROOT
from writetime.cassandra.commitlog.segment import peek, scan
from writetime.cassandra.merge.tombstone_gc import purge_before
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline import completeness, planner
from writetime.pipeline.archiver import archive, mark_for_retry, release
from writetime.pipeline.audit import AuditReport
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.maintenance_report import Maintained
from writetime.pipeline.planner import plan_ingest, plan_maintain, plan_replay
from writetime.storage import layout, open_store
from writetime.storage.store import Store

CLUSTER = "proof"
BUCKETS = 2


class Kept:
    """What a run gave to the pipeline, in order, and what the ring answered; in one folder, to be replayed.

    steps.jsonl: {"batch": {"now", "objects": [{"name", "file", "metadata"}]}} or {"quiet": {"where",
    "answer"}}; and what was done to objects by their names: {"damaged": …}, {"let in": {"name", "file",
    "metadata"}}, {"release": …}, {"gone": …}; {"purge": null}.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def steps_file(self) -> Path:
        return self.folder / "steps.jsonl"

    def begin(self, about: dict[str, Any]) -> None:
        """Create the folder, or use an empty one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise ValueError(f"{self.folder} is not empty")
        (self.folder / "objects").mkdir()
        (self.folder / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        self.steps_file.touch()

    def about(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "run.json").read_text(encoding="utf-8")))

    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.steps_file.read_text(encoding="utf-8").splitlines()]

    def keep_batch(self, store: Store, prefixes: list[str], now: int, seen: set[tuple[str, int]]) -> None:
        """Record the objects that are new since the last batch."""
        objects = []
        for prefix in prefixes:
            for info in store.list(prefix):
                if (info.name, info.generation) in seen:
                    continue
                seen.add((info.name, info.generation))
                file = f"objects/{len(seen):05d}"
                (self.folder / file).write_bytes(store.read(info.name))
                objects.append({"name": info.name, "file": file, "metadata": dict(info.metadata)})
        self.note({"batch": {"now": now, "objects": objects}})

    def keep_repaired(self, name: str, content: bytes, metadata: dict[str, str]) -> None:
        file = f"objects/whole-{len(list((self.folder / 'objects').glob('whole-*'))):05d}"
        (self.folder / file).write_bytes(content)
        self.note({"let in": {"name": name, "file": file, "metadata": metadata}})

    def keep_answer(self, where: str, answer: Answer) -> None:
        file = f"answer-{where.replace(' ', '-')}.json"
        (self.folder / file).write_text(answer.to_json(), encoding="utf-8")
        self.note({"quiet": {"where": where, "answer": file}})

    def answer(self, file: str) -> Answer:
        return Answer.from_json((self.folder / file).read_text(encoding="utf-8"))

    def read(self, file: str) -> bytes:
        return (self.folder / file).read_bytes()

    def note(self, step: dict[str, Any]) -> None:
        with self.steps_file.open("a", encoding="utf-8") as steps:
            steps.write(json.dumps(step) + "\n")


@dataclass
class Pipeline:
    """One bucket, one warehouse, one Spark session."""

    folder: Path
    config: PipelineConfig
    kept: Kept | None = None
    rule: str | None = None

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        kept: Kept | None = None,
        rule: str | None = None,
        datacenters: Sequence[str] = ONE_DATACENTER.shipped,
        store: str = "folder",
    ) -> Self:
        """Everything under `folder`, or in the S3 server for the store `s3`, with nothing running yet. `rule`: the
        sabotage that the product runs under. `datacenters`: those that ship.
        """
        (folder / "lake").mkdir(parents=True)
        conf = {**spark_conf(folder), "spark.driver.memory": "1g", "spark.executorEnv.PYTHONPATH": str(ROOT)}
        if rule is not None:
            conf |= {"spark.python.daemon.module": "proof.ring.worker", f"spark.executorEnv.{sabotage.VARIABLE}": rule}
        config = PipelineConfig.model_validate(
            {
                "pipeline": "proof",
                "cluster": {"name": CLUSTER, "datacenters": list(datacenters)},
                "bucket": str(folder / "bucket"),
                "state": str(folder / "bucket"),
                "catalog": {"uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}", "warehouse": str(folder / "lake" / "warehouse")},
                "spark": {"conf": {"spark.sql.shuffle.partitions": "2", **conf}},
                "buckets": BUCKETS,
            }
        )
        return cls(folder, in_s3.moved(config, folder) if store == "s3" else config, kept, rule)

    def __post_init__(self) -> None:
        self._spark: SparkSession | None = None
        self._seen: set[tuple[str, int]] = set()
        self.sealed: list[Sealed] = []
        self.damaged: set[layout.SegmentRef] = set()
        """Segments that are damaged, so that batches are right to find problems in them."""
        self._whole: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        if self.rule is not None:
            sabotage.apply(self.rule)
        return self

    def __exit__(self, *_: object) -> None:
        if self._spark is not None:
            SparkSession.stop(self._spark)

    @property
    def store(self) -> Store:
        return open_store(self.config.bucket)

    @property
    def lake(self) -> Lake:
        return Lake(self.folder / "lake" / "catalog.db", in_s3.reading(self.config))

    # --- shippers

    def ship(self, node: Node, *, drain: bool = False) -> Round:
        """What `writetime ship --once` does on a node, which may be down, or `--drain` on one that is gone
        for good.

        What a node that crashed has left is not left to it: it will find the segments shipped when it starts
        again, and replays them all the same.
        """
        # Whole segments only: `held` damages what is in the bucket of a segment, of which no batch may have read a part.
        ship = ShipConfig(after_crash_seconds=0, disk_reserve=ByteSize(0), tail_seconds=None)
        about = NodeConfig(cdc_raw=node.cdc_raw, address=node.address, port=node.port, poll_seconds=0.1, ship=ship)
        link = Link(about) if node.running else None
        # A shipper that starts while its node is down uses the recorded identity.
        config = self.config.model_copy(update={"node": about})
        try:
            return Agent(config, self.store, link=link, stop=Event(), pause=0.05).round(drain=drain)
        finally:
            if link is not None:
                link.close()

    # --- batches

    def batch(self, *, now: datetime | None = None) -> Sealed | None:
        """Plan, run, archive; None if there is nothing to do."""
        now = now or datetime.now(UTC)
        store = self.store
        if self.kept is not None:
            self.kept.keep_batch(store, self._prefixes(), int(now.timestamp()), self._seen)
        manifest = plan_ingest(store, self.config.cluster.name, now=now)
        return None if manifest is None else self._run(manifest)

    def replay(self, *, now: datetime | None = None) -> Sealed | None:
        """A batch over the whole archive."""
        now = now or datetime.now(UTC)
        start, end = now - timedelta(days=2), now + timedelta(hours=1)
        # Purges were a moment ago, so that no hour is behind the horizon. What keeps out of each table what
        # was purged stays.
        with _Replaced(planner, "_expect_not_behind", lambda *_: None):
            manifest = plan_replay(self.store, self.config.cluster.name, start=start, end=end, now=now)
        return None if manifest is None else self._run(manifest)

    def audit(self, start: datetime) -> AuditReport:
        """Compare what the replicas' logs held, from then on."""
        with _Replaced(audit, "spark_session", self._session):
            return audit.run(self.config, start.replace(second=0, microsecond=0), datetime.now(UTC) + timedelta(minutes=1))

    # --- segments that are held

    def damage(self, marker: bytes, how: held.Damage, *, most: int | None = None) -> list[str]:
        """Damage the incoming segments with a frame that contains the marker, or the first `most` of them;
        returns their names.
        """
        found = []
        for info in list(self.store.list(layout.incoming_prefix(self.config.cluster.name))):
            content = self.store.read(info.name)
            damaged = held.damaged(content, marker, how)
            if damaged is not None and len(found) != most:
                self.store.put(info.name, damaged, metadata=dict(info.metadata))
                self._whole[info.name] = content
                found.append(info.name)
        self.expect_damaged(found)
        self._keep({"damaged": found})
        return found

    def expect_damaged(self, objects: list[str]) -> None:
        self.damaged |= {layout.SegmentRef.from_object(name) for name in objects}

    def repair(self, name: str, content: bytes | None = None, metadata: dict[str, str] | None = None) -> None:
        """Replace the damaged segment by the whole one and mark it for retry, as an operator does."""
        if content is None:
            info = self.store.head(name)
            content, metadata = self._whole.pop(name), dict(info.metadata) if info else {}
        self.store.put(name, content, metadata=metadata or {})
        mark_for_retry(self.store, name)
        self.damaged.discard(layout.SegmentRef.from_object(name))
        if self.kept is not None:
            self.kept.keep_repaired(name, content, metadata or {})

    def release(self, name: str) -> None:
        """Release a held segment without its unreadable part."""
        release(self.store, self.config.cluster.name, name, "other replicas have it")
        self._keep({"release": name})

    def held(self) -> list[str]:
        """What waits for a person as of the last batch."""
        return self.sealed[-1].held if self.sealed else []

    def purge(self) -> int:
        """Run maintenance; the number of shards that were rewritten because of purged tombstones."""
        self._keep({"purge": None})
        cluster = self.config.cluster.name
        with _Replaced(completeness, "purge_before", lambda now, gc_grace: purge_before(now, gc_grace, margin=0)):
            manifest = plan_maintain(self.store, cluster, now=datetime.now(UTC))
            if manifest is None:
                return 0
            # Maintenance of the warehouse's files is not tested here, and is slow.
            with _Replaced(maintain, "spark_session", self._session), _Replaced(maintain, "tidy_warehouse", lambda *_: []):
                self.sealed.append(maintain.run(self.config, manifest.number))
        found = Maintained.read(self.store, layout.maintained(cluster))
        return found.purged if found is not None else 0

    def forget_node(self, host_id: str) -> None:
        """Delete the documents of a node that has left permanently: they would block every purge."""
        for info in list(self.store.list(layout.nodes_prefix(self.config.cluster.name))):
            node = layout.NodeName.of_facts(info.name)
            if node is not None and node.host_id == host_id:
                self.store.delete(info.name)
                self._keep({"gone": info.name})

    def _keep(self, step: dict[str, Any]) -> None:
        if self.kept is not None:
            self.kept.note(step)

    def updates(self, sealed: Sealed) -> int:
        """Partition updates in the segments of an archived batch, counted from their frames."""
        wanted = {layout.SegmentRef.from_object(outcome.object) for outcome in sealed.segments}
        count = 0
        # A segment with a problem is not archived.
        for info in (*self.store.list("cdc_archive/"), *self.store.list(layout.incoming_prefix(self.config.cluster.name))):
            if layout.SegmentRef.from_object(info.name) in wanted:
                found = scan(self.store.read(info.name), name=info.name)
                count += sum(peek(found.body(frame), version=found.descriptor.version)[0] for frame in found.frames)
        return count

    def _run(self, manifest: Manifest) -> Sealed:
        with _Replaced(ingest, "spark_session", self._session):
            sealed = ingest.run(self.config, manifest.number)
        archive(self.store, self.config.cluster.name, sealed.number)
        self.sealed.append(sealed)
        return sealed

    def _session(self, config: PipelineConfig, name: str) -> SparkSession:
        """The session of this run. A batch stops its session; this one is shared and ends with the run."""
        if self._spark is None:
            os.environ["PYSPARK_PYTHON"] = sys.executable
            self._spark = spark_session(config, name)
            self._spark.stop = lambda: None  # type: ignore[method-assign]
        return self._spark

    def _prefixes(self) -> list[str]:
        cluster = self.config.cluster.name
        prefixes = (layout.incoming_prefix, layout.schema_prefix, layout.nodes_prefix, layout.truncations_prefix)
        return [prefix(cluster) for prefix in prefixes]


class _Replaced:
    """Temporarily replaces an attribute of a module."""

    def __init__(self, module: Any, name: str, value: Callable[..., Any]) -> None:
        self._module, self._name, self._value = module, name, value
        self._before = getattr(module, name)

    def __enter__(self) -> None:
        setattr(self._module, self._name, self._value)

    def __exit__(self, *_: object) -> None:
        setattr(self._module, self._name, self._before)


def give(store: Store, kept: Kept, objects: list[dict[str, Any]]) -> Iterator[str]:
    """Put recorded objects into a bucket, as the shippers did."""
    for found in objects:
        store.put(found["name"], kept.read(found["file"]), metadata=found["metadata"])
        yield found["name"]
