"""Sessions of the Python driver for tests: one consistency level each, long time-outs, closed together.

Knows addresses and ports, no nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import (
    ConstantReconnectionPolicy,
    FallthroughRetryPolicy,
    LoadBalancingPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
    WhiteListRoundRobinPolicy,
)

# Protocol version 4: the newest one that 4.0, 4.1 and 5.0 support equally.
PROTOCOL_VERSION = 4
REQUEST_SECONDS = 60.0


class Connections:
    """Opened sessions, to be closed at the end."""

    def __init__(self) -> None:
        self._clusters: list[Cluster] = []

    def open(self, addresses: Sequence[str], port: int, consistency: str, *, only: bool = False) -> Session:
        """A session at a consistency level (`ONE`, `QUORUM`, `ALL`, …); with `only`, all requests go to these
        addresses.
        """
        policy: LoadBalancingPolicy = WhiteListRoundRobinPolicy(list(addresses)) if only else TokenAwarePolicy(RoundRobinPolicy())
        profile = ExecutionProfile(
            load_balancing_policy=policy,
            # A retried write would be two mutations in the log: tests count them.
            retry_policy=FallthroughRetryPolicy(),
            consistency_level=ConsistencyLevel.name_to_value[consistency],
            request_timeout=REQUEST_SECONDS,
        )
        cluster = Cluster(
            list(addresses),
            port=port,
            protocol_version=PROTOCOL_VERSION,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(0.5, max_attempts=None),
            connect_timeout=20,
            control_connection_timeout=20,
        )
        self._clusters.append(cluster)
        return cluster.connect()

    def close(self) -> None:
        """Close every session that was opened here."""
        clusters, self._clusters = self._clusters, []
        for cluster in clusters:
            cluster.shutdown()
