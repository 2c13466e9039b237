"""The record of a partition's head in the state: an encoded update, and how many rows of the partition show.

Layout: version (1 byte), number of rows that show (i64, -1 unknown), what was dropped when they were counted (8 bytes), length of the
static row (u32), the static row as a flat one, the update without it in the encoding of the commit log. That encoding takes the lengths of
values from the types of their columns, which a static column that is dropped and added again may change; a flat row keeps its own. A
column that is dropped, or added again, may hide or show rows that nobody writes to: then the number is unknown until they are counted
again. `b""` is no head. Heads of version 1 have the static row in the update. Knows no store.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from writetime.cassandra.commitlog.encode import encode_update
from writetime.cassandra.commitlog.mutation import decode_update
from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition_fold import Head
from writetime.cassandra.schema.model import UserType
from writetime.errors import MalformedMutation

VERSION: Final = 2
_LAYOUT: Final = struct.Struct(">Bq8sI")
_LAYOUT_1: Final = struct.Struct(">Bq8s")
_UNKNOWN: Final = -1


def encode_head(head: Head, order: ClusteringOrder, types: Mapping[tuple[str, str], UserType]) -> bytes:
    """The record of a head; `b""` if there is nothing in it."""
    if head.update is None:
        return b""
    shown = _UNKNOWN if head.shown is None else head.shown
    static = b"" if head.update.static_row is None else row_codec.encode(head.update.static_row)
    rest = encode_update(replace(head.update, static_row=None), order.table, types)
    return _LAYOUT.pack(VERSION, shown, _dropped(order), len(static)) + static + rest


def decode_head(data: bytes, order: ClusteringOrder) -> Head:
    """The head of a record. Raises MalformedMutation."""
    if not data:
        return Head()
    layout = _LAYOUT_1 if data[0] == 1 else _LAYOUT
    if len(data) < layout.size or data[0] not in (1, VERSION):
        raise MalformedMutation(f"{len(data)} bytes are no head", operation="read a partition's head", obj=order.table.label)
    _, shown, dropped, *size = layout.unpack_from(data)
    end = layout.size + sum(size)
    update = decode_update(data[end:], order.table)
    if end > layout.size:
        update = replace(update, static_row=row_codec.decode(data[layout.size : end]))
    known = shown != _UNKNOWN and dropped == _dropped(order)
    return Head(update, shown if known else None)


def _dropped(order: ClusteringOrder) -> bytes:
    return hashlib.blake2b(repr(sorted(order.dropped.items())).encode(), digest_size=8).digest()
