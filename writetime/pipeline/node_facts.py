"""The nodes' status documents (`nodes/`), as planning, the audit and the status read them. Does not know
Spark.

A shipper writes a status from time to time and never overwrites one: the newest counts, by the store's
clock. Shippers up to 0.1 had one document per node, without space; it counts if there is nothing newer.
"""

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
    """The last report of a node's space (`level`: ok, warn or alarm; `share` of the limit in use; bytes) and
    settings, as far as known."""

    at: datetime
    level: str
    share: float
    used: int
    limit: int
    disk_free: int
    settings: CdcSettings = field(default_factory=CdcSettings)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node's status and its object. `rejected`: why its content is not used; then only the name shows that
    the node exists."""

    node: layout.NodeName
    object: str
    address: str = ""
    rack: str = ""
    release: str = ""
    tokens: tuple[int, ...] = ()
    space: NodeSpace | None = None
    rejected: str | None = None


def read_facts(store: Store, cluster: str) -> list[NodeFacts]:
    """The newest status of every node, by node name."""
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
            raise Untrusted("host_id belongs to another node")
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
        raise Untrusted("space is not an object")
    at = document.get("at", info.created.isoformat())
    return parse_space({"at": at, "settings": document.get("settings"), **space})


def parse_space(space: Mapping[str, Any]) -> NodeSpace:
    """A node's space, from its status or an object under space/. Raises `Untrusted`."""
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
        raise Untrusted(f"tokens are not a list of at most {_TOKENS}")
    try:
        found = [int(untrusted.text(each, "a token", longest=24)) if isinstance(each, str) else each for each in value]
    except ValueError as error:
        raise Untrusted("a token is not an integer") from error
    return tuple(untrusted.integer(each, "a token", low=-(2**63)) for each in found)
