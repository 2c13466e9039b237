"""A cluster of a thousand nodes before the real planner, archiver, ledger and page: `make bench NAME=nodes`, or
`python -m benchmarks.nodes [--nodes N] [--stores gcs s3] [--json]`.

Strategy: the bucket is simulated (`remote_store`: 20 ms a request), the code that runs on it is the product's. Nodes
ship for as long as a batch may take; then a batch is planned, sealed as ingest would seal it, and archived, its
progress noted, and the page drawn. The first batches are not counted. Spark does not run: what a batch's bytes cost is
measured by `make bench`. Requests do not depend on the machine or on time; seconds do, a little: the client libraries
of the stores, which cost one to two milliseconds of CPU a request, are not in them.

Then a backlog: a million segments that were shipped while nothing ran, drained by a cluster of a given speed, whose
batches take as long as their bytes at that speed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog

from benchmarks.remote_store import Kind, RemoteStore, Used
from writetime.charts import text_table
from writetime.config.airflow import WatchConfig
from writetime.monitoring import ledger
from writetime.monitoring.health import Expected, health
from writetime.monitoring.metrics import samples
from writetime.monitoring.overview import overview
from writetime.pipeline import node_facts, pace, watermark
from writetime.pipeline.archiver import archive, archive_last
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.completeness import ends_after
from writetime.pipeline.documents import Accounting, LocalDocument, Manifest, Mark, Sealed, SegmentOutcome, ShardVersions, Totals
from writetime.pipeline.newest_segments import newest_after
from writetime.pipeline.planner import plan_ingest, read_local, read_sealed, seal
from writetime.pipeline.publish_progress import CompleteBefore, Published, write_published
from writetime.storage import layout
from writetime.storage.store import ObjectInfo

CLUSTER: Final = "bench"
SEGMENT: Final = 32 << 20
START: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
_FIRST_ID: Final = 1_777_000_000_000
_PARTS: Final = 10
"""Parts of a segment of 32 MiB: one of 3 MiB each."""
_SIGN_OFF: Final = 15
_STATUS: Final = 600
"""Seconds between two statuses of a shipper, with tails and without."""
_TURNS: Final = 16
_WARM: Final = 2
TARGET: Final = 120.0
_WINDOW: Final = 60
PRICES: Final = {"writes": 0.005, "reads": 0.0004}
"""Dollars for a thousand requests, by the price lists of S3 Standard (us-east-1) and of Google's Standard class (a
region in the US). Deletions are free."""


@dataclass(frozen=True)
class Load:
    """What the cluster writes: segments a second, captured tables, batches an hour. `tails`: nodes ship growing
    segments, too."""

    nodes: int = 1000
    rate: float = 30.0
    tables: int = 200
    batches: int = 100
    tails: bool = False

    @property
    def interval(self) -> float:
        """Seconds from batch to batch."""
        return 3600 / self.batches

    @property
    def segments(self) -> int:
        """Segments that arrive from batch to batch."""
        return round(self.rate * self.interval)


@dataclass
class Cluster:
    """The nodes, which ship, and the jobs, as far as they concern the bucket. `_next`: by node, the number of its
    growing segment."""

    store: RemoteStore
    load: Load
    parts: dict[int, int] = field(default_factory=dict)
    _turn: int = 0

    def node(self, number: int) -> layout.NodeName:
        return layout.NodeName(CLUSTER, "dc1", str(UUID(int=number + 1)))

    def ref(self, node: int, number: int) -> layout.SegmentRef:
        return layout.SegmentRef(self.node(node), layout.SegmentName(_FIRST_ID + number, 7))

    def ship(self) -> None:
        """What arrives between two batches."""
        load, store = self.load, self.store
        statuses = max(1, round(load.interval / (_SIGN_OFF if load.tails else _STATUS)))
        batch = self._turn // load.segments
        for _ in range(statuses):
            store.now += timedelta(seconds=load.interval / statuses)
            # Without tails each batch meets the statuses of some of the nodes.
            some = range(load.nodes) if load.tails or batch == 0 else range(batch % _TURNS, load.nodes, _TURNS)
            for node in some:
                self.report(node)
        for turn in range(self._turn, self._turn + load.segments):
            node, number = turn % load.nodes, turn // load.nodes
            metadata = {"sealed_at": (store.now - timedelta(seconds=1)).isoformat(), "ending": "completed"}
            store.place(self.ref(node, number).incoming, size=SEGMENT, crc=turn, metadata=metadata)
            if load.tails:
                for part in range(self.parts.pop(node, 0), _PARTS):
                    self._part(node, number, part)
        self._turn += load.segments
        if load.tails:
            self._grow(batch)

    def _grow(self, batch: int) -> None:
        """The nodes' growing segments when the batch is planned: none of their parts, all but one, or some."""
        for node in range(self.load.nodes):
            upto = (7 * node + batch) % _PARTS
            for part in range(self.parts.get(node, 0), upto):
                self._part(node, self._number(node), part)
            self.parts[node] = max(upto, self.parts.get(node, 0))

    def _number(self, node: int) -> int:
        """Which of its segments the node writes next."""
        done, rest = divmod(self._turn, self.load.nodes)
        return done + (node < rest)

    def _part(self, node: int, number: int, part: int) -> None:
        size = SEGMENT // _PARTS
        start, end = part * size, SEGMENT if part == _PARTS - 1 else (part + 1) * size
        name = f"{self.ref(node, number).growing}/{start:010d}-{end:010d}"
        self.store.place(name, size=end - start, crc=part, metadata={"sealed_at": self.store.now.isoformat()})

    def report(self, number: int) -> None:
        node, at = self.node(number), self.store.now
        status: dict[str, Any] = {
            "host_id": node.host_id,
            "address": "10.0.0.1",
            "rack": "r1",
            "release_version": "5.0.6",
            "tokens": ["1"] * 16,
        }
        if self.load.tails:
            # The real ones name all members; a thousand of them in each would measure the parsing of JSON.
            status["signed_off"] = {"at": at.isoformat(), "unsynced_ms": 0, "members": {"dc1": [node.host_id]}}
        self.store.place(layout.node_status(node, at, f"{number:08x}"), json.dumps(status).encode())

    # --- the jobs

    def plan(self, most: int = 100_000, target: float | None = None) -> Manifest | None:
        archive_last(self.store, CLUSTER)
        return plan_ingest(self.store, CLUSTER, now=self.store.now, max_segments=most, batch_seconds=target)

    def ingest(self, manifest: Manifest) -> None:
        """Seal the batch as ingest does, without its work."""
        base = read_sealed(self.store, CLUSTER, manifest.base) if manifest.base else None
        before = read_local(self.store, CLUSTER, manifest.base)
        local = LocalDocument(ends=ends_after(before.ends, manifest), newest=newest_after(before.newest or {}, manifest.segments))
        self.store.put(layout.batch_object(CLUSTER, manifest.number, "schema"), b'{"format": 1, "partitions": []}', if_generation=0)
        self.store.put(layout.batch_object(CLUSTER, manifest.number, "local"), local.to_bytes(), if_generation=0)
        outcomes = [self._outcome(each) for each in manifest.segments]
        accounts = [
            Accounting(table=f"shop.t{number:04d}", updates_in=300, applied=100, duplicate=200, events=100)
            for number in range(self.load.tables)
        ]
        totals = (base.totals if base and base.totals else Totals()).and_of("ingest", manifest.segments, outcomes, accounts)
        state = {str(UUID(int=number + 1)): ShardVersions(buckets=[manifest.number] * 4) for number in range(self.load.tables)}
        growing = {each.object: outcome.mark for each, outcome in zip(manifest.segments, outcomes, strict=True) if outcome.mark is not None}
        sealed = Sealed(
            number=manifest.number,
            kind="ingest",
            sealed_at=manifest.created_at + timedelta(seconds=20),
            segments=outcomes,
            accounting=accounts,
            state=state,
            growing=growing,
            totals=totals,
            rows={account.table: 1000 for account in accounts},
            complete=watermark.of_seal(manifest, outcomes),
        )
        seal(self.store, CLUSTER, sealed)

    @staticmethod
    def _outcome(segment: Any) -> SegmentOutcome:
        mark = Mark(position=segment.end, logical=segment.end, crc32c=1, frames=100) if segment.grows else None
        return SegmentOutcome(object=segment.object, frames=32_000, updates=32_000, mark=mark)

    def batch(self) -> int:
        """A batch from nodes to progress; its number."""
        self.ship()
        manifest = self.plan()
        assert manifest is not None
        self.ingest(manifest)
        archive(self.store, CLUSTER, manifest.number)
        write_published(self.store, CLUSTER, Published(batch=manifest.number, events=1))
        return manifest.number


