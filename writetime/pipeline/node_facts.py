"""What nodes say of themselves (`nodes/`), as planning, the audit and the status read it. Knows no Spark.

A shipper writes a status now and then, which is never overwritten: the newest counts, by the clock of the store. Those up to 0.1 had one
document a node, which has no room in it; it counts where there is nothing newer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from writetime import untrusted
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.storage import layout, untrusted_objects
from writetime.storage.concurrency import at_once
from writetime.storage.store import ObjectInfo, Store
from writetime.untrusted import Untrusted

_TOKENS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class NodeSpace:
    """What a shipper reported last of its node: its space (`level`: ok, warn or alarm; `share` of what may be in use; bytes), and its
    settings as far as they are known."""

    at: datetime
    level: str
    share: float
    used: int
    limit: int
    disk_free: int
    settings: CdcSettings = field(default_factory=CdcSettings)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node's status, by the object of that name. `rejected`: why nothing in it is used; the name alone says that the node is there."""

    node: layout.NodeName
    object: str
    address: str = ""
    rack: str = ""
    release: str = ""
    tokens: tuple[int, ...] = ()
    space: NodeSpace | None = None
    rejected: str | None = None


def read_facts(store: Store, cluster: str) -> list[NodeFacts]:
    """The newest of every node that has written any, in order of the nodes' names."""
    newest: dict[layout.NodeName, ObjectInfo] = {}
    for info in store.list(layout.nodes_prefix(cluster)):
        node = layout.NodeName.of_facts(info.name)
        if node is not None and (node not in newest or _order(newest[node]) < _order(info)):
            newest[node] = info
    return at_once(lambda each: _facts(store, *each), sorted(newest.items()))


def _order(info: ObjectInfo) -> tuple[datetime, str]:
    return info.created, info.name


def _facts(store: Store, node: layout.NodeName, info: ObjectInfo) -> NodeFacts:
    try:
        document = untrusted_objects.read_object(store, info)
        host_id = untrusted.text(document.get("host_id"), "host_id")
        if host_id not in ("", node.host_id):
            raise Untrusted("its host_id is another node's")
        return NodeFacts(
            node,
            info.name,
            address=untrusted.text(document.get("address"), "address"),
            rack=untrusted.text(document.get("rack"), "rack"),
            release=untrusted.text(document.get("release_version"), "release_version"),
            tokens=_tokens(document.get("tokens")),
            space=_space(document, info),
        )
    except Untrusted as error:
        return NodeFacts(node, info.name, rejected=str(error))


def _space(document: Mapping[str, Any], info: ObjectInfo) -> NodeSpace | None:
    space = document.get("space")
    if space is None:
        return None
    if not isinstance(space, dict):
        raise Untrusted("space is no object")
    at = document.get("at", info.created.isoformat())
    return parse_space({"at": at, "settings": document.get("settings"), **space})


def parse_space(space: Mapping[str, Any]) -> NodeSpace:
    """A node's room as its status has it, or as an object under space/. Raises `Untrusted`."""
    return NodeSpace(
        at=untrusted.moment(space.get("at"), "at"),
        level=untrusted.text(space.get("level"), "level", longest=16),
        share=untrusted.number(space.get("share"), "share", low=0, high=1e6),
        used=untrusted.integer(space.get("used"), "used"),
        limit=untrusted.integer(space.get("limit"), "limit"),
        disk_free=untrusted.integer(space.get("disk_free"), "disk_free"),
        settings=CdcSettings.parse(space.get("settings")),
    )


def _tokens(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _TOKENS:
        raise Untrusted(f"tokens are no list of at most {_TOKENS}")
    try:
        found = [int(untrusted.text(each, "a token", longest=24)) if isinstance(each, str) else each for each in value]
    except ValueError as error:
        raise Untrusted("a token is no whole number") from error
    return tuple(untrusted.integer(each, "a token", low=-(2**63)) for each in found)
