"""An Iceberg catalog in memory beneath the real `Warehouse`, for drivers that are stopped at each request to it.

Strategy: `DoubleWarehouse` is the real `Warehouse`, with all its fences, but where it asks Spark (`DoubleCatalog` in place
of `SparkCatalog`, `DoubleTable` of `IcebergTable`) and where tasks of Spark would run (three methods). `Catalog` holds the
tables, which all drivers share: a table is one immutable `Metadata`, and a commit replaces the one that it is based on.
What a commit checks, and what it does if somebody else was faster, follows Iceberg 1.12: an operation on snapshots is
checked against what came since, then made of the newest metadata, and again if that is not the newest any more; columns
and roll-backs are made of the metadata that was loaded. Rows are dictionaries, as Spark's readers return them.

Not here: columns renamed or set aside, or changed by people, UPDATE (values of dropped columns, `_refill`), numbers by `warehouse.decimal`,
static content beside a clustering of no bytes, branches and tags, format version 3. One driver runs at a time: nothing is locked.
Sources: Iceberg, SnapshotProducer, MergingSnapshotProducer, BaseOverwriteFiles, BaseRowDelta, BaseTransaction; the tests
in `tests/proof/doubles/test_warehouse.py`, which Spark passes too. Must not know the rules of batches."""

from __future__ import annotations

import itertools
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_jobs.sinks import changes_files
from spark_jobs.sinks.batch_files import CHANGES, CURRENT, EMITTED
from spark_jobs.sinks.changes_files import ChangesFiles, DataFile, Spans, Wanted
from spark_jobs.sinks.iceberg import TableWrite, Warehouse, passed
from spark_jobs.sinks.iceberg_table import Kept, Point, Replaced
from spark_jobs.sinks.own_columns import OwnColumns
from spark_jobs.sinks.schema_evolution import Path, Steps, quoted
from spark_jobs.stages.row_packs import unpacked
from spark_jobs.stages.table_rows import EXPIRES_AT, OP, WRITETIME, RowShape
from writetime.errors import BatchBusy
from writetime.pipeline.documents import TableFiles

Row = Mapping[str, Any]
_RETRIES: Final = 20
"""`commit.retry.num-retries` of the tables that writetime makes."""
_EXCEPTIONS: Final = "org.apache.iceberg.exceptions."


def nothing(_: str) -> None:
    pass


# --- errors


class _JavaException:
    """What `spark_jobs.failures` asks an exception of the JVM."""

    def __init__(self, name: str) -> None:
        self._name = name

    def getClass(self) -> _JavaException:
        return self

    def getName(self) -> str:
        return self._name

    def getCause(self) -> None:
        return None

    def getSqlState(self) -> str:
        return ""

    getSQLState = getSqlState  # noqa: N815


class IcebergError(Py4JJavaError):  # type: ignore[misc]
    """An exception of Iceberg, as it comes through Spark's gateway."""

    def __init__(self, kind: str, message: str) -> None:
        Exception.__init__(self, message)
        self.java_exception = _JavaException(kind)

    def __str__(self) -> str:
        return f"An error occurred while calling o1.commit.\n: {self.java_exception.getName()}: {self.args[0]}"


def _invalid(message: str) -> IcebergError:
    return IcebergError(f"{_EXCEPTIONS}ValidationException", message)


def _stale(name: str) -> IcebergError:
    return IcebergError(f"{_EXCEPTIONS}CommitFailedException", f"Cannot commit to table {name}: metadata location has changed")


def state_unknown() -> IcebergError:
    """What a driver gets whose commit is done and whose answer is lost: for `Catalog.answered`."""
    return IcebergError(f"{_EXCEPTIONS}CommitStateUnknownException", "Cannot determine whether the commit was successful or not")


def _not_found(name: str) -> AnalysisException:
    return AnalysisException(f"[TABLE_OR_VIEW_NOT_FOUND] The table or view {name} cannot be found.")


def _exists(name: str) -> AnalysisException:
    return AnalysisException(f"[TABLE_OR_VIEW_ALREADY_EXISTS] Cannot create table or view {name} because it already exists.")


# --- a table


