"""Segments that grow, for tests: what a node has synced of them, as parts in a bucket, and batches over them
without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from spark_jobs.stages.scan import Routes, router, surveyor, task_rows
from writetime.cassandra.commitlog import frames, sections
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.pipeline.archiver import archive
from writetime.pipeline.documents import Mark, Sealed, SegmentInput, SegmentOutcome
from writetime.pipeline.planner import plan_ingest, seal
from writetime.storage import layout
from writetime.storage.store import Store

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def laid(segment: int, bodies: Sequence[bytes], cuts: Iterable[int] = ()) -> bytes:
    """A plain segment of these bodies, whose sections end where `cuts` (numbers of bodies) say."""
    out, seed = bytearray(Descriptor(7, segment).encode()), sections.id_crc(segment)
    for first, last in pairwise(sorted({0, *cuts, len(bodies)})):
        payload = b"".join(map(frames.encode_frame, bodies[first:last]))
        out += sections.encode_marker(seed, len(out), len(out) + sections.MARKER_SIZE + len(payload)) + payload
    return bytes(out)


def ends(data: bytes) -> list[int]:
    """Where the sections of a finished segment end in its file."""
    found, at = [], 18 + int.from_bytes(data[12:14], "big")
    while at + sections.MARKER_SIZE <= len(data) and (at := sections.parse_marker(data, at)[0]):
        found.append(at)
    return found


def put_part(store: Store, ref: layout.SegmentRef, data: bytes, start: int, end: int, written: datetime = NOW) -> str:
    """Ship bytes [start, end) of a segment's file; the part's name."""
    name = ref.part(start, end)
    store.put(name, data[start:end], if_generation=0, metadata={"sealed_at": written.isoformat()})
    return name


@dataclass
class Batches:
    """Batches over a bucket as far as scanning goes. `frames` are all that were read, as (segment, position,
    body), batch by batch."""

    url: str
    store: Store
    cluster: str
    keystore: Path | None = None
    sealed: list[Sealed] = field(default_factory=list)
    frames: list[list[tuple[int, int, bytes]]] = field(default_factory=list)

    def run(self, routes: Routes) -> Sealed | None:
        """Plan, read, seal, archive. Both stages have to come to the same."""
        manifest = plan_ingest(self.store, self.cluster, now=NOW)
        if manifest is None:
            return None
        surveyed, routed = self.read(manifest.segments, routes)
        done = {row["segment"]: json.loads(row["detail"]) for row in surveyed if row["kind"] == "done"}
        kept = [row for row in routed if row["kind"] in ("update", "quarantined")]
        found = [
            (manifest.segments[copy["segment"]].ref.segment.id, copy["position"], row["body"]) for row in kept for copy in row["copies"]
        ]
        # Of the schema's own tables only the survey has the frames.
        others = sum(row["updates"] for row in routed if row["kind"] == "not_ours")
        assert others + sum(row["updates"] * len(row["copies"]) for row in kept) == sum(each["updates"] for each in done.values())
        self.frames.append(sorted(found))
        outcomes = []
        marks = dict(self.sealed[-1].growing if self.sealed else {})
        for index, segment in enumerate(manifest.segments):
            told = {name: value for name, value in done[index].items() if name not in ("tables", "others")}
            outcomes.append(SegmentOutcome.model_validate({"object": segment.object, **told}))
            mark: Mark | None = outcomes[-1].mark
            if mark is None:
                marks.pop(segment.ref.growing, None)
            else:
                marks[segment.object] = mark
        sealed = Sealed(number=manifest.number, kind="ingest", sealed_at=NOW, segments=outcomes, accounting=[], state={}, growing=marks)
        seal(self.store, self.cluster, sealed)
        archive(self.store, self.cluster, sealed.number)
        self.sealed.append(sealed)
        return sealed

    def read(self, segments: Sequence[SegmentInput], routes: Routes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of both stages, all segments in one task."""
        tasks = task_rows(segments, [range(len(segments))])
        versions = [segment.ref.segment.version for segment in segments]
        routing = Routes(routes.schema, routes.buckets, versions, routes.refused)
        stages = surveyor(self.url, self.keystore), router(routing, self.url, self.keystore)
        surveyed, routed = ([row for batch in stage(tasks) for row in batch.to_pylist()] for stage in stages)
        assert [row for row in surveyed if row["kind"] == "problem"] == []
        return surveyed, routed
