"""Who a pipeline is, so that two of them do not take each other's tables and topics for their own.

Strategy: an object in the bucket, made once, holds a UUID. It stands on every warehouse table (property `writetime.pipeline`) and in every
partition of the progress topic; what has none yet, as a version before this one made it, is adopted by the first that writes to it. The
UUID is what counts: names are for people, and a pipeline may be renamed. Batches have ids of their own (`Manifest.id`), which tell a batch
from one of another chain that has its number, as after `batches/` was put back from a backup. Knows no table and no topic.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import Document
from writetime.pipeline.planner import read_manifest
from writetime.storage import layout, open_store
from writetime.storage.store import Store


class Owner(Document):
    """A pipeline, as it stands on what belongs to it."""

    cluster: str
    pipeline: str
    id: UUID

    def other(self, held: str | bytes | None) -> str | None:
        """Whose a thing is that carries this text, if it is not this pipeline's; None of what nobody has claimed. Text that is none of ours
        is somebody's."""
        if held is None:
            return None
        try:
            found: Any = json.loads(held)
            named, same = f"pipeline {found['pipeline']} of cluster {found['cluster']}", found["id"] == str(self.id)
        except (ValueError, KeyError, TypeError):
            return "somebody else"
        return None if same else named


def owner(store: Store, cluster: str, pipeline: str) -> Owner:
    """The pipeline of that cluster in the bucket; made up the first time."""
    name = layout.owner(cluster)
    made = Owner(cluster=cluster, pipeline=pipeline, id=uuid4())
    found = Owner.read(store, name)
    if found is None:
        try:
            store.put(name, made.to_bytes(), if_generation=0)
            return made
        except PreconditionFailed:
            found = Owner.model_validate_json(store.read(name))
    return found


def id_of(store: Store, cluster: str, number: int) -> UUID | None:
    """The id of a batch; None if it has none, or its documents have been pruned: one that old is of no chain that began since."""
    try:
        return read_manifest(store, cluster, number).id
    except ObjectNotFound:
        return None


@lru_cache(maxsize=4096)
def batch_id(bucket: str, cluster: str, number: int) -> str | None:
    """The same as text, remembered by workers."""
    found = id_of(open_store(bucket), cluster, number)
    return None if found is None else str(found)
