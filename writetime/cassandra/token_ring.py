"""Whose partition a key is: tokens of keys, and the replicas that a keyspace's strategy gives a token. Knows no log, no store, no driver.

Sources: Cassandra 3.11-5.0, dht/Murmur3Partitioner, utils/MurmurHash.hash3_x64_128 (whose tail takes bytes as signed, unlike the
original), locator/{SimpleStrategy, NetworkTopologyStrategy}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from writetime.errors import ConfigError

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1


def token(key: bytes) -> int:
    """The token of a partition key. An empty key has the lowest, which is nobody's by hash."""
    if not key:
        return LOWEST
    h1 = h2 = 0
    whole = len(key) & ~15
    for at in range(0, whole, 16):
        h1 ^= _mixed_1(int.from_bytes(key[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mixed_2(int.from_bytes(key[at + 8 : at + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    tail = key[whole:]
    if len(tail) > 8:
        h2 ^= _mixed_2(_signed(tail[8:]))
    if tail:
        h1 ^= _mixed_1(_signed(tail[:8]))
    h1, h2 = h1 ^ len(key), h2 ^ len(key)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    found = _finished(h1) + _finished(h2) & _MASK
    found = found - 2**64 if found > HIGHEST else found
    return HIGHEST if found == LOWEST else found


def _signed(tail: bytes) -> int:
    """Java's bytes have signs, and each is widened before it is put in its place."""
    found = 0
    for at, byte in enumerate(tail):
        found ^= (byte - 256 if byte > 127 else byte) << 8 * at
    return found & _MASK


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _mixed_1(value: int) -> int:
    return _rotated(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_2(value: int) -> int:
    return _rotated(value * _C2 & _MASK, 33) * _C1 & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the ring."""

    host_id: str
    datacenter: str
    rack: str
    tokens: tuple[int, ...]


class Ownership:
    """Replicas by token, as the members' tokens have it. Only those in `datacenters` are told: who does not ship has no log here."""

    def __init__(self, members: Iterable[Member], datacenters: Iterable[str]) -> None:
        self.members = {member.host_id: member for member in members}
        self._shipping = frozenset(datacenters)
        owned = sorted((token, member.host_id) for member in self.members.values() for token in member.tokens)
        self._tokens = [token for token, _ in owned]
        self._owners = [owner for _, owner in owned]
        self._replicas = lru_cache(maxsize=200_000)(self._found)

    def __reduce__(self) -> tuple[type[Ownership], tuple[list[Member], frozenset[str]]]:
        return Ownership, (list(self.members.values()), self._shipping)

    @property
    def tokens(self) -> list[int]:
        """Of all members, ascending."""
        return list(self._tokens)

    def replicas(self, replication: Mapping[str, str], at: int) -> frozenset[str]:
        """Host ids of the shipping nodes that ought to have what has the token `at`. ConfigError for a strategy that is not known."""
        if not self._tokens:
            return frozenset()
        return self._replicas(tuple(sorted(replication.items())), bisect_left(self._tokens, at) % len(self._tokens))

    def _found(self, replication: tuple[tuple[str, str], ...], place: int) -> frozenset[str]:
        told = dict(replication)
        strategy = told.pop("class", "").rpartition(".")[2]
        around = list(dict.fromkeys(self._owners[place:] + self._owners[:place]))
        if strategy == "SimpleStrategy":
            chosen = around[: _factor(told.get("replication_factor", "0"))]
        elif strategy == "NetworkTopologyStrategy":
            chosen = [host for datacenter, factor in told.items() for host in self._of_datacenter(around, datacenter, _factor(factor))]
        elif strategy == "EverywhereStrategy":
            chosen = around
        elif strategy == "LocalStrategy":
            chosen = []
        else:
            raise ConfigError("nothing is known of its replication", operation="find the replicas of a token", obj=strategy)
        return frozenset(host for host in chosen if self.members[host].datacenter in self._shipping)

    def _of_datacenter(self, around: Sequence[str], datacenter: str, factor: int) -> list[str]:
        """Walking the ring, a node of each rack first; those passed over come next, once every rack has one."""
        nodes = [host for host in around if self.members[host].datacenter == datacenter]
        racks = {self.members[host].rack for host in nodes}
        chosen: list[str] = []
        passed: list[str] = []
        seen: set[str] = set()
        for host in nodes:
            rack = self.members[host].rack
            if rack not in seen or len(seen) == len(racks):
                seen.add(rack)
                chosen.append(host)
                if len(seen) == len(racks):
                    chosen += passed
                    passed = []
            else:
                passed.append(host)
        return chosen[:factor]


def _factor(text: str) -> int:
    """`3/1` is three replicas, one of them transient: that one keeps nothing in the end, but it logs."""
    return int(text.split("/")[0])
