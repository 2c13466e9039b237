"""What could not be used and was kept: a list of it, and a look at one piece that shows no secrets.

A segment holds every keyspace of its node, password hashes included, so a look is only at what can be told to be of captured tables, and
of nothing else. Even then values stay hidden unless they are asked for, and what the pipeline's `columns` keep inside stays hidden always:
of a table that has such a rule no raw bytes are shown, and of one whose rows are filtered no values. Bytes between frames are never shown.
What Cassandra itself would mask for some of its users (5.0) is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, Protocol
from uuid import UUID

from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.mutation_text import Blocks
from writetime.cassandra.commitlog.segment import Frame, peek
from writetime.cassandra.model import Cell, Mutation, PartitionUpdate
from writetime.cassandra.model import Row as CqlRow
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.literal import micros_text
from writetime.errors import DecodeError, ObjectNotFound, SchemaError
from writetime.events.masking import Hiding, Rules, TableRules, with_dropped
from writetime.pipeline.batch_history import Batches
from writetime.storage import layout
from writetime.storage.concurrency import at_once

PAGE: Final = 50
_SHOWN: Final = 4096
"""Bytes that a look shows in hex, and the lines that it shows decoded."""
_LINES: Final = 400
_FRAME_HEAD, _FRAME_TAIL = 8, 4
"""Bytes of a frame before its body (length, CRC) and behind it (CRC)."""
_RANGES: Final = frozenset({"corrupt_section", "torn_tail"})


@dataclass(frozen=True, slots=True)
class Kept:
    """A piece in quarantine. `name` is the object with its bytes; `position` and `size` in bytes of the segment. `settled_in`: the batch
    that could use it, after `batch` could not; `retried_at`: when a person has last asked for that. Of an event
    that could not be sent there is no node: its `topic`, the batch that it is of, and as `position` its number there."""

    name: str
    node: layout.NodeName | None
    segment: str
    position: int
    size: int
    kind: str
    message: str
    batch: int | None
    object: str
    settled_in: int | None = None
    retried_at: datetime | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What may be shown of a piece. `hidden` says why that is not more, "" = it is all there is. `hex`: rows of 16 bytes."""

    table: str = ""
    hidden: str = ""
    lines: tuple[str, ...] = ()
    hex: tuple[str, ...] = ()


def quarantined(batches: Batches, *, cursor: str = "", size: int = PAGE) -> tuple[list[Kept], str]:
    """Pieces in the order of their names (node, segment, position), and the cursor of the next page, "" = there is none."""
    start = cursor if cursor.startswith(layout.quarantine_prefix(batches.cluster)) else ""
    listed = batches.store.list(layout.quarantine_prefix(batches.cluster), start_after=start)
    notes = [info.name for info in islice((info for info in listed if info.name.endswith(".json")), size + 1)]
    voided = batches.voided() if notes else frozenset()
    kept = [piece for piece in at_once(lambda name: _read(batches, name, voided), notes[:size]) if piece is not None]
    return kept, notes[size - 1] if len(notes) > size else ""


def piece(batches: Batches, name: str) -> Kept | None:
    """The piece whose bytes are that object; None if there is none, or the name is none of a piece."""
    if not name.startswith(layout.quarantine_prefix(batches.cluster)) or not name.endswith(".bin"):
        return None
    return _read(batches, name.removesuffix(".bin") + ".json", batches.voided())


class Known(Protocol):
    """What is known of the schema, as `SchemaLearner` tells it."""

    def schema(self) -> Schema: ...

    @property
    def cdc_ever(self) -> Set[UUID]: ...


def look(batches: Batches, kept: Kept, learner: Known, rules: Rules, *, values: bool) -> Look:
    """A look at the bytes of a piece, given what is known of the schema. `values`: show hex, keys and cells, not only what there is; not
    those that `rules` hide."""
    try:
        data = batches.store.read(kept.name, end=16 << 20)
    except ObjectNotFound:
        return Look(hidden="its bytes are gone")
    if kept.topic:
        return look_at_event(data, values=values)
    if (frames := layout.quarantined_frames(kept.name)) > 1:
        return Look(hidden=f"{frames} frames of one table, kept together: a look shows single frames only")
    body = body_of(kept.kind, data)
    if body is None:
        return Look(hidden="it is a range of the log and no single frame: it may hold any keyspace")
    return look_at(body, learner, rules, version=_version(kept), values=values)


def look_at_event(data: bytes, *, values: bool) -> Look:
    """A look at an event's value, from which the pipeline's rules have left out what they hide: it was to be published so."""
    if not values:
        return Look(hidden=_ASK)
    try:
        text = json.dumps(json.loads(data), indent=1, ensure_ascii=False)
    except ValueError:
        return Look(hex=hex_lines(data))
    return Look(lines=tuple(islice(text.splitlines(), _LINES)))


