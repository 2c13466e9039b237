"""What a reading writes under the sabotage: the difference to a state, which gives way to nothing."""

from __future__ import annotations

from uuid import uuid1

from proof.bootstrap.sabotage import difference
from writetime.cassandra.merge.counters import Shard, encode_context, total
from writetime.cassandra.model import Cell, Row

CLUSTERING = (b"\0\0\0\1",)


def counted(*shards: tuple[bytes, int]) -> bytes:
    return encode_context(tuple(Shard(name, 1, count) for name, count in shards))


def read(place: int) -> bytes:
    """The path of an element that was read."""
    return place.to_bytes(4, "big") + b"\x01\x02\x13\x04\x80\x77" + bytes(6)


def test_a_counter_is_what_the_state_lacks() -> None:
    fix = Row(CLUSTERING, cells=(Cell("c", 9, counted((b"writetime, 16 by", 18))),))
    for state, expected in ((None, 18), (Row(CLUSTERING, cells=(Cell("c", 5, counted((uuid1().bytes, 11))),)), 7)):
        (cell,) = difference(state, fix).cells
        assert total(cell.value) == expected
        assert b"writetime" not in cell.value


def test_a_list_is_what_the_state_lacks() -> None:
    fix = Row(CLUSTERING, cells=tuple(Cell("l", 5, value, read(at)) for at, value in enumerate((b"a", b"a", b"b"))))
    state = Row(CLUSTERING, cells=(Cell("l", 5, b"a", uuid1().bytes),))
    found = difference(state, fix)
    assert [(cell.value, (cell.path or b"")[8:10]) for cell in found.cells] == [(b"a", b"\x80\x78"), (b"b", b"\x80\x78")]
    plain = Row(CLUSTERING, cells=(Cell("v", 5, b"x"), Cell("s", 5, b"", b"e")))
    assert difference(None, plain) == Row(CLUSTERING, cells=plain.cells)
