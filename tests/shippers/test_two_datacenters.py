"""What a cluster of two datacenters does, on real nodes, and what a shipper and the readers of tables make of it
(docs/datacenters.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proof.harness.cassandra import Ring
from spark_jobs.cassandra_reader import Ring as Reader
from writetime.config.cluster import ClusterConfig, CqlConfig
from writetime.errors import BatchError

pytestmark = [pytest.mark.cassandra, pytest.mark.thorough]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A node in each datacenter; that of dc2 does not capture."""
    off = {"dc2": {"cdc_enabled": False}}
    with Ring(tmp_path_factory.mktemp("two"), nodes=2, segment_mb=1, heap="400M", datacenter=("dc1", "dc2"), settings_of=off) as ring:
        yield ring


def test_a_schema_change_by_a_node_that_does_not_capture_switches_cdc_off(ring: Ring) -> None:
    one, two = (node.session("ONE") for node in ring.nodes)
    one.execute("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1, 'dc2': 1}")
    one.execute("CREATE TABLE k.t (p int PRIMARY KEY) WITH cdc = true")
    assert captured(one) == {"t": True}
    two.execute("ALTER TABLE k.t ADD v text")
    ring.wait_until_connected()
    assert captured(one) == {"t": None}
    one.execute("ALTER TABLE k.t WITH cdc = true")
    two.execute("CREATE TABLE k.u (p int PRIMARY KEY) WITH cdc = true")
    assert captured(one) == {"t": True, "u": None}


def captured(session: Any) -> dict[str, bool | None]:
    rows = session.execute("SELECT table_name, cdc FROM system_schema.tables WHERE keyspace_name = 'k'")
    return {row.table_name: row.cdc for row in rows}


@pytest.mark.advice("Correct cluster.cql.datacenter, or cluster.datacenters.")
def test_tables_are_read_by_the_datacenter_that_is_configured(ring: Ring, tmp_path: Path) -> None:
    cql = CqlConfig(contact_points=[ring.nodes[0].address], port=ring.nodes[0].port)
    assert ClusterConfig(name="test", datacenters=["dc1", "dc2"], cql=cql).read_in == "dc1"
    elsewhere = ClusterConfig(name="test", datacenters=["dc1"], cql=cql.model_copy(update={"datacenter": "dc2"}))
    with Reader(cql, datacenter=elsewhere.read_in) as reader:
        rows = reader.rows("SELECT data_center FROM system.local", [], 0).rows
        assert [row[0] for row in rows] == [b"dc2"]
    with pytest.raises(BatchError, match="no node is in the datacenter dc3; the cluster has dc1, dc2") as raised:
        Reader(cql, datacenter="dc3")
    assert not raised.value.retriable
