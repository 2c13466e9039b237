"""Truncations and topology out of system.local and system.peers*."""

from __future__ import annotations

import random
import struct
from uuid import UUID

from writetime.cassandra.model import (
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    Row,
)
from writetime.cassandra.schema.node_metadata import PEERS, LocalFacts, Truncation
from writetime.cassandra.schema.system_tables import LOCAL
from writetime.cassandra.types.types import parse_type

T = 1_700_000_000_000_000
TABLE = UUID("11111111-e583-11f1-817f-f173fd8e050e")
HOST = UUID("3a86dbd7-386d-4afb-a1e2-e4fa98f6294e")


def cell(name: str, value: object, timestamp: int = T) -> Cell:
    return Cell(name, timestamp, parse_type(LOCAL.columns[name].type, "system", {}).encode(value))


def local(*cells: Cell, **more: object) -> Mutation:
    return Mutation((PartitionUpdate(LOCAL.id, b"local", rows=(Row((), Liveness(T), cells=cells, **more),)),))  # type: ignore[arg-type]


def truncation(segment: int, position: int, at: int, timestamp: int = T) -> Mutation:
    return local(Cell("truncated_at", timestamp, struct.pack(">qiq", segment, position, at), TABLE.bytes))


def tokens(*values: str, timestamp: int) -> Mutation:
    cells = tuple(Cell("tokens", timestamp, b"", value.encode()) for value in values)
    return local(*cells, complex_deletions={"tokens": DeletionTime(timestamp - 1, T // 1_000_000)})


def learnt(*mutations: Mutation) -> LocalFacts:
    """The facts, which do not depend on the order of mutations."""
    orders = [mutations, mutations[::-1], *(random.Random(seed).sample(mutations, len(mutations)) for seed in range(20))]
    all_facts = []
    for order in orders:
        facts = LocalFacts()
        for mutation in order:
            facts.apply(mutation)
        all_facts.append(facts)
    assert all((each.node, each.peers, each.truncations) == (facts.node, facts.peers, facts.truncations) for each in all_facts)
    return facts


def test_truncations_are_all_kept() -> None:
    taken_back = Cell("truncated_at", T + 9, b"", TABLE.bytes, 0, T // 1_000_000)
    facts = learnt(truncation(7, 459, 2000, T + 5), truncation(6, 28, 1000), truncation(6, 28, 1000), local(taken_back))
    assert facts.truncations == [Truncation(1000, TABLE, 6, 28, T), Truncation(2000, TABLE, 7, 459, T + 5)]


def test_the_node_by_last_write() -> None:
    facts = learnt(
        local(cell("host_id", HOST), cell("data_center", "dc1"), cell("rack", "r1"), cell("release_version", "4.1.10")),
        local(cell("release_version", "5.0.6", T + 1)),
        local(Cell("rack", T + 1, b"", None, 0, T // 1_000_000)),
        tokens("1", "2", timestamp=T),
        tokens("3", timestamp=T + 10),
        Mutation((PartitionUpdate(TABLE, b"local"),)),
    )
    assert facts.node == {"host_id": HOST, "data_center": "dc1", "release_version": "5.0.6", "tokens": ["3"]}
    assert LocalFacts().node == {}


def test_a_peer_whose_key_is_no_address_is_none() -> None:
    """Anything can be in a log: it concerns no other peer."""
    rack = Row((), Liveness(T), cells=(Cell("rack", T, b"r1"),))
    keys = (b"abc", b"", b"\xff" * 17, bytes([10, 0, 0, 1]))
    facts = learnt(*(Mutation((PartitionUpdate(PEERS[0].id, key, rows=(rack,)),)) for key in keys))
    assert [(peer["peer"], peer["rack"]) for peer in facts.peers] == [("10.0.0.1", "r1")]


def test_peers_of_both_tables_and_those_that_left() -> None:
    old, new = PEERS
    rack = Cell("rack", T, b"r1")
    facts = learnt(
        Mutation((PartitionUpdate(old.id, b"\x7f\0\0\2", rows=(Row((), cells=(rack, Cell("data_center", T, b"old"))),)),)),
        Mutation((PartitionUpdate(new.id, b"\x7f\0\0\2", rows=(Row((b"\0\0\x1b\x58",), cells=(Cell("data_center", T, b"dc2"),)),)),)),
        Mutation((PartitionUpdate(old.id, b"\x7f\0\0\3", rows=(Row((), cells=(rack,)),)),)),
        Mutation((PartitionUpdate(old.id, b"\x7f\0\0\3", DeletionTime(T + 1, 0)),)),
    )
    assert facts.peers == [{"peer": "127.0.0.2", "rack": "r1", "data_center": "dc2"}]
