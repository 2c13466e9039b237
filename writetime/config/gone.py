"""Keys that a configuration does not have, though a reader may expect them, and what is there instead.

A key that is not known is refused anyway; for these the message says what to do. Knows the paths of keys only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SNAPSHOTS: Final = "the newest 20 snapshots stay, and above 1,000 history becomes coarser: see `warehouse.keep_snapshots_days`"
_FOLLOWS_SEGMENTS: Final = "it follows from `archive.keep_days`"
INSTEAD: Final = {
    "airflow.job_hours": "a job is ended after 24 hours",
    "airflow.watch.settings": "settings by which a node drops writes always alarm",
    "archive.keep_batches_days": _FOLLOWS_SEGMENTS,
    "archive.keep_ledger_days": _FOLLOWS_SEGMENTS,
    "archive.keep_reports_days": "reports go after 30 days",
    "node.ship.filler": "the shipper never writes to a node",
    "spark.shuffle_partitions": "write `spark.sql.shuffle.partitions` in `spark.conf`",
    "warehouse.compact": "maintenance always merges small files",
    "warehouse.compact_commits": "a session merges the small files of a table after 40 batches with events of it",
    "warehouse.keep_orphans_days": "files that no snapshot has go after 3 days, unless the table has `gc.enabled=false`",
    "warehouse.keep_snapshots": _SNAPSHOTS,
    "warehouse.most_snapshots": _SNAPSHOTS,
    "warehouse.overflow": "a value that its type does not hold rejects the table: choose a wider type, or `text`",
}


def unknown(path: Sequence[str | int]) -> str:
    """Why a key is refused."""
    instead = INSTEAD.get(".".join(map(str, path)))
    return "is not a known key" if instead is None else f"is not a known key: {instead}"
