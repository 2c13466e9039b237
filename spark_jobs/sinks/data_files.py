"""Data files of Iceberg tables, written by tasks from Arrow memory: `FileTarget`. The driver commits them with
`IcebergTable.overwrite`.

Strategy: Spark's writer takes record batches apart into rows of the JVM and encodes these, which costs several
times what Arrow's own Parquet writer does. So a task writes the Parquet file itself, with the table's field ids,
under a name of its own, and returns its path. Nothing refers to the file before the commit. If the commit is
refused, the files are deleted; if it may have happened, the process is killed, or an attempt of a task loses,
files remain, which no table knows at worst.

Only for tables whose files can be written this way (`FileTarget.of`): Parquet, with Iceberg's own names of
files, no properties of the writer set by somebody else, no partitions but days, and in a place that tasks reach
as the jobs reach the bucket. Everything else is left to Spark's writer. Sources: the Iceberg table specification
(Parquet field ids, partition transforms). Must not know what the rows are."""

from __future__ import annotations

import io
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from spark_jobs.sinks.field_ids import with_ids
from spark_jobs.stages.row_packs import spill_folder
from spark_jobs.stages.scan import Batches
from writetime.errors import ObjectNotFound, WritetimeError
from writetime.storage import open_store
from writetime.storage.address import parse_object
from writetime.storage.store import Store

log = structlog.get_logger()

