"""What a node says of itself and of its peers in its own log: truncations, tokens, host id, addresses (Cassandra 3.0-5.0, SystemKeyspace).

`system.local` and `system.peers*` are ordinary tables, so their rows are merged by last-write-wins like any other. A truncation is no
mutation of its table: it leaves an entry in `system.local`'s map `truncated_at`, from table id to

    i64   segment id      \\ where this node's log was; what it holds of the table up to there is gone
    i32   position        /
    i64   when, in ms

Entries are kept even when later ones replace them (a truncation does not happen less by being followed by another) and when the
node takes them back after replay. Knows no log but the mutations it is handed.
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
    """A table was emptied at a place of this node's log. `at` in ms, `timestamp` the record's writetime in µs."""

    at: int
    table_id: UUID
    segment: int
    position: int
    timestamp: int


class LocalFacts:
    """Merges what is told. The order of `apply` does not matter."""

    def __init__(self) -> None:
        self._rows: dict[tuple[UUID, bytes, tuple[bytes | None, ...]], Row] = {}
        self._deletions: dict[tuple[UUID, bytes], DeletionTime | None] = {}
        self._truncations: set[Truncation] = set()

    def apply(self, mutation: Mutation) -> None:
        """Take in a mutation of any table."""
        for update in mutation.updates:
            if update.table_id in _TABLES:
                self._apply(update)

    @property
    def node(self) -> dict[str, Any]:
        """Columns of `system.local` that have a value, as Python values (see writetime.cassandra.types.types), without the truncations."""
        rows = [row for (table_id, _, _), row in self._rows.items() if table_id == LOCAL.id]
        return {} if not rows else _values(LOCAL, rows[0])

    @property
    def peers(self) -> list[dict[str, Any]]:
        """The same of the peers, one entry an address, from `peers_v2` where it is there."""
        found: dict[str, dict[str, Any]] = {}
        for table in PEERS:
            for (table_id, key, _), row in sorted(self._rows.items(), key=lambda item: item[0][:2]):
                values = _values(table, row) if table_id == table.id else {}
                if values:
                    address = str(parse_type("inet", "system", {}).decode(key))
                    found[address] = {**found.get(address, {}), "peer": address, **values}
        return [found[address] for address in sorted(found)]

    @property
    def truncations(self) -> list[Truncation]:
        """All that were recorded, the oldest first."""
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


def _truncations(row: Row) -> set[Truncation]:
    found = set()
    for cell in row.cells:
        if cell.column == _TRUNCATED_AT and cell.path is not None and len(cell.path) == 16 and len(cell.value) == _RECORD.size:
            segment, position, at = _RECORD.unpack(cell.value)
            found.add(Truncation(at, UUID(bytes=cell.path), segment, position, cell.timestamp))
    return found


def _values(table: Table, row: Row) -> dict[str, Any]:
    """Values of a row's live columns. What is none of its type is left out: no answer depends on it."""
    values = {}
    for name, column in sorted(table.columns.items()):
        cells = [cell for cell in row.cells if cell.column == name and not cell.is_tombstone]
        if cells and name != _TRUNCATED_AT:
            try:
                values[name] = assemble(parse_type(column.type, "system", {}), cells)
            except DecodeError:
                continue
    return values
