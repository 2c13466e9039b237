"""Rows as frames, in objects that a batch ingests as segments of an additional node.

Each row is a mutation of its own, so that an event has the row's writetime. An object is created once and
never overwritten; if its name is taken by an interrupted attempt, the next number is used: merging a frame
twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.model import Mutation, PartitionUpdate, Row
from writetime.cassandra.schema.model import Schema, Table
from writetime.errors import PreconditionFailed
from writetime.storage import layout
from writetime.storage.store import Store

VERSION: Final = 8
"""Version of the commit log format: its deletion times reach 2106."""
OBJECT_BYTES: Final = 32 << 20
_SECTION_FRAMES: Final = 1000


def frame(table: Table, schema: Schema, key: bytes, row: Row) -> bytes:
    """The body of a frame that writes one row, or a static one."""
    update = PartitionUpdate(table.id, key, static_row=row) if row.is_static else PartitionUpdate(table.id, key, rows=(row,))
    return encode_mutation(Mutation((update,)), schema)


@dataclass
class FramesWriter:
    """Writes frames to the bucket, in objects of about `OBJECT_BYTES`. `sealed_at` (aware): the time as of
    which they hold. Segments are numbered from `first`."""

    store: Store
    node: layout.NodeName
    sealed_at: datetime
    first: int = 1
    version: int = VERSION
    metadata: Mapping[str, str] = field(default_factory=dict)
    objects: list[str] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self._bodies: list[bytes] = []
        self._bytes = 0

    def add(self, body: bytes) -> None:
        self._bodies.append(body)
        self._bytes += len(body)
        self.count += 1
        if self._bytes >= OBJECT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the remaining frames. Without frames no object is created."""
        if self._bodies:
            self.objects.append(self._put(self._bodies))
        self._bodies, self._bytes = [], 0

    def _put(self, bodies: Sequence[bytes]) -> str:
        while True:
            number, self.first = self.first, self.first + 1
            ref = layout.SegmentRef(self.node, layout.SegmentName(number, self.version))
            # An archived segment was moved, but its name is still taken.
            if self.store.head(ref.ledger) is not None:
                continue
            try:
                segment = encode_segment(number, self.version, bodies, per_section=_SECTION_FRAMES)
                about = {"sealed_at": self.sealed_at.astimezone(UTC).isoformat(), **self.metadata}
                return self.store.put(ref.incoming, segment, if_generation=0, metadata=about).name
            except PreconditionFailed:
                continue
