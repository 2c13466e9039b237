"""A cluster's schema as plain values. Knows no encoding and does not know where the facts came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

ColumnKind = Literal["partition_key", "clustering", "static", "regular"]


@dataclass(frozen=True, slots=True)
class Column:
    """`type` is the CQL text from system_schema.columns (`map<text, int>`, `frozen<address>`, …); `position` is -1 for non-keys."""

    name: str
    kind: ColumnKind
    type: str
    position: int = -1
    descending: bool = False


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """A column that is no more. Cells with a timestamp <= `dropped_at` (µs) are to be discarded if it was added again.

    `said_at`: when the drop was said (µs), up to which cells are of `type`; `dropped_at` is in whole ms, and ALTER TABLE … DROP … USING
    TIMESTAMP may give any other. It is no part of what was dropped, nor counts when compared."""

    name: str
    kind: ColumnKind
    type: str
    dropped_at: int
    said_at: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class UserType:
    """A CREATE TYPE. Field types are CQL texts in the same grammar as column types. `dropped`: it is what a type was that is no more."""

    keyspace: str
    name: str
    field_names: tuple[str, ...]
    field_types: tuple[str, ...]
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What makes a table a materialized view: its base table, which rows it takes, and whether it takes all columns."""

    base_table: str
    where_clause: str
    all_columns: bool


@dataclass(frozen=True, slots=True)
class Keyspace:
    name: str
    replication: dict[str, str]
    durable_writes: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One incarnation (id) of a table. `dropped` says that this id is gone, by DROP or because the table was re-created.

    `replaced`: a later incarnation has its name, be it dropped by now too; `dropped_at`: its last moment
    (µs). Neither is a part of what the table is, nor counts when compared.
    """

    keyspace: str
    name: str
    id: UUID
    columns: dict[str, Column]
    dropped_columns: dict[str, DroppedColumn] = field(default_factory=dict)
    flags: frozenset[str] = frozenset({"compound"})
    cdc: bool = False
    default_time_to_live: int = 0
    gc_grace_seconds: int = 864_000
    dropped: bool = False
    view: View | None = None
    replaced: bool = field(default=False, compare=False)
    dropped_at: int | None = field(default=None, compare=False)

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    @property
    def label(self) -> str:
        """Name for people and counters: unlike `full_name` it tells an incarnation that is over from the one that goes on."""
        return f"{self.full_name}@{str(self.id)[:8]}" if self.dropped else self.full_name

    @property
    def partition_key(self) -> tuple[Column, ...]:
        return self._ordered("partition_key")

    @property
    def clustering(self) -> tuple[Column, ...]:
        return self._ordered("clustering")

    @property
    def static_columns(self) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns.values() if c.kind == "static"), key=lambda c: c.name))

    @property
    def regular_columns(self) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns.values() if c.kind == "regular"), key=lambda c: c.name))

    @property
    def is_counter(self) -> bool:
        return "counter" in self.flags

    def _ordered(self, kind: ColumnKind) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns.values() if c.kind == kind), key=lambda c: c.position))


@dataclass(frozen=True, slots=True)
class Schema:
    """Everything known at one position of one cluster's history: keyspaces by name, tables by id (dropped incarnations included),
    user types by (keyspace, name)."""

    keyspaces: dict[str, Keyspace] = field(default_factory=dict)
    tables: dict[UUID, Table] = field(default_factory=dict)
    types: dict[tuple[str, str], UserType] = field(default_factory=dict)

    def table(self, keyspace: str, name: str) -> Table | None:
        """The living table of that name, if any."""
        for table in self.tables.values():
            if not table.dropped and (table.keyspace, table.name) == (keyspace, name):
                return table
        return None
