"""Replace rows of a table by their positions: which rows of its files have the keys of a batch, found with
Arrow, and position delete files for them.

Strategy: a MERGE plans, scans and joins the table's rows in Spark. To replace rows whose keys are known, only
the key columns need to be read. First, tasks write the batch's rows to data files and return their keys
(`written_with_keys`). Then, tasks look these keys up in the files of the snapshot that the batch is based on,
each in its share of them, and write position deletes (`Lookup.written`). `batch_files` has the jobs. A data file
has one delete file of its own: a new one takes the place of the former. The driver commits both at once, and
Iceberg refuses if a file was replaced, or rows were added or deleted, in between (`IcebergTable.replace_rows`).
Sources: the Iceberg table specification (position delete files, reserved field ids). Must not know what the rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.sinks.data_files import FILES, FileTarget, opened_in_part, put
from spark_jobs.sinks.field_ids import FIELD_ID, columns_by_id, columns_of, without_ids
from spark_jobs.stages.arrow_runs import whole
from spark_jobs.stages.event_pages import texts
from spark_jobs.stages.row_packs import pack, unpacked
from spark_jobs.stages.scan import Batches

KEYED: Final = FILES.append(pa.field("keys", pa.binary()))
"""A row of FILES, or the keys of the task's rows, packed."""
DELETES: Final = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("of", pa.string()), ("replaced", pa.list_(pa.string()))]
)
"""A position delete file: its location, bytes, rows, the data file that it deletes them from, and the delete
files whose rows it has too."""
MAX_KEY_BYTES: Final = 64 << 20
"""Keys of a batch that the driver sends to all tasks; for more of them a MERGE is the better way."""
ROWS_PER_TASK: Final = 4 << 20
_ROWS: Final = 1 << 16
DELETED_FROM: Final = 2147483546
"""Field id of the data file's location in position delete files."""
_POSITIONS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(DELETED_FROM).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: b"2147483545"}),
    ]
)


T = TypeVar("T")
Positions = np.ndarray[Any, np.dtype[np.int64]]


class HeldFile(NamedTuple):
    """A data file of a snapshot: its location, bytes and rows, and the position delete files that may hold
    some of them, with their bytes."""

    path: str
    size: int
    rows: int
    deletes: tuple[tuple[str, int], ...]


def can_look_up(keys: pa.Schema) -> bool:
    """Whether equal values of these columns are equal rows. Floats and maps are compared otherwise than
    Cassandra does, and a nested first column is found slowly."""
    return not any(_holds(each.type) for each in keys) and not pa.types.is_nested(keys[0].type)


def _holds(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind) or pa.types.is_floating(kind):
        return True
    return any(_holds(kind.field(at).type) for at in range(kind.num_fields))


def written_with_keys(
    target: FileTarget, rows: Callable[[Batches], Batches], keys: Sequence[str], kept: Callable[[pa.RecordBatch], Batches]
) -> Callable[[Batches], Batches]:
    """A function to KEYED: it writes what `kept` leaves of the rows, and returns the keys of all, if there are
    `keys`."""

    def write_batches(batches: Batches) -> Batches:
        found: list[pa.RecordBatch] = []

        def noted() -> Iterator[pa.RecordBatch]:
            for batch in rows(batches):
                if keys:
                    found.append(batch.select(keys))
                yield from kept(batch)

        for files in target.written(lambda given: given)(noted()):
            yield files.append_column(KEYED.field("keys"), pa.nulls(files.num_rows, pa.binary()))
        if any(batch.num_rows for batch in found):
            yield pa.RecordBatch.from_pylist([{"keys": pack(whole(found))}], schema=KEYED)

    return write_batches


class Deleted(NamedTuple):
    """Positions of a data file's deleted rows: those in delete files of its own, which are named, and those in
    files that it shares with others."""

    own: Positions
    shared: Positions
    own_files: list[str]


