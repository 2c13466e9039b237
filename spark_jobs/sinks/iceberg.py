"""Iceberg tables: current rows `<keyspace>.<table>`, changes `<keyspace>__changes.<table>` (names by
writetime.events.naming), and two tables of all pipelines: quarantine records `_writetime.quarantine`, and
`_writetime.completeness`. Only this module creates, evolves and writes them.

Strategy: the CQL schema determines the columns (spark_jobs.stages.table_rows,
spark_jobs.sinks.schema_evolution). Columns are added and renamed as in the cluster; a dropped column stays,
so that history remains readable, and only current rows lose its values. Every commit of rows carries its
batch number and is idempotent: changes overwrite what the batch wrote before; current rows are merged to the
batch's result, or replaced if the table was truncated. A delayed driver finds its batch sealed and commits
nothing (`Fence`). Properties can still be set late, on top of what others have committed since: so what they say
has a name of its own for each chain and each column, and nobody overwrites what another one says. Knows Spark SQL;
must not know where rows come from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, reduce
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

import pyarrow as pa
import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DecimalType, StructField, StructType

from spark_jobs.failures import TablesFailed, kind_of, of_each, reason_of
from spark_jobs.meter import Made, Meter
from spark_jobs.sinks.batch_files import (
    CHANGES,
    CURRENT,
    EMITTED,
    FOUND,
    REJECTED,
    WRITTEN,
    Events,
    KeyLookup,
    PageRows,
    TaskFiles,
    looking_up,
    writing,
)
from spark_jobs.sinks.changes_files import ChangesFiles
from spark_jobs.sinks.data_files import FileTarget
from spark_jobs.sinks.iceberg_table import IcebergTable, Kept, Replaced, is_conflict
from spark_jobs.sinks.own_columns import OwnColumns, Trouble
from spark_jobs.sinks.row_positions import MAX_KEY_BYTES, HeldFile, Lookup, can_look_up, in_shares, written_with_keys
from spark_jobs.sinks.schema_evolution import (
    Path,
    Steps,
    converted,
    literal,
    no_wider,
    quoted,
    steps,
)
from spark_jobs.sinks.spark_catalog import SparkCatalog
from spark_jobs.spark_errors import why
from spark_jobs.stages.event_pages import change_rows, kept_rows, last_rows, one_of_each_key
from spark_jobs.stages.number_columns import NumberTooLong, lacking, number_or_null, too_long
from spark_jobs.stages.scan import Batches
from spark_jobs.stages.table_rows import EXPIRES_AT, OP, WRITETIME, RowShape, changes_schema
from writetime.cassandra.schema import model
from writetime.cassandra.schema.fingerprint import describe, described, schema_version
from writetime.cassandra.schema.model import Schema, Table
from writetime.config.pipeline import PipelineConfig
from writetime.config.warehouse import WarehouseConfig
from writetime.errors import BatchBusy, BatchClosed, BatchError, ChainMismatch
from writetime.events.naming import OWN_NAMESPACE, to_changes_namespace, to_column, to_namespace, to_table
from writetime.events.number_rules import Digits
from writetime.pipeline import again
from writetime.pipeline.complete_tables import CompleteTable
from writetime.pipeline.documents import (
    Chain,
    Manifest,
    RefusedTable,
    StageCost,
    TableFiles,
    TablePoint,
    TablePoints,
    WarehouseFiles,
    Watermark,
)
from writetime.pipeline.identity import Owner, owner
from writetime.pipeline.pinned import VerdictAdded, addition
from writetime.pipeline.planner import not_voided, read_sealed
from writetime.pipeline.quarantine.published import table_row
from writetime.pipeline.quarantine.record import QuarantineRecord
from writetime.storage.layout import live
from writetime.storage.store import Store

Facts = Literal["map", "none"]
Rows = Literal["merged", "replaced"]
"""What a batch's rows are to the current rows that are there."""
Part = Literal["current", "changes"]
"""The two tables that a table of the cluster has."""

log = structlog.get_logger()

BATCH_PROPERTY = "writetime.batch"
_BATCH_ID_PROPERTY = "writetime.batch-id"
_CHAIN_PROPERTY = "writetime.chain"
STEP_PROPERTY = "writetime.step"
COMPLETE_PROPERTY = "writetime.complete-until"
"""Up to when the table is complete with the snapshot, in ISO 8601."""
_VOID_PROPERTY = "writetime.void"
"""Of a snapshot: the batch that made it, its id, its chain's id, and whether it brought `rows`, took the
values of `dropped` columns, as `refill` moved values to a column of another type, or took back what `void`
batches had committed, of which it names the numbers."""
ROWS = "rows"
"""The step of a commit with the batch's current rows."""
_ID_PROPERTY = "writetime.table-id"
_OWNER_PROPERTY = "writetime.pipeline"
_FACTS_PROPERTY = "writetime.cell-facts"
_KEYS_PROPERTY = "writetime.keys"
_KEY_NAMES_PROPERTY = "writetime.keys.first"
_DROPPED_PROPERTY = "writetime.dropped"
_REFILL_PROPERTY = "writetime.refill"
_INCOMPLETE_PROPERTY = "writetime.incomplete"
_SCHEMA_PROPERTY = "writetime.schema."
"""Of a table: whose rows it holds, which pipeline it belongs to, how it keeps facts of cells, the key columns
by their CQL names, the dropped columns whose values have been taken (name to µs), `.<column>`: the column that waits
for values that were set aside in this one, `.<first batch>`: a chain of batches that has replaced what was there,
whether that was rebuilt from an archive that lacked something, and, of changes, what each schema version in it
means."""
_QUARANTINE_ID = "quarantine"
_COMPLETENESS_ID = "completeness"
"""What the tables of all pipelines have for an id, and their names."""
_FACTS = pa.map_(pa.string(), pa.int64())
_ATTEMPTS = 8
_LONGEST = 300  # characters of Iceberg's reason: it may list every file
_PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "20",
    # Each commit adds a manifest, which readers and merges open: one request each in a bucket.
    "commit.manifest.min-count-to-merge": "25",
    # Each commit writes a new metadata.json with all snapshots; Iceberg does not delete the old ones.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Properties of new tables."""
_ANOTHER_CHAIN = (
    "`batches/` of the bucket was put back from a backup or made anew, and the warehouse was not. Run `writetime rebuild`, which makes "
    "state and tables again from the archive; or put both back to the same time."
)
_MIXED = "some, but not all, rows match"
"""How Iceberg (ManifestFilterManager) says that it cannot take a file away whole."""


def current_schema(shape: RowShape, facts: Facts = "map", digits: Mapping[str, Digits] | None = None) -> pa.Schema:
    """Schema of current rows: the table's columns, then writetime (µs) and expiry (s since the epoch) of each
    column with a value. `digits`: the columns that are numbers, by CQL name (`number_rules`)."""
    numbers = {to_column(name): pa.decimal128(*kind) for name, kind in (digits or {}).items()}
    columns = [column.with_type(numbers.get(column.name, column.type)) for column in shape.row_type]
    return pa.schema([*columns, *((name, _FACTS) for name in (WRITETIME, EXPIRES_AT) if facts == "map")])


def changes_rows(shape: RowShape) -> dict[Path, int]:
    """The structs of a changes table that are rows, and the number of their columns that are matched by
    position (see spark_jobs.sinks.schema_evolution)."""
    keys, clustering = len(shape.keys), len(shape.table.clustering)
    parts: dict[Path, int] = {("key",): keys, ("before",): keys, ("after",): keys}
    return {(): 0, **parts, ("bounds", "start"): clustering, ("bounds", "end"): clustering}


def current_rows(shape: RowShape) -> dict[Path, int]:
    return {(): len(shape.keys), (WRITETIME,): 0, (EXPIRES_AT,): 0}


