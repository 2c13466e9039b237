"""The planner with a million objects: `make bench-plan`, or `python -m benchmarks.plan [--objects N]
[--json]`.

Strategy: the bucket's listing is generated on request, so that the planner is measured and not a store:
names, sizes and metadata are those of real segments, node by node, in order of names. Three situations: all
objects wait in cdc/ (after an outage); nothing waits, and all are in archive and ledger; nothing waits, after
many batches. Memory is the peak above the initial use. Requests are counted as a store counts them, a
thousand names per page.

Then a calculation for a cluster: from nodes, bytes written and segment size to objects, requests, manifests
and ledger, by the sizes of real documents and the measured times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

from writetime.charts import text_table
from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import LedgerEntry, Manifest, Sealed, SegmentOutcome
from writetime.pipeline.planner import history, plan_ingest
from writetime.storage import layout
from writetime.storage.store import Listed, ObjectInfo

CLUSTER = "bench"
SEGMENT_BYTES = 32 << 20
PAGE = 1000
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
_FIRST_ID = 1_777_000_000_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--objects", type=int, default=1_000_000, help="objects in the bucket (default: 1000000)")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes that they are of, and of the ring on paper (default: 1000)")
    parser.add_argument("--rate", type=float, default=1.0, help="MB/s that each node's log grows, on paper (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    figures = measure(options.objects, options.nodes)
    figures["paper"] = on_paper(figures, options.nodes, options.rate * 1e6)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


def measure(objects: int, nodes: int) -> dict[str, Any]:
    """Seconds, bytes and requests of each situation."""
    manifest = Manifest.model_validate_json(_manifest(objects, nodes))
    entry = _entry(manifest)
    return {
        "objects": objects,
        "nodes": nodes,
        "backlog": _timed(lambda: Listing(nodes, incoming=objects), lambda store: plan_ingest(store, CLUSTER, now=NOW)),
        "idle": _timed(lambda: _sealed(Listing(nodes, archived=objects), 1), lambda store: plan_ingest(store, CLUSTER, now=NOW)),
        "history": _timed(lambda: _sealed(Listing(nodes, batches=objects), objects), lambda store: history(store, CLUSTER)),
        "manifest_segments": len(manifest.segments),
        "manifest_bytes": len(manifest.to_bytes()),
        "segment_bytes_in_manifest": _each(manifest),
        "ledger_entry_bytes": len(entry.to_bytes()),
        "outcome_bytes_in_seal": len(SegmentOutcome(object=manifest.segments[0].object, frames=32768, updates=32768).model_dump_json()),
    }


def _timed(made: Callable[[], Listing], plan: Callable[[Any], object]) -> dict[str, float]:
    """Measure in a separate process: a process's memory peak cannot be reset."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_measured, args=(theirs, made, plan))
    child.start()
    found: dict[str, float] = ours.recv()
    child.join()
    return found


def _measured(answer: Connection, made: Callable[[], Listing], plan: Callable[[Any], object]) -> None:
    store = made()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    plan(store)
    seconds, busy = time.perf_counter() - wall, time.process_time() - cpu
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    answer.send({"seconds": seconds, "cpu": busy, "bytes": most * 1024, "requests": store.requests})


def _manifest(objects: int, nodes: int) -> bytes:
    store = Listing(nodes, incoming=min(objects, 2 * PAGE))
    plan_ingest(store, CLUSTER, now=NOW)
    return store.documents[layout.batch_object(CLUSTER, 1, "manifest")]


def _each(manifest: Manifest) -> int:
    alone = manifest.model_copy(update={"segments": []})
    return (len(manifest.to_bytes()) - len(alone.to_bytes())) // max(1, len(manifest.segments))


def _entry(manifest: Manifest) -> LedgerEntry:
    segment = manifest.segments[0]
    return LedgerEntry(
        object=segment.object,
        state="archived",
        size=segment.size,
        crc32c=segment.crc32c,
        sealed_at=segment.sealed_at,
        batch=1,
        frames=32768,
        archived_as=segment.ref.archived(segment.sealed_at),
        updated_at=NOW,
        history=[{"state": "archived", "batch": 1, "at": NOW.isoformat()}],
    )


def _sealed(store: Listing, last: int) -> Listing:
    """With a last batch that is sealed and archived."""
    manifest = Manifest(number=last, kind="ingest", cluster=CLUSTER, created_at=NOW, now=int(NOW.timestamp()), base=last - 1, segments=[])
    seal = Sealed(number=last, kind="ingest", sealed_at=NOW, segments=[], accounting=[], state={})
    for what, document in (("manifest", manifest.to_bytes()), ("sealed", seal.to_bytes()), ("archived", b"{}")):
        store.documents[layout.batch_object(CLUSTER, last, what)] = document
    return store


# --- the bucket


