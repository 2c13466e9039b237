"""Which nodes a run's ring has, in which datacenters, and whose logs are shipped.

Every node of every datacenter has a replica of each row, so that one of each may be away. A datacenter that
does not ship captures all the same, and its nodes delete what is too much: with `cdc_enabled: false` an ALTER
TABLE that one of them coordinates would switch cdc off in the whole cluster (docs/datacenters.md). Knows no
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_ONE, _TWO = 3, 2
"""Nodes of a datacenter, if there is one, and if there are two."""


@dataclass(frozen=True)
class Topology:
    """`datacenters`: one or two, called dc1 and dc2; `shipping`: how many of them ship, the first ones."""

    datacenters: int = 1
    shipping: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.shipping <= self.datacenters <= 2:
            raise ValueError(f"there is no ring of {self.datacenters} datacenters of which {self.shipping} ship")

    @property
    def names(self) -> list[str]:
        return [f"dc{number + 1}" for number in range(self.datacenters)]

    @property
    def shipped(self) -> list[str]:
        """The datacenters that ship."""
        return self.names[: self.shipping]

    @property
    def nodes(self) -> list[str]:
        """The datacenter of each node, in the order of their numbers."""
        return [name for name in self.names for _ in range(self.factor)]

    @property
    def factor(self) -> int:
        """Replicas in each datacenter."""
        return _ONE if self.datacenters == 1 else _TWO

    @property
    def expected(self) -> int:
        """Replicas whose logs are shipped."""
        return self.factor * self.shipping

    @property
    def replication(self) -> str:
        """CQL of the keyspaces' replication."""
        return self.of_each(self.factor)

    def of_each(self, factor: int) -> str:
        """CQL of a replication with so many replicas in each datacenter."""
        return _replication(dict.fromkeys(self.names, factor))

    @property
    def single(self) -> str:
        """CQL of the replication of a keyspace with one replica, whose log is shipped."""
        return _replication({self.names[0]: 1})

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What cassandra.yaml says in some datacenters."""
        unshipped = {"cdc_block_writes": False, "cdc_total_space_in_mb": 8}
        return dict.fromkeys(self.names[self.shipping :], unshipped)


def _replication(factors: dict[str, int]) -> str:
    of_each = ", ".join(f"'{name}': {factor}" for name, factor in factors.items())
    return f"{{'class': 'NetworkTopologyStrategy', {of_each}}}"


ONE_DATACENTER: Final = Topology()