@dataclass(frozen=True, eq=False)
class File:
    """A data file."""

    number: int
    rows: tuple[Row, ...]

    @cached_property
    def batches(self) -> tuple[int, int] | None:
        """The lowest and the highest batch of its rows, if they have one."""
        numbers = [row["batch"] for row in self.rows if row.get("batch") is not None]
        return (min(numbers), max(numbers)) if numbers else None

    def may_have(self, replaced: Replaced) -> bool:
        """Whether it may have such rows, by the bounds of its columns."""
        if isinstance(replaced, int):
            return self.batches is not None and self.batches[0] <= replaced <= self.batches[1]
        return replaced == "everything"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """`files`: the data files, each with the positions that are deleted; `added`, `removed`: data files of this commit;
    `deleted`: data files that got deletes."""

    id: int
    parent: int | None
    summary: Mapping[str, str]
    at: datetime
    files: Mapping[File, frozenset[int]]
    added: frozenset[File] = frozenset()
    removed: frozenset[File] = frozenset()
    deleted: frozenset[File] = frozenset()

    @cached_property
    def kept(self) -> tuple[Kept, Kept]:
        """Without the snapshot before it, and with it."""
        alone = Kept(self.id, self.parent, False, dict(self.summary), self.at, self.id)
        return alone, alone._replace(has_parent=True)

    @property
    def rows(self) -> Iterator[Row]:
        return (row for file, gone in self.files.items() for at, row in enumerate(file.rows) if at not in gone)


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """A table as of one commit. `id`: of the table, which a rename does not change."""

    id: int
    columns: StructType
    properties: Mapping[str, str]
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    current: int | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        return None if self.current is None else self.snapshots[self.current]

    def lineage(self) -> Iterator[Snapshot]:
        """The snapshots whose result readers see, the newest first, as far as they are kept."""
        found = self.snapshot
        while found is not None:
            yield found
            found = None if found.parent is None else self.snapshots.get(found.parent)

    def since(self, seen: int | None) -> list[Snapshot]:
        """The snapshots after `seen`, the newest first. ValidationException if that one is not before them."""
        found = list[Snapshot]()
        for each in self.lineage():
            if each.id == seen:
                break
            found.append(each)
        if found and found[-1].parent != seen:
            raise _invalid(f"Cannot determine history between starting snapshot {seen} and the last known ancestor {found[-1].id}")
        return found


class Catalog:
    """The tables of all drivers. `now`: the clock. `step`: called before each request, with its name; it may stop the
    driver (BaseException). `answered`: called when a commit is done and its answer is under way; `state_unknown` raised
    there is an answer that was lost. `by_tasks`: whether tasks can write files; if not, Spark's writer does."""

    def __init__(
        self,
        now: Callable[[], datetime],
        step: Callable[[str], None] = nothing,
        answered: Callable[[str], None] = nothing,
        *,
        by_tasks: bool = True,
    ) -> None:
        self.now = now
        self.step = step
        self.answered = answered
        self.by_tasks = by_tasks
        self._tables: dict[str, Metadata] = {}
        self._last = 0

    def copied(self, now: Callable[[], datetime], step: Callable[[str], None] = nothing) -> Catalog:
        """The same tables, which go their own way from here on."""
        other = Catalog(now, step, by_tasks=self.by_tasks)
        other._tables, other._last = dict(self._tables), self._last
        return other

    def number(self) -> int:
        """A number that no snapshot, file or table has."""
        self._last += 1
        return self._last

    def names(self) -> list[str]:
        self._request("list tables", "")
        return list(self._tables)

    def metadata(self, name: str) -> Metadata | None:
        """The table as it is, without a request."""
        return self._tables.get(name)

    def load(self, name: str, request: str = "load") -> Metadata | None:
        self._request(request, name)
        return self._tables.get(name)

    def create(self, name: str, columns: StructType, properties: Mapping[str, str]) -> None:
        self._request("create", name)
        if name in self._tables:
            raise _exists(name)
        self._tables[name] = Metadata(self.number(), columns, dict(properties))
        self._answer("create", name)

    def rename(self, name: str, to: str) -> None:
        self._request("rename", name)
        if name not in self._tables:
            raise _not_found(name)
        if to in self._tables:
            raise _exists(to)
        self._tables[to] = self._tables.pop(name)
        self._answer("rename", name)

    def commit(self, name: str, base: Metadata, made: Metadata) -> None:
        """Put the metadata in place of that on which it is based. CommitFailedException if that is not the newest."""
        self._request("commit", name)
        if self._tables.get(name) is not base:
            raise _stale(name)
        self._tables[name] = made
        self._answer("commit", name)

    def state(self) -> Hashable:
        """Equal for catalogs in which drivers find the same: not the numbers of snapshots, nor their times."""
        return tuple((name, _state(table)) for name, table in sorted(self._tables.items()))

    def _request(self, what: str, name: str) -> None:
        self.step(f"warehouse: {what} {_plain(name)}".rstrip())

    def _answer(self, what: str, name: str) -> None:
        self.answered(f"warehouse: {what} {_plain(name)}")


