"""Rows as frames, in objects that a batch takes in as segments of one more node.

A row is a mutation of its own, so that an event's writetime is the row's and no other's. An object is put once and never overwritten; where
its name is taken (an attempt that died had put it), the next number is: a frame that comes twice changes nothing.
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
"""Of the commit log: its deletion times go up to 2106."""
OBJECT_BYTES: Final = 32 << 20
_SECTION_FRAMES: Final = 1000


def frame(table: Table, schema: Schema, key: bytes, row: Row) -> bytes:
    """The body of a frame that writes one row, or a static one."""
    update = PartitionUpdate(table.id, key, static_row=row) if row.is_static else PartitionUpdate(table.id, key, rows=(row,))
    return encode_mutation(Mutation((update,)), schema)


@dataclass
class FramesWriter:
    """Puts frames into the bucket, in objects of about `OBJECT_BYTES`. `sealed_at` (aware): what they say was true then. Segments are
    numbered from `first` on."""

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
        """Put what is left. Without frames there is no object."""
        if self._bodies:
            self.objects.append(self._put(self._bodies))
        self._bodies, self._bytes = [], 0

    def _put(self, bodies: Sequence[bytes]) -> str:
        while True:
            number, self.first = self.first, self.first + 1
            ref = layout.SegmentRef(self.node, layout.SegmentName(number, self.version))
            # What was archived is gone from its first place, and its name is taken all the same.
            if self.store.head(ref.ledger) is not None:
                continue
            try:
                segment = encode_segment(number, self.version, bodies, per_section=_SECTION_FRAMES)
                about = {"sealed_at": self.sealed_at.astimezone(UTC).isoformat(), **self.metadata}
                return self.store.put(ref.incoming, segment, if_generation=0, metadata=about).name
            except PreconditionFailed:
                continue
