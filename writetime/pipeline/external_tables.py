"""What is known of the pipeline's external tables in BigQuery: the document
`published/<cluster>.bigquery.json`.

It is a report and a hint that saves requests: the pointer itself is in BigQuery. Knows no service.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from writetime.pipeline.documents import Document
from writetime.storage import layout
from writetime.storage.store import Store


class ExternalTable(Document):
    """An external table of the Cassandra table `table`. `location`: the metadata file that it names since
    `at`; null: it was never pointed at one. `error`: why it does not name the newest one, since
    `failing_since`."""

    table: str = ""
    location: str | None = None
    at: datetime | None = None
    error: str = ""
    failing_since: datetime | None = None


class ExternalTables(Document):
    """The external tables by their names in BigQuery, `dataset.table`. `voided`: the batches without effect,
    when all tables were looked at last."""

    tables: dict[str, ExternalTable] = Field(default_factory=dict)
    voided: list[int] = Field(default_factory=list)

    @property
    def failing(self) -> dict[str, ExternalTable]:
        return {name: table for name, table in self.tables.items() if table.error}


def read_external_tables(store: Store, cluster: str) -> ExternalTables | None:
    """None if the pipeline never had external tables."""
    return ExternalTables.read(store, layout.external_tables(cluster))
