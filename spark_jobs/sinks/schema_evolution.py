"""How a warehouse table follows its CQL table: which columns have to be renamed, widened, set aside and
added, and doing so in one commit.

Strategy: a table's shape says all. The columns of a primary key keep their places for the life of a table
(CREATE fixes them, ALTER renames them only), and so do the fields of a user type (ALTER TYPE adds at the end
or renames): these go by place, so that a name that differs is a rename. All other columns go by name: one
that is not there is new, one that nobody wants any more stays with its history. A column whose type cannot
become what is wanted (re-added with another type) is set aside under a name that no CQL column can have, and
made anew.

Sources: Cassandra 3.11-5.0, cql3 AlterTableStatement and AlterTypeStatement; Iceberg, SchemaUpdate. Knows
Spark's types and Iceberg's table; knows no CQL schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from writetime.errors import BatchBusy

Path = tuple[str, ...]

_HELD_AS: Final[dict[type[DataType], type[DataType]]] = {ByteType: IntegerType, ShortType: IntegerType}
"""What Iceberg makes of types that it lacks."""
_WIDER: Final[set[tuple[type[DataType], type[DataType]]]] = {(IntegerType, LongType), (FloatType, DoubleType)}
"""What Iceberg promotes in place."""


@dataclass(frozen=True)
class Steps:
    """The steps from one shape to another. Paths of renames are those before the renames; all other paths are
    those after."""

    aside: list[tuple[Path, str]] = field(default_factory=list)
    renamed: list[tuple[Path, str]] = field(default_factory=list)
    widened: list[tuple[Path, DataType]] = field(default_factory=list)
    added: list[tuple[Path, DataType]] = field(default_factory=list)

    @property
    def replaced(self) -> dict[str, str]:
        """Top-level columns that are created again, with the names under which their values were set
        aside."""
        new = {path for path, _ in self.added if len(path) == 1}
        return {path[0]: name for path, name in self.aside if path in new}

    def __bool__(self) -> bool:
        return bool(self.aside or self.renamed or self.widened or self.added)

    def take(self, other: Steps) -> None:
        self.aside.extend(other.aside)
        self.renamed.extend(other.renamed)
        self.widened.extend(other.widened)
        self.added.extend(other.added)


class _Clash(Exception):
    """A type that cannot become the other in place."""


def steps(wanted: StructType, stored: StructType, rows: Mapping[Path, int]) -> Steps:
    """The steps after which `stored` can hold rows of `wanted`. `rows`: the structs that are rows of the
    table, by path (`()` is the top), with the number of their first columns that are matched by position."""
    return _of_row(wanted, stored, rows, (), ())


def _of_row(wanted: StructType, stored: StructType, rows: Mapping[Path, int], was: Path, now: Path) -> Steps:
    """`was` and `now`: the row's path before and after renames."""
    found = Steps()
    keys = rows[was]
    taken = {*stored.names, *wanted.names}
    held = {each.name: each for each in stored.fields[keys:]}
    for place, each in enumerate(wanted.fields):
        by_place = place < min(keys, len(stored.fields))
        old = stored.fields[place] if by_place else held.get(each.name)
        if by_place and each.name in held:
            # A key takes the name of a column that is no more.
            found.aside.append(((*was, each.name), _aside(held.pop(each.name).name, taken)))
        if old is None:
            found.added.append(((*now, each.name), each.dataType))
            continue
        try:
            found.take(_of_column(each.dataType, old.dataType, rows, (*was, old.name), (*now, each.name)))
        except _Clash:
            found.aside.append(((*was, old.name), _aside(old.name, taken)))
            found.added.append(((*now, each.name), each.dataType))
            continue
        if old.name != each.name:
            found.renamed.append(((*was, old.name), each.name))
    return found


def _of_column(wanted: DataType, stored: DataType, rows: Mapping[Path, int], was: Path, now: Path) -> Steps:
    if isinstance(wanted, StructType) and isinstance(stored, StructType):
        return _of_row(wanted, stored, rows, was, now) if was in rows else _of_fields(wanted, stored, rows, was, now)
    if isinstance(wanted, ArrayType) and isinstance(stored, ArrayType):
        return _of_column(wanted.elementType, stored.elementType, rows, (*was, "element"), (*now, "element"))
    if isinstance(wanted, MapType) and isinstance(stored, MapType):
        if _of_column(wanted.keyType, stored.keyType, rows, (*was, "key"), (*now, "key")):
            raise _Clash  # Iceberg does not evolve keys of maps
        return _of_column(wanted.valueType, stored.valueType, rows, (*was, "value"), (*now, "value"))
    asked, held = type(wanted), type(stored)
    asked = _HELD_AS.get(asked, asked)
    if (held, asked) in _WIDER:
        return Steps(widened=[(now, asked())])
    if asked is not held:
        raise _Clash
    return Steps()


