"""One Iceberg table of the catalog, through Iceberg's Java API: what SQL cannot do, or not in one commit.

Strategy: the driver calls Iceberg's own classes through Spark's gateway to the JVM. Each call costs about a
millisecond, so what has many entries (properties, commits) is fetched as one JSON text. Sources: Iceberg's
javadoc of Table, TableMetadata, OverwriteFiles and DataFiles. Knows nothing of batches but that a column may
have that name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from spark_jobs.sinks.changes_files import MAX_FILE_BYTES, ChangesFiles, DataFile
from spark_jobs.sinks.data_files import FileTarget
from spark_jobs.sinks.field_ids import with_ids
from spark_jobs.sinks.own_columns import PROPERTY, OwnColumns
from spark_jobs.sinks.row_positions import DELETED_FROM, HeldFile
from spark_jobs.sinks.schema_evolution import Path, Steps
from writetime.errors import BatchBusy
from writetime.pipeline.documents import TableFiles
from writetime.storage.concurrency import at_once
from writetime.storage.s3_endpoint import named_endpoint

Replaced = Literal["everything", "nothing"] | int
"""The rows that a commit replaces; a number: those of that batch."""

_CONFLICTS: Final = (
    *("CommitFailedException", "AlreadyExistsException"),
    *("TABLE_OR_VIEW_ALREADY_EXISTS", "SCHEMA_ALREADY_EXISTS", "TABLE_OR_VIEW_NOT_FOUND"),
    # The table was rolled back to before the snapshot that a commit is based on.
    "is not an ancestor of",
    # The table was renamed, and perhaps another one created under its name (BaseMetastoreTableOperations, JdbcTableOperations).
    *("Table UUID does not match", "dropped by another process"),
)
"""How Iceberg and Spark say that somebody else was faster."""
_INVALID: Final = "ValidationException"
_CONFLICTING: Final = re.compile(
    rf"{_INVALID}: (?:Found (?:new |concurrently |conflicting )|Cannot commit|Cannot determine history|Missing required files"
    r"|Deleted manifest|Cannot add a snapshot)"
)
"""How Iceberg's checks of a commit do (MergingSnapshotProducer, ManifestFilterManager, BaseRewriteManifests). The same exception says
that a table's columns or partitions do not allow something, and nobody was faster."""
_UNKNOWN: Final = "CommitStateUnknownException"
_MANY: Final = ("snapshots", "snapshot-log", "metadata-log")
"""Parts of a table's metadata that grow with its commits."""
_GC: Final = "gc.enabled"
_FOR_EVER_MS: Final = 200 * 365 * 24 * 3600 * 1000
"""An age of so many years is what Iceberg has for none."""
_GRANULARITY: Final = "write.delete.granularity"
_NAME_MAPPING: Final = "schema.name-mapping.default"
_OF_A_STORE: Final = ("gcs.", "s3.", "client.")
"""How a catalog's properties begin that say how its store is reached and files are written there."""


class Point(NamedTuple):
    """Where a table stands: its own UUID, which a rename keeps, its snapshot, and the snapshot's sequence number, which
    each commit raises."""

    table: str
    snapshot: int
    sequence: int


class Kept(NamedTuple):
    """A commit to a table: its snapshot, the snapshot before it, whether that one is kept too, its summary,
    its time, and its sequence number."""

    id: int
    parent: int | None
    has_parent: bool
    summary: dict[str, str]
    at: datetime
    sequence: int = 0


class Reference(NamedTuple):
    """A branch or tag: its name, its snapshot, and when expiry removes it, if ever."""

    name: str
    kind: Literal["branch", "tag"]
    snapshot: int
    until: datetime | None

    @property
    def dropped_by(self) -> str:
        """The end of the statement ALTER TABLE that lets its snapshot go."""
        return f"DROP {self.kind.upper()} `{self.name}`"


