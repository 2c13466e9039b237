"""The result of maintenance, before and after: the state with its indexes, and each table of the warehouse.
For the archive see `writetime.pipeline.archive_packing`. Does not know Spark or Lance: the state is counted
by its objects.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import Field

from writetime.pipeline.documents import Document
from writetime.storage import layout
from writetime.storage.store import Store

_INDEXES: Final = "/_indices/"
"""The folder of a shard's Lance indexes."""


class Size(Document):
    """Objects of the state and their bytes; those of its indexes separately."""

    objects: int = 0
    bytes: int = 0
    index_objects: int = 0
    index_bytes: int = 0


class Files(Document):
    """The files of a table in the warehouse: data files with their bytes, delete files, snapshots."""

    data: int
    bytes: int
    deletes: int
    snapshots: int


class Tidied(Document):
    """A table by its name in the warehouse, before and after; `trouble`: why it was left unchanged, empty if
    it was not."""

    name: str
    before: Files | None = None
    after: Files | None = None
    trouble: str = ""


class HeldBack(Document):
    """A table whose tombstones are kept beyond gc_grace because logs since `until` are incomplete. `by`: the
    object that causes it (a segment, or a node's status), since `since`; without it purging would reach
    `wanted`."""

    table: str
    by: str
    until: datetime
    wanted: datetime
    since: datetime

    @property
    def seconds(self) -> float:
        """The delay of purging in seconds."""
        return (self.wanted - self.until).total_seconds()


class Maintained(Document):
    """A run of maintenance. `shards`: shards examined; `purged`: shards rewritten because something could be
    purged; `failed`: shards left unchanged, the log has the reason. `before`, `after`: size of the state;
    the versions named by the last two seals are kept, so a purge shows in the size after the next run only.
    `swept`: bytes of deleted parts of whole segments. `held_back`: see `HeldBack`."""

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
    """The size of the state, by listing its store."""
    objects = size = index_objects = index_size = 0
    for info in store.names(layout.states_prefix(cluster)):
        if _INDEXES in info.name:
            index_objects += 1
            index_size += info.size
        else:
            objects += 1
            size += info.size
    return Size(objects=objects, bytes=size, index_objects=index_objects, index_bytes=index_size)


def read_maintained(store: Store, cluster: str) -> Maintained | None:
    """The document of the last run; None if there was none."""
    return Maintained.read(store, layout.maintained(cluster))
