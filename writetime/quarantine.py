"""What could not be used, once more.

Strategy: a retry goes through the one door. Where the segment that a piece is of still waits in the bucket and can be used whole by now, it
is let into the next batch, and is archived then; else the frames of what can be decoded by now are put into the bucket as frames that were
logged by the same node. What is in the tables already changes nothing when it comes twice. A piece stays in quarantine as it is; its note
says when it was retried. A segment that only waited for the schema of a table is let in without anybody asking (`release`).

Seeing is `writetime.status.quarantine`'s business, the commands are in `writetime.quarantine_cli`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from writetime.batch.archive import mark_for_retry
from writetime.batch.check import check_segment, known_schema
from writetime.batch.documents import LedgerEntry
from writetime.batch.plan import history
from writetime.bootstrap.frames import FramesWriter
from writetime.commitlog.keystore import Keystore
from writetime.commitlog.mutation import decode_mutation
from writetime.errors import CorruptFrame, DecodeError, ObjectNotFound, SchemaError, SegmentError
from writetime.names import NodeName, SegmentName, SegmentRef
from writetime.schema.learn import SchemaLearner
from writetime.status.quarantine import Kept, body_of
from writetime.store import Store

_WAITS_FOR_SCHEMA: Final = "UnknownTable"
_REFUSALS: Final = (DecodeError, SchemaError, SegmentError, ObjectNotFound)


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of retries: segments that are let into the next batch, objects with frames, and pieces that cannot be used yet, with the
    reason."""

    segments: list[str]
    objects: list[str]
    refused: dict[str, str]


def retry(store: Store, cluster: str, pieces: Sequence[Kept], keys: Keystore | None = None) -> Retried:
    """Let the next batch try these pieces again."""
    learner = known_schema(store, cluster)
    segments: list[str] = []
    refused: dict[str, str] = {}
    whole = {name for name in {piece.object for piece in pieces} if _waits(store, name) and not check_segment(store, cluster, name, keys)}
    for name in sorted(whole):
        mark_for_retry(store, name)
        segments.append(name)
    objects = []
    for piece in (piece for piece in pieces if piece.object not in whole):
        try:
            objects.append(_put_frame(store, cluster, piece, learner))
        except _REFUSALS as error:
            refused[piece.name] = str(error)
    for piece in (piece for piece in pieces if piece.name not in refused):
        _note(store, piece)
    return Retried(segments, objects, refused)


def release(store: Store, cluster: str, keys: Keystore | None = None) -> list[str]:
    """Let the next batch take in the segments that waited for nothing but the schema of tables that are known by now; their objects."""
    sealed = history(store, cluster).sealed
    waiting: dict[str, set[UUID]] = {}
    for name in sealed.held if sealed else ():
        entry = LedgerEntry.read(store, SegmentRef.from_object(name).ledger)
        if entry is not None and entry.state == "quarantined" and (tables := _unknown_tables(store, entry)):
            waiting[name] = tables
    if not waiting:
        return []
    known = known_schema(store, cluster).schema().tables.keys()
    released = [name for name, tables in waiting.items() if tables <= known and not check_segment(store, cluster, name, keys)]
    for name in released:
        mark_for_retry(store, name)
    return released


def _unknown_tables(store: Store, entry: LedgerEntry) -> set[UUID]:
    """The tables that are all that the segment waits for; none if it waits for something else as well."""
    if any(problem.kind != _WAITS_FOR_SCHEMA or problem.quarantined_as is None for problem in entry.problems):
        return set()
    notes = [(problem.quarantined_as or "").removesuffix(".bin") + ".json" for problem in entry.problems]
    found = [json.loads(store.read(name)).get("table_id") for name in notes if store.head(name) is not None]
    return {UUID(table_id) for table_id in found} if len(found) == len(notes) and all(found) else set()


def _waits(store: Store, name: str) -> bool:
    entry = LedgerEntry.read(store, SegmentRef.from_object(name).ledger)
    return entry is not None and entry.state == "quarantined" and store.head(name) is not None


def _put_frame(store: Store, cluster: str, piece: Kept, learner: SchemaLearner) -> str:
    """The object with the piece's frame. DecodeError or SchemaError if it still cannot be decoded, SegmentError if it is no frame."""
    body = body_of(piece.kind, store.read(piece.name))
    if body is None or piece.kind == "corrupt_frame":
        hint = "Put a good copy of the segment in its place."
        raise CorruptFrame("its bytes are damaged", operation="retry a frame", obj=piece.object, position=piece.position, hint=hint)
    version = SegmentName.parse(f"{piece.segment}.log").version
    decode_mutation(body, learner.schema(), version=version)
    now = datetime.now(UTC)
    run = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}~{piece.node.host_id}"
    about = {"retry_of": piece.object, "position": str(piece.position), "piece": piece.name}
    writer = FramesWriter(store, NodeName.made(cluster, "retry", run), _sealed_at(store, piece, now), version=version, metadata=about)
    writer.add(body)
    writer.flush()
    return writer.objects[0]


def _sealed_at(store: Store, piece: Kept, now: datetime) -> datetime:
    """When its node finished the segment: a TRUNCATE since then took it."""
    entry = LedgerEntry.read(store, SegmentRef.from_object(piece.object).ledger)
    return entry.sealed_at if entry else now


def _note(store: Store, piece: Kept) -> None:
    name = piece.name.removesuffix(".bin") + ".json"
    about = json.loads(store.read(name))
    about["retried_at"] = datetime.now(UTC).isoformat()
    store.put(name, json.dumps(about, indent=1).encode())
