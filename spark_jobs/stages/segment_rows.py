"""The content of a segment as rows of a table: generic ones (one per cell or deletion) or typed ones (one per
changed row of one table).

Strategy: generic rows are built from the decoder's Arrow batches column by column, without a Python object
per cell; typed rows are built from mutations, because their values have to be decoded anyway. Both come in
log order, in batches of bounded size, with their positions. Nothing is reconciled: a row shows what one
mutation says, not what the table holds. Knows neither Spark nor the source of the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.stages.table_rows import EXPIRES_AT, OP, WRITETIME, RowShape
from writetime.cassandra.commitlog.mutation import column_name
from writetime.cassandra.commitlog.mutation_json import Failure, Wanted, decode
from writetime.cassandra.commitlog.segment import Frame, Scan, peek
from writetime.cassandra.merge.counters import total
from writetime.cassandra.model import (
    NO_TTL,
    Bound,
    Cell,
    DeletionTime,
    PartitionUpdate,
    RangeTombstone,
    Row,
)
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.types.literal import literal_of
from writetime.cassandra.types.types import (
    NATIVE,
    CollectionType,
    CqlType,
    UdtType,
    assemble,
    quoted,
)
from writetime.errors import DecodeError, WritetimeError
from writetime.events.masking import Rules, TableRules
from writetime.events.naming import to_column
from writetime.events.row_values import split_partition_key
from writetime.kernels import mutation_columns, mutation_decoder

GENERIC: Final = pa.schema(
    [
        ("segment", pa.string()),
        ("segment_id", pa.int64()),
        ("position", pa.int64()),  # where the frame ends; of a problem where it begins
        ("update", pa.int32()),  # place of the partition update in its mutation
        ("keyspace", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.string()),
        ("key", pa.binary()),
        ("clustering", pa.list_(pa.binary())),  # of a range its start
        ("kind", pa.string()),
        ("column", pa.string()),
        ("path", pa.binary()),
        ("value", pa.binary()),  # of a problem the bytes that could not be read
        ("writetime", pa.int64()),
        ("ttl", pa.int32()),
        ("local_deletion_time", pa.int64()),
        ("static", pa.bool_()),
        ("range_end", pa.list_(pa.binary())),
        ("start_inclusive", pa.bool_()),
        ("end_inclusive", pa.bool_()),
        ("error", pa.string()),
    ]
)
KINDS: Final = ("partition_deletion", "range_deletion", "liveness", "row_deletion", "collection_deletion", "cell", "tombstone", "problem")

SEGMENT, POSITION, DELETED, DELETED_AT, INSERTED_AT, RANGE = "_segment", "_position", "_deleted", "_deleted_at", "_inserted_at", "_range"
_PER_BATCH = 2000
_NAMES: Final = ("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Source:
    """A scanned segment, and the name that its rows have."""

    name: str
    found: Scan


# --- generic


def generic_rows(source: Source, schema: Schema, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """GENERIC rows of the wanted updates. What cannot be read or decoded becomes a row of kind `problem` at
    the end of its batch."""
    found = source.found
    names = _Names(schema, wanted)
    frames = [frame for frame in found.frames if _may_be_wanted(found, frame, schema, wanted)]
    for chunk in mutation_decoder.decode(found.image, frames, schema, version=found.descriptor.version):
        batch = _generic(chunk, source, names)
        yield from (part for part in _slices(batch) if part.num_rows)
        problems = [_problem(source, f.frame.position, f.error, found.body(f.frame)) for f in chunk.failures]
        if problems:
            yield pa.RecordBatch.from_pylist(problems, schema=GENERIC)
    damaged = [_problem(source, problem.position, problem.error, found.lost(problem)) for problem in found.problems]
    if damaged:
        yield pa.RecordBatch.from_pylist(damaged, schema=GENERIC)


class Hidden:
    """Hides in generic rows what the rules of a pipeline do not publish: values and elements of masked or
    excluded columns, masked keys, everything of a table with a row filter, and the bytes of problems, which
    may be anything."""

    def __init__(self, rules: Rules, schema: Schema) -> None:
        self._columns: dict[str, list[str] | None] = {}
        self._keys: set[str] = set()
        for table_id, table in schema.tables.items():
            dropped = {name: Column(name, column.kind, column.type) for name, column in table.dropped_columns.items()}
            found = rules.of(replace(table, columns={**dropped, **table.columns}), schema.types)
            if found:
                self._columns[str(table_id)] = None if found.filter else [_printable(name.encode(*_NAMES)) for name in found.hidden]
            if found.filter or any(column.name in found.hidden for column in (*table.partition_key, *table.clustering)):
                self._keys.add(str(table_id))

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """GENERIC rows without what is hidden."""
        values = pc.equal(batch["kind"], "problem")
        for table_id, columns in self._columns.items():
            of_table = pc.fill_null(pc.equal(batch["table_id"], table_id), False)
            of_column = True if columns is None else pc.is_in(batch["column"], pa.array(columns, pa.string()))
            values = pc.or_(values, pc.and_(of_table, of_column))
        keys = pc.is_in(batch["table_id"], pa.array(sorted(self._keys), pa.string()))
        gone = dict.fromkeys(("value", "path"), values) | dict.fromkeys(("key", "clustering", "range_end"), keys)
        arrays = [
            pc.if_else(gone[field.name], pa.scalar(None, field.type), column) if field.name in gone else column
            for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def unreadable(name: str, error: WritetimeError, content: bytes) -> pa.RecordBatch:
    """The row of a file that cannot be read at all."""
    row = dict.fromkeys(GENERIC.names) | {"segment": name, "position": 0, "kind": "problem", "value": content, "error": str(error)}
    return pa.RecordBatch.from_pylist([row], schema=GENERIC)


def _problem(source: Source, position: int, error: WritetimeError, lost: bytes) -> dict[str, Any]:
    about = {"segment": source.name, "segment_id": source.found.descriptor.id, "position": position}
    return dict.fromkeys(GENERIC.names) | about | {"kind": "problem", "value": lost, "error": str(error)}


def _may_be_wanted(found: Scan, frame: Frame, schema: Schema, wanted: Wanted) -> bool:
    """Whether a frame has to be decoded. A frame of several updates always has, because only its first table
    is known before."""
    try:
        count, table_id, key = peek(found.body(frame), version=found.descriptor.version)
    except DecodeError:
        return True
    return count != 1 or table_id not in schema.tables or wanted(table_id, key)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts of a batch in a size that suits the transfer to the JVM."""
    for start in range(0, batch.num_rows, 16 * _PER_BATCH):
        yield batch.slice(start, 16 * _PER_BATCH)


