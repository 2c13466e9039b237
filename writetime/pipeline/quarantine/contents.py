"""Show the contents of a quarantine record without revealing secrets.

A segment holds every keyspace of its node, including password hashes, so only data of captured tables is
shown. Values are shown on request only, and what the pipeline's `columns` hides is never shown: for a table
with such a rule no raw bytes, for a table with a row filter no values. Bytes between frames are never shown.
Cassandra 5.0's own data masking is not taken into account.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol
from uuid import UUID

from writetime.cassandra.commitlog.mutation import decode_mutation, read_head
from writetime.cassandra.commitlog.mutation_text import Blocks
from writetime.cassandra.commitlog.segment import Frame
from writetime.cassandra.model import Cell, Mutation, PartitionUpdate
from writetime.cassandra.model import Row as CqlRow
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.literal import micros_text
from writetime.errors import DecodeError, ObjectNotFound, SchemaError
from writetime.events.masking import Hiding, Rules, TableRules, with_dropped
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.record import QuarantineRecord

_SHOWN: Final = 4096
"""Maximum bytes shown in hex, and lines shown decoded."""
_LINES: Final = 400
_FRAME_HEAD, _FRAME_TAIL = 8, 4
"""Bytes of a frame before its body (length, CRC) and after it (CRC)."""


@dataclass(frozen=True, slots=True)
class Look:
    """What may be shown of a record. `hidden`: why the rest is hidden; empty if everything is shown. `hex`:
    rows of 16 bytes."""

    table: str = ""
    hidden: str = ""
    lines: tuple[str, ...] = ()
    hex: tuple[str, ...] = ()


class Known(Protocol):
    """The known schema, as in `SchemaLearner`."""

    def schema(self) -> Schema: ...

    @property
    def cdc_ever(self) -> Set[UUID]: ...


def look(batches: Batches, record: QuarantineRecord, learner: Known, rules: Rules, *, values: bool) -> Look:
    """The visible content of a record. `values`: show hex, keys and cells as well, except those that `rules`
    hide."""
    try:
        data = batches.store.read(record.name, end=16 << 20)
    except ObjectNotFound:
        return Look(hidden="its bytes do not exist any more")
    if record.topic:
        return look_at_event(data, values=values)
    if record.frames > 1:
        return Look(hidden=f"{record.frames} frames of one table, kept as one record: only single frames are shown")
    body = body_of(record, data)
    if body is None:
        return Look(hidden="it is a damaged range, not a single frame: it may hold any keyspace")
    return look_at(body, learner, rules, version=record.version, values=values)


def look_at_event(data: bytes, *, values: bool) -> Look:
    """The visible content of an event's value, in which hidden columns are left out already."""
    if not values:
        return Look(hidden=_ASK)
    try:
        text = json.dumps(json.loads(data), indent=1, ensure_ascii=False)
    except ValueError:
        return Look(hex=hex_lines(data))
    return Look(lines=tuple(islice(text.splitlines(), _LINES)))


def look_at(body: bytes, learner: Known, rules: Rules, *, version: int, values: bool) -> Look:
    """The visible content of a mutation."""
    schema, captured = learner.schema(), learner.cdc_ever
    try:
        count, table_id, *_ = read_head(body, version=version)
    except DecodeError:
        return Look(hidden="its table is unknown: it may belong to any keyspace")
    table = schema.tables.get(table_id)
    if table is None:
        return Look(table=str(table_id), hidden="no schema is known for its table, so it may not be captured")
    if table_id not in captured:
        return Look(hidden="its table is not captured")
    try:
        mutation = decode_mutation(body, schema, version=version)
    except (DecodeError, SchemaError):
        if count != 1:
            return Look(table=table.label, hidden="it cannot be decoded, and holds updates of other tables, which may not be captured")
        why = _ASK if not values else _RULED if _ruled(rules, table, schema) else ""
        return Look(table.label, why, ("It cannot be decoded.",), () if why else hex_lines(body))
    if any(update.table_id not in captured for update in mutation.updates):
        return Look(table=table.label, hidden="it also holds updates of tables that are not captured")
    shapes = tuple(islice(_shapes(mutation, schema.tables), _LINES))
    if not values:
        return Look(table.label, _ASK, shapes)
    ruled = [found for update in mutation.updates if (found := _ruled(rules, schema.tables[update.table_id], schema))]
    visible = Hiding(rules, schema).mutation(_without_dropped(mutation, schema.tables) if ruled else mutation)
    if visible is None or any(found.filter for found in ruled):
        return Look(table.label, _RULED, shapes)
    blocks = Blocks(schema, captured).lines("", Frame(0, 0, 0, len(body)), visible)
    lines = tuple("".join(text for text, _ in line) for line in islice(blocks, 1, _LINES))
    return Look(table.label, _RULED, lines) if ruled else Look(table.label, "", lines, hex_lines(body))


