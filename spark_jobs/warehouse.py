"""Iceberg tables: current rows `<keyspace>.<table>`, changes `<keyspace>__changes.<table>` (names by writetime.cql.names); made, evolved
and written here only.

Strategy: table shapes follow from the CQL schema (spark_jobs.rows, spark_jobs.evolve): columns are added and renamed as the ring does,
and one that the ring dropped stays, so that history stays readable; of current rows only its values go. Every commit of rows carries its
batch number and is idempotent: changes overwrite what the batch wrote before, current rows are merged to what the batch ended with, or
replaced by it where the table was truncated. Knows Spark SQL; does not know where rows come from.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.evolve import IcebergTable, Path, Steps, converted, quoted, steps, type_ddl
from spark_jobs.rows import EXPIRES_AT, OP, WRITETIME, RowShape
from spark_jobs.scan import Batches
from spark_jobs.telling import changed_elements
from writetime.config import WarehouseConfig
from writetime.cql.names import to_changes_namespace, to_column, to_namespace
from writetime.envelope import encode
from writetime.errors import BatchError
from writetime.schema.model import Schema, Table
from writetime.schema.version import describe, schema_version

Facts = Literal["map", "struct", "none"]

_BATCH_PROPERTY = "writetime.batch"
_STEP_PROPERTY = "writetime.step"
"""Of a snapshot: the batch that made it, and whether it brought `rows`, took the values of `dropped` columns, or, as `refill`, moved values
to a column of another type."""
_ID_PROPERTY = "writetime.table-id"
_FACTS_PROPERTY = "writetime.cell-facts"
_KEYS_PROPERTY = "writetime.keys"
_DROPPED_PROPERTY = "writetime.dropped"
_REFILL_PROPERTY = "writetime.refill"
_SCHEMA_PROPERTY = "writetime.schema."
"""Of a table: whose rows it holds, how it keeps facts of cells, the key columns by their CQL names, the dropped columns whose values have
been taken (name to µs), columns that wait for values that were set aside, and, of changes, what each schema version in it means."""
_PROPERTIES = {"format-version": "2", "commit.retry.num-retries": "20"}
_CHUNK = 1000
_FIRST_MICROS = -62_135_596_800_000_000
_LAST_MICROS = 253_402_300_799_999_999
"""The years 1 to 9999: what all readers of a timestamp understand."""


def current_schema(shape: RowShape, facts: Facts = "map") -> pa.Schema:
    """Current rows: the table's columns, then writetime (µs) and expiry (s since the epoch) of each that has a value."""
    return pa.schema([*shape.row_type, *((name, kind) for kind in _facts_type(shape, facts) for name in (WRITETIME, EXPIRES_AT))])


def _facts_type(shape: RowShape, facts: Facts) -> list[pa.DataType]:
    """The one type of both, or none."""
    if facts == "map":
        return [pa.map_(pa.string(), pa.int64())]
    columns = [(to_column(name), pa.int64()) for name in shape.columns if name not in shape.keys]
    return [pa.struct(columns)] if facts == "struct" and columns else []


def changes_schema(shape: RowShape) -> pa.Schema:
    """Change events as the outbox keeps them."""
    row = shape.row_type
    prefix = pa.struct([shape.key_type.field(to_column(column.name)) for column in shape.table.clustering])
    bounds = [("start", prefix), ("start_inclusive", pa.bool_()), ("end", prefix), ("end_inclusive", pa.bool_())]
    return pa.schema(
        [
            ("batch", pa.int64()),
            ("ordinal", pa.int64()),
            ("op", pa.string()),
            ("reason", pa.string()),
            ("changed_at", pa.timestamp("us", "UTC")),
            ("ts_micro", pa.int64()),
            ("processed_at", pa.timestamp("us", "UTC")),
            ("key", shape.key_type),
            ("before", row),
            ("after", row),
            ("changed", pa.list_(pa.string())),
            ("changed_elements", pa.string()),  # JSON, see telling.changed_elements
            ("nodes", pa.list_(pa.string())),
            ("replicas_expected", pa.int32()),
            ("file", pa.string()),
            ("pos", pa.int64()),
            ("table_id", pa.string()),
            ("schema_version", pa.string()),
            *([("bounds", pa.struct(bounds))] if shape.table.clustering else []),
        ]
    )


