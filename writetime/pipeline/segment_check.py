"""Check one segment as ingest does: whether all frames are intact, and all captured tables are known. One
segment, in memory, no Spark.

Problems that only show in values (such as invalid UTF-8) are not found here: such a segment is held again
after the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from uuid import UUID

from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.mutation import decode_mutation, read_head
from writetime.cassandra.commitlog.segment import MOST_PROBLEMS, Frame, Scan, scan
from writetime.cassandra.commitlog.system_mutations import decode_own, is_schema_change
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.cassandra.schema.snapshot import read as read_snapshot
from writetime.errors import DecodeError, SchemaError, SegmentError, UnknownTable
from writetime.pipeline.documents import Ending, LedgerEntry, Problem, SegmentInput
from writetime.pipeline.planner import history, read_schema
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.kinds import QuarantineKind, of_error
from writetime.storage import layout
from writetime.storage.store import Store
from writetime.untrusted import SCHEMA


def check_segment(store: Store, cluster: str, name: str, keys: Keystore | None = None) -> list[Problem]:
    """The problems that ingest would find in the segment as it is in the bucket now; empty if there are
    none. Only the first of a great many unusable frames are listed.

    `keys` open an encrypted segment. Bytes that a node had not synced when it crashed are no problem: the
    node has lost them as well."""
    buffer = store.read(name)
    try:
        found = scan(buffer, name=name, keys=keys)
    except SegmentError as error:
        return [Problem(kind=of_error(error), position=0, size=len(buffer), message=str(error))]
    crashed = _ending(store, name) == "after-crash"
    damaged = [
        Problem(kind=QuarantineKind(p.kind), position=p.position, size=p.size, message=str(p.error))
        for p in found.problems
        if not (crashed and p.kind == "torn_tail")
    ]
    undecodable = list(islice(_undecodable(found, known_schema(store, cluster)), MOST_PROBLEMS + 1))
    if len(undecodable) > MOST_PROBLEMS:
        more = f"{undecodable[-1].message}; later frames are not listed"
        undecodable[-1] = undecodable[-1].model_copy(update={"message": more})
    return sorted(damaged + undecodable, key=lambda p: p.position)


def _ending(store: Store, name: str) -> Ending:
    """How the node left the segment, from the object's metadata, or from the ledger for a repaired copy."""
    info = store.head(name)
    if info is None:
        return "completed"
    segment = SegmentInput.from_object(info)
    entry = LedgerEntry.read(store, segment.ref.ledger)
    return segment.ending if entry is None else entry.noted(segment).ending


def known_schema(store: Store, cluster: str) -> SchemaLearner:
    """The schema as of the last sealed batch, with every readable snapshot that has arrived since."""
    sealed = history(store, cluster).sealed
    learner = read_schema(store, cluster, sealed.number if sealed else 0)
    applied = set(sealed.snapshots_applied if sealed else ())
    for info in store.names(layout.schema_prefix(cluster)):
        if info.name not in applied and layout.is_schema_snapshot(info.name):
            _apply_snapshot(learner, store.read(info.name, end=SCHEMA + 1))
    return learner


def _apply_snapshot(learner: SchemaLearner, text: bytes) -> None:
    try:
        learner.apply_snapshot(read_snapshot(text))
    except SchemaError:
        # The batch that reads the snapshot reports it; this segment may not need it.
        return


def _undecodable(found: Scan, learner: SchemaLearner) -> Iterator[Problem]:
    """The frames that cannot be used, even with the schema changes in the segment itself."""
    version = found.descriptor.version
    peeked: list[tuple[Frame, bytes, int, UUID]] = []
    for frame in found.frames:
        body = found.body(frame)
        try:
            count, table_id, *_ = read_head(body, version=version)
            if is_schema_change(body, version=version):
                learner.apply(decode_own(body, version=version).mutation)
            else:
                peeked.append((frame, body, count, table_id))
        except DecodeError as error:
            yield _problem(frame, body, error)
    if (tables := len({table_id for *_, table_id in peeked})) > frame_ranges.MOST_TABLES:
        most = f"frames of {tables} tables, more than {frame_ranges.MOST_TABLES}"
        yield Problem(kind=QuarantineKind.UNSUPPORTED_SEGMENT, position=0, size=len(found.file), message=most)
        return
    schema, captured = learner.schema(), learner.cdc_ever
    for frame, body, count, table_id in peeked:
        try:
            if count != 1 or table_id in captured:
                decode_mutation(body, schema, version=version)
            else:
                _expect_known(table_id, schema)
        except (DecodeError, SchemaError) as error:
            yield _problem(frame, body, error)


def _problem(frame: Frame, body: bytes, error: DecodeError | SchemaError) -> Problem:
    return Problem(kind=of_error(error), position=frame.position, size=len(body), message=str(error))


def _expect_known(table_id: UUID, schema: Schema) -> None:
    if table_id not in schema.tables:
        raise UnknownTable("no schema is known for this table id", operation="check a frame", obj=str(table_id), table_id=str(table_id))
