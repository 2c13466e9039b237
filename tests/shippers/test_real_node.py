"""With a real node: its identity and schema, and the states of its cdc_raw folder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

import pytest

from proof.harness.cassandra import VERSIONS, Ring
from shippers.after_crash import drain, settle
from shippers.agent import Agent
from shippers.folder import State, classify, look
from shippers.node_identity import Link
from shippers.open_file_probe import nobody_writes
from shippers.upload import Outcome
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.cassandra.schema.history import SchemaLearner
from writetime.config.cluster import ClusterConfig
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError, ShipError
from writetime.storage import layout, segment_parts
from writetime.storage.layout import SegmentRef
from writetime.storage.local import LocalStore

pytestmark = pytest.mark.cassandra

KEYSPACE = "shipper_test"


@pytest.fixture(scope="module")
def session(cassandra_node: Any) -> Any:
    session = cassandra_node.session()
    session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    session.execute(f"CREATE TYPE {KEYSPACE}.address (street text, zip int)")
    session.execute(
        f'CREATE TABLE {KEYSPACE}.orders (tenant text, day int, "Id" timeuuid, note text, gone int, tags map<text, int>, '
        f'home frozen<address>, PRIMARY KEY ((tenant, day), "Id")) WITH cdc = true AND CLUSTERING ORDER BY ("Id" DESC) AND comment = \'é\''
    )
    session.execute(f"ALTER TABLE {KEYSPACE}.orders DROP gone")
    return session


@pytest.fixture(scope="module")
def link(cassandra_node: Any) -> Iterator[Link]:
    with Link(NodeConfig(cdc_raw=cassandra_node.cdc_raw, address=cassandra_node.address, port=cassandra_node.port)) as link:
        yield link


@pytest.fixture
def settings(cassandra_node: Any, link: Link, tmp_path: Path) -> PipelineConfig:
    facts = link.facts()
    return PipelineConfig(
        pipeline="demo",
        cluster=ClusterConfig(name=facts["cluster"], datacenters=[facts["datacenter"]]),
        bucket=str(tmp_path / "bucket"),
        node=NodeConfig(cdc_raw=cassandra_node.cdc_raw, address=cassandra_node.address, port=cassandra_node.port, state_dir=tmp_path),
    )


def test_the_node_tells_who_it_is(link: Link, session: Any, cassandra_node: Any) -> None:
    facts = link.facts()
    row = session.execute("SELECT * FROM system.local").one()
    assert (facts["cluster"], facts["datacenter"], facts["rack"]) == (row.cluster_name, row.data_center, row.rack)
    assert UUID(facts["host_id"]) == row.host_id
    assert facts["address"] == cassandra_node.address
    assert facts["release_version"] == row.release_version
    assert [int(token) for token in facts["tokens"]] == sorted(int(token) for token in row.tokens)


def test_the_node_records_its_truncations(link: Link, session: Any) -> None:
    (table_id,) = session.execute(
        "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 'orders'", (KEYSPACE,)
    ).one()
    before = time.time() * 1000
    session.execute(f"TRUNCATE {KEYSPACE}.orders")
    (record,) = [each for each in link.truncations() if each["table_id"] == str(table_id)]
    assert record["segment"] > 0
    assert before - 1000 <= record["at"] <= time.time() * 1000 + 1000


def test_the_snapshot_is_the_nodes_schema(link: Link, session: Any) -> None:
    snapshot = json.loads(json.dumps(link.snapshot()))
    assert snapshot["schema_version"] == link.schema_version()
    (table,) = [row for row in snapshot["tables"] if row["keyspace_name"] == KEYSPACE]
    stored = session.execute("SELECT id, WRITETIME(id) FROM system_schema.tables WHERE keyspace_name = %s", (KEYSPACE,)).one()
    assert (table["id"], table["writetime"]) == (str(stored[0]), stored[1])
    assert (table["cdc"], table["flags"], table["comment"], table["default_time_to_live"]) == (True, ["compound"], "é", 0)
    columns = {row["column_name"]: row for row in snapshot["columns"] if row["keyspace_name"] == KEYSPACE}
    assert {name: (row["kind"], row["position"], row["type"], row["clustering_order"]) for name, row in columns.items()} == {
        "tenant": ("partition_key", 0, "text", "none"),
        "day": ("partition_key", 1, "int", "none"),
        "Id": ("clustering", 0, "timeuuid", "desc"),
        "note": ("regular", -1, "text", "none"),
        "tags": ("regular", -1, "map<text, int>", "none"),
        "home": ("regular", -1, "frozen<address>", "none"),
    }
    assert columns["Id"]["column_name_bytes"] == b"Id".hex()
    (dropped,) = [row for row in snapshot["dropped_columns"] if row["keyspace_name"] == KEYSPACE]
    assert (dropped["column_name"], dropped["type"], dropped["kind"]) == ("gone", "int", "regular")
    cell = session.execute(
        "SELECT toUnixTimestamp(dropped_time), WRITETIME(dropped_time) FROM system_schema.dropped_columns WHERE keyspace_name = %s",
        (KEYSPACE,),
    ).one()
    assert (dropped["dropped_time"], dropped["writetime"]) == tuple(cell)
    (type_,) = [row for row in snapshot["types"] if row["keyspace_name"] == KEYSPACE]
    assert (type_["field_names"], type_["field_types"]) == (["street", "zip"], ["text", "int"])
    (keyspace,) = [row for row in snapshot["keyspaces"] if row["keyspace_name"] == KEYSPACE]
    assert keyspace["replication"]["replication_factor"] == "1"
    everything = [row for name, rows in snapshot.items() if isinstance(rows, list) for row in rows]
    assert all(isinstance(row["writetime"], int) for row in everything)


def test_the_core_learns_the_tables_from_the_snapshot(link: Link, session: Any) -> None:
    learner = SchemaLearner()
    assert learner.apply_snapshot(json.loads(json.dumps(link.snapshot())))
    table = learner.schema().table(KEYSPACE, "orders")
    assert table is not None
    assert [column.name for column in table.partition_key] == ["tenant", "day"]
    assert [(column.name, column.descending) for column in table.clustering] == [("Id", True)]
    assert (table.cdc, sorted(table.dropped_columns)) == (True, ["gone"])


def test_a_configuration_that_contradicts_the_node(settings: PipelineConfig, link: Link, session: Any) -> None:
    wrong = settings.model_copy(update={"cluster": ClusterConfig(name="another ring", datacenters=["dc1"])})
    with pytest.raises(ConfigError, match="another ring"):
        Agent(wrong, LocalStore(settings.bucket), link=link, stop=Event()).round()


def test_parts_are_the_beginning_of_what_the_node_seals(settings: PipelineConfig, link: Link, session: Any, cassandra_node: Any) -> None:
    assert settings.node is not None
    node = settings.node.model_copy(update={"ship": ShipConfig(tail_seconds=0.001)})
    store = LocalStore(settings.bucket)
    agent = Agent(settings.model_copy(update={"node": node}), store, link=link, stop=Event())
    insert = session.prepare(f'INSERT INTO {KEYSPACE}.orders (tenant, day, "Id", note) VALUES (?, ?, now(), ?)')
    kept: dict[SegmentRef, dict[str, bytes]] = {}
    begun = time.monotonic()
    deadline = begun + 300
    while not (whole := [ref for ref, found in kept.items() if len(found) > 2 and store.head(ref.incoming)]):
        assert time.monotonic() < deadline, f"of {len(kept)} segments none was shipped in three parts and as a whole"
        for result in [session.execute_async(insert, ("t", day, "x" * 2_500)) for day in range(20)]:
            result.result()
        # The node syncs once a second: a segment of 1 MiB has to last for some of these.
        time.sleep(0.25)
        assert agent.round().ok
        for ref, part in segment_parts.found(store, "cdc_parts/"):
            if part.info.name not in kept.setdefault(ref, {}):
                kept[ref][part.info.name] = store.read(part.info.name)
    for ref in whole:
        sealed = store.read(ref.incoming)
        beginning = b"".join(kept[ref][name] for name in sorted(kept[ref]))
        assert sealed.startswith(beginning)
        assert len(beginning) > 100_000
    # The node syncs once a second, and when a segment ends; the shipper looked four times a second.
    assert sum(map(len, kept.values())) <= time.monotonic() - begun + len(kept) + 1


def test_segments_go_as_the_node_seals_them(settings: PipelineConfig, link: Link, session: Any, cassandra_node: Any) -> None:
    store = LocalStore(settings.bucket)
    agent = Agent(settings, store, link=link, stop=Event())
    insert = session.prepare(f'INSERT INTO {KEYSPACE}.orders (tenant, day, "Id", note) VALUES (?, ?, now(), ?)')
    deadline = time.monotonic() + 300
    while not (sealed := completed(cassandra_node.cdc_raw)):
        assert time.monotonic() < deadline, "the node sealed no segment"
        for result in [session.execute_async(insert, ("t", day, "x" * 10_000)) for day in range(100)]:
            result.result()
    before = {name: (cassandra_node.cdc_raw / name).read_bytes() for name in sealed}
    result = agent.round()
    assert result.ok
    assert result.shipped[Outcome.UPLOADED] >= len(before)
    shipped = {info.name.split("/")[-1]: info for info in store.list("cdc/")}
    assert {name: store.read(shipped[name].name) for name in before} == before
    assert not before.keys() & set(completed(cassandra_node.cdc_raw))
    facts = link.facts()
    assert all(info.metadata["host_id"] == facts["host_id"] for info in shipped.values())
    assert [info.name.endswith(f"-{link.schema_version()}-agreed.json") for info in store.list(layout.schema_prefix(facts["cluster"]))] == [
        True
    ]
    session.execute(f"ALTER TABLE {KEYSPACE}.orders ADD later int")
    agent.round()
    assert len(list(store.list(layout.schema_prefix(facts["cluster"])))) == 2
    session.execute(insert, ("t", 0, "the node goes on"))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_settings_of_cdc_as_each_version_shows_them(version: str, tmp_path: Path) -> None:
    set_here = {"cdc_total_space_in_mb": 512, "commitlog_sync_period_in_ms": 2000}
    # 4.0 has no such setting: it always refuses writes when the space is full.
    set_here |= {} if version.startswith("4.0") else {"cdc_block_writes": False}
    with Ring(tmp_path, version=version, heap="512M", settings=set_here) as ring:
        node = ring.nodes[0]
        with Link(NodeConfig(cdc_raw=node.cdc_raw, address=node.address, port=node.port)) as link:
            assert link.settings() == CdcSettings(
                cdc_enabled=True,
                cdc_block_writes=None if version.startswith("4.0") else False,
                # From 5.0 on.
                cdc_on_repair_enabled=None if version.startswith("4.") else True,
                cdc_total_space=512 << 20,
                commitlog_sync="periodic",
                commitlog_sync_ms=2000,
            )


def test_a_node_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """What the shipper relies on: the kernel knows whether the node writes, and a replay completes with the
    file's length.
    """
    with Ring(tmp_path, segment_mb=1, heap="512M") as ring:
        node = ring.nodes[0]
        session = ring.session("ONE")
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE k.t (p int PRIMARY KEY, v text) WITH cdc = true")
        with Link(NodeConfig(cdc_raw=node.cdc_raw, address=node.address, port=node.port)) as link:
            assert link.settings().cdc_total_space == 1 << 30
        insert = session.prepare("INSERT INTO k.t (p, v) VALUES (?, ?)")
        deadline = time.monotonic() + 60
        while not (growing := in_state(node.cdc_raw, State.GROWING)):
            assert time.monotonic() < deadline, "no index appeared"
            session.execute(insert, (1, "x" * 1000))
            time.sleep(0.2)
        assert all(nobody_writes(node.cdc_raw / name) is False for name in growing)
        with pytest.raises(ShipError, match="open for writing"):
            drain(node.cdc_raw, classify(look(node.cdc_raw)), now=time.time(), patience=300, answers=lambda: True)
        session.cluster.shutdown()
        node.kill()
        torn = {name: (node.cdc_raw / name).read_bytes() for name in in_state(node.cdc_raw, State.GROWING)}
        assert torn
        assert all(nobody_writes(node.cdc_raw / name) for name in torn)
        settled, _ = settle(node.cdc_raw, classify(look(node.cdc_raw)), now=time.time(), patience=0)
        assert [item.name for item in settled if item.state is State.AFTER_CRASH] == sorted(torn)
        node.start()
        replayed = {item.name for item in classify(look(node.cdc_raw)) if item.replayed}
        assert replayed == torn.keys()
        assert {name: (node.cdc_raw / name).read_bytes() for name in torn} == torn, "shipped before or after, the bytes are the same"
        node.stop()
        left = drain(node.cdc_raw, classify(look(node.cdc_raw)), now=time.time(), patience=300, answers=lambda: True)
        assert {item.state for item in left} <= {State.COMPLETED, State.AFTER_CRASH, State.PREALLOCATED}


def in_state(folder: Path, state: State) -> list[str]:
    return [found.name for found in classify(look(folder)) if found.state is state]


def completed(folder: Path) -> list[str]:
    return in_state(folder, State.COMPLETED)
