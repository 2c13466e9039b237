"""Retry quarantine records.

Strategy: all data enters through ingest. If the segment of a record is still in the bucket and has no
problems any more, the next batch ingests and archives it. Otherwise the frames that can be decoded by now
are put into the bucket as frames logged by the same node. Merging a frame twice changes nothing. The
quarantine record stays; its note says when it was retried. A segment that only waits for a table's schema,
or for a release that reads its commit log version, is released automatically (`release`). An event that
could not be sent is in its changes table; it is not sent from here.

Listing and viewing is in `writetime.pipeline.quarantine.contents`, the commands are in
`writetime.cli.quarantine`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema
from writetime.errors import CorruptFrame, DecodeError, ObjectNotFound, SchemaError, SegmentError
from writetime.events.masking import Rules, rejection_reason
from writetime.pipeline.archiver import mark_for_retry
from writetime.pipeline.bootstrap.frames import FramesWriter
from writetime.pipeline.documents import LedgerEntry, Problem
from writetime.pipeline.planner import history, read_schema
from writetime.pipeline.quarantine import frame_ranges
from writetime.pipeline.quarantine.contents import body_of
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.record import QuarantineRecord, change_note, note_of
from writetime.pipeline.segment_check import check_segment, known_schema
from writetime.storage.concurrency import at_once
from writetime.storage.layout import NodeName, SegmentRef, schema_looked_at
from writetime.storage.store import Store

_OF_EVENTS: Final = (
    "an event cannot be sent after later events of its table. Its value is in this object and in the changes "
    "table. To send all events of the table again, to a new topic: raise the limit or set kafka.oversized, then trigger cdc_publish with "
    "`Send all of a table again`"
)
_REFUSALS: Final = (DecodeError, SchemaError, SegmentError, ObjectNotFound)


@dataclass(frozen=True, slots=True)
class Retried:
    """The result of retries: released segments, objects with frames, and records that cannot be used yet,
    with the reason."""

    segments: list[str]
    objects: list[str]
    refused: dict[str, str]


def retry(store: Store, cluster: str, records: Sequence[QuarantineRecord], keys: Keystore | None = None) -> Retried:
    """Let the next batch read these records again."""
    learner = known_schema(store, cluster)
    segments: list[str] = []
    refused: dict[str, str] = {}
    objects_of = {record.object for record in records if record.object}
    whole = {name for name in objects_of if _waits(store, name) and not check_segment(store, cluster, name, keys)}
    for name in sorted(whole):
        mark_for_retry(store, name)
        segments.append(name)
    objects = []
    for record in (record for record in records if record.object not in whole):
        if record.topic:
            refused[record.name] = _OF_EVENTS
            continue
        try:
            objects.append(_put_frame(store, cluster, record, learner))
        except _REFUSALS as error:
            refused[record.name] = str(error)
    for record in (record for record in records if record.name not in refused):
        _note_retry(store, record)
    return Retried(segments, objects, refused)


def release(store: Store, cluster: str, rules: Rules, keys: Keystore | None = None) -> list[str]:
    """Release the held segments that only waited for the schema of tables (a table, a column, a type), if
    the schema has changed since they were quarantined. Returns their objects.

    Each segment is checked once per schema change of its tables, because a check reads all of it. Segments
    with other problems, such as a configuration rule or a name clash in the warehouse, wait for an operator.
    If nothing has changed since the last check, no ledger entry is read: a great many segments may wait."""
    sealed = history(store, cluster).sealed
    if sealed is None or not sealed.held:
        return []
    learner = known_schema(store, cluster)
    knows = learner.to_json(), repr(rules)
    looked_at = hashlib.blake2b("\n".join((*knows, *sealed.held)).encode(), digest_size=16).hexdigest()
    if _last_look(store, cluster) == looked_at:
        return []
    entries = at_once(lambda name: LedgerEntry.read(store, SegmentRef.from_object(name).ledger), sealed.held)
    noted = zip(sealed.held, entries, strict=True)
    waiting = {name: entry for name, entry in noted if entry and entry.state == "quarantined" and _waits_for_schema(entry)}
    released = _release_each(store, cluster, waiting, learner.schema(), rules, keys)
    # A batch that is not archived yet has no ledger entries for its segments.
    if all(entry is not None and entry.state in ("quarantined", "retry") for entry in entries):
        store.put(schema_looked_at(cluster), looked_at.encode())
    return released


def _last_look(store: Store, cluster: str) -> str | None:
    try:
        return store.read(schema_looked_at(cluster)).decode(errors="replace")
    except ObjectNotFound:
        return None


def _release_each(
    store: Store, cluster: str, waiting: Mapping[str, LedgerEntry], known: Schema, rules: Rules, keys: Keystore | None
) -> list[str]:
    released = []
    for name, entry in waiting.items():
        tables = _tables_of(store, entry)
        if tables is None or not _is_more(store, cluster, entry, tables, known, rules):
            continue
        about, digest = _note_of(store, entry.problems[0]), _digest(tables, known)
        if about.get("tried_with") == digest:
            continue
        if not check_segment(store, cluster, name, keys):
            mark_for_retry(store, name)
            released.append(name)
        elif about:
            change_note(store, note_of(str(entry.problems[0].quarantined_as)), tried_with=digest)
    return released


def _waits_for_schema(entry: LedgerEntry) -> bool:
    return bool(entry.problems) and all(problem.kind.waits_for_schema and problem.quarantined_as for problem in entry.problems)


def _tables_of(store: Store, entry: LedgerEntry) -> set[UUID] | None:
    """The tables that the segment waits for; None if they are not all known."""
    found = set()
    for problem in entry.problems:
        table_id = problem.table_id or _note_of(store, problem).get("table_id")
        if table_id is None:
            return None
        found.add(table_id if isinstance(table_id, UUID) else UUID(table_id))
    return found


def _is_more(store: Store, cluster: str, entry: LedgerEntry, tables: set[UUID], known: Schema, rules: Rules) -> bool:
    """Whether each of the tables can be converted now, and its known schema has changed since the batch that
    could not."""
    try:
        then = read_schema(store, cluster, entry.batch).schema()
    except ObjectNotFound:
        # Deleted by retention: the batch is old.
        then = Schema()
    for table_id in tables:
        table = known.tables.get(table_id)
        if table is None or _about(table_id, known) == _about(table_id, then) or rejection_reason(table, known, rules) is not None:
            return False
    return True


def _digest(tables: set[UUID], known: Schema) -> str:
    """A hash of everything known of the tables."""
    return hashlib.blake2b("".join(_about(table_id, known) for table_id in sorted(tables)).encode(), digest_size=16).hexdigest()


def _about(table_id: UUID, schema: Schema) -> str:
    """The schema of a table, including the user types of its keyspace; "" if it is not known."""
    table = schema.tables.get(table_id)
    if table is None:
        return ""
    return repr((table, sorted((name, repr(each)) for name, each in schema.types.items() if name[0] == table.keyspace)))


def _note_of(store: Store, problem: Problem) -> dict[str, Any]:
    """The note of a quarantine record; empty if it was deleted."""
    try:
        return dict(json.loads(store.read(note_of(str(problem.quarantined_as)))))
    except ObjectNotFound:
        return {}


def _waits(store: Store, name: str) -> bool:
    entry = LedgerEntry.read(store, SegmentRef.from_object(name).ledger)
    return entry is not None and entry.state == "quarantined" and store.head(name) is not None


def _put_frame(store: Store, cluster: str, record: QuarantineRecord, learner: SchemaLearner) -> str:
    """The object with the record's frame. DecodeError or SchemaError if it still cannot be decoded,
    SegmentError if it is not a frame."""
    bodies = list(_bodies(record, store.read(record.name)))
    if not bodies or record.kind is QuarantineKind.CORRUPT_FRAME:
        hint = "Replace the segment by an intact copy."
        raise CorruptFrame("the frame is damaged", operation="retry a frame", obj=record.object, position=record.position, hint=hint)
    schema = learner.schema()
    for body in bodies:
        decode_mutation(body, schema, version=record.version)
    now = datetime.now(UTC)
    run = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}~{record.node}"
    # The key is older than the word "record".
    about = {"retry_of": str(record.object), "position": str(record.position), "piece": record.name}
    sealed_at = _sealed_at(store, record, now)
    writer = FramesWriter(store, NodeName.made(cluster, "retry", run), sealed_at, version=record.version, metadata=about)
    for body in bodies:
        writer.add(body)
    writer.flush()
    return writer.objects[0]


def _bodies(record: QuarantineRecord, data: bytes) -> Iterator[bytes]:
    """The mutations in a record; none if it holds no complete frame."""
    if record.frames > 1:
        yield from frame_ranges.unpack(data)
    elif (body := body_of(record, data)) is not None:
        yield body


def _sealed_at(store: Store, record: QuarantineRecord, now: datetime) -> datetime:
    """When the node finished the segment: a later TRUNCATE took its writes."""
    entry = LedgerEntry.read(store, SegmentRef.from_object(str(record.object)).ledger)
    return entry.sealed_at if entry else now


def _note_retry(store: Store, record: QuarantineRecord) -> None:
    change_note(store, record.note, retried_at=datetime.now(UTC).isoformat())
