"""Tokens as Cassandra's driver has them, replicas as the driver's strategies give them."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy, SimpleStrategy
from hypothesis import example, given
from hypothesis import strategies as st

from writetime.cassandra.token_ring import Member, Ownership, token
from writetime.errors import ConfigError


@given(st.binary(min_size=1, max_size=70))
@example(b"\x80" * 15)
@example(b"\xff" * 32)
def test_tokens(key: bytes) -> None:
    assert token(key) == Murmur3Token.hash_fn(key)


class Host:
    """As much of a node as the driver's strategies ask of it."""

    def __init__(self, member: Member) -> None:
        self.datacenter, self.rack, self.host_id = member.datacenter, member.rack, member.host_id


def ring(seed: int, datacenters: int, racks: int, nodes: int, vnodes: int) -> list[Member]:
    chance = random.Random(seed)
    return [
        Member(f"{dc}-{at}", f"dc{dc}", f"r{chance.randrange(racks)}", tuple(chance.randrange(-(2**63), 2**63) for _ in range(vnodes)))
        for dc in range(datacenters)
        for at in range(nodes)
    ]


STRATEGIES: dict[str, tuple[Any, dict[str, str]]] = {
    "simple": (
        SimpleStrategy({"replication_factor": "3"}),
        {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"},
    ),
    "networks": (NetworkTopologyStrategy({"dc0": "3", "dc1": "2"}), {"class": "NetworkTopologyStrategy", "dc0": "3", "dc1": "2"}),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("datacenters", "racks", "nodes", "vnodes"), [(1, 1, 3, 1), (2, 1, 5, 4), (2, 3, 6, 8), (2, 2, 2, 3)])
def test_replicas(strategy: str, datacenters: int, racks: int, nodes: int, vnodes: int) -> None:
    theirs, ours = STRATEGIES[strategy]
    for seed in range(5):
        members = ring(seed, datacenters, racks, nodes, vnodes)
        hosts = {member.host_id: Host(member) for member in members}
        tokens = {Murmur3Token(each): hosts[member.host_id] for member in members for each in member.tokens}
        expected = theirs.make_token_replica_map(tokens, sorted(tokens))
        ownership = pickle.loads(pickle.dumps(Ownership(members, ["dc0", "dc1"])))
        for at in tokens:
            told = {host.host_id for host in expected[at]}
            assert ownership.replicas(ours, at.value) == told
        shipping = Ownership(members, ["dc1"])
        assert all(shipping.members[host].datacenter == "dc1" for at in tokens for host in shipping.replicas(ours, at.value))


def test_between_two_tokens_the_next_one_owns_and_the_last_is_followed_by_the_first() -> None:
    ownership = Ownership([Member("a", "dc1", "r", (0,)), Member("b", "dc1", "r", (100,))], ["dc1"])
    one = {"class": "SimpleStrategy", "replication_factor": "1"}
    assert [set(ownership.replicas(one, at)) for at in (-5, 0, 1, 100, 101)] == [{"a"}, {"a"}, {"b"}, {"b"}, {"a"}]
    assert Ownership([], []).replicas(one, 0) == frozenset()
    with pytest.raises(ConfigError):
        ownership.replicas({"class": "com.example.Own"}, 0)
