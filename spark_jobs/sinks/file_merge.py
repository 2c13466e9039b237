"""Merges small data files of a table from Arrow: one task reads some files and writes one.

Strategy: Iceberg's procedure reads and writes row by row, which for changes with their nested rows costs more
than the batches that wrote them. Where nothing is deleted in the files, and they have the table's present
columns, merging them is copying: record batches are read and written as they are. Everything else is left to the
procedure (`table_maintenance`), which runs afterwards and finds nothing to do where this has merged. Sources:
Iceberg's SparkBinPackFileRewritePlanner (which files are merged) and RewriteFiles (what a commit checks).

Must not know what the rows are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_jobs.sinks.data_files import FILES, FileTarget, opened
from spark_jobs.sinks.iceberg_table import IcebergTable, collected
from spark_jobs.sinks.schema_evolution import quoted
from spark_jobs.stages.scan import Batches

log = structlog.get_logger()

LARGEST: Final = 64 << 20
"""Bytes of a file that is merged here at most: a task holds one in memory."""
MERGED: Final = 512 << 20
"""Bytes of the files that are merged into one at most, as Iceberg's write.target-file-size-bytes."""
FEWEST: Final = 5
"""Files that are worth a merge, as Iceberg's min-input-files."""
_GROUPS: Final = pa.schema([("paths", pa.list_(pa.string())), ("day", pa.int32())])
_MERGES: Final = pa.schema([("gone", pa.list_(pa.string())), *FILES])
"""The files that were merged, and a row of FILES."""


class Small(NamedTuple):
    """A data file: location, bytes, its day as in FILES, and rows."""

    path: str
    size: int
    day: int | None
    rows: int = 0


def merge_files(spark: SparkSession, name: str, below: int = LARGEST) -> None:
    """Merge the data files of fewer than so many bytes, in one commit. Does nothing for a table with deletes, or
    one whose files only Spark's writer can write. Raises as a commit does if somebody else changes the table."""
    held = IcebergTable(spark, name)
    held.refresh()
    target, seen = held.file_target(to_arrow_schema(held.columns)), held.snapshot
    if target is None or seen is None:
        return
    groups = grouped(_small(spark, held, seen, target, min(below, LARGEST)))
    if not groups:
        return
    given = pa.Table.from_pylist([{"paths": [each.path for each in group], "day": group[0].day} for group in groups], schema=_GROUPS)
    # A task for each group.
    tasks = spark.createDataFrame(given, schema=from_arrow_schema(_GROUPS)).repartition(len(groups))
    merges = collected(tasks.mapInArrow(merger(target), schema=from_arrow_schema(_MERGES)), target)
    gone = {path for merge in merges for path in merge.gone}
    if not gone:
        return
    expected = sum(each.rows for group in groups for each in group if each.path in gone)
    if (written := sum(merge["rows"] for merge in merges)) != expected:
        log.error("merged data files have other rows than before, left to Iceberg", table=name, rows=expected, written=written)
        target.discard()
        return
    held.rewrite(target, merges, gone, seen)
    log.info("data files merged", table=name, files=len(gone), into=len(merges))


def _small(spark: SparkSession, held: IcebergTable, seen: int, target: FileTarget, below: int) -> list[Small]:
    """The files to merge in snapshot `seen`; none if the table has deletes, or files that are partitioned otherwise."""
    day = f"unix_date(partition.{quoted(target.partition)}) AS day" if target.partition else "CAST(NULL AS INT) AS day"
    columns = ("content", "spec_id", "file_path", "file_size_in_bytes AS size", day, "record_count AS n")
    rows = spark.read.option("versionAsOf", seen).table(f"{held.name}.files").selectExpr(*columns).collect()
    if any(row.content != 0 or row.spec_id != held.spec_id for row in rows):
        return []
    return [Small(row.file_path, row["size"], row.day, row.n) for row in rows if row["size"] < below]


def grouped(files: Sequence[Small]) -> list[list[Small]]:
    """The files of each merge: of one day, at least FEWEST, and at most MERGED bytes."""
    days: dict[int | None, list[Small]] = defaultdict(list)
    for file in sorted(files):
        days[file.day].append(file)
    found: list[list[Small]] = []
    for of_day in days.values():
        group, size = list[Small](), 0
        for file in of_day:
            if size + file.size > MERGED:
                found.append(group)
                group, size = [], 0
            group.append(file)
            size += file.size
        found.append(group)
    return [group for group in found if len(group) >= FEWEST]


def merger(target: FileTarget) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow`: of each group, the files that have the table's columns become one."""

    def merge_groups(batches: Batches) -> Batches:
        for batch in batches:
            for group in batch.to_pylist():
                gone: list[str] = []
                rows = _rows(target, group["paths"], gone)
                if (first := next(rows, None)) is not None:
                    merged = target.write_one(group["day"], chain([first], rows))
                    yield pa.RecordBatch.from_pylist([{"gone": gone, **merged}], schema=_MERGES)

    return merge_groups


def _rows(target: FileTarget, paths: Sequence[str], gone: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of the files that have the table's columns, which are added to `gone`."""
    for path in paths:
        with opened(path) as file:
            # Of a table that was altered: columns are added, renamed and widened by Iceberg's reader.
            if numbered(file.schema_arrow) == numbered(target.schema):
                gone.append(path)
                # Spark says of columns without nulls that they have none.
                for batch in file.iter_batches():
                    yield from pa.Table.from_batches([batch]).cast(target.schema).to_batches()


def numbered(schema: pa.Schema) -> list[Any]:
    """Types and field ids, without names of what Parquet and Arrow name in different ways."""
    return [_numbered(field) for field in schema]


def _numbered(field: pa.Field) -> Any:
    number = (field.metadata or {}).get(b"PARQUET:field_id")
    kind = field.type
    if pa.types.is_struct(kind):
        return number, "struct", [(each.name, _numbered(each)) for each in kind]
    if pa.types.is_map(kind):
        return number, "map", _numbered(kind.key_field), _numbered(kind.item_field)
    if pa.types.is_list(kind):
        return number, "list", _numbered(kind.value_field)
    return number, str(kind)