class _Names:
    """Names of the tables of a schema by code, as `mutation_columns.Dictionaries` numbers them, and which of
    them are wanted."""

    def __init__(self, schema: Schema, wanted: Wanted) -> None:
        self.schema, self.wanted = schema, wanted

    def tables(self, dictionary: Any) -> list[Table]:
        return [self.schema.tables[UUID(bytes=raw)] for raw in dictionary.to_pylist()]


def _generic(chunk: mutation_columns.Decoded, source: Source, names: _Names) -> pa.RecordBatch:
    """The five tables of a chunk as one, in log order: a partition's deletions, then its rows in their
    order."""
    updates, rows = chunk.updates, chunk.rows
    of_row = rows["update"].to_numpy()
    cells_row = chunk.cells["row"].to_numpy()
    complex_row = chunk.complex_deletions["row"].to_numpy()
    live, gone = (np.flatnonzero(rows[name].is_valid()) for name in ("liveness_timestamp", "deletion_timestamp"))
    dropped = np.flatnonzero(updates["deletion_timestamp"].is_valid())
    tombstone = pc.and_(pc.equal(chunk.cells["ttl"], NO_TTL), chunk.cells["local_deletion_time"].is_valid())
    parts = [
        _Part(0, dropped, None, _deletion(updates.take(dropped)), "partition_deletion"),
        _Part(1, chunk.ranges["update"].to_numpy(), None, _range(chunk.ranges), "range_deletion"),
        _Part(2, of_row[live], live, _liveness(rows.take(live)), "liveness"),
        _Part(3, of_row[gone], gone, _deletion(rows.take(gone)), "row_deletion"),
        _Part(
            4,
            of_row[complex_row],
            complex_row,
            _column(chunk.complex_deletions) | _deletion(chunk.complex_deletions),
            "collection_deletion",
        ),
        _Part(5, of_row[cells_row], cells_row, _cell(chunk.cells), pc.if_else(tombstone, "tombstone", "cell")),
    ]
    table = pa.concat_tables([_filled(part, chunk, source, names) for part in parts])
    update, row, rank = (np.concatenate([getattr(part, name) for part in parts]) for name in ("update", "place", "ranks"))
    kept = _kept(updates, names)[update]
    order = np.lexsort((rank, row, update))
    ordered = table.take(order[kept[order]]).combine_chunks()
    return ordered.to_batches()[0] if ordered.num_rows else pa.RecordBatch.from_pylist([], schema=GENERIC)


