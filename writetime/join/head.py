"""The record of a partition's head in the state: an encoded update, and how many rows of the partition show.

Layout: version (1 byte), number of rows that show (i64, -1 unknown), what was dropped when they were counted (8 bytes), the update in the
encoding of the commit log. A column that is dropped, or added again, may hide or show rows that nobody writes to: then the number is
unknown until they are counted again. `b""` is no head. Knows no store.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Final

from writetime.commitlog.encode import encode_update
from writetime.commitlog.mutation import decode_update
from writetime.errors import MalformedMutation
from writetime.join.order import ClusteringOrder
from writetime.join.stream import Head
from writetime.schema.model import UserType

VERSION: Final = 1
_LAYOUT: Final = struct.Struct(">Bq8s")
_UNKNOWN: Final = -1


def encode_head(head: Head, order: ClusteringOrder, types: Mapping[tuple[str, str], UserType]) -> bytes:
    """The record of a head; `b""` if there is nothing in it."""
    if head.update is None:
        return b""
    shown = _UNKNOWN if head.shown is None else head.shown
    return _LAYOUT.pack(VERSION, shown, _dropped(order)) + encode_update(head.update, order.table, types)


def decode_head(data: bytes, order: ClusteringOrder) -> Head:
    """The head of a record. Raises MalformedMutation."""
    if not data:
        return Head()
    if len(data) < _LAYOUT.size or data[0] != VERSION:
        raise MalformedMutation(f"{len(data)} bytes are no head", operation="read a partition's head", obj=order.table.label)
    _, shown, dropped = _LAYOUT.unpack_from(data)
    known = shown != _UNKNOWN and dropped == _dropped(order)
    return Head(decode_update(data[_LAYOUT.size :], order.table), shown if known else None)


def _dropped(order: ClusteringOrder) -> bytes:
    return hashlib.blake2b(repr(sorted(order.dropped.items())).encode(), digest_size=8).digest()
