"""Data files of all tables of a batch, written by one Spark job before anything is committed, and the positions of
the rows that they replace, looked up by a second one.

Strategy: a job of Spark costs about a tenth of a second before it does anything, whatever it does. So a task gets the
events of several tables, a table at a time, makes them pages, and writes changes and current rows from these
(`writing`): no page travels through the JVM, and each is made once. A table with many events has tasks of its own; all
others share about as many tasks as run at once, so that a table has one new file (`shared_by_tables`). Keys that were
written are then looked up in the files of all tables (`looking_up`). Must not know how tables are created or
committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import tee, zip_longest
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.failures import TablesFailed, concerning, reporting
from spark_jobs.meter import Made
from spark_jobs.sinks.data_files import FileTarget
from spark_jobs.sinks.row_positions import DELETES, KEYED, HeldFile, Lookup
from spark_jobs.stages.arrow_runs import by_table
from spark_jobs.stages.event_pages import PAGES, Pages, page_row, pages
from spark_jobs.stages.scan import Batches

CHANGES: Final = "changes"
CURRENT: Final = "current"
EMITTED: Final = "emitted"
REJECTED: Final = "rejected"
WRITTEN: Final = pa.schema([("table_id", pa.binary()), ("part", pa.string()), *KEYED])
"""A row of KEYED of a table's CHANGES or CURRENT rows; or, EMITTED: how many of its events the stream tells (`rows`);
or, REJECTED: why the table's files cannot be written (`path`)."""
FOUND: Final = pa.schema([("table_id", pa.binary()), *DELETES])
"""A row of DELETES of a table; or, without `of`: why its keys cannot be looked up (`path`)."""
EVENTS_PER_TASK: Final = 20_000
_FILE: Final = 200
"""Writing a file costs about as much as so many events."""

T = TypeVar("T")
PageRows = Callable[[Pages], Batches]
"""Makes rows of pages: of the table, or of what was written of it."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of tables, which tasks make of the rows of `source`: `made` turns those of a table into pages. The source
    has a column `table_id`. `tables`: those whose events are meant, None: all; `tasks`: how many tasks make them,
    None: as many as partitions; `is_sorted`: the events of each table are one after the other."""

    source: DataFrame
    made: Callable[[Batches], Pages]
    tables: tuple[bytes, ...] | None = None
    tasks: int | None = None
    is_sorted: bool = True

    @classmethod
    def of_pages(cls, frame: DataFrame) -> Events:
        """Events that are there already, a frame of PAGES."""
        return cls(frame, pages)

    def mapped(self, function: Made, columns: StructType) -> DataFrame:
        """A frame with these columns, which a function for `mapInArrow` makes of the rows of the source."""
        rows = self.source if self.tables is None else self.source.filter(_is_one_of(self.tables))
        # Spark's order of equal keys is not that of the rows, which matters.
        rows = rows if self.is_sorted else rows.withColumn("place", F.monotonically_increasing_id())
        rows = rows if self.tasks is None else rows.coalesce(self.tasks)
        rows = rows if self.is_sorted else rows.sortWithinPartitions("table_id", "place").drop("place")
        return rows.mapInArrow(function, schema=columns)

    def frame(self, metered: Callable[[Made], Made]) -> DataFrame:
        """A frame of PAGES."""
        made = self.made

        def packed(batches: Batches) -> Batches:
            for table_id, run in by_table(batches):
                with reporting(table_id):
                    for page in made(run):
                        yield pa.RecordBatch.from_pylist([page_row(table_id, page)], schema=PAGES)

        return self.mapped(metered(packed), from_arrow_schema(PAGES))

    def rows(self, table: bytes, rows: PageRows, columns: StructType, metered: Callable[[Made], Made]) -> DataFrame:
        """A frame of rows of one table."""
        made = self.made
        return replace(self, tables=(table,)).mapped(metered(lambda batches: rows(made(batches))), columns)

    def among(self, tables: Mapping[bytes, T]) -> dict[bytes, T]:
        """What is about the tables of these events."""
        return dict(tables) if self.tables is None else {table: tables[table] for table in self.tables}

    def shared_by_tables(self, counts: Mapping[bytes, int], parallelism: int) -> list[Events]:
        """The events of these tables by task or tasks. `counts`: events by table."""
        large = [table for table, count in counts.items() if count >= EVENTS_PER_TASK]
        alone = [replace(self, tables=(table,), tasks=tasks_of(counts[table])) for table in large]
        small = _in_groups({table: count for table, count in counts.items() if table not in large}, parallelism)
        return [*alone, *(replace(self, tables=tuple(tables), tasks=1, is_sorted=len(tables) == 1) for tables in small)]


