"""Check one segment as ingest would: are all its frames whole, and is every table known? No Spark, one segment, in memory."""

from __future__ import annotations

from uuid import UUID

from writetime import names
from writetime.batch.documents import Problem
from writetime.batch.plan import history
from writetime.commitlog.mutation import decode_mutation
from writetime.commitlog.segment import Scan, peek, scan
from writetime.errors import DecodeError, SegmentError, UnknownTable
from writetime.schema.learn import SchemaLearner
from writetime.schema.model import Schema
from writetime.schema.snapshot import parse as parse_snapshot
from writetime.store import Store


def check_segment(store: Store, cluster: str, name: str) -> list[Problem]:
    """What ingest would find wrong with the segment as it is in the bucket now; an empty list when it is good."""
    buffer = store.read(name)
    try:
        found = scan(buffer, name=name)
    except SegmentError as error:
        return [Problem(kind=type(error).__name__, position=0, size=len(buffer), message=str(error))]
    damaged = [Problem(kind=p.kind, position=p.position, size=p.size, message=str(p.error)) for p in found.problems]
    return damaged + _undecodable(buffer, found, known_schema(store, cluster))


def known_schema(store: Store, cluster: str) -> Schema:
    """The schema as of the last sealed batch, with every snapshot that has come in since."""
    sealed = history(store, cluster).sealed
    learner = SchemaLearner()
    if sealed is not None:
        learner = SchemaLearner.from_json(store.read(names.batch_object(cluster, sealed.number, "schema")).decode())
    applied = set(sealed.snapshots_applied if sealed else ())
    for info in store.list(names.schema_prefix(cluster)):
        if info.name not in applied:
            for mutation in parse_snapshot(store.read(info.name).decode()):
                learner.apply(mutation)
    return learner.schema()


def _undecodable(buffer: bytes, found: Scan, schema: Schema) -> list[Problem]:
    problems = []
    for frame in found.frames:
        body = buffer[frame.body_offset : frame.body_offset + frame.body_length]
        count, table_id, _ = peek(body)
        try:
            if count > 1:
                decode_mutation(body, schema, version=found.descriptor.version)
            else:
                _expect_known(table_id, schema)
        except DecodeError as error:
            problems.append(Problem(kind=type(error).__name__, position=frame.position, size=len(body), message=str(error)))
    return problems


def _expect_known(table_id: UUID, schema: Schema) -> None:
    if table_id not in schema.tables:
        raise UnknownTable("no schema is known for this table id", operation="check a frame", obj=str(table_id), table_id=str(table_id))