def _state(table: Metadata) -> Hashable:
    places = {number: at for at, number in enumerate(table.snapshots)}

    def of(snapshot: Snapshot) -> Hashable:
        files = sorted((repr(file.rows), sorted(gone)) for file, gone in snapshot.files.items())
        # A parent that has expired is none of those that are kept.
        parent = None if snapshot.parent is None else places.get(snapshot.parent, -1)
        return parent, tuple(sorted(snapshot.summary.items())), repr(files)

    about = table.columns.simpleString(), tuple(sorted(table.properties.items())), places.get(table.current or -1)
    return about, tuple(map(of, table.snapshots.values()))


_PIECE: Final = re.compile(r"`((?:[^`]|``)*)`")


def _pieces(name: str) -> list[str]:
    """Catalog, namespace and name of a table."""
    return [piece.replace("``", "`") for piece in _PIECE.findall(name)]


def _plain(name: str) -> str:
    """Namespace and name, for people."""
    return ".".join(_pieces(name)[1:])


# --- files that tasks write


class WrittenFile(NamedTuple):
    """A row of WRITTEN: a file, by `path` and with its `content`; or the `keys` of rows; or how many events there are."""

    table_id: bytes
    part: str
    path: str | None = None
    rows: int = 0
    keys: bytes = b""
    content: tuple[Row, ...] = ()

    def __getitem__(self, name: Any) -> Any:
        return getattr(self, name)


class DeletedRows(NamedTuple):
    """A position delete file of one data file."""

    of: File
    positions: frozenset[int]


class DoubleTarget:
    """Where files of a commit go: nowhere, before the commit."""

    def discard(self) -> None:
        pass


# --- operations on a table