_ASK: Final = "values are hidden here"
_RULED: Final = "the configuration hides columns or rows of this table"


def _ruled(rules: Rules, table: Table, schema: Schema) -> TableRules:
    """The table's rules, including those on dropped columns."""
    return rules.of(with_dropped(table), schema.types)


def _without_dropped(mutation: Mutation, tables: Mapping[UUID, Table]) -> Mutation:
    """The mutation without cells of dropped columns."""

    def row(of: CqlRow, table: Table) -> CqlRow:
        return replace(of, cells=tuple(cell for cell in of.cells if cell.column in table.columns))

    def update(of: PartitionUpdate) -> PartitionUpdate:
        table = tables[of.table_id]
        static = None if of.static_row is None else row(of.static_row, table)
        return replace(of, static_row=static, rows=tuple(row(each, table) for each in of.rows))

    return replace(mutation, updates=tuple(map(update, mutation.updates)))


def body_of(record: QuarantineRecord, data: bytes) -> bytes | None:
    """The mutation in a record of one frame; None if its bytes are something else."""
    if record.kind is QuarantineKind.CORRUPT_FRAME:
        return data[_FRAME_HEAD : len(data) - _FRAME_TAIL]
    return data if record.kind.is_mutation else None


def hex_lines(body: bytes) -> tuple[str, ...]:
    """The first bytes in hex, in rows of 16."""
    rows = []
    for start in range(0, min(len(body), _SHOWN), 16):
        some = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        rows.append(f"{start:08x}  {some.hex(' '):<47}  {text}")
    if len(body) > _SHOWN:
        rows.append(f"… {len(body) - _SHOWN} bytes more")
    return tuple(rows)


# --- structure without values


def _shapes(mutation: Mutation, tables: Mapping[UUID, Table]) -> Iterator[str]:
    for update in mutation.updates:
        yield f"{tables[update.table_id].label}  key of {len(update.key)} bytes"
        yield from _update(update)


def _update(update: PartitionUpdate) -> Iterator[str]:
    if update.deletion is not None:
        yield f"  partition deleted @ {micros_text(update.deletion.marked_for_delete_at)}"
    for tombstone in update.range_tombstones:
        yield f"  range of rows deleted @ {micros_text(tombstone.deletion.marked_for_delete_at)}"
    if update.static_row is not None and not update.static_row.is_empty:
        yield "  static row"
        yield from map(_cell, update.static_row.cells)
    for row in update.rows:
        yield _row(row)
        yield from map(_cell, row.cells)


def _row(row: CqlRow) -> str:
    says = f"  row, clustering of {sum(len(value or b'') for value in row.clustering or ())} bytes"
    if row.deletion is not None:
        says += f", deleted @ {micros_text(row.deletion.marked_for_delete_at)}"
    return says if row.liveness is None else f"{says}, written @ {micros_text(row.liveness.timestamp)}"


def _cell(cell: Cell) -> str:
    what = "deleted" if cell.is_tombstone else f"{len(cell.value)} bytes"
    return f"    {cell.column}{'' if cell.path is None else '[…]'}  {what} @ {micros_text(cell.timestamp)}"