@dataclass(frozen=True)
class _Part:
    """Rows of one kind: the update and row that each belongs to, and the columns that only they have."""

    rank: int
    update: Any
    row: Any
    columns: dict[str, Any]
    kind: Any

    @property
    def place(self) -> Any:
        return np.full(len(self.update), -1) if self.row is None else self.row

    @property
    def ranks(self) -> Any:
        return np.full(len(self.update), self.rank)


def _filled(part: _Part, chunk: mutation_columns.Decoded, source: Source, names: _Names) -> pa.Table:
    size = len(part.update)
    updates = chunk.updates.take(part.update)
    tables = names.tables(updates["table"].dictionary)
    codes = updates["table"].indices
    columns: dict[str, Any] = {
        "segment": pa.repeat(source.name, size),
        "segment_id": pa.repeat(source.found.descriptor.id, size),
        "position": updates["position"],
        "update": updates["ordinal"],
        "keyspace": pa.array([table.keyspace for table in tables], pa.string()).take(codes),
        "table": pa.array([table.name for table in tables], pa.string()).take(codes),
        "table_id": pa.array([str(table.id) for table in tables], pa.string()).take(codes),
        "key": updates["key"],
        "kind": pa.repeat(part.kind, size) if isinstance(part.kind, str) else part.kind,
        **part.columns,
    }
    if part.row is not None:
        rows = chunk.rows.take(part.row)
        columns |= {"clustering": rows["clustering"], "static": rows["static"]}
    return pa.table([columns.get(field.name, pa.nulls(size, field.type)) for field in GENERIC], schema=GENERIC)


def _kept(updates: Any, names: _Names) -> Any:
    """Which updates are wanted."""
    ids = [table.id for table in names.tables(updates["table"].dictionary)]
    asked = zip(updates["table"].indices.to_pylist(), updates["key"].to_pylist(), strict=True)
    return np.array([names.wanted(ids[code], key) for code, key in asked], bool)


def _deletion(batch: Any) -> dict[str, Any]:
    return {"writetime": batch["deletion_timestamp"], "local_deletion_time": batch["deletion_time"]}


def _range(ranges: Any) -> dict[str, Any]:
    bounds = {"clustering": ranges["start"], "range_end": ranges["end"]}
    return bounds | {name: ranges[name] for name in ("start_inclusive", "end_inclusive")} | _deletion(ranges)


def _liveness(rows: Any) -> dict[str, Any]:
    times = {"writetime": rows["liveness_timestamp"], "local_deletion_time": rows["liveness_expires_at"]}
    return times | {"ttl": _ttl(rows["liveness_ttl"])}


