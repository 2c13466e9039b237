"""The identity of a pipeline, so that two pipelines do not write to each other's tables and topics.

Strategy: an object in the bucket, created once, holds a UUID. Every warehouse table has it (property
`writetime.pipeline`), and so has every partition of the progress topic; tables and topics without one
are claimed by the first pipeline that writes to them. Only the UUID counts:
names are for display, and a pipeline may be renamed. Batches have ids of their own (`Manifest.id`), which
distinguish batches of different chains with the same number, as after `batches/` was restored from a backup.
Does not know tables or topics.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from writetime.errors import ObjectNotFound
from writetime.pipeline.documents import Document
from writetime.pipeline.planner import read_manifest
from writetime.storage import layout, open_store
from writetime.storage.store import Store


class Owner(Document):
    """A pipeline, as recorded on its tables and topics."""

    cluster: str
    pipeline: str
    id: UUID

    def other(self, held: str | bytes | None) -> str | None:
        """The owner of an object with this text, if it is another pipeline; None if it has no owner. Unknown
        text counts as another owner."""
        if held is None:
            return None
        try:
            found: Any = json.loads(held)
            named, same = f"pipeline {found['pipeline']} of cluster {found['cluster']}", found["id"] == str(self.id)
        except (ValueError, KeyError, TypeError):
            return "somebody else"
        return None if same else named


def owner(store: Store, cluster: str, pipeline: str) -> Owner:
    """The pipeline of that cluster in the bucket; created on the first call."""
    name = layout.owner(cluster)
    return Owner.read(store, name) or Owner(cluster=cluster, pipeline=pipeline, id=uuid4()).create(store, name)


def id_of(store: Store, cluster: str, number: int) -> UUID | None:
    """The id of a batch; None if it has none, or its documents are deleted: a batch that old belongs to no
    newer chain."""
    try:
        return read_manifest(store, cluster, number).id
    except ObjectNotFound:
        return None


@lru_cache(maxsize=4096)
def batch_id(bucket: str, cluster: str, number: int, run: str) -> str | None:
    """The same as text, cached by workers for one `run`: they outlive it, and between two runs `batches/` may
    be put back from a backup."""
    found = id_of(open_store(bucket), cluster, number)
    return None if found is None else str(found)
