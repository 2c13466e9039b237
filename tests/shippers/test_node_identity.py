"""The node's identity, merged from three sources, and its record."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shippers import node_identity
from shippers.node_identity import Link, NodeFacts, merge
from tests.shippers.conftest import FakeLink
from writetime.config.node import NodeConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ConfigError, ShipError

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
    assert node_identity.recall(path) == FACTS
    for damaged in (b"", b"[]", b'{"unknown": 1}'):
        path.write_bytes(damaged)
        assert node_identity.recall(path) == {}
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ShipError, match=r"node\.state_dir"):
        node_identity.remember(tmp_path / "file" / "node.json", facts)


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