def _of_fields(wanted: StructType, stored: StructType, rows: Mapping[Path, int], was: Path, now: Path) -> Steps:
    """Steps for the fields of a user type or tuple, all matched by position."""
    found = Steps()
    for old, each in zip(stored.fields, wanted.fields, strict=False):
        found.take(_of_column(each.dataType, old.dataType, rows, (*was, old.name), (*now, each.name)))
        if old.name != each.name:
            found.renamed.append(((*was, old.name), each.name))
    found.added.extend(((*now, each.name), each.dataType) for each in wanted.fields[len(stored.fields) :])
    return found


def _aside(name: str, taken: set[str]) -> str:
    """An unused name. It begins with `_`, as no column's own name does (`names.to_column`)."""
    number = 1
    while (free := f"_was_{number}_{name}") in taken:
        number += 1
    taken.add(free)
    return free


def converted(value: str, stored: DataType, wanted: DataType, depth: int = 0) -> str:
    """SQL that converts a value to a type whose structs have more fields, which Iceberg cannot do in
    place."""
    if isinstance(wanted, StructType) and isinstance(stored, StructType):
        parts = []
        for place, each in enumerate(wanted.fields):
            old = stored.fields[place] if place < len(stored.fields) else None
            part = "NULL" if old is None else converted(f"{value}.{quoted(old.name)}", old.dataType, each.dataType, depth)
            parts.append(f"CAST({part} AS {type_ddl(each.dataType)}) AS {quoted(each.name)}")
        return f"IF({value} IS NULL, NULL, struct({', '.join(parts)}))"
    name = f"x{depth}"
    if isinstance(wanted, ArrayType) and isinstance(stored, ArrayType):
        return f"transform({value}, {name} -> {converted(name, stored.elementType, wanted.elementType, depth + 1)})"
    if isinstance(wanted, MapType) and isinstance(stored, MapType):
        key = converted(f"{name}.key", stored.keyType, wanted.keyType, depth + 1)
        item = converted(f"{name}.value", stored.valueType, wanted.valueType, depth + 1)
        return f"map_from_entries(transform(map_entries({value}), {name} -> struct({key}, {item})))"
    return f"try_cast({value} AS {type_ddl(wanted)})"


def type_ddl(kind: DataType) -> str:
    """The type in Spark SQL's syntax."""
    if isinstance(kind, StructType):
        return "STRUCT<" + ", ".join(f"{quoted(field.name)}: {type_ddl(field.dataType)}" for field in kind) + ">"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{type_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_ddl(kind.keyType)}, {type_ddl(kind.valueType)}>"
    return kind.simpleString()


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Kept(NamedTuple):
    """A commit to a table: its snapshot, the snapshot before it, whether that one is kept too, and its
    summary."""

    id: int
    parent: int | None
    has_parent: bool
    summary: dict[str, str]


