"""Mutations as lines of JSON, for people and for comparison with Cassandra's CommitLogReader.

One line per frame, in log order, with raw bytes in hex: seg, pos (end of the frame), size of the body, ks,
cdc (whether one of its tables ever had CDC), pk, updates; from version 9 on also flags, and the epoch of an
update that changes something (Cassandra's reader forgets that of the others). Values are not decoded; types
are needed only to recognize counters. A frame that cannot be decoded yields a `Failure` instead of a line.

The schema is learnt from all segments, so they are read twice: by `learn`, then by `decode`. The text is
concatenated and not built from dictionaries, which halves the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from uuid import UUID

from writetime.cassandra.commitlog.encode import column_order
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION, count_offset, decode_mutation, read_head
from writetime.cassandra.commitlog.segment import Frame, Scan, peek
from writetime.cassandra.commitlog.system_mutations import COMPUTED, decode_own, is_schema_change
from writetime.cassandra.model import (
    Bound,
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.epochs import FOLLOWED, Followed, SchemaMutation, follow
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema, Table, short_id
from writetime.errors import DecodeError, SchemaError, UnknownTable

_START_KINDS = {True: "INCL_START_BOUND", False: "EXCL_START_BOUND"}
_END_KINDS = {True: "INCL_END_BOUND", False: "EXCL_END_BOUND"}
_HASH_ORDER_VERSION = 6
_FLAGS_OF_THE_READER = 0x01
"""The only flag that Cassandra's reader keeps."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A frame with valid CRCs that cannot be decoded with the schema."""

    frame: Frame
    error: DecodeError | SchemaError


Wanted = Callable[[UUID, bytes], bool]
"""Whether to show the update of a table (by id) with that partition key. Also called for unknown table
ids."""


def learn(found: Scan, learner: SchemaLearner) -> list[Failure]:
    """Apply every schema change of a segment to the learner. Returns the changes that cannot be decoded."""
    failures: list[Failure] = []
    changes, _ = schema_changes(mutations_of(found, FOLLOWED), found, failures)
    for change in changes:
        learner.apply_logged(change)
    return failures


def schema_changes(
    mutations: Iterable[tuple[Frame, Mutation | Failure]], found: Scan, failures: list[Failure], last: Followed | None = None
) -> tuple[list[SchemaMutation], Followed | None]:
    """The schema changes among the mutations of a segment, as `follow` orders them. Adds to `failures` what
    cannot be decoded."""
    decoded: list[tuple[int, Mutation]] = []
    for frame, mutation in mutations:
        if isinstance(mutation, Failure):
            failures.append(mutation)
        else:
            decoded.append((frame.position, mutation))
    return follow(found.descriptor.id, decoded, last, has_epochs=found.descriptor.version >= EPOCHS_VERSION)


def mutations_of(found: Scan, tables: Mapping[UUID, Table], unknown: set[str] | None = None) -> Iterator[tuple[Frame, Mutation | Failure]]:
    """The mutations whose first update is of one of Cassandra's own `tables`. Names of skipped columns and
    tables are added to `unknown`."""
    ids, image, version = {table_id.bytes for table_id in tables}, found.image, found.descriptor.version
    count_at = count_offset(version)
    for frame in found.frames:
        at = frame.body_offset + count_at
        # Fast path: the id of the first table follows the count of one byte. Nearly all frames stop here.
        if image[at] < 0x80 and image[at + 1 : at + 17] not in ids and (image[at] == 1 or image[at + 7] >> 4 != COMPUTED):
            continue
        body = found.body(frame)
        try:
            if read_head(body, version=version).table_id in tables or is_schema_change(body, version=version):
                own = decode_own(body, version=version)
                if unknown is not None:
                    unknown.update(own.unknown)
                yield frame, own.mutation
        except DecodeError as error:
            yield frame, Failure(frame, error)


