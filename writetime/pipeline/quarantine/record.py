"""Quarantine records: how one is read from its note in the bucket, and listed.

Strategy: a record is two objects, the bytes (`.bin`) and a note (`.json`) next to them; the note is written
last, so it is what makes a record. A record is identified by the name of its bytes. Does not know what the
bytes mean (`contents`), nor how records are published (`published`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final

from writetime.errors import ObjectNotFound
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store, change_object

PAGE: Final = 50


def change_note(store: Store, note: str, **changes: Any) -> None:
    """Change entries of a record's note, if there is one, as batches and people may at once."""

    def changed(data: bytes | None) -> bytes | None:
        about: dict[str, Any] = json.loads(data) if data is not None else {}
        return json.dumps(about | changes, indent=1).encode() if about and not changes.items() <= about.items() else None

    change_object(store, note, changed)


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """Data that a batch could not use. `name`: the object with its bytes; `size` in bytes.

    Of a segment: `position` in bytes of the segment `object`, whose file was `segment` (without `.log`) on
    `node` (host id) in `datacenter`; `table`: full name or id, if known. Of an event that was not sent:
    `topic` and `ordinal` in `batch`, and none of these. `batch`: the last batch that could not use it, and
    `at` its clock, s since the epoch; `settled_in`: the batch that could, None while the record waits;
    `retried_at`: when an operator last requested a retry. `bytes`: only if they are published.
    """

    name: str
    cluster: str
    kind: QuarantineKind
    message: str
    size: int
    batch: int | None
    at: int | None = None
    datacenter: str | None = None
    node: str | None = None
    segment: str | None = None
    position: int | None = None
    table: str | None = None
    object: str | None = None
    topic: str | None = None
    ordinal: int | None = None
    settled_in: int | None = None
    bytes: bytes | None = None
    retried_at: datetime | None = None

    @property
    def note(self) -> str:
        """The object with the record's note."""
        return note_of(self.name)

    @property
    def frames(self) -> int:
        """Number of frames in the record."""
        return layout.quarantined_frames(self.name)

    @property
    def version(self) -> int:
        """The descriptor version of the record's segment."""
        return layout.SegmentName.parse(f"{self.segment}.log").version


def note_of(name: str) -> str:
    """The object with the note of the record whose bytes are in object `name`."""
    return name.removesuffix(".bin") + ".json"


def list_records(batches: Batches, *, cursor: str = "", size: int = PAGE) -> tuple[list[QuarantineRecord], str]:
    """Records by name (node, segment, position), and the cursor of the next page; empty if there is none."""
    start = cursor if cursor.startswith(layout.quarantine_prefix(batches.cluster)) else ""
    listed = batches.store.list(layout.quarantine_prefix(batches.cluster), start_after=start)
    notes = [info.name for info in islice((info for info in listed if info.name.endswith(".json")), size + 1)]
    voided = batches.voided() if notes else frozenset()
    found = at_once(lambda note: _read(batches, note, voided), notes[:size])
    return [record for record in found if record is not None], notes[size - 1] if len(notes) > size else ""


def read_record(batches: Batches, name: str) -> QuarantineRecord | None:
    """The record whose bytes are in object `name`; None if it does not exist or the name is not a
    record's."""
    if not name.startswith(layout.quarantine_prefix(batches.cluster)) or not name.endswith(".bin"):
        return None
    return _read(batches, note_of(name), batches.voided())


def _read(batches: Batches, note: str, voided: Set[int]) -> QuarantineRecord | None:
    """The record of that note; None if the note is deleted or invalid."""
    try:
        about: dict[str, Any] = json.loads(batches.store.read(note))
        name = note.removesuffix(".json") + ".bin"
        of = _of_event if note.startswith(layout.unpublishable_prefix(batches.cluster)) else _of_segment
        return of(name, batches.cluster, about, voided)
    except (ObjectNotFound, ValueError, KeyError, TypeError):
        return None


def _of_segment(name: str, cluster: str, about: Mapping[str, Any], voided: Set[int]) -> QuarantineRecord:
    """A record settled by a voided batch counts as waiting. ValueError if the name is not a record's."""
    _, _, datacenter, node, segment, place = name.split("/")
    position, size = (int(text) for text in place.removesuffix(".bin").split("-")[:2])
    batch, settled_in = about.get("batch"), about.get("settled_in")
    return QuarantineRecord(
        name=name,
        cluster=cluster,
        kind=QuarantineKind(str(about.get("kind", ""))),
        message=str(about.get("message", "")),
        size=size,
        batch=batch if isinstance(batch, int) else None,
        datacenter=layout.unpart(datacenter),
        node=layout.unpart(node),
        segment=segment,
        position=position,
        table=about.get("table"),
        object=str(about.get("object", "")),
        settled_in=None if settled_in in voided else settled_in,
        retried_at=_moment(about.get("retried_at")),
    )


def _of_event(name: str, cluster: str, about: Mapping[str, Any], _: Set[int]) -> QuarantineRecord:
    batch, ordinal = (int(number) for number in about["sequence"])
    return QuarantineRecord(
        name=name,
        cluster=cluster,
        kind=QuarantineKind(str(about.get("kind", ""))),
        message=str(about.get("message", "")),
        size=int(about.get("size") or 0),
        batch=batch,
        topic=str(about.get("topic", "")),
        ordinal=ordinal,
    )


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