FILES: Final = pa.schema([("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("day", pa.int32())])
"""A written file: its location, bytes, rows, and for a table with partitions their day, as days since 1970."""
BYTES_PER_FILE: Final = 64 << 20
"""Bytes of Arrow memory after which a file is written."""
_ROWS_PER_GROUP: Final = 1 << 17
_DICTIONARY: Final = 64 << 10
"""Bytes of distinct values after which a column's values are written as they are. Looking them up in a large
dictionary takes longer than writing them, and Zstandard makes more of the values themselves."""
_ROWS_AT_ONCE: Final = 1 << 14
"""Rows of a column that are encoded before the writer looks how large pages and dictionary are."""
_DAY: Final = 86_400_000_000
_SETTINGS_OF_A_WRITER: Final = (
    *("write.format.", "write.parquet.", "write.object-storage.", "write.location-provider.", "write.data.path", "write.folder-storage"),
    *("write.distribution-mode", "write.target-file-size-bytes", "write.spark.", "encryption."),
)
"""How properties begin which Spark's writer obeys and this one does not."""
_PUT_BACK: Final = "Put the same file back; or drop the table from the catalog and make it again from the archive with `writetime rebuild`."
_DEFAULTS: Final = {("write.parquet.compression-codec", "zstd"), ("write.format.default", "parquet")}
"""Those that Iceberg sets itself, or that change nothing."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where the files of one commit go. `folder`: URL or path of the table's data; `stem`: how their names begin;
    `schema`: the table's columns with field ids; `day_column`: the column by whose days it is partitioned, and
    `partition`: the name of that partition field. It is sent to executors."""

    folder: str
    stem: str
    schema: pa.Schema
    day_column: str | None = None
    partition: str | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any], columns: pa.Schema, reachable: Collection[str]) -> FileTarget | None:
        """The target of a table, from its metadata in Iceberg's JSON format and its Arrow schema; None if only
        Spark's writer can write to it. `reachable`: how locations begin that tasks can write to."""
        chosen = {item for item in table["properties"].items() if item[0].startswith(_SETTINGS_OF_A_WRITER)} - _DEFAULTS
        if chosen or table["default-sort-order-id"] != 0:
            return None
        location = table["location"].rstrip("/")
        if not location.startswith(tuple(reachable)):
            return None
        current = next(each for each in table["schemas"] if each["schema-id"] == table["current-schema-id"])
        spec = next(each for each in table["partition-specs"] if each["spec-id"] == table["default-spec-id"])["fields"]
        schema, stem = with_ids(columns, current), uuid4().hex
        if not spec:
            return cls(f"{location}/data", stem, schema)
        if len(spec) > 1 or spec[0]["transform"] != "day":
            return None
        name = next((each["name"] for each in current["fields"] if each["id"] == spec[0]["source-id"]), None)
        if name is None or schema.field(name).type != pa.timestamp("us", "UTC"):
            return None
        return cls(f"{location}/data", stem, schema, name, spec[0]["name"])

    def written(self, rows: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
        """A function for `mapInArrow` that writes what `rows` returns, record batches with the table's columns,
        and returns FILES."""

        def write_batches(batches: Batches) -> Batches:
            waiting: dict[int | None, list[pa.RecordBatch]] = defaultdict(list)
            sizes: Counter[int | None] = Counter()

            def write(day: int | None) -> pa.RecordBatch:
                del sizes[day]
                return pa.RecordBatch.from_pylist([self.write_one(day, waiting.pop(day))], schema=FILES)

            for batch in rows(batches):
                for day, part in self._by_day(batch):
                    waiting[day].append(part)
                    sizes[day] += part.nbytes
                    if sizes[day] >= BYTES_PER_FILE:
                        yield write(day)
                # A replay may touch thousands of days.
                while sizes.total() >= 4 * BYTES_PER_FILE:
                    yield write(max(sizes, key=sizes.__getitem__))
            yield from map(write, list(waiting))

        return write_batches

    def _by_day(self, batch: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        if self.day_column is None:
            if batch.num_rows:
                yield None, batch
            return
        times = batch[self.day_column]
        if times.null_count:
            raise ValueError(f"{self.day_column} is null in {times.null_count} rows, so these have no day")
        days = times.cast(pa.int64()).to_numpy() // _DAY
        for day in np.unique(days).tolist():
            mine = days == day
            yield day, batch if mine.all() else batch.filter(pa.array(mine))

    def write_one(self, day: int | None, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
        """Write all rows to one file, which is a row of FILES; in memory are BYTES_PER_FILE of them at most."""
        folder = self.folder if day is None else f"{self.folder}/{self.partition}={np.datetime64(day, 'D')}"
        path, rows = f"{folder}/{self.stem}-{uuid4().hex}.parquet", 0

        def tables() -> Iterator[pa.Table]:
            nonlocal rows
            for table in in_tables(batches, BYTES_PER_FILE):
                rows += table.num_rows
                yield table.cast(self.schema)

        size = put(path, self.schema, tables())
        return {"path": path, "size": size, "rows": rows, "day": day}

    def discard(self) -> None:
        """Delete the files that were written for a commit that did not happen. If the store refuses, they stay: no
        table knows them."""
        try:
            self._discard()
        except (OSError, WritetimeError) as error:
            log.warning("uncommitted data files not deleted", folder=self.folder, names=f"{self.stem}-*", error=str(error))

    def _discard(self) -> None:
        """All of the table's files are listed, because the names of those that failed tasks wrote are not known."""
        if _is_in_a_store(self.folder):
            store, prefix = _store(self.folder)
            for info in list(store.list(f"{prefix}/")):
                if info.name.rpartition("/")[2].startswith(self.stem):
                    store.delete(info.name)
        else:
            for path in list(_local(self.folder).rglob(f"{self.stem}-*.parquet")):
                path.unlink(missing_ok=True)


def put(path: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write the tables as a Parquet file; returns its bytes."""
    if _is_in_a_store(path):
        store, name = _store(path)
        with tempfile.NamedTemporaryFile(dir=spill_folder(), suffix=".parquet") as file:
            _write_parquet(file.name, schema, tables)
            return store.put(name, Path(file.name)).size
    local = _local(path)
    local.parent.mkdir(parents=True, exist_ok=True)
    _write_parquet(str(local), schema, tables)
    return local.stat().st_size


def opened(path: str) -> pq.ParquetFile:
    """A Parquet file; one in a store is in memory as a whole."""
    if _is_in_a_store(path):
        store, name = _store(path)
        return pq.ParquetFile(io.BytesIO(store.read(name)))
    return _opened(_local(path))


def opened_in_part(path: str, size: int) -> pq.ParquetFile:
    """A Parquet file of that many bytes, for reading some of its columns: of one in a store, only these are
    fetched."""
    if _is_in_a_store(path):
        return pq.ParquetFile(pa.PythonFile(io.BufferedReader(_Remote(path, size)), mode="r"), pre_buffer=True)
    return _opened(_local(path))


def _opened(path: Path) -> pq.ParquetFile:
    """A local file. ObjectNotFound if it is gone from its folder, as from a bucket: that concerns its table, and an error of
    the disk does not."""
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError as error:
        if not path.parent.is_dir():
            raise
        raise ObjectNotFound("it is gone", operation="read a file of a table", obj=str(path), hint=_PUT_BACK) from error


class _Remote(io.RawIOBase):
    """An object of a store as a file that is read by ranges."""

    def __init__(self, path: str, size: int) -> None:
        self._store, self._name = _store(path)
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if self._at >= end:
            return 0
        data = self._store.read(self._name, start=self._at, end=end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def in_tables(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """The rows in tables of about so many bytes."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= most:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _store(url: str) -> tuple[Store, str]:
    """The store of a bucket, and the name in it."""
    bucket, name = parse_object(url)
    return open_store(bucket.url), name


def _is_in_a_store(path: str) -> bool:
    """Not a path, nor one as Hadoop (file:/lake) and people (file:///lake) write it."""
    return "://" in path and not path.startswith("file:")


def _local(path: str) -> Path:
    # A path that begins with two slashes would be another one.
    return Path("/" + path.removeprefix("file:").lstrip("/"))


def _write_parquet(path: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    # As Iceberg's writer: Zstandard, short decimals as integers, and no Arrow schema beside the field ids.
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        store_schema=False,
        store_decimal_as_integer=True,
        dictionary_pagesize_limit=_DICTIONARY,
        write_batch_size=_ROWS_AT_ONCE,
    ) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
