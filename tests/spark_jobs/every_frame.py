"""Scanning and routing in the plain way: every frame a row of its own, every digest too. What
`spark_jobs.stages.scan` has to come to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from spark_jobs.stages.scan import Routes as Routes
from spark_jobs.stages.scan import chunked
from spark_jobs.stages.scan import key_bucket as key_bucket
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import peek, scan
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES
from writetime.errors import DecodeError, MalformedMutation, ObjectNotFound, SchemaError, SegmentError, UnknownTable
from writetime.storage import open_store

Batches = Iterable[pa.RecordBatch]

SEGMENTS = pa.schema([("segment", pa.int32()), ("object", pa.string()), ("crc32c", pa.int64())])

FRAMES = pa.schema(
    [
        ("segment", pa.int32()),  # index into the manifest's segments
        ("kind", pa.string()),  # frame | problem | done
        ("position", pa.int64()),  # where the frame ends, or the damaged range begins
        ("table_id", pa.binary()),  # of the first update
        ("updates", pa.int32()),
        ("key", pa.binary()),
        ("body", pa.binary()),  # the mutation, or the damaged bytes
        ("detail", pa.string()),  # JSON: of a problem its kind, size and message; of `done` the counts
    ]
)

ROUTED = pa.schema(
    [
        ("kind", pa.string()),  # update | not_ours | quarantined
        ("table", pa.string()),
        ("table_id", pa.binary()),
        ("bucket", pa.int32()),
        ("key", pa.binary()),
        ("digest", pa.binary()),
        ("segment", pa.int32()),
        ("position", pa.int64()),
        ("updates", pa.int32()),
        ("body", pa.binary()),
        ("detail", pa.string()),
    ]
)


def scanner(bucket_url: str, keystore: Path | None = None) -> Callable[[Batches], Batches]:
    """SEGMENTS -> FRAMES. `keystore` is a file on the worker, whose environment has the password: neither key
    nor password travels."""

    def scan_batches(batches: Batches) -> Batches:
        store = open_store(bucket_url)
        keys = None if keystore is None else Keystore.from_environment(keystore)
        for batch in batches:
            for row in batch.to_pylist():
                read = _reader(store.read, row["object"])
                yield from chunked(_scan_one(row["segment"], row["object"], read, keys), FRAMES)

    return scan_batches


def _reader(read: Callable[..., bytes], name: str) -> Callable[[], bytes]:
    return lambda: read(name)


def _scan_one(segment: int, name: str, read: Callable[[], bytes], keys: Keystore | None) -> Iterator[dict[str, Any]]:
    try:
        buffer = read()
    except ObjectNotFound as error:
        yield _problem(segment, "gone", 0, b"", str(error))
        yield _done(segment, 0, 0)
        return
    try:
        found = scan(buffer, name=name, keys=keys)
    except SegmentError as error:
        yield _problem(segment, type(error).__name__, 0, buffer, str(error))
        yield _done(segment, 0, 0)
        return
    updates = 0
    for frame in found.frames:
        body = found.body(frame)
        try:
            count, table_id, key = _peek(body, found.descriptor.version)
        except DecodeError as error:
            yield _problem(segment, type(error).__name__, frame.position, body, str(error))
            continue
        updates += count
        yield {
            "segment": segment,
            "kind": "frame",
            "position": frame.position,
            "table_id": table_id.bytes,
            "updates": count,
            "key": key,
            "body": body,
            "detail": None,
        }
    for problem in found.problems:
        # A torn tail of a finished segment is loss too: the node will write no more of it.
        yield _problem(segment, problem.kind, problem.position, found.lost(problem), str(problem.error))
    yield _done(segment, len(found.frames), updates)


def _peek(body: bytes, version: int) -> tuple[int, UUID, bytes]:
    count, table_id, key = peek(body, version=version)
    if not 0 < count <= len(body):
        raise MalformedMutation(f"a mutation of {count} partition updates", operation="peek into a mutation", position=0)
    return count, table_id, key


def _problem(segment: int, kind: str, position: int, body: bytes, message: str) -> dict[str, Any]:
    detail = json.dumps({"kind": kind, "size": len(body), "message": message})
    return _row(segment, "problem", position, body, detail)


def _done(segment: int, frames: int, updates: int) -> dict[str, Any]:
    return _row(segment, "done", 0, None, json.dumps({"frames": frames, "updates": updates}))


def _row(segment: int, kind: str, position: int, body: bytes | None, detail: str) -> dict[str, Any]:
    return {
        "segment": segment,
        "kind": kind,
        "position": position,
        "table_id": None,
        "updates": 0,
        "key": None,
        "body": body,
        "detail": detail,
    }


def router(routes: Routes) -> Callable[[Batches], Batches]:
    """FRAMES of kind `frame` -> ROUTED."""

    def route_batches(batches: Batches) -> Batches:
        for batch in batches:
            yield from chunked((routed for row in batch.to_pylist() for routed in route(row, routes)), ROUTED)

    return route_batches


def route(frame: dict[str, Any], routes: Routes) -> Iterator[dict[str, Any]]:
    """One row per table that the frame updates: captured, not ours, or not decodable."""
    try:
        tables = _tables_of(frame, routes)
    except (DecodeError, SchemaError) as error:
        first = UUID(bytes=frame["table_id"])
        unknown = UUID(error.table_id) if isinstance(error, UnknownTable) else first
        detail = json.dumps({"kind": type(error).__name__, "message": str(error), "table_id": str(unknown)})
        yield _routed(frame, "quarantined", routes.name(first), first, frame["updates"], None, detail)
        return
    for table_id, updates in tables.items():
        if table_id in routes.refused:
            detail = json.dumps({"kind": "SchemaError", "message": routes.refused[table_id], "table_id": str(table_id)})
            yield _routed(frame, "quarantined", routes.name(table_id), table_id, updates, None, detail)
            continue
        buckets = routes.buckets.get(table_id)
        kind = "not_ours" if buckets is None else "update"
        bucket = None if buckets is None else key_bucket(frame["key"], buckets)
        found = _routed(frame, kind, routes.name(table_id), table_id, updates, bucket, None)
        yield found if kind != "update" else found | {"digest": _digest(frame["body"], routes.versions[frame["segment"]])}


def _tables_of(frame: dict[str, Any], routes: Routes) -> dict[UUID, int]:
    """Table ids of the frame's updates, with how many each has. Only a mutation of several updates has to be
    parsed for it.

    One of the schema is parsed too: if nothing could be learnt from it, that has to show."""
    first = UUID(bytes=frame["table_id"])
    if frame["updates"] == 1 and first not in SCHEMA_TABLES:
        if first not in routes.schema.tables:
            raise UnknownTable("no schema is known for this table id", operation="route a frame", obj=str(first), table_id=str(first))
        return {first: 1}
    tables: dict[UUID, int] = {}
    for update in decode_mutation(frame["body"], routes.schema, version=routes.versions[frame["segment"]]).updates:
        tables[update.table_id] = tables.get(update.table_id, 0) + 1
    return tables


def _digest(body: bytes, version: int) -> bytes:
    """128 bits of a cryptographic hash: nobody can make two mutations look like one, nor one of version 9 like one
    of another."""
    return hashlib.blake2b(body, digest_size=16, person=b"epochs" if version >= 9 else b"").digest()


def _routed(
    frame: dict[str, Any], kind: str, table: str, table_id: UUID, updates: int, bucket: int | None, detail: str | None
) -> dict[str, Any]:
    keep_bytes = kind != "not_ours"
    return {
        "kind": kind,
        "table": table,
        "table_id": table_id.bytes,
        "bucket": bucket,
        "key": frame["key"] if keep_bytes else None,
        "digest": None,
        "segment": frame["segment"],
        "position": frame["position"],
        "updates": updates,
        "body": frame["body"] if keep_bytes else None,
        "detail": detail,
    }
