"""Filler for idle nodes: the key's owner, when it is written, and that a real node completes its segment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shippers import filler
from shippers.agent import Agent
from shippers.filler import own_key
from shippers.folder import State, classify, look
from shippers.node_identity import Link
from tests.shippers.conftest import FakeLink, Folder
from tests.shippers.test_agent import changed
from writetime.cassandra.token_ring import HIGHEST, LOWEST, Member, Ownership, token
from writetime.config.node import FillerConfig, NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError
from writetime.storage.local import LocalStore

MakeAgent = Callable[..., Agent]
FILLER = FillerConfig(table="filler.rows", every_seconds=60)


@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([1, 4, 16]))
def test_the_key_is_the_nodes_own(seed: int, nodes: int, tokens: int) -> None:
    """By the rules that the audit goes by, for every node of a datacenter. Tokens are drawn as a node draws
    them, far apart.
    """
    random = Random(seed)
    drawn = [random.randint(LOWEST, HIGHEST) for _ in range(nodes * tokens)]
    members = [Member(f"host-{n}", "dc1", f"rack-{n}", tuple(sorted(drawn[n::nodes]))) for n in range(nodes)]
    ring = Ownership(members, ["dc1"])
    for member in members:
        key = own_key(member.tokens, drawn)
        assert ring.replicas({"class": "NetworkTopologyStrategy", "dc1": "1"}, token(key.to_bytes(4, "big"))) == {member.host_id}


def test_a_node_that_owns_next_to_nothing() -> None:
    with pytest.raises(ConfigError, match="owns none of"):
        own_key([1], [0, 1])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advances the filler's clock by a number of seconds."""
    ahead = [0.0]
    real = time.monotonic

    def go_on(seconds: float) -> None:
        ahead[0] += seconds

    class Time:
        monotonic = staticmethod(lambda: real() + ahead[0])

    monkeypatch.setattr(filler, "time", Time)
    return go_on


def filled(link: FakeLink) -> int:
    return link.asked.count("fill")


def test_it_is_written_when_due(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, clock: Callable[[float], None]
) -> None:
    link = FakeLink()
    agent = agent_over(store, link=link, config=changed(settings, ship=ShipConfig(filler=FILLER)))
    agent.round()
    assert filled(link) == 0
    clock(61)
    with capture_logs() as logs:
        agent.round()
        agent.round()
    assert filled(link) == 1
    assert [(log["table"], log["bytes"]) for log in logs if log["event"] == "segment filled"] == [("filler.rows", 32 << 20)]
    assert agent.metrics.registry.get_sample_value("writetime_ship_filler_bytes_total") == 32 << 20
    clock(50)
    folder.segment(1)
    agent.round()
    clock(50)
    agent.round()
    assert filled(link) == 1, "a segment was shipped less than a minute ago"
    clock(11)
    agent.round()
    assert filled(link) == 2


@pytest.mark.parametrize("why", ["no filler", "no link", "stopped", "no space"])
def test_it_is_not_written(
    why: str, store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, clock: Callable[[float], None]
) -> None:
    link, stop = FakeLink(), Event()
    limit = 1000 if why == "no space" else 1 << 30
    options = ShipConfig.model_validate(
        {"cdc_total_space": limit, "disk_reserve": 0, "tail_seconds": None, "filler": None if why == "no filler" else FILLER}
    )
    agent = agent_over(store, link=None if why == "no link" else link, stop=stop, config=changed(settings, ship=options))
    folder.segment(1, b"g" * 600, idx=b"5")
    clock(3600)
    if why == "stopped":
        stop.set()
    agent.round()
    assert filled(link) == 0


def test_trouble_with_it_holds_up_nothing(
    store: LocalStore, folder: Folder, agent_over: MakeAgent, settings: PipelineConfig, clock: Callable[[float], None]
) -> None:
    class Refusing(FakeLink):
        def fill(self, config: FillerConfig, stopped: Callable[[], bool]) -> int:
            self.asked.append("fill")
            raise ConfigError("the table does not exist", operation="fill a segment", obj=config.table)

    link = Refusing()
    agent = agent_over(store, link=link, config=changed(settings, ship=ShipConfig(filler=FILLER)))
    clock(3600)
    with capture_logs() as logs:
        assert agent.round().ok
        assert agent.round().ok
    assert [log["kind"] for log in logs if log["event"] == "failed to fill a segment"] == ["ConfigError"]
    assert filled(link) == 1


@pytest.mark.parametrize("table", ["rows", "a.b.c", "a.B", "a.b; DROP", ""])
def test_a_table_that_is_none(table: str) -> None:
    with pytest.raises(ValueError, match="table"):
        FillerConfig(table=table)


@pytest.mark.cassandra
def test_a_real_node_finishes_its_segment(cassandra_node: Any, tmp_path: Path) -> None:
    session = cassandra_node.session()
    one = "WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}"
    session.execute(f"CREATE KEYSPACE filler_test {one}")
    session.execute("CREATE TABLE filler_test.captured (id int PRIMARY KEY) WITH cdc = true")
    session.execute("CREATE TABLE filler_test.kept (key int PRIMARY KEY, filler blob)")
    session.execute(
        "CREATE TABLE filler_test.rows (key int PRIMARY KEY, filler blob) WITH default_time_to_live = 60 AND gc_grace_seconds = 0"
    )
    session.execute("CREATE KEYSPACE filler_twice WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}")
    session.execute("CREATE TABLE filler_twice.rows (key int PRIMARY KEY, filler blob) WITH default_time_to_live = 60")
    config = FillerConfig(table="filler_test.rows", segment_size=1 << 20)
    with Link(NodeConfig(cdc_raw=cassandra_node.cdc_raw, address=cassandra_node.address, port=cassandra_node.port)) as link:
        for table, why in (("captured", "cdc = true"), ("kept", "default_time_to_live"), ("nothing", "does not exist")):
            with pytest.raises(ConfigError, match=why):
                link.fill(replace_table(config, f"filler_test.{table}"), lambda: False)
        with pytest.raises(ConfigError, match="replication"):
            link.fill(replace_table(config, "filler_twice.rows"), lambda: False)
        session.execute("INSERT INTO filler_test.captured (id) VALUES (1)")
        growing = eventually_growing(cassandra_node.cdc_raw)
        assert link.fill(config, lambda: True) == 0
        assert link.fill(config, lambda: False) == 1 << 20
        deadline = time.monotonic() + 60
        while next(found.state for found in classify(look(cassandra_node.cdc_raw)) if found.name == growing) is not State.COMPLETED:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    ((key, size),) = session.execute("SELECT key, ttl(filler) FROM filler_test.rows")
    assert key == 0
    assert 0 < size <= 60


def replace_table(config: FillerConfig, table: str) -> FillerConfig:
    return config.model_copy(update={"table": table})


def eventually_growing(cdc_raw: Path) -> str:
    """The newest segment that has something captured, once that is synced."""
    deadline = time.monotonic() + 60
    while not (found := [item for item in classify(look(cdc_raw)) if item.state is State.GROWING]):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return max(found, key=lambda item: item.mtime).name
