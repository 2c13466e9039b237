"""Quarantine records as they are published: a row of the warehouse's quarantine table, a record of the
quarantine topic.

Strategy: the records of a batch follow from its manifest and its seal, in a fixed order, so that every run
publishes the same. A record of an unsent event is made from the note next to its bytes. The bytes stay in
the bucket under `name`: they may belong to any keyspace, and contain what `columns` hides. Only `with_bytes`
publishes some of them. Does not know the sinks.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from uuid import UUID

from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.documents import Manifest, Problem, SegmentOutcome
from writetime.pipeline.quarantine.contents import look_at
from writetime.storage import layout
from writetime.storage.store import Store

MOST_BYTES: Final = 64 << 10
"""Records with more bytes are published without them, because sinks may reject large values."""


_WHOLE_FRAMES: Final = frozenset({"DecodeError", "UnknownTable", "UnknownColumn", "MalformedMutation", "SchemaError"})


@dataclass(frozen=True, slots=True)
class Piece:
    """A published quarantine record. `name`: the object with its bytes, and its key; `position` and `size`
    in bytes of the segment `object`; `table`: full name or id, if known. A record of an unsent event has no
    segment, but `topic`, `batch` and `ordinal`. `batch`: the last batch that could not use it; `settled_in`:
    the one that could, None while the record waits. `at`: that batch's clock, s since the epoch."""

    name: str
    cluster: str
    kind: str
    message: str
    size: int
    batch: int
    at: int
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


def of_batch(manifest: Manifest, outcomes: Sequence[SegmentOutcome]) -> list[Piece]:
    """The records that a batch could not use, and those of earlier batches that it could, by segment and
    position. Several problems of one frame (with rows of two tables) are one record."""
    found: dict[str, Piece] = {}
    for outcome in outcomes:
        for problem in (problem for problem in outcome.problems if problem.quarantined_as is not None):
            piece = _piece(manifest, outcome.object, problem, manifest.number)
            found[piece.name] = _both(found[piece.name], piece) if piece.name in found else piece
    for settled in (settled for outcome in outcomes for settled in outcome.settled):
        piece = replace(_piece(manifest, settled.object, settled, settled.batch), settled_in=manifest.number)
        found.setdefault(piece.name, piece)
    return list(found.values())


def _piece(manifest: Manifest, segment: str, problem: Problem, batch: int) -> Piece:
    ref = layout.SegmentRef.from_object(segment)
    return Piece(
        name=str(problem.quarantined_as),
        cluster=manifest.cluster,
        kind=problem.kind,
        message=problem.message,
        size=problem.size,
        batch=batch,
        at=manifest.now,
        datacenter=ref.node.datacenter,
        node=ref.node.host_id,
        segment=ref.segment.stem,
        position=problem.position,
        table=problem.table,
        object=segment,
    )


def _both(one: Piece, other: Piece) -> Piece:
    def both(first: str | None, second: str | None, between: str) -> str:
        return between.join(dict.fromkeys([*(first.split(between) if first else ()), *([second] if second else [])]))

    return replace(one, message=both(one.message, other.message, "; "), table=both(one.table, other.table, ", ") or None)


def unsent(store: Store, cluster: str, since: int, upto: int) -> Iterator[Piece]:
    """Records of unsent events of the batches in (`since`, `upto`], from their notes. Notes of earlier
    versions, without a record, are left out."""
    for info in store.list(layout.unpublishable_prefix(cluster)):
        if info.name.endswith(".json") and since < layout.unpublishable_batch(info.name) <= upto:
            about = json.loads(store.read(info.name)).get("piece")
            if about is not None:
                yield Piece(**about)


def with_bytes(records: Sequence[Piece], store: Store, schema: SchemaLearner, config: PipelineConfig) -> list[Piece]:
    """The records, if configured with their bytes: only waiting records that are one complete frame of
    captured tables without hidden columns or rows. A damaged range may belong to another table than it
    names."""
    if config.quarantine.bytes == "none":
        return list(records)
    known = schema.schema()
    captured = {table_id for table_id in schema.cdc_ever & known.tables.keys() if config.tables.captures(known.tables[table_id].full_name)}
    found = []
    for piece in records:
        single = piece.segment is not None and piece.kind in _WHOLE_FRAMES and layout.quarantined_frames(piece.name) == 1
        if piece.settled_in is None and single and piece.size <= MOST_BYTES:
            data = store.read(piece.name)
            version = layout.SegmentName.parse(f"{piece.segment}.log").version
            if look_at(data, _Known(known, captured), config.columns.rules, version=version, values=True).hex:
                piece = replace(piece, bytes=data)
        found.append(piece)
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """The known schema, and the captured tables."""

    known: Schema
    cdc_ever: Set[UUID]

    def schema(self) -> Schema:
        return self.known


def record(piece: Piece) -> tuple[dict[str, Any], dict[str, Any]]:
    """Key and value of the published record, as in `formats.QUARANTINED`."""
    shown = {field.name: getattr(piece, field.name) for field in fields(Piece) if field.name not in ("at", "bytes")}
    data = None if piece.bytes is None else b64encode(piece.bytes).decode()
    return {"name": piece.name}, {**shown, "ts_ms": piece.at * 1000, "bytes": data}
