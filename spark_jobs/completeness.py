"""Writes the warehouse table `_writetime.completeness`: up to when each captured table is complete, for tables
with nothing new too.

Strategy: a write is a Spark job of a second or two, and T advances every few seconds, so a session writes at
most once a minute after a batch, and every five minutes otherwise. The times are in the bucket: a failure is
only logged, and the next write catches up."""

from __future__ import annotations

import time
from typing import Final

import structlog
from pyspark.sql import SparkSession

from spark_jobs.sinks.iceberg import Warehouse
from spark_jobs.spark_errors import why
from writetime.config.pipeline import PipelineConfig
from writetime.pipeline.complete_tables import CompleteTable, complete_tables
from writetime.storage.store import Store

log = structlog.get_logger()

_AFTER_BATCH: Final = 60.0
_WITHOUT_BATCH: Final = 300.0
"""Seconds between two writes, if a batch was sealed since the last one, and if none was."""


class CompletenessWriter:
    """Writes the table for one pipeline."""

    def __init__(self, config: PipelineConfig, store: Store, spark: SparkSession) -> None:
        self._config, self._store, self._spark = config, store, spark
        self._last = time.monotonic()
        self._batch = 0
        self._written: list[CompleteTable] = []

    def write_if_due(self, batch: int) -> None:
        """`batch`: the last one that was sealed."""
        pause = _WITHOUT_BATCH if batch == self._batch else _AFTER_BATCH
        if time.monotonic() - self._last >= pause:
            self.write(batch)

    def finish(self, batch: int) -> None:
        """Write what is not written yet of that batch and those before it."""
        if batch != self._batch:
            self.write(batch)

    def write(self, batch: int) -> None:
        """Write the table if something has changed. A failure is only logged."""
        self._last, self._batch = time.monotonic(), batch
        try:
            if self._config.catalog is None:
                return
            found = complete_tables(self._store, self._config.cluster.name, self._config.tables.captures)
            if found and found != self._written:
                Warehouse(self._spark, self._config.catalog.name).write_completeness(found)
                self._written = found
        except Exception as error:  # noqa: BLE001 - no batch and no session fails because of it
            log.error("failed to write the completeness table", batch=batch, error=why(error))