# --- measuring


@dataclass(frozen=True)
class Step:
    """What a step took, by the clock and of the CPU, and how many segments it was for."""

    seconds: float
    cpu: float
    used: Used
    segments: int

    def to_document(self) -> dict[str, Any]:
        used = self.used
        each = used.requests / self.segments if self.segments else 0.0
        return {
            "seconds": round(self.seconds, 2),
            "cpu": round(self.cpu, 2),
            "requests": used.requests,
            "one_by_one": used.one_by_one,
            "a_segment": round(each, 2),
            "segments_s": round(self.segments / self.seconds, 1) if self.segments and self.seconds else None,
            "writes": used.writes,
            "reads": used.reads,
            "deletions": used.deletions,
            "calls": {" ".join(call): times for call, times in sorted(used.calls.items())},
        }


def timed(store: RemoteStore, call: Callable[[], object], segments: int = 0) -> Step:
    before, began, busy = store.used, time.perf_counter(), time.process_time()
    call()
    return Step(time.perf_counter() - began, time.process_time() - busy, store.used.since(before), segments)


def new_store(kind: Kind, latency: float) -> RemoteStore:
    """A lease is kept by a thread, at a pace of its own."""
    return RemoteStore(kind, latency, at=START, apart=lambda name: name.endswith("/archiver.json"))


