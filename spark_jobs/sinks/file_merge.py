"""Merges small data files of a table from Arrow: one task reads some files and writes one.

Strategy: Iceberg's procedure reads and writes row by row, which costs more than the batches that wrote the
rows. Where the files have the table's present columns, merging them is copying: record batches are read, rows
that position delete files name are left out, and the others are written, sorted if an order is given.
Everything else is left to the procedure (`table_maintenance`), which runs afterwards and finds nothing to do
where this has merged: large files, and the whole table once it consists of several merged ones. Sources:
Iceberg's SparkBinPackFileRewritePlanner (which files are merged) and RewriteFiles (what a commit checks).

Must not know what the rows are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_jobs.sinks.data_files import FILES, FileTarget, in_tables, opened
from spark_jobs.sinks.iceberg_table import IcebergTable, collected
from spark_jobs.sinks.row_positions import deleted_before
from spark_jobs.sinks.schema_evolution import quoted
from spark_jobs.stages.scan import Batches

log = structlog.get_logger()

LARGEST: Final = 64 << 20
"""Bytes of a file that is merged here at most: a task holds one in memory."""
MERGED: Final = 512 << 20
"""Bytes of the files that are merged into one at most, as Iceberg's write.target-file-size-bytes."""
FEWEST: Final = 5
"""Files that are worth a merge, as Iceberg's min-input-files."""
SORTED: Final = 64 << 20
"""Bytes of the files that are merged into one at most if their rows are sorted, which takes a task's
memory."""
HELD: Final = 512 << 20
"""Bytes of Arrow memory that are sorted at once; a file of more rows consists of several sorted runs."""
_ROWS_PER_BATCH: Final = 1 << 16
_MERGES: Final = pa.schema([("gone", pa.list_(pa.string())), ("deleted", pa.int64()), *FILES])
"""The files that were merged, delete files included, the number of rows that were left out, and a row of
FILES."""


class Small(NamedTuple):
    """A data file: location, bytes, its day as in FILES, rows, and its position delete files with their
    bytes."""

    path: str
    size: int
    day: int | None
    rows: int = 0
    deletes: tuple[tuple[str, int], ...] = ()


def merge_files(spark: SparkSession, name: str, below: int = LARGEST, order: Sequence[str] = ()) -> None:
    """Merge the data files of fewer than so many bytes, in one commit, sorted by the columns `order`. Does
    nothing for a table whose files or delete files only Spark can write or read. Raises as a commit does if
    somebody else changes the table."""
    held = IcebergTable(spark, name)
    held.refresh()
    target, seen = held.file_target(to_arrow_schema(held.columns)), held.snapshot
    if target is None or seen is None:
        return
    groups = grouped(_small(spark, held, seen, target, min(below, LARGEST)), SORTED if order else MERGED)
    if not groups:
        return
    # A task for each group.
    tasks = spark.range(0, len(groups), 1, len(groups))
    merges = collected(tasks.mapInArrow(merger(target, groups, order), schema=from_arrow_schema(_MERGES)), target)
    gone = {path for merge in merges for path in merge.gone}
    if not gone:
        return
    expected = sum(each.rows for group in groups for each in group if each.path in gone) - sum(merge.deleted for merge in merges)
    if (written := sum(merge["rows"] for merge in merges)) != expected:
        log.error("merged data files have other rows than before, left to Iceberg", table=name, rows=expected, written=written)
        target.discard()
        return
    held.rewrite(target, merges, gone, seen)
    log.info("data files merged", table=name, files=len(gone), into=len(merges))


def _small(spark: SparkSession, held: IcebergTable, seen: int, target: FileTarget, below: int) -> list[Small]:
    """The files to merge in snapshot `seen`; none if the table has deletes that cannot be applied here, or
    files that are partitioned otherwise."""
    if target.partition is None and (files := held.rows_by_file(seen)) is not None:
        return [Small(each.path, each.size, None, each.rows, each.deletes) for each in files if each.size < below]
    day = f"unix_date(partition.{quoted(target.partition)}) AS day" if target.partition else "CAST(NULL AS INT) AS day"
    columns = ("content", "spec_id", "file_path", "file_size_in_bytes AS size", day, "record_count AS n")
    rows = spark.read.option("versionAsOf", seen).table(f"{held.name}.files").selectExpr(*columns).collect()
    if any(row.content != 0 or row.spec_id != held.spec_id for row in rows):
        return []
    return [Small(row.file_path, row["size"], row.day, row.n) for row in rows if row["size"] < below]


