"""A cluster's schema as plain values. Knows no encoding and does not know where the facts came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

ColumnKind = Literal["partition_key", "clustering", "static", "regular"]
_COUNTED: Final = 0x1B255F4D_EF25_40A6
"""The first half of the table ids that Cassandra 6.0 counts up; the second half is the number (TableId)."""


def short_id(table_id: UUID) -> str:
    """Eight hex digits of a table id that differ between incarnations: the first ones, or the last ones of a
    counted id."""
    return table_id.hex[-8:] if table_id.int >> 64 == _COUNTED else table_id.hex[:8]


@dataclass(frozen=True, slots=True)
class Column:
    """`type` is the CQL text from system_schema.columns (`map<text, int>`, `frozen<address>`, …); `position`
    is -1 for non-keys."""

    name: str
    kind: ColumnKind
    type: str
    position: int = -1
    descending: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether its values have no bytes: it stands for the value of a compact table that has none."""
        return self.type == "empty" or self.type.strip("'").endswith("EmptyType")


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """A dropped column. If it was added again, cells with a timestamp <= `dropped_at` (µs) are discarded.

    `said_at`: when the drop was written (µs); cells up to then have this `type`. `dropped_at` is in whole ms,
    and ALTER TABLE … DROP … USING TIMESTAMP can set it freely. `said_epoch`: the epoch of the drop (Cassandra
    6.0); updates of an earlier one have this `type`. Both are excluded from comparisons."""

    name: str
    kind: ColumnKind
    type: str
    dropped_at: int
    said_at: int | None = field(default=None, compare=False)
    said_epoch: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class UserType:
    """A user type. Field types are CQL texts like column types. `dropped`: the last form of a dropped
    type."""

    keyspace: str
    name: str
    field_names: tuple[str, ...]
    field_types: tuple[str, ...]
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """The definition of a materialized view: base table, row filter, and whether it selects all columns."""

    base_table: str
    where_clause: str
    all_columns: bool


NOT_DURABLE = "not_durable"
"""How writes of a keyspace with `durable_writes = false` bypass the commit log."""


@dataclass(frozen=True, slots=True)
class Keyspace:
    name: str
    replication: dict[str, str]
    durable_writes: bool = True
    replication_type: str = "untracked"
    """`tracked`: with mutation tracking, whose writes are in a journal of its own (after Cassandra 6.0-alpha2)."""


@dataclass(frozen=True, slots=True)
class Table:
    """One incarnation (id) of a table. `dropped`: this id is gone, by DROP or because the table was
    re-created.

    `replaced`: a later incarnation has its name, even if that one was dropped too; `dropped_at`: when this
    one ended (µs); `former_keys`: key columns under names that they had before a RENAME. All three are excluded
    from comparisons.

    `transactional_mode`: which writes go through Accord and never reach the commit log (Cassandra 6.0); `off`
    if none do, or if no snapshot has it. `durable`: False if its keyspace has `durable_writes = false`.
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
    transactional_mode: str = "off"
    tracked: bool = False
    durable: bool = True
    dropped: bool = False
    view: View | None = None
    former_keys: tuple[Column, ...] = field(default=(), compare=False, repr=False)
    replaced: bool = field(default=False, compare=False)
    dropped_at: int | None = field(default=None, compare=False)

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    @property
    def label(self) -> str:
        """Display name. Unlike `full_name` it distinguishes a dropped incarnation from the live one."""
        return f"{self.full_name}@{short_id(self.id)}" if self.dropped else self.full_name

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
    def bypasses_log(self) -> bool:
        """Whether writes reach no commit log: they go through Accord, or their keyspace is tracked or has no durable
        writes."""
        return self.bypass != "off"

    @property
    def bypass(self) -> str:
        """How writes bypass the commit log: the transactional mode, `tracked`, or `NOT_DURABLE`; `off` if they do not."""
        if self.transactional_mode != "off":
            return self.transactional_mode
        return "tracked" if self.tracked else "off" if self.durable else NOT_DURABLE

    @property
    def is_compact(self) -> bool:
        """Whether it was created WITH COMPACT STORAGE, or by Thrift."""
        return "compound" not in self.flags or "dense" in self.flags

    @property
    def is_static_compact(self) -> bool:
        """Whether CQL shows no clustering, and as regular columns what is static internally (Cassandra 3.0,
        CompactTables)."""
        return not {"compound", "dense", "super"} & self.flags

    @property
    def cql_columns(self) -> tuple[Column, ...]:
        """The columns that CQL shows, keys first: compact tables also have internal ones."""
        if self.is_static_compact:
            return *self.partition_key, *self.static_columns
        regular = (column for column in self.regular_columns if not (self.is_compact and column.is_nothing))
        return *self.partition_key, *self.clustering, *self.static_columns, *regular

    @property
    def is_counter(self) -> bool:
        return "counter" in self.flags

    def former_names(self, column: Column) -> list[str]:
        """The names that a key column had before it was renamed."""
        return [former.name for former in self.former_keys if (former.kind, former.position) == (column.kind, column.position)]

    def _ordered(self, kind: ColumnKind) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns.values() if c.kind == kind), key=lambda c: c.position))


@dataclass(frozen=True, slots=True)
class Schema:
    """A cluster's schema at one position: keyspaces by name, tables by id (dropped incarnations included),
    user types by (keyspace, name)."""

    keyspaces: dict[str, Keyspace] = field(default_factory=dict)
    tables: dict[UUID, Table] = field(default_factory=dict)
    types: dict[tuple[str, str], UserType] = field(default_factory=dict)

    def table(self, keyspace: str, name: str) -> Table | None:
        """The live table of that name, if any."""
        for table in self.tables.values():
            if not table.dropped and (table.keyspace, table.name) == (keyspace, name):
                return table
        return None