def decode(
    found: Scan, schema: Schema, wanted: Wanted | None = None, then: Callable[[Frame], Schema] | None = None
) -> Iterator[tuple[Frame, Mutation | Failure]]:
    """The mutation of every valid frame, in log order, or the failure to decode it.

    With `wanted`, a mutation keeps only the wanted updates and is skipped if it has none, if possible without
    decoding. `then` returns the schema in force at a frame and is used for a second attempt: a column may
    have been dropped and added again with another type.
    """
    for frame in found.frames:
        body = found.body(frame)
        try:
            if wanted is not None:
                count, table_id, key = peek(body, version=found.descriptor.version)
                if count == 1 and table_id in schema.tables and not wanted(table_id, key):
                    continue
            mutation = decode_mutation(body, schema, version=found.descriptor.version)
        except (DecodeError, SchemaError) as error:
            again = _own_or_none(body, found.descriptor.version)
            if again is None and then is not None and not isinstance(error, UnknownTable):
                again = _decode_or_none(found, frame, then(frame))
            if again is None:
                yield frame, Failure(frame, error)
                continue
            mutation = again
        if wanted is not None:
            mutation = replace(mutation, updates=tuple(update for update in mutation.updates if wanted(update.table_id, update.key)))
        if mutation.updates:
            yield frame, mutation


def _own_or_none(body: bytes, version: int) -> Mutation | None:
    """A schema change of a later Cassandra version, without its unknown parts."""
    try:
        return decode_own(body, version=version).mutation if is_schema_change(body, version=version) else None
    except DecodeError:
        return None


def _decode_or_none(found: Scan, frame: Frame, schema: Schema) -> Mutation | None:
    try:
        return decode_mutation(found.body(frame), schema, version=found.descriptor.version)
    except (DecodeError, SchemaError):
        return None


class Lines:
    """Makes lines, given the schema and the ids of the tables that ever had cdc."""

    def __init__(self, schema: Schema, cdc_ever: Collection[UUID]) -> None:
        self.schema = schema
        self.cdc_ever = cdc_ever
        self._heads: dict[UUID, str] = {}

    def line(self, found: Scan, frame: Frame, mutation: Mutation) -> str:
        """The line of one mutation, without a line break."""
        updates = mutation.updates
        if found.descriptor.version == _HASH_ORDER_VERSION and len(updates) > 1:
            updates = _hash_order(updates)
        keyspace = _text(self.schema.tables[updates[0].table_id].keyspace)
        cdc = "true" if any(update.table_id in self.cdc_ever for update in updates) else "false"
        head = f'{{"seg":{found.descriptor.id},"pos":{frame.position},"size":{frame.body_length},"ks":{keyspace},"cdc":{cdc}'
        if mutation.flags is not None:
            head += f',"flags":{mutation.flags & _FLAGS_OF_THE_READER}'
        return f'{head},"pk":"{updates[0].key.hex()}","updates":[{",".join(map(self._update, updates))}]}}'

    def table_name(self, table: Table) -> str:
        """The table's name. An older incarnation has a part of its id appended."""
        return f"{table.name}_OLD_{short_id(table.id)}" if table.replaced else table.name

    def _update(self, update: PartitionUpdate) -> str:
        table = self.schema.tables[update.table_id]
        head = self._heads.get(table.id)
        if head is None:
            head = self._heads[table.id] = f'{{"table":{_text(self.table_name(table))},"id":"{table.id}"'
        parts = [head]
        if update.epoch is not None and not update.is_empty:
            parts.append(f'"epoch":{update.epoch}')
        if update.deletion is not None:
            parts.append(f'"pdel":{_deletion(update.deletion)}')
        if update.range_tombstones:
            parts.append(f'"rts":[{",".join(map(_range, update.range_tombstones))}]')
        if update.static_row is not None and not update.static_row.is_empty:
            parts.append(f'"static":{{"static":true,{_row(update.static_row, table)}}}')
        rows = ",".join([f'{{"ck":[{_values(row.clustering or ())}],{_row(row, table)}}}' for row in update.rows])
        return f'{",".join(parts)},"rows":[{rows}]}}'