def grouped(files: Sequence[Small], most: int = MERGED) -> list[list[Small]]:
    """The files of each merge: of one day, at least FEWEST, and at most so many bytes."""
    days: dict[int | None, list[Small]] = defaultdict(list)
    for file in sorted(files):
        days[file.day].append(file)
    found: list[list[Small]] = []
    for of_day in days.values():
        group, size = list[Small](), 0
        for file in sorted(_alike(of_day)):
            if size + file.size > most:
                found.append(group)
                group, size = [], 0
            group.append(file)
            size += file.size
        found.append(group)
    return [group for group in found if len(group) >= FEWEST]


def _alike(files: Iterable[Small]) -> list[Small]:
    """Without files that are larger than all smaller ones together: to copy these with every few new files
    costs more than it saves."""
    by_size = sorted(files, key=lambda file: file.size)
    smaller = sum(file.size for file in by_size)
    while by_size:
        smaller -= by_size[-1].size
        if by_size[-1].size <= smaller:
            break
        by_size.pop()
    return by_size


def merger(target: FileTarget, groups: Sequence[Sequence[Small]], order: Sequence[str] = ()) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow` from numbers of groups: of each, the files that have the table's columns
    become one."""
    sortable = [name for name in order if not pa.types.is_nested(target.schema.field(name).type)]

    def merge_groups(numbers: Batches) -> Batches:
        for group in (groups[number] for batch in numbers for number in batch["id"].to_pylist()):
            merge = _Merge(target)
            rows = merge.rows(group)
            if (first := next(rows, None)) is not None:
                every = chain([first], rows)
                merged = target.write_one(group[0].day, in_order(every, sortable) if sortable else every)
                yield pa.RecordBatch.from_pylist([{"gone": merge.gone, "deleted": merge.deleted, **merged}], schema=_MERGES)

    return merge_groups


@dataclass
class _Merge:
    """What has been read of one group: the files, and how many of their rows were left out."""

    target: FileTarget
    gone: list[str] = field(default_factory=list)
    deleted: int = 0

    def rows(self, files: Iterable[Small]) -> Iterator[pa.RecordBatch]:
        """The rows of the files that have the table's columns, but for deleted ones."""
        for small in files:
            with opened(small.path) as file:
                # Of a table that was altered: columns are added, renamed and widened by Iceberg's reader.
                if numbered(file.schema_arrow) == numbered(self.target.schema):
                    self.gone.append(small.path)
                    for batch in self._kept(small, file.iter_batches(_ROWS_PER_BATCH)):
                        # Spark says of columns without nulls that they have none.
                        yield from pa.Table.from_batches([batch]).cast(self.target.schema).to_batches()

    def _kept(self, small: Small, batches: Batches) -> Batches:
        if not small.deletes:
            yield from batches
            return
        before = deleted_before(small.path, small.deletes)
        self.gone += before.own_files
        places = np.union1d(before.own, before.shared)
        self.deleted += len(places)
        first = 0
        for batch in batches:
            is_kept = np.ones(batch.num_rows, bool)
            is_kept[places[(first <= places) & (places < first + batch.num_rows)] - first] = False
            first += batch.num_rows
            yield batch.filter(pa.array(is_kept))


def in_order(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows sorted by the columns, nulls first; of more than HELD bytes, in several sorted runs."""
    for run in in_tables(batches, HELD):
        ranks = pc.sort_indices(run.select(columns), [(name, "ascending", "at_start") for name in columns])
        # Of one chunk rows are taken many times faster than of many.
        yield from run.combine_chunks().take(ranks).to_batches(_ROWS_PER_BATCH)


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
