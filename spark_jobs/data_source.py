"""Segments as a DataFrame, for notebooks: `spark.read.format("cassandra_commitlog").load(path)`.

    spark.dataSource.register(CassandraCommitlog)
    spark.read.format("cassandra_commitlog").load("cdc_raw")                                    generic: one row per cell or deletion
    spark.read.format("cassandra_commitlog").option("table", "shop.orders").load("cdc_raw")     typed: one row per changed row of the table

Strategy: planning reads all segments once to learn the schema. Then each path is a partition, and workers
read the bytes. Rows are built in `stages.segment_rows`. `pushFilters` is not implemented, because Spark
rejects a source that has it unless spark.sql.python.filterPushdown.enabled is set; options select what to
read instead. Writes nothing. Knows no pipeline and shows everything in the segments, unless the option
`config` names a pipeline: then only what the pipeline publishes is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.stages.segment_rows import (
    GENERIC,
    Hidden,
    Source,
    generic_rows,
    typed_rows,
    typed_schema,
    unreadable,
)
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.mutation_json import learn
from writetime.cassandra.commitlog.segment import Scan, scan
from writetime.cassandra.commitlog.update_filter import Selection, select
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema, Table
from writetime.cassandra.schema.snapshot import read as read_snapshot
from writetime.config.pipeline import load
from writetime.errors import ConfigError, SegmentError, WritetimeError
from writetime.events.masking import Rules, TableRules
from writetime.storage import segment_paths

log = structlog.get_logger(__name__)

OPTIONS: Final = {
    "path": "a file, a folder or a bucket URL; given by load(); several as load([…])",
    "table": "keyspace.name or a table's id: typed rows of that table",
    "schema": "path of a schema snapshot, known before the log's own",
    "keystore": "path of the keystore of encrypted segments; its password is in the environment of driver and workers",
    "allTables": "true: tables that never had cdc, too",
    "config": "a pipeline's YAML: only tables that it captures, as its `columns` show them",
    "problems": "fail (the default where there is a table) or skip: what to do where a typed row cannot be had",
}
_HINT: Final = 'Leave out the option table to see it as a row of kind problem, or set the option problems to "skip" to read on'


@dataclass(frozen=True)
class Segment(InputPartition):
    """A partition: the location of a segment."""

    path: str


@dataclass(frozen=True)
class Plan:
    """What all partitions share."""

    paths: tuple[str, ...]
    schema: Schema
    selection: Selection
    table: Table | None
    keystore: str | None
    skip: bool
    rules: Rules | None

    @property
    def shown(self) -> Table | None:
        """The table as it is shown."""
        if self.table is None or self.rules is None:
            return self.table
        return self.rules.of(self.table, self.schema.types).shown()


class CassandraCommitlog(DataSource):
    """See the module's docstring; the options are `OPTIONS`. Columns are pruned by .schema(…) with fewer
    columns."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: Plan | None = None

    @classmethod
    def name(cls) -> str:
        return "cassandra_commitlog"

    @property
    def plan(self) -> Plan:
        # Sent with this object from the process that infers the schema to the one that plans the read.
        if self._plan is None:
            self._plan = _plan(self.options)
        return self._plan

    def schema(self) -> StructType:
        """GENERIC, or the table's columns and the facts about a row. Opens all segments."""
        return from_arrow_schema(_arrow_schema(self.plan))

    def reader(self, schema: StructType) -> DataSourceReader:
        known = _arrow_schema(self.plan).names
        strangers = [name for name in schema.names if name not in known]
        if strangers:
            raise ConfigError(f"unknown columns: {strangers}", operation="read a commit log", hint=f"Known columns: {', '.join(known)}")
        return Reader(self.plan, tuple(schema.names))


def _arrow_schema(plan: Plan) -> pa.Schema:
    return GENERIC if plan.shown is None else typed_schema(plan.shown, plan.schema)


