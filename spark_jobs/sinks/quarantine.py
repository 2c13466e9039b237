"""Writes to quarantine what a batch could not use: single frames, damaged ranges, and the frames of a hot
table together.

Strategy: for each kind of problem and table, the first `frame_ranges.NAMED` frames of a batch become single
quarantine records; further frames of a segment form one record
(`writetime.pipeline.quarantine.frame_ranges`). The driver writes the bytes of few, small frames. For all
others it knows positions only, and workers read the segments again and write the bytes (`frame_writer`), so
neither Spark nor the driver holds the frames of a hot table. Names and bytes follow from the manifest alone,
so every run writes the same objects. The driver writes the notes after all bytes are stored, because a note
is what makes a record. Objects are written in parallel."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark_jobs.stages.scan import Batches, Reader, Segment, chunked
from writetime.cassandra.schema.model import Schema
from writetime.pipeline.documents import Manifest, Problem
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

_PENDING_BYTES: Final = 64 << 20
_PENDING: Final = 1000
_Group = tuple[int, str, str]
"""Index of a segment, kind of problem, id of the table."""

STORED: Final = pa.schema([(name, pa.int64()) for name in ("segment", "group", "position", "size", "frames", "last")])
"""One row per record whose bytes a worker has stored. `frames` is 0 if frames of the group are missing."""


@dataclass(slots=True)
class Wanted:
    """What a worker has to store of one segment: damaged ranges by position and size, and groups of frames,
    as `frame_ranges.places` and whether each frame is a record of its own."""

    ranges: set[tuple[int, int]] = field(default_factory=set)
    groups: list[tuple[bytes, bool]] = field(default_factory=list)


StoreFrames = Callable[[Mapping[int, Wanted]], Iterable[Mapping[str, int]]]
"""Lets workers store what is wanted, by index of the segment; returns rows of STORED."""


def frame_writer(wanted: Mapping[int, Wanted], bucket_url: str, keystore: Path | None, *, puts: bool) -> Callable[[Batches], Batches]:
    """SEGMENTS -> STORED. Without `puts`, records are only counted."""

    def write_batches(batches: Batches) -> Batches:
        reader = Reader(bucket_url, keystore)
        for places in reader.segments(batches):
            for place in places:
                store = reader.store if puts else None
                yield from chunked(_stored(reader.open(place), place["object"], wanted[place["segment"]], store), STORED)

    return write_batches


def _stored(segment: Segment, obj: str, wanted: Wanted, store: Store | None) -> Iterator[dict[str, int]]:
    ref, at = layout.SegmentRef.from_object(obj), segment.frames.position

    def put(indexes: list[int]) -> tuple[list[int], list[tuple[range, int]]]:
        return indexes, list(segment.put_together(indexes, obj, store))

    for problem in segment.problems:
        position, body = problem["position"], problem["body"]
        if store is not None and (position, len(body)) in wanted.ranges:
            store.put(f"{ref.quarantined(position, len(body))}.bin", body)
    for group, (places, single) in enumerate(wanted.groups):
        positions = frame_ranges.placed(places)
        indexes = np.flatnonzero(np.isin(at, positions)).tolist()
        about = {"segment": segment.number, "group": group}
        if len(indexes) != len(positions):
            yield about | {"position": positions[0], "size": 0, "frames": 0, "last": positions[-1]}
            continue
        for some, stored in at_once(put, [[index] for index in indexes] if single else [indexes]):
            for part, size in stored:
                first, last = int(at[some[part[0]]]), int(at[some[part[-1]]])
                yield about | {"position": first, "size": size, "frames": len(part), "last": last}


@dataclass(slots=True)
class _Frames:
    """Frames of a group: `brought` are those whose bytes came with them, by position: reason and bytes.
    `others`: positions of the rest."""

    brought: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)
    reasons: list[tuple[int, str]] = field(default_factory=list)

    @property
    def positions(self) -> list[int]:
        return sorted(self.others.union(self.brought))

    def reason(self, position: int, frames: int = 1) -> str:
        """Why the frame at that position, or that many frames from there on, cannot be used."""
        own = self.brought.get(position)
        if frames == 1 and own is not None:
            return own[0]
        found = sorted({*self.reasons, *((at, reason) for at, (reason, _) in self.brought.items())})
        return frame_ranges.message(reason for _, reason in found)


class QuarantineWriter:
    """Collects what a batch could not use, and writes it. A batch in a shadow namespace writes no objects."""

    def __init__(self, store: Store, manifest: Manifest, schema: Schema) -> None:
        self._store, self._manifest, self._schema = store, manifest, schema
        self._frames: dict[_Group, _Frames] = defaultdict(_Frames)
        self._ranges: dict[tuple[int, int, int, str], tuple[dict[str, Any], bytes | None]] = {}
        self._wanted: dict[int, Wanted] = defaultdict(Wanted)
        self._groups: dict[int, list[tuple[str, str, _Frames]]] = defaultdict(list)
        self._pending: list[tuple[str, bytes]] = []
        self._notes: list[tuple[str, bytes]] = []
        self._bytes = 0
        self._problems: dict[int, list[Problem]] = defaultdict(list)

    def add(self, segment: int, position: int, body: bytes | None, detail: dict[str, Any]) -> None:
        """Add one damaged range or frame, with its bytes if they came along; or a record of many frames
        (`frames` in the detail), whose bytes a worker has stored; or frames by position (`places` in the
        detail: the body is `frame_ranges.places`)."""
        if "table_id" not in detail or "frames" in detail:
            size = detail.get("size", len(body or b""))
            self._ranges.setdefault((segment, position, size, json.dumps(detail, sort_keys=True)), (detail, body))
            return
        frames = self._frames[segment, detail["kind"], detail["table_id"]]
        if "places" in detail:
            frames.others.update(frame_ranges.placed(body or b""))
        elif body is None:
            frames.others.add(position)
        else:
            frames.brought[position] = detail["message"], body
            return
        frames.reasons.append((position, detail["message"]))

    def finish(self, store_frames: StoreFrames) -> dict[int, list[Problem]]:
        """Write everything; returns the problems by index of the segment. `store_frames` is called at most
        once, before any note is written."""
        mine = self._divide()
        for row in store_frames(self._wanted) if self._wanted else ():
            kind, table_id, frames = self._groups[row["segment"]][row["group"]]
            self._note_frames((row["segment"], kind, table_id), frames, row["position"], row["size"], row["frames"], row["last"])
        for group, frames, single in mine:
            self._store_here(group, frames, single=single)
        for (segment, position, size, _), (detail, body) in self._ranges.items():
            self._note(segment, position, size, detail, None if "frames" in detail else body)
        self._flush()
        return self._problems

    def _divide(self) -> list[tuple[_Group, _Frames, bool]]:
        """The groups that the driver stores, and whether each of their frames is a record of its own. Workers
        store the others."""
        mine, named = [], Counter[tuple[str, str]]()
        for (segment, position, size, _), (_, body) in self._ranges.items():
            if body is None:
                self._wanted[segment].ranges.add((position, size))
        for (segment, *of), frames in sorted(self._frames.items(), key=lambda item: item[0]):
            kind, table_id = of
            count = len(frames.positions)
            single = count == 1 or named[kind, table_id] + count <= frame_ranges.NAMED
            named[kind, table_id] += count if single else 0
            if frames.others:
                self._wanted[segment].groups.append((frame_ranges.places(frames.positions), single))
                self._groups[segment].append((kind, table_id, frames))
            else:
                mine.append(((segment, kind, table_id), frames, single))
        self._frames.clear()
        return mine

    def _store_here(self, group: _Group, frames: _Frames, *, single: bool) -> None:
        positions = frames.positions
        bodies = [frames.brought[position][1] for position in positions]
        ones = [(at, at + 1) for at in range(len(positions))]
        for start, end in ones if single else frame_ranges.runs(map(len, bodies)):
            body = frame_ranges.pack(bodies[start:end]) if end - start > 1 else bodies[start]
            self._note_frames(group, frames, positions[start], len(body), end - start, positions[end - 1], body)

    def _note_frames(
        self, group: _Group, frames: _Frames, position: int, size: int, number: int, last: int, body: bytes | None = None
    ) -> None:
        """Add a record of that many frames, from `position` to `last`."""
        segment, kind, table_id = group
        detail = {"kind": kind, "message": frames.reason(position, number), "table_id": table_id}
        self._note(segment, position, size, detail | ({"frames": number, "last": last} if number > 1 else {}), body)

    def _note(self, segment: int, position: int, size: int, detail: dict[str, Any], body: bytes | None) -> None:
        """Add a record, and its bytes unless a worker has stored them."""
        frames = detail.get("frames", 1)
        about = self._manifest.segments[segment]
        stem = about.ref.quarantined(position, size, frames)
        table_id = UUID(detail["table_id"]) if "table_id" in detail else None
        table = self._schema.tables.get(table_id) if table_id else None
        problem = Problem(
            kind=QuarantineKind(detail["kind"]),
            position=position,
            size=size,
            message=detail["message"],
            quarantined_as=None if self._manifest.namespace is not None else f"{stem}.bin",
            table=table.full_name if table else detail.get("table_id"),
            table_id=table_id,
            frames=frames,
            last=detail.get("last"),
        )
        self._problems[segment].append(problem)
        if problem.quarantined_as is not None:
            note = {**problem.model_dump(mode="json"), "batch": self._manifest.number, "object": about.object, **detail}
            self._pending += [] if body is None else [(f"{stem}.bin", body)]
            self._notes += [(f"{stem}.json", json.dumps(note, indent=1).encode())]
            self._bytes += len(body or b"")
            if self._bytes > _PENDING_BYTES or len(self._notes) > _PENDING:
                self._flush()

    def _flush(self) -> None:
        for several in (self._pending, self._notes):
            at_once(lambda each: self._store.put(*each), several)
        self._pending, self._notes, self._bytes = [], [], 0
