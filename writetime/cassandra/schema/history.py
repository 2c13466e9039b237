"""Learns the schema from mutations of system_schema and reconciles them like any other data (Cassandra
3.11-6.0, schema/SchemaKeyspace).

A schema change is a mutation of system_schema.* with the keyspace name as partition key. It may arrive
several times: replicas repeat it, logs are read in any order, and a snapshot contains it again. The learner
therefore keeps the set of facts, that is every cell and every deletion seen of the relevant columns, and
computes the schema from them by last write wins. The order of `apply` does not matter, except where two tables
claim one id, which only a damaged or hostile log says: it is of the one that was known first, until that is dropped.

Because facts are kept, past schemas are available: a table that was dropped or created again stays in the
schema in its last form, with `dropped=True`, so that late frames of it can be decoded. User types stay as
well, because such a table may use them. A table with an incomplete definition (an ALTER without its CREATE),
or one that this version cannot parse, is left out, and `left_out` gives the reason: one broken table must not
affect the others.

If a name belongs to both a live column and a dropped one, the live column decodes the cells, as in Java
(db/Columns.Serializer.deserialize). This is also right for older cells, unless the column came back as a
blob: Cassandra adds a column again only if its type accepts the old values (AlterTableStatement,
isValueCompatibleWith). A dropped column keeps the type that it had when it was dropped, user types written out
in full (`_pinned`), because a user type that no column uses can be dropped and made again with other fields.
Cassandra records the drop with tuples instead of user types, which have the same bytes but no names; what was
known of the column before is used if it has that layout. The columns of a dropped table are treated alike.

From Cassandra 6.0 on, facts are ordered by epoch: `epochs` gives them timestamps for it, later than those of
clocks, which the facts from before an upgrade keep. What a node knew as of an epoch (a snapshot; what it writes
at its start) is a fact only if nothing known before says the same: repeating the schema changes nothing, in any
order. Times of the resulting schema are converted to those at which the changes were executed.

The keyspaces `system` and `system_schema`, which every node writes at each start, are built in
(`system_tables`).
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from writetime.cassandra.merge.reconcile import settle_row
from writetime.cassandra.model import (
    NO_DELETION_TIME,
    NO_TIMESTAMP,
    Bound,
    Cell,
    DeletionTime,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema import epochs, snapshot, system_tables
from writetime.cassandra.schema.model import (
    Column,
    ColumnKind,
    DroppedColumn,
    Keyspace,
    Schema,
    Table,
    UserType,
    View,
)
from writetime.cassandra.types.compound import shortened
from writetime.cassandra.types.marshal import class_text
from writetime.cassandra.types.types import CqlType, Types, UdtType, names_user_types, parse_type, parts, same_layout, wire_shape
from writetime.errors import SchemaError, WritetimeError

_TABLE_COLUMNS = frozenset({"id", "flags", "cdc", "default_time_to_live", "gc_grace_seconds"})
TRACKED: Final[dict[str, frozenset[str]]] = {
    "keyspaces": frozenset({"durable_writes", "replication", "replication_type"}),
    "tables": _TABLE_COLUMNS,
    "views": _TABLE_COLUMNS | {"base_table_name", "where_clause", "include_all_columns"},
    "columns": frozenset({"kind", "position", "clustering_order", "type"}),
    "dropped_columns": frozenset({"dropped_time", "kind", "type"}),
    "types": frozenset({"field_names", "field_types"}),
}
"""The tables of system_schema that are read, with the columns that are read."""

_KINDS: Final[dict[str, ColumnKind]] = {
    "partition_key": "partition_key",
    "clustering": "clustering",
    "static": "static",
    "regular": "regular",
}
_KEY_KINDS: Final = (b"partition_key", b"clustering")
_FORMAT: Final = 1
_NEVER: Final = 1 << 63
"""Later than any timestamp (µs)."""
DEFAULT_GC_GRACE_SECONDS: Final = 864_000
_SETTLED: Final = 60_000_000
"""How much older (µs) than a snapshot a row must be for its absence to count as a drop: node clocks
differ."""
_INCOMPLETE: Final = "primary key columns are missing"
_LONGEST_NAME: Final = 1024
"""In bytes, of a table, type or column. Cassandra allows 48, 222 since 5.0, and 65,535 of columns of Thrift, which no
warehouse has."""
_WHOLES: Final = 100
"""Number of complete snapshots that are kept, the latest ones: a row missing in one is missing in later
ones."""

Clustering = tuple[bytes | None, ...]
_Place = tuple[str, Clustering]
"""A table's keyspace and name."""
_T = TypeVar("_T")


@dataclass(slots=True)
class _RowFacts:
    """`seen`: the first and the last complete snapshot (µs) that contains the row, by the row's writetime in
    them. Rows with equal cells, such as columns of one type, share one set of cells (`_shared`)."""

    cells: frozenset[Cell] = frozenset()
    deletions: frozenset[DeletionTime] = frozenset()
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, cells: Iterable[Cell], deletions: Iterable[DeletionTime]) -> bool:
        """Add the facts. Returns whether one of them is new."""
        before = len(self.cells), len(self.deletions)
        self.cells, self.deletions = _shared(self.cells.union(cells)), _shared(self.deletions.union(deletions))
        return (len(self.cells), len(self.deletions)) != before

    def saw(self, written: int, first: int, last: int) -> bool:
        """Record that snapshots contain the row from `first` to `last`. Returns whether that is new."""
        known = self.seen.get(written)
        self.seen[written] = (first, last) if known is None else (min(first, known[0]), max(last, known[1]))
        return self.seen[written] != known

    def lacked_by(self, wholes: Iterable[int]) -> list[int]:
        """The snapshots (µs) that show the row as dropped. If a later snapshot contains the same version of
        the row, the cluster had it all the time."""
        found = []
        for at in wholes:
            until = at - _SETTLED
            if not any(first <= at <= last or (at <= last and written <= until) for written, (first, last) in self.seen.items()):
                found.append(at)
        return found

    def unaccounted(self, lacking: Sequence[int], known: Iterable[DeletionTime]) -> list[int]:
        """The snapshots in `lacking` whose missing row no known deletion explains. A deletion explains it if
        it is later than everything written by then and not later than the snapshot; it then gives the time of
        the drop. `known`: deletions from outside the row."""
        ends = sorted(each.marked_for_delete_at for each in (*self.deletions, *known))
        if not ends:
            return list(lacking)
        written = sorted(cell.timestamp for cell in self.cells)
        found = []
        for at in lacking:
            before = bisect_right(written, at - _SETTLED)
            last = written[before - 1] if before else written[-1] if written else 0
            end = bisect_left(ends, last)
            # Node clocks may differ by up to `_SETTLED`.
            if end == len(ends) or ends[end] > at + _SETTLED:
                found.append(at)
        return found


@dataclass(slots=True)
class _PartitionFacts:
    """All facts of one keyspace in one table of system_schema."""

    deletions: set[DeletionTime] = field(default_factory=set)
    ranges: set[RangeTombstone] = field(default_factory=set)
    rows: dict[Clustering, _RowFacts] = field(default_factory=dict)


_Breaks = Mapping[bytes, frozenset[DeletionTime]]
"""By the name of a table: before when it was another table, with another id. Whether its DROP is known or not, what
was known of that one is not repeated by what is known of this one."""


