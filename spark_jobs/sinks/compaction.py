"""Compaction in a session: keeps the files of tables in bounds between two runs of maintenance.

Strategy: a session commits every few seconds, and each commit leaves a small file in every table that it
writes. After COMMITS batches with events of a table, the small files of its changes and of
its current rows are merged, and surplus snapshots expire. This happens between a batch's seal and its archive:
no batch is open then and none can be planned, so nobody else writes to the tables, and nothing that an open
batch looks for can expire. A second driver that is late anyway is rejected by Iceberg, or rejects the
compaction. Both are retried.

Commits are counted in memory. Each session counts once from the snapshots of a table how many there were
before it. A failure is logged and left to maintenance. Knows which tables a batch has written; must not know
how rows get there.
"""

from __future__ import annotations

import time
from typing import Final

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.sinks.iceberg_table import IcebergTable, Kept
from spark_jobs.sinks.table_maintenance import merge_small, thin
from spark_jobs.spark_errors import why
from writetime.cassandra.schema.model import Table
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import read_schema
from writetime.storage.store import Store

log = structlog.get_logger()

COMMITS = 40
"""Batches with events of a table after which its small files are merged."""
_SECONDS: Final = 5.0
"""After which the next table has to wait for the next batch."""


class Compaction:
    """The compaction of one session. `commits_left`: per table, how many more batches with its events may be
    committed until it is looked at."""

    def __init__(self, config: PipelineConfig, store: Store, spark: SparkSession) -> None:
        self._config, self._store, self._spark = config, store, spark
        self.commits_left: dict[str, int] = {}

    def due(self, sealed: Sealed) -> list[str]:
        """Count the batch, and give the tables to look at, by their labels, the longest overdue first."""
        for account in sealed.accounting:
            if account.events:
                self.commits_left[account.table] = self.commits_left.get(account.table, 1) - 1
        late = {table: left for table, left in self.commits_left.items() if left <= 0}
        return sorted(late, key=lambda table: late[table])

    def run(self, sealed: Sealed, due: list[str]) -> None:
        """Compact those of the tables that need it, for some seconds, and at least one."""
        begun = time.monotonic()
        captured = read_schema(self._store, self._config.cluster.name, sealed.number).captured()
        tables = {table.label: table for table in captured}
        warehouse = Warehouse.of(self._config, self._store, self._spark)
        for label in due:
            self.commits_left[label] = compact_if_due(warehouse, tables[label]) if label in tables else COMMITS
            if time.monotonic() - begun >= _SECONDS:
                return


def compact_if_due(warehouse: Warehouse, table: Table) -> int:
    """Compact the table's changes and current rows if they got so many commits since the last time; returns
    how many more they may get until the next look."""
    spark = warehouse.spark
    try:
        held = {name: IcebergTable(spark, name) for name in (warehouse.changes_of(table), warehouse.current_of(table)) if name}
        since = max((commits_since_compaction(each.lineage) for each in held.values()), default=0)
        if since < COMMITS:
            return COMMITS - since
        for name in held:
            begun = time.monotonic()
            merge_small(spark, name)
            thin(spark, name, warehouse.layout)
            log.info("small files merged", table=name.replace("`", ""), commits=since, seconds=round(time.monotonic() - begun, 1))
    except (PySparkException, Py4JError) as error:
        log.warning("small files not merged", table=table.label, error=why(error))
    return COMMITS


def commits_since_compaction(lineage: list[Kept]) -> int:
    """Number of commits above the last compaction that is kept."""
    operations = [each.summary.get("operation") for each in lineage]
    return operations.index("replace") if "replace" in operations else len(operations)
