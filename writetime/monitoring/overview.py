"""One look at the bucket: what the status, the page and `cdc_watch` decide by, read once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from writetime.monitoring.complete_until import CompleteUntil, complete_until
from writetime.monitoring.nodes import RingStatus, ring, ring_with_late_nodes
from writetime.monitoring.tables import TablesStatus, tables
from writetime.pipeline.batch_history import WINDOW, Batches
from writetime.pipeline.sessions import SessionState, read_state


@dataclass(frozen=True, slots=True)
class Overview:
    """Nodes and batches, tables, up to when they are complete (None: unknown), and the streaming session (None:
    none has run)."""

    ring: RingStatus
    tables: TablesStatus
    until: CompleteUntil | None
    session: SessionState | None

    def with_late_nodes(self, batches: Batches) -> Overview:
        """With as many batches as it takes to tell since when a node is silent."""
        return replace(self, ring=ring_with_late_nodes(batches, found=self.ring))


def overview(batches: Batches, *, last: int = WINDOW, now: datetime | None = None) -> Overview:
    """By the last batches."""
    found = ring(batches, last=last, now=now)
    about = tables(batches, last=last, now=now, nodes=found.nodes)
    return Overview(found, about, complete_until(batches), read_state(batches.store, batches.cluster))