QUARANTINE = pa.schema(
    [
        ("name", pa.string()),
        ("cluster", pa.string()),
        ("kind", pa.string()),
        ("message", pa.string()),
        ("size", pa.int64()),
        ("batch", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("datacenter", pa.string()),
        ("node", pa.string()),
        ("segment", pa.string()),
        ("position", pa.int64()),
        ("table", pa.string()),
        ("object", pa.string()),
        ("topic", pa.string()),
        ("ordinal", pa.int64()),
        ("settled_in", pa.int64()),
        ("bytes", pa.binary()),
    ]
)
"""A quarantine record, see `writetime.pipeline.quarantine.published.table_row`. One row per `name`."""

COMPLETENESS = pa.schema(
    [
        ("cluster", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.string()),
        ("changes_until", pa.timestamp("us", "UTC")),
        ("current_until", pa.timestamp("us", "UTC")),
        ("kafka_until", pa.timestamp("us", "UTC")),
        ("batch", pa.int64()),
        ("updated_at", pa.timestamp("us", "UTC")),
    ]
)
"""See `writetime.pipeline.complete_tables.CompleteTable`. One row per `cluster` and `table_id`."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Stops a delayed driver whose batch was sealed by another one: it must not undo what later batches
    wrote. Also stops a driver that does not know all tables that another run of the batch rejected: it knows
    the first `additions` verdicts.

    Later batches begin after this one is sealed. So a table that was loaded before the seal was checked holds
    this batch and earlier ones only, and Iceberg rejects a commit to a table that has changed since it was
    loaded. Together, this leaves no gap."""

    store: Store
    cluster: str
    additions: int = 0

    def check(self, batch: int) -> None:
        if (sealed := read_sealed(self.store, self.cluster, batch)) is not None:
            not_voided(sealed)
            raise BatchClosed("another driver has sealed it", operation="commit a batch", obj=str(batch), hint="Nothing is left to do.")
        if self.store.head(addition(self.cluster, batch, self.additions + 1)) is not None:
            raise VerdictAdded(
                "another run has found a table that cannot be written", operation="commit a batch", obj=str(batch), hint="Run it again."
            )


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one incarnation at one snapshot, and the definition of each schema version in them (see
    `writetime.cassandra.schema.fingerprint`). `held`, `seen`: the table, and that snapshot, for its files. `key_names`: what
    the key's columns were called when the table was made; records of Kafka call them so for ever."""

    rows: DataFrame
    versions: dict[str, dict[str, Any]]
    held: IcebergTable | None = None
    seen: int | None = None
    key_names: tuple[str, ...] = ()

    def files(self, since: int, upto: int) -> ChangesFiles | None:
        """The files with the events of the batches after `since`, up to `upto`, among others; None if only Spark's
        reader can read them."""
        if self.held is None or self.seen is None:
            return None
        return self.held.changes_files(self.seen, to_arrow_schema(self.rows.schema), since, upto)


class Size(NamedTuple):
    """Number of a table's current rows, and its files, as far as its last commit states them."""

    rows: int | None
    files: TableFiles | None


@dataclass(slots=True, kw_only=True)
class Write:
    """A batch's rows of one table of the warehouse before their commit. `columns`: the table's; `seen`: the snapshot
    that was looked at; `made`: makes rows of pages; `target`: where tasks write files, None if only Spark's writer can;
    `files`: what they have written, None if that is over or has not begun; `packs`: the keys of these rows, packed."""

    held: IcebergTable
    columns: StructType
    seen: int | None
    made: PageRows
    target: FileTarget | None = None
    files: list[Row] | None = None
    packs: list[bytes] = field(default_factory=list)

    def take(self, row: Row) -> None:
        """Note what a task returns, a row of WRITTEN."""
        if row.path is None:
            self.packs.append(bytes(row["keys"]))
        else:
            assert self.files is not None
            self.files.append(row)


@dataclass(slots=True, kw_only=True)
class ChangesWrite(Write):
    """Changes, in place of those `replaced`."""

    replaced: Replaced


@dataclass(slots=True, kw_only=True)
class CurrentWrite(Write):
    """Current rows. `rows`: columns of what `made` makes, with OP; `is_done`: the table has the batch's rows;
    `is_whole`: these replace all rows, not only those with their keys; `held_files`: the table's files at `seen`, in
    which tasks look keys up; `deletes`: the position delete files."""

    shape: RowShape
    rows: StructType
    is_done: bool
    is_whole: bool
    held_files: list[HeldFile] | None = None
    deletes: list[Row] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return list(self.shape.key_type.names)


@dataclass(slots=True)
class TableWrite:
    """What a batch writes of one table."""

    table: Table
    changes: ChangesWrite | None = None
    current: CurrentWrite | None = None

    @property
    def is_by_tasks(self) -> bool:
        """Whether tasks can write all files."""
        waits = self.current is not None and not self.current.is_done and self.current.target is None
        return not waits and (self.changes is None or self.changes.target is not None)

    @property
    def parts(self) -> dict[str, Write]:
        """By their names in WRITTEN."""
        return {name: part for name, part in ((CHANGES, self.changes), (CURRENT, self.current)) if part is not None}

    def discard(self) -> None:
        """Delete the files that were written and not handed to a commit."""
        for each in self.parts.values():
            if each.target is not None and each.files is not None:
                each.files = None
                each.target.discard()


class Warehouse:
    """The tables of one catalog. Writers of a batch that other drivers may run too pass a `fence`. Several
    threads may write, each to tables of another name. `cells`: changes include writetimes and expiries.
    `beside`: the shadow namespace of a replay. `owner`: the pipeline that writes and owns its tables; tables
    of other owners are left alone. `batch_id`: the id of the batch that writes; `chain`: its chain, if a
    rebuild began it. With its first commit to a table, a chain replaces everything that an earlier chain
    wrote. `complete`: up to when the tables are complete with the batch. `points`: by table id, where tables have to stand
    that the batch builds upon, by the seal of the batch before."""

    def __init__(
        self,
        spark: SparkSession,
        catalog: str,
        layout: WarehouseConfig | None = None,
        fence: Fence | None = None,
        *,
        cells: bool = False,
        namespace: str | None = None,
        owner: Owner | None = None,
        batch_id: UUID | None = None,
        chain: Chain | None = None,
        complete: Watermark | None = None,
        meter: Meter | None = None,
        points: Mapping[UUID, TablePoints] | None = None,
    ) -> None:
        self.spark = spark
        self.catalog = catalog
        self.layout = layout or WarehouseConfig()
        self.fence = fence
        self.cells = cells
        self.namespace = namespace
        self.owner = owner
        self.batch_id = batch_id
        self.chain = chain
        self.complete = complete
        self.meter = meter
        self.points = points or {}
        self.tables = SparkCatalog(spark, catalog)

    @classmethod
    def of(cls, config: PipelineConfig, store: Store, spark: SparkSession) -> Warehouse:
        """The tables of a pipeline, for work beside its batches."""
        assert config.catalog is not None, "a batch has committed"
        return cls(spark, config.catalog.name, config.warehouse, owner=owner(store, config.cluster.name, config.pipeline))

    @classmethod
    def of_batch(
        cls, config: PipelineConfig, store: Store, spark: SparkSession, manifest: Manifest, fence: Fence, **about: Any
    ) -> Warehouse:
        """The tables of a pipeline, for a batch: what it commits names its id and its chain, or else batches after it take it for one
        of another chain. `about`: what else `__init__` takes. BatchError if the pipeline has no catalog."""
        if config.catalog is None:
            raise BatchError("the pipeline has no catalog", operation="commit a batch", hint="Say in its YAML where the tables live.")
        who = owner(store, live(manifest.cluster, manifest.namespace), config.pipeline)
        return cls(
            spark,
            config.catalog.name,
            config.warehouse,
            fence,
            namespace=manifest.namespace,
            owner=who,
            batch_id=manifest.id,
            chain=manifest.chain,
            **about,
        )

    def changes_of(self, table: Table) -> str | None:
        """Name of the table with this incarnation's changes; None if it does not exist."""
        plain = to_table(table.name)
        names = [self._name(self._changes_in(table), called) for called in (plain, _incarnation_name(plain, table.id))]
        held = ((name, self.tables.find(name)) for name in names)
        return next((name for name, found in held if found is not None and found.properties.get(_ID_PROPERTY) == str(table.id)), None)

    def current_of(self, table: Table) -> str | None:
        """Name of the table with this incarnation's current rows; None if it does not exist."""
        name = self._name(self._current_in(table), to_table(table.name))
        held = self.tables.find(name)
        return name if held is not None and held.properties.get(_ID_PROPERTY) == str(table.id) else None

    def files(self, table: Table) -> WarehouseFiles:
        """Files of this incarnation's current rows and changes."""
        found = [None if name is None else self.tables.find(name) for name in (self.current_of(table), self.changes_of(table))]
        current, changes = (None if held is None else held.files for held in found)
        return WarehouseFiles(current=current, changes=changes)

    def _metered(self, stage: str, table: Table) -> Callable[[Made], Made]:
        return (lambda made: made) if self.meter is None else self.meter.stage(stage, table.label)

    def rejection_reason(self, table: Table) -> str | None:
        """Why nothing can be written for the table: a table of another owner has its name, its tables have lost what a batch
        has written, or a rule of numbers does not fit it; None if it can."""
        namespaces: dict[Part, str] = {"current": self._current_in(table), "changes": self._changes_in(table)}
        held: dict[Part, IcebergTable | None] = {}
        try:
            for part, namespace in namespaces.items():
                found = self.tables.find(self._name(namespace, to_table(table.name)))
                mine = found is not None and self._incarnation_of(found) == str(table.id)
                held[part] = found if mine else None
            self._expect_kept(table, held)
        except BatchError as error:
            return str(error)
        return self.layout.numbers.rejection_reason(table)

    def altered(self, table: Table, schema: Schema) -> str | None:
        """What somebody has done to columns of the table's tables so that nothing can be written; None if nothing."""
        shape = RowShape.of(table, schema)
        changes, current = (None if name is None else self.tables.find(name) for name in (self.changes_of(table), self.current_of(table)))
        try:
            if changes is not None:
                self._expect_own(changes, _as_spark(changes_schema(shape)), changes_rows(shape))
            if current is not None:
                columns = current_schema(shape, _facts_of(current), self.layout.numbers.of(table))
                self._expect_own(current, _as_spark(columns), current_rows(shape))
        except BatchError as error:
            return str(error)
        return None

    def _expect_kept(self, table: Table, held: Mapping[Part, IcebergTable | None]) -> None:
        """BatchError if one of these tables does not have what batches have written there: somebody has dropped, renamed or
        rolled it back, or the catalog was put back from a backup. Nothing may be built upon it."""
        points = self.points.get(table.id)
        if points is None or all(_loss(each, _point_of(points, part, table)) is None for part, each in held.items()):
            return
        places: dict[Part, tuple[str, str | None]] = {
            "current": (f"{self._current_in(table)}.{to_table(table.name)}", self.current_of(table)),
            "changes": (f"{self._changes_in(table)}.{to_table(table.name)}", self.changes_of(table)),
        }
        now: dict[Part, IcebergTable | None] = {
            part: None if name is None else self.tables.find(name) for part, (_, name) in places.items()
        }
        losses = {part: _loss(each, _point_of(points, part, table)) for part, each in now.items()}
        if lost := {part: why for part, why in losses.items() if why is not None}:
            command = again.command(table.full_name, with_events="changes" in lost)
            raise BatchError(
                "; ".join(f"{places[part][0]} {why}" for part, why in lost.items()),
                operation="compare a table with the seals",
                obj=table.full_name,
                hint=f"Put back what is lost, or run `{command}`: the next batch makes the table again from its state. Other tables go on."
                if self.namespace is None
                else "Replay into another namespace, or remove this one (docs/runbook.md, `Replay to compare`).",
            )

    def open_changes(self, table: Table, voided: Iterable[int] = ()) -> Changes | None:
        """This incarnation's current changes without those of `voided` batches, and without columns of somebody else; None
        if there are none. BatchError (retriable) if another incarnation took the name in the meantime."""
        name = self.changes_of(table)
        held = None if name is None else self.tables.load(name)
        if held is None or (seen := held.snapshot) is None:
            return None
        properties = held.properties
        moved = BatchError("the table was created again under another id", operation="open a warehouse table", obj=name, retriable=True)
        if properties.get(_ID_PROPERTY) != str(table.id):
            raise moved
        _expect(held, held.own_columns.missing, "read events")
        versions = {version: json.loads(text) for version, text in _named(properties, _SCHEMA_PROPERTY).items()}
        own = held.own_columns_at(seen)
        columns = _as_published(own.as_made, table, versions)
        try:
            # A snapshot belongs to one table: the table of this name must still be that one.
            rows = self.tables.changes_at(held.name, seen, voided)
        except PySparkException as error:
            raise moved from error
        if columns != own.columns:
            rows = rows.to(columns)
        return Changes(rows, versions, held, seen, _key_names(held))

    def key_names(self, table: Table) -> tuple[str, ...]:
        """What records of Kafka call the columns of the incarnation's key; empty if it has no changes."""
        name = self.changes_of(table)
        held = None if name is None else self.tables.find(name)
        return () if held is None else _key_names(held)

    # --- a batch's files

    def open(self, table: Table, schema: Schema, batch: int, *, changes: bool = False, current: Rows | None = None) -> TableWrite:
        """Create or evolve the tables for these rows, and look at them: what is written is based on that. `current`:
        what becomes of the rows that are there."""
        with self.fenced(batch):
            write = TableWrite(table)
            if changes:
                write.changes = self._open_changes(table, schema, batch)
            if current is not None:
                write.current = self._open_current(table, schema, batch, is_replaced=current == "replaced")
            return write

    def write(
        self, table: Table, schema: Schema, events: Events, batch: int, *, changes: bool = False, current: Rows | None = None
    ) -> TableWrite:
        """`open`, and `write_files` for this table alone."""
        write = self.open(table, schema, batch, changes=changes, current=current)
        with self.fenced(batch):
            if write.is_by_tasks:
                self.write_files([write], [events], batch)
        return write

    def write_files(self, writes: Sequence[TableWrite], events: Sequence[Events], batch: int) -> dict[bytes, int]:
        """Let tasks write the files of these tables, as far as they can: a job of Spark writes rows, another one
        position deletes. Returns how many events of each table the stream tells. If it fails, no files are left.
        `events`: each of other tables."""
        if not events:
            return {}
        by_id = {write.table.id.bytes: write for write in writes}
        try:
            emitted = self._write_rows(by_id, events, batch)
            self._look_up(by_id)
        except BaseException:
            for write in writes:
                write.discard()
            raise
        return emitted

    def _write_rows(self, writes: Mapping[bytes, TableWrite], events: Sequence[Events], batch: int) -> dict[bytes, int]:
        for each in (each for write in writes.values() for each in write.parts.values()):
            each.files = None if each.target is None else []
        emitted: Counter[bytes] = Counter()
        rejected: dict[bytes, str] = {}
        for row in self._written(writes, events, batch):
            table_id = bytes(row.table_id)
            if row.part == REJECTED:
                rejected[table_id] = row.path
            elif row.part == EMITTED:
                emitted[table_id] += row.rows
            else:
                writes[table_id].parts[row.part].take(row)
        _expect_none(rejected, writes)
        return dict(emitted)

    def _written(self, writes: Mapping[bytes, TableWrite], events: Sequence[Events], batch: int) -> Iterable[Row]:
        """Let tasks write rows; rows of WRITTEN."""
        of_tables = of_each((write.table for write in writes.values()), lambda table: self._task_files(writes[table.id.bytes]))
        tables = dict(zip(writes, of_tables, strict=True))
        columns = from_arrow_schema(WRITTEN)
        jobs = [some.mapped(passed(self.fence, batch, writing(some.among(tables), some.made)), columns) for some in events]
        return reduce(DataFrame.union, jobs).collect()

    def _task_files(self, write: TableWrite) -> TaskFiles:
        changes, current = write.changes, write.current
        parts: dict[str, PageRows] = {}
        if changes is not None and changes.target is not None:
            parts[CHANGES] = changes.target.written(changes.made)
        if current is not None and current.target is not None:
            keys, kept = [] if current.is_whole else current.keys, kept_rows(to_arrow_schema(current.columns))
            parts[CURRENT] = written_with_keys(current.target, current.made, keys, kept)
        return TaskFiles(parts, self._metered("write", write.table))

    def _look_up(self, writes: Mapping[bytes, TableWrite]) -> None:
        """Find the rows with the keys that were written, and write position deletes of them."""
        waiting: dict[bytes, KeyLookup] = {}
        size = 0
        for table_id, write in writes.items():
            to = write.current
            if to is None or to.files is None or to.target is None or to.is_whole or not (to.packs and to.held_files):
                continue
            mine = sum(map(len, to.packs))
            if mine > MAX_KEY_BYTES:
                # The rows are merged.
                to.files = None
                to.target.discard()
                continue
            if size + mine > MAX_KEY_BYTES:
                self._run_lookups(waiting, writes)
                waiting, size = {}, 0
            lookup = Lookup(to.held.key_columns(to_arrow_schema(to.columns), to.keys), to.packs)
            waiting[table_id] = KeyLookup(lookup, to.target, self._metered("current", write.table))
            size += mine
        self._run_lookups(waiting, writes)

    def _run_lookups(self, lookups: Mapping[bytes, KeyLookup], writes: Mapping[bytes, TableWrite]) -> None:
        if not lookups:
            return
        currents = {table_id: current for table_id in lookups if (current := writes[table_id].current) is not None}
        files = [(table_id, file) for table_id, current in currents.items() for file in current.held_files or ()]
        shares = in_shares(files, self.spark.sparkContext.defaultParallelism)
        numbers = self.spark.range(len(shares), numPartitions=len(shares))
        rejected: dict[bytes, str] = {}
        for row in numbers.mapInArrow(looking_up(lookups, shares), schema=from_arrow_schema(FOUND)).collect():
            if row.of is None:
                rejected[bytes(row.table_id)] = row.path
            else:
                currents[bytes(row.table_id)].deletes.append(row)
        _expect_none(rejected, writes)

    # --- changes

    def _open_changes(self, table: Table, schema: Schema, batch: int) -> ChangesWrite:
        held = self._changes(RowShape.of(table, schema), schema, batch)
        seen, _ = self._look_at(held, batch)
        columns = held.columns
        as_arrow = to_arrow_schema(columns)
        about = {"batch": batch, "table_id": str(table.id), "schema_version": schema_version(table, schema.types)}
        replaced = "everything" if self._succeeds(held) else _earlier_attempt(held, batch, self.tables.last_batch)
        return ChangesWrite(
            held=held,
            columns=columns,
            seen=seen,
            made=self._change_rows(as_arrow, about),
            target=held.file_target(as_arrow),
            replaced=replaced,
        )

    def _change_rows(self, columns: pa.Schema, about: Mapping[str, Any]) -> PageRows:
        return change_rows(columns, about, cells=self.cells)

    def write_changes(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> TableFiles | None:
        """Write the batch's events of the table, PAGES; they replace those of an earlier attempt of the
        batch. Returns the files of the table with them."""
        given = Events.of_pages(events)
        return self.commit_changes(self.write(table, schema, given, batch, changes=True), given, batch)

    def commit_changes(self, write: TableWrite, events: Events, batch: int) -> TableFiles | None:
        """Commit a table's changes, whose files tasks have written, or else of these events. Returns the files of the
        table with them."""
        to, table = write.changes, write.table
        assert to is not None
        with self.fenced(batch):

            def rows() -> DataFrame:
                # A statement loads the table before it makes them: who passes the fence then has seen what is there.
                made = passed(self.fence, batch, to.made)
                return events.rows(table.id.bytes, made, to.columns, self._metered("changes", table))

            self._expect_open(batch)
            try:
                self._replace(to, to.replaced, rows, self._about(batch, table=table))
                self._take_over(to.held, batch)
            except Py4JJavaError as error:
                if _MIXED not in str(error):
                    raise
                # Compaction has merged an earlier attempt's events into a file with events of other batches.
                self.tables.exchange_events(to.held.name, rows(), batch, self._about(batch))
            to.held.refresh()
            self._note_written("changes", to.held, table, batch)
            return to.held.files

    def take_back(self, table: Table, batch: int) -> None:
        """Remove the changes that an earlier attempt of the batch wrote for this incarnation."""
        with self.fenced(batch):
            name = self.changes_of(table)
            held = None if name is None else self.tables.load(name)
            if held is None:
                return
            seen, _ = self._look_at(held, batch)
            if seen is None or not any(each.get(BATCH_PROPERTY) == str(batch) for each in held.summaries):
                return
            self._remove_events(held, seen, batch, batch, self._about(batch))

    def _remove_events(self, held: IcebergTable, seen: int, gone: int, batch: int, about: Mapping[str, str]) -> None:
        """Remove the events of batch `gone` from a changes table, unless it was written since snapshot
        `seen`."""
        try:
            self.tables.remove(held, seen, gone, about)
        except Py4JJavaError as error:
            if _MIXED not in str(error):
                raise
            self._expect_open(batch)
            self.tables.delete_events(held.name, gone, about)

    # --- reverting voided batches

    def take_back_voided(self, table: Table, voided: Mapping[int, UUID | None], batch: int) -> list[str]:
        """Revert what `voided` batches committed for this incarnation: their events are removed from its
        changes, and its current rows are rolled back to the snapshot before. Returns the names of the changed
        tables. BatchError if rows of another batch were written on top, because they cannot be separated.
        BatchBusy if the table is being written."""
        with self.fenced(batch):
            done = []
            for name in self._places_of(self._changes_in(table), table):
                held = self.tables.load(name)
                done += [name for number in _left_by(held.lineage, voided) if self._take_back_events(held, number, batch)]
            for name in self._places_of(self._current_in(table), table):
                done += [name] if self._take_back_rows(self.tables.load(name), voided, batch) else []
            return done

    def is_settled(self, table: Table, voided: Mapping[int, UUID | None], batch: int) -> bool:
        """Whether this incarnation's changes and current rows contain nothing of a voided batch, and no rows of
        this batch were rolled back with such rows."""
        mine = {batch: self.batch_id}
        if any(self._is_left(name, voided) for name in self._places_of(self._changes_in(table), table)):
            return False
        for name in self._places_of(self._current_in(table), table):
            held = self.tables.load(name)
            held.refresh()
            summaries, lineage = held.summaries, held.lineage
            there = [each.summary for each in lineage]
            rolled_back = _rows_in(summaries, mine) and not _rows_in(there, mine)
            if rolled_back or _rows_in(there, voided):
                return False
        return True

    def has_settled_records(self, voided: Mapping[int, UUID | None]) -> bool:
        """Whether the quarantine table contains nothing of a voided batch."""
        name = self.quarantine()
        return name is None or not self._is_left(name, voided)

    def _is_left(self, name: str, voided: Mapping[int, UUID | None]) -> bool:
        held = self.tables.load(name)
        held.refresh()
        return bool(_left_by(held.lineage, voided))

    def expect_taken_back(self, name: str, voided: Mapping[int, UUID | None]) -> None:
        """BatchBusy if a late driver of a voided batch has committed to the table since that batch was taken back. To be
        called before snapshots are expired that a later batch would find the commit by."""
        if self._is_left(name, voided):
            raise BatchBusy(
                "a late driver of a batch without effect has committed to the table",
                operation="expire the snapshots of a table",
                obj=name.replace("`", ""),
                hint="Run the batch again: it takes back what was committed.",
            )

    def take_back_voided_records(self, cluster: str, voided: Mapping[int, UUID | None], batch: int) -> None:
        """Revert voided batches of the cluster in the quarantine table: their records are removed, and
        records that they settled wait again."""
        name = self.quarantine()
        held = None if name is None else self.tables.find(name)
        if held is None:
            return
        for number in _left_by(held.lineage, voided):
            with self.fenced(batch):
                self._expect_open(batch)
                self.tables.take_back_records(held.name, cluster, number, self._about_void(number, batch))
            log.info("quarantine of a voided batch taken back", batch=batch, voided=number)

    def _places_of(self, namespace: str, table: Table) -> list[str]:
        """Names of the tables in a namespace that hold this incarnation's rows: under the plain name, or
        under the name that it was moved to."""
        plain = to_table(table.name)
        found = []
        for name in (self._name(namespace, called) for called in (plain, _incarnation_name(plain, table.id))):
            properties = {} if (held := self.tables.find(name)) is None else held.properties
            # A table of another pipeline is left alone.
            theirs = self.owner is not None and self.owner.other(properties.get(_OWNER_PROPERTY)) is not None
            if properties.get(_ID_PROPERTY) == str(table.id) and not theirs:
                found.append(name)
        return found

    def _take_back_events(self, held: IcebergTable, number: int, batch: int) -> bool:
        held.refresh()
        seen = held.snapshot
        self._expect_open(batch)
        if seen is None:
            return False
        self._remove_events(held, seen, number, batch, self._about_void(number, batch))
        log.info("changes of a voided batch taken back", table=held.name, batch=batch, voided=number)
        return True

    def _take_back_rows(self, held: IcebergTable, voided: Mapping[int, UUID | None], batch: int) -> bool:
        held.refresh()
        lineage = held.lineage
        found = _rows_in([each.summary for each in lineage], voided)
        if not found:
            return False
        last = found[-1]
        first, gone = lineage[last], lineage[: last + 1]
        # Rows that this batch wrote on top are written again: it is not sealed.
        mine = {**voided, batch: self.batch_id}
        others = [each.summary for each in gone if each.summary.get("operation") != "replace" and _batch_of(each.summary, mine) is None]
        number = _batch_of(first.summary, voided)
        if others or not (first.has_parent or first.parent is None):
            above = others[0].get(BATCH_PROPERTY, "of somebody else") if others else ""
            why = f"rows of batch {above} stand above them" if others else "the snapshot before them has expired"
            raise BatchError(
                f"it holds rows of batch {number}, which was voided, and {why}",
                operation="take back a voided batch",
                obj=held.name,
                hint="Roll the table back by hand to a snapshot before that batch and replay the hours since, or drop it and build it "
                "again from the archive.",
            )
        held.roll_back(lineage[0].id, first.parent, _undone(gone), lambda: self._expect_open(batch))
        log.info("current rows taken back", table=held.name, batch=batch, of=number)
        return True

    def _about_void(self, number: int, batch: int) -> dict[str, str]:
        return {**self._about(batch, "void"), _VOID_PROPERTY: str(number)}

    # --- current rows

    def merge_current(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> Size:
        """Merge the last event of each row in the batch into the current rows."""
        given = Events.of_pages(events)
        return self.commit_current(self.write(table, schema, given, batch, current="merged"), given, batch)

    def replace_current(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> Size:
        """For a truncated table: replace all current rows by those that result from the batch's events, in
        one commit."""
        given = Events.of_pages(events)
        return self.commit_current(self.write(table, schema, given, batch, current="replaced"), given, batch)

    def empty_current(self, table: Table, batch: int) -> None:
        """For a dropped table: delete its current rows, if any. Iceberg's snapshots keep them."""
        with self.fenced(batch):
            _, held = self._place(self._current_in(table), table, batch)
            seen, done = (None, True) if held is None else self._look_at(held, batch)
            if held is not None and seen is not None and not done:
                held.empty(self._about(batch, ROWS))
            if held is not None:
                self._take_over(held, batch)

    def _open_current(self, table: Table, schema: Schema, batch: int, *, is_replaced: bool) -> CurrentWrite:
        shape = RowShape.of(table, schema)
        held, facts = self._current(shape, schema, batch)
        seen, is_done = self._look_at(held, batch)
        stored = held.columns
        columns = current_schema(shape, facts, self.layout.numbers.of(table))
        rows = StructType([stored[column] for column in columns.names]).add(OP, "string")
        write = CurrentWrite(
            held=held,
            shape=shape,
            columns=stored,
            rows=rows,
            seen=seen,
            is_done=is_done,
            # There is nothing to merge with, and the scan for it is the expensive part.
            is_whole=is_replaced or seen is None or self._succeeds(held),
            made=self._last_rows(shape, rows),
        )
        if not is_done:
            self._aim(write)
        return write

    def _last_rows(self, shape: RowShape, rows: StructType) -> PageRows:
        """Makes the rows after the batch, with the action for each in column OP."""
        made = last_rows(to_arrow_schema(rows))
        if shape.table.static_columns and shape.table.clustering:
            partition, clustering = _names(shape.table.partition_key), _names(shape.table.clustering)
            made = one_of_each_key(made, partition, clustering)
        return made

    def _aim(self, write: CurrentWrite) -> None:
        """Let tasks write the files, if they can. They cannot replace rows by their positions by copy-on-write, with keys
        that only Spark compares, with columns of the table that the rows lack and that keep their values, in tables
        that somebody has set up in another way."""
        columns = to_arrow_schema(write.columns)
        if not write.is_whole:
            is_possible = self.layout.writes == "merge-on-read" and set(columns.names) <= set(write.rows.names)
            if not is_possible or not can_look_up(pa.schema([columns.field(name) for name in write.keys])):
                return
            assert write.seen is not None
            write.held_files = write.held.rows_by_file(write.seen)
            if write.held_files is None:
                return
        elif write.held.partition_names:
            return
        write.target = write.held.file_target(columns)

    def commit_current(self, write: TableWrite, events: Events, batch: int) -> Size:
        """Commit a table's current rows, whose files tasks have written, or else of these events."""
        to, table = write.current, write.table
        assert to is not None
        held = to.held
        with self.fenced(batch):
            self._expect_open(batch)
            if to.is_done:
                self._take_over(held, batch)
                return Size(held.rows, held.files)
            about = self._about(batch, ROWS, table)
            if to.is_whole:
                self._replace(to, "everything", lambda: self._kept_rows(to, events, batch), about)
            elif to.files is not None and to.target is not None:
                assert to.seen is not None
                files, to.files = to.files, None
                held.replace_rows(to.target, files, to.deletes, to.seen, about)
            else:
                columns = [name for name in to.rows.names if name != OP]
                self.tables.merge(held.name, self._actions(to, events, batch), to.shape, columns, about)
            self._take_over(held, batch)
            held.refresh()
            self._note_written("current", held, table, batch)
            return Size(held.rows, held.files)

    def _actions(self, to: CurrentWrite, events: Events, batch: int) -> DataFrame:
        """Rows for a MERGE. They are produced while the commit's job runs, after the table was loaded, and only after
        the fence was checked."""
        made = passed(self.fence, batch, to.made)
        return events.rows(to.shape.table.id.bytes, made, to.rows, self._metered("current", to.shape.table))

    def _kept_rows(self, to: CurrentWrite, events: Events, batch: int) -> DataFrame:
        return self.tables.as_stored(self._actions(to, events, batch), to.columns)

    def _note_written(self, stage: str, held: IcebergTable, table: Table, batch: int) -> None:
        """Report the files of the batch's last commit to the meter."""
        summary = held.summary or {}
        if self.meter is not None and summary.get(BATCH_PROPERTY) == str(batch):
            objects = sum(int(summary.get(f"added-{kind}-files", 0)) for kind in ("data", "delete"))
            self.meter.note(StageCost(stage=stage, table=table.label, objects=objects, bytes=int(summary.get("added-files-size", 0))))

    def clear_former(self, table: Table, batch: int) -> None:
        """Delete what an earlier chain left in this incarnation's tables, if this chain wrote no rows to them
        up to `batch`, its last one."""
        with self.fenced(batch):
            for name in (self.changes_of(table), self.current_of(table)):
                held = None if name is None else self.tables.find(name)
                if held is None:
                    continue
                seen, _ = self._look_at(held, batch)
                if seen is not None and self._succeeds(held):
                    self.tables.remove(held, seen, "everything", self._about(batch))
                self._take_over(held, batch)

    def seen(self) -> int:
        """The highest batch number in the pipeline's tables, by their snapshots and by the rows of
        changes."""
        highest = 0
        for name in self._own_tables():
            held = self.tables.find(name)
            if held is None:
                continue
            highest = max([highest, *(int(each.get(BATCH_PROPERTY, 0)) for each in held.summaries)])
            if {"batch", "ordinal"} <= set(held.columns.names) and held.snapshot is not None:
                # Snapshots expire; the batch numbers in the rows of changes do not.
                highest = max(highest, self.tables.last_batch(name) or 0)
        return highest

    def _own_tables(self) -> Iterator[str]:
        """Names of the tables in the catalog that belong to the pipeline or have no owner."""
        for namespace, name in self.tables.all_tables():
            if namespace == OWN_NAMESPACE:
                # Of all pipelines.
                continue
            try:
                held = self.tables.find(name)
            except (PySparkException, Py4JJavaError) as error:
                log.warning("table cannot be loaded, skipped", table=name, error=why(error)[:_LONGEST])
                continue
            properties = {} if held is None else held.properties
            if _ID_PROPERTY in properties and (self.owner is None or not self.owner.other(properties.get(_OWNER_PROPERTY))):
                yield name

    def _replace(self, to: Write, replaced: Replaced, rows: Callable[[], DataFrame], properties: Mapping[str, str]) -> None:
        """Put the files that tasks have written in place of the `replaced` rows, or else let Spark's writer put these
        rows there, unless such rows were written since snapshot `seen`."""
        if to.files is None or to.target is None:
            log.info("files written by Spark's writer", table=to.held.name)
            self.tables.overwrite(to.held.name, to.seen, rows(), replaced, properties)
            return
        files, to.files = to.files, None
        to.held.overwrite(to.target, files, replaced, to.seen, properties)

    def follow(self, table: Table, schema: Schema, batch: int) -> None:
        """Evolve the existing tables to the cluster's table if the batch writes none of its rows."""
        with self.fenced(batch):
            shape = RowShape.of(table, schema)
            if self.changes_of(table) is not None:
                self._changes(shape, schema, batch)
            if not table.dropped and self._incarnation(self._name(self._current_in(table), to_table(table.name))) is not None:
                self._current(shape, schema, batch)

    def quarantine(self) -> str | None:
        """Name of the quarantine table; None if it does not exist."""
        return self._existing(_QUARANTINE_ID)

    def completeness(self) -> str | None:
        """Name of the completeness table; None if it does not exist."""
        return self._existing(_COMPLETENESS_ID)

    def _existing(self, called: str) -> str | None:
        name = self._name(OWN_NAMESPACE, called)
        held = self.tables.find(name)
        return name if held is not None and held.properties.get(_ID_PROPERTY) == called else None

    def _of_all_pipelines(self, called: str, columns: StructType) -> IcebergTable | None:
        """The table of all pipelines of that name, created if needed; None if it was not created by
        writetime."""
        name = self._name(OWN_NAMESPACE, called)
        held = self.tables.find(name)
        if held is None:
            return self.tables.create(name, columns, {**_PROPERTIES, _ID_PROPERTY: called}, "cluster")
        return held if held.properties.get(_ID_PROPERTY) == called else None

    def write_quarantine(self, quarantined: Sequence[QuarantineRecord], batch: int) -> None:
        """Insert or update the rows of these records, all of one cluster. If the table was not created by
        writetime, or cannot be read or written, nothing is written and an error is logged: the bucket has everything, so no
        batch has to wait for it."""
        with self.fenced(batch):
            try:
                _despite_conflicts(lambda: self._write_quarantine(quarantined, batch))
            except Exception as error:
                if kind_of(error) != "table":
                    raise
                log.error("quarantine records not written", batch=batch, records=len(quarantined), error=reason_of(error))

    def _write_quarantine(self, quarantined: Sequence[QuarantineRecord], batch: int) -> None:
        name, columns = self._name(OWN_NAMESPACE, _QUARANTINE_ID), from_arrow_schema(QUARANTINE)
        held = self._of_all_pipelines(_QUARANTINE_ID, columns)
        if held is None:
            log.error(
                "quarantine records not written: the table was not created by writetime", table=name, batch=batch, records=len(quarantined)
            )
            return
        seen, _ = self._look_at(held, batch, shared=True)
        rows = [table_row(record) | {"at": datetime.fromtimestamp(record.at or 0, UTC)} for record in quarantined]
        given = self.tables.frame(pa.Table.from_pylist(rows, schema=QUARANTINE), columns)
        # As in `_last_rows`: the fence is checked after the table that the MERGE reads was loaded.
        given = given.mapInArrow(passed(self.fence, batch, lambda batches: batches), schema=columns)
        if seen is None:
            self.tables.overwrite(name, seen, given, "everything", self._about(batch))
        else:
            self.tables.merge_records(name, given, quarantined[0].cluster, self._about(batch))

    def write_completeness(self, tables: Sequence[CompleteTable]) -> None:
        """Write up to when these tables are complete: all captured ones of one cluster. No value goes back,
        and rows of tables that are not captured any more are removed. If the table was not created by
        writetime, nothing is written and an error is logged."""
        _despite_conflicts(lambda: self._write_completeness(tables))

    def _write_completeness(self, tables: Sequence[CompleteTable]) -> None:
        name, columns = self._name(OWN_NAMESPACE, _COMPLETENESS_ID), from_arrow_schema(COMPLETENESS)
        held = self._of_all_pipelines(_COMPLETENESS_ID, columns)
        if held is None:
            log.error("completeness not written: the table was not created by writetime", table=name, tables=len(tables))
            return
        seen, cluster = held.snapshot, tables[0].cluster
        # A cluster has few rows, in one file. Read, merged and replaced they cost less than a MERGE; the
        # commit fails if somebody else has written rows of the cluster since `seen`.
        stored = [] if seen is None else self.tables.rows_of(name, cluster)
        before = {row["table_id"]: {key: row[key] for key in row if key != "updated_at"} for row in stored}
        after = {table.table_id: table.not_before(before.get(table.table_id))._asdict() for table in tables}
        if after == before:
            return
        now = datetime.now(UTC)
        rows = pa.Table.from_pylist([row | {"updated_at": now} for row in after.values()], schema=COMPLETENESS)
        self.tables.replace_rows_of(name, seen, self.tables.frame(rows, columns), cluster)

    # --- shapes

    def _changes(self, shape: RowShape, schema: Schema, batch: int) -> IcebergTable:
        """The table for this incarnation's changes, created or evolved as needed."""
        table = shape.table
        name, held = self._place(self._changes_in(table), table, batch)
        self._expect_kept(table, {"changes": held})
        wanted = {f"{_SCHEMA_PROPERTY}{schema_version(table, schema.types)}": json.dumps(describe(table, schema.types))}
        columns = _as_spark(changes_schema(shape))
        if held is None:
            first = {_KEY_NAMES_PROPERTY: json.dumps(list(shape.keys))}
            held = self.tables.create(name, columns, {**_PROPERTIES, _ID_PROPERTY: str(table.id), **first}, "days(changed_at)")
        self._evolve(held, columns, changes_rows(shape), {**wanted, **_keys(shape), **self._claim()}, batch)
        return held

    def _current(self, shape: RowShape, schema: Schema, batch: int) -> tuple[IcebergTable, Facts]:
        """The table for this incarnation's current rows, created or evolved as needed, and its format of cell
        facts, which stays as it was at creation."""
        table = shape.table
        name, held = self._place(self._current_in(table), table, batch)
        self._expect_kept(table, {"current": held})
        facts = self.layout.cell_facts if held is None else _facts_of(held)
        digits = self.layout.numbers.of(table)
        columns = _as_spark(current_schema(shape, facts, digits))
        dropped = {column: gone.dropped_at for column, gone in table.dropped_columns.items()}
        if held is None:
            held = self.tables.create(name, columns, {**_PROPERTIES, _ID_PROPERTY: str(table.id), _FACTS_PROPERTY: facts}, None)
        else:
            own = self._expect_own(held, columns, current_rows(shape))
            known = json.loads(held.properties.get(_DROPPED_PROPERTY, "{}"))
            news = {column: at for column, at in dropped.items() if at > known.get(column, at - 1)}
            if facts == "none":
                # Of a column that is back only the fold can tell old values from new ones: its events take
                # the old ones away. One of another type is made anew.
                replaced = steps(columns, own.as_made, current_rows(shape)).replaced
                news = {c: at for c, at in news.items() if c not in table.columns or to_column(c) in replaced}
            self._take_dropped(held, facts, {c: at for c, at in news.items() if to_column(c) in own.as_made.names}, batch)
            self._expect_numbers(held, shape, digits, columns)
        wanted = {_DROPPED_PROPERTY: json.dumps(dropped), **_keys(shape), **self._modes(), **self._claim()}
        self._evolve(held, columns, current_rows(shape), wanted, batch)
        while refill := _waiting(held):
            self._refill(held, refill, batch)
        return held, facts

    def _expect_numbers(self, held: IcebergTable, shape: RowShape, digits: Mapping[str, Digits], columns: StructType) -> None:
        """NumberTooLong if a rule of numbers has changed, and the table's values cannot become what it says."""
        stored = held.own_columns.as_made
        replaced = steps(columns, stored, current_rows(shape)).replaced
        for name, kind in shape.columns.items():
            column = to_column(name)
            if column not in replaced or str(kind) not in ("decimal", "varint"):
                continue
            before = stored[column].dataType
            if name not in digits and isinstance(before, DecimalType):
                raise NumberTooLong(
                    f"column {column} is {Digits(before.precision, before.scale)} in the warehouse, and text by `warehouse.{kind}`, which "
                    f"cannot be made of it. Restore the rule; or drop the table {held.name} and run `writetime rebuild`."
                )
            if name in digits:
                self._expect_fitting(held, column, digits[name])

    def _expect_fitting(self, held: IcebergTable, column: str, digits: Digits) -> None:
        """NumberTooLong if the table's column has values that do not fit."""
        needs = F.udf(lambda text: lacking(text, digits), "struct<before: bigint, after: bigint>")
        found = self.tables.rows(held.name).select(needs(F.col(quoted(column)).cast("string")).alias("needs"))
        ((before, after),) = found.agg(F.max("needs.before"), F.max("needs.after")).collect()
        if before is not None:
            raise NumberTooLong(too_long(column, digits, before, after))

    def _number(self, kind: DecimalType) -> str:
        """Name of an SQL function that makes a number of a text, null if it does not fit. Spark's own cast
        rounds."""
        digits, name = Digits(kind.precision, kind.scale), f"writetime_decimal_{kind.precision}_{kind.scale}"
        self.spark.udf.register(name, lambda text: number_or_null(text, digits), kind)
        return name

    def _modes(self) -> dict[str, str]:
        return {f"write.{command}.mode": self.layout.writes for command in ("merge", "update", "delete")}

    def _evolve(self, held: IcebergTable, columns: StructType, rows: Mapping[Path, int], wanted: Mapping[str, str], batch: int) -> None:
        """Evolve the table to the columns, and set its properties."""
        own = self._expect_own(held, columns, rows)
        plan = steps(columns, own.as_made, rows)
        _expect_free(held, plan)
        properties = held.properties
        wanted = {**wanted, **_to_refill(plan.replaced if rows.get(()) else {})}
        news = {key: value for key, value in wanted.items() if properties.get(key) != value}
        if plan or news or not own.is_recorded:
            held.evolve(plan, news, lambda: self._expect_open(batch), own)

    def _expect_own(self, held: IcebergTable, columns: StructType, rows: Mapping[Path, int]) -> OwnColumns:
        """The table's columns. BatchError if somebody has changed some so that these cannot be written."""
        own = held.own_columns
        _expect(held, own.trouble(columns, rows), "write rows")
        return own

    def _refill(self, held: IcebergTable, columns: Mapping[str, str], batch: int) -> None:
        """Fill columns that were created again with the values that were set aside."""
        kinds = {field.name: field.dataType for field in held.columns}

        def value(new: str, old: str) -> str:
            kind = kinds[new]
            if isinstance(kind, DecimalType):
                return f"{self._number(kind)}(CAST({quoted(old)} AS STRING))"
            return converted(quoted(old), kinds[old], kind)

        sets = ", ".join(f"{quoted(new)} = {value(new, old)}" for new, old in columns.items())
        lacking = " OR ".join(f"({quoted(new)} IS NULL AND {quoted(old)} IS NOT NULL)" for new, old in columns.items())
        self._expect_open(batch)
        about = {**self._about(batch, "refill"), _REFILL_PROPERTY: json.dumps(dict(columns))}
        self.tables.execute(f"UPDATE {held.name} SET {sets} WHERE {lacking}", about)
        held.evolve(Steps(), dict.fromkeys(_to_refill(columns), ""), lambda: self._expect_open(batch))

    def _take_dropped(self, held: IcebergTable, facts: Facts, dropped: Mapping[str, int], batch: int) -> None:
        """Set columns that were dropped in the cluster to null, in unchanged rows too. Values written later
        than the drop (with a clock that was ahead) stay, because they reappear when the column is added
        again. Without writetimes all values are removed."""
        if dropped:
            self._expect_open(batch)
            self.tables.execute(_drop_statement(held.name, facts, dropped), self._about(batch, "dropped"))

    # --- the rest

    def _look_at(self, held: IcebergTable, batch: int, *, shared: bool = False) -> tuple[int | None, bool]:
        """The snapshot that readers of the table see now, which must not be of a later batch, and whether it
        contains the batch's rows. Other pipelines may write to a `shared` table."""
        held.refresh()
        summaries, lineage = held.summaries, held.lineage
        # Commits that were rolled back are not visible.
        seen = held.snapshot, _has_batch([each.summary for each in lineage], batch)
        self._expect_open(batch)
        if self.batch_id is not None and not shared:
            self._expect_own_chain(held.name, summaries, batch)
            self._expect_no_later_chain(held, batch)
        return seen

    def _expect_own_chain(self, name: str, summaries: list[dict[str, str]], batch: int) -> None:
        """ChainMismatch if the table holds a batch of a chain that this one does not succeed: a batch above the
        open one, one of its number with another id, or one at or above the first batch of this chain that is
        not part of it."""
        first, mine = self._own_chain()
        for each in summaries:
            number, batch_id = int(each.get(BATCH_PROPERTY, 0)), each.get(_BATCH_ID_PROPERTY)
            other = number >= first and each.get(_CHAIN_PROPERTY) != mine
            if other or number > batch or (number == batch and batch_id not in (None, str(self.batch_id))):
                raise ChainMismatch(
                    f"it holds batch {number} of another chain of batches, and this one is at {batch}",
                    operation="commit a batch",
                    obj=name,
                    hint=_ANOTHER_CHAIN,
                )

    def _expect_no_later_chain(self, held: IcebergTable, batch: int) -> None:
        """The same check by the properties of the table, which outlive its snapshots."""
        first, mine = self._own_chain()
        if later := [number for number, chain in _chains_of(held).items() if number >= first and chain != mine]:
            raise ChainMismatch(
                f"it holds the chain of batches that began with {later[0]}, and this one is at {batch}",
                operation="commit a batch",
                obj=held.name,
                hint=_ANOTHER_CHAIN,
            )

    def _own_chain(self) -> tuple[int, str | None]:
        """The first batch of the chain, and its id; the batches before the first rebuild have none."""
        return (self.chain.first, str(self.chain.id)) if self.chain else (1, None)

    def _about(self, batch: int, step: str | None = None, table: Table | None = None) -> dict[str, str]:
        """The summary properties of a snapshot; `table`: its rows are complete with this commit."""
        summary = {BATCH_PROPERTY: str(batch)}
        if self.batch_id is not None:
            summary[_BATCH_ID_PROPERTY] = str(self.batch_id)
        if self.chain is not None:
            summary[_CHAIN_PROPERTY] = str(self.chain.id)
        if table is not None and self.complete is not None and (until := self.complete.of(table.id)) is not None:
            summary[COMPLETE_PROPERTY] = until.isoformat(timespec="milliseconds")
        return summary if step is None else {**summary, STEP_PROPERTY: step}

    def _succeeds(self, held: IcebergTable) -> bool:
        """Whether everything in the table is from an earlier chain."""
        return self.chain is not None and str(self.chain.id) not in _chains_of(held).values()

    def _take_over(self, held: IcebergTable, batch: int) -> None:
        """Record that the table's content belongs to this chain now. After a crash before that, the batch
        replaces everything again with the same rows."""
        if self.chain is None:
            return
        mine = {f"{_CHAIN_PROPERTY}.{self.chain.first}": str(self.chain.id), _INCOMPLETE_PROPERTY: str(self.chain.partial).lower()}
        if mine.items() <= held.properties.items():
            return
        held.refresh()
        held.evolve(Steps(), mine, lambda: self._expect_open(batch))

    def _claim(self) -> dict[str, str]:
        """The properties of a table that name its owner."""
        return {} if self.owner is None else {_OWNER_PROPERTY: self.owner.model_dump_json()}

    def _incarnation_of(self, held: IcebergTable) -> str:
        """Id of the Cassandra table whose rows the table holds. BatchError if the table does not belong to
        this pipeline."""
        incarnation = _incarnation(held)
        other = self.owner.other(held.properties.get(_OWNER_PROPERTY)) if self.owner else None
        if other is not None:
            raise BatchError(
                f"it belongs to {other}",
                operation="open a warehouse table",
                obj=held.name,
                hint="Give one of the pipelines a catalog of its own, or leave the table out (`tables.exclude`).",
            )
        return incarnation

    def _expect_open(self, batch: int) -> None:
        if self.fence is not None:
            self.fence.check(batch)

    @contextmanager
    def fenced(self, batch: int) -> Iterator[None]:
        """A batch that another driver has sealed may fail here in many ways: raise the error that says so. If
        it is not sealed, the other driver may still be running. An outage of the catalog or its store, or an answer of theirs
        that was lost, is an error that a retry may mend."""
        try:
            yield
        except Exception as error:
            self._expect_open(batch)
            if isinstance(error, PySparkException | Py4JJavaError):
                if is_conflict(error):
                    raise _concurrent(error, batch) from error
                if kind_of(error) == "world":
                    raise _outage(error, batch) from error
            raise

    def _current_in(self, table: Table) -> str:
        return to_namespace(table.keyspace, self.namespace)

    def _changes_in(self, table: Table) -> str:
        return to_changes_namespace(table.keyspace, self.namespace)

    def _name(self, namespace: str, table: str) -> str:
        return ".".join(quoted(piece) for piece in (self.catalog, namespace, table))

    def _place(self, namespace: str, table: Table, batch: int) -> tuple[str, IcebergTable | None]:
        """Name of the table for this incarnation, and the table if it exists. The plain name belongs to the
        existing incarnation. If a table was created again, the content under the plain name moves to a name
        with the old id: its columns may have other types, and its history stays readable."""
        called = to_table(table.name)
        plain = self._name(namespace, called)
        held = self.tables.find(plain)
        incarnation = None if held is None else self._incarnation_of(held)
        if incarnation != str(table.id) and table.dropped:
            plain = self._name(namespace, _incarnation_name(called, table.id))
            held = self.tables.find(plain)
            incarnation = None if held is None else self._incarnation_of(held)
        elif incarnation not in (None, str(table.id)):
            # If another driver has renamed it in the meantime, the name is taken.
            self._expect_open(batch)
            self.tables.rename(plain, namespace, _incarnation_name(called, UUID(incarnation)))
            held = None
        return plain, held

    def _incarnation(self, name: str) -> str | None:
        """Id of the Cassandra table whose rows the table holds; None if there is no such table."""
        held = self.tables.find(name)
        return None if held is None else self._incarnation_of(held)


def _concurrent(error: PySparkException | Py4JJavaError, batch: int) -> BatchBusy:
    return BatchBusy(
        f"concurrent write to the table: {why(error)[:_LONGEST]}",
        operation="commit a batch",
        obj=str(batch),
        hint="If another run of this batch is at it, a retry finds what that one has done. Nobody else writes to these tables.",
    )


def _outage(error: PySparkException | Py4JJavaError, batch: int) -> BatchError:
    return BatchError(
        f"catalog, store or worker failed: {reason_of(error)}",
        operation="commit a batch",
        obj=str(batch),
        retriable=True,
        hint="Run it again: whether or not the commit succeeded, the same rows are there after it.",
    )


def _despite_conflicts(write: Callable[[], None]) -> None:
    """Write to a table of all pipelines: again if another job or pipeline has written its own rows in the
    meantime."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            write()
            break
        except (PySparkException, Py4JJavaError) as error:
            if attempt == _ATTEMPTS or not is_conflict(error):
                raise


def _incarnation(held: IcebergTable) -> str:
    properties = held.properties
    if _ID_PROPERTY not in properties:
        raise BatchError(
            f"it has no property {_ID_PROPERTY}: somebody else made it",
            operation="open a warehouse table",
            obj=held.name,
            hint="Rename it; writetime makes its own.",
        )
    return properties[_ID_PROPERTY]


def _expect(held: IcebergTable, trouble: Trouble | None, operation: str) -> None:
    if trouble is not None:
        raise BatchError(trouble.what, operation=operation, obj=held.name, hint=trouble.hint)


def _expect_free(held: IcebergTable, plan: Steps) -> None:
    """BatchError if a partition field of somebody has, or had, the name that a column gets, which Iceberg does not allow."""
    names = {*(path[0] for path, _ in plan.added if len(path) == 1), *(name for path, name in plan.renamed if len(path) == 1)}
    for name in sorted(names & held.former_partition_names) if names else ():
        what = f"somebody has partitioned it by a field {name}, and it gets a column of that name"
        gone = "CALL ….system.expire_snapshots(table => '…', clean_expired_metadata => true)"
        hint = f"Drop the field (`ALTER TABLE … DROP PARTITION FIELD {name}`), and forget it (`{gone}`) when no snapshot has files of it."
        _expect(held, Trouble(what, hint), "write rows")


def _named(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The properties whose names begin so, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}


def _chains_of(held: IcebergTable) -> dict[int, str]:
    """The chains that have replaced what was there: the number of the first batch, and the id."""
    return {int(first): chain for first, chain in _named(held.properties, f"{_CHAIN_PROPERTY}.").items() if first.isdecimal()}


def _waiting(held: IcebergTable) -> dict[str, str]:
    """The columns that wait for values, and those in which these were set aside."""
    return {column: aside for aside, column in _named(held.properties, f"{_REFILL_PROPERTY}.").items() if column}


def _to_refill(columns: Mapping[str, str]) -> dict[str, str]:
    """The properties of columns that wait for values, as `_waiting` returns them."""
    return {f"{_REFILL_PROPERTY}.{aside}": column for column, aside in columns.items()}


def _has_batch(summaries: list[dict[str, str]], batch: int) -> bool:
    return any(each.get(BATCH_PROPERTY) == str(batch) and each.get(STEP_PROPERTY) == ROWS for each in summaries)


def _earlier_attempt(held: IcebergTable, batch: int, last_batch: Callable[[str], int | None]) -> Replaced:
    """The events that an earlier attempt of the batch left in a changes table. `last_batch`: the highest in its rows.

    To find them, a commit reads all manifests of the table, because these have no bounds by batch. So if no
    kept commit is of this batch, there are none: the commit then reads no manifest, and Iceberg rejects
    it if anything was added since the table was looked at; else only if events of this batch were, and what a driver of a voided
    batch commits late would stand above a later one's. Without a commit of an earlier batch in sight, the attempt's commit may
    have expired: the rows tell."""
    summaries, lineage = held.summaries, held.lineage
    if any(each.get(BATCH_PROPERTY) == str(batch) for each in summaries):
        return batch
    if held.snapshot is None or any(0 < int(each.summary.get(BATCH_PROPERTY, 0)) < batch for each in lineage):
        return "nothing"
    return batch if (last_batch(held.name) or 0) >= batch else "nothing"


def _batch_of(summary: Mapping[str, str], batches: Mapping[int, UUID | None]) -> int | None:
    """Which of these batches made the snapshot; None if none of them did."""
    number, batch_id = int(summary.get(BATCH_PROPERTY, 0)), summary.get(_BATCH_ID_PROPERTY)
    if number not in batches or (batch_id is not None and batches[number] is not None and batch_id != str(batches[number])):
        return None
    return number


def _rows_in(summaries: Sequence[Mapping[str, str]], batches: Mapping[int, UUID | None]) -> list[int]:
    """The positions in a table's commits at which these batches wrote current rows."""
    return [at for at, summary in enumerate(summaries) if summary.get(STEP_PROPERTY) == ROWS and _batch_of(summary, batches) is not None]


def _point_of(points: TablePoints, part: Part, table: Table) -> TablePoint | None:
    """Where the current rows or the changes have to stand; None if nobody knows, or they may be gone."""
    if part == "current":
        return None if table.dropped else points.current
    return points.changes


def _loss(held: IcebergTable | None, point: TablePoint | None) -> str | None:
    """What a table lacks that has to stand there, or later; None if it lacks nothing. What has expired cannot be compared."""
    if point is None:
        return None
    if held is None:
        return f"is not there, and holds batch {point.batch} by the seals: it was dropped or renamed"
    now = held.point
    if now is not None and now.table != point.table:
        return f"is another table, and lacks batch {point.batch}: the one of this name was dropped"
    if now is None or now.sequence < point.sequence or (now.snapshot != point.snapshot and not _is_before(held.lineage, point)):
        return f"lacks batch {point.batch}, which the seals name: it was rolled back, or its catalog was put back from a backup"
    return None


def _is_before(lineage: Sequence[Kept], point: TablePoint) -> bool:
    """Whether the commit is one of these, or may have been one before them that is not kept."""
    for each in lineage:
        if each.id == point.snapshot:
            return True
        if each.sequence < point.sequence or each.parent is None:
            return False
    return True


def _left_by(lineage: Sequence[Kept], voided: Mapping[int, UUID | None]) -> list[int]:
    """The voided batches that committed to the table and have not been reverted."""
    done: set[int] = set()
    found: set[int] = set()
    for summary in (each.summary for each in lineage):
        if summary.get(STEP_PROPERTY) == "void":
            done.add(int(summary.get(_VOID_PROPERTY, 0)))
        elif (number := _batch_of(summary, voided)) is not None and number not in done:
            found.add(number)
    return sorted(found)


def _undone(gone: Sequence[Kept]) -> dict[str, str]:
    """Properties that let the next batch repeat the steps that are rolled back with the rows."""
    properties: dict[str, str] = {}
    for summary in (each.summary for each in gone):
        if summary.get(STEP_PROPERTY) == "dropped":
            properties[_DROPPED_PROPERTY] = "{}"
        if summary.get(STEP_PROPERTY) == "refill" and _REFILL_PROPERTY in summary:
            properties |= _to_refill(json.loads(summary[_REFILL_PROPERTY]))
    return properties


@lru_cache(maxsize=1024)
def _as_spark(columns: pa.Schema) -> StructType:
    """The columns as Spark's, which nobody changes."""
    return from_arrow_schema(columns)


def _names(columns: Iterable[model.Column]) -> list[str]:
    return [to_column(column.name) for column in columns]


def _as_published(columns: StructType, table: Table, versions: Mapping[str, dict[str, Any]]) -> StructType:
    """A changes table's columns as publishers read them. Keys are as narrow as they were made: their hash says who sends an
    event, and so whether it was sent."""
    if not versions:
        return columns
    of_version, types = described(next(iter(versions.values())), table.keyspace, table.name)
    key = _as_spark(pa.schema([("key", RowShape.of(of_version, Schema(types=types)).key_type)]))["key"].dataType
    made = [(each, no_wider(each.dataType, key) if each.name == "key" else each.dataType) for each in columns.fields]
    return StructType([StructField(each.name, kind, each.nullable) for each, kind in made])


def _expect_none(rejected: Mapping[bytes, str], writes: Mapping[bytes, TableWrite]) -> None:
    """TablesFailed for the tables that tasks have rejected, with their reasons."""
    named = [(writes[table_id].table, reason) for table_id, reason in rejected.items()]
    if named:
        raise TablesFailed([RefusedTable(table=table.label, table_id=table.id, reason=reason) for table, reason in named])


def _facts_of(held: IcebergTable) -> Facts:
    return cast(Facts, held.properties.get(_FACTS_PROPERTY, "map"))


def _key_names(held: IcebergTable) -> tuple[str, ...]:
    return tuple(json.loads(held.properties.get(_KEY_NAMES_PROPERTY, "[]")))


def _keys(shape: RowShape) -> dict[str, str]:
    return {_KEYS_PROPERTY: json.dumps(list(shape.keys))}


def _incarnation_name(name: str, incarnation: UUID) -> str:
    return f"{name}__{model.short_id(incarnation)}"


def _drop_statement(name: str, facts: Facts, dropped: Mapping[str, int]) -> str:
    """`dropped`: the writetime (µs) up to which values are removed, by CQL name."""

    def goes(column: str, at: int) -> str:
        if facts == "none":
            return f"{quoted(to_column(column))} IS NOT NULL"
        return f"coalesce({WRITETIME}[{literal(column)}] <= {at}, false)"

    tests = {column: goes(column, at) for column, at in dropped.items()}
    sets = {quoted(to_column(c)): f"IF({test}, NULL, {quoted(to_column(c))})" for c, test in tests.items()}
    for fact in (WRITETIME, EXPIRES_AT) if facts == "map" else ():
        kept = " AND ".join(f"NOT (k = {literal(column)} AND {test})" for column, test in tests.items())
        sets[fact] = f"map_filter({fact}, (k, v) -> {kept})"
    listed = ", ".join(f"{column} = {value}" for column, value in sets.items())
    return f"UPDATE {name} SET {listed} WHERE {' OR '.join(tests.values())}"


def passed(fence: Fence | None, batch: int, made: Made) -> Made:
    """The rows, produced after the fence has been checked."""

    def rows(batches: Batches) -> Batches:
        if fence is not None:
            fence.check(batch)
        yield from made(batches)

    return rows
