"""Planning as the DAGs do it: the last batch is archived first."""

from __future__ import annotations

from typing import Any

from writetime.pipeline import planner
from writetime.pipeline.archiver import archive_last
from writetime.pipeline.documents import Manifest
from writetime.storage.store import Store


def plan_ingest(store: Store, cluster: str, **about: Any) -> Manifest | None:
    archive_last(store, cluster)
    return planner.plan_ingest(store, cluster, **about)


def plan_replay(store: Store, cluster: str, **about: Any) -> Manifest | None:
    archive_last(store, cluster)
    return planner.plan_replay(store, cluster, **about)


def plan_maintain(store: Store, cluster: str, **about: Any) -> Manifest | None:
    archive_last(store, cluster)
    return planner.plan_maintain(store, cluster, **about)
