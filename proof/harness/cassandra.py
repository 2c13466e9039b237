"""A cluster of real Cassandra nodes on loopback addresses: 127.0.0.1, 127.0.0.2, …; one token each, evenly
spaced.

    with Ring(folder, nodes=3) as ring:
        session = ring.session("ALL")
        ring.stop(ring.nodes[2])

Strategy: nodes are child processes, started one after the other and stopped by their pids. Ports are chosen
before the first start: the default ones, or the next that are free on every address. Each node is its own
rack, so that NetworkTopologyStrategy distributes replicas. Knows nothing about the data.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cassandra.cluster import Session

from proof.harness import driver
from proof.harness.node import Node, Ports
from tools.errors import ServiceError
from tools.services import ports

VERSIONS = ("5.0.6", "4.1.10", "4.0.18")
PRERELEASE = "6.0-alpha2"
"""The newest version that is not released yet: only proofs that ask for it run it."""
KNOWN = (PRERELEASE, *VERSIONS)
SEE_EACH_OTHER_SECONDS = 120.0
_PORTS_TRIED = 99
_APART = 100
"""Processes begin to look for ports in so many places: rings that start at the same time would find the same ones free."""
_KEEPS_METADATA = 6
"""The first major version in which some nodes keep the metadata of all, and have to agree on each change."""
_SPREAD = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: multiples of it fall between each other."""


def version_of(text: str) -> str:
    """The version of a command line: `6.0` is the known one that begins so; any other is taken as it is."""
    return next((version for version in KNOWN if version.startswith(text)), text)


