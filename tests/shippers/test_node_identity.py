"""The node's identity, merged from three sources, and its record."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from shippers import node_identity
from shippers.agent import Agent
from shippers.node_identity import Link, NodeFacts, merge
from shippers.upload import Outcome
from tests.shippers.conftest import FakeLink, Folder
from writetime.config.node import NodeConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError, ShipError
from writetime.storage.local import LocalStore

FACTS = FakeLink().facts_now


def config(settings: PipelineConfig, **node_part: Any) -> PipelineConfig:
    assert settings.node is not None
    return settings.model_copy(update={"node": settings.node.model_copy(update=node_part)})


def test_the_configuration_is_enough(settings: PipelineConfig) -> None:
    facts = merge(config(settings, address="10.0.0.1"), {}, {})
    assert facts == NodeFacts("ring", "dc1", "host-1", address="10.0.0.1")
    assert facts.metadata() == {"host_id": "host-1", "datacenter": "dc1", "address": "10.0.0.1"}


def test_the_node_knows_more(settings: PipelineConfig) -> None:
    assert merge(config(settings, host_id=None, datacenter=None, address="127.0.0.1"), FACTS, {}) == NodeFacts(**FACTS)


def test_notes_count_only_for_the_same_node(settings: PipelineConfig) -> None:
    assert merge(settings, {}, FACTS).rack == "r1"
    assert merge(config(settings, host_id="host-2"), {}, FACTS).rack is None
    assert merge(settings, FACTS | {"rack": "r2"}, FACTS).rack == "r2"


@pytest.mark.parametrize("field", ["cluster", "datacenter", "host_id"])
@pytest.mark.advice("Correct the configuration: object names contain this value.")
def test_a_contradiction_is_an_error(settings: PipelineConfig, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is `.*but `other` on the node"):
        merge(settings, FACTS | {field: "other"}, {})
    assert merge(settings, FACTS, {}).cluster == settings.cluster.name


@pytest.mark.parametrize("field", ["datacenter", "host_id"])
@pytest.mark.advice(", or set node.address so that the node is queried while it is up.")
def test_nobody_knows(settings: PipelineConfig, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"node\.{field}"):
        merge(config(settings, **{field: None}), {}, {})
    assert merge(settings, {}, {}) == merge(config(settings, **{field: None}), {field: getattr(settings.node, field)}, {})


def test_a_datacenter_that_is_not_captured(settings: PipelineConfig) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.datacenters"):
        merge(config(settings, datacenter="dc9"), {}, {})


@pytest.mark.advice("Add `node: {cdc_raw: …}`.")
def test_a_configuration_without_node(settings: PipelineConfig) -> None:
    with pytest.raises(ConfigError, match="the `node` section is missing"):
        merge(settings.model_copy(update={"node": None}), {}, {})
    assert merge(settings, {}, {}).host_id == "host-1"


def test_notes(tmp_path: Path) -> None:
    facts = NodeFacts(**FACTS)
    assert node_identity.notes_file(NodeConfig(cdc_raw=tmp_path / "cdc_raw")) == tmp_path / "cdc_raw.writetime" / "node.json"
    path = node_identity.notes_file(NodeConfig(cdc_raw=tmp_path / "cdc_raw", state_dir=tmp_path / "state"))
    assert path == tmp_path / "state" / "node.json"
    assert node_identity.recall(path) == {}
    node_identity.remember(path, facts)
    node_identity.remember(path, facts)
    assert {key: value for key, value in node_identity.recall(path).items() if key not in ("asked", "machine")} == FACTS
    for damaged in (b"", b"[]", b'{"unknown": 1}'):
        path.write_bytes(damaged)
        assert node_identity.recall(path) == {}
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ShipError, match=r"node\.state_dir"):
        node_identity.remember(tmp_path / "file" / "node.json", facts)


def recorded(settings: PipelineConfig, *, by: str | None) -> dict[str, Any]:
    """What a node recorded that answered at this address, on this machine."""
    path = node_identity.notes_file(node_identity.require_node(settings))
    node_identity.remember(path, NodeFacts(**FACTS), asked=by)
    return node_identity.recall(path)


def test_a_record_counts_for_the_address_that_gave_it(settings: PipelineConfig) -> None:
    """A machine that is made from an image of another node has that node's record, and its own address."""
    unnamed = config(settings, host_id=None, datacenter=None, address="10.0.0.12")
    own, others = recorded(settings, by="10.0.0.12:9042"), recorded(settings, by="10.0.0.11:9042")
    assert merge(unnamed, {}, own, unanswered=True) == NodeFacts(**FACTS)
    for foreign in (others, own | {"asked": "10.0.0.12:9142"}, own | {"asked": None}):
        with pytest.raises(ShipError, match="the node has not answered yet") as caught:
            merge(unnamed, {}, foreign, unanswered=True)
        assert caught.value.retriable
        with pytest.raises(ConfigError, match=r"node\.host_id"):
            merge(unnamed, {}, foreign)
    # The configuration says who it is, the node too.
    assert merge(config(settings, address="10.0.0.12"), {}, others, unanswered=True).rack == "r1"
    assert merge(unnamed, FACTS, others) == NodeFacts(**FACTS)