def _hash_order(updates: Iterable[PartitionUpdate]) -> tuple[PartitionUpdate, ...]:
    """The order of a mutation's updates in Cassandra 3.11's reader: that of a HashMap by table id with that
    many entries.

    3.11: Mutation.MutationSerializer.deserialize, HashMap.tableSizeFor and hash, UUID.hashCode. Since 4.0 the
    order of the log is kept.
    """
    updates = tuple(updates)
    capacity = 1 << (len(updates) - 1).bit_length()
    while len(updates) > 0.75 * capacity:
        capacity *= 2

    def bucket(update: PartitionUpdate) -> int:
        halves = (update.table_id.int >> 64) ^ (update.table_id.int & 0xFFFFFFFFFFFFFFFF)
        code = (halves >> 32 ^ halves) & 0xFFFFFFFF
        return (code ^ code >> 16) & (capacity - 1)

    return tuple(sorted(updates, key=bucket))


def _row(row: Row, table: Table) -> str:
    parts = []
    if row.liveness is not None:
        parts.append(f'"live":{_liveness(row.liveness)}')
    if row.deletion is not None:
        parts.append(f'"del":{_deletion(row.deletion)}')
    cells = _cells_and_deletions(row, table) if row.complex_deletions else [_cell(cell, table) for cell in row.cells]
    parts.append(f'"cells":[{",".join(cells)}]')
    return ",".join(parts)


def _cells_and_deletions(row: Row, table: Table) -> list[str]:
    """Simple columns, then complex columns in wire order, each deletion before its cells."""
    by_column: dict[str, list[str]] = {name: [_complex_deletion(name, deletion)] for name, deletion in row.complex_deletions.items()}
    cells: list[str] = []
    for cell in row.cells:
        column = cells if cell.path is None else by_column.setdefault(cell.column, [])
        column.append(_cell(cell, table))
    for name in sorted(by_column, key=column_order):
        cells += by_column[name]
    return cells


def _complex_deletion(column: str, deletion: DeletionTime) -> str:
    return f'{{"col":{_text(column)},"complexDeletion":{_deletion(deletion)}}}'


def _liveness(liveness: Liveness) -> str:
    expiry = f',"ttl":{liveness.ttl},"ldt":{liveness.expires_at}' if liveness.ttl else ""
    return f'{{"ts":{liveness.timestamp}{expiry}}}'


def _cell(cell: Cell, table: Table) -> str:
    out = f'{{"col":{_text(cell.column)},"ts":{cell.timestamp}'
    if cell.path is not None:
        out += f',"path":"{cell.path.hex()}"'
    if cell.is_tombstone:
        return f'{out},"tombstone":true,"ldt":{cell.local_deletion_time},"value":"{cell.value.hex()}"}}'
    if cell.is_expiring:
        out += f',"ttl":{cell.ttl},"ldt":{cell.local_deletion_time}'
    column = table.columns.get(cell.column)
    if column is not None and column.type == "counter":
        out += ',"counter":true'
    return f'{out},"value":"{cell.value.hex()}"}}'


def _deletion(deletion: DeletionTime) -> str:
    return f'{{"ts":{deletion.marked_for_delete_at},"ldt":{deletion.local_deletion_time}}}'


def _range(tombstone: RangeTombstone) -> str:
    times = f'"ts":{tombstone.deletion.marked_for_delete_at},"ldt":{tombstone.deletion.local_deletion_time}'
    return f'{{{times},"start":{_bound(tombstone.start, _START_KINDS)},"end":{_bound(tombstone.end, _END_KINDS)}}}'


def _bound(bound: Bound, kinds: dict[bool, str]) -> str:
    return f'{{"kind":"{kinds[bound.inclusive]}","ck":[{_values(bound.values)}]}}'


def _values(values: Iterable[bytes | None]) -> str:
    return ",".join(["null" if value is None else f'"{value.hex()}"' for value in values])


@lru_cache(maxsize=4096)
def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
