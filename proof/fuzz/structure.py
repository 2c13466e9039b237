"""Random updates and random changes to real ones: the encoder turns them into grammatical but meaningless
bodies.

Values are chosen where decoders fail: at the limits of 32 and 64 bits, at the base values, at 2038 and 2106,
empty, null, one byte too long. The encoder rejects what bytes cannot express; callers skip those. The caller
provides the random generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from writetime.cassandra.commitlog.mutation import INVALID_DELETION_TIME, ColumnShape, decode_placed, table_shape
from writetime.cassandra.model import (
    EXPIRED_LIVENESS_TTL,
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.types.vint import write_unsigned

_TIMESTAMPS = (0, 1, -1, 2**63 - 1, NO_TIMESTAMP, NO_TIMESTAMP + 1, 1_442_880_000_000_000, 1_442_879_999_999_999)
_TIMES = (0, 1, 2**31 - 1, 2**31, INVALID_DELETION_TIME, NO_DELETION_TIME, 1_442_880_000, 1_442_879_999)
_FLAGS = (0, 0, 0, 1, 0xFF)
_EPOCHS = (0, 1, 127, 128, 2**32, 2**48, 2**63 - 1, -1, -(2**63))
_TTLS = (0, 1, 86_400, 630_720_000, EXPIRED_LIVENESS_TTL, 2**31 - 2)


def random_mutation(rng: Random, tables: Sequence[Any], schema: Schema) -> Mutation:
    """One to three updates of the tables, with one key. The encoder may reject it."""
    key = rng.randbytes(rng.choice((0, 1, 4, 16)))
    chosen = [rng.choice(tables) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return Mutation(tuple(_update(rng, table, key) for table in chosen), rng.choice(_FLAGS))


def changed(rng: Random, mutation: Mutation) -> Mutation:
    """The mutation with one to four random changes. The encoder may reject it."""
    updates = list(mutation.updates)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(updates))
        updates[at] = rng.choice(_CHANGES)(rng, updates[at])
    if rng.random() < 0.1:
        updates.append(rng.choice(updates))
    if mutation.flags is None:
        return Mutation(tuple(updates))
    at = rng.randrange(len(updates))
    updates[at] = replace(updates[at], epoch=epoch(rng))
    return Mutation(tuple(updates), rng.choice(_FLAGS))


def with_epochs(body: bytes, schema: Schema, flags: int, epoch_of: Callable[[UUID], int]) -> bytes:
    """The bytes of a mutation of an earlier version as version 9 has them: with flags, and the epoch of each
    update's table, and all else as it was. Raises what `decode_placed` raises."""
    placed = decode_placed(body, schema)
    parts = [bytes((flags,)), body[: placed[0].start]]
    for each in placed:
        after_id = each.start + 16
        parts += [body[each.start : after_id], write_unsigned(epoch_of(each.update.table_id)), body[after_id : each.end]]
    return b"".join(parts)


def with_any_epochs(rng: Random, body: bytes, schema: Schema) -> bytes:
    """The same with random flags and epochs."""
    return with_epochs(body, schema, rng.choice(_FLAGS), lambda _: epoch(rng))


# --- from nothing


def epoch(rng: Random) -> int:
    return rng.choice(_EPOCHS) if rng.random() < 0.3 else rng.randrange(300)


def timestamp(rng: Random) -> int:
    return rng.choice(_TIMESTAMPS) if rng.random() < 0.3 else 1_700_000_000_000_000 + rng.randrange(1000)


def local_time(rng: Random) -> int:
    return rng.choice(_TIMES) if rng.random() < 0.3 else 1_700_000_000 + rng.randrange(1000)


def deletion(rng: Random) -> DeletionTime:
    return DeletionTime(timestamp(rng), local_time(rng))


def liveness(rng: Random) -> Liveness:
    if rng.random() < 0.6:
        return Liveness(timestamp(rng))
    return Liveness(timestamp(rng), rng.choice(_TTLS), local_time(rng))


def _maybe(rng: Random, chance: float, make: Callable[[Random], Any]) -> Any:
    return make(rng) if rng.random() < chance else None


def _bytes(rng: Random, fixed_length: int | None) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 2, 8, 40)) if fixed_length is None else fixed_length)


