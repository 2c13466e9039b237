"""Counter contexts: the wire layout, and every rule of merging two shards of one id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.cassandra.merge.counters import (
    Shard,
    ShardKind,
    decode_context,
    encode_context,
    has_local_shards,
    merge_contexts,
    merge_shards,
    total,
)
from writetime.errors import MalformedMutation

A, B = b"\x01" * 16, b"\x02" * 16
GLOBAL, LOCAL, REMOTE = ShardKind.GLOBAL, ShardKind.LOCAL, ShardKind.REMOTE

MERGES = {
    "both global: greater clock": (Shard(A, 2, 1, GLOBAL), Shard(A, 1, 9, GLOBAL), Shard(A, 2, 1, GLOBAL)),
    "both global, same clock: greater count": (Shard(A, 2, 1, GLOBAL), Shard(A, 2, 9, GLOBAL), Shard(A, 2, 9, GLOBAL)),
    "global beats local": (Shard(A, 1, 1, GLOBAL), Shard(A, 9, 9, LOCAL), Shard(A, 1, 1, GLOBAL)),
    "global beats remote": (Shard(A, 1, 1, GLOBAL), Shard(A, 9, 9, REMOTE), Shard(A, 1, 1, GLOBAL)),
    "both local: clocks and counts add": (Shard(A, 1, 5, LOCAL), Shard(A, 2, -7, LOCAL), Shard(A, 3, -2, LOCAL)),
    "local beats remote": (Shard(A, 1, 1, LOCAL), Shard(A, 9, 9, REMOTE), Shard(A, 1, 1, LOCAL)),
    "both remote: greater clock": (Shard(A, 2, 1, REMOTE), Shard(A, 1, 9, REMOTE), Shard(A, 2, 1, REMOTE)),
    "both remote, same clock: greater count": (Shard(A, 2, 1, REMOTE), Shard(A, 2, -9, REMOTE), Shard(A, 2, 1, REMOTE)),
}


@pytest.mark.parametrize(("a", "b", "expected"), MERGES.values(), ids=MERGES)
def test_two_shards_of_one_id(a: Shard, b: Shard, expected: Shard) -> None:
    assert merge_shards(a, b) == merge_shards(b, a) == expected


def test_the_layout_of_a_single_global_shard() -> None:
    """Bytes as Cassandra 5.0 wrote them for a counter that stands at 92."""
    context = bytes.fromhex("00018000 949499a8c8464040807200e97b4e9b50 000660c4ef80d818 000000000000005c")
    (shard,) = decode_context(context)
    assert (shard.counter_id.hex(), shard.count, shard.kind) == ("949499a8c8464040807200e97b4e9b50", 92, GLOBAL)
    assert total(context) == 92
    assert encode_context((shard,)) == context


def test_the_header_names_global_and_local_shards_and_leaves_out_remote_ones() -> None:
    shards = (Shard(A, 1, 1, REMOTE), Shard(B, 1, 2, LOCAL), Shard(b"\x03" * 16, 1, 4, GLOBAL))
    context = encode_context(shards)
    assert context[:6].hex() == "000200018002"
    assert decode_context(context) == shards
    assert has_local_shards(context)


def test_a_marked_header_is_read_by_its_magnitude() -> None:
    shard = Shard(A, 1, 5, GLOBAL)
    marked = b"\xff\xff" + encode_context((shard,))[2:]
    assert decode_context(marked) == (shard,)


def test_shards_of_different_ids_stand_side_by_side_in_order_of_id() -> None:
    merged = merge_contexts(encode_context((Shard(B, 1, 2),)), encode_context((Shard(A, 1, 1),)))
    assert decode_context(merged) == (Shard(A, 1, 1), Shard(B, 1, 2))
    assert total(merged) == 3


def test_a_cleared_value_counts_nothing_and_a_sum_wraps_as_a_java_long() -> None:
    assert total(b"") == 0
    assert total(encode_context((Shard(A, 1, 2**63 - 1), Shard(B, 1, 1)))) == -(2**63)


@pytest.mark.parametrize("context", ["00", "0001", "00018000", "000180 00" + "00" * 31, "00018001" + "00" * 32])
def test_bytes_that_are_no_context_are_refused(context: str) -> None:
    with pytest.raises(MalformedMutation, match="counter context"):
        decode_context(bytes.fromhex(context))


contexts = st.lists(
    st.builds(Shard, st.sampled_from([A, B]), st.integers(0, 2), st.integers(-2, 2), st.sampled_from([GLOBAL, REMOTE])),
    max_size=2,
    unique_by=lambda shard: shard.counter_id,
).map(lambda shards: encode_context(tuple(shards)))


@given(contexts, contexts, contexts)
def test_contexts_without_local_shards_form_a_semilattice(a: bytes, b: bytes, c: bytes) -> None:
    assert merge_contexts(a, a) == a
    assert merge_contexts(a, b) == merge_contexts(b, a)
    assert merge_contexts(merge_contexts(a, b), c) == merge_contexts(a, merge_contexts(b, c))
