"""Objects that shippers write: statuses of nodes, of which each has one here, and schema snapshots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from writetime.errors import ObjectNotFound
from writetime.storage import layout
from writetime.storage.store import Store


def status_of(node: layout.NodeName) -> str:
    """The name of the node's status."""
    return layout.node_status(node, datetime(2026, 5, 4, tzinfo=UTC), "00000000")


def put_space(store: Store, node: layout.NodeName, space: Mapping[str, Any]) -> str:
    """Add a node's space, with `at` and `settings`, to its status; returns the name."""
    known: dict[str, Any] = {}
    with suppress(ObjectNotFound):
        known = json.loads(store.read(status_of(node)))
    about = {name: space[name] for name in ("at", "settings") if name in space}
    reported = {name: value for name, value in space.items() if name not in about}
    return store.put(status_of(node), json.dumps({**known, **about, "space": reported}).encode()).name


def schema_name(cluster: str, at: datetime, version: str) -> str:
    """The name of a schema snapshot of some node."""
    return layout.node_schema(layout.NodeName(cluster, "dc1", "a"), at, version)
