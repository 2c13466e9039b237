"""What maintenance came to, before and after: the state with its indexes, and each table of the warehouse. The archive's care is told by
`writetime.pipeline.archive_packing`. Knows neither Spark nor Lance: the state is counted by its objects."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import Field

from writetime.pipeline.documents import Document
from writetime.storage import layout
from writetime.storage.store import Store

_INDEXES: Final = "/_indices/"
"""The folder of a shard in which Lance keeps its indexes."""


class Size(Document):
    """Objects of the state and their bytes; those of its indexes apart."""

    objects: int = 0
    bytes: int = 0
    index_objects: int = 0
    index_bytes: int = 0


class Files(Document):
    """A table of the warehouse as it lies: data files with their bytes, files of deletes, snapshots."""

    data: int
    bytes: int
    deletes: int
    snapshots: int


class Tidied(Document):
    """A table by its name in the warehouse, before and after; `trouble`: why it was left as it is, "" = it was not."""

    name: str
    before: Files | None = None
    after: Files | None = None
    trouble: str = ""


class HeldBack(Document):
    """A table whose tombstones are kept beyond gc_grace because not all logs are in: those since `until`, for what `by` names (an object:
    a segment, or a node's facts), which keeps logs since `since`; purging would go up to `wanted`."""

    table: str
    by: str
    until: datetime
    wanted: datetime
    since: datetime

    @property
    def seconds(self) -> float:
        """By how much purging is behind."""
        return (self.wanted - self.until).total_seconds()


class Maintained(Document):
    """A run of maintenance. `shards`: looked at; `purged`: written anew, for something in them could be forgotten; `failed`: left as they
    are, for a reason that the log tells. `state`: before and after; the versions that the last two seals name are kept, so what a purge
    has saved shows after the next run. `swept`: bytes of parts of segments that have come whole. `held_back`: see `HeldBack`."""

    batch: int
    at: datetime
    shards: int
    purged: int
    failed: int
    before: Size
    after: Size
    swept: int
    tables: list[Tidied]
    held_back: list[HeldBack] = Field(default=[])


def size_of_state(store: Store, cluster: str) -> Size:
    """By a listing. `store`: that of the state."""
    objects = size = index_objects = index_size = 0
    for info in store.list(layout.states_prefix(cluster)):
        if _INDEXES in info.name:
            index_objects += 1
            index_size += info.size
        else:
            objects += 1
            size += info.size
    return Size(objects=objects, bytes=size, index_objects=index_objects, index_bytes=index_size)


def read_maintained(store: Store, cluster: str) -> Maintained | None:
    """What the last run has left; None if there was none."""
    return Maintained.read(store, layout.maintained(cluster))
