"""The tables of one catalog, as Spark finds, creates, renames and writes them: what `Warehouse` asks Spark for.

Strategy: each request to the catalog, and each statement that writes rows, is a method here; whether it may be sent
is decided by `Warehouse`. So an implementation in memory can take this one's place (`proof/doubles/warehouse.py`), with
everything above it as it is. What one table can do by itself is in `IcebergTable`. Must not know batches, but that changes
have a column of that name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Any
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.sinks.iceberg_table import IcebergTable, Replaced, is_conflict
from spark_jobs.sinks.schema_evolution import literal, quoted, type_ddl, unquoted
from spark_jobs.stages.table_rows import OP, RowShape

_SETTING = "spark.sql.iceberg.snapshot-property."


class _Notes:
    """Summary properties of snapshots that SQL creates are a setting of the Spark session: statements with
    equal properties run at the same time, others wait."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._changed = Condition()
        self._in_force: Mapping[str, str] = {}
        self._users = 0

    @contextmanager
    def applied(self, about: Mapping[str, str]) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._users or self._in_force == about)
            for key, value in about.items():
                self._spark.conf.set(_SETTING + key, value)
            # Who fails so far is no user: nobody has to wait for it.
            self._in_force = about
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                # First, because the next steps may fail; no other driver continues before it is done.
                self._changed.notify_all()
                if not self._users:
                    for key in about:
                        self._spark.conf.unset(_SETTING + key)