class Ring:
    """A ring that keeps everything under `folder`.

    `segment_mb` is the size of a commit log segment (a mutation may have half of it), `cdc_total_mb` how
    much cdc_raw may hold. `spares` is how many addresses more are kept for nodes that join later.
    `compression` is a commit log compressor's class name, `compatibility` the storage_compatibility_mode
    from 5.0 on (`NONE` writes version 8 segments in 5.0, `CASSANDRA_4` version 7 segments in 6.0).
    `datacenter` is that of all nodes, or one for each of the first ones; later nodes are in the first one's.
    `settings` goes into every cassandra.yaml last, after it what `settings_of` has for the node's datacenter;
    the names of 4.0 replace what is set here. `options` go on every JVM's command line.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        spares: int = 0,
        version: str = VERSIONS[0],
        heap: str = "640M",
        cluster_name: str = "test",
        datacenter: str | Sequence[str] = "dc1",
        settings_of: Mapping[str, Mapping[str, Any]] | None = None,
        segment_mb: int = 4,
        cdc_total_mb: int = 1024,
        compression: str | None = None,
        compatibility: str | None = None,
        settings: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.folder = folder.resolve()
        self.version = version
        self.cluster_name = cluster_name
        own: dict[str, Any] = {"commitlog_segment_size_in_mb": segment_mb, "cdc_total_space_in_mb": cdc_total_mb}
        if compression is not None:
            own["commitlog_compression"] = [{"class_name": compression}]
        if compatibility is not None:
            own["storage_compatibility_mode"] = compatibility
        own.update(settings or {})
        self._common: dict[str, Any] = {"heap": heap, "options": options}
        self._datacenters = [datacenter] * nodes if isinstance(datacenter, str) else list(datacenter)
        self._own_of = dict(settings_of or {})
        self._own, self._first = own, nodes
        self._chosen, self._next_jmx = self._ports(nodes + spares), 7199 + 8 * (os.getpid() % _APART)
        self._made: list[Node] = []
        self.nodes = [self._node(number) for number in range(1, nodes + 1)]
        self._newest = nodes
        self._connections = driver.Connections()

    def start(self) -> Self:
        """Start all nodes and wait until each sees all others. ServiceError names the node that does not;
        then everything is stopped.
        """
        try:
            for node in self.nodes:
                node.start()
            self.wait_until_connected()
            self._share_metadata()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close sessions and stop nodes; every node completes its segments."""
        self._connections.close()
        for node in self._made:
            node.terminate()
        for node in self._made:
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def stop(self, node: Node) -> None:
        """Stop one node cleanly, and wait until the others see it down."""
        node.stop()
        self.wait_until_connected()

    def kill(self, node: Node) -> None:
        """Kill one node, and wait until the others see it down."""
        node.kill()
        self.wait_until_connected()

    def restart(self, node: Node) -> None:
        """Start a node again, after stopping it if it runs, and wait until all see each other."""
        node.stop()
        node.start()
        self.wait_until_connected()

    def upgrade(self, node: Node, version: str) -> None:
        """Start a node of a ring of an earlier version again, with this version over its data."""
        node.stop()
        node.version = version
        node.start()

    def upgraded(self, version: str) -> None:
        """Say that all nodes have this version now: what joins later has it too, and from 6.0 on the ring is given
        metadata of its own, without which it refuses DDL."""
        before, self.version = self.version, version
        self.wait_until_connected()
        if _major(before) < _KEEPS_METADATA <= _major(version):
            self.nodes[0].nodetool("cms", "initialize")
        self._share_metadata()

    def _share_metadata(self) -> None:
        """From 6.0 on, let all nodes keep the cluster's metadata: if it were the first node alone, there would be no
        DDL while it is down."""
        if len(self.nodes) > 1 and _major(self.version) >= _KEEPS_METADATA:
            self.nodes[0].nodetool("cms", "reconfigure", str(len(self.nodes)))

    def nodetool(self, node: Node, *arguments: str) -> str:
        """The output of `nodetool <arguments>` on a node."""
        return node.nodetool(*arguments)

    def cdc_raw(self, node: Node) -> Path:
        """Folder that the node links its segments into."""
        return node.cdc_raw

    def session(self, consistency: str = "QUORUM", *, only: Sequence[Node] = ()) -> Session:
        """A driver session on all running nodes, or on those alone, closed with the ring."""
        running = [node.address for node in only or self.nodes if node.running]
        return self._connections.open(running, self.nodes[0].port, consistency, only=bool(only))

    def wait_until_connected(self) -> None:
        """Wait until every running node knows every node, and sees exactly the running ones as up."""
        deadline = time.monotonic() + SEE_EACH_OTHER_SECONDS
        up = {node.address for node in self.nodes if node.running}
        for node in (node for node in self.nodes if node.running):
            while (seen := seen_up(node)) != up:
                if time.monotonic() > deadline:
                    raise ServiceError(f"{node.name} ({node.address}) sees {sorted(seen)} up, not {sorted(up)}; its log: {node.log}")
                time.sleep(0.5)

    def newcomer(self, *, replacing: Node | None = None) -> Node:
        """A node that is not there yet. Its `start` makes it join, or take the place of one that is dead;
        then it belongs into `nodes`.
        """
        self._newest += 1
        node = self._node(self._newest)
        # Between the others' tokens; a replacement takes over the token.
        token = {} if replacing else {"initial_token": str(-(2**63) + self._newest * _SPREAD % 2**64)}
        own = {name: value for name, value in node.settings.items() if name != "initial_token"}
        node.settings = own | token | {"auto_bootstrap": True}
        if replacing is not None:
            node.options = [*node.options, f"-Dcassandra.replace_address_first_boot={replacing.address}"]
        return node

    def _ports(self, count: int) -> Ports:
        addresses, apart = [_address(number) for number in range(1, count + 1)], os.getpid() % _APART
        return Ports(cql=free_port(9042 + apart, addresses), storage=free_port(7000 + apart, addresses))

    def _node(self, number: int) -> Node:
        jmx = ports.choose(self._next_jmx, f"JMX of node {number}")
        self._next_jmx = jmx + 1
        datacenter = self._datacenters[number - 1 if number <= len(self._datacenters) else 0]
        node = Node(
            number=number,
            address=_address(number),
            folder=self.folder / f"node{number}",
            version=self.version,
            ports=self._chosen,
            jmx_port=jmx,
            settings=self._settings(number) | self._own | dict(self._own_of.get(datacenter, {})),
            datacenter=datacenter,
            rack=f"rack{number}",
            **self._common,
        )
        self._made.append(node)
        return node

    def _settings(self, number: int) -> dict[str, Any]:
        # All of the first nodes are seeds: a restarted node finds the others, whichever are up.
        seeds = {"seeds": ",".join(f"{_address(first)}:{self._chosen.storage}" for first in range(1, self._first + 1))}
        return {
            "cluster_name": self.cluster_name,
            "num_tokens": 1,
            "initial_token": str(-(2**63) + (number - 1) * (2**64 // self._first)),
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "seed_provider": [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [seeds]}],
            "endpoint_snitch": "GossipingPropertyFileSnitch",
            "listen_address": _address(number),
            "rpc_address": _address(number),
            "native_transport_port": self._chosen.cql,
            "storage_port": self._chosen.storage,
            # All nodes start empty: nothing to stream.
            "auto_bootstrap": False,
            "cdc_enabled": True,
            "cdc_free_space_check_interval_ms": 250,
            "commitlog_sync": "periodic",
            "commitlog_sync_period_in_ms": 1000,
            "hinted_handoff_enabled": True,
            "hints_flush_period_in_ms": 1000,
            "concurrent_reads": 8,
            "concurrent_writes": 16,
            "concurrent_compactors": 1,
            "key_cache_size_in_mb": 8,
            # A laptop under load is not a broken node.
            "write_request_timeout_in_ms": 20000,
            "read_request_timeout_in_ms": 20000,
            "request_timeout_in_ms": 20000,
            "truncate_request_timeout_in_ms": 60000,
        }


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _address(number: int) -> str:
    return f"127.0.0.{number}"


def free_port(preferred: int, addresses: Iterable[str]) -> int:
    """The first port from `preferred` on that is free on all addresses. ServiceError if an address is missing
    or no port is free.
    """
    addresses = list(addresses)
    for address in addresses:
        _require_address(address)
    for port in range(preferred, preferred + _PORTS_TRIED):
        if all(_is_free(address, port) for address in addresses):
            return port
    raise ServiceError(
        f"No port from {preferred} to {preferred + _PORTS_TRIED - 1} is free on {', '.join(addresses)}. Stop what uses them and try again."
    )


def _require_address(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise ServiceError(
                f"The loopback address {address} is not there ({error.strerror}). On macOS: sudo ifconfig lo0 alias {address}"
            ) from error


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def seen_up(node: Node) -> set[str]:
    """Addresses that a node reports as up and normal (`UN` in nodetool status)."""
    return set(re.findall(r"^UN\s+([\d.]+)", node.nodetool("status"), re.MULTILINE))
