"""Record what this version's shipper ships from a real node: `python -m tests.shippers.record NAME`.

Run it in a working copy of the version to record. A Cassandra node with segments of 1 MiB is written to while
a shipper with tails runs; then it is stopped and drained. The objects in the bucket and the tables' rows are
written to tests/recordings/shippers/NAME.json.xz, which tests/spark_jobs/test_skew.py gives to the jobs of
later versions:

    {"cassandra": release, "cluster": …, "rows": [[id, line, note], …],
     "objects": [{"name": …, "metadata": {…}, "data": base64}, …]}
"""

from __future__ import annotations

import base64
import json
import lzma
import sys
import tempfile
import time
from pathlib import Path
from threading import Event
from typing import Any

from proof.harness.cassandra import VERSIONS, Ring
from shippers.agent import Agent
from shippers.node_identity import Link
from writetime.config.cluster import ClusterConfig
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.storage import open_store

FOLDER = Path(__file__).resolve().parents[1] / "recordings" / "shippers"
_SECONDS = 300


def main() -> None:
    with tempfile.TemporaryDirectory() as text, Ring(Path(text) / "ring", segment_mb=1, heap="512M") as ring:
        document = _record(ring, Path(text))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{sys.argv[1]}.json.xz").write_bytes(lzma.compress(json.dumps(document, sort_keys=True).encode(), preset=9))


def _record(ring: Ring, folder: Path) -> dict[str, Any]:
    node = ring.nodes[0]
    session = ring.session("ONE")
    session.execute("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}")
    session.execute("CREATE TABLE shop.orders (id int, line int, note text, PRIMARY KEY (id, line)) WITH cdc = true")
    session.execute("CREATE TABLE shop.gone (id int PRIMARY KEY, note text) WITH cdc = true")
    insert = session.prepare("INSERT INTO shop.orders (id, line, note) VALUES (?, ?, ?)")
    session.execute("INSERT INTO shop.gone (id, note) VALUES (1, 'before')")
    with Link(NodeConfig(cdc_raw=node.cdc_raw, address=node.address, port=node.port)) as link:
        facts = link.facts()
        config = PipelineConfig(
            pipeline="recorded",
            cluster=ClusterConfig(name=facts["cluster"], datacenters=[facts["datacenter"]]),
            bucket=str(folder / "bucket"),
            node=NodeConfig(
                cdc_raw=node.cdc_raw,
                address=node.address,
                port=node.port,
                state_dir=folder / "state",
                ship=ShipConfig(tail_seconds=0.001),
            ),
        )
        store = open_store(config.bucket)
        agent = Agent(config, store, link=link, stop=Event())
        _write(session, insert, agent, store)
        rows = sorted([list(row) for row in session.execute("SELECT id, line, note FROM shop.orders")])
        session.cluster.shutdown()
        node.stop()
        assert agent.round(drain=True).ok
    objects = [
        {"name": info.name, "metadata": dict(info.metadata), "data": base64.b64encode(store.read(info.name)).decode()}
        for info in store.list("")
    ]
    return {"cassandra": VERSIONS[0], "cluster": facts["cluster"], "rows": rows, "objects": objects}


def _write(session: Any, insert: Any, agent: Agent, store: Any) -> None:
    """Rows until the shipper has shipped two segments, a TRUNCATE, deletes; tails in between."""
    deadline, key = time.monotonic() + _SECONDS, 0
    while len(list(store.list("cdc/"))) < 2:
        assert time.monotonic() < deadline, "the node sealed no segments"
        for line in range(20):
            session.execute(insert, (key, line, f"{key}.{line} " + "x" * 2_000))
        session.execute(f"DELETE FROM shop.orders WHERE id = {key} AND line = 3")
        key += 1
        # The node syncs once a second.
        time.sleep(0.1)
        agent.round()
    session.execute("TRUNCATE shop.gone")
    session.execute("ALTER TABLE shop.orders WITH comment = 'seen by the second snapshot'")
    session.execute("DELETE FROM shop.orders WHERE id = 1")
    time.sleep(2)
    agent.round()


if __name__ == "__main__":
    main()