def _column(batch: Any) -> dict[str, Any]:
    names = [_printable(column_name(raw).encode(*_NAMES)) for raw in batch["column"].dictionary.to_pylist()]
    return {"column": pa.array(names, pa.string()).take(batch["column"].indices)}


def _printable(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _cell(batch: Any) -> dict[str, Any]:
    own = {name: batch[name] for name in ("path", "value", "local_deletion_time")}
    return _column(batch) | own | {"writetime": batch["timestamp"], "ttl": _ttl(batch["ttl"])}


def _ttl(array: Any) -> Any:
    return pc.if_else(pc.equal(array, NO_TTL), None, array)


# --- typed


def typed_schema(table: Table, schema: Schema) -> pa.Schema:
    """The table's columns, with the names and types of the warehouse, and the facts about a row. SchemaError
    if a column's type is unknown."""
    shape = RowShape.of(table, schema)
    clustering = pa.struct([shape.key_type.field(to_column(column.name)) for column in table.clustering])
    bounds = [("start", clustering), ("start_inclusive", pa.bool_()), ("end", clustering), ("end_inclusive", pa.bool_())]
    return pa.schema(
        [
            *shape.row_type,
            (OP, pa.string()),
            (WRITETIME, pa.map_(pa.string(), pa.int64())),
            (EXPIRES_AT, pa.map_(pa.string(), pa.int64())),
            (DELETED, pa.list_(pa.string())),
            (DELETED_AT, pa.int64()),
            (INSERTED_AT, pa.int64()),
            *([(RANGE, pa.struct(bounds))] if table.clustering else []),
            (SEGMENT, pa.string()),
            (POSITION, pa.int64()),
        ]
    )


def typed_rows(
    source: Source,
    table: Table,
    schema: Schema,
    columns: Sequence[str],
    failed: Callable[[WritetimeError], None],
    rules: Rules | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of one table as `rules` publish it, with `columns` named as in `typed_schema`. `failed` is called
    with what cannot be read, decoded or shown, which is skipped unless it raises."""
    of_table = (rules or Rules()).of(table, schema.types)
    view = _TypedRows(source, table, schema, of_table)
    full = typed_schema(of_table.shown(), schema)
    wanted = pa.schema([full.field(name) for name in columns])
    pending: list[dict[str, Any]] = []
    size = 0
    for problem in source.found.problems:
        failed(problem.error)
    for frame, decoded in decode(source.found, schema, lambda table_id, _: table_id == table.id):
        if isinstance(decoded, Failure):
            if _concerns(source.found, frame, table):
                failed(decoded.error)
            continue
        try:
            made = [row for update in decoded.updates for row in view.rows(frame, update)]
        except WritetimeError as error:
            failed(error)
            continue
        pending += made
        size += frame.body_length
        if len(pending) >= _PER_BATCH or size >= mutation_columns.CHUNK_BYTES:
            yield pa.RecordBatch.from_pylist(pending, schema=wanted)
            pending, size = [], 0
    if pending:
        yield pa.RecordBatch.from_pylist(pending, schema=wanted)


def _concerns(found: Scan, frame: Frame, table: Table) -> bool:
    """Whether a mutation that cannot be decoded may affect the table."""
    try:
        count, table_id, _ = peek(found.body(frame), version=found.descriptor.version)
    except DecodeError:
        return True
    return count != 1 or table_id == table.id


class _TypedRows:
    """Makes the rows of one table's updates."""

    def __init__(self, source: Source, table: Table, schema: Schema, rules: TableRules) -> None:
        self.name = source.name
        self.table = table
        self.shape = RowShape.of(table, schema)
        self.shows = RowShape.of(rules.shown(), schema)
        self.masked = rules.masks.keys() | rules.nested.keys()
        self._change = rules.compiled()
        self.clustering = [column.name for column in table.clustering]

    def rows(self, frame: Frame, update: PartitionUpdate) -> Iterator[dict[str, Any]]:
        parts = split_partition_key(update.key, len(self.table.partition_key))
        key = {column.name: self._value(column.name, part) for column, part in zip(self.table.partition_key, parts, strict=True)}
        about = {SEGMENT: self.name, POSITION: frame.position}
        if update.deletion is not None:
            yield self._shown(key) | about | _op("delete_partition", update.deletion)
        for tombstone in update.range_tombstones:
            yield self._shown(key) | about | _op("delete_range", tombstone.deletion) | {RANGE: self._range(tombstone)}
        for row in (update.static_row, *update.rows):
            if row is not None and not row.is_empty:
                yield self._row(key, row) | about

    def _value(self, column: str, part: bytes | None) -> Any:
        return None if part is None else self.shape.columns[column].decode(part)

    def _shown(self, values: dict[str, Any]) -> dict[str, Any]:
        return self.shows.values(self._change(values)) or {}

    def _prefix(self, bound: Bound) -> dict[str, Any]:
        return self._shown({name: self._value(name, part) for name, part in zip(self.clustering, bound.values, strict=False)})

    def _range(self, tombstone: RangeTombstone) -> dict[str, Any]:
        start, end = tombstone.start, tombstone.end
        bounds = {"start": self._prefix(start), "start_inclusive": start.inclusive}
        return bounds | {"end": self._prefix(end), "end_inclusive": end.inclusive}

    def _row(self, key: dict[str, Any], row: Row) -> dict[str, Any]:
        clustering = {name: self._value(name, part) for name, part in zip(self.clustering, row.clustering or (), strict=False)}
        by_column: dict[str, list[Cell]] = {}
        for cell in row.cells:
            if cell.column in self.shows.columns:
                by_column.setdefault(cell.column, []).append(cell)
        deleted = [name for name in row.complex_deletions if name in self.shows.columns]
        values: dict[str, Any] = {}
        written: dict[str, int] = {}
        expiring: dict[str, int] = {}
        for name, found in by_column.items():
            live = [cell for cell in found if not cell.is_tombstone]
            deleted += [self._element(name, cell) for cell in found if cell.is_tombstone]
            if live:
                values[name] = self._assembled(name, live)
                written[name] = max(cell.timestamp for cell in live)
                expiries = [cell.local_deletion_time for cell in live if cell.is_expiring]
                expiring |= {name: min(expiries)} if expiries else {}
        inserted_at = None if row.liveness is None else row.liveness.timestamp
        about = {WRITETIME: written, EXPIRES_AT: expiring, DELETED: deleted, INSERTED_AT: inserted_at}
        return self._shown(key | clustering | values) | about | _op(_operation(row), row.deletion)

    def _assembled(self, name: str, live: list[Cell]) -> Any:
        kind = self.shape.columns[name]
        return total(live[0].value) if str(kind) == "counter" else assemble(kind, live)

    def _element(self, name: str, cell: Cell) -> str:
        """The deleted element in CQL's syntax: v, m['key'], u.field."""
        kind: CqlType = self.shape.columns[name]
        if cell.path is None or name in self.masked:
            return name
        if isinstance(kind, UdtType):
            fields = list(kind.known_fields)
            index = int.from_bytes(cell.path, "big")
            return f"{name}.{quoted(fields[index]) if index < len(fields) else index}"
        of = kind.elements[0] if isinstance(kind, CollectionType) and kind.kind != "list" else NATIVE["timeuuid"]
        return f"{name}[{literal_of(of, cell.path)}]"


def _operation(row: Row) -> str:
    if row.is_static:
        return "static"
    if row.liveness is not None:
        return "insert"
    return "update" if row.cells or row.complex_deletions else "delete"


def _op(operation: str, deletion: DeletionTime | None) -> dict[str, Any]:
    return {OP: operation, DELETED_AT: None if deletion is None else deletion.marked_for_delete_at}