class IcebergTable:
    """One table of the catalog, for operations that SQL cannot do in one commit."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self.name = name
        session: Any = spark
        self._table: Any = self._java("org.apache.iceberg.spark.Spark3Util").loadIcebergTable(session._jsparkSession, name)
        self._read: tuple[list[dict[str, str]], list[Kept]] = [], []
        self._read_from: str | None = None

    @property
    def properties(self) -> dict[str, str]:
        # As one text: each entry would be a call to the JVM, and the end of the iteration an exception.
        found: dict[str, str] = json.loads(
            self._java("org.apache.iceberg.util.JsonUtil").mapper().writeValueAsString(self._table.properties())
        )
        return found

    def refresh(self) -> None:
        """Read the table from the catalog again, because Spark caches tables."""
        self._table.refresh()

    @property
    def columns(self) -> StructType:
        return StructType.fromJson(json.loads(self._java("org.apache.iceberg.spark.SparkSchemaUtil").convert(self._table.schema()).json()))

    @property
    def snapshot(self) -> int | None:
        """Id of the snapshot that readers see; None if the table was never written."""
        found = self._table.currentSnapshot()
        return None if found is None else int(found.snapshotId())

    @property
    def rows(self) -> int | None:
        """Number of rows that readers see, by the last commit's summary, without reading data: records less
        position deletes. A delete whose file maintenance has rewritten still counts until maintenance removes
        it. None if the summary lacks it."""
        found = self._table.currentSnapshot()
        if found is None:
            return 0
        summary = json.loads(self._java("org.apache.iceberg.util.JsonUtil").mapper().writeValueAsString(found.summary()))
        numbers = [summary.get(f"total-{name}") for name in ("records", "position-deletes", "equality-deletes")]
        if None in numbers or int(numbers[2]):
            return None
        return max(0, int(numbers[0]) - int(numbers[1]))

    @property
    def summaries(self) -> list[dict[str, str]]:
        """Summaries of the kept commits, the newest last."""
        return self.commits()[0]

    @property
    def lineage(self) -> list[Kept]:
        """The commits whose result readers see, the newest first, as far as they are kept. Commits that were
        rolled back are not included."""
        return self.commits()[1]

    def commits(self) -> tuple[list[dict[str, str]], list[Kept]]:
        """`summaries` and `lineage` with one read, because a table's metadata may be large. Metadata that was
        read is not read again."""
        current = self._table.operations().current()
        location = current.metadataFileLocation()
        if location is None or location != self._read_from:
            self._read, self._read_from = self._parsed(current), location
        return self._read

    def _parsed(self, current: Any) -> tuple[list[dict[str, str]], list[Kept]]:
        metadata = json.loads(self._java("org.apache.iceberg.TableMetadataParser").toJson(current))
        kept = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
        found: list[Kept] = []
        at = metadata.get("current-snapshot-id")
        while (each := kept.get(at)) is not None:
            at = each.get("parent-snapshot-id")
            found.append(Kept(each["snapshot-id"], at, at in kept, each["summary"]))
        return [each["summary"] for each in kept.values()], found

    def roll_back(self, seen: int, target: int | None, properties: Mapping[str, str], check: Callable[[], None]) -> None:
        """Roll back to snapshot `target` (None: no rows) and set the properties, in one commit. `check` is
        called once the table with snapshot `seen` is loaded: any later commit makes the roll-back fail.
        ManageSnapshots would retry on top of that commit, and remove it too."""
        operations = self._table.operations()
        base = operations.refresh()
        now = base.currentSnapshot()
        if now is None or int(now.snapshotId()) != seen:
            raise BatchBusy("concurrent write to the table", operation="roll a warehouse table back", obj=self.name, hint="Run it again.")
        check()
        made = self._java("org.apache.iceberg.TableMetadata").buildFrom(base)
        made = made.removeRef("main") if target is None else made.setBranchSnapshot(target, "main")
        if properties:
            java_map = self._java("java.util.HashMap")()
            for name, value in properties.items():
                java_map.put(name, value)
            made = made.setProperties(java_map)
        operations.commit(base, made.build())
        self.refresh()
        self._spark.catalog.refreshTable(self.name)

    def evolve(self, plan: Steps, properties: Mapping[str, str], check: Callable[[], None]) -> None:
        """Apply the steps and set the properties; readers see all of it or nothing. `check` is called once
        the table is loaded: a later change of columns makes this fail."""
        transaction = self._table.newTransaction()
        check()
        # Each at once, so that two columns may swap their names; first what makes room for the others.
        for renames in (plan.aside, plan.renamed):
            self._update(transaction, [("renameColumn", ".".join(path), name) for path, name in renames])
        self._update(transaction, [("updateColumn", ".".join(path), self._type(kind).asPrimitiveType()) for path, kind in plan.widened])
        self._update(transaction, [("addColumn", *self._parent(path), path[-1], self._type(kind)) for path, kind in plan.added])
        update = transaction.updateProperties()
        for name, value in properties.items():
            update.set(name, value)
        update.commit()
        transaction.commitTransaction()
        self._spark.catalog.refreshTable(self.name)

    def empty(self, about: Mapping[str, str]) -> None:
        """Delete all rows. `about`: the summary properties of the snapshot."""
        taken = self._table.newDelete().deleteFromRowFilter(self._java("org.apache.iceberg.expressions.Expressions").alwaysTrue())
        for name, value in about.items():
            taken.set(name, value)
        taken.commit()
        self._spark.catalog.refreshTable(self.name)

    def _java(self, name: str) -> Any:
        return _java_class(self._spark, name)

    def _update(self, transaction: Any, calls: Sequence[tuple[Any, ...]]) -> None:
        if calls:
            update = transaction.updateSchema()
            for method, *arguments in calls:
                getattr(update, method)(*arguments)
            update.commit()

    def _parent(self, path: Path) -> tuple[str, ...]:
        return (".".join(path[:-1]),) if len(path) > 1 else ()

    def _type(self, kind: DataType) -> Any:
        # As the only column of a row: a struct alone would become a schema, which is not a column type.
        row = self._java("org.apache.spark.sql.types.DataType").fromJson(StructType([StructField("it", kind)]).json())
        return self._java("org.apache.iceberg.spark.SparkSchemaUtil").convert(row).findType("it")


@lru_cache(maxsize=64)
def _java_class(spark: SparkSession, name: str) -> Any:
    """A JVM class by its full name; each part of a name is a call to the JVM."""
    session: Any = spark
    return reduce(getattr, name.split("."), session._jvm)