class _Planned(NamedTuple):
    """A task of a scan, and its data file and delete files as JSON of Iceberg (ContentFileParser)."""

    task: Any
    data: dict[str, Any]
    deletes: list[dict[str, Any]]

    @property
    def files(self) -> list[dict[str, Any]]:
        return [self.data, *self.deletes]


class IcebergTable:
    """One table of the catalog, for operations that SQL cannot do in one commit."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self.name = name
        session: Any = spark
        self._table: Any = self._java("org.apache.iceberg.spark.Spark3Util").loadIcebergTable(session._jsparkSession, name)
        self._read: tuple[list[Kept], list[Kept]] = [], []
        self._metadata: dict[str, Any] = {}
        self._logged = set[int]()
        self._read_from: str | None = None
        self._found: dict[str, tuple[Any, int | None]] = {}
        self._owned: dict[tuple[int, str | None], OwnColumns] = {}

    @property
    def properties(self) -> dict[str, str]:
        found: dict[str, str] = self._as_json(self._table.properties())
        return found

    def refresh(self) -> None:
        """Read the table from the catalog again, because Spark caches tables."""
        self._table.refresh()

    @property
    def columns(self) -> StructType:
        return self._as_spark(self._table.schema())

    @property
    def own_columns(self) -> OwnColumns:
        """The columns, and which of them were made here."""
        return self._own(self._table.schema())

    def own_columns_at(self, seen: int) -> OwnColumns:
        """The same as of snapshot `seen`."""
        return self._own(self._table.schemas().get(self._table.snapshot(seen).schemaId()))

    def _own(self, schema: Any) -> OwnColumns:
        # A batch asks several times, and the JVM tells a schema as text.
        key = int(schema.schemaId()), self._table.properties().get(PROPERTY)
        if key not in self._owned:
            self._owned[key] = OwnColumns.of(self._as_spark(schema), self._described(schema), key[1])
        return self._owned[key]

    def _as_spark(self, schema: Any) -> StructType:
        return StructType.fromJson(json.loads(self._java("org.apache.iceberg.spark.SparkSchemaUtil").convert(schema).json()))

    def _described(self, schema: Any) -> dict[str, Any]:
        """A schema in Iceberg's JSON format."""
        found: dict[str, Any] = json.loads(self._java("org.apache.iceberg.SchemaParser").toJson(schema))
        return found

    @property
    def metadata_location(self) -> str | None:
        """The metadata file of the table as it was loaded."""
        found = self._table.operations().current().metadataFileLocation()
        return None if found is None else str(found)

    @property
    def spec_id(self) -> int:
        """Id of the partitioning of new files."""
        return int(self._table.spec().specId())

    @property
    def partition_names(self) -> list[str]:
        """Names of the fields that new files are partitioned by."""
        return [str(each.name()) for each in self._table.spec().fields()]

    @property
    def former_partition_names(self) -> set[str]:
        """The same of all partitionings that the table has had, as far as they are kept."""
        return {str(each.name()) for spec in self._table.specs().values() for each in spec.fields()}

    @property
    def snapshot(self) -> int | None:
        """Id of the snapshot that readers see; None if the table was never written."""
        found = self._table.currentSnapshot()
        return None if found is None else int(found.snapshotId())

    @property
    def point(self) -> Point | None:
        """Where the table stands; None if it was never written."""
        found = self._table.currentSnapshot()
        return None if found is None else Point(str(self._table.uuid()), int(found.snapshotId()), int(found.sequenceNumber()))

    @property
    def rows(self) -> int | None:
        """Number of rows that readers see, by the last commit's summary, without reading data: records less
        position deletes. A delete whose file maintenance has rewritten still counts until maintenance removes
        it. None if the summary lacks it."""
        totals = self._totals("records", "position-deletes", "equality-deletes")
        if totals is None or totals[2]:
            return None
        return max(0, totals[0] - totals[1])

    @property
    def files(self) -> TableFiles | None:
        """Number and bytes of its files, by the last commit's summary, without reading manifests. None if the
        summary lacks them."""
        totals = self._totals("data-files", "delete-files", "files-size")
        return None if totals is None else TableFiles(data=totals[0], deletes=totals[1], bytes=totals[2])

    @property
    def summary(self) -> dict[str, str] | None:
        """The last commit's summary; None before the first commit."""
        found = self._table.currentSnapshot()
        if found is None:
            return None
        summary: dict[str, str] = self._as_json(found.summary())
        return summary

    def _totals(self, *names: str) -> list[int] | None:
        """Totals of the last commit's summary, zeros before the first commit. None if one is missing."""
        summary = self.summary
        if summary is None:
            return [0] * len(names)
        numbers = [summary.get(f"total-{name}") for name in names]
        return None if None in numbers else [int(number or 0) for number in numbers]

    @property
    def summaries(self) -> list[dict[str, str]]:
        """Summaries of the kept commits, the newest last."""
        return [each.summary for each in self.kept]

    @property
    def kept(self) -> list[Kept]:
        """All commits whose snapshots are kept, the newest last."""
        return self._commits()[0]

    @property
    def lineage(self) -> list[Kept]:
        """The commits whose result readers see, the newest first, as far as they are kept. Commits that were
        rolled back are not included."""
        return self._commits()[1]

    @property
    def refs(self) -> dict[str, int]:
        """Snapshots by the name of the branch or tag that refers to them."""
        self._commits()
        return {name: ref["snapshot-id"] for name, ref in self._metadata.get("refs", {}).items()}

    @property
    def references(self) -> list[Reference]:
        """The branches and tags that somebody has made: all but main."""
        known = {each.id: each for each in self.kept}
        default = self.properties.get("history.expire.max-ref-age-ms")
        found = list[Reference]()
        for name, ref in sorted(self._metadata.get("refs", {}).items()):
            age, held = ref.get("max-ref-age-ms", default), known.get(ref["snapshot-id"])
            is_for_ever = age is None or held is None or int(age) >= _FOR_EVER_MS
            until = None if is_for_ever or held is None else held.at + timedelta(milliseconds=int(age))
            found.append(Reference(name, ref["type"], ref["snapshot-id"], until))
        return [each for each in found if each.name != "main"]

    @property
    def deletes_no_files(self) -> bool:
        """Whether the catalog, or somebody, has forbidden to delete files of the table: expiry refuses."""
        return self.properties.get(_GC) == "false"

    @property
    def logged(self) -> set[int]:
        """The snapshots that readers saw at some time, as far as Iceberg remembers: since the last one that has expired."""
        self._commits()
        return self._logged

    def ancestors(self, snapshot: int) -> set[int]:
        """The snapshot and those before it, as far as they are kept."""
        known, found = {each.id: each.parent for each in self.kept}, set[int]()
        at: int | None = snapshot
        while at in known:
            found.add(at)
            at = known[at]
        return found

    def _commits(self) -> tuple[list[Kept], list[Kept]]:
        """`kept` and `lineage` with one read, because a table's metadata may be large. Metadata that was
        read is not read again."""
        current = self._table.operations().current()
        location = current.metadataFileLocation()
        if location is None or location != self._read_from:
            self._read, self._read_from = self._parsed(current), location
        return self._read

    def _parsed(self, current: Any) -> tuple[list[Kept], list[Kept]]:
        metadata = json.loads(self._java("org.apache.iceberg.TableMetadataParser").toJson(current))
        self._logged = {each["snapshot-id"] for each in metadata.get("snapshot-log", ())}
        self._metadata = {key: value for key, value in metadata.items() if key not in _MANY}
        found = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
        kept = {number: _kept(each, found) for number, each in found.items()}
        lineage, at = list[Kept](), metadata.get("current-snapshot-id")
        while (commit := kept.get(at)) is not None:
            lineage.append(commit)
            at = commit.parent
        return list(kept.values()), lineage

    def expire(self, before: datetime, keep: int, gone: Iterable[int] = ()) -> None:
        """Remove the snapshots that are older, but for the last `keep` ones, and those with the ids `gone`, with the
        files that no other snapshot has."""
        taken = self._table.expireSnapshots().expireOlderThan(int(before.timestamp() * 1000)).retainLast(keep)
        for snapshot in gone:
            taken = taken.expireSnapshotId(snapshot)
        taken.commit()
        self._spark.catalog.refreshTable(self.name)

    def existing(self, locations: Iterable[str]) -> list[str]:
        """Those of the files that are there."""
        files = self._table.io()
        asked = sorted(locations)
        there = at_once(lambda location: bool(files.newInputFile(location).exists()), asked, workers=16)
        return [location for location, is_there in zip(asked, there, strict=True) if is_there]

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

    def evolve(self, plan: Steps, properties: Mapping[str, str], check: Callable[[], None], own: OwnColumns | None = None) -> None:
        """Apply the steps, set the properties, and note which columns are `own`, those that the steps are for, after them;
        readers see all of it or nothing. `check` is called once the table is loaded: a later change of columns makes this
        fail, as does one since `own` was read."""
        transaction = self._table.newTransaction()
        check()
        if own is not None and self._described(transaction.table().schema()) != own.struct:
            raise BatchBusy("somebody changes its columns", operation="evolve a warehouse table", obj=self.name, hint="Run it again.")
        # Each at once, so that two columns may swap their names; first what makes room for the others.
        for renames in (plan.aside, plan.renamed):
            self._update(transaction, [("renameColumn", ".".join(path), name) for path, name in renames])
        self._update(transaction, [("updateColumn", ".".join(path), self._type(kind).asPrimitiveType()) for path, kind in plan.widened])
        self._update(transaction, [("addColumn", *self._parent(path), path[-1], self._type(kind)) for path, kind in plan.added])
        update = transaction.updateProperties()
        for name, value in properties.items():
            update.set(name, value)
        if own is not None:
            update.set(PROPERTY, own.recorded(self._described(transaction.table().schema())))
        update.commit()
        transaction.commitTransaction()
        self._spark.catalog.refreshTable(self.name)

    def changes_files(self, seen: int, columns: pa.Schema, since: int, upto: int) -> ChangesFiles | None:
        """The files of snapshot `seen` that may hold rows of the batches after `since`, up to `upto`. `columns`: the
        snapshot's, as Spark reads them. None if reading them with Arrow may give other rows than Spark's reader, or they
        are out of a task's reach."""
        if self._has_derived_columns():
            return None
        reachable = self._reachable()
        expressions = self._java("org.apache.iceberg.expressions.Expressions")
        batches = getattr(expressions, "and")(expressions.greaterThan("batch", since), expressions.lessThanOrEqual("batch", upto))
        found = list[DataFile]()
        with closing(self._planned(self._table.newScan().useSnapshot(seen).filter(batches))) as planned:
            for each in planned:
                path, size = each.data["file-path"], each.data["file-size-in-bytes"]
                is_plain = not each.deletes and each.data["file-format"] == "parquet" and size <= MAX_FILE_BYTES
                if not is_plain or not path.startswith(reachable):
                    return None
                found.append(DataFile(path, size))
        return ChangesFiles(found, self._with_ids(columns, self._table.snapshot(seen).schemaId()))

    def rows_by_file(self, seen: int) -> list[HeldFile] | None:
        """The data files of snapshot `seen`, with their position deletes; None if rows cannot be replaced by their
        positions there."""
        if self._has_derived_columns() or self._metadata["format-version"] != 2:
            return None
        if _GRANULARITY in self._metadata["properties"] or not self._table.spec().isUnpartitioned():
            return None
        reachable = self._reachable()
        spec, found = self.spec_id, list[HeldFile]()
        with closing(self._planned(self._table.newScan().useSnapshot(seen))) as planned:
            for each in planned:
                if any(file["file-format"] != "parquet" or not file["file-path"].startswith(reachable) for file in each.files):
                    return None
                if each.data["spec-id"] != spec or any(file["content"] != "position-deletes" for file in each.deletes):
                    return None
                places = tuple((file["file-path"], file["file-size-in-bytes"]) for file in each.deletes)
                found.append(HeldFile(each.data["file-path"], each.data["file-size-in-bytes"], each.data["record-count"], places))
                self._note(each)
        return found

    def _planned(self, scan: Any) -> Generator[_Planned, None, None]:
        """What a scan reads, as Iceberg describes its tasks. Each value of a task would be a call to the JVM."""
        describe = self._java("org.apache.iceberg.ScanTaskParser").toJson
        tasks = scan.planFiles()
        try:
            found = tasks.iterator()
            while found.hasNext():
                task = found.next()
                described = json.loads(describe(task))
                yield _Planned(task, described["data-file"], described.get("delete-files", []))
        finally:
            tasks.close()

    def _note(self, planned: _Planned) -> None:
        self._found[planned.data["file-path"]] = planned.task, None
        self._found |= {file["file-path"]: (planned.task, at) for at, file in enumerate(planned.deletes)}

    def _file(self, path: str) -> Any:
        """A data or delete file that was noted."""
        task, at = self._found[path]
        return task.file() if at is None else task.deletes().get(at)

    def _reachable(self) -> tuple[str, ...]:
        """How locations begin that tasks can read and write."""
        return _reachable(self._spark, self.name.partition(".")[0].strip("`"))

    def _with_ids(self, columns: pa.Schema, schema_id: int) -> pa.Schema:
        return with_ids(columns, self._described(self._table.schemas().get(schema_id)))

    def key_columns(self, columns: pa.Schema, names: Sequence[str]) -> pa.Schema:
        """These columns with their field ids; `columns`: all of the table."""
        known = self._with_ids(columns, int(self._table.schema().schemaId()))
        return pa.schema([known.field(name) for name in names])

    def _has_derived_columns(self) -> bool:
        """Whether values of columns may not be in the files but follow from the table's metadata: default values
        (format version 3), columns of a partition, names in place of field ids."""
        self._commits()
        if self._metadata["format-version"] > 2 or _NAME_MAPPING in self._metadata["properties"]:
            return True
        return any(field["transform"] == "identity" for spec in self._metadata["partition-specs"] for field in spec["fields"])

    def file_target(self, columns: pa.Schema) -> FileTarget | None:
        """Where tasks write files of these columns, the table's own, for one commit; None if only Spark's writer
        can."""
        self._commits()
        return FileTarget.of(self._metadata, columns, self._reachable())

    def overwrite(self, target: FileTarget, files: Iterable[Row], replaced: Replaced, seen: int | None, about: Mapping[str, str]) -> None:
        """Add the files that tasks wrote to the target, rows of `data_files.FILES`, in place of the rows
        `replaced`, unless such rows were written since snapshot `seen`. `about`: the summary properties of the
        snapshot."""
        taken = self._table.newOverwrite().overwriteByRowFilter(self._filter(replaced))
        taken = taken.validateNoConflictingDeletes().validateNoConflictingData()
        if seen is not None:
            taken = taken.validateFromSnapshot(seen)
        for file in files:
            taken = taken.addFile(self._data_file(file))
        for name, value in about.items():
            taken = taken.set(name, value)
        self._commit(taken, target)

    def replace_rows(self, target: FileTarget, files: Iterable[Row], deletes: Sequence[Row], seen: int, about: Mapping[str, str]) -> None:
        """Add the files that tasks wrote to the target, and delete rows of files of snapshot `seen`: `deletes`, rows of
        `row_positions.DELETES`, made from what `rows_by_file` returned. Fails if rows were added or deleted since, or
        one of these files was replaced."""
        delta, referenced = self._table.newRowDelta(), self._java("java.util.ArrayList")()
        for each, made in zip(deletes, self._delete_files(deletes), strict=True):
            referenced.add(each.of)
            delta = delta.addDeletes(made)
            for former in each.replaced:
                delta = delta.removeDeletes(self._file(former))
        for check in _CHECKS.values():
            delta = check(delta, seen, referenced, self._filter("everything"))
        for file in files:
            delta = delta.addRows(self._data_file(file))
        for name, value in about.items():
            delta = delta.set(name, value)
        self._commit(delta, target)

    def rewrite(self, target: FileTarget, files: Iterable[Row], gone: Collection[str], seen: int) -> None:
        """Put the files that tasks wrote to the target in place of those at the locations `gone`, data files and
        their delete files, which hold the same rows in snapshot `seen`. Fails if one of them has been removed or
        got deletes since."""
        rewrite = self._table.newRewrite().validateFromSnapshot(seen)
        found = self._files(gone, seen)
        if len(found) != len(gone):
            raise ValueError(f"{len(gone) - len(found)} of {len(gone)} files to replace are not in snapshot {seen} of {self.name}")
        for file in found:
            rewrite = rewrite.deleteFile(file)
        for file in files:
            rewrite = rewrite.addFile(self._data_file(file))
        self._commit(rewrite, target)

    def _files(self, paths: Collection[str], seen: int) -> list[Any]:
        """Those of the data and delete files that snapshot `seen` has."""
        if not all(path in self._found for path in paths):
            self._found = {}
            for each in self._planned(self._table.newScan().useSnapshot(seen)):
                self._note(each)
        return [self._file(path) for path in paths if path in self._found]

    def _commit(self, operation: Any, target: FileTarget) -> None:
        """Commit the target's files; they are deleted if Iceberg refuses. After any other error, readers may see
        them."""
        try:
            operation.commit()
        except (Py4JJavaError, PySparkException) as error:
            if (is_conflict(error) or _INVALID in str(error)) and _UNKNOWN not in str(error):
                target.discard()
            raise
        self._spark.catalog.refreshTable(self.name)

    def _filter(self, replaced: Replaced) -> Any:
        expressions = self._java("org.apache.iceberg.expressions.Expressions")
        if isinstance(replaced, int):
            return expressions.equal("batch", replaced)
        return expressions.alwaysTrue() if replaced == "everything" else expressions.alwaysFalse()

    def _data_file(self, file: Row) -> Any:
        """The file for a commit; its footer is read for the bounds of its columns."""
        spec, source = self._table.spec(), self._table.io().newInputFile(file.path)
        metrics_config = self._java("org.apache.iceberg.MetricsConfig").forTable(self._table)
        metrics = self._java("org.apache.iceberg.parquet.ParquetUtil").fileMetrics(source, metrics_config)
        made = self._java("org.apache.iceberg.DataFiles").builder(spec).withPath(file.path).withFileSizeInBytes(file.size)
        if file.day is not None:
            partition = self._java("org.apache.iceberg.PartitionData")(spec.partitionType())
            partition.set(0, file.day)
            made = made.withPartition(partition)
        return made.withFormat("parquet").withMetrics(metrics).build()

    def _delete_files(self, files: Iterable[Row]) -> Iterator[Any]:
        """Position delete files for a commit. Readers find what one is about by the bounds of its paths."""
        # Its parts, one by one, would be twenty calls to the JVM for each data file with a changed row.
        read, made = _mapper(self._spark).readTree, self._java("org.apache.iceberg.ContentFileParser").fromJson
        spec, spec_id = self._table.spec(), self.spec_id
        for file in files:
            bounds = {"keys": [DELETED_FROM], "values": [file.of.encode().hex()]}
            described = {
                "spec-id": spec_id,
                "content": "position-deletes",
                "file-path": file.path,
                "file-format": "parquet",
                "partition": [],
                "file-size-in-bytes": file.size,
                "record-count": file.rows,
                "lower-bounds": bounds,
                "upper-bounds": bounds,
                "referenced-data-file": file.of,
            }
            yield made(read(json.dumps(described)), spec)

    def empty(self, about: Mapping[str, str]) -> None:
        """Delete all rows. `about`: the summary properties of the snapshot."""
        taken = self._table.newDelete().deleteFromRowFilter(self._java("org.apache.iceberg.expressions.Expressions").alwaysTrue())
        for name, value in about.items():
            taken.set(name, value)
        taken.commit()
        self._spark.catalog.refreshTable(self.name)

    def _as_json(self, values: Any) -> Any:
        """A Java map as one text: each entry would be a call to the JVM, and the end of the iteration an exception."""
        return json.loads(_mapper(self._spark).writeValueAsString(values))

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


