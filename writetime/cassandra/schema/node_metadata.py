"""Node metadata from a node's own log: truncations, tokens, host id, addresses, peers (Cassandra 3.0-5.0,
SystemKeyspace).

`system.local` and `system.peers*` are ordinary tables, so their rows are merged by last write wins. A
truncation is not a mutation of its table: it adds an entry to the map `truncated_at` in `system.local`, from
table id to

    i64   segment id      \\ the node's log position; everything it holds of the table up to there was deleted
    i32   position        /
    i64   time in ms

Entries are kept when later ones replace them, because each truncation took effect, and when the node removes
them after replay. Does not know the commit log, only the mutations it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from writetime.cassandra.merge.reconcile import merge_deletions, merge_rows
from writetime.cassandra.model import DeletionTime, Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Table
from writetime.cassandra.schema.system_tables import LOCAL, LOCAL_TABLES, system_table_id
from writetime.cassandra.types.types import assemble, parse_type
from writetime.errors import DecodeError

PEERS: Final = (LOCAL_TABLES[system_table_id("system", "peers")], LOCAL_TABLES[system_table_id("system", "peers_v2")])
_TABLES: Final[Mapping[UUID, Table]] = {table.id: table for table in (LOCAL, *PEERS)}
_TRUNCATED_AT: Final = "truncated_at"
_RECORD: Final = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True, order=True)
class Truncation:
    """A truncation of a table at a position of this node's log. `at` is in ms, `timestamp` is the entry's
    writetime in µs."""

    at: int
    table_id: UUID
    segment: int
    position: int
    timestamp: int


class LocalFacts:
    """Merges mutations of `system.local` and `system.peers*`. The order of `apply` does not matter."""

    def __init__(self) -> None:
        self._rows: dict[tuple[UUID, bytes, tuple[bytes | None, ...]], Row] = {}
        self._deletions: dict[tuple[UUID, bytes], DeletionTime | None] = {}
        self._truncations: set[Truncation] = set()

    def apply(self, mutation: Mutation) -> None:
        """Add a mutation of any table."""
        for update in mutation.updates:
            if update.table_id in _TABLES:
                self._apply(update)

    @property
    def node(self) -> dict[str, Any]:
        """The non-null columns of `system.local` as Python values (see writetime.cassandra.types.types),
        without `truncated_at`."""
        rows = [row for (table_id, _, _), row in self._rows.items() if table_id == LOCAL.id]
        return {} if not rows else _values(LOCAL, rows[0])

    @property
    def peers(self) -> list[dict[str, Any]]:
        """The same for peers, one entry for each address, from `peers_v2` if available."""
        found: dict[str, dict[str, Any]] = {}
        for table in PEERS:
            for (table_id, key, _), row in sorted(self._rows.items(), key=lambda item: item[0][:2]):
                values = _values(table, row) if table_id == table.id else {}
                if values and (address := _address(key)) is not None:
                    found[address] = {**found.get(address, {}), "peer": address, **values}
        return [found[address] for address in sorted(found)]

    @property
    def truncations(self) -> list[Truncation]:
        """All recorded truncations, oldest first."""
        return sorted(self._truncations)

    def _apply(self, update: PartitionUpdate) -> None:
        partition = update.table_id, update.key
        active = self._deletions[partition] = merge_deletions(self._deletions.get(partition), update.deletion)
        more = {row.clustering or (): row for row in update.rows}
        for clustering in more.keys() | {place[2] for place in self._rows if place[:2] == partition}:
            nothing = Row(clustering)
            known = self._rows.get((*partition, clustering), nothing)
            self._rows[*partition, clustering] = merge_rows(known, more.get(clustering, nothing), active=active)
        if update.table_id == LOCAL.id:
            self._truncations.update(each for row in update.rows for each in _truncations(row))


def _address(key: bytes) -> str | None:
    """The address that is a peer's key. None if it is none: nothing depends on it."""
    try:
        return str(parse_type("inet", "system", {}).decode(key)) if key else None
    except DecodeError:
        return None


def _truncations(row: Row) -> set[Truncation]:
    found = set()
    for cell in row.cells:
        if cell.column == _TRUNCATED_AT and cell.path is not None and len(cell.path) == 16 and len(cell.value) == _RECORD.size:
            segment, position, at = _RECORD.unpack(cell.value)
            found.add(Truncation(at, UUID(bytes=cell.path), segment, position, cell.timestamp))
    return found


def _values(table: Table, row: Row) -> dict[str, Any]:
    """Values of a row's live columns. Values that their type cannot decode are skipped: nothing depends on
    them."""
    values = {}
    for name, column in sorted(table.columns.items()):
        cells = [cell for cell in row.cells if cell.column == name and not cell.is_tombstone]
        if cells and name != _TRUNCATED_AT:
            try:
                values[name] = assemble(parse_type(column.type, "system", {}), cells)
            except DecodeError:
                continue
    return values
