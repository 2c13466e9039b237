"""What needs tokens names a partitioner other than Murmur3Partitioner; the rest does not depend on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cassandra.metadata import BytesToken, MD5Token, Murmur3Token

from spark_jobs.audit import _expect_murmur3
from spark_jobs.cassandra_reader import Ring
from writetime.errors import BatchError

OTHERS = [("RandomPartitioner", MD5Token(7)), ("ByteOrderedPartitioner", BytesToken(b"a"))]


def ring(partitioner: str, *tokens: Any) -> Ring:
    found = object.__new__(Ring)
    metadata = SimpleNamespace(partitioner=f"org.apache.cassandra.dht.{partitioner}", token_map=SimpleNamespace(ring=list(tokens)))
    found._cluster, found._address = SimpleNamespace(metadata=metadata), "10.0.0.1:9042"
    return found


@pytest.mark.parametrize(("partitioner", "token"), OTHERS)
def test_reading_and_comparing_tables_name_it(partitioner: str, token: Any) -> None:
    with pytest.raises(BatchError, match=f"unsupported partitioner {partitioner}"):
        ring(partitioner, token).tokens()


def test_tokens_of_murmur3() -> None:
    assert ring("Murmur3Partitioner", Murmur3Token(-5), Murmur3Token(7)).tokens() == [-5, 7]


@pytest.mark.parametrize(("partitioner", "_"), OTHERS)
def test_the_audit_names_it(partitioner: str, _: Any) -> None:
    with pytest.raises(BatchError, match=f"unsupported partitioner {partitioner}"):
        _expect_murmur3(["", "org.apache.cassandra.dht.Murmur3Partitioner", f"org.apache.cassandra.dht.{partitioner}"])
    _expect_murmur3(["", "org.apache.cassandra.dht.Murmur3Partitioner", "Murmur3Partitioner"])
