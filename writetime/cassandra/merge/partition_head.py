"""The record of a partition's head in the state: an encoded update and the number of visible rows.

Layout: version (1 byte), number of visible rows (i64, -1 unknown), digest of the dropped columns at the time
of counting (8 bytes), length of the static row (u32), the static row as a flat row, the rest of the update in
the encoding of the commit log. That encoding derives value lengths from column types, which may change when a
static column is dropped and added again; a flat row stores them. A column that is dropped or added again may
hide or show rows without a write: the number is then unknown until rows are counted again. `b""` is an empty
head. Version 1 has the static row in the update. Does not know the store.
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
    """The record of a head; `b""` if the head is empty."""
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
        raise MalformedMutation(f"invalid head of {len(data)} bytes", operation="read a partition's head", obj=order.table.label)
    _, shown, dropped, *size = layout.unpack_from(data)
    end = layout.size + sum(size)
    update = decode_update(data[end:], order.table)
    if end > layout.size:
        update = replace(update, static_row=row_codec.decode(data[layout.size : end]))
    known = shown != _UNKNOWN and dropped == _dropped(order)
    return Head(update, shown if known else None)


def static_row_of(data: bytes) -> bytes:
    """The static row in the record of a head, as a flat row; `b""` if it has none."""
    if len(data) < _LAYOUT.size or data[0] != VERSION:
        return row_codec.NOTHING
    return data[_LAYOUT.size : _LAYOUT.size + _LAYOUT.unpack_from(data)[-1]]


def _dropped(order: ClusteringOrder) -> bytes:
    return hashlib.blake2b(repr(sorted(order.dropped.items())).encode(), digest_size=8).digest()
