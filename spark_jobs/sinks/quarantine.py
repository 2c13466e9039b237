"""Writes to quarantine what a batch could not use: single frames, damaged ranges, and the frames of a hot table
together.

Strategy: for each kind of problem and table, the first `frame_ranges.NAMED` frames of a batch become single
quarantine records; further frames of a segment form one record
(`writetime.pipeline.quarantine.frame_ranges`). The driver writes the bytes of few, small frames. For all
others it knows positions only, and workers read the segments again and write the bytes (`keeper`), so neither
Spark nor the driver holds the frames of a hot table. Names and bytes follow from the manifest alone, so every
run writes the same objects. The driver writes the notes after all bytes are stored. Objects are written in
parallel."""

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
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store

_PENDING_BYTES: Final = 64 << 20
_PENDING: Final = 1000
_Group = tuple[int, str, str]
"""Index of a segment, kind of problem, id of the table."""

KEPT: Final = pa.schema([(name, pa.int64()) for name in ("segment", "group", "position", "size", "frames", "last")])
"""A piece each that a worker has put. No `frames`: those of the group are not to be had."""


@dataclass(slots=True)
class Wanted:
    """What a worker is to put of one segment: damaged ranges by position and size, and groups of frames, by `frame_ranges.places`, with
    whether each is a piece of its own."""

    ranges: set[tuple[int, int]] = field(default_factory=set)
    groups: list[tuple[bytes, bool]] = field(default_factory=list)


Keep = Callable[[Mapping[int, Wanted]], Iterable[Mapping[str, int]]]
"""Has workers put what is wanted of segments, by their index; rows of KEPT."""


def keeper(wanted: Mapping[int, Wanted], bucket_url: str, keystore: Path | None, *, puts: bool) -> Callable[[Batches], Batches]:
    """SEGMENTS -> KEPT. Without `puts` pieces are only counted."""

    def keep_batches(batches: Batches) -> Batches:
        reader = Reader(bucket_url, keystore)
        for places in reader.segments(batches):
            for place in places:
                store = reader.store if puts else None
                yield from chunked(_kept(reader.open(place), place["object"], wanted[place["segment"]], store), KEPT)

    return keep_batches


def _kept(segment: Segment, obj: str, wanted: Wanted, store: Store | None) -> Iterator[dict[str, int]]:
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
    """Frames of a group: those whose bytes have come, by position with the reason and the bytes; positions of the others."""

    brought: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)
    reasons: list[tuple[int, str]] = field(default_factory=list)

    @property
    def positions(self) -> list[int]:
        return sorted(self.others.union(self.brought))

    def reason(self, position: int, frames: int = 1) -> str:
        """Why the frame at that position cannot be used, or the many from there on."""
        own = self.brought.get(position)
        if frames == 1 and own is not None:
            return own[0]
        found = sorted({*self.reasons, *((at, reason) for at, (reason, _) in self.brought.items())})
        return frame_ranges.message(reason for _, reason in found)


class Keeping:
    """Gathers what could not be used, and keeps it. What is only compared (`namespace`) leaves no objects."""

    def __init__(self, store: Store, manifest: Manifest, schema: Schema) -> None:
        self._store, self._manifest, self._schema = store, manifest, schema
        self._frames: dict[_Group, _Frames] = defaultdict(_Frames)
        self._ranges: dict[tuple[int, int, int, str], tuple[dict[str, Any], bytes | None]] = {}
        self._wanted: dict[int, Wanted] = defaultdict(Wanted)
        self._asked: dict[int, list[tuple[str, str, _Frames]]] = defaultdict(list)
        self._pending: list[tuple[str, bytes]] = []
        self._notes: list[tuple[str, bytes]] = []
        self._bytes = 0
        self._problems: dict[int, list[Problem]] = defaultdict(list)

    def add(self, segment: int, position: int, body: bytes | None, detail: dict[str, Any]) -> None:
        """One range or frame, its bytes if they have come; or a piece of many frames (`frames` in the detail), whose bytes a worker has
        put; or frames by their places (`places` in the detail, which are the bytes then)."""
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

    def finish(self, keep: Keep) -> dict[int, list[Problem]]:
        """All problems, once their bytes are kept. `keep` is called at most once, before any note is put."""
        mine = self._divide()
        for row in keep(self._wanted) if self._wanted else ():
            kind, table_id, frames = self._asked[row["segment"]][row["group"]]
            self._note_frames((row["segment"], kind, table_id), frames, row["position"], row["size"], row["frames"], row["last"])
        for group, frames, single in mine:
            self._keep_here(group, frames, single=single)
        for (segment, position, size, _), (detail, body) in self._ranges.items():
            self._note(segment, position, size, detail, None if "frames" in detail else body)
        self._flush()
        return self._problems

    def _divide(self) -> list[tuple[_Group, _Frames, bool]]:
        """Which groups are kept here, and whether each frame of them is a piece of its own. The others are left to the workers."""
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
                self._asked[segment].append((kind, table_id, frames))
            else:
                mine.append(((segment, kind, table_id), frames, single))
        self._frames.clear()
        return mine

    def _keep_here(self, group: _Group, frames: _Frames, *, single: bool) -> None:
        positions = frames.positions
        bodies = [frames.brought[position][1] for position in positions]
        ones = [(at, at + 1) for at in range(len(positions))]
        for start, end in ones if single else frame_ranges.runs(map(len, bodies)):
            body = frame_ranges.pack(bodies[start:end]) if end - start > 1 else bodies[start]
            self._note_frames(group, frames, positions[start], len(body), end - start, positions[end - 1], body)

    def _note_frames(
        self, group: _Group, frames: _Frames, position: int, size: int, number: int, last: int, body: bytes | None = None
    ) -> None:
        """Take in a piece of so many frames, from `position` to `last`."""
        segment, kind, table_id = group
        detail = {"kind": kind, "message": frames.reason(position, number), "table_id": table_id}
        self._note(segment, position, size, detail | ({"frames": number, "last": last} if number > 1 else {}), body)

    def _note(self, segment: int, position: int, size: int, detail: dict[str, Any], body: bytes | None) -> None:
        """Take in a piece, and its bytes unless a worker has put them."""
        frames = detail.get("frames", 1)
        about = self._manifest.segments[segment]
        stem = about.ref.quarantined(position, size, frames)
        table_id = UUID(detail["table_id"]) if "table_id" in detail else None
        table = self._schema.tables.get(table_id) if table_id else None
        problem = Problem(
            kind=detail["kind"],
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
            # The note comes last: without it nobody finds the bytes.
            self._pending += [] if body is None else [(f"{stem}.bin", body)]
            self._notes += [(f"{stem}.json", json.dumps(note, indent=1).encode())]
            self._bytes += len(body or b"")
            if self._bytes > _PENDING_BYTES or len(self._notes) > _PENDING:
                self._flush()

    def _flush(self) -> None:
        for several in (self._pending, self._notes):
            at_once(lambda each: self._store.put(*each), several)
        self._pending, self._notes, self._bytes = [], [], 0
