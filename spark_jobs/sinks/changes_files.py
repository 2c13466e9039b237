"""Rows of a changes table for the publishers, read from its files by the tasks that encode them.

Strategy: Spark's reader makes rows of the JVM of Parquet's columns, of which Arrow makes columns again for
the encoder: a third of what publishing costs. So the driver asks Iceberg which files hold the batches (at a
pinned snapshot), and each task reads its share of them with Arrow, column by column of the table by field id,
and filters as Spark would. Only if that gives the same rows (`IcebergTable.files_with`): no delete files,
Parquet with field ids, columns that are in the files, within reach. Everything else is left to Spark's
reader. Sources: the Iceberg table specification (column projection by field id). Must not know Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.sinks.data_files import opened, opened_in_part
from spark_jobs.sinks.field_ids import columns_by_id, columns_of
from spark_jobs.sinks.key_hash import hashes, is_hashable
from spark_jobs.stages.scan import Batches

T = TypeVar("T")

BYTES_PER_TASK: Final = 32 << 20
"""Bytes of Parquet after which a task gets no further file."""
MAX_FILE_BYTES: Final = 256 << 20
"""A file in a store is in a worker's memory as a whole; larger ones are left to Spark's reader."""
_ROWS: Final = 4096
_BYTES: Final = 32 << 20
"""Of rows that are in memory at once, as they are in the file, if a page is smaller."""


class DataFile(NamedTuple):
    """A data file of a table: its location and bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows: those of one incarnation in the batches after `since`, up to `upto`, without the `voided`
    ones, and without the operations `skipped`. `owned`: how many columns of the key decide its publisher, of
    so many `publishers`."""

    table_id: str
    since: int
    upto: int
    voided: frozenset[int]
    skipped: frozenset[str]
    owned: int
    publishers: int


class Span(NamedTuple):
    """Rows of a file: batch and ordinal of the first and the last one, whether they are in that order, and their
    schema versions."""

    path: str
    first: tuple[int, int]
    last: tuple[int, int]
    in_order: bool
    versions: frozenset[str]


class Spans(NamedTuple):
    """What files have: spans of wanted rows, and how many events of each batch, with those of operations that are skipped."""

    of_files: list[Span]
    events: Counter[int]


@dataclass(frozen=True, slots=True)
class ChangesFiles:
    """Files of a changes table. `schema`: the table's columns with field ids, as Spark's reader returns them.
    It is sent to executors."""

    files: Sequence[DataFile]
    schema: pa.Schema

    def owns_by(self, columns: int) -> bool:
        """Whether the publisher of a key can be found here by that many columns of it."""
        return all(is_hashable(each.type) for each in [*self.schema.field("key").type][:columns])

    def spans(self, wanted: Wanted) -> Spans:
        """What the files have. Reads five columns of each file in the calling process."""
        columns = pa.schema([self.schema.field(name) for name in ("batch", "ordinal", "table_id", "op", "schema_version")])
        found = Spans([], Counter())
        for path, size in self.files:
            with opened_in_part(path, size) as file:
                held = columns_of(file.schema_arrow, columns)
                note(found, path, (columns_by_id(batch, held, columns) for batch in file.iter_batches(_ROWS, columns=held.names)), wanted)
        return found

    def read(self, path: str, wanted: Wanted, publisher: int | None = None) -> Batches:
        """The wanted rows of a file, with their `publisher`; of one publisher only, if it is given."""
        with opened(path) as file:
            held = file.schema_arrow
            for batch in file.iter_batches(_ROWS if publisher is None else _rows_at_once(file, wanted.publishers)):
                rows = columns_by_id(batch, held, self.schema)
                rows = _filtered(rows, _is_wanted(rows, wanted))
                if not rows.num_rows:
                    continue
                owners = _publishers(rows["key"], wanted)
                rows = rows.append_column("publisher", owners)
                if publisher is not None:
                    rows = _filtered(rows, pc.equal(owners, publisher))
                if rows.num_rows:
                    yield rows


@dataclass(frozen=True, slots=True)
class Reading:
    """Files of a table, which of their rows are wanted, and what tasks make of these. It is sent to executors. `spans`:
    what the files have, if the driver has looked."""

    files: ChangesFiles
    wanted: Wanted
    made: Callable[[Batches], Batches]
    spans: Sequence[Span] | None = None


def read_together(spark: SparkSession, tables: Sequence[Reading]) -> tuple[DataFrame, Callable[[Batches], Batches]]:
    """A frame with a row for each task, and a function for `mapInArrow` of it: what is made of the wanted rows of all
    tables. A task reads files of several tables: for each it would cost a tenth of a second."""
    files = [(at, file) for at, table in enumerate(tables) for file in table.files.files]
    shares = shared_out(files, spark.sparkContext.defaultParallelism)

    def rows(numbers: Batches) -> Batches:
        for number in (number for batch in numbers for number in batch["id"].to_pylist()):
            for at, found in groupby(shares[number], key=itemgetter(0)):
                yield from _made(tables[at], [path for _, path in found])

    return spark.range(len(shares), numPartitions=max(1, len(shares))), rows


def _made(table: Reading, paths: Sequence[str]) -> Batches:
    return table.made(rows for path in paths for rows in table.files.read(path, table.wanted))


def shared_out(files: Sequence[tuple[T, DataFile]], parallelism: int) -> list[list[tuple[T, str]]]:
    """The paths, each with what it belongs to, in as many shares as there are tasks: so many if there are as many
    files, and more if these are large. Files keep their order."""
    most = min(BYTES_PER_TASK, 1 + sum(file.size for _, file in files) // max(1, parallelism))
    shares: list[list[tuple[T, str]]] = []
    size = most
    for of, file in files:
        if size >= most:
            shares.append([])
            size = 0
        shares[-1].append((of, file.path))
        size += file.size
    return shares


def _rows_at_once(file: Any, publishers: int) -> int:
    """Of which one publisher has a page, if they are not too large."""
    groups = (file.metadata.row_group(at) for at in range(file.metadata.num_row_groups))
    size: int = sum(group.total_byte_size for group in groups) * _ROWS // max(1, file.metadata.num_rows)
    return _ROWS * max(1, min(publishers, _BYTES // max(1, size)))


def note(found: Spans, path: str, pages: Iterable[pa.RecordBatch], wanted: Wanted) -> None:
    """Note what the rows of a file are."""
    rows, any_op = list[pa.RecordBatch](), replace(wanted, skipped=frozenset())
    for page in pages:
        of_batches = _filtered(page, _is_wanted(page, any_op))
        batches, counts = np.unique(of_batches["batch"].to_numpy(), return_counts=True)
        found.events.update(dict(zip(batches.tolist(), counts.tolist(), strict=True)))
        kept = _filtered(of_batches, _is_wanted(of_batches, wanted)) if wanted.skipped else of_batches
        if kept.num_rows:
            rows.append(kept)
    if rows:
        found.of_files.append(_span(path, rows))


def _span(path: str, pages: Sequence[pa.RecordBatch]) -> Span:
    batches, ordinals = (np.concatenate([page[name].to_numpy() for page in pages]) for name in ("batch", "ordinal"))
    order = np.lexsort((ordinals, batches))
    first, last = ((int(batches[at]), int(ordinals[at])) for at in order[[0, -1]])
    versions = frozenset(version for page in pages for version in page["schema_version"].unique().to_pylist())
    return Span(path, first, last, bool((order[1:] > order[:-1]).all()), versions)


def _filtered(rows: pa.RecordBatch, wanted: Any) -> pa.RecordBatch:
    """Without a copy if all rows are wanted."""
    return rows if pc.all(wanted, skip_nulls=False).as_py() else rows.filter(wanted)


def _is_wanted(rows: pa.RecordBatch, wanted: Wanted) -> Any:
    batch = rows["batch"]
    tests = [
        pc.greater(batch, wanted.since),
        pc.less_equal(batch, wanted.upto),
        pc.equal(rows["table_id"], wanted.table_id),
        pc.invert(pc.is_in(rows["op"], pa.array(sorted(wanted.skipped), pa.string()))),
    ]
    if wanted.voided:
        tests.append(pc.invert(pc.is_in(batch, pa.array(sorted(wanted.voided), pa.int64()))))
    return reduce(pc.and_, tests)


def _publishers(keys: pa.StructArray, wanted: Wanted) -> pa.Array:
    """As Spark's `pmod(xxhash64(key), publishers)`. A null key hashes as a key of nulls."""
    flat = keys.flatten()[: wanted.owned]
    return pa.array(np.mod(hashes(flat, len(keys)), wanted.publishers).astype(np.int32))