def deleted_before(data_file: str, deletes: Iterable[tuple[str, int]]) -> Deleted:
    """What a data file's delete files hold of it. `deletes`: as in `HeldFile`."""
    own, shared = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    own_files = []
    for path, size in deletes:
        with opened_in_part(path, size) as content:
            rows = content.read(["file_path", "pos"])
        mine = rows.filter(pc.equal(rows["file_path"], data_file))["pos"].to_numpy()
        is_own = len(mine) == rows.num_rows
        (own if is_own else shared).append(mine)
        own_files += [path] if is_own else []
    return Deleted(np.concatenate(own), np.concatenate(shared), own_files)


@dataclass(frozen=True)
class Lookup:
    """Looks keys up in files. `columns`: the table's key columns with field ids; `packs`: the keys, packed.
    It is sent to executors."""

    columns: pa.Schema
    packs: Sequence[bytes]

    @cached_property
    def _keys(self) -> pa.RecordBatch:
        return whole([batch.cast(without_ids(self.columns)) for batch in unpacked(self.packs)])

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset(texts(self._keys, self.columns.names))

    def written(self, target: FileTarget, file: HeldFile) -> dict[str, Any] | None:
        """Write the file's new delete file, a row of DELETES; None if it needs none."""
        places, replaced = self.deleted(file)
        return _write(target, file, places, replaced) if places.size else None

    def deleted(self, file: HeldFile) -> tuple[Positions, list[str]]:
        """The positions for the file's new delete file, ascending: of rows with these keys, and those of its
        former delete files, which are named. None if it has no such rows that are not deleted yet."""
        places = self._places(file)
        if not places.size:
            return places, []
        former = deleted_before(file.path, file.deletes)
        fresh = np.setdiff1d(places, np.concatenate([former.own, former.shared]))
        return (np.union1d(fresh, former.own), former.own_files) if fresh.size else (fresh, [])

    def _places(self, file: HeldFile) -> Positions:
        """The positions of rows with these keys."""
        found: list[Any] = []
        first = 0
        with opened_in_part(file.path, file.size) as content:
            held = columns_of(content.schema_arrow, self.columns)
            for batch in content.iter_batches(_ROWS, columns=held.names):
                rows = columns_by_id(batch, held, self.columns)
                found.append(first + self._matches(rows))
                first += batch.num_rows
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _matches(self, rows: pa.RecordBatch) -> Any:
        flat = [each.name for each in self.columns if not pa.types.is_nested(each.type)]
        may_be = reduce(pc.and_, (pc.is_in(rows[name], self._keys[name]) for name in flat))
        places = np.flatnonzero(may_be.to_numpy(zero_copy_only=False))
        if len(self.columns) == 1 or not places.size:
            return places
        some = rows.take(pa.array(places))
        return places[[text in self._texts for text in texts(some, self.columns.names)]]


def _write(target: FileTarget, file: HeldFile, places: Positions, replaced: list[str]) -> dict[str, Any]:
    path = f"{target.folder}/{target.stem}-{uuid4().hex}-deletes.parquet"
    rows = pa.Table.from_arrays([pa.repeat(pa.scalar(file.path), places.size), pa.array(places)], schema=_POSITIONS)
    return {"path": path, "size": put(path, _POSITIONS, [rows]), "rows": places.size, "of": file.path, "replaced": replaced}


def in_shares(files: Iterable[tuple[T, HeldFile]], parallelism: int) -> list[list[tuple[T, HeldFile]]]:
    """The files, each with what it belongs to, by task: so many tasks if there are as many files, and more if these
    have many rows."""
    held = sorted(files, key=lambda each: -each[1].rows)
    tasks = min(len(held), max(parallelism, -(-sum(file.rows for _, file in held) // ROWS_PER_TASK)))
    shares: list[list[tuple[T, HeldFile]]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks
    for each in held:
        least = sizes.index(min(sizes))
        shares[least].append(each)
        # Opening a file costs about as much as reading that many keys.
        sizes[least] += each[1].rows + _ROWS
    return shares
