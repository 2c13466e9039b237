"""What SELECT would answer: rows and cells that are alive at a given second.

State remembers what is dead so that late writes lose; readers must not see it. A cell is alive unless it is a tombstone or has expired;
a row shows if its liveness or any of its cells is alive; static cells stand on every row of their partition, and alone, on a row without
clustering, when no clustered row shows. `now` is always given, in whole seconds, as a coordinator would take it. No types here.

Not modelled: materialized views whose key holds a regular column of the base need a live liveness to show.

Sources: Cassandra 4.0-5.0, db/rows/AbstractCell.isLive, db/rows/BTreeRow.hasLiveData, cql3/statements/SelectStatement.processPartition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from writetime.cassandra.model import (
    EXPIRED_LIVENESS_TTL,
    NO_DELETION_TIME,
    NO_TTL,
    Cell,
    Liveness,
    Row,
)

_NO_DROPS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class VisibleRow:
    """One row of an answer: its live cells, regular and static, as in `Row`. `clustering` is None for static content that stands alone.

    Two are equal when SELECT with WRITETIME and TTL cannot tell them apart, so the row's liveness is not part of it.
    """

    clustering: tuple[bytes | None, ...] | None
    cells: tuple[Cell, ...]
    static_cells: tuple[Cell, ...] = ()


class ShownCell(NamedTuple):
    """What there is to tell of a live cell: its value, the key of an element (None: a simple column), its writetime (µs), and the second at
    which it expires (None: never)."""

    value: bytes
    path: bytes | None
    timestamp: int
    expires_at: int | None

    @classmethod
    def of(cls, cell: Cell) -> Self:
        return cls(cell.value, cell.path, cell.timestamp, cell.local_deletion_time if cell.ttl != NO_TTL else None)


ByColumn = Mapping[str, Sequence[ShownCell]]


def by_column(cells: Iterable[Cell]) -> ByColumn:
    """Live cells by the name of their column."""
    columns: dict[str, list[ShownCell]] = {}
    for cell in cells:
        columns.setdefault(cell.column, []).append(ShownCell.of(cell))
    return columns


def is_live_cell(cell: Cell, now: int) -> bool:
    """Neither a tombstone nor expired at `now` (s)."""
    return cell.local_deletion_time == NO_DELETION_TIME or (cell.ttl != NO_TTL and now < cell.local_deletion_time)


def is_live(liveness: Liveness | None, now: int) -> bool:
    """There, not a view's expired mark, and not expired at `now` (s)."""
    if liveness is None or liveness.ttl == EXPIRED_LIVENESS_TTL:
        return False
    return liveness.ttl == NO_TTL or now < liveness.expires_at


def live_cells(row: Row | None, *, now: int, dropped: Mapping[str, int] = _NO_DROPS) -> tuple[Cell, ...]:
    """The row's cells that are alive at `now` (s). `dropped` maps a dropped column to the timestamp (µs) up to which its cells are gone."""
    if row is None:
        return ()
    # A reader cannot tell a cell that won a tie from another.
    cells = tuple(replace(cell, tied=False) if cell.tied else cell for cell in row.cells if is_live_cell(cell, now))
    return tuple(cell for cell in cells if not _is_dropped(cell, dropped)) if dropped else cells


def visible(row: Row, *, now: int, dropped: Mapping[str, int] = _NO_DROPS) -> VisibleRow | None:
    """The row as SELECT shows it at `now` (s), without its partition's static cells; None if it does not show."""
    cells = live_cells(row, now=now, dropped=dropped)
    return VisibleRow(row.clustering, cells) if cells or is_live(row.liveness, now) else None


def with_statics(row: VisibleRow | None, static_cells: tuple[Cell, ...]) -> VisibleRow | None:
    """The row with its partition's live static cells."""
    return replace(row, static_cells=static_cells) if row is not None and static_cells else row


def statics_alone(static_cells: tuple[Cell, ...]) -> VisibleRow | None:
    """What a partition shows that has no live clustered row: its static content, if any."""
    return VisibleRow(None, (), static_cells) if static_cells else None


def visible_rows(static_row: Row | None, rows: Iterable[Row], *, now: int, dropped: Mapping[str, int] = _NO_DROPS) -> list[VisibleRow]:
    """All that SELECT shows of a partition, given all its rows, in their order."""
    static_cells = live_cells(static_row, now=now, dropped=dropped)
    bare = (visible(row, now=now, dropped=dropped) for row in rows)
    shown = [full for row in bare if (full := with_statics(row, static_cells)) is not None]
    alone = statics_alone(static_cells)
    return shown if shown or alone is None else [alone]


def _is_dropped(cell: Cell, dropped: Mapping[str, int]) -> bool:
    dropped_at = dropped.get(cell.column)
    return dropped_at is not None and cell.timestamp <= dropped_at