class Reader(DataSourceReader):
    """Reads columns `columns`, in their order, of one segment at a time."""

    def __init__(self, plan: Plan, columns: tuple[str, ...]) -> None:
        self.plan = plan
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        return [Segment(path) for path in self.plan.paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one segment, in log order."""
        assert isinstance(partition, Segment)
        content = b""
        try:
            content = segment_paths.read(partition.path)
            source = Source(partition.path, _scan(partition.path, content, self.plan.keystore))
        except SegmentError as error:
            if self.plan.table is None:
                yield self._visible(unreadable(partition.path, error, content))
            else:
                self._failed(error)
            return
        if self.plan.table is not None:
            yield from typed_rows(source, self.plan.table, self.plan.schema, self.columns, self._failed, self.plan.rules)
            return
        for batch in generic_rows(source, self.plan.schema, self.plan.selection):
            yield self._visible(batch)

    def _visible(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The requested columns of GENERIC rows, without what the pipeline hides."""
        shown = batch if self.plan.rules is None else Hidden(self.plan.rules, self.plan.schema).without(batch)
        return shown.select(self.columns)

    def _failed(self, error: WritetimeError) -> None:
        if not self.plan.skip:
            error.hint = f"{error.hint}. {_HINT}" if error.hint else _HINT
            raise error
        log.warning("segment skipped", **error.as_dict())


# --- planning


def _plan(options: Mapping[str, str]) -> Plan:
    """Find the segments and learn the schema from all of them. Raises ConfigError, StoreError,
    SchemaError."""
    unknown = sorted(set(options) - {name.lower() for name in OPTIONS} - set(OPTIONS) - {"paths"})
    if unknown:
        raise ConfigError(f"unknown options: {unknown}", operation="read a commit log", hint=f"Known options: {', '.join(OPTIONS)}")
    found, errors = segment_paths.find(_paths(options))
    if errors:
        raise errors[0]
    learner = SchemaLearner()
    if options.get("schema"):
        learner.apply_snapshot(read_snapshot(segment_paths.read(options["schema"])))
    for each in found:
        _learn(each, learner, options.get("keystore"))
    schema = learner.schema()
    wanted = [options["table"]] if options.get("table") else []
    selection = select(schema, learner.cdc_ever, tables=wanted, keys=(), all_tables=_is_true(options, "allTables"))
    config = load(options["config"]) if options.get("config") else None
    if config is not None and selection.captured is not None:
        captured = {table.id for table in learner.captured(config.tables.captures)}
        selection = replace(selection, captured=selection.captured & captured)
    table = _one_table(schema, selection, options["table"]) if wanted else None
    rules = None if config is None else config.columns.rules
    if table is not None and rules is not None:
        _expect_shown(rules.of(table, schema.types), selection)
    portable = replace(selection, known=frozenset(schema.tables))
    skip = _choice(options, "problems", ("fail", "skip")) == "skip"
    return Plan(tuple(each.where for each in found), schema, portable, table, options.get("keystore"), skip, rules)


def _expect_shown(rules: TableRules, selection: Selection) -> None:
    """ConfigError if the pipeline's rules do not allow the table's rows to be shown."""
    reason, hint = rules.rejection_reason(), ""
    if selection.captured is not None and rules.table.id not in selection.captured:
        reason, hint = "the pipeline does not capture it", "Set the option allTables to see it all the same"
    elif rules.filter is not None:
        # An update does not contain the columns that it leaves unchanged.
        reason = "the pipeline filters its rows, and a mutation does not hold whole rows"
        hint = "Read the warehouse's tables"
    if reason is not None:
        raise ConfigError(reason, operation="read a commit log", obj=rules.table.full_name, hint=hint or None)


def _paths(options: Mapping[str, str]) -> list[str]:
    if options.get("paths"):
        return [str(path) for path in json.loads(options["paths"])]
    if not options.get("path"):
        raise ConfigError("no path to segments was given", operation="read a commit log", hint="Give load() a file, folder or bucket URL")
    return [options["path"]]


def _learn(each: segment_paths.Input, learner: SchemaLearner, keystore: str | None) -> None:
    try:
        found = _scan(each.where, each.read(), keystore)
    except SegmentError as error:
        # Reading the file raises the same error and reports it.
        log.warning("schema not read from segment", **error.as_dict())
        return
    for failure in learn(found, learner):
        log.warning("schema change could not be decoded", segment=each.where, **failure.error.as_dict())


def _scan(path: str, content: bytes, keystore: str | None) -> Scan:
    return scan(content, name=path, keys=Keystore.from_environment(keystore) if keystore else None)


def _one_table(schema: Schema, selection: Selection, asked: str) -> Table:
    """The existing incarnation of the table, or the only one."""
    incarnations = [schema.tables[table_id] for table_id in selection.tables or ()]
    living = [table for table in incarnations if not table.dropped] or incarnations
    if len(living) == 1:
        return living[0]
    ids = ", ".join(sorted(str(table.id) for table in living))
    raise ConfigError(
        f"the table was dropped and created again, with the ids {ids}", operation="select", obj=asked, hint="Give one of the ids"
    )


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return _choice(options, name, ("false", "true")) == "true"


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The option's value, or the first choice."""
    value = str(options.get(name) or choices[0]).lower()
    if value not in choices:
        raise ConfigError(f"{value!r} is none of {', '.join(choices)}", operation="read a commit log", obj=f"option {name}")
    return value