def look_at(body: bytes, learner: Known, rules: Rules, *, version: int, values: bool) -> Look:
    """A look at the bytes of a mutation."""
    schema, captured = learner.schema(), learner.cdc_ever
    try:
        count, table_id, _ = peek(body)
    except DecodeError:
        return Look(hidden="its table cannot be told: it may be of any keyspace")
    table = schema.tables.get(table_id)
    if table is None:
        return Look(table=str(table_id), hidden="no schema is known for its table, so nobody can say whether that is captured")
    if table_id not in captured:
        return Look(hidden="it is of a table that is not captured")
    try:
        mutation = decode_mutation(body, schema, version=version)
    except (DecodeError, SchemaError):
        if count != 1:
            return Look(table=table.label, hidden="it cannot be decoded, and holds updates of other tables, which need not be captured")
        why = _ASK if not values else _RULED if _ruled(rules, table, schema) else ""
        return Look(table.label, why, ("It cannot be decoded.",), () if why else hex_lines(body))
    if any(update.table_id not in captured for update in mutation.updates):
        return Look(table=table.label, hidden="it holds updates of tables that are not captured, too")
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
_RULED: Final = "the pipeline keeps columns or rows of this table inside"


def _ruled(rules: Rules, table: Table, schema: Schema) -> TableRules:
    """The table's rules, those about columns that are no more included."""
    return rules.of(with_dropped(table), schema.types)


def _without_dropped(mutation: Mutation, tables: Mapping[UUID, Table]) -> Mutation:
    """The mutation without cells of columns that are no more."""

    def row(of: CqlRow, table: Table) -> CqlRow:
        return replace(of, cells=tuple(cell for cell in of.cells if cell.column in table.columns))

    def update(of: PartitionUpdate) -> PartitionUpdate:
        table = tables[of.table_id]
        static = None if of.static_row is None else row(of.static_row, table)
        return replace(of, static_row=static, rows=tuple(row(each, table) for each in of.rows))

    return replace(mutation, updates=tuple(map(update, mutation.updates)))


def _read(batches: Batches, name: str, voided: Set[int]) -> Kept | None:
    """The piece that the note of that name tells of. None if the note is gone or no note: somebody tidies up.
    What a batch had settled that was `voided` waits as before."""
    pieces = name.split("/")
    if name.startswith(layout.unpublishable_prefix(batches.cluster)):
        return _read_event(batches, name)
    if len(pieces) != 6:
        return None
    try:
        about: dict[str, Any] = json.loads(batches.store.read(name))
        position, size = (int(text) for text in pieces[5].removesuffix(".json").split("-")[:2])
    except (ObjectNotFound, ValueError):
        return None
    batch = about.get("batch")
    return Kept(
        name=name.removesuffix(".json") + ".bin",
        node=layout.NodeName(batches.cluster, layout.unpart(pieces[2]), layout.unpart(pieces[3])),
        segment=pieces[4],
        position=position,
        size=size,
        kind=str(about.get("kind", "")),
        message=str(about.get("message", "")),
        batch=batch if isinstance(batch, int) else None,
        object=str(about.get("object", "")),
        settled_in=None if (settled_in := about.get("settled_in")) in voided else settled_in,
        retried_at=_moment(about.get("retried_at")),
    )


def _read_event(batches: Batches, name: str) -> Kept | None:
    """An event that could not be sent, by the note on it."""
    try:
        about: dict[str, Any] = json.loads(batches.store.read(name))
        batch, ordinal = (int(number) for number in about["sequence"])
    except (ObjectNotFound, ValueError, KeyError, TypeError):
        return None
    return Kept(
        name=name.removesuffix(".json") + ".bin",
        node=None,
        segment="",
        position=ordinal,
        size=int(about.get("size") or 0),
        kind=str(about.get("kind", "")),
        message=str(about.get("message", "")),
        batch=batch,
        object="",
        topic=str(about.get("topic", "")),
    )


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def body_of(kind: str, data: bytes) -> bytes | None:
    """The mutation in a piece of that kind, if it is one."""
    if kind == "corrupt_frame":
        return data[_FRAME_HEAD : len(data) - _FRAME_TAIL]
    return None if kind in _RANGES or not kind[:1].isupper() or kind.endswith("Segment") else data


def _version(kept: Kept) -> int:
    """The descriptor version of a piece's segment."""
    return layout.SegmentName.parse(f"{kept.segment}.log").version


def hex_lines(body: bytes) -> tuple[str, ...]:
    """Bytes as rows of 16 for people; of many, the first."""
    rows = []
    for start in range(0, min(len(body), _SHOWN), 16):
        some = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        rows.append(f"{start:08x}  {some.hex(' '):<47}  {text}")
    if len(body) > _SHOWN:
        rows.append(f"… {len(body) - _SHOWN} bytes more")
    return tuple(rows)


# --- what there is, without what stands in it


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
