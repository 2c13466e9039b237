"""Keys of many rows at once are those of one row at a time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from writetime.cassandra.schema.model import Column, Table
from writetime.cassandra.types.byte_comparable import RowKeys
from writetime.errors import DecodeError
from writetime.kernels.clustering_keys import row_keys

COMPILED = (
    *("tinyint", "smallint", "int", "bigint", "timestamp", "uuid", "timeuuid"),
    *("ascii", "text", "varchar", "blob", "date", "time", "inet"),
)
VALUES = st.none() | st.sampled_from([0, 1, 2, 4, 8, 15, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size))


def table(*kinds: tuple[str, bool]) -> Table:
    columns = {f"c{at}": Column(f"c{at}", "clustering", kind, at, descending=down) for at, (kind, down) in enumerate(kinds)}
    return Table("ks", "t", UUID(int=1), {"id": Column("id", "partition_key", "int", 0), **columns})


def one_by_one(of: Table, clustering: tuple[bytes | None, ...]) -> bytes | None:
    try:
        return RowKeys(of, {}).key(clustering)
    except DecodeError:
        return None


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.sampled_from(COMPILED), st.booleans()), max_size=3), st.data())
def test_many_at_once_are_one_by_one(kinds: list[tuple[str, bool]], data: st.DataObject) -> None:
    of = table(*kinds)
    rows: list[Any] = data.draw(st.lists(st.tuples(*[VALUES] * len(kinds)), max_size=4))
    found = row_keys(of, {}, pa.array([list(row) for row in rows], pa.list_(pa.binary())))
    found.validate(full=True)
    assert found.to_pylist() == [one_by_one(of, row) for row in rows]


@pytest.mark.parametrize("kind", ["double", "varint", "decimal", "boolean", "duration", "frozen<list<int>>"])
def test_other_types_are_left(kind: str) -> None:
    assert row_keys(table(("int", False), (kind, False)), {}, pa.array([[b"\0\0\0\1", b"\0"]], pa.list_(pa.binary()))) is None


def test_a_clustering_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 values are not 2 for each of 1 rows"):
        row_keys(table(("int", False), ("int", False)), {}, pa.array([[b"\0\0\0\1"]], pa.list_(pa.binary())))


def test_a_sliced_array() -> None:
    of = table(("text", True))
    given = pa.array([[b"a"], [b"b\0"], [None]], pa.list_(pa.binary()))
    assert row_keys(of, {}, given.slice(1)).to_pylist() == [one_by_one(of, (b"b\0",)), one_by_one(of, (None,))]