class SparkCatalog:
    """`name` of tables: with catalog and namespace, quoted. `about`: the summary properties of the snapshot."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._notes = _Notes(spark)
        self._making = Lock()

    def find(self, name: str) -> IcebergTable | None:
        """The table of that name as it is now, if it exists."""
        if not self._spark.catalog.tableExists(name):
            return None
        held = self.load(name)
        try:
            held.refresh()
        except Py4JJavaError as error:
            if not is_conflict(error):
                raise
            # Iceberg keeps tables for half a minute: this one was dropped since, and perhaps another one made.
            self._forget(name)
            return self.load(name) if self._spark.catalog.tableExists(name) else None
        return held

    def _forget(self, name: str) -> None:
        """Remove the table from Iceberg's cache."""
        session: Any = self._spark
        _, namespace, called = unquoted(name)
        names = session.sparkContext._gateway.new_array(session._jvm.java.lang.String, 1)
        names[0] = namespace
        table = session._jvm.org.apache.spark.sql.connector.catalog.Identifier.of(names, called)
        session._jsparkSession.sessionState().catalogManager().catalog(self._catalog).invalidateTable(table)

    def load(self, name: str) -> IcebergTable:
        """The table of that name, which exists; Spark may have it from its cache."""
        return IcebergTable(self._spark, name)

    def all_tables(self) -> Iterator[tuple[str, str]]:
        """The tables of all namespaces without parents: their namespaces, and their names."""
        for (namespace,) in self._spark.sql(f"SHOW NAMESPACES IN {quoted(self._catalog)}").collect():
            if "." not in namespace:
                inside = f"{quoted(self._catalog)}.{quoted(namespace)}"
                for row in self._spark.sql(f"SHOW TABLES IN {inside}").collect():
                    yield namespace, f"{inside}.{quoted(row.tableName)}"

    def create(self, name: str, columns: StructType, properties: Mapping[str, str], partitioning: str | None) -> IcebergTable:
        with self._making:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rsplit('.', 1)[0]}")
        listed = ", ".join(f"{quoted(field.name)} {type_ddl(field.dataType)}" for field in columns)
        listed_properties = ", ".join(f"{literal(key)}={literal(value)}" for key, value in properties.items())
        partitions = f"PARTITIONED BY ({partitioning})" if partitioning else ""
        self._spark.sql(f"CREATE TABLE {name} ({listed}) USING iceberg {partitions} TBLPROPERTIES ({listed_properties})")
        return self.load(name)

    def rename(self, name: str, namespace: str, called: str) -> None:
        # The new name is given without the catalog, which Spark would take for a namespace.
        self._spark.sql(f"ALTER TABLE {name} RENAME TO {quoted(namespace)}.{quoted(called)}")

    def rows(self, name: str) -> DataFrame:
        return self._spark.table(name)

    def changes_at(self, name: str, snapshot: int, without: Iterable[int]) -> DataFrame:
        """A changes table's rows at a snapshot, without those of some batches. PySparkException if the table of that name
        has no such snapshot."""
        rows = self._spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot}")
        left_out = sorted(without)
        return rows.filter(~F.col("batch").isin(left_out)) if left_out else rows

    def last_batch(self, name: str) -> int | None:
        """The highest batch in the rows of a changes table; None if it has no rows."""
        ((last,),) = self._spark.sql(f"SELECT max(batch) FROM {name}").collect()
        return None if last is None else int(last)

    def rows_of(self, name: str, cluster: str) -> list[dict[str, Any]]:
        """The rows of a cluster in a table of all pipelines."""
        found: list[dict[str, Any]] = self._spark.table(name).filter(F.col("cluster") == cluster).toArrow().to_pylist()
        return found

    def frame(self, rows: pa.Table, columns: StructType) -> DataFrame:
        return self._spark.createDataFrame(rows, schema=columns)

    def as_stored(self, actions: DataFrame, columns: StructType) -> DataFrame:
        """The rows of actions (see OP) that stay, with exactly these columns; missing ones (dropped columns) are null. If
        a column is missing or at another position, Spark builds all values again field by field, which fails for a map
        whose keys contain maps."""
        rows, here = actions.filter(F.col(OP) != "d"), set(actions.columns)
        return rows.select(
            [F.col(quoted(field.name)) if field.name in here else F.lit(None).cast(field.dataType).alias(field.name) for field in columns]
        )

    # --- rows written by Spark

    def overwrite(self, name: str, seen: int | None, rows: DataFrame, replaced: Replaced, about: Mapping[str, str]) -> None:
        """Put the rows in place of those `replaced`, unless such rows were written since snapshot `seen`."""
        where = F.col("batch") == replaced if isinstance(replaced, int) else F.lit(replaced == "everything")
        self._overwrite(name, seen, rows, where, about)

    def replace_rows_of(self, name: str, seen: int | None, rows: DataFrame, cluster: str) -> None:
        """Put the few rows in place of a cluster's, unless such rows were written since snapshot `seen`."""
        self._overwrite(name, seen, rows.coalesce(1), F.col("cluster") == cluster, {})

    def _overwrite(self, name: str, seen: int | None, rows: DataFrame, where: Column, about: Mapping[str, str]) -> None:
        writer = rows.writeTo(name).option("isolation-level", "serializable")
        if seen is not None:
            writer = writer.option("validate-from-snapshot-id", str(seen))
        for key, value in about.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.overwrite(where)

    def remove(self, held: IcebergTable, seen: int, replaced: Replaced, about: Mapping[str, str]) -> None:
        """Remove rows, unless such rows were written since snapshot `seen`. It fails if a file has others too."""
        self.overwrite(held.name, seen, self._spark.createDataFrame([], held.columns), replaced, about)

    def execute(self, statement: str, about: Mapping[str, str]) -> None:
        """A statement that writes rows."""
        with self._notes.applied(about):
            self._spark.sql(statement)

    def delete_events(self, name: str, batch: int, about: Mapping[str, str]) -> None:
        """Delete a batch's rows of a changes table one by one."""
        self.execute(f"DELETE FROM {name} WHERE batch = {batch}", about)

    def exchange_events(self, name: str, rows: DataFrame, batch: int, about: Mapping[str, str]) -> None:
        """Replace a batch's rows of a changes table one by one. A crash between the two steps loses nothing."""
        on = f"t.batch = {batch} AND t.ordinal = s.ordinal"
        with self._viewed(rows) as view:
            self.execute(_merge_all(name, view, rows.columns, on), about)
            self.execute(f"DELETE FROM {name} WHERE batch = {batch} AND ordinal NOT IN (SELECT ordinal FROM {view})", about)

    def merge(self, name: str, rows: DataFrame, shape: RowShape, columns: Sequence[str], about: Mapping[str, str]) -> None:
        """Merge rows, with OP, into current rows."""
        with self._viewed(rows) as view:
            self.execute(merge_statement(name, view, shape, columns), about)

    def merge_records(self, name: str, rows: DataFrame, cluster: str, about: Mapping[str, str]) -> None:
        """Merge quarantine records of a cluster, by their names."""
        # The cluster as a literal, so that rows of other clusters, written by other pipelines, are no conflict.
        with self._viewed(rows) as view:
            self.execute(_merge_all(name, view, rows.columns, f"t.cluster = {literal(cluster)} AND t.name = s.name"), about)

    def take_back_records(self, name: str, cluster: str, batch: int, about: Mapping[str, str]) -> None:
        """Delete the quarantine records of a cluster's batch, and let those that it settled wait again."""
        where = f"cluster = {literal(cluster)}"
        self.execute(f"UPDATE {name} SET settled_in = NULL WHERE {where} AND settled_in = {batch}", about)
        self.execute(f"DELETE FROM {name} WHERE {where} AND batch = {batch} AND segment IS NOT NULL", about)

    @contextmanager
    def _viewed(self, rows: DataFrame) -> Iterator[str]:
        """A temporary view of the rows for SQL."""
        view = f"rows_{uuid4().hex}"
        rows.createOrReplaceTempView(view)
        try:
            yield view
        finally:
            self._spark.catalog.dropTempView(view)


