"""Up to when tables and topics are complete, and what holds it, for the status, the page, metrics and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from writetime.pipeline import watermark
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import HeldTable
from writetime.pipeline.planner import history, read_schema
from writetime.pipeline.publish_progress import complete_in_kafka, read_published
from writetime.storage import layout


@dataclass(frozen=True, slots=True)
class CompleteUntil:
    """`tables`: up to when all tables are complete but those in `held` (by label); `topics`: up to when all
    topics are. None: unknown. `nodes`: the nodes that hold it back most. `by`: the object that holds all
    tables."""

    tables: datetime | None
    topics: datetime | None
    nodes: list[layout.NodeName]
    held: Mapping[str, HeldTable]
    by: str | None

    @property
    def reason(self) -> str:
        """What holds it back, for people."""
        if self.by is not None:
            return f"held by {self.by}"
        return f"held by node {', '.join(f'{node.host_id} ({node.datacenter})' for node in self.nodes)}" if self.nodes else ""

    def to_document(self) -> dict[str, Any]:
        return {
            "tables": None if self.tables is None else self.tables.isoformat(),
            "topics": None if self.topics is None else self.topics.isoformat(),
            "nodes": [node.host_id for node in self.nodes],
            "held": {name: held.model_dump(mode="json") for name, held in self.held.items()},
            "by": self.by,
        }


def complete_until(batches: Batches) -> CompleteUntil | None:
    """None if nothing is known: no node has signed off, or no batch is sealed."""
    store, cluster = batches.store, batches.cluster
    sealed = history(store, cluster).sealed
    found = watermark.read(store, cluster, sealed)
    if sealed is None or not found.nodes:
        return None
    published = read_published(store, cluster)
    topics = complete_in_kafka(store, cluster, published) if published is not None and published.kafka else None
    known = read_schema(store, cluster, sealed.number).schema().tables if found.held else {}
    held = {known[table_id].label if table_id in known else str(table_id): each for table_id, each in found.held.items()}
    nodes = [layout.NodeName(*map(layout.unpart, path.split("/"))) for path in watermark.behind(found)]
    return CompleteUntil(found.until, topics, nodes, held, found.by)