def _update(rng: Random, table: Table, key: bytes) -> PartitionUpdate:
    shape = table_shape(table)
    static = [column for (is_static, _), column in shape.columns.items() if is_static]
    regular = [column for (is_static, _), column in shape.columns.items() if not is_static]
    rows = tuple(_row(rng, _clustering(rng, shape.clustering), regular) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    tombstones = tuple(_tombstone(rng, shape.clustering) for _ in range(rng.choice((0, 0, 0, 1, 2)))) if shape.clustering else ()
    static_row = _row(rng, None, static) if static and rng.random() < 0.3 else None
    return PartitionUpdate(table.id, key, _maybe(rng, 0.1, deletion), static_row, rows, tombstones, epoch(rng))


def _clustering(rng: Random, lengths: Sequence[int | None]) -> tuple[bytes | None, ...]:
    return tuple(rng.choice((None, b"")) if rng.random() < 0.1 else _bytes(rng, length) for length in lengths)


def _row(rng: Random, clustering: tuple[bytes | None, ...] | None, columns: Sequence[ColumnShape]) -> Row:
    present = [column for column in columns if rng.random() < rng.choice((0.2, 0.9))]
    cells = tuple(cell for column in present for cell in _cells(rng, column))
    whole = {column.name: deletion(rng) for column in present if column.complex and rng.random() < 0.3}
    return Row(clustering, _maybe(rng, 0.6, liveness), _maybe(rng, 0.15, deletion), False, cells, whole)


def _cells(rng: Random, column: ColumnShape) -> list[Cell]:
    if not column.complex:
        return [_cell(rng, column.name, column.fixed_length, None)]
    return [_cell(rng, column.name, None, rng.randbytes(rng.choice((0, 2, 4, 16)))) for _ in range(rng.choice((0, 1, 3)))]


def _cell(rng: Random, name: str, fixed_length: int | None, path: bytes | None) -> Cell:
    kind = rng.random()
    if kind < 0.2:
        return Cell(name, timestamp(rng), b"", path, 0, local_time(rng))
    value = _bytes(rng, fixed_length)
    if kind < 0.4:
        return Cell(name, timestamp(rng), value, path, rng.choice(_TTLS), local_time(rng))
    return Cell(name, timestamp(rng), value, path)


def _tombstone(rng: Random, lengths: Sequence[int | None]) -> RangeTombstone:
    start, end = (_clustering(rng, lengths[: rng.randint(0, min(2, len(lengths)))]) for _ in range(2))
    return RangeTombstone(Bound(start, rng.random() < 0.5), Bound(end, rng.random() < 0.5), deletion(rng))


# --- from something


def _change_key(rng: Random, update: PartitionUpdate) -> PartitionUpdate:
    return replace(update, key=rng.randbytes(rng.choice((0, 1, 16, 200))))


def _change_deletion(rng: Random, update: PartitionUpdate) -> PartitionUpdate:
    return replace(update, deletion=_maybe(rng, 0.7, deletion))


def _change_row(rng: Random, update: PartitionUpdate) -> PartitionUpdate:
    rows = list(update.rows)
    if not rows:
        return replace(update, rows=() if update.static_row is None else (replace(update.static_row, clustering=(b"",)),))
    at = rng.randrange(len(rows))
    row = rows[at]
    pick = rng.randrange(6)
    if pick == 0:
        rows[at] = replace(row, liveness=_maybe(rng, 0.7, liveness))
    elif pick == 1:
        rows[at] = replace(row, deletion=_maybe(rng, 0.7, deletion), shadowable=rng.random() < 0.2)
    elif pick == 2:
        values = tuple(rng.choice((None, b"", value, (value or b"") + b"\0")) for value in row.clustering or ())
        rows[at] = replace(row, clustering=values)
    elif pick == 3:
        rows[at] = replace(row, complex_deletions={cell.column: deletion(rng) for cell in row.cells if cell.path is not None})
    elif pick == 4:
        del rows[at]
    else:
        rows.insert(at, row)
    return replace(update, rows=tuple(rows))


def _change_cells(rng: Random, update: PartitionUpdate) -> PartitionUpdate:
    static = update.static_row is not None and (not update.rows or rng.random() < 0.3)
    row = update.static_row if static else rng.choice(update.rows) if update.rows else None
    if row is None or not row.cells:
        return update
    cells = [_changed_cell(rng, cell) if rng.random() < 0.4 else cell for cell in row.cells if rng.random() < 0.9]
    made = replace(row, cells=tuple(cells))
    if static:
        return replace(update, static_row=made)
    return replace(update, rows=tuple(made if known is row else known for known in update.rows))


def _changed_cell(rng: Random, cell: Cell) -> Cell:
    pick = rng.randrange(5)
    if pick == 0:
        return replace(cell, timestamp=timestamp(rng))
    if pick == 1:
        return replace(cell, ttl=rng.choice(_TTLS), local_deletion_time=local_time(rng))
    if pick == 2:
        return replace(cell, value=b"", ttl=0, local_deletion_time=local_time(rng))
    if pick == 3:
        return replace(cell, value=rng.choice((b"", rng.randbytes(len(cell.value)), cell.value + b"\0")))
    return cell if cell.path is None else replace(cell, path=rng.choice((b"", cell.path + b"\0", rng.randbytes(16))))


def _change_tombstones(rng: Random, update: PartitionUpdate) -> PartitionUpdate:
    lengths: Sequence[int | None] = [None if value is None else len(value) for row in update.rows[:1] for value in row.clustering or ()]
    return replace(update, range_tombstones=tuple(_tombstone(rng, lengths) for _ in range(rng.choice((0, 1, 2)))) if lengths else ())


_CHANGES = (_change_key, _change_deletion, _change_row, _change_row, _change_cells, _change_cells, _change_cells, _change_tombstones)