class DoubleTable:
    """One table, with the interface of `IcebergTable`, as this driver has loaded it."""

    def __init__(self, catalog: Catalog, name: str, metadata: Metadata) -> None:
        self._catalog = catalog
        self._metadata = metadata
        self.name = name

    def refresh(self) -> None:
        self._metadata = self._refreshed()

    def _refreshed(self) -> Metadata:
        found = self._catalog.load(self.name, "refresh")
        if found is None:
            raise IcebergError(f"{_EXCEPTIONS}NoSuchTableException", f"Failed to load table {self.name}: dropped by another process")
        if found.id != self._metadata.id:
            message = f"Table UUID does not match: current={self._metadata.id} != refreshed={found.id}"
            raise IcebergError("java.lang.IllegalStateException", message)
        return found

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._metadata.properties)

    @property
    def columns(self) -> StructType:
        return self._metadata.columns

    @property
    def partition_names(self) -> list[str]:
        return []

    @property
    def former_partition_names(self) -> set[str]:
        return set()

    @property
    def own_columns(self) -> OwnColumns:
        return _OwnColumns(self.columns, _described(self.columns, itertools.count(1)), None)

    def own_columns_at(self, _: int) -> OwnColumns:
        return self.own_columns

    @property
    def snapshot(self) -> int | None:
        return self._metadata.current

    @property
    def summary(self) -> dict[str, str] | None:
        found = self._metadata.snapshot
        return None if found is None else {key: value for key, value in found.summary.items() if key != "operation"}

    @property
    def point(self) -> Point | None:
        """Snapshots are numbered in the order of their commits."""
        found = self._metadata.snapshot
        return None if found is None else Point(str(self._metadata.id), found.id, found.id)

    @property
    def rows(self) -> int:
        found = self._metadata.snapshot
        return 0 if found is None else sum(len(file.rows) - len(gone) for file, gone in found.files.items())

    @property
    def files(self) -> TableFiles:
        found = self._metadata.snapshot
        held = {} if found is None else found.files
        return TableFiles(data=len(held), deletes=sum(map(bool, held.values())), bytes=sum(len(file.rows) for file in held))

    @property
    def summaries(self) -> list[dict[str, str]]:
        return [each.summary for each in self.kept]

    @property
    def kept(self) -> list[Kept]:
        return [self._kept(each) for each in self._metadata.snapshots.values()]

    @property
    def lineage(self) -> list[Kept]:
        return [self._kept(each) for each in self._metadata.lineage()]

    def _kept(self, snapshot: Snapshot) -> Kept:
        return snapshot.kept[snapshot.parent in self._metadata.snapshots]

    # --- what tasks write

    def file_target(self, _: pa.Schema) -> DoubleTarget | None:
        return DoubleTarget() if self._catalog.by_tasks else None

    def rows_by_file(self, seen: int) -> list[tuple[File, frozenset[int]]]:
        """The data files of snapshot `seen`, with the positions that are deleted."""
        return list(self._metadata.snapshots[seen].files.items())

    def overwrite(
        self, _: DoubleTarget, files: Iterable[WrittenFile], replaced: Replaced, seen: int | None, about: Mapping[str, str]
    ) -> None:
        overwrite_files(self, [file.content for file in files], replaced, seen, about)

    def replace_rows(
        self, _: DoubleTarget, files: Iterable[WrittenFile], deletes: Sequence[DeletedRows], seen: int, about: Mapping[str, str]
    ) -> None:
        delta = {each.of: each.positions for each in deletes}
        row_delta(self, [file.content for file in files], delta, seen, about)

    def empty(self, about: Mapping[str, str]) -> None:
        def made(base: Metadata) -> Snapshot:
            return self._snapshot(base, "delete", about, [], removed=_files(base))

        self._produce(made)

    # --- metadata

    def evolve(self, plan: Steps, properties: Mapping[str, str], check: Callable[[], None], own: OwnColumns | None = None) -> None:
        if plan.aside or plan.renamed:
            raise NotImplementedError(f"the warehouse double renames no columns: {[*plan.aside, *plan.renamed]}")
        base = self._refreshed()
        check()
        for attempt in range(_RETRIES + 1):
            made = replace(base, columns=_evolved(base.columns, plan), properties={**base.properties, **properties})
            try:
                self._catalog.commit(self.name, base, made)
                break
            except IcebergError as error:
                # Properties are set on top of what another driver has committed; columns are not changed.
                if plan or not _is_stale(error) or attempt == _RETRIES:
                    raise
                base = self._refreshed()
        self._metadata = made

    def roll_back(self, seen: int, target: int | None, properties: Mapping[str, str], check: Callable[[], None]) -> None:
        base = self._refreshed()
        if base.current is None or base.current != seen:
            raise BatchBusy("concurrent write to the table", operation="roll a warehouse table back", obj=self.name, hint="Run it again.")
        check()
        made = replace(base, current=target, properties={**base.properties, **properties})
        self._catalog.commit(self.name, base, made)
        self._metadata = made

    def expire(self, before: datetime, keep: int, gone: Iterable[int] = ()) -> None:
        """Remove the snapshots that are older, but for the last `keep` ones, and those with the ids `gone`."""
        base = self._refreshed()
        last = {each.id for each in list(base.lineage())[:keep]}
        left = {number: each for number, each in base.snapshots.items() if (number in last or each.at >= before) and number not in {*gone}}
        made = replace(base, snapshots=left)
        self._catalog.commit(self.name, base, made)
        self._metadata = made

    def rewrite_files(self) -> None:
        """Put all rows into one file, as compaction does."""

        def made(base: Metadata) -> Snapshot:
            rows = [] if base.snapshot is None else [tuple(base.snapshot.rows)]
            return self._snapshot(base, "replace", {}, rows, removed=_files(base))

        self._produce(made)

    def _produce(self, make: Callable[[Metadata], Snapshot]) -> None:
        """Commit a snapshot, made and checked on top of what is there, as often as somebody else was faster."""
        for attempt in range(_RETRIES + 1):
            base = self._refreshed()
            snapshot = make(base)
            made = replace(base, snapshots={**base.snapshots, snapshot.id: snapshot}, current=snapshot.id)
            try:
                self._catalog.commit(self.name, base, made)
                break
            except IcebergError as error:
                if not _is_stale(error) or attempt == _RETRIES:
                    raise
        self._metadata = made

    def _snapshot(
        self,
        base: Metadata,
        operation: str,
        about: Mapping[str, str],
        added: Iterable[tuple[Row, ...]],
        *,
        removed: Collection[File] = (),
        deleted: Mapping[File, frozenset[int]] | None = None,
    ) -> Snapshot:
        """The snapshot after the current one. `added`: the rows of new files."""
        held = dict(base.snapshot.files) if base.snapshot is not None else {}
        new = [File(self._catalog.number(), rows) for rows in added]
        for file in removed:
            held.pop(file)
        for file, positions in (deleted or {}).items():
            if file in held:
                held[file] |= positions
        deletes = len(deleted or {})
        summary = {"operation": operation, **about, "added-data-files": str(len(new)), "added-delete-files": str(deletes)}
        files = {**held, **dict.fromkeys(new, frozenset[int]())}
        changed = frozenset(new), frozenset(removed), frozenset(deleted or ())
        return Snapshot(self._catalog.number(), base.current, summary, self._catalog.now(), files, *changed)

    # --- reading

    def changes_files(self, seen: int, columns: pa.Schema, since: int, upto: int) -> ChangesFiles | None:
        found = self._metadata.snapshots[seen].files.items()
        held = {f"memory:{file.number}": _left(file, gone) for file, gone in found}
        wanted = {path: rows for path, rows in held.items() if any(since < row["batch"] <= upto for row in rows)}
        return DoubleChangesFiles([DataFile(path, len(rows)) for path, rows in wanted.items()], columns, wanted)


