"""Pieces in quarantine as others are told of them: a row of the warehouse's quarantine table, a record of the quarantine topic.

Strategy: what is told of a batch follows from its manifest and its seal, in one order, so that every run tells the same. An event that is
not sent is told of by the note beside its bytes. The bytes themselves stay in the bucket, and `name` says where: they may be of any
keyspace, and hold what `columns` keeps inside. `with_bytes` is the one way for some of them. Knows no sink.
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
"""A longer piece is not told with its bytes: not everybody would take it."""


_WHOLE_FRAMES: Final = frozenset({"DecodeError", "UnknownTable", "UnknownColumn", "MalformedMutation", "SchemaError"})


@dataclass(frozen=True, slots=True)
class Piece:
    """What is told of one piece. `name`: the object with its bytes, by which it is known; `position` and `size` in bytes of the segment
    that is `object`; `table`: as far as it is known, by its full name or its id. Of an event that is not sent there is no segment, but
    `topic` and, with the batch, its `ordinal`. `batch` is the last one that could not use it, `settled_in` the one that could: as long as
    that is None, the piece waits. `at`: that batch's clock, s since the epoch."""

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
    """The pieces that a batch could not use, and those of earlier batches that it could, by segment and position. A piece that has several
    problems (a frame with rows of two tables) is told of once, with all of them."""
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
    """Those of the batches after `since`, up to `upto`, by their notes. Notes of an earlier release, which tell less, are left out."""
    for info in store.list(layout.unpublishable_prefix(cluster)):
        if info.name.endswith(".json") and since < layout.unpublishable_batch(info.name) <= upto:
            about = json.loads(store.read(info.name)).get("piece")
            if about is not None:
                yield Piece(**about)


def with_bytes(pieces: Sequence[Piece], store: Store, schema: SchemaLearner, config: PipelineConfig) -> list[Piece]:
    """The pieces, if the configuration asks for that with the bytes of those that wait and are a whole frame of captured tables, of which
    the pipeline keeps nothing inside. What is damaged need not be of the table that it names."""
    if config.quarantine.bytes == "none":
        return list(pieces)
    known = schema.schema()
    captured = {table_id for table_id in schema.cdc_ever & known.tables.keys() if config.tables.captures(known.tables[table_id].full_name)}
    told = []
    for piece in pieces:
        single = piece.segment is not None and piece.kind in _WHOLE_FRAMES and layout.quarantined_frames(piece.name) == 1
        if piece.settled_in is None and single and piece.size <= MOST_BYTES:
            data = store.read(piece.name)
            version = layout.SegmentName.parse(f"{piece.segment}.log").version
            if look_at(data, _Known(known, captured), config.columns.rules, version=version, values=True).hex:
                piece = replace(piece, bytes=data)
        told.append(piece)
    return told


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the schema, and the tables that are captured."""

    known: Schema
    cdc_ever: Set[UUID]

    def schema(self) -> Schema:
        return self.known


def record(piece: Piece) -> tuple[dict[str, Any], dict[str, Any]]:
    """Key and value of the piece's record, as `formats.QUARANTINED` has them."""
    told = {field.name: getattr(piece, field.name) for field in fields(Piece) if field.name not in ("at", "bytes")}
    data = None if piece.bytes is None else b64encode(piece.bytes).decode()
    return {"name": piece.name}, {**told, "ts_ms": piece.at * 1000, "bytes": data}
