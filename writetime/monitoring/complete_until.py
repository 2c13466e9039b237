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
from writetime.pipeline.publish_progress import topics_complete_until
from writetime.storage import layout


@dataclass(frozen=True, slots=True)
class CompleteUntil:
    """`tables`: up to when all tables are complete but those in `held` (by label); `topics`: up to when all
    topics are. None: unknown. `all_tables`: up to when those in `held` are, too. `nodes`: the nodes that hold it
    back most; `signed`: up to when the log of each node is in. `by`: the object that holds all tables."""

    tables: datetime | None
    all_tables: datetime | None
    topics: datetime | None
    nodes: list[layout.NodeName]
    signed: Mapping[layout.NodeName, datetime | None]
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
    topics = topics_complete_until(store, cluster, sealed.number)
    known = read_schema(store, cluster, sealed.number).schema().tables if found.held else {}
    held = {known[table_id].label if table_id in known else str(table_id): each for table_id, each in found.held.items()}
    names = {path: layout.NodeName(*map(layout.unpart, path.split("/"))) for path in found.nodes}
    signed = {names[path]: at for path, at in found.nodes.items()}
    return CompleteUntil(found.until, found.of_all, topics, [names[path] for path in watermark.behind(found)], signed, held, found.by)
