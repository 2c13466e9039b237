"""The result of SELECT: rows and cells that are live at a given second.

The state keeps dead cells so that late writes lose; readers must not see them. A cell is live unless it is a
tombstone or has expired. A row is visible if its liveness or any of its cells is live. Static cells are part
of every row of their partition; if no clustered row is visible, they form a row without clustering. `now` is
an argument, in whole seconds, as a coordinator uses it. Does not know types.

Not modelled: in a materialized view whose key has a regular column of the base table, a row needs live
liveness info.

Sources: Cassandra 4.0-5.0, db/rows/AbstractCell.isLive, db/rows/BTreeRow.hasLiveData,
cql3/statements/SelectStatement.processPartition.
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
    """One row of a result: its live cells, regular and static, as in `Row`. `clustering` is None for static
    content without a clustered row.

    Two rows are equal if SELECT with WRITETIME and TTL returns the same for them, so liveness is not
    included.
    """

    clustering: tuple[bytes | None, ...] | None
    cells: tuple[Cell, ...]
    static_cells: tuple[Cell, ...] = ()


class ShownCell(NamedTuple):
    """A live cell: value, path of the element (None: a simple column), writetime (µs), and expiry (s, None:
    never)."""

    value: bytes
    path: bytes | None
    timestamp: int
    expires_at: int | None

    @classmethod
    def of(cls, cell: Cell) -> Self:
        return cls(cell.value, cell.path, cell.timestamp, cell.local_deletion_time if cell.ttl != NO_TTL else None)


ByColumn = Mapping[str, Sequence[ShownCell]]


def by_column(cells: Iterable[Cell]) -> ByColumn:
    """Live cells by column name."""
    columns: dict[str, list[ShownCell]] = {}
    for cell in cells:
        columns.setdefault(cell.column, []).append(ShownCell.of(cell))
    return columns


def is_live_cell(cell: Cell, now: int) -> bool:
    """Neither a tombstone nor expired at `now` (s)."""
    return cell.local_deletion_time == NO_DELETION_TIME or (cell.ttl != NO_TTL and now < cell.local_deletion_time)


def is_live(liveness: Liveness | None, now: int) -> bool:
    """Present, not an expired view marker, and not expired at `now` (s)."""
    if liveness is None or liveness.ttl == EXPIRED_LIVENESS_TTL:
        return False
    return liveness.ttl == NO_TTL or now < liveness.expires_at


def live_cells(row: Row | None, *, now: int, dropped: Mapping[str, int] = _NO_DROPS) -> tuple[Cell, ...]:
    """The row's cells that are live at `now` (s). `dropped` maps a dropped column to the timestamp (µs) up to
    which its cells are discarded."""
    if row is None:
        return ()
    # Readers do not see whether a cell won a tie.
    cells = tuple(replace(cell, tied=False) if cell.tied else cell for cell in row.cells if is_live_cell(cell, now))
    return tuple(cell for cell in cells if not _is_dropped(cell, dropped)) if dropped else cells


def visible(row: Row, *, now: int, dropped: Mapping[str, int] = _NO_DROPS) -> VisibleRow | None:
    """The row as SELECT returns it at `now` (s), without static cells; None if it is not visible."""
    cells = live_cells(row, now=now, dropped=dropped)
    return VisibleRow(row.clustering, cells) if cells or is_live(row.liveness, now) else None


def with_statics(row: VisibleRow | None, static_cells: tuple[Cell, ...]) -> VisibleRow | None:
    """The row with its partition's live static cells."""
    return replace(row, static_cells=static_cells) if row is not None and static_cells else row


def statics_alone(static_cells: tuple[Cell, ...]) -> VisibleRow | None:
    """The visible row of a partition without live clustered rows: its static content, if any."""
    return VisibleRow(None, (), static_cells) if static_cells else None


def visible_rows(static_row: Row | None, rows: Iterable[Row], *, now: int, dropped: Mapping[str, int] = _NO_DROPS) -> list[VisibleRow]:
    """Everything that SELECT returns for a partition, given all its rows in order."""
    static_cells = live_cells(static_row, now=now, dropped=dropped)
    bare = (visible(row, now=now, dropped=dropped) for row in rows)
    shown = [full for row in bare if (full := with_statics(row, static_cells)) is not None]
    alone = statics_alone(static_cells)
    return shown if shown or alone is None else [alone]


def _is_dropped(cell: Cell, dropped: Mapping[str, int]) -> bool:
    dropped_at = dropped.get(cell.column)
    return dropped_at is not None and cell.timestamp <= dropped_at
