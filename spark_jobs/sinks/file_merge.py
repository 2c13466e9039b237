"""Merges small data files of a table from Arrow: one task reads some files and writes one.

Strategy: Iceberg's procedure reads and writes row by row, which costs more than the batches that wrote the
rows. Where the files have the table's present columns, merging them is copying: record batches are read, rows
that position delete files name are left out, and the others are written, sorted if an order is given.
Everything else is left to the procedure (`table_maintenance`), which runs afterwards: files of other columns, and
sorting a whole table. Compaction is size-tiered: a file is merged with FEWEST - 1 others of its size, or as many
bytes, so a row is copied once for each tier of sizes, not with each batch. Sources: Iceberg's
SparkBinPackFileRewritePlanner (which files are merged) and RewriteFiles (what a commit checks), Cassandra's
SizeTieredCompactionStrategy.

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
import pyarrow.parquet as pq
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.sinks.data_files import FileTarget, in_tables, opened_in_part
from spark_jobs.sinks.iceberg_table import IcebergTable
from spark_jobs.sinks.row_positions import deleted_before
from spark_jobs.sinks.schema_evolution import quoted
from spark_jobs.stages.scan import Batches

log = structlog.get_logger()

MERGED: Final = 512 << 20
"""Bytes of the files that are merged into one at most, as Iceberg's write.target-file-size-bytes."""
LARGEST: Final = MERGED // 4 * 3
"""Bytes of a file that is merged here at most, as Iceberg's min-file-size-bytes."""
FEWEST: Final = 5
"""Files that are worth a merge, as Iceberg's min-input-files."""
TINY: Final = 1 << 20
"""Bytes of a file that is opened more slowly than copied."""
SORTED: Final = 64 << 20
"""Bytes of the files that are merged into one at most if their rows are sorted, which takes a task's
memory."""
HELD: Final = 512 << 20
"""Bytes of Arrow memory that are sorted at once; a file of more rows consists of several sorted runs."""
_ROWS_PER_BATCH: Final = 1 << 16


class Small(NamedTuple):
    """A data file: location, bytes, its day as in FILES, rows, and its position delete files with their
    bytes."""

    path: str
    size: int
    day: int | None
    rows: int = 0
    deletes: tuple[tuple[str, int], ...] = ()


def merge_files(spark: SparkSession, name: str, below: int = LARGEST, order: Sequence[str] = ()) -> bool:
    """Merge the data files of fewer than so many bytes, in one commit, sorted by the columns `order`. False, and
    nothing is done, for a table whose files or delete files only Spark can write or read. Raises as a commit does
    if somebody else changes the table."""
    held = IcebergTable(spark, name)
    held.refresh()
    target, seen = held.file_target(to_arrow_schema(held.columns)), held.snapshot
    if target is None or seen is None:
        return False
    small = _small(spark, held, seen, target, min(below, SORTED if order else LARGEST))
    if small is None:
        return False
    if groups := grouped(small, SORTED if order else MERGED):
        _merge_groups(spark, held, target, groups, order, seen)
    return True


def _merge_groups(
    spark: SparkSession, held: IcebergTable, target: FileTarget, groups: list[list[Small]], order: Sequence[str], seen: int
) -> None:
    # A task for each group.
    tasks = spark.sparkContext.parallelize(groups, len(groups)).map(merger(target, order))
    try:
        merges = [merge for merge in tasks.collect() if merge is not None]
    except Py4JError:
        target.discard()
        raise
    gone = {path for merge in merges for path in merge.gone}
    if not gone:
        return
    files = [merge.file for merge in merges]
    expected = sum(each.rows for group in groups for each in group if each.path in gone) - sum(merge.deleted for merge in merges)
    if (written := sum(file["rows"] for file in files)) != expected:
        log.error("merged data files have other rows than before, left to Iceberg", table=held.name, rows=expected, written=written)
        target.discard()
        return
    held.rewrite(target, files, gone, seen)
    log.info("data files merged", table=held.name, files=len(gone), into=len(files))


def _small(spark: SparkSession, held: IcebergTable, seen: int, target: FileTarget, below: int) -> list[Small] | None:
    """The files of snapshot `seen` that may be merged; None if the table has deletes that cannot be applied here, or
    files that are partitioned otherwise."""
    if target.partition is None and (files := held.rows_by_file(seen)) is not None:
        return [Small(each.path, each.size, None, each.rows, each.deletes) for each in files if each.size < below]
    day = f"unix_date(partition.{quoted(target.partition)}) AS day" if target.partition else "CAST(NULL AS INT) AS day"
    columns = ("content", "spec_id", "file_path", "file_size_in_bytes AS size", day, "record_count AS n")
    rows = spark.read.option("versionAsOf", seen).table(f"{held.name}.files").selectExpr(*columns).collect()
    if any(row.content != 0 or row.spec_id != held.spec_id for row in rows):
        return None
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
    """Without files that outweigh the smaller ones: to copy these with every few new files costs more than it
    saves, unless they are TINY."""
    by_size = sorted(files, key=lambda file: file.size)
    smaller = sum(file.size for file in by_size)
    while by_size:
        smaller -= by_size[-1].size
        if by_size[-1].size < TINY or by_size[-1].size * (FEWEST - 1) <= smaller:
            break
        by_size.pop()
    return by_size


class Merge(NamedTuple):
    """A group that was merged: the files that are gone, delete files included, how many rows were left out, and the new
    file, a row of FILES."""

    gone: list[str]
    deleted: int
    file: Row


def merger(target: FileTarget, order: Sequence[str] = ()) -> Callable[[Sequence[Small]], Merge | None]:
    """A function for tasks: of a group, the files that have the table's columns become one. None if none has."""
    sortable = [name for name in order if not pa.types.is_nested(target.schema.field(name).type)]

    def merge(group: Sequence[Small]) -> Merge | None:
        reading = _Reading(target)
        rows = reading.rows(group)
        if (first := next(rows, None)) is None:
            return None
        every = chain([first], rows)
        written = target.write_one(group[0].day, in_order(every, sortable) if sortable else every)
        return Merge(reading.gone, reading.deleted, Row(**written))

    return merge


@dataclass
class _Reading:
    """What has been read of one group: the files, and how many of their rows were left out."""

    target: FileTarget
    gone: list[str] = field(default_factory=list)
    deleted: int = 0

    def rows(self, files: Iterable[Small]) -> Iterator[pa.RecordBatch]:
        """The rows of the files that have the table's columns, but for deleted ones."""
        for small in files:
            with opened_in_part(small.path, small.size) as file:
                # Of a table that was altered: columns are added, renamed and widened by Iceberg's reader.
                if numbered(file.schema_arrow) == numbered(self.target.schema):
                    self.gone.append(small.path)
                    for batch in self._kept(small, _batches(file)):
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


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """All rows; of a file in a store, one row group at a time is in memory."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(_ROWS_PER_BATCH, row_groups=[group])


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