def tasks_of(events: int) -> int:
    """How many tasks make so many events: starting one costs more than converting few events."""
    return 1 + events // EVENTS_PER_TASK


def _is_one_of(tables: Sequence[bytes]) -> Any:
    return F.col("table_id").isin([bytearray(table) for table in tables])


def _in_groups(counts: Mapping[bytes, int], parallelism: int) -> list[list[bytes]]:
    """Tables by task, with about as many events each."""
    tasks = min(len(counts), max(parallelism, tasks_of(sum(counts.values()))))
    groups: list[list[bytes]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks
    for table, count in sorted(counts.items(), key=lambda item: -item[1]):
        least = sizes.index(min(sizes))
        groups[least].append(table)
        sizes[least] += count + _FILE
    return groups


# --- in tasks


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """What a task writes of one table. `parts`: by CHANGES and CURRENT, what writes files of pages and returns rows of
    KEYED; `metered`: what the work for this table is wrapped in. It is sent to executors."""

    parts: Mapping[str, PageRows] = field(default_factory=dict)
    metered: Callable[[Made], Made] = lambda made: made

    def written(self, table_id: bytes, pages: Pages) -> Batches:
        """Write the pages; rows of WRITTEN. Each page is made once: what one part has not read yet waits, a file's
        worth of pages at most."""
        emitted = 0

        def counted() -> Pages:
            nonlocal emitted
            for page in pages:
                emitted += page.num_rows - page["ordinal"].null_count
                yield page

        each = tee(counted(), max(1, len(self.parts)))
        parts = [_of_part(table_id, name, write(some)) for (name, write), some in zip(self.parts.items(), each, strict=False)]
        for found in zip_longest(*parts):
            yield from (batch for batch in found if batch is not None)
        # If nothing is written they are counted all the same.
        deque(each[-1], maxlen=0)
        yield _noted(table_id, EMITTED, pa.RecordBatch.from_pylist([{"rows": emitted}], schema=KEYED))


def _of_part(table_id: bytes, part: str, batches: Batches) -> Batches:
    return (_noted(table_id, part, batch) for batch in batches)


def writing(tables: Mapping[bytes, TaskFiles], made: Callable[[Batches], Pages]) -> Made:
    """A function for `mapInArrow` from the rows of events, each table's one after the other, to WRITTEN."""

    def write(batches: Batches) -> Batches:
        for table_id, run in by_table(batches):
            try:
                with concerning(table_id):
                    yield from _of_table(tables.get(table_id, TaskFiles()), table_id, made)(run)
            except TablesFailed as error:
                reasons = [{"path": each.reason} for each in error.refused]
                yield _noted(table_id, REJECTED, pa.RecordBatch.from_pylist(reasons, schema=KEYED))

    return write


def _of_table(table: TaskFiles, table_id: bytes, made: Callable[[Batches], Pages]) -> Made:
    return table.metered(lambda run: table.written(table_id, made(run)))


def _noted(table_id: bytes, part: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of FILES or KEYED as rows of WRITTEN."""
    about = {"table_id": table_id, "part": part}

    def column(field: pa.Field) -> Any:
        if field.name in about:
            return pa.repeat(pa.scalar(about[field.name], field.type), rows.num_rows)
        return rows[field.name] if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in WRITTEN], schema=WRITTEN)


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """Finds a table's rows with the keys of a batch, and writes delete files to the target. It is sent to executors."""

    lookup: Lookup
    target: FileTarget
    metered: Callable[[Made], Made]

    def found(self, table_id: bytes, file: HeldFile) -> Batches:
        """Rows of FOUND."""

        def look_up(_: Batches) -> Batches:
            if (deleted := self.lookup.written(self.target, file)) is not None:
                yield pa.RecordBatch.from_pylist([{"table_id": table_id, **deleted}], schema=FOUND)

        return self.metered(look_up)(iter(()))


def looking_up(lookups: Mapping[bytes, KeyLookup], shares: Sequence[Sequence[tuple[bytes, HeldFile]]]) -> Made:
    """A function for `mapInArrow` from numbers of shares to FOUND."""

    def look_up(numbers: Batches) -> Batches:
        for number in (number for batch in numbers for number in batch["id"].to_pylist()):
            for table_id, file in shares[number]:
                try:
                    with concerning(table_id):
                        yield from lookups[table_id].found(table_id, file)
                except TablesFailed as error:
                    reasons = [{"table_id": table_id, "path": each.reason} for each in error.refused]
                    yield pa.RecordBatch.from_pylist(reasons, schema=FOUND)

    return look_up
