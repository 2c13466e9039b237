"""What nodes say of themselves (`nodes/`), as planning, the audit and the status read it. Knows no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from writetime import names, untrusted
from writetime.store import ObjectInfo, Store
from writetime.threads import at_once
from writetime.untrusted import Untrusted

_TOKENS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node's document. `rejected`: why nothing in it is used; the name alone says that the node is there."""

    node: names.NodeName
    address: str = ""
    rack: str = ""
    release: str = ""
    tokens: tuple[int, ...] = ()
    rejected: str | None = None


def read_facts(store: Store, cluster: str) -> list[NodeFacts]:
    """Of every node that has a document, in order of their names."""
    listed = ((names.NodeName.of_facts(info.name), info) for info in store.list(names.nodes_prefix(cluster)))
    return at_once(lambda each: _facts(store, *each), [(node, info) for node, info in listed if node is not None])


def _facts(store: Store, node: names.NodeName, info: ObjectInfo) -> NodeFacts:
    try:
        told = untrusted.read_object(store, info)
        host_id = untrusted.text(told.get("host_id"), "host_id")
        if host_id not in ("", node.host_id):
            raise Untrusted("its host_id is another node's")
        return NodeFacts(
            node,
            address=untrusted.text(told.get("address"), "address"),
            rack=untrusted.text(told.get("rack"), "rack"),
            release=untrusted.text(told.get("release_version"), "release_version"),
            tokens=_tokens(told.get("tokens")),
        )
    except Untrusted as error:
        return NodeFacts(node, rejected=str(error))


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
