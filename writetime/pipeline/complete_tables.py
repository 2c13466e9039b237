"""Up to when each captured table of a cluster is complete, as rows of the warehouse table
`_writetime.completeness`. Does not know Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from writetime.pipeline import watermark
from writetime.pipeline.planner import history, read_schema
from writetime.pipeline.publish_progress import topics_complete_until
from writetime.storage.store import Store


class CompleteTable(NamedTuple):
    """A table of a cluster, and up to when its changes, its current rows and its topic are complete; None:
    unknown. `batch`: the last batch that the times are about."""

    cluster: str
    table: str
    table_id: str
    changes_until: datetime | None
    current_until: datetime | None
    kafka_until: datetime | None
    batch: int

    def not_before(self, row: dict[str, Any] | None) -> CompleteTable:
        """The same, but no value is lower than that of the stored row: another driver may have written it
        since."""
        if row is None:
            return self
        fields = ("changes_until", "current_until", "kafka_until", "batch")
        return self._replace(**{field: _greatest(getattr(self, field), row[field]) for field in fields})


def complete_tables(store: Store, cluster: str, captures: Callable[[str], bool]) -> list[CompleteTable]:
    """The existing captured tables, as of the last sealed batch; empty while nothing is known."""
    sealed = history(store, cluster).sealed
    found = watermark.read(store, cluster, sealed)
    if sealed is None or found.until is None:
        return []
    in_kafka = topics_complete_until(store, cluster, sealed.number)
    tables = [table for table in read_schema(store, cluster, sealed.number).captured(captures) if not table.dropped]
    # A batch writes changes and current rows before it is sealed.
    times = {table.id: found.of(table.id) for table in tables}
    return [
        CompleteTable(cluster, table.full_name, str(table.id), times[table.id], times[table.id], in_kafka, found.batch) for table in tables
    ]


def _greatest(one: Any, other: Any) -> Any:
    return max((value for value in (one, other) if value is not None), default=None)
