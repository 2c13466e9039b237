"""A batch without the tables that fail in it: it goes on for the others, and each of these waits for an operator.

Strategy: what fails for tables alone (`failures.TablesFailed`, from the driver or from a worker) is recorded for all runs of
the batch (`pinned.add_verdict`), and the batch begins anew without them: their updates are quarantined, and what an
earlier attempt committed of them is taken back by the next batch (`spark_jobs.sinks.voids`). A worker that dies says
nothing about why. If it dies twice, halves of the tables are tried without a commit until the table that kills it is
alone; if no half does, it is the machine. Publishing looks for such a table in the same way.

Must not know what a batch consists of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog
from pyspark.sql import SparkSession

from spark_jobs.failures import is_lost_worker, reported_by
from writetime.cassandra.schema.model import Table
from writetime.pipeline.documents import Manifest, RefusedTable, Sealed
from writetime.pipeline.pinned import VerdictAdded, add_verdict
from writetime.storage.store import Store

log = structlog.get_logger()

DEATHS: Final = 2
"""After so many deaths of workers a table is looked for."""
_KILLS: Final = "a worker that works on it dies, each time: it runs out of memory or crashes"


@dataclass(slots=True)
class Attempts:
    """What this process knows of the attempts at a batch. `tables`: those that the last one captured."""

    tables: Sequence[Table] = ()

    def named(self, rejected: RefusedTable) -> RefusedTable:
        """The same with the table's label: a worker may only know its id."""
        labels = {table.id: table.label for table in self.tables}
        return rejected.model_copy(update={"table": labels.get(rejected.table_id, rejected.table)})


def without_rejected(
    run: Callable[[], Sealed],
    attempt: Callable[[Collection[Table]], None],
    attempts: Attempts,
    store: Store,
    manifest: Manifest,
    spark: SparkSession,
) -> Sealed:
    """Run the batch, and again without the tables that fail, which are recorded for all its runs. `attempt` does the
    same work for some of the tables, without commits."""
    found: set[UUID] = set()
    deaths = 0
    while True:
        try:
            return run()
        except VerdictAdded as error:
            log.warning("another run rejected a table, this run rejects it too", batch=manifest.number, **error.as_dict())
        except Exception as error:
            rejected = reported_by(error)
            if is_lost_worker(error):
                deaths += 1
                if deaths < DEATHS:
                    log.warning("a worker died, the batch begins anew", batch=manifest.number, error=str(error)[:200])
                elif killer := killing(attempt, attempts.tables):
                    rejected, deaths = killer, 0
                else:
                    raise
            elif not rejected or found.issuperset(table.table_id for table in rejected):
                raise
            found.update(table.table_id for table in rejected)
            for table in map(attempts.named, rejected):
                log.error("table rejected, the batch goes on without it", batch=manifest.number, **table.model_dump(mode="json"))
                add_verdict(store, manifest, table)
        spark.catalog.clearCache()


def killing(attempt: Callable[[Collection[Table]], None], tables: Sequence[Table]) -> list[RefusedTable]:
    """The first table of which alone a worker dies, by halves; none if there is none: together they may be too much for
    the machine."""
    if not tables or not _kills(attempt, tables):
        return []
    if len(tables) == 1:
        return [RefusedTable(table=tables[0].label, table_id=tables[0].id, reason=_KILLS)]
    middle = len(tables) // 2
    return killing(attempt, tables[:middle]) or killing(attempt, tables[middle:])


def _kills(attempt: Callable[[Collection[Table]], None], tables: Sequence[Table]) -> bool:
    """Whether a worker dies of the work for these tables. What else fails is found when the batch runs."""
    log.warning("tables tried without others", tables=[table.label for table in tables])
    try:
        attempt(tables)
    except Exception as error:
        if is_lost_worker(error):
            return True
        if not reported_by(error):
            raise
    return False