def measure(kind: Kind, load: Load, latency: float) -> dict[str, Any]:
    """The steps of a batch and of what looks at it, in requests and seconds; and the requests of a day in money."""
    cluster = Cluster(new_store(kind, 0.0), load)
    store = cluster.store
    for _ in range(_WARM):
        cluster.batch()
    cluster.ship()
    store.latency = latency
    # As in a process of its own, which has read no status yet.
    node_facts._parsed.clear()
    found: dict[str, Step] = {}
    planned: list[Manifest | None] = []
    found["plan"] = timed(store, lambda: planned.append(cluster.plan()), load.segments)
    (manifest,) = planned
    assert manifest is not None
    found["documents of ingest"] = timed(store, lambda: cluster.ingest(manifest), load.segments)
    found["archive"] = timed(store, lambda: archive(store, CLUSTER, manifest.number), load.segments)
    found["progress of publishing"] = timed(store, lambda: _publish(store, manifest.number), load.segments)
    found["idle look"] = timed(store, lambda: plan_ingest(store, CLUSTER, now=store.now))
    _age(store, manifest.number)
    batches = Batches(store, CLUSTER)
    found["page, first view"] = timed(store, lambda: _page(batches))
    found["page, again"] = timed(store, lambda: _page(batches))
    found["page, segments of a node"] = timed(store, lambda: ledger.search(batches, ledger.Query(node=cluster.node(3).host_id)))
    found["metrics"] = timed(store, lambda: samples(batches))
    steps = {name: step.to_document() for name, step in found.items()}
    return {
        "store": kind,
        "tails": load.tails,
        "segments": load.segments,
        "growing": sum(each.grows for each in manifest.segments),
        "steps": steps,
        "day": _money(found, load),
    }


@dataclass(frozen=True)
class Speed:
    """What the Spark cluster does: bytes a second, and seconds that each batch takes besides."""

    rate: float = 1e9
    fixed: float = 15.0


