"""The proof's run: a ring of three nodes with a shipper each, a streaming session, a broker, and one row of every
write in one node's log only.

    steady ─► one node is quiet ─► one is killed ─► it is back ─► another forgets one, which ships nothing ─► it ships again
    ─► one joins without a shipper ─► with one ─► it leaves

or of two datacenters with two nodes each, of which both or one ship:

    steady ─► a node of the second is killed ─► it is back ─► one of the first is killed ─► it is back

Strategy: with replication factor 1 each write is in the log of one node, so nothing that one node lacks comes
from another. All parts are the product's; the session runs in a thread, the shippers in one each. In each state
T must not be too early (`truth`), and must do what the state requires: keep up, or stand still and name the node.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from proof.complete.truth import KEYSPACE, TABLE, Tables, Topics, Writes, quantiles
from proof.harness.cassandra import Ring
from proof.harness.node import Node
from proof.ring.topology import ONE_DATACENTER, Topology
from shippers.agent import Agent, Mode
from shippers.node_identity import Link
from spark_jobs import stream
from tests.spark_jobs.conf import spark_conf
from tools.console import say, step
from tools.services.kafka import Kafka
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig, load
from writetime.pipeline import watermark
from writetime.storage import open_store

CLUSTER = "complete"
KEEPS_UP = 60.0
"""Seconds that T may be behind besides what is subtracted for the sync, and seconds until a node that holds it is
named."""
_PATIENCE = 300.0


def measure(sync: float, seconds: float, rate: float, topology: Topology = ONE_DATACENTER) -> dict[str, Any]:
    """All figures; `troubles` says what was wrong."""
    with tempfile.TemporaryDirectory(prefix="writetime-complete-") as name, ExitStack() as stack:
        folder = Path(name)
        with step(f"{len(topology.nodes)} nodes, a broker and a session"):
            # One token per node: their ranges are known.
            settings = {"commitlog_sync_period_in_ms": int(sync * 1000)}
            ring = stack.enter_context(
                Ring(
                    folder / "ring",
                    nodes=len(topology.nodes),
                    spares=1,
                    cluster_name=CLUSTER,
                    heap="512M",
                    datacenter=topology.nodes,
                    settings=settings,
                    settings_of=topology.settings,
                )
            )
            kafka = stack.enter_context(Kafka(folder / "kafka", port=0))
            config = _config(folder, kafka, topology.shipped)
            # In each datacenter one log has a write; it is acknowledged by that of the first.
            local = [node for node in ring.nodes if node.datacenter == topology.names[0]]
            session = ring.session("LOCAL_ONE", only=local)
            session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {topology.of_each(1)}")
            session.execute(f"CREATE TABLE {KEYSPACE}.{TABLE} (id bigint PRIMARY KEY, text text) WITH cdc = true")
        run = Run(config, ring, Writes(session, rate), seconds, 2.5 * sync, topology)
        for node in run.shipped():
            run.shippers[node.number] = stack.enter_context(ExitStack())
            run.shippers[node.number].enter_context(run.shipping(node))
        topics = stack.enter_context(Topics().read(kafka.bootstrap, f"c.{KEYSPACE}.{TABLE}", "__debezium-heartbeat.c"))
        with _session(config, folder / "pipeline.yaml"), run.writes.running(), run.tables.watched():
            run.play()
        time.sleep(1)
        ages = [age for at, age in run.tables.behind if any(begin <= at < end for begin, end in run.kept_up)]
        run.troubles += run.writes.note_lost(run.killed, run.unsynced)
        early = [*run.tables.troubles(), *topics.troubles(run.writes)]
        return {
            "writes": len(run.writes.acknowledged),
            "refused": run.writes.refused,
            "lost_by_the_ring": len(run.writes.lost),
            "tables": len(run.tables.seen),
            "topics": len(topics.said),
            "early": len(early),
            "behind_s": quantiles(ages),
            "named_s": run.named,
            "troubles": early
            + run.troubles
            + ([] if topics.said else ["no heartbeat has said a T"])
            + ([] if topics.markers else ["no marker in the topic has said a T"]),
        }


def _config(folder: Path, kafka: Kafka, datacenters: list[str]) -> PipelineConfig:
    (folder / "lake").mkdir()
    document = {
        "pipeline": "complete",
        "cluster": {"name": CLUSTER, "datacenters": datacenters},
        "bucket": str(folder / "bucket"),
        "catalog": {"uri": f"jdbc:sqlite:{folder / 'lake' / 'catalog.db'}", "warehouse": str(folder / "lake" / "warehouse")},
        "kafka": {"bootstrap.servers": kafka.bootstrap, "topic.prefix": "c", "heartbeat.interval.ms": 1000, "complete_markers": True},
        "snapshot": {"mode": "never"},
        "airflow": {"mode": "session"},
        "spark": {"conf": spark_conf(folder) | {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}},
        # Some of a round's segments are left to the next batch.
        "segments_per_batch": 2,
        "buckets": 2,
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return load(path)


@contextmanager
def _session(config: PipelineConfig, path: Path) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(stream.run, config, source=stream.Source(path), seconds=3600, stop=stop)
        try:
            yield
        finally:
            stop.set()
            ended.result(_PATIENCE)


@dataclass
class Run:
    """The ring's states, one after the other. `kept_up`: when T had to keep up; `named`: by state, seconds until
    the node that holds T was named."""

    config: PipelineConfig
    ring: Ring
    writes: Writes
    seconds: float
    unsynced: float
    topology: Topology
    troubles: list[str] = field(default_factory=list)
    kept_up: list[tuple[float, float]] = field(default_factory=list)
    named: dict[str, float] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    """Host ids by the number of the node."""
    shippers: dict[int, ExitStack] = field(default_factory=dict)
    """By the number of the node: closed, it ships no more."""
    killed: float = 0.0
    """When a node was killed, in s since the epoch."""

    def __post_init__(self) -> None:
        catalog = Path(self.config.bucket).parent / "lake" / "catalog.db"
        self.tables = Tables(open_store(self.config.bucket), CLUSTER, catalog, self.writes)

    def play(self) -> None:
        if self.topology.datacenters == 1:
            self._play_one_datacenter()
        else:
            self._play_two_datacenters()
        self._wait(lambda: self.tables.until > max(self.writes.acknowledged.values()) - 1, "T after the last write", stop=True)

    def shipped(self) -> list[Node]:
        """The nodes whose logs are shipped."""
        return [node for node in self.ring.nodes if node.datacenter in self.topology.shipped]

    def _play_two_datacenters(self) -> None:
        self._wait(lambda: self.tables.until, "the first T", seconds=2 * _PATIENCE)
        self._keeps_up("steady")
        for node in (self.ring.nodes[-1], self.ring.nodes[1]):
            state = f"a node of {node.datacenter} is dead"
            self.killed = killed = time.time()
            self.ring.kill(node)
            if node in self.shipped():
                self._stands_still(state, node, killed)
            else:
                self._keeps_up(state)
            self.ring.restart(node)
            self._keeps_up(f"the dead node of {node.datacenter} is back")
        hosts = {host_of(path) for path in self.tables.last.nodes}
        if hosts != {self.hosts[node.number] for node in self.shipped()}:
            self.troubles.append(f"T is that of the nodes {sorted(hosts)}, which are not those that ship")

    def _play_one_datacenter(self) -> None:
        first, second, third = self.ring.nodes
        self._wait(lambda: self.tables.until, "the first T", seconds=2 * _PATIENCE)
        self._keeps_up("steady")
        # Node 3 owns what lies between the tokens of node 2 and its own.
        low, high = (int(node.settings["initial_token"]) for node in (second, third))
        self.writes.skips = lambda token: low < token <= high
        self._keeps_up("one node is quiet")
        self.writes.skips = lambda _: False
        self.killed = time.time()
        self.ring.kill(second)
        self._stands_still("one node is dead", second, self.killed)
        self.ring.restart(second)
        self._keeps_up("the dead node is back")
        self._forgets(first, third)
        self._joins(first)

    def _forgets(self, by: Node, node: Node) -> None:
        """A member's answers lack another one, which writes a log that is not shipped; those of a third name it."""
        self.shippers[node.number].close()
        stopped = time.time()
        peer = by.session().execute("SELECT JSON * FROM system.peers WHERE peer = %s", (node.address,)).one()[0]
        by.session().execute("DELETE FROM system.peers WHERE peer = %s", (node.address,))
        self._stands_still("a node is not shipped, and another does not name it", node, stopped)
        by.session().execute("INSERT INTO system.peers JSON %s", (peer,))
        self.shippers[node.number].enter_context(self.shipping(node))
        self._keeps_up("it is shipped and named again")

    def _joins(self, first: Node) -> None:
        newcomer = self.ring.newcomer()
        with step("a node joins"):
            newcomer.start()
        self.ring.nodes.append(newcomer)
        self.ring.wait_until_connected()
        self.note_host(newcomer)
        self._stands_still("a node without a shipper has joined", newcomer, time.time())
        with self.shipping(newcomer):
            self._keeps_up("its shipper runs")
            with step("it leaves"):
                newcomer.nodetool("decommission")
        self.ring.nodes.remove(newcomer)
        newcomer.stop()
        self._keeps_up("it has left")
        if any(host_of(path) == self.hosts[newcomer.number] for path in self.tables.last.nodes):
            self.troubles.append("a node that has left still holds T")

    @contextmanager
    def shipping(self, node: Node) -> Iterator[None]:
        """The node's shipper, in a thread."""
        self.note_host(node)
        state = node.folder / "shipper"
        about = NodeConfig(
            cdc_raw=node.cdc_raw, address=node.address, port=node.port, poll_seconds=1, state_dir=state, ship=ShipConfig(tail_seconds=1)
        )
        link, stop = Link(about), threading.Event()
        agent = Agent(self.config.model_copy(update={"node": about}), open_store(self.config.bucket), link=link, stop=stop)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(agent.run, Mode.SERVICE)
            try:
                yield
            finally:
                stop.set()
                ended.result(_PATIENCE)
                link.close()

    def _keeps_up(self, state: str) -> None:
        """After a while in which it may catch up, T follows the clock."""
        say(f"{state} …")
        most = self.unsynced + KEEPS_UP
        if not self._wait(lambda: time.time() - self.tables.until < most - KEEPS_UP / 2, f"{state}: T keeps up"):
            return
        begun, written, oldest = time.time(), len(self.writes.acknowledged), 0.0
        while time.time() < begun + self.seconds:
            time.sleep(0.5)
            oldest = max(oldest, time.time() - self.tables.until)
        if oldest > most:
            self.troubles.append(f"{state}: T was {oldest:.0f} s behind")
        self.kept_up.append((begun, time.time()))
        if len(self.writes.acknowledged) < written + self.seconds:
            self.troubles.append(f"{state}: {len(self.writes.acknowledged) - written} writes were acknowledged, too few to prove anything")

    def _stands_still(self, state: str, node: Node, at: float) -> None:
        """T does not pass the time `at`, and the node is named as the reason."""
        say(f"{state} …")
        named = self._wait(lambda: self._names(node), f"{state}: the node is named", seconds=KEEPS_UP)
        if named:
            self.named[state] = time.time() - at
        time.sleep(self.seconds)
        if self.tables.until > at:
            self.troubles.append(f"{state}: T passed that time by {self.tables.until - at:.1f} s")

    def _names(self, node: Node) -> bool:
        """Whether T is held by that node alone."""
        return [host_of(path) for path in watermark.behind(self.tables.last)] == [self.hosts[node.number]]

    def note_host(self, node: Node) -> None:
        self.hosts[node.number] = str(node.session().execute("SELECT host_id FROM system.local").one()[0])

    def _wait(self, holds: Callable[[], Any], what: str, seconds: float = _PATIENCE, *, stop: bool = False) -> bool:
        """Whether it holds in time; otherwise that is a trouble."""
        if stop:
            self.writes.skips = lambda _: True
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                self.troubles.append(f"{what}: not within {seconds:.0f} s")
                return False
            time.sleep(0.3)
        return True


def host_of(path: str) -> str:
    """The host id in a node's path."""
    return path.rsplit("/", 1)[1]