def changes_rows(shape: RowShape) -> dict[Path, int]:
    """Which parts of a changes table are rows, with the number of their columns that go by place (see spark_jobs.evolve)."""
    keys, clustering = len(shape.keys), len(shape.table.clustering)
    parts: dict[Path, int] = {("key",): keys, ("before",): keys, ("after",): keys}
    return {(): 0, **parts, ("bounds", "start"): clustering, ("bounds", "end"): clustering}


def current_rows(shape: RowShape) -> dict[Path, int]:
    return {(): len(shape.keys), (WRITETIME,): 0, (EXPIRES_AT,): 0}


class Warehouse:
    """The tables of one catalog."""

    def __init__(self, spark: SparkSession, catalog: str, layout: WarehouseConfig | None = None) -> None:
        self.spark = spark
        self.catalog = catalog
        self.layout = layout or WarehouseConfig()

    def changes_of(self, table: Table) -> str | None:
        """Name of the table that holds this life's changes, or None if there is none yet."""
        plain = to_column(table.name)
        names = [self._name(to_changes_namespace(table.keyspace), called) for called in (plain, _life_name(plain, table.id))]
        return next((name for name in names if self._life(name) == str(table.id)), None)

    def write_changes(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> None:
        """Put a batch's events in; what an earlier attempt of the same batch left is replaced."""
        shape = RowShape.of(table, schema)
        name = self._changes(shape, schema)
        stored = self.spark.table(name).schema
        about = {"batch": batch, "table_id": str(table.id), "schema_version": schema_version(table, schema.types)}
        # What has no ordinal is for current rows only.
        typed = events.filter("ordinal IS NOT NULL").mapInArrow(_event_rows(to_arrow_schema(stored), table, schema, about), schema=stored)
        writer = typed.writeTo(name).option(f"snapshot-property.{_BATCH_PROPERTY}", str(batch))
        writer.overwrite(F.col("batch") == batch)

    def merge_current(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> None:
        """Bring the current rows to where the batch's last event of each row leaves them."""
        shape = RowShape.of(table, schema)
        name, facts = self._current(shape, schema, batch)
        if self._has_batch(name, batch):
            return
        columns = current_schema(shape, facts)
        rows = self._last_rows(name, columns, facts, events)
        if IcebergTable(self.spark, name).is_new:
            # Nothing to merge with, which is what merging costs most for.
            self._overwrite(name, rows, batch)
            return
        view = f"merge_source_{table.id.hex}"
        rows.createOrReplaceTempView(view)
        try:
            with self._noted(batch, "rows"):
                self.spark.sql(merge_statement(name, view, shape, columns))
        finally:
            self.spark.catalog.dropTempView(view)

    def replace_current(self, table: Table, schema: Schema, events: DataFrame, batch: int) -> None:
        """Of a table that was truncated: the rows that the batch's events leave take the place of all that were there, in one commit."""
        shape = RowShape.of(table, schema)
        name, facts = self._current(shape, schema, batch)
        if self._has_batch(name, batch):
            return
        self._overwrite(name, self._last_rows(name, current_schema(shape, facts), facts, events), batch)

    def _overwrite(self, name: str, rows: DataFrame, batch: int) -> None:
        """Put the rows in the place of all that is there."""
        writer = rows.filter(F.col(OP) != "d").drop(OP).writeTo(name)
        for key, value in _snapshot_properties(batch, "rows").items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.overwrite(F.lit(True))

    def follow(self, table: Table, schema: Schema, batch: int) -> None:
        """Bring the tables that there are to the shape that the ring's table has by now, if the batch writes none of its rows."""
        shape = RowShape.of(table, schema)
        if self.changes_of(table) is not None:
            self._changes(shape, schema)
        if not table.dropped and self._life(self._name(to_namespace(table.keyspace), to_column(table.name))) is not None:
            self._current(shape, schema, batch)

    # --- shapes ----------------------------------------------------------------------------------------------------------

    def _changes(self, shape: RowShape, schema: Schema) -> str:
        """Name of the table for this life's changes, made or brought to the shape that it has to have."""
        table = shape.table
        name, held = self._place(to_changes_namespace(table.keyspace), table)
        told = {f"{_SCHEMA_PROPERTY}{schema_version(table, schema.types)}": json.dumps(describe(table, schema.types))}
        columns = from_arrow_schema(changes_schema(shape))
        if held is None:
            held = self._create(name, columns, {_ID_PROPERTY: str(table.id)}, "days(changed_at)")
        self._evolve(name, columns, changes_rows(shape), held, {**told, **_keys(shape)})
        return name

    def _current(self, shape: RowShape, schema: Schema, batch: int) -> tuple[str, Facts]:
        """Name of the table for this life's current rows, as above, and how it keeps facts of cells: as it did when it was made."""
        table = shape.table
        name, held = self._place(to_namespace(table.keyspace), table)
        facts: Any = self.layout.cell_facts if held is None else held.get(_FACTS_PROPERTY, "map")
        columns = from_arrow_schema(current_schema(shape, facts))
        dropped = {column: gone.dropped_at for column, gone in table.dropped_columns.items()}
        if held is None:
            held = self._create(name, columns, {_ID_PROPERTY: str(table.id), _FACTS_PROPERTY: facts}, None)
        else:
            known = json.loads(held.get(_DROPPED_PROPERTY, "{}"))
            self._take_dropped(name, facts, {c: at for c, at in dropped.items() if at > known.get(c, at - 1)}, batch)
        told = {_DROPPED_PROPERTY: json.dumps(dropped), **_keys(shape), **self._modes()}
        held = self._evolve(name, columns, current_rows(shape), held, told)
        if refill := json.loads(held.get(_REFILL_PROPERTY, "{}")):
            self._refill(name, refill, batch)
        return name, facts

    def _modes(self) -> dict[str, str]:
        return {f"write.{command}.mode": self.layout.writes for command in ("merge", "update", "delete")}

    def _evolve(
        self, name: str, columns: StructType, rows: Mapping[Path, int], held: Mapping[str, str], told: Mapping[str, str]
    ) -> dict[str, str]:
        """Bring the table to the columns, and its properties to what is told; its properties then."""
        plan = steps(columns, self.spark.table(name).schema, rows)
        refill = json.loads(held.get(_REFILL_PROPERTY, "{}")) | (plan.replaced if rows.get(()) else {})
        told = {**told, **({_REFILL_PROPERTY: json.dumps(refill)} if refill else {})}
        news = {key: value for key, value in told.items() if held.get(key) != value}
        if plan or news:
            IcebergTable(self.spark, name).evolve(plan, news)
        return {**held, **told}

    def _refill(self, name: str, columns: Mapping[str, str], batch: int) -> None:
        """Give columns that were made anew the values that were set aside."""
        kinds = {field.name: field.dataType for field in self.spark.table(name).schema}
        sets = ", ".join(f"{quoted(new)} = {converted(quoted(old), kinds[old], kinds[new])}" for new, old in columns.items())
        lacking = " OR ".join(f"({quoted(new)} IS NULL AND {quoted(old)} IS NOT NULL)" for new, old in columns.items())
        with self._noted(batch, "refill"):
            self.spark.sql(f"UPDATE {name} SET {sets} WHERE {lacking}")
        IcebergTable(self.spark, name).evolve(Steps(), {_REFILL_PROPERTY: "{}"})

    def _take_dropped(self, name: str, facts: Facts, dropped: Mapping[str, int], batch: int) -> None:
        """Set columns that the ring has dropped to null, in rows that nobody touches too: values written later than the drop (they were
        ahead of the clock) stay, for they come back when the column is added again. Without writetimes all go."""
        stored = set(self.spark.table(name).schema.names)
        gone = {column: at for column, at in dropped.items() if to_column(column) in stored}
        if gone:
            with self._noted(batch, "dropped"):
                self.spark.sql(_drop_statement(name, facts, gone))

    # --- the rest --------------------------------------------------------------------------------------------------------

    def _last_rows(self, name: str, columns: pa.Schema, facts: Facts, events: DataFrame) -> DataFrame:
        """The rows as the batch leaves them, with what to do with each in the column OP."""
        stored = self.spark.table(name).schema
        rows = StructType([stored[column] for column in columns.names]).add(OP, "string")
        return events.filter("last").mapInArrow(_current_rows(to_arrow_schema(rows), facts), schema=rows)

    @contextmanager
    def _noted(self, batch: int, step: str) -> Iterator[None]:
        """Snapshots that SQL makes meanwhile tell what they are of."""
        properties = {f"spark.sql.iceberg.snapshot-property.{key}": value for key, value in _snapshot_properties(batch, step).items()}
        for key, value in properties.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key in properties:
                self.spark.conf.unset(key)

    def _name(self, namespace: str, table: str) -> str:
        return ".".join(quoted(piece) for piece in (self.catalog, namespace, table))

    def _place(self, namespace: str, table: Table) -> tuple[str, dict[str, str] | None]:
        """Name of the table for this life, and its properties if it is there.

        The plain name belongs to the life that goes on. When a table was created anew, what the plain name held so far moves to a name
        with the old id: its columns may have other types, and its history stays readable.
        """
        called = to_column(table.name)
        plain = self._name(namespace, called)
        life = self._life(plain)
        if life != str(table.id) and table.dropped:
            plain = self._name(namespace, _life_name(called, table.id))
            life = self._life(plain)
        elif life not in (None, str(table.id)):
            # The new name stands without its catalog: Spark would take that for a namespace.
            aside = f"{quoted(namespace)}.{quoted(_life_name(called, UUID(life)))}"
            self.spark.sql(f"ALTER TABLE {plain} RENAME TO {aside}")
            life = None
        return plain, self._properties(plain) if life else None

    def _life(self, name: str) -> str | None:
        """Id of the Cassandra table whose rows the table holds; None if there is no such table."""
        if not self.spark.catalog.tableExists(name):
            return None
        properties = self._properties(name)
        if _ID_PROPERTY not in properties:
            raise BatchError(
                f"it has no property {_ID_PROPERTY}: somebody else made it",
                operation="open a warehouse table",
                obj=name,
                hint="Rename it; writetime makes its own.",
            )
        return str(properties[_ID_PROPERTY])

    def _properties(self, name: str) -> dict[str, str]:
        return IcebergTable(self.spark, name).properties

    def _create(self, name: str, columns: StructType, about: Mapping[str, str], partitioning: str | None) -> dict[str, str]:
        """Make a table; its properties."""
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rsplit('.', 1)[0]}")
        listed = ", ".join(f"{quoted(field.name)} {type_ddl(field.dataType)}" for field in columns)
        properties = {**_PROPERTIES, **about}
        told = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        partitions = f"PARTITIONED BY ({partitioning})" if partitioning else ""
        self.spark.sql(f"CREATE TABLE {name} ({listed}) USING iceberg {partitions} TBLPROPERTIES ({told})")
        return properties

    def _has_batch(self, name: str, batch: int) -> bool:
        told = IcebergTable(self.spark, name).summaries
        return any(each.get(_BATCH_PROPERTY) == str(batch) and each.get(_STEP_PROPERTY) == "rows" for each in told)


def _snapshot_properties(batch: int, step: str) -> dict[str, str]:
    return {_BATCH_PROPERTY: str(batch), _STEP_PROPERTY: step}


def _keys(shape: RowShape) -> dict[str, str]:
    return {_KEYS_PROPERTY: json.dumps(list(shape.keys))}


def _life_name(name: str, life: UUID) -> str:
    return f"{name}__{str(life)[:8]}"


def merge_statement(name: str, view: str, shape: RowShape, stored: pa.Schema) -> str:
    # A row of static content alone has null clusterings: hence the null-safe comparison.
    same = " AND ".join(f"{_comparable('t', key)} <=> {_comparable('s', key)}" for key in shape.key_type)
    columns = [quoted(column) for column in stored.names]
    updates = ", ".join(f"t.{column} = s.{column}" for column in columns)
    values = ", ".join(f"s.{column}" for column in columns)
    return (
        f"MERGE INTO {name} t USING {view} s ON {same} "
        f"WHEN MATCHED AND s.{OP} = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )


def _comparable(side: str, key: pa.Field) -> str:
    """A key column as Spark can tell it from others as Cassandra does: maps it does not compare at all, and 0.0 and -0.0 are one to it."""
    column = f"{side}.{quoted(key.name)}"
    return (
        f"to_json(struct({column}), map('ignoreNullFields', 'false'))"
        if _holds(key.type, pa.types.is_map, pa.types.is_floating)
        else column
    )


def _holds(kind: pa.DataType, *wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is one of those, or is made of one."""
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return any(is_it(kind) for is_it in wanted) or any(_holds(each, *wanted) for each in inner)


def _drop_statement(name: str, facts: Facts, dropped: Mapping[str, int]) -> str:
    """`dropped`: by CQL name, up to which writetime (µs) values go."""

    def goes(column: str, at: int) -> str:
        if facts == "none":
            return f"{quoted(to_column(column))} IS NOT NULL"
        found = f"{WRITETIME}[{_text(column)}]" if facts == "map" else f"{WRITETIME}.{quoted(to_column(column))}"
        return f"coalesce({found} <= {at}, false)"

    tests = {column: goes(column, at) for column, at in dropped.items()}
    sets = {quoted(to_column(c)): f"IF({test}, NULL, {quoted(to_column(c))})" for c, test in tests.items()}
    for fact in (WRITETIME, EXPIRES_AT) if facts == "map" else ():
        kept = " AND ".join(f"NOT (k = {_text(column)} AND {test})" for column, test in tests.items())
        sets[fact] = f"map_filter({fact}, (k, v) -> {kept})"
    if facts == "struct":
        sets |= {
            f"{fact}.{quoted(to_column(c))}": f"IF({test}, NULL, {fact}.{quoted(to_column(c))})"
            for c, test in tests.items()
            for fact in (WRITETIME, EXPIRES_AT)
        }
    listed = ", ".join(f"{column} = {value}" for column, value in sets.items())
    return f"UPDATE {name} SET {listed} WHERE {' OR '.join(tests.values())}"


def _text(value: str) -> str:
    """The text as a literal of Spark SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unpacked(payload: bytes) -> dict[str, Any]:
    """An event as it comes from the fold; see spark_jobs.telling."""
    event: dict[str, Any] = pickle.loads(payload)  # noqa: S301 - written by this very job, between its own stages
    return event


def _event_rows(columns: pa.Schema, table: Table, schema: Schema, about: Mapping[str, Any]) -> Callable[[Batches], Batches]:
    types = Schema(types=schema.types)

    def rows(batches: Batches) -> Batches:
        shape = RowShape.of(table, types)
        for record_batch in batches:
            found = [(row["ordinal"], _unpacked(row["payload"])) for row in record_batch.select(["ordinal", "payload"]).to_pylist()]
            yield from _slices([_event_row(ordinal, event, shape, about) for ordinal, event in found], columns)

    return rows


def _event_row(ordinal: int, event: dict[str, Any], shape: RowShape, about: Mapping[str, Any]) -> dict[str, Any]:
    elements = changed_elements(shape, event)
    return {
        **event,
        **about,
        "ordinal": ordinal,
        # USING TIMESTAMP takes any 64 bits; ts_micro keeps them, a calendar does not.
        "changed_at": max(_FIRST_MICROS, min(event["ts_micro"], _LAST_MICROS)),
        "processed_at": event["now"] * 1_000_000,
        "changed_elements": encode(elements).decode() if elements else None,
    }


def _current_rows(columns: pa.Schema, facts: Facts) -> Callable[[Batches], Batches]:
    def rows(batches: Batches) -> Batches:
        for record_batch in batches:
            yield from _slices([_current_row(_unpacked(payload), facts) for payload in record_batch["payload"].to_pylist()], columns)

    return rows


def _current_row(event: dict[str, Any], facts: Facts) -> dict[str, Any]:
    row = event["key"] if event["after"] is None else event["after"]
    return {**row, WRITETIME: _facts(event["writetime"], facts), EXPIRES_AT: _facts(event["expires_at"], facts), OP: event["op"]}


def _facts(found: Mapping[str, int], facts: Facts) -> Any:
    return list(found.items()) if facts == "map" else {to_column(name): value for name, value in found.items()}


def _slices(rows: list[dict[str, Any]], shape: pa.Schema) -> Batches:
    for start in range(0, len(rows), _CHUNK):
        yield pa.RecordBatch.from_pylist(rows[start : start + _CHUNK], schema=shape)