def drain(kind: Kind, nodes: int, waiting: int, latency: float, *, rounds: int = 8, speed: Speed = Speed()) -> list[dict[str, Any]]:
    """Batches over a backlog of `waiting` segments, from the first on: their sizes, and what planning each cost."""
    cluster = Cluster(new_store(kind, 0.0), Load(nodes=nodes))
    store = cluster.store
    each = -(-waiting // nodes)
    begin = store.now - timedelta(seconds=each)

    def facts(name: str) -> ObjectInfo:
        number = layout.SegmentRef.from_object(name).segment.id - _FIRST_ID
        at = begin + timedelta(seconds=number)
        return ObjectInfo(name, SEGMENT, number + 1, number, at, {"sealed_at": at.isoformat()})

    store.fill([cluster.ref(node, number).incoming for node in range(nodes) for number in range(each)][:waiting], facts)
    for node in range(nodes):
        cluster.report(node)
    found = []
    for _ in range(rounds):
        store.now += timedelta(minutes=2)
        store.latency = latency
        planned: list[Manifest | None] = []
        step = timed(store, lambda to=planned: to.append(cluster.plan(10_000, TARGET)))  # type: ignore[misc]
        store.latency = 0.0
        if (manifest := planned[0]) is None:
            break
        size = sum(segment.size for segment in manifest.segments)
        seconds = speed.fixed + size / speed.rate
        cluster.ingest(manifest)
        pace.note(store, manifest, seconds, TARGET)
        archive(store, CLUSTER, manifest.number)
        about = {"segments": len(manifest.segments), "gb": round(size / 1e9, 1), "batch_seconds": round(seconds, 1)}
        found.append({**about, **replace(step, segments=len(manifest.segments)).to_document()})
    return found


def _age(store: RemoteStore, last: int) -> None:
    """As many batches like the last one as the page looks back."""
    documents = {
        what: store.read(layout.batch_object(CLUSTER, last, what)) for what in ("manifest", "sealed", "local", "schema", "archived")
    }
    manifest, sealed = Manifest.model_validate_json(documents["manifest"]), Sealed.model_validate_json(documents["sealed"])
    for number in range(last + 1, last + 1 + _WINDOW):
        documents["manifest"] = manifest.model_copy(update={"number": number, "base": number - 1}).to_bytes()
        documents["sealed"] = sealed.model_copy(update={"number": number}).to_bytes()
        for what, data in documents.items():
            store.place(layout.batch_object(CLUSTER, number, what), data)
    store.place(layout.published(CLUSTER), Published(batch=last + _WINDOW, events=1).to_bytes())


def _publish(store: RemoteStore, number: int) -> None:
    CompleteBefore(store, CLUSTER, range(max(1, number - 2), number + 1))
    write_published(store, CLUSTER, Published(batch=number, events=1))


def _page(batches: Batches) -> None:
    seen = overview(batches, now=START)
    health(batches, seen, Expected(limits=WatchConfig()))


def _money(found: dict[str, Step], load: Load) -> dict[str, float]:
    """A day's requests of batches, the metrics of one a minute, and their price."""
    of_batches = [step for name, step in found.items() if name in ("plan", "documents of ingest", "archive", "progress of publishing")]
    times = [(24 * load.batches, of_batches), (24 * 60, [found["metrics"]])]
    writes, reads = (sum(many * getattr(step.used, kind) for many, steps in times for step in steps) for kind in ("writes", "reads"))
    shipped = 24 * 3600 * load.rate * (1 + (_PARTS if load.tails else 0)) + 24 * 3600 * load.nodes / (_SIGN_OFF if load.tails else _STATUS)
    price = (writes * PRICES["writes"] + reads * PRICES["reads"]) / 1000
    return {
        "writes": writes,
        "reads": reads,
        "dollars": round(price, 2),
        "uploads_of_nodes": round(shipped),
        "dollars_of_nodes": round(shipped * PRICES["writes"] / 1000, 2),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000], help="nodes, several for a curve (default: 1000)")
    parser.add_argument("--stores", nargs="+", choices=("gcs", "s3"), default=["gcs", "s3"], help="backends (default: both)")
    parser.add_argument("--tails", nargs="+", choices=("on", "off"), default=["off", "on"], help="whether nodes ship growing segments")
    parser.add_argument("--latency", type=float, default=0.02, help="seconds of a request (default: 0.02)")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="segments that wait after an outage; 0: none (default: 1000000)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    # A line for each node that begins to count is no figure.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found: list[dict[str, Any]] = []
    for nodes in options.nodes:
        for kind in options.stores:
            for tails in options.tails:
                load = Load(nodes=nodes, rate=30.0 * nodes / 1000, tails=tails == "on")
                found.append({"nodes": nodes, **measure(kind, load, options.latency)})
                if not options.json:
                    show(found[-1])
            if options.backlog:
                found.append({"nodes": nodes, "store": kind, "backlog": options.backlog})
                found[-1]["batches"] = drain(kind, nodes, options.backlog, options.latency)
                if not options.json:
                    show_backlog(found[-1])
    if options.json:
        print(json.dumps(found, indent=1))
    return 0


def show(found: dict[str, Any]) -> None:
    tails = f"with tails, {found['growing']} growing ones" if found["tails"] else "no tails"
    print(f"{found['nodes']} nodes, {found['store']}: {found['segments']} segments in a batch, {tails}")
    names = ("seconds", "cpu", "requests", "one_by_one", "a_segment", "segments_s")
    rows = [(step, *("" if of[name] is None else f"{of[name]:,}" for name in names)) for step, of in found["steps"].items()]
    print(text_table(("step", "seconds", "of the CPU", "requests", "one by one", "a segment", "segments/s"), rows))
    print(f"a day: {found['day']}")


def show_backlog(found: dict[str, Any]) -> None:
    print(f"{found['nodes']} nodes, {found['store']}: {found['backlog']:,} segments wait")
    names = ("segments", "gb", "batch_seconds", "seconds", "requests", "one_by_one", "a_segment")
    rows = [(number, *(f"{batch[name]:,}" for name in names)) for number, batch in enumerate(found["batches"], 1)]
    print(text_table(("batch", "segments", "GB", "takes s", "planning s", "requests", "one by one", "a segment"), rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
