"""The schema at each position of a log, that is the schema with which a mutation was written.

Changes are added in log order; each makes a version, the schema of all changes up to there. Changes from
elsewhere (a snapshot, earlier segments) are the base, which applies from the start. A change applies to the
frames after its position. A write that raced an ALTER may be on the wrong side of it, so a reader that fails
with one version tries the next.

Positions can have any comparable type, one per log: (segment id, position) for a node's log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.epochs import SchemaMutation, last_timestamp
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Keyspace, Schema, Table, UserType

Position = Any


class Difference(NamedTuple):
    """A description of one change in a keyspace."""

    keyspace: str
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """A schema change: the end position of its frame, its writetime in µs by the node's clock, and its
    differences. `schema` applies from there."""

    position: Position
    timestamp: int
    what: tuple[Difference, ...]
    schema: Schema


class Timeline:
    """See the module docstring. `learner` holds the facts of all changes, the base for the next segments."""

    def __init__(self, base: SchemaLearner | None = None) -> None:
        self.learner = base or SchemaLearner()
        self.base = self.learner.schema()
        self.changes: list[Change] = []

    def add(self, position: Position, mutation: Mutation) -> Change | None:
        """Add a mutation of any table. Returns its change, None if there is nothing new. Positions must not
        decrease."""
        return self.add_logged(position, SchemaMutation(0, mutation, last_timestamp(mutation)))

    def add_logged(self, position: Position, logged: SchemaMutation) -> Change | None:
        """The same for what `epochs.follow` found."""
        if self.changes and position < self.changes[-1].position:
            raise ValueError(f"position {position} is before {self.changes[-1].position}")
        if not self.learner.apply_logged(logged):
            return None
        schema = self.learner.schema()
        change = Change(position, logged.at, tuple(differences(self.now, schema)), schema)
        self.changes.append(change)
        return change

    @property
    def now(self) -> Schema:
        """The schema after all changes."""
        return self.changes[-1].schema if self.changes else self.base

    def at(self, position: Position) -> Schema:
        """The schema after all changes at or before a position."""
        count = bisect_right(self.changes, position, key=lambda change: change.position)
        return self.changes[count - 1].schema if count else self.base


# --- descriptions of changes


def differences(before: Schema, after: Schema) -> Iterator[Difference]:
    """The differences between two schemas."""
    for name in sorted(before.keyspaces.keys() | after.keyspaces.keys()):
        yield from (Difference(name, text) for text in _keyspace(before.keyspaces.get(name), after.keyspaces.get(name)))
    for place in sorted(before.types.keys() | after.types.keys()):
        yield from (Difference(place[0], text) for text in _type(_living(before, place), _living(after, place)))
    changed = [table for table_id, table in after.tables.items() if before.tables.get(table_id) is not table]
    for table in sorted(changed, key=lambda each: (each.full_name, not each.dropped, each.id)):
        yield from (Difference(table.keyspace, text) for text in _table(before.tables.get(table.id), table))
    for table_id in sorted(before.tables.keys() - after.tables.keys()):
        table = before.tables[table_id]
        yield Difference(table.keyspace, f"table {table.label} is no longer readable")


def _keyspace(before: Keyspace | None, after: Keyspace | None) -> Iterator[str]:
    if after is None and before is not None:
        yield f"keyspace {before.name} dropped"
    elif after is not None and before != after:
        yield f"keyspace {after.name} {'created' if before is None else 'altered'}"


def _living(schema: Schema, place: tuple[str, str]) -> UserType | None:
    found = schema.types.get(place)
    return None if found is None or found.dropped else found


def _type(before: UserType | None, after: UserType | None) -> Iterator[str]:
    if after is None and before is not None:
        yield f"type {before.keyspace}.{before.name} dropped"
    elif after is not None and before is None:
        yield f"type {after.keyspace}.{after.name} created"
    elif before is not None and after is not None and before != after:
        added = ", ".join(name for name in after.field_names if name not in before.field_names)
        yield f"type {after.keyspace}.{after.name} altered{f': {added} added' if added else ''}"


def _table(before: Table | None, after: Table) -> Iterator[str]:
    what = "view" if after.view else "table"
    if before is None:
        cdc = ", cdc on" if after.cdc else ""
        yield f"{what} {after.full_name} created, id {after.id}{cdc}{', dropped since' if after.dropped else ''}"
    elif before != after:
        yield f"{what} {after.full_name}: {'; '.join(_table_changes(before, after)) or 'altered'}"


def _table_changes(before: Table, after: Table) -> Iterator[str]:
    if after.dropped and not before.dropped:
        yield f"dropped, id {after.id}"
    new_names = dict(renamed(before, after))
    for old, new in new_names.items():
        yield f"column {old} renamed to {new}"
    for name in sorted(after.columns.keys() - before.columns.keys() - set(new_names.values())):
        column = after.columns[name]
        yield f"column {name} {column.type}{' static' if column.kind == 'static' else ''} added"
    for name in sorted(before.columns.keys() - after.columns.keys() - new_names.keys()):
        yield f"column {name} dropped"
    for name in sorted(before.columns.keys() & after.columns.keys()):
        # The columns of a dropped table may have the definitions of its time instead of names.
        if before.columns[name] != after.columns[name] and not after.dropped:
            yield f"column {name} is {after.columns[name].type} now"
    if before.cdc != after.cdc:
        yield f"cdc {'on' if after.cdc else 'off'}"
    for option in ("default_time_to_live", "gc_grace_seconds"):
        if getattr(before, option) != getattr(after, option):
            yield f"{option} = {getattr(after, option)}"
    if before.flags != after.flags:
        yield f"flags {', '.join(sorted(after.flags)) or 'none'}"


def renamed(before: Table, after: Table) -> Iterator[tuple[str, str]]:
    """Renamed key columns: (old name, new name) at the same position."""
    for old, new in ((before.partition_key, after.partition_key), (before.clustering, after.clustering)):
        yield from ((was.name, now.name) for was, now in zip(old, new, strict=False) if was.name != now.name)
