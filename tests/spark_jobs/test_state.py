"""State shards: what is written is what is read, at every version, however often it is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lance
import pytest
from lance.dataset import Tags

from spark_jobs import state
from spark_jobs.state import Record, Shard, record_key, records, upsert
from tests.spark_jobs.examples import NOW, ORDERS, SCHEMA, THEN, delete, insert
from writetime.join.order import ClusteringOrder
from writetime.join.partition import FoldResult, PartitionState, SourcedUpdate, fold
from writetime.model import Mutation

ORDER = ClusteringOrder(ORDERS, SCHEMA.types)
ONE = b"\0\0\0\1"
TWO = b"\0\0\0\2"


def folding(before: PartitionState, *mutations: Mutation, now: int = NOW) -> FoldResult:
    updates = [SourcedUpdate(update) for mutation in mutations for update in mutation.updates]
    return fold(before, updates, order=ORDER, now=now)


def recorded(result: FoldResult, pk: bytes = ONE, now: int = NOW) -> list[Record]:
    return list(records(result, pk, ORDERS, SCHEMA, now))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "b00000")


FIRST = folding(PartitionState(), *(insert(ORDERS, 1, {"name": f"row {line}"}, line) for line in range(3)))


def test_what_was_folded_is_known_again(uri: str) -> None:
    other = folding(PartitionState(), insert(ORDERS, 2, {"name": "other"}, 1), delete(ORDERS, 2, THEN - 5))
    version = upsert(uri, 1, [*recorded(FIRST), *recorded(other, TWO)])
    known = Shard(uri, version).partitions([ONE, TWO, b"none"], ORDERS)
    assert (known[ONE].state, known[ONE].folded_at) == (FIRST.state, NOW)
    assert known[TWO].state == other.state
    assert known[TWO].state.head is not None
    assert (known[b"none"].state, known[b"none"].folded_at) == (PartitionState(), None)


def test_a_shard_that_does_not_exist_knows_nothing(uri: str) -> None:
    assert Shard(uri, 0).partitions([ONE], ORDERS)[ONE].state == PartitionState()


def test_a_batch_writes_once_however_often_it_is_run(uri: str) -> None:
    first = upsert(uri, 1, recorded(FIRST))
    later = folding(FIRST.state, insert(ORDERS, 1, {"name": "new"}, 1, timestamp=THEN + 1))
    second = upsert(uri, 2, recorded(later))
    assert [upsert(uri, 1, recorded(FIRST)), upsert(uri, 2, recorded(later))] == [first, second]
    assert Shard(uri, first).partitions([ONE], ORDERS)[ONE].state == FIRST.state
    assert Shard(uri, second).partitions([ONE], ORDERS)[ONE].state == later.state
    assert lance.dataset(uri).count_rows() == 4


@pytest.mark.parametrize("died", ["before the index", "before the tag"])
def test_a_batch_that_died_half_way_ends_the_same(uri: str, died: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Death(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise Death

    with monkeypatch.context() as patch:
        owner = lance.LanceDataset if died == "before the index" else Tags
        patch.setattr(owner, "create_scalar_index" if died == "before the index" else "create", die)
        with pytest.raises(Death):
            upsert(uri, 1, recorded(FIRST))
    version = upsert(uri, 1, recorded(FIRST))
    assert Shard(uri, version).partitions([ONE], ORDERS)[ONE].state == FIRST.state
    dataset = lance.dataset(uri)
    assert dataset.count_rows() == 4
    assert len(dataset.list_indices()) == 1
    assert list(dataset.tags.list()) == ["batch-0000000001"]


def test_a_row_that_left_the_state_is_known_no_more(uri: str) -> None:
    upsert(uri, 1, recorded(FIRST))
    gone = folding(FIRST.state, delete(ORDERS, 1, THEN + 1))
    version = upsert(uri, 2, recorded(gone, now=NOW + 9))
    known = Shard(uri, version).partitions([ONE], ORDERS)[ONE]
    assert (known.state, known.folded_at) == (gone.state, NOW + 9)
    assert known.state.rows == {}
    assert {row["state"] for row in lance.dataset(uri).to_table().to_pylist() if row["key"] != record_key(ONE, None)} == {b""}


def test_what_shows_differently_by_time_alone_is_noted_in_the_head(uri: str) -> None:
    row = FIRST.state.rows[(b"\0\0\0\1",)]
    assert row.liveness is not None
    dying = replace(row, liveness=replace(row.liveness, ttl=50, expires_at=NOW + 50), cells=())
    upsert(uri, 1, recorded(folding(PartitionState(rows={(b"\0\0\0\1",): dying}))))
    result = fold(PartitionState(rows={(b"\0\0\0\1",): dying}), [], order=ORDER, now=NOW + 100, since=NOW)
    assert [change.reason for change in result.changes] == ["expiry"]
    (head,) = recorded(result, now=NOW + 100)
    assert (head.key, head.state, head.folded_at) == (record_key(ONE, None), b"", NOW + 100)


def test_record_keys_are_unique() -> None:
    clusterings = [None, (), (None,), (b"",), (b"", b""), (None, b""), (b"r",), (b"\0",), (b"a", b"b"), (b"ab",), (b"a\1b",)]
    keys = [record_key(pk, clustering) for pk in (b"", b"r", ONE) for clustering in clusterings]
    assert len(set(keys)) == len(keys)


def test_a_real_failure_of_the_store_is_no_empty_shard(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert(uri, 1, recorded(FIRST))

    def fails(*_: object, **__: object) -> None:
        raise ValueError("permission denied")

    monkeypatch.setattr(state.lance, "dataset", fails)
    with pytest.raises(ValueError, match="permission denied"):
        upsert(uri, 2, recorded(FIRST))