@dataclass(slots=True)
class _Facts:
    """`_PartitionFacts` indexed by the first clustering column, which is the table name in all tables but
    `types`.

    A table has a few rows among those of all tables, dropped ones included; a keyspace that creates and drops
    many tables has very many rows."""

    rows: dict[Clustering, _RowFacts]
    deletions: set[DeletionTime]
    wholes: Sequence[int] = ()
    named: dict[bytes, list[Clustering]] = field(default_factory=dict)
    ranges: dict[bytes, list[RangeTombstone]] = field(default_factory=dict)
    wide: list[RangeTombstone] = field(default_factory=list)
    values: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    """Cache of `_View.row` for rows with equal facts that no range covers."""
    lacking: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    """Cache: the complete snapshots without a row, by the row's `seen`, which many rows share."""

    @classmethod
    def of(cls, facts: _PartitionFacts, wholes: Sequence[int], breaks: _Breaks) -> _Facts:
        """`wholes`: see `SchemaLearner.apply_snapshot`."""
        found = cls(dict(facts.rows), facts.deletions, wholes)
        for clustering in facts.rows:
            found.named.setdefault(_name(clustering), []).append(clustering)
        for tombstone in facts.ranges:
            start, end = tombstone.start.values, tombstone.end.values
            if start and end and _name(start) == _name(end):
                found.ranges.setdefault(_name(start), []).append(tombstone)
            else:
                found.wide.append(tombstone)
        for clustering, row in facts.rows.items():
            found.rows[clustering] = found._without_repeated(clustering, row, breaks.get(_name(clustering), frozenset()))
        return found

    def _without_repeated(self, clustering: Clustering, row: _RowFacts, breaks: frozenset[DeletionTime]) -> _RowFacts:
        """The row without what was known as of an epoch and is known from before, too."""
        if not _has_as_of(row.cells, row.deletions):
            return row
        outside = frozenset(self._recorded_deletions(clustering)) | breaks
        return replace(
            row, cells=_new_cells(row.cells, row.deletions | outside), deletions=_new_deletions(row.cells, row.deletions, outside)
        )

    def with_prefix(self, prefix: Clustering) -> list[Clustering]:
        """The clusterings that begin with `prefix`, in order."""
        if not prefix:
            return sorted(self.rows, key=_bytes)
        return sorted((each for each in self.named.get(_name(prefix), []) if each[: len(prefix)] == prefix), key=_bytes)

    def deletions_of(self, clustering: Clustering) -> Collection[DeletionTime]:
        """Deletions from outside the row that cover it."""
        if self.wholes and clustering in self.rows:
            facts, recorded = self.rows[clustering], self._recorded_deletions(clustering)
            seen = tuple(facts.seen.items())
            lacking = self.lacking.get(seen)
            if lacking is None:
                lacking = self.lacking[seen] = facts.lacked_by(self.wholes)
            untils = (at - _SETTLED for at in facts.unaccounted(lacking, recorded))
            return (*recorded, *(DeletionTime(until, until // 1_000_000) for until in untils))
        return self._recorded_deletions(clustering)

    def _recorded_deletions(self, clustering: Clustering) -> Collection[DeletionTime]:
        near = (*self.ranges.get(_name(clustering), ()), *self.wide) if self.ranges or self.wide else ()
        return (*self.deletions, *(tombstone.deletion for tombstone in near if _covers(tombstone, clustering))) if near else self.deletions


@dataclass(frozen=True, slots=True)
class _Learnt:
    """The schema of one keyspace, computed from its facts."""

    keyspace: Keyspace | None
    tables: dict[tuple[UUID, Clustering], Table]
    types: dict[tuple[str, str], UserType]
    cdc_ever: frozenset[tuple[UUID, Clustering]]
    cdc_back: dict[tuple[UUID, Clustering], int]
    left_out: dict[str, WritetimeError]
    unusable: dict[UUID, tuple[str, WritetimeError]]


class SchemaLearner:
    """Collects schema facts. `schema()` computes the schema from them."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], _PartitionFacts] = {}
        self._named: dict[UUID, list[_Place]] = {}
        """By table id: the tables that have had it, the first one that became known first. Cassandra gives an id to one
        table; what one node writes does not take it away while that table is there."""
        self._learnt: dict[str, _Learnt] = {}
        self._wholes: set[int] = set()
        self._modes: dict[UUID, tuple[int, str]] = {}
        """By table id: its transactional mode, and the epoch of the cluster's metadata that it is known for."""
        self._times: dict[int, tuple[bool, int]] = {}
        """By epoch: when its change was executed (µs). True: only when a node was seen to know of it, which is later."""
        self._shown: dict[UUID, tuple[Table, Table]] = {}
        """Cache: tables, and the same with times instead of stamps."""
        self.followed: dict[str, epochs.Followed] = {}
        """By host id: how far that node's log has been followed (Cassandra 6.0). The caller keeps it up to date."""

    def apply(self, mutation: Mutation) -> bool:
        """Add a mutation of any table. Returns whether it has new facts. Idempotent and independent of
        order."""
        new = False
        named = (
            (system_tables.SCHEMA_TABLES[each.table_id].name, each)
            for each in mutation.updates
            if each.table_id in system_tables.SCHEMA_TABLES
        )
        # Tables first: their ids say whether what is known of a column is known of this table.
        for name, update in sorted(named, key=lambda each: each[0] not in ("tables", "views")):
            if name in TRACKED:
                new |= self._apply(name, update)
        return new

    def apply_logged(self, change: epochs.SchemaMutation) -> bool:
        """Add what `epochs.follow` found: a schema change, or an entry of the metadata log. Returns whether it
        has new facts of the schema."""
        for update in change.mutation.updates:
            if (entry := epochs.entry_of(update)) is not None and entry.executed is not None:
                self._note_time(entry.epoch, (False, entry.executed))
        if (epoch := epochs.epoch_of(epochs.last_timestamp(change.mutation))) is not None:
            self._note_time(epoch, (True, change.at))
        return self.apply(change.mutation)

    def _note_time(self, epoch: int, time: tuple[bool, int]) -> None:
        self._times[epoch] = min(time, self._times.get(epoch, time))

    def time_of(self, timestamp: int) -> int:
        """A timestamp of a fact as a time (µs): of a stamp the time at which its epoch's change was executed, or
        if that is not known, that of an earlier or the first known one."""
        epoch = epochs.epoch_of(timestamp)
        if epoch is None:
            return timestamp
        if (known := self._times.get(epoch)) is None:
            before = max((each for each in self._times if each <= epoch), default=None)
            after = min(self._times, default=None)
            known = self._times[before] if before is not None else self._times[after] if after is not None else (True, 0)
        return known[1] + min(timestamp - epochs.stamp(epoch), 0)

    def apply_snapshot(self, document: Mapping[str, Any], *, latest: int = snapshot.LATEST, received: int = snapshot.LATEST) -> bool:
        """Add a schema snapshot (see `snapshot`). Returns whether it has new facts. `latest`: the highest
        writetime (µs) that is accepted; `received`: when it arrived (µs), by a clock other than the node's.

        A complete snapshot of a cluster whose nodes agree on the schema also shows what was dropped: the DROP
        may have been in a lost segment. This can be reverted: a later snapshot that contains the row restores
        it. A snapshot of a node of 6.0 says what that node knew as of an epoch, and that is certain: epochs have
        one history."""
        mutations, epoch = snapshot.mutations(document, latest=latest), snapshot.epoch(document)
        if epoch is not None:
            return self._apply_as_of(document, [epochs.known_as_of(each, epoch) for each in mutations], epoch, received)
        whole = snapshot.whole_at(document, received=received)
        new = self._add_modes(snapshot.modes(document))
        for mutation in mutations:
            new |= self.apply(mutation)
        if whole is not None:
            new |= whole not in self._wholes
            self._wholes = set(sorted({*self._wholes, whole})[-_WHOLES:])
            for update in (update for mutation in mutations for update in mutation.updates):
                new |= self._saw(update, whole)
            self._learnt.clear()
        return new

    def _apply_as_of(self, document: Mapping[str, Any], mutations: Iterable[Mutation], epoch: int, received: int) -> bool:
        """Add what a snapshot says as of an epoch; that rows are not there, if it is complete."""
        new = self._add_modes(snapshot.modes(document))
        there: set[tuple[str, str, Clustering]] = set()
        for mutation in mutations:
            new |= self.apply(mutation)
            there |= {
                (system_tables.SCHEMA_TABLES[update.table_id].name, _part(update.key), row.clustering or ())
                for update in mutation.updates
                for row in update.rows
            }
        if snapshot.is_complete(document):
            self._note_time(epoch, (True, snapshot.taken_at(document, received=received)))
            at = DeletionTime(epochs.stamp_as_of(epoch), 0)
            for (table, keyspace), facts in self._facts.items():
                for clustering, row in facts.rows.items():
                    if (table, keyspace, clustering) not in there and _state(
                        row.cells, _all_deletions(facts, clustering), at.marked_for_delete_at
                    ):
                        row.add((), [at])
                        self._learnt.pop(keyspace, None)
                        new = True
        return new

    def _add_modes(self, found: Mapping[UUID, tuple[int, str]]) -> bool:
        """Add modes; that of the latest epoch counts, because the nodes' clocks differ. Returns whether one is
        new."""
        new = {table_id: mode for table_id, mode in found.items() if mode > self._modes.get(table_id, (-1, ""))}
        self._modes |= new
        return bool(new)

    def _saw(self, update: PartitionUpdate, at: int) -> bool:
        name, keyspace = system_tables.SCHEMA_TABLES[update.table_id].name, _part(update.key)
        facts = self._facts.get((name, keyspace))
        if facts is None:
            return False
        return any([facts.rows[row.clustering or ()].saw(row.liveness.timestamp, at, at) for row in update.rows if row.liveness])  # noqa: C419 - all

    def apply_document(self, text: str | bytes, *, obj: str = "") -> None:
        """Add a schema snapshot or the output of `to_json`, whichever `text` is. Raises SchemaError."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"invalid JSON: {error}", operation="read a schema", obj=obj) from error
        if not isinstance(document, dict):
            raise SchemaError("not a JSON object", operation="read a schema", obj=obj)
        if "partitions" in document:
            self._absorb(type(self).from_json(text))
        elif TRACKED.keys() & document.keys():
            self.apply_snapshot(document)
        else:
            raise SchemaError("neither a schema snapshot nor a schema history", operation="read a schema", obj=obj)

    def schema(self) -> Schema:
        """The schema of all facts so far: live tables, dropped incarnations of tables, and system tables."""
        schema = Schema(tables=dict(system_tables.TABLES))
        for name in self._keyspaces():
            learnt = self._of(name)
            if learnt.keyspace is not None:
                schema.keyspaces[name] = learnt.keyspace
            for (table_id, table_name), table in learnt.tables.items():
                if table_id not in system_tables.TABLES and self._is_of(table_id, (name, table_name)):
                    schema.tables[table_id] = table
            schema.types.update(learnt.types)
        for table_id in self._modes.keys() & schema.tables.keys():
            schema.tables[table_id] = replace(schema.tables[table_id], transactional_mode=self._modes[table_id][1])
        tracked = {name for name, keyspace in schema.keyspaces.items() if keyspace.replication_type.lower() == "tracked"}
        undurable = {name for name, keyspace in schema.keyspaces.items() if not keyspace.durable_writes}
        for table_id, table in schema.tables.items():
            known = replace(table, tracked=True) if table.keyspace in tracked else table
            known = replace(known, durable=False) if table.keyspace in undurable else known
            schema.tables[table_id] = self._in_time(known)
        return schema

    def _in_time(self, table: Table) -> Table:
        """The table with times instead of stamps; the same object as before if nothing has changed."""
        dropped = {name: self._column_in_time(column) for name, column in table.dropped_columns.items()}
        at = None if table.dropped_at is None else self.time_of(table.dropped_at)
        if at == table.dropped_at and all(dropped[name] is column for name, column in table.dropped_columns.items()):
            return table
        shown = replace(table, dropped_columns=dropped, dropped_at=at)
        known = self._shown.get(table.id)
        if known is not None and known[0] is table and (known[1].dropped_at, _times_of(known[1])) == (at, _times_of(shown)):
            return known[1]
        self._shown[table.id] = table, shown
        return shown

    def _column_in_time(self, column: DroppedColumn) -> DroppedColumn:
        epoch = None if column.said_at is None else epochs.epoch_of(column.said_at)
        if epoch is None or column.said_at is None:
            return column
        at = self.time_of(column.dropped_at)
        if epochs.is_as_of(column.said_at):
            # The drop was before: its own time says when.
            return replace(column, dropped_at=at, said_at=None)
        return replace(column, dropped_at=at, said_at=self.time_of(column.said_at), said_epoch=epoch)

    def drops(self, mutation: Mutation) -> dict[UUID, int]:
        """The tables that a mutation drops: id -> time (µs). A mutation that creates the table again or
        alters it also deletes the row, just before it writes the row; it drops nothing, except that a CREATE
        with the id of a known table implies a DROP if none is known: its segment may not have been kept."""
        if epochs.is_as_of(epochs.last_timestamp(mutation)):
            return {}
        return {table_id: self.time_of(at) for table_id, at in self._dropped_by(mutation).items()}

    def creates_again(self, mutation: Mutation) -> dict[UUID, int]:
        """The tables of known ids that a mutation creates again: id -> time (µs)."""
        if epochs.is_as_of(epochs.last_timestamp(mutation)):
            return {}
        rows = (
            (update.key, row.clustering or (), at, table_id)
            for update in mutation.updates
            if (table := system_tables.SCHEMA_TABLES.get(update.table_id)) is not None and table.name == "tables"
            for row in update.rows
            for at, table_id in _ids(row.cells)
        )
        return {
            table_id: self.time_of(at)
            for key, clustering, at, table_id in rows
            if self._creates_again(mutation, key, clustering, at) and self._has_had(table_id, (_part(key), clustering))
        }

    def _dropped_by(self, mutation: Mutation) -> dict[UUID, int]:
        found: dict[UUID, int] = {}
        for update in mutation.updates:
            table, keyspace = system_tables.SCHEMA_TABLES.get(update.table_id), _part(update.key)
            facts = self._facts.get(("tables", keyspace))
            if table is None or table.name != "tables" or facts is None:
                continue
            said = {row.clustering or (): row for row in update.rows}
            outright = update.deletion is None and not update.range_tombstones
            for clustering in said.keys() & facts.rows.keys() if outright else facts.rows.keys():
                of_row = facts.rows[clustering]
                row = said.get(clustering, Row(clustering))
                deletions = [each.deletion for each in update.range_tombstones if _covers(each, clustering)]
                times = [each.marked_for_delete_at for each in (*deletions, update.deletion, row.deletion) if each is not None]
                before = [each for each in _ids(of_row.cells) if times and each[0] <= max(times)]
                if before and not any(cell.column == "id" for cell in row.cells):
                    dropped: tuple[UUID, int] | None = max(before)[1], max(times)
                else:
                    dropped = self._implied_drop(mutation, update.key, clustering, row)
                if dropped is not None and self._has_had(dropped[0], (keyspace, clustering)):
                    found.update([dropped])
        return found

    def _implied_drop(self, mutation: Mutation, key: bytes, clustering: Clustering, row: Row) -> tuple[UUID, int] | None:
        """The table that was dropped before this mutation created it again with its id, and when at the latest
        (µs); None if the mutation is no such CREATE, or if a deletion explains it."""
        at, table_id = next(_ids(row.cells), (0, None))
        if table_id is None or not self._creates_again(mutation, key, clustering, at):
            return None
        facts = self._facts[("tables", _part(key))]
        times = {time for time, each in _ids(facts.rows[clustering].cells) if each == table_id}
        last = max((time for time in times if time < at), default=None)
        ranges = (each.deletion for each in facts.ranges if _covers(each, clustering))
        # A snapshot that lacks the table says that it was dropped, but not at which position of any log.
        logged = (each for each in facts.rows[clustering].deletions if not epochs.is_as_of(each.marked_for_delete_at))
        deletions = (*logged, *facts.deletions, *ranges)
        if last is None or _drops_between(deletions, times, last, at):
            return None
        return table_id, at - 1

    def _creates_again(self, mutation: Mutation, key: bytes, clustering: Clustering, at: int) -> bool:
        """Whether the mutation creates, at `at` (µs), a table whose primary key columns were written before.

        A CREATE writes all columns (SchemaKeyspace.addTableToSchemaMutation). An ALTER writes the columns that
        it changes: one that is masked, several that are renamed, of which the old names are deleted, or all of
        a user type, which is written too. A mutation with a single column is taken for an ALTER."""
        updates = {
            system_tables.SCHEMA_TABLES[each.table_id].name: each
            for each in mutation.updates
            if each.key == key and each.table_id in system_tables.SCHEMA_TABLES
        }
        rows = [row for row in updates["columns"].rows if (row.clustering or ())[:1] == clustering] if "columns" in updates else []
        written = [{cell.column: cell for cell in row.cells} for row in rows]
        if "types" in updates or len(rows) < 2 or any("kind" not in cells or cells["kind"].timestamp != at for cells in written):
            return False
        known = self._facts.get(("columns", _part(key)))
        keys = [row for row, cells in zip(rows, written, strict=True) if cells["kind"].value in _KEY_KINDS]
        return bool(keys) and all(self._was_written(known, row.clustering or (), at) for row in keys)

    @staticmethod
    def _was_written(known: _PartitionFacts | None, clustering: Clustering, at: int) -> bool:
        cells = known.rows[clustering].cells if known is not None and clustering in known.rows else ()
        return any(cell.column == "kind" and cell.value in _KEY_KINDS and cell.timestamp < at for cell in cells)

    @property
    def cdc_ever(self) -> frozenset[UUID]:
        """Ids of the tables that had cdc=true at some time of their incarnation."""
        found = ((keyspace, each) for keyspace in self._keyspaces() for each in self._of(keyspace).cdc_ever)
        return frozenset(id_ for keyspace, (id_, name) in found if self._has_had(id_, (keyspace, name)))

    def captured(self, accepts: Callable[[str], bool] = lambda full_name: True) -> list[Table]:
        """The captured tables, by id: known tables that had cdc=true at some time of their incarnation and
        whose full name (keyspace.table) `accepts`. A table that is dropped, or whose cdc is off by now, is
        among them: its earlier writes were captured. Materialized views are not, see `views_with_cdc`."""
        tables = self.schema().tables
        found = (tables[id_] for id_ in sorted(self.cdc_ever & tables.keys()))
        return [table for table in found if table.view is None and accepts(table.full_name)]

    def views_with_cdc(self, accepts: Callable[[str], bool]) -> list[Table]:
        """The materialized views with cdc=true, which cannot be captured (`writetime.events.masking`)."""
        views = (table for table in self.schema().tables.values() if table.view is not None and table.cdc and not table.dropped)
        return sorted((view for view in views if accepts(view.full_name)), key=lambda view: view.id)

    @property
    def cdc_back(self) -> dict[UUID, int]:
        """Tables whose cdc was switched on, off and on again: id -> time (µs) of the last switch to on."""
        found = ((keyspace, *each) for keyspace in self._keyspaces() for each in self._of(keyspace).cdc_back.items())
        return {id_: self.time_of(at) for keyspace, (id_, name), at in found if self._is_of(id_, (keyspace, name))}

    @property
    def left_out(self) -> dict[str, WritetimeError]:
        """Tables and types that have facts but are not in the schema: name -> reason."""
        return {name: error for keyspace in self._keyspaces() for name, error in self._of(keyspace).left_out.items()}

    def unusable(self, accepts: Callable[[str], bool] = lambda full_name: True) -> dict[UUID, tuple[str, str]]:
        """Existing tables with cdc=true whose definition is complete, but means nothing: id -> (full name, reason). They
        are not in the schema."""
        found = {id_: each for keyspace in self._keyspaces() for id_, each in self._of(keyspace).unusable.items()}
        known = self.schema().tables
        return {
            id_: (name, str(error))
            for id_, (name, error) in sorted(found.items())
            if id_ not in known and accepts(name) and getattr(error, "message", "") != _INCOMPLETE
        }

    def to_json(self) -> str:
        """All facts, for `from_json`. The same facts give the same text."""
        partitions = [_partition_to_json(table, keyspace, facts) for (table, keyspace), facts in sorted(self._facts.items())]
        contested = {
            str(id_): [[name, _hex_all(ck)] for name, ck in self._named[id_]] for id_ in sorted(self._named) if len(self._named[id_]) > 1
        }
        named = {"named": contested} if contested else {}
        wholes = {"wholes": sorted(self._wholes)} if self._wholes else {}
        modes = {"modes": {str(table_id): self._modes[table_id] for table_id in sorted(self._modes)}} if self._modes else {}
        by_epoch: dict[str, Any] = {"times": {str(epoch): [int(late), at] for epoch, (late, at) in sorted(self._times.items())}}
        by_epoch["followed"] = {host: [each.segment, each.epoch, int(each.is_open)] for host, each in sorted(self.followed.items())}
        ordered = by_epoch if self._times or self.followed else {}
        return json.dumps({"format": _FORMAT, "partitions": partitions, **named, **wholes, **modes, **ordered}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The learner whose `to_json` returned `text`. Raises SchemaError."""
        try:
            document = json.loads(text)
            if document["format"] != _FORMAT:
                raise SchemaError(f"unknown format {document['format']}", operation="read a schema history")
            learner = cls()
            for partition in document["partitions"]:
                learner._facts[partition["table"], partition["keyspace"]] = _partition_from_json(partition)
            learner._named = {UUID(id_): [(name, _unhex_all(ck)) for name, ck in named] for id_, named in document.get("named", {}).items()}
            learner._note_all_names()
            learner._wholes = set(document.get("wholes", ()))
            learner._modes = {UUID(table_id): (int(epoch), str(mode)) for table_id, (epoch, mode) in document.get("modes", {}).items()}
            learner._times = {int(epoch): (bool(late), int(at)) for epoch, (late, at) in document.get("times", {}).items()}
            learner.followed = {
                str(host): epochs.Followed(int(segment), int(epoch), bool(is_open))
                for host, (segment, epoch, is_open) in document.get("followed", {}).items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"{type(error).__name__}: {error}", operation="read a schema history") from error
        return learner

    def _apply(self, table: str, update: PartitionUpdate) -> bool:
        keyspace = _part(update.key)
        if keyspace in system_tables.BUILT_IN:
            return False
        facts = self._facts.setdefault((table, keyspace), _PartitionFacts())
        new = _add(facts.deletions, [update.deletion] if update.deletion is not None else [])
        new |= _add(facts.ranges, update.range_tombstones)
        for row in update.rows:
            of_row = facts.rows.setdefault(row.clustering or (), _RowFacts())
            cells = [cell for cell in row.cells if cell.column in TRACKED[table]]
            if cells and epochs.is_as_of(cells[0].timestamp):
                deletions = _all_deletions(facts, row.clustering or ())
                if table != "types":
                    deletions |= self._breaks_of(keyspace, _name(row.clustering or ()))
                known = _state(of_row.cells, deletions, cells[0].timestamp)
                is_other = any(cell.column == "id" and known.get("id") != cell.value for cell in cells)
                cells = [cell for cell in cells if is_other or known.get(cell.column) != cell.value]
            new |= of_row.add(cells, () if row.deletion is None else (row.deletion,))
            if table in ("tables", "views"):
                self._note_names(keyspace, row.clustering or (), cells)
        if new:
            self._learnt.pop(keyspace, None)
        return new

    def _absorb(self, other: SchemaLearner) -> None:
        for (table, keyspace), more in other._facts.items():
            facts = self._facts.setdefault((table, keyspace), _PartitionFacts())
            facts.deletions |= more.deletions
            facts.ranges |= more.ranges
            for clustering, row in more.rows.items():
                of_row = facts.rows.setdefault(clustering, _RowFacts())
                of_row.add(row.cells, row.deletions)
                for written, (first, last) in row.seen.items():
                    of_row.saw(written, first, last)
        for table_id, places in other._named.items():
            named = self._named.setdefault(table_id, [])
            named += [place for place in places if place not in named]
        self._wholes = set(sorted(self._wholes | other._wholes)[-_WHOLES:])
        self._add_modes(other._modes)
        for epoch, time in other._times.items():
            self._note_time(epoch, time)
        self._learnt.clear()

    def _keyspaces(self) -> list[str]:
        return sorted({keyspace for _, keyspace in self._facts})

    def _of(self, keyspace: str) -> _Learnt:
        learnt = self._learnt.get(keyspace)
        if learnt is None:
            wholes = sorted(self._wholes)
            breaks = self._breaks(keyspace)
            known = {table: self._facts.get((table, keyspace), _PartitionFacts()) for table in TRACKED}
            facts = {table: _Facts.of(partition, wholes, breaks if table != "types" else {}) for table, partition in known.items()}
            learnt = self._learnt[keyspace] = _learn(keyspace, facts)
        return learnt

    def _breaks(self, keyspace: str) -> _Breaks:
        parts = [self._facts[table, keyspace] for table in ("tables", "views") if (table, keyspace) in self._facts]
        names = {_name(clustering) for facts in parts for clustering in facts.rows}
        return {name: breaks for name in names if (breaks := self._breaks_of(keyspace, name))}

    def _breaks_of(self, keyspace: str, name: bytes) -> frozenset[DeletionTime]:
        parts = [self._facts[table, keyspace] for table in ("tables", "views") if (table, keyspace) in self._facts]
        return frozenset().union(*(_changes_of_id(facts.rows[(name,)].cells) for facts in parts if (name,) in facts.rows))

    def _note_names(self, keyspace: str, name: Clustering, cells: Iterable[Cell]) -> None:
        for _, table_id in _ids(cells):
            named = self._named.setdefault(table_id, [])
            if (keyspace, name) not in named:
                named.append((keyspace, name))

    def _note_all_names(self) -> None:
        for (table, keyspace), facts in sorted(self._facts.items()):
            if table in ("tables", "views"):
                for name, row in sorted(facts.rows.items(), key=lambda each: _bytes(each[0])):
                    self._note_names(keyspace, name, row.cells)

    def _is_of(self, table_id: UUID, place: _Place) -> bool:
        """Whether the id is that table's by now."""
        named = self._named[table_id]
        return len(named) == 1 or [place] == [each for each in named if self._table(table_id, each) and self._has_had(table_id, each)][-1:]

    def _has_had(self, table_id: UUID, place: _Place) -> bool:
        """Whether the id has been that table's: none of those that had it before exists."""
        named = self._named.get(table_id, ())
        before = named[: named.index(place)] if place in named else named
        return all((table := self._table(table_id, each)) is None or table.dropped for each in before)

    def _table(self, table_id: UUID, place: _Place) -> Table | None:
        keyspace, name = place
        return self._of(keyspace).tables.get((table_id, name))


@lru_cache(maxsize=65_536)
def _shared(facts: frozenset[_T]) -> frozenset[_T]:
    """The same object for equal sets."""
    return facts


def _add(known: set[_T], more: Iterable[_T]) -> bool:
    before = len(known)
    known.update(more)
    return len(known) > before


# --- facts as of an epoch


def _all_deletions(facts: _PartitionFacts, clustering: Clustering) -> frozenset[DeletionTime]:
    ranges = (each.deletion for each in facts.ranges if _covers(each, clustering))
    return frozenset((*facts.rows[clustering].deletions, *facts.deletions, *ranges))


def _state(cells: Iterable[Cell], deletions: Iterable[DeletionTime], at: int) -> dict[str, bytes]:
    """A row's values as of a timestamp; {} if it does not exist."""
    floor = max((each.marked_for_delete_at for each in deletions if each.marked_for_delete_at <= at), default=NO_TIMESTAMP)
    live = sorted((cell.timestamp, cell.value, cell.column) for cell in cells if floor < cell.timestamp <= at)
    return {column: value for _, value, column in live}


@lru_cache(maxsize=65_536)
def _has_as_of(cells: frozenset[Cell], deletions: frozenset[DeletionTime]) -> bool:
    times = (*(cell.timestamp for cell in cells), *(each.marked_for_delete_at for each in deletions))
    return any(map(epochs.is_as_of, times))


@lru_cache(maxsize=65_536)
def _new_cells(cells: frozenset[Cell], deletions: frozenset[DeletionTime]) -> frozenset[Cell]:
    """Without those that repeat, as of an epoch, what the row had before."""
    ends = sorted(each.marked_for_delete_at for each in deletions)
    found, before = [], dict[str, Cell]()
    for cell in sorted(cells, key=lambda each: (each.timestamp, each.value)):
        last = before.get(cell.column)
        if (
            last is None
            or not epochs.is_as_of(cell.timestamp)
            or last.value != cell.value
            or _is_between(ends, last.timestamp, cell.timestamp)
        ):
            found.append(cell)
        before[cell.column] = cell
    return _shared(frozenset(found))


@lru_cache(maxsize=65_536)
def _new_deletions(cells: frozenset[Cell], deletions: frozenset[DeletionTime], outside: frozenset[DeletionTime]) -> frozenset[DeletionTime]:
    """Without those that say, as of an epoch, that the row was not there, if it was not there before."""
    written = sorted(cell.timestamp for cell in cells)
    ends = sorted(each.marked_for_delete_at for each in deletions | outside)

    def is_new(end: int) -> bool:
        last = bisect_left(written, end)
        return last > 0 and not _is_between(ends, written[last - 1], end)

    return _shared(frozenset(d for d in deletions if not epochs.is_as_of(d.marked_for_delete_at) or is_new(d.marked_for_delete_at)))


@lru_cache(maxsize=65_536)
def _changes_of_id(cells: frozenset[Cell]) -> frozenset[DeletionTime]:
    """Just before the times at which a table's row was written with another id than before."""
    ids = sorted((cell.timestamp, cell.value) for cell in cells if cell.column == "id")
    return frozenset(DeletionTime(at - 1, 0) for (_, before), (at, after) in pairwise(ids) if before != after)


def _is_between(ends: Sequence[int], first: int, last: int) -> bool:
    """Whether one of the sorted ends is in [first, last)."""
    return bisect_left(ends, first) < bisect_left(ends, last)


def _times_of(table: Table) -> list[int | None]:
    return [column.said_at for column in table.dropped_columns.values()]


# --- facts to schema


class _View:
    """The rows of one keyspace at a point in time: cells after `floor` up to `bound` (µs), and deletions
    before `bound`; None = no limit.

    An incarnation of a table ends with a deletion at `bound`: its last cells count, the deletion does not.
    `floor` excludes facts of the previous incarnation, in case its drop is unknown.
    """

    def __init__(self, facts: Mapping[str, _Facts], floor: int = NO_TIMESTAMP, bound: int | None = None) -> None:
        self.facts = facts
        self.floor = floor
        self.bound = bound

    def rows(self, table: str, prefix: Clustering = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
        """(clustering as text, values of the live cells) of every existing row whose clustering begins with
        `prefix`."""
        for clustering in self.facts[table].with_prefix(prefix):
            if values := self.row(table, clustering):
                yield _text(clustering), values

    def row(self, table: str, clustering: Clustering) -> dict[str, Any]:
        """The values of a row's live cells; {} if the row does not exist. Empty values are skipped."""
        partition = self.facts[table]
        facts = partition.rows.get(clustering)
        if facts is None:
            return {}
        bound = _NEVER if self.bound is None else self.bound
        if partition.ranges or partition.wide:
            return _values(table, facts.cells, (*facts.deletions, *partition.deletions_of(clustering)), self.floor, bound)
        # A keyspace that creates and drops many tables has tens of thousands of rows, many with equal facts.
        key = id(facts.cells), id(facts.deletions), self.floor, bound, tuple(facts.seen.items())
        values = partition.values.get(key)
        if values is None:
            deletions = (*facts.deletions, *partition.deletions_of(clustering))
            values = partition.values[key] = _values(table, facts.cells, deletions, self.floor, bound)
        return values

    def last_written(self, table: str, clustering: tuple[str, ...]) -> int:
        """When an existing row was last written (µs)."""
        cells = self.facts[table].rows[tuple(part.encode("utf-8", "surrogateescape") for part in clustering)].cells
        return max(cell.timestamp for cell in cells if self.bound is None or cell.timestamp <= self.bound)

    def before_drop(self, clustering: Clustering) -> dict[str, Any]:
        """The known values of a column's row from before the column was dropped."""
        drop, column = self.facts["dropped_columns"].rows[clustering], self.facts["columns"].rows.get(clustering)
        limit = max(cell.timestamp for cell in drop.cells)
        cells = [
            cell
            for cell in (column.cells if column else ())
            if self.floor < cell.timestamp < limit and cell.value and not cell.is_tombstone
        ]
        return {cell.column: _value("columns", cell) for cell in sorted(cells, key=lambda cell: cell.timestamp)}

    def values_ever(self, table: str, clustering: Clustering) -> dict[str, Any]:
        """The latest values that a row had since the floor, whether it still exists or not."""
        facts = self.facts[table].rows[clustering]
        within = (c for c in facts.cells if self.floor < c.timestamp and (self.bound is None or c.timestamp <= self.bound))
        cells = (cell for cell in within if cell.value and not cell.is_tombstone)
        return {cell.column: _value(table, cell) for cell in sorted(cells, key=lambda cell: (cell.timestamp, cell.value))}

    def last_values(self, table: str, clustering: Clustering) -> dict[str, Any]:
        """The latest values that a row ever had, whether it still exists or not."""
        cells = [cell for cell in self.facts[table].rows[clustering].cells if cell.value and not cell.is_tombstone]
        return {cell.column: _value(table, cell) for cell in sorted(cells, key=lambda cell: (cell.timestamp, cell.value))}


@dataclass(frozen=True, slots=True)
class _Incarnation:
    """One id of a table name (times in µs).

    `floor`: the last write of the previous incarnation; `first`: the first write of this one; `last`: its
    end, None if the table exists."""

    id: UUID
    floor: int
    first: int
    last: int | None
    replaced: bool

    def holds(self, timestamp: int) -> bool:
        return self.first <= timestamp and (self.last is None or timestamp <= self.last)


def _learn(keyspace: str, facts: Mapping[str, _Facts]) -> _Learnt:
    now = _View(facts)
    found = _Learnt(None, {}, {}, frozenset(), {}, {}, {})
    cdc_ever: set[tuple[UUID, Clustering]] = set()
    for source in ("tables", "views"):
        for clustering, of_row in facts[source].rows.items():
            living: UUID | None = None
            with _or_left_out(found.left_out, keyspace, clustering):
                living = now.row(source, clustering).get("id")
            for incarnation in _incarnations(facts[source], clustering, living):
                values = sorted((cell.timestamp, cell.value == b"\1") for cell in of_row.cells if cell.column == "cdc")
                switches = [(at, on) for at, on in values if incarnation.holds(at)]
                has_cdc, table = any(on for _, on in switches), None
                with _or_left_out(found.left_out, keyspace, clustering):
                    table = _whole_table(keyspace, source, clustering, incarnation, facts)
                    place = table.id, clustering
                    if place in found.tables and table.dropped:
                        continue
                    found.tables[place] = table
                    if has_cdc:
                        cdc_ever.add(place)
                    if (back := _back(switches)) is not None:
                        found.cdc_back[place] = back
                if table is None and has_cdc and incarnation.last is None:
                    name = _label(keyspace, clustering)
                    found.unusable[incarnation.id] = name, found.left_out[name]
    for clustering in facts["types"].rows:
        with _or_left_out(found.left_out, keyspace, clustering):
            found.types.update(_user_type(keyspace, now, clustering))
    known: Keyspace | None = None
    with _or_left_out(found.left_out, keyspace, ()):
        known = _keyspace(keyspace, now)
    return replace(found, keyspace=known, cdc_ever=frozenset(cdc_ever))


def _ids(cells: Iterable[Cell]) -> Iterator[tuple[int, UUID]]:
    """When (µs) a table's row was written with which id."""
    return ((cell.timestamp, UUID(bytes=cell.value)) for cell in cells if cell.column == "id" and len(cell.value) == 16)


def _back(switches: Sequence[tuple[int, bool]]) -> int | None:
    """When an option was switched on again, given its (time, on) values in order. None if it is off, or was
    never off in between."""
    back: int | None = None
    was_on = off_since_on = False
    for at, on in switches:
        if not on:
            off_since_on, back = was_on, None
        elif off_since_on and back is None:
            back = at
        was_on |= on
    return back


@contextmanager
def _or_left_out(left_out: dict[str, WritetimeError], keyspace: str, clustering: Clustering) -> Iterator[None]:
    """Record the error of one table or type and continue with the rest."""
    name = _label(keyspace, clustering)
    try:
        yield
    except WritetimeError as error:
        left_out[name] = error
    except Exception as error:  # noqa: BLE001 - facts are what nodes have written, and this object may be anything
        left_out[name] = SchemaError(f"{type(error).__name__}: {shortened(str(error))}", operation="learn the schema", obj=name)


def _label(keyspace: str, clustering: Clustering) -> str:
    return shortened(".".join((keyspace, *_text(clustering))))


def _expect_name(name: bytes | None) -> None:
    """Raises SchemaError for a name that no object of Cassandra has."""
    if len(name or b"") > _LONGEST_NAME:
        raise SchemaError(f"a name has more than {_LONGEST_NAME} bytes", operation="learn the schema", obj=shortened(_part(name)))


def _incarnations(partition: _Facts, clustering: Clustering, living: UUID | None) -> Iterator[_Incarnation]:
    """The incarnations of the table in that row: one for each id it ever had. The live one has no end."""
    facts = partition.rows[clustering]
    said = list(_ids(facts.cells))
    ends = [deletion.marked_for_delete_at for deletion in (*facts.deletions, *partition.deletions_of(clustering))]
    ends += [cell.timestamp for cell in facts.cells if cell.column == "id" and cell.is_tombstone]
    for table_id in sorted({table_id for _, table_id in said}):
        times = [timestamp for timestamp, said_id in said if said_id == table_id]
        latest, first = max(times), min(times)
        floor = max((timestamp for timestamp, other in said if other != table_id and timestamp < first), default=NO_TIMESTAMP)
        if floor > NO_TIMESTAMP and epochs.epoch_of(first) is not None:
            # What is known as of an epoch comes with the table's id as of then: earlier facts are of the other.
            floor = first - 1
        after = [end for end in ends if end >= latest]
        after += [timestamp - 1 for timestamp, other in said if other != table_id and timestamp > latest]
        replaced = any(other != table_id and timestamp > latest for timestamp, other in said)
        yield _Incarnation(table_id, floor, first, None if table_id == living else min(after, default=latest), replaced)


def _whole_table(keyspace: str, source: str, clustering: Clustering, incarnation: _Incarnation, facts: Mapping[str, _Facts]) -> Table:
    """The table of that incarnation. Raises SchemaError if its definition was never complete.

    An incarnation may have ended earlier than its row shows: a node that was down receives rows that others
    have reconciled, in which the CREATE of the next incarnation, with the deletion that 4.0 and later put
    just before it, has replaced the DROP. The deletions of its columns still show the earlier end."""
    try:
        return _table(keyspace, source, clustering, incarnation, _View(facts, incarnation.floor, incarnation.last))
    except SchemaError:
        for end in _ends_of_columns(facts["columns"], clustering, incarnation):
            with suppress(SchemaError):
                earlier = replace(incarnation, last=end)
                return _table(keyspace, source, clustering, earlier, _View(facts, incarnation.floor, end))
        raise


def _ends_of_columns(columns: _Facts, clustering: Clustering, incarnation: _Incarnation) -> list[int]:
    """The times (µs), latest first, of deletions of columns before the known end of the incarnation."""
    if incarnation.last is None:
        return []
    mine = {ck: columns.rows[ck] for ck in columns.with_prefix(clustering)}
    deletions = {deletion for ck, facts in mine.items() for deletion in (*facts.deletions, *columns.deletions_of(ck))}
    times = {deletion.marked_for_delete_at for deletion in deletions}
    return sorted((at for at in times if incarnation.first <= at < incarnation.last), reverse=True)


def _table(keyspace: str, source: str, clustering: Clustering, incarnation: _Incarnation, view: _View) -> Table:
    """The table of that incarnation. Raises SchemaError if its definition is incomplete."""
    (name,) = _text(clustering)
    _expect_name(clustering[0])
    options = view.row(source, clustering)
    columns = _columns(view, clustering)
    if incarnation.last is not None:
        columns = {each: _as_dropped(view, keyspace, column, incarnation.last) for each, column in columns.items()}
    dropped = {
        column.name: column
        for column in _columns_before(keyspace, view, source, clustering, incarnation)
        if _is_other(column, columns.get(column.name), keyspace, view)
    }
    dropped |= {ck[1]: _dropped(keyspace, view, ck, values) for ck, values in view.rows("dropped_columns", clustering) if "type" in values}
    table = Table(
        keyspace,
        name,
        incarnation.id,
        columns,
        dropped,
        # Views have no flags column; all of them are compound.
        flags=frozenset(options.get("flags", ()) if source == "tables" else ("compound",)),
        cdc=bool(options.get("cdc")),
        default_time_to_live=options.get("default_time_to_live") or 0,
        gc_grace_seconds=options.get("gc_grace_seconds", DEFAULT_GC_GRACE_SECONDS),
        dropped=incarnation.last is not None,
        dropped_at=incarnation.last,
        replaced=incarnation.replaced,
        view=_materialized(options) if source == "views" else None,
        former_keys=tuple(_former_keys(view, clustering, columns)),
    )
    if not table.partition_key or not all(_contiguous(part) for part in (table.partition_key, table.clustering)):
        raise SchemaError(
            _INCOMPLETE,
            operation="learn the schema",
            obj=table.full_name,
            hint="Its CREATE TABLE is in a segment that was not read: provide a schema snapshot",
        )
    return table


def _columns(view: _View, clustering: Clustering) -> dict[str, Column]:
    """The columns by name. Of two key columns at one position the later one counts: a snapshot shows a
    renamed column, but not that the old name is gone (AlterTableStatement.RenameColumns; only key columns can
    be renamed)."""
    found: dict[str, Column] = {}
    places: dict[tuple[ColumnKind, int], tuple[int, str]] = {}
    for ck in view.facts["columns"].with_prefix(clustering):
        values = view.row("columns", ck)
        _expect_name(ck[1])
        if "kind" not in values or "type" not in values:
            continue
        name = _part(ck[1])
        column = found[name] = _column(name, values["kind"], values["type"], values.get("position", -1), values.get("clustering_order"))
        if column.position >= 0:
            written = view.last_written("columns", (_part(ck[0]), name)), name
            place = column.kind, column.position
            if place in places:
                del found[min(written, places[place])[1]]
            places[place] = max(written, places.get(place, written))
    return found


def _former_keys(view: _View, clustering: Clustering, columns: Collection[str]) -> Iterator[Column]:
    """Key columns that are not there any more: they were renamed, as no key column can be dropped."""
    for ck in view.facts["columns"].with_prefix(clustering):
        values = view.values_ever("columns", ck)
        if (name := _part(ck[1])) not in columns and {"kind", "type"} <= values.keys():
            column = _column(name, values["kind"], values["type"], values.get("position", -1), values.get("clustering_order"))
            if column.position >= 0:
                yield column


def _columns_before(keyspace: str, view: _View, source: str, clustering: Clustering, incarnation: _Incarnation) -> Iterator[DroppedColumn]:
    """Columns of a table whose DROP was followed by a CREATE with the same id, including columns dropped
    before: frames of that time may still arrive. The latest column of a name comes last."""
    partition = view.facts[source]
    times = {cell.timestamp for cell in partition.rows[clustering].cells if cell.column == "id" and cell.value == incarnation.id.bytes}
    deletions = (*partition.rows[clustering].deletions, *partition.deletions_of(clustering))
    for at in sorted(_drops_between(deletions, times, min(times), max(times))):
        then = _View(view.facts, incarnation.floor, at)
        for ck, values in _gone_at(then, "dropped_columns", clustering, at):
            if "type" in values:
                yield _dropped(keyspace, then, _text(ck), values)
        for ck, values in _gone_at(then, "columns", clustering, at):
            if {"kind", "type"} <= values.keys() and (kind := _kind(_text(ck)[-1], values["kind"])) in ("static", "regular"):
                type_text = _pinned(values["type"], keyspace, _TypesAt(keyspace, view.facts["types"], at))
                yield DroppedColumn(_text(ck)[-1], kind, type_text, at, at)


def _drops_between(deletions: Iterable[DeletionTime], times: Collection[int], first: int, last: int) -> set[int]:
    """The times (µs) in [first, last) at which a table was dropped. `times`: when its row was written. The row
    that an ALTER or a CREATE of 4.0 and later writes has a deletion just before it, which is not a DROP."""
    return {at for each in deletions if first <= (at := each.marked_for_delete_at) < last and at + 1 not in times}


def _gone_at(view: _View, table: str, clustering: Clustering, at: int) -> Iterator[tuple[Clustering, dict[str, Any]]]:
    """(clustering, values before) of the rows that a deletion at `at` (µs) covers."""
    facts = view.facts[table]
    for ck in facts.with_prefix(clustering):
        if any(each.marked_for_delete_at == at for each in (*facts.rows[ck].deletions, *facts.deletions_of(ck))):
            yield ck, view.row(table, ck)


def _is_other(before: DroppedColumn, column: Column | None, keyspace: str, view: _View) -> bool:
    """Whether the column before the DROP of its table is not the one of that name now, whose user types may have got fields."""
    if column is None or before.kind != column.kind:
        return True
    now = _pinned(column.type, keyspace, _TypesAt(keyspace, view.facts["types"], _NEVER))
    return _is_multicell(before.type) != _is_multicell(now) or not _have_same_layout(before.type, now, grown=True)


def _materialized(options: Mapping[str, Any]) -> View:
    return View(options.get("base_table_name", ""), options.get("where_clause", ""), bool(options.get("include_all_columns")))


def _contiguous(columns: tuple[Column, ...]) -> bool:
    return [column.position for column in columns] == list(range(len(columns)))


@lru_cache(maxsize=16_384)
def _column(name: str, kind_text: str, type_text: str, position: int, order: str | None) -> Column:
    """Cached: the incarnations of a table that is created repeatedly have the same columns."""
    kind = _kind(name, kind_text)
    return Column(name, kind, type_text, position if kind in ("partition_key", "clustering") else -1, str(order).lower() == "desc")


def _dropped(keyspace: str, view: _View, clustering: tuple[str, ...], values: Mapping[str, Any]) -> DroppedColumn:
    """A column as it was when it was dropped. Early 3.11 omits the kind. `dropped_time` is in ms."""
    name, kind, recorded = clustering[1], values.get("kind"), values["type"]
    before = view.before_drop(tuple(part.encode("utf-8", "surrogateescape") for part in clustering))
    if kind is None:
        kind = before.get("kind", "regular")
    said_at = view.last_written("dropped_columns", clustering)
    known = before.get("type", recorded)
    pinned = _pinned(known, keyspace, _TypesAt(keyspace, view.facts["types"], said_at))
    # 3.11 records a non-frozen user type as a tuple, whose cells have another layout than those in the log.
    is_pinned = _have_same_layout(pinned, recorded) or (_is_multicell(known) and not _is_multicell(recorded))
    dropped_at = min(max((values.get("dropped_time") or 0) * 1000, NO_TIMESTAMP), -NO_TIMESTAMP - 1)
    return DroppedColumn(name, _kind(name, kind), pinned if is_pinned else recorded, dropped_at, said_at)


@lru_cache(maxsize=4096)
def _have_same_layout(text: str, recorded: str, *, grown: bool = False) -> bool:
    """Whether a type is the recorded one, whose user types became tuples, or have `grown`."""
    try:
        return text == recorded or same_layout(parse_type(text, "", {}), parse_type(recorded, "", {}), grown=grown)
    except SchemaError:
        return False


def _is_multicell(text: str) -> bool:
    return wire_shape(text)[1]


def _as_dropped(view: _View, keyspace: str, column: Column, at: int) -> Column:
    """A column of a table that was dropped at `at` (µs). Its text stays, unless it has another meaning by now."""
    pinned = _pinned(column.type, keyspace, _TypesAt(keyspace, view.facts["types"], at))
    if pinned == column.type or pinned == _pinned(column.type, keyspace, _TypesAt(keyspace, view.facts["types"], _NEVER)):
        return column
    return replace(column, type=pinned)


def _pinned(text: str, keyspace: str, types: Types) -> str:
    """A type's text that needs no definitions of user types; the same text if it has none, or if one is unknown."""
    try:
        if not names_user_types(text):
            return text
        kind = parse_type(text, keyspace, types)
        found = f"'{class_text(kind)}'"
        return found if _is_equal(parse_type(found, "", {}), kind) else text
    except SchemaError:
        return text


def _is_equal(one: CqlType, other: CqlType) -> bool:
    """Whether two types have the same fields of the same names."""
    found = [[(str(part), [*part.known_fields] if isinstance(part, UdtType) else []) for part in parts(kind)] for kind in (one, other)]
    return found[0] == found[1]


class _TypesAt(Mapping[tuple[str, str], UserType]):
    """The user types of one keyspace as of a time (µs), found when they are asked for.

    What a column used at that time existed, so deletions do not count: of each type the last definition up to
    then, or the first one if no earlier one is known."""

    def __init__(self, keyspace: str, facts: _Facts, at: int) -> None:
        self._keyspace, self._facts, self._at = keyspace, facts, at

    def __getitem__(self, place: tuple[str, str]) -> UserType:
        keyspace, name = place
        if keyspace != self._keyspace:
            raise KeyError(place)
        row = self._facts.rows[(name.encode("utf-8", "surrogateescape"),)]
        cells = sorted((cell for cell in row.cells if cell.value and not cell.is_tombstone), key=lambda each: (each.timestamp, each.value))
        before = {cell.column: cell for cell in cells if cell.timestamp <= self._at}
        found = {cell.column: cell for cell in reversed(cells)} | before
        if not {"field_names", "field_types"} <= found.keys():
            raise KeyError(place)
        return _defined(keyspace, name, {column: _value("types", cell) for column, cell in found.items()}, dropped=False)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        raise NotImplementedError("types are looked up by name")

    def __len__(self) -> int:
        return len(self._facts.rows)


def _kind(name: str, text: str) -> ColumnKind:
    kind = _KINDS.get(text.lower())
    if kind is None:
        raise SchemaError(f"column {name!r} has unknown kind {shortened(text)!r}", operation="learn the schema")
    return kind


def _keyspace(name: str, view: _View) -> Keyspace | None:
    for _, values in view.rows("keyspaces"):
        replication = dict(values.get("replication") or ())
        if not all(isinstance(text, str) for pair in replication.items() for text in pair):
            raise SchemaError("the replication is not a map of texts", operation="learn the schema", obj=name)
        return Keyspace(name, replication, values.get("durable_writes", True), values.get("replication_type") or "untracked")
    return None


def _user_type(keyspace: str, view: _View, clustering: Clustering) -> dict[tuple[str, str], UserType]:
    """The user type of that row; its last form if it was dropped; {} if it is unknown."""
    (name,) = _text(clustering)
    _expect_name(clustering[0])
    whole = {"field_names", "field_types"}
    values = view.row("types", clustering)
    dropped = not whole <= values.keys()
    if dropped and not whole <= (values := view.last_values("types", clustering)).keys():
        return {}
    return {(keyspace, name): _defined(keyspace, name, values, dropped=dropped)}


def _defined(keyspace: str, name: str, values: Mapping[str, Any], *, dropped: bool) -> UserType:
    names, kinds = values["field_names"], values["field_types"]
    if len(names) != len(kinds) or len(set(names)) < len(names) or not all(isinstance(text, str) for text in (*names, *kinds)):
        raise SchemaError("field names and field types do not match", operation="learn the schema", obj=f"{keyspace}.{name}")
    return UserType(keyspace, name, tuple(names), tuple(kinds), dropped)


def _values(table: str, cells: Iterable[Cell], deletions: Iterable[DeletionTime], floor: int, bound: int) -> dict[str, Any]:
    """The values of the live cells after `floor` up to `bound`, given the deletions before `bound` (µs)."""
    for deletion in deletions:
        if floor < deletion.marked_for_delete_at < bound:
            floor = deletion.marked_for_delete_at
    live = [cell for cell in cells if floor < cell.timestamp <= bound]
    if len({cell.column for cell in live}) < len(live):
        live = list(settle_row(Row((), cells=tuple(live))).cells)
    return {
        cell.column: _decoded(table, cell.column, cell.value)
        for cell in live
        if cell.value and (cell.ttl or cell.local_deletion_time == NO_DELETION_TIME)
    }


def _value(table: str, cell: Cell) -> Any:
    return _decoded(table, cell.column, cell.value)


@lru_cache(maxsize=65_536)
def _decoded(table: str, column: str, value: bytes) -> Any:
    """A decoded value of system_schema. Cached: every table, version and node repeats the same few values."""
    kind = system_tables.SCHEMA_TABLES[system_tables.system_table_id("system_schema", table)].columns[column].type
    return parse_type(kind, "system_schema", {}).decode(value)


def _text(clustering: Clustering) -> tuple[str, ...]:
    return tuple([_part(value) for value in clustering])


@lru_cache(maxsize=16_384)
def _part(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "surrogateescape")


def _covers(tombstone: RangeTombstone, clustering: Clustering) -> bool:
    """Whether a range covers a row. Tracked tables have ascending text clusterings, so bytes can be
    compared."""
    after = _compare(clustering, tombstone.start)
    before = _compare(clustering, tombstone.end)
    return (after > 0 or (after == 0 and tombstone.start.inclusive)) and (before < 0 or (before == 0 and tombstone.end.inclusive))


def _compare(clustering: Clustering, bound: Bound) -> int:
    """Compare the clustering's prefix with the bound: -1, 0, 1. An unbounded end covers every row."""
    prefix, values = _bytes(clustering[: len(bound.values)]), _bytes(bound.values)
    return (prefix > values) - (prefix < values)


def _name(values: Clustering) -> bytes:
    return (values[0] or b"") if values else b""


def _bytes(values: Clustering) -> tuple[bytes, ...]:
    return values if None not in values else tuple(value or b"" for value in values)  # type: ignore[return-value]


# --- facts to JSON and back


def _partition_to_json(table: str, keyspace: str, facts: _PartitionFacts) -> dict[str, Any]:
    return {
        "table": table,
        "keyspace": keyspace,
        "deletions": _deletions_to_json(facts.deletions),
        "ranges": sorted((_range_to_json(tombstone) for tombstone in facts.ranges), key=str),
        "rows": [
            {
                "ck": _hex_all(clustering),
                "deletions": _deletions_to_json(of_row.deletions),
                "cells": sorted((_cell_to_json(cell) for cell in of_row.cells), key=str),
                **({"seen": [[written, *times] for written, times in sorted(of_row.seen.items())]} if of_row.seen else {}),
            }
            for clustering, of_row in sorted(facts.rows.items(), key=lambda item: _bytes(item[0]))
        ],
    }


def _partition_from_json(document: Mapping[str, Any]) -> _PartitionFacts:
    return _PartitionFacts(
        deletions=_deletions_from_json(document["deletions"]),
        ranges={_range_from_json(*tombstone) for tombstone in document["ranges"]},
        rows={
            _unhex_all(row["ck"]): _RowFacts(
                cells=_shared(frozenset(_cell_from_json(*cell) for cell in row["cells"])),
                deletions=_shared(frozenset(_deletions_from_json(row["deletions"]))),
                seen={written: (first, last) for written, first, last in row.get("seen", ())},
            )
            for row in document["rows"]
        },
    )


def _cell_to_json(cell: Cell) -> list[Any]:
    return [cell.column, cell.timestamp, cell.value.hex(), cell.ttl, _time(cell.local_deletion_time)]


@lru_cache(maxsize=65_536)
def _cell_from_json(column: str, timestamp: int, value: str, ttl: int, time: int | None) -> Cell:
    return Cell(column, timestamp, bytes.fromhex(value), None, ttl, _untime(time))


def _range_to_json(tombstone: RangeTombstone) -> list[Any]:
    ends = [[_hex_all(bound.values), bound.inclusive] for bound in (tombstone.start, tombstone.end)]
    return [*ends, *_deletions_to_json({tombstone.deletion})]


def _range_from_json(start: list[Any], end: list[Any], deletion: list[int | None]) -> RangeTombstone:
    bounds = [Bound(_unhex_all(values), inclusive) for values, inclusive in (start, end)]
    (by,) = _deletions_from_json([deletion])
    return RangeTombstone(bounds[0], bounds[1], by)


def _deletions_to_json(deletions: Collection[DeletionTime]) -> list[list[int | None]]:
    return sorted([[d.marked_for_delete_at, _time(d.local_deletion_time)] for d in deletions], key=str)


def _deletions_from_json(deletions: list[list[Any]]) -> set[DeletionTime]:
    return {DeletionTime(marked, _untime(time)) for marked, time in deletions}


def _time(time: int) -> int | None:
    return None if time == NO_DELETION_TIME else time


def _untime(time: int | None) -> int:
    return NO_DELETION_TIME if time is None else time


def _hex_all(values: Clustering) -> list[str | None]:
    return [None if value is None else value.hex() for value in values]


def _unhex_all(values: list[str | None]) -> Clustering:
    return tuple(None if value is None else bytes.fromhex(value) for value in values)
