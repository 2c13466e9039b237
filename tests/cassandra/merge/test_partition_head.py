"""Records of heads: what went in comes out, whatever becomes of the table meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import NOW, WITH_STATICS, updates
from tests.cassandra.merge.partition import PartitionState, SourcedUpdate, fold
from writetime.cassandra.commitlog.encode import encode_update
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.merge.partition_fold import Head
from writetime.cassandra.merge.partition_head import decode_head, encode_head
from writetime.cassandra.model import Cell, DeletionTime, PartitionUpdate, Row
from writetime.cassandra.schema.model import Column, DroppedColumn, Table
from writetime.errors import MalformedMutation

ORDER = ClusteringOrder(WITH_STATICS, {})
KEYS = {"p": Column("p", "partition_key", "int", 0), "c": Column("c", "clustering", "int", 0)}


@given(st.lists(updates, min_size=1, max_size=5))
def test_heads_come_back(history: list[PartitionUpdate]) -> None:
    state = fold(PartitionState(), [SourcedUpdate(u) for u in history], order=ORDER, now=NOW).state
    head = Head(state.head, 3 if state.head else None)
    assert decode_head(encode_head(head, ORDER, {}), ORDER) == head


def order(kind: str | None, dropped: Mapping[str, DroppedColumn]) -> ClusteringOrder:
    static = {} if kind is None else {"s": Column("s", "static", kind)}
    return ClusteringOrder(Table("k", "t", UUID(int=7), KEYS | static, dict(dropped)), {})


DROPPED = {"s": DroppedColumn("s", "static", "int", 100)}


@pytest.mark.parametrize("later", [order("blob", DROPPED), order(None, DROPPED), order(None, {})], ids=["added again", "dropped", "lost"])
def test_static_values_keep_their_bytes_whatever_becomes_of_their_column(later: ClusteringOrder) -> None:
    static = Row(None, cells=(Cell("s", 10, b"\0\0\0\5"),))
    head = Head(PartitionUpdate(UUID(int=7), b"\0\0\0\1", DeletionTime(1, 1), static), 1)
    found = decode_head(encode_head(head, order("int", {}), {}), later)
    assert found.update == head.update
    assert encode_head(found, later, {})[17:] == encode_head(head, order("int", {}), {})[17:]


def test_heads_of_version_1_are_read() -> None:
    update = PartitionUpdate(UUID(int=7), b"\0\0\0\1", static_row=Row(None, cells=(Cell("s", 10, b"\0\0\0\5"),)))
    now = order("int", {})
    old = struct.pack(">Bq", 1, 5) + encode_head(Head(update, 5), now, {})[9:17] + encode_update(update, now.table)
    assert decode_head(old, now) == Head(update, 5)


@pytest.mark.parametrize("bad", [b"\3" + bytes(40), b"\2", b"\1", b"\2" + bytes(20)])
def test_what_is_no_head_says_so(bad: bytes) -> None:
    with pytest.raises(MalformedMutation):
        decode_head(bad, order("int", {}))