def test_a_record_of_another_machine_with_the_same_address(
    settings: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shippers beside their node are configured with its loopback address, all of them alike. A disk of a stopped node may be
    drained on another machine."""
    unnamed, machine = config(settings, host_id=None, address="127.0.0.1"), tmp_path / "machine-id"
    monkeypatch.setattr(node_identity, "_MACHINE_ID", machine)
    in_a_container = recorded(settings, by="127.0.0.1:9042")
    machine.write_text("b08dfa6083e7567a1921a715000001fb\n")
    own = recorded(settings, by="127.0.0.1:9042")
    assert "b08dfa60" not in str(own)
    assert merge(unnamed, {}, own, unanswered=True) == NodeFacts(**FACTS)
    machine.write_text("another\n")
    for foreign in (own, in_a_container):
        with pytest.raises(ShipError, match="the node has not answered yet"):
            merge(unnamed, {}, foreign, unanswered=True)
        assert merge(unnamed, {}, foreign) == NodeFacts(**FACTS)


def test_segments_of_a_machine_made_from_an_image_wait(
    settings: PipelineConfig, store: LocalStore, folder: Folder, agent_over: Callable[..., Agent]
) -> None:
    folder.segment(1)
    recorded(settings, by="10.0.0.11:9042")
    link = FakeLink(down=True)
    agent = agent_over(store, link=link, config=config(settings, host_id=None, datacenter=None, address="10.0.0.12"))
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(ShipError, match="the node has not answered yet"):
                agent.round()
    (said,) = [log for log in logs if log["event"] == "recorded node identity is not used"]
    assert said["reason"] == "the node at 10.0.0.11:9042 gave it, the configuration has 10.0.0.12:9042"
    assert (list(store.list()), len(folder.names)) == ([], 2)
    link.down, link.facts_now = False, FACTS | {"host_id": "host-2"}
    assert agent.round().shipped == {Outcome.UPLOADED: 1}
    assert [info.name for info in store.list("cdc/")] == ["cdc/ring/dc1/host-2/CommitLog-7-1.log"]


def test_a_node_that_does_not_answer(tmp_path: Path) -> None:
    with Link(NodeConfig(cdc_raw=tmp_path, address="127.0.0.1", port=9)) as link:
        for question in (link.facts, link.schema_version, link.snapshot):
            with pytest.raises(ShipError, match=r"127\.0\.0\.1:9") as caught:
                question()
            assert caught.value.retriable


@pytest.mark.parametrize("row", [None, ("ring", "dc1"), ("ring", "dc1", "h", "a", "r", "5.0", ["no number"])])
def test_a_row_that_is_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Any) -> None:
    link = Link(NodeConfig(cdc_raw=tmp_path, address="127.0.0.1"))
    session = SimpleNamespace(execute=lambda _: SimpleNamespace(one=lambda: row))
    monkeypatch.setattr(link, "_connected", lambda: session)
    with pytest.raises(ShipError, match=r"(Type|Value)Error") as caught:
        link.facts()
    assert caught.value.retriable


def test_a_new_connection_has_not_said_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(NodeConfig(cdc_raw=tmp_path, address="127.0.0.1"))
    row: Any = ("ring", "dc1", "h", "127.0.0.1", "r", "5.0.6", None, [])
    session = SimpleNamespace(execute=lambda _: SimpleNamespace(one=lambda: row))
    monkeypatch.setattr(link, "_connected", lambda: session)
    assert not link.introduced
    link.facts()
    assert link.introduced
    row = None
    with pytest.raises(ShipError):
        link.facts()
    assert not link.introduced


@pytest.mark.parametrize(
    ("partitioner", "tokens", "reported"),
    [
        ("org.apache.cassandra.dht.Murmur3Partitioner", ["7", "-1"], ["-1", "7"]),
        ("org.apache.cassandra.dht.RandomPartitioner", ["85070591730234615865843651857942052864"], None),
        ("org.apache.cassandra.dht.ByteOrderedPartitioner", ["0a"], None),
        ("org.apache.cassandra.dht.OrderPreservingPartitioner", ["m"], None),
        ("com.example.Own", ["\\x"], None),
    ],
)
def test_a_node_is_identified_whatever_its_partitioner(partitioner: str, tokens: list[str], reported: list[str] | None) -> None:
    """Otherwise nothing would be shipped, and its disk would fill."""
    row = ("ring", "dc1", "host-1", "192.0.2.1", "r1", "5.0.6", partitioner, tokens)
    found = node_identity._facts(SimpleNamespace(execute=lambda _: SimpleNamespace(one=lambda: row)))
    assert (found["host_id"], found["partitioner"], found["tokens"]) == ("host-1", partitioner.rpartition(".")[2], reported)


def test_a_silent_node_delays_one_question_and_not_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is frozen, or a firewall drops what is sent to it: each question takes as long as may be."""
    monkeypatch.setattr(node_identity, "_CONNECT_SECONDS", 1.5)
    monkeypatch.setattr(node_identity, "_REST_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(5)
        with Link(NodeConfig(cdc_raw=tmp_path, address="127.0.0.1", port=silent.getsockname()[1])) as link:
            with pytest.raises(ShipError, match="Unable to connect"):
                link.facts()
            begun = time.monotonic()
            for question in (link.facts, link.schema_version, link.truncations, link.settings, link.ring):
                with pytest.raises(ShipError, match="not asking") as caught:
                    question()
                assert caught.value.retriable
            assert time.monotonic() - begun < 1.0
            time.sleep(2.1)
            with pytest.raises(ShipError, match="Unable to connect"):
                link.facts()