def _kept(snapshot: Mapping[str, Any], found: Collection[int]) -> Kept:
    """A snapshot of a table's metadata; `found`: the ids of all kept ones."""
    parent, at = snapshot.get("parent-snapshot-id"), datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC)
    return Kept(snapshot["snapshot-id"], parent, parent in found, snapshot["summary"], at, snapshot.get("sequence-number", 0))


_CHECKS: Final[Mapping[str, Callable[[Any, int, Any, Any], Any]]] = {
    "since": lambda delta, seen, _, __: delta.validateFromSnapshot(seen),
    "expect_no_changes": lambda delta, _, __, rows: (
        delta.conflictDetectionFilter(rows).validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
    ),
    "expect_files": lambda delta, _, files, __: delta.validateDeletedFiles().validateDataFilesExist(files),
}
"""What a commit that replaces rows by position has Iceberg check: that the snapshot whose positions they are is among
those before, that no row was added or deleted since, and that the files of these positions are still there."""


def is_conflict(error: PySparkException | Py4JJavaError) -> bool:
    """Whether somebody else was faster."""
    text = str(error)
    return any(conflict in text for conflict in _CONFLICTS) or bool(_CONFLICTING.search(text))


@lru_cache(maxsize=64)
def _reachable(spark: SparkSession, catalog: str) -> tuple[str, ...]:
    """How locations begin to which tasks write as the jobs write to the bucket: with what the environment says,
    not with properties of the catalog."""
    session: Any = spark
    stated = session._jsparkSession.conf().getAllAsJava()
    known = json.loads(_mapper(spark).writeValueAsString(stated))
    prefix = f"spark.sql.catalog.{catalog}."
    options = {key.removeprefix(prefix): value for key, value in known.items() if key.startswith(prefix)}
    hadoop = session._jsc.hadoopConfiguration()
    is_local = (hadoop.get("fs.defaultFS") or "file:").startswith("file:")
    return (*stores_reached(options), "file:/", *(["/"] if is_local else []))


def stores_reached(options: Mapping[str, str]) -> list[str]:
    """How locations begin in object stores that tasks reach without these properties of the catalog."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    known = {
        "gcs.service.host": emulator,
        "gcs.no-auth": "true" if emulator else None,
        "gcs.project-id": options.get("gcs.project-id"),
        "s3.endpoint": named_endpoint(),
        # Tasks choose it by themselves.
        "s3.path-style-access": options.get("s3.path-style-access"),
    }
    own = any(name.startswith(_OF_A_STORE) and value != known.get(name) for name, value in options.items())
    if own or options.get("type") == "rest":
        return []
    # The library for S3 is an extra, which a bucket elsewhere does not need.
    return ["gs://", *(["s3://"] if find_spec("botocore") else [])]


@lru_cache(maxsize=64)
def _java_class(spark: SparkSession, name: str) -> Any:
    """A JVM class by its full name; each part of a name is a call to the JVM."""
    session: Any = spark
    return reduce(getattr, name.split("."), session._jvm)


@lru_cache(maxsize=4)
def _mapper(spark: SparkSession) -> Any:
    """What makes JSON of Java objects."""
    return _java_class(spark, "org.apache.iceberg.util.JsonUtil").mapper()
