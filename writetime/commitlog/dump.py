"""Mutations as lines of JSON, for people and for comparing with Cassandra's own reader.

One line a frame, in log order, with raw bytes in hex: seg, pos (where the frame ends), size of the body, ks, cdc (whether one of its tables
ever had it), pk, updates. A frame that cannot be decoded gets a line with `error` instead of what it does. What stands in a column is not
looked at; types are needed only to tell counters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from writetime.commitlog.mutation import decode_mutation
from writetime.commitlog.segment import Frame, Scan, peek, scan
from writetime.errors import DecodeError
from writetime.model import Bound, Cell, DeletionTime, Liveness, Mutation, PartitionUpdate, RangeTombstone, Row
from writetime.schema.learn import SchemaLearner
from writetime.schema.model import Schema, Table
from writetime.schema.system import SCHEMA_TABLES

_START_KINDS = {True: "INCL_START_BOUND", False: "EXCL_START_BOUND"}
_END_KINDS = {True: "INCL_END_BOUND", False: "EXCL_END_BOUND"}


def dump_lines(segments: Sequence[tuple[str, bytes]], learner: SchemaLearner | None = None) -> Iterator[str]:
    """Lines of all good frames of the segments, given as (file name, content) in log order.

    The schema is what `learner` knows and what the segments themselves teach, all of it, before the first line is made. Raises SegmentError
    for a file that is no readable segment; damage inside is passed over (see `segment.scan`).
    """
    learner = learner or SchemaLearner()
    scans = [scan(content, name=name) for name, content in segments]
    for found in scans:
        learn(found, learner)
    schema, cdc_ever = learner.schema(), learner.cdc_ever
    for found in scans:
        for frame in found.frames:
            line = _line(found, frame, found.body(frame), schema)
            line["cdc"] = any(table.id in cdc_ever for table in line.pop("tables"))
            yield json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def learn(found: Scan, learner: SchemaLearner) -> None:
    """Hand every schema change in a segment to the learner."""
    schema = Schema(tables=dict(SCHEMA_TABLES))
    for frame in found.frames:
        body = found.body(frame)
        if peek(body)[1] in SCHEMA_TABLES:
            learner.apply(decode_mutation(body, schema, version=found.descriptor.version))


def _line(found: Scan, frame: Frame, body: bytes, schema: Schema) -> dict[str, Any]:
    line: dict[str, Any] = {"seg": found.descriptor.id, "pos": frame.position, "size": frame.body_length}
    try:
        mutation = decode_mutation(body, schema, version=found.descriptor.version)
    except DecodeError as error:
        return {**line, "tables": [], "cdc": False, "error": error.as_dict()}
    tables = [schema.tables[update.table_id] for update in mutation.updates]
    return {
        **line,
        "tables": tables,
        "ks": tables[0].keyspace,
        "cdc": False,
        "pk": mutation.updates[0].key.hex(),
        "updates": _updates(mutation, tables, schema),
    }


def _updates(mutation: Mutation, tables: Iterable[Table], schema: Schema) -> list[dict[str, Any]]:
    return [_update(update, table, schema) for update, table in zip(mutation.updates, tables, strict=True)]


def _update(update: PartitionUpdate, table: Table, schema: Schema) -> dict[str, Any]:
    out: dict[str, Any] = {"table": _table_name(table, schema), "id": str(table.id)}
    if update.deletion is not None:
        out["pdel"] = _deletion(update.deletion)
    if update.range_tombstones:
        out["rts"] = [_range(tombstone) for tombstone in update.range_tombstones]
    if update.static_row is not None and not update.static_row.is_empty:
        out["static"] = {"static": True, **_row(update.static_row, table)}
    out["rows"] = [{"ck": [_hex(value) for value in row.clustering or ()], **_row(row, table)} for row in update.rows]
    return out


def _table_name(table: Table, schema: Schema) -> str:
    """An older life of a table that lives again is told apart by its id."""
    replaced = table.dropped and schema.table(table.keyspace, table.name) is not None
    return f"{table.name}_OLD_{table.id.hex[:8]}" if replaced else table.name


def _row(row: Row, table: Table) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if row.liveness is not None:
        out["live"] = _liveness(row.liveness)
    if row.deletion is not None:
        out["del"] = _deletion(row.deletion)
    cells: list[dict[str, Any]] = []
    pending = dict(row.complex_deletions)
    for cell in row.cells:
        if cell.column in pending:
            cells.append(_complex_deletion(cell.column, pending.pop(cell.column)))
        cells.append(_cell(cell, table))
    out["cells"] = cells + [_complex_deletion(column, deletion) for column, deletion in pending.items()]
    return out


def _complex_deletion(column: str, deletion: DeletionTime) -> dict[str, Any]:
    return {"col": column, "complexDeletion": _deletion(deletion)}


def _liveness(liveness: Liveness) -> dict[str, int]:
    return {"ts": liveness.timestamp, **({"ttl": liveness.ttl, "ldt": liveness.expires_at} if liveness.ttl else {})}


def _cell(cell: Cell, table: Table) -> dict[str, Any]:
    out: dict[str, Any] = {"col": cell.column, "ts": cell.timestamp}
    if cell.path is not None:
        out["path"] = cell.path.hex()
    if cell.is_tombstone:
        out["tombstone"] = True
    if cell.is_expiring:
        out["ttl"] = cell.ttl
    if cell.is_expiring or cell.is_tombstone:
        out["ldt"] = cell.local_deletion_time
    column = table.columns.get(cell.column)
    if column is not None and column.type == "counter" and not cell.is_tombstone:
        out["counter"] = True
    out["value"] = cell.value.hex()
    return out


def _deletion(deletion: DeletionTime) -> dict[str, int]:
    return {"ts": deletion.marked_for_delete_at, "ldt": deletion.local_deletion_time}


def _range(tombstone: RangeTombstone) -> dict[str, Any]:
    start, end = _bound(tombstone.start, _START_KINDS), _bound(tombstone.end, _END_KINDS)
    return {**_deletion(tombstone.deletion), "start": start, "end": end}


def _bound(bound: Bound, kinds: dict[bool, str]) -> dict[str, Any]:
    return {"kind": kinds[bound.inclusive], "ck": [_hex(value) for value in bound.values]}


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
