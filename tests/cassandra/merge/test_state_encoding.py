"""State is a mutation: what folding keeps goes through the commit log's own encoding and comes back as it
was."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.cassandra.merge.join_oracle import COUNTERS, NOW, WITH_STATICS, counter_updates, updates
from tests.cassandra.merge.partition import PartitionState, SourcedUpdate, fold
from writetime.cassandra.commitlog.encode import encode_update
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.merge.clustering import ClusteringOrder
from writetime.cassandra.model import PartitionUpdate
from writetime.cassandra.schema.model import Schema, Table


def assert_kept(history: list[PartitionUpdate], table: Table) -> None:
    schema = Schema(tables={table.id: table})
    state = fold(PartitionState(), [SourcedUpdate(u) for u in history], order=ClusteringOrder(table, {}), now=NOW).state
    empty = PartitionUpdate(history[0].table_id, history[0].key)
    parts = [replace(empty, rows=(row,)) for row in state.rows.values()]
    for part in [state.head, *parts] if state.head is not None else parts:
        assert decode_mutation(b"\x01" + encode_update(part, table), schema).updates == (part,)


@given(st.lists(updates, min_size=1, max_size=5))
def test_heads_and_rows(history: list[PartitionUpdate]) -> None:
    assert_kept(history, WITH_STATICS)


@given(st.lists(counter_updates, min_size=1, max_size=5))
def test_counters(history: list[PartitionUpdate]) -> None:
    assert_kept(history, COUNTERS)
