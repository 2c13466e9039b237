"""Tokens of partition keys and the replicas of a token.

This module does not know the log, the store or the driver.

Sources: Cassandra 3.11-5.0, dht/Murmur3Partitioner, utils/MurmurHash.hash3_x64_128 (treats the bytes of the
tail as signed, unlike the original), locator/{SimpleStrategy, NetworkTopologyStrategy}.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from writetime.cassandra.types.compound import shortened
from writetime.errors import ConfigError, SchemaError

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
MURMUR3: Final = "Murmur3Partitioner"
"""The only partitioner whose tokens this module knows. What needs tokens names any other as unsupported."""
LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
_FACTOR: Final = re.compile(r"([0-9]{1,4})(?:/[0-9]{1,4})?")


def partitioner_name(class_name: str) -> str:
    """`RandomPartitioner`, of the name of its class."""
    return class_name.rpartition(".")[2]


def token(key: bytes) -> int:
    """The token of a partition key. An empty key has the lowest token, which no hash gives."""
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
    """Java's bytes are signed and are sign-extended before they are shifted."""
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
    """A node of the cluster."""

    host_id: str
    datacenter: str
    rack: str
    tokens: tuple[int, ...]


class Ownership:
    """Replicas by token. Only nodes in `datacenters` are returned: other datacenters do not ship their
    logs."""

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
        """The tokens of all members, ascending."""
        return list(self._tokens)

    def replicas(self, replication: Mapping[str, str], at: int) -> frozenset[str]:
        """Host ids of the shipping replicas of token `at`. Raises ConfigError for an unknown replication
        strategy."""
        if not self._tokens:
            return frozenset()
        return self._replicas(tuple(sorted(replication.items())), bisect_left(self._tokens, at) % len(self._tokens))

    def _found(self, replication: tuple[tuple[str, str], ...], place: int) -> frozenset[str]:
        options = dict(replication)
        strategy = strategy_of(options)
        options.pop("class", None)
        around = list(dict.fromkeys(self._owners[place:] + self._owners[:place]))
        if strategy == "SimpleStrategy":
            chosen = around[: _factor(options.get("replication_factor", "0"))]
        elif strategy == "NetworkTopologyStrategy":
            chosen = [host for datacenter, factor in options.items() for host in self._of_datacenter(around, datacenter, _factor(factor))]
        elif strategy == "EverywhereStrategy":
            chosen = around
        elif strategy == "LocalStrategy":
            chosen = []
        else:
            raise ConfigError("unknown replication strategy", operation="find the replicas of a token", obj=strategy)
        return frozenset(host for host in chosen if self.members[host].datacenter in self._shipping)

    def _of_datacenter(self, around: Sequence[str], datacenter: str, factor: int) -> list[str]:
        """In ring order, first one node of each rack. Skipped nodes follow once every rack has one."""
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
    """`3/1` means three replicas, one of them transient. A transient replica is counted because it logs
    writes. Raises SchemaError if it is no number of replicas."""
    if (found := _FACTOR.fullmatch(text)) is None:
        raise SchemaError(f"{shortened(text, 40)!r} is no number of replicas", operation="read the replication of a keyspace")
    return int(found[1])


def expect_replication(replication: Mapping[str, str]) -> None:
    """Raises SchemaError if a number of replicas is none, in a strategy that has such numbers."""
    if strategy_of(replication) in ("SimpleStrategy", "NetworkTopologyStrategy"):
        for factor in (factor for name, factor in replication.items() if name != "class"):
            _factor(factor)


def strategy_of(replication: Mapping[str, str]) -> str:
    """The simple name of the strategy."""
    return replication.get("class", "").rpartition(".")[2]


def expected_replicas(replication: Mapping[str, str], datacenters: Collection[str]) -> int:
    """How many nodes of these datacenters should hold each row. Raises SchemaError if a number of replicas is
    none."""
    asked = ["replication_factor"] if "replication_factor" in replication else datacenters
    return sum(_factor(replication.get(name, "0")) for name in asked)
