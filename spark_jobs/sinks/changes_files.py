"""Rows of a changes table for the publishers, read from its files by the tasks that encode them.

Strategy: Spark's reader makes rows of the JVM of Parquet's columns, of which Arrow makes columns again for
the encoder: a third of what publishing costs. So the driver asks Iceberg which files hold the batches (at a
pinned snapshot), and each task reads its share of them with Arrow, column by column of the table by field id,
and filters as Spark would. Only if that gives the same rows (`IcebergTable.files_with`): no delete files,
Parquet with field ids, columns that are in the files, within reach. Everything else is left to Spark's
reader. Sources: the Iceberg table specification (column projection by field id). Must not know Kafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.sinks.data_files import opened, opened_in_part
from spark_jobs.sinks.field_ids import columns_by_id, columns_of
from spark_jobs.sinks.key_hash import hashes, is_hashable
from spark_jobs.stages.scan import Batches

BYTES_PER_TASK: Final = 32 << 20
"""Bytes of Parquet after which a task gets no further file."""
MAX_FILE_BYTES: Final = 256 << 20
"""A file in a store is in a worker's memory as a whole; larger ones are left to Spark's reader."""
_ROWS: Final = 4096


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


@dataclass(frozen=True, slots=True)
class ChangesFiles:
    """Files of a changes table. `schema`: the table's columns with field ids, as Spark's reader returns them.
    It is sent to executors."""

    files: Sequence[DataFile]
    schema: pa.Schema

    def owns_by(self, columns: int) -> bool:
        """Whether the publisher of a key can be found here by that many columns of it."""
        return all(is_hashable(each.type) for each in [*self.schema.field("key").type][:columns])

    def frame(self, spark: SparkSession, parallelism: int) -> tuple[DataFrame, Callable[[Wanted], Callable[[Batches], Batches]]]:
        """A frame with a row for each task, and what makes a function for `mapInArrow` of it that returns the
        rows wanted, with their `publisher`."""
        shares = shared_out(self.files, parallelism)

        def reading(wanted: Wanted) -> Callable[[Batches], Batches]:
            def rows(numbers: Batches) -> Batches:
                for batch in numbers:
                    for number in batch["id"].to_pylist():
                        for path in shares[number]:
                            yield from self._rows(path, wanted)

            return rows

        return spark.range(len(shares), numPartitions=max(1, len(shares))), reading

    def schema_versions(self, wanted: Wanted) -> list[str]:
        """The schema versions of the wanted rows. Reads four columns of each file in the calling process."""
        columns = pa.schema([self.schema.field(name) for name in ("batch", "table_id", "op", "schema_version")])
        found: set[str] = set()
        for path, size in self.files:
            with opened_in_part(path, size) as file:
                held = columns_of(file.schema_arrow, columns)
                for batch in file.iter_batches(_ROWS, columns=held.names):
                    rows = columns_by_id(batch, held, columns)
                    found.update(rows.filter(_is_wanted(rows, wanted))["schema_version"].unique().to_pylist())
        return sorted(found)

    def _rows(self, path: str, wanted: Wanted) -> Batches:
        with opened(path) as file:
            held = file.schema_arrow
            for batch in file.iter_batches(_ROWS):
                rows = columns_by_id(batch, held, self.schema)
                rows = rows.filter(_is_wanted(rows, wanted))
                if rows.num_rows:
                    yield rows.append_column("publisher", _publishers(rows["key"], wanted))


def shared_out(files: Sequence[DataFile], parallelism: int) -> list[list[str]]:
    """The paths in as many shares as there are tasks: so many if there are as many files, and more if these
    are large. Files keep their order."""
    most = min(BYTES_PER_TASK, 1 + sum(file.size for file in files) // max(1, parallelism))
    shares: list[list[str]] = []
    size = most
    for file in files:
        if size >= most:
            shares.append([])
            size = 0
        shares[-1].append(file.path)
        size += file.size
    return shares


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
