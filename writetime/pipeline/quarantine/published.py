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
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import structlog

from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.documents import Manifest, Problem, SegmentOutcome
from writetime.pipeline.quarantine.contents import look_at
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.record import QuarantineRecord
from writetime.storage import layout
from writetime.storage.store import Store

log = structlog.get_logger()

MOST_BYTES: Final = 64 << 10
"""Records with more bytes are published without them, because sinks may reject large values."""
FIELDS: Final = (
    "name",
    "cluster",
    "kind",
    "message",
    "size",
    "batch",
    "at",
    "datacenter",
    "node",
    "segment",
    "position",
    "table",
    "object",
    "topic",
    "ordinal",
    "settled_in",
    "bytes",
)
"""Fields of a published record, in the order of the quarantine table."""


def of_batch(manifest: Manifest, outcomes: Sequence[SegmentOutcome]) -> list[QuarantineRecord]:
    """The records that a batch could not use, and those of earlier batches that it could, by segment and
    position. Several problems of one frame (with rows of two tables) are one record."""
    found: dict[str, QuarantineRecord] = {}
    for outcome in outcomes:
        for problem in (problem for problem in outcome.problems if problem.quarantined_as is not None):
            record = _record(manifest, outcome.object, problem, manifest.number)
            found[record.name] = _both(found[record.name], record) if record.name in found else record
    for settled in (settled for outcome in outcomes for settled in outcome.settled):
        record = replace(_record(manifest, settled.object, settled, settled.batch), settled_in=manifest.number)
        found.setdefault(record.name, record)
    return list(found.values())


def _record(manifest: Manifest, segment: str, problem: Problem, batch: int) -> QuarantineRecord:
    ref = layout.SegmentRef.from_object(segment)
    return QuarantineRecord(
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


def _both(one: QuarantineRecord, other: QuarantineRecord) -> QuarantineRecord:
    def both(first: str | None, second: str | None, between: str) -> str:
        return between.join(dict.fromkeys([*(first.split(between) if first else ()), *([second] if second else [])]))

    return replace(one, message=both(one.message, other.message, "; "), table=both(one.table, other.table, ", ") or None)


def unsent(store: Store, cluster: str, since: int, upto: int) -> Iterator[QuarantineRecord]:
    """Records of unsent events of the batches in (`since`, `upto`], from their notes. Notes of earlier
    versions, without a record, are left out."""
    for info in store.list(layout.unpublishable_prefix(cluster)):
        if info.name.endswith(".json") and since < layout.unpublishable_batch(info.name) <= upto:
            about = json.loads(store.read(info.name)).get("piece")
            if about is not None:
                yield QuarantineRecord(**about | {"kind": QuarantineKind(about["kind"])})


def with_bytes(records: Sequence[QuarantineRecord], store: Store, schema: SchemaLearner, config: PipelineConfig) -> list[QuarantineRecord]:
    """The records, if configured with their bytes: only waiting records that are one complete frame of
    captured tables without hidden columns or rows. A damaged range may belong to another table than it
    names."""
    if config.quarantine.bytes == "none":
        return list(records)
    known = schema.schema()
    captured = {table.id for table in schema.captured(config.tables.captures)}
    found = []
    for record in records:
        single = record.segment is not None and record.kind.is_mutation and record.frames == 1
        if record.settled_in is None and single and record.size <= MOST_BYTES:
            data = store.read(record.name)
            if _may_be_shown(record, data, _Known(known, captured), config):
                record = replace(record, bytes=data)
        found.append(record)
    return found


def _may_be_shown(record: QuarantineRecord, data: bytes, known: _Known, config: PipelineConfig) -> bool:
    try:
        return bool(look_at(data, known, config.columns.rules, version=record.version, values=True).hex)
    except Exception as error:  # noqa: BLE001 - what cannot be looked at is not shown; the bytes are in the bucket
        log.warning("quarantined frame cannot be shown", record=record.name, error=f"{type(error).__name__}: {error}")
        return False


@dataclass(frozen=True, slots=True)
class _Known:
    """The known schema, and the captured tables."""

    known: Schema
    cdc_ever: Set[UUID]

    def schema(self) -> Schema:
        return self.known


def table_row(record: QuarantineRecord) -> dict[str, Any]:
    """The record's row in the quarantine table, `at` in s since the epoch. The note of an event that was not
    sent holds the same, without bytes."""
    return {name: getattr(record, name) for name in FIELDS} | {"kind": str(record.kind)}


def topic_record(record: QuarantineRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """Key and value of the record in the quarantine topic, as in `serialization.QUARANTINED`."""
    value = table_row(record)
    at, data = value.pop("at"), value.pop("bytes")
    return {"name": record.name}, value | {"ts_ms": at * 1000, "bytes": None if data is None else b64encode(data).decode()}