# --- SQL


def _merge_all(name: str, view: str, names: Sequence[str], on: str) -> str:
    """By name: somebody may have added columns to the table."""
    columns = [quoted(each) for each in names]
    updates, values = (", ".join(parts) for parts in ([f"t.{each} = s.{each}" for each in columns], [f"s.{each}" for each in columns]))
    insert = f"INSERT ({', '.join(columns)}) VALUES ({values})"
    return f"MERGE INTO {name} t USING {view} s ON {on} WHEN MATCHED THEN UPDATE SET {updates} WHEN NOT MATCHED THEN {insert}"


def merge_statement(name: str, view: str, shape: RowShape, stored: Sequence[str]) -> str:
    # Static content alone has null clusterings, which need the null-safe comparison.
    same = " AND ".join(f"{comparable('t', key)} <=> {comparable('s', key)}" for key in shape.key_type)
    columns = [quoted(column) for column in stored]
    updates = ", ".join(f"t.{column} = s.{column}" for column in columns)
    values = ", ".join(f"s.{column}" for column in columns)
    return (
        f"MERGE INTO {name} t USING {view} s ON {same} "
        f"WHEN MATCHED AND s.{OP} = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )


def comparable(side: str, key: pa.Field) -> str:
    """A key column in a form that Spark compares as Cassandra does: Spark does not compare maps, and treats
    0.0 and -0.0 as equal. Maps become lists of their entries, because the JSON of a map has keys as Java prints
    them: of bytes or a collection, that is the identity of an object."""
    column = f"{side}.{quoted(key.name)}"
    if not _holds(key.type, pa.types.is_map, pa.types.is_floating):
        return column
    return f"to_json(struct({_with_entries(column, key.type)}), map('ignoreNullFields', 'false'))"


def _with_entries(value: str, kind: pa.DataType, depth: int = 0) -> str:
    """An expression of the value with a list of entries in the place of each map."""
    if not _holds(kind, pa.types.is_map):
        return value
    each = f"e{depth}"
    if pa.types.is_map(kind):
        parts = ", ".join(
            f"'{name}', {_with_entries(f'{each}.{name}', part, depth + 1)}"
            for name, part in (("key", kind.key_type), ("value", kind.item_type))
        )
        return f"transform(map_entries({value}), {each} -> named_struct({parts}))"
    if pa.types.is_list(kind):
        return f"transform({value}, {each} -> {_with_entries(each, kind.value_type, depth + 1)})"
    fields = [kind.field(at) for at in range(kind.num_fields)]
    parts = ", ".join(f"{literal(field.name)}, {_with_entries(f'{value}.{quoted(field.name)}', field.type, depth + 1)}" for field in fields)
    return f"IF({value} IS NULL, NULL, named_struct({parts}))"


def _holds(kind: pa.DataType, *wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is one of those or contains one."""
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return any(is_it(kind) for is_it in wanted) or any(_holds(each, *wanted) for each in inner)