def _left(file: File, gone: frozenset[int]) -> list[Row]:
    return [row for at, row in enumerate(file.rows) if at not in gone]


def _files(base: Metadata) -> list[File]:
    return [] if base.snapshot is None else [*base.snapshot.files]


def _is_stale(error: IcebergError) -> bool:
    return bool(error.java_exception.getName().endswith("CommitFailedException"))


def overwrite_files(
    held: DoubleTable, added: Sequence[tuple[Row, ...]], replaced: Replaced, seen: int | None, about: Mapping[str, str]
) -> None:
    """OverwriteFiles by a filter, checked as at isolation level serializable."""
    # Without a filter of rows, any row that was added is in conflict, and none is deleted.
    conflicting: Replaced = "everything" if replaced == "nothing" else replaced

    def made(base: Metadata) -> Snapshot:
        for each in base.since(seen) if base.snapshot is not None else ():
            is_by_rows = each.summary["operation"] != "replace"
            if is_by_rows and any(file.may_have(conflicting) for file in each.added):
                raise _invalid("Found conflicting files that can contain records matching the filter")
            if replaced != "nothing" and (each.deleted or any(file.may_have(replaced) for file in each.removed)):
                raise _invalid("Found new conflicting delete files that can apply to records matching the filter")
        removed = [file for file in _files(base) if file.may_have(replaced)]
        if isinstance(replaced, int) and any(file.batches != (replaced, replaced) for file in removed):
            raise _invalid("Cannot delete file where some, but not all, rows match filter")
        operation = "append" if added and replaced == "nothing" else "delete" if not added and replaced != "nothing" else "overwrite"
        return held._snapshot(base, operation, about, added, removed=removed)

    held._produce(made)


def row_delta(
    held: DoubleTable,
    added: Sequence[tuple[Row, ...]],
    deleted: Mapping[File, frozenset[int]],
    seen: int | None,
    about: Mapping[str, str],
) -> None:
    """RowDelta with all its checks: nothing was added or deleted since `seen`, and the files of the positions are there."""

    def made(base: Metadata) -> Snapshot:
        if base.snapshot is not None:
            if seen is not None and seen not in {each.id for each in base.lineage()}:
                raise IcebergError("java.lang.IllegalArgumentException", f"Snapshot {seen} is not an ancestor of {base.current}")
            for each in base.since(seen):
                if each.removed & deleted.keys():
                    raise _invalid("Cannot commit, missing data files")
                if each.summary["operation"] != "replace" and (each.added or each.deleted):
                    raise _invalid("Found conflicting files that can contain records matching true")
        return held._snapshot(base, "append" if added and not deleted else "overwrite", about, added, deleted=deleted)

    held._produce(made)


# --- columns


class _OwnColumns(OwnColumns):
    """All are: nobody but writetime changes columns here, so that nothing has to be recorded."""

    is_recorded = True  # type: ignore[assignment]


def _described(kind: DataType, numbers: Iterator[int]) -> Any:
    """A type in Iceberg's JSON format, as far as `OwnColumns` asks."""
    if isinstance(kind, StructType):
        named = ((next(numbers), each) for each in kind.fields)
        fields = [{"id": n, "name": each.name, "required": False, "type": _described(each.dataType, numbers)} for n, each in named]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ArrayType):
        return {"type": "list", "element": _described(kind.elementType, numbers)}
    if isinstance(kind, MapType):
        return {"type": "map", "key": _described(kind.keyType, numbers), "value": _described(kind.valueType, numbers)}
    return kind.simpleString()


def _evolved(columns: StructType, plan: Steps) -> StructType:
    """The columns after the steps."""
    found: DataType = columns
    for path, kind in plan.widened:
        found = _within(found, path, partial(_instead, kind))
    for path, kind in plan.added:
        found = _within(found, path[:-1], partial(_with_field, StructField(path[-1], kind)))
    assert isinstance(found, StructType)
    return found


def _instead(kind: DataType, _: DataType) -> DataType:
    return kind


def _with_field(new: StructField, struct: Any) -> DataType:
    return StructType([*struct.fields, new])


