"""What a batch could not use, put into quarantine: single frames and damaged ranges as they are, the frames of a hot table together.

Strategy: of a kind of problem and a table the first `frame_ranges.NAMED` frames of a batch are pieces of their own, which people can look
at; where a segment has more than fit, its frames are one piece (`writetime.frame_ranges`), mostly put by the workers already (`scan`).
Which is which follows from the manifest alone, so every run writes the same. Objects are put many at once.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any, Final
from uuid import UUID

from writetime import frame_ranges
from writetime.batch.documents import Manifest, Problem
from writetime.schema.model import Schema
from writetime.store import Store
from writetime.threads import at_once

_PENDING_BYTES: Final = 64 << 20
_PENDING: Final = 1000
_Group = tuple[int, str]


class Keeping:
    """Puts pieces, and gathers the problems by the index of their segment. What is only compared (`namespace`) leaves no objects."""

    def __init__(self, store: Store, manifest: Manifest, schema: Schema) -> None:
        self._store, self._manifest, self._schema = store, manifest, schema
        self._frames: dict[_Group, list[tuple[int, bytes]]] = defaultdict(list)
        self._pending: list[tuple[str, bytes]] = []
        self._notes: list[tuple[str, bytes]] = []
        self._bytes = 0
        self._problems: dict[int, list[Problem]] = defaultdict(list)

    def add(self, segment: int, position: int, body: bytes, detail: dict[str, Any]) -> None:
        """One range or frame, or (`frames` in the detail) a piece of many frames, whose bytes a worker has put."""
        if "table_id" in detail and "frames" not in detail:
            self._frames[segment, json.dumps(detail, sort_keys=True)].append((position, body))
        else:
            self._keep(segment, position, body, detail)

    def finish(self) -> dict[int, list[Problem]]:
        """All problems, once their bytes are kept."""
        named: Counter[tuple[str, str]] = Counter()
        for (segment, text), frames in sorted(self._frames.items()):
            detail = json.loads(text)
            of = detail["kind"], detail["table_id"]
            frames.sort()
            if len(frames) == 1 or named[of] + len(frames) <= frame_ranges.NAMED:
                named[of] += len(frames)
                for position, body in frames:
                    self._keep(segment, position, body, detail)
                continue
            for start, end in frame_ranges.runs(len(body) for _, body in frames):
                some = frames[start:end]
                about = detail | {"frames": len(some), "last": some[-1][0]} if len(some) > 1 else detail
                body = frame_ranges.pack(body for _, body in some) if len(some) > 1 else some[0][1]
                self._keep(segment, some[0][0], body, about)
        self._frames.clear()
        self._flush()
        return self._problems

    def _keep(self, segment: int, position: int, body: bytes, detail: dict[str, Any]) -> None:
        frames, size = detail.get("frames", 1), detail.get("size", len(body))
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
            self._pending += [(f"{stem}.bin", body)] if body or frames == 1 else []
            self._notes += [(f"{stem}.json", json.dumps(note, indent=1).encode())]
            self._bytes += len(body)
            if self._bytes > _PENDING_BYTES or len(self._notes) > _PENDING:
                self._flush()

    def _flush(self) -> None:
        for several in (self._pending, self._notes):
            at_once(lambda each: self._store.put(*each), several)
        self._pending, self._notes, self._bytes = [], [], 0