@dataclass
class Listing:
    """A store whose segments are made when they are listed; documents are kept. `requests`: pages that were
    listed and objects read.
    """

    nodes: int
    incoming: int = 0
    archived: int = 0
    batches: int = 0
    url: str = "listing:"
    documents: dict[str, bytes] = field(default_factory=dict)
    requests: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        for number, info in enumerate(self._found(prefix, start_after)):
            self.requests += number % PAGE == 0
            yield info
        else:
            self.requests += 1

    def names(self, prefix: str = "", *, start_after: str = "", page: int = PAGE) -> Iterator[Listed]:
        for number, info in enumerate(self._found(prefix, start_after)):
            if number % page == 0:
                self._count()
            yield Listed(info.name, info.size, info.created, info)
        else:
            self._count()

    def _count(self) -> None:
        with self._lock:
            self.requests += 1

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Of datacenters, or of one's nodes."""
        self.requests += 1
        if prefix == layout.incoming_prefix(CLUSTER):
            yield f"{prefix}dc1/"
        else:
            yield from (f"{prefix}{UUID(int=node)}/" for node in range(self.nodes))

    def _found(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        if prefix == layout.incoming_prefix(CLUSTER):
            yield from (self._segment(at) for at in range(self.incoming))
        elif prefix.startswith(f"{layout.incoming_prefix(CLUSTER)}dc1/"):
            each, node = self._each, UUID(prefix.split("/")[3]).int
            first = layout.SegmentRef.from_object(start_after).segment.id - _FIRST_ID + 1 if start_after else 0
            yield from (self._segment(at) for at in range(node * each + first, min((node + 1) * each, self.incoming)))
        elif prefix == layout.batches_prefix(CLUSTER) and self.batches:
            first = int(start_after.rpartition("/")[2] or 0) + 1 if start_after else 1
            for number in range(first, self.batches + 1):
                yield from (self._document(layout.batch_object(CLUSTER, number, what)) for what in _DOCUMENTS)
        else:
            yield from (self._document(name) for name in sorted(self.documents) if name.startswith(prefix) and name > start_after)

    @property
    def _each(self) -> int:
        """Segments of each node."""
        return -(-self.incoming // self.nodes)

    def _segment(self, at: int) -> ObjectInfo:
        each = self._each
        node = layout.NodeName(CLUSTER, "dc1", str(UUID(int=at // each)))
        name = layout.SegmentRef(node, layout.SegmentName(_FIRST_ID + at % each, 7)).incoming
        sealed_at = NOW - timedelta(seconds=30 * (each - at % each))
        metadata = {"sealed_at": sealed_at.isoformat(), "host_id": node.host_id, "ending": "completed"}
        return ObjectInfo(name, SEGMENT_BYTES, 1_777_000_000_000_000 + at, at, sealed_at, metadata)

    def _document(self, name: str) -> ObjectInfo:
        return ObjectInfo(name, len(self.documents.get(name, b"")), 1, 0, NOW)

    def head(self, name: str) -> ObjectInfo | None:
        self.requests += 1
        return self._document(name) if name in self.documents else None

    def read(self, name: str, *, generation: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        self.requests += 1
        if name not in self.documents:
            raise ObjectNotFound("it is not there", operation="read", obj=name)
        return self.documents[name][start:end]

    def put(
        self, name: str, data: bytes | Path, *, if_generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        self.requests += 1
        if if_generation == 0 and name in self.documents:
            raise PreconditionFailed("it is there", operation="put", obj=name)
        assert isinstance(data, bytes)
        self.documents[name] = data
        return self._document(name)


_DOCUMENTS = ("archived", "local", "manifest", "schema", "sealed")


# --- a ring on paper


def on_paper(figures: Mapping[str, Any], nodes: int, rate: float) -> dict[str, float]:
    """What such a ring makes, at a batch a minute. `rate`: bytes a second and node."""
    segments = nodes * rate / SEGMENT_BYTES
    minute, day = segments * 60, segments * 86_400
    each = figures["backlog"]["cpu"] / max(1, figures["manifest_segments"])
    return {
        "nodes": nodes,
        "mb_per_second": nodes * rate / 1e6,
        "segments_per_second": segments,
        "segments_per_batch": minute,
        "segments_per_day": day,
        "archive_tb_per_day": nodes * rate * 86_400 / 1e12,
        "manifest_kb_per_batch": minute * figures["segment_bytes_in_manifest"] / 1e3,
        "ledger_objects_per_year": day * 365,
        "ledger_gb_per_year": day * 365 * figures["ledger_entry_bytes"] / 1e9,
        "batch_documents_per_year": 5 * 60 * 24 * 365,
        # Each segment: put, copied to the archive, deleted, its entry written; each batch: listings,
        # documents.
        "list_requests_per_batch": max(1.0, minute / PAGE) + 6,
        "write_requests_per_day": day * 3 + 1440 * 8,
        "planner_seconds_per_batch": minute * each,
        "backlog_hours_per_million": 1e6 / (segments * 3600),
    }


def show(figures: Mapping[str, Any]) -> None:
    rows = [
        (what, f"{found['seconds']:.2f}", f"{found['cpu']:.2f}", f"{found['bytes'] / 1e6:.1f}", found["requests"])
        for what, found in ((name, figures[name]) for name in ("backlog", "idle", "history"))
    ]
    print(f"{figures['objects']:,} objects of {figures['nodes']:,} nodes")
    print(text_table(("situation", "seconds", "of the CPU", "MB", "requests"), rows))
    sizes = ("manifest_segments", "manifest_bytes", "segment_bytes_in_manifest", "ledger_entry_bytes", "outcome_bytes_in_seal")
    print(text_table(("document", "size"), [(name, figures[name]) for name in sizes]))
    print(text_table(("on paper", "figure"), [(name, f"{value:,.2f}") for name, value in figures["paper"].items()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
