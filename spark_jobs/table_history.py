"""Which snapshot is a table as it was after a batch: `writetime history`.

Strategy: Iceberg keeps the snapshots of all branches in one list, and only those of main are the table's history. They are the
current one with those before it, as far as they are linked. Of what is kept from before a gap, only a commit that names its
batch is known to be main's: batches write nowhere else. The statement of docs/history.md goes by the same rules, for users
without this command."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.session import spark_session
from spark_jobs.sinks.iceberg import BATCH_PROPERTY, COMPLETE_PROPERTY, ROWS, STEP_PROPERTY, Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable, Kept
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError
from writetime.pipeline.documents import Document
from writetime.pipeline.segment_check import known_schema
from writetime.storage import open_store

_OPERATION: Final = "show the history of a table"


class State(Document):
    """A snapshot of a table's history. `batch`: the last batch in it, None if nobody knows; `has_rows`: that batch wrote rows
    of the table, and this is the table after it. `is_followed`: the next snapshot is based on this one, so that it is the table
    after all batches before that one's, too."""

    snapshot: int
    at: datetime
    batch: int | None = None
    has_rows: bool = False
    is_followed: bool = False
    complete_until: str | None = None

    @property
    def text(self) -> str:
        batch = "-" if self.batch is None else str(self.batch)
        until = f"  complete up to {self.complete_until}" if self.complete_until else ""
        return f"batch {batch:>8}  snapshot {self.snapshot:>20}  {self.at:%Y-%m-%d %H:%M:%S} UTC{until}"


class Found(Document):
    """The snapshot for a batch, and whether it is exactly the table after it."""

    snapshot: int | None
    exact: bool


def of_main(kept: Iterable[Kept], lineage: Iterable[Kept], logged: Collection[int]) -> list[Kept]:
    """The commits to main among those that are `kept`, the newest last. `lineage`: the current one with those before it;
    `logged`: what Iceberg remembers to have been current, also what was rolled back."""
    linked = {each.id for each in lineage}
    return sorted(
        (each for each in kept if each.id in linked or (BATCH_PROPERTY in each.summary and each.id not in logged)), key=lambda each: each.at
    )


def states(commits: Sequence[Kept]) -> list[State]:
    """The history that commits to main tell, the newest last."""
    found = list[State]()
    batch: int | None = None
    rows: int | None = None
    for at, each in enumerate(commits):
        if at and each.parent != commits[at - 1].id:
            # A snapshot between has expired.
            batch = rows = None
        if (number := each.summary.get(BATCH_PROPERTY)) is not None:
            batch = max(int(number), batch or 0)
            rows = max(int(number), rows or 0) if each.summary.get(STEP_PROPERTY) == ROWS else rows
        following = commits[at + 1] if at + 1 < len(commits) else None
        found.append(
            State(
                snapshot=each.id,
                at=each.at,
                batch=batch,
                has_rows=batch is not None and rows == batch,
                is_followed=following is None or following.parent == each.id,
                complete_until=each.summary.get(COMPLETE_PROPERTY),
            )
        )
    return found


def after(history: Sequence[State], batch: int) -> Found:
    """The snapshot that is the table after that batch."""
    known = [each for each in history if each.batch is not None and each.batch <= batch]
    if not known:
        return Found(snapshot=None, exact=False)
    last = known[-1]
    return Found(snapshot=last.snapshot, exact=last.is_followed or (last.has_rows and last.batch == batch))


def run(config: PipelineConfig, full_name: str, *, session: SparkSession | None = None) -> list[State]:
    """The history of a table's current rows, as far as its snapshots are kept. ConfigError if there is no such table."""
    store, cluster = open_store(config.bucket), config.cluster.name
    if config.catalog is None:
        raise ConfigError("`catalog` is missing", operation=_OPERATION, hint="Say in the pipeline's YAML where the tables live.")
    found = [table for table in known_schema(store, cluster).schema().tables.values() if table.full_name == full_name]
    spark = session or spark_session(config, f"writetime history {config.pipeline}")
    try:
        warehouse = Warehouse.of(config, store, spark)
        name = next((name for table in found if (name := warehouse.current_of(table)) is not None), None)
        if name is None:
            hint = "Write keyspace.table, as in CQL without quotes, of a table that a batch has written."
            raise ConfigError("there is no table of its rows", operation=_OPERATION, obj=full_name, hint=hint)
        held = IcebergTable(spark, name)
        held.refresh()
        return states(of_main(held.kept, held.lineage, held.logged))
    finally:
        if session is None:
            spark.stop()