def _within(kind: DataType, path: Path, change: Callable[[Any], DataType]) -> DataType:
    """The type with another one at a path."""
    if not path:
        return change(kind)
    if isinstance(kind, StructType):
        fields = [(each, _within(each.dataType, path[1:], change) if each.name == path[0] else each.dataType) for each in kind.fields]
        return StructType([StructField(each.name, inner) for each, inner in fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_within(kind.elementType, path[1:], change))
    assert isinstance(kind, MapType)
    return MapType(kind.keyType, _within(kind.valueType, path[1:], change))


# --- the catalog as Warehouse asks for it


class DoubleFrame:
    """Rows, made when they are read."""

    def __init__(self, made: Callable[[], Iterable[Row]], columns: StructType | None = None) -> None:
        self._made = made
        self.schema = columns

    def collect(self) -> list[Row]:
        return list(self._made())

    def mapInArrow(self, function: Callable[[Any], Any], schema: StructType) -> DoubleFrame:
        return DoubleFrame(lambda: function(iter(self._made())), schema)


class DoubleCatalog:
    """The requests of `SparkCatalog`, to a catalog in memory."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def find(self, name: str) -> DoubleTable | None:
        found = self._catalog.load(name)
        if found is None:
            return None
        held = DoubleTable(self._catalog, name, found)
        held.refresh()
        return held

    def load(self, name: str) -> DoubleTable:
        found = self._catalog.load(name)
        if found is None:
            raise _not_found(name)
        return DoubleTable(self._catalog, name, found)

    def all_tables(self) -> Iterator[tuple[str, str]]:
        return ((_pieces(name)[1], name) for name in self._catalog.names())

    def create(self, name: str, columns: StructType, properties: Mapping[str, str], partitioning: str | None) -> DoubleTable:
        self._catalog.create(name, columns, properties)
        return self.load(name)

    def rename(self, name: str, namespace: str, called: str) -> None:
        self._catalog.rename(name, ".".join(quoted(piece) for piece in (_pieces(name)[0], namespace, called)))

    # --- reading

    def rows(self, name: str) -> DoubleFrame:
        held = self.load(name)
        names = held.columns.names
        # Files that are older than a column lack it.
        return DoubleFrame(lambda: [{column: row.get(column) for column in names} for row in _rows(held)], held.columns)

    def changes_at(self, name: str, snapshot: int, without: Iterable[int]) -> DoubleFrame:
        held, left_out = self.load(name), set(without)
        if snapshot not in held._metadata.snapshots:
            raise AnalysisException(f"Cannot find snapshot with ID {snapshot}")
        found = held._metadata.snapshots[snapshot]
        return DoubleFrame(lambda: [row for row in found.rows if row["batch"] not in left_out], held.columns)

    def last_batch(self, name: str) -> int | None:
        return max((row["batch"] for row in _rows(self.load(name))), default=None)

    def rows_of(self, name: str, cluster: str) -> list[dict[str, Any]]:
        return [dict(row) for row in _rows(self.load(name)) if row["cluster"] == cluster]

    def frame(self, rows: pa.Table, columns: StructType) -> DoubleFrame:
        found = rows.to_pylist()
        return DoubleFrame(lambda: found, columns)

    def as_stored(self, actions: DoubleFrame, columns: StructType) -> DoubleFrame:
        return DoubleFrame(lambda: _stored(actions.collect(), columns.names), columns)

    # --- rows written by Spark

    def overwrite(self, name: str, seen: int | None, rows: DoubleFrame, replaced: Replaced, about: Mapping[str, str]) -> None:
        overwrite_files(self.load(name), _as_file(rows.collect()), replaced, seen, about)

    def remove(self, held: DoubleTable, seen: int, replaced: Replaced, about: Mapping[str, str]) -> None:
        overwrite_files(self.load(held.name), [], replaced, seen, about)

    def delete_events(self, name: str, batch: int, about: Mapping[str, str]) -> None:
        self._exchange(name, lambda row: row["batch"] == batch, [], about)

    def exchange_events(self, name: str, rows: DoubleFrame, batch: int, about: Mapping[str, str]) -> None:
        found = rows.collect()
        ordinals = {row["ordinal"] for row in found}
        self._exchange(name, lambda row: row["batch"] == batch and row["ordinal"] in ordinals, found, about)
        self._exchange(name, lambda row: row["batch"] == batch and row["ordinal"] not in ordinals, [], about)

    def merge(self, name: str, rows: DoubleFrame, shape: RowShape, columns: Sequence[str], about: Mapping[str, str]) -> None:
        held, keys = self.load(name), shape.key_type.names
        actions = {_key(row, keys): row for row in rows.collect()}
        left = {key: {column: row.get(column) for column in columns} for key, row in actions.items() if row[OP] != "d"}
        # A column that the rows lack keeps its value.
        merged = [{**before, **left.get(_key(before, keys), {})} for before in _rows(held) if _key(before, keys) in left]
        known = {_key(row, keys) for row in merged}
        new = [*merged, *(row for key, row in left.items() if key not in known)]
        self._exchange(held, lambda row: _key(row, keys) in actions, new, about)

    def replace_rows_of(self, name: str, seen: int | None, rows: DoubleFrame, cluster: str) -> None:
        """Refused for rows of other clusters that came since the table was loaded, too, which Iceberg would let pass."""
        held = self.load(name)
        if any(row["cluster"] == cluster for each in held._metadata.since(seen) for file in each.added for row in file.rows):
            raise _invalid("Found conflicting files that can contain records matching the filter")
        self._exchange(held, lambda row: row["cluster"] == cluster, rows.collect(), {})

    def merge_records(self, name: str, rows: DoubleFrame, cluster: str, about: Mapping[str, str]) -> None:
        held = self.load(name)
        records = rows.collect()
        names = {row["name"] for row in records}
        self._exchange(held, lambda row: row["cluster"] == cluster and row["name"] in names, records, about)

    def take_back_records(self, name: str, cluster: str, batch: int, about: Mapping[str, str]) -> None:
        def is_settled(row: Row) -> bool:
            return bool(row["cluster"] == cluster and row["settled_in"] == batch)

        held = self.load(name)
        waiting = [{**row, "settled_in": None} for row in _rows(held) if is_settled(row)]
        self._exchange(held, is_settled, waiting, about)
        self._exchange(name, lambda row: row["cluster"] == cluster and row["batch"] == batch and row["segment"] is not None, [], about)

    def delete(self, name: str, goes: Callable[[Row], bool]) -> None:
        """What MERGE commits that only deletes."""
        self._exchange(name, goes, [], {})

    def execute(self, statement: str, about: Mapping[str, str]) -> None:
        raise NotImplementedError(f"the warehouse double runs no SQL: {statement}")

    def _exchange(self, of: str | DoubleTable, goes: Callable[[Row], bool], new: Sequence[Row], about: Mapping[str, str]) -> None:
        """What SQL commits: rows deleted one by one, and new ones, as of the snapshot that was read."""
        held = self.load(of) if isinstance(of, str) else of
        found = held._metadata.snapshot
        files = {} if found is None else found.files
        gone = {file: frozenset(at for at, row in enumerate(file.rows) if at not in past and goes(row)) for file, past in files.items()}
        row_delta(held, _as_file(new), {file: places for file, places in gone.items() if places}, held.snapshot, about)


def _rows(held: DoubleTable) -> list[Row]:
    """What readers see of the table as it was loaded."""
    found = held._metadata.snapshot
    return [] if found is None else list(found.rows)


def _as_file(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    """The rows as those of new files: one, or none."""
    return [tuple(rows)] if rows else []


def _stored(actions: Iterable[Row], columns: Sequence[str]) -> list[Row]:
    return [{name: row.get(name) for name in columns} for row in actions if row[OP] != "d"]


def _key(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in keys)


# --- a batch's events


@dataclass(frozen=True)
class DoubleEvents:
    """Events of tables, in place of `Events`: by the table's id, dictionaries as a page of events has rows (`ordinal`, `op`,
    `key`, `before`, `after`, `last`, `writetime`, …)."""

    of_tables: Mapping[bytes, Sequence[Row]]

    @classmethod
    def of_pages(cls, rows: Iterable[Row]) -> DoubleEvents:
        """Of rows of PAGES."""
        found: dict[bytes, list[Row]] = defaultdict(list)
        for row in rows:
            for page in unpacked([row["payload"]]):
                found[bytes(row["table_id"])] += page.to_pylist(maps_as_pydicts="strict")
        return cls(found)

    def rows(self, table: bytes, rows: Callable[[Any], Any], columns: StructType, _: Any) -> DoubleFrame:
        return DoubleFrame(lambda: rows(iter(self.of_tables.get(table, ()))), columns)

    def shared_by_tables(self, counts: Mapping[bytes, int], _: int) -> list[DoubleEvents]:
        return [DoubleEvents({table: self.of_tables.get(table, ()) for table in counts})]

    def written(self, writes: Mapping[bytes, TableWrite]) -> Iterator[WrittenFile]:
        """The files of these tables, a file for changes and one for current rows."""
        for table_id, events in self.of_tables.items():
            write = writes.get(table_id)
            for part, to in write.parts.items() if write is not None else ():
                rows: Any = to.made(iter(events))
                if to.target is None:
                    continue
                if part == CHANGES:
                    yield from _file(table_id, part, tuple(rows))
                else:
                    yield from _current_file(table_id, to, list(rows))
            yield WrittenFile(table_id, EMITTED, rows=sum(event["ordinal"] is not None for event in events))


def _file(table_id: bytes, part: str, rows: tuple[Row, ...]) -> Iterator[WrittenFile]:
    if rows:
        yield WrittenFile(table_id, part, "memory:", len(rows), content=rows)


def _current_file(table_id: bytes, to: Any, actions: list[Row]) -> Iterator[WrittenFile]:
    yield from _file(table_id, CURRENT, tuple(_stored(actions, to.columns.names)))
    if actions and not to.is_whole:
        keys = [_key(row, to.keys) for row in actions]
        yield WrittenFile(table_id, CURRENT, keys=pickle.dumps(keys))


class DoubleWarehouse(Warehouse):
    """The real warehouse on a catalog in memory, which takes the session's place: `DoubleWarehouse(catalog, "lake", …)`
    wherever the jobs make a `Warehouse(spark, "lake", …)`."""

    def __init__(self, spark: Any, catalog: str, *arguments: Any, **options: Any) -> None:
        super().__init__(spark, catalog, *arguments, **options)
        self.tables: Any = DoubleCatalog(spark)

    def _written(self, writes: Mapping[bytes, TableWrite], events: Sequence[Any], batch: int) -> Iterable[Any]:
        """The files that tasks of Spark would write."""
        found = list[WrittenFile]()
        for each in events:
            self.spark.step("warehouse: a task writes files")  # type: ignore[attr-defined]
            found += passed(self.fence, batch, lambda shares: (row for share in shares for row in share.written(writes)))(iter([each]))
        return found

    def _look_up(self, writes: Mapping[bytes, TableWrite]) -> None:
        for to in (write.current for write in writes.values()):
            if to is None or to.files is None or to.is_whole:
                continue
            keys = {key for pack in to.packs for key in pickle.loads(pack)}
            self.spark.step("warehouse: a task looks keys up")  # type: ignore[attr-defined]
            held: Any = to.held_files or ()
            for file, gone in held:
                places = frozenset(at for at, row in enumerate(file.rows) if at not in gone and _key(row, to.keys) in keys)
                if places:
                    to.deletes.append(DeletedRows(file, places))  # type: ignore[arg-type]

    def _change_rows(self, columns: pa.Schema, about: Mapping[str, Any]) -> Any:
        names, cells = columns.names, self.cells

        def rows(events: Iterator[Row]) -> Iterator[Row]:
            for event in events:
                if event["ordinal"] is not None:
                    facts = {} if cells else {"writetime": None, "expires_at": None}
                    known = {**event, **facts, **about}
                    yield {name: known.get(name) for name in names}

        return rows

    def _last_rows(self, shape: RowShape, rows: StructType) -> Any:
        """Without what makes one row of static content and a clustering of no bytes."""

        def actions(events: Iterator[Row]) -> Iterator[Row]:
            for event in events:
                if not event["last"]:
                    continue
                after = event["after"]
                if after is None:
                    yield {**dict.fromkeys(rows.names), **event["key"], OP: "d"}
                else:
                    facts = {WRITETIME: event.get("writetime") or {}, EXPIRES_AT: event.get("expires_at") or {}}
                    yield {**dict.fromkeys(rows.names), **after, **facts, OP: event["op"]}

        return actions


# --- for publishers


@dataclass(frozen=True, slots=True)
class DoubleChangesFiles(ChangesFiles):
    """Files of a changes table in memory. `held`: their rows, by path."""

    held: Mapping[str, Sequence[Row]] = field(default_factory=dict)

    def spans(self, wanted: Wanted) -> Spans:
        found = Spans([], Counter())
        for path, _ in self.files:
            changes_files.note(found, path, [self._all(path)], wanted)
        return found

    def read(self, path: str, wanted: Wanted, publisher: int | None = None) -> Iterator[pa.RecordBatch]:
        rows = self._wanted(path, wanted)
        owners = changes_files._publishers(rows["key"], wanted)
        rows = rows.append_column("publisher", owners)
        rows = rows if publisher is None else rows.filter(pa.compute.equal(owners, publisher))
        if rows.num_rows:
            yield rows

    def _wanted(self, path: str, wanted: Wanted) -> pa.RecordBatch:
        rows = self._all(path)
        return rows.filter(changes_files._is_wanted(rows, wanted))

    def _all(self, path: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([_for_arrow(row) for row in self.held[path]], schema=self.schema)


def _for_arrow(row: Row) -> Row:
    """Maps as pairs."""
    return {**row, **{name: list(row[name].items()) for name in ("writetime", "expires_at") if row.get(name)}}
